// The gpu backend on the host executor: the bits of the scalar backend on the suite of the fingerprint, and what the
// backend promises of workspaces and labels.
#include "gpu/gpu_backend.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "gpu/host_device.h"
#include "tools/fingerprint.h"
#include "tpce/cross_entropy.h"
#include "tpce/scalar_backend.h"

namespace tpce::gpu {
namespace {

GpuBackend emulated(const HostDeviceOptions& options = {}) { return GpuBackend(std::make_unique<HostDevice>(options)); }

TEST(GpuBackend, FingerprintIsThatOfEveryBuild) {
  std::ifstream file(TPCE_TEST_DATA "/fingerprint.txt");
  std::string expected;
  file >> expected;
  GpuBackend gpu = emulated({.seed = 3});
  ScalarBackend scalar;
  const std::vector<tools::FingerprintCase> found = tools::fingerprint_cases(gpu);
  const std::vector<tools::FingerprintCase> truth = tools::fingerprint_cases(scalar);
  ASSERT_EQ(found.size(), truth.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].sha256, truth[i].sha256) << found[i].name;
  EXPECT_EQ(tools::fingerprint(found), expected);
}

struct Small {
  std::vector<float> logits = std::vector<float>(4 * 6, 0.5f);
  std::vector<std::int64_t> labels{0, 5, -100, 2};
  ShardPlan plan = ShardPlan::even(6, 1);
  std::vector<Shard> shards{{matrix_of<const float>(logits.data(), 4, 6), 0}};
  Batch batch{plan, shards, Labels(labels.data(), 4), 6};
};

TEST(GpuBackend, SmallerWorkspaceIsRefused) {
  Small small;
  GpuBackend backend = emulated();
  const std::size_t bytes = backend.workspace_bytes(small.batch, {}, 4);
  const Buffer workspace = backend.allocate(bytes);
  const Buffer partials = backend.allocate(4 * Partials::bytes_per_row({}));
  const Buffer saved = backend.allocate(4 * sizeof(SavedRow));
  std::vector<float> nll(4);
  const RowResults results{.rows = 4, .saved = static_cast<SavedRow*>(saved.get()), .nll = nll.data()};
  BinnedSum squares;
  const GradientTask task{.rows = {0, 4}, .saved = results.saved, .upstream = {}, .gradients = {}, .squares = &squares};
  backend.forward_backward(small.batch, {}, task, results, {nullptr, workspace.get(), bytes});
  try {
    backend.forward_backward(small.batch, {}, task, results, {});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::invalid_argument& error) {
    EXPECT_EQ(std::string(error.what()).find("queue: its workspace has 0 bytes, expected at least 256"), 0u)
        << error.what();
  }
}

// The workspace that is asked for is enough for every number of rows up to that, and every shape.
TEST(GpuBackend, WorkspaceIsEnough) {
  for (const int multiprocessors : {1, 5, 132}) {
    GpuBackend backend = emulated({.multiprocessors = multiprocessors});
    for (const std::int64_t columns : {1, 8193, 60000}) {
      std::vector<BFloat16> logits(static_cast<std::size_t>(3 * columns), BFloat16{0x3f80});
      const std::vector<std::int32_t> labels{0, 0, 0};
      const ShardPlan plan = ShardPlan::even(columns, 2);
      const ConstMatrix all = matrix_of<const BFloat16>(logits.data(), 3, columns);
      const std::vector<Shard> shards{{all.column_range(0, plan.width(0)), 0},
                                      {all.column_range(plan.first_class(1), plan.width(1)), 1}};
      const Batch batch{plan, shards, Labels(labels.data(), 3), columns};
      for (std::int64_t rows = 1; rows <= 3; ++rows) {
        const std::size_t bytes = backend.workspace_bytes(batch, {}, 3);
        const Buffer workspace = backend.allocate(bytes);
        const Buffer saved = backend.allocate(3 * sizeof(SavedRow));
        std::vector<float> nll(3);
        BinnedSum squares;
        backend.forward_backward(
            batch, {}, {.rows = {0, rows}, .saved = nullptr, .upstream = {}, .gradients = {}, .squares = &squares},
            {.rows = rows, .saved = static_cast<SavedRow*>(saved.get()), .nll = nll.data()},
            {nullptr, workspace.get(), bytes});
        EXPECT_NEAR(nll[0], std::log(static_cast<double>(columns)), 1e-5) << columns;
      }
    }
  }
}

// A device whose memory is not the host's, for what concerns labels.
class DeviceOfItsOwn final : public Device {
 public:
  std::string_view name() const override { return "gpu"; }
  DeviceType type() const override { return DeviceType::kCuda; }
  const DeviceProperties& properties() const override { return host_.properties(); }
  Buffer allocate(std::size_t bytes) const override { return host_.allocate(bytes); }
  void copy_to_device(void* to, const void* from, std::size_t bytes, Queue queue) override {
    host_.copy_to_device(to, from, bytes, queue);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, Queue queue) override {
    host_.copy_to_host(to, from, bytes, queue);
  }
  void copy_on_device(void* to, const void* from, std::size_t bytes, Queue queue) override {
    host_.copy_on_device(to, from, bytes, queue);
  }
  void launch(Kernel kernel, const Launch& launch, const void* arguments, Queue queue) override {
    host_.launch(kernel, launch, arguments, queue);
  }
  void synchronize(Queue) override {}

