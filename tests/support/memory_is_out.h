// Memory that is out on one thread, in a program that memory_is_out.cc is linked into. ThreadSanitizer's runtime does
// not let operator new be replaced.
#pragma once

namespace tpce::testing {

// While it lives, this thread's allocations throw std::bad_alloc.
class MemoryIsOut {
 public:
  MemoryIsOut();
  ~MemoryIsOut();
  MemoryIsOut(const MemoryIsOut&) = delete;
  MemoryIsOut& operator=(const MemoryIsOut&) = delete;
};

}  // namespace tpce::testing
