// The C interface that Python calls. Pointers that are kept are said to be; what they point to must
// outlive the object. Functions that can fail return null or -1 and leave a reason in
// dflash_error(). One thread at a time per runtime.
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>

#include "draft_head.h"

#define DFLASH_API extern "C" __attribute__((visibility("default")))

using namespace dflash;

namespace {

thread_local std::string reason;

template <class Work>
auto guarded(Work&& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& error) {
    reason = error.what();
    return decltype(work())(-1);
  }
}

int64_t rounded(int64_t bytes) { return (bytes + 63) & ~int64_t(63); }

// Zeroed memory for std::free.
uint8_t* zeroed(int64_t bytes) {
  void* memory = std::aligned_alloc(64, rounded(bytes));
  if (!memory) throw std::bad_alloc();
  return static_cast<uint8_t*>(std::memset(memory, 0, rounded(bytes)));
}

int refuse(const char* why) {
  reason = why;
  return -1;
}

}  // namespace

DFLASH_API const char* dflash_error() { return reason.c_str(); }

DFLASH_API const char* dflash_runnable() {
  static const std::string names = runnable();
  return names.c_str();
}

DFLASH_API Runtime* dflash_runtime_new(int threads, const char* isa) {
  try {
    const Kernels* kernels = find_kernels(isa);
    if (kernels) return new Runtime(threads, kernels);
    reason = "this processor or this build has no such instruction set";
  } catch (const std::exception& error) {
    reason = error.what();
  }
  return nullptr;
}

DFLASH_API void dflash_runtime_free(Runtime* runtime) { delete runtime; }

DFLASH_API const char* dflash_runtime_isa(const Runtime* runtime) { return runtime->kernels->name; }

// `blocks` are ggml's, row after row: 20 bytes (Q4_1) or 34 (Q8_0) for 32 weights. The matrix
// belongs to the runtime or, without one, to the caller, for dflash_matrix_free.
DFLASH_API const Matrix* dflash_matrix_new(Runtime* runtime, int kind, int out, int in,
                                           const uint8_t* blocks, const float* bias) {
  try {
    const bool q4 = kind == kQ4;
    const int64_t tiles = (out + kTile - 1) / kTile, groups = in / kGroup, cells = tiles * groups;
    const int64_t quant_bytes = q4 ? 256 : 512, halves = q4 ? 2 * kTile : kTile, block = q4 ? 20 : 34;
    auto m = std::make_unique<Matrix>();
    *m = {kind, out, in, int32_t(tiles), int32_t(groups), nullptr, nullptr, nullptr};
    const int64_t scale_bytes = cells * halves * 2, bias_bytes = bias ? tiles * kTile * 4 : 0;
    std::unique_ptr<uint8_t, decltype(&std::free)> own(nullptr, std::free);
    if (!runtime)
      own.reset(zeroed(rounded(cells * quant_bytes) + rounded(scale_bytes) + bias_bytes));
    uint8_t* next = own.get();
    const auto take = [&](int64_t bytes) {
      if (runtime) return runtime->weights.take<uint8_t>(bytes);
      uint8_t* part = next;
      next += rounded(bytes);
      return part;
    };
    m->quants = take(cells * quant_bytes);
    m->scales = reinterpret_cast<uint16_t*>(take(scale_bytes));
    for (int64_t cell = 0; cell < cells; ++cell) {
      uint8_t* q = m->quants + cell * quant_bytes;
      uint16_t* s = m->scales + cell * halves;
      const int64_t tile = cell / groups, group = cell % groups;
      for (int64_t c = 0; c < kTile && tile * kTile + c < out; ++c) {
        const uint8_t* b = blocks + ((tile * kTile + c) * groups + group) * block;
        std::memcpy(s + c, b, 2);
        if (q4) std::memcpy(s + kTile + c, b + 2, 2);
        b += q4 ? 4 : 2;
        // ggml keeps inputs j and j + 16 in one byte: as here, with words i and i + 4
        for (int i = 0; i < (q4 ? 4 : 8); ++i) std::memcpy(q + (i * kTile + c) * 4, b + i * 4, 4);
      }
    }
    if (bias) {
      m->bias = reinterpret_cast<float*>(take(bias_bytes));
      std::memcpy(m->bias, bias, out * sizeof(float));
    }
    own.release();
    if (!runtime) return m.release();
    runtime->matrices.push_back(std::move(m));
    return runtime->matrices.back().get();
  } catch (const std::exception& error) {
    reason = error.what();
    return nullptr;
  }
}

