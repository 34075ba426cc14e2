// Both ways to merge ranks against merge() of tpce/, bit for bit, on devices and a transport that do everything as late
// as they may; that reading early is noticed; and what every rank hears when one fails.
#include "gpu/nccl_communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <map>
#include <new>
#include <random>

#include "tests/gpu/fake_ranks.h"
#include "tests/support/problem.h"
#include "tests/support/random_partials.h"
#include "tests/support/two_ranks.h"
#include "tpce/cross_entropy.h"

namespace tpce::gpu {
namespace {

using testing::Failure;
using testing::FakeRank;
using testing::FakeRanks;
using testing::LateDevice;
using Merge = NcclOptions::Merge;

constexpr Merge kMerges[] = {Merge::kGather, Merge::kTwoSteps};

// [rows][ranks]
using Rows = std::vector<std::vector<RowPartial>>;

Rows random_rows(std::uint64_t seed, std::int64_t rows, std::int64_t ranks) {
  std::mt19937_64 random(seed);
  Rows all;
  for (std::int64_t i = 0; i < rows; ++i) all.push_back(tpce::testing::partials_of_row(random, ranks));
  return all;
}

std::vector<std::byte> planes_of_rank(const Rows& rows, std::int64_t rank) {
  std::vector<std::byte> memory(rows.size() * Partials::bytes_per_row({}) + 1);
  const Partials planes = Partials::in(memory.data(), static_cast<std::int64_t>(rows.size()), {});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    planes.store(static_cast<std::int64_t>(i), rows[i][static_cast<std::size_t>(rank)]);
  }
  return memory;
}

// Partials on the way to a rank's device, and back.
class OnDevice {
 public:
  OnDevice(const Rows& rows, const FakeRank& rank, Queue queue)
      : device_(rank.device),
        rows_(rows),
        host_(planes_of_rank(rows, rank.communicator.rank())),
        memory_(device_.allocate(host_.size())) {
    device_.copy_to_device(memory_.get(), host_.data(), host_.size(), queue);
  }

  Partials planes() const { return Partials::in(memory_.get(), static_cast<std::int64_t>(rows_.size()), {}); }

  // How many rows are not the merge of the ranks, as the queue sees them.
  int wrong_rows(Queue queue) {
    std::vector<std::byte> found(host_.size());
    device_.copy_to_host(found.data(), memory_.get(), found.size(), queue);
    const Partials merged = Partials::in(found.data(), static_cast<std::int64_t>(rows_.size()), {});
    int wrong = 0;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (!(merged.load(static_cast<std::int64_t>(i)) == tpce::testing::merged(rows_[i]))) ++wrong;
    }
    return wrong;
  }

 private:
  Device& device_;
  const Rows& rows_;
  std::vector<std::byte> host_;
  Buffer memory_;
};

ScalarBackend& unused_merger() {
  static ScalarBackend backend;
  return backend;
}

std::vector<std::string> no_errors(std::int64_t ranks) {
  return std::vector<std::string>(static_cast<std::size_t>(ranks));
}

TEST(NcclCommunicator, GivesTheBitsOfMerge) {
  std::map<RowClass, int> classes;
  std::map<std::uint32_t, int> flags;
  for (const std::int64_t ranks : {1, 2, 3, 4, 8}) {
    for (const std::int64_t count : {0, 1, 7, 1024}) {
      const Rows rows = random_rows(static_cast<std::uint64_t>(ranks * 10000 + count), count, ranks);
      for (const auto& row : rows) {
        const RowPartial merged = tpce::testing::merged(row);
        ++classes[class_of(merged.max_logit)];
        for (std::uint32_t bit = 1; bit <= merged.flags; bit *= 2) flags[merged.flags & bit] += 1;
      }
      for (const Merge merge : kMerges) {
        FakeRanks group(ranks, {.merge = merge});
        std::atomic<int> wrong = 0;
        EXPECT_EQ(group.run([&](const FakeRank& rank) {
          const DeviceObject own = rank.device.make_queue();
          const Queue queue{own.get()};
          OnDevice partials(rows, rank, queue);
          rank.communicator.finish(rank.communicator.start_all_reduce(partials.planes(), unused_merger(), queue),
                                   queue);
          wrong += partials.wrong_rows(queue);
          rank.communicator.confirm();
        }),
                  no_errors(ranks));
        EXPECT_EQ(wrong, 0) << ranks << " ranks, " << count << " rows, merge " << static_cast<int>(merge);
        EXPECT_EQ(group.nccl.finished, ranks);
      }
    }
  }
  // The rows were of all kinds.
  for (const RowClass row_class :
       {RowClass::kEmpty, RowClass::kHugeNegative, RowClass::kGrid, RowClass::kHugePositive}) {
    EXPECT_GT(classes[row_class], 50);
  }
  for (const std::uint32_t flag : {RowPartial::kTargetHere, RowPartial::kTargetTwice, RowPartial::kNotFinite,
                                   RowPartial::kIgnored, RowPartial::kBadLabel}) {
    EXPECT_GT(flags[flag], 50) << flag;
  }
}

