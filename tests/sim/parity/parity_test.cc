// Comparisons whose result is known: right backends, backends made wrong in one bit, methods at a margin that
// collapses.
#include "sim/parity/parity.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "sim/parity/parity_report.h"
#include "simd/simd_backend.h"
#include "tests/support/scratch.h"
#include "tpce/scalar_backend.h"

namespace tpce::sim {
namespace {

using Json = nlohmann::ordered_json;

constexpr float kInf = std::numeric_limits<float>::infinity();

std::shared_ptr<Implementation> scalar() { return make_implementation("scalar", std::make_unique<ScalarBackend>()); }
std::shared_ptr<Implementation> simd() {
  return make_implementation("simd",
                             std::make_unique<simd::SimdBackend>(simd::SimdOptions{.target = "", .threads = 2}));
}
std::shared_ptr<Implementation> method(std::string_view name) { return make_implementation(method_from_name(name)); }
std::shared_ptr<Implementation> certified() { return make_implementation(reference::Precision::kCertified, 1); }

// A backend of which one bit is wrong, in one of the places that parity looks at: of the row-th of all rows it is
// given.
class WrongBackend final : public Backend {
 public:
  enum class Where { kLoss, kLse, kGradient, kFusedLoss, kFusedGradient, kReduce, kSquares };
  WrongBackend(Where where, std::int64_t row) : where_(where), row_(row) {}

  std::string_view name() const override { return "wrong"; }
  Capabilities capabilities() const override { return right_.capabilities(); }
  Buffer allocate(std::size_t bytes) const override { return right_.allocate(bytes); }
  void partials(const Batch& batch, const Options& options, RowRange rows, const Partials& into, Queue queue) override {
    right_.partials(batch, options, rows, into, queue);
  }
  void merge(const Partials& into, const Partials& from, Queue queue) override { right_.merge(into, from, queue); }
  void finalize(const Partials& partials, const Options& options, const RowResults& results, Queue queue) override {
    right_.finalize(partials, options, results, queue);
    const std::int64_t row = row_ - finalized_;
    finalized_ += results.rows;
    if (row < 0 || row >= results.rows) return;
    if (where_ == Where::kLoss) flip(results.nll[row]);
    if (where_ == Where::kLse && results.lse != nullptr) flip(results.lse[row]);
  }
  void reduce(const RowResults& results, std::int64_t first_row, LossSum& sum, Queue queue) override {
    right_.reduce(results, first_row, sum, queue);
    if (where_ == Where::kReduce) add(sum.nll, 1.0f);
  }
  void gradient(const Batch& batch, const Options& options, const GradientTask& task, Queue queue) override {
    right_.gradient(batch, options, task, queue);
    if (where_ == Where::kGradient) flip_last(task);
    if (where_ == Where::kSquares && task.squares != nullptr) add_square(*task.squares, 1.0f);
  }
  void forward_backward(const Batch& batch, const Options& options, const GradientTask& task, const RowResults& results,
                        Queue queue) override {
    right_.forward_backward(batch, options, task, results, queue);
    if (where_ == Where::kFusedLoss && row_ < results.rows) flip(results.nll[row_]);
    if (where_ == Where::kFusedGradient) flip_last(task);
  }

 private:
  void flip_last(const GradientTask& task) const {
    if (row_ >= task.rows.count || task.gradients.empty()) return;
    const Matrix& last = task.gradients.back();
    if (last.dtype == DType::kFloat32) flip(last.row<float>(row_)[last.cols - 1]);
    if (last.dtype == DType::kBFloat16) last.row<BFloat16>(row_)[last.cols - 1].bits ^= 1;
  }
  static void flip(float& x) { x = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) ^ 1u); }

  ScalarBackend right_;
  Where where_;
  std::int64_t row_;
  std::int64_t finalized_ = 0;
};

std::shared_ptr<Implementation> wrong(WrongBackend::Where where, std::int64_t row) {
  return make_implementation("wrong", std::make_unique<WrongBackend>(where, row));
}

struct Rows {
  std::int64_t columns;
  std::vector<float> logits;
  std::vector<std::int64_t> labels;
};

