#include "sim/train/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "simd/kernels.h"

namespace tpce::sim {
namespace {

struct Shape {
  std::int64_t rows, columns, depth;
};

std::vector<float> random_values(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// One problem: both factors as they stand or transposed in memory, c wider than the product and not empty.
struct Problem {
  Problem(const Shape& s, bool transpose_a, bool transpose_b)
      : shape(s), a_values(random_values(s.rows * s.depth, 1)), b_values(random_values(s.depth * s.columns, 2)) {
    a = transpose_a ? View<float>(a_values.data(), s.depth, s.rows).transposed()
                    : Factor<float>(View<float>(a_values.data(), s.rows, s.depth));
    b = transpose_b ? View<float>(b_values.data(), s.columns, s.depth).transposed()
                    : Factor<float>(View<float>(b_values.data(), s.depth, s.columns));
  }
  std::vector<float> start() const { return random_values(shape.rows * (shape.columns + 3), 3); }
  Product<float> product(std::vector<float>& c, Start start) const {
    return {a, b, View<float>(c.data(), shape.rows, shape.columns, shape.columns + 3), start};
  }

  Shape shape;
  std::vector<float> a_values, b_values;
  Factor<float> a, b;
};

std::string name(const Problem& problem, Start start) {
  const auto& [rows, columns, depth] = problem.shape;
  return std::to_string(rows) + "x" + std::to_string(columns) + "x" + std::to_string(depth) + " strides " +
         std::to_string(problem.a.col_stride) + ", " + std::to_string(problem.b.col_stride) +
         (start == Start::kZero ? "" : " +=");
}

// On every target two threads compute it transposed: else one would have all of its tiles, and most of each for
// nothing.
constexpr Shape kTurned{3, 96, 2300};

// The definition's bits on every target, and those of one thread on any number of them; beyond c nothing changes.
TEST(Matmul, GivesTheBitsOfItsDefinition) {
  constexpr Shape kShapes[] = {{1, 1, 1},    {1, 33, 7},     {5, 1, 300},    {12, 32, 64}, {13, 31, 257},
                               {97, 65, 11}, {200, 113, 40}, {301, 5, 513},  {7, 1100, 3}, {600, 17, 2},
                               {24, 16, 1},  {3, 2, 0},      {40, 17, 1100}, kTurned};
  for (const Shape& shape : kShapes) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        const Problem problem(shape, transpose_a, transpose_b);
        for (const Start start : {Start::kZero, Start::kAccumulate}) {
          std::vector<float> expected = problem.start();
          multiply_plainly(problem.product(expected, start));
          for (const MatmulKernels& kernels : matmul_targets()) {
            for (int threads = 1; threads <= 5; ++threads) {
              const auto executor = simd::make_tbb_executor(threads);
              std::vector<float> actual = problem.start();
              multiply(problem.product(actual, start), *executor, kernels);
              ASSERT_EQ(std::memcmp(expected.data(), actual.data(), expected.size() * sizeof(float)), 0)
                  << kernels.name << ", " << threads << " threads, " << name(problem, start);
            }
          }
        }
      }
    }
  }
}

TEST(Matmul, IsTransposedWhereThatSavesMoreThanItCosts) {
  const auto is_transposed = [](const Shape& shape, std::int64_t threads, const MatmulKernels& kernels, Start start) {
    const auto& [rows, columns, depth] = shape;
    const Factor<float> a{nullptr, rows, depth, depth, 1}, b{nullptr, depth, columns, columns, 1};
    return is_multiplied_transposed({a, b, View<float>(nullptr, rows, columns), start}, threads, kernels);
  };
  constexpr Shape kShort{kTurned.rows, kTurned.columns, 8};
  constexpr Shape kHead{256, 4096, 2048}, kLogits{200, 113, 8938};  // gradients of weights in docs/train.md
  for (const MatmulKernels& kernels : matmul_targets()) {
    for (const Start start : {Start::kZero, Start::kAccumulate}) {
      EXPECT_TRUE(is_transposed(kTurned, 2, kernels, start)) << kernels.name;
      EXPECT_FALSE(is_transposed(kTurned, 3, kernels, start)) << kernels.name;
      EXPECT_FALSE(is_transposed(kShort, 2, kernels, start)) << kernels.name;
    }
    for (const std::int64_t threads : {1, 2, 3, 4, 8, 64}) {
      EXPECT_FALSE(is_transposed(kHead, threads, kernels, Start::kZero)) << kernels.name << ", " << threads;
    }
    if (kernels.columns < 32) continue;
    for (const std::int64_t threads : {1, 2}) {
      EXPECT_TRUE(is_transposed(kLogits, threads, kernels, Start::kZero)) << kernels.name << ", " << threads;
    }
  }
}

