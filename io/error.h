// Messages about files: one line each, whatever bytes the file or its name holds.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace tpce::io {

// `text` in single quotes, control characters and bytes outside ASCII escaped, cut after `limit` characters.
std::string quote(std::string_view text, std::size_t limit = 60);

// A file name fit for a message: as it is, except that control characters are escaped.
std::string printable(std::string_view path);

// As a POSIX shell reads it as one word: plain, or in single quotes.
std::string shell_word(std::string_view text);

// "[64, 49152]".
std::string shape_text(std::span<const std::int64_t> shape);

// "... (error text)" for an errno value.
std::string errno_text(int error);

// Throws std::invalid_argument "<file>: <message>".
template <class... Args>
[[noreturn]] void fail(std::string_view file, fmt::format_string<Args...> format, Args&&... args) {
  throw std::invalid_argument(printable(file) + ": " + fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tpce::io
