// The gpu backend on the host executor: the bits of the scalar backend on the suite of the fingerprint, and what the
// backend promises of workspaces and labels.
#include "gpu/gpu_backend.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gpu/host_device.h"
#include "gpu/staged_backend.h"
#include "gpu/staged_communicator.h"
#include "tests/support/problem.h"
#include "tests/support/two_ranks.h"
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

// A device whose memory is not the host's, for what concerns labels; it counts launches by kernel, and bytes copied to
// it and from it.
class DeviceOfItsOwn final : public HostDevice {
 public:
  explicit DeviceOfItsOwn(DeviceType type = DeviceType::kCuda, const HostDeviceOptions& options = {})
      : HostDevice(options), type_(type) {}

  int launches_of(std::string_view kernel) const {
    const auto found = launches_.find(std::string(kernel));
    return found == launches_.end() ? 0 : found->second;
  }
  // Blocks of a cluster of its last launch.
  int cluster_of(std::string_view kernel) const { return clusters_.at(std::string(kernel)); }
  std::size_t bytes_in() const { return bytes_in_; }
  std::size_t bytes_out() const { return bytes_out_; }

  std::string_view name() const override { return "gpu"; }
  DeviceType type() const override { return type_; }
  void copy_to_device(void* to, const void* from, std::size_t bytes, Queue queue) override {
    bytes_in_ += bytes;
    HostDevice::copy_to_device(to, from, bytes, queue);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, Queue queue) override {
    bytes_out_ += bytes;
    HostDevice::copy_to_host(to, from, bytes, queue);
  }
  void launch(Kernel kernel, const Launch& launch, const void* arguments, Queue queue) override {
    ++launches_[std::string(info_of(kernel).name)];
    clusters_[std::string(info_of(kernel).name)] = launch.cluster;
    HostDevice::launch(kernel, launch, arguments, queue);
  }

 private:
  DeviceType type_;
  std::map<std::string, int> launches_;
  std::map<std::string, int> clusters_;
  std::size_t bytes_in_ = 0;
  std::size_t bytes_out_ = 0;
};

TEST(GpuBackend, RefusesAWorkspaceThatIsNotAligned) {
  Small small;
  auto device = std::make_unique<DeviceOfItsOwn>();
  const DeviceOfItsOwn& launched = *device;
  GpuBackend backend(std::move(device));
  const std::size_t bytes = backend.workspace_bytes(small.batch, {}, 4);
  const Buffer workspace = backend.allocate(bytes + 256);
  const Buffer memory = backend.allocate(4 * Partials::bytes_per_row({}));
  const auto partials = [&](std::size_t behind) {
    return testing::refusal([&] {
      backend.partials(small.batch, {}, {0, 4}, Partials::in(memory.get(), 4, {}),
                       {nullptr, static_cast<char*>(workspace.get()) + behind, bytes});
    });
  };
  EXPECT_EQ(partials(8), "queue: its workspace begins 8 bytes after a multiple of 256, expected at one");
  EXPECT_EQ(launched.launches_of("row_partials_fp32"), 0);
  EXPECT_EQ(partials(256), "accepted");
}

TEST(StagedBackend, CopiesInWhatACallReads) {
  Small small;
  auto device = std::make_unique<DeviceOfItsOwn>();
  const DeviceOfItsOwn& counted = *device;
  StagedBackend backend(std::make_unique<GpuBackend>(std::move(device)));
  const std::size_t bytes = 4 * Partials::bytes_per_row({});
  std::vector<std::byte> memory(bytes);
  const Partials partials = Partials::in(memory.data(), 4, {});
  backend.partials(small.batch, {}, {0, 4}, partials, {});
  const std::size_t of_batch = small.logits.size() * sizeof(float) + small.labels.size() * sizeof(std::int64_t);
  EXPECT_EQ(counted.bytes_in(), of_batch);
  backend.merge(partials, partials, {});
  EXPECT_EQ(counted.bytes_in(), of_batch + 2 * bytes);
  std::vector<SavedRow> saved(4);
  std::vector<float> nll(4);
  backend.finalize(partials, {}, {.rows = 4, .saved = saved.data(), .nll = nll.data()}, {});
  EXPECT_EQ(counted.bytes_in(), of_batch + 3 * bytes);
}

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
          EXPECT_EQ(error.what(),
                    "labels: row 1 has label " + std::to_string(bad) + ", expected 0..5 or ignore_index -100");
        }
      }
    }
  }
}

