// Vector kernels, compiled once for every target by kernels.cc. Loops and tails are written once: a tail is copied to a
// full vector whose other lanes hold -inf, which adds nothing to a sum.
#if defined(TPCE_SIMD_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TPCE_SIMD_KERNELS_INL_H_
#undef TPCE_SIMD_KERNELS_INL_H_
#else
#define TPCE_SIMD_KERNELS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "simd/kernels.h"
#include "tpce/register_form.h"

HWY_BEFORE_NAMESPACE();
namespace tpce::simd::HWY_NAMESPACE {

template <class T>
RowPartial DefinitionOfRow(std::span<const RowLogits> row) {
  RowPartial partial;
  for (const RowLogits& stretch : row) {
    merge(partial, row_partial(static_cast<const T*>(stretch.logits), stretch.classes, stretch.target));
  }
  return partial;
}

// What is done once a row is scalar code; inlined here, its fused multiply-adds become the target's own instruction.
__attribute__((flatten)) HWY_ATTR inline FinalRow FinalizeRow(const RowPartial& partial) { return finalize(partial); }
__attribute__((flatten)) HWY_ATTR inline RowGradient GradientScale(const SavedRow& saved, double g) {
  return row_gradient(saved, g);
}

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

// Highway's MulAdd rounds twice on its portable targets, so the portable kernels are the definition itself.
template <class T>
RowPartial PartialOfRow(std::span<const RowLogits> row, BlockSkipping, ExpCache*) {
  return DefinitionOfRow<T>(row);
}

template <class T, class Out>
void GradientOfRow(const RowLogits& row, const RowGradient& gradient, void* gradients, BinnedSum* squares,
                   std::span<const CachedBlock>) {
  const auto* logits = static_cast<const T*>(row.logits);
  auto* out = static_cast<Out*>(gradients);
  const bool reads = gradient.kind == RowGradient::Kind::kGrid || gradient.kind == RowGradient::Kind::kHuge;
  for (std::int64_t j = 0; j < row.width; ++j) {
    const float dz = j >= row.classes  ? 0.0f
                     : j == row.target ? gradient.target
                                       : non_target_gradient(gradient, reads ? widen(logits[j]) : 0.0f);
    if (squares != nullptr) add_square(*squares, dz);
    if (out != nullptr) round_to(dz, &out[j]);
  }
}

#else

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<D>;
using DI = hn::RebindToSigned<D>;
using VF = hn::Vec<D>;
using VU = hn::Vec<DU>;
using VI = hn::Vec<DI>;

// Elements of a block: 4 KiB of fp32, which stays in the first-level cache, and short enough that blocks of real logits
// differ in how many digits they need.
constexpr std::int64_t kBlock = 1024;

// Logits in this open range take the register form; below it, an exponential is nothing beside any row maximum above
// kLowest + 64.
constexpr float kLowest = -65000.0f;
constexpr float kHighest = 65536.0f;

HWY_INLINE VF LoadWide(D d, const float* p) { return hn::LoadU(d, p); }

HWY_INLINE VF LoadWide(D d, const BFloat16* p) {
  const hn::Rebind<std::uint16_t, D> d16;
  const DU du;
  return hn::BitCast(d,
                     hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p)))));
}

HWY_INLINE VF LoadWide(D d, const Float16* p) {
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
}

template <class T>
HWY_INLINE T MinusInfinity() {
  T value;
  round_to(-std::numeric_limits<float>::infinity(), &value);
  return value;
}

// Top bin of a logit in the register form's range: bin_of_logit() without the rest of exp_split().
HWY_INLINE std::int32_t BinOf(float logit) {
  const hn::CappedTag<float, 1> d;
  const auto magic = hn::Set(d, exp_split_constants::kRoundMagic);
  const auto t = hn::MulAdd(hn::Set(d, logit), hn::Set(d, exp_split_constants::kLog2e), magic);
  return bin_of_exponent(static_cast<std::int32_t>(hn::GetLane(hn::Sub(t, magic))));
}

// The smallest element of [0, count); NaN may be passed over.
template <class T>
HWY_INLINE float MinOf(const T* p, std::int64_t count) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  VF min = hn::Set(d, std::numeric_limits<float>::infinity());
  std::int64_t j = 0;
  for (; j + lanes <= count; j += lanes) min = hn::Min(min, LoadWide(d, p + j));
  float smallest = hn::GetLane(hn::MinOfLanes(d, min));
  for (; j < count; ++j) smallest = std::min(smallest, widen(p[j]));
  return smallest;
}

