// Tile kernels: numbers against the ops they replace, bytes against the closed form, ticks against
// timelines drawn by hand.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

const double kEpsilon = 1.1920929e-7;

// One 4 x 4 array, 4 bytes and 2 vector operations a tick, no limit on its memory.
ts::Chip small_chip() {
  ts::Chip chip;
  chip.name = "small";
  chip.kind = "tpu";
  chip.clock_hz = 1;
  chip.memory_bandwidth = 4;
  chip.vector_flops = 2;
  chip.mxu_rows = chip.mxu_cols = 4;
  chip.mxus = 1;
  chip.flops_bf16 = 32;
  return chip;
}

// c = a b in blocks, with masks.
ts::Kernel matmul_kernel(const ts::Tensor& a, const ts::Tensor& b, const ts::Tensor& c, int bm,
                         int bn, int bk) {
  const std::int64_t m = a.dim(0), k = a.dim(1), n = b.dim(1);
  return ts::kernel("matmul", {(m + bm - 1) / bm, (n + bn - 1) / bn}, [=](ts::Tile& t) {
    auto acc = t.zeros({bm, bn});
    for (std::int64_t p = 0; p < k; p += bk) {
      acc += t.dot(t.load_masked(a, {t.id(0) * bm, p}, {bm, bk}),
                   t.load_masked(b, {p, t.id(1) * bn}, {bk, bn}));
    }
    t.store_masked(c, {t.id(0) * bm, t.id(1) * bn}, acc);
  });
}

// y = exp(x) for rows of 4 x 4 blocks.
ts::Kernel exp_kernel(const ts::Tensor& x, const ts::Tensor& y) {
  return ts::kernel("exp", {x.dim(0) / 4}, [=](ts::Tile& t) {
    t.store(y, {4 * t.id(0), 0}, t.exp(t.load(x, {4 * t.id(0), 0}, {4, 4})));
  });
}

// The largest |got - f64 product| over its bound: K + 2 roundings of the sum of |a b|.
double excess(const ts::Tensor& a, const ts::Tensor& b, const ts::Tensor& got) {
  const std::int64_t k = a.dim(1), n = b.dim(1);
  double worst = 0;
  for (std::int64_t i = 0; i < a.dim(0); ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0, size = 0;
      for (std::int64_t p = 0; p < k; ++p) {
        const double product =
            static_cast<double>(a.data()[i * k + p]) * static_cast<double>(b.data()[p * n + j]);
        sum += product;
        size += std::fabs(product);
      }
      const double gap = std::fabs(static_cast<double>(got.data()[i * n + j]) - sum);
      worst = std::fmax(worst, gap / (static_cast<double>(k + 2) * kEpsilon * size + 1e-30));
    }
  }
  return worst;
}

double difference(const ts::Tensor& a, const ts::Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  const ts::Tensor x = ts::contiguous(a), y = ts::contiguous(b);
  double worst = 0;
  for (std::int64_t i = 0; i < x.count(); ++i) {
    const double gap = std::fabs(static_cast<double>(x.data()[i] - y.data()[i]));
    worst = gap <= worst ? worst : gap;  // a NaN stays
  }
  return worst;
}

// What holds for every run.
void check_clock(const ts::KernelRun& run) {
  CHECK(run.cycles >= run.dma_cycles);
  CHECK(run.cycles >= run.mxu_cycles);
  CHECK(run.cycles >= run.vector_cycles);
  CHECK(run.cycles <= run.dma_cycles + run.mxu_cycles + run.vector_cycles);
  CHECK(run.overlap >= 0);
  CHECK(run.overlap <= 1);
}

// Runs it with 1 to 5 stages: never slower with more, never below the bound.
void check_stages(ts::Kernel kernel, const ts::Chip& chip) {
  std::int64_t before = std::numeric_limits<std::int64_t>::max();
  std::int64_t peak = 0;
  for (int stages = 1; stages <= 5; ++stages) {
    kernel.stages = stages;
    const ts::KernelRun run = kernel.run(chip);
    CAPTURE(stages);
    check_clock(run);
    CHECK(run.cycles <= before);
    CHECK(run.on_chip_peak >= peak);
    before = run.cycles;
    peak = run.on_chip_peak;
  }
}

}  // namespace

TEST_CASE("tile kernels: a matmul in blocks is the product, and moves the bytes of the formula") {
  const int cases[][6] = {{64, 64, 64, 16, 16, 16}, {100, 70, 90, 32, 32, 32},
                          {33, 65, 17, 32, 16, 8},  {1, 1, 1, 8, 8, 8},
                          {5, 300, 7, 16, 128, 16}, {128, 64, 192, 64, 64, 32}};
  for (const auto& c : cases) {
    const int m = c[0], n = c[1], k = c[2];
    CAPTURE(m);
    const ts::Tensor a = ts::randn({m, k}, 1), b = ts::randn({k, n}, 2), y = ts::zeros({m, n});
    ts::Kernel kernel = matmul_kernel(a, b, y, c[3], c[4], c[5]);
    for (const ts::DType format : {ts::DType::bf16, ts::DType::f32, ts::DType::int8}) {
      kernel.format = format;
      const ts::KernelRun run = kernel.run(ts::chip("tpu-v5e"));
      CHECK(run.hbm_bytes() == ts::tiled_matmul_bytes(m, n, k, c[3], c[4], format));
      CHECK(run.hbm_bytes_written == m * n * static_cast<int>(ts::bytes_of(format)));
      check_clock(run);
    }
    CHECK(excess(a, b, y) <= 1);
  }
}

