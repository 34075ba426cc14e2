// tpce-gpu-bench: how long the loss and its gradient take on a GPU, beside a copy of the same memory and the losses in
// use as kernels (gpu/production/). Of each part: its time, the bytes that it must move, the kernels that it launched,
// the most memory that was held, and the multiprocessors' clock.
//
//   tpce-gpu-bench --device-name          which device that is, or in one line why there is none
//   tpce-gpu-bench --json results.json    every shape; --quick the first alone; --rows T --columns V one of bf16
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/recording_device.h"
#include "bench/sm_clock.h"
#include "gpu/cuda_device.h"
#include "gpu/cuda_driver.h"
#include "gpu/gpu_backend.h"
#include "gpu/production/production_method.h"
#include "io/atomic_file.h"
#include "tpce/cross_entropy.h"

namespace tpce::bench {
namespace {

using gpu::check_cuda;
using gpu::cuda_driver;
using nlohmann::ordered_json;

struct Shape {
  std::int64_t rows;
  std::int64_t columns;  // of this rank
  DType dtype;
  std::int64_t bytes() const { return rows * columns * static_cast<std::int64_t>(size_of(dtype)); }
};

// The first is one rank's share of V = 128256 on two.
constexpr Shape kShapes[] = {{16384, 64128, DType::kBFloat16},
                             {16384, 32000, DType::kBFloat16},
                             {4096, 262144, DType::kBFloat16},
                             {8192, 64128, DType::kFloat32}};
constexpr int kWarmUp = 3;
constexpr int kRepetitions = 15;

// What a measurement needs of the driver beside what the loss does.
struct MeasuringFunctions {
  decltype(&cuEventSynchronize) EventSynchronize = nullptr;
  decltype(&cuEventElapsedTime) EventElapsedTime = nullptr;

  MeasuringFunctions() {
    gpu::cuda_library().find(TPCE_CUDA_NAME(cuEventSynchronize), EventSynchronize);
    gpu::cuda_library().find(TPCE_CUDA_NAME(cuEventElapsedTime), EventElapsedTime);
  }
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// What is known of a part.
struct Measured {
  std::vector<double> milliseconds;
  std::vector<double> clocks;  // in Hz
  std::set<std::string_view> kernels;
  std::size_t peak_bytes = 0;
};

// The device's own stopwatch. Its context is the one that the backend uses.
class Timer {
 public:
  explicit Timer(RecordingDevice& device) : device_(device) {
    CUcontext context = nullptr;
    check_cuda(cuda_driver().DevicePrimaryCtxRetain(&context, gpu::cuda_device(0)), "starting device 0");
    check_cuda(cuda_driver().CtxPushCurrent(context), "using device 0");
    for (CUevent& event : events_) check_cuda(cuda_driver().EventCreate(&event, CU_EVENT_DEFAULT), "making an event");
  }

  // Of call(), once before() is done.
  Measured operator()(const std::function<void()>& before, const std::function<void()>& call) const {
    Measured measured;
    RecordingDevice::forget_peak();
    for (int i = -kWarmUp; i < kRepetitions; ++i) {
      if (before) before();
      device_.forget_kernels();
      check_cuda(cuda_driver().EventRecord(events_[0], nullptr), "reading the clock");
      call();
      check_cuda(cuda_driver().EventRecord(events_[1], nullptr), "reading the clock");
      const std::optional<double> clock = clock_.now();  // while it works
      check_cuda(measuring_.EventSynchronize(events_[1]), "running");
      float milliseconds = 0;
      check_cuda(measuring_.EventElapsedTime(&milliseconds, events_[0], events_[1]), "reading the clock");
      if (i < 0) continue;
      measured.milliseconds.push_back(double{milliseconds});
      if (clock) measured.clocks.push_back(*clock);
    }
    measured.kernels = device_.kernels();
    measured.peak_bytes = RecordingDevice::peak_bytes();
    return measured;
  }

