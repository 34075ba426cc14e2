#include "io/npy.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <random>

#include "tests/support/scratch.h"

namespace tpce::io {
namespace {

using testing::expect_parts;
using testing::message_of;
using testing::read_bytes;
using testing::Scratch;

const std::string kFolder = std::string(TPCE_TEST_DATA) + "/npy/";

// A version 1 file around any header and data.
std::string npy(std::string_view header, std::size_t data_bytes) {
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(header.size() & 0xff);
  file += static_cast<char>(header.size() >> 8);
  file += header;
  return file + std::string(data_bytes, '\0');
}

std::string message_for(std::string_view bytes) {
  const Scratch scratch;
  const std::string path = scratch.write("x.npy", bytes);
  const std::string message = message_of([&] { read_npy(MappedFile(path)); });
  expect_parts(message, {path + ": "});
  return message;
}

std::vector<std::int64_t> shape_of(std::string_view bytes) {
  const Scratch scratch;
  const MappedFile file(scratch.write("x.npy", bytes));
  return read_npy(file).shape;
}

TEST(ReadNpy, ReadsWhatNumPyWrites) {
  const std::vector<std::pair<std::string, ElementType>> cases = {
      {"f2", ElementType::kFloat16},       {"f4", ElementType::kFloat32}, {"f8", ElementType::kFloat64},
      {"u2", ElementType::kBits16},        {"v2", ElementType::kBits16},  {"version2", ElementType::kFloat32},
      {"version3", ElementType::kFloat32},
  };
  const double expected[6] = {0.5, -1, 65504, 0x1p-14, -0.0, 3};
  for (const auto& [name, type] : cases) {
    const MappedFile file(kFolder + name + ".npy");
    const Tensor tensor = read_npy(file);
    EXPECT_EQ(tensor.type, type) << name;
    ASSERT_EQ(tensor.shape, (std::vector<std::int64_t>{2, 3})) << name;
    EXPECT_EQ(tensor.copy, nullptr) << name;
    for (std::size_t i = 0; i < 6; ++i) {
      double value = 0;
      if (type == ElementType::kFloat64) value = static_cast<const double*>(tensor.data)[i];
      if (type == ElementType::kFloat32) value = static_cast<double>(static_cast<const float*>(tensor.data)[i]);
      if (type == ElementType::kFloat16)
        value = static_cast<double>(widen(static_cast<const Float16*>(tensor.data)[i]));
      if (type == ElementType::kBits16)
        value = static_cast<double>(widen(static_cast<const BFloat16*>(tensor.data)[i]));
      // NumPy's script cut 65504 to bf16.
      EXPECT_EQ(value, i == 2 && type == ElementType::kBits16 ? 65280.0 : expected[i]) << name << " " << i;
      EXPECT_EQ(std::signbit(value), std::signbit(expected[i])) << name << " " << i;
    }
  }
  const MappedFile narrow(kFolder + "i4.npy");
  const MappedFile wide(kFolder + "i8.npy");
  EXPECT_EQ(static_cast<const std::int32_t*>(read_npy(narrow).data)[1], -100);
  EXPECT_EQ(static_cast<const std::int64_t*>(read_npy(wide).data)[1], -100);
}

TEST(ReadNpy, TakesFortranOrderWhereItChangesNothing) {
  const MappedFile column(kFolder + "column.npy");
  EXPECT_EQ(read_npy(column).shape, (std::vector<std::int64_t>{2, 1}));
  const std::string message = message_of([] { read_npy(MappedFile(kFolder + "fortran.npy")); });
  expect_parts(message, {"fortran.npy", "Fortran order", "[2, 3]"});
}

TEST(ReadNpy, RefusesOtherKindsOfElements) {
  const auto message = [](const char* name) { return message_of([&] { read_npy(MappedFile(kFolder + name)); }); };
  expect_parts(message("big_endian.npy"), {"big_endian.npy", "'>f4'", "big-endian"});
  expect_parts(message("object.npy"), {"object.npy", "'|O'", "pickled"});
  expect_parts(message("structured.npy"), {"structured.npy", "structured"});
  for (const char* descr : {"<i2", "|u1", "<c8", "<f16", "f4", "", "<U5", "<M8[ns]", "<f4 ", "|V3"}) {
    expect_parts(message_for(npy(fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': (1,), }}", descr), 4)),
                 {fmt::format("'{}'", descr), "unsupported"});
  }
}

TEST(ReadNpy, ReadsEveryPythonSpellingOfTheHeader) {
  for (std::string_view header : {
           R"({'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), })",
           R"({"shape":(2,3),"fortran_order":False,"descr":"<f4"})",
           "  {\n\t'shape' : ( 2 , 3 , ) , 'descr' : \"<f4\" , 'fortran_order' : False }  \n\n",
           R"({'shape': (2L, 3L), 'fortran_order': False, 'descr': '<f4'})",
       }) {
    EXPECT_EQ(shape_of(npy(header, 24)), (std::vector<std::int64_t>{2, 3})) << header;
  }
  EXPECT_EQ(shape_of(npy(R"({'descr': '<f4', 'fortran_order': True, 'shape': (6,)})", 24)).size(), 1u);
  EXPECT_EQ(shape_of(npy(R"({'descr': '<f4', 'fortran_order': False, 'shape': ()})", 4)).size(), 0u);
  EXPECT_EQ(shape_of(npy(R"({'descr': '<f4', 'fortran_order': False, 'shape': (0, 3)})", 0)).size(), 2u);
}

TEST(ReadNpy, RefusesMalformedHeaders) {
  for (std::string_view header : {
           "",
           "{",
           "}",
           "[]",
           "{}",
           "None",
           R"({'descr': '<f4', 'fortran_order': False})",
           R"({'descr': '<f4', 'shape': (6,)})",
           R"({'fortran_order': False, 'shape': (6,)})",
           R"({'descr': '<f4', 'fortran_order': False, 'shape': (6,), 'x': 1})",
           R"({'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (6,)})",
           R"({'descr': '<f4', 'fortran_order': False, 'shape': (6,)} x)",
           R"({'descr': '<f4', 'fortran_order': False, 'shape': (6,)}})",
           R"({'descr': '<f4' 'fortran_order': False, 'shape': (6,)})",
           R"({'descr': '<f4', 'fortran_order': false, 'shape': (6,)})",
           R"({'descr': '<f4', 'fortran_order': 0, 'shape': (6,)})",
           R"({'descr': '<f4', 'fortran_order': False, 'shape': (6)})",
           R"({'descr': '<f4', 'fortran_order': False, 'shape': 6})",
           R"({'descr': '<f4', 'fortran_order': False, 'shape': [6]})",
           R"({'descr': '<f4', 'fortran_order': False, 'shape': (-6,)})",
           R"({'descr': '<f4', 'fortran_order': False, 'shape': (6.0,)})",
           R"({'descr': '<f4', 'fortran_order': False, 'shape': (6,,)})",
           R"({'descr': '<f4', 'fortran_order': False, 'shape': (,)})",
           R"({'descr': '<f4', 'fortran_order': False, 'shape': (6,)",
           R"({'descr': '<f4, 'fortran_order': False, 'shape': (6,)})",
           R"({'descr': '\x3cf4', 'fortran_order': False, 'shape': (6,)})",
           R"({'descr': <f4, 'fortran_order': False, 'shape': (6,)})",
           R"({'descr': None, 'fortran_order': False, 'shape': (6,)})",
           R"({'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)})",
       }) {
    message_for(npy(header, 24));
  }
}

TEST(ReadNpy, RefusesShapesThatOverflow) {
  for (std::string_view shape : {"(4611686018427387904, 4)", "(9223372036854775807,)", "(4294967296, 4294967296)",
                                 "(0, 9223372036854775807, 9223372036854775807)"}) {
    expect_parts(message_for(npy(fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': {}}}", shape), 4)),
                 {"shape", "2^63"});
  }
  const std::string_view header = "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 4), }";
  expect_parts(message_for(npy(header, 4)), {"dimension '99999999999999999999' exceeds"});
}

TEST(ReadNpy, RefusesDataOfAnotherSize) {
  const std::string whole = read_bytes(kFolder + "f4.npy");
  for (std::size_t size = 1; size < whole.size(); ++size) message_for(whole.substr(0, size));
  expect_parts(message_for(whole.substr(0, whole.size() - 1)), {"truncated data: 23 bytes", "24", "[2, 3]", "<f4"});
  expect_parts(message_for(whole + "x"), {"extra data: 25 bytes", "24"});
}

TEST(ReadNpy, RefusesWrongMagicAndVersions) {
  std::string file = read_bytes(kFolder + "f4.npy");
  file[6] = 4;
  expect_parts(message_for(file), {"version 4.0"});
  file[6] = 0;
  expect_parts(message_for(file), {"version 0.0"});
  file[0] = 'N';
  expect_parts(message_for(file), {"wrong magic"});
}

TEST(ReadNpy, RefusesAHeaderLongerThanTheFile) {
  std::string file = read_bytes(kFolder + "f4.npy");
  file[9] = '\xff';
  expect_parts(message_for(file), {"header of 65398 bytes", "142 bytes follow"});
  std::string second = read_bytes(kFolder + "version2.npy");
  second[11] = '\xff';
  expect_parts(message_for(second), {"header of 42781", "bytes follow"});
}

// Data right after an odd header sits at an odd address of the page: elements are still aligned for the caller.
TEST(ReadNpy, AlignsElementsBehindAnOddHeader) {
  const Scratch scratch;
  std::string bytes = npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2,)} ", 16);
  ASSERT_NE((bytes.size() - 16) % 8, 0u);
  const double values[2] = {1.5, -2};
  std::memcpy(bytes.data() + bytes.size() - 16, values, 16);
  const MappedFile file(scratch.write("x.npy", bytes));
  const Tensor tensor = read_npy(file);
  ASSERT_NE(tensor.copy, nullptr);
  EXPECT_EQ(static_cast<const double*>(tensor.data)[1], -2);
}

TEST(NpyHeader, EqualsNumPys) {
  const std::vector<std::pair<std::string, ElementType>> cases = {
      {"f2", ElementType::kFloat16}, {"f4", ElementType::kFloat32}, {"f8", ElementType::kFloat64},
      {"i4", ElementType::kInt32},   {"i8", ElementType::kInt64},
  };
  for (const auto& [name, type] : cases) {
    const MappedFile file(kFolder + name + ".npy");
    const std::string header = npy_header(type, read_npy(file).shape);
    const std::string bytes = read_bytes(kFolder + name + ".npy");
    EXPECT_EQ(bytes.substr(0, header.size()), header) << name;
    EXPECT_EQ(header.size() % 64, 0u);
  }
  // What NumPy writes for an array of ml_dtypes.bfloat16; it makes |V2 of elements without such a type.
  expect_parts(npy_header(ElementType::kBFloat16, std::vector<std::int64_t>{2, 3}), {"'descr': '<V2'"});
  EXPECT_THROW(npy_header(ElementType::kBits16, {}), std::invalid_argument);
}

RC_GTEST_PROP(NpyHeader, IsReadBackForAnyShape, ()) {
  const auto rank = *rc::gen::inRange<std::size_t>(0, 6);
  const auto shape = *rc::gen::container<std::vector<std::int64_t>>(rank, rc::gen::inRange<std::int64_t>(0, 5));
  const auto bytes = byte_count(shape, 2);
  const Scratch scratch;
  const MappedFile file(scratch.write(
      "x.npy", npy_header(ElementType::kFloat16, shape) + std::string(static_cast<std::size_t>(*bytes), '\0')));
  const Tensor tensor = read_npy(file);
  RC_ASSERT(tensor.shape == shape);
  RC_ASSERT(tensor.type == ElementType::kFloat16);
}

// Any byte of a valid file changed, removed or inserted: read or refused, never a crash or a read outside the file.
TEST(ReadNpy, SurvivesMutations) {
  std::mt19937 random(1);
  for (const char* name : {"f4.npy", "version2.npy", "v2.npy"}) {
    const std::string whole = read_bytes(kFolder + name);
    for (int trial = 0; trial < 20'000; ++trial) {
      std::string bytes = whole;
      for (auto edits = 1 + random() % 3; edits > 0; --edits) {
        const std::size_t at = random() % std::min<std::size_t>(bytes.size(), 90);
        const char byte = random() % 3 == 0 ? static_cast<char>(random()) : " ,:'(){}0123456789TFL<f"[random() % 23];
        if (random() % 4 == 0) {
          bytes.erase(at, 1);
        } else if (random() % 4 == 0) {
          bytes.insert(at, 1, byte);
        } else {
          bytes[at] = byte;
        }
      }
      // A copy of the exact size, so that a sanitizer sees a read outside it.
      const std::vector<char> exact(bytes.begin(), bytes.end());
      try {
        const Tensor tensor = read_npy(std::as_bytes(std::span(exact)), "x.npy");
        ASSERT_LE(*byte_count(tensor.shape, size_of(tensor.type)), static_cast<std::int64_t>(bytes.size()));
      } catch (const std::invalid_argument& error) {
        ASSERT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
      }
    }
  }
}

}  // namespace
}  // namespace tpce::io