TEST_CASE("tile kernels: HBM bytes of 4096^3 in bf16 by the tile") {
  CHECK(ts::tiled_matmul_bytes(4096, 4096, 4096, 128, 128, ts::DType::bf16) == 2181038080);
  CHECK(ts::tiled_matmul_bytes(4096, 4096, 4096, 256, 256, ts::DType::bf16) == 1107296256);
  CHECK(ts::tiled_matmul_bytes(4096, 4096, 4096, 16, 16, ts::DType::bf16) == 17213423616);
  CHECK(error_of([] { ts::tiled_matmul_bytes(8, 8, 8, 0, 8, ts::DType::bf16); }) ==
        "tiled_matmul_bytes: M, N, K, BM, BN are 8, 8, 8, 0, 8; each must be from 1 to 2^20");
  const std::int64_t most = 1 << 20;  // two numbers for each of 2^60 multiply-adds
  CHECK(ts::tiled_matmul_bytes(most, most, most, 1, 1, ts::DType::int8) ==
        (std::int64_t{1} << 61) + (std::int64_t{1} << 40));
  CHECK(error_of([&] { ts::tiled_matmul_bytes(most, most, most, 1, 1, ts::DType::f32); }) ==
        "tiled_matmul_bytes: 2305844108725321728 numbers in f32 move; the bytes must stay below "
        "2^62");
  // Really run, with operands that are one number repeated and a body that adds instead of dots.
  const ts::Tensor one = ts::ones({1});
  const ts::Tensor a = one.as_strided({4096, 4096}, ts::detail::Strides(), 0);
  const ts::Tensor c = ts::zeros({256, 256});
  const ts::Kernel kernel = ts::kernel("adds", {16, 16}, [&](ts::Tile& t) {
    for (int k = 0; k < 4096; k += 1024) {
      t.load(a, {t.id(0) * 256, k}, {256, 1024});
      t.load(a, {k, t.id(1) * 256}, {1024, 256});
    }
    t.store(c, {0, 0}, t.zeros({256, 256}));
  });
  CHECK(kernel.run(ts::chip("tpu-v5e")).hbm_bytes() == 1107296256);
}

TEST_CASE("tile kernels: two timelines by hand") {
  // A generation is two loads of 8 ticks, a dot takes 4, the store 8.
  const ts::Tensor a = ts::randn({4, 12}, 1), b = ts::randn({12, 4}, 2), c = ts::zeros({4, 4});
  ts::Kernel product = matmul_kernel(a, b, c, 4, 4, 4);
  const std::int64_t cycles[] = {68, 60, 60}, peaks[] = {128, 192, 256};
  for (int stages = 1; stages <= 3; ++stages) {
    product.stages = stages;
    const ts::KernelRun run = product.run(small_chip());
    CHECK(run.dma_cycles == 56);
    CHECK(run.mxu_cycles == 12);
    CHECK(run.vector_cycles == 0);
    CHECK(run.cycles == cycles[stages - 1]);
    CHECK(run.on_chip_peak == peaks[stages - 1]);
    CHECK(run.overlap == (stages == 1 ? 0.0 : 8.0 / 56.0));
    CHECK(run.matmul_flops == 2 * 4 * 4 * 12);
    CHECK(run.seconds == static_cast<double>(run.cycles));
    CHECK(run.bound == "memory");
  }
  // Three programs of a load of 8 ticks, an exp of 80, a store of 8.
  const ts::Tensor x = ts::randn({12, 4}, 3), y = ts::zeros({12, 4});
  ts::Kernel map = exp_kernel(x, y);
  map.stages = 1;
  CHECK(map.run(small_chip()).cycles == 3 * 96);
  CHECK(map.run(small_chip()).overlap == 0);
  CHECK(map.run(small_chip()).on_chip_peak == 64);
  map.stages = 2;
  const ts::KernelRun run = map.run(small_chip());
  CHECK(run.cycles == 8 + 3 * 80 + 8);
  CHECK(run.overlap == doctest::Approx(32.0 / 48.0));
  CHECK(run.on_chip_peak == 64 + 32 + 32);
  CHECK(run.vector_flops == 480);
  CHECK(run.bound == "vector");
  CHECK(difference(y, ts::exp(x)) == 0);
}

TEST_CASE("tile kernels: a loop of equal steps has a closed form") {
  // G generations of D ticks, dots of C ticks, a store of S: D + (G - 1) max(D, C) + C + S, and
  // G (D + C) + S when nothing is loaded beside compute.
  for (const double bandwidth : {0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0}) {
    for (const int columns : {4, 8, 32}) {
      const ts::Tensor a = ts::randn({8, 48}, 1), b = ts::randn({48, columns}, 2);
      ts::Kernel kernel = matmul_kernel(a, b, ts::zeros({8, columns}), 8, columns, 8);
      ts::Chip chip = small_chip();
      chip.memory_bandwidth = bandwidth;
      const auto ticks = [bandwidth](int numbers) {
        return static_cast<std::int64_t>(std::ceil(2 * numbers / bandwidth));
      };
      const std::int64_t load = ticks(8 * 8) + ticks(8 * columns), store = ticks(8 * columns);
      const std::int64_t dot = 2 * columns / 4 * 8;  // folds of a stream of 8
      for (int stages = 1; stages <= 4; ++stages) {
        kernel.stages = stages;
        const std::int64_t formula =
            stages == 1 ? 6 * (load + dot) + store : load + 5 * std::max(load, dot) + dot + store;
        CHECK(kernel.run(chip).cycles == formula);
      }
    }
  }
}

TEST_CASE("tile kernels: more stages are never slower, and no unit works longer than the run") {
  const int sizes[][5] = {{40, 24, 64, 8, 4}, {12, 12, 100, 4, 16}, {64, 64, 8, 16, 8}};
  for (const auto& s : sizes) {
    const ts::Tensor a = ts::randn({s[0], s[2]}, 1), b = ts::randn({s[2], s[1]}, 2);
    const ts::Tensor c = ts::zeros({s[0], s[1]});
    for (const double bandwidth : {1.0, 4.0, 8.0, 13.0, 40.0}) {
      for (const char* kind : {"tpu", "gpu"}) {
        ts::Chip chip = small_chip();
        chip.memory_bandwidth = bandwidth;
        chip.kind = kind;
        chip.cores = 3;
        chip.mxus = 3;
        CAPTURE(bandwidth);
        check_stages(matmul_kernel(a, b, c, s[3], s[3], s[4]), chip);
        // loads, dots, vector ops and stores in one loop
        check_stages(ts::kernel("mixed", {2, 2},
                                [&](ts::Tile& t) {
                                  for (int k = 0; k < 8; k += 4) {
                                    auto v = t.load(a, {k, 0}, {4, 4});
                                    t.store(c, {4 + k, 0}, t.exp(v));
                                    v = t.dot(v, t.load(b, {4, 0}, {4, 4})) + 1.0f;
                                    t.store(c, {0, 4}, v * v);
                                  }
                                }),
                     chip);
      }
    }
  }
}

