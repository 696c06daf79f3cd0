#pragma once
// Matrix product of int8 numbers, exact in int32: C[M, N] = A[M, K] B[K, N]; 2 M K N operations.
// Four products a lane: vpdpbusd (VNNI) takes one side without sign, so B is kept 128 higher and
// 128 times the sum of A's row is taken off. Elsewhere words are widened to pairs of 16 bits: those
// of A where they are packed, in two parts, those of B where they are read. With scales it gives
// f32: c = a_scale[row] * sum over blocks of k of b_scale[block][column] * C.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/compute/gemm_bf16.hpp"
#include "tinyscale/compute/gemm_check.hpp"
#include "tinyscale/compute/gemm_words.hpp"
#include "tinyscale/compute/memory_check.hpp"

namespace tinyscale {
namespace kernels {

// The reference body.
inline void gemm_int8_reference(Trans ta, Trans tb, std::int64_t m, std::int64_t n, std::int64_t k,
                                const std::int8_t* a, std::int64_t lda, const std::int8_t* b,
                                std::int64_t ldb, std::int32_t* c, std::int64_t ldc) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      std::int32_t sum = 0;
      for (std::int64_t p = 0; p < k; ++p) {
        const std::int8_t x = ta == Trans::no ? a[i * lda + p] : a[p * lda + i];
        const std::int8_t y = tb == Trans::no ? b[p * ldb + j] : b[j * ldb + p];
        sum += x * y;
      }
      c[i * ldc + j] = sum;
    }
  }
}

}  // namespace kernels

namespace detail {

// sum += the four products of each word, a of int8, b of uint8. VNNI by assembler, else widened:
// the bytes at even and odd places as pairs of 16 bits, multiplied and added in pairs.
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
typedef std::int16_t Shorts8 __attribute__((vector_size(16)));
typedef std::int16_t Shorts16 __attribute__((vector_size(32)));
typedef std::uint16_t Unsigned8 __attribute__((vector_size(16)));
typedef std::uint16_t Unsigned16 __attribute__((vector_size(32)));
TINYSCALE_AVX2 inline void dot_widened(const Lanes8::I& a, const Lanes8::I& b, Lanes8::I& sum) {
  Shorts16 left;
  Unsigned16 right;
  std::memcpy(&left, &a, sizeof(a));
  std::memcpy(&right, &b, sizeof(b));
  sum = sum + __builtin_ia32_pmaddwd256((left << 8) >> 8, Shorts16(right & 255)) +
        __builtin_ia32_pmaddwd256(left >> 8, Shorts16(right >> 8));
}
TINYSCALE_INLINE void dot_widened(const Lanes4::I& a, const Lanes4::I& b, Lanes4::I& sum) {
  Shorts8 left;
  Unsigned8 right;
  std::memcpy(&left, &a, sizeof(a));
  std::memcpy(&right, &b, sizeof(b));
  sum = sum + __builtin_ia32_pmaddwd128((left << 8) >> 8, Shorts8(right & 255)) +
        __builtin_ia32_pmaddwd128(left >> 8, Shorts8(right >> 8));
}
// sum += the two products of each pair of 16 bits, none of b below zero.
TINYSCALE_AVX2 inline void dot_pairs(const Lanes8::I& a, const Lanes8::I& b, Lanes8::I& sum) {
#if TINYSCALE_X86_UNITS
  dot_pairs_by_unit(a, b, sum);
  return;
#endif
  Shorts16 left, right;
  std::memcpy(&left, &a, sizeof(a));
  std::memcpy(&right, &b, sizeof(b));
  sum = sum + __builtin_ia32_pmaddwd256(left, right);
}
TINYSCALE_INLINE void dot_pairs(const Lanes4::I& a, const Lanes4::I& b, Lanes4::I& sum) {
  Shorts8 left, right;
  std::memcpy(&left, &a, sizeof(a));
  std::memcpy(&right, &b, sizeof(b));
  sum = sum + __builtin_ia32_pmaddwd128(left, right);
}
// The same for b below 128: two products fit 16 bits.
TINYSCALE_AVX2 inline void dot_few_bits_widened(const Lanes8::I& a, const Lanes8::I& b,
                                                Lanes8::I& sum) {
  typedef char Bytes __attribute__((vector_size(32)));
  Bytes left, right;
  Shorts16 pairs, ones;
  std::memcpy(&left, &a, sizeof(a));
  std::memcpy(&right, &b, sizeof(b));
  pairs = __builtin_ia32_pmaddubsw256(right, left);
  ones = Shorts16{} + 1;
  sum = sum + __builtin_ia32_pmaddwd256(pairs, ones);
}
#else
template <class I>
TINYSCALE_INLINE void dot_widened(const I& a, const I& b, I& sum) {
  sum = sum + (a << 24 >> 24) * (b & 255) + (a << 16 >> 24) * (b >> 8 & 255) +
        (a << 8 >> 24) * (b >> 16 & 255) + (a >> 24) * (b >> 24 & 255);
}
template <class I>
TINYSCALE_INLINE void dot_pairs(const I& a, const I& b, I& sum) {
  sum = sum + (a << 16 >> 16) * (b & 65535) + (a >> 16) * (b >> 16);
}
#endif

enum class Int8Dot { widened, vnni };

template <class L, Int8Dot DOT>
struct DotInt8 {
  static constexpr int width = L::width, rows = L::rows, vectors = L::vectors;
  static constexpr int parts = DOT == Int8Dot::widened ? 2 : 1;
  static constexpr bool integer = true;
  typedef typename L::I Sum;
  typedef typename L::I Words;
  typedef typename L::LooseI LooseSum;
  typedef std::int32_t Scalar;
  typedef L Lanes;
  typedef typename L::V Floats;

