#pragma once
// Matrix product of bf16 numbers, summed in f32: C[M, N] = A[M, K] B[K, N] + beta C; 2 M K N flops.
// f32 operands are rounded to nearest, ties to even, as they are packed: what training in bf16 with
// f32 master weights calls. Products of bf16 numbers are exact in f32; each sum rounds.
//   AMX tiles               16 x the f32 rate
//   vdpbf16ps (AMD)         2 x: two products a lane; takes denormals as zero
//   elsewhere               few rows of A: words are widened as they come; more: the f32 product
//                           of the rounded operands
// A NaN or an infinity in a row of A or column of B reaches every number of C it belongs to.

#include <cstddef>
#include <cstdint>

#include "tinyscale/base/format.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/amx_tiles.hpp"
#include "tinyscale/compute/gemm.hpp"
#include "tinyscale/compute/gemm_check.hpp"
#include "tinyscale/compute/gemm_words.hpp"
#include "tinyscale/compute/round_halves.hpp"

namespace tinyscale {
namespace kernels {

// The reference body.
inline void gemm_bf16_reference(Trans ta, Trans tb, std::int64_t m, std::int64_t n, std::int64_t k,
                                const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
                                float beta, float* c, std::int64_t ldc) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0.0;
      for (std::int64_t p = 0; p < k; ++p) {
        const float x = ta == Trans::no ? a[i * lda + p] : a[p * lda + i];
        const float y = tb == Trans::no ? b[p * ldb + j] : b[j * ldb + p];
        sum += double{from_bf16(to_bf16(x))} * double{from_bf16(to_bf16(y))};
      }
      const float old = beta == 0.0f ? 0.0f : beta * c[i * ldc + j];
      c[i * ldc + j] = static_cast<float>(sum) + old;
    }
  }
}

}  // namespace kernels

namespace detail {

#if TINYSCALE_X86_UNITS
struct DotBf16 {
  static constexpr int width = 16, rows = 6, vectors = 4, parts = 1;
  static constexpr bool integer = false;
  typedef Lanes16::V Sum;
  typedef Lanes16::Loose LooseSum;
  typedef Lanes16::I Words;
  typedef float Scalar;

  TINYSCALE_AVX512 static inline void load(const std::uint32_t* from, Words& w) {
    w = *reinterpret_cast<const Lanes16::LooseI*>(from);
  }
  TINYSCALE_AVX512 static inline void broadcast(std::uint32_t word, Words& w) {
    broadcast_word(static_cast<std::int32_t>(word), w);
  }
  TINYSCALE_AVX512 static inline void dot(const Words& a, const Words& b, Sum& sum) {
    dot_bf16_pairs(a, b, sum);
  }
};

TINYSCALE_AVX512 inline void run_dot_bf16(const WordTask& task) {
  WordTiles<DotBf16>{task}.run();
  __builtin_ia32_vzeroupper();
}
#endif

// The two bf16 numbers of a word, as f32.
template <class L>
TINYSCALE_INLINE void first_of(const typename L::I& words, typename L::V& x) {
  const typename L::I bits = words << 16;
  std::memcpy(&x, &bits, sizeof(x));
}
template <class L>
TINYSCALE_INLINE void second_of(const typename L::I& words, typename L::V& x) {
  const typename L::I bits = words & static_cast<std::int32_t>(0xffff0000U);
  std::memcpy(&x, &bits, sizeof(x));
}

// Without a unit: both numbers of a word as f32, two multiply-adds. Sums of a few rows hide behind
// the reading of B.
template <class L>
struct WidenedBf16 {
  static constexpr int width = L::width, rows = L::width == 16 ? 8 : 4, vectors = 2, parts = 1;
  static constexpr bool integer = false;
  typedef typename L::V Sum;
  typedef typename L::Loose LooseSum;
  typedef typename L::I Words;
  typedef float Scalar;

