// tpce study and tpce report.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/tools/input_files.h"
#include "tests/tools/run_program.h"

namespace tpce::test {
namespace {

TEST(StudyCommand, ListsStudies) {
  const TemporaryDirectory directory;
  const std::string list = run(directory, {"study", "--list"}).out;
  EXPECT_NE(list.find("memory "), std::string::npos);
  EXPECT_NE(list.find("  --paper: ", list.find("grokking")), std::string::npos) << list;
  const Output output = run(directory, {"study", "--list", "--json"});
  ASSERT_EQ(output.exit_code, 0) << output.err;
  for (const auto& study : nlohmann::json::parse(output.out)) EXPECT_TRUE(study.contains("question"));
}

TEST(StudyCommand, WritesAFolderThatAReportBinds) {
  const TemporaryDirectory directory;
  const Output output =
      run(directory, {"study", "memory", "--quick", "--set", "tp=4", "--out", directory / "all/memory"});
  ASSERT_EQ(output.exit_code, 0) << output.err;
  EXPECT_EQ(output.err, "");
  EXPECT_NE(output.out.find("4 of 4 published peaks"), std::string::npos) << output.out;
  for (const char* name : {"page.md", "data.csv", "study.json"}) {
    EXPECT_NE(read_text(directory / (std::string("all/memory/") + name)).find("--quick --set tp=4 --seed 1"),
              std::string::npos)
        << name;
  }
  const Output report = run(directory, {"report", directory / "all"});
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_NE(read_text(directory / "all/report.html").find("<h2>Memory"), std::string::npos);
}

class WorkingDirectory {
 public:
  explicit WorkingDirectory(const std::string& path) : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(path);
  }
  ~WorkingDirectory() { std::filesystem::current_path(before_); }
  WorkingDirectory(const WorkingDirectory&) = delete;
  WorkingDirectory& operator=(const WorkingDirectory&) = delete;

 private:
  std::filesystem::path before_;
};

// docs/studies holds what this code says of the results there; plots aside, which depend on gnuplot's version.
TEST(StudyCommand, TheCommittedPagesAreThoseOfTheirResults) {
  namespace fs = std::filesystem;
  // What files among the parameters are relative to.
  const WorkingDirectory sources(TPCE_SOURCE_DIR);
  int compared = 0;
  for (const auto& entry : fs::directory_iterator("docs/studies")) {
    if (!entry.is_directory()) continue;
    ASSERT_TRUE(fs::exists(entry.path() / "study.json")) << entry.path();
    const TemporaryDirectory directory;
    fs::copy(entry.path(), directory / "again", fs::copy_options::recursive);
    const auto summary = nlohmann::json::parse(read_text(directory / "again/study.json"));
    std::vector<std::string> words{"study",  summary["study"],      "--out", directory / "again",
                                   "--seed", summary["seed"].dump()};
    if (summary["scale"] != "default") words.push_back("--" + summary["scale"].get<std::string>());
    for (const auto& [name, value] : summary["parameters"].items()) {
      words.insert(words.end(), {"--set", name + "=" + value.get<std::string>()});
    }
    const Output output = run(directory, words);
    ASSERT_EQ(output.exit_code, 0) << output.err;
    EXPECT_NE(output.out.find("every result was there already"), std::string::npos) << output.out;
    for (const auto& file : fs::directory_iterator(entry.path())) {
      const std::string name = file.path().filename().string();
      if (name.ends_with(".svg")) continue;
      EXPECT_TRUE(read_text(directory / ("again/" + name)) == read_text(file.path()))
          << file.path() << " is not what the code writes: run scripts/studies";
    }
    ++compared;
  }
  EXPECT_GE(compared, 10);  // nine studies, one of them in two settings
}

TEST(StudyCommand, ARowWithoutAFiniteMarginIsNamedWithItsFile) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::pair<std::vector<float>, std::string> rows[] = {
      {{std::nanf(""), 5, 6}, "row 1 has nan at class 0, expected less than inf"},
      {{4, 5, kInfinity}, "row 1 has inf at class 2, expected less than inf"},
      {{4, -kInfinity, 6}, "row 1 has -inf at its label 1, expected more"},
      {{-kInfinity, 5, -kInfinity}, "row 1 has nothing above -inf beside its label, expected a finite value"},
  };
  for (const auto& [row, message] : rows) {
    const TemporaryDirectory directory;
    std::vector<float> logits{1, 2, 3};
    logits.insert(logits.end(), row.begin(), row.end());
    write_text(directory / "z.safetensors", capture(logits, {0, 1}));
    const Output output = run(directory, {"study", "one-rank", "--quick", "--set",
                                          "logits=" + (directory / "z.safetensors"), "--out", directory / "out"});
    EXPECT_EQ(output.exit_code, 2);
    EXPECT_EQ(output.err, "tpce: error: study one-rank, cell golden-file: " + (directory / "z.safetensors") +
                              ": logits: " + message + "\n");
  }
}

