#include "tools/output_directory.h"

#include <fmt/format.h>

#include <stdexcept>

#include "io/error.h"

namespace tpce::tools {

namespace fs = std::filesystem;

OutputDirectory::OutputDirectory(std::string_view option, const std::string& path) : path_(path) {
  std::error_code error;
  std::vector<fs::path> missing;
  for (fs::path at = fs::absolute(path_, error).lexically_normal(); !at.empty() && !fs::exists(at, error);
       at = at.parent_path()) {
    if (at.has_filename()) missing.push_back(at);
  }
  error.clear();
  fs::create_directories(path_, error);
  if (error || !fs::is_directory(path_)) {
    throw std::invalid_argument(fmt::format("{}: {} is no directory and cannot be made one{}", option,
                                            io::printable(path), error ? ": " + error.message() : ""));
  }
  made_ = std::move(missing);
}

OutputDirectory::~OutputDirectory() {
  std::error_code not_empty;
  for (const fs::path& path : made_) {
    if (!fs::remove(path, not_empty)) return;
  }
}

}  // namespace tpce::tools
