#include "golden/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/scratch.h"

namespace tpce::golden {
namespace {

using testing::expect_parts;

const std::string kFolder = std::string(TPCE_TEST_DATA) + "/goldens/torchtitan/";

Comparison comparison_of(std::string_view a, std::string_view b, const CompareOptions& options = {}) {
  return compare(Trajectory::parse(a, "a.txt"), Trajectory::parse(b, "b\n.txt"), options);
}

TEST(ToTable, ShowsDistancesMeansAndVerdict) {
  const Comparison comparison = compare(Trajectory::read(kFolder + "llama3_cuda_100steps.txt"),
                                        Trajectory::read(kFolder + "llama3_rocm_mi350x_100steps.txt"), {});
  const std::string table = to_table(comparison);
  expect_parts(table, {"llama3_cuda_100steps.txt", "369261 @70", "fp32", "0.088 @70", "0.0312 @70", "2.757848",
                       "2.766416", "-0.00857", "within noise", "loss: DIFFERENT (first at step 1, 100 in all)"});
  for (std::size_t begin = 0; begin < table.size();) {
    const std::size_t end = table.find('\n', begin);
    EXPECT_LE(end - begin, 200u);
    EXPECT_TRUE(end == begin || table[end - 1] != ' ');
    begin = end + 1;
  }
}

TEST(ToTable, ListsWhatIsOnOneSide) {
  std::string many = "# step loss lr\n1 2 3\n";
  for (int step = 10; step < 30; ++step) many += std::to_string(step) + " 1 1\n";
  const std::string table =
      to_table(comparison_of(many, "# step loss x\n1 2 5\n2 2 5\n", {.tolerance = Tolerance::kUlp, .ulp = 3}));
  expect_parts(table,
               {"B: b\\n.txt", "steps in A only: 10, 11, 12, 13, 14, 15, 16, 17 and 12 more", "steps in B only: 2",
                "metrics in A only: lr", "metrics in B only: x", "loss: DIFFERENT (at most 3 ulp apart)"});
}

TEST(ToTable, OneStepHasNoStandardError) {
  EXPECT_EQ(to_table(comparison_of("1 2\n", "1 2\n")).find("nan"), std::string::npos);
}

TEST(ToTable, SaysWithin) {
  const CompareOptions options{.tolerance = Tolerance::kRelativeAbsolute, .rtol = 0.5, .atol = 0.25};
  expect_parts(to_table(comparison_of("1 2\n2 nan\n3 4\n", "1 2\n2 nan\n3 4.5\n",
                                      {.tolerance = options.tolerance, .rtol = 0.5, .atol = 0.25, .nan_equal = true})),
               {"loss: within the tolerance (at most 0.25 + 0.5 max(|a|, |b|) apart)", "undecided"});
}

TEST(ToJson, HoldsEveryField) {
  const auto json =
      nlohmann::json::parse(to_json(comparison_of("# step loss lr\n1 2 1\n2 inf 1\n3 nan 1\n4 1 1\n5 3 1\n",
                                                  "1 2\n2 1\n3 nan\n4 1.25\n6 3\n", {.nan_equal = true})));
  EXPECT_EQ(json["a"], "a.txt");
  EXPECT_EQ(json["within"], false);
  EXPECT_EQ(json["tolerance"]["mode"], "equal");
  EXPECT_EQ(json["tolerance"]["nan_equal"], true);
  EXPECT_EQ(json["only_in_a"], nlohmann::json({"lr"}));
  const auto& loss = json["metrics"][0];
  EXPECT_EQ(loss["name"], "loss");
  EXPECT_EQ(loss["compared"], 4);
  EXPECT_EQ(loss["different"], 2);
  EXPECT_EQ(loss["unordered"], 1);
  EXPECT_EQ(loss["first_different"], 2);
  EXPECT_EQ(loss["only_in_a"], nlohmann::json({5}));
  EXPECT_EQ(loss["only_in_b"], nlohmann::json({6}));
  EXPECT_EQ(loss["ulp_unit"], "fp32");
  EXPECT_TRUE(loss["largest_absolute"]["value"].is_null());
  EXPECT_TRUE(loss["largest_absolute"]["a"].is_null());
  EXPECT_EQ(loss["largest_absolute"]["a_repr"], "inf");
  EXPECT_EQ(loss["largest_absolute"]["b"], 1.0);
  EXPECT_EQ(loss["largest_absolute"]["step"], 2);
  EXPECT_TRUE(loss["mean_a"]["mean"].is_null());
  EXPECT_EQ(loss["noise"]["verdict"], "undecided");
  EXPECT_EQ(to_json(comparison_of("1 2\n", "1 2\n")).find('\n'), std::string::npos);
}

TEST(ToJson, SurvivesFileNamesThatAreNotUtf8) {
  const Trajectory a = Trajectory::parse("1 2\n", "\xff.txt");
  EXPECT_TRUE(nlohmann::json::parse(to_json(compare(a, a, {}))).is_object());
}

}  // namespace
}  // namespace tpce::golden
