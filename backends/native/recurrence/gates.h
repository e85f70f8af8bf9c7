// Gates of a block of LANES hidden units: from the sums of the products to the new state.

#pragma once

#include <cstdint>

#include "activations.h"
#include "cells.h"
#include "vectors.h"

namespace {

// Sums and cell states beyond which the gates are computed one by one: products of exponentials would overflow, and a gate
// that is nearly closed still passes something of a large state on. Only given states are so large.
constexpr float LARGE_SUM = 32.0f, LARGE_STATE = 1e6f;

struct LstmState {
  Vector c, h;
};

// A gate is closed where it is in torch, so that an argmax over states is the same.
inline Vector gate(Vector sum) { return sum < -88.7228f ? Vector{} : sigmoid(sum); }

[[gnu::noinline, gnu::cold]] LstmState lstm_gates_one_by_one(Vector i, Vector f, Vector g, Vector o, Vector c) {
  c = gate(f) * c + gate(i) * tanh(g);
  return {c, gate(o) * tanh(c)};
}

// Returns the new cell state, and the new state in `h`. Sums are i, f, g, o. Quotients share one denominator, because a
// division takes as long as an exponential.
inline Vector lstm_gates(Vector i, Vector f, Vector g, Vector o, Vector c, Vector& h) {
  if (__builtin_expect(any_beyond(LARGE_SUM, i, f, o) || any_beyond(LARGE_STATE, c), 0)) {
    const LstmState state = lstm_gates_one_by_one(i, f, g, o, c);
    h = state.h;
    return state.c;
  }
  const Vector not_i = 1.0f + exp(-i);
  const Vector not_f = 1.0f + exp(-f);
  const Vector e_g = expm1_of_twice(g);
  const Vector both = not_i * (e_g + 2.0f);
  c = (c * both + e_g * not_f) / (both * not_f);
  const Vector e_c = expm1_of_twice(c);
  h = e_c / ((1.0f + exp(-o)) * (e_c + 2.0f));
  return c;
}

// Gates of one block of units for one row: from the sums and the previous state to the new state.
template <int CELL>
inline Vector apply_cell(const float* sums, Vector before, float* c, int64_t units) {
  if constexpr (CELL == LSTM) {
    Vector h;
    const Vector cell = lstm_gates(load(sums), load(sums + LANES), load(sums + 2 * LANES), load(sums + 3 * LANES),
                                   load_partial(c, units), h);
    store_partial(c, cell, units);
    return h;
  } else if constexpr (CELL == GRU) {
    const Vector r = sigmoid(load(sums)), z = sigmoid(load(sums + LANES));
    const Vector n = tanh(load(sums + 2 * LANES) + r * load(sums + 3 * LANES));
    return n + z * (before - n);
  } else if constexpr (CELL == RNN_TANH) {
    return tanh(load(sums));
  } else {
    const Vector sum = load(sums);
    return sum < 0.0f ? Vector{} : sum;  // NaN stays
  }
}

}  // namespace
