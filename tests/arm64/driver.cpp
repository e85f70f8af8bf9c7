// A program around the recurrent library, for processors of another kind under an emulator: it reads one call from
// standard input and writes the outputs to standard output. Without input it prints the layout of weights.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "recurrence.h"

namespace {

template <typename T>
std::vector<T> read_values(int64_t count) {
  std::vector<T> values(count);
  if (fread(values.data(), sizeof(T), count, stdin) != static_cast<size_t>(count)) exit(2);
  return values;
}

int64_t read_number() { return read_values<int64_t>(1)[0]; }

// Values after their number.
template <typename T>
std::vector<T> read_array() {
  return read_values<T>(read_number());
}

void write_values(const std::vector<float>& values) { fwrite(values.data(), sizeof(float), values.size(), stdout); }

int run_layers(void* pool) {
  const int64_t cell = read_number(), layers = read_number(), directions = read_number();
  const int64_t inputs = read_number(), hidden = read_number(), projected = read_number();
  const int64_t rows = read_number(), steps = read_number(), outputs = projected == 0 ? hidden : projected;
  const std::vector<int64_t> lengths = read_array<int64_t>();
  std::vector<std::vector<float>> weights;
  std::vector<const float*> addresses;
  const int64_t parts = (projected == 0 ? 3 : 4) * layers * directions;
  for (int64_t part = 0; part < parts; part++) weights.push_back(read_array<float>());
  for (const std::vector<float>& one : weights) addresses.push_back(one.data());
  const std::vector<float> x = read_array<float>(), h_0 = read_array<float>(), c_0 = read_array<float>();
  const int64_t width = directions * outputs;
  std::vector<float> y(rows * steps * width), h_n(h_0.size()), c_n(c_0.size());
  void* stack = recurrence_open_stack(pool, static_cast<int>(cell), layers, directions, inputs, hidden, projected,
                                      addresses.data());
  const int status = recurrence_run_batch(stack, rows, steps, lengths.data(), nullptr, 0, x.data(), steps * inputs, inputs,
                                    h_0.data(), c_0.empty() ? nullptr : c_0.data(), y.data(), steps * width, width, h_n.data(),
                                    c_n.empty() ? nullptr : c_n.data());
  recurrence_close_stack(stack);
  write_values(y), write_values(h_n), write_values(c_n);
  return status;
}

int run_product(void* pool) {
  const int64_t inputs = read_number(), outputs = read_number(), rows = read_number(), steps = read_number();
  const std::vector<int64_t> lengths = read_array<int64_t>();
  const std::vector<float> weights = read_array<float>(), bias = read_array<float>(), x = read_array<float>();
  std::vector<float> y(rows * steps * outputs);
  const int status =
      recurrence_product(pool, inputs, outputs, weights.data(), bias.data(), rows, steps,
                         lengths.empty() ? nullptr : lengths.data(), x.data(), steps * inputs, inputs, y.data(),
                         steps * outputs, outputs);
  write_values(y);
  return status;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 1) {
    printf("%d %d", recurrence_lanes(), recurrence_product_block());
    for (int cell = 0; cell < 4; cell++) printf(" %d", recurrence_gates_at_once(cell));
    return 0;
  }
  void* pool = recurrence_open_pool(atoi(arguments[2]));
  const int status = strcmp(arguments[1], "layers") == 0 ? run_layers(pool) : run_product(pool);
  recurrence_close_pool(pool);
  return status;
}
