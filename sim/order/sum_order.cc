#include "sim/order/sum_order.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace tpce::sim {

SumOrder sum_order_from_name(std::string_view name) {
  const std::size_t colon = name.find(':');
  std::vector<std::string> names;
  for (const SumOrderInfo& info : kSumOrders) {
    names.push_back(info.parameter.empty() ? std::string(info.name) : fmt::format("{}:{}", info.name, info.parameter));
    if (info.name != name.substr(0, colon) || info.parameter.empty() != (colon == name.npos)) continue;
    if (info.parameter.empty()) return info.order;
    std::uint64_t parameter = 0;
    const char* end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + colon + 1, end, parameter);
    const std::uint64_t lowest = info.order.kind == SumOrderKind::kSplitK ? 1 : 0;
    if (error == std::errc() && stop == end && parameter >= lowest) return {info.order.kind, parameter};
    throw std::invalid_argument(
        fmt::format("sum order: got '{}', expected {} with a whole number of at least {}", name, names.back(), lowest));
  }
  throw std::invalid_argument(fmt::format("sum order: got '{}', expected one of {}", name, fmt::join(names, ", ")));
}

std::string name_of(const SumOrder& order) {
  const SumOrderInfo& info = kSumOrders[static_cast<std::size_t>(order.kind)];
  return info.parameter.empty() ? std::string(info.name) : fmt::format("{}:{}", info.name, order.parameter);
}

std::vector<std::uint32_t> permutation_of(std::size_t count, std::uint64_t seed) {
  std::vector<std::uint32_t> permutation(count);
  std::iota(permutation.begin(), permutation.end(), std::uint32_t{0});
  std::uint64_t state = seed;
  for (std::size_t left = count; left > 1; --left) {
    state += 0x9e3779b97f4a7c15u;
    std::uint64_t bits = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
    bits ^= bits >> 31;
    const std::size_t chosen = ((bits >> 32) * left) >> 32;  // below left
    std::swap(permutation[left - 1], permutation[chosen]);
  }
  return permutation;
}

}  // namespace tpce::sim
