// The matrix product in f32: one thread, two, disturbed, and the AVX2 path by force.
#include <atomic>
#include <initializer_list>
#include <memory>
#include <thread>

#include "peers.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace bench {
namespace {

struct Product {
  int m, n, k;
  Numbers a, b, c;
  Product(int m_, int n_, int k_)
      : m(m_),
        n(n_),
        k(k_),
        a(numbers(std::int64_t{m_} * k_, 1)),
        b(numbers(std::int64_t{k_} * n_, 2)),
        c(numbers(std::int64_t{m_} * n_, 3)) {}
  double flops() const { return 2.0 * m * n * k; }
  Way into_c(const Way& way) { return writing(way, c.data(), std::int64_t{m} * n); }
  std::string name() const { return ts::detail::cat({m, " x ", n, " x ", k}); }
  Way by_torch(Bench& bench, int threads) const {
    return asked("PyTorch", torch(bench, threads), ts::detail::cat({"matmul ", m, " ", n, " ", k}));
  }
  Work own() {
    return [this] {
      ts::kernels::gemm(ts::kernels::Trans::no, ts::kernels::Trans::no, m, n, k, a.data(), k,
                        b.data(), n, 0.0f, c.data(), n);
    };
  }
};

struct Size {
  int m, n, k;
  double target;  // over OpenBLAS on one thread
};
constexpr Size sizes[] = {{64, 64, 64, 1.0},        {128, 128, 128, 1.35},
                          {256, 256, 256, 1.17},    {512, 512, 512, 1.05},
                          {1024, 1024, 1024, 1.05}, {2048, 2048, 2048, 1.05},
                          {512, 3072, 768, 1.05},   {512, 768, 3072, 1.05}};

// The targets are those of AVX-512; of AVX2 they are 1 x OpenBLAS.
double target_of(double wide) { return ts::cpu().path == ts::CpuPath::avx512 ? wide : 1.0; }

void one(Bench& bench, const Size& s) {
  Product x(s.m, s.n, s.k);
  const bool large = x.flops() > 4e9;
  Case c;
  c.group = s.m < 512 ? "f32-1t-small" : "f32-1t";
  c.what = x.name();
  c.unit = "GFLOP/s";
  c.work = x.flops();
  Way eigen = eigen_multiply(bench, s.m, s.n, s.k, x.a.data(), x.b.data(), x.c.data());
  eigen.every = large && !bench.options().slow ? 3 : 1;
  c.ways = {x.into_c(timed("ours", Clock::thread, one_thread(x.own()))),
            openblas(bench).multiply(1, s.m, s.n, s.k, x.a.data(), x.b.data(), x.c.data()),
            onednn_sgemm(bench, 1, s.m, s.n, s.k, x.a.data(), x.b.data(), x.c.data()),
            blis(bench).multiply(1, s.m, s.n, s.k, x.a.data(), x.b.data(), x.c.data()),
            x.by_torch(bench, 1),
            eigen,
            limit(x.flops(), 0, 1)};
  c.targets = {{"OpenBLAS", target_of(s.target)}, {"Eigen", 4.5}};
  bench.run(c);
}

void two(Bench& bench, const Size& s) {
  Product x(s.m, s.n, s.k);
  const int threads = all_threads();
  Case c;
  c.group = "f32-2t";
  c.what = x.name();
  c.unit = "GFLOP/s";
  c.work = x.flops();
  c.threads = threads;
  c.ways = {x.into_c(timed("ours", Clock::wall, x.own())),
            x.into_c(timed("ours, 1 thread", Clock::wall, one_thread(x.own()))),
            openblas(bench).multiply(threads, s.m, s.n, s.k, x.a.data(), x.b.data(), x.c.data()),
            onednn_sgemm(bench, threads, s.m, s.n, s.k, x.a.data(), x.b.data(), x.c.data()),
            blis(bench).multiply(threads, s.m, s.n, s.k, x.a.data(), x.b.data(), x.c.data()),
            x.by_torch(bench, threads),
            limit(x.flops(), 0, threads)};
  if (s.m >= 512) {
    c.targets = {{"OpenBLAS", 1.0}, {"ours, 1 thread", 1.8}};
  }
  bench.run(c);
}

// Another program wants one of the processors: a worker of ours is preempted.
void disturbed(Bench& bench, const Size& s) {
  Product x(s.m, s.n, s.k);
  const int threads = all_threads();
  std::atomic<bool> stop(false);
  std::thread busy([&stop] {
    while (!stop.load(std::memory_order_relaxed)) {
    }
  });
  Case c;
  c.group = "f32-2t-busy";
  c.what = x.name();
  c.unit = "GFLOP/s";
  c.work = x.flops();
  c.threads = threads;
  c.ways = {x.into_c(timed("ours", Clock::wall, x.own())),
            x.into_c(timed("ours, 1 thread", Clock::wall, one_thread(x.own()))),
            openblas(bench).multiply(threads, s.m, s.n, s.k, x.a.data(), x.b.data(), x.c.data())};
  c.targets = {{"ours, 1 thread", 0.8}};
  bench.run(c);
  stop.store(true);
  busy.join();
}

void avx2(Bench& bench, const Size& s, const std::shared_ptr<Worker>& haswell) {
  Product x(s.m, s.n, s.k);
  const Work own = x.own();
  Case c;
  c.group = "f32-avx2";
  c.what = x.name();
  c.unit = "GFLOP/s";
  c.work = x.flops();
  c.ways = {timed("ours", Clock::thread, one_thread([own] {
                    const ts::detail::PathScope scope(ts::CpuPath::avx2);
                    own();
                  })),
            asked("OpenBLAS AVX2", haswell, ts::detail::cat({s.m, " ", s.n, " ", s.k})),
            limit(x.flops(), 0, 1, Arithmetic::f32_avx2)};
  c.targets = {{"OpenBLAS AVX2", 1.0}};
  bench.run(c);
}

}  // namespace

void gemm_rows(Bench& bench) {
  if (bench.wants("f32-1t-small", "f32 product in the caches, 1 thread, GFLOP/s")) {
    for (const Size& s : {sizes[0], sizes[1], sizes[2]}) {
      one(bench, s);
    }
  }
  if (bench.wants("f32-1t", "f32 product, 1 thread, GFLOP/s")) {
    for (const Size& s : {sizes[3], sizes[4], sizes[5], sizes[6], sizes[7]}) {
      one(bench, s);
    }
    bench.mean("f32-1t", "OpenBLAS", target_of(1.12));
    bench.mean("f32-1t", "oneDNN", 1.0);
  }
  if (bench.wants_several("f32-2t", "the same on all threads")) {
    for (const Size& s : sizes) {
      two(bench, s);
    }
  }
  if (bench.wants_several("f32-2t-busy", "the same while another program uses one processor")) {
    for (const Size& s : {sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], sizes[7]}) {
      disturbed(bench, s);
    }
  }
  if (ts::cpu().has(ts::CpuPath::avx2) &&
      bench.wants("f32-avx2", "f32 product, 1 thread, AVX2 by force, GFLOP/s")) {
    const std::shared_ptr<Worker> haswell = openblas_as(bench, "Haswell", 1);
    for (const Size& s : sizes) {
      avx2(bench, s, haswell);
    }
    bench.mean("f32-avx2", "OpenBLAS AVX2", 1.0);
  }
}

}  // namespace bench
