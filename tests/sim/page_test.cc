// Pages: what is written of tables, series and maps.
#include "sim/studies/page.h"

#include <gtest/gtest.h>

#include <limits>

namespace tpce::sim {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

TEST(Table, RefusesARowOfAnotherLength) {
  Table table{{"a", "b"}, {}};
  table.add({"1", "2"});
  EXPECT_THROW(table.add({"1"}), std::invalid_argument);
  EXPECT_EQ(table.rows.size(), 1u);
}

TEST(Markdown, SetsNumbersToTheRightAndKeepsBarsInCells) {
  Page page{.title = "Title", .conclusion = "It is so.", .sections = {}, .data = {}};
  page.sections.push_back({.heading = "Part", .text = "Words.", .tables = {{{"name", "x"}, {{"a|b", "-1.5e-3"}}}}});
  page.sections.back().figures.push_back({"plot", "<svg/>", "What it shows"});
  EXPECT_EQ(markdown_of(page, "Made by `this`."),
            "# Title\n\nIt is so.\n\n## Part\n\nWords.\n\n| name | x |\n| --- | ---: |\n| a\\|b | -1.5e-3 |\n\n"
            "![What it shows](plot.svg)\n\nMade by `this`.\n");
}

TEST(Csv, QuotesAsRfc4180Has) {
  EXPECT_EQ(csv_of({{"a", "b"}, {{"1,5", "say \"x\""}}}, "made so"), "# made so\na,b\n\"1,5\",\"say \"\"x\"\"\"\n");
}

TEST(LinePlot, DrawsEverySeriesThatHasPoints) {
  LinePlot plot{"A title", {"x", false}, {"y", true}, {}};
  plot.series.push_back({"first", {1, 2, 3}, {1e-3, 0.0, 1e3}});  // 0 has no place on a logarithmic axis
  plot.series.push_back({"second", {1, 2, 3}, {kNaN, -1.0, 0.0}});
  const std::string svg = svg_of(plot);
  EXPECT_EQ(svg.rfind("<?xml", 0), 0u);
  EXPECT_EQ(count(svg, ">first<"), 1u);
  EXPECT_EQ(count(svg, ">second<"), 0u);
  plot.series.erase(plot.series.begin());
  EXPECT_THROW(svg_of(plot), std::invalid_argument);
  plot.series = {{"odd", {1, 2}, {1}}};
  EXPECT_THROW(svg_of(plot), std::invalid_argument);
}

TEST(BarPlot, DrawsABarForEachNumberAboveZero) {
  BarPlot plot{"Bars", "bin", "share", {"none", "1", "2-3"}, {{"loss", {99, 0, 1}}, {"lse", {0, 100, 0}}}};
  const std::string svg = svg_of(plot);
  EXPECT_EQ(svg.rfind("<?xml", 0), 0u);
  for (const char* text : {">Bars<", ">none<", ">2-3<", ">loss<", ">lse<"}) EXPECT_EQ(count(svg, text), 1u) << text;
  plot.series[1].values.pop_back();
  EXPECT_THROW(svg_of(plot), std::invalid_argument);
  plot.series = {{"loss", {0, 0, 0}}};
  EXPECT_THROW(svg_of(plot), std::invalid_argument);
}

TEST(HeatMap, DrawsACellForEachNumber) {
  const HeatMap map{"A map", "x", "y", "value", {1, 2, 4}, {"top", "below"}, {{0, 0.5, 1}, {kNaN, 2, -1}}, 0, 1};
  const std::string svg = svg_of(map);
  EXPECT_EQ(count(svg, ">top<"), 1u);
  // One path a number, of the colours of the ends of the scale: 0 and -1 are dark, 1 and 2 light.
  const std::string cells = svg.substr(svg.find("gnuplot_plot_1"));
  EXPECT_GE(count(cells, "68,   1,  84"), 2u);
  EXPECT_THROW(svg_of(HeatMap{"Empty", "x", "y", "v", {1}, {"row"}, {{kNaN}}, 0, 1}), std::invalid_argument);
}

}  // namespace
}  // namespace tpce::sim
