// The production kernels on a device, on the host executor always and on a GPU where there is one: within the bounds of
// docs/gpu.md of the exact values, failing where the simulator's methods of the same names fail.
#include "gpu/production/production_method.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpu/host_device.h"
#include "reference/evaluate.h"
#include "sim/methods/method.h"
#include "tests/gpu/each_device.h"
#include "tests/support/problem.h"
#include "tests/support/ulp.h"

namespace tpce::gpu {
namespace {

using testing::Problem;

Options per_row() {
  Options options;
  options.reduction = Reduction::kNone;
  return options;
}

constexpr double kUnit = 0x1p-24;  // of roundings: half an ulp of 1

// Relative errors of single operations, in units of kUnit.
struct Operations {
  bool emulated;
  double exp(double x) const { return emulated ? 2.0 : 2.0 * (2.0 + 1.173 * std::fabs(x)); }
  double quotient() const { return emulated ? 1.0 : 4.0; }
  static constexpr double kLog = 2.0;  // and log1p
};

// How far results of a row may be from the truth, in units of kUnit, to first order (docs/gpu.md).
class RowBound {
 public:
  // depth: of roundings on the way of a term to the row's sum.
  RowBound(std::vector<double> logits, std::size_t target, double depth, Operations operations)
      : logits_(std::move(logits)), target_(target), operations_(operations) {
    for (const double z : logits_) maximum_ = std::max(maximum_, z);
    double weighted = 0.0;
    for (std::size_t j = 0; j < logits_.size(); ++j) {
      if (j == target_) continue;
      others_ += exp(j);
      weighted += exp(j) * term(j);
    }
    sum_ = others_ + exp(target_);
    others_error_ = others_ == 0.0 ? 0.0 : depth + weighted / others_;
    sum_error_ = depth + (weighted + exp(target_) * term(target_)) / sum_;
  }

  double loss(ProductionForm form) const {
    if (form == ProductionForm::kLogSoftmax) return log_prob(target_);
    const double x = std::log(others_) - shifted(target_);
    const double of_x =
        others_error_ + Operations::kLog * std::fabs(std::log(others_)) + std::fabs(shifted(target_)) + std::fabs(x);
    const double rest = Operations::kLog * std::log1p(std::exp(std::min(x, 30.0)));
    const double slope = 1.0 / (1.0 + std::exp(-x));
    return x > 19.9 ? of_x + 1.0 : slope * (of_x + operations_.exp(x)) + rest;
  }

  // Of element j for the upstream gradient 1, likewise.
  double gradient(ProductionForm form, std::size_t j) const {
    const double p = exp(j) / sum_;
    const double rest = others_ / sum_;  // 1 - p of the target
    if (form == ProductionForm::kLogSoftmax) {
      const double of_p = p * (log_prob(j) + operations_.exp(shifted(j) - std::log(sum_)));
      return j == target_ ? of_p + 2.0 * rest : of_p + p;
    }
    const double sums = sum_of_others_error() + operations_.quotient();
    if (j != target_) return p * (term(j) + sums + 1.0);
    const double by_one = p * (term(j) + sums) + 2.0 * rest;
    const double by_others = rest * (others_error_ + sums + 1.0);
    return p < 0.2499 ? by_one : p > 0.2501 ? by_others : std::max(by_one, by_others);
  }

 private:
  double shifted(std::size_t j) const { return logits_[j] - maximum_; }
  double exp(std::size_t j) const { return std::exp(shifted(j)); }
  // exp(z_j - M): the difference is rounded, and so is the exponential.
  double term(std::size_t j) const { return std::fabs(shifted(j)) + operations_.exp(shifted(j)); }
  // (z_j - M) - log S
  double log_prob(std::size_t j) const {
    return std::fabs(shifted(j)) + sum_error_ + Operations::kLog * std::log(sum_) +
           std::fabs(shifted(j) - std::log(sum_));
  }
  // N + e
  double sum_of_others_error() const { return (others_ * others_error_ + exp(target_) * term(target_)) / sum_ + 1.0; }

