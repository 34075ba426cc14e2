// SSSE3 and SSE4 have no fused multiply-add. Vectors of SVE have no length that is known here, so that a tile cannot be
// an array of them: NEON runs wherever SVE does, with the same bits.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#include "sim/train/matmul_kernels.h"

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "simd/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/train/matmul_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target, which includes this file once a target.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "simd/target_name.h"

HWY_BEFORE_NAMESPACE();
namespace tpce::sim::HWY_NAMESPACE {

// The step's part of `count` panels. A copy of a length that the compiler knows is a few of this target's own moves.
template <std::int64_t kWidth>
void CopyStep(const float* from, std::int64_t count, std::int64_t panel_size, float* to) {
  for (std::int64_t i = 0; i < count; ++i) std::memcpy(to + i * panel_size, from + i * kWidth, kWidth * sizeof(float));
}

// Step by step, so that memory is read in its order.
template <std::int64_t kWidth>
void CopyPanels(const Source& source, std::span<const Panel> panels, float* to) {
  const Panel& last = panels.back();
  const auto whole = static_cast<std::int64_t>(panels.size()) - (last.count < kWidth ? 1 : 0);
  float* last_panel = to + whole * source.depth * kWidth;
  for (std::int64_t k = 0; k < source.depth; ++k) {
    const float* from = source.from + k * source.step_stride;
    CopyStep<kWidth>(from, whole, source.depth * kWidth, to + k * kWidth);
    if (last.count == kWidth) continue;
    float* out = last_panel + k * last.width;
    for (std::int64_t i = 0; i < last.count; ++i) out[i] = from[last.first + i];
    for (std::int64_t i = last.count; i < last.width; ++i) out[i] = 0.0f;
  }
}

template <std::int64_t kRows, std::int64_t kColumns>
void Copy(const Source& source, std::span<const Panel> panels, float* to) {
  if (panels.front().width == kRows) {
    CopyPanels<kRows>(source, panels, to);
  } else if (panels.front().width == kColumns) {
    CopyPanels<kColumns>(source, panels, to);
  } else {
    CopyPanels<kColumns / 2>(source, panels, to);
  }
}

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

// Highway's MulAdd rounds twice on its portable targets.
template <int kColumns>
void MultiplyTile(const Tile& tile) {
  constexpr int kRows = 4;
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kColumns; ++j) {
      float& c = tile.c[i * tile.c_stride + j];
      float sum = tile.from_zero ? 0.0f : c;
      for (std::int64_t k = 0; k < tile.depth; ++k) {
        sum = std::fma(tile.a[k * kRows + i], tile.b[k * kColumns + j], sum);
      }
      c = sum;
    }
  }
}

void Transpose(const Source& source, const Panel& panel, float* to) {
  for (std::int64_t i = 0; i < panel.count; ++i) {
    for (std::int64_t k = 0; k < source.depth; ++k) {
      to[k * panel.width + i] = source.from[i * source.line_stride + k];
    }
  }
}

MatmulKernels MakeKernels() { return {"portable", 4, 8, &MultiplyTile<8>, &MultiplyTile<4>, &Copy<4, 8>, &Transpose}; }

#else

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// With 32 registers, 24 accumulators, two vectors of b and one of a; with 16, 12 accumulators.
constexpr int kRows = HWY_TARGET == HWY_AVX2 ? 6 : 12;
constexpr std::int64_t kLanes = HWY_LANES(float);

#if defined(__clang__)
#define TPCE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define TPCE_UNROLL _Pragma("GCC unroll 16")
#endif

