// Vector kernels, compiled once for every target by kernels.cc. Loops and tails are written once: a tail is copied to a
// full vector whose other lanes hold -inf, which adds nothing to a sum.
#if defined(TPCE_SIMD_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TPCE_SIMD_KERNELS_INL_H_
#undef TPCE_SIMD_KERNELS_INL_H_
#else
#define TPCE_SIMD_KERNELS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <limits>
#include <type_traits>

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
                   const KeptStretch&) {
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

// Elements of a block: few enough to stay in the first-level cache and in the accumulators, and for blocks of real
// logits to differ in how many digits they need; many enough that what is done once a block is little beside it.
#if HWY_ARCH_X86
constexpr std::int64_t kBlock = 2048;
#else
constexpr std::int64_t kBlock = 1024;
#endif

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

// Elements of two vectors, which is what is loaded together, and of four, which the sum takes at a time.
HWY_INLINE std::int64_t PairLanes() { return 2 * static_cast<std::int64_t>(hn::Lanes(D())); }
HWY_INLINE std::int64_t QuadLanes() { return 2 * PairLanes(); }

HWY_INLINE std::int64_t WholeQuads(std::int64_t count) { return (count + QuadLanes() - 1) / QuadLanes() * QuadLanes(); }

// The pair of vectors at p, in any order: a 32-bit lane holds two bf16, of which a shift widens one and a mask the
// other.
template <class T>
HWY_INLINE void LoadPair(D d, const T* p, VF& x0, VF& x1) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    const DU du;
    const VU pair = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(p));
    x0 = hn::BitCast(d, hn::ShiftLeft<16>(pair));
    x1 = hn::BitCast(d, hn::And(pair, hn::Set(du, 0xffff0000u)));
  } else {
    x0 = LoadWide(d, p);
    x1 = LoadWide(d, p + hn::Lanes(d));
  }
}

// Asks for the memory of a pair that will be walked later; an address beyond the row does no harm.
template <class T>
HWY_INLINE void PrefetchPair(const T* p) {
  constexpr std::int64_t kLine = 64;
  const auto* bytes = reinterpret_cast<const char*>(p);
  const auto size = PairLanes() * static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t i = 0; i < size; i += kLine) hwy::Prefetch(bytes + i);
}

// What is asked of a block before its exponentials are made. As integers, floats of one sign are ordered by magnitude:
// the largest signed integer is the block's maximum where any element is not negative, and the largest unsigned one its
// minimum where any is negative. NaN of either sign is beyond the infinity of that sign.
template <class T>
struct Scan {
  using Unsigned = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
  using Signed = std::make_signed_t<Unsigned>;
  static constexpr Unsigned kSign = Unsigned{1} << (8 * sizeof(T) - 1);

  float max;
  float min;
  bool holds_nan_or_positive_infinity;

  static float Value(Unsigned bits) { return widen(bit_cast<T>(bits)) + 0.0f; }

  static Unsigned Infinity() {
    T value;
    round_to(std::numeric_limits<float>::infinity(), &value);
    return bit_cast<Unsigned>(value);
  }
};

// The largest lane of vectors of 16 or 32 bits; Highway reduces 32 bits only.
HWY_INLINE std::int32_t LargestLane(hn::Vec<hn::ScalableTag<std::int16_t> > v) {
  const DI di;
  const VI pair = hn::BitCast(di, v);
  return hn::GetLane(
      hn::MaxOfLanes(di, hn::Max(hn::ShiftRight<16>(pair), hn::ShiftRight<16>(hn::ShiftLeft<16>(pair)))));
}
HWY_INLINE std::uint32_t LargestLane(hn::Vec<hn::ScalableTag<std::uint16_t> > v) {
  const DU du;
  const VU pair = hn::BitCast(du, v);
  return hn::GetLane(hn::MaxOfLanes(du, hn::Max(hn::ShiftRight<16>(pair), hn::And(pair, hn::Set(du, 0xffffu)))));
}
HWY_INLINE std::int32_t LargestLane(VI v) { return hn::GetLane(hn::MaxOfLanes(DI(), v)); }
HWY_INLINE std::uint32_t LargestLane(VU v) { return hn::GetLane(hn::MaxOfLanes(DU(), v)); }

