// tpce parity. That it exits with 1 where a backend has a wrong bit is parity_test's, which can make one wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/tools/input_files.h"
#include "tests/tools/run_program.h"

namespace tpce::test {
namespace {

using Json = nlohmann::json;

// Rows of 40 classes with labels that lead by more and more; from row 5 on a usual loss is 0.
std::string collapsing_capture() {
  std::vector<float> logits;
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < 8; ++i) {
    for (std::int64_t j = 0; j < 40; ++j) logits.push_back(static_cast<float>((i * 31 + j * 17) % 23) / 16.0f);
    labels.push_back(i * 5);
    logits[static_cast<std::size_t>(i * 40 + labels.back())] = static_cast<float>(5 * i);
  }
  return capture(logits, labels);
}

Json parity(const TemporaryDirectory& directory, std::vector<std::string> arguments, int exit_code = 0) {
  arguments.insert(arguments.begin(), "parity");
  arguments.push_back("--json");
  const Output output = run(directory, arguments);
  EXPECT_EQ(output.exit_code, exit_code) << output.err;
  EXPECT_EQ(output.err, "");
  return Json::parse(output.out, nullptr, false);
}

TEST(ParityCommand, BackendsAreEqualForEveryTp) {
  const TemporaryDirectory directory;
  write_text(directory / "z.safetensors", collapsing_capture());
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    const Json json = parity(directory, {directory / "z.safetensors", directory / "z.safetensors", "--a", "simd", "--b",
                                         "scalar", "--tp", "1,3,40", "--grad-dtype", dtype});
    EXPECT_EQ(json.at("failed"), false);
    EXPECT_EQ(json.at("gradient_dtype"), dtype);
    ASSERT_EQ(json.at("files").size(), 2u);
    EXPECT_EQ(json.at("files")[1].at("rows"), 8);
    ASSERT_EQ(json.at("comparisons").size(), 3u);
    std::vector<int> tps;
    for (const Json& one : json.at("comparisons")) {
      tps.push_back(one.at("tp"));
      EXPECT_EQ(one.at("a"), "simd");
      EXPECT_EQ(one.at("b"), "scalar");
      EXPECT_EQ(one.at("equal"), true);
      EXPECT_EQ(one.at("required"), true);
      EXPECT_EQ(one.at("max_ulp"), 0);
      EXPECT_TRUE(one.at("worst_row").is_null());
      EXPECT_EQ(one.at("collapsed_rows_a"), 0);
      EXPECT_EQ(one.at("collapsed_rows_b"), 0);
      for (const auto& [quantity, bits] : one.at("differing_bits").items()) EXPECT_EQ(bits, 0) << quantity;
      EXPECT_EQ(one.at("quantities").at("gradient").at("values"), 2 * 8 * 40);
      EXPECT_EQ(one.at("quantities").at("gradient").at("dtype"), dtype);
      EXPECT_EQ(one.at("quantities").at("loss").at("values"), 2 * 8);
      EXPECT_EQ(one.at("quantities").at("reduced_loss").at("values"), 2);
    }
    EXPECT_EQ(tps, (std::vector<int>{1, 3, 40}));
  }
}

