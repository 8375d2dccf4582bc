// The arithmetic of a step, compiled once per instruction set; DFLASH_ISA names it.
//
// Every variant performs the same operations on the same 16 lanes in the same order, with the same
// ones fused, so their results are equal bit for bit. Contraction by the compiler must be off.
// Nothing here may use the standard library: an inline function compiled for a wide instruction set
// could be the one that is linked into code for a narrow one.
#include "attending.h"
#include "projection.h"

namespace dflash {
namespace {

// part: index of the largest (bits), the largest, sum exp(x - largest), the same weighted by
// x - largest; of logits begin..end, where begin is a multiple of 16.
void summarise(const float* x, int begin, int end, float* part) {
  alignas(64) float last[kTile];
  const auto lanes = [&](int j, int h) {  // beyond the end: what `first_lanes` masks
    const int at = j + h * kLanes;
    if (at + kLanes <= end) return load(x + at);
    for (int i = 0; i < kLanes; ++i) last[i] = at + i < end ? x[at + i] : 0.0f;
    return load(last);
  };
  vf top[kHalves], sum[kHalves], weighted[kHalves];
  for (int h = 0; h < kHalves; ++h) top[h] = fill(-__builtin_inff()), sum[h] = weighted[h] = zero();
  for (int j = begin; j < end; j += kTile)
    for (int h = 0; h < kHalves; ++h)
      top[h] = larger(top[h], first_lanes(lanes(j, h), end - j - h * kLanes, -__builtin_inff()));
  float most = largest(top[0]);
  if (kHalves == 2 && largest(top[kHalves - 1]) > most) most = largest(top[kHalves - 1]);
  int32_t best = begin;
  while (best < end - 1 && x[best] != most) ++best;
  for (int j = begin; j < end; j += kTile)
    for (int h = 0; h < kHalves; ++h) {
      const vf shifted = sub(lanes(j, h), fill(most));
      const vf e = first_lanes(exponential(shifted), end - j - h * kLanes, 0.0f);
      sum[h] = add(sum[h], e);
      weighted[h] = fma(e, shifted, weighted[h]);
    }
  __builtin_memcpy(part, &best, 4);
  part[1] = most;
  part[2] = total(sum);
  part[3] = total(weighted);
}

void enter() {
#if DFLASH_AMX
  _tile_loadconfig(&kTiles);
#endif
}

void leave() {
#if DFLASH_AMX
  _tile_release();
#endif
}

}  // namespace

#define DFLASH_TEXT_OF(x) #x
#define DFLASH_TEXT(x) DFLASH_TEXT_OF(x)
#define DFLASH_JOINED(a, b) a##b
#define DFLASH_JOIN(a, b) DFLASH_JOINED(a, b)

extern const Kernels DFLASH_JOIN(kernels_, DFLASH_ISA);
const Kernels DFLASH_JOIN(kernels_, DFLASH_ISA) = {
    DFLASH_TEXT(DFLASH_ISA), enter,    leave,       quantise, project, swiglu, embed,
    norm_row,                norm_logits, place,    attend,   summarise};

}  // namespace dflash
