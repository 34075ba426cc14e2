#include "io/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <stdexcept>

#include "io/mapped_file.h"

namespace tpce::io {

std::string sha256(std::span<const std::byte> bytes) {
  std::array<unsigned char, 32> digest{};
  unsigned length = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, EVP_sha256(), nullptr) != 1 ||
      length != digest.size()) {
    throw std::runtime_error("libcrypto cannot compute SHA-256");
  }
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

std::string sha256_of_file(const std::string& path) { return sha256(MappedFile(path).bytes()); }

}  // namespace tpce::io
