// What a loss computes. Options are one struct, so that an option that joins later changes no signature.
#pragma once

#include <cstdint>
#include <string_view>

namespace tpce {

enum class Reduction : std::uint8_t { kNone, kSum, kMean };

// "none", "sum" or "mean", as torch.nn.functional.cross_entropy spells them; throws std::invalid_argument otherwise.
Reduction reduction_from_name(std::string_view name);
std::string_view name_of(Reduction reduction);

// The mean of no valid row (every label is ignore_index).
enum class EmptyMean : std::uint8_t {
  kNan,   // as PyTorch
  kZero,  // a training step on padding alone adds nothing
};

// A row that has no loss: it holds NaN or +inf, its target included, or nothing above -inf.
enum class NonFiniteRow : std::uint8_t {
  kNan,    // loss and gradients of the row are NaN
  kError,  // std::invalid_argument that names the row
};

struct Options {
  // A row with this label is ignored: loss 0, gradients 0, logits not read. It may be a valid class.
  std::int64_t ignore_index = -100;
  Reduction reduction = Reduction::kMean;
  EmptyMean empty_mean = EmptyMean::kNan;
  NonFiniteRow non_finite_row = NonFiniteRow::kNan;
};

}  // namespace tpce
