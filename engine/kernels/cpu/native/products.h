// Exact integer products of `kLanes` channels with one row, 4 inputs (a word) at a time.
//
// With VNNI one instruction multiplies unsigned by signed bytes and adds fours. Without it, pairs
// are added in 16 bits, which must not overflow: see each function.
#pragma once
#include "lanes.h"

namespace dflash {
namespace {

#if defined(__AVX512VNNI__)
#define DFLASH_VNNI 1
inline vi dot(vi sum, vi u, vi s) { return _mm512_dpbusd_epi32(sum, u, s); }
#elif defined(__AVXVNNI__)
#define DFLASH_VNNI 1
inline vi dot(vi sum, vi u, vi s) { return _mm256_dpbusd_avx_epi32(sum, u, s); }
#else
#define DFLASH_VNNI 0
inline vi pairs(vi u, vi s) { return _mm256_maddubs_epi16(u, s); }
inline vi fours(vi a) { return _mm256_madd_epi16(a, _mm256_set1_epi16(1)); }
#endif

// Adds products of pairs of 16-bit integers.
#if defined(__AVX512VNNI__)
inline vi dot_pairs(vi sum, vi a, vi b) { return _mm512_dpwssd_epi32(sum, a, b); }
#elif defined(__AVXVNNI__)
inline vi dot_pairs(vi sum, vi a, vi b) { return _mm256_dpwssd_avx_epi32(sum, a, b); }
#else
inline vi dot_pairs(vi sum, vi a, vi b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
#endif

inline vi word(const int8_t* x, int i) {
  int32_t four;
  __builtin_memcpy(&four, x + 4 * i, 4);
  return fill_ints(four);
}

// 8 words of weights 0..15. In 16 bits: 8 words x 2 products x 15 x 127 = 30480.
inline vi dot_nibbles(const vi w[8], const int8_t* x) {
#if DFLASH_VNNI
  // two chains, since one's latency is several instructions long
  vi a = dot(no_ints(), w[0], word(x, 0));
  vi b = dot(no_ints(), w[1], word(x, 1));
#pragma GCC unroll 3
  for (int i = 2; i < 8; i += 2) {
    a = dot(a, w[i], word(x, i));
    b = dot(b, w[i + 1], word(x, i + 1));
  }
  return add_ints(a, b);
#else
  vi a = pairs(w[0], word(x, 0));
#pragma GCC unroll 7
  for (int i = 1; i < 8; ++i) a = _mm256_add_epi16(a, pairs(w[i], word(x, i)));
  return fours(a);
#endif
}

// Up to 8 words of signed bytes, prepared for any number of rows.
struct Bytes {
  vi w[8];
  const uint8_t* origin;
};

template <int Words>
inline Bytes load_words(const uint8_t* p) {
  Bytes b;
  b.origin = p;
#pragma GCC unroll 8
  for (int i = 0; i < Words; ++i) {
    const vi w = load_ints(p + i * kTile * 4);
#if DFLASH_VNNI
    b.w[i] = flip_signs(w);  // w + 128, unsigned
#else
    b.w[i] = _mm256_abs_epi8(w);
#endif
  }
  return b;
}

// `bias` is -128 * sum(x), which undoes the shift by 128. Without VNNI |w| is multiplied by x with
// w's sign: 2 products of at most 128 x 127 fit 16 bits.
template <int Words>
inline vi dot_bytes(const Bytes& b, const int8_t* x, int32_t bias) {
#if DFLASH_VNNI
  vi a = fill_ints(bias);
#pragma GCC unroll 8
  for (int i = 0; i < Words; ++i) a = dot(a, b.w[i], word(x, i));
  return a;
#else
  (void)bias;
  vi a = no_ints();
#pragma GCC unroll 8
  for (int i = 0; i < Words; ++i) {
    const vi signs = load_ints(b.origin + i * kTile * 4);
    a = add_ints(a, fours(pairs(b.w[i], _mm256_sign_epi8(word(x, i), signs))));
  }
  return a;
#endif
}

}  // namespace
}  // namespace dflash
