#include "io/sha256.h"

#include <gtest/gtest.h>

#include "tests/support/scratch.h"

namespace tpce::io {
namespace {

// FIPS 180-4's published examples.
TEST(Sha256, GivesThePublishedDigests) {
  EXPECT_EQ(sha256({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  const testing::Scratch scratch;
  EXPECT_EQ(sha256_of_file(scratch.write("a", "abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string longer(33'554'433, 'b');  // three parts of a file
  EXPECT_EQ(sha256_of_file(scratch.write("longer", longer)), sha256(std::as_bytes(std::span(longer))));
  EXPECT_EQ(sha256_of_file(scratch.write("b", "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_of_file(scratch.write("c", std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

}  // namespace
}  // namespace tpce::io
