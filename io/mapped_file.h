// A regular file mapped read-only into memory: nothing is copied, pages come from the disk as they are touched.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace tpce::io {

class MappedFile {
 public:
  // Throws std::invalid_argument that names the path where it is missing, unreadable, empty, a directory, or anything
  // else that is not a regular file. A file that another process shortens while it is mapped raises SIGBUS on reading.
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  // At least one byte; the first is aligned to a page. Valid as long as this object, or the one moved to, lives.
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tpce::io
