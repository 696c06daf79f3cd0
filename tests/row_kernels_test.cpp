#include <doctest/doctest.h>

#include "tinyscale.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "kernel_tests.hpp"
#include "long_tests.hpp"

namespace ts = tinyscale;
namespace kernel = tinyscale::kernels;
using kernel_tests::Floats;
using kernel_tests::noise;
using kernel_tests::on_every_path;
using kernel_tests::paths;

namespace {

const float inf = std::numeric_limits<float>::infinity();

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

double worst(const Floats& a, const Floats& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double error = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    most = error <= most || ts::detail::is_nan(most) ? most : error;  // a NaN stays
  }
  return most;
}

double d(float x) { return static_cast<double>(x); }

Floats floats(const std::vector<double>& x) { return Floats(x.begin(), x.end()); }

// O and gradients of attention by the reference bodies.
struct AttentionTruth {
  Floats o, dq, dk, dv;
};

AttentionTruth attention_truth(const kernel::AttentionShape& s, const Floats& q, const Floats& k,
                               const Floats& v, const Floats& d_o) {
  Floats o(q.size());
  std::vector<double> dq(q.size()), dk(k.size()), dv(v.size());
  for (std::int64_t task = 0; task < s.batch * s.heads * s.queries; ++task) {
    const std::int64_t i = task % s.queries, h = task / s.queries % s.heads;
    const std::int64_t b = task / s.queries / s.heads, first = ts::detail::hidden_keys(s, i);
    const std::int64_t seen = ts::detail::visible_keys(s, i) - first;
    const std::int64_t at = b * s.q_batch + i * s.q_stride + h * s.head_size;
    const std::int64_t kv =
        b * s.k_batch + first * s.k_stride + h / (s.heads / s.kv_heads) * s.head_size;
    const float lse = kernel::attention_reference(s, seen, q.data() + at, k.data() + kv,
                                                  v.data() + kv, o.data() + at);
    kernel::attention_backward_reference(s, seen, q.data() + at, k.data() + kv, v.data() + kv,
                                         o.data() + at, lse, d_o.data() + at, dq.data() + at,
                                         dk.data() + kv, dv.data() + kv);
  }
  return {o, floats(dq), floats(dk), floats(dv)};
}

kernel::AttentionShape attention_shape(std::int64_t queries, std::int64_t keys, std::int64_t heads,
                                       std::int64_t kv_heads, std::int64_t head_size, int causal) {
  kernel::AttentionShape s;
  s.batch = 2;
  s.queries = queries;
  s.keys = keys;
  s.heads = heads;
  s.kv_heads = kv_heads;
  s.head_size = head_size;
  s.q_stride = s.o_stride = heads * head_size;
  s.k_stride = s.v_stride = kv_heads * head_size;
  s.q_batch = s.o_batch = queries * s.q_stride;
  s.k_batch = s.v_batch = keys * s.k_stride;
  s.causal = causal;
  s.causal_offset = keys - queries;
  return s;
}

void check_attention(const kernel::AttentionShape& s) {
  const Floats q = noise(s.batch * s.q_batch, 1), k = noise(s.batch * s.k_batch, 2);
  const Floats v = noise(s.batch * s.k_batch, 3), d_o = noise(s.batch * s.q_batch, 4);
  const AttentionTruth t = attention_truth(s, q, k, v, d_o);
  const float nan = std::nanf("");
  Floats o(q.size(), nan), lse(size(s.batch * s.heads * s.queries), nan);
  Floats dq(q.size(), nan), dk(k.size(), nan), dv(v.size(), nan);
  kernel::attention_forward(s, q.data(), k.data(), v.data(), o.data(), lse.data());
  kernel::attention_backward(s, q.data(), k.data(), v.data(), o.data(), lse.data(), d_o.data(),
                             dq.data(), dk.data(), dv.data(), 0.0f);
  CAPTURE(s.queries);
  CAPTURE(s.keys);
  CAPTURE(s.head_size);
  CAPTURE(s.kv_heads);
  CAPTURE(s.causal);
  CAPTURE(s.causal_offset);
  CAPTURE(s.window);
  // A weighted mean of numbers below 1; sums over up to `keys` and `queries * heads` of them.
  const double step = 1.2e-7 * static_cast<double>(s.head_size + 4);
  const double summed = step * std::sqrt(static_cast<double>(s.queries * s.heads / s.kv_heads));
  CHECK(worst(o, t.o) < step);
  CHECK(worst(dq, t.dq) < step);
  CHECK(worst(dk, t.dk) < summed);
  CHECK(worst(dv, t.dv) < summed);
  Floats more = dk, same = dq;  // beta 1 adds
  Floats zero(v.size(), 1.0f);
  kernel::attention_backward(s, q.data(), k.data(), v.data(), o.data(), lse.data(), d_o.data(),
                             same.data(), more.data(), zero.data());
  for (std::size_t i = 0; i < dk.size(); ++i) {
    more[i] -= dk[i];
    zero[i] -= 1.0f;
  }
  CHECK(worst(more, dk) < 4 * summed);
  CHECK(worst(zero, dv) < 4 * summed);
}

}  // namespace

namespace {

struct NegativeExps {  // of x, in place
  std::int64_t n;
  float* x;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t i = 0; i < n; i += L::width) {
      typename L::V v;
      ts::detail::load<L>(x + i, v);
      ts::detail::exp_negative<L>(v, v);
      ts::detail::store<L>(x + i, v);
    }
  }
};

}  // namespace

TEST_CASE("exps for softmax: near the truth on every path, 0 far below, NaN kept") {
  on_every_path([] {
    Floats x(1024 + 16, -inf);
    for (std::size_t i = 0; i < 1024; ++i) {
      x[i] = 0.35f - 0.0853f * static_cast<float>(i);
    }
    x[1024] = std::nanf("");
    x[1026] = -1e30f;
    const Floats before = x;
    ts::detail::run_on_lanes(NegativeExps{static_cast<std::int64_t>(x.size()), x.data()});
    for (std::size_t i = 0; i < 1024; ++i) {
      const double truth = before[i] < -87.683f ? 0.0 : std::exp(d(before[i]));
      // A product that is not fused rounds to 2^-24 of it, and log2 e is within 1.4e-8 of itself.
      const double power = std::fabs(d(before[i])) * 1.4427;
      CHECK(std::fabs(d(x[i]) - truth) <= (1.8e-7 + 0.69315 * 7.4e-8 * power) * truth);
    }
    CHECK(ts::detail::is_nan(d(x[1024])));
    CHECK(x[1025] == 0.0f);
    CHECK(x[1026] == 0.0f);
  });
}

