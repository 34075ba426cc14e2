#include "sim/studies/errors.h"

#include <gtest/gtest.h>

namespace tpce::sim {
namespace {

TEST(Errors, TheLargestIsNanOnceOneIs) {
  const double nan = std::nan("");
  EXPECT_EQ(larger(1.0, 2.0), 2.0);
  EXPECT_EQ(larger(2.0, 1.0), 2.0);
  EXPECT_TRUE(std::isnan(larger(nan, 1.0)));
  EXPECT_TRUE(std::isnan(larger(1.0, nan)));

  ErrorStatistics errors;
  errors.add(3.0);
  errors.add(4.0);
  EXPECT_EQ(errors.largest, 4.0);
  EXPECT_EQ(errors.rms(), std::sqrt(12.5));
  errors.add(nan);
  errors.add(1.0);
  EXPECT_TRUE(std::isnan(errors.largest));
  EXPECT_TRUE(std::isnan(errors.rms()));
}

TEST(Errors, UlpsAreThoseOfTheExactValue) {
  EXPECT_EQ(ulps_apart(1.0L + 0x1p-23L, 1.0L, 24), 1.0);
  EXPECT_EQ(ulps_apart(1.0L, 1.0L + 0x1p-23L, 24), 1.0);
  EXPECT_EQ(ulps_apart(1.0L, 0.75L, 3), 2.0);  // an ulp of 3/4 at 3 bits is 1/8
}

}  // namespace
}  // namespace tpce::sim
