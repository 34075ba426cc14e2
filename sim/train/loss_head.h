// What stands between the logits and their gradients while a network trains: the canonical loss, or a method that
// fails.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/train/parallel.h"
#include "sim/train/view.h"

namespace tpce::sim {

struct RowResult {
  float nll = 0.0f;
  bool collapsed = false;       // the loss is exactly 0
  bool without_target = false;  // the target's gradient is exactly 0
  double gradient_sum = 0.0;    // of the row's fp32 gradients in fp64, class after class; 0 in exact arithmetic
};

struct HeadResult {
  float loss = 0.0f;  // mean of the rows
  std::vector<RowResult> rows;
};

class LossHead {
 public:
  virtual ~LossHead() = default;
  // Overwrites logits [T, V] with the gradients of the mean loss. Labels [T] are in [0, V).
  virtual HeadResult evaluate(const View<float>& logits, std::span<const std::int32_t> labels, Executor& executor) = 0;
};

struct LossOptions {
  std::string method = "canonical";  // a name of methods()
  std::string precision = "fp32";    // a name of kPrecisions
  std::int64_t tp = 1;
};

// Throws std::invalid_argument: an unknown method or precision, one that the method has not, a tp out of range.
std::unique_ptr<LossHead> make_loss_head(const LossOptions& options);

// True where no bit of the loss depends on tp.
bool is_free_of_tp(const LossOptions& options);

}  // namespace tpce::sim