TEST_CASE("tile kernels: the peak is the tiles of every stage and the sums") {
  const ts::Tensor a = ts::randn({64, 128}, 1), b = ts::randn({128, 64}, 2),
                   c = ts::zeros({64, 64});
  for (const int bk : {8, 16, 32}) {
    ts::Kernel kernel = matmul_kernel(a, b, c, 32, 16, bk);
    for (int stages = 1; stages <= 4; ++stages) {
      kernel.stages = stages;
      // s (BM BK + BK BN) stages + 4 BM BN, and the block that the program before still stores
      const std::int64_t loads = 2 * (32 * bk + bk * 16) * stages + 4 * 32 * 16;
      const std::int64_t most = loads + (stages > 1 ? 2 * 32 * 16 : 0);
      CHECK(kernel.run(ts::chip("tpu-v5e")).on_chip_peak == most);
    }
  }
}

TEST_CASE("tile kernels: too much for the chip says by how much") {
  const ts::Tensor a = ts::zeros({64, 64}), c = ts::zeros({64, 64});
  ts::Kernel kernel = matmul_kernel(a, a, c, 64, 64, 16);
  ts::Chip chip = small_chip();
  chip.sram_bytes = 24576;  // 2 x 4096 of loads, 16384 of sums
  CHECK(kernel.run(chip).on_chip_peak == 24576);
  CHECK(kernel.run(chip).on_chip_bytes == 24576);
  chip.sram_bytes = 24000;
  CHECK(error_of([&] { kernel.run(chip); }) ==
        "Kernel::run: matmul needs 24576 bytes on the chip, small has 24000: 576 too many; smaller "
        "tiles, fewer stages than 2 or a format narrower than bf16 would help");
  kernel.stages = 1;
  CHECK(kernel.run(chip).on_chip_peak == 20480);
  kernel.stages = 2;
  chip.kind = "gpu";
  chip.cores = chip.mxus = 2;
  chip.sram_bytes = 40000;
  CHECK(error_of([&] { kernel.run(chip); }) ==
        "Kernel::run: matmul needs 24576 bytes on the chip, an SM of small has 20000: 4576 too "
        "many; smaller tiles, fewer stages than 2 or a format narrower than bf16 would help");
  chip.sram_bytes = 0;  // not known: no limit, and the report says so
  const ts::KernelRun run = kernel.run(chip);
  CHECK(run.on_chip_bytes == 0);
  CHECK(run.csv().find("on-chip memory,size not known,") != std::string::npos);
}

TEST_CASE("tile kernels: reaching outside without a mask is an error") {
  const ts::Tensor x = ts::randn({200, 96}, 1), v = ts::randn({2, 8, 4}, 2);
  const auto in = [&](const std::function<void(ts::Tile&)>& body) {
    return error_of([&] { ts::kernel("k", {2, 2}, body).run(ts::chip("tpu-v5e")); });
  };
  CHECK(in([&](ts::Tile& t) {
          t.load(x, {t.id(0) * 128, 0}, {128, 64});
        }) ==
        "load: block [128, 64] at [128, 0] of tensor [200, 96] in program [1, 0] of k: it reaches "
        "outside; masked takes what is inside");
  CHECK(in([&](ts::Tile& t) {
          t.store(x, {0, 90}, t.zeros({8, 8}));
        }) ==
        "store: block [8, 8] at [0, 90] of tensor [200, 96] in program [0, 0] of k: it reaches "
        "outside; masked takes what is inside");
  CHECK(in([&](ts::Tile& t) {
          t.load_masked(x, {-1, 0}, {8, 8});
        }) ==
        "load_masked: block [8, 8] at [-1, 0] of tensor [200, 96] in program [0, 0] of k: offsets "
        "are 0 or more");
  const std::int64_t far = std::numeric_limits<std::int64_t>::max();
  CHECK(in([&](ts::Tile& t) { t.load_masked(x, {far, 0}, {8, 8}); }) == "no error");
  CHECK(in([&](ts::Tile& t) {
          t.load_masked(x, {0, 0}, {far, 8});
        }) == "Shape: [9223372036854775807, 8] has too many elements; at most 2^63 - 1");
  CHECK(in([&](ts::Tile& t) {
          t.load(x, {-far - 1, 0}, {8, 8});
        }).find("offsets are 0 or more") != std::string::npos);
  CHECK(in([&](ts::Tile& t) {
          t.zeros({1 << 24, 1 << 24});
        }).find("Tensor: shape [16777216, 16777216] takes") == 0);
  CHECK(in([&](ts::Tile& t) {
          t.load(x, {0, 0}, {8, 0});
        }) ==
        "load: block [8, 0] at [0, 0] of tensor [200, 96] in program [0, 0] of k: sizes are 1 or "
        "more");
  CHECK(in([&](ts::Tile& t) {
          t.load(x, {0}, {8, 8});
        }) ==
        "load: block [8, 8] at [0] of tensor [200, 96] in program [0, 0] of k: an offset and a "
        "size for each dim of the tensor are right");
  CHECK(in([&](ts::Tile& t) { t.store_masked(x, {0}, t.zeros({8})); }) ==
        "store_masked: block [1, 8] at [0] of tensor [200, 96] in program [0, 0] of k: an offset "
        "and a size for each dim of the tensor are right");
  CHECK(
      in([&](ts::Tile& t) {
        t.load(v, {0, 0, 0}, {2, 8, 4});
      }) ==
      "load: block [2, 8, 4] at [0, 0, 0] of tensor [2, 8, 4] in program [0, 0] of k: dims before "
      "the last two take size 1");
  CHECK(in([&](ts::Tile& t) {
          t.load(ts::Tensor(), {0, 0}, {8, 8});
        }) ==
        "load: block [8, 8] at [0, 0] of tensor [] in program [0, 0] of k: the tensor must not be "
        "empty");
}

