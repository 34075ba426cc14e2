// What the pages of the studies that train say of results made by hand, a test a branch; and what their cells keep.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "sim/studies/study.h"

namespace tpce::sim {
namespace {

namespace fs = std::filesystem;

Page page_of(const char* study, const std::vector<Json>& results, const StudyOptions& options = {}) {
  return study_from_name(study).page(options, results);
}

std::string conclusion(const char* study, const std::vector<Json>& results, const StudyOptions& options = {}) {
  return page_of(study, results, options).conclusion;
}

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)
#define EXPECT_NOT_SAYS(text, part) EXPECT_EQ((text).find(part), std::string::npos) << (text)

Json name_fields(const std::string& name) {
  const std::size_t dash = name.find('-');
  return {{"method", name.substr(0, dash)}, {"precision", dash == std::string::npos ? "fp32" : name.substr(dash + 1)}};
}

// Ends at a test accuracy that its last two measurements, a tenth of them, have as their mean alone.
Json grokking_run(const std::string& name, int seed, double test, double without_target = 0.0) {
  Json run = name_fields(name);
  run.update(
      {{"share", 0.8}, {"seed", seed}, {"best_test", test}, {"first_without_target", without_target > 0 ? 7 : 0}});
  for (int i = 1; i <= 20; ++i) {
    run["curve"].push_back({{"epoch", 50 * i},
                            {"loss", 0.5},
                            {"train", 1.0},
                            {"test", i < 19    ? 0.0
                                     : i == 19 ? test + 0.1
                                               : test - 0.1},
                            {"collapsed", without_target},
                            {"without_target", i < 19 ? 0.0 : without_target},
                            {"grad_norm", 0.1},
                            {"gradient_sum", 1e-8}});
  }
  return run;
}

Json diverged(Json run) {
  run["curve"].back()["loss"] = nullptr;
  return run;
}

// Two seeds in which the canonical loss and its control end where they do.
std::vector<Json> grokking_base(double first = 0.8, double second = 0.7, double control = 0.01) {
  return {grokking_run("canonical", 1, first), grokking_run("canonical", 2, second),
          grokking_run("softplus_recompute", 1, first + control),
          grokking_run("softplus_recompute", 2, second - control / 2)};
}

std::vector<Json> with(std::vector<Json> results, const std::vector<Json>& more) {
  results.insert(results.end(), more.begin(), more.end());
  return results;
}

TEST(GrokkingPage, CollapseHurtsWhereEveryLossEndsLowerInEverySeed) {
  const std::string text = conclusion("grokking", with(grokking_base(), {grokking_run("log_softmax", 1, 0.6, 0.5),
                                                                         grokking_run("log_softmax", 2, 0.55, 0.7)}));
  EXPECT_EQ(text.rfind("Collapse hurts here", 0), 0u) << text;
  EXPECT_SAYS(text, "knows 75.0 % of the other pairs (mean of 2 seeds)");
  EXPECT_SAYS(text, "log_softmax -20.0 to -15.0 points (60.0 %), lower in 2 of 2 seeds.");
  EXPECT_SAYS(text, "Less than 5.0 points count as alike, by choice; rounding alone, in softplus_recompute");
  EXPECT_SAYS(text, "makes up to 1.0.");
}

TEST(GrokkingPage, CollapseDoesNotHurtWhereNoLossEndsLower) {
  const std::string text =
      conclusion("grokking", with(grokking_base(), {grokking_run("log_softmax-bf16", 1, 0.9, 1.0),
                                                    grokking_run("log_softmax-bf16", 2, 0.66, 1.0)}));
  EXPECT_EQ(text.rfind("Collapse does not hurt here", 0), 0u) << text;
  EXPECT_SAYS(text, "log_softmax-bf16 -4.0 to +10.0 points (100.0 %), lower in 0 of 2 seeds.");
}

// One loss that ends lower does not speak for another that collapses more.
TEST(GrokkingPage, SaysWhereLossesAndSeedsDisagree) {
  const std::vector<Json> fp32 =
      with(grokking_base(), {grokking_run("log_softmax", 1, 0.6, 0.5), grokking_run("log_softmax", 2, 0.5, 0.5)});
  const auto with_bf16 = [&](double first, double second) {
    return conclusion("grokking", with(fp32, {grokking_run("log_softmax-bf16", 1, first, 1.0),
                                              grokking_run("log_softmax-bf16", 2, second, 1.0)}));
  };
  EXPECT_EQ(with_bf16(0.8, 0.7).rfind("Whether collapse hurts depends on the loss here.", 0), 0u);
  EXPECT_EQ(with_bf16(0.8, 0.6).rfind("Whether collapse hurts depends on the loss and the seed here.", 0), 0u);
  EXPECT_SAYS(with_bf16(0.8, 0.6), "lower in 1 of 2 seeds");
  EXPECT_EQ(conclusion("grokking", with(grokking_base(), {grokking_run("log_softmax", 1, 0.6, 0.5),
                                                          grokking_run("log_softmax", 2, 0.7, 0.5)}))
                .rfind("Whether collapse hurts depends on the seed here.", 0),
            0u);
}

TEST(GrokkingPage, SaysNothingOfCollapseWhereThereIsNone) {
  const std::string text = conclusion(
      "grokking", with(grokking_base(), {grokking_run("log_softmax", 1, 0.6), grokking_run("log_softmax", 2, 0.5)}));
  EXPECT_EQ(text.rfind("No row of any loss lost its target gradient here", 0), 0u) << text;
  EXPECT_NOT_SAYS(text, "hurt");
}

TEST(GrokkingPage, OneSeedGivesNumbersAndNoVerdict) {
  const std::string text =
      conclusion("grokking", {grokking_run("log_softmax-fp64", 1, 0.9, 0.7), grokking_run("log_softmax", 1, 0.6, 0.75),
                              grokking_run("canonical", 1, 0.95)});
  EXPECT_EQ(text.rfind("No verdict: one seed tells no loss from chance.", 0), 0u) << text;
  EXPECT_SAYS(text, "60.0 % with log_softmax (75.0 % of the rows without target gradient) and 95.0 % with canonical.");
  EXPECT_NOT_SAYS(text, "hurt");
  EXPECT_NOT_SAYS(text, "trains like");
}

// What rounding alone does widens the scale; a control that collapses is none.
TEST(GrokkingPage, TheScaleIsThatOfTheControl) {
  const std::vector<Json> lower{grokking_run("log_softmax", 1, 0.7, 0.5), grokking_run("log_softmax", 2, 0.6, 0.5)};
  EXPECT_EQ(conclusion("grokking", with(grokking_base(), lower)).rfind("Collapse hurts here", 0), 0u);
  const std::string wide = conclusion("grokking", with(grokking_base(0.8, 0.7, 0.12), lower));
  EXPECT_EQ(wide.rfind("Collapse does not hurt here", 0), 0u) << wide;
  EXPECT_SAYS(wide, "Less than 12.0 points count as alike, since rounding alone, in softplus_recompute");
  EXPECT_SAYS(wide, "makes so much.");
  std::vector<Json> collapsed = with(grokking_base(0.8, 0.7, 0.12), lower);
  for (Json& run : collapsed) {
    if (run["method"] == "softplus_recompute") run["first_without_target"] = 9;
  }
  EXPECT_SAYS(conclusion("grokking", collapsed),
              "Less than 5.0 points count as alike, by choice; no run shows what rounding alone does.");
}

TEST(GrokkingPage, NothingIsHeldAgainstACanonicalLossThatIsNoMeasure) {
  const Json usual = grokking_run("log_softmax", 1, 0.6, 0.5);
  EXPECT_SAYS(conclusion("grokking", {usual}), "left out the canonical loss");
  EXPECT_EQ(conclusion("grokking", {usual, grokking_run("canonical", 1, 0.8, 0.1)}).rfind("No verdict", 0), 0u);
  const std::string text = conclusion("grokking", {usual, diverged(grokking_run("canonical", 1, 0.8))});
  EXPECT_EQ(text.rfind("No verdict", 0), 0u) << text;
  EXPECT_SAYS(text, "diverged: canonical with seed 1.");
  // Of two seeds one is left, and one gives no verdict.
  EXPECT_SAYS(conclusion("grokking", {usual, grokking_run("log_softmax", 2, 0.5, 0.5),
                                      grokking_run("canonical", 1, 0.8), grokking_run("canonical", 2, 0.8, 0.1)}),
              "No verdict: one seed");
}

// What the canonical loss knows is the mean over the seeds in which it is a measure.
TEST(GrokkingPage, ASeedThatIsNoMeasureIsNotInTheMean) {
  const std::vector<Json> more{grokking_run("canonical", 3, 0.3, 0.9), diverged(grokking_run("canonical", 4, 0.01))};
  EXPECT_SAYS(conclusion("grokking", with(grokking_base(), more)), "knows 75.0 % of the other pairs (mean of 2 seeds)");
}

TEST(GrokkingPage, ARunThatDivergesIsNamedAndNotWeighed) {
  const std::string text =
      conclusion("grokking", with(grokking_base(), {diverged(grokking_run("log_softmax", 1, 0.01, 0.5)),
                                                    grokking_run("log_softmax", 2, 0.7, 0.5)}));
  EXPECT_EQ(text.rfind("Collapse does not hurt here", 0), 0u) << text;
  EXPECT_SAYS(text, "Not weighed, as the run diverged: log_softmax with seed 1.");
}

TEST(GrokkingPage, CanonicalAgainstFp64) {
  const auto claim = [](double first, double second, double without_target) {
    return conclusion("grokking", with(grokking_base(), {grokking_run("log_softmax-fp64", 1, first, without_target),
                                                         grokking_run("log_softmax-fp64", 2, second, without_target)}));
  };
  EXPECT_SAYS(claim(0.81, 0.7, 0.1), "Canonical fp32 trains like fp64: it ends -1.0 to 0.0 points from it.");
  const std::string above = claim(0.7, 0.5, 0.7);
  EXPECT_SAYS(above,
              "Canonical fp32 ends above fp64 in every seed, +10.0 to +20.0 points from it; in fp64 70.0 % of the");
  EXPECT_NOT_SAYS(claim(0.7, 0.5, 0.0), "in fp64");
  const std::string below = claim(0.9, 0.9, 0.0);
  EXPECT_SAYS(below,
              "does not hold: it ends -20.0 to -10.0 points from it, above it in 0 and below it in 2 of 2 seeds.");
  EXPECT_SAYS(claim(0.9, 0.5, 0.0), "-10.0 to +20.0 points from it, above it in 1 and below it in 1 of 2 seeds.");
  EXPECT_NOT_SAYS(claim(0.9, 0.5, 0.0), "trains like fp64: it");
}

// Forty steps of the same batches, whose losses scatter by far more than the runs differ.
Json convergence_run(const std::string& method, int tp, double shift, bool partial_sums = false) {
  Json run{{"method", method}, {"precision", "fp32"}, {"tp", tp}, {"partial_sums", partial_sums}};
  for (int i = 0; i < 40; ++i) {
    run["loss"].push_back(4.0 + 0.2 * (i % 5) + shift);
    run["grad_norm"].push_back(1.0);
    run["collapsed"].push_back(0.0);
    run["without_target"].push_back(0.0);
  }
  run["sketch"] = {{"sums", std::vector<double>(256, shift)}, {"squares", 1.0}};
  return run;
}

std::vector<Json> convergence_runs(double log_softmax, double noise) {
  return {convergence_run("canonical", 1, 0.0),
          convergence_run("canonical", 2, 0.0),
          convergence_run("canonical", 4, 0.0),
          convergence_run("log_softmax", 1, log_softmax),
          convergence_run("log_softmax", 2, log_softmax + noise),
          convergence_run("log_softmax", 4, log_softmax - noise),
          convergence_run("canonical", 2, noise, true),
          convergence_run("canonical", 4, -noise, true)};
}

TEST(ConvergencePage, LossesAreAlikeWithinWhatReorderedSumsDo) {
  const std::string text = conclusion("convergence", convergence_runs(2e-4, 1e-4));
  EXPECT_EQ(text.rfind("No: where nothing collapses, the losses lead to the same place.", 0), 0u) << text;
  EXPECT_SAYS(text,
              "by at most 0.0002, and between 4 pairs of runs that differ only in the order of sums by 0.0001 root");
  EXPECT_SAYS(text, "none of all steps differ between tp 1, 2 and 4; with the other losses 2 of 2 runs");
}

// Every run has the scatter of the batches: it hides no difference of two runs. Neither does the distance of a loss
// that is apart count as noise where its own tp 1 is apart as far.
TEST(ConvergencePage, ADifferenceBelowTheScatterIsFound) {
  const std::string text = conclusion("convergence", convergence_runs(5e-4, 1e-4));
  EXPECT_EQ(text.rfind("Yes, where nothing collapses: the losses end further", 0), 0u) << text;
  EXPECT_SAYS(text, "log_softmax by +0.0005.");
  EXPECT_EQ(conclusion("convergence", convergence_runs(1e-6, 0.0)).rfind("Yes", 0), 0u);
  EXPECT_EQ(conclusion("convergence", convergence_runs(0.0, 0.0)).rfind("No: ", 0), 0u);
  // Less than an ulp of the loss is the method's own rounding.
  EXPECT_EQ(conclusion("convergence", convergence_runs(4e-7, 0.0)).rfind("No: ", 0), 0u);
}

// Few differences make a noise that is not well known: of 4, 3 times their root mean square is nothing rare, as of many
// it would be. Student's t of 4 degrees is beyond 4.604 once in 100 times, and each of 3 losses beyond 6.254 once in
// 300.
TEST(ConvergencePage, TheRatioIsStudentsForSoFewPairs) {
  const std::string within = conclusion("convergence", convergence_runs(4.6e-4, 1e-4));
  EXPECT_EQ(within.rfind("No: ", 0), 0u) << within;
  EXPECT_SAYS(within, "More than 4.6 times the root mean square and an ulp of the loss, 4.8e-07, counts as apart");
  EXPECT_SAYS(within, "one of 1 independent normal differences so far once in 100 times (Student's t of 4 degrees)");
  EXPECT_EQ(conclusion("convergence", convergence_runs(4.61e-4, 1e-4)).rfind("Yes", 0), 0u);
  std::vector<Json> runs = convergence_runs(6.25e-4, 1e-4);
  for (const char* method : {"megatron", "softplus_recompute"}) runs.push_back(convergence_run(method, 1, 0.0));
  const std::string three = conclusion("convergence", runs);
  EXPECT_EQ(three.rfind("No: ", 0), 0u) << three;
  EXPECT_SAYS(three, "More than 6.3 times");
}

TEST(ConvergencePage, CollapseIsLookedForBeforeItIsDenied) {
  std::vector<Json> runs = convergence_runs(2e-4, 1e-4);
  runs[4]["without_target"][7] = 0.03;
  const std::string text = conclusion("convergence", runs);
  EXPECT_EQ(text.rfind("No: with up to 3 % of a step's rows without target gradient (log_softmax-tp2), the losses", 0),
            0u)
      << text;
  EXPECT_NOT_SAYS(text, "nothing collapses");
}

TEST(ConvergencePage, ARunThatDivergesIsNamedAndNoVerdictGiven) {
  for (const char* field : {"loss", "grad_norm"}) {
    std::vector<Json> runs = convergence_runs(2e-4, 1e-4);
    for (std::size_t i = 29; i < 40; ++i) runs[5][field][i] = nullptr;
    runs[5]["sketch"] = {{"sums", std::vector<Json>(256, nullptr)}, {"squares", nullptr}};
    EXPECT_EQ(
        conclusion("convergence", runs),
        "No verdict, since runs diverge: the loss or its gradient is not finite in log_softmax-tp4 from step 30 on.");
  }
}

TEST(ConvergencePage, CanonicalStepsThatDifferAreCounted) {
  std::vector<Json> runs = convergence_runs(2e-4, 1e-4);
  runs[2]["grad_norm"][3] = 1.5;
  EXPECT_SAYS(conclusion("convergence", runs), "With the canonical loss 1 of all steps differ");
}

TEST(ConvergencePage, GoldenFilesRecordTheVersion) {
  const Page page = page_of("convergence", convergence_runs(2e-4, 1e-4));
  ASSERT_EQ(page.files.size(), 8u);
  for (const Attachment& file : page.files) {
    EXPECT_EQ(file.text.rfind("# tpce: version " TPCE_VERSION "\n", 0), 0u) << file.name;
  }
}

Json finetune_run(const std::string& name, double distance, double without_target = 0.0) {
  Json run = name_fields(name);
  run.update({{"tp", 1},
              {"partial_sums", false},
              {"accuracy", {{3000, 0.99, 0.04}}},
              {"sketch", {{"sums", std::vector<double>(256, distance)}, {"squares", 1.0}}},
              {"first_without_target", without_target > 0 ? 33 : 0},
              {"steps", 200}});
  for (int i = 0; i < 20; ++i) {
    for (const char* curve : {"loss", "grad_norm", "gradient_sum"}) run[curve].push_back(0.5);
    for (const char* curve : {"collapsed", "without_target"}) run[curve].push_back(without_target);
  }
  return run;
}

std::vector<Json> finetune_runs(const Json& usual, const Json& narrow) {
  return {finetune_run("canonical", 0.0), usual, narrow, finetune_run("log_softmax-fp64", 0.3),
          finetune_run("softplus_recompute", 0.25)};
}

TEST(FinetunePage, CannotTellWhereTheControlsAreAsLarge) {
  const std::string text = conclusion(
      "finetune", finetune_runs(finetune_run("log_softmax", 0.4, 0.05), finetune_run("log_softmax-bf16", 1.3, 0.9)));
  EXPECT_EQ(text.rfind("With the usual fp32 loss rows lose their target gradient from step 33 on.", 0), 0u) << text;
  EXPECT_SAYS(text, "apart by 0.4 of their norm");
  EXPECT_SAYS(text, "end up to 0.3 apart, so that what collapse does to the model cannot be told from that.");
  EXPECT_SAYS(text, "In bf16 rows do from step 33 on, 90.0 % of them at the end; that run ends 1.3 of the norm apart");
}

TEST(FinetunePage, CollapseShowsBeyondTheControls) {
  const std::string text = conclusion(
      "finetune", finetune_runs(finetune_run("log_softmax", 0.7, 0.05), finetune_run("log_softmax-bf16", 0.2)));
  EXPECT_SAYS(text, "end up to 0.3 apart, less than half as far: collapse shows in the model.");
  EXPECT_SAYS(text, "In bf16 no row does; that run ends 0.2 of the norm apart.");
  EXPECT_NOT_SAYS(text, "from step 0");
}

// Without a collapsed row the usual loss is judged as before, and is no control of its own.
TEST(FinetunePage, TheRunThatIsJudgedIsNoControl) {
  const std::string text = conclusion(
      "finetune", finetune_runs(finetune_run("log_softmax", 0.9), finetune_run("log_softmax-bf16", 0.2, 0.1)));
  EXPECT_EQ(text.rfind("No row lost its target gradient with the usual fp32 loss in this run.", 0), 0u) << text;
  EXPECT_SAYS(text, "end up to 0.3 apart, less than half as far, though nothing collapsed.");
}

TEST(FinetunePage, ControlsThatCollapseAreNone) {
  const std::vector<Json> quick{finetune_run("canonical", 0.0), finetune_run("log_softmax", 0.4, 0.05),
                                finetune_run("log_softmax-bf16", 0.5, 0.1)};
  const std::string none = "no run shows how far rounding alone would set them apart";
  EXPECT_SAYS(conclusion("finetune", quick), none);
  EXPECT_SAYS(conclusion("finetune", with(quick, {finetune_run("log_softmax-fp64", 0.3, 0.01)})), none);
  EXPECT_SAYS(conclusion("finetune", with(quick, {finetune_run("log_softmax-fp64", 0.3)})),
              "two runs that differ by rounding alone, with no such row, end up to 0.3 apart, so that");
  std::vector<Json> collapsed = with(quick, {finetune_run("log_softmax-fp64", 0.3)});
  collapsed[0]["first_without_target"] = 5;
  EXPECT_SAYS(conclusion("finetune", collapsed), none);
}

TEST(FinetunePage, RunsThatDivergeAreNamed) {
  const auto gone = [](Json run) {
    run["loss"].back() = nullptr;
    run["sketch"] = {{"sums", std::vector<Json>(256, nullptr)}, {"squares", nullptr}};
    return run;
  };
  const Json usual = finetune_run("log_softmax", 0.4, 0.05), narrow = finetune_run("log_softmax-bf16", 0.5, 0.1);
  const std::string text = conclusion("finetune", finetune_runs(usual, gone(narrow)));
  EXPECT_SAYS(text, "cannot be told from that. Diverged: log_softmax-bf16.");
  EXPECT_NOT_SAYS(text, "In bf16");
  EXPECT_EQ(conclusion("finetune", finetune_runs(gone(usual), narrow)),
            "No verdict: a run that the question is about diverged. Diverged: log_softmax.");
}

// A run that is killed before its result is written goes on from the last checkpoint: one that is damaged is noticed.
TEST(TrainingStudies, ACellKeepsItsCheckpoint) {
  std::string folder = (fs::temp_directory_path() / "cells.XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::vector<Cell> cells = study_from_name("grokking").cells({.scale = Scale::kQuick});
  const Cell& cell = cells.front();
  const Json first = cell.compute(folder);
  const fs::path checkpoint = fs::path(folder) / (cell.key + ".checkpoint");
  ASSERT_TRUE(fs::exists(checkpoint));
  EXPECT_EQ(cell.compute(folder), first);
  fs::resize_file(checkpoint, fs::file_size(checkpoint) - 1);
  EXPECT_THROW(cell.compute(folder), std::invalid_argument);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace tpce::sim
