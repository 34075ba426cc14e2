// The simulated methods beside what the real code returned (tests/data/peers/README.md): with the right order of sums
// they have its bits. exp and log are the C library's here and SLEEF's or MKL's there; both are within an ulp, and on
// these rows the losses and target gradients do not show the difference, while single gradients do.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "sim/methods/method.h"

namespace tpce::sim {
namespace {

constexpr std::size_t kRows = 60;

const io::SafetensorsFile& file() {
  static const io::SafetensorsFile opened(
      io::MappedFile(std::string(TPCE_TEST_DATA) + "/peers/margins_fp32.safetensors"));
  return opened;
}

template <class T>
std::span<const T> tensor(const std::string& name) {
  const io::Tensor found = file().tensor(name);
  return {static_cast<const T*>(found.data), static_cast<std::size_t>(found.elements())};
}

struct Simulated {
  std::string peer;
  std::string method;
  SumOrder classes;
  std::int64_t tp;
  Precision precision = Precision::kFp32;
};

struct Result {
  MethodOutput output;
  std::vector<double> size;  // Σ |dz_j| of each row
};

Result simulate(const Simulated& simulated) {
  const std::int64_t rows = kRows, vocab = 1024;
  const ShardPlan plan = ShardPlan::even(vocab, simulated.tp);
  const ConstMatrix logits = matrix_of(tensor<float>("logits").data(), rows, vocab);
  std::vector<float> gradient(kRows * 1024);
  const Matrix gradients = matrix_of(gradient.data(), rows, vocab);
  std::vector<Shard> shards;
  std::vector<Matrix> parts;
  for (std::int64_t s = 0; s < simulated.tp; ++s) {
    shards.push_back({logits.column_range(plan.first_class(s), plan.width(s)), s});
    parts.push_back(gradients.column_range(plan.first_class(s), plan.width(s)));
  }
  const Batch batch{plan, shards, Labels(tensor<std::int64_t>("labels").data(), rows), vocab};
  Options options;
  options.reduction = Reduction::kNone;
  Result result{run(method_from_name(simulated.method),
                    {batch, options, {simulated.classes, {}, {}}, {}, parts, simulated.precision}),
                {}};
  for (std::size_t i = 0; i < kRows; ++i) {
    double size = 0.0;
    for (std::size_t j = 0; j < 1024; ++j) size += std::abs(static_cast<double>(gradient[i * 1024 + j]));
    result.size.push_back(size);
  }
  return result;
}

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

// F.cross_entropy keeps one AVX2 register of 8 lanes, eager and compiled. torch.sum, which the vocab-parallel losses
// call, adds in a cascade. Megatron's fused form is compiled, as torch_compiled. Liger ran in Triton's interpreter,
// whose tl.sum is NumPy's and whose tl.exp is exp2 of x log2(e). Two ranks have one order.
const std::vector<Simulated> kSameBits{
    {"torch", "cross_entropy", SumOrder::kLanes8, 1},
    {"torch_compiled", "cross_entropy", SumOrder::kLanes8, 1},
    {"loss_parallel", "log_softmax", SumOrder::kCascade, 1},
    {"torchtitan_legacy", "log_softmax", SumOrder::kCascade, 1},
    {"torchtitan_legacy.tp2", "log_softmax", SumOrder::kCascade, 2},
    {"megatron", "megatron", SumOrder::kCascade, 1},
    {"megatron.tp2", "megatron", SumOrder::kCascade, 2},
    {"megatron_fused", "megatron_fused", SumOrder::kLanes8, 1},
    {"liger", "liger", SumOrder::kNumpy, 1, Precision::kFp32FastExp},
};

TEST(Peers, LossesAndTargetGradientsHaveTheSameBits) {
  for (const Simulated& simulated : kSameBits) {
    const Result ours = simulate(simulated);
    const auto loss = tensor<double>(simulated.peer + ".loss");
    const auto target_grad = tensor<float>(simulated.peer + ".target_grad");
    for (std::size_t i = 0; i < kRows; ++i) {
      EXPECT_EQ(bits_of(static_cast<float>(ours.output.nll[i])), bits_of(static_cast<float>(loss[i])))
          << simulated.peer << " row " << i;
      EXPECT_EQ(bits_of(static_cast<float>(ours.output.target_grad[i])), bits_of(target_grad[i]))
          << simulated.peer << " row " << i;
    }
  }
}

// So the orders are told apart by these rows, and the same bits mean something.
TEST(Peers, NoOtherOrderHasThoseBits) {
  for (Simulated simulated : kSameBits) {
    const SumOrder right = simulated.classes;
    const auto loss = tensor<double>(simulated.peer + ".loss");
    for (const SumOrderInfo& order : kSumOrders) {
      if (order.order == right) continue;
      simulated.classes = order.order;
      const Result ours = simulate(simulated);
      std::size_t same = 0;
      for (std::size_t i = 0; i < kRows; ++i) same += ours.output.nll[i] == static_cast<float>(loss[i]) ? 1 : 0;
      EXPECT_LT(same, kRows) << simulated.peer << " " << order.name;
    }
  }
}

// Nor has Liger's method with the C library's exp all of them.
TEST(Peers, LigerIsToldApartByItsExp) {
  const Result ours = simulate({"liger", "liger", SumOrder::kNumpy, 1, Precision::kFp32});
  const auto target_grad = tensor<float>("liger.target_grad");
  std::size_t same = 0;
  for (std::size_t i = 0; i < kRows; ++i) same += ours.output.target_grad[i] == static_cast<double>(target_grad[i]);
  EXPECT_LT(same, kRows);
}

// Single gradients may differ by an ulp of exp, at most 2^-23 of their size.
TEST(Peers, SumsOfGradientsDifferByTheUlpOfExp) {
  for (const Simulated& simulated : kSameBits) {
    const Result ours = simulate(simulated);
    const auto grad_sum = tensor<double>(simulated.peer + ".grad_sum");
    for (std::size_t i = 0; i < kRows; ++i) {
      EXPECT_NEAR(ours.output.grad_sum[i], grad_sum[i], ours.size[i] * 0x1p-23) << simulated.peer << " row " << i;
    }
  }
}

// The emulated softplus form has our sums and logs on these rows, so that its losses differ by at most an ulp of exp
// and one of log1p, each below 2^-23 of the loss. At margin 100, where SLEEF's exp has no subnormal left, its loss is 0
// while ours may be a subnormal.
TEST(Peers, SoftplusRecompute) {
  const Result ours = simulate({"", "softplus_recompute", SumOrder::kCascade, 1});
  const auto loss = tensor<double>("softplus_recompute_emulated.loss");
  const auto target_grad = tensor<float>("softplus_recompute_emulated.target_grad");
  const auto margin = tensor<double>("margin");
  for (std::size_t i = 0; i < kRows; ++i) {
    EXPECT_EQ(bits_of(static_cast<float>(ours.output.target_grad[i])), bits_of(target_grad[i])) << i;
    if (margin[i] < 90.0) {
      EXPECT_NEAR(static_cast<double>(ours.output.nll[i]), loss[i], 2 * 0x1p-23 * loss[i]) << i;
    } else {
      EXPECT_EQ(loss[i], 0.0) << i;
      EXPECT_LE(ours.output.nll[i], 0x1p-149f) << i;
    }
  }
}

}  // namespace
}  // namespace tpce::sim
