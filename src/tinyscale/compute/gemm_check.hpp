#pragma once
// What a matrix product is asked for: its operands as strides, and the arguments no product can be
// made of, named in an Error.

#include <algorithm>
#include <cstdint>

#include "tinyscale/base/error.hpp"
#include "tinyscale/compute/gemm_tile.hpp"
#include "tinyscale/compute/memory_check.hpp"

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

// A matrix as it is stored, `stride` numbers of `bytes` each from row to row.
struct StoredRows {
  const void* at = nullptr;
  std::int64_t rows = 0, columns = 0, stride = 0;
  std::uintptr_t bytes = 1;

  std::int64_t extent(const char* who) const { return gemm_extent(who, rows, columns, stride); }
  std::uintptr_t begin() const { return reinterpret_cast<std::uintptr_t>(at); }
  std::uintptr_t columns_bytes() const { return static_cast<std::uintptr_t>(columns) * bytes; }
};

template <class T>
StoredRows stored_rows(const T* at, kernels::Trans trans, std::int64_t rows, std::int64_t columns,
                       std::int64_t stride) {
  const bool no = trans == kernels::Trans::no;
  return {at, no ? rows : columns, no ? columns : rows, stride, sizeof(T)};
}

// Whether two matrices share memory; no such matrix, or an empty one, does not. Columns side by
// side in rows of one length are apart although their ranges in memory cross.
inline bool gemm_overlap(const char* who, const StoredRows& c, const StoredRows& x) {
  const auto size = [&](const StoredRows& of) {
    return of.at == nullptr ? 0 : static_cast<std::uintptr_t>(of.extent(who)) * of.bytes;
  };
  const std::uintptr_t in_c = size(c), in_x = size(x);
  const bool after = x.begin() >= c.begin();
  const std::uintptr_t distance = after ? x.begin() - c.begin() : c.begin() - x.begin();
  if (in_c == 0 || in_x == 0 || distance >= (after ? in_c : in_x)) {
    return false;
  }
  if (c.stride != x.stride || c.bytes != x.bytes || c.stride == 0) {
    return true;
  }
  const std::uintptr_t apart = static_cast<std::uintptr_t>(c.stride) * c.bytes;
  const std::uintptr_t rest = distance % apart;
  const std::uintptr_t shift = after || rest == 0 ? rest : apart - rest;
  return shift < c.columns_bytes() || shift + x.columns_bytes() > apart;
}

// Throws on what no product can be made of; true where there is something to do. A packed B is an
// empty matrix here.
inline bool gemm_check(const char* who, std::int64_t k, const StoredRows& a, const StoredRows& b,
                       const StoredRows& c) {
  const std::int64_t in_a = a.extent(who), in_b = b.extent(who), in_c = c.extent(who);
  if (c.rows > 1 && c.stride < c.columns) {
    fail({who, ": rows of C are ", c.stride, " apart; they must be at least n = ", c.columns});
  }
  if (in_c == 0) {
    return false;
  }
  if (c.at == nullptr || (in_a > 0 && a.at == nullptr) || (in_b > 0 && b.at == nullptr)) {
    fail({who, ": ",
          c.at == nullptr   ? "C"
          : a.at == nullptr ? "A"
                            : "B",
          " is null; m, n, k are ", c.rows, ", ", c.columns, ", ", k});
  }
  for (const StoredRows* x : {&a, &b}) {
    if (x->rows > 1 && x->stride > 0 && x->stride < x->columns) {
      fail({who, ": rows of ", x == &a ? "A" : "B", " are ", x->stride, " apart; they must be at ",
            "least their length, ", x->columns, ", or 0 for one row over and over"});
    }
  }
  const bool with_a = gemm_overlap(who, c, a);
  if (with_a || gemm_overlap(who, c, b)) {
    fail({who, ": C overlaps ", with_a ? "A" : "B", "; it must have memory of its own"});
  }
  return true;
}

