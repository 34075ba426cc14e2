// What a method sends between ranks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tpce/dtype.h"

namespace tpce::sim {

enum class CollectiveOp : std::uint8_t {
  kMax,
  kSum,
  kAllGather,
  kMerge,  // an all-reduce by an operation of the method's own
};

// "MAX", "SUM", "ALL_GATHER", "MERGE".
constexpr std::string_view name_of(CollectiveOp op) {
  constexpr std::string_view kNames[] = {"MAX", "SUM", "ALL_GATHER", "MERGE"};
  return kNames[static_cast<std::size_t>(op)];
}

struct Collective {
  std::string what;
  CollectiveOp op;
  std::int64_t elements = 1;  // that each rank brings for a row
  DType dtype = DType::kFloat32;
};

}  // namespace tpce::sim
