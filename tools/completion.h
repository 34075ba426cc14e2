// Shell completion, written from the program's own commands and options.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace tpce::tools {

// Throws std::invalid_argument unless shell is "bash" or "zsh".
std::string completion_script(CLI::App& program, const std::string& shell);

}  // namespace tpce::tools
