// What a call allocates: operator new of the whole program is counted. Memory of oneTBB's own pools is not.
#pragma once

#include <cstddef>

namespace tpce::bench {

// The most bytes that were allocated at one time since the last call of start_counting_allocations(), beyond those that
// were allocated at that call.
std::size_t peak_allocated();
void start_counting_allocations();

}  // namespace tpce::bench