  std::vector<double> logits_;
  std::size_t target_;
  Operations operations_;
  double maximum_ = -std::numeric_limits<double>::infinity();
  double others_ = 0.0, sum_ = 0.0, others_error_ = 0.0, sum_error_ = 0.0;
};

// Roundings on the way of a term to its row's sum: those of its thread's place, the tree over the 16 bytes' places, the
// trees over the threads, and the ranks.
template <class T>
double depth_of(const ShardPlan& plan) {
  constexpr std::int64_t kElements = Packed<T>::kElements;
  std::int64_t widest = 0;
  for (std::int64_t s = 0; s < plan.tp(); ++s) widest = std::max(widest, plan.width(s));
  const std::int64_t a_round = ProductionGrid::kThreads * kElements;
  const std::int64_t in_place = (widest + a_round - 1) / a_round + 1;
  return static_cast<double>(in_place + plan.tp() - 1) + std::log2(kElements) + std::log2(ProductionGrid::kThreads);
}

class OnDevice {
 public:
  OnDevice(Device& device, std::size_t bytes) : device_(device), memory_(device.allocate(bytes)) {}
  void* data() const { return memory_.get(); }
  void write(std::size_t at, const void* from, std::size_t bytes) {
    device_.copy_to_device(static_cast<char*>(data()) + at, from, bytes, {});
    device_.synchronize({});
  }
  void read(std::size_t at, void* to, std::size_t bytes) const {
    device_.copy_to_host(to, static_cast<const char*>(data()) + at, bytes, {});
  }

