// Orders in which real code adds up the terms of one row. Floating-point addition is not associative, so each order
// gives its own bits, and its own margin at which the loss collapses (docs/collapse.md).
//
// Every order is a template over the arithmetic's number type, which needs only + and construction from 0.0f: the type
// rounds each addition.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tpce::sim {

enum class SumOrderKind : std::uint8_t {
  kSequential,
  kPairwise,
  kLanes8,
  kLanes16,
  kCascade,
  kGpuTree,
  kNumpy,
  kSplitK,
  kRandom
};

struct SumOrder {
  SumOrderKind kind = SumOrderKind::kSequential;
  std::uint64_t parameter = 0;  // number of splits, seed; 0 where the kind takes none

  static const SumOrder kSequential, kPairwise, kLanes8, kLanes16, kCascade, kGpuTree, kNumpy;
  static constexpr SumOrder split_k(std::uint64_t splits);  // splits >= 1
  static constexpr SumOrder random(std::uint64_t seed);

  friend bool operator==(const SumOrder&, const SumOrder&) = default;
};

inline constexpr SumOrder SumOrder::kSequential{SumOrderKind::kSequential, 0};
inline constexpr SumOrder SumOrder::kPairwise{SumOrderKind::kPairwise, 0};
inline constexpr SumOrder SumOrder::kLanes8{SumOrderKind::kLanes8, 0};
inline constexpr SumOrder SumOrder::kLanes16{SumOrderKind::kLanes16, 0};
inline constexpr SumOrder SumOrder::kCascade{SumOrderKind::kCascade, 0};
inline constexpr SumOrder SumOrder::kGpuTree{SumOrderKind::kGpuTree, 0};
inline constexpr SumOrder SumOrder::kNumpy{SumOrderKind::kNumpy, 0};
constexpr SumOrder SumOrder::split_k(std::uint64_t splits) { return {SumOrderKind::kSplitK, splits}; }
constexpr SumOrder SumOrder::random(std::uint64_t seed) { return {SumOrderKind::kRandom, seed}; }

struct SumOrderInfo {
  SumOrder order;  // with a parameter that is usual where the kind takes one
  std::string_view name;
  std::string_view stands_for;
  std::string_view parameter = {};  // what it is, where the kind takes one: the order is then written name:parameter
};

// The one list of the orders, in that of the kinds: names, help texts, studies and tests derive from it.
inline constexpr std::array<SumOrderInfo, 9> kSumOrders{{
    {SumOrder::kSequential, "sequential", "a plain loop, and a Triton or CUDA thread that owns a whole row"},
    {SumOrder::kPairwise, "pairwise", "halving down to single terms, as XLA's tree"},
    {SumOrder::kLanes8, "lanes8", "one AVX2 register of 8 lanes, then a tree: PyTorch's CPU softmax and log_softmax"},
    {SumOrder::kLanes16, "lanes16", "one AVX-512 register of 16 lanes, then a tree: the same code on AVX-512"},
    {SumOrder::kCascade, "cascade", "torch.sum on a CPU with AVX2: 4 registers of 8 lanes, restarted every 16 steps"},
    {SumOrder::kGpuTree, "gpu_tree",
     "a block of 256 threads striding over the row, then warp shuffles, then a last warp"},
    {SumOrder::kNumpy, "numpy",
     "NumPy's sum, which Triton's interpreter calls: 8 accumulators up to 128 terms, halves above"},
    {SumOrder::split_k(4), "split_k", "neighbouring pieces, each in a plain loop, then added in turn: split-K kernels",
     "SPLITS"},
    {SumOrder::random(1), "random", "a plain loop over a permutation: what atomic additions may come to", "SEED"},
}};

// "lanes8", "split_k:4", "random:7". Throws std::invalid_argument that lists the names.
SumOrder sum_order_from_name(std::string_view name);
std::string name_of(const SumOrder& order);

