#pragma once
// The largest number of y = W x without reading all of W. A copy C of W in fewer bits gives every
// number and how far it can be off; the rows that may hold the largest are multiplied whole. Place
// and value are those of multiply_stored's y of up to stored_few rows of x, whatever x and W are:
// greedy decoding asks no more of a model's head, which may be most of a small model's bytes.
// Where C has 4 bits and W 16 or more, the rows that C leaves are looked at in 8 bits first.
//   |w a - c b| <= |w - c| |b| + |w| |a - b|   (Cauchy-Schwarz), a and b: x as W and C round it,
// and what sums in f32 may lose: (K + 16) 2^-23 of |w| |a| and of |c| |b|.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/thread_scope.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/argmax.hpp"
#include "tinyscale/compute/byte_rows.hpp"
#include "tinyscale/compute/gemv_quantized.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/scratch.hpp"
#include "tinyscale/compute/softmax.hpp"
#include "tinyscale/compute/stored_matrix.hpp"
#include "tinyscale/compute/stored_product.hpp"

namespace tinyscale {

struct StoredScreen {
  List<kernels::QuantizedMatrix> parts;  // C, some rows after others; whole panels of 16
  List<float> left, norm;                // [panel]: the longest w - c of its rows, and w
  List<float> row_left;                  // [row], up to a whole panel
  detail::ByteRows again;                // W in 8 bits, or no rows
  List<float> again_left;                // [row]: the length of w less its row there

  double bytes() const {  // that every product reads
    double sum = 8 * static_cast<double>(left.size());
    for (const kernels::QuantizedMatrix& part : parts) {
      sum += part.bytes();
    }
    return sum;
  }
  double again_bytes() const {  // of a row looked at again
    return again.rows > 0 ? static_cast<double>(again.row_words() * 4 + 8) : 0;
  }
};

namespace kernels {

// The reference body: the whole product, in the bits that it has, then the first largest of what
// is known.
inline LargestProduct largest_stored_reference(const StoredMatrix& w, Activations how,
                                               std::int64_t known, const float* x) {
  std::vector<float> y(static_cast<std::size_t>(w.rows));
  w.multiply(w, how, 1, x, w.cols, y.data(), w.rows);
  LargestProduct largest;
  largest.place = argmax_reference(known, y.data());
  largest.value = largest.place < 0 ? 0.0f : y[static_cast<std::size_t>(largest.place)];
  largest.rows = w.rows;
  return largest;
}

}  // namespace kernels

namespace detail {

// How far off a number of C x can be: by_left of |w - c| and by_norm of |w|.
struct ScreenBounds {
  const StoredScreen& s;
  float by_left = 0, by_norm = 0;

  // What a number of panel p must be at least to stand for one of `value`.
  TINYSCALE_INLINE float least(std::int64_t p, float left, float value) const {
    return value - (left * by_left + s.norm.data()[p] * by_norm);
  }
  TINYSCALE_INLINE float least_of_panel(std::int64_t p, float value) const {
    return least(p, s.left.data()[p], value);
  }
  float least_of_row(std::int64_t row, float value) const {
    return least(row / 16, s.row_left.data()[row], value);
  }
};

// The first panel from `begin` on with a number that may stand for one of at least `value`.
struct NextPanel {
  const float* y;  // [panel][16]
  const ScreenBounds& bounds;
  float value;
  std::int64_t begin, panels;
  std::int64_t* found;

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t together = 4;
    std::int64_t p = begin;
    while (p < panels && !reaches<L>(p, std::min(panels, p + together))) {
      p += together;
    }
    while (p < panels && !reaches<L>(p, p + 1)) {
      ++p;
    }
    *found = std::min(p, panels);
  }

  template <class L>
  TINYSCALE_INLINE bool reaches(std::int64_t from, std::int64_t to) const {
    typename L::V best, v, least;
    broadcast<L>(-std::numeric_limits<float>::infinity(), best);
    for (std::int64_t p = from; p < to; ++p) {
      broadcast<L>(bounds.least_of_panel(p, value), least);
      for (std::int64_t i = 0; i < 16; i += L::width) {
        load<L>(y + 16 * p + i, v);
        max_vector<L>(best, v - least, best);
      }
    }
    return max_lanes<L>(best) >= 0;
  }
};

// Length of a - b; b null: of a.
inline double length_of(std::int64_t n, const float* a, const float* b = nullptr) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double d = double{a[i]} - (b == nullptr ? 0.0 : double{b[i]});
    sum += d * d;
  }
  return std::sqrt(sum);
}

