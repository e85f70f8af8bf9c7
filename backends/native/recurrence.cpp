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

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

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

constexpr int LSTM = 0, GRU = 1, RNN_TANH = 2, RNN_RELU = 3;

// Gates of a unit, and its separate sums: the new state of a GRU needs x W and h W separately.
constexpr int gates_of(int cell) { return cell == LSTM ? 4 : cell == GRU ? 3 : 1; }
constexpr int sums_of(int cell) { return cell == LSTM || cell == GRU ? 4 : 1; }
// The gates whose weights are interleaved and multiplied together: as many as the registers allow.
constexpr int interleaved_gates(int cell) { return cell == LSTM && REGISTERS == 16 ? 2 : gates_of(cell); }
// The rows of a tile: its accumulators, the weights of the gates and one number of a row fit into the registers.
constexpr int tile_rows(int gates) { return std::min(8, (REGISTERS - gates - 1) / gates); }

inline Vector load(const float* from) { return *reinterpret_cast<const Vector*>(from); }
inline void store(float* to, Vector value) { *reinterpret_cast<Vector*>(to) = value; }
inline Vector broadcast(float value) { return value - Vector{}; }

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

// ---------------------------------------------------------------------------------------------------------------------
// Elementwise functions
// ---------------------------------------------------------------------------------------------------------------------

// The range in which a function is computed: beyond it, the function is constant in float32 (to 1e-14 for the sigmoid).
// It keeps products of exponentials finite. Comparisons with NaN are false, so NaN stays NaN.
constexpr float SIGMOID_ENDS = 32.0f;
constexpr float TANH_ENDS = 9.0f;

inline Vector clamp(float end, Vector x) {
#if defined(__AVX512F__)
  return (Vector)_mm512_max_ps(_mm512_set1_ps(-end), _mm512_min_ps(_mm512_set1_ps(end), (__m512)x));
#elif defined(__AVX2__)
  return (Vector)_mm256_max_ps(_mm256_set1_ps(-end), _mm256_min_ps(_mm256_set1_ps(end), (__m256)x));
#else
  const Vector most = broadcast(end);
  x = x > most ? most : x;
  return x < -most ? -most : x;
#endif
}

// 2^n and r with e^x = 2^n e^r and |r| <= ln 2 / 2, for |x| <= 36. ln 2 is rounded once: for the largest x this changes
// e^x by 1e-6 of itself, but there the functions below hardly change with e^x.
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

inline Vector tanh(Vector x) {
  const Vector e = expm1(2.0f * clamp(TANH_ENDS, x));
  return e / (e + 2.0f);
}

// Returns the new cell state, and the new state in `h`. Sums are i, f, g, o. Quotients share one denominator, because a
// division takes as long as an exponential. Their products are finite up to states of 1e16.
inline Vector lstm_gates(Vector i, Vector f, Vector g, Vector o, Vector c, Vector& h) {
  const Vector not_i = 1.0f + exp(clamp(SIGMOID_ENDS, -i));
  const Vector not_f = 1.0f + exp(clamp(SIGMOID_ENDS, -f));
  const Vector e_g = expm1(2.0f * clamp(TANH_ENDS, g));
  const Vector both = not_i * (e_g + 2.0f);
  c = (c * both + e_g * not_f) / (both * not_f);
  const Vector e_c = expm1(2.0f * clamp(TANH_ENDS, c));
  h = e_c / ((1.0f + exp(clamp(SIGMOID_ENDS, -o))) * (e_c + 2.0f));
  return c;
}

// ---------------------------------------------------------------------------------------------------------------------
// Arithmetic of a matrix product
// ---------------------------------------------------------------------------------------------------------------------

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

