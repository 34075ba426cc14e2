#include "io/gnuplot.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>

#include "io/error.h"

extern char** environ;

namespace tpce::io {
namespace {

[[noreturn]] void refuse(std::string_view what) { throw std::runtime_error(fmt::format("plot: {}", what)); }

// A file in memory: the script may be larger than a pipe holds while gnuplot is still writing.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("tpce-gnuplot", MFD_CLOEXEC)) {
    if (fd_ < 0) refuse(errno_text(errno));
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int fd() const { return fd_; }

  void write(std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(fd_, text.data(), text.size());
      if (written < 0) refuse(errno_text(errno));
      text.remove_prefix(static_cast<std::size_t>(written));
    }
    ::lseek(fd_, 0, SEEK_SET);
  }

  std::string read() const {
    std::string text;
    char buffer[65536];
    ::lseek(fd_, 0, SEEK_SET);
    for (;;) {
      const ssize_t count = ::read(fd_, buffer, sizeof(buffer));
      if (count < 0) refuse(errno_text(errno));
      if (count == 0) return text;
      text.append(buffer, static_cast<std::size_t>(count));
    }
  }

 private:
  int fd_;
};

}  // namespace

std::string run_gnuplot(std::string_view script) {
  MemoryFile input;
  MemoryFile output;
  MemoryFile complaints;
  input.write(script);

  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input.fd(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, output.fd(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, complaints.fd(), STDERR_FILENO);
  char name[] = "gnuplot";
  char* arguments[] = {name, nullptr};
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, name, &actions, nullptr, arguments, environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT) refuse("gnuplot is not installed (Debian package gnuplot-nox)");
  if (error != 0) refuse("cannot run gnuplot: " + errno_text(error));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) refuse("cannot wait for gnuplot: " + errno_text(errno));
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    const std::string text = complaints.read();
    const std::size_t begin = text.find_first_not_of(" \t\r\n");
    const std::string line = begin == std::string::npos ? "" : text.substr(begin, text.find('\n', begin) - begin);
    refuse(
        fmt::format("gnuplot failed (status {}): {}", WIFEXITED(status) ? WEXITSTATUS(status) : -1, quote(line, 200)));
  }
  return output.read();
}

std::string gnuplot_string(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

}  // namespace tpce::io
