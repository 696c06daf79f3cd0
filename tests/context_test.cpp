#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

TEST_CASE("places of tokens: one stretch, two, and what is left from a token on") {
  const ts::TokenPlaces plain = 5;
  CHECK(plain.at(0) == 5);
  CHECK(plain.at(7) == 12);
  CHECK(plain.before_jump(9) == 9);
  const ts::TokenPlaces zigzag = {2, 2, 8};  // 2 3 | 12 13
  const std::int64_t expected[4] = {2, 3, 12, 13};
  for (std::int64_t t = 0; t < 4; ++t) {
    CHECK(zigzag.at(t) == expected[t]);
    for (std::int64_t u = 0; t + u < 4; ++u) {
      CHECK(zigzag.from(t).at(u) == expected[t + u]);
    }
  }
  CHECK(zigzag.before_jump(4) == 2);
  CHECK(zigzag.before_jump(1) == 1);
  CHECK(zigzag.from(3).before_jump(1) == 1);
}

TEST_CASE("dropout: a part of the tokens gets its part of the mask") {
  const std::int64_t b = 3, t = 8, d = 6;
  const ts::Tensor x = ts::ones({b, t, d});
  const ts::Tensor whole = ts::dropout(x, 0.4f, 9, 2 * t * d);  // sequences 2, 3, 4
  for (const ts::TokenPlaces& places :
       {ts::TokenPlaces(0), ts::TokenPlaces(3), ts::TokenPlaces(1, 2, 4)}) {
    const std::int64_t n = places.jump != 0 ? 3 : places.first != 0 ? 4 : t;
    const ts::Tensor part = ts::dropout(ts::ones({b, n, d}), 0.4f, 9, places, t, 2);
    for (std::int64_t i = 0; i < b * n * d; ++i) {
      const std::int64_t sequence = i / (n * d), token = i / d % n;
      CHECK(part.data()[i] == whole.at({sequence, places.at(token), i % d}));
    }
  }
  CHECK(ts::dropout(x, 0, 9, 0, 9, 0).data() == x.data());
  CHECK(error_of([&] { ts::dropout(x, 0.4f, 9, 1, 8, 0); }) ==
        "dropout: x is [3, 8, 6], its tokens at places 1 to 8 of sequences of 8; right is "
        "[B, T, D] and places within their sequences");
  CHECK(error_of([&] { ts::dropout(x, 1.0f, 9, 0, 8, 0); }) ==
        "dropout: p is 1; right is 0 <= p < 1");
}

TEST_CASE("context_places, tokens_at: every token on one device, in order of what is said") {
  for (const ts::ContextParallel kind :
       {ts::ContextParallel::ring, ts::ContextParallel::ulysses, ts::ContextParallel::gathered}) {
    for (const int n : {1, 2, 3, 4, 8}) {
      const std::int64_t length = 2 * n * 5, local = length / n;
      std::vector<std::int32_t> ids, seen(static_cast<std::size_t>(2 * length), 0);
      for (std::int32_t i = 0; i < 2 * length; ++i) {
        ids.push_back(i);
      }
      for (int d = 0; d < n; ++d) {
        const ts::TokenPlaces places = ts::context_places(kind, d, n, length);
        for (const std::int32_t id : ts::tokens_at(ids, length, places, local)) {
          ++seen[static_cast<std::size_t>(id)];
        }
        double pairs = 0;
        for (std::int64_t t = 0; t < local; ++t) {
          pairs += static_cast<double>(places.at(t) + 1);
        }
        CHECK(ts::causal_pairs(places, local) == pairs);
        if (kind != ts::ContextParallel::ulysses) {
          CHECK(pairs == static_cast<double>(length * (length + 1) / 2 / n));
        }
      }
      CHECK(seen == std::vector<std::int32_t>(seen.size(), 1));
    }
  }
  CHECK(ts::tokens_at({0, 1, 2, 3, 4, 5, 6, 7}, 8,
                      ts::context_places(ts::ContextParallel::ring, 1, 2, 8),
                      4) == std::vector<std::int32_t>({2, 3, 4, 5}));
  CHECK(error_of([] { ts::context_places(ts::ContextParallel::gathered, 0, 4, 20); }) ==
        "context_places: device 0 of 4, sequences of 20 tokens by gathered; right is a device of "
        "0 to 3 and a multiple of 8 tokens (two chunks a device)");
  CHECK(error_of([] { ts::context_places(ts::ContextParallel::ulysses, 4, 4, 20); }) ==
        "context_places: device 4 of 4, sequences of 20 tokens by ulysses; right is a device of "
        "0 to 3 and a multiple of 4 tokens");
  CHECK(error_of([] {
          ts::tokens_at({1, 2, 3, 4, 5, 6}, 3, 2, 2);
        }) ==
        "tokens_at: 6 ids in sequences of 3, 2 tokens of each from place 2; whole sequences and "
        "places within them are right");
}

