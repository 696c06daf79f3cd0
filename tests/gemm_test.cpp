// Matrix products of floats: every path against a sum in double, exact for whole numbers; what
// follows a product, packed weights, batches; wrong arguments.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "error_of.hpp"
#include "kernel_tests.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;
namespace kernel = tinyscale::kernels;
using kernel::Trans;
using Floats = std::vector<float>;
using kernel_tests::paths;
using std::int64_t;

namespace {

Floats noise(int64_t count, unsigned seed) {  // in [-1, 1]
  Floats x(static_cast<std::size_t>(count));
  for (float& v : x) {
    seed = seed * 1664525U + 1013904223U;
    v = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
  }
  return x;
}

Floats whole(int64_t count, unsigned seed) {  // -4 .. 4
  Floats x = noise(count, seed);
  for (float& v : x) {
    v = std::floor(v * 4.5f + 0.5f);
  }
  return x;
}

std::string message(void (*call)()) {
  try {
    call();
  } catch (const ts::Error& e) {
    return e.what();
  }
  return "no error";
}

// What lies between the rows of C must stay as it was, so whole buffers are compared.
struct Case {
  Trans ta, tb;
  int64_t m, n, k, lda, ldb, ldc;
  Floats a, b, c, expected;

  Case(Trans left, Trans right, int64_t rows, int64_t columns, int64_t inner, bool exact = false)
      : ta(left), tb(right), m(rows), n(columns), k(inner) {
    lda = (ta == Trans::no ? k : m) + 3;
    ldb = (tb == Trans::no ? n : k) + 1;
    ldc = n + 2;
    const auto fill = exact ? &whole : &noise;
    a = fill((ta == Trans::no ? m : k) * lda, 1);
    b = fill((tb == Trans::no ? k : n) * ldb, 2);
    c = fill(m * ldc, 3);
    expected = c;
  }
  void reference(float beta) {
    kernel::gemm_reference(ta, tb, m, n, k, a.data(), lda, b.data(), ldb, beta, expected.data(),
                           ldc);
  }
  double worst() const {
    double error = 0.0;
    for (std::size_t i = 0; i < c.size(); ++i) {
      const double here = std::fabs(static_cast<double>(c[i]) - static_cast<double>(expected[i]));
      error = here <= error ? error : here;  // a NaN stays
    }
    return error;
  }
  // K roundings of sums about sqrt(K) / 3 large, in either direction: eps K / 6 to be expected.
  double bound() const { return 1.2e-7 * static_cast<double>(k) + 3e-7; }
};

void check_product(Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, float beta, bool exact) {
  Case x(ta, tb, m, n, k, exact);
  x.reference(beta);
  const Floats before = x.c;
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    x.c = before;
    kernel::gemm(ta, tb, m, n, k, x.a.data(), x.lda, x.b.data(), x.ldb, beta, x.c.data(), x.ldc);
    CAPTURE(m);
    CAPTURE(n);
    CAPTURE(k);
    CHECK(x.worst() <= (exact ? 0.0 : x.bound()));
  }
}

}  // namespace

TEST_CASE("gemm: odd sizes to 70, each transpose and path, whole numbers exact") {
  for (int64_t size = 1; size <= 70; ++size) {
    for (const Trans ta : {Trans::no, Trans::yes}) {
      for (const Trans tb : {Trans::no, Trans::yes}) {
        const float beta = size % 2 == 0 ? 0.0f : 1.0f;
        check_product(ta, tb, size, 71 - size, size % 13 + 1, beta, true);
        check_product(ta, tb, size % 9 + 1, size, 7 * size % 70 + 1, beta, false);
      }
    }
  }
}

