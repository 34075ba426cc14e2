// The program tpce. Exit codes: 0 done, 1 a comparison found a difference, 2 an error, told in one line on stderr.
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <exception>
#include <new>

#include "io/atomic_file.h"
#include "tools/build_info.h"
#include "tools/command.h"
#include "tools/output.h"
#include "tools/ranks.h"

namespace {

constexpr int kErrorExit = 2;

bool is_one_of_ranks = false;

// Only async-signal-safe calls: no file half written is left, and the process ends.
extern "C" void stop_cleanly(int signal) {
  tpce::io::remove_temporary_files();
  if (isatty(STDERR_FILENO) == 1) (void)!write(STDERR_FILENO, "\n", 1);
  _exit(128 + signal);
}

// A mapped file was shortened by somebody else while it was read.
extern "C" void input_vanished(int) {
  tpce::io::remove_temporary_files();
  if (is_one_of_ranks) {  // its guard says which, and once
    signal(SIGBUS, SIG_DFL);
    raise(SIGBUS);
    return;
  }
  constexpr char kMessage[] = "tpce: error: an input file became shorter while it was read\n";
  (void)!write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  _exit(kErrorExit);
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction current {};
  sigaction(signal, nullptr, &current);
  if (current.sa_handler == SIG_IGN) return;  // as under nohup
  struct sigaction action {};
  action.sa_handler = handler;
  sigaction(signal, &action, nullptr);
}

// As far as the command line named one: "tpce golden make".
std::string name_of_command(const CLI::App& program) {
  std::string name = program.get_name();
  for (const CLI::App* at = &program; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    name += " " + at->get_name();
  }
  return name;
}

int run(int argc, char** argv) {
  CLI::App program(
      "Tensor-parallel cross entropy with the same bits for every tp, shard, thread count and instruction set.",
      "tpce");
  program.set_version_flag("--version", "tpce " + tpce::tools::version_text(),
                           "print the version and the commit, and exit");
  program.set_help_flag("-h,--help", "print this help and exit");
  program.option_defaults()->always_capture_default();
  program.require_subcommand(0, 1);  // "tpce study collapse" names a study, not a second command
  program.footer(R"(Examples:
  tpce loss capture.safetensors
  tpce golden make step1.safetensors step2.safetensors --out golden.txt
  tpce golden check golden.txt step1.safetensors step2.safetensors --tp 8
  tpce COMMAND --help

Exit codes: 0 done; 1 a comparison found a difference; 2 an error, told in one line on stderr.)");

  std::vector<tpce::tools::Command> commands;
  using namespace tpce::tools;
  for (const auto add : {add_loss, add_golden, add_parity, add_collapse, add_train, add_study, add_report, add_info,
                         add_completion, add_manual}) {
    for (Command& command : add(program)) commands.push_back(std::move(command));
  }
  try {
    program.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    std::ostringstream text;
    program.exit(request, text, text);
    tpce::tools::print(text.str());
    return 0;
  } catch (const CLI::ParseError& error) {
    tpce::tools::report("error", fmt::format("{}; see {} --help", error.what(), name_of_command(program)));
    return kErrorExit;
  }
  for (const tpce::tools::Command& command : commands) {
    if (!command.app->parsed()) continue;
    return command.over_ranks || tpce::tools::is_first_rank() ? command.run() : 0;
  }
  tpce::tools::report("error", fmt::format("expected a command; see {} --help", name_of_command(program)));
  return kErrorExit;
}

// An error that the other ranks do not know of ends them.
int fail(const char* reason) {
  if (tpce::tools::ranks().size() > 1) tpce::tools::ranks().abort(reason);
  tpce::tools::report("error", reason);
  return kErrorExit;
}

int run_as_rank(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const tpce::CollectiveError& error) {
    tpce::tools::report("error", error.what());
    return kErrorExit;
  } catch (const std::bad_alloc&) {
    return fail("not enough memory");
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const tpce::tools::RankSession session;
    is_one_of_ranks = tpce::tools::ranks().size() > 1;
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXCPU}) handle(signal, stop_cleanly);
    handle(SIGBUS, input_vanished);
    signal(SIGXFSZ, SIG_IGN);  // a write beyond the file-size limit then fails as one to a full disk does
    return run_as_rank(argc, argv);
  } catch (const std::exception& error) {
    tpce::tools::report("error", error.what());
  }
  return kErrorExit;
}
