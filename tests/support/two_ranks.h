// Two ranks as two threads, with a communicator that holds every merge back until finish() and keeps a log.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tpce/communicator.h"

namespace tpce::testing {

// What the two ranks share.
struct Meeting {
  std::mutex mutex;
  std::condition_variable changed;
  std::array<std::vector<std::vector<RowPartial>>, 2> started;  // by rank and chunk
  std::array<std::vector<BinnedSum>, 2> sums;
  std::array<std::vector<std::string>, 2> texts;
  std::string aborted;
};

class TwoRanks final : public Communicator {
 public:
  TwoRanks(Meeting& meeting, std::int64_t rank) : meeting_(meeting), rank_(rank) {}

  std::string_view name() const override { return "two ranks"; }
  std::int64_t size() const override { return 2; }
  std::int64_t rank() const override { return rank_; }
  bool accepts(DeviceType device) const override { return device == DeviceType::kCpu; }

  Pending start_all_reduce(const Partials& partials, Backend&, Queue) override {
    std::vector<RowPartial> rows;
    for (std::int64_t i = 0; i < partials.rows; ++i) rows.push_back(partials.load(i));
    in_flight_.push_back(partials);
    log.push_back("start " + std::to_string(in_flight_.size() - 1));
    const std::lock_guard lock(meeting_.mutex);
    meeting_.started[static_cast<std::size_t>(rank_)].push_back(std::move(rows));
    meeting_.changed.notify_all();
    return {&log};
  }

  void finish(Pending pending, Queue) override {
    if (pending.request != &log) throw std::logic_error("finish: not what start_all_reduce returned");
    const std::size_t chunk = finished_++;
    log.push_back("finish " + std::to_string(chunk));
    const std::vector<RowPartial> own = wait_for(rank_, chunk);
    const std::vector<RowPartial> other = wait_for(1 - rank_, chunk);
    for (std::size_t i = 0; i < own.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i);
      if (in_flight_[chunk].load(row) != own[i]) throw std::logic_error("the partials changed while in flight");
      RowPartial merged = own[i];
      merge(merged, other[i]);
      in_flight_[chunk].store(row, merged);
    }
  }

  void all_reduce(BinnedSum& sum) override {
    std::unique_lock lock(meeting_.mutex);
    meeting_.sums[static_cast<std::size_t>(rank_)].push_back(sum);
    meeting_.changed.notify_all();
    const auto& others = meeting_.sums[static_cast<std::size_t>(1 - rank_)];
    wait(lock, [&] { return others.size() > reduced_; });
    merge(sum, others[reduced_++]);
  }

  std::vector<std::string> all_gather(std::string_view mine) override {
    std::unique_lock lock(meeting_.mutex);
    meeting_.texts[static_cast<std::size_t>(rank_)].emplace_back(mine);
    meeting_.changed.notify_all();
    const std::size_t turn = gathered_++;
    wait(lock, [&] { return meeting_.texts[static_cast<std::size_t>(1 - rank_)].size() > turn; });
    return {meeting_.texts[0][turn], meeting_.texts[1][turn]};
  }

  void abort(std::string_view reason) noexcept override {
    const std::lock_guard lock(meeting_.mutex);
    if (meeting_.aborted.empty()) meeting_.aborted = reason;
    meeting_.changed.notify_all();
  }

  std::vector<std::string> log;  // of this rank

 private:
  std::vector<RowPartial> wait_for(std::int64_t rank, std::size_t chunk) {
    std::unique_lock lock(meeting_.mutex);
    const auto& started = meeting_.started[static_cast<std::size_t>(rank)];
    wait(lock, [&] { return started.size() > chunk; });
    return started[chunk];
  }

  template <class Ready>
  void wait(std::unique_lock<std::mutex>& lock, Ready ready) {
    const bool woken =
        meeting_.changed.wait_for(lock, std::chrono::seconds(60), [&] { return ready() || !meeting_.aborted.empty(); });
    if (!woken) throw std::runtime_error("the other rank never came");
    if (!ready()) throw std::runtime_error("aborted: " + meeting_.aborted);
  }

  Meeting& meeting_;
  std::int64_t rank_;
  std::vector<Partials> in_flight_;
  std::size_t finished_ = 0;
  std::size_t reduced_ = 0;
  std::size_t gathered_ = 0;
};

// Calls body(communicator) on both ranks and waits for both. Returns each rank's error message, empty where none.
template <class Body>
std::array<std::string, 2> on_two_ranks(std::array<std::vector<std::string>, 2>& logs, Body body) {
  Meeting meeting;
  std::array<std::string, 2> errors;
  const auto rank_main = [&](std::int64_t rank) {
    TwoRanks communicator(meeting, rank);
    try {
      body(communicator);
    } catch (const std::exception& error) {
      errors[static_cast<std::size_t>(rank)] = error.what();
    }
    logs[static_cast<std::size_t>(rank)] = communicator.log;
  };
  std::thread other(rank_main, 1);
  rank_main(0);
  other.join();
  return errors;
}

}  // namespace tpce::testing
