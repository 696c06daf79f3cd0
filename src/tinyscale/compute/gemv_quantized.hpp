#pragma once
// Quantised weights W [N, K] and their products with activations, y = W x: the bytes of W are the
// whole cost of a decoded token. K is cut into groups that share a scale; weights are int8 or
// 4-bit.
//   y[n] = sum over groups, in order, of  (integer dot product) * w_scale[n][group] *
//   x_scale[group]
// x is rounded to int8 by group, as llama2.c and ggml do. 16 rows of W are laid side by side, a
// lane a row, so that no lanes are added up: [panel of 16 rows][k / 4][row] words of 4 int8, kept
// 128 higher; 4-bit ones 8 higher, the second word of each pair in the upper half of the bytes.
// A group takes whole words, 4 columns or 8 of 4 bits; what is too much holds zeros. The last group
// may have fewer columns, and takes as many words as these do.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/format.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/compute/gemm_int8.hpp"
#include "tinyscale/compute/streams.hpp"

namespace tinyscale {

// What activations are rounded to before they meet stored weights.
enum class Activations {
  f32,          // not at all
  int8_groups,  // int8 in the groups of the weights, as llama2.c's runq: x / scale, half away from
                // 0
  int8_blocks   // as ggml: int8 in blocks of 32, their scale f16, or f16 for weights in f16, ...
};

namespace kernels {

struct QuantizedMatrix {
  std::int64_t rows = 0, cols = 0;
  std::int64_t group = 32;  // columns that share a scale; the last group may be shorter
  int bits = 8;             // or 4
  bool half_scales = true;  // scales as f16 where that is exact, else f32
  Shared<detail::WordBuffer> data, scales;  // scales: [panel][group][16]

  std::int64_t groups() const { return (cols + group - 1) / group; }
  std::int64_t padded() const { return whole_words(group); }  // columns that a group takes
  std::int64_t padded_cols() const {                          // and all of them
    return cols == 0 ? 0 : place(cols - 1) - (cols - 1) % group + whole_words(last_group());
  }
  std::int64_t panel_bytes() const { return padded_cols() * 16 * bits / 8; }
  std::int64_t place(std::int64_t col) const { return col / group * padded() + col % group; }
  double bytes() const {  // that a product reads
    const std::int64_t scale_bytes = groups() * (half_scales ? 2 : 4);
    return static_cast<double>((rows + 15) / 16) *
           static_cast<double>(panel_bytes() + 16 * scale_bytes);
  }

  // One number: its code (-128..127, or -8..7) and its scale.
  int code(std::int64_t row, std::int64_t col) const {
    const auto* const panel =
        reinterpret_cast<const std::uint8_t*>(data->data()) + row / 16 * panel_bytes();
    const std::int64_t at = place(col);
    if (bits == 8) {
      return panel[(at / 4 * 16 + row % 16) * 4 + at % 4] - 128;
    }
    const int both = panel[(at / 8 * 16 + row % 16) * 4 + at % 4];
    return (at % 8 < 4 ? both & 15 : both >> 4) - 8;
  }
  float scale(std::int64_t row, std::int64_t col) const {
    const std::int64_t at = (row / 16 * groups() + col / group) * 16 + row % 16;
    const auto* const halves = reinterpret_cast<const std::uint16_t*>(scales->data());
    return half_scales ? from_f16(halves[at]) : detail::float_of(scales->data()[at]);
  }

