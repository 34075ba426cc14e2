// SSSE3 and SSE4 have no fused multiply-add, and Highway's MulAdd rounds twice on them: their bits would differ.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)

#include <stdexcept>
#include <string>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd/kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target, which includes this file once a target.
#include <hwy/highway.h>

#include "simd/kernels-inl.h"
#include "simd/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace tpce::simd::HWY_NAMESPACE {

static_assert(static_cast<int>(DType::kFloat32) == 0 && static_cast<int>(DType::kFloat64) == 1 &&
              static_cast<int>(DType::kBFloat16) == 2 && static_cast<int>(DType::kFloat16) == 3);

Kernels MakeKernels() {
  return {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
    .name = "portable",
#else
    .name = hwy::TargetName(HWY_TARGET),
#endif
    .partial = {&PartialOfRow<float>, nullptr, &PartialOfRow<BFloat16>, &PartialOfRow<Float16>},
    .gradient = {{&GradientOfRow<float, float>, &GradientOfRow<float, double>, &GradientOfRow<float, BFloat16>,
                  &GradientOfRow<float, Float16>},
                 {},
                 {&GradientOfRow<BFloat16, float>, &GradientOfRow<BFloat16, double>, &GradientOfRow<BFloat16, BFloat16>,
                  &GradientOfRow<BFloat16, Float16>},
                 {&GradientOfRow<Float16, float>, &GradientOfRow<Float16, double>, &GradientOfRow<Float16, BFloat16>,
                  &GradientOfRow<Float16, Float16>}},
    .finalize = &FinalizeRow, .row_gradient = &GradientScale,
  };
}

}  // namespace tpce::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tpce::simd {

namespace {

struct Compiled {
  std::int64_t target;
  Kernels (*make)();
};

// The targets of this build, best first. On Arm, Highway 1.0.3 gives clang the baseline alone, NEON.
constexpr Compiled kCompiled[] = {
#if HWY_TARGETS & HWY_AVX3_DL
    {HWY_AVX3_DL, &N_AVX3_DL::MakeKernels},
#endif
#if HWY_TARGETS & HWY_AVX3
    {HWY_AVX3, &N_AVX3::MakeKernels},
#endif
#if HWY_TARGETS & HWY_AVX2
    {HWY_AVX2, &N_AVX2::MakeKernels},
#endif
#if HWY_TARGETS & HWY_SVE2_128
    {HWY_SVE2_128, &N_SVE2_128::MakeKernels},
#endif
#if HWY_TARGETS & HWY_SVE_256
    {HWY_SVE_256, &N_SVE_256::MakeKernels},
#endif
#if HWY_TARGETS & HWY_SVE2
    {HWY_SVE2, &N_SVE2::MakeKernels},
#endif
#if HWY_TARGETS & HWY_SVE
    {HWY_SVE, &N_SVE::MakeKernels},
#endif
#if HWY_TARGETS & HWY_NEON
    {HWY_NEON, &N_NEON::MakeKernels},
#endif
#if HWY_TARGETS & HWY_EMU128
    {HWY_EMU128, &N_EMU128::MakeKernels},
#endif
#if HWY_TARGETS & HWY_SCALAR
    {HWY_SCALAR, &N_SCALAR::MakeKernels},
#endif
};

}  // namespace

std::vector<Target> targets() {
  std::vector<Target> found;
  for (const Compiled& compiled : kCompiled) {
    found.push_back({std::string(compiled.make().name), (hwy::SupportedTargets() & compiled.target) != 0});
  }
  return found;
}

Kernels kernels_for(std::string_view name, std::string_view argument) {
  std::string known;
  for (const Compiled& compiled : kCompiled) {
    if ((hwy::SupportedTargets() & compiled.target) == 0) continue;
    const Kernels kernels = compiled.make();
    if (name.empty() || name == kernels.name) return kernels;
    known += (known.empty() ? "" : ", ") + std::string(kernels.name);
  }
  throw std::invalid_argument(std::string(argument) + ": got '" + std::string(name) +
                              "', expected one that this processor runs: " + known);
}

}  // namespace tpce::simd
#endif
