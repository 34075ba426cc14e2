#include "tools/command_tree.h"

#include <algorithm>
#include <cctype>
#include <sstream>

namespace tpce::tools {

namespace {

// "none|sum|mean" is a list of choices; "F.npy|F.safetensors" and "N" are not.
std::vector<std::string> choices_in(const std::string& value) {
  if (std::any_of(value.begin(), value.end(), [](unsigned char c) { return std::isupper(c) != 0; })) return {};
  std::vector<std::string> choices;
  std::istringstream words(value);
  for (std::string word; std::getline(words, word, '|');) choices.push_back(word);
  return choices;
}

OptionText text_of(const CLI::Option& option) {
  OptionText text;
  text.positional = option.get_positional();
  if (text.positional) {
    text.names.push_back(option.get_name(true));
  } else {
    for (const std::string& name : option.get_snames()) text.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) text.names.push_back("--" + name);
  }
  text.required = option.get_required();
  text.takes_value = option.get_items_expected_max() > 0;  // a flag expects none
  text.many = option.get_items_expected_max() > 1;
  if (text.takes_value && !text.positional) {
    text.value = option.get_type_name();
    text.choices = choices_in(text.value);
  }
  text.default_value = option.get_default_str();
  text.description = option.get_description();
  return text;
}

void collect(CLI::App& app, const std::string& parents, std::vector<CommandText>& tree) {
  CommandText text{.name = parents + app.get_name(),
                   .description = app.get_description(),
                   .examples = app.get_footer(),
                   .options = {},
                   .subcommands = {}};
  for (const CLI::Option* option : app.get_options()) text.options.push_back(text_of(*option));
  std::vector<CLI::App*> shown = app.get_subcommands([](CLI::App* sub) { return !sub->get_group().empty(); });
  for (const CLI::App* sub : shown) text.subcommands.push_back(sub->get_name());
  const std::string name = text.name;
  tree.push_back(std::move(text));
  for (CLI::App* sub : shown) collect(*sub, name + " ", tree);
}

}  // namespace

std::vector<CommandText> command_tree(CLI::App& program) {
  std::vector<CommandText> tree;
  collect(program, "", tree);
  return tree;
}

std::string synopsis(const CommandText& command) {
  std::string text = command.name;
  if (!command.subcommands.empty()) return text + " COMMAND";
  text += " [OPTIONS]";
  for (const OptionText& option : command.options) {
    if (option.required && !option.positional) text += " " + option.names.back() + " " + option.value;
  }
  for (const OptionText& option : command.options) {
    if (option.positional) text += " " + option.names.front() + (option.many ? "..." : "");
  }
  return text;
}

}  // namespace tpce::tools