 private:
  RecordingDevice& device_;
  MeasuringFunctions measuring_;
  SmClock clock_{0};
  CUevent events_[2] = {};
};

// On the device.
void copy(void* to, const void* from, std::int64_t bytes) {
  check_cuda(cuda_driver().MemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from),
                                       static_cast<std::size_t>(bytes), nullptr),
             "copying");
}

// Logits and labels of one shape on the device.
class Problem {
 public:
  Problem(Backend& backend, const Shape& shape)
      : shape_(shape),
        backend_(backend),
        halves_(ShardPlan::even(2 * shape.columns, 2)),
        one_(ShardPlan::even(shape.columns, 1)),
        logits_(backend.allocate(static_cast<std::size_t>(shape.bytes()))),
        labels_(backend.allocate(static_cast<std::size_t>(shape.rows) * sizeof(std::int64_t))),
        shard_{ConstMatrix(matrix(logits_)), 0} {
    restore();
    std::mt19937_64 random(1);
    std::vector<std::int64_t> labels(static_cast<std::size_t>(shape.rows));
    for (std::int64_t& label : labels)
      label = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(shape.columns));
    backend.copy_in(labels_.get(), labels.data(), labels.size() * sizeof(std::int64_t), {});
  }

  const Shape& shape() const { return shape_; }
  // One rank's share of twice as many classes.
  Batch share() const { return {halves_, {&shard_, 1}, labels(), 2 * shape_.columns}; }
  // The only rank's.
  Batch whole() const { return {one_, {&shard_, 1}, labels(), shape_.columns}; }

  const Buffer& logits() const { return logits_; }
  Matrix matrix(const Buffer& memory) const {
    return {memory.get(), shape_.dtype, shape_.rows, shape_.columns, shape_.columns, place()};
  }

  // Normal logits of standard deviation 3: a stretch of them, repeated.
  void restore() {
    if (stretch_.empty()) {
      std::mt19937_64 random(2);
      std::normal_distribution<float> normal(0.0f, 3.0f);
      visit_narrow_dtype(shape_.dtype, [&](auto element) {
        std::vector<decltype(element)> values(std::size_t{1} << 22);
        for (auto& value : values) round_to(normal(random), &value);
        const auto* bytes = reinterpret_cast<const char*>(values.data());
        stretch_.assign(bytes, bytes + values.size() * sizeof(element));
      });
    }
    char* const to = static_cast<char*>(logits_.get());
    const std::int64_t all = shape_.bytes();
    std::int64_t done = std::min(all, static_cast<std::int64_t>(stretch_.size()));
    backend_.copy_in(to, stretch_.data(), static_cast<std::size_t>(done), {});
    for (; done < all; done += std::min(done, all - done)) copy(to + done, to, std::min(done, all - done));
  }

 private:
  static Place place() { return {DeviceType::kCuda, 0}; }
  Labels labels() const { return Labels(static_cast<const std::int64_t*>(labels_.get()), shape_.rows, place()); }

  Shape shape_;
  Backend& backend_;
  ShardPlan halves_, one_;
  Buffer logits_, labels_;
  Shard shard_;
  std::vector<char> stretch_;
};

// The backend's calls over all rows at once, as one rank of two makes them, without waiting for any.
class Kernels {
 public:
  Kernels(Backend& backend, const Problem& problem)
      : backend_(backend),
        problem_(problem),
        rows_(problem.shape().rows),
        partials_(backend.allocate(bytes_of(Partials::bytes_per_row({})))),
        saved_(backend.allocate(bytes_of(sizeof(SavedRow)))),
        nll_(backend.allocate(bytes_of(sizeof(float)))),
        sum_(backend.allocate(sizeof(LossSum))),
        workspace_(backend.allocate(backend.workspace_bytes(problem.share(), {}, rows_))),
        queue_{nullptr, workspace_.get(), backend.workspace_bytes(problem.share(), {}, rows_)} {
    const LossSum nothing;
    backend.copy_in(sum_.get(), &nothing, sizeof nothing, queue_);
  }

  RowResults results() const {
    return {.rows = rows_, .saved = static_cast<SavedRow*>(saved_.get()), .nll = static_cast<float*>(nll_.get())};
  }

