// The bits of a fixed suite of cases, as one hash: two builds, machines or backends that print the same fingerprint
// compute the same losses and gradients.
#pragma once

#include <string>
#include <vector>

#include "tpce/backend.h"

namespace tpce::tools {

struct FingerprintCase {
  std::string name;
  std::string sha256;  // of the bits of every result of the case
};

// About 350 cases, under two seconds. Inputs come from integer arithmetic and exact fp64 operations, so that no C
// library has a say in them.
std::vector<FingerprintCase> fingerprint_cases(Backend& backend);

// SHA-256 over the lines "<name> <sha256>\n", in order.
std::string fingerprint(const std::vector<FingerprintCase>& cases);

}  // namespace tpce::tools
