// How near is my laptop to its limit? You see what kernels were chosen for this processor, its rate
// in each number format and at each level of memory; then what share of its roof each of a few ops
// reached (measured, the middle one of nine runs); and views, which cost no bytes.
//   of its roof = T formula / T measured, T formula = max(T_math, T_vector, T_mem)
//   g++ -std=c++17 -O2 -pthread -I. examples/13_kernels.cpp -o 13_kernels && ./13_kernels
#include <algorithm>
#include <chrono>

#include "tinyscale.hpp"
namespace ts = tinyscale;

ts::OpRecord middle(const char* name, const std::function<void()>& op, ts::OpRecord record = {}) {
  std::vector<double> seconds(10);
  for (double& passed : seconds) {
    ts::Profile profile;
    const auto start = std::chrono::steady_clock::now();
    op();
    passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    record = profile.records().empty() ? record : profile.records()[0];
  }
  std::sort(seconds.begin() + 1, seconds.end());  // the first run filled the caches
  record.name = name;
  record.seconds = seconds[5];
  return record;
}

int main() {
  std::cout << ts::cpu().text << "\n\n" << ts::laptop() << "\n";

  const ts::Tensor a = ts::randn({1024, 1024}, 1), q = ts::randn({1, 1024, 512}, 2);
  const ts::Tensor x = ts::randn({1, 4096}, 3), w = ts::randn({4096, 4096}, 4);
  ts::List<ts::OpRecord> ops;
  ops.push_back(middle("matmul, f32", [&] { ts::matmul(a, a); }));
  ops.push_back(middle("matmul, bf16", [&] {
    const ts::MatmulFormat as_bf16(ts::DType::bf16);  // operands rounded, sums in f32
    ts::matmul(a, a);
  }));
  ops.push_back(middle("attention", [&] { ts::attention(q, q, q, 8, 8, ts::Mask::causal); }));
  ops.push_back(middle("gelu", [&] { ts::gelu(a); }));
  ops.push_back(middle("a token, f32", [&] { ts::matmul(x, w); }));
  for (const int bits : {8, 4}) {  // a token reads every weight once: fewer bytes, less time
    const auto packed = ts::kernels::quantize(4096, 4096, /*group=*/32, bits, w.data());
    std::vector<float> y(4096);
    ts::OpRecord cost;  // kernels below the tensors keep no records
    cost.matmul_flops = 2.0 * 4096 * 4096;
    cost.reads = {{4096, ts::DType::int8}, {packed.bytes(), ts::DType::int8}};
    const auto product = [&] { ts::kernels::gemv_quantized(packed, x.data(), y.data()); };
    ops.push_back(middle(bits == 8 ? "a token, int8" : "a token, 4 bits", product, cost));
  }
  std::cout << ts::roofline(ops, ts::laptop()) << "\n";

  const double before = ts::context().memory->current_total();
  const ts::Tensor views[] = {ts::slice(a, 0, 256, 768), ts::transpose(a, 0, 1),
                              ts::broadcast_to(a, {4096, 1024, 1024})};
  for (const ts::Tensor& view : views) {
    std::cout << "a view " << view.shape() << " of " << a.shape() << "\n";
  }
  std::cout << "added to the memory in use: "
            << ts::format_bytes(ts::context().memory->current_total() - before) << "\n";
}