TEST_CASE("gemm: sizes that take each way through the kernels") {
  for (const Trans tb : {Trans::no, Trans::yes}) {
    for (const int64_t m : {1, 2, 3, 4, 7, 12, 13, 25, 64, 65, 97, 130}) {
      check_product(Trans::no, tb, m, 331, 261, 1.0f, false);  // B is larger than 288 KB
      check_product(Trans::no, tb, m, 140, 1030, 0.0f, true);  // three passes over C
    }
    check_product(Trans::yes, tb, 40, 1100, 70, 0.0f, true);
    check_product(Trans::yes, tb, 101, 19, 4001, 1.0f, false);
    check_product(Trans::yes, tb, 131, 259, 1031, 1.0f, false);  // A is packed
    check_product(Trans::no, tb, 1027, 75, 17, 1.0f, true);      // B is packed at once
    check_product(Trans::no, tb, 110, 460, 1030, 1.0f, true);    // C is walked in two parts
    check_product(Trans::no, tb, 3, 4111, 2050, 1.0f, true);     // B comes from memory
    check_product(Trans::no, tb, 19, 4099, 2050, 0.0f, true);
  }
}

TEST_CASE("gemm: the same bits on any number of threads") {
  for (const Trans ta : {Trans::no, Trans::yes}) {
    for (const int64_t m : {1, 5, 40, 203}) {
      Case x(ta, Trans::no, m, 460, 1030);
      const Floats before = x.c;
      for (const ts::CpuPath path : paths()) {
        const ts::detail::PathScope scope(path);
        Floats one;
        for (const int threads : {1, 2, 3}) {
          const ts::ThreadScope some(threads);
          x.c = before;
          kernel::gemm(ta, Trans::no, m, x.n, x.k, x.a.data(), x.lda, x.b.data(), x.ldb, 1.0f,
                       x.c.data(), x.ldc);
          one = threads == 1 ? x.c : one;
          CAPTURE(m);
          CHECK(x.c == one);
        }
      }
    }
  }
}

TEST_CASE("gemm: few rows and a B larger than the caches") {
  for (const int64_t m : {2, 5, 7, 8, 14, 19, 37, 64}) {  // of 7 rows more than the third cache
    for (const float beta : {0.0f, 1.0f}) {
      if ((m == 7 || m == 37) && beta == 0.0f) {
        continue;
      }
      const int64_t n = m == 7 ? 8231 : m == 37 ? 4111 : m == 64 ? 523 : 1031;
      Case x(Trans::no, Trans::no, m, n, 1021, true);
      x.reference(beta);
      const Floats before = x.c;
      for (const ts::CpuPath path : paths()) {
        const ts::detail::PathScope scope(path);
        x.c = before;
        kernel::gemm(x.ta, x.tb, m, x.n, x.k, x.a.data(), x.lda, x.b.data(), x.ldb, beta,
                     x.c.data(), x.ldc);
        CAPTURE(m);
        CHECK(x.worst() == 0.0);
        if (m < 37) {
          const kernel::PackedWeights w = kernel::pack_weights(x.tb, x.k, x.n, x.b.data(), x.ldb);
          x.c = before;
          kernel::gemm_packed(m, x.a.data(), x.lda, w, beta, x.c.data(), x.ldc);
          CHECK(x.worst() == 0.0);
        }
      }
    }
  }
}

