#pragma once
// The angles of a rotary embedding, computed once for a forward pass: cos and sin of each place in
// a list, of a flat batch of tokens of many sequences, instead of once a layer (rope.hpp has the
// formula). Applying it is then a few multiplications.

#include <cmath>
#include <cstdint>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/rope.hpp"

namespace tinyscale {
namespace detail {

// The tokens [begin, end) of x turned in place, heads one behind the other.
struct RopeTurned {
  std::int64_t begin, end, heads, half;
  RopePairs pairs;
  const float* cos;  // [tokens][half]
  const float* sin;
  float* x;
  std::int64_t ldx;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        float* const at = x + t * ldx + h * 2 * half;
        if (pairs == RopePairs::halves) {
          halves<L>(cos + t * half, sin + t * half, at);
        } else {
          for (std::int64_t i = 0; i < half; ++i) {
            const float a = at[2 * i], b = at[2 * i + 1];
            const float c = cos[t * half + i], s = sin[t * half + i];
            at[2 * i] = a * c - b * s;
            at[2 * i + 1] = a * s + b * c;
          }
        }
      }
    }
  }

  template <class L>
  TINYSCALE_INLINE void halves(const float* c, const float* s, float* at) const {
    typename L::V a, b, cosine, sine;
    for (std::int64_t i = 0; i < half; i += L::width) {
      const std::int64_t left = half - i;
      load_some<L>(at + i, left, 0.0f, a);
      load_some<L>(at + half + i, left, 0.0f, b);
      load_some<L>(c + i, left, 0.0f, cosine);
      load_some<L>(s + i, left, 0.0f, sine);
      store_some<L>(at + i, left, a * cosine - b * sine);
      store_some<L>(at + half + i, left, a * sine + b * cosine);
    }
  }
};

}  // namespace detail

namespace kernels {

class RopeTable {
 public:
  RopeTable() = default;
  // factors: that the frequencies are divided by, [head_size / 2]; null: 1.
  RopeTable(const std::int64_t* places, std::int64_t tokens, std::int64_t head_size, double theta,
            const float* factors = nullptr)
      : tokens_(tokens), half_(head_size / 2) {
    if (tokens < 0 || head_size < 0 || head_size % 2 != 0 || !(theta > 0)) {
      detail::fail({"RopeTable: ", tokens, " tokens, heads of ", head_size, ", theta ", theta,
                    "; heads must be even, theta above 0"});
    }
    List<double> frequency(static_cast<std::size_t>(half_));
    for (std::int64_t i = 0; i < half_; ++i) {
      frequency[static_cast<std::size_t>(i)] = rope_frequency(theta, i, head_size, factors);
    }
    cos_.resize(static_cast<std::size_t>(tokens * half_));
    sin_.resize(cos_.size());
    parallel_for(tokens, 1 + 2048 / (half_ + 1), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t at = begin * half_; at < end * half_; ++at) {
        const double angle = static_cast<double>(places[at / half_]) *
                             frequency[static_cast<std::size_t>(at % half_)];
        cos_[static_cast<std::size_t>(at)] = static_cast<float>(std::cos(angle));
        sin_[static_cast<std::size_t>(at)] = static_cast<float>(std::sin(angle));
      }
    });
  }

  std::int64_t tokens() const { return tokens_; }
  std::int64_t head_size() const { return 2 * half_; }

  // Turns x [tokens][heads * head_size] in place; rows are ldx numbers apart.
  void turn(RopePairs pairs, std::int64_t heads, float* x, std::int64_t ldx) const {
    const std::int64_t grain = 1 + 16384 / (heads * half_ + 1);
    parallel_for(tokens_, grain, [&](std::int64_t begin, std::int64_t end) {
      detail::run_on_lanes(
          detail::RopeTurned{begin, end, heads, half_, pairs, cos_.data(), sin_.data(), x, ldx});
    });
  }

 private:
  std::int64_t tokens_ = 0, half_ = 0;
  List<float> cos_, sin_;
};

}  // namespace kernels
}  // namespace tinyscale
