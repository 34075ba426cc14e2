#include "io/json.h"

#include <set>
#include <string>
#include <vector>

#include "io/error.h"

namespace tpce::io {

nlohmann::ordered_json parse_json(std::string_view text, std::string_view file, int max_depth) {
  using Json = nlohmann::ordered_json;
  std::vector<std::set<std::string>> open_objects;
  // nlohmann keeps the last of equal keys and has no depth limit of its own.
  const Json::parser_callback_t check = [&](int depth, Json::parse_event_t event, Json& value) {
    switch (event) {
      case Json::parse_event_t::object_start:
        open_objects.emplace_back();
        [[fallthrough]];
      case Json::parse_event_t::array_start:
        if (depth >= max_depth) fail(file, "JSON nests deeper than {} levels", max_depth);
        break;
      case Json::parse_event_t::object_end:
        open_objects.pop_back();
        break;
      case Json::parse_event_t::key: {
        const auto& key = value.get_ref<const std::string&>();
        if (!open_objects.back().insert(key).second) fail(file, "JSON key {} stands twice", quote(key));
        break;
      }
      default:
        break;
    }
    return true;
  };
  // nlohmann takes a NUL byte for the end of the text.
  if (const std::size_t at = text.find('\0'); at != std::string_view::npos)
    fail(file, "invalid JSON: a NUL byte at {}", at);
  try {
    return Json::parse(text.begin(), text.end(), check);
  } catch (const Json::exception& error) {
    fail(file, "invalid JSON: {}", quote(error.what(), 200));
  }
}

}  // namespace tpce::io