// How many vectors ForEachPair() makes of count elements.
HWY_INLINE std::int64_t VectorsOf(std::int64_t count) {
  const auto pair = 2 * static_cast<std::int64_t>(hn::Lanes(D()));
  return (count + pair - 1) / pair * 2;
}

// Calls body(vector, vector) on all elements [0, count), in any order, and on -inf in the lanes beyond them.
template <class T, class Body>
HWY_INLINE void ForEachPair(const T* p, std::int64_t count, Body&& body) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t j = 0;
  for (; j + 2 * lanes <= count; j += 2 * lanes) {
    if constexpr (std::is_same_v<T, BFloat16>) {
      // A 32-bit lane holds two bf16: a shift widens one, a mask the other. The order of a sum is free.
      const DU du;
      const VU pair = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(p + j));
      body(hn::BitCast(d, hn::ShiftLeft<16>(pair)), hn::BitCast(d, hn::And(pair, hn::Set(du, 0xffff0000u))));
    } else {
      body(LoadWide(d, p + j), LoadWide(d, p + j + lanes));
    }
  }
  if (j < count) {
    HWY_ALIGN T tail[2 * HWY_MAX_BYTES / sizeof(float)];
    std::fill(tail, tail + 2 * lanes, MinusInfinity<T>());
    std::copy(p + j, p + count, tail);
    body(LoadWide(d, tail), LoadWide(d, tail + lanes));
  }
}

// Calls body(|vector|) on all elements, and on +0 in the other lanes of the last.
template <class Body>
HWY_INLINE void ForEachMagnitude(const float* p, std::int64_t count, Body&& body) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t j = 0;
  for (; j + lanes <= count; j += lanes) body(hn::Abs(hn::LoadU(d, p + j)));
  if (j < count) {
    HWY_ALIGN float tail[HWY_MAX_BYTES / sizeof(float)] = {};
    std::copy(p + j, p + count, tail);
    body(hn::Abs(hn::Load(d, tail)));
  }
}

// 2^f: exp2_polynomial() of exp_split.h.
HWY_INLINE VF ExpPolynomial(D d, VF f) {
  using namespace exp_split_constants;
  VF p = hn::MulAdd(f, hn::Set(d, kC6), hn::Set(d, kC5));
  p = hn::MulAdd(f, p, hn::Set(d, kC4));
  p = hn::MulAdd(f, p, hn::Set(d, kC3));
  p = hn::MulAdd(f, p, hn::Set(d, kC2));
  p = hn::MulAdd(f, p, hn::Set(d, kC1));
  return hn::MulAdd(f, p, hn::Set(d, 1.0f));
}

// exp(x) / Q_b: register_exp() of tpce/register_form.h.
HWY_INLINE VF RegisterExp(D d, VF x, VF magic) {
  using namespace exp_split_constants;
  const DU du;
  const VF t = hn::MulAdd(x, hn::Set(d, kLog2e), magic);
  const VF n = hn::Sub(t, magic);
  VF f = hn::MulSub(x, hn::Set(d, kLog2e), n);
  f = hn::MulAdd(x, hn::Set(d, kLog2eRest), f);
  return hn::BitCast(d, hn::Add(hn::BitCast(du, ExpPolynomial(d, f)), hn::ShiftLeft<23>(hn::BitCast(du, t))));
}

// Adds one digit of two vectors to the accumulator, and takes it from them.
HWY_INLINE VU AddDigit(D d, VU accumulator, VF* r0, VF* r1, VF magic) {
  const DU du;
  const VF t0 = hn::Add(*r0, magic);
  const VF t1 = hn::Add(*r1, magic);
  *r0 = hn::Sub(*r0, hn::Sub(t0, magic));
  *r1 = hn::Sub(*r1, hn::Sub(t1, magic));
  return hn::Add(accumulator, hn::Add(hn::BitCast(du, t0), hn::BitCast(du, t1)));
}

// Lanes of RegisterLane. Each digit counts its own additions, since blocks may skip leading ones.
struct Accumulators {
  VU digit[3];
  std::uint32_t count[3] = {0, 0, 0};
};

struct BlockScan {
  VF max;
  VF min;     // only where exponentials are kept
  VF poison;  // NaN where a NaN or +inf may have been seen
};

