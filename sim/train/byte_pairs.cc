#include "sim/train/byte_pairs.h"

#include <queue>
#include <stdexcept>
#include <unordered_map>

namespace tpce::sim {

namespace {

enum class Kind : std::uint8_t { kLetter, kDigit, kSpace, kSign };

Kind kind_of(char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (byte >= 0x80 || (byte | 0x20) - unsigned{'a'} < 26) return Kind::kLetter;
  if (byte - unsigned{'0'} < 10) return Kind::kDigit;
  if (byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r') return Kind::kSpace;
  return Kind::kSign;
}

std::size_t end_of_word(std::string_view text, std::size_t at) {
  std::size_t end = at;
  if (text[at] == ' ' && at + 1 < text.size() && kind_of(text[at + 1]) != Kind::kSpace) ++end;
  const Kind kind = kind_of(text[end]);
  do {
    ++end;
    // A space that begins a word is that word's.
    if (kind == Kind::kSpace && end + 1 < text.size() && text[end] == ' ' && kind_of(text[end + 1]) != Kind::kSpace) {
      break;
    }
  } while (end < text.size() && kind_of(text[end]) == kind);
  return end;
}

using Pair = std::uint64_t;
Pair pair_of(std::int32_t left, std::int32_t right) {
  return Pair{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

struct Word {
  std::vector<std::int32_t> tokens;
  std::int64_t count = 0;
};

struct Candidate {
  std::int64_t count;
  Pair pair;
  // The queue's top is the largest: the most frequent, then the smallest pair.
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Learner {
 public:
  explicit Learner(std::vector<Word>& words) : words_(words) {
    for (std::size_t i = 0; i < words.size(); ++i) count(i, 1);
    for (const auto& [pair, count] : counts_) queue_.push({count, pair});
  }

  // The pair that was merged into `token`; throws where there is none.
  std::pair<std::int32_t, std::int32_t> merge(std::int32_t token) {
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      if (best.count != counts_[best.pair] || best.count == 0) continue;  // an older count
      const auto left = static_cast<std::int32_t>(best.pair >> 32);
      const auto right = static_cast<std::int32_t>(best.pair & 0xffffffffu);
      for (const std::size_t word : std::vector<std::size_t>(where_[best.pair])) replace(word, left, right, token);
      for (const Pair pair : changed_) queue_.push({counts_[pair], pair});
      changed_.clear();
      return {left, right};
    }
    throw std::invalid_argument("vocab: the text has pairs for " + std::to_string(token) + " tokens, expected more");
  }

 private:
  void count(std::size_t word, std::int64_t sign) {
    const std::vector<std::int32_t>& tokens = words_[word].tokens;
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const Pair pair = pair_of(tokens[i], tokens[i + 1]);
      counts_[pair] += sign * words_[word].count;
      changed_.push_back(pair);
      if (sign > 0) where_[pair].push_back(word);
    }
  }

  void replace(std::size_t word, std::int32_t left, std::int32_t right, std::int32_t token) {
    std::vector<std::int32_t>& tokens = words_[word].tokens;
    std::vector<std::int32_t> merged;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const bool here = i + 1 < tokens.size() && tokens[i] == left && tokens[i + 1] == right;
      merged.push_back(here ? token : tokens[i]);
      if (here) ++i;
    }
    if (merged.size() == tokens.size()) return;  // listed for a pair that it has no more
    count(word, -1);
    tokens = merged;
    count(word, 1);
  }

  std::vector<Word>& words_;
  std::unordered_map<Pair, std::int64_t> counts_;
  std::unordered_map<Pair, std::vector<std::size_t>> where_;  // words, some of which have the pair no more
  std::vector<Pair> changed_;
  std::priority_queue<Candidate> queue_;
};

}  // namespace

std::string BytePairs::text_of(std::int32_t token) const {
  if (token < 256) return std::string(1, static_cast<char>(token));
  const auto& [left, right] = merges[static_cast<std::size_t>(token - 256)];
  return text_of(left) + text_of(right);
}

BytePairs learn_byte_pairs(std::string_view text, std::int64_t vocab) {
  std::vector<Word> words;
  std::vector<std::size_t> order;  // the text as words
  std::unordered_map<std::string_view, std::size_t> index;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = end_of_word(text, at);
    const auto [found, is_new] = index.emplace(text.substr(at, end - at), words.size());
    if (is_new) {
      Word word;
      for (const char c : found->first) word.tokens.push_back(static_cast<unsigned char>(c));
      words.push_back(word);
    }
    ++words[found->second].count;
    order.push_back(found->second);
    at = end;
  }
  BytePairs result;
  Learner learner(words);
  for (std::int64_t token = 256; token < vocab; ++token) {
    result.merges.push_back(learner.merge(static_cast<std::int32_t>(token)));
  }
  for (const std::size_t word : order) {
    result.tokens.insert(result.tokens.end(), words[word].tokens.begin(), words[word].tokens.end());
  }
  return result;
}

}  // namespace tpce::sim
