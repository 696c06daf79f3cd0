#include <doctest/doctest.h>

#include "tinyscale.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "kernel_tests.hpp"

namespace ts = tinyscale;
namespace kernel = tinyscale::kernels;
using kernel::Trans;
using kernel_tests::Floats;
using kernel_tests::noise;
using kernel_tests::paths;

namespace {

Floats integers(std::int64_t n, std::uint64_t seed, int largest) {
  Floats x = noise(n, seed);
  for (float& value : x) {
    value = std::floor(value * static_cast<float>(largest) + 0.5f);
  }
  return x;
}

double worst_difference(const Floats& a, const Floats& b) {
  double worst = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::fabs(double{a[i]} - double{b[i]}));
  }
  return worst;
}

struct Product {  // operands with room after each row
  Trans ta, tb;
  std::int64_t m, n, k, lda, ldb, ldc;
  Floats a, b, c;

  Product(Trans ta_, Trans tb_, std::int64_t m_, std::int64_t n_, std::int64_t k_)
      : ta(ta_),
        tb(tb_),
        m(m_),
        n(n_),
        k(k_),
        lda((ta == Trans::no ? k : m) + 3),
        ldb((tb == Trans::no ? n : k) + 1),
        ldc(n + 2),
        a(noise((ta == Trans::no ? m : k) * lda, 1)),
        b(noise((tb == Trans::no ? k : n) * ldb, 2)),
        c(noise(m * ldc, 3)) {}

  Floats reference(float beta) const {
    Floats out = c;
    kernel::gemm_bf16_reference(ta, tb, m, n, k, a.data(), lda, b.data(), ldb, beta, out.data(),
                                ldc);
    return out;
  }
  Floats fast(float beta) const {
    Floats out = c;
    kernel::gemm_bf16(ta, tb, m, n, k, a.data(), lda, b.data(), ldb, beta, out.data(), ldc);
    return out;
  }
  Floats packed(float beta) const {
    const kernel::PackedBf16 weights = kernel::pack_bf16(tb, k, n, b.data(), ldb);
    Floats out = c;
    kernel::gemm_bf16(ta, m, a.data(), lda, weights, beta, out.data(), ldc);
    return out;
  }
  Floats codes(float beta) const {
    std::vector<std::uint16_t> x, y;
    for (const float value : a) {
      x.push_back(ts::to_bf16(value));
    }
    for (const float value : b) {
      y.push_back(ts::to_bf16(value));
    }
    Floats out = c;
    kernel::gemm_bf16(ta, tb, m, n, k, x.data(), lda, y.data(), ldb, beta, out.data(), ldc);
    return out;
  }
};

// Products of bf16 numbers are exact in f32, so only sums round: (K + 1) eps sum |a b| at most, and
// sum |a b| <= K for entries in [-1, 1]. vdpbf16ps rounds twice a pair.
double bound(std::int64_t k) {
  const double depth = static_cast<double>(k);
  return (depth + 2) * (depth + 1) * std::ldexp(1.0, -23);
}

void check_bf16(const Product& x) {
  for (const float beta : {0.0f, 1.0f}) {
    const Floats expected = x.reference(beta);
    CAPTURE(x.m);
    CAPTURE(x.n);
    CAPTURE(x.k);
    CHECK(worst_difference(x.fast(beta), expected) <= bound(x.k));
    CHECK(worst_difference(x.packed(beta), expected) <= bound(x.k));
    CHECK(worst_difference(x.codes(beta), expected) <= bound(x.k));
  }
}

}  // namespace

TEST_CASE("bf16 gemm against the reference, every path, every layout") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    for (const Trans ta : {Trans::no, Trans::yes}) {
      for (const Trans tb : {Trans::no, Trans::yes}) {
        check_bf16(Product(ta, tb, 1, 1, 1));
        check_bf16(Product(ta, tb, 5, 3, 2));
        check_bf16(Product(ta, tb, 16, 64, 32));
        check_bf16(Product(ta, tb, 101, 67, 33));
        check_bf16(Product(ta, tb, 37, 130, 600));
      }
    }
  }
}

