// Program of test_sanitizers.py: every kind of layer, of batch and number of threads, under a sanitizer.
//
// It is compiled together with the recurrent library. All memory has exactly the documented size, so that one element
// too many is found. A batch must have the same outputs with any number of threads, and when callers share a pool.
//
// `sanitized race`, `overrun` and `overflow` do what the sanitizer must report.

#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "recurrence.h"

namespace {

// Floats at an address as torch's are, with nothing behind the last one.
struct Floats {
  explicit Floats(int64_t count, std::mt19937* random = nullptr) : size(count) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, sizeof(float) * static_cast<std::size_t>(count)) != 0) std::abort();
    data.reset(static_cast<float*>(memory));
    std::uniform_real_distribution<float> values(-0.2F, 0.2F);  // no state overflows
    for (int64_t index = 0; index < count; index++) data.get()[index] = random == nullptr ? 0.0F : values(*random);
  }
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  int64_t size;
  std::unique_ptr<float, Free> data;
};

struct Shape {
  int cell;  // 0: LSTM, 1: GRU, 2 and 3: RNN
  int64_t inputs, hidden, layers, directions;
  int64_t projected = 0;  // units of an LSTM's projection; 0: none

  int64_t outputs() const { return projected == 0 ? hidden : projected; }
};

int64_t round_up(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// A number of -0.2 to 0.2 as float16 or bfloat16, with fewer digits. float16 has zero for numbers below 2^-14.
uint16_t half_of(float value, bool bfloat16) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (bfloat16) return static_cast<uint16_t>(bits >> 16);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff, least = 113U << 23;
  return static_cast<uint16_t>(magnitude < least ? sign : sign | ((magnitude - least + (1U << 23)) >> 13));
}

// Weights of 8 bits, scales and sums of so many units. Where each of them is does not matter here: all are filled with
// numbers of 0.0001 to 0.0002, which are scales, and whose bytes are weights of any size. States stay finite with them.
Floats packed_int8(int64_t units, int64_t inputs, std::mt19937& random) {
  Floats packed(units * inputs / 4 + 2 * units);
  std::uniform_real_distribution<float> values(0.0001F, 0.0002F);
  for (int64_t index = 0; index < packed.size; index++) packed.data.get()[index] = values(random);
  return packed;
}

// The weights of so many units and inputs, as the library has them: 0: float32, 1: float16, 2: pairs of bfloat16, 3: the
// same up to whole tiles of 32 inputs, 4: int8, 5: four of int8 together.
Floats packed_weights(int64_t units, int64_t inputs, std::mt19937& random) {
  const int kind = recurrence_weights();
  if (kind == 0) return Floats(units * inputs, &random);
  if (kind > 3) return packed_int8(units, kind == 4 ? inputs : round_up(inputs, 4), random);
  Floats packed(units * round_up(inputs, kind == 1 ? 1 : kind == 2 ? 2 : 32) / 2);
  auto* bytes = reinterpret_cast<char*>(packed.data.get());
  std::uniform_real_distribution<float> values(-0.2F, 0.2F);
  for (int64_t index = 0; index < 2 * packed.size; index++) {
    const uint16_t half = half_of(values(random), kind != 1);
    std::memcpy(bytes + index * sizeof half, &half, sizeof half);
  }
  return packed;
}

std::vector<Floats> weights_of(const Shape& shape, std::mt19937& random) {
  const int64_t gates = shape.cell == 0 ? 4 : shape.cell == 1 ? 3 : 1, sums = shape.cell < 2 ? 4 : 1;
  const int64_t units = round_up(shape.hidden, recurrence_lanes());
  std::vector<Floats> weights;
  for (int64_t layer = 0; layer < shape.layers; layer++) {
    const int64_t inputs = layer == 0 ? shape.inputs : shape.directions * shape.outputs();
    for (int64_t direction = 0; direction < shape.directions; direction++) {
      weights.push_back(packed_weights(units * gates, inputs, random));
      weights.push_back(packed_weights(units * gates, shape.outputs(), random));
      weights.emplace_back(units * sums, &random);
      if (shape.projected != 0)
        weights.push_back(packed_weights(round_up(shape.projected, recurrence_lanes()), shape.hidden, random));
    }
  }
  return weights;
}

struct Outputs {
  std::vector<float> y, h_n, c_n;
  bool operator==(const Outputs& other) const { return y == other.y && h_n == other.h_n && c_n == other.c_n; }
};

std::vector<float> values(const Floats& floats) { return {floats.data.get(), floats.data.get() + floats.size}; }

struct Batch {
  std::vector<int64_t> lengths;
  int64_t steps;
  bool time_major;
};

Outputs run(void* pool, void* stack, const Shape& shape, const Batch& batch, unsigned seed) {
  std::mt19937 random(seed);
  const auto rows = static_cast<int64_t>(batch.lengths.size());
  const int64_t states = shape.layers * shape.directions * rows, width = shape.directions * shape.outputs();
  const Floats x(rows * batch.steps * shape.inputs, &random), y(rows * batch.steps * width);
  const Floats h_0(states * shape.outputs(), &random), h_n(states * shape.outputs());
  const Floats c_0(states * shape.hidden, &random), c_n(states * shape.hidden);
  const int64_t y_row = batch.time_major ? width : batch.steps * width;
  const int64_t y_step = batch.time_major ? rows * width : width;
  const bool lstm = shape.cell == 0;
  recurrence_wake_pool(pool);
  const int status = recurrence_run_batch(stack, rows, batch.steps, batch.lengths.data(), nullptr, 0, x.data.get(),
                                    batch.steps * shape.inputs, shape.inputs, h_0.data.get(),
                                    lstm ? c_0.data.get() : nullptr, y.data.get(), y_row, y_step, h_n.data.get(),
                                    lstm ? c_n.data.get() : h_n.data.get());
  if (status != 0) std::abort();
  return {values(y), values(h_n), values(c_n)};
}

