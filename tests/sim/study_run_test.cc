// A study's folder: cells are computed once, a run that was stopped goes on, and the page is the same either way.
#include "sim/studies/study_run.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <fstream>
#include <numeric>
#include <sstream>
#include <stdexcept>

namespace tpce::sim {
namespace {

namespace fs = std::filesystem;

// Squares of 0 to 7.
class Squares : public Study {
 public:
  std::string_view name() const override { return "squares"; }
  std::string_view question() const override { return "how large?"; }
  std::vector<Parameter> parameters() const override { return {{"plus", "0", "added to each"}}; }
  std::vector<Cell> cells(const StudyOptions& options) const override {
    const std::int64_t plus = parameter_number(*this, options, "plus", {0, 9});
    std::vector<Cell> cells;
    for (int i = 0; i < 8; ++i) {
      cells.push_back({std::string("n").append(std::to_string(i)), [this, i, plus](const fs::path&) {
                         ++computed;
                         if (i == failing) throw std::invalid_argument("cannot be squared");
                         return Json{{"square", json_of(static_cast<double>(i * i) + static_cast<double>(plus) + 0.1)}};
                       }});
    }
    return cells;
  }
  Page page(const StudyOptions&, std::span<const Json> results) const override {
    double total = 0;
    for (const Json& result : results) total += number_of(result.at("square"));
    Page page{
        .title = "Squares", .conclusion = "They add to " + std::to_string(total) + ".", .sections = {}, .data = {}};
    page.data = {{"total"}, {{std::to_string(total)}}};
    page.sections.push_back({.figures = {{"dot", "<svg/>", "a dot"}}});
    return page;
  }