TEST_CASE("attention: every path against float64, for blocks, tails, groups and few queries") {
  on_every_path([] {
    for (const std::int64_t queries : {1, 3, 8, 9, 16, 33, 70}) {
      check_attention(attention_shape(queries, queries, 2, 2, 32, 1));
    }
    check_attention(attention_shape(40, 150, 4, 2, 16, 1));
    check_attention(attention_shape(2, 150, 4, 1, 20, 1));
    check_attention(attention_shape(20, 67, 2, 1, 20, 0));
    check_attention(attention_shape(65, 65, 1, 1, 3, 1));
    check_attention(attention_shape(33, 33, 1, 1, 48, 0));
    check_attention(attention_shape(30, 97, 2, 1, 80, 1));    // diagonals between the tiles
    check_attention(attention_shape(130, 130, 2, 1, 33, 1));  // rows that end inside a vector
    check_attention(attention_shape(520, 520, 4, 2, 4, 1));   // more than a group of blocks
    for (const std::int64_t offset : {-70, -5, 0, 64}) {  // keys that nobody sees, blind queries
      kernel::AttentionShape s = attention_shape(140, 270, 2, 1, 24, 1);
      s.causal_offset = offset;
      check_attention(s);
    }
    kernel::AttentionShape two = attention_shape(516, 530, 2, 1, 4, 1);
    two.causal_offset = -1;
    check_attention(two);
    for (const std::int64_t window : {1, 2, 7, 40, 63, 64, 65, 100, 129, 1000}) {
      for (const std::int64_t queries : {1, 5, 9, 40, 64, 150}) {
        kernel::AttentionShape s = attention_shape(queries, 150, 2, 1, 20, 1);
        s.window = window;  // queries at the end of the keys: the first are seen by none
        check_attention(s);
      }
      kernel::AttentionShape s = attention_shape(140, 200, 2, 2, 5, 1);
      s.window = window;
      s.causal_offset = 3;  // the last keys are seen by none
      check_attention(s);
      for (const std::int64_t queries : {6, 140}) {
        for (const std::int64_t offset : {90, 1500}) {  // some queries, or all, see none
          s = attention_shape(queries, 64, 2, 2, 5, 1);
          s.window = window;
          s.causal_offset = offset;
          check_attention(s);
        }
      }
      s = attention_shape(540, 540, 1, 1, 4, 1);  // two groups of blocks
      s.window = window;
      check_attention(s);
    }
    const kernel::AttentionShape none = attention_shape(0, 9, 2, 1, 8, 1);
    Floats k(size(2 * none.k_batch), 1.0f), dk = k, dv = k;
    kernel::attention_forward(none, nullptr, k.data(), k.data(), nullptr, nullptr);
    kernel::attention_backward(none, nullptr, k.data(), k.data(), nullptr, nullptr, nullptr,
                               nullptr, dk.data(), dv.data(), 0.0f);
    CHECK(dk == Floats(k.size(), 0.0f));
    CHECK(dv == dk);
  });
}

TEST_CASE(
    "attention: a query that sees no key gets zeros; a NaN in a key reaches those who see it") {
  on_every_path([] {
    for (const std::int64_t queries : {4, 40}) {
      kernel::AttentionShape s = attention_shape(queries, queries, 1, 1, 8, 1);
      s.causal_offset = -2;
      const Floats q = noise(2 * s.q_batch, 1), v = noise(2 * s.k_batch, 3);
      Floats k = noise(2 * s.k_batch, 2), o(q.size(), inf), lse(size(2 * queries), inf);
      kernel::attention_forward(s, q.data(), k.data(), v.data(), o.data(), lse.data());
      CHECK(std::count(o.begin(), o.begin() + 16, 0.0f) == 16);
      CHECK(lse[1] == 0.0f);
      CHECK(worst(o, o) == 0.0);
      k[8] = std::nanf("");  // of key 1, which query 3 sees first
      kernel::attention_forward(s, q.data(), k.data(), v.data(), o.data(), lse.data());
      CHECK(ts::detail::is_finite(d(o[16])));
      CHECK(ts::detail::is_nan(d(o[24])));
    }
  });
}

TEST_CASE("attention and norms: threads do not change a bit") {
  const kernel::AttentionShape s = attention_shape(100, 100, 4, 2, 32, 1);
  const Floats q = noise(2 * s.q_batch, 1), k = noise(2 * s.k_batch, 2), w = noise(128, 3);
  Floats results[2][7];
  for (int serial = 0; serial < 2; ++serial) {
    Floats* const r = results[serial];
    r[0] = r[1] = r[4] = Floats(q.size());
    r[2] = r[3] = Floats(k.size());
    r[5] = r[6] = Floats(128);
    Floats lse(size(2 * 4 * 100)), mean(200), rstd(200);
    const auto body = [&] {
      kernel::attention_forward(s, q.data(), k.data(), k.data(), r[0].data(), lse.data());
      kernel::attention_backward(s, q.data(), k.data(), k.data(), r[0].data(), lse.data(), q.data(),
                                 r[1].data(), r[2].data(), r[3].data(), 0.0f);
      kernel::layer_norm_forward(200, 128, 1e-5f, q.data(), w.data(), nullptr, r[4].data(),
                                 mean.data(), rstd.data());
      kernel::layer_norm_backward(200, 128, q.data(), w.data(), mean.data(), rstd.data(), q.data(),
                                  r[4].data(), r[5].data(), r[6].data());
    };
    if (serial == 1) {
      const ts::detail::SerialScope scope;
      body();
    } else {
      body();
    }
  }
  for (int i = 0; i < 7; ++i) {
    CHECK(results[0][i] == results[1][i]);
  }
}

