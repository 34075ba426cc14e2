#include "sim/train/matmul.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>

namespace tpce::sim {

namespace {

// A panel of b (depth x a tile's columns) stays near, a block of each factor in the second-level cache. Measured:
// deeper panels gain where the depth is that of all rows of a batch, and lose nothing elsewhere.
constexpr std::int64_t kDepth = 384;
constexpr std::int64_t kBlockRows = 240;
constexpr std::int64_t kBlockColumns = 1024;
// Fewer rows a task than this do not repay packing b again, unless a thread had none.
constexpr std::int64_t kMinTaskRows = 96;
// What it costs to transpose an element of a result, on one thread, in multiply-adds of a thread. Measured up to 2^20
// elements: 0.5 to 1 ns, and as much for memory that is new, at about 50 multiply-adds a ns.
constexpr std::int64_t kTurnCost = 128;
// A block of as many rows and columns has its cache lines at hand, whatever the stride.
constexpr std::int64_t kTurnBlock = 16;
// Nobody measured that it pays on more.
constexpr std::int64_t kMostTurningThreads = 2;

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

struct Range {
  std::int64_t first;
  std::int64_t count;
};

// Memory that begins on a cache line, so that no vector lies in two.
class Panels {
 public:
  float* room(std::int64_t count) {
    if (count > count_) {
      memory_.reset(static_cast<float*>(::operator new(static_cast<std::size_t>(count) * sizeof(float), kLine)));
      count_ = count;
    }
    return memory_.get();
  }

 private:
  static constexpr std::align_val_t kLine{64};
  struct Free {
    void operator()(float* memory) const { ::operator delete(memory, kLine); }
  };
  std::unique_ptr<float, Free> memory_;
  std::int64_t count_ = 0;
};

// Packed panels of one task, kept for its next: one a thread, and no task of a product starts another product.
struct Packed {
  Panels a;
  Panels b;
};

template <class Real>
void check(const Product<Real>& product) {
  const auto& [a, b, c, start] = product;
  if (a.cols == b.rows && a.rows == c.rows && b.cols == c.cols) return;
  const auto shape = [](std::int64_t rows, std::int64_t cols) {
    return "[" + std::to_string(rows) + ", " + std::to_string(cols) + "]";
  };
  throw std::invalid_argument("multiply: got " + shape(a.rows, a.cols) + " times " + shape(b.rows, b.cols) + " into " +
                              shape(c.rows, c.cols) + ", expected shapes that fit");
}

// Packs one panel after the other as [depth][width], with zeros where its width exceeds its lines.
void pack(const Source& source, std::span<const Panel> panels, const MatmulKernels& kernels, float* to) {
  const std::int64_t depth = source.depth;
  if (source.line_stride == 1) {
    kernels.copy(source, panels, to);
    return;
  }
  for (const Panel& panel : panels) {
    if (panel.count < panel.width) std::fill_n(to, depth * panel.width, 0.0f);
    const float* from = source.from + panel.first * source.line_stride;
    if (source.step_stride == 1) {
      kernels.transpose({from, source.line_stride, 1, depth}, panel, to);
    } else {
      for (std::int64_t i = 0; i < panel.count; ++i) {
        for (std::int64_t k = 0; k < depth; ++k) {
          to[k * panel.width + i] = from[i * source.line_stride + k * source.step_stride];
        }
      }
    }
    to += depth * panel.width;
  }
}

// Panels of `width`, the last one of half of it where that is enough and half_allowed.
std::vector<Panel> panels_of(std::int64_t count, std::int64_t width, bool half_allowed) {
  std::vector<Panel> panels;
  for (std::int64_t first = 0; first < count; first += width) {
    const std::int64_t left = count - first;
    panels.push_back({first, std::min(left, width), half_allowed && left <= width / 2 ? width / 2 : width});
  }
  return panels;
}

class Task {
 public:
  Task(const Product<float>& product, const MatmulKernels& kernels) : p_(product), kernels_(kernels) {}

