#include "golden/python_float.h"

#include <locale.h>
#include <stdlib.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace tpce::golden {
namespace {

constexpr std::string_view kSpace = " \t\n\v\f\r";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool equals_ignoring_case(std::string_view text, std::string_view lower) {
  if (text.size() != lower.size()) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c) != lower[i]) return false;
  }
  return true;
}

// Moves digits from `text` to `out`, with single underscores between them left out. False where there is no digit, or
// an underscore stands elsewhere.
bool take_digits(std::string_view& text, std::string& out) {
  if (text.empty() || !is_digit(text[0])) return false;
  while (!text.empty()) {
    if (is_digit(text[0])) {
      out += text[0];
    } else if (text[0] != '_' || text.size() < 2 || !is_digit(text[1])) {
      break;
    }
    text.remove_prefix(1);
  }
  return true;
}

// The number in the form that strtod reads, or nothing.
std::optional<std::string> plain_decimal(std::string_view text) {
  std::string out;
  const bool whole = take_digits(text, out);
  bool fraction = false;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    out += '.';
    fraction = take_digits(text, out);
  }
  if (!whole && !fraction) return std::nullopt;
  if (text.starts_with('e') || text.starts_with('E')) {
    text.remove_prefix(1);
    out += 'e';
    if (text.starts_with('+') || text.starts_with('-')) {
      out += text[0];
      text.remove_prefix(1);
    }
    if (!take_digits(text, out)) return std::nullopt;
  }
  if (!text.empty()) return std::nullopt;
  return out;
}

// strtod takes the decimal point from the locale; this one's is '.'.
locale_t c_locale() {
  static const locale_t locale = ::newlocale(LC_ALL_MASK, "C", nullptr);
  return locale;
}

}  // namespace

std::string python_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 32> buffer;
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific).ptr;
  std::string_view text(buffer.data(), static_cast<std::size_t>(end - buffer.data()));

  std::string out;
  if (text.starts_with('-')) {
    out = "-";
    text.remove_prefix(1);
  }
  const std::size_t e = text.find('e');
  std::string digits(text.substr(0, 1));
  if (e > 1) digits += text.substr(2, e - 2);
  std::string_view exponent_text = text.substr(e + 1);
  if (exponent_text.starts_with('+')) exponent_text.remove_prefix(1);
  int exponent = 0;
  std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);

  if (exponent < -4 || exponent >= 16) {
    out += digits.substr(0, 1);
    if (digits.size() > 1) out += "." + digits.substr(1);
    const std::string magnitude = std::to_string(std::abs(exponent));
    return out + (exponent < 0 ? "e-" : "e+") + (magnitude.size() < 2 ? "0" : "") + magnitude;
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::optional<double> parse_python_float(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return std::nullopt;
  text = text.substr(first, text.find_last_not_of(kSpace) - first + 1);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  double magnitude = 0;
  if (equals_ignoring_case(text, "inf") || equals_ignoring_case(text, "infinity")) {
    magnitude = std::numeric_limits<double>::infinity();
  } else if (equals_ignoring_case(text, "nan")) {
    magnitude = std::numeric_limits<double>::quiet_NaN();
  } else {
    const std::optional<std::string> decimal = plain_decimal(text);
    if (!decimal) return std::nullopt;
    magnitude = ::strtod_l(decimal->c_str(), nullptr, c_locale());
  }
  return negative ? -magnitude : magnitude;
}

}  // namespace tpce::golden
