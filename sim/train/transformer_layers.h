// The layers of a decoder-only transformer: RMSNorm, rotary positions, causal attention, SwiGLU. As in layers.h, every
// element is computed by one task in a fixed order.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "sim/train/layers.h"

namespace tpce::sim {

// y = x * gain / sqrt(mean(x^2) + 1e-5), row by row. inverse [rows] keeps the factor for backward.
template <class Real>
struct RmsNorm {
  Factor<Real> x;
  const Real* gain;  // [cols]
  Real* inverse;     // [rows]

  void forward(const View<Real>& y, Executor& executor) const {
    for_ranges(executor, x.rows, kRowGrain, [&](std::int64_t first, std::int64_t end) {
      for (std::int64_t i = first; i < end; ++i) {
        const Real* from = x.data + i * x.row_stride;
        Real* to = y.row(i);
        const Real squares = sum_in_lanes<Real>(x.cols, [&](std::int64_t j) { return from[j] * from[j]; });
        inverse[i] = Real(1) / std::sqrt(squares / static_cast<Real>(x.cols) + Real(1e-5));
        for (std::int64_t j = 0; j < x.cols; ++j) to[j] = from[j] * inverse[i] * gain[j];
      }
    });
  }

  // Adds the gradient of x to of_x, and writes that of the gain.
  void backward(const Factor<Real>& of_y, const View<Real>& of_x, Real* of_gain, Executor& executor) const {
    for_ranges(executor, x.rows, kRowGrain, [&](std::int64_t first, std::int64_t end) {
      for (std::int64_t i = first; i < end; ++i) {
        const Real* from = x.data + i * x.row_stride;
        const Real* dy = of_y.data + i * of_y.row_stride;
        Real* dx = of_x.row(i);
        const Real dot = sum_in_lanes<Real>(x.cols, [&](std::int64_t j) { return dy[j] * gain[j] * from[j]; });
        const Real along = dot * inverse[i] * inverse[i] / static_cast<Real>(x.cols);
        for (std::int64_t j = 0; j < x.cols; ++j) dx[j] += (dy[j] * gain[j] - from[j] * along) * inverse[i];
      }
    });
    for_ranges(executor, x.cols, kColumnGrain, [&](std::int64_t first, std::int64_t end) {
      std::fill(of_gain + first, of_gain + end, Real(0));
      for (std::int64_t i = 0; i < x.rows; ++i) {
        const Real* from = x.data + i * x.row_stride;
        const Real* dy = of_y.data + i * of_y.row_stride;
        for (std::int64_t j = first; j < end; ++j) of_gain[j] += dy[j] * (from[j] * inverse[i]);
      }
    });
  }
};

// hidden = silu(gate) * up.
template <class Real>
void swiglu(const Factor<Real>& gate, const Factor<Real>& up, const View<Real>& hidden, Executor& executor);

// of_gate and of_up hold gate and up, and are overwritten with their gradients.
template <class Real>
void swiglu_backward(const Factor<Real>& of_hidden, const View<Real>& of_gate, const View<Real>& of_up,
                     Executor& executor);

// 1 / (1 + exp(-x)).
template <class Real>
inline Real sigmoid(Real x) {
  const Real e = exp_of_nonpositive(x < Real(0) ? x : -x);
  const Real large = Real(1) / (Real(1) + e);
  return x < Real(0) ? e * large : large;
}

template <class Real>
void swiglu(const Factor<Real>& gate, const Factor<Real>& up, const View<Real>& hidden, Executor& executor) {
  for_ranges(executor, hidden.rows, kRowGrain, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t i = first; i < end; ++i) {
      const Real* __restrict g = gate.data + i * gate.row_stride;
      const Real* __restrict u = up.data + i * up.row_stride;
      Real* __restrict h = hidden.row(i);
      for (std::int64_t j = 0; j < hidden.cols; ++j) h[j] = g[j] * sigmoid(g[j]) * u[j];
    }
  });
}

template <class Real>
void swiglu_backward(const Factor<Real>& of_hidden, const View<Real>& of_gate, const View<Real>& of_up,
                     Executor& executor) {
  for_ranges(executor, of_gate.rows, kRowGrain, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t i = first; i < end; ++i) {
      const Real* __restrict dh = of_hidden.data + i * of_hidden.row_stride;
      Real* __restrict g = of_gate.row(i);
      Real* __restrict u = of_up.row(i);
      for (std::int64_t j = 0; j < of_gate.cols; ++j) {
        const Real s = sigmoid(g[j]);
        const Real silu = g[j] * s;
        const Real of_silu = dh[j] * u[j];
        u[j] = dh[j] * silu;
        g[j] = of_silu * (s + silu * (Real(1) - s));
      }
    }
  });
}

// cos and sin of position * base^(-2 i / width) for i in [0, width / 2), base 10,000, as rotary embeddings have them:
// [positions, width / 2] each. Powers by exp_fp64, the first angle's cosine and sine by their series, the others by
// turning on; all in fp64.
struct RotaryTable {
  RotaryTable(std::int64_t positions, std::int64_t width);

