// Products of one number of a row and the weights of LANES units, for each precision of weights.
//
// `Recurrent` is that of the recurrences, which the options of the compiler choose.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "vectors.h"

namespace {

// Products of vectors, which need no preparation.
struct Vectors {
  static constexpr bool IN_TILES = false;
  static void begin(int64_t) {}
  static void end() {}
};

// Sums of float32. VECTOR: the floats of memory that the weights of LANES units take, for as many inputs as are
// multiplied at once. `depth`: how often that is, for a number of inputs. `convert` writes a row as it is multiplied, in
// `operand` floats. SCALES: floats that follow the weights of a gate, and `total` is the product from its sum.
struct FloatSums {
  using Sum = Vector;
  static constexpr int SCALES = 0;
  static int64_t operand(int64_t depth) { return depth; }
  static Vector spread(const float* x) { return broadcast(*x); }
  static Vector total(Sum sum, const float*, const float*, int, int) { return sum; }
};

// Rows of float32, which are multiplied as they are.
struct FloatRows : Vectors, FloatSums {
  static constexpr bool CONVERTS = false;
  static int64_t depth(int64_t inputs) { return inputs; }
  static Vector add_product(Vector sum, Vector x, Vector w) { return sum + x * w; }
  static void convert(float*, const float*, int64_t) {}
};

// Weights of float32.
struct Single : FloatRows {
  static constexpr int KIND = 0, VECTOR = LANES;
  static Vector weights(const float* from) { return load(from); }
};

#if defined(HALF_PRECISION) && defined(__AVX512BF16__)

// 32 numbers of a row as 16 pairs of bfloat16; zeros for those that are not left.
inline __m512 pairs_of(const float* row, int64_t left) {
  const __mmask16 low = left >= 16 ? 0xffff : (1u << left) - 1;
  const __mmask16 high = left >= 32 ? 0xffff : left > 16 ? (1u << (left - 16)) - 1 : 0;
  return (__m512)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(high, row + 16), _mm512_maskz_loadu_ps(low, row));
}

#endif

#if defined(HALF_PRECISION) && defined(__AVX512BF16__) && defined(__AMX_BF16__)
#define HAS_TILES

// Pairs of inputs of bfloat16, multiplied by the processor's tiles: 16 pairs of up to 16 rows by 16 units at once. Rows
// and weights end with zeros up to a whole tile. All numbers of rows are multiplied so, because the order of the sums is
// another one than that of vectors.
struct BfloatTiles : FloatSums {
  static constexpr int KIND = 3, VECTOR = LANES, TILE = 16;
  static int64_t depth(int64_t inputs) { return (inputs + 2 * TILE - 1) / (2 * TILE) * TILE; }
  static constexpr bool CONVERTS = true, IN_TILES = true;
  static void convert(float* to, const float* row, int64_t inputs) {
    for (int64_t first = 0; first < inputs; first += 2 * TILE)
      _mm512_storeu_ps(to + first / 2, pairs_of(row + first, inputs - first));
  }

  // The tiles of products with this many rows. 0 to 3 have sums and 4 and 5 rows; 6 and 7 have weights.
  static void begin(int64_t rows) {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {};
    } shapes;
    for (int tile = 0; tile < 6; tile++) shapes.rows[tile] = static_cast<uint8_t>(std::clamp<int64_t>(rows, 1, TILE));
    shapes.rows[6] = shapes.rows[7] = TILE;
    asm volatile("" ::"r"(&shapes) : "memory");  // GCC's function says that the first 8 bytes alone are read
    _tile_loadconfig(&shapes);
  }
  // Gives the tiles back: a thread that has none is switched faster.
  static void end() { _tile_release(); }
};
using Recurrent = BfloatTiles;

#elif defined(HALF_PRECISION) && defined(__AVX512BF16__)

// Pairs of inputs of bfloat16 in the place of one float: twice the products. A row of an odd number ends with a zero.
struct BfloatPairs : Vectors, FloatSums {
  static constexpr int KIND = 2, VECTOR = LANES;
  static int64_t depth(int64_t inputs) { return (inputs + 1) / 2; }
  static Vector weights(const float* from) { return load(from); }
  static Vector add_product(Vector sum, Vector x, Vector w) {
    return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)w);
  }
  static constexpr bool CONVERTS = true;
  static void convert(float* to, const float* row, int64_t inputs) {
    for (int64_t first = 0; first < inputs; first += 32) {
      const int64_t left = inputs - first, pairs = std::min<int64_t>(16, (left + 1) / 2);
      _mm512_mask_storeu_ps(to + first / 2, static_cast<__mmask16>((1u << pairs) - 1), pairs_of(row + first, left));
    }
  }
};
using Recurrent = BfloatPairs;

#elif defined(HALF_PRECISION) && defined(__F16C__)

