// The program under mpirun: it prints once, what one process prints, and a rank that fails ends the run.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/mpi/launch.h"

namespace tpce {
namespace {

namespace fs = std::filesystem;
using testing::Launched;
using Lines = std::vector<std::string>;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

// A .npy file of zeros, most of it a hole.
void write_zeros(const fs::path& path, const std::string& descr, const std::vector<std::int64_t>& shape,
                 std::int64_t element_bytes) {
  std::string dims;
  std::int64_t bytes = element_bytes;
  for (const std::int64_t n : shape) {
    dims += std::to_string(n) + ",";
    bytes *= n;
  }
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (" + dims + "), }";
  header.resize(118 - 1, ' ');
  header += '\n';
  std::ofstream file(path, std::ios::binary);
  file << std::string("\x93NUMPY\x01\x00\x76\x00", 10) << header;
  file.close();
  fs::resize_file(path, static_cast<std::uintmax_t>(128 + bytes));
}

class Program : public ::testing::Test {
 protected:
  Program() {
    std::string name = fs::path(::testing::TempDir()) / "tpce_ranks_XXXXXX";
    if (mkdtemp(name.data()) != nullptr) directory = name;
  }
  ~Program() override { fs::remove_all(directory); }

  static Launched over_ranks(int ranks, const std::string& arguments) {
    return testing::launch(ranks, std::string(TPCE_PROGRAM) + " " + arguments);
  }
  // One process, no launcher.
  static std::string alone(const std::string& arguments) {
    std::string out;
    FILE* pipe = popen((std::string(TPCE_PROGRAM) + " " + arguments).c_str(), "r");
    for (int byte = fgetc(pipe); byte != EOF; byte = fgetc(pipe)) out += static_cast<char>(byte);
    EXPECT_EQ(pclose(pipe), 0);
    return out;
  }
  std::string in_directory(const std::string& name) const { return directory / name; }