  std::int64_t half = 0;
  std::vector<double> cosines;
  std::vector<double> sines;
};

// Turns each head's pairs (x_i, x_(i + half)) of a row by the angles of its position; direction -1 turns back. Rows are
// positions 0, 1, ..., sequence - 1 again and again.
template <class Real>
void rotate(const RotaryTable& table, std::int64_t sequence, Real direction, const View<Real>& x, Executor& executor) {
  for_ranges(executor, x.rows, kRowGrain, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t i = first; i < end; ++i) {
      const double* cosines = table.cosines.data() + i % sequence * table.half;
      const double* sines = table.sines.data() + i % sequence * table.half;
      for (Real* head = x.row(i); head < x.row(i) + x.cols; head += 2 * table.half) {
        for (std::int64_t j = 0; j < table.half; ++j) {
          const Real c = static_cast<Real>(cosines[j]);
          const Real s = direction * static_cast<Real>(sines[j]);
          const Real a = head[j], b = head[j + table.half];
          head[j] = a * c - b * s;
          head[j + table.half] = b * c + a * s;
        }
      }
    }
  });
}

struct AttentionShape {
  std::int64_t batch;
  std::int64_t sequence;
  std::int64_t heads;
};

// Queries, keys and values [batch * sequence, heads * width], and how much each position attends to which:
// probabilities [batch * heads, sequence, sequence], 0 above the diagonal.
template <class Real>
struct Attention {
  AttentionShape shape;
  View<Real> queries, keys, values;
  Real* probabilities;

  void forward(const View<Real>& out, Executor& executor) const {
    for_each_head(executor, [&](std::int64_t b, std::int64_t h) {
      InlineExecutor inside;
      const View<Real> p = probabilities_of(b, h);
      multiply({part(queries, b, h), part(keys, b, h).transposed(), p}, inside);
      for (std::int64_t i = 0; i < p.rows; ++i) causal_softmax(p.row(i), i + 1, p.cols);
      multiply({p, part(values, b, h), part(out, b, h)}, inside);
    });
  }

  // queries, keys and values are overwritten with their gradients; probabilities with others.
  void backward(const View<Real>& of_out, Executor& executor) const {
    for_each_head(executor, [&](std::int64_t b, std::int64_t h) {
      InlineExecutor inside;
      const View<Real> p = probabilities_of(b, h);
      const View<Real> q = part(queries, b, h), k = part(keys, b, h), v = part(values, b, h), d = part(of_out, b, h);
      std::vector<Real> scores_memory(static_cast<std::size_t>(p.rows * p.cols));
      const View<Real> of_scores(scores_memory.data(), p.rows, p.cols);
      multiply({d, v.transposed(), of_scores}, inside);
      multiply({p.transposed(), d, v}, inside);
      for (std::int64_t i = 0; i < p.rows; ++i) {
        Real* ds = of_scores.row(i);
        const Real* row = p.row(i);
        const Real dot = sum_in_lanes<Real>(i + 1, [&](std::int64_t j) { return row[j] * ds[j]; });
        for (std::int64_t j = 0; j < p.cols; ++j) ds[j] = row[j] * (ds[j] - dot) * scale();
      }
      std::vector<Real> old_queries(static_cast<std::size_t>(q.rows * q.cols));
      const View<Real> kept(old_queries.data(), q.rows, q.cols);
      for (std::int64_t i = 0; i < q.rows; ++i) std::copy_n(q.row(i), q.cols, kept.row(i));
      multiply({of_scores, k, q}, inside);
      multiply({of_scores.transposed(), kept, k}, inside);
    });
  }

 private:
  std::int64_t width() const { return queries.cols / shape.heads; }
  Real scale() const { return Real(1) / std::sqrt(static_cast<Real>(width())); }

  template <class Body>
  void for_each_head(Executor& executor, const Body& body) const {
    executor.for_each(shape.batch * shape.heads, [&](std::int64_t task) {
      const DefaultFloatMode mode;
      body(task / shape.heads, task % shape.heads);
    });
  }
  View<Real> part(const View<Real>& matrix, std::int64_t b, std::int64_t h) const {
    return matrix.row_range(b * shape.sequence, shape.sequence).column_range(h * width(), width());
  }
  View<Real> probabilities_of(std::int64_t b, std::int64_t h) const {
    return {probabilities + (b * shape.heads + h) * shape.sequence * shape.sequence, shape.sequence, shape.sequence};
  }

  void causal_softmax(Real* row, std::int64_t visible, std::int64_t all) const {
    const Real factor = scale();
    Real largest = row[0];
    for (std::int64_t j = 1; j < visible; ++j) largest = row[j] > largest ? row[j] : largest;
    for (std::int64_t j = 0; j < visible; ++j) row[j] = exp_of_nonpositive((row[j] - largest) * factor);
    const Real sum = sum_in_lanes<Real>(visible, [&](std::int64_t j) { return row[j]; });
    for (std::int64_t j = 0; j < visible; ++j) row[j] = row[j] / sum;
    std::fill(row + visible, row + all, Real(0));
  }
};

}  // namespace tpce::sim
