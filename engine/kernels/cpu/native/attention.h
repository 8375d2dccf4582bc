// Attention over keys and values in 8 bits.
//
// The pool is divided into pages of 16 slots, per layer and key-value head. A page:
//
//   keys    [D/4][16 slots][4 bytes]   scales [D/group][16]
//   values  [16 slots][D]              scales [D/group][16]
//
// A row's keys are taken in logical order, 16 at a time, aligned to absolute position: such a tile
// is a page, or is gathered into one. A score is a sum over groups in ascending order; the weights
// are summed by lane (position % 16) over tiles, then over lanes; values are summed over the keys
// of a tile, then over tiles, in order.
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

inline void copy_slot(const Page& page, const uint8_t* from, int lane, uint8_t* to, int lane_to) {
  for (int i = 0; i < page.dim / 4; ++i)
    __builtin_memcpy(to + (i * kTile + lane_to) * 4, from + (i * kTile + lane) * 4, 4);
  for (int g = 0; g < page.groups; ++g) {
    const int at = (g * kTile + lane) * 4, at_to = (g * kTile + lane_to) * 4;
    __builtin_memcpy(to + page.key_scales + at_to, from + page.key_scales + at, 4);
    __builtin_memcpy(to + page.value_scales + at_to, from + page.value_scales + at, 4);
  }
  __builtin_memcpy(to + page.values + lane_to * page.dim, from + page.values + lane * page.dim,
                   page.dim);
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
    auto* values = reinterpret_cast<int8_t*>(page + shape.values) + lane * dim;
    rotate(key, cosine, sine, half);
    for (int g = 0; g < groups; ++g) {
      quantise_group(key + g * width, width, q, key_scales + g * kTile);
      for (int i = 0; i < width / 4; ++i)
        __builtin_memcpy(page + ((g * width / 4 + i) * kTile + lane) * 4, q + i * 4, 4);
      quantise_group(value + g * width, width, values + g * width, value_scales + g * kTile);
    }
  }
}

// One group's share of the scores of 16 keys, for `heads` queries that follow each other.
template <int Words>
inline void score_group(const uint8_t* keys, const float* key_scales, const int8_t* q,
                        const float* scale, const int32_t* bias, int heads, int dim, int groups,
                        bool first, float* scores, int64_t stride) {
  for (int h = 0; h < kHalves; ++h) {
    const Bytes k = load_words<Words>(keys + h * kLanes * 4);
    const vf ks = load(key_scales + h * kLanes);
    for (int i = 0; i < heads; ++i) {
      float* to = scores + i * stride + h * kLanes;
      const vf t = floats(dot_bytes<Words>(k, q + i * dim, bias[i * groups]));
      store(to, fma(t, mul(ks, fill(scale[i * groups])), first ? zero() : load(to)));
    }
  }
}

inline void score_tile(const Page& shape, const uint8_t* page, const Rows8& query,
                       int64_t first_head, int heads, float* scores, int64_t stride) {
  for (int g = 0; g < shape.groups; ++g) {
    const int64_t at = first_head * shape.groups + g;
    const uint8_t* keys = page + g * shape.width * kTile;
    const float* ks = reinterpret_cast<const float*>(page + shape.key_scales) + g * kTile;
    const auto score = shape.width == 32 ? score_group<8> : shape.width == 16 ? score_group<4> : score_group<2>;
    score(keys, ks, query.q + at * shape.width, query.scale + at, query.bias + at, heads, shape.dim,
          shape.groups, g == 0, scores, stride);
  }
}

// Turns scores into weights, not yet divided by their sum, which is returned.
inline float soften(float* s, int length) {
  vf top[kHalves], sum[kHalves];
  for (int h = 0; h < kHalves; ++h) top[h] = fill(-__builtin_inff()), sum[h] = zero();
  for (int j = 0; j < length; j += kTile)
    for (int h = 0; h < kHalves; ++h)
      top[h] = larger(top[h], first_lanes(load(s + j + h * kLanes), length - j - h * kLanes,
                                          -__builtin_inff()));
  float most = largest(top[0]);
  if (kHalves == 2) {
    const float other = largest(top[kHalves - 1]);
    if (other > most) most = other;
  }
  for (int j = 0; j < length; j += kTile)
    for (int h = 0; h < kHalves; ++h) {
      float* at = s + j + h * kLanes;
      const vf e = first_lanes(exponential(sub(load(at), fill(most))), length - j - h * kLanes, 0.0f);
      store(at, e);
      sum[h] = add(sum[h], e);
    }
  return total(sum);
}

