#include "golden/trajectory.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <random>

#include "tests/support/scratch.h"

namespace tpce::golden {
namespace {

using testing::expect_parts;
using testing::message_of;
using testing::read_bytes;

const std::string kFolder = std::string(TPCE_TEST_DATA) + "/goldens/";

std::string joined(const Trajectory& trajectory) {
  std::string text;
  for (const Line& line : trajectory.lines()) text += line.text + line.end;
  return text;
}

std::string message_for(std::string_view text) {
  const std::string message = message_of([&] { Trajectory::parse(text, "g.txt"); });
  expect_parts(message, {"g.txt: "});
  return message;
}

TEST(Trajectory, ReadsEveryRealFileToTheByte) {
  int count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kFolder)) {
    if (!entry.is_regular_file() || entry.path().extension() == ".md") continue;
    const Trajectory trajectory = Trajectory::read(entry.path().string());
    EXPECT_EQ(trajectory.text(), read_bytes(entry.path().string())) << entry.path();
    if (trajectory.format() != TrajectoryFormat::kMegatron) {
      EXPECT_EQ(joined(trajectory), trajectory.text()) << entry.path();
    }
    ++count;
  }
  EXPECT_EQ(count, 7);
}

TEST(Trajectory, ReadsTheOldFormat) {
  const Trajectory trajectory = Trajectory::read(kFolder + "torchtitan/llama3_cuda_100steps.txt");
  EXPECT_EQ(trajectory.format(), TrajectoryFormat::kPlain);
  EXPECT_EQ(trajectory.columns(), (std::vector<std::string>{"loss"}));
  EXPECT_EQ(trajectory.rows().size(), 100u);
  EXPECT_EQ(trajectory.rows()[0].step, 1);
  EXPECT_EQ(trajectory.rows()[0].values[0], 8.049097061157227);
}

TEST(Trajectory, ReadsTheNewFormat) {
  const Trajectory trajectory = Trajectory::read(kFolder + "torchtitan/fake_pg_a10g_qwen3.txt");
  EXPECT_EQ(trajectory.format(), TrajectoryFormat::kColumns);
  EXPECT_EQ(trajectory.columns(), (std::vector<std::string>{"loss", "grad_norm"}));
  EXPECT_EQ(trajectory.find_step(9)->values[1], 2.3820613614095565e+17);
  EXPECT_EQ(trajectory.lines()[3].kind, Line::Kind::kColumns);
}

TEST(Trajectory, ReadsMegatronsJson) {
  const Trajectory trajectory = Trajectory::read(kFolder + "megatron/gpt3_mcore_te_tp2_pp2_dgx_a100.json");
  EXPECT_EQ(trajectory.format(), TrajectoryFormat::kMegatron);
  EXPECT_EQ(trajectory.columns()[0], "lm loss");
  EXPECT_EQ(trajectory.find_step(50)->values[0], 9.90869);
  EXPECT_EQ(trajectory.rows().size(), 11u);
}

TEST(Trajectory, ReadsMegatronsOlderLists) {
  const Trajectory trajectory = Trajectory::parse(
      R"({"lm loss": {"start_step": 0, "end_step": 14, "step_interval": 5, "values": [3, 2.5, "nan"]},
          "t": {"start_step": 5, "end_step": 5, "step_interval": 5, "values": {"5": 7}}})",
      "g.json");
  EXPECT_EQ(trajectory.find_step(5)->values[0], 2.5);
  EXPECT_TRUE(std::isnan(*trajectory.find_step(10)->values[0]));
  EXPECT_EQ(trajectory.find_step(5)->values[1], 7);
  EXPECT_EQ(trajectory.find_step(10)->values[1], std::nullopt);
}

// Megatron's scripts leave end_step out, other writers count it.
TEST(Trajectory, AMegatronListMayEndBeforeEndStepOrWithIt) {
  for (const auto& [values, steps] : {std::pair("[1, 2]", 2u), std::pair("[1, 2, 3]", 3u)}) {
    const std::string text = R"({"a": {"start_step": 0, "end_step": 10, "step_interval": 5, "values": )";
    const Trajectory trajectory = Trajectory::parse(text + values + "}}", "g.json");
    EXPECT_EQ(trajectory.rows().size(), steps);
  }
}

