// Starts ranks by mpirun, and says what a user would see.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace tpce::testing {

struct Launched {
  std::string out;
  std::string err;                    // mpirun's text too
  std::vector<std::string> messages;  // lines of err that are ours
  int exit_code = 0;
  double seconds = 0;
};

// Runs `mpirun -n ranks command` by the shell, after `before`, such as "timeout -s TERM 2".
inline Launched launch(int ranks, const std::string& command, const std::string& before = "") {
  std::string err_name = std::filesystem::temp_directory_path() / "tpce_launch_XXXXXX";
  close(mkstemp(err_name.data()));
  const std::string line =
      before + " " + TPCE_MPIEXEC + " -n " + std::to_string(ranks) + " " + command + " 2>" + err_name;
  const auto start = std::chrono::steady_clock::now();
  Launched launched;
  FILE* pipe = popen(line.c_str(), "r");
  std::array<char, 4096> buffer;
  while (const std::size_t bytes = fread(buffer.data(), 1, buffer.size(), pipe)) {
    launched.out.append(buffer.data(), bytes);
  }
  const int status = pclose(pipe);
  launched.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  launched.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  std::ifstream err(err_name);
  for (std::string text; std::getline(err, text);) {
    launched.err += text + "\n";
    if (text.starts_with("tpce: ")) launched.messages.push_back(text);
  }
  std::remove(err_name.c_str());
  return launched;
}

#ifdef TPCE_FAILING_RANK
// Ranks of failing_rank.cc, which says what `how` may be.
inline Launched launch_failing(int ranks, const std::string& how, const std::string& before = "") {
  return launch(ranks, std::string(TPCE_FAILING_RANK) + " " + how, before);
}
#endif

}  // namespace tpce::testing
