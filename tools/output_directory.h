// A directory for what a command writes.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tpce::tools {

// Made where it is missing, parents too; what was made is taken away again if nothing comes to stand in it.
class OutputDirectory {
 public:
  // Throws std::invalid_argument that names the option where path is no directory and cannot be made one.
  OutputDirectory(std::string_view option, const std::string& path);
  ~OutputDirectory();
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
  std::vector<std::filesystem::path> made_;  // the innermost first
};

}  // namespace tpce::tools
