// What do threads cost and win? A loop with nothing in it, a matrix product on one thread and on
// two in the same rounds, alone and beside threads that do something else.

#include <atomic>
#include <thread>

#include "bench.hpp"
#include "options.hpp"

namespace {

namespace ts = tinyscale;

struct Product {
  explicit Product(std::int64_t size)
      : n(size),
        a(bench::numbers(static_cast<std::size_t>(n * n), 1)),
        b(bench::numbers(static_cast<std::size_t>(n * n), 2)),
        c(static_cast<std::size_t>(n * n)) {}

  void run(int threads, std::int64_t times) {
    const ts::ThreadScope scope(threads);
    for (std::int64_t i = 0; i < times; ++i) {
      ts::kernels::gemm(ts::kernels::Trans::no, ts::kernels::Trans::no, n, n, n, a.data(), n,
                        b.data(), n, 0.0f, c.data(), n);
    }
  }

  std::int64_t n;
  std::vector<float> a, b, c;
};

// Threads that keep a processor busy, as another program would.
class Rivals {
 public:
  explicit Rivals(int count) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this] {
        for (double x = 1; !stop_.load(std::memory_order_relaxed);) {
          x = x * 1.0000001 + 1e-9;
          ts::detail::keep_alive(static_cast<float>(x));
        }
      });
    }
  }
  ~Rivals() {
    stop_.store(true);
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }
  Rivals(const Rivals&) = delete;
  Rivals& operator=(const Rivals&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

void empty_loops(int threads) {
  const ts::ThreadScope scope(threads);
  std::vector<double> samples;
  for (int round = 0; round < 31; ++round) {
    samples.push_back(bench::seconds_of(
        [] {
          std::atomic<int> begun{0};  // a chunk ends when every thread has one
          ts::parallel_for(ts::thread_count(), 1, [&](std::int64_t, std::int64_t) {
            begun.fetch_add(1);
            for (int i = 0; i < 1000 && begun.load() < ts::detail::program_threads(); ++i) {
            }
          });
        },
        200));
    samples.back() /= 200;
  }
  std::printf("an empty loop in which all %d threads take part: %s (median)\n", threads,
              ts::format_seconds(bench::median(samples)).c_str());
}

}  // namespace

int main(int count, char** words) {
  bench::read_options(count, words, {});
  bench::print_machine("What do threads cost and win?");
  const int all = ts::thread_count();
  empty_loops(all);
  std::printf(
      "\nC[n, n] = A B, f32: time on one thread / time on %d; beside it one thread / one thread,\n"
      "which differs from 1 by what else the machine did; rounds in random order\n"
      "%8s %8s %10s %10s %14s %14s\n",
      all, "rivals", "n", "median", "p10", "of all time", "control");
  for (const int rivals : {0, 1, 2}) {
    for (const std::int64_t n : {128, 256, 512, 1024}) {
      Product product(n);
      const double flops = 2.0 * static_cast<double>(n * n * n);
      const auto times = std::max<std::int64_t>(1, static_cast<std::int64_t>(1e9 / flops));
      const Rivals others(rivals);
      std::vector<double> ratios;
      double total[3] = {};  // on one thread, on all, on one thread
      for (std::uint64_t round = 0; round < 40; ++round) {
        double seconds[3] = {};
        const std::uint64_t first = ts::random_below(3, round, 3);
        for (std::uint64_t i = 0; i < 3; ++i) {
          const std::size_t way = static_cast<std::size_t>((first + i) % 3);
          seconds[way] = bench::seconds_of([&] { product.run(way == 1 ? all : 1, times); }, 1);
          total[way] += seconds[way];
        }
        ratios.push_back(seconds[0] / seconds[1]);
      }
      std::sort(ratios.begin(), ratios.end());
      std::printf("%8d %8lld %10.2f %10.2f %14.2f %14.2f\n", rivals, static_cast<long long>(n),
                  ratios[20], ratios[4], total[0] / total[1], total[0] / total[2]);
    }
  }
  return 0;
}
