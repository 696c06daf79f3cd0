// Numbers that only move, comparisons, maxima and logarithms of rows: on every path as the slow
// loops say.
#include <doctest/doctest.h>

#include "tinyscale.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernel_tests.hpp"

namespace ts = tinyscale;
namespace kernel = tinyscale::kernels;
using kernel_tests::Floats;
using kernel_tests::on_every_path;

namespace {

const float inf = std::numeric_limits<float>::infinity();
const float nan_f = std::numeric_limits<float>::quiet_NaN();

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

Floats normal(std::int64_t n, std::uint64_t seed, float by = 1) {
  Floats x(size(n));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = by * static_cast<float>(ts::normal01(seed, i));
  }
  return x;
}

bool is_nan(float x) { return ts::detail::is_nan(static_cast<double>(x)); }

bool same(float a, float b) { return is_nan(a) ? is_nan(b) : a == b; }

// Within so many units of the last place of the right one.
bool near(float a, double right, double units) {
  if (ts::detail::is_nan(right) || is_nan(a)) {
    return ts::detail::is_nan(right) && is_nan(a);
  }
  const auto rounded = static_cast<float>(right);
  return a == rounded || std::fabs(static_cast<double>(a) - right) <=
                             units * 1.2e-7 * std::fmax(std::fabs(right), 1.2e-38);
}

}  // namespace

TEST_CASE("turn_matrix: every element of every size, and nothing beside it") {
  on_every_path([] {
    for (const std::int64_t rows : {1, 2, 3, 4, 7, 8, 15, 16, 17, 33, 130}) {
      for (const std::int64_t cols : {1, 3, 4, 5, 8, 16, 19, 31, 64, 67, 200}) {
        const std::int64_t from_row = cols + 3, to_row = rows + 2;
        const Floats from = normal(rows * from_row, 1);
        Floats to(size(cols * to_row), -7.0f);
        kernel::turn_matrix(rows, cols, from.data(), from_row, to.data(), to_row);
        bool right = true;
        for (std::int64_t c = 0; c < cols; ++c) {
          for (std::int64_t r = 0; r < to_row; ++r) {
            right = right &&
                    to[size(c * to_row + r)] == (r < rows ? from[size(r * from_row + c)] : -7.0f);
          }
        }
        CAPTURE(rows);
        CAPTURE(cols);
        CHECK(right);
      }
    }
  });
}

TEST_CASE("copies of views in every order of dimensions are as their elements say") {
  on_every_path([] {
    const ts::Shape shape{5, 17, 3, 20};
    const ts::Tensor x = ts::reshape(ts::arange(shape.count()), shape);
    ts::List<int> order{0, 1, 2, 3};
    do {
      const ts::Tensor views[] = {
          ts::permute(x, order), ts::slice(ts::permute(x, order), 1, 1, 3),
          ts::slice(ts::permute(x, order), 3, 0, 3, 2),
          ts::broadcast_to(ts::unsqueeze(ts::slice(ts::permute(x, order), 0, 2, 3), 2),
                           {1, x.dim(order[1]), 6, x.dim(order[2]), x.dim(order[3])})};
      for (const ts::Tensor& view : views) {
        const ts::Tensor y = ts::contiguous(view);
        const ts::detail::Walk walk(view.shape(), view.steps(), view.steps());
        bool right = y.is_contiguous() && y.shape() == view.shape();
        walk.rows([&](std::int64_t first, std::int64_t at, std::int64_t) {
          for (std::int64_t j = 0; j < walk.columns(); ++j) {
            right = right && y.data()[first + j] == view.origin()[at + j * walk.step_a()];
          }
        });
        CHECK(right);
        const ts::Tensor sum = view + y;  // one operand turned
        CHECK(sum.values() == ts::scale(y, 2).values());
      }
    } while (std::next_permutation(order.begin(), order.end()));
  });
}