TEST_CASE("bf16 gemm in several passes of k, rows and columns") {
  Product large(Trans::no, Trans::no, 500, 530, 4200);  // exact: small integers
  large.a = integers(large.m * large.lda, 1, 3);
  large.b = integers(large.k * large.ldb, 2, 3);
  Product small = large;
  small.a.resize(static_cast<std::size_t>(20 * small.lda));
  small.m = 20;
  small.c.resize(static_cast<std::size_t>(20 * small.ldc));
  const Floats few = small.reference(0.0f);
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    check_bf16(Product(Trans::no, Trans::no, 7, 70, 4500));
    check_bf16(Product(Trans::yes, Trans::yes, 7, 70, 4500));
    const Floats fast = large.fast(0.0f);
    CHECK(std::equal(few.begin(), few.end() - 2, fast.begin()));
  }
}

TEST_CASE("bf16 gemm: integers are exact, every form") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    for (const Trans trans : {Trans::no, Trans::yes}) {
      Product x(trans, trans, 50, 99, 301);
      x.a = integers(static_cast<std::int64_t>(x.a.size()), 4, 100);
      x.b = integers(static_cast<std::int64_t>(x.b.size()), 5, 100);
      x.c = integers(static_cast<std::int64_t>(x.c.size()), 6, 100);
      const Floats expected = x.reference(1.0f);
      CHECK(x.fast(1.0f) == expected);
      CHECK(x.packed(1.0f) == expected);
      CHECK(x.codes(1.0f) == expected);
    }
  }
}

TEST_CASE("bf16 gemm: same bits on one thread and on many, on one path") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    const Product x(Trans::no, Trans::yes, 200, 300, 500);
    const Floats many = x.fast(1.0f);
    const ts::detail::SerialScope alone;
    CHECK(x.fast(1.0f) == many);
  }
}

TEST_CASE("bf16 gemm: empty sizes, NaN and infinity") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    Floats c{1, 2, 3, 4};
    const Floats none;
    kernel::gemm_bf16(Trans::no, Trans::no, 0, 2, 2, none.data(), 2, none.data(), 2, 0.0f, c.data(),
                      2);
    kernel::gemm_bf16(Trans::no, Trans::no, 2, 2, 0, none.data(), 0, none.data(), 2, 1.0f, c.data(),
                      2);
    CHECK(c == Floats{1, 2, 3, 4});
    CHECK_THROWS_WITH_AS(kernel::gemm_bf16(Trans::no, Trans::no, 2, 2, 1, c.data(), 1, c.data() + 2,
                                           2, 0.0f, c.data(), 2),
                         "gemm_bf16: C overlaps A; it must have memory of its own", ts::Error);
    CHECK_THROWS_WITH_AS(
        kernel::gemm_bf16(Trans::no, 2, c.data(), 1,
                          kernel::pack_bf16(Trans::no, 1, 2, c.data(), 2), 0.0f, c.data() + 1, 2),
        "gemm_bf16: C overlaps A; it must have memory of its own", ts::Error);
    CHECK_THROWS_WITH_AS(kernel::pack_bf16(Trans::no, 1, 2, nullptr, 2),
                         "pack_bf16: B is null; k, n are 1, 2", ts::Error);
    const kernel::PackedBf16 empty = kernel::pack_bf16(Trans::no, 0, 2, none.data(), 2);
    kernel::gemm_bf16(Trans::no, 2, none.data(), 0, empty, 0.0f, c.data(), 2);
    CHECK(c == Floats{0, 0, 0, 0});

    Product x(Trans::no, Trans::no, 20, 70, 40);
    x.a[static_cast<std::size_t>(3 * x.lda + 7)] = std::nanf("");
    x.b[static_cast<std::size_t>(9 * x.ldb + 66)] = infinity;
    x.a[static_cast<std::size_t>(5 * x.lda + 9)] = 0.0f;  // 0 times infinity
    x.c.assign(x.c.size(), std::nanf(""));                // not read
    const Floats out = x.fast(0.0f);
    bool row = true, column = true, rest = true;
    for (std::int64_t i = 0; i < x.m; ++i) {
      for (std::int64_t j = 0; j < x.n; ++j) {
        const float value = out[static_cast<std::size_t>(i * x.ldc + j)];
        row = row && (i != 3 || std::isnan(value));
        column = column && (i == 3 || i == 5 || j != 66 || std::isinf(value));
        rest = rest && (i == 3 || j == 66 || std::isfinite(value));
      }
    }
    CHECK(row);
    CHECK(column);
    CHECK(rest);
    CHECK(std::isnan(out[static_cast<std::size_t>(5 * x.ldc + 66)]));
    // A NaN with one low bit, an overflow in rounding.
    const Floats odd{ts::detail::float_of(0x7f800001U), std::numeric_limits<float>::max()};
    const Floats one{1.0f, 1.0f};
    for (std::size_t i = 0; i < 2; ++i) {
      Floats y(1);
      kernel::gemm_bf16(Trans::no, Trans::no, 1, 1, 1, &odd[i], 1, one.data(), 1, 0.0f, y.data(),
                        1);
      CHECK((i == 0 ? std::isnan(y[0]) : y[0] == infinity));
    }
  }
}

