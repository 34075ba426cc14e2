// tpce train: golden files, checks against them, and runs that are stopped and go on.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/tools/run_program.h"

namespace tpce::test {
namespace {

const std::string kData = TPCE_TEST_DATA "/train/";

// The text of a configuration with another value of a key that it has.
std::string with_key(std::string text, const std::string& key, const std::string& value) {
  const std::size_t at = text.find("\n" + key + " = ") + key.size() + 4;
  return text.replace(at, text.find('\n', at) - at, value);
}

class Train : public ::testing::TestWithParam<const char*> {
 protected:
  std::string config() const { return kData + GetParam() + ".toml"; }
  std::string golden() const { return kData + GetParam() + ".txt"; }
  Output train(const std::vector<std::string>& arguments) const {
    std::vector<std::string> words{"train", config()};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return run(directory, words);
  }

  TemporaryDirectory directory;
};

// The committed bytes, for every tp and thread count.
TEST_P(Train, WritesTheCommittedGoldenFile) {
  for (const auto& [tp, threads] :
       {std::pair("1", "1"), std::pair("2", "3"), std::pair("4", "2"), std::pair("8", "1")}) {
    const Output output = train({"--golden", directory / "g.txt", "--tp", tp, "--threads", threads});
    ASSERT_EQ(output.exit_code, 0) << output.err;
    EXPECT_EQ(output.err, "");
    EXPECT_NE(output.out.find("wrote " + (directory / "g.txt")), std::string::npos) << output.out;
    EXPECT_EQ(read_text(directory / "g.txt"), read_text(golden())) << "tp " << tp << ", threads " << threads;
  }
}

TEST_P(Train, ChecksAsItRuns) {
  const Output equal = train({"--check", golden(), "--tp", "2"});
  EXPECT_EQ(equal.exit_code, 0) << equal.err << equal.out;
  EXPECT_NE(equal.out.find("loss and grad_norm of "), std::string::npos) << equal.out;

  std::string text = read_text(golden());
  const std::size_t row = text.find("\n3 ") + 3;
  const std::string loss = text.substr(row, text.find(' ', row) - row);
  text.replace(row, loss.size(), "1.5");
  write_text(directory / "other.txt", text);
  const Output different = train({"--check", directory / "other.txt"});
  EXPECT_EQ(different.exit_code, 1) << different.err;
  EXPECT_NE(different.out.find("step 3 differs: loss is " + loss + ", expected 1.5"), std::string::npos)
      << different.out;
  EXPECT_EQ(std::count(different.out.begin(), different.out.end(), '\n'), 1) << different.out;

  write_text(directory / "long.txt", read_text(golden()) + "1000 0.5 0.5\n");
  const Output shorter = train({"--check", directory / "long.txt"});
  EXPECT_EQ(shorter.exit_code, 1);
  EXPECT_NE(shorter.out.find("step 1000 was not trained"), std::string::npos) << shorter.out;

  std::string bits = read_text(golden());
  bits[bits.find("loss=0x") + 7] ^= 1;  // of the first step's record, which its row then contradicts
  write_text(directory / "bits.txt", bits);
  const Output damaged = train({"--check", directory / "bits.txt"});
  EXPECT_EQ(damaged.exit_code, 1) << damaged.out;
  EXPECT_NE(damaged.out.find("bits.txt: step 1: the recorded bits of loss are those of"), std::string::npos)
      << damaged.out;
}

TEST_P(Train, AUsualLossTrainsAnotherWay) {
  const Output output = train({"--check", golden(), "--method", "log_softmax"});
  EXPECT_EQ(output.exit_code, 1) << output.out;
  EXPECT_NE(output.out.find("differs"), std::string::npos);
  EXPECT_NE(output.out.find("\nnote: the method is 'log_softmax "), std::string::npos) << output.out;
}

// Killed again and again, and so resumed from whatever was written last.
TEST_P(Train, AKilledRunGoesOnToTheSameBits) {
  using std::chrono::milliseconds;
  write_text(directory / "long.toml", with_key(read_text(config()), "steps", "200"));
  write_text(directory / "text_source.txt", read_text(kData + "text_source.txt"));
  ASSERT_EQ(run(directory, {"train", directory / "long.toml", "--golden", directory / "expected.txt"}).exit_code, 0);

  const std::string checkpoint = directory / "run.checkpoint";
  const std::vector<std::string> words{"train",    directory / "long.toml", "--checkpoint", checkpoint,
                                       "--golden", directory / "g.txt"};
  int stopped = 0;
  for (int attempt = 1; attempt <= 6; ++attempt) {
    Process process(directory, words);
    const auto written = [&] {
      std::error_code missing;
      return std::filesystem::last_write_time(checkpoint, missing);
    };
    const auto before = written();
    for (int wait = 0; wait < 5000 && written() == before; ++wait) std::this_thread::sleep_for(milliseconds(1));
    const int signal = attempt % 2 == 0 ? SIGINT : SIGKILL;
    kill(process.pid(), signal);
    stopped += process.wait().exit_code == 128 + signal ? 1 : 0;
  }
  EXPECT_GE(stopped, 3);
  const Output output = run(directory, words);
  EXPECT_EQ(output.exit_code, 0) << output.err;
  EXPECT_EQ(read_text(directory / "g.txt"), read_text(directory / "expected.txt"));
}

// The step that it has reached, which is none that is kept anyway, and the command that goes on to the same bits.
TEST_P(Train, AStoppedRunKeepsItsStepAndSaysHowToGoOn) {
  using std::chrono::milliseconds;
  const auto with_steps = [&](const std::string& steps) {
    write_text(directory / "it's.toml",
               with_key(with_key(read_text(config()), "steps", steps), "checkpoint_every", "1000000000"));
  };
  write_text(directory / "text_source.txt", read_text(kData + "text_source.txt"));
  with_steps("1000000");
  const std::vector<std::string> words{"train",        directory / "it's.toml",      "--curve", directory / "c.csv",
                                       "--checkpoint", directory / "run.checkpoint", "--tp",    "2"};
  for (const int signal : {SIGINT, SIGTERM}) {
    std::filesystem::remove(directory / "run.checkpoint");
    Output output;
    // A signal before the first step ends the program with nothing to keep.
    for (int attempt = 0; attempt < 10 && output.err.empty(); ++attempt) {
      Process process(directory, words);
      std::this_thread::sleep_for(milliseconds(300 << attempt));
      kill(process.pid(), signal);
      output = process.wait();
    }
    EXPECT_EQ(output.exit_code, 128 + signal);
    EXPECT_EQ(output.out, "");
    ASSERT_EQ(output.err.rfind("tpce: stopped: step ", 0), 0u) << output.err;
    EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << output.err;
    EXPECT_NE(output.err.find(directory.path() + "/run.checkpoint; go on with: tpce train '" + directory.path() +
                              "/it'\\''s.toml' --curve " + directory.path() + "/c.csv --checkpoint " +
                              directory.path() + "/run.checkpoint --tp 2\n"),
              std::string::npos)
        << output.err;
    EXPECT_EQ(std::filesystem::exists(directory / "c.csv"), false);

    // The checkpoint is of the step that was named: a configuration of one step less is too short for it.
    const int step = std::stoi(output.err.substr(std::string("tpce: stopped: step ").size()));
    ASSERT_GE(step, 1);
    if (step > 1) {
      with_steps(std::to_string(step - 1));
      EXPECT_NE(run(directory, words).err.find(" has " + std::to_string(step) + " steps, expected no more"),
                std::string::npos);
    }
    with_steps(std::to_string(step + 2));
    EXPECT_EQ(run(directory, words).exit_code, 0);
    const std::string resumed = read_text(directory / "c.csv");
    std::filesystem::remove(directory / "run.checkpoint");
    EXPECT_EQ(run(directory, words).exit_code, 0);
    EXPECT_EQ(resumed, read_text(directory / "c.csv"));
    std::filesystem::remove(directory / "c.csv");
    with_steps("1000000");
  }
}

TEST_P(Train, WithoutACheckpointAStoppedRunLeavesNothing) {
  write_text(directory / "long.toml", with_key(read_text(config()), "steps", "1000000"));
  write_text(directory / "text_source.txt", read_text(kData + "text_source.txt"));
  const std::vector<std::string> before = directory.names();
  Process process(directory, {"train", directory / "long.toml", "--golden", directory / "g.txt"});
  std::this_thread::sleep_for(std::chrono::seconds(1));
  kill(process.pid(), SIGINT);
  const Output output = process.wait();
  EXPECT_EQ(output.exit_code, 130);
  EXPECT_EQ(output.out + output.err, "");
  EXPECT_EQ(directory.names(), before);
}

INSTANTIATE_TEST_SUITE_P(Small, Train, ::testing::Values("addition", "text"),
                         [](const auto& test) { return test.param; });

TEST(TrainCommand, WritesACurve) {
  const TemporaryDirectory directory;
  const Output output = run(directory, {"train", kData + "addition.toml", "--curve", directory / "c.csv"});
  ASSERT_EQ(output.exit_code, 0) << output.err;
  const std::string csv = read_text(directory / "c.csv");
  EXPECT_EQ(csv.rfind("step,loss,grad_norm,rows,collapsed,without_target,mean_gradient_sum,train_accuracy,", 0), 0u);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 26);
  const std::string tenth = csv.substr(csv.find("\n10,") + 1, csv.find("\n11,") - csv.find("\n10,") - 1);
  EXPECT_EQ(std::count(tenth.begin(), tenth.end(), ','), 8);
  EXPECT_NE(tenth.back(), ',');
}

TEST(TrainCommand, RefusesInOneLineAndLeavesNothing) {
  const TemporaryDirectory directory;
  const std::string config = kData + "addition.toml";
  write_text(directory / "bad.toml", "steps = \"many\"\n[task]\nkind = \"modular_addition\"\n");
  write_text(directory / "damaged", "tpce checkpoint 1\nnonsense");
  write_text(directory / "huge.toml",
             "[task]\nkind = \"modular_addition\"\nprime = 3\n[model]\nhidden = [65536, 65536]\n");
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{directory / "bad.toml"}, "bad.toml: line 1: steps: got"},
      {{directory / "none.toml"}, "none.toml"},
      {{config, "--tp", "0"}, "tp: got 0"},
      {{config, "--tp", "x"}, "--tp"},
      {{config, "--method", "sofmax"}, "sofmax"},
      {{config, "--precision", "fp7"}, "fp7"},
      {{config, "--checkpoint", directory / "damaged"}, "damaged: is damaged"},
      {{config, "--check", directory / "none.txt"}, "none.txt"},
      {{config, "--golden", config}, "golden: " + config + " is the configuration"},
      {{config, "--golden", directory / "g", "--curve", directory / "g"}, "g is golden, expected another file"},
      {{config, "--check", directory / "damaged", "--curve", directory / "damaged"}, "damaged is check"},
      {{config, "--checkpoint", directory / "no/run"}, "no/run: cannot write"},
      {{directory / "huge.toml"}, "model: has 4295557120 parameters, expected at most 1073741824"},
      {{config, "--golden", directory / "no/g.txt"}, "g.txt"},
  };
  for (const auto& [arguments, expected] : cases) {
    std::vector<std::string> words{"train"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    const Output output = run(directory, words);
    EXPECT_EQ(output.exit_code, 2) << expected;
    EXPECT_EQ(output.err.rfind("tpce: error: ", 0), 0u) << output.err;
    EXPECT_NE(output.err.find(expected), std::string::npos) << output.err;
    EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << output.err;
  }
  EXPECT_EQ(directory.names(), (std::vector<std::string>{"bad.toml", "damaged", "huge.toml"}));
}

// The configurations that are there as examples.
TEST(TrainCommand, TinyEndsSoon) {
  const TemporaryDirectory directory;
  const auto start = std::chrono::steady_clock::now();
  const Output output = run(directory, {"train", TPCE_SOURCE_DIR "/sim/train/configs/tiny.toml"});
  EXPECT_EQ(output.exit_code, 0) << output.err;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
  EXPECT_NE(output.out.find("step 300: loss 0.00"), std::string::npos) << output.out;
}

}  // namespace
}  // namespace tpce::test
