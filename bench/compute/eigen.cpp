// Eigen, compiled as this program is: no -march, its expression kernels for SSE.
#include "peers.hpp"

#if defined(__has_include)
#if __has_include(<eigen3/Eigen/Core>)
#include <eigen3/Eigen/Core>
#define BENCH_EIGEN 1
#elif __has_include(<Eigen/Core>)
#include <Eigen/Core>
#define BENCH_EIGEN 1
#endif
#endif

namespace bench {

Way eigen_multiply(Bench& bench, int m, int n, int k, const float* a, const float* b, float* c) {
#if defined(BENCH_EIGEN)
  bench.peer("Eigen " + std::to_string(EIGEN_WORLD_VERSION) + "." +
             std::to_string(EIGEN_MAJOR_VERSION) + "." + std::to_string(EIGEN_MINOR_VERSION) +
             ", compiled as tinyscale");
  const Way way = timed("Eigen", Clock::thread, [=] {
    using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const Eigen::Map<const Matrix> x(a, m, k), y(b, k, n);
    Eigen::Map<Matrix>(c, m, n).noalias() = x * y;
  });
  return writing(way, c, std::int64_t{m} * n);
#else
  static_cast<void>(m + n + k);
  static_cast<void>(a != nullptr && b != nullptr && c != nullptr);
  bench.skip("Eigen", "Eigen/Core was not found");
  return Way{"Eigen", {}, 1, true};
#endif
}

}  // namespace bench
