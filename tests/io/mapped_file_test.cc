#include "io/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/scratch.h"

namespace tpce::io {
namespace {

using testing::expect_parts;
using testing::message_of;
using testing::Scratch;

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, ShowsTheBytesAndSurvivesAMove) {
  const Scratch scratch;
  MappedFile file(scratch.write("a", "abc"));
  EXPECT_EQ(text_of(file), "abc");
  MappedFile moved(std::move(file));
  EXPECT_EQ(text_of(moved), "abc");
  MappedFile other(scratch.write("b", "z"));
  other = std::move(moved);
  EXPECT_EQ(text_of(other), "abc");
  EXPECT_EQ(other.path(), scratch.path("a"));
}

TEST(MappedFile, NamesWhatCannotBeMapped) {
  const Scratch scratch;
  const std::string missing = scratch.path("missing");
  expect_parts(message_of([&] { MappedFile{missing}; }), {missing, "No such file"});
  expect_parts(message_of([&] { MappedFile{scratch.path()}; }), {scratch.path(), "is a directory"});
  expect_parts(message_of([&] { MappedFile{scratch.write("empty", "")}; }), {"empty", "the file is empty"});
  expect_parts(message_of([] { MappedFile{"/dev/null"}; }), {"/dev/null", "device, expected a regular file"});
  expect_parts(message_of([] { MappedFile{""}; }), {"'': cannot open"});
  expect_parts(message_of([] { MappedFile{std::string("a\0b", 3)}; }), {"NUL"});
}

TEST(MappedFile, RefusesAPipeWithoutWaiting) {
  const Scratch scratch;
  ASSERT_EQ(::mkfifo(scratch.path("fifo").c_str(), 0600), 0);
  expect_parts(message_of([&] { MappedFile{scratch.path("fifo")}; }), {"fifo", "pipe"});
}

TEST(MappedFile, RefusesAnUnreadableFile) {
  if (::geteuid() == 0) GTEST_SKIP() << "root reads every file";
  const Scratch scratch;
  ASSERT_EQ(::chmod(scratch.write("secret", "x").c_str(), 0), 0);
  expect_parts(message_of([&] { MappedFile{scratch.path("secret")}; }), {"secret", "Permission denied"});
}

}  // namespace
}  // namespace tpce::io
