#include "sim/parity/parity_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "io/error.h"

namespace tpce::sim {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kRowQuantities{Quantity::kLoss, Quantity::kLse, Quantity::kGradient};

std::string label_of(Quantity quantity) {
  std::string label(name_of(quantity));
  std::replace(label.begin(), label.end(), '_', ' ');
  return label;
}

std::string bits_text(std::uint32_t bits, DType dtype) { return fmt::format("0x{:0{}x}", bits, 2 * size_of(dtype)); }

// As far as JSON has a number for it.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::string ulp_text(const DifferingPair& pair) {
  return pair.steps ? fmt::format("{} ulp", *pair.steps) : "NaN or number";
}

std::string margin_text(const DifferingPair& pair) {
  return pair.margin ? fmt::format("{:.4f}", *pair.margin) : "none";
}

// "row 12, column 3, label 7, margin 4.2".
std::string place_text(const Parity& parity, const DifferingPair& pair) {
  std::string text;
  if (parity.files().size() > 1) text += io::printable(parity.files()[pair.place.file].name) + " ";
  if (pair.place.row < 0) return text + "whole file";
  text += fmt::format("row {}", pair.place.row);
  if (pair.place.column >= 0) text += fmt::format(", column {}", pair.place.column);
  if (pair.label) text += fmt::format(", label {}", *pair.label);
  return text + fmt::format(", margin {}", margin_text(pair));
}

std::string collapsed_text(const std::optional<std::int64_t>& rows) {
  return rows ? std::to_string(*rows) : "not counted";
}

std::string verdict_of(const PairParity& pair) {
  if (pair.equal()) return pair.required ? "equal, as required" : "equal";
  return pair.required ? "NOT EQUAL, as is required" : "not equal, which nothing requires";
}

// Rows of cells under a head, each column as wide as its widest cell; the first one is flush left.
std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = "  ";
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += i == 0 ? fmt::format("{:<{}}", row[i], widths[i]) : fmt::format("  {:>{}}", row[i], widths[i]);
    }
    text += line + "\n";
  }
  return text;
}

Json worst_json(const Parity& parity, Quantity quantity, const ValueParity& values) {
  const DifferingPair& pair = *values.worst;
  return {{"quantity", name_of(quantity)},
          {"file", parity.files()[pair.place.file].name},
          {"row", pair.place.row >= 0 ? Json(pair.place.row) : Json(nullptr)},
          {"column", pair.place.column >= 0 ? Json(pair.place.column) : Json(nullptr)},
          {"label", or_null(pair.label)},
          {"margin", pair.margin ? number(*pair.margin) : Json(nullptr)},
          {"ulp", or_null(pair.steps)},
          {"a", number(static_cast<double>(pair.a))},
          {"b", number(static_cast<double>(pair.b))},
          {"a_bits", bits_text(pair.a_bits, values.dtype)},
          {"b_bits", bits_text(pair.b_bits, values.dtype)}};
}

Json quantity_json(const Parity& parity, Quantity quantity, const ValueParity& values) {
  Json histogram = Json::object();
  for (std::size_t bin = 0; bin < UlpHistogram::kBins; ++bin) {
    if (values.histogram.counts[bin] > 0) histogram[UlpHistogram::name_of(bin)] = values.histogram.counts[bin];
  }
  return {{"dtype", tpce::name_of(values.dtype)},
          {"values", values.values},
          {"differing_values", values.differing_values},
          {"differing_bits", values.differing_bits},
          {"max_ulp", values.max_ulp},
          {"unordered", values.histogram.counts[UlpHistogram::kUnordered]},
          {"histogram", std::move(histogram)},
          {"worst_row", values.worst ? worst_json(parity, quantity, values) : Json(nullptr)}};
}

Json pair_json(const Parity& parity, const PairParity& pair) {
  Json bits = Json::object(), quantities = Json::object();
  for (const Quantity quantity : kQuantities) {
    const std::string name(name_of(quantity));
    const auto& values = pair.of(quantity);
    bits[name] = values ? Json(values->differing_bits) : Json(nullptr);
    quantities[name] = values ? quantity_json(parity, quantity, *values) : Json(nullptr);
  }
  const auto worst = pair.worst_quantity();
  return {{"a", pair.a},
          {"b", pair.b},
          {"tp", pair.tp},
          {"equal", pair.equal()},
          {"required", pair.required},
          {"differing_bits", std::move(bits)},
          {"max_ulp", pair.max_ulp()},
          {"worst_row", worst ? worst_json(parity, *worst, *pair.of(*worst)) : Json(nullptr)},
          {"collapsed_rows_a", or_null(pair.collapsed_a)},
          {"collapsed_rows_b", or_null(pair.collapsed_b)},
          {"quantities", std::move(quantities)}};
}