// Logits of a few units; row i has label i * 7 mod columns.
Rows some_rows(std::int64_t rows, std::int64_t columns) {
  Rows made{columns, {}, {}};
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    made.logits.push_back(static_cast<float>((i * 2654435761) % 4093) / 512.0f - 4.0f);
  }
  for (std::int64_t i = 0; i < rows; ++i) made.labels.push_back(i * 7 % columns);
  return made;
}

// part: how many rows are added at a time.
void compare(Parity& parity, const Rows& rows, std::int64_t part = 1 << 20, const Options& options = {}) {
  const auto count = static_cast<std::int64_t>(rows.labels.size());
  parity.begin({.name = "rows",
                .labels = Labels(rows.labels.data(), count),
                .columns = rows.columns,
                .vocab = rows.columns,
                .dtype = DType::kFloat32,
                .options = options});
  const ConstMatrix logits = matrix_of(rows.logits.data(), count, rows.columns);
  for (std::int64_t first = 0; first < count; first += part) {
    parity.add(logits.row_range(first, std::min(part, count - first)));
  }
  parity.finish();
}

TEST(Parity, RightBackendsAreEqual) {
  Parity parity({.a = simd(), .b = {scalar()}, .witness = nullptr, .tp = {1, 3, 8}});
  compare(parity, some_rows(9, 67), 4);
  compare(parity, some_rows(5, 130), 2);
  ASSERT_EQ(parity.pairs().size(), 3u);
  for (const PairParity& pair : parity.pairs()) {
    EXPECT_TRUE(pair.required);
    EXPECT_TRUE(pair.equal());
    EXPECT_EQ(pair.max_ulp(), 0u);
    EXPECT_FALSE(pair.worst_quantity());
    EXPECT_EQ(pair.of(Quantity::kLoss)->values, 14);
    EXPECT_EQ(pair.of(Quantity::kLse)->values, 14);
    EXPECT_EQ(pair.of(Quantity::kGradient)->values, 9 * 67 + 5 * 130);
    EXPECT_EQ(pair.of(Quantity::kFusedLoss)->values, 14);
    EXPECT_EQ(pair.of(Quantity::kFusedGradient)->values, 9 * 67 + 5 * 130);
    EXPECT_EQ(pair.of(Quantity::kReducedLoss)->values, 2);
    EXPECT_EQ(pair.of(Quantity::kGradientNorm)->values, 2);
  }
  EXPECT_FALSE(parity.failed());
}

// The bit is found, at its place, wherever the backend has it, and nowhere else.
TEST(Parity, OneWrongBitFails) {
  using Where = WrongBackend::Where;
  const std::pair<Where, Quantity> cases[] = {{Where::kLoss, Quantity::kLoss},
                                              {Where::kLse, Quantity::kLse},
                                              {Where::kGradient, Quantity::kGradient},
                                              {Where::kFusedLoss, Quantity::kFusedLoss},
                                              {Where::kFusedGradient, Quantity::kFusedGradient},
                                              {Where::kReduce, Quantity::kReducedLoss},
                                              {Where::kSquares, Quantity::kGradientNorm}};
  for (const auto& [where, quantity] : cases) {
    SCOPED_TRACE(name_of(quantity));
    Parity parity({.a = scalar(), .b = {wrong(where, 3)}, .witness = nullptr, .tp = {2}});
    compare(parity, some_rows(5, 67));
    EXPECT_TRUE(parity.failed());
    const PairParity& pair = parity.pairs().front();
    EXPECT_FALSE(pair.of(quantity)->equal());
    const bool of_a_column = where == Where::kGradient || where == Where::kFusedGradient;
    const bool of_a_row = of_a_column || where == Where::kLoss || where == Where::kLse || where == Where::kFusedLoss;
    if (of_a_row) {
      EXPECT_EQ(pair.of(quantity)->differing_values, 1);
      EXPECT_EQ(pair.of(quantity)->differing_bits, 1);
      EXPECT_EQ(pair.of(quantity)->max_ulp, 1u);
      const DifferingPair& worst = *pair.of(quantity)->worst;
      EXPECT_EQ(worst.place.row, 3);
      EXPECT_EQ(worst.place.column, of_a_column ? 66 : -1);
      EXPECT_EQ(worst.label, 21);
      ASSERT_TRUE(worst.margin);
      EXPECT_EQ(*pair.worst_quantity(), quantity);
    }
    for (const Quantity other : kQuantities) {
      // A wrong loss of a row is one of their sum too.
      if (other == quantity || (where == Where::kLoss && other == Quantity::kReducedLoss)) continue;
      EXPECT_TRUE(pair.of(other)->equal()) << name_of(other);
    }
  }
}