#if !defined(TINYSCALE_NO_THREADS)

namespace {

const ts::ContextParallel kinds[] = {ts::ContextParallel::ring, ts::ContextParallel::ulysses,
                                     ts::ContextParallel::gathered};

struct Case {
  std::int64_t batch = 1, length = 8, heads = 1, kv_heads = 1, size = 4;
  ts::Mask mask = ts::Mask::causal;
  std::int64_t window = 0;
  ts::RingOptions options = ts::RingOptions();
  ts::Tensor q, k, v, weight;

  void fill() {
    q = ts::randn({batch, length, heads * size}, 1);
    k = ts::randn({batch, length, kv_heads * size}, 2);
    v = ts::randn({batch, length, kv_heads * size}, 3);
    weight = ts::randn({batch, length, heads * size}, 4);
  }
};

ts::Tensor part_of(const ts::Tensor& x, const ts::TokenPlaces& places, std::int64_t n) {
  return ts::tokens_at(x, 1, places, n);
}

ts::Tensor attend(ts::Device& d, ts::ContextParallel kind, const Case& c, const ts::Tensor& q,
                  const ts::Tensor& k, const ts::Tensor& v) {
  return ts::context_attention(d, kind, q, k, v, c.heads, c.kv_heads, "context", c.mask, c.options,
                               c.window);
}

ts::TokenPlaces places_of(ts::ContextParallel kind, const Case& c, int rank, int n) {
  return c.options.zigzag ? ts::context_places(kind, rank, n, c.length)
                          : ts::TokenPlaces(rank * c.length / n);
}

// Forward and backward on every device; keeps y, dq, dk, dv.
ts::MeshRun run_case(ts::ContextParallel kind, const Case& c, int n, bool backward = true) {
  const ts::Mesh mesh(ts::machine("h100", {n}), {{"context", n}});
  return mesh.run([&](ts::Device& d) {
    const ts::TokenPlaces places = places_of(kind, c, d.rank(), n);
    const std::int64_t local = c.length / n;
    const ts::Tensor q = ts::parameter(part_of(c.q, places, local));
    const ts::Tensor k = ts::parameter(part_of(c.k, places, local));
    const ts::Tensor v = ts::parameter(part_of(c.v, places, local));
    const ts::Tensor y = attend(d, kind, c, q, k, v);
    d.keep("y", y);
    if (backward) {
      ts::sum(y * part_of(c.weight, places, local)).backward();
      d.keep("dq", q.grad());
      d.keep("dk", k.grad());
      d.keep("dv", v.grad());
    }
  });
}

double worst(const ts::Tensor& a, const ts::Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  const std::vector<float> x = a.values(), y = b.values();
  double most = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    most = std::fmax(most, std::fabs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
  }
  return most;
}

struct Whole {
  ts::Tensor y, dq, dk, dv;

  explicit Whole(const Case& c) {
    const ts::Tensor q = ts::parameter(c.q), k = ts::parameter(c.k), v = ts::parameter(c.v);
    y = ts::attention(q, k, v, c.heads, c.kv_heads, c.mask, c.window);
    ts::sum(y * c.weight).backward();
    dq = q.grad();
    dk = k.grad();
    dv = v.grad();
  }
};

void check_equal(ts::ContextParallel kind, const Case& c, int n, double bound) {
  const Whole whole(c);
  const ts::MeshRun run = run_case(kind, c, n);
  const std::int64_t local = c.length / n;
  for (int rank = 0; rank < n; ++rank) {
    CAPTURE(rank);
    const ts::TokenPlaces places = places_of(kind, c, rank, n);
    CHECK(worst(run.kept(rank, "y"), part_of(whole.y, places, local)) < bound);
    CHECK(worst(run.kept(rank, "dq"), part_of(whole.dq, places, local)) < bound);
    CHECK(worst(run.kept(rank, "dk"), part_of(whole.dk, places, local)) < 4 * bound);
    CHECK(worst(run.kept(rank, "dv"), part_of(whole.dv, places, local)) < 4 * bound);
  }
}

}  // namespace

