// Vectors of 16 (AVX-512) or 8 lanes. Sixteen lanes are always one or two of them, so that both
// widths do the same operations on the same lanes.
#pragma once
#include <immintrin.h>

#include "shapes.h"

namespace dflash {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
using vf = __m512;
using vi = __m512i;
inline vf load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, vf v) { _mm512_storeu_ps(p, v); }
inline vf fill(float x) { return _mm512_set1_ps(x); }
inline vf zero() { return _mm512_setzero_ps(); }
inline vf add(vf a, vf b) { return _mm512_add_ps(a, b); }
inline vf sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
inline vf mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
inline vf div(vf a, vf b) { return _mm512_div_ps(a, b); }
inline vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }  // a * b + c, rounded once
inline vf larger(vf a, vf b) { return _mm512_max_ps(a, b); }
inline vf smaller(vf a, vf b) { return _mm512_min_ps(a, b); }
inline vf magnitude(vf a) { return _mm512_abs_ps(a); }
inline vf nearest(vf a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline vf scaled_by_power(vf y, vf n) {  // y * 2^n
  const __m512i exponent = _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y), exponent));
}
inline vf load_halves(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline vf load_bytes(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
inline vi widen_bytes(const void* p) {  // twice as many 16-bit integers as lanes
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
inline void store_ints(void* p, vi v) { _mm512_storeu_si512(p, v); }
inline void store_shorts(int16_t* p, vf v) {  // to nearest, ties to even
  const __m256i n = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(v));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), n);
}
inline vf floats(vi a) { return _mm512_cvtepi32_ps(a); }
inline float largest(vf a) { return _mm512_reduce_max_ps(a); }
inline vi store_bytes(int8_t* p, vf v) {  // to nearest, ties to even; returns what it stored
  const vi n = _mm512_cvtps_epi32(v);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(n));
  return n;
}
inline int32_t total_ints(vi n) { return _mm512_reduce_add_epi32(n); }
inline vf first_lanes(vf v, int count, float other) {  // `other` in lanes from `count` on
  const __mmask16 mask =
      count >= 16 ? 0xffff : count <= 0 ? 0 : static_cast<__mmask16>((1u << count) - 1);
  return _mm512_mask_blend_ps(mask, _mm512_set1_ps(other), v);
}
inline vi load_ints(const void* p) { return _mm512_loadu_si512(p); }
inline vi fill_ints(int32_t x) { return _mm512_set1_epi32(x); }
inline vi no_ints() { return _mm512_setzero_si512(); }
inline vi add_ints(vi a, vi b) { return _mm512_add_epi32(a, b); }
inline vi low_nibbles(vi a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
inline vi high_nibbles(vi a) { return low_nibbles(_mm512_srli_epi16(a, 4)); }
inline vi flip_signs(vi a) { return _mm512_xor_si512(a, _mm512_set1_epi8(-128)); }
#else
constexpr int kLanes = 8;
using vf = __m256;
using vi = __m256i;
inline vf load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, vf v) { _mm256_storeu_ps(p, v); }
inline vf fill(float x) { return _mm256_set1_ps(x); }
inline vf zero() { return _mm256_setzero_ps(); }
inline vf add(vf a, vf b) { return _mm256_add_ps(a, b); }
inline vf sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
inline vf mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
inline vf div(vf a, vf b) { return _mm256_div_ps(a, b); }
inline vf fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
inline vf larger(vf a, vf b) { return _mm256_max_ps(a, b); }
inline vf smaller(vf a, vf b) { return _mm256_min_ps(a, b); }
inline vf magnitude(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline vf nearest(vf a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline vf scaled_by_power(vf y, vf n) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), exponent));
}
inline vf load_halves(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline vf load_bytes(const int8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
inline vi widen_bytes(const void* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
inline void store_ints(void* p, vi v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
inline void store_shorts(int16_t* p, vf v) {
  const vi n = _mm256_cvtps_epi32(v);
  const __m128i low = _mm256_castsi256_si128(n), high = _mm256_extracti128_si256(n, 1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi32(low, high));
}
inline vf floats(vi a) { return _mm256_cvtepi32_ps(a); }
inline float largest(vf a) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
inline vi store_bytes(int8_t* p, vf v) {
  const vi n = _mm256_cvtps_epi32(v);
  const __m128i low = _mm256_castsi256_si128(n), high = _mm256_extracti128_si256(n, 1);
  const __m128i words = _mm_packs_epi32(low, high);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
  return n;
}
inline int32_t total_ints(vi n) {
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(n), _mm256_extracti128_si256(n, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}
inline vf first_lanes(vf v, int count, float other) {
  const vi lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const vi mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane);
  return _mm256_blendv_ps(_mm256_set1_ps(other), v, _mm256_castsi256_ps(mask));
}
inline vi load_ints(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline vi fill_ints(int32_t x) { return _mm256_set1_epi32(x); }
inline vi no_ints() { return _mm256_setzero_si256(); }
inline vi add_ints(vi a, vi b) { return _mm256_add_epi32(a, b); }
inline vi low_nibbles(vi a) { return _mm256_and_si256(a, _mm256_set1_epi8(15)); }
inline vi high_nibbles(vi a) { return low_nibbles(_mm256_srli_epi16(a, 4)); }
inline vi flip_signs(vi a) { return _mm256_xor_si256(a, _mm256_set1_epi8(-128)); }
#endif

constexpr int kHalves = kTile / kLanes;

// Adds 16 lanes: those 8 apart, then 4, 2 and 1.
inline float total(const vf sum[kHalves]) {
  alignas(64) float t[kTile];
  for (int h = 0; h < kHalves; ++h) store(t + h * kLanes, sum[h]);
  for (int n = kTile / 2; n; n /= 2)
    for (int i = 0; i < n; ++i) t[i] = t[i] + t[i + n];
  return t[0];
}

}  // namespace
}  // namespace dflash
