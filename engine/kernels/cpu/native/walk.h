// How a thread goes through the phases of a parallel region.
#pragma once
#include <immintrin.h>

#include <chrono>

#include "engine.h"

namespace dflash {

// One thread's way through the phases: it takes units until none is left, then meets the others.
class Walk {
 public:
  Walk(Runtime& runtime, double* spent_us) : runtime_(runtime), spent_us_(spent_us) {
    control_ = _mm_getcsr();
    _mm_setcsr(0x1f80);  // nearest even, subnormals kept: the same on every thread
    runtime_.kernels->enter();
    since_ = std::chrono::steady_clock::now();
  }
  ~Walk() {
    runtime_.kernels->leave();
    _mm_setcsr(control_);
  }

  template <class Work>
  void phase(int kind, int units, int at_once, Work&& work) {
    std::atomic<int>& next = runtime_.counters[index_++].next;
    for (;;) {
      const int begin = next.fetch_add(at_once, std::memory_order_relaxed);
      if (begin >= units) break;
      const int end = begin + at_once < units ? begin + at_once : units;
      for (int unit = begin; unit < end; ++unit) work(unit);
    }
    runtime_.pool.meet();
    if (!spent_us_) return;
    const auto now = std::chrono::steady_clock::now();
    spent_us_[kind] += std::chrono::duration<double, std::micro>(now - since_).count();
    since_ = now;
  }

 private:
  Runtime& runtime_;
  double* spent_us_;
  unsigned control_;
  size_t index_ = 0;
  std::chrono::steady_clock::time_point since_;
};

}  // namespace dflash
