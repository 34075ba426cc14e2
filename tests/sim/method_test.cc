#include "sim/methods/method.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "tests/sim/sim_testing.h"

namespace tpce::sim {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

double exact_nll(const Rows& rows, std::size_t row) {
  const float* z = rows.logits.data() + row * static_cast<std::size_t>(rows.vocab);
  double total = 0.0;
  for (std::int64_t j = 0; j < rows.vocab; ++j) total += std::exp(static_cast<double>(z[j]));
  return std::log(total) - static_cast<double>(z[rows.labels[row]]);
}

ShardPlan plan_for(const Method& method, std::int64_t columns, std::int64_t tp) {
  return ShardPlan::even(columns, method.one_rank_only() ? 1 : tp);
}

TEST(Method, NamesAreTheRegistry) {
  std::vector<std::string_view> names;
  for (const Method* method : methods()) {
    names.push_back(method->name());
    EXPECT_EQ(&method_from_name(method->name()), method);
    EXPECT_FALSE(method->summary().empty());
  }
  EXPECT_EQ(names, (std::vector<std::string_view>{"log_softmax", "softplus_eager", "softplus_recompute",
                                                  "cross_entropy", "all_gather_cross_entropy", "megatron",
                                                  "megatron_fused", "transformer_engine", "flash_attention", "liger",
                                                  "liger_vocab_parallel", "stablemax", "canonical"}));
  EXPECT_NE(error_of([] { method_from_name("fastest"); }).find("softplus_recompute"), std::string::npos);
}

// What a method says that it does not read changes no bit; what it reads changes some, but for the canonical loss.
TEST(Method, ReadsWhatItSays) {
  constexpr std::int64_t kVocab = 500;
  const Rows rows = random_rows(40, kVocab, 3.0f, 4);
  for (const Method* method : methods()) {
    const std::int64_t tp = method->one_rank_only() ? 1 : 8;
    const auto bits = [&](const ShardPlan& plan, const ReductionOrder& order, BufferPlace place) {
      std::vector<double> all;
      for (std::int64_t i = 0; i < rows.count(); ++i) {
        const std::span<const float> logits =
            std::span(rows.logits).subspan(static_cast<std::size_t>(i * kVocab), kVocab);
        std::vector<double> gradient(kVocab);
        all.push_back(method->evaluate(
            Precision::kFp32, {plan, order, place, logits, rows.labels[static_cast<std::size_t>(i)]}, 1.0, gradient));
        all.insert(all.end(), gradient.begin(), gradient.end());
      }
      return all;
    };
    const ShardPlan plan = ShardPlan::even(kVocab, tp);
    const ReductionOrder ring{.ranks = AllReduceOrder::kRing};
    const Reads reads = method->reads();
    const bool moves = !method->is_order_free();
    EXPECT_EQ(bits(plan, {}, {}) != bits(ShardPlan::even(kVocab, 1), {}, {}), reads.plan && moves) << method->name();
    EXPECT_EQ(bits(plan, {}, {}) != bits(plan, {.classes = SumOrder::kSequential}, {}), reads.classes && moves)
        << method->name();
    EXPECT_EQ(bits(plan, {}, {}) != bits(plan, {.ranks = AllReduceOrder::kTree}, {}), reads.ranks && moves)
        << method->name();
    EXPECT_EQ(bits(plan, ring, {0, 4}) != bits(plan, ring, {3, 4}), reads.ranks && moves) << method->name();
  }
}

// Logits of deviation 1: nothing collapses and every method is close to fp64. With V terms below 1, S and its log carry
// at most V + 4 roundings of relative 2^-24, and each of the three differences an ulp of at most 16.
TEST(Method, EveryMethodIsCloseWhereNothingCollapses) {
  const Rows rows = random_rows(8, 37, 1.0f, 1);
  const double bound = (37 + 4) * 0x1p-24 + 3 * 16 * 0x1p-23;
  for (const Method* method : methods()) {
    if (!method->is_softmax()) continue;
    const double storage = method->name() == "megatron_fused" ? 0x1p-9 : 0.0;  // its gradients are bf16
    for (const SumOrderInfo& order : kSumOrders) {
      for (const std::int64_t tp : {1, 2, 5, 40}) {  // 40 ranks of 37 classes: empty shards
        const Ran ran = run_on(*method, rows, plan_for(*method, 37, tp), with(per_row(), classes_in(order.order)));
        for (std::size_t i = 0; i < rows.labels.size(); ++i) {
          EXPECT_NEAR(static_cast<double>(ran.output.nll[i]), exact_nll(rows, i), bound) << method->name();
          EXPECT_NEAR(static_cast<double>(ran.output.target_grad[i]), std::expm1(-exact_nll(rows, i)), bound + storage);
          EXPECT_NEAR(ran.output.grad_sum[i], 0.0, 37 * bound + 2 * storage);
        }
      }
    }
  }
}

TEST(Method, EveryNanIsTheCanonicalOne) {
  const auto expect_canonical = [](auto value) {
    if (std::isnan(value)) {
      EXPECT_EQ(bit_cast<std::uint32_t>(static_cast<float>(value)), 0x7fc00000u);
    }
  };
  const Rows rows{3, {kInfinity, 0, 1, -kInfinity, -kInfinity, -kInfinity}, {0, 2}};
  for (const Method* method : methods()) {
    SCOPED_TRACE(method->name());
    const Ran ran = run_on(*method, rows, ShardPlan::even(3, 1), with({}));
    EXPECT_TRUE(std::isnan(ran.output.nll[0]));
    EXPECT_TRUE(std::isnan(*ran.output.loss));
    EXPECT_TRUE(std::isnan(ran.output.grad_norm));
    for (const double value : ran.output.nll) expect_canonical(value);
    for (const double value : ran.output.target_grad) expect_canonical(value);
    for (const float value : ran.gradient) expect_canonical(value);
    expect_canonical(*ran.output.loss);
    expect_canonical(ran.output.grad_norm);
    for (const double value : ran.output.grad_sum) EXPECT_FALSE(std::isnan(value) && std::signbit(value));
  }
}

TEST(Method, UnevenShardsInAnyOrderOfTheBatch) {
  const Rows rows = random_rows(4, 12, 2.0f, 2);
  const std::vector<std::int64_t> widths{5, 0, 6, 1};
  const ShardPlan plan = ShardPlan::from_widths(12, widths);
  const ConstMatrix logits = matrix_of(rows.logits.data(), 4, 12);
  std::vector<Shard> forwards, backwards;
  for (std::int64_t s = 0; s < 4; ++s) forwards.push_back({logits.column_range(plan.first_class(s), plan.width(s)), s});
  backwards.assign(forwards.rbegin(), forwards.rend());
  const Labels labels(rows.labels.data(), 4);
  for (const Method* method : methods()) {
    if (method->one_rank_only()) continue;
    const MethodOutput a = run(*method, {{plan, forwards, labels, 12}});
    const MethodOutput b = run(*method, {{plan, backwards, labels, 12}});
    EXPECT_EQ(a.nll, b.nll);
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.grad_norm, b.grad_norm);
  }
}

