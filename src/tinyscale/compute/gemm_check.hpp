#pragma once
// What a matrix product is asked for: its operands as strides, and the arguments no product can be
// made of, named in an Error.

#include <algorithm>
#include <cstdint>
#include <functional>  // less

#include "tinyscale/base/error.hpp"
#include "tinyscale/compute/gemm_tile.hpp"

namespace tinyscale {
namespace kernels {

enum class Trans { no, yes };  // yes: the matrix is stored transposed

}  // namespace kernels

namespace detail {

// One past the last float of a rows x columns matrix; throws where that cannot be counted.
inline std::int64_t gemm_extent(const char* who, std::int64_t rows, std::int64_t columns,
                                std::int64_t stride) {
  const std::int64_t most = std::int64_t{1} << 60;
  if (rows < 0 || columns < 0 || stride < 0 || columns > most ||
      (rows > 1 && stride > most / rows)) {
    fail({who, ": ", rows, " rows of ", columns, " numbers, ", stride,
          " apart, are no matrix in memory; sizes must be from 0 to 2^60"});
  }
  return rows == 0 || columns == 0 ? 0 : (rows - 1) * stride + columns;
}

// Whether C (m x n, ldc apart) shares a number with a matrix that starts at x. Columns side by side
// in rows of one length are apart although their ranges in memory cross.
inline bool gemm_overlap(const float* c, std::int64_t m, std::int64_t n, std::int64_t ldc,
                         const float* x, std::int64_t extent, std::int64_t columns,
                         std::int64_t ldx) {
  const std::less<const float*> before;
  if (extent == 0 || !before(x, c + (m - 1) * ldc + n) || !before(c, x + extent)) {
    return false;
  }
  if (ldc == 0) {  // of one row
    return true;
  }
  const std::int64_t shift = ((x - c) % ldc + ldc) % ldc;
  return ldx != ldc || shift < n || shift + columns > ldc;
}

// Throws on what no product can be made of; true where there is something to do.
inline bool gemm_check(const char* who, kernels::Trans ta, kernels::Trans tb, const GemmOperands& g,
                       std::int64_t lda, std::int64_t ldb) {
  const bool a_no = ta == kernels::Trans::no, b_no = tb == kernels::Trans::no;
  const std::int64_t a = gemm_extent(who, a_no ? g.m : g.k, a_no ? g.k : g.m, lda);
  const std::int64_t b = gemm_extent(who, b_no ? g.k : g.n, b_no ? g.n : g.k, ldb);
  const std::int64_t c = gemm_extent(who, g.m, g.n, g.ldc);
  if (g.beta != 0.0f && g.beta != 1.0f) {
    fail({who, ": beta is ", static_cast<double>(g.beta), "; it must be 0 or 1"});
  }
  if (g.m > 1 && g.ldc < g.n) {
    fail({who, ": rows of C are ", g.ldc, " apart; they must be at least n = ", g.n});
  }
  if (c == 0) {
    return false;
  }
  if (g.c == nullptr || (a > 0 && g.a == nullptr) || (b > 0 && g.b == nullptr)) {
    fail({who, ": ",
          g.c == nullptr   ? "C"
          : g.a == nullptr ? "A"
                           : "B",
          " is null; m, n, k are ", g.m, ", ", g.n, ", ", g.k});
  }
  const bool in_a = gemm_overlap(g.c, g.m, g.n, g.ldc, g.a, a, a_no ? g.k : g.m, lda);
  if (in_a || gemm_overlap(g.c, g.m, g.n, g.ldc, g.b, b, b_no ? g.n : g.k, ldb)) {
    fail({who, ": C overlaps ", in_a ? "A" : "B", "; it must have memory of its own"});
  }
  return true;
}

inline GemmOperands gemm_operands(kernels::Trans ta, kernels::Trans tb, std::int64_t m,
                                  std::int64_t n, std::int64_t k, const float* a, std::int64_t lda,
                                  const float* b, std::int64_t ldb, float beta, float* c,
                                  std::int64_t ldc) {
  const bool a_no = ta == kernels::Trans::no;
  const bool b_no = tb == kernels::Trans::no;
  return {m,    n, k,  a, a_no ? lda : 1, a_no ? 1 : lda, b, b_no ? ldb : 1, b_no ? 1 : ldb,
          beta, c, ldc};
}

}  // namespace detail
}  // namespace tinyscale
