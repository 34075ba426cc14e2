// Checks among the ranks of a tensor-parallel group: a loss whose ranks disagree about the problem would be wrong, and
// one that only some of them refuse would never end.
#pragma once

#include "tpce/cross_entropy.h"

namespace tpce {

// check_batch() on every rank, and that the ranks fit: the same rows, labels, vocabulary, plan, options and
// rows_per_chunk, and each shard of the plan held by exactly one rank. Collective: one all_gather of
// 89 + 8 * (its shards) bytes a rank, before anything is computed. Throws CollectiveError, the same on every rank,
// which names the rank that differs or whose batch is refused.
// Labels on a device are not compared: to read them each rank would wait for its device before it asked for a kernel.
// No rank needs the label of another. Where they differ, a target on no shard, or on two, is refused after the merge; a
// row that any rank ignores is ignored on all; else loss and gradients are those of the one rank whose shard the label
// is in, on all ranks alike.
void check_ranks(const Batch& batch, const Options& options, const Runtime& runtime);

}  // namespace tpce