// A length as f32, not below it, however small: below 1e-38 a float has few digits.
inline float not_below(double length) { return static_cast<float>(1.000001 * length + 1e-44); }

// One x, and y = C x of it as w sees it, among which the largest of W x is to be found.
class ScreenedRow {
 public:
  // y: [rows] up to a whole panel, -infinity from `known` on.
  ScreenedRow(const StoredMatrix& w, Activations how, std::int64_t known, const float* x,
              const RoundedActivations& codes, const float* seen, float* y, LargestProduct& to)
      : w_(w),
        how_(how),
        known_(known),
        x_(x),
        codes_(codes),
        y_(y),
        to_(to),
        bounds_{*w.screen},
        again_bounds_{*w.screen},
        seen_(w.cols + 64) {
    const Scratch lease(w.cols);
    float* const again = lease.data();
    RoundedRows(w.screen->parts[0], 1, seen, w.cols, Activations::int8_groups).numbers(0, again);
    const double sums = std::ldexp(static_cast<double>(w.cols + 16), -23);
    const double a = length_of(w.cols, seen), b = length_of(w.cols, again);
    bounds_.by_left = static_cast<float>(1.00001 * b * (1 + sums));
    bounds_.by_norm =
        static_cast<float>(1.00001 * (length_of(w.cols, seen, again) + sums * (a + b)));
    again_bounds_.by_left = static_cast<float>(1.00001 * a * (1 + sums));
    again_bounds_.by_norm = static_cast<float>(2.00002 * sums * a);
    std::copy_n(seen, w.cols, seen_.data());
    std::fill(seen_.data() + w.cols, seen_.data() + w.cols + 64, 0.0f);
  }

  void find() {
    const std::int64_t first = kernels::argmax(known_, y_), panels = (known_ + 15) / 16;
    // What the bounds cannot tell of is not told of.
    bool finite = first >= 0 && bounds_.by_left < 1e18f && bounds_.by_norm < 1e18f &&
                  multiply(w_.is_packed ? first / 16 : first);
    constexpr std::int64_t ahead = 8, places = 32;  // fetched before the next is multiplied
    std::int64_t p = 0, found = 0, done = 0, todo[places];
    while (finite && (p < panels || done < found)) {
      while (p < panels && found - done < ahead) {
        run_on_lanes(NextPanel{y_, bounds_, value(), p, panels, &p});
        for (std::int64_t row = 16 * p; row < std::min(known_, 16 * p + 16); ++row) {
          if (may_be(row)) {
            fetch(todo[found++ % places] = w_.is_packed ? p : row);
            if (w_.is_packed) {
              break;
            }
          }
        }
        ++p;
      }
      if (done < found) {
        const std::int64_t unit = todo[done++ % places];
        if (may_be_again(unit)) {
          finite = multiply(unit);
        }
      }
    }
    to_.place = finite ? to_.place : -1;
  }

 private:
  // At least this is looked for: the largest so far, less what the bounds' own sums may lose.
  float value() const { return to_.value - std::fabs(to_.value) * 1e-6f - 1e-36f; }
  bool may_be(std::int64_t row) const { return y_[row] >= bounds_.least_of_row(row, value()); }

  bool looks_again() const { return w_.screen->again.rows > 0; }
  bool may_be_again(std::int64_t row) {
    if (!looks_again()) {
      return true;
    }
    float y = 0;
    run_on_lanes(ByteRowDot{w_.screen->again, row, seen_.data(), &y});
    ++to_.again;
    const float left = w_.screen->again_left.data()[row];
    return !(y < again_bounds_.least(row / 16, left, value()));
  }

  void fetch(std::int64_t unit) const {
    std::int64_t bytes = w_.row_bytes;
    const void* from = w_.data + unit * bytes;
    if (looks_again()) {
      bytes = w_.screen->again.row_words() * 4;
      from = w_.screen->again.row(unit);
    } else if (w_.is_packed) {
      bytes = w_.packed.panel_bytes();
      from = reinterpret_cast<const std::uint8_t*>(w_.packed.data->data()) + unit * bytes;
    } else if (w_.is_compressed()) {
      bytes = w_.compressed.row_words() * 4;
      from = w_.compressed.words(unit);
    }
    for (std::int64_t at = 0; at < bytes; at += 64) {
      prefetch(static_cast<const std::uint8_t*>(from) + at);
    }
  }