// Labels of two ranks on their devices, which are not compared beforehand.
TEST(GpuBackend, RanksTellAlikeOfABadLabel) {
  std::array<std::vector<std::string>, 2> logs;
  const auto errors = testing::on_two_ranks(logs, [&](testing::TwoRanks& host) {
    Small small;
    const Place place{DeviceType::kCuda, 0};
    small.plan = ShardPlan::even(6, 2);
    const ConstMatrix logits = matrix_of<const float>(small.logits.data(), 4, 6).column_range(3 * host.rank(), 3);
    small.shards = {{logits, host.rank()}};
    small.shards[0].logits.place = place;
    if (host.rank() == 1) small.labels[1] = 77;
    GpuBackend backend(std::make_unique<DeviceOfItsOwn>());
    StagedCommunicator staged(host, backend.device());
    const Labels labels(small.labels.data(), 4, place);
    cross_entropy_forward({small.plan, small.shards, labels, 6}, {}, {}, {backend, staged});
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "rank 1 of 2: labels: row 1 has label 77, expected 0..5 or ignore_index -100");
  }
}

TEST(GpuBackend, OnlyAMeanReadsLabelsBack) {
  for (const Reduction reduction : {Reduction::kNone, Reduction::kSum, Reduction::kMean}) {
    Small small;
    const Place place{DeviceType::kCuda, 0};
    small.shards[0].logits.place = place;
    auto device = std::make_unique<DeviceOfItsOwn>();
    const DeviceOfItsOwn& counted = *device;
    GpuBackend backend(std::move(device));
    SelfCommunicator self;
    Options options;
    options.reduction = reduction;
    std::vector<float> dz(24);
    Matrix gradient = matrix_of(dz.data(), 4, 6);
    gradient.place = place;
    const Loss loss =
        cross_entropy_forward_backward({small.plan, small.shards, Labels(small.labels.data(), 4, place), 6}, options,
                                       {.gradients = {&gradient, 1}}, {backend, self});
    EXPECT_EQ(loss.valid_rows, 3);
    const bool is_mean = reduction == Reduction::kMean;
    EXPECT_EQ(counted.bytes_out(), sizeof(LossSum) + (is_mean ? 4 * sizeof(std::int64_t) : 0)) << name_of(reduction);
    EXPECT_FLOAT_EQ(dz[1], (is_mean ? 1.0f / 3.0f : 1.0f) / 6.0f) << name_of(reduction);
  }
}

TEST(GpuBackend, ABadLabelAddsNothingToTheSquares) {
  Small small;
  const Place place{DeviceType::kCuda, 0};
  small.shards[0].logits.place = place;
  small.labels[1] = 6;
  GpuBackend backend(std::make_unique<DeviceOfItsOwn>());
  SelfCommunicator self;
  BinnedSum squares;
  EXPECT_THROW(cross_entropy_forward_backward({small.plan, small.shards, Labels(small.labels.data(), 4, place), 6}, {},
                                              {.squares = &squares}, {backend, self}),
               CollectiveError);
  EXPECT_TRUE(squares == BinnedSum{});
}

// Counts what is allocated; memory holds anything at first.
class CountedDevice final : public HostDevice {
 public:
  Buffer allocate(std::size_t bytes) const override {
    ++allocations_;
    Buffer buffer = HostDevice::allocate(bytes);
    std::memset(buffer.get(), 0xcb, bytes);
    return buffer;
  }
  int allocations_since_last() const { return std::exchange(allocations_, 0); }

 private:
  mutable int allocations_ = 0;
};