  void forward() {
    const Partials partials = Partials::in(partials_.get(), rows_, {});
    backend_.partials(problem_.share(), {}, {0, rows_}, partials, queue_);
    backend_.finalize(partials, {}, results(), queue_);
    reduce();
  }
  void gradient(const Buffer& into) {
    const Matrix gradients[] = {problem_.matrix(into)};
    backend_.gradient(problem_.share(), {}, task(gradients), queue_);
  }
  // As the only rank, forward and backward: by one kernel where a cluster's shared memory holds a row. Bytes are
  // counted as if it did: what must be moved.
  void one_call(const Buffer& into) {
    const Matrix gradients[] = {problem_.matrix(into)};
    backend_.forward_backward(problem_.whole(), {}, task(gradients), results(), queue_);
    reduce();
  }

 private:
  std::size_t bytes_of(std::size_t a_row) const { return static_cast<std::size_t>(rows_) * a_row; }
  GradientTask task(std::span<const Matrix> gradients) const {
    return {.rows = {0, rows_}, .saved = results().saved, .upstream = {}, .gradients = gradients, .squares = nullptr};
  }
  void reduce() { backend_.reduce(results(), 0, *static_cast<LossSum*>(sum_.get()), queue_); }

  Backend& backend_;
  const Problem& problem_;
  std::int64_t rows_;
  Buffer partials_, saved_, nll_, sum_, workspace_;
  Queue queue_;
};

// What a user calls, as the only rank: the mean loss on the host, rows in chunks of the default size, all memory that
// can be passed passed. Each call waits for its result.
class Driver {
 public:
  Driver(Backend& backend, const Problem& problem)
      : problem_(problem),
        runtime_{backend, self_},
        workspace_(backend.allocate(workspace_bytes(problem.whole(), {}, runtime_))) {
    runtime_.queue = {nullptr, workspace_.get(), workspace_bytes(problem.whole(), {}, runtime_)};
  }

  void forward() { cross_entropy_forward(problem_.whole(), {}, {}, runtime_); }
  void both(const Buffer& into) {
    const Matrix gradients[] = {problem_.matrix(into)};
    Forward forward = cross_entropy_forward(problem_.whole(), {}, {}, runtime_);
    cross_entropy_backward(forward.saved, {}, gradients, runtime_);
  }
  void one_call(const Buffer& into) {
    const Matrix gradients[] = {problem_.matrix(into)};
    cross_entropy_forward_backward(problem_.whole(), {}, {.gradients = gradients}, runtime_);
  }

 private:
  const Problem& problem_;
  SelfCommunicator self_;
  Runtime runtime_;
  Buffer workspace_;
};

// A loss in use on the same logits, with the memory that it keeps.
class Production {
 public:
  Production(gpu::Device& device, gpu::ProductionForm form, const Problem& problem)
      : method_(device, form),
        batch_(problem.share()),
        nll_(device.allocate(static_cast<std::size_t>(problem.shape().rows) * sizeof(float))),
        saved_(device.allocate(method_.saved_bytes(batch_))),
        workspace_(device.allocate(method_.workspace_bytes(batch_))) {}

  void forward() { method_.forward(run(), static_cast<float*>(nll_.get())); }
  void backward(const Matrix& into) { method_.backward(run(), {}, {&into, 1}); }
  // What it needs no more after backward(): its log-probabilities, or the logits.
  Matrix in_place(const Matrix& logits) const {
    return keeps_log_probabilities() ? method_.log_probabilities(run(), 0) : logits;
  }

  // Bytes that must be moved, of `once` bytes of logits: the maximum and the sum read them, log_softmax reads them
  // again to write log-probabilities, from which it makes gradients.
  std::int64_t forward_bytes(const Shape& shape) const {
    return keeps_log_probabilities() ? 3 * shape.bytes() + fp32_bytes(shape) : 2 * shape.bytes();
  }
  std::int64_t in_place_bytes(const Shape& shape) const {
    return 2 * (keeps_log_probabilities() ? fp32_bytes(shape) : shape.bytes());
  }
  std::int64_t backward_bytes(const Shape& shape) const {
    return shape.bytes() + (keeps_log_probabilities() ? fp32_bytes(shape) : shape.bytes());
  }