TEST_CASE("linear cross-entropy: as the kernels it is made of, in blocks of rows and vocabulary") {
  const std::int64_t shapes[][3] = {{1, 5, 7}, {13, 20, 1100}, {600, 8, 5}, {33, 16, 64}};
  on_every_path([&shapes] {
    for (const auto& shape : shapes) {
      const std::int64_t rows = shape[0], width = shape[1], vocab = shape[2];
      const Floats x = noise(rows * width, 1), w = noise(vocab * width, 2);
      std::vector<std::int32_t> targets(size(rows));
      for (std::size_t i = 0; i < targets.size(); ++i) {
        targets[i] = i % 5 == 3 ? -1 : static_cast<std::int32_t>((i * 977) % size(vocab));
      }
      Floats expected(size(rows)), losses(size(rows)), lse(size(rows)), expected_lse = lse;
      kernel::linear_cross_entropy_reference(rows, width, vocab, x.data(), w.data(), targets.data(),
                                             expected.data(), expected_lse.data());
      const float nan = std::nanf(""), scale = 0.25f;
      Floats dx(x.size(), nan), dw(w.size(), nan), dx2(x.size(), 1.0f), dw2(w.size(), nan);
      const kernel::LinearCrossEntropy both{rows,      width,          vocab, x.data(),
                                            w.data(),  targets.data(), scale, dx.data(),
                                            dw.data(), 0.0f,           0.0f};
      kernel::linear_cross_entropy(both, losses.data(), lse.data());
      CAPTURE(rows);
      const double near = 2.4e-7 * static_cast<double>(width + 8);
      CHECK(worst(losses, expected) < near);
      CHECK(worst(lse, expected_lse) < near);
      Floats logits(size(rows * vocab)), dlogits(logits.size(), nan), other(size(rows));
      using kernel::Trans;
      kernel::gemm(Trans::no, Trans::yes, rows, vocab, width, x.data(), width, w.data(), width,
                   0.0f, logits.data(), vocab);
      kernel::cross_entropy_forward(rows, vocab, logits.data(), targets.data(), losses.data(),
                                    other.data());
      CHECK(worst(losses, expected) < near);
      CHECK(worst(other, lse) < near);
      kernel::cross_entropy_backward_reference(rows, vocab, logits.data(), lse.data(),
                                               targets.data(), scale, dlogits.data(), 0.0f);
      kernel::gemm_reference(Trans::no, Trans::no, rows, width, vocab, dlogits.data(), vocab,
                             w.data(), width, 0.0f, dx2.data(), width);
      kernel::gemm_reference(Trans::yes, Trans::no, vocab, width, rows, dlogits.data(), vocab,
                             x.data(), width, 0.0f, dw2.data(), width);
      CHECK(worst(dx, dx2) < near);
      CHECK(worst(dw, dw2) < near * std::sqrt(static_cast<double>(rows)));
      kernel::linear_cross_entropy_forward(rows, width, vocab, x.data(), w.data(), targets.data(),
                                           losses.data(), other.data());
      CHECK(other == lse);
      kernel::LinearCrossEntropy added = both;  // to what is in dx; no dw
      added.dx = dx2.data();
      added.dw = nullptr;
      added.beta_x = 1.0f;
      kernel::linear_cross_entropy(added, losses.data(), lse.data());
      for (std::size_t i = 0; i < dx.size(); ++i) {
        dx2[i] -= dx[i];
      }
      CHECK(worst(dx, dx2) < 2 * near);
    }
  });
}

TEST_CASE("softmax of whole vectors past the caches: the bits of its rows in small parts") {
  for (const std::int64_t cols : {16, 2048, 16384}) {
    const std::int64_t rows = 8400000 / cols + 3, part = rows / 7 + 1;  // 33.6 MB
    const ts::Tensor x = ts::randn({rows, cols}, 1);
    on_every_path([&] {
      ts::Tensor whole = ts::zeros({rows, cols}), parts = ts::zeros({rows, cols});
      REQUIRE(ts::detail::before_line(whole.data()) == 0);
      ts::kernels::softmax_forward(rows, cols, x.data(), whole.data());
      for (std::int64_t row = 0; row < rows; row += part) {
        ts::kernels::softmax_forward(std::min(part, rows - row), cols, x.data() + row * cols,
                                     parts.data() + row * cols);
      }
      CHECK(std::equal(whole.data(), whole.data() + rows * cols, parts.data()));
    });
  }
}

TEST_CASE("softmax, cross-entropy: a row has the same bits alone, first, last or between others") {
  for (const std::int64_t cols : {1, 7, 8, 16, 37, 256, 2051, 2 * 16384 + 21}) {
    const std::int64_t rows = cols > 3000 ? 3 : 11;
    const Floats x = noise(rows * cols, 31);
    const std::vector<std::int32_t> targets(size(rows), 0);
    Floats y(x.size()), alone(x.size()), losses(size(rows)), lse(losses), in_place = x;
    CAPTURE(cols);
    on_every_path([&] {
      kernel::softmax_forward(rows, cols, x.data(), y.data());
      in_place = x;
      kernel::softmax_forward(rows, cols, in_place.data(), in_place.data());
      kernel::cross_entropy_forward(rows, cols, x.data(), targets.data(), losses.data(),
                                    lse.data());
      for (std::int64_t i = 0; i < rows; ++i) {
        float loss = 0.0f, one = 0.0f;
        const float* const row = x.data() + i * cols;
        kernel::softmax_forward(1, cols, row, alone.data() + i * cols);
        kernel::cross_entropy_forward(1, cols, row, targets.data(), &loss, &one);
        CHECK(loss == losses[size(i)]);
        CHECK(one == lse[size(i)]);
      }
      CHECK(y == alone);
      CHECK(in_place == alone);
      Floats truth(x.size());
      kernel::softmax_reference(rows, cols, x.data(), truth.data());
      CHECK(worst(y, truth) <= 4e-7);  // of numbers up to 1: e^x within 2e-7, sums in parts
    });
  }
}

