#include "sim/studies/threshold.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "sim/order/sum_order.h"
#include "sim/precision/visit.h"
#include "sim/studies/errors.h"
#include "sim/studies/rows.h"

namespace tpce::sim {
namespace {

// The middle of each bin of p_t.
std::vector<double> probabilities() {
  std::vector<double> all;
  for (int i = 0; i < 64; ++i) all.push_back((i + 0.5) / 64);
  return all;
}

// In the bin around p, u in [0, 1); away from 0 and 1, where a sum could leave the range of fp16. Wider than fp64: a
// probability that fp64 holds would spare its quotient E / S a rounding.
long double probability_in_bin(double p, double u) {
  return std::clamp<long double>(p + (static_cast<long double>(u) - 0.5L) / 64, 0x1p-10L, 1 - 0x1p-10L);
}

constexpr std::array kPrecisionsAsked{Precision::kFp32, Precision::kFp64,    Precision::kTf32,       Precision::kFp16,
                                      Precision::kBf16, Precision::kBf16Exp, Precision::kFp32FastExp};

// What the two forms err by in a bin of p_t, in ulp of the exact value at the precision's bits: p_t - 1, others / sum.
using FormErrors = std::array<ErrorStatistics, 2>;

void add(FormErrors& errors, std::array<double, 2> found, long double exact, int bits) {
  for (std::size_t form = 0; form < 2; ++form) {
    errors[form].add(ulps_apart(static_cast<long double>(found[form]), exact, bits));
  }
}

// Target gradients from the two sums, as the methods take them.
template <class Real>
std::array<double, 2> forms_of(Real target_exp, Real others) {
  const Real sum = target_exp + others;
  return {static_cast<double>(target_exp / sum - Real(1.0f)), static_cast<double>(-(others / sum))};
}

// Given sums: random numbers of the format, taken as exact.
template <class Arithmetic>
FormErrors given_sums(double p, std::int64_t samples, std::uint64_t seed, int bits) {
  using Real = typename Arithmetic::Real;
  std::mt19937_64 random(seed);
  const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  FormErrors errors;
  for (std::int64_t i = 0; i < samples; ++i) {
    const Real target = static_cast<Real>(1.0 + uniform());
    const long double at = probability_in_bin(p, uniform());
    const Real others = static_cast<Real>(static_cast<double>(static_cast<double>(target) * (1 - at) / at));
    const long double exact = -static_cast<long double>(static_cast<double>(others)) /
                              (static_cast<long double>(static_cast<double>(target)) + static_cast<double>(others));
    add(errors, forms_of(target, others), exact, bits);
  }
  return errors;
}

// From logits: exponentials below the row's maximum and a sum over 8 lanes, as a kernel makes them.
template <class Arithmetic>
FormErrors from_logits(double p, std::int64_t samples, std::uint64_t seed, int bits) {
  using Real = typename Arithmetic::Real;
  constexpr std::int64_t kOthers = 64;
  FormErrors errors;
  std::mt19937_64 random(seed);
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::vector<float> raw = normal_numbers(kOthers, seed + static_cast<std::uint64_t>(i) * 1000003);
    std::vector<float> logits(raw.begin(), raw.end());
    double sum = 0.0;
    for (float& logit : logits) {
      logit = static_cast<float>(static_cast<double>(Real(3.0f * logit)));
      sum += std::exp(static_cast<double>(logit));
    }
    const auto at = static_cast<double>(probability_in_bin(p, static_cast<double>(random() >> 11) * 0x1p-53));
    const float target =
        static_cast<float>(static_cast<double>(Real(static_cast<float>(std::log(sum * at / (1 - at))))));

    const float maximum = std::max(target, *std::max_element(logits.begin(), logits.end()));
    std::vector<Real> terms;
    long double exact_others = 0.0L;
    for (const float logit : logits) {
      terms.push_back(Arithmetic::exp(Real(logit) - Real(maximum)));
      exact_others += std::exp(static_cast<long double>(logit) - maximum);
    }
    const Real others = tpce::sim::sum(SumOrder::kLanes8, std::span<const Real>(terms));
    const long double exact_target = std::exp(static_cast<long double>(target) - maximum);
    add(errors, forms_of(Arithmetic::exp(Real(target) - Real(maximum)), others),
        -exact_others / (exact_target + exact_others), bits);
  }
  return errors;
}

Json result_of(Precision precision, bool logits, std::int64_t samples, std::uint64_t seed) {
  Json bins = Json::array();
  const int bits = info_of(precision).bits;
  for (const double p : probabilities()) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const FormErrors errors = visit_precision(precision, [&](auto arithmetic) {
      using Arithmetic = decltype(arithmetic);
      return logits ? from_logits<Arithmetic>(p, samples, seed, bits) : given_sums<Arithmetic>(p, samples, seed, bits);
    });
    bins.push_back({{"p", p},
                    {"difference_rms", json_of(errors[0].rms())},
                    {"quotient_rms", json_of(errors[1].rms())},
                    {"difference_max", json_of(errors[0].largest)},
                    {"quotient_max", json_of(errors[1].largest)}});
  }
  return {{"precision", name_of(precision)}, {"from", logits ? "logits" : "sums"}, {"bins", bins}};
}

