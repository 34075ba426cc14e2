// A run that is stopped leaves nothing half written, and the progress line is for terminals only.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "tests/tools/input_files.h"
#include "tests/tools/run_program.h"

namespace tpce::test {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

// Logits of zeros, a hole on the disk, whose loss takes the scalar backend far longer than any test waits.
std::vector<std::string> long_command(const TemporaryDirectory& directory) {
  constexpr std::int64_t kRows = 4000, kColumns = 1000000;
  const std::string file = directory / "z.npy";
  write_text(file, npy("<f4", "(4000, 1000000)", ""));
  std::filesystem::resize_file(file, std::filesystem::file_size(file) + kRows * kColumns * 4);
  write_text(directory / "t.npy", npy("<i8", "(4000,)", bytes_of(std::vector<std::int64_t>(kRows))));
  return {"loss", file, "--labels", directory / "t.npy", "--grad", directory / "g.npy"};
}

TEST(ProgramSignals, AStoppedRunLeavesNothing) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXCPU}) {
    const TemporaryDirectory directory;
    const std::vector<std::string> command = long_command(directory);
    Process process(directory, command);
    const auto deadline = steady_clock::now() + seconds(60);
    while (directory.names().size() < 3 && steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_EQ(directory.names().size(), 3u) << "the temporary file of --grad";
    kill(process.pid(), signal);
    const Output output = process.wait();
    EXPECT_EQ(output.exit_code, 128 + signal);
    EXPECT_EQ(output.out, "");
    EXPECT_EQ(output.err, "");
    EXPECT_EQ(directory.names(), (std::vector<std::string>{"t.npy", "z.npy"}));
  }
}

TEST(ProgramSignals, AFileSizeLimitIsAnErrorThatLeavesNothing) {
  const TemporaryDirectory directory;
  write_text(directory / "z.npy", npy("<f4", "(64, 1000)", std::string(64 * 1000 * 4, '\0')));
  write_text(directory / "t.npy", npy("<i8", "(64,)", bytes_of(std::vector<std::int64_t>(64))));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit low{65536, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  const Output output =
      run(directory, {"loss", directory / "z.npy", "--labels", directory / "t.npy", "--grad", directory / "g.npy"});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(output.exit_code, 2);
  EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << output.err;
  EXPECT_NE(output.err.find("g.npy"), std::string::npos) << output.err;
  EXPECT_EQ(directory.names(), (std::vector<std::string>{"t.npy", "z.npy"}));
}

// What a terminal sees of the program until it says how much time is left; then it is interrupted.
std::string seen_by_a_terminal(const TemporaryDirectory& directory, const std::vector<std::string>& command) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  EXPECT_GE(terminal, 0);
  EXPECT_EQ(grantpt(terminal), 0);
  EXPECT_EQ(unlockpt(terminal), 0);
  const int program_side = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  EXPECT_GE(program_side, 0);
  setenv("TERM", "xterm", 1);
  Process process(directory, command, program_side);
  fcntl(terminal, F_SETFL, O_NONBLOCK);
  std::string seen;
  const auto deadline = steady_clock::now() + seconds(60);
  while (seen.find("left") == std::string::npos && steady_clock::now() < deadline) {
    char buffer[4096];
    const ssize_t count = read(terminal, buffer, sizeof buffer);
    if (count > 0) seen.append(buffer, static_cast<std::size_t>(count));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(process.pid(), SIGINT);
  EXPECT_EQ(process.wait().exit_code, 130);
  close(program_side);
  close(terminal);
  return seen;
}

TEST(ProgramSignals, AParityThatIsStoppedLeavesNothing) {
  const TemporaryDirectory directory;
  std::vector<std::string> command = long_command(directory);
  command.resize(4);
  command[0] = "parity";
  command.insert(command.end(), {"--a", "scalar", "--b", "simd", "--report", directory / "a/report"});
  const std::string seen = seen_by_a_terminal(directory, command);
  EXPECT_NE(seen.find("parity ["), std::string::npos) << seen;
  EXPECT_EQ(directory.names(), (std::vector<std::string>{"t.npy", "z.npy"}));
}

TEST(ProgramSignals, ATerminalSeesRateAndTimeLeft) {
  for (const char* method : {"canonical", "certified"}) {
    const TemporaryDirectory directory;
    std::vector<std::string> command = long_command(directory);
    command.insert(command.end(), {"--method", method});
    const std::string seen = seen_by_a_terminal(directory, command);
    EXPECT_NE(seen.find("loss ["), std::string::npos) << seen;
    EXPECT_NE(seen.find("rows/s"), std::string::npos) << seen;
    EXPECT_NE(seen.find("left"), std::string::npos) << seen;
  }
}

}  // namespace
}  // namespace tpce::test