// The tile's values as floats, not yet scaled: [16][D padded].
inline void widen_values(const Page& shape, const uint8_t* page, int count, float* values) {
  const int8_t* v = reinterpret_cast<const int8_t*>(page + shape.values);
  for (int j = 0; j < count; ++j, v += shape.dim, values += padded(shape.dim)) {
    int i = 0;
    for (; i + kLanes <= shape.dim; i += kLanes) store(values + i, load_bytes(v + i));
    for (; i < shape.dim; ++i) values[i] = static_cast<float>(v[i]);
  }
}

// The weights of 16 keys times their values' scales: [heads][groups][16].
inline void weigh(const Page& shape, const uint8_t* page, int heads, const float* p, int64_t stride,
                  float* weights) {
  const float* scales = reinterpret_cast<const float*>(page + shape.value_scales);
  for (int h = 0; h < heads; ++h)
    for (int g = 0; g < shape.groups; ++g, weights += kTile)
      for (int i = 0; i < kTile; i += kLanes)
        store(weights + i, mul(load(p + h * stride + i), load(scales + g * kTile + i)));
}

template <bool Narrow>
inline vf load_values(const void* values, int at) {
  return Narrow ? load_bytes(static_cast<const int8_t*>(values) + at)
                : load(static_cast<const float*>(values) + at);
}

// Adds a tile's values to `H` heads' sums, `G` groups of V vectors each.
template <int H, int G, int V, bool Narrow>
inline void mix_block(const void* values, int row, int count, const float* weights, int head_step,
                      float* mixing, int to) {
  vf acc[H][G * V];
  for (int h = 0; h < H; ++h)
    for (int v = 0; v < G * V; ++v) acc[h][v] = zero();
  for (int j = 0; j < count; ++j) {
    vf x[G * V];
    for (int v = 0; v < G * V; ++v) x[v] = load_values<Narrow>(values, j * row + v * kLanes);
    for (int h = 0; h < H; ++h)
      for (int g = 0; g < G; ++g) {
        const vf w = fill(weights[h * head_step + g * kTile + j]);
        for (int v = g * V; v < (g + 1) * V; ++v) acc[h][v] = fma(w, x[v], acc[h][v]);
      }
  }
  for (int h = 0; h < H; ++h)
    for (int v = 0; v < G * V; ++v) {
      float* at = mixing + h * to + v * kLanes;
      store(at, add(load(at), acc[h][v]));
    }
}

template <int G, int V, bool Narrow>
inline void mix_groups(int heads, const void* values, int row, int count, const float* weights,
                       int head_step, float* mixing, int to) {
  int h = 0;
  for (; h + 3 <= heads; h += 3)
    mix_block<3, G, V, Narrow>(values, row, count, weights + h * head_step, head_step, mixing + h * to, to);
  for (; h + 2 <= heads; h += 2)
    mix_block<2, G, V, Narrow>(values, row, count, weights + h * head_step, head_step, mixing + h * to, to);
  if (h < heads)
    mix_block<1, G, V, Narrow>(values, row, count, weights + h * head_step, head_step, mixing + h * to, to);
}

// `values` are the page's bytes (narrow) or what `widen_values` made of them.
template <bool Narrow>
inline void mix_tile(const Page& shape, const void* values, int count, int heads,
                     const float* weights, float* mixing) {
  const int to = padded(shape.dim), row = Narrow ? shape.dim : to, step = shape.groups * kTile;
  for (int g = 0; g < shape.groups;) {
    const int at = g * shape.width;
    const void* from = static_cast<const char*>(values) + at * (Narrow ? 1 : 4);
    const float* w = weights + g * kTile;
    if (kLanes == 16 && shape.width == 32 && g + 2 <= shape.groups) {
      mix_groups<2, 32 / kLanes, Narrow>(heads, from, row, count, w, step, mixing + at, to);
      g += 2;
      continue;
    }
    ++g;
    if (shape.width == 32) {
      mix_groups<1, 32 / kLanes, Narrow>(heads, from, row, count, w, step, mixing + at, to);
    } else if (shape.width == 16) {
      mix_groups<1, 16 / kLanes, Narrow>(heads, from, row, count, w, step, mixing + at, to);
    } else {
      for (int h = 0; h < heads; ++h)
        for (int i = 0; i < shape.width; ++i) {
          float acc = 0.0f;
          for (int j = 0; j < count; ++j) {
            const float x = Narrow ? static_cast<float>(static_cast<const int8_t*>(from)[j * row + i])
                                   : static_cast<const float*>(from)[j * row + i];
            acc = __builtin_fmaf(w[h * step + j], x, acc);
          }
          mixing[h * to + at + i] = mixing[h * to + at + i] + acc;
        }
    }
  }
}

}  // namespace
}  // namespace dflash
