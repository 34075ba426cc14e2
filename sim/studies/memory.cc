#include "sim/studies/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>
#include <stdexcept>
#include <vector>

#include "sim/methods/method.h"
#include "sim/studies/counting_backend.h"
#include "simd/simd_backend.h"
#include "tpce/cross_entropy.h"

namespace tpce::sim {
namespace {

// The problem and the peaks that torchtitan's authors published for their losses.
constexpr Problem kPublishedProblem{16384, 128256, 2, DType::kBFloat16, Execution::kEager};
struct Published {
  std::string_view method;
  Execution execution;
  std::string_view peak;  // GiB, as printed
};
constexpr std::array kPublished{Published{"log_softmax", Execution::kEager, "15.66"},
                                Published{"log_softmax", Execution::kCompiled, "7.83"},
                                Published{"softplus_eager", Execution::kEager, "5.87"},
                                Published{"softplus_recompute", Execution::kCompiled, "3.91"}};

Problem problem_of(const Study& study, const StudyOptions& options) {
  Problem problem;
  problem.rows = parameter_number(study, options, "rows", {1, std::int64_t{1} << 32});
  problem.vocab = parameter_number(study, options, "vocab", {2, std::int64_t{1} << 28});
  problem.tp = parameter_number(study, options, "tp", {1, ShardPlan::kMaxShards});
  problem.logits = dtype_from_name(parameter_text(study, options, "dtype"));
  if (problem.logits == DType::kFloat64) throw std::invalid_argument("dtype: got fp64, expected fp32, bf16 or fp16");
  check_size(problem);
  return problem;
}

Json ledger_result(const Method& method, const Problem& problem) {
  const MemoryLedger ledger = method.ledger(problem);
  Json phases = Json::array();
  for (const Phase& phase : ledger.phases) {
    Json tensors = Json::array();
    for (const HeldTensor& tensor : phase.live) {
      if (tensor.holder == Holder::kMethod) tensors.push_back(tensor.name);
    }
    phases.push_back({{"name", phase.name}, {"bytes", ledger.bytes(phase)}, {"tensors", tensors}});
  }
  Json saved = Json::array();
  for (const HeldTensor& tensor : ledger.saved) saved.push_back(tensor.name);
  return {{"method", method.name()},
          {"execution", name_of(ledger.problem.execution)},
          {"peak", ledger.peak_bytes()},
          {"peak_phase", ledger.peak().name},
          {"saved_bytes", ledger.saved_bytes()},
          {"saved", saved},
          {"phases", phases}};
}

constexpr std::int64_t kMeasuredVocab = 128256;

Problem measured_problem(std::int64_t rows) { return {rows, kMeasuredVocab, 1, DType::kBFloat16}; }

// The most bytes that the canonical loss holds at one time beyond the logits, by what it asks of its backend.
Json measured_result(std::int64_t rows) {
  std::vector<BFloat16> logits(static_cast<std::size_t>(rows * kMeasuredVocab));
  std::vector<std::int64_t> labels(static_cast<std::size_t>(rows));
  std::mt19937 random(1);
  for (BFloat16& x : logits) round_to(static_cast<float>(random() >> 8) * 0x1p-21f - 4.0f, &x);
  for (std::int64_t& label : labels) label = static_cast<std::int64_t>(random() % kMeasuredVocab);
  const ShardPlan plan = ShardPlan::even(kMeasuredVocab, 1);
  const std::vector<Shard> shards{{matrix_of(static_cast<const BFloat16*>(logits.data()), rows, kMeasuredVocab), 0}};
  const Batch batch{plan, shards, Labels(labels.data(), rows), kMeasuredVocab};
  simd::SimdBackend simd({.target = {}, .threads = 1});
  CountingBackend backend(simd);
  SelfCommunicator self;
  const Runtime runtime{backend, self};
  const std::size_t bytes = logits.size() * sizeof(BFloat16);

  const auto most_in = [&](const auto& body) {
    backend.start();
    body();
    return backend.most();
  };
  const std::int64_t forward = most_in([&] { cross_entropy_forward(batch, {}, {}, runtime); });
  const std::int64_t backward = most_in([&] {
    Forward done = cross_entropy_forward(batch, {}, {}, runtime);
    const Buffer gradient = backend.allocate(bytes);
    const std::vector<Matrix> gradients{matrix_of(static_cast<BFloat16*>(gradient.get()), rows, kMeasuredVocab)};
    cross_entropy_backward(done.saved, {}, gradients, runtime);
  });
  const std::int64_t in_place = most_in([&] {
    Forward done = cross_entropy_forward(batch, {}, {}, runtime);
    const std::vector<Matrix> gradients{matrix_of(logits.data(), rows, kMeasuredVocab)};
    cross_entropy_backward(done.saved, {}, gradients, runtime);
  });
  return {{"rows", rows},       {"vocab", kMeasuredVocab}, {"logits", bytes},
          {"forward", forward}, {"backward", backward},    {"in_place", in_place}};
}

const Json* find(std::span<const Json> results, std::string_view kind, std::string_view method,
                 std::string_view execution) {
  for (const Json& result : results) {
    if (result.value("kind", "") == kind && result.value("method", "") == method &&
        result.value("execution", "") == execution) {
      return &result;
    }
  }
  return nullptr;
}

const Json& published_ledger(std::span<const Json> results, std::string_view method, Execution execution) {
  const Json* found = find(results, "published", method, name_of(execution));
  if (found == nullptr) throw std::logic_error(fmt::format("no ledger of {}, {}", method, name_of(execution)));
  return *found;
}

std::string peak_of(const Json& ledger) { return gib(ledger.at("peak").get<std::int64_t>()); }

std::size_t agreeing(std::span<const Json> results) {
  return static_cast<std::size_t>(std::count_if(kPublished.begin(), kPublished.end(), [&](const Published& one) {
    return peak_of(published_ledger(results, one.method, one.execution)) == one.peak;
  }));
}

Section published_section(std::span<const Json> results) {
  Table peaks{{"method", "execution", "published peak, GiB", "ledger, GiB"}, {}};
  for (const Published& one : kPublished) {
    peaks.add({std::string(one.method), std::string(name_of(one.execution)), std::string(one.peak),
               peak_of(published_ledger(results, one.method, one.execution))});
  }
  return {.heading = "Against published peaks",
          .text = fmt::format("T = {}, V = {}, tp = {}, bf16 logits, on one rank. The ledger lists the tensors "
                              "that are alive in each phase; nothing in it is fitted to the figures.",
                              kPublishedProblem.rows, kPublishedProblem.vocab, kPublishedProblem.tp),
          .tables = {std::move(peaks)}};
}

Section ledgers_section(std::span<const Json> results, const Problem& problem) {
  Table all{{"method", "execution", "peak, GiB", "in the phase", "kept for backward, GiB", "kept", "peak / logits"},
            {}};
  const std::int64_t local = (problem.vocab + problem.tp - 1) / problem.tp;
  const double logits =
      static_cast<double>(problem.rows) * static_cast<double>(local) * static_cast<double>(size_of(problem.logits));
  for (const Json& result : results) {
    if (result.at("kind") != "chosen") continue;
    std::string kept;
    for (const Json& tensor : result.at("saved")) kept += (kept.empty() ? "" : ", ") + tensor.get<std::string>();
    all.add({result.at("method"), result.at("execution"), peak_of(result), result.at("peak_phase"),
             gib(result.at("saved_bytes").get<std::int64_t>()), kept,
             fmt::format("{:.2f}", result.at("peak").get<double>() / logits)});
  }
  return {.heading = "The problem asked for",
          .text = fmt::format("T = {}, V = {}, tp = {}, {} logits, on one rank; the gradient has the type of the "
                              "logits. The last column is the peak over the bytes of the logits.",
                              problem.rows, problem.vocab, problem.tp, tpce::name_of(problem.logits)),
          .tables = {std::move(all)}};
}

struct MeasuredWay {
  const char* field;
  const char* name;
  std::size_t phase;  // of the canonical loss's ledger
};
constexpr std::array kMeasuredWays{MeasuredWay{"forward", "forward", 0}, MeasuredWay{"backward", "forward+backward", 1},
                                   MeasuredWay{"in_place", "forward+backward in place", 0}};

Section measured_section(const Json& measured) {
  const auto bytes = [&](const char* field) { return measured.at(field).get<std::int64_t>(); };
  const Problem problem = measured_problem(bytes("rows"));
  const MemoryLedger ledger = method_from_name("canonical").ledger(problem);
  Table table{{"canonical", "counted, bytes", "of the logits", "ledger, bytes", "beyond it"}, {}};
  for (const MeasuredWay& way : kMeasuredWays) {
    const std::int64_t counted = bytes(way.field);
    const std::int64_t listed = ledger.bytes(ledger.phases.at(way.phase)) - bytes("logits");
    table.add({way.name, std::to_string(counted),
               fmt::format("{:.6f}", static_cast<double>(counted) / static_cast<double>(bytes("logits"))),
               std::to_string(listed), std::to_string(counted - listed)});
  }
  return {
      .heading = "Ours, counted",
      .text = fmt::format(
          "The most bytes that the canonical loss and its gradient hold at one time beyond the {} x {} bf16 logits "
          "({} bytes), by every buffer that is asked of the backend, and the same by the ledger without the logits. "
          "Beyond the ledger are the partials and losses of at most 1024 rows at a time. Not counted are "
          "small vectors of the driver and the kernels, less than 4 KiB for any number of rows.",
          problem.rows, problem.vocab, bytes("logits")),
      .tables = {std::move(table)}};
}

Table data_of(std::span<const Json> results) {
  Table data{{"kind", "method", "execution", "phase", "bytes"}, {}};
  for (const Json& result : results) {
    if (result.at("kind") == "measured") {
      for (const MeasuredWay& way : kMeasuredWays) {
        data.add({"measured", "canonical", "simd", way.name, result.at(way.field).dump()});
      }
      continue;
    }
    for (const Json& phase : result.at("phases")) {
      data.add(
          {result.at("kind"), result.at("method"), result.at("execution"), phase.at("name"), phase.at("bytes").dump()});
    }
  }
  return data;
}

}  // namespace

std::vector<Parameter> MemoryStudy::parameters() const {
  return {{"rows", std::to_string(kPublishedProblem.rows), "rows T of the batch"},
          {"vocab", std::to_string(kPublishedProblem.vocab), "classes V"},
          {"tp", std::to_string(kPublishedProblem.tp), "ranks that the classes are cut over"},
          {"dtype", "bf16", "of the logits: bf16, fp16 or fp32"}};
}

std::vector<Cell> MemoryStudy::cells(const StudyOptions& options) const {
  const Problem chosen = problem_of(*this, options);
  std::vector<Cell> cells;
  const auto add = [&](std::string_view kind, const Problem& problem) {
    for (const Method* method : methods()) {
      for (const Execution execution : {Execution::kEager, Execution::kCompiled}) {
        Problem one = problem;
        one.execution = execution;
        if (method->ledger(one).problem.execution != execution) continue;  // a method of one form
        cells.push_back({fmt::format("{}-{}-{}", kind, method->name(), name_of(execution)),
                         [kind = std::string(kind), method, one](const std::filesystem::path&) {
                           Json result = ledger_result(*method, one);
                           result["kind"] = kind;
                           return result;
                         }});
      }
    }
  };
  add("published", kPublishedProblem);
  add("chosen", chosen);
  const std::int64_t rows = options.quick() ? 64 : 1024;
  cells.push_back({"measured", [rows](const std::filesystem::path&) {
                     Json result = measured_result(rows);
                     result["kind"] = "measured";
                     return result;
                   }});
  return cells;
}

Page MemoryStudy::page(const StudyOptions& options, std::span<const Json> results) const {
  const Json& measured = results.back();
  const auto share = [&](const char* field) {
    return measured.at(field).get<double>() / measured.at("logits").get<double>();
  };
  const Json& recompute = published_ledger(results, "softplus_recompute", Execution::kEager);
  Page page{.title = "Memory: what each loss holds, and for how long",
            .conclusion = fmt::format(
                "The ledgers give {} of {} published peaks to the two decimals that were printed. For the eager "
                "softplus recompute form, which nobody published, they predict {} GiB, in the phase \"{}\". By every "
                "buffer asked of the backend, the canonical loss needs {:.4f} of the logits for forward, {:.4f} for "
                "forward+backward, of which 1 is the gradient, and {:.4f} in place.",
                agreeing(results), kPublished.size(), peak_of(recompute), recompute.at("peak_phase").get<std::string>(),
                share("forward"), share("backward"), share("in_place")),
            .sections = {},
            .data = data_of(results)};
  page.sections = {published_section(results), ledgers_section(results, problem_of(*this, options)),
                   measured_section(measured)};
  return page;
}

}  // namespace tpce::sim
