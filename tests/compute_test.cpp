#include <doctest/doctest.h>

#include "tinyscale.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <utility>
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

#if defined(__x86_64__) && defined(__GNUC__)
// Whether the upper halves of the wide registers are in use (XINUSE, by xgetbv of 1). While they
// are, scalar instructions wait for each other on Intel.
bool upper_halves_in_use() {
  std::uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));
  return (low & 0x44U) != 0;
}
__attribute__((target("avx"))) bool in_use_once_used() {
  std::uint32_t low = 0, high = 0;
  asm volatile("vcmpps $15, %%ymm0, %%ymm0, %%ymm0\n\txgetbv"
               : "=a"(low), "=d"(high)
               : "c"(1)
               : "xmm0");
  return (low & 0x44U) != 0;
}
__attribute__((target("avx"))) void clear_upper_halves() { __builtin_ia32_vzeroupper(); }

bool tells_upper_halves() {
  std::uint32_t a = 13, b = 0, c = 1, d = 0;
  asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  if (!ts::cpu().avx2 || (a & 4U) == 0) {
    return false;
  }
  const bool used = in_use_once_used();
  clear_upper_halves();
  return used && !upper_halves_in_use();
}
#endif

double dot(const Floats& a, const Floats& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return sum;
}

double worst(const Floats& a, const Floats& b) {
  REQUIRE(a.size() == b.size());
  double most = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double error = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    most = error <= most ? most : error;  // a NaN stays
  }
  return most;
}

// d loss / d x[i] by central differences, loss = <y(x), dy>, against grad.
void check_gradient(Floats& x, const Floats& grad, const std::function<double()>& loss,
                    double tolerance = 2e-3) {
  const float h = 1.0f / 128.0f;
  for (std::size_t i = 0; i < x.size(); i += 1 + x.size() / 40) {
    const float old = x[i];
    x[i] = old + h;
    const double up = loss();
    x[i] = old - h;
    const double down = loss();
    x[i] = old;
    CAPTURE(i);
    CHECK(std::fabs((up - down) / (2.0 * static_cast<double>(h)) - static_cast<double>(grad[i])) <
          tolerance);
  }
}

// |error| <= 2 K eps sum |a b| <= 2 K^2 eps for entries in [-1, 1]; the mean case is far inside.
void check_gemm(Trans ta, Trans tb, std::int64_t m, std::int64_t n, std::int64_t k, float beta) {
  const std::int64_t lda = (ta == Trans::no ? k : m) + 3;
  const std::int64_t ldb = (tb == Trans::no ? n : k) + 1;
  const std::int64_t ldc = n + 2;
  const Floats a = noise((ta == Trans::no ? m : k) * lda, 1);
  const Floats b = noise((tb == Trans::no ? k : n) * ldb, 2);
  Floats c = noise(m * ldc, 3);
  Floats expected = c;
  kernel::gemm_reference(ta, tb, m, n, k, a.data(), lda, b.data(), ldb, beta, expected.data(), ldc);
  kernel::gemm(ta, tb, m, n, k, a.data(), lda, b.data(), ldb, beta, c.data(), ldc);
  CAPTURE(m);
  CAPTURE(n);
  CAPTURE(k);
  const double size = static_cast<double>(k);
  CHECK(worst(c, expected) <= 1.2e-7 * size * std::min(size, 8.0) + 2.4e-7);
}

}  // namespace

TEST_CASE("gemm: every path, transpose and odd size is within rounding of the reference") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    for (const Trans ta : {Trans::no, Trans::yes}) {
      for (const Trans tb : {Trans::no, Trans::yes}) {
        for (const std::int64_t m : {1, 2, 5, 8, 9, 17, 100, 131}) {
          for (const std::int64_t n : {1, 3, 16, 31, 64, 97, 150}) {
            check_gemm(ta, tb, m, n, 37, 0.0f);
          }
        }
        check_gemm(ta, tb, 20, 33, 1, 1.0f);
        check_gemm(ta, tb, 20, 65, 600, 1.0f);
        check_gemm(ta, tb, 3, 130, 600, 1.0f);
        check_gemm(ta, tb, 40, 300, 300, 0.0f);  // B too large to be read in place
        check_gemm(ta, tb, 12, 0, 5, 0.0f);
        check_gemm(ta, tb, 12, 7, 0, 1.0f);
        check_gemm(ta, tb, 12, 7, 0, 0.0f);
      }
    }
  }
}

TEST_CASE("gemm: whole numbers come out exactly, and NaN in an old C is not read when beta is 0") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    for (const std::int64_t m : {1, 7, 50}) {
      const std::int64_t n = 70, k = 300;
      Floats a(static_cast<std::size_t>(m * k)), b(static_cast<std::size_t>(k * n));
      for (std::size_t i = 0; i < a.size(); ++i) {
        a[i] = static_cast<float>(static_cast<int>(i % 7) - 3);
      }
      for (std::size_t i = 0; i < b.size(); ++i) {
        b[i] = static_cast<float>(static_cast<int>(i % 11) - 5);
      }
      Floats c(static_cast<std::size_t>(m * n), std::nanf("")), expected(c.size(), 0.0f);
      kernel::gemm(Trans::no, Trans::no, m, n, k, a.data(), k, b.data(), n, 0.0f, c.data(), n);
      kernel::gemm_reference(Trans::no, Trans::no, m, n, k, a.data(), k, b.data(), n, 0.0f,
                             expected.data(), n);
      CHECK(c == expected);
    }
  }
}

TEST_CASE("gemm: threads do not change a bit") {
  for (const std::int64_t m : {3, 5, 200}) {
    const std::int64_t n = 1100, k = 310;
    const Floats a = noise(m * k, 5), b = noise(k * n, 6);
    Floats many(static_cast<std::size_t>(m * n)), one(many.size());
    kernel::gemm(Trans::no, Trans::no, m, n, k, a.data(), k, b.data(), n, 0.0f, many.data(), n);
    {
      const ts::detail::SerialScope serial;
      kernel::gemm(Trans::no, Trans::no, m, n, k, a.data(), k, b.data(), n, 0.0f, one.data(), n);
    }
    CHECK(many == one);
  }
}