TEST_CASE("gemm: infinity and NaN go where they belong and nowhere else") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    for (const int64_t m : {1, 3, 5, 14, 100}) {
      const int64_t n = 601, k = 131;
      Case x(Trans::no, Trans::no, m, n, k);
      x.b[static_cast<std::size_t>(7 * x.ldb + 600)] = std::numeric_limits<float>::infinity();
      x.a[static_cast<std::size_t>((m - 1) * x.lda + 130)] = std::nanf("");
      kernel::gemm(x.ta, x.tb, m, n, k, x.a.data(), x.lda, x.b.data(), x.ldb, 0.0f, x.c.data(),
                   x.ldc);
      int64_t wrong = 0;
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          const float y = x.c[static_cast<std::size_t>(i * x.ldc + j)];
          wrong += std::isnan(y) != (i == m - 1) || (i < m - 1 && std::isinf(y) != (j == 600));
        }
      }
      CAPTURE(m);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("gemm_fused: scale, bias, activation, what was before it, residual") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    for (const int64_t m : {1, 5, 20, 110}) {
      for (const int64_t n : {9, 70, 300}) {
        for (int kind = 0; kind < 4; ++kind) {
          Case x(Trans::no, kind % 2 == 0 ? Trans::no : Trans::yes, m, n,
                 m == 20 || n == 70 ? 1030 : 40);
          const Floats bias = noise(n, 4), residual = noise(m * (n + 5), 5);
          Floats kept(static_cast<std::size_t>(m * (n + 1)), 0.0f), kept_expected = kept;
          kernel::GemmEpilogue e;
          e.scale = 0.125f;
          e.bias = kind == 3 ? nullptr : bias.data();
          e.activation = static_cast<kernel::Activation>(kind);
          e.residual = kind == 2 ? nullptr : residual.data();
          e.ld_residual = n + 5;
          e.before = kept_expected.data();
          e.ld_before = n + 1;
          x.reference(1.0f);
          for (int64_t i = 0; i < m * n; ++i) {
            float* const c = &x.expected[static_cast<std::size_t>(i / n * x.ldc + i % n)];
            kernel::gemm_epilogue_reference(e, i / n, i % n, c);
          }
          e.before = kept.data();
          kernel::gemm_fused(x.ta, x.tb, m, n, x.k, x.a.data(), x.lda, x.b.data(), x.ldb, 1.0f,
                             x.c.data(), x.ldc, e);
          CAPTURE(m);
          CAPTURE(n);
          CAPTURE(kind);
          CHECK(x.worst() <= x.bound());
          double worst = 0.0;
          for (std::size_t i = 0; i < kept.size(); ++i) {
            worst = std::max(worst, std::fabs(static_cast<double>(kept[i] - kept_expected[i])));
          }
          CHECK(worst <= x.bound());
        }
      }
    }
  }
}

TEST_CASE("gemm_fused, gemm_packed: a residual alone is as added afterwards, bit for bit") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    for (const int64_t m : {1, 5, 20, 97, 240}) {
      for (const int64_t n : {9, 70, 128, 333}) {
        for (const int64_t k : {0, 40, 600, 1030}) {
          Case x(n == 70 ? Trans::yes : Trans::no, m == 97 ? Trans::yes : Trans::no, m, n, k);
          const int64_t apart = n + 5;
          const Floats residual = noise(m * apart, 5);
          kernel::GemmEpilogue e;
          e.residual = residual.data();
          e.ld_residual = apart;
          const auto add = [&] {
            for (int64_t i = 0; i < m * n; ++i) {
              x.expected[static_cast<std::size_t>(i / n * x.ldc + i % n)] +=
                  residual[static_cast<std::size_t>(i / n * apart + i % n)];
            }
          };
          const auto forget = [&] {  // what was there is not read
            for (int64_t i = 0; i < m * n; ++i) {
              x.c[static_cast<std::size_t>(i / n * x.ldc + i % n)] = NAN;
            }
          };
          CAPTURE(m);
          CAPTURE(n);
          CAPTURE(k);
          kernel::gemm(x.ta, x.tb, m, n, k, x.a.data(), x.lda, x.b.data(), x.ldb, 0.0f,
                       x.expected.data(), x.ldc);
          add();
          forget();
          kernel::gemm_fused(x.ta, x.tb, m, n, k, x.a.data(), x.lda, x.b.data(), x.ldb, 0.0f,
                             x.c.data(), x.ldc, e);
          CHECK(x.c == x.expected);
          if (x.ta == Trans::no) {
            const kernel::PackedWeights w = kernel::pack_weights(x.tb, k, n, x.b.data(), x.ldb);
            kernel::gemm_packed(m, x.a.data(), x.lda, w, 0.0f, x.expected.data(), x.ldc);
            add();
            forget();
            kernel::gemm_packed(m, x.a.data(), x.lda, w, 0.0f, x.c.data(), x.ldc, e);
            CHECK(x.c == x.expected);
          }
        }
      }
    }
  }
}

