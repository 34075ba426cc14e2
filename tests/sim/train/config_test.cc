#include "sim/train/config.h"

#include <gtest/gtest.h>

#include "tests/support/scratch.h"

namespace tpce::sim {
namespace {

using tpce::testing::message_of;
using tpce::testing::Scratch;

constexpr const char* kTask = "[task]\nkind = \"modular_addition\"\n";

TEST(Config, ReadsEveryKey) {
  const Scratch scratch;
  const TrainConfig config = read_config(scratch.write("c.toml", R"(seed = 7
steps = 20
evaluate_every = 5
checkpoint_every = 4
[task]
kind = "modular_addition"
prime = 23
train_share = 0.5
[model]
hidden = [8, 9, 10]
[optimizer]
learning_rate = 5e-4
beta1 = 0.8
beta2 = 0.99
eps = 1e-25
weight_decay = 1
warmup_steps = 3
clip_grad_norm = 2.5
[loss]
method = "softplus_recompute"
precision = "fp32"
tp = 4
)"));
  EXPECT_EQ(config.seed, 7);
  EXPECT_EQ(config.steps, 20);
  EXPECT_EQ(config.evaluate_every, 5);
  EXPECT_EQ(config.checkpoint_every, 4);
  EXPECT_EQ(config.prime, 23);
  EXPECT_EQ(config.train_share, 0.5);
  EXPECT_EQ(config.hidden, (std::vector<std::int64_t>{8, 9, 10}));
  EXPECT_EQ(config.optimizer.learning_rate, 5e-4);
  EXPECT_EQ(config.optimizer.beta1, 0.8);
  EXPECT_EQ(config.optimizer.beta2, 0.99);
  EXPECT_EQ(config.optimizer.eps, 1e-25);
  EXPECT_EQ(config.optimizer.weight_decay, 1.0);
  EXPECT_EQ(config.warmup_steps, 3);
  EXPECT_EQ(config.clip_grad_norm, 2.5);
  EXPECT_EQ(config.loss.method, "softplus_recompute");
  EXPECT_EQ(config.loss.tp, 4);
}

TEST(Config, ReadsEveryKeyOfText) {
  const Scratch scratch;
  scratch.write("t.txt", "text");
  const TrainConfig config = read_config(scratch.write("c.toml", R"([task]
kind = "text"
files = ["t.txt"]
vocab = 300
sequence = 7
batch = 3
train_tokens = 90
[model]
width = 12
layers = 3
heads = 2
feed_forward = 9
partial_sums = true
)"));
  EXPECT_EQ(config.task, TaskKind::kText);
  EXPECT_EQ(config.files, std::vector<std::string>{scratch.path("t.txt")});
  EXPECT_EQ(config.vocab, 300);
  EXPECT_EQ(config.sequence, 7);
  EXPECT_EQ(config.batch, 3);
  EXPECT_EQ(config.train_tokens, 90);
  EXPECT_EQ(config.transformer.width, 12);
  EXPECT_EQ(config.transformer.layers, 3);
  EXPECT_EQ(config.transformer.heads, 2);
  EXPECT_EQ(config.transformer.feed_forward, 9);
  EXPECT_TRUE(config.partial_sums);
}

TEST(Config, WhatIsWrongIsNamedWithFileLineAndKey) {
  const Scratch scratch;
  const std::pair<std::string, std::vector<std::string>> cases[] = {
      {std::string(kTask) + "prme = 5\n", {"line 3: task.prme is unknown", "kind, prime, train_share"}},
      {"stepz = 5\n" + std::string(kTask), {"line 1: stepz is unknown"}},
      {"steps = 0\n" + std::string(kTask), {"line 1: steps: got 0", "a whole number in 1.."}},
      {"steps = 1.5\n" + std::string(kTask), {"line 1: steps: got 1.5", "a whole number"}},
      {"steps = \"5\"\n" + std::string(kTask), {"line 1: steps: got", "a whole number"}},
      {std::string(kTask) + "prime = 21\n", {"task.prime: got 21, expected a prime: 3 divides it"}},
      {std::string(kTask) + "train_share = 1.5\n", {"line 3: task.train_share: got 1.5", "0.01..0.99"}},
      {std::string(kTask) + "prime = 7\ntrain_share = 0.01\n",
       {"task.train_share: got 0.01, which trains on 0 of 49 pairs, expected 1..48"}},
      {std::string(kTask) + "prime = 7\ntrain_share = 0.99\n", {"trains on 49 of 49 pairs"}},
      {std::string(kTask) + "train_share = nan\n", {"task.train_share"}},
      {std::string(kTask) + "train_share = \"x\"\n", {"task.train_share"}},
      {std::string(kTask) + "[model]\nhidden = []\n", {"model.hidden", "a list of whole numbers"}},
      {std::string(kTask) + "[model]\nhidden = [3, \"x\"]\n", {"model.hidden: got 'x'"}},
      {std::string(kTask) + "[model]\nhidden = 3\n", {"model.hidden: got 3"}},
      {"model = 3\n" + std::string(kTask), {"model: got 3, expected a table"}},
      {"steps = 5\n", {"task.kind is missing", "modular_addition"}},
      {"[task]\nkind = \"chess\"\n", {"line 2: task.kind: got 'chess'", "modular_addition"}},
      {"[task]\nkind = 3\n", {"line 2: task.kind: got 3"}},
      {std::string(kTask) + "[loss]\nmethod = \"sofmax\"\n", {"loss.method: got 'sofmax'", "log_softmax"}},
      {std::string(kTask) + "[loss]\nmethod = 1\n", {"loss.method: got 1, expected a string"}},
      {std::string(kTask) + "[loss]\nprecision = \"fp7\"\n", {"loss.precision: got 'fp7'"}},
      {std::string(kTask) + "[loss]\ntp = 0\n", {"line 4: loss.tp: got 0"}},
      {"[task]\nkind = \"text\"\n", {"task.files is missing"}},
      {"[task]\nkind = \"text\"\nfiles = \"c.toml\"\n", {"line 3: task.files: got 'c.toml'", "a list of strings"}},
      {"[task]\nkind = \"text\"\nfiles = [3]\n", {"line 3: task.files: got 3"}},
      {"[task]\nkind = \"text\"\nfiles = [\"none\"]\n", {"task.files: ", "none is no file"}},
      {"[task]\nkind = \"text\"\nfiles = [\"c.toml\"]\nprime = 5\n", {"line 4: task.prime is unknown"}},
      {"[task]\nkind = \"text\"\nfiles = [\"c.toml\"]\n[model]\nwidth = 30\n",
       {"model.width: got 30, expected a multiple"}},
      {"[task]\nkind = \"text\"\nfiles = [\"c.toml\"]\n[model]\npartial_sums = 1\n",
       {"line 5: model.partial_sums: got 1"}},
      {"steps = \n", {"line 1: "}},
      {"steps = 5\nsteps = 6\n", {"line 2: "}},
  };
  for (const auto& [text, expected] : cases) {
    const std::string file = scratch.write("c.toml", text);
    const std::string message = message_of([&] { read_config(file); });
    EXPECT_EQ(message.rfind(file + ": ", 0), 0u) << message;
    for (const std::string& part : expected) EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST(Config, IdentityLeavesOutWhatChangesNoBit) {
  TrainConfig config;
  const std::string identity = identity_of(config);
  config.steps = 7;
  config.checkpoint_every = 3;
  config.loss.tp = 8;
  EXPECT_EQ(identity_of(config), identity);
  config.loss.method = "log_softmax";
  const std::string other = identity_of(config);
  EXPECT_NE(other, identity);
  config.loss.tp = 4;
  EXPECT_NE(identity_of(config), other);
}

}  // namespace
}  // namespace tpce::sim
