// The arrays of Partials, or of RowResults, one by one: for what copies, sends or lays out all of them alike.
#pragma once

#include <type_traits>

#include "tpce/backend.h"

namespace tpce {

// Calls visit(that array of each of them) for each array.
template <class Visit, class... Of>
requires(std::is_same_v<std::remove_const_t<Of>, Partials>&&...) void for_each_plane(const Visit& visit,
                                                                                     Of&... partials) {
  static_assert(sizeof(Partials) == sizeof(std::int64_t) + 6 * sizeof(void*), "a plane that joins is visited too");
  visit(partials.d0...);
  visit(partials.d1...);
  visit(partials.d2...);
  visit(partials.max_logit...);
  visit(partials.target_logit...);
  visit(partials.flags...);
}

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
