#include "sim/studies/growth.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

namespace tpce::sim {

Growth growth_of(std::span<const GrowthPoint> points) {
  const auto usable = [](const GrowthPoint& point) {
    return std::isfinite(point.y) && point.y > 0 && point.weight > 0;
  };
  int count = 0;
  double weight = 0.0, x = 0.0, y = 0.0;
  for (const GrowthPoint& point : points) {
    if (!usable(point)) continue;
    ++count;
    weight += point.weight;
    x += point.weight * std::log2(point.x);
    y += point.weight * std::log2(point.y);
  }
  if (count < 2) return {};
  x /= weight;
  y /= weight;
  double xx = 0.0, xy = 0.0;
  for (const GrowthPoint& point : points) {
    if (!usable(point)) continue;
    const double dx = std::log2(point.x) - x;
    xx += point.weight * dx * dx;
    xy += point.weight * dx * (std::log2(point.y) - y);
  }
  Growth growth{.exponent = xy / xx};
  if (count < 3) return growth;
  double residuals = 0.0;
  for (const GrowthPoint& point : points) {
    if (!usable(point)) continue;
    const double residual = std::log2(point.y) - y - growth.exponent * (std::log2(point.x) - x);
    residuals += point.weight * residual * residual;
  }
  growth.standard_error = std::sqrt(residuals / (count - 2) / xx);
  return growth;
}

Growth slope_between(const GrowthPoint& a, const GrowthPoint& b) {
  const double octaves = std::log2(b.x / a.x);
  return {.exponent = std::log2(b.y / a.y) / octaves,
          .standard_error = std::sqrt(0.5 / a.weight + 0.5 / b.weight) / std::numbers::ln2 / octaves};
}

std::string exponent_text(double exponent) {
  const double rounded = std::round(100 * exponent) / 100;
  return fmt::format("{:.2f}", rounded == 0.0 ? 0.0 : rounded);
}

std::string growth_text(const Growth& growth) {
  const std::string law = fmt::format("V^({} +- {:.2f})", exponent_text(growth.exponent), growth.half_width());
  if (growth.may_be_none()) return fmt::format("shows no growth with V ({})", law);
  return fmt::format("{} as {}", growth.exponent > 0 ? "grows" : "falls", law);
}

}  // namespace tpce::sim
