#include "tests/mutation/cases.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <limits>
#include <random>
#include <span>

#include "reference/evaluate.h"
#include "reference/row_evaluator.h"
#include "tests/support/mpfr_real.h"
#include "tests/support/problem.h"

namespace tpce::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kJustHuge = 0x1.000002p30f;

struct Row {
  std::vector<float> logits;
  std::int64_t target = 0;
  double g = 1.0;
};

std::string hex(double value) {
  char text[64];
  std::snprintf(text, sizeof text, " %a", value);
  return text;
}

// Rows of the case table: empty, huge and mixed classes, ties, zeros of both signs, what is not finite.
std::vector<Row> special_rows() {
  const float lowest = std::numeric_limits<float>::lowest();
  return {
      {{3.0f}, 0},
      {{3.0f, -kInfinity}, 0},
      {{-kInfinity, 3.0f}, 0},
      {{-kInfinity, 3.0f, 4.0f}, 0, -0.5},
      {{-kInfinity, kJustHuge, kJustHuge}, 0},
      {{-kInfinity}, 0},
      {{-kInfinity, -kInfinity}, 1},
      {{1.0f, -kInfinity, 2.0f, -kInfinity}, 2, 3.0},
      {{1.0f, kNan, 2.0f}, 0},
      {{kNan, 1.0f}, 0},
      {{1.0f, 2.0f, kInfinity}, 1},
      {{kInfinity, 1.0f}, 0},
      {{kInfinity, -kInfinity}, 0},
      {{0.0f, kJustHuge, kJustHuge, std::nextafter(kJustHuge, 0.0f)}, 0},
      {{kJustHuge, kJustHuge, kJustHuge, 0.0f}, 1},
      {{-kJustHuge, -kJustHuge, -kJustHuge, lowest}, 0},
      {{0.0f, -kJustHuge}, 0},
      {{lowest, 0.0f, 1.0f}, 0},
      {{-0x1p30f, -0x1p30f, -kJustHuge, lowest}, 0},
      {{0x1p30f, 0x1p30f, 0.0f}, 0},
      {{0x1p29f, 0x1p29f + 64.0f, 0x1p29f - 64.0f}, 2},
      {{0x1.8p29f, 0x1.8p29f, 0x1.8p29f - 64.0f}, 0},
      {{-0.0f, -0.0f, 0.0f}, 1},
      {{800.0f, 0.0f}, 0},
      {{110.0f, 0.0f, -300.0f}, 0, -1.0},
      {{5.0f, 5.0f, 5.0f, 5.0f}, 3},
      {{1.0f, 2.0f}, 0, 0.0},
      {{0.0f, -30.0f, 60.0f, 30.0f, -60.0f, 59.0f, 44.0f}, 4},
      // Gradients that are subnormal in fp32, and upstreams far beyond it.
      {{95.0f, 0.0f, -1.0f, 3.0f}, 0},
      {{200.0f, 0.0f, 1.0f}, 0, 0x1p300},
      {{0.0f, 0.0f, 1.0f}, 0, 0x1p-140},
      {{-100.0f, 14.217f}, 0, 0x1.fcp1023},
      {{-100.0f, -0.5f, -650.5f}, 0, 0x1.cp1023},
      {{-100.0f, -0.5f, -650.5f}, 0, -0x1.cp1023},
  };
}

// Random rows whose target sits at a margin from -100 to 104.
std::vector<Row> random_rows() {
  std::mt19937_64 random(90);
  std::vector<Row> rows;
  for (int i = 0; i < 240; ++i) {
    const std::size_t vocab = i % 4 == 0 ? 2 : 2 + random() % 40;
    const double deviations[] = {1.0, 3.0, 10.0, 30.0};
    const double offsets[] = {0.0, 80.0, -80.0, 5000.0, 65536.0, -65536.0, 1e8, -1e9};
    const double offset = offsets[random() % 8];
    Row row;
    row.logits = normal_logits(random, vocab, deviations[random() % 4]);
    for (float& logit : row.logits) logit = static_cast<float>(static_cast<double>(logit) + offset);
    if (i % 7 == 3) row.logits[0] = -kInfinity;
    row.target = static_cast<std::int64_t>(1 + random() % (vocab - 1));
    std::vector<double> others;
    for (std::size_t j = 0; j < vocab; ++j) {
      if (static_cast<std::int64_t>(j) != row.target) others.push_back(static_cast<double>(row.logits[j]));
    }
    const auto evaluator = reference::make_row_evaluator(reference::tally_of(others), {});
    const double a = evaluator->evaluate(static_cast<double>(-kInfinity), {}).lse.fp64;
    if (std::isfinite(a)) {
      const double margin = -100.0 + 204.0 * uniform(random);
      row.logits[static_cast<std::size_t>(row.target)] = static_cast<float>(a + margin);
    }
    const double upstreams[] = {1.0, -1.0, 0.3, 1e-3, 1024.0};
    row.g = upstreams[random() % 5];
    rows.push_back(row);
  }
  return rows;
}