// Adds a block's values to the accumulators with kDigits digits and scans it; writes the exponentials to keep, whole
// vectors of them, where kKeep. kDigits = 0 only scans.
template <int kDigits, bool kKeep, class T>
HWY_INLINE BlockScan AddBlock(const T* p, std::int64_t count, const RegisterBin& bin, Accumulators& accumulators,
                              float* keep) {
  const D d;
  const DU du;
  const VF magic = hn::Set(d, bin.magic);
  const VF clamp = hn::Set(d, bin.clamp);
  const VF magic0 = hn::Set(d, RegisterLane::kMagic0);
  const VF magic1 = hn::Set(d, RegisterLane::kMagic1);
  const VF magic2 = hn::Set(d, RegisterLane::kMagic2);
  VF max = hn::Set(d, -std::numeric_limits<float>::infinity());
  VF min = hn::Set(d, std::numeric_limits<float>::infinity());
  VF poison = hn::Zero(d);
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  VU a0 = accumulators.digit[0];
  VU a1 = accumulators.digit[1];
  VU a2 = accumulators.digit[2];
  // Two vectors at a time, joined before they meet the running values, whose chains of additions are then half as long.
  ForEachPair(p, count, [&](VF x0, VF x1) HWY_ATTR {
    max = hn::Max(max, hn::Max(x0, x1));
    poison = hn::Add(poison, hn::Add(x0, x1));
    if constexpr (kDigits > 0) {
      VF y0 = RegisterExp(d, hn::Max(x0, clamp), magic);
      VF y1 = RegisterExp(d, hn::Max(x1, clamp), magic);
      if constexpr (kKeep) {
        min = hn::Min(min, hn::Min(x0, x1));
        hn::StoreU(y0, d, keep);
        hn::StoreU(y1, d, keep + lanes);
        keep += 2 * lanes;
      }
      if constexpr (kDigits >= 3) a0 = AddDigit(d, a0, &y0, &y1, magic0);
      if constexpr (kDigits >= 2) a1 = AddDigit(d, a1, &y0, &y1, magic1);
      a2 = hn::Add(a2, hn::Add(hn::BitCast(du, hn::Add(y0, magic2)), hn::BitCast(du, hn::Add(y1, magic2))));
    }
  });
  const auto added = static_cast<std::uint32_t>(VectorsOf(count));
  accumulators.digit[0] = a0;
  accumulators.digit[1] = a1;
  accumulators.digit[2] = a2;
  for (int i = 3 - kDigits; i < 3; ++i) accumulators.count[i] += added;
  return {max, min, poison};
}

HWY_INLINE void Clear(Accumulators& accumulators) {
  const DU du;
  for (int i = 0; i < 3; ++i) {
    accumulators.digit[i] = hn::Zero(du);
    accumulators.count[i] = 0;
  }
}

HWY_INLINE std::int64_t FlushDigit(VU accumulator, std::uint32_t count, float magic) {
  const DU du;
  const DI di;
  HWY_ALIGN std::int32_t lane[HWY_MAX_BYTES / sizeof(std::int32_t)];
  const VU bias = hn::Set(du, count * bit_cast<std::uint32_t>(magic));
  hn::Store(hn::BitCast(di, hn::Sub(accumulator, bias)), di, lane);
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < hn::Lanes(di); ++i) sum += lane[i];
  return sum;
}

HWY_INLINE void Flush(Accumulators& accumulators, Digits& digits) {
  digits.d0 += FlushDigit(accumulators.digit[0], accumulators.count[0], RegisterLane::kMagic0);
  digits.d1 += FlushDigit(accumulators.digit[1], accumulators.count[1], RegisterLane::kMagic1);
  digits.d2 += FlushDigit(accumulators.digit[2], accumulators.count[2], RegisterLane::kMagic2);
  Clear(accumulators);
}

template <bool kKeep, class T>
HWY_INLINE BlockScan AddBlock(int digits, const T* p, std::int64_t count, const RegisterBin& bin,
                              Accumulators& accumulators, float* keep) {
  switch (digits) {
    case 0:
      return AddBlock<0, false>(p, count, bin, accumulators, keep);
    case 1:
      return AddBlock<1, kKeep>(p, count, bin, accumulators, keep);
    case 2:
      return AddBlock<2, kKeep>(p, count, bin, accumulators, keep);
    default:
      return AddBlock<3, kKeep>(p, count, bin, accumulators, keep);
  }
}

