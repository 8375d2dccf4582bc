// Threads that run one function together and meet at barriers. They spin for a moment, since a
// phase is shorter than waking up, and sleep where the machine is too busy for that.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace dflash {

// A number that threads wait on: it only grows.
class Gate {
 public:
  uint32_t now() const { return count_.load(std::memory_order_relaxed); }
  bool passed(uint32_t seen) const { return count_.load(std::memory_order_acquire) != seen; }
  void open();  // wakes who sleeps
  void sleep(uint32_t seen);  // until it is not `seen` any more

 private:
  alignas(64) std::atomic<uint32_t> count_{0};
  alignas(64) std::atomic<int> sleepers_{0};
};

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int size() const { return size_; }

  // Runs work(thread) on every thread, the caller being thread 0; returns when all have.
  void run(const std::function<void(int)>& work);

  // Called by every thread inside `run`: none passes before all have come. `meanwhile` is called
  // over and over until they have, or until it returns false.
  template <class Meanwhile>
  void meet(Meanwhile&& meanwhile) {
    if (size_ == 1) return;
    const uint32_t seen = met_.now();
    if (arrive()) return;
    while (pauses_ && !met_.passed(seen) && meanwhile()) {
    }
    wait(seen);
  }
  void meet() {
    meet([] { return false; });
  }

 private:
  void serve(int thread);
  bool arrive();  // true for the last, who opens the way
  void wait(uint32_t seen);

  const int size_;
  const int pauses_;  // at a barrier, before sleeping
  std::vector<std::thread> workers_;
  const std::function<void(int)>* work_ = nullptr;
  bool closing_ = false;
  Gate round_, met_;
  alignas(64) std::atomic<int> arrived_{0};
};

}  // namespace dflash