TEST_CASE("elementwise: tanh and erf reach 1 and pass it nowhere, gelu keeps its sign") {
  const auto all = {kernel::tanh_forward, kernel::erf_forward, kernel::gelu_forward,
                    kernel::gelu_tanh_forward};
  Floats x(1 << 19), y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = -1.0f - 8.5f * static_cast<float>(i) / static_cast<float>(x.size());
  }
#if defined(__FAST_MATH__)  // no infinities, and squares and cubes that are none
  const float far[] = {-10.0f, -1e3f, -1e6f, -1e12f};
#else
  const float far[] = {-10.0f, -1e19f, -3e38f, -std::numeric_limits<float>::infinity()};
#endif
  std::copy(std::begin(far), std::end(far), x.end() - 4);
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    for (const auto function : all) {
      function(static_cast<std::int64_t>(x.size()) - 1, x.data(), y.data());
      const auto ends = std::minmax_element(y.begin(), y.end() - 1);
      CHECK(*ends.first >= -1.0f);
      CHECK(*ends.second <= 0.0f);
    }
    kernel::tanh_forward(static_cast<std::int64_t>(x.size()), x.data(), y.data());
    CHECK(Floats(y.end() - 4, y.end()) == Floats(4, -1.0f));
    kernel::erf_forward(static_cast<std::int64_t>(x.size()), x.data(), y.data());
    CHECK(Floats(y.end() - 4, y.end()) == Floats(4, -1.0f));
  }
}

TEST_CASE("elementwise: exp, tanh, gelu and silu are accurate on every path") {
#if defined(__FAST_MATH__)  // 2^n is one factor, which overflows a little earlier; r is rounded
                            // once
  const double largest = 1.7e38, exp_error = 5e-6, gelu_error = 2e-6;
#else
  const double largest = 3e38, exp_error = 2.4e-7 /* 2 ulp */, gelu_error = 1e-6;
#endif
  const std::int64_t n = 20011;
  Floats x(static_cast<std::size_t>(n)), y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = -100.0f + 200.0f * static_cast<float>(i) / static_cast<float>(n);
  }
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    double worst_exp = 0.0, worst_silu = 0.0;
    kernel::exp_forward(n, x.data(), y.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double v = std::exp(static_cast<double>(x[i]));
      if (v > 1e-37 && v < largest) {
        worst_exp = std::max(worst_exp, std::fabs(static_cast<double>(y[i]) - v) / v);
      }
    }
    for (float& v : x) {
      v *= 0.1f;
    }
    const auto worst = [&](void (*kernel)(std::int64_t, const float*, float*),
                           double (*reference)(double)) {
      double most = 0.0;
      kernel(n, x.data(), y.data());
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double error = static_cast<double>(y[i]) - reference(static_cast<double>(x[i]));
        most = std::max(most, std::fabs(error));
      }
      return most;
    };
    CHECK(worst(kernel::gelu_forward, kernel::gelu_reference) < gelu_error);
    CHECK(worst(kernel::tanh_forward, kernel::tanh_reference) < 4e-7);
    CHECK(worst(kernel::gelu_tanh_forward, kernel::gelu_tanh_reference) < gelu_error);
    kernel::silu_forward(n, x.data(), y.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double v = static_cast<double>(x[i]);
      const double error = std::fabs(static_cast<double>(y[i]) - kernel::silu_reference(v));
      worst_silu = std::max(worst_silu, error / std::max(1.0, std::fabs(v)));
    }
    for (float& v : x) {
      v *= 10.0f;
    }
    CHECK(worst_exp < exp_error);
    CHECK(worst_silu < 3e-7);
  }
}

TEST_CASE("a NaN and an infinity are seen by their bits, whatever the compiler may assume") {
  const Floats x{1.0f, std::numeric_limits<float>::infinity(), std::nanf(""), -3e38f};
  const bool finite[] = {true, false, false, true};
  for (std::size_t i = 0; i < x.size(); ++i) {
    CHECK(ts::detail::is_finite(static_cast<double>(x[i])) == finite[i]);
    CHECK(ts::detail::is_nan(static_cast<double>(x[i])) == (i == 2));
  }
}

TEST_CASE("sums: a row and columns in double, on every path; squares whatever the threads") {
  for (const std::int64_t n : {1, 7, 31, 32, 1000, 20011}) {
    Floats x(static_cast<std::size_t>(n));
    std::vector<double> expected(x.size(), 0.5);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = 0.1f * static_cast<float>(i % 37) - 1.0f;
      expected[i] += static_cast<double>(x[i]);
    }
    const double total = kernel::sum_reference(n, x.data());
    const double squares = kernel::sum_reference(n, x.data(), 2);
    for (const ts::CpuPath path : paths()) {
      const ts::detail::PathScope scope(path);
      CHECK(kernel::sum(n, x.data()) == doctest::Approx(total).epsilon(1e-12).scale(1));
      const double many = kernel::sum_of_squares(n, x.data());
      CHECK(many == doctest::Approx(squares).epsilon(1e-12));
      {
        const ts::detail::SerialScope serial;
        CHECK(kernel::sum_of_squares(n, x.data()) == many);
      }
      std::vector<double> sums(x.size(), 0.5);
      kernel::add_to_sums(n, x.data(), sums.data());
      CHECK(sums == expected);
    }
  }
}

