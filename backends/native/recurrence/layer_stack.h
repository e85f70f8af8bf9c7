// Layers of a recurrent module over a batch.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "arithmetic.h"
#include "cells.h"
#include "input_product.h"
#include "layer.h"
#include "memory.h"
#include "scratch.h"
#include "spin_barrier.h"
#include "teams.h"
#include "thread_pool.h"
#include "vectors.h"
#include "worker_slice.h"

namespace {

// A batch and its outputs. x[b, t] is at x + b * x_row + t * x_step; y likewise, or null if it has no reader. c is
// [layers * directions, rows, hidden], and h likewise with `outputs`. With ids, x is as in Layer.
struct Batch {
  int64_t rows, steps;
  const int64_t* lengths;
  const int64_t* ids;
  const float* x;
  int64_t x_row, x_step;
  const float *h_0, *c_0;
  float* y;
  int64_t y_row, y_step;
  float *h_n, *c_n;
};

// Whether every id of a real timestep is that of a row of the table.
bool are_in_table(const Batch& batch, int64_t table_rows) {
  for (int64_t row = 0; row < batch.rows; row++)
    for (int64_t t = 0; t < batch.lengths[row]; t++) {
      const int64_t id = batch.ids[row * batch.x_row + t * batch.x_step];
      if (id < 0 || id >= table_rows) return false;
    }
  return true;
}

// A stack of layers, whose states have `outputs` units. The caller owns the memory of the weights.
struct LayerStack {
  ThreadPool* pool;
  int cell;
  int64_t layers, directions, inputs, hidden, outputs;
  std::vector<Weights> weights;
  // For each direction, the sums of the first layer over the inputs, for each row of a table. Empty: no table was given.
  std::vector<Floats> table_sums = {};

  // The sums of a unit and their padding, over all units.
  int64_t sums_width() const { return blocks() * sums_of(cell) * LANES; }
  int64_t blocks() const { return (hidden + LANES - 1) / LANES; }

  // Multiplies each row of a table by W_ih of the first layer, so that no call multiplies it again.
  void multiply_table(const float* table, int64_t rows) {
    const std::lock_guard<std::mutex> lock(pool->in_use);
    std::vector<Floats> found;
    for (int64_t direction = 0; direction < directions; direction++) found.push_back(allocate_huge(rows * sums_width()));
    for (Scratch& scratch : pool->scratch)
      scratch.reserve(INPUT_ROWS, Recurrent::operand(Recurrent::depth(inputs)), sums_of(cell) * LANES * INPUT_ROWS);
    const int64_t parts = (rows + INPUT_ROWS - 1) / INPUT_ROWS;
    std::atomic<int64_t> next{0};
    pool->run(pool->threads(), [&](int index) {
      Scratch& scratch = pool->scratch[index];
      for (int64_t part; (part = next.fetch_add(1, std::memory_order_relaxed)) < parts;) {
        const int64_t first = part * INPUT_ROWS, count = std::min(INPUT_ROWS, rows - first);
        for (int64_t row = 0; row < count; row++) scratch.rows[row] = table + (first + row) * inputs;
        for (int64_t direction = 0; direction < directions; direction++)
          multiply_rows(cell, count, inputs, blocks(), weights[direction], scratch,
                        found[direction].get() + first * sums_width());
      }
      Recurrent::end();
    });
    table_sums = std::move(found);
  }

  void run(const Batch& batch) const {
    const std::lock_guard<std::mutex> lock(pool->in_use);
    const int64_t inner = batch.y == nullptr ? layers : layers - 1;  // layers whose outputs no caller reads
    for (int64_t side = 0; side < std::min<int64_t>(inner, 2); side++) {
      std::vector<float>& interlayer = pool->interlayer[side];
      interlayer.resize(std::max<size_t>(interlayer.size(), batch.rows * batch.steps * directions * outputs));
    }
    const bool projects = weights.front().projection != nullptr;
    if (projects) pool->unprojected.resize(std::max<size_t>(pool->unprojected.size(), batch.rows * hidden));
    std::vector<Layer> calls;
    for (int64_t slot = 0; slot < layers * directions; slot++) calls.push_back(layer(batch, slot));
    const int threads = threads_for(batch.rows);
    std::vector<Phase> phases = phases_of(threads, batch.rows, batch.lengths);
    SpinBarrier between;
    between.set_threads(phases.size() > 1 ? threads : 1);
    const int fewest = phases.front().teams.front().threads;
    const int64_t most_blocks = (blocks() + fewest - 1) / fewest;
    const size_t most_rows = std::max(INPUT_ROWS, batch.rows);
    const size_t operand_size =
        Recurrent::operand(Recurrent::depth(std::max({inputs, hidden, directions * outputs})));
    const int64_t row_vectors = most_blocks * sums_of(cell) + (projects ? PROJECTED : 0);
    for (Scratch& scratch : pool->scratch) scratch.reserve(most_rows, operand_size, row_vectors * LANES * most_rows);
    pool->run(threads, [&](int index) {
      for (int64_t slot = 0; slot < layers * directions; slot++) {
        const bool seen = slot >= inner * directions;
        for (Phase& phase : phases) {
          const int each = phase.teams.front().threads;
          run_slice(calls[slot], phase, phase.teams[index / each], index % each, pool->scratch[index],
                    seen ? batch.steps : 0);
          between.wait();  // other teams read what this one wrote
        }
      }
      Recurrent::end();
    });
  }

 private:
  // With fewer products of a timestep for each thread, the threads would wait for each other longer than they compute.
  static constexpr int64_t LEAST_PRODUCTS = 8192;

  int threads_for(int64_t rows) const {
    const int64_t products = rows * sums_of(cell) * hidden * (inputs + outputs);
    return static_cast<int>(std::clamp<int64_t>(products / LEAST_PRODUCTS, 1, pool->threads()));
  }

  // The first layer reads x and the last one writes y. Each layer between reads the outputs of the one before it.
  Layer layer(const Batch& batch, int64_t slot) const {
    const int64_t index = slot / directions, direction = slot % directions;
    const int64_t width = directions * outputs, state = slot * batch.rows * outputs, cells = slot * batch.rows * hidden;
    Layer one{};
    one.cell = cell;
    one.hidden = hidden, one.outputs = outputs;
    one.reverse = direction == 1;
    one.weights = weights[slot];
    if (one.weights.projection != nullptr) one.m = pool->unprojected.data();
    if (index == 0) {
      one.inputs = inputs, one.ids = batch.ids, one.table_width = inputs;
      one.x = batch.x, one.x_row = batch.x_row, one.x_step = batch.x_step;
    } else {
      one.inputs = width, one.x = pool->interlayer[(index - 1) % 2].data();
      one.x_row = batch.steps * width, one.x_step = width;
    }
    if (one.ids != nullptr && !table_sums.empty()) {
      one.x = table_sums[direction].get(), one.table_width = sums_width();
      one.multiplied = true;
    }
    if (index == layers - 1 && batch.y != nullptr) {
      one.y = batch.y, one.y_row = batch.y_row, one.y_step = batch.y_step;
    } else {
      one.y = pool->interlayer[index % 2].data(), one.y_row = batch.steps * width, one.y_step = width;
    }
    one.y += direction * outputs;
    one.h_0 = batch.h_0 == nullptr ? nullptr : batch.h_0 + state;
    one.h_n = batch.h_n + state;
    if (cell == LSTM) {
      one.c_0 = batch.c_0 == nullptr ? nullptr : batch.c_0 + cells;
      one.c_n = batch.c_n + cells;
    }
    return one;
  }
};

}  // namespace
