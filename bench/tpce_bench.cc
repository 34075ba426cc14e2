// tpce-bench: how fast the loss is, as a ratio to named baselines measured in the same run, interleaved.
//
//   tpce-bench --quick --json quick.json       the ratios that need no installed peer, in under a minute
//   tpce-bench --json full.json                every shape
//   tpce-bench --benchmark_filter=...          Google Benchmark's own options
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/allocations.h"
#ifdef TPCE_ONEDNN
#include "bench/onednn.h"
#endif
#include "bench/plain.h"
#include "io/atomic_file.h"
#include "io/logits_file.h"
#include "simd/simd_backend.h"
#include "tpce/cross_entropy.h"

namespace tpce::bench {
namespace {

// Memory as tuned allocators give it to the losses that ours is compared with: in huge pages, where there are any.
class Memory {
 public:
  Memory() = default;
  explicit Memory(std::int64_t bytes) {
    constexpr std::size_t kHugePage = std::size_t{2} << 20;
    const std::size_t size = (static_cast<std::size_t>(bytes) + kHugePage - 1) / kHugePage * kHugePage;
    bytes_.reset(static_cast<char*>(std::aligned_alloc(kHugePage, size)));
    if (!bytes_) throw std::bad_alloc();
    madvise(bytes_.get(), size, MADV_HUGEPAGE);
    std::memset(bytes_.get(), 0, size);
  }
  char* data() const { return bytes_.get(); }

 private:
  struct Free {
    void operator()(char* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<char, Free> bytes_;
};

// One set of logits in memory: synthetic, normal with standard deviation 3, or a capture.
class Logits {
 public:
  Logits(DType dtype, std::int64_t rows, std::int64_t vocab) : dtype_(dtype), rows_(rows), vocab_(vocab) {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    // A stretch of random values, longer than any row, read from another start for each row.
    std::vector<float> values(static_cast<std::size_t>(vocab) + 65536);
    for (float& value : values) value = normal(random);
    visit_narrow_dtype(dtype, [&](auto element) {
      using T = decltype(element);
      memory_ = Memory(rows * vocab * static_cast<std::int64_t>(sizeof(T)));
      auto* out = reinterpret_cast<T*>(memory_.data());
      for (std::int64_t i = 0; i < rows; ++i) {
        const float* source = values.data() + random() % 65536;
        for (std::int64_t j = 0; j < vocab; ++j) round_to(source[j], &out[i * vocab + j]);
      }
    });
    for (std::int64_t i = 0; i < rows; ++i) {
      labels_.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(vocab)));
    }
  }

  explicit Logits(const std::string& path) {
    const io::LogitsFile file({.file = path});
    capture_ = file.logits();
    dtype_ = file.dtype();
    rows_ = file.rows();
    vocab_ = file.vocab();
    for (std::int64_t i = 0; i < rows_; ++i) labels_.push_back(file.labels()[i]);
  }

  std::int64_t rows() const { return rows_; }
  std::int64_t vocab() const { return vocab_; }
  std::int64_t elements() const { return rows_ * vocab_; }
  std::int64_t bytes() const { return elements() * static_cast<std::int64_t>(size_of(dtype_)); }
  Labels labels() const { return {labels_.data(), rows_}; }
  ConstMatrix matrix() const {
    if (capture_) return capture_->matrix;
    return {memory_.data(), dtype_, rows_, vocab_, vocab_, {}};
  }