TEST_CASE("sums of many vectors to many: every path, any length, in place, past the caches") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    for (const std::int64_t n : {0, 1, 15, 63, 64, 65, 200, 777}) {
      for (std::size_t count = 1; count <= 9; ++count) {
        // By how many numbers the places of a cache line at which vectors begin differ.
        for (const std::size_t apart : {0, 1}) {
          CAPTURE(n);
          CAPTURE(count);
          CAPTURE(apart);
          const std::size_t length = static_cast<std::size_t>(n);
          std::vector<Floats> memory(count, Floats(length + 48, 7));
          std::vector<const float*> parts;
          std::vector<float*> copies;
          Floats sum(length), mean(length);
          float* const to_sum = sum.data();
          float* const to_mean = mean.data();
          for (std::size_t p = 0; p < count; ++p) {
            const std::size_t lines = reinterpret_cast<std::uintptr_t>(memory[p].data()) / 4 % 16;
            float* const at = memory[p].data() + 16 - lines + 5 + apart * p;
            const Floats numbers = noise(n, p);
            std::copy(numbers.begin(), numbers.end(), at);
            parts.push_back(at);
            copies.push_back(at);
          }
          kernel::add_to_all_reference(n, parts.data(), count, &to_sum, 1);
          const float* const twice[] = {to_sum, to_sum};
          kernel::add_to_all_reference(n, twice, count > 1 ? 2 : 1, &to_mean, 1, 3.0f);
          Floats y(length + 1, 7);
          kernel::add_all(n, parts.data(), count, y.data());
          CHECK(std::equal(sum.begin(), sum.end(), y.begin()));
          CHECK(y.back() == 7);
          // Twice the sum over 3, to all that were added; then the sum, to the last half of them.
          std::vector<const float*> both{y.data()};
          if (count > 1) {
            both.push_back(y.data());
          }
          kernel::add_to_all(n, both.data(), both.size(), copies.data(), count, 3.0f,
                             (count + length) % 2 == 0);
          for (std::size_t c = 0; c < count; ++c) {
            for (std::size_t i = 0; i < length; ++i) {  // -ffast-math may multiply by 1 / 3
              REQUIRE(copies[c][i] == doctest::Approx(mean[i]).epsilon(3e-7));
            }
            CHECK(std::count(memory[c].begin(), memory[c].end(), 7.0f) == 48);
          }
          for (std::size_t p = 0; p < count; ++p) {
            const Floats numbers = noise(n, p);
            std::copy(numbers.begin(), numbers.end(), copies[p]);
          }
          kernel::add_to_all(n, parts.data(), count, copies.data() + count / 2, count - count / 2,
                             1.0f, length % 2 == 0);
          for (std::size_t c = count / 2; c < count; ++c) {
            CHECK(std::equal(sum.begin(), sum.end(), copies[c]));
          }
        }
      }
    }
  }
}

TEST_CASE("norms: gradients of the weights over 2^20 rows lose none") {
  const std::int64_t rows = 1 << 20;
  const Floats x(static_cast<std::size_t>(rows), 1.0f), one(1, 1.0f), rstd(x.size(), 0.1f);
  Floats dx(x.size()), dweight(1), dbias(1);
  kernel::layer_norm_backward(rows, 1, x.data(), one.data(), Floats(x.size(), 0.0f).data(),
                              rstd.data(), x.data(), dx.data(), dweight.data(), dbias.data());
  CHECK(static_cast<double>(dweight[0]) == doctest::Approx(104857.6).epsilon(1e-5));
  CHECK(dbias[0] == 1048576.0f);
}

TEST_CASE("elementwise: exp at the ends") {
  const float inf = std::numeric_limits<float>::infinity();
  const Floats x{-inf, -200.0f, 0.0f, 88.7f, 89.0f, inf, std::nanf("")};
  Floats y(x.size());
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    kernel::exp_forward(7, x.data(), y.data());
    CHECK(y[0] == 0.0f);
    CHECK(y[1] == 0.0f);
    CHECK(y[2] == 1.0f);
    CHECK(y[3] == doctest::Approx(3.326e38).epsilon(1e-3));
    CHECK(y[4] == inf);
    CHECK(y[5] == inf);
    CHECK(std::isnan(y[6]));
  }
}

TEST_CASE("elementwise: arithmetic") {
  const std::int64_t n = 37;
  const Floats a = noise(n, 1);
  Floats b = noise(n, 2), y(a.size()), z(a.size(), 1.0f);
  for (float& v : b) {
    v += 2.0f;
  }
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    const auto check = [&](const std::function<float(float, float)>& f) {
      for (std::size_t i = 0; i < a.size(); ++i) {
        CHECK(y[i] == doctest::Approx(static_cast<double>(f(a[i], b[i]))).epsilon(1e-6));
      }
    };
    kernel::add(n, a.data(), b.data(), y.data());
    check([](float p, float q) { return p + q; });
    kernel::sub(n, a.data(), b.data(), y.data());
    check([](float p, float q) { return p - q; });
    kernel::mul(n, a.data(), b.data(), y.data());
    check([](float p, float q) { return p * q; });
    kernel::div(n, a.data(), b.data(), y.data());
    check([](float p, float q) { return p / q; });
    kernel::scale(n, 3.0f, a.data(), y.data());
    check([](float p, float) { return 3.0f * p; });
    kernel::relu_forward(n, a.data(), y.data());
    check([](float p, float) { return p > 0.0f ? p : 0.0f; });
    y = z;
    kernel::multiply_add(n, a.data(), b.data(), y.data());
    check([](float p, float q) { return 1.0f + p * q; });
  }
}

TEST_CASE("elementwise: what is larger than the caches is written as its parts are") {
  const std::int64_t n = 8100003, part = 1000000;  // 32.4 MB
  ts::detail::Scratch x(n), whole(n), parts(n);
  for (std::int64_t i = 0; i < n; ++i) {
    x.data()[i] = static_cast<float>(i % 1999 - 999) * 0.01f;
  }
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    for (const std::int64_t shift : {0, 3}) {  // from the beginning of a cache line, and not
      const std::int64_t count = n - shift;
      float* const y = whole.data() + shift;
      std::fill(whole.data(), whole.data() + n, -1.0f);
      kernel::silu_forward(count, x.data(), y);
      for (std::int64_t i = 0; i < count; i += part) {
        kernel::silu_forward(std::min(part, count - i), x.data() + i, parts.data() + i);
      }
      CHECK(std::memcmp(y, parts.data(), static_cast<std::size_t>(count) * sizeof(float)) == 0);
      CHECK(std::count(whole.data(), y, -1.0f) == shift);
    }
  }
}