  // A row whole, or a panel of packed ones, whose numbers are then below every value. False where
  // one is not finite.
  bool multiply(std::int64_t unit) {
    const std::int64_t begin = w_.is_packed ? 16 * unit : unit;
    const std::int64_t end = w_.is_packed ? std::min(known_, begin + 16) : unit + 1;
    const std::int64_t panels = (w_.rows + 15) / 16;
    if (!w_.is_packed) {
      StoredMatrix row = w_;
      row.rows = 1;
      if (w_.is_compressed()) {
        row.compressed.rows = 1;
        row.compressed.begin += unit;
      } else {
        row.data += unit * w_.row_bytes;
      }
      w_.multiply(row, how_, 1, x_, w_.cols, y_ + unit, 1);
    } else if (how_ == Activations::f32) {
      run_on_lanes(PackedDots{{w_.packed}, x_, unit, panels, 1, y_});
    } else {
      run_on_int8(
          QuantizedPanels{w_.packed, codes_, 0, 1, unit, unit + 1, panels, y_, w_.rows, false});
    }
    to_.rows += w_.is_packed ? std::min(w_.rows, begin + 16) - begin : 1;
    for (std::int64_t i = begin; i < end; ++i) {
      if (!is_finite(static_cast<double>(y_[i]))) {
        return false;
      }
      const bool first = to_.place < 0 || (y_[i] == to_.value && i < to_.place);
      if (first || y_[i] > to_.value) {
        to_.place = i;
        to_.value = y_[i];
      }
    }
    std::fill(y_ + begin, y_ + std::max(end, w_.is_packed ? begin + 16 : end),
              -std::numeric_limits<float>::infinity());
    return true;
  }

  const StoredMatrix& w_;
  const Activations how_;
  const std::int64_t known_;
  const float* const x_;
  const RoundedActivations codes_;  // of x, where W is packed and meets codes
  float* const y_;
  LargestProduct& to_;
  ScreenBounds bounds_, again_bounds_;
  Scratch seen_;  // x as w sees it, and zeros
};

// Of panel p of a part of C, whose rows w holds: what the bounds ask, into panel `to` of the
// screen.
inline void screen_lengths(const kernels::QuantizedMatrix& part, std::int64_t p, const float* w,
                           std::int64_t to, StoredScreen& screen) {
  const std::int64_t cols = part.cols;
  const Scratch lease((16 + 1) * cols);
  float* const panel = lease.data();  // [cols][16]
  float* const copy = panel + 16 * cols;
  run_on_lanes(UnpackPanels{{part}, p, 1, panel});
  double left = 0, norm = 0;
  const std::int64_t part_rows = std::min<std::int64_t>(16, part.rows - 16 * p);
  for (std::int64_t i = 0; i < part_rows; ++i) {
    for (std::int64_t k = 0; k < cols; ++k) {
      copy[k] = panel[16 * k + i];
    }
    const double apart = length_of(cols, w + i * cols, copy);
    screen.row_left[static_cast<std::size_t>(16 * to + i)] = not_below(apart);
    left = std::max(left, apart);
    norm = std::max(norm, length_of(cols, w + i * cols));
  }
  for (std::int64_t i = 0; i < part_rows && screen.again.rows > 0; ++i) {
    std::copy_n(w + i * cols, cols, copy);
    screen.again.set(16 * to + i, copy);
    screen.again_left[static_cast<std::size_t>(16 * to + i)] =
        not_below(length_of(cols, w + i * cols, copy));
  }
  screen.left[static_cast<std::size_t>(to)] = not_below(left);
  screen.norm[static_cast<std::size_t>(to)] = not_below(norm);
}

}  // namespace detail

