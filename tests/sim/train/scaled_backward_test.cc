#include "sim/train/scaled_backward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "sim/train/mlp.h"

namespace tpce::sim {
namespace {

TEST(GradientScale, IsAPowerOfTwoThatBringsGradientsUp) {
  for (const float largest : {1.0f, 0x1p-41f, 0x1.8p-60f, 0x1p-126f, std::numeric_limits<float>::denorm_min()}) {
    const float scale = gradient_scale(largest);
    int exponent = 0;
    EXPECT_EQ(std::frexp(scale, &exponent), 0.5f) << largest;
    EXPECT_EQ(scale * (1.0f / scale), 1.0f);
    EXPECT_TRUE(std::isnormal(1.0f / scale));
  }
  EXPECT_EQ(std::ilogb(0x1.8p-60f * gradient_scale(0x1.8p-60f)), 64);
  // A row that is known beside one that is not.
  EXPECT_TRUE(std::isnormal(std::numeric_limits<float>::denorm_min() * gradient_scale(1.0f)));
}

TEST(GradientScale, LeavesZeroAndLargeGradientsAlone) {
  for (const float largest : {0.0f, 0x1.8p64f, std::numeric_limits<float>::max()}) {
    EXPECT_EQ(gradient_scale(largest), 1.0f) << largest;
  }
}

TEST(LargestFinite, LeavesOutWhatIsNotFinite) {
  float values[] = {-3.0f, INFINITY, 99.0f, 2.0f, NAN, 99.0f};
  EXPECT_EQ(largest_finite({values, 2, 2, 3}), 3.0f);
  EXPECT_EQ(largest_finite({values + 1, 1, 1}), 0.0f);
}

class ScaledBackward : public testing::Test {
 protected:
  // Gradients of the parameters from those of the logits, the largest of which is 2^exponent.
  std::vector<float> gradients_for(int exponent, bool scaled) {
    const View<float> logits = model_.forward(parameters_.data(), tokens_, executor_);
    for (std::int64_t i = 0; i < logits.rows; ++i) {
      for (std::int64_t j = 0; j < logits.cols; ++j) {
        // Of 24 bits and over some binades.
        logits.row(i)[j] = static_cast<float>(std::ldexp(std::sin(1.0 + static_cast<double>(i * logits.cols + j)),
                                                         exponent - static_cast<int>((i + j) % 8)));
      }
    }
    std::vector<float> gradients(parameters_.size());
    if (scaled) {
      scaled_backward(model_, parameters_, logits, gradients, executor_);
    } else {
      model_.backward(parameters_.data(), logits, gradients.data(), executor_);
    }
    return gradients;
  }

  std::vector<std::int32_t> numbers_ = {0, 5, 1, 6, 2, 7, 3, 8, 4, 9, 0, 9};
  Tokens tokens_{numbers_, 2};
  Mlp<float> model_{MlpShape{10, {7, 5}, 11}};
  InlineExecutor executor_;
  std::vector<float> parameters_ = initial_parameters(model_.layout(), 3);
};

TEST_F(ScaledBackward, HasTheBitsOfBackwardWhereNothingIsSubnormal) {
  EXPECT_EQ(gradients_for(0, true), gradients_for(0, false));
  EXPECT_EQ(gradients_for(-60, true), gradients_for(-60, false));
}

TEST_F(ScaledBackward, RoundsASubnormalGradientOnce) {
  const std::vector<float> normal = gradients_for(0, false);
  const std::vector<float> small = gradients_for(-130, true);
  int differ = 0;
  const std::vector<float> plain = gradients_for(-130, false);
  for (std::size_t i = 0; i < normal.size(); ++i) {
    // The gradients of the logits are rounded to multiples of 2^-149 themselves: an error of half of one in each of at
    // most 12 rows and 11 columns, times weights and activations below 1, and one more of the result.
    EXPECT_NEAR(std::ldexp(static_cast<double>(small[i]), 130), static_cast<double>(normal[i]),
                std::ldexp(0.5 * 12 * 11 + 0.5, 130 - 149));
    differ += small[i] != plain[i] ? 1 : 0;
  }
  EXPECT_GT(differ, 0) << "without the factor the sums round too: else this test would see nothing";
}

}  // namespace
}  // namespace tpce::sim