// Scans [0, count), count > 0 a multiple of PairLanes().
template <class T>
HWY_INLINE Scan<T> ScanBlock(const T* p, std::int64_t count) {
  using Unsigned = typename Scan<T>::Unsigned;
  using Signed = typename Scan<T>::Signed;
  const hn::ScalableTag<Unsigned> du;
  const hn::ScalableTag<Signed> di;
  const auto* bits = reinterpret_cast<const Unsigned*>(p);
  const auto step = static_cast<std::int64_t>(hn::Lanes(du));
  auto largest_signed = hn::Set(di, std::numeric_limits<Signed>::min());
  auto largest_unsigned = hn::Zero(du);
  for (std::int64_t j = 0; j < count; j += step) {
    const auto v = hn::LoadU(du, bits + j);
    largest_signed = hn::Max(largest_signed, hn::BitCast(di, v));
    largest_unsigned = hn::Max(largest_unsigned, v);
  }
  const auto s = static_cast<Unsigned>(LargestLane(largest_signed));
  const auto u = static_cast<Unsigned>(LargestLane(largest_unsigned));
  auto max = s;
  auto min = u;
  if (s >= Scan<T>::kSign || u < Scan<T>::kSign) {  // one sign alone
    auto smallest = hn::Set(du, std::numeric_limits<Unsigned>::max());
    for (std::int64_t j = 0; j < count; j += step) smallest = hn::Min(smallest, hn::LoadU(du, bits + j));
    const auto m = static_cast<Unsigned>(~LargestLane(hn::Not(smallest)));
    (s >= Scan<T>::kSign ? max : min) = m;
  }
  const Unsigned infinity = Scan<T>::Infinity();
  return {Scan<T>::Value(max), Scan<T>::Value(min),
          (max < Scan<T>::kSign && max >= infinity) || u > (infinity | Scan<T>::kSign)};
}

// The smallest element of [0, count) without NaN or +inf.
template <class T>
HWY_INLINE float MinOf(const T* p, std::int64_t count) {
  const std::int64_t whole = count / PairLanes() * PairLanes();
  float min = whole > 0 ? ScanBlock(p, whole).min : std::numeric_limits<float>::infinity();
  for (std::int64_t j = whole; j < count; ++j) min = std::min(min, widen(p[j]));
  return min;
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

// RegisterExp() of four vectors, step by step: a processor that looks a hundred instructions ahead finds four chains to
// work on, where one after the other it would wait for one.
HWY_INLINE void RegisterExp4(D d, VF& x0, VF& x1, VF& x2, VF& x3, VF magic) {
  using namespace exp_split_constants;
  const DU du;
  const VF log2e = hn::Set(d, kLog2e);
  const VF t0 = hn::MulAdd(x0, log2e, magic);
  const VF t1 = hn::MulAdd(x1, log2e, magic);
  const VF t2 = hn::MulAdd(x2, log2e, magic);
  const VF t3 = hn::MulAdd(x3, log2e, magic);
  VF f0 = hn::MulSub(x0, log2e, hn::Sub(t0, magic));
  VF f1 = hn::MulSub(x1, log2e, hn::Sub(t1, magic));
  VF f2 = hn::MulSub(x2, log2e, hn::Sub(t2, magic));
  VF f3 = hn::MulSub(x3, log2e, hn::Sub(t3, magic));
  const VF rest = hn::Set(d, kLog2eRest);
  f0 = hn::MulAdd(x0, rest, f0);
  f1 = hn::MulAdd(x1, rest, f1);
  f2 = hn::MulAdd(x2, rest, f2);
  f3 = hn::MulAdd(x3, rest, f3);
  const VF c6 = hn::Set(d, kC6);
  const VF c5 = hn::Set(d, kC5);
  VF p0 = hn::MulAdd(f0, c6, c5);
  VF p1 = hn::MulAdd(f1, c6, c5);
  VF p2 = hn::MulAdd(f2, c6, c5);
  VF p3 = hn::MulAdd(f3, c6, c5);
  const auto step = [&](float coefficient) HWY_ATTR {
    const VF c = hn::Set(d, coefficient);
    p0 = hn::MulAdd(f0, p0, c);
    p1 = hn::MulAdd(f1, p1, c);
    p2 = hn::MulAdd(f2, p2, c);
    p3 = hn::MulAdd(f3, p3, c);
  };
  step(kC4);
  step(kC3);
  step(kC2);
  step(kC1);
  step(1.0f);
  x0 = hn::BitCast(d, hn::Add(hn::BitCast(du, p0), hn::ShiftLeft<23>(hn::BitCast(du, t0))));
  x1 = hn::BitCast(d, hn::Add(hn::BitCast(du, p1), hn::ShiftLeft<23>(hn::BitCast(du, t1))));
  x2 = hn::BitCast(d, hn::Add(hn::BitCast(du, p2), hn::ShiftLeft<23>(hn::BitCast(du, t2))));
  x3 = hn::BitCast(d, hn::Add(hn::BitCast(du, p3), hn::ShiftLeft<23>(hn::BitCast(du, t3))));
}

// Adds one digit of four vectors to the accumulator, and takes it from them.
HWY_INLINE void AddDigit4(VU& accumulator, VF& r0, VF& r1, VF& r2, VF& r3, VF magic) {
  const DU du;
  const VF t0 = hn::Add(r0, magic);
  const VF t1 = hn::Add(r1, magic);
  const VF t2 = hn::Add(r2, magic);
  const VF t3 = hn::Add(r3, magic);
  r0 = hn::Sub(r0, hn::Sub(t0, magic));
  r1 = hn::Sub(r1, hn::Sub(t1, magic));
  r2 = hn::Sub(r2, hn::Sub(t2, magic));
  r3 = hn::Sub(r3, hn::Sub(t3, magic));
  const VU sum01 = hn::Add(hn::BitCast(du, t0), hn::BitCast(du, t1));
  const VU sum23 = hn::Add(hn::BitCast(du, t2), hn::BitCast(du, t3));
  accumulator = hn::Add(accumulator, hn::Add(sum01, sum23));
}

HWY_INLINE void StoreRounded(D d, VF v, float* p) { hn::StoreU(v, d, p); }

HWY_INLINE void StoreRounded(D d, VF v, double* p) {
  HWY_ALIGN float lanes[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(v, d, lanes);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) round_to(lanes[i], &p[i]);
}

HWY_INLINE void StoreRounded(D, VF v, BFloat16* p) {
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

// Rounds vectors to bf16 without a look at zeros: |v| >= 2^-126 rounds to no zero. The result is in the high halves.
HWY_INLINE VU RoundNormalToHighHalf(VF v) {
  const DU du;
  const VU bits = hn::BitCast(du, v);
  // An odd result raises the low half by at most 1, which turns just the tie upwards.
  const VU tie = hn::Or(bits, hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u)));
  return hn::Add(tie, hn::Set(du, 0x7fffu));
}

