// Threads that run one function together and meet at spin barriers.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace dflash {

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int size() const { return size_; }

  // Runs work(thread) on every thread, the caller being thread 0; returns when all have.
  void run(const std::function<void(int)>& work);

  // Called by every thread inside `run`: none passes before all have come.
  void meet();

 private:
  void serve(int thread);

  const int size_;
  std::vector<std::thread> workers_;
  const std::function<void(int)>* work_ = nullptr;
  alignas(64) std::atomic<uint32_t> round_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> passed_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> closing_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace dflash
