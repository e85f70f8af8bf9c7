// Work of one thread in a layer.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arithmetic.h"
#include "cell_products.h"
#include "cells.h"
#include "gates.h"
#include "layer.h"
#include "scratch.h"
#include "teams.h"
#include "vectors.h"

namespace {

// The work of one thread of a team in a layer: its slice of the hidden units, for all rows of the team.
template <int CELL>
class WorkerSlice {
 public:
  WorkerSlice(const Layer& layer, Team& team, int member, Scratch& scratch)
      : layer_(layer), team_(team), scratch_(scratch) {
    const int64_t blocks = (layer.hidden + LANES - 1) / LANES;
    first_ = blocks * member / team.threads;
    blocks_ = blocks * (member + 1) / team.threads - first_;
    sum_rows_ = std::max<int64_t>(INPUT_ROWS, static_cast<int64_t>(team.rows.size()));
    sums_ = scratch.sums.get();
    const int64_t unit = layer.weights.projection == nullptr ? LANES : PROJECTED * LANES;
    const int64_t groups = (layer.outputs + unit - 1) / unit;
    first_output_ = std::min(layer.outputs, groups * member / team.threads * unit);
    last_output_ = std::min(layer.outputs, groups * (member + 1) / team.threads * unit);
  }

  // The timesteps from `begin` to `end`, or to the last row's end.
  void run(int64_t begin, int64_t end, int64_t steps) {
    if (begin == 0) copy_cell_state();
    const int64_t last = team_.lengths.empty() ? 0 : std::min(end, team_.lengths.front());
    for (int64_t step = begin; step < last;) {
      const int64_t multiplied = multiply_inputs(step, last);
      for (int64_t first = 0; step < multiplied; step++) first += advance(step, first);
    }
    finish(end, steps);
  }

 private:
  static constexpr int64_t STRIDE = sums_of(CELL) * LANES;
  static constexpr int64_t LINE = 64 / sizeof(float);  // the floats of a cache line

  int64_t unit(int64_t block) const { return (first_ + block) * LANES; }
  int64_t units(int64_t block) const { return std::min<int64_t>(LANES, layer_.hidden - unit(block)); }
  float* sums(int64_t block, int64_t row) const { return sums_ + (block * sum_rows_ + row) * STRIDE; }
  int64_t last_unit() const { return std::min(layer_.hidden, (first_ + blocks_) * LANES); }

  // The timestep of the row at `slot` in a step: in the reverse direction a row is read from its own end.
  int64_t time(int64_t slot, int64_t step) const {
    return layer_.reverse ? team_.lengths[slot] - 1 - step : step;
  }
  const float* x(int64_t slot, int64_t step) const {
    const int64_t at = team_.rows[slot] * layer_.x_row + time(slot, step) * layer_.x_step;
    return layer_.ids == nullptr ? layer_.x + at : layer_.x + layer_.ids[at] * layer_.table_width;
  }
  float* y(int64_t slot, int64_t step) const {
    return layer_.y + team_.rows[slot] * layer_.y_row + time(slot, step) * layer_.y_step;
  }

  void copy_cell_state() const {
    if (CELL != LSTM) return;
    for (const int64_t row : team_.rows)
      copy_units(layer_.c_n + row * layer_.hidden, layer_.c_0 == nullptr ? nullptr : layer_.c_0 + row * layer_.hidden,
                 unit(0), last_unit());
  }

  // x W_ih and the biases for as many timesteps as fit; returns the step after them.
  int64_t multiply_inputs(int64_t step, int64_t end) const {
    int64_t count = 0;
    for (; step < end; step++) {
      const int64_t active = team_.active(step);
      if (count > 0 && count + active > sum_rows_) break;
      for (int64_t slot = 0; slot < active; slot++) scratch_.rows[count++] = x(slot, step);
    }
    if (layer_.multiplied) return copy_sums(count), step;
    const int64_t depth = Recurrent::depth(layer_.inputs), size = block_size(CELL, depth);
    const float* const* rows = scratch_.converted_rows(count, layer_.inputs);
    for (int64_t block = 0; block < blocks_; block++)
      multiply_block<CELL, false>(count, rows, layer_.weights.from_input + (first_ + block) * size, depth,
                                  layer_.weights.bias + (first_ + block) * STRIDE, 0, sums(block, 0));
    return step;
  }

  // The same from rows of a table that were multiplied before.
  void copy_sums(int64_t count) const {
    for (int64_t row = 0; row < count; row++)
      for (int64_t block = 0; block < blocks_; block++)
        std::memcpy(sums(block, row), scratch_.rows[row] + (first_ + block) * STRIDE, STRIDE * sizeof(float));
  }

