#include "golden/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "golden/compare.h"
#include "golden/python_float.h"
#include "io/error.h"
#include "io/gnuplot.h"

namespace tpce::golden {
namespace {

constexpr int kPanelWidth = 640;
constexpr int kPanelHeight = 300;
constexpr double kLogFrom = 1000;  // largest / least number from which a linear scale hides the small ones

bool any_finite(std::span<const double> values) {
  return std::any_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
}

// What is plotted where a panel has no number at all, which gnuplot takes for an error.
constexpr std::string_view kEmptyPanel =
    "set label 1 'no finite number' at graph 0.5,0.5 center\nset xrange [0:1]\nset yrange [0:1]\nplot NaN notitle\n"
    "unset label 1\nset autoscale xy\n";

bool wants_log_scale(const PairedSteps& pairs) {
  double least = std::numeric_limits<double>::infinity();
  double largest = 0;
  for (const auto* values : {&pairs.a, &pairs.b}) {
    for (double value : *values) {
      if (!std::isfinite(value)) continue;
      least = std::min(least, value);
      largest = std::max(largest, value);
    }
  }
  return least > 0 && largest > kLogFrom * least;
}

std::string number(double value) { return std::isfinite(value) ? python_repr(value) : "NaN"; }

}  // namespace

std::string plot_svg(const Trajectory& a, const Trajectory& b) {
  const std::vector<PairedSteps> metrics = pair_metrics(a, b);
  if (metrics.empty()) io::fail(a.name(), "no metric in common with {}: nothing to plot", io::printable(b.name()));
  const std::size_t count = metrics.size();
  std::string script = fmt::format("set terminal svg noenhanced size {},{} background rgb 'white'\n", 2 * kPanelWidth,
                                   kPanelHeight * static_cast<int>(count));
  script += "set datafile missing 'NaN'\nset xlabel 'step'\nset grid\nset key below\n";
  std::vector<std::vector<double>> differences(count);
  for (std::size_t i = 0; i < count; ++i) {
    script += fmt::format("$metric{} << END\n", i);
    const PairedSteps& pairs = metrics[i];
    for (std::size_t j = 0; j < pairs.steps.size(); ++j) {
      differences[i].push_back(pairs.a[j] - pairs.b[j]);
      script += fmt::format("{} {} {} {}\n", pairs.steps[j], number(pairs.a[j]), number(pairs.b[j]),
                            number(differences[i].back()));
    }
    script += "END\n";
  }
  script += fmt::format("set multiplot layout {},2\n", count);
  for (std::size_t i = 0; i < count; ++i) {
    constexpr std::string_view kStyle = "with linespoints pointtype 7 pointsize 0.3";
    script += fmt::format("set title {}\n", io::gnuplot_string(metrics[i].name_a));
    if (any_finite(metrics[i].a) && any_finite(metrics[i].b)) {
      script += fmt::format(
          "{0}plot $metric{1} using 1:2 {2} title {3}, $metric{1} using 1:3 {2} title {4}\nunset logscale y\n",
          wants_log_scale(metrics[i]) ? "set logscale y\n" : "", i, kStyle, io::gnuplot_string("A: " + a.name()),
          io::gnuplot_string("B: " + b.name()));
    } else {
      script += kEmptyPanel;
    }
    script += fmt::format("set title {}\n", io::gnuplot_string(metrics[i].name_a + ": A - B"));
    if (any_finite(differences[i])) {
      script += fmt::format("plot $metric{} using 1:4 {} notitle\n", i, kStyle);
    } else {
      script += kEmptyPanel;
    }
  }
  script += "unset multiplot\n";
  return io::run_gnuplot(script);
}

}  // namespace tpce::golden
