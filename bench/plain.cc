// As in simd/kernels.cc, and for its reason.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)

#include "bench/plain.h"

#include <cmath>
#include <stdexcept>
#include <string>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/plain.cc"
#include <hwy/foreach_target.h>
// After foreach_target, which includes this file once a target.
#include <hwy/highway.h>

#include "simd/kernels-inl.h"
#include "tpce/matrix.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

HWY_BEFORE_NAMESPACE();
namespace tpce::simd::HWY_NAMESPACE {

// Calls body(vector, vector) on all elements [0, count), in any order, and on -inf in the lanes beyond them.
template <class T, class Body>
HWY_INLINE void ForEachPair(const T* p, std::int64_t count, Body&& body) {
  const D d;
  VF x0;
  VF x1;
  std::int64_t j = 0;
  for (; j + PairLanes() <= count; j += PairLanes()) {
    LoadPair(d, p + j, x0, x1);
    body(x0, x1);
  }
  if (j < count) {
    HWY_ALIGN T tail[2 * HWY_MAX_BYTES / sizeof(float)];
    std::fill(tail, tail + PairLanes(), MinusInfinity<T>());
    std::copy(p + j, p + count, tail);
    LoadPair(d, tail, x0, x1);
    body(x0, x1);
  }
}

// sum(exp(x - max)).
template <class T>
HWY_INLINE float PlainSum(const T* p, std::int64_t count, float max) {
  const D d;
  const VF shift = hn::Set(d, max);
  const VF clamp = hn::Set(d, -87.0f);
  const VF magic = hn::Set(d, exp_split_constants::kRoundMagic);
  VF sum = hn::Zero(d);
  ForEachPair(p, count, [&](VF x0, VF x1) HWY_ATTR {
    const VF y0 = RegisterExp(d, hn::Max(hn::Sub(x0, shift), clamp), magic);
    const VF y1 = RegisterExp(d, hn::Max(hn::Sub(x1, shift), clamp), magic);
    sum = hn::Add(sum, hn::Add(y0, y1));
  });
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

template <class T>
HWY_INLINE float PlainMax(const T* p, std::int64_t count, float start) {
  const D d;
  VF max = hn::Set(d, start);
  ForEachPair(p, count, [&](VF x0, VF x1) HWY_ATTR { max = hn::Max(max, hn::Max(x0, x1)); });
  return hn::GetLane(hn::MaxOfLanes(d, max));
}

float PlainTwoPass(DType dtype, const void* logits, std::int64_t count) {
  return visit_narrow_dtype(dtype, [&](auto element) HWY_ATTR {
    const auto* p = static_cast<const decltype(element)*>(logits);
    const float max = PlainMax(p, count, -1e30f);
    return max + std::log(PlainSum(p, count, max));
  });
}

float PlainOnline(DType dtype, const void* logits, std::int64_t count) {
  return visit_narrow_dtype(dtype, [&](auto element) HWY_ATTR {
    const auto* p = static_cast<const decltype(element)*>(logits);
    float max = -1e30f;
    float sum = 0.0f;
    for (std::int64_t first = 0; first < count; first += kBlock) {
      const std::int64_t size = std::min(kBlock, count - first);
      const float raised = PlainMax(p + first, size, max);
      sum = sum * std::exp(max - raised) + PlainSum(p + first, size, raised);
      max = raised;
    }
    return max + std::log(sum);
  });
}

std::uint32_t PlainRead(const void* data, std::int64_t bytes) {
  const DU du;
  const auto* words = static_cast<const std::uint32_t*>(data);
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(du));
  VU a = hn::Zero(du);
  VU b = hn::Zero(du);
  for (std::int64_t j = 0; j + 2 * lanes <= bytes / 4; j += 2 * lanes) {
    a = hn::Add(a, hn::LoadU(du, words + j));
    b = hn::Add(b, hn::LoadU(du, words + j + lanes));
  }
  return hn::GetLane(hn::SumOfLanes(du, hn::Add(a, b)));
}

}  // namespace tpce::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

#if HWY_ONCE
namespace tpce::bench {

PlainKernels plain_kernels_for(std::string_view target) {
#define TPCE_PLAIN(name) \
  if (target == #name) return {&simd::N_##name::PlainTwoPass, &simd::N_##name::PlainOnline, &simd::N_##name::PlainRead};
#if HWY_TARGETS & HWY_AVX3_DL
  TPCE_PLAIN(AVX3_DL)
#endif
#if HWY_TARGETS & HWY_AVX3
  TPCE_PLAIN(AVX3)
#endif
#if HWY_TARGETS & HWY_AVX2
  TPCE_PLAIN(AVX2)
#endif
#if HWY_TARGETS & HWY_SVE2_128
  TPCE_PLAIN(SVE2_128)
#endif
#if HWY_TARGETS & HWY_SVE_256
  TPCE_PLAIN(SVE_256)
#endif
#if HWY_TARGETS & HWY_SVE2
  TPCE_PLAIN(SVE2)
#endif
#if HWY_TARGETS & HWY_SVE
  TPCE_PLAIN(SVE)
#endif
#if HWY_TARGETS & HWY_NEON
  TPCE_PLAIN(NEON)
#endif
#undef TPCE_PLAIN
  throw std::invalid_argument("target: got '" + std::string(target) + "', for which there is no plain kernel");
}

}  // namespace tpce::bench
#endif
