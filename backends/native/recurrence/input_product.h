// Product x W_ih of rows that are multiplied ahead of all calls.

#pragma once

#include <cstdint>
#include <cstring>

#include "arithmetic.h"
#include "cell_products.h"
#include "cells.h"
#include "layer.h"
#include "scratch.h"
#include "vectors.h"

namespace {

// The sums over the inputs, biases among them, of the scratch memory's first rows: [count, blocks of units, sums].
template <int CELL>
void multiply_rows(int64_t count, int64_t inputs, int64_t blocks, const Weights& weights, Scratch& scratch, float* to) {
  constexpr int64_t stride = sums_of(CELL) * LANES;
  const int64_t depth = Recurrent::depth(inputs);
  const float* const* rows = scratch.converted_rows(count, inputs);
  float* sums = scratch.sums.get();
  for (int64_t block = 0; block < blocks; block++) {
    multiply_block<CELL, false>(count, rows, weights.from_input + block * block_size(CELL, depth), depth,
                                weights.bias + block * stride, 0, sums);
    for (int64_t row = 0; row < count; row++)
      std::memcpy(to + (row * blocks + block) * stride, sums + row * stride, stride * sizeof(float));
  }
}

void multiply_rows(int cell, int64_t count, int64_t inputs, int64_t blocks, const Weights& weights, Scratch& scratch,
                   float* to) noexcept {
  switch (cell) {
    case LSTM: return multiply_rows<LSTM>(count, inputs, blocks, weights, scratch, to);
    case GRU: return multiply_rows<GRU>(count, inputs, blocks, weights, scratch, to);
    default: return multiply_rows<RNN_TANH>(count, inputs, blocks, weights, scratch, to);  // both have one sum
  }
}

}  // namespace