template <class T>
bool HoldsNanOrPositiveInfinity(const T* p, std::int64_t count) {
  return std::any_of(p, p + count, [](T x) { return is_nan_or_positive_infinity(widen(x)); });
}

// The walk over the stretches of one row, block by block.
template <class T, bool kKeep>
class RowWalk {
 public:
  RowWalk(BlockSkipping skipping, ExpCache* cache) : skipping_(skipping == BlockSkipping::kOn), cache_(cache) {
    Clear(accumulators_);
  }

  // False where the register form cannot give the row's digits, and the definition must.
  bool Add(const RowLogits& stretch) {
    const T* logits = static_cast<const T*>(stretch.logits);
    if constexpr (kKeep) cache_->begin_stretch();
    for (std::int64_t first = 0; first < stretch.classes; first += kBlock) {
      const std::int64_t count = std::min(kBlock, stretch.classes - first);
      const T* block = logits + first;
      const std::int64_t target = stretch.target - first;
      if (target >= 0 && target < count) {
        // A class without mass stands in for the target, so that its block is walked as every other.
        std::copy(block, block + count, patched_);
        patched_[target] = MinusInfinity<T>();
        patched_target_ = target;
        block = patched_;
      }
      if (!AddOne(block, first, count)) return false;
    }
    return true;
  }

  bool not_finite() const { return not_finite_; }

  RowPartial Finish() {
    Flush(accumulators_, digits_);
    RowPartial partial;
    partial.max_logit = max_;
    partial.digits = digits_;
    return partial;
  }

  // A row none of whose values lies in the register form's range, or whose low values might count beside its maximum.
  bool NeedsDefinition() const { return seen_low_ && max_ < kLowest + 64.0f; }

 private:
  bool AddOne(const T* p, std::int64_t first, std::int64_t count) {
    const D d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    const std::int64_t vectors = VectorsOf(count);
    if (accumulators_.count[2] + static_cast<std::uint32_t>(vectors) > RegisterLane::kCapacity) {
      Flush(accumulators_, digits_);
    }
    if (!begun_) GuessBin(widen(p[0]));
    float* keep = nullptr;
    if constexpr (kKeep) keep = cache_->room(static_cast<std::size_t>(vectors * lanes));
    // The digits are guessed from the last block, and the guess is checked against the block's own maximum after it:
    // one pass over memory, repeated where the maximum rose into a higher bin.
    const Accumulators before = accumulators_;
    BlockScan scan = AddGuess(guess_, p, count, keep);
    const float max = hn::GetLane(hn::MaxOfLanes(d, scan.max)) + 0.0f;
    if (!(hn::GetLane(hn::SumOfLanes(d, scan.poison)) < std::numeric_limits<float>::infinity()) ||
        !(max < std::numeric_limits<float>::infinity())) {
      if (HoldsNanOrPositiveInfinity(p, count)) {
        not_finite_ = true;
        return true;
      }
    }
    if (max >= kHighest) return false;
    if (max <= kLowest) {
      accumulators_ = before;
      if (max != -std::numeric_limits<float>::infinity()) seen_low_ = true;
      return true;
    }
    const std::int32_t block_bin = BinOf(max);
    const bool raises = max_ <= kLowest ? block_bin != bin_ : block_bin > bin_;
    if (raises) {
      accumulators_ = before;
      Raise(block_bin);
    }
    max_ = std::max(max_, max);
    int needed = skipping_ ? digits_needed(block_bin, bin_) : 3;
    if (kKeep && needed == 0) needed = 1;  // its gradients will be asked for
    if (raises || needed > guess_) {
      if (!raises) accumulators_ = before;
      scan = AddGuess(needed, p, count, keep);
      guess_ = needed;
    }
    if constexpr (kKeep) {
      if (keep != nullptr && guess_ > 0 && IsExact(scan, p, count)) {
        cache_->keep({first, count, bin_, keep}, static_cast<std::size_t>(vectors * lanes));
      }
    }
    guess_ = needed;
    return true;
  }

  // Whether no exponential of the block was clamped. The target's stand-in, and the lanes beyond a block's end, hold
  // -inf, which says nothing.
  bool IsExact(const BlockScan& scan, const T* p, std::int64_t count) {
    const D d;
    const float clamp = bin_constants_.clamp;
    if (hn::GetLane(hn::MinOfLanes(d, scan.min)) > clamp) return true;
    // Any other logit of the block may take the stand-in's place now: a second look at it changes no minimum.
    if (p == patched_) patched_[patched_target_] = patched_[patched_target_ == 0 ? count - 1 : 0];
    return MinOf(p, count) > clamp;
  }

