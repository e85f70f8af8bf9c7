// Recurrent layers over ragged batches: each row of a batch stops at its own last timestep, so padding costs nothing.
//
// A layer in one direction is two matrix products for each timestep, x W_ih and h W_hh, and the gates. The first one
// does not depend on the previous timestep, so it is computed for a block of timesteps at once. The second one takes
// most of the time, and with few rows most of that is reading W_hh. So the hidden units are divided among the threads
// of a team, each of which keeps its slice of W_hh in its core's cache, and the team synchronises after every timestep.
// Enough rows are divided among several teams, which do not synchronise until so many rows have ended that fewer teams
// are faster.
//
// Weights are stored in the order in which they are read: for a block of LANES hidden units and each input k, the LANES
// weights of one gate after those of the other. A tile of rows times such a block stays in registers over all k.
//
// The file is compiled once for each instruction set, with the vector extensions of GCC or Clang. With HALF_PRECISION
// the weights of the recurrences take half the bytes, with INT8_PRECISION a quarter; states stay float32.
//
// One translation unit: the compiler inlines the products into the layers. So the headers are for this file alone.

#include <algorithm>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "layer_stack.h"
#include "linear_layer.h"
#include "thread_pool.h"

extern "C" {

int recurrence_lanes() { return LANES; }
// The weights of recurrences: 0: float32, 1: float16, 2: pairs of bfloat16, 3: the same up to whole tiles, 4: int8, 5: four
// of int8 together.
int recurrence_weights() { return Recurrent::KIND; }
int recurrence_gates_at_once(int cell) { return cell == GRU ? 2 : interleaved_gates(cell); }

// No exception leaves these functions: callers in C could not catch it.

// Null if the system cannot start the threads, or is out of memory.
void* recurrence_open_pool(int threads) {
  try {
    return new ThreadPool(threads);
  } catch (const std::exception&) {
    return nullptr;
  }
}
// A fork can neither end nor await the threads of its parent, so its copy of a pool is not deleted.
void recurrence_close_pool(void* pool) {
  if (!static_cast<ThreadPool*>(pool)->is_forked()) delete static_cast<ThreadPool*>(pool);
}

// A call with this pool follows soon.
void recurrence_wake_pool(void* pool) { static_cast<ThreadPool*>(pool)->wake(); }

// weights has three pointers for each layer and direction, as in Weights. Null: out of memory. `projected`: the units to
// which the states h of an LSTM are projected, for which weights has four pointers; 0: they are not.
void* recurrence_open_stack(void* pool, int cell, int64_t layers, int64_t directions, int64_t inputs, int64_t hidden,
                            int64_t projected, const float* const* weights) {
  const bool projects = projected > 0;
  try {
    std::vector<Weights> own;
    for (int64_t slot = 0; slot < layers * directions; slot++, weights += projects ? 4 : 3)
      own.push_back({weights[0], weights[1], weights[2], projects ? weights[3] : nullptr});
    return new LayerStack{static_cast<ThreadPool*>(pool), cell, layers, directions, inputs, hidden,
                          projects ? projected : hidden, std::move(own)};
  } catch (const std::exception&) {
    return nullptr;
  }
}
// Multiplies the rows of a table ahead of all calls, which then give the same table. 0: success, 1: out of memory.
int recurrence_multiply_table(void* stack, const float* table, int64_t rows) {
  try {
    static_cast<LayerStack*>(stack)->multiply_table(table, rows);
  } catch (const std::exception&) {
    return 1;
  }
  return 0;
}
void recurrence_close_stack(void* stack) { delete static_cast<LayerStack*>(stack); }

// The outputs of a block, and y = x W + b for whole rows (lengths null) or up to their lengths.
int recurrence_product_block() { return LinearLayer::BLOCK; }
// 0: success, 1: out of memory.
int recurrence_product(void* pool, int64_t inputs, int64_t outputs, const float* weights, const float* bias,
                       int64_t rows, int64_t steps, const int64_t* lengths, const float* x, int64_t x_row,
                       int64_t x_step, float* y, int64_t y_row, int64_t y_step) {
  const LinearLayer product{static_cast<ThreadPool*>(pool), inputs, outputs, weights, bias};
  try {
    product.run(rows, steps, lengths, x, x_row, x_step, y, y_row, y_step);
  } catch (const std::exception&) {
    return 1;
  }
  return 0;
}

// With ids, x is a table of so many rows, and x_row and x_step are the strides of ids. Null: of ids, no table; of h_0 and
// c_0, zeros; of y, not asked for. 0: success, 1: out of memory, 2: a length is not within 0 to `steps`, 3: an id is not
// in the table.
int recurrence_run_batch(void* stack, int64_t rows, int64_t steps, const int64_t* lengths, const int64_t* ids,
                   int64_t table_rows, const float* x, int64_t x_row, int64_t x_step, const float* h_0,
                   const float* c_0, float* y, int64_t y_row, int64_t y_step, float* h_n, float* c_n) {
  if (std::any_of(lengths, lengths + rows, [&](int64_t length) { return length < 0 || length > steps; })) return 2;
  const Batch batch{rows, steps, lengths, ids, x, x_row, x_step, h_0, c_0, y, y_row, y_step, h_n, c_n};
  if (ids != nullptr && !are_in_table(batch, table_rows)) return 3;
  try {
    static_cast<LayerStack*>(stack)->run(batch);
  } catch (const std::exception&) {
    return 1;
  }
  return 0;
}
}
