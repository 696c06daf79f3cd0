// base/threads: loops on several threads, and that their number never changes a result.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

using Floats = std::vector<float>;

Floats numbers(std::int64_t count, std::uint64_t seed) {
  Floats out(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = 2.0f * ts::uniform01(seed, i) - 1.0f;
  }
  return out;
}

std::uint64_t bits_of(std::uint64_t hash, const Floats& values) {  // FNV-1a
  for (const float value : values) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    hash = (hash ^ bits) * 1099511628211ULL;
  }
  return hash;
}

std::uint64_t bits_of(std::initializer_list<const Floats*> all) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const Floats* values : all) {
    hash = bits_of(hash, *values);
  }
  return hash;
}

// The work gives the same bits on 1, 2, 3 and 7 threads, on every path and repeatedly.
void same_bits(const std::string& name, const std::function<std::uint64_t()>& work) {
  CAPTURE(name);
  for (const ts::CpuPath path : {ts::CpuPath::portable, ts::CpuPath::avx2, ts::CpuPath::avx512}) {
    if (!ts::cpu().has(path) || static_cast<int>(path) > static_cast<int>(ts::cpu().path)) {
      continue;
    }
    const ts::detail::PathScope on(path);
    std::uint64_t first = 0;
    for (const int threads : {1, 2, 3, 7, 2}) {
      const ts::ThreadScope scope(threads);
      const std::uint64_t bits = work();
      first = threads == 1 ? bits : first;
      CAPTURE(threads);
      CHECK(bits == first);
    }
  }
}

}  // namespace

TEST_CASE("threads: gemm has the same bits on any number of threads") {
  using ts::kernels::Trans;
  struct Case {
    Trans ta, tb;
    std::int64_t m, n, k;
  };
  for (const Case& c :
       {Case{Trans::no, Trans::no, 203, 301, 257}, Case{Trans::no, Trans::yes, 130, 517, 300},
        Case{Trans::yes, Trans::no, 301, 130, 203}, Case{Trans::no, Trans::no, 1, 2051, 403},
        Case{Trans::no, Trans::yes, 1, 2051, 403}, Case{Trans::no, Trans::no, 9, 1029, 301},
        Case{Trans::no, Trans::yes, 33, 1029, 301}}) {
    const Floats a = numbers(c.m * c.k, 1), b = numbers(c.k * c.n, 2);
    same_bits(ts::detail::cat({"gemm ", c.m, " ", c.n, " ", c.k}), [&] {
      Floats y = numbers(c.m * c.n, 3);
      ts::kernels::gemm(c.ta, c.tb, c.m, c.n, c.k, a.data(), c.ta == Trans::no ? c.k : c.m,
                        b.data(), c.tb == Trans::no ? c.n : c.k, 1.0f, y.data(), c.n);
      return bits_of({&y});
    });
  }
}

TEST_CASE("threads: rows, norms and losses have the same bits on any number of threads") {
  const std::int64_t rows = 211, cols = 517, n = rows * cols;
  const Floats x = numbers(n, 4), dy = numbers(n, 5), weight = numbers(cols, 6);
  same_bits("softmax", [&] {
    Floats y(x.size()), dx(x.size());
    ts::kernels::softmax_forward(rows, cols, x.data(), y.data());
    ts::kernels::softmax_backward(rows, cols, y.data(), dy.data(), dx.data());
    return bits_of({&y, &dx});
  });
  same_bits("layer norm", [&] {
    Floats y(x.size()), dx(x.size()), mean(rows), rstd(rows), dweight(cols), dbias(cols);
    ts::kernels::layer_norm_forward(rows, cols, 1e-5f, x.data(), weight.data(), weight.data(),
                                    y.data(), mean.data(), rstd.data());
    ts::kernels::layer_norm_backward(rows, cols, x.data(), weight.data(), mean.data(), rstd.data(),
                                     dy.data(), dx.data(), dweight.data(), dbias.data());
    return bits_of({&y, &dx, &mean, &rstd, &dweight, &dbias});
  });
  same_bits("rms norm", [&] {
    Floats y(x.size()), dx(x.size()), rstd(rows), dweight(cols);
    ts::kernels::rms_norm_forward(rows, cols, 1e-5f, x.data(), weight.data(), y.data(),
                                  rstd.data());
    ts::kernels::rms_norm_backward(rows, cols, x.data(), weight.data(), rstd.data(), dy.data(),
                                   dx.data(), dweight.data());
    return bits_of({&y, &dx, &rstd, &dweight});
  });
  std::vector<std::int32_t> targets(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < targets.size(); ++i) {
    targets[i] = static_cast<std::int32_t>(i * 37 % cols);
  }
  same_bits("cross-entropy", [&] {
    Floats losses(rows), lse(rows), dx(x.size());
    ts::kernels::cross_entropy_forward(rows, cols, x.data(), targets.data(), losses.data(),
                                       lse.data());
    ts::kernels::cross_entropy_backward(rows, cols, x.data(), lse.data(), targets.data(), 0.1f,
                                        dx.data());
    return bits_of({&losses, &lse, &dx});
  });
}