 private:
  Device& device_;
  Buffer memory_;
};

enum class Where { kApart, kOverLogits, kOverLogProbabilities };

struct How {
  ProductionForm form;
  Where where = Where::kApart;
  Upstream upstream = {};  // per_row in host memory
  std::size_t offset = 0;  // elements before each shard's logits and gradients, behind an aligned address
};

template <class Out>
struct Result {
  std::vector<float> nll;
  std::vector<Out> gradient;  // [T, columns]
};

// Copies a problem of the host to a device, computes and copies back. The order of shards is turned round.
template <class Out, class T>
Result<Out> run(Device& device, const Problem<T>& problem, const How& how) {
  const Batch host = problem.batch();
  const std::int64_t rows = host.rows(), columns = host.plan.columns();
  const auto count = static_cast<std::size_t>(rows);
  const Place place{device.type(), 0};
  std::vector<std::unique_ptr<OnDevice>> memory;
  std::vector<Shard> shards;
  std::vector<Matrix> gradients;
  for (auto shard = host.shards.rbegin(); shard != host.shards.rend(); ++shard) {
    const auto width = static_cast<std::size_t>(shard->logits.cols);
    const auto room = [&](std::size_t size) {
      memory.push_back(std::make_unique<OnDevice>(device, (how.offset + count * width) * size));
      return static_cast<char*>(memory.back()->data()) + how.offset * size;
    };
    char* const logits = room(sizeof(T));
    for (std::size_t i = 0; i < count; ++i) {
      memory.back()->write((how.offset + i * width) * sizeof(T),
                           shard->logits.template row<T>(static_cast<std::int64_t>(i)), width * sizeof(T));
    }
    const auto matrix = [&](void* data, DType dtype) {
      return Matrix{data, dtype, rows, shard->logits.cols, shard->logits.cols, place};
    };
    shards.push_back({matrix(logits, DTypeOf<T>::value), shard->index});
    gradients.push_back(how.where == Where::kOverLogits ? matrix(logits, DTypeOf<T>::value)
                                                        : matrix(room(sizeof(Out)), DTypeOf<Out>::value));
  }
  OnDevice labels(device, count * sizeof(std::int64_t));
  labels.write(0, host.labels.data(), count * sizeof(std::int64_t));
  const Batch batch{host.plan, shards, Labels(static_cast<const std::int64_t*>(labels.data()), rows, place),
                    host.vocab};

  ProductionMethod method(device, how.form);
  const std::size_t workspace_bytes = method.workspace_bytes(batch);
  OnDevice saved(device, method.saved_bytes(batch)), workspace(device, workspace_bytes),
      nll(device, count * sizeof(float));
  const ProductionRun on_device{batch, -100, saved.data(), {nullptr, workspace.data(), workspace_bytes}};
  if (how.where == Where::kOverLogProbabilities) {
    for (std::size_t s = 0; s < shards.size(); ++s) gradients[s] = method.log_probabilities(on_device, s);
  }
  Upstream upstream = how.upstream;
  OnDevice per_row(device, count * sizeof(float));
  if (upstream.per_row != nullptr) {
    per_row.write(0, upstream.per_row, count * sizeof(float));
    upstream.per_row = static_cast<const float*>(per_row.data());
  }
  method.forward(on_device, static_cast<float*>(nll.data()));
  method.backward(on_device, upstream, gradients);

  Result<Out> result{std::vector<float>(count), std::vector<Out>(static_cast<std::size_t>(rows * columns))};
  nll.read(0, result.nll.data(), count * sizeof(float));
  for (std::size_t s = 0; s < shards.size(); ++s) {
    for (std::int64_t i = 0; i < rows; ++i) {
      if (gradients[s].cols == 0) continue;
      device.copy_to_host(result.gradient.data() + i * columns + host.plan.first_class(shards[s].index),
                          gradients[s].template row<Out>(i), static_cast<std::size_t>(gradients[s].cols) * sizeof(Out),
                          {});
    }
  }
  return result;
}

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Rows of normal logits whose targets lead the logsumexp of the others by the margins.
template <class T>
std::unique_ptr<Problem<T>> rows_of_margins(const std::vector<double>& margins, std::int64_t columns, ShardPlan plan) {
  std::mt19937_64 random(static_cast<std::uint64_t>(columns * 1000 + plan.tp()));
  const auto width = static_cast<std::size_t>(columns);
  std::vector<T> logits(margins.size() * width);
  const std::vector<float> normal = testing::normal_logits(random, logits.size(), 3.0);
  for (std::size_t i = 0; i < logits.size(); ++i) round_to(normal[i], &logits[i]);
  std::vector<std::int64_t> labels;
  for (std::size_t i = 0; i < margins.size(); ++i) {
    labels.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(columns)));
    const std::size_t target = i * width + static_cast<std::size_t>(labels.back());
    double others = 0.0;
    for (std::size_t j = i * width; j < (i + 1) * width; ++j) {
      if (j != target) others += std::exp(static_cast<double>(widen(logits[j])));
    }
    round_to(static_cast<float>(margins[i] + (others > 0.0 ? std::log(others) : 0.0)), &logits[target]);
  }
  return std::make_unique<Problem<T>>(std::move(logits), std::move(labels), std::move(plan));
}

class ProductionOnDevice : public EachDevice {
 protected:
  Operations operations() const { return {emulated()}; }
};
INSTANTIATE_TEST_SUITE_P(Devices, ProductionOnDevice, each_device(), name_of_device);

// Losses and gradients of the definition, in 50 digits.
struct Truth {
  std::vector<double> nll, gradient;
};

template <class T>
Truth truth_of(const Problem<T>& problem) {
  const Batch batch = problem.batch();
  const reference::Method method{.precision = reference::Precision::kMultiprecision};
  const reference::Inputs inputs{batch, per_row(), {}};
  Truth truth{{}, std::vector<double>(static_cast<std::size_t>(batch.rows() * batch.plan.columns()))};
  for (const reference::RowTruth& row : reference::evaluate(inputs, method).rows) truth.nll.push_back(row.loss.fp64);
  reference::gradient(inputs, method, matrix_of(truth.gradient.data(), batch.rows(), batch.plan.columns()));
  return truth;
}

// In ulp of the value.
struct Worst {
  double found = 0.0;
  double bound = 0.0;