TEST_CASE("gemm_packed: as gemm, for any number of rows") {
  for (const Trans tb : {Trans::no, Trans::yes}) {
    for (const int64_t n : {5, 64, 333}) {
      for (const int64_t m : {1, 6, 33, 97, 200}) {
        Case x(Trans::no, tb, m, n, 600, true);
        x.reference(1.0f);
        const Floats before = x.c;
        for (const ts::CpuPath path : paths()) {
          const ts::detail::PathScope scope(path);
          const kernel::PackedWeights w = kernel::pack_weights(tb, x.k, n, x.b.data(), x.ldb);
          x.c = before;
          kernel::gemm_packed(m, x.a.data(), x.lda, w, 1.0f, x.c.data(), x.ldc);
          CAPTURE(m);
          CAPTURE(n);
          CHECK(x.worst() == 0.0);
        }
      }
    }
  }
  const kernel::PackedWeights empty = kernel::pack_weights(Trans::no, 0, 3, nullptr, 3);
  Floats c(6, 7.0f);
  kernel::gemm_packed(2, nullptr, 0, empty, 0.0f, c.data(), 3);
  CHECK(c == Floats(6, 0.0f));
}

TEST_CASE("gemm_batched: blocks apart, side by side, or with a shared B") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    const int64_t batch = 12, m = 17, n = 8, k = 9;
    const Floats a = whole(batch * m * k, 1), b = whole(batch * k * n, 2);
    Floats apart(static_cast<std::size_t>(batch * m * n)), beside = apart;
    kernel::gemm_batched(batch, Trans::no, Trans::no, m, n, k, a.data(), k, m * k, b.data(), n,
                         k * n, 0.0f, apart.data(), n, m * n);
    kernel::gemm_batched(batch, Trans::no, Trans::no, m, n, k, a.data(), k, m * k, b.data(), n, 0,
                         0.0f, beside.data(), batch * n, n);
    Floats expected(static_cast<std::size_t>(m * n));
    for (int64_t x = 0; x < batch; ++x) {
      kernel::gemm_reference(Trans::no, Trans::no, m, n, k, a.data() + x * m * k, k,
                             b.data() + x * k * n, n, 0.0f, expected.data(), n);
      CHECK(std::equal(expected.begin(), expected.end(), apart.begin() + x * m * n));
      kernel::gemm_reference(Trans::no, Trans::no, m, n, k, a.data() + x * m * k, k, b.data(), n,
                             0.0f, expected.data(), n);
      for (int64_t i = 0; i < m; ++i) {
        CHECK(std::equal(expected.begin() + i * n, expected.begin() + (i + 1) * n,
                         beside.begin() + i * batch * n + x * n));
      }
    }
  }
}

TEST_CASE("gemm: threads do not change a bit, whatever the way through the kernels") {
  for (const Trans tb : {Trans::no, Trans::yes}) {
    for (const int64_t m : {1, 2, 9, 30, 70, 200, 409}) {
      Case x(m == 409 ? Trans::yes : Trans::no, tb, m, m == 409 ? 280 : 1100, 961);
      kernel::gemm(x.ta, tb, m, x.n, x.k, x.a.data(), x.lda, x.b.data(), x.ldb, 1.0f, x.c.data(),
                   x.ldc);
      {
        const ts::detail::SerialScope serial;
        kernel::gemm(x.ta, tb, m, x.n, x.k, x.a.data(), x.lda, x.b.data(), x.ldb, 1.0f,
                     x.expected.data(), x.ldc);
      }
      CAPTURE(m);
      CHECK(x.c == x.expected);
    }
  }
}

TEST_CASE("gemm: nothing to do needs no memory") {
  kernel::gemm(Trans::no, Trans::no, 0, 5, 3, nullptr, 3, nullptr, 5, 0.0f, nullptr, 5);
  kernel::gemm(Trans::no, Trans::no, 5, 0, 3, nullptr, 3, nullptr, 0, 1.0f, nullptr, 0);
  float c[4] = {1, 2, 3, 4};
  kernel::gemm(Trans::no, Trans::no, 2, 2, 0, nullptr, 0, nullptr, 2, 1.0f, c, 2);
  CHECK(c[3] == 4.0f);
  kernel::gemm(Trans::no, Trans::no, 2, 2, 0, nullptr, 0, nullptr, 2, 0.0f, c, 2);
  CHECK(c[3] == 0.0f);
}