  static TINYSCALE_INLINE void load(const std::uint32_t* from, Words& w) {
    w = *reinterpret_cast<const LooseSum*>(from);
  }
  // f16 numbers as f32: by instruction, or the bits in an f32's place times 2^112.
  static TINYSCALE_INLINE void load_halves(const std::uint16_t* from, Floats& x) {
#if TINYSCALE_X86_UNITS
    if constexpr (L::width >= 8) {
      halves_by_unit(from, x);
      return;
    }
#endif
    Words half, bits;
#if TINYSCALE_VECTOR_EXTENSIONS
    half = __builtin_convertvector(*reinterpret_cast<const typename L::LooseShorts*>(from), Words);
#else
    half = *from;
#endif
    bits = (half & 0x7fff) << 13;
    std::memcpy(&x, &bits, sizeof(x));
    x = x * 5.192296858534828e33f;
    std::memcpy(&bits, &x, sizeof(x));
    bits = bits | ((half >> 15) << 31);
    std::memcpy(&x, &bits, sizeof(x));
  }
  static TINYSCALE_INLINE void broadcast(std::uint32_t word, Words& w) {
    broadcast_word(static_cast<std::int32_t>(word), w);
  }
  static TINYSCALE_INLINE void dot(const Words& a, const Words& b, Sum& sum) {
#if TINYSCALE_X86_UNITS
    if constexpr (DOT == Int8Dot::vnni) {
      dot_vnni(a, b, sum);
    } else {
      dot_widened(a, b, sum);
    }
#else
    dot_widened(a, b, sum);
#endif
  }
  // Pairs of the even numbers are part 0, of the odd ones part 1.
  static TINYSCALE_INLINE void take(int part, Words& b) {
    b = (part == 0 ? b : b >> 8) & 0x00ff00ff;
  }
  static TINYSCALE_INLINE void split(const Words& a, Words& even, Words& odd) {
    even = ((a << 24 >> 24) & 65535) | (a << 8 >> 24 << 16);
    odd = ((a << 16 >> 24) & 65535) | (a >> 24 << 16);
  }
  static TINYSCALE_INLINE void dot_part(const Words& a, const Words& b, Sum& sum) {
    dot_pairs(a, b, sum);
  }
  // For b below 128.
  static TINYSCALE_INLINE void dot_few_bits(const Words& a, const Words& b, Sum& sum) {
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
    if constexpr (L::width == 8 && DOT == Int8Dot::widened) {
      dot_few_bits_widened(a, b, sum);
      return;
    }
#endif
    dot(a, b, sum);
  }
};

// Runs kernel.run<DotInt8<...>>() on the active path's unit.
template <class Kernel, Int8Dot DOT>
struct OnInt8 {
  const Kernel& kernel;
  template <class L>
  TINYSCALE_INLINE void run() const {
    kernel.template run<DotInt8<L, DOT>>();
  }
};

template <class Kernel>
void run_on_int8(const Kernel& kernel) {
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
  const CpuPath path = active_path();
#if TINYSCALE_X86_UNITS
  if (path == CpuPath::avx512 && cpu().avx512_vnni) {
    run_avx512(OnInt8<Kernel, Int8Dot::vnni>{kernel});
    return;
  }
  if (path != CpuPath::portable && cpu().avx_vnni) {
    run_avx2(OnInt8<Kernel, Int8Dot::vnni>{kernel});
    return;
  }
#endif
  if (path != CpuPath::portable) {
    run_avx2(OnInt8<Kernel, Int8Dot::widened>{kernel});
    return;
  }
#endif
  run_portable(OnInt8<Kernel, Int8Dot::widened>{kernel});
}

struct Int8Tiles {
  const WordTask& t;
  template <class U>
  TINYSCALE_INLINE void run() const {
    WordTiles<U>{t}.run();
  }
};

// Words of A at parts[count + i] become parts[i] and parts[count + i].
struct Int8Split {
  std::uint32_t* parts;
  std::int64_t count;
  template <class U>
  TINYSCALE_INLINE void run() const {
    typename U::Words words, even, odd;
    std::int64_t i = 0;
    for (; i + U::width <= count; i += U::width) {
      std::memcpy(&words, parts + count + i, sizeof(words));
      U::split(words, even, odd);
      std::memcpy(parts + i, &even, sizeof(words));
      std::memcpy(parts + count + i, &odd, sizeof(words));
    }
    for (; i < count; ++i) {
      U::broadcast(parts[count + i], words);
      U::split(words, even, odd);
      std::memcpy(parts + i, &even, sizeof(*parts));
      std::memcpy(parts + count + i, &odd, sizeof(*parts));
    }
  }
};

struct Int8Parts {
  int& parts;
  template <class U>
  TINYSCALE_INLINE void run() const {
    parts = U::parts;
  }
};

inline WordUnit int8_word_unit() {
#if TINYSCALE_X86_UNITS
  if (int8_unit(cpu(), active_path())[0] == 'a' &&
      forced_path().load(std::memory_order_relaxed) < 0) {
    return tile_unit<AmxTiles, Int8InTiles>();
  }
#endif
  WordUnit unit{[](const WordTask& task) { run_on_int8(Int8Tiles{task}); }, 12, 1, false};
  int parts = 1;
  run_on_int8(Int8Parts{parts});
  if (parts > 1) {
    unit.split = [](std::uint32_t* to, std::int64_t count) { run_on_int8(Int8Split{to, count}); };
  }
  return unit;
}

// start[i] = -128 times the sum of row i of A.
struct RowStarts {
  const WordSource& a;
  std::int64_t begin, end;
  std::int32_t* start;