 private:
  DType dtype_ = DType::kFloat32;
  std::int64_t rows_ = 0;
  std::int64_t vocab_ = 0;
  Memory memory_;
  std::vector<std::int64_t> labels_;
  std::optional<io::LogitsFile::Rows> capture_;
};

struct Sharded {
  Sharded(const Logits& logits, std::int64_t tp) : plan(ShardPlan::even(logits.vocab(), tp)) {
    for (std::int64_t s = 0; s < tp; ++s) {
      shards.push_back({logits.matrix().column_range(plan.first_class(s), plan.width(s)), s});
    }
  }
  ShardPlan plan;
  std::vector<Shard> shards;
};

std::string target() {
  static const simd::SimdBackend backend;
  return std::string(backend.target());
}

simd::SimdBackend& backend_of(int threads) {
  static std::map<int, std::unique_ptr<simd::SimdBackend>> backends;
  auto& slot = backends[threads];
  if (!slot) {
    simd::SimdOptions options;
    options.threads = threads;
    slot = std::make_unique<simd::SimdBackend>(options);
  }
  return *slot;
}

// What a benchmark runs on: logits, shards, threads.
struct Work {
  std::shared_ptr<const Logits> logits;
  std::int64_t tp = 1;
  int threads = 1;
};

void run_forward(benchmark::State& state, const Work& work) {
  const Sharded sharded(*work.logits, work.tp);
  const Batch batch{sharded.plan, sharded.shards, work.logits->labels(), work.logits->vocab()};
  SelfCommunicator self;
  for ([[maybe_unused]] auto iteration : state) {
    benchmark::DoNotOptimize(cross_entropy_forward(batch, {}, {}, {backend_of(work.threads), self}).loss.value);
  }
  state.SetItemsProcessed(state.iterations() * work.logits->elements());
}

// The gradient buffer is written again and again, as a training step reuses its own.
void run_forward_backward(benchmark::State& state, const Work& work) {
  const Sharded sharded(*work.logits, work.tp);
  const Batch batch{sharded.plan, sharded.shards, work.logits->labels(), work.logits->vocab()};
  const ConstMatrix logits = work.logits->matrix();
  const Memory memory(work.logits->bytes());
  std::vector<Matrix> gradients;
  for (const Shard& shard : sharded.shards) {
    const Matrix whole{memory.data(), logits.dtype, logits.rows, logits.cols, logits.cols, {}};
    gradients.push_back(whole.column_range(sharded.plan.first_class(shard.index), shard.logits.cols));
  }
  SelfCommunicator self;
  for ([[maybe_unused]] auto iteration : state) {
    benchmark::DoNotOptimize(
        cross_entropy_forward_backward(batch, {}, {{}, {}, gradients, nullptr}, {backend_of(work.threads), self})
            .value);
  }
  state.SetItemsProcessed(state.iterations() * work.logits->elements());
}

using PlainRow = float (*)(DType, const void*, std::int64_t);

void run_plain(benchmark::State& state, const Work& work, PlainRow row) {
  const ConstMatrix logits = work.logits->matrix();
  for ([[maybe_unused]] auto iteration : state) {
    for (std::int64_t i = 0; i < logits.rows; ++i) {
      benchmark::DoNotOptimize(row(logits.dtype, logits.row_range(i, 1).data, logits.cols));
    }
  }
  state.SetItemsProcessed(state.iterations() * work.logits->elements());
}

void run_read(benchmark::State& state, const Work& work) {
  const PlainKernels kernels = plain_kernels_for(target());
  for ([[maybe_unused]] auto iteration : state) {
    benchmark::DoNotOptimize(kernels.read(work.logits->matrix().data, work.logits->bytes()));
  }
  state.SetItemsProcessed(state.iterations() * work.logits->elements());
}

void run_copy(benchmark::State& state, const Work& work) {
  const Memory memory(work.logits->bytes());
  for ([[maybe_unused]] auto iteration : state) {
    std::memcpy(memory.data(), work.logits->matrix().data, static_cast<std::size_t>(work.logits->bytes()));
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * work.logits->elements());
}

#ifdef TPCE_ONEDNN
// Throws where row 0 of the log-probabilities is not that of the logits: a rate of something else says nothing.
void check_log_softmax(const ConstMatrix& logits, const void* found) {
  const float lse = plain_kernels_for(target()).two_pass(logits.dtype, logits.data, logits.cols);
  visit_narrow_dtype(logits.dtype, [&](auto element) {
    using T = decltype(element);
    for (std::int64_t j = 0; j < logits.cols; ++j) {
      const float expected = widen(static_cast<const T*>(logits.data)[j]) - lse;
      const float got = widen(static_cast<const T*>(found)[j]);
      if (std::abs(got - expected) <= 0x1p-7f * std::abs(expected)) continue;  // two roundings to bf16
      throw std::runtime_error(fmt::format("onednn: row 0, class {}: got {}, expected {}", j, got, expected));
    }
  });
}

void run_onednn(benchmark::State& state, const Work& work) {
  const Memory memory(work.logits->bytes());
  const auto log_softmax = onednn_log_softmax(work.logits->matrix(), memory.data(), work.threads);
  if (!log_softmax) {
    state.SkipWithError("oneDNN does not have this type on this processor");
    return;
  }
  log_softmax();
  check_log_softmax(work.logits->matrix(), memory.data());
  for ([[maybe_unused]] auto iteration : state) {
    log_softmax();
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * work.logits->elements());
}
#endif

constexpr const char* kClock = "clock";

// A cycle an addition, since each waits for the one before and none is known beforehand: what a clock cycle is, on
// machines that do not count cycles for us.
void run_clock(benchmark::State& state) {
  constexpr std::int64_t kAdditions = 1 << 20;
  std::int64_t sum = 1;
  std::int64_t term = 1;
  asm volatile("" : "+r"(term));
  for ([[maybe_unused]] auto iteration : state) {
    for (std::int64_t i = 0; i < kAdditions; i += 8) {
      for (int j = 0; j < 8; ++j) {
        sum += term;
        asm volatile("" : "+r"(sum));
      }
    }
  }
  state.SetItemsProcessed(state.iterations() * kAdditions);
}

// Elements/ns of each repetition of each benchmark, by name, beside Google Benchmark's own table.
class Rates : public benchmark::ConsoleReporter {
 public:
  Rates() : ConsoleReporter(OO_None) {}
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      const auto items = run.counters.find("items_per_second");
      if (run.run_type != Run::RT_Iteration || run.error_occurred || items == run.counters.end()) continue;
      rates_[run.run_name.function_name].push_back(items->second.value * 1e-9);
    }
    ConsoleReporter::ReportRuns(runs);
  }