constexpr double kBorder = 0.25;  // the one in question

struct Border {
  double best = 0.0;   // the edge of bins with the least sum of logarithms of errors
  double cost = 1.0;   // how many times the error of the better form 1/4 takes: geometric mean from 1/4 to best
  double worst = 1.0;  // the same in one bin, at most
};

Border border_of(const Json& result, const char* statistic) {
  Border border;
  const Json& bins = result.at("bins");
  const auto logarithm = [&](std::size_t i, bool difference) {
    const std::string field = fmt::format("{}_{}", difference ? "difference" : "quotient", statistic);
    return std::log(number_of(bins.at(i).at(field)));
  };
  double best_sum = HUGE_VAL;
  for (std::size_t at = 0; at <= bins.size(); ++at) {
    double total = 0.0;
    for (std::size_t i = 0; i < bins.size(); ++i) total += logarithm(i, i < at);
    if (std::isnan(total)) return {std::nan(""), std::nan(""), std::nan("")};
    if (total < best_sum) {
      best_sum = total;
      border.best = static_cast<double>(at) / static_cast<double>(bins.size());
    }
  }
  double lost = 0.0;
  int between = 0;
  for (std::size_t i = 0; i < bins.size(); ++i) {
    const double p = bins.at(i).at("p");
    const bool difference = p < kBorder;
    const double more = logarithm(i, difference) - logarithm(i, !difference);
    border.worst = std::max(border.worst, std::exp(more));
    if (difference == (p < border.best)) continue;
    lost += more;
    ++between;
  }
  if (between > 0) border.cost = std::exp(lost / between);
  return border;
}

// Over the precisions, for sums of one origin.
struct Borders {
  double lowest = 1.0, highest = 0.0;  // the best ones
  double cost = 1.0;
  double worst = 1.0;
  std::string worst_in;

  void add(const Border& border, const std::string& precision) {
    lowest = -larger(-lowest, -border.best);
    highest = larger(highest, border.best);
    cost = larger(cost, border.cost);
    if (!(border.worst <= worst)) worst_in = precision;
    worst = larger(worst, border.worst);
  }
};

LinePlot plot_of(const Json& result, const std::string& title) {
  LinePlot plot{title, {"p_t", false}, {"error of the target gradient, ulp (root mean square)", true}, {}};
  for (const auto& [field, name] :
       std::array<std::array<const char*, 2>, 2>{{{"difference_rms", "p_t - 1"}, {"quotient_rms", "-others / sum"}}}) {
    Series series{name, {}, {}};
    for (const Json& bin : result.at("bins")) {
      series.x.push_back(bin.at("p"));
      series.y.push_back(number_of(bin.at(field)));
    }
    plot.series.push_back(std::move(series));
  }
  return plot;
}

