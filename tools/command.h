// What main.cc knows of a subcommand.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <vector>

namespace tpce::tools {

// run() returns the exit code (0, or 1 where a comparison found a difference); it throws where the program exits 2.
struct Command {
  CLI::App* app;
  std::function<int()> run;
  bool over_ranks = false;  // every rank of a run runs it; else the first one alone
};

// Each adds its subcommands to the program; its file is the one of that name.
std::vector<Command> add_info(CLI::App& program);
std::vector<Command> add_loss(CLI::App& program);
std::vector<Command> add_golden(CLI::App& program);
std::vector<Command> add_golden_compare(CLI::App& golden);
std::vector<Command> add_collapse(CLI::App& program);
std::vector<Command> add_study(CLI::App& program);
std::vector<Command> add_parity(CLI::App& program);
std::vector<Command> add_report(CLI::App& program);
std::vector<Command> add_train(CLI::App& program);
std::vector<Command> add_completion(CLI::App& program);
std::vector<Command> add_manual(CLI::App& program);

}  // namespace tpce::tools
