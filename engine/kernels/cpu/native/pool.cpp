#include "pool.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>

namespace dflash {
namespace {

// At a barrier, before sleeping. Some hundred microseconds: far more than threads that run are apart,
// and far less than one that the system took off its core stays away.
constexpr int kPauses = 4000;
constexpr auto kLinger = std::chrono::microseconds(100);  // between runs, before sleeping

// Spinning makes sense only where every thread can have a core of its own.
int pauses_for(int threads) {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) < threads) return 0;
  return kPauses;
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
    : size_(threads < 1 ? 1 : threads), pauses_(pauses_for(size_)) {
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

bool Pool::arrive() {
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) != size_ - 1) return false;
  arrived_.store(0, std::memory_order_relaxed);
  met_.open();
  return true;
}

void Pool::wait(uint32_t seen) {
  for (int i = 0; i < pauses_; ++i) {
    if (met_.passed(seen)) return;
    _mm_pause();
  }
  met_.sleep(seen);
}

void Pool::serve(int thread) {
  for (uint32_t seen = 0;; ++seen) {
    const auto since = std::chrono::steady_clock::now();
    while (pauses_ && !round_.passed(seen) &&
           std::chrono::steady_clock::now() - since < kLinger)
      for (int i = 0; i < 16; ++i) _mm_pause();
    if (!round_.passed(seen)) round_.sleep(seen);
    if (closing_) return;
    (*work_)(thread);
    meet();
  }
}

}  // namespace dflash
