#include <doctest/doctest.h>

#include "tinyscale.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace ts = tinyscale;
namespace kernel = tinyscale::kernel;
using kernel::Trans;

namespace {

using Floats = std::vector<float>;

Floats noise(std::int64_t n, std::uint64_t seed) {  // uniform in [-1, 1)
  Floats x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = 2.0f * ts::uniform01(seed, i) - 1.0f;
  }
  return x;
}

Floats integers(std::int64_t n, std::uint64_t seed, int largest) {
  Floats x = noise(n, seed);
  for (float& value : x) {
    value = std::floor(value * static_cast<float>(largest) + 0.5f);
  }
  return x;
}

std::vector<ts::CpuPath> paths() {  // this machine's, narrowest first
  std::vector<ts::CpuPath> all;
  for (const ts::CpuPath path :
       {ts::CpuPath::portable, ts::CpuPath::neon, ts::CpuPath::avx2, ts::CpuPath::avx512}) {
    if (ts::cpu().has(path) && path <= ts::cpu().path) {
      all.push_back(path);
    }
  }
  return all;
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
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    check_bf16(Product(Trans::no, Trans::no, 7, 70, 4500));
    check_bf16(Product(Trans::yes, Trans::yes, 7, 70, 4500));
    Product wide(Trans::no, Trans::no, 500, 530, 4200);  // exact: small integers
    wide.a = integers(wide.m * wide.lda, 1, 3);
    wide.b = integers(wide.k * wide.ldb, 2, 3);
    const Floats fast = wide.fast(0.0f);
    wide.a.resize(static_cast<std::size_t>(20 * wide.lda));
    wide.m = 20;
    wide.c.resize(static_cast<std::size_t>(20 * wide.ldc));
    const Floats few = wide.reference(0.0f);
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
}
