// A progress line on stderr, on a terminal only: what is done, the rate, the time left.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace tpce::tools {

class Progress {
 public:
  // total: units of work, at least 0, of the name that the rate is shown with. Nothing is shown in the first half
  // second, or where stderr is not a terminal.
  Progress(std::string what, std::int64_t total, std::string unit = "rows");
  // Erases the line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(std::int64_t units);

 private:
  using Clock = std::chrono::steady_clock;

  std::string what_;
  std::int64_t total_;
  std::string unit_;
  std::int64_t done_ = 0;
  bool terminal_;
  bool shown_ = false;
  Clock::time_point start_;
  Clock::time_point last_;
};

}  // namespace tpce::tools