 private:
  std::int64_t last_group() const { return cols - (groups() - 1) * group; }
  std::int64_t whole_words(std::int64_t columns) const {
    const std::int64_t word = bits == 8 ? 4 : 8;
    return (columns + word - 1) / word * word;
  }
};

// From codes [rows, cols] and scales [rows, groups], as files hold them.
inline QuantizedMatrix pack_quantized(std::int64_t rows, std::int64_t cols, std::int64_t group,
                                      int bits, const std::int8_t* codes, const float* scales) {
  const std::int64_t most = std::int64_t{1} << 40;
  if (rows < 0 || cols < 0 || group < 1 || group > most || (bits != 4 && bits != 8) ||
      (rows > 0 && cols > most / rows)) {
    detail::fail({"pack_quantized: ", rows, " x ", cols, ", groups of ", group, ", ", bits,
                  " bits; groups have 1 column or more, codes 4 or 8 bits"});
  }
  const std::int64_t longest = bits == 8 ? 131071 : 2097151;  // whose sum fits 32 bits
  if (rows > 0 && std::min(group, cols) > longest) {
    detail::fail({"pack_quantized: groups of ", std::min(group, cols),
                  " columns; the sum of at most ", longest, " products of ", bits,
                  " bits fits 32 bits"});
  }
  for (std::int64_t i = 0; bits == 4 && i < rows * cols; ++i) {
    if (codes[i] < -8 || codes[i] > 7) {
      detail::fail({"pack_quantized: code ", i / cols, ", ", i % cols, " is ", int{codes[i]},
                    "; -8 to 7 are right of 4 bits"});
    }
  }
  QuantizedMatrix q{rows, cols, group, bits, true, {}, {}};
  const std::int64_t groups = q.groups(), panels = (rows + 15) / 16;
  for (std::int64_t i = 0; i < rows * groups && q.half_scales; ++i) {
    q.half_scales = from_f16(to_f16(scales[i])) == scales[i];
  }
  const std::int64_t words = panels * q.panel_bytes() / 4;
  q.data = Shared<detail::WordBuffer>(new detail::WordBuffer(words + 16));
  q.scales = Shared<detail::WordBuffer>(new detail::WordBuffer(panels * groups * 16));
  std::fill(q.data->data(), q.data->data() + words, bits == 8 ? 0x80808080U : 0x88888888U);
  std::fill(q.scales->data(), q.scales->data() + panels * groups * 16, 0U);
  parallel_for(panels, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin * 16; row < std::min(rows, end * 16); ++row) {
      auto* const panel =
          reinterpret_cast<std::uint8_t*>(q.data->data()) + row / 16 * q.panel_bytes();
      for (std::int64_t col = 0; col < cols; ++col) {
        const std::int64_t place = q.place(col);
        const int code = codes[row * cols + col] + (bits == 8 ? 128 : 8);
        if (bits == 8) {
          panel[(place / 4 * 16 + row % 16) * 4 + place % 4] = static_cast<std::uint8_t>(code);
        } else {
          std::uint8_t& both = panel[(place / 8 * 16 + row % 16) * 4 + place % 4];
          both = static_cast<std::uint8_t>(place % 8 < 4 ? (both & 240) | (code & 15)
                                                         : (both & 15) | (code & 15) << 4);
        }
      }
      for (std::int64_t g = 0; g < groups; ++g) {
        const std::int64_t at = (row / 16 * groups + g) * 16 + row % 16;
        const float scale = scales[row * groups + g];
        if (q.half_scales) {
          reinterpret_cast<std::uint16_t*>(q.scales->data())[at] = to_f16(scale);
        } else {
          q.scales->data()[at] = detail::bits_of(scale);
        }
      }
    }
  });
  return q;
}

// Rounds weights [rows, cols]. 8 bits: scale = max|w| / 127; 4 bits: the largest by magnitude
// becomes -8. Scales are f16. The same numbers as ggml's q8_0 and q4_0 in groups of 32.
inline QuantizedMatrix quantize(std::int64_t rows, std::int64_t cols, std::int64_t group, int bits,
                                const float* w) {
  if (rows <= 0 || cols <= 0 || group < 1 || group > std::int64_t{1} << 40) {  // throws
    return pack_quantized(rows, cols, group, bits, nullptr, nullptr);
  }
  const std::int64_t groups = (cols + group - 1) / group;
  List<std::int8_t> codes(static_cast<std::size_t>(rows * cols));
  List<float> scales(static_cast<std::size_t>(rows * groups));
  for (std::int64_t at = 0; at < rows * groups; ++at) {
    const std::int64_t first = at / groups * cols + at % groups * group;
    const std::int64_t last = std::min(first + group, (at / groups + 1) * cols);
    float largest = 0;
    for (std::int64_t i = first; i < last; ++i) {
      if (!(std::fabs(w[i]) <= 65504.0f)) {
        detail::fail({"quantize: weight ", i / cols, ", ", i % cols, " is ", double{w[i]},
                      "; weights must be within +-65504"});
      }
      largest = std::fabs(w[i]) > std::fabs(largest) ? w[i] : largest;
    }
    const float scale = bits == 8 ? std::fabs(largest) / 127.0f : largest / -8.0f;
    const float inverse = std::fabs(scale) > 1e-38f ? 1.0f / scale : 0.0f;  // finite
    for (std::int64_t i = first; i < last; ++i) {
      const float code = bits == 8 ? std::round(w[i] * inverse)
                                   : std::fmin(15.0f, std::trunc(w[i] * inverse + 8.5f)) - 8.0f;
      codes[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(code);
    }
    scales[static_cast<std::size_t>(at)] = from_f16(to_f16(scale));
  }
  return pack_quantized(rows, cols, group, bits, codes.data(), scales.data());
}

// The reference body, without rounding x: y[n] = sum of w x.
inline void gemv_quantized_reference(const QuantizedMatrix& w, const float* x, float* y) {
  for (std::int64_t n = 0; n < w.rows; ++n) {
    double sum = 0.0;
    for (std::int64_t p = 0; p < w.cols; ++p) {
      sum += double{w.scale(n, p)} * w.code(n, p) * double{x[p]};
    }
    y[n] = static_cast<float>(sum);
  }
}

}  // namespace kernels