  // A first bin, from the row's first logit: most often that of the whole row.
  void GuessBin(float logit) {
    begun_ = true;
    if (!(logit > kLowest && logit < kHighest)) return;
    bin_ = BinOf(logit);
    bin_constants_ = register_bin(bin_);
    guess_ = 3;
  }

  BlockScan AddGuess(int digits, const T* p, std::int64_t count, float* keep) {
    if constexpr (kKeep) {
      if (keep != nullptr) return AddBlock<true>(digits, p, count, bin_constants_, accumulators_, keep);
    }
    return AddBlock<false>(digits, p, count, bin_constants_, accumulators_, nullptr);
  }

  void Raise(std::int32_t bin) {
    Flush(accumulators_, digits_);
    if (max_ > kLowest) digits_ = raised(digits_, std::int64_t{bin} - bin_);
    bin_ = bin;
    bin_constants_ = register_bin(bin);
  }

  bool skipping_;
  ExpCache* cache_;
  bool begun_ = false;
  bool seen_low_ = false;
  bool not_finite_ = false;
  int guess_ = 0;  // digits of the next block
  float max_ = -std::numeric_limits<float>::infinity();
  std::int32_t bin_ = 0;
  RegisterBin bin_constants_ = register_bin(0);
  Accumulators accumulators_;
  Digits digits_;
  HWY_ALIGN T patched_[kBlock];
  std::int64_t patched_target_ = 0;
};

template <class T, bool kKeep>
RowPartial WalkRow(std::span<const RowLogits> row, BlockSkipping skipping, ExpCache* cache) {
  RowWalk<T, kKeep> walk(skipping, cache);
  float target_logit = 0.0f;
  std::uint32_t flags = 0;
  for (const RowLogits& stretch : row) {
    if (!walk.Add(stretch)) return DefinitionOfRow<T>(row);
    if (stretch.target < 0) continue;
    target_logit = widen(static_cast<const T*>(stretch.logits)[stretch.target]) + 0.0f;
    flags = RowPartial::kTargetHere;
  }
  if (walk.NeedsDefinition()) return DefinitionOfRow<T>(row);
  if (walk.not_finite() || is_nan_or_positive_infinity(target_logit)) {
    return RowPartial::only_flags(flags | RowPartial::kNotFinite);
  }
  RowPartial partial = walk.Finish();
  partial.target_logit = target_logit;
  partial.flags = flags;
  return partial;
}

template <class T>
RowPartial PartialOfRow(std::span<const RowLogits> row, BlockSkipping skipping, ExpCache* cache) {
  return cache != nullptr ? WalkRow<T, true>(row, skipping, cache) : WalkRow<T, false>(row, skipping, nullptr);
}

HWY_INLINE void StoreRounded(D d, VF v, float* p) { hn::StoreU(v, d, p); }

HWY_INLINE void StoreRounded(D d, VF v, double* p) {
  HWY_ALIGN float lanes[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(v, d, lanes);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) round_to(lanes[i], &p[i]);
}

HWY_INLINE void StoreRounded(D d, VF v, BFloat16* p) {
  const DU du;
  const hn::Rebind<std::uint16_t, D> d16;
  const VU bits = hn::BitCast(du, v);
  const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const VU rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), odd));
  const VU magnitude = hn::And(rounded, hn::Set(du, 0x7fffu));
  const VU plus_zero = hn::IfThenZeroElse(hn::Eq(magnitude, hn::Zero(du)), rounded);
  const DI di;
  // DemoteTo saturates from signed values, so the 16 bits are sign-extended first.
  const VI extended = hn::ShiftRight<16>(hn::ShiftLeft<16>(hn::BitCast(di, plus_zero)));
  const hn::Rebind<std::int16_t, D> di16;
  hn::StoreU(hn::BitCast(d16, hn::DemoteTo(di16, extended)), d16, reinterpret_cast<std::uint16_t*>(p));
}

HWY_INLINE void StoreRounded(D d, VF v, Float16* p) {
  // What rounds to zero becomes +0 before the conversion: |v| <= 2^-25, ties to even.
  const VF plus_zero = hn::IfThenZeroElse(hn::Le(hn::Abs(v), hn::Set(d, 0x1p-25f)), v);
  const hn::Rebind<hwy::float16_t, D> d16;
  hn::StoreU(hn::DemoteTo(d16, plus_zero), d16, reinterpret_cast<hwy::float16_t*>(p));
}