void append_row(std::string& text, const Row& row) {
  const auto vocab = static_cast<std::int64_t>(row.logits.size());
  Problem<float> problem(row.logits, {row.target}, ShardPlan::even(vocab, 1));
  const Batch batch = problem.batch();
  const reference::Inputs inputs{batch, {.reduction = Reduction::kNone}, {.per_row = {}, .scalar = row.g}};
  const reference::Evaluation truth = reference::evaluate(inputs, {});
  text += "row " + std::to_string(vocab) + ' ' + std::to_string(row.target) + hex(row.g);
  for (const float logit : row.logits) text += hex(static_cast<double>(logit));
  text += hex(truth.rows[0].loss.fp64) + hex(truth.rows[0].lse.fp64);
  for (const reference::Value& dz : reference::row_gradient(inputs, {}, 0)) text += hex(dz.fp64);
  text += '\n';
}

using MpfrFunction = int (*)(mpfr_ptr, mpfr_srcptr, mpfr_rnd_t);

void append_point(std::string& text, const char* name, MpfrFunction exact, double x) {
  MpfrReal truth(x);
  exact(truth.get(), truth.get(), MPFR_RNDN);
  // The rest of the truth below its fp64 value, so that errors below an ulp are seen.
  const double high = truth.to_double();
  mpfr_sub_d(truth.get(), truth.get(), high, MPFR_RNDN);
  text += name + hex(x) + hex(high) + hex(truth.to_double()) + '\n';
}

void append_points(std::string& text) {
  std::mt19937_64 random(91);
  for (int i = 0; i < 3000; ++i) {
    append_point(text, "exp", mpfr_exp, i % 2 == 0 ? -746.0 * uniform(random) : -uniform(random));
    append_point(text, "log", mpfr_log,
                 i % 2 == 0 ? std::ldexp(1.0 + uniform(random), static_cast<int>(random() % 80) - 20)
                            : 0.7 + 0.75 * uniform(random));
    append_point(text, "log1p", mpfr_log1p,
                 i % 2 == 0 ? uniform(random) : std::ldexp(uniform(random), -static_cast<int>(random() % 60)));
  }
}

// exp(x) as truth * 2^n with n = RN(x / ln 2).
void append_splits(std::string& text) {
  std::mt19937_64 random(92);
  const auto append = [&](float x) {
    MpfrReal truth, n(static_cast<double>(x));
    mpfr_const_log2(truth.get(), MPFR_RNDN);
    mpfr_div(n.get(), n.get(), truth.get(), MPFR_RNDN);
    const long exponent = mpfr_get_si(n.get(), MPFR_RNDN);
    mpfr_mul_si(truth.get(), truth.get(), -exponent, MPFR_RNDN);
    mpfr_add_d(truth.get(), truth.get(), static_cast<double>(x), MPFR_RNDN);
    mpfr_exp(truth.get(), truth.get(), MPFR_RNDN);
    text += "split" + hex(static_cast<double>(x)) + hex(truth.to_double()) + ' ' + std::to_string(exponent) + '\n';
  };
  for (int i = 0; i < 6000;) {
    const float x = bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!(std::fabs(x) <= 0x1p30f)) continue;
    append(x);
    append(static_cast<float>((uniform(random) - 0.5) * 200.0));
    ++i;
  }
  for (const float edge : {0x1p16f, 0x1p30f}) {
    for (float x = edge, i = 0.0f; i < 20.0f; i += 1.0f, x = std::nextafter(x, 0.0f)) {
      append(x);
      append(-x);
    }
  }
}

