// A comparison as text for people and as JSON for programs.
#pragma once

#include <string>

#include "golden/compare.h"

namespace tpce::golden {

// Tables of distances and of means, and what is on one side only. Ends with a line end.
std::string to_table(const Comparison& comparison);

// One JSON object on one line, without a line end: the fields of Comparison and its parts by name, "within" and, for
// each metric, "within". A number that is not finite is null; beside each a and b stands its repr as a_repr and b_repr.
std::string to_json(const Comparison& comparison);

}  // namespace tpce::golden
