// What the studies that train share: a run that goes on from its checkpoint, the names of losses, and where a run ends.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sim/studies/study.h"
#include "sim/train/trainer.h"

namespace tpce::sim {

struct TrainedRun {
  std::vector<StepResult> history;
  std::vector<float> parameters;
};

// Trains to the configuration's last step on one thread, with a checkpoint from which it goes on. The checkpoint stays:
// the cell's result is not written yet, and a run that is killed before would begin anew.
TrainedRun train_to_end(const TrainConfig& config, const std::filesystem::path& checkpoint);

// The method, and the precision unless that is fp32; of a result, from its fields method and precision.
std::string loss_name(const LossOptions& loss);
std::string loss_name(const Json& result);

// Mean of the last tenth of the values, of one at least; NaN where one of them is not finite.
double last_tenth(const std::vector<double>& values);

// "a", "a and b", "a, b and c".
std::string enumerated(const std::vector<std::string>& words);

}  // namespace tpce::sim
