#include "sim/train/checkpoint.h"

#include <gtest/gtest.h>

#include "tests/support/scratch.h"

namespace tpce::sim {
namespace {

using tpce::testing::message_of;
using tpce::testing::read_bytes;
using tpce::testing::Scratch;

std::string write_one(const Scratch& scratch) {
  CheckpointWriter writer(scratch.path("c"), "one configuration");
  writer.value(3.5);
  writer.values(std::vector<float>{1.0f, 2.0f});
  writer.values(std::vector<std::int64_t>{});
  writer.commit();
  return scratch.path("c");
}

TEST(Checkpoint, GivesBackWhatWasWritten) {
  const Scratch scratch;
  CheckpointReader reader(write_one(scratch), "one configuration");
  double value = 0;
  std::vector<float> floats(9);
  std::vector<std::int64_t> none{1};
  reader.value(value);
  reader.values(floats);
  reader.values(none);
  reader.finish();
  EXPECT_EQ(value, 3.5);
  EXPECT_EQ(floats, (std::vector<float>{1.0f, 2.0f}));
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(scratch.count(), 1u);
}

TEST(Checkpoint, EveryFlippedBitAndCutIsRefused) {
  const Scratch scratch;
  const std::string file = write_one(scratch);
  const std::string bytes = read_bytes(file);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string other = bytes;
    other[i] = static_cast<char>(other[i] ^ 4);
    scratch.write("c", other);
    const std::string message = message_of([&] { CheckpointReader(file, "one configuration"); });
    EXPECT_EQ(message.rfind(file, 0), 0u) << message;
    scratch.write("c", std::string_view(bytes).substr(0, i));
    EXPECT_FALSE(message_of([&] { CheckpointReader(file, "one configuration"); }).empty()) << i;
  }
}

TEST(Checkpoint, AnotherConfigurationOrLayoutIsRefused) {
  const Scratch scratch;
  const std::string file = write_one(scratch);
  EXPECT_NE(message_of([&] { CheckpointReader(file, "another"); }).find("another configuration"), std::string::npos);
  EXPECT_NE(message_of([&] {
              CheckpointReader reader(file, "one configuration");
              std::vector<float> floats;
              reader.values(floats);
            }).find("another version"),
            std::string::npos);
  EXPECT_NE(message_of([&] { CheckpointReader(file, "one configuration").finish(); }).find("another version"),
            std::string::npos);
}

}  // namespace
}  // namespace tpce::sim
