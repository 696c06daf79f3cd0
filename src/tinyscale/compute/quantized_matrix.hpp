#pragma once
// Quantised weights W [N, K]: K is cut into groups that share a scale; codes are int8 or 4-bit. 16
// rows of W are laid side by side, a lane a row, so that products add up no lanes: [panel of 16
// rows][k / 4][row] words of 4 int8, kept 128 higher; 4-bit ones 8 higher, the second word of each
// pair in the upper half of the bytes. A group takes whole words, 4 columns or 8 of 4 bits; what is
// too much holds zeros. The last group may have fewer columns, and takes as many words as these do.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/format.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/gemm_words.hpp"

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
  detail::check_weights("quantize", rows, cols);
  if (group < 1 || (bits != 4 && bits != 8)) {
    detail::fail({"quantize: groups of ", group, ", ", bits,
                  " bits; groups have 1 column or more, codes 4 or 8 bits"});
  }
  if (rows == 0 || cols == 0 || group > std::int64_t{1} << 40) {  // throws
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

}  // namespace kernels

}  // namespace tinyscale