TEST_CASE("threads: the loss of the last matmul has the same bits on any number of threads") {
  const std::int64_t rows = 75, width = 48, vocab = 1301;
  const Floats x = numbers(rows * width, 13), w = numbers(vocab * width, 14);
  std::vector<std::int32_t> targets(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < targets.size(); ++i) {
    targets[i] = static_cast<std::int32_t>(i * 37 % 1301);
  }
  same_bits("linear cross-entropy", [&] {
    Floats losses(75), lse(75), dx(x.size()), dw(w.size());
    ts::kernels::linear_cross_entropy(
        {rows, width, vocab, x.data(), w.data(), targets.data(), 0.1f, dx.data(), dw.data(), 1, 1},
        losses.data(), lse.data());
    return bits_of({&losses, &lse, &dx, &dw});
  });
}

TEST_CASE("threads: attention has the same bits on any number of threads") {
  ts::kernels::AttentionShape s;
  s.batch = 2, s.queries = 77, s.keys = 77, s.heads = 4, s.kv_heads = 2, s.head_size = 16;
  s.q_stride = s.o_stride = 64, s.k_stride = s.v_stride = 32;
  s.q_batch = s.o_batch = 77 * 64, s.k_batch = s.v_batch = 77 * 32;
  const std::int64_t wide = s.batch * s.q_batch, narrow = s.batch * s.k_batch;
  const Floats q = numbers(wide, 7), k = numbers(narrow, 8), v = numbers(narrow, 9);
  const Floats d_o = numbers(wide, 10);
  same_bits("attention", [&] {
    Floats o(q.size()), lse(2 * 4 * 77), dq(q.size()), dk(k.size()), dv(v.size());
    ts::kernels::attention_forward(s, q.data(), k.data(), v.data(), o.data(), lse.data());
    ts::kernels::attention_backward(s, q.data(), k.data(), v.data(), o.data(), lse.data(),
                                    d_o.data(), dq.data(), dk.data(), dv.data());
    return bits_of({&o, &lse, &dq, &dk, &dv});
  });
}

TEST_CASE("threads: sums, maps and AdamW have the same bits on any number of threads") {
  const std::int64_t n = 100003;
  const Floats x = numbers(n, 11), grad = numbers(n, 12);
  same_bits("elementwise", [&] {
    Floats y(x.size()), dx(x.size());
    ts::kernels::gelu_forward(n, x.data(), y.data());
    ts::kernels::gelu_backward(n, x.data(), grad.data(), dx.data());
    ts::kernels::add(n, y.data(), x.data(), y.data());
    return bits_of({&y, &dx});
  });
  same_bits("sum of squares", [&] {
    const double sum = ts::kernels::sum_of_squares(n, x.data());
    std::uint64_t bits;
    std::memcpy(&bits, &sum, sizeof(bits));
    return bits;
  });
  same_bits("adamw", [&] {
    Floats param = x, m(x.size()), v(x.size());
    ts::kernels::AdamWStep step;
    for (step.step = 1; step.step <= 3; ++step.step) {
      ts::kernels::adamw(n, step, grad.data(), param.data(), m.data(), v.data());
    }
    return bits_of({&param, &m, &v});
  });
}

