// Text on stdout and stderr, of the first rank alone, and how values are spelled there.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tpce::tools {

// Writes all of the text to stdout. Throws std::runtime_error where it cannot (a full disk, a closed pipe).
void print(std::string_view text);

// One object, indented, and a newline.
void print_json(const nlohmann::ordered_json& json);

// "tpce: <kind>: <message>" on one line of stderr.
void report(std::string_view kind, std::string_view message);

// The bits of an fp32 value, as in "0x3d2957f1".
std::string bits_text(float value);

// The shortest decimal that reads back as the value, or "nan", "inf", "-inf".
std::string number_text(double value);

// The number, or null where JSON has none for it (NaN and infinities).
nlohmann::ordered_json number_json(double value);

}  // namespace tpce::tools
