#pragma once
// What stands around a matrix product: the work that follows it, done to each block of C while it
// is in cache; weights packed once and used many times; many products of one size.
//   C = act(scale (A B + beta C) + bias) + residual

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/elementwise.hpp"
#include "tinyscale/compute/gemm.hpp"
#include "tinyscale/compute/lane_math.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/memory_check.hpp"
#include "tinyscale/compute/scratch.hpp"

namespace tinyscale {
namespace kernels {

enum class Activation { none, gelu, gelu_tanh, silu };

struct GemmEpilogue {
  float scale = 1.0f;
  const float* bias = nullptr;  // (n)
  Activation activation = Activation::none;
  float* before = nullptr;  // (m, n): what goes into the activation, kept for backward
  std::int64_t ld_before = 0;
  const float* residual = nullptr;  // (m, n), added last; not C: that is what beta is for
  std::int64_t ld_residual = 0;
};

// The reference body: what is done to C(i, j).
inline void gemm_epilogue_reference(const GemmEpilogue& e, std::int64_t i, std::int64_t j,
                                    float* c) {
  double x = static_cast<double>(e.scale) * static_cast<double>(*c);
  x += e.bias != nullptr ? static_cast<double>(e.bias[j]) : 0.0;
  if (e.before != nullptr) {
    e.before[i * e.ld_before + j] = static_cast<float>(x);
  }
  x = e.activation == Activation::gelu        ? gelu_reference(x)
      : e.activation == Activation::gelu_tanh ? gelu_tanh_reference(x)
      : e.activation == Activation::silu      ? silu_reference(x)
                                              : x;
  x += e.residual != nullptr ? static_cast<double>(e.residual[i * e.ld_residual + j]) : 0.0;
  *c = static_cast<float>(x);
}

}  // namespace kernels

namespace detail {

// Rows [0, m), columns [column, column + n) of C and of all that goes with it.
struct GemmFinish {
  const kernels::GemmEpilogue& e;
  float* c;
  std::int64_t ldc, row, m, column, n;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typedef kernels::Activation A;
    switch (e.activation) {
      case A::none: rows<L, A::none>(); break;
      case A::gelu: rows<L, A::gelu>(); break;
      case A::gelu_tanh: rows<L, A::gelu_tanh>(); break;
      case A::silu: rows<L, A::silu>(); break;
    }
  }

  template <class L, kernels::Activation ACTIVATION>
  TINYSCALE_INLINE void rows() const {
    if (m == 0) {
      return;
    }
    constexpr int many = ACTIVATION == kernels::Activation::none ? 4 : 2;
    Row at{c + row * ldc + column, e.bias != nullptr ? e.bias + column : nullptr,
           e.before != nullptr ? e.before + row * e.ld_before + column : nullptr,
           e.residual != nullptr ? e.residual + row * e.ld_residual + column : nullptr};
    typename L::V scale;
    broadcast<L>(e.scale, scale);
    // Of its own: a store might change members.
    const std::int64_t columns = n, last = m;
    const std::int64_t next = ldc, next_before = e.ld_before, next_residual = e.ld_residual;
    for (std::int64_t i = 0; i < last; ++i) {
      std::int64_t j = 0;
      for (; columns - j >= many * L::width; j += many * L::width) {
        vectors<L, ACTIVATION, many>(at, j, L::width, scale);
      }
      for (; j < columns; j += L::width) {
        vectors<L, ACTIVATION, 1>(at, j, columns - j, scale);
      }
      if (i + 1 < last) {
        at.c += next;
        at.before = at.before == nullptr ? nullptr : at.before + next_before;
        at.residual = at.residual == nullptr ? nullptr : at.residual + next_residual;
      }
    }
  }

  struct Row {
    float* c;
    const float* bias;
    float* before;
    const float* residual;
  };

  // COUNT vectors from column j on: whole ones; of a single one perhaps only `left` numbers.
  template <class L, kernels::Activation ACTIVATION, int COUNT>
  TINYSCALE_INLINE void vectors(const Row& at, std::int64_t j, std::int64_t left,
                                const typename L::V& scale) const {
    constexpr bool whole = COUNT > 1;
    typedef typename L::V V;
    V x[static_cast<std::size_t>(COUNT)], y;
    TINYSCALE_UNROLL
    for (int v = 0; v < COUNT; ++v) {
      take<L, whole>(at.c + j + v * L::width, left, x[v]);
      x[v] = x[v] * scale;
    }
    if (at.bias != nullptr) {
      TINYSCALE_UNROLL
      for (int v = 0; v < COUNT; ++v) {
        take<L, whole>(at.bias + j + v * L::width, left, y);
        x[v] = x[v] + y;
      }
    }
    if (at.before != nullptr) {
      TINYSCALE_UNROLL
      for (int v = 0; v < COUNT; ++v) {
        put<L, whole>(at.before + j + v * L::width, left, x[v]);
      }
    }
    TINYSCALE_UNROLL
    for (int v = 0; v < COUNT; ++v) {
      act<L, ACTIVATION>(x[v]);
    }
    if (at.residual != nullptr) {
      TINYSCALE_UNROLL
      for (int v = 0; v < COUNT; ++v) {
        take<L, whole>(at.residual + j + v * L::width, left, y);
        x[v] = x[v] + y;
      }
    }
    TINYSCALE_UNROLL
    for (int v = 0; v < COUNT; ++v) {
      put<L, whole>(at.c + j + v * L::width, left, x[v]);
    }
  }