TEST(Trajectory, KeepsWhatItDoesNotUnderstand) {
  const std::string text =
      "\n# run 7\r\n#step  loss\tlr grad_norm\n\n 1\t2.50  1e-3 nan \r\n#mid\n3 +1_0.5 .5 -INF\n  \n2 0 0 0";
  const Trajectory trajectory = Trajectory::parse(text, "g");
  EXPECT_EQ(joined(trajectory), text);
  EXPECT_EQ(trajectory.columns(), (std::vector<std::string>{"loss", "lr", "grad_norm"}));
  ASSERT_EQ(trajectory.rows().size(), 3u);
  EXPECT_EQ(trajectory.rows()[1].step, 3);
  EXPECT_EQ(trajectory.rows()[1].values[0], 10.5);
  EXPECT_EQ(trajectory.lines()[trajectory.rows()[0].line].token(1), "2.50");
  EXPECT_EQ(trajectory.find_column("grad_norm"), 2u);
  EXPECT_EQ(trajectory.find_step(4), nullptr);
}

TEST(Trajectory, NamesColumnsWithoutALineForThem) {
  EXPECT_EQ(Trajectory::parse("1 2 3 4\n", "g").columns(), (std::vector<std::string>{"loss", "grad_norm", "column_4"}));
}

TEST(Trajectory, TellsSentencesFromColumnNames) {
  const Trajectory trajectory = Trajectory::parse("# step 1 is warm-up\n# step loss\n# step size 3 days\n1 2\n", "g");
  EXPECT_EQ(trajectory.columns(), (std::vector<std::string>{"loss"}));
  EXPECT_EQ(trajectory.lines()[0].kind, Line::Kind::kComment);
  expect_parts(message_for("# step loss\n1 2 3\n"), {"line 1", "'# step loss'", "names 2 columns", "line 2 has 3"});
}

TEST(Trajectory, NamesWhatIsMalformed) {
  expect_parts(message_for(""), {"no step"});
  expect_parts(message_for("# step loss\n\n"), {"no step"});
  expect_parts(message_for("1\n"), {"line 1", "'1' is alone"});
  expect_parts(message_for("1 2\n\nx 3\n"), {"line 3", "step 'x'"});
  expect_parts(message_for("1 2\n-3 3\n"), {"line 2", "step '-3'"});
  expect_parts(message_for("1.0 2\n"), {"line 1", "step '1.0'"});
  expect_parts(message_for("9223372036854775808 2\n"), {"line 1", "step '9223372036854775808'"});
  expect_parts(message_for("1 2\n2 3 4\n"), {"line 2", "2 values in '2 3 4', expected 1"});
  expect_parts(message_for("1 2 3\n2 3\n"), {"line 2", "1 values", "expected 2"});
  expect_parts(message_for("1 2,5\n"), {"line 1", "loss '2,5'"});
  expect_parts(message_for("# step loss lr\n1 2 0x1\n"), {"line 2", "lr '0x1'"});
  expect_parts(message_for("1 2\n2 1e999\n"), {"line 2", "loss '1e999'", "fp64"});
  expect_parts(message_for("1 2 -1_0e308\n"), {"line 1", "grad_norm '-1_0e308'", "fp64"});
  expect_parts(message_for("1 2 # good\n"), {"line 1", "grad_norm '#'"});
  expect_parts(message_for("1 2\n2 3\n\n1 2\n"), {"line 4", "step 1 stands twice", "line 1"});
  expect_parts(message_for("1 2\n01 2\n"), {"line 2", "step 1 stands twice"});
  expect_parts(message_for("# step loss loss\n1 2 3\n"), {"column 'loss' stands twice"});
  expect_parts(message_for("1 2\r2 3\r"), {"line 1", "carriage return"});
  expect_parts(message_for("\xef\xbb\xbf"
                           "1 2\n"),
               {"line 1", "'\\xef\\xbb\\xbf1'"});
}

