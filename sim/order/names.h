// Look-up in the lists of named things.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace tpce::sim {

// The entry of list whose name is wanted. Throws std::invalid_argument that says what was looked for and lists the
// names.
template <class List>
const auto& find_by_name(std::string_view what, std::string_view wanted, const List& list) {
  std::string names;
  for (const auto& entry : list) {
    if (entry.name == wanted) return entry;
    names += (names.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw std::invalid_argument(std::string(what) + ": got '" + std::string(wanted) + "', expected one of " + names);
}

}  // namespace tpce::sim
