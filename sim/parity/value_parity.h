// Values of one format held against each other: differing bits, and distances in ulp (sim/precision/ulp_steps.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "sim/precision/ulp_steps.h"

namespace tpce::sim {

// How many pairs of values lie how far apart.
class UlpHistogram {
 public:
  // Bins: the same bits; other bits at distance 0; distances from 2^k to below 2^(k + 1), of fp32 at most 2^32; a NaN
  // against a number.
  static constexpr std::size_t kSameBits = 0, kOtherBits = 1, kOneUlp = 2, kUnordered = kOneUlp + 32;
  static constexpr std::size_t kBins = kUnordered + 1;
  static std::size_t bin_of(const std::optional<std::uint64_t>& steps);  // of pairs whose bits differ
  static std::string name_of(std::size_t bin);

  std::array<std::int64_t, kBins> counts{};
};

// Where a value stands; column is -1 for one a row, row and column are -1 for one a file.
struct ValuePlace {
  std::size_t file = 0;
  std::int64_t row = -1;
  std::int64_t column = -1;
};

// A pair of values whose bits differ.
struct DifferingPair {
  ValuePlace place;
  float a = 0.0f;  // widened
  float b = 0.0f;
  std::uint32_t a_bits = 0;  // of the format
  std::uint32_t b_bits = 0;
  std::optional<std::uint64_t> steps;  // none: a NaN against a number
  // Of the row, where it has them: its label, and the label's logit minus the logsumexp of the others.
  std::optional<std::int64_t> label = {};
  std::optional<double> margin = {};
};

// Whether `a` lies farther apart than `b`; a NaN against a number lies farther than any two numbers.
bool is_worse(const DifferingPair& a, const DifferingPair& b);

struct ValueParity {
  DType dtype = DType::kFloat32;
  std::int64_t values = 0;
  std::int64_t differing_values = 0;
  std::int64_t differing_bits = 0;          // in all of them
  std::uint64_t max_ulp = 0;                // over the pairs that have a distance
  std::optional<DifferingPair> worst = {};  // the first of the worst
  UlpHistogram histogram = {};

  // One pair.
  template <class T>
  void add(const ValuePlace& place, T a, T b);
  // A row of as many pairs; place is that of the first.
  template <class T>
  void add_row(const ValuePlace& place, std::span<const T> a, std::span<const T> b);

  bool equal() const { return differing_values == 0; }
};

}  // namespace tpce::sim
