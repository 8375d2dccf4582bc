#include "pool.h"

#include <immintrin.h>

#include <chrono>

namespace dflash {
namespace {

constexpr int kPauses = 2000;  // at a barrier, before the core is offered to others
constexpr auto kLinger = std::chrono::microseconds(100);  // between runs, before sleeping

}  // namespace

Pool::Pool(int threads) : size_(threads < 1 ? 1 : threads) {
  for (int i = 1; i < size_; ++i) workers_.emplace_back([this, i] { serve(i); });
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_.store(true);
    round_.fetch_add(1);
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void Pool::run(const std::function<void(int)>& work) {
  work_ = &work;
  round_.fetch_add(1);  // sequentially consistent, as are the sleepers: one sees the other
  if (sleepers_.load() > 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_all();
  }
  work(0);
  meet();
}

void Pool::meet() {
  if (size_ == 1) return;
  const uint32_t seen = passed_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    passed_.store(seen + 1, std::memory_order_release);
    return;
  }
  for (int pauses = 0; passed_.load(std::memory_order_acquire) == seen; ++pauses) {
    if (pauses < kPauses) _mm_pause();
    else std::this_thread::yield();
  }
}

void Pool::serve(int thread) {
  for (uint32_t seen = 0;; ++seen) {
    const auto since = std::chrono::steady_clock::now();
    while (round_.load(std::memory_order_acquire) == seen) {
      for (int i = 0; i < 16; ++i) _mm_pause();
      if (std::chrono::steady_clock::now() - since < kLinger) continue;
      std::unique_lock<std::mutex> lock(mutex_);
      sleepers_.fetch_add(1);
      wake_.wait(lock, [&] { return round_.load() != seen; });
      sleepers_.fetch_sub(1);
    }
    if (closing_.load()) return;
    (*work_)(thread);
    meet();
  }
}

}  // namespace dflash