TEST_CASE("tile kernels: other errors") {
  for (const int dim : {2, -2}) {
    CHECK(error_of([&] {
            ts::kernel("k", {1}, [&](ts::Tile& t) { t.arange(4, dim, 0); }).run(small_chip());
          }) == "Tile::arange: dim is " + std::to_string(dim) +
                    "; 0 for [n, 1] or 1 for [1, n] is right");
  }
  const ts::Chip chip = ts::chip("tpu-v5e");
  const auto nothing = [](ts::Tile&) {};
  const auto in = [&](const std::function<void(ts::Tile&)>& body) {
    return error_of([&] { ts::kernel("k", {2}, body).run(chip); });
  };
  CHECK(in([](ts::Tile& t) {
          t.dot(t.zeros({4, 8}), t.zeros({4, 8}));
        }) ==
        "dot: inner sizes differ: a is [4, 8], b is [4, 8] in program [0] of k; a [m, k] and b [k, "
        "n] are right");
  CHECK(in([](ts::Tile& t) {
          t.dot_transposed(t.zeros({4, 8}), t.zeros({8}));
        }) ==
        "dot_transposed: inner sizes differ: a is [4, 8], b is [8] in program [0] of k; a [m, k] "
        "and b [n, k] are right");
  CHECK(in([](ts::Tile& t) { t.id(1); }) == "id: axis 1 of grid [2] of k; axes are 0 to 0");
  CHECK(in([](ts::Tile& t) { t.grid(-1); }) == "grid: axis -1 of grid [2] of k; axes are 0 to 0");
  CHECK(in([](ts::Tile& t) { t.zeros({4}) + t.zeros({5}); }) ==
        "add: shapes do not match: [4] and [5]; from the right, sizes must be equal or 1");
  CHECK(error_of([&] {
          ts::kernel("k", {2, 0}, nothing).run(chip);
        }) ==
        "Kernel::run: k has grid [2, 0] and 2 stages; 1 to 3 sizes from 1 and 1 to 64 stages are "
        "right");
  CHECK(
      error_of([&] { ts::kernel("k", {}, nothing).run(chip); }) ==
      "Kernel::run: k has grid [] and 2 stages; 1 to 3 sizes from 1 and 1 to 64 stages are right");
  CHECK(error_of([&] {
          ts::kernel("k", {1, 1, 1, 1}, nothing).run(chip);
        }).find("grid [1, 1") != std::string::npos);
  CHECK(error_of([&] {
          ts::kernel("k", {1 << 30, 1 << 30}, nothing).run(chip);
        }).find("k has") != std::string::npos);
  CHECK(error_of([&] { ts::kernel("k", {1}, nullptr).run(chip); }) ==
        "Kernel::run: k has no body; give it what a program does");
  ts::Kernel kernel = ts::kernel("k", {1}, nothing);
  kernel.stages = 0;
  CHECK(
      error_of([&] { kernel.run(chip); }) ==
      "Kernel::run: k has grid [1] and 0 stages; 1 to 3 sizes from 1 and 1 to 64 stages are right");
  kernel.stages = 2;
  CHECK(error_of([&] { kernel.run(ts::Chip()); }) ==
        "Kernel::run: k on : clock_hz is 0, memory_bandwidth 0; both must be above 0");
  const ts::Tensor x = ts::zeros({4, 4});
  CHECK(error_of([&] { ts::tiled_matmul(chip, x, x, ts::zeros({5})); }) ==
        "tiled_matmul: b is [4, 4], bias is [5]; bias must be [4]");
  ts::TileOptions options;
  options.block = {8};
  CHECK(error_of([&] { ts::tiled_matmul(chip, x, x, ts::Tensor(), options); }) ==
        "tiled_matmul: block [8]; 3 sizes from 1 are right");
  options.block = {0};
  CHECK(error_of([&] { ts::tiled_softmax(chip, x, options); }) ==
        "tiled_softmax: block [0]; 1 size from 1 is right");
  CHECK(error_of([&] {
          ts::flash_attention(chip, x, ts::zeros({4, 5}), x);
        }) ==
        "flash_attention: q is [4, 4], k is [4, 5], v is [4, 4]; right is q [T, d], k and v [S, "
        "d], or all [heads, .., d], and S >= T when causal");
}

TEST_CASE("tile kernels: an exception inside the body leaves nothing broken") {
  const ts::Tensor x = ts::randn({8, 4}, 1), y = ts::zeros({8, 4});
  ts::Profile profile;
  ts::TileValue kept = 0.0f;
  const ts::Kernel throws = ts::kernel("throws", {2}, [&](ts::Tile& t) {
    kept = t.load(x, {0, 0}, {4, 4});
    if (t.id(0) == 1) {
      throw std::runtime_error("mine");
    }
  });
  CHECK_THROWS_WITH(throws.run(small_chip()), "mine");
  CHECK(ts::profiling());
  CHECK(ts::context().no_grad == 0);
  CHECK(profile.records().empty());
  exp_kernel(x, y).run(small_chip());
  CHECK(difference(y, ts::exp(x)) == 0);
  // A tile of another program, of another run.
  CHECK(error_of([&] {
          ts::kernel("thief", {1}, [&](ts::Tile& t) {
            t.exp(kept + t.zeros({4, 4}));
          }).run(small_chip());
        }) ==
        "Tile: a tile [4, 4] of another program is used in program [1] of throws; a tile lives "
        "within its program");
  CHECK(error_of([&] {
          ts::kernel("keeper", {2}, [&](ts::Tile& t) {
            if (t.id(0) == 0) {
              kept = t.zeros({4, 4});
            }
            t.exp(kept);
          }).run(small_chip());
        }) ==
        "Tile: a tile [4, 4] of another program is used in program [1] of keeper; a tile lives "
        "within its program");
}