// Weights and rows of float32.
struct Single : Vectors, FloatSums {
  static constexpr int KIND = 0, VECTOR = LANES;
  static int64_t depth(int64_t inputs) { return inputs; }
  static Vector weights(const float* from) { return load(from); }
  static Vector add_product(Vector sum, Vector x, Vector w) { return sum + x * w; }
  static constexpr bool CONVERTS = false;
  static void convert(float*, const float*, int64_t) {}
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
struct Float16 : Vectors, FloatSums {
  static constexpr int KIND = 1, VECTOR = LANES / 2;
  static int64_t depth(int64_t inputs) { return inputs; }
  static Vector weights(const float* from) {
#if defined(__AVX512F__)
    return (Vector)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#else
    return (Vector)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#endif
  }
  static Vector add_product(Vector sum, Vector x, Vector w) { return sum + x * w; }
  static constexpr bool CONVERTS = false;
  static void convert(float*, const float*, int64_t) {}
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
      const Vector rounded = load_up_to(row + first, inputs - first) * inverse + 12582912.0f;
      const ByteVector own = __builtin_convertvector((IntVector)rounded ^ 0x80, ByteVector);
      if (inputs - first >= LANES)
        *reinterpret_cast<ByteVector*>(bytes + first) = own;
      else
        std::memcpy(bytes + first, &own, 4 * depth(inputs) - first);
    }
  }

 private:
  static Vector load_up_to(const float* from, int64_t count) {
    return count >= LANES ? load(from) : load_first(from, count);
  }
  // The largest magnitude of a row; NaN if one of its numbers is not finite, so that all sums of the row are.
  static float largest_of(const float* row, int64_t inputs) {
    IntVector most{};
    for (int64_t first = 0; first < inputs; first += LANES) {
      const IntVector bits = (IntVector)load_up_to(row + first, inputs - first) & 0x7fffffff;
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
struct Int8Weights : Vectors {
  using Sum = Vector;
  static constexpr int KIND = 4, VECTOR = LANES / 4, SCALES = 2 * LANES;
  static int64_t depth(int64_t inputs) { return inputs; }
  static int64_t operand(int64_t depth) { return depth; }
  static Vector weights(const float* from) {
#if defined(__AVX512F__)
    return (Vector)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
    return (Vector)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#endif
  }
  static Vector spread(const float* x) { return broadcast(*x); }
  static Vector add_product(Vector sum, Vector x, Vector w) { return sum + x * w; }
  static Vector total(Vector sum, const float*, const float* scales, int gate, int) {
    return sum * load(scales + gate * LANES);
  }
  static constexpr bool CONVERTS = false;
  static void convert(float*, const float*, int64_t) {}
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

// ---------------------------------------------------------------------------------------------------------------------
// Matrix products
// ---------------------------------------------------------------------------------------------------------------------

// sums[r][gate] = addend[r][gate] + rows[r][k] * weights[k][gate] over all k, for ROWS rows, and GATES gates of LANES
// units. `addend` (the same bias for every row, or the sums themselves) is added at the end, as torch does: with inputs
// in the thousands the order decides the last digits.
template <class ARITHMETIC, int ROWS, int GATES>
inline void multiply_tile(const float* const* rows, const float* weights, int64_t depth, const float* addend,
                          int64_t addend_stride, float* sums, int64_t sums_stride) {
  typename ARITHMETIC::Sum accumulators[ROWS][GATES] = {};
  for (int64_t k = 0; k < depth; k++, weights += GATES * ARITHMETIC::VECTOR) {
    typename ARITHMETIC::Sum w[GATES];
#pragma GCC unroll 4
    for (int g = 0; g < GATES; g++) w[g] = ARITHMETIC::weights(weights + g * ARITHMETIC::VECTOR);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
      const auto x = ARITHMETIC::spread(rows[r] + k);
#pragma GCC unroll 4
      for (int g = 0; g < GATES; g++) accumulators[r][g] = ARITHMETIC::add_product(accumulators[r][g], x, w[g]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
    for (int g = 0; g < GATES; g++)
      store(sums + r * sums_stride + g * LANES,
            load(addend + r * addend_stride + g * LANES) +
                ARITHMETIC::total(accumulators[r][g], rows[r] + depth, weights, g, GATES));
}

// The same for a number of rows that is known at run time.
template <class ARITHMETIC, int ROWS, int GATES>
inline void multiply_tile_rows(int count, const float* const* rows, const float* weights, int64_t depth,
                               const float* addend, int64_t addend_stride, float* sums, int64_t sums_stride) {
  if constexpr (ROWS > 1) {
    if (count < ROWS)
      return multiply_tile_rows<ARITHMETIC, ROWS - 1, GATES>(count, rows, weights, depth, addend, addend_stride, sums,
                                                             sums_stride);
  }
  multiply_tile<ARITHMETIC, ROWS, GATES>(rows, weights, depth, addend, addend_stride, sums, sums_stride);
}

#if defined(HAS_TILES)

// The same product by the processor's tiles, for the rows of one tile; `rows` are one after the other in memory. The sums
// begin with the addend. GCC's macros take the numbers of tiles as text, say nothing of the memory that they read, and
// lack parentheses around pointers in its first releases with tiles.
template <int GATES>
inline void multiply_one_tile(const float* rows, const float* weights, int64_t depth, const float* addend,
                              int64_t addend_stride, float* sums, int64_t sums_stride) {
  constexpr int64_t FLOAT = sizeof(float), PAIR = GATES * LANES;
  asm volatile("" ::: "memory");
  _tile_loadd(0, addend, addend_stride * FLOAT);
  if (GATES > 1) _tile_loadd(1, (addend + LANES), addend_stride * FLOAT);
  if (GATES > 2) _tile_loadd(2, (addend + 2 * LANES), addend_stride * FLOAT);
  if (GATES > 3) _tile_loadd(3, (addend + 3 * LANES), addend_stride * FLOAT);
  for (int64_t k = 0; k < depth; k += BfloatTiles::TILE, weights += BfloatTiles::TILE * PAIR) {
    _tile_loadd(4, (rows + k), depth * FLOAT);
    _tile_loadd(6, weights, PAIR * FLOAT);
    _tile_dpbf16ps(0, 4, 6);
    if (GATES > 1) {
      _tile_loadd(7, (weights + LANES), PAIR * FLOAT);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (GATES > 2) {
      _tile_loadd(6, (weights + 2 * LANES), PAIR * FLOAT);
      _tile_dpbf16ps(2, 4, 6);
    }
    if (GATES > 3) {
      _tile_loadd(7, (weights + 3 * LANES), PAIR * FLOAT);
      _tile_dpbf16ps(3, 4, 7);
    }
  }
  _tile_stored(0, sums, sums_stride * FLOAT);
  if (GATES > 1) _tile_stored(1, (sums + LANES), sums_stride * FLOAT);
  if (GATES > 2) _tile_stored(2, (sums + 2 * LANES), sums_stride * FLOAT);
  if (GATES > 3) _tile_stored(3, (sums + 3 * LANES), sums_stride * FLOAT);
  asm volatile("" ::: "memory");
}

// The same for two tiles of rows, the second from row `next` on, which read the weights once. They may overlap: the sums
// of both are read before any is written.
template <int GATES>
inline void multiply_two_tiles(const float* rows, int64_t next, const float* weights, int64_t depth,
                               const float* addend, int64_t addend_stride, float* sums, int64_t sums_stride) {
  constexpr int64_t FLOAT = sizeof(float), PAIR = GATES * LANES;
  const float *rows_2 = rows + next * depth, *addend_2 = addend + next * addend_stride;
  float* sums_2 = sums + next * sums_stride;
#pragma GCC unroll 2
  for (int gate = 0; gate < GATES; gate += 2) {
    const bool both = gate + 1 < GATES;
    const int64_t one = gate * LANES, other = one + LANES;
    asm volatile("" ::: "memory");
    _tile_loadd(0, (addend + one), addend_stride * FLOAT);
    _tile_loadd(2, (addend_2 + one), addend_stride * FLOAT);
    if (both) {
      _tile_loadd(1, (addend + other), addend_stride * FLOAT);
      _tile_loadd(3, (addend_2 + other), addend_stride * FLOAT);
    }
    const float* w = weights + one;
    for (int64_t k = 0; k < depth; k += BfloatTiles::TILE, w += BfloatTiles::TILE * PAIR) {
      _tile_loadd(4, (rows + k), depth * FLOAT);
      _tile_loadd(5, (rows_2 + k), depth * FLOAT);
      _tile_loadd(6, w, PAIR * FLOAT);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(2, 5, 6);
      if (both) {
        _tile_loadd(7, (w + LANES), PAIR * FLOAT);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, (sums + one), sums_stride * FLOAT);
    _tile_stored(2, (sums_2 + one), sums_stride * FLOAT);
    if (both) {
      _tile_stored(1, (sums + other), sums_stride * FLOAT);
      _tile_stored(3, (sums_2 + other), sums_stride * FLOAT);
    }
    asm volatile("" ::: "memory");
  }
}

// The same for any number of rows, the one given to `begin`. All tiles have the same number of rows, so the last two may
// overlap.
template <int GATES>
inline void multiply_tiles(int64_t count, const float* rows, const float* weights, int64_t depth, const float* addend,
                           int64_t addend_stride, float* sums, int64_t sums_stride) {
  constexpr int64_t TILE = BfloatTiles::TILE;
  for (int64_t first = 0, left; (left = count - first) > 0;) {
    const float *own = rows + first * depth, *own_addend = addend + first * addend_stride;
    float* own_sums = sums + first * sums_stride;
    // One tile of 33 to 47 rows leaves more than one for the last two.
    if (left <= TILE || (left > 2 * TILE && left < 3 * TILE)) {
      multiply_one_tile<GATES>(own, weights, depth, own_addend, addend_stride, own_sums, sums_stride);
      first += TILE;
    } else {
      const int64_t next = std::min(TILE, left - TILE);
      multiply_two_tiles<GATES>(own, next, weights, depth, own_addend, addend_stride, own_sums, sums_stride);
      first += 2 * TILE;
    }
  }
}

#endif

// The same for any number of rows: in tiles of sizes as equal as possible, or in the processor's tiles.
template <class ARITHMETIC, int GATES>
inline void multiply(int64_t count, const float* const* rows, const float* weights, int64_t depth, const float* addend,
                     int64_t addend_stride, float* sums, int64_t sums_stride) {
  if constexpr (!ARITHMETIC::IN_TILES) {
    constexpr int most = tile_rows(GATES);
    for (int64_t tiles = (count + most - 1) / most, first = 0; tiles > 0; tiles--) {
      const int64_t some = (count - first + tiles - 1) / tiles;
      multiply_tile_rows<ARITHMETIC, most, GATES>(static_cast<int>(some), rows + first, weights, depth,
                                                  addend + first * addend_stride, addend_stride,
                                                  sums + first * sums_stride, sums_stride);
      first += some;
    }
  }
#if defined(HAS_TILES)
  else
    multiply_tiles<GATES>(count, rows[0], weights, depth, addend, addend_stride, sums, sums_stride);
#endif
}

// The floats of the weights of a block of units, over all inputs.
constexpr int64_t block_size(int cell, int64_t depth) { return gates_of(cell) * gate_size<Recurrent>(depth); }

// A block of units: the gates of W_ih (from x) or W_hh (from h). `addend` and `sums` have sums_of(CELL) vectors a row.
template <int CELL, bool FROM_STATE>
inline void multiply_block(int64_t count, const float* const* rows, const float* weights, int64_t depth,
                           const float* addend, int64_t addend_stride, float* sums) {
  constexpr int64_t stride = sums_of(CELL) * LANES;
  if constexpr (CELL == GRU) {
    // r and z accumulate both products; n keeps them separate, h W_hn in the fourth sum.
    constexpr int last = FROM_STATE ? 3 : 2;
    multiply<Recurrent, 2>(count, rows, weights, depth, addend, addend_stride, sums, stride);
    multiply<Recurrent, 1>(count, rows, weights + 2 * gate_size<Recurrent>(depth), depth, addend + last * LANES,
                           addend_stride, sums + last * LANES, stride);
    if constexpr (!FROM_STATE)
      for (int64_t r = 0; r < count; r++)
        store(sums + r * stride + 3 * LANES, load(addend + r * addend_stride + 3 * LANES));
  } else {
    constexpr int some = interleaved_gates(CELL);
    for (int first = 0; first < gates_of(CELL); first += some)
      multiply<Recurrent, some>(count, rows, weights + first * gate_size<Recurrent>(depth), depth, addend + first * LANES,
                                addend_stride, sums + first * LANES, stride);
  }
}

// sums += row * weights for one row and two blocks of units of an LSTM, one after the other in memory. The sums of one
// block are too few to hide the latency of an addition.
template <class ARITHMETIC>
inline void multiply_two_blocks(const float* row, const float* weights, int64_t depth, float* first, float* second) {
  constexpr int GATES = interleaved_gates(LSTM), GROUPS = gates_of(LSTM) / GATES;
  const int64_t group = GATES * gate_size<ARITHMETIC>(depth);
  typename ARITHMETIC::Sum accumulators[2 * GROUPS][GATES] = {};
  for (int64_t k = 0; k < depth; k++, weights += GATES * ARITHMETIC::VECTOR) {
    const auto x = ARITHMETIC::spread(row + k);
#pragma GCC unroll 8
    for (int s = 0; s < 2 * GROUPS; s++)
#pragma GCC unroll 4
      for (int g = 0; g < GATES; g++)
        accumulators[s][g] = ARITHMETIC::add_product(
            accumulators[s][g], x, ARITHMETIC::weights(weights + s * group + g * ARITHMETIC::VECTOR));
  }
#pragma GCC unroll 8
  for (int s = 0; s < 2 * GROUPS; s++)
#pragma GCC unroll 4
    for (int g = 0; g < GATES; g++) {
      float* sum = (s < GROUPS ? first : second) + (s % GROUPS * GATES + g) * LANES;
      store(sum, load(sum) + ARITHMETIC::total(accumulators[s][g], row + depth, weights + s * group, g, GATES));
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// One layer in one direction
// ---------------------------------------------------------------------------------------------------------------------

// Weights in the order above: for each block of units W_ih, W_hh and the biases, one for each sum. An LSTM with a
// projection has W_hr, in groups of outputs; else it is null.
struct Weights {
  const float* from_input;
  const float* from_state;
  const float* bias;
  const float* projection;
};

// Vectors of the outputs of a projection that are multiplied together; the last group has the rest.
constexpr int PROJECTED = interleaved_gates(LSTM);

// x[b, t] is at x + b * x_row + t * x_step, and so on; strides count numbers. With ids, x is a table whose rows have
// `table_width` numbers, and x[b, t] is that of ids[b, t]; if it is `multiplied`, its rows are sums already. Without h_0, or c_0, these states are zero. y has every state, even if no caller reads
// it. h has `outputs` units: as many as `hidden`, or those of the projection of m[b], which has `hidden` units.
struct Layer {
  int cell;
  int64_t inputs, hidden, outputs;
  bool reverse;
  Weights weights;
  const int64_t* ids;
  int64_t table_width;
  bool multiplied;
  const float *x, *h_0, *c_0;
  int64_t x_row, x_step;
  float *y, *h_n, *c_n;
  int64_t y_row, y_step;
  float* m;
};

// Barrier for the threads of a team. Most waits are shorter than a microsecond, so threads spin. On cores shared with
// other processes the missing thread may not be running, so a waiting thread yields its core now and then.
class SpinBarrier {
 public:
  void set_threads(int threads) { threads_ = threads; }

  void wait() {
    if (threads_ == 1) return;
    const int64_t round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round;) pause(spins);
  }

  static void pause(int& spins) {
    if (++spins % 256 == 0) std::this_thread::yield();  // after some microseconds
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

 private:
  int threads_ = 1;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int64_t> round_{0};
};

// Rows that some threads compute together: longest first, so that the active rows at any time are the first ones.
struct Team {
  std::vector<int64_t> rows;
  std::vector<int64_t> lengths;
  int threads = 1;
  SpinBarrier barrier;

  int64_t active(int64_t step) const {
    return std::partition_point(lengths.begin(), lengths.end(), [&](int64_t length) { return length > step; }) -
           lengths.begin();
  }
};

constexpr int64_t TEAM_ROWS = 6;  // the least active rows of a team among several

// Timesteps from `begin` to `end` in which the teams, of equal numbers of threads, stay the same.
struct Phase {
  int64_t begin, end;
  std::vector<Team> teams;
};

// Memory of whole cache lines.
using Floats = std::unique_ptr<float, decltype(&std::free)>;

Floats allocate(size_t count, size_t alignment = 64) {
  void* memory = std::aligned_alloc(alignment, (count * sizeof(float) + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return {static_cast<float*>(memory), &std::free};
}

// The same of huge pages, each of which takes one entry of the TLB, as far as it fills them by half or more. A system
// without them gives small pages.
Floats allocate_huge(size_t count) {
  constexpr size_t HUGE_PAGE = 2 << 20;
  Floats memory = allocate(count, HUGE_PAGE);
  madvise(memory.get(), (count * sizeof(float) + HUGE_PAGE / 2) / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
  return memory;
}

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

// Rows of x, over some timesteps, that are multiplied at once.
constexpr int64_t INPUT_ROWS = 96;

inline Vector load_partial(const float* from, int64_t count) {
  return count >= LANES ? load(from) : load_first(from, count);
}

inline void store_partial(float* to, Vector value, int64_t count) {
  if (count >= LANES) return store(to, value);
  store_first(to, value, count);
}

// Gates of one block of units for one row: from the sums and the previous state to the new state.
template <int CELL>
inline Vector apply_cell(const float* sums, Vector before, float* c, int64_t units) {
  if constexpr (CELL == LSTM) {
    Vector h;
    const Vector cell = lstm_gates(load(sums), load(sums + LANES), load(sums + 2 * LANES), load(sums + 3 * LANES),
                                   load_partial(c, units), h);
    store_partial(c, cell, units);
    return h;
  } else if constexpr (CELL == GRU) {
    const Vector r = sigmoid(load(sums)), z = sigmoid(load(sums + LANES));
    const Vector n = tanh(load(sums + 2 * LANES) + r * load(sums + 3 * LANES));
    return n + z * (before - n);
  } else if constexpr (CELL == RNN_TANH) {
    return tanh(load(sums));
  } else {
    const Vector sum = load(sums);
    return sum < 0.0f ? Vector{} : sum;  // NaN stays
  }
}

// The work of one thread of a team in a layer: its slice of the hidden units, for all rows of the team.
template <int CELL>
class WorkerSlice {
 public:
  WorkerSlice(const Layer& layer, Team& team, int member, Scratch& scratch)
      : layer_(layer), team_(team), scratch_(scratch) {
    const int64_t blocks = (layer.hidden + LANES - 1) / LANES;
    first_ = blocks * member / team.threads;
    blocks_ = blocks * (member + 1) / team.threads - first_;
    sum_rows_ = std::max<int64_t>(INPUT_ROWS, static_cast<int64_t>(team.rows.size()));
    sums_ = scratch.sums.get();
    const int64_t unit = layer.weights.projection == nullptr ? LANES : PROJECTED * LANES;
    const int64_t groups = (layer.outputs + unit - 1) / unit;
    first_output_ = std::min(layer.outputs, groups * member / team.threads * unit);
    last_output_ = std::min(layer.outputs, groups * (member + 1) / team.threads * unit);
  }

  // The timesteps from `begin` to `end`, or to the last row's end.
  void run(int64_t begin, int64_t end, int64_t steps) {
    if (begin == 0) copy_cell_state();
    const int64_t last = team_.lengths.empty() ? 0 : std::min(end, team_.lengths.front());
    for (int64_t step = begin; step < last;) {
      const int64_t multiplied = multiply_inputs(step, last);
      for (int64_t first = 0; step < multiplied; step++) first += advance(step, first);
    }
    finish(end, steps);
  }

 private:
  static constexpr int64_t STRIDE = sums_of(CELL) * LANES;

  int64_t unit(int64_t block) const { return (first_ + block) * LANES; }
  int64_t units(int64_t block) const { return std::min<int64_t>(LANES, layer_.hidden - unit(block)); }
  float* sums(int64_t block, int64_t row) const { return sums_ + (block * sum_rows_ + row) * STRIDE; }
  int64_t last_unit() const { return std::min(layer_.hidden, (first_ + blocks_) * LANES); }

  // The timestep of the row at `slot` in a step: in the reverse direction a row is read from its own end.
  int64_t time(int64_t slot, int64_t step) const {
    return layer_.reverse ? team_.lengths[slot] - 1 - step : step;
  }
  const float* x(int64_t slot, int64_t step) const {
    const int64_t at = team_.rows[slot] * layer_.x_row + time(slot, step) * layer_.x_step;
    return layer_.ids == nullptr ? layer_.x + at : layer_.x + layer_.ids[at] * layer_.table_width;
  }
  float* y(int64_t slot, int64_t step) const {
    return layer_.y + team_.rows[slot] * layer_.y_row + time(slot, step) * layer_.y_step;
  }

  void copy_cell_state() const {
    if (CELL != LSTM) return;
    for (const int64_t row : team_.rows)
      copy_units(layer_.c_n + row * layer_.hidden, layer_.c_0 == nullptr ? nullptr : layer_.c_0 + row * layer_.hidden,
                 unit(0), last_unit());
  }

  // x W_ih and the biases for as many timesteps as fit; returns the step after them.
  int64_t multiply_inputs(int64_t step, int64_t end) const {
    int64_t count = 0;
    for (; step < end; step++) {
      const int64_t active = team_.active(step);
      if (count > 0 && count + active > sum_rows_) break;
      for (int64_t slot = 0; slot < active; slot++) scratch_.rows[count++] = x(slot, step);
    }
    if (layer_.multiplied) return copy_sums(count), step;
    const int64_t depth = Recurrent::depth(layer_.inputs), size = block_size(CELL, depth);
    const float* const* rows = scratch_.converted_rows(count, layer_.inputs);
    for (int64_t block = 0; block < blocks_; block++)
      multiply_block<CELL, false>(count, rows, layer_.weights.from_input + (first_ + block) * size, depth,
                                  layer_.weights.bias + (first_ + block) * STRIDE, 0, sums(block, 0));
    return step;
  }

  // The same from rows of a table that were multiplied before.
  void copy_sums(int64_t count) const {
    for (int64_t row = 0; row < count; row++)
      for (int64_t block = 0; block < blocks_; block++)
        std::memcpy(sums(block, row), scratch_.rows[row] + (first_ + block) * STRIDE, STRIDE * sizeof(float));
  }

  // One timestep, whose sums start at row `first`; returns its number of active rows. Every other step goes through the
  // blocks backwards: if the weights do not fit into the L2 cache, those that were read last are still there.
  int64_t advance(int64_t step, int64_t first) const {
    const int64_t active = team_.active(step);
    const float** before = scratch_.rows.data();
    for (int64_t slot = 0; slot < active; slot++) before[slot] = step == 0 ? initial(slot) : y(slot, step - 1);
    const bool has_state = step > 0 || layer_.h_0 != nullptr;
    const int64_t depth = Recurrent::depth(layer_.outputs), size = block_size(CELL, depth);
    const float* const* rows = has_state ? scratch_.converted_rows(active, layer_.outputs) : before;
    const float* weights = layer_.weights.from_state + first_ * size;
    const bool backwards = step % 2 == 1;
    const int64_t pairs = CELL == LSTM && !Recurrent::IN_TILES && active == 1 && has_state ? blocks_ / 2 : 0;
    if constexpr (!Recurrent::IN_TILES)
      for (int64_t turn = 0; turn < pairs; turn++) {
        const int64_t block = 2 * (backwards ? pairs - 1 - turn : turn);
        multiply_two_blocks<Recurrent>(rows[0], weights + block * size, depth, sums(block, first),
                                       sums(block + 1, first));
      }
    for (int64_t turn = 0; turn < blocks_; turn++) {
      const int64_t block = backwards ? blocks_ - 1 - turn : turn;
      float* own = sums(block, first);
      if (has_state && block >= 2 * pairs)
        multiply_block<CELL, true>(active, rows, weights + block * size, depth, own, STRIDE, own);
      for (int64_t slot = 0; slot < active; slot++, own += STRIDE) {
        const Vector h =
            CELL == GRU && has_state ? load_partial(before[slot] + unit(block), units(block)) : Vector{};
        float* c = layer_.c_n + team_.rows[slot] * layer_.hidden + unit(block);
        float* to = layer_.m == nullptr ? y(slot, step) : m(slot);
        store_partial(to + unit(block), apply_cell<CELL>(own, h, c, units(block)), units(block));
      }
    }
    team_.barrier.wait();
    if (CELL == LSTM && layer_.m != nullptr) project(step, active);
    return active;
  }

  float* m(int64_t slot) const { return layer_.m + team_.rows[slot] * layer_.hidden; }

  // The states h of a timestep from m, which the whole team has computed.
  void project(int64_t step, int64_t active) const {
    for (int64_t slot = 0; slot < active; slot++) scratch_.rows[slot] = m(slot);
    const float* const* rows = scratch_.converted_rows(active, layer_.hidden);
    for (int64_t first = first_output_; first < last_output_; first += PROJECTED * LANES) {
      switch (std::min<int64_t>(PROJECTED, (last_output_ - first + LANES - 1) / LANES)) {
        case 1: project_group<1>(step, active, rows, first); break;
        case 2: project_group<std::min(2, PROJECTED)>(step, active, rows, first); break;
        case 3: project_group<std::min(3, PROJECTED)>(step, active, rows, first); break;
        default: project_group<PROJECTED>(step, active, rows, first);
      }
    }
    team_.barrier.wait();
  }

  template <int VECTORS>
  void project_group(int64_t step, int64_t active, const float* const* rows, int64_t first) const {
    static constexpr Vector zeros[VECTORS] = {};
    const int64_t depth = Recurrent::depth(layer_.hidden), size = VECTORS * LANES;
    const float* weights = layer_.weights.projection + first / LANES * gate_size<Recurrent>(depth);
    float* sums = sums_ + blocks_ * sum_rows_ * STRIDE;
    multiply<Recurrent, VECTORS>(active, rows, weights, depth, reinterpret_cast<const float*>(zeros), 0, sums, size);
    for (int64_t slot = 0; slot < active; slot++)
      std::memcpy(y(slot, step) + first, sums + slot * size, std::min(size, last_output_ - first) * sizeof(float));
  }

  // For rows that end up to here: the states after each one's own last timestep, and zeros after it in outputs that
  // callers read.
  void finish(int64_t end, int64_t steps) const {
    for (size_t slot = 0; slot < team_.rows.size(); slot++) {
      const int64_t row = team_.rows[slot], length = team_.lengths[slot];
      if (length > end) continue;
      const float* last = length == 0 ? initial(slot) : y(slot, length - 1);
      copy_units(layer_.h_n + row * layer_.outputs, last, first_output_, last_output_);
      for (int64_t t = length; t < steps; t++)
        copy_units(layer_.y + row * layer_.y_row + t * layer_.y_step, nullptr, first_output_, last_output_);
    }
  }

  // Null: zeros.
  const float* initial(int64_t slot) const {
    return layer_.h_0 == nullptr ? nullptr : layer_.h_0 + team_.rows[slot] * layer_.outputs;
  }

  // From null: zeros.
  static void copy_units(float* to, const float* from, int64_t first, int64_t last) {
    if (from == nullptr)
      std::memset(to + first, 0, (last - first) * sizeof(float));
    else
      std::memcpy(to + first, from + first, (last - first) * sizeof(float));
  }

  const Layer& layer_;
  Team& team_;
  Scratch& scratch_;
  int64_t first_, blocks_, sum_rows_;
  int64_t first_output_, last_output_;
  float* sums_;
};

void run_slice(const Layer& layer, const Phase& phase, Team& team, int member, Scratch& scratch,
               int64_t steps) noexcept {
  const auto run = [&](auto slice) { slice.run(phase.begin, phase.end, steps); };
  switch (layer.cell) {
    case LSTM: return run(WorkerSlice<LSTM>(layer, team, member, scratch));
    case GRU: return run(WorkerSlice<GRU>(layer, team, member, scratch));
    case RNN_TANH: return run(WorkerSlice<RNN_TANH>(layer, team, member, scratch));
    default: return run(WorkerSlice<RNN_RELU>(layer, team, member, scratch));
  }
}

// The sums over the inputs, biases among them, of the scratch memory's first rows: [count, blocks of units, sums].
template <int CELL>
void multiply_rows(int64_t count, int64_t inputs, int64_t blocks, const Weights& weights, Scratch& scratch, float* to) {
  constexpr int64_t stride = sums_of(CELL) * LANES;
  const int64_t depth = Recurrent::depth(inputs);
  const float* const* rows = scratch.converted_rows(count, inputs);
  float* sums = scratch.sums.get();
  for (int64_t block = 0; block < blocks; block++) {
    multiply_block<CELL, false>(count, rows, weights.from_input + block * block_size(CELL, depth), depth,
                                weights.bias + block * stride, 0, sums);
    for (int64_t row = 0; row < count; row++)
      std::memcpy(to + (row * blocks + block) * stride, sums + row * stride, stride * sizeof(float));
  }
}

void multiply_rows(int cell, int64_t count, int64_t inputs, int64_t blocks, const Weights& weights, Scratch& scratch,
                   float* to) noexcept {
  switch (cell) {
    case LSTM: return multiply_rows<LSTM>(count, inputs, blocks, weights, scratch, to);
    case GRU: return multiply_rows<GRU>(count, inputs, blocks, weights, scratch, to);
    default: return multiply_rows<RNN_TANH>(count, inputs, blocks, weights, scratch, to);  // both have one sum
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Threads
// ---------------------------------------------------------------------------------------------------------------------

// A condition variable. The one of GCC 12's library is newer than the library of TorchServe's image.
class Condition {
 public:
  ~Condition() { pthread_cond_destroy(&condition_); }

  void wait(std::unique_lock<std::mutex>& lock) { pthread_cond_wait(&condition_, lock.mutex()->native_handle()); }

  void notify_all() { pthread_cond_broadcast(&condition_); }

 private:
  pthread_cond_t condition_ = PTHREAD_COND_INITIALIZER;
};

// Cores of a pool's threads. Linux likes to wake a thread on the core of the caller that wakes it, above all after some
// milliseconds. Both would spin there, each waiting for the other, until the scheduler parts them. So the caller's
// core is taken from the others before they are woken; then each wakes on the core where it ran last.
class Placement {
 public:
  explicit Placement(int threads) : threads_(threads, 0) { CPU_ZERO(&all_); }

  // Called by each thread itself; it has the cores of the thread that opened the pool.
  void add(int index) {
    cpu_set_t own;
    if (sched_getaffinity(0, sizeof own, &own) == 0) all_ = own;
    threads_[index] = static_cast<pid_t>(syscall(SYS_gettid));
    restrict(threads_[index]);
  }

  void keep_off(int core) {
    if (core == kept_off_) return;
    kept_off_ = core;
    for (const pid_t thread : threads_)
      if (thread != 0) restrict(thread);
  }

 private:
  // A system that forbids this, or has one core, leaves the thread where it is.
  void restrict(pid_t thread) const {
    if (kept_off_ < 0 || CPU_COUNT(&all_) < 2) return;
    cpu_set_t others = all_;
    CPU_CLR(kept_off_, &others);
    sched_setaffinity(thread, sizeof others, &others);
  }

  std::vector<pid_t> threads_;
  cpu_set_t all_;
  int kept_off_ = -1;
};

// Threads that wait for work: they spin for a while, because the next call often follows soon, then they sleep.
class ThreadPool {
 public:
  explicit ThreadPool(int threads) : scratch(threads), placement_(threads), done_(0) {
    try {
      for (int index = 1; index < threads; index++) helpers_.emplace_back([this, index] { serve(index); });
    } catch (...) {  // the system cannot start more threads
      end();
      throw;
    }
  }

  ~ThreadPool() { end(); }

  // Whether this process is a fork of the one that opened the pool: a fork does not inherit threads.
  bool is_forked() const { return getpid() != owner_; }

  int threads() const { return is_forked() ? 1 : static_cast<int>(helpers_.size()) + 1; }

  // Calls job(index) on every thread, each with its own index, counted from 0. One call at a time.
  void run(const std::function<void(int)>& job) {
    const int others = threads() - 1;
    if (others == 0) return job(0);
    done_.store(0, std::memory_order_relaxed);
    publish(&job);
    job(0);
    for (int spins = 0; done_.load(std::memory_order_acquire) != others;) SpinBarrier::pause(spins);
  }

  // Wakes threads that sleep: a call follows soon. Until then they spin, for as long as after a call.
  void wake() {
    if (helpers_.empty() || is_forked()) return;
    {
      const std::lock_guard<std::mutex> lock(asleep_);
      if (sleepers_ == 0) return;
      wakes_++;
      placement_.keep_off(sched_getcpu());
    }
    awake_.notify_all();
  }

  std::mutex in_use;
  std::vector<Scratch> scratch;
  std::vector<float> interlayer[2];  // outputs of one layer, inputs of the next
  std::vector<float> unprojected;    // states before their projection

 private:
  void end() {
    publish(nullptr);
    for (std::thread& helper : helpers_) helper.join();
  }

  void publish(const std::function<void(int)>* job) {
    {
      const std::lock_guard<std::mutex> lock(asleep_);
      job_ = job;
      round_.fetch_add(1, std::memory_order_release);
      if (sleepers_ == 0) return;
      placement_.keep_off(sched_getcpu());
    }
    awake_.notify_all();
  }

  void enter(int index) {
    const std::lock_guard<std::mutex> lock(asleep_);
    placement_.add(index);
  }

  void serve(int index) {
    enter(index);
    for (int64_t seen = 0;;) {
      await(seen);
      seen++;
      if (job_ == nullptr) return;
      (*job_)(index);
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  void await(int64_t seen) {
    using std::chrono::steady_clock;
    const std::chrono::microseconds spin(SPIN_US);
    auto until = steady_clock::now() + spin;
    for (int spins = 0; round_.load(std::memory_order_acquire) == seen;) {
      SpinBarrier::pause(spins);
      if (spins % 256 == 0 && steady_clock::now() > until) {
        sleep(seen);
        until = steady_clock::now() + spin;
      }
    }
  }

  // Sleeps until there is work, or will be soon.
  void sleep(int64_t seen) {
    std::unique_lock<std::mutex> lock(asleep_);
    const int64_t wakes = wakes_;
    sleepers_++;
    while (round_.load(std::memory_order_acquire) == seen && wakes_ == wakes) awake_.wait(lock);
    sleepers_--;
  }

  static constexpr int SPIN_US = 500;

  const pid_t owner_ = getpid();
  std::vector<std::thread> helpers_;
  std::mutex asleep_;
  Condition awake_;
  Placement placement_;  // this and the next two are guarded by asleep_
  int sleepers_ = 0;
  int64_t wakes_ = 0;
  const std::function<void(int)>* job_ = nullptr;
  alignas(64) std::atomic<int64_t> round_{0};
  alignas(64) std::atomic<int> done_;
};

// The number of teams for so many active rows. Teams do not wait for each other, but each reads all weights. With few
// rows reading dominates the time, so all threads are one team.
int teams_for(int threads, int64_t active) {
  for (int teams = threads; teams > 1; teams--)
    if (threads % teams == 0 && active >= teams * TEAM_ROWS) return teams;
  return 1;
}

// Deals rows, longest first, to teams, so that all get about the same lengths.
std::vector<Team> deal(const std::vector<int64_t>& rows, const int64_t* lengths, int threads, int count) {
  std::vector<Team> teams(count);
  for (Team& team : teams) {
    team.threads = threads / count;
    team.barrier.set_threads(team.threads);
  }
  for (size_t slot = 0; slot < rows.size(); slot++) {
    const int turn = static_cast<int>(slot % count);
    Team& team = teams[(slot / count) % 2 == 0 ? turn : count - 1 - turn];
    team.rows.push_back(rows[slot]);
    team.lengths.push_back(lengths[rows[slot]]);
  }
  return teams;
}

// The phases of a batch: as rows end, fewer and larger teams compute the others.
std::vector<Phase> phases_of(int threads, int64_t rows, const int64_t* lengths) {
  std::vector<int64_t> order(rows);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return lengths[a] > lengths[b]; });
  const int64_t longest = rows == 0 ? 0 : lengths[order.front()];
  std::vector<Phase> phases;
  for (int64_t begin = 0; phases.empty() || begin < longest; begin = phases.back().end) {
    while (begin > 0 && lengths[order.back()] <= begin) order.pop_back();
    const int64_t active =
        std::count_if(order.begin(), order.end(), [&](int64_t row) { return lengths[row] > begin; });
    const int count = teams_for(threads, active);
    const int64_t end = count == 1 ? longest : lengths[order[count * TEAM_ROWS - 1]];
    phases.push_back({begin, end, deal(order, lengths, threads, count)});
  }
  return phases;
}

// ---------------------------------------------------------------------------------------------------------------------
// Linear layer
// ---------------------------------------------------------------------------------------------------------------------

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
    const std::function<void(int)> work = [&](int index) {
      for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;)
        compute(real, task / across * TASK_ROWS, task % across * TASK_BLOCKS, pool->scratch[index]);
    };
    if (tasks == 1)
      work(0);  // without waking the other threads
    else
      pool->run(work);
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

// ---------------------------------------------------------------------------------------------------------------------
// All layers
// ---------------------------------------------------------------------------------------------------------------------

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
    pool->run([&](int index) {
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
    std::vector<Phase> phases = phases_of(pool->threads(), batch.rows, batch.lengths);
    SpinBarrier between;
    between.set_threads(phases.size() > 1 ? pool->threads() : 1);
    const int fewest = phases.front().teams.front().threads;
    const int64_t most_blocks = (blocks() + fewest - 1) / fewest;
    const size_t most_rows = std::max(INPUT_ROWS, batch.rows);
    const size_t operand_size =
        Recurrent::operand(Recurrent::depth(std::max({inputs, hidden, directions * outputs})));
    const int64_t row_vectors = most_blocks * sums_of(cell) + (projects ? PROJECTED : 0);
    for (Scratch& scratch : pool->scratch) scratch.reserve(most_rows, operand_size, row_vectors * LANES * most_rows);
    pool->run([&](int index) {
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

// Null: out of memory. `each`: the pointers to the weights of a layer in one direction.
void* open_stack(void* pool, int cell, int64_t layers, int64_t directions, int64_t inputs, int64_t hidden,
                 int64_t outputs, const float* const* weights, int each) {
  try {
    std::vector<Weights> own;
    for (int64_t slot = 0; slot < layers * directions; slot++, weights += each)
      own.push_back({weights[0], weights[1], weights[2], each == 4 ? weights[3] : nullptr});
    auto* threads = static_cast<ThreadPool*>(pool);
    return new LayerStack{threads, cell, layers, directions, inputs, hidden, outputs, std::move(own)};
  } catch (const std::exception&) {
    return nullptr;
  }
}

}  // namespace

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

// weights has three pointers for each layer and direction, as in Weights. Null: out of memory.
void* recurrence_open_stack(void* pool, int cell, int64_t layers, int64_t directions, int64_t inputs, int64_t hidden,
                            const float* const* weights) {
  return open_stack(pool, cell, layers, directions, inputs, hidden, hidden, weights, 3);
}
// The same for an LSTM whose states h are projected to `outputs` units: weights has four pointers.
void* recurrence_open_projected_stack(void* pool, int64_t layers, int64_t directions, int64_t inputs, int64_t hidden,
                                      int64_t outputs, const float* const* weights) {
  return open_stack(pool, LSTM, layers, directions, inputs, hidden, outputs, weights, 4);
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
