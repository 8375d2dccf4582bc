// How a thread goes through the phases of a parallel region.
#pragma once
#include <immintrin.h>

#include <chrono>

#include "engine.h"

namespace dflash {

// One thread's way through the phases: it takes units until none is left, then meets the others.
class Walk {
 public:
  Walk(Runtime& runtime, int thread, double* spent_us)
      : runtime_(runtime), thread_(thread), spent_us_(spent_us) {
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
    take(units, 0, at_once, work);
    meet(kind);
  }

  // Nearly all units are shared out beforehand, so that a thread reads weights in one stretch, whose
  // beginning it can foresee; the last few are for who is done first.
  template <class Work>
  void shared_phase(int kind, int units, Work&& work) {
    const Share mine = share(units);
    for (int unit = mine.begin; unit < mine.end; ++unit) work(unit);
    take(units, mine.of_all, 2, work);
    meet(kind);
  }

  // The matrix of the shared phase after the one that begins now. This thread's share of it is
  // fetched into the second cache whenever it waits for others; `parts` are read side by side.
  void foresee(const Matrix& m, int parts = 1) {
    const Share mine = share(m.tiles / parts);
    stretches_ = 0;
    for (int part = 0; part < parts; ++part) {
      const int begin = mine.begin + part * (m.tiles / parts), end = begin + mine.end - mine.begin;
      ahead_[stretches_++] = {m.quants_of(begin), m.quants_of(end)};
      ahead_[stretches_++] = {reinterpret_cast<const uint8_t*>(m.scales_of(begin)),
                              reinterpret_cast<const uint8_t*>(m.scales_of(end))};
    }
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
  struct Share {
    int begin, end, of_all;
  };
  struct Stretch {
    const uint8_t *begin, *end;
  };

  Share share(int units) const {
    const int threads = runtime_.pool.size(), each = (units - units / 16) / threads;
    return {each * thread_, each * (thread_ + 1), each * threads};
  }

  // Units from `first` on, until none is left.
  template <class Work>
  void take(int units, int first, int at_once, Work&& work) {
    std::atomic<int>& next = runtime_.counters[index_++].next;
    for (;;) {
      const int begin = first + next.fetch_add(at_once, std::memory_order_relaxed);
      if (begin >= units) return;
      const int end = begin + at_once < units ? begin + at_once : units;
      for (int unit = begin; unit < end; ++unit) work(unit);
    }
  }

  // A few lines of what is foreseen; false when nothing is left.
  bool fetch() {
    if (!stretches_) return false;
    Stretch& s = ahead_[stretches_ - 1];
    for (int i = 0; i < 4 && s.begin < s.end; ++i, s.begin += 64) _mm_prefetch(s.begin, _MM_HINT_T1);
    if (s.begin >= s.end) --stretches_;
    return true;
  }

  void meet(int kind) {
    runtime_.pool.meet([this] { return fetch(); });
    if (!spent_us_) return;
    const auto now = std::chrono::steady_clock::now();
    spent_us_[kind] += std::chrono::duration<double, std::micro>(now - since_).count();
    since_ = now;
  }

  Runtime& runtime_;
  const int thread_;
  double* spent_us_;
  Stretch ahead_[4];
  int stretches_ = 0;
  unsigned control_;
  size_t index_ = 0;
  std::chrono::steady_clock::time_point since_;
};

}  // namespace dflash
