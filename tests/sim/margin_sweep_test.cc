#include "sim/studies/margin_sweep.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <sstream>

#include "sim/precision/ulp_steps.h"

namespace tpce::sim {
namespace {

std::size_t index_of(const CollapseReport& report, std::string_view name) {
  const auto found = std::find(report.names.begin(), report.names.end(), name);
  EXPECT_NE(found, report.names.end()) << name;
  return static_cast<std::size_t>(found - report.names.begin());
}

const CollapsePoint& at(const CollapseReport& report, float target_logit) {
  const auto found = std::find_if(report.points.begin(), report.points.end(),
                                  [&](const CollapsePoint& point) { return point.target_logit == target_logit; });
  EXPECT_NE(found, report.points.end()) << target_logit;
  return *found;
}

const CollapseReport& two_classes() {
  static const CollapseReport report = study_collapse({2, 2, {}});
  return report;
}

const CollapseReport& many_classes() {
  static const CollapseReport report = study_collapse({1024, 2, {}});
  return report;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(Collapse, MarginsRiseAndHoldTheNamedOnes) {
  const std::vector<double> margins = collapse_margins();
  EXPECT_TRUE(std::is_sorted(margins.begin(), margins.end()));
  for (const double named : {-20.0, 0.0, 16.5, 16.6, 24 * std::numbers::ln2, 20.0, 88.0, 103.9, 103.97, 104.5}) {
    EXPECT_TRUE(std::count(margins.begin(), margins.end(), named)) << named;
  }
}

// z = [20, 0] in fp32.
TEST(Collapse, AtMarginTwentyTheUsualLossIsZeroAndTheCanonicalOneIsNot) {
  const CollapsePoint& point = at(two_classes(), 20.0f);
  EXPECT_EQ(point.margin, 20.0);
  EXPECT_EQ(point.certified.loss, 2.0611536203e-9f);
  EXPECT_EQ(point.values[index_of(two_classes(), "canonical")].loss, point.certified.loss);
  for (const char* name : {"log_softmax", "cross_entropy", "all_gather_cross_entropy"}) {
    const RowValues& values = point.values[index_of(two_classes(), name)];
    EXPECT_EQ(values.loss, 0.0f) << name;
    EXPECT_EQ(values.target_grad, 0.0f) << name;
    // The other gradient alone is left.
    EXPECT_EQ(values.grad_sum, static_cast<double>(std::exp(-20.0f))) << name;
  }
}

TEST(Collapse, TheUsualLossIsZeroFrom24Ln2On) {
  const std::size_t legacy = index_of(two_classes(), "log_softmax");
  const float first = static_cast<float>(24 * std::numbers::ln2);
  EXPECT_EQ(two_classes().first_zero_loss[legacy]->target_logit, first);
  EXPECT_GT(at(two_classes(), std::nextafter(first, 0.0f)).values[legacy].loss, 0.0f);
  EXPECT_EQ(at(two_classes(), first).values[legacy].loss, 0.0f);
}

// The bound of the loss is 2.1 ulp + V * 2^-21.49 ulp of the exact value, and rounding moves either side by half an
// ulp: at most 3 fp32 numbers apart. Where the loss is subnormal an ulp is 2^-149.
TEST(Collapse, TheCanonicalLossStaysWithinItsBoundAtEveryMargin) {
  for (const CollapseReport* report : {&two_classes(), &many_classes()}) {
    const std::size_t canonical = index_of(*report, "canonical");
    for (const CollapsePoint& point : report->points) {
      EXPECT_LE(*ulp_steps(static_cast<float>(point.values[canonical].loss), point.certified.loss), 3u) << point.margin;
      EXPECT_LE(*ulp_steps(static_cast<float>(point.values[canonical].target_grad), point.certified.target_grad), 3u)
          << point.margin;
    }
  }
}

// With many classes the shift by the target makes each term underflow before their sum would.
TEST(Collapse, TheSoftplusFormsCollapseAgain) {
  for (const char* name : {"softplus_eager", "softplus_recompute"}) {
    const std::size_t method = index_of(many_classes(), name);
    const std::size_t canonical = index_of(many_classes(), "canonical");
    EXPECT_GT(many_classes().first_zero_loss[method]->margin, 95.0);
    EXPECT_LT(many_classes().first_zero_loss[method]->margin, 100.0);
    EXPECT_GT(many_classes().first_zero_loss[canonical]->margin, 103.9);
  }
}

TEST(Collapse, TableFitsAPage) {
  const std::vector<std::string> lines = lines_of(collapse_table(many_classes()));
  for (const std::string& line : lines) EXPECT_LE(line.size(), 120u) << line;
  EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    return line.starts_with("loss ") && line.find("103.97") != std::string::npos;
  }));
}

TEST(Collapse, CsvHasALineForEachMarginAndName) {
  const std::vector<std::string> lines = lines_of(collapse_csv(two_classes()));
  EXPECT_EQ(lines.size(), 1 + two_classes().points.size() * (two_classes().names.size() + 1));
  EXPECT_EQ(lines[0], "margin,target_logit,name,loss,loss_bits,target_grad,target_grad_bits,grad_sum,loss_ulp");
  EXPECT_TRUE(std::count(lines.begin(), lines.end(), "0,0,canonical,0.6931472,3f317218,-0.5,bf000000,0,0"));
  EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    return line.starts_with("20,20,log_softmax,-0,80000000,0,");
  }));
}

TEST(Collapse, SvgNamesEveryContender) {
  const std::string svg = collapse_svg(two_classes());
  EXPECT_NE(svg.find("</svg>"), std::string::npos);
  for (const std::string& name : two_classes().names) EXPECT_NE(svg.find(name), std::string::npos) << name;
}

TEST(Collapse, BadProblemsAreNamed) {
  EXPECT_THROW(study_collapse({1, 1, {}}), std::invalid_argument);
  EXPECT_THROW(study_collapse({CollapseProblem::kMaxVocab + 1, 1, {}}), std::invalid_argument);
  EXPECT_THROW(study_collapse({8, 0, {}}), std::invalid_argument);
}

}  // namespace
}  // namespace tpce::sim
