#include "sim/studies/gnuplot.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace tpce::sim {
namespace {

TEST(Gnuplot, ReturnsThePlot) {
  const std::string svg =
      run_gnuplot("set terminal svg\n$d << EOD\n1 2\n3 4\nEOD\nplot $d with lines title 'rising'\n");
  EXPECT_NE(svg.find("<svg"), std::string::npos);
  EXPECT_NE(svg.find("rising"), std::string::npos);
  EXPECT_NE(svg.find("</svg>"), std::string::npos);
}

// More than a pipe holds, in both directions.
TEST(Gnuplot, TakesLongScripts) {
  std::string script = "set terminal svg\n$d << EOD\n";
  for (int i = 0; i < 50000; ++i) script += std::to_string(i) + " " + std::to_string(i % 7) + "\n";
  EXPECT_GT(run_gnuplot(script + "EOD\nplot $d with lines\n").size(), 200000u);
}

TEST(Gnuplot, ReportsItsErrors) {
  try {
    run_gnuplot("plot nonsense(\n");
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("nonsense"), std::string::npos) << error.what();
  }
}

TEST(Gnuplot, SaysWhereItIsMissing) {
  const std::string path = std::getenv("PATH");
  setenv("PATH", "/nowhere", 1);
  EXPECT_THROW(run_gnuplot("plot x\n"), std::runtime_error);
  setenv("PATH", path.c_str(), 1);
}

}  // namespace
}  // namespace tpce::sim
