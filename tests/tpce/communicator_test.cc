#include "tpce/communicator.h"

#include <gtest/gtest.h>

namespace tpce {
namespace {

TEST(SelfCommunicator, IsAloneAndReachesEveryPlace) {
  const SelfCommunicator self;
  EXPECT_EQ(self.name(), "self");
  EXPECT_EQ(self.size(), 1);
  EXPECT_EQ(self.rank(), 0);
  EXPECT_TRUE(self.accepts(DeviceType::kCpu));
  EXPECT_TRUE(self.accepts(DeviceType::kCuda));
}

TEST(SelfCommunicator, LeavesWhatItReducesAsItIs) {
  SelfCommunicator self;
  BinnedSum sum;
  add(sum, 3.0f);
  const BinnedSum before = sum;
  self.all_reduce(sum);
  EXPECT_EQ(sum, before);
  EXPECT_EQ(self.all_gather("one"), std::vector<std::string>{"one"});
}

}  // namespace
}  // namespace tpce
