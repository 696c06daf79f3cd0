#pragma once
// y = x W' with a few rows of x and W as rows of f32, bf16 or f16: reading W is the whole cost. It
// is read once, by 4 streams a quarter of the rows apart: one core brings far streams from memory
// up to twice as fast as one. The 16-bit formats are widened in registers. W may stand anywhere:
// files are mapped, and what stands before the numbers in them may have any length.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tinyscale/base/format.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/streams.hpp"
#include "tinyscale/compute/x86_units.hpp"

namespace tinyscale {
namespace detail {

// How to read a vector of each format, and one number.
struct WideF32 {
  // Bytes that are fetched ahead, and as Fetch::into_first: measured.
  static constexpr std::int64_t bytes = 4, ahead = 1024, first_ahead = 2048;
  template <class L>
  static TINYSCALE_INLINE void load(const std::uint8_t* from, typename L::V& v) {
    std::memcpy(&v, from, sizeof(v));
  }
  static float one(const std::uint8_t* from) {
    float x;
    std::memcpy(&x, from, sizeof(x));
    return x;
  }
};

// width numbers of 16 bits as words; a function of each width, as broadcast is.
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
TINYSCALE_AVX512 inline void shorts_16(const std::uint8_t* from, Lanes16::I& words) {
#if TINYSCALE_X86_UNITS
  words_by_unit(from, words);
#else
  Lanes16::Shorts shorts;
  std::memcpy(&shorts, from, sizeof(shorts));
  words = __builtin_convertvector(shorts, Lanes16::I);
#endif
}
TINYSCALE_AVX2 inline void shorts_8(const std::uint8_t* from, Lanes8::I& words) {
#if TINYSCALE_X86_UNITS
  words_by_unit(from, words);
#else
  Lanes8::Shorts shorts;
  std::memcpy(&shorts, from, sizeof(shorts));
  words = __builtin_convertvector(shorts, Lanes8::I);
#endif
}
#endif
template <class L>
TINYSCALE_INLINE void load_shorts(const std::uint8_t* from, typename L::I& words) {
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
  if constexpr (L::width == 16) {
    shorts_16(from, words);
    return;
  } else if constexpr (L::width == 8) {
    shorts_8(from, words);
    return;
  }
#endif
#if TINYSCALE_VECTOR_EXTENSIONS
  typename L::Shorts shorts;
  std::memcpy(&shorts, from, sizeof(shorts));
  words = __builtin_convertvector(shorts, typename L::I);
#else
  std::uint16_t code;
  std::memcpy(&code, from, sizeof(code));
  words = code;
#endif
}

struct WideBf16 {
  static constexpr std::int64_t bytes = 2, ahead = 0, first_ahead = 4096;
  template <class L>
  static TINYSCALE_INLINE void load(const std::uint8_t* from, typename L::V& v) {
    typename L::I words;
    load_shorts<L>(from, words);
    words = words << 16;
    std::memcpy(&v, &words, sizeof(v));
  }
  static float one(const std::uint8_t* from) {
    std::uint16_t code;
    std::memcpy(&code, from, sizeof(code));
    return from_bf16(code);
  }
};

struct WideF16 {
  static constexpr std::int64_t bytes = 2, ahead = 0, first_ahead = 4096;
  // By the processor's instruction, or the bits in an f32's place times 2^112; what was an infinity
  // or a NaN gets its exponent back.
  template <class L>
  static TINYSCALE_INLINE void load(const std::uint8_t* from, typename L::V& v) {
#if TINYSCALE_X86_UNITS
    if constexpr (L::width >= 8) {
      halves_by_unit(reinterpret_cast<const std::uint16_t*>(from), v);
      return;
    }
#endif
    typename L::I half, bits, special;
    load_shorts<L>(from, half);
    bits = (half & 0x7fff) << 13;
    std::memcpy(&v, &bits, sizeof(v));
    v = v * 5.192296858534828e33f;
    std::memcpy(&bits, &v, sizeof(v));
    special = (half & 0x7fff) + 0x400;  // bit 15: the exponent has all its bits
    bits = bits | (((special << 16) >> 31) & 0x7f800000) | ((half >> 15) << 31);
    std::memcpy(&v, &bits, sizeof(v));
  }
  static float one(const std::uint8_t* from) {
    std::uint16_t code;
    std::memcpy(&code, from, sizeof(code));
    return from_f16(code);
  }
};

// The reference body.
template <class F>
void stored_dots_reference(std::int64_t rows, std::int64_t cols, const std::uint8_t* w,
                           std::int64_t row_bytes, std::int64_t m, const float* x, std::int64_t ldx,
                           float* y, std::int64_t ldy) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t n = 0; n < rows; ++n) {
      double sum = 0;
      for (std::int64_t p = 0; p < cols; ++p) {
        sum += double{x[i * ldx + p]} * double{F::one(w + n * row_bytes + p * F::bytes)};
      }
      y[i * ldy + n] = static_cast<float>(sum);
    }
  }
}

constexpr int stored_streams = 4;

// What is fetched while a row is read: the same row further on, that into the first cache (AMD:
// 1.1 to 1.5 times as fast on Zen 5, but for 16 bits from memory: 0.93 to 1), or the next row.
// A row alone may have others behind it, which nobody reads.
enum class Fetch { ahead, into_first, next_row, nothing };

