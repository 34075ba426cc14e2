// Views over memory that the caller owns: logits, gradients and labels. A view never allocates and never copies.
#pragma once

#include <cstdint>
#include <type_traits>

#include "tpce/dtype.h"

namespace tpce {

// Where memory lives. The numbers are DLPack's device types, so that arrays of other frameworks keep theirs.
enum class DeviceType : std::int32_t { kCpu = 1, kCuda = 2 };

struct Place {
  DeviceType type = DeviceType::kCpu;
  std::int32_t id = 0;
  friend bool operator==(const Place& a, const Place& b) { return a.type == b.type && a.id == b.id; }
};

// A CUDA stream on a device; null on the host. Calls on one queue run one after another, so that they share one
// workspace, at the backend's place: of as many bytes as Backend::workspace_bytes() asks for, aligned to kAlignment.
struct Queue {
  static constexpr std::size_t kAlignment = 256;

  void* stream = nullptr;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};

// A row-major matrix [rows, cols]. row_stride counts elements, is at least cols, and may exceed it (a slice of a wider
// buffer). Every count is 64 bits wide, and so is every index computed from one: rows * row_stride may exceed 2^32.
template <class Void>
struct BasicMatrix {
  Void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;
  Place place;

  // First element of row i. T must be the type that dtype names.
  template <class T>
  auto row(std::int64_t i) const {
    using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;
    return static_cast<Element*>(data) + i * row_stride;
  }

  // Rows [first, first + count).
  BasicMatrix row_range(std::int64_t first, std::int64_t count) const {
    return {byte_offset(first * row_stride), dtype, count, cols, row_stride, place};
  }

  // Columns [first, first + count).
  BasicMatrix column_range(std::int64_t first, std::int64_t count) const {
    return {byte_offset(first), dtype, rows, count, row_stride, place};
  }

  // A template, as nvcc takes a plain one for a conversion of the const matrix to itself.
  template <class Const>
  operator BasicMatrix<Const>() const requires(std::is_same_v<Const, const void> && !std::is_const_v<Void>) {
    return {data, dtype, rows, cols, row_stride, place};
  }

 private:
  Void* byte_offset(std::int64_t elements) const {
    using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
    if (data == nullptr) return nullptr;  // of no rows: an offset to null is undefined
    return static_cast<Byte*>(data) + elements * static_cast<std::int64_t>(size_of(dtype));
  }
};

using Matrix = BasicMatrix<void>;
using ConstMatrix = BasicMatrix<const void>;

// A contiguous matrix on the host whose element type names the dtype: matrix_of(pointer, T, V).
template <class T>
auto matrix_of(T* data, std::int64_t rows, std::int64_t cols) {
  using Void = std::conditional_t<std::is_const_v<T>, const void, void>;
  return BasicMatrix<Void>{data, DTypeOf<std::remove_const_t<T>>::value, rows, cols, cols, {}};
}

// Calls visit(T{}) with the element type that dtype names.
template <class Visitor>
decltype(auto) visit_dtype(DType dtype, Visitor&& visit) {
  switch (dtype) {
    case DType::kFloat64:
      return visit(double{});
    case DType::kBFloat16:
      return visit(BFloat16{});
    case DType::kFloat16:
      return visit(Float16{});
    case DType::kFloat32:
      break;
  }
  return visit(float{});
}

// The same for the types that widen exactly to fp32, which the canonical algorithm takes; the driver has refused fp64.
template <class Visitor>
decltype(auto) visit_narrow_dtype(DType dtype, Visitor&& visit) {
  if (dtype == DType::kBFloat16) return visit(BFloat16{});
  if (dtype == DType::kFloat16) return visit(Float16{});
  return visit(float{});
}

// Labels (targets) [count], int32 or int64, contiguous.
class Labels {
 public:
  Labels() = default;
  Labels(const std::int32_t* data, std::int64_t count, Place place = {})
      : data_(data), wide_(false), count_(count), place_(place) {}
  Labels(const std::int64_t* data, std::int64_t count, Place place = {})
      : data_(data), wide_(true), count_(count), place_(place) {}

  std::int64_t size() const { return count_; }
  Place place() const { return place_; }
  bool is_null() const { return data_ == nullptr; }
  const void* data() const { return data_; }
  bool is_wide() const { return wide_; }  // int64

  // Labels of rows [first, first + count).
  Labels range(std::int64_t first, std::int64_t count) const {
    Labels labels = *this;
    labels.data_ = static_cast<const char*>(data_) + first * (wide_ ? 8 : 4);
    labels.count_ = count;
    return labels;
  }

  // Label of row i; host memory only.
  std::int64_t operator[](std::int64_t i) const {
    return wide_ ? static_cast<const std::int64_t*>(data_)[i]
                 : std::int64_t{static_cast<const std::int32_t*>(data_)[i]};
  }

 private:
  const void* data_ = nullptr;
  bool wide_ = true;
  std::int64_t count_ = 0;
  Place place_;
};

}  // namespace tpce
