// tpce-bench-matmul: how much of the processor's multiply-adds the products of training get, against a loop of nothing
// else that runs in turn with them.
//
//   tpce-bench-matmul                 on one thread and on two
//   tpce-bench-matmul --threads 4
#include "sim/train/matmul.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <numeric>
#include <vector>

#include "bench/fma_peak.h"

namespace tpce::bench {
namespace {

using sim::Factor;
using sim::View;

struct Case {
  const char* what;
  std::int64_t rows, columns, depth;
  bool transpose_a, transpose_b;
};

// The products of docs/train.md: of the network that learns addition, and of the transformer.
constexpr Case kCases[] = {
    {"hidden layer", 8938, 200, 200, false, false},
    {"hidden layer, of its input", 8938, 200, 200, false, true},
    {"hidden layer, of its weights", 200, 200, 8938, true, false},
    {"logits", 8938, 113, 200, false, false},
    {"logits, of their input", 8938, 200, 113, false, true},
    {"logits, of their weights", 200, 113, 8938, true, false},
    {"head", 2048, 4096, 256, false, false},
    {"head, of its input", 2048, 256, 4096, false, true},
    {"head, of its weights", 256, 4096, 2048, true, false},
};

double seconds_of(const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Multiply-adds per ns over all threads at once.
double peak(sim::Executor& executor) {
  const FmaLoop loop = fma_loop_for(sim::matmul_kernels().name);
  constexpr std::int64_t kRounds = 2'000'000;
  std::vector<std::int64_t> done(static_cast<std::size_t>(executor.threads()));
  const double seconds = seconds_of([&] {
    executor.for_each(executor.threads(), [&](std::int64_t i) { done[static_cast<std::size_t>(i)] = loop(kRounds); });
  });
  return static_cast<double>(std::accumulate(done.begin(), done.end(), std::int64_t{0}) * kRounds) / seconds * 1e-9;
}

double rate(const Case& c, sim::Executor& executor) {
  static std::vector<float> a, b, out;
  a.assign(static_cast<std::size_t>(c.rows * c.depth), 0.5f);
  b.assign(static_cast<std::size_t>(c.depth * c.columns), 0.25f);
  out.resize(static_cast<std::size_t>(c.rows * c.columns));
  const Factor<float> fa = c.transpose_a ? View<float>(a.data(), c.depth, c.rows).transposed()
                                         : Factor<float>(View<float>(a.data(), c.rows, c.depth));
  const Factor<float> fb = c.transpose_b ? View<float>(b.data(), c.columns, c.depth).transposed()
                                         : Factor<float>(View<float>(b.data(), c.depth, c.columns));
  const auto once = [&] { sim::multiply({fa, fb, View<float>(out.data(), c.rows, c.columns)}, executor); };
  once();
  std::vector<double> seconds;
  for (int i = 0; i < 3; ++i) seconds.push_back(seconds_of(once));
  return static_cast<double>(c.rows * c.columns * c.depth) / median(seconds) * 1e-9;
}

void run(int threads) {
  const auto executor = simd::make_tbb_executor(threads);
  std::vector<double> peaks;
  std::vector<std::vector<double>> rates(std::size(kCases));
  for (int repetition = 0; repetition < 7; ++repetition) {
    for (std::size_t i = 0; i < std::size(kCases); ++i) {
      peaks.push_back(peak(*executor));
      rates[i].push_back(rate(kCases[i], *executor));
    }
  }
  const double best = *std::max_element(peaks.begin(), peaks.end());
  fmt::print("{}, {} threads: {:.1f} multiply-adds/ns at the peak\n", sim::matmul_kernels().name, threads, best);
  for (std::size_t i = 0; i < std::size(kCases); ++i) {
    const Case& c = kCases[i];
    const double speed = *std::max_element(rates[i].begin(), rates[i].end());
    fmt::print("  {:5} x {:4} x {:4}  {:30} {:6.1f}/ns  {:.2f} of the peak\n", c.rows, c.columns, c.depth, c.what,
               speed, speed / best);
  }
}

}  // namespace
}  // namespace tpce::bench

int main(int argc, char** argv) try {
  int threads = 0;
  CLI::App app("tpce-bench-matmul: the products of training as a share of the processor's multiply-adds");
  app.add_option("--threads", threads, "this number alone; 0: one, then two")->check(CLI::Range(0, 4096));
  CLI11_PARSE(app, argc, argv);
  for (const int count : threads == 0 ? std::vector<int>{1, 2} : std::vector<int>{threads}) tpce::bench::run(count);
  return 0;
} catch (const std::exception& error) {
  std::cerr << "tpce-bench-matmul: error: " << error.what() << "\n";
  return 2;
}
