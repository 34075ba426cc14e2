// tpce loss: what it prints and writes is what the library computes, in every form that the options give it.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/support/sanitizer.h"
#include "tests/tools/input_files.h"
#include "tests/tools/run_program.h"
#include "tpce/cross_entropy.h"
#include "tpce/scalar_backend.h"

namespace tpce::test {
namespace {

using Json = nlohmann::json;

std::string bits(float value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", std::bit_cast<std::uint32_t>(value));
  return text;
}

// Runs tpce loss with --json added and reads the object.
Json loss(const TemporaryDirectory& directory, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "loss");
  arguments.push_back("--json");
  const Output output = run(directory, arguments);
  EXPECT_EQ(output.exit_code, 0) << output.err;
  EXPECT_EQ(output.err, "");
  return Json::parse(output.out, nullptr, false);
}

struct Expected {
  Loss loss;
  std::vector<float> nll;
  std::vector<float> gradient;
  float norm = 0.0f;
};

// By the library, in one batch on one shard.
template <class Logit>
Expected expected(const std::vector<Logit>& logits, const std::vector<std::int64_t>& labels, const Options& options) {
  const auto rows = static_cast<std::int64_t>(labels.size());
  const auto columns = static_cast<std::int64_t>(logits.size()) / rows;
  ScalarBackend backend;
  SelfCommunicator self;
  const Runtime runtime{.backend = backend, .communicator = self};
  const ShardPlan plan = ShardPlan::even(columns, 1);
  const Shard shards[] = {{matrix_of(logits.data(), rows, columns), 0}};
  Expected result{.loss = {}, .nll = std::vector<float>(labels.size()), .gradient = std::vector<float>(logits.size())};
  Forward forward = cross_entropy_forward({plan, shards, Labels(labels.data(), rows), columns}, options,
                                          {.nll = result.nll.data()}, runtime);
  const Matrix gradients[] = {matrix_of(result.gradient.data(), rows, columns)};
  BinnedSum squares;
  cross_entropy_backward(forward.saved, {}, gradients, runtime, &squares);
  result.loss = forward.loss;
  result.norm = gradient_norm(squares);
  return result;
}

struct Sample {
  std::vector<float> logits;
  std::vector<std::int64_t> labels;
};

Sample sample(std::int64_t rows, std::int64_t columns) {
  std::mt19937 random(7);
  Sample made;
  for (std::int64_t i = 0; i < rows * columns; ++i)
    made.logits.push_back(static_cast<float>(random() % 4096) / 256 - 8);
  for (std::int64_t i = 0; i < rows; ++i) made.labels.push_back(static_cast<std::int64_t>(random()) % columns);
  return made;
}

TEST(LossCommand, EqualsTheLibraryForAnyShards) {
  const TemporaryDirectory directory;
  const Sample made = sample(5, 67);
  write_text(directory / "z.safetensors", capture(made.logits, made.labels));
  const Expected want = expected(made.logits, made.labels, {});
  const std::vector<std::vector<std::string>> cuts{{},
                                                   {"--tp", "2"},
                                                   {"--tp", "8"},
                                                   {"--tp", "67"},
                                                   {"--tp", "100"},
                                                   {"--threads", "1"},
                                                   {"--threads", "5", "--tp", "3"},
                                                   {"--backend", "scalar"},
                                                   {"--shards", "1,0,60,6"}};
  for (const auto& cut : cuts) {
    std::vector<std::string> arguments{directory / "z.safetensors", "--grad", directory / "g.npy", "--per-row",
                                       directory / "p.npy"};
    arguments.insert(arguments.end(), cut.begin(), cut.end());
    const Json json = loss(directory, arguments);
    EXPECT_EQ(json.at("loss_bits"), bits(want.loss.value));
    EXPECT_EQ(json.at("loss").get<float>(), want.loss.value);
    EXPECT_EQ(json.at("loss_fp64").get<double>(), want.loss.value_fp64);
    EXPECT_EQ(json.at("grad_norm_bits"), bits(want.norm));
    EXPECT_EQ(json.at("rows"), 5);
    EXPECT_EQ(json.at("valid_rows"), 5);
    EXPECT_EQ(json.at("method"), "canonical");
    const bool scalar = !cut.empty() && cut.back() == "scalar";
    EXPECT_EQ(json.at("backend"), scalar ? "scalar" : "simd");
    EXPECT_EQ(json.at("collapsed_rows"), 0);
    EXPECT_EQ(elements_of<float>(read_text(directory / "g.npy")), want.gradient);
    EXPECT_EQ(elements_of<float>(read_text(directory / "p.npy")), want.nll);
  }
  EXPECT_EQ(directory.names(), (std::vector<std::string>{"g.npy", "p.npy", "z.safetensors"}));
}

// Rows that are cut over threads, and rows that are not.
TEST(LossCommand, OutputsAreTheSameBytesOnAnyThreads) {
  const TemporaryDirectory directory;
  for (const auto& [rows, columns] : {std::pair(2, 70001), std::pair(64, 501)}) {
    const Sample made = sample(rows, columns);
    write_text(directory / "z.safetensors", capture(made.logits, made.labels));
    std::vector<std::string> first;
    for (const char* threads : {"0", "1", "2", "5"}) {
      const Output output =
          run(directory, {"loss", directory / "z.safetensors", "--threads", threads, "--json", "--grad",
                          directory / "g.npy", "--per-row", directory / "p.npy", "--tp", "2"});
      ASSERT_EQ(output.exit_code, 0) << output.err;
      const std::vector<std::string> files{output.out, read_text(directory / "g.npy"), read_text(directory / "p.npy")};
      if (first.empty()) first = files;
      EXPECT_TRUE(files == first) << threads;
    }
  }
}

// The program reads 2^22 elements at a time; these rows come in three ranges.
TEST(LossCommand, RangesOfRowsGiveTheBitsOfOneBatch) {
  const TemporaryDirectory directory;
  constexpr std::int64_t kRows = 5, kColumns = 1500000;
  std::vector<BFloat16> logits(kRows * kColumns);
  std::mt19937 random(11);
  for (BFloat16& logit : logits) logit.bits = static_cast<std::uint16_t>(0x3f00 + random() % 256);
  const std::vector<std::int64_t> labels{17, -100, kColumns - 1, 3, 4};
  const Expected want = expected(logits, labels, {});
  write_text(directory / "z.npy", npy("<V2", "(5, 1500000)", bytes_of(logits)));
  write_text(directory / "t.npy", npy("<i8", "(5,)", bytes_of(labels)));
  const Json json = loss(directory, {directory / "z.npy", "--labels", directory / "t.npy", "--dtype", "bf16", "--grad",
                                     directory / "g.safetensors", "--tp", "3"});
  EXPECT_EQ(json.at("loss_bits"), bits(want.loss.value));
  EXPECT_EQ(json.at("grad_norm_bits"), bits(want.norm));
  EXPECT_EQ(json.at("valid_rows"), 4);
  EXPECT_TRUE(elements_of<float>(read_text(directory / "g.safetensors")) == want.gradient);
}

// A mapping counts against the limit of the address space, so one of the whole file, which has holes for zeros, would
// fail.
TEST(LossCommand, AFileLargerThanTheAddressSpaceComesInRanges) {
  if (tpce::testing::kAddressSanitizer) GTEST_SKIP() << "AddressSanitizer itself needs more addresses than any limit";
  const TemporaryDirectory directory;
  constexpr std::int64_t kRows = 3000, kColumns = 32768;
  constexpr std::int64_t kFileKiB = kRows * kColumns * 4 / 1024;
  constexpr std::int64_t kLimitKiB = 320 * 1024;
  static_assert(kLimitKiB < kFileKiB);
  const std::string header = npy("<f4", "(3000, 32768)", "");
  write_text(directory / "z.npy", header);
  std::filesystem::resize_file(directory / "z.npy", header.size() + kRows * kColumns * sizeof(float));
  std::vector<std::int64_t> labels(kRows);
  for (std::int64_t i = 0; i < kRows; ++i) labels[static_cast<std::size_t>(i)] = i * 11 % kColumns;
  write_text(directory / "t.npy", npy("<i8", "(3000,)", bytes_of(labels)));
  const Sample made = sample(1, kColumns);
  const std::vector<std::int64_t> filled{0, 127, 128, 1501, kRows - 1};
  {
    std::fstream file(directory / "z.npy", std::ios::in | std::ios::out | std::ios::binary);
    for (const std::int64_t row : filled) {
      file.seekp(static_cast<std::streamoff>(header.size()) + row * kColumns * 4);
      file << bytes_of(made.logits);
    }
    file.close();
    ASSERT_TRUE(file);
  }
  const auto command = [&](const std::string& words) {
    return "ulimit -v " + std::to_string(kLimitKiB) + " && " TPCE_PROGRAM " " + words + " --threads 2 >" +
           (directory / "out");
  };
  const std::string inputs = (directory / "z.npy") + " --labels " + (directory / "t.npy");
  ASSERT_EQ(std::system(command("loss " + inputs + " --json --per-row " + (directory / "p.npy")).c_str()), 0);
  const Json json = Json::parse(read_text(directory / "out"), nullptr, false);
  const std::vector<float> nll = elements_of<float>(read_text(directory / "p.npy"));
  ASSERT_EQ(nll.size(), static_cast<std::size_t>(kRows));
  double sum = 0.0;
  for (std::int64_t i = 0; i < kRows; ++i) {
    const std::int64_t label = labels[static_cast<std::size_t>(i)];
    float want = std::log(static_cast<float>(kColumns));
    if (std::count(filled.begin(), filled.end(), i) > 0) want = expected(made.logits, {label}, {}).loss.value;
    ASSERT_EQ(nll[static_cast<std::size_t>(i)], want) << i;
    sum += static_cast<double>(want);
  }
  EXPECT_NEAR(json.at("loss_fp64").get<double>(), sum / kRows, 1e-6);
  EXPECT_EQ(json.at("valid_rows"), kRows);
  // With the SHA-256 of the whole file.
  ASSERT_EQ(std::system(command("golden make " + inputs + " --out " + (directory / "g.txt")).c_str()), 0);
  EXPECT_EQ(loss(directory, {directory / "z.npy", "--labels", directory / "t.npy"}), json);
}

// StableMax is another loss, so no row of it is called collapsed, or not.
TEST(LossCommand, DoesNotCompareAnotherLossWithTheCanonicalOne) {
  const TemporaryDirectory directory;
  write_text(directory / "z.safetensors", capture({1, 1, 1, 2}, {0, 1}));
  const std::string file = directory / "z.safetensors";
  const Json json = loss(directory, {file, "--method", "stablemax"});
  EXPECT_TRUE(json.at("collapsed_rows").is_null());
  // s = 2, 2 and 2, 3: -log(1/2) and -log(3/5).
  EXPECT_NEAR(json.at("loss").get<double>(), (std::log(2.0) + std::log(5.0 / 3)) / 2, 1e-7);
  const Output text = run(directory, {"loss", file, "--method", "stablemax"});
  EXPECT_NE(text.out.find("another loss"), std::string::npos) << text.out;
}

// At margin 20 the usual form loses the loss and the target's gradient; z = [20, 0] has that margin exactly.
TEST(LossCommand, CountsCollapsedRows) {
  const TemporaryDirectory directory;
  write_text(directory / "z.safetensors", capture({20, 0, 1, 2}, {0, 0}));
  const std::string file = directory / "z.safetensors";
  const Json legacy = loss(directory, {file, "--method", "log_softmax", "--per-row", directory / "legacy.npy"});
  EXPECT_EQ(legacy.at("collapsed_rows"), 1);
  EXPECT_EQ(legacy.at("backend"), "simulator");
  EXPECT_EQ(elements_of<float>(read_text(directory / "legacy.npy"))[0], 0.0f);
  const Json canonical = loss(directory, {file, "--per-row", directory / "canonical.npy"});
  EXPECT_EQ(canonical.at("collapsed_rows"), 0);
  const Json certified = loss(directory, {file, "--backend", "reference", "--per-row", directory / "certified.npy"});
  EXPECT_EQ(certified.at("method"), "certified");
  EXPECT_EQ(certified.at("collapsed_rows"), 0);
  EXPECT_EQ(elements_of<float>(read_text(directory / "canonical.npy"))[0], 2.0611537e-9f);
  EXPECT_EQ(elements_of<float>(read_text(directory / "certified.npy"))[0], 2.0611537e-9f);
}

TEST(LossCommand, EveryMethodIsNearTheCertifiedValue) {
  const TemporaryDirectory directory;
  const Sample made = sample(4, 33);
  write_text(directory / "z.safetensors", capture(made.logits, made.labels));
  const std::string file = directory / "z.safetensors";
  const double truth = loss(directory, {file, "--method", "certified"}).at("loss_fp64");
  const double norm = loss(directory, {file, "--method", "certified"}).at("grad_norm");
  const Json info = Json::parse(run(directory, {"info", "--json"}).out);
  ASSERT_GE(info.at("methods").size(), 9u);
  std::size_t others = 0;
  for (const auto& method : info.at("methods")) {
    others += method.at("softmax").get<bool>() ? 0 : 1;
    const Json json = loss(directory, {file, "--method", method.at("name"), "--grad", directory / "g.npy"});
    // Losses of a few units in fp32 arithmetic, each of some forty roundings: within 40 ulp of 16.
    EXPECT_EQ(json.at("backend"), method.at("backends").at(0));
    if (!method.at("softmax").get<bool>()) continue;
    EXPECT_NEAR(json.at("loss").get<double>(), truth, 40 * 0x1p-20) << method;
    // Megatron's fused form hands out gradients in bf16.
    const double rounding = method.at("name") == "megatron_fused" ? 0x1p-8 : 0.0;
    EXPECT_NEAR(json.at("grad_norm").get<double>(), norm, 40 * 0x1p-24 + rounding * norm) << method;
  }
  EXPECT_EQ(others, 1u);  // stablemax
}

TEST(LossCommand, NoneReducesNothing) {
  const TemporaryDirectory directory;
  const Sample made = sample(3, 9);
  write_text(directory / "z.safetensors", capture(made.logits, made.labels));
  Options options;
  options.reduction = Reduction::kNone;
  const Expected want = expected(made.logits, made.labels, options);
  const Json json = loss(directory, {directory / "z.safetensors", "--reduction", "none", "--per-row",
                                     directory / "p.safetensors", "--grad", directory / "g.npy"});
  EXPECT_TRUE(json.at("loss").is_null());
  EXPECT_EQ(json.at("loss_bits"), "0x7fc00000");
  EXPECT_EQ(elements_of<float>(read_text(directory / "p.safetensors")), want.nll);
  EXPECT_EQ(elements_of<float>(read_text(directory / "g.npy")), want.gradient);
}

TEST(LossCommand, NothingValidIsNanOrZero) {
  const TemporaryDirectory directory;
  write_text(directory / "z.safetensors", capture({1, 2, 3, 4}, {7, 7}));
  const std::vector<std::string> ignored{directory / "z.safetensors", "--ignore-index", "7"};
  const Json json = loss(directory, ignored);
  EXPECT_TRUE(json.at("loss").is_null());
  EXPECT_EQ(json.at("loss_bits"), "0x7fc00000");
  EXPECT_EQ(json.at("valid_rows"), 0);
  EXPECT_EQ(json.at("grad_norm"), 0.0);
  std::vector<std::string> zero = ignored;
  zero.insert(zero.end(), {"--empty-mean", "zero"});
  EXPECT_EQ(loss(directory, zero).at("loss"), 0.0);
}

TEST(LossCommand, NegativeIgnoreIndexIsAValue) {
  const TemporaryDirectory directory;
  write_text(directory / "z.safetensors", capture({1, 2, 3, 4}, {-1, 1}));
  EXPECT_EQ(loss(directory, {directory / "z.safetensors", "--ignore-index", "-1"}).at("valid_rows"), 1);
}

TEST(LossCommand, ARowThatIsNotFiniteIsNanOrAnError) {
  const TemporaryDirectory directory;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  write_text(directory / "z.safetensors", capture({1, 2, nan, 4}, {0, 1}));
  EXPECT_TRUE(loss(directory, {directory / "z.safetensors"}).at("loss").is_null());
  const Output refused = run(directory, {"loss", directory / "z.safetensors", "--non-finite", "error"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("row 1"), std::string::npos) << refused.err;
}

TEST(LossCommand, PaddingCarriesNoMass) {
  const TemporaryDirectory directory;
  write_text(directory / "padded.safetensors", capture({1, 2, 900, 3, 4, 900}, {0, 1}));
  write_text(directory / "plain.safetensors", capture({1, 2, 3, 4}, {0, 1}));
  const Json padded =
      loss(directory, {directory / "padded.safetensors", "--vocab", "2", "--grad", directory / "g.npy"});
  EXPECT_EQ(padded.at("loss_bits"), loss(directory, {directory / "plain.safetensors"}).at("loss_bits"));
  EXPECT_EQ(padded.at("vocab"), 2);
  EXPECT_EQ(elements_of<float>(read_text(directory / "g.npy"))[2], 0.0f);
}

TEST(LossCommand, GradientTypes) {
  const TemporaryDirectory directory;
  const Sample made = sample(2, 5);
  write_text(directory / "z.safetensors", capture(made.logits, made.labels));
  const Expected want = expected(made.logits, made.labels, {});
  const std::string file = directory / "z.safetensors";
  loss(directory, {file, "--grad", directory / "g.npy", "--grad-dtype", "bf16"});
  EXPECT_NE(read_text(directory / "g.npy").find("'<V2'"), std::string::npos);
  const auto bf16 = elements_of<BFloat16>(read_text(directory / "g.npy"));
  loss(directory, {file, "--grad", directory / "g.safetensors", "--grad-dtype", "bf16"});
  EXPECT_NE(read_text(directory / "g.safetensors").find("BF16"), std::string::npos);
  EXPECT_EQ(data_of(read_text(directory / "g.safetensors")), data_of(read_text(directory / "g.npy")));
  loss(directory, {file, "--grad", directory / "g.npy", "--grad-dtype", "fp16"});
  const auto fp16 = elements_of<Float16>(read_text(directory / "g.npy"));
  ASSERT_EQ(bf16.size(), want.gradient.size());
  ASSERT_EQ(fp16.size(), want.gradient.size());
  for (std::size_t i = 0; i < want.gradient.size(); ++i) {
    BFloat16 b;
    Float16 h;
    round_to(want.gradient[i], &b);
    round_to(want.gradient[i], &h);
    EXPECT_EQ(bf16[i].bits, b.bits);
    EXPECT_EQ(fp16[i].bits, h.bits);
  }
}

TEST(LossCommand, WideLogitsNeedACastOrAReference) {
  const TemporaryDirectory directory;
  write_text(directory / "z.npy", npy("<f8", "(1, 2)", bytes_of(std::vector<double>{20.0000000001, 0})));
  write_text(directory / "t.npy", npy("<i4", "(1,)", bytes_of(std::vector<std::int32_t>{0})));
  const std::vector<std::string> input{directory / "z.npy", "--labels", directory / "t.npy"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), input.begin(), input.end());
    return more;
  };
  std::vector<std::string> plain = with({});
  plain.insert(plain.begin(), "loss");
  const Output refused = run(directory, plain);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("fp64"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("--cast fp32"), std::string::npos) << refused.err;
  std::vector<std::string> usual = with({"--method", "log_softmax"});
  usual.insert(usual.begin(), "loss");
  const Output named = run(directory, usual);
  EXPECT_EQ(named.exit_code, 2);
  EXPECT_EQ(named.err,
            "tpce: error: " + (directory / "z.npy") +
                ": logits of shard 0: dtype is fp64, which method log_softmax does not take, expected fp32, bf16 or "
                "fp16 (--cast fp32, or --method certified, multiprecision or fp64)\n");
  EXPECT_EQ(loss(directory, with({"--cast", "fp32"})).at("loss").get<float>(), 2.0611537e-9f);
  // Two functions of the C library, each within an ulp, and a factor of 1 for the error that log1p carries on.
  const double truth = std::log1p(std::exp(-20.0000000001));
  const double certified = loss(directory, with({"--method", "certified"})).at("loss_fp64");
  EXPECT_NEAR(certified, truth, 3 * 0x1p-52 * truth);
}

TEST(LossCommand, TextNamesWhatWasComputed) {
  const TemporaryDirectory directory;
  write_text(directory / "z.safetensors", capture({20, 0}, {0}));
  const Output output = run(directory, {"loss", directory / "z.safetensors"});
  EXPECT_EQ(output.exit_code, 0);
  EXPECT_EQ(output.err, "");  // no progress line in a pipe
  for (const char* word : {"0x310da433", "canonical", "tp 1", "1 x 2"}) {
    EXPECT_NE(output.out.find(word), std::string::npos) << word << "\n" << output.out;
  }
}

}  // namespace
}  // namespace tpce::test
