#include "io/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/support/scratch.h"

namespace tpce::io {
namespace {

using testing::expect_parts;
using testing::message_of;
using testing::Scratch;

std::string prefix(std::uint64_t length) {
  std::string bytes;
  for (std::size_t i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 0xff);
  return bytes;
}

std::string file_with(std::string_view header, std::size_t data_bytes) {
  std::string bytes = prefix(header.size());
  bytes += header;
  for (std::size_t i = 0; i < data_bytes; ++i) bytes += static_cast<char>(i + 1);
  return bytes;
}

std::string message_for(std::string_view bytes) {
  const Scratch scratch;
  const std::string path = scratch.write("x.safetensors", bytes);
  const std::string message = message_of([&] { SafetensorsFile{MappedFile(path)}; });
  expect_parts(message, {path + ": "});
  return message;
}

SafetensorsFile open(const Scratch& scratch, std::string_view bytes) {
  return SafetensorsFile(MappedFile(scratch.write("x.safetensors", bytes)));
}

constexpr std::string_view kTwo =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I64","shape":[1],"data_offsets":[6,14]},)"
    R"("a":{"dtype":"BF16","shape":[1,3],"data_offsets":[0,6]}})";

TEST(SafetensorsFile, ReadsTensorsAndMetadata) {
  const Scratch scratch;
  const SafetensorsFile file = open(scratch, file_with(kTwo, 14));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.entries().size(), 2u);
  const Tensor a = file.tensor("a");
  EXPECT_EQ(a.type, ElementType::kBFloat16);
  EXPECT_EQ(a.shape, (std::vector<std::int64_t>{1, 3}));
  EXPECT_EQ(static_cast<const std::uint16_t*>(a.data)[0], 0x0201);
  std::int64_t b = 0;
  std::memcpy(&b, file.tensor("b").data, 8);
  EXPECT_EQ(b, 0x0e0d0c0b0a090807);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file.tensor("b").data) % 8, 0u);
}

TEST(SafetensorsFile, ReadsEmptyTensorsScalarsAndTrailingSpaces) {
  const Scratch scratch;
  const SafetensorsFile file = open(scratch, file_with(R"({"e":{"dtype":"F32","shape":[0,7],"data_offsets":[4,4]},)"
                                                       R"("s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}     )",
                                                       4));
  EXPECT_EQ(file.tensor("e").elements(), 0);
  EXPECT_EQ(file.tensor("s").elements(), 1);
  EXPECT_EQ(open(scratch, file_with("{}", 0)).entries().size(), 0u);
}

TEST(SafetensorsFile, ListsTheTensorsWhenOneIsMissing) {
  const Scratch scratch;
  const SafetensorsFile file = open(scratch, file_with(kTwo, 14));
  expect_parts(message_of([&] { static_cast<void>(file.tensor("logits")); }),
               {"x.safetensors", "no tensor 'logits'", "'a', 'b'"});
  expect_parts(message_of([&] { static_cast<void>(open(scratch, file_with("{}", 0)).tensor("x")); }), {"holds none"});
}

TEST(SafetensorsFile, RefusesAnUnreadDtypeOnlyWhenAsked) {
  const Scratch scratch;
  const SafetensorsFile file = open(scratch, file_with(R"({"a":{"dtype":"F4","shape":[8],"data_offsets":[0,4]},)"
                                                       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})",
                                                       6));
  expect_parts(message_of([&] { static_cast<void>(file.tensor("a")); }), {"'a'", "'F4'", "expected BF16"});
  expect_parts(message_of([&] { static_cast<void>(file.tensor("b")); }), {"'b'", "'U8'"});
}

TEST(SafetensorsFile, RefusesHeadersThatDoNotFit) {
  expect_parts(message_for("1234567"), {"7 bytes"});
  expect_parts(message_for(prefix(1000) + "{}"), {"header of 1000 bytes", "only 2 bytes follow"});
  expect_parts(message_for(prefix(100'000'001) + "{}"), {"header of 100000001 bytes", "at most 100000000"});
  expect_parts(message_for(prefix(~std::uint64_t{0}) + "{}"), {"header of 18446744073709551615 bytes"});
  expect_parts(message_for(prefix(0)), {"the header begins with ''"});
  expect_parts(message_for(prefix(2) + "[]"), {"the header begins with '[]', expected '{'"});
  expect_parts(message_for(file_with(" {}", 0)), {"the header begins with ' {}'"});
}

