// Allocations that fail, for tests: compiled together with the recurrent library, whose allocations all come here.
//
// Linked with -Wl,-Bsymbolic, so that the library uses these operators, and with -Wl,--wrap for the functions of C.

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<long> before_fault{-1};  // allocations that succeed before the one that fails; below 0: none fails
std::atomic<long> live{0};

bool fails() {
  if (before_fault.load() < 0) return false;
  return before_fault.fetch_sub(1) == 0;
}

void* counted(void* memory) {
  if (memory != nullptr) live++;
  return memory;
}

void* allocate(std::size_t size) {
  void* memory = fails() ? nullptr : counted(std::malloc(size == 0 ? 1 : size));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

extern "C" {

void* __real_aligned_alloc(std::size_t alignment, std::size_t size);
void __real_free(void* memory);

void* __wrap_aligned_alloc(std::size_t alignment, std::size_t size) {
  return fails() ? nullptr : counted(__real_aligned_alloc(alignment, size));
}

void __wrap_free(void* memory) {
  if (memory != nullptr) live--;
  __real_free(memory);
}

// Let the allocation fail that comes after so many others; below 0: none.
void faults_arm(long successes) { before_fault = successes; }
// Whether that allocation has not come yet.
int faults_armed() { return before_fault >= 0; }
// Allocations that were not freed.
long faults_live() { return live; }
}

void* operator new(std::size_t size) { return allocate(size); }
void* operator new[](std::size_t size) { return allocate(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return fails() ? nullptr : counted(std::malloc(size == 0 ? 1 : size));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  const std::size_t unit = static_cast<std::size_t>(alignment);
  void* memory = __wrap_aligned_alloc(unit, (size + unit - 1) / unit * unit);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { __wrap_free(memory); }
void operator delete[](void* memory) noexcept { __wrap_free(memory); }
void operator delete(void* memory, std::size_t) noexcept { __wrap_free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { __wrap_free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { __wrap_free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { __wrap_free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { __wrap_free(memory); }
