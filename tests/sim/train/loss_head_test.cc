#include "sim/train/loss_head.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>

#include "sim/methods/method.h"

namespace tpce::sim {
namespace {

struct Problem {
  explicit Problem(std::int64_t row_count = 37, std::int64_t vocab_size = 41) : rows(row_count), vocab(vocab_size) {
    std::mt19937 random(9);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    for (std::int64_t i = 0; i < rows * vocab; ++i) logits.push_back(normal(random));
    for (std::int64_t i = 0; i < rows; ++i) {
      labels.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(vocab)));
    }
    // The second row's margin is above 24 ln 2, where log_softmax in fp32 is exactly 0.
    for (std::int64_t j = 0; j < vocab; ++j) logits[static_cast<std::size_t>(vocab + j)] = 0.0f;
    logits[static_cast<std::size_t>(vocab + labels[1])] = 25.0f;
  }
  HeadResult evaluate(const LossOptions& options, int threads) {
    gradients = logits;
    return make_loss_head(options)->evaluate(View<float>(gradients.data(), rows, vocab), labels,
                                             *simd::make_tbb_executor(threads));
  }
  std::int64_t rows, vocab;
  std::vector<float> logits, gradients;
  std::vector<std::int32_t> labels;
};

TEST(LossHead, CanonicalHasTheSameBitsForEveryTpAndThread) {
  Problem problem;
  const HeadResult expected = problem.evaluate({"canonical", "fp32", 1}, 1);
  const std::vector<float> gradients = problem.gradients;
  EXPECT_GT(expected.loss, 0.0f);
  for (const std::int64_t tp : {1, 2, 4, 8, 64}) {
    for (int threads = 1; threads <= 4; ++threads) {
      const HeadResult result = problem.evaluate({"canonical", "fp32", tp}, threads);
      EXPECT_EQ(result.loss, expected.loss);
      EXPECT_EQ(std::memcmp(problem.gradients.data(), gradients.data(), gradients.size() * sizeof(float)), 0);
    }
  }
}

// The row that tells a canonical loss from a usual one: it would fail with log_softmax in canonical's place.
TEST(LossHead, CanonicalKeepsTheRowThatLogSoftmaxLoses) {
  Problem problem;
  const HeadResult kept = problem.evaluate({"canonical", "fp32", 2}, 2);
  EXPECT_FALSE(kept.rows[1].collapsed);
  EXPECT_FALSE(kept.rows[1].without_target);
  EXPECT_NEAR(kept.rows[1].nll, 40 * std::exp(-25.0), 1e-15);
  EXPECT_LT(std::abs(kept.rows[1].gradient_sum), 1e-17);
  const HeadResult lost = problem.evaluate({"log_softmax", "fp32", 2}, 2);
  EXPECT_TRUE(lost.rows[1].collapsed);
  EXPECT_TRUE(lost.rows[1].without_target);
  EXPECT_GT(lost.rows[1].gradient_sum, 1e-13);
  EXPECT_FALSE(lost.rows[0].collapsed);
}

// The loop over threads is run(), in every precision; canonical by another backend too.
TEST(LossHead, MethodsAreThoseOfRun) {
  Problem problem;
  for (const Method* method : methods()) {
    for (const PrecisionInfo& info : kPrecisions) {
      if (!method->supports(info.precision)) continue;
      SCOPED_TRACE(std::string(method->name()) + " in " + std::string(info.name));
      const std::int64_t tp = method->one_rank_only() ? 1 : 2;
      const ShardPlan plan = ShardPlan::even(problem.vocab, tp);
      std::vector<float> expected_gradients = problem.logits;
      std::vector<Shard> shards;
      std::vector<Matrix> gradients;
      for (std::int64_t s = 0; s < tp; ++s) {
        const Matrix whole = matrix_of(expected_gradients.data(), problem.rows, problem.vocab);
        gradients.push_back(whole.column_range(plan.first_class(s), plan.width(s)));
        shards.push_back({gradients.back(), s});
      }
      const Batch batch{plan, shards, Labels(problem.labels.data(), problem.rows), problem.vocab};
      const MethodOutput expected = run(*method, {.batch = batch,
                                                  .options = {},
                                                  .order = {},
                                                  .upstream = {},
                                                  .gradients = gradients,
                                                  .precision = info.precision});
      for (int threads = 1; threads <= 3; ++threads) {
        const HeadResult result = problem.evaluate({std::string(method->name()), std::string(info.name), tp}, threads);
        EXPECT_EQ(result.loss, static_cast<float>(*expected.loss));
        EXPECT_EQ(problem.gradients, expected_gradients);
        for (std::size_t i = 0; i < result.rows.size(); ++i) {
          EXPECT_EQ(result.rows[i].nll, static_cast<float>(expected.nll[i]));
        }
      }
    }
  }
}

TEST(LossHead, RefusesWhatItHasNot) {
  for (const LossOptions& options :
       {LossOptions{"sofmax", "fp32", 1}, LossOptions{"canonical", "fp7", 1}, LossOptions{"canonical", "fp32", 0},
        LossOptions{"cross_entropy", "fp32", 2}, LossOptions{"canonical", "bf16", 1}}) {
    EXPECT_THROW(make_loss_head(options), std::invalid_argument) << options.method;
  }
}

}  // namespace
}  // namespace tpce::sim