  const std::string capture = std::string(TPCE_CAPTURES) + "/smollm2_repeat12_bf16.safetensors";
  fs::path directory;
};

TEST_F(Program, PrintsAndWritesOnceWhatOneProcessDoes) {
  const auto arguments = [&](const std::string& name) {
    return "loss " + capture + " --tp 8 --json --per-row " + in_directory(name + ".npy") + " --grad " +
           in_directory(name + ".safetensors") + " --grad-dtype bf16";
  };
  const std::string expected = alone(arguments("alone"));
  for (const int ranks : {1, 2, 3, 4}) {
    const Launched run = over_ranks(ranks, arguments("ranks"));
    EXPECT_EQ(run.out, expected) << ranks << " ranks";
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_TRUE(read(directory / "ranks.npy") == read(directory / "alone.npy")) << ranks << " ranks";
    EXPECT_TRUE(read(directory / "ranks.safetensors") == read(directory / "alone.safetensors")) << ranks << " ranks";
  }
}

TEST_F(Program, TakesFewerShardsThanRanksAndUnevenOnes) {
  EXPECT_EQ(over_ranks(5, "loss --tp 2 " + capture).out, alone("loss --tp 2 " + capture));
  const std::string uneven = "loss --shards 1000,0,48000,152 " + capture;
  EXPECT_EQ(over_ranks(3, uneven).out, alone(uneven));
}

TEST_F(Program, CutsIntoAShardARankByDefault) {
  EXPECT_EQ(over_ranks(3, "loss " + capture).out, alone("loss --tp 3 " + capture));
}

TEST_F(Program, RunsWhatKnowsNoRanksOnTheFirst) {
  const std::string simulated = "loss --method log_softmax --tp 2 --json " + capture;
  EXPECT_EQ(over_ranks(3, simulated).out, alone(simulated));
  EXPECT_EQ(over_ranks(3, "info --fingerprint").out, alone("info --fingerprint"));
  EXPECT_EQ(over_ranks(2, "--version").out, alone("--version"));
}

TEST_F(Program, CastsToTheBitsOfOneProcess) {
  write_zeros(in_directory("labels.npy"), "<i8", {3}, 8);
  write_zeros(in_directory("logits.npy"), "<f8", {3, 7}, 8);
  std::fstream file(directory / "logits.npy", std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(128);
  for (int i = 0; i < 21; ++i) {
    const double z = 10.0 / (1 + i * i % 23);
    file.write(reinterpret_cast<const char*>(&z), sizeof z);
  }
  file.close();
  const auto arguments = [&](const std::string& name) {
    return "loss " + in_directory("logits.npy") + " --labels " + in_directory("labels.npy") +
           " --cast fp32 --shards 2,0,4,1 --json --grad " + in_directory(name);
  };
  const std::string expected = alone(arguments("alone.npy"));
  for (const int ranks : {2, 3, 5}) {
    EXPECT_EQ(over_ranks(ranks, arguments("ranks.npy")).out, expected) << ranks << " ranks";
    EXPECT_TRUE(read(directory / "ranks.npy") == read(directory / "alone.npy")) << ranks << " ranks";
  }
}

// The last rank has one of the columns. It runs with as little memory as it takes where there are few, and 64 MiB more,
// of which a cast of every column would take 128.
TEST_F(Program, CastsTheColumnsOfTheRankAlone) {
  write_zeros(in_directory("labels.npy"), "<i8", {32}, 8);
  const auto is_run = [&](std::int64_t columns, const std::string& limit) {
    const std::string file = in_directory(std::to_string(columns) + ".npy");
    if (!fs::exists(file)) write_zeros(file, "<f8", {32, columns}, 8);
    const std::string arguments = "loss " + file + " --labels " + in_directory("labels.npy") +
                                  " --cast fp32 --threads 1 --shards " + std::to_string(columns - 1) + ",1";
    const Launched run = testing::launch(2, "sh -c 'if [ $OMPI_COMM_WORLD_RANK = 1 ]; then ulimit -d " + limit +
                                                "; fi; exec " + TPCE_PROGRAM + " " + arguments + "'");
    return run.exit_code == 0;
  };
  const auto kibibytes = [](int mebibytes) { return std::to_string(mebibytes * 1024); };
  ASSERT_TRUE(is_run(1 << 8, "unlimited"));
  constexpr int kMost = 1024, kStep = 32;
  int mebibytes = kStep;
  while (mebibytes < kMost && !is_run(1 << 8, kibibytes(mebibytes))) mebibytes += kStep;
  if (mebibytes == kMost) GTEST_SKIP() << "a sanitizer reserves more memory than can be limited";
  EXPECT_TRUE(is_run(1 << 20, kibibytes(mebibytes + 64)));
}

TEST_F(Program, MakesAndChecksGoldensAsOneProcessDoes) {
  const std::string other = std::string(TPCE_CAPTURES) + "/smollm2_repeat12_f32.safetensors";
  const std::string files = " " + capture + " " + other;
  alone("golden make --out " + in_directory("alone.txt") + files);
  EXPECT_EQ(over_ranks(3, "golden make --out " + in_directory("ranks.txt") + files).exit_code, 0);
  EXPECT_EQ(read(directory / "ranks.txt"), read(directory / "alone.txt"));
  const std::string check = "golden check " + in_directory("alone.txt");
  const std::string expected = alone(check + files);
  for (const int ranks : {1, 2, 3, 4}) {
    const Launched run = over_ranks(ranks, check + files);
    EXPECT_EQ(run.out, expected) << ranks << " ranks";
    EXPECT_EQ(run.exit_code, 0) << run.err;
  }
  // The files in the wrong order: a difference, which update then writes.
  const std::string swapped = " " + other + " " + capture;
  EXPECT_EQ(over_ranks(2, check + swapped).exit_code, 1);
  EXPECT_EQ(over_ranks(2, "golden update " + in_directory("alone.txt") + swapped).exit_code, 0);
  EXPECT_EQ(over_ranks(2, check + swapped).exit_code, 0);
}

TEST_F(Program, TellsOfAnErrorOfAllRanksOnce) {
  const std::string refused = "--vocab 100 " + capture;
  const std::string label = "labels: row 0 has label 22658, expected 0..99 or ignore_index -100";
  for (const std::string method : {"canonical", "log_softmax"}) {
    const Launched run =
        over_ranks(3, "loss --method " + method + " " + refused + " --grad " + in_directory("gradient.npy"));
    EXPECT_EQ(run.messages.size(), 1u) << run.err;
    EXPECT_NE(run.err.find("tpce: error: " + capture + ": labels: row 0 "), std::string::npos) << run.err;
    EXPECT_EQ(run.out, "");
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_LT(run.seconds, 10);
    EXPECT_TRUE(fs::is_empty(directory));
  }
  EXPECT_EQ(over_ranks(3, "loss " + refused).messages, Lines{"tpce: error: " + capture + ": " + label});
  EXPECT_EQ(over_ranks(3, "loss").messages, Lines{"tpce: error: FILE is required; see tpce loss --help"});
}

TEST_F(Program, NamesTheRankThatFailsAlone) {
  const Launched run = over_ranks(3, "loss " + capture + " --per-row /nowhere/loss.npy");  // the first one writes
  ASSERT_EQ(run.messages.size(), 1u) << run.err;
  EXPECT_TRUE(run.messages[0].starts_with("tpce: error: rank 0 of 3: /nowhere/loss.npy: ")) << run.err;
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_LT(run.seconds, 10);
}

TEST_F(Program, AStudyIsTheSameOverRanks) {
  EXPECT_EQ(over_ranks(3, "study memory --quick --out " + in_directory("three")).exit_code, 0);
  EXPECT_NE(alone("study memory --quick --out " + in_directory("one")), "");
  // All but the measured memory, which two runs of one process may disagree on too.
  const auto computed = [&](const std::string& folder) {
    std::string kept;
    std::istringstream lines(read(directory / folder / "study.json"));
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind("\"measured\"", 0) != 0) kept += line + "\n";
    }
    return kept;
  };
  EXPECT_NE(computed("one").find("published-log_softmax-eager"), std::string::npos);
  EXPECT_EQ(computed("three"), computed("one"));
  const Launched refused = over_ranks(2, "study memory --set rows=0 --out " + in_directory("none"));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(refused.messages, Lines{"tpce: error: rows: got '0', expected a whole number 1..4294967296"});
}

