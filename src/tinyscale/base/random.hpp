#pragma once
// Random numbers by counter: element `index` of stream `seed` is a pure function of both, so that
// a shard, a mask or an order of data is the same whatever the layout.
// Philox 4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

#include <array>
#include <cmath>  // sqrt, log, sin, cos
#include <cstdint>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/threads.hpp"

namespace tinyscale {

// Four random words from a counter and a key, by ten rounds of multiply and exchange.
TINYSCALE_OPTIMIZED inline std::array<std::uint32_t, 4> philox4x32(
    std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  std::uint32_t a = counter[0], b = counter[1], c = counter[2], d = counter[3];
  std::uint32_t left = key[0], right = key[1];
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * a;
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * c;
    a = static_cast<std::uint32_t>(p1 >> 32) ^ b ^ left;
    b = static_cast<std::uint32_t>(p1);
    c = static_cast<std::uint32_t>(p0 >> 32) ^ d ^ right;
    d = static_cast<std::uint32_t>(p0);
    left += 0x9E3779B9U;   // golden ratio
    right += 0xBB67AE85U;  // sqrt(3) - 1
  }
  return {a, b, c, d};
}

namespace detail {

// Words 4 block .. 4 block + 3 of a stream; the kind keeps uniform, normal and integers apart.
enum class RandomKind : std::uint32_t { uniform = 0, normal = 1, integer = 2 };
inline std::array<std::uint32_t, 4> random_block(std::uint64_t seed, std::uint64_t block,
                                                 RandomKind kind) {
  return philox4x32({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                     static_cast<std::uint32_t>(kind), 0},
                    {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
}

// The upper 24 bits as a multiple of 2^-24: in [0, 1), each value exact.
inline float unit_float(std::uint32_t word) {
  return static_cast<float>(word >> 8) * (1.0F / 16777216.0F);
}

inline std::array<float, 4> uniform_block(std::uint64_t seed, std::uint64_t block) {
  const std::array<std::uint32_t, 4> words = random_block(seed, block, RandomKind::uniform);
  return {unit_float(words[0]), unit_float(words[1]), unit_float(words[2]), unit_float(words[3])};
}

// Box-Muller: sqrt(-2 ln u) (cos, sin)(2 pi v) are two independent normal numbers.
inline std::array<float, 4> normal_block(std::uint64_t seed, std::uint64_t block) {
  const std::array<std::uint32_t, 4> words = random_block(seed, block, RandomKind::normal);
  std::array<float, 4> out = {};
  for (std::size_t pair = 0; pair < 4; pair += 2) {
    const float u = (static_cast<float>(words[pair] >> 8) + 0.5F) * (1.0F / 16777216.0F);
    const float angle = 6.28318531F * unit_float(words[pair + 1]);
    const float radius = std::sqrt(-2.0F * std::log(u));
    out[pair] = radius * std::cos(angle);
    out[pair + 1] = radius * std::sin(angle);
  }
  return out;
}

// out[i] = scale * element (first_index + i), for one kind of block.
inline void fill_blocks(float* out, std::int64_t n, std::uint64_t seed, std::uint64_t first_index,
                        float scale, std::array<float, 4> (*make)(std::uint64_t, std::uint64_t)) {
  parallel_for(n, 16384, [=](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::uint64_t index = first_index + static_cast<std::uint64_t>(begin);
      const std::array<float, 4> block = make(seed, index / 4);
      for (std::uint64_t lane = index % 4; lane < 4 && begin < end; ++lane) {
        out[begin++] = scale * block[lane];
      }
    }
  });
}

// out[i] = scale * uniform01(seed, first_index + i).
inline void fill_uniform(float* out, std::int64_t n, std::uint64_t seed, std::uint64_t first_index,
                         float scale) {
  fill_blocks(out, n, seed, first_index, scale, uniform_block);
}

// out[i] = scale * normal01(seed, first_index + i).
inline void fill_normal(float* out, std::int64_t n, std::uint64_t seed, std::uint64_t first_index,
                        float scale) {
  fill_blocks(out, n, seed, first_index, scale, normal_block);
}

}  // namespace detail

// In [0, 1).
inline float uniform01(std::uint64_t seed, std::uint64_t index) {
  return detail::uniform_block(seed, index / 4)[index % 4];
}

// Mean 0, variance 1.
inline float normal01(std::uint64_t seed, std::uint64_t index) {
  return detail::normal_block(seed, index / 4)[index % 4];
}

// An integer in [0, n), n > 0: the upper half of word * n; its bias is below n / 2^64.
inline std::uint64_t random_below(std::uint64_t seed, std::uint64_t index, std::uint64_t n) {
  if (n == 0) {
    detail::fail({"random_below: n is 0; n must be 1 or more"});
  }
  const std::array<std::uint32_t, 4> words =
      detail::random_block(seed, index / 2, detail::RandomKind::integer);
  const std::uint64_t low = words[2 * (index % 2)];
  const std::uint64_t high = words[2 * (index % 2) + 1];
  const std::uint64_t n_low = n & 0xffffffffU;
  const std::uint64_t n_high = n >> 32;
  const std::uint64_t middle = ((low * n_low) >> 32) + high * n_low;
  const std::uint64_t middle_low = (middle & 0xffffffffU) + low * n_high;
  return high * n_high + (middle >> 32) + (middle_low >> 32);
}

}  // namespace tinyscale
