#include "io/tensor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace tpce::io {
namespace {

using Shape = std::vector<std::int64_t>;

TEST(ByteCount, IsTheProductOrNothing) {
  EXPECT_EQ(byte_count(Shape{}, 4), 4);
  EXPECT_EQ(byte_count(Shape{3, 5}, 2), 30);
  EXPECT_EQ(byte_count(Shape{0, 5}, 2), 0);
  EXPECT_EQ(byte_count(Shape{std::int64_t{1} << 60}, 4), std::int64_t{1} << 62);
  EXPECT_EQ(byte_count(Shape{std::int64_t{1} << 61}, 4), std::nullopt);
  EXPECT_EQ(byte_count(Shape{std::int64_t{1} << 32, std::int64_t{1} << 32}, 1), std::nullopt);
  EXPECT_EQ(byte_count(Shape{0, std::int64_t{1} << 62, 4}, 1), std::nullopt);
  EXPECT_EQ(byte_count(Shape{-1}, 4), std::nullopt);
}

TEST(ElementType, PairsWithDType) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    EXPECT_EQ(dtype_of(element_type_of(dtype)), dtype);
    EXPECT_EQ(size_of(element_type_of(dtype)), tpce::size_of(dtype));
    EXPECT_EQ(name_of(element_type_of(dtype)), tpce::name_of(dtype));
  }
  EXPECT_EQ(dtype_of(ElementType::kInt64), std::nullopt);
  EXPECT_EQ(dtype_of(ElementType::kBits16), std::nullopt);
}

TEST(TensorOver, CopiesOnlyWhereElementsAreMisaligned) {
  alignas(8) std::byte storage[24];
  for (std::size_t i = 0; i < sizeof(storage); ++i) storage[i] = static_cast<std::byte>(i);
  const Tensor aligned = tensor_over({storage, 16}, ElementType::kFloat64, {2});
  EXPECT_EQ(aligned.data, storage);
  EXPECT_EQ(aligned.elements(), 2);
  const Tensor shifted = tensor_over({storage + 1, 16}, ElementType::kFloat64, {2});
  EXPECT_NE(shifted.data, storage + 1);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(shifted.data) % 8, 0u);
  EXPECT_EQ(std::memcmp(shifted.data, storage + 1, 16), 0);
}

}  // namespace
}  // namespace tpce::io
