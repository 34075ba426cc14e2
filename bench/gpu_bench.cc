// tpce-gpu-bench: how long the loss and its gradient take on a GPU, beside a copy of the same memory and the losses in
// use as kernels (gpu/production/).
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
#include <string>
#include <string_view>
#include <vector>

#include "gpu/cuda_device.h"
#include "gpu/cuda_driver.h"
#include "gpu/gpu_backend.h"
#include "gpu/production/production_method.h"
#include "io/atomic_file.h"

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
  decltype(&cuMemGetInfo) MemGetInfo = nullptr;
  decltype(&cuEventSynchronize) EventSynchronize = nullptr;
  decltype(&cuEventElapsedTime) EventElapsedTime = nullptr;

  MeasuringFunctions() {
    gpu::cuda_library().find(TPCE_CUDA_NAME(cuMemGetInfo), MemGetInfo);
    gpu::cuda_library().find(TPCE_CUDA_NAME(cuEventSynchronize), EventSynchronize);
    gpu::cuda_library().find(TPCE_CUDA_NAME(cuEventElapsedTime), EventElapsedTime);
  }
};

const MeasuringFunctions& measuring() {
  static const MeasuringFunctions functions;
  return functions;
}

// The device's own clock. Its context is the one that the backend uses.
class Timer {
 public:
  Timer() {
    CUdevice device = 0;
    CUcontext context = nullptr;
    check_cuda(cuda_driver().DeviceGet(&device, 0), "opening device 0");
    check_cuda(cuda_driver().DevicePrimaryCtxRetain(&context, device), "starting device 0");
    check_cuda(cuda_driver().CtxPushCurrent(context), "using device 0");
    for (CUevent& event : events_) check_cuda(cuda_driver().EventCreate(&event, CU_EVENT_DEFAULT), "making an event");
  }

  // Milliseconds of call(), once before() is done.
  std::vector<double> operator()(const std::function<void()>& before, const std::function<void()>& call) const {
    std::vector<double> all;
    for (int i = -kWarmUp; i < kRepetitions; ++i) {
      if (before) before();
      check_cuda(cuda_driver().EventRecord(events_[0], nullptr), "reading the clock");
      call();
      check_cuda(cuda_driver().EventRecord(events_[1], nullptr), "reading the clock");
      check_cuda(measuring().EventSynchronize(events_[1]), "running");
      float milliseconds = 0;
      check_cuda(measuring().EventElapsedTime(&milliseconds, events_[0], events_[1]), "reading the clock");
      if (i >= 0) all.push_back(double{milliseconds});
    }
    std::sort(all.begin(), all.end());
    return all;
  }

  static std::int64_t free_bytes() {
    std::size_t available = 0;
    std::size_t total = 0;
    check_cuda(measuring().MemGetInfo(&available, &total), "asking for free memory");
    return static_cast<std::int64_t>(available);
  }

 private:
  CUevent events_[2] = {};
};

double median(const std::vector<double>& sorted) { return sorted[sorted.size() / 2]; }

// On the device.
void copy(void* to, const void* from, std::int64_t bytes) {
  check_cuda(cuda_driver().MemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from),
                                       static_cast<std::size_t>(bytes), nullptr),
             "copying");
}

// Logits, labels and results of one shape on the device.
class Problem {
 public:
  Problem(Backend& backend, const Shape& shape)
      : backend_(backend),
        shape_(shape),
        free_before_(Timer::free_bytes()),
        plan_(ShardPlan::even(2 * shape.columns, 2)),
        whole_plan_(ShardPlan::even(shape.columns, 1)),
        logits_(backend.allocate(static_cast<std::size_t>(shape.bytes()))),
        labels_(backend.allocate(static_cast<std::size_t>(shape.rows) * sizeof(std::int64_t))),
        partials_memory_(backend.allocate(static_cast<std::size_t>(shape.rows) * Partials::bytes_per_row({}))),
        saved_(backend.allocate(static_cast<std::size_t>(shape.rows) * sizeof(SavedRow))),
        nll_(backend.allocate(static_cast<std::size_t>(shape.rows) * sizeof(float))),
        shard_{ConstMatrix(matrix(logits_)), 0} {
    restore();
    std::mt19937_64 random(1);
    std::vector<std::int64_t> labels(static_cast<std::size_t>(shape.rows));
    for (std::int64_t& label : labels)
      label = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(shape.columns));
    backend.copy_in(labels_.get(), labels.data(), labels.size() * sizeof(std::int64_t), queue_);
    const std::size_t bytes = backend.workspace_bytes(batch(), {}, shape.rows);
    workspace_ = backend.allocate(bytes);
    queue_ = {nullptr, workspace_.get(), bytes};
  }

  Batch batch() const {
    return {plan_,
            {&shard_, 1},
            Labels(static_cast<const std::int64_t*>(labels_.get()), shape_.rows, place()),
            2 * shape_.columns};
  }
  Partials partials() const { return Partials::in(partials_memory_.get(), shape_.rows, {}); }
  RowResults results() const {
    return {.rows = shape_.rows, .saved = static_cast<SavedRow*>(saved_.get()), .nll = static_cast<float*>(nll_.get())};
  }

  void forward() {
    backend_.partials(batch(), {}, {0, shape_.rows}, partials(), queue_);
    backend_.finalize(partials(), {}, results(), queue_);
  }
  void gradient(const Buffer& into) {
    const Matrix gradients[] = {matrix(into)};
    backend_.gradient(batch(), {},
                      {.rows = {0, shape_.rows}, .saved = results().saved, .upstream = {}, .gradients = gradients},
                      queue_);
  }
  // As the only rank, forward and backward: by one kernel where a cluster's shared memory holds a row. Bytes are
  // counted as if it did: what must be moved.
  void one_call(const Buffer& into) {
    const Matrix gradients[] = {matrix(into)};
    const Batch whole{whole_plan_, {&shard_, 1}, batch().labels, shape_.columns};
    backend_.forward_backward(
        whole, {},
        {.rows = {0, shape_.rows}, .saved = nullptr, .upstream = {}, .gradients = gradients, .squares = nullptr},
        results(), queue_);
  }
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
    backend_.copy_in(to, stretch_.data(), static_cast<std::size_t>(done), queue_);
    for (; done < all; done += std::min(done, all - done)) copy(to + done, to, std::min(done, all - done));
  }

  // What is held now, the logits included.
  std::int64_t held() const { return free_before_ - Timer::free_bytes(); }

 private:
  static Place place() { return {DeviceType::kCuda, 0}; }

  Backend& backend_;
  Shape shape_;
  std::int64_t free_before_;
  ShardPlan plan_;
  ShardPlan whole_plan_;
  Buffer logits_, labels_, partials_memory_, saved_, nll_;
  Shard shard_;
  std::vector<char> stretch_;
  Buffer workspace_{nullptr, [](void*) {}};
  Queue queue_;
};