namespace {

std::vector<std::int8_t> codes_of(std::int64_t n, std::uint64_t seed) {  // -128 .. 127, ends often
  std::vector<std::int8_t> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const int value = static_cast<int>(ts::uniform01(seed, i) * 300.0f) - 150;
    x[i] = static_cast<std::int8_t>(std::min(std::max(value, -128), 127));
  }
  return x;
}

struct Int8Product {
  Trans ta, tb;
  std::int64_t m, n, k, lda, ldb, ldc;
  std::vector<std::int8_t> a, b;

  Int8Product(Trans ta_, Trans tb_, std::int64_t m_, std::int64_t n_, std::int64_t k_)
      : ta(ta_),
        tb(tb_),
        m(m_),
        n(n_),
        k(k_),
        lda((ta == Trans::no ? k : m) + 3),
        ldb((tb == Trans::no ? n : k) + 1),
        ldc(n + 2),
        a(codes_of((ta == Trans::no ? m : k) * lda, 1)),
        b(codes_of((tb == Trans::no ? k : n) * ldb, 2)) {}

  std::vector<std::int32_t> empty() const {
    return std::vector<std::int32_t>(static_cast<std::size_t>(m * ldc), 7);
  }
  std::vector<std::int32_t> reference() const {
    auto c = empty();
    kernel::gemm_int8_reference(ta, tb, m, n, k, a.data(), lda, b.data(), ldb, c.data(), ldc);
    return c;
  }
  std::vector<std::int32_t> fast() const {
    auto c = empty();
    kernel::gemm_int8(ta, tb, m, n, k, a.data(), lda, b.data(), ldb, c.data(), ldc);
    return c;
  }
};

}  // namespace

TEST_CASE("int8 gemm is exact, every path, every layout") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    for (const Trans ta : {Trans::no, Trans::yes}) {
      for (const Trans tb : {Trans::no, Trans::yes}) {
        for (const auto& size : std::vector<std::vector<std::int64_t>>{{1, 1, 1},
                                                                       {5, 3, 2},
                                                                       {16, 64, 64},
                                                                       {101, 67, 33},
                                                                       {9, 150, 1100},
                                                                       {37, 130, 1200},
                                                                       {3, 5, 0},
                                                                       {2, 70, 9000}}) {
          const Int8Product x(ta, tb, size[0], size[1], size[2]);
          CAPTURE(x.m);
          CAPTURE(x.k);
          CHECK(x.fast() == x.reference());
          auto c = x.empty();
          const kernel::PackedInt8 packed = kernel::pack_int8(tb, x.k, x.n, x.b.data(), x.ldb);
          kernel::gemm_int8(ta, x.m, x.a.data(), x.lda, packed, c.data(), x.ldc);
          CHECK(c == x.reference());
        }
      }
    }
  }
}

TEST_CASE("int8 gemm with scales: per column and per block of k") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    const Int8Product x(Trans::no, Trans::yes, 20, 70, 100);
    for (const std::int64_t block : {100, 32, 200}) {
      const std::int64_t blocks = (x.k + block - 1) / block;
      const Floats a_scale = noise(x.m, 3), b_scale = noise(blocks * x.n, 4);
      Floats c(static_cast<std::size_t>(x.m * x.ldc));
      const kernel::Int8Scales scales{a_scale.data(), b_scale.data(), block};
      kernel::gemm_int8(x.ta, x.tb, x.m, x.n, x.k, x.a.data(), x.lda, x.b.data(), x.ldb, scales,
                        c.data(), x.ldc);
      double worst = 0.0;
      for (std::int64_t i = 0; i < x.m; ++i) {
        for (std::int64_t j = 0; j < x.n; ++j) {
          double sum = 0.0;
          for (std::int64_t p = 0; p < x.k; ++p) {
            const auto at = [](std::int64_t index) { return static_cast<std::size_t>(index); };
            sum += double{a_scale[at(i)]} * double{b_scale[at(p / block * x.n + j)]} *
                   x.a[at(i * x.lda + p)] * x.b[at(j * x.ldb + p)];
          }
          worst =
              std::max(worst, std::fabs(sum - double{c[static_cast<std::size_t>(i * x.ldc + j)]}));
        }
      }
      CHECK(worst < 100.0 * 128 * 128 * 4 * std::ldexp(1.0, -24));
    }
  }
}

