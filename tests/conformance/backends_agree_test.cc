// Every backend gives the bits of ScalarBackend: partials, losses, gradients and gradient norms, for every shape, type,
// sharding, number of threads and instruction set that this machine runs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpu/cuda_device.h"
#include "gpu/gpu_backend.h"
#include "gpu/host_device.h"
#include "gpu/staged_backend.h"
#include "simd/simd_backend.h"
#include "tests/support/sanitizer.h"
#include "tpce/cross_entropy.h"
#include "tpce/scalar_backend.h"

namespace tpce {
namespace {

struct Candidate {
  std::string name;
  std::function<std::unique_ptr<Backend>()> make;
};

void PrintTo(const Candidate& candidate, std::ostream* out) { *out << candidate.name; }

std::vector<Candidate> candidates() {
  std::vector<Candidate> list;
  for (const simd::Target& target : simd::targets()) {
    if (!target.supported) continue;
    for (const int threads : {1, 2, 5}) {
      for (const auto skipping : {simd::BlockSkipping::kOn, simd::BlockSkipping::kOff}) {
        if (skipping == simd::BlockSkipping::kOff && threads != 1) continue;
        const simd::SimdOptions options{target.name, threads, skipping};
        const std::string name = "simd_" + target.name + "_threads" + std::to_string(threads) +
                                 (skipping == simd::BlockSkipping::kOn ? "" : "_every_digit");
        list.push_back({name, [options] { return std::make_unique<simd::SimdBackend>(options); }});
      }
    }
  }
  list.push_back({"scalar", [] { return std::make_unique<ScalarBackend>(); }});
  // One that cuts rows to keep its multiprocessors busy, and one that does not.
  for (const int multiprocessors : {1, 6}) {
    list.push_back({"gpu_emulated_multiprocessors" + std::to_string(multiprocessors), [multiprocessors] {
                      const gpu::HostDeviceOptions options{.seed = 11, .multiprocessors = multiprocessors};
                      return std::make_unique<gpu::GpuBackend>(std::make_unique<gpu::HostDevice>(options));
                    }});
  }
  list.push_back({"gpu_emulated_staged", [] {
                    const gpu::HostDeviceOptions options{.seed = 12, .multiprocessors = 1};
                    return std::make_unique<gpu::StagedBackend>(
                        std::make_unique<gpu::GpuBackend>(std::make_unique<gpu::HostDevice>(options)));
                  }});
  list.push_back({"gpu", [] {
                    return std::make_unique<gpu::StagedBackend>(
                        std::make_unique<gpu::GpuBackend>(gpu::open_cuda_device()));
                  }});
  for (const int threads : {2, 5}) {
    list.push_back({"simd_std_thread" + std::to_string(threads), [threads] {
                      return std::make_unique<simd::SimdBackend>(simd::SimdOptions{},
                                                                 simd::make_thread_executor(threads));
                    }});
  }
  return list;
}

// One batch with its memory: logits in a buffer wider than the shards, so that row_stride exceeds the width.
template <class T>
struct Problem {
  std::int64_t rows = 1;
  std::int64_t columns = 1;
  std::int64_t vocab = 1;
  std::int64_t stride = 1;
  std::int64_t tp = 1;
  std::int64_t offset = 0;  // elements before the first row: every alignment is taken
  std::int64_t rows_per_chunk = 2;
  std::vector<T> logits = {};
  std::vector<std::int64_t> labels = {};
  std::vector<float> upstream = {};

