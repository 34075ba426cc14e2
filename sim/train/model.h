// What is trained: tokens in, logits out, and the gradients of the parameters back. Templates over the arithmetic, so
// that the code that trains in fp32 is the code whose gradients are checked in fp64.
#pragma once

#include <cstdint>
#include <span>

#include "sim/train/parallel.h"
#include "sim/train/parameters.h"
#include "sim/train/view.h"

namespace tpce::sim {

// Token numbers [rows, per_row].
struct Tokens {
  std::span<const std::int32_t> values;
  std::int64_t per_row = 1;

  std::int64_t rows() const { return static_cast<std::int64_t>(values.size()) / per_row; }
  const std::int32_t* row(std::int64_t i) const { return values.data() + i * per_row; }
};

template <class Real>
class Model {
 public:
  virtual ~Model() = default;
  virtual const ParameterLayout& layout() const = 0;
  // Logits of the tokens, one row a prediction, in memory of the model's, valid until the next call; the caller may
  // overwrite them with their gradients.
  virtual View<Real> forward(const Real* parameters, const Tokens& tokens, Executor& executor) = 0;
  // The gradients of the last forward's parameters, all of which are written. `logits` are those that forward returned,
  // overwritten with their gradients.
  virtual void backward(const Real* parameters, const View<Real>& logits, Real* gradients, Executor& executor) = 0;
};

}  // namespace tpce::sim
