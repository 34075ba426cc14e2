#include "bench/allocations.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace tpce::bench {
namespace {

std::atomic<std::ptrdiff_t> allocated{0};
std::atomic<std::ptrdiff_t> peak{0};

void* counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  const auto size = static_cast<std::ptrdiff_t>(malloc_usable_size(memory));
  const std::ptrdiff_t now = allocated.fetch_add(size) + size;
  std::ptrdiff_t before = peak.load();
  while (before < now && !peak.compare_exchange_weak(before, now)) {
  }
  return memory;
}

void release(void* memory) {
  allocated -= static_cast<std::ptrdiff_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

std::size_t peak_allocated() { return static_cast<std::size_t>(peak.load()); }

void start_counting_allocations() {
  allocated = 0;
  peak = 0;
}

}  // namespace tpce::bench

void* operator new(std::size_t size) { return tpce::bench::counted(std::malloc(size)); }
void* operator new(std::size_t size, std::align_val_t align) {
  const auto alignment = static_cast<std::size_t>(align);
  return tpce::bench::counted(std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment));
}
void operator delete(void* memory) noexcept { tpce::bench::release(memory); }
void operator delete(void* memory, std::size_t) noexcept { tpce::bench::release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { tpce::bench::release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { tpce::bench::release(memory); }