TEST(StudyCommand, RefusesAndLeavesNothing) {
  const TemporaryDirectory directory;
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong{
      {{"nothing"}, "study: got 'nothing', expected one of"},
      {{}, "expected a NAME, or --list"},
      {{"memory", "--set", "rows"}, "set: got 'rows', expected NAME=VALUE"},
      {{"memory", "--set", "rows=0"}, "rows: got '0', expected a whole number"},
      {{"memory", "--set", "dtype=fp8"}, "dtype: got 'fp8', expected fp32"},
      {{"memory", "--set", "tp=2", "--set", "tp=3"}, "set: 'tp' stands twice"},
      {{"memory", "--paper"}, "paper: study memory follows no paper's setting"},
      {{"memory", "--set", "rows=4294967296", "--set", "vocab=268435456"}, "rows x vocab: got 4294967296 x 268435456"},
      {{"memory", "--threads", "-1"}, "--threads: got -1, expected 0..1024"},
      {{"memory", "--seed", "-1"}, "--seed: got -1, expected 0..1000000000000000;"},
      {{"memory", "--seed", "x"}, "--seed: got 'x', expected a whole number"},
      {{"memory", "--quick", "--paper"}, "--paper"},
      {{"memory", "--json"}, "--list"}};
  for (const auto& [arguments, message] : wrong) {
    std::vector<std::string> all{"study"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    all.insert(all.end(), {"--out", directory / "out"});
    const Output output = run(directory, all);
    EXPECT_EQ(output.exit_code, 2) << message;
    EXPECT_NE(output.err.find(message), std::string::npos) << output.err;
    EXPECT_TRUE(directory.names().empty()) << message;
  }
  // Found only by a cell.
  write_text(directory / "empty.txt", "");
  std::filesystem::create_directory(directory / "there");
  for (const char* out : {"out", "h/i/j", "there"}) {
    const Output empty = run(directory, {"study", "finetune", "--quick", "--set", "text=" + (directory / "empty.txt"),
                                         "--out", directory / out});
    EXPECT_EQ(empty.exit_code, 2) << empty.err;
    EXPECT_EQ(directory.names(), (std::vector<std::string>{"empty.txt", "there"})) << out;
  }
  std::filesystem::remove(directory / "empty.txt");
  EXPECT_TRUE(std::filesystem::remove(directory / "there"));  // empty as before
  EXPECT_EQ(run(directory, {"study", "memory"}).exit_code, 2);
  EXPECT_EQ(run(directory, {"report", directory / "none"}).exit_code, 2);
  EXPECT_TRUE(directory.names().empty());
  std::filesystem::create_directory(directory / "pages");
  ASSERT_EQ(mkfifo((directory / "pages/page.md").c_str(), 0600), 0);
  EXPECT_EQ(run(directory, {"report", directory / "pages"}).exit_code, 2);
  const Output over = run(directory, {"report", directory / "pages", "--out", directory / "pages/page.md"});
  EXPECT_NE(over.err.find("expected a name that ends in .html"), std::string::npos) << over.err;
  std::filesystem::remove_all(directory / "pages");
  EXPECT_TRUE(directory.names().empty());
}

}  // namespace
}  // namespace tpce::test