TEST_CASE("a large result, written past the caches, has the bits of its rows in small parts") {
  const std::int64_t rows = 601, cols = 13999, part = 100, n = rows * cols;     // 33.7 MB
  const std::size_t begin = 3, size = static_cast<std::size_t>(n) + 2 * begin;  // of no cache line
  const ts::Tensor x = ts::randn({rows, cols}, 1), dy = ts::randn({rows, cols}, 2);
  const ts::Tensor w = ts::randn({cols}, 3), b = ts::randn({cols}, 4);
  std::vector<std::int32_t> targets(static_cast<std::size_t>(rows), 7);
  targets[1] = -1;
  targets[2] = static_cast<std::int32_t>(cols) + 5;  // of other columns
  std::vector<float> lse(static_cast<std::size_t>(rows), 12.0f), mean(lse), rstd(lse);
  typedef std::function<void(std::int64_t, std::int64_t, float*)> Kernel;  // rows, first number
  const Kernel kernels[] = {
      [&](std::int64_t r, std::int64_t at, float* y) {
        ts::kernels::softmax_forward(r, cols, x.data() + at, y);
      },
      [&](std::int64_t r, std::int64_t at, float* y) {
        ts::kernels::softmax_backward(r, cols, x.data() + at, dy.data() + at, y, 0.0f);
      },
      [&](std::int64_t r, std::int64_t at, float* y) {
        const std::int64_t row = at / cols;
        ts::kernels::cross_entropy_backward(r, cols, x.data() + at, lse.data() + row,
                                            targets.data() + row, 0.5f, y, 0.0f);
      },
      [&](std::int64_t r, std::int64_t at, float* y) {
        ts::kernels::layer_norm_forward(r, cols, 1e-5f, x.data() + at, w.data(), b.data(), y,
                                        mean.data(), rstd.data());
      },
      [&](std::int64_t r, std::int64_t at, float* y) {
        ts::kernels::rms_norm_forward(r, cols, 1e-5f, x.data() + at, w.data(), y, rstd.data());
      }};
  on_every_path([&] {
    for (const Kernel& kernel : kernels) {
      std::vector<float> whole(size, 9.0f), parts(size, 9.0f);
      kernel(rows, 0, whole.data() + begin);
      for (std::int64_t row = 0; row < rows; row += part) {
        kernel(std::min(part, rows - row), row * cols, parts.data() + begin + row * cols);
      }
      std::size_t differs = 0;
      while (differs < size && whole[differs] == parts[differs]) {
        ++differs;
      }
      CAPTURE(&kernel - kernels);
      CAPTURE(differs);
      CHECK(differs == size);
      CHECK(whole[begin - 1] == 9.0f);
      CHECK(whole[begin + static_cast<std::size_t>(n)] == 9.0f);
    }
  });
}

TEST_CASE("norms: every width against float64; beta 0 does not read") {
  on_every_path([] {
    for (const std::int64_t cols : {1, 3, 16, 17, 64, 100, 129, 768}) {
      const std::int64_t rows = 5;
      const Floats x = noise(rows * cols, 1), w = noise(cols, 3);
      const Floats b = noise(cols, 4), dy = noise(rows * cols, 5);
      Floats y(x.size()), expected(x.size()), mean(5), rstd(5), m(1), s(1);
      kernel::layer_norm_forward(rows, cols, 1e-5f, x.data(), w.data(), b.data(), y.data(),
                                 mean.data(), rstd.data());
      for (std::int64_t i = 0; i < rows; ++i) {
        kernel::norm_reference(cols, 1e-5f, x.data() + i * cols, w.data(), b.data(),
                               expected.data() + i * cols, m.data(), s.data());
        CHECK(mean[size(i)] == doctest::Approx(d(m[0])).epsilon(1e-6).scale(1));
        CHECK(rstd[size(i)] == doctest::Approx(d(s[0])).epsilon(1e-5));
      }
      CAPTURE(cols);
      CHECK(worst(y, expected) < (cols == 1 ? 1e-4 : 2e-6));
      Floats dx(x.size(), std::nanf("")), dx2(x.size(), 0.0f), dw(size(cols)), db(size(cols));
      kernel::layer_norm_backward(rows, cols, x.data(), w.data(), mean.data(), rstd.data(),
                                  dy.data(), dx.data(), dw.data(), db.data(), 0.0f);
      kernel::layer_norm_backward(rows, cols, x.data(), w.data(), mean.data(), rstd.data(),
                                  dy.data(), dx2.data(), dw.data(), db.data());
      CHECK(dx == dx2);
      std::vector<double> dw_sum(size(cols)), db_sum(size(cols));  // twice, as beta 1 adds
      for (std::int64_t i = 0; i < 2 * rows; ++i) {
        const std::int64_t at = i % rows * cols;
        kernel::norm_backward_reference(cols, x.data() + at, w.data(), &mean[size(i % rows)],
                                        &rstd[size(i % rows)], dy.data() + at, dx2.data() + at,
                                        dw_sum.data(), db_sum.data(), 0.0f);
      }
      CHECK(worst(dx, dx2) < (cols == 1 ? 1e-3 : 1e-5));
      CHECK(worst(dw, floats(dw_sum)) < 1e-5);
      CHECK(worst(db, floats(db_sum)) < 2e-6);
      Floats columns(size(cols), std::nanf(""));
      kernel::column_sums(rows, cols, dy.data(), columns.data(), 0.0f);
      kernel::column_sums(rows, cols, dy.data(), columns.data());
      CHECK(worst(columns, db) < 2e-6);
    }
  });
}

TEST_CASE("column sums: whole numbers come out exactly, over 2^20 rows too") {
  on_every_path([] {
    for (const std::int64_t cols : {1, 130, 300}) {
      const std::int64_t rows = cols == 1 ? 1 << 20 : 77;
      Floats x(size(rows * cols)), y(size(cols), 1.0f);
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = static_cast<float>(static_cast<int>(i % 13) - 5);
      }
      Floats expected = y;
      for (std::int64_t j = 0; j < cols; ++j) {
        expected[size(j)] += static_cast<float>(kernel::sum_reference(rows, &x[size(j)], 1, cols));
      }
      kernel::column_sums(rows, cols, x.data(), y.data());
      CHECK(y == expected);
    }
  });
}

TEST_CASE("softmax and cross-entropy: -inf is a hidden entry, NaN stays in its row") {
  on_every_path([] {
    for (const std::int64_t cols : {2, 7, 16, 40}) {
      Floats x = noise(3 * cols, 1), y(x.size());
      x[1] = -inf;
      x[size(cols)] = std::nanf("");
      kernel::softmax_forward(3, cols, x.data(), y.data());
      CHECK(y[1] == 0.0f);
      double sum = 0;
      for (std::int64_t j = 0; j < cols; ++j) {
        sum += d(y[size(j)]);
        CHECK(ts::detail::is_nan(d(y[size(cols + j)])));
        CHECK(ts::detail::is_finite(d(y[size(2 * cols + j)])));
      }
      CHECK(sum == doctest::Approx(1.0).epsilon(1e-6));
      const Floats dy = noise(3 * cols, 2);
      Floats dx(x.size(), std::nanf("")), more(x.size(), 1.0f);
      kernel::softmax_backward(1, cols, y.data(), dy.data(), dx.data(), 0.0f);
      kernel::softmax_backward(1, cols, y.data(), dy.data(), more.data());
      for (std::int64_t j = 0; j < cols; ++j) {
        CHECK(more[size(j)] == doctest::Approx(d(dx[size(j)]) + 1.0).epsilon(1e-6));
      }
    }
  });
}

