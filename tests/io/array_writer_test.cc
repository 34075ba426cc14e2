#include "io/array_writer.h"

#include <gtest/gtest.h>

#include "io/npy.h"
#include "tests/support/scratch.h"

namespace tpce::io {
namespace {

using testing::expect_parts;
using testing::message_of;
using testing::read_bytes;
using testing::Scratch;

TEST(ArrayWriter, WritesTheBytesThatNumPyWrites) {
  const Scratch scratch;
  const std::vector<float> values = {0.5f, -1, 65504, 0x1p-14f, -0.0f, 3};
  ArrayWriter writer = ArrayWriter::npy(scratch.path("x.npy"), ElementType::kFloat32, {2, 3});
  writer.append_values(std::span<const float>(values).first(2));
  writer.append_values(std::span<const float>(values).subspan(2));
  writer.commit();
  EXPECT_EQ(read_bytes(scratch.path("x.npy")), read_bytes(std::string(TPCE_TEST_DATA) + "/npy/f4.npy"));
}

TEST(ArrayWriter, WritesRowsOfAWiderBuffer) {
  const Scratch scratch;
  const float buffer[2][5] = {{1, 2, 3, 8, 8}, {4, 5, 6, 8, 8}};
  ArrayWriter writer =
      ArrayWriter::by_extension(scratch.path("x.safetensors"), {"grad", ElementType::kFloat32, {3, 3}});
  writer.append(matrix_of(&buffer[0][0], 2, 5).column_range(0, 3));
  writer.append(matrix_of(&buffer[0][1], 1, 3));
  writer.commit();
  const SafetensorsFile file(MappedFile(scratch.path("x.safetensors")));
  const Tensor tensor = file.tensor("grad");
  const std::vector<float> read(static_cast<const float*>(tensor.data), static_cast<const float*>(tensor.data) + 9);
  EXPECT_EQ(read, (std::vector<float>{1, 2, 3, 4, 5, 6, 2, 3, 8}));
}

TEST(ArrayWriter, WritesSeveralTensors) {
  const Scratch scratch;
  ArrayWriter writer = ArrayWriter::safetensors(
      scratch.path("x"), {{"a", ElementType::kBFloat16, {1, 3}}, {"b", ElementType::kInt64, {1}}}, {{"k", "v"}});
  const std::vector<BFloat16> a = {{1}, {2}, {3}};
  const std::vector<std::int64_t> b = {-7};
  writer.append_values(std::span<const BFloat16>(a));
  writer.append_values(std::span<const std::int64_t>(b));
  writer.commit();
  const SafetensorsFile file(MappedFile(scratch.path("x")));
  EXPECT_EQ(static_cast<const BFloat16*>(file.tensor("a").data)[2].bits, 3);
  EXPECT_EQ(*static_cast<const std::int64_t*>(file.tensor("b").data), -7);
  EXPECT_EQ(file.metadata().at("k"), "v");
}

TEST(ArrayWriter, RefusesTheWrongNumberOrTypeOfElements) {
  const Scratch scratch;
  const std::vector<float> values(4);
  ArrayWriter writer = ArrayWriter::npy(scratch.path("x.npy"), ElementType::kFloat32, {3});
  expect_parts(message_of([&] { writer.append_values(std::span<const float>(values)); }), {"x.npy", "16", "12"});
  writer.append_values(std::span<const float>(values).first(2));
  expect_parts(message_of([&] { writer.commit(); }), {"x.npy", "8 bytes", "12", "nothing is written"});
  const double wide = 1;
  expect_parts(message_of([&] { writer.append(matrix_of(&wide, 1, 1)); }), {"fp64"});
  EXPECT_FALSE(std::filesystem::exists(scratch.path("x.npy")));
}

TEST(ArrayWriter, RefusesNamesAndShapesBeforeItMakesAFile) {
  const Scratch scratch;
  expect_parts(message_of([&] {
                 ArrayWriter::by_extension(scratch.path("x.bin"), {"a", ElementType::kFloat32, {1}});
               }),
               {"x.bin", ".npy or .safetensors"});
  expect_parts(
      message_of([&] { ArrayWriter::npy(scratch.path("x.npy"), ElementType::kFloat64, {std::int64_t{1} << 61}); }),
      {"x.npy", "2^63"});
  EXPECT_EQ(scratch.count(), 0u);
}

}  // namespace
}  // namespace tpce::io
