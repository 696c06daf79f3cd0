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
        Floats to(size(cols * to_row), -7.0f), squares = to, right = to;
        kernel::turn_matrix(rows, cols, from.data(), from_row, to.data(), to_row);
        ts::detail::transpose(rows, cols, from.data(), from_row, squares.data(), to_row);
        kernel::transpose_reference(rows, cols, from.data(), from_row, right.data(), to_row);
        CAPTURE(rows);
        CAPTURE(cols);
        CHECK(to == right);
        CHECK(squares == right);
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
    Floats taken(size(5 * width)), right_taken = taken, added = table, right_added = table;
    kernel::take_rows(5, width, table.data(), ids.data(), taken.data());
    kernel::take_rows_reference(5, width, table.data(), ids.data(), right_taken.data());
    CHECK(taken == right_taken);
    kernel::add_rows(5, width, y.data(), ids.data(), added.data());
    kernel::add_rows_reference(5, width, y.data(), ids.data(), right_added.data());
    CHECK(added == right_added);
  }
  for (const std::int64_t n : {0, 1, 9}) {
    for (const std::int64_t step_from : {0, 1, 3}) {
      for (const std::int64_t step_to : {1, 2}) {
        const Floats from = normal(30, 3);
        Floats to(30, -7.0f), right = to;
        kernel::copy_steps(n, from.data(), step_from, to.data(), step_to);
        kernel::copy_steps_reference(n, from.data(), step_from, right.data(), step_to);
        CHECK(to == right);
      }
    }
  }
  on_every_path([] {
    std::vector<std::int32_t> many(100);
    for (std::size_t i = 0; i < many.size(); ++i) {
      many[i] = static_cast<std::int32_t>(i * 37 % 50);
    }
    for (const std::int64_t n : {0, 1, 7, 8, 16, 17, 100}) {
      CHECK(kernel::first_outside(n, many.data(), 50) == n);
      std::vector<std::int32_t> places(size(n) + 1, -5), right = places;
      kernel::places_of(n, many.data(), 3, 1000, 7, places.data());
      kernel::places_of_reference(n, many.data(), 3, 1000, 7, right.data());
      CHECK(places == right);
    }
    for (const std::int32_t bad : {-1, 50, std::numeric_limits<std::int32_t>::min(),
                                   std::numeric_limits<std::int32_t>::max()}) {
      for (const std::size_t at :
           {std::size_t{0}, std::size_t{15}, std::size_t{63}, std::size_t{99}}) {
        std::vector<std::int32_t> wrong = many;
        wrong[at] = bad;
        CHECK(kernel::first_outside(100, wrong.data(), 50) == static_cast<std::int64_t>(at));
        CHECK(kernel::first_outside_reference(100, wrong.data(), 50) ==
              static_cast<std::int64_t>(at));
      }
    }
    const std::int32_t largest = std::numeric_limits<std::int32_t>::max();
    CHECK(kernel::first_outside(1, &largest, std::int64_t{1} << 31) == 1);
    CHECK(kernel::first_outside(1, many.data(), 0) == 0);
  });
}

TEST_CASE("arithmetic, comparisons, maxima and choices of all kinds of numbers") {
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
    const struct {
      void (*fast)(std::int64_t, const float*, const float*, float*);
      float (*slow)(float, float);
    } all[] = {
        {kernel::add, kernel::add_reference},       {kernel::sub, kernel::sub_reference},
        {kernel::mul, kernel::mul_reference},       {kernel::div, kernel::div_reference},
        {kernel::less, kernel::less_reference},     {kernel::equal, kernel::equal_reference},
        {kernel::larger, kernel::larger_reference}, {kernel::maximum, kernel::maximum_reference}};
    Floats y(a.size()), right = y;
    const auto check = [&] {
      for (std::size_t i = 0; i < a.size(); ++i) {
        CAPTURE(a[i]);
        CAPTURE(b[i]);
        CHECK(same(y[i], right[i]));
      }
    };
    for (const auto& op : all) {
      CAPTURE(&op - all);
      op.fast(n, a.data(), b.data(), y.data());
      kernel::arithmetic_reference(n, op.slow, a.data(), b.data(), right.data());
      check();
    }
    y = right = b;
    kernel::choose(n, a.data(), a.data(), y.data());
    kernel::choose_reference(n, a.data(), a.data(), right.data());
    check();
    const Floats three(a.size(), 3.0f);
    kernel::add_number(n, 3.0f, b.data(), y.data());
    kernel::arithmetic_reference(n, kernel::add_reference, three.data(), b.data(), right.data());
    check();
    kernel::scale(n, 3.0f, b.data(), y.data());
    kernel::arithmetic_reference(n, kernel::mul_reference, three.data(), b.data(), right.data());
    check();
  });
}

