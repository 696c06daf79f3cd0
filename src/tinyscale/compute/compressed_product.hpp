#pragma once
// y = x W' with W as f32 in 28 bits. A few rows of x: W becomes f32 in registers, an eighth fewer
// bytes come from memory, and y has the bits that f32 rows give (stored_dots.hpp). Many rows of x:
// rows of W become f32 some at a time and are multiplied as any matrix. The reference bodies:
// multiply_stored_reference, and of rows compressed_number_reference.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tinyscale/base/error.hpp"
#include "tinyscale/compute/compressed_f32.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/stored_dots.hpp"
#include "tinyscale/compute/stored_matrix.hpp"
#include "tinyscale/compute/stored_product.hpp"
#include "tinyscale/compute/streams.hpp"

namespace tinyscale {
namespace detail {

// Vectors of a row's numbers.
template <class L>
struct CompressedLanes {
  using U = typename L::U;

  static TINYSCALE_INLINE void words(const std::uint32_t* from, U& w) {
    std::memcpy(&w, from, sizeof(w));
  }
  static TINYSCALE_INLINE void number(const U& code, const U& base, typename L::V& v) {
    const U bits = ((code & 0x07ffffffU) + base) | ((code << 4) & 0x80000000U);
    std::memcpy(&v, &bits, sizeof(v));
  }
  // The codes of the last 16 numbers come together from the words of all lines, one after another.
  static TINYSCALE_INLINE void gather(const U& word, U& code) {
    code = (code >> 4) | (word & 0xf0000000U);
  }
  static TINYSCALE_INLINE void base(std::uint32_t bits, U& v) {
    typename L::I same;
    broadcast_word(static_cast<std::int32_t>(bits), same);
    std::memcpy(&v, &same, sizeof(v));
  }
};

// Block b of a row as f32, exceptions and all, for sums and for rows that are made f32.
struct CompressedBlock {
  const kernels::CompressedF32& w;
  std::int64_t row, b;
  float* to;

  template <class L>
  TINYSCALE_INLINE void run() const {
    using Lane = CompressedLanes<L>;
    using Format = kernels::CompressedF32;
    const std::uint32_t* const from = w.words(row) + b * Format::block_words;
    typename L::U base, code, word;
    typename L::V v;
    Lane::base(w.row(row).base, base);
    for (std::int64_t p = 0; p < Format::block; p += L::width) {
      if (p < Format::block_words) {
        Lane::words(from + p, code);
      } else {
        code = typename L::U{};
        for (std::int64_t line = 0; line < 7; ++line) {
          Lane::words(from + 16 * line + p - Format::block_words, word);
          Lane::gather(word, code);
        }
        code = code >> 4;
      }
      Lane::number(code, base, v);
      store<L>(to + p, v);
    }
  }
};

// Rows [first, first + count) as f32.
inline void read_compressed(const kernels::CompressedF32& w, std::int64_t first, std::int64_t count,
                            float* to) {
  using Format = kernels::CompressedF32;
  for (std::int64_t i = first; i < first + count; ++i, to += w.cols) {
    for (std::int64_t b = 0; b < w.blocks(); ++b) {
      run_on_lanes(CompressedBlock{w, i, b, to + b * Format::block});
    }
    const std::int64_t whole = w.blocks() * Format::block;
    std::memcpy(to + whole, w.rest(i), static_cast<std::size_t>(w.cols - whole) * 4);
    for (const Format::Exception* e = w.exceptions(i); e != w.exceptions(i + 1); ++e) {
      to[e->col] = e->value;
    }
  }
}

// Block b of some rows, `step` apart, among which are exceptions, the `next` ones of each row: to
// the sums of some rows of x.
struct CompressedSums {
  const kernels::CompressedF32& w;
  std::int64_t row, step, rows, b;
  const float* x;
  std::int64_t ldx, tokens;
  const kernels::CompressedF32::Exception** next;  // [rows], then those behind the block
  float* sums;                                     // [rows][tokens][width]

