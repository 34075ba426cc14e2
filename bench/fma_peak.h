// The fused multiply-adds that a processor can do: the baseline of every matrix product.
#pragma once

#include <cstdint>
#include <string_view>

namespace tpce::bench {

// Does a number of independent fp32 multiply-adds in registers, `rounds` times, and returns that number a round.
// Throws std::invalid_argument where the target has no vectors.
using FmaLoop = std::int64_t (*)(std::int64_t rounds);
FmaLoop fma_loop_for(std::string_view target);

}  // namespace tpce::bench