TEST(NcclCommunicator, KeepsSeveralChunksInFlight) {
  constexpr std::int64_t kRanks = 3;
  for (const Merge merge : kMerges) {
    std::vector<Rows> chunks;
    for (std::int64_t c = 0; c < 5; ++c) chunks.push_back(random_rows(static_cast<std::uint64_t>(c), 40 * c, kRanks));
    FakeRanks group(kRanks, {.merge = merge});
    std::atomic<int> wrong = 0;
    EXPECT_EQ(group.run([&](const FakeRank& rank) {
      const DeviceObject own = rank.device.make_queue();
      const Queue queue{own.get()};
      for (int round = 0; round < 3; ++round) {  // memory of collectives is used again
        std::vector<std::unique_ptr<OnDevice>> partials;
        std::vector<Communicator::Pending> pending;
        for (const Rows& rows : chunks) {
          partials.push_back(std::make_unique<OnDevice>(rows, rank, queue));
          pending.push_back(rank.communicator.start_all_reduce(partials.back()->planes(), unused_merger(), queue));
        }
        // Finishing is no collective: each rank has an order of its own.
        for (std::size_t k = 0; k < chunks.size(); ++k) {
          const std::size_t c = rank.communicator.rank() == 1 ? chunks.size() - 1 - k : k;
          rank.communicator.finish(pending[c], queue);
          wrong += partials[c]->wrong_rows(queue);
        }
      }
    }),
              no_errors(kRanks));
    EXPECT_EQ(wrong, 0);
  }
}

// Neither start nor finish waits for another rank, or runs anything.
TEST(NcclCommunicator, WaitsForNothing) {
  for (const Merge merge : kMerges) {
    const Rows rows = random_rows(5, 10, 2);
    FakeRanks group(2, {.merge = merge});
    std::atomic<bool> asked = false;
    std::atomic<int> wrong = 0;
    EXPECT_EQ(group.run([&](const FakeRank& rank) {
      const DeviceObject own = rank.device.make_queue();
      const Queue queue{own.get()};
      while (rank.communicator.rank() == 1 && !asked) std::this_thread::yield();
      OnDevice partials(rows, rank, queue);
      rank.communicator.finish(rank.communicator.start_all_reduce(partials.planes(), unused_merger(), queue), queue);
      if (rank.communicator.rank() == 0) {
        const std::lock_guard lock(group.world.mutex);
        EXPECT_EQ(group.world.done, 0);
        asked = true;
      }
      wrong += partials.wrong_rows(queue);
    }),
              no_errors(2));
    EXPECT_EQ(wrong, 0);
  }
}

// A communicator that forgets one of its two waits must give wrong rows here, or the tests above would see nothing.
TEST(NcclCommunicator, ForgottenWaitIsFound) {
  for (const Merge merge : kMerges) {
    for (const bool at_start : {true, false}) {
      const Rows rows = random_rows(6, 200, 2);
      FakeRanks group(2, {.merge = merge});
      std::atomic<int> wrong = 0;
      // Else the rank that comes first could wait until the other has made up for what it forgot.
      std::latch all_asked(2);
      EXPECT_EQ(group.run([&](const FakeRank& rank) {
        const DeviceObject own = rank.device.make_queue();
        const DeviceObject other = rank.device.make_queue();
        const Queue queue{own.get()};
        const Queue idle{other.get()};
        OnDevice partials(rows, rank, queue);
        const auto pending =
            rank.communicator.start_all_reduce(partials.planes(), unused_merger(), at_start ? idle : queue);
        rank.communicator.finish(pending, at_start ? queue : idle);
        all_asked.arrive_and_wait();
        if (partials.wrong_rows(queue) > 100) ++wrong;
      }),
                no_errors(2));
      EXPECT_EQ(wrong, 2) << "merge " << static_cast<int>(merge) << (at_start ? ", start" : ", finish");
    }
  }
}

