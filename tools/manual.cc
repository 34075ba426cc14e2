// tpce manual, a hidden command: docs/cli.md and the man pages, written from the same text as --help.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>

#include "io/atomic_file.h"
#include "tools/build_info.h"
#include "tools/command.h"
#include "tools/command_tree.h"
#include "tools/completion.h"
#include "tools/output.h"

namespace tpce::tools {

namespace {

struct ManualCommand {
  std::optional<std::string> install_tree;

  int run(CLI::App& program) const;
};

// "--reduction none|sum|mean"
std::string head_of(const OptionText& option) {
  return fmt::format("{}{}{}", fmt::join(option.names, ", "), option.value.empty() ? "" : " ", option.value);
}

std::string body_of(const OptionText& option) {
  if (option.default_value.empty()) return option.description;
  return fmt::format("{} (default: {})", option.description, option.default_value);
}

std::string markdown(const std::vector<CommandText>& tree) {
  std::string text =
      "# The program tpce\n\n"
      "Written by `tpce manual` from the text of `--help`; a test keeps the two equal.\n";
  for (const CommandText& command : tree) {
    text += fmt::format("\n## {}\n\n{}\n\n    {}\n", command.name, command.description, synopsis(command));
    std::string options;
    for (const OptionText& option : command.options) {
      if (option.names.back() == "--help") continue;
      options += fmt::format("- `{}`: {}\n", head_of(option), body_of(option));
    }
    if (!options.empty()) text += "\n" + options;
    if (!command.subcommands.empty()) {
      text += fmt::format("\nCommands: {}.\n", fmt::join(command.subcommands, ", "));
    }
    std::istringstream lines(command.examples);
    text += "\n";
    for (std::string line; std::getline(lines, line);) text += line.empty() ? "\n" : "    " + line + "\n";
  }
  return text;
}

// Text as roff: nothing in it is a command.
std::string roff(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\') escaped += "\\\\";
    if (c == '-') escaped += "\\-";
    if (c != '\\' && c != '-') escaped += c;
  }
  return escaped.rfind('.', 0) == 0 || escaped.rfind('\'', 0) == 0 ? "\\&" + escaped : escaped;
}

std::string page_name(const CommandText& command) {
  std::string name = command.name;
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

std::string man_page(const CommandText& command) {
  std::string text =
      fmt::format(".TH {} 1 \"\" \"tpce {}\" \"tpce\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n{}\n", page_name(command),
                  TPCE_VERSION, roff(page_name(command)), roff(command.description), roff(synopsis(command)));
  if (!command.subcommands.empty()) {
    text += ".SH COMMANDS\n";
    for (const std::string& name : command.subcommands) {
      text += fmt::format(".BR {} (1)\n.br\n", roff(page_name(command) + "-" + name));
    }
  }
  text += ".SH OPTIONS\n";
  for (const OptionText& option : command.options) {
    text += fmt::format(".TP\n.B {}\n{}\n", roff(head_of(option)), roff(body_of(option)));
  }
  text += ".SH NOTES\n.nf\n";
  std::istringstream lines(command.examples);
  for (std::string line; std::getline(lines, line);) text += roff(line) + "\n";
  return text + ".fi\n";
}

int ManualCommand::run(CLI::App& program) const {
  const std::vector<CommandText> tree = command_tree(program);
  if (!install_tree) {
    print(markdown(tree));
    return 0;
  }
  const std::filesystem::path root(*install_tree);
  const auto write = [&](const std::filesystem::path& file, const std::string& text) {
    std::filesystem::create_directories(file.parent_path());
    io::write_file(file.string(), text);
  };
  for (const CommandText& command : tree) write(root / "man/man1" / (page_name(command) + ".1"), man_page(command));
  write(root / "bash-completion/completions/tpce", completion_script(program, "bash"));
  write(root / "zsh/site-functions/_tpce", completion_script(program, "zsh"));
  return 0;
}

}  // namespace

std::vector<Command> add_manual(CLI::App& program) {
  CLI::App* app = program.add_subcommand("manual", "print docs/cli.md, or write man pages and completions");
  app->group("");  // hidden: the build runs it
  auto command = std::make_shared<ManualCommand>();
  app->add_option("--install-tree", command->install_tree, "write man pages and completions below DIR, as in share/")
      ->type_name("DIR");
  return {{app, [command, &program] { return command->run(program); }}};
}

}  // namespace tpce::tools
