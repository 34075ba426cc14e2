#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "io/error.h"

namespace tpce::io {

struct InputFile::Descriptor {
  explicit Descriptor(int opened) : fd(opened) {}
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int fd;
};

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  if (path_.find('\0') != std::string::npos) fail(path_, "the file name holds a NUL byte");
  // O_NONBLOCK: opening a fifo that nobody writes to must fail below, not wait.
  descriptor_ = std::make_shared<const Descriptor>(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (descriptor_->fd < 0) fail(path_, "cannot open the file for reading: {}", errno_text(errno));
  struct stat status {};
  if (::fstat(descriptor_->fd, &status) != 0) fail(path_, "cannot read the file's size: {}", errno_text(errno));
  if (S_ISDIR(status.st_mode)) fail(path_, "is a directory, expected a regular file");
  if (!S_ISREG(status.st_mode)) fail(path_, "is a pipe, socket or device, expected a regular file");
  if (status.st_size == 0) fail(path_, "the file is empty");
  size_ = static_cast<std::size_t>(status.st_size);
}

std::shared_ptr<const std::byte> InputFile::map(std::size_t offset, std::size_t count) const {
  static const auto kPage = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t before = offset % kPage;  // a mapping begins at a page
  const std::size_t size = before + count;
  if (count == 0) return nullptr;
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor_->fd, static_cast<off_t>(offset - before));
  if (data == MAP_FAILED) fail(path_, "cannot map {} of {} bytes: {}", count, size_, errno_text(errno));
  // Rows are read in order, once or twice: larger reads ahead. A hint only, so its failure changes nothing.
  ::madvise(data, size, MADV_SEQUENTIAL);
  const std::shared_ptr<void> mapping(data, [size](void* start) { ::munmap(start, size); });
  return {mapping, static_cast<const std::byte*>(data) + before};
}

}  // namespace tpce::io
