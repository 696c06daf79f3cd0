#pragma once
// y = x W' with W as it is stored. A few rows of x: W is read once, where it stands (stored_dots),
// or its blocks are made f32 some rows at a time, which stay in cache. Many rows (prefill): blocks
// of rows of W become f32 and are multiplied as any matrix. Integer activations: codes by codes
// where W is packed; else x is rounded and both are multiplied as f32, the same numbers.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/thread_scope.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/block_quantize.hpp"
#include "tinyscale/compute/gemm.hpp"
#include "tinyscale/compute/gemm_bf16.hpp"
#include "tinyscale/compute/round_halves.hpp"
#include "tinyscale/compute/scratch.hpp"
#include "tinyscale/compute/stored_dots.hpp"
#include "tinyscale/compute/stored_matrix.hpp"
#include "tinyscale/compute/stored_packed.hpp"

namespace tinyscale {
namespace kernels {

// The reference bodies, of any stored matrix: one row of x as the product sees it, and y = x W'.
inline void round_row_reference(const StoredMatrix& w, Activations how, const float* x, float* y) {
  const int elements = w.is_packed ? 0 : block_layout(w.format).elements;
  if (how == Activations::f32 || (elements == 1 && how == Activations::int8_groups) ||
      (elements == 1 && w.format == BlockFormat::f32)) {
    std::copy_n(x, w.cols, y);
  } else if (elements == 1) {
    round_halves_reference(w.format == BlockFormat::bf16, w.cols, x, y);
  } else if (elements == 256 && how == Activations::int8_blocks) {
    for (std::int64_t i = 0; i < w.cols; ++i) {
      y[i] = detail::round_q8_k_reference(x + i / 256 * 256, static_cast<int>(i % 256));
    }
  } else {
    const std::int64_t group = how == Activations::int8_blocks ? 32 : elements;
    round_activations_reference(how, w.cols, w.is_packed ? w.packed.group : group, x, y);
  }
}
inline void multiply_stored_reference(const StoredMatrix& w, Activations how, std::int64_t m,
                                      const float* x, std::int64_t ldx, float* y,
                                      std::int64_t ldy) {
  std::vector<float> seen(static_cast<std::size_t>(w.cols)), row = seen;
  for (std::int64_t i = 0; i < m; ++i) {
    round_row_reference(w, how, x + i * ldx, seen.data());
    for (std::int64_t n = 0; n < w.rows; ++n) {
      stored_row_reference(w, n, row.data());
      double sum = 0.0;
      for (std::size_t p = 0; p < row.size(); ++p) {
        sum += double{seen[p]} * double{row[p]};
      }
      y[i * ldy + n] = static_cast<float>(sum);
    }
  }
}

}  // namespace kernels

namespace detail {

constexpr std::int64_t stored_few_halves = 64;    // the same where a load widens W
constexpr std::int64_t stored_block = 96 * 1024;  // floats of W that are f32 at a time

// Whether integer activations differ from f32 ones for weights in this format, which is not packed.
inline bool rounds_activations(BlockFormat format, Activations how) {
  return how != Activations::f32 && format != BlockFormat::f32 &&
         (how == Activations::int8_blocks || block_layout(format).elements > 1);
}

// One row of x as the product with weights of this format sees it. ggml: f16 or bf16 as the
// weights, q8_K for blocks of 256, q8_0 for the others.
inline void round_row(BlockFormat format, Activations how, std::int64_t n, const float* x,
                      float* y) {
  const int elements = block_layout(format).elements;
  if (elements == 1) {
    run_on_lanes(RoundHalves{format == BlockFormat::bf16, n, x, y});
    return;
  }
  if (how == Activations::int8_blocks && elements == 256) {
    std::uint8_t block[292];
    for (std::int64_t i = 0; i < n; i += 256) {
      bool finite = true;
      for (std::int64_t j = i; j < i + 256; ++j) {
        finite = finite && is_finite(static_cast<double>(x[j])) && std::fabs(x[j]) < 1e38f;
      }
      if (finite) {
        kernels::quantize_blocks(BlockFormat::q8_k, 256, x + i, block);
        kernels::dequantize_blocks(BlockFormat::q8_k, 256, block, y + i);
      } else {
        std::fill(y + i, y + i + 256, std::numeric_limits<float>::quiet_NaN());
      }
    }
    return;
  }
  const std::int64_t group = how == Activations::int8_groups ? elements : 32;
  List<std::int8_t> codes(static_cast<std::size_t>(n));
  List<float> scales(static_cast<std::size_t>(n / group + 1));
  List<std::int32_t> offsets(static_cast<std::size_t>(n / group + 1));
  run_on_lanes(RoundActivations{x,
                                n,
                                group,
                                group,
                                0,
                                how == Activations::int8_blocks,
                                {codes.data(), scales.data(), offsets.data()}});
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = static_cast<float>(codes[static_cast<std::size_t>(i)]) *
           scales[static_cast<std::size_t>(i / group)];
  }
}

struct StoredProduct {
  const StoredMatrix& w;
  std::int64_t m;
  const float* x;
  std::int64_t ldx;
  float* y;
  std::int64_t ldy;
};

// A few rows of x, blocks of W: 8 rows of W at a time become f32.
inline void block_dots(const StoredProduct& p) {
  constexpr std::int64_t some = 2 * stored_streams;
  const std::int64_t cols = p.w.cols, units = (p.w.rows + some - 1) / some;
  stream_rows(units, 4.0 * p.w.bytes(), [&](std::int64_t begin, std::int64_t end) {
    const Scratch rows(some * cols);
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t first = unit * some, count = std::min(some, p.w.rows - first);
      kernels::dequantize_blocks(p.w.format, count * cols, p.w.data + first * p.w.row_bytes,
                                 rows.data());
      const SerialScope here;
      stored_dots<WideF32>(count, cols, reinterpret_cast<const std::uint8_t*>(rows.data()),
                           cols * 4, p.m, p.x, p.ldx, p.y + first, p.ldy);
    }
  });
}