  static TINYSCALE_INLINE void load(const std::uint32_t* from, Words& w) {
    w = *reinterpret_cast<const typename L::LooseI*>(from);
  }
  static TINYSCALE_INLINE void broadcast(std::uint32_t word, Words& w) {
    broadcast_word(static_cast<std::int32_t>(word), w);
  }
  static TINYSCALE_INLINE void dot(const Words& a, const Words& b, Sum& sum) {
    Sum x, y;
    first_of<L>(a, x);
    first_of<L>(b, y);
    sum = sum + x * y;
    second_of<L>(a, x);
    second_of<L>(b, y);
    sum = sum + x * y;
  }
};

struct WidenedTask {
  const WordTask& task;
  template <class L>
  TINYSCALE_INLINE void run() const {
    WordTiles<WidenedBf16<L>>{task}.run();
  }
};

inline void run_widened_bf16(const WordTask& task) { run_on_lanes(WidenedTask{task}); }

// The unit of the active path; run is null where bf16 is widened to f32.
inline WordUnit bf16_word_unit() {
#if TINYSCALE_X86_UNITS
  const char* const unit = bf16_unit(cpu(), active_path());
  if (unit[0] == 'a' && forced_path().load(std::memory_order_relaxed) < 0) {
    return tile_unit<AmxTiles, Bf16InTiles>();
  }
  if (unit[0] == 'v') {
    return {run_dot_bf16, DotBf16::rows, 1, false};
  }
#endif
  return {nullptr, 1, 1, false};
}

inline WordSource word_source(WordKind kind, const void* data, kernels::Trans trans,
                              std::int64_t xs, std::int64_t ks, std::int64_t ld) {
  const bool along_k = trans == kernels::Trans::yes;
  return {kind, data, along_k ? ld : 1, along_k ? 1 : ld, xs, ks, 0};
}

// f32 numbers, rounded as the active unit does it fastest.
inline WordKind f32_words() {
#if TINYSCALE_X86_UNITS
  return cpu().avx512_bf16 && active_path() == CpuPath::avx512 ? WordKind::f32_by_unit
                                                               : WordKind::f32;
#else
  return WordKind::f32;
#endif
}

// Rows [begin, end) of A or columns of B, rounded and widened to f32, at to; the layout is kept.
inline void widen_bf16(const WordSource& s, std::int64_t begin, std::int64_t end, float* to) {
  const bool along_k = s.k_stride == 1;
  const std::int64_t lines = along_k ? end - begin : s.ks;
  const std::int64_t count = along_k ? s.ks : end - begin;
  parallel_for(lines, 1 + 4096 / count, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t line = first; line < last; ++line) {
      const std::int64_t at = along_k ? (begin + line) * s.x_stride : line * s.k_stride + begin;
      float* const out = to + line * count;
      if (s.kind == WordKind::bf16) {
        run_on_lanes(WidenBf16Codes{count, static_cast<const std::uint16_t*>(s.data) + at, out});
      } else {
        run_on_lanes(RoundHalves{true, count, static_cast<const float*>(s.data) + at, out});
      }
    }
  });
}

// Words [first, last) of k of a packed B, columns [begin, end), as f32 at to[k][end - begin]; begin
// starts a panel.
struct WidenPacked {
  const std::uint32_t* packed;
  std::int64_t n, k, begin, end;
  float* to;
  std::int64_t first, last;

  template <class L>
  TINYSCALE_INLINE void run() const {
    const std::int64_t words = round_up((k + 1) / 2, word_step), wide = round_up(n, word_wide);
    for (std::int64_t word = first; word < last; ++word) {
      const std::int64_t w = word / word_pass * word_pass;  // first word of its pass
      const std::int64_t deep = std::min(word_pass, words - w);
      for (std::int64_t j = begin; j < end; j += word_wide) {
        const std::uint32_t* const from =
            packed + w * wide + j / word_wide * deep * word_wide + (word - w) * word_wide;
        float* const out = to + 2 * word * (end - begin) + j - begin;
        line<L>(from, std::min(word_wide, end - j), out, 2 * word + 1 < k ? end - begin : 0);
      }
    }
  }
  // The second numbers go `below` further; 0: there are none.
  template <class L>
  static TINYSCALE_INLINE void line(const std::uint32_t* from, std::int64_t count, float* out,
                                    std::int64_t below) {
    typename L::I both;
    typename L::V v;
    for (std::int64_t i = 0; i < count; i += L::width) {
      std::memcpy(&both, from + i, sizeof(both));  // a panel has whole vectors
      first_of<L>(both, v);
      store_some<L>(out + i, count - i, v);
      if (below > 0) {
        second_of<L>(both, v);
        store_some<L>(out + below + i, count - i, v);
      }
    }
  }
};

inline void widen_packed(const std::uint32_t* packed, std::int64_t n, std::int64_t k,
                         std::int64_t begin, std::int64_t end, float* to) {
  parallel_for((k + 1) / 2, 32, [&](std::int64_t first, std::int64_t last) {
    run_on_lanes(WidenPacked{packed, n, k, begin, end, to, first, last});
  });
}

// Where the processor has no unit: the f32 product of the rounded operands, in blocks.
inline void bf16_by_f32(const WordGemm& g) {
  const std::int64_t m = g.a.xs, n = g.b.xs, k = g.a.ks;
  const std::int64_t rows = std::min(m, std::max<std::int64_t>(word_block, 4 * word_fit / k));
  const std::int64_t fit = std::max<std::int64_t>(1, word_fit / k / word_wide) * word_wide;
  const std::int64_t columns = std::min(n, fit);
  const Scratch a(rows * k), b(columns * k);
  for (std::int64_t j = 0; j < n; j += columns) {
    const std::int64_t wide = std::min(columns, n - j);
    const bool b_yes = g.b_packed == nullptr && g.b.k_stride == 1;
    if (g.b_packed != nullptr) {
      widen_packed(g.b_packed, n, k, j, j + wide, b.data());
    } else {
      widen_bf16(g.b, j, j + wide, b.data());
    }
    for (std::int64_t i = 0; i < m; i += rows) {
      const std::int64_t tall = std::min(rows, m - i);
      const bool a_yes = g.a.k_stride != 1;
      if (rows < m || j == 0) {
        widen_bf16(g.a, i, i + tall, a.data());
      }
      kernels::gemm(a_yes ? kernels::Trans::yes : kernels::Trans::no,
                    b_yes ? kernels::Trans::yes : kernels::Trans::no, tall, wide, k, a.data(),
                    a_yes ? tall : k, b.data(), b_yes ? k : wide, g.beta,
                    static_cast<float*>(g.c) + i * g.ldc + j, g.ldc);
    }
  }
}