TEST_CASE("elementwise: silu and gelu_tanh keep their digits far below 0, and end at 0 and x") {
  // The exponent's rounding: 2^-24 of it and of what it is made of, and of log2 e; 3e-7 the rest.
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    Floats x, y(2001);
    for (std::size_t i = 0; i < y.size(); ++i) {
      x.push_back(-1e-3f * static_cast<float>(i));
    }
    for (const float far : {9.0f, 80.0f}) {
      Floats at = x;
      for (float& each : at) {
        each *= far / 2.0f;
      }
      (far > 9.0f ? kernel::silu_forward : kernel::gelu_tanh_forward)(2001, at.data(), y.data());
      for (std::size_t i = 0; i < y.size(); ++i) {
        const double v = static_cast<double>(at[i]);
        const double u = far > 9.0f ? v : 1.5957691216057308 * (v + 0.044715 * v * v * v);
        const double truth = v / (1 + std::exp(-u)), near = 3e-7 + 2.4e-7 * std::fabs(u);
        CHECK(std::fabs(static_cast<double>(y[i]) - truth) <= near * std::fabs(truth));
      }
    }
    // Under -ffast-math a quotient may be an ulp beside its value; times 230 in the slopes.
    const auto near = [](const Floats& a, const Floats& b, double room) {
      for (std::size_t i = 0; i < a.size(); ++i) {
        const double truth = static_cast<double>(b[i]);
        CHECK(std::fabs(static_cast<double>(a[i]) - truth) <= room * std::max(1e-20, truth));
      }
    };
    const Floats ends{-3e38f, -1e20f, -200.0f, 0.0f, 200.0f, 1e20f, 3e38f}, ones(7, 1.0f);
    const Floats want{0.0f, 0.0f, 0.0f, 0.0f, 200.0f, 1e20f, 3e38f};
    const Floats slopes{0.0f, 0.0f, 0.0f, 0.5f, 1.0f, 1.0f, 1.0f};
    Floats out(7);
    kernel::silu_forward(7, ends.data(), out.data());
    near(out, want, 2.4e-7);
    kernel::silu_backward(7, ends.data(), ones.data(), out.data(), 0.0f);
    near(out, slopes, 6e-5);
    kernel::gelu_tanh_forward(7, ends.data(), out.data());
    near(out, want, 2.4e-7);
    kernel::gelu_tanh_backward(7, ends.data(), ones.data(), out.data(), 0.0f);
    near(out, slopes, 6e-5);
    kernel::sigmoid_forward(7, ends.data(), out.data());
    near(out, slopes, 2.4e-7);
  }
}

TEST_CASE("elementwise: backward agrees with the slopes in double and with central differences") {
  using Forward = void (*)(std::int64_t, const float*, float*);
  using Backward = void (*)(std::int64_t, const float*, const float*, float*, float);
  struct Function {
    Forward forward;
    Backward backward;
    double (*slope)(double);
  };
  const Function functions[] = {
      {kernel::gelu_forward, kernel::gelu_backward, kernel::gelu_slope_reference},
      {kernel::gelu_tanh_forward, kernel::gelu_tanh_backward, kernel::gelu_tanh_slope_reference},
      {kernel::silu_forward, kernel::silu_backward, kernel::silu_slope_reference},
      {kernel::tanh_forward, kernel::tanh_backward, kernel::tanh_slope_reference}};
  const std::int64_t n = 53;
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    for (const Function& f : functions) {
      Floats x = noise(n, 1), y(x.size()), dx(x.size(), 0.0f);
      const Floats dy = noise(n, 2);
      f.backward(n, x.data(), dy.data(), dx.data(), 1.0f);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double slope = f.slope(static_cast<double>(x[i]));
        CHECK(std::fabs(static_cast<double>(dx[i]) - slope * static_cast<double>(dy[i])) < 1e-6);
      }
      check_gradient(x, dx, [&] {
        f.forward(n, x.data(), y.data());
        return dot(y, dy);
      });
    }
    const Floats x{-1.0f, 0.0f, 2.0f}, dy{3.0f, 3.0f, 3.0f};
    Floats dx{1.0f, 1.0f, 1.0f};
    kernel::relu_backward(3, x.data(), dy.data(), dx.data());
    CHECK(dx == Floats{1.0f, 1.0f, 4.0f});
  }
}

TEST_CASE("softmax: every path against the reference, backward by differences too") {
  const std::int64_t rows = 5, cols = 43;
  Floats x = noise(rows * cols, 1), y(x.size()), dx(x.size(), 0.0f), expected(x.size());
  const Floats dy = noise(rows * cols, 2);
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    x[3] = 200.0f;  // would overflow without the maximum
    kernel::softmax_forward(rows, cols, x.data(), y.data());
    CHECK(y[3] == 1.0f);
    x[3] = 0.5f;
    kernel::softmax_forward(rows, cols, x.data(), y.data());
    kernel::softmax_reference(rows, cols, x.data(), expected.data());
    CHECK(worst(y, expected) < 1e-7);
    std::fill(dx.begin(), dx.end(), 0.0f);
    kernel::softmax_backward(rows, cols, y.data(), dy.data(), dx.data());
    kernel::softmax_backward_reference(rows, cols, y.data(), dy.data(), expected.data(), 0.0f);
    CHECK(worst(dx, expected) < 1e-7);
    check_gradient(x, dx, [&] {
      kernel::softmax_forward(rows, cols, x.data(), y.data());
      return dot(y, dy);
    });
  }
}

