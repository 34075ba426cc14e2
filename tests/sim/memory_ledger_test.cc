#include "sim/methods/memory_ledger.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "sim/methods/method.h"

namespace tpce::sim {
namespace {

// Llama 3's vocabulary, 16384 tokens, bf16 logits on 2 ranks: the problem of the published peaks.
constexpr Problem kPublished{16384, 128256, 2, DType::kBFloat16, Execution::kEager};

std::string gib(std::int64_t bytes) { return fmt::format("{:.2f}", static_cast<double>(bytes) / 0x1p30); }

MemoryLedger ledger(std::string_view method, Execution execution) {
  Problem problem = kPublished;
  problem.execution = execution;
  return method_from_name(method).ledger(problem);
}

TEST(MemoryLedger, ExplainsThePublishedPeaks) {
  EXPECT_EQ(gib(ledger("log_softmax", Execution::kEager).peak_bytes()), "15.66");
  EXPECT_EQ(gib(ledger("log_softmax", Execution::kCompiled).peak_bytes()), "7.83");
  EXPECT_EQ(gib(ledger("softplus_eager", Execution::kEager).peak_bytes()), "5.87");
  EXPECT_EQ(gib(ledger("softplus_recompute", Execution::kCompiled).peak_bytes()), "3.91");
}

// The tables of docs/memory.md, in bf16 tensors of [T, V_local]: an fp32 one is 2. What is left over are [T, 1]
// tensors, at most 6 fp32 ones, or one for each rank.
TEST(MemoryLedger, PhasesAreThoseOfTheDocumentation) {
  struct Documented {
    std::string_view method;
    Execution execution;
    std::vector<std::int64_t> phases;
  };
  const std::vector<Documented> table{
      {"log_softmax", Execution::kEager, {2, 4, 6, 6, 4, 6, 8, 8, 3}},
      {"log_softmax", Execution::kCompiled, {2, 4, 4, 4, 3}},
      {"softplus_eager", Execution::kEager, {2, 2, 2, 2, 3}},
      {"softplus_recompute", Execution::kEager, {3, 3, 3, 4}},
      {"softplus_recompute", Execution::kCompiled, {1, 2}},
      {"megatron", Execution::kEager, {2, 2, 2, 2, 3}},
      {"megatron_fused", Execution::kCompiled, {2, 2, 2, 2, 3}},
      {"transformer_engine", Execution::kCompiled, {0, 2, 2, 3}},
      {"flash_attention", Execution::kCompiled, {1, 1, 2}},
      {"liger", Execution::kCompiled, {0, 1, 1}},
      {"liger_vocab_parallel", Execution::kCompiled, {0, 2, 2, 3}},
      {"stablemax", Execution::kCompiled, {1, 2}},
      {"canonical", Execution::kCompiled, {1, 2}},
  };
  constexpr std::int64_t kUnit = 16384LL * 64128 * 2;
  for (const Documented& documented : table) {
    const MemoryLedger ledger = sim::ledger(documented.method, documented.execution);
    std::vector<std::int64_t> phases;
    for (const Phase& phase : ledger.phases) {
      phases.push_back(ledger.bytes(phase) / kUnit);
      EXPECT_LE(ledger.bytes(phase) % kUnit, 6 * 16384 * 4) << documented.method << ": " << phase.name;
    }
    EXPECT_EQ(phases, documented.phases) << documented.method;
  }
}

TEST(MemoryLedger, CountsTensorsByShape) {
  const MemoryLedger ledger{kPublished, {}, {}};
  EXPECT_EQ(ledger.bytes(HeldTensor{"", Shape::kLocalClasses, DType::kFloat32}), 16384LL * 64128 * 4);
  EXPECT_EQ(ledger.bytes(HeldTensor{"", Shape::kAllClasses, DType::kBFloat16}), 16384LL * 128256 * 2);
  EXPECT_EQ(ledger.bytes(HeldTensor{"", Shape::kOnePerRow, DType::kFloat32}), 16384LL * 4);
}

TEST(MemoryLedger, CutsAnUnevenVocabularyAsTheShardPlanDoes) {
  MemoryLedger ledger{kPublished, {}, {}};
  ledger.problem.vocab = 50257;
  ledger.problem.tp = 8;
  EXPECT_EQ(ledger.bytes(HeldTensor{"", Shape::kLocalClasses, DType::kBFloat16}),
            16384 * ShardPlan::even(50257, 8).width(0) * 2);
}

TEST(MemoryLedger, SaysWhichExecutionItDescribes) {
  EXPECT_EQ(ledger("log_softmax", Execution::kCompiled).problem.execution, Execution::kCompiled);
  EXPECT_EQ(ledger("cross_entropy", Execution::kCompiled).problem.execution, Execution::kEager);
}

TEST(MemoryLedger, TheCallersLogitsCountOnlyWhenAsked) {
  const MemoryLedger legacy = ledger("log_softmax", Execution::kEager);
  const Phase& cast = legacy.phases.front();
  const std::int64_t logits = 16384LL * 64128 * 2;
  EXPECT_EQ(legacy.bytes(cast, MemoryLedger::Count::kCaller), legacy.bytes(cast) + logits);
}

TEST(MemoryLedger, SavedForBackward) {
  const std::int64_t classes = 16384LL * 64128;
  EXPECT_EQ(ledger("log_softmax", Execution::kEager).saved_bytes(), classes * 4);
  EXPECT_EQ(ledger("softplus_eager", Execution::kEager).saved_bytes(), classes * 4);
  EXPECT_EQ(ledger("softplus_recompute", Execution::kEager).saved_bytes(), classes * 2 + 4 * 16384 * 4);
  EXPECT_EQ(ledger("all_gather_cross_entropy", Execution::kEager).saved_bytes(), 2 * classes * 4);
}

// What is saved is alive in every phase of backward until the gradient is made.
TEST(MemoryLedger, BackwardStartsFromWhatIsSaved) {
  for (const Method* method : methods()) {
    for (const Execution execution : {Execution::kEager, Execution::kCompiled}) {
      const MemoryLedger ledger = sim::ledger(method->name(), execution);
      const auto first = std::find_if(ledger.phases.begin(), ledger.phases.end(),
                                      [](const Phase& phase) { return phase.name.starts_with("backward"); });
      ASSERT_NE(first, ledger.phases.end()) << method->name();
      EXPECT_GE(ledger.bytes(*first), ledger.saved_bytes()) << method->name();
      for (const HeldTensor& saved : ledger.saved) {
        const auto held = std::count_if(first->live.begin(), first->live.end(),
                                        [&](const HeldTensor& live) { return live.name == saved.name; });
        EXPECT_EQ(held, 1) << method->name() << ": " << saved.name;
      }
    }
  }
}

// rows x vocab x bytes would leave 64 bits, and wrap to a small number.
TEST(MemoryLedger, ProblemsBeyondCountingAreRefused) {
  const Method& method = method_from_name("log_softmax");
  Problem problem{std::int64_t{1} << 32, std::int64_t{1} << 28, 1, DType::kFloat32, Execution::kEager};
  try {
    method.ledger(problem).peak_bytes();
    ADD_FAILURE() << "a size was given";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "rows x vocab: got 4294967296 x 268435456 on 1 ranks, expected at most 2^50 logits");
  }
  problem.vocab = std::int64_t{1} << 18;
  EXPECT_EQ(method.ledger(problem).peak_bytes(), std::int64_t{4} << 52);  // four fp32 tensors of 2^50
  problem.rows += 1;
  EXPECT_THROW(method.ledger(problem).peak_bytes(), std::invalid_argument);
}

}  // namespace
}  // namespace tpce::sim
