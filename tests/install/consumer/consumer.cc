// Cuts a vocabulary into shards with the installed library.
#include <cstdio>

#include "tpce/shard_plan.h"

int main() {
  const tpce::ShardPlan plan = tpce::ShardPlan::even(50257, 8);
  for (std::int64_t shard = 0; shard < plan.tp(); ++shard) {
    std::printf("shard %d: classes from %d, %d of them\n", static_cast<int>(shard),
                static_cast<int>(plan.first_class(shard)), static_cast<int>(plan.width(shard)));
  }
  return plan.first_class(7) == 43981 && plan.width(7) == 6276 ? 0 : 1;
}
