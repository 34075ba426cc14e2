#include "sim/studies/memory.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <optional>
#include <random>
#include <stdexcept>

#include "sim/methods/method.h"
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
  problem.tp = parameter_number(study, options, "tp", {1, 4096});
  problem.logits = dtype_from_name(parameter_text(study, options, "dtype"));
  if (problem.logits == DType::kFloat64) throw std::invalid_argument("dtype: got fp64, expected fp32, bf16 or fp16");
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

// Of a process: resident now and at most since the last reset, in bytes.
std::int64_t status_field(const char* field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) return 1024 * std::stoll(line.substr(std::strlen(field)));
  }
  throw std::runtime_error(fmt::format("/proc/self/status has no {}", field));
}

struct Measured {
  std::int64_t forward = 0;   // beyond what was there
  std::int64_t backward = 0;  // with the gradient
  std::int64_t in_place = 0;
  std::int64_t logits = 0;
};

constexpr std::int64_t kMeasuredVocab = 128256;

// Runs in a process of its own, in which nothing else allocates.
Measured measure_canonical(std::int64_t rows) {
  std::vector<BFloat16> logits(static_cast<std::size_t>(rows * kMeasuredVocab));
  std::vector<std::int64_t> labels(static_cast<std::size_t>(rows));
  std::mt19937 random(1);
  for (BFloat16& x : logits) round_to(static_cast<float>(random() >> 8) * 0x1p-21f - 4.0f, &x);
  for (std::int64_t& label : labels) label = static_cast<std::int64_t>(random() % kMeasuredVocab);
  const ShardPlan plan = ShardPlan::even(kMeasuredVocab, 1);
  const std::vector<Shard> shards{{matrix_of(static_cast<const BFloat16*>(logits.data()), rows, kMeasuredVocab), 0}};
  const Batch batch{plan, shards, Labels(labels.data(), rows), kMeasuredVocab};
  simd::SimdBackend backend({.target = {}, .threads = 1});
  SelfCommunicator self;
  const Runtime runtime{backend, self};
  cross_entropy_forward(batch, {}, {}, runtime);  // maps code, and grows what threads keep

  const auto peak_of = [](const auto& body) {
    std::ofstream("/proc/self/clear_refs") << "5\n";  // proc(5): resets the peak resident size
    const std::int64_t before = status_field("VmRSS:");
    body();
    return status_field("VmHWM:") - before;
  };
  Measured measured;
  measured.logits = rows * kMeasuredVocab * 2;
  measured.forward = peak_of([&] { cross_entropy_forward(batch, {}, {}, runtime); });
  measured.backward = peak_of([&] {
    std::vector<BFloat16> out(logits.size());
    const std::vector<Matrix> gradients{matrix_of(out.data(), rows, kMeasuredVocab)};
    Forward forward = cross_entropy_forward(batch, {}, {}, runtime);
    cross_entropy_backward(forward.saved, {}, gradients, runtime);
  });
  measured.in_place = peak_of([&] {
    const std::vector<Matrix> gradients{matrix_of(logits.data(), rows, kMeasuredVocab)};
    Forward forward = cross_entropy_forward(batch, {}, {}, runtime);
    cross_entropy_backward(forward.saved, {}, gradients, runtime);
  });
  return measured;
}