TEST_CASE(
    "attention: what later keys and values hold, or those before a window, reaches no query") {
  on_every_path([] {
    for (const std::int64_t tokens : {2, 5, 8, 9, 12, 70, 200}) {
      for (const std::int64_t size : {3, 16, 24, 64}) {
        const std::int64_t window = size == 16 ? 0 : size == 3 ? 3 : size == 24 ? 66 : 20;
        const ts::Tensor q = ts::uniform({2, tokens, 2 * size}, 1, -1, 1),
                         k = ts::uniform({2, tokens, size}, 2, -1, 1),
                         v = ts::uniform({2, tokens, size}, 3, -1, 1);
        const Floats clean = ts::attention(q, k, v, 2, 1, ts::Mask::causal, window).values();
        for (const std::int64_t at : {tokens - 1, tokens / 2, tokens / 3 + 1}) {
          for (const float odd : {std::nanf(""), inf, -inf}) {
            CAPTURE(tokens);
            CAPTURE(size);
            CAPTURE(window);
            CAPTURE(at);
            CAPTURE(odd);
            const ts::Tensor k2 = k.clone(), v2 = v.clone();
            ts::fill_(ts::slice(ts::slice(v2, 1, at, at + 1), 2, 0, size, 2), odd);
            ts::fill_(ts::slice(ts::slice(k2, 1, at, at + 1), 2, 1, 2), std::nanf(""));
            const Floats all = ts::attention(q, k, v2, 2, 1, ts::Mask::causal, window).values();
            const Floats both = ts::attention(q, k2, v2, 2, 1, ts::Mask::causal, window).values();
            bool same = true, seen = true;
            for (std::size_t i = 0; i < all.size(); ++i) {
              const std::int64_t row = static_cast<std::int64_t>(i) / (2 * size) % tokens;
              const bool hit = static_cast<std::int64_t>(i) % size % 2 == 0;
              if (row < at || (window > 0 && row >= at + window)) {
                same = same && all[i] == clean[i] && both[i] == clean[i];
              } else {
                seen = seen && std::isfinite(all[i]) != hit && !std::isfinite(both[i]);
              }
            }
            CHECK(same);
            CHECK(seen);
          }
        }
      }
    }
  });
}

TEST_CASE("attention backward: what a query does not see reaches no gradient of it, nor back") {
  on_every_path([] {
    for (const std::int64_t tokens : {2, 7, 9, 70, 140}) {
      for (const std::int64_t size : {3, 16, 24}) {
        const std::int64_t window = size == 16 ? 0 : size == 3 ? 4 : 65;
        const auto gradients = [&](std::int64_t at, int which, float odd, bool all) {
          std::vector<ts::Tensor> x;  // q, k, v, dO; key i stands 3 before query i
          for (int i = 0; i < 4; ++i) {
            x.push_back(ts::uniform({2, tokens + (i % 3 == 0 ? 0 : 3), 2 * size}, 1 + i, -1, 1));
          }
          if (which >= 0) {
            ts::fill_(ts::slice(ts::slice(x[std::size_t(which)], 1, at, at + 1), 2, all ? 0 : 1, 2),
                      odd);
          }
          for (int i = 0; i < 3; ++i) {
            x[std::size_t(i)] = ts::parameter(x[std::size_t(i)]);
          }
          const ts::Tensor y = ts::attention(x[0], x[1], x[2], 2, 2, ts::Mask::causal, window);
          ts::sum(y * x[3]).backward();
          std::vector<Floats> all_of;
          for (int i = 0; i < 3; ++i) {
            all_of.push_back(x[std::size_t(i)].grad().values());
          }
          return all_of;
        };
        const std::vector<Floats> clean = gradients(0, -1, 0.0f, true);
        for (const std::int64_t at : {tokens - 1, tokens / 2, tokens / 3 + 1}) {
          for (int which = 0; which < 4; ++which) {
            for (const float odd : {std::nanf(""), inf, -inf, 3e38f}) {
              CAPTURE(tokens);
              CAPTURE(size);
              CAPTURE(window);
              CAPTURE(at);
              CAPTURE(which);
              CAPTURE(odd);
              const bool by_key = which == 1 || which == 2;
              const std::vector<Floats> odd_ones =
                  gradients(by_key ? at + 3 : at, which, odd, odd < 0);
              bool same = true;
              for (int of = by_key ? 0 : 1; of < (by_key ? 1 : 3); ++of) {
                for (std::size_t i = 0; i < clean[std::size_t(of)].size(); ++i) {
                  const std::int64_t row =
                      static_cast<std::int64_t>(i) / (2 * size) % (tokens + (by_key ? 0 : 3));
                  const std::int64_t ahead = by_key ? row - at : at + 3 - row;
                  const bool seen = ahead >= 0 && (window == 0 || ahead < window);
                  same = same && (seen || std::fabs(odd_ones[std::size_t(of)][i] -
                                                    clean[std::size_t(of)][i]) < 1e-5f);
                }
              }
              CHECK(same);
            }
          }
        }
      }
    }
  });
}

TEST_CASE("cross-entropy: rows of many blocks, whose maximum comes late, against float64") {
  on_every_path([] {
    for (const std::int64_t cols : {1, 17, 511, 513, 1600, 5003}) {
      for (const float slope : {0.0f, 0.02f, -0.02f, 3e5f}) {
        CAPTURE(cols);
        CAPTURE(slope);
        Floats x = noise(2 * cols, 3), losses(2), lse(2), want_losses(2), want(2);
        for (std::int64_t j = 0; j < 2 * cols; ++j) {
          x[size(j)] += slope * static_cast<float>(j % cols);
        }
        x[size(cols)] = slope == 0.0f && cols > 1 ? -inf : x[size(cols)];
        const std::vector<std::int32_t> targets = {0, static_cast<std::int32_t>(cols - 1)};
        kernel::cross_entropy_forward(2, cols, x.data(), targets.data(), losses.data(), lse.data());
        kernel::cross_entropy_reference(2, cols, x.data(), targets.data(), want_losses.data(),
                                        want.data());
        for (std::size_t i = 0; i < 2; ++i) {
          CHECK(std::fabs(d(lse[i]) - d(want[i])) < 3e-7 * (2 + std::fabs(d(want[i]))));
          CHECK(std::fabs(d(losses[i]) - d(want_losses[i])) < 6e-7 * (2 + std::fabs(d(want[i]))));
        }
      }
    }
    Floats hidden(700, -inf), out(2);
    const std::int32_t target = 0;
    kernel::cross_entropy_forward(1, 700, hidden.data(), &target, &out[0], &out[1]);
    CHECK(ts::detail::is_nan(d(out[1])));  // no entry is left
    hidden[699] = 5.0f;
    kernel::cross_entropy_forward(1, 700, hidden.data(), &target, &out[0], &out[1]);
    CHECK(out[1] == 5.0f);
  });
}

