#include "mpi/guard.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <string>

namespace tpce::mpi {

namespace {

// By which a launcher or a user ends the run.
constexpr std::array kEndingSignals{SIGTERM, SIGINT, SIGHUP, SIGQUIT};

void write_all(const char* text, std::size_t size) noexcept {
  while (size > 0) {
    const ssize_t written = write(STDERR_FILENO, text, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text += written;
    size -= static_cast<std::size_t>(written);
  }
}

// For the rank's signal handler.
void (*cleanup_of_rank)() noexcept = nullptr;

// Says nothing: the launcher may have killed the guard, as it ends the run, before the guard could handle the signal
// that came first. Open MPI waits a second between the two, but any rank that ends cuts its wait short.
void on_guard_killed(int) {
  cleanup_of_rank();
  _exit(128 + SIGKILL);
}

bool is_ending(int signal) {
  for (const int ending : kEndingSignals) {
    if (signal == ending) return true;
  }
  return false;
}

struct RankEnd {
  int status;  // of waitpid()
  bool asked;  // whether the run was ended before, so that it is no news
};

// Waits for the end of the child, and hands on what is sent to end it.
RankEnd wait_for_rank(pid_t child, const sigset_t& awaited) {
  bool asked = false;
  for (;;) {
    const int signal = sigwaitinfo(&awaited, nullptr);
    if (is_ending(signal)) {
      asked = true;
      kill(child, signal);
      continue;
    }
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child && (WIFEXITED(status) || WIFSIGNALED(status))) return {status, asked};
  }
}

// Whether a signal that ends the run comes within the time.
bool ended_within(std::chrono::milliseconds time, const sigset_t& awaited) {
  const timespec timeout{.tv_sec = time.count() / 1000, .tv_nsec = time.count() % 1000 * 1000000};
  return is_ending(sigtimedwait(&awaited, nullptr, &timeout));
}

const char* usual_cause(int signal) {
  if (signal == SIGKILL) return ", as where memory runs out";
  if (signal == SIGBUS) return ", as where a mapped file becomes shorter";
  return "";
}

[[noreturn]] void guard(pid_t child, const char* program, const LaunchedRank& rank, const sigset_t& awaited) {
  const RankEnd end = wait_for_rank(child, awaited);
  if (WIFEXITED(end.status)) _exit(WEXITSTATUS(end.status));
  const int signal = WTERMSIG(end.status);
  if (!end.asked && !is_ending(signal) && !ended_within(wait_to_tell(rank.rank), awaited)) {
    const std::string message = std::string(program) + ": error: rank " + std::to_string(rank.rank) + " of " +
                                std::to_string(rank.size) + ": killed by signal " + std::to_string(signal) + " (" +
                                strsignal(signal) + ")" + usual_cause(signal) + "\n";
    write_all(message.data(), message.size());
  }
  _exit(128 + signal);
}

}  // namespace

void guard_rank(const char* program, const LaunchedRank& rank, void (*cleanup)() noexcept) {
  sigset_t awaited;
  sigset_t before;
  sigemptyset(&awaited);
  sigaddset(&awaited, SIGCHLD);
  for (const int signal : kEndingSignals) sigaddset(&awaited, signal);
  sigprocmask(SIG_BLOCK, &awaited, &before);

  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("mpi: cannot fork the guard of a rank: " + std::string(std::strerror(errno)));
  if (child > 0) guard(child, program, rank, awaited);

  // Out of the group that a launcher kills one second after SIGTERM, however long a write to a busy disk takes.
  setpgid(0, 0);
  cleanup_of_rank = cleanup;
  // A signal that nothing else uses.
  const int guard_ended = SIGRTMIN + 5;
  struct sigaction action = {};
  action.sa_handler = on_guard_killed;
  sigaction(guard_ended, &action, nullptr);
  prctl(PR_SET_PDEATHSIG, guard_ended);
  if (getppid() != parent) on_guard_killed(guard_ended);  // it ended before that
  sigprocmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace tpce::mpi
