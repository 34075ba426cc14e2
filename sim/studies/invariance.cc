#include "sim/studies/invariance.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "sim/methods/method.h"
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
  const std::int64_t tp = method.one_rank_only() ? 1 : variation.tp;
  const ShardPlan plan = ShardPlan::even(static_cast<std::int64_t>(logits.size()), tp);
  const Row<Fp32> row{plan, variation.order, variation.place, logits, label};
  std::vector<double> gradient(logits.size());
  RowBits bits{bits_of(method.evaluate(Precision::kFp32, row, 1.0, gradient)), {}};
  for (const double g : gradient) bits.gradient.push_back(bits_of(g));
  return bits;
}

// Over all rows: how many differ from the first of the group, and by how much at most.
struct Difference {
  std::int64_t losses = 0;
  std::int64_t gradients = 0;
  std::int64_t loss_ulp = 0;

  void add(const RowBits& found, const RowBits& expected) {
    losses += found.loss != expected.loss;
    loss_ulp = std::max(loss_ulp, std::abs(static_cast<std::int64_t>(found.loss & 0x7fffffffu) -
                                           static_cast<std::int64_t>(expected.loss & 0x7fffffffu)));
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

Json compare(const Method& method, const LabelledRows& rows) {
  const std::vector<Variation> all = variations();
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
Json compare_backends(const LabelledRows& rows) {
  struct Way {
    std::string name;
    std::unique_ptr<Backend> backend;
    std::int64_t tp;
    std::int64_t batch;  // rows a call
  };
  std::vector<Way> ways;
  ways.push_back({"scalar, tp 1, all rows", std::make_unique<ScalarBackend>(), 1, rows.rows()});
  for (const int threads : {1, 2, 5}) {
    for (const std::int64_t tp : {1, 8}) {
      ways.push_back({fmt::format("simd, {} threads, tp {}, all rows", threads, tp),
                      std::make_unique<simd::SimdBackend>(simd::SimdOptions{.target = {}, .threads = threads}), tp,
                      rows.rows()});
    }
    ways.push_back({fmt::format("simd, {} threads, tp 1, row by row", threads),
                    std::make_unique<simd::SimdBackend>(simd::SimdOptions{.target = {}, .threads = threads}), 1, 1});
  }
  const auto bits_by_row = [&](const Way& way) {
    std::vector<RowBits> all;
    const ShardPlan plan = ShardPlan::even(rows.vocab, way.tp);
    std::vector<float> padded(static_cast<std::size_t>(plan.columns()));
    for (std::int64_t first = 0; first < rows.rows(); first += way.batch) {
      const std::int64_t count = std::min(way.batch, rows.rows() - first);
      std::vector<float> logits(static_cast<std::size_t>(count * plan.columns()), 0.0f);
      for (std::int64_t i = 0; i < count; ++i) {
        const auto row = rows.row(first + i);
        std::copy(row.begin(), row.end(), logits.begin() + i * plan.columns());
      }
      std::vector<float> gradient(logits.size());
      const ConstMatrix matrix = matrix_of(static_cast<const float*>(logits.data()), count, plan.columns());
      const Matrix out = matrix_of(gradient.data(), count, plan.columns());
      std::vector<Shard> shards;
      std::vector<Matrix> gradients;
      for (std::int64_t s = 0; s < way.tp; ++s) {
        shards.push_back({matrix.column_range(plan.first_class(s), plan.width(s)), s});
        gradients.push_back(out.column_range(plan.first_class(s), plan.width(s)));
      }
      const std::vector<std::int64_t> labels(rows.labels.begin() + first, rows.labels.begin() + first + count);
      std::vector<float> nll(static_cast<std::size_t>(count));
      SelfCommunicator self;
      const Runtime runtime{*way.backend, self};
      Options options;
      options.reduction = Reduction::kNone;
      RowOutputs outputs;
      outputs.nll = nll.data();
      Forward forward =
          cross_entropy_forward({plan, shards, Labels(labels.data(), count), rows.vocab}, options, outputs, runtime);
      cross_entropy_backward(forward.saved, {}, gradients, runtime);
      for (std::int64_t i = 0; i < count; ++i) {
        RowBits bits{std::bit_cast<std::uint32_t>(nll[static_cast<std::size_t>(i)]), {}};
        const float* from = gradient.data() + i * plan.columns();
        for (std::int64_t j = 0; j < rows.vocab; ++j) bits.gradient.push_back(std::bit_cast<std::uint32_t>(from[j]));
        all.push_back(std::move(bits));
      }
    }
    return all;
  };
  const std::vector<RowBits> expected = bits_by_row(ways.front());
  Json found = Json::array();
  for (const Way& way : ways) {
    const std::vector<RowBits> bits = bits_by_row(way);
    Difference difference;
    for (std::size_t i = 0; i < bits.size(); ++i) difference.add(bits[i], expected[i]);
    found.push_back(json_of({"library", way.name, 1, {}, {}}, difference));
  }
  return {{"method", "library"}, {"rows", rows.rows()}, {"vocab", rows.vocab}, {"variations", found}};
}

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
  Page page{.title = "Invariance: whose bits change with what should not matter",
            .conclusion = {},
            .sections = {},
            .data = {}};
  page.data.columns = {"method",
                       "group",
                       "variation",
                       "rows",
                       "losses_that_differ",
                       "largest_loss_difference_ulp",
                       "gradients_that_differ"};
  const std::array<std::string_view, 5> groups{"tp", "order", "all-reduce", "batch", "threads"};
  Table losses{{"method", "tp", "order", "all-reduce", "batch", "threads", "largest, ulp"}, {}};
  Table gradients{{"method", "tp", "order", "all-reduce", "batch", "threads"}, {}};
  std::vector<std::string> moving, still;
  std::string library;
  std::int64_t rows = 0, vocab = 0, library_differences = 0, library_ways = 0;
  for (const Json& result : results) {
    const std::string method = result.at("method");
    rows = result.at("rows");
    vocab = result.at("vocab");
    std::vector<std::string> loss_cells{method}, gradient_cells{method};
    std::int64_t ulp = 0, differing = 0;
    for (const Json& v : result.at("variations")) {
      page.data.add({method, v.at("group"), v.at("name"), std::to_string(rows),
                     std::to_string(v.at("losses").get<std::int64_t>()),
                     std::to_string(v.at("loss_ulp").get<std::int64_t>()),
                     std::to_string(v.at("gradients").get<std::int64_t>())});
      ulp = std::max(ulp, v.at("loss_ulp").get<std::int64_t>());
      differing += v.at("losses").get<std::int64_t>() + v.at("gradients").get<std::int64_t>();
    }
    if (method == "library") {
      library_differences = differing;
      library_ways = static_cast<std::int64_t>(result.at("variations").size());
      continue;
    }
    for (const std::string_view group : groups) {
      std::int64_t most_losses = 0, most_gradients = 0;
      for (const Json& v : result.at("variations")) {
        if (v.at("group") != group) continue;
        most_losses = std::max(most_losses, v.at("losses").get<std::int64_t>());
        most_gradients = std::max(most_gradients, v.at("gradients").get<std::int64_t>());
      }
      const double share = static_cast<double>(most_gradients) / static_cast<double>(rows * vocab);
      loss_cells.push_back(std::to_string(most_losses));
      gradient_cells.push_back(most_gradients == 0 ? "0" : fmt::format("{:.3g} %", 100 * share));
    }
    loss_cells.push_back(std::to_string(ulp));
    losses.add(loss_cells);
    gradients.add(gradient_cells);
    (differing == 0 ? still : moving).push_back(method);
  }
  const auto list = [](const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
    return text.empty() ? std::string("none") : text;
  };
  page.conclusion = fmt::format(
      "Of {} methods, the bits of {} change with at least one of tp, the order of sums, the algorithm of the "
      "all-reduce, "
      "the row's place in the batch, and threads that share a row ({}). Those of {} never do. The library itself gave "
      "{} "
      "differing losses or gradients over {} ways to compute the same {} rows: backends, tp, threads and batches.",
      moving.size() + still.size(), moving.size(), list(moving), list(still), library_differences, library_ways, rows);
  const std::string source = parameter_text(*this, options, "logits");
  page.sections.push_back(
      {.heading = "Losses",
       .text = fmt::format(
           "How many of {} rows have other bits of the loss, at most over the variations of each kind, and "
           "by how many fp32 numbers at most. V = {}; {}. Within a kind everything is compared with its "
           "first variation: tp 1; a plain loop; ranks in turn; the first row of a ring; one thread. Millions "
           "of fp32 numbers lie between a loss of exactly 0 and a small one: a row that collapses in one order alone.",
           rows, vocab, source.empty() ? "logits of standard deviation 3, margins from -8 to 15" : "logits of a model"),
       .tables = {std::move(losses)}});
  page.sections.push_back({.heading = "Gradients",
                           .text =
                               "The share of gradients with other bits, at most over the variations of each kind. A "
                               "loss whose sum differs by one ulp moves every gradient of its row.",
                           .tables = {std::move(gradients)}});
  return page;
}

}  // namespace tpce::sim