  ConstMatrix matrix() const { return {logits.data() + offset, DTypeOf<T>::value, rows, columns, stride, {}}; }
};

enum class Values { kNormal, kWide, kFar, kMasked, kNotFinite, kHuge, kEqual, kDenormal };

template <class T>
Problem<T> random_problem(std::mt19937_64& random, std::int64_t max_rows, std::int64_t max_columns) {
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  Problem<T> problem;
  problem.rows = 1 + below(max_rows);
  problem.columns = 1 + below(max_columns);
  problem.vocab = below(3) == 0 ? 1 + below(problem.columns) : problem.columns;
  problem.stride = problem.columns + below(20);
  problem.tp = 1 + below(9);
  problem.offset = below(17);
  const double deviation = std::vector<double>{0.1, 1, 3, 10, 40}[static_cast<std::size_t>(below(5))];
  double mean = 0;
  const auto values = static_cast<Values>(below(8));
  if (values == Values::kFar) mean = static_cast<double>(below(131072) - 65536);
  if (values == Values::kHuge) mean = below(2) == 0 ? 3e9 : -3e9;
  std::normal_distribution<double> normal(mean, values == Values::kWide ? 30000 : deviation);
  problem.logits.resize(static_cast<std::size_t>(problem.offset + problem.rows * problem.stride));
  for (T& logit : problem.logits) {
    double z = normal(random);
    if (values == Values::kMasked && below(3) == 0) z = below(2) == 0 ? -1e9 : -std::numeric_limits<double>::infinity();
    if (values == Values::kNotFinite && below(400) == 0) {
      z = below(2) == 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
    }
    if (values == Values::kHuge && below(4) == 0) z = 0;
    if (values == Values::kEqual) z = 1.5;
    if (values == Values::kDenormal) z = z * 1e-40;
    round_to(static_cast<float>(z), &logit);
  }
  const std::vector<float> scales{1.0f, -0.5f, 1e-30f, 1e30f, 1e-44f, 0.0f, std::numeric_limits<float>::infinity()};
  for (std::int64_t i = 0; i < problem.rows; ++i) {
    problem.labels.push_back(below(8) == 0 ? -100 : below(problem.vocab));
    problem.upstream.push_back(scales[static_cast<std::size_t>(below(static_cast<std::int64_t>(scales.size())))]);
  }
  // Targets that lead, or lie outside of what the others are.
  const std::vector<float> leads{30.0f, 1e4f, 7e4f, 3e9f, 1e30f, -7e4f, -1e30f};
  for (std::int64_t i = 0; i < problem.rows && below(2) == 0; ++i) {
    const std::int64_t label = problem.labels[static_cast<std::size_t>(i)];
    if (label < 0) continue;
    T& logit = problem.logits[static_cast<std::size_t>(problem.offset + i * problem.stride + label)];
    round_to(leads[static_cast<std::size_t>(below(static_cast<std::int64_t>(leads.size())))], &logit);
  }
  return problem;
}

struct Outcome {
  std::vector<float> nll, lse;
  std::vector<double> nll_fp64;
  float loss = 0;
  std::vector<unsigned char> gradients;
  BinnedSum squares;
  float norm = 0;
};

// A fused call that needs no squares takes gradients from what forward kept.
enum class Calls { kTwo, kFused, kFusedWithoutSquares };

template <class T, class Out>
Outcome run(Problem<T> problem, Backend& backend, Reduction reduction, bool in_place, Calls calls) {
  const ShardPlan plan = ShardPlan::even(problem.columns, problem.tp);
  const auto rows = static_cast<std::size_t>(problem.rows);
  std::vector<Out> out(static_cast<std::size_t>(problem.rows * problem.columns), Out{});
  const ConstMatrix logits = problem.matrix();
  const Matrix writable{
      problem.logits.data() + problem.offset, logits.dtype, logits.rows, logits.cols, logits.row_stride, {}};
  const Matrix target = in_place ? writable : matrix_of(out.data(), problem.rows, problem.columns);
  std::vector<Shard> shards;
  std::vector<Matrix> gradients;
  for (std::int64_t s = 0; s < problem.tp; ++s) {
    shards.push_back({logits.column_range(plan.first_class(s), plan.width(s)), s});
    gradients.push_back(target.column_range(plan.first_class(s), plan.width(s)));
  }
  Outcome outcome;
  outcome.nll.resize(rows);
  outcome.lse.resize(rows);
  outcome.nll_fp64.resize(rows);
  SelfCommunicator self;
  const Runtime runtime{backend, self, problem.rows_per_chunk};
  const Batch batch{plan, shards, Labels(problem.labels.data(), problem.rows), problem.vocab};
  Options options;
  options.reduction = reduction;
  const RowOutputs row_outputs{outcome.nll.data(), outcome.lse.data(), outcome.nll_fp64.data(), nullptr};
  const Upstream upstream{1.0, reduction == Reduction::kNone ? problem.upstream.data() : nullptr};
  if (calls != Calls::kTwo) {
    BinnedSum* squares = calls == Calls::kFused ? &outcome.squares : nullptr;
    outcome.loss =
        cross_entropy_forward_backward(batch, options, {row_outputs, upstream, gradients, squares}, runtime).value;
  } else {
    Forward forward = cross_entropy_forward(batch, options, row_outputs, runtime);
    outcome.loss = forward.loss.value;
    BinnedSum squares_alone;
    cross_entropy_backward(forward.saved, upstream, {}, runtime, &squares_alone);
    cross_entropy_backward(forward.saved, upstream, gradients, runtime, &outcome.squares);
    EXPECT_TRUE(outcome.squares == squares_alone);
  }
  outcome.norm = gradient_norm(outcome.squares);
  const auto copy = [&](const void* data, std::size_t bytes) {
    const auto* first = static_cast<const unsigned char*>(data);
    outcome.gradients.insert(outcome.gradients.end(), first, first + bytes);
  };
  if (in_place) {
    copy(problem.logits.data(), problem.logits.size() * sizeof(T));
  } else {
    copy(out.data(), out.size() * sizeof(Out));
  }
  return outcome;
}

template <class T>
void expect_equal(const std::vector<T>& a, const std::vector<T>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(T)), 0) << what;
}

