// What a loss reads from disk: logits [T, V] and labels [T], mapped, not copied.
#pragma once

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

  // Views of the mapped files, valid as long as this object or the one moved to.
  ConstMatrix logits() const { return logits_; }
  Labels labels() const { return labels_; }

  // The file that the labels were read from.
  const std::string& labels_path() const { return labels_source().path(); }

  // SHA-256 of the whole logits file, and of the labels file where there is one. Reads them from end to end.
  std::string sha256() const;
  std::optional<std::string> labels_sha256() const;

 private:
  // One opened file and the tensor taken from it.
  struct Source {
    std::optional<MappedFile> npy;
    std::optional<SafetensorsFile> safetensors;
    std::span<const std::byte> bytes() const { return npy ? npy->bytes() : safetensors->bytes(); }
    const std::string& path() const { return npy ? npy->path() : safetensors->path(); }
    Tensor tensor(const std::string& name) const;
  };
  static Source open(const std::string& path);
  const Source& labels_source() const { return labels_source_ ? *labels_source_ : source_; }

  Source source_;
  std::optional<Source> labels_source_;
  Tensor logits_tensor_;
  Tensor labels_tensor_;
  ConstMatrix logits_;
  Labels labels_;
};

}  // namespace tpce::io
