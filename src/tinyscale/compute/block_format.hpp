#pragma once
// The formats in which files store weights: plain floats, or blocks of elements that share scales.
// A row of a matrix is a whole number of blocks. Layouts: GGUF version 3; MXFP4: OCP microscaling
// formats 1.0; block_dequantize.hpp has the values, block_quantize.hpp the way back.

#include <cstdint>
#include <string>

#include "tinyscale/base/error.hpp"

namespace tinyscale {

enum class BlockFormat {
  f32,
  f16,
  bf16,
  q8_0,  // 32 int8, one f16 scale
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_1,
  q2_k,  // super-blocks of 256
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  q8_k,
  mxfp4,
  nvfp4
};

struct BlockLayout {
  const char* name;  // as GGUF's tools spell it
  int elements, bytes;
};

inline BlockLayout block_layout(BlockFormat format) {
  static const BlockLayout layouts[] = {{"f32", 1, 4},      {"f16", 1, 2},      {"bf16", 1, 2},
                                        {"q8_0", 32, 34},   {"q4_0", 32, 18},   {"q4_1", 32, 20},
                                        {"q5_0", 32, 22},   {"q5_1", 32, 24},   {"q8_1", 32, 36},
                                        {"q2_K", 256, 84},  {"q3_K", 256, 110}, {"q4_K", 256, 144},
                                        {"q5_K", 256, 176}, {"q6_K", 256, 210}, {"q8_K", 256, 292},
                                        {"mxfp4", 32, 17},  {"nvfp4", 64, 36}};
  const auto number = static_cast<std::size_t>(format);
  if (number >= sizeof layouts / sizeof *layouts) {
    detail::fail({"block format ", static_cast<int>(format), "; 0 to ",
                  sizeof layouts / sizeof *layouts - 1, " are right"});
  }
  return layouts[number];
}

inline const char* name_of(BlockFormat format) { return block_layout(format).name; }

inline void append_text(std::string& out, BlockFormat format) { out += name_of(format); }

// Bytes of a row of `cols` elements; the blocks must divide it.
inline std::int64_t block_row_bytes(BlockFormat format, std::int64_t cols) {
  const BlockLayout layout = block_layout(format);
  if (cols < 0 || cols % layout.elements != 0) {
    detail::fail({"block_row_bytes: a row of ", cols, " elements in ", layout.name,
                  "; a multiple of ", layout.elements, " is right"});
  }
  return cols / layout.elements * layout.bytes;
}

}  // namespace tinyscale
