// Functions that methods build from the arithmetic they are run in (sim/precision/).
//
// These are simulations, not canonical results: exp, log and log1p are those of the C library, while PyTorch calls
// SLEEF or MKL, and a GPU its own. Results may differ from real code, and between C libraries, in the last place.
#pragma once

#include <limits>
#include <type_traits>

namespace tpce::sim {

// torch.nn.functional.softplus with its defaults, beta = 1 and threshold = 20: the identity above the threshold.
template <class Arithmetic>
typename Arithmetic::Real softplus(typename Arithmetic::Real x) {
  using Real = typename Arithmetic::Real;
  return x > Real(20.0f) ? x : Arithmetic::log1p(Arithmetic::exp(x));
}

// The maximum as torch.amax takes it: NaN where any value is NaN; -inf of no value.
template <class Values>
auto max_of(const Values& values) {
  using Real = std::remove_cvref_t<decltype(values[0])>;
  Real largest = Real(-std::numeric_limits<float>::infinity());
  for (const Real& value : values) {
    if (value != value) return value;
    if (value > largest) largest = value;
  }
  return largest;
}

}  // namespace tpce::sim
