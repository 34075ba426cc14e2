// Two trajectories drawn: for each metric that both have, the curves and their difference.
#pragma once

#include <string>

#include "golden/trajectory.h"

namespace tpce::golden {

// An SVG picture, drawn by gnuplot. Numbers that are not finite leave a gap. A scale is logarithmic where all numbers
// are above 0 and the largest is over 1000 times the least. Throws std::runtime_error where gnuplot is missing, and
// std::invalid_argument where the two share no metric.
std::string plot_svg(const Trajectory& a, const Trajectory& b);

}  // namespace tpce::golden