 private:
  bool keeps_log_probabilities() const { return method_.name() == name_of(gpu::ProductionForm::kLogSoftmax); }
  static std::int64_t fp32_bytes(const Shape& shape) { return shape.rows * shape.columns * 4; }
  gpu::ProductionRun run() const {
    return {batch_, -100, saved_.get(), {nullptr, workspace_.get(), method_.workspace_bytes(batch_)}};
  }

  gpu::ProductionMethod method_;
  Batch batch_;
  Buffer nll_, saved_, workspace_;
};

ordered_json to_json(const Measured& measured, std::int64_t bytes) {
  const auto [min, max] = std::minmax_element(measured.milliseconds.begin(), measured.milliseconds.end());
  return {{"bytes", bytes},
          {"milliseconds", {{"median", median(measured.milliseconds)}, {"min", *min}, {"max", *max}}},
          {"peak_bytes", measured.peak_bytes},
          {"kernels", measured.kernels},
          {"clock_hz", measured.clocks.empty() ? ordered_json() : ordered_json(median(measured.clocks))}};
}

// The parts of one shape, by name.
class Parts {
 public:
  Parts(const Timer& timer, Problem& problem) : timer_(timer), problem_(problem) {}

  void add(const std::string& what, std::int64_t bytes, const std::function<void()>& call) {
    add(what, bytes, {}, call);
  }
  // Logits that a call overwrites are restored before the next, outside of what is timed.
  void add_in_place(const std::string& what, std::int64_t bytes, const std::function<void()>& call) {
    add(
        what + ", in place", bytes, [&] { problem_.restore(); }, call);
    problem_.restore();
  }
  void add(const std::string& what, std::int64_t bytes, const std::function<void()>& before,
           const std::function<void()>& call) {
    const Shape& shape = problem_.shape();
    const Measured measured = timer_(before, call);
    json_[what] = to_json(measured, bytes);
    std::cerr << fmt::format("{} x {} {}: {}: {:.3f} ms, {:.2f} TB/s\n", shape.rows, shape.columns,
                             name_of(shape.dtype), what, median(measured.milliseconds),
                             static_cast<double>(bytes) / median(measured.milliseconds) * 1e-9);
  }

  const ordered_json& json() const { return json_; }

 private:
  const Timer& timer_;
  Problem& problem_;
  ordered_json json_;
};

void measure_in_place(gpu::GpuBackend& backend, Problem& problem, Parts& parts) {
  const Shape& shape = problem.shape();
  const std::int64_t once = shape.bytes();
  {
    Kernels kernels(backend, problem);
    parts.add("forward", once, [&] { kernels.forward(); });
    parts.add_in_place("gradient", 2 * once, [&] { kernels.gradient(problem.logits()); });
    parts.add_in_place("one call", 2 * once, [&] { kernels.one_call(problem.logits()); });
  }
  {
    Driver driver(backend, problem);
    parts.add("driver: forward", once, [&] { driver.forward(); });
    parts.add_in_place("driver: forward+backward", 3 * once, [&] { driver.both(problem.logits()); });
    parts.add_in_place("driver: one call", 2 * once, [&] { driver.one_call(problem.logits()); });
  }
  for (const gpu::ProductionForm form : gpu::kProductionForms) {
    const std::string name(name_of(form));
    Production method(backend.device(), form, problem);
    parts.add(name + ": forward", method.forward_bytes(shape), [&] { method.forward(); });
    const Matrix into = method.in_place(problem.matrix(problem.logits()));
    const auto again = [&] {
      problem.restore();
      method.forward();
    };
    parts.add(name + ": backward, in place", method.in_place_bytes(shape), again, [&] { method.backward(into); });
    problem.restore();
  }
}

