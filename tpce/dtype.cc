#include "tpce/dtype.h"

#include <array>
#include <stdexcept>
#include <string>

namespace tpce {

DType dtype_from_name(std::string_view name) {
  for (DType dtype : std::array{DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    if (name == name_of(dtype)) return dtype;
  }
  throw std::invalid_argument("dtype: got '" + std::string(name) + "', expected fp32, fp64, bf16 or fp16");
}

}  // namespace tpce