// Rows of W that are f32 at a time: about stored_block numbers, as many parts as every thread has
// equally many of, multiples of 16. A last short part would keep the other threads waiting.
inline std::int64_t stored_rows(std::int64_t rows, std::int64_t cols) {
  const std::int64_t most = std::clamp<std::int64_t>(stored_block / cols / 64 * 64, 64, 256);
  const std::int64_t threads = std::min<std::int64_t>(thread_count(), (rows + 63) / 64);
  const std::int64_t turns = (rows + most * threads - 1) / (most * threads);
  return ((rows + turns * threads - 1) / (turns * threads) + 15) / 16 * 16;
}

// Many rows of x; read(first, count, to): so many rows of W as f32.
template <class Read>
void stored_gemm(const StoredProduct& p, const Read& read) {
  const std::int64_t cols = p.w.cols, fit = stored_rows(p.w.rows, cols);
  parallel_for((p.w.rows + fit - 1) / fit, 1, [&](std::int64_t begin, std::int64_t end) {
    const Scratch rows(fit * cols);
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t first = unit * fit, count = std::min(fit, p.w.rows - first);
      read(first, count, rows.data());
      const SerialScope here;
      kernels::gemm(kernels::Trans::no, kernels::Trans::yes, p.m, count, cols, p.x, p.ldx,
                    rows.data(), cols, 0.0f, p.y + first, p.ldy);
    }
  });
}

inline bool aligned_to(const void* at, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
}

inline void stored_f32(const StoredProduct& p) {
  const StoredMatrix& w = p.w;
  const bool halves = p.m <= stored_few_halves, few = p.m <= stored_few;
  if (halves && w.format == BlockFormat::bf16) {
    stored_dots<WideBf16>(w.rows, w.cols, w.data, w.row_bytes, p.m, p.x, p.ldx, p.y, p.ldy);
  } else if (halves && w.format == BlockFormat::f16) {
    stored_dots<WideF16>(w.rows, w.cols, w.data, w.row_bytes, p.m, p.x, p.ldx, p.y, p.ldy);
  } else if (few && w.format == BlockFormat::f32) {  // wherever its bytes stand
    stored_dots<WideF32>(w.rows, w.cols, w.data, w.row_bytes, p.m, p.x, p.ldx, p.y, p.ldy);
  } else if (few) {
    block_dots(p);
  } else if (w.format == BlockFormat::f32 && aligned_to(w.data, alignof(float))) {
    kernels::gemm(kernels::Trans::no, kernels::Trans::yes, p.m, w.rows, w.cols, p.x, p.ldx,
                  reinterpret_cast<const float*>(w.data), w.cols, 0.0f, p.y, p.ldy);
  } else {
    stored_gemm(p, [&](std::int64_t first, std::int64_t count, float* to) {
      kernels::dequantize_blocks(w.format, count * w.cols, w.data + first * w.row_bytes, to);
    });
  }
}

