#pragma once
// Four tile kernels, each run beside the ops that it replaces: matmul with bias and GELU, softmax,
// layer norm, attention (FlashAttention, arXiv 2205.14135). What a kernel saves is HBM traffic: the
// ops write every intermediate result and read it again. The least is each operand and the result
// once. In blocks [BM, BN] a matmul moves s (M K ceil(N / BN) + K N ceil(M / BM) + M N) bytes.

#include <algorithm>  // max, min
#include <cmath>      // fabs, sqrt
#include <cstdint>    // int64_t
#include <iostream>   // ostream
#include <string>     // string

#include "tinyscale/systolic/on_chip.hpp"
#include "tinyscale/systolic/tile_kernel.hpp"
#include "tinyscale/tensor/attend.hpp"
#include "tinyscale/tensor/normalize.hpp"

namespace tinyscale {

struct TileOptions {
  List<Dim> block;  // {M, N, K} of a matmul, {rows}, {queries, keys}; empty: the largest that fits
  int stages = 2;
  DType format = DType::bf16;
};

// A kernel's run beside that of the ops.
struct TiledRun : KernelRun {
  Tensor output;
  std::int64_t unfused_ops = 0, unfused_bytes = 0, least_bytes = 0;  // in the kernel's format
  double largest_difference = 0;  // |output - that of the ops|; NaN: only one of them is

  Table traffic() const {
    Table t;
    t.title = name + ": HBM traffic";
    t.columns = {"by", "bytes", "times the least", "source"};
    const auto row = [&t, this](const std::string& by, std::int64_t bytes, const char* source) {
      const auto least = static_cast<double>(std::max<std::int64_t>(least_bytes, 1));
      const Cell times = format_fixed(static_cast<double>(bytes) / least, 2);
      t.add({by, std::to_string(bytes), times, source});
    };
    row(detail::cat({unfused_ops, " unfused ops"}), unfused_bytes, "counted");
    row("the kernel", hbm_bytes(), "simulated");
    row("the least", least_bytes, "formula");
    return t;
  }
};

inline std::ostream& operator<<(std::ostream& out, const TiledRun& run) {
  return out << run.table() << run.traffic();
}

// HBM bytes of [M, K] times [K, N] in blocks [BM, BN] of the result.
inline std::int64_t tiled_matmul_bytes(Dim m, Dim n, Dim k, Dim bm, Dim bn, DType format) {
  for (const Dim& size : {m, n, k, bm, bn}) {
    if (size.value < 1 || size.value > 1 << 20) {
      detail::fail({"tiled_matmul_bytes: M, N, K, BM, BN are ", m.value, ", ", n.value, ", ",
                    k.value, ", ", bm.value, ", ", bn.value, "; each must be from 1 to 2^20"});
    }
  }
  const std::int64_t moved = m.value * k.value * detail::folds_of(n.value, bn.value) +
                             k.value * n.value * detail::folds_of(m.value, bm.value) +
                             m.value * n.value;
  if (static_cast<double>(moved) * bytes_of(format) >= 0x1p62) {
    detail::fail({"tiled_matmul_bytes: ", moved, " numbers in ", format,
                  " move; the bytes must stay below 2^62"});
  }
  return detail::ticks(static_cast<double>(moved) * bytes_of(format), 1);
}

namespace detail {

// The block that was given, else the largest power of two b up to `most` for which square b^2 +
// linear b bytes fit on the chip, in each dim no larger than it takes to hold `sizes`; 8 at least.
inline List<Dim> block_or_fit(const char* what, const Chip& chip, const TileOptions& options,
                              const List<Dim>& sizes, double most, double square, double linear) {
  bool legal = options.block.empty() || options.block.size() == sizes.size();
  for (const Dim& size : options.block) {
    legal = legal && size.value > 0;
  }
  if (!legal) {
    fail({what, ": block ", list_text(options.block), "; ", sizes.size(),
          sizes.size() == 1 ? " size from 1 is right" : " sizes from 1 are right"});
  }
  const double room = chip.sram_bytes > 0 ? chip.sram_bytes / tile_cores(chip) : 1e300;
  double b = 8;
  while (2 * b <= most && (square * 2 * b + linear) * 2 * b <= room) {
    b *= 2;
  }
  List<Dim> block = options.block;
  for (std::size_t i = block.size(); i < sizes.size(); ++i) {
    block.push_back(8);
    while (block[i].value < std::min(static_cast<std::int64_t>(b), sizes[i].value)) {
      block[i].value *= 2;
    }
  }
  return block;
}

// Counts what is computed while it is alive: the ops that a kernel replaces.
struct UnfusedOps {
  Context own = quiet_context();
  const ContextScope scope{own};
  const HookScope host{nullptr};
  const Profile profile;

