// Memory in which a thread computes.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "arithmetic.h"
#include "memory.h"

namespace {

// Rows of x, over some timesteps, that are multiplied at once.
constexpr int64_t INPUT_ROWS = 96;

// Memory of one thread, reused from call to call. Threads never allocate: an exception would end the process, and a
// thread that is missing would leave the others waiting.
struct Scratch {
  std::vector<const float*> rows, operands;
  Floats converted{nullptr, &std::free}, sums{nullptr, &std::free};
  size_t converted_size = 0, sums_size = 0;

  // The first rows as they are multiplied. Each thread converts all of them: they are few beside the weights.
  const float* const* converted_rows(int64_t count, int64_t width) {
    if (!Recurrent::CONVERTS) return rows.data();
    Recurrent::begin(count);
    const int64_t size = Recurrent::operand(Recurrent::depth(width));
    for (int64_t row = 0; row < count; row++) {
      Recurrent::convert(converted.get() + row * size, rows[row], width);
      operands[row] = converted.get() + row * size;
    }
    return operands.data();
  }

  // Called before the threads start: memory for so many rows, their operands of so many floats, and sums.
  void reserve(size_t row_count, size_t operand_size, size_t sum_count) {
    if (row_count > rows.size()) rows.resize(row_count);
    if (Recurrent::CONVERTS && row_count > operands.size()) operands.resize(row_count);
    if (Recurrent::CONVERTS) grow(converted, converted_size, row_count * operand_size);
    grow(sums, sums_size, sum_count);
  }

 private:
  static void grow(Floats& memory, size_t& size, size_t count) {
    if (count <= size) return;
    size = 0;
    memory = allocate(count);
    size = count;
  }
};

}  // namespace
