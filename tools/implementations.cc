#include "tools/implementations.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "gpu/cuda_device.h"
#include "gpu/host_device.h"
#include "io/error.h"
#include "sim/methods/method.h"
#include "tools/methods.h"
#include "tools/production.h"

namespace tpce::tools {

namespace {

std::function<std::string()> missing_backend(std::string_view name) {
  for (const BackendInfo& backend : backends()) {
    if (backend.name == name) return [state = backend.state] { return state().missing; };
  }
  throw std::logic_error(fmt::format("no backend {}", name));
}

}  // namespace

std::vector<ImplementationInfo> implementations() {
  const auto never = [] { return std::string(); };
  std::vector<ImplementationInfo> all;
  for (const BackendInfo& backend : backends()) {
    if (!backend.make) continue;  // runs other methods
    all.push_back(
        {backend.name, [state = backend.state] { return state().missing; },
         [name = backend.name](int threads) { return sim::make_implementation(name, make_backend(name, threads)); }});
  }
  const auto add_production = [&](std::string_view backend, std::function<std::string()> missing, auto open) {
    for (const gpu::ProductionForm form : gpu::kProductionForms) {
      all.push_back({name_of(backend, form), missing, [=](int) { return make_production(open(), form); }});
    }
  };
  add_production("gpu_emulated", never, [] { return std::make_unique<gpu::HostDevice>(); });
  add_production("gpu", missing_backend("gpu"), [] { return gpu::open_cuda_device(); });
  for (const MethodInfo& method : methods()) {
    const auto runs_on = [&](std::string_view backend) {
      return std::find(method.backends.begin(), method.backends.end(), backend) != method.backends.end();
    };
    if (runs_on("reference")) {
      all.push_back({method.name, never, [name = method.name](int threads) {
                       return sim::make_implementation(reference::precision_from_name(name), threads);
                     }});
    } else if (runs_on("simulator")) {
      all.push_back({method.name, never,
                     [name = method.name](int) { return sim::make_implementation(sim::method_from_name(name)); }});
    }
  }
  return all;
}

std::string available_implementation_names() {
  std::string names;
  for (const ImplementationInfo& one : implementations()) {
    if (one.missing().empty()) names += (names.empty() ? "" : ", ") + one.name;
  }
  return names;
}

std::string first_available(const std::vector<std::string>& names) {
  const std::vector<ImplementationInfo> all = implementations();
  for (const std::string& name : names) {
    for (const ImplementationInfo& one : all) {
      if (one.name == name && one.missing().empty()) return name;
    }
  }
  return "";
}

std::unique_ptr<sim::Implementation> make_implementation(std::string_view option, std::string_view name, int threads) {
  for (const ImplementationInfo& one : implementations()) {
    if (one.name != name) continue;
    const std::string missing = one.missing();
    if (missing.empty()) return one.make(threads);
    throw std::invalid_argument(
        fmt::format("{}: {} is missing: {}; here are {}", option, name, missing, available_implementation_names()));
  }
  throw std::invalid_argument(
      fmt::format("{}: got {}, expected one of {}", option, io::quote(name), available_implementation_names()));
}

}  // namespace tpce::tools
