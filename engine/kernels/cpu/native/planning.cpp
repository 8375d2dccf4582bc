// What a step needs before it runs: room, the order of its keys, and shares for the threads.
#include <algorithm>

#include "engine.h"

namespace dflash {
namespace {

constexpr int kUnitRows = 8;  // rows of a request that share a pass over its keys

int64_t padded(int64_t n) { return (n + kTile - 1) / kTile * kTile; }

int tail_length(const Segment& g, int row) {
  const int64_t* tail = g.tail + int64_t(row) * g.width;
  int n = 0;
  while (n < g.width && tail[n] >= 0) ++n;
  return n;
}

}  // namespace

Rows8 take_rows8(Arena& arena, int64_t rows, int64_t width, int64_t group) {
  return {arena.take<int8_t>(rows * width), arena.take<float>(rows * width / group),
          arena.take<float>(rows * width / group), arena.take<int32_t>(rows * width / group)};
}

void Runtime::reserve(int64_t rows, int64_t scores, int64_t heads_dim, int64_t page_bytes) {
  const std::array<int64_t, 4> wanted{rows, scores, heads_dim, page_bytes};
  bool enough = scratch.size() == size_t(pool.size());
  for (size_t i = 0; i < wanted.size(); ++i) enough = enough && wanted[i] <= room_[i];
  if (enough) return;
  for (size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i] > room_[i]) room_[i] = wanted[i] + wanted[i] / 4;
  scratch.assign(pool.size(), {});
  regions_.clear();
  for (Scratch& s : scratch) {
    const int64_t sizes[] = {(room_[0] + 2 * kTile) * kTile * 2 * 4,  // channels
                             32 * 512,                                // unpacked
                             room_[1] * 4,                            // scores
                             room_[2] * kTile * 2,                    // weights
                             room_[2] * kTile * 2,                    // values
                             room_[2] * kTile,                        // rounding
                             (room_[2] + kTile) * kUnitRows * 4,      // mixing
                             room_[3]};                               // page
    size_t bytes = 0;
    for (int64_t size : sizes) bytes += size_t(padded(size) + 64);
    regions_.emplace_back(bytes);
    uint8_t* at = regions_.back().data();
    auto next = [&, i = 0]() mutable {
      uint8_t* part = at;
      at += (sizes[i++] + 63) & ~int64_t(63);
      return part;
    };
    s.channels = reinterpret_cast<float*>(next());
    s.unpacked = next();
    s.scores = reinterpret_cast<float*>(next());
    s.weights = reinterpret_cast<int16_t*>(next());
    s.values = reinterpret_cast<int16_t*>(next());
    s.rounding = reinterpret_cast<float*>(next());
    s.mixing = reinterpret_cast<float*>(next());
    s.page = next();
  }
}

Rows8 Runtime::rows_in(int64_t rows, int64_t width) {
  if (rows * width > rows_room_) {
    rows_room_ = rows * width + rows * width / 4;
    rows_.clear();
    rows_of_ = take_rows8(rows_, 1, (rows_room_ + kGroup - 1) / kGroup * kGroup, kGroup);
  }
  return rows_of_;
}

void Runtime::reserve_phases(size_t count) {
  if (counters.size() < count) counters = std::vector<Counter>(count);
  for (size_t i = 0; i < count; ++i) counters[i].next.store(0, std::memory_order_relaxed);
}

void Engine::plan(int rows, int logits) {
  step.model = &model;
  step.rows = rows;
  step.logits = logits;
  plan_buffers(rows, logits);
  plan_segments(rows);
  plan_units();
  plan_wanted();
  int longest = 0;
  for (int r = 0; r < rows; ++r) longest = longest < length[r] ? length[r] : longest;
  const int group = model.heads / model.kv_heads;
  runtime.reserve(rows > logits ? rows : logits, kUnitRows * group * (padded(longest) + kTile),
                  group * padded(model.head_dim), model.page_bytes);
}

void Engine::plan_buffers(int rows, int logits) {
  if (rows <= room_rows && logits <= room_logits) return;
  room_rows = rows > room_rows ? rows : room_rows;
  room_logits = logits > room_logits ? logits : room_logits;
  const Model& m = model;
  const int64_t many = room_rows + kTile, inner = int64_t(m.heads) * m.head_dim;
  buffers.clear();
  step.hidden = buffers.take<float>(many * m.hidden);
  step.wanted_hidden = buffers.take<float>((room_logits + kTile) * int64_t(m.hidden));
  step.qkv = buffers.take<float>(many * (inner + 2 * int64_t(m.kv_heads) * m.head_dim));
  step.mixed = buffers.take<float>(many * inner);
  step.activated = buffers.take<float>(many * m.intermediate);
  step.in_hidden = take_rows8(buffers, many, m.hidden, kGroup);
  step.in_mixed = take_rows8(buffers, many, inner, kGroup);
  step.in_inner = take_rows8(buffers, many, m.intermediate, kGroup);
  step.in_final = take_rows8(buffers, room_logits + kTile, m.hidden, kGroup);
  step.in_query = take_rows8(buffers, many, inner, m.key_group);
  prepared.clear();
  for (int i = 0; i < runtime.pool.size(); ++i)
    prepared.push_back({take_rows8(buffers, kAlone, m.hidden, kGroup),
                        take_rows8(buffers, kAlone, inner, kGroup),
                        take_rows8(buffers, kAlone, m.intermediate, kGroup),
                        take_rows8(buffers, kAlone, m.hidden, kGroup)});
}