TEST_CASE("cross entropy: uniform logits give log vocab, target -1 is ignored, backward") {
  const std::int64_t rows = 3, vocab = 37;
  Floats x(static_cast<std::size_t>(rows * vocab), 2.0f), losses(3), lse(3), dx(x.size(), 0.0f);
  const std::vector<std::int32_t> targets{5, -1, 36};
  const Floats one{1.0f, 1.0f, 1.0f};
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    std::fill(x.begin(), x.end(), 2.0f);
    kernel::cross_entropy_forward(rows, vocab, x.data(), targets.data(), losses.data(), lse.data());
    CHECK(losses[0] == doctest::Approx(std::log(37.0)).epsilon(1e-6));
    CHECK(losses[1] == 0.0f);
    x = noise(rows * vocab, 4);
    std::fill(dx.begin(), dx.end(), 0.0f);
    const auto loss = [&] {
      kernel::cross_entropy_forward(rows, vocab, x.data(), targets.data(), losses.data(),
                                    lse.data());
      return dot(losses, one);
    };
    loss();
    Floats expected(3), expected_lse(3), slopes(x.size());
    kernel::cross_entropy_reference(rows, vocab, x.data(), targets.data(), expected.data(),
                                    expected_lse.data());
    CHECK(worst(losses, expected) < 1e-6);
    CHECK(worst(lse, expected_lse) < 1e-6);
    kernel::cross_entropy_backward(rows, vocab, x.data(), lse.data(), targets.data(), 1.0f,
                                   dx.data());
    kernel::cross_entropy_backward_reference(rows, vocab, x.data(), lse.data(), targets.data(),
                                             1.0f, slopes.data());
    CHECK(worst(dx, slopes) < 2e-7);
    check_gradient(x, dx, loss);
  }
}

TEST_CASE("norms: layer norm has mean 0 and variance 1; backward by differences") {
  const std::int64_t rows = 70, cols = 37;
  Floats x = noise(rows * cols, 1), weight = noise(cols, 2), bias = noise(cols, 3);
  const Floats dy = noise(rows * cols, 4);
  Floats y(x.size()), mean(70), rstd(70);
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    Floats dx(x.size(), 0.0f), dweight(weight.size(), 0.0f), dbias(bias.size(), 0.0f);
    const Floats ones(weight.size(), 1.0f);
    kernel::layer_norm_forward(rows, cols, 1e-5f, x.data(), ones.data(), nullptr, y.data(),
                               mean.data(), rstd.data());
    double sum = 0.0, square = 0.0;
    for (std::size_t j = 0; j < weight.size(); ++j) {
      sum += static_cast<double>(y[j]);
      square += static_cast<double>(y[j]) * static_cast<double>(y[j]);
    }
    CHECK(std::fabs(sum) < 1e-5);
    CHECK(square / static_cast<double>(cols) == doctest::Approx(1.0).epsilon(1e-3));
    const auto layer = [&] {
      kernel::layer_norm_forward(rows, cols, 1e-5f, x.data(), weight.data(), bias.data(), y.data(),
                                 mean.data(), rstd.data());
      return dot(y, dy);
    };
    layer();
    kernel::layer_norm_backward(rows, cols, x.data(), weight.data(), mean.data(), rstd.data(),
                                dy.data(), dx.data(), dweight.data(), dbias.data());
    check_gradient(x, dx, layer);
    check_gradient(weight, dweight, layer);
    check_gradient(bias, dbias, layer);
    const auto rms = [&] {
      kernel::rms_norm_forward(rows, cols, 1e-5f, x.data(), weight.data(), y.data(), rstd.data());
      return dot(y, dy);
    };
    std::fill(dx.begin(), dx.end(), 0.0f);
    std::fill(dweight.begin(), dweight.end(), 0.0f);
    rms();
    kernel::rms_norm_backward(rows, cols, x.data(), weight.data(), rstd.data(), dy.data(),
                              dx.data(), dweight.data());
    Floats expected(x.size());
    std::vector<double> sums(weight.size());
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t at = i * cols;
      kernel::norm_backward_reference(cols, x.data() + at, weight.data(), nullptr, rstd.data() + i,
                                      dy.data() + at, expected.data() + at, sums.data(), nullptr);
    }
    CHECK(worst(dx, expected) < 4e-6);
    CHECK(worst(dweight, Floats(sums.begin(), sums.end())) < 1e-5);
    check_gradient(x, dx, rms);
    check_gradient(weight, dweight, rms);
  }
}

namespace {

kernel::AttentionShape attention_case(std::int64_t queries, std::int64_t keys, int causal) {
  kernel::AttentionShape s;
  s.batch = 2;
  s.queries = queries;
  s.keys = keys;
  s.heads = 4;
  s.kv_heads = 2;
  s.head_size = 11;
  s.q_stride = s.o_stride = 44;
  s.k_stride = s.v_stride = 22;
  s.q_batch = s.o_batch = queries * 44;
  s.k_batch = s.v_batch = keys * 22;
  s.causal = causal;
  s.causal_offset = keys - queries;
  return s;
}

Floats attention_by_rows(const kernel::AttentionShape& s, const Floats& q, const Floats& k,
                         const Floats& v) {
  Floats o(q.size());
  for (std::int64_t task = 0; task < s.batch * s.heads * s.queries; ++task) {
    const std::int64_t i = task % s.queries, h = task / s.queries % s.heads;
    const std::int64_t b = task / s.queries / s.heads;
    const std::int64_t at = b * s.q_batch + i * s.q_stride + h * s.head_size;
    const std::int64_t kv = b * s.k_batch + h / (s.heads / s.kv_heads) * s.head_size;
    kernel::attention_reference(s, ts::detail::visible_keys(s, i), q.data() + at, k.data() + kv,
                                v.data() + kv, o.data() + at);
  }
  return o;
}

}  // namespace

