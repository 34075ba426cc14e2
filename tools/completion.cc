// tpce completion: what the Tab key offers, as a script for the shell.
#include "tools/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <memory>
#include <stdexcept>

#include "io/error.h"
#include "tools/command.h"
#include "tools/command_tree.h"
#include "tools/output.h"

namespace tpce::tools {

namespace {

constexpr const char* kExamples = R"(Examples:
  tpce completion bash > ~/.local/share/bash-completion/completions/tpce
  tpce completion zsh > ~/.zsh/completions/_tpce
      where a folder of $fpath is)";

// "tpce golden make" is known to the scripts as "golden make".
std::string without_program(const std::string& name) {
  const std::size_t space = name.find(' ');
  return space == std::string::npos ? "" : name.substr(space + 1);
}

// The branches of the scripts' three case statements.
struct Branches {
  std::string commands;  // the words that name a command, each with those before it
  std::string values;    // what may follow an option
  std::string words;     // options and subcommands of a command
};

Branches branches_of(const std::vector<CommandText>& tree) {
  Branches branches;
  // By option, which means the same in every command, though one may list less.
  std::map<std::string, std::vector<std::string>> choices;
  for (const CommandText& command : tree) {
    const std::string at = without_program(command.name);
    for (const std::string& name : command.subcommands) {
      branches.commands +=
          fmt::format("      \"{} {}\") command=\"{}\" ;;\n", at, name, at.empty() ? name : at + " " + name);
    }
    std::vector<std::string> options;
    for (const OptionText& option : command.options) {
      if (option.positional) continue;
      options.insert(options.end(), option.names.begin(), option.names.end());
      if (!option.takes_value) continue;
      for (const std::string& name : option.names) {
        std::vector<std::string>& known = choices[name];
        if (known.size() < option.choices.size()) known = option.choices;
      }
    }
    branches.words += fmt::format("    \"{}\") options=\"{}\" commands=\"{}\" ;;\n", at, fmt::join(options, " "),
                                  fmt::join(command.subcommands, " "));
  }
  for (const auto& [option, words] : choices) {
    branches.values += fmt::format("    {}) values=\"{}\" takes_value=yes ;;\n", option, fmt::join(words, " "));
  }
  return branches;
}

struct CompletionCommand {
  std::string shell;

  int run(CLI::App& program) const {
    print(completion_script(program, shell));
    return 0;
  }
};

}  // namespace

std::string completion_script(CLI::App& program, const std::string& shell) {
  const Branches branches = branches_of(command_tree(program));
  const std::string find_words = fmt::format(R"(    case "$command $word" in
{}    esac
  done
  case "$prev" in
{}  esac
  case "$command" in
{}  esac
)",
                                             branches.commands, branches.values, branches.words);
  if (shell == "bash") {
    return R"(# Completion of tpce for bash; written by `tpce completion bash`.
_tpce() {
  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}"
  local command="" word options="" commands="" values="" takes_value=""
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
)" + find_words +
           R"(  if [[ -n $values ]]; then
    COMPREPLY=($(compgen -W "$values" -- "$cur"))
  elif [[ -z $takes_value && $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$cur"))
  elif [[ -z $takes_value && -n $commands ]]; then
    COMPREPLY=($(compgen -W "$commands" -- "$cur"))
  else
    local IFS=$'\n'
    COMPREPLY=($(compgen -f -- "$cur"))
  fi
}
complete -o filenames -F _tpce tpce
)";
  }
  if (shell == "zsh") {
    return R"(#compdef tpce
# Completion of tpce for zsh; written by `tpce completion zsh`.
_tpce() {
  local cur="$words[CURRENT]" prev="$words[CURRENT-1]"
  local command="" word options="" commands="" values="" takes_value=""
  for word in $words[2,CURRENT-1]; do
)" + find_words +
           R"(  if [[ -n $values ]]; then
    compadd -- ${=values}
  elif [[ -z $takes_value && $cur == -* ]]; then
    compadd -- ${=options}
  elif [[ -z $takes_value && -n $commands ]]; then
    compadd -- ${=commands}
  else
    _files
  fi
}
_tpce "$@"
)";
  }
  throw std::invalid_argument(fmt::format("shell: got {}, expected bash or zsh", io::quote(shell)));
}

std::vector<Command> add_completion(CLI::App& program) {
  CLI::App* app = program.add_subcommand("completion", "print the completion script of a shell");
  app->footer(kExamples);
  auto command = std::make_shared<CompletionCommand>();
  app->add_option("SHELL", command->shell, "bash or zsh")->required();
  return {{app, [command, &program] { return command->run(program); }}};
}

}  // namespace tpce::tools
