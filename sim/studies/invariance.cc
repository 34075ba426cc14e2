#include "sim/studies/invariance.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <optional>

#include "sim/methods/method.h"
#include "sim/precision/ulp_steps.h"
#include "sim/studies/rows.h"
#include "simd/simd_backend.h"
#include "tpce/cross_entropy.h"
#include "tpce/scalar_backend.h"

namespace tpce::sim {
namespace {

// One way to compute that should give what the first one gives.
struct Variation {
  std::string_view group;
  std::string name;
  std::int64_t tp = 1;
  ReductionOrder order = {};
  BufferPlace place = {};  // of the row in its batch
};

// The first entry of each group is what the others of the group are compared with.
std::vector<Variation> variations() {
  std::vector<Variation> all;
  for (const std::int64_t tp : {1, 2, 4, 8}) all.push_back({"tp", fmt::format("tp {}", tp), tp, {}, {}});
  for (const SumOrderInfo& info : kSumOrders)
    all.push_back({"order", name_of(info.order), 1, {.classes = info.order}, {}});
  for (const AllReduceOrderInfo& info : kAllReduceOrders) {
    all.push_back({"all-reduce", fmt::format("tp 8, {}", info.name), 8, {.ranks = info.order}, {}});
  }
  // A ring starts each row's sum at a rank that follows from the row's place in the batch.
  for (const std::int64_t place : {0, 1, 2, 3}) {
    all.push_back({"batch", fmt::format("row {} of 4, ring", place), 4, {.ranks = AllReduceOrder::kRing}, {place, 4}});
  }
  // A row of a CPU kernel, or of a batch smaller than the machine, is cut over threads.
  for (const std::uint64_t threads : {1u, 2u, 3u, 5u}) {
    all.push_back(
        {"threads", fmt::format("a row cut over {}", threads), 1, {.classes = SumOrder::split_k(threads)}, {}});
  }
  return all;
}

struct RowBits {
  std::uint32_t loss = 0;
  std::vector<std::uint32_t> gradient;
};

std::uint32_t bits_of(double value) { return std::bit_cast<std::uint32_t>(static_cast<float>(value)); }

RowBits bits_of_row(const Method& method, const Variation& variation, std::span<const float> logits,
                    std::int64_t label) {
  const ShardPlan plan = ShardPlan::even(static_cast<std::int64_t>(logits.size()), variation.tp);
  const Row<Fp32> row{plan, variation.order, variation.place, logits, label};
  std::vector<double> gradient(logits.size());
  RowBits bits{bits_of(method.evaluate(Precision::kFp32, row, 1.0, gradient)), {}};
  for (const double g : gradient) bits.gradient.push_back(bits_of(g));
  return bits;
}

// A NaN that comes and goes lies farther than any two numbers.
std::uint64_t steps_between(std::uint32_t a, std::uint32_t b) {
  return ulp_steps(std::bit_cast<float>(a), std::bit_cast<float>(b)).value_or(std::uint64_t{1} << 32);
}

// Over all rows: how many differ from the first of the group, and by how much at most.
struct Difference {
  std::int64_t losses = 0;
  std::int64_t gradients = 0;
  std::uint64_t loss_ulp = 0;

