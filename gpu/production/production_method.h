// The losses in use as kernels on a device, to stand beside the order-free ones: the same names and formulas as the
// simulator's methods, in fp32 with the hardware's exponential, fused as a compiler fuses them. The shards of a row are
// on one device, and their three all-reduces are a small kernel; between devices they are NCCL's.
//
//   ProductionMethod method(device, ProductionForm::kSoftplusRecompute);
//   ProductionRun run{batch, -100, saved, queue};       // saved_bytes() and workspace_bytes() say how large
//   method.forward(run, nll);
//   method.backward(run, {}, gradients);                // the logits themselves: in place
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "gpu/device.h"

namespace tpce::gpu {

enum class ProductionForm : std::uint8_t { kLogSoftmax, kSoftplusRecompute };
inline constexpr ProductionForm kProductionForms[] = {ProductionForm::kLogSoftmax, ProductionForm::kSoftplusRecompute};

// That of the simulator's method.
std::string_view name_of(ProductionForm form);

// Rows on their way through forward and backward. Logits, labels and all other memory are at the device's place.
struct ProductionRun {
  const Batch& batch;
  std::int64_t ignore_index = -100;
  void* saved = nullptr;  // saved_bytes(), aligned to 256: forward() writes it, backward() reads it
  Queue queue;            // with a workspace of workspace_bytes()
};

// Shapes are the caller's to see to, as they are of a Backend; nothing is allocated, and nothing waits for the queue.
// A row whose label is ignore_index is not read: its loss and gradients are 0. A label that is no class, NaN, +inf, or
// a row with nothing above -inf make their row NaN, and nothing tells of them.
class ProductionMethod {
 public:
  ProductionMethod(Device& device, ProductionForm form) : device_(device), form_(form) {}

  std::string_view name() const { return name_of(form_); }

  // log_softmax: fp32 log-probabilities of every logit. softplus_recompute: four fp32 numbers a row, beside the logits,
  // which must stay as they are until backward().
  std::size_t saved_bytes(const Batch& batch) const;
  std::size_t workspace_bytes(const Batch& batch) const;

  // nll: [T]. Throws std::invalid_argument where the batch holds no shard, logits are fp64, labels are elsewhere, or
  // the workspace is too small.
  void forward(const ProductionRun& run, float* nll);

  // One matrix a shard, [T, shard width], fp32 or of the logits' type; padding gets 0. A gradient may be the shard's
  // logits (same data, stride and type) and, of log_softmax, its log_probabilities(). Throws std::invalid_argument
  // where a gradient is of another type.
  void backward(const ProductionRun& run, const Upstream& upstream, std::span<const Matrix> gradients);

  // Those of a shard of the batch, by its position there, in run.saved.
  Matrix log_probabilities(const ProductionRun& run, std::size_t shard) const;

 private:
  struct Planes;

  void check(const ProductionRun& run) const;
  Planes planes_of(const ProductionRun& run) const;
  void all_reduce(const ProductionRun& run, const float* of_rank, float* into, AllReduceArguments::Op op);

  template <class Arguments>
  void launch(const Arguments& arguments, std::int64_t blocks, Queue queue) {
    device_.launch(KernelOf<Arguments>::value, {blocks, Arguments::kSharedBytes}, &arguments, queue);
  }

  Device& device_;
  ProductionForm form_;
};

}  // namespace tpce::gpu