DFLASH_API void dflash_matrix_free(Matrix* matrix) {
  std::free(matrix->quants);  // the first part of one piece
  delete matrix;
}

// out [rows, out] = x [rows, in] times the matrix, plus its bias.
DFLASH_API int dflash_project(Runtime* runtime, const Matrix* m, int rows, const float* x, float* out) {
  return guarded([&] {
    project_rows(*runtime, *m, rows, x, out);
    return 0;
  });
}

DFLASH_API int dflash_statistics(Runtime* runtime, int rows, int vocab, const float* logits, double* out) {
  return guarded([&] {
    statistics(*runtime, logits, rows, vocab, out);
    return 0;
  });
}

// shape: layers, hidden, intermediate, heads, kv heads, head dim, vocabulary, positions, head dims
// to a scale. Norms and tables are kept, and the matrices: of each layer qkv, output, gate over
// up, down; then head and embedding. norms: of each layer two, then the final one.
DFLASH_API Engine* dflash_model_new(Runtime* runtime, const int32_t* shape, float epsilon,
                                    float score_scale, int64_t pages, const float* cosines,
                                    const float* sines, const float* const* norms,
                                    const Matrix* const* matrices) {
  try {
    auto e = std::make_unique<Engine>(*runtime);
    Model& m = e->model;
    std::memcpy(&m.layers, shape, 8 * sizeof(int32_t));
    m.key_group = shape[8];
    m.epsilon = epsilon;
    m.score_scale = score_scale;
    m.cosines = cosines;
    m.sines = sines;
    m.pages = pages;
    m.page_bytes = 2 * kTile * (m.head_dim + m.head_dim / m.key_group * int64_t(sizeof(float)));
    e->pool_memory = Region(size_t(m.layers) * m.kv_heads * pages * m.page_bytes);
    m.pool = e->pool_memory.data();
    for (int l = 0; l < m.layers; ++l, norms += 2, matrices += 4)
      e->layers.push_back({norms[0], norms[1], matrices[0], matrices[1], matrices[2], matrices[3]});
    m.layer = e->layers.data();
    m.final_norm = norms[0];
    m.head = matrices[0];
    m.embedding = matrices[1];
    return e.release();
  } catch (const std::exception& error) {
    reason = error.what();
    return nullptr;
  }
}

DFLASH_API void dflash_model_free(Engine* engine) { delete engine; }

// Segment i has sizes[3i..]: rows, committed, width; slots[2i..]: committed [committed], tail
// [rows, width]. Nothing is kept.
DFLASH_API int dflash_step(Engine* engine, int rows, const int64_t* token_ids,
                           const int64_t* positions, const int64_t* slots, int segments,
                           const int32_t* sizes, const int64_t* const* segment_slots, int logits,
                           const int64_t* logit_rows, float* logit_out, int taps,
                           const int32_t* tap_layers, float* tap_out) {
  return guarded([&] {
    Engine& e = *engine;
    const Model& m = e.model;
    const auto outside = [](const int64_t* values, int64_t count, int64_t least, int64_t end) {
      for (int64_t i = 0; i < count; ++i)
        if (values[i] < least || values[i] >= end) return true;
      return false;
    };
    const int64_t end = m.pages * kTile;
    if (outside(token_ids, rows, 0, m.vocab)) return refuse("a token outside the vocabulary");
    if (outside(positions, rows, 0, m.positions)) return refuse("a position outside the context");
    if (outside(slots, rows, 0, end)) return refuse("a slot outside the storage");
    if (outside(logit_rows, logits, 0, rows)) return refuse("logits of a row that is not there");
    e.segments.resize(segments);
    int row = 0;
    for (int i = 0; i < segments; ++i) {
      Segment& g = e.segments[i];
      g.row = row;
      g.rows = sizes[3 * i];
      g.committed = sizes[3 * i + 1];
      g.width = sizes[3 * i + 2];
      g.committed_slots = segment_slots[2 * i];
      g.tail = segment_slots[2 * i + 1];
      row += g.rows;
      if (g.rows < 1 || g.width < 1) return refuse("a segment without rows or tails");
      if (outside(g.committed_slots, g.committed, 0, end) ||
          outside(g.tail, int64_t(g.rows) * g.width, -1, end))
        return refuse("a key's slot outside the storage");
      for (int r = 0; r < g.rows; ++r)
        if (g.tail[int64_t(r) * g.width] < 0) return refuse("a row that does not see itself");
    }
    if (row != rows) return refuse("the segments' rows are not the step's");
    Step& s = e.step;
    s.token_ids = token_ids;
    s.positions = positions;
    s.slots = slots;
    s.logit_rows = logit_rows;
    s.logit_out = logit_out;
    s.taps = taps;
    s.tap_layers = tap_layers;
    s.tap_out = tap_out;
    e.plan(rows, logits);
    e.run();
    return 0;
  });
}