TEST_CASE("attention: blocks of queries match the definition; backward by differences") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    for (const int causal : {0, 1}) {
      for (const std::int64_t queries : {1, 9, 70}) {
        const kernel::AttentionShape s = attention_case(queries, queries + 5, causal);
        Floats q = noise(s.batch * s.q_batch, 1), k = noise(s.batch * s.k_batch, 2);
        Floats v = noise(s.batch * s.v_batch, 3);
        const Floats d_o = noise(s.batch * s.o_batch, 4);
        Floats o(q.size()), lse(static_cast<std::size_t>(s.batch * s.heads * s.queries));
        const auto loss = [&] {
          kernel::attention_forward(s, q.data(), k.data(), v.data(), o.data(), lse.data());
          return dot(o, d_o);
        };
        loss();
        CHECK(worst(o, attention_by_rows(s, q, k, v)) < 1e-6);
        Floats dq(q.size(), 0.0f), dk(k.size(), 0.0f), dv(v.size(), 0.0f);
        kernel::attention_backward(s, q.data(), k.data(), v.data(), o.data(), lse.data(),
                                   d_o.data(), dq.data(), dk.data(), dv.data());
        check_gradient(q, dq, loss);
        check_gradient(k, dk, loss);
        check_gradient(v, dv, loss);
      }
    }
  }
}

TEST_CASE("attention: a query that sees no key gives zeros and no gradient") {
  const kernel::AttentionShape s = attention_case(4, 2, 1);  // queries 0 and 1 come before key 0
  const Floats q = noise(s.batch * s.q_batch, 1), k = noise(s.batch * s.k_batch, 2);
  Floats o(q.size(), 9.0f), lse(32), dq(q.size(), 0.0f), dk(k.size(), 0.0f), dv(k.size(), 0.0f);
  kernel::attention_forward(s, q.data(), k.data(), k.data(), o.data(), lse.data());
  CHECK(o[0] == 0.0f);
  CHECK(o[44 + 43] == 0.0f);
  CHECK(o[88] == k[0]);
  kernel::attention_backward(s, q.data(), k.data(), k.data(), o.data(), lse.data(), q.data(),
                             dq.data(), dk.data(), dv.data());
  CHECK(dq[0] == 0.0f);
}

TEST_CASE("rope: keeps lengths, depends on the distance only, and is undone by its inverse") {
  for (const ts::RopePairs pairs : {ts::RopePairs::interleaved, ts::RopePairs::halves}) {
    kernel::RopeShape s;
    s.batch = 2;
    s.tokens = 5;
    s.heads = 3;
    s.head_size = 8;
    s.places = {7, 3, 20};
    s.pairs = pairs;
    const Floats x = noise(2 * 5 * 24, 1);
    Floats y(x.size()), back(x.size(), 1.0f);
    kernel::rope(s, kernel::RopeTurn::forward, x.data(), y.data());
    CHECK(dot(x, x) == doctest::Approx(dot(y, y)).epsilon(1e-5));
    Floats expected(x.size());
    kernel::rope_reference(s, kernel::RopeTurn::forward, x.data(), expected.data());
    CHECK(worst(y, expected) < 2e-7);
    const std::size_t partner = pairs == ts::RopePairs::interleaved ? 1 : 4;
    const double angle = 7.0;  // pair 0 of the first token
    CHECK(y[0] == doctest::Approx(std::cos(angle) * static_cast<double>(x[0]) -
                                  std::sin(angle) * static_cast<double>(x[partner]))
                      .epsilon(1e-5));
    kernel::rope_backward(s, y.data(), back.data());
    kernel::rope_reference(s, kernel::RopeTurn::inverse, y.data(), expected.data());
    for (float& value : expected) {
      value += 1.0f;
    }
    CHECK(worst(back, expected) < 3e-7);
    for (std::size_t i = 0; i < x.size(); ++i) {
      CHECK(std::fabs(back[i] - 1.0f - x[i]) < 1e-6f);
    }
  }
}

TEST_CASE("adamw: three steps follow the formula in double; sum of squares") {
  const std::int64_t n = 45;
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    Floats p = noise(n, 1), m(p.size(), 0.0f), v(p.size(), 0.0f);
    Floats ep = p, em = m, ev = v;
    kernel::AdamWStep s;
    s.learning_rate = 0.01f;
    s.weight_decay = 0.1f;
    s.grad_scale = 0.5f;
    for (int t = 1; t <= 3; ++t) {
      s.step = t;
      Floats grad = noise(n, static_cast<std::uint64_t>(10 + t));
      grad[7] = 0.0f;
      kernel::adamw(n, s, grad.data(), p.data(), m.data(), v.data());
      kernel::adamw_reference(n, s, grad.data(), ep.data(), em.data(), ev.data());
      CHECK(worst(p, ep) < 2e-7);
      CHECK(worst(m, em) < 1e-7);
      CHECK(worst(v, ev) < 1e-7);
    }
  }
  const Floats x = noise(20000, 3);
  CHECK(kernel::sum_of_squares(20000, x.data()) == doctest::Approx(dot(x, x)).epsilon(1e-12));
}