TEST_CASE("ring, Ulysses and gathered attention are one device's, gradients too") {
  for (const ts::ContextParallel kind : kinds) {
    for (const int n : {1, 2, 3, 4, 8}) {
      for (const ts::Mask mask : {ts::Mask::causal, ts::Mask::none}) {
        const std::int64_t shapes[][4] = {// batch, chunk, heads, kv heads
                                          {1, 1, n, n},
                                          {2, 3, 2 * n, n},
                                          {1, 17, 3 * n, n}};
        for (const auto& shape : shapes) {
          CAPTURE(ts::name_of(kind));
          CAPTURE(n);
          CAPTURE(shape[1]);
          CAPTURE(static_cast<int>(mask));
          Case c;
          c.batch = shape[0];
          c.length = 2 * n * shape[1];
          c.heads = shape[2];
          c.kv_heads = shape[3];
          c.mask = mask;
          c.fill();
          check_equal(kind, c, n, 4e-6);
        }
      }
    }
  }
}

TEST_CASE("ring and gathered attention need no whole heads; the ring may have single stretches") {
  for (const ts::ContextParallel kind :
       {ts::ContextParallel::ring, ts::ContextParallel::gathered}) {
    for (const bool zigzag : {true, false}) {
      Case c;
      c.batch = 2;
      c.length = 4 * 66;  // more than a block of the kernel
      c.heads = 6;
      c.kv_heads = 2;
      c.size = 8;
      c.options.zigzag = zigzag || kind == ts::ContextParallel::gathered;
      c.fill();
      check_equal(kind, c, 4, 1e-5);
      c.mask = ts::Mask::none;
      check_equal(kind, c, 4, 1e-5);
    }
  }
  Case c;
  c.length = 9;  // 3 tokens a device: odd
  c.options.zigzag = false;
  c.fill();
  check_equal(ts::ContextParallel::ring, c, 3, 4e-6);
}

TEST_CASE("windows: ring, Ulysses and gathered attention are one device's, and multiply as many") {
  for (const ts::ContextParallel kind : kinds) {
    for (const bool zigzag : {true, false}) {
      for (const int n : {1, 2, 4}) {
        for (const std::int64_t window : {1, 2, 5, 11, 12, 13, 30, 1000}) {
          CAPTURE(ts::name_of(kind));
          CAPTURE(zigzag);
          CAPTURE(n);
          CAPTURE(window);
          Case c;
          c.batch = 2;
          c.length = n * 24;
          c.heads = 2 * n;
          c.kv_heads = n;
          c.window = window;
          c.options.zigzag = zigzag || kind != ts::ContextParallel::ring;
          c.fill();
          check_equal(kind, c, n, 4e-6);
          const ts::MeshRun run = run_case(kind, c, n);
          const bool heads = kind == ts::ContextParallel::ulysses;
          double sum = 0;
          for (int rank = 0; rank < n; ++rank) {
            const ts::TokenPlaces places = heads ? 0 : places_of(kind, c, rank, n);
            double pairs = 0;
            for (std::int64_t t = 0; t < (heads ? c.length : c.length / n); ++t) {
              pairs += static_cast<double>(std::min(places.at(t) + 1, window));
            }
            CHECK(ts::causal_pairs(places, heads ? c.length : c.length / n, window) == pairs);
            const auto wide = static_cast<double>(c.batch * c.heads * c.size / (heads ? n : 1));
            CHECK(run.counters(rank).matmul_flops == (4 + 10) * pairs * wide);
            const ts::ContextBytes sent =
                ts::context_attention_bytes(kind, n, c.batch, c.length, c.heads * c.size,
                                            c.kv_heads * c.size, 4, window, c.options.zigzag);
            CHECK(run.bytes_sent(rank) == sent.forward + sent.backward);
            sum += pairs;
          }
          CHECK(sum == (heads ? n : 1) * ts::causal_pairs(0, c.length, window));
        }
      }
    }
  }
  Case c;  // more than a block of the kernel
  c.length = 4 * 132;
  c.heads = c.kv_heads = 4;
  c.window = 100;
  c.fill();
  for (const ts::ContextParallel kind : kinds) {
    check_equal(kind, c, 4, 1e-5);
  }
}