// An order of its own would show: the terms of one element span many magnitudes and cancel.
TEST(Matmul, OrderOfTheTermsIsTheirIndex) {
  constexpr std::int64_t kDepth = 700;
  std::vector<float> a(kDepth), b(kDepth, 1.0f);
  for (std::int64_t k = 0; k < kDepth; ++k) a[static_cast<std::size_t>(k)] = k % 2 == 0 ? 0x1p24f : -0x1p24f + 2.0f;
  a[1] = 1.0f;
  float in_order = 0.0f;
  for (const float x : a) in_order += x;
  float backwards = 0.0f;
  for (std::size_t k = a.size(); k-- > 0;) backwards += a[k];
  ASSERT_NE(in_order, backwards);
  InlineExecutor executor;
  for (const MatmulKernels& kernels : matmul_targets()) {
    float c = -1.0f;
    multiply({View<float>(a.data(), 1, kDepth), View<float>(b.data(), kDepth, 1), View<float>(&c, 1, 1)}, executor,
             kernels);
    EXPECT_EQ(c, in_order) << kernels.name;
  }
}

TEST(Matmul, InTwoPartsOfKFromWhatIsThere) {
  const Problem problem({40, 50, 90}, false, false);
  std::vector<float> whole = problem.start(), parts = problem.start();
  InlineExecutor executor;
  multiply(problem.product(whole, Start::kZero), executor);
  const Factor<float>& a = problem.a;
  const Factor<float>& b = problem.b;
  const View<float> c = problem.product(parts, Start::kZero).c;
  multiply({{a.data, 40, 37, 90, 1}, {b.data, 37, 50, 50, 1}, c}, executor);
  multiply({{a.data + 37, 40, 53, 90, 1}, {b.data + 37 * 50, 53, 50, 50, 1}, c, Start::kAccumulate}, executor);
  EXPECT_EQ(whole, parts);
}

TEST(Matmul, InFp64IsTheDefinitionToo) {
  const std::vector<float> values = random_values(200, 5);
  const std::vector<double> a(values.begin(), values.begin() + 60), b(values.begin() + 60, values.end());
  std::vector<double> expected(84), actual(84);
  const auto product = [&](std::vector<double>& c) {
    return Product<double>{{a.data(), 6, 10, 10, 1}, {b.data(), 10, 14, 14, 1}, View<double>(c.data(), 6, 14)};
  };
  multiply_plainly(product(expected));
  const auto executor = simd::make_tbb_executor(3);
  multiply(product(actual), *executor);
  EXPECT_EQ(expected, actual);
}

TEST(Matmul, RefusesShapesThatDoNotFit) {
  std::vector<float> values(100);
  InlineExecutor executor;
  try {
    multiply({View<float>(values.data(), 2, 3), View<float>(values.data(), 4, 5), View<float>(values.data(), 2, 5)},
             executor);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("[2, 3] times [4, 5]"), std::string::npos) << error.what();
  }
}

// Every name that the vector backend takes is taken here, and gives the kernels of that name where there are any.
TEST(Matmul, TargetsAreThoseOfTheVectorBackend) {
  const std::vector<MatmulKernels> here = matmul_targets();
  ASSERT_FALSE(here.empty());
  for (const simd::Target& target : simd::targets()) {
    setenv("TPCE_TARGET", target.name.c_str(), 1);
    if (!target.supported) {
      EXPECT_THROW(matmul_kernels(), std::invalid_argument) << target.name;
      continue;
    }
    EXPECT_EQ(matmul_kernels().name, target.name.starts_with("SVE") ? here.front().name : target.name);
  }
  setenv("TPCE_TARGET", "AVX9", 1);
  EXPECT_THROW(matmul_kernels(), std::invalid_argument);
  unsetenv("TPCE_TARGET");
  EXPECT_EQ(matmul_kernels().name, here.front().name);
}

}  // namespace
}  // namespace tpce::sim
