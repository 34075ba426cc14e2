// The loss is a function of the multiset of classes: no order, cut or grouping may reach a bit of it.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/support/problem.h"

namespace tpce {
namespace {

using testing::Outcome;
using testing::Problem;
using testing::run;
using testing::same_bits;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Indices = std::vector<std::int64_t>;

rc::Gen<float> small_integer() {
  return rc::gen::map(rc::gen::inRange(-30, 31), [](int value) { return static_cast<float>(value); });
}

// Usual logits, ties, neighbouring bins, both zeros, both reductions of exp_split, both huge classes, and -inf; seldom
// something that is not finite.
rc::Gen<float> logit() {
  const auto scaled = [](float scale, float offset) {
    return rc::gen::map(small_integer(), [=](float value) { return value * scale + offset; });
  };
  return rc::gen::weightedOneOf<float>({
      {8, rc::gen::map(rc::gen::inRange(-(1 << 23), 1 << 23),
                       [](int value) { return static_cast<float>(value) * 0x1p-19f; })},
      {4, small_integer()},
      {2, scaled(1.0f, 65536.0f)},
      {2, scaled(1.0f, -65536.0f)},
      {2, scaled(0x1p26f, 0.0f)},
      {2, scaled(0x1p120f, 0.0f)},
      {2, rc::gen::element(0.0f, -0.0f, -kInfinity, 0x1p30f, -0x1p30f, 0x1p-149f)},
      {1, rc::gen::weightedElement<float>({{30, 1.0f}, {1, kInfinity}, {1, std::nanf("")}})},
  });
}

// T rows of V classes; a label may be ignored.
struct Rows {
  std::int64_t vocab = 0;
  std::vector<float> logits;
  Indices labels;

  std::int64_t count() const { return static_cast<std::int64_t>(labels.size()); }
  Problem<float> over(const ShardPlan& plan) const { return {logits, labels, plan}; }
  Problem<float> whole() const { return over(ShardPlan::even(vocab, 1)); }
};

Rows arbitrary_rows() {
  Rows rows;
  rows.vocab = *rc::gen::inRange<std::int64_t>(1, 40);
  const auto count = *rc::gen::inRange<std::size_t>(0, 5);
  const auto size = count * static_cast<std::size_t>(rows.vocab);
  rows.logits = *rc::gen::container<std::vector<float>>(size, logit());
  rows.labels = *rc::gen::container<Indices>(
      count, rc::gen::weightedOneOf<std::int64_t>(
                 {{9, rc::gen::inRange<std::int64_t>(0, rows.vocab)}, {1, rc::gen::just<std::int64_t>(-100)}}));
  return rows;
}

// A permutation of [0, count), by sorting random keys.
Indices arbitrary_permutation(std::int64_t count) {
  const auto keys = *rc::gen::container<std::vector<std::uint32_t>>(static_cast<std::size_t>(count),
                                                                    rc::gen::arbitrary<std::uint32_t>());
  Indices order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return keys[static_cast<std::size_t>(a)] < keys[static_cast<std::size_t>(b)];
  });
  return order;
}

// Widths that add up to columns; many are 0.
ShardPlan arbitrary_plan(std::int64_t columns) {
  Indices cuts = *rc::gen::container<Indices>(rc::gen::inRange<std::int64_t>(0, columns + 1));
  std::sort(cuts.begin(), cuts.end());
  cuts.push_back(columns);
  Indices widths;
  std::int64_t last = 0;
  for (const std::int64_t cut : cuts) {
    widths.push_back(cut - last);
    last = cut;
  }
  return ShardPlan::from_widths(columns, widths);
}

template <class T>
T at(const std::vector<T>& values, std::int64_t index) {
  return values[static_cast<std::size_t>(index)];
}

testing::RunOptions arbitrary_options() {
  return {.options = {.reduction = *rc::gen::element(Reduction::kNone, Reduction::kSum, Reduction::kMean)},
          .upstream = {.scalar = *rc::gen::element(1.0, -0.3, 65536.0)},
          .rows_per_chunk = *rc::gen::inRange<std::int64_t>(1, 6)};
}

RC_GTEST_PROP(Laws, PartitionIntoShards, ()) {
  const Rows rows = arbitrary_rows();
  const testing::RunOptions how = arbitrary_options();
  Problem<float> whole = rows.whole();
  Problem<float> cut = rows.over(arbitrary_plan(rows.vocab));
  RC_ASSERT(same_bits(run(cut.batch(), how), run(whole.batch(), how)));
}

RC_GTEST_PROP(Laws, OrderOfShards, ()) {
  const Rows rows = arbitrary_rows();
  Problem<float> cut = rows.over(arbitrary_plan(rows.vocab));
  const Outcome expected = run(cut.batch());
  const std::vector<Shard> shards = cut.shards();
  const Indices order = arbitrary_permutation(static_cast<std::int64_t>(shards.size()));
  for (std::size_t s = 0; s < shards.size(); ++s) cut.shards()[s] = at(shards, order[s]);
  RC_ASSERT(same_bits(run(cut.batch()), expected));
}

