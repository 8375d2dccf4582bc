// One unit of attention: which tiles its rows read, and in what order. See attention.h.
#pragma once
#include "attention.h"

namespace dflash {
namespace {

// Where the keys of one unit are found.
struct Keys {
  const Step& step;
  const Segment& segment;
  const Page& shape;
  const uint8_t* base;  // pages of this layer and key-value head
  uint8_t* gathered;

  // Tiles that a row has in common with its segment's chain; the rest are its own.
  int common_tiles(int row) const {
    const int length = step.length[row], shared = step.shared[row];
    return length == shared ? (length + kTile - 1) / kTile : shared / kTile;
  }

  template <bool Values>
  const uint8_t* of_chain(int tile, int count) const {
    const int32_t page = segment.tile_page[tile];
    if (page >= 0) return base + page * static_cast<int64_t>(shape.bytes);
    for (int j = 0; j < count; ++j) take<Values>(segment.chain[tile * kTile + j], j);
    return gathered;
  }

  template <bool Values>
  const uint8_t* of_row(int row, int tile, int count) const {
    const int64_t* tail = segment.tail + static_cast<int64_t>(row - segment.row) * segment.width;
    for (int j = 0; j < count; ++j) {
      const int key = tile * kTile + j;
      take<Values>(key < step.shared[row] ? segment.chain[key] : tail[key - segment.committed], j);
    }
    return gathered;
  }

 private:
  template <bool Values>
  void take(int64_t slot, int lane) const {
    const auto copy = Values ? copy_value : copy_key;
    copy(shape, base + slot / kTile * shape.bytes, static_cast<int>(slot % kTile), gathered, lane);
  }
};

inline int least(int a, int b) { return a < b ? a : b; }

// Attends unit `unit`; `next` is the one that probably follows on this thread, or -1. Its pages are
// fetched meanwhile: a request's keys have not been touched since the last step.
void attend(const Step& step, int layer, int unit, int next, Scratch& scratch) {
  const Model& m = *step.model;
  const Page shape(m);
  const AttentionUnit& u = step.unit[unit];
  const Segment& segment = step.segment[u.segment];
  const int rows = u.rows, heads = u.heads, to = padded(shape.dim);
  const auto plane = [&](int kv_head) {
    return m.pool + (static_cast<int64_t>(layer) * m.kv_heads + kv_head) * m.pages * m.page_bytes;
  };
  const Keys keys{step, segment, shape, plane(u.kv_head), scratch.page};
  int longest = 0, shared = 0;
  for (int i = 0; i < rows; ++i) {
    longest = longest < step.length[u.row + i] ? step.length[u.row + i] : longest;
    shared = shared < step.shared[u.row + i] ? step.shared[u.row + i] : shared;
  }
  const int64_t stride = padded(longest);
  const int chain_tiles = (shared + kTile - 1) / kTile;
  const auto scores = [&](int i, int tile) { return scratch.scores + i * heads * stride + tile * kTile; };
  const auto first_head = [&](int i) { return static_cast<int64_t>(u.row + i) * m.heads + u.head; };

  const uint8_t* next_plane = nullptr;
  const Segment* following = nullptr;
  if (next >= 0 && (step.unit[next].segment != u.segment || step.unit[next].kv_head != u.kv_head)) {
    following = &step.segment[step.unit[next].segment];
    next_plane = plane(step.unit[next].kv_head);
  }
  const auto follows = [&](int tile) -> const uint8_t* {
    if (!following || tile >= following->committed / kTile || following->tile_page[tile] < 0) return nullptr;
    return next_plane + following->tile_page[tile] * m.page_bytes;
  };

  for (int t = 0; t < chain_tiles; ++t) {
    const uint8_t* page = keys.of_chain<false>(t, least(shared - t * kTile, kTile));
    Ahead ahead = spread(follows(t), shape.values, shape.groups * heads);
    for (int i = 0; i < rows; ++i) {
      if (t >= keys.common_tiles(u.row + i)) continue;
      score_tile(shape, page, step.in_query, first_head(i), heads, scores(i, t), stride, ahead);
      ahead = {};
    }
  }
  for (int i = 0; i < rows; ++i) {
    const int row = u.row + i, length = step.length[row];
    for (int t = keys.common_tiles(row); t * kTile < length; ++t)
      score_tile(shape, keys.of_row<false>(row, t, least(length - t * kTile, kTile)), step.in_query,
                 first_head(i), heads, scores(i, t), stride, {});
  }

  float* sums = scratch.mixing + static_cast<int64_t>(rows) * heads * to;
  for (int i = 0; i < rows * heads; ++i)
    sums[i] = soften(scratch.scores + i * stride, step.length[u.row + i / heads]);

  for (int64_t i = 0; i < static_cast<int64_t>(rows) * heads * to; i += kLanes)
    store(scratch.mixing + i, zero());
  const auto mixing = [&](int i) { return scratch.mixing + static_cast<int64_t>(i) * heads * to; };
  const Rounding rounding{scratch.rounding + shape.groups, scratch.rounding};
  for (int t = 0; t < chain_tiles; ++t) {
    const uint8_t* page = keys.of_chain<true>(t, least(shared - t * kTile, kTile));
    if (rows > 1) widen_values(shape, page, scratch.values);
    const uint8_t* follow = follows(t);
    Ahead ahead = spread(follow ? follow + shape.values : nullptr, shape.bytes - shape.values, kTile / 2);
    for (int i = 0, rounded = 0; i < rows; ++i) {
      if (t >= keys.common_tiles(u.row + i)) continue;
      const int seen = least(step.length[u.row + i] - t * kTile, kTile);
      if (seen != rounded) round_to(shape, page, rounded = seen, rounding);
      weigh(shape, rounding, heads, scores(i, t), stride, scratch.weights);
      if (rows > 1) mix_tile<false>(shape, scratch.values, seen, heads, scratch.weights, rounding, mixing(i), ahead);
      else mix_tile<true>(shape, page + shape.values, seen, heads, scratch.weights, rounding, mixing(i), ahead);
      ahead = {};
    }
  }
  for (int i = 0; i < rows; ++i) {
    const int row = u.row + i, length = step.length[row];
    for (int t = keys.common_tiles(row); t * kTile < length; ++t) {
      const int count = least(length - t * kTile, kTile);
      const uint8_t* page = keys.of_row<true>(row, t, count);
      round_to(shape, page, count, rounding);
      weigh(shape, rounding, heads, scores(i, t), stride, scratch.weights);
      mix_tile<true>(shape, page + shape.values, count, heads, scratch.weights, rounding, mixing(i), {});
    }
  }
  for (int i = 0; i < rows; ++i)
    for (int h = 0; h < heads; ++h) {
      const float inverse = 1.0f / sums[i * heads + h];
      float* out = step.mixed + (first_head(i) + h) * shape.dim;
      for (int d = 0; d < shape.dim; ++d) out[d] = mixing(i)[h * to + d] * inverse;
    }
}

}  // namespace
}  // namespace dflash