  // error: in units of kUnit.
  void see(double value, double truth, double error) {
    const double ulp = testing::ulp_fp32(truth);
    const double allowed = (1.01 * error * kUnit + 0x1p-149) / ulp + 0.5;  // of second order, subnormal, of truth
    found = std::max(found, std::fabs(value - truth) / ulp);
    bound = std::max(bound, allowed);
    EXPECT_LE(std::fabs(value - truth) / ulp, allowed) << value << " and " << truth;
  }
};

struct WorstOfForm {
  Worst loss, gradient;
};

template <class T>
void expect_within_bounds(Device& device, Problem<T>& problem, const Truth& truth, ProductionForm form,
                          WorstOfForm& worst) {
  const Batch batch = problem.batch();
  const auto columns = static_cast<std::size_t>(batch.plan.columns());
  const Result<float> found = run<float>(device, problem, {.form = form, .offset = columns % 5});
  for (std::size_t i = 0; i < truth.nll.size(); ++i) {
    SCOPED_TRACE("row " + std::to_string(i) + " of " + std::to_string(columns) + " classes, tp " +
                 std::to_string(batch.plan.tp()));
    std::vector<double> logits;
    for (std::size_t j = 0; j < columns; ++j) {
      logits.push_back(static_cast<double>(widen(problem.logits()[i * columns + j])));
    }
    const RowBound bound(std::move(logits), static_cast<std::size_t>(problem.labels()[i]), depth_of<T>(batch.plan),
                         {device.type() == DeviceType::kCpu});
    worst.loss.see(static_cast<double>(found.nll[i]), truth.nll[i], bound.loss(form));
    for (std::size_t j = 0; j < columns; ++j) {
      worst.gradient.see(static_cast<double>(found.gradient[i * columns + j]), truth.gradient[i * columns + j],
                         bound.gradient(form, j));
    }
  }
}

// log_softmax is worth something where the target does not lead, softplus_recompute far beyond.
std::vector<double> valid_margins(ProductionForm form) {
  if (form == ProductionForm::kLogSoftmax) return {-30.0, -8.0, -3.0, -1.0, 0.0};
  return {-30.0, -3.0, -1.1, 0.0, 1.1, 4.0, 17.0, 25.0, 40.0, 60.0};
}

template <class T>
void expect_small_within_bounds(Device& device, ProductionForm form, WorstOfForm& worst) {
  for (const std::int64_t columns : {2, 9, 1001, 5003}) {
    const auto problem = rows_of_margins<T>(valid_margins(form), columns, ShardPlan::even(columns, 1));
    const Truth truth = truth_of(*problem);
    for (const std::int64_t tp : {1, 2, 3, 8}) {
      problem->set_plan(ShardPlan::even(columns, tp));
      expect_within_bounds(device, *problem, truth, form, worst);
    }
  }
}

// In ulp, of the rows below on the host executor: what docs/gpu.md states.
struct Stated {
  double loss, gradient;
};
constexpr Stated stated(ProductionForm form) {
  return form == ProductionForm::kLogSoftmax ? Stated{28, 79} : Stated{233, 89};
}

TEST_P(ProductionOnDevice, SmallRowsAreWithinTheirBounds) {
  for (const ProductionForm form : kProductionForms) {
    SCOPED_TRACE(name_of(form));
    WorstOfForm worst;
    expect_small_within_bounds<float>(*device_, form, worst);
    expect_small_within_bounds<BFloat16>(*device_, form, worst);
    expect_small_within_bounds<Float16>(*device_, form, worst);
    if (emulated()) {
      EXPECT_LE(worst.loss.bound, stated(form).loss);
      EXPECT_LE(worst.gradient.bound, stated(form).gradient);
    }
    RecordProperty(std::string(name_of(form)) + "_ulp",
                   std::to_string(worst.loss.found) + ", " + std::to_string(worst.gradient.found));
  }
}

// Blocks whose threads take several vectors at once.
TEST_P(ProductionOnDevice, RowsOfAWholeVocabularyAreWithinTheirBounds) {
  const std::int64_t columns = emulated() ? 34003 : 64128;
  const auto problem = rows_of_margins<BFloat16>({-1.0, 0.0}, columns, ShardPlan::even(columns, 1));
  const Truth truth = truth_of(*problem);
  for (const ProductionForm form : kProductionForms) {
    WorstOfForm worst;
    expect_within_bounds(*device_, *problem, truth, form, worst);
  }
}

