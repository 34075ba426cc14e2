// The arrays of Partials, or of RowResults, one by one: for what copies, sends or lays out all of them alike.
#pragma once

#include <cstddef>
#include <type_traits>

#include "tpce/backend.h"

namespace tpce {

// Calls visit(that array of each of them) for each array. Those of Partials in the order in which they lie in memory:
// of wider elements first, so that each is aligned whatever the number of rows.
template <class Visit, class... Of>
requires(std::is_same_v<std::remove_const_t<Of>, Partials>&&...) constexpr void for_each_plane(const Visit& visit,
                                                                                               Of&... partials) {
  static_assert(sizeof(Partials) == sizeof(std::int64_t) + 6 * sizeof(void*), "a plane that joins is visited too");
  visit(partials.d0...);
  visit(partials.d1...);
  visit(partials.d2...);
  visit(partials.max_logit...);
  visit(partials.target_logit...);
  visit(partials.flags...);
}

namespace planes_detail {

constexpr bool wider_elements_come_first() {
  const Partials none;
  bool holds = true;
  std::size_t before = 8;  // Partials::in() asks for memory aligned to that
  for_each_plane(
      [&](const auto* plane) {
        holds = holds && sizeof *plane <= before;
        before = sizeof *plane;
      },
      none);
  return holds;
}
static_assert(wider_elements_come_first());

}  // namespace planes_detail

// Some of them may be null.
template <class Visit, class... Of>
requires(std::is_same_v<std::remove_const_t<Of>, RowResults>&&...) void for_each_plane(const Visit& visit,
                                                                                       Of&... results) {
  static_assert(sizeof(RowResults) == sizeof(std::int64_t) + 5 * sizeof(void*), "a result that joins is visited too");
  visit(results.saved...);
  visit(results.nll...);
  visit(results.lse...);
  visit(results.nll_fp64...);
  visit(results.lse_fp64...);
}

}  // namespace tpce
