#include "tools/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace tpce::tools {

namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";

bool shows_a_line() {
  const char* terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

std::string duration(double seconds) {
  const auto whole = std::int64_t{std::llround(std::clamp(seconds, 0.0, 1e9))};
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

Progress::Progress(std::string what, std::int64_t total, std::string unit)
    : what_(std::move(what)),
      total_(total),
      unit_(std::move(unit)),
      terminal_(shows_a_line()),
      start_(Clock::now()),
      last_(start_) {}

Progress::~Progress() {
  if (shown_) fmt::print(stderr, "{}", kEraseLine);
}

void Progress::advance(std::int64_t units) {
  done_ += units;
  if (!terminal_) return;
  const Clock::time_point now = Clock::now();
  using std::chrono::milliseconds;
  if (now - start_ < milliseconds(500) || (shown_ && now - last_ < milliseconds(100))) return;
  last_ = now;
  shown_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = static_cast<double>(done_) / seconds;
  const double fraction = total_ > 0 ? static_cast<double>(done_) / static_cast<double>(total_) : 1.0;
  const double left = rate > 0 ? static_cast<double>(total_ - done_) / rate : 0.0;
  constexpr int kWidth = 24;
  const int filled = std::clamp(static_cast<int>(fraction * kWidth), 0, kWidth);
  fmt::print(stderr, "{}{} [{:=<{}}{:{}}] {:3.0f} %  {:.1f} {}/s  {} left", kEraseLine, what_, "", filled, "",
             kWidth - filled, 100 * fraction, rate, unit_, duration(left));
  std::fflush(stderr);
}

}  // namespace tpce::tools