  double median(const std::string& name) const {
    std::vector<double> sorted = rates_.at(name);
    std::sort(sorted.begin(), sorted.end());
    const std::size_t middle = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[middle] : 0.5 * (sorted[middle - 1] + sorted[middle]);
  }
  const std::map<std::string, std::vector<double>>& all() const { return rates_; }

 private:
  std::map<std::string, std::vector<double>> rates_;
};

// Memory that one forward on a new backend takes beside the logits, at its peak, as a share of the logits.
double extra_memory_share() {
  const Logits logits(DType::kBFloat16, 512, 128256);
  const Sharded sharded(logits, 1);
  const Batch batch{sharded.plan, sharded.shards, logits.labels(), logits.vocab()};
  start_counting_allocations();
  simd::SimdOptions options;
  options.threads = 1;
  simd::SimdBackend backend(options);
  SelfCommunicator self;
  benchmark::DoNotOptimize(cross_entropy_forward(batch, {}, {}, {backend, self}).loss.value);
  return static_cast<double>(peak_allocated()) / static_cast<double>(logits.bytes());
}

struct Settings {
  bool quick = false;
  std::string json;
  std::string capture = TPCE_CAPTURE;
};

std::shared_ptr<const Logits> synthetic(DType dtype, std::int64_t rows, std::int64_t vocab) {
  static std::map<std::string, std::shared_ptr<const Logits>> made;
  auto& slot = made[fmt::format("{} {} {}", name_of(dtype), rows, vocab)];
  if (!slot) slot = std::make_shared<Logits>(dtype, rows, vocab);
  return slot;
}

void add(const std::string& name, const std::function<void(benchmark::State&)>& run) {
  benchmark::RegisterBenchmark(name.c_str(), run)->UseRealTime()->Unit(benchmark::kMillisecond);
}

void add_all(const std::string& group, const Work& work) {
  const PlainKernels plain = plain_kernels_for(target());
  add(group + "/forward", [work](auto& state) { run_forward(state, work); });
  add(group + "/forward_backward", [work](auto& state) { run_forward_backward(state, work); });
  if (work.tp != 1 || work.threads != 1) return;
  add(group + "/plain", [work, plain](auto& state) { run_plain(state, work, plain.two_pass); });
  add(group + "/plain_online", [work, plain](auto& state) { run_plain(state, work, plain.online); });
  add(group + "/read", [work](auto& state) { run_read(state, work); });
  add(group + "/copy", [work](auto& state) { run_copy(state, work); });
}

void register_quick(const std::string& capture) {
  add(kClock, run_clock);
  add_all("bf16", {synthetic(DType::kBFloat16, 64, 128256)});
  add_all("fp32", {synthetic(DType::kFloat32, 64, 128256)});
  add_all("capture", {std::make_shared<Logits>(capture)});
  add("bf16_tp8/forward", [work = Work{synthetic(DType::kBFloat16, 64, 128256), 8}](auto& s) { run_forward(s, work); });
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    for (const std::int64_t tp : {1, 2}) {  // two shards on two threads: what two ranks do elsewhere
      add_all(fmt::format("{}_threads2{}", name_of(dtype), tp == 1 ? "" : "_tp2"),
              {synthetic(dtype, 64, 128256), tp, 2});
    }
  }
  for (const int threads : {1, 2}) {
    add(fmt::format("one_row_threads{}/forward", threads),
        [work = Work{synthetic(DType::kBFloat16, 1, 262144), 1, threads}](auto& s) { run_forward(s, work); });
  }
  add("v4096/forward", [work = Work{synthetic(DType::kBFloat16, 2048, 4096)}](auto& s) { run_forward(s, work); });
  add("v262144/forward", [work = Work{synthetic(DType::kBFloat16, 32, 262144)}](auto& s) { run_forward(s, work); });
}