Table data_of(std::span<const Json> results) {
  Table data{
      {"from", "precision", "p_t", "difference_rms_ulp", "quotient_rms_ulp", "difference_max_ulp", "quotient_max_ulp"},
      {}};
  for (const Json& result : results) {
    for (const Json& bin : result.at("bins")) {
      const auto text = [&](const char* field) { return fmt::format("{:.6g}", number_of(bin.at(field))); };
      data.add({result.at("from"), result.at("precision"), text("p"), text("difference_rms"), text("quotient_rms"),
                text("difference_max"), text("quotient_max")});
    }
  }
  return data;
}

std::vector<Figure> figures_of(std::span<const Json> results) {
  std::vector<Figure> figures;
  for (const Json& result : results) {
    const std::string from = result.at("from"), precision = result.at("precision");
    if (precision != "fp32" && (precision != "bf16" || from != "logits")) continue;
    const std::string title = fmt::format("{}, {}", precision, from == "sums" ? "sums given" : "sums from logits");
    figures.push_back({fmt::format("{}-{}", from, precision), svg_of(plot_of(result, title)),
                       fmt::format("Error of both forms over p_t in {}, {}.", precision,
                                   from == "sums" ? "for given sums" : "for sums made from logits")});
  }
  return figures;
}

// By the derivation below, how many times the difference's bound that of the quotient is: the geometric mean over the
// bins from 1/4 to 3/8, where the bounds cross.
double derived_cost() {
  double sum = 0.0;
  int count = 0;
  for (const double p : probabilities()) {
    if (p < kBorder || p > 3.0 / 8) continue;
    sum += std::log((1.5 - p) / (0.75 + p));
    ++count;
  }
  return std::exp(sum / count);
}

std::string conclusion_of(const Borders& given, const Borders& made) {
  if (std::isnan(larger(given.cost, made.cost))) {
    return "No answer: an error is not a number in at least one precision.";
  }
  const Borders& worse = made.worst > given.worst ? made : given;
  const double derived = derived_cost();
  return fmt::format(
      "1/4 is {} than the {:.2f} times that are derived. Measured by the root mean square for given sums, the best "
      "border lies between {:.2f} and {:.2f} over the precisions, where the derivation below puts it at 3/8, and from "
      "there to 1/4 the error is in the mean up to {:.2f} times that of the better form. Where the sums come from "
      "logits, the best border lies between {:.2f} and {:.2f}, and 1/4 costs up to {:.2f} times: {}. In a single one "
      "of 64 bins of p_t the factor reaches {:.2f} ({}, {}). Taken far from the border, a form costs without limit: "
      "p_t - 1 loses every digit as p_t nears 1.",
      larger(given.cost, made.cost) <= derived ? "a good border: in the mean it costs no more"
                                               : "not a good border: in the mean it costs more",
      derived, given.lowest, given.highest, given.cost, made.lowest, made.highest, made.cost,
      made.cost < given.cost ? "the choice matters less there, as the errors of exp and of the sums are common to both "
                               "forms"
                             : "the choice matters no less there, though the errors of exp and of the sums are common "
                               "to both forms",
      worse.worst, worse.worst_in.empty() ? "none" : worse.worst_in, &worse == &made ? "from logits" : "given sums");
}