TEST(ParityCommand, AMethodIsShownWithItsWorstRow) {
  const TemporaryDirectory directory;
  write_text(directory / "z.safetensors", collapsing_capture());
  const std::vector<std::string> command{directory / "z.safetensors", "--a", "log_softmax", "--b", "certified,scalar"};
  const Json json = parity(directory, command);
  EXPECT_EQ(json.at("failed"), false);
  const Json one = json.at("comparisons")[0];
  EXPECT_EQ(one.at("b"), "certified");
  EXPECT_EQ(one.at("equal"), false);
  EXPECT_EQ(one.at("required"), false);
  EXPECT_EQ(one.at("collapsed_rows_a"), 3);
  EXPECT_EQ(one.at("collapsed_rows_b"), 0);
  EXPECT_TRUE(one.at("differing_bits").at("lse").is_null());
  EXPECT_GT(one.at("differing_bits").at("loss"), 0);
  const Json worst = one.at("quantities").at("loss").at("worst_row");
  EXPECT_EQ(worst.at("file"), directory / "z.safetensors");
  EXPECT_EQ(worst.at("row"), 5);  // of the rows that are 0, the one whose loss is largest
  EXPECT_EQ(worst.at("label"), 25);
  EXPECT_GT(worst.at("margin"), 16.6);
  EXPECT_EQ(worst.at("a"), 0.0);
  std::int64_t values = 0;
  for (const auto& [bin, count] : one.at("quantities").at("gradient").at("histogram").items()) {
    values += count.get<std::int64_t>();
  }
  EXPECT_EQ(values, 8 * 40);

  std::vector<std::string> required = command;
  required.push_back("--require-equal");
  EXPECT_EQ(parity(directory, required, 1).at("failed"), true);
  required.insert(required.begin(), "parity");
  const Output text = run(directory, required);
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_NE(text.out.find("log_softmax against certified, tp 1: NOT EQUAL, as is required"), std::string::npos)
      << text.out;
}

TEST(ParityCommand, ProductionKernelsCollapseAsTheMethodsOfTheirNames) {
  const TemporaryDirectory directory;
  write_text(directory / "z.safetensors", collapsing_capture());
  for (const std::string method : {"log_softmax", "softplus_recompute"}) {
    const std::string name = "gpu_emulated/" + method;
    const bool is_legacy = method == "log_softmax";
    const Json json = parity(directory, {directory / "z.safetensors", "--a", name, "--b", "certified," + method, "--tp",
                                         "1,3", "--grad-dtype", "bf16"});
    EXPECT_EQ(json.at("failed"), false);
    ASSERT_EQ(json.at("comparisons").size(), 4u);
    for (const Json& one : json.at("comparisons")) {
      SCOPED_TRACE(one.dump());
      const bool to_truth = one.at("b") == "certified";
      // Of one row more the other classes of each of three ranks are too little to be seen beside the target.
      const int collapsed = !is_legacy ? 0 : one.at("tp") == 1 ? 3 : 4;
      EXPECT_EQ(one.at("a"), name);
      EXPECT_EQ(one.at("required"), false);
      EXPECT_EQ(one.at("collapsed_rows_a"), collapsed);
      EXPECT_EQ(one.at("collapsed_rows_b"), to_truth ? 0 : collapsed);
      EXPECT_TRUE(one.at("differing_bits").at("lse").is_null());
      const Json& gradient = one.at("quantities").at("gradient");
      EXPECT_EQ(gradient.at("dtype"), "bf16");
      // bf16 hides all but a rounding, unless the gradient of a target is 0.
      EXPECT_EQ(gradient.at("max_ulp").get<double>() > 1.0, is_legacy && to_truth);
      EXPECT_EQ(gradient.at("unordered"), 0);
    }
  }
}

TEST(ParityCommand, WithoutNamesTheFastestIsHeldAgainstTheOthers) {
  const TemporaryDirectory directory;
  write_text(directory / "z.safetensors", collapsing_capture());
  const Json json = parity(directory, {directory / "z.safetensors"});
  std::vector<std::string> others;
  for (const Json& one : json.at("comparisons")) others.push_back(one.at("b"));
  EXPECT_EQ(others.back(), "certified");
  EXPECT_EQ(std::count(others.begin(), others.end(), json.at("comparisons")[0].at("a")), 0);
  for (const Json& one : json.at("comparisons")) EXPECT_EQ(one.at("required"), one.at("b") != "certified");
}

