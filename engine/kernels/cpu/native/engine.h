// What Python holds: a runtime (threads, instruction set, memory) and models that run on it.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "memory.h"
#include "pool.h"
#include "shapes.h"

namespace dflash {

// The kernels named so, or the best ones for an empty name; null where this processor or this
// build has none.
const Kernels* find_kernels(const std::string& name);
std::string runnable();  // names, best first, separated by spaces

// Rows in 8 bits, `group` inputs to a scale.
Rows8 take_rows8(Arena& arena, int64_t rows, int64_t width, int64_t group);

struct alignas(64) Counter {
  std::atomic<int> next{0};
};

struct Runtime {
  Runtime(int threads, const Kernels* isa) : kernels(isa), pool(threads), weights(size_t(32) << 20) {}

  // Makes room for steps of `rows` rows; the others are what a model's attention needs.
  void reserve(int64_t rows, int64_t scores, int64_t heads_dim, int64_t page_bytes);
  void reserve_phases(size_t count);
  Rows8 rows_in(int64_t rows, int64_t width);  // room for rows of no model's

  const Kernels* kernels;
  Pool pool;
  Arena weights;
  std::vector<Scratch> scratch;    // of each thread
  std::vector<Counter> counters;   // of each phase: the next unit that nobody has taken
  std::vector<std::unique_ptr<Matrix>> matrices;

 private:
  std::array<int64_t, 4> room_{};
  std::vector<Region> regions_;
  Arena rows_{size_t(1) << 20};
  Rows8 rows_of_{};
  int64_t rows_room_ = 0;
};

struct Engine {
  explicit Engine(Runtime& on) : runtime(on), buffers(size_t(1) << 20) {}

  void plan(int rows, int logits);  // buffers, segments and attention units of `step`
  void run();                       // `step`, from token ids to logits
  void move(const int64_t* from, const int64_t* to, int count);

  Runtime& runtime;
  Model model{};
  std::vector<Layer> layers;
  Region pool_memory;
  // Rows that every thread prepares for itself where they are so few that sharing them out, and
  // meeting, would take longer.
  static constexpr int kAlone = 2;

  Step step{};
  Step wanted{};  // the same for the rows whose logits are wanted, unless that is all or tapped
  std::vector<Segment> segments;
  std::array<double, 14> phase_us{};  // summed per kind of phase, while `timed`
  bool timed = false;

 private:
  struct Prepared {
    Rows8 hidden, mixed, inner, final;
  };

  void plan_buffers(int rows, int logits);
  void plan_segments(int rows);
  void plan_units();
  void plan_wanted();
  void prepare_alone(Step& s, int thread) const;

  Arena buffers;
  int room_rows = 0, room_logits = 0;
  std::vector<int64_t> chains;
  std::vector<int32_t> tile_pages, length, shared;
  std::vector<AttentionUnit> units, wanted_units;
  std::vector<int64_t> wanted_rows;
  std::vector<Prepared> prepared;  // of each thread, `kAlone` rows
};

// out [rows, out] = x [rows, in] times the matrix, plus its bias.
void project_rows(Runtime& runtime, const Matrix& m, int rows, const float* x, float* out);

// [rows, 4]: the largest logit's index, the largest, log-sum-exp, entropy in nats.
void statistics(Runtime& runtime, const float* logits, int rows, int vocab, double* out);

}  // namespace dflash
