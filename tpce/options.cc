#include "tpce/options.h"

#include <stdexcept>
#include <string>

namespace tpce {

Reduction reduction_from_name(std::string_view name) {
  if (name == "none") return Reduction::kNone;
  if (name == "sum") return Reduction::kSum;
  if (name == "mean") return Reduction::kMean;
  throw std::invalid_argument("reduction: got '" + std::string(name) + "', expected none, sum or mean");
}

std::string_view name_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::kNone:
      return "none";
    case Reduction::kSum:
      return "sum";
    case Reduction::kMean:
      return "mean";
  }
  return "unknown";
}

}  // namespace tpce