TEST(Parity, ARowOfALaterPartIsNamedByItsPlaceInTheFile) {
  const Rows rows = some_rows(10, 33);
  Parity parity({.a = scalar(), .b = {wrong(WrongBackend::Where::kLse, 6)}, .witness = nullptr});
  compare(parity, rows, 4);
  const ValueParity& lse = *parity.pairs().front().of(Quantity::kLse);
  EXPECT_EQ(lse.differing_values, 1);
  EXPECT_EQ(lse.worst->place.row, 6);
  EXPECT_EQ(lse.worst->label, 42 % 33);
  double others = 0.0;
  for (std::int64_t j = 0; j < 33; ++j) {
    if (j != rows.labels[6]) others += std::exp(static_cast<double>(rows.logits[static_cast<std::size_t>(6 * 33 + j)]));
  }
  const double target = static_cast<double>(rows.logits[static_cast<std::size_t>(6 * 33 + rows.labels[6])]);
  EXPECT_NEAR(*lse.worst->margin, target - std::log(others), 1e-12);
}

TEST(Parity, GradientsAreComparedInTheirType) {
  Parity parity({.a = scalar(),
                 .b = {wrong(WrongBackend::Where::kGradient, 0)},
                 .witness = nullptr,
                 .tp = {1},
                 .gradient_dtype = DType::kBFloat16});
  compare(parity, some_rows(2, 8));
  const ValueParity& gradient = *parity.pairs().front().of(Quantity::kGradient);
  EXPECT_EQ(gradient.dtype, DType::kBFloat16);
  EXPECT_EQ(gradient.differing_bits, 1);
  EXPECT_EQ(gradient.max_ulp, 1u);
  EXPECT_LT(gradient.worst->a_bits, 0x10000u);
}

TEST(Parity, PartsGiveWhatTheWholeGives) {
  const Rows rows = some_rows(11, 29);
  std::vector<Json> found;
  for (const std::int64_t part : {1, 3, 11}) {
    Parity parity({.a = method("log_softmax"), .b = {scalar(), certified()}, .witness = simd(), .tp = {1, 2}});
    compare(parity, rows, part);
    found.push_back(to_json(parity));
  }
  EXPECT_EQ(found[0], found[2]);
  EXPECT_EQ(found[1], found[2]);
}

// The simulator divides by the number of rows; parts must be given the whole file's.
TEST(Parity, AMethodsGradientIsThatOfTheWholeFile) {
  const Rows rows = some_rows(7, 19);
  const auto count = static_cast<std::int64_t>(rows.labels.size());
  const ShardPlan plan = ShardPlan::even(rows.columns, 1);
  const Shard shards[] = {{matrix_of(rows.logits.data(), count, rows.columns), 0}};
  const Batch batch{plan, shards, Labels(rows.labels.data(), count), rows.columns};
  std::vector<float> whole(rows.logits.size());
  const Matrix gradients[] = {matrix_of(whole.data(), count, rows.columns)};
  (void)run(method_from_name("log_softmax"),
            {.batch = batch, .options = {}, .order = {}, .upstream = {}, .gradients = gradients});
  const RowsResult result = method("log_softmax")->evaluate({batch, {}, count, DType::kFloat32});
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t j = 0; j < rows.columns; ++j) {
      ASSERT_EQ(result.gradient.row<float>(i)[j], whole[static_cast<std::size_t>(i * rows.columns + j)]);
    }
  }
}

