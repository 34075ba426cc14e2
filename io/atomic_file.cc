#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "io/error.h"

namespace tpce::io {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

// Paths of live temporary files. Whoever exchanges a pointer out of its slot owns the string: the destructor frees it,
// a signal handler does not (free is not async-signal-safe).
std::array<std::atomic<char*>, 64> live_temporaries{};
static_assert(std::atomic<char*>::is_always_lock_free, "a signal handler reads the slots");

std::atomic<unsigned> next_number{0};

int remember(const std::string& path) {
  char* copy = ::strdup(path.c_str());
  for (std::size_t slot = 0; copy != nullptr && slot < live_temporaries.size(); ++slot) {
    char* empty = nullptr;
    if (live_temporaries[slot].compare_exchange_strong(empty, copy)) return static_cast<int>(slot);
  }
  std::free(copy);
  return -1;
}

void forget(int slot) noexcept {
  if (slot >= 0) std::free(live_temporaries[static_cast<std::size_t>(slot)].exchange(nullptr));
}

// Absolute path of the directory that holds `path`, and the last component.
std::pair<std::string, std::string> split(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : (slash == 0 ? "/" : path.substr(0, slash));
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  char resolved[PATH_MAX];
  if (::realpath(directory.c_str(), resolved) == nullptr) {
    fail(path, "cannot write: directory {}: {}", quote(directory, 200), errno_text(errno));
  }
  return {resolved, name};
}

}  // namespace

std::string follow_links(const std::string& path) {
  std::string target = path;
  for (int depth = 0; depth < 40; ++depth) {
    char link[PATH_MAX];
    const ssize_t length = ::readlink(target.c_str(), link, sizeof(link));
    if (length < 0) return target;
    const std::string next(link, static_cast<std::size_t>(length));
    const std::size_t slash = target.rfind('/');
    target = next.starts_with('/') || slash == std::string::npos ? next : target.substr(0, slash + 1) + next;
  }
  fail(path, "cannot write: too many symbolic links");
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  if (path_.empty()) fail(path_, "cannot write: the file name is empty");
  if (path_.find('\0') != std::string::npos) fail(path_, "cannot write: the file name holds a NUL byte");
  if (path_.ends_with('/')) fail(path_, "cannot write: the name is that of a directory");
  const auto [directory, name] = split(follow_links(path_));
  target_ = directory + "/" + name;
  if (name.size() > NAME_MAX) fail(path_, "cannot write: {}", errno_text(ENAMETOOLONG));

  struct stat status {};
  const bool exists = ::stat(target_.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) fail(path_, "cannot write: is a directory");
  // Renaming over a device would replace it for everyone.
  if (exists && !S_ISREG(status.st_mode)) {
    fail(path_, "cannot write: is a pipe, socket or device, expected a regular file");
  }
  if (exists && ::access(target_.c_str(), W_OK) != 0) fail(path_, "cannot write: {}", errno_text(errno));

  do {
    // A short name of its own: the target's may already be as long as the file system allows.
    temporary_ = fmt::format("{}/.tpce-{}-{}.tmp", directory, ::getpid(), next_number.fetch_add(1));
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (fd_ < 0 && errno == EEXIST);
  if (fd_ < 0) fail(path_, "cannot write: directory {}: {}", quote(directory, 200), errno_text(errno));
  slot_ = remember(temporary_);
  // Where the system does not allow the old mode, the new file keeps the umask's.
  if (exists) static_cast<void>(::fchmod(fd_, status.st_mode & 07777));
}

AtomicFile::~AtomicFile() { discard(); }

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      buffer_(std::move(other.buffer_)),
      fd_(std::exchange(other.fd_, -1)),
      slot_(std::exchange(other.slot_, -1)) {}

void AtomicFile::discard() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
  forget(std::exchange(slot_, -1));
}

void AtomicFile::refuse(std::string_view action, int error) {
  discard();
  throw std::runtime_error(fmt::format("{}: cannot {}: {}", printable(path_), action, errno_text(error)));
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  write(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

void AtomicFile::write(std::string_view text) {
  if (buffer_.size() + text.size() < kBufferBytes) {
    buffer_.append(text);
    return;
  }
  write_through(std::exchange(buffer_, {}));
  write_through(text);
}

void AtomicFile::write_through(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse("write", errno);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

void AtomicFile::commit() {
  write_through(std::exchange(buffer_, {}));
  if (::fsync(fd_) != 0) refuse("write", errno);
  if (::close(std::exchange(fd_, -1)) != 0) refuse("write", errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) refuse("rename the finished file", errno);
  temporary_.clear();
  forget(std::exchange(slot_, -1));
  // The rename itself reaches the disk with the directory. The file is complete either way.
  const int directory = ::open(target_.substr(0, target_.rfind('/') + 1).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory >= 0) {
    ::fsync(directory);
    ::close(directory);
  }
}

void remove_temporary_files() noexcept {
  const int saved = errno;
  for (auto& slot : live_temporaries) {
    if (const char* path = slot.exchange(nullptr)) ::unlink(path);
  }
  errno = saved;
}

void write_file(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace tpce::io
