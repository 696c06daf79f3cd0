// What bounds an op? You see the same matmul and gelu against a TPU v5e and against this laptop:
// FLOPs, bytes, the time that each roof allows (formula), and here the time it took (measured).
// Then the batch at which the matmul meets the knee and is bound by math.
//   T = max(T_math, T_vector, T_mem)
//   g++ -std=c++17 -O2 -pthread -I. examples/01_roofline.cpp -o 01_roofline && ./01_roofline
#include <iostream>

#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

// Time of x w on a chip as a formula: x is [batch, width], w is [width, width].
ts::RooflineRow layer(std::int64_t batch, std::int64_t width, const ts::Chip& chip) {
  const double b = static_cast<double>(batch), d = static_cast<double>(width);
  ts::OpRecord op;
  op.name = "matmul";
  op.matmul_flops = 2 * b * d * d;
  op.reads = {{b * d, ts::DType::f32}, {d * d, ts::DType::f32}};
  op.writes = {{b * d, ts::DType::f32}};
  return ts::roofline(op, chip, ts::DType::bf16);
}

}  // namespace

int main() {
  const ts::Tensor x = ts::randn({8, 4096}, /*seed=*/1);
  const ts::Tensor w = ts::randn({4096, 4096}, /*seed=*/2);
  ts::Profile profile;
  const ts::Tensor y = ts::gelu(ts::matmul(x, w));

  const ts::Chip v5e = ts::chip("tpu-v5e");
  std::cout << profile.roofline(v5e, ts::DType::bf16) << "\n" << profile.roofline(ts::laptop());

  const ts::Counters c = profile.totals();
  std::cout << "\ncounted: " << ts::format_count(c.matmul_flops) << " matmul FLOPs, "
            << ts::format_count(c.vector_flops) << " vector FLOPs, " << ts::format_bytes(c.bytes())
            << " as f32\n"
            << "the knee of a v5e in bf16: " << ts::format_fixed(v5e.intensity(ts::DType::bf16), 1)
            << " FLOPs per byte (formula)\n\n";

  ts::Table table;
  table.title = "x [batch, 4096] w [4096, 4096] in bf16 on a v5e";
  table.columns = {"batch", "FLOPs/byte", "T formula", "bound by", "share of peak formula"};
  for (std::int64_t batch = 1; batch <= 4096; batch *= 4) {
    const ts::RooflineRow row = layer(batch, 4096, v5e);
    table.add({std::to_string(batch), ts::format_fixed(row.intensity, 1),
               ts::format_seconds(row.seconds), row.bound,
               ts::format_percent(row.t_math / row.seconds)});
  }
  std::cout << table;
}
