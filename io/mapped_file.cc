#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "io/error.h"

namespace tpce::io {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  if (path_.find('\0') != std::string::npos) fail(path_, "the file name holds a NUL byte");
  // O_NONBLOCK: opening a fifo that nobody writes to must fail below, not wait.
  const Descriptor file{::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
  if (file.fd < 0) fail(path_, "cannot open the file for reading: {}", errno_text(errno));
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) fail(path_, "cannot read the file's size: {}", errno_text(errno));
  if (S_ISDIR(status.st_mode)) fail(path_, "is a directory, expected a regular file");
  if (!S_ISREG(status.st_mode)) fail(path_, "is a pipe, socket or device, expected a regular file");
  if (status.st_size == 0) fail(path_, "the file is empty");
  const auto size = static_cast<std::size_t>(status.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd, 0);
  if (data == MAP_FAILED) fail(path_, "cannot map {} bytes: {}", size, errno_text(errno));
  // Rows are read in order, once or twice: larger reads ahead. A hint only, so its failure changes nothing.
  ::madvise(data, size, MADV_SEQUENTIAL);
  data_ = static_cast<const std::byte*>(data);
  size_ = size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace tpce::io
