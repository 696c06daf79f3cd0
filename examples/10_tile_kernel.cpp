// How is a kernel written tile by tile, and what does it save? You write a matmul as a grid of
// small programs that load, multiply and store blocks, and see what the chip around the array does
// with it: bytes really moved, on-chip memory, which unit is the bound. Then bigger tiles, more
// loads in flight, a chip that is too small, and four kernels beside the ops that they replace.
//   g++ -std=c++17 -O2 -pthread -I. examples/10_tile_kernel.cpp -o 10_tile_kernel &&
//   ./10_tile_kernel

#include "tinyscale.hpp"

namespace ts = tinyscale;

// c = a b in tiles of `size` x `size`.
ts::Kernel matmul_kernel(const ts::Tensor& a, const ts::Tensor& b, const ts::Tensor& c, int size) {
  const std::int64_t m = a.dim(0), k = a.dim(1), n = b.dim(1);
  return ts::kernel("matmul", {m / size, n / size}, [=](ts::Tile& t) {
    auto acc = t.zeros({size, size});
    for (int i = 0; i < k; i += size) {
      acc += t.dot(t.load(a, {t.id(0) * size, i}, {size, size}),
                   t.load(b, {i, t.id(1) * size}, {size, size}));
    }
    t.store(c, {t.id(0) * size, t.id(1) * size}, acc);
  });
}

int main() {
  const ts::Chip tpu = ts::chip("tpu-v5e"), gpu = ts::chip("h100");
  const ts::Tensor a = ts::randn({1024, 1024}, /*seed=*/1), b = ts::randn({1024, 1024}, 2);
  const ts::Tensor c = ts::zeros({1024, 1024});

  // 1. One run: the numbers are computed, the ops are put on the chip's clock.
  ts::Kernel kernel = matmul_kernel(a, b, c, 256);
  std::cout << kernel.run(tpu) << "\n";

  // 2. Loads in flight: with one stage the array waits for every load.
  ts::Table flight;
  flight.title = "1024^3 in tiles of 256 on tpu-v5e (simulated)";
  flight.columns = {"stages", "cycles", "DMA hidden, %", "on-chip peak"};
  for (const int stages : {1, 2, 3}) {
    kernel.stages = stages;
    const ts::KernelRun run = kernel.run(tpu);
    flight.add({std::to_string(stages), std::to_string(run.cycles),
                ts::format_fixed(100 * run.overlap, 1),
                ts::format_count(double(run.on_chip_peak))});
  }
  std::cout << flight << "\n";

  // 3. Bigger tiles move fewer bytes, until they do not fit: an SM of the GPU holds 262,144 bytes.
  // There, tiles of 128 are only 64 programs for 132 SMs.
  for (const ts::Chip& chip : {tpu, gpu}) {
    ts::Table sweep;
    sweep.title = "1024^3 on " + chip.name;
    sweep.columns = {"tile", "HBM bytes (formula)", "(simulated)", "cycles (simulated)",
                     "bound by"};
    ts::KernelRun best;
    for (const int size : {32, 64, 128, 256, 512}) {
      const double bytes =
          double(ts::tiled_matmul_bytes(1024, 1024, 1024, size, size, ts::DType::bf16));
      try {
        const ts::KernelRun run = matmul_kernel(a, b, c, size).run(chip);
        sweep.add({std::to_string(size), ts::format_count(bytes),
                   ts::format_count(double(run.hbm_bytes())), std::to_string(run.cycles),
                   run.bound});
        best = best.cycles == 0 || run.cycles < best.cycles ? run : best;
      } catch (const ts::Error& error) {
        sweep.add({std::to_string(size), ts::format_count(bytes), "-", "-", "does not fit"});
        std::cout << error.what() << "\n";
      }
    }
    std::cout << sweep << "the best that fits: grid " << best.grid << ", "
              << ts::format_seconds(best.seconds) << "\n\n";
  }

  // 4. What fusing saves: the same result from ops that write every intermediate to HBM.
  const ts::Tensor x = ts::randn({2048, 512}, 3), row = ts::randn({512}, 4);
  const ts::Tensor q = ts::randn({4, 512, 64}, 5), k = ts::randn({4, 512, 64}, 6);
  const ts::TiledRun runs[] = {ts::tiled_matmul(tpu, x, ts::randn({512, 512}, 7), row),
                               ts::tiled_softmax(tpu, x), ts::tiled_layer_norm(tpu, x, row, row),
                               ts::flash_attention(tpu, q, k, q, ts::Mask::causal)};
  ts::Table saved;
  saved.title = "HBM bytes on tpu-v5e, bf16";
  saved.columns = {"kernel",          "ops",   "unfused (counted)", "kernel (simulated)",
                   "least (formula)", "equal", "bound by"};
  for (const ts::TiledRun& run : runs) {
    saved.add({run.name, std::to_string(run.unfused_ops),
               ts::format_count(double(run.unfused_bytes)),
               ts::format_count(double(run.hbm_bytes())), ts::format_count(double(run.least_bytes)),
               run.largest_difference < 1e-3 ? "yes" : "no", run.bound});
  }
  std::cout << saved;
  return 0;
}
