#include "tests/support/memory_is_out.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

thread_local bool memory_is_out = false;

}  // namespace

namespace tpce::testing {

MemoryIsOut::MemoryIsOut() { memory_is_out = true; }
MemoryIsOut::~MemoryIsOut() { memory_is_out = false; }

}  // namespace tpce::testing

void* operator new(std::size_t bytes) {
  if (memory_is_out) throw std::bad_alloc();
  if (void* const memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
