// Functions of rows of floats: exponential, RMS norm, quantisation, embedding.
#pragma once
#include "lanes.h"

namespace dflash {
namespace {

// Cephes' expf. x is clamped to [-87, 88], where the result is a normal number.
inline vf exponential(vf x) {
  x = smaller(larger(x, fill(-87.0f)), fill(88.0f));
  const vf n = nearest(mul(x, fill(1.44269504f)));
  vf r = fma(n, fill(-0.693359375f), x);
  r = fma(n, fill(2.12194440e-4f), r);
  vf p = fill(1.9875691500e-4f);
  p = fma(p, r, fill(1.3981999507e-3f));
  p = fma(p, r, fill(8.3334519073e-3f));
  p = fma(p, r, fill(4.1665795894e-2f));
  p = fma(p, r, fill(1.6666665459e-1f));
  p = fma(p, r, fill(5.0000001201e-1f));
  return scaled_by_power(add(fma(p, mul(r, r), r), fill(1.0f)), n);
}

inline float root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

// q = round(x * (127 / max|x|)), *scale = max|x| / 127. Returns the sum of q.
inline int32_t quantise_group(const float* x, int n, int8_t* q, float* scale) {
  int32_t sum = 0;
  float top = 0.0f;
  if (n % kLanes == 0) {
    vf peak = magnitude(load(x));
    for (int i = kLanes; i < n; i += kLanes) peak = larger(peak, magnitude(load(x + i)));
    top = largest(peak);
    const vf inverse = fill(top > 0.0f ? 127.0f / top : 0.0f);
    vi sums = no_ints();
    for (int i = 0; i < n; i += kLanes) sums = add_ints(sums, store_bytes(q + i, mul(load(x + i), inverse)));
    sum = total_ints(sums);
  } else {
    for (int i = 0; i < n; ++i) {
      const float a = __builtin_fabsf(x[i]);
      if (a > top) top = a;
    }
    const float inverse = top > 0.0f ? 127.0f / top : 0.0f;
    for (int i = 0; i < n; ++i) {
      const int32_t v = _mm_cvtss_si32(_mm_set_ss(x[i] * inverse));
      q[i] = static_cast<int8_t>(v);
      sum += v;
    }
  }
  *scale = top / 127.0f;
  return sum;
}

void quantise(const float* x, int width, const Rows8& to, int row) {
  const int groups = width / kGroup;
  for (int g = 0; g < groups; ++g) {
    const int64_t at = static_cast<int64_t>(row) * groups + g;
    const int32_t sum = quantise_group(x + g * kGroup, kGroup, to.q + at * kGroup, to.scale + at);
    to.sum[at] = to.scale[at] * static_cast<float>(sum);
    to.bias[at] = -128 * sum;
  }
}

inline void norm_to(const Model& m, const float* weight, const float* x, const Rows8& to, int row) {
  alignas(64) float y[kWidest];
  vf sum[kHalves];
  for (int h = 0; h < kHalves; ++h) sum[h] = zero();
  for (int i = 0; i < m.hidden; i += kTile)
    for (int h = 0; h < kHalves; ++h) {
      const vf v = load(x + i + h * kLanes);
      sum[h] = add(sum[h], mul(v, v));
    }
  const float mean = total(sum) / static_cast<float>(m.hidden);
  const vf scale = fill(1.0f / root(mean + m.epsilon));
  for (int i = 0; i < m.hidden; i += kLanes)
    store(y + i, mul(mul(load(x + i), scale), load(weight + i)));
  quantise(y, m.hidden, to, row);
}

void norm_row(const Step& step, const float* weight, int row) {
  const Model& m = *step.model;
  norm_to(m, weight, step.hidden + static_cast<int64_t>(row) * m.hidden, step.in_hidden, row);
}

void norm_logits(const Step& step, int index) {
  const Model& m = *step.model;
  norm_to(m, m.final_norm, step.hidden + step.logit_rows[index] * m.hidden, step.in_final, index);
}

inline float single(uint16_t half) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half))); }

void embed(const Step& step, int row) {
  const Matrix& m = *step.model->embedding;
  const int64_t tile = step.token_ids[row] / kTile, channel = step.token_ids[row] % kTile;
  float* x = step.hidden + static_cast<int64_t>(row) * m.in;
  for (int g = 0; g < m.groups; ++g, x += kGroup) {
    const int64_t at = tile * m.groups + g;
    if (m.kind == kQ4) {
      const uint8_t* p = m.quants + at * 256 + channel * 4;
      const uint16_t* s = m.scales + at * 2 * kTile + channel;
      const float scale = single(s[0]), minimum = single(s[kTile]);
      for (int k = 0; k < kGroup / 2; ++k) {
        const uint8_t both = p[k / 4 * 64 + k % 4];
        x[k] = static_cast<float>(both & 15) * scale + minimum;
        x[k + kGroup / 2] = static_cast<float>(both >> 4) * scale + minimum;
      }
    } else {
      const uint8_t* p = m.quants + at * 512 + channel * 4;
      const float scale = single(m.scales[at * kTile + channel]);
      for (int k = 0; k < kGroup; ++k)
        x[k] = static_cast<float>(static_cast<int8_t>(p[k / 4 * 64 + k % 4])) * scale;
    }
  }
}

}  // namespace
}  // namespace dflash
