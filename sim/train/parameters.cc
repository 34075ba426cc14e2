#include "sim/train/parameters.h"

#include "sim/train/random.h"

namespace tpce::sim {

std::vector<float> initial_parameters(const ParameterLayout& layout, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(layout.size()));
  std::uint32_t index = 0;
  for (const ParameterShape& shape : layout.shapes()) {
    const Philox random(seed, Stream::kParameters, index++);
    float* out = values.data() + shape.offset;
    for (std::int64_t i = 0; i < shape.rows * shape.cols; ++i) {
      // Exact but for the product.
      const float centred = 2.0f * random.uniform(static_cast<std::uint64_t>(i)) - 1.0f;
      out[i] = shape.bound == 0.0f ? 1.0f : centred * shape.bound;
    }
  }
  return values;
}

}  // namespace tpce::sim