TEST(ParityCommand, WritesAReportThatNeedsNothingElse) {
  const TemporaryDirectory directory;
  write_text(directory / "z.safetensors", collapsing_capture());
  const std::vector<std::string> command{"parity",   directory / "z.safetensors", "--a",  "simd",
                                         "--b",      "scalar,log_softmax",        "--tp", "1,2",
                                         "--report", directory / "new/report"};
  const Output output = run(directory, command);
  ASSERT_EQ(output.exit_code, 0) << output.err;
  EXPECT_NE(output.out.find("report.html"), std::string::npos);
  const std::string html = read_text(directory / "new/report/report.html");
  EXPECT_NE(html.find("<title>Cross entropy of one implementation against another</title>"), std::string::npos);
  std::int64_t pictures = 0;
  for (const std::string attribute : {"src=\"", "href=\""}) {
    for (std::size_t at = html.find(attribute); at != std::string::npos; at = html.find(attribute, at + 1)) {
      const std::string to = html.substr(at + attribute.size(), 40);
      EXPECT_TRUE(to.starts_with("data:") || to.starts_with("#")) << to;
      pictures += to.starts_with("data:image/svg+xml") ? 1 : 0;
    }
  }
  EXPECT_EQ(pictures, 4);  // one a comparison
  EXPECT_NE(html.find("name=\"viewport\""), std::string::npos);
  const Json json = Json::parse(read_text(directory / "new/report/parity.json"));
  EXPECT_EQ(json.at("comparisons").size(), 4u);
  const std::string csv = read_text(directory / "new/report/data.csv");
  EXPECT_NE(csv.find("log_softmax,2,gradient,same bits,"), std::string::npos);
  std::string version = run(directory, {"--version"}).out;
  version.pop_back();  // its newline
  EXPECT_NE(csv.find(", " + version), std::string::npos) << csv.substr(0, 200);
  EXPECT_NE(html.find(" of " + version), std::string::npos);
  EXPECT_EQ(read_text(directory / "new/report/histogram-0.svg").rfind("<?xml", 0), 0u);
  EXPECT_EQ(run(directory, command).exit_code, 0);  // over what it left
}

TEST(ParityCommand, OddShapes) {
  const TemporaryDirectory directory;
  write_text(directory / "one.safetensors", capture({3, -2}, {0, 0}));
  write_text(directory / "ignored.safetensors", capture({3, -2, 1, 4}, {-100, -100}));
  for (const char* name : {"one.safetensors", "ignored.safetensors"}) {
    SCOPED_TRACE(name);
    const Json json = parity(directory, {directory / name, "--a", "simd", "--b", "scalar,certified,log_softmax"});
    EXPECT_EQ(json.at("failed"), false);
    for (const Json& one : json.at("comparisons")) {
      EXPECT_EQ(one.at("quantities").at("loss").at("max_ulp"), 0);  // log_softmax has a -0
      EXPECT_EQ(one.at("collapsed_rows_b"), 0);
    }
  }
}

TEST(ParityCommand, LogitsInFp64) {
  const TemporaryDirectory directory;
  write_text(directory / "z.npy", npy("<f8", "(2, 3)", bytes_of(std::vector<double>{1, 2, 3, 4.1, 5, 6})));
  write_text(directory / "t.npy", npy("<i8", "(2,)", bytes_of(std::vector<std::int64_t>{0, 2})));
  const std::vector<std::string> file{directory / "z.npy", "--labels", directory / "t.npy"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), file.begin(), file.end());
    return more;
  };
  const Json json = parity(directory, with({"--a", "fp64", "--b", "certified"}));
  EXPECT_TRUE(json.at("comparisons")[0].at("collapsed_rows_a").is_null());
  EXPECT_EQ(json.at("files")[0].at("dtype"), "fp64");
  EXPECT_EQ(parity(directory, with({"--a", "simd", "--b", "scalar", "--cast", "fp32"})).at("failed"), false);
  std::vector<std::string> refused = with({"--a", "simd", "--b", "scalar"});
  refused.insert(refused.begin(), "parity");
  const Output output = run(directory, refused);
  EXPECT_EQ(output.exit_code, 2);
  EXPECT_NE(output.err.find("z.npy: "), std::string::npos) << output.err;
  EXPECT_NE(output.err.find("--cast fp32"), std::string::npos) << output.err;
  for (const std::string method : {"liger", "gpu_emulated/log_softmax"}) {
    std::vector<std::string> named = with({"--a", method, "--b", "certified"});
    named.insert(named.begin(), "parity");
    EXPECT_NE(run(directory, named).err.find("fp64, which method " + method + " does not take, expected fp32, bf16"),
              std::string::npos)
        << method;
  }
}

