#include "reference/truth.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace tpce::reference {
namespace {

TEST(Precision, NamesAreReadBack) {
  for (Precision precision : {Precision::kFp64, Precision::kMultiprecision, Precision::kCertified}) {
    EXPECT_EQ(precision_from_name(name_of(precision)), precision);
  }
}

TEST(Precision, UnknownNameIsRefused) {
  try {
    (void)precision_from_name("fp128");
    FAIL() << "accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "precision: got 'fp128', expected fp64, multiprecision or certified");
  }
}

}  // namespace
}  // namespace tpce::reference