namespace detail {

// One x, rounded to int8 by group: scale = max|x| / 127. A NaN or an infinity makes its group's
// scale, and so every y, NaN. offset: what the shift of W's codes adds to each dot product.
struct RoundedActivations {
  std::int8_t* codes;  // groups * padded, zeros after each group's columns
  float* scales;
  std::int32_t* offsets;
};

struct RoundActivations {
  const float* x;
  std::int64_t cols, group, padded;
  std::int32_t shift;  // 128, or 8 for 4 bits
  bool blocks;         // as ggml on x86: x (127 / max), half to even; the scale becomes an f16
  RoundedActivations to;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t g = 0; g * group < cols; ++g) {
      const std::int64_t count = std::min(group, cols - g * group);
      const std::uint32_t largest = largest_bits<L>(x + g * group, count);
      const float scale = float_of(largest) / 127.0f;
      const bool finite = largest < 0x7f800000U;
      to.scales[g] = !finite  ? std::numeric_limits<float>::quiet_NaN()
                     : blocks ? from_f16(to_f16(scale))
                              : scale;
      typename L::I sum{};
      if (!finite || scale < 1e-38f) {  // codes that no scale makes large
        std::memset(to.codes + g * padded, 0, static_cast<std::size_t>(padded));
      } else if (blocks) {
        codes<L, true>(g, count, 127.0f / float_of(largest), sum);
      } else {
        codes<L, false>(g, count, scale, sum);
      }
      std::int32_t lanes[static_cast<std::size_t>(L::width)], total = 0;
      std::memcpy(lanes, &sum, sizeof(sum));
      for (const std::int32_t lane : lanes) {
        total += lane;
      }
      to.offsets[g] = -shift * total;
    }
  }

  template <class L, bool BLOCKS>
  TINYSCALE_INLINE void codes(std::int64_t g, std::int64_t count, float scale,
                              typename L::I& sum) const {
    const float* const from = x + g * group;
    std::int8_t* const out = to.codes + g * padded;
    const std::int64_t wide = padded;
    typename L::V v, by;
    typename L::I code, rest, sign, short_of, none;
    broadcast<L>(scale, by);
    broadcast_word(static_cast<std::int32_t>(cols >> 62), none);  // 0, which no compiler knows
    for (std::int64_t i = 0; i < wide; i += L::width) {
      if (i + L::width <= count) {
        load<L>(from + i, v);
      } else {
        load_part<L>(from + i, std::max<std::int64_t>(0, count - i), 0.0f, v);
      }
      if constexpr (BLOCKS) {
        v = v * by;  // rounded, before the sum below: what is no float cannot be fused with it
        std::memcpy(&code, &v, sizeof(code));
        code = code ^ none;
        std::memcpy(&v, &code, sizeof(v));
      } else {
        v = v / by;
      }
      // The low bits of v + 1.5 * 2^23 are round(v), to nearest, halves to even.
      const typename L::V shifted = v + 12582912.0f;
      std::memcpy(&code, &shifted, sizeof(code));
      code = code - 0x4B400000;
      if constexpr (!BLOCKS) {  // halves that went towards zero: one further
        typename L::V whole;
        to_float<L>(code, whole);
        whole = v - whole;
        std::memcpy(&rest, &whole, sizeof(rest));
        std::memcpy(&sign, &v, sizeof(sign));
        short_of = (0x3effffff - (rest & 0x7fffffff)) & ~(rest ^ sign);
        code = code + (((sign >> 31) | 1) & (short_of >> 31));
      }
      sum = sum + code;
      store_codes<L>(code, std::min<std::int64_t>(L::width, wide - i), out + i);
    }
  }

  template <class L>
  static TINYSCALE_INLINE void store_codes(const typename L::I& code, std::int64_t count,
                                           std::int8_t* out) {
#if TINYSCALE_X86_UNITS
    if constexpr (L::width == 16) {
      if (count == 16) {
        bytes_by_unit(code, out);
        return;
      }
    }
#endif
    std::int32_t lanes[static_cast<std::size_t>(L::width)];
    std::memcpy(lanes, &code, sizeof(code));
    for (std::int64_t e = 0; e < count; ++e) {
      out[e] = static_cast<std::int8_t>(lanes[e]);
    }
  }

  template <class L>
  static TINYSCALE_INLINE std::uint32_t largest_bits(const float* from, std::int64_t count) {
    typename L::I best{}, bits, mask;
    std::int64_t i = 0;
    for (; i + L::width <= count; i += L::width) {
      std::memcpy(&bits, from + i, sizeof(bits));
      bits = bits & 0x7fffffff;
      mask = (best - bits) >> 31;  // a comparison g++ would take apart
      best = (bits & mask) | (best & ~mask);
    }
    std::int32_t lanes[static_cast<std::size_t>(L::width)];
    std::memcpy(lanes, &best, sizeof(best));
    std::uint32_t largest = 0;
    for (const std::int32_t lane : lanes) {
      largest = std::max(largest, static_cast<std::uint32_t>(lane));
    }
    for (; i < count; ++i) {
      largest = std::max(largest, bits_of(from[i]) & 0x7fffffffU);
    }
    return largest;
  }
};

