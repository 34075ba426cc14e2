#include "tools/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <stdexcept>

#include "io/error.h"
#include "tools/ranks.h"

namespace tpce::tools {

void print(std::string_view text) {
  if (!is_first_rank()) return;
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw std::runtime_error("stdout: cannot write: " + io::errno_text(errno));
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void print_json(const nlohmann::ordered_json& json) {
  print(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void report(std::string_view kind, std::string_view message) {
  if (!is_first_rank()) return;
  std::string line(message);
  std::replace(line.begin(), line.end(), '\n', ' ');
  fmt::print(stderr, "tpce: {}: {}\n", kind, line);
}

std::string bits_text(float value) { return fmt::format("0x{:08x}", std::bit_cast<std::uint32_t>(value)); }

std::string number_text(double value) { return fmt::format("{}", value); }

nlohmann::ordered_json number_json(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

}  // namespace tpce::tools
