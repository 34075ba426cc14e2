// The program's commands and options as plain data, from which manual pages and completions are written.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tpce::tools {

struct OptionText {
  std::vector<std::string> names;  // "-h", "--help"; of a positional argument one, such as "FILE"
  bool positional = false;
  bool required = false;
  bool takes_value = false;
  bool many = false;                 // any number of values
  std::string value;                 // its placeholder: "N", or the choices as in "none|sum|mean"
  std::vector<std::string> choices;  // where the placeholder is a list of them
  std::string default_value;
  std::string description;
};

struct CommandText {
  std::string name;  // all words: "tpce golden make"
  std::string description;
  std::string examples;  // what --help ends with
  std::vector<OptionText> options;
  std::vector<std::string> subcommands;  // their last words
};

// The program and all of its commands, hidden ones left out, parents first.
std::vector<CommandText> command_tree(CLI::App& program);

// "tpce loss [OPTIONS] FILE".
std::string synopsis(const CommandText& command);

}  // namespace tpce::tools
