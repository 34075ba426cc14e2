#include "sim/methods/memory_ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace tpce::sim {

void check_size(const Problem& problem) {
  constexpr int kMost = 50;  // of 8 bytes a logit, 2^10 tensors fit in 64 bits
  const std::int64_t columns = std::max<std::int64_t>({problem.vocab, problem.tp, 1});
  if (problem.rows <= (std::int64_t{1} << kMost) / columns) return;
  throw std::invalid_argument(fmt::format("rows x vocab: got {} x {} on {} ranks, expected at most 2^{} logits",
                                          problem.rows, problem.vocab, problem.tp, kMost));
}

std::int64_t MemoryLedger::bytes(const HeldTensor& buffer) const {
  check_size(problem);
  std::int64_t columns = 1;
  if (buffer.shape == Shape::kAllClasses) columns = problem.vocab;
  if (buffer.shape == Shape::kLocalClasses) columns = (problem.vocab + problem.tp - 1) / problem.tp;
  if (buffer.shape == Shape::kOnePerRowAndRank) columns = problem.tp;
  return problem.rows * columns * static_cast<std::int64_t>(size_of(buffer.dtype));
}

std::int64_t MemoryLedger::bytes(const Phase& phase, Count count) const {
  std::int64_t total = 0;
  for (const HeldTensor& buffer : phase.live) {
    if (buffer.holder == Holder::kMethod || count == Count::kCaller) total += bytes(buffer);
  }
  return total;
}

std::int64_t MemoryLedger::saved_bytes() const {
  std::int64_t total = 0;
  for (const HeldTensor& buffer : saved) total += bytes(buffer);
  return total;
}

const Phase& MemoryLedger::peak(Count count) const {
  return *std::max_element(phases.begin(), phases.end(),
                           [&](const Phase& a, const Phase& b) { return bytes(a, count) < bytes(b, count); });
}

}  // namespace tpce::sim
