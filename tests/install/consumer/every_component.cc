// Links every component: what one of them needs and the package does not find again shows here.
#include <cstdio>

#include "reference/evaluate.h"

int main() {
  const float logits[] = {20.0f, 0.0f};
  const std::int64_t label = 0;
  const tpce::ShardPlan plan = tpce::ShardPlan::even(2, 1);
  const tpce::Shard shard{tpce::matrix_of(logits, 1, 2), 0};
  const tpce::Batch batch{plan, {&shard, 1}, tpce::Labels(&label, 1), 2};
  const tpce::reference::Evaluation truth = tpce::reference::evaluate({batch, {}, {}}, {});
  const tpce::reference::Value& loss = truth.rows.front().loss;
  std::printf("loss %.17g, %s\n", loss.fp64, loss.certified ? "certified" : "not decided");
  return loss.certified ? 0 : 1;
}
