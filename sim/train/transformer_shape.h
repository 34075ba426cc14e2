// How large a transformer is.
#pragma once

#include <cstdint>

namespace tpce::sim {

struct TransformerShape {
  std::int64_t vocab = 4096;
  std::int64_t width = 256;
  std::int64_t layers = 2;
  std::int64_t heads = 4;  // each of width / heads, which is even
  std::int64_t feed_forward = 512;
  std::int64_t sequence = 128;
  // The gradient of the head's input adds over the vocabulary: in one order for every tp where this is 1, else as so
  // many ranks do, each over its own columns, and then rank by rank.
  std::int64_t partial_sums = 1;
};

}  // namespace tpce::sim
