// What a step computes, as plain structures that every instruction set's code shares.
//
// Dims: R rows, Q rows whose logits are wanted, H hidden, I intermediate, D head dim. A tile is 16
// output channels, or 16 keys, computed side by side; a group is 32 inputs that share a scale.
#pragma once
#include <cstdint>

namespace dflash {

constexpr int kTile = 16;
constexpr int kGroup = 32;
constexpr int kChunk = 4096;  // logits summed as one part of a row's statistics
constexpr int kWidest = 16384;  // inputs of a normalised row, at most

enum Kind : int32_t { kQ4 = 0, kQ8 = 1 };

// Weights [out, in], tile after tile: quants[tile][group][word][channel][4 bytes], where a word is
// four inputs of a channel. 8 bits: 8 words of signed bytes. 4 bits: words i and i + 4 share the
// low and high halves of word i's bytes. scales[tile][group]: 16 scales, for 4 bits 16 minimums
// behind them, all fp16. The last tile is filled up with zeros.
struct Matrix {
  int32_t kind, out, in, tiles, groups;
  uint8_t* quants;
  uint16_t* scales;
  float* bias;  // [tiles * 16] or null

  int64_t tile_quants() const { return int64_t(groups) * kGroup * kTile / (kind == kQ4 ? 2 : 1); }
  int64_t tile_scales() const { return int64_t(groups) * kTile * (kind == kQ4 ? 2 : 1); }
  const uint8_t* quants_of(int tile) const { return quants + tile * tile_quants(); }
  const uint16_t* scales_of(int tile) const { return scales + tile * tile_scales(); }
};

struct Layer {
  const float* attention_norm;
  const float* mlp_norm;
  const Matrix *qkv, *output, *gate_up, *down;
};

struct Model {
  int32_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, positions;
  float epsilon;
  float score_scale;       // what a query is multiplied by
  int32_t key_group;       // head dims that share one scale in the pool
  const float* final_norm;
  const float* cosines;    // [positions, D / 2]
  const float* sines;
  Layer* layer;
  const Matrix* head;
  const Matrix* embedding;
  uint8_t* pool;           // [layer][kv head][page], see attention.h
  int64_t pages, page_bytes;
};

// Rows in 8 bits: within a group, x = scale * q. Padded to 16 rows, which the tile unit reads.
struct Rows8 {
  int8_t* q;      // [R, in]
  float* scale;   // [R, groups]
  float* sum;     // [R, groups] scale * sum(q)
  int32_t* bias;  // [R, groups] -128 * sum(q)
};

// One request's rows. Its *chain* is its committed keys followed by its last row's tail; a row's
// first `shared` keys are the chain's, the others are its own.
struct Segment {
  int32_t row, rows, committed, width;
  const int64_t* committed_slots;
  const int64_t* tail;  // [rows, width], -1 on the right
  int64_t* chain;
  int32_t* tile_page;   // of each 16 keys of the chain: their page, or -1 where they are scattered
  int32_t chain_length;
};

// Rows of a segment and query heads that share a key-value head: what one thread attends at once.
struct AttentionUnit {
  int32_t segment, row, rows, kv_head, head, heads;
};

struct Step {
  const Model* model;
  int32_t rows, logits, taps;
  const int64_t *token_ids, *positions, *slots, *logit_rows;
  const Segment* segment;
  const AttentionUnit* unit;
  int32_t units;
  const int32_t* length;  // [R] keys of a row
  const int32_t* shared;  // [R]
  const int32_t* tap_layers;
  float* tap_out;    // [taps, R, H]
  float* logit_out;  // [Q, vocab]
  float* hidden;     // [R, H]
  float* wanted_hidden;  // [Q, H] of the last layer
  float* qkv;        // [R, (heads + 2 kv heads) * D]
  float* mixed;      // [R, heads * D]
  float* activated;  // [R, I]
  Rows8 in_hidden, in_mixed, in_inner, in_final, in_query;
};

struct Scratch {  // of one thread
  float* channels;    // [2, R padded, 16]
  uint8_t* unpacked;  // a few groups of a tile
  float* scores;      // [rows, heads, keys]
  int16_t* weights;   // [heads, groups, 16]
  int16_t* values;    // [8 pairs of keys, D, 2]
  float* rounding;    // [groups, 17]
  float* mixing;      // [rows, heads, D padded], then the sums
  uint8_t* page;      // a gathered tile
};

// A page keeps its values by pairs of keys: [8][D][2]. These take and put one key's.
inline void take_values(const uint8_t* values, int lane, int dim, uint8_t* to) {
  const uint8_t* from = values + lane / 2 * dim * 2 + lane % 2;
  for (int i = 0; i < dim; ++i) to[i] = from[2 * i];
}

inline void put_values(uint8_t* values, int lane, int dim, const uint8_t* from) {
  uint8_t* to = values + lane / 2 * dim * 2 + lane % 2;
  for (int i = 0; i < dim; ++i) to[2 * i] = from[i];
}

// Everything that is compiled per instruction set.
struct Kernels {
  const char* name;
  void (*enter)();  // on every thread, before and after the others are called
  void (*leave)();
  void (*quantise)(const float* x, int width, const Rows8& to, int row);
  void (*project)(const Matrix&, const Rows8&, int rows, int tile, float* out, int64_t stride,
                  bool accumulate, Scratch&);
  void (*swiglu)(const Matrix&, const Rows8&, int rows, int tile, float* out, int64_t stride,
                 Scratch&);
  void (*embed)(const Step&, int row);
  void (*norm_row)(const Step&, const float* weight, int row);
  void (*norm_logits)(const Step&, int index);
  void (*place)(const Step&, int layer, int row);
  void (*attend)(const Step&, int layer, int unit, int next, Scratch&);
  void (*summarise)(const float* logits, int begin, int end, float* part);
};

}  // namespace dflash