  template <class U>
  TINYSCALE_INLINE void run() const {
    const auto* const codes = static_cast<const std::int8_t*>(a.data);
    typename U::Words ones, words;
    U::broadcast(0x01010101U, ones);
    for (std::int64_t i = begin; i < end; ++i) {
      typename U::Sum sum{};
      std::int32_t total = 0;
      std::int64_t p = 0;
      for (; a.k_stride == 1 && p + 4 * U::width <= a.ks; p += 4 * U::width) {
        std::memcpy(&words, codes + i * a.x_stride + p, sizeof(words));
        U::dot(words, ones, sum);
      }
      std::int32_t lanes[static_cast<std::size_t>(U::width)];
      std::memcpy(lanes, &sum, sizeof(sum));
      for (const std::int32_t lane : lanes) {
        total += lane;
      }
      for (; p < a.ks; ++p) {
        total += codes[i * a.x_stride + p * a.k_stride];
      }
      start[i] = -128 * total;
    }
  }
};

// What int32 can hold, and memory.
inline bool int8_check(std::int64_t k, const StoredRows& a, const StoredRows& b,
                       const StoredRows& c) {
  if (k > 131071) {
    fail({"gemm_int8: k is ", k, "; int32 holds the sum of at most 131071 products"});
  }
  return gemm_check("gemm_int8", k, a, b, c);
}

inline void int8_product(const WordUnit& unit, const WordSource& a, WordSource b,
                         const std::uint32_t* b_packed, std::int32_t* c, std::int64_t ldc) {
  for (std::int64_t i = 0; i < a.xs && a.ks <= 0; ++i) {
    std::fill(c + i * ldc, c + i * ldc + b.xs, 0);
  }
  if (a.xs <= 0 || b.xs <= 0 || a.ks <= 0) {
    return;
  }
  const Scratch lease(a.xs);
  auto* const start = reinterpret_cast<std::int32_t*>(lease.data());
  parallel_for(a.xs, 1 + 65536 / a.ks, [&](std::int64_t begin, std::int64_t end) {
    run_on_int8(RowStarts{a, begin, end, start});
  });
  b.flip = 0x80808080U;
  word_gemm({unit, a, b, b_packed, 0.0f, c, ldc, start});
}

}  // namespace detail