// fp32 gradients of at most kBlock elements of a grid row, none of them the target.
template <class T>
HWY_INLINE void GradientOfBlock(const T* p, std::int64_t count, const RowGradient& gradient, float* out) {
  using namespace exp_split_constants;
  const D d;
  const DI di;
  const VF factor = hn::Set(d, gradient.factor);
  // |n| < 2^17, so a shift beyond 2^18 decides alone, and the sum stays an int32.
  const auto shift = static_cast<std::int32_t>(std::clamp<std::int64_t>(gradient.shift, -(1 << 18), 1 << 18));
  const VI shifts = hn::Set(di, shift);
  const auto power = [&](VI exponent)
                         HWY_ATTR { return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(exponent, hn::Set(di, 127)))); };
  const auto compute = [&](VF x) HWY_ATTR {
    // Below kLowest the product is 0 beside any maximum that the register form takes.
    const VF clamped = hn::Max(x, hn::Set(d, kLowest));
    const VF magic = hn::Set(d, kRoundMagic);
    const VF n = hn::Sub(hn::MulAdd(clamped, hn::Set(d, kLog2e), magic), magic);
    VF f = hn::MulSub(clamped, hn::Set(d, kLog2e), n);
    f = hn::MulAdd(clamped, hn::Set(d, kLog2eRest), f);
    const VF product = hn::Mul(ExpPolynomial(d, f), factor);
    const VI exponent = hn::Add(hn::ConvertTo(di, n), shifts);
    // Two products, of which only the last rounds: the first keeps the value normal, whatever the exponent.
    const VI first = hn::Min(hn::Max(exponent, hn::Set(di, -100)), hn::Set(di, 100));
    const VI rest = hn::Min(hn::Max(hn::Sub(exponent, first), hn::Set(di, -126)), hn::Set(di, 127));
    return hn::Add(hn::Mul(hn::Mul(product, power(first)), power(rest)), hn::Zero(d));
  };
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t j = 0;
  for (; j + lanes <= count; j += lanes) hn::StoreU(compute(LoadWide(d, p + j)), d, out + j);
  if (j < count) {
    HWY_ALIGN float tail[HWY_MAX_BYTES / sizeof(float)] = {};
    for (std::int64_t i = 0; i < count - j; ++i) tail[i] = widen(p[j + i]);
    hn::Store(compute(hn::Load(d, tail)), d, tail);
    std::copy(tail, tail + (count - j), out + j);
  }
}

// Adds the squares of at most kBlock finite gradients.
HWY_INLINE void AddSquares(const float* p, std::int64_t count, BinnedSum& squares) {
  const D d;
  const DU du;
  const DI di;
  VF largest = hn::Zero(d);
  ForEachMagnitude(p, count, [&](VF x) HWY_ATTR { largest = hn::Max(largest, x); });
  const float max = hn::GetLane(hn::MaxOfLanes(d, largest));
  if (max == 0.0f) return;
  // The square of a subnormal is nothing beside that of 2^-60; smaller blocks, and infinities, take the definition.
  if (!(max >= 0x1p-60f) || !(max < std::numeric_limits<float>::infinity())) {
    for (std::int64_t j = 0; j < count; ++j) add_square(squares, p[j]);
    return;
  }
  BinnedSum top;
  add_square(top, max);
  const std::int32_t scale = kBinBits * top.bin;
  Accumulators accumulators;
  Clear(accumulators);
  VU a0 = accumulators.digit[0];
  VU a1 = accumulators.digit[1];
  VU a2 = accumulators.digit[2];
  const VF magic0 = hn::Set(d, RegisterLane::kMagic0);
  const VF magic1 = hn::Set(d, RegisterLane::kMagic1);
  const VF magic2 = hn::Set(d, RegisterLane::kMagic2);
  ForEachMagnitude(p, count, [&](VF x) HWY_ATTR {
    const VU bits = hn::BitCast(du, x);
    const VF m = hn::BitCast(d, hn::Or(hn::And(bits, hn::Set(du, 0x007fffffu)), hn::Set(du, 0x3f800000u)));
    const VI e = hn::Sub(hn::BitCast(di, hn::ShiftRight<23>(bits)), hn::Set(di, 127));
    // Below -60 every digit is zero, for zeros too.
    const VI exponent = hn::Max(hn::Sub(hn::Add(e, e), hn::Set(di, scale)), hn::Set(di, -60));
    const VF y = hn::BitCast(d, hn::Add(hn::BitCast(di, hn::Mul(m, m)), hn::ShiftLeft<23>(exponent)));
    const VF t0 = hn::Add(y, magic0);
    a0 = hn::Add(a0, hn::BitCast(du, t0));
    VF r = hn::Sub(y, hn::Sub(t0, magic0));
    const VF t1 = hn::Add(r, magic1);
    a1 = hn::Add(a1, hn::BitCast(du, t1));
    r = hn::Sub(r, hn::Sub(t1, magic1));
    a2 = hn::Add(a2, hn::BitCast(du, hn::Add(r, magic2)));
  });
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto added = static_cast<std::uint32_t>((count + lanes - 1) / lanes);
  accumulators = {{a0, a1, a2}, {added, added, added}};
  Flush(accumulators, top.digits = {});
  merge(squares, top);
}