  void add(const RowBits& found, const RowBits& expected) {
    losses += found.loss != expected.loss;
    loss_ulp = std::max(loss_ulp, steps_between(found.loss, expected.loss));
    for (std::size_t j = 0; j < found.gradient.size(); ++j) gradients += found.gradient[j] != expected.gradient[j];
  }
};

Json json_of(const Variation& variation, const Difference& difference) {
  return {{"group", variation.group},
          {"name", variation.name},
          {"losses", difference.losses},
          {"gradients", difference.gradients},
          {"loss_ulp", difference.loss_ulp}};
}

LabelledRows rows_for(const Study& study, const StudyOptions& options) {
  const std::string file = parameter_file(study, options, "logits");
  if (!file.empty()) return read_rows(file, options.quick() ? 8 : 64);
  LabelledRows rows = random_rows({.rows = options.quick() ? 8 : 48,
                                   .vocab = options.quick() ? 4096 : 32000,
                                   .spread = 3.0f,
                                   .seed = options.seed});
  spread_margins(rows, -8.0, 15.0);
  return rows;
}

bool reads(const Method& method, const Variation& variation) {
  const Reads read = method.reads();
  if (variation.group == "tp") return read.plan;
  return variation.group == "all-reduce" || variation.group == "batch" ? read.ranks : read.classes;
}

Json compare(const Method& method, const LabelledRows& rows) {
  std::vector<Variation> all = variations();
  std::erase_if(all, [&](const Variation& variation) { return !reads(method, variation); });
  std::vector<Difference> differences(all.size());
  for (std::int64_t i = 0; i < rows.rows(); ++i) {
    RowBits expected;
    for (std::size_t v = 0; v < all.size(); ++v) {
      RowBits found = bits_of_row(method, all[v], rows.row(i), rows.label(i));
      if (v == 0 || all[v].group != all[v - 1].group) expected = found;
      differences[v].add(found, expected);
    }
  }
  Json found = Json::array();
  for (std::size_t v = 0; v < all.size(); ++v) found.push_back(json_of(all[v], differences[v]));
  return {{"method", method.name()}, {"rows", rows.rows()}, {"vocab", rows.vocab}, {"variations", found}};
}

// The library itself rather than its row in the simulator: backends, threads and batches, over tp shards.
struct Way {
  std::string name;
  std::unique_ptr<Backend> backend;
  std::int64_t tp;
  std::int64_t batch;  // rows a call
};

std::unique_ptr<Backend> simd_over(int threads) {
  return std::make_unique<simd::SimdBackend>(simd::SimdOptions{.target = {}, .threads = threads});
}

std::vector<Way> ways_of(std::int64_t rows) {
  std::vector<Way> ways;
  ways.push_back({"scalar, tp 1, all rows", std::make_unique<ScalarBackend>(), 1, rows});
  for (const int threads : {1, 2, 5}) {
    for (const std::int64_t tp : {1, 8}) {
      ways.push_back({fmt::format("simd, {} threads, tp {}, all rows", threads, tp), simd_over(threads), tp, rows});
    }
    ways.push_back({fmt::format("simd, {} threads, tp 1, row by row", threads), simd_over(threads), 1, 1});
  }
  return ways;
}

// Rows [range.first, range.first + range.count) in one call.
std::vector<RowBits> bits_of_batch(const Way& way, const LabelledRows& rows, RowRange range) {
  const ShardPlan plan = ShardPlan::even(rows.vocab, way.tp);
  const std::int64_t columns = plan.columns();
  std::vector<float> logits(static_cast<std::size_t>(range.count * columns), 0.0f);
  for (std::int64_t i = 0; i < range.count; ++i) {
    const auto row = rows.row(range.first + i);
    std::copy(row.begin(), row.end(), logits.begin() + i * columns);
  }
  std::vector<float> gradient(logits.size());
  const ConstMatrix matrix = matrix_of(static_cast<const float*>(logits.data()), range.count, columns);
  const Matrix out = matrix_of(gradient.data(), range.count, columns);
  std::vector<Shard> shards;
  std::vector<Matrix> gradients;
  for (std::int64_t s = 0; s < way.tp; ++s) {
    shards.push_back({matrix.column_range(plan.first_class(s), plan.width(s)), s});
    gradients.push_back(out.column_range(plan.first_class(s), plan.width(s)));
  }
  std::vector<float> nll(static_cast<std::size_t>(range.count));
  SelfCommunicator self;
  const Runtime runtime{*way.backend, self};
  Options options;
  options.reduction = Reduction::kNone;
  RowOutputs outputs;
  outputs.nll = nll.data();
  const Labels labels(rows.labels.data() + range.first, range.count);
  Forward forward = cross_entropy_forward({plan, shards, labels, rows.vocab}, options, outputs, runtime);
  cross_entropy_backward(forward.saved, {}, gradients, runtime);
  std::vector<RowBits> all;
  for (std::int64_t i = 0; i < range.count; ++i) {
    RowBits bits{std::bit_cast<std::uint32_t>(nll[static_cast<std::size_t>(i)]), {}};
    const float* from = gradient.data() + i * columns;
    for (std::int64_t j = 0; j < rows.vocab; ++j) bits.gradient.push_back(std::bit_cast<std::uint32_t>(from[j]));
    all.push_back(std::move(bits));
  }
  return all;
}

std::vector<RowBits> bits_by_row(const Way& way, const LabelledRows& rows) {
  std::vector<RowBits> all;
  for (std::int64_t first = 0; first < rows.rows(); first += way.batch) {
    for (RowBits& bits : bits_of_batch(way, rows, {first, std::min(way.batch, rows.rows() - first)})) {
      all.push_back(std::move(bits));
    }
  }
  return all;
}

Json compare_backends(const LabelledRows& rows) {
  const std::vector<Way> ways = ways_of(rows.rows());
  const std::vector<RowBits> expected = bits_by_row(ways.front(), rows);
  Json found = Json::array();
  for (const Way& way : ways) {
    const std::vector<RowBits> bits = bits_by_row(way, rows);
    Difference difference;
    for (std::size_t i = 0; i < bits.size(); ++i) difference.add(bits[i], expected[i]);
    found.push_back(json_of({"library", way.name, 1, {}, {}}, difference));
  }
  return {{"method", "library"}, {"rows", rows.rows()}, {"vocab", rows.vocab}, {"variations", found}};
}

Table data_of(std::span<const Json> results) {
  Table data{{"method", "group", "variation", "rows", "losses_that_differ", "largest_loss_difference_ulp",
              "gradients_that_differ"},
             {}};
  for (const Json& result : results) {
    for (const Json& v : result.at("variations")) {
      data.add({result.at("method"), v.at("group"), v.at("name"), result.at("rows").dump(), v.at("losses").dump(),
                v.at("loss_ulp").dump(), v.at("gradients").dump()});
    }
  }
  return data;
}

std::int64_t differing(const Json& result) {
  std::int64_t total = 0;
  for (const Json& v : result.at("variations")) {
    total += v.at("losses").get<std::int64_t>() + v.at("gradients").get<std::int64_t>();
  }
  return total;
}

// The most over the variations of a group; nothing where the method has none there.
std::optional<std::int64_t> most(const Json& result, std::string_view group, const char* field) {
  std::optional<std::int64_t> found;
  for (const Json& v : result.at("variations")) {
    if (v.at("group") == group) found = std::max(found.value_or(0), v.at(field).get<std::int64_t>());
  }
  return found;
}

constexpr std::array<std::string_view, 5> kGroups{"tp", "order", "all-reduce", "batch", "threads"};

// What the methods do, in the order of the tables.
struct Summary {
  Table losses{{"method", "tp", "order", "all-reduce", "batch", "threads", "largest, ulp"}, {}};
  Table gradients{{"method", "tp", "order", "all-reduce", "batch", "threads"}, {}};
  std::vector<std::string> moving;
  std::vector<std::string> still;  // with what was varied

