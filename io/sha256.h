// SHA-256 (FIPS 180-4), by which a golden file names its inputs.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "io/mapped_file.h"

namespace tpce::io {

// 64 lower-case hexadecimal digits, as sha256sum prints them.
std::string sha256(std::span<const std::byte> bytes);

// The same of a file's bytes, a part of which is mapped at a time.
std::string sha256(const InputFile& file);

// The same by its path; errors as InputFile's.
std::string sha256_of_file(const std::string& path);

}  // namespace tpce::io