TEST(FakeNccl, BytesArriveWhenTheQueueIsWaitedFor) {
  FakeRanks group(2);
  std::atomic<int> early = 0;
  EXPECT_EQ(group.run([&](const FakeRank& rank) {
    LateDevice& device = rank.device;
    testing::FakeNccl nccl(group.world, 1);  // beside the others
    testing::FakeNcclApi api(nccl, device);
    const NcclApi::Comm comm = api.start(api.make_id(), 0, 1);
    while (api.state(comm).in_progress) {
    }
    const Buffer from = device.allocate(8);
    const Buffer to = device.allocate(8);
    const std::int64_t value = 42;
    device.copy_to_device(from.get(), &value, 8, {});
    api.group_start();
    api.all_gather(from.get(), to.get(), 8, comm, {});
    api.group_end(comm);
    EXPECT_TRUE(api.state(comm).in_progress);
    while (api.state(comm).in_progress) {
    }
    const DeviceObject other = device.make_queue();
    std::int64_t read = 0;
    device.copy_to_host(&read, to.get(), 8, {other.get()});
    std::int64_t poison = 0;
    std::memset(&poison, testing::kPoison, sizeof poison);
    early += read == poison ? 1 : 0;
    device.copy_to_host(&read, to.get(), 8, {});
    EXPECT_EQ(read, value);
  }),
            no_errors(2));
  EXPECT_EQ(early, 2);
}

std::vector<std::string> calls_of(std::int64_t ranks, std::int64_t count, const NcclOptions& options) {
  const Rows rows = random_rows(8, count, ranks);
  FakeRanks group(ranks, options);
  EXPECT_EQ(group.run([&](const FakeRank& rank) {
    OnDevice partials(rows, rank, {});
    rank.communicator.finish(rank.communicator.start_all_reduce(partials.planes(), unused_merger(), {}), {});
    EXPECT_EQ(partials.wrong_rows({}), 0);
  }),
            no_errors(ranks));
  return group.nccl.log;
}

TEST(NcclCommunicator, ChoosesBySize) {
  const std::vector<std::string> gather{"group of 6"};
  const std::vector<std::string> two_steps{"all_reduce max", "group of 1", "all_reduce sum", "group of 1"};
  EXPECT_EQ(calls_of(3, 10, {}), gather);
  EXPECT_EQ(calls_of(3, 10, {.most_bytes_gathered = 3 * 10 * 36}), gather);
  EXPECT_EQ(calls_of(3, 10, {.most_bytes_gathered = 3 * 10 * 36 - 1}), two_steps);
  EXPECT_EQ(calls_of(2, 10, {.most_bytes_gathered = 1}), gather);
  EXPECT_EQ(calls_of(2, 10, {.merge = Merge::kTwoSteps}), two_steps);
  EXPECT_EQ(calls_of(3, 10, {.merge = Merge::kGather, .most_bytes_gathered = 1}), gather);
}

TEST(NcclCommunicator, GathersTextsAndMergesSums) {
  for (const std::int64_t ranks : {1, 2, 5}) {
    FakeRanks group(ranks);
    const auto text_of = [](std::int64_t rank) {
      return std::string(static_cast<std::size_t>(rank * rank * 500), static_cast<char>('a' + rank));
    };
    BinnedSum expected;
    const auto terms = [](std::int64_t rank, BinnedSum& sum) {
      for (int i = 0; i < 50; ++i) add(sum, static_cast<float>(i) * 1.1f - static_cast<float>(1000 * rank));
      if (rank == 1) add(sum, std::numeric_limits<float>::infinity());
    };
    for (std::int64_t r = 0; r < ranks; ++r) terms(r, expected);
    EXPECT_EQ(group.run([&](const FakeRank& rank) {
      for (int round = 0; round < 2; ++round) {
        const std::vector<std::string> texts = rank.communicator.all_gather(text_of(rank.communicator.rank()));
        EXPECT_EQ(static_cast<std::int64_t>(texts.size()), ranks);
        for (std::size_t r = 0; r < texts.size(); ++r) EXPECT_EQ(texts[r], text_of(static_cast<std::int64_t>(r)));
        EXPECT_EQ(rank.communicator.all_gather(""), std::vector<std::string>(static_cast<std::size_t>(ranks)));
        BinnedSum sum;
        terms(rank.communicator.rank(), sum);
        rank.communicator.all_reduce(sum);
        EXPECT_TRUE(sum == expected);
      }
    }),
              no_errors(ranks));
  }
}

