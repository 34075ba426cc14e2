// Checks among the ranks of a tensor-parallel group: a loss whose ranks disagree about the problem would be wrong, and
// one that only some of them refuse would never end.
#pragma once

#include "tpce/cross_entropy.h"

namespace tpce {

// check_batch() on every rank, and that the ranks fit: the same rows, labels, vocabulary, plan, options and
// rows_per_chunk, and each shard of the plan held by exactly one rank. Collective: one all_gather of
// 89 + 8 * (its shards) bytes a rank, before anything is computed. Throws CollectiveError, the same on every rank,
// which names the rank that differs or whose batch is refused.
void check_ranks(const Batch& batch, const Options& options, const Runtime& runtime);

}  // namespace tpce