// What a cell alone finds out leaves nothing either, whichever rank has the cell.
TEST_F(Program, AStudyThatIsRefusedByACellLeavesNothing) {
  std::ofstream(directory / "empty.txt").close();
  const Launched run =
      over_ranks(3, "study finetune --quick --set text=" + in_directory("empty.txt") + " --out " + in_directory("h/i"));
  EXPECT_EQ(run.exit_code, 2) << run.err;
  EXPECT_FALSE(fs::exists(directory / "h")) << run.err;
}

// The error names the rank and the cell, and the run goes on from the others once its cause is gone.
TEST_F(Program, NamesTheCellOfAStudyThatFails) {
  const std::string study =
      "study grokking --quick --set losses=log_softmax,canonical --out " + in_directory("grokking");
  const fs::path folder = directory / "grokking", checkpoint = folder / "cells/log_softmax-80-seed1.checkpoint";
  alone(study);
  const std::string finished = read(folder / "study.json");
  // As if it had been stopped in its first cell, whose checkpoint then was damaged.
  const std::size_t line = finished.find("\"log_softmax-80-seed1\""), end = finished.find('\n', line) + 1;
  ASSERT_NE(line, std::string::npos);
  fs::create_directory(folder / "cells");
  for (const fs::path& file : {folder / "study.json", folder / "cells/header"}) {
    std::ofstream(file) << finished.substr(0, line) << finished.substr(end);
  }
  std::ofstream(checkpoint) << "nonsense";
  const Launched run = over_ranks(3, study);
  EXPECT_EQ(run.exit_code, 2);
  ASSERT_EQ(run.messages.size(), 1u) << run.err;
  EXPECT_TRUE(run.messages[0].starts_with("tpce: error: rank ")) << run.err;
  EXPECT_NE(run.messages[0].find(" of 3: study grokking, cell log_softmax-80-seed1: " + checkpoint.string() +
                                 ": is no checkpoint"),
            std::string::npos)
      << run.err;
  EXPECT_LT(run.seconds, 30);

  fs::remove(checkpoint);
  EXPECT_EQ(over_ranks(2, study).exit_code, 0);
  EXPECT_EQ(read(folder / "study.json"), finished);
}