template <class Real>
Real sum_sequential(std::span<const Real> terms) {
  if (terms.empty()) return Real(0.0f);
  Real total = terms[0];
  for (const Real& term : terms.subspan(1)) total = total + term;
  return total;
}

template <class Real>
Real sum_pairwise(std::span<const Real> terms) {
  if (terms.size() <= 2) return sum_sequential(terms);
  const std::size_t half = terms.size() / 2;
  return sum_pairwise(terms.first(half)) + sum_pairwise(terms.subspan(half));
}

// Adds the upper half of the values to the lower half until one is left. It is what a register is folded with, and what
// lane 0 of a warp sees of a shuffle, down or butterfly. values.size() is a power of two; the values are overwritten.
template <class Real>
Real fold_halves(std::span<Real> values) {
  for (std::size_t width = values.size() / 2; width > 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) values[i] = values[i] + values[i + width];
  }
  return values[0];
}

// Term i goes to lane i mod Lanes; the lanes are folded by halves. Fewer terms than lanes are added in a plain loop, as
// PyTorch's reduce_all does.
template <std::size_t Lanes, class Real>
Real sum_lanes(std::span<const Real> terms) {
  static_assert(std::has_single_bit(Lanes));
  if (terms.size() < Lanes) return sum_sequential(terms);
  std::array<Real, Lanes> lanes;
  for (std::size_t lane = 0; lane < Lanes; ++lane) lanes[lane] = terms[lane];
  for (std::size_t i = Lanes; i < terms.size(); ++i) lanes[i % Lanes] = lanes[i % Lanes] + terms[i];
  return fold_halves(std::span<Real>(lanes));
}

// torch.sum over a contiguous row: 8 lanes of 4 registers each run a sum that is carried to the next of 4 levels every
// 2^p steps, p = max(4, ceil(log2(steps)) / 4); then levels, registers, and lanes are added in turn, and what did not
// fill a register comes first of the lanes.
template <class Real>
Real sum_cascade(std::span<const Real> terms) {
  constexpr std::size_t kLanes = 8, kRegisters = 4, kLevels = 4, kBlock = kLanes * kRegisters;
  const std::size_t vectors = terms.size() / kLanes;
  const std::size_t steps = vectors / kRegisters;
  const std::size_t log_steps = steps <= 1 ? 0 : static_cast<std::size_t>(std::bit_width(steps - 1));
  const std::size_t power = log_steps / kLevels < 4 ? 4 : log_steps / kLevels;
  const std::size_t stride = std::size_t{1} << power;

  std::array<std::array<Real, kBlock>, kLevels> level{};
  const auto add = [](std::array<Real, kBlock>& to, const Real* from) {
    for (std::size_t k = 0; k < kBlock; ++k) to[k] = to[k] + from[k];
  };
  std::size_t step = 0;
  while (step + stride <= steps) {
    for (std::size_t i = 0; i < stride; ++i, ++step) add(level[0], &terms[step * kBlock]);
    for (std::size_t j = 1; j < kLevels; ++j) {
      add(level[j], level[j - 1].data());
      level[j - 1] = {};
      if ((step & ((stride - 1) << (j * power))) != 0) break;
    }
  }
  for (; step < steps; ++step) add(level[0], &terms[step * kBlock]);
  for (std::size_t j = 1; j < kLevels; ++j) add(level[0], level[j].data());

  std::array<Real, kLanes> lanes;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    lanes[lane] = level[0][lane];
    for (std::size_t v = steps * kRegisters; v < vectors; ++v) lanes[lane] = lanes[lane] + terms[v * kLanes + lane];
    for (std::size_t k = 1; k < kRegisters; ++k) lanes[lane] = lanes[lane] + level[0][k * kLanes + lane];
  }
  Real total(0.0f);
  for (std::size_t i = vectors * kLanes; i < terms.size(); ++i) total = total + terms[i];
  for (const Real& lane : lanes) total = total + lane;
  return total;
}