  void multiply(Range rows, Range columns) const {
    thread_local Packed packed;
    const std::int64_t depth = p_.a.cols;
    if (depth == 0) {
      for (std::int64_t i = 0; p_.start == Start::kZero && i < rows.count; ++i) {
        std::fill_n(p_.c.row(rows.first + i) + columns.first, columns.count, 0.0f);
      }
      return;
    }
    const std::vector<Panel> column_panels = panels_of(columns.count, kernels_.columns, true);
    float* b = packed.b.room(kDepth * (columns.count + kernels_.columns));
    float* a = packed.a.room(kDepth * (kBlockRows + kernels_.rows));
    const std::int64_t step = ceil_div(depth, ceil_div(depth, kDepth));
    for (std::int64_t k = 0; k < depth; k += step) {
      const Range steps{k, std::min(step, depth - k)};
      pack({p_.b.data + k * p_.b.row_stride + columns.first * p_.b.col_stride, p_.b.col_stride, p_.b.row_stride,
            steps.count},
           column_panels, kernels_, b);
      for (std::int64_t i = 0; i < rows.count; i += kBlockRows) {
        const std::int64_t first = rows.first + i;
        const std::vector<Panel> row_panels = panels_of(std::min(kBlockRows, rows.count - i), kernels_.rows, false);
        pack({p_.a.data + first * p_.a.row_stride + k * p_.a.col_stride, p_.a.row_stride, p_.a.col_stride, steps.count},
             row_panels, kernels_, a);
        multiply_block(steps, {row_panels, a}, {column_panels, b}, p_.c.row(first) + columns.first);
      }
    }
  }

 private:
  struct PackedPanels {
    std::span<const Panel> panels;
    const float* data;
  };

  void multiply_block(Range steps, PackedPanels rows, PackedPanels columns, float* c) const {
    const bool from_zero = steps.first == 0 && p_.start == Start::kZero;
    const float* b = columns.data;
    for (const Panel& right : columns.panels) {
      const float* a = rows.data;
      const auto run = right.width == kernels_.columns ? kernels_.wide : kernels_.narrow;
      for (const Panel& left : rows.panels) {
        const Tile tile{a, b, steps.count, c + left.first * p_.c.stride + right.first, p_.c.stride, from_zero};
        if (left.count == left.width && right.count == right.width) {
          run(tile);
        } else {
          run_at_the_edge(tile, left.count, right.count, run);
        }
        a += steps.count * left.width;
      }
      b += steps.count * right.width;
    }
  }

  // A tile that reaches beyond c, by way of memory that holds all of it.
  void run_at_the_edge(const Tile& tile, std::int64_t rows, std::int64_t columns, void (*run)(const Tile&)) const {
    constexpr std::int64_t kMaxRows = 12, kMaxColumns = 32;
    alignas(64) float whole[kMaxRows * kMaxColumns] = {};
    Tile inside = tile;
    inside.c = whole;
    inside.c_stride = kMaxColumns;
    for (std::int64_t i = 0; !tile.from_zero && i < rows; ++i) {
      std::copy_n(tile.c + i * tile.c_stride, columns, whole + i * kMaxColumns);
    }
    run(inside);
    for (std::int64_t i = 0; i < rows; ++i) std::copy_n(whole + i * kMaxColumns, columns, tile.c + i * tile.c_stride);
  }

