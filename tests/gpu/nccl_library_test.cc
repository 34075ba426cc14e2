// What is asked of NCCL's library, and the errors where there is none that will do. The library and the driver are
// stand-ins (fake_libnccl.cc, fake_cuda.cc), which ctest puts where the real ones would be looked for; each case is a
// process of its own, since a library is loaded once.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>

#include "gpu/host_device.h"
#include "gpu/nccl_communicator.h"
#include "tpce/scalar_backend.h"

namespace tpce::gpu {
namespace {

// One rank that merges a row with itself by both algorithms; says on stderr what came of it.
[[noreturn]] void merge_with(const char* failure, int number = 0) {
  setenv("FAKE_NCCL", failure, 1);
  try {
    const auto api = open_nccl(number);
    FailureBoard board(1);
    HostDevice device;
    ScalarBackend unused;
    const NcclId id = api->make_id();
    for (const auto merge : {NcclOptions::Merge::kGather, NcclOptions::Merge::kTwoSteps}) {
      NcclCommunicator communicator(*api, device, {id, 0, 1}, board, {.merge = merge});
      const Buffer memory = device.allocate(2 * Partials::bytes_per_row({}));
      const Partials partials = Partials::in(memory.get(), 2, {});
      const float logits[] = {1.0f, 2.0f, 3.0f};
      const RowPartial rows[] = {row_partial(logits, 3, 1), row_partial(logits, 2, -1)};
      for (int i = 0; i < 2; ++i) partials.store(i, rows[i]);
      communicator.finish(communicator.start_all_reduce(partials, unused, {}), {});
      communicator.confirm();
      for (int i = 0; i < 2; ++i) {
        if (!(partials.load(i) == rows[i])) std::cerr << "row " << i << " is wrong\n";
      }
    }
    void* const library = dlopen("libnccl.so.2", RTLD_NOW);
    std::cerr << reinterpret_cast<const char* (*)()>(dlsym(library, "fake_nccl_log"))();
  } catch (const std::runtime_error& error) {
    std::cerr << error.what() << '\n';
  }
  std::exit(0);
}

TEST(NcclLibrary, IsAskedForWhatTheCommunicatorNeeds) {
  EXPECT_EXIT(merge_with(""), ::testing::ExitedWithCode(0),
              "^start 0 of 1 by u\n"
              "\\{\ngather 16\ngather 16\ngather 16\ngather 8\ngather 8\ngather 8\n\\}\n"
              "finalize\ndestroy\n"
              "start 0 of 1 by u\n"
              "\\{\nmax uint32 4\n\\}\n"
              "\\{\nsum int64 8\n\\}\n"
              "finalize\ndestroy\n$");
}

TEST(NcclLibrary, SaysWhatIsMissing) {
  EXPECT_EXIT(merge_with("old"), ::testing::ExitedWithCode(0),
              "^nccl: the library is NCCL 2.14.3, expected NCCL 2[.0-9]* or later, as this build's nccl.h is\n$");
  EXPECT_EXIT(merge_with("", 7), ::testing::ExitedWithCode(0), "^gpu: got device 7, expected one in \\[0, 1\\)\n$");
}

TEST(NcclLibrary, GivesNcclsOwnWords) {
  EXPECT_EXIT(merge_with("no id"), ::testing::ExitedWithCode(0), "^nccl: ncclGetUniqueId failed: words of the fake\n$");
  EXPECT_EXIT(merge_with("start"), ::testing::ExitedWithCode(0),
              "^rank 0 of 1: nccl: ncclCommInitRankConfig failed: words of the fake\n$");
  EXPECT_EXIT(merge_with("call"), ::testing::ExitedWithCode(0),
              "^rank 0 of 1: nccl: ncclAllGather failed: words of the fake, and more of them\n$");
  EXPECT_EXIT(merge_with("later"), ::testing::ExitedWithCode(0),
              "^rank 0 of 1: nccl: a collective failed: words of the fake\n$");
}

}  // namespace
}  // namespace tpce::gpu