TEST_CASE("int8 gemm: bad sizes") {
  const std::vector<std::int8_t> x(1);
  std::vector<std::int32_t> c(1, 5);
  kernel::gemm_int8(Trans::no, Trans::no, 0, 1, 1, x.data(), 1, x.data(), 1, c.data(), 1);
  CHECK(c[0] == 5);
  CHECK_THROWS_WITH_AS(
      kernel::gemm_int8(Trans::no, Trans::no, 1, 1, 131072, x.data(), 1, x.data(), 1, c.data(), 1),
      "gemm_int8: k is 131072; int32 holds the sum of at most 131071 products", ts::Error);
  const kernel::Int8Scales scales;
  float y = 0;
  CHECK_THROWS_WITH_AS(
      kernel::gemm_int8(Trans::no, Trans::no, 1, 1, 1, x.data(), 1, x.data(), 1, scales, &y, 1),
      "gemm_int8: blocks of 0; at least 1 number of k", ts::Error);
  const float one = 1;
  CHECK_THROWS_WITH_AS(kernel::gemm_int8(Trans::no, Trans::no, 1, 1, 1, x.data(), 1, x.data(), 1,
                                         {&one, nullptr, 1}, &y, 1),
                       "gemm_int8: the scales of B are null", ts::Error);
}

TEST_CASE("products of codes: memory that cannot be right is refused") {
  std::vector<std::int32_t> c(8);
  const auto* const inside = reinterpret_cast<const std::int8_t*>(c.data());
  const std::vector<std::int8_t> x(4, 1);
  const auto int8 = [&](std::int64_t m, const std::int8_t* a, std::int64_t lda,
                        const std::int8_t* b, std::int64_t ldc) {
    kernel::gemm_int8(Trans::no, Trans::no, m, 2, 2, a, lda, b, 2, c.data(), ldc);
  };
  CHECK_THROWS_WITH_AS(int8(2, inside + 31, 0, x.data(), 6),
                       "gemm_int8: C overlaps A; it must have memory of its own", ts::Error);
  CHECK_THROWS_WITH_AS(int8(2, x.data(), 2, inside + 28, 6),
                       "gemm_int8: C overlaps B; it must have memory of its own", ts::Error);
  CHECK_THROWS_WITH_AS(int8(2, nullptr, 2, x.data(), 2),
                       "gemm_int8: A is null; m, n, k are 2, 2, 2", ts::Error);
  CHECK_THROWS_WITH_AS(int8(2, x.data(), 2, x.data(), 1),
                       "gemm_int8: rows of C are 1 apart; they must be at least n = 2", ts::Error);
  CHECK_THROWS_WITH_AS(
      int8(-1, x.data(), 2, x.data(), 2),
      "gemm_int8: -1 rows of 2 numbers, 2 apart, are no matrix in memory; sizes must be from 0 to "
      "2^60",
      ts::Error);
  CHECK_THROWS_WITH_AS(
      kernel::gemm_int8(Trans::no, 2, inside, 2, kernel::pack_int8(Trans::no, 2, 2, x.data(), 2),
                        c.data(), 2),
      "gemm_int8: C overlaps A; it must have memory of its own", ts::Error);
  CHECK_THROWS_WITH_AS(kernel::pack_int8(Trans::yes, 2, 2, nullptr, 2),
                       "pack_int8: B is null; k, n are 2, 2", ts::Error);
  CHECK_NOTHROW(int8(2, x.data(), 2, x.data(), 4));

  Floats y(8);
  const auto* const half = reinterpret_cast<const std::uint16_t*>(y.data());
  const std::vector<std::uint16_t> one(4, 0x3f80);
  const auto bf16 = [&](const std::uint16_t* a, const std::uint16_t* b, float beta) {
    kernel::gemm_bf16(Trans::no, Trans::no, 2, 2, 2, a, 2, b, 2, beta, y.data(), 2);
  };
  CHECK_THROWS_WITH_AS(bf16(one.data(), half + 7, 0),
                       "gemm_bf16: C overlaps B; it must have memory of its own", ts::Error);
  CHECK_THROWS_WITH_AS(bf16(one.data(), one.data(), 0.5f),
                       "gemm_bf16: beta is 0.5; it must be 0 or 1", ts::Error);
  bf16(one.data(), half + 8, 0);  // zeros
  CHECK(y == Floats(8));
  bf16(one.data(), one.data(), 1);
  CHECK(Floats(y.begin(), y.begin() + 4) == Floats(4, 2.0f));
}