TEST_CASE("products added: within the rounding of the product and of the sum") {
  on_every_path([] {
    for (const float beta : {0.0f, 1.0f}) {
      const Floats a = normal(1000, 1), b = normal(1000, 2);
      Floats y = normal(1000, 3);
      std::vector<double> right(y.begin(), y.end());
      kernel::multiply_add(1000, a.data(), b.data(), y.data(), beta);
      kernel::multiply_add_reference(1000, a.data(), b.data(), right.data(), double{beta});
      bool close = true;
      for (std::size_t i = 0; i < y.size(); ++i) {
        const double product = std::fabs(double{a[i]} * double{b[i]});
        close = close && std::fabs(double{y[i]} - right[i]) <=
                             std::ldexp(product + std::fabs(right[i]), -24);
      }
      CHECK(close);
    }
  });
}

TEST_CASE("functions of one number and their gradients: as the reference bodies, near 0") {
  // Rooms: in units of 2^-24 of 1 and of the result; what rounds once takes 1 of the result.
  const struct {
    void (*fast)(std::int64_t, const float*, float*);
    double (*slow)(double);
    double room;
  } functions[] = {{kernel::exp_forward, kernel::exp_reference, 4},
                   {kernel::log_forward, kernel::log_reference, 4},
                   {kernel::sqrt_forward, kernel::sqrt_reference, 2},
                   {kernel::square_forward, kernel::square_reference, 1},
                   {kernel::cube_forward, kernel::cube_reference, 2},
                   {kernel::abs_forward, kernel::abs_reference, 0},
                   {kernel::tanh_forward, kernel::tanh_reference, 7},
                   {kernel::erf_forward, kernel::erf_reference, 7},
                   {kernel::sigmoid_forward, kernel::sigmoid_reference, 4},
                   {kernel::relu_forward, kernel::relu_reference, 0},
                   {kernel::silu_forward, kernel::silu_reference, 8},
                   {kernel::gelu_forward, kernel::gelu_reference, 16},
                   {kernel::gelu_tanh_forward, kernel::gelu_tanh_reference, 16}};
  const struct {
    void (*fast)(std::int64_t, const float*, const float*, float*, float);
    double (*slope)(double);
    double room;
  } gradients[] = {{kernel::log_backward, kernel::log_slope_reference, 4},
                   {kernel::sqrt_backward, kernel::sqrt_slope_reference, 4},
                   {kernel::square_backward, kernel::square_slope_reference, 4},
                   {kernel::abs_backward, kernel::abs_slope_reference, 1},
                   {kernel::tanh_backward, kernel::tanh_slope_reference, 16},
                   {kernel::erf_backward, kernel::erf_slope_reference, 16},
                   {kernel::sigmoid_backward, kernel::sigmoid_slope_reference, 4},
                   {kernel::relu_backward, kernel::relu_slope_reference, 1},
                   {kernel::silu_backward, kernel::silu_slope_reference, 16},
                   {kernel::gelu_backward, kernel::gelu_slope_reference, 16},
                   {kernel::gelu_tanh_backward, kernel::gelu_tanh_slope_reference, 32}};
  const std::int64_t n = 2003;
  Floats x = normal(n, 5, 3);
  const Floats dy = normal(n, 6), start = normal(n, 7);
  on_every_path([&] {
    for (const bool positive : {false, true}) {  // log and sqrt of what they are made for
      for (float& number : x) {
        number = positive ? std::fabs(number) + 1e-3f : number;
      }
      for (const auto& f : functions) {
        Floats y(x.size());
        std::vector<double> right(x.size());
        f.fast(n, x.data(), y.data());
        kernel::forward_reference(n, f.slow, x.data(), right.data());
        double worst = 0;
        for (std::size_t i = 0; i < y.size() && (positive || &f - functions > 2); ++i) {
          const double unit =
              std::ldexp(std::fmax(f.room > 2 ? 1.0 : 0.0, std::fabs(right[i])), -24);
          worst = std::fmax(worst, std::fabs(double{y[i]} - right[i]) / std::fmax(unit, 1e-45));
        }
        CAPTURE(&f - functions);
        CHECK(worst <= f.room);
      }
      for (const auto& f : gradients) {
        for (const float beta : {0.0f, 1.0f}) {
          Floats dx = start;
          std::vector<double> right(start.begin(), start.end());
          f.fast(n, x.data(), dy.data(), dx.data(), beta);
          kernel::backward_reference(n, f.slope, x.data(), dy.data(), right.data(), double{beta});
          double worst = 0;
          for (std::size_t i = 0; i < dx.size() && (positive || &f - gradients > 1); ++i) {
            const double slope = std::fabs(f.slope(double{x[i]}) * double{dy[i]});
            const double unit = std::ldexp(
                std::fabs(double{dy[i]}) + slope + std::fabs(double{beta * start[i]}), -24);
            worst = std::fmax(worst, std::fabs(double{dx[i]} - right[i]) / unit);
          }
          CAPTURE(&f - gradients);
          CHECK(worst <= f.room);
        }
      }
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
      CHECK(near(log[i], kernel::log_reference(v), 2));
      CHECK(same(root[i], static_cast<float>(kernel::sqrt_reference(v))));
      CHECK(same(square[i], static_cast<float>(kernel::square_reference(v))));
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
