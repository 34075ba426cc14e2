// AdamW as torch.optim.AdamW computes it, in fp32 with the step's scalars in fp64.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/train/parallel.h"

namespace tpce::sim {

struct AdamWOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
};

struct AdamWState {
  std::vector<float> first_moments;
  std::vector<float> second_moments;
  // beta1^t and beta2^t after t steps, by multiplication.
  double beta1_power = 1.0;
  double beta2_power = 1.0;
};

// One step. `scale` multiplies the gradients (clipping), and `rate` the learning rate (a schedule).
struct AdamWStep {
  std::span<const float> gradients;
  float scale = 1.0f;
  double rate = 1.0;
};
void adamw(const AdamWOptions& options, const AdamWStep& step, std::span<float> parameters, AdamWState& state,
           Executor& executor);

// L2 norm, added up in fp64 in one order: lanes, then blocks of a fixed size. canonical_nan() where a value is NaN.
float norm(std::span<const float> values, Executor& executor);

}  // namespace tpce::sim