// Of matrices x that begin `step` bytes apart, `first` bytes behind one of C and so on, the first
// that shares memory with it, or -1. Rows of one length cross where what is between their
// beginnings is near a multiple of it: so many stretches of j, not all of them, are looked at.
inline std::int64_t overlapping_batch(const char* who, std::int64_t batch, const StoredRows& c,
                                      const StoredRows& x, std::int64_t first, std::int64_t step) {
  const auto size = [](std::int64_t numbers, const StoredRows& of) {
    return numbers * static_cast<std::int64_t>(of.bytes);
  };
  const auto floor = [](std::int64_t a, std::int64_t by) {  // by > 0
    return a / by - (a % by < 0 ? 1 : 0);
  };
  const std::int64_t low = 1 - size(x.extent(who), x), high = size(c.extent(who), c) - 1;
  const std::int64_t least = std::max(low, first);
  const std::int64_t most = std::min(high, first + (batch - 1) * step);
  const bool rows = c.stride == x.stride && c.bytes == x.bytes && c.stride != 0;
  const std::int64_t apart = rows ? size(c.stride, c) : 1;
  const std::int64_t before = rows ? size(x.columns, x) - 1 : 0;
  const std::int64_t behind = rows ? size(c.columns, c) - 1 : 0;
  const std::int64_t turns = rows ? floor(most + before, apart) : 0;
  for (std::int64_t q = rows ? -floor(behind - least, apart) : 0; q <= turns; ++q) {
    const std::int64_t from = rows ? std::max(least, q * apart - before) : least;
    const std::int64_t to = rows ? std::min(most, q * apart + behind) : most;
    const std::int64_t j = step == 0 ? 0 : -floor(first - from, step);
    if (from <= to && j < batch && first + j * step <= to) {
      return j;
    }
  }
  return -1;
}

// No matrix of C may share memory with one of A, or of B, that another product reads.
inline void check_batches(std::int64_t batch, const StoredRows& c, std::int64_t stride_c,
                          const StoredRows& x, std::int64_t stride_x, const char* name) {
  const char* const who = "gemm_batched";
  const bool down = stride_x < 0;  // then from the last on
  const std::int64_t step = (down ? -stride_x : stride_x) * static_cast<std::int64_t>(x.bytes);
  const auto* const at = static_cast<const char*>(x.at) - (down ? (batch - 1) * step : 0);
  const auto bytes = [](const StoredRows& of) { return static_cast<std::int64_t>(of.bytes); };
  if (batch < 2 || c.extent(who) == 0 || x.extent(who) == 0 || c.at == nullptr || x.at == nullptr ||
      !memory_overlaps({"C", c.at, c.columns, c.rows, c.stride, batch, stride_c, bytes(c)},
                       {name, at, x.columns, x.rows, x.stride, step == 0 ? 1 : batch,
                        step / bytes(x), bytes(x)})) {
    return;
  }
  const auto first = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(at) - c.begin());
  for (std::int64_t i = 0; i < batch; ++i) {
    const std::int64_t j =
        overlapping_batch(who, step == 0 ? 1 : batch, c, x, first - i * stride_c * bytes(c), step);
    if (j >= 0) {
      fail({who, ": matrix ", i, " of C overlaps matrix ", down ? batch - 1 - j : j, " of ", name,
            "; it must have memory of its own"});
    }
  }
}

// Weights to be laid out.
inline void check_to_pack(const char* who, std::int64_t k, std::int64_t n, const StoredRows& b) {
  if (b.extent(who) > 0 && b.at == nullptr) {
    fail({who, ": B is null; k, n are ", k, ", ", n});
  }
}

inline void check_beta(const char* who, float beta) {
  if (beta != 0.0f && beta != 1.0f) {
    fail({who, ": beta is ", static_cast<double>(beta), "; it must be 0 or 1"});
  }
}

inline bool gemm_check(const char* who, kernels::Trans ta, kernels::Trans tb, const GemmOperands& g,
                       std::int64_t lda, std::int64_t ldb) {
  check_beta(who, g.beta);
  return gemm_check(who, g.k, stored_rows(g.a, ta, g.m, g.k, lda),
                    stored_rows(g.b, tb, g.k, g.n, ldb),
                    stored_rows(g.c, kernels::Trans::no, g.m, g.n, g.ldc));
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
