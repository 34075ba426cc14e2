#include "io/gnuplot.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>

#include "tests/support/scratch.h"

namespace tpce::io {
namespace {

std::string complaint(std::string_view script) {
  try {
    run_gnuplot(script);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(RunGnuplot, ReturnsThePicture) {
  const std::string svg = run_gnuplot("set terminal svg\n$A << EOD\n1 2\n2 3\nEOD\nplot $A with lines\n");
  EXPECT_TRUE(svg.starts_with("<?xml")) << svg.substr(0, 80);
  EXPECT_NE(svg.find("</svg>"), std::string::npos);
}

TEST(RunGnuplot, TakesMoreThanAPipeHolds) {
  std::string script = "set terminal svg\n$A << EOD\n";
  for (int i = 0; i < 100'000; ++i) script += std::to_string(i) + " 1\n";
  EXPECT_NE(run_gnuplot(script + "EOD\nplot $A with lines\n").find("</svg>"), std::string::npos);
}

TEST(RunGnuplot, PassesOnTheComplaint) {
  testing::expect_parts(complaint("set terminal svg\nplot nonsense\n"), {"plot: gnuplot failed"});
}

TEST(RunGnuplot, SaysWhatToInstall) {
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", "/nonexistent", 1);
  const std::string message = complaint("set terminal svg\n");
  ::setenv("PATH", path.c_str(), 1);
  testing::expect_parts(message, {"gnuplot is not installed", "gnuplot-nox"});
}

TEST(GnuplotString, EscapesQuotes) { EXPECT_EQ(gnuplot_string("a\"\\\nb"), "\"a\\\"\\\\ b\""); }

}  // namespace
}  // namespace tpce::io