  template <class L>
  TINYSCALE_INLINE void run() const {
    using Format = kernels::CompressedF32;
    float numbers[Format::block];
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t i = row + r * step, first = b * Format::block;
      CompressedBlock{w, i, b, numbers}.run<L>();
      const Format::Exception* const end = w.exceptions(i + 1);
      for (; next[r] != end && next[r]->col < first + Format::block; ++next[r]) {
        numbers[next[r]->col - first] = next[r]->value;
      }
      for (std::int64_t t = 0; t < tokens; ++t) {
        float* const to = sums + (r * tokens + t) * L::width;
        typename L::V sum, left, v;
        load<L>(to, sum);
        for (std::int64_t p = 0; p < Format::block; p += L::width) {
          load<L>(x + t * ldx + first + p, left);
          load<L>(numbers + p, v);
          add_product<L>(left, v, sum);
        }
        store<L>(to, sum);
      }
    }
  }
};

// Rows j + r * apart of W, r = 0..3 and j in [begin, end), with m rows of x; the sums in the order
// of StoredDots.
struct CompressedDots {
  const kernels::CompressedF32& w;
  std::int64_t apart, begin, end;
  std::int64_t m;
  const float* x;
  std::int64_t ldx;
  float* y;
  std::int64_t ldy;

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr int wide = L::width == 16 ? 4 : 2;                 // rows of x that fit in registers
    for (std::int64_t q = 0; q < 512 && begin < end; q += 16) {  // what nothing has fetched yet
      for (std::int64_t r = 0; r < stored_streams; ++r) {
        prefetch(w.words(begin + r * apart) + q);
      }
    }
    for (std::int64_t j = begin; j < end; ++j) {
      std::int64_t i = 0;
      for (; i + wide <= m; i += wide) {
        dots<L, stored_streams, wide>(j, i, apart);
      }
      for (; i + 2 <= m; i += 2) {
        dots<L, stored_streams, 2>(j, i, apart);
      }
      for (; i < m; ++i) {
        dots<L, stored_streams, 1>(j, i, apart);
      }
    }
  }

  template <class L, int ROWS, int TOKENS>
  TINYSCALE_INLINE void dots(std::int64_t row, std::int64_t token, std::int64_t step) const {
    using Lane = CompressedLanes<L>;
    using Format = kernels::CompressedF32;
    constexpr auto rows = static_cast<std::size_t>(ROWS);
    constexpr auto tokens = static_cast<std::size_t>(TOKENS);
    typename L::V sum[rows][tokens], v;
    typename L::U base[rows], code;
    const std::uint32_t* from[rows];
    const Format::Exception* next[rows];
    TINYSCALE_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      from[r] = w.words(row + r * step);
      next[r] = w.exceptions(row + r * step);
      Lane::base(w.row(row + r * step).base, base[r]);
      TINYSCALE_UNROLL
      for (int t = 0; t < TOKENS; ++t) {
        sum[r][t] = typename L::V{};
      }
    }
    const float* const a = x + token * ldx;
    const std::int64_t distance = token == 0 ? 512 : w.row_words();  // then this row is in cache
    std::int64_t p = 0;
    std::int64_t listed = next_listed(row, ROWS, step, next);
    for (std::int64_t b = 0; b < w.blocks(); ++b, p += Format::block) {
      if (b == listed) {
        TINYSCALE_UNROLL
        for (int r = 0; r < ROWS; ++r) {
          for (std::int64_t q = 0; q < Format::block_words && ROWS > 1; q += 16) {
            fetch(from[r] + q, distance);
          }
        }
        float sums[rows * tokens * static_cast<std::size_t>(L::width)];
        TINYSCALE_UNROLL
        for (int at = 0; at < ROWS * TOKENS; ++at) {
          store<L>(sums + at * L::width, sum[at / TOKENS][at % TOKENS]);
        }
        call_on_lanes<L>(CompressedSums{w, row, step, ROWS, b, a, ldx, TOKENS, next, sums});
        TINYSCALE_UNROLL
        for (int at = 0; at < ROWS * TOKENS; ++at) {
          load<L>(sums + at * L::width, sum[at / TOKENS][at % TOKENS]);
        }
        listed = next_listed(row, ROWS, step, next);
      } else {
        constexpr bool at_once = L::width == 16;  // a line is one vector
        typename L::U last[rows];
        TINYSCALE_UNROLL
        for (int r = 0; r < ROWS; ++r) {
          last[r] = typename L::U{};
        }
        for (std::int64_t q = 0; q < Format::block_words; q += L::width) {
          typename L::V left[tokens];
          TINYSCALE_UNROLL
          for (int t = 0; t < TOKENS; ++t) {
            load<L>(a + t * ldx + p + q, left[t]);
          }
          TINYSCALE_UNROLL
          for (int r = 0; r < ROWS; ++r) {
            if constexpr (ROWS > 1) {  // one alone may have others' behind it, which nobody reads
              fetch(from[r] + q, distance);
            }
            Lane::words(from[r] + q, code);
            if constexpr (at_once) {
              Lane::gather(code, last[r]);
            }
            Lane::number(code, base[r], v);
            TINYSCALE_UNROLL
            for (int t = 0; t < TOKENS; ++t) {
              add_product<L>(left[t], v, sum[r][t]);
            }
          }
        }
        for (std::int64_t q = 0; q < 16; q += L::width) {
          for (std::int64_t line = 0; line < 7 && !at_once; ++line) {
            TINYSCALE_UNROLL
            for (int r = 0; r < ROWS; ++r) {
              Lane::words(from[r] + 16 * line + q, code);
              Lane::gather(code, last[r]);
            }
          }
          TINYSCALE_UNROLL
          for (int r = 0; r < ROWS; ++r) {
            Lane::number(last[r] >> 4, base[r], v);
            TINYSCALE_UNROLL
            for (int t = 0; t < TOKENS; ++t) {
              typename L::V left;
              load<L>(a + t * ldx + p + Format::block_words + q, left);
              add_product<L>(left, v, sum[r][t]);
            }
          }
        }
      }
      TINYSCALE_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        from[r] += Format::block_words;
      }
    }
    // What is left is f32; the last few numbers are summed one at a time.
    const std::int64_t whole = p;
    for (; p + L::width <= w.cols; p += L::width) {
      TINYSCALE_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        Lane::words(from[r] + (p - whole), code);
        std::memcpy(&v, &code, sizeof(v));
        TINYSCALE_UNROLL
        for (int t = 0; t < TOKENS; ++t) {
          typename L::V left;
          load<L>(a + t * ldx + p, left);
          add_product<L>(left, v, sum[r][t]);
        }
      }
    }
    float sums[rows * tokens];
    TINYSCALE_UNROLL
    for (int at = 0; at < ROWS * TOKENS; ++at) {
      sums[at] = sum_lanes<L>(sum[at / TOKENS][at % TOKENS]);
    }
    for (std::int64_t at = 0; at < ROWS * TOKENS; ++at) {
      const std::int64_t i = row + at / TOKENS * step, t = at % TOKENS;
      float total = sums[at];
      for (std::int64_t q = p; q < w.cols; ++q) {
        add_last_product<L>(a[t * ldx + q], float_of(w.rest(i)[q - whole]), total);
      }
      y[(token + t) * ldy + i] = total;
    }
  }

  // Both: 1.05 times as fast as one alone. distance: words.
  static TINYSCALE_INLINE void fetch(const std::uint32_t* at, std::int64_t distance) {
    prefetch<3>(at + 256);
    prefetch(at + distance);
  }

  // The first block with one of the rows' next exceptions.
  std::int64_t next_listed(std::int64_t row, std::int64_t rows, std::int64_t step,
                           const kernels::CompressedF32::Exception* const* next) const {
    std::int64_t found = w.blocks();
    for (std::int64_t r = 0; r < rows; ++r) {
      if (next[r] != w.exceptions(row + r * step + 1)) {
        found = std::min<std::int64_t>(found, next[r]->col / kernels::CompressedF32::block);
      }
    }
    return found;
  }
};