  // The kernel's run with its output and the least elements that move, beside these ops.
  TiledRun beside(const KernelRun& kernel, const Tensor& output, std::int64_t least,
                  const Tensor& theirs) {
    TiledRun run;
    static_cast<KernelRun&>(run) = kernel;
    const double s = bytes_of(run.format);
    run.output = output;
    run.least_bytes = ticks(static_cast<double>(least) * s, 1);
    run.unfused_ops = static_cast<std::int64_t>(profile.totals().ops);
    run.unfused_bytes = ticks(profile.totals().bytes() / bytes_of(DType::f32) * s, 1);
    const Tensor wanted = contiguous(theirs);
    for (std::int64_t i = 0; i < output.count(); ++i) {
      const double a = output.data()[i], b = wanted.data()[i];
      const double gap = a == b || (a != a && b != b) ? 0 : std::fabs(a - b);
      run.largest_difference = gap <= run.largest_difference ? run.largest_difference : gap;
    }
    return run;
  }
};

// The rows of x [.., D] in as large blocks as fit with `live` f32 tiles at a time.
struct TileRows {
  TileRows(const char* name, const Chip& chip, const Tensor& x, const TileOptions& options,
           double live) {
    check_last_dim(name, x);
    d = x.dim(-1);
    const std::int64_t rows = x.count() / d;
    const double row =
        (4 * live + 2 * options.stages * bytes_of(options.format)) * static_cast<double>(d);
    const double most = static_cast<double>(rows) / (4 * tile_cores(chip));
    b = block_or_fit(name, chip, options, {rows}, most, 0, row)[0].value;
    blocks = folds_of(rows, b);
    from = reshape(x.detach(), {rows, d});
    to = zeros({rows, d});
  }
  TileValue load(Tile& t) const { return t.load_masked(from, {t.id(0) * b, 0}, {b, d}); }
  void store(Tile& t, const TileValue& v) const { t.store_masked(to, {t.id(0) * b, 0}, v); }