RC_GTEST_PROP(Laws, PermutationOfClasses, ()) {
  const Rows rows = arbitrary_rows();
  const testing::RunOptions how = arbitrary_options();
  const Indices order = arbitrary_permutation(rows.vocab);
  Rows permuted = rows;
  for (std::int64_t i = 0; i < rows.count(); ++i) {
    for (std::int64_t j = 0; j < rows.vocab; ++j) {
      permuted.logits[static_cast<std::size_t>(i * rows.vocab + j)] = at(rows.logits, i * rows.vocab + at(order, j));
      if (at(rows.labels, i) == at(order, j)) permuted.labels[static_cast<std::size_t>(i)] = j;
    }
  }
  Problem<float> original = rows.whole();
  Problem<float> shuffled = permuted.over(arbitrary_plan(rows.vocab));
  Outcome expected = run(original.batch(), how);
  const std::vector<float> gradient = expected.gradient;
  for (std::int64_t i = 0; i < rows.count(); ++i) {
    for (std::int64_t j = 0; j < rows.vocab; ++j) {
      expected.gradient[static_cast<std::size_t>(i * rows.vocab + j)] = at(gradient, i * rows.vocab + at(order, j));
    }
  }
  RC_ASSERT(same_bits(run(shuffled.batch(), how), expected));
}

RC_GTEST_PROP(Laws, OrderOfRows, ()) {
  const Rows rows = arbitrary_rows();
  const testing::RunOptions how = arbitrary_options();
  const Indices order = arbitrary_permutation(rows.count());
  Rows permuted = rows;
  Problem<float> original = rows.whole();
  const Outcome before = run(original.batch(), how);
  Outcome expected = before;
  const auto vocab = static_cast<std::ptrdiff_t>(rows.vocab);
  for (std::int64_t i = 0; i < rows.count(); ++i) {
    const std::int64_t from = at(order, i);
    const auto to = static_cast<std::size_t>(i);
    permuted.labels[to] = at(rows.labels, from);
    std::copy_n(rows.logits.begin() + from * vocab, vocab, permuted.logits.begin() + i * vocab);
    expected.nll[to] = at(before.nll, from);
    expected.lse[to] = at(before.lse, from);
    expected.nll_fp64[to] = at(before.nll_fp64, from);
    expected.lse_fp64[to] = at(before.lse_fp64, from);
    std::copy_n(before.gradient.begin() + from * vocab, vocab, expected.gradient.begin() + i * vocab);
  }
  Problem<float> shuffled = permuted.whole();
  RC_ASSERT(same_bits(run(shuffled.batch(), how), expected));
}

// States of the shards, merged as a random tree.
RC_GTEST_PROP(Laws, TreeOfMerges, ()) {
  const auto logits = *rc::gen::container<std::vector<float>>(logit());
  const auto count = static_cast<std::int64_t>(logits.size());
  const auto target = *rc::gen::inRange<std::int64_t>(-1, count + 1);
  std::vector<RowPartial> parts;
  if (count > 0) {
    const ShardPlan plan = arbitrary_plan(count);
    for (std::int64_t s = 0; s < plan.tp(); ++s) {
      parts.push_back(row_partial(logits.data() + plan.first_class(s), plan.width(s), target - plan.first_class(s)));
    }
  }
  parts.emplace_back();
  while (parts.size() > 1) {
    const auto a = *rc::gen::inRange<std::size_t>(0, parts.size());
    std::swap(parts[a], parts.back());
    const RowPartial part = parts.back();
    parts.pop_back();
    merge(parts[*rc::gen::inRange<std::size_t>(0, parts.size())], part);
  }
  RC_ASSERT(parts.front() == row_partial(logits.data(), count, target));
}

// A sum of terms: any order, any grouping.
RC_GTEST_PROP(Laws, TreeOfSums, ()) {
  const auto terms = *rc::gen::container<std::vector<std::uint32_t>>(rc::gen::arbitrary<std::uint32_t>());
  BinnedSum expected;
  std::vector<BinnedSum> parts(*rc::gen::inRange<std::size_t>(1, 6));
  for (const std::uint32_t bits : terms) add(expected, bit_cast<float>(bits));
  for (const std::int64_t i : arbitrary_permutation(static_cast<std::int64_t>(terms.size()))) {
    add(parts[*rc::gen::inRange<std::size_t>(0, parts.size())], bit_cast<float>(at(terms, i)));
  }
  BinnedSum sum;
  for (const BinnedSum& part : parts) merge(sum, part);
  RC_ASSERT(sum == expected);
  RC_ASSERT(bit_cast<std::uint64_t>(value_of(sum)) == bit_cast<std::uint64_t>(value_of(expected)));
}

