// Who computes loss, lse and gradient of some rows: a backend of the canonical algorithm, a method of the simulator, a
// precision of the reference, or a program's own, behind one interface, so that any two can be compared.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/truth.h"
#include "sim/methods/method.h"
#include "tpce/backend.h"

namespace tpce::sim {

// Rows of a file that may have more of them.
struct ParityRows {
  const Batch& batch;                   // every shard, on the host
  Options options;                      // of the whole file
  std::int64_t divisor = 1;             // of the reduced loss: with Reduction::kMean the valid rows of the file
  std::optional<DType> gradient_dtype;  // fp32, bf16 or fp16; none: no gradient is wanted
};

struct RowsResult {
  std::vector<float> loss;             // [T]
  std::vector<float> lse = {};         // [T]; empty from a method that has none
  Matrix gradient = {};                // [T, columns], of the reduced loss of the file; no data where none was wanted
  std::vector<std::byte> memory = {};  // of the gradient
  // For the reduced loss and the gradient norm of the file; of the canonical algorithm only, where parts merge.
  std::optional<LossSum> sum = {};
  BinnedSum squares = {};
  std::int64_t undecided = 0;  // values that the certified precision could not prove
  // Losses and gradient by one call that makes both, where there is such a call and a gradient is wanted.
  std::shared_ptr<const RowsResult> fused = {};
};

class Implementation {
 public:
  virtual ~Implementation() = default;
  virtual std::string name() const = 0;
  // Of the canonical algorithm: all that are give the same bits for every tp.
  virtual bool is_canonical() const { return false; }
  // False where a result for one tp is that for any.
  virtual bool knows_tp() const { return true; }
  // False where the loss is another function than -log softmax.
  virtual bool is_softmax() const { return true; }
  // Throws std::invalid_argument, without the number of a row in it, where the batch is not for this implementation.
  virtual RowsResult evaluate(const ParityRows& rows) = 0;
};

// For implementations elsewhere: a result with room for losses and, where it is wanted, the gradient; and the
// gradient's part of each shard, none where no gradient is wanted.
RowsResult with_room(const ParityRows& rows);
std::vector<Matrix> shards_of(const Matrix& gradient, const Batch& batch);

std::unique_ptr<Implementation> make_implementation(std::string name, std::unique_ptr<Backend> backend);
std::unique_ptr<Implementation> make_implementation(const Method& method);
// threads as in reference::Method.
std::unique_ptr<Implementation> make_implementation(reference::Precision precision, int threads);

}  // namespace tpce::sim
