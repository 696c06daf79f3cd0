// Data parallelism and ZeRO as their definition: each device has a part of the batch and holds
// whole, or cut, Adam's moments (1), gradients too (2), weights too (3). You see what it sends in a
// step beside (2, 2, 2, 3) P (d-1)/d numbers, and what it holds before the update beside formulas.
//   g++ -std=c++17 -O2 -pthread -I. examples/20_data_parallel.cpp -o 20_data && ./20_data
#include "tinyscale.hpp"
namespace ts = tinyscale;
using ts::MemoryKind, ts::Tensor;

constexpr int L = 4, D = 64, B = 32, steps = 3, P = L * D * D;  // h' = tanh(h w), width, batch

void train(ts::Device& d, int zero) {
  const bool m_cut = zero >= 1, g_cut = zero >= 2, w_cut = zero >= 3;
  const auto part = [&](const Tensor& t) { return d.shard(t, "data", 0); };  // some of the rows
  const auto whole = [&](const Tensor& t) { return d.all_gather(t, "data"); };
  const auto as = [](MemoryKind k, const Tensor& t) { return ts::MemoryScope(k), ts::copy(t); };
  Tensor h[L + 1] = {part(ts::randn({B, D}, 1))}, w[L], g[L], m[L], v[L];
  for (int l = 0; l < L; ++l) {
    const Tensor start = ts::randn({D, D}, std::uint64_t(10 + l), 0.2f);
    w[l] = as(MemoryKind::parameter, w_cut ? part(start) : start);
    m[l] = v[l] = as(MemoryKind::optimizer, ts::zeros({m_cut ? D / d.size() : D, D}));
  }
  for (int step = 0; step < steps; ++step) {
    for (int l = 0; l < L; ++l) h[l + 1] = ts::tanh(ts::matmul(h[l], w_cut ? whole(w[l]) : w[l]));
    Tensor dh = (h[L] - part(ts::randn({B, D}, 2))) * (2.0f / (B * D));  // of the mean square
    for (int l = L - 1; l >= 0; --l) {
      const Tensor du = dh * (1.0f - ts::square(h[l + 1]));
      const Tensor dw = ts::matmul(ts::transpose(h[l], 0, 1), du);
      g[l] = as(MemoryKind::gradient, g_cut ? d.reduce_scatter(dw, "data") : dw);
      dh = ts::matmul_transposed(du, w_cut ? whole(w[l]) : w[l]);  // gathered a second time
    }
    for (int l = 0; l < L; ++l) {
      Tensor dw = g[l];
      if (!g_cut) dw = m_cut ? d.reduce_scatter(dw, "data") : d.all_reduce(dw, "data");
      m[l] = as(MemoryKind::optimizer, 0.9f * m[l] + 0.1f * dw);
      v[l] = as(MemoryKind::optimizer, 0.99f * v[l] + 0.01f * ts::square(dw));
      const Tensor change = -0.01f * m[l] / ts::sqrt(v[l] + 1e-6f);
      w[l] = as(MemoryKind::parameter, w[l] + (m_cut && !w_cut ? whole(change) : change));
    }
    d.task(step);  // notes the memory
  }
  d.keep("w", w_cut ? w[0] : part(w[0]));
}

int main() {
  const ts::Mesh one(ts::machine("h100", {1, 1}), {{"data", 1}});
  const ts::Mesh four(ts::machine("h100", {1, 4}), {{"data", 4}});
  const auto w = ts::slice(one.run([](ts::Device& d) { train(d, 0); }).kept(0, "w"), 0, 0, D / 4);
  for (const int z : {0, 1, 2, 3}) {
    const ts::MeshRun run = four.run([z](ts::Device& d) { train(d, z); });
    const auto held = run.memory_samples(0)[steps - 1].levels;  // parameter, gradient, optimizer
    ts::Comparison rows = {"ZeRO-" + std::to_string(z), {}};
    rows.add("sent in a step", "B", (z == 3 ? 3 : 2) * 4.0 * P * 3 / 4, run.bytes_sent(0) / steps);
    rows.add("weights", "B", z >= 3 ? P : 4 * P, held[0]);  // P numbers of 4 bytes over 4 devices
    rows.add("gradients", "B", z >= 2 ? P : 4 * P, held[1]);
    rows.add("moments", "B", z >= 1 ? 2 * P : 8 * P, held[2]);
    rows.add("as one device", "yes", 1, ts::sum(ts::square(run.kept(0, "w") - w)).item() < 1e-9f);
    std::cout << rows << "\n";
  }
}
