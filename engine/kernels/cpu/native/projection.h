// Weights times rows, one tile of 16 output channels at a time.
//
// A channel's result is, over groups in ascending order: acc = fma(product, scale_w * scale_x, acc),
// then for 4 bits acc = fma(minimum_w, sum_x, acc). Every path below keeps to that.
#pragma once
#include "functions.h"
#include "products.h"

#if defined(__AMX_INT8__)
#define DFLASH_AMX 1
#else
#define DFLASH_AMX 0
#endif

namespace dflash {
namespace {

// R rows from `row` on; out[R][16].
template <int R>
void q4_rows(const Matrix& m, const uint8_t* quants, const uint16_t* scales, const Rows8& rows,
             int row, float* out) {
  const int groups = m.groups;
  const int64_t at = static_cast<int64_t>(row) * groups;
  for (int h = 0; h < kHalves; ++h) {
    vf acc[R];
    for (int r = 0; r < R; ++r) acc[r] = zero();
    const uint8_t* p = quants + h * kLanes * 4;
    const uint16_t* s = scales + h * kLanes;
    const int8_t* x = rows.q + at * kGroup;
    const float *xs = rows.scale + at, *xm = rows.sum + at;
    for (int g = 0; g < groups; ++g, p += 256, s += 2 * kTile, x += kGroup, ++xs, ++xm) {
      for (int i = 0; i < 4; ++i) {
        _mm_prefetch(p + 2048 + i * 64, _MM_HINT_T0);
        _mm_prefetch(p + 8192 + i * 64, _MM_HINT_T1);
      }
      _mm_prefetch(s + 256, _MM_HINT_T0);
      _mm_prefetch(s + 1024, _MM_HINT_T1);
      vi w[8];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const vi both = load_ints(p + i * 64);
        w[i] = low_nibbles(both);
        w[i + 4] = high_nibbles(both);
      }
      const vf scale = load_halves(s), minimum = load_halves(s + kTile);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const vf t = floats(dot_nibbles(w, x + static_cast<int64_t>(r) * m.in));
        acc[r] = fma(t, mul(scale, fill(xs[r * groups])), acc[r]);
        acc[r] = fma(minimum, fill(xm[r * groups]), acc[r]);
      }
    }
    for (int r = 0; r < R; ++r) store(out + r * kTile + h * kLanes, acc[r]);
  }
}

template <int R>
void q8_rows(const Matrix& m, const uint8_t* quants, const uint16_t* scales, const Rows8& rows,
             int row, float* out) {
  const int groups = m.groups;
  const int64_t at = static_cast<int64_t>(row) * groups;
  for (int h = 0; h < kHalves; ++h) {
    vf acc[R];
    for (int r = 0; r < R; ++r) acc[r] = zero();
    const uint8_t* p = quants + h * kLanes * 4;
    const int8_t* x = rows.q + at * kGroup;
    for (int g = 0; g < groups; ++g, p += 512, x += kGroup) {
      for (int i = 0; i < 8; ++i) {
        _mm_prefetch(p + 4096 + i * 64, _MM_HINT_T0);
        _mm_prefetch(p + 16384 + i * 64, _MM_HINT_T1);
      }
      const Bytes w = load_words<8>(p);
      const vf scale = load_halves(scales + g * kTile + h * kLanes);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const int64_t i = at + static_cast<int64_t>(r) * groups + g;
        const vf t = floats(dot_bytes<8>(w, x + static_cast<int64_t>(r) * m.in, rows.bias[i]));
        acc[r] = fma(t, mul(scale, fill(rows.scale[i])), acc[r]);
      }
    }
    for (int r = 0; r < R; ++r) store(out + r * kTile + h * kLanes, acc[r]);
  }
}

using RowsFunction = void (*)(const Matrix&, const uint8_t*, const uint16_t*, const Rows8&, int,
                              float*);
