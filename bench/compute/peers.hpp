#pragma once
// The peers: shared libraries opened when they are there, and programs that time themselves when
// asked through a pipe, so that they take turns with ours.

#include <memory>
#include <new>
#include <string>
#include <vector>

#include "../worker.hpp"
#include "driver.hpp"

namespace bench {

// cblas of one library: row-major C[m, n] = A[m, k] B[k, n].
struct Blas {
  using Sgemm = void (*)(int order, int ta, int tb, int m, int n, int k, float alpha,
                         const float* a, int lda, const float* b, int ldb, float beta, float* c,
                         int ldc);
  using Sgemv = void (*)(int order, int ta, int m, int n, float alpha, const float* a, int lda,
                         const float* x, int incx, float beta, float* y, int incy);
  std::string name;
  Sgemm sgemm = nullptr;
  Sgemv sgemv = nullptr;
  void (*set_threads)(int) = nullptr;

  bool found() const { return sgemm != nullptr && set_threads != nullptr; }
  Way multiply(int threads, int m, int n, int k, const float* a, const float* b, float* c) const;
  // y[n] = W[n, k] x[k]
  Way times_vector(int threads, int n, int k, const float* w, const float* x, float* y) const;
};

const Blas& openblas(Bench& bench);
const Blas& blis(Bench& bench);

// oneDNN: its sgemm, and its matmul with weights in the layout that it likes best.
enum class Format { f32, bf16, int8 };
bool onednn_found(Bench& bench);
Way onednn_sgemm(Bench& bench, int threads, int m, int n, int k, const float* a, const float* b,
                 float* c);
Way onednn_packed(Bench& bench, int threads, int m, int n, int k, Format format);

// Eigen, compiled as this program is; one thread.
Way eigen_multiply(Bench& bench, int m, int n, int k, const float* a, const float* b, float* c);

Way asked(const std::string& name, const std::shared_ptr<Worker>& worker, const std::string& line);

// PyTorch on so many threads; null when no Python here can import it. One process a count.
std::shared_ptr<Worker> torch(Bench& bench, int threads);
// This program again, with other environment variables: OpenBLAS with kernels for another
// processor.
std::shared_ptr<Worker> openblas_as(Bench& bench, const std::string& core, int threads);
int serve_openblas(int threads);  // its main
// An OpenBLAS older than this processor takes the kernels of 2004: it is told of the best that it
// has, and so are the programs that use it.
void tell_openblas();
std::shared_ptr<Worker> plain_c(Bench& bench, const std::string& shape, int threads);

// Memory as tensors have it: from the beginning of a line of 64 bytes.
template <class T>
struct LineAllocator {
  using value_type = T;
  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}
  T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t(64)));
  }
  void deallocate(T* memory, std::size_t) { ::operator delete(memory, std::align_val_t(64)); }
  bool operator==(const LineAllocator&) const { return true; }
  bool operator!=(const LineAllocator&) const { return false; }
};
using Numbers = std::vector<float, LineAllocator<float>>;

Numbers numbers(std::int64_t count, std::uint64_t seed);  // in [-1, 1)

}  // namespace bench
