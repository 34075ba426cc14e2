// A file that holds the state of a run: a line that names the format, the configuration it belongs to, arrays in the
// machine's own bytes, and the SHA-256 of all that. Written whole or not at all.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace tpce::sim {

class CheckpointWriter {
 public:
  CheckpointWriter(std::string path, const std::string& identity);

  template <class T>
  void value(const T& value) {
    values(std::vector<T>{value});
  }
  template <class T>
  void values(const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    append(std::as_bytes(std::span(values)), sizeof(T));
  }
  // Throws as io::AtomicFile does.
  void commit();

 private:
  void append(std::span<const std::byte> bytes, std::size_t element);

  std::string path_;
  std::string text_;
};

// Each throws std::invalid_argument that names the file.
class CheckpointReader {
 public:
  // Refuses a file that is no checkpoint, is damaged, or belongs to another configuration.
  CheckpointReader(std::string path, const std::string& identity);

  template <class T>
  void value(T& value) {
    std::vector<T> one;
    values(one);
    if (one.size() != 1) refuse();
    value = one[0];
  }
  template <class T>
  void values(std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::span<const std::byte> bytes = next(sizeof(T));
    values.resize(bytes.size() / sizeof(T));
    std::copy(bytes.begin(), bytes.end(), std::as_writable_bytes(std::span(values)).begin());
  }
  // Refuses what is left.
  void finish() const;

 private:
  [[noreturn]] void refuse() const;
  std::span<const std::byte> next(std::size_t element);

  std::string path_;
  std::string text_;
  std::size_t at_ = 0;
};

}  // namespace tpce::sim