// Copies slots in every layer; they may overlap.
DFLASH_API int dflash_move(Engine* engine, int count, const int64_t* from, const int64_t* to) {
  return guarded([&] {
    const int64_t end = engine->model.pages * kTile;
    for (int i = 0; i < count; ++i)
      if (from[i] < 0 || from[i] >= end || to[i] < 0 || to[i] >= end)
        return refuse("a slot outside the storage");
    engine->move(from, to, count);
    return 0;
  });
}

// Starts (1) or stops (0) summing the microseconds of 14 kinds of phase; returns the sums so far.
DFLASH_API void dflash_time(Engine* engine, int on, double* phase_us) {
  std::memcpy(phase_us, engine->phase_us.data(), sizeof engine->phase_us);
  engine->phase_us.fill(0.0);
  engine->timed = on != 0;
}

// sizes: taps' width, slots, successors proposed of a token, tokens of a depth that are gone on from,
// layers, vocabulary. vectors (kept): feature scale, fused norm, slots, final norm, predecessors, then
// each layer's norm. matrices: features, root, last, gate, successors, vocabulary, then of each layer
// gate over up, down. token_ids: the vocabulary's, copied.
DFLASH_API DraftHead* dflash_head_new(Engine* engine, const int32_t* sizes, float floor,
                                      const float* const* vectors, const Matrix* const* matrices,
                                      const int32_t* token_ids) {
  try {
    auto h = std::make_unique<DraftHead>(*engine, sizes[1], sizes[2], sizes[3], floor);
    h->feature_scale = vectors[0];
    h->fused_norm = vectors[1];
    h->slot = vectors[2];
    h->final_norm = vectors[3];
    h->predecessors = vectors[4];
    h->features = matrices[0];
    h->root = matrices[1];
    h->last = matrices[2];
    h->gate = matrices[3];
    h->successors = matrices[4];
    h->vocabulary = matrices[5];
    for (int l = 0; l < sizes[4]; ++l)
      h->layers.push_back({vectors[5 + l], matrices[6 + 2 * l], matrices[7 + 2 * l]});
    const int size = sizes[5];
    h->token_ids.assign(token_ids, token_ids + size);
    h->place_of.assign(engine->model.vocab, size);
    for (int place = 0; place < size; ++place) {
      if (token_ids[place] < 0 || token_ids[place] >= engine->model.vocab)
        throw std::invalid_argument("a draft vocabulary with tokens that the model does not have");
      h->place_of[token_ids[place]] = place;
    }
    if (h->features->in != sizes[0] || h->features->out != engine->model.hidden ||
        h->vocabulary->out != size || h->vocabulary->in != engine->model.hidden)
      throw std::invalid_argument("a head of another shape than the model");
    return h.release();
  } catch (const std::exception& error) {
    reason = error.what();
    return nullptr;
  }
}

DFLASH_API void dflash_head_free(DraftHead* head) { delete head; }

// edges [count, most] of what is foreseen behind each root, counts how many there are of each.
DFLASH_API int dflash_head_foresee(DraftHead* head, int count, const int64_t* roots,
                                   const float* taps, const uint8_t* known, int depths, int most,
                                   Edge* edges, int32_t* counts) {
  return guarded([&] {
    for (int i = 0; i < count; ++i)
      if (roots[i] < 0 || roots[i] >= head->engine.model.vocab)
        return refuse("a token outside the vocabulary");
    if (depths < 1 || depths > head->slots) return refuse("more depths than slots");
    const auto& found = head->foresee(count, roots, taps, known, depths);
    for (int i = 0; i < count; ++i) {
      counts[i] = int32_t(found[i].size());
      if (counts[i] > most) return refuse("more edges than there is room for");
      std::memcpy(edges + int64_t(i) * most, found[i].data(), found[i].size() * sizeof(Edge));
    }
    return 0;
  });
}