namespace {

// |y - reference|: each group's integer sum, its product with the scales and its addition round.
double quantized_bound(const kernel::QuantizedMatrix& w, const Floats& x, std::int64_t row) {
  Floats rounded(x.size());
  kernel::round_activations_reference(ts::Activations::int8_groups, w.cols, w.group, x.data(),
                                      rounded.data());
  double magnitudes = 1e-30;
  for (std::int64_t p = 0; p < w.cols; ++p) {
    magnitudes += std::fabs(double{w.scale(row, p)} * w.code(row, p) *
                            double{rounded[static_cast<std::size_t>(p)]});
  }
  return magnitudes * std::ldexp(static_cast<double>(w.groups() + 4), -24);
}

void check_quantized(std::int64_t rows, std::int64_t cols, std::int64_t group, int bits,
                     std::int64_t m) {
  CAPTURE(rows);
  CAPTURE(cols);
  CAPTURE(group);
  CAPTURE(bits);
  const Floats weights = noise(rows * cols, 11);
  const kernel::QuantizedMatrix w = kernel::quantize(rows, cols, group, bits, weights.data());
  const Floats x = noise(m * (cols + 3), 12);
  Floats y(static_cast<std::size_t>(m * (rows + 1)), 5.0f),
      expected(static_cast<std::size_t>(rows));
  kernel::gemm_quantized(w, m, x.data(), cols + 3, y.data(), rows + 1);
  bool good = true;
  for (std::int64_t i = 0; i < m; ++i) {
    const Floats row(x.begin() + i * (cols + 3), x.begin() + i * (cols + 3) + cols);
    kernel::gemv_quantized_reference(w, row.data(), expected.data());
    for (std::int64_t n = 0; n < rows; ++n) {
      const double error = double{y[static_cast<std::size_t>(i * (rows + 1) + n)]} -
                           double{expected[static_cast<std::size_t>(n)]};
      good = good && std::fabs(error) <= quantized_bound(w, row, n);
    }
    good = good && y[static_cast<std::size_t>(i * (rows + 1) + rows)] == 5.0f;
  }
  CHECK(good);
}

// Integers: scales 1, x with 127 in every group, so that nothing is rounded.
void check_exact(int bits) {
  const std::int64_t rows = 100, cols = 168, group = 32, groups = 6;
  std::vector<std::int8_t> codes = codes_of(rows * cols, 3);
  for (std::int8_t& code : codes) {
    code = static_cast<std::int8_t>(bits == 8 ? code : code >> 4);
  }
  const Floats ones(static_cast<std::size_t>(rows * groups), 1.0f);
  const kernel::QuantizedMatrix w =
      kernel::pack_quantized(rows, cols, group, bits, codes.data(), ones.data());
  Floats x = integers(cols, 5, 126), y(static_cast<std::size_t>(rows)), expected = y;
  for (std::int64_t g = 0; g < groups; ++g) {
    x[static_cast<std::size_t>(g * group)] = 127.0f;
  }
  kernel::gemv_quantized_reference(w, x.data(), expected.data());
  kernel::gemv_quantized(w, x.data(), y.data());
  CHECK(y == expected);
  CHECK(w.code(99, 167) == codes[99 * 168 + 167]);
}

}  // namespace

TEST_CASE("quantised weights: products against the reference, every path") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    for (const int bits : {8, 4}) {
      check_exact(bits);
      check_quantized(1, 1, 8, bits, 1);
      check_quantized(33, 100, 32, bits, 3);
      check_quantized(130, 256, 64, bits, 1);
      check_quantized(70, 96, 96, bits, 8);
      check_quantized(300, 1000, 1000, bits, 2);
    }
  }
}

