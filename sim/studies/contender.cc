#include "sim/studies/contender.h"

#include <utility>

#include "tpce/cross_entropy.h"
#include "tpce/scalar_backend.h"

namespace tpce::sim {
namespace {

// One row as a batch over tp even shards.
class RowBatch {
 public:
  RowBatch(std::span<const float> logits, std::int64_t target, std::int64_t tp)
      : plan_(ShardPlan::even(static_cast<std::int64_t>(logits.size()), tp)), target_(target) {
    const ConstMatrix matrix = matrix_of(logits.data(), 1, plan_.columns());
    for (std::int64_t s = 0; s < tp; ++s) {
      shards_.push_back({matrix.column_range(plan_.first_class(s), plan_.width(s)), s});
    }
  }
  RowBatch(const RowBatch&) = delete;

  Batch batch() const { return {plan_, shards_, Labels(&target_, 1), plan_.columns()}; }

  // The row's gradient, cut as the logits are.
  std::vector<Matrix> cut(std::vector<float>& gradient) const {
    const Matrix matrix = matrix_of(gradient.data(), 1, plan_.columns());
    std::vector<Matrix> parts;
    for (const Shard& shard : shards_) {
      parts.push_back(matrix.column_range(plan_.first_class(shard.index), plan_.width(shard.index)));
    }
    return parts;
  }

 private:
  ShardPlan plan_;
  std::int64_t target_;
  std::vector<Shard> shards_;
};

Options per_row_options() {
  Options options;
  options.reduction = Reduction::kNone;
  options.ignore_index = -1;  // no class, so that no row is ignored
  return options;
}

}  // namespace

Contender contender_of(const Method& method, std::int64_t tp, ReductionOrder order) {
  const std::int64_t ranks = method.one_rank_only() ? 1 : tp;
  return {std::string(method.name()), [&method, ranks, order](std::span<const float> logits, std::int64_t target) {
            const RowBatch row(logits, target, ranks);
            const Batch batch = row.batch();
            const MethodOutput output = run(method, {batch, per_row_options(), order});
            return RowValues{output.nll[0], output.target_grad[0], output.grad_sum[0]};
          }};
}

Contender canonical_contender(std::int64_t tp) {
  return {"canonical", [tp](std::span<const float> logits, std::int64_t target) {
            const RowBatch row(logits, target, tp);
            ScalarBackend backend;
            SelfCommunicator self;
            const Runtime runtime{backend, self};
            RowValues values;
            RowOutputs outputs;
            outputs.nll = &values.loss;
            Forward forward = cross_entropy_forward(row.batch(), per_row_options(), outputs, runtime);
            std::vector<float> gradient(logits.size());
            cross_entropy_backward(forward.saved, {}, row.cut(gradient), runtime);
            values.target_grad = gradient[static_cast<std::size_t>(target)];
            for (const float g : gradient) values.grad_sum += static_cast<double>(g);
            return values;
          }};
}

std::vector<Contender> all_contenders(std::int64_t tp, ReductionOrder order) {
  std::vector<Contender> all;
  for (const Method* method : methods()) all.push_back(contender_of(*method, tp, order));
  all.push_back(canonical_contender(tp));
  return all;
}

}  // namespace tpce::sim
