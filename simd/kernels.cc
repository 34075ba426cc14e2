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
#include "simd/target_name.h"

HWY_BEFORE_NAMESPACE();
namespace tpce::simd::HWY_NAMESPACE {

static_assert(static_cast<int>(DType::kFloat32) == 0 && static_cast<int>(DType::kFloat64) == 1 &&
              static_cast<int>(DType::kBFloat16) == 2 && static_cast<int>(DType::kFloat16) == 3);

Kernels MakeKernels() {
  return {
      .name = target_name(HWY_TARGET),
      .partial = {&PartialOfRow<float>, nullptr, &PartialOfRow<BFloat16>, &PartialOfRow<Float16>},
      .gradient = {{&GradientOfRow<float, float>, &GradientOfRow<float, double>, &GradientOfRow<float, BFloat16>,
                    &GradientOfRow<float, Float16>},
                   {},
                   {&GradientOfRow<BFloat16, float>, &GradientOfRow<BFloat16, double>,
                    &GradientOfRow<BFloat16, BFloat16>, &GradientOfRow<BFloat16, Float16>},
                   {&GradientOfRow<Float16, float>, &GradientOfRow<Float16, double>, &GradientOfRow<Float16, BFloat16>,
                    &GradientOfRow<Float16, Float16>}},
      .finalize = &FinalizeRow,
      .row_gradient = &GradientScale,
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

constexpr Compiled kCompiled[] = {
#include "simd/compiled_targets.inc"
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
