#include "tpce/cross_entropy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/support/problem.h"
#include "tests/support/two_ranks.h"

namespace tpce {
namespace {

using testing::gradient_matrices;
using testing::normal_logits;
using testing::Outcome;
using testing::Problem;
using testing::refusal;
using testing::run;
using testing::same_bits;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// T rows of V normal logits over tp shards; row i has label 3 i + 1 modulo V.
Problem<float> random_problem(std::int64_t rows, std::int64_t vocab, std::int64_t tp) {
  std::mt19937_64 random(50);
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < rows; ++i) labels.push_back((3 * i + 1) % vocab);
  return {normal_logits(random, static_cast<std::size_t>(rows * vocab), 3.0), labels, ShardPlan::even(vocab, tp)};
}

std::vector<float> row_of(const Outcome& result, std::int64_t row, std::int64_t columns) {
  const auto first = result.gradient.begin() + row * columns;
  return {first, first + columns};
}

void expect_positive_zeros(const std::vector<float>& values) {
  for (const float value : values) EXPECT_EQ(bit_cast<std::uint32_t>(value), 0u);
}

TEST(CrossEntropy, ValuesOfTwoClasses) {
  Problem<float> problem({20.0f, 0.0f, 0.0f, 0.0f}, {0, 1}, ShardPlan::even(2, 2));
  const Outcome result = run(problem.batch(), {.options = {.reduction = Reduction::kSum}});
  EXPECT_EQ(result.nll[0], static_cast<float>(std::log1p(std::exp(-20.0))));  // the usual fp32 form gives 0
  EXPECT_EQ(result.nll[1], static_cast<float>(std::log(2.0)));
  EXPECT_EQ(row_of(result, 1, 2), (std::vector<float>{0.5f, -0.5f}));
  EXPECT_EQ(result.gradient[0], -result.gradient[1]);
  EXPECT_FLOAT_EQ(result.gradient[0], static_cast<float>(-std::exp(-20.0)));
  EXPECT_EQ(result.loss.rows, 2);
  EXPECT_EQ(result.loss.valid_rows, 2);
}

TEST(CrossEntropy, ReductionsAreSumsOfTheRowLosses) {
  Problem<float> problem = random_problem(7, 11, 3);
  problem.labels()[2] = -100;
  const Outcome none = run(problem.batch(), {.options = {.reduction = Reduction::kNone}});
  const Outcome sum = run(problem.batch(), {.options = {.reduction = Reduction::kSum}});
  const Outcome mean = run(problem.batch(), {.options = {.reduction = Reduction::kMean}});
  double total = 0.0;  // exact: seven fp32 values of one order of magnitude
  for (const float nll : none.nll) total += static_cast<double>(nll);
  EXPECT_TRUE(std::isnan(none.loss.value));
  EXPECT_TRUE(std::isnan(none.loss.value_fp64));
  EXPECT_EQ(sum.loss.value_fp64, total);
  EXPECT_EQ(sum.loss.value, static_cast<float>(total));
  EXPECT_EQ(mean.loss.value_fp64, total / 6.0);
  EXPECT_EQ(mean.loss.value, static_cast<float>(total / 6.0));
  EXPECT_EQ(mean.loss.rows, 7);
  EXPECT_EQ(mean.loss.valid_rows, 6);
  EXPECT_EQ(none.nll, mean.nll);
  EXPECT_EQ(none.gradient, sum.gradient);
  // The mean's gradient is that of the rows with upstream 1 / valid rows.
  const Outcome scaled =
      run(problem.batch(), {.options = {.reduction = Reduction::kSum}, .upstream = {.scalar = 1.0 / 6.0}});
  EXPECT_EQ(mean.gradient, scaled.gradient);
}

TEST(CrossEntropy, RowOutputsAreTheFp64OnesRoundedOnce) {
  Problem<float> problem = random_problem(9, 13, 2);
  const Outcome result = run(problem.batch());
  for (std::size_t i = 0; i < result.nll.size(); ++i) {
    EXPECT_EQ(result.nll[i], static_cast<float>(result.nll_fp64[i]));
    EXPECT_EQ(result.lse[i], static_cast<float>(result.lse_fp64[i]));
  }
}

TEST(CrossEntropy, RowOutputsAreOptional) {
  Problem<float> problem = random_problem(5, 8, 2);
  ScalarBackend backend;
  SelfCommunicator self;
  const Forward forward = cross_entropy_forward(problem.batch(), {}, {}, {backend, self});
  EXPECT_EQ(forward.loss.value_fp64, run(problem.batch()).loss.value_fp64);
}

TEST(CrossEntropy, MeanOfNoValidRow) {
  Problem<float> problem({1.0f, 2.0f, kNan, 4.0f}, {-100, -100}, ShardPlan::even(2, 1));
  const Outcome nan = run(problem.batch());
  EXPECT_EQ(bit_cast<std::uint32_t>(nan.loss.value), 0x7fc00000u);
  EXPECT_EQ(nan.loss.valid_rows, 0);
  const Outcome zero = run(problem.batch(), {.options = {.empty_mean = EmptyMean::kZero}});
  EXPECT_EQ(bit_cast<std::uint64_t>(zero.loss.value_fp64), 0u);
  const Outcome sum = run(problem.batch(), {.options = {.reduction = Reduction::kSum}});
  EXPECT_EQ(sum.loss.value, 0.0f);
  for (const Outcome* result : {&nan, &zero, &sum}) {
    expect_positive_zeros(result->gradient);
    expect_positive_zeros(result->nll);
    expect_positive_zeros(result->lse);
  }
}

TEST(CrossEntropy, IgnoreIndexMayBeAValidClass) {
  Problem<float> problem = random_problem(4, 5, 2);  // labels 1, 4, 2, 0
  const Outcome all = run(problem.batch(), {.options = {.reduction = Reduction::kNone}});
  const Outcome without = run(problem.batch(), {.options = {.ignore_index = 4, .reduction = Reduction::kSum}});
  EXPECT_EQ(without.loss.valid_rows, 3);
  EXPECT_EQ(without.nll[1], 0.0f);
  expect_positive_zeros(row_of(without, 1, 5));
  for (const std::int64_t row : {0, 2, 3}) EXPECT_EQ(row_of(without, row, 5), row_of(all, row, 5));
}

// Columns from vocab on carry no mass and get gradient 0, whatever lies in them.
TEST(CrossEntropy, PaddingIsNotRead) {
  constexpr std::int64_t kVocab = 11, kColumns = 16;
  Problem<float> plain = random_problem(3, kVocab, 1);
  for (const float garbage : {kNan, kInfinity, 1e30f, -kInfinity}) {
    std::vector<float> padded;
    for (std::int64_t i = 0; i < 3; ++i) {
      const auto first = plain.logits().begin() + i * kVocab;
      padded.insert(padded.end(), first, first + kVocab);
      padded.insert(padded.end(), kColumns - kVocab, garbage);
    }
    for (const std::int64_t tp : {1, 2, 3, 8, 16}) {
      Problem<float> problem(padded, plain.labels(), ShardPlan::even(kColumns, tp));
      problem.set_vocab(kVocab);
      const Outcome expected = run(plain.batch());
      const Outcome result = run(problem.batch());
      EXPECT_TRUE(same_bits(std::span<const float>(result.nll), std::span<const float>(expected.nll)));
      EXPECT_EQ(result.squares, expected.squares);
      for (std::int64_t i = 0; i < 3; ++i) {
        std::vector<float> dz = row_of(expected, i, kVocab);
        dz.resize(kColumns, 0.0f);
        EXPECT_TRUE(same_bits(std::span<const float>(row_of(result, i, kColumns)), std::span<const float>(dz)));
      }
    }
  }
}

TEST(CrossEntropy, NoRows) {
  Problem<float> problem({}, {}, ShardPlan::even(5, 2));
  const Outcome mean = run(problem.batch());
  EXPECT_TRUE(std::isnan(mean.loss.value));
  EXPECT_EQ(mean.loss.rows, 0);
  EXPECT_EQ(run(problem.batch(), {.options = {.empty_mean = EmptyMean::kZero}}).loss.value, 0.0f);
  EXPECT_EQ(run(problem.batch(), {.options = {.reduction = Reduction::kSum}}).loss.value, 0.0f);
  EXPECT_EQ(mean.squares, BinnedSum());
}

TEST(CrossEntropy, ChunksOfAnySizeGiveTheSameBits) {
  Problem<float> problem = random_problem(23, 17, 3);
  problem.labels()[5] = -100;
  problem.logits()[17 * 9] = kNan;
  const Outcome expected = run(problem.batch(), {.options = {.reduction = Reduction::kNone}});
  for (std::int64_t rows = -1; rows <= 24; ++rows) {
    const Outcome result = run(problem.batch(), {.options = {.reduction = Reduction::kNone}, .rows_per_chunk = rows});
    EXPECT_TRUE(same_bits(result, expected)) << rows;
  }
}

TEST(CrossEntropy, ShardsMayComeInAnyOrder) {
  Problem<float> problem = random_problem(6, 20, 5);
  const Outcome expected = run(problem.batch());
  std::reverse(problem.shards().begin(), problem.shards().end());
  EXPECT_TRUE(same_bits(run(problem.batch()), expected));
  std::swap(problem.shards()[1], problem.shards()[3]);
  EXPECT_TRUE(same_bits(run(problem.batch()), expected));
}

TEST(CrossEntropy, LabelsOfBothWidths) {
  Problem<float> problem = random_problem(6, 20, 2);
  const std::vector<std::int32_t> narrow(problem.labels().begin(), problem.labels().end());
  Batch batch = problem.batch();
  const Outcome expected = run(batch);
  batch.labels = Labels(narrow.data(), 6);
  EXPECT_TRUE(same_bits(run(batch), expected));
}

// Rows of a wider buffer; what lies between them is neither read nor written.
TEST(CrossEntropy, StridedRows) {
  constexpr std::int64_t kRows = 4, kVocab = 9, kStride = 14;
  Problem<float> plain = random_problem(kRows, kVocab, 2);
  std::vector<float> wide(kRows * kStride, kNan);
  std::vector<float> gradient(kRows * kStride, 77.0f);
  for (std::int64_t i = 0; i < kRows; ++i) {
    std::copy_n(plain.logits().begin() + i * kVocab, kVocab, wide.begin() + i * kStride + 2);
  }
  const ShardPlan plan = ShardPlan::even(kVocab, 2);
  std::vector<Shard> shards;
  std::vector<Matrix> gradients;
  for (std::int64_t s = 0; s < 2; ++s) {
    const std::int64_t first = 2 + plan.first_class(s);
    shards.push_back({ConstMatrix{wide.data() + first, DType::kFloat32, kRows, plan.width(s), kStride, {}}, s});
    gradients.push_back(Matrix{gradient.data() + first, DType::kFloat32, kRows, plan.width(s), kStride, {}});
  }
  const Batch batch{plan, shards, Labels(plain.labels().data(), kRows), kVocab};
  ScalarBackend backend;
  SelfCommunicator self;
  Forward forward = cross_entropy_forward(batch, {}, {}, {backend, self});
  cross_entropy_backward(forward.saved, {}, gradients, {backend, self});
  const Outcome expected = run(plain.batch());
  EXPECT_EQ(forward.loss.value_fp64, expected.loss.value_fp64);
  for (std::int64_t i = 0; i < kRows; ++i) {
    for (std::int64_t c = 0; c < kStride; ++c) {
      const bool inside = c >= 2 && c < 2 + kVocab;
      const float want = inside ? expected.gradient[static_cast<std::size_t>(i * kVocab + c - 2)] : 77.0f;
      EXPECT_EQ(gradient[static_cast<std::size_t>(i * kStride + c)], want) << i << ' ' << c;
    }
  }
}

template <class T>
class InPlace : public ::testing::Test {};
using LogitTypes = ::testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(InPlace, LogitTypes);

TYPED_TEST(InPlace, EqualsOutOfPlaceAndServesOneBackward) {
  Problem<float> wide = random_problem(5, 12, 3);
  const auto narrow = testing::rounded<TypeParam>(std::span<const float>(wide.logits()));
  Problem<TypeParam> problem(narrow, wide.labels(), ShardPlan::even(12, 3));
  ScalarBackend backend;
  SelfCommunicator self;
  const Runtime runtime{backend, self};
  const Batch batch = problem.batch();
  Forward forward = cross_entropy_forward(batch, {}, {}, runtime);

  std::vector<TypeParam> out_of_place(narrow.size());
  BinnedSum squares, squares_in_place;
  cross_entropy_backward(forward.saved, {}, gradient_matrices(batch, out_of_place), runtime, &squares);
  cross_entropy_backward(forward.saved, {}, gradient_matrices(batch, out_of_place), runtime);  // allowed again
  cross_entropy_backward(forward.saved, {}, gradient_matrices(batch, problem.logits()), runtime, &squares_in_place);
  EXPECT_EQ(squares, squares_in_place);
  const auto bits = [](const std::vector<TypeParam>& values) {
    std::vector<float> out;
    for (const TypeParam value : values) out.push_back(widen(value));
    return out;
  };
  const std::vector<float> a = bits(problem.logits()), b = bits(out_of_place);
  EXPECT_TRUE(same_bits(std::span<const float>(a), std::span<const float>(b)));

  EXPECT_EQ(
      refusal([&] { cross_entropy_backward(forward.saved, {}, gradient_matrices(batch, out_of_place), runtime); }),
      "saved: the logits were overwritten by the gradients of an earlier backward in place");
  EXPECT_EQ(refusal([&] { cross_entropy_backward(forward.saved, {}, {}, runtime, &squares); }),
            "saved: the logits were overwritten by the gradients of an earlier backward in place");
}

TEST(CrossEntropy, GradientsOfEveryTypeAreTheFp32OnesRounded) {
  Problem<float> problem = random_problem(4, 9, 2);
  const Batch batch = problem.batch();
  ScalarBackend backend;
  SelfCommunicator self;
  const Runtime runtime{backend, self};
  Forward forward = cross_entropy_forward(batch, {}, {}, runtime);
  const Outcome expected = run(batch);
  const auto expect_rounded = [&](auto element) {
    using T = decltype(element);
    std::vector<T> gradient(expected.gradient.size());
    cross_entropy_backward(forward.saved, {}, gradient_matrices(batch, gradient), runtime);
    for (std::size_t j = 0; j < gradient.size(); ++j) {
      T want;
      round_to(expected.gradient[j], &want);
      ASSERT_EQ(std::memcmp(&gradient[j], &want, sizeof(T)), 0) << j;
    }
  };
  expect_rounded(float{});
  expect_rounded(double{});
  expect_rounded(BFloat16{});
  expect_rounded(Float16{});
}

TEST(CrossEntropy, UpstreamByRow) {
  Problem<float> problem = random_problem(4, 9, 2);
  const std::vector<float> upstream{0.0f, 1.0f, -2.0f, kInfinity};
  const Options none{.reduction = Reduction::kNone};
  const Outcome one = run(problem.batch(), {.options = none});
  const Outcome scaled = run(problem.batch(), {.options = none, .upstream = {.per_row = upstream.data()}});
  expect_positive_zeros(row_of(scaled, 0, 9));
  EXPECT_EQ(row_of(scaled, 1, 9), row_of(one, 1, 9));
  std::vector<float> twice = row_of(one, 2, 9);
  for (float& dz : twice) dz *= -2.0f;
  EXPECT_EQ(row_of(scaled, 2, 9), twice);
  for (const float dz : row_of(scaled, 3, 9)) EXPECT_EQ(bit_cast<std::uint32_t>(dz), 0x7fc00000u);

  for (const Reduction reduction : {Reduction::kSum, Reduction::kMean}) {
    EXPECT_EQ(
        refusal([&] {
          run(problem.batch(), {.options = {.reduction = reduction}, .upstream = {.per_row = upstream.data()}});
        }),
        "upstream: per_row is given with reduction " + std::string(name_of(reduction)) + ", expected reduction none");
  }
}

TEST(CrossEntropy, UpstreamOfTheReducedLoss) {
  Problem<float> problem = random_problem(4, 9, 2);
  const Outcome one = run(problem.batch());
  Outcome scaled = run(problem.batch(), {.upstream = {.scalar = -8.0}});
  for (float& dz : scaled.gradient) dz *= -0.125f;
  EXPECT_EQ(scaled.gradient, one.gradient);
}

TEST(CrossEntropy, NanRowIsNanOrAnError) {
  Problem<float> problem = random_problem(6, 9, 3);
  problem.logits()[9 * 4 + 7] = kInfinity;
  problem.logits()[9 * 5 + 1] = kNan;
  const Outcome result = run(problem.batch());
  EXPECT_EQ(bit_cast<std::uint32_t>(result.loss.value), 0x7fc00000u);
  EXPECT_EQ(result.loss.valid_rows, 6);
  for (std::int64_t row = 0; row < 6; ++row) {
    EXPECT_EQ(std::isnan(result.nll[static_cast<std::size_t>(row)]), row >= 4);
    for (const float dz : row_of(result, row, 9)) EXPECT_EQ(std::isnan(dz), row >= 4);
  }
  for (const std::int64_t chunk : {1, 2, 5, 100}) {
    EXPECT_EQ(refusal([&] {
                run(problem.batch(), {.options = {.non_finite_row = NonFiniteRow::kError}, .rows_per_chunk = chunk});
              }),
              "logits: row 4 holds NaN or +inf, or nothing above -inf; its loss is NaN");
  }
  // An ignored row may hold anything.
  problem.labels()[4] = problem.labels()[5] = -100;
  EXPECT_FALSE(std::isnan(run(problem.batch(), {.options = {.non_finite_row = NonFiniteRow::kError}}).loss.value));
}

TEST(CrossEntropy, GradientNormIsASumOfSquares) {
  Problem<float> problem = random_problem(8, 15, 4);
  const Outcome result = run(problem.batch(), {.options = {.reduction = Reduction::kSum}});
  double squares = 0.0;
  for (const float dz : result.gradient) squares += static_cast<double>(dz) * static_cast<double>(dz);
  // Each square is rounded to 24 bits, at most 2^-24 of it; the root halves a relative error, and fp32 rounds once.
  EXPECT_NEAR(gradient_norm(result.squares), std::sqrt(squares), std::sqrt(squares) * 1.5 * 0x1p-24);

  // Only the squares: no gradient is written.
  ScalarBackend backend;
  SelfCommunicator self;
  Forward forward = cross_entropy_forward(problem.batch(), {.reduction = Reduction::kSum}, {}, {backend, self});
  BinnedSum only;
  cross_entropy_backward(forward.saved, {}, {}, {backend, self}, &only);
  EXPECT_EQ(only, result.squares);
  // Squares are added, so that several parameters share one norm.
  cross_entropy_backward(forward.saved, {}, {}, {backend, self}, &only);
  BinnedSum twice = result.squares;
  merge(twice, result.squares);
  EXPECT_EQ(only, twice);

  EXPECT_EQ(gradient_norm(BinnedSum()), 0.0f);
  BinnedSum bad;
  add(bad, kNan);
  EXPECT_EQ(bit_cast<std::uint32_t>(gradient_norm(bad)), 0x7fc00000u);
  // Beyond what fp32 squares hold.
  BinnedSum large, small;
  for (int i = 0; i < 4; ++i) add_square(large, 0x1p126f);
  for (int i = 0; i < 4; ++i) add_square(small, 0x1p-140f);
  EXPECT_EQ(gradient_norm(large), 0x1p127f);
  EXPECT_EQ(gradient_norm(small), 0x1p-139f);
}

// Several batches reduced as one give the bits of one batch.
TEST(CrossEntropy, SumsOfSeveralBatchesReduceAsOne) {
  Problem<float> whole = random_problem(10, 7, 2);
  whole.labels()[3] = -100;
  ScalarBackend backend;
  SelfCommunicator self;
  LossSum merged;
  std::int64_t first = 0;
  for (const std::int64_t count : {4, 0, 5, 1}) {
    Problem<float> part({whole.logits().begin() + first * 7, whole.logits().begin() + (first + count) * 7},
                        {whole.labels().begin() + first, whole.labels().begin() + first + count},
                        ShardPlan::even(7, 2));
    const Forward forward = cross_entropy_forward(part.batch(), {.reduction = Reduction::kSum}, {}, {backend, self});
    merge(merged, forward.sum, first);
    first += count;
  }
  const Loss loss = reduced_loss(merged, 10, {});
  const Outcome expected = run(whole.batch());
  EXPECT_EQ(loss.value_fp64, expected.loss.value_fp64);
  EXPECT_EQ(loss.value, expected.loss.value);
  EXPECT_EQ(loss.rows, 10);
  EXPECT_EQ(loss.valid_rows, 9);
}

TEST(CrossEntropy, RefusesBeforeItWrites) {
  Problem<float> problem = random_problem(3, 5, 2);
  problem.labels()[2] = 5;
  std::vector<float> nll(3, 77.0f);
  ScalarBackend backend;
  SelfCommunicator self;
  EXPECT_EQ(refusal([&] {
              cross_entropy_forward(problem.batch(), {}, {.nll = nll.data()}, {backend, self});
            }),
            "labels: row 2 has label 5, expected 0..4 or ignore_index -100");
  EXPECT_EQ(nll, (std::vector<float>(3, 77.0f)));
}

TEST(CrossEntropy, RefusesFp64AndNamesTheWaysOn) {
  Problem<double> problem({1.0, 2.0}, {0}, ShardPlan::even(2, 1));
  ScalarBackend backend;
  SelfCommunicator self;
  const std::string message = refusal([&] { cross_entropy_forward(problem.batch(), {}, {}, {backend, self}); });
  EXPECT_NE(message.find("cast to fp32"), std::string::npos) << message;
  EXPECT_NE(message.find("fp64, multiprecision or certified reference"), std::string::npos) << message;
}

// Delegates to the scalar backend; keeps what is allocated and what options it is given.
class CountingBackend final : public Backend {
 public:
  std::string_view name() const override { return "counting"; }
  Capabilities capabilities() const override { return scalar_.capabilities(); }
  Buffer allocate(std::size_t bytes) const override {
    allocated.push_back(bytes);
    return scalar_.allocate(bytes);
  }
  std::size_t workspace_bytes(const Batch&, const Options&, std::int64_t) const override { return wanted; }
  void partials(const Batch& batch, const Options& options, RowRange rows, const Partials& into, Queue queue) override {
    workspaces.push_back(queue.workspace);
    scalar_.partials(batch, options, rows, into, queue);
  }
  void merge(const Partials& into, const Partials& from, Queue queue) override { scalar_.merge(into, from, queue); }
  void finalize(const Partials& partials, const Options& options, const RowResults& results, Queue queue) override {
    seen.push_back(options);
    scalar_.finalize(partials, options, results, queue);
  }
  void reduce(const RowResults& results, std::int64_t first_row, LossSum& sum, Queue queue) override {
    scalar_.reduce(results, first_row, sum, queue);
  }
  void gradient(const Batch& batch, const Options& options, const GradientTask& task, Queue queue) override {
    seen.push_back(options);
    workspaces.push_back(queue.workspace);
    scalar_.gradient(batch, options, task, queue);
  }