TEST(Parity, AMethodIsShownAndNotRequired) {
  Rows rows = some_rows(4, 16);
  rows.logits[static_cast<std::size_t>(2 * 16 + rows.labels[2])] = 40.0f;  // a margin beyond 24 ln 2
  for (const bool require : {false, true}) {
    Parity parity({.a = method("log_softmax"),
                   .b = {certified()},
                   .witness = scalar(),
                   .tp = {1},
                   .gradient_dtype = DType::kFloat32,
                   .require_equal = require});
    EXPECT_EQ(parity.evaluations_a_row(), 3);
    compare(parity, rows);
    const PairParity& pair = parity.pairs().front();
    EXPECT_FALSE(pair.equal());
    EXPECT_EQ(parity.failed(), require);
    EXPECT_EQ(pair.collapsed_a, 1);
    EXPECT_EQ(pair.collapsed_b, 0);
    EXPECT_EQ(pair.of(Quantity::kLoss)->worst->place.row, 2);
    EXPECT_GT(*pair.of(Quantity::kLoss)->worst->margin, 16.6);
    EXPECT_FALSE(pair.of(Quantity::kLse));  // the method has none
    EXPECT_FALSE(pair.of(Quantity::kReducedLoss));
  }
}

TEST(Parity, AnotherLossHasNoCollapsedRows) {
  Parity parity({.a = method("stablemax"), .b = {scalar()}, .witness = scalar()});
  compare(parity, some_rows(3, 16));
  EXPECT_FALSE(parity.pairs().front().collapsed_a);
  EXPECT_EQ(parity.pairs().front().collapsed_b, 0);
}

TEST(Parity, RowsAreComputedOnceWhereTpChangesNothing) {
  std::int64_t rows = 0;
  const auto one = scalar();
  Parity parity({.a = one,
                 .b = {certified(), method("log_softmax")},
                 .witness = one,
                 .tp = {1, 2, 4},
                 .gradient_dtype = DType::kFloat32,
                 .require_equal = false,
                 .evaluated = [&](std::int64_t done) { rows += done; }});
  compare(parity, some_rows(5, 16), 2);
  EXPECT_EQ(parity.evaluations_a_row(), 3 + 1 + 3);
  EXPECT_EQ(rows, 5 * 7);
}

TEST(Parity, OddShapes) {
  for (const std::int64_t tp : {1, 2}) {
    Parity parity({.a = simd(), .b = {scalar(), certified()}, .witness = nullptr, .tp = {tp}});
    compare(parity, some_rows(3, 1));  // one class: every loss is 0
    compare(parity, {5, {}, {}});      // no row
    compare(parity, {2, {1, kInf, NAN, 0, -kInf, -kInf}, {0, 1, 0}});
    Rows ignored = some_rows(2, 3);
    ignored.labels = {-100, -100};
    compare(parity, ignored);
    for (const PairParity& pair : parity.pairs()) {
      EXPECT_TRUE(pair.equal()) << pair.b;
      EXPECT_EQ(pair.of(Quantity::kLoss)->values, 3 + 0 + 3 + 2);
    }
    EXPECT_EQ(parity.files()[1].rows, 0);
    EXPECT_EQ(parity.files()[3].valid_rows, 0);
  }
  Parity nothing({.a = simd(), .b = {scalar()}, .witness = nullptr});
  compare(nothing, {5, {}, {}});
  EXPECT_FALSE(nothing.failed());
  EXPECT_EQ(to_json(nothing)["comparisons"][0]["quantities"]["loss"]["values"], 0);
  EXPECT_FALSE(to_table(nothing).empty());
  EXPECT_TRUE(to_page(nothing).sections.back().figures.empty());
}

TEST(Parity, ErrorsNameTheRowOfTheFile) {
  const auto message = [](Rows rows, std::vector<std::int64_t> tp, const char* a = "log_softmax") {
    return testing::message_of([&] {
      Parity parity({.a = method(a), .b = {scalar()}, .witness = nullptr, .tp = tp});
      compare(parity, rows, 2);
    });
  };
  Rows rows = some_rows(5, 4);
  rows.labels[3] = 4;
  testing::expect_parts(message(rows, {1}), {"labels: row 3 has label 4"});
  testing::expect_parts(message(some_rows(5, 4), {1, 0}), {"tp: got 0"});
  testing::expect_parts(message(some_rows(5, 4), {}), {"tp: got none"});
  testing::expect_parts(message(some_rows(5, 4), {2}, "cross_entropy"), {"tp: got 2", "expected 1"});
  Parity parity({.a = scalar(), .b = {scalar()}, .witness = nullptr});
  const std::vector<std::int64_t> labels{0, 0};
  const std::vector<float> logits(6);
  parity.begin({.name = "rows", .labels = Labels(labels.data(), 2), .columns = 2, .vocab = 2});
  testing::expect_parts(testing::message_of([&] { parity.finish(); }), {"got 0 rows", "2 of the labels"});
  testing::expect_parts(testing::message_of([&] { parity.add(matrix_of(logits.data(), 3, 2)); }), {"got 3 rows"});
  testing::expect_parts(testing::message_of([&] {
                          parity.begin({.name = "rows", .labels = Labels(labels.data(), 2), .columns = 2, .vocab = 3});
                        }),
                        {"vocab: got 3, expected 1..2"});
}