TEST_CASE("bytes of context attention are the formulas', exactly") {
  for (const ts::ContextParallel kind : kinds) {
    for (const int n : {1, 2, 3, 4, 8}) {
      CAPTURE(ts::name_of(kind));
      CAPTURE(n);
      Case c;
      c.batch = 2;
      c.length = 2 * n * 4;
      c.heads = 2 * n;
      c.kv_heads = n;
      c.fill();
      const ts::ContextBytes formula = ts::context_attention_bytes(
          kind, n, c.batch, c.length, c.heads * c.size, c.kv_heads * c.size);
      const ts::MeshRun forward = run_case(kind, c, n, false), both = run_case(kind, c, n);
      for (int rank = 0; rank < n; ++rank) {
        CHECK(forward.bytes_sent(rank) == formula.forward);
        CHECK(both.bytes_sent(rank) == formula.forward + formula.backward);
      }
    }
  }
  // 2 b c h_kv a round; 4 all-to-alls of b s h / N; 2 b s h_kv (N-1)/N
  const ts::ContextBytes ring =
      ts::context_attention_bytes(ts::ContextParallel::ring, 4, 3, 64, 32, 8, 2);
  CHECK(ring.forward == 3 * 2 * 3 * 16 * 8 * 2);
  CHECK(ring.backward == 2 * ring.forward);
  const ts::ContextBytes ulysses =
      ts::context_attention_bytes(ts::ContextParallel::ulysses, 4, 3, 64, 32, 32, 2);
  CHECK(ulysses.forward == 4 * 3 * 64 * 32 / 4 * 2 * 3 / 4);
  const ts::ContextBytes gathered =
      ts::context_attention_bytes(ts::ContextParallel::gathered, 4, 3, 64, 32, 8, 2);
  CHECK(gathered.forward == 2 * 3 * 64 * 8 * 3 / 4 * 2);
  CHECK(gathered.backward == gathered.forward);
}

TEST_CASE("a ring under a window goes the rounds in which somebody sees a key, and no others") {
  for (const bool zigzag : {true, false}) {
    const ts::ContextParallel cut =
        zigzag ? ts::ContextParallel::ring : ts::ContextParallel::ulysses;
    for (const int n : {1, 2, 3, 4, 7, 8}) {
      const std::int64_t each = 6, length = n * each;
      for (std::int64_t window = 0; window <= length + 1; ++window) {
        std::vector<int> rounds;
        for (int r = 0; r < n; ++r) {
          bool sees = false;
          for (int me = 0; me < n; ++me) {
            const ts::TokenPlaces mine = ts::context_places(cut, me, n, length);
            const ts::TokenPlaces theirs = ts::context_places(cut, (me + n - r) % n, n, length);
            for (std::int64_t i = 0; i < each * each; ++i) {
              const std::int64_t back = mine.at(i / each) - theirs.at(i % each);
              sees = sees || (back >= 0 && (window == 0 || back < window));
            }
          }
          if (sees) {
            rounds.push_back(r);
          }
        }
        CAPTURE(zigzag);
        CAPTURE(n);
        CAPTURE(window);
        CHECK(ts::ring_rounds(zigzag, n, length, window) == rounds);
      }
    }
  }
  CHECK(ts::ring_rounds(true, 8, 1 << 20, 4096) == std::vector<int>{0, 1, 7});
  CHECK(ts::ring_rounds(false, 8, 1 << 20, INT64_MAX).size() == 8);
  CHECK(ts::ring_rounds(true, 8, 4, 1).size() == 1);
  CHECK(ts::context_attention_bytes(ts::ContextParallel::ring, 8, 1, 4, 8, 8).forward ==
        7 * 2 * 16);
  CHECK_THROWS_WITH_AS(ts::ring_rounds(true, 0, 4, -1),
                       "ring_rounds: 0 devices, sequences of 4 tokens, a window of -1; a device or "
                       "more and a window of 0 (none) or more are right",
                       ts::Error);
  CHECK_THROWS_WITH_AS(ts::token_groups(ts::ContextParallel::ring, 1, 1, 1, 5, 1, 2),
                       "token_groups: 5 tokens of a device over tensor 2; a number of ranks that "
                       "divides them is right",
                       ts::Error);
  CHECK_THROWS_AS(ts::token_groups(ts::ContextParallel::ring, 1, 1, 1, 4, 1, 8), ts::Error);
}

