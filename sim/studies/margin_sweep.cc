#include "sim/studies/margin_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numbers>
#include <stdexcept>

#include "io/gnuplot.h"
#include "sim/precision/ulp_steps.h"

namespace tpce::sim {
namespace {

constexpr double kCollapse = 24 * std::numbers::ln2;  // where exp(-m) is half an ulp of 1 in fp32

// Margins of the table: before, at and beyond the collapse, and where the softplus forms and fp32 end.
constexpr std::array kTableMargins{0.0,       5.0,  10.0, 15.0, 16.0, 16.5,  16.6,
                                   kCollapse, 17.0, 20.0, 50.0, 88.0, 100.0, 103.9};

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

const CollapsePoint& nearest(const CollapseReport& report, double margin) {
  return *std::min_element(report.points.begin(), report.points.end(),
                           [&](const CollapsePoint& a, const CollapsePoint& b) {
                             return std::abs(a.margin - margin) < std::abs(b.margin - margin);
                           });
}

// Zeros are what the table is about, so they stand out from small numbers; the sign of a zero is kept.
std::string number(double value) {
  if (value == 0.0) return std::signbit(value) ? "-0" : "0";
  return fmt::format("{:.4g}", value);
}

std::string number(float value) { return number(static_cast<double>(value)); }

constexpr int kColumn = 15;

// A name as two lines of a column heading, the first empty where it fits in one.
std::array<std::string_view, 2> heading(std::string_view name) {
  if (name.size() <= kColumn) return {"", name};
  std::size_t end = name.size() - kColumn;
  while (name[end - 1] != '_') ++end;
  return {name.substr(0, end), name.substr(end)};
}

template <class Certified, class Value>
std::string block(const CollapseReport& report, const std::string& title, Certified certified, Value value) {
  std::string above = fmt::format("{:<20}", title), below = fmt::format("{:>9} {:>10}", "margin", "certified");
  for (const std::string& name : report.names) {
    above += fmt::format(" {:>{}}", heading(name)[0], kColumn);
    below += fmt::format(" {:>{}}", heading(name)[1], kColumn);
  }
  above.erase(above.find_last_not_of(' ') + 1);
  std::string text = above + '\n' + below + '\n';
  for (const double margin : kTableMargins) {
    const CollapsePoint& point = nearest(report, margin);
    text += fmt::format("{:9.4f} {:>10}", point.margin, certified(point));
    for (const RowValues& values : point.values) text += fmt::format(" {:>{}}", value(values), kColumn);
    text += '\n';
  }
  return text;
}

std::string first_zeros(const std::vector<std::optional<FirstZero>>& zeros, const std::string& title) {
  std::string text = fmt::format("{:<20}", title);
  for (const auto& zero : zeros)
    text += fmt::format(" {:>{}}", zero ? fmt::format("{:.6f}", zero->margin) : "none", kColumn);
  return text + '\n';
}

std::string order_zeros(const std::vector<OrderZero>& zeros) {
  std::string text =
      "first margin at which the loss of log_softmax is exactly 0, and 24 ln 2 + ln(largest piece), by order\n";
  text += fmt::format("{:<12}", "classes");
  for (const OrderZero& zero : zeros) {
    if (zero.classes != zeros.front().classes) break;
    text += fmt::format(" {:>21}", zero.tp == 1 ? "tp 1" : fmt::format("tp {} {}", zero.tp, name_of(zero.ranks)));
  }
  for (std::size_t i = 0; i < zeros.size(); ++i) {
    if (i == 0 || zeros[i].classes != zeros[i - 1].classes) text += fmt::format("\n{:<12}", name_of(zeros[i].classes));
    text += fmt::format(" {:>10.6f} {:>10.6f}", zeros[i].margin, zeros[i].predicted);
  }
  return text + '\n';
}

std::string ulp_text(float a, float b) {
  const std::optional<std::uint64_t> steps = ulp_steps(a, b);
  return steps ? std::to_string(*steps) : "nan";
}

struct CsvRow {
  const CollapsePoint& point;
  std::string_view name;
  RowValues values;
};

std::string csv_line(const CsvRow& row) {
  const float loss = static_cast<float>(row.values.loss), target_grad = static_cast<float>(row.values.target_grad);
  return fmt::format("{},{},{},{},{:08x},{},{:08x},{},{}\n", row.point.margin, row.point.target_logit, row.name, loss,
                     bits_of(loss), target_grad, bits_of(target_grad), row.values.grad_sum,
                     ulp_text(loss, row.point.certified.loss));
}

RowValues certified_values(const CollapsePoint& point) {
  return {static_cast<double>(point.certified.loss), static_cast<double>(point.certified.target_grad), 0.0};
}

// Where an exact 0 is drawn on the logarithmic axis, below the smallest fp32.
constexpr double kZeroLine = 1e-48;

// A data block for gnuplot: margin, then one column for the certified value and each contender.
template <class Value>
std::string data_block(const CollapseReport& report, std::string_view name, Value value) {
  std::string text = fmt::format("${} << EOD\n", name);
  const auto cell = [](double x) { return fmt::format(" {:.9g}", x == 0.0 ? kZeroLine : std::abs(x)); };
  for (const CollapsePoint& point : report.points) {
    text += fmt::format("{:.9g}", point.margin) + cell(value(certified_values(point)));
    for (const RowValues& values : point.values) text += cell(value(values));
    text += '\n';
  }
  return text + "EOD\n";
}

// Each curve is thinner than those below it, so that curves that agree are all seen.
std::string plot_command(const CollapseReport& report, std::string_view data) {
  std::size_t width = 2 * report.names.size() + 3;
  std::string text = fmt::format("plot ${} using 1:2 with lines lw {} lc rgb '#d8d8d8' title 'certified'", data, width);
  for (std::size_t i = 0; i < report.names.size(); ++i) {
    width -= 2;
    text +=
        fmt::format(", ${} using 1:{} with lines lt {} lw {} title '{}'", data, i + 3, i + 1, width, report.names[i]);
  }
  return text + "\n";
}

}  // namespace

std::vector<double> collapse_margins() {
  std::vector<double> margins{16.6,      std::nextafter(static_cast<float>(kCollapse), 0.0f),
                              kCollapse, std::nextafter(static_cast<float>(kCollapse), 17.0f),
                              16.7,      103.9,
                              103.97};
  for (int half = -40; half <= 209; ++half) margins.push_back(half / 2.0);
  std::sort(margins.begin(), margins.end());
  return margins;
}

CollapseReport study_collapse(const CollapseProblem& problem) {
  if (problem.vocab < 2 || problem.vocab > CollapseProblem::kMaxVocab) {
    throw std::invalid_argument(
        fmt::format("vocab: got {}, expected 2..{}", problem.vocab, CollapseProblem::kMaxVocab));
  }
  MarginRow row = MarginRow::normal(problem.vocab);
  std::vector<Contender> contenders;
  for (const std::string& name : problem.methods) {
    contenders.push_back(contender_of(method_from_name(name), {problem.tp, problem.order}));
  }
  CollapseReport report{problem, {}, {}, {}, {}, first_zero_by_order(row)};
  for (const Contender& contender : contenders) {
    report.names.push_back(contender.name);
    report.first_zero_loss.push_back(first_zero_loss(contender, row));
    report.first_zero_target_grad.push_back(first_zero_target_grad(contender, row));
  }
  for (const double margin : collapse_margins()) {
    CollapsePoint point;
    point.target_logit = row.target_logit(margin);
    point.margin = row.margin(point.target_logit);
    point.certified = row.certified(point.target_logit);
    for (const Contender& contender : contenders) {
      point.values.push_back(contender.evaluate(row.with(point.target_logit), row.target()));
    }
    report.points.push_back(std::move(point));
  }
  return report;
}

std::string collapse_table(const CollapseReport& report) {
  const CollapseProblem& problem = report.problem;
  std::string text =
      fmt::format("V = {}, tp = {}, classes added {}, ranks {}, fp32; margin = z_t - lse of the others\n\n",
                  problem.vocab, problem.tp, name_of(problem.order.classes), name_of(problem.order.ranks));
  text += block(
      report, "loss", [](const CollapsePoint& point) { return number(point.certified.loss); },
      [](const RowValues& values) { return number(values.loss); });
  text += '\n';
  text += block(
      report, "target gradient", [](const CollapsePoint& point) { return number(point.certified.target_grad); },
      [](const RowValues& values) { return number(values.target_grad); });
  text += '\n';
  text += block(
      report, "sum of gradients", [](const CollapsePoint&) { return std::string("0"); },
      [](const RowValues& values) { return number(values.grad_sum); });
  text += "\nfirst margin at which it is exactly 0\n";
  text += first_zeros(report.first_zero_loss, "loss");
  text += first_zeros(report.first_zero_target_grad, "target gradient");
  text += '\n' + order_zeros(report.by_order);
  return text;
}

std::string collapse_csv(const CollapseReport& report) {
  std::string text = "margin,target_logit,name,loss,loss_bits,target_grad,target_grad_bits,grad_sum,loss_ulp\n";
  for (const CollapsePoint& point : report.points) {
    text += csv_line({point, "certified", certified_values(point)});
    for (std::size_t i = 0; i < report.names.size(); ++i) text += csv_line({point, report.names[i], point.values[i]});
  }
  return text;
}

std::string collapse_svg(const CollapseReport& report) {
  std::string script = fmt::format(
      "set terminal svg size 1100,1500 font 'sans,14' noenhanced background '#ffffff'\n"
      "set xrange [-20:105]\nset xlabel 'margin: z_t - lse of the other classes'\n"
      "set logscale y\nset yrange [{0}:1e2]\nset ytics 1e-40,1e10 format '%.0e'\nset ytics add ('0' {0})\nset mytics "
      "1\n"
      "set grid\nset key outside top horizontal\n"
      "set linetype 1 lc rgb '#d62728'\nset linetype 2 lc rgb '#17becf'\nset linetype 3 lc rgb '#1f77b4'\n"
      "set linetype 4 lc rgb '#ff7f0e'\nset linetype 5 lc rgb '#9467bd'\nset linetype 6 lc rgb '#000000'\n",
      kZeroLine);
  script += data_block(report, "loss", [](const RowValues& v) { return v.loss; });
  script += data_block(report, "target", [](const RowValues& v) { return v.target_grad; });
  script += data_block(report, "sum", [](const RowValues& v) { return v.grad_sum; });
  script += fmt::format("set multiplot layout 3,1 title 'V = {}, tp = {}: exact zeros stand on the lowest line'\n",
                        report.problem.vocab, report.problem.tp);
  script += "set title 'loss'\n" + plot_command(report, "loss");
  script += "set title 'size of the target gradient'\n" + plot_command(report, "target");
  script += "set title 'size of the sum of gradients, 0 in exact arithmetic'\n" + plot_command(report, "sum");
  script += "unset multiplot\n";
  return io::run_gnuplot(script);
}

}  // namespace tpce::sim
