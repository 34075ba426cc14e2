// What a method holds in memory, phase by phase, for a problem of a given size. docs/memory.md explains each entry.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tpce/dtype.h"

namespace tpce::sim {

// Operator by operator, each with a result in memory; or one kernel for each pass over the logits (torch.compile).
enum class Execution : std::uint8_t { kEager, kCompiled };

constexpr std::string_view name_of(Execution execution) {
  return execution == Execution::kEager ? "eager" : "compiled";
}

// The size of a problem on one rank of tp; the vocabulary is cut evenly.
struct Problem {
  std::int64_t rows = 0;
  std::int64_t vocab = 0;
  std::int64_t tp = 1;
  DType logits = DType::kBFloat16;
  Execution execution = Execution::kEager;
};

// Throws std::invalid_argument where bytes of such a problem may leave 64 bits: beyond 2^50 logits over all ranks.
void check_size(const Problem& problem);

enum class Shape : std::uint8_t {
  kLocalClasses,      // [T, V_local], V_local = ceil(V / tp)
  kAllClasses,        // [T, V]
  kOnePerRow,         // [T, 1]
  kOnePerRowAndRank,  // [T, tp]
};

// Who keeps the buffer alive. A caller's buffer is listed where the method reads or returns it, but not counted.
enum class Holder : std::uint8_t { kMethod, kCaller };

struct HeldTensor {
  std::string name;
  Shape shape;
  DType dtype;
  Holder holder = Holder::kMethod;
};

struct Phase {
  std::string name;
  std::vector<HeldTensor> live;
};

// For a method of one form, whose ledger does not follow problem.execution.
inline Problem eager_only(Problem problem) {
  problem.execution = Execution::kEager;
  return problem;
}

struct MemoryLedger {
  Problem problem;                // its execution is the one described
  std::vector<Phase> phases;      // in the order of time
  std::vector<HeldTensor> saved;  // held between forward and backward

  // Throws as check_size() does.
  std::int64_t bytes(const HeldTensor& buffer) const;
  // Of the buffers that the method holds; with Count::kCaller also the logits that the caller holds.
  enum class Count : std::uint8_t { kMethod, kCaller };
  std::int64_t bytes(const Phase& phase, Count count = Count::kMethod) const;
  std::int64_t saved_bytes() const;
  const Phase& peak(Count count = Count::kMethod) const;
  std::int64_t peak_bytes(Count count = Count::kMethod) const { return bytes(peak(count), count); }
};

}  // namespace tpce::sim
