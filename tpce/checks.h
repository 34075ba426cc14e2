// Argument checks of the driver. Each throws std::invalid_argument with one line that names the argument, the row where
// there is one, the value and what was expected.
#pragma once

#include <span>

#include "tpce/cross_entropy.h"

namespace tpce {

// Shapes, places and types of the batch, and every label, as far as this rank sees them; rank_checks.h has the rest.
void check_batch(const Batch& batch, const Options& options, const Backend& backend, const Communicator& communicator);

// Every label of the batch, whose shards are not looked at.
void check_labels(const Batch& batch, const Options& options, const Backend& backend);

// The alignment of the queue's workspace.
void check_workspace(const Queue& queue);

// The rows that cannot have a loss, after the partials of all ranks were merged, so that all come here with one sum.
// Throws CollectiveError, the same on every rank. Where it has to show a label that is on a device it waits for the
// queue, and gathers what the ranks have there.
void check_rows(const LossSum& sum, const Batch& batch, const Options& options, const Runtime& runtime);

struct GradientCheck {
  bool in_place = false;            // one of them is the logits themselves
  std::int64_t pairs_compared = 0;  // none where the order of their addresses shows that no two overlap
};

// Shapes, types and overlaps of the gradients.
GradientCheck check_gradients(const Batch& batch, std::span<const Matrix> gradients, const Backend& backend);

}  // namespace tpce
