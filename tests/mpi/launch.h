// Starts ranks of failing_rank.cc by mpirun, and says what a user would see.
#pragma once

#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

namespace tpce::testing {

struct Launched {
  std::vector<std::string> messages;  // lines of ours
  std::string output;                 // all of it, mpirun's text too
  int exit_code = 0;
  double seconds = 0;
};

// before: what the shell does first, such as "timeout -s TERM 2".
inline Launched launch(int ranks, const std::string& how, const std::string& before = "") {
  const std::string command =
      before + " " + TPCE_MPIEXEC + " -n " + std::to_string(ranks) + " " + TPCE_FAILING_RANK + " " + how + " 2>&1";
  const auto start = std::chrono::steady_clock::now();
  Launched launched;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> buffer;
  while (const std::size_t bytes = fread(buffer.data(), 1, buffer.size(), pipe)) {
    launched.output.append(buffer.data(), bytes);
  }
  const int status = pclose(pipe);
  launched.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  launched.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  std::istringstream lines(launched.output);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("tpce: ")) launched.messages.push_back(line);
  }
  return launched;
}

}  // namespace tpce::testing
