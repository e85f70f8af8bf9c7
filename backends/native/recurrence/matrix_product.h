// Matrix product of some rows and the weights of some gates.

#pragma once

#include <cstdint>

#include "arithmetic.h"
#include "cells.h"
#include "tile_product.h"
#include "vectors.h"

namespace {

// sums[r][gate] = addend[r][gate] + rows[r][k] * weights[k][gate] over all k, for ROWS rows, and GATES gates of LANES
// units. `addend` (the same bias for every row, or the sums themselves) is added at the end, as torch does: with inputs
// in the thousands the order decides the last digits.
template <class ARITHMETIC, int ROWS, int GATES>
inline void multiply_tile(const float* const* rows, const float* weights, int64_t depth, const float* addend,
                          int64_t addend_stride, float* sums, int64_t sums_stride) {
  typename ARITHMETIC::Sum accumulators[ROWS][GATES] = {};
  for (int64_t k = 0; k < depth; k++, weights += GATES * ARITHMETIC::VECTOR) {
    typename ARITHMETIC::Sum w[GATES];
#pragma GCC unroll 4
    for (int g = 0; g < GATES; g++) {
      w[g] = ARITHMETIC::weights(weights + g * ARITHMETIC::VECTOR);
      if (ROWS > 1) w[g] = in_register(w[g]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
      const auto x = ARITHMETIC::spread(rows[r] + k);
#pragma GCC unroll 4
      for (int g = 0; g < GATES; g++) accumulators[r][g] = ARITHMETIC::add_product(accumulators[r][g], x, w[g]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
    for (int g = 0; g < GATES; g++)
      store(sums + r * sums_stride + g * LANES,
            load(addend + r * addend_stride + g * LANES) +
                ARITHMETIC::total(accumulators[r][g], rows[r] + depth, weights, g, GATES));
}

// The same for a number of rows that is known at run time.
template <class ARITHMETIC, int ROWS, int GATES>
inline void multiply_tile_rows(int count, const float* const* rows, const float* weights, int64_t depth,
                               const float* addend, int64_t addend_stride, float* sums, int64_t sums_stride) {
  if constexpr (ROWS > 1) {
    if (count < ROWS)
      return multiply_tile_rows<ARITHMETIC, ROWS - 1, GATES>(count, rows, weights, depth, addend, addend_stride, sums,
                                                             sums_stride);
  }
  multiply_tile<ARITHMETIC, ROWS, GATES>(rows, weights, depth, addend, addend_stride, sums, sums_stride);
}

// The same for any number of rows: in tiles of sizes as equal as possible, or in the processor's tiles.
template <class ARITHMETIC, int GATES>
inline void multiply(int64_t count, const float* const* rows, const float* weights, int64_t depth, const float* addend,
                     int64_t addend_stride, float* sums, int64_t sums_stride) {
  if constexpr (!ARITHMETIC::IN_TILES) {
    constexpr int most = tile_rows(GATES);
    for (int64_t tiles = (count + most - 1) / most, first = 0; tiles > 0; tiles--) {
      const int64_t some = (count - first + tiles - 1) / tiles;
      multiply_tile_rows<ARITHMETIC, most, GATES>(static_cast<int>(some), rows + first, weights, depth,
                                                  addend + first * addend_stride, addend_stride,
                                                  sums + first * sums_stride, sums_stride);
      first += some;
    }
  }
#if defined(HAS_TILES)
  else
    multiply_tiles<GATES>(count, rows[0], weights, depth, addend, addend_stride, sums, sums_stride);
#endif
}

}  // namespace
