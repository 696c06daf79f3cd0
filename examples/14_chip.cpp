// When is a chip busy, and when does it wait? You see one product go through memory, on-chip memory
// and several arrays; how many rows of x it takes until weights no longer hold the arrays up, on
// TPU v1 (about 1350) and v5e (about 240), beside the measured shares of TPU v1; why a GPU is
// slower with one more column; and one transformer that is busy while it reads a prompt and waits
// while it writes.
//   g++ -std=c++17 -O2 -pthread -I. examples/14_chip.cpp -o 14_chip && ./14_chip

#include "tinyscale.hpp"

namespace ts = tinyscale;

std::string percent(const ts::ChipTiming& t, std::int64_t part) {
  return ts::format_fixed(100 * t.share(part), 1);
}

int main() {
  // 1. Every PE of four 128 x 128 arrays is stepped; the product is in run.output.
  const ts::Chip v5e = ts::chip("tpu-v5e");
  const ts::ChipRun run =
      ts::matmul_on(v5e, ts::randn({64, 512}, /*seed=*/1), ts::randn({512, 1024}, 2));
  std::cout << run << "\n";

  // 2. The same weights, more and more rows: layers whose inputs and results stay on the chip.
  ts::ChipMatmul layer;
  layer.x = layer.y = ts::Home::chip;
  layer.result = ts::DType::bf16;
  for (const char* name : {"tpu-v1", "tpu-v5e"}) {
    ts::Table knee;
    knee.title = std::string("x [M, 2048] times w [2048, 4096] on ") + name + " (formula)";
    knee.columns = {"M", "useful %", "weight shift %", "stall %", "bound"};
    for (const int m : {1, 64, 128, 240, 480, 1350, 2000}) {
      const ts::ChipTiming t = ts::chip_timing(ts::chip(name), m, 2048, 4096, layer);
      knee.add({std::to_string(m), percent(t, t.ledger.useful), percent(t, t.ledger.weight_shift),
                percent(t, t.ledger.weight_stall + t.ledger.dma_stall), t.bound});
    }
    std::cout << knee << "\n";
  }

  // 3. TPU v1 as measured (Jouppi et al. 2017, table 3). The part of a layer that is no matmul is
  // the paper's; the rest is divided as the emulated array divides it.
  struct App {
    const char* name;
    int rows, k, n;  // rows: multiply-adds per weight byte
    double active, stall, shift, no_matmul;
  };
  ts::Table paper;
  paper.title = "TPU v1: % of cycles, formula beside measured";
  paper.columns = {"app", "active", "measured", "stall", "measured", "shift", "measured"};
  for (const App& app : {App{"MLP0", 200, 2048, 2048, 12.7, 53.9, 15.9, 17.5},
                         App{"MLP1", 168, 2048, 2048, 10.6, 44.2, 13.4, 31.9},
                         App{"CNN0", 2888, 2304, 1024, 78.2, 0.0, 0.0, 21.8}}) {
    const ts::ChipTiming t = ts::chip_timing(ts::chip("tpu-v1"), app.rows, app.k, app.n, layer);
    const auto share = [&](std::int64_t part) {
      return ts::format_fixed((100 - app.no_matmul) * t.share(part), 1);
    };
    paper.add({app.name, share(t.ledger.useful + t.ledger.padded), ts::format_fixed(app.active, 1),
               share(t.ledger.weight_stall + t.ledger.dma_stall), ts::format_fixed(app.stall, 1),
               share(t.ledger.weight_shift), ts::format_fixed(app.shift, 1)});
  }
  std::cout << paper << "\n";

  // 4. A GPU deals blocks of the product to its cores in waves; the last wave is rarely full.
  ts::ChipMatmul blocks;
  blocks.tile = {128, 0, 128};
  std::cout << ts::efficiency_curve(ts::chip("h100"), 4096, 4096, {3968, 4096, 4224, 4225, 4352},
                                    blocks)
            << "\n";

  // 5. The same model reads 64 tokens at once, then one token, on a small chip of one array.
  ts::Chip small = v5e;
  small.name = "a small chip";
  small.mxu_rows = small.mxu_cols = 16;
  small.mxus = 1;
  small.flops_bf16 = small.unit_peak();
  small.memory_bandwidth = 10 * small.clock_hz;  // bytes: a tile of 512 takes 52 ticks
  const ts::Transformer model(ts::config("nano"), 1);
  ts::OnChip options;
  options.matmul = layer;
  options.name = [&](const ts::Tensor& w) {
    for (const ts::Parameter& parameter : model.parameters) {
      if (parameter.value.origin() == w.origin()) {
        return parameter.name;
      }
    }
    return std::string("?");
  };
  const std::vector<std::int32_t> prompt(64, 84), token(1, 84);
  ts::Tensor logits;
  std::cout << "prefill, 64 tokens\n"
            << ts::on_chip(
                   small, [&] { logits = model.forward(prompt, 1, 64); }, options)
                   .layer_table()
            << "\ndecode, one token\n"
            << ts::on_chip(
                   small, [&] { logits = model.forward(token, 1, 1); }, options)
                   .layer_table();
  return 0;
}