// 1 + exp(-m) is 1 in fp32 from m = 24 ln 2 on: then the loss is -log 1, and the target's gradient 1 - 1.
TEST_P(ProductionOnDevice, SmallLogSoftmaxCollapses) {
  const double collapse = 24.0 * std::log(2.0);
  std::vector<float> logits;
  for (const double margin : {collapse - 3.0, collapse - 0.1, collapse + 0.1, 40.0}) {
    logits.insert(logits.end(), {static_cast<float>(margin), 0.0f});
  }
  for (const std::int64_t tp : {1, 2}) {
    const Problem<float> problem(logits, {0, 0, 0, 0}, ShardPlan::even(2, tp));
    const Result<float> found = run<float>(*device_, problem, {.form = ProductionForm::kLogSoftmax});
    EXPECT_LT(found.gradient[0], 0.0f);
    EXPECT_GT(found.nll[1], 0.0f);
    if (emulated()) {  // a device's exp of -2^-23 may be 1
      EXPECT_LT(found.gradient[2], 0.0f);
    }
    for (const std::size_t i : {2u, 3u}) {
      EXPECT_EQ(found.nll[i], 0.0f);
      EXPECT_TRUE(std::signbit(found.nll[i]));
      EXPECT_EQ(found.gradient[2 * i], 0.0f);
      EXPECT_GT(found.gradient[2 * i + 1], 0.0f);  // the other class is still pushed down
    }
  }
}

// Its terms, exp(-m), are below the least number of fp32 from m = 150 ln 2 = 103.97 on, and of few bits before.
TEST_P(ProductionOnDevice, SmallSoftplusRecomputeCollapsesLater) {
  for (const std::int64_t tp : {1, 2}) {
    Problem<float> problem({20.0f, 0.0f, 60.0f, 0.0f, 100.0f, 0.0f, 104.5f, 0.0f}, {0, 0, 0, 0},
                           ShardPlan::even(2, tp));
    const Truth truth = truth_of(problem);
    const Result<float> found = run<float>(*device_, problem, {.form = ProductionForm::kSoftplusRecompute});
    // At the margin 60: two exponentials, each off by 2 (2 + 1.173 60) u on a device with u = 2^-24, and three numbers
    // of 60 that are rounded: 470 u or 2.8e-5, to first order.
    for (const std::size_t i : {0u, 1u}) {
      EXPECT_NEAR(static_cast<double>(found.nll[i]) / truth.nll[i], 1.0, 4e-5);
      EXPECT_NEAR(static_cast<double>(found.gradient[2 * i]) / truth.gradient[2 * i], 1.0, 4e-5);
    }
    EXPECT_LT(found.gradient[4], 0.0f);
    EXPECT_GT(std::fabs(static_cast<double>(found.nll[2]) / truth.nll[2] - 1.0), 1e-3);
    EXPECT_EQ(found.nll[3], 0.0f);
    EXPECT_EQ(found.gradient[6], 0.0f);
    EXPECT_LT(truth.gradient[6], 0.0);
  }
}

template <class T>
void expect_in_place_is_out_of_place(Device& device) {
  const std::vector<float> upstream{0.5f, -2.0f, 1.0f, 3.0f};
  for (const std::int64_t columns : {1, 9, 1001, 5003}) {
    for (const std::size_t offset : {0u, 1u, 3u}) {
      const auto problem = rows_of_margins<T>({-5.0, 1.0, 20.0, 50.0}, columns, ShardPlan::even(columns, 2));
      const auto ran = [&](ProductionForm form, Where where, auto out) {
        return run<decltype(out)>(device, *problem, {form, where, {1.0, upstream.data()}, offset});
      };
      for (const ProductionForm form : kProductionForms) {
        const auto apart = ran(form, Where::kApart, T{}), over = ran(form, Where::kOverLogits, T{});
        EXPECT_TRUE(same(apart.nll, over.nll));
        EXPECT_TRUE(same(apart.gradient, over.gradient)) << name_of(form) << " " << columns << ", offset " << offset;
      }
      const auto apart = ran(ProductionForm::kLogSoftmax, Where::kApart, 0.0f);
      const auto over = ran(ProductionForm::kLogSoftmax, Where::kOverLogProbabilities, 0.0f);
      EXPECT_TRUE(same(apart.gradient, over.gradient)) << columns << ", offset " << offset;
    }
  }
}

