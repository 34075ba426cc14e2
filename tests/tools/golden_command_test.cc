// tpce golden make, check, update and compare.
#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/tools/input_files.h"
#include "tests/tools/run_program.h"

namespace tpce::test {
namespace {

using Words = std::vector<std::string>;

class GoldenCommand : public ::testing::Test {
 protected:
  GoldenCommand() {
    write_text(first, capture({1, 2, 3, 4, 5, 6.5f, -1, 0}, {0, 3}));
    write_text(second, capture({20, 0, 1, 2, 3, 4, 5, 6}, {0, 1}));
  }

  Output golden(Words words) const {
    words.insert(words.begin(), "golden");
    return run(directory, words);
  }
  std::string make(const std::string& out, Words more = {}) const {
    Words words{"make", first, second, "--out", directory / out};
    words.insert(words.end(), more.begin(), more.end());
    const Output output = golden(words);
    EXPECT_EQ(output.exit_code, 0) << output.err;
    return read_text(directory / out);
  }

  TemporaryDirectory directory;
  const std::string first = directory / "first.safetensors";
  const std::string second = directory / "second.safetensors";
};

// Replaces the first `from` of the file's text.
std::string edited(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << "\n" << text;
  return text.replace(at, from.size(), to);
}

::testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << part << "' is not in: " << text;
}

TEST_F(GoldenCommand, MakesTheSameBytesHoweverItIsComputed) {
  const std::string text = make("g.txt");
  EXPECT_TRUE(has(text, "# step loss grad_norm\n1 "));
  EXPECT_TRUE(has(text, "# tpce: method canonical\n"));
  const std::vector<Words> ways{{"--tp", "2"},      {"--tp", "7"},      {"--shards", "1,0,3"}, {"--backend", "scalar"},
                                {"--threads", "1"}, {"--threads", "2"}, {"--threads", "5"}};
  for (const Words& way : ways) EXPECT_EQ(make("other.txt", way), text);
}

TEST_F(GoldenCommand, ChecksAndUpdatesOnAnyThreads) {
  const std::string text = make("g.txt");
  for (const char* threads : {"0", "1", "2", "5"}) {
    const Output check = golden({"check", directory / "g.txt", first, second, "--threads", threads});
    EXPECT_EQ(check.exit_code, 0) << check.out << check.err;
    write_text(directory / "old.txt", edited(text, "\n1 ", "\n1 9"));
    const Output update = golden({"update", directory / "old.txt", first, second, "--threads", threads});
    EXPECT_EQ(update.exit_code, 0) << update.err;
    EXPECT_EQ(read_text(directory / "old.txt"), text);
  }
}

TEST_F(GoldenCommand, MakesWhatLossPrints) {
  const std::string text = make("g.txt", {"--reduction", "sum"});
  const auto json = nlohmann::json::parse(run(directory, {"loss", first, "--reduction", "sum", "--json"}).out);
  EXPECT_TRUE(has(text, "# tpce: bits 1 loss=" + json.at("loss_bits").get<std::string>() +
                            " grad_norm=" + json.at("grad_norm_bits").get<std::string>() + "\n"));
}

TEST_F(GoldenCommand, RecordsWhatTheBitsDependOn) {
  const std::string text = make("g.txt", {"--method", "log_softmax", "--tp", "2"});
  EXPECT_TRUE(has(text, "# tpce: method log_softmax tp=2 order="));
  EXPECT_EQ(golden({"check", directory / "g.txt", first, second}).exit_code, 0);
  make("s.txt", {"--method", "log_softmax", "--shards", "1,0,3"});
  EXPECT_TRUE(has(read_text(directory / "s.txt"), "shards=1,0,3"));
  EXPECT_EQ(golden({"check", directory / "s.txt", first, second}).exit_code, 0);
}

TEST_F(GoldenCommand, RecordsAndReusesOptionsThatChangeTheLoss) {
  const auto words = [&](const char* command, Words more) {
    more.insert(more.begin(), {command, directory / "g.txt", first, second});
    return more;
  };
  const std::vector<std::pair<Words, std::string>> ways{
      {{"--reduction", "sum"}, "reduction=sum"},
      {{"--ignore-index", "3"}, "ignore_index=3"},
      {{"--vocab", "4"}, "vocab=4"},
      {{"--empty-mean", "zero", "--ignore-index", "0"}, "ignore_index=0 empty_mean=zero"},
      {{"--cast", "fp32"}, "cast=fp32"},
      {{"--reduction", "sum", "--method", "log_softmax", "--tp", "2"}, "reduction=sum"},
  };
  for (const auto& [options, recorded] : ways) {
    SCOPED_TRACE(recorded);
    const std::string text = make("g.txt", options);
    EXPECT_TRUE(has(text.substr(0, text.find("\n#", text.find("method ")) + 1), " " + recorded + "\n"));
    const Output check = golden(words("check", {}));
    EXPECT_EQ(check.exit_code, 0);
    EXPECT_EQ(check.out, directory / "g.txt: 2 steps are equal\n");
    EXPECT_TRUE(has(golden(words("update", {})).out, "nothing changed"));
  }
  // The default of an option is in no file.
  EXPECT_EQ(make("g.txt", {"--reduction", "mean", "--ignore-index", "-100", "--empty-mean", "nan"}), make("plain.txt"));

  // The command line goes before the file, and that is said.
  const std::string sum = make("g.txt", {"--reduction", "sum"});
  const Output mean = golden(words("check", {"--reduction", "mean"}));
  EXPECT_EQ(mean.exit_code, 1);
  EXPECT_EQ(mean.out.rfind("note: the method is 'canonical', recorded is 'canonical reduction=sum'\n", 0), 0u)
      << mean.out;
  EXPECT_EQ(golden(words("update", {"--reduction", "mean"})).exit_code, 0);
  EXPECT_EQ(read_text(directory / "g.txt"), read_text(directory / "plain.txt"));
}

TEST_F(GoldenCommand, ReusesTheCastOfFp64Logits) {
  const std::string logits = directory / "z.npy", labels = directory / "t.npy";
  write_text(logits, npy("<f8", "(1, 2)", bytes_of(std::vector<double>{20.0000001, 0})));
  write_text(labels, npy("<i8", "(1,)", bytes_of(std::vector<std::int64_t>{0})));
  const std::string out = directory / "g.txt";
  ASSERT_EQ(golden({"make", logits, "--labels", labels, "--cast", "fp32", "--out", out}).exit_code, 0);
  const Output check = golden({"check", out, logits, "--labels", labels});
  EXPECT_EQ(check.exit_code, 0) << check.out << check.err;
}

TEST_F(GoldenCommand, ChecksAtAnyTp) {
  make("g.txt");
  for (const Words& way : std::vector<Words>{{}, {"--tp", "3"}, {"--backend", "scalar"}, {"--shards", "0,4"}}) {
    Words words{"check", directory / "g.txt", first, second};
    words.insert(words.end(), way.begin(), way.end());
    const Output output = golden(words);
    EXPECT_EQ(output.exit_code, 0) << output.out << output.err;
    EXPECT_TRUE(has(output.out, "2 steps are equal"));
  }
}

TEST_F(GoldenCommand, ATargetThatIsNotHereIsNoFaultOfTheRecord) {
  make("g.txt");
  make("certified.txt", {"--method", "certified"});
  setenv("TPCE_TARGET", "AVX9", 1);
  const Output scalar = golden({"check", directory / "g.txt", first, second, "--backend", "scalar"});
  const Output simd = golden({"check", directory / "g.txt", first, second});
  const Output certified = golden({"check", directory / "certified.txt", first, second});
  unsetenv("TPCE_TARGET");
  EXPECT_EQ(scalar.exit_code, 0) << scalar.err;
  for (const Output& refused : {simd, certified}) {
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_TRUE(refused.err.starts_with("tpce: error: backend: simd is missing: TPCE_TARGET: got 'AVX9'"))
        << refused.err;
  }
}

TEST_F(GoldenCommand, AFailedCheckPrintsTheBlockToPaste) {
  const std::string good = make("g.txt");
  const std::string commented = edited(good, "# step loss", "# config: mine\n# step loss");
  const std::size_t row = commented.find("\n2 ") + 3;
  const std::string wrong = commented.substr(0, row) + "3.5" + commented.substr(commented.find(' ', row));
  write_text(directory / "g.txt", wrong);
  const Output output = golden({"check", directory / "g.txt", first, second});
  EXPECT_EQ(output.exit_code, 1);
  EXPECT_EQ(output.err, "");
  EXPECT_TRUE(has(output.out, "step 2: loss is "));
  EXPECT_TRUE(has(output.out, "ulp"));
  EXPECT_TRUE(output.out.ends_with("\n\n" + commented)) << output.out;
  EXPECT_EQ(read_text(directory / "g.txt"), wrong);
}

TEST_F(GoldenCommand, SaysFirstThatTheInputIsAnother) {
  make("g.txt");
  const Output output = golden({"check", directory / "g.txt", second, first});
  EXPECT_EQ(output.exit_code, 1);
  EXPECT_TRUE(has(output.out, "sha256"));
  EXPECT_LT(output.out.find("sha256"), output.out.find("step 1: loss")) << output.out;
}

TEST_F(GoldenCommand, ChecksFilesOfOthers) {
  std::string text = make("g.txt");
  const std::string row_1 = text.substr(text.find("\n1 ") + 1);
  write_text(directory / "new.txt", "# config: debug\n# ngpu: 8\n# step loss grad_norm\n" + row_1);
  EXPECT_EQ(golden({"check", directory / "new.txt", first, second}).exit_code, 0);
  // The old format: a step and its loss, no header.
  const auto loss_of = [&](const std::string& row) { return row.substr(0, row.rfind(' ')) + "\n"; };
  const std::size_t end = row_1.find('\n');
  const std::string old = loss_of(row_1.substr(0, end)) + loss_of(row_1.substr(end + 1, row_1.size() - end - 2));
  write_text(directory / "old.txt", old);
  const Output output = golden({"check", directory / "old.txt", first, second});
  EXPECT_EQ(output.exit_code, 0) << output.out << output.err;
}

TEST_F(GoldenCommand, CountsStepsThatAreMissing) {
  make("g.txt");
  const Output fewer = golden({"check", directory / "g.txt", first});
  EXPECT_EQ(fewer.exit_code, 1);
  EXPECT_TRUE(has(fewer.out, "step 2: in the golden file only"));
  const Output more = golden({"check", directory / "g.txt", first, second, second});
  EXPECT_EQ(more.exit_code, 1);
  EXPECT_TRUE(has(more.out, "step 3: not in the golden file"));
}

TEST_F(GoldenCommand, UpdateKeepsHeadersAndShowsTheChange) {
  const std::string good = edited(make("g.txt"), "# step loss", "# config: mine\n# step loss");
  const std::string number = good.substr(good.find("\n1 ") + 3, 8);
  write_text(directory / "g.txt", edited(good, "\n1 " + number, "\n1 9" + number));
  const Output output = golden({"update", directory / "g.txt", first, second});
  EXPECT_EQ(output.exit_code, 0) << output.err;
  EXPECT_EQ(read_text(directory / "g.txt"), good);
  EXPECT_TRUE(has(output.out, "\n-1 9" + number));
  EXPECT_TRUE(has(output.out, "\n+1 " + number));
  EXPECT_TRUE(has(golden({"update", directory / "g.txt", first, second}).out, "nothing changed"));
}

TEST_F(GoldenCommand, UpdateLosesNoNumberUnlessTold) {
  const std::string good = make("g.txt");
  const Output fewer = golden({"update", directory / "g.txt", first});
  EXPECT_EQ(fewer.exit_code, 2);
  EXPECT_TRUE(has(fewer.err, "g.txt: nothing was computed for step 2 "));
  EXPECT_EQ(read_text(directory / "g.txt"), good);
  EXPECT_TRUE(
      has(golden({"check", directory / "g.txt", first}).out, "with the same FILEs and options, and --drop-steps)"));
  EXPECT_EQ(golden({"update", directory / "g.txt", first, "--drop-steps"}).exit_code, 0);
  EXPECT_EQ(read_text(directory / "g.txt").find("\n2 "), std::string::npos);

  const std::string other = "# step loss lr\n1 3.5 1e-3\n2 4.5 1e-4\n";
  write_text(directory / "g.txt", other);
  const Output stale = golden({"update", directory / "g.txt", first, second});
  EXPECT_EQ(stale.exit_code, 2);
  EXPECT_TRUE(has(stale.err, "g.txt: column 'lr' is not computed here"));
  EXPECT_EQ(read_text(directory / "g.txt"), other);
  EXPECT_EQ(golden({"update", directory / "g.txt", first, second, "--keep-columns"}).exit_code, 0);
  EXPECT_TRUE(has(read_text(directory / "g.txt"), " 1e-3\n"));
  const Output equal = golden({"check", directory / "g.txt", first, second});
  EXPECT_EQ(equal.exit_code, 0) << equal.out;
  EXPECT_TRUE(has(equal.out, "note: column 'lr' is not computed here and was not checked\n"));
  const Output kept = golden({"update", directory / "g.txt", first, second});
  EXPECT_EQ(kept.exit_code, 0) << kept.err;
  EXPECT_TRUE(has(kept.out, "note: column 'lr' is not computed here and stays as it is\n"));
}

TEST_F(GoldenCommand, ABadRecordIsNamedByFileAndLine) {
  const std::string good = make("g.txt", {"--method", "log_softmax", "--tp", "2"});
  const std::string method = "# tpce: method log_softmax tp=2";
  const std::vector<std::pair<std::string, std::string>> wrong{
      {"# tpce: method softmax", "method: got 'softmax'"},
      {"# tpce: method log_softmax tp=two", "tp: got 'two'"},
      {"# tpce: method log_softmax tp=0", "tp: got 0, expected 1..1048576"},
      {"# tpce: method log_softmax shards=1,x", "shards: got '1,x'"},
      {"# tpce: method log_softmax shards=-1,5", "shards: got '-1,5'"},
      {"# tpce: method log_softmax reduction=none", "reduction: got none"},
      {"# tpce: method log_softmax reduction=max", "reduction: got 'max'"},
      {"# tpce: method log_softmax ignore_index=1x", "ignore_index: got '1x'"},
      {"# tpce: method log_softmax vocab=1e3", "vocab: got '1e3'"},
      {"# tpce: method log_softmax empty_mean=one", "empty-mean: got 'one'"},
      {"# tpce: method log_softmax cast=fp16", "cast: got 'fp16'"},
  };
  for (const auto& [line, part] : wrong) {
    write_text(directory / "g.txt", edited(good, method, line));
    for (const char* command : {"check", "update"}) {
      const Output output = golden({command, directory / "g.txt", first, second});
      EXPECT_EQ(output.exit_code, 2);
      EXPECT_TRUE(has(output.err, "g.txt: line 2: # tpce: " + part));
    }
  }
}

TEST_F(GoldenCommand, NanHasTheSameBitsEverywhere) {
  const float infinity = std::numeric_limits<float>::infinity();
  write_text(first, capture({infinity, 2, 3, 4, 5, 6.5f, -1, 0}, {0, 3}));
  for (const char* method : {"canonical", "fp64", "log_softmax", "softplus_recompute", "cross_entropy"}) {
    EXPECT_TRUE(has(make("g.txt", {"--method", method}), "bits 1 loss=0x7fc00000 grad_norm=0x7fc00000\n")) << method;
  }
}

TEST_F(GoldenCommand, LabelsInFilesOfTheirOwn) {
  write_text(directory / "z.npy", npy("<f4", "(2, 4)", bytes_of(std::vector<float>{1, 2, 3, 4, 5, 6.5f, -1, 0})));
  write_text(directory / "t.npy", npy("<i8", "(2,)", bytes_of(std::vector<std::int64_t>{0, 3})));
  const Output output = golden({"make", directory / "z.npy", directory / "z.npy", "--labels", directory / "t.npy",
                                "--labels", directory / "t.npy", "--out", directory / "g.txt"});
  ASSERT_EQ(output.exit_code, 0) << output.err;
  const std::string text = read_text(directory / "g.txt"), want = make("want.txt");
  EXPECT_TRUE(has(text, "labels_sha256="));
  EXPECT_EQ(text.substr(text.find("\n1 "), 15), want.substr(want.find("\n1 "), 15));
  const Output one = golden({"make", directory / "z.npy", directory / "z.npy", "--labels", directory / "t.npy", "--out",
                             directory / "other.txt"});
  EXPECT_EQ(one.exit_code, 2);
  EXPECT_TRUE(has(one.err, "labels"));
}

TEST_F(GoldenCommand, OutMayNotBeAnInputByAnyName) {
  const std::string logits = directory / "z.npy", labels = directory / "t.npy", good = directory / "good.npy";
  write_text(logits, npy("<f4", "(2, 4)", bytes_of(std::vector<float>{1, 2, 3, 4, 5, 6.5f, -1, 0})));
  const std::string text = npy("<i8", "(2,)", bytes_of(std::vector<std::int64_t>{0, 3}));
  write_text(labels, text);
  write_text(good, text);
  std::filesystem::create_symlink(labels, directory / "symbolic.npy");
  std::filesystem::create_hard_link(labels, directory / "hard.npy");
  for (const std::string& out : {labels, directory / "symbolic.npy", directory / "hard.npy", directory / "./t.npy"}) {
    const Output output = golden({"make", logits, logits, "--labels", good, "--labels", labels, "--out", out});
    EXPECT_EQ(output.exit_code, 2) << out;
    EXPECT_EQ(output.err, "tpce: error: out: " + out + " is an input\n");
    EXPECT_EQ(read_text(labels), text);
  }
}

TEST_F(GoldenCommand, RefusesAndWritesNothing) {
  const std::string good = make("g.txt");
  const std::vector<std::pair<Words, std::string>> wrong{
      {{"make", first, "--out", directory / "no/g.txt"}, "no/g.txt"},
      {{"make", first, "--out", first}, "input"},
      {{"make", first, "--out", directory / "new.txt", "--reduction", "none"}, "reduction"},
      {{"make", first, directory / "missing.npy", "--out", directory / "new.txt"}, "missing.npy"},
      {{"check", directory / "missing.txt", first}, "missing.txt"},
      {{"check", first, first}, "first.safetensors"},
      {{"check", directory / "g.txt", first, second, "--backend", "reference"}, "reference"},
      {{"update", directory / "g.txt", first, directory / "missing.npy"}, "missing.npy"},
      {{"compare", directory / "g.txt", directory / "missing.txt"}, "missing.txt"},
      {{"compare", directory / "g.txt", directory / "g.txt", "--ulp", "1", "--assert-equal"}, "ulp"},
      {{"compare", directory / "g.txt", directory / "g.txt", "--ulp", "-1"}, "ulp"},
      {{"compare", directory / "g.txt", directory / "g.txt", "--rtol", "-1"}, "rtol"},
      {{"compare", directory / "g.txt", directory / "g.txt", "--last", "0"}, "last"},
      {{"compare", directory / "g.txt", directory / "g.txt", "--plot", directory / "p.png"}, "p.png"},
      {{"compare", directory / "g.txt", directory / "g.txt", "--plot", directory / "g.txt"}, "plot"},
  };
  for (const auto& [words, part] : wrong) {
    SCOPED_TRACE(::testing::PrintToString(words));
    const Output output = golden(words);
    EXPECT_EQ(output.exit_code, 2);
    EXPECT_EQ(output.out, "");
    EXPECT_EQ(output.err.rfind("tpce: error: ", 0), 0u) << output.err;
    EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << output.err;
    EXPECT_TRUE(has(output.err, part));
  }
  EXPECT_EQ(directory.names(), (Words{"first.safetensors", "g.txt", "second.safetensors"}));
  EXPECT_EQ(read_text(directory / "g.txt"), good);
}

TEST_F(GoldenCommand, ComparesWithExitCodes) {
  write_text(directory / "a.txt", "1 2.5\n2 2.25\n3 nan\n");
  write_text(directory / "b.txt", "1 2.5\n2 2.250000238418579\n3 nan\n");  // one ulp of fp32
  write_text(directory / "twice.txt", "1 2.5\n1 2.5\n");
  write_text(directory / "short.txt", "1 2.5\n");
  const std::string a = directory / "a.txt", b = directory / "b.txt";
  EXPECT_EQ(golden({"compare", a, a}).exit_code, 1);  // a NaN is equal to nothing
  EXPECT_EQ(golden({"compare", a, a, "--nan-equal"}).exit_code, 0);
  EXPECT_EQ(golden({"compare", a, b, "--nan-equal"}).exit_code, 1);
  EXPECT_EQ(golden({"compare", a, b, "--nan-equal", "--assert-equal"}).exit_code, 1);
  EXPECT_EQ(golden({"compare", a, b, "--nan-equal", "--ulp", "0"}).exit_code, 1);
  EXPECT_EQ(golden({"compare", a, b, "--nan-equal", "--ulp", "1"}).exit_code, 0);
  EXPECT_EQ(golden({"compare", a, b, "--nan-equal", "--rtol", "1e-6"}).exit_code, 0);
  EXPECT_EQ(golden({"compare", a, b, "--nan-equal", "--atol", "1e-9"}).exit_code, 1);
  EXPECT_EQ(golden({"compare", a, directory / "short.txt", "--nan-equal"}).exit_code, 1);
  EXPECT_EQ(golden({"compare", a, directory / "twice.txt"}).exit_code, 2);
  const Output table = golden({"compare", a, b, "--last", "2", "--plot", directory / "p.svg"});
  EXPECT_TRUE(has(table.out, "loss"));
  EXPECT_TRUE(has(read_text(directory / "p.svg"), "<svg"));
  const auto json = nlohmann::json::parse(golden({"compare", a, b, "--json"}).out);
  EXPECT_EQ(json.at("within"), false);
  EXPECT_EQ(json.at("metrics").at(0).at("first_different"), 2);
}

}  // namespace
}  // namespace tpce::test
