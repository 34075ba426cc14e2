// An array read from a file: element type, shape, and elements that stay in the mapped file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tpce/dtype.h"

namespace tpce::io {

enum class ElementType : std::uint8_t {
  kFloat32,
  kFloat64,
  kBFloat16,
  kFloat16,
  kInt32,
  kInt64,
  kBits16,  // .npy with uint16 or two opaque bytes: bf16 where the caller says so
};

constexpr std::size_t size_of(ElementType type) {
  switch (type) {
    case ElementType::kFloat64:
    case ElementType::kInt64:
      return 8;
    case ElementType::kFloat32:
    case ElementType::kInt32:
      return 4;
    case ElementType::kBFloat16:
    case ElementType::kFloat16:
    case ElementType::kBits16:
      return 2;
  }
  return 0;
}

// "fp32", "int64", ...: as in options and messages.
std::string_view name_of(ElementType type);

ElementType element_type_of(DType dtype);

// The floating type; nothing for integers and bits.
std::optional<DType> dtype_of(ElementType type);

// Product of the dimensions times the size of an element; nothing where a dimension is negative or the product exceeds
// 2^63 - 1.
std::optional<std::int64_t> byte_count(std::span<const std::int64_t> shape, std::size_t element_bytes);

// The longest header that is read, of any format; the limit of safetensors' own reader.
constexpr std::size_t kMaxHeaderBytes = 100'000'000;

struct Tensor {
  const void* data = nullptr;  // row-major, aligned to the element size
  ElementType type = ElementType::kFloat32;
  std::vector<std::int64_t> shape;
  // Set where the file holds the elements at an address that is not aligned to their size: they were copied.
  std::shared_ptr<const std::byte[]> copy;

  std::int64_t elements() const;
};

// Where the elements of an array are in its file.
struct TensorPlace {
  ElementType type = ElementType::kFloat32;
  std::vector<std::int64_t> shape;
  std::size_t offset = 0;  // bytes from the start of the file
};

// The tensor over `bytes`, whose size must be byte_count(shape, size_of(type)). Copies only where it must (see Tensor).
Tensor tensor_over(std::span<const std::byte> bytes, ElementType type, std::vector<std::int64_t> shape);

}  // namespace tpce::io