TEST_P(ProductionOnDevice, SmallInPlaceIsOutOfPlace) {
  expect_in_place_is_out_of_place<float>(*device_);
  expect_in_place_is_out_of_place<BFloat16>(*device_);
  expect_in_place_is_out_of_place<Float16>(*device_);
}

template <class T>
void expect_rounded_gradients(Device& device) {
  const auto problem = rows_of_margins<T>({-5.0, 1.0, 12.0}, 1001, ShardPlan::even(1001, 3));
  for (const ProductionForm form : kProductionForms) {
    const std::vector<float> wide = run<float>(device, *problem, {.form = form}).gradient;
    const std::vector<T> narrow = run<T>(device, *problem, {.form = form}).gradient;
    for (std::size_t i = 0; i < wide.size(); ++i) {
      T expected;
      round_to(wide[i], &expected);
      EXPECT_EQ(widen(narrow[i]), widen(expected)) << name_of(form) << " " << i;
    }
  }
}

TEST_P(ProductionOnDevice, SmallNarrowGradientsAreRoundedFromFp32) {
  expect_rounded_gradients<BFloat16>(*device_);
  expect_rounded_gradients<Float16>(*device_);
}

TEST_P(ProductionOnDevice, SmallRowsWithoutALoss) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Problem<float> problem({1, 2,         3, 4, 9, 9, 1,          2,          3,          nan,        9, 9,
                          1, 2,         3, 4, 9, 9, 1,          nan,        3,          4,          9, 9,  //
                          1, kInfinity, 3, 4, 9, 9, -kInfinity, -kInfinity, -kInfinity, -kInfinity, 9, 9},
                         {3, -100, 4, 3, 3, 0}, ShardPlan::even(6, 2));
  problem.set_vocab(4);  // label 4 is padding
  for (const ProductionForm form : kProductionForms) {
    const Result<float> found = run<float>(*device_, problem, {.form = form});
    for (std::size_t i = 0; i < 6; ++i) {
      SCOPED_TRACE(std::string(name_of(form)) + ", row " + std::to_string(i));
      const std::vector<float> row(found.gradient.begin() + static_cast<std::ptrdiff_t>(6 * i),
                                   found.gradient.begin() + static_cast<std::ptrdiff_t>(6 * i + 6));
      EXPECT_EQ(row[4], 0.0f);
      EXPECT_EQ(row[5], 0.0f);
      if (i == 0) {
        EXPECT_NEAR(found.nll[0], std::log(1 + std::exp(-1.0f) + std::exp(-2.0f) + std::exp(-3.0f)), 1e-6);
        EXPECT_LT(row[3], 0.0f);
      } else if (i == 1) {
        EXPECT_EQ(found.nll[1], 0.0f);
        EXPECT_EQ(row, std::vector<float>(6));
      } else {
        EXPECT_TRUE(std::isnan(found.nll[i]));
        for (std::size_t j = 0; j < 4; ++j) EXPECT_TRUE(std::isnan(row[j])) << j;
      }
    }
  }
}

