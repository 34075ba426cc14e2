// Built once a mutant, against a changed copy of tpce/: holds it against the certified cases, and hashes its bits.
//
//   subject CASES    prints "certified <cases that are out of bound>" and "bits <hash>"
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/support/accuracy_bounds.h"
#include "tests/support/ulp.h"
#include "tpce/register_form.h"
#include "tpce/row_finalize.h"

namespace {

using namespace tpce;
using testing::ulps_between;

constexpr float kInfinity = __builtin_inff();

// FNV-1a over the bits of whatever is computed.
class Hash {
 public:
  void add(std::uint64_t bits) {
    for (int i = 0; i < 8; ++i) {
      value_ = (value_ ^ (bits & 0xffu)) * 0x100000001b3u;
      bits >>= 8;
    }
  }
  void add(float x) { add(std::uint64_t{bit_cast<std::uint32_t>(x)}); }
  void add(double x) { add(bit_cast<std::uint64_t>(x)); }
  void add(std::int64_t x) { add(static_cast<std::uint64_t>(x)); }
  void add(const Digits& digits) {
    add(digits.d0);
    add(digits.d1);
    add(digits.d2);
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

// Of this file alone, so that no mutant changes the questions. Vigna's splitmix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

float float_of(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

struct Result {
  FinalRow row;
  std::vector<float> gradient;
};

Result result_of(const RowPartial& partial, const std::vector<float>& logits, std::int64_t target, double g) {
  Result result{finalize(partial), {}};
  const RowGradient gradient = row_gradient(result.row.saved, g);
  for (std::size_t j = 0; j < logits.size(); ++j) {
    const bool is_target = static_cast<std::int64_t>(j) == target;
    result.gradient.push_back(is_target ? gradient.target : non_target_gradient(gradient, logits[j]));
  }
  return result;
}

// The partials of three shards.
std::vector<RowPartial> shards_of(const std::vector<float>& logits, std::int64_t target) {
  std::vector<RowPartial> parts;
  const auto count = static_cast<std::int64_t>(logits.size());
  for (std::int64_t s = 0; s < 3; ++s) {
    const std::int64_t first = count * s / 3;
    parts.push_back(row_partial(logits.data() + first, count * (s + 1) / 3 - first, target - first));
  }
  return parts;
}

// The transport in two steps of docs/numerics.md, section 4.
RowPartial in_two_steps(const std::vector<RowPartial>& parts) {
  RowPartial row;
  std::uint32_t key = 0;
  for (const RowPartial& part : parts) {
    if (ordered_key(part.max_logit) > key) {
      key = ordered_key(part.max_logit);
      row.max_logit = part.max_logit;
    }
    row.flags |= part.flags;
    if ((part.flags & RowPartial::kTargetHere) != 0) row.target_logit = part.target_logit;
  }
  if ((row.flags & RowPartial::kNotFinite) != 0) return RowPartial::only_flags(row.flags);
  for (const RowPartial& part : parts) add(row.digits, digits_below(part, row.max_logit));
  return row;
}

// The digits as a kernel with fp32 registers gathers them, in blocks of eight. Only where |x| < 2^16.
Digits by_registers(const std::vector<float>& logits, std::int64_t target, float max_logit) {
  const std::int32_t bin = bin_of_logit(max_logit);
  const RegisterBin constants = register_bin(bin);
  Digits sum;
  for (std::size_t first = 0; first < logits.size(); first += 8) {
    float block_max = -kInfinity;
    std::vector<float> block;
    for (std::size_t j = first; j < logits.size() && j < first + 8; ++j) {
      if (static_cast<std::int64_t>(j) == target) continue;
      block.push_back(logits[j]);
      block_max = logits[j] > block_max ? logits[j] : block_max;
    }
    if (!(block_max > -kInfinity)) continue;
    RegisterLane lane;
    const int needed = digits_needed(bin_of_logit(block_max), bin);
    for (const float x : block) {
      const float y = register_exp(x > constants.clamp ? x : constants.clamp, constants);
      if (needed == 3) add<3>(lane, y);
      if (needed == 2) add<2>(lane, y);
      if (needed == 1) add<1>(lane, y);
    }
    if (needed == 3) add(sum, flush<3>(lane));
    if (needed == 2) add(sum, flush<2>(lane));
    if (needed == 1) add(sum, flush<1>(lane));
  }
  return sum;
}

bool fits_registers(const std::vector<float>& logits, const RowPartial& partial) {
  if (class_of(partial.max_logit) != RowClass::kGrid) return false;
  for (const float x : logits) {
    if (!(std::fabs(x) < 0x1p16f) && x != -kInfinity) return false;
  }
  return true;
}

// Values that are exactly zero must be +0, and NaN the canonical one.
bool is_within(float got, double truth, double ulps) {
  if (std::isnan(truth)) return bits_of(got) == 0x7fc00000u;
  const auto rounded = static_cast<float>(truth);
  if (std::isinf(rounded)) return got == rounded;
  if (got == 0.0f && bits_of(got) != 0) return false;
  return ulps_between(static_cast<double>(got), truth) <= ulps;
}

struct CertifiedRow {
  std::vector<float> logits;
  std::int64_t target = 0;
  double g = 1.0;
  double loss = 0.0;
  double lse = 0.0;
  std::vector<double> gradient;
};

bool is_right(const Result& result, const CertifiedRow& truth) {
  const auto vocab = static_cast<std::int64_t>(truth.logits.size());
  const FinalRow& row = result.row;
  bool right = is_within(std::isnan(row.nll) ? canonical_nan() : static_cast<float>(row.nll), truth.loss,
                         testing::loss_bound(vocab));
  if (std::isnan(truth.lse)) {
    right = right && std::isnan(row.lse) && row.saved.status == RowStatus::kNotFinite;
  } else {
    right = right && row.saved.status == RowStatus::kValid &&
            (row.lse == truth.lse ||
             std::fabs(row.lse - truth.lse) <= testing::kSumBound + 0x1p-40 + 0x1p-50 * std::fabs(truth.lse));
  }
  for (std::size_t j = 0; j < truth.logits.size(); ++j) {
    const bool is_target = static_cast<std::int64_t>(j) == truth.target;
    const double bound = is_target ? testing::target_gradient_bound(vocab) : testing::gradient_bound(vocab);
    right = right && is_within(result.gradient[j], truth.gradient[j], bound);
  }
  return right;
}

bool is_right(const CertifiedRow& truth) {
  const auto count = static_cast<std::int64_t>(truth.logits.size());
  const RowPartial whole = row_partial(truth.logits.data(), count, truth.target);
  const std::vector<RowPartial> parts = shards_of(truth.logits, truth.target);
  RowPartial forward, backward;
  for (std::size_t s = 0; s < parts.size(); ++s) {
    merge(forward, parts[s]);
    merge(backward, parts[parts.size() - 1 - s]);
  }
  bool right = true;
  for (const RowPartial& partial : {whole, forward, backward, in_two_steps(parts)}) {
    right = right && is_right(result_of(partial, truth.logits, truth.target, truth.g), truth);
  }
  if (fits_registers(truth.logits, whole)) {
    RowPartial registers = whole;
    registers.digits = by_registers(truth.logits, truth.target, whole.max_logit);
    right = right && is_right(result_of(registers, truth.logits, truth.target, truth.g), truth);
  }
  return right;
}

class Cases {
 public:
  explicit Cases(const char* path) : file_(std::fopen(path, "r")) {
    if (file_ == nullptr) std::exit(3);
  }
  ~Cases() { std::fclose(file_); }
  Cases(const Cases&) = delete;
  Cases& operator=(const Cases&) = delete;

  int count_wrong() {
    int wrong = 0;
    char kind[16];
    while (std::fscanf(file_, "%15s", kind) == 1) {
      if (!next_is_right(kind)) ++wrong;
    }
    return wrong;
  }

 private:
  double number() {
    double value;
    if (std::fscanf(file_, "%la", &value) != 1) std::exit(3);
    return value;
  }
  std::int64_t integer() {
    long long value;
    if (std::fscanf(file_, "%lld", &value) != 1) std::exit(3);
    return value;
  }

  bool next_is_right(const char* kind) {
    if (std::strcmp(kind, "row") == 0) return row_is_right();
    if (std::strcmp(kind, "split") == 0) return split_is_right();
    if (std::strcmp(kind, "round") == 0) return rounding_is_right();
    if (std::strcmp(kind, "sum") == 0) return sum_is_right();
    const double x = number();
    const double high = number();
    const double low = number();
    const double got = std::strcmp(kind, "exp") == 0   ? exp_fp64(x)
                       : std::strcmp(kind, "log") == 0 ? log_fp64(x)
                                                       : log1p_fp64(x);
    if (high == 0.0) return got == 0.0 || got == 0x1p-1074;  // below half of the smallest subnormal
    const int exponent = std::ilogb(high) - 52;
    return std::fabs((got - high) - low) < std::ldexp(1.0, exponent < -1074 ? -1074 : exponent);
  }

  bool row_is_right() {
    CertifiedRow row;
    row.logits.resize(static_cast<std::size_t>(integer()));
    row.target = integer();
    row.g = number();
    for (float& logit : row.logits) logit = static_cast<float>(number());
    row.loss = number();
    row.lse = number();
    row.gradient.resize(row.logits.size());
    for (double& dz : row.gradient) dz = number();
    return is_right(row);
  }

  bool split_is_right() {
    const auto x = static_cast<float>(number());
    const double truth = number();
    const std::int64_t n = integer();
    const ExpSplit y = exp_split(x);
    if (std::llabs(y.exponent - n) > 1 || !(y.mantissa >= 0.706f && y.mantissa <= 1.417f)) return false;
    const double got = std::ldexp(static_cast<double>(y.mantissa), static_cast<int>(y.exponent - n));
    return std::fabs(got - truth) <= truth * 1.51 * 0x1p-24;
  }

  bool rounding_is_right() {
    const float x = float_of(static_cast<std::uint32_t>(integer()));
    const std::int64_t brain = integer();
    const std::int64_t half = integer();
    BFloat16 b;
    Float16 h;
    float f;
    double d;
    round_to(x, &b);
    round_to(x, &h);
    round_to(x, &f);
    round_to(x, &d);
    // What was rounded widens to a value that rounds to itself.
    BFloat16 b_again;
    Float16 h_again;
    round_to(widen(b), &b_again);
    round_to(widen(h), &h_again);
    bool right = b.bits == brain && h.bits == half && b_again.bits == b.bits && h_again.bits == h.bits;
    // Both widen to a neighbour of x.
    if (std::fabs(x) < 60000.0f) {
      right = right && std::fabs(widen(b) - x) <= std::fabs(x) * 0x1p-8f + 0x1p-134f;
      right = right && std::fabs(widen(h) - x) <= std::fabs(x) * 0x1p-11f + 0x1p-25f;
    }
    const bool is_nan_input = std::isnan(x);
    right = right && (is_nan_input ? bits_of(f) == 0x7fc00000u : bits_of(f) == (x == 0.0f ? 0u : bits_of(x)));
    std::uint64_t double_bits;
    std::memcpy(&double_bits, &d, sizeof d);
    return right && (is_nan_input ? double_bits == 0x7ff8000000000000u
                                  : d == static_cast<double>(x) && (d != 0.0 || double_bits == 0));
  }

  // Each term loses at most Q_(b-2) / 2, 2^-45 of the largest; each square is rounded to 24 bits first.
  bool sum_is_right() {
    std::vector<float> terms(static_cast<std::size_t>(integer()));
    double largest = 0.0;
    for (float& term : terms) {
      term = static_cast<float>(number());
      largest = std::fmax(largest, std::fabs(static_cast<double>(term)));
    }
    const double sum = number();
    const double squares = number();
    BinnedSum forward, left, right, square_sum;
    for (std::size_t i = 0; i < terms.size(); ++i) {
      add(forward, terms[i]);
      add(i % 3 == 0 ? left : right, terms[i]);
      add_square(square_sum, terms[i]);
    }
    BinnedSum merged = left;
    merge(merged, right);
    merge(right, left);
    const double count = static_cast<double>(terms.size());
    return forward == merged && forward == right && forward.flags == 0 &&
           std::fabs(value_of(forward) - sum) <= count * largest * 0x1p-44 + 0x1p-190 &&
           std::fabs(value_of(square_sum) - squares) <= squares * 0x1p-23;
  }

  std::FILE* file_;
};

// Statuses and flags that no certified value stands for: each is a line of docs/numerics.md, sections 4 and 5.
int wrong_states() {
  const float one = 1.0f;
  const float nan = float_of(0x7fc00000u);
  int wrong = 0;
  const auto expect = [&](bool right) { wrong += right ? 0 : 1; };
  const RowPartial here = row_partial(&one, 1, 0);
  const RowPartial elsewhere = row_partial(&one, 1, -1);
  RowPartial twice = here;
  merge(twice, here);
  expect(finalize(twice).saved.status == RowStatus::kTargetTwice);
  expect(twice == RowPartial::only_flags(RowPartial::kTargetHere | RowPartial::kTargetTwice));
  RowPartial more = elsewhere;
  merge(more, twice);
  expect(more == twice);
  expect(finalize(elsewhere).saved.status == RowStatus::kTargetMissing);
  expect(finalize(RowPartial::only_flags(RowPartial::kIgnored)).saved.status == RowStatus::kIgnored);
  expect(finalize(RowPartial::only_flags(RowPartial::kIgnored)).nll == 0.0);
  RowPartial flagged = here;
  merge(flagged, row_partial(&nan, 1, -1));
  expect(flagged == RowPartial::only_flags(RowPartial::kTargetHere | RowPartial::kNotFinite));
  expect(row_partial(&nan, 1, 0) == flagged);
  expect(finalize(flagged).saved.status == RowStatus::kNotFinite);
  const float zeros[] = {-0.0f, -0.0f};
  expect(bits_of(row_partial(zeros, 2, 1).max_logit) == 0 && bits_of(row_partial(zeros, 2, 1).target_logit) == 0);
  SavedRow ignored;
  expect(row_gradient(ignored, static_cast<double>(nan)).kind == RowGradient::Kind::kZero);
  SavedRow valid;
  valid.status = RowStatus::kValid;
  expect(row_gradient(valid, static_cast<double>(kInfinity)).kind == RowGradient::Kind::kNan);

  expect(class_of(-0x1p30f) == RowClass::kGrid && class_of(0x1p30f) == RowClass::kGrid);
  expect(class_of(-0x1.000002p30f) == RowClass::kHugeNegative && class_of(0x1.000002p30f) == RowClass::kHugePositive);

  // Every value of both 16-bit types widens exactly.
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto decoded = [&](int fraction_bits, int bias) {
      const int field = static_cast<int>((bits & 0x7fffu) >> fraction_bits);
      const int fraction = static_cast<int>(bits & ((1u << fraction_bits) - 1u));
      const double magnitude = field == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                                          : std::ldexp((1 << fraction_bits) + fraction, field - bias - fraction_bits);
      return (bits & 0x8000u) != 0 ? -magnitude : magnitude;
    };
    const auto narrow = static_cast<std::uint16_t>(bits);
    if ((bits & 0x7f80u) != 0x7f80u) expect(static_cast<double>(widen(BFloat16{narrow})) == decoded(7, 127));
    if ((bits & 0x7c00u) != 0x7c00u) expect(static_cast<double>(widen(Float16{narrow})) == decoded(10, 15));
  }
  expect(widen(Float16{0xfc00}) == -kInfinity && std::isnan(widen(Float16{0x7e00})));

  const auto sum_of = [](float a, float b) {
    BinnedSum sum;
    add(sum, a);
    add(sum, b);
    add(sum, 1.0f);
    return value_of(sum);
  };
  expect(sum_of(kInfinity, 1.0f) == static_cast<double>(kInfinity));
  expect(sum_of(-kInfinity, 1.0f) == static_cast<double>(-kInfinity));
  expect(std::isnan(sum_of(kInfinity, -kInfinity)) && std::isnan(sum_of(nan, 1.0f)));
  BinnedSum infinite;
  add_square(infinite, -kInfinity);
  expect(value_of(infinite) == static_cast<double>(kInfinity));
  BinnedSum of_nan, of_one;
  add(of_nan, nan);
  add(of_one, 1.0f);
  merge(of_one, of_nan);
  expect(std::isnan(value_of(of_one)));
  BinnedSum empty, three;
  add(three, 3.0f);
  merge(empty, three);
  expect(empty == three && value_of(BinnedSum()) == 0.0);

  // A full lane of the largest digits.
  RegisterLane lane;
  for (std::uint32_t i = 0; i < RegisterLane::kCapacity; ++i) add<3>(lane, 0.5f);
  expect(flush<3>(lane) == (Digits{0, std::int64_t{RegisterLane::kCapacity} << 22, 0}));
  add<3>(lane, 3.0f);
  expect(flush<3>(lane) == (Digits{3, 0, 0}));
  // Every clamp has zero digits and keeps the exponent from wrapping.
  for (std::int32_t bin = -4000; bin <= 4000; bin += 50) {
    const RegisterBin constants = register_bin(bin);
    const ExpSplit y = exp_split(constants.clamp);
    const int exponent = y.exponent - kBinBits * bin;
    expect(exponent >= -125 && exponent <= -48);
  }
  return wrong;
}

void hash_rows(Hash& hash) {
  Random random(1);
  for (int i = 0; i < 1500; ++i) {
    std::vector<float> logits(1 + random.next() % 48);
    const double spread = std::ldexp(1.0, static_cast<int>(random.next() % 10));
    const double offset = i % 5 == 0 ? std::ldexp(random.uniform() - 0.5, static_cast<int>(random.next() % 31)) : 0.0;
    for (float& logit : logits) logit = static_cast<float>(offset + spread * (random.uniform() - 0.5));
    const auto target = static_cast<std::int64_t>(random.next() % logits.size());
    if (i % 3 == 0) logits[static_cast<std::size_t>(target)] += static_cast<float>(40.0 * random.uniform());
    const auto count = static_cast<std::int64_t>(logits.size());
    const RowPartial partial = row_partial(logits.data(), count, target);
    hash.add(partial.digits);
    hash.add(partial.max_logit);
    const Result result = result_of(partial, logits, target, random.uniform() - 0.5);
    hash.add(result.row.nll);
    hash.add(result.row.lse);
    hash.add(result.row.saved.sum);
    hash.add(result.row.saved.non_target_probability);
    BinnedSum squares;
    for (const float dz : result.gradient) {
      hash.add(dz);
      add_square(squares, dz);
    }
    hash.add(squares.digits);
    hash.add(value_of(squares));
    if (fits_registers(logits, partial)) hash.add(by_registers(logits, target, partial.max_logit));
  }
}

void hash_functions(Hash& hash) {
  Random random(2);
  for (int i = 0; i < 60'000; ++i) {
    const float x = float_of(static_cast<std::uint32_t>(random.next()));
    if (std::fabs(x) <= 0x1p30f) {
      const ExpSplit y = exp_split(x);
      hash.add(y.mantissa);
      hash.add(std::int64_t{y.exponent});
      hash.add(digits_of(y.mantissa, y.exponent, bin_of_exponent(y.exponent)));
    }
    const auto near = static_cast<float>(200.0 * (random.uniform() - 0.5));
    hash.add(exp_split(near).mantissa);
    hash.add(exp_fp64(-746.0 * random.uniform()));
    hash.add(exp_fp64(-random.uniform()));
    hash.add(log_fp64(std::ldexp(1.0 + random.uniform(), static_cast<int>(random.next() % 100) - 30)));
    hash.add(log1p_fp64(random.uniform()));
    const auto digit = [&] { return static_cast<std::int64_t>(random.next() >> 12) - (std::int64_t{1} << 51); };
    hash.add(value_of(Digits{digit(), digit(), digit()}));
    // Digits of ties.
    const auto tie = static_cast<float>(static_cast<double>(random.next() % 4096) + 0.5);
    const int n = std::ilogb(tie);
    for (int place = 0; place < 3; ++place) hash.add(digits_of(std::ldexp(tie, -n), n - 23 * place, 0));
    RegisterLane lane;
    add<3>(lane, std::ldexp(tie, -23 * static_cast<int>(random.next() % 3)));
    hash.add(flush<3>(lane));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 3;
  alarm(60);  // a mutant may loop
  const int wrong = Cases(argv[1]).count_wrong() + wrong_states();
  Hash hash;
  hash_rows(hash);
  hash_functions(hash);
  std::printf("certified %d\nbits %016llx\n", wrong, static_cast<unsigned long long>(hash.value()));
  return 0;
}
