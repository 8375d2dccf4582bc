// Included by projection.h: the same sums with the products made by the tile unit (AMX).
//
// It shares nothing with the vector units but the cache, and the two do not overlap well: products
// of several groups are made first, then scaled. Both fit the first cache.

constexpr int kUnitRows = 16;
constexpr int kTileUnitRows = 13;  // fewer rows are as fast without it, or faster
constexpr int kBatch = 10;        // groups; measured, 8 to 18 are alike

struct alignas(64) TileConfig {
  uint8_t palette, start, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
// 0-2: products and rows of 16 rows; 3-5: of 8; 6 and 7: weights. Static, since the intrinsic does
// not tell the compiler what it reads.
const TileConfig kTiles = {1, 0, {}, {64, 64, 32, 64, 64, 32, 64, 64}, {16, 16, 16, 8, 8, 8, 8, 8}};

// Adds groups begin..end of R rows from `row` on to out[R][16].
template <bool Q4, int R>
void unit_rows(const Matrix& m, const uint8_t* weights, const uint16_t* scales, const Rows8& rows,
               int row, int begin, int end, float* out) {
  alignas(64) int32_t product[kBatch][kUnitRows][kTile];
  const int groups = m.groups;
  const int64_t at = static_cast<int64_t>(row) * groups;
  const int8_t* x = rows.q + at * kGroup;
#define DFLASH_MULTIPLY(sums, left, right, g)                                 \
  _tile_loadd(left, x + (g) * kGroup, m.in);                                  \
  _tile_loadd(right, weights + static_cast<int64_t>((g) - begin) * 512, 64);  \
  _tile_zero(sums);                                                           \
  if (Q4) _tile_dpbsud(sums, left, right);                                    \
  else _tile_dpbssd(sums, left, right);                                       \
  _tile_stored(sums, product[(g) - begin], 64);
  for (int g = begin; g < end; g += 2) {
    if (R > 8) {
      DFLASH_MULTIPLY(0, 2, 6, g)
      if (g + 1 < end) { DFLASH_MULTIPLY(1, 2, 7, g + 1) }
    } else {
      DFLASH_MULTIPLY(3, 5, 6, g)
      if (g + 1 < end) { DFLASH_MULTIPLY(4, 5, 7, g + 1) }
    }
  }
#undef DFLASH_MULTIPLY
  vf acc[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) acc[r] = begin ? load(out + r * kTile) : zero();
  for (int g = begin; g < end; ++g) {
    const uint16_t* s = scales + static_cast<int64_t>(g) * (Q4 ? 2 * kTile : kTile);
    const vf scale = load_halves(s);
    const vf minimum = Q4 ? load_halves(s + kTile) : zero();
    int64_t i = at + g;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const vf t = floats(load_ints(product[g - begin][r]));
      acc[r] = fma(t, mul(scale, fill(rows.scale[i])), acc[r]);
      if (Q4) acc[r] = fma(minimum, fill(rows.sum[i]), acc[r]);
      i += groups;
      asm("" : "+r"(i));  // or all rows' offsets are kept, in more registers than there are
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) store(out + r * kTile, acc[r]);
}

template <bool Q4>
void unit_tile(const Matrix& m, const uint8_t* quants, const uint16_t* scales, const Rows8& rows,
               int count, float* out, uint8_t* unpacked) {
  for (int begin = 0; begin < m.groups; begin += kBatch) {
    const int end = begin + kBatch < m.groups ? begin + kBatch : m.groups;
    const uint8_t* weights = quants + static_cast<int64_t>(begin) * 512;
    if (Q4) {
      weights = unpacked;
      for (int i = begin * 4; i < end * 4; ++i) {
        const uint8_t* from = quants + static_cast<int64_t>(i) * 64;
        _mm_prefetch(from + kBatch * 256, _MM_HINT_T0);  // what the next batch, or tile, reads
        const vi both = load_ints(from);
        uint8_t* to = unpacked + (i / 4 - begin) * 512 + i % 4 * 64;
        _mm512_store_si512(to, low_nibbles(both));
        _mm512_store_si512(to + 256, high_nibbles(both));
      }
    } else {
      for (int i = 0; i < (end - begin) * 8; ++i)
        _mm_prefetch(weights + kBatch * 512 + i * 64, _MM_HINT_T0);
    }
    for (int i = 0; i < (Q4 ? end - begin : (end - begin + 1) / 2); ++i)
      _mm_prefetch(scales + (begin + kBatch) * (Q4 ? 2 * kTile : kTile) + i * 32, _MM_HINT_T0);
    for (int row = 0; row < count; row += kUnitRows) {
      const int n = count - row;
      float* to = out + row * kTile;
      if (n > 12) unit_rows<Q4, 16>(m, weights, scales, rows, row, begin, end, to);
      else if (n > 8) unit_rows<Q4, 12>(m, weights, scales, rows, row, begin, end, to);
      else if (n > 4) unit_rows<Q4, 8>(m, weights, scales, rows, row, begin, end, to);
      else unit_rows<Q4, 4>(m, weights, scales, rows, row, begin, end, to);
    }
  }
}
