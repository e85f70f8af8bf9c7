// Fused multiply-adds of the widest vectors, in registers alone, on every core that is asked for.

#include <sched.h>

#include <cstdint>
#include <thread>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Vector __attribute__((vector_size(LANES * sizeof(float))));

// Independent sums: as many as two units of a latency of four to six cycles need.
constexpr int SUMS = 12;

// A thread is bound to its core: a new one begins on the core of its creator, and two would share it.
void multiply_add(int core, int64_t times, float* result) {
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(core, &own);
  sched_setaffinity(0, sizeof own, &own);
  Vector sums[SUMS], x = Vector{} + 0.999f, y = Vector{} + 1e-3f;
#pragma GCC unroll 12
  for (int s = 0; s < SUMS; s++) sums[s] = Vector{} + static_cast<float>(s);
  for (int64_t time = 0; time < times; time++)
#pragma GCC unroll 12
    for (int s = 0; s < SUMS; s++) sums[s] = sums[s] * x + y;
  for (int s = 0; s < SUMS; s++) *result += sums[s][0];
}

}  // namespace

extern "C" {

// Floating-point operations of one time on one core.
int64_t fma_operations() { return int64_t{2} * LANES * SUMS; }

// Runs so many times on each core. The sum is returned, so that no compiler leaves the loop out.
float fma_run(const int* cores, int count, int64_t times) {
  std::vector<float> results(count);
  std::vector<std::thread> threads;
  for (int index = 0; index < count; index++) threads.emplace_back(multiply_add, cores[index], times, &results[index]);
  for (std::thread& thread : threads) thread.join();
  float sum = 0;
  for (const float result : results) sum += result;
  return sum;
}
}