TEST_CASE("no kernel leaves the upper halves of the wide registers in use") {
#if defined(__x86_64__) && defined(__GNUC__)
  if (!tells_upper_halves()) {
    MESSAGE("skipped: this processor does not say which registers are in use");
    return;
  }
  const std::int64_t m = 33, n = 48, k = 64;
  const Floats a = noise(m * k, 1), b = noise(k * n, 2);
  Floats c(static_cast<std::size_t>(m * n));
  const std::vector<std::int8_t> whole(static_cast<std::size_t>(n * k), 3);
  std::vector<std::int32_t> sums(c.size());
  const std::vector<std::uint16_t> halves(static_cast<std::size_t>(n * k), 0x3f80);
  const ts::detail::LaptopLoops loops = ts::detail::laptop_loops();
  const ts::detail::SerialScope alone;
  const auto clean = [](const auto& kernel) {
    clear_upper_halves();
    kernel();
    return !upper_halves_in_use();
  };
  const auto all_clean = [&] {
    CHECK(clean([&] {
      kernel::gemm(Trans::no, Trans::no, m, n, k, a.data(), k, b.data(), n, 0.0f, c.data(), n);
    }));
    CHECK(clean([&] {
      kernel::gemm_bf16(Trans::no, Trans::no, m, n, k, halves.data(), k, halves.data(), n, 0.0f,
                        c.data(), n);
    }));
    CHECK(clean([&] {
      kernel::gemm_int8(Trans::no, Trans::no, m, n, k, whole.data(), k, whole.data(), n,
                        sums.data(), n);
    }));
  };
  all_clean();  // with the processor's own choice of units
  for (const ts::CpuPath path : paths()) {
    CAPTURE(ts::name_of(path));
    const ts::detail::PathScope scope(path);
    all_clean();
  }
  CHECK(clean([&] { loops.fma(10, 0.5f, 0.5f); }));
  for (const auto loop : {loops.bf16, loops.int8}) {
    CHECK((loop == nullptr || clean([&] { loop(10, 0.5f, 0.5f); })));
  }
#else
  MESSAGE("skipped: not an x86 processor");
#endif
}

TEST_CASE("adamw: a gradient whose square is no float") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    const kernel::AdamWStep step;
    float p = 1, m = 0, v = 0, right = 1, m2 = 0, v2 = 0;
    const float g = 2e19f;
    kernel::adamw(1, step, &g, &p, &m, &v);
    kernel::adamw_reference(1, step, &g, &right, &m2, &v2);
    CHECK(p == doctest::Approx(double{right}).epsilon(1e-6));
    CHECK(v == doctest::Approx(double{v2}).epsilon(1e-6));
  }
}

TEST_CASE("kernels by rows and by elements: sizes that count nothing are refused") {
  float x[64] = {}, y[64] = {}, a[8], b[8];
  const std::string minus = "sizes -1, 4; each must be 0 or more, their product at most 2^60";
  CHECK(error_of([&] { kernel::softmax_forward(-1, 4, x, y); }) == "softmax_forward: " + minus);
  CHECK(error_of([&] { kernel::softmax_backward(-1, 4, x, x, y); }) ==
        "softmax_backward: " + minus);
  CHECK(error_of([&] { kernel::log_softmax_forward(-1, 4, x, y); }) ==
        "log_softmax_forward: " + minus);
  CHECK(error_of([&] { kernel::log_softmax_backward(-1, 4, x, x, y); }) ==
        "log_softmax_backward: " + minus);
  CHECK(error_of([&] { kernel::cross_entropy_forward(-1, 4, x, nullptr, a, b); }) ==
        "cross_entropy_forward: " + minus);
  CHECK(error_of([&] { kernel::cross_entropy_backward(-1, 4, x, a, nullptr, 1, y); }) ==
        "cross_entropy_backward: " + minus);
  CHECK(error_of([&] { kernel::layer_norm_forward(-1, 4, 1e-5f, x, x, nullptr, y, a, b); }) ==
        "layer_norm_forward: " + minus);
  CHECK(error_of([&] { kernel::layer_norm_backward(-1, 4, x, x, a, b, x, y, y, nullptr); }) ==
        "layer_norm_backward: " + minus);
  CHECK(error_of([&] { kernel::rms_norm_forward(-1, 4, 1e-5f, x, x, y, a); }) ==
        "rms_norm_forward: " + minus);
  CHECK(error_of([&] { kernel::rms_norm_backward(-1, 4, x, x, a, x, y, y); }) ==
        "rms_norm_backward: " + minus);
  CHECK(error_of([&] { kernel::column_sums(-1, 4, x, y); }) == "column_sums: " + minus);
  const std::string five = "sizes -5; each must be 0 or more, their product at most 2^60";
  CHECK(error_of([&] { kernel::sum(-5, x); }) == "sum: " + five);
  CHECK(error_of([&] { kernel::sum_of_squares(-5, x); }) == "sum_of_squares: " + five);
  CHECK(error_of([&] { kernel::add(-5, x, x, y); }) == "add: " + five);
  CHECK(error_of([&] { kernel::gelu_backward(-5, x, x, y); }) == "gelu_backward: " + five);
  CHECK(error_of([&] { kernel::adamw(-5, kernel::AdamWStep(), x, y, x, x); }) == "adamw: " + five);
  const std::int64_t large = std::int64_t{1} << 31;
  CHECK(error_of([&] { kernel::softmax_forward(large, large, x, y); }) ==
        "softmax_forward: sizes 2147483648, 2147483648; each must be 0 or more, their product at "
        "most 2^60");
  kernel::softmax_forward(0, std::numeric_limits<std::int64_t>::max(), nullptr, nullptr);
  CHECK(kernel::sum(0, nullptr) == 0);
}

