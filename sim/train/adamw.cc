#include "sim/train/adamw.h"

#include <cmath>

#include "sim/train/layers.h"
#include "tpce/dtype.h"

namespace tpce::sim {

namespace {
constexpr std::int64_t kBlock = 4096;
}

void adamw(const AdamWOptions& options, const AdamWStep& step, std::span<float> parameters, AdamWState& state,
           Executor& executor) {
  state.first_moments.resize(parameters.size());
  state.second_moments.resize(parameters.size());
  state.beta1_power *= options.beta1;
  state.beta2_power *= options.beta2;
  const double rate = options.learning_rate * step.rate;
  const float decay = static_cast<float>(1.0 - rate * options.weight_decay);
  const float step_size = static_cast<float>(rate / (1.0 - state.beta1_power));
  const float root = static_cast<float>(std::sqrt(1.0 - state.beta2_power));
  const float beta1 = static_cast<float>(options.beta1), rest1 = static_cast<float>(1.0 - options.beta1);
  const float beta2 = static_cast<float>(options.beta2), rest2 = static_cast<float>(1.0 - options.beta2);
  const float eps = static_cast<float>(options.eps);
  const float scale = step.scale;
  for_ranges(executor, static_cast<std::int64_t>(parameters.size()), kBlock, [&](std::int64_t first, std::int64_t end) {
    const float* gradients = step.gradients.data();
    float* p = parameters.data();
    float* m = state.first_moments.data();
    float* v = state.second_moments.data();
    for (std::int64_t i = first; i < end; ++i) {
      const float g = gradients[i] * scale;
      m[i] = m[i] * beta1 + g * rest1;
      v[i] = v[i] * beta2 + (g * g) * rest2;
      p[i] = p[i] * decay - step_size * (m[i] / (std::sqrt(v[i]) / root + eps));
    }
  });
}

float norm(std::span<const float> values, Executor& executor) {
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<double> blocks(static_cast<std::size_t>((count + kBlock - 1) / kBlock));
  for_ranges(executor, static_cast<std::int64_t>(blocks.size()), 4, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t block = first; block < end; ++block) {
      const float* from = values.data() + block * kBlock;
      blocks[static_cast<std::size_t>(block)] =
          sum_in_lanes<double>(std::min(kBlock, count - block * kBlock), [&](std::int64_t j) {
            const double x = from[j];
            return x * x;
          });
    }
  });
  double sum = 0.0;
  for (const double block : blocks) sum += block;
  return std::isnan(sum) ? canonical_nan() : static_cast<float>(std::sqrt(sum));
}

}  // namespace tpce::sim