// The bits of most methods depend on tp: this is what golden files suffer from.
TEST(Method, BitsDependOnTpUnlessTheVocabularyIsGathered) {
  const Rows rows = random_rows(16, 1000, 3.0f, 3);
  for (const Method* method : methods()) {
    if (method->one_rank_only()) continue;
    const Ran one = run_on(*method, rows, ShardPlan::even(1000, 1), with({}));
    const Ran eight = run_on(*method, rows, ShardPlan::even(1000, 8), with({}));
    const bool gathered = method->name() == "all_gather_cross_entropy";
    EXPECT_EQ(one.output.nll == eight.output.nll && one.gradient == eight.gradient, gathered || method->is_order_free())
        << method->name();
  }
}

TEST(Method, IgnoredRowsAreNotRead) {
  Rows rows = random_rows(3, 5, 1.0f, 4);
  rows.labels = {2, -100, 4};
  for (std::size_t j = 5; j < 10; ++j) rows.logits[j] = std::numeric_limits<float>::quiet_NaN();
  for (const Method* method : methods()) {
    const Ran ran = run_on(*method, rows, plan_for(*method, 5, 2), with({}));
    EXPECT_EQ(ran.output.valid_rows, 2);
    EXPECT_EQ(ran.output.nll[1], 0.0f);
    ASSERT_TRUE(ran.output.loss.has_value());
    EXPECT_EQ(*ran.output.loss, static_cast<double>(static_cast<float>(ran.output.nll[0] + ran.output.nll[2]) / 2.0f));
    for (std::size_t j = 5; j < 10; ++j) EXPECT_EQ(ran.gradient[j], 0.0f);
  }
}

TEST(Method, IgnoreIndexMayBeAClass) {
  Rows rows = random_rows(2, 5, 1.0f, 5);
  rows.labels = {3, 1};
  Options options = per_row();
  options.ignore_index = 3;
  const Ran ran = run_on(method_from_name("log_softmax"), rows, ShardPlan::even(5, 2), with(options));
  EXPECT_EQ(ran.output.nll[0], 0.0f);
  EXPECT_GT(ran.output.nll[1], 0.0f);
}

