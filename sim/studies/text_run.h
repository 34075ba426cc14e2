// A small transformer that learns a text with one loss or another: what the studies convergence and finetune train.
#pragma once

#include <filesystem>
#include <string>

#include "sim/studies/study.h"
#include "sim/train/config.h"

namespace tpce::sim {

// A text in the repository, for both studies' parameter `text`.
inline constexpr const char* kDefaultText = "data/text/pride_and_prejudice.txt";

// RMSNorm, rotary attention, SwiGLU, an untied head over 4096 byte pairs; AdamW.
TrainConfig text_config(const std::string& text, const LossOptions& loss);

// Runs the configuration to its end, one thread, with a checkpoint in the folder from which it goes on:
// steps (arrays of loss, grad_norm, collapsed and without_target shares, gradient_sum), the accuracies, and a sketch of
// the final parameters by which parameter_distance() compares runs.
Json run_text(const TrainConfig& config, const std::filesystem::path& folder, const std::string& key);

// Norm of the difference of two runs' final parameters over that of the first's, estimated from the sketches: 256
// random signs each (Johnson and Lindenstrauss), a standard error of about 4 %. 0 where the parameters are the same,
// NaN where a run diverged.
double parameter_distance(const Json& a, const Json& b);

// Loss and grad_norm in torchtitan's format, with what golden files made here record.
std::string golden_of(const Json& run);

}  // namespace tpce::sim