TEST_CASE("a ring of eight devices under windows is one device's attention") {
  for (const bool zigzag : {true, false}) {
    for (const std::int64_t window : {1, 2, 5, 6, 11, 20, 40}) {
      CAPTURE(zigzag);
      CAPTURE(window);
      Case c;
      c.batch = 2;
      c.length = 8 * 10;
      c.heads = 2;
      c.kv_heads = 1;
      c.window = window;
      c.options.zigzag = zigzag;
      c.fill();
      check_equal(ts::ContextParallel::ring, c, 8, 4e-6);
      const ts::ContextBytes sent =
          ts::context_attention_bytes(ts::ContextParallel::ring, 8, c.batch, c.length,
                                      c.heads * c.size, c.kv_heads * c.size, 4, window, zigzag);
      CHECK(run_case(ts::ContextParallel::ring, c, 8).bytes_sent(3) ==
            sent.forward + sent.backward);
    }
  }
}

TEST_CASE("context attention is predicted from one device, bytes by formula") {
  Case c;
  c.length = 64;
  c.heads = c.kv_heads = 4;
  c.fill();
  for (const ts::ContextParallel kind : kinds) {
    const ts::Mesh mesh(ts::machine("h100", {4}), {{"context", 4}});
    const ts::MeshPrediction predicted = mesh.predict([&](ts::Device& d) {
      const ts::TokenPlaces places = places_of(kind, c, d.rank(), 4);
      attend(d, kind, c, part_of(c.q, places, 16), part_of(c.k, places, 16),
             part_of(c.v, places, 16));
    });
    double bytes = 0;
    for (const ts::PredictedCall& call : predicted.calls) {
      bytes += call.bytes;
    }
    CHECK(bytes == ts::context_attention_bytes(kind, 4, 1, 64, 16, 16).forward);
  }
}

TEST_CASE("zigzag gives every device the same FLOPs, single stretches do not") {
  for (const int n : {2, 4, 8}) {
    Case c;
    c.batch = 2;
    c.length = 2 * n * 3;
    c.heads = 2 * n;
    c.kv_heads = n;
    c.fill();
    const double all = static_cast<double>(c.batch * c.heads * c.size);  // per pair: 4 forward
    for (const ts::ContextParallel kind : kinds) {
      CAPTURE(ts::name_of(kind));
      const ts::MeshRun run = run_case(kind, c, n);
      const double share = static_cast<double>(c.length * (c.length + 1)) / 2 / n;
      for (int rank = 0; rank < n; ++rank) {
        CHECK(run.counters(rank).matmul_flops == (4 + 10) * share * all);
      }
    }
    c.options.zigzag = false;
    const ts::MeshRun run = run_case(ts::ContextParallel::ring, c, n);
    const std::int64_t local = c.length / n;
    double sum = 0;
    for (int rank = 0; rank < n; ++rank) {
      const double flops = run.counters(rank).matmul_flops;
      CHECK(flops == (4 + 10) * all * ts::causal_pairs(rank * local, local));
      sum += flops;
    }
    const double last = run.counters(n - 1).matmul_flops;
    CHECK(last * n / sum > 2.0 - 1.0 / n - 0.1);  // nearly twice the mean
  }
}