TEST_CASE("quantised weights: one thread and many, bad input") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    const Floats weights = noise(600 * 512, 1);
    Floats x = noise(512, 2), many(600), one(600);
    const kernel::QuantizedMatrix w = kernel::quantize(600, 512, 32, 4, weights.data());
    kernel::gemv_quantized(w, x.data(), many.data());
    {
      const ts::detail::SerialScope alone;
      kernel::gemv_quantized(w, x.data(), one.data());
    }
    CHECK(one == many);
    // The last group is short: nothing is read behind x, and tiny numbers are no large codes.
    Floats short_x(71, 0.5f);
    short_x.resize(200, 3e9f);
    const kernel::QuantizedMatrix w71 = kernel::quantize(600, 71, 64, 8, weights.data());
    CHECK(w71.bytes() == 38 * 16 * (72 + 2 * 2));  // panels of 16 rows, codes and two f16 scales
    kernel::gemv_quantized(w71, short_x.data(), one.data());
    kernel::gemv_quantized_reference(w71, short_x.data(), many.data());
    for (std::size_t i = 0; i < one.size(); ++i) {
      CHECK(std::fabs(one[i] - many[i]) < 0.01f);
    }
    const Floats tiny(71, 1e-40f);
    kernel::gemv_quantized(kernel::quantize(1, 71, 64, 8, tiny.data()), tiny.data(), one.data());
    CHECK(one[0] == 0.0f);
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      x[77] = bad;
      kernel::gemv_quantized(w, x.data(), one.data());
      CHECK(std::all_of(one.begin(), one.end(), [](float y) { return std::isnan(y); }));
    }
  }
  const kernel::QuantizedMatrix none = kernel::quantize(0, 5, 32, 8, nullptr);
  kernel::gemv_quantized(none, nullptr, nullptr);
  Floats y(3, 1.0f);
  kernel::gemv_quantized(kernel::quantize(3, 0, 32, 8, nullptr), nullptr, y.data());
  CHECK(y == Floats{0, 0, 0});
  const Floats big{1.0f, 1e6f};
  CHECK_THROWS_WITH_AS(kernel::quantize(1, 2, 32, 8, big.data()),
                       "quantize: weight 0, 1 is 1000000; weights must be within +-65504",
                       ts::Error);
  CHECK_THROWS_WITH_AS(
      kernel::quantize(1, 1, 0, 8, big.data()),
      "quantize: groups of 0, 8 bits; groups have 1 column or more, codes 4 or 8 bits", ts::Error);
}

TEST_CASE("tiles in RAM give what the other units give") {
  namespace d = ts::detail;
  for (const Trans ta : {Trans::no, Trans::yes}) {
    for (const Trans tb : {Trans::no, Trans::yes}) {
      for (const auto& size : std::vector<std::vector<std::int64_t>>{
               {1, 1, 1}, {40, 70, 130}, {101, 33, 1100}, {7, 70, 8300}}) {
        const Product x(ta, tb, size[0], size[1], size[2]);
        Floats c = x.c;
        d::word_gemm({d::tile_unit<d::SoftTiles, d::Bf16InTiles>(),
                      d::rows_of(d::WordKind::f32, x.a.data(), ta, x.m, x.k, x.lda),
                      d::word_source(d::WordKind::f32, x.b.data(), tb, x.n, x.k, x.ldb), nullptr,
                      1.0f, c.data(), x.ldc, nullptr});
        CHECK(worst_difference(c, x.reference(1.0f)) <= bound(x.k));
        const Int8Product y(ta, tb, size[0], size[1], size[2]);
        auto sums = y.empty();
        d::int8_product(d::tile_unit<d::SoftTiles, d::Int8InTiles>(),
                        d::rows_of(d::WordKind::int8, y.a.data(), ta, y.m, y.k, y.lda),
                        d::word_source(d::WordKind::int8, y.b.data(), tb, y.n, y.k, y.ldb), nullptr,
                        sums.data(), y.ldc);
        CHECK(sums == y.reference());
      }
    }
  }
  const kernel::PackedBf16 packed = kernel::pack_bf16(Trans::no, 50, 70, noise(3500, 2).data(), 70);
  const Floats a = noise(20 * 50, 1);
  Floats c(20 * 70), expected = c;
  d::word_gemm({d::tile_unit<d::SoftTiles, d::Bf16InTiles>(),
                d::rows_of(d::WordKind::f32, a.data(), Trans::no, 20, 50, 50),
                d::word_source(d::WordKind::f32, nullptr, Trans::no, 70, 50, 70),
                packed.words->data(), 0.0f, c.data(), 70, nullptr});
  kernel::gemm_bf16(Trans::no, 20, a.data(), 50, packed, 0.0f, expected.data(), 70);
  CHECK(worst_difference(c, expected) <= bound(50));
}

namespace {

// Bytes of a file of quantised blocks; empty, with a line, when it is absent.
std::vector<std::uint8_t> golden(const std::string& name) {
  const char* folder = std::getenv("TINYSCALE_SHARED");
  const std::string path =
      std::string(folder != nullptr ? folder : "../shared") + "/data/models/quant-blocks/" + name;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::cout << "skipped: no " << path << "\n";
    return {};
  }
  std::vector<std::uint8_t> bytes;
  for (std::istreambuf_iterator<char> at(file), end; at != end; ++at) {
    bytes.push_back(static_cast<std::uint8_t>(*at));
  }
  return bytes;
}

