// Products with few rows, as in decoding: the weights are read once, so memory is the limit.
#include <algorithm>
#include <initializer_list>

#include "peers.hpp"
#include "tinyscale.hpp"

#if __has_include("tinyscale/compute/gemm_fused.hpp")
#define BENCH_OWN_PACKED 1
#endif
#if __has_include("tinyscale/compute/gemv_quantized.hpp")
#define BENCH_OWN_QUANTIZED 1
#endif

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
  double weight_bytes() const { return 4.0 * n * k; }
  Way into_c(const Way& way) { return writing(way, c.data(), std::int64_t{m} * n); }
  // C = A B, or with weights stored [n, k] C = A B^T.
  Work own(ts::kernels::Trans trans) {
    return [this, trans] {
      const int ld = trans == ts::kernels::Trans::no ? n : k;
      ts::kernels::gemm(ts::kernels::Trans::no, trans, m, n, k, a.data(), k, b.data(), ld, 0.0f,
                        c.data(), n);
    };
  }
};

struct Size {
  int m, n, k;
  double blas, packed;  // targets; 0: none
};
constexpr Size sizes[] = {{1, 3072, 768, 8, 0},     {1, 4096, 4096, 8, 0},  {8, 4096, 4096, 3.5, 1},
                          {16, 4096, 4096, 2.5, 1}, {32, 4096, 4096, 0, 0}, {64, 4096, 4096, 0, 0}};

void skinny(Bench& bench, const Size& s, int threads) {
  Product x(s.m, s.n, s.k);
  const Work own = x.own(ts::kernels::Trans::no);
  Case c;
  c.group = threads == 1 ? "skinny-1t" : "skinny-2t";
  c.what = ts::detail::cat({s.m, " x ", s.n, " x ", s.k});
  c.unit = "GFLOP/s";
  c.work = x.flops();
  c.threads = threads;
  c.ways = {x.into_c(timed("ours", clock_for(threads), threads == 1 ? one_thread(own) : own)),
            openblas(bench).multiply(threads, s.m, s.n, s.k, x.a.data(), x.b.data(), x.c.data()),
            onednn_sgemm(bench, threads, s.m, s.n, s.k, x.a.data(), x.b.data(), x.c.data()),
            onednn_packed(bench, threads, s.m, s.n, s.k, Format::f32),
            limit(x.flops(), x.weight_bytes(), threads)};
  if (threads == 1) {
    c.targets = {{"OpenBLAS", s.blas}, {"oneDNN packed", s.packed}};
  }
  bench.run(c);
}

void packed(Bench& bench, const Size& s) {
  Product x(s.m, s.n, s.k);
  Case c;
  c.group = "packed-1t";
  c.what = ts::detail::cat({s.m, " x ", s.n, " x ", s.k});
  c.unit = "GFLOP/s";
  c.work = x.flops();
  Way own{"ours", {}, 1, true};
#if defined(BENCH_OWN_PACKED)
  const ts::kernels::PackedWeights w =
      ts::kernels::pack_weights(ts::kernels::Trans::no, s.k, s.n, x.b.data(), s.n);
  own = x.into_c(timed("ours", Clock::thread, one_thread([&x, &w] {
                         ts::kernels::gemm_packed(x.m, x.a.data(), x.k, w, 0.0f, x.c.data(), x.n);
                       })));
#endif
  c.ways = {own, onednn_packed(bench, 1, s.m, s.n, s.k, Format::f32),
            limit(x.flops(), x.weight_bytes(), 1)};
  c.targets = {{"oneDNN packed", s.m >= 32 ? 1.0 : 0.0}};
  bench.run(c);
}

// The same with weights rounded to int8 or 4 bits in groups of 32, against f32.
void quantized(Bench& bench, int n, int k, int bits, double target) {
  Product x(1, n, k);
  Case c;
  c.group = "gemv-quantized-1t";
  c.what = ts::detail::cat({bits == 8 ? "int8 " : "4-bit ", n, " x ", k});
  c.unit = "us";
  Way own{"ours", {}, 1, true}, roof{"limit", {}, 1, true};
#if defined(BENCH_OWN_QUANTIZED)
  const ts::kernels::QuantizedMatrix w = ts::kernels::quantize(n, k, 32, bits, x.b.data());
  Numbers y(static_cast<std::size_t>(n));
  own = writing(timed("ours", Clock::thread,
                      one_thread([&] { ts::kernels::gemv_quantized(w, x.a.data(), y.data()); })),
                y.data(), n);
  roof = limit(0, w.bytes(), 1);
#endif
  c.ways = {own, openblas(bench).times_vector(1, n, k, x.b.data(), x.a.data(), x.c.data()), roof};
  c.ways[1].name = "OpenBLAS f32";
  c.same = bits == 8 ? 0.01 : 0.15;  // of numbers that were rounded
  c.targets = {{"OpenBLAS f32", target}};
  bench.run(c);
}

// y[n] = W[n, k] x[k].
void vector(Bench& bench, int n, int k, int threads, double target, double of_roof) {
  Product x(1, n, k);
  const Work own = x.own(ts::kernels::Trans::yes);
  Case c;
  c.group = threads == 1 ? "gemv-1t" : "gemv-2t";
  c.what = ts::detail::cat({n, " x ", k});
  c.unit = "GB/s";
  c.work = x.weight_bytes();
  c.threads = threads;
  c.ways = {x.into_c(timed("ours", clock_for(threads), threads == 1 ? one_thread(own) : own)),
            openblas(bench).times_vector(threads, n, k, x.b.data(), x.a.data(), x.c.data()),
            limit(0, x.weight_bytes(), threads)};
  c.targets = {{"OpenBLAS", target}, {"limit", of_roof}};
  bench.run(c);
}

}  // namespace

void skinny_rows(Bench& bench) {
  if (bench.wants("skinny-1t",
                  "f32 product with few rows, 1 thread, GFLOP/s; peer BLAS: cblas_sgemm")) {
    for (const Size& s : sizes) {
      skinny(bench, s, 1);
    }
  }
  if (bench.wants_several("skinny-2t", "the same on all threads")) {
    for (const Size& s : {sizes[0], sizes[2], sizes[5]}) {
      skinny(bench, s, all_threads());
    }
  }
  if (bench.wants("packed-1t", "the same with weights packed before, 1 thread")) {
    for (const Size& s : {sizes[2], sizes[3], sizes[4], sizes[5]}) {
      packed(bench, s);
    }
  }
  if (bench.wants("gemv-quantized-1t",
                  "matrix times vector, int8 and 4-bit weights, 1 thread, us")) {
    for (const int bits : {8, 4}) {
      const double memory = bits == 8 ? 3.5 : 6.0;
      quantized(bench, 768, 768, bits, 6.0);
      quantized(bench, 32000, 768, bits, memory);
      quantized(bench, 4096, 4096, bits, memory);
    }
  }
  if (bench.wants("gemv-1t", "matrix times vector, f32 weights, 1 thread, GB/s of weights")) {
    vector(bench, 768, 768, 1, 0, 0);
    vector(bench, 32000, 768, 1, 1.4, 0);
    vector(bench, 4096, 4096, 1, 1.1, 0);
  }
  if (bench.wants_several("gemv-2t", "the same on all threads")) {
    vector(bench, 32000, 768, all_threads(), 0, 0.9);
    vector(bench, 4096, 4096, all_threads(), 0, 0.9);
  }
}

}  // namespace bench
