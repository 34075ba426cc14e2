// The host executor finds in a wrong body what a device would leave to luck.
#include "gpu/host_block.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gpu/host_device.h"

namespace tpce::gpu {
namespace {

struct State {
  int value = 0;
};

// The error of one block of 64 threads with 4096 bytes of shared memory, or nothing.
std::string error_of(const std::function<void(HostBlock&)>& body, std::uint64_t seed = 1) {
  HostMemory memory;
  const HostGrid grid{64, 4096, seed};
  HostBlock block(grid, memory, 0);
  try {
    body(block);
    block.finish();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

bool says(const std::string& error, const std::string& what) { return error.find(what) != std::string::npos; }

alignas(16) constexpr float kGlobal[256] = {1.0f, 2.0f, 3.0f, 4.0f};

TEST(HostBlock, RunsEveryThreadBetweenBarriers) {
  EXPECT_EQ(error_of([](HostBlock& block) {
              auto view = block.shared<int>(64);
              auto states = block.registers<State>();
              block.phase(states, [&](int thread, State&) { view.write(thread, thread * thread); });
              block.phase(states, [&](int thread, State& state) { state.value = view.read(63 - thread); });
              const int sum = block.reduce(
                  states, [](const State& state) { return state.value; }, [](int& into, int from) { into += from; });
              EXPECT_EQ(sum, 85344);  // of the squares below 64
              EXPECT_EQ(states[3].value, 3600);
            }),
            "");
}

TEST(HostBlock, OrderOfThreadsFollowsTheSeed) {
  const auto order = [](std::uint64_t seed) {
    std::vector<int> seen;
    error_of(
        [&](HostBlock& block) {
          auto states = block.registers<State>();
          block.phase(states, [&](int thread, State&) { seen.push_back(thread); });
        },
        seed);
    return seen;
  };
  EXPECT_EQ(order(1).size(), 64u);
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

// Sums of neighbours without the barrier between writing and reading.
TEST(HostBlock, RaceIsFound) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::string error = error_of(
        [](HostBlock& block) {
          auto view = block.shared<int>(64);
          auto states = block.registers<State>();
          block.phase(states, [&](int thread, State&) { view.write(thread, 0); });
          block.phase(states, [&](int thread, State& state) {
            view.write(thread, thread);
            if (thread > 0) state.value = view.read(thread - 1);
          });
        },
        seed);
    EXPECT_TRUE(says(error, "race: ")) << error;
  }
}

TEST(HostBlock, TwoWritersAreARace) {
  EXPECT_TRUE(says(error_of([](HostBlock& block) {
                     auto view = block.shared<int>(1);
                     auto states = block.registers<State>();
                     block.phase(states, [&](int, State&) { view.write(0, 7); });
                   }),
                   "race: two threads write it"));
}

TEST(HostBlock, AtomicsMayMeetButNotPlainAccesses) {
  const auto run = [](bool plain_read) {
    return error_of([&](HostBlock& block) {
      auto view = block.shared<int>(1);
      auto states = block.registers<State>();
      block.phase(states, [&](int thread, State&) {
        if (thread == 0) view.write(0, 0);
      });
      block.phase(states, [&](int thread, State&) {
        view.atomic_add(0, thread);
        view.atomic_max(0, 1);
        if (plain_read && thread == 5) view.read(0);
      });
      block.phase(states, [&](int, State&) { EXPECT_EQ(view.read(0) >= 2016, true); });
    });
  };
  EXPECT_EQ(run(false), "");
  EXPECT_TRUE(says(run(true), "race: "));
}

TEST(HostBlock, PoisonedReadIsFound) {
  EXPECT_TRUE(says(error_of([](HostBlock& block) {
                     auto view = block.shared<int>(64);
                     auto states = block.registers<State>();
                     block.phase(states, [&](int thread, State&) {
                       if (thread % 2 == 0) view.write(thread, 1);
                     });
                     block.phase(states, [&](int thread, State& state) { state.value = view.read(thread); });
                   }),
                   "read before it was written"));
  // What one block leaves behind is poison to the next.
  HostMemory memory;
  const HostGrid grid{64, 4096, 1};
  HostBlock first(grid, memory, 0);
  auto states = first.registers<State>();
  auto view = first.shared<int>(64);
  first.phase(states, [&](int thread, State&) { view.write(thread, 1); });
  HostBlock second(grid, memory, 1);
  auto stale = second.shared<int>(64);
  EXPECT_THROW(second.phase(states, [&](int thread, State&) { stale.read(thread); }), std::logic_error);
}

// Copies of two groups, and a body that waits for `pending` of them too few or not.
std::string copy_error(bool waits_for_all, bool in_next_phase, bool of_another_thread) {
  return error_of([&](HostBlock& block) {
    auto view = block.shared<float>(512);
    auto states = block.registers<State>();
    const auto read = [&](int thread) {
      const int from = of_another_thread ? 63 - thread : thread;
      EXPECT_EQ(view.read(256 + 4 * from), kGlobal[4 * from]);
    };
    block.phase(states, [&](int thread, State&) {
      block.copy_async(view, 4 * thread, kGlobal + 4 * thread);
      block.commit_copies();
      block.copy_async(view, 256 + 4 * thread, kGlobal + 4 * thread);
      block.commit_copies();
      block.wait_for_copies<1>();
      EXPECT_EQ(view.read(4 * thread), kGlobal[4 * thread]);
      if (waits_for_all) block.wait_for_copies<0>();
      if (!in_next_phase) read(thread);
    });
    if (in_next_phase) block.phase(states, [&](int thread, State&) { read(thread); });
  });
}

TEST(HostBlock, CopyThatHasNotArrivedIsFound) {
  EXPECT_EQ(copy_error(true, false, false), "");
  EXPECT_EQ(copy_error(true, true, true), "");
  EXPECT_TRUE(says(copy_error(false, false, false), "read before the copy to it was waited for"));
  EXPECT_TRUE(says(copy_error(false, true, false), "read before the copy to it was waited for"));
  // Waiting makes a thread's own copies visible, not those of others.
  EXPECT_FALSE(copy_error(true, false, true).empty());
}

TEST(HostBlock, CopyIsLeftAloneUntilItArrives) {
  EXPECT_TRUE(says(error_of([](HostBlock& block) {
                     auto view = block.shared<float>(256);
                     auto states = block.registers<State>();
                     block.phase(states, [&](int thread, State&) {
                       block.copy_async(view, 4 * thread, kGlobal + 4 * thread);
                       block.commit_copies();
                       view.write(4 * thread, 0.0f);
                     });
                   }),
                   "written while a copy to it is under way"));
  alignas(16) float source[256] = {};
  EXPECT_TRUE(says(error_of([&](HostBlock& block) {
                     auto view = block.shared<float>(256);
                     auto states = block.registers<State>();
                     block.phase(states, [&](int thread, State&) {
                       block.copy_async(view, 4 * thread, source + 4 * thread);
                       block.commit_copies();
                       source[4 * thread] = 1.0f;
                       block.wait_for_copies<0>();
                     });
                   }),
                   "the source of a copy was written"));
  EXPECT_TRUE(says(error_of([](HostBlock& block) {
                     auto view = block.shared<float>(256);
                     auto states = block.registers<State>();
                     block.phase(states, [&](int thread, State&) {
                       block.copy_async(view, 4 * thread, kGlobal + 4 * thread);
                       block.commit_copies();
                     });
                   }),
                   "still under way at the end"));
}

TEST(HostBlock, BadAddressesAreFound) {
  const auto access = [](const std::function<void(HostBlock&, HostShared<float>&)>& body) {
    return error_of([&](HostBlock& block) {
      auto view = block.shared<float>(64);
      auto states = block.registers<State>();
      block.phase(states, [&](int thread, State&) { view.write(thread, 0.0f); });
      block.phase(states, [&](int thread, State&) {
        if (thread == 0) body(block, view);
      });
    });
  };
  EXPECT_EQ(access([](HostBlock&, HostShared<float>& view) { view.read_16(60); }), "");
  EXPECT_TRUE(says(access([](HostBlock&, HostShared<float>& view) { view.read(64); }), "element 64 of 64"));
  EXPECT_TRUE(says(access([](HostBlock&, HostShared<float>& view) { view.read_16(61); }), "element 61 of 64"));
  EXPECT_TRUE(says(access([](HostBlock&, HostShared<float>& view) { view.read_16(2); }), "not aligned"));
  EXPECT_TRUE(says(access([](HostBlock& block, HostShared<float>& view) { block.copy_async(view, 0, kGlobal + 1); }),
                   "not aligned to 16 bytes"));
  EXPECT_TRUE(says(error_of([](HostBlock& block) { block.shared<float>(1025); }), "the body wants 4100 bytes"));
}

// Blocks of one cluster, each on a thread; what the first says that fails, or nothing.
std::string cluster_error(int blocks, const std::function<void(HostBlock&)>& body) {
  const HostGrid grid{32, 256, 1, blocks};
  HostCluster cluster(blocks);
  std::mutex mutex;
  std::string first;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < blocks; ++rank) {
      threads.emplace_back([&, rank] {
        HostMemory memory;
        HostBlock block(grid, memory, blocks + rank, &cluster);
        try {
          body(block);
          block.finish();
        } catch (const std::logic_error& error) {
          const std::lock_guard lock(mutex);
          if (first.empty()) first = error.what();
        }
        cluster.end();
      });
    }
  }
  return first;
}

constexpr auto kAdd = [](int& into, int from) { into += from; };

TEST(HostCluster, BlocksJoinWhatTheyHave) {
  for (const int blocks : {1, 2, 8}) {
    std::atomic<int> right = 0;
    EXPECT_EQ(cluster_error(blocks,
                            [&](HostBlock& block) {
                              const int rank = static_cast<int>(block.index()) - blocks;
                              bool same = true;
                              for (int i = 0; i < 50; ++i) {
                                same = same && block.join_cluster(100 * i + rank, kAdd) ==
                                                   100 * i * blocks + blocks * (blocks - 1) / 2;
                              }
                              if (same) ++right;
                            }),
              "");
    EXPECT_EQ(right, blocks);
  }
  HostMemory memory;
  const HostGrid grid{32, 256, 1};
  HostBlock alone(grid, memory, 0);
  EXPECT_EQ(alone.join_cluster(7, kAdd), 7);
}

TEST(HostCluster, ABlockThatDoesNotJoinIsFound) {
  EXPECT_TRUE(says(cluster_error(3,
                                 [](HostBlock& block) {
                                   block.join_cluster(1, kAdd);
                                   if (block.index() != 4) block.join_cluster(2, kAdd);
                                 }),
                   "waits for one that has ended"));
  EXPECT_TRUE(says(cluster_error(2,
                                 [](HostBlock& block) {
                                   if (block.index() == 2) {
                                     block.join_cluster(1, kAdd);
                                   } else {
                                     block.join_cluster(1.0, [](double& into, double from) { into += from; });
                                   }
                                 }),
                   "another"));
}

// What a block of a cluster breaks is what the launch says, not that others waited for it; and it ends.
TEST(HostCluster, ALaunchSaysWhatFailedFirst) {
  std::vector<float> logits(4 * 1000, 1.0f), dz(4 * 1000), nll(4);
  const std::vector<std::int64_t> labels(4, 3);
  std::vector<SavedRow> saved(4);
  const FusedArguments<float> arguments{.rows = {.logits = logits.data(),
                                                 .row_stride = 1000,
                                                 .columns = 1000,
                                                 .classes = 1000,
                                                 .first_class = 0,
                                                 .labels = {labels.data(), true, -100, 1000},
                                                 .saved = nullptr,
                                                 .upstream = 1.0,
                                                 .upstream_of_row = nullptr,
                                                 .segments = 2,
                                                 .segment_columns = 896},
                                        .results = {.rows = 4, .saved = saved.data(), .nll = nll.data()},
                                        .gradients = dz.data(),
                                        .gradient_stride = 1000};
  HostDevice device;
  const auto launch = [&](std::size_t shared_bytes, std::int64_t blocks) -> std::string {
    try {
      device.launch(Kernel::fused_fp32, {blocks, shared_bytes, 2}, &arguments, {});
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(launch(FusedArguments<float>::shared_bytes(896), 8), "");
  EXPECT_TRUE(says(launch(64, 8), "the body wants"));
  EXPECT_TRUE(says(launch(64, 7), "7 blocks in clusters of 2"));
}

}  // namespace
}  // namespace tpce::gpu