TEST_CASE("threads: chunks are the same whoever takes them, and fewer than the iterations") {
  for (const int threads : {2, 3, 7}) {
    const ts::ThreadScope scope(threads);
    std::vector<std::int64_t> first;
    for (int repeat = 0; repeat < 5; ++repeat) {
      std::vector<std::atomic<std::int64_t>> ends(10007);
      ts::parallel_for(10007, 16, [&](std::int64_t begin, std::int64_t end) {
        ends[static_cast<std::size_t>(begin)] = end;
      });
      const std::vector<std::int64_t> seen(ends.begin(), ends.end());
      first = repeat == 0 ? seen : first;
      CHECK(seen == first);
#if !defined(TINYSCALE_NO_THREADS)
      CHECK(seen[0] == 10007 / (4 * threads) / 16 * 16);  // the first is the largest
#endif
    }
  }
}

TEST_CASE("threads: every index once, chunks begin at multiples of the grain") {
  for (const std::int64_t n : {0, 1, 7, 64, 1000, 100003}) {
    for (const std::int64_t grain : {0, 1, 7, 64, 5000}) {
      std::vector<int> visits(static_cast<std::size_t>(n));
      std::atomic<int> misplaced{0};
      ts::parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
        misplaced += grain > 0 && begin % grain != 0 ? 1 : 0;
        for (std::int64_t i = begin; i < end; ++i) {
          ++visits[static_cast<std::size_t>(i)];
        }
      });
      CHECK(misplaced == 0);
      CHECK(visits == std::vector<int>(static_cast<std::size_t>(n), 1));
    }
  }
}

TEST_CASE("threads: many loops one after the other, awake and asleep") {
  std::int64_t total = 0;
  for (int loop = 0; loop < 2000; ++loop) {
    if (loop % 500 == 499) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the workers fall asleep
    }
    std::atomic<std::int64_t> sum{0};
    ts::parallel_for(64, 1, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
    total += sum;
  }
  CHECK(total == 2000 * 64);
}

TEST_CASE("threads: the caller waits for a slow worker") {
  std::atomic<int> done{0};
  ts::parallel_for(4, 1, [&](std::int64_t begin, std::int64_t end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2 + 8 * begin));
    done += static_cast<int>(end - begin);
  });
  CHECK(done == 4);
}

TEST_CASE("threads: a body's exception reaches the caller, and the pool goes on") {
  for (int repeat = 0; repeat < 50; ++repeat) {
    CHECK_THROWS_WITH_AS(ts::parallel_for(1000, 1,
                                          [](std::int64_t begin, std::int64_t end) {
                                            for (std::int64_t i = begin; i < end; ++i) {
                                              if (i >= 300) {
                                                throw ts::Error("body: index 300 or more");
                                              }
                                            }
                                          }),
                         "body: index 300 or more", ts::Error);
  }
  // Every chunk throws: it is always the first chunk's exception that comes.
  for (int repeat = 0; repeat < 50; ++repeat) {
    CHECK_THROWS_WITH_AS(ts::parallel_for(1000, 1,
                                          [](std::int64_t begin, std::int64_t) {
                                            throw ts::Error(ts::detail::cat({"chunk at ", begin}));
                                          }),
                         "chunk at 0", ts::Error);
  }
  std::atomic<std::int64_t> sum{0};
  ts::parallel_for(100, 1, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
  CHECK(sum == 100);
}

TEST_CASE("threads: nested loops and loops in a serial scope stay on their thread") {
  std::atomic<int> sum{0};
  std::atomic<int> strangers{0};
  ts::parallel_for(16, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::thread::id self = std::this_thread::get_id();
      ts::parallel_for(100, 1, [&](std::int64_t b, std::int64_t e) {
        strangers += std::this_thread::get_id() != self ? 1 : 0;
        sum += static_cast<int>(e - b);
      });
    }
  });
  CHECK(sum == 1600);
  CHECK(strangers == 0);
  const ts::detail::SerialScope serial;
  int chunks = 0;
  ts::parallel_for(100, 1, [&](std::int64_t begin, std::int64_t end) {
    ++chunks;
    CHECK(end - begin == 100);
  });
  CHECK(chunks == 1);
}