TEST(Method, MeanOfNoValidRow) {
  Rows rows = random_rows(2, 5, 1.0f, 6);
  rows.labels = {-100, -100};
  Options options;
  const Method& method = method_from_name("log_softmax");
  EXPECT_TRUE(std::isnan(*run_on(method, rows, ShardPlan::even(5, 2), with(options)).output.loss));
  options.empty_mean = EmptyMean::kZero;
  EXPECT_EQ(*run_on(method, rows, ShardPlan::even(5, 2), with(options)).output.loss, 0.0f);
}

TEST(Method, PaddingCarriesNoMassAndGetsNoGradient) {
  Rows rows = random_rows(2, 8, 1.0f, 7);
  rows.labels = {0, 4};
  Rows cut{5, {}, rows.labels};
  for (std::size_t i = 0; i < 2; ++i) cut.logits.insert(cut.logits.end(), &rows.logits[8 * i], &rows.logits[8 * i + 5]);
  rows.vocab = 5;
  for (const Method* method : methods()) {
    const Ran padded = run_on(*method, rows, plan_for(*method, 8, 4), with(per_row()));
    const std::int64_t tp = method->one_rank_only() ? 1 : 3;
    const std::vector<std::int64_t> widths =
        tp == 1 ? std::vector<std::int64_t>{5} : std::vector<std::int64_t>{2, 2, 1};
    const Ran plain = run_on(*method, cut, ShardPlan::from_widths(5, widths), with(per_row()));
    EXPECT_EQ(padded.output.nll, plain.output.nll) << method->name();
    for (std::size_t i = 0; i < 2; ++i) {
      for (std::size_t j = 0; j < 8; ++j) {
        EXPECT_EQ(padded.gradient[8 * i + j], j < 5 ? plain.gradient[5 * i + j] : 0.0f) << method->name();
      }
    }
  }
}

TEST(Method, UpstreamScalesTheGradient) {
  const Rows rows = random_rows(4, 6, 1.0f, 8);
  for (const Method* method : methods()) {
    const ShardPlan plan = plan_for(*method, 6, 2);
    const Ran one = run_on(*method, rows, plan, with(per_row()));
    // A power of two scales every product exactly.
    const Ran half = run_on(*method, rows, plan, with(per_row(), {}, {0.5}));
    const std::vector<float> factors{1.0f, 2.0f, 0.0f, -4.0f};
    const Ran each = run_on(*method, rows, plan, with(per_row(), {}, {1.0, factors.data()}));
    const Ran mean = run_on(*method, rows, plan, with({}));  // 4 rows: a factor of 1/4
    for (std::size_t k = 0; k < one.gradient.size(); ++k) {
      EXPECT_EQ(half.gradient[k], 0.5f * one.gradient[k]);
      EXPECT_EQ(each.gradient[k], factors[k / 6] * one.gradient[k]);
      EXPECT_EQ(mean.gradient[k], 0.25f * one.gradient[k]);
    }
  }
}

TEST(Method, GradientNormIsTheNormOfWhatIsWritten) {
  const Rows rows = random_rows(5, 100, 2.0f, 9);
  for (const Method* method : methods()) {
    for (const std::int64_t tp : {1, 4}) {
      const Ran ran = run_on(*method, rows, plan_for(*method, 100, tp), with({}));
      double squares = 0.0;
      for (const float g : ran.gradient) squares += static_cast<double>(g) * static_cast<double>(g);
      // 500 squares, each rounded once and added with at most 500 roundings, then halved by the root, plus its own.
      EXPECT_NEAR(static_cast<double>(ran.output.grad_norm), std::sqrt(squares), std::sqrt(squares) * 252 * 0x1p-24);
    }
  }
}

TEST(Method, SumAndMeanAddRowsInTheStatedOrder) {
  // A loss of 2^24 beside losses of 1: lost one by one from the left, kept where the rows are added in pairs.
  Rows rows{2, {}, {}};
  for (int i = 0; i < 4; ++i) {
    const float other = i == 0 ? 0x1p24f : 1.0f;
    rows.logits.insert(rows.logits.end(), {0.0f, other});
    rows.labels.push_back(0);
  }
  Options options;
  options.reduction = Reduction::kSum;
  const Method& method = method_from_name("log_softmax");
  ReductionOrder order;
  order.rows = SumOrder::kSequential;
  const Ran sequential = run_on(method, rows, ShardPlan::even(2, 1), with(options, order));
  order.rows = SumOrder::kPairwise;
  const Ran pairwise = run_on(method, rows, ShardPlan::even(2, 1), with(options, order));
  const std::vector<float> nll(sequential.output.nll.begin(), sequential.output.nll.end());
  EXPECT_EQ(static_cast<float>(*sequential.output.loss), ((nll[0] + nll[1]) + nll[2]) + nll[3]);
  EXPECT_EQ(static_cast<float>(*pairwise.output.loss), (nll[0] + nll[1]) + (nll[2] + nll[3]));
  EXPECT_NE(*sequential.output.loss, *pairwise.output.loss);
}

