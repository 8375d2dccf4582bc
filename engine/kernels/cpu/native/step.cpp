// The phases of a step, in order; all of it in one parallel region.
#include <cmath>
#include <cstring>

#include "engine.h"
#include "walk.h"

namespace dflash {
void Engine::run() {
  constexpr int kPhasesOfLayer = 12;
  const Kernels& k = *runtime.kernels;
  const int hidden = model.hidden, inner = model.heads * model.head_dim, between = model.intermediate;
  const int64_t all = int64_t(model.heads + 2 * model.kv_heads) * model.head_dim;
  const int threads = runtime.pool.size();
  const int rows_at_once = (step.rows + 2 * threads - 1) / (2 * threads);
  runtime.reserve_phases(size_t(model.layers) * kPhasesOfLayer + 3);
  runtime.pool.run([&](int thread) {
    Walk walk(runtime, thread, timed && thread == 0 ? phase_us.data() : nullptr);
    Scratch& scratch = runtime.scratch[thread];
    Step s = step, last = wanted;
    const bool alone = step.rows <= kAlone && step.logits <= kAlone;
    if (alone) prepare_alone(s, thread), prepare_alone(last, thread);
    // what is prepared for one product; where every thread does so, it counts as part of the product
    const auto prepare = [&](int kind, int rows, auto&& row) {
      if (!alone) return walk.phase(kind, rows, rows_at_once, row);
      for (int r = 0; r < rows; ++r) row(r);
    };
    const auto project = [&](int kind, const Matrix& m, const Rows8& in, int rows, float* out,
                             int64_t stride, bool accumulate) {
      walk.shared_phase(kind, m.tiles, [&](int tile) {
        k.project(m, in, rows, tile, out, stride, accumulate, scratch);
      });
    };
    int tap = 0;
    walk.foresee(*model.layer[0].qkv);
    walk.phase(0, s.rows, rows_at_once, [&](int r) { k.embed(s, r); });
    for (int l = 0; l < model.layers; ++l) {
      const Layer& w = model.layer[l];
      prepare(1, s.rows, [&](int r) { k.norm_row(s, w.attention_norm, r); });
      walk.foresee(*w.output);
      project(2, *w.qkv, s.in_hidden, s.rows, s.qkv, all, false);
      walk.phase(3, s.rows, rows_at_once, [&](int r) { k.place(s, l, r); });
      // from here on, the last layer's other rows are of no use to anybody
      const bool narrow = last.rows < s.rows && l == model.layers - 1;
      const Step& c = narrow ? last : s;
      if (narrow)
        walk.phase(0, c.rows, rows_at_once, [&](int i) {
          std::memcpy(c.hidden + int64_t(i) * hidden, s.hidden + s.logit_rows[i] * hidden,
                      hidden * sizeof(float));
        });
      walk.foreseeing_phase(4, c.units, [&](int u, int next) { k.attend(c, l, u, next, scratch); });
      prepare(5, c.rows, [&](int r) {
        const int64_t row = narrow ? s.logit_rows[r] : r;
        k.quantise(s.mixed + row * inner, inner, s.in_mixed, r);
      });
      walk.foresee(*w.gate_up, 2);
      project(6, *w.output, s.in_mixed, c.rows, c.hidden, hidden, true);
      prepare(7, c.rows, [&](int r) { k.norm_row(c, w.mlp_norm, r); });
      walk.foresee(*w.down);
      walk.shared_phase(8, w.gate_up->tiles / 2, [&](int tile) {
        k.swiglu(*w.gate_up, s.in_hidden, c.rows, tile, s.activated, between, scratch);
      });
      prepare(9, c.rows,
              [&](int r) { k.quantise(s.activated + int64_t(r) * between, between, s.in_inner, r); });
      walk.foresee(l + 1 < model.layers ? *model.layer[l + 1].qkv : *model.head);
      project(10, *w.down, s.in_inner, c.rows, c.hidden, hidden, true);
      if (tap < s.taps && s.tap_layers[tap] == l) {
        walk.phase(11, s.rows, rows_at_once, [&](int r) {
          std::memcpy(s.tap_out + (int64_t(tap) * s.rows + r) * hidden,
                      s.hidden + int64_t(r) * hidden, hidden * sizeof(float));
        });
        ++tap;
      }
    }
    if (s.logits) {
      prepare(12, s.logits, [&](int i) { k.norm_logits(last, i); });
      project(13, *model.head, s.in_final, s.logits, s.logit_out, model.vocab, false);
    }
  });
}

void Engine::move(const int64_t* from, const int64_t* to, int count) {
  const Model& m = model;
  const int dim = m.head_dim, groups = dim / m.key_group;
  const int key_scales = dim * kTile, values = key_scales + groups * kTile * 4,
            value_scales = values + dim * kTile;
  std::vector<uint8_t> held(size_t(count) * 2 * (dim + groups * 4));
  for (int64_t plane = 0; plane < int64_t(m.layers) * m.kv_heads; ++plane) {
    uint8_t* base = m.pool + plane * m.pages * m.page_bytes;
    uint8_t* h = held.data();
    const auto page_of = [&](int64_t slot) { return base + slot / kTile * m.page_bytes; };
    const auto each_part = [&](int64_t slot, auto&& part) {
      uint8_t* page = page_of(slot);
      const int lane = int(slot % kTile);
      for (int i = 0; i < dim / 4; ++i) part(page + (i * kTile + lane) * 4, 4);
      for (int g = 0; g < groups; ++g) part(page + key_scales + (g * kTile + lane) * 4, 4);
      for (int g = 0; g < groups; ++g) part(page + value_scales + (g * kTile + lane) * 4, 4);
    };
    // everything is read before anything is written
    for (int i = 0; i < count; ++i, h += dim) {
      each_part(from[i], [&](uint8_t* p, int n) { std::memcpy(h, p, n), h += n; });
      take_values(page_of(from[i]) + values, int(from[i] % kTile), dim, h);
    }
    h = held.data();
    for (int i = 0; i < count; ++i, h += dim) {
      each_part(to[i], [&](uint8_t* p, int n) { std::memcpy(p, h, n), h += n; });
      put_values(page_of(to[i]) + values, int(to[i] % kTile), dim, h);
    }
  }
}

void project_rows(Runtime& runtime, const Matrix& m, int rows, const float* x, float* out) {
  const Rows8 in = runtime.rows_in(rows + kTile, m.in);
  runtime.reserve(rows, 0, 0, 0);
  runtime.reserve_phases(2);
  runtime.pool.run([&](int thread) {
    Walk walk(runtime, thread, nullptr);
    walk.phase(0, rows, 1, [&](int r) { runtime.kernels->quantise(x + int64_t(r) * m.in, m.in, in, r); });
    walk.shared_phase(0, m.tiles, [&](int tile) {
      runtime.kernels->project(m, in, rows, tile, out, m.out, false, runtime.scratch[thread]);
    });
  });
}

void statistics(Runtime& runtime, const float* logits, int rows, int vocab, double* out) {
  const int chunks = (vocab + kChunk - 1) / kChunk;
  std::vector<float> parts(size_t(rows) * chunks * 4);
  runtime.reserve_phases(1);
  runtime.pool.run([&](int thread) {
    Walk(runtime, thread, nullptr).phase(0, rows * chunks, 1, [&](int unit) {
      const int row = unit / chunks, begin = unit % chunks * kChunk;
      const int end = begin + kChunk < vocab ? begin + kChunk : vocab;
      runtime.kernels->summarise(logits + int64_t(row) * vocab, begin, end, &parts[size_t(unit) * 4]);
    });
  });
  for (int r = 0; r < rows; ++r, out += 4) {
    const float* part = &parts[size_t(r) * chunks * 4];
    const float* best = part;
    for (int c = 1; c < chunks; ++c)
      if (part[c * 4 + 1] > best[1]) best = part + c * 4;
    double sum = 0.0, weighted = 0.0;
    for (int c = 0; c < chunks; ++c) {
      const double shift = double(part[c * 4 + 1]) - best[1], factor = std::exp(shift);
      sum += factor * part[c * 4 + 2];
      weighted += factor * (part[c * 4 + 3] + shift * part[c * 4 + 2]);
    }
    int32_t top;
    std::memcpy(&top, best, sizeof top);
    out[0] = top;
    out[1] = best[1];
    out[2] = best[1] + std::log(sum);
    out[3] = std::log(sum) - weighted / sum;
  }
}

}  // namespace dflash
