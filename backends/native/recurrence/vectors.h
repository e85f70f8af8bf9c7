// Vectors of float32, as wide as the instruction set has them, by the vector extensions of GCC and Clang.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
constexpr int REGISTERS = 32;
#elif defined(__AVX2__)
constexpr int LANES = 8;
constexpr int REGISTERS = 16;
#else
constexpr int LANES = 4;
constexpr int REGISTERS = 32;  // of aarch64
#endif

typedef float Vector __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));
typedef int32_t IntVector __attribute__((vector_size(LANES * sizeof(int32_t)), aligned(4), may_alias));
typedef int8_t ByteVector __attribute__((vector_size(LANES), aligned(1), may_alias));

inline Vector load(const float* from) { return *reinterpret_cast<const Vector*>(from); }
inline void store(float* to, Vector value) { *reinterpret_cast<Vector*>(to) = value; }
inline Vector broadcast(float value) { return value - Vector{}; }

// A vector that is used several times, loaded once. GCC would make it an operand in memory of each instruction, and a
// product of two or three rows would load its weights as often.
template <class ANY>
inline ANY in_register(ANY value) {
#if defined(__AVX512F__)
  asm("" : "+v"(value));
#elif defined(__AVX2__)
  asm("" : "+x"(value));
#elif defined(__aarch64__)
  asm("" : "+w"(value));
#endif
  return value;
}

// The first `count` lanes in memory, of 1 to LANES. Others are not touched, and zero when loaded.
#if defined(__AVX512F__)
inline __mmask16 first_lanes(int64_t count) { return static_cast<__mmask16>((1u << count) - 1); }
inline Vector load_first(const float* from, int64_t count) {
  return (Vector)_mm512_maskz_loadu_ps(first_lanes(count), from);
}
inline void store_first(float* to, Vector value, int64_t count) {
  _mm512_mask_storeu_ps(to, first_lanes(count), (__m512)value);
}
#else
inline Vector load_first(const float* from, int64_t count) {
#if defined(__AVX2__)
  const IntVector lanes = {0, 1, 2, 3, 4, 5, 6, 7};
  return (Vector)_mm256_maskload_ps(from, (__m256i)(lanes < static_cast<int32_t>(count)));
#else
  Vector value{};
  std::memcpy(&value, from, count * sizeof(float));
  return value;
#endif
}
// In pieces, because AMD's processors take long for a masked store.
inline void store_first(float* to, Vector value, int64_t count) {
  const float* from = reinterpret_cast<const float*>(&value);
#pragma GCC unroll 4
  for (int64_t piece = LANES / 2; piece > 0; piece /= 2) {
    if ((count & piece) == 0) continue;
    std::memcpy(to, from, piece * sizeof(float));
    to += piece, from += piece;
  }
}
#endif

inline Vector load_partial(const float* from, int64_t count) {
  return count >= LANES ? load(from) : load_first(from, count);
}

inline void store_partial(float* to, Vector value, int64_t count) {
  if (count >= LANES) return store(to, value);
  store_first(to, value, count);
}

}  // namespace