namespace kernels {

// For StoredMatrix::largest.
inline double largest_stored(const StoredMatrix& w, Activations how, std::int64_t known,
                             std::int64_t m, const float* x, std::int64_t ldx, LargestProduct* to) {
  const std::int64_t padded = (w.rows + 15) / 16 * 16;
  const bool codes = w.is_packed && how != Activations::f32;
  const detail::Scratch rows_of_y(m * padded), rows_of_x(m * w.cols);
  const detail::RoundedRows rounded(w.packed, codes ? m : 0, x, ldx, how);
  for (std::int64_t i = 0; i < m; ++i) {  // x as the product with w sees it
    float* const seen = rows_of_x.data() + i * w.cols;
    if (codes) {
      rounded.numbers(i, seen);
    } else if (!w.is_packed && detail::rounds_activations(w.format, how)) {
      detail::round_row(w.format, how, w.cols, x + i * ldx, seen);
    } else {
      std::copy_n(x + i * ldx, w.cols, seen);
    }
  }
  std::int64_t first = 0;
  for (const QuantizedMatrix& part : w.screen->parts) {
    gemm_quantized(part, m, rows_of_x.data(), w.cols, rows_of_y.data() + first, padded);
    first += part.rows;
  }
  double rows = 0, again = 0;
  for (std::int64_t i = 0; i < m; ++i) {
    float* const y = rows_of_y.data() + i * padded;
    std::fill(y + known, y + padded, -std::numeric_limits<float>::infinity());
    to[i] = LargestProduct();
    detail::ScreenedRow(w, how, known, x + i * ldx, rounded.at(i), rows_of_x.data() + i * w.cols, y,
                        to[i])
        .find();
    rows += static_cast<double>(to[i].rows);
    again += static_cast<double>(to[i].again);
  }
  return w.screen->bytes() + again * w.screen->again_bytes() +
         rows * w.bytes() / static_cast<double>(w.rows);
}

// w with a copy in 4 bits, and of over 512 numbers of 16 bits or more a row, not packed, in 8 bits
// besides; of over 1536 in 8 bits alone: the longer rows are, the less the bound rules out.
// `together`: numbers of W that are f32 meanwhile.
inline StoredMatrix screen_matrix(const StoredMatrix& w,
                                  std::int64_t together = std::int64_t{1} << 25) {
  const double number = w.bytes() / static_cast<double>(std::max<std::int64_t>(1, w.rows * w.cols));
  if (w.rows < 1 || w.cols < 1 || number < 0.9) {
    detail::fail({"screen_matrix: ", w.kind(), " [", w.rows, ", ", w.cols, "], ", number,
                  " bytes a number; numbers of 8 bits and more have something to leave out"});
  }
  const bool wide = !w.is_packed && number > 1.5 && w.cols > 512;  // its rows stand alone
  const bool twice = wide && w.cols <= 1536;
  const int bits = wide && !twice ? 8 : 4;
  const std::int64_t most = std::max<std::int64_t>(1, together / w.cols / 16) * 16;
  const std::int64_t panels = (w.rows + 15) / 16;
  const Shared<StoredScreen> screen(new StoredScreen);
  screen->left.resize(static_cast<std::size_t>(panels));
  screen->norm.resize(static_cast<std::size_t>(panels));
  screen->row_left.resize(static_cast<std::size_t>(16 * panels));
  if (twice) {
    screen->again = detail::ByteRows(w.rows, w.cols);
    screen->again_left.resize(static_cast<std::size_t>(w.rows));
  }
  for (std::int64_t first = 0; first < w.rows; first += most) {
    const std::int64_t count = std::min(most, w.rows - first);
    const detail::Scratch rows(count * w.cols);
    float* const from = rows.data();
    parallel_for(count, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        float* const row = from + i * w.cols;
        stored_row(w, first + i, row);
        for (std::int64_t k = 0; k < w.cols; ++k) {  // told of with its row in w, not in the part
          if (!(std::fabs(row[k]) <= 65504.0f)) {
            detail::fail({"screen_matrix: weight ", first + i, ", ", k, " is ", double{row[k]},
                          "; weights must be within +-65504"});
          }
        }
      }
    });
    screen->parts.push_back(quantize(count, w.cols, twice ? 16 : 32, bits, from));
    const QuantizedMatrix& part = screen->parts.back();
    parallel_for((count + 15) / 16, 4, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p) {
        detail::screen_lengths(part, p, from + 16 * p * w.cols, first / 16 + p, *screen);
      }
    });
  }
  StoredMatrix screened = w;
  screened.screen = screen;
  screened.largest = largest_stored;
  return screened;
}

}  // namespace kernels
}  // namespace tinyscale
