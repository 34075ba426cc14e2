// One evaluation of a logits file by any method: what `tpce loss` and `tpce golden` share.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/logits_file.h"
#include "tools/methods.h"
#include "tpce/cross_entropy.h"

namespace tpce::tools {

struct Request {
  MethodChoice choice;
  std::int64_t tp = 1;
  std::vector<std::int64_t> shards;   // widths; where there are any, tp is not used
  std::optional<std::int64_t> vocab;  // default: every column
  bool cast_to_fp32 = false;          // fp64 logits are rounded to fp32 first
  int threads = 0;                    // 0: as many as there are
  Options options;
};

// Rows of fp64 logits, columns [first, first + count), each rounded to fp32.
io::LogitsFile::Rows round_to_fp32(const io::LogitsFile::Rows& wide, std::int64_t first, std::int64_t count);

// An error of a library about the logits or labels of the file, with the name of the one or the other before it.
// fp64_hint: what to do about fp64 logits, where these are.
std::string explain(const std::exception& error, const std::string& file_name, const io::LogitsFile& file,
                    std::string_view fp64_hint);

// Receives the rows of the gradient in order, [rows, columns of the file], as they are made; on the first rank.
struct GradientSink {
  DType dtype = DType::kFloat32;
  std::function<void(const ConstMatrix& rows)> rows;
};

struct Evaluation {
  Loss loss;
  std::vector<float> nll = {};  // [T]
  float gradient_norm = 0.0f;   // of the fp32 gradient, before it is rounded to the sink's type
  // Loss exactly 0 although the canonical loss of the row is not; -1 where the method has another loss.
  std::int64_t collapsed_rows = 0;
  std::int64_t tp = 1;
  std::int64_t vocab = 0;
  std::vector<std::string> warnings = {};  // values that the certified method could not decide
};

// Loss, gradient norm and, where sink is not null, gradient. The canonical and the reference methods hold a few rows of
// the gradient at a time; the simulated ones, whose bits depend on how rows are reduced, hold all of it.
// Over ranks() by the canonical method, each rank with its part of the shards; by the first rank alone by the others,
// whose nll and warnings the other ranks do not get.
// Throws std::invalid_argument that names the file and what was expected.
Evaluation evaluate(const std::string& file_name, const io::LogitsFile& file, const Request& request,
                    const GradientSink* sink);

}  // namespace tpce::tools
