#include "tpce/backend.h"

namespace tpce {

std::size_t Partials::bytes_per_row(const Options&) {
  return 3 * sizeof(std::int64_t) + 2 * sizeof(float) + sizeof(std::uint32_t);
}

Partials Partials::in(void* memory, std::int64_t rows, const Options&) {
  Partials partials;
  partials.rows = rows;
  partials.d0 = static_cast<std::int64_t*>(memory);
  partials.d1 = partials.d0 + rows;
  partials.d2 = partials.d1 + rows;
  void* after_digits = partials.d2 + rows;
  partials.max_logit = static_cast<float*>(after_digits);
  partials.target_logit = partials.max_logit + rows;
  void* after_logits = partials.target_logit + rows;
  partials.flags = static_cast<std::uint32_t*>(after_logits);
  return partials;
}

}  // namespace tpce
