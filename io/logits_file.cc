#include "io/logits_file.h"

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

}  // namespace

Tensor LogitsFile::Source::tensor(const std::string& name) const {
  return npy ? read_npy(*npy) : safetensors->tensor(name);
}

LogitsFile::Source LogitsFile::open(const std::string& path) {
  MappedFile file(path);
  Source source;
  if (looks_like_npy(file.bytes()) || path.ends_with(".npy")) {
    source.npy.emplace(std::move(file));
    return source;
  }
  if (!looks_like_safetensors(file.bytes()) && !path.ends_with(".safetensors")) {
    const std::string_view start(reinterpret_cast<const char*>(file.bytes().data()),
                                 std::min<std::size_t>(8, file.bytes().size()));
    fail(path, "begins with {}, expected a .npy or .safetensors file{}", quote(start),
         start.starts_with("PK\x03\x04") ? " (this is a zip archive, such as .npz or torch.save's)" : "");
  }
  source.safetensors.emplace(std::move(file));
  return source;
}

LogitsFile::LogitsFile(const LogitsRequest& request) : source_(open(request.file)) {
  if (source_.npy) refuse_name(request.tensor, request.file);
  const std::string name = request.tensor.value_or("logits");
  const std::string what = subject(source_.npy.has_value(), name);
  logits_tensor_ = source_.tensor(name);
  const std::vector<std::int64_t>& shape = logits_tensor_.shape;
  const DType dtype = logits_dtype(logits_tensor_.type, request.dtype, request.file, what);
  if (shape.size() != 2 && shape.size() != 3) {
    fail(request.file, "{}: shape {}, expected logits [T, V] or [B, S, V]", what, shape_text(shape));
  }
  const std::int64_t vocab = shape.back();
  if (vocab == 0) fail(request.file, "{}: shape {}: V = 0, expected at least one class", what, shape_text(shape));
  const std::int64_t rows = logits_tensor_.elements() / vocab;
  if (rows == 0) fail(request.file, "{}: shape {}: T = 0, expected at least one row", what, shape_text(shape));
  logits_ = {logits_tensor_.data, dtype, rows, vocab, vocab, {}};

  if (!request.labels_file && source_.npy) {
    fail(request.file, "a .npy file holds one array, the logits; name the file of the labels with --labels");
  }
  if (request.labels_file) labels_source_.emplace(open(*request.labels_file));
  const Source& labels = labels_source();
  if (labels.npy) refuse_name(request.label_tensor, labels.path());
  const std::string labels_name = request.label_tensor.value_or("labels");
  const std::string labels_what = subject(labels.npy.has_value(), labels_name);
  labels_tensor_ = labels.tensor(labels_name);
  const std::vector<std::int64_t>& labels_shape = labels_tensor_.shape;
  const bool wide = labels_tensor_.type == ElementType::kInt64;
  if (!wide && labels_tensor_.type != ElementType::kInt32) {
    fail(labels_path(), "{}: elements are {}, expected int32 or int64 labels", labels_what,
         name_of(labels_tensor_.type));
  }
  const std::vector<std::int64_t> leading(shape.begin(), shape.end() - 1);
  if (labels_shape != leading && labels_shape != std::vector{rows}) {
    fail(labels_path(), "{}: labels of shape {}, expected {} for logits of shape {}", labels_what,
         shape_text(labels_shape), shape_text(leading), shape_text(shape));
  }
  if (wide) {
    labels_ = Labels(static_cast<const std::int64_t*>(labels_tensor_.data), rows);
  } else {
    labels_ = Labels(static_cast<const std::int32_t*>(labels_tensor_.data), rows);
  }
}

std::string LogitsFile::sha256() const { return io::sha256(source_.bytes()); }

std::optional<std::string> LogitsFile::labels_sha256() const {
  if (!labels_source_) return std::nullopt;
  return io::sha256(labels_source_->bytes());
}

}  // namespace tpce::io
