#include "io/json.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/scratch.h"

namespace tpce::io {
namespace {

using testing::expect_parts;
using testing::message_of;

TEST(ParseJson, KeepsTheOrderOfMembers) {
  EXPECT_EQ(parse_json(R"({"b": 1, "a": [2, {"c": 3}]})", "f", 3).dump(), R"({"b":1,"a":[2,{"c":3}]})");
}

TEST(ParseJson, RefusesEqualKeysOfOneObjectOnly) {
  expect_parts(message_of([] { parse_json(R"({"a": 1, "\u0061": 2})", "f.json", 3); }), {"f.json", "'a'", "twice"});
  expect_parts(message_of([] { parse_json(R"({"x": {"a": 1, "a": 2}})", "f.json", 3); }), {"'a'", "twice"});
  EXPECT_EQ(parse_json(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]})", "f", 3).size(), 2u);
}

TEST(ParseJson, RefusesDeepNestingWithoutRecursion) {
  expect_parts(message_of([] { parse_json(std::string(5'000'000, '['), "f.json", 3); }), {"f.json", "3 levels"});
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += R"({"a":)";
  expect_parts(message_of([&] { parse_json(objects, "f.json", 3); }), {"3 levels"});
  EXPECT_NO_THROW(parse_json("[[[1]]]", "f", 3));
  expect_parts(message_of([] { parse_json("[[[[1]]]]", "f", 3); }), {"3 levels"});
}

TEST(ParseJson, RefusesWhatIsNotJson) {
  const std::vector<std::string_view> texts = {
      "", "{", "{\"a\":}", "{} x", "{\"a\": \"\xff\"}", "{'a': 1}", "nul", "1e400", std::string_view("{}\0", 3)};
  for (std::string_view text : texts) {
    expect_parts(message_of([&] { parse_json(text, "f.json", 3); }), {"f.json: invalid JSON: "});
  }
}

}  // namespace
}  // namespace tpce::io