// Thread k of 256 adds terms k, k + 256, ...; each warp of 32 is folded by shuffles, and a last warp folds the 8 sums.
template <class Real>
Real sum_gpu_tree(std::span<const Real> terms) {
  constexpr std::size_t kThreads = 256, kWarp = 32, kWarps = kThreads / kWarp;
  std::array<Real, kThreads> threads{};
  for (std::size_t i = 0; i < terms.size(); ++i) threads[i % kThreads] = threads[i % kThreads] + terms[i];
  std::array<Real, kWarps> warps;
  for (std::size_t w = 0; w < kWarps; ++w) warps[w] = fold_halves(std::span<Real>(threads).subspan(w * kWarp, kWarp));
  return fold_halves(std::span<Real>(warps));
}

// NumPy's pairwise sum: up to 128 terms, term i goes to accumulator i mod 8, the accumulators are added in a tree of
// neighbours, and what is left over comes last; above, halves that are multiples of 8.
template <class Real>
Real sum_numpy(std::span<const Real> terms) {
  constexpr std::size_t kLanes = 8, kBlock = 128;
  if (terms.size() < kLanes) return sum_sequential(terms);
  if (terms.size() > kBlock) {
    const std::size_t half = terms.size() / 2 / kLanes * kLanes;
    return sum_numpy(terms.first(half)) + sum_numpy(terms.subspan(half));
  }
  std::array<Real, kLanes> lanes;
  for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = terms[lane];
  std::size_t i = kLanes;
  for (; i + kLanes <= terms.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = lanes[lane] + terms[i + lane];
  }
  Real total = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  for (; i < terms.size(); ++i) total = total + terms[i];
  return total;
}

// Pieces of ceil(count / splits) neighbours; splits >= 1.
template <class Real>
Real sum_split_k(std::span<const Real> terms, std::uint64_t splits) {
  if (splits >= terms.size()) return sum_sequential(terms);  // pieces of one
  const std::size_t piece = (terms.size() + splits - 1) / splits;
  Real total = sum_sequential(terms.first(piece));
  for (std::size_t first = piece; first < terms.size(); first += piece) {
    total = total + sum_sequential(terms.subspan(first, std::min(piece, terms.size() - first)));
  }
  return total;
}

// A permutation of [0, count), count < 2^32, that depends on the seed and the count alone: Fisher and Yates' shuffle by
// splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014), the same on every
// machine.
std::vector<std::uint32_t> permutation_of(std::size_t count, std::uint64_t seed);

template <class Real>
Real sum_random(std::span<const Real> terms, std::uint64_t seed) {
  if (terms.empty()) return Real(0.0f);
  const std::vector<std::uint32_t> permutation = permutation_of(terms.size(), seed);
  Real total = terms[permutation[0]];
  for (std::size_t i = 1; i < terms.size(); ++i) total = total + terms[permutation[i]];
  return total;
}

// The sum of the terms in the given order; 0 where there is none.
template <class Real>
Real sum(const SumOrder& order, std::span<const Real> terms) {
  switch (order.kind) {
    case SumOrderKind::kPairwise:
      return sum_pairwise(terms);
    case SumOrderKind::kLanes8:
      return sum_lanes<8>(terms);
    case SumOrderKind::kLanes16:
      return sum_lanes<16>(terms);
    case SumOrderKind::kCascade:
      return sum_cascade(terms);
    case SumOrderKind::kGpuTree:
      return sum_gpu_tree(terms);
    case SumOrderKind::kNumpy:
      return sum_numpy(terms);
    case SumOrderKind::kSplitK:
      return sum_split_k(terms, order.parameter);
    case SumOrderKind::kRandom:
      return sum_random(terms, order.parameter);
    case SumOrderKind::kSequential:
      break;
  }
  return sum_sequential(terms);
}

}  // namespace tpce::sim