  // One timestep, whose sums start at row `first`; returns its number of active rows. Every other step goes through the
  // blocks backwards: if the weights do not fit into the L2 cache, those that were read last are still there.
  int64_t advance(int64_t step, int64_t first) const {
    const int64_t active = team_.active(step);
    const float** before = scratch_.rows.data();
    for (int64_t slot = 0; slot < active; slot++) before[slot] = step == 0 ? initial(slot) : y(slot, step - 1);
    const bool has_state = step > 0 || layer_.h_0 != nullptr;
    if (has_state) prefetch(before, active);
    const int64_t depth = Recurrent::depth(layer_.outputs), size = block_size(CELL, depth);
    const float* const* rows = has_state ? scratch_.converted_rows(active, layer_.outputs) : before;
    const float* weights = layer_.weights.from_state + first_ * size;
    const bool backwards = step % 2 == 1;
    const int64_t pairs = CELL == LSTM && !Recurrent::IN_TILES && active == 1 && has_state ? blocks_ / 2 : 0;
    if constexpr (!Recurrent::IN_TILES)
      for (int64_t turn = 0; turn < pairs; turn++) {
        const int64_t block = 2 * (backwards ? pairs - 1 - turn : turn);
        multiply_two_blocks<Recurrent>(rows[0], weights + block * size, depth, sums(block, first),
                                       sums(block + 1, first));
      }
    for (int64_t turn = 0; turn < blocks_; turn++) {
      const int64_t block = backwards ? blocks_ - 1 - turn : turn;
      float* own = sums(block, first);
      if (has_state && block >= 2 * pairs)
        multiply_block<CELL, true>(active, rows, weights + block * size, depth, own, STRIDE, own);
      for (int64_t slot = 0; slot < active; slot++, own += STRIDE) {
        const Vector h =
            CELL == GRU && has_state ? load_partial(before[slot] + unit(block), units(block)) : Vector{};
        float* c = layer_.c_n + team_.rows[slot] * layer_.hidden + unit(block);
        float* to = layer_.m == nullptr ? y(slot, step) : m(slot);
        store_partial(to + unit(block), apply_cell<CELL>(own, h, c, units(block)), units(block));
      }
    }
    team_.barrier.wait();
    if (CELL == LSTM && layer_.m != nullptr) project(step, active);
    return active;
  }

  // The states before a step, of which other cores of the team have written parts: all lines are asked for at once.
  void prefetch(const float* const* before, int64_t active) const {
    if (team_.threads == 1) return;
    for (int64_t slot = 0; slot < active; slot++)
      for (int64_t unit = 0; unit < layer_.outputs; unit += LINE) __builtin_prefetch(before[slot] + unit);
  }

  float* m(int64_t slot) const { return layer_.m + team_.rows[slot] * layer_.hidden; }

  // The states h of a timestep from m, which the whole team has computed.
  void project(int64_t step, int64_t active) const {
    for (int64_t slot = 0; slot < active; slot++) scratch_.rows[slot] = m(slot);
    const float* const* rows = scratch_.converted_rows(active, layer_.hidden);
    for (int64_t first = first_output_; first < last_output_; first += PROJECTED * LANES) {
      switch (std::min<int64_t>(PROJECTED, (last_output_ - first + LANES - 1) / LANES)) {
        case 1: project_group<1>(step, active, rows, first); break;
        case 2: project_group<std::min(2, PROJECTED)>(step, active, rows, first); break;
        case 3: project_group<std::min(3, PROJECTED)>(step, active, rows, first); break;
        default: project_group<PROJECTED>(step, active, rows, first);
      }
    }
    team_.barrier.wait();
  }

  template <int VECTORS>
  void project_group(int64_t step, int64_t active, const float* const* rows, int64_t first) const {
    static constexpr Vector zeros[VECTORS] = {};
    const int64_t depth = Recurrent::depth(layer_.hidden), size = VECTORS * LANES;
    const float* weights = layer_.weights.projection + first / LANES * gate_size<Recurrent>(depth);
    float* sums = sums_ + blocks_ * sum_rows_ * STRIDE;
    multiply<Recurrent, VECTORS>(active, rows, weights, depth, reinterpret_cast<const float*>(zeros), 0, sums, size);
    for (int64_t slot = 0; slot < active; slot++)
      std::memcpy(y(slot, step) + first, sums + slot * size, std::min(size, last_output_ - first) * sizeof(float));
  }

  // For rows that end up to here: the states after each one's own last timestep, and zeros after it in outputs that
  // callers read.
  void finish(int64_t end, int64_t steps) const {
    for (size_t slot = 0; slot < team_.rows.size(); slot++) {
      const int64_t row = team_.rows[slot], length = team_.lengths[slot];
      if (length > end) continue;
      const float* last = length == 0 ? initial(slot) : y(slot, length - 1);
      copy_units(layer_.h_n + row * layer_.outputs, last, first_output_, last_output_);
      for (int64_t t = length; t < steps; t++)
        copy_units(layer_.y + row * layer_.y_row + t * layer_.y_step, nullptr, first_output_, last_output_);
    }
  }

  // Null: zeros.
  const float* initial(int64_t slot) const {
    return layer_.h_0 == nullptr ? nullptr : layer_.h_0 + team_.rows[slot] * layer_.outputs;
  }

  // From null: zeros.
  static void copy_units(float* to, const float* from, int64_t first, int64_t last) {
    if (from == nullptr)
      std::memset(to + first, 0, (last - first) * sizeof(float));
    else
      std::memcpy(to + first, from + first, (last - first) * sizeof(float));
  }

  const Layer& layer_;
  Team& team_;
  Scratch& scratch_;
  int64_t first_, blocks_, sum_rows_;
  int64_t first_output_, last_output_;
  float* sums_;
};

void run_slice(const Layer& layer, const Phase& phase, Team& team, int member, Scratch& scratch,
               int64_t steps) noexcept {
  const auto run = [&](auto slice) { slice.run(phase.begin, phase.end, steps); };
  switch (layer.cell) {
    case LSTM: return run(WorkerSlice<LSTM>(layer, team, member, scratch));
    case GRU: return run(WorkerSlice<GRU>(layer, team, member, scratch));
    case RNN_TANH: return run(WorkerSlice<RNN_TANH>(layer, team, member, scratch));
    default: return run(WorkerSlice<RNN_RELU>(layer, team, member, scratch));
  }
}

}  // namespace