// Whether the gradients of these logits are made in the order of LoadPair: two bf16 are then joined again without a
// shuffle.
template <class T, class Out>
constexpr bool kInPairs = std::is_same_v<T, BFloat16>&& std::is_same_v<Out, BFloat16>;

HWY_INLINE void StoreRoundedPair(D, VF even, VF odd, BFloat16* p) {
  const DU du;
  const VU low = hn::ShiftRight<16>(RoundNormalToHighHalf(even));
  const VU high = hn::And(RoundNormalToHighHalf(odd), hn::Set(du, 0xffff0000u));
  hn::StoreU(hn::Or(low, high), du, reinterpret_cast<std::uint32_t*>(p));
}

// Four vectors of exponentials, in the order of LoadPair where kPairs, times a factor: the gradients of QuadLanes()
// elements.
template <bool kPairs, class Out>
HWY_INLINE void StoreScaled4(D d, VF y0, VF y1, VF y2, VF y3, VF scale, Out* p) {
  y0 = hn::Mul(y0, scale);
  y1 = hn::Mul(y1, scale);
  y2 = hn::Mul(y2, scale);
  y3 = hn::Mul(y3, scale);
  if constexpr (kPairs) {
    StoreRoundedPair(d, y0, y1, p);
    StoreRoundedPair(d, y2, y3, p + PairLanes());
  } else {
    StoreRounded(d, y0, p);
    StoreRounded(d, y1, p + hn::Lanes(d));
    StoreRounded(d, y2, p + 2 * hn::Lanes(d));
    StoreRounded(d, y3, p + 3 * hn::Lanes(d));
  }
}

template <class T>
void WriteDeferred(const DeferredBlock& block);

