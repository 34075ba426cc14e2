#include "tools/methods.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include "gpu/cuda_device.h"
#include "gpu/gpu_backend.h"
#include "gpu/host_device.h"
#include "gpu/staged_backend.h"
#include "io/error.h"
#include "sim/methods/method.h"
#include "simd/simd_backend.h"
#include "tpce/scalar_backend.h"

namespace tpce::tools {

namespace {

// TPCE_TARGET may name an instruction set that is not here. The backend is then missing, and an error where it would
// run: a wish is not dropped in silence.
BackendState simd_state() {
  try {
    const simd::SimdBackend backend;
    return {"", fmt::format("the canonical method in vector instructions ({}) over {} threads", backend.target(),
                            backend.threads())};
  } catch (const std::exception& error) {
    return {io::printable(error.what()), "the canonical method in vector instructions over threads"};
  }
}

// What it is missing is what the device said.
BackendState gpu_state() {
  const std::string summary = "the canonical method on a CUDA device";
  try {
    return {"", fmt::format("{}, {}", summary, gpu::open_cuda_device()->properties().model)};
  } catch (const std::exception& error) {
    std::string_view what = error.what();
    constexpr std::string_view kPrefix = "gpu: ";
    if (what.substr(0, kPrefix.size()) == kPrefix) what.remove_prefix(kPrefix.size());
    return {io::printable(what), summary};
  }
}

std::function<const BackendState&()> asked_once(std::function<BackendState()> ask) {
  return [ask = std::move(ask), state = std::make_shared<std::optional<BackendState>>()]() -> const BackendState& {
    if (!*state) *state = ask();
    return **state;
  };
}

std::function<const BackendState&()> always_here(std::string summary) {
  return [state = BackendState{"", std::move(summary)}]() -> const BackendState& { return state; };
}

std::string available_backend_names() {
  std::vector<std::string> names;
  for (const BackendInfo& backend : backends()) {
    if (backend.state().missing.empty()) names.push_back(backend.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

void check_backend(std::string_view name) {
  for (const BackendInfo& backend : backends()) {
    if (backend.name != name) continue;
    const std::string& missing = backend.state().missing;
    if (missing.empty()) return;
    throw std::invalid_argument(
        fmt::format("backend: {} is missing: {}; here are {}", name, missing, available_backend_names()));
  }
  throw std::invalid_argument(
      fmt::format("backend: got {}, expected one of {}", io::quote(name), available_backend_names()));
}

// The default first.
std::vector<std::string> canonical_backends() {
  std::vector<std::string> names{"simd"};
  for (const BackendInfo& backend : backends()) {
    if (backend.make && backend.name != names.front()) names.push_back(backend.name);
  }
  return names;
}

std::vector<std::string> methods_of(std::string_view backend) {
  std::vector<std::string> names;
  for (const MethodInfo& method : methods()) {
    if (std::find(method.backends.begin(), method.backends.end(), backend) != method.backends.end()) {
      names.push_back(method.name);
    }
  }
  return names;
}

}  // namespace

const std::vector<MethodInfo>& methods() {
  static const std::vector<MethodInfo> all = [] {
    std::vector<MethodInfo> list{
        {"canonical", canonical_backends(), "order-free and collapse-free: the same bits for every tp"}};
    const std::pair<const char*, const char*> references[] = {
        {"certified", "the correctly rounded value, proved by interval arithmetic"},
        {"multiprecision", "the definition in 50 decimal digits"},
        {"fp64", "the definition in careful fp64"},
    };
    for (const auto& [name, summary] : references) list.push_back({name, {"reference"}, summary});
    for (const sim::Method* method : sim::methods()) {
      if (method->is_order_free()) continue;  // the first of the list, which has backends of its own
      list.push_back(
          {std::string(method->name()), {"simulator"}, std::string(method->summary()), true, method->is_softmax()});
    }
    return list;
  }();
  return all;
}

const std::vector<BackendInfo>& backends() {
  static const std::vector<BackendInfo> all{
      {"scalar", always_here("the canonical method in its plainest form, one row at a time"),
       [](int) { return std::make_unique<ScalarBackend>(); }},
      {"simd", asked_once(simd_state),
       [](int threads) {
         return std::make_unique<simd::SimdBackend>(simd::SimdOptions{.target = "", .threads = threads});
       }},
      {"reference", always_here("the definitions in fp64, multiprecision and certified interval arithmetic")},
      {"simulator", always_here("the methods that fail, each in a stated order of sums")},
      {"gpu_emulated",
       always_here("the canonical method as GPU kernels that the host runs thread by thread: slow, for tests"),
       [](int) { return std::make_unique<gpu::GpuBackend>(std::make_unique<gpu::HostDevice>()); }},
      {"gpu", asked_once(gpu_state),
       [](int) {
         return std::make_unique<gpu::StagedBackend>(std::make_unique<gpu::GpuBackend>(gpu::open_cuda_device()));
       }},
  };
  return all;
}

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const MethodInfo& method : methods()) names.push_back(method.name);
  return names;
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const BackendInfo& backend : backends()) names.push_back(backend.name);
  return names;
}

const MethodInfo& find_method(std::string_view name) {
  for (const MethodInfo& method : methods()) {
    if (method.name == name) return method;
  }
  throw std::invalid_argument(
      fmt::format("method: got {}, expected one of {}", io::quote(name), fmt::join(method_names(), ", ")));
}

MethodChoice choose_method(const std::optional<std::string>& method, const std::optional<std::string>& backend) {
  if (backend) check_backend(*backend);
  if (!method && backend == "simulator") {
    throw std::invalid_argument(
        fmt::format("backend: simulator needs a method: one of {}", fmt::join(methods_of("simulator"), ", ")));
  }
  const MethodInfo& info = find_method(method.value_or(backend == "reference" ? "certified" : "canonical"));
  const std::string chosen = backend.value_or(info.backends.front());
  if (std::find(info.backends.begin(), info.backends.end(), chosen) == info.backends.end()) {
    throw std::invalid_argument(fmt::format("backend: {} cannot run method {}, expected {}; {} runs {}", chosen,
                                            info.name, fmt::join(info.backends, " or "), chosen,
                                            fmt::join(methods_of(chosen), ", ")));
  }
  check_backend(chosen);
  return {info, chosen};
}

std::unique_ptr<Backend> make_backend(std::string_view name, int threads) {
  check_backend(name);
  for (const BackendInfo& backend : backends()) {
    if (backend.name == name && backend.make) return backend.make(threads);
  }
  throw std::invalid_argument(fmt::format("backend: {} does not run the canonical method", name));
}

}  // namespace tpce::tools
