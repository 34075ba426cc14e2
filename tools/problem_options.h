// The options that say what is computed from a logits file, the same for every subcommand that computes a loss.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/evaluate.h"

namespace tpce::tools {

// For option->transform(): refuses what is not a decimal integer of 64 bits. CLI11 alone reads "010" as 8 and a number
// that is too large as the largest.
std::string whole_number(const std::string& text);

// The same for one in least..most.
std::function<std::string(const std::string&)> whole_number_in(std::int64_t least, std::int64_t most);

// What --threads and --tp take in every command.
std::string number_of_threads(const std::string& text);
std::string number_of_shards(const std::string& text);

// A decimal integer of 64 bits; nothing for any other text.
std::optional<std::int64_t> parse_whole_number(const std::string& text);

// "1000,0,24": at least one decimal integer of 64 bits. Throws std::invalid_argument that names the option and what it
// expected.
std::vector<std::int64_t> parse_whole_numbers(std::string_view option, const std::string& text,
                                              std::string_view expected);

// Widths of shards, "1000,0,24"; whether they add up is for the shard plan to say.
std::vector<std::int64_t> parse_widths(const std::string& text);

// Whether two paths name one file, whether it exists yet or not.
bool same_file(const std::string& a, const std::string& b);

// The options of a request that change what its loss is, by name, where they are not the defaults. Not --non-finite,
// which only stops.
std::vector<std::pair<std::string, std::string>> changed_options(const Request& request);

class ProblemOptions {
 public:
  // How the file is read, and what the loss is: --labels, --tensor, --label-tensor, --dtype, --cast, --vocab,
  // --ignore-index, --reduction, --empty-mean.
  void add_problem_to(CLI::App& command);
  void add_non_finite_to(CLI::App& command);
  void add_threads_to(CLI::App& command);
  // What computes it: --tp, --shards, --backend, --threads and, where the caller does not know it already, --method.
  void add_runtime_to(CLI::App& command, bool with_method);

  // What an option of changed_options() is where the command line does not give it; other names are passed over.
  void set_default(const std::string& name, const std::string& value);

  // Each throws std::invalid_argument for names that are not known.
  // Where the logits and labels of files[i] are read.
  io::LogitsRequest input(const std::vector<std::string>& files, std::size_t i) const;
  // default_method: where the command line names none.
  Request request(const std::string& default_method = "") const;
  // Whether --tp or --shards was given.
  bool cuts_vocabulary() const { return tp_.has_value() || shards_.has_value(); }

  std::optional<std::string> method;
  std::optional<std::string> backend;

 private:
  std::vector<std::string> labels_;
  std::optional<std::string> tensor_;
  std::optional<std::string> label_tensor_;
  std::optional<std::string> dtype_;
  std::optional<std::string> cast_;
  std::optional<std::int64_t> vocab_;
  std::optional<std::int64_t> ignore_index_;
  std::optional<std::string> reduction_;
  std::optional<std::string> empty_mean_;
  std::string non_finite_ = "nan";
  std::optional<std::int64_t> tp_;
  std::optional<std::string> shards_;
  int threads_ = 0;
};

}  // namespace tpce::tools