Json measured_result(std::int64_t rows) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) throw std::runtime_error("pipe: refused by the system");
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork: refused by the system");
  if (child == 0) {
    close(ends[0]);
    try {
      const Measured measured = measure_canonical(rows);
      const bool written = write(ends[1], &measured, sizeof measured) == sizeof measured;
      _exit(written ? 0 : 1);
    } catch (...) {
      _exit(1);
    }
  }
  close(ends[1]);
  Measured measured;
  const bool read_all = read(ends[0], &measured, sizeof measured) == sizeof measured;
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (!read_all || status != 0) throw std::runtime_error("the measuring process failed");
  return {{"rows", rows},
          {"vocab", kMeasuredVocab},
          {"logits", measured.logits},
          {"forward", measured.forward},
          {"backward", measured.backward},
          {"in_place", measured.in_place}};
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
  const Problem problem = problem_of(*this, options);
  Page page{.title = "Memory: what each loss holds, and for how long", .conclusion = {}, .sections = {}, .data = {}};

  Section published{
      .heading = "Against published peaks",
      .text = fmt::format("T = {}, V = {}, tp = {}, bf16 logits, on one rank. The ledger lists the tensors "
                          "that are alive in each phase; nothing in it is fitted to the figures.",
                          kPublishedProblem.rows, kPublishedProblem.vocab, kPublishedProblem.tp)};
  Table peaks{{"method", "execution", "published peak, GiB", "ledger, GiB"}, {}};
  std::size_t agreeing = 0;
  for (const Published& one : kPublished) {
    const Json* result = find(results, "published", one.method, name_of(one.execution));
    if (result == nullptr) throw std::logic_error(fmt::format("no ledger of {}", one.method));
    const std::string ledger = gib(result->at("peak").get<std::int64_t>());
    agreeing += ledger == one.peak;
    peaks.add({std::string(one.method), std::string(name_of(one.execution)), std::string(one.peak), ledger});
  }
  published.tables.push_back(std::move(peaks));

  page.data.columns = {"kind", "method", "execution", "phase", "bytes"};
  Section ledgers{
      .heading = "The problem asked for",
      .text = fmt::format("T = {}, V = {}, tp = {}, {} logits, on one rank; the gradient has the type of the "
                          "logits. The last column is the peak over the bytes of the logits.",
                          problem.rows, problem.vocab, problem.tp, tpce::name_of(problem.logits))};
  Table all{{"method", "execution", "peak, GiB", "in the phase", "kept for backward, GiB", "kept", "peak / logits"},
            {}};
  const std::int64_t local = (problem.vocab + problem.tp - 1) / problem.tp;
  const double logits =
      static_cast<double>(problem.rows) * static_cast<double>(local) * static_cast<double>(size_of(problem.logits));
  for (const Json& result : results) {
    if (result.at("kind") == "measured") continue;
    const std::string kind = result.at("kind"), method = result.at("method"), execution = result.at("execution");
    for (const Json& phase : result.at("phases")) {
      page.data.add({kind, method, execution, phase.at("name"), std::to_string(phase.at("bytes").get<std::int64_t>())});
    }
    if (kind != "chosen") continue;
    std::string kept;
    for (const Json& tensor : result.at("saved")) kept += (kept.empty() ? "" : ", ") + tensor.get<std::string>();
    all.add({method, execution, gib(result.at("peak").get<std::int64_t>()), result.at("peak_phase"),
             gib(result.at("saved_bytes").get<std::int64_t>()), kept,
             fmt::format("{:.2f}", result.at("peak").get<double>() / logits)});
  }
  ledgers.tables.push_back(std::move(all));

  const Json& measured = results.back();
  const auto share = [&](const char* field) {
    return measured.at(field).get<double>() / measured.at("logits").get<double>();
  };
  page.data.add(
      {"measured", "canonical", "simd", "forward", std::to_string(measured.at("forward").get<std::int64_t>())});
  page.data.add({"measured", "canonical", "simd", "forward+backward",
                 std::to_string(measured.at("backward").get<std::int64_t>())});
  page.data.add({"measured", "canonical", "simd", "forward+backward in place",
                 std::to_string(measured.at("in_place").get<std::int64_t>())});
  Section ours{
      .heading = "Ours, measured",
      .text = fmt::format("Growth of the resident memory of a process of one thread, beyond {} x {} bf16 logits "
                          "({:.1f} MiB), as a multiple of the logits.",
                          measured.at("rows").get<std::int64_t>(), kMeasuredVocab,
                          measured.at("logits").get<double>() / 1048576.0)};
  Table table{{"canonical", "measured, MiB", "of the logits"}, {}};
  for (const auto& [field, what] : std::array<std::array<const char*, 2>, 3>{
           {{"forward", "forward"}, {"backward", "forward+backward"}, {"in_place", "forward+backward in place"}}}) {
    table.add({what, fmt::format("{:.2f}", measured.at(field).get<double>() / 1048576.0),
               fmt::format("{:.4f}", share(field))});
  }
  ours.tables.push_back(std::move(table));

  const Json* recompute = find(results, "published", "softplus_recompute", "eager");
  if (recompute == nullptr) throw std::logic_error("no ledger of the eager recompute form");
  page.conclusion = fmt::format(
      "The ledgers give {} of {} published peaks to the two decimals that were printed. For the eager softplus "
      "recompute "
      "form, which nobody published, they predict {} GiB, in the phase \"{}\". Measured, the canonical loss needs "
      "{:.4f} "
      "of the logits for forward, {:.3f} for forward+backward, of which 1 is the gradient, and {:.4f} in place.",
      agreeing, kPublished.size(), gib((*recompute).at("peak").get<std::int64_t>()),
      (*recompute).at("peak_phase").get<std::string>(), share("forward"), share("backward"), share("in_place"));
  page.sections = {std::move(published), std::move(ledgers), std::move(ours)};
  return page;
}

}  // namespace tpce::sim