TEST_CASE("rows by number: taken, added in order, and the first that is outside") {
  const std::vector<std::int32_t> ids = {3, 0, 3, 2, 3};
  for (const std::int64_t width : {1, 2, 5}) {
    const Floats table = normal(4 * width, 1), y = normal(5 * width, 2);
    Floats taken(size(5 * width)), added = table;
    kernel::take_rows(5, width, table.data(), ids.data(), taken.data());
    kernel::add_rows(5, width, y.data(), ids.data(), added.data());
    Floats right = table;
    for (std::int64_t i = 0; i < 5; ++i) {
      for (std::int64_t j = 0; j < width; ++j) {
        CHECK(taken[size(i * width + j)] == table[size(ids[size(i)] * width + j)]);
        right[size(ids[size(i)] * width + j)] += y[size(i * width + j)];
      }
    }
    CHECK(added == right);
  }
  on_every_path([] {
    std::vector<std::int32_t> many(100);
    for (std::size_t i = 0; i < many.size(); ++i) {
      many[i] = static_cast<std::int32_t>(i * 37 % 50);
    }
    for (const std::int64_t n : {0, 1, 7, 8, 16, 17, 100}) {
      CHECK(kernel::first_outside(n, many.data(), 50) == n);
      std::vector<std::int32_t> places(size(n) + 1, -5);
      kernel::places_of(n, many.data(), 3, 1000, 7, places.data());
      bool right = places[size(n)] == -5;
      for (std::int64_t i = 0; i < n; ++i) {
        right = right && places[size(i)] == many[size(i)] * 3 + 1000 + 7 * i;
      }
      CHECK(right);
    }
    for (const std::int32_t bad : {-1, 50, std::numeric_limits<std::int32_t>::min(),
                                   std::numeric_limits<std::int32_t>::max()}) {
      for (const std::size_t at :
           {std::size_t{0}, std::size_t{15}, std::size_t{63}, std::size_t{99}}) {
        std::vector<std::int32_t> wrong = many;
        wrong[at] = bad;
        CHECK(kernel::first_outside(100, wrong.data(), 50) == static_cast<std::int64_t>(at));
      }
    }
    const std::int32_t largest = std::numeric_limits<std::int32_t>::max();
    CHECK(kernel::first_outside(1, &largest, std::int64_t{1} << 31) == 1);
    CHECK(kernel::first_outside(1, many.data(), 0) == 0);
  });
}

TEST_CASE("comparisons, maxima and choices of all kinds of numbers") {
  const Floats kinds = {0.0f, -0.0f, 1, -1, 2.5f, inf, -inf, nan_f, 1e-40f, -1e-40f, 3e38f};
  Floats a, b;
  for (const float x : kinds) {
    for (const float y : kinds) {
      a.push_back(x);
      b.push_back(y);
    }
  }
  const auto n = static_cast<std::int64_t>(a.size());
  on_every_path([&] {
    Floats less(a.size()), equal(a.size()), larger(a.size()), maximum(a.size()), chosen = b;
    kernel::less(n, a.data(), b.data(), less.data());
    kernel::equal(n, a.data(), b.data(), equal.data());
    kernel::larger(n, a.data(), b.data(), larger.data());
    kernel::maximum(n, a.data(), b.data(), maximum.data());
    kernel::choose(n, a.data(), a.data(), chosen.data());
    for (std::size_t i = 0; i < a.size(); ++i) {
      CAPTURE(a[i]);
      CAPTURE(b[i]);
      const bool takes = is_nan(a[i]) || a[i] > b[i];
      CHECK(less[i] == (a[i] < b[i] ? 1.0f : 0.0f));
      CHECK(equal[i] == (a[i] == b[i] ? 1.0f : 0.0f));
      CHECK(larger[i] == (takes ? 1.0f : 0.0f));
      CHECK(same(maximum[i], takes ? a[i] : b[i]));
      CHECK(same(chosen[i], a[i] != 0.0f ? a[i] : b[i]));
    }
  });
}

TEST_CASE("log, sqrt, square, abs and their gradients") {
  Floats x = {0.0f,  -0.0f,  1,      -1,      inf,        -inf,
              nan_f, 1e-40f, 1e-45f, 3.4e38f, 2.7182817f, 0.99999994f};
  for (int i = -120; i < 120; ++i) {
    x.push_back(std::ldexp(1.3f, i));
  }
  const Floats more = normal(1000, 3, 4);
  x.insert(x.end(), more.begin(), more.end());
  const auto n = static_cast<std::int64_t>(x.size());
  const Floats dy = normal(n, 4);
  on_every_path([&] {
    Floats log(x.size()), root(x.size()), square(x.size()), size_of(x.size());
    Floats dlog(x.size()), droot(x.size()), dsquare(x.size()), dsize(x.size(), 1.0f);
    kernel::log_forward(n, x.data(), log.data());
    kernel::sqrt_forward(n, x.data(), root.data());
    kernel::square_forward(n, x.data(), square.data());
    kernel::abs_forward(n, x.data(), size_of.data());
    kernel::log_backward(n, x.data(), dy.data(), dlog.data(), 0.0f);
    kernel::sqrt_backward(n, root.data(), dy.data(), droot.data(), 0.0f);
    kernel::square_backward(n, x.data(), dy.data(), dsquare.data(), 0.0f);
    kernel::abs_backward(n, x.data(), dy.data(), dsize.data());  // added to the ones
    for (std::size_t i = 0; i < x.size(); ++i) {
      CAPTURE(x[i]);
      const double v = static_cast<double>(x[i]), g = static_cast<double>(dy[i]);
      CHECK(near(log[i], std::log(v), 2));
      CHECK(same(root[i], std::sqrt(x[i])));
      CHECK(same(square[i], x[i] * x[i]));
      CHECK(same(size_of[i], std::fabs(x[i])));
      CHECK(!std::signbit(is_nan(size_of[i]) ? 0.0f : size_of[i]));
      CHECK(same(dlog[i], dy[i] / x[i]));
      CHECK(near(droot[i], 0.5 * g / static_cast<double>(root[i]), 2));
      CHECK(near(dsquare[i], 2 * g * v, 2));
      CHECK(same(dsize[i], 1 + (x[i] > 0 ? dy[i] : x[i] < 0 ? -dy[i] : 0.0f)));
    }
  });
}