TEST(ParityReport, JsonHasTheKeysOfEveryComparison) {
  Parity parity({.a = scalar(), .b = {wrong(WrongBackend::Where::kLse, 1), certified()}, .witness = scalar()});
  compare(parity, some_rows(4, 9));
  const Json json = to_json(parity);
  EXPECT_EQ(json["failed"], true);
  ASSERT_EQ(json["comparisons"].size(), 2u);
  for (const Json& one : json["comparisons"]) {
    for (const char* key : {"a", "b", "tp", "equal", "required", "differing_bits", "max_ulp", "worst_row",
                            "collapsed_rows_a", "collapsed_rows_b", "quantities"}) {
      EXPECT_TRUE(one.contains(key)) << key;
    }
    for (const char* quantity :
         {"loss", "lse", "gradient", "fused_loss", "fused_gradient", "reduced_loss", "gradient_norm"}) {
      EXPECT_TRUE(one["differing_bits"].contains(quantity)) << quantity;
    }
  }
  const Json& one = json["comparisons"][0];
  EXPECT_EQ(one["differing_bits"]["lse"], 1);
  EXPECT_EQ(one["differing_bits"]["loss"], 0);
  EXPECT_EQ(one["max_ulp"], 1);
  EXPECT_EQ(one["worst_row"]["quantity"], "lse");
  EXPECT_EQ(one["worst_row"]["row"], 1);
  EXPECT_EQ(one["worst_row"]["file"], "rows");
  EXPECT_EQ(one["collapsed_rows_a"], 0);
  EXPECT_EQ(one["quantities"]["lse"]["histogram"]["1"], 1);
  EXPECT_EQ(one["quantities"]["lse"]["histogram"]["same bits"], 3);
  EXPECT_EQ(json["comparisons"][1]["differing_bits"]["reduced_loss"], nullptr);
  EXPECT_EQ(json["comparisons"][1]["differing_bits"]["fused_loss"], nullptr);
}

// Proves no loss.
class Unsure final : public Implementation {
 public:
  std::string name() const override { return "unsure"; }
  RowsResult evaluate(const ParityRows& rows) override {
    RowsResult result = scalar()->evaluate(rows);
    result.undecided = rows.batch.rows();
    return result;
  }
};

TEST(ParityReport, JsonCountsWhatIsNotProved) {
  Parity parity({.a = scalar(), .b = {std::make_shared<Unsure>(), certified()}});
  EXPECT_EQ(to_json(parity)["undecided"], Json::object());
  compare(parity, some_rows(4, 9), 3);
  EXPECT_EQ(to_json(parity)["undecided"], (Json{{"unsure", 4}}));
}

TEST(ParityReport, PageHoldsTheDataAndAPicture) {
  Parity parity({.a = method("log_softmax"), .b = {scalar()}, .witness = nullptr, .tp = {1, 2}});
  compare(parity, some_rows(4, 9));
  const Page page = to_page(parity);
  ASSERT_EQ(page.sections.size(), 3u);
  for (std::size_t i = 1; i < 3; ++i) {
    ASSERT_EQ(page.sections[i].figures.size(), 1u);
    EXPECT_EQ(page.sections[i].figures[0].svg.rfind("<?xml", 0), 0u);
  }
  EXPECT_NE(page.sections[1].figures[0].name, page.sections[2].figures[0].name);
  std::int64_t values = 0;
  for (const auto& row : page.data.rows) {
    if (row[2] == "2" && row[3] == "gradient") values += std::stoll(row[5]);
  }
  EXPECT_EQ(values, 4 * 9);
  ASSERT_EQ(page.files.size(), 1u);
  EXPECT_EQ(Json::parse(page.files[0].text), to_json(parity));
}

}  // namespace
}  // namespace tpce::sim