// found: by these calls.
void expect_equal(const Outcome& expected, const Outcome& found, Calls calls) {
  expect_equal(expected.nll, found.nll, "nll");
  expect_equal(expected.lse, found.lse, "lse");
  expect_equal(expected.nll_fp64, found.nll_fp64, "nll_fp64");
  expect_equal(expected.gradients, found.gradients, "gradients");
  EXPECT_EQ(bit_cast<std::uint32_t>(expected.loss), bit_cast<std::uint32_t>(found.loss));
  if (calls == Calls::kFusedWithoutSquares) return;
  EXPECT_EQ(bit_cast<std::uint32_t>(expected.norm), bit_cast<std::uint32_t>(found.norm));
  EXPECT_TRUE(expected.squares == found.squares);
}

template <class T, class Out>
void compare(const Problem<T>& problem, Backend& backend, Reduction reduction, bool in_place) {
  ScalarBackend scalar;
  const Outcome expected = run<T, Out>(problem, scalar, reduction, in_place, Calls::kTwo);
  for (const Calls calls : {Calls::kTwo, Calls::kFused, Calls::kFusedWithoutSquares}) {
    const Outcome found = run<T, Out>(problem, backend, reduction, in_place, calls);
    SCOPED_TRACE("rows " + std::to_string(problem.rows) + " columns " + std::to_string(problem.columns) + " vocab " +
                 std::to_string(problem.vocab) + " tp " + std::to_string(problem.tp) + " logits " +
                 std::string(name_of(DTypeOf<T>::value)) + " gradients " + std::string(name_of(DTypeOf<Out>::value)) +
                 (in_place ? " in place" : "") + (calls == Calls::kTwo ? "" : " fused"));
    expect_equal(expected, found, calls);
  }
}

