#include "io/logits_file.h"

#include <algorithm>
#include <utility>

#include "io/error.h"
#include "io/npy.h"
#include "io/sha256.h"

namespace tpce::io {
namespace {

// "tensor 'logits'" or "the array", to go behind a file's name.
std::string subject(bool in_npy, const std::string& tensor) { return in_npy ? "the array" : "tensor " + quote(tensor); }

DType logits_dtype(ElementType type, std::optional<DType> wanted, std::string_view path, std::string_view what) {
  if (type == ElementType::kBits16) {
    if (wanted == DType::kBFloat16) return DType::kBFloat16;
    if (!wanted) fail(path, "{}: elements are {}; if they are bf16, say --dtype bf16", what, name_of(type));
    fail(path, "{}: elements are {}, which can be bf16 but not --dtype {}", what, name_of(type),
         tpce::name_of(*wanted));
  }
  const auto dtype = dtype_of(type);
  if (!dtype) fail(path, "{}: elements are {}, expected bf16, fp16, fp32 or fp64 logits", what, name_of(type));
  if (wanted && *wanted != *dtype) {
    fail(path, "{}: elements are {}, not --dtype {}", what, tpce::name_of(*dtype), tpce::name_of(*wanted));
  }
  return *dtype;
}

void refuse_name(const std::optional<std::string>& tensor, std::string_view path) {
  if (!tensor) return;
  fail(path, "got the name of a tensor, {}, but a .npy file holds one array without a name", quote(*tensor));
}

// Elements [first, first + count) of the array at `place`, copied where the file does not align them.
std::shared_ptr<const std::byte> map_elements(const InputFile& file, const TensorPlace& place, std::int64_t first,
                                              std::int64_t count) {
  const std::size_t size = size_of(place.type);
  const std::size_t bytes = static_cast<std::size_t>(count) * size;
  std::shared_ptr<const std::byte> mapped = file.map(place.offset + static_cast<std::size_t>(first) * size, bytes);
  const Tensor tensor = tensor_over({mapped.get(), bytes}, place.type, {count});
  if (tensor.copy == nullptr) return mapped;
  return {tensor.copy, tensor.copy.get()};
}

}  // namespace

LogitsFile::Source LogitsFile::open(const std::string& path) {
  Source source{.file = InputFile(path)};
  const std::size_t size = source.file.size();
  const std::size_t head_size = std::min(size, kMaxHeaderBytes + 12);  // the header behind the prefix of either format
  const std::shared_ptr<const std::byte> mapped = source.file.map(0, head_size);
  const std::span<const std::byte> head(mapped.get(), head_size);
  if (looks_like_npy(head) || path.ends_with(".npy")) {
    source.npy = npy_place(head, size, path);
    return source;
  }
  if (!looks_like_safetensors(head) && !path.ends_with(".safetensors")) {
    const std::string_view start(reinterpret_cast<const char*>(head.data()), std::min<std::size_t>(8, head_size));
    fail(path, "begins with {}, expected a .npy or .safetensors file{}", quote(start),
         start.starts_with("PK\x03\x04") ? " (this is a zip archive, such as .npz or torch.save's)" : "");
  }
  source.safetensors.emplace(head, size, path);
  return source;
}

LogitsFile::LogitsFile(const LogitsRequest& request) : source_(open(request.file)) {
  if (source_.npy) refuse_name(request.tensor, request.file);
  const std::string name = request.tensor.value_or("logits");
  const std::string what = subject(source_.npy.has_value(), name);
  place_ = source_.place(name);
  const std::vector<std::int64_t>& shape = place_.shape;
  dtype_ = logits_dtype(place_.type, request.dtype, request.file, what);
  if (shape.size() != 2 && shape.size() != 3) {
    fail(request.file, "{}: shape {}, expected logits [T, V] or [B, S, V]", what, shape_text(shape));
  }
  if (vocab() == 0) fail(request.file, "{}: shape {}: V = 0, expected at least one class", what, shape_text(shape));
  rows_ = byte_count(shape, 1).value_or(0) / vocab();
  if (rows_ == 0) fail(request.file, "{}: shape {}: T = 0, expected at least one row", what, shape_text(shape));

  if (!request.labels_file && source_.npy) {
    fail(request.file, "a .npy file holds one array, the logits; name the file of the labels with --labels");
  }
  if (request.labels_file) labels_source_.emplace(open(*request.labels_file));
  const Source& labels = labels_source();
  if (labels.npy) refuse_name(request.label_tensor, labels.file.path());
  const std::string labels_name = request.label_tensor.value_or("labels");
  const std::string labels_what = subject(labels.npy.has_value(), labels_name);
  const TensorPlace labels_place = labels.place(labels_name);
  const bool wide = labels_place.type == ElementType::kInt64;
  if (!wide && labels_place.type != ElementType::kInt32) {
    fail(labels_path(), "{}: elements are {}, expected int32 or int64 labels", labels_what, name_of(labels_place.type));
  }
  const std::vector<std::int64_t> leading(shape.begin(), shape.end() - 1);
  if (labels_place.shape != leading && labels_place.shape != std::vector{rows_}) {
    fail(labels_path(), "{}: labels of shape {}, expected {} for logits of shape {}", labels_what,
         shape_text(labels_place.shape), shape_text(leading), shape_text(shape));
  }
  labels_memory_ = map_elements(labels.file, labels_place, 0, rows_);
  const void* data = labels_memory_.get();
  labels_ = wide ? Labels(static_cast<const std::int64_t*>(data), rows_)
                 : Labels(static_cast<const std::int32_t*>(data), rows_);
}

LogitsFile::Rows LogitsFile::logits(std::int64_t first, std::int64_t count) const {
  const std::shared_ptr<const std::byte> memory = map_elements(source_.file, place_, first * vocab(), count * vocab());
  return {{memory.get(), dtype_, count, vocab(), vocab(), {}}, memory};
}

std::string LogitsFile::sha256() const { return io::sha256(source_.file); }

std::optional<std::string> LogitsFile::labels_sha256() const {
  if (!labels_source_) return std::nullopt;
  return io::sha256(labels_source_->file);
}

}  // namespace tpce::io
