// Wrong input of every kind: exit code 2, one line on stderr that names what is wrong, and nothing written.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "tests/tools/input_files.h"
#include "tests/tools/run_program.h"

namespace tpce::test {
namespace {

using Bytes = std::string;
using Words = std::vector<std::string>;

// The line of stderr, after checking that the program refused as it should.
std::string refusal(const TemporaryDirectory& directory, const Words& arguments) {
  const std::vector<std::string> before = directory.names();
  const Output output = run(directory, arguments);
  EXPECT_EQ(output.exit_code, 2) << output.err;
  EXPECT_EQ(output.out, "");
  EXPECT_EQ(output.err.rfind("tpce: error: ", 0), 0u) << output.err;
  EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << output.err;
  EXPECT_EQ(output.err.back(), '\n');
  EXPECT_EQ(directory.names(), before);
  return output.err;
}

::testing::AssertionResult has(const std::string& line, const std::string& part) {
  if (line.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << part << "' is not in: " << line;
}

struct Malformed {
  std::string name;  // of the file
  Bytes content;
  Words must_contain;  // in the message, beside the name
};

const std::string kLogits = bytes_of(std::vector<float>{1, 2, 3, 4, 5, 6});
const std::string kLabels = bytes_of(std::vector<std::int64_t>{0, 1});
const std::string kHeader = R"({"logits":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                            R"("labels":{"dtype":"I64","shape":[2],"data_offsets":[24,40]}})";

std::vector<Malformed> malformed_files() {
  const Bytes good = capture({1, 2, 3, 4, 5, 6}, {0, 1});
  const Bytes good_npy = npy("<f4", "(2, 3)", kLogits);
  const auto labels = [](std::int64_t a, std::int64_t b) { return capture({1, 2, 3, 4, 5, 6}, {a, b}); };
  const auto offsets = [](const std::string& text) {
    return safetensors(R"({"logits":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                       R"("labels":{"dtype":"I64","shape":[2],"data_offsets":)" +
                           text + "}}",
                       kLogits + kLabels);
  };
  const auto shapes = [](const std::string& shape, const std::string& rows, std::size_t bytes, std::size_t end) {
    return safetensors(R"({"logits":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[0,)" +
                           std::to_string(bytes) + R"(]},"labels":{"dtype":"I64","shape":)" + rows +
                           R"(,"data_offsets":[)" + std::to_string(bytes) + "," + std::to_string(end) + "]}}",
                       Bytes(end, '\0'));
  };
  return {
      {"empty.safetensors", "", {}},
      {"empty.npy", "", {}},
      {"text.npy", "1 2 3\n", {}},
      {"text.txt", "1 2 3\n", {}},
      {"magic.npy", "\x93NUMPX" + good_npy.substr(6), {}},
      {"version.npy", good_npy.substr(0, 6) + "\x09" + good_npy.substr(7), {}},
      {"cut_header.npy", good_npy.substr(0, 40), {}},
      {"cut_data.npy", good_npy.substr(0, good_npy.size() - 1), {}},
      {"longer.npy", good_npy + "x", {}},
      {"big_endian.npy", npy(">f4", "(2, 3)", kLogits), {">f4"}},
      {"fortran.npy", npy("<f4", "(2, 3)", kLogits, "True"), {"ortran"}},
      {"complex.npy", npy("<c8", "(1, 3)", kLogits), {"<c8"}},
      {"vector.npy", npy("<f4", "(6,)", kLogits), {}},
      {"no_classes.npy", npy("<f4", "(2, 0)", ""), {}},
      {"no_rows.npy", npy("<f4", "(0, 3)", ""), {}},
      {"overflow.npy", npy("<f4", "(4294967296, 4294967296)", kLogits), {}},
      {"short.safetensors", good.substr(0, 5), {}},
      {"cut_header.safetensors", good.substr(0, 30), {}},
      {"cut_data.safetensors", good.substr(0, good.size() - 1), {}},
      {"longer.safetensors", good + "x", {}},
      {"long_header.safetensors", Bytes("\xff\xff\xff\x00\x00\x00\x00\x00", 8) + "{}", {}},
      {"huge_header.safetensors", Bytes("\xff\xff\xff\xff\xff\xff\xff\x7f", 8) + "{}", {}},
      {"not_json.safetensors", safetensors("{\"logits\"", kLogits), {}},
      {"overlap.safetensors", offsets("[16,32]"), {}},
      {"hole.safetensors", offsets("[32,48]"), {}},
      {"backwards.safetensors", offsets("[40,24]"), {}},
      {"no_logits.safetensors", safetensors("{}", ""), {"logits"}},
      {"unknown_type.safetensors",
       safetensors(R"({"logits":{"dtype":"F8_E4M3","shape":[24],"data_offsets":[0,24]}})", kLogits),
       {"F8_E4M3"}},
      {"label_is_V.safetensors", labels(0, 3), {"row 1", "3"}},
      {"label_negative.safetensors", labels(-7, 0), {"row 0", "-7"}},
      {"V_is_0.safetensors", shapes("[2,0]", "[2]", 0, 16), {}},
      {"T_is_0.safetensors", shapes("[0,3]", "[0]", 0, 0), {}},
      {"lengths.safetensors", shapes("[2,3]", "[3]", 24, 48), {"2", "3"}},
      {"logits_1d.safetensors", shapes("[6]", "[2]", 24, 40), {}},
  };
}

TEST(ProgramErrors, MalformedFiles) {
  const TemporaryDirectory directory;
  write_text(directory / "labels.npy", npy("<i8", "(2,)", kLabels));
  for (const Malformed& file : malformed_files()) {
    SCOPED_TRACE(file.name);
    write_text(directory / file.name, file.content);
    Words command{"loss", directory / file.name, "--per-row", directory / "p.npy", "--grad", directory / "g.npy"};
    if (file.name.ends_with(".npy")) command.insert(command.end(), {"--labels", directory / "labels.npy"});
    const std::string line = refusal(directory, command);
    EXPECT_TRUE(has(line, file.name));
    for (const std::string& part : file.must_contain) EXPECT_TRUE(has(line, part));
    command[0] = "parity";
    command.resize(2);
    command.insert(command.end(), {"--report", directory / "report"});
    if (file.name.ends_with(".npy")) command.insert(command.end(), {"--labels", directory / "labels.npy"});
    const std::string parity = refusal(directory, command);
    EXPECT_TRUE(has(parity, file.name));
    for (const std::string& part : file.must_contain) EXPECT_TRUE(has(parity, part));
    const std::string golden = refusal(directory, {"golden", "make", directory / file.name, "--out", directory / "g"});
    EXPECT_TRUE(has(golden, file.name));
  }
}

TEST(ProgramErrors, PlacesThatAreNoFiles) {
  const TemporaryDirectory directory;
  write_text(directory / "z.safetensors", capture({1, 2}, {0}));
  EXPECT_TRUE(has(refusal(directory, {"loss", directory / "nothing.npy"}), "nothing.npy"));
  EXPECT_TRUE(has(refusal(directory, {"loss", directory.path()}), "directory"));
  EXPECT_TRUE(has(refusal(directory, {"loss", "/dev/null"}), "/dev/null"));
  const std::string file = directory / "z.safetensors";
  EXPECT_TRUE(has(refusal(directory, {"loss", file, "--labels", directory / "l.npy"}), "l.npy"));
  for (const char* option : {"--per-row", "--grad"}) {
    SCOPED_TRACE(option);
    EXPECT_TRUE(has(refusal(directory, {"loss", file, option, directory / "no/such/g.npy"}), "no/such"));
    EXPECT_TRUE(has(refusal(directory, {"loss", file, option, directory.path()}), directory.path()));
    EXPECT_TRUE(has(refusal(directory, {"loss", file, option, directory / "g.txt"}), "g.txt"));
    EXPECT_TRUE(has(refusal(directory, {"loss", file, option, file}), "input"));
    const std::string labels = directory / "labels.npy";
    write_text(labels, npy("<i8", "(2,)", bytes_of(std::vector<std::int64_t>{0, 0})));
    EXPECT_TRUE(has(refusal(directory, {"loss", file, "--labels", labels, option, labels}), labels + " is an input"));
    std::filesystem::remove(labels);
  }
  EXPECT_TRUE(
      has(refusal(directory, {"loss", file, "--per-row", directory / "same.npy", "--grad", directory / "./same.npy"}),
          "same.npy"));
  // A link to what is not there yet still leads to the other output.
  std::filesystem::create_symlink(directory / "rows.npy", directory / "link.npy");
  EXPECT_TRUE(
      has(refusal(directory, {"loss", file, "--per-row", directory / "rows.npy", "--grad", directory / "link.npy"}),
          "rows.npy"));
}

TEST(ProgramErrors, DirectoryThatCannotBeWritten) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const TemporaryDirectory directory;
  write_text(directory / "z.safetensors", capture({1, 2}, {0}));
  ASSERT_EQ(mkdir((directory / "locked").c_str(), 0500), 0);
  EXPECT_TRUE(has(refusal(directory, {"loss", directory / "z.safetensors", "--grad", directory / "locked/g.npy"}),
                  "locked/g.npy"));
}

TEST(ProgramErrors, ThreadsAndTpHaveTheSameLimitsEverywhere) {
  const TemporaryDirectory directory;
  write_text(directory / "z.safetensors", capture({1, 2, 3, 4, 5, 6}, {0, 1}));
  const std::string file = directory / "z.safetensors", config = TPCE_TEST_DATA "/train/addition.toml";
  const std::string golden = directory / "g.txt";
  ASSERT_EQ(run(directory, {"golden", "make", file, "--out", golden}).exit_code, 0);
  const std::vector<Words> commands{{"loss", file},
                                    {"golden", "make", file, "--out", directory / "other.txt"},
                                    {"golden", "check", golden, file},
                                    {"parity", file},
                                    {"train", config},
                                    {"collapse"},
                                    {"study", "memory", "--out", directory / "study"}};
  for (const Words& command : commands) {
    for (const auto& [option, value, range] :
         {std::tuple("--threads", "-1", "0..1024"), std::tuple("--threads", "1025", "0..1024"),
          std::tuple("--tp", "0", "1..1048576"), std::tuple("--tp", "1048577", "1..1048576")}) {
      if (command[0] == "collapse" && option == std::string("--threads")) continue;
      if (command[0] == "study" && option == std::string("--tp")) continue;
      SCOPED_TRACE(command[0] + " " + option);
      Words words = command;
      words.insert(words.end(), {option, value});
      EXPECT_TRUE(
          has(refusal(directory, words), std::string(option).substr(2) + ": got " + value + ", expected " + range));
    }
  }
}

TEST(ProgramErrors, OptionsThatDoNotFit) {
  const TemporaryDirectory directory;
  write_text(directory / "z.safetensors", capture({1, 2, 3, 4, 5, 6}, {0, 1}));
  const std::string file = directory / "z.safetensors";
  const std::vector<std::pair<Words, std::string>> cases{
      {{"--tp", "0"}, "tp: got 0"},
      {{"--tp", "-1"}, "-1"},
      {{"--tp", "two"}, "two"},
      {{"--tp", "9999999999999999999999"}, "--tp"},
      {{"--shards", "1,1"}, "expected"},
      {{"--shards", "1,3"}, "3"},
      {{"--shards", "1,,2"}, "1,,2"},
      {{"--shards", "1,2,"}, "1,2,"},
      {{"--shards", ""}, "shards"},
      {{"--shards", "1,-1,3"}, "-1"},
      {{"--shards", "1,2", "--tp", "2"}, "--tp"},
      {{"--threads", "-1"}, "threads: got -1, expected 0..1024"},
      {{"--threads", "1025"}, "threads: got 1025, expected 0..1024"},
      {{"--threads", "4294967297"}, "threads: got 4294967297"},
      {{"--threads", "-1", "--backend", "scalar"}, "threads: got -1"},
      {{"--threads", "two"}, "two"},
      {{"--vocab", "4"}, "vocab: got 4"},
      {{"--vocab", "0"}, "vocab: got 0"},
      {{"--vocab", "1"}, "row 1"},
      {{"--dtype", "bf16"}, "bf16"},
      {{"--dtype", "fp8"}, "fp8"},
      {{"--cast", "bf16"}, "bf16"},
      {{"--reduction", "max"}, "max"},
      {{"--empty-mean", "1"}, "empty-mean"},
      {{"--non-finite", "skip"}, "skip"},
      {{"--grad-dtype", "fp64"}, "fp64"},
      {{"--method", "softmax"}, "log_softmax"},
      {{"--backend", "fast"}, "scalar, simd, reference, simulator"},
      {{"--backend", "gpu"}, "missing"},
      {{"--backend", "simulator"}, "log_softmax"},
      {{"--backend", "scalar", "--method", "certified"}, "reference"},
      {{"--backend", "reference", "--method", "canonical"}, "simd or scalar"},
      {{"--method", "cross_entropy", "--tp", "2"}, "tp"},
      {{"--tensor", "other"}, "other"},
      {{"--label-tensor", "logits"}, "logits"},
      {{"--ignore-index", "x"}, "x"},
      {{"--frobnicate"}, "--frobnicate"},
      {{"another_file"}, "another_file"},
  };
  for (const auto& [options, part] : cases) {
    Words command{"loss", file, "--grad", directory / "g.npy"};
    command.insert(command.end(), options.begin(), options.end());
    SCOPED_TRACE(::testing::PrintToString(options));
    EXPECT_TRUE(has(refusal(directory, command), part));
  }
}

TEST(ProgramErrors, TheFileOfTheLabelsIsNamed) {
  const TemporaryDirectory directory;
  const std::string logits = directory / "z.npy", labels = directory / "t.npy";
  write_text(logits, npy("<f4", "(2, 3)", kLogits));
  write_text(labels, npy("<i8", "(2,)", bytes_of(std::vector<std::int64_t>{0, 7})));
  for (const char* method : {"canonical", "certified", "log_softmax"}) {
    SCOPED_TRACE(method);
    const std::string line = refusal(directory, {"loss", logits, "--labels", labels, "--method", method});
    EXPECT_TRUE(has(line, "t.npy: labels: row 1 "));
    EXPECT_EQ(line.find("z.npy"), std::string::npos) << line;
  }
}

TEST(ProgramErrors, ANpyFileHasNoNamesOfTensors) {
  const TemporaryDirectory directory;
  const std::string logits = directory / "z.npy", labels = directory / "t.npy";
  write_text(logits, npy("<f4", "(2, 3)", kLogits));
  write_text(labels, npy("<i8", "(2,)", kLabels));
  EXPECT_EQ(run(directory, {"loss", logits, "--labels", labels}).exit_code, 0);
  const std::string tensor = refusal(directory, {"loss", logits, "--labels", labels, "--tensor", "x"});
  EXPECT_TRUE(has(tensor, "z.npy: got the name of a tensor, 'x'"));
  const std::string label_tensor = refusal(directory, {"loss", logits, "--labels", labels, "--label-tensor", "y"});
  EXPECT_TRUE(has(label_tensor, "t.npy: got the name of a tensor, 'y'"));
}

TEST(ProgramErrors, CommandLines) {
  const TemporaryDirectory directory;
  EXPECT_TRUE(has(refusal(directory, {}), "tpce --help"));
  EXPECT_TRUE(has(refusal(directory, {"lose"}), "lose"));
  EXPECT_TRUE(has(refusal(directory, {"loss"}), "FILE"));
  EXPECT_TRUE(has(refusal(directory, {"--frobnicate"}), "--frobnicate"));
  EXPECT_TRUE(has(refusal(directory, {"golden"}), "tpce golden --help"));
  EXPECT_TRUE(has(refusal(directory, {"golden", "make", "z.npy"}), "--out"));
}

TEST(ProgramErrors, ControlCharactersStayOnOneLine) {
  const TemporaryDirectory directory;
  refusal(directory, {"loss", directory / "a\nb.npy"});
  refusal(directory, {"loss\n"});
  refusal(directory, {"loss", "x", "--method", "a\nb"});
}

TEST(ProgramErrors, StdoutThatIsFull) {
  const TemporaryDirectory directory;
  const std::string command = TPCE_PROGRAM " info --json >/dev/full 2>" + (directory / "err");
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_TRUE(has(read_text(directory / "err"), "stdout"));
}

TEST(Program, HelpHasExamplesForEveryCommand) {
  const TemporaryDirectory directory;
  const std::vector<Words> commands{{},
                                    {"info"},
                                    {"loss"},
                                    {"golden"},
                                    {"golden", "make"},
                                    {"golden", "check"},
                                    {"golden", "update"},
                                    {"golden", "compare"},
                                    {"parity"},
                                    {"collapse"},
                                    {"completion"}};
  for (Words command : commands) {
    SCOPED_TRACE(::testing::PrintToString(command));
    std::string example = "tpce";
    for (const std::string& word : command) example += " " + word;
    command.push_back("--help");
    const Output output = run(directory, command);
    EXPECT_EQ(output.exit_code, 0);
    EXPECT_EQ(output.err, "");
    EXPECT_TRUE(has(output.out, "Examples:\n"));
    EXPECT_TRUE(has(output.out, "  " + example));
  }
  const Output version = run(directory, {"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(version.out.rfind("tpce ", 0), 0u);
}

}  // namespace
}  // namespace tpce::test
