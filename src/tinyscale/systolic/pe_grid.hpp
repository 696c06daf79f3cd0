#pragma once
// The registers of R x C processing elements, and one tick of all their multiply-adds.
// A PE holds an activation (moves east), a partial sum, a weight and a second register (the next
// weight, or a finished sum), and five control bits that move or stay with them; a row's bits are
// packed into 64-bit words. A multiply-add rounds once (fused) on every CPU path, so results are
// the same bits everywhere.

#include <algorithm>  // min, max
#include <cmath>      // fma
#include <cstdint>    // int64_t, uint64_t
#include <cstring>    // memcpy, memmove
#include <vector>     // vector

#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/systolic/array_report.hpp"

namespace tinyscale {
namespace detail {

// One float per PE. Row -1 is the north edge, column -1 the west edge: what enters at this tick.
class Plane {
 public:
  Plane(std::int64_t rows, std::int64_t cols)
      : stride_((cols + 15) / 16 * 16 + 16),
        buffer_(static_cast<std::size_t>((rows + 1) * stride_ + 32)) {
    const auto address = reinterpret_cast<std::uintptr_t>(buffer_.data());
    const auto skip = static_cast<std::int64_t>((64 - address % 64) % 64 / sizeof(float));
    origin_ = buffer_.data() + skip + stride_ + 16;  // PE (0, 0), at the start of a cache line
  }
  Plane(const Plane&) = delete;
  Plane& operator=(const Plane&) = delete;

  float* row(std::int64_t r) { return origin_ + r * stride_; }
  const float* row(std::int64_t r) const { return origin_ + r * stride_; }
  std::int64_t stride() const { return stride_; }

  // Columns [first, last] of row r take what row r - 1 holds.
  void shift_south(std::int64_t r, std::int64_t first, std::int64_t last) {
    if (first <= last) {
      std::memcpy(row(r) + first, row(r - 1) + first,
                  static_cast<std::size_t>(last - first + 1) * sizeof(float));
    }
  }

 private:
  std::int64_t stride_;
  std::vector<float> buffer_;
  float* origin_ = nullptr;
};

inline std::int64_t count_bits(std::uint64_t x) {
  if (x == 0) {
    return 0;
  }
  x -= (x >> 1) & 0x5555555555555555u;
  x = (x & 0x3333333333333333u) + ((x >> 2) & 0x3333333333333333u);
  x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu;
  return static_cast<std::int64_t>((x * 0x0101010101010101u) >> 56);
}

// One bit per PE.
class BitPlane {
 public:
  BitPlane(std::int64_t rows, std::int64_t cols)
      : words_((cols + 63) / 64), bits_(static_cast<std::size_t>(rows * words_)) {}

  std::uint64_t* row(std::int64_t r) { return bits_.data() + r * words_; }
  const std::uint64_t* row(std::int64_t r) const { return bits_.data() + r * words_; }

  bool get(std::int64_t r, std::int64_t c) const { return (row(r)[c / 64] >> (c % 64)) & 1u; }

  void set(std::int64_t r, std::int64_t c, bool on) {
    const std::uint64_t bit = std::uint64_t{1} << (c % 64);
    std::uint64_t& word = row(r)[c / 64];
    word = on ? word | bit : word & ~bit;
  }

  // Moves a row one PE to the east; `in` enters at the west edge.
  void shift_east(std::int64_t r, bool in) {
    std::uint64_t carry = in ? 1u : 0u;
    for (std::int64_t i = 0; i < words_; ++i) {
      std::uint64_t& word = row(r)[i];
      const std::uint64_t out = word >> 63;
      word = (word << 1) | carry;
      carry = out;
    }
  }

  // Columns [first, last] of row r take what row r - 1 holds.
  void shift_south(std::int64_t r, std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first / 64; first <= last && i <= last / 64; ++i) {
      const std::uint64_t m = mask(i, first, last);
      row(r)[i] = (row(r)[i] & ~m) | (row(r - 1)[i] & m);
    }
  }