// Where a sum has two terms, its order is nothing, and the host's exponential is that of the simulator.
TEST(ProductionMethod, RowsOfTwoClassesHaveTheBitsOfTheSimulator) {
  HostDevice device;
  const auto problem = rows_of_margins<float>({-90.0, -30.0, -1.2, -1.0, 0.0, 1.0, 8.0, 16.5, 17.0, 50.0, 95.0, 110.0},
                                              2, ShardPlan::even(2, 2));
  for (const ProductionForm form : kProductionForms) {
    const Result<float> found = run<float>(device, *problem, {.form = form, .upstream = {0.7}});
    std::vector<float> gradient(found.gradient.size());
    const std::vector<Matrix> gradients = testing::gradient_matrices(problem->batch(), gradient);
    const sim::MethodOutput expected = sim::run(
        sim::method_from_name(name_of(form)),
        {.batch = problem->batch(), .options = per_row(), .order = {}, .upstream = {0.7}, .gradients = gradients});
    EXPECT_TRUE(same(found.gradient, gradient)) << name_of(form);
    for (std::size_t i = 0; i < found.nll.size(); ++i) {
      EXPECT_EQ(static_cast<double>(found.nll[i]), expected.nll[i]) << name_of(form) << " " << i;
    }
  }
}

// Of many classes they differ by the order of sums, each within its bound.
TEST_P(ProductionOnDevice, SmallRowsAreNearTheSimulators) {
  const std::int64_t columns = 1001;
  for (const ProductionForm form : kProductionForms) {
    const auto problem = rows_of_margins<BFloat16>(valid_margins(form), columns, ShardPlan::even(columns, 2));
    const Result<float> found = run<float>(*device_, *problem, {.form = form});
    std::vector<float> gradient(found.gradient.size());
    const std::vector<Matrix> gradients = testing::gradient_matrices(problem->batch(), gradient);
    const sim::MethodOutput expected = sim::run(
        sim::method_from_name(name_of(form)),
        {.batch = problem->batch(), .options = per_row(), .order = {}, .upstream = {}, .gradients = gradients});
    const auto width = static_cast<std::size_t>(columns);
    for (std::size_t i = 0; i < found.nll.size(); ++i) {
      std::vector<double> logits;
      for (std::size_t j = 0; j < width; ++j)
        logits.push_back(static_cast<double>(widen(problem->logits()[i * width + j])));
      const auto target = static_cast<std::size_t>(problem->labels()[i]);
      // Eight lanes of the simulator, each in sequence.
      const RowBound ours(logits, target, depth_of<BFloat16>(problem->batch().plan), operations());
      const RowBound theirs(logits, target, static_cast<double>(columns) / 8.0 + 4.0, {true});
      EXPECT_LE(std::fabs(static_cast<double>(found.nll[i]) - expected.nll[i]),
                1.01 * kUnit * (ours.loss(form) + theirs.loss(form)))
          << name_of(form) << " row " << i;
      for (std::size_t j = 0; j < width; ++j) {
        EXPECT_LE(std::fabs(static_cast<double>(found.gradient[i * width + j]) -
                            static_cast<double>(gradient[i * width + j])),
                  1.01 * kUnit * (ours.gradient(form, j) + theirs.gradient(form, j)) + 0x1p-148)
            << name_of(form) << " row " << i << " class " << j;
      }
    }
  }
}

// A device on which only kernels may be asked for.
class LaunchesOnly final : public HostDevice {
 public:
  Buffer allocate(std::size_t) const override { throw std::logic_error("allocates"); }
  void copy_to_device(void*, const void*, std::size_t, Queue) override { throw std::logic_error("copies"); }
  void copy_to_host(void*, const void*, std::size_t, Queue) override { throw std::logic_error("copies"); }
  void copy_on_device(void*, const void*, std::size_t, Queue) override { throw std::logic_error("copies"); }
  void launch(Kernel kernel, const Launch& launch, const void* arguments, Queue queue) override {
    ++launches_;
    HostDevice::launch(kernel, launch, arguments, queue);
  }
  DeviceObject make_queue() const override { throw std::logic_error("makes a queue"); }
  DeviceObject make_event() const override { throw std::logic_error("makes an event"); }
  void record(const DeviceObject&, Queue) override { throw std::logic_error("records"); }
  void wait_for(const DeviceObject&, Queue) override { throw std::logic_error("waits"); }
  void synchronize(Queue) override { throw std::logic_error("waits"); }
  int launches() const { return launches_; }

