// Matrix product by the processor's tiles (AMX of Intel's processors).

#pragma once

#include <algorithm>
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "arithmetic.h"
#include "vectors.h"

namespace {

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

}  // namespace