// Lanes of RegisterLane, kept in memory between blocks: vectors of some targets cannot be members. Each digit counts
// its own additions, since blocks may skip leading ones.
struct Accumulators {
  HWY_ALIGN std::uint32_t digit[3][HWY_MAX_BYTES / sizeof(std::uint32_t)];
  std::uint32_t count[3];
};

HWY_INLINE void Clear(Accumulators& accumulators) {
  const DU du;
  for (int i = 0; i < 3; ++i) {
    hn::Store(hn::Zero(du), du, accumulators.digit[i]);
    accumulators.count[i] = 0;
  }
}

HWY_INLINE std::int64_t FlushDigit(const Accumulators& accumulators, int i, float magic) {
  const DU du;
  const DI di;
  const VU bias = hn::Set(du, accumulators.count[i] * bit_cast<std::uint32_t>(magic));
  const VI lanes = hn::BitCast(di, hn::Sub(hn::Load(du, accumulators.digit[i]), bias));
  // Halves, whose sums over all lanes fit 32 bits.
  const std::int64_t high = hn::GetLane(hn::SumOfLanes(di, hn::ShiftRight<16>(lanes)));
  const std::int64_t low = hn::GetLane(hn::SumOfLanes(di, hn::And(lanes, hn::Set(di, 0xffff))));
  return high * 65536 + low;
}

HWY_INLINE void Flush(Accumulators& accumulators, Digits& digits) {
  digits.d0 += FlushDigit(accumulators, 0, RegisterLane::kMagic0);
  digits.d1 += FlushDigit(accumulators, 1, RegisterLane::kMagic1);
  digits.d2 += FlushDigit(accumulators, 2, RegisterLane::kMagic2);
  Clear(accumulators);
}

// Logits of a block, count > 0 a multiple of QuadLanes(), and what to ask memory for meanwhile.
template <class T>
struct Block {
  const T* logits;
  std::int64_t count;
  const T* ahead;
  const T* gradients;  // memory of gradients that will be written next
  const DeferredBlock* replaced;
};

enum class Keep { kNone, kKeep, kReplace };