TEST_CASE("ring merges in bf16 lose what f32 keeps, and more with every device") {
  double before = 0;
  for (const int n : {2, 4, 8}) {
    Case c;
    c.length = 128;
    c.heads = 2;
    c.kv_heads = 2;
    c.size = 16;
    c.fill();
    const Whole whole(c);
    double errors[2];
    for (const ts::DType merge : {ts::DType::f32, ts::DType::bf16}) {
      c.options.merge = merge;
      const ts::MeshRun run = run_case(ts::ContextParallel::ring, c, n);
      double most = 0, square = 0;
      for (int rank = 0; rank < n; ++rank) {
        const ts::TokenPlaces places = places_of(ts::ContextParallel::ring, c, rank, n);
        most = std::fmax(most, worst(run.kept(rank, "dk"), part_of(whole.dk, places, 128 / n)));
        const ts::Tensor off = run.kept(rank, "dk") - part_of(whole.dk, places, 128 / n);
        square += static_cast<double>(ts::sum(off * off).item());
      }
      errors[merge == ts::DType::bf16 ? 1 : 0] = std::sqrt(square);
      CHECK(most < (merge == ts::DType::f32 ? 1e-5 : 0.1));
    }
    MESSAGE(n << " devices: f32 " << errors[0] << ", bf16 " << errors[1]);
    CHECK(errors[1] > 100 * errors[0]);
    CHECK(errors[1] > before);
    before = errors[1];
  }
}

TEST_CASE("rounds of the ring hide behind compute when it is long enough") {
  Case c;
  c.batch = 2;
  c.length = 256;
  c.heads = 4;
  c.kv_heads = 2;
  c.size = 16;
  c.fill();
  for (const int n : {2, 4, 8}) {
    for (const bool backward : {false, true}) {
      CAPTURE(n);
      CAPTURE(backward);
      const ts::MeshRun run = run_case(ts::ContextParallel::ring, c, n, backward);
      const auto waiting = [](const ts::MeshRun& timed) {
        double most = 0;
        for (const ts::TimedDevice& device : timed.timeline.devices) {
          most = std::fmax(most, device.waiting);
        }
        return most;
      };
      CHECK(waiting(run) > 0);  // so short a sequence hides little on this chip
      ts::Machine slow = run.machine();
      slow.chip.flops_bf16 = slow.chip.flops_f32 = 1e10;
      CHECK(waiting(run.on(slow)) == 0);
    }
  }
}

namespace {

ts::ModelConfig small_model(const char* name) {
  ts::ModelConfig c = ts::config(name);
  c.layers = 2;
  c.width = 32;
  c.heads = 8;
  c.kv_heads = 4;
  c.head_size = 4;
  c.hidden = 48;
  c.context = 32;
  c.vocabulary = 40;
  return c;
}

// A copy of the model with leaves of its own.
ts::Transformer twin(const ts::Transformer& model) {
  ts::Transformer copy(model.config, 0);
  for (std::size_t i = 0; i < copy.parameters.size(); ++i) {
    copy.parameters[i].value = ts::parameter(model.parameters[i].value);
  }
  return copy;
}

}  // namespace

TEST_CASE("a transformer over context devices has one device's loss and gradients") {
  for (const char* name : {"nano", "nano-llama"}) {
    const ts::Transformer model(small_model(name), 3);
    const std::int64_t batch = 2, length = 24;
    std::vector<std::int32_t> ids, targets;
    for (std::uint64_t i = 0; i < 2 * 24; ++i) {
      ids.push_back(static_cast<std::int32_t>(ts::random_below(5, i, 40)));
      targets.push_back(static_cast<std::int32_t>(ts::random_below(6, i, 40)));
    }
    ts::Hooks plain;
    plain.dropout = 0.3;
    plain.dropout_seed = 11;
    plain.first_sequence = 4;
    const ts::Transformer one = twin(model);
    const ts::Tensor loss = one.loss(ids, targets, batch, length, plain);
    loss.backward();
    for (const ts::ContextParallel kind : kinds) {
      for (const bool two_axes : {false, true}) {
        CAPTURE(name);
        CAPTURE(ts::name_of(kind));
        CAPTURE(two_axes);
        const ts::Mesh mesh =
            two_axes ? ts::Mesh(ts::machine("h100", {2, 2}), {{"context_1", 2}, {"context_2", 2}})
                     : ts::Mesh(ts::machine("h100", {4}), {{"context", 4}});
        const ts::Axes axes = two_axes ? ts::Axes({"context_1", "context_2"}) : ts::Axes("context");
        const ts::MeshRun run = mesh.run([&](ts::Device& d) {
          const ts::Transformer own = twin(model);
          ts::Hooks hooks = plain;
          ts::detail::add_context_hooks(hooks, d, axes, kind, own.config, length);
          const ts::Tensor part = own.loss(ts::tokens_at(ids, length, hooks.places, length / 4),
                                           ts::tokens_at(targets, length, hooks.places, length / 4),
                                           batch, length / 4, hooks);
          part.backward();
          d.keep("loss", d.all_reduce(part.detach(), axes, ts::Reduce::mean));
          for (const ts::Parameter& p : own.parameters) {
            d.keep(p.name, d.all_reduce(p.value.grad(), axes, ts::Reduce::mean));
          }
        });
        for (int rank = 0; rank < 4; ++rank) {
          CHECK(std::fabs(run.kept(rank, "loss").item() - loss.item()) < 2e-6f);
          for (const ts::Parameter& p : one.parameters) {
            CAPTURE(p.name);
            CHECK(worst(run.kept(rank, p.name), p.value.grad()) < 1e-6);
          }
        }
      }
    }
  }
}