class BackendConformance : public ::testing::TestWithParam<Candidate> {
 protected:
  void SetUp() override {
    if (GetParam().name != "gpu") return;
    try {
      gpu::open_cuda_device();
    } catch (const std::runtime_error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  template <class T>
  void compare_random(std::uint64_t seed, int problems, std::int64_t max_columns) {
    const std::unique_ptr<Backend> backend = GetParam().make();
    std::mt19937_64 random(seed);
    for (int i = 0; i < testing::fewer_under_sanitizer(problems) && !HasFailure(); ++i) {
      const Problem<T> problem = random_problem<T>(random, 5, max_columns);
      compare<T, T>(problem, *backend, Reduction::kNone, true);
      compare<T, T>(problem, *backend, Reduction::kMean, false);
      compare<T, float>(problem, *backend, Reduction::kNone, false);
      compare<T, BFloat16>(problem, *backend, Reduction::kSum, false);
      compare<T, Float16>(problem, *backend, Reduction::kNone, false);
      compare<T, double>(problem, *backend, Reduction::kMean, false);
    }
  }
};

// Enough rows in a chunk that every thread has whole ones, which it fuses.
TEST_P(BackendConformance, ManyRows) {
  const std::unique_ptr<Backend> backend = GetParam().make();
  std::mt19937_64 random(7);
  for (int i = 0; i < testing::fewer_under_sanitizer(12) && !HasFailure(); ++i) {
    Problem<BFloat16> problem = random_problem<BFloat16>(random, 60, 3000);
    problem.rows_per_chunk = 1024;
    compare<BFloat16, BFloat16>(problem, *backend, Reduction::kNone, true);
    compare<BFloat16, float>(problem, *backend, Reduction::kMean, false);
  }
}

// Rows whose gradients are written while the next row is read: of several blocks and shards, some of whose blocks are
// not kept, some rows ignored, some without a gradient, targets in every block.
TEST_P(BackendConformance, RowsOfSeveralBlocks) {
  const std::unique_ptr<Backend> backend = GetParam().make();
  for (const std::int64_t width : {4096, 4101}) {
    std::mt19937_64 random(9);
    std::normal_distribution<float> normal(0, 5);
    Problem<BFloat16> problem{
        .rows = 20, .columns = 3 * width, .vocab = 3 * width - 5, .stride = 3 * width + 1, .tp = 3};
    problem.rows_per_chunk = 18;
    problem.logits.resize(static_cast<std::size_t>(problem.rows * problem.stride));
    for (std::int64_t i = 0; i < problem.rows; ++i) {
      const std::int64_t low_from = i % 3 == 1 ? i * 400 : problem.stride;  // a block that is not kept
      for (std::int64_t j = 0; j < problem.stride; ++j) {
        const float z = j >= low_from && j < low_from + 2100 ? -1e9f : normal(random);
        round_to(z, &problem.logits[static_cast<std::size_t>(i * problem.stride + j)]);
      }
      problem.labels.push_back(i % 11 == 5 ? -100 : i * 1021 % problem.vocab);
      problem.upstream.push_back(i % 7 == 6 ? 0.0f : 1.0f / static_cast<float>(i + 1));
    }
    compare<BFloat16, BFloat16>(problem, *backend, Reduction::kNone, true);
    compare<BFloat16, BFloat16>(problem, *backend, Reduction::kNone, false);
  }
}

// Shards of one batch need not have one type.
TEST_P(BackendConformance, ShardsOfDifferentTypes) {
  constexpr std::int64_t kRows = 30, kWidth = 1500, kShards = 5;
  std::mt19937_64 random(8);
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> wide(kRows * kWidth), far(kRows * kWidth);
  std::vector<BFloat16> bf16(kRows * kWidth);
  std::vector<Float16> fp16(kRows * kWidth);
  for (std::size_t j = 0; j < wide.size(); ++j) {
    wide[j] = normal(random);
    far[j] = normal(random) + (j / kWidth % 3 == 0 ? 70000.0f : 0.0f);  // of which every third row takes the definition
    round_to(normal(random), &bf16[j]);
    round_to(normal(random), &fp16[j]);
  }
  std::vector<std::int64_t> labels(kRows);
  for (std::int64_t& label : labels) label = static_cast<std::int64_t>(random() % (kShards * kWidth));
  const ShardPlan plan = ShardPlan::even(kShards * kWidth, kShards);
  const std::vector<Shard> shards{{matrix_of<const float>(far.data(), kRows, kWidth), 0},
                                  {matrix_of<const float>(wide.data(), kRows, kWidth), 1},
                                  {matrix_of<const BFloat16>(bf16.data(), kRows, kWidth), 2},
                                  {matrix_of<const BFloat16>(bf16.data(), kRows, kWidth), 3},
                                  {matrix_of<const Float16>(fp16.data(), kRows, kWidth), 4}};
  const Batch batch{plan, shards, Labels(labels.data(), kRows), plan.columns()};
  SelfCommunicator self;
  const auto gradient_of = [&](Backend& backend) {
    std::vector<std::uint64_t> memory(kShards * kRows * kWidth / 2, 0);
    std::vector<Matrix> gradients;
    for (const Shard& shard : shards) {
      auto* first = reinterpret_cast<unsigned char*>(memory.data()) + shard.index * kRows * kWidth * 4;
      gradients.push_back({first, shard.logits.dtype, kRows, kWidth, kWidth, {}});
    }
    cross_entropy_forward_backward(batch, {}, {.gradients = gradients}, {backend, self});
    return memory;
  };
  ScalarBackend scalar;
  EXPECT_TRUE(gradient_of(*GetParam().make()) == gradient_of(scalar));
}

// Narrow rows reach every tail length; wide ones several blocks, the flush of lanes, and rows cut over threads.
TEST_P(BackendConformance, NarrowRowsFp32) { compare_random<float>(1, 60, 70); }
TEST_P(BackendConformance, NarrowRowsBf16) { compare_random<BFloat16>(2, 60, 70); }
TEST_P(BackendConformance, NarrowRowsFp16) { compare_random<Float16>(3, 60, 70); }
TEST_P(BackendConformance, WideRowsFp32) { compare_random<float>(4, 12, 40000); }
TEST_P(BackendConformance, WideRowsBf16) { compare_random<BFloat16>(5, 12, 40000); }
TEST_P(BackendConformance, WideRowsFp16) { compare_random<Float16>(6, 12, 40000); }

// The bits of one shard on the scalar backend, for every tp, in place and not: rows that are cut over threads, and rows
// that are not.
TEST_P(BackendConformance, EveryTpHasTheBitsOfOneShard) {
  const std::unique_ptr<Backend> backend = GetParam().make();
  for (const auto& [rows, columns] : {std::pair(1, 20011), std::pair(23, 211)}) {
    std::mt19937_64 random(7);
    std::normal_distribution<float> normal(0, 5);
    Problem<BFloat16> problem{.rows = rows, .columns = columns, .vocab = columns - 3, .stride = columns};
    problem.logits.resize(static_cast<std::size_t>(rows * columns));
    for (BFloat16& logit : problem.logits) round_to(normal(random), &logit);
    for (std::int64_t i = 0; i < rows; ++i) problem.labels.push_back(i % 7 == 3 ? -100 : i * 37 % problem.vocab);
    ScalarBackend scalar;
    const Outcome expected = run<BFloat16, BFloat16>(problem, scalar, Reduction::kMean, false, Calls::kTwo);
    for (problem.tp = 1; problem.tp <= 9 && !HasFailure(); ++problem.tp) {
      for (const bool in_place : {false, true}) {
        for (const Calls calls : {Calls::kTwo, Calls::kFused}) {
          SCOPED_TRACE("rows " + std::to_string(rows) + " tp " + std::to_string(problem.tp) +
                       (in_place ? " in place" : "") + (calls == Calls::kTwo ? "" : " fused"));
          expect_equal(expected, run<BFloat16, BFloat16>(problem, *backend, Reduction::kMean, in_place, calls), calls);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, BackendConformance, ::testing::ValuesIn(candidates()),
                         [](const auto& candidate) { return candidate.param.name; });

}  // namespace
}  // namespace tpce