TEST(Method, GradientsRoundToTheirType) {
  const Rows rows = random_rows(3, 7, 1.0f, 10);
  const ShardPlan plan = ShardPlan::even(7, 1);
  const Shard shards[] = {{matrix_of(rows.logits.data(), 3, 7), 0}};
  const Batch batch{plan, shards, Labels(rows.labels.data(), 3), 7};
  std::vector<BFloat16> bf16(21);
  const Matrix gradients[] = {matrix_of(bf16.data(), 3, 7)};
  const Method& method = method_from_name("softplus_recompute");
  run(method, {batch, {}, {}, {}, gradients});
  const Ran fp32 = run_on(method, rows, plan, with({}));
  for (std::size_t k = 0; k < 21; ++k) {
    BFloat16 expected;
    round_to(fp32.gradient[k], &expected);
    EXPECT_EQ(bf16[k].bits, expected.bits);
  }
}

TEST(Method, BFloat16LogitsAreWidened) {
  Rows rows = random_rows(3, 7, 3.0f, 11);
  std::vector<BFloat16> narrow(rows.logits.size());
  for (std::size_t k = 0; k < narrow.size(); ++k) {
    round_to(rows.logits[k], &narrow[k]);
    rows.logits[k] = widen(narrow[k]);
  }
  const ShardPlan plan = ShardPlan::even(7, 1);
  const Shard shards[] = {{matrix_of(std::as_const(narrow).data(), 3, 7), 0}};
  for (const Method* method : methods()) {
    const MethodOutput output = run(*method, {{plan, shards, Labels(rows.labels.data(), 3), 7}, per_row()});
    EXPECT_EQ(output.nll, run_on(*method, rows, plan, with(per_row())).output.nll);
  }
}

TEST(Method, BadInputIsNamed) {
  Rows rows = random_rows(2, 4, 1.0f, 12);
  const Method& legacy = method_from_name("log_softmax");
  const Method& one_rank = method_from_name("cross_entropy");
  EXPECT_NE(error_of([&] { run_on(one_rank, rows, ShardPlan::even(4, 2), with({})); }).find("all_gather_cross_entropy"),
            std::string::npos);
  const float factors[] = {1.0f, 1.0f};
  EXPECT_NE(error_of([&] {
              run_on(legacy, rows, ShardPlan::even(4, 2), with({}, {}, {1.0, factors}));
            }).find("mean"),
            std::string::npos);
  rows.labels = {1, 4};
  const std::string label = error_of([&] { run_on(legacy, rows, ShardPlan::even(4, 2), with({})); });
  EXPECT_NE(label.find("row 1"), std::string::npos) << label;
  rows.labels = {1, 3};
  rows.logits[6] = kInfinity;
  Options options;
  options.non_finite_row = NonFiniteRow::kError;
  const std::string row = error_of([&] { run_on(legacy, rows, ShardPlan::even(4, 2), with(options)); });
  EXPECT_NE(row.find("row 1"), std::string::npos) << row;
  EXPECT_EQ(error_of([&] { run_on(legacy, rows, ShardPlan::even(4, 2), with({})); }), "");
  std::fill_n(&rows.logits[4], 4, -kInfinity);
  EXPECT_EQ(error_of([&] { run_on(legacy, rows, ShardPlan::even(4, 2), with(options)); }),
            "logits: row 1 has nothing above -inf, expected a finite value");
  rows.logits[6] = 0.0f;
  EXPECT_EQ(error_of([&] { run_on(legacy, rows, ShardPlan::even(4, 2), with(options)); }), "");
}

TEST(Method, NonFiniteRowsGiveNaN) {
  Rows rows = random_rows(2, 4, 1.0f, 13);
  rows.logits[1] = kInfinity;
  rows.logits[6] = std::numeric_limits<float>::quiet_NaN();
  for (const Method* method : methods()) {
    const Ran ran = run_on(*method, rows, plan_for(*method, 4, 2), with(per_row()));
    // StableMax subtracts no maximum: its loss of +inf among the others is +inf.
    EXPECT_EQ(std::isnan(ran.output.nll[0]), method->is_softmax()) << method->name();
    EXPECT_FALSE(std::isfinite(ran.output.nll[0])) << method->name();
    EXPECT_TRUE(std::isnan(ran.output.nll[1])) << method->name();
  }
}

}  // namespace
}  // namespace tpce::sim