TEST(ParityCommand, RefusesAndLeavesNothing) {
  const TemporaryDirectory directory;
  write_text(directory / "z.safetensors", capture({1, 2, 3, 4, 5, 6}, {0, 1}));
  write_text(directory / "late.safetensors", capture({1, 2, 3, 4, 5, 6}, {0, 3}));
  const std::string file = directory / "z.safetensors";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{file, "--a", "cuda"}, "a: got 'cuda', expected one of scalar, simd, gpu_emulated, "},
      {{file, "--a", "canonical"}, "a: got 'canonical'"},
      {{file, "--b", ""}, "b: got ''"},
      {{file, "--b", "scalar,,simd"}, "b: got ''"},
      {{file, "--b", "scalar,x\ny"}, "b: got"},
      {{file, "--b", "scalar,scalar"}, "b: 'scalar' stands twice"},
      {{file, "--tp", "0"}, "error: tp: got 0, expected 1..1048576"},
      {{file, "--tp", "1,2,"}, "tp: got '1,2,'"},
      {{file, "--tp", "two"}, "tp: got 'two', expected whole numbers"},
      {{file, "--tp", "9999999999999999999999"}, "tp"},
      {{file, "--a", "cross_entropy", "--tp", "2"}, "tp: got 2"},
      {{file, "--grad-dtype", "fp64"}, "grad-dtype: got fp64"},
      {{file, "--vocab", "4"}, "vocab: got 4"},
      {{file, "--threads", "-1"}, "threads: got -1"},
      {{file, directory / "nothing.safetensors"}, "nothing.safetensors"},
      {{file, directory / "late.safetensors"}, "late.safetensors: labels: row 1 has label 3"},
      {{}, "FILE"},
  };
  const std::vector<std::string> before = directory.names();
  for (const auto& [arguments, part] : cases) {
    SCOPED_TRACE(::testing::PrintToString(arguments));
    std::vector<std::string> command{"parity"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    command.insert(command.end(), {"--report", directory / "a/b/report"});
    const Output output = run(directory, command);
    EXPECT_EQ(output.exit_code, 2);
    EXPECT_EQ(output.out, "");
    EXPECT_EQ(output.err.rfind("tpce: error: ", 0), 0u) << output.err;
    EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << output.err;
    EXPECT_NE(output.err.find(part), std::string::npos) << output.err;
    EXPECT_EQ(directory.names(), before);
  }
  EXPECT_EQ(run(directory, {"parity", file, "--report", file}).exit_code, 2);
  std::filesystem::create_directory(directory / "study");
  write_text(directory / "study/page.md", "# A study\n\nOf something.\n");
  const Output other = run(directory, {"parity", file, "--report", directory / "study"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(other.err.find("holds 'page.md', which no report wrote"), std::string::npos) << other.err;
  EXPECT_EQ(read_text(directory / "study/page.md"), "# A study\n\nOf something.\n");

  const auto report = [&](const char* b) {
    return run(directory, {"parity", file, "--a", "scalar", "--b", b, "--report", directory / "again"}).exit_code;
  };
  EXPECT_EQ(report("fp64,log_softmax"), 0);
  EXPECT_TRUE(std::filesystem::exists(directory / "again/histogram-1.svg"));
  EXPECT_EQ(report("fp64"), 0);
  EXPECT_TRUE(std::filesystem::exists(directory / "again/histogram-0.svg"));
  EXPECT_FALSE(std::filesystem::exists(directory / "again/histogram-1.svg"));
}

}  // namespace
}  // namespace tpce::test
