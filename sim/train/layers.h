// Layers between the matrix products. Every element is computed by one task in a fixed order, from additions,
// multiplications, divisions and square roots alone, so that its bits depend on nothing but the arguments.
#pragma once

#include <cmath>
#include <cstdint>

#include "sim/train/matmul.h"
#include "sim/train/model.h"
#include "tpce/fp64_math.h"

namespace tpce::sim {

// Rows of a task at the least.
inline constexpr std::int64_t kRowGrain = 32;
// Columns of a task at the least, where it adds up all rows: a cache line of fp32.
inline constexpr std::int64_t kColumnGrain = 16;

// exp(x) for x <= 0; in fp32 below 2 ulp (tests/sim/train/layers_test.cc), 0 where it would be subnormal. Without fused
// multiply-adds, which the compiler's baseline has not, so that loops over it become vectors.
inline float exp_of_nonpositive(float x) {
  constexpr float kLowest = -87.0f;
  constexpr float kMagic = 0x1.8p23f;
  const float clamped = x < kLowest ? kLowest : x;
  const float shifted = clamped * 0x1.715476p+0f + kMagic;
  const float n = shifted - kMagic;
  // ln 2 in two parts: the product with the first is exact.
  const float r = (clamped - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = (p * r) * r + r;
  const std::uint32_t power = (bit_cast<std::uint32_t>(shifted) - bit_cast<std::uint32_t>(kMagic) + 127u) << 23;
  const float result = (1.0f + p) * bit_cast<float>(power);
  return x < kLowest ? 0.0f : result;
}
inline double exp_of_nonpositive(double x) { return exp_fp64(x); }

// term(0) + ... + term(count - 1), in eight lanes.
template <class Real, class Term>
Real sum_in_lanes(std::int64_t count, const Term& term) {
  constexpr std::int64_t kLanes = 8;
  Real lanes[kLanes] = {};
  std::int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(j + lane);
  }
  for (; j < count; ++j) lanes[j % kLanes] += term(j);
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// out[i] = table[t0] + table[t1] + ... for the tokens of row i: the product of a matrix with a one at each token, which
// is never made. Its bits, but for the sign of a zero, where the tokens ascend.
template <class Real>
void add_rows_of_tokens(const Factor<Real>& table, const Tokens& tokens, const View<Real>& out, Executor& executor) {
  for_ranges(executor, out.rows, kRowGrain, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t i = first; i < end; ++i) {
      const std::int32_t* row = tokens.row(i);
      Real* __restrict to = out.row(i);
      std::copy_n(table.data + row[0] * table.row_stride, out.cols, to);
      for (std::int64_t t = 1; t < tokens.per_row; ++t) {
        const Real* __restrict from = table.data + row[t] * table.row_stride;
        for (std::int64_t j = 0; j < out.cols; ++j) to[j] += from[j];
      }
    }
  });
}

// The gradient of the table: the rows of `gradient` are added to those of their tokens in order.
template <class Real>
void scatter_to_tokens(const Factor<Real>& gradient, const Tokens& tokens, const View<Real>& table,
                       Executor& executor) {
  for_ranges(executor, table.cols, kColumnGrain, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t i = 0; i < table.rows; ++i) std::fill(table.row(i) + first, table.row(i) + end, Real(0));
    for (std::int64_t i = 0; i < tokens.rows(); ++i) {
      const Real* from = gradient.data + i * gradient.row_stride;
      for (std::int64_t t = 0; t < tokens.per_row; ++t) {
        Real* to = table.row(tokens.row(i)[t]);
        for (std::int64_t j = first; j < end; ++j) to[j] += from[j];
      }
    }
  });
}

template <class Real>
void relu(const View<Real>& x, Executor& executor) {
  for_ranges(executor, x.rows, kRowGrain, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t i = first; i < end; ++i) {
      Real* row = x.row(i);
      for (std::int64_t j = 0; j < x.cols; ++j) row[j] = row[j] > Real(0) ? row[j] : Real(0);
    }
  });
}

// Where relu gave 0, no gradient passes.
template <class Real>
void relu_backward(const Factor<Real>& y, const View<Real>& gradient, Executor& executor) {
  for_ranges(executor, gradient.rows, kRowGrain, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t i = first; i < end; ++i) {
      const Real* __restrict row = y.data + i * y.row_stride;
      Real* __restrict g = gradient.row(i);
      for (std::int64_t j = 0; j < gradient.cols; ++j) {
        const Real passed = g[j];  // read in any case, so that no branch is made
        g[j] = row[j] > Real(0) ? passed : Real(0);
      }
    }
  });
}

}  // namespace tpce::sim
