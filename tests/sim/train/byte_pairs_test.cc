#include "sim/train/byte_pairs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <stdexcept>

#include "tests/support/scratch.h"

namespace tpce::sim {
namespace {

std::string text_of(const BytePairs& pairs) {
  std::string text;
  for (const std::int32_t token : pairs.tokens) text += pairs.text_of(token);
  return text;
}

TEST(BytePairs, MergesTheMostFrequentPairFirst) {
  // "ab" occurs in every word; then " ab" and "abc" twice each, of which (' ', 256) is the smaller pair.
  const BytePairs pairs = learn_byte_pairs("ab ab abc abc", 259);
  const std::vector<std::pair<std::int32_t, std::int32_t>> expected{{'a', 'b'}, {' ', 256}, {257, 'c'}};
  EXPECT_EQ(pairs.merges, expected);
  EXPECT_EQ(pairs.text_of(258), " abc");
  EXPECT_EQ(pairs.tokens, (std::vector<std::int32_t>{256, 257, 258, 258}));
}

TEST(BytePairs, TokensAreTheText) {
  const std::string text =
      "It is a truth universally acknowledged, that a single man\n\n  in 1813 -- \"caf\xc3\xa9\"\t must be\r\n it  is ";
  for (const std::int64_t vocab : {256, 257, 262}) {
    const BytePairs pairs = learn_byte_pairs(text, vocab);
    EXPECT_EQ(text_of(pairs), text);
    EXPECT_EQ(static_cast<std::int64_t>(pairs.merges.size()), vocab - 256);
  }
}

TEST(BytePairs, NoTokenReachesBeyondAWord) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "the cat's 12 hats. ";
  const BytePairs pairs = learn_byte_pairs(text, 266);
  for (std::int32_t token = 256; token < 266; ++token) {
    const std::string piece = pairs.text_of(token);
    EXPECT_EQ(piece.find(' ', 1), std::string::npos) << piece;
    EXPECT_FALSE(piece.find("t'") != std::string::npos || piece.find("2h") != std::string::npos) << piece;
  }
}

// The slow way: count all pairs anew for each merge.
TEST(BytePairs, IsTheSlowWay) {
  const std::string text = tpce::testing::read_bytes(TPCE_SOURCE_DIR "/data/text/persuasion.txt").substr(0, 4000);
  const BytePairs pairs = learn_byte_pairs(text, 320);
  std::vector<std::vector<std::int32_t>> words;
  const BytePairs bytes = learn_byte_pairs(text, 256);
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    const auto kind = [&](char c) {
      if (std::isalpha(static_cast<unsigned char>(c)) != 0) return 0;
      if (c >= '0' && c <= '9') return 1;
      return c == ' ' || c == '\n' ? 2 : 3;
    };
    if (text[at] == ' ' && at + 1 < text.size() && kind(text[at + 1]) != 2) ++end;
    const int own = kind(text[end]);
    for (++end; end < text.size() && kind(text[end]) == own; ++end) {
      if (own == 2 && text[end] == ' ' && end + 1 < text.size() && kind(text[end + 1]) != 2) break;
    }
    words.emplace_back(bytes.tokens.begin() + static_cast<std::ptrdiff_t>(at),
                       bytes.tokens.begin() + static_cast<std::ptrdiff_t>(end));
    at = end;
  }
  for (std::int32_t token = 256; token < 320; ++token) {
    std::map<std::pair<std::int32_t, std::int32_t>, int> counts;
    for (const auto& tokens : words) {
      for (std::size_t i = 0; i + 1 < tokens.size(); ++i) ++counts[{tokens[i], tokens[i + 1]}];
    }
    const auto best = std::max_element(counts.begin(), counts.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    ASSERT_EQ(pairs.merges[static_cast<std::size_t>(token - 256)], best->first) << token;
    for (auto& tokens : words) {
      for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
        if (std::pair(tokens[i], tokens[i + 1]) != best->first) continue;
        tokens[i] = token;
        tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
    }
  }
  std::vector<std::int32_t> expected;
  for (const auto& tokens : words) expected.insert(expected.end(), tokens.begin(), tokens.end());
  EXPECT_EQ(pairs.tokens, expected);
}

TEST(BytePairs, RefusesATextThatIsTooShort) {
  const std::string message = tpce::testing::message_of([] { learn_byte_pairs("abab", 300); });
  EXPECT_NE(message.find("vocab"), std::string::npos) << message;
}

}  // namespace
}  // namespace tpce::sim
