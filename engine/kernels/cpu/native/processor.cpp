// Which instruction sets this processor, its system and this build have.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine.h"

namespace dflash {

extern const Kernels kernels_avx2;
#if DFLASH_HAS_AVXVNNI
extern const Kernels kernels_avxvnni;
#endif
#if DFLASH_HAS_AVX512VNNI
extern const Kernels kernels_avx512vnni;
#endif
#if DFLASH_HAS_AMX
extern const Kernels kernels_amx;
#endif

namespace {

struct Features {
  bool avx2 = false, avxvnni = false, avx512vnni = false, amx = false;
};

// Linux hands out the tile unit's large state to a process only on request.
bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

Features detect() {
  Features f;
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return f;
  const auto bit = [](unsigned word, int n) { return (word >> n & 1) != 0; };
  if (!bit(c, 27)) return f;  // the system does not save vector registers
  const bool fma_and_f16c = bit(c, 12) && bit(c, 29);
  unsigned saved, high;
  __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
  f.avx2 = fma_and_f16c && bit(b, 5) && (saved & 0x6) == 0x6;
  const bool avx512 = bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);  // F, DQ, BW, VL
  f.avx512vnni = f.avx2 && avx512 && bit(c, 11) && (saved & 0xe6) == 0xe6;
  f.amx = f.avx512vnni && bit(d, 24) && bit(d, 25) && (saved & 0x60000) == 0x60000 && may_use_tiles();
  f.avxvnni = __get_cpuid_count(7, 1, &a, &b, &c, &d) && f.avx2 && bit(a, 4);
  return f;
}

std::vector<const Kernels*> found() {
  const Features f = detect();
  std::vector<const Kernels*> best_first;
#if DFLASH_HAS_AMX
  if (f.amx) best_first.push_back(&kernels_amx);
#endif
#if DFLASH_HAS_AVX512VNNI
  if (f.avx512vnni) best_first.push_back(&kernels_avx512vnni);
#endif
#if DFLASH_HAS_AVXVNNI
  if (f.avxvnni) best_first.push_back(&kernels_avxvnni);
#endif
  if (f.avx2) best_first.push_back(&kernels_avx2);
  return best_first;
}

}  // namespace

const Kernels* find_kernels(const std::string& name) {
  for (const Kernels* kernels : found())
    if (name.empty() || name == kernels->name) return kernels;
  return nullptr;
}

std::string runnable() {
  std::string names;
  for (const Kernels* kernels : found()) names += (names.empty() ? "" : " ") + std::string(kernels->name);
  return names;
}

}  // namespace dflash
