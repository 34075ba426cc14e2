#include "mpi/guard.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>
#include <new>
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

// Shared by the rank and its guard: whether the run was ended, so that whatever ends now is no news.
using Ended = std::atomic<bool>;
static_assert(Ended::is_always_lock_free);

Ended& shared_flag() {
  void* page = mmap(nullptr, sizeof(Ended), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw std::runtime_error("mpi: cannot map a page: " + std::string(std::strerror(errno)));
  return *new (page) Ended(false);
}

// What a rank needs in its signal handler, where nothing can be made.
struct GuardKilled {
  std::string message;
  void (*cleanup)() noexcept = nullptr;
  Ended* ended = nullptr;
};

GuardKilled& guard_killed() {
  static GuardKilled state;
  return state;
}

void on_guard_killed(int) {
  const GuardKilled& state = guard_killed();
  state.cleanup();
  if (!*state.ended) write_all(state.message.data(), state.message.size());
  _exit(128 + SIGKILL);
}

bool is_ending(int signal) {
  for (const int ending : kEndingSignals) {
    if (signal == ending) return true;
  }
  return false;
}

// Waits for the wait status of the child, and hands on what is sent to end it.
int wait_for_rank(pid_t child, const sigset_t& awaited, Ended& ended) {
  for (;;) {
    const int signal = sigwaitinfo(&awaited, nullptr);
    if (is_ending(signal)) {
      ended = true;
      kill(child, signal);
      continue;
    }
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child && (WIFEXITED(status) || WIFSIGNALED(status))) return status;
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

struct Guarded {
  pid_t child;
  LaunchedRank rank;
  Ended& ended;
};

[[noreturn]] void guard(const Guarded& guarded, const std::string& prefix, const sigset_t& awaited) {
  const int status = wait_for_rank(guarded.child, awaited, guarded.ended);
  if (WIFEXITED(status)) _exit(WEXITSTATUS(status));
  const int signal = WTERMSIG(status);
  if (!guarded.ended && !is_ending(signal) && !ended_within(wait_to_tell(guarded.rank.rank), awaited)) {
    const std::string message = prefix + "killed by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")" +
                                usual_cause(signal) + "\n";
    write_all(message.data(), message.size());
  }
  _exit(128 + signal);
}

}  // namespace

void guard_rank(const char* program, const LaunchedRank& rank, void (*cleanup)() noexcept) {
  Ended& ended = shared_flag();
  const std::string prefix =
      std::string(program) + ": error: rank " + std::to_string(rank.rank) + " of " + std::to_string(rank.size) + ": ";
  sigset_t awaited;
  sigset_t before;
  sigemptyset(&awaited);
  sigaddset(&awaited, SIGCHLD);
  for (const int signal : kEndingSignals) sigaddset(&awaited, signal);
  sigprocmask(SIG_BLOCK, &awaited, &before);

  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("mpi: cannot fork the guard of a rank: " + std::string(std::strerror(errno)));
  if (child > 0) guard({child, rank, ended}, prefix, awaited);

  // Out of the group that a launcher kills one second after SIGTERM, however long a write to a busy disk takes.
  setpgid(0, 0);
  guard_killed() = {prefix + "killed: the process that guards it ended\n", cleanup, &ended};
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