TEST_CASE("tile kernels: arithmetic is that of tensors") {
  const ts::Tensor x = ts::randn({6, 8}, 1), row = ts::randn({8}, 2), y = ts::zeros({6, 8});
  const auto run = [&](const std::function<ts::TileValue(ts::Tile&, const ts::TileValue&,
                                                         const ts::TileValue&)>& rule) {
    ts::kernel("rule", {1}, [&](ts::Tile& t) {
      t.store(y, {0, 0},
              rule(t, t.load(x, {0, 0}, {6, 8}), t.load(row, {0}, {8})) + t.zeros({6, 8}));
    }).run(ts::chip("tpu-v5e"));
    return y;
  };
  using V = const ts::TileValue&;
  using T = ts::Tile;
  CHECK(difference(run([](T&, V v, V r) { return v * r - 2.0f / (v * v + 1.0f); }),
                   x * row - ts::div(ts::full({}, 2.0f), x * x + 1.0f)) == 0);
  CHECK(difference(run([](T& t, V v, V) { return t.tanh(v) + t.gelu(v); }),
                   ts::tanh(x) + ts::gelu(x)) == 0);
  CHECK(difference(run([](T& t, V v, V) { return t.sqrt(t.maximum(v, 0.0f)); }),
                   ts::sqrt(ts::relu(x))) == 0);
  CHECK(difference(run([](T& t, V v, V r) { return t.minimum(v, r); }), ts::minimum(x, row)) == 0);
  CHECK(difference(run([](T& t, V v, V) { return t.sum(v, 1) * t.max(v, 0); }),
                   ts::sum(x, 1, ts::KeepDim::yes) * ts::max(x, 0, ts::KeepDim::yes)) == 0);
  CHECK(difference(run([](T& t, V v, V r) { return t.where(t.less(v, r), v, r); }),
                   ts::minimum(x, row)) == 0);
  CHECK(difference(run([](T& t, V, V) { return t.arange(6, 0, 10) * 8 + t.arange(8, 1, 0); }),
                   ts::reshape(ts::arange(48), {6, 8}) + 80.0f) == 0);
  CHECK(difference(
            run([](T& t, V, V) {
              return t.causal(t.full({6, 8}, 1.0f), 1, 2);
            }),
            ts::where(ts::less(ts::reshape(ts::arange(6), {6, 1}) + 1.0f, ts::arange(8) + 2.0f),
                      ts::full({}, -1e30f), ts::ones({6, 8}))) == 0);
  // Compound forms change a handle, not the tile that another handle holds.
  CHECK(difference(run([](T&, V v, V r) {
                     ts::TileValue a = v, before = v;
                     a += r;
                     a -= 1.0f;
                     a *= r;
                     a /= 2.0f;
                     return a + before;
                   }),
                   (x + row - 1.0f) * row / 2.0f + x) == 0);
  // Numbers from outside stay numbers.
  const ts::TileValue two = 2.0f;
  CHECK((two * 3.0f + two).numbers.item() == 8.0f);
}

TEST_CASE("tile kernels: a dot adds to its sums for nothing, anything else costs a vector op") {
  const ts::Tensor x = ts::randn({4, 4}, 1), y = ts::zeros({4, 4});
  const auto run =
      [&](const std::function<void(ts::Tile&, ts::TileValue&, const ts::TileValue&)>& rule) {
        return ts::kernel("k", {1},
                          [&](ts::Tile& t) {
                            const ts::TileValue v = t.load(x, {0, 0}, {4, 4});
                            ts::TileValue acc = t.zeros({4, 4});
                            rule(t, acc, v);
                            t.store(y, {0, 0}, acc);
                          })
            .run(small_chip());
      };
  using V = const ts::TileValue&;
  using A = ts::TileValue&;
  const ts::KernelRun merged = run([](ts::Tile& t, A acc, V v) { acc += t.dot(v, v); });
  CHECK(merged.vector_cycles == 0);
  CHECK(merged.cycles == 8 + 4 + 8);
  CHECK(merged.on_chip_peak == 32 + 64);
  const ts::Tensor once = y.clone();
  const ts::KernelRun apart = run([](ts::Tile& t, A acc, V v) {
    const ts::TileValue product = t.dot(v, v);
    acc += product;
  });
  CHECK(apart.vector_cycles == 8);
  CHECK(apart.cycles == 8 + 4 + 8 + 8);
  CHECK(difference(once, y) == 0);
  // Sums that the vector unit changed first make the dot wait.
  const ts::KernelRun waits = run([](ts::Tile& t, A acc, V v) {
    acc = t.exp(v);
    acc += t.dot(v, v);
  });
  CHECK(waits.cycles == 8 + 80 + 4 + 8);
  // A dot of another shape is broadcast, hence added by the vector unit.
  const ts::KernelRun wider = run([](ts::Tile& t, A acc, V v) {
    acc += t.dot(t.full({1, 4}, 1.0f), v);
  });
  CHECK(wider.vector_cycles == 8);
}

TEST_CASE("tile kernels: lanes outside are not moved, not read and not written") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ts::Tensor around = ts::full({12, 12}, nan), back = ts::full({12, 12}, nan);
  const ts::Tensor x = ts::slice(ts::slice(around, 0, 1, 11), 1, 2, 9);  // [10, 7], strided
  const ts::Tensor y = ts::slice(ts::slice(back, 0, 1, 11), 1, 2, 9);
  ts::copy_(x, ts::randn({10, 7}, 1));
  const ts::Kernel kernel = ts::kernel("edges", {3, 2}, [&](ts::Tile& t) {
    const auto v = t.load_masked(x, {4 * t.id(0), 4 * t.id(1)}, {4, 4}, nan);
    t.store_masked(y, {4 * t.id(0), 4 * t.id(1)}, v * 2.0f);
  });
  const ts::KernelRun run = kernel.run(small_chip());
  CHECK(run.hbm_bytes_read == 2 * 70);
  CHECK(run.hbm_bytes_written == 2 * 70);
  CHECK(difference(y, x * 2.0f) == 0);
  std::int64_t outside = 0;
  for (const float value : back.values()) {
    outside += std::isnan(value) ? 1 : 0;
  }
  CHECK(outside == 144 - 70);
  // The fill is what a reduction sees; a block that lies outside altogether moves nothing.
  const ts::Tensor sums = ts::zeros({2, 1});
  const ts::KernelRun filled =
      ts::kernel("fill", {2}, [&](ts::Tile& t) {
        const auto v = t.load_masked(x, {8 + 20 * t.id(0), 0}, {4, 8}, 1.0f);
        t.store(sums, {t.id(0), 0}, t.sum(t.sum(t.where(t.less(v, 1.0f), 0.0f, v), 0), 1));
      }).run(small_chip());
  CHECK(filled.hbm_bytes_read == 2 * 14);
  CHECK(sums.data()[1] == 32.0f);
  CHECK(sums.data()[0] >= 18.0f);
}

