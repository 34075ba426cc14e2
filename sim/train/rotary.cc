#include "sim/train/transformer_layers.h"

namespace tpce::sim {

namespace {

struct Turn {
  double cosine;
  double sine;
};

// By Taylor's series for 0 <= angle <= 1; what is left out is below 1 / 23!.
Turn turn_by(double angle) {
  const double square = angle * angle;
  double cosine = 1.0, sine = 1.0;
  for (int n = 10; n >= 1; --n) {
    cosine = 1.0 - cosine * square / static_cast<double>((2 * n - 1) * (2 * n));
    sine = 1.0 - sine * square / static_cast<double>((2 * n) * (2 * n + 1));
  }
  return {cosine, sine * angle};
}

}  // namespace

RotaryTable::RotaryTable(std::int64_t positions, std::int64_t width)
    : half(width / 2),
      cosines(static_cast<std::size_t>(positions * half)),
      sines(static_cast<std::size_t>(positions * half)) {
  const double log_base = log_fp64(10000.0);
  for (std::int64_t i = 0; i < half; ++i) {
    const Turn step = turn_by(exp_fp64(-log_base * static_cast<double>(2 * i) / static_cast<double>(width)));
    Turn at{1.0, 0.0};
    for (std::int64_t position = 0; position < positions; ++position) {
      const auto index = static_cast<std::size_t>(position * half + i);
      cosines[index] = at.cosine;
      sines[index] = at.sine;
      at = {at.cosine * step.cosine - at.sine * step.sine, at.sine * step.cosine + at.cosine * step.sine};
    }
  }
}

}  // namespace tpce::sim