// Weights of float16, which are converted as they are read.
struct Float16 : FloatRows {
  static constexpr int KIND = 1, VECTOR = LANES / 2;
  static Vector weights(const float* from) {
#if defined(__AVX512F__)
    return (Vector)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#else
    return (Vector)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#endif
  }
};
using Recurrent = Float16;

#elif defined(HALF_PRECISION)
#error "half precision needs an x86-64 processor with F16C"

#elif defined(INT8_PRECISION) && (defined(__AVX512VNNI__) || defined(__AVXVNNI__))

// Weights of 8 bits, four inputs in the place of one float, with a scale for each unit of a gate. A row is rounded to 8
// bits too, by its own scale, which follows from its numbers. The instruction takes numbers of a row from 0 to 255, so
// 128 is added to them, and 128 times the sum of the weights, which follows the scales, is taken off in the end. All of
// that is in integers: no order of the sums changes a bit.
struct Int8Quads : Vectors {
  using Sum = IntVector;
  static constexpr int KIND = 5, VECTOR = LANES, SCALES = 2 * LANES;
  static int64_t depth(int64_t inputs) { return (inputs + 3) / 4; }
  static int64_t operand(int64_t depth) { return depth + 1; }
  static IntVector weights(const float* from) { return *reinterpret_cast<const IntVector*>(from); }
  static IntVector spread(const float* x) {
    int32_t four;
    std::memcpy(&four, x, sizeof four);
    return four - IntVector{};
  }
  static IntVector add_product(IntVector sum, IntVector x, IntVector w) {
#if defined(__AVX512VNNI__)
    return (IntVector)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, (__m512i)w);
#else
    return (IntVector)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)x, (__m256i)w);
#endif
  }
  static Vector total(IntVector sum, const float* row_scale, const float* scales, int gate, int gates) {
    const IntVector added = *reinterpret_cast<const IntVector*>(scales + (gates + gate) * LANES);
    return __builtin_convertvector(sum - added, Vector) * (load(scales + gate * LANES) * *row_scale);
  }
  static constexpr bool CONVERTS = true;
  static void convert(float* to, const float* row, int64_t inputs) {
    const float largest = largest_of(row, inputs);
    const bool is_zero = largest < 1e-30f;  // its inverse would be infinite
    const float inverse = is_zero ? 0.0f : 127.0f / largest;
    to[depth(inputs)] = is_zero ? 0.0f : largest / 127.0f;
    auto* bytes = reinterpret_cast<int8_t*>(to);
    for (int64_t first = 0; first < inputs; first += LANES) {
      // Adding 1.5 * 2^23 leaves the rounded number in the last bits.
      const Vector rounded = load_partial(row + first, inputs - first) * inverse + 12582912.0f;
      const ByteVector own = __builtin_convertvector((IntVector)rounded ^ 0x80, ByteVector);
      if (inputs - first >= LANES)
        *reinterpret_cast<ByteVector*>(bytes + first) = own;
      else
        std::memcpy(bytes + first, &own, 4 * depth(inputs) - first);
    }
  }

 private:
  // The largest magnitude of a row; NaN if one of its numbers is not finite, so that all sums of the row are.
  static float largest_of(const float* row, int64_t inputs) {
    IntVector most{};
    for (int64_t first = 0; first < inputs; first += LANES) {
      const IntVector bits = (IntVector)load_partial(row + first, inputs - first) & 0x7fffffff;
      most = bits > most ? bits : most;
    }
    int32_t largest = 0;
    for (int lane = 0; lane < LANES; lane++) largest = std::max(largest, most[lane]);
    if (largest >= 0x7f800000) return std::numeric_limits<float>::quiet_NaN();
    float value;
    std::memcpy(&value, &largest, sizeof value);
    return value;
  }
};
using Recurrent = Int8Quads;

#elif defined(INT8_PRECISION) && defined(__AVX2__)

// The same weights for processors without such products: they are converted as they are read, and rows stay float32.
struct Int8Weights : FloatRows {
  static constexpr int KIND = 4, VECTOR = LANES / 4, SCALES = 2 * LANES;
  static Vector weights(const float* from) {
#if defined(__AVX512F__)
    return (Vector)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
    return (Vector)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#endif
  }
  static Vector total(Vector sum, const float*, const float* scales, int gate, int) {
    return sum * load(scales + gate * LANES);
  }
};
using Recurrent = Int8Weights;

#elif defined(INT8_PRECISION)
#error "weights of 8 bits need an x86-64 processor with AVX2"
#else
using Recurrent = Single;
#endif

// The floats of a gate's weights for LANES units, over all inputs.
template <class ARITHMETIC>
constexpr int64_t gate_size(int64_t depth) { return ARITHMETIC::VECTOR * depth + ARITHMETIC::SCALES; }

}  // namespace
