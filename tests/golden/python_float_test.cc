#include "golden/python_float.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <sstream>

#include "tpce/platform.h"

namespace tpce::golden {
namespace {

const std::string kFolder = std::string(TPCE_TEST_DATA) + "/python_float/";

std::string bits_text(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{:016x}", bit_cast<std::uint64_t>(value));
}

TEST(PythonRepr, EqualsPythons) {
  std::ifstream table(kFolder + "repr.txt");
  std::string bits;
  std::string text;
  int count = 0;
  while (table >> bits >> text) {
    const double value = bits == "nan" ? std::nan("") : bit_cast<double>(std::stoull(bits, nullptr, 16));
    EXPECT_EQ(python_repr(value), text) << bits;
    EXPECT_EQ(bits_text(parse_python_float(text).value()), bits) << text;
    ++count;
  }
  EXPECT_GT(count, 900);
}

TEST(ParsePythonFloat, EqualsPythons) {
  std::ifstream table(kFolder + "parse.txt");
  std::string line;
  int count = 0;
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string bits;
    std::string hex;
    fields >> bits >> hex;
    std::string token;
    for (std::size_t i = 0; hex != "-" && i < hex.size(); i += 2) {
      token += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
    const auto value = parse_python_float(token);
    EXPECT_EQ(value ? bits_text(*value) : "error", bits) << line;
    ++count;
  }
  EXPECT_GT(count, 60);
}

TEST(PythonRepr, WidensFp32) {
  EXPECT_EQ(python_repr(0.1f), "0.10000000149011612");
  EXPECT_EQ(python_repr(74923716378624.0f), "74923716378624.0");
  EXPECT_EQ(python_repr(bit_cast<float>(std::uint32_t{0xffc00000})), "nan");
}

RC_GTEST_PROP(PythonRepr, ReadsBackToTheSameBits, (std::uint64_t bits)) {
  const double value = bit_cast<double>(bits);
  const auto read = parse_python_float(python_repr(value));
  RC_ASSERT(read.has_value());
  RC_ASSERT(bits_text(*read) == bits_text(value));
}

RC_GTEST_PROP(PythonRepr, KeepsFp32, (std::uint32_t bits)) {
  const float value = bit_cast<float>(bits);
  RC_PRE(!std::isnan(value));
  RC_ASSERT(bit_cast<std::uint32_t>(static_cast<float>(*parse_python_float(python_repr(value)))) == bits);
}

}  // namespace
}  // namespace tpce::golden
