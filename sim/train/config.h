// What a training run is: read from a TOML file, checked to the last key.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/train/adamw.h"
#include "sim/train/loss_head.h"

namespace tpce::sim {

enum class TaskKind : std::uint8_t { kModularAddition, kText };

struct TrainConfig {
  TaskKind task = TaskKind::kModularAddition;
  std::int64_t seed = 1;
  std::int64_t steps = 100;
  std::int64_t evaluate_every = 0;      // steps; 0: at the end alone
  std::int64_t checkpoint_every = 100;  // steps, where a checkpoint is wanted at all

  // Modular addition, learned by a perceptron on all training pairs at every step.
  std::int64_t prime = 113;
  double train_share = 0.7;
  std::vector<std::int64_t> hidden = {200, 200};

  AdamWOptions optimizer;
  std::int64_t warmup_steps = 0;  // over which the learning rate rises from 0
  double clip_grad_norm = 0.0;    // 0: never
  LossOptions loss;
};

// Throws std::invalid_argument, one line that names the file, the line and the key: text that is not TOML, an unknown
// key, a value of another type or out of range, a key that is missing.
TrainConfig read_config(const std::string& path);

// Everything that a bit of the trajectory depends on, in one text; not the number of steps, so that a run may go on.
std::string identity_of(const TrainConfig& config);

}  // namespace tpce::sim
