#include "io/logits_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "io/array_writer.h"
#include "io/npy.h"
#include "io/sha256.h"
#include "tests/support/scratch.h"

namespace tpce::io {
namespace {

using testing::expect_parts;
using testing::message_of;
using testing::Scratch;
using Shape = std::vector<std::int64_t>;

// Elements 0, 1, 2, ... as bytes do not matter to the checks of shape and type.
std::string make_npy(const Scratch& scratch, const std::string& name, ElementType type, const Shape& shape) {
  const auto bytes = static_cast<std::size_t>(*byte_count(shape, size_of(type)));
  return scratch.write(name, npy_header(type, shape) + std::string(bytes, '\1'));
}

struct Pair {
  NamedShape logits;
  NamedShape labels;
};

std::string make_safetensors(const Scratch& scratch, const Pair& pair) {
  const std::vector<NamedShape> tensors = {pair.logits, pair.labels};
  std::size_t bytes = 0;
  for (const NamedShape& tensor : tensors) {
    bytes += static_cast<std::size_t>(*byte_count(tensor.shape, size_of(tensor.type)));
  }
  return scratch.write("x.safetensors", safetensors_header(tensors, {}) + std::string(bytes, '\1'));
}

std::string message_for(const LogitsRequest& request) {
  return message_of([&] { LogitsFile{request}; });
}

TEST(LogitsFile, ReadsOneSafetensorsFile) {
  const Scratch scratch;
  const std::string path =
      make_safetensors(scratch, {{"logits", ElementType::kBFloat16, {2, 3}}, {"labels", ElementType::kInt64, {2}}});
  LogitsFile opened({.file = path});
  const LogitsFile file = std::move(opened);
  EXPECT_EQ(file.dtype(), DType::kBFloat16);
  EXPECT_EQ(file.rows(), 2);
  EXPECT_EQ(file.vocab(), 3);
  EXPECT_EQ(file.logits().matrix.row_stride, 3);
  EXPECT_EQ(file.logits().matrix.row<BFloat16>(1)[2].bits, 0x0101);
  EXPECT_EQ(file.labels().size(), 2);
  EXPECT_EQ(file.labels()[1], 0x0101010101010101);
  EXPECT_EQ(file.sha256(), sha256_of_file(path));
  EXPECT_EQ(file.labels_sha256(), std::nullopt);
}

TEST(LogitsFile, ReadsTensorsOfOtherNames) {
  const Scratch scratch;
  const std::string path =
      make_safetensors(scratch, {{"z", ElementType::kFloat64, {2, 3}}, {"y", ElementType::kInt32, {2}}});
  const LogitsFile file({.file = path, .tensor = "z", .label_tensor = "y"});
  EXPECT_EQ(file.dtype(), DType::kFloat64);
  EXPECT_EQ(file.labels()[0], 0x01010101);
  expect_parts(message_for({.file = path}), {path, "no tensor 'logits'", "'y', 'z'"});
}

TEST(LogitsFile, ReadsNpyWithLabelsOfEitherFormat) {
  const Scratch scratch;
  const std::string logits = make_npy(scratch, "z.npy", ElementType::kFloat32, {2, 3});
  const std::string labels = make_npy(scratch, "y.npy", ElementType::kInt32, {2});
  const LogitsFile file({.file = logits, .labels_file = labels});
  EXPECT_EQ(file.dtype(), DType::kFloat32);
  EXPECT_EQ(file.labels_sha256(), sha256_of_file(labels));
  const std::string both =
      make_safetensors(scratch, {{"logits", ElementType::kFloat16, {5, 3}}, {"labels", ElementType::kInt64, {2}}});
  EXPECT_EQ(LogitsFile({.file = logits, .labels_file = both}).labels().size(), 2);
  expect_parts(message_for({.file = logits}), {logits, "--labels"});
  EXPECT_EQ(file.labels_path(), labels);
  const std::string alone =
      make_safetensors(scratch, {{"logits", ElementType::kFloat16, {2, 3}}, {"labels", ElementType::kInt64, {2}}});
  EXPECT_EQ(LogitsFile({.file = alone}).labels_path(), alone);
}

// At every distance from a page's start, and, in .safetensors, at addresses that are not aligned to the elements.
TEST(LogitsFile, MapsAnyRows) {
  const Scratch scratch;
  constexpr std::int64_t kRows = 40, kVocab = 333;
  std::vector<float> logits(kRows * kVocab);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i);
  const auto text_of = [](const auto& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
  };
  const std::string npy =
      scratch.write("z.npy", npy_header(ElementType::kFloat32, Shape{kRows, kVocab}) + text_of(logits));
  const std::vector<std::int32_t> labels(kRows, 7);
  const std::string label_file =
      scratch.write("y.npy", npy_header(ElementType::kInt32, Shape{kRows}) + text_of(labels));
  std::string header = R"({"odd":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                       R"("logits":{"dtype":"F32","shape":[40,333],"data_offsets":[1,53281]},)"
                       R"("labels":{"dtype":"I32","shape":[40],"data_offsets":[53281,53441]}})";
  std::string prefix(8, '\0');
  prefix[0] = static_cast<char>(header.size());
  const std::string odd = scratch.write("odd.safetensors", prefix + header + "?" + text_of(logits) + text_of(labels));
  for (const LogitsRequest& request :
       {LogitsRequest{.file = npy, .labels_file = label_file}, LogitsRequest{.file = odd}}) {
    std::optional<LogitsFile> file(request);
    EXPECT_EQ(file->labels()[kRows - 1], 7);
    std::vector<LogitsFile::Rows> kept;
    for (std::int64_t first = 0; first < kRows; ++first) {
      kept.push_back(file->logits(first, std::min<std::int64_t>(3, kRows - first)));
    }
    file.reset();  // the rows stay
    for (std::int64_t first = 0; first < kRows; ++first) {
      const ConstMatrix& matrix = kept[static_cast<std::size_t>(first)].matrix;
      ASSERT_EQ(matrix.cols, kVocab);
      const std::size_t count = static_cast<std::size_t>(matrix.rows * kVocab);
      EXPECT_TRUE(std::equal(matrix.row<float>(0), matrix.row<float>(0) + count, logits.data() + first * kVocab));
    }
  }
}

TEST(LogitsFile, RefusesNamesForANpyFile) {
  const Scratch scratch;
  const std::string logits = make_npy(scratch, "z.npy", ElementType::kFloat32, {2, 3});
  const std::string labels = make_npy(scratch, "y.npy", ElementType::kInt32, {2});
  expect_parts(message_for({.file = logits, .labels_file = labels, .tensor = "logits"}), {logits, "'logits'"});
  expect_parts(message_for({.file = logits, .labels_file = labels, .label_tensor = "y"}), {labels, "'y'"});
  const std::string both =
      make_safetensors(scratch, {{"z", ElementType::kFloat32, {2, 3}}, {"y", ElementType::kInt64, {2}}});
  EXPECT_EQ(LogitsFile({.file = both, .labels_file = labels, .tensor = "z"}).labels().size(), 2);
  EXPECT_EQ(LogitsFile({.file = logits, .labels_file = both, .label_tensor = "y"}).labels().size(), 2);
}

TEST(LogitsFile, FlattensBatchAndSequence) {
  const Scratch scratch;
  const std::string path = make_safetensors(
      scratch, {{"logits", ElementType::kFloat32, {2, 3, 4}}, {"labels", ElementType::kInt64, {2, 3}}});
  const LogitsFile file({.file = path});
  EXPECT_EQ(file.rows(), 6);
  EXPECT_EQ(file.vocab(), 4);
  EXPECT_EQ(file.labels().size(), 6);
  const std::string flat = make_npy(scratch, "flat.npy", ElementType::kInt64, {6});
  EXPECT_EQ(LogitsFile({.file = path, .labels_file = flat}).labels().size(), 6);
  const std::string turned = make_npy(scratch, "turned.npy", ElementType::kInt64, {3, 2});
  expect_parts(message_for({.file = path, .labels_file = turned}), {turned, "[3, 2]", "[2, 3]"});
}

TEST(LogitsFile, AsksForTheDtypeOfBits) {
  const Scratch scratch;
  const std::string labels = make_npy(scratch, "y.npy", ElementType::kInt64, {2});
  for (const char* name : {"u2.npy", "v2.npy"}) {
    const std::string path = std::string(TPCE_TEST_DATA) + "/npy/" + name;
    const LogitsFile file({.file = path, .labels_file = labels, .dtype = DType::kBFloat16});
    EXPECT_EQ(file.dtype(), DType::kBFloat16);
    EXPECT_EQ(widen(file.logits().matrix.row<BFloat16>(0)[1]), -1.0f);
    expect_parts(message_for({.file = path, .labels_file = labels}), {path, "uint16", "--dtype bf16"});
    expect_parts(message_for({.file = path, .labels_file = labels, .dtype = DType::kFloat16}),
                 {path, "not --dtype fp16"});
  }
}

TEST(LogitsFile, ChecksTheDtypeThatIsAskedFor) {
  const Scratch scratch;
  const std::string path =
      make_safetensors(scratch, {{"logits", ElementType::kFloat32, {2, 3}}, {"labels", ElementType::kInt64, {2}}});
  EXPECT_EQ(LogitsFile({.file = path, .dtype = DType::kFloat32}).dtype(), DType::kFloat32);
  expect_parts(message_for({.file = path, .dtype = DType::kBFloat16}), {path, "'logits'", "fp32", "--dtype bf16"});
}

TEST(LogitsFile, NamesShapesAndTypesThatCannotBe) {
  const Scratch scratch;
  const auto message = [&](const NamedShape& logits, const NamedShape& labels) {
    return message_for({.file = make_safetensors(scratch, {logits, labels})});
  };
  const NamedShape labels{"labels", ElementType::kInt64, {2}};
  expect_parts(message({"logits", ElementType::kFloat32, {6}}, labels), {"x.safetensors", "'logits'", "[6]", "[T, V]"});
  expect_parts(message({"logits", ElementType::kFloat32, {1, 1, 2, 3}}, labels), {"'logits'", "[1, 1, 2, 3]"});
  expect_parts(message({"logits", ElementType::kFloat32, {}}, labels), {"'logits'", "[]"});
  expect_parts(message({"logits", ElementType::kFloat32, {2, 0}}, labels), {"V = 0", "at least one class"});
  expect_parts(message({"logits", ElementType::kFloat32, {0, 3}}, {"labels", ElementType::kInt64, {0}}),
               {"T = 0", "at least one row"});
  expect_parts(message({"logits", ElementType::kInt64, {2, 3}}, labels), {"'logits'", "int64", "expected bf16"});
  expect_parts(message({"logits", ElementType::kFloat32, {2, 3}}, {"labels", ElementType::kInt64, {3}}),
               {"'labels'", "[3]", "[2]", "[2, 3]"});
  expect_parts(message({"logits", ElementType::kFloat32, {2, 3}}, {"labels", ElementType::kInt64, {1, 2}}),
               {"'labels'", "[1, 2]"});
  expect_parts(message({"logits", ElementType::kFloat32, {2, 3}}, {"labels", ElementType::kFloat32, {2}}),
               {"'labels'", "fp32", "int32 or int64"});
}

TEST(LogitsFile, NamesFilesOfOtherKinds) {
  const Scratch scratch;
  expect_parts(message_for({.file = scratch.path("none.npy")}), {"none.npy", "No such file"});
  expect_parts(message_for({.file = scratch.path()}), {"directory"});
  expect_parts(message_for({.file = scratch.write("a.npz", "PK\x03\x04........")}), {"a.npz", "zip archive"});
  expect_parts(message_for({.file = scratch.write("a.txt", "step loss")}), {"a.txt", "'step los'", ".npy or"});
  expect_parts(message_for({.file = scratch.write("a.npy", "step loss")}), {"a.npy", "wrong magic"});
  expect_parts(message_for({.file = scratch.write("a.safetensors", "step loss")}), {"a.safetensors", "header of"});
}

TEST(LogitsFile, ReadsContentWhateverTheName) {
  const Scratch scratch;
  const std::string path = make_npy(scratch, "logits.bin", ElementType::kFloat32, {2, 3});
  const std::string labels = make_npy(scratch, "labels.bin", ElementType::kInt32, {2});
  EXPECT_EQ(LogitsFile({.file = path, .labels_file = labels}).rows(), 2);
}

}  // namespace
}  // namespace tpce::io