// Chunks one after another until something goes wrong.
void reduce_chunks(const FakeRank& rank, const Rows& rows, int chunks) {
  std::vector<std::unique_ptr<OnDevice>> partials;
  for (int c = 0; c < chunks; ++c) {
    partials.push_back(std::make_unique<OnDevice>(rows, rank, Queue{}));
    rank.communicator.finish(rank.communicator.start_all_reduce(partials.back()->planes(), unused_merger(), {}), {});
  }
  rank.device.synchronize({});
  rank.communicator.confirm();
}

TEST(NcclCommunicator, EveryRankHearsTheFirstFailure) {
  const Rows rows = random_rows(9, 20, 3);
  const auto errors_with = [&](const Failure& failure, Merge merge) {
    FakeRanks group(3, {.merge = merge});
    group.nccl.fail(failure);
    const auto errors = group.run([&](const FakeRank& rank) { reduce_chunks(rank, rows, 4); });
    EXPECT_EQ(group.nccl.finished, 0);
    return errors;
  };
  const auto everywhere = [](const std::string& text) { return std::vector<std::string>(3, text); };
  for (const Merge merge : kMerges) {
    for (const std::int64_t rank : {0, 1, 2}) {
      const std::string who = "rank " + std::to_string(rank) + " of 3: ";
      EXPECT_EQ(errors_with({Failure::Kind::kStart, rank, 0}, merge),
                everywhere(who + "ncclCommInitRank: out of file handles"));
      for (const int call : {0, 1, 5}) {
        EXPECT_EQ(errors_with({Failure::Kind::kCall, rank, call}, merge),
                  everywhere(who + "ncclAllGather: unhandled cuda error"))
            << call;
        EXPECT_EQ(errors_with({Failure::Kind::kLater, rank, call}, merge), everywhere(who + "unhandled system error"))
            << call;
      }
    }
  }
}

// A rank that ends for a reason of its own, while the others wait for it in a collective.
TEST(NcclCommunicator, AbortEndsTheOthers) {
  const Rows rows = random_rows(10, 20, 3);
  FakeRanks group(3);
  const std::string told = "rank 1 of 3: out of memory";
  const auto errors = group.run([&](const FakeRank& rank) {
    if (rank.communicator.rank() == 1) {
      rank.communicator.abort("out of memory");
      rank.communicator.abort("what came of it");
      throw std::bad_alloc();
    }
    reduce_chunks(rank, rows, 2);
  });
  EXPECT_EQ(errors, (std::vector<std::string>{told, std::bad_alloc().what(), told}));
  EXPECT_EQ(group.nccl.aborted, 3);
}

void confirm_until_failure(NcclCommunicator& communicator) {
  for (;;) {
    communicator.confirm();
    std::this_thread::yield();
  }
}

// What is thrown on the thread that watches is told as any failure is.
TEST(NcclCommunicator, WatchingMayFail) {
  FakeRanks group(3);
  group.nccl.fail({Failure::Kind::kWatch, 1, 0});
  EXPECT_EQ(group.run([](const FakeRank& rank) { confirm_until_failure(rank.communicator); }),
            std::vector<std::string>(3, "rank 1 of 3: ncclCommGetAsyncError: out of threads"));
}

// Ranks as processes: each has a board of its own, and the host's communicator ends the others.
template <class Body>
std::array<std::string, 2> errors_of_processes(const Failure& failure, Body body) {
  testing::World world;
  testing::FakeNccl nccl(world, 2);
  nccl.fail(failure);
  std::array<std::vector<std::string>, 2> logs;
  return tpce::testing::on_two_ranks(logs, [&](Communicator& host) {
    LateDevice device(world, static_cast<std::uint64_t>(host.rank()));
    testing::FakeNcclApi api(nccl, device);
    HostFailureBoard board(host);
    NcclCommunicator communicator(api, device, nccl_rank(api, host), board);
    host.all_gather("");  // rank 0 waits below for what rank 1 never gives
    if (host.rank() == 0) {
      host.all_gather("");
    } else {
      body(communicator);
    }
  });
}

TEST(NcclCommunicator, AbortEndsTheRunOfTheHost) {
  EXPECT_EQ(errors_of_processes({}, [](NcclCommunicator& communicator) { communicator.abort("out of memory"); }),
            (std::array<std::string, 2>{"aborted: out of memory", ""}));
}