  template <class L, kernels::Activation ACTIVATION>
  TINYSCALE_INLINE void act(typename L::V& x) const {
    typedef kernels::Activation A;
    [[maybe_unused]] const typename L::V a = x;
    if constexpr (ACTIVATION == A::gelu) {
      GeluOp().template apply<L>(a, a, x);
    } else if constexpr (ACTIVATION == A::gelu_tanh) {
      GeluTanhOp().template apply<L>(a, a, x);
    } else if constexpr (ACTIVATION == A::silu) {
      SiluOp().template apply<L>(a, a, x);
    }
  }

  template <class L, bool WHOLE>
  TINYSCALE_INLINE void take(const float* from, std::int64_t left, typename L::V& x) const {
    if (WHOLE || left >= L::width) {
      load<L>(from, x);
    } else {
      load_part<L>(from, left, 0.0f, x);
    }
  }
  template <class L, bool WHOLE>
  TINYSCALE_INLINE void put(float* to, std::int64_t left, const typename L::V& x) const {
    if (WHOLE || left >= L::width) {
      store<L>(to, x);
    } else {
      store_part<L>(to, left, x);
    }
  }
};

inline void gemm_finish(const GemmOperands& g, std::int64_t row, std::int64_t m,
                        std::int64_t column, std::int64_t n) {
  const kernels::GemmEpilogue& e = *static_cast<const kernels::GemmEpilogue*>(g.epilogue);
  run_on_lanes(GemmFinish{e, g.c, g.ldc, row, m, column, n});
}

// Sets what follows; throws where no activation is named, or where it writes or reads what is still
// needed.
inline void gemm_follow(const char* who, GemmOperands& g, const kernels::GemmEpilogue& e) {
  const auto rows = [&](const float* at, std::int64_t stride) {
    return stored_rows(at, kernels::Trans::no, g.m, g.n, stride);
  };
  const auto operand = [](const float* at, std::int64_t m, std::int64_t n, std::int64_t row,
                          std::int64_t column) {
    const bool no = column == 1;  // as stored
    return stored_rows(at, no ? kernels::Trans::no : kernels::Trans::yes, m, n, no ? row : column);
  };
  const StoredRows c = rows(g.c, g.ldc), before = rows(e.before, e.ld_before),
                   residual = rows(e.residual, e.ld_residual);
  if (g.m > 1 && ((e.before != nullptr && e.ld_before < g.n) ||
                  (e.residual != nullptr && e.ld_residual < g.n))) {
    fail({who, ": rows of before and residual are ", e.ld_before, " and ", e.ld_residual,
          " apart; they must be at least n = ", g.n});
  }
  if (gemm_overlap(who, c, before) || gemm_overlap(who, c, residual)) {
    fail({who, ": C overlaps before or residual; each must have memory of its own"});
  }
  if (e.activation < kernels::Activation::none || e.activation > kernels::Activation::silu) {
    fail({who, ": activation ", static_cast<int>(e.activation),
          "; 0 to 3 are right: none, gelu, gelu_tanh, silu"});
  }
  const Memory bias{"bias", e.bias, g.n};
  check_own(who, {"C", g.c, g.n, g.m, g.ldc}, {bias});
  check_own(who, {"before", e.before, g.n, g.m, e.ld_before}, {bias});
  if (gemm_overlap(who, before, residual) ||
      gemm_overlap(who, before, operand(g.a, g.m, g.k, g.a_row, g.a_col)) ||
      gemm_overlap(who, before, operand(g.b, g.k, g.n, g.b_row, g.b_col))) {
    fail({who, ": before overlaps A, B or residual; it must have memory of its own"});
  }
  g.epilogue = &e;
  g.finish = &gemm_finish;
  // A residual alone: finish stays, for the ways without tiles.
  if (e.scale == 1.0f && e.bias == nullptr && e.activation == kernels::Activation::none &&
      e.before == nullptr && g.beta == 0.0f && g.k > 0 &&
      g.k <= gemm_pass_depth(g.m, g.k, tile_size().wide)) {
    g.added = e.residual;
    g.ld_added = e.ld_residual;
  }
}

}  // namespace detail