  mutable std::atomic<int> computed{0};
  int failing = -1;
};

class StudyRunTest : public ::testing::Test {
 protected:
  StudyRunTest() {
    std::string name = (fs::temp_directory_path() / "study.XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~StudyRunTest() override { fs::remove_all(folder_); }

  StudyRun run_of(const Squares& study) const { return {study, {}, folder_ / "out", "1.0"}; }
  std::string read(const std::string& name) const {
    std::ifstream in(folder_ / "out" / name);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  fs::path folder_;
};

TEST_F(StudyRunTest, WritesThePageAndKeepsNoCells) {
  const Squares study;
  const StudyRun run = run_of(study);
  const auto cells = open_study(run, false);
  EXPECT_EQ(cells.size(), 8u);
  int done = 0;
  compute_cells(run, cells, 3, [&] { ++done; });
  EXPECT_EQ(done, 8);
  finish_study(run);
  EXPECT_EQ(read("page.md").rfind("# Squares\n\nThey add to 140.8", 0), 0u) << read("page.md");
  EXPECT_NE(read("page.md").find("`tpce study squares --seed 1`"), std::string::npos);
  EXPECT_EQ(read("data.csv").rfind("# tpce study squares --seed 1, tpce 1.0\ntotal\n", 0), 0u);
  EXPECT_EQ(read("dot.svg"), "<svg/>");
  EXPECT_FALSE(fs::exists(folder_ / "out/cells"));
  const Json summary = Json::parse(read("study.json"));
  EXPECT_EQ(summary["cells"]["n3"]["square"], 9.1);
}

TEST_F(StudyRunTest, GoesOnWhereItWasStopped) {
  const Squares study;
  const StudyRun run = run_of(study);
  const auto cells = open_study(run, false);
  std::size_t given = 0;
  compute_cells(
      run, cells, [&]() { return given < 3 ? std::optional(given++) : std::nullopt; }, [] {});
  EXPECT_EQ(study.computed, 3);

  const auto rest = open_study(run, false);
  EXPECT_EQ(rest, (std::vector<std::size_t>{3, 4, 5, 6, 7}));
  compute_cells(run, rest, 1, [] {});
  finish_study(run);
  EXPECT_EQ(study.computed, 8);
  const std::string page = read("page.md"), summary = read("study.json");

  // A finished run computes nothing more, and writes the same.
  EXPECT_TRUE(open_study(run, false).empty());
  finish_study(run);
  EXPECT_EQ(read("page.md"), page);
  EXPECT_EQ(read("study.json"), summary);
  EXPECT_EQ(open_study(run, true).size(), 8u);  // fresh
}

TEST_F(StudyRunTest, RefusesTheCellsOfAnotherRun) {
  const Squares study;
  StudyRun run = run_of(study);
  compute_cells(run, open_study(run, false), 1, [] {});
  for (const bool finished : {false, true}) {
    if (finished) finish_study(run);
    const auto refused = [&](const auto& change) {
      StudyRun other = run;
      change(other);
      EXPECT_THROW(open_study(other, false), std::invalid_argument);
    };
    refused([](StudyRun& other) { other.options.seed = 2; });
    refused([](StudyRun& other) { other.options.scale = Scale::kQuick; });
    refused([](StudyRun& other) { other.options.parameters["plus"] = "1"; });
    refused([](StudyRun& other) { other.version = "1.1"; });
  }
}

std::string message_of(const auto& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

// What a study would remove or replace stays where no study wrote it.
TEST_F(StudyRunTest, LeavesAloneWhatIsNotAStudys) {
  const Squares study;
  const StudyRun run = run_of(study);
  for (const char* name : {"cells/thesis.txt", "page.md", "data.csv", "notes.txt", "loss.svg"}) {
    const fs::path file = run.folder / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << "precious";
    for (const bool fresh : {false, true}) {
      EXPECT_NE(message_of([&] { open_study(run, fresh); }).find("which no study wrote"), std::string::npos) << name;
    }
    EXPECT_EQ(read(name), "precious");
    fs::remove_all(run.folder);
  }
  // Left by a run that was killed in its first moments.
  fs::create_directories(run.folder / "cells");
  std::ofstream(run.folder / "cells/.tpce-1-2.tmp") << "{";
  EXPECT_EQ(open_study(run, false).size(), 8u);
}

// The name of a file does not make it a study's.
TEST_F(StudyRunTest, LeavesAloneWhatOnlyHasTheNamesOfAStudys) {
  const Squares study;
  const StudyRun run = run_of(study);
  for (const char* name : {"study.json", "cells/header"}) {
    for (const char* text :
         {"{\"a\":1}", "", "[]", "{\"study\": 3, \"cells\": {}, \"version\": \"1.0\", \"scale\": \"default\"}",
          "{\"study\": \"squares\"}"}) {
      fs::create_directories(run.folder / "cells");
      std::ofstream(run.folder / "page.md") << "precious";
      std::ofstream(run.folder / name) << text;
      for (const bool fresh : {false, true}) {
        const std::string message = message_of([&] { open_study(run, fresh); });
        EXPECT_NE(message.find(std::string("holds '") + name + "', which no study wrote"), std::string::npos)
            << name << text << message;
      }
      EXPECT_EQ(read(name), text);
      EXPECT_EQ(read("page.md"), "precious");
      fs::remove_all(run.folder);
    }
  }
  // Beside the cells of a run that was stopped too.
  open_study(run, false);
  std::ofstream(run.folder / "study.json") << "{\"a\":1}";
  EXPECT_NE(message_of([&] { open_study(run, true); }).find("'study.json', which no study wrote"), std::string::npos);
  EXPECT_EQ(read("study.json"), "{\"a\":1}");
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    names.push_back(entry.path().lexically_relative(folder).string());
  }
  return names;
}

// What was there before stays, a folder without files too.
TEST_F(StudyRunTest, TakesAwayWhatItMadeAndNothingElse) {
  const Squares study;
  StudyRun run = run_of(study);
  fs::create_directory(folder_ / "there");
  for (const char* out : {"there", "there/", "new", "h/i/j", "h/i/j/", "h/../i"}) {
    run.folder = folder_ / out;
    {
      const StudyLock lock(run);
      open_study(run, false);
      EXPECT_TRUE(fs::exists(run.folder / "cells/header")) << out;
      drop_study(run, lock.made());
      EXPECT_EQ(names_in(folder_), std::vector<std::string>{"there"}) << out;
    }
    { const StudyLock nothing_more(run); }
    EXPECT_EQ(names_in(folder_), std::vector<std::string>{"there"}) << out;
  }
  // A result keeps all.
  run.folder = folder_ / "h/i";
  const StudyLock lock(run);
  const auto cells = open_study(run, false);
  compute_cells(run, std::span(cells).first(1), 1, [] {});
  drop_study(run, lock.made());
  EXPECT_EQ(open_study(run, false).size(), 7u);
}

TEST_F(StudyRunTest, LeavesNothingWhereTheDiskIsFull) {
  const Squares study;
  StudyRun run = run_of(study);
  run.folder = folder_ / "h/i";
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto on_signal = signal(SIGXFSZ, SIG_IGN);
  {
    const StudyLock lock(run);
    const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
    EXPECT_ANY_THROW(open_study(run, false));
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_TRUE(fs::is_empty(run.folder));
  }
  signal(SIGXFSZ, on_signal);
  EXPECT_TRUE(fs::is_empty(folder_));
}

// A run with other options may have had other pictures; names that lead elsewhere are not believed.
TEST_F(StudyRunTest, RemovesFilesThatItNoLongerWrites) {
  const Squares study;
  const StudyRun run = run_of(study);
  for (const bool fresh : {false, true}) {
    compute_cells(run, open_study(run, false), 1, [] {});
    finish_study(run);
    Json summary = Json::parse(read("study.json"));
    EXPECT_EQ(summary["files"], (Json{"dot.svg", "data.csv", "page.md"}));
    summary["files"].push_back("old.svg");
    summary["files"].push_back("../evil.txt");
    for (const char* no_file : {"..", ".", "", "kept"}) summary["files"].push_back(no_file);
    fs::create_directories(run.folder / "kept/inside");
    summary["files"].push_back(7);
    std::ofstream(run.folder / "study.json") << summary.dump();
    std::ofstream(run.folder / "old.svg") << "<svg/>";
    std::ofstream(folder_ / "evil.txt") << "precious";
    compute_cells(run, open_study(run, fresh), 1, [] {});
    EXPECT_EQ(fs::exists(run.folder / "dot.svg"), !fresh);
    finish_study(run);
    EXPECT_TRUE(fs::exists(run.folder / "dot.svg"));
    EXPECT_FALSE(fs::exists(run.folder / "old.svg"));
    EXPECT_TRUE(fs::exists(folder_ / "evil.txt"));
    EXPECT_TRUE(fs::exists(run.folder / "kept/inside"));
  }
}

TEST_F(StudyRunTest, NamesTheCommandAsAShellReadsIt) {
  const Squares study;
  StudyRun run = run_of(study);
  run.options.parameters["plus"] = "my 'file'.npy";
  EXPECT_EQ(command_of(run), R"(tpce study squares --set 'plus=my '\''file'\''.npy' --seed 1)");
  run.options.parameters["plus"] = "1\n2";
  EXPECT_NE(message_of([&] { open_study(run, false); }).find("expected no control characters"), std::string::npos);
  run.options.parameters["plus"] = "\xff.npy";
  EXPECT_EQ(message_of([&] { open_study(run, false); }), "set: got '\\xff.npy' for plus, expected UTF-8");
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(StudyRunTest, IsForOneAtATime) {
  const Squares study;
  const StudyRun run = run_of(study);
  {
    const StudyLock lock(run);
    EXPECT_NE(message_of([&] { StudyLock another(run); }).find("is in use by another"), std::string::npos);
  }
  EXPECT_EQ(message_of([&] { StudyLock again(run); }), "");
}

// A file that was damaged, or made by hand, is refused in a line that says what to do; none of its names is trusted.
TEST_F(StudyRunTest, RefusesDamagedResults) {
  const Squares study;
  const StudyRun run = run_of(study);
  compute_cells(run, open_study(run, false), 1, [] {});
  std::ofstream(run.folder / "cells/n3.json") << "{\"square\": 9";
  EXPECT_TRUE(open_study(run, false).empty());
  const std::string damaged_cell = message_of([&] { finish_study(run); });
  EXPECT_NE(damaged_cell.find("cells/n3.json: invalid JSON"), std::string::npos) << damaged_cell;
  EXPECT_NE(damaged_cell.find("remove it, and the cell is computed again"), std::string::npos) << damaged_cell;
  fs::remove(run.folder / "cells/n3.json");
  compute_cells(run, open_study(run, false), 1, [] {});
  finish_study(run);

  const std::string good = read("study.json");
  const auto write = [&](const std::string& text) { std::ofstream(run.folder / "study.json") << text; };
  for (const char* text : {"", "[]", "null", "3", "{}", "{\"study\": \"squares\"}"}) {
    write(text);
    const std::string message = message_of([&] { open_study(run, false); });
    EXPECT_NE(message.find("out"), std::string::npos) << text;  // the folder's name
    EXPECT_EQ(message.find("json.exception.type"), std::string::npos) << message;
  }
  Json summary = Json::parse(good);
  summary["cells"] = 1;
  write(summary.dump());
  EXPECT_NE(message_of([&] { open_study(run, false); }).find("cells: got JSON of type number"), std::string::npos);

  summary = Json::parse(good);
  summary["cells"]["../../evil"] = 1;
  summary["cells"]["n2"] = nullptr;
  summary["cells"]["n4"] = Json::object();
  write(summary.dump());
  EXPECT_TRUE(open_study(run, false).empty());
  EXPECT_FALSE(fs::exists(folder_ / "evil.json"));
  const std::string message = message_of([&] { finish_study(run); });
  EXPECT_NE(message.find("holds results that are not this study's"), std::string::npos) << message;
  EXPECT_EQ(open_study(run, true).size(), 8u);
}

TEST_F(StudyRunTest, ErrorsNameWhatWasRefused) {
  const Squares study;
  StudyRun run = run_of(study);
  run.options.parameters["minus"] = "1";
  EXPECT_EQ(message_of([&] { open_study(run, false); }),
            "set: study squares has no parameter 'minus', expected one of plus");
  run.options.parameters = {{"plus", "x"}};
  EXPECT_EQ(message_of([&] { open_study(run, false); }), "plus: got 'x', expected a whole number 0..9");
  run.options = {.scale = Scale::kPaper};
  EXPECT_EQ(message_of([&] { open_study(run, false); }), "paper: study squares follows no paper's setting");
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  std::ofstream(folder_ / "file") << "x";
  run.options = {};
  run.folder = folder_ / "file";
  EXPECT_NE(message_of([&] { open_study(run, false); }).find("is no directory"), std::string::npos);
}

TEST_F(StudyRunTest, AFailingCellIsNamedAndTheOthersAreKept) {
  Squares study;
  study.failing = 5;
  const StudyRun run = run_of(study);
  try {
    compute_cells(run, open_study(run, false), 1, [] {});
    FAIL() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "study squares, cell n5: cannot be squared");
  }
  EXPECT_EQ(open_study(run, false), (std::vector<std::size_t>{5, 6, 7}));
}

TEST(Studies, HaveNamesAndQuestions) {
  for (const Study* study : studies()) {
    EXPECT_EQ(&study_from_name(study->name()), study);
    EXPECT_EQ(study->question().back(), '?') << study->name();
    StudyOptions options{.scale = Scale::kQuick};
    for (const Parameter& parameter : study->parameters()) {
      if (parameter.name == "text") options.parameters["text"] = TPCE_SOURCE_DIR "/" + parameter.value;
    }
    EXPECT_FALSE(study->cells(options).empty());
  }
  EXPECT_THROW(study_from_name("nothing"), std::invalid_argument);
}

TEST(Studies, RefuseFilesThatAreNotThere) {
  for (const Study* study : studies()) {
    for (const Parameter& parameter : study->parameters()) {
      if (parameter.name != "text" && parameter.name != "logits" && parameter.name != "peers") continue;
      EXPECT_EQ(message_of([&] {
                  study->cells({.parameters = {{parameter.name, "none"}}});
                }),
                parameter.name + ": 'none' is no file, expected --set " + parameter.name + "=FILE");
    }
  }
}

TEST(Studies, GrokkingTakesLossesByName) {
  const Study& study = study_from_name("grokking");
  const auto cells = [&](const char* losses) { return study.cells({.parameters = {{"losses", losses}}}); };
  EXPECT_EQ(cells("canonical,log_softmax-fp64").size(), 2 * cells("canonical").size());
  EXPECT_EQ(message_of([&] { cells("canonical,softmax"); }).rfind("losses: got 'softmax', expected all, or some of", 0),
            0u);
}

}  // namespace
}  // namespace tpce::sim