namespace kernels {

// C = op(A) op(B), exact. C must not overlap A or B.
inline void gemm_int8(Trans ta, Trans tb, std::int64_t m, std::int64_t n, std::int64_t k,
                      const std::int8_t* a, std::int64_t lda, const std::int8_t* b,
                      std::int64_t ldb, std::int32_t* c, std::int64_t ldc) {
  if (detail::int8_check(k, detail::stored_rows(a, ta, m, k, lda),
                         detail::stored_rows(b, tb, k, n, ldb),
                         detail::stored_rows(c, Trans::no, m, n, ldc))) {
    const detail::WordKind kind = detail::WordKind::int8;
    detail::int8_product(detail::int8_word_unit(), detail::rows_of(kind, a, ta, m, k, lda),
                         detail::word_source(kind, b, tb, n, k, ldb), nullptr, c, ldc);
  }
}

// Weights [K, N] laid out once, for many products; good on every path.
struct PackedInt8 {
  std::int64_t k = 0, n = 0;
  Shared<detail::WordBuffer> words;
};

inline PackedInt8 pack_int8(Trans tb, std::int64_t k, std::int64_t n, const std::int8_t* b,
                            std::int64_t ldb) {
  detail::check_weights("pack_int8", k, n);
  detail::check_to_pack("pack_int8", k, n, detail::stored_rows(b, tb, k, n, ldb));
  PackedInt8 packed{k, n, {}};
  if (k > 0 && n > 0) {
    detail::WordSource from = detail::word_source(detail::WordKind::int8, b, tb, n, k, ldb);
    from.flip = 0x80808080U;
    packed.words = detail::pack_all(from);
  }
  return packed;
}

// C = op(A) B, A [M, K].
inline void gemm_int8(Trans ta, std::int64_t m, const std::int8_t* a, std::int64_t lda,
                      const PackedInt8& b, std::int32_t* c, std::int64_t ldc) {
  if (detail::int8_check(b.k, detail::stored_rows(a, ta, m, b.k, lda), detail::StoredRows(),
                         detail::stored_rows(c, Trans::no, m, b.n, ldc))) {
    const detail::WordKind kind = detail::WordKind::int8;
    detail::int8_product(detail::int8_word_unit(), detail::rows_of(kind, a, ta, m, b.k, lda),
                         detail::word_source(kind, nullptr, Trans::no, b.n, b.k, b.n),
                         b.words ? b.words->data() : nullptr, c, ldc);
  }
}

// One scale for each row of A, and one for each column of B in each block of k: b[k / block][n].
struct Int8Scales {
  const float* a = nullptr;
  const float* b = nullptr;
  std::int64_t block = 0;  // numbers of k that share a scale; k for one scale a column
};

// C = scaled op(A) op(B) in f32.
inline void gemm_int8(Trans ta, Trans tb, std::int64_t m, std::int64_t n, std::int64_t k,
                      const std::int8_t* a, std::int64_t lda, const std::int8_t* b,
                      std::int64_t ldb, const Int8Scales& scales, float* c, std::int64_t ldc) {
  if (!detail::gemm_check("gemm_int8", k, detail::stored_rows(a, ta, m, k, lda),
                          detail::stored_rows(b, tb, k, n, ldb),
                          detail::stored_rows(c, Trans::no, m, n, ldc))) {
    return;
  }
  if (scales.block <= 0 && k > 0) {
    detail::fail({"gemm_int8: blocks of ", scales.block, "; at least 1 number of k"});
  }
  if (k > 0 && (scales.a == nullptr || scales.b == nullptr)) {
    detail::fail({"gemm_int8: the scales of ", scales.a == nullptr ? "A" : "B", " are null"});
  }
  const std::int64_t blocks = k > 0 ? (k - 1) / scales.block + 1 : 0;
  detail::check_own(
      "gemm_int8", {"C", c, n, m, ldc},
      {{"the scales of A", scales.a, k > 0 ? m : 0}, {"the scales of B", scales.b, n, blocks, n}});
  const std::int64_t fit = std::max<std::int64_t>(1, detail::word_fit / m / 64) * 64;
  const std::int64_t wide = std::min(n, fit);
  const detail::Scratch lease(m * wide);
  auto* const sums = reinterpret_cast<std::int32_t*>(lease.data());
  for (std::int64_t j = 0; j < n; j += wide) {
    const std::int64_t columns = std::min(wide, n - j);
    for (std::int64_t p = 0; p < std::max<std::int64_t>(k, 1);
         p += std::max<std::int64_t>(scales.block, 1)) {
      const std::int64_t depth = std::min(scales.block, k - p);
      gemm_int8(ta, tb, m, columns, depth, a + (ta == Trans::no ? p : p * lda), lda,
                b + (tb == Trans::no ? p * ldb + j : j * ldb + p), ldb, sums, wide);
      const float* const b_scale = k > 0 ? scales.b + p / scales.block * n + j : nullptr;
      parallel_for(m, 1 + 16384 / columns, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          for (std::int64_t x = 0; x < columns; ++x) {
            const float sum =
                k > 0 ? static_cast<float>(sums[i * wide + x]) * scales.a[i] * b_scale[x] : 0.0f;
            float& to = c[i * ldc + j + x];
            to = p == 0 ? sum : to + sum;
          }
        }
      });
    }
  }
}

}  // namespace kernels
}  // namespace tinyscale