  void add(const Json& result) {
    const std::string method = result.at("method");
    const double count = result.at("rows").get<double>() * result.at("vocab").get<double>();
    std::vector<std::string> loss_cells{method}, gradient_cells{method};
    std::int64_t ulp = 0;
    std::vector<std::string_view> varied;
    for (const std::string_view group : kGroups) {
      const auto loss = most(result, group, "losses"), gradient = most(result, group, "gradients");
      if (loss) varied.push_back(group);
      loss_cells.push_back(loss ? std::to_string(*loss) : "");
      gradient_cells.push_back(!gradient ? ""
                               : *gradient == 0
                                   ? "0"
                                   : fmt::format("{:.3g} %", 100 * static_cast<double>(*gradient) / count));
      ulp = std::max(ulp, most(result, group, "loss_ulp").value_or(0));
    }
    loss_cells.push_back(std::to_string(ulp));
    losses.add(loss_cells);
    gradients.add(gradient_cells);
    if (differing(result) > 0) {
      moving.push_back(method);
    } else {
      still.push_back(fmt::format("{} (varied by {})", method, fmt::join(varied, ", ")));
    }
  }
};

}  // namespace

std::vector<Parameter> InvarianceStudy::parameters() const {
  return {{"logits", "", "a file with the tensors logits and labels; without it rows are made from the seed"}};
}

std::vector<Cell> InvarianceStudy::cells(const StudyOptions& options) const {
  parameter_file(*this, options, "logits");
  std::vector<Cell> cells;
  for (const Method* method : methods()) {
    cells.push_back({std::string(method->name()), [this, method, options](const std::filesystem::path&) {
                       return compare(*method, rows_for(*this, options));
                     }});
  }
  cells.push_back({"library", [this, options](const std::filesystem::path&) {
                     return compare_backends(rows_for(*this, options));
                   }});
  return cells;
}

Page InvarianceStudy::page(const StudyOptions& options, std::span<const Json> results) const {
  // The library itself comes last.
  const Json& library = results.back();
  Summary summary;
  for (const Json& result : results.first(results.size() - 1)) summary.add(result);
  const auto list = [](const std::vector<std::string>& names) {
    return names.empty() ? std::string("none") : fmt::format("{}", fmt::join(names, ", "));
  };
  const std::int64_t rows = library.at("rows"), vocab = library.at("vocab");
  Page page{.title = "Invariance: whose bits change with what should not matter",
            .conclusion = fmt::format(
                "Of {} methods, the bits of {} change with at least one of tp, the order of sums, the algorithm of the "
                "all-reduce, the row's place in the batch, and threads that share a row ({}). Those of {} never do. "
                "The library itself, which computes the canonical loss on backends, ranks, threads and batches that "
                "really differ, gave {} differing losses or gradients over {} ways to compute the same {} rows.",
                summary.moving.size() + summary.still.size(), summary.moving.size(), list(summary.moving),
                list(summary.still), differing(library), library.at("variations").size(), rows),
            .sections = {},
            .data = data_of(results)};
  const std::string source = parameter_text(*this, options, "logits");
  page.sections.push_back(
      {.heading = "Losses",
       .text = fmt::format(
           "How many of {} rows have other bits of the loss, at most over the variations of each kind, and by how "
           "many fp32 numbers at most. V = {}; {}. Within a kind everything is compared with its first variation: tp "
           "1; a plain loop; ranks in turn; the first row of a ring; one thread. A cell is empty where the method "
           "reads nothing of what is varied: all ranks of all_gather_cross_entropy have the whole row, online forms "
           "merge ranks in turn, and the canonical loss has no order; see the library below. Millions of fp32 numbers "
           "lie between a loss of exactly 0 and a small one: a row that collapses in one order alone.",
           rows, vocab, source.empty() ? "logits of standard deviation 3, margins from -8 to 15" : "logits of a model"),
       .tables = {std::move(summary.losses)}});
  page.sections.push_back({.heading = "Gradients",
                           .text =
                               "The share of gradients with other bits, at most over the variations of each kind. A "
                               "loss whose sum differs by one ulp moves every gradient of its row.",
                           .tables = {std::move(summary.gradients)}});
  Table ways{{"the library", "losses that differ", "gradients that differ"}, {}};
  for (const Json& way : library.at("variations")) {
    ways.add({way.at("name"), way.at("losses").dump(), way.at("gradients").dump()});
  }
  page.sections.push_back({.heading = "The library",
                           .text = fmt::format("Bits of the {} rows that differ from those of the first way: one rank, "
                                               "one thread and no vectors.",
                                               rows),
                           .tables = {std::move(ways)}});
  return page;
}

}  // namespace tpce::sim