TEST(SafetensorsFile, RefusesMalformedHeaders) {
  expect_parts(message_for(file_with("{\"a\":", 0)), {"invalid JSON"});
  expect_parts(message_for(file_with("{} x", 0)), {"invalid JSON"});
  expect_parts(message_for(file_with(std::string_view("{}\0", 3), 0)), {"invalid JSON"});
  expect_parts(message_for(file_with("{" + std::string(100'000, '['), 0)), {"x.safetensors"});
  expect_parts(message_for(file_with("{\"a\":" + std::string(100'000, '['), 0)), {"deeper"});
  expect_parts(message_for(file_with(R"({"a":1})", 0)), {"tensor 'a'", "not an object"});
  expect_parts(message_for(file_with(R"({"a":{}})", 0)), {"tensor 'a'", "dtype"});
  expect_parts(message_for(file_with(R"({"__metadata__":[]})", 0)), {"__metadata__"});
  expect_parts(message_for(file_with(R"({"__metadata__":{"k":1}})", 0)), {"__metadata__", "'k'"});
  const char* one = R"({{"a":{{"dtype":"F32","shape":{},"data_offsets":{}}}}})";
  const auto with = [&](std::string_view shape, std::string_view offsets) {
    return message_for(file_with(fmt::format(fmt::runtime(one), shape, offsets), 8));
  };
  expect_parts(with("[2.0]", "[0,8]"), {"'a'", "shape", "2.0"});
  expect_parts(with("[-2]", "[0,8]"), {"'a'", "shape", "-2"});
  expect_parts(with("2", "[0,8]"), {"'a'", "shape", "not a list"});
  expect_parts(with("[\"2\"]", "[0,8]"), {"'a'", "shape"});
  expect_parts(with("[2]", "[0]"), {"'a'", "data_offsets holds 1"});
  expect_parts(with("[2]", "[0,8,8]"), {"'a'", "data_offsets holds 3"});
  expect_parts(with("[2]", "[8,0]"), {"'a'", "out of range"});
  expect_parts(with("[2]", "[0,9]"), {"'a'", "out of range", "8 bytes of data"});
  expect_parts(with("[2]", "[0,18446744073709551615]"), {"'a'", "data_offsets"});
  expect_parts(with("[2]", "[0,1e400]"), {"x.safetensors"});
  expect_parts(with("[3]", "[0,8]"), {"'a'", "8 bytes", "expected 12", "[3]"});
  expect_parts(with("[4611686018427387904,4]", "[0,8]"), {"'a'", "2^63"});
  expect_parts(with("[99999999999999999999]", "[0,8]"), {"'a'", "shape"});
  expect_parts(message_for(file_with(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", 8)),
               {"unknown key 'x'"});
}

TEST(SafetensorsFile, RefusesEqualNamesOverlapsAndHoles) {
  const auto two = [](std::string_view name, int begin, int end, std::size_t data) {
    return message_for(file_with(fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},)"
                                             R"("{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}})",
                                             name, end - begin, begin, end),
                                 data));
  };
  expect_parts(two("a", 4, 8, 8), {"'a' stands twice"});
  expect_parts(two("b", 2, 8, 8), {"overlaps"});
  expect_parts(two("b", 0, 4, 4), {"overlaps"});
  expect_parts(two("b", 5, 8, 8), {"tensor 'b'", "byte 5", "expected 4", "hole"});
  expect_parts(two("b", 4, 7, 8), {"8 bytes of data, expected 7"});
  expect_parts(message_for(file_with(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", 8)), {"hole"});
  expect_parts(message_for(file_with("{}", 3)), {"3 bytes of data, expected 0"});
}

TEST(SafetensorsFile, RefusesEveryTruncation) {
  const std::string whole = file_with(kTwo, 14);
  for (std::size_t size = 1; size < whole.size(); ++size) message_for(whole.substr(0, size));
}

TEST(SafetensorsHeader, IsReadBackAndAligned) {
  const Scratch scratch;
  const std::vector<NamedShape> tensors = {{"grad", ElementType::kBFloat16, {3, 5}},
                                           {"naïve \"x\"", ElementType::kInt64, {2}},
                                           {"s", ElementType::kFloat64, {}}};
  const std::string header = safetensors_header(tensors, {{"k", "v"}});
  EXPECT_EQ(header.size() % 8, 0u);
  const SafetensorsFile file = open(scratch, header + std::string(30 + 16 + 8, '\0'));
  EXPECT_EQ(file.metadata().at("k"), "v");
  for (const NamedShape& tensor : tensors) {
    EXPECT_EQ(file.tensor(tensor.name).shape, tensor.shape);
    EXPECT_EQ(file.tensor(tensor.name).type, tensor.type);
  }
}

TEST(SafetensorsHeader, RefusesNamesAndShapesThatCannotBe) {
  const auto header = [](std::vector<NamedShape> tensors) {
    return message_of([&] { safetensors_header(tensors, {}); });
  };
  expect_parts(header({{"a", ElementType::kInt32, {1}}, {"a", ElementType::kInt32, {1}}}), {"'a'"});
  expect_parts(header({{"__metadata__", ElementType::kInt32, {1}}}), {"'__metadata__'"});
  expect_parts(header({{"a", ElementType::kInt64, {std::int64_t{1} << 60}}}), {"overflows"});
  expect_parts(header({{"a", ElementType::kBits16, {1}}}), {"bits"});
}

TEST(SafetensorsFile, SurvivesMutations) {
  std::mt19937 random(2);
  const std::string whole = file_with(kTwo, 14);
  for (int trial = 0; trial < 20'000; ++trial) {
    std::string bytes = whole;
    for (auto edits = 1 + random() % 3; edits > 0; --edits) {
      const std::size_t at = random() % bytes.size();
      const char byte = random() % 3 == 0 ? static_cast<char>(random()) : " ,:\"[]{}0123456789eE.-"[random() % 22];
      if (random() % 4 == 0) {
        bytes.erase(at, 1);
      } else if (random() % 4 == 0) {
        bytes.insert(at, 1, byte);
      } else {
        bytes[at] = byte;
      }
    }
    // Most edits change the header's length: write the new one, or every trial ends at the first check.
    if (random() % 2 == 0 && bytes.size() > 22) bytes.replace(0, 8, prefix(bytes.size() - 22));
    // A copy of the exact size, so that a sanitizer sees a read outside it.
    const std::vector<char> exact(bytes.begin(), bytes.end());
    try {
      const SafetensorsFile file(std::as_bytes(std::span(exact)), "x.safetensors");
      for (const auto& [name, entry] : file.entries()) {
        ASSERT_LE(entry.end, bytes.size());
        try {
          const Tensor tensor = file.tensor(name);
          ASSERT_LE(*byte_count(tensor.shape, size_of(tensor.type)), static_cast<std::int64_t>(bytes.size()));
        } catch (const std::invalid_argument&) {
        }
      }
    } catch (const std::invalid_argument& error) {
      ASSERT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
    }
  }
}

}  // namespace
}  // namespace tpce::io
