#include "sim/studies/rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>

#include "io/error.h"
#include "io/logits_file.h"
#include "tpce/dtype.h"

namespace tpce::sim {

std::vector<float> normal_numbers(std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 bits(seed);
  std::vector<float> numbers(static_cast<std::size_t>(count));
  std::uint64_t word = 0;
  int left = 0;
  const auto draw = [&] {  // three numbers of 20 bits a word
    if (left == 0) {
      word = bits();
      left = 3;
    }
    const std::uint64_t number = word & 0xfffff;
    word >>= 20;
    --left;
    return number;
  };
  for (float& number : numbers) number = normal_number(draw);
  return numbers;
}

LabelledRows random_rows(const RowsRequest& request) {
  LabelledRows rows{request.vocab, normal_numbers(request.rows * request.vocab, request.seed), {}};
  for (float& logit : rows.logits) logit *= request.spread;
  std::mt19937_64 bits(request.seed + 0x9e3779b97f4a7c15);
  for (std::int64_t i = 0; i < request.rows; ++i) {
    rows.labels.push_back(static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(request.vocab)));
  }
  return rows;
}

double margin_of(std::span<const float> logits, std::int64_t target) {
  double largest = -HUGE_VAL;
  for (std::size_t j = 0; j < logits.size(); ++j) {
    if (static_cast<std::int64_t>(j) != target) largest = std::max(largest, static_cast<double>(logits[j]));
  }
  double sum = 0.0;
  for (std::size_t j = 0; j < logits.size(); ++j) {
    if (static_cast<std::int64_t>(j) != target) sum += std::exp(static_cast<double>(logits[j]) - largest);
  }
  return static_cast<double>(logits[static_cast<std::size_t>(target)]) - largest - std::log(sum);
}

void spread_margins(LabelledRows& rows, double low, double high) {
  for (std::int64_t i = 0; i < rows.rows(); ++i) {
    const double step = rows.rows() > 1 ? (high - low) / static_cast<double>(rows.rows() - 1) : 0.0;
    const double wanted = low + step * static_cast<double>(i);
    float& logit = rows.logits[static_cast<std::size_t>(i * rows.vocab + rows.label(i))];
    logit = static_cast<float>(static_cast<double>(logit) + wanted - margin_of(rows.row(i), rows.label(i)));
  }
}

namespace {

void check_margin(const std::string& path, std::int64_t row, std::span<const float> logits, std::int64_t label) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::int64_t finite = 0;
  for (std::size_t j = 0; j < logits.size(); ++j) {
    if (!(logits[j] < kInfinity)) {
      io::fail(path, "logits: row {} has {} at class {}, expected less than inf", row, logits[j], j);
    }
    finite += logits[j] > -kInfinity ? 1 : 0;
  }
  const float target = logits[static_cast<std::size_t>(label)];
  if (target == -kInfinity) io::fail(path, "logits: row {} has -inf at its label {}, expected more", row, label);
  if (finite < 2)
    io::fail(path, "logits: row {} has nothing above -inf beside its label, expected a finite value", row);
}

}  // namespace

LabelledRows read_rows(const std::string& path, std::int64_t max_rows) {
  const io::LogitsFile file({.file = path});
  const std::int64_t count = std::min(max_rows, file.rows());
  const io::LogitsFile::Rows part = file.logits(0, count);
  LabelledRows rows{file.vocab(), {}, {}};
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t label = file.labels()[i];
    if (label < 0 || label >= file.vocab()) continue;
    rows.labels.push_back(label);
    visit_dtype(file.dtype(), [&](auto element) {
      using Element = decltype(element);
      const Element* from = part.matrix.row<Element>(i);
      for (std::int64_t j = 0; j < file.vocab(); ++j) {
        if constexpr (std::is_same_v<Element, double>) {
          rows.logits.push_back(static_cast<float>(from[j]));
        } else {
          rows.logits.push_back(widen(from[j]));
        }
      }
    });
    check_margin(path, i, rows.row(rows.rows() - 1), label);
  }
  if (rows.labels.empty()) io::fail(path, "has no label in its vocabulary among the first {} rows", count);
  return rows;
}

}  // namespace tpce::sim
