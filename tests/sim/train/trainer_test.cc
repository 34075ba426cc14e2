#include "sim/train/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/support/scratch.h"

namespace tpce::sim {
namespace {

using tpce::testing::message_of;
using tpce::testing::Scratch;

TrainConfig small_addition() {
  TrainConfig config;
  config.steps = 40;
  config.prime = 11;
  config.train_share = 0.8;
  config.hidden = {33, 20};
  config.optimizer = {.learning_rate = 5e-3, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-25, .weight_decay = 0.01};
  config.warmup_steps = 5;
  config.clip_grad_norm = 0.05;
  return config;
}

// A transformer on a text of a few words.
TrainConfig small_text(const Scratch& scratch) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += "the " + std::to_string(i * 7919 % 89) + " word of it, ";
  TrainConfig config;
  config.task = TaskKind::kText;
  config.steps = 9;
  config.files = {scratch.write("text", text)};
  config.vocab = 300;
  config.sequence = 24;
  config.batch = 5;
  config.transformer = {.width = 32, .layers = 2, .heads = 4, .feed_forward = 40};
  config.optimizer = {.learning_rate = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  config.clip_grad_norm = 1.0;
  return config;
}

struct Trajectory {
  std::vector<StepResult> steps;
  std::vector<float> parameters;

  friend bool operator==(const Trajectory& a, const Trajectory& b) {
    return a.steps.size() == b.steps.size() &&
           std::memcmp(a.steps.data(), b.steps.data(), a.steps.size() * sizeof(StepResult)) == 0 &&
           a.parameters.size() == b.parameters.size() &&
           std::memcmp(a.parameters.data(), b.parameters.data(), a.parameters.size() * sizeof(float)) == 0;
  }
};

Trajectory train(TrainConfig config, std::int64_t tp, int threads) {
  config.loss.tp = tp;
  const auto executor = simd::make_tbb_executor(threads);
  Trainer trainer(config, *executor);
  while (trainer.steps_done() < config.steps) trainer.step();
  return {trainer.history(), trainer.parameters()};
}

void expect_same_for_every_tp_and_thread(const TrainConfig& config) {
  const Trajectory expected = train(config, 1, 1);
  for (const std::int64_t tp : {1, 2, 4, 8}) {
    for (int threads = 1; threads <= 3; ++threads) {
      EXPECT_TRUE(train(config, tp, threads) == expected) << "tp " << tp << ", " << threads << " threads";
    }
  }
}

TEST(Trainer, CanonicalAdditionIsTheSameForEveryTpAndThread) { expect_same_for_every_tp_and_thread(small_addition()); }

TEST(Trainer, CanonicalTextIsTheSameForEveryTpAndThread) {
  const Scratch scratch;
  expect_same_for_every_tp_and_thread(small_text(scratch));
}

// Sums that are cut by ranks are told apart, and so named in the identity.
TEST(Trainer, PartialSumsDependOnTp) {
  const Scratch scratch;
  TrainConfig config = small_text(scratch);
  config.partial_sums = true;
  EXPECT_FALSE(is_free_of_tp(config));
  EXPECT_FALSE(train(config, 4, 1) == train(config, 1, 1));
}

TEST(Trainer, TextIsLearned) {
  const Scratch scratch;
  TrainConfig config = small_text(scratch);
  config.steps = 150;
  const std::vector<StepResult> steps = train(config, 1, 2).steps;
  EXPECT_NEAR(steps.front().loss, std::log(300.0), 0.5);
  EXPECT_LT(steps.back().loss, 1.5f);
  EXPECT_GT(steps.back().test_accuracy, 0.5);
}

// The same test sees a loss whose bits depend on tp.
TEST(Trainer, LogSoftmaxDependsOnTp) {
  TrainConfig config = small_addition();
  config.loss.method = "log_softmax";
  const Trajectory expected = train(config, 1, 1);
  EXPECT_TRUE(train(config, 1, 3) == expected);
  EXPECT_FALSE(train(config, 2, 1) == expected);
}

TEST(Trainer, AdditionIsLearned) {
  TrainConfig config = small_addition();
  config.steps = 400;
  config.clip_grad_norm = 0.0;
  const std::vector<StepResult> steps = train(config, 1, 1).steps;
  EXPECT_NEAR(steps.front().loss, std::log(11.0), 0.1);
  EXPECT_LT(steps.back().loss, 0.05f);
  EXPECT_GT(steps.back().train_accuracy, 0.99);
  EXPECT_EQ(steps.back().rows, 97);
  EXPECT_EQ(steps[10].test_accuracy, -1.0);
}

void expect_resumed_runs_are_the_same(const TrainConfig& config) {
  const Scratch scratch;
  const Trajectory expected = train(config, 1, 1);
  const auto executor = simd::make_tbb_executor(2);
  for (std::int64_t stop = 0; stop <= config.steps; stop += 3) {
    Trainer first(config, *executor);
    while (first.steps_done() < stop) first.step();
    first.save(scratch.path("c"));
    Trainer second(config, *executor);
    second.load(scratch.path("c"));
    EXPECT_EQ(second.steps_done(), stop);
    while (second.steps_done() < config.steps) second.step();
    EXPECT_TRUE((Trajectory{second.history(), second.parameters()}) == expected) << stop;
  }
}

TEST(Trainer, AResumedAdditionIsTheSame) {
  TrainConfig config = small_addition();
  config.steps = 12;
  expect_resumed_runs_are_the_same(config);
}

TEST(Trainer, AResumedTextIsTheSame) {
  const Scratch scratch;
  expect_resumed_runs_are_the_same(small_text(scratch));
}

TEST(Trainer, RefusesAnotherRunsCheckpoint) {
  const Scratch scratch;
  InlineExecutor executor;
  TrainConfig config = small_addition();
  Trainer trainer(config, executor);
  trainer.save(scratch.path("c"));
  config.seed = 2;
  Trainer other(config, executor);
  EXPECT_NE(message_of([&] { other.load(scratch.path("c")); }).find("another configuration"), std::string::npos);
}

TEST(Trainer, RefusesACheckpointOfMoreSteps) {
  const Scratch scratch;
  InlineExecutor executor;
  TrainConfig config = small_addition();
  Trainer trainer(config, executor);
  trainer.step();
  trainer.step();
  trainer.save(scratch.path("c"));
  config.steps = 1;
  Trainer shorter(config, executor);
  EXPECT_NE(message_of([&] { shorter.load(scratch.path("c")); }).find("has 2 steps, expected no more than"),
            std::string::npos);
}

}  // namespace
}  // namespace tpce::sim
