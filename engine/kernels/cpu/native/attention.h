// Attention over keys and values in 8 bits.
//
// The pool is divided into pages of 16 slots, per layer and key-value head. A page:
//
//   keys    [D/4][16 slots][4 bytes]   scales [D/group][16]
//   values  [8 pairs][D][2 slots]      scales [D/group][16]
//
// A row's keys are taken in logical order, 16 at a time, aligned to absolute position: such a tile
// is a page, or is gathered into one. A score is a sum over groups in ascending order; the weights
// are summed by lane (position % 16) over tiles, then over lanes. To mix the values of a tile, the
// weights times the values' scales are rounded to 15 bits of the tile's largest scale, so that a
// tile's sum is one of integers; the sums are added over tiles, in order.
#pragma once
#include "functions.h"
#include "products.h"

namespace dflash {
namespace {

struct Page {
  int dim, groups, width, key_scales, values, value_scales, bytes;
  explicit Page(const Model& m)
      : dim(m.head_dim),
        groups(m.head_dim / m.key_group),
        width(m.key_group),
        key_scales(dim * kTile),
        values(key_scales + groups * kTile * 4),
        value_scales(values + dim * kTile),
        bytes(value_scales + groups * kTile * 4) {}
};

inline int padded(int dim) { return (dim + kTile - 1) / kTile * kTile; }

inline void copy_key(const Page& page, const uint8_t* from, int lane, uint8_t* to, int lane_to) {
  for (int i = 0; i < page.dim / 4; ++i)
    __builtin_memcpy(to + (i * kTile + lane_to) * 4, from + (i * kTile + lane) * 4, 4);
  for (int g = 0; g < page.groups; ++g)
    __builtin_memcpy(to + page.key_scales + (g * kTile + lane_to) * 4,
                     from + page.key_scales + (g * kTile + lane) * 4, 4);
}

inline void copy_value(const Page& page, const uint8_t* from, int lane, uint8_t* to, int lane_to) {
  const uint8_t* value = from + page.values + lane / 2 * page.dim * 2 + lane % 2;
  uint8_t* copy = to + page.values + lane_to / 2 * page.dim * 2 + lane_to % 2;
  for (int i = 0; i < page.dim; ++i) copy[2 * i] = value[2 * i];
  for (int g = 0; g < page.groups; ++g)
    __builtin_memcpy(to + page.value_scales + (g * kTile + lane_to) * 4,
                     from + page.value_scales + (g * kTile + lane) * 4, 4);
}

inline void rotate(float* x, const float* cosine, const float* sine, int half) {
  for (int i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = __builtin_fmaf(a, cosine[i], -(b * sine[i]));
    x[i + half] = __builtin_fmaf(b, cosine[i], a * sine[i]);
  }
}

// Rotates a row's queries and keys; stores keys and values in its slot.
void place(const Step& step, int layer, int row) {
  const Model& m = *step.model;
  const Page shape(m);
  const int dim = shape.dim, half = dim / 2, groups = shape.groups, width = shape.width;
  float* x = step.qkv + static_cast<int64_t>(row) * (m.heads + 2 * m.kv_heads) * dim;
  const float* cosine = m.cosines + step.positions[row] * half;
  const float* sine = m.sines + step.positions[row] * half;
  for (int h = 0; h < m.heads; ++h) {
    rotate(x + h * dim, cosine, sine, half);
    for (int g = 0; g < groups; ++g) {
      const int64_t at = (static_cast<int64_t>(row) * m.heads + h) * groups + g;
      float scale;
      const int32_t sum = quantise_group(x + h * dim + g * width, width,
                                         step.in_query.q + at * width, &scale);
      step.in_query.scale[at] = scale * m.score_scale;
      step.in_query.bias[at] = -128 * sum;
    }
  }
  const int64_t slot = step.slots[row];
  const int lane = static_cast<int>(slot % kTile);
  alignas(64) int8_t q[kGroup];
  for (int h = 0; h < m.kv_heads; ++h) {
    const int64_t plane = static_cast<int64_t>(layer) * m.kv_heads + h;
    uint8_t* page = m.pool + (plane * m.pages + slot / kTile) * m.page_bytes;
    float* key = x + (m.heads + h) * dim;
    const float* value = key + m.kv_heads * dim;
    auto* key_scales = reinterpret_cast<float*>(page + shape.key_scales) + lane;
    auto* value_scales = reinterpret_cast<float*>(page + shape.value_scales) + lane;
    rotate(key, cosine, sine, half);
    for (int g = 0; g < groups; ++g) {
      quantise_group(key + g * width, width, q, key_scales + g * kTile);
      for (int i = 0; i < width / 4; ++i)
        __builtin_memcpy(page + ((g * width / 4 + i) * kTile + lane) * 4, q + i * 4, 4);
      quantise_group(value + g * width, width, q, value_scales + g * kTile);
      uint8_t* to = page + shape.values + lane / 2 * dim * 2 + lane % 2 + g * width * 2;
      for (int i = 0; i < width; ++i) to[2 * i] = static_cast<uint8_t>(q[i]);
    }
  }
}

// Memory that is read soon, fetched a few lines at a time between products: all at once would fill
// the core's buffers, and the products would wait.
struct Ahead {
  const uint8_t* from;  // null: nothing
  int lines, at_once;