// The processes that run as a rank on the file: its guard and itself.
std::vector<int> processes_of(int rank, const std::string& file) {
  std::vector<int> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (!std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; })) continue;
    const std::string variable = '\0' + ("OMPI_COMM_WORLD_RANK=" + std::to_string(rank)) + '\0';
    if (read(entry.path() / "cmdline").find(file) == std::string::npos) continue;
    if (read(entry.path() / "environ").find(variable) != std::string::npos) found.push_back(std::stoi(name));
  }
  std::sort(found.begin(), found.end());
  return found;
}

int parent_of(int process) {
  std::istringstream stat(read("/proc/" + std::to_string(process) + "/stat"));
  std::string id, name, state;
  int parent = -1;
  stat >> id >> name >> state >> parent;
  return parent;
}

TEST_F(Program, EndsOnAllRanksWhereOneIsKilled) {
  const std::string file = in_directory("zeros.npy");
  write_zeros(file, "<f4", {2000, 40000}, 4);
  write_zeros(directory / "labels.npy", "<i8", {2000}, 8);
  auto running = std::async(std::launch::async, [&] {
    return over_ranks(4, "loss " + file + " --labels " + in_directory("labels.npy") + " --backend scalar --grad " +
                             in_directory("gradient.npy"));
  });
  std::vector<int> processes;
  for (int i = 0; i < 1000 && processes.size() < 2; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    processes = processes_of(2, file);
  }
  // Time to start MPI and the loss.
  std::this_thread::sleep_for(std::chrono::seconds(2));
  ASSERT_EQ(processes.size(), 2u);
  const auto killed = std::chrono::steady_clock::now();
  kill(parent_of(processes[1]) == processes[0] ? processes[1] : processes[0], SIGKILL);
  const Launched run = running.get();
  EXPECT_LT(std::chrono::steady_clock::now() - killed, std::chrono::seconds(10));
  EXPECT_EQ(run.messages, Lines{"tpce: error: rank 2 of 4: killed by signal 9 (Killed), as where memory runs out"})
      << run.err;
  EXPECT_EQ(run.out, "");
  EXPECT_NE(run.exit_code, 0);
  const auto all_ended = [&] {
    return processes_of(0, file).empty() && processes_of(1, file).empty() && processes_of(2, file).empty() &&
           processes_of(3, file).empty();
  };
  while (!all_ended() && std::chrono::steady_clock::now() - killed < std::chrono::seconds(10)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_TRUE(all_ended());
  EXPECT_FALSE(fs::exists(directory / "gradient.npy"));
  EXPECT_EQ(std::distance(fs::directory_iterator(directory), {}), 2) << "a temporary file was left";
}

TEST_F(Program, AStudyGoesOnAfterARankWasKilled) {
  const auto study = [&](const std::string& name) {
    return "study grokking --quick --set losses=canonical --set seeds=30 --out " + in_directory(name);
  };
  auto running = std::async(std::launch::async, [&] { return over_ranks(3, study("killed")); });
  for (int i = 0; i < 20000 && !fs::exists(directory / "killed/cells/header"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::vector<int> processes = processes_of(1, in_directory("killed"));
  ASSERT_EQ(processes.size(), 2u);
  kill(parent_of(processes[1]) == processes[0] ? processes[1] : processes[0], SIGKILL);
  const Launched run = running.get();
  EXPECT_EQ(run.messages, Lines{"tpce: error: rank 1 of 3: killed by signal 9 (Killed), as where memory runs out"})
      << run.err;
  EXPECT_NE(run.exit_code, 0);
  EXPECT_FALSE(fs::exists(directory / "killed/page.md"));
  alone(study("killed"));
  alone(study("whole"));
  EXPECT_EQ(read(directory / "killed/study.json"), read(directory / "whole/study.json"));
}

}  // namespace
}  // namespace tpce