TEST_CASE("elementwise: slopes against float64; tails neither read nor write past the end") {
  on_every_path([] {
    for (const std::int64_t n : {1, 5, 15, 16, 17, 31, 2001}) {
      Floats x(size(n + 16), std::nanf("")), dy(x.size(), std::nanf("")), dx(x.size(), 7.0f);
      for (std::int64_t i = 0; i < n; ++i) {
        x[size(i)] = n == 1 ? 0.3f : -10.0f + 20.0f * static_cast<float>(i) / static_cast<float>(n);
        dy[size(i)] = 2.0f;
      }
      kernel::gelu_backward(n, x.data(), dy.data(), dx.data(), 0.0f);
      double worst_gelu = 0, worst_silu = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        const double slope = kernel::gelu_slope_reference(d(x[size(i)]));
        worst_gelu = std::max(worst_gelu, std::fabs(d(dx[size(i)]) - 2.0 * slope));
      }
      kernel::silu_backward(n, x.data(), dy.data(), dx.data(), 0.0f);
      for (std::int64_t i = 0; i < n; ++i) {
        const double slope = kernel::silu_slope_reference(d(x[size(i)]));
        worst_silu = std::max(worst_silu, std::fabs(d(dx[size(i)]) - 2.0 * slope));
      }
      CHECK(worst_gelu < 6e-7);
      CHECK(worst_silu < 2e-6);
      CHECK(std::count(dx.begin() + n, dx.end(), 7.0f) == 16);
    }
  });
}

TEST_CASE("softmax, losses and activations far from 0, and NaN of either sign") {
  on_every_path([] {
    for (const float low : {-100.0f, -9e6f, -1e7f, -1.7e7f, -1e9f, -3e38f}) {
      CAPTURE(low);
      const ts::Tensor x = ts::tensor({1, 3}, {1.0f, low, 1.0f});
      CHECK(ts::softmax(x).values() == Floats{0.5f, 0.0f, 0.5f});
      CHECK(d(ts::cross_entropy(x, {2}).item()) == doctest::Approx(0.693147));
      const ts::Tensor one = ts::full({1, 1}, 1.0f);
      const ts::Tensor w = ts::reshape(x, {3, 1});
      CHECK(d(ts::linear_cross_entropy(one, w, {2}).item()) == doctest::Approx(0.693147));
      const ts::Tensor q = ts::full({1, 9, 1}, 1.0f);
      const ts::Tensor v = ts::tensor({1, 3, 1}, {2.0f, 8.0f, 4.0f});
      const ts::Tensor k = ts::reshape(x, {1, 3, 1});
      CHECK(ts::attention(q, k, v, 1, 1, ts::Mask::none).values() == Floats(9, 3.0f));
      const ts::Tensor p = ts::parameter(x);
      const ts::Tensor y = ts::silu(p) + ts::gelu(p) + ts::gelu_tanh(p);
      CHECK(std::fabs(y.values()[1]) < 1e-30f);
      ts::sum(y).backward();
      CHECK(std::fabs(p.grad().values()[1]) < 3e-7f);
    }
    for (const float sign : {-1.0f, 1.0f}) {
      const float nan = std::copysign(std::numeric_limits<float>::quiet_NaN(), sign);
      const ts::Tensor x = ts::tensor({1, 3}, {1.0f, nan, 1.0f});
      CHECK(ts::detail::is_nan(d(ts::softmax(x).values()[0])));
      CHECK(ts::detail::is_nan(d(ts::cross_entropy(x, {2}).item())));
    }
  });
}

TEST_CASE("argmax: the first largest, -1 where a number is not finite") {
  on_every_path([] {
    for (const std::int64_t n : {1, 2, 7, 16, 17, 100, 511, 512, 513, 1000, 1537, 5000}) {
      for (std::uint64_t seed = 0; seed < 20; ++seed) {
        std::vector<float> x(static_cast<std::size_t>(n));
        for (std::size_t i = 0; i < x.size(); ++i) {
          const double number = 4 * ts::normal01(seed, i);
          x[i] = static_cast<float>(seed % 2 == 0 ? std::round(number) : number);  // ties or none
        }
        CHECK(kernel::argmax(n, x.data()) == kernel::argmax_reference(n, x.data()));
        const std::size_t at = 997 * seed % x.size();
        const float old = x[at];
        for (const float bad : {NAN, INFINITY, -INFINITY}) {
          x[at] = bad;
          CHECK(kernel::argmax(n, x.data()) == -1);
          CHECK(kernel::argmax_reference(n, x.data()) == -1);
        }
        x[at] = old;
      }
    }
    const float least = -std::numeric_limits<float>::max();
    std::vector<float> x(1200, least);
    CHECK(ts::kernels::argmax(1200, x.data()) == 0);
    CHECK(kernel::argmax_reference(1200, x.data()) == 0);
    x[1100] = -1;
    CHECK(ts::kernels::argmax(1200, x.data()) == 1100);
    x.assign(1200, -0.0f);
    x[600] = 0.0f;
    CHECK(ts::kernels::argmax(1200, x.data()) == 0);
  });
  CHECK(ts::kernels::argmax(0, nullptr) == -1);
  CHECK(kernel::argmax_reference(0, nullptr) == -1);
}

TEST_CASE("linear_cross_entropy: no number of a row that is left out reaches a gradient") {
  on_every_path([] {
    // Finite numbers whose logits are not: of -inf and inf the first row's loss would be NaN.
    const ts::Tensor w = ts::parameter(ts::tensor({3, 1}, {-3e38f, 1.0f, 3e38f}));
    const ts::Tensor x = ts::parameter(ts::tensor({2, 1}, {4.0f, 0.0f}));
    const ts::Tensor loss = ts::linear_cross_entropy(x, w, {-1, 1});
    CHECK(d(loss.item()) == doctest::Approx(std::log(3.0)));
    loss.backward();
    CHECK(w.grad().values() == Floats(3, 0.0f));  // the second row is 0
    CHECK(x.grad().values()[0] == 0.0f);
  });
}

