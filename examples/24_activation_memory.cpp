// Where does s b h (34 + 5 a s / h) come from? A transformer layer as Megatron's of 2022 runs
// forward, and a ledger lists every tensor that its backward pass still needs. You see the 34, then
// what tensor parallelism, sequence parallelism and recomputation leave of it, counted beside the
// formula, and what this library's own layer keeps: no [s, s] matrix, no masks.
//   g++ -std=c++17 -O2 -pthread -I. examples/24_activation_memory.cpp -o 24_memory && ./24_memory
#include "megatron_layer.hpp"

namespace ts = tinyscale;

int main() {
  ts::ActivationShape x;
  x.sequence = 32, x.batch = 2, x.width = 64, x.heads = 4;
  const double sbh = x.sequence * x.batch * x.width;
  const auto count = [&](const ts::ActivationShape& of, ts::Device* device) {
    megatron::Options options;
    options.device = device;
    options.sequence_parallel = of.sequence_parallel;
    options.recompute = of.recompute;
    return megatron::kept_bytes(options, 2, 32);
  };

  ts::Table list;
  list.title = "kept by one layer, s = 32, b = 2, h = 64, a = 4";
  list.columns = {"tensor", "bytes", "of s b h"};
  const megatron::KeptBytes one = count(x, nullptr);
  for (const auto& entry : one.entries) {
    list.add({entry.name, ts::format_count(entry.bytes), ts::format_fixed(entry.bytes / sbh, 0)});
  }
  list.add({"sum", ts::format_count(one.listed), ts::format_fixed(one.listed / sbh, 0)});
  std::cout << list << "34 + 5 a s / h = 34 + 10\n\n";

  const char* const again[] = {"", ", selective", ", full"};
  ts::Comparison rows;
  rows.title = "bytes a device keeps of one layer";
  const ts::Mesh mesh(ts::machine("tpu-v5e", {4}), {{"tensor", 4}});
  for (int way = 0; way < 9; ++way) {
    x.recompute = static_cast<ts::Recompute>(way % 3);
    x.tensor = way < 3 ? 1 : 4;
    x.sequence_parallel = way >= 6;
    double bytes = 0;
    if (way < 3) {
      bytes = count(x, nullptr).metered;
    } else {
      mesh.run([&](ts::Device& d) {
        const double own = count(x, &d).metered;
        if (d.rank() == 0) {
          bytes = own;
        }
      });
    }
    const char* const name = way < 3 ? "one device" : way < 6 ? "tensor 4" : "tensor 4 + sequence";
    rows.add(std::string(name) + again[way % 3], "B", ts::layer_activation_bytes(x), bytes);
  }
  std::cout << rows << (rows.equal(0) ? "equal to the byte\n" : "not equal!\n");

  ts::ModelConfig own;  // floats a token of our layer, at 2 bytes
  own.heads = own.kv_heads = 4, own.head_size = 16, own.bias = true;
  std::cout << "this library's layer (attention in blocks, no masks): "
            << ts::format_fixed(2 * ts::detail::layer_activations(own) / 64, 2) << " s b h\n";
}
