// Floating-point numbers as Python spells and reads them: the text of every golden file.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tpce::golden {

// repr(value): the shortest digits that read back as value, in positional form where 1e-4 <= |value| < 1e16 and with an
// exponent of at least two digits elsewhere; always with ".0", an exponent, "inf" or "nan" to tell it from an integer.
// Every NaN is "nan".
std::string python_repr(double value);

// repr(float(value)) of an fp32 number: the shortest digits of the widened double, which may be 17.
inline std::string python_repr(float value) { return python_repr(static_cast<double>(value)); }

// float(text), or nothing where Python raises ValueError. White space around and single underscores between digits are
// allowed; what is too large is infinite. Only ASCII digits and white space, of all that Unicode has.
std::optional<double> parse_python_float(std::string_view text);

}  // namespace tpce::golden
