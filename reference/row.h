// One row as the definitions see it: the target's logit apart, the others counted by value.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reference/truth.h"
#include "tpce/batch.h"
#include "tpce/options.h"

namespace tpce::reference {

// A finite logit and how many classes have it. -0 and +0 are one value.
struct Repeated {
  double value = 0.0;
  std::int64_t count = 0;
};

// The non-target logits of a row. Classes at -inf carry no mass and are left out.
struct Tally {
  std::vector<Repeated> distinct;  // ascending
  bool not_finite = false;         // NaN or +inf was seen; distinct is then empty
};
Tally tally_of(std::span<const double> non_targets);

// The rows of the case table (docs/numerics.md, section 5) that no exponential decides: NaN or +inf in the row, no mass
// beside the target, no mass at all. A target of -inf beside other mass is not one of them.
std::optional<RowTruth> case_without_exp(const Tally& others, double target, const Ratio& upstream);

// A value that is known without evaluation, rounded once to fp32.
Value exact_value(double value);

// Throws std::invalid_argument that names the argument, the row and the value where shards, labels or vocab do not fit
// together, where a shard is missing or given twice (a reference sees whole rows), or where a matrix is not on the
// host or not in memory as it says.
void check(const Batch& batch, const Options& options);

// The latter for one matrix, named.
void check_memory(const std::string& name, const ConstMatrix& matrix);

// Logits of one row in class order, [vocab], widened exactly.
std::vector<double> gather_row(const Batch& batch, std::int64_t row);

}  // namespace tpce::reference
