#include "reference/truth.h"

#include <array>
#include <stdexcept>
#include <string>

namespace tpce::reference {

Precision precision_from_name(std::string_view name) {
  for (Precision precision : std::array{Precision::kFp64, Precision::kMultiprecision, Precision::kCertified}) {
    if (name == name_of(precision)) return precision;
  }
  throw std::invalid_argument("precision: got '" + std::string(name) + "', expected fp64, multiprecision or certified");
}

std::string_view name_of(Precision precision) {
  switch (precision) {
    case Precision::kFp64:
      return "fp64";
    case Precision::kMultiprecision:
      return "multiprecision";
    case Precision::kCertified:
      return "certified";
  }
  return "unknown";
}

}  // namespace tpce::reference
