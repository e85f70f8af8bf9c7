// Linear layer over the real timesteps of a batch.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

#include "arithmetic.h"
#include "cells.h"
#include "matrix_product.h"
#include "scratch.h"
#include "thread_pool.h"
#include "vectors.h"

namespace {

// y = x W + b at every timestep before a row's own end. After it x is zero, so y is b, which is copied.
struct LinearLayer {
  static constexpr int VECTORS = interleaved_gates(LSTM);  // vectors of outputs that are multiplied together
  static constexpr int64_t BLOCK = VECTORS * LANES;         // outputs
  static constexpr int64_t TASK_BLOCKS = 8;
  static constexpr int64_t TASK_ROWS = INPUT_ROWS;

  ThreadPool* pool;
  int64_t inputs, outputs;
  const float *weights, *bias;

  struct Rows {
    std::vector<const float*> x;
    std::vector<float*> y;
  };

  void run(int64_t rows, int64_t steps, const int64_t* lengths, const float* x, int64_t x_row, int64_t x_step, float* y,
           int64_t y_row, int64_t y_step) const {
    const std::lock_guard<std::mutex> lock(pool->in_use);
    for (Scratch& scratch : pool->scratch) scratch.reserve(0, 0, TASK_ROWS * BLOCK);
    Rows real;
    for (int64_t row = 0; row < rows; row++)
      for (int64_t t = 0; t < steps; t++) {
        float* out = y + row * y_row + t * y_step;
        if (lengths != nullptr && t >= lengths[row]) {
          std::memcpy(out, bias, outputs * sizeof(float));
        } else {
          real.x.push_back(x + row * x_row + t * x_step);
          real.y.push_back(out);
        }
      }
    const int64_t count = static_cast<int64_t>(real.x.size()), blocks = (outputs + BLOCK - 1) / BLOCK;
    const int64_t across = (blocks + TASK_BLOCKS - 1) / TASK_BLOCKS;
    const int64_t tasks = (count + TASK_ROWS - 1) / TASK_ROWS * across;
    std::atomic<int64_t> next{0};
    pool->run(static_cast<int>(std::clamp<int64_t>(tasks, 1, pool->threads())), [&](int index) {
      for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;)
        compute(real, task / across * TASK_ROWS, task % across * TASK_BLOCKS, pool->scratch[index]);
    });
  }

 private:
  void compute(const Rows& rows, int64_t first, int64_t block, Scratch& scratch) const noexcept {
    const int64_t count = std::min<int64_t>(TASK_ROWS, static_cast<int64_t>(rows.x.size()) - first);
    float* sums = scratch.sums.get();
    for (const int64_t end = block + TASK_BLOCKS; block < end && block * BLOCK < outputs; block++) {
      multiply<Single, VECTORS>(count, rows.x.data() + first, weights + block * BLOCK * inputs, inputs,
                                bias + block * BLOCK, 0, sums, BLOCK);
      const int64_t own = std::min(BLOCK, outputs - block * BLOCK);
      for (int64_t row = 0; row < count; row++)
        std::memcpy(rows.y[first + row] + block * BLOCK, sums + row * BLOCK, own * sizeof(float));
    }
  }
};

}  // namespace
