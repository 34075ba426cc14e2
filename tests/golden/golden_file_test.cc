#include "golden/golden_file.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "golden/python_float.h"
#include "tests/support/scratch.h"
#include "tpce/dtype.h"

namespace tpce::golden {
namespace {

using testing::expect_parts;
using testing::message_of;
using testing::read_bytes;

const std::string kFolder = std::string(TPCE_TEST_DATA) + "/goldens/";
const std::string kDigest(64, 'a');

Results results_of(const std::vector<std::pair<float, float>>& numbers) {
  Results results{"0.1.0", {}, {}};
  for (const auto& [loss, grad_norm] : numbers) {
    const auto step = static_cast<std::int64_t>(results.steps.size()) + 1;
    results.steps.push_back({step, Input{kDigest, {}, 64, 49152, DType::kBFloat16}, loss, grad_norm});
  }
  return results;
}

Update update(const std::string& text, const Results& results, const UpdateOptions& options = {}) {
  return update_golden(Trajectory::parse(text, "g.txt"), results, options);
}

TEST(MakeGolden, HasTheseBytes) {
  EXPECT_EQ(make_golden(results_of({{2.5f, 0.1f}, {canonical_nan(), 1e20f}})),
            "# tpce: version 0.1.0\n"
            "# tpce: method canonical\n"
            "# tpce: input 1 sha256=" +
                kDigest +
                " rows=64 vocab=49152 dtype=bf16\n"
                "# tpce: bits 1 loss=0x40200000 grad_norm=0x3dcccccd\n"
                "# tpce: input 2 sha256=" +
                kDigest +
                " rows=64 vocab=49152 dtype=bf16\n"
                "# tpce: bits 2 loss=0x7fc00000 grad_norm=0x60ad78ec\n"
                "# step loss grad_norm\n"
                "1 2.5 0.10000000149011612\n"
                "2 nan 1.0000000200408773e+20\n");
}

TEST(MakeGolden, RefusesStepsThatCannotBe) {
  expect_parts(message_of([] { make_golden({}); }), {"no step"});
  Results twice = results_of({{1, 1}, {2, 2}});
  twice.steps[1].step = 1;
  expect_parts(message_of([&] { make_golden(twice); }), {"step 1 stands twice"});
  twice.steps[1].step = -1;
  expect_parts(message_of([&] { make_golden(twice); }), {"step -1"});
}

TEST(CheckGolden, PassesItsOwnFile) {
  const Results results = results_of({{2.5f, 0.1f}, {canonical_nan(), 1e20f}});
  const Check check = check_golden(Trajectory::parse(make_golden(results), "g"), results);
  EXPECT_TRUE(check.equal());
  EXPECT_TRUE(check.notes.empty());
  EXPECT_EQ(check.replacement, "");
}

TEST(CheckGolden, NamesEachDifferenceAndGivesTheBlockToPaste) {
  const std::string golden =
      "# config: mine\n# step loss lr grad_norm\n1 2.50 1e-3 0.5\n\n# half way\n2 2.25 1e-4 0.25\n3 2 1e-5 0.125\n";
  const Check check =
      check_golden(Trajectory::parse(golden, "g"), results_of({{2.5f, 0.5f}, {std::nextafterf(2.25f, 3), 0.25f}}));
  ASSERT_EQ(check.differences.size(), 2u);
  EXPECT_EQ(check.differences[0],
            "step 2: loss is 2.250000238418579 (0x40100001), the golden file has 2.25 (0x40100000), 1 ulp off");
  EXPECT_EQ(check.differences[1], "step 3: in the golden file only");
  EXPECT_EQ(check.notes, std::vector<std::string>{"column 'lr' is not computed here and was not checked"});
  EXPECT_TRUE(check.update.keep_columns);
  EXPECT_TRUE(check.update.drop_steps);
  EXPECT_EQ(check.replacement,
            "# config: mine\n"
            "# tpce: version 0.1.0\n"
            "# tpce: method canonical\n"
            "# tpce: input 1 sha256=" +
                kDigest +
                " rows=64 vocab=49152 dtype=bf16\n"
                "# tpce: bits 1 loss=0x40200000 grad_norm=0x3f000000\n"
                "# tpce: input 2 sha256=" +
                kDigest +
                " rows=64 vocab=49152 dtype=bf16\n"
                "# tpce: bits 2 loss=0x40100001 grad_norm=0x3e800000\n"
                "# step loss lr grad_norm\n1 2.50 1e-3 0.5\n\n# half way\n2 2.250000238418579 1e-4 0.25\n");
}

TEST(UpdateGolden, BitsAreInTheOrderOfTheColumns) {
  const std::string text = update("# step grad_norm lr loss\n1 0.5 1e-3 2.5\n", results_of({{2.5f, 0.5f}})).text;
  EXPECT_NE(text.find("# tpce: bits 1 grad_norm=0x3f000000 loss=0x40200000\n"), std::string::npos) << text;
}

TEST(CheckGolden, ANumberOrItsBitsEditedAloneIsADifference) {
  const Results results = results_of({{2.5f, 0.5f}});
  const std::string golden = make_golden(results);
  for (const auto& [from, to] : {std::pair("1 2.5", "1 2.6"), std::pair("loss=0x40200000", "loss=0x40200001")}) {
    std::string edited = golden;
    edited.replace(edited.find(from), std::string(from).size(), to);
    const Check check = check_golden(Trajectory::parse(edited, "g"), results);
    EXPECT_FALSE(check.equal()) << to;
    EXPECT_EQ(check.replacement, golden) << to;
  }
}

TEST(CheckGolden, NotesOtherInputsAndMethods) {
  Results results = results_of({{2.5f, 0.5f}});
  const Trajectory golden = Trajectory::parse(make_golden(results), "g");
  results.steps[0].input->sha256 = std::string(64, 'b');
  results.method = {"legacy", {{"tp", "2"}}};
  const Check check = check_golden(golden, results);
  EXPECT_TRUE(check.equal());
  ASSERT_EQ(check.notes.size(), 2u);
  expect_parts(check.notes[0], {"step 1", "bbbbbbbbbbbb", "aaaaaaaaaaaa"});
  expect_parts(check.notes[1], {"'legacy tp=2'", "'canonical'"});
}

TEST(CheckGolden, NotesOnlyWhatIsOtherInAnInput) {
  const Results recorded = results_of({{2.5f, 0.5f}});
  const Trajectory golden = Trajectory::parse(make_golden(recorded), "g");
  const auto note = [&](auto&& change) {
    Results results = recorded;
    change(*results.steps[0].input);
    const Check check = check_golden(golden, results);
    return check.notes.size() == 1 ? check.notes[0] : "";
  };
  const std::string rows = std::to_string(recorded.steps[0].input->rows);
  const std::string vocab = std::to_string(recorded.steps[0].input->vocab);
  EXPECT_EQ(note([](Input& input) { input.vocab += 1; }), "step 1: the logits are " + rows + " x " +
                                                              std::to_string(recorded.steps[0].input->vocab + 1) +
                                                              ", bf16, recorded " + rows + " x " + vocab + ", bf16");
  EXPECT_EQ(note([](Input& input) { input.labels_sha256 = std::string(64, 'c'); }),
            "step 1: the labels are not those recorded (sha256 cccccccccccc..., recorded in the file of the logits)");
}

TEST(CheckGolden, TellsAStepThatTheFileLacksAndZerosApart) {
  const Trajectory golden = Trajectory::parse("1 0.0\n", "g");
  EXPECT_TRUE(check_golden(golden, results_of({{0.0f, 1}})).equal());
  EXPECT_FALSE(check_golden(golden, results_of({{-0.0f, 1}})).equal());
  const Check check = check_golden(golden, results_of({{0.0f, 1}, {1, 1}}));
  ASSERT_EQ(check.differences.size(), 1u);
  EXPECT_EQ(check.differences[0], "step 2: not in the golden file");
}

TEST(CheckGolden, RefusesFilesThatCannotBeChecked) {
  const Results results = results_of({{1, 1}});
  const auto message = [&](const Trajectory& golden) { return message_of([&] { check_golden(golden, results); }); };
  expect_parts(message(Trajectory::read(kFolder + "megatron/gpt3_mcore_te_tp2_pp2_dgx_a100.json")),
               {"Megatron", "compared only"});
  expect_parts(message(Trajectory::parse("# step lr\n1 2\n", "g.txt")), {"g.txt", "no column loss"});
  expect_parts(message_of([&] {
                 update("# step loss lr\n1 1 3\n", results_of({{1, 1}, {2, 2}}));
               }),
               {"g.txt", "step 2 is new", "'lr'"});
}

TEST(UpdateGolden, ChangesNothingInItsOwnFile) {
  const Results results = results_of({{2.5f, 0.1f}, {1, 1}});
  const std::string text = make_golden(results);
  const Update updated = update(text, results);
  EXPECT_EQ(updated.text, text);
  EXPECT_TRUE(updated.edits.empty());
}

TEST(UpdateGolden, DropsStepsOnlyWhereToldTo) {
  const std::string text = "# step loss grad_norm\n1 2.5 0.5\n2 3 4\n7 3 4\n";
  const Results results = results_of({{2.5f, 0.5f}});
  expect_parts(message_of([&] { update(text, results); }), {"g.txt: ", "step 2, 7 ", "2 of its 3", "--drop-steps"});
  const Update dropped = update(text, results, {.drop_steps = true});
  EXPECT_TRUE(dropped.text.ends_with("# step loss grad_norm\n1 2.5 0.5\n")) << dropped.text;
  std::string many;
  for (int step = 1; step <= 30; ++step) many += std::to_string(step) + " 2.5\n";
  expect_parts(message_of([&] { update(many, results); }), {"step 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ... (29 of its 30"});
}

TEST(UpdateGolden, KeepsColumnsOfOthersOnlyWhereTheirRowStaysOrToldTo) {
  const std::string text = "# step loss lr\n1 2.5 1e-3\n2 3 1e-4\n";
  const Results same = results_of({{2.5f, 0.5f}, {3, 1}});
  const Update kept = update(text, same);
  EXPECT_TRUE(kept.text.ends_with(text)) << kept.text;
  EXPECT_EQ(kept.notes, std::vector<std::string>{"column 'lr' is not computed here and stays as it is"});
  const Results other = results_of({{2.5f, 0.5f}, {4, 1}});
  expect_parts(message_of([&] { update(text, other); }), {"g.txt: ", "column 'lr'", "step 2", "--keep-columns"});
  const Update told = update(text, other, {.keep_columns = true});
  EXPECT_TRUE(told.text.ends_with("# step loss lr\n1 2.5 1e-3\n2 4.0 1e-4\n")) << told.text;
  EXPECT_EQ(told.notes, kept.notes);
  EXPECT_TRUE(update("# step loss grad_norm\n1 2.5 1\n", results_of({{2.5f, 0.5f}})).notes.empty());
}

TEST(UpdateGolden, ReplacesRecordLinesInPlace) {
  const std::string text =
      "# tpce: method legacy tp=2\n# mine\n# tpce: input 9 sha256=0\n# tpce: version 0.0.9\n# tpce: later x\n"
      "# step loss grad_norm\n1 2.5 0.5\n";
  const Update updated = update(text, results_of({{2.5f, 0.5f}}));
  EXPECT_EQ(updated.text,
            "# tpce: method canonical\n# mine\n# tpce: version 0.1.0\n"
            "# tpce: input 1 sha256=" +
                kDigest +
                " rows=64 vocab=49152 dtype=bf16\n"
                "# tpce: bits 1 loss=0x40200000 grad_norm=0x3f000000\n"
                "# tpce: later x\n# step loss grad_norm\n1 2.5 0.5\n");
  EXPECT_EQ(diff_text(updated.edits).substr(0, 68),
            "line 1:\n-# tpce: method legacy tp=2\n+# tpce: method canonical\nline 3");
  EXPECT_EQ(updated.edits.size(), 5u);
}

TEST(UpdateGolden, KeepsLineEndsAndAMissingLastOne) {
  const Update windows =
      update("# step loss grad_norm\r\n1 2.5 0.5\r\n2 3 4", results_of({{2.5f, 0.5f}, {3, 5}, {6, 7}}));
  EXPECT_EQ(windows.text.find('\n'), windows.text.find("\r\n") + 1);
  EXPECT_TRUE(windows.text.ends_with("# step loss grad_norm\r\n1 2.5 0.5\r\n2 3 5.0\r\n3 6.0 7.0")) << windows.text;
  for (std::size_t i = 0; i < windows.text.size(); ++i) {
    if (windows.text[i] == '\n') {
      EXPECT_EQ(windows.text[i - 1], '\r');
    }
  }
  const Update again = update(windows.text, results_of({{2.5f, 0.5f}, {3, 5}, {6, 7}}));
  EXPECT_EQ(again.text, windows.text);
  EXPECT_TRUE(again.edits.empty());
}

TEST(UpdateGolden, WritesOnlyTheLossOfAnOldFile) {
  const Update updated = update("1 2.5\n2 3.5\n", results_of({{2.5f, 0.5f}, {4, 0.5f}, {5, 1}}));
  EXPECT_TRUE(updated.text.ends_with("# tpce: bits 3 loss=0x40a00000\n1 2.5\n2 4.0\n3 5.0\n")) << updated.text;
  EXPECT_EQ(updated.text.find("grad_norm"), std::string::npos);
}

TEST(UpdateGolden, KeepsEveryRealFileWhoseNumbersStay) {
  for (const auto& entry : std::filesystem::directory_iterator(kFolder + "torchtitan")) {
    const Trajectory golden = Trajectory::read(entry.path().string());
    Results results{"0.1.0", {}, {}};
    for (const Row& row : golden.rows()) {
      const double grad_norm = row.values.size() > 1 ? *row.values[1] : 0;
      results.steps.push_back({row.step, Input{kDigest, {}, 1, 2, DType::kFloat32}, static_cast<float>(*row.values[0]),
                               static_cast<float>(grad_norm)});
    }
    EXPECT_TRUE(check_golden(golden, results).equal()) << entry.path();
    std::string kept;
    const Trajectory updated = Trajectory::parse(update_golden(golden, results).text, "g");
    for (const Line& line : updated.lines()) {
      if (!record_key(line)) kept += line.text + line.end;
    }
    EXPECT_EQ(kept, golden.text()) << entry.path();
  }
}

// Any file, any new numbers: the update reads back as those numbers, keeps all foreign text, and updating again changes
// nothing.
RC_GTEST_PROP(UpdateGolden, IsAFixedPointThatKeepsTheRest, ()) {
  const auto number = [] {
    return bit_cast<float>(*rc::gen::element<std::uint32_t>(0u, 0x80000000u, 0x7fc00000u, 0x7f800000u, 0x3dcccccdu,
                                                            0x60ad78ecu, 0x00000001u, 0x40200000u));
  };
  const auto newline = *rc::gen::element<std::string>("\n", "\r\n");
  const auto old_steps = *rc::gen::inRange(1, 6);
  std::string text = *rc::gen::element<std::string>("", "# mine" + newline, newline);
  text += "# step loss grad_norm" + newline;
  for (int step = 1; step <= old_steps; ++step) {
    text += std::to_string(step) + *rc::gen::element<std::string>(" ", "\t") + python_repr(number()) + " " +
            python_repr(number()) + *rc::gen::element<std::string>("", " ") + newline;
    text += *rc::gen::element<std::string>("", "# between" + newline, newline);
  }
  Results results = results_of({});
  const auto new_steps = *rc::gen::inRange(1, 6);
  for (int step = 1; step <= new_steps; ++step) {
    results.steps.push_back({step, Input{kDigest, {}, 1, 2, DType::kFloat32}, number(), number()});
  }
  const Update first = update(text, results, {.drop_steps = true});
  const Trajectory golden = Trajectory::parse(first.text, "g");
  RC_ASSERT(check_golden(golden, results).equal());
  RC_ASSERT(golden.rows().size() == static_cast<std::size_t>(new_steps));
  RC_ASSERT(read_record(golden).bits.size() == static_cast<std::size_t>(new_steps));
  std::string foreign;
  for (const Line& line : golden.lines()) {
    if (!record_key(line) && line.kind != Line::Kind::kRow) foreign += line.text + line.end;
  }
  std::string old_foreign;
  const Trajectory old_file = Trajectory::parse(text, "g");
  for (const Line& line : old_file.lines()) {
    if (line.kind != Line::Kind::kRow) old_foreign += line.text + line.end;
  }
  RC_ASSERT(foreign == old_foreign);
  const Update second = update(first.text, results);
  RC_ASSERT(second.text == first.text);
  RC_ASSERT(second.edits.empty());
}

}  // namespace
}  // namespace tpce::golden
