#include "tpce/matrix.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "tests/support/sparse_memory.h"

namespace tpce {
namespace {

using testing::SparseMemory;

TEST(Matrix, RowsFollowTheStride) {
  std::array<float, 12> data{};
  const Matrix matrix{data.data(), DType::kFloat32, 3, 2, 4, {}};
  EXPECT_EQ(matrix.row<float>(0), &data[0]);
  EXPECT_EQ(matrix.row<float>(2), &data[8]);
  matrix.row<float>(1)[1] = 7.0f;
  EXPECT_EQ(data[5], 7.0f);
}

TEST(Matrix, RangesKeepTheStrideAndTheRest) {
  std::array<BFloat16, 20> data{};
  const Matrix whole{data.data(), DType::kBFloat16, 4, 5, 5, {DeviceType::kCpu, 3}};
  const Matrix part = whole.row_range(1, 2).column_range(3, 2);
  EXPECT_EQ(part.data, &data[8]);
  EXPECT_EQ(part.dtype, DType::kBFloat16);
  EXPECT_EQ(part.rows, 2);
  EXPECT_EQ(part.cols, 2);
  EXPECT_EQ(part.row_stride, 5);
  EXPECT_EQ(part.place, whole.place);
  EXPECT_EQ(part.row<BFloat16>(1), &data[13]);

  const ConstMatrix read_only = part;
  EXPECT_EQ(read_only.row<BFloat16>(1), &data[13]);
  static_assert(std::is_same_v<decltype(read_only.row<BFloat16>(0)), const BFloat16*>);
}

// T = 0 comes with a null pointer from most containers.
TEST(Matrix, RangesOfNoRowsStayNull) {
  const Matrix empty = matrix_of(static_cast<float*>(nullptr), 0, 5);
  EXPECT_EQ(empty.column_range(3, 2).data, nullptr);
  EXPECT_EQ(empty.column_range(3, 2).row_range(0, 0).data, nullptr);
}

TEST(Matrix, OfAPointerIsContiguous) {
  std::array<double, 6> data{};
  const Matrix matrix = matrix_of(data.data(), 2, 3);
  EXPECT_EQ(matrix.dtype, DType::kFloat64);
  EXPECT_EQ(matrix.row_stride, 3);
  const ConstMatrix read_only = matrix_of(static_cast<const double*>(data.data()), 2, 3);
  EXPECT_EQ(read_only.row<double>(1), &data[3]);
}

TEST(Matrix, VisitGivesTheNamedType) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    const auto visited = visit_dtype(dtype, [](auto element) { return DTypeOf<decltype(element)>::value; });
    EXPECT_EQ(visited, dtype);
    if (dtype == DType::kFloat64) continue;
    const auto narrow = visit_narrow_dtype(dtype, [](auto element) { return DTypeOf<decltype(element)>::value; });
    EXPECT_EQ(narrow, dtype);
  }
}

// Element indices beyond 2^31 and 2^32, where a 32-bit product wraps: the last row starts at element 9 * 2^29.
TEST(Matrix, IndicesBeyond2To32Elements) {
  constexpr std::int64_t kRows = 10;
  constexpr std::int64_t kStride = std::int64_t{1} << 29;
  const SparseMemory memory(static_cast<std::size_t>(kRows * kStride) * sizeof(Float16));
  if (!memory.ok()) GTEST_SKIP() << "the machine does not lend 10 GiB of address space";
  auto* data = static_cast<Float16*>(memory.data());
  const Matrix matrix{data, DType::kFloat16, kRows, kStride, kStride, {}};
  for (const std::int64_t row : {std::int64_t{4}, std::int64_t{5}, std::int64_t{8}, std::int64_t{9}}) {
    data[row * kStride].bits = static_cast<std::uint16_t>(100 + row);
    data[row * kStride + kStride - 1].bits = static_cast<std::uint16_t>(200 + row);
  }
  for (const std::int64_t row : {std::int64_t{4}, std::int64_t{5}, std::int64_t{8}, std::int64_t{9}}) {
    EXPECT_EQ(matrix.row<Float16>(row)->bits, 100 + row);
    EXPECT_EQ(matrix.row_range(row, 1).row<Float16>(0)->bits, 100 + row);
    EXPECT_EQ(matrix.row_range(row, 1).column_range(kStride - 1, 1).row<Float16>(0)->bits, 200 + row);
    EXPECT_EQ(matrix.column_range(kStride - 1, 1).row<Float16>(row)->bits, 200 + row);
  }
  EXPECT_EQ(matrix.row<Float16>(0)->bits, 0);
}

TEST(Labels, OfBothWidths) {
  const std::vector<std::int32_t> narrow{3, -100, 2147483647};
  const std::vector<std::int64_t> wide{3, -100, std::int64_t{1} << 40};
  const Labels narrow_labels(narrow.data(), 3);
  const Labels wide_labels(wide.data(), 3, {DeviceType::kCuda, 1});
  EXPECT_EQ(narrow_labels.size(), 3);
  EXPECT_EQ(narrow_labels[1], -100);
  EXPECT_EQ(narrow_labels[2], 2147483647);
  EXPECT_EQ(wide_labels[2], std::int64_t{1} << 40);
  EXPECT_EQ(wide_labels.place(), (Place{DeviceType::kCuda, 1}));
  EXPECT_EQ(Labels().size(), 0);
}

}  // namespace
}  // namespace tpce