#if !defined(TINYSCALE_NO_THREADS)
TEST_CASE("threads: who waits takes part in an open loop") {
  ts::detail::OpenLoop loop;
  CHECK_FALSE(loop.help());  // nothing is open
  std::atomic<bool> over{false};
  std::atomic<int> inside{0}, most{0}, helped{0};
  std::vector<std::thread> others;
  for (int i = 0; i < 3; ++i) {
    others.emplace_back([&] {
      while (!over.load()) {
        if (loop.help()) {
          ++helped;
        } else {
          std::this_thread::yield();
        }
      }
    });
  }
  std::int64_t wrong = 0;
  for (int repeat = 0; repeat < 500 || helped == 0; ++repeat) {
    std::vector<int> seen(1000, 0);
    loop.run(
        [&](std::int64_t begin, std::int64_t end) {
          const int here = ++inside;
          for (int known = most; here > known && !most.compare_exchange_weak(known, here);) {
          }
          for (std::int64_t i = begin; i < end; ++i) {
            ++seen[static_cast<std::size_t>(i)];
          }
          --inside;
        },
        1000, 1);
    wrong += std::count(seen.begin(), seen.end(), 1) == 1000 ? 0 : 1;
  }
  CHECK(wrong == 0);
  CHECK(most <= 2);  // one seat, and the caller
  for (int repeat = 0; repeat < 50; ++repeat) {
    CHECK_THROWS_WITH_AS(loop.run([](std::int64_t begin,
                                     std::int64_t) { throw ts::Error(ts::detail::cat({begin})); },
                                  1000, 3),
                         "0", ts::Error);
  }
  over = true;
  for (std::thread& other : others) {
    other.join();
  }
  CHECK_FALSE(loop.help());
}

TEST_CASE("threads: several callers at once") {
  std::atomic<std::int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int loop = 0; loop < 300; ++loop) {
        ts::parallel_for(50, 1, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  CHECK(sum == 4 * 300 * 50);
}

TEST_CASE("threads: a pool of its own starts, works and ends") {
  for (int workers = 0; workers < 5; ++workers) {
    const ts::ThreadScope scope(workers + 1);
    ts::detail::ThreadPool pool;
    std::atomic<std::int64_t> sum{0};
    const auto body = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        sum += i;
      }
    };
    for (int loop = 0; loop < 20; ++loop) {
      CHECK(pool.run(body, 1000, 1));
    }
    CHECK(sum == 20 * 999 * 1000 / 2);
  }
}
#endif

#if defined(CPU_SETSIZE) && !defined(TINYSCALE_NO_THREADS)
TEST_CASE("threads: one that goes to a processor may use all as before") {
  cpu_set_t before, after;
  REQUIRE(sched_getaffinity(0, sizeof(before), &before) == 0);
  for (int number = 0; number < 2 * CPU_COUNT(&before) + 1; ++number) {
    ts::detail::go_to_processor(number);
    REQUIRE(sched_getaffinity(0, sizeof(after), &after) == 0);
    CHECK(CPU_EQUAL(&before, &after));
    CHECK(ts::detail::current_processor() >= 0);
  }
}
#endif

TEST_CASE("threads: the number of threads") {
  CHECK(ts::thread_count() >= 1);
#if !defined(TINYSCALE_NO_THREADS)
  const int before = ts::thread_count();
  {
    const ts::ThreadScope five(5);
    CHECK(ts::thread_count() == 5);
    const ts::ThreadScope seven(7);  // no more than the scope around it allows
    CHECK(ts::thread_count() == 5);
    const ts::ThreadScope one(1);
    CHECK(ts::thread_count() == 1);
  }
  CHECK(ts::thread_count() == before);
#endif
  for (const int threads : {0, -3, 1025}) {
    const std::string said =
        "ThreadScope: " + std::to_string(threads) + " threads; 1 to 1024 are right";
    CHECK_THROWS_WITH_AS(ts::ThreadScope{threads}, said.c_str(), ts::Error);
  }
  CHECK(ts::detail::parse_thread_count("1") == 1);
  CHECK(ts::detail::parse_thread_count("1024") == 1024);
  for (const std::string text : {"", "0", "1025", "99999999999", "-1", "two", "4x"}) {
    CHECK_THROWS_WITH_AS(
        ts::detail::parse_thread_count(text),
        ("TINYSCALE_THREADS is \"" + text + "\"; it must be a number from 1 to 1024").c_str(),
        ts::Error);
  }
}