TEST_CASE("gemm: one product of all threads' columns side by side with its operand is right") {
  Floats x = whole(8 * 12, 1), y = x, w = whole(6 * 6, 2);  // rows of 12: A in 0..5, C in 6..11
  kernel::gemm(Trans::no, Trans::no, 8, 6, 6, x.data(), 12, w.data(), 6, 0.0f, x.data() + 6, 12);
  kernel::gemm_reference(Trans::no, Trans::no, 8, 6, 6, y.data(), 12, w.data(), 6, 0.0f,
                         y.data() + 6, 12);
  CHECK(x == y);
}

TEST_CASE("gemm: wrong arguments are named") {
  static float x[64] = {};
  CHECK(message([] { kernel::gemm(Trans::no, Trans::no, 1, 1, 1, x, 1, x + 1, 1, 0.0f, x, 0); }) ==
        "gemm: C overlaps A; it must have memory of its own");
  CHECK(message([] { kernel::gemm(Trans::no, Trans::no, -1, 2, 2, x, 2, x, 2, 0.0f, x, 2); }) ==
        "gemm: -1 rows of 2 numbers, 2 apart, are no matrix in memory; sizes must be from 0 to "
        "2^60");
  CHECK(message([] {
          const int64_t large = int64_t{1} << 40;
          kernel::gemm(Trans::no, Trans::no, large, 1, large, x, large, x, 1, 0.0f, x, 1);
        }) ==
        "gemm: 1099511627776 rows of 1099511627776 numbers, 1099511627776 apart, are no matrix in "
        "memory; sizes must be from 0 to 2^60");
  CHECK(message([] {
          kernel::gemm(Trans::no, Trans::no, 2, 2, 2, x, 2, x + 8, 2, 0.5f, x + 16, 2);
        }) == "gemm: beta is 0.5; it must be 0 or 1");
  CHECK(message([] {
          kernel::gemm(Trans::no, Trans::no, 2, 3, 2, x, 2, x + 8, 3, 0.0f, x + 16, 2);
        }) == "gemm: rows of C are 2 apart; they must be at least n = 3");
  CHECK(message([] {
          kernel::gemm(Trans::no, Trans::no, 2, 2, 2, x, 2, nullptr, 2, 0.0f, x + 16, 2);
        }) == "gemm: B is null; m, n, k are 2, 2, 2");
  CHECK(message([] {
          kernel::gemm(Trans::no, Trans::no, 2, 2, 2, x, 2, x + 8, 2, 0.0f, x + 11, 2);
        }) == "gemm: C overlaps B; it must have memory of its own");
  CHECK(message([] {
          kernel::GemmEpilogue e;
          e.residual = x + 16;
          e.ld_residual = 2;
          kernel::gemm_fused(Trans::no, Trans::no, 2, 2, 2, x, 2, x + 8, 2, 0.0f, x + 16, 2, e);
        }) == "gemm_fused: C overlaps before or residual; each must have memory of its own");
  static int place = 0;
  for (const int here : {2, 9, 33}) {  // in A, in B, in the residual
    CAPTURE(here);
    place = here;
    CHECK(message([] {
            kernel::GemmEpilogue e;
            e.before = x + place;
            e.residual = x + 32;
            e.ld_before = e.ld_residual = 2;
            kernel::gemm_fused(Trans::yes, Trans::no, 2, 2, 2, x, 2, x + 8, 2, 0.0f, x + 16, 2, e);
          }) == "gemm_fused: before overlaps A, B or residual; it must have memory of its own");
  }
  CHECK(message([] {
          kernel::GemmEpilogue e;
          e.before = x + 32;
          kernel::gemm_fused(Trans::no, Trans::no, 2, 2, 2, x, 2, x + 8, 2, 0.0f, x + 16, 2, e);
        }) ==
        "gemm_fused: rows of before and residual are 0 and 0 apart; they must be at least n = 2");
  CHECK(message([] { kernel::pack_weights(Trans::no, 2, 2, nullptr, 2); }) ==
        "pack_weights: B is null; k, n are 2, 2");
  CHECK(message([] {
          kernel::gemm_batched(3, Trans::no, Trans::no, 2, 2, 2, x, 2, 4, x + 16, 2, 0, 0.0f,
                               x + 32, 2, 3);
        }) == "gemm_batched: matrices of C are 3 apart and overlap; each takes 4");
  CHECK(message([] {
          kernel::gemm_batched(3, Trans::no, Trans::no, 2, 2, 2, x, 2, 4, x + 40, 2, 0, 0.0f, x + 8,
                               2, 4);
        }) == "gemm_batched: matrix 0 of C overlaps matrix 2 of A; it must have memory of its own");
  CHECK(message([] {
          kernel::gemm_batched(3, Trans::no, Trans::no, 2, 2, 2, x, 2, 4, x + 24, 2, 0, 0.0f,
                               x + 16, 2, 4);
        }) == "gemm_batched: matrix 2 of C overlaps matrix 0 of B; it must have memory of its own");
  kernel::gemm_batched(2, Trans::no, Trans::no, 2, 2, 2, x, 8, 2, x + 32, 2, 4, 0.0f, x + 4, 8,
                       2);  // side by side in rows of one length
  if (ts::cpu().path != ts::CpuPath::portable) {
    const kernel::PackedWeights w = kernel::pack_weights(Trans::no, 2, 2, x, 2);
    const ts::detail::PathScope scope(ts::CpuPath::portable);
    CHECK_THROWS_WITH_AS(
        kernel::gemm_packed(2, x + 8, 2, w, 0.0f, x + 16, 2),
        ts::detail::cat({"gemm_packed: the weights were packed for the path ",
                         ts::name_of(ts::cpu().path), " and portable is in use; pack them again"})
            .c_str(),
        ts::Error);
  }
}