  const Product<float>& p_;
  const MatmulKernels& kernels_;
};

// Tasks of a product, each of whole tiles.
struct Cut {
  std::int64_t row_tasks;
  std::int64_t column_tasks;
  std::int64_t task_rows;
  std::int64_t task_columns;
};

Cut cut_of(std::int64_t rows, std::int64_t columns, std::int64_t threads, const MatmulKernels& kernels) {
  const std::int64_t wanted = threads == 1 ? 1 : 3 * threads;
  const std::int64_t row_panels = ceil_div(rows, kernels.rows);
  const std::int64_t column_tasks = ceil_div(columns, kBlockColumns);
  const std::int64_t most_row_tasks = std::max(rows / kMinTaskRows, std::min(threads, row_panels));
  const std::int64_t row_tasks = std::min(most_row_tasks, ceil_div(wanted, column_tasks));
  return {row_tasks, column_tasks, ceil_div(row_panels, row_tasks) * kernels.rows,
          ceil_div(ceil_div(columns, kernels.columns), column_tasks) * kernels.columns};
}

// Elements of the tiles of the thread with the most, edges that reach beyond c included.
std::int64_t busiest_task(std::int64_t rows, std::int64_t columns, std::int64_t threads, const MatmulKernels& kernels) {
  const Cut cut = cut_of(rows, columns, threads, kernels);
  const std::int64_t of_a_thread = ceil_div(cut.row_tasks * cut.column_tasks, threads);
  std::int64_t padded_columns = 0;
  for (const Panel& panel : panels_of(std::min(cut.task_columns, columns), kernels.columns, true)) {
    padded_columns += panel.width;
  }
  return of_a_thread * std::min(cut.task_rows, ceil_div(rows, kernels.rows) * kernels.rows) * padded_columns;
}

// c^T = b^T a^T: the same multiply-adds in the same order.
void multiply_transposed(const Product<float>& product, Executor& executor, const MatmulKernels& kernels) {
  const View<float>& c = product.c;
  const auto memory = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(c.rows * c.cols));
  const View<float> turned(memory.get(), c.cols, c.rows);
  const auto each = [&](auto&& body) {
    for (std::int64_t i = 0; i < c.rows; i += kTurnBlock) {
      for (std::int64_t j = 0; j < c.cols; j += kTurnBlock) {
        for (std::int64_t row = i; row < std::min(c.rows, i + kTurnBlock); ++row) {
          for (std::int64_t col = j; col < std::min(c.cols, j + kTurnBlock); ++col) {
            body(c.row(row)[col], turned.row(col)[row]);
          }
        }
      }
    }
  };
  if (product.start == Start::kAccumulate) each([](float from, float& to) { to = from; });
  multiply({product.b.transposed(), product.a.transposed(), turned, product.start}, executor, kernels);
  each([](float& to, float from) { to = from; });
}

}  // namespace

bool is_multiplied_transposed(const Product<float>& product, std::int64_t threads, const MatmulKernels& kernels) {
  const std::int64_t rows = product.c.rows, columns = product.c.cols;
  if (threads > kMostTurningThreads || rows == 0 || columns == 0) return false;
  const std::int64_t saved =
      busiest_task(rows, columns, threads, kernels) - busiest_task(columns, rows, threads, kernels);
  const std::int64_t turns = product.start == Start::kAccumulate ? 2 : 1;
  return saved * product.a.cols > turns * kTurnCost * rows * columns;
}

void multiply(const Product<float>& product, Executor& executor) {
  static const MatmulKernels kernels = matmul_kernels();
  multiply(product, executor, kernels);
}

void multiply(const Product<float>& product, Executor& executor, const MatmulKernels& kernels) {
  check(product);
  const std::int64_t rows = product.c.rows;
  const std::int64_t columns = product.c.cols;
  if (rows == 0 || columns == 0) return;
  const std::int64_t threads = executor.threads();
  if (is_multiplied_transposed(product, threads, kernels)) {
    multiply_transposed(product, executor, kernels);
    return;
  }
  const Cut cut = cut_of(rows, columns, threads, kernels);
  const Task task(product, kernels);
  executor.for_each(cut.row_tasks * cut.column_tasks, [&](std::int64_t t) {
    const DefaultFloatMode mode;
    const std::int64_t i = t % cut.row_tasks * cut.task_rows;
    const std::int64_t j = t / cut.row_tasks * cut.task_columns;
    if (i >= rows || j >= columns) return;
    task.multiply({i, std::min(cut.task_rows, rows - i)}, {j, std::min(cut.task_columns, columns - j)});
  });
}

void multiply(const Product<double>& product, Executor& executor) {
  check(product);
  for_ranges(executor, product.c.rows, 1, [&](std::int64_t first, std::int64_t end) {
    const Factor<double>& a = product.a;
    multiply_plainly<double>({{a.data + first * a.row_stride, end - first, a.cols, a.row_stride, a.col_stride},
                              product.b,
                              product.c.row_range(first, end - first),
                              product.start});
  });
}

}  // namespace tpce::sim