TEST(Trajectory, NamesWhatIsMalformedInJson) {
  expect_parts(message_for("{}"), {"no step"});
  expect_parts(message_for("{"), {"invalid JSON"});
  expect_parts(message_for(R"({"a": 1})"), {"metric 'a'", "not an object"});
  expect_parts(message_for(R"({"a": {}})"), {"metric 'a'", "'start_step'"});
  const auto with = [&](std::string_view values) {
    return message_for(R"({"a": {"start_step": 1, "end_step": 5, "step_interval": 2, "values": )" +
                       std::string(values) + "}}");
  };
  expect_parts(with("1"), {"metric 'a'", "'values'"});
  expect_parts(with(R"({"x": 1})"), {"metric 'a'", "step 'x'"});
  expect_parts(with(R"({"7": 1})"), {"metric 'a'", "step 7 lies outside start_step 1 to end_step 5"});
  expect_parts(with(R"({"1": 1, "1": 2})"), {"'1' stands twice"});
  expect_parts(with(R"({"1": 1, "01": 2})"), {"step 1 stands twice"});
  expect_parts(with(R"({"1": null})"), {"step 1", "'null'"});
  expect_parts(with(R"({"1": "x"})"), {"step 1", "x"});
  expect_parts(with(R"({"1": "1e999"})"), {"step 1", "1e999"});
  expect_parts(with("[1, 2, 3, 4]"), {"step 7 lies outside"});
  expect_parts(with("[1]"), {"metric 'a'", "1 values", "at least 2", "start_step 1, end_step 5 and step_interval 2"});
  expect_parts(message_for(R"({"a": {"start_step": 1, "end_step": 5, "step_interval": 0, "values": [1]}})"),
               {"metric 'a'", "'step_interval' is 0"});
  expect_parts(with("[[[[1]]]]"), {"nests deeper"});
  expect_parts(with("[[1]]"), {"nests deeper"});
}

TEST(Trajectory, NamesFilesThatCannotBeRead) {
  expect_parts(message_of([] { Trajectory::read(kFolder); }), {"directory"});
  expect_parts(message_of([] { Trajectory::read(kFolder + "none.txt"); }), {"none.txt", "No such file"});
}

TEST(Trajectory, SurvivesMutations) {
  std::mt19937 random(3);
  for (const char* name : {"torchtitan/fake_pg_a10g_qwen3.txt", "megatron/gpt3_mcore_te_tp2_pp2_dgx_a100.json"}) {
    const std::string whole = read_bytes(kFolder + name);
    for (int trial = 0; trial < 5000; ++trial) {
      std::string text = whole;
      for (auto edits = 1 + random() % 4; edits > 0; --edits) {
        const std::size_t at = random() % text.size();
        const char byte =
            random() % 3 == 0 ? static_cast<char>(random()) : "0123456789.e+- \n\r\t#{}\":,"[random() % 24];
        if (random() % 3 == 0) {
          text.erase(at, 1 + random() % 20);
        } else {
          text[at] = byte;
        }
        if (text.empty()) text.push_back('\n');
      }
      try {
        const Trajectory trajectory = Trajectory::parse(text, "g");
        if (trajectory.format() != TrajectoryFormat::kMegatron) {
          ASSERT_EQ(joined(trajectory), text);
        }
      } catch (const std::invalid_argument& error) {
        ASSERT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
      }
    }
  }
}

RC_GTEST_PROP(Trajectory, KeepsEveryByteOfAnyLayout, ()) {
  const auto gap = [] { return *rc::gen::element<std::string>(" ", "\t", "  ", " \t "); };
  const auto rows = *rc::gen::inRange(1, 8);
  const auto width = *rc::gen::inRange(1, 4);
  std::string text;
  for (int row = 0; row < rows; ++row) {
    text += *rc::gen::element<std::string>("", "\n", "# note\n", "#\r\n", "   \n", "# tpce: unknown x\n");
    text += *rc::gen::element<std::string>("", " ", "\t") + std::to_string(row);
    for (int column = 0; column < width; ++column) {
      text += gap() + *rc::gen::element<std::string>("1", "2.50", "-3e-7", "nan", "inf", ".5", "1_0");
    }
    text += *rc::gen::element<std::string>("", " ") + *rc::gen::element<std::string>("\n", "\r\n");
  }
  if (*rc::gen::arbitrary<bool>()) text.pop_back();
  const Trajectory trajectory = Trajectory::parse(text, "g");
  RC_ASSERT(joined(trajectory) == text);
  RC_ASSERT(trajectory.rows().size() == static_cast<std::size_t>(rows));
}

}  // namespace
}  // namespace tpce::golden
