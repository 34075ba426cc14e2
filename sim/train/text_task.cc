#include "sim/train/text_task.h"

#include <algorithm>
#include <stdexcept>

#include "io/mapped_file.h"
#include "sim/train/byte_pairs.h"
#include "sim/train/random.h"
#include "sim/train/transformer.h"

namespace tpce::sim {

namespace {

// Sequences that accuracy is measured on.
constexpr std::int64_t kMeasured = 16;

std::string read_all(const std::vector<std::string>& files) {
  std::string text;
  for (const std::string& path : files) {
    const io::MappedFile file(path);
    text.append(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  }
  return text;
}

}  // namespace

TextTask::TextTask(const TrainConfig& config)
    : config_(config), tokens_(learn_byte_pairs(read_all(config.files), config.vocab).tokens) {
  const auto count = static_cast<std::int64_t>(tokens_.size());
  const std::int64_t held_out = count - count / 10;
  trained_ = config.train_tokens > 0 ? std::min(config.train_tokens, held_out) : held_out;
  if (trained_ <= config.sequence || count - held_out <= config.sequence) {
    throw std::invalid_argument("sequence: got " + std::to_string(config.sequence) + ", expected less than the " +
                                std::to_string(std::min(trained_, count - held_out)) +
                                " tokens that are trained on or held out");
  }
  batch_.per_row = seen_.per_row = held_out_.per_row = config.sequence;
  for (std::int64_t i = 0; i < kMeasured; ++i) {
    add_sequence(seen_, (trained_ - config.sequence - 1) * i / (kMeasured - 1));
    add_sequence(held_out_, held_out + (count - held_out - config.sequence - 1) * i / (kMeasured - 1));
  }
}

void TextTask::add_sequence(Examples& examples, std::int64_t first) const {
  const auto from = tokens_.begin() + first;
  examples.tokens.insert(examples.tokens.end(), from, from + config_.sequence);
  examples.labels.insert(examples.labels.end(), from + 1, from + config_.sequence + 1);
}

std::unique_ptr<Model<float>> TextTask::model() const {
  TransformerShape shape = config_.transformer;
  shape.vocab = config_.vocab;
  shape.sequence = config_.sequence;
  shape.partial_sums = config_.partial_sums ? config_.loss.tp : 1;
  return std::make_unique<Transformer<float>>(shape);
}

const Examples& TextTask::batch(std::int64_t step) {
  batch_.tokens.clear();
  batch_.labels.clear();
  const Philox random(static_cast<std::uint64_t>(config_.seed), Stream::kBatches);
  for (std::int64_t i = 0; i < config_.batch; ++i) {
    add_sequence(batch_,
                 random.below(static_cast<std::uint64_t>(step * config_.batch + i), trained_ - config_.sequence));
  }
  return batch_;
}

}  // namespace tpce::sim