inline void bf16_product(const WordSource& a, const WordSource& b, const std::uint32_t* b_packed,
                         float beta, float* c, std::int64_t ldc) {
  if (a.xs <= 0 || b.xs <= 0 || a.ks <= 0) {
    kernels::gemm(kernels::Trans::no, kernels::Trans::no, a.xs, b.xs, 0, nullptr, 0, nullptr, 0,
                  beta, c, ldc);
    return;
  }
  WordGemm g{bf16_word_unit(), a, b, b_packed, beta, c, ldc, nullptr};
  const bool packs_fast = b_packed != nullptr || b.kind == WordKind::f32_by_unit;
  if (g.unit.run == nullptr && packs_fast && a.xs <= word_few) {
    g.unit = {run_widened_bf16, 8, 1, false};
  }
  if (g.unit.run == nullptr) {
    bf16_by_f32(g);
  } else {
    word_gemm(g);
  }
}

inline WordSource rows_of(WordKind kind, const void* data, kernels::Trans trans, std::int64_t m,
                          std::int64_t k, std::int64_t ld) {
  return word_source(
      kind, data, trans == kernels::Trans::no ? kernels::Trans::yes : kernels::Trans::no, m, k, ld);
}

}  // namespace detail

namespace kernels {

// C = op(A) op(B) + beta C. beta is 0 (C is not read) or 1. C must not overlap A or B.
inline void gemm_bf16(Trans ta, Trans tb, std::int64_t m, std::int64_t n, std::int64_t k,
                      const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
                      float beta, float* c, std::int64_t ldc) {
  const detail::GemmOperands g =
      detail::gemm_operands(ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc);
  if (detail::gemm_check("gemm_bf16", ta, tb, g, lda, ldb)) {
    const detail::WordKind kind = detail::f32_words();
    detail::bf16_product(detail::rows_of(kind, a, ta, m, k, lda),
                         detail::word_source(kind, b, tb, n, k, ldb), nullptr, beta, c, ldc);
  }
}

// The same of operands that are bf16 codes already, as to_bf16 gives.
inline void gemm_bf16(Trans ta, Trans tb, std::int64_t m, std::int64_t n, std::int64_t k,
                      const std::uint16_t* a, std::int64_t lda, const std::uint16_t* b,
                      std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
  detail::check_beta("gemm_bf16", beta);
  if (detail::gemm_check("gemm_bf16", k, detail::stored_rows(a, ta, m, k, lda),
                         detail::stored_rows(b, tb, k, n, ldb),
                         detail::stored_rows(c, Trans::no, m, n, ldc))) {
    const detail::WordKind kind = detail::WordKind::bf16;
    detail::bf16_product(detail::rows_of(kind, a, ta, m, k, lda),
                         detail::word_source(kind, b, tb, n, k, ldb), nullptr, beta, c, ldc);
  }
}

// Weights [K, N] rounded to bf16 and laid out once, for many products; good on every path.
struct PackedBf16 {
  std::int64_t k = 0, n = 0;
  Shared<detail::WordBuffer> words;
};

inline PackedBf16 pack_bf16(Trans tb, std::int64_t k, std::int64_t n, const float* b,
                            std::int64_t ldb) {
  detail::check_weights("pack_bf16", k, n);
  detail::check_to_pack("pack_bf16", k, n, detail::stored_rows(b, tb, k, n, ldb));
  PackedBf16 packed{k, n, {}};
  if (k > 0 && n > 0) {
    packed.words = detail::pack_all(detail::word_source(detail::f32_words(), b, tb, n, k, ldb));
  }
  return packed;
}

// C = op(A) B + beta C, A [M, K].
inline void gemm_bf16(Trans ta, std::int64_t m, const float* a, std::int64_t lda,
                      const PackedBf16& b, float beta, float* c, std::int64_t ldc) {
  detail::check_beta("gemm_bf16", beta);
  if (detail::gemm_check("gemm_bf16", b.k, detail::stored_rows(a, ta, m, b.k, lda),
                         detail::StoredRows(), detail::stored_rows(c, Trans::no, m, b.n, ldc))) {
    const detail::WordKind kind = detail::f32_words();
    detail::bf16_product(detail::rows_of(kind, a, ta, m, b.k, lda),
                         detail::word_source(kind, nullptr, Trans::no, b.n, b.k, b.n),
                         b.words ? b.words->data() : nullptr, beta, c, ldc);
  }
}

}  // namespace kernels
}  // namespace tinyscale