TEST_CASE("gemm: rows shorter than they are apart, or one over and over") {
  const Floats a = whole(16, 1), b = whole(16, 2);
  Floats c(16), expected(16);
  CHECK(error_of([&] {
          kernel::gemm(Trans::no, Trans::no, 4, 4, 4, a.data(), 2, b.data(), 4, 0.0f, c.data(), 4);
        }) ==
        "gemm: rows of A are 2 apart; they must be at least their length, 4, or 0 for one row over "
        "and over");
  CHECK(error_of([&] {
          kernel::gemm(Trans::no, Trans::yes, 4, 4, 4, a.data(), 4, b.data(), 3, 0.0f, c.data(), 4);
        }) ==
        "gemm: rows of B are 3 apart; they must be at least their length, 4, or 0 for one row over "
        "and over");
  kernel::gemm(Trans::no, Trans::no, 1, 4, 4, a.data(), 1, b.data(), 4, 0.0f, c.data(), 1);
  kernel::gemm_reference(Trans::no, Trans::no, 1, 4, 4, a.data(), 4, b.data(), 4, 0.0f,
                         expected.data(), 4);
  CHECK(c == expected);
  kernel::gemm(Trans::no, Trans::no, 4, 4, 4, a.data(), 0, b.data(), 4, 0.0f, c.data(), 4);
  kernel::gemm_reference(Trans::no, Trans::no, 4, 4, 4, a.data(), 0, b.data(), 4, 0.0f,
                         expected.data(), 4);
  CHECK(c == expected);
}