template <int kVectors>
void MultiplyTile(const Tile& tile) {
  const D d;
  V sum[kRows][kVectors];
  TPCE_UNROLL for (int i = 0; i < kRows; ++i) {
    TPCE_UNROLL for (int v = 0; v < kVectors; ++v) {
      sum[i][v] = tile.from_zero ? hn::Zero(d) : hn::LoadU(d, tile.c + i * tile.c_stride + v * kLanes);
    }
  }
  // c comes from far away, and is wanted at the end.
  TPCE_UNROLL for (int i = 0; i < kRows; ++i) {
    TPCE_UNROLL for (int v = 0; v < kVectors; ++v) hwy::Prefetch(tile.c + i * tile.c_stride + v * kLanes);
  }
  const float* HWY_RESTRICT a = tile.a;
  const float* HWY_RESTRICT b = tile.b;
  for (std::int64_t k = 0; k < tile.depth; ++k, a += kRows, b += kVectors * kLanes) {
    V row[kVectors];
    TPCE_UNROLL for (int v = 0; v < kVectors; ++v) row[v] = hn::LoadU(d, b + v * kLanes);
    TPCE_UNROLL for (int i = 0; i < kRows; ++i) {
      const V x = hn::Set(d, a[i]);
      TPCE_UNROLL for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(x, row[v], sum[i][v]);
    }
  }
  TPCE_UNROLL for (int i = 0; i < kRows; ++i) {
    TPCE_UNROLL for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(sum[i][v], d, tile.c + i * tile.c_stride + v * kLanes);
    }
  }
}

// Squares of four by four in registers.
void Transpose(const Source& source, const Panel& panel, float* to) {
  const hn::FixedTag<float, 4> d;
  const hn::RebindToUnsigned<hn::RepartitionToWide<decltype(d)> > wide;
  std::int64_t i = 0;
  for (; i + 4 <= panel.count; i += 4) {
    const float* from = source.from + i * source.line_stride;
    std::int64_t k = 0;
    for (; k + 4 <= source.depth; k += 4) {
      const auto r0 = hn::LoadU(d, from + k);
      const auto r1 = hn::LoadU(d, from + k + source.line_stride);
      const auto r2 = hn::LoadU(d, from + k + 2 * source.line_stride);
      const auto r3 = hn::LoadU(d, from + k + 3 * source.line_stride);
      const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, r0, r1));
      const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, r2, r3));
      const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(d, r0, r1));
      const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(d, r2, r3));
      float* out = to + k * panel.width + i;
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, low01, low23)), d, out);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23)), d, out + panel.width);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, high01, high23)), d, out + 2 * panel.width);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23)), d, out + 3 * panel.width);
    }
    for (; k < source.depth; ++k) {
      for (int line = 0; line < 4; ++line) to[k * panel.width + i + line] = from[line * source.line_stride + k];
    }
  }
  for (; i < panel.count; ++i) {
    for (std::int64_t k = 0; k < source.depth; ++k) to[k * panel.width + i] = source.from[i * source.line_stride + k];
  }
}

MatmulKernels MakeKernels() {
  return {simd::target_name(HWY_TARGET), kRows,     2 * kLanes, &MultiplyTile<2>, &MultiplyTile<1>,
          &Copy<kRows, 2 * kLanes>,      &Transpose};
}

#endif

}  // namespace tpce::sim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tpce::sim {

namespace {

struct Compiled {
  std::int64_t target;
  MatmulKernels (*make)();
};

constexpr Compiled kCompiled[] = {
#include "simd/compiled_targets.inc"
};

}  // namespace

std::vector<MatmulKernels> matmul_targets() {
  std::vector<MatmulKernels> found;
  for (const Compiled& compiled : kCompiled) {
    if ((hwy::SupportedTargets() & compiled.target) != 0) found.push_back(compiled.make());
  }
  return found;
}

MatmulKernels matmul_kernels() {
  constexpr const char* kForced = "TPCE_TARGET";
  const std::vector<MatmulKernels> here = matmul_targets();
  const char* forced = std::getenv(kForced);
  if (forced == nullptr) return here.front();
  const std::string_view wanted = simd::kernels_for(forced, kForced).name;
  for (const MatmulKernels& kernels : here) {
    if (kernels.name == wanted) return kernels;
  }
  return here.front();
}

}  // namespace tpce::sim
#endif
