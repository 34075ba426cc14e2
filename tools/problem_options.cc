#include "tools/problem_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "io/atomic_file.h"
#include "io/error.h"
#include "simd/executor.h"
#include "tools/ranks.h"
#include "tpce/shard_plan.h"

namespace tpce::tools {

namespace {

constexpr const char* kWholeNumber = "a whole number of at most 64 bits";

EmptyMean empty_mean_from_name(const std::string& name) {
  if (name == "nan") return EmptyMean::kNan;
  if (name == "zero") return EmptyMean::kZero;
  throw std::invalid_argument(fmt::format("empty-mean: got {}, expected nan or zero", io::quote(name)));
}

void check_cast(const std::string& name) {
  if (name != "fp32") throw std::invalid_argument(fmt::format("cast: got {}, expected fp32", io::quote(name)));
}

}  // namespace

std::optional<std::int64_t> parse_whole_number(const std::string& text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stopped != end) return std::nullopt;
  return value;
}

std::string whole_number(const std::string& text) {
  const auto value = parse_whole_number(text);
  if (!value) throw CLI::ValidationError(fmt::format("got {}, expected {}", io::quote(text), kWholeNumber));
  return std::to_string(*value);
}

std::function<std::string(const std::string&)> whole_number_in(std::int64_t least, std::int64_t most) {
  return [=](const std::string& text) {
    const std::string number = whole_number(text);
    const std::int64_t value = *parse_whole_number(text);
    if (value < least || value > most) {
      throw CLI::ValidationError(fmt::format("got {}, expected {}..{}", value, least, most));
    }
    return number;
  };
}

std::string number_of_threads(const std::string& text) { return whole_number_in(0, simd::kMaxThreads)(text); }

std::string number_of_shards(const std::string& text) { return whole_number_in(1, ShardPlan::kMaxShards)(text); }

std::vector<std::int64_t> parse_whole_numbers(std::string_view option, const std::string& text,
                                              std::string_view expected) {
  std::vector<std::int64_t> numbers;
  const char* at = text.data();
  const char* end = at + text.size();
  for (;;) {
    std::int64_t number = 0;
    const auto [stopped, error] = std::from_chars(at, end, number);
    if (error != std::errc() || (stopped != end && *stopped != ',')) {
      throw std::invalid_argument(fmt::format("{}: got {}, expected {}", option, io::quote(text), expected));
    }
    numbers.push_back(number);
    if (stopped == end) return numbers;
    at = stopped + 1;
  }
}

std::vector<std::int64_t> parse_widths(const std::string& text) {
  return parse_whole_numbers("shards", text, "widths separated by commas, such as 1000,0,24");
}

bool same_file(const std::string& a, const std::string& b) {
  std::error_code missing;
  if (std::filesystem::equivalent(a, b, missing)) return true;
  const auto place = [&](const std::string& path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(io::follow_links(path)), missing);
  };
  return place(a) == place(b);
}

std::vector<std::pair<std::string, std::string>> changed_options(const Request& request) {
  const Options defaults, &options = request.options;
  std::vector<std::pair<std::string, std::string>> changed;
  if (options.reduction != defaults.reduction) changed.emplace_back("reduction", name_of(options.reduction));
  if (options.ignore_index != defaults.ignore_index) {
    changed.emplace_back("ignore_index", std::to_string(options.ignore_index));
  }
  if (request.vocab) changed.emplace_back("vocab", std::to_string(*request.vocab));
  if (options.empty_mean != defaults.empty_mean) changed.emplace_back("empty_mean", "zero");
  if (request.cast_to_fp32) changed.emplace_back("cast", "fp32");
  return changed;
}

void ProblemOptions::add_problem_to(CLI::App& command) {
  command
      .add_option("--labels", labels_,
                  "labels [T], int32 or int64, in a file of their own; once for each FILE, in order")
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->default_str("");
  command.add_option("--tensor", tensor_, "name of the logits in a .safetensors file")
      ->type_name("NAME")
      ->default_str("logits");
  command.add_option("--label-tensor", label_tensor_, "name of the labels in a .safetensors file")
      ->type_name("NAME")
      ->default_str("labels");
  command.add_option("--dtype", dtype_, "element type that the logits must have; bf16 reads a .npy of uint16 or <V2")
      ->type_name("fp32|fp64|bf16|fp16");
  command.add_option("--cast", cast_, "round fp64 logits to fp32 first, which the canonical method needs")
      ->type_name("fp32");
  command.add_option("--vocab", vocab_, "classes; columns beyond are padding, carry no mass and get gradient 0")
      ->type_name("N")
      ->transform(whole_number);
  command.add_option("--ignore-index", ignore_index_, "rows with this label are ignored")
      ->type_name("K")
      ->transform(whole_number)
      ->default_str(std::to_string(Options().ignore_index));
  command.add_option("--reduction", reduction_, "over the rows that are not ignored")
      ->type_name("none|sum|mean")
      ->default_str("mean");
  command.add_option("--empty-mean", empty_mean_, "the mean where every row is ignored")
      ->type_name("nan|zero")
      ->default_str("nan");
}

