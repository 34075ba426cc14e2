#include "sim/studies/counting_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "simd/simd_backend.h"
#include "tpce/cross_entropy.h"

namespace {

// Everything that this program has from operator new.
struct Heap {
  std::int64_t held = 0;
  std::int64_t most = 0;
};
thread_local Heap heap;

constexpr std::size_t kHeader = 64;

void* counted_new(std::size_t bytes) {
  char* const memory =
      static_cast<char*>(std::aligned_alloc(kHeader, (kHeader + bytes + kHeader - 1) / kHeader * kHeader));
  if (memory == nullptr) throw std::bad_alloc();
  std::memcpy(memory, &bytes, sizeof bytes);
  heap.held += static_cast<std::int64_t>(bytes);
  heap.most = std::max(heap.most, heap.held);
  return memory + kHeader;
}

void counted_delete(void* memory) {
  if (memory == nullptr) return;
  char* const start = static_cast<char*>(memory) - kHeader;
  std::size_t bytes = 0;
  std::memcpy(&bytes, start, sizeof bytes);
  heap.held -= static_cast<std::int64_t>(bytes);
  std::free(start);
}

}  // namespace

void* operator new(std::size_t bytes) { return counted_new(bytes); }
void* operator new(std::size_t bytes, std::align_val_t) { return counted_new(bytes); }
void operator delete(void* memory) noexcept { counted_delete(memory); }
void operator delete(void* memory, std::size_t) noexcept { counted_delete(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { counted_delete(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { counted_delete(memory); }

namespace tpce::sim {
namespace {

TEST(CountingBackend, CountsWhatIsHeldAtOneTime) {
  simd::SimdBackend simd({.target = {}, .threads = 1});
  CountingBackend backend(simd);
  const Buffer kept = backend.allocate(1000);
  EXPECT_EQ(backend.most(), 1000);
  backend.start();
  EXPECT_EQ(backend.most(), 0);
  {
    const Buffer first = backend.allocate(10);
    const Buffer second = backend.allocate(20);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(second.get()) % 64, 0u);
    std::memset(second.get(), 0xff, 20);
  }
  EXPECT_EQ(backend.most(), 30);
  const Buffer third = backend.allocate(29);
  EXPECT_EQ(backend.most(), 30);
  backend.start();
  EXPECT_EQ(backend.most(), 0);
}

// The most that a loss, and its gradient if that is asked for, hold at one time: by every call of operator new, and as
// it is counted.
struct Held {
  std::int64_t all = 0;
  std::int64_t counted = 0;
};

Held held_by_loss(std::int64_t rows, std::int64_t vocab, bool with_gradient) {
  std::vector<float> logits(static_cast<std::size_t>(rows * vocab));
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 2654435761u % 1000) * 0x1p-7f;
  const std::vector<std::int64_t> labels(static_cast<std::size_t>(rows), 7);
  const ShardPlan plan = ShardPlan::even(vocab, 1);
  const std::vector<Shard> shards{{matrix_of(static_cast<const float*>(logits.data()), rows, vocab), 0}};
  const Batch batch{plan, shards, Labels(labels.data(), rows), vocab};
  simd::SimdBackend simd({.target = {}, .threads = 1});
  CountingBackend backend(simd);
  SelfCommunicator self;
  const Runtime runtime{backend, self};
  backend.start();
  const std::int64_t before = heap.most = heap.held;
  Forward forward = cross_entropy_forward(batch, {}, {}, runtime);
  if (!with_gradient) return {heap.most - before, backend.most()};
  const Buffer gradient = backend.allocate(logits.size() * sizeof(float));
  const std::vector<Matrix> gradients{matrix_of(static_cast<float*>(gradient.get()), rows, vocab)};
  cross_entropy_backward(forward.saved, {}, gradients, runtime);
  return {heap.most - before, backend.most()};
}

// What is asked for elsewhere is little, and grows with neither the rows, of which a loss keeps 24 bytes each, nor the
// classes.
TEST(CountingBackend, MissesNothingThatGrowsWithTheProblem) {
  held_by_loss(1, 8, true);  // what is made once, by the first call
  for (const bool with_gradient : {false, true}) {
    const auto uncounted = [&](std::int64_t rows, std::int64_t vocab) {
      const Held held = held_by_loss(rows, vocab, with_gradient);
      return held.all - held.counted;
    };
    const std::int64_t least = uncounted(64, 2000);
    EXPECT_GE(least, 0);
    EXPECT_LE(least, 4096);
    EXPECT_EQ(uncounted(1024, 2000), least);
    EXPECT_EQ(uncounted(64, 32000), least);
  }
}

}  // namespace
}  // namespace tpce::sim