// Adds the last kDigits digits of a block's exponentials; writes the exponentials to keep, whole vectors of them, where
// kKeep. Without kClamp every logit lies above bin.clamp.
template <int kDigits, bool kClamp, Keep kKeep, class T>
HWY_INLINE void AddBlock(const Block<T>& block, const RegisterBin& bin, Accumulators& accumulators, float* keep) {
  const D d;
  const DU du;
  const VF magic = hn::Set(d, bin.magic);
  const VF clamp = hn::Set(d, bin.clamp);
  const VF magic0 = hn::Set(d, RegisterLane::kMagic0);
  const VF magic1 = hn::Set(d, RegisterLane::kMagic1);
  const VF magic2 = hn::Set(d, RegisterLane::kMagic2);
  VU a0 = hn::Load(du, accumulators.digit[0]);
  VU a1 = hn::Load(du, accumulators.digit[1]);
  VU a2 = hn::Load(du, accumulators.digit[2]);
  VF scale = hn::Zero(d);
  T* out = nullptr;
  if constexpr (kKeep == Keep::kReplace) {
    scale = hn::Set(d, block.replaced->factor);
    out = static_cast<T*>(block.replaced->out);
  }
  // Four vectors are joined before they meet an accumulator, whose chain of additions is then a quarter as long.
  const auto exponentials = [&](std::int64_t j, VF& x0, VF& x1, VF& x2, VF& x3) HWY_ATTR {
    const std::int64_t k = j + PairLanes();
    PrefetchPair(block.ahead + j);
    PrefetchPair(block.ahead + k);
    if constexpr (kKeep != Keep::kNone) {
      PrefetchPair(block.gradients + j);
      PrefetchPair(block.gradients + k);
    }
    LoadPair(d, block.logits + j, x0, x1);
    LoadPair(d, block.logits + k, x2, x3);
    if constexpr (kClamp) {
      x0 = hn::Max(x0, clamp);
      x1 = hn::Max(x1, clamp);
      x2 = hn::Max(x2, clamp);
      x3 = hn::Max(x3, clamp);
    }
    RegisterExp4(d, x0, x1, x2, x3, magic);
    if constexpr (kKeep == Keep::kReplace) {
      StoreScaled4<kInPairs<T, T> >(d, hn::LoadU(d, keep + j), hn::LoadU(d, keep + j + hn::Lanes(d)),
                                    hn::LoadU(d, keep + k), hn::LoadU(d, keep + k + hn::Lanes(d)), scale, out + j);
    }
    if constexpr (kKeep != Keep::kNone) {
      hn::StoreU(x0, d, keep + j);
      hn::StoreU(x1, d, keep + j + hn::Lanes(d));
      hn::StoreU(x2, d, keep + k);
      hn::StoreU(x3, d, keep + k + hn::Lanes(d));
    }
  };
  const auto add_digits = [&](VF x0, VF x1, VF x2, VF x3) HWY_ATTR {
    if constexpr (kDigits >= 3) AddDigit4(a0, x0, x1, x2, x3, magic0);
    if constexpr (kDigits >= 2) AddDigit4(a1, x0, x1, x2, x3, magic1);
    const VU sum01 = hn::Add(hn::BitCast(du, hn::Add(x0, magic2)), hn::BitCast(du, hn::Add(x1, magic2)));
    const VU sum23 = hn::Add(hn::BitCast(du, hn::Add(x2, magic2)), hn::BitCast(du, hn::Add(x3, magic2)));
    a2 = hn::Add(a2, hn::Add(sum01, sum23));
  };
  // The digits of four vectors are made beside the exponentials of the next four: two short chains to work on where one
  // long one would fill what the processor looks ahead.
  VF x0;
  VF x1;
  VF x2;
  VF x3;
  exponentials(0, x0, x1, x2, x3);
  for (std::int64_t j = QuadLanes(); j < block.count; j += QuadLanes()) {
    VF y0;
    VF y1;
    VF y2;
    VF y3;
    exponentials(j, y0, y1, y2, y3);
    add_digits(x0, x1, x2, x3);
    x0 = y0;
    x1 = y1;
    x2 = y2;
    x3 = y3;
  }
  add_digits(x0, x1, x2, x3);
  hn::Store(a0, du, accumulators.digit[0]);
  hn::Store(a1, du, accumulators.digit[1]);
  hn::Store(a2, du, accumulators.digit[2]);
  const auto added = static_cast<std::uint32_t>(block.count / static_cast<std::int64_t>(hn::Lanes(d)));
  for (int i = 3 - kDigits; i < 3; ++i) accumulators.count[i] += added;
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
    if constexpr (kKeep) cache_->begin_stretch();
    for (std::int64_t first = 0; first < stretch.classes; first += kBlock) {
      if (!AddOne(stretch, first, std::min(kBlock, stretch.classes - first))) return false;
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
  bool AddOne(const RowLogits& stretch, std::int64_t first, std::int64_t count) {
    const T* logits = static_cast<const T*>(stretch.logits) + first;
    const std::int64_t target = stretch.target - first;
    const bool target_here = target >= 0 && target < count;
    if (target_here && count == 1) return true;
    const T* gradients = stretch.gradients != nullptr ? static_cast<const T*>(stretch.gradients) + first : logits;
    Block<T> block{logits, WholeQuads(count), logits + kBlock, gradients, nullptr};
    Scan<T> scan;
    // A target that does not decide the maximum is added as any class, and then taken away: digits are integers.
    bool copied = block.count != count;
    if (!copied) {
      scan = ScanBlock(logits, count);
      copied = target_here && !(widen(logits[target]) < scan.max);
    }
    // In a copy, what is no class of the row is seen as some other class, which changes neither maximum nor minimum,
    // and added as a class without mass.
    const auto stand_in = [&](T value) {
      if (target_here) copy_[target] = value;
      std::fill(copy_ + count, copy_ + block.count, value);
    };
    if (copied) {
      std::copy(logits, logits + count, copy_);
      stand_in(logits[target_here && target == 0 ? 1 : 0]);
      block.logits = copy_;
      scan = ScanBlock(block.logits, block.count);
    }
    if (scan.holds_nan_or_positive_infinity) {
      not_finite_ = true;
      return true;
    }
    if (scan.max >= kHighest) return false;
    if (scan.max <= kLowest) {
      if (scan.max != -std::numeric_limits<float>::infinity()) seen_low_ = true;
      return true;
    }
    const std::int32_t bin = BinOf(scan.max);
    if (max_ <= kLowest || bin > bin_) Raise(bin);
    max_ = std::max(max_, scan.max);

    float* keep = nullptr;
    if constexpr (kKeep) keep = cache_->room(static_cast<std::size_t>(block.count));
    int digits = skipping_ ? digits_needed(bin, bin_) : 3;
    if (keep != nullptr) digits = std::max(digits, 1);  // its gradients will be asked for
    if (digits == 0) return true;
    const std::int64_t vectors = block.count / static_cast<std::int64_t>(hn::Lanes(D()));
    if (accumulators_.count[2] + static_cast<std::uint32_t>(vectors) > RegisterLane::kCapacity) {
      Flush(accumulators_, digits_);
    }
    if (copied) stand_in(MinusInfinity<T>());
    const bool above_clamp = scan.min > register_bin_.clamp;
    if (copied || !above_clamp) digits = kAllClamped;
    if (kKeep && keep != nullptr) {
      const DeferredBlock* replaced = cache_->deferred();
      if (digits != kAllClamped && replaced != nullptr && replaced->values == keep && replaced->count == block.count &&
          replaced->write == &WriteDeferred<T>) {
        block.replaced = replaced;
        block.gradients = static_cast<const T*>(replaced->out) + kBlock;
        AddDigits<Keep::kReplace>(digits, block, keep);
        cache_->skip_deferred();
        if (replaced->target >= 0) {
          round_to(replaced->target_gradient, &static_cast<T*>(replaced->out)[replaced->target]);
        }
      } else {
        cache_->write_deferred_before(keep + block.count);
        AddDigits<Keep::kKeep>(digits, block, keep);
      }
      if (above_clamp) cache_->keep({first, count, bin_, keep}, static_cast<std::size_t>(block.count));
    } else {
      AddDigits<Keep::kNone>(digits, block, nullptr);
    }
    if (target_here && !copied) TakeAway(widen(logits[target]));
    return true;
  }

  void TakeAway(float logit) {
    if (logit <= register_bin_.clamp) return;
    const ExpSplit y = exp_split(logit);
    const Digits digits = digits_of(y.mantissa, y.exponent, bin_);
    add(digits_, {-digits.d0, -digits.d1, -digits.d2});
  }

  // All three digits, with values below the clamp raised to it.
  static constexpr int kAllClamped = 0;

  template <Keep kKeepThese>
  void AddDigits(int digits, const Block<T>& block, float* keep) {
    switch (digits) {
      case 1:
        return AddBlock<1, false, kKeepThese>(block, register_bin_, accumulators_, keep);
      case 2:
        return AddBlock<2, false, kKeepThese>(block, register_bin_, accumulators_, keep);
      case 3:
        return AddBlock<3, false, kKeepThese>(block, register_bin_, accumulators_, keep);
      default:
        return AddBlock < 3, true,
               kKeepThese == Keep::kReplace ? Keep::kKeep : kKeepThese > (block, register_bin_, accumulators_, keep);
    }
  }

  void Raise(std::int32_t bin) {
    if (accumulators_.count[2] != 0) Flush(accumulators_, digits_);
    if (max_ > kLowest) digits_ = raised(digits_, std::int64_t{bin} - bin_);
    bin_ = bin;
    register_bin_ = register_bin(bin);
  }

  bool skipping_;
  ExpCache* cache_;
  bool seen_low_ = false;
  bool not_finite_ = false;
  float max_ = -std::numeric_limits<float>::infinity();
  std::int32_t bin_ = 0;
  RegisterBin register_bin_ = register_bin(0);
  Accumulators accumulators_;
  Digits digits_;
  HWY_ALIGN T copy_[kBlock];
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
  VU a0 = hn::Zero(du);
  VU a1 = hn::Zero(du);
  VU a2 = hn::Zero(du);
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
  Accumulators accumulators;
  hn::Store(a0, du, accumulators.digit[0]);
  hn::Store(a1, du, accumulators.digit[1]);
  hn::Store(a2, du, accumulators.digit[2]);
  for (std::uint32_t& additions : accumulators.count) additions = added;
  Flush(accumulators, top.digits = {});
  merge(squares, top);
}

// Exponentials of a block, in units of Q_b: those that forward kept, or made anew. At4() gives those of elements [j, j
// + QuadLanes()), of which the block may have fewer.
struct KeptExponentials {
  const float* values;  // whole quads

  void At4(D d, std::int64_t j, VF& y0, VF& y1, VF& y2, VF& y3) const {
    const float* p = values + j;
    y0 = hn::LoadU(d, p);
    y1 = hn::LoadU(d, p + hn::Lanes(d));
    y2 = hn::LoadU(d, p + 2 * hn::Lanes(d));
    y3 = hn::LoadU(d, p + 3 * hn::Lanes(d));
  }
};

template <class T, bool kPairs>
struct NewExponentials {
  const T* logits;
  std::int64_t count;
  float magic;  // of register_bin(b)

  void At4(D d, std::int64_t j, VF& y0, VF& y1, VF& y2, VF& y3) const {
    const T* p = logits + j;
    HWY_ALIGN T tail[4 * HWY_MAX_BYTES / sizeof(float)];
    if (count - j < QuadLanes()) {
      std::fill(tail, tail + QuadLanes(), p[0]);
      std::copy(p, logits + count, tail);
      p = tail;
    }
    if constexpr (kPairs) {
      LoadPair(d, p, y0, y1);
      LoadPair(d, p + PairLanes(), y2, y3);
    } else {
      y0 = LoadWide(d, p);
      y1 = LoadWide(d, p + hn::Lanes(d));
      y2 = LoadWide(d, p + 2 * hn::Lanes(d));
      y3 = LoadWide(d, p + 3 * hn::Lanes(d));
    }
    RegisterExp4(d, y0, y1, y2, y3, hn::Set(d, magic));
  }
};

// The one factor of a block's gradients, q 2^(k - B + 23 b), where every product with an exponential in [2^-87, 2^22]
// is a normal fp32: then RN(y q) 2^s is RN(y q 2^s). 0 where some product might not be.
HWY_INLINE float OneFactor(const RowGradient& gradient, std::int32_t bin) {
  const std::int64_t power = gradient.shift + std::int64_t{kBinBits} * bin;
  return power >= -38 && power <= 100 ? gradient.factor * static_cast<float>(power_of_two(power)) : 0.0f;
}

// Gradients of a block: exponentials times OneFactor().
template <bool kPairs, class Exponentials, class Out>
HWY_INLINE void ScaleBlock(const Exponentials& exponentials, std::int64_t count, float factor, Out* out) {
  const D d;
  const VF scale = hn::Set(d, factor);
  for (std::int64_t j = 0; j < count; j += QuadLanes()) {
    VF y0;
    VF y1;
    VF y2;
    VF y3;
    exponentials.At4(d, j, y0, y1, y2, y3);
    HWY_ALIGN Out tail[4 * HWY_MAX_BYTES / sizeof(float)];
    const bool whole = j + QuadLanes() <= count;
    Out* p = whole ? out + j : tail;
    StoreScaled4<kPairs>(d, y0, y1, y2, y3, scale, p);
    if (!whole) std::copy(tail, tail + (count - j), out + j);
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

template <class T>
void WriteDeferred(const DeferredBlock& block) {
  auto* out = static_cast<T*>(block.out);
  // Whatever stands in the target's place is overwritten with its gradient.
  ScaleBlock<kInPairs<T, T> >(KeptExponentials{block.values}, block.count, block.factor, out);
  if (block.target >= 0) round_to(block.target_gradient, &out[block.target]);
}

template <class T, class Out>
void GradientOfRow(const RowLogits& row, const RowGradient& gradient, void* gradients, BinnedSum* squares,
                   const KeptStretch& stretch) {
  const std::span<const CachedBlock> cached = stretch.blocks;
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
      if (std::is_same_v<T, Out> && kept_factor != 0.0f && direct) {
        const DeferredBlock block{&WriteDeferred<T>, kept->values,       count,          kept_factor,
                                  out + j,           here ? target : -1, gradient.target};
        if (stretch.cache != nullptr) {
          stretch.cache->defer(block);
        } else {
          WriteDeferred<T>(block);
        }
        continue;
      } else {
        const bool scales = factor != 0.0f && MinOf(logits + j, count) > bin.clamp;
        if (scales && direct) {
          const NewExponentials<T, kInPairs<T, Out> > exponentials{logits + j, count, bin.magic};
          ScaleBlock<kInPairs<T, Out> >(exponentials, count, factor, out + j);
        } else {
          float* dz = buffer;
          if constexpr (std::is_same_v<Out, float>) dz = out != nullptr ? out + j : buffer;
          if (scales) {
            ScaleBlock<false>(NewExponentials<T, false>{logits + j, count, bin.magic}, count, factor, dz);
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