// What is left of the rows, one at a time.
struct CompressedRest {
  const CompressedDots& dots;
  std::int64_t first, last;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t row = first; row < last; ++row) {
      for (std::int64_t i = 0; i < dots.m; ++i) {
        dots.template dots<L, 1, 1>(row, i, 1);
      }
    }
  }
};

inline void compressed_dots(const CompressedDots& all) {
  const std::int64_t strips = all.apart * stored_streams;
  if (strips < all.w.rows) {
    run_on_lanes(CompressedRest{all, strips, all.w.rows});
  }
  stream_rows(all.apart, static_cast<double>(all.m) * all.w.bytes(),
              [&](std::int64_t begin, std::int64_t end) {
                CompressedDots part = all;
                part.begin = begin;
                part.end = end;
                run_on_lanes(part);
              });
}

}  // namespace detail

namespace kernels {

// For StoredMatrix::multiply. f32 weights leave x as it is.
inline void multiply_compressed(const StoredMatrix& w, Activations /*how*/, std::int64_t m,
                                const float* x, std::int64_t ldx, float* y, std::int64_t ldy) {
  if (m < 0 || (m > 1 && (ldx < w.cols || ldy < w.rows))) {
    detail::fail({"multiply_compressed: ", m, " rows, ", ldx, " and ", ldy, " apart, by ", w.rows,
                  " x ", w.cols, " weights; rows of x must be ", w.cols, " apart or more, of y ",
                  w.rows});
  }
  detail::check_stored_memory("multiply_compressed", w, m, x, ldx, y, ldy);
  if (m > detail::stored_few) {
    detail::stored_gemm(detail::StoredProduct{w, m, x, ldx, y, ldy},
                        [&](std::int64_t first, std::int64_t count, float* to) {
                          detail::read_compressed(w.compressed, first, count, to);
                        });
  } else if (m > 0) {
    const std::int64_t apart = w.rows / detail::stored_streams;
    detail::compressed_dots({w.compressed, apart, 0, apart, m, x, ldx, y, ldy});
  }
}

// For StoredMatrix::row.
inline void stored_compressed_row(const StoredMatrix& w, std::int64_t row, float* to) {
  detail::check_stored_row(w, row);
  detail::read_compressed(w.compressed, row, 1, to);
}

// What compress_f32 made of weights.
inline StoredMatrix stored_compressed(const CompressedF32& compressed) {
  if (compressed.rows < 1) {
    detail::fail({"stored_compressed: no rows; what compress_f32 found worth it is right"});
  }
  StoredMatrix w;
  w.rows = compressed.rows;
  w.cols = compressed.cols;
  w.compressed = compressed;
  w.multiply = multiply_compressed;
  w.row = stored_compressed_row;
  return w;
}

}  // namespace kernels
}  // namespace tinyscale