// Chunks, shards and rows cut into segments, so that every part of a workspace is used.
TEST(GpuBackend, CallsAllocateNothingWithAWorkspace) {
  constexpr std::int64_t kRows = 7, kColumns = 9000;
  std::mt19937_64 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> logits(kRows * kColumns);
  for (float& x : logits) x = normal(random);
  const std::vector<std::int64_t> labels{0, 8999, -100, 4500, 4499, 17, 3};
  const auto device = new CountedDevice;
  GpuBackend backend{std::unique_ptr<Device>(device)};
  SelfCommunicator self;
  struct Found {
    float loss, fused_loss, norm, fused_norm;
    std::vector<float> nll = std::vector<float>(kRows), dz = std::vector<float>(kRows * kColumns), fused_dz = dz;
    std::vector<int> allocations;
  };
  const auto run = [&](int tp, bool with_workspace) {
    const ShardPlan plan = ShardPlan::even(kColumns, tp);
    const ConstMatrix all = matrix_of<const float>(logits.data(), kRows, kColumns);
    Found found;
    const auto matrices = [&](std::vector<float>& memory) {
      std::vector<Matrix> parts;
      for (int r = 0; r < tp; ++r) {
        parts.push_back(matrix_of(memory.data(), kRows, kColumns).column_range(plan.first_class(r), plan.width(r)));
      }
      return parts;
    };
    std::vector<Shard> shards;
    for (int r = 0; r < tp; ++r) shards.push_back({all.column_range(plan.first_class(r), plan.width(r)), r});
    const Batch batch{plan, shards, Labels(labels.data(), kRows), kColumns};
    Runtime runtime{backend, self, 3, {}};
    const std::size_t bytes = workspace_bytes(batch, {}, runtime);
    const Buffer workspace = backend.allocate(bytes);
    if (with_workspace) runtime.queue = {nullptr, workspace.get(), bytes};
    const auto note = [&] { found.allocations.push_back(device->allocations_since_last()); };
    device->allocations_since_last();
    BinnedSum squares, fused_squares;
    const std::vector<Matrix> dz = matrices(found.dz), fused_dz = matrices(found.fused_dz);
    Forward forward = cross_entropy_forward(batch, {}, {.nll = found.nll.data()}, runtime);
    found.loss = forward.loss.value;
    note();
    cross_entropy_backward(forward.saved, {}, dz, runtime, &squares);
    note();
    found.fused_loss =
        cross_entropy_forward_backward(batch, {}, {.gradients = fused_dz, .squares = &fused_squares}, runtime).value;
    note();
    found.norm = gradient_norm(squares);
    found.fused_norm = gradient_norm(fused_squares);
    return found;
  };
  for (const int tp : {1, 2}) {
    const Found expected = run(tp, false);
    const Found found = run(tp, true);
    EXPECT_GT(expected.allocations[0], 1);
    EXPECT_EQ(found.allocations, (std::vector<int>{1, 0, 0}));  // the one is of Saved
    EXPECT_EQ(found.loss, expected.loss);
    EXPECT_EQ(found.fused_loss, expected.loss);
    EXPECT_EQ(found.nll, expected.nll);
    EXPECT_EQ(found.dz, expected.dz);
    EXPECT_EQ(found.fused_dz, expected.dz);
    EXPECT_EQ(found.norm, expected.norm);
    EXPECT_EQ(found.fused_norm, expected.norm);
  }
}

