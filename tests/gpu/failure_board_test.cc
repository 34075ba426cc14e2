#include "gpu/failure_board.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace tpce::gpu {
namespace {

TEST(FailureBoard, KeepsTheFirst) {
  FailureBoard board(4);
  EXPECT_EQ(board.first(), "");
  board.post(2, "no memory");
  board.post(0, "a rank is gone");
  EXPECT_EQ(board.first(), "rank 2 of 4: no memory");
}

TEST(FailureBoard, AnEmptyReasonIsOne) {
  FailureBoard board(2);
  board.post(1, "");
  EXPECT_EQ(board.first(), "rank 1 of 2: ");
}

// What a host's communicator is told.
class Host final : public Communicator {
 public:
  std::string_view name() const override { return "host"; }
  std::int64_t size() const override { return 3; }
  std::int64_t rank() const override { return 1; }
  bool accepts(DeviceType) const override { return true; }
  Pending start_all_reduce(const Partials&, Backend&, Queue) override { return {}; }
  void finish(Pending, Queue) override {}
  void all_reduce(BinnedSum&) override {}
  std::vector<std::string> all_gather(std::string_view) override { return {}; }
  void abort(std::string_view reason) noexcept override {
    reasons.emplace_back(reason);
    thread = std::this_thread::get_id();
  }

  std::vector<std::string> reasons;
  std::thread::id thread;
};

TEST(HostFailureBoard, AbortsTheHostFromItsOwnThread) {
  Host host;
  HostFailureBoard board(host);
  std::thread([&] { board.post(1, "a link is down"); }).join();
  EXPECT_TRUE(host.reasons.empty());
  EXPECT_EQ(board.first(), "rank 1 of 3: a link is down");
  board.post(1, "what came of it");
  EXPECT_EQ(host.reasons, std::vector<std::string>{"a link is down"});
  EXPECT_EQ(host.thread, std::this_thread::get_id());
}

}  // namespace
}  // namespace tpce::gpu
