// Every exponential that the kernels of every target make equals exp_split() bit for bit: what forward keeps of a row
// shows each of them.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "simd/kernels.h"
#include "tpce/row_partial.h"

namespace tpce::simd {
namespace {

// Floats of one row, neighbours in their bits: none is so far below the others that it would be clamped.
constexpr std::uint32_t kRow = 1024;
// Rows whose values reach 65,000 take the definition itself.
constexpr float kEnd = 64000.0f;

// How many exponentials of the row that begins with these bits differ; the row is [bits, bits + kRow).
std::int64_t mismatches(const Kernels& kernels, ExpCache& cache, std::uint32_t first_bits) {
  float row[kRow];
  for (std::uint32_t i = 0; i < kRow; ++i) row[i] = bit_cast<float>(first_bits + i);
  cache.clear();
  const RowLogits stretch{row, kRow, kRow, -1};
  kernels.partial_of(DType::kFloat32)(std::span(&stretch, 1), BlockSkipping::kOff, &cache);
  std::int64_t seen = 0;
  std::int64_t wrong = 0;
  for (const CachedBlock& block : cache.stretch(0)) {
    for (std::int64_t i = 0; i < block.count; ++i, ++seen) {
      const ExpSplit expected = exp_split(row[block.first + i]);
      const auto shift = static_cast<std::uint32_t>(expected.exponent - kBinBits * block.bin);
      const std::uint32_t bits = bit_cast<std::uint32_t>(expected.mantissa) + (shift << 23);
      if (bits != bit_cast<std::uint32_t>(block.values[i])) ++wrong;
    }
  }
  return wrong + (kRow - seen);
}

// Every stride-th row of both signs, over two threads.
void compare_rows(std::uint32_t stride) {
  const std::uint32_t rows = bit_cast<std::uint32_t>(kEnd) / kRow;
  for (const Target& target : targets()) {
    if (!target.supported || target.name == "portable") continue;  // the portable kernels are exp_split() itself
    const Kernels kernels = kernels_for(target.name);
    std::atomic<std::uint32_t> next{0};
    std::atomic<std::int64_t> wrong{0};
    const auto work = [&] {
      ExpCache cache(kRow + 64);
      for (std::uint32_t i = next++; i < rows / stride; i = next++) {
        for (const std::uint32_t sign : {0u, 0x80000000u})
          wrong += mismatches(kernels, cache, i * stride * kRow + sign);
      }
    };
    {
      const std::jthread other(work);
      work();
    }
    EXPECT_EQ(wrong.load(), 0) << target.name;
  }
}

TEST(Exponentials, OfASampleOfFloats) { compare_rows(997); }

TEST(Exponentials, ExhaustiveOverEveryFloat) { compare_rows(1); }

}  // namespace
}  // namespace tpce::simd
