// Drafting for several requests at once, in one parallel region.
#include "draft_head.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "walk.h"

namespace dflash {
namespace {

constexpr float kEpsilon = 1e-5f;

// to = x / rms(x) * weight
void norm(const float* x, const float* weight, int width, float* to) {
  float sum = 0.0f;
  for (int i = 0; i < width; ++i) sum += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(sum / float(width) + kEpsilon);
  for (int i = 0; i < width; ++i) to[i] = x[i] * scale * weight[i];
}

}  // namespace

const std::vector<std::vector<Edge>>& DraftHead::foresee(int count, const int64_t* roots,
                                                         const float* taps, const uint8_t* known,
                                                         int depths) {
  Runtime& runtime = engine.runtime;
  const Kernels& k = *runtime.kernels;
  const int hidden = vocabulary->in, inner = layers.empty() ? 0 : layers[0].down->in;
  const int tapped = features->in, rank_of = successors->in, size = vocabulary->out;
  const int rows = count * slots;
  reserve(count);
  edges_.assign(count, {});
  nodes_.clear();
  for (int i = 0; i < count; ++i)
    nodes_.push_back({i, int(roots[i]), place_of[roots[i]], 1.0f});
  const int most = count * beam;
  std::vector<float> top(size_t(std::max(most, count)) * width), normed(size_t(count) * tapped);
  std::vector<int32_t> places(top.size());
  Step step{};
  step.model = &engine.model;
  step.token_ids = roots;
  step.hidden = embedded_;
  runtime.reserve(std::max(rows, most), 0, 0, 0);
  runtime.reserve_phases(9 + 4 * layers.size() + 4 * size_t(depths));
  runtime.pool.run([&](int thread) {
    Walk walk(runtime, thread, nullptr);
    Scratch& scratch = runtime.scratch[thread];
    const auto project = [&](const Matrix& m, const Rows8& in, int n, float* out, bool accumulate) {
      walk.shared_phase(0, m.tiles, [&](int tile) {
        k.project(m, in, n, tile, out, m.out, accumulate, scratch);
      });
    };
    walk.phase(0, count, 1, [&](int i) {
      for (int t = 0; t < tapped; t += hidden)
        norm(taps + int64_t(i) * tapped + t, feature_scale + t, hidden, &normed[size_t(i) * tapped + t]);
      k.quantise(&normed[size_t(i) * tapped], tapped, in_features_, i);
      k.embed(step, i);
      k.quantise(embedded_ + int64_t(i) * hidden, hidden, in_embedded_, i);
    });
    project(*features, in_features_, count, fused_, false);
    walk.phase(0, count, 1, [&](int i) {
      float* row = fused_ + int64_t(i) * hidden;
      norm(row, fused_norm, hidden, row);
      if (!known[i]) std::memset(row, 0, hidden * sizeof(float));
      k.quantise(row, hidden, in_fused_, i);
    });
    project(*root, in_embedded_, count, known_, false);
    project(*last, in_fused_, count, known_, true);
    const auto rows_after = [&](const float* weight, const Rows8& to) {
      walk.phase(0, rows, 1, [&](int r) {
        norm(hidden_ + int64_t(r) * hidden, weight, hidden, final_ + int64_t(r) * hidden);
        k.quantise(final_ + int64_t(r) * hidden, hidden, to, r);
      });
    };
    walk.phase(0, rows, 1, [&](int r) {
      const float *from = known_ + int64_t(r / slots) * hidden, *own = slot + r % slots * hidden;
      for (int i = 0; i < hidden; ++i) hidden_[int64_t(r) * hidden + i] = from[i] + own[i];
    });
    for (const HeadLayer& layer : layers) {
      rows_after(layer.norm, in_hidden_);
      walk.shared_phase(0, layer.gate_up->tiles / 2, [&](int tile) {
        k.swiglu(*layer.gate_up, in_hidden_, rows, tile, activated_, inner, scratch);
      });
      walk.phase(0, rows, 1, [&](int r) {
        k.quantise(activated_ + int64_t(r) * inner, inner, in_inner_, r);
      });
      project(*layer.down, in_inner_, rows, hidden_, true);
    }
    rows_after(final_norm, in_final_);
    project(*vocabulary, in_final_, rows, logits_, false);
    project(*gate, in_final_, rows, opened_, false);
    for (int depth = 1; depth <= depths; ++depth) {
      const auto row_of = [&](int node) { return nodes_[node].draft * slots + depth - 1; };
      const int scored = int(nodes_.size());
      walk.phase(0, scored, 1, [&](int node) {
        float* before = embedded_ + int64_t(node) * rank_of;  // the embeddings are done with
        const float* own = predecessors + int64_t(nodes_[node].place) * rank_of;
        const float* opened = opened_ + int64_t(row_of(node)) * rank_of;
        for (int i = 0; i < rank_of; ++i) before[i] = own[i] * (1.0f + opened[i]);
        k.quantise(before, rank_of, in_before_, node);
        std::memcpy(scores_ + int64_t(node) * size, logits_ + int64_t(row_of(node)) * size,
                    size * sizeof(float));
      });
      project(*successors, in_before_, scored, scores_, true);
      walk.phase(0, scored, 1, [&](int node) {
        rank(scores_ + int64_t(node) * size, &top[size_t(node) * width],
             &places[size_t(node) * width]);
      });
      walk.phase(0, 1, 1, [&](int) { grow(depth, top, places); });
    }
  });
  return edges_;
}

// The largest logits' places, and their probabilities.
void DraftHead::rank(const float* logits, float* top, int32_t* places) const {
  const int size = vocabulary->out;
  std::fill(top, top + width, -INFINITY);
  std::fill(places, places + width, -1);
  for (int v = 0; v < size; ++v) {
    if (logits[v] <= top[width - 1]) continue;
    int at = width - 1;
    for (; at > 0 && logits[v] > top[at - 1]; --at) top[at] = top[at - 1], places[at] = places[at - 1];
    top[at] = logits[v];
    places[at] = v;
  }
  const float most = top[0];
  double total = 0.0;
  for (int begin = 0; begin < size; begin += kChunk) {
    float part[4];
    engine.runtime.kernels->summarise(logits, begin, std::min(begin + kChunk, size), part);
    total += std::exp(double(part[1]) - most) * part[2];
  }
  for (int i = 0; i < width; ++i) top[i] = float(std::exp(double(top[i]) - most) / total);
}

// Turns what the nodes of a depth are followed by into edges, and the likeliest into new nodes.
void DraftHead::grow(int depth, const std::vector<float>& top, const std::vector<int32_t>& places) {
  std::vector<Node> grown, kept;
  for (size_t node = 0; node < nodes_.size(); ++node) {
    const Node& from = nodes_[node];
    for (int i = 0; i < width; ++i) {
      const float probability = top[node * width + i], joint = from.joint * probability;
      const int place = places[node * width + i];
      if (place < 0 || joint < floor) continue;
      edges_[from.draft].push_back({depth, from.token, token_ids[place], probability});
      grown.push_back({from.draft, token_ids[place], place, joint});
    }
  }
  std::stable_sort(grown.begin(), grown.end(), [](const Node& a, const Node& b) {
    return a.draft != b.draft ? a.draft < b.draft : a.joint > b.joint;
  });
  for (const Node& node : grown) {
    int same = 0, own = 0;
    for (const Node& other : kept)
      if (other.draft == node.draft) ++own, same += other.token == node.token;
    if (!same && own < beam) kept.push_back(node);
  }
  nodes_ = std::move(kept);
}

void DraftHead::reserve(int count) {
  if (count <= room_) return;
  room_ = count;
  buffers_.clear();
  const int64_t hidden = vocabulary->in, inner = layers.empty() ? 0 : layers[0].down->in;
  const int64_t rank_of = successors->in, size = vocabulary->out;
  const int64_t few = room_ + kTile, rows = int64_t(room_) * slots + kTile;
  const int64_t nodes = int64_t(room_) * std::max(beam, 1) + kTile;
  embedded_ = buffers_.take<float>(std::max(few * hidden, nodes * rank_of));
  fused_ = buffers_.take<float>(few * hidden);
  known_ = buffers_.take<float>(few * hidden);
  hidden_ = buffers_.take<float>(rows * hidden);
  final_ = buffers_.take<float>(rows * hidden);
  activated_ = buffers_.take<float>(rows * inner);
  logits_ = buffers_.take<float>(rows * size);
  opened_ = buffers_.take<float>(rows * rank_of);
  scores_ = buffers_.take<float>(nodes * size);
  in_features_ = take_rows8(buffers_, few, features->in, kGroup);
  in_embedded_ = take_rows8(buffers_, few, hidden, kGroup);
  in_fused_ = take_rows8(buffers_, few, hidden, kGroup);
  in_hidden_ = take_rows8(buffers_, rows, hidden, kGroup);
  in_inner_ = take_rows8(buffers_, rows, std::max<int64_t>(inner, kGroup), kGroup);
  in_final_ = take_rows8(buffers_, rows, hidden, kGroup);
  in_before_ = take_rows8(buffers_, nodes, rank_of, kGroup);
}

}  // namespace dflash
