// Plots, drawn by the gnuplot program.
#pragma once

#include <string>
#include <string_view>

namespace tpce::io {

// Runs gnuplot on the script, data and all, and returns what it prints: with "set terminal svg" and no "set output",
// the picture. No file is made. Throws std::runtime_error where gnuplot is missing or fails, with its first line of
// complaint.
std::string run_gnuplot(std::string_view script);

// `text` as a string of gnuplot's language, quotes included; control characters become spaces.
std::string gnuplot_string(std::string_view text);

}  // namespace tpce::io
