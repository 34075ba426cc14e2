// What a loss reads from disk: logits [T, V] and labels [T], mapped, not copied; the logits as many rows at a time as
// the caller asks for, since all of them may exceed the address space that a process is allowed.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/mapped_file.h"
#include "io/safetensors.h"
#include "io/tensor.h"
#include "tpce/matrix.h"

namespace tpce::io {

struct LogitsRequest {
  std::string file = {};                         // .npy or .safetensors
  std::optional<std::string> labels_file = {};   // likewise; without it the labels are a tensor of `file`
  std::optional<std::string> tensor = {};        // logits unless given; a .npy file has no names, and is then refused
  std::optional<std::string> label_tensor = {};  // labels unless given; likewise
  std::optional<DType> dtype = {};  // what the elements must be; kBFloat16 makes bf16 of a .npy with <u2 or <V2
};

class LogitsFile {
 public:
  // Logits [T, V], or [B, S, V] read as [B * S, V], of bf16, fp16, fp32 or fp64; labels [T], or [B, S], int32 or int64.
  // T and V are at least 1. Labels are not looked at: the core checks them against the vocabulary.
  // Throws std::invalid_argument, one line that names the file, the tensor and what was expected.
  explicit LogitsFile(const LogitsRequest& request);

  DType dtype() const { return dtype_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t vocab() const { return place_.shape.back(); }
  // All of them: valid as long as this object or the one moved to.
  Labels labels() const { return labels_; }

  // Rows of the logits, valid as long as `owner` or a copy of it.
  struct Rows {
    ConstMatrix matrix;
    std::shared_ptr<const void> owner;
  };
  // Rows [first, first + count). Throws std::invalid_argument where they cannot be mapped.
  Rows logits(std::int64_t first, std::int64_t count) const;
  Rows logits() const { return logits(0, rows_); }

  // The file that the labels were read from.
  const std::string& labels_path() const { return labels_source().file.path(); }

  // SHA-256 of the whole logits file, and of the labels file where there is one. Reads them from end to end.
  std::string sha256() const;
  std::optional<std::string> labels_sha256() const;

 private:
  // An opened file and what its header says.
  struct Source {
    InputFile file;
    std::optional<TensorPlace> npy = {};
    std::optional<SafetensorsFile> safetensors = {};
    TensorPlace place(const std::string& tensor) const { return npy ? *npy : safetensors->place(tensor); }
  };
  static Source open(const std::string& path);
  const Source& labels_source() const { return labels_source_ ? *labels_source_ : source_; }

  Source source_;
  std::optional<Source> labels_source_;  // where they are in a file of their own
  TensorPlace place_;                    // of the logits
  DType dtype_ = DType::kFloat32;
  std::int64_t rows_ = 0;
  std::shared_ptr<const std::byte> labels_memory_;
  Labels labels_;
};

}  // namespace tpce::io
