// Exponential, sigmoid and tanh of vectors.

#pragma once

#include "vectors.h"

namespace {

// The range in which a function is computed: beyond it, the function is constant in float32. Comparisons with NaN are
// false, so NaN stays NaN.
constexpr float SIGMOID_ENDS = 88.0f;
constexpr float TANH_IS_ONE = 9.0108395f, TANH_SATURATES = 8.5f;

inline Vector at_most(float end, Vector x) {
#if defined(__AVX512F__)
  return (Vector)_mm512_min_ps(_mm512_set1_ps(end), (__m512)x);
#elif defined(__AVX2__)
  return (Vector)_mm256_min_ps(_mm256_set1_ps(end), (__m256)x);
#else
  return x > broadcast(end) ? broadcast(end) : x;
#endif
}

inline Vector at_least(float end, Vector x) {
#if defined(__AVX512F__)
  return (Vector)_mm512_max_ps(_mm512_set1_ps(end), (__m512)x);
#elif defined(__AVX2__)
  return (Vector)_mm256_max_ps(_mm256_set1_ps(end), (__m256)x);
#else
  return x < broadcast(end) ? broadcast(end) : x;
#endif
}

inline Vector clamp(float end, Vector x) { return at_least(-end, at_most(end, x)); }

// Whether a lane of one of the vectors is beyond `end` or below `-end`.
template <class... VECTORS>
inline bool any_beyond(float end, VECTORS... x) {
#if defined(__AVX512F__)
  return (_mm512_cmp_ps_mask(_mm512_abs_ps((__m512)x), _mm512_set1_ps(end), _CMP_GT_OQ) | ...) != 0;
#else
  const IntVector beyond = (((x > broadcast(end)) | (x < broadcast(-end))) | ...);
#if defined(__AVX2__)
  return _mm256_movemask_ps((__m256)beyond) != 0;
#else
  int32_t lanes = 0;
  for (int lane = 0; lane < LANES; lane++) lanes |= beyond[lane];
  return lanes != 0;
#endif
#endif
}

// 2^n and r with e^x = 2^n e^r and |r| <= ln 2 / 2, for |x| <= 88. ln 2 is rounded once: for the largest x this changes
// e^x by 4e-6 of itself, but there the functions below hardly change with e^x.
inline Vector power_of_two(Vector x, Vector& r) {
  // Adding 1.5 * 2^23 rounds to an integer; 127 is the bias of an exponent.
  const float to_nearest = 12583039.0f;
  const Vector shifted = x * 1.44269504088896341f + to_nearest;
  const Vector n = shifted - to_nearest;
  r = x - n * 0.693147180559945f;
  return (Vector)((IntVector)shifted << 23);
}

// e^r - 1 for |r| <= ln 2 / 2, to about 1 unit in the last place. NaN stays NaN. The polynomial has the least largest
// error, 3e-9 of e^r, of those of its degree.
inline Vector expm1_reduced(Vector r) {
  Vector p = broadcast(1.3950516735e-3f);
  p = p * r + 8.3689041108e-3f;
  p = p * r + 4.1666205420e-2f;
  p = p * r + 1.6666518717e-1f;
  p = p * r + 5.0000000953e-1f;
  return p * (r * r) + r;
}

inline Vector exp(Vector x) {
  Vector r;
  const Vector power = power_of_two(x, r);
  return power * expm1_reduced(r) + power;
}

// e^x - 1, accurate near 0 too: layers may compute with numbers of any size.
inline Vector expm1(Vector x) {
  Vector r;
  const Vector power = power_of_two(x, r);
  return power * expm1_reduced(r) + (power - 1.0f);
}

inline Vector sigmoid(Vector x) { return 1.0f / (1.0f + exp(clamp(SIGMOID_ENDS, -x))); }

// e^2x - 1 where tanh is about 1. Saturated units are equal where those of torch are, as for an argmax over them: it rounds
// tanh to 1 from 9.01084 on. Below, to the last float32 before 1, which the ends of `e` give.
inline Vector saturated(Vector x, Vector e) {
  const Vector below_one = at_most(0x1p25f - 2.0f, at_least(-1.0f + 0x1p-24f, e));
  return x > TANH_IS_ONE ? broadcast(0x1p25f) : x < -TANH_IS_ONE ? broadcast(-1.0f) : below_one;
}

// e^2x - 1, of which tanh is the quotient e / (e + 2).
inline Vector expm1_of_twice(Vector x) {
  const Vector e = expm1(2.0f * x);
  return __builtin_expect(any_beyond(TANH_SATURATES, x), 0) ? saturated(x, e) : e;
}

inline Vector tanh(Vector x) {
  const Vector e = expm1_of_twice(x);
  return e / (e + 2.0f);
}

}  // namespace