// Rows j + r * apart of W, r = 0..3 and j in [begin, end), with m rows of x.
template <class F>
struct StoredDots {
  const std::uint8_t* w;
  std::int64_t row_bytes, cols, apart, begin, end;
  std::int64_t m;
  const float* x;
  std::int64_t ldx;
  float* y;
  std::int64_t ldy;
  bool add;                   // to what is in y
  bool to_first = cpu().amd;  // Fetch::into_first where a row of x is alone

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr int wide = L::width == 16 ? 4 : 2;  // rows of x that fit in registers
    for (std::int64_t j = begin; j < end; ++j) {
      std::int64_t i = 0;
      if (m >= wide) {
        dots<L, stored_streams, wide>(j, 0, apart);
        i = wide;
      }
      for (; i + wide <= m; i += wide) {
        dots<L, stored_streams, wide, Fetch::next_row>(j, i, apart);
      }
      for (; i + 2 <= m; i += 2) {
        dots<L, stored_streams, 2>(j, i, apart);
      }
      if (i < m && to_first) {
        dots<L, stored_streams, 1, Fetch::into_first>(j, i, apart);
      } else if (i < m) {
        dots<L, stored_streams, 1>(j, i, apart);
      }
    }
  }

  // Rows `row`, row + step, ... Fetch::next_row: they are in cache already, the next ones are
  // fetched. Each sum is taken in one order, however many rows of x there are: a batch gives the
  // bits that its rows give alone.
  template <class L, int ROWS, int TOKENS, Fetch FETCH = Fetch::ahead>
  TINYSCALE_INLINE void dots(std::int64_t row, std::int64_t token, std::int64_t step) const {
    constexpr auto tokens = static_cast<std::size_t>(TOKENS);
    typename L::V sum[static_cast<std::size_t>(ROWS)][tokens], left[tokens], v;
    TINYSCALE_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      TINYSCALE_UNROLL
      for (int t = 0; t < TOKENS; ++t) {
        sum[r][t] = typename L::V{};
      }
    }
    const std::uint8_t* const from = w + row * row_bytes;
    const float* const a = x + token * ldx;
    const std::int64_t next = step * row_bytes, n = cols;
    std::int64_t p = 0;
    for (; p + L::width <= n; p += L::width) {
      TINYSCALE_UNROLL
      for (int t = 0; t < TOKENS; ++t) {
        detail::load<L>(a + t * ldx + p, left[t]);
      }
      TINYSCALE_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        const std::uint8_t* const place = from + r * next + p * F::bytes;
        if constexpr (FETCH != Fetch::nothing) {
          prefetch<FETCH == Fetch::into_first ? 3 : 2>(place + (FETCH == Fetch::next_row ? row_bytes
                                                                : FETCH == Fetch::into_first
                                                                    ? F::first_ahead
                                                                    : F::ahead));
        }
        F::template load<L>(place, v);
        TINYSCALE_UNROLL
        for (int t = 0; t < TOKENS; ++t) {
          add_product<L>(left[t], v, sum[r][t]);
        }
      }
    }
    if (p == n) {
      TINYSCALE_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        TINYSCALE_UNROLL
        for (int t = 0; t < TOKENS; ++t) {
          float& to = y[(token + t) * ldy + row + r * step];
          to = add ? sum_lanes<L>(sum[r][t]) + to : sum_lanes<L>(sum[r][t]);
        }
      }
      return;
    }
    typename L::V sums[static_cast<std::size_t>(ROWS * TOKENS)];
    TINYSCALE_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      TINYSCALE_UNROLL
      for (int t = 0; t < TOKENS; ++t) {
        sums[r * TOKENS + t] = sum[r][t];
      }
    }
    for (int at = 0; at < ROWS * TOKENS; ++at) {  // not unrolled: much code, seldom run
      const std::int64_t r = at / TOKENS, t = at % TOKENS;
      float total = sum_lanes<L>(sums[at]);
      for (std::int64_t q = p; q < n; ++q) {
        add_last_product<L>(a[t * ldx + q], F::one(from + r * next + q * F::bytes), total);
      }
      float& to = y[(token + t) * ldy + row + r * step];
      to = add ? total + to : total;
    }
  }
};

// What is left of the rows, one at a time.
template <class F>
struct StoredRest {
  const StoredDots<F>& dots;
  std::int64_t first, last;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t row = first; row < last; ++row) {
      for (std::int64_t i = 0; i < dots.m; ++i) {
        dots.template dots<L, 1, 1, Fetch::nothing>(row, i, 0);
      }
    }
  }
};

// All `rows` rows; done(first, count): those of y are there.
template <class F, class Done>
void stored_dots(const StoredDots<F>& all, std::int64_t rows, const Done& done) {
  const std::int64_t apart = all.apart, strips = apart * stored_streams;
  if (strips < rows) {
    run_on_lanes(StoredRest<F>{all, strips, rows});
    done(strips, rows - strips);
  }
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    StoredDots<F> part = all;
    part.begin = begin;
    part.end = end;
    run_on_lanes(part);
    for (std::int64_t first = begin; first < strips; first += apart) {
      done(first, end - begin);
    }
  };
  stream_rows(apart, static_cast<double>(all.m * rows * all.row_bytes), body);
}

template <class F>
void stored_dots(std::int64_t rows, std::int64_t cols, const std::uint8_t* w,
                 std::int64_t row_bytes, std::int64_t m, const float* x, std::int64_t ldx, float* y,
                 std::int64_t ldy) {
  const std::int64_t apart = rows / stored_streams;
  stored_dots(StoredDots<F>{w, row_bytes, cols, apart, 0, apart, m, x, ldx, y, ldy, false}, rows,
              [](std::int64_t, std::int64_t) {});
}

}  // namespace detail
}  // namespace tinyscale
