#include "sim/parity/value_parity.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace tpce::sim {
using ulp_steps_detail::bits_of;

std::size_t UlpHistogram::bin_of(const std::optional<std::uint64_t>& steps) {
  if (!steps) return kUnordered;
  return *steps == 0 ? kOtherBits : kOneUlp + static_cast<std::size_t>(std::bit_width(*steps)) - 1;
}

std::string UlpHistogram::name_of(std::size_t bin) {
  if (bin == kSameBits) return "same bits";
  if (bin == kOtherBits) return "0, other bits";
  if (bin == kUnordered) return "NaN or number";
  const std::size_t exponent = bin - kOneUlp;
  if (exponent == 0) return "1";
  if (exponent < 8) return fmt::format("{}-{}", 1u << exponent, (2u << exponent) - 1);
  return fmt::format("2^{}", exponent);
}

bool is_worse(const DifferingPair& a, const DifferingPair& b) {
  if (!a.steps || !b.steps) return !a.steps && b.steps;
  return *a.steps > *b.steps;
}

template <class T>
void ValueParity::add(const ValuePlace& place, T a, T b) {
  ++values;
  const std::uint32_t a_bits = bits_of(a), b_bits = bits_of(b);
  if (a_bits == b_bits) {
    ++histogram.counts[UlpHistogram::kSameBits];
    return;
  }
  ++differing_values;
  differing_bits += std::popcount(a_bits ^ b_bits);
  const DifferingPair pair{place, widen(a), widen(b), a_bits, b_bits, ulp_steps(a, b)};
  ++histogram.counts[UlpHistogram::bin_of(pair.steps)];
  max_ulp = std::max(max_ulp, pair.steps.value_or(0));
  if (!worst || is_worse(pair, *worst)) worst = pair;
}

template <class T>
void ValueParity::add_row(const ValuePlace& place, std::span<const T> a, std::span<const T> b) {
  if (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0) {
    values += static_cast<std::int64_t>(a.size());
    histogram.counts[UlpHistogram::kSameBits] += static_cast<std::int64_t>(a.size());
    return;
  }
  for (std::size_t j = 0; j < a.size(); ++j) {
    add({place.file, place.row, place.column + static_cast<std::int64_t>(j)}, a[j], b[j]);
  }
}

template void ValueParity::add(const ValuePlace&, float, float);
template void ValueParity::add(const ValuePlace&, BFloat16, BFloat16);
template void ValueParity::add(const ValuePlace&, Float16, Float16);
template void ValueParity::add_row(const ValuePlace&, std::span<const float>, std::span<const float>);
template void ValueParity::add_row(const ValuePlace&, std::span<const BFloat16>, std::span<const BFloat16>);
template void ValueParity::add_row(const ValuePlace&, std::span<const Float16>, std::span<const Float16>);

}  // namespace tpce::sim
