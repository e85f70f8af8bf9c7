// Cells, and the numbers of their gates that fit into the registers together.

#pragma once

#include <algorithm>

#include "vectors.h"

namespace {

constexpr int LSTM = 0, GRU = 1, RNN_TANH = 2, RNN_RELU = 3;

// Gates of a unit, and its separate sums: the new state of a GRU needs x W and h W separately.
constexpr int gates_of(int cell) { return cell == LSTM ? 4 : cell == GRU ? 3 : 1; }
constexpr int sums_of(int cell) { return cell == LSTM || cell == GRU ? 4 : 1; }
// The gates whose weights are interleaved and multiplied together: as many as the registers allow.
constexpr int interleaved_gates(int cell) { return cell == LSTM && REGISTERS == 16 ? 2 : gates_of(cell); }
// The rows of a tile: its accumulators, the weights of the gates and one number of a row fit into the registers.
constexpr int tile_rows(int gates) { return std::min(8, (REGISTERS - gates - 1) / gates); }

}  // namespace