Floats golden_floats(const std::string& name) {
  const std::vector<std::uint8_t> bytes = golden(name);
  Floats x(bytes.size() / 4);
  if (!x.empty()) {
    std::memcpy(x.data(), bytes.data(), x.size() * 4);
  }
  return x;
}

// Groups of 32 as the blocks hold them: an f16 scale, then 32 int8 or 16 bytes of two codes each,
// number i in the lower half of byte i and number i + 16 in the upper half.
kernel::QuantizedMatrix from_blocks(const std::vector<std::uint8_t>& bytes, int bits) {
  const std::size_t size = bits == 8 ? 34 : 18;
  std::vector<std::int8_t> codes;
  Floats scales;
  for (std::size_t at = 0; at + size <= bytes.size(); at += size) {
    scales.push_back(
        ts::from_f16(static_cast<std::uint16_t>(bytes[at] | unsigned{bytes[at + 1]} << 8)));
    for (std::size_t i = 0; i < 32; ++i) {
      const int byte = bytes[at + 2 + (bits == 8 ? i : i % 16)];
      codes.push_back(static_cast<std::int8_t>(bits == 8 ? byte
                                               : i < 16  ? (byte & 15) - 8
                                                         : (byte >> 4) - 8));
    }
  }
  const auto groups = static_cast<std::int64_t>(scales.size());
  return kernel::pack_quantized(1, 32 * groups, 32, bits, codes.data(), scales.data());
}

}  // namespace

TEST_CASE("bf16 and f16 against the reference blocks") {
  const Floats input = golden_floats("input.f32");
  for (const bool bf16 : {true, false}) {
    const std::string name = bf16 ? "bf16" : "f16";
    const std::vector<std::uint8_t> blocks = golden("blocks_" + name + ".bin");
    const Floats values = golden_floats("dequant_" + name + ".f32");
    std::size_t right = 0;
    for (std::size_t i = 0; i < input.size(); ++i) {
      const auto code =
          static_cast<std::uint16_t>(blocks[2 * i] | unsigned{blocks[2 * i + 1]} << 8);
      right += code == (bf16 ? ts::to_bf16(input[i]) : ts::to_f16(input[i])) &&
                       values[i] == (bf16 ? ts::from_bf16(code) : ts::from_f16(code))
                   ? 1U
                   : 0U;
    }
    CHECK(right == input.size());
  }
}

TEST_CASE("q8_0 and q4_0 against the reference blocks") {
  const Floats input = golden_floats("input.f32");
  if (input.empty()) {
    return;
  }
  const auto count = static_cast<std::int64_t>(input.size());
  for (const int bits : {8, 4}) {
    const std::string name = bits == 8 ? "q8_0" : "q4_0";
    CAPTURE(name);
    const kernel::QuantizedMatrix file = from_blocks(golden("blocks_" + name + ".bin"), bits);
    const kernel::QuantizedMatrix own = kernel::quantize(1, count, 32, bits, input.data());
    const Floats values = golden_floats("dequant_" + name + ".f32");
    CHECK(file.half_scales);
    std::size_t codes = 0, scales = 0, same = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      codes += own.code(0, i) == file.code(0, i) ? 1U : 0U;
      scales += own.scale(0, i) == file.scale(0, i) ? 1U : 0U;
      const float value = file.scale(0, i) * static_cast<float>(file.code(0, i));
      same += value == values[static_cast<std::size_t>(i)] ? 1U : 0U;
    }
    CHECK(codes == input.size());
    CHECK(scales == input.size());
    CHECK(same == input.size());
  }
}

TEST_CASE("quantised weights whose scales are not f16 keep them as f32") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    const std::vector<std::int8_t> codes = codes_of(20 * 64, 3);
    const Floats scales = noise(20 * 2, 4);
    const kernel::QuantizedMatrix w =
        kernel::pack_quantized(20, 64, 32, 8, codes.data(), scales.data());
    CHECK_FALSE(w.half_scales);
    CHECK(w.scale(19, 63) == scales[39]);
    Floats x(64, 0.0f), y(20);
    x[5] = 127.0f;
    kernel::gemv_quantized(w, x.data(), y.data());
    const float expected = 127.0f * scales[14] * static_cast<float>(codes[7 * 64 + 5]);
    CHECK(std::fabs(y[7] - expected) <= 1e-6f * std::fabs(expected));
  }
}

