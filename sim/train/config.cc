#include "sim/train/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <filesystem>
#include <set>
#include <sstream>

#include "io/error.h"
#include "io/mapped_file.h"
#include "io/sha256.h"
#include "sim/train/modular_addition.h"
#include "tpce/shard_plan.h"

namespace tpce::sim {

namespace {

struct Limits {
  double least;
  double most;
};

// One table of the file. What is read is noted, so that what is left is unknown.
class Table {
 public:
  Table(const std::string& file, std::string name, const toml::table& table)
      : file_(file), name_(std::move(name)), table_(table) {}

  template <class Integer>
  void whole(const char* key, Limits limits, Integer& value) {
    const toml::node* node = find(key);
    if (node == nullptr) return;
    const std::string expected = fmt::format("a whole number in {:.0f}..{:.0f}", limits.least, limits.most);
    value = static_cast<Integer>(whole_of(key, *node, limits, expected));
  }

  void real(const char* key, Limits limits, double& value) {
    const toml::node* node = find(key);
    if (node == nullptr) return;
    const auto number = node->is_number() ? node->value<double>() : std::nullopt;
    if (!number || !(*number >= limits.least && *number <= limits.most)) {
      refuse(key, *node, fmt::format("a number in {}..{}", limits.least, limits.most));
    }
    value = *number;
  }

  void text(const char* key, std::string& value) {
    const toml::node* node = find(key);
    if (node == nullptr) return;
    if (!node->is_string()) refuse(key, *node, "a string");
    value = *node->value<std::string>();
  }

  template <class Integer>
  void list(const char* key, Limits limits, std::vector<Integer>& values) {
    const toml::node* node = find(key);
    if (node == nullptr) return;
    const std::string expected = fmt::format("a list of whole numbers in {:.0f}..{:.0f}", limits.least, limits.most);
    if (!node->is_array() || node->as_array()->empty()) refuse(key, *node, expected);
    values.clear();
    for (const toml::node& element : *node->as_array()) {
      values.push_back(static_cast<Integer>(whole_of(key, element, limits, expected)));
    }
  }

  void flag(const char* key, bool& value) {
    const toml::node* node = find(key);
    if (node == nullptr) return;
    if (!node->is_boolean()) refuse(key, *node, "true or false");
    value = *node->value<bool>();
  }

  // Must be there.
  void texts(const char* key, std::vector<std::string>& values) {
    const toml::node* node = find(key);
    const char* expected = "a list of strings";
    if (node == nullptr) io::fail(file_, "{} is missing, expected {}", full(key), expected);
    if (!node->is_array() || node->as_array()->empty()) refuse(key, *node, expected);
    for (const toml::node& element : *node->as_array()) {
      if (!element.is_string()) refuse(key, element, expected);
      values.push_back(*element.value<std::string>());
    }
  }

  void choice(const char* key, const std::vector<std::string>& choices, std::string& value) {
    const toml::node* node = find(key);
    if (node == nullptr) io::fail(file_, "{} is missing, expected {}", full(key), fmt::join(choices, " or "));
    const auto text = node->value<std::string>();
    if (!text || std::find(choices.begin(), choices.end(), *text) == choices.end()) {
      refuse(key, *node, fmt::format("{}", fmt::join(choices, " or ")));
    }
    value = *text;
  }

  // An empty table where the file has none.
  Table table(const char* key) {
    static const toml::table none;
    const toml::node* node = find(key);
    if (node != nullptr && !node->is_table()) refuse(key, *node, "a table");
    return {file_, full(key), node != nullptr ? *node->as_table() : none};
  }

  // Throws where the table has a key that was not asked for.
  void finish() const {
    for (const auto& [key, node] : table_) {
      if (known_.contains(std::string(key.str()))) continue;
      io::fail(file_, "line {}: {} is unknown, expected {}", node.source().begin.line,
               full(io::printable(key.str()).c_str()), fmt::join(known_, ", "));
    }
  }

 private:
  const toml::node* find(const char* key) {
    known_.insert(key);
    return table_.get(key);
  }
  std::string full(const char* key) const { return name_.empty() ? key : name_ + "." + key; }

  std::int64_t whole_of(const char* key, const toml::node& node, Limits limits, const std::string& expected) const {
    const toml::value<std::int64_t>* number = node.as_integer();
    if (number == nullptr) refuse(key, node, expected);
    const std::int64_t value = number->get();
    if (static_cast<double>(value) < limits.least || static_cast<double>(value) > limits.most) {
      refuse(key, node, expected);
    }
    return value;
  }

  [[noreturn]] void refuse(const char* key, const toml::node& node, const std::string& expected) const {
    std::ostringstream got;
    node.visit([&](const auto& value) { got << value; });
    io::fail(file_, "line {}: {}: got {}, expected {}", node.source().begin.line, full(key),
             io::printable(got.str().substr(0, 60)), expected);
  }

