#include "sim/methods/online.h"

#include <algorithm>
#include <array>
#include <limits>

#include "sim/methods/evaluate_in.h"

namespace tpce::sim {
namespace {

// The running maximum and the sum of exp(z_j - maximum).
template <class Arithmetic>
struct Running {
  using Real = typename Arithmetic::Real;
  Real maximum = Real(-std::numeric_limits<float>::infinity());
  Real sum = Real(0.0f);

  void merge(const Running& other) {
    const Real larger = max_of(std::array{maximum, other.maximum});
    sum = sum * Arithmetic::exp(maximum - larger) + other.sum * Arithmetic::exp(other.maximum - larger);
    maximum = larger;
  }

  Real lse() const { return Arithmetic::log(sum) + maximum; }
};

template <class Arithmetic>
Running<Arithmetic> pass_over(std::span<const typename Arithmetic::Real> logits, std::size_t tile,
                              const SumOrder& order) {
  using Real = typename Arithmetic::Real;
  Running<Arithmetic> running;
  for (std::size_t first = 0; first < logits.size(); first += tile) {
    const std::span<const Real> here = logits.subspan(first, std::min(tile, logits.size() - first));
    const Real maximum = max_of(std::array{running.maximum, max_of(here)});
    std::vector<Real> terms;
    for (const Real& logit : here) terms.push_back(Arithmetic::exp(logit - maximum));
    running.sum = running.sum * Arithmetic::exp(running.maximum - maximum) + sum(order, std::span<const Real>(terms));
    running.maximum = maximum;
  }
  return running;
}

// Of each rank that has classes.
template <class Arithmetic>
std::vector<Running<Arithmetic>> pass_over_ranks(const Row<Arithmetic>& row, std::size_t tile) {
  std::vector<Running<Arithmetic>> ranks;
  for (std::int64_t rank = 0; rank < row.tp(); ++rank) {
    const auto part = row.part(row.logits, rank);
    if (!part.empty()) ranks.push_back(pass_over<Arithmetic>(part, tile, row.order.classes));
  }
  return ranks;
}

// torch.logsumexp over the ranks.
template <class Arithmetic>
typename Arithmetic::Real merged_lse(const std::vector<Running<Arithmetic>>& ranks) {
  using Real = typename Arithmetic::Real;
  std::vector<Real> lses;
  for (const auto& rank : ranks) lses.push_back(rank.lse());
  const Real maximum = max_of(lses);
  std::vector<Real> terms;
  for (const Real& lse : lses) terms.push_back(Arithmetic::exp(lse - maximum));
  return Arithmetic::log(sum_sequential(std::span<const Real>(terms))) + maximum;
}

template <class Arithmetic>
typename Arithmetic::Real flash_attention(const Row<Arithmetic>& row, std::size_t tile,
                                          typename Arithmetic::Real upstream,
                                          std::span<typename Arithmetic::Real> gradient) {
  using Real = typename Arithmetic::Real;
  const auto ranks = pass_over_ranks(row, tile);
  const Real lse = row.tp() == 1 ? ranks[0].lse() : merged_lse(ranks);
  for (std::size_t j = 0; j < gradient.size(); ++j) {
    const Real prob = Arithmetic::exp(row.logits[j] - lse);
    gradient[j] = (j == row.target_index() ? prob - Real(1.0f) : prob) * upstream;
  }
  return lse + row.all_reduce_owned(-row.logits[row.target_index()]);
}

// The other two, which keep maximum and sum apart.
template <class Arithmetic>
typename Arithmetic::Real two_numbers(const Row<Arithmetic>& row, std::size_t tile, typename Arithmetic::Real upstream,
                                      std::span<typename Arithmetic::Real> gradient, bool subtract_lse) {
  using Real = typename Arithmetic::Real;
  const auto ranks = pass_over_ranks(row, tile);
  Running<Arithmetic> all = ranks[0];
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) all.merge(ranks[rank]);
  for (std::size_t j = 0; j < gradient.size(); ++j) {
    const Real prob = Arithmetic::exp(row.logits[j] - all.maximum) / all.sum;
    gradient[j] = (j == row.target_index() ? prob - Real(1.0f) : prob) * upstream;
  }
  const Real target = row.logits[row.target_index()];
  return subtract_lse ? all.lse() - target : -(target - all.maximum - Arithmetic::log(all.sum));
}

}  // namespace