// Logits on a grid of `unit`, and the same plus an offset that keeps every one of them exact.
struct Shifted {
  Rows rows;
  Rows shifted;
};

Shifted arbitrary_shift(double unit, int steps, double offset) {
  Rows rows;
  rows.vocab = *rc::gen::inRange<std::int64_t>(2, 40);
  const auto levels =
      *rc::gen::container<std::vector<int>>(static_cast<std::size_t>(rows.vocab), rc::gen::inRange(-steps, steps + 1));
  rows.labels = {*rc::gen::inRange<std::int64_t>(0, rows.vocab)};
  Rows shifted = rows;
  for (const int level : levels) {
    const double exact = level * unit + offset;
    const auto moved = static_cast<float>(exact);
    RC_ASSERT(static_cast<double>(moved) == exact);
    rows.logits.push_back(static_cast<float>(level * unit));
    shifted.logits.push_back(moved);
  }
  return {rows, shifted};
}

double ulp(float x) { return std::max(std::ldexp(1.0, std::ilogb(x) - 23), 0x1p-149); }

// The truth of both is one number. Each loss lies within 2.1 ulp of it and each other gradient within 4.6
// (docs/accuracy.md, section 3; V < 40 adds less than 0.0001), so two of them lie within twice that.
void expect_within_twice_the_bound(const Shifted& pair) {
  Problem<float> before = pair.rows.whole();
  Problem<float> after = pair.shifted.whole();
  const Outcome a = run(before.batch());
  const Outcome b = run(after.batch());
  const auto within = [](float x, float y, double ulps) {
    if (x == y) return true;
    return std::fabs(static_cast<double>(x) - static_cast<double>(y)) <=
           2.0 * ulps * ulp(std::fmax(std::fabs(x), std::fabs(y)));
  };
  RC_ASSERT(within(a.nll[0], b.nll[0], 2.1));
  for (std::size_t j = 0; j < a.gradient.size(); ++j) {
    const bool target = static_cast<std::int64_t>(j) == pair.rows.labels[0];
    RC_ASSERT(within(a.gradient[j], b.gradient[j], target ? 2.1 : 4.6));
  }
}

RC_GTEST_PROP(Laws, ShiftByAConstant, ()) {
  const double offset = *rc::gen::element(1.0, -3.5, 16.0, 100.25, -1000.0, 8191.5);
  expect_within_twice_the_bound(arbitrary_shift(0x1p-8, 20 << 8, offset));
}

// Into the fp64 reduction of exp_split: all beyond 2^16, and astride it.
RC_GTEST_PROP(Laws, ShiftAcross2To16, ()) {
  const double offset = *rc::gen::element(65536.0, -65536.0, 100000.0, -100000.0, 65530.0, -65530.0);
  expect_within_twice_the_bound(arbitrary_shift(0x1p-6, 20 << 6, offset));
}

// To 1e8 and 1e9, where fp32 steps by 8 and by 64.
RC_GTEST_PROP(Laws, ShiftByHugeOffsets, ()) {
  const double offset = *rc::gen::element(1e8, -1e8, 1e9, -1e9, 0x1p29);
  expect_within_twice_the_bound(arbitrary_shift(64.0, 20, offset));
}

// Out of the grid: from 2^30 on only ties with the maximum carry mass, since neighbours lie 128 apart.
RC_GTEST_PROP(Laws, ShiftAcross2To30, ()) {
  const double offset = *rc::gen::element(0x1p30, -0x1p30, 0x1p30 - 1024.0, 0x1.8p30, -0x1.8p30);
  expect_within_twice_the_bound(arbitrary_shift(128.0, 10, offset));
}

// A power of two in upstream reaches the gradient exactly, while nothing is subnormal or infinite.
RC_GTEST_PROP(Laws, PowersOfTwoOfUpstream, ()) {
  const Rows rows = arbitrary_rows();
  const int power = *rc::gen::inRange(-20, 21);
  Problem<float> problem = rows.whole();
  const testing::RunOptions none{.options = {.reduction = Reduction::kNone}};
  testing::RunOptions scaled_options = none;
  scaled_options.upstream.scalar = std::ldexp(1.0, power);
  const Outcome one = run(problem.batch(), none);
  const Outcome scaled = run(problem.batch(), scaled_options);
  const float smallest = std::ldexp(std::numeric_limits<float>::min(), 20);
  for (std::size_t j = 0; j < one.gradient.size(); ++j) {
    const float dz = one.gradient[j];
    if (std::isnan(dz)) {
      RC_ASSERT(std::isnan(scaled.gradient[j]));
    } else if (dz == 0.0f || std::fabs(dz) >= smallest) {
      RC_ASSERT(scaled.gradient[j] == std::ldexp(dz, power) || dz == 0.0f);
    }
  }
}

}  // namespace
}  // namespace tpce
