// How near is the matrix product to the machine's limit, and to the libraries that people use?
// The limit is a loop of multiply-adds in registers, on one thread and on all.
// Peers: OpenBLAS (a shared library, opened if it is there) and Eigen (its headers, if they are
// there, compiled as this file is).
//   g++ -std=c++17 -O2 -pthread -I. bench/gemm.cpp && ./a.out
#include "bench.hpp"

#if defined(__has_include)
#if __has_include(<eigen3/Eigen/Core>)
#include <eigen3/Eigen/Core>
#define HAVE_EIGEN 1
#elif __has_include(<Eigen/Core>)
#include <Eigen/Core>
#define HAVE_EIGEN 1
#endif
#endif

namespace ts = tinyscale;

struct Shape3 {
  const char* what;
  int m, n, k;
  double flops() const { return 2.0 * m * n * k; }
  double bytes() const { return 4.0 * (1.0 * m * k + 1.0 * k * n + 1.0 * m * n); }
};

const std::vector<Shape3> shapes = {
    {"square", 64, 64, 64},         {"square", 128, 128, 128},     {"square", 256, 256, 256},
    {"square", 512, 512, 512},      {"square", 1024, 1024, 1024},  {"nano up", 768, 512, 128},
    {"nano down", 768, 128, 512},   {"nano logits", 768, 65, 128}, {"GPT-2 up", 512, 3072, 768},
    {"GPT-2 down", 512, 768, 3072}, {"decode 1", 1, 4096, 4096},   {"decode 8", 8, 4096, 4096},
    {"decode 16", 16, 4096, 4096},
};

struct Matrices {
  std::vector<float> a, b, c;
  explicit Matrices(const Shape3& s)
      : a(bench::numbers(static_cast<std::size_t>(s.m) * static_cast<std::size_t>(s.k), 1)),
        b(bench::numbers(static_cast<std::size_t>(s.k) * static_cast<std::size_t>(s.n), 2)),
        c(static_cast<std::size_t>(s.m) * static_cast<std::size_t>(s.n)) {}
};

void own(const Shape3& s, Matrices& x) {
  ts::kernel::gemm(ts::kernel::Trans::no, ts::kernel::Trans::no, s.m, s.n, s.k, x.a.data(), s.k,
                   x.b.data(), s.n, 0.0f, x.c.data(), s.n);
}

bench::Work openblas(const bench::OpenBlas& blas, int threads, const Shape3& s, Matrices& x) {
  if (!blas.found()) {
    return {};
  }
  return [&blas, threads, &s, &x] {
    blas.set_threads(threads);
    blas.multiply(s.m, s.n, s.k, x.a.data(), x.b.data(), x.c.data());
  };
}

bench::Work eigen(const Shape3& s, Matrices& x) {
#if defined(HAVE_EIGEN)
  return [&s, &x] {
    using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const Eigen::Map<const Matrix> a(x.a.data(), s.m, s.k), b(x.b.data(), s.k, s.n);
    Eigen::Map<Matrix>(x.c.data(), s.m, s.n).noalias() = a * b;
  };
#else
  static_cast<void>(s);
  static_cast<void>(x);
  return {};
#endif
}

int main() {
  bench::print_machine("gemm: C[M, N] = A[M, K] B[K, N] in f32, GFLOP/s");
  const bench::OpenBlas blas;
  const int threads = ts::thread_count();
  const std::vector<double> loop =
      bench::compare({bench::serial(bench::limit_loop), bench::limit_loop});
  std::printf("FMA loop: %.0f GFLOP/s on one thread, %.0f on %d\n",
              bench::limit_flops / loop[0] / 1e9, bench::limit_flops / loop[1] / 1e9, threads);
  if (!blas.found()) {
    bench::skip("OpenBLAS", "libopenblas was not found");
  } else {
    const char* const told = std::getenv("OPENBLAS_CORETYPE");
    std::printf("OpenBLAS uses its kernels for %s%s\n", blas.core.c_str(),
                told != nullptr ? " (OPENBLAS_CORETYPE asks for them)" : "");
  }
  Matrices none(shapes[0]);
  if (!eigen(shapes[0], none)) {
    bench::skip("Eigen", "Eigen/Core was not found");
  }
  const std::string path = ts::name_of(ts::cpu().path);
  const std::string all = std::to_string(threads) + "T";
  ts::Table table;
  table.columns = {"what",
                   "M x N x K",
                   "1T",
                   "/ FMA loop",
                   "/ OpenBLAS",
                   "/ Eigen",
                   "/ portable",
                   all,
                   all + " / roof",
                   all + " / 1T",
                   all + " / OpenBLAS"};
  double log_one = 0, log_all = 0;
  for (const Shape3& s : shapes) {
    Matrices x(s);
    const bench::Work work = [&s, &x] { own(s, x); };
    const bench::Work portable = bench::serial([&s, &x] {
      const ts::detail::PathScope scope(ts::CpuPath::portable);
      own(s, x);
    });
    const std::vector<double> one =
        bench::compare({bench::serial(work), openblas(blas, 1, s, x), bench::serial(eigen(s, x)),
                        portable, bench::serial(bench::limit_loop)});
    const bench::ReadLimit read(s.bytes());
    const std::vector<double> many =
        bench::compare({work, openblas(blas, threads, s, x), bench::limit_loop, read.work()});
    const double roof = std::max(s.flops() * many[2] / bench::limit_flops, many[3]);
    table.add(
        {s.what, ts::detail::cat(s.m, " x ", s.n, " x ", s.k), bench::rate(s.flops(), one[0], 1e9),
         bench::ratio(s.flops() * one[4] / bench::limit_flops, one[0]),
         bench::ratio(one[1], one[0]), bench::ratio(one[2], one[0]), bench::ratio(one[3], one[0]),
         bench::rate(s.flops(), many[0], 1e9), bench::ratio(roof, many[0]),
         bench::ratio(one[0], many[0]), bench::ratio(many[1], many[0])});
    log_one += one[1] > 0 ? std::log(one[1] / one[0]) : 0;
    log_all += many[1] > 0 ? std::log(many[1] / many[0]) : 0;
  }
  std::printf("\n%s", table.text().c_str());
  std::printf(
      "\n1T: one thread, path %s; %s: %d threads. Against a peer, above 1: tinyscale is faster.\n"
      "FMA loop and roof (that loop, or one reading of the operands) are limits.\n",
      path.c_str(), all.c_str(), threads);
  if (blas.found()) {
    const double count = static_cast<double>(shapes.size());
    std::printf("geometric mean / OpenBLAS: %.2f on one thread, %.2f on %d\n",
                std::exp(log_one / count), std::exp(log_all / count), threads);
  }
  return 0;
}
