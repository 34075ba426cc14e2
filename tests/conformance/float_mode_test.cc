// A caller that set flush-to-zero or another rounding mode gets the same bits, and its own mode back.
#include "tpce/float_mode.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <cstring>
#include <random>
#include <vector>

#include "simd/simd_backend.h"
#include "tpce/cross_entropy.h"
#include "tpce/scalar_backend.h"

namespace tpce {
namespace {

#if defined(__x86_64__)
using Mode = std::uint32_t;
Mode current_mode() { return _mm_getcsr(); }
void set_mode(Mode mode) { _mm_setcsr(mode); }
// Flush-to-zero with denormals-are-zero, each rounding mode, and division by zero and overflow trapping.
const std::vector<Mode> kModes = {0x9fc0, 0x3f80, 0x5f80, 0x7f80, 0x1980};
constexpr Mode kFlags = 0x3f;  // of exceptions, which stay
#elif defined(__aarch64__)
using Mode = std::uint64_t;
Mode current_mode() {
  Mode mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
void set_mode(Mode mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
// FZ with FZ16, which stays 0 where the processor has no fp16 arithmetic, and each rounding mode.
const std::vector<Mode> kModes = {(1 << 24) | (1 << 19), 1 << 22, 2 << 22, 3 << 22};
constexpr Mode kFlags = 0;
#endif

struct Results {
  std::vector<float> nll;
  std::vector<float> gradients;
  float loss = 0;
};

Results run(Backend& backend, Mode mode) {
  constexpr std::int64_t kRows = 40;
  constexpr std::int64_t kVocab = 3000;
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal(0, 12);
  std::vector<float> logits(kRows * kVocab);
  for (float& z : logits) z = normal(random);
  logits[5] = 1e-41f;
  logits[kVocab] = 100.0f;  // a loss and gradients that are subnormal
  std::vector<std::int32_t> labels(kRows, 0);
  const ShardPlan plan = ShardPlan::even(kVocab, 1);
  const std::vector<Shard> shards{{matrix_of<const float>(logits.data(), kRows, kVocab), 0}};
  Results results{std::vector<float>(kRows), std::vector<float>(logits.size()), 0};
  const std::vector<Matrix> gradients{matrix_of(results.gradients.data(), kRows, kVocab)};
  SelfCommunicator self;
  const Mode before = current_mode();
  set_mode(mode);
  const Mode taken = current_mode();
  Forward forward = cross_entropy_forward({plan, shards, Labels(labels.data(), kRows), kVocab}, {},
                                          {results.nll.data(), nullptr, nullptr, nullptr}, {backend, self});
  cross_entropy_backward(forward.saved, {}, gradients, {backend, self});
  const Mode after = current_mode();
  set_mode(before);
  EXPECT_EQ(after & ~kFlags, taken & ~kFlags);
  results.loss = forward.loss.value;
  return results;
}

TEST(FloatMode, DoesNotChangeABit) {
  ScalarBackend scalar;
  simd::SimdBackend one_thread({}, simd::make_tbb_executor(1));
  simd::SimdBackend three_threads({}, simd::make_tbb_executor(3));
  for (Backend* backend :
       {static_cast<Backend*>(&scalar), static_cast<Backend*>(&one_thread), static_cast<Backend*>(&three_threads)}) {
    const Results expected = run(scalar, current_mode());
    EXPECT_GT(expected.loss, 0.0f);
    for (const Mode mode : kModes) {
      const Results found = run(*backend, mode);
      EXPECT_EQ(std::memcmp(&expected.loss, &found.loss, sizeof(float)), 0) << std::hex << mode;
      EXPECT_EQ(expected.nll, found.nll) << std::hex << mode;
      EXPECT_EQ(std::memcmp(expected.gradients.data(), found.gradients.data(), found.gradients.size() * sizeof(float)),
                0)
          << std::hex << mode;
    }
  }
}

TEST(FloatMode, IsRestored) {
  const Mode before = current_mode();
  for (const Mode mode : kModes) {
    set_mode(mode);
    const Mode taken = current_mode();
    { const DefaultFloatMode scope; }
    const Mode after = current_mode();
    set_mode(before);
    EXPECT_NE(taken, before);
    EXPECT_EQ(after, taken);
  }
}

}  // namespace
}  // namespace tpce
