// What a training run is: read from a TOML file, checked to the last key.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/train/adamw.h"
#include "sim/train/loss_head.h"
#include "sim/train/transformer_shape.h"

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

  // The next token of a text, learned by a transformer on random sequences; its vocab and sequence are those here.
  std::vector<std::string> files;
  std::int64_t vocab = 4096;
  std::int64_t sequence = 128;
  std::int64_t batch = 16;        // sequences a step
  std::int64_t train_tokens = 0;  // train on the first of them alone; 0: on all that are not held out
  TransformerShape transformer;
  bool partial_sums = false;  // TransformerShape::partial_sums is tp

  AdamWOptions optimizer;
  std::int64_t warmup_steps = 0;  // over which the learning rate rises from 0
  double clip_grad_norm = 0.0;    // 0: never
  LossOptions loss;
};

// Files that it names are relative to its own folder. Throws std::invalid_argument, one line that names the file, the
// line and the key: text that is not TOML, an unknown key, a value of another type or out of range, a key that is
// missing.
TrainConfig read_config(const std::string& path);

// True where no bit of the trajectory depends on tp.
bool is_free_of_tp(const TrainConfig& config);

// Everything that a bit of the trajectory depends on, in one text, the contents of its files among it; not the number
// of steps, so that a run may go on. Throws where a file cannot be read.
std::string identity_of(const TrainConfig& config);

}  // namespace tpce::sim
