// Matrices in memory of the caller's: what the products and layers of training read and write.
#pragma once

#include <cstdint>

namespace tpce::sim {

// A matrix that is read, with any strides: element (i, j) is data[i * row_stride + j * col_stride].
template <class Real>
struct Factor {
  const Real* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;
  std::int64_t col_stride = 1;

  Factor transposed() const { return {data, cols, rows, col_stride, row_stride}; }
  Real at(std::int64_t i, std::int64_t j) const { return data[i * row_stride + j * col_stride]; }
};

// A row-major matrix that may be written.
template <class Real>
struct View {
  Real* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  View() = default;
  View(Real* first, std::int64_t row_count, std::int64_t col_count) : View(first, row_count, col_count, col_count) {}
  View(Real* first, std::int64_t row_count, std::int64_t col_count, std::int64_t row_stride)
      : data(first), rows(row_count), cols(col_count), stride(row_stride) {}

  Real* row(std::int64_t i) const { return data + i * stride; }
  View row_range(std::int64_t first, std::int64_t count) const { return {row(first), count, cols, stride}; }
  View column_range(std::int64_t first, std::int64_t count) const { return {data + first, rows, count, stride}; }
  operator Factor<Real>() const { return {data, rows, cols, stride, 1}; }
  Factor<Real> transposed() const { return Factor<Real>(*this).transposed(); }
};

}  // namespace tpce::sim