// Labels are any 64 bits, and ignore_index is too.
TEST(GpuBackend, LabelsAtTheEndsOfTheirRange) {
  constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kHighest = std::numeric_limits<std::int64_t>::max();
  std::vector<float> logits(4 * 6, 0.5f), nll(4), dz(24);
  const std::vector<std::int64_t> labels{kLowest, 5, kHighest, kLowest + 1};
  const ShardPlan plan = ShardPlan::even(6, 2);
  const ConstMatrix all = matrix_of<const float>(logits.data(), 4, 6);
  const std::vector<Shard> shards{{all.column_range(0, 3), 0}, {all.column_range(3, 3), 1}};
  const Matrix into = matrix_of(dz.data(), 4, 6);
  const std::vector<Matrix> gradients{into.column_range(0, 3), into.column_range(3, 3)};
  const Batch batch{plan, shards, Labels(labels.data(), 4), 6};
  GpuBackend backend = emulated();
  for (const std::int64_t ignored : {kLowest, kHighest}) {
    const Options options{.ignore_index = ignored};
    const std::size_t bytes = backend.workspace_bytes(batch, options, 4);
    const Buffer workspace = backend.allocate(bytes);
    const Buffer saved = backend.allocate(4 * sizeof(SavedRow));
    backend.forward_backward(batch, options, {.rows = {0, 4}, .saved = nullptr, .upstream = {}, .gradients = gradients},
                             {.rows = 4, .saved = static_cast<SavedRow*>(saved.get()), .nll = nll.data()},
                             {nullptr, workspace.get(), bytes});
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(is_nan(nll[i]), i != 1 && labels[i] != ignored) << i;
      EXPECT_EQ(is_nan(dz[i * 6 + 2]), i != 1 && labels[i] != ignored) << i;
      if (labels[i] == ignored) {
        EXPECT_EQ(dz[i * 6 + 2], 0.0f);
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

// Forward and backward of rows with every kind of value, on one shard that the fused kernel takes.
template <class T>
struct FusedRows {
  std::int64_t columns;
  std::int64_t vocab;
  std::int64_t offset;
  std::vector<T> logits;
  std::vector<std::int64_t> labels;

  FusedRows(std::mt19937_64& random, std::int64_t width) : columns(width), vocab(width), offset(width % 7) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    if (width > 40 && width % 2 == 1) vocab -= 3;  // padding
    const std::vector<float> means{0, -25, 80, 65400, 3e9f, 0, 0, -1e9f};
    for (std::size_t i = 0; i < 32; ++i) {
      labels.push_back(i == 9 ? -100 : static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(vocab)));
      std::normal_distribution<float> normal(means[i % means.size()], i % 3 == 0 ? 0.5f : 4.0f);
      for (std::int64_t j = 0; j < columns; ++j) {
        float z = normal(random);
        if (i == 5 && j % 3 == 0) z = -kInfinity;
        if (i == 13 && j == columns / 2) z = std::numeric_limits<float>::quiet_NaN();
        if (i % 8 == 6 && j == labels[i]) z = 90.0f;
        T rounded;
        round_to(z, &rounded);
        logits.push_back(rounded);
      }
    }
  }

  struct Outcome {
    std::vector<float> nll, lse;
    std::vector<T> gradients;
  };

  Outcome run(Backend& backend, bool in_place) const {
    const auto rows = static_cast<std::int64_t>(labels.size());
    const auto start = static_cast<std::size_t>(offset);
    std::vector<T> memory(start + logits.size()), out(start + logits.size());
    std::copy(logits.begin(), logits.end(), memory.begin() + offset);
    const ShardPlan plan = ShardPlan::even(columns, 1);
    const std::vector<Shard> shards{{matrix_of<const T>(memory.data() + start, rows, columns), 0}};
    std::vector<T>& written = in_place ? memory : out;
    const std::vector<Matrix> gradients{matrix_of(written.data() + start, rows, columns)};
    Outcome outcome{std::vector<float>(labels.size()), std::vector<float>(labels.size()), {}};
    SelfCommunicator self;
    const RowOutputs row_outputs{outcome.nll.data(), outcome.lse.data(), nullptr, nullptr};
    cross_entropy_forward_backward({plan, shards, Labels(labels.data(), rows), vocab}, {},
                                   {.rows = row_outputs, .upstream = {0.7}, .gradients = gradients, .squares = nullptr},
                                   {backend, self});
    outcome.gradients = written;
    return outcome;
  }
};

template <class T>
class FusedKernel : public ::testing::Test {};
using Types = ::testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(FusedKernel, Types);

// Rows by one launch of the fused kernel in clusters of that many blocks, on a device with so much shared memory.
template <class T>
void expect_fused(std::mt19937_64& random, std::int64_t columns, const HostDeviceOptions& options, int cluster) {
  SCOPED_TRACE(std::string(name_of(DTypeOf<T>::value)) + ", " + std::to_string(columns) + " columns, clusters of " +
               std::to_string(cluster));
  const FusedRows<T> rows(random, columns);
  for (const bool in_place : {false, true}) {
    auto device = std::make_unique<DeviceOfItsOwn>(DeviceType::kCpu, options);
    const DeviceOfItsOwn& launched = *device;
    GpuBackend gpu(std::move(device));
    ScalarBackend scalar;
    const auto expected = rows.run(scalar, in_place);
    const auto found = rows.run(gpu, in_place);
    const std::string type(name_of(DTypeOf<T>::value));
    EXPECT_EQ(launched.launches_of("fused_" + type), 1);
    EXPECT_EQ(launched.cluster_of("fused_" + type), cluster);
    EXPECT_EQ(launched.launches_of("gradient_" + type), 0);
    EXPECT_EQ(launched.launches_of("row_partials_" + type), 0);
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
    };
    EXPECT_TRUE(same(expected.nll, found.nll));
    EXPECT_TRUE(same(expected.lse, found.lse));
    EXPECT_TRUE(same(expected.gradients, found.gradients)) << (in_place ? "in place" : "");
  }
}

TYPED_TEST(FusedKernel, HasTheBitsOfTheScalarBackend) {
  using T = TypeParam;
  std::mt19937_64 random(8);
  constexpr int kTile = FusedArguments<T>::Cut::kTile;
  for (const std::int64_t columns : {1, 2, 9, 31, 517, 4101, kTile - 1, kTile + 1, 2 * kTile + 777}) {
    expect_fused<T>(random, columns, {.seed = random()}, 1);
  }
}

