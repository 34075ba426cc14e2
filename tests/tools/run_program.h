// Runs the program under test, in a directory of the test's own.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace tpce::test {

struct Output {
  int exit_code = 0;  // 128 + signal where one ended the program
  std::string out;
  std::string err;
};

// An empty directory, removed with everything in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  // Path of a file in it.
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }
  // Names of its files, sorted; without the captured output of programs.
  std::vector<std::string> names() const;

 private:
  std::filesystem::path path_;
};

// A program that runs: with stdin empty, stdout and stderr caught in files of the directory.
class Process {
 public:
  // err_fd: where stderr goes instead of a file, or -1.
  Process(const TemporaryDirectory& directory, const std::vector<std::string>& arguments, int err_fd = -1);
  pid_t pid() const { return pid_; }
  Output wait();

 private:
  std::filesystem::path out_;
  std::filesystem::path err_;
  pid_t pid_ = -1;
};

// tpce with these arguments, run to its end.
Output run(const TemporaryDirectory& directory, const std::vector<std::string>& arguments);

std::string read_text(const std::string& path);
void write_text(const std::string& path, const std::string& text);

}  // namespace tpce::test