TEST_CASE("tile kernels: programs give the same in any order, and do not see each other") {
  const ts::Tensor a = ts::randn({40, 24}, 1), b = ts::randn({24, 56}, 2);
  const ts::Tensor forward = ts::zeros({40, 56}), backward = ts::zeros({40, 56});
  for (int turn = 0; turn < 2; ++turn) {
    const ts::Tensor y = turn == 0 ? forward : backward;
    ts::kernel("order", {5, 7}, [&](ts::Tile& t) {
      const auto i = turn == 0 ? t.id(0) : t.grid(0) - 1 - t.id(0);
      const auto j = turn == 0 ? t.id(1) : t.grid(1) - 1 - t.id(1);
      t.store(y, {8 * i, 8 * j},
              t.dot(t.load(a, {8 * i, 0}, {8, 24}), t.load(b, {0, 8 * j}, {24, 8})));
    }).run(ts::chip("tpu-v5e"));
  }
  CHECK(difference(forward, backward) == 0);
  CHECK(excess(a, b, forward) <= 1);
  // Ids count in row-major order.
  std::string order;
  ts::kernel("ids", {2, 1, 3}, [&](ts::Tile& t) {
    order += std::to_string(t.id(0)) + std::to_string(t.id(1)) + std::to_string(t.id(2)) + " ";
  }).run(small_chip());
  CHECK(order == "000 001 002 100 101 102 ");
}

TEST_CASE("tile kernels: bodies without loads, without dots, without anything") {
  const ts::Tensor x = ts::randn({8, 4}, 1), y = ts::zeros({8, 4});
  const ts::KernelRun nothing = ts::kernel("nothing", {3}, [](ts::Tile&) {}).run(small_chip());
  CHECK(nothing.cycles == 0);
  CHECK(nothing.seconds == 0);
  CHECK(nothing.on_chip_peak == 0);
  CHECK(nothing.overlap == 0);
  const ts::KernelRun only_loads = ts::kernel("loads", {2}, [&](ts::Tile& t) {
                                     for (int i = 0; i < 8; i += 4) {
                                       t.load(x, {i, 0}, {4, 4});
                                     }
                                   }).run(small_chip());
  CHECK(only_loads.cycles == 32);
  CHECK(only_loads.on_chip_peak == 32);  // nobody needs them longer
  const ts::KernelRun copies = ts::kernel("copies", {1}, [&](ts::Tile& t) {
                                 for (int i = 0; i < 8; i += 4) {
                                   t.store(y, {i, 0}, t.load(x, {i, 0}, {4, 4}));
                                 }
                               }).run(small_chip());
  CHECK(copies.cycles == 32);
  CHECK(copies.bound == "memory");
  CHECK(difference(x, y) == 0);
  const ts::KernelRun fills = ts::kernel("fills", {1}, [&](ts::Tile& t) {
                                t.store(y, {0, 0}, t.exp(t.zeros({4, 4})));
                              }).run(small_chip());
  CHECK(fills.cycles == 80 + 8);
  CHECK(fills.hbm_bytes_read == 0);
  const ts::KernelRun number = ts::kernel("number", {1}, [&](ts::Tile& t) {
                                 t.store(y, {0, 0}, 3.0f);
                               }).run(small_chip());
  CHECK(number.hbm_bytes_written == 2);
  CHECK(y.data()[0] == 3.0f);
}

TEST_CASE("tile kernels: a GPU deals programs to its SMs") {
  ts::Chip chip = small_chip();
  chip.kind = "gpu";
  chip.cores = chip.mxus = 2;
  chip.flops_bf16 = 64;
  const std::int64_t one[] = {16 + 160 + 16, 16 + 160 + 16, 16 + 2 * 160 + 16, 16 + 2 * 160 + 16};
  for (int programs = 1; programs <= 4; ++programs) {
    const ts::Tensor x = ts::randn({4 * programs, 4}, 1), y = ts::zeros({4 * programs, 4});
    const ts::KernelRun run = exp_kernel(x, y).run(chip);  // half the rates each
    CHECK(run.cycles == one[programs - 1]);
    CHECK(run.programs == programs);
    CHECK(run.hbm_bytes_read == 32 * programs);
    check_clock(run);
  }
}

TEST_CASE("tile kernels: what a dot costs on an array") {
  const auto ticks = [](const ts::Chip& chip, ts::DType format, int m, int k, int n) {
    return ts::detail::dot_ticks(chip, format, m, k, n);
  };
  const ts::Chip v5e = ts::chip("tpu-v5e");  // 4 arrays of 128 x 128
  CHECK(ticks(v5e, ts::DType::bf16, 512, 512, 512) == 16 * 512 / 4);
  CHECK(ticks(v5e, ts::DType::bf16, 128, 128, 128) == 128);  // one tile of weights: one array
  CHECK(ticks(v5e, ts::DType::bf16, 512, 128, 128) == 128);  // rows dealt to four
  CHECK(ticks(v5e, ts::DType::bf16, 1, 128, 512) == 128);    // a row: shifting weights is all
  CHECK(ticks(v5e, ts::DType::f32, 512, 512, 512) == 6 * 16 * 512 / 4);
  CHECK(ticks(v5e, ts::DType::int8, 512, 512, 512) == 16 * 512 / 8);
  ts::Chip plain = small_chip();
  plain.mxus = 0;  // no array: by the rate
  CHECK(ticks(plain, ts::DType::bf16, 4, 4, 4) == 4);
  // Alone, streamed to the end, the array takes its fill and drain on top.
  const ts::SystolicArray array(4, 4);
  CHECK(array.timing(4, 8, 4).cycles - ticks(small_chip(), ts::DType::bf16, 4, 8, 4) == 2 * 4 + 2);
}

TEST_CASE("tile kernels: neither profiles nor gradients see the body") {
  const ts::Tensor w = ts::parameter(ts::randn({8, 4}, 1)), y = ts::zeros({8, 4});
  ts::Profile profile;
  exp_kernel(w, y).run(small_chip());
  CHECK(profile.records().empty());
  CHECK_FALSE(y.requires_grad());
  CHECK(difference(y, ts::exp(w).detach()) == 0);
}

