// The safetensors format: a JSON header that names tensors, then their bytes.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/mapped_file.h"
#include "io/tensor.h"

namespace tpce::io {

// Whether bytes can begin a safetensors file: the header's size, then '{'.
bool looks_like_safetensors(std::span<const std::byte> bytes);

class SafetensorsFile {
 public:
  struct Entry {
    std::string dtype;  // as the file spells it, known here or not
    std::vector<std::int64_t> shape;
    std::size_t begin = 0;  // bytes from the start of the data
    std::size_t end = 0;
  };

  // Reads and checks the whole header. Throws std::invalid_argument that names the file and the tensor for: a header
  // longer than the file or than 100 MB, invalid JSON, a key that stands twice, offsets that are out of range, overlap,
  // leave a hole or do not reach the end of the file, a size that is not shape times element, a shape that overflows.
  explicit SafetensorsFile(MappedFile file);
  // The same of a whole file's bytes that the caller keeps; `path` is for messages.
  SafetensorsFile(std::span<const std::byte> bytes, std::string path);
  // The same of a file of `size` bytes that begins with `bytes`: all of it, or its header and kMaxHeaderBytes. Of the
  // tensors only place() can be asked.
  SafetensorsFile(std::span<const std::byte> bytes, std::size_t size, std::string path);

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // By name.
  const std::map<std::string, Entry>& entries() const { return entries_; }

  // BF16, F16, F32, F64, I32 or I64, valid as long as this object lives. Throws std::invalid_argument where the name is
  // not there (the message lists those that are) or its dtype is another. The format does not align data to elements: a
  // tensor at an odd address is copied (see Tensor).
  Tensor tensor(const std::string& name) const;
  // The same without its elements.
  TensorPlace place(const std::string& name) const;

 private:
  std::optional<MappedFile> file_;
  std::span<const std::byte> bytes_;  // the mapping does not move with file_
  std::string path_;
  std::size_t data_offset_ = 0;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, Entry> entries_;
};

struct NamedShape {
  std::string name;
  ElementType type = ElementType::kFloat32;
  std::vector<std::int64_t> shape;
};

// Everything before the data, for tensors whose bytes follow in the order given; padded so that the data is aligned
// to 8. kBits16 is refused.
std::string safetensors_header(std::span<const NamedShape> tensors, const std::map<std::string, std::string>& metadata);

}  // namespace tpce::io
