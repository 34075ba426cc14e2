#include "tools/methods.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
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
BackendInfo simd_info() {
  BackendInfo info{.name = "simd", .missing = "", .summary = "", .built = true, .make = [](int threads) {
                     return std::make_unique<simd::SimdBackend>(simd::SimdOptions{.target = "", .threads = threads});
                   }};
  try {
    const simd::SimdBackend backend;
    info.summary = fmt::format("the canonical method in vector instructions ({}) over {} threads", backend.target(),
                               backend.threads());
  } catch (const std::exception& error) {
    info.missing = io::printable(error.what());
    info.summary = "the canonical method in vector instructions over threads";
  }
  return info;
}

// What it is missing is what the device said.
BackendInfo gpu_info() {
  BackendInfo info{
      .name = "gpu", .missing = "", .summary = "the canonical method on a CUDA device", .built = true, .make = [](int) {
        return std::make_unique<gpu::StagedBackend>(std::make_unique<gpu::GpuBackend>(gpu::open_cuda_device()));
      }};
  try {
    info.summary += fmt::format(", {}", gpu::open_cuda_device()->properties().model);
  } catch (const std::exception& error) {
    std::string_view what = error.what();
    constexpr std::string_view kPrefix = "gpu: ";
    if (what.substr(0, kPrefix.size()) == kPrefix) what.remove_prefix(kPrefix.size());
    info.missing = io::printable(what);
  }
  return info;
}

bool available(std::string_view backend) {
  const std::vector<std::string> names = available_backend_names();
  return std::find(names.begin(), names.end(), backend) != names.end();
}

void check_backend(std::string_view name) {
  if (available(name)) return;
  const std::string here = fmt::format("{}", fmt::join(available_backend_names(), ", "));
  for (const BackendInfo& backend : backends()) {
    if (backend.name != name) continue;
    throw std::invalid_argument(fmt::format("backend: {} is missing: {}; here are {}", name, backend.missing, here));
  }
  throw std::invalid_argument(fmt::format("backend: got {}, expected one of {}", io::quote(name), here));
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
      {"scalar", "", "the canonical method in its plainest form, one row at a time", true,
       [](int) { return std::make_unique<ScalarBackend>(); }},
      simd_info(),
      {"reference", "", "the definitions in fp64, multiprecision and certified interval arithmetic"},
      {"simulator", "", "the methods that fail, each in a stated order of sums"},
      {"gpu_emulated", "", "the canonical method as GPU kernels that the host runs thread by thread: slow, for tests",
       true, [](int) { return std::make_unique<gpu::GpuBackend>(std::make_unique<gpu::HostDevice>()); }},
      gpu_info(),
  };
  return all;
}

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const MethodInfo& method : methods()) names.push_back(method.name);
  return names;
}

std::vector<std::string> available_backend_names() {
  std::vector<std::string> names;
  for (const BackendInfo& backend : backends()) {
    if (backend.missing.empty()) names.push_back(backend.name);
  }
  return names;
}

std::vector<std::string> built_backend_names() {
  std::vector<std::string> names;
  for (const BackendInfo& backend : backends()) {
    if (backend.built) names.push_back(backend.name);
  }
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