TEST_CASE("attention whose first keys are all scored -inf sees the others") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    for (const int t : {8, 9, 40}) {
      const ts::Tensor q = ts::full({1, t, 16}, 1e25f), v = ts::ones({1, 65, 16});
      ts::Tensor k = ts::zeros({1, 65, 16});
      std::fill(k.data(), k.data() + 64 * 16, -1e25f);  // products of -inf, but for the last key
      for (const float y : ts::attention(q, k, v, 1, 1, ts::Mask::none).values()) {
        REQUIRE(y == 1.0f);
      }
    }
  }
}

TEST_CASE("attention to keys that are all scored -inf is NaN") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    for (const int t : {1, 8, 9, 40}) {
      const ts::Tensor q = ts::full({1, t, 16}, 1e25f), v = ts::ones({1, 65, 16});
      for (const float y :
           ts::attention(q, ts::full({1, 65, 16}, -1e25f), v, 1, 1, ts::Mask::none).values()) {
        REQUIRE(std::isnan(y));
      }
    }
  }
}

TEST_CASE("norms of rows whose squares are beyond f32, or below it") {
  on_every_path([] {
    for (const float size : {1e-30f, 1e-20f, 1e20f, 1e30f}) {
      const ts::Tensor small = ts::randn({3, 37}, 1), w = ts::randn({37}, 2),
                       b = ts::randn({37}, 3);
      const ts::Tensor x = small * size, dy = ts::randn({3, 37}, 4);
      const auto close = [](const ts::Tensor& a, const ts::Tensor& expected) {
        return ts::max(ts::abs(a - expected)).item() < 1e-5f;
      };
      for (const bool layer : {true, false}) {
        const auto run = [&](const ts::Tensor& from) {  // and the gradient, at the size of small
          const ts::Tensor p = ts::parameter(from);
          const ts::Tensor y = layer ? ts::layer_norm(p, w, b, 0) : ts::rms_norm(p, w, 0);
          y.backward(dy);
          return ts::stack({y.detach(), p.grad() * (ts::max(from) / ts::max(small)).item()}, 0);
        };
        CHECK(close(run(x), run(small)));
      }
    }
  });
}

TEST_CASE("attention backward: probabilities of scores that round apart are at most 1") {
  on_every_path([] {
    const ts::Tensor q = ts::randn({1, 64, 32}, 1, 1e6f), k = ts::randn({1, 64, 32}, 2, 1e6f);
    const ts::Tensor v = ts::parameter(ts::zeros({1, 64, 32}));
    ts::attention(ts::parameter(q), k, v, 1, 1, ts::Mask::causal).backward(ts::ones({1, 64, 32}));
    for (const float dv : v.grad().values()) {  // a sum of at most 64 probabilities
      REQUIRE(dv >= 0.0f);
      REQUIRE(dv <= 64.0f);
    }
  });
}

namespace {

kernel::AttentionShape square_attention(std::int64_t tokens, std::int64_t batch) {
  kernel::AttentionShape s;
  s.batch = batch;
  s.queries = s.keys = tokens;
  s.heads = 4;
  s.kv_heads = 2;
  s.head_size = 8;
  s.q_stride = s.o_stride = 32;
  s.k_stride = s.v_stride = 16;
  s.q_batch = s.o_batch = tokens * 32;
  s.k_batch = s.v_batch = tokens * 16;
  s.causal = 1;
  return s;
}

}  // namespace

TEST_CASE("attention: in place of the queries, and side by side in one block of memory") {
  on_every_path([] {
    for (const std::int64_t tokens : {1, 4, 9, 200, 600}) {
      CAPTURE(tokens);
      kernel::AttentionShape s = square_attention(tokens, 2);
      const Floats q = noise(2 * tokens * 32, 1), k = noise(2 * tokens * 16, 2);
      const Floats v = noise(2 * tokens * 16, 3), d_o = noise(2 * tokens * 32, 4);
      Floats o(q.size()), lse(size(2 * 4 * tokens)), dq(q.size()), dk(k.size()), dv(k.size());
      Floats in_place = q, dk2(k.size()), dv2(k.size());
      kernel::attention_forward(s, q.data(), k.data(), v.data(), o.data(), lse.data());
      kernel::attention_forward(s, in_place.data(), k.data(), v.data(), in_place.data(),
                                lse.data());
      CHECK(in_place == o);
      kernel::attention_backward(s, q.data(), k.data(), v.data(), o.data(), lse.data(), d_o.data(),
                                 dq.data(), dk.data(), dv.data(), 0.0f);
      const Floats* const inputs[] = {&q, &o, &d_o};
      for (const Floats* const over : inputs) {
        in_place = *over;
        kernel::attention_backward(s, over == &q ? in_place.data() : q.data(), k.data(), v.data(),
                                   over == &o ? in_place.data() : o.data(), lse.data(),
                                   over == &d_o ? in_place.data() : d_o.data(), in_place.data(),
                                   dk2.data(), dv2.data(), 0.0f);
        CHECK(in_place == dq);
        CHECK(dk2 == dk);
        CHECK(dv2 == dv);
      }
      // Rows of q, k, v and o of a token, after each other: by sequences, and sequences in turns.
      for (const bool turns : {false, true}) {
        s.q_stride = s.k_stride = s.v_stride = s.o_stride = turns ? 2 * 96 : 96;
        s.q_batch = s.k_batch = s.v_batch = s.o_batch = turns ? 96 : tokens * 96;
        Floats all(size(2 * tokens * 96));
        const auto at = [&](std::int64_t b, std::int64_t t) {
          return all.data() + b * s.q_batch + t * s.q_stride;
        };
        for (std::int64_t i = 0; i < 2 * tokens; ++i) {
          float* const to = at(i / tokens, i % tokens);
          std::copy_n(q.data() + i * 32, 32, to);
          std::copy_n(k.data() + i * 16, 16, to + 32);
          std::copy_n(v.data() + i * 16, 16, to + 48);
        }
        float* const x = all.data();
        kernel::attention_forward(s, x, x + 32, x + 48, x + 64, lse.data());
        for (std::int64_t i = 0; i < 2 * tokens; ++i) {
          CHECK(std::equal(o.data() + i * 32, o.data() + (i + 1) * 32,
                           at(i / tokens, i % tokens) + 64));
        }
      }
    }
  });
}

