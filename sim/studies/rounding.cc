#include "sim/studies/rounding.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <initializer_list>
#include <stdexcept>

#include "sim/methods/method.h"
#include "sim/precision/visit.h"
#include "sim/studies/contender.h"
#include "sim/studies/errors.h"
#include "sim/studies/growth.h"
#include "sim/studies/rows.h"

namespace tpce::sim {
namespace {

constexpr std::array kStudied{Precision::kFp32, Precision::kTf32, Precision::kFp16, Precision::kBf16};

// Additions between a term and the sum, at most.
double depth_of(const SumOrder& order, std::int64_t vocab) {
  const double n = static_cast<double>(vocab);
  switch (order.kind) {
    case SumOrderKind::kPairwise:
      return std::ceil(std::log2(n));
    case SumOrderKind::kLanes8:
      return std::ceil(n / 8) - 1 + 3;
    case SumOrderKind::kLanes16:
      return std::ceil(n / 16) - 1 + 4;
    case SumOrderKind::kGpuTree:
      return std::ceil(n / 256) + 8;
    case SumOrderKind::kCascade: {
      // A level runs 2^p steps and is then carried; 4 levels, 4 registers, 8 lanes in turn, 31 terms left over.
      const double steps = std::max(1.0, std::floor(n / 32));
      const double run = std::exp2(std::max(4.0, std::floor(std::ceil(std::log2(steps)) / 4)));
      return 3 * run + std::max(run, steps / (run * run * run)) + 4 + 4 + 8 + 31;
    }
    case SumOrderKind::kNumpy:  // 16 in an accumulator, 3 among the 8, 7 left over; then halves, which differ by up to
                                // 8
      return 15 + 3 + 7 + std::max(0.0, std::ceil(std::log2(n / 128)) + 1);
    case SumOrderKind::kSplitK:
      return std::ceil(n / static_cast<double>(order.parameter)) + static_cast<double>(order.parameter);
    case SumOrderKind::kSequential:
    case SumOrderKind::kRandom:
      break;
  }
  return n - 1;
}

Json json_of(const ErrorStatistics& errors) {
  return {{"rms", sim::json_of(errors.rms())}, {"max", sim::json_of(errors.largest)}};
}

// The values of one row of logits that a precision can hold, in long double: at least 11 bits more than fp64 has where
// its sums of V terms lose 2^-64 V.
struct Truth {
  long double maximum = 0.0L;
  long double sum = 0.0L;       // of exp(z - maximum)
  long double weighted = 0.0L;  // mean of |z - maximum| under softmax: what the shift's rounding is weighted with
  long double lse() const { return maximum + std::log(sum); }
};

Truth truth_of(std::span<const float> logits) {
  Truth truth;
  truth.maximum = *std::max_element(logits.begin(), logits.end());
  for (const float z : logits) {
    const long double shifted = static_cast<long double>(z) - truth.maximum;
    truth.sum += std::exp(shifted);
    truth.weighted -= shifted * std::exp(shifted);
  }
  truth.weighted /= truth.sum;
  return truth;
}

struct OrderErrors {
  SumOrder order = {};
  ErrorStatistics sum = {};  // relative, in half ulps of 1: u
  ErrorStatistics lse = {};  // this and the others in ulp
  ErrorStatistics loss = {};
  ErrorStatistics gradient = {};
  double of_bound = 0.0;  // largest error of the sum over its bound
};

template <class Arithmetic>
void add_sum(std::span<const float> logits, const Truth& truth, int bits, OrderErrors& errors) {
  using Real = typename Arithmetic::Real;
  const Real maximum(static_cast<float>(truth.maximum));
  std::vector<Real> terms;
  for (const float z : logits) terms.push_back(Arithmetic::exp(Real(z) - maximum));
  const Real total = tpce::sim::sum(errors.order, std::span<const Real>(terms));
  const long double u = std::ldexp(1.0L, -bits);
  const double error =
      static_cast<double>(std::abs(static_cast<long double>(static_cast<double>(total)) - truth.sum) / truth.sum / u);
  errors.sum.add(error);
  // First order: the shift's rounding moves exp by |z - M| u, exp itself errs by 2 u at most, each addition by u.
  const double bound =
      static_cast<double>(truth.weighted) + 2.0 + depth_of(errors.order, static_cast<std::int64_t>(logits.size()));
  errors.of_bound = larger(errors.of_bound, error / bound);
  const Real lse = maximum + Arithmetic::log(total);
  if (truth.lse() == 0.0L) return;
  errors.lse.add(ulps_apart(static_cast<long double>(static_cast<double>(lse)), truth.lse(), bits));
}

void add_method(const Method& method, const Setting& setting, std::span<const float> logits, std::int64_t target,
                const Truth& truth, OrderErrors& errors) {
  const int bits = info_of(setting.precision).bits;
  std::vector<double> gradient(logits.size());
  const RowValues values = evaluate_row(method, setting, logits, target, gradient);
  // Where the target dominates, lse - z_t cancels; then the sum of the others gives the loss.
  long double others = 0.0L;
  for (std::size_t j = 0; j < logits.size(); ++j) {
    if (static_cast<std::int64_t>(j) != target) others += std::exp(static_cast<long double>(logits[j]) - truth.maximum);
  }
  const long double target_exp =
      std::exp(static_cast<long double>(logits[static_cast<std::size_t>(target)]) - truth.maximum);
  const long double loss = std::log1p(others / target_exp);
  if (loss != 0.0L) errors.loss.add(ulps_apart(static_cast<long double>(values.loss), loss, bits));
  for (std::size_t j = 0; j < gradient.size(); ++j) {
    const long double exact = static_cast<std::int64_t>(j) == target
                                  ? -others / truth.sum
                                  : std::exp(static_cast<long double>(logits[j]) - truth.maximum) / truth.sum;
    // Below the normal numbers of the format an ulp is no measure of a method.
    if (std::abs(exact) < 0x1p-14L) continue;
    errors.gradient.add(ulps_apart(static_cast<long double>(gradient[j]), exact, bits));
  }
}

Json json_of(const OrderErrors& errors) {
  return {{"sum_u", json_of(errors.sum)},
          {"of_bound", sim::json_of(errors.of_bound)},
          {"lse", json_of(errors.lse)},
          {"loss", json_of(errors.loss)},
          {"gradient", json_of(errors.gradient)}};
}

Json measure(const LabelledRows& rows, Precision precision) {
  const int bits = info_of(precision).bits;
  Json result{{"precision", name_of(precision)}, {"vocab", rows.vocab}, {"rows", rows.rows()}};
  std::vector<OrderErrors> by_order;
  for (const SumOrderInfo& info : kSumOrders) by_order.push_back({.order = info.order});
  OrderErrors recompute, canonical;
  for (std::int64_t i = 0; i < rows.rows(); ++i) {
    // As the precision holds them, so that the error is that of the arithmetic.
    std::vector<float> logits(rows.row(i).begin(), rows.row(i).end());
    visit_precision(precision, [&](auto arithmetic) {
      using Real = typename decltype(arithmetic)::Real;
      for (float& z : logits) z = static_cast<float>(static_cast<double>(Real(z)));
    });
    const Truth truth = truth_of(logits);
    for (OrderErrors& errors : by_order) {
      visit_precision(precision, [&](auto arithmetic) { add_sum<decltype(arithmetic)>(logits, truth, bits, errors); });
      const Setting setting{.tp = 1, .order = {.classes = errors.order}, .precision = precision};
      add_method(method_from_name("log_softmax"), setting, logits, rows.label(i), truth, errors);
    }
    const Setting setting{.tp = 1, .order = {}, .precision = precision};
    add_method(method_from_name("softplus_recompute"), setting, logits, rows.label(i), truth, recompute);
    if (precision == Precision::kFp32) {
      add_method(method_from_name("canonical"), setting, logits, rows.label(i), truth, canonical);
    }
  }
  result["orders"] = Json::object();
  for (const OrderErrors& errors : by_order) result["orders"][sim::name_of(errors.order)] = json_of(errors);
  result["softplus_recompute"] = {{"loss", json_of(recompute.loss)}, {"gradient", json_of(recompute.gradient)}};
  if (precision == Precision::kFp32) {
    result["canonical"] = {{"loss", json_of(canonical.loss)}, {"gradient", json_of(canonical.gradient)}};
  }
  return result;
}

std::vector<std::int64_t> vocabularies(const StudyOptions& options) {
  std::vector<std::int64_t> all;
  for (int power = 8; power <= (options.quick() ? 14 : 20); power += 2) all.push_back(std::int64_t{1} << power);
  return all;
}

std::vector<double> spreads(const StudyOptions& options) {
  return options.quick() ? std::vector<double>{3.0} : std::vector<double>{0.5, 3.0, 8.0};
}

std::string short_number(const Json& value) {
  const double x = number_of(value);
  return std::isnan(x) ? "not finite" : fmt::format("{:.3g}", x);
}

// The rows of made logits that tables and plots show: of this standard deviation.
constexpr double kShownSpread = 3.0;

const Json& shown(std::span<const Json> results, std::int64_t vocab, Precision precision) {
  for (const Json& result : results) {
    if (result.at("kind") == "synthetic" && result.at("vocab") == vocab && result.at("spread") == kShownSpread &&
        result.at("precision") == name_of(precision)) {
      return result;
    }
  }
  throw std::logic_error("a cell is missing");
}

// Over V, by what a cell has of it; a point of many rows counts for more.
template <class Value>
std::vector<GrowthPoint> points_over(std::span<const Json> results, const std::vector<std::int64_t>& sizes,
                                     const Value& value) {
  std::vector<GrowthPoint> points;
  for (const std::int64_t vocab : sizes) {
    const Json& cell = shown(results, vocab, Precision::kFp32);
    points.push_back({static_cast<double>(vocab), value(cell), cell.at("rows").get<double>()});
  }
  return points;
}

Table data_of(std::span<const Json> results) {
  Table data{{"kind", "precision", "vocab", "spread", "rows", "what", "quantity", "rms", "max"}, {}};
  for (const Json& result : results) {
    const auto add = [&](const std::string& what, const Json& errors, std::initializer_list<const char*> quantities) {
      for (const char* quantity : quantities) {
        data.add({result.at("kind"), result.at("precision"), result.at("vocab").dump(),
                  result.contains("spread") ? result.at("spread").dump() : "", result.at("rows").dump(), what, quantity,
                  csv_number(errors.at(quantity).at("rms")), csv_number(errors.at(quantity).at("max"))});
      }
    };
    for (const auto& [order, errors] : result.at("orders").items()) {
      add("log_softmax " + order, errors, {"sum_u", "lse", "loss", "gradient"});
    }
    for (const char* method : {"softplus_recompute", "canonical"}) {
      if (result.contains(method)) add(method, result.at(method), {"loss", "gradient"});
    }
  }
  return data;
}

// How the error of an fp32 sum grows with V, by order.
struct Laws {
  Table table{{"order", "V to the", "+-", "between the two largest V", "+-", "its bound: V to the",
               "error at the largest V, u", "of the bound, at most"},
              {}};
  LinePlot plot{"fp32: relative error of the sum of exponentials, standard deviation 3",
                {"V", true},
                {"root mean square, in u = 2^-24", true},
                {}};
  Growth sequential, pairwise;
  double worst_of_bound = 0.0;
};

Laws laws_of(std::span<const Json> results, const std::vector<std::int64_t>& sizes) {
  Laws laws;
  for (const SumOrderInfo& info : kSumOrders) {
    const std::string order = sim::name_of(info.order);
    Series series{order, {}, {}};
    double of_bound = 0.0;
    for (const std::int64_t vocab : sizes) {
      const Json& errors = shown(results, vocab, Precision::kFp32).at("orders").at(order);
      series.x.push_back(static_cast<double>(vocab));
      series.y.push_back(number_of(errors.at("sum_u").at("rms")));
      of_bound = larger(of_bound, number_of(errors.at("of_bound")));
    }
    const auto error = [&](const Json& cell) { return number_of(cell.at("orders").at(order).at("sum_u").at("rms")); };
    const std::vector<GrowthPoint> points = points_over(results, sizes, error);
    const Growth law = growth_of(points), last = slope_between(points[points.size() - 2], points.back());
    const Growth bound = growth_of(
        points_over(results, sizes, [&](const Json& cell) { return depth_of(info.order, cell.at("vocab")); }));
    if (info.order == SumOrder::kSequential) laws.sequential = law;
    if (info.order == SumOrder::kPairwise) laws.pairwise = law;
    laws.worst_of_bound = larger(laws.worst_of_bound, of_bound);
    laws.table.add({order, exponent_text(law.exponent), fmt::format("{:.2f}", law.half_width()),
                    exponent_text(last.exponent), fmt::format("{:.2f}", last.half_width()),
                    exponent_text(bound.exponent), fmt::format("{:.3g}", series.y.back()),
                    fmt::format("{:.3f}", of_bound)});
    laws.plot.series.push_back(std::move(series));
  }
  return laws;
}

Table by_precision(std::span<const Json> results, const std::vector<std::int64_t>& sizes) {
  Table table{{"precision", "V", "sum, u: plain loop", "sum, u: pairwise", "lse, ulp: lanes8", "loss, ulp: lanes8",
               "gradient, ulp: lanes8"},
              {}};
  for (const Precision precision : kStudied) {
    for (const std::int64_t vocab : {sizes.front(), sizes[sizes.size() / 2], sizes.back()}) {
      const Json& orders = shown(results, vocab, precision).at("orders");
      const auto rms = [&](const char* order, const char* quantity) {
        return short_number(orders.at(order).at(quantity).at("rms"));
      };
      table.add({std::string(name_of(precision)), std::to_string(vocab), rms("sequential", "sum_u"),
                 rms("pairwise", "sum_u"), rms("lanes8", "lse"), rms("lanes8", "loss"), rms("lanes8", "gradient")});
    }
  }
  return table;
}

std::string bound_text(double worst) {
  if (std::isnan(worst)) return "in at least one order it is not a number";
  return worst <= 1 ? fmt::format("it reached at most {:.2g} of its bound", worst)
                    : fmt::format("it exceeded its bound, {:.2g} times", worst);
}

// The largest errors of each method in fp32.
struct ByMethod {
  Table table{{"rows", "V", "spread", "log_softmax (lanes8): loss", "gradient", "softplus_recompute: loss", "gradient",
               "canonical: loss", "gradient"},
              {}};
  double canonical_loss = 0.0, canonical_gradient = 0.0;
};

ByMethod by_method(std::span<const Json> results) {
  ByMethod found;
  for (const Json& result : results) {
    if (result.at("precision") != "fp32") continue;
    const Json &usual = result.at("orders").at("lanes8"), &recompute = result.at("softplus_recompute"),
               &canonical = result.at("canonical");
    const auto most = [](const Json& errors, const char* quantity) { return errors.at(quantity).at("max"); };
    found.table.add({result.at("kind") == "file" ? "real" : "synthetic", result.at("vocab").dump(),
                     result.contains("spread") ? result.at("spread").dump() : "", short_number(most(usual, "loss")),
                     short_number(most(usual, "gradient")), short_number(most(recompute, "loss")),
                     short_number(most(recompute, "gradient")), short_number(most(canonical, "loss")),
                     short_number(most(canonical, "gradient"))});
    found.canonical_loss = larger(found.canonical_loss, number_of(most(canonical, "loss")));
    found.canonical_gradient = larger(found.canonical_gradient, number_of(most(canonical, "gradient")));
  }
  return found;
}

LinePlot loss_by_method(std::span<const Json> results, const std::vector<std::int64_t>& sizes) {
  LinePlot plot{"fp32: error of the loss, standard deviation 3", {"V", true}, {"root mean square, ulp", true}, {}};
  const auto add = [&](const std::string& name, const auto& errors_of) {
    Series series{name, {}, {}};
    for (const std::int64_t vocab : sizes) {
      series.x.push_back(static_cast<double>(vocab));
      series.y.push_back(number_of(errors_of(shown(results, vocab, Precision::kFp32)).at("loss").at("rms")));
    }
    plot.series.push_back(std::move(series));
  };
  for (const char* order : {"sequential", "lanes8", "pairwise"}) {
    add(fmt::format("log_softmax, {}", order),
        [&](const Json& result) -> const Json& { return result.at("orders").at(order); });
  }
  for (const char* method : {"softplus_recompute", "canonical"}) {
    add(method, [&](const Json& result) -> const Json& { return result.at(method); });
  }
  return plot;
}

}  // namespace

std::vector<Parameter> RoundingStudy::parameters() const {
  return {{"logits", "", "a file with the tensors logits and labels, whose rows are measured too"}};
}

std::vector<Cell> RoundingStudy::cells(const StudyOptions& options) const {
  std::vector<Cell> cells;
  // The largest first: they take longest.
  std::vector<std::int64_t> sizes = vocabularies(options);
  std::reverse(sizes.begin(), sizes.end());
  for (const std::int64_t vocab : sizes) {
    const std::int64_t most = options.quick() ? 8 : 64;
    const std::int64_t count =
        std::clamp<std::int64_t>((std::int64_t{1} << (options.quick() ? 16 : 21)) / vocab, 2, most);
    for (const double spread : spreads(options)) {
      for (const Precision precision : kStudied) {
        const RowsRequest request{.rows = count,
                                  .vocab = vocab,
                                  .spread = static_cast<float>(spread),
                                  .seed = options.seed * 1000 + static_cast<std::uint64_t>(
                                                                    std::bit_width(static_cast<std::uint64_t>(vocab)))};
        cells.push_back(
            {fmt::format("v{}-s{}-{}", vocab, spread, name_of(precision)), [=](const std::filesystem::path&) {
               Json result = measure(random_rows(request), precision);
               result["kind"] = "synthetic";
               result["spread"] = spread;
               return result;
             }});
      }
    }
  }
  const std::string file = parameter_file(*this, options, "logits");
  if (!file.empty()) {
    for (const Precision precision : kStudied) {
      const std::int64_t most = options.quick() ? 8 : 64;
      cells.push_back({fmt::format("file-{}", name_of(precision)), [=](const std::filesystem::path&) {
                         Json result = measure(read_rows(file, most), precision);
                         result["kind"] = "file";
                         return result;
                       }});
    }
  }
  return cells;
}

Page RoundingStudy::page(const StudyOptions& options, std::span<const Json> results) const {
  Page page{.title = "Rounding: how errors grow with the vocabulary",
            .conclusion = {},
            .sections = {},
            .data = data_of(results)};
  const std::vector<std::int64_t> sizes = vocabularies(options);
  Laws laws = laws_of(results, sizes);
  ByMethod methods = by_method(results);
  const LinePlot loss_plot = loss_by_method(results, sizes);
  const Growth canonical = growth_of(points_over(
      results, sizes, [](const Json& cell) { return number_of(cell.at("canonical").at("loss").at("rms")); }));
  // Of a sum in u, the share of it.
  const double lost_in_bf16 = std::ldexp(
      number_of(shown(results, sizes.back(), Precision::kBf16).at("orders").at("sequential").at("sum_u").at("rms")),
      -info_of(Precision::kBf16).bits);
  page.conclusion = fmt::format(
      "The error of an fp32 sum of exponentials {} in a plain loop and {} pairwise, where the bounds grow as V and as "
      "log V; {}. The canonical loss errs by at most {:.2f} ulp, and its gradients by {:.2f}, over all rows here; its "
      "error {}. In bf16 a plain loop over {} classes loses {:.0f} % of the sum: it stops growing where a term is less "
      "than half an ulp of it.",
      growth_text(laws.sequential), growth_text(laws.pairwise), bound_text(laws.worst_of_bound), methods.canonical_loss,
      methods.canonical_gradient, growth_text(canonical), sizes.back(), 100 * lost_in_bf16);
  page.sections.push_back(
      {.heading = "Growth laws of the sum",
       .text =
           "Relative error of the sum of exp(z - M) in fp32, in units of u = 2^-24; logits of standard deviation 3. "
           "The exponent is the slope of the logarithm of the root mean square over that of V, where each V counts by "
           "its number of rows, fewer the larger V is; +- is two standard errors, from how far the points lie from "
           "the line. The slope between the two largest V rests on few rows: its +- is two standard errors by the "
           "number of rows, as normal errors scatter. Where it lies further than that from the exponent, the curve "
           "bends and is no power law: lanes and blocks hide the growth as long as each adds few terms, the exponent "
           "is that of the smaller V, and the last slope says how the error goes on. The bound is that of first "
           "order, depth + 2 + the mean of |z - M| under softmax, times u, after Blanchard, Higham and Higham "
           "(Accurately computing the log-sum-exp and softmax functions, IMA J. Numer. Anal. 41, 2021), with the "
           "depth of the order, V - 1 for a plain loop, in place of the number of terms: the rounding of the shift "
           "moves exp(z - M) by |z - M| u, exp errs by 2 u at most, and a term takes part in at most depth additions. "
           "A plain loop may outgrow its bound's slope while it stays far below it: the larger the sum, the more "
           "terms are below half an ulp of it and lost, all in one direction.",
       .tables = {std::move(laws.table)},
       .figures = {{"growth", svg_of(laws.plot), "Error of the sum over V, by order."}}});
  page.sections.push_back(
      {.heading = "By precision",
       .text = "Root mean square; logits of standard deviation 3, rounded to the format first. In bf16 and fp16 a "
               "plain loop stagnates: past 2^8 (2^11) times a term the sum does not move, and its error in u nears 1 / "
               "u.",
       .tables = {by_precision(results, sizes)}});
  page.sections.push_back({.heading = "By method",
                           .text = "The largest error in ulp, fp32. Gradients below 2^-14 are left out.",
                           .tables = {std::move(methods.table)},
                           .figures = {{"loss", svg_of(loss_plot), "Error of the loss over V, by method."}}});
  return page;
}

}  // namespace tpce::sim
