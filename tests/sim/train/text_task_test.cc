#include "sim/train/text_task.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/support/scratch.h"

namespace tpce::sim {
namespace {

using tpce::testing::message_of;
using tpce::testing::Scratch;

TrainConfig small(const Scratch& scratch) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "word" + std::to_string(i * 7919 % 1000) + " ";
  TrainConfig config;
  config.task = TaskKind::kText;
  config.files = {scratch.write("t.txt", text)};
  config.vocab = 260;
  config.sequence = 16;
  config.batch = 4;
  return config;
}

TEST(TextTask, LabelsAreTheNextTokens) {
  const Scratch scratch;
  TextTask task(small(scratch));
  const Examples batch = task.batch(1);
  ASSERT_EQ(batch.labels.size(), 64u);
  ASSERT_EQ(batch.tokens.size(), 64u);
  EXPECT_EQ(batch.per_row, 16);
  for (std::size_t i = 0; i < 64; ++i) {
    if (i % 16 == 15) continue;
    EXPECT_EQ(batch.labels[i], batch.tokens[i + 1]);
  }
}

TEST(TextTask, ABatchIsAFunctionOfItsStep) {
  const Scratch scratch;
  TextTask task(small(scratch));
  const std::vector<std::int32_t> first = task.batch(1).tokens;
  EXPECT_NE(task.batch(2).tokens, first);
  EXPECT_EQ(task.batch(1).tokens, first);
  TrainConfig config = small(scratch);
  config.seed = 2;
  EXPECT_NE(TextTask(config).batch(1).tokens, first);
}

// Numbers name their place in the text: none of the last tenth is trained on, nor what follows train_tokens.
TEST(TextTask, TrainsOnItsPartAlone) {
  const Scratch scratch;
  TrainConfig config = small(scratch);
  config.train_tokens = 40;
  TextTask task(config);
  std::set<std::vector<std::int32_t>> sequences;
  for (std::int64_t step = 1; step <= 200; ++step) {
    const Examples& batch = task.batch(step);
    for (std::ptrdiff_t i = 0; i < 4; ++i) {
      const auto at = batch.tokens.begin() + 16 * i;
      sequences.emplace(at, at + 16);
    }
  }
  EXPECT_EQ(sequences.size(), 24u);  // beginnings 0 to 23: the last label is token 39
  const Examples& held_out = task.held_out();
  for (std::ptrdiff_t i = 0; i < 16; ++i) {
    const auto at = held_out.tokens.begin() + 16 * i;
    EXPECT_FALSE(sequences.contains(std::vector<std::int32_t>(at, at + 16)));
  }
}

TEST(TextTask, RefusesATextThatIsTooShort) {
  const Scratch scratch;
  TrainConfig config = small(scratch);
  config.sequence = 4000;
  EXPECT_NE(message_of([&] { TextTask task(config); }).find("sequence: got 4000, expected less than"),
            std::string::npos);
}

}  // namespace
}  // namespace tpce::sim