// A loss in use on the same logits, with the memory that it keeps.
class Production {
 public:
  Production(gpu::Device& device, gpu::ProductionForm form, Problem& problem)
      : method_(device, form),
        batch_(problem.batch()),
        nll_(problem.results().nll),
        saved_(device.allocate(method_.saved_bytes(batch_))),
        workspace_(device.allocate(method_.workspace_bytes(batch_))) {}

  void forward() { method_.forward(run(), nll_); }
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
  float* nll_;
  Buffer saved_, workspace_;
};

ordered_json part(const std::vector<double>& milliseconds, std::int64_t bytes, std::int64_t held) {
  return {
      {"bytes", bytes},
      {"milliseconds", {{"median", median(milliseconds)}, {"min", milliseconds.front()}, {"max", milliseconds.back()}}},
      {"peak_bytes", held}};
}

ordered_json measure(Backend& backend, gpu::Device& device, const Timer& timer, const Shape& shape) {
  Problem problem(backend, shape);
  const std::int64_t once = shape.bytes();
  ordered_json parts;
  const auto add = [&](const std::string& what, std::int64_t bytes, const std::vector<double>& milliseconds) {
    parts[what] = part(milliseconds, bytes, problem.held());
    std::cerr << fmt::format("{} x {} {}: {}: {:.3f} ms, {:.2f} TB/s\n", shape.rows, shape.columns,
                             name_of(shape.dtype), what, median(milliseconds),
                             static_cast<double>(bytes) / median(milliseconds) * 1e-9);
  };
  add("forward", once, timer({}, [&] { problem.forward(); }));
  // Logits that a gradient overwrote are restored before the next, outside of what is timed.
  add("gradient, in place", 2 * once, timer([&] { problem.restore(); }, [&] { problem.gradient(problem.logits()); }));
  add("one call, in place", 2 * once, timer([&] { problem.restore(); }, [&] { problem.one_call(problem.logits()); }));
  problem.restore();
  for (const gpu::ProductionForm form : gpu::kProductionForms) {
    const std::string name(name_of(form));
    Production method(device, form, problem);
    add(name + ": forward", method.forward_bytes(shape), timer({}, [&] { method.forward(); }));
    const Matrix into = method.in_place(problem.matrix(problem.logits()));
    const auto again = [&] {
      problem.restore();
      method.forward();
    };
    add(name + ": backward, in place", method.in_place_bytes(shape), timer(again, [&] { method.backward(into); }));
    problem.restore();
  }
  const Buffer gradients = backend.allocate(static_cast<std::size_t>(once));
  for (const gpu::ProductionForm form : gpu::kProductionForms) {
    const std::string name(name_of(form));
    Production method(device, form, problem);
    const Matrix into = problem.matrix(gradients);
    method.forward();
    add(name + ": backward", method.backward_bytes(shape), timer({}, [&] { method.backward(into); }));
    add(name + ": forward+backward", method.forward_bytes(shape) + method.backward_bytes(shape), timer({}, [&] {
          method.forward();
          method.backward(into);
        }));
  }
  add("gradient", 2 * once, timer({}, [&] { problem.gradient(gradients); }));
  add("forward+backward", 3 * once, timer({}, [&] {
        problem.forward();
        problem.gradient(gradients);
      }));
  add("one call", 2 * once, timer({}, [&] { problem.one_call(gradients); }));
  add("copy", 2 * once, timer({}, [&] { copy(gradients.get(), problem.logits().get(), once); }));
  return {{"rows", shape.rows}, {"columns", shape.columns}, {"dtype", name_of(shape.dtype)}, {"parts", parts}};
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

  const std::unique_ptr<gpu::Device> device = gpu::open_cuda_device();
  gpu::GpuBackend backend(gpu::open_cuda_device());
  const gpu::DeviceProperties& properties = backend.device().properties();
  if (device_name) {
    std::cout << properties.model << '\n';
    return 0;
  }
  std::optional<io::AtomicFile> file;
  if (json_path) file.emplace(*json_path);

  const Timer timer;
  ordered_json result{{"device",
                       {{"name", properties.model},
                        {"multiprocessors", properties.multiprocessors},
                        {"compute_capability", properties.compute_capability}}}};
  std::vector<Shape> shapes(std::begin(kShapes), std::end(kShapes));
  if (quick || *rows) shapes = {one};
  for (const Shape& shape : shapes) result["shapes"].push_back(measure(backend, *device, timer, shape));
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
