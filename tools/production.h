// The losses in use as GPU kernels (gpu/production/), as implementations that `tpce parity` compares.
#pragma once

#include <memory>
#include <string>

#include "gpu/device.h"
#include "gpu/production/production_method.h"
#include "sim/parity/implementation.h"

namespace tpce::tools {

// "gpu_emulated/log_softmax": on that backend's device.
std::string name_of(std::string_view backend, gpu::ProductionForm form);

// Copies the rows to the device and the results back.
std::unique_ptr<sim::Implementation> make_production(std::unique_ptr<gpu::Device> device, gpu::ProductionForm form);

}  // namespace tpce::tools
