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
    meet(kind);
  }

  // Takes each unit before the one in front of it is worked on, which learns what follows: -1 if
  // nothing does.
  template <class Work>
  void foreseeing_phase(int kind, int units, Work&& work) {
    std::atomic<int>& next = runtime_.counters[index_++].next;
    const auto taken = [&] {
      const int unit = next.fetch_add(1, std::memory_order_relaxed);
      return unit < units ? unit : -1;
    };
    for (int unit = taken(); unit >= 0;) {
      const int following = taken();
      work(unit, following);
      unit = following;
    }
    meet(kind);
  }

 private:
  void meet(int kind) {
    runtime_.pool.meet();
    if (!spent_us_) return;
    const auto now = std::chrono::steady_clock::now();
    spent_us_[kind] += std::chrono::duration<double, std::micro>(now - since_).count();
    since_ = now;
  }

  Runtime& runtime_;
  double* spent_us_;
  unsigned control_;
  size_t index_ = 0;
  std::chrono::steady_clock::time_point since_;
};

}  // namespace dflash