 private:
  HostDevice host_;
};

TEST(GpuBackend, LabelsMayBeInEitherMemory) {
  for (const bool on_device : {false, true}) {
    for (const std::int64_t bad : {-1, 6, 77}) {
      Small small;
      const Place place{DeviceType::kCuda, 0};
      small.shards[0].logits.place = place;
      GpuBackend backend(std::make_unique<DeviceOfItsOwn>());
      SelfCommunicator self;
      const auto loss = [&] {
        const Labels labels(small.labels.data(), 4, on_device ? place : Place{});
        return cross_entropy_forward({small.plan, small.shards, labels, 6}, {}, {}, {backend, self}).loss;
      };
      const auto fused = [&] {
        const Labels labels(small.labels.data(), 4, on_device ? place : Place{});
        return cross_entropy_forward_backward({small.plan, small.shards, labels, 6}, {}, {}, {backend, self});
      };
      EXPECT_EQ(loss().valid_rows, 3);
      EXPECT_FLOAT_EQ(loss().value, std::log(6.0f));
      EXPECT_EQ(fused().value, loss().value);
      small.labels[1] = bad;
      for (const bool is_fused : {false, true}) {
        try {
          is_fused ? fused() : loss();
          ADD_FAILURE() << "nothing was thrown";
        } catch (const std::invalid_argument& error) {
          EXPECT_EQ(error.what(), on_device ? "labels: row 1 has a label that is neither a class nor ignore_index -100"
                                            : "labels: row 1 has label " + std::to_string(bad) +
                                                  ", expected 0..5 or ignore_index -100");
        }
      }
    }
  }
}

// A bad label on a device: NaN in its row, and nothing else is touched.
TEST(GpuBackend, RowOfABadLabelIsNan) {
  Small small;
  small.labels[1] = 6;
  GpuBackend backend = emulated();
  const std::size_t bytes = backend.workspace_bytes(small.batch, {}, 4);
  const Buffer workspace = backend.allocate(bytes);
  const Buffer saved = backend.allocate(4 * sizeof(SavedRow));
  std::vector<float> nll(4), dz(24);
  const std::vector<Matrix> gradients{matrix_of(dz.data(), 4, 6)};
  backend.forward_backward(
      small.batch, {}, {.rows = {0, 4}, .saved = nullptr, .upstream = {}, .gradients = gradients, .squares = nullptr},
      {.rows = 4, .saved = static_cast<SavedRow*>(saved.get()), .nll = nll.data()}, {nullptr, workspace.get(), bytes});
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(is_nan(nll[i]), i == 1);
    for (std::size_t j = 0; j < 6; ++j) EXPECT_EQ(is_nan(dz[i * 6 + j]), i == 1);
  }
}

}  // namespace
}  // namespace tpce::gpu
