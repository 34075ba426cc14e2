// Tiles of a matrix product in vector registers, compiled for every instruction set.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace tpce::sim {

// c[i][j] = fma(a[k][i], b[k][j], c[i][j]) for k = 0, 1, ... in turn, for every i and j of one tile. The accumulators
// start from 0, or from what c holds.
struct Tile {
  const float* a;  // [depth][rows], packed
  const float* b;  // [depth][columns], packed
  std::int64_t depth;
  float* c;  // [rows][columns]
  std::int64_t c_stride;
  bool from_zero;
};

// Rows of a, or columns of b, to be packed: value k of line i is at from[i * line_stride + k * step_stride].
struct Source {
  const float* from;
  std::int64_t line_stride;
  std::int64_t step_stride;
  std::int64_t depth;
};

// Lines [first, first + count) as [depth][width]; width is a tile's rows or columns, and at least count.
struct Panel {
  std::int64_t first;
  std::int64_t count;
  std::int64_t width;
};

// One instruction set. Every one gives the same bits; only the shape of a tile differs.
struct MatmulKernels {
  std::string_view name;
  std::int64_t rows;     // of every tile
  std::int64_t columns;  // of a wide tile; a narrow one has half
  void (*wide)(const Tile&);
  void (*narrow)(const Tile&);
  // Packs one panel after the other where line_stride is 1, with zeros where a panel is wider than its lines. Only the
  // last panel may differ in width.
  void (*copy)(const Source& source, std::span<const Panel> panels, float* to);
  // Packs the lines of one panel, the first at source.from, where step_stride is 1; leaves what is beyond its lines.
  void (*transpose)(const Source& source, const Panel& panel, float* to);
};

// Those of this build that the processor runs, best first.
std::vector<MatmulKernels> matmul_targets();

// The best of them, or those that the environment variable TPCE_TARGET names, as SimdBackend reads it. Where it names a
// target of simd/ that has no kernels here (SVE, whose vectors have no fixed length), the best. Throws
// std::invalid_argument where this processor has no such target.
MatmulKernels matmul_kernels();

}  // namespace tpce::sim
