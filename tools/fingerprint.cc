#include "tools/fingerprint.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <utility>

#include "io/sha256.h"
#include "tpce/cross_entropy.h"

namespace tpce::tools {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Sebastiano Vigna's splitmix64, https://prng.di.unimi.it/splitmix64.c
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // Multiples of 2^-53 in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  // Nearly normal, of mean 0 and variance 1: twelve uniforms less 6.
  double normal() {
    double sum = -6.0;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

 private:
  std::uint64_t state_;
};

// Values as little-endian bytes, whatever the machine's order.
class Bytes {
 public:
  void put(std::uint64_t value, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) bytes_.push_back(static_cast<std::byte>((value >> (8 * i)) & 0xffu));
  }
  void put(std::int64_t value) { put(static_cast<std::uint64_t>(value), 8); }
  void put(float value) { put(std::bit_cast<std::uint32_t>(value), 4); }
  void put(double value) { put(std::bit_cast<std::uint64_t>(value), 8); }
  void put(BFloat16 value) { put(value.bits, 2); }
  void put(Float16 value) { put(value.bits, 2); }
  template <class T>
  void put_all(const std::vector<T>& values) {
    for (const T& value : values) put(value);
  }
  std::span<const std::byte> view() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

struct Case {
  std::string name;
  std::int64_t columns = 0;
  std::vector<float> logits = {};  // [T, columns], rounded to each dtype before use
  std::vector<std::int64_t> labels = {};
  Options options = {};
  std::int64_t padding = 0;  // columns at the end that are no classes
  double upstream = 1.0;
  std::vector<float> per_row_upstream = {};
};

template <class Logit>
struct Run {
  const Case& test;
  const ShardPlan& plan;
  Runtime runtime;

  std::int64_t rows() const { return static_cast<std::int64_t>(test.labels.size()); }

  template <class T>
  auto shards_of(T* data) const {
    using View = decltype(matrix_of(data, 0, 0));
    std::vector<View> shards;
    for (std::int64_t s = 0; s < plan.tp(); ++s) {
      shards.push_back(matrix_of(data, rows(), test.columns).column_range(plan.first_class(s), plan.width(s)));
    }
    return shards;
  }

  template <class Gradient>
  void put_gradient(Forward& forward, Bytes& bytes) const {
    std::vector<Gradient> gradient(test.logits.size());
    const std::vector<Matrix> out = shards_of(gradient.data());
    BinnedSum squares;
    const Upstream upstream{.scalar = test.upstream,
                            .per_row = test.per_row_upstream.empty() ? nullptr : test.per_row_upstream.data()};
    cross_entropy_backward(forward.saved, upstream, out, runtime, &squares);
    bytes.put_all(gradient);
    bytes.put(gradient_norm(squares));
  }

