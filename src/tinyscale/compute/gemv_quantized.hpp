#pragma once
// Products of quantised weights W [N, K] with activations, y = W x: the bytes of W are the whole
// cost of a decoded token.
//   y[n] = sum over groups, in order, of  (integer dot product) * w_scale[n][group] *
//   x_scale[group]
// x is rounded to int8 by group, as llama2.c and ggml do.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tinyscale/base/format.hpp"
#include "tinyscale/compute/gemm_int8.hpp"
#include "tinyscale/compute/quantized_matrix.hpp"
#include "tinyscale/compute/streams.hpp"

namespace tinyscale {
namespace kernels {

// The reference bodies: x, which is finite, as its codes say; and y = W x of that.
inline void round_activations_reference(Activations how, std::int64_t n, std::int64_t group,
                                        const float* x, float* y) {
  for (std::int64_t i = 0; i < n; ++i) {
    float largest = 0;
    for (std::int64_t j = i / group * group; j < std::min(n, i / group * group + group); ++j) {
      largest = std::max(largest, std::fabs(x[j]));
    }
    const float scale = largest / 127.0f;
    if (scale < 1e-38f) {
      y[i] = 0;
    } else if (how == Activations::int8_blocks) {  // halves to even, the scale an f16
      y[i] = std::nearbyint(x[i] * (127.0f / largest)) * from_f16(to_f16(scale));
    } else {
      y[i] = std::round(x[i] / scale) * scale;
    }
  }
}
inline void gemv_quantized_reference(const QuantizedMatrix& w, const float* x, float* y,
                                     Activations how = Activations::int8_groups) {
  std::vector<float> rounded(static_cast<std::size_t>(w.cols));
  round_activations_reference(how, w.cols, w.group, x, rounded.data());
  for (std::int64_t n = 0; n < w.rows; ++n) {
    double sum = 0.0;
    for (std::int64_t p = 0; p < w.cols; ++p) {
      sum += double{w.scale(n, p)} * w.code(n, p) * double{rounded[static_cast<std::size_t>(p)]};
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
    typename L::I code, rest, sign, none;
    [[maybe_unused]] typename L::I short_of;
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
                U::dot_few_bits(low, (weights[v] >> (4 * half)) & 0x0f0f0f0f,
                                dots[t * vectors + v]);
              } else {
                U::dot(low, weights[v], dots[t * vectors + v]);
              }
            }
          }
        }
      }
      TINYSCALE_UNROLL
      for (int v = 0; v < vectors; ++v) {
        typename U::Floats scale, value, by;
        load_scales<U>(((p + v / each * stride) * groups + g) * 16 + v % each * U::width, scale);
        TINYSCALE_UNROLL
        for (int t = 0; t < TOKENS; ++t) {
          to_float<typename U::Lanes>(dots[t * vectors + v], value);
          broadcast<typename U::Lanes>(x_scales[t * step + g], by);
          add_product<typename U::Lanes>(value * scale, by, sum[t * vectors + v]);
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

// m rows of x as a packed W meets them, in borrowed memory.
class RoundedRows {
 public:
  RoundedRows(const kernels::QuantizedMatrix& w, std::int64_t m, const float* x, std::int64_t ldx,
              Activations how)
      : cols_(w.cols),
        group_(w.group),
        padded_(w.padded()),
        groups_(w.groups()),
        code_floats_((groups_ * padded_ + 3) / 4),
        lease_(m * next() + 1) {
    const bool blocks = how == Activations::int8_blocks;
    parallel_for(m, 1 + 16384 / (cols_ + 1), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        run_on_lanes(RoundActivations{x + i * ldx, cols_, group_, padded_, w.bits == 8 ? 128 : 8,
                                      blocks, at(i)});
      }
    });
  }

  RoundedActivations at(std::int64_t i) const {
    float* const start = lease_.data() + i * next();
    return {reinterpret_cast<std::int8_t*>(start), start + code_floats_,
            reinterpret_cast<std::int32_t*>(start + code_floats_ + groups_)};
  }
  std::int64_t next() const { return code_floats_ + 2 * groups_; }  // floats from row to row
  // The numbers that row i's codes stand for.
  void numbers(std::int64_t i, float* to) const {
    const RoundedActivations row = at(i);
    for (std::int64_t col = 0; col < cols_; ++col) {
      const std::int64_t g = col / group_;
      to[col] = row.scales[g] * static_cast<float>(row.codes[g * padded_ + col % group_]);
    }
  }

 private:
  std::int64_t cols_, group_, padded_, groups_, code_floats_;
  Scratch lease_;
};

}  // namespace detail

namespace kernels {

// y[m][rows] = x[m][cols] W'; 64 rows of W come from cache after the first rows of x.
inline void gemm_quantized(const QuantizedMatrix& w, std::int64_t m, const float* x,
                           std::int64_t ldx, float* y, std::int64_t ldy,
                           Activations how = Activations::int8_groups) {
  if (how == Activations::f32) {
    detail::fail({"gemm_quantized: x is to stay f32, and whole numbers are multiplied here; ",
                  "int8_groups or int8_blocks are right"});
  }
  if (m < 0 || (m > 1 && (ldx < w.cols || ldy < w.rows))) {
    detail::fail({"gemm_quantized: ", m, " rows, ", ldx, " and ", ldy, " apart, by ", w.rows, " x ",
                  w.cols, " weights; rows of x must be ", w.cols, " apart or more, of y ", w.rows});
  }
  if (m == 0 || w.rows <= 0) {
    return;
  }
  const detail::RoundedRows rounded(w, m, x, ldx, how);
  const std::int64_t panels = (w.rows + 15) / 16, chunks = (panels + 3) / 4;
  const bool fetches = !cpu().amd;
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    detail::run_on_int8(detail::QuantizedPanels{w, rounded.at(0), rounded.next(), m, begin, end,
                                                chunks, y, ldy, fetches});
  };
  detail::stream_rows(chunks, static_cast<double>(m) * w.bytes(), body);
}

inline void gemv_quantized(const QuantizedMatrix& w, const float* x, float* y) {
  gemm_quantized(w, 1, x, w.cols, y, w.rows);
}

}  // namespace kernels
}  // namespace tinyscale
