// As in sim/train/matmul_kernels.cc, and for its reason.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#include "bench/fma_peak.h"

#include <stdexcept>
#include <string>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/fma_peak.cc"
#include <hwy/foreach_target.h>
// After foreach_target, which includes this file once a target.
#include <hwy/highway.h>

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

HWY_BEFORE_NAMESPACE();
namespace tpce::bench::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Twelve chains hide a latency of up to six cycles on two units.
std::int64_t FmaLoop(std::int64_t rounds) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  // Values that the compiler does not know, and another one for each chain: else it would do less.
  volatile float unknown = 1e-20f;
  const auto value = [&]() HWY_ATTR { return hn::Set(d, unknown); };
  const V x = value(), y = value();
  V s0 = value(), s1 = value(), s2 = value(), s3 = value(), s4 = value(), s5 = value();
  V s6 = value(), s7 = value(), s8 = value(), s9 = value(), s10 = value(), s11 = value();
  for (std::int64_t i = 0; i < rounds; ++i) {
    s0 = hn::MulAdd(x, y, s0);
    s1 = hn::MulAdd(x, y, s1);
    s2 = hn::MulAdd(x, y, s2);
    s3 = hn::MulAdd(x, y, s3);
    s4 = hn::MulAdd(x, y, s4);
    s5 = hn::MulAdd(x, y, s5);
    s6 = hn::MulAdd(x, y, s6);
    s7 = hn::MulAdd(x, y, s7);
    s8 = hn::MulAdd(x, y, s8);
    s9 = hn::MulAdd(x, y, s9);
    s10 = hn::MulAdd(x, y, s10);
    s11 = hn::MulAdd(x, y, s11);
  }
  V sum = hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), hn::Add(hn::Add(s4, s5), hn::Add(s6, s7)));
  sum = hn::Add(sum, hn::Add(hn::Add(s8, s9), hn::Add(s10, s11)));
  alignas(64) float lanes[HWY_LANES(float)];
  hn::StoreU(sum, d, lanes);
  // Never taken, but the compiler does not know.
  return lanes[0] > 1e30f ? 0 : 12 * static_cast<std::int64_t>(hn::Lanes(d));
}

}  // namespace tpce::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

#if HWY_ONCE
namespace tpce::bench {

FmaLoop fma_loop_for(std::string_view target) {
#if HWY_TARGETS & HWY_AVX3_DL
  if (target == hwy::TargetName(HWY_AVX3_DL)) return &N_AVX3_DL::FmaLoop;
#endif
#if HWY_TARGETS & HWY_AVX3
  if (target == hwy::TargetName(HWY_AVX3)) return &N_AVX3::FmaLoop;
#endif
#if HWY_TARGETS & HWY_AVX2
  if (target == hwy::TargetName(HWY_AVX2)) return &N_AVX2::FmaLoop;
#endif
#if HWY_TARGETS & HWY_NEON
  if (target == hwy::TargetName(HWY_NEON)) return &N_NEON::FmaLoop;
#endif
  throw std::invalid_argument("target: no multiply-add loop for '" + std::string(target) + "'");
}

}  // namespace tpce::bench
#endif
