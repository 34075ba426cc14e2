// The parameters of a model as named matrices in one flat array; gradients and the optimizer's moments have the same
// layout.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/train/view.h"

namespace tpce::sim {

struct ParameterShape {
  std::string name;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t offset;  // of its first element
  // Initial values are uniform in [-bound, bound], or all 1 where bound is 0.
  float bound;
};

class ParameterLayout {
 public:
  // Returns the index of the new matrix.
  std::size_t add(std::string name, std::int64_t rows, std::int64_t cols, float bound) {
    shapes_.push_back({std::move(name), rows, cols, size_, bound});
    size_ += rows * cols;
    return shapes_.size() - 1;
  }
  std::int64_t size() const { return size_; }
  const std::vector<ParameterShape>& shapes() const { return shapes_; }

  template <class Real>
  View<Real> view(Real* flat, std::size_t index) const {
    const ParameterShape& shape = shapes_[index];
    return {flat + shape.offset, shape.rows, shape.cols};
  }
  template <class Real>
  Factor<Real> factor(const Real* flat, std::size_t index) const {
    const ParameterShape& shape = shapes_[index];
    return {flat + shape.offset, shape.rows, shape.cols, shape.cols, 1};
  }

 private:
  std::vector<ParameterShape> shapes_;
  std::int64_t size_ = 0;
};

// The initial values, by Philox: those of one matrix depend on the seed, its index and nothing else.
std::vector<float> initial_parameters(const ParameterLayout& layout, std::uint64_t seed);

}  // namespace tpce::sim
