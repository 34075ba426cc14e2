// SHA-256 (FIPS 180-4), by which a golden file names its inputs.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace tpce::io {

// 64 lower-case hexadecimal digits, as sha256sum prints them.
std::string sha256(std::span<const std::byte> bytes);

// The same of a file's bytes; errors as MappedFile's.
std::string sha256_of_file(const std::string& path);

}  // namespace tpce::io
