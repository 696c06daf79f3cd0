// What bounds an op? The same matmul and gelu against a TPU v5e and against this laptop: FLOPs,
// bytes, and the time that each roof allows. Then the batch at which the matmul meets the knee.
//   T = max(T_math, T_vector, T_mem)
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
  std::cout << "\ncounted: " << c.matmul_flops << " matmul FLOPs, " << c.vector_flops
            << " vector FLOPs, " << ts::format_bytes(c.bytes()) << " as f32\n"
            << "v5e knee: " << v5e.intensity(ts::DType::bf16) << " FLOPs per byte\n\n";

  ts::Table table;
  table.title = "x [batch, 4096] w [4096, 4096] in bf16 on a v5e";
  table.columns = {"batch", "FLOPs/byte", "T formula", "bound by", "share of peak"};
  for (std::int64_t batch = 1; batch <= 4096; batch *= 4) {
    const ts::RooflineRow row = layer(batch, 4096, v5e);
    table.add({ts::detail::cat(batch), ts::detail::short_number(row.intensity),
               ts::format_seconds(row.seconds), row.bound,
               ts::format_percent(row.t_math / row.seconds)});
  }
  std::cout << table;
}