 private:
  int launches_ = 0;
};

struct SmallProblem {
  Problem<BFloat16> problem{std::vector<BFloat16>(12, BFloat16{0x3f80}), {0, 1}, ShardPlan::even(6, 2)};
  LaunchesOnly device;
  std::vector<float> nll = std::vector<float>(2), gradient = std::vector<float>(12);
  std::vector<char> saved = std::vector<char>(4096), workspace = std::vector<char>(4096);

  ProductionRun run(const Batch& batch) {
    return {batch, -100, saved.data(), {nullptr, workspace.data(), workspace.size()}};
  }
};

TEST(ProductionMethod, NeitherAllocatesNorWaits) {
  for (const ProductionForm form : kProductionForms) {
    SmallProblem small;
    const Batch batch = small.problem.batch();
    ProductionMethod method(small.device, form);
    method.forward(small.run(batch), small.nll.data());
    method.backward(small.run(batch), {}, testing::gradient_matrices(batch, small.gradient));
    EXPECT_GT(small.device.launches(), 0);
    EXPECT_NEAR(small.nll[0], std::log(6.0f), 1e-6f);
    EXPECT_NEAR(small.gradient[0], 1.0f / 6.0f - 1.0f, 1e-6f);
  }
}

TEST(ProductionMethod, Refuses) {
  SmallProblem small;
  ProductionMethod method(small.device, ProductionForm::kSoftplusRecompute);
  const Batch batch = small.problem.batch();
  const auto forward = [&](const ProductionRun& run) {
    return testing::refusal([&] { method.forward(run, small.nll.data()); });
  };
  ProductionRun run = small.run(batch);
  EXPECT_EQ(forward(run), "accepted");
  run.queue.workspace_bytes = method.workspace_bytes(batch) - 1;
  EXPECT_EQ(forward(run), "queue: its workspace has 55 bytes, expected at least 56, see workspace_bytes()");
  const Batch nothing{batch.plan, {}, batch.labels, batch.vocab};
  EXPECT_EQ(forward(small.run(nothing)), "shards: got none, expected at least one");
  const Batch elsewhere{batch.plan, batch.shards, Labels(small.problem.labels().data(), 2, {DeviceType::kCuda, 0}), 6};
  EXPECT_EQ(forward(small.run(elsewhere)), "labels: expected in the memory of the device");
  small.problem.shards()[1].logits.dtype = DType::kFloat64;
  EXPECT_EQ(forward(small.run(batch)), "logits of shard 1: got fp64, expected fp32, bf16 or fp16");
  small.problem.shards()[1].logits.dtype = DType::kBFloat16;
  small.problem.shards()[1].logits.place = {DeviceType::kCuda, 0};
  EXPECT_EQ(forward(small.run(batch)), "logits of shard 1: expected in the memory of the device");
  small.problem.shards()[1].logits.place = {};
  ProductionRun unsaved = small.run(batch);
  unsaved.saved = nullptr;
  EXPECT_EQ(forward(unsaved), "saved: got null, expected memory of saved_bytes()");
  std::vector<Matrix> gradients = testing::gradient_matrices(batch, small.gradient);
  const int launches = small.device.launches();
  gradients[1].place = {DeviceType::kCuda, 0};
  EXPECT_EQ(testing::refusal([&] { method.backward(small.run(batch), {}, gradients); }),
            "gradient of shard 1: expected in the memory of the device");
  gradients[1].place = {};
  gradients[1].dtype = DType::kFloat16;
  EXPECT_EQ(testing::refusal([&] { method.backward(small.run(batch), {}, gradients); }),
            "gradient of shard 1: got fp16, expected fp32 or the logits' type, bf16");
  EXPECT_EQ(testing::refusal([&] { method.backward(small.run(batch), {}, {}); }),
            "gradients: got 0 of them, expected one a shard, 2");
  EXPECT_EQ(small.device.launches(), launches);
}

}  // namespace
}  // namespace tpce::gpu
