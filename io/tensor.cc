#include "io/tensor.h"

#include <cstring>
#include <utility>

namespace tpce::io {

std::string_view name_of(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return "fp32";
    case ElementType::kFloat64:
      return "fp64";
    case ElementType::kBFloat16:
      return "bf16";
    case ElementType::kFloat16:
      return "fp16";
    case ElementType::kInt32:
      return "int32";
    case ElementType::kInt64:
      return "int64";
    case ElementType::kBits16:
      return "uint16 or 2 opaque bytes";
  }
  return "unknown";
}

ElementType element_type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return ElementType::kFloat64;
    case DType::kBFloat16:
      return ElementType::kBFloat16;
    case DType::kFloat16:
      return ElementType::kFloat16;
    case DType::kFloat32:
      break;
  }
  return ElementType::kFloat32;
}

std::optional<DType> dtype_of(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return DType::kFloat32;
    case ElementType::kFloat64:
      return DType::kFloat64;
    case ElementType::kBFloat16:
      return DType::kBFloat16;
    case ElementType::kFloat16:
      return DType::kFloat16;
    case ElementType::kInt32:
    case ElementType::kInt64:
    case ElementType::kBits16:
      break;
  }
  return std::nullopt;
}

std::optional<std::int64_t> byte_count(std::span<const std::int64_t> shape, std::size_t element_bytes) {
  auto count = static_cast<std::int64_t>(element_bytes);
  bool overflow = false;
  bool zero = false;
  for (std::int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    zero = zero || dimension == 0;
    // A zero elsewhere makes the product 0, yet dimensions that overflow without it are nonsense all the same.
    if (dimension > 0 && __builtin_mul_overflow(count, dimension, &count)) overflow = true;
  }
  if (overflow) return std::nullopt;
  return zero ? 0 : count;
}

std::int64_t Tensor::elements() const { return byte_count(shape, 1).value_or(0); }

Tensor tensor_over(std::span<const std::byte> bytes, ElementType type, std::vector<std::int64_t> shape) {
  Tensor tensor{bytes.data(), type, std::move(shape), nullptr};
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % size_of(type) != 0 && !bytes.empty()) {
    std::shared_ptr<std::byte[]> copy(new std::byte[bytes.size()]);  // operator new aligns to 16
    std::memcpy(copy.get(), bytes.data(), bytes.size());
    tensor.copy = copy;
    tensor.data = copy.get();
  }
  return tensor;
}

}  // namespace tpce::io