TEST_CASE("kernels by rows and by elements: in place or apart, not in between") {
  Floats x = noise(4 * 9 + 1, 1), out(36);
  const Floats w = noise(9, 2);
  float a[8], b[8];
  const auto in_part = [](const std::string& y, const std::string& of) {
    return y + " overlaps " + of + " in part; it must be " + of +
           " itself, number for number, or have memory of its own";
  };
  float *const from = x.data(), *const shifted = x.data() + 1;
  CHECK(error_of([&] { kernel::softmax_forward(4, 9, from, shifted); }) ==
        "softmax_forward: " + in_part("y", "x"));
  CHECK(error_of([&] { kernel::softmax_forward(4, 9, shifted, from); }) ==
        "softmax_forward: " + in_part("y", "x"));
  CHECK(error_of([&] { kernel::softmax_backward(4, 9, from, w.data(), shifted); }) ==
        "softmax_backward: " + in_part("dx", "y"));
  CHECK(error_of([&] { kernel::log_softmax_forward(4, 9, from, shifted); }) ==
        "log_softmax_forward: " + in_part("y", "x"));
  CHECK(error_of([&] { kernel::log_softmax_backward(4, 9, out.data(), from, shifted); }) ==
        "log_softmax_backward: " + in_part("dx", "dy"));
  CHECK(error_of([&] { kernel::gelu_forward(36, from, shifted); }) ==
        "gelu_forward: " + in_part("y", "an operand"));
  CHECK(error_of([&] { kernel::mul(36, out.data(), from, shifted); }) ==
        "mul: " + in_part("y", "an operand"));
  CHECK(error_of([&] {
          kernel::layer_norm_forward(4, 9, 1e-5f, from, w.data(), nullptr, shifted, a, b);
        }) == "layer_norm_forward: " + in_part("y", "x"));
  CHECK(error_of([&] { kernel::rms_norm_forward(4, 9, 1e-5f, out.data(), from + 9, from, a); }) ==
        "rms_norm_forward: y overlaps weight; it must have memory of its own");
  CHECK(error_of([&] { kernel::rms_norm_forward(4, 9, 1e-5f, from, w.data(), from, from + 5); }) ==
        "rms_norm_forward: rstd overlaps x; it must have memory of its own");
  CHECK(error_of([&] {
          kernel::rms_norm_backward(4, 9, out.data(), w.data(), a, from, shifted, out.data());
        }) == "rms_norm_backward: " + in_part("dx", "dy"));
  CHECK(error_of([&] {
          kernel::rms_norm_backward(4, 9, out.data(), w.data(), from, a, from, out.data());
        }) == "rms_norm_backward: dx overlaps rstd; it must have memory of its own");
  CHECK(error_of([&] { kernel::column_sums(4, 9, from, from + 20); }) ==
        "column_sums: y overlaps x; it must have memory of its own");
  const kernel::RopeShape turn{1, 3, 3, 4, 7, 10000.0, ts::RopePairs::halves, nullptr};
  CHECK(error_of([&] { kernel::rope(turn, kernel::RopeTurn::forward, from, shifted); }) ==
        "rope: " + in_part("y", "x"));
  const std::vector<std::int32_t> targets{1, 8, -1, 0};
  CHECK(error_of([&] {
          kernel::cross_entropy_backward(4, 9, from, a, targets.data(), 1, shifted);
        }) == "cross_entropy_backward: " + in_part("dlogits", "logits"));
  CHECK(error_of([&] {
          kernel::cross_entropy_backward(4, 9, out.data(), from, targets.data(), 1, from);
        }) == "cross_entropy_backward: dlogits overlaps lse; it must have memory of its own");
  CHECK(error_of([&] {
          kernel::cross_entropy_forward(4, 9, from, targets.data(), a, from + 30);
        }) == "cross_entropy_forward: lse overlaps logits; it must have memory of its own");
  CHECK(error_of([&] { kernel::cross_entropy_forward(4, 9, from, targets.data(), from, a); }) ==
        "cross_entropy_forward: losses overlaps logits; it must have memory of its own");
  // In place is right on every path.
  x.pop_back();
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    const auto same = [&](const std::function<void(const float*, float*)>& kernel) {
      Floats y = x;
      kernel(x.data(), out.data());
      kernel(y.data(), y.data());
      CHECK(y == out);
    };
    same([&](const float* p, float* q) { kernel::softmax_forward(4, 9, p, q); });
    same([&](const float* p, float* q) { kernel::softmax_backward(4, 9, x.data(), p, q, 0.0f); });
    same([&](const float* p, float* q) { kernel::log_softmax_forward(4, 9, p, q); });
    same([&](const float* p, float* q) { kernel::gelu_forward(36, p, q); });
    same([&](const float* p, float* q) {
      kernel::rms_norm_forward(4, 9, 1e-5f, p, w.data(), q, a);
    });
    same([&](const float* p, float* q) { kernel::rope(turn, kernel::RopeTurn::forward, p, q); });
  }
}

TEST_CASE("rope and losses: heads of pairs, places that are counted, targets of the vocabulary") {
  kernel::RopeShape s;
  s.tokens = 2;
  s.head_size = 3;
  float x[8] = {}, y[8] = {}, lse[2], losses[2];
  CHECK(error_of([&] { kernel::rope(s, kernel::RopeTurn::forward, x, y); }) ==
        "rope: heads of 3 numbers; pairs are turned, so an even size is right");
  CHECK(error_of([&] { kernel::rope_backward(s, x, y); }) ==
        "rope_backward: heads of 3 numbers; pairs are turned, so an even size is right");
  s.head_size = -2;
  CHECK(error_of([&] { kernel::rope(s, kernel::RopeTurn::forward, x, y); }) ==
        "rope: sizes 1, 2, 1, -2; each must be 0 or more, their product at most 2^60");
  s.head_size = 4;
  s.places = std::numeric_limits<std::int64_t>::max();
  CHECK(error_of([&] { kernel::rope(s, kernel::RopeTurn::forward, x, y); }) ==
        "rope: 2 tokens from place 9223372036854775807 on, with a jump of 0; at most 2^52 of each "
        "are right");
  const std::int32_t targets[] = {3, 4};
  CHECK(error_of([&] { kernel::cross_entropy_forward(2, 4, x, targets, losses, lse); }) ==
        "cross_entropy_forward: target 1 is 4; the vocabulary is 4, a target below that, or below "
        "0 for a row that is left out");
  CHECK(error_of([&] { kernel::cross_entropy_forward(2, 0, x, targets, losses, lse); }) ==
        "cross_entropy_forward: target 0 is 3; the vocabulary is 0, a target below that, or below "
        "0 for a row that is left out");
}