// From the least bin to the last one that any of the quantities fills.
BarPlot histogram_of(const PairParity& pair) {
  BarPlot plot{.title = fmt::format("{} against {}, tp {}", pair.a, pair.b, pair.tp),
               .x_label = "distance in units in the last place",
               .y_label = "share of the values, %",
               .bins = {},
               .series = {}};
  std::size_t bins = UlpHistogram::kOneUlp + 1;
  for (const Quantity quantity : kRowQuantities) {
    for (std::size_t bin = 0; pair.of(quantity) && bin < UlpHistogram::kUnordered; ++bin) {
      if (pair.of(quantity)->histogram.counts[bin] > 0) bins = std::max(bins, bin + 1);
    }
  }
  for (std::size_t bin = 0; bin < bins; ++bin) plot.bins.push_back(UlpHistogram::name_of(bin));
  plot.bins.push_back(UlpHistogram::name_of(UlpHistogram::kUnordered));
  for (const Quantity quantity : kRowQuantities) {
    if (!pair.of(quantity)) continue;
    const ValueParity& values = *pair.of(quantity);
    const auto share = [&](std::size_t bin) {
      return 100.0 * static_cast<double>(values.histogram.counts[bin]) / static_cast<double>(values.values);
    };
    BarPlot::Bars bars{label_of(quantity), {}};
    for (std::size_t bin = 0; bin < bins; ++bin) bars.values.push_back(share(bin));
    bars.values.push_back(share(UlpHistogram::kUnordered));
    plot.series.push_back(std::move(bars));
  }
  return plot;
}

Table quantities_table(const Parity& parity, const PairParity& pair) {
  Table table{{"quantity", "values", "differ", "bits", "largest ulp", "NaN or number", "worst"}, {}};
  for (const Quantity quantity : kQuantities) {
    if (!pair.of(quantity)) continue;
    const ValueParity& values = *pair.of(quantity);
    table.add({label_of(quantity), std::to_string(values.values), std::to_string(values.differing_values),
               std::to_string(values.differing_bits), std::to_string(values.max_ulp),
               std::to_string(values.histogram.counts[UlpHistogram::kUnordered]),
               values.worst ? place_text(parity, *values.worst) : ""});
  }
  return table;
}

std::string files_text(const Parity& parity, const char* separator) {
  std::string text;
  for (const Parity::FileSummary& file : parity.files()) {
    text += fmt::format("{}{}: {} rows, of which {} valid, of {} classes in {}", text.empty() ? "" : separator,
                        io::printable(file.name), file.rows, file.valid_rows, file.vocab, tpce::name_of(file.dtype));
  }
  return text;
}

}  // namespace

std::string to_table(const Parity& parity) {
  std::string text = files_text(parity, "\n") + "\n";
  for (const PairParity& pair : parity.pairs()) {
    text += fmt::format("\n{} against {}, tp {}: {}\n", pair.a, pair.b, pair.tp, verdict_of(pair));
    std::vector<std::vector<std::string>> rows{
        {"quantity", "values", "differ", "bits", "largest ulp", "NaN or number"}};
    for (const Quantity quantity : kQuantities) {
      if (!pair.of(quantity)) continue;
      const ValueParity& values = *pair.of(quantity);
      rows.push_back({label_of(quantity), std::to_string(values.values), std::to_string(values.differing_values),
                      std::to_string(values.differing_bits), std::to_string(values.max_ulp),
                      std::to_string(values.histogram.counts[UlpHistogram::kUnordered])});
    }
    text += aligned(rows);
    for (const Quantity quantity : kQuantities) {
      if (!pair.of(quantity) || !pair.of(quantity)->worst) continue;
      const ValueParity& values = *pair.of(quantity);
      const DifferingPair& worst = *values.worst;
      text += fmt::format("  worst {}: {}: {} {} and {} {}, {}\n", label_of(quantity), place_text(parity, worst),
                          worst.a, bits_text(worst.a_bits, values.dtype), worst.b,
                          bits_text(worst.b_bits, values.dtype), ulp_text(worst));
    }
    text += fmt::format("  collapsed rows: {} of {}, {} of {}\n", collapsed_text(pair.collapsed_a), pair.a,
                        collapsed_text(pair.collapsed_b), pair.b);
  }
  return text;
}

