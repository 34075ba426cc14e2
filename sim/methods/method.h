// The losses as real code computes them, in any precision: one class a method, found by name.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "sim/methods/collective.h"
#include "sim/methods/memory_ledger.h"
#include "sim/methods/row.h"
#include "sim/order/reduction_order.h"
#include "sim/precision/precision.h"
#include "tpce/backend.h"
#include "tpce/batch.h"
#include "tpce/options.h"

namespace tpce::sim {

// What a method's bits come from, beside the logits and the target: to vary what it does not read varies nothing.
struct Reads {
  bool plan = true;     // which rank has which classes
  bool classes = true;  // the order of the sum over a rank's classes
  bool ranks = true;    // that of an all-reduce, and with it the row's place in the batch
};

class Method {
 public:
  virtual ~Method() = default;
  virtual std::string_view name() const = 0;
  // One line for help texts and tables.
  virtual std::string_view summary() const = 0;
  // True where the method knows no ranks: run() then refuses a plan of tp > 1.
  virtual bool one_rank_only() const { return false; }
  // False where run() refuses the precision.
  virtual bool supports(Precision) const { return true; }
  // False where the loss is another function than -log softmax, which no certified value stands beside.
  virtual bool is_softmax() const { return true; }
  // Of the row, in evaluate().
  virtual Reads reads() const { return {}; }
  // True where no bit depends on an order or on tp; run() then adds the rows without an order too.
  virtual bool is_order_free() const { return false; }
  // The row's loss; its gradient, times upstream, goes to gradient [vocab] unless that is empty. The logits come in
  // fp32, which every number of the narrower formats is; the results are numbers of the precision, exact in fp64.
  // Thread-safe.
  virtual double evaluate(Precision precision, const Row<Fp32>& row, double upstream,
                          std::span<double> gradient) const = 0;
  // In the order of time; none in backward unless what says so.
  virtual std::vector<Collective> collectives(const Problem& problem) const = 0;
  virtual MemoryLedger ledger(const Problem& problem) const = 0;
};

// Every method, in the order of tables.
std::span<const Method* const> methods();

// Throws std::invalid_argument that lists the names.
const Method& method_from_name(std::string_view name);

struct MethodInput {
  // Holds every shard of its plan, in any order; shard s is rank s. Logits are fp32, bf16 or fp16, on the host.
  const Batch& batch;
  Options options = {};
  ReductionOrder order = {};
  Upstream upstream = {};
  // One [T, width] for each shard of the batch, in its order, or none where only the outputs below are wanted. Padding
  // gets 0. A matrix may be the shard's logits themselves.
  std::span<const Matrix> gradients = {};
  Precision precision = Precision::kFp32;
};

// Numbers of the precision, exact in fp64. Every NaN, that of the gradients too, is canonical_nan().
struct MethodOutput {
  std::vector<double> nll;          // [T]; 0 where the row is ignored
  std::vector<double> target_grad;  // [T]; 0 where the row is ignored
  std::vector<double> grad_sum;     // [T]; the fp64 sum of the row's gradients, class after class
  // Sum or mean over the rows, in order.rows, ignored rows adding 0; absent with reduction none. It and the norm are
  // taken in fp32, as trainers do with narrower numbers too, and in fp64 where that is the precision.
  std::optional<double> loss;
  // Norm of the gradient of the logits: each rank adds squares in order.classes and rows in order.rows; then an
  // all-reduce in order.ranks and a square root, as torch.nn.utils.clip_grad_norm_ does on shards.
  double grad_norm = 0.0;
  std::int64_t valid_rows = 0;
};

// Throws std::invalid_argument, listing those that it supports, where the method does not support the precision.
void check_precision(const Method& method, Precision precision);

// Throws std::invalid_argument where logits are of a type that no method of a trainer takes: fp64. Before what would
// name the canonical algorithm for it.
void check_logits_dtype(const Batch& batch, std::string_view method);

// Runs the method on every row. An ignored row's logits are not read. Throws std::invalid_argument as
// cross_entropy_forward does (tpce/cross_entropy.h), where a method of one rank gets a plan of more, and where the
// method does not support the precision.
MethodOutput run(const Method& method, const MethodInput& input);

}  // namespace tpce::sim