// Rounds vectors to bf16 without a look at zeros: |v| >= 2^-126 rounds to no zero. The result is in the high halves.
HWY_INLINE VU RoundNormalToHighHalf(VF v) {
  const DU du;
  const VU bits = hn::BitCast(du, v);
  const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  return hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), odd);
}

// Exponentials of a block, in units of Q_b: those that forward kept, or made anew. At(j) is those of elements [j, j +
// lanes); Pair(j), for bf16, those of [j, j + 2 lanes), the even ones and the odd ones, as ForEachPair makes them.
template <class T>
struct KeptExponentials {
  const float* values;

  VF At(D d, std::int64_t j) const { return hn::LoadU(d, values + j); }
  VF Tail(D d, std::int64_t j, std::int64_t) const { return At(d, j); }  // whole vectors were kept
  void Pair(D d, std::int64_t j, VF* even, VF* odd) const {
    *even = At(d, j);
    *odd = At(d, j + static_cast<std::int64_t>(hn::Lanes(d)));
  }
};

template <class T>
struct NewExponentials {
  const T* logits;
  float magic;  // of register_bin(b)

  VF At(D d, std::int64_t j) const { return RegisterExp(d, LoadWide(d, logits + j), hn::Set(d, magic)); }
  VF Tail(D d, std::int64_t j, std::int64_t count) const {
    HWY_ALIGN float tail[HWY_MAX_BYTES / sizeof(float)];
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) tail[i] = widen(logits[j]);
    for (std::int64_t i = 0; i < count; ++i) tail[i] = widen(logits[j + i]);
    return RegisterExp(d, hn::Load(d, tail), hn::Set(d, magic));
  }
  void Pair(D d, std::int64_t j, VF* even, VF* odd) const {
    ForEachPair(logits + j, 2 * static_cast<std::int64_t>(hn::Lanes(d)), [&](VF x0, VF x1) HWY_ATTR {
      *even = RegisterExp(d, x0, hn::Set(d, magic));
      *odd = RegisterExp(d, x1, hn::Set(d, magic));
    });
  }
};

// The one factor of a block's gradients, q 2^(k - B + 23 b), where every product with an exponential in [2^-87, 2^22]
// is a normal fp32: then RN(y q) 2^s is RN(y q 2^s). 0 where some product might not be.
HWY_INLINE float OneFactor(const RowGradient& gradient, std::int32_t bin) {
  const std::int64_t power = gradient.shift + std::int64_t{kBinBits} * bin;
  return power >= -38 && power <= 100 ? gradient.factor * static_cast<float>(power_of_two(power)) : 0.0f;
}

