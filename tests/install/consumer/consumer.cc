// Loss and gradient of one row with the installed library: at a margin of 20 the usual fp32 loss is exactly 0.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "tpce/cross_entropy.h"
#include "tpce/scalar_backend.h"

namespace {

constexpr float kLogits[] = {20.0f, 0.0f};
constexpr std::int64_t kVocab = 2;
constexpr std::int64_t kLabel = 0;

float loss_over(std::int64_t tp) {
  const tpce::ShardPlan plan = tpce::ShardPlan::even(kVocab, tp);
  const tpce::ConstMatrix logits = tpce::matrix_of(kLogits, 1, kVocab);
  float gradient[kVocab];
  const tpce::Matrix gradient_row = tpce::matrix_of(gradient, 1, kVocab);
  std::vector<tpce::Shard> shards;
  std::vector<tpce::Matrix> gradients;
  for (std::int64_t s = 0; s < tp; ++s) {
    shards.push_back({logits.column_range(plan.first_class(s), plan.width(s)), s});
    gradients.push_back(gradient_row.column_range(plan.first_class(s), plan.width(s)));
  }

  const tpce::Batch batch{plan, shards, tpce::Labels(&kLabel, 1), kVocab};
  tpce::ScalarBackend backend;
  tpce::SelfCommunicator self;
  tpce::Forward forward = tpce::cross_entropy_forward(batch, {}, {}, {backend, self});
  tpce::cross_entropy_backward(forward.saved, {}, gradients, {backend, self});
  std::printf("tp %d: loss %.9g, target gradient %.9g\n", static_cast<int>(tp), static_cast<double>(forward.loss.value),
              static_cast<double>(gradient[kLabel]));
  return forward.loss.value;
}

}  // namespace

int main() {
  const float one = loss_over(1);
  // log1p(exp(-20)) is 2.0611536e-9. Across tp the bits are equal.
  return one > 2.06115e-9f && one < 2.06116e-9f && one == loss_over(2) ? 0 : 1;
}
