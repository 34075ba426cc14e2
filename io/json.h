// JSON from files that nobody vouches for.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace tpce::io {

// The document, members in the order of the file. Throws std::invalid_argument, one line that names the file, where the
// text is not JSON, a key stands twice in one object, or objects and arrays nest deeper than max_depth.
nlohmann::ordered_json parse_json(std::string_view text, std::string_view file, int max_depth);

}  // namespace tpce::io
