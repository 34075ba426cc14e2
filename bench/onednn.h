// Log-softmax of oneDNN, forward for inference: what a library of kernels takes for all log-probabilities of a row.
// Built only where oneDNN is installed (TPCE_ONEDNN).
#pragma once

#include <functional>
#include <string>

#include "tpce/matrix.h"

namespace tpce::bench {

std::string onednn_version();

// A call writes the log-probabilities of every row to out, which has the shape and type of the logits, rows side by
// side. The calling thread must be the one that asked. Empty where oneDNN does not have the type (fp32, bf16 or fp16)
// on this processor.
std::function<void()> onednn_log_softmax(const ConstMatrix& logits, void* out, int threads);

}  // namespace tpce::bench
