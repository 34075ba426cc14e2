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

// Next to nothing of what a loss holds is asked for elsewhere: held against every call of operator new.
TEST(CountingBackend, MissesNothingThatGrowsWithTheProblem) {
  constexpr std::int64_t kRows = 64, kVocab = 32000;
  std::vector<float> logits(kRows * kVocab);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 2654435761u % 1000) * 0x1p-7f;
  const std::vector<std::int64_t> labels(kRows, 7);
  const ShardPlan plan = ShardPlan::even(kVocab, 1);
  const std::vector<Shard> shards{{matrix_of(static_cast<const float*>(logits.data()), kRows, kVocab), 0}};
  const Batch batch{plan, shards, Labels(labels.data(), kRows), kVocab};
  simd::SimdBackend simd({.target = {}, .threads = 1});
  CountingBackend backend(simd);
  SelfCommunicator self;
  const Runtime runtime{backend, self};
  backend.start();
  const std::int64_t before = heap.most = heap.held;
  {
    Forward forward = cross_entropy_forward(batch, {}, {}, runtime);
    const Buffer gradient = backend.allocate(logits.size() * sizeof(float));
    const std::vector<Matrix> gradients{matrix_of(static_cast<float*>(gradient.get()), kRows, kVocab)};
    cross_entropy_backward(forward.saved, {}, gradients, runtime);
  }
  const std::int64_t all = heap.most - before;
  EXPECT_GE(all, backend.most());
  EXPECT_LE(all - backend.most(), 4096);
}

}  // namespace
}  // namespace tpce::sim