  const std::string& file_;
  std::string name_;
  const toml::table& table_;
  std::set<std::string> known_;
};

toml::table parse(const std::string& path) {
  const io::MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  try {
    return toml::parse(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  } catch (const toml::parse_error& error) {
    io::fail(path, "line {}: {}", error.source().begin.line, error.description());
  }
}

void check_prime(const std::string& path, std::int64_t prime) {
  for (std::int64_t divisor = 2; divisor * divisor <= prime; ++divisor) {
    if (prime % divisor == 0) io::fail(path, "task.prime: got {}, expected a prime: {} divides it", prime, divisor);
  }
}

// Both sides of the split must have a pair, or their accuracy is that of nothing.
void check_share(const std::string& path, std::int64_t prime, double share) {
  const std::int64_t pairs = prime * prime, trained = pairs_trained_on(prime, share);
  if (trained >= 1 && trained < pairs) return;
  io::fail(path, "task.train_share: got {}, which trains on {} of {} pairs, expected 1..{}", share, trained, pairs,
           pairs - 1);
}

void read_text(const std::string& path, Table& task, Table& model, TrainConfig& config) {
  task.texts("files", config.files);
  for (std::string& file : config.files) {
    file = (std::filesystem::path(path).parent_path() / file).lexically_normal().string();
    if (!std::filesystem::is_regular_file(file)) io::fail(path, "task.files: {} is no file", io::printable(file));
  }
  task.whole("vocab", {257, 65536}, config.vocab);
  task.whole("sequence", {2, 4096}, config.sequence);
  task.whole("batch", {1, 4096}, config.batch);
  task.whole("train_tokens", {0, 1e12}, config.train_tokens);
  TransformerShape& shape = config.transformer;
  model.whole("width", {2, 16384}, shape.width);
  model.whole("layers", {1, 128}, shape.layers);
  model.whole("heads", {1, 256}, shape.heads);
  model.whole("feed_forward", {1, 65536}, shape.feed_forward);
  model.flag("partial_sums", config.partial_sums);
  if (shape.width % (2 * shape.heads) != 0) {
    io::fail(path, "model.width: got {}, expected a multiple of 2 heads = {}", shape.width, 2 * shape.heads);
  }
}

}  // namespace

TrainConfig read_config(const std::string& path) {
  const toml::table parsed = parse(path);
  TrainConfig config;
  Table root(path, "", parsed);
  root.whole("seed", {0, 1e15}, config.seed);
  root.whole("steps", {1, 1e9}, config.steps);
  root.whole("evaluate_every", {0, 1e9}, config.evaluate_every);
  root.whole("checkpoint_every", {1, 1e9}, config.checkpoint_every);

  Table task = root.table("task");
  std::string kind;
  task.choice("kind", {"modular_addition", "text"}, kind);
  Table model = root.table("model");
  if (kind == "text") {
    config.task = TaskKind::kText;
    read_text(path, task, model, config);
  } else {
    task.whole("prime", {2, 1009}, config.prime);
    task.real("train_share", {0.01, 0.99}, config.train_share);
    model.list("hidden", {1, 65536}, config.hidden);
    check_prime(path, config.prime);
    check_share(path, config.prime, config.train_share);
  }
  task.finish();
  model.finish();

  Table optimizer = root.table("optimizer");
  optimizer.real("learning_rate", {0, 1}, config.optimizer.learning_rate);
  optimizer.real("beta1", {0, 0.999999}, config.optimizer.beta1);
  optimizer.real("beta2", {0, 0.999999}, config.optimizer.beta2);
  optimizer.real("eps", {1e-37, 1}, config.optimizer.eps);
  optimizer.real("weight_decay", {0, 100}, config.optimizer.weight_decay);
  optimizer.whole("warmup_steps", {0, 1e9}, config.warmup_steps);
  optimizer.real("clip_grad_norm", {0, 1e30}, config.clip_grad_norm);
  optimizer.finish();

  Table loss = root.table("loss");
  loss.text("method", config.loss.method);
  loss.text("precision", config.loss.precision);
  loss.whole("tp", {1, ShardPlan::kMaxShards}, config.loss.tp);
  loss.finish();
  root.finish();
  try {
    (void)make_loss_head(config.loss);
  } catch (const std::invalid_argument& error) {
    io::fail(path, "loss.{}", error.what());
  }
  return config;
}

bool is_free_of_tp(const TrainConfig& config) {
  return is_free_of_tp(config.loss) && !(config.task == TaskKind::kText && config.partial_sums);
}

std::string identity_of(const TrainConfig& config) {
  std::string text = fmt::format("seed {}\n", config.seed);
  if (config.task == TaskKind::kModularAddition) {
    text += fmt::format("modular_addition {} {:a} hidden {}\n", config.prime, config.train_share,
                        fmt::join(config.hidden, " "));
  } else {
    for (const std::string& file : config.files) text += fmt::format("text {}\n", io::sha256_of_file(file));
    text += fmt::format("vocab {} sequence {} batch {} train_tokens {}\n", config.vocab, config.sequence, config.batch,
                        config.train_tokens);
    const TransformerShape& shape = config.transformer;
    text += fmt::format("transformer {} {} {} {} partial_sums {}\n", shape.width, shape.layers, shape.heads,
                        shape.feed_forward, config.partial_sums);
  }
  const AdamWOptions& adamw = config.optimizer;
  text += fmt::format("adamw {:a} {:a} {:a} {:a} {:a} warmup {} clip {:a}\n", adamw.learning_rate, adamw.beta1,
                      adamw.beta2, adamw.eps, adamw.weight_decay, config.warmup_steps, config.clip_grad_norm);
  text += fmt::format("loss {} {}", config.loss.method, config.loss.precision);
  if (!is_free_of_tp(config)) text += fmt::format(" tp {}", config.loss.tp);
  return text + "\n";
}

}  // namespace tpce::sim