// x rounded, then as above; bf16 by bf16 on the units for that.
inline void stored_rounded(const StoredProduct& p, Activations how) {
  const StoredMatrix& w = p.w;
  const Scratch lease(p.m * w.cols);
  float* const x = lease.data();
  parallel_for(p.m, 1 + 16384 / w.cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      round_row(w.format, how, w.cols, p.x + i * p.ldx, x + i * w.cols);
    }
  });
  if (w.format == BlockFormat::bf16 && p.m > stored_few && aligned_to(w.data, 2)) {
    auto* const codes = reinterpret_cast<std::uint16_t*>(x);
    for (std::int64_t i = 0; i < p.m * w.cols; ++i) {
      const std::uint32_t bits = bits_of(x[i]);
      const auto code = static_cast<std::uint16_t>(bits >> 16);
      std::memcpy(codes + i, &code, sizeof(code));
    }
    kernels::gemm_bf16(kernels::Trans::no, kernels::Trans::yes, p.m, w.rows, w.cols, codes, w.cols,
                       reinterpret_cast<const std::uint16_t*>(w.data), w.cols, 0.0f, p.y, p.ldy);
    return;
  }
  stored_f32({w, p.m, x, w.cols, p.y, p.ldy});
}

// Packed W, x not rounded.
inline void packed_f32(const StoredProduct& p) {
  const kernels::QuantizedMatrix& w = p.w.packed;
  const std::int64_t panels = (w.rows + 15) / 16;
  if (p.m <= stored_few) {
    const std::int64_t chunks = (panels + 3) / 4;
    stream_rows(
        chunks, static_cast<double>(p.m) * 4.0 * w.bytes(),
        [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t c = begin; c < end; ++c) {
            const std::int64_t count = (panels - c + chunks - 1) / chunks;
            for (std::int64_t i = 0; i < p.m; ++i) {
              run_on_lanes(PackedDots{{w}, p.x + i * p.ldx, c, chunks, count, p.y + i * p.ldy});
            }
          }
        });
    return;
  }
  // One way for all blocks, since sums round by way: how many rows come together hangs on threads.
  const TileSize tile = tile_size();
  const std::int64_t rest = w.rows % 16, fit = stored_rows(w.rows, w.cols) / 16;
  const bool streams = tile.width < 16 && p.m <= gemm_few && (rest == 0 || rest >= tile.width);
  parallel_for((panels + fit - 1) / fit, 1, [&](std::int64_t begin, std::int64_t end) {
    const Scratch block(fit * 16 * w.cols);
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t first = unit * fit, count = std::min(fit, panels - first);
      run_on_lanes(UnpackPanels{{w}, first, count, block.data()});
      const SerialScope here;
      const GemmOperands g = gemm_operands(
          kernels::Trans::no, kernels::Trans::no, p.m, std::min(16 * count, w.rows - 16 * first),
          w.cols, p.x, p.ldx, block.data(), 16 * count, 0.0f, p.y + 16 * first, p.ldy);
      if (streams) {
        gemm_few_rows(g, tile.width);
      } else {
        gemm_tiled(g, tile);
      }
    }
  });
}

}  // namespace detail

namespace kernels {

// y[m][rows] = x[m][cols] W'. ldx, ldy: numbers from row to row. int8_groups rounds x in groups of
// a packed W, or in the blocks of its format; f32 weights leave x as it is. y must not overlap x.
inline void multiply_stored(const StoredMatrix& w, Activations how, std::int64_t m, const float* x,
                            std::int64_t ldx, float* y, std::int64_t ldy) {
  if (m < 0 || (m > 1 && (ldx < w.cols || ldy < w.rows))) {
    detail::fail({"multiply_stored: ", m, " rows, ", ldx, " and ", ldy, " apart, by ", w.rows,
                  " x ", w.cols, " weights; rows of x must be ", w.cols, " apart or more, of y ",
                  w.rows});
  }
  if (m == 0 || w.rows == 0) {
    return;
  }
  detail::check_stored("multiply_stored", w);
  detail::check_stored_memory("multiply_stored", w, m, x, ldx, y, ldy);
  if (w.is_compressed()) {
    w.multiply(w, how, m, x, ldx, y, ldy);
    return;
  }
  for (std::int64_t i = 0; i < m && w.cols == 0; ++i) {
    std::fill(y + i * ldy, y + i * ldy + w.rows, 0.0f);
  }
  const detail::StoredProduct p{w, m, x, ldx, y, ldy};
  if (w.cols == 0) {
    return;
  }
  if (w.is_packed && how == Activations::f32) {
    detail::packed_f32(p);
  } else if (w.is_packed) {
    gemm_quantized(w.packed, m, x, ldx, y, ldy, how);
  } else if (detail::rounds_activations(w.format, how)) {
    detail::stored_rounded(p, how);
  } else {
    detail::stored_f32(p);
  }
}

}  // namespace kernels
}  // namespace tinyscale
