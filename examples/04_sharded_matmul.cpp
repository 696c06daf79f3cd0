// Sharded matmuls in the notation of the scaling book: "I_x, J" is dim I cut over mesh axis x.
// Which device holds what, which collectives a product needs, what each way costs, and why.
// g++ -std=c++17 -O2 -pthread examples/04_sharded_matmul.cpp -I. && ./a.out

#include "tinyscale.hpp"
namespace ts = tinyscale;

// The numbers are one device's, to rounding.
void compare(const ts::Sharded& c, const ts::Tensor& right) {
  const ts::Tensor off = ts::square(c.gather() - right);
  std::cout << c.text() << (ts::mean(off).item() < 1e-9f ? " equals" : " differs from")
            << " one device's result\n\n";
}

int main() {
  ts::Mesh mesh(ts::machine("tpu-v5p", {4, 4}), {{"x", 4}, {"y", 4}});
  const ts::Tensor x = ts::randn({32, 64}, 1), w = ts::randn({64, 16}, 2);

  std::cout << "---- case 1: no device misses anything\n";
  const ts::Sharded a = mesh.shard(x, "I_x, J");
  const ts::Sharded b = mesh.shard(w, "J, K_y");
  const ts::Sharded c = ts::matmul(a, b);
  std::cout << a.explain() << c.explain() << c.picture();
  compare(c, ts::matmul(x, w));

  std::cout << "---- case 2: J is cut in one of the two\n";
  const ts::Sharded d = ts::matmul(mesh.shard(x, "I, J_y"), b, "I_x, K_y");
  std::cout << d.explain();
  compare(d, ts::matmul(x, w));

  std::cout << "---- case 3: J is cut in both: the devices of x hold summands {U_x}\n";
  const ts::Sharded sums = ts::matmul(mesh.shard(x, "I, J_x"), mesh.shard(w, "J_x, K"));
  std::cout << sums.explain() << sums.picture();
  try {
    ts::gelu(sums);
  } catch (const ts::Error& error) {
    std::cout << error.what() << "\n";
  }
  const ts::Sharded once = ts::reshard(sums, "I_x, K");
  std::cout << once.explain();
  compare(ts::gelu(once), ts::gelu(ts::matmul(x, w)));

  std::cout << "---- case 4: one axis cannot cut both dims of the product\n";
  try {
    ts::matmul(a, mesh.shard(w, "J, K_x"));
  } catch (const ts::Error& error) {
    std::cout << error.what() << "\n\n";
  }

  std::cout << "---- at full size, of shapes alone: gather the weights, or sum products?\n";
  ts::Mesh pod(ts::machine("tpu-v5p", {16, 4, 4}), {{"x", 16}, {"y", 16}});
  const ts::Sharded weights = pod.shard({8192, 32768}, "D_x, F_y", ts::DType::bf16);
  for (const int batch : {1024, 65536}) {
    const ts::Sharded tokens = pod.shard({batch, 8192}, "B_x, D", ts::DType::bf16);
    std::cout << ts::matmul(tokens, weights, "B_x, F_y").explain() << "\n";
  }

  std::cout << "---- collective matmul: a chunk is multiplied while the next one travels\n";
  const ts::Sharded tokens = pod.shard({65536, 8192}, "B_x, D", ts::DType::bf16);
  std::cout << ts::collective_matmul(tokens, weights, "B_x, F_y").explain();
  compare(ts::collective_matmul(a, b, "I, K_y"), ts::matmul(x, w));
}