Json to_json(const Parity& parity) {
  Json files = Json::array(), comparisons = Json::array();
  for (const Parity::FileSummary& file : parity.files()) {
    files.push_back({{"file", file.name},
                     {"rows", file.rows},
                     {"valid_rows", file.valid_rows},
                     {"vocab", file.vocab},
                     {"dtype", tpce::name_of(file.dtype)}});
  }
  for (const PairParity& pair : parity.pairs()) comparisons.push_back(pair_json(parity, pair));
  return {{"failed", parity.failed()},
          {"gradient_dtype", tpce::name_of(parity.request().gradient_dtype)},
          {"undecided", Json(parity.undecided())},
          {"files", std::move(files)},
          {"comparisons", std::move(comparisons)}};
}

Page to_page(const Parity& parity) {
  Page page{.title = fmt::format("Parity of {}", parity.request().a->name()),
            .conclusion = {},
            .sections = {},
            .data = {{"a", "b", "tp", "quantity", "bin", "values"}, {}}};
  Section summary{.heading = "Summary"};
  summary.tables.push_back(
      {{"against", "tp", "verdict", "bits of loss", "of lse", "of gradient", "largest ulp", "collapsed rows"}, {}});
  for (const Parity::FileSummary& file : parity.files()) {
    summary.text += fmt::format("- `{}`: {} rows, of which {} valid, of {} classes in {}\n", io::printable(file.name),
                                file.rows, file.valid_rows, file.vocab, tpce::name_of(file.dtype));
  }
  summary.text += fmt::format(
      "\nBits that differ are counted in the fp32 losses and logsumexps of the rows and in the {} gradient of the "
      "reduced loss. The collapsed rows, whose loss is exactly 0 although the canonical loss is not, are those of {} "
      "and those of the other.",
      tpce::name_of(parity.request().gradient_dtype), parity.request().a->name());
  std::int64_t equal = 0, failed = 0;
  const auto bits = [](const std::optional<ValueParity>& values) {
    return values ? std::to_string(values->differing_bits) : std::string("none");
  };
  std::vector<Section> details;
  for (std::size_t i = 0; i < parity.pairs().size(); ++i) {
    const PairParity& pair = parity.pairs()[i];
    equal += pair.equal() ? 1 : 0;
    failed += pair.failed() ? 1 : 0;
    summary.tables.front().add(
        {pair.b, std::to_string(pair.tp), verdict_of(pair), bits(pair.of(Quantity::kLoss)),
         bits(pair.of(Quantity::kLse)), bits(pair.of(Quantity::kGradient)), std::to_string(pair.max_ulp()),
         fmt::format("{} / {}", collapsed_text(pair.collapsed_a), collapsed_text(pair.collapsed_b))});
    Section detail{.heading = fmt::format("Against {}, tp {}", pair.b, pair.tp)};
    detail.text = fmt::format("The two are {}.", verdict_of(pair));
    detail.tables.push_back(quantities_table(parity, pair));
    if (pair.of(Quantity::kLoss)->values > 0) {
      detail.figures.push_back({fmt::format("histogram-{}", i), svg_of(histogram_of(pair)),
                                fmt::format("Distances between {} and {} at tp {}", pair.a, pair.b, pair.tp)});
    }
    for (const Quantity quantity : kQuantities) {
      if (!pair.of(quantity)) continue;
      for (std::size_t bin = 0; bin < UlpHistogram::kBins; ++bin) {
        page.data.add({pair.a, pair.b, std::to_string(pair.tp), std::string(name_of(quantity)),
                       UlpHistogram::name_of(bin), std::to_string(pair.of(quantity)->histogram.counts[bin])});
      }
    }
    details.push_back(std::move(detail));
  }
  page.conclusion = fmt::format("{} of {} comparisons find the same bits everywhere; {} of those that must do not.",
                                equal, parity.pairs().size(), failed);
  page.sections.push_back(std::move(summary));
  for (Section& detail : details) page.sections.push_back(std::move(detail));
  page.files.push_back({"parity.json", to_json(parity).dump(2, ' ', false, Json::error_handler_t::replace) + "\n"});
  return page;
}

}  // namespace tpce::sim
