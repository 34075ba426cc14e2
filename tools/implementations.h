// Everything that computes a loss in this build, one beside another: what `tpce parity` takes for --a and --b.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/parity/implementation.h"

namespace tpce::tools {

struct ImplementationInfo {
  std::string name;
  std::function<std::string()> missing;  // why it cannot be used here; empty where it can
  std::function<std::unique_ptr<sim::Implementation>(int threads)> make;
};

// The backends that run the canonical method, the losses in use as GPU kernels, "gpu/log_softmax", and the methods of
// the reference and of the simulator.
std::vector<ImplementationInfo> implementations();

// "scalar, simd, certified, ...": those that can be used here.
std::string available_implementation_names();

// The first of the names that can be used here, or "".
std::string first_available(const std::vector<std::string>& names);

// threads as in make_backend(). Throws std::invalid_argument that names the option and what there is.
std::unique_ptr<sim::Implementation> make_implementation(std::string_view option, std::string_view name, int threads);

}  // namespace tpce::tools