Section derivation() {
  return {
      .heading = "Why",
      .text =
          "Write the rounding of S as (1 + s), |s| <= u, u half an ulp of 1, and let p = E / (E + N). Both forms "
          "divide by the same S, so s moves p_t - 1 by p s and N / S by (1 - p) s. The division rounds E / S by at "
          "most half an ulp of p, and N / S by half an ulp of 1 - p; p - 1 is exact from p = 1/2 on (Sterbenz) and "
          "rounds by half an ulp of 1 - p below. In units of u, with ulp(1 - p) = u for 1 - p in [1/2, 1):\n\n"
          "| p in | p_t - 1: division + subtraction + sum | N / S: division + sum |\n"
          "| --- | --- | --- |\n"
          "| [1/8, 1/4) | 1/8 + 1/2 + p | 1/2 + (1 - p) |\n"
          "| [1/4, 1/2) | 1/4 + 1/2 + p | 1/2 + (1 - p) |\n"
          "| [1/2, 3/4] | 1/2 + 0 + p | 1/4 + (1 - p) |\n\n"
          "So the bounds cross at p = 3/8, where 3/4 + p = 3/2 - p. At 1/4 the difference's bound is 1 and the "
          "quotient's 5/4: a border at 1/4 instead of 3/8 gives up at most a quarter of the bound, at 1/4 itself, "
          "and a factor of 1.12 in the geometric mean of (3/2 - p) / (3/4 + p) from there to 3/8. What is common to "
          "both, the relative errors e of E and n of N, moves either by p (1 - p) (e - n) and does not matter for the "
          "choice."};
}

}  // namespace

std::vector<Cell> ThresholdStudy::cells(const StudyOptions& options) const {
  const std::int64_t samples = options.quick() ? 2000 : 40000;
  std::vector<Cell> cells;
  for (const bool logits : {false, true}) {
    for (const Precision precision : kPrecisionsAsked) {
      // These differ from fp32 in exp alone.
      if (!logits && (precision == Precision::kBf16Exp || precision == Precision::kFp32FastExp)) continue;
      const std::uint64_t seed = options.seed * 7919 + static_cast<std::uint64_t>(cells.size());
      const std::int64_t count = logits ? samples / 8 : samples;
      cells.push_back({fmt::format("{}-{}", logits ? "logits" : "sums", name_of(precision)),
                       [=](const std::filesystem::path&) { return result_of(precision, logits, count, seed); }});
    }
  }
  return cells;
}

Page ThresholdStudy::page(const StudyOptions&, std::span<const Json> results) const {
  Table table{{"sums", "precision", "best border (rms)", "best border (largest error)",
               "from there to 1/4: errs more (rms)", "(largest error)", "in one bin, at most (rms)"},
              {}};
  Borders given, made;
  for (const Json& result : results) {
    const bool sums = result.at("from") == "sums";
    const std::string precision = result.at("precision");
    const Border rms = border_of(result, "rms"), largest = border_of(result, "max");
    table.add({sums ? "given" : "from logits", precision, fmt::format("{:.3f}", rms.best),
               fmt::format("{:.3f}", largest.best), fmt::format("{:.2f} times", rms.cost),
               fmt::format("{:.2f} times", largest.cost), fmt::format("{:.2f} times", rms.worst)});
    (sums ? given : made).add(rms, precision);
  }
  Page page{.title = "The border between the two forms of the target gradient",
            .conclusion = conclusion_of(given, made),
            .sections = {},
            .data = data_of(results)};
  page.sections.push_back(
      {.heading = "The border, by precision",
       .text =
           "Both forms are computed from the exponential of the target E and the sum N of the others, S = fl(E + N): "
           "fl(fl(E / S) - 1) and -fl(N / S). The error is counted in ulp of the exact value -N / (E + N). \"Given\" "
           "takes E and N as exact numbers of the format, so that nothing but the forms differs; \"from logits\" makes "
           "them from 65 logits of standard deviation 3, with the errors of exp and of the sum. The best border is the "
           "one with the least mean logarithm of the error over 64 bins of p_t. What 1/4 costs is the geometric mean "
           "over the bins from 1/4 to the best border of the error of the form that 1/4 takes over that of the other. "
           "A single bin says less: in bf16 logits are so coarse that a bin holds few different rows.",
       .tables = {std::move(table)},
       .figures = figures_of(results)});
  page.sections.push_back(derivation());
  return page;
}

}  // namespace tpce::sim
