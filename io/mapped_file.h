// Regular files read through memory maps: nothing is copied, pages come from the disk as they are touched.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace tpce::io {

// A file of which parts are mapped, so that it may be larger than the address space that a process is allowed.
class InputFile {
 public:
  // Throws std::invalid_argument that names the path where it is missing, unreadable, empty, a directory, or anything
  // else that is not a regular file. A file that another process shortens while it is mapped raises SIGBUS on reading.
  explicit InputFile(std::string path);

  const std::string& path() const { return path_; }
  std::size_t size() const { return size_; }  // at least 1

  // The byte at `offset`, and those behind it up to offset + count, which must lie in the file; mapped until the
  // pointer and its copies are gone, the InputFile or not. Throws std::invalid_argument where they cannot be mapped.
  std::shared_ptr<const std::byte> map(std::size_t offset, std::size_t count) const;

 private:
  struct Descriptor;

  std::string path_;
  std::shared_ptr<const Descriptor> descriptor_;
  std::size_t size_ = 0;
};

// All of a file.
class MappedFile {
 public:
  // Throws as InputFile does.
  explicit MappedFile(std::string path) : file_(std::move(path)), data_(file_.map(0, file_.size())) {}

  const std::string& path() const { return file_.path(); }
  // At least one byte; the first is aligned to a page. Valid as long as this object, or the one moved to, lives.
  std::span<const std::byte> bytes() const { return {data_.get(), file_.size()}; }

 private:
  InputFile file_;
  std::shared_ptr<const std::byte> data_;
};

}  // namespace tpce::io