  std::size_t wanted = 0;  // as a workspace
  std::vector<const void*> workspaces;
  mutable std::vector<std::size_t> allocated;
  std::vector<Options> seen;  // by finalize() and gradient()

 private:
  ScalarBackend scalar_;
};

TEST(CrossEntropy, AllocatesAWorkspaceWhereTheQueueHasNoneThatIsLargeEnough) {
  constexpr std::size_t kWanted = 12345;
  Problem<float> problem = random_problem(4, 9, 2);
  SelfCommunicator self;
  alignas(Queue::kAlignment) std::array<std::byte, kWanted> own;
  for (const std::size_t given : {std::size_t{0}, kWanted - 1, kWanted}) {
    CountingBackend backend;
    backend.wanted = kWanted;
    const Runtime runtime{backend, self, 1024, {nullptr, own.data(), given}};
    Forward forward = cross_entropy_forward(problem.batch(), {}, {}, runtime);
    cross_entropy_backward(forward.saved, {}, {}, runtime);
    const bool fits = given == kWanted;
    EXPECT_EQ(std::count(backend.allocated.begin(), backend.allocated.end(), kWanted), fits ? 0 : 2);
    ASSERT_EQ(backend.workspaces.size(), 2u);
    for (const void* workspace : backend.workspaces) EXPECT_EQ(workspace == own.data(), fits);
  }
}

TEST(CrossEntropy, RefusesAWorkspaceThatIsNotAligned) {
  Problem<float> problem = random_problem(4, 9, 2);
  const Batch batch = problem.batch();
  ScalarBackend backend;
  SelfCommunicator self;
  alignas(Queue::kAlignment) std::array<std::byte, 8192> own;
  const auto with = [&](std::size_t behind) {
    return Runtime{backend, self, 1024, {nullptr, own.data() + behind, own.size() - behind}};
  };
  ASSERT_GT(own.size() - 64, workspace_bytes(batch, {}, with(64)));
  const std::string expected = "queue: its workspace begins 64 bytes after a multiple of 256, expected at one";
  EXPECT_EQ(refusal([&] { cross_entropy_forward(batch, {}, {}, with(64)); }), expected);
  EXPECT_EQ(refusal([&] { cross_entropy_forward_backward(batch, {}, {}, with(64)); }), expected);
  Forward forward = cross_entropy_forward(batch, {}, {}, with(256));
  EXPECT_EQ(refusal([&] { cross_entropy_backward(forward.saved, {}, {}, with(64)); }), expected);
}

// An option that joins later may change a loss, a gradient, or both.
TEST(CrossEntropy, EveryStepOfABackendSeesTheOptions) {
  Problem<float> problem = random_problem(4, 9, 2);
  const Batch batch = problem.batch();
  std::vector<float> gradient(4 * 9);
  const std::vector<Matrix> gradients = gradient_matrices(batch, gradient);
  const Options options{.ignore_index = 7, .reduction = Reduction::kSum};
  CountingBackend backend;
  SelfCommunicator self;
  const Runtime runtime{backend, self, 2};
  Forward forward = cross_entropy_forward(batch, options, {}, runtime);
  EXPECT_EQ(backend.seen.size(), 2u);  // chunks
  cross_entropy_backward(forward.saved, {}, gradients, runtime);
  EXPECT_EQ(backend.seen.size(), 3u);
  cross_entropy_forward_backward(batch, options, {.gradients = gradients}, runtime);
  EXPECT_EQ(backend.seen.size(), 7u);
  for (const Options& seen : backend.seen) EXPECT_EQ(seen.ignore_index, 7);
}

// Beside 32 bytes a row for backward, memory does not grow with T.
TEST(CrossEntropy, MemoryBesideTheSavedRowsIsThatOfTwoChunks) {
  SelfCommunicator self;
  std::vector<std::size_t> besides;
  for (const std::int64_t rows : {64, 128, 640}) {
    Problem<float> problem = random_problem(rows, 4, 2);
    CountingBackend backend;
    cross_entropy_forward(problem.batch(), {}, {}, {backend, self, 16});
    std::size_t total = 0;
    for (const std::size_t bytes : backend.allocated) total += bytes;
    ASSERT_GE(total, static_cast<std::size_t>(rows) * sizeof(SavedRow));
    besides.push_back(total - static_cast<std::size_t>(rows) * sizeof(SavedRow));
  }
  EXPECT_EQ(besides[0], besides[1]);
  EXPECT_EQ(besides[0], besides[2]);
  EXPECT_LE(besides[0], 2 * (16 * Partials::bytes_per_row({}) + 64) + 16 * sizeof(float));
}

// Two ranks of two shards each, which hold merging back until finish().
class TwoRankLoss : public ::testing::Test {
 protected:
  static constexpr std::int64_t kRows = 10, kVocab = 21, kChunk = 3;

