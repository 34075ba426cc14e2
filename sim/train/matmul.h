// Matrix products whose bits depend on nothing but their arguments: every element of c is a sequence of fused
// multiply-adds over k = 0, 1, 2, ... from 0, or from what c holds. Vectors run over columns and threads over tiles, so
// neither the instruction set nor the number of threads shows in a result (docs/train.md).
#pragma once

#include <cmath>

#include "sim/train/matmul_kernels.h"
#include "sim/train/parallel.h"
#include "sim/train/view.h"

namespace tpce::sim {

enum class Start : std::uint8_t { kZero, kAccumulate };

// c = a b, or c += a b. c overlaps neither factor.
template <class Real>
struct Product {
  Factor<Real> a;  // [M, K]
  Factor<Real> b;  // [K, N]
  View<Real> c;    // [M, N]
  Start start = Start::kZero;
};

// With the kernels of matmul_kernels().
void multiply(const Product<float>& product, Executor& executor);
void multiply(const Product<float>& product, Executor& executor, const MatmulKernels& kernels);

// Whether they compute c^T = b^T a^T, the same multiply-adds in the same order: where a thread saves more of them that
// would be for nothing, in tiles that reach beyond c, than it costs to transpose c.
bool is_multiplied_transposed(const Product<float>& product, std::int64_t threads, const MatmulKernels& kernels);

// The same in fp64, slowly: for the tests of gradients.
void multiply(const Product<double>& product, Executor& executor);

// The definition, one element after the other.
template <class Real>
void multiply_plainly(const Product<Real>& product) {
  for (std::int64_t i = 0; i < product.c.rows; ++i) {
    for (std::int64_t j = 0; j < product.c.cols; ++j) {
      Real& c = product.c.row(i)[j];
      Real sum = product.start == Start::kZero ? Real(0) : c;
      for (std::int64_t k = 0; k < product.a.cols; ++k) sum = std::fma(product.a.at(i, k), product.b.at(k, j), sum);
      c = sum;
    }
  }
}

}  // namespace tpce::sim