// The bits of RN to bf16 and fp16 by fp64 arithmetic alone; NaN and zeros as docs/numerics.md, section 5, stores them.
std::uint32_t bits_by_definition(float x, int fraction_bits, int bias) {
  const std::uint32_t infinity = (static_cast<std::uint32_t>(2 * bias + 1)) << fraction_bits;
  if (std::isnan(x)) return infinity | (1u << (fraction_bits - 1));
  const double magnitude = std::fabs(static_cast<double>(x));
  std::uint32_t bits = infinity;
  if (magnitude < std::ldexp(2.0 - std::ldexp(1.0, -fraction_bits - 1), bias)) {
    const int exponent = magnitude == 0.0 ? 1 - bias : std::max(std::ilogb(magnitude), 1 - bias);
    const double units = std::nearbyint(std::ldexp(magnitude, fraction_bits - exponent));
    // A carry runs into the exponent, as it should; a subnormal has exponent field 0.
    bits = static_cast<std::uint32_t>(units) + (static_cast<std::uint32_t>(exponent + bias - 1) << fraction_bits);
  }
  return bits == 0 ? 0 : bits | (std::signbit(x) ? 0x8000u : 0u);
}

void append_roundings(std::string& text) {
  std::mt19937_64 random(93);
  const auto append = [&](float x) {
    text += "round " + std::to_string(bit_cast<std::uint32_t>(x)) + ' ' +
            std::to_string(bits_by_definition(x, 7, 127)) + ' ' + std::to_string(bits_by_definition(x, 10, 15)) + '\n';
  };
  for (int i = 0; i < 4000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    append(bit_cast<float>(bits));
    append(bit_cast<float>((bits & 0xffff0000u) | 0x8000u));        // ties of bf16
    append(static_cast<float>((uniform(random) - 0.5) * 0x1p-13));  // fp16's subnormals
    append(bit_cast<float>((bits & 0x8fffe000u) | 0x38001000u));    // ties of fp16
  }
  for (const float x : {0.0f, -0.0f, kInfinity, -kInfinity, kNan, -kNan, bit_cast<float>(0x7f800001u), 65519.0f,
                        65520.0f, 65504.0f, 0x1p-24f, 0x1p-25f, -0x1p-25f, 0x1.8p-24f, 0x1p-14f,
                        std::nextafter(0x1p-14f, 0.0f), 0x1p-149f, -0x1p-149f, 0x1.fffffep127f}) {
    append(x);
  }
}

// Terms, their exact sum and the exact sum of their squares, both rounded to fp64.
void append_sums(std::string& text) {
  std::mt19937_64 random(94);
  for (int i = 0; i < 200; ++i) {
    std::vector<float> terms(1 + random() % 30);
    const auto base = static_cast<int>(random() % 252) - 149;
    const auto spread = static_cast<int>(random() % 24);
    MpfrReal sum, squares;
    for (float& term : terms) {
      term = static_cast<float>(
          std::ldexp(uniform(random) - 0.3,
                     base + (spread == 0 ? 0 : static_cast<int>(random() % static_cast<unsigned>(spread)))));
      mpfr_add_d(sum.get(), sum.get(), static_cast<double>(term), MPFR_RNDN);
      MpfrReal square(static_cast<double>(term));
      mpfr_sqr(square.get(), square.get(), MPFR_RNDN);
      mpfr_add(squares.get(), squares.get(), square.get(), MPFR_RNDN);
    }
    text += "sum " + std::to_string(terms.size());
    for (const float term : terms) text += hex(static_cast<double>(term));
    text += hex(sum.to_double()) + hex(squares.to_double()) + '\n';
  }
}

}  // namespace

std::string certified_cases() {
  std::string text;
  for (const Row& row : special_rows()) append_row(text, row);
  for (const Row& row : random_rows()) append_row(text, row);
  append_points(text);
  append_splits(text);
  append_roundings(text);
  append_sums(text);
  return text;
}

}  // namespace tpce::testing
