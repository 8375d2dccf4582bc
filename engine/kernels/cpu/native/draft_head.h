// A draft head whose layers do not attend: `engine/draft/head/network.py` says the same in torch.
//
// Dims: n drafts, T taps, S slots, H hidden, I intermediate, r rank, V the head's vocabulary.
#pragma once
#include <vector>

#include "engine.h"

namespace dflash {

struct HeadLayer {
  const float* norm;
  const Matrix *gate_up, *down;
};

struct Edge {
  int32_t depth, previous, token;  // tokens of the model's vocabulary
  float probability;
};

struct DraftHead {
  DraftHead(Engine& of, int slots_ahead, int width_of, int beam_of, float least)
      : engine(of), slots(slots_ahead), width(width_of), beam(beam_of), floor(least) {}

  // Drafts behind `count` roots, at most `depths` tokens deep, and returns each one's edges, parents
  // before their children. `taps` [n, T, H] are of the tokens before the roots; where `known` is 0
  // there is none.
  const std::vector<std::vector<Edge>>& foresee(int count, const int64_t* roots, const float* taps,
                                                const uint8_t* known, int depths);

  Engine& engine;  // whose tokens are embedded
  const int slots, width, beam;
  const float floor;  // joint probability below which nothing is looked at
  const float *feature_scale, *fused_norm, *slot, *final_norm;  // [T * H], [H], [S, H], [H]
  const float* predecessors;  // [V + 1, r], the last for tokens that are not in the vocabulary
  const Matrix *features, *root, *last, *gate, *successors, *vocabulary;
  std::vector<HeadLayer> layers;
  std::vector<int32_t> token_ids, place_of;  // of places, and the other way round; V for no place

 private:
  struct Node {  // whose successors are scored
    int draft, token, place;
    float joint;
  };

  void reserve(int count);
  void rank(const float* logits, float* top, int32_t* places) const;
  void grow(int depth, const std::vector<float>& top, const std::vector<int32_t>& places);

  Arena buffers_{size_t(1) << 20};
  int room_ = 0;
  float *embedded_, *fused_, *known_, *hidden_, *final_, *activated_, *logits_, *opened_, *scores_;
  Rows8 in_features_, in_embedded_, in_fused_, in_hidden_, in_inner_, in_final_, in_before_;
  std::vector<Node> nodes_;
  std::vector<std::vector<Edge>> edges_;
};

}  // namespace dflash