TEST_CASE("largest: of equal ones the first, the first NaN before all, of rows and columns") {
  on_every_path([] {
    for (const std::int64_t n : {1, 2, 7, 31, 32, 33, 100, 511, 513, 1100}) {
      for (const std::int64_t columns : {1, 8, 17, 70}) {
        for (std::uint64_t seed = 0; seed < 6; ++seed) {
          Floats x = normal(n * columns, seed, 3);
          for (std::size_t i = 0; i < x.size(); ++i) {
            x[i] = seed % 2 == 0 ? std::round(x[i]) : x[i];
            x[i] = seed == 4 ? -inf : x[i];
          }
          for (std::size_t i = 0; i < 3 && seed >= 2; ++i) {
            x[(i * 7919 + seed * 104729) % x.size()] = seed == 2 ? nan_f : i == 1 ? -inf : inf;
          }
          Floats most(size(columns));
          std::vector<std::int64_t> place(size(columns));
          kernel::largest_down(n, columns, columns, x.data(), most.data(), place.data());
          for (std::int64_t j = 0; j < columns; ++j) {
            const std::int64_t right = kernel::largest_reference(n, x.data() + j, columns);
            CHECK(place[size(j)] == right);
            CHECK(same(most[size(j)], x[size(right * columns + j)]));
            CHECK(kernel::largest(n, x.data() + j, columns) == right);
          }
          CHECK(kernel::largest(n * columns, x.data(), 1) ==
                kernel::largest_reference(n * columns, x.data(), 1));
        }
      }
    }
  });
}

TEST_CASE("log_softmax: as near far from 0, gradients added where asked") {
  on_every_path([] {
    for (const std::int64_t cols : {1, 2, 15, 16, 17, 100, 513, 3000}) {
      for (const float far : {0.0f, 1e4f, -1e4f}) {
        const std::int64_t rows = 5;
        Floats x = normal(rows * cols, 1, 3);
        for (float& number : x) {
          number += far;
        }
        const Floats dy = normal(rows * cols, 2), start = normal(rows * cols, 3);
        Floats y(x.size()), right(x.size()), dx = start, first(x.size(), nan_f), slope = start;
        kernel::log_softmax_forward(rows, cols, x.data(), y.data());
        kernel::log_softmax_reference(rows, cols, x.data(), right.data());
        kernel::log_softmax_backward(rows, cols, y.data(), dy.data(), dx.data());
        kernel::log_softmax_backward(rows, cols, y.data(), dy.data(), first.data(), 0.0f);
        kernel::log_softmax_backward_reference(rows, cols, y.data(), dy.data(), slope.data());
        bool close = true;
        for (std::size_t i = 0; i < x.size(); ++i) {
          close = close && std::fabs(y[i] - right[i]) <= 3e-6f &&
                  std::fabs(dx[i] - slope[i]) <= 2e-5f &&
                  std::fabs(first[i] - (slope[i] - start[i])) <= 2e-5f;
        }
        CAPTURE(cols);
        CAPTURE(far);
        CHECK(close);
      }
    }
    const ts::Tensor masked = ts::tensor({3}, {-inf, 0, -inf});
    CHECK(ts::log_softmax(masked).values() == std::vector<float>{-inf, 0, -inf});
    CHECK(is_nan(ts::log_softmax(ts::tensor({2}, {nan_f, 0})).values()[1]));
  });
}

TEST_CASE("products with few or odd columns are as their transposed ones") {
  on_every_path([] {
    for (const std::int64_t m : {1, 2, 5, 18, 33}) {
      for (const std::int64_t n : {1, 2, 3, 7, 15, 17, 24, 31}) {
        const std::int64_t k = 70;
        const Floats a = normal(m * k, 1), b = normal(k * n, 2);
        Floats c(size(m * n), nan_f), right(size(m * n));
        kernel::gemm(kernel::Trans::no, kernel::Trans::no, m, n, k, a.data(), k, b.data(), n, 0.0f,
                     c.data(), n);
        kernel::gemm_reference(kernel::Trans::no, kernel::Trans::no, m, n, k, a.data(), k, b.data(),
                               n, 0.0f, right.data(), n);
        bool close = true;
        for (std::size_t i = 0; i < c.size(); ++i) {
          close = close && std::fabs(c[i] - right[i]) <= 2e-5f;
        }
        CAPTURE(m);
        CAPTURE(n);
        CHECK(close);
      }
    }
  });
}