// Rows too long for a block, with tiles in every block, a last block of few columns or of padding alone.
TYPED_TEST(FusedKernel, HasTheSameBitsInClusters) {
  using T = TypeParam;
  using Arguments = FusedArguments<T>;
  std::mt19937_64 random(18);
  constexpr int kTile = Arguments::Cut::kTile;
  const HostDeviceOptions small{.seed = 5, .shared_bytes_per_block = Arguments::shared_bytes(kTile)};
  expect_fused<T>(random, kTile + 2, small, 2);
  expect_fused<T>(random, 2 * kTile, small, 2);
  expect_fused<T>(random, 2 * kTile + 1, small, 4);
  expect_fused<T>(random, 4 * kTile - 777, small, 4);
}

// Few rows are cut as well, down to a vector for each thread of a warp: then one block has padding alone, and the last
// have nothing.
TYPED_TEST(FusedKernel, HasTheSameBitsInClustersOfFewColumns) {
  using T = TypeParam;
  std::mt19937_64 random(28);
  for (const std::int64_t columns : {8193, 5 * 8192 + 1}) {
    expect_fused<T>(random, columns, {.seed = 6, .multiprocessors = 256}, columns == 8193 ? 2 : 8);
  }
  constexpr int kStep = FusedArguments<T>::Cut::kStep;
  FusedRows<T> rows(random, 3 * kStep + 1);
  rows.labels = {0, kStep - 1, kStep, 2 * kStep + 1, 3 * kStep - 4, 5};
  rows.logits.resize(rows.labels.size() * static_cast<std::size_t>(rows.columns));
  HostDevice device({.seed = 7});
  const auto count = static_cast<std::int64_t>(rows.labels.size());
  std::vector<T> dz(rows.logits.size());
  std::vector<float> nll(rows.labels.size());
  std::vector<SavedRow> saved(rows.labels.size());
  const FusedArguments<T> arguments{.rows = {.logits = rows.logits.data(),
                                             .row_stride = rows.columns,
                                             .columns = rows.columns,
                                             .classes = rows.vocab,
                                             .first_class = 0,
                                             .labels = {rows.labels.data(), true, -100, rows.vocab},
                                             .saved = nullptr,
                                             .upstream = 0.7 / static_cast<double>(count),  // of the mean
                                             .upstream_of_row = nullptr,
                                             .segments = 8,
                                             .segment_columns = kStep},
                                    .results = {.rows = count, .saved = saved.data(), .nll = nll.data()},
                                    .gradients = dz.data(),
                                    .gradient_stride = rows.columns};
  device.launch(KernelOf<FusedArguments<T>>::value, {8 * count, FusedArguments<T>::shared_bytes(kStep), 8}, &arguments,
                {});
  ScalarBackend scalar;
  rows.offset = 0;
  const auto expected = rows.run(scalar, false);
  EXPECT_EQ(std::memcmp(expected.gradients.data(), dz.data(), dz.size() * sizeof(T)), 0);
  EXPECT_EQ(std::memcmp(expected.nll.data(), nll.data(), nll.size() * sizeof(float)), 0);
}

// What a block of sm_90 holds, tile after tile, and what is just too long for it.
TEST(GpuBackend, TheSmallestClusterThatHoldsARowTakesIt) {
  std::mt19937_64 random(9);
  expect_fused<BFloat16>(random, 114'688, {}, 1);
  expect_fused<BFloat16>(random, 114'690, {}, 2);
}

// A multiprocessor has one block of the fused kernel, so that some more of them than rows want no clusters.
TEST(GpuBackend, RowsForEachMultiprocessorAreNotCut) {
  std::mt19937_64 random(10);
  expect_fused<BFloat16>(random, 20'000, {.multiprocessors = 32}, 1);
  expect_fused<BFloat16>(random, 20'000, {.multiprocessors = 33}, 2);
}

TEST(GpuBackend, RowsThatNoClusterHoldsAreNotFused) {
  std::mt19937_64 random(11);
  struct Case {
    std::int64_t columns;
    int blocks_per_cluster;
  };
  for (const Case& one : {Case{114'690, 1}, Case{230'000, 2}}) {
    const FusedRows<BFloat16> rows(random, one.columns);
    auto device = std::make_unique<DeviceOfItsOwn>(DeviceType::kCpu,
                                                   HostDeviceOptions{.blocks_per_cluster = one.blocks_per_cluster});
    const DeviceOfItsOwn& launched = *device;
    GpuBackend gpu(std::move(device));
    rows.run(gpu, false);
    EXPECT_EQ(launched.launches_of("fused_bf16"), 0) << one.columns;
    EXPECT_EQ(launched.launches_of("gradient_bf16"), 1) << one.columns;
  }
}

}  // namespace
}  // namespace tpce::gpu