TEST_CASE("tiled_matmul: bias and GELU in one kernel") {
  const int sizes[][3] = {{64, 64, 64}, {100, 70, 33}, {1, 200, 50}, {130, 1, 7}};
  for (const char* name : {"tpu-v5e", "tpu-v6e", "h100"}) {
    for (const auto& s : sizes) {
      const ts::Tensor a = ts::randn({s[0], s[2]}, 1), b = ts::randn({s[2], s[1]}, 2);
      const ts::TiledRun plain = ts::tiled_matmul(ts::chip(name), a, b);
      CHECK(excess(a, b, plain.output) <= 1);
      CHECK(plain.unfused_ops == 1);
      CHECK(plain.unfused_bytes == plain.least_bytes);
      const ts::TiledRun run = ts::tiled_matmul(ts::chip(name), a, b, ts::randn({s[1]}, 3));
      CHECK(run.largest_difference < 4 * kEpsilon * s[2] * 4);
      CHECK(run.unfused_ops == 3);
      const std::int64_t mn = s[0] * s[1];  // product read and written, sum read and written
      CHECK(run.unfused_bytes == run.least_bytes + 2 * 4 * mn);
      CHECK(run.least_bytes == 2 * (a.count() + b.count() + s[1] + mn));
      CHECK(run.hbm_bytes() >= run.least_bytes);
      check_clock(run);
    }
  }
  ts::TileOptions options;
  options.block = {32, 16, 8};
  options.format = ts::DType::f32;
  const ts::Tensor a = ts::randn({2, 20, 24}, 1), b = ts::randn({24, 30}, 2);
  const ts::TiledRun run = ts::tiled_matmul(ts::chip("tpu-v5e"), a, b, ts::Tensor(), options);
  CHECK(run.output.shape() == ts::Shape{2, 20, 30});
  CHECK(run.grid == "[2, 2]");
  CHECK(run.hbm_bytes() == ts::tiled_matmul_bytes(40, 30, 24, 32, 16, ts::DType::f32));
  CHECK(difference(run.output, ts::matmul(a, b)) < 24 * kEpsilon * 10);
  // On an SM of 256 KiB 128 x 128 sums fit, in steps of the 16 rows of a tensor core.
  const ts::Tensor big = ts::zeros({1536, 32});
  const ts::TiledRun sm = ts::tiled_matmul(ts::chip("h100"), big, ts::zeros({32, 1536}));
  CHECK(sm.grid == "[12, 12]");
  CHECK(sm.on_chip_peak <= sm.on_chip_bytes);
  // A block is no larger than it takes; what the ops read is counted in the kernel's format.
  const ts::Tensor thin = ts::randn({300, 5}, 3), wide = ts::randn({5, 2000}, 4);
  const ts::MatmulFormat bf16(ts::DType::bf16);
  const ts::TiledRun outer = ts::tiled_matmul(ts::chip("tpu-v5e"), thin, wide);
  CHECK(outer.unfused_bytes == outer.least_bytes);
  CHECK(outer.matmul_flops == outer.programs * 2 * 256 * 256 * 8);
  CHECK(excess(thin, wide, outer.output) <= 1);
  const ts::TiledRun empty =
      ts::tiled_matmul(ts::chip("tpu-v5e"), ts::zeros({0, 4}), ts::zeros({4, 3}));
  CHECK(empty.output.shape() == ts::Shape{0, 3});
}

TEST_CASE("tiled_softmax and tiled_layer_norm: a row stays on the chip") {
  for (const char* name : {"tpu-v5e", "h100"}) {
    for (const int rows : {1, 7, 100, 333}) {
      const ts::Tensor x = ts::randn({rows, 50}, 1, 3.0f);
      const ts::TiledRun run = ts::tiled_softmax(ts::chip(name), x);
      CHECK(difference(run.output, ts::softmax(x)) < 50 * kEpsilon);
      CHECK(run.largest_difference < 1e-6);
      CHECK(run.hbm_bytes() == run.least_bytes);
      CHECK(run.least_bytes == 2 * 2 * rows * 50);
      CHECK(run.unfused_ops == 5);  // max 1, subtract 2, exp 2, sum 1, divide 2 passes; 4 of a row
      CHECK(run.unfused_bytes == 2 * (8 * rows * 50 + 4 * rows));
      check_clock(run);

      const ts::Tensor w = ts::randn({50}, 2), b = ts::randn({50}, 3);
      const ts::TiledRun norm = ts::tiled_layer_norm(ts::chip(name), x, w, b);
      CHECK(difference(norm.output, ts::layer_norm(x, w, b)) < 50 * kEpsilon * 8);
      CHECK(norm.least_bytes == 2 * (2 * rows * 50 + 100));
      CHECK(norm.hbm_bytes() == norm.least_bytes + (norm.programs - 1) * 2 * 100);
      CHECK(norm.unfused_bytes > 4 * norm.hbm_bytes() / 3);
      check_clock(norm);
    }
  }
  const float inf = std::numeric_limits<float>::infinity();
  const ts::Tensor odd = ts::tensor({3, 2}, {1, -inf, 2, inf, 0, 0});
  const ts::Tensor p = ts::tiled_softmax(ts::chip("tpu-v5e"), odd).output;
  CHECK(p.data()[0] == 1.0f);
  CHECK(std::isnan(p.data()[3]));  // inf - inf, as in the op
  CHECK(p.data()[4] == 0.5f);
  ts::TileOptions options;
  options.block = {16};
  const ts::TiledRun cube =
      ts::tiled_softmax(ts::chip("tpu-v5e"), ts::randn({4, 5, 6}, 1), options);
  CHECK(cube.output.shape() == ts::Shape{4, 5, 6});
  CHECK(cube.programs == 2);
  CHECK(cube.least_bytes == 2 * 240);
}

TEST_CASE("tile kernels: rates and sizes that are no rates and sizes") {
  ts::Chip chip = small_chip();
  chip.sram_bytes = std::numeric_limits<double>::quiet_NaN();
  const ts::Tensor x = ts::ones({4, 4}), y = ts::zeros({4, 4});
  CHECK(exp_kernel(x, y).run(chip).on_chip_bytes == 0);
  chip.sram_bytes = std::numeric_limits<double>::infinity();
  CHECK(exp_kernel(x, y).run(chip).cycles == 96);
  chip.memory_bandwidth = 1e-30;
  CHECK(error_of([&] { exp_kernel(x, y).run(chip); }) ==
        "Kernel::run: an op in program [0] of exp takes more than 2^44 ticks of small");
}