  // The bits of word i that stand for columns first to last.
  static std::uint64_t mask(std::int64_t i, std::int64_t first, std::int64_t last) {
    const std::int64_t low = std::max<std::int64_t>(first - 64 * i, 0);
    const std::int64_t high = std::min<std::int64_t>(last - 64 * i, 63);
    if (low > high) {
      return 0;
    }
    return (~std::uint64_t{0} >> (63 - (high - low))) << low;
  }

  // The columns of row r whose bit is on, in order.
  template <class Body>
  void each(std::int64_t r, const Body& body) const {
    for (std::int64_t i = 0; i < words_; ++i) {
      for (std::uint64_t left = row(r)[i]; left != 0; left &= left - 1) {
        const std::int64_t c = 64 * i + count_bits((left & (~left + 1)) - 1);
        body(c);
      }
    }
  }

  std::int64_t words() const { return words_; }

 private:
  std::int64_t words_;
  std::vector<std::uint64_t> bits_;
};

// sum(r, c) = activation(r, c - 1) * held(r, c) + sum(r - 1, c): sums move south.
struct SumsMoveSouth {
  float* activation;
  const float* held;
  float* sum;
  std::int64_t rows, cols, stride;  // cols is a multiple of 16

  template <class L>
  TINYSCALE_INLINE void run() const {
#if defined(__clang__)
#pragma clang fp contract(on)
#endif
    typename L::V a, w, s;
    for (std::int64_t r = rows - 1; r >= 0; --r) {  // from the last row: neighbours' old values
      const std::int64_t at = r * stride;
      for (std::int64_t c = cols - L::width; c >= 0; c -= L::width) {
        load<L>(activation + at + c - 1, a);
        load<L>(held + at + c, w);
        load<L>(sum + at - stride + c, s);
        s = a * w + s;
        store<L>(sum + at + c, s);
        store<L>(activation + at + c, a);
      }
    }
  }

  void run_scalar() const {
    for (std::int64_t r = rows - 1; r >= 0; --r) {
      const std::int64_t at = r * stride;
      for (std::int64_t c = cols - 1; c >= 0; --c) {
        activation[at + c] = activation[at + c - 1];
        sum[at + c] = std::fma(activation[at + c], held[at + c], sum[at - stride + c]);
      }
    }
  }
};

// sum(r, c) += activation(r, c - 1) * held(r - 1, c) if PE (r, c) is in the stream; both move on.
struct SumsStay {
  float* activation;
  float* held;
  float* sum;
  const BitPlane* streaming;
  std::int64_t rows, cols, stride;