void measure_apart(gpu::GpuBackend& backend, Problem& problem, Parts& parts) {
  const Shape& shape = problem.shape();
  const std::int64_t once = shape.bytes();
  const Buffer gradients = backend.allocate(static_cast<std::size_t>(once));
  for (const gpu::ProductionForm form : gpu::kProductionForms) {
    const std::string name(name_of(form));
    Production method(backend.device(), form, problem);
    const Matrix into = problem.matrix(gradients);
    method.forward();
    parts.add(name + ": backward", method.backward_bytes(shape), [&] { method.backward(into); });
    parts.add(name + ": forward+backward", method.forward_bytes(shape) + method.backward_bytes(shape), [&] {
      method.forward();
      method.backward(into);
    });
  }
  {
    Kernels kernels(backend, problem);
    kernels.forward();
    parts.add("gradient", 2 * once, [&] { kernels.gradient(gradients); });
    parts.add("forward+backward", 3 * once, [&] {
      kernels.forward();
      kernels.gradient(gradients);
    });
    parts.add("one call", 2 * once, [&] { kernels.one_call(gradients); });
  }
  {
    Driver driver(backend, problem);
    parts.add("driver: forward+backward", 3 * once, [&] { driver.both(gradients); });
    parts.add("driver: one call", 2 * once, [&] { driver.one_call(gradients); });
  }
  parts.add("copy", 2 * once, [&] { copy(gradients.get(), problem.logits().get(), once); });
}

ordered_json measure(gpu::GpuBackend& backend, const Timer& timer, const Shape& shape) {
  Problem problem(backend, shape);
  Parts parts(timer, problem);
  measure_in_place(backend, problem, parts);
  measure_apart(backend, problem, parts);
  return {{"rows", shape.rows}, {"columns", shape.columns}, {"dtype", name_of(shape.dtype)}, {"parts", parts.json()}};
}

// The multiprocessors' clock by the device's properties, in Hz; null where they do not tell.
ordered_json clock_of_properties() {
  int kilohertz = 0;
  check_cuda(cuda_driver().DeviceGetAttribute(&kilohertz, CU_DEVICE_ATTRIBUTE_CLOCK_RATE, gpu::cuda_device(0)),
             "reading the device's clock");
  return kilohertz > 0 ? ordered_json(kilohertz * 1e3) : ordered_json();
}

int run(int argc, char** argv) {
  CLI::App app("Times the loss and its gradient on a GPU");
  bool device_name = false;
  bool quick = false;
  Shape one = kShapes[0];
  std::optional<std::string> json_path;
  app.add_flag("--device-name", device_name, "Print which device that is");
  app.add_flag("--quick", quick, "The first shape alone");
  app.add_option("--json", json_path, "File for the results");
  auto* rows =
      app.add_option("--rows", one.rows, "Rows of one shape that is measured instead")->check(CLI::PositiveNumber);
  app.add_option("--columns", one.columns, "Its columns")->check(CLI::PositiveNumber)->needs(rows);
  CLI11_PARSE(app, argc, argv);

  auto recording = std::make_unique<RecordingDevice>(gpu::open_cuda_device());
  RecordingDevice& device = *recording;
  gpu::GpuBackend backend(std::move(recording));
  const gpu::DeviceProperties& properties = device.properties();
  if (device_name) {
    std::cout << properties.model << '\n';
    return 0;
  }
  std::optional<io::AtomicFile> file;
  if (json_path) file.emplace(*json_path);

  const Timer timer(device);
  ordered_json result{{"device",
                       {{"name", properties.model},
                        {"multiprocessors", properties.multiprocessors},
                        {"compute_capability", properties.compute_capability},
                        {"clock_hz", clock_of_properties()}}}};
  std::vector<Shape> shapes(std::begin(kShapes), std::end(kShapes));
  if (quick || *rows) shapes = {one};
  for (const Shape& shape : shapes) result["shapes"].push_back(measure(backend, timer, shape));
  const ordered_json& copy = result["shapes"][0]["parts"]["copy"];
  result["copy_bytes_per_second"] = copy["bytes"].get<double>() / copy["milliseconds"]["median"].get<double>() * 1e3;
  if (file) {
    file->write(result.dump(1) + "\n");
    file->commit();
  } else {
    std::cout << result.dump(1) << '\n';
  }
  return 0;
}

}  // namespace
}  // namespace tpce::bench

int main(int argc, char** argv) {
  try {
    return tpce::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "tpce-gpu-bench: " << error.what() << '\n';
    return 2;
  }
}
