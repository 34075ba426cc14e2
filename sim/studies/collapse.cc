#include "sim/studies/collapse.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <stdexcept>

#include "sim/precision/visit.h"
#include "sim/studies/contender.h"
#include "sim/studies/errors.h"
#include "sim/studies/first_zero.h"
#include "sim/studies/margin_row.h"
#include "sim/studies/peers.h"

namespace tpce::sim {
namespace {

// Those of another exp or another storage differ from fp32 below the border alone.
constexpr std::array kStudied{Precision::kFp32, Precision::kFp64, Precision::kTf32,
                              Precision::kFp16, Precision::kBf16, Precision::kBf16Storage};

float loaded(float logit, Precision precision) {
  return visit_precision(precision,
                         [&](auto arithmetic) { return static_cast<float>(decltype(arithmetic)::load(logit)); });
}

std::vector<double> margins_of(const StudyOptions& options) {
  std::vector<double> margins;
  for (double m = 1.0; m <= 103.0; m += options.quick() ? 6.0 : 2.0) margins.push_back(m);
  return margins;
}

std::vector<std::int64_t> vocabularies(const StudyOptions& options) {
  return options.quick() ? std::vector<std::int64_t>{2, 1024} : std::vector<std::int64_t>{2, 1024, 32000};
}

// Rows that differ in where the target stands, and so in which partial sum it meets.
std::vector<MarginRow> rows_of(std::int64_t vocab, Precision precision, std::int64_t count) {
  const std::vector<float> made = MarginRow::normal(vocab).with(0.0f);
  std::vector<float> logits;
  for (const float z : made) logits.push_back(loaded(z, precision));
  std::vector<MarginRow> rows;
  for (const std::int64_t target : target_places(vocab, count)) rows.emplace_back(logits, target);
  return rows;
}

Json measure(Precision precision, std::int64_t vocab, const std::vector<double>& margins, std::int64_t count) {
  std::vector<MarginRow> rows = rows_of(vocab, precision, count);
  Json methods_found = Json::object();
  for (const Method* method : methods()) {
    if (!method->is_softmax() || !method->supports(precision)) continue;
    const Setting setting{.tp = method->one_rank_only() ? 1 : 2, .order = {}, .precision = precision};
    const Contender contender = contender_of(*method, setting);
    Json points = Json::array();
    for (const double margin : margins) {
      double loss_error = 0.0, grad_error = 0.0, imbalance = 0.0;
      std::int64_t collapsed = 0, looked_at = 0;
      for (MarginRow& row : rows) {
        const float target = loaded(row.target_logit(margin), precision);
        const CertifiedValues truth = row.certified(target);
        if (truth.loss == 0.0f) continue;
        const RowValues values = contender.evaluate(row.with(target), row.target());
        ++looked_at;
        collapsed += values.target_grad == 0.0 ? 1 : 0;
        const double exact = -truth.target_grad_fp64;
        loss_error = larger(loss_error, std::abs(values.loss / truth.loss_fp64 - 1));
        grad_error = larger(grad_error, std::abs(-values.target_grad / exact - 1));
        imbalance = larger(imbalance, std::abs(values.grad_sum) / exact);
      }
      if (looked_at == 0) continue;
      points.push_back({margin, json_of(loss_error), json_of(grad_error), json_of(imbalance),
                        static_cast<double>(collapsed) / static_cast<double>(looked_at)});
    }
    Json found{{"points", points}};
    // The first row alone: its border, by bisection, and what the derivation of docs/collapse.md says of it.
    MarginRow& row = rows.front();
    const auto zero = first_zero_target_grad(contender, row);
    found["border"] = zero ? json_of(row.margin(loaded(zero->target_logit, precision))) : Json(nullptr);
    if (method->name() == "log_softmax") {
      found["predicted"] =
          info_of(precision).bits * std::numbers::ln2 + std::log(largest_share(row, setting.tp, setting.order));
    }
    methods_found[std::string(method->name())] = found;
  }
  return {{"precision", name_of(precision)}, {"vocab", vocab}, {"rows", rows.size()}, {"methods", methods_found}};
}

std::string border_text(const Json& border) {
  return border.is_null() ? "none up to 120" : fmt::format("{:.3f}", border.get<double>());
}

// log10 of the error of the target gradient, by margin; NaN where there is no point.
std::vector<double> map_row(const Json& method, const std::vector<double>& margins) {
  std::vector<double> values(margins.size(), std::nan(""));
  for (const Json& point : method.at("points")) {
    const auto at = std::find(margins.begin(), margins.end(), point.at(0).get<double>());
    if (at == margins.end()) throw std::invalid_argument("a point stands at a margin of its own");
    const double error = number_of(point.at(2));
    values[static_cast<std::size_t>(at - margins.begin())] =
        std::isnan(error) ? error : std::log10(std::max(error, 1e-9));
  }
  return values;
}

// The vocabulary that borders and maps are shown of.
constexpr std::int64_t kShownVocab = 1024;

const Json& methods_of(std::span<const Json> results, std::int64_t vocab, Precision precision) {
  for (const Json& result : results) {
    if (result.at("vocab") == vocab && result.at("precision") == name_of(precision)) return result.at("methods");
  }
  throw std::logic_error("a cell is missing");
}

Table data_of(std::span<const Json> results) {
  Table data{
      {"precision", "vocab", "method", "margin", "loss_error", "target_gradient_error", "imbalance", "collapsed_share"},
      {}};
  for (const Json& result : results) {
    for (const auto& [method, found] : result.at("methods").items()) {
      for (const Json& point : found.at("points")) {
        std::vector<std::string> row{result.at("precision"), result.at("vocab").dump(), method};
        for (const Json& number : point) row.push_back(csv_number(number));
        data.add(row);
      }
    }
  }
  return data;
}

Table predicted_and_found(std::span<const Json> results, const std::vector<std::int64_t>& sizes) {
  Table table{{"precision", "bits p", "V", "p ln 2 + ln s", "found by bisection", "apart"}, {}};
  for (const Precision precision : kStudied) {
    for (const std::int64_t vocab : sizes) {
      const Json& usual = methods_of(results, vocab, precision).at("log_softmax");
      const double said = usual.at("predicted"), found = number_of(usual.at("border"));
      table.add({std::string(name_of(precision)), std::to_string(info_of(precision).bits), std::to_string(vocab),
                 fmt::format("{:.4f}", said), fmt::format("{:.4f}", found), fmt::format("{:+.4f}", found - said)});
    }
  }
  return table;
}

Table border_of_every_method(std::span<const Json> results) {
  Table table{{"method"}, {}};
  for (const Precision precision : kStudied) table.columns.push_back(std::string(name_of(precision)));
  for (const Method* method : methods()) {
    if (!method->is_softmax()) continue;
    const std::string name(method->name());
    std::vector<std::string> row{name};
    for (const Precision precision : kStudied) {
      const Json& found = methods_of(results, kShownVocab, precision);
      row.push_back(found.contains(name) ? border_text(found.at(name).at("border")) : "");
    }
    table.add(row);
  }
  return table;
}

Table errors_before_the_border(std::span<const Json> results) {
  Table table{{"method, fp32, V = 1024", "margin 13", "margin 19", "margin 49", "margin 91"}, {}};
  for (const auto& [name, found] : methods_of(results, kShownVocab, Precision::kFp32).items()) {
    std::vector<std::string> row{name};
    for (const double margin : {13.0, 19.0, 49.0, 91.0}) {
      std::string text;
      for (const Json& point : found.at("points")) {
        if (point.at(0) != margin) continue;
        text = fmt::format("{:.2g} ({:.2g})", number_of(point.at(2)), number_of(point.at(3)));
      }
      row.push_back(text);
    }
    table.add(row);
  }
  return table;
}

HeatMap error_map(const std::string& what, const std::vector<double>& margins) {
  return {"log10 of the relative error of the target gradient" + what + ", V = 1024",
          "margin",
          "",
          "log10",
          margins,
          {},
          {},
          -8,
          0};
}

HeatMap map_of_methods(std::span<const Json> results, const std::vector<double>& margins) {
  HeatMap map = error_map(", fp32", margins);
  for (const auto& [name, found] : methods_of(results, kShownVocab, Precision::kFp32).items()) {
    map.y.push_back(name);
    map.values.push_back(map_row(found, margins));
  }
  return map;
}

HeatMap map_of_precisions(std::span<const Json> results, const std::vector<double>& margins) {
  HeatMap map = error_map(" by precision", margins);
  for (const char* name : {"log_softmax", "softplus_recompute"}) {
    for (const Precision precision : kStudied) {
      map.y.push_back(fmt::format("{} {}", name, name_of(precision)));
      map.values.push_back(map_row(methods_of(results, kShownVocab, precision).at(name), margins));
    }
  }
  return map;
}

std::string conclusion_of(std::span<const Json> results) {
  const auto border = [&](std::int64_t vocab, Precision precision, const char* method) -> const Json& {
    return methods_of(results, vocab, precision).at(method).at("border");
  };
  return fmt::format(
      "With two classes the usual loss loses its target gradient at the margin {:.4f} in fp32, where 24 ln 2 = {:.4f} "
      "was derived; in bf16 at {:.2f} (8 ln 2 = {:.2f}), in fp16 at {:.2f} and in tf32 at {:.2f} (11 ln 2 = {:.2f}). "
      "With more classes it is earlier by what the order of the sum decides, p ln 2 + ln s. The softplus forms last to "
      "{} at V = 1024 in fp32, and the canonical loss to {}, where fp32 itself ends.",
      number_of(border(2, Precision::kFp32, "log_softmax")), 24 * std::numbers::ln2,
      number_of(border(2, Precision::kBf16, "log_softmax")), 8 * std::numbers::ln2,
      number_of(border(2, Precision::kFp16, "log_softmax")), number_of(border(2, Precision::kTf32, "log_softmax")),
      11 * std::numbers::ln2, border_text(border(kShownVocab, Precision::kFp32, "softplus_recompute")),
      border_text(border(kShownVocab, Precision::kFp32, "canonical")));
}

Section derived_section(std::span<const Json> results, const StudyOptions& options) {
  return {
      .heading = "The border, derived and found",
      .text =
          "log_softmax on two ranks. The sum S = 1 + s_1 + s_2 + ... stays exactly 1 while every partial sum that "
          "meets the target's 1 is at most half an ulp of 1, 2^-p; s is the largest of them as a share of all "
          "(docs/collapse.md). The border is bisected over fp32 logits, which the precision then rounds: in bf16 "
          "logits lie 2^-7 of their value apart, so the border found is the next of them. The derivation takes the "
          "partial sums as exact; in bf16 and fp16 those of 32000 classes stop growing below their value, and more so "
          "the narrower the format, so the row collapses earlier than it says.",
      .tables = {predicted_and_found(results, vocabularies(options))}};
}

Section methods_section(std::span<const Json> results) {
  return {
      .heading = "The border of every method",
      .text =
          "V = 1024: the margin from which the target gradient is exactly 0. The canonical loss is defined in fp32. "
          "flash_attention ends sooner than its sum does: its backward takes p_t as exp(z_t - lse), which is 1 once "
          "lse is rounded to z_t, at half an ulp of z_t and not of 1; so its border depends on how large the logits "
          "are.",
      .tables = {border_of_every_method(results)}};
}

Section before_section(std::span<const Json> results, const std::vector<double>& margins) {
  return {
      .heading = "What is lost before the border",
      .text =
          "Largest relative error of the target gradient over rows with the target in different places, against the "
          "certified value in fp64, and, in brackets, |sum of gradients| / p_nt, which is 0 in exact arithmetic. "
          "The losses of the softplus forms err more than their gradients: softplus turns a rounding of the "
          "difference log N - (z_t - M), of the margin's size, into a relative error of the loss (loss_error in "
          "data.csv).",
      .tables = {errors_before_the_border(results)},
      .figures = {{"fp32", svg_of(map_of_methods(results, margins)),
                   "Error of the target gradient over margin and method, fp32; grey: no number."},
                  {"precisions", svg_of(map_of_precisions(results, margins)),
                   "The usual and the softplus form in each precision; grey: no number."}}};
}

}  // namespace

std::vector<std::int64_t> target_places(std::int64_t vocab, std::int64_t count) {
  const std::int64_t places = std::min(count, vocab);
  std::vector<std::int64_t> targets;
  for (std::int64_t k = 0; k < places; ++k) {
    // Off the multiples of a power of two, which lanes and ranks begin at.
    targets.push_back((k * vocab) / places + (vocab > places * places ? k : 0));
  }
  return targets;
}

std::vector<Cell> CollapseStudy::cells(const StudyOptions& options) const {
  std::vector<Cell> cells;
  std::vector<std::int64_t> sizes = vocabularies(options);
  std::reverse(sizes.begin(), sizes.end());  // the longest first
  for (const std::int64_t vocab : sizes) {
    for (const Precision precision : kStudied) {
      const std::vector<double> margins = margins_of(options);
      const std::int64_t count = options.quick() ? 2 : 4;
      cells.push_back({fmt::format("v{}-{}", vocab, name_of(precision)),
                       [=](const std::filesystem::path&) { return measure(precision, vocab, margins, count); }});
    }
  }
  if (const std::string peers = parameter_file(*this, options, "peers"); !peers.empty()) {
    for (Cell& cell : peer_cells(peers)) cells.push_back(std::move(cell));
  }
  return cells;
}

Page CollapseStudy::page(const StudyOptions& options, std::span<const Json> all_results) const {
  // Those of peers come last.
  const auto peers = std::find_if(all_results.begin(), all_results.end(), is_peer_result);
  const std::span<const Json> results(all_results.begin(), peers), of_peers(peers, all_results.end());
  Page page{.title = "Collapse: where each loss loses its target gradient",
            .conclusion = conclusion_of(results),
            .sections = {},
            .data = data_of(results)};
  page.sections = {derived_section(results, options), methods_section(results),
                   before_section(results, margins_of(options))};
  if (!of_peers.empty()) {
    page.sections.push_back(peer_section(of_peers));
    page.files.push_back(peer_orders(of_peers));
  }
  return page;
}

}  // namespace tpce::sim