// Gradients of a block: exponentials times OneFactor(). Only bf16 logits come in pairs.
template <class T, class Out, template <class> class Exponentials>
HWY_INLINE void ScaleBlock(const Exponentials<T>& exponentials, std::int64_t count, float factor, Out* out) {
  const D d;
  const VF scale = hn::Set(d, factor);
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t j = 0;
  if constexpr (std::is_same_v<T, BFloat16> && std::is_same_v<Out, BFloat16>) {
    const DU du;
    const VU high = hn::Set(du, 0xffff0000u);
    for (; j + 2 * lanes <= count; j += 2 * lanes) {
      VF even;
      VF odd;
      exponentials.Pair(d, j, &even, &odd);
      const VU low = hn::ShiftRight<16>(RoundNormalToHighHalf(hn::Mul(even, scale)));
      const VU pair = hn::Or(low, hn::And(RoundNormalToHighHalf(hn::Mul(odd, scale)), high));
      hn::StoreU(pair, du, reinterpret_cast<std::uint32_t*>(out + j));
    }
  }
  for (; j + lanes <= count; j += lanes) StoreRounded(d, hn::Mul(exponentials.At(d, j), scale), out + j);
  if (j < count) {
    HWY_ALIGN float tail[HWY_MAX_BYTES / sizeof(float)];
    hn::Store(hn::Mul(exponentials.Tail(d, j, count - j), scale), d, tail);
    for (std::int64_t i = 0; i < count - j; ++i) round_to(tail[i], &out[j + i]);
  }
}

HWY_INLINE void RoundBlock(const float* p, std::int64_t count, float* out) {
  if (out != p) std::copy(p, p + count, out);
}

template <class Out>
HWY_INLINE void RoundBlock(const float* p, std::int64_t count, Out* out) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t j = 0;
  for (; j + lanes <= count; j += lanes) StoreRounded(d, hn::LoadU(d, p + j), out + j);
  for (; j < count; ++j) round_to(p[j], &out[j]);
}

template <class T, class Out>
void GradientOfRow(const RowLogits& row, const RowGradient& gradient, void* gradients, BinnedSum* squares,
                   std::span<const CachedBlock> cached) {
  const auto* logits = static_cast<const T*>(row.logits);
  auto* out = static_cast<Out*>(gradients);
  using Kind = RowGradient::Kind;
  const bool register_form =
      gradient.kind == Kind::kGrid && gradient.max_logit > kLowest + 1024.0f && gradient.max_logit < kHighest;
  const auto element = [&](std::int64_t j, float dz) {
    if (squares != nullptr) add_square(*squares, dz);
    if (out != nullptr) round_to(dz, &out[j]);
  };
  if (!register_form) {
    const bool reads = gradient.kind == Kind::kGrid || gradient.kind == Kind::kHuge;
    for (std::int64_t j = 0; j < row.classes; ++j) {
      element(j, j == row.target ? gradient.target : non_target_gradient(gradient, reads ? widen(logits[j]) : 0.0f));
    }
  } else {
    const std::int32_t row_bin = BinOf(gradient.max_logit);
    const RegisterBin bin = register_bin(row_bin);
    const float factor = OneFactor(gradient, row_bin);
    HWY_ALIGN float buffer[kBlock];
    std::size_t next = 0;  // of the cached blocks
    for (std::int64_t j = 0; j < row.classes; j += kBlock) {
      const std::int64_t count = std::min(kBlock, row.classes - j);
      const std::int64_t target = row.target - j;
      const bool here = target >= 0 && target < count;
      const CachedBlock* kept = next < cached.size() && cached[next].first == j ? &cached[next++] : nullptr;
      const float kept_factor = kept != nullptr ? OneFactor(gradient, kept->bin) : 0.0f;
      const bool direct = out != nullptr && squares == nullptr;
      // Whatever stands in the target's place is overwritten with its gradient.
      if (std::is_same_v<T, Out> && kept_factor != 0.0f && direct) {
        ScaleBlock<T, T>(KeptExponentials<T>{kept->values}, count, kept_factor, static_cast<T*>(gradients) + j);
      } else {
        const bool scales = factor != 0.0f && MinOf(logits + j, count) > bin.clamp;
        const NewExponentials<T> exponentials{logits + j, bin.magic};
        if (scales && direct) {
          ScaleBlock(exponentials, count, factor, out + j);
        } else {
          float* dz = buffer;
          if constexpr (std::is_same_v<Out, float>) dz = out != nullptr ? out + j : buffer;
          if (scales) {
            ScaleBlock(exponentials, count, factor, dz);
          } else {
            GradientOfBlock(logits + j, count, gradient, dz);
          }
          if (here) dz[target] = gradient.target;
          if (squares != nullptr) AddSquares(dz, count, *squares);
          if (out != nullptr) RoundBlock(dz, count, out + j);
        }
      }
      if (here && out != nullptr) round_to(gradient.target, &out[row.target]);
    }
  }
  for (std::int64_t j = row.classes; j < row.width; ++j) element(j, 0.0f);
}

#endif  // portable

}  // namespace tpce::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