void ProblemOptions::add_non_finite_to(CLI::App& command) {
  command
      .add_option("--non-finite", non_finite_,
                  "what a row with NaN or +inf, or nothing above -inf, does: its loss and gradient are NaN, or the "
                  "program names it and stops")
      ->type_name("nan|error");
}

void ProblemOptions::add_threads_to(CLI::App& command) {
  command.add_option("--threads", threads_, "threads of each process, or 0: as many as it may use")
      ->type_name("N")
      ->transform(number_of_threads);
}

void ProblemOptions::add_runtime_to(CLI::App& command, bool with_method) {
  auto* tp =
      command.add_option("--tp", tp_, "cut the vocabulary into N even shards; unless given 1, under mpirun one a rank")
          ->type_name("N")
          ->transform(number_of_shards);
  command.add_option("--shards", shards_, "cut it into shards of these widths, which add up to the columns")
      ->type_name("W,W,...")
      ->excludes(tp);
  command.add_option("--backend", backend, "what computes; unless given, the fastest that runs the method")
      ->type_name(fmt::format("{}", fmt::join(backend_names(), "|")));
  add_threads_to(command);
  if (with_method) {
    command.add_option("--method", method, "the loss; canonical unless given, certified with --backend reference")
        ->type_name(fmt::format("{}", fmt::join(method_names(), "|")));
  }
}

io::LogitsRequest ProblemOptions::input(const std::vector<std::string>& files, std::size_t i) const {
  if (!labels_.empty() && labels_.size() != files.size()) {
    throw std::invalid_argument(
        fmt::format("labels: got {} files for {} of logits, expected one each", labels_.size(), files.size()));
  }
  return {.file = files[i],
          .labels_file = labels_.empty() ? std::nullopt : std::optional(labels_[i]),
          .tensor = tensor_,
          .label_tensor = label_tensor_,
          .dtype = dtype_ ? std::optional(dtype_from_name(*dtype_)) : std::nullopt};
}

void ProblemOptions::set_default(const std::string& name, const std::string& value) {
  const auto number = [&] {
    const auto parsed = parse_whole_number(value);
    if (!parsed)
      throw std::invalid_argument(fmt::format("{}: got {}, expected {}", name, io::quote(value), kWholeNumber));
    return parsed;
  };
  if (name == "reduction") {
    (void)reduction_from_name(value);
    if (!reduction_) reduction_ = value;
  } else if (name == "ignore_index") {
    const auto parsed = number();
    if (!ignore_index_) ignore_index_ = parsed;
  } else if (name == "vocab") {
    const auto parsed = number();
    if (!vocab_) vocab_ = parsed;
  } else if (name == "empty_mean") {
    (void)empty_mean_from_name(value);
    if (!empty_mean_) empty_mean_ = value;
  } else if (name == "cast") {
    check_cast(value);
    if (!cast_) cast_ = value;
  }
}

Request ProblemOptions::request(const std::string& default_method) const {
  const std::optional<std::string> chosen = method || default_method.empty() ? method : std::optional(default_method);
  Request request{.choice = choose_method(chosen, backend),
                  .tp = 1,
                  .shards = shards_ ? parse_widths(*shards_) : std::vector<std::int64_t>(),
                  .vocab = vocab_,
                  .cast_to_fp32 = cast_.has_value(),
                  .threads = threads_,
                  .options = {}};
  if (request.choice.method.name == "canonical") {
    request.tp = ranks().size();
  } else {
    (void)choose_method("canonical", std::nullopt);  // it will say which rows collapsed: refused now, not after hours
  }
  request.tp = tp_.value_or(request.tp);
  if (cast_) check_cast(*cast_);
  Options& options = request.options;
  options.ignore_index = ignore_index_.value_or(options.ignore_index);
  if (reduction_) options.reduction = reduction_from_name(*reduction_);
  if (empty_mean_) options.empty_mean = empty_mean_from_name(*empty_mean_);
  if (non_finite_ == "error") {
    options.non_finite_row = NonFiniteRow::kError;
  } else if (non_finite_ != "nan") {
    throw std::invalid_argument(fmt::format("non-finite: got {}, expected nan or error", io::quote(non_finite_)));
  }
  return request;
}

}  // namespace tpce::tools