Online::Online(Form form) : Online(form, form == Form::kFlashAttention ? 16384 : 32768) {}

std::string_view Online::name() const {
  switch (form_) {
    case Form::kTransformerEngine:
      return "transformer_engine";
    case Form::kFlashAttention:
      return "flash_attention";
    case Form::kLiger:
      break;
  }
  return "liger";
}

std::string_view Online::summary() const {
  switch (form_) {
    case Form::kTransformerEngine:
      return "online softmax in tiles, ranks merged by maximum and sum";
    case Form::kFlashAttention:
      return "online softmax in tiles, ranks merged by their log-sum-exp";
    case Form::kLiger:
      break;
  }
  return "online softmax in tiles on one rank, gradient over the logits";
}

double Online::evaluate(Precision precision, const Row<Fp32>& row, double upstream, std::span<double> gradient) const {
  const std::size_t tile = static_cast<std::size_t>(tile_);
  return evaluate_in(precision, row, upstream, gradient, [&](const auto& in, auto scale, auto out) {
    return form_ == Form::kFlashAttention ? flash_attention(in, tile, scale, out)
                                          : two_numbers(in, tile, scale, out, form_ == Form::kLiger);
  });
}

std::vector<Collective> Online::collectives(const Problem&) const {
  switch (form_) {
    case Form::kTransformerEngine:
      return {{"maximum, sum of exp, target logit", CollectiveOp::kAllGather, 3}};
    case Form::kFlashAttention:
      return {{"log-sum-exp", CollectiveOp::kAllGather}, {"minus target logit", CollectiveOp::kSum}};
    case Form::kLiger:
      break;
  }
  return {};
}

MemoryLedger Online::ledger(const Problem& problem) const {
  const auto per_row = [](const char* name) { return HeldTensor{name, Shape::kOnePerRow, DType::kFloat32}; };
  const auto of_ranks = [](const char* name) { return HeldTensor{name, Shape::kOnePerRowAndRank, DType::kFloat32}; };
  const HeldTensor callers{"logits", Shape::kLocalClasses, problem.logits, Holder::kCaller};
  const HeldTensor gradient{"gradient", Shape::kLocalClasses, problem.logits};
  Problem compiled = problem;
  compiled.execution = Execution::kCompiled;
  switch (form_) {
    case Form::kTransformerEngine: {
      const HeldTensor wide{"gradient in fp32", Shape::kLocalClasses, DType::kFloat32};
      return {compiled,
              {
                  {"forward: online pass",
                   {callers, of_ranks("maxima"), of_ranks("sums of exp"), of_ranks("target logits")}},
                  {"forward: gradient",
                   {callers, of_ranks("maxima"), of_ranks("sums of exp"), of_ranks("target logits"), wide}},
                  {"backward: scale", {wide}},
                  {"backward: cast", {wide, gradient}},
              },
              {wide}};
    }
    case Form::kFlashAttention: {
      // Saved for backward, so the method holds them after the caller has let go.
      const HeldTensor logits{"logits", Shape::kLocalClasses, problem.logits};
      const HeldTensor lse = per_row("log-sum-exp");
      return {compiled,
              {
                  {"forward: online pass", {logits, lse}},
                  {"forward: merge", {logits, lse, of_ranks("log-sum-exps")}},
                  {"backward: gradient", {logits, lse, gradient}},
              },
              {logits, lse}};
    }
    case Form::kLiger:
      break;
  }
  const HeldTensor written{"gradient, over the logits", Shape::kLocalClasses, problem.logits};
  return {compiled,
          {{"forward: online pass", {callers}}, {"forward: gradient", {written}}, {"backward: scale", {written}}},
          {written}};
}

}  // namespace tpce::sim
