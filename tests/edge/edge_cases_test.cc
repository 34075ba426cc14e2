#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "reference/evaluate.h"
#include "simd/simd_backend.h"
#include "tests/support/problem.h"
#include "tests/support/sparse_memory.h"
#include "tests/support/ulp.h"
#include "tpce/cross_entropy.h"

namespace tpce {
namespace {

using testing::normal_logits;
using testing::Outcome;
using testing::Problem;
using testing::refusal;
using testing::ulps_between;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// By the scalar backend; the simd one must agree.
Outcome run(const Batch& batch, testing::RunOptions how = {}) {
  static simd::SimdBackend simd;
  const Outcome outcome = testing::run(batch, how);
  how.backend = &simd;
  EXPECT_TRUE(testing::same_bits(testing::run(batch, how), outcome));
  return outcome;
}

// Bounds of docs/accuracy.md, section 3, for fewer than 2^18 classes; V * 2^-21.49 is then below 0.1.
constexpr double kLossBound = 2.1 + 0.1;
constexpr double kOtherBound = 4.6 + 0.1;

// Certified values of a batch, upstream 1 for each row.
reference::Evaluation certified(const Batch& batch, Options options = {}) {
  options.reduction = Reduction::kNone;
  return reference::evaluate({batch, options, {}}, {});
}

void expect_zeros(const std::vector<float>& values) {
  for (const float value : values) ASSERT_EQ(bit_cast<std::uint32_t>(value), 0u);
}

void expect_losses_as_certified(const Batch& batch, const Outcome& outcome) {
  const reference::Evaluation truth = certified(batch);
  for (std::size_t i = 0; i < outcome.nll.size(); ++i) {
    EXPECT_TRUE(truth.rows[i].loss.certified);
    EXPECT_LE(ulps_between(outcome.nll[i], truth.rows[i].loss.fp64), kLossBound) << i;
  }
}

TEST(EdgeCases, pytorch_70348_liger_177_efficient_cross_entropy_6_all_rows_ignored_mean) {
  Problem<float> problem({1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f}, {-100, -100}, ShardPlan::even(3, 2));
  const Outcome nan = run(problem.batch());
  EXPECT_TRUE(std::isnan(nan.loss.value));
  expect_zeros(nan.gradient);
  const Outcome zero = run(problem.batch(), {.options = {.empty_mean = EmptyMean::kZero}});
  EXPECT_EQ(zero.loss.value, 0.0f);
  expect_zeros(zero.gradient);
}

TEST(EdgeCases, pytorch_11551_ignored_row_with_garbage) {
  for (const float garbage : {-kInfinity, kInfinity, kNan}) {
    Problem<float> problem({garbage, garbage, 1.0f, 2.0f}, {-100, 0}, ShardPlan::even(2, 2));
    for (const Reduction reduction : {Reduction::kNone, Reduction::kSum, Reduction::kMean}) {
      const Outcome outcome = run(problem.batch(), {.options = {.reduction = reduction}});
      EXPECT_EQ(outcome.nll[0], 0.0f);
      EXPECT_EQ(outcome.gradient[0], 0.0f);
      EXPECT_EQ(outcome.gradient[1], 0.0f);
      EXPECT_EQ(std::isnan(outcome.loss.value), reduction == Reduction::kNone);
      EXPECT_NE(outcome.gradient[2], 0.0f);
    }
  }
}

TEST(EdgeCases, flash_attention_1930_one_finite_logit) {
  constexpr std::int64_t kVocab = 100'000;
  for (const std::int64_t target : {std::int64_t{0}, std::int64_t{51'234}, kVocab - 1}) {
    std::vector<float> logits(kVocab, -kInfinity);
    logits[static_cast<std::size_t>(target)] = 12.5f;
    Problem<float> problem(logits, {target}, ShardPlan::even(kVocab, 4));
    const Outcome outcome = run(problem.batch());
    EXPECT_EQ(bit_cast<std::uint32_t>(outcome.loss.value), 0u);
    EXPECT_EQ(outcome.lse[0], 12.5f);
    expect_zeros(outcome.gradient);
  }
}

TEST(EdgeCases, optax_896_masked_class) {
  Problem<float> problem({-kInfinity, 0.0f}, {1}, ShardPlan::even(2, 1));
  const Outcome outcome = run(problem.batch());
  EXPECT_EQ(bit_cast<std::uint32_t>(outcome.loss.value), 0u);
  expect_zeros(outcome.gradient);
}

// No phantom exp(0) from a tail, wherever the width ends within a vector or a tile.
TEST(EdgeCases, verl_2899_verl_5349_odd_vocabulary) {
  std::mt19937_64 random(70);
  for (const std::int64_t vocab : {129'920, 50'257, 1'017, 127, 65, 33, 31, 17, 9, 7, 3}) {
    // All logits far below 0: one phantom exp(0) would be the whole sum.
    std::vector<float> logits = normal_logits(random, static_cast<std::size_t>(vocab), 2.0);
    for (float& logit : logits) logit -= 40.0f;
    Problem<float> whole(logits, {vocab / 2}, ShardPlan::even(vocab, 1));
    const Outcome expected = run(whole.batch());
    expect_losses_as_certified(whole.batch(), expected);
    for (const std::int64_t tp : {2, 4, 8}) {
      Problem<float> cut(logits, {vocab / 2}, ShardPlan::even(vocab, tp));
      EXPECT_TRUE(testing::same_bits(run(cut.batch()), expected)) << vocab << ' ' << tp;
    }
  }
}

// The padding of a tensor-parallel vocabulary, at a value that would win every maximum.
TEST(EdgeCases, unsloth_10616_padding_carries_no_mass) {
  constexpr std::int64_t kVocab = 65'537, kColumns = 65'600;
  std::vector<float> logits(kColumns, -100.0f);
  for (std::size_t j = kVocab; j < kColumns; ++j) logits[j] = 0.0f;
  Problem<float> padded(logits, {7}, ShardPlan::even(kColumns, 8));
  padded.set_vocab(kVocab);
  const Outcome outcome = run(padded.batch());
  logits.resize(kVocab);
  Problem<float> plain(logits, {7}, ShardPlan::even(kVocab, 1));
  EXPECT_EQ(outcome.nll, run(plain.batch()).nll);
  for (std::size_t j = kVocab; j < kColumns; ++j) ASSERT_EQ(outcome.gradient[j], 0.0f);
  EXPECT_LE(ulps_between(outcome.nll[0], std::log(65537.0)), kLossBound);
}

// Rows that start beyond 2^31 and beyond 2^32 elements, as those of T = 16384, V = 262144 do; only the columns that are
// classes take memory.
TEST(EdgeCases, pytorch_111484_trl_7266_huge_tensors) {
  constexpr std::int64_t kRows = 10, kStride = std::int64_t{1} << 29, kVocab = 1'000;
  const testing::SparseMemory memory(static_cast<std::size_t>(kRows * kStride) * sizeof(BFloat16));
  if (!memory.ok()) GTEST_SKIP() << "the machine does not lend 10 GiB of address space";
  auto* huge = static_cast<BFloat16*>(memory.data());
  std::mt19937_64 random(71);
  const std::vector<float> wide = normal_logits(random, kRows * kVocab, 5.0);
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < kRows; ++i) labels.push_back(97 * i);
  Problem<BFloat16> small(testing::rounded<BFloat16>(std::span<const float>(wide)), labels, ShardPlan::even(kVocab, 2));

  const ShardPlan plan = ShardPlan::even(kVocab, 2);
  const Matrix logits{huge, DType::kBFloat16, kRows, kVocab, kStride, {}};
  std::vector<Shard> shards;
  std::vector<Matrix> gradients;
  for (std::int64_t s = 0; s < 2; ++s) {
    gradients.push_back(logits.column_range(plan.first_class(s), plan.width(s)));
    shards.push_back({gradients.back(), s});
  }
  const Outcome expected = run(small.batch());
  const auto for_each_element = [&](auto visit) {
    for (std::int64_t i = 0; i < kRows; ++i) {
      for (std::int64_t j = 0; j < kVocab; ++j) visit(static_cast<std::size_t>(i * kVocab + j), huge[i * kStride + j]);
    }
  };
  ScalarBackend scalar;
  simd::SimdBackend simd;
  for (Backend* backend : {static_cast<Backend*>(&scalar), static_cast<Backend*>(&simd)}) {
    for_each_element([&](std::size_t at, BFloat16& logit) { round_to(wide[at], &logit); });
    SelfCommunicator self;
    std::vector<float> nll(kRows);
    Forward forward = cross_entropy_forward({plan, shards, Labels(labels.data(), kRows), kVocab}, {},
                                            {.nll = nll.data()}, {*backend, self});
    EXPECT_EQ(nll, expected.nll);
    EXPECT_EQ(forward.loss.value_fp64, expected.loss.value_fp64);
    cross_entropy_backward(forward.saved, {}, gradients, {*backend, self});  // in place
    for_each_element([&](std::size_t at, const BFloat16& gradient) {
      BFloat16 want;
      round_to(expected.gradient[at], &want);
      ASSERT_EQ(gradient.bits, want.bits) << backend->name() << ' ' << at;
    });
  }
}

TEST(EdgeCases, pytorch_67167_row_stride_beyond_the_vocabulary) {
  constexpr std::int64_t kRows = 5, kVocab = 33, kStride = 50;
  std::mt19937_64 random(72);
  std::vector<float> buffer(kRows * kStride, kNan);
  const std::vector<float> logits = normal_logits(random, kRows * kVocab, 4.0);
  for (std::int64_t i = 0; i < kRows; ++i) {
    std::copy_n(logits.begin() + i * kVocab, kVocab, buffer.begin() + i * kStride);
  }
  const std::vector<std::int64_t> labels{0, 32, 5, 17, 9};
  Problem<float> contiguous(logits, labels, ShardPlan::even(kVocab, 1));
  const ShardPlan plan = ShardPlan::even(kVocab, 1);
  const std::vector<Shard> shards{{ConstMatrix{buffer.data(), DType::kFloat32, kRows, kVocab, kStride, {}}, 0}};
  EXPECT_TRUE(testing::same_bits(run({plan, shards, Labels(labels.data(), kRows), kVocab}), run(contiguous.batch())));
}

TEST(EdgeCases, pytorch_49882_label_out_of_range) {
  for (const Reduction reduction : {Reduction::kNone, Reduction::kSum, Reduction::kMean}) {
    for (const std::int64_t label : {std::int64_t{3}, std::int64_t{-1}, std::int64_t{-99}, std::int64_t{1} << 40,
                                     std::numeric_limits<std::int64_t>::min()}) {
      Problem<float> problem({1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f}, {0, label}, ShardPlan::even(3, 2));
      std::vector<float> nll(2, 77.0f);
      ScalarBackend backend;
      SelfCommunicator self;
      EXPECT_EQ(
          refusal([&] {
            cross_entropy_forward(problem.batch(), {.reduction = reduction}, {.nll = nll.data()}, {backend, self});
          }),
          "labels: row 1 has label " + std::to_string(label) + ", expected 0..2 or ignore_index -100");
      EXPECT_EQ(nll, (std::vector<float>{77.0f, 77.0f}));
    }
  }
}

TEST(EdgeCases, megatron_7452_full_logits_given_as_a_shard) {
  constexpr std::int64_t kVocab = 8;
  const std::vector<float> logits(2 * kVocab, 1.0f);
  const std::vector<std::int64_t> labels{0, 5};
  const ShardPlan plan = ShardPlan::even(kVocab, 2);
  const ConstMatrix full = matrix_of(logits.data(), 2, kVocab);
  const std::vector<Shard> shards{{full, 0}, {full, 1}};
  EXPECT_EQ(refusal([&] {
              run({plan, shards, Labels(labels.data(), 2), kVocab});
            }),
            "logits of shard 0: got the full logits, 8 columns, expected the 4 columns of the shard alone");
}

// p_t near 0.999: p_t - 1 in bf16 or fp32 has lost most of its digits.
TEST(EdgeCases, liger_1329_confident_bf16_row) {
  std::mt19937_64 random(73);
  constexpr std::int64_t kVocab = 4'096;
  std::vector<float> wide = normal_logits(random, kVocab, 1.0);
  double others = 0.0;
  for (const float logit : wide) others += std::exp(static_cast<double>(logit));
  wide[100] = static_cast<float>(std::log(others) + std::log(999.0));
  Problem<BFloat16> problem(testing::rounded<BFloat16>(std::span<const float>(wide)), {100},
                            ShardPlan::even(kVocab, 2));
  const reference::RowTruth truth = certified(problem.batch()).rows[0];
  const Outcome outcome = run(problem.batch(), {.options = {.reduction = Reduction::kSum}});
  EXPECT_NEAR(truth.target_gradient.fp64, -0.001, 0.0001);
  EXPECT_TRUE(truth.target_gradient.certified);
  EXPECT_LE(ulps_between(outcome.gradient[100], truth.target_gradient.fp64), kLossBound);
  EXPECT_LE(ulps_between(outcome.nll[0], truth.loss.fp64), kLossBound);
}

TEST(EdgeCases, automodel_3853_upstream_gradient_of_each_row) {
  constexpr std::int64_t kRows = 6, kVocab = 50;
  std::mt19937_64 random(74);
  std::vector<float> upstream(kRows);
  std::iota(upstream.begin(), upstream.end(), 0.0f);
  Problem<float> problem(normal_logits(random, kRows * kVocab, 3.0), {1, 2, 3, 4, 5, 6}, ShardPlan::even(kVocab, 3));
  const Options none{.reduction = Reduction::kNone};
  const Outcome outcome = run(problem.batch(), {.options = none, .upstream = {.per_row = upstream.data()}});
  const std::vector<double> wide(upstream.begin(), upstream.end());
  for (std::int64_t i = 0; i < kRows; ++i) {
    const reference::Inputs inputs{problem.batch(), none, {.per_row = wide}};
    const std::vector<reference::Value> truth = reference::row_gradient(inputs, {}, i);
    for (std::int64_t j = 0; j < kVocab; ++j) {
      const float dz = outcome.gradient[static_cast<std::size_t>(i * kVocab + j)];
      EXPECT_LE(ulps_between(dz, truth[static_cast<std::size_t>(j)].fp64), kOtherBound) << i << ' ' << j;
      EXPECT_TRUE(i != 0 || bit_cast<std::uint32_t>(dz) == 0u);
    }
  }
}

TEST(EdgeCases, megatron_1594_input_kept) {
  std::mt19937_64 random(75);
  Problem<float> problem(normal_logits(random, 4 * 20, 3.0), {0, 1, -100, 3}, ShardPlan::even(20, 4));
  const std::vector<float> logits = problem.logits();
  const std::vector<std::int64_t> labels = problem.labels();
  run(problem.batch());
  EXPECT_EQ(problem.logits(), logits);
  EXPECT_EQ(problem.labels(), labels);
}

// Logits + 1e8 on a grid that fp32 represents there, multiples of 8.
TEST(EdgeCases, mlx_4188_pytorch_11752_large_offset) {
  std::mt19937_64 random(76);
  double worst = 0.0;
  for (int round = 0; round < 300; ++round) {
    std::vector<float> logits(1'000), shifted;
    for (float& logit : logits) logit = 8.0f * static_cast<float>(random() % 16);
    for (const float logit : logits) shifted.push_back(logit + 1e8f);
    const auto target = static_cast<std::int64_t>(random() % 1'000);
    Problem<float> near(logits, {target}, ShardPlan::even(1'000, 2));
    Problem<float> far(shifted, {target}, ShardPlan::even(1'000, 2));
    const double distance = ulps_between(run(near.batch()).nll[0], run(far.batch()).nll[0]);
    worst = std::max(worst, distance);
    EXPECT_LE(distance, 2.0) << round;
    expect_losses_as_certified(far.batch(), run(far.batch()));
  }
  RecordProperty("worst_ulp", std::to_string(worst));
}

// The loss of 16-bit logits has fp32's precision, not theirs.
TEST(EdgeCases, optax_1020_low_precision_input) {
  std::mt19937_64 random(77);
  const std::vector<float> wide = normal_logits(random, 8 * 500, 2.0);
  const std::vector<std::int64_t> labels{0, 1, 2, 3, 4, 5, 6, 499};
  const auto expect_fp32_precision = [&](auto element) {
    using T = decltype(element);
    Problem<T> problem(testing::rounded<T>(std::span<const float>(wide)), labels, ShardPlan::even(500, 2));
    expect_losses_as_certified(problem.batch(), run(problem.batch()));
  };
  expect_fp32_precision(BFloat16{});
  expect_fp32_precision(Float16{});
  static_assert(std::is_same_v<decltype(Loss::value), float>);
  static_assert(std::is_same_v<decltype(Loss::value_fp64), double>);
}

TEST(EdgeCases, transformer_engine_2476_mean_divides_by_the_valid_rows) {
  Problem<float> problem({0.0f, 0.0f, 5.0f, -5.0f, 0.0f, 0.0f, 0.0f, 0.0f}, {0, -100, -100, 1}, ShardPlan::even(2, 1));
  const Outcome outcome = run(problem.batch());
  EXPECT_EQ(outcome.loss.valid_rows, 2);
  EXPECT_EQ(outcome.loss.value, static_cast<float>(std::log(2.0)));
  EXPECT_EQ(outcome.gradient[0], -0.25f);
  EXPECT_EQ(outcome.gradient[6], 0.25f);
}

}  // namespace
}  // namespace tpce