namespace kernels {

// gemm, then the epilogue on each block as it is finished.
inline void gemm_fused(Trans ta, Trans tb, std::int64_t m, std::int64_t n, std::int64_t k,
                       const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
                       float beta, float* c, std::int64_t ldc, const GemmEpilogue& epilogue) {
  detail::GemmOperands g = detail::gemm_operands(ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc);
  if (detail::gemm_check("gemm_fused", ta, tb, g, lda, ldb)) {
    detail::gemm_follow("gemm_fused", g, epilogue);
    detail::gemm_run(g);
  }
}

// B as the kernels of one path read it.
struct PackedWeights {
  std::int64_t k = 0, n = 0;
  CpuPath path = CpuPath::portable;
  Shared<detail::Scratch> memory;  // panels [k][tile's width], then the narrower last one
};

// op(B) is k x n.
inline PackedWeights pack_weights(Trans tb, std::int64_t k, std::int64_t n, const float* b,
                                  std::int64_t ldb) {
  detail::check_to_pack("pack_weights", k, n, detail::stored_rows(b, tb, k, n, ldb));
  PackedWeights w{k, n, detail::active_path(), {}};
  if (k == 0 || n == 0) {
    return w;
  }
  const detail::TileSize tile = detail::tile_size();
  const std::int64_t full = n / tile.wide * tile.wide;
  detail::gemm_extent("pack_weights", k, n + tile.width, n + tile.width);
  w.memory = Shared<detail::Scratch>(new detail::Scratch((full + tile.rounded(n - full)) * k));
  const detail::GemmOperands g =
      detail::gemm_operands(Trans::no, tb, 1, n, k, nullptr, k, b, ldb, 0.0f, nullptr, n);
  detail::gemm_pack(g, 0, n, tile, w.memory->data(), w.memory->data() + full * k,
                    n * k < (1 << 16));
  return w;
}

// C[m, n] = A[m, k] W + beta C, then the epilogue.
inline void gemm_packed(std::int64_t m, const float* a, std::int64_t lda, const PackedWeights& w,
                        float beta, float* c, std::int64_t ldc,
                        const GemmEpilogue& epilogue = GemmEpilogue()) {
  if (w.path != detail::active_path()) {
    detail::fail({"gemm_packed: the weights were packed for the path ", name_of(w.path), " and ",
                  name_of(detail::active_path()), " is in use; pack them again"});
  }
  float none = 0.0f;
  const float* const packed = w.memory == nullptr ? &none : w.memory->data();
  detail::GemmOperands g =
      detail::gemm_operands(Trans::no, Trans::no, m, w.n, w.k, a, lda, packed, w.n, beta, c, ldc);
  if (!detail::gemm_check("gemm_packed", Trans::no, Trans::no, g, lda, w.n)) {
    return;
  }
  detail::gemm_follow("gemm_packed", g, epilogue);
  if (w.k == 0) {
    detail::gemm_run(g);
    return;
  }
  const detail::TileSize tile = detail::tile_size();
  const std::int64_t full = w.n / tile.wide * tile.wide;
  if (m >= detail::gemm_ahead().packed_rows && m <= detail::gemm_few_packed_rows &&
      w.n * w.k > detail::gemm_in_cache) {
    detail::gemm_few_packed(g, packed, packed + full * w.k, tile.rounded(w.n - full));
    return;
  }
  const std::int64_t many = std::max(m, detail::gemm_rows + 1);  // B lies along its memory
  const detail::GemmPanels panels{0,
                                  w.n,
                                  packed,
                                  packed + full * w.k,
                                  tile.rounded(w.n - full),
                                  detail::gemm_pass_depth(many, w.k, tile.wide),
                                  false,
                                  m > detail::gemm_rows,
                                  detail::gemm_is_narrow(tile.wide)};
  detail::gemm_blocks(g, panels, detail::gemm_is_small(g));
}

// Products of one size: matrix x of A starts at a + x stride_a, and so on. A stride of 0 shares A
// or B. Small ones are dealt out whole, large ones one after another, each on all threads.
inline void gemm_batched(std::int64_t batch, Trans ta, Trans tb, std::int64_t m, std::int64_t n,
                         std::int64_t k, const float* a, std::int64_t lda, std::int64_t stride_a,
                         const float* b, std::int64_t ldb, std::int64_t stride_b, float beta,
                         float* c, std::int64_t ldc, std::int64_t stride_c) {
  const std::int64_t c_size = detail::gemm_extent("gemm_batched", m, n, ldc);
  detail::gemm_extent("gemm_batched", batch, c_size, stride_c);
  const bool beside = stride_c >= n && stride_c <= ldc / std::max<std::int64_t>(batch, 1);
  if (batch > 1 && c_size > 0 && stride_c < c_size && !beside) {
    detail::fail(
        {"gemm_batched: matrices of C are ", stride_c, " apart and overlap; each takes ", c_size});
  }
  const detail::StoredRows of_c = detail::stored_rows(c, Trans::no, m, n, ldc);
  detail::check_batches(batch, of_c, stride_c, detail::stored_rows(a, ta, m, k, lda), stride_a,
                        "A");
  detail::check_batches(batch, of_c, stride_c, detail::stored_rows(b, tb, k, n, ldb), stride_b,
                        "B");
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t x = begin; x < end; ++x) {
      gemm(ta, tb, m, n, k, a + x * stride_a, lda, b + x * stride_b, ldb, beta, c + x * stride_c,
           ldc);
    }
  };
  const double work = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  if (batch < 2 * thread_count() || work > (1 << 24)) {
    body(0, batch);
  } else {
    parallel_for(batch, 1 + static_cast<std::int64_t>((1 << 18) / (work + 1.0)), body);
  }
}

}  // namespace kernels
}  // namespace tinyscale