TEST_CASE("gemm_fused: a bias in C or before, and activations that are none") {
  Floats a = whole(16, 1), b = whole(16, 2), c(16), before(16);
  kernel::GemmEpilogue e;
  const auto run = [&] {
    return error_of([&] {
      kernel::gemm_fused(Trans::no, Trans::no, 4, 4, 4, a.data(), 4, b.data(), 4, 0.0f, c.data(), 4,
                         e);
    });
  };
  e.bias = c.data() + 15;
  CHECK(run() == "gemm_fused: C overlaps bias; it must have memory of its own");
  e.bias = before.data();
  e.before = before.data();
  e.ld_before = 4;
  CHECK(run() == "gemm_fused: before overlaps bias; it must have memory of its own");
  e.before = nullptr;
  e.activation = static_cast<kernel::Activation>(9);
  CHECK(run() == "gemm_fused: activation 9; 0 to 3 are right: none, gelu, gelu_tanh, silu");
  CHECK(c == Floats(16));
  const kernel::PackedWeights w = kernel::pack_weights(Trans::no, 4, 4, b.data(), 4);
  CHECK(error_of([&] { kernel::gemm_packed(4, a.data(), 4, w, 0.0f, c.data(), 4, e); }) ==
        "gemm_packed: activation 9; 0 to 3 are right: none, gelu, gelu_tanh, silu");
}

TEST_CASE("gemm_batched: what overlaps is found without a look at every pair") {
  // Many matrices side by side in the rows of one block: A, then C, or each beside its own.
  const int64_t batch = 20000, m = 2;
  const float two = 2;
  for (const int64_t step : {1, 2}) {
    Floats x(static_cast<std::size_t>(2 * m * batch), 3.0f);
    float* const c = x.data() + (step == 1 ? batch : 1);
    kernel::gemm_batched(batch, Trans::no, Trans::no, m, 1, 1, x.data(), 2 * batch, step, &two, 1,
                         0, 0.0f, c, 2 * batch, step);
    CHECK(std::count(x.begin(), x.end(), 6.0f) == m * batch);
  }
  // Any layout: as looking at every pair finds.
  std::uint64_t seed = 0;
  const auto random = [&](int64_t n) {
    return static_cast<int64_t>(static_cast<double>(ts::uniform01(7, seed++)) *
                                static_cast<double>(n));
  };
  static float memory[8192];
  int refused = 0;
  for (int i = 0; i < 4000; ++i) {
    const int64_t count = 2 + random(4), rows = 1 + random(3), columns = 1 + random(3);
    const int64_t ld = columns + random(12);
    ts::detail::StoredRows c{memory + 4096, rows, columns, ld, 4}, a = c;
    a.at = memory + 4096 + random(200) - 100;
    a.rows = 1 + random(3);
    a.columns = 1 + random(3);
    a.stride = random(2) == 0 ? ld : a.columns + random(12);
    const int64_t by_c = random(40), by_a = random(40) - 10;
    const auto shares = [](const ts::detail::StoredRows& one, const ts::detail::StoredRows& other) {
      for (int64_t x = 0; x < one.rows * one.columns * other.rows * other.columns; ++x) {
        const int64_t r = x % one.rows, j = x / one.rows % one.columns;
        const int64_t y = x / (one.rows * one.columns), r2 = y % other.rows, j2 = y / other.rows;
        if (static_cast<const float*>(one.at) + r * one.stride + j ==
            static_cast<const float*>(other.at) + r2 * other.stride + j2) {
          return true;
        }
      }
      return false;
    };
    std::string near;  // the first pair that may share memory, which is refused where one does
    bool some = false;
    for (int64_t p = 0; p < count; ++p) {
      for (int64_t q = 0; q < (by_a == 0 ? 1 : count); ++q) {
        ts::detail::StoredRows one = c, other = a;
        one.at = static_cast<const float*>(c.at) + p * by_c;
        other.at = static_cast<const float*>(a.at) + q * by_a;
        if (near.empty() && ts::detail::gemm_overlap("gemm", one, other)) {
          near = ts::detail::cat({"gemm_batched: matrix ", p, " of C overlaps matrix "});
        }
        some = some || shares(one, other);
      }
    }
    const std::string found =
        error_of([&] { ts::detail::check_batches(count, c, by_c, a, by_a, "A"); });
    refused += found == "no error" ? 0 : 1;
    REQUIRE((found != "no error" || !some));
    REQUIRE((found == "no error" || (!near.empty() && found.find(near) == 0)));
  }
  CHECK(refused > 1000);
  CHECK(refused < 3500);
}