// For each first panel: first, first + stride, ... of y, up to 4, for m rows of x: as many far
// streams, each of which the next panels go on with, bring more from memory than one does. Of many
// rows of x, some at a time share what is read of W, two panels or one.
struct QuantizedPanels {
  const kernels::QuantizedMatrix& w;
  RoundedActivations x;  // of the first row; the others are `next` floats further each
  std::int64_t next, m;
  std::int64_t begin, end, stride;  // of the first panels of these calls
  float* y;
  std::int64_t ldy;
  // For one row of x: Intel's processors do not see beyond a page; AMD's follow these streams
  // better by themselves (Zen 5: 1.15 to 1.3 times as fast). Rows that share a read of W fetch on
  // both (Zen 5: 1.3 to 1.8 times as fast from memory).
  bool fetches;

  template <class U>
  TINYSCALE_INLINE void run() const {
    const std::int64_t panels = (w.rows + 15) / 16;
    for (std::int64_t first = begin; first < end; ++first) {
      const std::int64_t count = (panels - first + stride - 1) / stride;
      if (w.bits == 8) {
        all<U, 8>(first, count);
      } else {
        all<U, 4>(first, count);
      }
    }
  }

  template <class U, int BITS>
  TINYSCALE_INLINE void all(std::int64_t first, std::int64_t count) const {
    constexpr int wide = U::width >= 4 ? U::width / 4 : 1;  // panels for one row of x
    std::int64_t done = 0;
    if constexpr (U::width >= 8) {
      constexpr int some = U::width / 4, panels = U::width / 8;  // as fits in registers
      done = m / some * some;
      for (std::int64_t v = 0; v < count && done > 0; v += panels) {
        for (std::int64_t i = 0; i < done; i += some) {
          if (v + panels <= count) {
            bits<U, panels, BITS, some>(first + v * stride, i);
          } else {
            bits<U, 1, BITS, some>(first + v * stride, i);
          }
        }
      }
    }
    for (std::int64_t i = done; i < m; ++i) {
      std::int64_t v = 0;
      for (; v + wide <= count; v += wide) {
        if (fetches) {
          bits<U, wide, BITS, 1>(first + v * stride, i);
        } else {
          bits<U, wide, BITS, 1, false>(first + v * stride, i);
        }
      }
      for (; v < count; ++v) {
        bits<U, 1, BITS, 1>(first + v * stride, i);
      }
    }
  }

