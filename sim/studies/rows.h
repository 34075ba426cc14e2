// Rows of logits with labels, for studies that look at many of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tpce::sim {

struct LabelledRows {
  std::int64_t vocab = 0;
  std::vector<float> logits;         // [rows, vocab]; numbers of the file's type where they come from one
  std::vector<std::int64_t> labels;  // [rows]

  std::int64_t rows() const { return static_cast<std::int64_t>(labels.size()); }
  std::span<const float> row(std::int64_t i) const {
    return std::span(logits).subspan(static_cast<std::size_t>(i * vocab), static_cast<std::size_t>(vocab));
  }
  std::int64_t label(std::int64_t i) const { return labels[static_cast<std::size_t>(i)]; }
};

// A number close to N(0, 1), the same on every machine: a sum of 12 uniform ones, on a grid of 2^-20 on which it is
// exact in fp32. draw() gives a random integer of 20 bits.
template <class Draw>
float normal_number(const Draw& draw) {
  std::int64_t sum = 0;
  for (int i = 0; i < 12; ++i) sum += static_cast<std::int64_t>(draw());
  return static_cast<float>(sum - (std::int64_t{6} << 20)) * 0x1p-20f;
}

// The same for a seed.
std::vector<float> normal_numbers(std::int64_t count, std::uint64_t seed);

struct RowsRequest {
  std::int64_t rows = 64;
  std::int64_t vocab = 1024;
  float spread = 1.0f;  // standard deviation of the logits; the products are rounded to fp32
  std::uint64_t seed = 1;
};

// Labels stand anywhere; their logits are like any other.
LabelledRows random_rows(const RowsRequest& request);

// Sets each label's logit so that the margins run evenly from low to high, to the nearest fp32.
void spread_margins(LabelledRows& rows, double low, double high);

// z_t - log of the sum of exp over the other classes, in fp64.
double margin_of(std::span<const float> logits, std::int64_t target);

// The first max_rows rows of a file with the tensors logits and labels, widened to fp32, without those whose label is
// outside of the vocabulary. Throws as io::LogitsFile does, where no row is left, and, naming the row, where its margin
// is not finite.
LabelledRows read_rows(const std::string& path, std::int64_t max_rows);

}  // namespace tpce::sim
