// Kernels on a device against tpce/, bit for bit: on the host executor always, on a GPU where there is one. The tests
// whose names begin with Small are short enough for compute-sanitizer.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gpu/gpu_backend.h"
#include "gpu/staged_backend.h"
#include "tests/gpu/each_device.h"
#include "tests/gpu/row_partials_call.h"
#include "tpce/cross_entropy.h"
#include "tpce/row_partial.h"
#include "tpce/scalar_backend.h"

namespace tpce::gpu {
namespace {

// A copy of host memory on the device, and back.
template <class T>
class OnDevice {
 public:
  OnDevice(Device& device, const std::vector<T>& values)
      : device_(device), count_(values.size()), memory_(device.allocate(count_ * sizeof(T))) {
    device.copy_to_device(memory_.get(), values.data(), count_ * sizeof(T), {});
    device.synchronize({});
  }
  T* data() const { return static_cast<T*>(memory_.get()); }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    device_.copy_to_host(values.data(), data(), count_ * sizeof(T), {});
    return values;
  }

 private:
  Device& device_;
  std::size_t count_;
  Buffer memory_;
};

class GpuDevice : public EachDevice {};
INSTANTIATE_TEST_SUITE_P(Devices, GpuDevice, each_device(), name_of_device);

// Rows of normal logits, the label of row i at class 7 i, read from `offset` elements behind an aligned address.
template <class T>
void expect_partials(Device& device, std::int64_t rows, std::int64_t columns, std::int64_t offset,
                     std::int64_t segments) {
  std::mt19937_64 random(static_cast<std::uint64_t>(columns));
  std::normal_distribution<float> normal(0.0f, 4.0f);
  const std::int64_t stride = columns + offset;
  std::vector<T> logits(static_cast<std::size_t>(offset + rows * stride));
  for (T& logit : logits) round_to(normal(random), &logit);
  std::vector<std::int64_t> labels(static_cast<std::size_t>(rows));
  for (std::int64_t i = 0; i < rows; ++i) labels[static_cast<std::size_t>(i)] = 7 * i % columns;

  const OnDevice on_logits(device, logits);
  const OnDevice on_labels(device, labels);
  const std::vector<char> nothing(static_cast<std::size_t>(rows * segments) * Partials::bytes_per_row({}));
  const OnDevice on_partials(device, nothing);
  auto arguments =
      testing::row_partials_arguments(on_logits.data() + offset, columns, {on_labels.data(), true, -100, columns}, rows,
                                      Partials::in(on_partials.data(), rows * segments, {}));
  arguments.row_stride = stride;
  testing::launch(device, arguments);

  std::vector<char> bytes = on_partials.read();
  const Partials found = Partials::in(bytes.data(), rows * segments, {});
  for (std::int64_t i = 0; i < rows; ++i) {
    const RowPartial merged = testing::merged_segments(found, rows, i);
    const RowPartial expected =
        row_partial(logits.data() + offset + i * stride, columns, labels[static_cast<std::size_t>(i)]);
    ASSERT_TRUE(merged == expected) << "row " << i << " of " << rows << " x " << columns << ", offset " << offset
                                    << ", segments " << segments;
  }
}

TEST_P(GpuDevice, SmallRowPartials) {
  for (const std::int64_t columns : {1, 9, 1000, 5003}) {
    expect_partials<float>(*device_, 3, columns, columns % 3, 1);
    expect_partials<BFloat16>(*device_, 3, columns, columns % 5, 2);
    expect_partials<Float16>(*device_, 3, columns, columns % 7, 1);
  }
}

TEST_P(GpuDevice, RowPartialsOfAWholeVocabulary) {
  if (emulated()) {
    expect_partials<BFloat16>(*device_, 1, 64128, 0, 1);
    return;
  }
  // Rows enough to fill the device several times over.
  expect_partials<BFloat16>(*device_, 1024, 64128, 0, 1);
  expect_partials<BFloat16>(*device_, 5, 262144, 1, 16);
  expect_partials<float>(*device_, 512, 64128, 0, 1);
  expect_partials<Float16>(*device_, 512, 32000, 3, 1);
}

template <class T>
struct Outcome {
  std::vector<float> nll;
  std::vector<float> lse;
  std::vector<T> gradients;
};

// Of normal logits, all rows in one chunk; in place by one call, which may take one kernel, else by two.
template <class T>
Outcome<T> outcome_of(Backend& backend, std::int64_t rows, std::int64_t columns, bool in_place) {
  std::mt19937_64 random(static_cast<std::uint64_t>(columns));
  std::normal_distribution<float> normal(0.0f, 4.0f);
  std::vector<T> stretch(65521);
  for (T& logit : stretch) round_to(normal(random), &logit);
  std::vector<T> logits(static_cast<std::size_t>(rows * columns));
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = stretch[i % stretch.size()];
  std::vector<std::int64_t> labels(static_cast<std::size_t>(rows));
  for (std::int64_t i = 0; i < rows; ++i) labels[static_cast<std::size_t>(i)] = 7919 * i % columns;

  Outcome<T> outcome{std::vector<float>(labels.size()), std::vector<float>(labels.size()), {}};
  if (!in_place) outcome.gradients.resize(logits.size());
  const ShardPlan plan = ShardPlan::even(columns, 1);
  const std::vector<Shard> shards{{matrix_of<const T>(logits.data(), rows, columns), 0}};
  const Batch batch{plan, shards, Labels(labels.data(), rows), columns};
  const RowOutputs row_outputs{outcome.nll.data(), outcome.lse.data(), nullptr, nullptr};
  const std::vector<Matrix> gradients{matrix_of(in_place ? logits.data() : outcome.gradients.data(), rows, columns)};
  SelfCommunicator self;
  const Runtime runtime{backend, self, rows};
  if (in_place) {
    cross_entropy_forward_backward(
        batch, {}, {.rows = row_outputs, .upstream = {0.7}, .gradients = gradients, .squares = nullptr}, runtime);
    outcome.gradients = std::move(logits);
  } else {
    Forward forward = cross_entropy_forward(batch, {}, row_outputs, runtime);
    cross_entropy_backward(forward.saved, {0.7}, gradients, runtime);
  }
  return outcome;
}

template <class T>
void expect_outcome(Backend& backend, std::int64_t rows, std::int64_t columns) {
  ScalarBackend scalar;
  const Outcome<T> expected = outcome_of<T>(scalar, rows, columns, false);
  const auto same = [](const auto& a, const auto& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
  };
  for (const bool in_place : {false, true}) {
    const Outcome<T> found = outcome_of<T>(backend, rows, columns, in_place);
    EXPECT_TRUE(same(expected.nll, found.nll)) << rows << " x " << columns << (in_place ? " in place" : "");
    EXPECT_TRUE(same(expected.lse, found.lse)) << rows << " x " << columns << (in_place ? " in place" : "");
    EXPECT_TRUE(same(expected.gradients, found.gradients)) << rows << " x " << columns << (in_place ? " in place" : "");
  }
}

TEST_P(GpuDevice, SmallGradients) {
  StagedBackend backend(std::make_unique<GpuBackend>(std::move(device_)));
  for (const std::int64_t columns : {1, 9, 1001, 5003}) {
    expect_outcome<float>(backend, 3, columns);
    expect_outcome<BFloat16>(backend, 3, columns);
    expect_outcome<Float16>(backend, 3, columns);
  }
}

// Rows so many that none is cut, so that blocks walk all tiles of one. In place, where there are clusters, a row of
// 64128 logits takes one block of bf16 and two of fp32, longer ones up to eight; 114688 fill a block.
TEST_P(GpuDevice, GradientsOfAWholeVocabulary) {
  const bool is_emulated = emulated();
  const std::int64_t rows = 8 * device_->properties().multiprocessors;
  StagedBackend backend(std::make_unique<GpuBackend>(std::move(device_)));
  if (is_emulated) {
    expect_outcome<BFloat16>(backend, rows, 17001);
    expect_outcome<float>(backend, 2, 128256);
    return;
  }
  expect_outcome<BFloat16>(backend, rows, 64128);
  expect_outcome<BFloat16>(backend, rows / 2, 114688);
  expect_outcome<float>(backend, rows, 64128);
  expect_outcome<BFloat16>(backend, rows / 2, 128256);
  expect_outcome<Float16>(backend, rows / 4, 262144);
  expect_outcome<float>(backend, rows / 8, 262144);
}

// Several tiles of a thread, which take turns in shared memory.
TEST_P(GpuDevice, SmallRowPartialsOfSeveralTiles) {
  expect_partials<BFloat16>(*device_, 2, 3 * 8192 + 5, 1, 1);
  expect_partials<float>(*device_, 2, 3 * 4096 + 5, 1, 1);
}
TEST_P(GpuDevice, SmallGradientsOfSeveralTiles) {
  const std::int64_t rows = device_->properties().multiprocessors;  // none is cut
  StagedBackend backend(std::make_unique<GpuBackend>(std::move(device_)));
  expect_outcome<BFloat16>(backend, rows, 5 * 16384 + 7);
  expect_outcome<float>(backend, rows, 5 * 8192 + 7);
}

// Without room for clusters, rows would be taken by two kernels, with the same bits and unseen by the tests below.
TEST_P(GpuDevice, SmallClustersHaveRoom) {
  using Arguments = FusedArguments<float>;
  for (int cluster = 2; cluster <= device_->properties().blocks_per_cluster; cluster *= 2) {
    constexpr std::int64_t kWholeTiles = 7 * Arguments::Cut::kTile;
    EXPECT_TRUE(device_->has_room(KernelOf<Arguments>::value, {cluster, Arguments::shared_bytes(kWholeTiles), cluster}))
        << cluster;
  }
}

// Few rows in clusters, of which some blocks have a part of a tile, short enough for compute-sanitizer.
TEST_P(GpuDevice, SmallGradientsInClusters) {
  StagedBackend backend(std::make_unique<GpuBackend>(std::move(device_)));
  for (const std::int64_t columns : {8193, 20001, 40011}) {
    expect_outcome<float>(backend, 2, columns);
    expect_outcome<BFloat16>(backend, 2, columns);
  }
}

}  // namespace
}  // namespace tpce::gpu