  std::string sha256() const {
    std::vector<Logit> logits(test.logits.size());
    for (std::size_t i = 0; i < logits.size(); ++i) round_to(test.logits[i], &logits[i]);
    std::vector<Shard> shards;
    for (const ConstMatrix& shard : shards_of(static_cast<const Logit*>(logits.data()))) {
      shards.push_back({shard, static_cast<std::int64_t>(shards.size())});
    }
    const Batch batch{plan, shards, Labels(test.labels.data(), rows()), test.columns - test.padding};

    const auto count = static_cast<std::size_t>(rows());
    std::vector<float> nll(count), lse(count);
    std::vector<double> nll_fp64(count), lse_fp64(count);
    Forward forward =
        cross_entropy_forward(batch, test.options, {nll.data(), lse.data(), nll_fp64.data(), lse_fp64.data()}, runtime);
    Bytes bytes;
    bytes.put_all(nll);
    bytes.put_all(lse);
    bytes.put_all(nll_fp64);
    bytes.put_all(lse_fp64);
    bytes.put(forward.loss.value_fp64);
    bytes.put(forward.loss.value);
    bytes.put(forward.loss.rows);
    bytes.put(forward.loss.valid_rows);
    put_gradient<float>(forward, bytes);
    put_gradient<double>(forward, bytes);
    put_gradient<BFloat16>(forward, bytes);
    put_gradient<Float16>(forward, bytes);
    return io::sha256(bytes.view());
  }
};

Case random_case(std::string name, std::int64_t columns, double deviation, double offset) {
  constexpr std::int64_t kRows = 3;
  Case test{.name = std::move(name), .columns = columns};
  SplitMix64 random(static_cast<std::uint64_t>(columns) * 1000003 + test.name.size());
  for (std::int64_t i = 0; i < kRows * columns; ++i) {
    test.logits.push_back(static_cast<float>(random.normal() * deviation + offset));
  }
  // Targets first, last, and somewhere between.
  test.labels = {0, columns - 1, static_cast<std::int64_t>(random.next() % static_cast<std::uint64_t>(columns))};
  return test;
}

Case row_case(std::string name, std::vector<float> logits, std::int64_t label) {
  const auto columns = static_cast<std::int64_t>(logits.size());
  return {.name = std::move(name), .columns = columns, .logits = std::move(logits), .labels = {label}};
}

void add_shapes(std::vector<Case>& cases) {
  for (const std::int64_t columns : {1, 2, 3, 1017, 50257}) {
    for (const double deviation : {1.0, 10.0}) {
      cases.push_back(random_case(fmt::format("random V={} std={}", columns, deviation), columns, deviation, 0.0));
    }
  }
  for (const double offset : {1e2, 65500.0, 1e6, 1e8, -1e8, 0x1p30}) {
    cases.push_back(random_case(fmt::format("offset {}", offset), 257, 3.0, offset));
  }
  cases.push_back(random_case("all equal", 1017, 0.0, 1.5));
}

void add_margins(std::vector<Case>& cases) {
  std::vector<float> margins{16.5f, 20.0f, 88.0f, 103.9f, 104.5f};
  const float collapse = std::bit_cast<float>(0x41851593u);  // 24 ln 2
  for (const float neighbour : {0.0f, kInfinity}) margins.push_back(std::nextafter(collapse, neighbour));
  margins.push_back(collapse);
  for (int margin = -100; margin <= 104; margin += 6) margins.push_back(static_cast<float>(margin));

  // One row a margin; with two classes the target's logit is the margin.
  Case pair{.name = "margins V=2", .columns = 2};
  Case many{.name = "margins V=129", .columns = 129};
  SplitMix64 random(20);
  for (const float margin : margins) {
    pair.logits.insert(pair.logits.end(), {margin, 0.0f});
    pair.labels.push_back(0);
    for (std::int64_t j = 0; j < many.columns; ++j) many.logits.push_back(static_cast<float>(random.normal()));
    const std::int64_t target = static_cast<std::int64_t>(random.next() % 129);
    many.logits[many.logits.size() - 129 + static_cast<std::size_t>(target)] = margin + 5.5f;
    many.labels.push_back(target);
  }
  cases.push_back(std::move(pair));
  cases.push_back(std::move(many));
}

// Every row of the case table of docs/numerics.md, section 5, and every class of section 4.
void add_case_table(std::vector<Case>& cases) {
  cases.push_back(row_case("V=1", {3.25f}, 0));
  cases.push_back(row_case("V=1, target -inf", {-kInfinity}, 0));
  cases.push_back(row_case("no other above -inf", {-kInfinity, -2.5f, -kInfinity}, 1));
  cases.push_back(row_case("nothing above -inf", {-kInfinity, -kInfinity, -kInfinity}, 1));
  cases.push_back(row_case("target -inf", {0.5f, -kInfinity, 1.5f, 2.0f}, 1));
  cases.push_back(row_case("another -inf", {0.5f, -kInfinity, 1.5f, 2.0f}, 2));
  cases.push_back(row_case("NaN beside the target", {0.5f, kNan, 1.5f}, 0));
  cases.push_back(row_case("NaN at the target", {0.5f, kNan, 1.5f}, 1));
  cases.push_back(row_case("+inf beside the target", {0.5f, kInfinity, 1.5f}, 0));
  cases.push_back(row_case("+inf at the target", {0.5f, kInfinity, 1.5f}, 1));
  cases.push_back(row_case("zeros of both signs", {-0.0f, 0.0f, -0.0f, -0.0f}, 1));
  cases.push_back(row_case("subnormal logits", {0x1p-149f, -0x1p-149f, 0x1p-130f}, 1));
  cases.push_back(row_case("p_nt underflows", {0.0f, 800.0f, -5.0f}, 1));
  cases.push_back(row_case("huge positive, ties", {0x1.8p31f, 0x1.8p31f, 0x1.7p31f, 0x1.8p31f}, 0));
  cases.push_back(row_case("huge positive, target below", {0x1.8p31f, 0x1.8p31f, 5.0f, 0x1.8p31f}, 2));
  cases.push_back(row_case("huge positive, target above", {0x1p40f, 0x1p60f, 0x1p40f}, 1));
  cases.push_back(row_case("huge negative", {-0x1.8p31f, -0x1.8p31f, -0x1p40f, -0x1.9p31f}, 3));
  cases.push_back(row_case("huge negative, target usual", {-0x1.8p31f, 2.0f, -0x1p40f}, 1));
  cases.push_back(row_case("grid and huge negative", {-0x1.8p31f, 2.0f, 1.0f, -0x1p30f}, 2));
  cases.push_back(row_case("largest and smallest finite", {0x1.fffffep127f, -0x1.fffffep127f, 0.0f}, 1));
  cases.push_back(row_case("split at 2^16", {65535.996f, 65536.0f, 65536.01f, 65520.0f}, 3));
  cases.push_back(row_case("split at 2^30", {0x1p30f, 0x1.fffffep29f, 0x1.000002p30f, 0x1p30f}, 0));

  Case ignored = random_case("ignored rows", 65, 2.0, 0.0);
  ignored.labels[1] = ignored.options.ignore_index;
  for (std::int64_t j = 65; j < 130; ++j) ignored.logits[static_cast<std::size_t>(j)] = kNan;
  cases.push_back(ignored);
  ignored.name = "every row ignored, mean NaN";
  ignored.labels.assign(3, -100);
  cases.push_back(ignored);
  ignored.name = "every row ignored, mean zero";
  ignored.options.empty_mean = EmptyMean::kZero;
  cases.push_back(ignored);

  Case valid = random_case("ignore_index is a class", 65, 2.0, 0.0);
  valid.options.ignore_index = 64;  // the label of row 1
  cases.push_back(valid);

  Case padded = random_case("padded vocabulary", 72, 2.0, 0.0);
  padded.padding = 7;
  padded.labels = {0, 64, 33};
  for (std::size_t row = 0; row < 3; ++row) padded.logits[row * 72 + 65] = kNan;  // not read
  cases.push_back(padded);
}

void add_reductions_and_upstreams(std::vector<Case>& cases) {
  for (const Reduction reduction : {Reduction::kNone, Reduction::kSum, Reduction::kMean}) {
    for (const double upstream : {1.0, -0.3, 0.0, 65536.0, 1e-42}) {
      Case test = random_case(fmt::format("{} upstream {}", name_of(reduction), upstream), 129, 3.0, 0.0);
      test.options.reduction = reduction;
      test.upstream = upstream;
      cases.push_back(std::move(test));
    }
  }
  Case test = random_case("per-row upstream", 129, 3.0, 0.0);
  test.options.reduction = Reduction::kNone;
  test.per_row_upstream = {0.0f, 1.0f, -2.5f};
  cases.push_back(std::move(test));
}

template <class Logit>
void run_all(const std::vector<Case>& cases, Runtime runtime, std::vector<FingerprintCase>& results) {
  for (const Case& test : cases) {
    for (const std::int64_t tp : {1, 3}) {
      const ShardPlan plan = ShardPlan::even(test.columns, tp);
      const std::string name = fmt::format("{} {} tp={}", test.name, name_of(DTypeOf<Logit>::value), tp);
      results.push_back({name, Run<Logit>{test, plan, runtime}.sha256()});
    }
  }
}

}  // namespace

std::vector<FingerprintCase> fingerprint_cases(Backend& backend) {
  std::vector<Case> cases;
  add_shapes(cases);
  add_margins(cases);
  add_case_table(cases);
  add_reductions_and_upstreams(cases);
  SelfCommunicator self;
  const Runtime runtime{.backend = backend, .communicator = self, .rows_per_chunk = 2};
  std::vector<FingerprintCase> results;
  run_all<float>(cases, runtime, results);
  run_all<BFloat16>(cases, runtime, results);
  run_all<Float16>(cases, runtime, results);
  return results;
}

std::string fingerprint(const std::vector<FingerprintCase>& cases) {
  std::string lines;
  for (const FingerprintCase& test : cases) lines += fmt::format("{} {}\n", test.name, test.sha256);
  return io::sha256(std::as_bytes(std::span(lines)));
}

}  // namespace tpce::tools