  void fetch(int turn) const {
    if (!from) return;
    for (int i = turn * at_once; i < (turn + 1) * at_once && i < lines; ++i)
      _mm_prefetch(reinterpret_cast<const char*>(from) + i * 64, _MM_HINT_T1);
  }
};

inline Ahead spread(const uint8_t* from, int bytes, int turns) {
  const int lines = bytes / 64;
  return {from, lines, (lines + turns - 1) / turns};
}

// One group's share of the scores of 16 keys, for `heads` queries that follow each other.
template <int Words>
inline void score_group(const uint8_t* keys, const float* key_scales, const int8_t* q,
                        const float* scale, const int32_t* bias, int heads, int dim, int groups,
                        int group, float* scores, int64_t stride, const Ahead& ahead) {
  for (int h = 0; h < kHalves; ++h) {
    const Bytes k = load_words<Words>(keys + h * kLanes * 4);
    const vf ks = load(key_scales + h * kLanes);
    for (int i = 0; i < heads; ++i) {
      if (h == 0) ahead.fetch(group * heads + i);
      float* to = scores + i * stride + h * kLanes;
      const vf t = floats(dot_bytes<Words>(k, q + i * dim, bias[i * groups]));
      store(to, fma(t, mul(ks, fill(scale[i * groups])), group == 0 ? zero() : load(to)));
    }
  }
}

inline void score_tile(const Page& shape, const uint8_t* page, const Rows8& query,
                       int64_t first_head, int heads, float* scores, int64_t stride,
                       const Ahead& ahead) {
  for (int g = 0; g < shape.groups; ++g) {
    const int64_t at = first_head * shape.groups + g;
    const uint8_t* keys = page + g * shape.width * kTile;
    const float* ks = reinterpret_cast<const float*>(page + shape.key_scales) + g * kTile;
    const auto score = shape.width == 32 ? score_group<8> : shape.width == 16 ? score_group<4> : score_group<2>;
    score(keys, ks, query.q + at * shape.width, query.scale + at, query.bias + at, heads, shape.dim,
          shape.groups, g, scores, stride, ahead);
  }
}

// Turns scores into weights, not yet divided by their sum, which is returned.
inline float soften(float* s, int length) {
  const int whole = length / kTile * kTile;
  vf top[kHalves], sum[kHalves];
  for (int h = 0; h < kHalves; ++h) top[h] = fill(-__builtin_inff()), sum[h] = zero();
  for (int j = 0; j < whole; j += kTile)
    for (int h = 0; h < kHalves; ++h) top[h] = larger(top[h], load(s + j + h * kLanes));
  if (whole < length)
    for (int h = 0; h < kHalves; ++h)
      top[h] = larger(top[h], first_lanes(load(s + whole + h * kLanes), length - whole - h * kLanes,
                                          -__builtin_inff()));
  float most = largest(top[0]);
  if (kHalves == 2) {
    const float other = largest(top[kHalves - 1]);
    if (other > most) most = other;
  }
  const auto weight = [&](int j, int h) { return exponential(sub(load(s + j + h * kLanes), fill(most))); };
  const auto take = [&](int j, int h, vf e) {
    store(s + j + h * kLanes, e);
    sum[h] = add(sum[h], e);
  };
  for (int j = 0; j < whole; j += kTile)
    for (int h = 0; h < kHalves; ++h) take(j, h, weight(j, h));
  if (whole < length)
    for (int h = 0; h < kHalves; ++h)
      take(whole, h, first_lanes(weight(whole, h), length - whole - h * kLanes, 0.0f));
  return total(sum);
}

// The tile's values as 16-bit integers, in the same order.
inline void widen_values(const Page& shape, const uint8_t* page, int16_t* values) {
  const uint8_t* v = page + shape.values;
  for (int i = 0; i < kTile * shape.dim; i += 2 * kLanes) store_ints(values + i, widen_bytes(v + i));
}

// What makes weights integers, for the first `count` keys of a tile, and what turns sums back.
struct Rounding {
  float* factor;  // [groups, 16]
  float* unit;    // [groups]
};

inline void round_to(const Page& shape, const uint8_t* page, int count, const Rounding& r) {
  const float* scales = reinterpret_cast<const float*>(page + shape.value_scales);
  for (int g = 0; g < shape.groups; ++g, scales += kTile) {
    vf s[kHalves];
    for (int h = 0; h < kHalves; ++h)
      s[h] = first_lanes(load(scales + h * kLanes), count - h * kLanes, 0.0f);
    float top = largest(s[0]);
    if (kHalves == 2 && largest(s[kHalves - 1]) > top) top = largest(s[kHalves - 1]);
    const vf inverse = fill(top > 0.0f ? 32767.0f / top : 0.0f);
    for (int h = 0; h < kHalves; ++h) store(r.factor + g * kTile + h * kLanes, mul(s[h], inverse));
    r.unit[g] = top / 32767.0f;
  }
}

// The weights of 16 keys times their values' scales, as integers: [heads][groups][16].
inline void weigh(const Page& shape, const Rounding& r, int heads, const float* p, int64_t stride,
                  int16_t* weights) {
  for (int i = 0; i < heads; ++i)
    for (int g = 0; g < shape.groups; ++g, weights += kTile)
      for (int h = 0; h < kHalves; ++h)
        store_shorts(weights + h * kLanes, mul(load(p + i * stride + h * kLanes),
                                               load(r.factor + g * kTile + h * kLanes)));
}

template <bool Narrow>
inline vi load_values(const void* values, int at) {
  return Narrow ? widen_bytes(static_cast<const int8_t*>(values) + at)
                : load_ints(static_cast<const int16_t*>(values) + at);
}

// Adds a tile's values to `H` heads' sums, `G` groups of V vectors each, `pairs` pairs of keys.
template <int H, int G, int V, bool Narrow>
inline void mix_block(const void* values, int row, int pairs, const int16_t* weights, int head_step,
                      const float* unit, float* mixing, int to, const Ahead& ahead) {
  vi acc[H][G * V];
  for (int h = 0; h < H; ++h)
    for (int v = 0; v < G * V; ++v) acc[h][v] = no_ints();
  for (int j = 0; j < pairs; ++j) {
    ahead.fetch(j);
    vi x[G * V];
    for (int v = 0; v < G * V; ++v) x[v] = load_values<Narrow>(values, j * row + 2 * v * kLanes);
    for (int h = 0; h < H; ++h)
      for (int g = 0; g < G; ++g) {
        int32_t two;
        __builtin_memcpy(&two, weights + h * head_step + g * kTile + 2 * j, 4);
        const vi w = fill_ints(two);
        for (int v = g * V; v < (g + 1) * V; ++v) acc[h][v] = dot_pairs(acc[h][v], x[v], w);
      }
  }
  for (int h = 0; h < H; ++h)
    for (int v = 0; v < G * V; ++v) {
      float* at = mixing + h * to + v * kLanes;
      store(at, fma(floats(acc[h][v]), fill(unit[v / V]), load(at)));
    }
}

template <int G, int V, bool Narrow>
inline void mix_groups(int heads, const void* values, int row, int pairs, const int16_t* weights,
                       int head_step, const float* unit, float* mixing, int to, const Ahead& ahead) {
  const Ahead none{};
  const auto next = [&](int h) { return h ? none : ahead; };
  int h = 0;
  for (; h + 3 <= heads; h += 3)
    mix_block<3, G, V, Narrow>(values, row, pairs, weights + h * head_step, head_step, unit,
                               mixing + h * to, to, next(h));
  for (; h + 2 <= heads; h += 2)
    mix_block<2, G, V, Narrow>(values, row, pairs, weights + h * head_step, head_step, unit,
                               mixing + h * to, to, next(h));
  if (h < heads)
    mix_block<1, G, V, Narrow>(values, row, pairs, weights + h * head_step, head_step, unit,
                               mixing + h * to, to, next(h));
}

// `values` are the page's bytes (narrow) or what `widen_values` made of them.
template <bool Narrow>
inline void mix_tile(const Page& shape, const void* values, int count, int heads,
                     const int16_t* weights, const Rounding& r, float* mixing, const Ahead& ahead) {
  const int to = padded(shape.dim), row = 2 * shape.dim, step = shape.groups * kTile;
  const int pairs = (count + 1) / 2;
  for (int g = 0; g < shape.groups;) {
    const int at = g * shape.width;
    const void* from = static_cast<const char*>(values) + at * (Narrow ? 2 : 4);
    const int16_t* w = weights + g * kTile;
    const float* unit = r.unit + g;
    if (kLanes == 16 && shape.width == 32 && g + 2 <= shape.groups) {
      mix_groups<2, 32 / kLanes, Narrow>(heads, from, row, pairs, w, step, unit, mixing + at, to, g ? Ahead{} : ahead);
      g += 2;
      continue;
    }
    ++g;
    if (shape.width == 32) {
      mix_groups<1, 32 / kLanes, Narrow>(heads, from, row, pairs, w, step, unit, mixing + at, to,
                                         at ? Ahead{} : ahead);
    } else if (shape.width == 16) {
      mix_groups<1, 16 / kLanes, Narrow>(heads, from, row, pairs, w, step, unit, mixing + at, to,
                                         at ? Ahead{} : ahead);
    } else {
      for (int h = 0; h < heads; ++h)
        for (int i = 0; i < shape.width; ++i) {
          int32_t acc = 0;
          for (int j = 0; j < count; ++j) {
            const int k = j / 2 * row + 2 * i + j % 2;
            const int32_t x = Narrow ? static_cast<const int8_t*>(from)[k] : static_cast<const int16_t*>(from)[k];
            acc += w[h * step + j] * x;
          }
          float* sum = mixing + h * to + at + i;
          *sum = __builtin_fmaf(static_cast<float>(acc), *unit, *sum);
        }
    }
  }
}

}  // namespace
}  // namespace dflash
