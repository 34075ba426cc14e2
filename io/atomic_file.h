// A file that is written whole or not at all: bytes go to a temporary file in the same directory, commit() renames it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace tpce::io {

class AtomicFile {
 public:
  // Creates the temporary file at once, so that an output that cannot be written is found before long work starts.
  // A symbolic link is followed; an existing file keeps its mode. Throws std::invalid_argument that names the path
  // where the directory is missing or not writable, the path is a directory, pipe or device, or the existing file is
  // read-only.
  explicit AtomicFile(std::string path);
  // Removes the temporary file unless commit() returned.
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;

  // Path as it was given.
  const std::string& path() const { return path_; }

  // Appends. Throws std::runtime_error that names the path where the system refuses (a full disk).
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);

  // Flushes to the disk and renames over the path. Called once, last. Throws std::runtime_error; then nothing is left.
  void commit();

 private:
  void write_through(std::string_view bytes);
  [[noreturn]] void refuse(std::string_view action, int error);
  void discard() noexcept;

  std::string path_;
  std::string target_;     // path_ with links resolved, absolute
  std::string temporary_;  // absolute, so that a later chdir does not lose it
  std::string buffer_;
  int fd_ = -1;
  int slot_ = -1;  // of the list that remove_temporary_files reads; -1 where the list is full
};

// Removes the temporary file of every AtomicFile that is alive. Async-signal-safe: a program calls it from its handler
// of SIGINT and the like and then ends (an AtomicFile that goes on writing afterwards fails at commit()).
void remove_temporary_files() noexcept;

// Where a chain of symbolic links ends, also when nothing is there yet: the path that an AtomicFile replaces. Throws
// std::invalid_argument where the links go round in a circle.
std::string follow_links(const std::string& path);

// The whole of a text file at once.
void write_file(const std::string& path, std::string_view text);

}  // namespace tpce::io
