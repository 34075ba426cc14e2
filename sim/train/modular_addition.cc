#include "sim/train/modular_addition.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "sim/train/mlp.h"
#include "sim/train/random.h"

namespace tpce::sim {

std::int64_t pairs_trained_on(std::int64_t prime, double train_share) {
  return std::llround(train_share * static_cast<double>(prime * prime));
}

ModularAddition::ModularAddition(const TrainConfig& config) : prime_(config.prime), hidden_(config.hidden) {
  const std::int64_t pairs = prime_ * prime_;
  std::vector<std::int64_t> order(static_cast<std::size_t>(pairs));
  std::iota(order.begin(), order.end(), 0);
  const Philox random(static_cast<std::uint64_t>(config.seed), Stream::kSplit);
  for (std::int64_t i = pairs - 1; i > 0; --i) {
    const std::int64_t j = random.below(static_cast<std::uint64_t>(i), i + 1);
    std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(j)]);
  }
  const auto train = static_cast<std::size_t>(pairs_trained_on(prime_, config.train_share));
  train_.per_row = test_.per_row = 2;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int64_t a = order[i] / prime_, b = order[i] % prime_;
    Examples& into = i < train ? train_ : test_;
    into.tokens.push_back(static_cast<std::int32_t>(a));
    into.tokens.push_back(static_cast<std::int32_t>(prime_ + b));
    into.labels.push_back(static_cast<std::int32_t>((a + b) % prime_));
  }
}

std::unique_ptr<Model<float>> ModularAddition::model() const {
  return std::make_unique<Mlp<float>>(MlpShape{2 * prime_, hidden_, prime_});
}

}  // namespace tpce::sim
