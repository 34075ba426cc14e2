// A whole batch by one of the three precisions: losses and target gradients of every row, the reduced loss, gradients.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reference/truth.h"
#include "tpce/batch.h"
#include "tpce/options.h"

namespace tpce::reference {

// Upstream gradient of the row losses: row i has per_row[i] / denominator, or scalar / denominator where per_row is
// empty.
struct Upstream {
  std::span<const double> per_row;  // [T] or empty
  double scalar = 1.0;
  std::int64_t denominator = 1;  // at least 1

  Ratio at(std::int64_t row) const {
    return {per_row.empty() ? scalar : per_row[static_cast<std::size_t>(row)], denominator};
  }
};

// The upstream gradient 1 of the reduced loss, as each row sees it: 1 for none and sum, exactly 1 / (valid rows) for
// mean.
Upstream upstream_of_reduction(const Labels& labels, const Options& options);

// A batch with every shard of every row, on the host, in any of the four element types; the views must outlive its use.
struct Inputs {
  const Batch& batch;
  Options options;
  Upstream upstream;
};

struct Evaluation {
  std::vector<RowTruth> rows;    // [T]
  std::int64_t valid_rows = 0;   // rows whose label is not ignore_index
  std::optional<Value> reduced;  // sum or mean of the exact losses; none under Reduction::kNone
};

// Rows are spread over method.threads workers; results do not depend on how many.
// Throws std::invalid_argument that names the argument, the row and the value: what check(batch, options) and
// check(method) refuse, per_row of a wrong length, and, with NonFiniteRow::kError, the first row that holds NaN or
// +inf, or nothing above -inf.
// row_done is called after each row, by any worker, never by two at a time.
Evaluation evaluate(const Inputs& inputs, const Method& method, const std::function<void()>& row_done = {});

// One line for each value that the certified precision could not decide: "row 3: lse not decided with 8192 bits".
std::vector<std::string> undecided(const Evaluation& evaluation, const Method& method);

// Gradients of one row, one for each column of the plan; columns from vocab on have +0. Errors as evaluate.
std::vector<Value> row_gradient(const Inputs& inputs, const Method& method, std::int64_t row);

// Gradients of all rows into out [T, columns], on the host, any element type: fp64 and fp32 rounded once; bf16 and fp16
// rounded from fp32, as docs/numerics.md, section 5, defines them. Returns how many values are not certified.
std::int64_t gradient(const Inputs& inputs, const Method& method, const Matrix& out);

}  // namespace tpce::reference
