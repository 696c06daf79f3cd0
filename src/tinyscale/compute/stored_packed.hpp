#pragma once
// Packed codes (gemv_quantized.hpp) with activations that are not rounded: codes become f32 in
// registers, a lane a row, and are multiplied there; for many activations, written out as f32.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tinyscale/compute/gemv_quantized.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/stored_dots.hpp"

namespace tinyscale {
namespace detail {

// Packed codes as f32: words of 4 columns, a lane a row.
struct PackedCodes {
  const kernels::QuantizedMatrix& w;

  // Column e of the word pair's columns: 4 of 8 bits, or 8 of 4 bits.
  template <class L, int BITS>
  static TINYSCALE_INLINE void code(const typename L::I& words, int e, typename L::V& v) {
    typename L::I c = words >> (BITS == 8 ? 8 * e : e % 4 * 8 + e / 4 * 4);
    c = (c & (BITS == 8 ? 255 : 15)) - (BITS == 8 ? 128 : 8);
    to_float<L>(c, v);
  }
  template <class L>
  TINYSCALE_INLINE void load_words(const std::uint32_t* from, typename L::I& words) const {
    words = *reinterpret_cast<const typename L::LooseI*>(from);
  }
  template <class L>
  TINYSCALE_INLINE void scales(std::int64_t at, typename L::V& v) const {
    const auto* const from = reinterpret_cast<const std::uint8_t*>(w.scales->data());
    if (w.half_scales) {
      WideF16::load<L>(from + at * 2, v);
    } else {
      WideF32::load<L>(from + at * 4, v);
    }
  }
};

// Panels first, first + stride, ... (count of them, up to 4) times one x that is not rounded.
struct PackedDots {
  PackedCodes codes;
  const float* x;
  std::int64_t first, stride, count;
  float* y;

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr int panels = L::width >= 4 ? L::width / 4 : 1;
    std::int64_t p = 0;
    for (; p + panels <= count; p += panels) {
      some<L, panels>(first + p * stride);
    }
    for (; p < count; ++p) {
      some<L, 1>(first + p * stride);
    }
  }

  template <class L, int PANELS>
  TINYSCALE_INLINE void some(std::int64_t p) const {
    if (codes.w.bits == 8) {
      bits<L, PANELS, 8>(p);
    } else {
      bits<L, PANELS, 4>(p);
    }
  }

  template <class L, int PANELS, int BITS>
  TINYSCALE_INLINE void bits(std::int64_t p) const {
    constexpr int vectors = PANELS * 16 / L::width, each = 16 / L::width;
    constexpr int in_word = BITS == 8 ? 4 : 8;
    const kernels::QuantizedMatrix& w = codes.w;
    const std::int64_t groups = w.groups(), words = w.padded() / in_word * 16;
    const std::int64_t panel = w.padded_cols() / in_word * 16, apart = stride * panel;
    const std::uint32_t* from = w.data->data() + p * panel;
    typename L::V sum[static_cast<std::size_t>(vectors)], part[static_cast<std::size_t>(vectors)];
    typename L::V v, left;
    typename L::I word;
    TINYSCALE_UNROLL
    for (int i = 0; i < vectors; ++i) {
      sum[i] = typename L::V{};
    }
    for (std::int64_t g = 0; g < groups; ++g, from += words) {
      TINYSCALE_UNROLL
      for (int i = 0; i < vectors; ++i) {
        part[i] = typename L::V{};
      }
      const std::int64_t columns = std::min(w.group, w.cols - g * w.group);
      for (std::int64_t c = 0; c < columns; c += in_word) {
        float some[static_cast<std::size_t>(in_word)] = {};
        std::memcpy(
            some, x + g * w.group + c,
            sizeof(float) * static_cast<std::size_t>(std::min<std::int64_t>(in_word, columns - c)));
        TINYSCALE_UNROLL
        for (int i = 0; i < vectors; ++i) {
          codes.load_words<L>(from + i / each * apart + c / in_word * 16 + i % each * L::width,
                              word);
          TINYSCALE_UNROLL
          for (int e = 0; e < in_word; ++e) {
            PackedCodes::code<L, BITS>(word, e, v);
            broadcast<L>(some[e], left);
            add_product<L>(left, v, part[i]);
          }
        }
      }
      TINYSCALE_UNROLL
      for (int i = 0; i < vectors; ++i) {
        codes.scales<L>(((p + i / each * stride) * groups + g) * 16 + i % each * L::width, v);
        add_product<L>(part[i], v, sum[i]);
      }
    }
    TINYSCALE_UNROLL
    for (int i = 0; i < vectors; ++i) {
      const std::int64_t row = (p + i / each * stride) * 16 + i % each * L::width;
      if (row < w.rows) {
        store_some<L>(y + row, w.rows - row, sum[i]);
      }
    }
  }
};

// Panels [first, first + count) as f32, transposed: to[cols][16 * count].
struct UnpackPanels {
  PackedCodes codes;
  std::int64_t first, count;
  float* to;

  template <class L>
  TINYSCALE_INLINE void run() const {
    if (codes.w.bits == 8) {
      bits<L, 8>();
    } else {
      bits<L, 4>();
    }
  }

  template <class L, int BITS>
  TINYSCALE_INLINE void bits() const {
    constexpr int in_word = BITS == 8 ? 4 : 8;
    const kernels::QuantizedMatrix& w = codes.w;
    const std::int64_t groups = w.groups(), words = w.padded() / in_word * 16;
    const std::int64_t panel = w.padded_cols() / in_word * 16;
    typename L::V v, scale;
    typename L::I word;
    for (std::int64_t at = 0; at < 16 * count; at += L::width) {
      const std::int64_t p = first + at / 16;
      const std::uint32_t* const from = w.data->data() + p * panel + at % 16;
      for (std::int64_t g = 0; g < groups; ++g) {
        codes.scales<L>((p * groups + g) * 16 + at % 16, scale);
        const std::int64_t columns = std::min(w.group, w.cols - g * w.group);
        for (std::int64_t c = 0; c < columns; c += in_word) {
          codes.load_words<L>(from + g * words + c / in_word * 16, word);
          TINYSCALE_UNROLL
          for (int e = 0; e < in_word; ++e) {
            PackedCodes::code<L, BITS>(word, e, v);
            v = v * scale;
            if (c + e < columns) {
              store<L>(to + (g * w.group + c + e) * 16 * count + at, v);
            }
          }
        }
      }
    }
  }
};

}  // namespace detail
}  // namespace tinyscale
