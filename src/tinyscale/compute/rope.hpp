#pragma once
// Rotary position embedding: pair i of a head at position t turns by t / theta^(2 i / head_size).
// Models trained again on longer texts divide some frequencies by factors (Llama 3, arXiv
// 2407.21783).
//   interleaved: pairs (x[2 i], x[2 i + 1]);  halves: pairs (x[i], x[i + head_size / 2]).
// The backward pass turns the gradient by the opposite angle. Su et al., arXiv 2104.09864.

#include <cmath>
#include <cstdint>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/memory_check.hpp"

namespace tinyscale {

enum class RopePairs { interleaved, halves };

// Where the tokens of a device stand in their sequences: one stretch, or two (zigzag).
struct TokenPlaces {
  std::int64_t first = 0;
  std::int64_t jump_at = 0, jump = 0;  // tokens from jump_at on stand `jump` places further

  constexpr TokenPlaces(std::int64_t from_place = 0, std::int64_t after = 0, std::int64_t by = 0)
      : first(from_place), jump_at(after), jump(by) {}
  constexpr std::int64_t at(std::int64_t t) const { return first + t + (t >= jump_at ? jump : 0); }
  // Of the tokens from t on.
  constexpr TokenPlaces from(std::int64_t t) const {
    return t < jump_at ? TokenPlaces(first + t, jump_at - t, jump) : TokenPlaces(at(t));
  }
  // How many of n tokens stand before the jump.
  constexpr std::int64_t before_jump(std::int64_t n) const {
    return jump == 0 || jump_at >= n ? n : jump_at > 0 ? jump_at : 0;
  }
};

namespace kernels {

enum class RopeTurn { forward, inverse };

struct RopeShape {  // x is [batch, tokens, heads * head_size]
  std::int64_t batch = 1, tokens = 1, heads = 1, head_size = 2;
  TokenPlaces places;
  double theta = 10000.0;
  RopePairs pairs = RopePairs::interleaved;
  const float* factors = nullptr;  // [head_size / 2] that the frequencies are divided by; null: 1
};

// Of pair i, in radians a token.
inline double rope_frequency(double theta, std::int64_t i, std::int64_t head_size,
                             const float* factors) {
  const double part = static_cast<double>(2 * i) / static_cast<double>(head_size);
  return std::pow(theta, -part) / (factors == nullptr ? 1.0 : static_cast<double>(factors[i]));
}

// The reference body; backward: the inverse turn.
inline void rope_reference(const RopeShape& s, RopeTurn turn, const float* x, float* y) {
  const std::int64_t half = s.head_size / 2;
  for (std::int64_t at = 0; at < s.batch * s.tokens * s.heads * half; ++at) {
    const std::int64_t i = at % half, head = at / half, t = head / s.heads % s.tokens;
    const bool interleaved = s.pairs == RopePairs::interleaved;
    const std::int64_t a = head * s.head_size + (interleaved ? 2 * i : i);
    const std::int64_t b = a + (interleaved ? 1 : half);
    const double angle =
        static_cast<double>(s.places.at(t)) * rope_frequency(s.theta, i, s.head_size, s.factors);
    const double c = std::cos(angle), n = std::sin(turn == RopeTurn::forward ? angle : -angle);
    const double xa = double{x[a]}, xb = double{x[b]};
    y[a] = static_cast<float>(xa * c - xb * n);
    y[b] = static_cast<float>(xa * n + xb * c);
  }
}

}  // namespace kernels

namespace detail {

// Places, also those behind n tokens and a jump, are counted exactly (2^53 is).
inline void check_places(const char* who, const TokenPlaces& places, std::int64_t n) {
  const std::int64_t most = std::int64_t{1} << 52;
  if (places.first < -most || places.first > most || places.jump < -most || places.jump > most ||
      n > most) {
    fail({who, ": ", n, " tokens from place ", places.first, " on, with a jump of ", places.jump,
          "; at most 2^52 of each are right"});
  }
}

// y = turned x, or y += turned x, for one token: cos and sin are [head_size / 2].
template <bool add>
TINYSCALE_OPTIMIZED void rope_token(const kernels::RopeShape& s, const float* cos, const float* sin,
                                    const float* x, float* y) {
  const std::int64_t half = s.head_size / 2;
  const bool interleaved = s.pairs == RopePairs::interleaved;
  for (std::int64_t h = 0; h < s.heads; ++h) {
    for (std::int64_t i = 0; i < half; ++i) {
      const std::int64_t a = h * s.head_size + (interleaved ? 2 * i : i);
      const std::int64_t b = interleaved ? a + 1 : a + half;
      const float xa = x[a];
      const float xb = x[b];
      const float ya = xa * cos[i] - xb * sin[i];
      const float yb = xa * sin[i] + xb * cos[i];
      y[a] = add ? y[a] + ya : ya;
      y[b] = add ? y[b] + yb : yb;
    }
  }
}

inline void rope_all(const char* who, const kernels::RopeShape& s, kernels::RopeTurn turn,
                     const float* x, float* y, bool add) {
  const std::int64_t half = s.head_size / 2;
  const std::int64_t n = count_of(who, {s.batch, s.tokens, s.heads, s.head_size});
  if (s.head_size % 2 != 0) {
    fail({who, ": heads of ", s.head_size, " numbers; pairs are turned, so an even size is right"});
  }
  check_places(who, s.places, s.tokens);
  check_in_place(who, {"y", y, n}, {{"x", x, n}});
  const std::int64_t width = s.heads * s.head_size;
  List<double> frequency(static_cast<std::size_t>(half));
  for (std::int64_t i = 0; i < half; ++i) {
    frequency[static_cast<std::size_t>(i)] =
        kernels::rope_frequency(s.theta, i, s.head_size, s.factors);
  }
  parallel_for(s.tokens, 8, [&](std::int64_t begin, std::int64_t end) {
    List<float> cos(frequency.size()), sin(frequency.size());
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::size_t i = 0; i < frequency.size(); ++i) {
        const double angle = static_cast<double>(s.places.at(t)) * frequency[i];
        cos[i] = static_cast<float>(std::cos(angle));
        sin[i] = static_cast<float>(turn == kernels::RopeTurn::forward ? std::sin(angle)
                                                                       : -std::sin(angle));
      }
      for (std::int64_t b = 0; b < s.batch; ++b) {
        const std::int64_t at = (b * s.tokens + t) * width;
        if (add) {
          rope_token<true>(s, cos.data(), sin.data(), x + at, y + at);
        } else {
          rope_token<false>(s, cos.data(), sin.data(), x + at, y + at);
        }
      }
    }
  });
}

}  // namespace detail

namespace kernels {

// y = x turned (y may be x). head_size must be even.
inline void rope(const RopeShape& s, RopeTurn turn, const float* x, float* y) {
  detail::rope_all("rope", s, turn, x, y, false);
}

// dx = beta dx + dy turned back; beta is 0 (dx is not read) or 1.
inline void rope_backward(const RopeShape& s, const float* dy, float* dx, float beta = 1.0f) {
  detail::rope_all("rope_backward", s, RopeTurn::inverse, dy, dx, beta != 0.0f);
}

}  // namespace kernels
}  // namespace tinyscale