  Tensor from, to;
  std::int64_t d = 0, b = 0, blocks = 0;
};

}  // namespace detail

// a [M, K] times b [K, N]; with a bias [N], GELU(a b + bias), all in one kernel.
inline TiledRun tiled_matmul(const Chip& chip, const Tensor& a, const Tensor& b,
                             const Tensor& bias = Tensor(), const TileOptions& options = {}) {
  const detail::Matmul s = detail::matmul_sizes("tiled_matmul", a, b, kernels::Trans::no);
  if (bias.defined() && bias.shape() != Shape{s.n}) {
    detail::fail({"tiled_matmul: b is ", b.shape(), ", bias is ", bias.shape(), "; bias must be [",
                  s.n, "]"});
  }
  const double programs = std::max(4, detail::tile_cores(chip));
  const double most = std::sqrt(static_cast<double>(s.m) * static_cast<double>(s.n) / programs);
  const int deep = std::max(chip.mxu_rows, 16);  // K of a block: what fills the rows of an array
  const double width = options.stages * bytes_of(options.format);
  const List<Dim> block = detail::block_or_fit("tiled_matmul", chip, options,
                                               {s.m, s.n, std::min<std::int64_t>(s.k, deep)},
                                               std::min(most, 1024.0), 4 + width, 4 * width * deep);
  const std::int64_t bm = block[0].value, bn = block[1].value, bk = block[2].value;
  const Tensor from = reshape(a.detach(), {s.m, s.k}), y = zeros({s.m, s.n});
  const auto body = [&](Tile& t) {
    const std::int64_t i = t.id(0) * bm, j = t.id(1) * bn;
    TileValue acc = t.zeros({bm, bn});
    for (std::int64_t p = 0; p < s.k; p += bk) {
      const TileValue x = t.load_masked(from, {i, p}, {bm, bk});
      acc += t.dot(x, t.load_masked(b, {p, j}, {bk, bn}));
    }
    if (bias.defined()) {
      acc = t.gelu(acc + t.load_masked(bias, {j}, {bn}));
    }
    t.store_masked(y, {i, j}, acc);
  };
  const List<Dim> grid{detail::folds_of(s.m, bm), detail::folds_of(s.n, bn)};
  const KernelRun run = detail::run_kernel(
      {"tiled_matmul", grid, nullptr, options.stages, options.format}, chip, body);
  detail::UnfusedOps ops;
  Tensor product = matmul(a, b);
  product = bias.defined() ? gelu(product + bias) : product;
  return ops.beside(run, reshape(y, s.shape), a.count() + b.count() + bias.count() + y.count(),
                    product);
}

// Along the last dim, a whole row in a tile; the ops are max, subtract, exp, sum, divide.
inline TiledRun tiled_softmax(const Chip& chip, const Tensor& x, const TileOptions& options = {}) {
  const detail::TileRows rows("tiled_softmax", chip, x, options, 2);
  const auto body = [&](Tile& t) {
    TileValue v = rows.load(t);
    v = t.exp(v - t.max(v, 1));
    rows.store(t, v / t.sum(v, 1));
  };
  const KernelRun run = detail::run_kernel(
      {"tiled_softmax", {rows.blocks}, nullptr, options.stages, options.format}, chip, body);
  detail::UnfusedOps ops;
  const Tensor e = exp(x - max(x, -1, KeepDim::yes));
  return ops.beside(run, reshape(rows.to, x.shape()), 2 * x.count(), e / sum(e, -1, KeepDim::yes));
}

// (x - mean) / sqrt(variance + epsilon) * weight + bias along the last dim; weight and bias [D].
inline TiledRun tiled_layer_norm(const Chip& chip, const Tensor& x, const Tensor& weight,
                                 const Tensor& bias, const TileOptions& options = {},
                                 float epsilon = 1e-5f) {
  detail::check_norm("tiled_layer_norm", "weight", x, weight);
  detail::check_norm("tiled_layer_norm", "bias", x, bias);
  const detail::TileRows rows("tiled_layer_norm", chip, x, options, 3);
  const float each = 1.0f / static_cast<float>(rows.d);
  const auto body = [&](Tile& t) {
    TileValue v = rows.load(t);
    v -= t.sum(v, 1) * each;
    v /= t.sqrt(t.sum(v * v, 1) * each + epsilon);
    v *= t.load(weight, {0}, {rows.d});
    rows.store(t, v + t.load(bias, {0}, {rows.d}));
  };
  const KernelRun run = detail::run_kernel(
      {"tiled_layer_norm", {rows.blocks}, nullptr, options.stages, options.format}, chip, body);
  detail::UnfusedOps ops;
  const Tensor c = x - sum(x, -1, KeepDim::yes) * each;
  const Tensor deviation = sqrt(sum(square(c), -1, KeepDim::yes) * each + epsilon);
  return ops.beside(run, reshape(rows.to, x.shape()), 2 * (x.count() + rows.d),
                    c / deviation * weight + bias);
}

// softmax(q k^T / sqrt(d)) v, the softmax gathered block by block of keys; q [T, d], k and v [S,
// d], or all of them [heads, .., d]. causal: query i sees key j when j <= i + S - T.
inline TiledRun flash_attention(const Chip& chip, const Tensor& q, const Tensor& k, const Tensor& v,
                                Mask mask = Mask::none, const TileOptions& options = {}) {
  const int dims = q.dims();
  if (dims < 2 || dims > 3 || k.dims() != dims || k.shape() != v.shape() ||
      q.dim(-1) != k.dim(-1) || q.dim(0) * k.dim(0) == 0 || (dims == 3 && q.dim(0) != k.dim(0)) ||
      (mask == Mask::causal && k.dim(-2) < q.dim(-2)) || q.count() == 0 || k.count() == 0) {
    detail::fail({"flash_attention: q is ", q.shape(), ", k is ", k.shape(), ", v is ", v.shape(),
                  "; right is q [T, d], k and v [S, d], or all [heads, .., d], and S >= T when ",
                  "causal"});
  }
  const std::int64_t queries = q.dim(-2), keys = k.dim(-2), d = q.dim(-1);
  const std::int64_t heads = dims == 3 ? q.dim(0) : 1;
  const float factor = 1.0f / std::sqrt(static_cast<float>(d));
  const double s = bytes_of(options.format), width = static_cast<double>(d);
  const double most = std::min(512.0, static_cast<double>(std::max(queries, keys)) / 2);
  const List<Dim> block =
      detail::block_or_fit("flash_attention", chip, options, {queries, keys}, most, 12,
                           (8 + (2 + 3 * options.stages) * s) * width);
  const std::int64_t bq = block[0].value, bk = block[1].value;
  const Tensor q3 = reshape(q.detach(), {heads, queries, d}), y = zeros({heads, queries, d});
  const Tensor k3 = reshape(k.detach(), {heads, keys, d});
  const Tensor v3 = reshape(v.detach(), {heads, keys, d});
  const auto body = [&](Tile& t) {
    const std::int64_t i = t.id(1) * bq, last = i + bq + keys - queries;
    const TileValue x = t.load_masked(q3, {t.id(0), i, 0}, {1, bq, d}) * factor;
    TileValue top = t.full({bq, 1}, -1e30f), total = t.zeros({bq, 1}), acc = t.zeros({bq, d});
    for (std::int64_t j = 0; j < (mask == Mask::causal ? std::min(last, keys) : keys); j += bk) {
      TileValue p = t.dot_transposed(x, t.load_masked(k3, {t.id(0), j, 0}, {1, bk, d}));
      if (mask == Mask::causal && j + bk > i + keys - queries) {
        p = t.causal(p, i + keys - queries, j);
      }
      if (j + bk > keys) {
        p = t.where(t.less(t.arange(bk, 1, j), static_cast<float>(keys)), p, -1e30f);
      }
      const TileValue higher = t.maximum(top, t.max(p, 1));
      const TileValue fade = t.exp(top - higher);  // of what was gathered below a lower top
      top = higher;
      p = t.exp(p - top);
      total *= fade;
      total += t.sum(p, 1);
      acc *= fade;
      acc += t.dot(p, t.load_masked(v3, {t.id(0), j, 0}, {1, bk, d}));
    }
    t.store_masked(y, {t.id(0), i, 0}, acc / total);
  };
  const Tensor query = reshape(arange(queries), {queries, 1}) + static_cast<float>(keys - queries);
  const Tensor hidden = less(query, arange(keys));
  const List<Dim> grid{heads, detail::folds_of(queries, bq)};
  const KernelRun run = detail::run_kernel(
      {"flash_attention", grid, nullptr, options.stages, options.format}, chip, body);
  detail::UnfusedOps ops;
  Tensor scores = matmul(q * factor, transpose(k, -1, -2));
  scores = mask == Mask::causal ? masked_fill(scores, hidden, -1e30f) : scores;
  return ops.beside(run, reshape(y, q.shape()), 2 * (q.count() + k.count()),
                    matmul(softmax(scores), v));
}

}  // namespace tinyscale
