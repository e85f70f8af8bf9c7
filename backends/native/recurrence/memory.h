// Aligned memory of floats.

#pragma once

#include <sys/mman.h>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace {

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

}  // namespace