  struct RankResult {
    Loss loss;
    std::vector<float> nll = std::vector<float>(kRows);
    BinnedSum squares;
  };

  // Each rank keeps the shards of its index modulo 2; gradients go into `gradient`, which both fill.
  std::array<std::string, 2> compute(const Options& options = {}) {
    return testing::on_two_ranks(logs, [&](testing::TwoRanks& communicator) {
      const Batch all = problem.batch();
      std::vector<Shard> own;
      for (const Shard& shard : all.shards) {
        if (shard.index % 2 == communicator.rank()) own.push_back(shard);
      }
      const Batch batch{all.plan, own, all.labels, all.vocab};
      ScalarBackend backend;
      const Runtime runtime{backend, communicator, kChunk};
      RankResult& result = results[static_cast<std::size_t>(communicator.rank())];
      Forward forward = cross_entropy_forward(batch, options, {.nll = result.nll.data()}, runtime);
      result.loss = forward.loss;
      cross_entropy_backward(forward.saved, {}, gradient_matrices(batch, gradient), runtime, &result.squares);
    });
  }

  Problem<float> problem = random_problem(kRows, kVocab, 4);
  std::vector<float> gradient = std::vector<float>(kRows * kVocab);
  std::array<RankResult, 2> results;
  std::array<std::vector<std::string>, 2> logs;
};

TEST_F(TwoRankLoss, EqualsOneProcess) {
  problem.labels()[4] = -100;
  const Outcome expected = run(problem.batch());
  EXPECT_EQ(compute(), (std::array<std::string, 2>{}));
  for (const RankResult& result : results) {
    EXPECT_EQ(result.loss.value_fp64, expected.loss.value_fp64);
    EXPECT_EQ(result.nll, expected.nll);
    EXPECT_EQ(result.squares, expected.squares);
  }
  EXPECT_TRUE(same_bits(std::span<const float>(gradient), std::span<const float>(expected.gradient)));
}

// The next chunk's partials are made while one collective is in flight.
TEST_F(TwoRankLoss, CollectivesOverlapTheNextChunk) {
  EXPECT_EQ(compute(), (std::array<std::string, 2>{}));
  const std::vector<std::string> expected{"start 0",  "start 1", "finish 0", "start 2",
                                          "finish 1", "start 3", "finish 2", "finish 3"};
  EXPECT_EQ(logs[0], expected);
  EXPECT_EQ(logs[1], expected);
}

TEST_F(TwoRankLoss, NanOnOneRankIsAnErrorOnBoth) {
  problem.logits()[kVocab * 6 + 2] = kNan;
  const auto errors = compute({.non_finite_row = NonFiniteRow::kError});
  EXPECT_EQ(errors[0], "logits: row 6 holds NaN or +inf, or nothing above -inf; its loss is NaN");
  EXPECT_EQ(errors[1], errors[0]);
}

TEST_F(TwoRankLoss, ErrorOfOneRankIsAnErrorOnBothAndEndsNeither) {
  const auto errors = testing::on_two_ranks(logs, [&](testing::TwoRanks& communicator) {
    const Batch all = problem.batch();
    std::vector<Shard> own{all.shards[static_cast<std::size_t>(communicator.rank())]};
    if (communicator.rank() == 1) own[0].logits.cols += 1;
    const Batch batch{all.plan, own, all.labels, all.vocab};
    ScalarBackend backend;
    cross_entropy_forward(batch, {}, {}, {backend, communicator, kChunk});
  });
  EXPECT_EQ(errors[1], "rank 1 of 2: logits of shard 1: shape is [10, 7], expected [10, 6]");
  EXPECT_EQ(errors[0], errors[1]);
}

// Backward has no collective before its squares, so the communicator ends the rank that waits there.
TEST_F(TwoRankLoss, ErrorInBackwardOfOneRankEndsTheOther) {
  const auto errors = testing::on_two_ranks(logs, [&](testing::TwoRanks& communicator) {
    const Batch all = problem.batch();
    std::vector<Shard> own;
    for (const Shard& shard : all.shards) {
      if (shard.index % 2 == communicator.rank()) own.push_back(shard);
    }
    const Batch batch{all.plan, own, all.labels, all.vocab};
    ScalarBackend backend;
    const Runtime runtime{backend, communicator, kChunk};
    Forward forward = cross_entropy_forward(batch, {}, {}, runtime);
    std::vector<Matrix> gradients = gradient_matrices(batch, gradient);
    if (communicator.rank() == 1) gradients.pop_back();
    BinnedSum squares;
    cross_entropy_backward(forward.saved, {}, gradients, runtime, &squares);
  });
  EXPECT_EQ(errors[1], "gradients: got 1 matrices, expected one for each of 2 shards");
  EXPECT_EQ(errors[0], "aborted: " + errors[1]);
}

}  // namespace
}  // namespace tpce
