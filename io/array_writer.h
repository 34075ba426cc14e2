// Arrays written in pieces, so that a gradient larger than memory can be; the file appears whole or not at all.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/atomic_file.h"
#include "io/safetensors.h"
#include "io/tensor.h"
#include "tpce/matrix.h"

namespace tpce::io {

class ArrayWriter {
 public:
  // Opens the temporary file and writes the header. Throws as AtomicFile does.
  static ArrayWriter npy(std::string path, ElementType type, std::vector<std::int64_t> shape);
  // The tensors' bytes follow in the order given.
  static ArrayWriter safetensors(std::string path, const std::vector<NamedShape>& tensors,
                                 const std::map<std::string, std::string>& metadata);
  // One array: safetensors, under its name, where path ends in ".safetensors"; .npy where it ends in ".npy". Throws
  // std::invalid_argument for any other ending.
  static ArrayWriter by_extension(std::string path, const NamedShape& array);

  // The next elements in row-major order, of the type given at opening.
  void append(std::span<const std::byte> bytes);
  // The next rows. The dtype must be that of the array.
  void append(const ConstMatrix& rows);
  template <class T>
  void append_values(std::span<const T> values) {
    append(std::as_bytes(values));
  }

  // Throws std::invalid_argument unless exactly the elements of the shapes have been appended.
  void commit();

 private:
  ArrayWriter(std::string path, const std::string& header, std::int64_t bytes, std::optional<ElementType> only);

  AtomicFile file_;
  std::uint64_t expected_ = 0;
  std::uint64_t written_ = 0;
  std::optional<ElementType> type_;  // where all elements have one
};

}  // namespace tpce::io
