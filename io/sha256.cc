#include "io/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>

namespace tpce::io {
namespace {

constexpr std::size_t kPart = std::size_t{16} << 20;

class Digest {
 public:
  Digest() { check(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr)); }

  void update(std::span<const std::byte> bytes) { check(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size())); }

  std::string text() {
    std::array<unsigned char, 32> digest{};
    check(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr));
    return fmt::format("{:02x}", fmt::join(digest, ""));
  }

 private:
  static void check(int done) {
    if (done != 1) throw std::runtime_error("libcrypto cannot compute SHA-256");
  }

  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_{EVP_MD_CTX_new(), &EVP_MD_CTX_free};
};

}  // namespace

std::string sha256(std::span<const std::byte> bytes) {
  Digest digest;
  digest.update(bytes);
  return digest.text();
}

std::string sha256(const InputFile& file) {
  Digest digest;
  for (std::size_t first = 0; first < file.size(); first += kPart) {
    const std::size_t count = std::min(kPart, file.size() - first);
    const std::shared_ptr<const std::byte> part = file.map(first, count);
    digest.update({part.get(), count});
  }
  return digest.text();
}

std::string sha256_of_file(const std::string& path) { return sha256(InputFile(path)); }

}  // namespace tpce::io