#if defined(__AVX512F__)
constexpr int kBlock = 12;  // rows that share one pass over a tile's weights: as registers allow
constexpr RowsFunction kRows[2][kBlock] = {
    {q4_rows<1>, q4_rows<2>, q4_rows<3>, q4_rows<4>, q4_rows<5>, q4_rows<6>, q4_rows<7>, q4_rows<8>,
     q4_rows<9>, q4_rows<10>, q4_rows<11>, q4_rows<12>},
    {q8_rows<1>, q8_rows<2>, q8_rows<3>, q8_rows<4>, q8_rows<5>, q8_rows<6>, q8_rows<7>, q8_rows<8>,
     q8_rows<9>, q8_rows<10>, q8_rows<11>, q8_rows<12>}};
#else
constexpr int kBlock = 4;
constexpr RowsFunction kRows[2][kBlock] = {{q4_rows<1>, q4_rows<2>, q4_rows<3>, q4_rows<4>},
                                           {q8_rows<1>, q8_rows<2>, q8_rows<3>, q8_rows<4>}};
#endif

#if DFLASH_AMX
#include "tile_unit.h"
#endif

// One tile of channels for all rows, into out[rows padded][16].
void tile_rows(const Matrix& m, const Rows8& rows, int count, int tile, float* out,
               Scratch& scratch) {
  const uint8_t* quants = m.quants_of(tile);
  const uint16_t* scales = m.scales_of(tile);
#if DFLASH_AMX
  if (count >= kTileUnitRows) {
    if (m.kind == kQ4) unit_tile<true>(m, quants, scales, rows, count, out, scratch.unpacked);
    else unit_tile<false>(m, quants, scales, rows, count, out, scratch.unpacked);
    return;
  }
#else
  (void)scratch;
#endif
  const int blocks = (count + kBlock - 1) / kBlock;
  for (int b = 0, row = 0; b < blocks; ++b) {
    const int n = (count - row) / (blocks - b);  // as even as can be
    kRows[m.kind][n - 1](m, quants, scales, rows, row, out + row * kTile);
    row += n;
  }
}

// Writes, or adds to, columns 16 * tile and on of out [rows, stride].
void project(const Matrix& m, const Rows8& rows, int count, int tile, float* out, int64_t stride,
             bool accumulate, Scratch& scratch) {
  float* c = scratch.channels;
  tile_rows(m, rows, count, tile, c, scratch);
  const int channel = tile * kTile;
  const int width = m.out - channel < kTile ? m.out - channel : kTile;
  for (int r = 0; r < count; ++r, c += kTile) {
    float* to = out + r * stride + channel;
    if (m.bias)
      for (int h = 0; h < kTile; h += kLanes) store(c + h, add(load(c + h), load(m.bias + channel + h)));
    if (width == kTile) {
      for (int h = 0; h < kTile; h += kLanes)
        store(to + h, accumulate ? add(load(to + h), load(c + h)) : load(c + h));
    } else {
      for (int i = 0; i < width; ++i) to[i] = accumulate ? to[i] + c[i] : c[i];
    }
  }
}

// The matrix is gate over up: silu(gate) * up of columns 16 * tile and on.
void swiglu(const Matrix& m, const Rows8& rows, int count, int tile, float* out, int64_t stride,
            Scratch& scratch) {
  float* gate = scratch.channels;
  float* up = gate + static_cast<int64_t>(count + kTile) * kTile;
  tile_rows(m, rows, count, tile, gate, scratch);
  tile_rows(m, rows, count, tile + m.tiles / 2, up, scratch);
  const int channel = tile * kTile;
  for (int r = 0; r < count; ++r)
    for (int h = 0; h < kTile; h += kLanes) {
      vf g = load(gate + r * kTile + h), u = load(up + r * kTile + h);
      if (m.bias) {
        g = add(g, load(m.bias + channel + h));
        u = add(u, load(m.bias + m.out / 2 + channel + h));
      }
      const vf below = add(fill(1.0f), exponential(sub(zero(), g)));
      store(out + r * stride + channel + h, mul(div(g, below), u));
    }
}

}  // namespace
}  // namespace dflash
