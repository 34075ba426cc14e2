#include "golden/plot.h"

#include <gtest/gtest.h>

#include "tests/support/scratch.h"

namespace tpce::golden {
namespace {

using testing::expect_parts;

const std::string kFolder = std::string(TPCE_TEST_DATA) + "/goldens/torchtitan/";

TEST(PlotSvg, DrawsBothCurvesAndTheirDifference) {
  const std::string svg = plot_svg(Trajectory::read(kFolder + "fake_pg_a10g_llama3.txt"),
                                   Trajectory::read(kFolder + "fake_pg_a10g_qwen3.txt"));
  expect_parts(svg, {"<svg", "</svg>", "fake_pg_a10g_llama3.txt", "fake_pg_a10g_qwen3.txt", "loss: A - B",
                     "grad_norm: A - B", "1e+"});
}

TEST(PlotSvg, TakesNumbersThatAreNotFinite) {
  expect_parts(plot_svg(Trajectory::parse("1 nan\n2 3\n3 inf\n", "a"), Trajectory::parse("1 2\n2 3\n3 4\n", "b")),
               {"</svg>"});
  expect_parts(plot_svg(Trajectory::parse("1 nan\n", "a"), Trajectory::parse("1 nan\n", "b")), {"</svg>"});
  expect_parts(plot_svg(Trajectory::parse("1 2\n", "a\"\\_{x}"), Trajectory::parse("1 2\n", "b")), {"</svg>", "_{x}"});
}

TEST(PlotSvg, RefusesFilesWithoutACommonMetric) {
  expect_parts(testing::message_of([] {
                 plot_svg(Trajectory::parse("# step lr\n1 2\n", "a.txt"), Trajectory::parse("1 2\n", "b.txt"));
               }),
               {"a.txt", "b.txt", "nothing to plot"});
}

}  // namespace
}  // namespace tpce::golden
