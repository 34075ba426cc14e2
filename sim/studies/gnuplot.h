// Plots, drawn by the program gnuplot.
#pragma once

#include <string>
#include <string_view>

namespace tpce::sim {

// Runs gnuplot on the script, given on its standard input, and returns what it wrote to its standard output (the plot,
// where the script sets no output). Throws std::runtime_error with gnuplot's own message where it is missing or fails.
std::string run_gnuplot(std::string_view script);

}  // namespace tpce::sim
