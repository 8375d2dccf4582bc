// Zeroed memory on huge pages where the system gives them, handed out in aligned parts.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

namespace dflash {

class Region {
 public:
  Region() = default;
  explicit Region(size_t bytes) : bytes_(rounded(bytes)) {
    mapped_ = mmap(nullptr, bytes_ + kHuge, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped_ == MAP_FAILED) {
      mapped_ = nullptr;
      throw std::bad_alloc();
    }
    madvise(data(), bytes_, MADV_HUGEPAGE);
  }
  Region(Region&& other) noexcept { swap(other); }
  Region& operator=(Region&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Region() {
    if (mapped_) munmap(mapped_, bytes_ + kHuge);
  }

  uint8_t* data() const { return reinterpret_cast<uint8_t*>(rounded(reinterpret_cast<uintptr_t>(mapped_))); }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kHuge = size_t(2) << 20;
  static size_t rounded(size_t n) { return (n + kHuge - 1) & ~(kHuge - 1); }
  void swap(Region& other) {
    std::swap(mapped_, other.mapped_);
    std::swap(bytes_, other.bytes_);
  }

  void* mapped_ = nullptr;
  size_t bytes_ = 0;
};

// Parts live as long as the arena.
class Arena {
 public:
  explicit Arena(size_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}

  template <class T>
  T* take(size_t count) {
    const size_t bytes = (count * sizeof(T) + 63) & ~size_t(63);
    if (regions_.empty() || used_ + bytes > regions_.back().bytes()) {
      regions_.emplace_back(bytes > chunk_bytes_ ? bytes : chunk_bytes_);
      used_ = 0;
    }
    void* part = regions_.back().data() + used_;
    used_ += bytes;
    return static_cast<T*>(part);
  }

  void clear() { regions_.clear(); }

 private:
  const size_t chunk_bytes_;
  size_t used_ = 0;
  std::vector<Region> regions_;
};

}  // namespace dflash