TEST_CASE("a ring of single stretches is placed as it computes") {
  const ts::Transformer model(small_model("nano-llama"), 3);
  std::vector<std::int32_t> ids;
  for (std::uint64_t i = 0; i < 24; ++i) {
    ids.push_back(static_cast<std::int32_t>(ts::random_below(5, i, 40)));
  }
  const ts::Tensor whole = model.forward(ids, 1, 24);
  const ts::Mesh mesh(ts::machine("h100", {3}), {{"context", 3}});
  const ts::MeshRun run = mesh.run([&](ts::Device& d) {
    ts::RingOptions options;
    options.zigzag = false;
    ts::Hooks hooks;
    ts::detail::add_context_hooks(hooks, d, "context", ts::ContextParallel::ring, model.config, 24,
                                  options);
    d.keep("y", model.forward(ts::tokens_at(ids, 24, hooks.places, 8), 1, 8, hooks));
  });
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(worst(run.kept(rank, "y"), ts::slice(whole, 1, 8 * rank, 8 * rank + 8)) < 2e-6);
  }
}

TEST_CASE("learned positions: a part of the tokens, and the end of the context") {
  const ts::Transformer model(small_model("nano"), 3);
  ts::Hooks hooks;
  hooks.places = hooks.stream = {3, 1, 28};
  CHECK(error_of([&] {
          model.forward({1, 2}, 1, 2, hooks);
        }) == "forward: 2 tokens from position 3 to 32; the context of nano is 32");
  hooks.places = hooks.stream = {3, 1, 27};
  // sequence parallelism: of the tokens that attention sees, the stream has the second alone
  hooks.stream = hooks.places.from(1);
  hooks.embedding = [](const ts::Tensor& table, const std::vector<std::int32_t>& ids,
                       const ts::Shape& shape) {
    return ts::embedding(table, {ids.back()}, {shape[0], 1});
  };
  const std::vector<float> x = model.embed({1, 2}, 1, 2, hooks).values();
  ts::Hooks alone;
  alone.places = alone.stream = 31;
  CHECK(x == model.embed({2}, 1, 1, alone).values());
}

