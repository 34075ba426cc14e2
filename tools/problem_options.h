// The options that say what is computed from a logits file, the same for every subcommand that computes a loss.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/evaluate.h"

namespace tpce::tools {

// For option->transform(): refuses what is not a decimal integer of 64 bits. CLI11 alone reads "010" as 8 and a number
// that is too large as the largest.
std::string whole_number(const std::string& text);

class ProblemOptions {
 public:
  // How the file is read, and what the loss is: --labels, --tensor, --label-tensor, --dtype, --cast, --vocab,
  // --ignore-index, --reduction, --empty-mean, --non-finite.
  void add_problem_to(CLI::App& command);
  // What computes it: --tp, --shards, --backend and, where the caller does not know it already, --method.
  void add_runtime_to(CLI::App& command, bool with_method);

  // Throws std::invalid_argument for names that are not known.
  io::LogitsRequest input(const std::string& file) const;
  Request request() const;

  std::optional<std::string> method;
  std::optional<std::string> backend;
  Options options;

 private:
  std::optional<std::string> labels_;
  std::string tensor_ = "logits";
  std::string label_tensor_ = "labels";
  std::optional<std::string> dtype_;
  std::optional<std::string> cast_;
  std::optional<std::int64_t> vocab_;
  std::string reduction_ = "mean";
  std::string empty_mean_ = "nan";
  std::string non_finite_ = "nan";
  std::int64_t tp_ = 1;
  std::optional<std::string> shards_;
};

}  // namespace tpce::tools
