#include "io/array_writer.h"

#include <utility>

#include "io/error.h"
#include "io/npy.h"

namespace tpce::io {
namespace {

std::int64_t checked_bytes(const std::string& path, const NamedShape& array) {
  const auto bytes = byte_count(array.shape, size_of(array.type));
  if (!bytes) fail(path, "shape {} of {} exceeds 2^63 - 1 bytes", shape_text(array.shape), name_of(array.type));
  return *bytes;
}

}  // namespace

ArrayWriter::ArrayWriter(std::string path, const std::string& header, std::int64_t bytes,
                         std::optional<ElementType> only)
    : file_(std::move(path)), expected_(static_cast<std::uint64_t>(bytes)), type_(only) {
  file_.write(header);
}

ArrayWriter ArrayWriter::npy(std::string path, ElementType type, std::vector<std::int64_t> shape) {
  const std::int64_t bytes = checked_bytes(path, {"", type, shape});
  const std::string header = npy_header(type, shape);
  return ArrayWriter(std::move(path), header, bytes, type);
}

ArrayWriter ArrayWriter::safetensors(std::string path, const std::vector<NamedShape>& tensors,
                                     const std::map<std::string, std::string>& metadata) {
  const std::string header = safetensors_header(tensors, metadata);
  std::int64_t bytes = 0;
  std::optional<ElementType> type = tensors.empty() ? std::nullopt : std::optional(tensors[0].type);
  for (const NamedShape& tensor : tensors) {
    bytes += checked_bytes(path, tensor);
    if (tensor.type != type) type.reset();
  }
  return ArrayWriter(std::move(path), header, bytes, type);
}

ArrayWriter ArrayWriter::by_extension(std::string path, const NamedShape& array) {
  if (path.ends_with(".npy")) return npy(std::move(path), array.type, array.shape);
  if (path.ends_with(".safetensors")) return safetensors(std::move(path), {array}, {});
  fail(path, "unknown file name ending, expected .npy or .safetensors");
}

void ArrayWriter::append(std::span<const std::byte> bytes) {
  if (bytes.size() > expected_ - written_) {
    fail(file_.path(), "{} bytes appended after {}, expected {} in all", bytes.size(), written_, expected_);
  }
  file_.write(bytes);
  written_ += bytes.size();
}

void ArrayWriter::append(const ConstMatrix& rows) {
  if (type_ != element_type_of(rows.dtype)) {
    fail(file_.path(), "rows of {} appended to an array of another type", tpce::name_of(rows.dtype));
  }
  const auto row_bytes = static_cast<std::size_t>(rows.cols) * tpce::size_of(rows.dtype);
  if (rows.row_stride == rows.cols) {
    append({static_cast<const std::byte*>(rows.data), row_bytes * static_cast<std::size_t>(rows.rows)});
    return;
  }
  for (std::int64_t i = 0; i < rows.rows; ++i) {
    append({static_cast<const std::byte*>(rows.row_range(i, 1).data), row_bytes});
  }
}

void ArrayWriter::commit() {
  if (written_ != expected_) {
    fail(file_.path(), "{} bytes of elements appended, expected {}; nothing is written", written_, expected_);
  }
  file_.commit();
}

}  // namespace tpce::io