// A failure that the watching thread found may not end the host's run, which has to wait for this thread.
TEST(NcclCommunicator, FailureOfTheWatchEndsTheRunOfTheHostAtTheNextAbort) {
  const std::string told = "ncclCommGetAsyncError: out of threads";
  EXPECT_EQ(errors_of_processes({Failure::Kind::kWatch, 1, 0},
                                [](NcclCommunicator& communicator) {
                                  try {
                                    confirm_until_failure(communicator);
                                  } catch (const std::runtime_error& error) {
                                    communicator.abort(error.what());  // as the driver does
                                    throw;
                                  }
                                }),
            (std::array<std::string, 2>{"aborted: " + told, "rank 1 of 2: " + told}));
}

TEST(NcclCommunicator, FailureStays) {
  const Rows rows = random_rows(11, 3, 2);
  FakeRanks group(2);
  const std::string told = "rank 0 of 2: enough";
  EXPECT_EQ(group.run([&](const FakeRank& rank) {
    NcclCommunicator& communicator = rank.communicator;
    if (communicator.rank() == 0) communicator.abort("enough");
    const auto error_of = [](const auto& call) -> std::string {
      try {
        call();
      } catch (const std::runtime_error& error) {
        return error.what();
      }
      return "";
    };
    BinnedSum sum;
    OnDevice partials(rows, rank, {});
    EXPECT_EQ(error_of([&] { communicator.all_gather("mine"); }), told);
    EXPECT_EQ(error_of([&] { communicator.all_reduce(sum); }), told);
    EXPECT_EQ(error_of([&] { communicator.start_all_reduce(partials.planes(), unused_merger(), {}); }), told);
    EXPECT_EQ(error_of([&] { communicator.confirm(); }), told);
  }),
            no_errors(2));
}

TEST(NcclCommunicator, ChecksItsRank) {
  testing::World world;
  testing::FakeNccl nccl(world, 1);
  LateDevice device(world);
  testing::FakeNcclApi api(nccl, device);
  FailureBoard board(1);
  const auto refusal_of = [&](std::int64_t rank, std::int64_t size) {
    return tpce::testing::refusal([&] { NcclCommunicator(api, device, {api.make_id(), rank, size}, board); });
  };
  EXPECT_EQ(refusal_of(0, 0), "ranks: got 0, expected 1..4095");
  EXPECT_EQ(refusal_of(0, 4096), "ranks: got 4096, expected 1..4095");
  EXPECT_EQ(refusal_of(2, 2), "rank: got 2, expected 0..1");
  EXPECT_EQ(refusal_of(-1, 2), "rank: got -1, expected 0..1");
}

TEST(NcclRank, IsMadeByRank0AndGivenToAll) {
  class Api final : public NcclApi {
   public:
    explicit Api(bool fails) : fails_(fails) {}
    NcclId make_id() override {
      if (fails_) throw std::runtime_error("ncclGetUniqueId: no network");
      NcclId id;
      std::fill(id.bytes.begin(), id.bytes.end(), '\0');
      id.bytes[5] = 'x';
      return id;
    }
    Comm start(const NcclId&, std::int64_t, std::int64_t) override { return nullptr; }
    void group_start() override {}
    void group_end(Comm) override {}
    void all_gather(const void*, void*, std::size_t, Comm, Queue) override {}
    void all_reduce(const NcclReduction&, Comm, Queue) override {}
    State state(Comm) override { return {}; }
    void abort(Comm) noexcept override {}
    void finish(Comm) noexcept override {}

   private:
    bool fails_;
  };
  std::array<std::vector<std::string>, 2> logs;
  std::array<NcclRank, 2> found;
  const auto errors = tpce::testing::on_two_ranks(logs, [&](Communicator& host) {
    Api api(host.rank() == 1);  // which is not asked
    found[static_cast<std::size_t>(host.rank())] = nccl_rank(api, host);
  });
  EXPECT_EQ(errors, (std::array<std::string, 2>{}));
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(found[r].id.bytes[5], 'x');
    EXPECT_EQ(found[r].rank, static_cast<std::int64_t>(r));
    EXPECT_EQ(found[r].size, 2);
  }
  const std::string told = "rank 0 of 2: ncclGetUniqueId: no network";
  EXPECT_EQ(tpce::testing::on_two_ranks(logs,
                                        [&](Communicator& host) {
                                          Api api(true);
                                          nccl_rank(api, host);
                                        }),
            (std::array<std::string, 2>{told, told}));
}

}  // namespace
}  // namespace tpce::gpu
