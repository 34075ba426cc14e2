// What the studies find, in small: facts that follow from derivations, and results that must not change unseen.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numbers>
#include <set>
#include <thread>

#include "sim/methods/method.h"
#include "sim/studies/collapse.h"
#include "sim/studies/errors.h"
#include "sim/studies/study.h"

namespace tpce::sim {
namespace {

namespace fs = std::filesystem;

const StudyOptions kQuick{.scale = Scale::kQuick};

Json result_of(std::string_view name, const std::string& key) {
  const Study& study = study_from_name(name);
  StudyOptions options = kQuick;
  for (const Parameter& parameter : study.parameters()) {
    if (parameter.name == "text") options.parameters["text"] = TPCE_SOURCE_DIR "/" + parameter.value;
  }
  for (const Cell& cell : study.cells(options)) {
    if (cell.key != key) continue;
    std::string folder = (fs::temp_directory_path() / "cells.XXXXXX").string();  // of its own: it keeps a checkpoint
    if (mkdtemp(folder.data()) == nullptr) throw std::runtime_error("cannot make " + folder);
    const Json result = Json::parse(cell.compute(folder).dump());
    fs::remove_all(folder);
    return result;
  }
  throw std::invalid_argument("no cell " + key);
}

std::int64_t differences(const Json& result) {
  std::int64_t total = 0;
  for (const Json& v : result["variations"]) {
    total += v["losses"].get<std::int64_t>() + v["gradients"].get<std::int64_t>();
  }
  return total;
}

TEST(InvarianceStudy, OnlyTheCanonicalLossKeepsItsBits) {
  EXPECT_EQ(differences(result_of("invariance", "canonical")), 0);
  EXPECT_EQ(differences(result_of("invariance", "library")), 0);
  for (const char* method : {"log_softmax", "softplus_recompute", "cross_entropy"}) {
    EXPECT_GT(differences(result_of("invariance", method)), 0) << method;
  }
}

// What a method does not read cannot vary it, and 0 differences there would be no finding.
TEST(InvarianceStudy, NothingIsVariedThatAMethodDoesNotRead) {
  using Groups = std::set<std::string>;
  const auto groups = [](const char* method) {
    Groups found;
    const Json result = result_of("invariance", method);
    for (const Json& v : result["variations"]) found.insert(v["group"].get<std::string>());
    return found;
  };
  EXPECT_EQ(groups("canonical"), Groups{"tp"});
  for (const char* method : {"cross_entropy", "liger", "all_gather_cross_entropy"}) {
    EXPECT_EQ(groups(method), (Groups{"order", "threads"})) << method;
  }
  for (const char* method : {"transformer_engine", "flash_attention"}) {
    EXPECT_EQ(groups(method), (Groups{"tp", "order", "threads"})) << method;
  }
  EXPECT_EQ(groups("megatron"), (Groups{"tp", "order", "all-reduce", "batch", "threads"}));
}

// With two classes of four rows asked for, too, rows differ in where the target stands.
TEST(CollapseStudy, RowsDifferInTheirTarget) {
  EXPECT_EQ(target_places(2, 4), (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(target_places(1024, 4), (std::vector<std::int64_t>{0, 257, 514, 771}));
  for (std::int64_t vocab = 2; vocab < 40; ++vocab) {
    const std::vector<std::int64_t> targets = target_places(vocab, 4);
    EXPECT_EQ(static_cast<std::int64_t>(targets.size()), std::min<std::int64_t>(vocab, 4));
    EXPECT_EQ(std::adjacent_find(targets.begin(), targets.end(), std::greater_equal<>()), targets.end()) << vocab;
    EXPECT_LT(targets.back(), vocab);
  }
}

// The bounds of the two forms cross at 3/8; far from there each is worse where the derivation says so.
TEST(ThresholdStudy, TheDifferenceIsBetterBelowAndTheQuotientAbove) {
  const Json result = result_of("threshold", "sums-fp32");
  for (const Json& bin : result["bins"]) {
    const double p = bin["p"], difference = bin["difference_max"], quotient = bin["quotient_max"];
    if (p > 0.1 && p < 0.3) {
      EXPECT_LT(difference, quotient) << p;
    }
    if (p > 0.6) {
      EXPECT_LT(quotient, difference) << p;
    }
    // In ulp of 1 - p: the quotient's bound is (1/2 + (1 - p)) u over u on (0, 1/2), and no more than twice that above.
    EXPECT_LE(quotient, 1.5 + 1e-6) << p;
  }
}

// The derivation knows no precision: what fp32 finds with sums of 24 bits, fp64 finds with 53.
TEST(ThresholdStudy, FormsErrAlikeInEveryPrecision) {
  const Json narrow = result_of("threshold", "sums-fp32"), wide = result_of("threshold", "sums-fp64");
  for (std::size_t i = 0; i < narrow["bins"].size(); ++i) {
    for (const char* field : {"difference_rms", "quotient_rms"}) {
      const double expected = narrow["bins"][i][field];
      EXPECT_NEAR(wide["bins"][i][field].get<double>(), expected, 0.1 * expected) << field << " " << i;
    }
  }
}

// With two classes there is one addition and no order: p ln 2, to the spacing of the logits.
TEST(CollapseStudy, TheBorderIsWhereTheDerivationPutsIt) {
  for (const auto& [precision, bits] : {std::pair("fp32", 24), std::pair("fp16", 11), std::pair("bf16", 8)}) {
    const Json result = result_of("collapse", std::string("v2-") + precision);
    const double border = bits * std::numbers::ln2;
    EXPECT_NEAR(result["methods"]["log_softmax"]["border"].get<double>(), border, border * std::ldexp(1.0, 1 - bits));
    if (bits == 24) {
      EXPECT_GT(result["methods"]["canonical"]["border"].get<double>(), 103.9);
    }
  }
}

// Held against fp64, not against its rounding to fp32, which is 2^-25 away.
TEST(CollapseStudy, Fp64IsExactBeyondFp32) {
  const Json result = result_of("collapse", "v1024-fp64");
  const Json& point = result["methods"]["log_softmax"]["points"][0];
  EXPECT_EQ(point[0], 1.0);  // the margin
  EXPECT_LT(point[1].get<double>(), 1e-13);
  EXPECT_LT(point[2].get<double>(), 1e-13);
}

// Every sum stays below its first-order bound (second-order terms are 2^-10 of it at these sizes); a plain loop
// stagnates in bf16 once a term is below half an ulp; and the canonical loss keeps to the bound of docs/accuracy.md.
TEST(RoundingStudy, BoundsHold) {
  const Json result = result_of("rounding", "v4096-s3-fp32");
  for (const auto& [order, errors] : result["orders"].items()) {
    EXPECT_LE(errors["of_bound"].get<double>(), 1.001) << order;
    EXPECT_GT(errors["of_bound"].get<double>(), 0.0) << order;
  }
  EXPECT_LE(result["canonical"]["loss"]["max"].get<double>(), canonical_bound_ulp(4096));
  EXPECT_GT(result["orders"]["sequential"]["sum_u"]["rms"].get<double>(),
            10 * result["orders"]["pairwise"]["sum_u"]["rms"].get<double>());
  const Json narrow = result_of("rounding", "v16384-s3-bf16");
  EXPECT_GT(narrow["orders"]["sequential"]["sum_u"]["rms"].get<double>(),
            64.0);  // of 2^8: a quarter of the sum and more
}

TEST(OneRankStudy, OnlyTheCanonicalLossSurvives) {
  const Json above = result_of("one-rank", "v4096-m27");
  EXPECT_EQ(above["low"], 17.0);
  EXPECT_EQ(above["cross_entropy"]["collapsed"], above["rows"]);
  EXPECT_EQ(above["all_gather_cross_entropy"]["collapsed"], above["rows"]);
  EXPECT_EQ(above["canonical"]["collapsed"], 0);
  const double bound = canonical_bound_ulp(4096) * 0x1p-23;  // an ulp is at most 2^-23 of the value
  EXPECT_LE(above["canonical"]["loss"].get<double>(), bound);
  EXPECT_LE(above["canonical"]["target_grad"].get<double>(), bound);
}

TEST(GrokkingStudy, NarrowFormatsCollapseFirst) {
  EXPECT_EQ(result_of("grokking", "canonical-80-seed1")["first_without_target"], 0);
  EXPECT_GT(result_of("grokking", "log_softmax-bf16-80-seed1")["first_without_target"], 0);
}

TEST(ConvergenceStudy, CanonicalTrainsToTheSameBitsOnEveryTp) {
  const Json one = result_of("convergence", "canonical-tp1"), four = result_of("convergence", "canonical-tp4");
  for (const char* field : {"loss", "grad_norm", "sketch"}) EXPECT_EQ(one[field], four[field]) << field;
  EXPECT_NE(result_of("convergence", "log_softmax-tp1")["loss"], result_of("convergence", "log_softmax-tp4")["loss"]);
  EXPECT_LT(one["loss"].back(), 0.9 * one["loss"][0].get<double>());  // it learns
}

TEST(FinetuneStudy, RowsCollapseInBf16AndNotInTheCanonicalLoss) {
  EXPECT_EQ(result_of("finetune", "canonical")["without_target"].back(), 0.0);
  EXPECT_GT(result_of("finetune", "log_softmax-bf16")["without_target"].back(), 0.1);
}

TEST(MemoryStudy, LedgersGiveThePublishedPeaks) {
  EXPECT_EQ(result_of("memory", "published-log_softmax-eager")["peak"].get<std::int64_t>() >> 20, 16032);  // 15.66 GiB
  // What is counted is what the ledger lists, and beyond it the partials and losses of a chunk, here of all rows.
  const Json measured = result_of("memory", "measured");
  const std::int64_t rows = measured["rows"], logits = measured["logits"];
  const MemoryLedger ledger =
      method_from_name("canonical").ledger({rows, measured["vocab"], 1, DType::kBFloat16, Execution::kCompiled});
  const std::int64_t chunk = rows * (2 * 36 + 4) + 1024;
  const auto expect_counted = [&](const char* field, std::int64_t listed) {
    const std::int64_t counted = measured[field];
    EXPECT_GE(counted, listed) << field;
    EXPECT_LE(counted, listed + chunk) << field;
  };
  expect_counted("forward", ledger.bytes(ledger.phases[0]) - logits);
  expect_counted("backward", ledger.bytes(ledger.phases[1]) - logits);
  expect_counted("in_place", ledger.bytes(ledger.phases[0]) - logits);
}

// tests/data/studies/NAME.json holds cells of a quick run; its README says how to make them again.
TEST(Studies, ResultsAreThoseOnRecord) {
  int compared = 0;
  for (const auto& entry : fs::directory_iterator(TPCE_TEST_DATA "/studies")) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream in(entry.path());
    const Json record = Json::parse(in);
    for (const auto& [key, expected] : record["cells"].items()) {
      EXPECT_EQ(result_of(entry.path().stem().string(), key), expected) << entry.path().stem() << " " << key;
      ++compared;
    }
  }
  EXPECT_GT(compared, 0);
}

}  // namespace
}  // namespace tpce::sim