// Outputs of all batches with so many threads; every batch is computed by two callers at once.
std::vector<Outputs> outputs_of(const Shape& shape, const std::vector<Batch>& batches, int threads) {
  std::mt19937 random(1);
  const std::vector<Floats> weights = weights_of(shape, random);
  std::vector<const float*> addresses;
  for (const Floats& one : weights) addresses.push_back(one.data.get());
  void* pool = recurrence_open_pool(threads);
  void* stack = recurrence_open_stack(pool, shape.cell, shape.layers, shape.directions, shape.inputs, shape.hidden,
                                      shape.projected, addresses.data());
  if (pool == nullptr || stack == nullptr) std::abort();
  std::vector<Outputs> found(batches.size()), again(batches.size());
  const auto all = [&](std::vector<Outputs>& outputs) {
    for (std::size_t index = 0; index < batches.size(); index++)
      outputs[index] = run(pool, stack, shape, batches[index], static_cast<unsigned>(index));
  };
  std::thread other(all, std::ref(again));
  all(found);
  other.join();
  if (!(found == again)) {
    std::fprintf(stderr, "cell %d, hidden %ld: two callers at once get other outputs\n", shape.cell, shape.hidden);
    std::abort();
  }
  recurrence_close_stack(stack);
  recurrence_close_pool(pool);
  return found;
}

std::vector<float> product(int threads, int64_t inputs, int64_t outputs, const Batch& batch, bool ragged) {
  std::mt19937 random(2);
  const auto rows = static_cast<int64_t>(batch.lengths.size());
  const int64_t padded = round_up(outputs, recurrence_product_block());
  const Floats weights(padded * inputs, &random), bias(padded, &random), x(rows * batch.steps * inputs, &random);
  const Floats y(rows * batch.steps * outputs);
  void* pool = recurrence_open_pool(threads);
  const int status = recurrence_product(pool, inputs, outputs, weights.data.get(), bias.data.get(), rows, batch.steps,
                                        ragged ? batch.lengths.data() : nullptr, x.data.get(), batch.steps * inputs,
                                        inputs, y.data.get(), batch.steps * outputs, outputs);
  if (status != 0) std::abort();
  recurrence_close_pool(pool);
  return values(y);
}

bool same(const std::vector<float>& one, const std::vector<float>& other) {
  for (std::size_t index = 0; index < one.size(); index++) {
    if (!(std::fabs(one[index] - other[index]) <= 1e-4F)) return false;
  }
  return one.size() == other.size();
}

// Errors that a sanitizer must report, or it is not at work.
int plant(const std::string& error) {
  if (error == "race") {
    int count = 0;
    std::thread other([&] { count++; });
    count++;
    other.join();
    return count == 0;
  }
  const Floats floats(3);
  volatile int64_t beyond = error == "overrun" ? 3 : 0, large = INT64_MAX;
  return floats.data.get()[beyond] + static_cast<float>(large + (error == "overflow")) > 1e30F;
}

}  // namespace

int main(int count, char** arguments) {
#if defined(__x86_64__)
  // Linux grants tiles on request. The sanitizers do not see what tiles read and write.
  if (recurrence_weights() == 3 && syscall(SYS_arch_prctl, 0x1023, 18) != 0) {
    std::fprintf(stderr, "Linux refuses the tiles\n");
    return 2;
  }
#endif
  if (count > 1) return plant(arguments[1]);
  std::vector<int64_t> many;
  for (int64_t row = 0; row < 40; row++) many.push_back((row * 5) % 12);
  std::vector<Batch> batches = {{{3}, 3, false}, {{7, 0, 2}, 8, true}, {many, 11, false}};
  batches.push_back({{}, 4, false});
  batches.push_back({{0, 0}, 0, false});
  batches.push_back({std::vector<int64_t>(130, 2), 2, true});
  batches.push_back({{70, 1, 33}, 70, false});
  std::vector<Shape> shapes = {{0, 5, 17, 2, 2}, {1, 3, 9, 1, 2}, {2, 5, 8, 2, 1}, {3, 1, 1, 1, 1}, {0, 5, 19, 2, 2, 7}};
  for (int cell = 0; cell < 4; cell++) {
    for (const int64_t hidden : {1, 16, 33, 70}) shapes.push_back({cell, hidden % 7 + 1, hidden, 2, 1 + cell % 2});
  }
  for (const int64_t projected : {1, 16, 33, 69}) shapes.push_back({0, 3, 70, 2, 2, projected});
  int trials = 0;
  for (const Shape& shape : shapes) {
    const std::vector<Outputs> alone = outputs_of(shape, batches, 1);
    for (const int threads : {2, 3, 4}) {
      const std::vector<Outputs> found = outputs_of(shape, batches, threads);
      for (std::size_t index = 0; index < found.size(); index++, trials++) {
        const Outputs &one = alone[index], &other = found[index];
        if (!same(one.y, other.y) || !same(one.h_n, other.h_n) || !same(one.c_n, other.c_n)) {
          std::printf("cell %d, hidden %ld: other outputs with %d threads\n", shape.cell, shape.hidden, threads);
          return 1;
        }
      }
    }
  }
  for (const Batch& batch : batches) {
    for (const bool ragged : {false, true}) {
      for (const int64_t outputs : {1, 16, 37}) trials++, product(3, 5, outputs, batch, ragged);
    }
  }
  std::printf("%d trials\n", trials);
  return 0;
}
