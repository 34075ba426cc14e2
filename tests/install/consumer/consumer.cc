// Loss and gradient of one row with the installed library: at a margin of 20 the usual fp32 loss is exactly 0.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "tpce/cross_entropy.h"
#include "tpce/scalar_backend.h"

namespace {

// The loss over tp shards of a row in which class 0 leads every other one by 20.
tpce::Loss loss_of(std::int64_t tp, std::int64_t vocab) {
  std::vector<float> logits(static_cast<std::size_t>(vocab), 0.0f);
  logits[0] = 20.0f;
  const std::int64_t label = 0;

  const tpce::ShardPlan plan = tpce::ShardPlan::even(vocab, tp);
  const tpce::ConstMatrix row = tpce::matrix_of<const float>(logits.data(), 1, vocab);
  std::vector<tpce::Shard> shards;
  for (std::int64_t s = 0; s < tp; ++s) {
    shards.push_back({row.column_range(plan.first_class(s), plan.width(s)), s});
  }
  const tpce::Batch batch{plan, shards, tpce::Labels(&label, 1), vocab};
  tpce::ScalarBackend backend;
  tpce::SelfCommunicator self;
  tpce::Forward forward = tpce::cross_entropy_forward(batch, {}, {}, {backend, self});

  std::vector<float> gradient(static_cast<std::size_t>(vocab));
  const tpce::Matrix gradient_row = tpce::matrix_of(gradient.data(), 1, vocab);
  std::vector<tpce::Matrix> gradients;
  for (std::int64_t s = 0; s < tp; ++s) {
    gradients.push_back(gradient_row.column_range(plan.first_class(s), plan.width(s)));
  }
  tpce::cross_entropy_backward(forward.saved, {}, gradients, {backend, self});
  std::printf("tp %d: loss %.9g, target gradient %.9g\n", static_cast<int>(tp), static_cast<double>(forward.loss.value),
              static_cast<double>(gradient[0]));
  return forward.loss;
}

}  // namespace

int main() {
  const float one = loss_of(1, 2).value;
  const float two = loss_of(2, 2).value;
  // log1p(exp(-20)) = 2.0611536e-9; the equality across tp is of bits.
  return one > 2.06115e-9f && one < 2.06116e-9f && one == two ? 0 : 1;
}