  template <class L>
  TINYSCALE_INLINE void run() const {
#if defined(__clang__)
#pragma clang fp contract(on)
#endif
    static const std::int32_t kOneHot[16] = {1,   2,   4,    8,    16,   32,   64,    128,
                                             256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
    typename L::V a, w, s, product;
    typename L::I lane, on;
    std::memcpy(&lane, kOneHot, sizeof(lane));
    for (std::int64_t r = rows - 1; r >= 0; --r) {
      const std::int64_t at = r * stride;
      const std::uint64_t* words = streaming->row(r);
      for (std::int64_t c = cols - L::width; c >= 0; c -= L::width) {
        load<L>(activation + at + c - 1, a);
        load<L>(held + at - stride + c, w);
        load<L>(sum + at + c, s);
        const auto bits = static_cast<std::int32_t>((words[c / 64] >> (c % 64)) & 0xffffu);
        on = (bits - typename L::I{}) & lane;
        if constexpr (L::width == 1) {
          on = -on;
        } else {
          on = on == lane;
        }
        product = a * w + s;
        blend<L>(on, product, s, product);
        store<L>(sum + at + c, product);
        store<L>(activation + at + c, a);
        store<L>(held + at + c, w);
      }
    }
  }

  void run_scalar() const {
    for (std::int64_t r = rows - 1; r >= 0; --r) {
      const std::int64_t at = r * stride;
      for (std::int64_t c = cols - 1; c >= 0; --c) {
        activation[at + c] = activation[at + c - 1];
        held[at + c] = held[at - stride + c];
        if (((streaming->row(r)[c / 64] >> (c % 64)) & 1u) != 0) {
          sum[at + c] = std::fma(activation[at + c], held[at + c], sum[at + c]);
        }
      }
    }
  }
};

// True if the vector code of the path in use rounds a * b + c once: asked of the code itself,
// since compiler flags decide it. (1 + e)^2 - (1 + 2e) is e^2 when fused, else 0.
inline bool lanes_are_fused() {
  const volatile float e = 1.0f / 4096;
  for (const bool south : {true, false}) {
    Plane activation(1, 16), held(1, 16), sum(1, 16);
    BitPlane streaming(1, 16);
    for (std::int64_t c = 0; c < 16; ++c) {
      activation.row(0)[c - 1] = 1 + e;
      held.row(0)[c] = held.row(-1)[c] = 1 + e;
      sum.row(0)[c] = sum.row(-1)[c] = -(1 + 2 * e);
      streaming.set(0, c, true);
    }
    if (south) {
      run_on_lanes(SumsMoveSouth{activation.row(0), held.row(0), sum.row(0), 1, 16, sum.stride()});
    } else {
      run_on_lanes(
          SumsStay{activation.row(0), held.row(0), sum.row(0), &streaming, 1, 16, sum.stride()});
    }
    for (std::int64_t c = 0; c < 16; ++c) {
      if (sum.row(0)[c] != e * e) {
        return false;
      }
    }
  }
  return true;
}

// What a PE does with a tick: one letter of the ledger.
enum class PeState { useful, padded, fill, drain, weight_shift };

struct PeGrid {
  std::int64_t rows, cols;
  Plane activation, sum, held, next;  // next: the next weight, or a sum on its way out
  BitPlane streaming;                 // a stream slot is here; moves east with the activation
  BitPlane waiting;                   // a gap for want of a tile; moves east in the same way
  BitPlane begins, leaves;            // first slot of a fold; the sum is to leave
  BitPlane real, next_real;           // the stationary element is not padding
  BitPlane done;                      // a stream has been here since the column was last loaded
  BitPlane loading;                   // one row: columns that shift in the only tile they have
  bool fused = lanes_are_fused();

  PeGrid(std::int64_t r, std::int64_t c)
      : rows(r),
        cols(c),
        activation(r, c),
        sum(r, c),
        held(r, c),
        next(r, c),
        streaming(r, c),
        waiting(r, c),
        begins(r, c),
        leaves(r, c),
        real(r, c),
        next_real(r, c),
        done(r, c),
        loading(1, c) {}

  std::int64_t padded_cols() const { return (cols + 15) / 16 * 16; }

  void step_sums_south() {
    const SumsMoveSouth step{activation.row(0), held.row(0), sum.row(0), rows,
                             padded_cols(),     sum.stride()};
    fused ? run_on_lanes(step) : step.run_scalar();
  }

  void step_sums_stay() {
    const SumsStay step{activation.row(0), held.row(0), sum.row(0), &streaming, rows,
                        padded_cols(),     sum.stride()};
    fused ? run_on_lanes(step) : step.run_scalar();
  }

  // Books this tick of every PE.
  void book(LossLedger& ledger) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < done.words(); ++i) {
        const std::uint64_t all = BitPlane::mask(i, 0, cols - 1);
        const std::uint64_t busy = streaming.row(r)[i] & all;
        std::uint64_t& was = done.row(r)[i];
        was = (was & ~loading.row(0)[i]) | busy;
        const std::int64_t useful = count_bits(busy & real.row(r)[i]);
        ledger.useful += useful;
        ledger.padded += count_bits(busy) - useful;
        const std::uint64_t idle = all & ~busy;
        if (idle != 0) {
          const std::uint64_t shift = idle & (loading.row(0)[i] | waiting.row(r)[i]);
          ledger.weight_shift += count_bits(shift);
          ledger.drain += count_bits(idle & ~shift & was);
          ledger.fill += count_bits(idle & ~shift & ~was);
        }
      }
    }
  }

  // The entry of book() for one PE.
  PeState state(std::int64_t r, std::int64_t c) const {
    if (streaming.get(r, c)) {
      return real.get(r, c) ? PeState::useful : PeState::padded;
    }
    if (loading.get(0, c) || waiting.get(r, c)) {
      return PeState::weight_shift;
    }
    return done.get(r, c) ? PeState::drain : PeState::fill;
  }
};

}  // namespace detail
}  // namespace tinyscale