TEST_CASE("context attention says what is wrong") {
  const auto failure = [](const std::function<void(ts::Device&)>& program) {
    const ts::Mesh mesh(ts::machine("h100", {2}), {{"context", 2}});
    const std::string text = error_of([&] { mesh.run(program); });
    const std::string before = "mesh.run: devices 0, 1 threw: ";
    const std::size_t end = text.find('\n');
    return text.substr(0, before.size()) == before ? text.substr(before.size(), end - before.size())
                                                   : text;
  };
  const ts::Tensor x = ts::ones({1, 3, 8}), longer = ts::ones({1, 4, 8});
  const std::string even = ", an even number: two chunks of the sequence";
  const std::string ends = " keys on each of 2 devices of context; right is as many keys";
  CHECK(failure([&](ts::Device& d) {
          ts::ring_attention(d, x, x, x, 2, 2, "context", ts::Mask::causal);
        }) == "ring_attention: 3 queries and 3" + ends + even);
  CHECK(failure([&](ts::Device& d) {
          ts::ring_attention(d, x, longer, longer, 2, 2, "context", ts::Mask::none);
        }) == "ring_attention: 3 queries and 4" + ends);
  CHECK(failure([&](ts::Device& d) {
          ts::gathered_attention(d, x, x, x, 2, 2, "context", ts::Mask::causal);
        }) == "gathered_attention: 3 queries and 3" + ends + even);
  CHECK(failure([&](ts::Device& d) {
          ts::gathered_attention(d, x, longer, longer, 2, 2, "context", ts::Mask::none);
        }) == "gathered_attention: 3 queries and 4" + ends);
  const std::string whole =
      " over 2 devices of context; each device has whole heads, so multiples of 2 are right (ring "
      "and gathered have no such limit)";
  CHECK(failure([&](ts::Device& d) {
          ts::ulysses_attention(d, longer, longer, longer, 1, 1, "context", ts::Mask::none);
        }) == "ulysses_attention: 1 heads and 1 kv heads" + whole);
  CHECK(failure([&](ts::Device& d) {
          const ts::Tensor one = ts::ones({1, 4, 4});
          ts::ulysses_attention(d, longer, one, one, 2, 1, "context", ts::Mask::none);
        }) == "ulysses_attention: 2 heads and 1 kv heads" + whole);
  for (const ts::ContextParallel kind : kinds) {
    Case c;
    c.heads = 3;
    CHECK(failure([&](ts::Device& d) { attend(d, kind, c, longer, longer, longer); }) ==
          "attention: q is [1, 4, 8], k is [1, 4, 8], v is [1, 4, 8] with 3 heads and 1 kv heads; "
          "right is q [B, T, heads K], k and v [B, S, kv_heads K], heads a multiple of kv_heads, "
          "and S >= T when causal");
  }
  CHECK(failure([&](ts::Device& d) {
          ts::ring_attention(d, x, x, x, 2, 2, "cp", ts::Mask::causal);
        }) == "ring_attention: no axis cp on this mesh; its axes are context");
  ts::Tensor late;
  const ts::Tensor leaf = ts::parameter(longer);
  const ts::Mesh mesh(ts::machine("h100", {2}), {{"context", 2}});
  mesh.run([&](ts::Device& d) {
    const ts::Tensor q = d.rank() == 0 ? leaf : longer;
    const ts::Tensor y = ts::ring_attention(d, q, longer, longer, 2, 2, "context", ts::Mask::none);
    if (d.rank() == 0) {
      late = ts::sum(y);
    }
  });
  CHECK(error_of([&] { late.backward(); }) ==
        "backward: the run of its device is over; call it inside the program");
}

TEST_CASE("ring attention goes backward by a schedule that the program has let go") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2}), {{"x", 2}});
  const ts::Tensor x = ts::randn({1, 4, 4}, 1);
  std::vector<float> gradients[2];
  for (const bool own : {false, true}) {
    const ts::MeshRun run = mesh.run([&](ts::Device& d) {
      ts::CollectiveSchedule swap;
      swap.what = ts::Collective::permute;
      swap.devices = swap.chunks = 2;
      swap.root = 1;
      swap.transfers = {{0, 0, 1, 0, 1, ts::Action::copy, 0}, {0, 1, 0, 1, 1, ts::Action::copy, 0}};
      ts::RingOptions options;
      options.transfer.schedule = own ? &swap : nullptr;
      const ts::Tensor q = ts::parameter(x * static_cast<float>(d.rank() + 1));
      const ts::Tensor y = ts::ring_attention(d, q, q, q, 1, 1, "x", ts::Mask::causal, options);
      swap.devices = 3;
      ts::sum(ts::square(y)).backward();
      d.keep("gradient", q.grad());
    });
    gradients[own ? 1 : 0] = run.kept(1, "gradient").values();
    for (const ts::CollectiveRow& row : run.collectives()) {
      CHECK((row.algorithm == "custom") == own);
    }
  }
  CHECK(gradients[0] == gradients[1]);
}

TEST_CASE("ring attention: blocks are merged in f32 or bf16") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2}), {{"x", 2}});
  CHECK(error_of([&] {
          mesh.predict([](ts::Device& d) {
            ts::RingOptions options;
            options.merge = ts::DType::int8;
            const ts::Tensor x = ts::ones({1, 4, 4});
            ts::ring_attention(d, x, x, x, 1, 1, "x", ts::Mask::causal, options);
          });
        }) == "ring_attention: RingOptions::merge is int8; f32 or bf16 is right");
}

#endif
