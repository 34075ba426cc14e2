#include "io/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

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

TEST(InputFile, MapsAnyPart) {
  const Scratch scratch;
  std::string text;
  for (int i = 0; i < 20000; ++i) text += static_cast<char>(i * i % 251);
  std::shared_ptr<const std::byte> kept;
  {
    const InputFile file(scratch.write("a", text));
    EXPECT_EQ(file.size(), text.size());
    for (const std::size_t offset :
         {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{4096}, text.size() - 1}) {
      const std::size_t count = std::min<std::size_t>(5000, text.size() - offset);
      const std::shared_ptr<const std::byte> part = file.map(offset, count);
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(part.get()), count), text.substr(offset, count));
      kept = part;
    }
  }
  EXPECT_EQ(static_cast<char>(*kept), text.back());  // it outlives the file
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