TEST_CASE("attention: results over what is read, and heads that share no keys, are refused") {
  kernel::AttentionShape s = square_attention(9, 1);
  Floats q = noise(9 * 32 + 8, 1), k = noise(9 * 32, 2), v = noise(9 * 32, 3), o(9 * 32), lse(36);
  Floats dq(9 * 32), dk(9 * 16), dv(9 * 16);
  const auto forward = [&](float* to, float* to_lse) {
    return error_of(
        [&] { kernel::attention_forward(s, q.data(), k.data(), v.data(), to, to_lse); });
  };
  CHECK(forward(q.data() + 8, lse.data()) ==
        "attention_forward: o overlaps q in part; it must be q itself, number for number, or have "
        "memory of its own");
  s.o_stride = 40;
  CHECK(forward(q.data(), lse.data()) ==
        "attention_forward: o overlaps q in part; it must be q itself, number for number, or have "
        "memory of its own");
  s.o_stride = 32;
  CHECK(forward(k.data(), lse.data()) ==
        "attention_forward: o overlaps k; it must have memory of its own");
  CHECK(forward(v.data(), lse.data()) ==
        "attention_forward: o overlaps v; it must have memory of its own");
  CHECK(forward(o.data(), v.data() + 143) ==
        "attention_forward: lse overlaps v; it must have memory of its own");
  CHECK(forward(o.data(), o.data() + 31) ==
        "attention_forward: lse overlaps o; it must have memory of its own");
  const auto backward = [&](float* to_q, float* to_k, float* to_v) {
    return error_of([&] {
      kernel::attention_backward(s, q.data(), k.data(), v.data(), o.data(), lse.data(), o.data(),
                                 to_q, to_k, to_v);
    });
  };
  CHECK(backward(q.data() + 1, dk.data(), dv.data()) ==
        "attention_backward: dq overlaps q in part; it must be q itself, number for number, or "
        "have memory of its own");
  CHECK(backward(k.data(), dk.data(), dv.data()) ==
        "attention_backward: dq overlaps k; it must have memory of its own");
  CHECK(backward(dq.data(), k.data(), dv.data()) ==
        "attention_backward: dk overlaps k; it must have memory of its own");
  CHECK(backward(dq.data(), dk.data(), o.data() + 5) ==
        "attention_backward: dv overlaps o; it must have memory of its own");
  CHECK(backward(dq.data(), dk.data(), dk.data()) ==
        "attention_backward: dk overlaps dv; it must have memory of its own");
  s.kv_heads = 3;
  CHECK(forward(o.data(), lse.data()) ==
        "attention_forward: 4 heads on 3 of keys and values; each at least 1, and heads a "
        "multiple");
  CHECK(backward(dq.data(), dk.data(), dv.data()) ==
        "attention_backward: 4 heads on 3 of keys and values; each at least 1, and heads a "
        "multiple");
  s.kv_heads = 2;
  s.keys = -9;
  CHECK(forward(o.data(), lse.data()) ==
        "attention_forward: sizes 1, -9, 4, 8; each must be 0 or more, their product at most 2^60");
}

TEST_CASE("linear cross-entropy: no vocabulary, targets outside it, results over what is read") {
  const std::int64_t rows = 40, width = 16, vocab = 1100;
  Floats x = noise(rows * width, 1), w = noise(vocab * width, 2), dx(x.size()), dw(w.size());
  Floats losses(size(rows)), lse(size(rows));
  std::vector<std::int32_t> targets(size(rows), 3);
  const auto run = [&](std::int64_t classes, float* to_x, float* to_w) {
    return error_of([&] {
      kernel::linear_cross_entropy(
          {rows, width, classes, x.data(), w.data(), targets.data(), 1.0f, to_x, to_w, 0.0f, 0.0f},
          losses.data(), lse.data());
    });
  };
  CHECK(run(0, dx.data(), nullptr) ==
        "linear_cross_entropy: a vocabulary of 0; 1 or more is right");
  CHECK(run(-1, dx.data(), nullptr) ==
        "linear_cross_entropy: sizes -1, 16; each must be 0 or more, their product at most 2^60");
  CHECK(run(3, dx.data(), nullptr) ==
        "linear_cross_entropy: target 0 is 3; the vocabulary is 3, a target below that, or below "
        "0 for a row that is left out");
  CHECK(run(vocab, x.data(), dw.data()) ==
        "linear_cross_entropy: dx overlaps x; it must have memory of its own");
  CHECK(run(vocab, x.data() + 1, nullptr) ==
        "linear_cross_entropy: dx overlaps x in part; it must be x itself, number for number, or "
        "have memory of its own");
  CHECK(run(vocab, w.data() + 7, nullptr) ==
        "linear_cross_entropy: dx overlaps w; it must have memory of its own");
  CHECK(run(vocab, dx.data(), w.data()) ==
        "linear_cross_entropy: dw overlaps w; it must have memory of its own");
  CHECK(error_of([&] {
          kernel::linear_cross_entropy_forward(rows, width, vocab, x.data(), w.data(),
                                               targets.data(), x.data() + 9, lse.data());
        }) == "linear_cross_entropy_forward: losses overlaps x; it must have memory of its own");
  CHECK(run(vocab, dx.data(), nullptr) == "no error");
  CHECK(run(vocab, x.data(), nullptr) == "no error");  // in place, without dw
  CHECK(x == dx);
}

// A sum in f32 stops at 2^24 equal terms; a row is summed in parts.
TEST_CASE("rows longer than f32 counts: sums of softmax, norms and losses [slow]") {
  if (!long_tests()) {
    return;  // 800 MB
  }
  const std::int64_t n = (std::int64_t{3} << 25) + 24;
  const std::int32_t target = 5;
  std::vector<float> x(static_cast<std::size_t>(n), 3.0f);
  float loss = 0, lse = 0, mean = 0, rstd = 0;
  const double log_n = std::log(static_cast<double>(n));
  kernel::cross_entropy_forward(1, n, x.data(), &target, &loss, &lse);
  CHECK(static_cast<double>(loss) == doctest::Approx(log_n).epsilon(1e-6));
  {
    const std::vector<float> one(static_cast<std::size_t>(n), 1.0f);
    kernel::layer_norm_forward(1, n, 1e-5f, x.data(), one.data(), nullptr, x.data(), &mean, &rstd);
    CHECK(static_cast<double>(mean) == doctest::Approx(3).epsilon(1e-6));
    CHECK(x[7] == doctest::Approx(0).scale(1).epsilon(1e-3));
  }
  std::fill(x.begin(), x.end(), 3.0f);
  kernel::softmax_forward(1, n, x.data(), x.data());
  CHECK(static_cast<double>(x[9]) * static_cast<double>(n) == doctest::Approx(1).epsilon(1e-6));
}
