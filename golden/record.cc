#include "golden/record.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "golden/python_float.h"
#include "io/error.h"

namespace tpce::golden {
namespace {

using io::quote;
using Words = std::vector<std::string_view>;

constexpr std::string_view kMark = "tpce:";

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

// Words after "# tpce:"; none for another line.
Words words_of(const Line& line) {
  Words words;
  if (line.kind != Line::Kind::kComment) return words;
  const std::string_view text = std::string_view(line.text).substr(line.text.find('#') + 1);
  for (const Line::Token& token : split_tokens(text)) words.push_back(text.substr(token.offset, token.size));
  if (words.empty() || words[0] != kMark) return {};
  words.erase(words.begin());
  return words;
}

std::pair<std::string_view, std::string_view> key_and_value(std::string_view word) {
  const std::size_t equals = word.find('=');
  if (equals == std::string_view::npos || equals == 0) refuse(fmt::format("{} is not key=value", quote(word)));
  return {word.substr(0, equals), word.substr(equals + 1)};
}

std::int64_t step_of(const Words& words) {
  const auto step = words.size() > 1 ? parse_step(words[1]) : std::nullopt;
  if (!step) refuse(fmt::format("{} without a step", words[0]));
  return *step;
}

std::string digest(std::string_view text) {
  const bool good = text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  if (!good) refuse(fmt::format("{} is not a SHA-256 of 64 lower-case hexadecimal digits", quote(text, 70)));
  return std::string(text);
}

std::int64_t count(std::string_view key, std::string_view text) {
  const auto value = parse_step(text);
  if (!value) refuse(fmt::format("{} {} is not an integer of at least 0", key, quote(text)));
  return *value;
}

Input parse_input(const Words& words) {
  Input input;
  std::set<std::string_view> seen;
  for (std::size_t i = 2; i < words.size(); ++i) {
    const auto [key, value] = key_and_value(words[i]);
    if (!seen.insert(key).second) refuse(fmt::format("{} stands twice", quote(key)));
    if (key == "sha256") input.sha256 = digest(value);
    if (key == "labels_sha256") input.labels_sha256 = digest(value);
    if (key == "rows") input.rows = count(key, value);
    if (key == "vocab") input.vocab = count(key, value);
    if (key == "dtype") input.dtype = dtype_from_name(value);
  }
  for (std::string_view key : {"sha256", "rows", "vocab", "dtype"}) {
    if (!seen.contains(key)) refuse(fmt::format("input lacks {}=", key));
  }
  return input;
}

MetricBits parse_bits(const Words& words) {
  MetricBits bits;
  std::set<std::string_view> seen;
  for (std::size_t i = 2; i < words.size(); ++i) {
    const auto [key, value] = key_and_value(words[i]);
    std::uint32_t number = 0;
    const bool sized = value.size() == 10 && value.starts_with("0x");
    const auto end = value.data() + value.size();
    if (!sized || std::from_chars(value.data() + 2, end, number, 16).ptr != end) {
      refuse(fmt::format("{} {} is not 0x and 8 hexadecimal digits", key, quote(value)));
    }
    if (!seen.insert(key).second) refuse(fmt::format("{} stands twice", quote(key)));
    bits.emplace_back(key, number);
  }
  return bits;
}

Method parse_method(const Words& words) {
  if (words.size() < 2) refuse("method without a name");
  Method method{std::string(words[1]), {}};
  std::set<std::string_view> seen;
  for (std::size_t i = 2; i < words.size(); ++i) {
    const auto [key, value] = key_and_value(words[i]);
    if (!seen.insert(key).second) refuse(fmt::format("{} stands twice", quote(key)));
    method.details.emplace_back(key, value);
  }
  return method;
}

void check_word(std::string_view what, std::string_view word) {
  const bool bad = std::any_of(word.begin(), word.end(),
                               [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == '=' || c == '\x7f'; });
  if (word.empty() || bad) refuse(fmt::format("{}: {} is empty or holds white space or '='", what, quote(word)));
}

}  // namespace

std::optional<std::string> record_key(const Line& line) {
  const Words words = words_of(line);
  if (words.empty()) return std::nullopt;
  if (words[0] == "version" || words[0] == "method") return std::string(words[0]);
  if (words[0] == "input" || words[0] == "bits") {
    return std::string(words[0]) + " " + std::string(words.size() > 1 ? words[1] : "");
  }
  return std::nullopt;
}

Record read_record(const Trajectory& trajectory) {
  Record record;
  std::set<std::string> keys;
  std::size_t number = 0;
  try {
    for (const Line& line : trajectory.lines()) {
      ++number;
      const auto key = record_key(line);
      if (!key) continue;
      if (!keys.insert(*key).second) refuse(fmt::format("{} stands twice", quote(*key)));
      const Words words = words_of(line);
      if (words[0] == "version") {
        if (words.size() != 2) refuse("version without one number");
        record.version = words[1];
      } else if (words[0] == "method") {
        record.method = parse_method(words);
        record.method_line = number;
      } else if (words[0] == "input") {
        const std::int64_t step = step_of(words);
        record.inputs[step] = parse_input(words);
      } else {
        const std::int64_t step = step_of(words);
        record.bits[step] = parse_bits(words);
      }
    }
  } catch (const std::invalid_argument& error) {
    io::fail(trajectory.name(), "line {}: # tpce: {}", number, error.what());
  }
  return record;
}

std::vector<std::string> contradictions(const Trajectory& trajectory, const Record& record) {
  std::vector<std::string> found;
  for (const auto& [step, metrics] : record.bits) {
    const Row* row = trajectory.find_step(step);
    if (row == nullptr) {
      found.push_back(fmt::format("step {}: bits are recorded, but there is no row", step));
      continue;
    }
    for (const auto& [metric, bits] : metrics) {
      const auto column = trajectory.find_column(metric);
      if (!column || !row->values[*column]) continue;
      const double recorded = static_cast<double>(bit_cast<float>(bits));
      const double written = *row->values[*column];
      if (recorded != written && !(std::isnan(recorded) && std::isnan(written))) {
        found.push_back(fmt::format("step {}: the recorded bits of {} are those of {} (0x{:08x}), its row says {}",
                                    step, metric, python_repr(recorded), bits, python_repr(written)));
      }
    }
  }
  return found;
}

std::vector<RecordLine> record_lines(const Record& record) {
  std::vector<RecordLine> lines;
  const auto add = [&](const std::string& key, const std::string& rest) {
    lines.push_back({key, fmt::format("# {} {}{}", kMark, key, rest)});
  };
  if (record.version) {
    check_word("version", *record.version);
    add("version", " " + *record.version);
  }
  if (record.method) {
    check_word("method", record.method->name);
    std::string rest = " " + record.method->name;
    for (const auto& [key, value] : record.method->details) {
      check_word("method", key);
      check_word(key, value);
      rest += fmt::format(" {}={}", key, value);
    }
    add("method", rest);
  }
  std::set<std::int64_t> steps;
  for (const auto& [step, input] : record.inputs) steps.insert(step);
  for (const auto& [step, bits] : record.bits) steps.insert(step);
  for (std::int64_t step : steps) {
    if (const auto found = record.inputs.find(step); found != record.inputs.end()) {
      const Input& input = found->second;
      const std::string labels = input.labels_sha256 ? " labels_sha256=" + digest(*input.labels_sha256) : "";
      add(fmt::format("input {}", step), fmt::format(" sha256={}{} rows={} vocab={} dtype={}", digest(input.sha256),
                                                     labels, input.rows, input.vocab, name_of(input.dtype)));
    }
    if (const auto found = record.bits.find(step); found != record.bits.end()) {
      std::string rest;
      for (const auto& [metric, bits] : found->second) rest += fmt::format(" {}=0x{:08x}", metric, bits);
      add(fmt::format("bits {}", step), rest);
    }
  }
  return lines;
}

std::optional<std::string> other_method_text(const Record& record, const Method& method) {
  if (!record.method || *record.method == method) return std::nullopt;
  const auto text = [](const Method& one) {
    std::string words = one.name;
    for (const auto& [key, value] : one.details) words += fmt::format(" {}={}", key, value);
    return words;
  };
  return fmt::format("the method is '{}', recorded is '{}'", text(method), text(*record.method));
}

}  // namespace tpce::golden
