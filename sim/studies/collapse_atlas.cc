#include "sim/studies/collapse_atlas.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "sim/precision/visit.h"
#include "sim/studies/contender.h"
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
  for (std::int64_t k = 0; k < std::min(count, vocab); ++k)
    rows.emplace_back(logits, (k * vocab) / count + (vocab > count ? k : 0));
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
        const double exact = -static_cast<double>(truth.target_grad);
        loss_error = std::max(loss_error, std::abs(values.loss / static_cast<double>(truth.loss) - 1));
        grad_error = std::max(grad_error, std::abs(-values.target_grad / exact - 1));
        imbalance = std::max(imbalance, std::abs(values.grad_sum) / exact);
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
  for (const Json& point : method["points"]) {
    const auto at = std::find(margins.begin(), margins.end(), point[0].get<double>());
    const double error = number_of(point[2]);
    values[static_cast<std::size_t>(at - margins.begin())] =
        std::isnan(error) ? 0.0 : std::log10(std::max(error, 1e-9));
  }
  return values;
}

}  // namespace

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
  if (const std::string peers = parameter_text(*this, options, "peers"); !peers.empty()) {
    for (Cell& cell : peer_cells(peers)) cells.push_back(std::move(cell));
  }
  return cells;
}

Page CollapseStudy::page(const StudyOptions& options, std::span<const Json> all_results) const {
  // Those of peers come last.
  const auto peers = std::find_if(all_results.begin(), all_results.end(), is_peer_result);
  const std::span<const Json> results(all_results.begin(), peers), of_peers(peers, all_results.end());
  Page page{
      .title = "Collapse: where each loss loses its target gradient", .conclusion = {}, .sections = {}, .data = {}};
  page.data.columns = {"precision", "vocab",          "method", "margin", "loss_error", "target_gradient_error",
                       "imbalance", "collapsed_share"};
  const std::vector<double> margins = margins_of(options);
  const auto find = [&](std::int64_t vocab, Precision precision) -> const Json& {
    for (const Json& result : results) {
      if (result["vocab"] == vocab && result["precision"] == name_of(precision)) return result["methods"];
    }
    throw std::logic_error("a cell is missing");
  };
  for (const Json& result : results) {
    for (const auto& [method, found] : result["methods"].items()) {
      for (const Json& point : found["points"]) {
        page.data.add({result["precision"], result["vocab"].dump(), method, point[0].dump(), point[1].dump(),
                       point[2].dump(), point[3].dump(), point[4].dump()});
      }
    }
  }

  Table predicted{{"precision", "bits p", "V", "p ln 2 + ln s", "found by bisection", "apart"}, {}};
  for (const Precision precision : kStudied) {
    for (const std::int64_t vocab : vocabularies(options)) {
      const Json& usual = find(vocab, precision)["log_softmax"];
      const double said = usual["predicted"];
      const double found = number_of(usual["border"]);
      predicted.add({std::string(name_of(precision)), std::to_string(info_of(precision).bits), std::to_string(vocab),
                     fmt::format("{:.4f}", said), fmt::format("{:.4f}", found), fmt::format("{:+.4f}", found - said)});
    }
  }

  const std::int64_t shown = 1024;
  Table borders{{"method"}, {}};
  for (const Precision precision : kStudied) borders.columns.push_back(std::string(name_of(precision)));
  for (const Method* method : methods()) {
    if (!method->is_softmax()) continue;
    std::vector<std::string> row{std::string(method->name())};
    for (const Precision precision : kStudied) {
      const Json& found = find(shown, precision);
      const std::string name(method->name());
      row.push_back(found.contains(name) ? border_text(found[name]["border"]) : "");
    }
    borders.add(row);
  }

  HeatMap in_fp32{"log10 of the relative error of the target gradient, fp32, V = 1024",
                  "margin",
                  "",
                  "log10",
                  margins,
                  {},
                  {},
                  -8,
                  0};
  for (const auto& [name, found] : find(shown, Precision::kFp32).items()) {
    in_fp32.y.push_back(name);
    in_fp32.values.push_back(map_row(found, margins));
  }
  HeatMap in_all{"log10 of the relative error of the target gradient by precision, V = 1024",
                 "margin",
                 "",
                 "log10",
                 margins,
                 {},
                 {},
                 -8,
                 0};
  for (const char* name : {"log_softmax", "softplus_recompute"}) {
    for (const Precision precision : kStudied) {
      in_all.y.push_back(fmt::format("{} {}", name, name_of(precision)));
      in_all.values.push_back(map_row(find(shown, precision)[name], margins));
    }
  }

  Table errors{{"method, fp32, V = 1024", "margin 13", "margin 19", "margin 49", "margin 91"}, {}};
  for (const auto& [name, found] : find(shown, Precision::kFp32).items()) {
    std::vector<std::string> row{name};
    for (const double margin : {13.0, 19.0, 49.0, 91.0}) {
      std::string text;
      for (const Json& point : found["points"]) {
        if (point[0] == margin) text = fmt::format("{:.2g} ({:.2g})", number_of(point[2]), number_of(point[3]));
      }
      row.push_back(text);
    }
    errors.add(row);
  }

  const Json& fp32 = find(2, Precision::kFp32);
  page.conclusion = fmt::format(
      "With two classes the usual loss loses its target gradient at the margin {:.4f} in fp32, where 24 ln 2 = {:.4f} "
      "was "
      "derived; in bf16 at {:.2f} (8 ln 2 = {:.2f}), in fp16 at {:.2f} and in tf32 at {:.2f} (11 ln 2 = {:.2f}). With "
      "more "
      "classes it is earlier by what the order of the sum decides, p ln 2 + ln s. The softplus forms last to {} at V = "
      "1024 in "
      "fp32, and the canonical loss to {}, where fp32 itself ends.",
      number_of(fp32["log_softmax"]["border"]), 24 * std::numbers::ln2,
      number_of(find(2, Precision::kBf16)["log_softmax"]["border"]), 8 * std::numbers::ln2,
      number_of(find(2, Precision::kFp16)["log_softmax"]["border"]),
      number_of(find(2, Precision::kTf32)["log_softmax"]["border"]), 11 * std::numbers::ln2,
      border_text(find(shown, Precision::kFp32)["softplus_recompute"]["border"]),
      border_text(find(shown, Precision::kFp32)["canonical"]["border"]));
  page.sections.push_back(
      {.heading = "The border, derived and found",
       .text =
           "log_softmax on two ranks. The sum S = 1 + s_1 + s_2 + ... stays exactly 1 while every partial sum that "
           "meets the "
           "target's 1 is at most half an ulp of 1, 2^-p; s is the largest of them as a share of all "
           "(docs/collapse.md). "
           "The border is bisected over fp32 logits, which the precision then rounds: in bf16 logits lie 2^-7 of their "
           "value apart, so the border found is the next of them.",
       .tables = {std::move(predicted)}});
  page.sections.push_back(
      {.heading = "The border of every method",
       .text =
           "V = 1024: the margin from which the target gradient is exactly 0. The canonical loss is defined in fp32.",
       .tables = {std::move(borders)}});
  page.sections.push_back(
      {.heading = "What is lost before the border",
       .text = "Largest relative error of the target gradient over rows with the target in different places and, in "
               "brackets, "
               "|sum of gradients| / p_nt, which is 0 in exact arithmetic. The softplus recompute form errs by an ulp "
               "of the "
               "margin, since its loss is the exponential of a difference of that size.",
       .tables = {std::move(errors)},
       .figures = {{"fp32", svg_of(in_fp32), "Error of the target gradient over margin and method, fp32."},
                   {"precisions", svg_of(in_all), "The usual and the softplus form in each precision."}}});
  if (!of_peers.empty()) {
    page.sections.push_back(peer_section(of_peers));
    page.files.push_back(peer_orders(of_peers));
  }
  return page;
}

}  // namespace tpce::sim