  template <class U, int PANELS, int BITS, int TOKENS, bool FETCH = true>
  TINYSCALE_INLINE void bits(std::int64_t p, std::int64_t token) const {
    constexpr int vectors = PANELS * 16 / U::width, each = 16 / U::width, sums = vectors * TOKENS;
    constexpr std::int64_t in_word = BITS == 8 ? 4 : 8;
    const std::int64_t groups = w.groups(), full = w.padded() / in_word * 16;
    const std::int64_t panel = w.padded_cols() / in_word * 16;
    const std::int64_t apart = stride * panel, step = next;
    const std::int64_t ahead = token == 0 ? 1024 : 0;  // a page
    const std::uint32_t* from = w.data->data() + p * panel;
    const std::uint32_t* const until = from + panel;
    const std::int8_t* codes = x.codes + token * step * 4;
    const float* const x_scales = x.scales + token * step;
    const std::int32_t* const offsets = x.offsets + token * step;
    typename U::Floats sum[static_cast<std::size_t>(sums)];
    TINYSCALE_UNROLL
    for (int v = 0; v < sums; ++v) {
      sum[v] = typename U::Floats{};
    }
    for (std::int64_t g = 0; g < groups; ++g, from += full, codes += w.padded()) {
      const std::int64_t words = std::min<std::int64_t>(full, until - from);
      typename U::Words dots[static_cast<std::size_t>(sums)], low,
          weights[static_cast<std::size_t>(vectors)];
      TINYSCALE_UNROLL
      for (int v = 0; v < sums; ++v) {
        U::broadcast(static_cast<std::uint32_t>(offsets[v / vectors * step + g]), dots[v]);
      }
      for (std::int64_t at = 0; at < words; at += 16) {
        TINYSCALE_UNROLL
        for (int v = 0; v < vectors; ++v) {
          const std::uint32_t* const place = from + v / each * apart + at + v % each * U::width;
          U::load(place, weights[v]);
          if constexpr (FETCH) {
            prefetch(place + ahead);
          }
        }
        TINYSCALE_UNROLL
        for (int half = 0; half < 8 / BITS; ++half) {
          TINYSCALE_UNROLL
          for (int t = 0; t < TOKENS; ++t) {
            std::uint32_t word;
            std::memcpy(&word, codes + t * step * 4 + at / 16 * in_word + 4 * half, 4);
            U::broadcast(word, low);
            TINYSCALE_UNROLL
            for (int v = 0; v < vectors; ++v) {
              if constexpr (BITS == 4) {
                U::dot(low, (weights[v] >> (4 * half)) & 0x0f0f0f0f, dots[t * vectors + v]);
              } else {
                U::dot(low, weights[v], dots[t * vectors + v]);
              }
            }
          }
        }
      }
      TINYSCALE_UNROLL
      for (int v = 0; v < vectors; ++v) {
        typename U::Floats scale, value;
        load_scales<U>(((p + v / each * stride) * groups + g) * 16 + v % each * U::width, scale);
        TINYSCALE_UNROLL
        for (int t = 0; t < TOKENS; ++t) {
          to_float<typename U::Lanes>(dots[t * vectors + v], value);
          sum[t * vectors + v] = sum[t * vectors + v] + (value * scale) * x_scales[t * step + g];
        }
      }
    }
    TINYSCALE_UNROLL
    for (int v = 0; v < sums; ++v) {
      const std::int64_t row = (p + v % vectors / each * stride) * 16 + v % each * U::width;
      if (row < w.rows) {
        store_some<typename U::Lanes>(y + (token + v / vectors) * ldy + row, w.rows - row, sum[v]);
      }
    }
  }

  template <class U>
  TINYSCALE_INLINE void load_scales(std::int64_t at, typename U::Floats& scale) const {
    if (!w.half_scales) {
      load<typename U::Lanes>(reinterpret_cast<const float*>(w.scales->data()) + at, scale);
    } else {
      U::load_halves(reinterpret_cast<const std::uint16_t*>(w.scales->data()) + at, scale);
    }
  }
};

}  // namespace detail

namespace kernels {

// y[m][rows] = x[m][cols] W'; 64 rows of W come from cache after the first rows of x.
inline void gemm_quantized(const QuantizedMatrix& w, std::int64_t m, const float* x,
                           std::int64_t ldx, float* y, std::int64_t ldy,
                           Activations how = Activations::int8_groups) {
  if (m <= 0 || w.rows <= 0) {
    return;
  }
  const std::int64_t groups = w.groups(), bytes = (groups * w.padded() + 3) / 4;
  const std::int64_t next = bytes + 2 * groups;
  const detail::Scratch lease(m * next + 1);
  const auto at = [&](std::int64_t i) {
    float* const start = lease.data() + i * next;
    return detail::RoundedActivations{reinterpret_cast<std::int8_t*>(start), start + bytes,
                                      reinterpret_cast<std::int32_t*>(start + bytes + groups)};
  };
  const bool blocks = how == Activations::int8_blocks;
  parallel_for(m, 1 + 16384 / (w.cols + 1), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      detail::run_on_lanes(detail::RoundActivations{x + i * ldx, w.cols, w.group, w.padded(),
                                                    w.bits == 8 ? 128 : 8, blocks, at(i)});
    }
  });
  const std::int64_t panels = (w.rows + 15) / 16, chunks = (panels + 3) / 4;
  const bool fetches = !cpu().amd;
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    detail::run_on_int8(
        detail::QuantizedPanels{w, at(0), next, m, begin, end, chunks, y, ldy, fetches});
  };
  detail::stream_rows(chunks, static_cast<double>(m) * w.bytes(), body);
}

inline void gemv_quantized(const QuantizedMatrix& w, const float* x, float* y) {
  gemm_quantized(w, 1, x, w.cols, y, w.rows);
}

}  // namespace kernels
}  // namespace tinyscale
