// Products x W_ih and h W_hh of a block of LANES hidden units, with all gates.

#pragma once

#include <cstdint>

#include "arithmetic.h"
#include "cells.h"
#include "matrix_product.h"
#include "vectors.h"

namespace {

// The floats of the weights of a block of units, over all inputs.
constexpr int64_t block_size(int cell, int64_t depth) { return gates_of(cell) * gate_size<Recurrent>(depth); }

// A block of units: the gates of W_ih (from x) or W_hh (from h). `addend` and `sums` have sums_of(CELL) vectors a row.
template <int CELL, bool FROM_STATE>
inline void multiply_block(int64_t count, const float* const* rows, const float* weights, int64_t depth,
                           const float* addend, int64_t addend_stride, float* sums) {
  constexpr int64_t stride = sums_of(CELL) * LANES;
  if constexpr (CELL == GRU) {
    // r and z accumulate both products; n keeps them separate, h W_hn in the fourth sum.
    constexpr int last = FROM_STATE ? 3 : 2;
    multiply<Recurrent, 2>(count, rows, weights, depth, addend, addend_stride, sums, stride);
    multiply<Recurrent, 1>(count, rows, weights + 2 * gate_size<Recurrent>(depth), depth, addend + last * LANES,
                           addend_stride, sums + last * LANES, stride);
    if constexpr (!FROM_STATE)
      for (int64_t r = 0; r < count; r++)
        store(sums + r * stride + 3 * LANES, load(addend + r * addend_stride + 3 * LANES));
  } else {
    constexpr int some = interleaved_gates(CELL);
    for (int first = 0; first < gates_of(CELL); first += some)
      multiply<Recurrent, some>(count, rows, weights + first * gate_size<Recurrent>(depth), depth, addend + first * LANES,
                                addend_stride, sums + first * LANES, stride);
  }
}

// sums += row * weights for one row and two blocks of units of an LSTM, one after the other in memory. The sums of one
// block are too few to hide the latency of an addition.
template <class ARITHMETIC>
inline void multiply_two_blocks(const float* row, const float* weights, int64_t depth, float* first, float* second) {
  constexpr int GATES = interleaved_gates(LSTM), GROUPS = gates_of(LSTM) / GATES;
  const int64_t group = GATES * gate_size<ARITHMETIC>(depth);
  typename ARITHMETIC::Sum accumulators[2 * GROUPS][GATES] = {};
  for (int64_t k = 0; k < depth; k++, weights += GATES * ARITHMETIC::VECTOR) {
    const auto x = ARITHMETIC::spread(row + k);
#pragma GCC unroll 8
    for (int s = 0; s < 2 * GROUPS; s++)
#pragma GCC unroll 4
      for (int g = 0; g < GATES; g++)
        accumulators[s][g] = ARITHMETIC::add_product(
            accumulators[s][g], x, ARITHMETIC::weights(weights + s * group + g * ARITHMETIC::VECTOR));
  }
#pragma GCC unroll 8
  for (int s = 0; s < 2 * GROUPS; s++)
#pragma GCC unroll 4
    for (int g = 0; g < GATES; g++) {
      float* sum = (s < GROUPS ? first : second) + (s % GROUPS * GATES + g) * LANES;
      store(sum, load(sum) + ARITHMETIC::total(accumulators[s][g], row + depth, weights + s * group, g, GATES));
    }
}

}  // namespace
