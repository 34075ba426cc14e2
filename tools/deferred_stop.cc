#include "tools/deferred_stop.h"

#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>

namespace tpce::tools {

namespace {

constexpr std::array kSignals{SIGINT, SIGTERM};

// What a handler may touch.
std::array<struct sigaction, kSignals.size()> former{};
std::atomic<int> noted{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler writes it");

void restore() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &former[i], nullptr);
}

extern "C" void note(int signal) {
  noted = signal;
  restore();
}

}  // namespace

DeferredStop::DeferredStop() {
  noted = 0;
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &former[i]);
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    if (former[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
  }
}

DeferredStop::~DeferredStop() { restore(); }

int DeferredStop::signal() { return noted; }

}  // namespace tpce::tools
