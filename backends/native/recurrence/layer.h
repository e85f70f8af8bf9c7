// A layer in one direction.

#pragma once

#include <cstdint>

#include "cells.h"

namespace {

// Weights in the order in which they are read (recurrence.cpp): for each block of units W_ih, W_hh and the biases, one
// for each sum. An LSTM with a projection has W_hr, in groups of outputs; else it is null.
struct Weights {
  const float* from_input;
  const float* from_state;
  const float* bias;
  const float* projection;
};

// Vectors of the outputs of a projection that are multiplied together; the last group has the rest.
constexpr int PROJECTED = interleaved_gates(LSTM);

// x[b, t] is at x + b * x_row + t * x_step, and so on; strides count numbers. With ids, x is a table whose rows have
// `table_width` numbers, and x[b, t] is that of ids[b, t]; if it is `multiplied`, its rows are sums already. Without
// h_0, or c_0, these states are zero. y has every state, even if no caller reads it. h has `outputs` units: as many as
// `hidden`, or those of the projection of m[b], which has `hidden` units.
struct Layer {
  int cell;
  int64_t inputs, hidden, outputs;
  bool reverse;
  Weights weights;
  const int64_t* ids;
  int64_t table_width;
  bool multiplied;
  const float *x, *h_0, *c_0;
  int64_t x_row, x_step;
  float *y, *h_n, *c_n;
  int64_t y_row, y_step;
  float* m;
};

}  // namespace