void Engine::prepare_alone(Step& s, int thread) const {
  const Prepared& own = prepared[thread];
  s.in_hidden = own.hidden;
  s.in_mixed = own.mixed;
  s.in_inner = own.inner;
  s.in_final = own.final;
}

void Engine::plan_segments(int rows) {
  size_t keys = 0, tiles = 0;
  for (Segment& g : segments) {
    g.chain_length = g.committed + tail_length(g, g.rows - 1);
    keys += g.chain_length;
    tiles += padded(g.chain_length) / kTile;
  }
  chains.resize(keys);
  tile_pages.resize(tiles);
  length.resize(rows);
  shared.resize(rows);
  int64_t* chain = chains.data();
  int32_t* page = tile_pages.data();
  for (Segment& g : segments) {
    const int64_t* last = g.tail + int64_t(g.rows - 1) * g.width;
    g.chain = chain;
    g.tile_page = page;
    std::copy_n(g.committed_slots, g.committed, chain);
    std::copy_n(last, g.chain_length - g.committed, chain + g.committed);
    for (int t = 0; t < g.chain_length; t += kTile) {
      const int count = g.chain_length - t < kTile ? g.chain_length - t : kTile;
      bool together = chain[t] % kTile == 0;
      for (int j = 1; j < count && together; ++j) together = chain[t + j] == chain[t] + j;
      *page++ = together ? int32_t(chain[t] / kTile) : -1;
    }
    chain += g.chain_length;
    for (int r = 0; r < g.rows; ++r) {
      const int64_t* tail = g.tail + int64_t(r) * g.width;
      const int own = tail_length(g, r);
      int same = 0;
      while (same < own && g.committed + same < g.chain_length && tail[same] == last[same]) ++same;
      length[g.row + r] = g.committed + own;
      shared[g.row + r] = g.committed + same;
    }
  }
  step.segment = segments.data();
  step.length = length.data();
  step.shared = shared.data();
}

void Engine::plan_units() {
  const int group = model.heads / model.kv_heads;
  int blocks = 0;
  for (const Segment& g : segments) blocks += (g.rows + kUnitRows - 1) / kUnitRows;
  // with few units the threads would wait for each other: smaller ones then
  const bool few = blocks * model.kv_heads < 2 * runtime.pool.size();
  const int most = few ? kUnitRows / 2 : kUnitRows;
  units.clear();
  for (size_t i = 0; i < segments.size(); ++i) {
    const Segment& g = segments[i];
    const int parts = (g.rows + most - 1) / most;
    const int heads = few && parts == 1 ? 1 : group;
    for (int b = 0, row = 0; b < parts; ++b) {
      const int rows = (g.rows - row) / (parts - b);
      for (int head = 0; head < model.heads; head += heads)
        units.push_back({int32_t(i), g.row + row, rows, head / group, head, heads});
      row += rows;
    }
  }
  step.unit = units.data();
  step.units = int32_t(units.size());
}

// Behind the last layer's keys and values, only rows whose logits are wanted go on.
void Engine::plan_wanted() {
  wanted = step;
  const bool tapped = step.taps && step.tap_layers[step.taps - 1] == model.layers - 1;
  if (tapped || step.logits >= step.rows) return;
  std::vector<char> is_wanted(step.rows);
  for (int i = 0; i < step.logits; ++i) is_wanted[step.logit_rows[i]] = 1;
  wanted_units.clear();
  for (const AttentionUnit& u : units)
    for (int row = u.row; row < u.row + u.rows;) {
      int end = row;
      while (end < u.row + u.rows && is_wanted[end]) ++end;
      if (end > row) {
        wanted_units.push_back(u);
        wanted_units.back().row = row;
        wanted_units.back().rows = end - row;
      }
      row = end + 1;
    }
  wanted_rows.resize(step.logits);
  for (int i = 0; i < step.logits; ++i) wanted_rows[i] = i;
  wanted.rows = step.logits;
  wanted.hidden = step.wanted_hidden;
  wanted.logit_rows = wanted_rows.data();
  wanted.unit = wanted_units.data();
  wanted.units = int32_t(wanted_units.size());
}

}  // namespace dflash
