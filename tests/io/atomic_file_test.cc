#include "io/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>

#include "tests/support/scratch.h"

namespace tpce::io {
namespace {

using testing::expect_parts;
using testing::message_of;
using testing::read_bytes;
using testing::Scratch;

mode_t mode_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return status.st_mode & 07777;
}

TEST(AtomicFile, AppearsOnlyOnCommit) {
  const Scratch scratch;
  const std::string path = scratch.path("out");
  AtomicFile file(path);
  file.write("ab");
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(scratch.count(), 1u);
  const std::string large(3 << 20, 'x');
  file.write(large);
  file.write("c");
  file.commit();
  EXPECT_EQ(read_bytes(path), "ab" + large + "c");
  EXPECT_EQ(scratch.count(), 1u);
}

TEST(AtomicFile, LeavesTheOldFileWhenDropped) {
  const Scratch scratch;
  const std::string path = scratch.write("out", "old");
  try {
    AtomicFile file(path);
    file.write("new");
    throw std::runtime_error("the work failed");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(scratch.count(), 1u);
}

TEST(AtomicFile, MovesWithItsTemporary) {
  const Scratch scratch;
  std::optional<AtomicFile> file;
  {
    AtomicFile made(scratch.path("out"));
    made.write("text");
    file.emplace(std::move(made));
  }
  file->commit();
  EXPECT_EQ(read_bytes(scratch.path("out")), "text");
}

TEST(AtomicFile, KeepsTheModeOfTheOldFileAndTheUmaskOfANewOne) {
  const Scratch scratch;
  const std::string path = scratch.write("old", "x");
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  write_file(path, "y");
  EXPECT_EQ(mode_of(path), 0640u);
  const mode_t umask = ::umask(0027);
  write_file(scratch.path("new"), "y");
  ::umask(umask);
  EXPECT_EQ(mode_of(scratch.path("new")), 0640u);
}

TEST(AtomicFile, WritesThroughSymbolicLinks) {
  const Scratch scratch;
  std::filesystem::create_directory(scratch.path("dir"));
  std::filesystem::create_symlink("dir/target", scratch.path("link"));
  write_file(scratch.path("link"), "one");  // dangling: the target is made
  EXPECT_EQ(read_bytes(scratch.path("dir/target")), "one");
  write_file(scratch.path("link"), "two");
  EXPECT_EQ(read_bytes(scratch.path("dir/target")), "two");
  EXPECT_TRUE(std::filesystem::is_symlink(scratch.path("link")));
  std::filesystem::create_symlink("loop", scratch.path("loop"));
  expect_parts(message_of([&] { write_file(scratch.path("loop"), ""); }), {"loop", "symbolic links"});
}

TEST(AtomicFile, SurvivesAChangeOfDirectory) {
  const Scratch scratch;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(scratch.path());
  AtomicFile file("relative");
  file.write("x");
  std::filesystem::current_path(before);
  file.commit();
  EXPECT_EQ(read_bytes(scratch.path("relative")), "x");
}

TEST(AtomicFile, TakesANameAsLongAsTheFileSystemAllows) {
  const Scratch scratch;
  write_file(scratch.path(std::string(255, 'n')), "x");
  expect_parts(message_of([&] { write_file(scratch.path(std::string(256, 'n')), "x"); }), {"too long"});
  EXPECT_EQ(scratch.count(), 1u);
}

TEST(AtomicFile, NamesWhatCannotBeWritten) {
  const Scratch scratch;
  std::filesystem::create_directory(scratch.path("dir"));
  ASSERT_EQ(::mkfifo(scratch.path("fifo").c_str(), 0600), 0);
  const auto message = [](const std::string& path) { return message_of([&] { AtomicFile{path}; }); };
  expect_parts(message(scratch.path("dir")), {"dir: cannot write: is a directory"});
  expect_parts(message(scratch.path("dir/")), {"cannot write"});
  expect_parts(message(scratch.path("no/such/out")), {"no/such/out: cannot write", "No such file"});
  expect_parts(message(scratch.write("file", "x") + "/out"), {"file/out: cannot write", "Not a directory"});
  expect_parts(message(scratch.path("fifo")), {"fifo: cannot write", "expected a regular file"});
  expect_parts(message("/dev/null"), {"/dev/null: cannot write", "device"});
  expect_parts(message("/proc/tpce-out"), {"/proc/tpce-out: cannot write"});
  expect_parts(message(""), {"'': cannot write", "empty"});
  EXPECT_EQ(scratch.count(), 3u);
}

TEST(AtomicFile, RefusesReadOnlyPlaces) {
  if (::geteuid() == 0) GTEST_SKIP() << "root writes everywhere";
  const Scratch scratch;
  ASSERT_EQ(::chmod(scratch.write("fixed", "x").c_str(), 0400), 0);
  expect_parts(message_of([&] { AtomicFile{scratch.path("fixed")}; }), {"fixed: cannot write", "Permission denied"});
  std::filesystem::create_directory(scratch.path("dir"));
  ASSERT_EQ(::chmod(scratch.path("dir").c_str(), 0500), 0);
  expect_parts(message_of([&] { AtomicFile{scratch.path("dir/out")}; }), {"cannot write", "Permission denied"});
  ::chmod(scratch.path("dir").c_str(), 0700);
}

TEST(AtomicFile, LeavesNothingWhenTheSystemRefusesBytes) {
  const Scratch scratch;
  const std::string path = scratch.write("out", "old");
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    AtomicFile file(path);
    try {
      file.write(std::string(2 << 20, 'x'));
    } catch (const std::runtime_error& error) {
      ::_exit(std::string_view(error.what()).find("out: cannot write") != std::string_view::npos ? 0 : 2);
    }
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(scratch.count(), 1u);
}

TEST(RemoveTemporaryFiles, CleansUpFromASignalHandler) {
  const Scratch scratch;
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGTERM, [](int) {
      remove_temporary_files();
      ::_exit(7);
    });
    AtomicFile first(scratch.path("a"));
    AtomicFile second(scratch.path("b"));
    first.write(std::string(2 << 20, 'x'));
    std::raise(SIGTERM);
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(scratch.count(), 0u);
}

TEST(RemoveTemporaryFiles, MakesALaterCommitFail) {
  const Scratch scratch;
  const pid_t child = ::fork();  // the call is for a process that is about to end: it may not free the names
  if (child == 0) {
    AtomicFile file(scratch.path("out"));
    remove_temporary_files();
    try {
      file.commit();
    } catch (const std::runtime_error&) {
      ::_exit(7);
    }
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(scratch.count(), 0u);
}

TEST(AtomicFile, ManyAtOnceKeepApart) {
  const Scratch scratch;
  std::vector<AtomicFile> files;
  for (int i = 0; i < 100; ++i) {
    files.emplace_back(scratch.path(std::to_string(i)));
    files.back().write(std::to_string(i));
  }
  for (AtomicFile& file : files) file.commit();
  EXPECT_EQ(scratch.count(), 100u);
  EXPECT_EQ(read_bytes(scratch.path("99")), "99");
}

}  // namespace
}  // namespace tpce::io
