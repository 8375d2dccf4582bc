#include "pool.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>

namespace dflash {
namespace {

constexpr int kMostPauses = 4000, kLeastPauses = 50;
constexpr auto kLinger = std::chrono::microseconds(100);  // between runs, before sleeping

// Spinning makes sense only where every thread can have a core of its own.
int pauses_for(int threads) {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) < threads) return 0;
  return kMostPauses;
}

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  return syscall(SYS_futex, &word, operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

}  // namespace

void Gate::open() {
  count_.fetch_add(1);  // sequentially consistent, as are the sleepers: one sees the other
  if (sleepers_.load() > 0) futex(count_, FUTEX_WAKE, INT32_MAX);
}

void Gate::sleep(uint32_t seen) {
  sleepers_.fetch_add(1);
  while (count_.load() == seen) futex(count_, FUTEX_WAIT, seen);
  sleepers_.fetch_sub(1);
}

Pool::Pool(int threads)
    : size_(threads < 1 ? 1 : threads), most_pauses_(pauses_for(size_)), pauses_(most_pauses_) {
  for (int i = 1; i < size_; ++i) workers_.emplace_back([this, i] { serve(i); });
}

Pool::~Pool() {
  closing_ = true;
  round_.open();
  for (auto& worker : workers_) worker.join();
}

void Pool::run(const std::function<void(int)>& work) {
  work_ = &work;
  round_.open();
  work(0);
  meet();
}

void Pool::meet() {
  if (size_ == 1) return;
  const uint32_t seen = met_.now();
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    met_.open();
    return;
  }
  const int pauses = pauses_.load(std::memory_order_relaxed);
  for (int i = 0; i < pauses; ++i) {
    _mm_pause();
    if (met_.passed(seen)) {
      if (pauses < most_pauses_) pauses_.store(pauses + 1, std::memory_order_relaxed);
      return;
    }
  }
  // The others have no core, or far more to do: spin less for a while.
  pauses_.store(pauses / 2 > kLeastPauses ? pauses / 2 : most_pauses_ ? kLeastPauses : 0,
                std::memory_order_relaxed);
  met_.sleep(seen);
}

void Pool::serve(int thread) {
  for (uint32_t seen = 0;; ++seen) {
    const auto since = std::chrono::steady_clock::now();
    while (most_pauses_ && !round_.passed(seen) &&
           std::chrono::steady_clock::now() - since < kLinger)
      for (int i = 0; i < 16; ++i) _mm_pause();
    if (!round_.passed(seen)) round_.sleep(seen);
    if (closing_) return;
    (*work_)(thread);
    meet();
  }
}

}  // namespace dflash
