#include "io/error.h"

#include <algorithm>
#include <cctype>
#include <system_error>

namespace tpce::io {
namespace {

void append_escaped(std::string& out, unsigned char c, bool keep_high) {
  if (c == '\n') {
    out += "\\n";
  } else if (c == '\r') {
    out += "\\r";
  } else if (c == '\t') {
    out += "\\t";
  } else if (c < 0x20 || c == 0x7f || (c >= 0x80 && !keep_high)) {
    out += fmt::format("\\x{:02x}", c);
  } else {
    out += static_cast<char>(c);
  }
}

}  // namespace

std::string quote(std::string_view text, std::size_t limit) {
  std::string out = "'";
  for (char c : text.substr(0, limit)) append_escaped(out, static_cast<unsigned char>(c), false);
  if (text.size() > limit) out += "...";
  return out + "'";
}

std::string printable(std::string_view path) {
  std::string out;
  for (char c : path) append_escaped(out, static_cast<unsigned char>(c), true);
  return out.empty() ? "''" : out;
}

std::string shell_word(std::string_view text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("_-+=.,:/@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return std::string(text);
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", "));
}

std::string errno_text(int error) { return std::generic_category().message(error); }

}  // namespace tpce::io
