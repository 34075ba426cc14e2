#include "sim/studies/gnuplot.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <system_error>

extern char** environ;

namespace tpce::sim {
namespace {

// A file without a name, so that nothing is left behind, and no pipe can fill up or break.
class TemporaryFile {
 public:
  TemporaryFile() : file_(std::tmpfile()) {
    if (!file_) throw std::system_error(errno, std::generic_category(), "gnuplot: no temporary file");
  }

  int descriptor() const { return fileno(file_.get()); }

  void write(std::string_view text) {
    if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size() || std::fflush(file_.get()) != 0) {
      throw std::system_error(errno, std::generic_category(), "gnuplot: temporary file");
    }
    std::rewind(file_.get());
  }

  std::string read() {
    std::rewind(file_.get());
    std::string text;
    char block[1 << 16];
    for (std::size_t count; (count = std::fread(block, 1, sizeof block, file_.get())) > 0;) text.append(block, count);
    return text;
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
};

class FileActions {
 public:
  FileActions() { posix_spawn_file_actions_init(&actions_); }
  ~FileActions() { posix_spawn_file_actions_destroy(&actions_); }
  FileActions(const FileActions&) = delete;
  FileActions& operator=(const FileActions&) = delete;
  void redirect(int from, int to) { posix_spawn_file_actions_adddup2(&actions_, from, to); }
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

}  // namespace

std::string run_gnuplot(std::string_view script) {
  TemporaryFile input, output, errors;
  input.write(script);
  FileActions actions;
  actions.redirect(input.descriptor(), STDIN_FILENO);
  actions.redirect(output.descriptor(), STDOUT_FILENO);
  actions.redirect(errors.descriptor(), STDERR_FILENO);

  char program[] = "gnuplot";
  char* arguments[] = {program, nullptr};
  pid_t child = 0;
  if (const int error = posix_spawnp(&child, program, actions.get(), nullptr, arguments, environ); error != 0) {
    throw std::runtime_error(std::string("gnuplot: cannot be started: ") + std::strerror(error) +
                             "; install the package gnuplot-nox");
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) throw std::runtime_error("gnuplot: failed: " + errors.read());
  return output.read();
}

}  // namespace tpce::sim
