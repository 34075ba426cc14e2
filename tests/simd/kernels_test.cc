#include "simd/kernels.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace tpce::simd {
namespace {

TEST(Targets, BestComesFirstAndOneAtLeastRuns) {
  const std::vector<Target> found = targets();
  bool any = false;
  std::string best;
  for (const Target& target : found) {
    if (target.supported && !any) best = target.name;
    any = any || target.supported;
  }
  ASSERT_TRUE(any);
  EXPECT_EQ(kernels_for("").name, best);
}

TEST(Targets, RefusesOneThatIsNotThere) {
  try {
    kernels_for("AVX9");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("AVX9"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find(std::string(kernels_for("").name)), std::string::npos);
  }
}

// A page that may not be touched on either side of `bytes` bytes, which end (or begin) where it begins (or ends).
class Guarded {
 public:
  Guarded(std::size_t bytes, bool at_end) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t inner = (bytes + page - 1) / page * page;
    size_ = inner + 2 * page;
    base_ = static_cast<char*>(mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + page, inner, PROT_READ | PROT_WRITE);
    data_ = base_ + page + (at_end ? inner - bytes : 0);
  }
  ~Guarded() { munmap(base_, size_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  void* data() const { return data_; }

 private:
  char* base_;
  char* data_;
  std::size_t size_;
};

template <class T>
void expect_no_access_beyond_the_row(const Kernels& kernels) {
  std::mt19937_64 random(11);
  std::normal_distribution<float> normal(0, 3);
  for (std::int64_t width = 1; width <= 140; ++width) {
    for (const bool at_end : {false, true}) {
      const std::size_t bytes = static_cast<std::size_t>(width) * sizeof(T);
      const Guarded logits(bytes, at_end);
      const Guarded gradients(bytes, at_end);
      auto* z = static_cast<T*>(logits.data());
      for (std::int64_t j = 0; j < width; ++j) round_to(normal(random), &z[j]);
      for (const std::int64_t target : {std::int64_t{-1}, std::int64_t{0}, width / 2, width - 1}) {
        const RowLogits row{z, width, width, target};
        const DType dtype = DTypeOf<T>::value;
        RowPartial partial = kernels.partial_of(dtype)(std::span(&row, 1), BlockSkipping::kOn, nullptr);
        EXPECT_TRUE(partial == row_partial(z, width, target));
        partial.flags |= RowPartial::kTargetHere;
        const RowGradient gradient = row_gradient(finalize(partial).saved, 1.0);
        kernels.gradient_of(dtype, dtype)(row, gradient, gradients.data(), nullptr, {});
        std::vector<T> expected(static_cast<std::size_t>(width));
        for (std::int64_t j = 0; j < width; ++j) {
          round_to(j == target ? gradient.target : non_target_gradient(gradient, widen(z[j])),
                   &expected[static_cast<std::size_t>(j)]);
        }
        EXPECT_EQ(std::memcmp(expected.data(), gradients.data(), bytes), 0);
      }
    }
  }
}

TEST(Kernels, TouchNothingBeyondTheRow) {
  for (const Target& target : targets()) {
    if (!target.supported) continue;
    SCOPED_TRACE(target.name);
    const Kernels kernels = kernels_for(target.name);
    expect_no_access_beyond_the_row<float>(kernels);
    expect_no_access_beyond_the_row<BFloat16>(kernels);
    expect_no_access_beyond_the_row<Float16>(kernels);
  }
}

}  // namespace
}  // namespace tpce::simd
