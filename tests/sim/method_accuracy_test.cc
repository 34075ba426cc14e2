// Every method in every precision beside the certified value: close where it should be, and lost where it is known to
// be.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "sim/precision/visit.h"
#include "sim/studies/contender.h"
#include "sim/studies/margin_row.h"
#include "tests/sim/sim_testing.h"

namespace tpce::sim {
namespace {

struct Bounds {
  double unit;     // half of epsilon: the relative error of + - * / and of storing a gradient
  double exp;      // the relative error of exp, log and log1p
  double storage;  // of a gradient
};

Bounds bounds_of(Precision precision) {
  const double unit = info_of(precision).epsilon() / 2;
  switch (precision) {
    case Precision::kBf16Storage:
      return {unit, 2 * unit, 0x1p-8};
    case Precision::kBf16Exp:
      return {unit, 0x1p-8, unit};
    case Precision::kFp32FastExp:
      return {unit, (2 + 1.23 * 16) * unit, unit};
    default:
      return {unit, 2 * unit, unit};  // the C library's functions are within an ulp
  }
}

// Logits as the precision reads them, so that its loss is compared with the loss of the same numbers.
std::vector<float> loaded(const std::vector<float>& logits, Precision precision) {
  std::vector<float> numbers;
  visit_precision(precision, [&](auto arithmetic) {
    for (const float z : logits) numbers.push_back(static_cast<float>(decltype(arithmetic)::load(z)));
  });
  return numbers;
}

// Logits within 6 of 0, V = 17, the largest at least 0: exp(z_j - M) is at most 1 and S in [1, 17]. Let u be the unit
// and e the error of exp and log. The shift, at most 12, errs by 12 u, and so does each exp, relatively, besides e; S
// by V u more. A tile, a rank or an lse merges with two more exps and products: 2 (e + 2 u) a merge, of which there are
// at most 4. log S, at most 2.9, adds 3 e. The loss, at most 15, takes three differences of at most 15 u each; the
// softplus forms take log1p and exp with it: 2 e. In all (12 + 17 + 16 + 45) u + (1 + 8 + 3 + 2) e. A probability
// errs by the same, relatively, and so does 1 - p_t where a form has it as a quotient, which is for p_t from about 1/4
// on; a difference and the upstream factor add 2 u, and the storage. The sum of a row's gradients then errs by that of
// probabilities, which add to 1, and V times the rest.
TEST(MethodAccuracy, EveryMethodIsCloseInEveryPrecision) {
  constexpr std::int64_t kVocab = 17;
  const Rows rows = random_rows(6, kVocab, 1.5f, 62);
  for (const PrecisionInfo& info : kPrecisions) {
    const Bounds bounds = bounds_of(info.precision);
    const double bound = 90 * bounds.unit + 14 * bounds.exp;
    for (std::int64_t i = 0; i < rows.count(); ++i) {
      const std::vector<float> logits =
          loaded({rows.logits.begin() + i * kVocab, rows.logits.begin() + (i + 1) * kVocab}, info.precision);
      for (const float z : logits) ASSERT_LE(std::abs(z), 6.0f);
      const std::int64_t target = rows.labels[static_cast<std::size_t>(i)];
      const CertifiedValues certified = MarginRow(logits, target).certified(logits[static_cast<std::size_t>(target)]);
      const double target_prob = 1.0 + certified.target_grad_fp64;
      const double share = target_prob < 0.125 ? target_prob : std::max(target_prob, 1.0 - target_prob);
      for (const Method* method : methods()) {
        if (!method->is_softmax() || !method->supports(info.precision)) continue;
        // Megatron's fused form hands out bf16 gradients, whatever it computes in.
        const double storage = method->name() == "megatron_fused" ? 0x1p-8 : bounds.storage;
        for (const std::int64_t tp : {1, 2, 4}) {
          SCOPED_TRACE(std::string(method->name()) + " " + std::string(info.name));
          const RowValues values = evaluate_row(*method, {tp, {}, info.precision}, logits, target);
          EXPECT_NEAR(values.loss, certified.loss_fp64, bound);
          const double rest = 2 * bounds.unit + storage;
          EXPECT_NEAR(values.target_grad, certified.target_grad_fp64, share * bound + rest);
          EXPECT_NEAR(values.grad_sum, 0.0, (1.0 + share) * bound + kVocab * rest);
        }
      }
    }
  }
}

// Relative distance of margins that the precision tells apart: bf16_storage reads bf16, bf16_exp makes bf16.
double spacing(Precision precision) {
  const bool bf16 = precision == Precision::kBf16Storage || precision == Precision::kBf16Exp;
  return bf16 ? 0x1p-7 : std::max(info_of(precision).epsilon(), 0x1p-23);
}

// Numbers that the precision reads, below the margin and not below it, at most two of its numbers away.
float number_below(double margin, Precision precision) {
  const float number = loaded({static_cast<float>(margin * (1 - spacing(precision)))}, precision)[0];
  EXPECT_LT(static_cast<double>(number), margin);
  return number;
}
float number_above(double margin, Precision precision) {
  const float number = loaded({static_cast<float>(margin * (1 + spacing(precision)))}, precision)[0];
  EXPECT_GE(static_cast<double>(number), margin);
  return number;
}

// z = [m, 0]: S = 1 + exp(-m), one addition, is 1 from exp(-m) = 2^-p on, p the bits of the significand: loss and
// target gradient are exactly 0 from the margin p ln 2 on: 16.64 in fp32, 36.74 in fp64, 5.55 in bf16, 7.62 in fp16 and
// tf32.
TEST(MethodAccuracy, TheUsualLossesCollapseAtPLn2) {
  for (const Precision precision : {Precision::kFp32, Precision::kFp64, Precision::kBf16, Precision::kFp16,
                                    Precision::kTf32, Precision::kBf16Storage, Precision::kBf16Exp}) {
    const double border = info_of(precision).bits * std::numbers::ln2;
    for (const char* name : {"log_softmax", "cross_entropy", "all_gather_cross_entropy", "megatron", "megatron_fused",
                             "transformer_engine", "liger_vocab_parallel"}) {
      SCOPED_TRACE(std::string(name) + " " + std::string(name_of(precision)));
      const Contender contender = contender_of(method_from_name(name), {2, {}, precision});
      const RowValues at = contender.evaluate(std::vector{number_above(border, precision), 0.0f}, 0);
      EXPECT_EQ(at.loss, 0.0);
      EXPECT_EQ(at.target_grad, 0.0);
      EXPECT_GT(at.grad_sum, 0.0);  // the other class is pushed down all the same
      const RowValues before = contender.evaluate(std::vector{number_below(border, precision), 0.0f}, 0);
      EXPECT_GT(before.loss, 0.0);
      // exp(logp_t) - 1 loses what a rounded exp cannot hold; exp(z_t - M) / S - 1 does not.
      const bool exp_of_log = std::string_view(name).find("megatron") == std::string_view::npos &&
                              std::string_view(name) != "transformer_engine" &&
                              std::string_view(name) != "liger_vocab_parallel";
      EXPECT_EQ(before.target_grad == 0.0, precision == Precision::kBf16Exp && exp_of_log);
    }
  }
}

// lse - z_t is lost sooner: lse = log S + M is M once log S, close to exp(-m), is below half of M's last place, which
// is 2^(k - p) for M in [2^k, 2^(k+1)). For z = [m, 0] that is m = (p - k) ln 2 with k = floor(log2 m): 14.56 in
// fp32, 33.27 in fp64, 4.16 in bf16, 6.24 in fp16 and tf32. Steps of S may bring it up to 0.3 before.
TEST(MethodAccuracy, ALogSumExpCollapsesSooner) {
  for (const Precision precision :
       {Precision::kFp32, Precision::kFp64, Precision::kBf16, Precision::kFp16, Precision::kTf32}) {
    double border = 0.0;
    for (int k = 0; k < 6; ++k) {
      border = std::max((info_of(precision).bits - k) * std::numbers::ln2, std::ldexp(1.0, k));
      if (border < std::ldexp(2.0, k)) break;
    }
    for (const char* name : {"flash_attention", "liger"}) {
      SCOPED_TRACE(std::string(name) + " " + std::string(name_of(precision)));
      const Contender contender = contender_of(method_from_name(name), {1, {}, precision});
      const RowValues at = contender.evaluate(std::vector{number_above(border, precision), 0.0f}, 0);
      EXPECT_EQ(at.loss, 0.0);
      // Liger's gradient, exp(z - M) / S - 1, holds on to p ln 2.
      EXPECT_EQ(at.target_grad == 0.0, std::string_view(name) == "flash_attention");
      const RowValues before = contender.evaluate(std::vector{number_below(border - 0.3, precision), 0.0f}, 0);
      EXPECT_GT(before.loss, 0.0);
      EXPECT_LT(before.target_grad, 0.0);
    }
  }
}

// The softplus forms go on: at 1.5 p ln 2 the loss errs by the last place of the margin, relatively.
TEST(MethodAccuracy, TheSoftplusFormsDoNotCollapseAtPLn2) {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kTf32}) {
    const float margin = number_above(1.5 * info_of(precision).bits * std::numbers::ln2, precision);
    const double exact = std::log1p(std::exp(-static_cast<double>(margin)));
    for (const char* name : {"softplus_eager", "softplus_recompute"}) {
      const RowValues values =
          contender_of(method_from_name(name), {2, {}, precision}).evaluate(std::vector{margin, 0.0f}, 0);
      const double relative = (2 * static_cast<double>(margin) + 8) * info_of(precision).epsilon();
      EXPECT_NEAR(values.loss, exact, relative * exact) << name << " " << name_of(precision);
      EXPECT_NEAR(values.target_grad, -exact, relative * exact) << name << " " << name_of(precision);
    }
  }
}

TEST(MethodAccuracy, EveryMethodStatesItsCollectives) {
  const Problem problem{16, 1000, 4, DType::kBFloat16, Execution::kEager};
  for (const Method* method : methods()) {
    EXPECT_EQ(method->collectives(problem).empty(), method->one_rank_only()) << method->name();
    for (const Collective& collective : method->collectives(problem)) {
      EXPECT_FALSE(collective.what.empty());
      EXPECT_GE(collective.elements, 1);
    }
  }
  const auto gathered = method_from_name("all_gather_cross_entropy").collectives(problem);
  EXPECT_EQ(gathered.at(0).elements, 250);
  EXPECT_EQ(gathered.at(0).dtype, DType::kBFloat16);
}

}  // namespace
}  // namespace tpce::sim
