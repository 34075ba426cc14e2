// A byte-pair vocabulary learned from a text (Sennrich et al., "Neural machine translation of rare words with subword
// units", 2016), and that text in it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tpce::sim {

struct BytePairs {
  // Token 256 + i is the two tokens of merge i; tokens below 256 are bytes.
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;
  std::vector<std::int32_t> tokens;  // of the text

  std::string text_of(std::int32_t token) const;
};

// Words are a space or none, and then letters, digits or other signs alone; white space beside makes words of its own.
// No token reaches beyond a word. The pair that occurs most often is merged next, of equals the smaller one. Throws
// std::invalid_argument where the text is too short for so many tokens.
BytePairs learn_byte_pairs(std::string_view text, std::int64_t vocab);

}  // namespace tpce::sim