TEST_CASE("activations are rounded in two steps, the product or quotient first, on every path") {
  const std::int64_t cols = 32 * 256;
  Floats x = noise(cols, 9);
  for (std::size_t i = 0; i < x.size(); ++i) {  // every other one as near halves as a float comes
    const float most = std::ldexp(0.7f + 0.001f * static_cast<float>(i / 32), -3);
    const float half = std::floor(x[i] * 126.0f) + 0.5f;
    x[i] = i % 32 == 0 ? most : i % 2 == 1 ? half * (most / 127.0f) : x[i] * most;
  }
  std::vector<std::int8_t> codes(x.size());
  Floats scales(x.size() / 32);
  std::vector<std::int32_t> offsets(scales.size());
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    for (const bool blocks : {false, true}) {
      ts::detail::run_on_lanes(ts::detail::RoundActivations{
          x.data(), cols, 32, 32, 128, blocks, {codes.data(), scales.data(), offsets.data()}});
      int wrong = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const float most = x[i / 32 * 32];
        volatile float value = blocks ? x[i] * (127.0f / most) : x[i] / (most / 127.0f);
        const float code = blocks ? std::nearbyint(value) : std::round(value);
        wrong += static_cast<float>(codes[i]) == code ? 0 : 1;
      }
      CAPTURE(blocks);
      CAPTURE(ts::name_of(path));
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("cpu: units of low precision follow the path") {
  namespace d = ts::detail;
  ts::CpuInfo info;
  info.avx2 = info.fma = info.f16c = info.avx512f = info.avx512bw = info.avx512dq = info.avx512vl =
      true;
  CHECK(d::choose_path(info, "").text == "processor (avx512)");
#if TINYSCALE_X86_UNITS  // elsewhere none of them is compiled
  info.avx512_bf16 = info.avx_vnni = info.avx512_vnni = true;
  CHECK(d::choose_path(info, "").text == "processor (avx512; int8 vnni)");
  info.amd = true;
  CHECK(d::choose_path(info, "").text == "processor (avx512; bf16 vdpbf16ps; int8 vnni)");
  CHECK(d::choose_path(info, "avx2").text == "processor (avx2; int8 vnni)");
  CHECK(d::choose_path(info, "portable").text == "processor (portable)");
  info.amd = false;
  info.amx_bf16 = info.amx_int8 = true;
  CHECK(d::choose_path(info, "").text == "processor (avx512; bf16 amx; int8 amx)");
  CHECK(d::choose_path(info, "avx512").text == "processor (avx512; int8 vnni)");
#endif
}

TEST_CASE("products of codes: scales in the result, rows closer than they are long") {
  const std::int64_t m = 20, n = 33, k = 9;
  const std::vector<std::int8_t> a(180, 3), b(297, 5);
  Floats of_a(20, 1.0f), of_b(66, 1.0f), c(660);
  const auto run = [&](const float* scale_a, const float* scale_b, std::int64_t block) {
    return error_of([&] {
      kernel::gemm_int8(Trans::no, Trans::no, m, n, k, a.data(), k, b.data(), n,
                        {scale_a, scale_b, block}, c.data(), n);
    });
  };
  CHECK(run(c.data() + 659, of_b.data(), k) ==
        "gemm_int8: C overlaps the scales of A; it must have memory of its own");
  CHECK(run(of_a.data(), c.data(), k) ==
        "gemm_int8: C overlaps the scales of B; it must have memory of its own");
  CHECK(run(of_a.data(), of_b.data(), 5) == "no error");
  CHECK(c == Floats(660, 135.0f));
  const Floats w = noise(32, 1), x = noise(16, 2);
  const kernel::QuantizedMatrix q = kernel::quantize(4, 8, 4, 8, w.data());
  Floats y(8);
  CHECK(error_of([&] { kernel::gemm_quantized(q, 2, x.data(), 7, y.data(), 4); }) ==
        "gemm_quantized: 2 rows, 7 and 4 apart, by 4 x 8 weights; rows of x must be 8 apart or "
        "more, of y 4");
  CHECK(error_of([&] { kernel::gemm_quantized(q, -1, x.data(), 8, y.data(), 4); }) ==
        "gemm_quantized: -1 rows, 8 and 4 apart, by 4 x 8 weights; rows of x must be 8 apart or "
        "more, of y 4");
  kernel::gemm_quantized(q, 1, x.data(), 0, y.data(), 0);
}