void register_full(const std::string& capture) {
  register_quick(capture);
  for (const std::int64_t vocab : {32000, 50257, 128256, 262144}) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
      for (const std::int64_t rows : {1, 64, 4096}) {
        if (rows * vocab > (std::int64_t{1} << 29)) continue;  // 2 GiB of fp32 with its gradient is enough
        for (const int threads : {1, 2}) {
          for (const std::int64_t tp : {1, 2, 8}) {
            if (tp != 1 && rows != 64) continue;
            add_all(fmt::format("{}_v{}_t{}_threads{}_tp{}", name_of(dtype), vocab, rows, threads, tp),
                    {synthetic(dtype, rows, vocab), tp, threads});
          }
        }
      }
    }
  }
#ifdef TPCE_ONEDNN
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    for (const int threads : {1, 2}) {
      add(fmt::format("{}_v128256_t64_threads{}_tp1/onednn", name_of(dtype), threads),
          [work = Work{synthetic(dtype, 64, 128256), 1, threads}](auto& state) { run_onednn(state, work); });
    }
  }
#endif
}

nlohmann::ordered_json ratios(const Rates& rates) {
  const auto ratio = [&](const char* a, const char* b) { return rates.median(a) / rates.median(b); };
  return {{"forward_bf16_vs_plain", ratio("bf16/forward", "bf16/plain")},
          {"forward_fp32_vs_plain", ratio("fp32/forward", "fp32/plain")},
          {"captures_vs_plain", ratio("capture/forward", "capture/plain")},
          {"fused_bf16_vs_plain", ratio("bf16/forward_backward", "bf16/plain")},
          {"tp8_vs_tp1", ratio("bf16_tp8/forward", "bf16/forward")},
          {"threads2_vs_1", ratio("bf16_threads2/forward", "bf16/forward")},
          {"one_row_threads2_vs_1", ratio("one_row_threads2/forward", "one_row_threads1/forward")},
          {"extra_memory_share", extra_memory_share()},
          {"v262144_vs_v4096", ratio("v262144/forward", "v4096/forward")}};
}

nlohmann::ordered_json cycles_per_element(const Rates& rates) {
  nlohmann::ordered_json json;
  for (const char* dtype : {"bf16", "fp32"}) {
    const auto cycles = [&](const char* what) {
      return rates.median(kClock) / rates.median(fmt::format("{}/{}", dtype, what));
    };
    json[fmt::format("forward_{}", dtype)] = cycles("forward");
    json[fmt::format("fused_{}", dtype)] = cycles("forward_backward");
    json[fmt::format("plain_{}", dtype)] = cycles("plain");
  }
  return json;
}

nlohmann::ordered_json to_json(const Rates& rates) {
  nlohmann::ordered_json json = ratios(rates);
  json["target"] = target();
#ifdef TPCE_ONEDNN
  json["onednn"] = onednn_version();
#endif
  json["cycles_per_element"] = cycles_per_element(rates);
  for (const auto& [name, values] : rates.all()) {
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    auto& spread = name == kClock ? json["clock_ghz"] : json["elements_per_ns"][name];
    spread = {{"median", rates.median(name)}, {"min", *low}, {"max", *high}, {"values", values}};
  }
  return json;
}

int run(int argc, char** argv) {
  Settings settings;
  CLI::App app("tpce-bench: how fast the loss is, as a ratio to named baselines of the same run");
  app.add_flag("--quick", settings.quick, "Only what the ratios need: under a minute on 2 cores");
  app.add_option("--json", settings.json, "Write ratios and rates to this file")->type_name("FILE");
  app.add_option("--capture", settings.capture, "Real logits")->type_name("FILE")->capture_default_str();
  app.allow_extras();
  app.footer("Other options go to Google Benchmark: --benchmark_filter, --benchmark_repetitions, ...");
  CLI11_PARSE(app, argc, argv);

  // Later options win, so that the caller's stand.
  std::vector<std::string> words{argv[0], "--benchmark_enable_random_interleaving=true",
                                 settings.quick ? "--benchmark_min_time=0.06" : "--benchmark_min_time=0.2",
                                 settings.quick ? "--benchmark_repetitions=7" : "--benchmark_repetitions=9"};
  for (const std::string& extra : app.remaining()) words.push_back(extra);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 2;

  settings.quick ? register_quick(settings.capture) : register_full(settings.capture);
  Rates rates;
  benchmark::RunSpecifiedBenchmarks(&rates);
  if (settings.json.empty()) return 0;
  io::AtomicFile file(settings.json);
  file.write(to_json(rates).dump(2) + "\n");
  file.commit();
  return 0;
}

}  // namespace
}  // namespace tpce::bench

int main(int argc, char** argv) {
  try {
    return tpce::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "tpce-bench: error: " << error.what() << "\n";
    return 2;
  }
}