TEST_CASE("tile kernels: beside the host's ops, also inside a program on a chip") {
  ts::TiledRun run;
  const ts::OnChipReport report = ts::on_chip(ts::chip("tpu-v5e"), [&] {
    run = ts::tiled_matmul(ts::chip("tpu-v5e"), ts::randn({20, 16}, 1), ts::randn({16, 8}, 2));
  });
  CHECK(report.rows.empty());
  CHECK(run.unfused_ops == 1);
  CHECK(run.largest_difference < 1e-5);
}

TEST_CASE("flash_attention: the scores never leave the chip") {
  const int sizes[][4] = {{1, 32, 32, 16}, {3, 50, 77, 8}, {2, 33, 33, 64}, {1, 1, 100, 4}};
  for (const auto& s : sizes) {
    const ts::Tensor q = ts::randn({s[0], s[1], s[3]}, 1), k = ts::randn({s[0], s[2], s[3]}, 2);
    const ts::Tensor v = ts::randn({s[0], s[2], s[3]}, 3);
    for (const ts::Mask mask : {ts::Mask::none, ts::Mask::causal}) {
      for (const int block : {8, 16, 128}) {
        ts::TileOptions options;
        options.block = {block, block / 2};
        CAPTURE(block);
        const ts::TiledRun run = ts::flash_attention(ts::chip("tpu-v5e"), q, k, v, mask, options);
        CHECK(run.largest_difference < 1e-5);
        const ts::Tensor op = ts::attention(q, k, v, 1, 1, mask);  // a head is a sequence
        CHECK(difference(run.output, op) < 1e-5);
        CHECK(run.least_bytes == 2 * 2 * (q.count() + k.count()));
        check_clock(run);
      }
      const ts::TiledRun chosen = ts::flash_attention(ts::chip("h100"), q, k, v, mask);
      CHECK(chosen.largest_difference < 1e-5);
    }
  }
}

TEST_CASE("flash_attention: bytes of the scores against bytes of the kernel") {
  const std::int64_t heads = 2, n = 256, d = 32;
  const ts::Tensor q = ts::randn({heads, n, d}, 1), k = ts::randn({heads, n, d}, 2);
  ts::TileOptions options;
  options.block = {64, 64};
  const ts::TiledRun run =
      ts::flash_attention(ts::chip("tpu-v5e"), q, k, q, ts::Mask::none, options);
  const std::int64_t one = heads * n * d, scores = heads * n * n;
  CHECK(run.unfused_bytes == 2 * (4 * scores + 6 * one));  // scores: written, read, written, read
  CHECK(run.hbm_bytes() == 2 * (2 * one + 2 * 4 * one));  // keys and values for 4 blocks of queries
  const ts::TiledRun causal =
      ts::flash_attention(ts::chip("tpu-v5e"), q, k, q, ts::Mask::causal, options);
  CHECK(causal.hbm_bytes() == 2 * (2 * one + 2 * one * 10 / 4));  // 1 + 2 + 3 + 4 of 16 blocks
  CHECK(causal.matmul_flops == run.matmul_flops * 10 / 16);
}

TEST_CASE("tile kernels: the four run on every preset") {
  const ts::Tensor x = ts::randn({60, 24}, 1), w = ts::randn({24, 40}, 2), row = ts::randn({24}, 3);
  for (const std::string& name : ts::chips()) {
    CAPTURE(name);
    const ts::Chip chip = ts::chip(name);
    ts::TileOptions o;
    o.format = chip.flops_bf16 > 0 ? ts::DType::bf16 : ts::DType::int8;
    for (const ts::TiledRun& run :
         {ts::tiled_matmul(chip, x, w, ts::Tensor(), o), ts::tiled_softmax(chip, x, o),
          ts::tiled_layer_norm(chip, x, row, row, o),
          ts::flash_attention(chip, x, x, x, ts::Mask::none, o)}) {
      check_clock(run);
      CHECK(run.hbm_bytes() >= run.least_bytes);
      CHECK(run.largest_difference < 1e-4);
      CHECK((run.on_chip_bytes == 0 || run.on_chip_peak <= run.on_chip_bytes));
    }
  }
}

TEST_CASE("tile kernels: reports") {
  const ts::Tensor x = ts::randn({12, 4}, 3), y = ts::zeros({12, 4});
  const ts::KernelRun run = exp_kernel(x, y).run(small_chip());
  std::ostringstream out;
  out << run;
  CHECK(out.str() == R"(kernel exp on small: grid [3], bf16, 2 stages
quantity        simulated       unit
--------------  --------------  --------------
programs        3
matmul FLOPs    0
vector FLOPs    480
HBM read        96              bytes
HBM written     96              bytes
on-chip peak    128             bytes
on-chip memory  size not known
DMA             48              ticks
MXU             0               ticks
vector unit     240             ticks
cycles          256             ticks
DMA hidden      66.6667         % of its ticks
time            256             s
bound by        vector
)");
  CHECK(run.csv().find("cycles,256,ticks\n") != std::string::npos);
  CHECK(run.json().find("\"simulated\": 256") != std::string::npos);
  ts::KernelRun large;
  large.matmul_flops = 2147483648;
  large.seconds = 2.33066667e-05;
  CHECK(large.table().text().find("FLOPs    2,147,483,648\n") != std::string::npos);
  CHECK(large.table().text().find("time            2.331e-05       s\n") != std::string::npos);
  CHECK(large.csv().find("FLOPs,2147483648,\n") != std::string::npos);
  CHECK(large.csv().find("time,2.33066667e-05,s\n") != std::string::npos);
  ts::TileOptions options;
  options.block = {4};
  std::ostringstream beside;
  beside << ts::tiled_softmax(small_chip(), x, options).traffic();
  CHECK(beside.str() == R"(tiled_softmax: HBM traffic
by             bytes  times the least  source
-------------  -----  ---------------  ---------
5 unfused ops    864             4.50  counted
the kernel       192             1.00  simulated
the least        192             1.00  formula
)");
}
