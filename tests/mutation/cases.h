// The certified values that every mutant is held against, as text that subject.cc reads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tpce::testing {

// Rows (logits, target, upstream gradient; loss, lse, gradients), points of exp, log, log1p and exp_split, roundings to
// 16 bits, sums: each with its certified or exact value. Numbers are C hexadecimal floating point.
std::string certified_cases();

}  // namespace tpce::testing
