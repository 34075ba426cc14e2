// The methods and backends of this build, by name: what --method and --backend take, and `tpce info` lists.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tpce/backend.h"

namespace tpce::tools {

struct MethodInfo {
  std::string name;
  std::vector<std::string> backends;  // that run it, the default first
  std::string summary;
  bool bits_depend_on_order = false;  // of sums, and so on tp
  bool is_softmax = true;             // else its loss is another than the canonical one
};

// Every method that this build has, the canonical one first.
const std::vector<MethodInfo>& methods();

// What the machine says of a backend.
struct BackendState {
  std::string missing;  // why it cannot be used here; empty where it can
  std::string summary;
};

struct BackendInfo {
  std::string name;
  // Asks the machine, the first time: opening a GPU takes time, and memory of it until the program ends, which is not
  // for those that use another backend.
  std::function<const BackendState&()> state;
  // Makes it, where it runs the canonical method; threads as SimdOptions has them, for a backend that uses any. Logits,
  // labels and results are in host memory: a backend whose memory is elsewhere comes behind one that copies.
  std::function<std::unique_ptr<Backend>(int threads)> make = {};
};

// Every backend that the project knows, missing ones too. One more that runs the canonical method is one more entry:
// `tpce loss --backend`, `tpce parity --a` and `tpce info` find it here.
const std::vector<BackendInfo>& backends();

std::vector<std::string> method_names();
std::vector<std::string> backend_names();

// Throws std::invalid_argument that lists the names. The method's backends may all be missing here.
const MethodInfo& find_method(std::string_view name);

struct MethodChoice {
  MethodInfo method;
  std::string backend;
};

// The method and the backend that runs it, where either may be left open: canonical, and the method's default backend;
// backend reference alone means certified. Throws std::invalid_argument that lists what would do.
MethodChoice choose_method(const std::optional<std::string>& method, const std::optional<std::string>& backend);

// A backend of the canonical method. Throws std::invalid_argument for any other name.
std::unique_ptr<Backend> make_backend(std::string_view name, int threads = 0);

}  // namespace tpce::tools
