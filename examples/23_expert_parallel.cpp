// Expert parallelism: a mixture of experts with an all_to_all before its experts and one after. A
// full expert drops later tokens; a larger capacity drops fewer and sends more: buffers go whole.
//   g++ -std=c++17 -O2 -pthread -I. examples/23_expert_parallel.cpp -o 23_expert && ./23_expert
#include <algorithm>
#include <cmath>

#include "tinyscale.hpp"
namespace ts = tinyscale;

constexpr int D = 16, E = 8, e = 4, k = 2, T = 64;                  // T: tokens of one of e devices
using Experts = std::function<ts::Tensor(const ts::Tensor& rows)>;  // (E, C, D) -> (E, C, D)

// Every token x visits its k best experts and adds up what they make of it, weighted.
ts::Tensor mixture(const ts::Tensor& x, const ts::Tensor& router, const ts::ExpertOptions& how,
                   const Experts& experts, ts::ExpertCounts& counts) {
  const ts::Tensor p = ts::softmax(ts::matmul(x, router));  // (T, E)
  const ts::Routing routing = ts::route(p, k, how);
  counts.add(0, 1, routing);
  counts.balance_loss = static_cast<double>(ts::balance_loss(p, routing).item());
  const ts::ExpertBuffer in = ts::pad_to_capacity(ts::expert_rows(x, routing));
  return ts::combine(in.rows_of(experts(in.buffer)), p, routing);
}

int main() {
  const ts::Tensor x = ts::randn({e * T, D}, 1) + 0.4f, router = ts::randn({D, E}, 2, 0.3f);
  const ts::Tensor w = ts::randn({E, D, D}, 3, 0.25f);  // an expert is gelu(x w_i)
  ts::Mesh mesh(ts::machine("h100", {1, e}), {{"expert", e}});
  mesh.algorithm = ts::Algorithm::direct;  // to every other device at once
  for (const double factor : {0.5, 1.0, 1.5}) {
    ts::ExpertOptions how;
    how.capacity_factor = factor;
    const ts::MeshRun run = mesh.run([&](ts::Device& d) {
      const ts::Tensor own = d.shard(w, "expert", 0);  // (E / e, D, D)
      const Experts there = [&](const ts::Tensor& rows) {
        const ts::Tensor here = d.all_to_all(rows, "expert", 0, 1);  // dispatch: (E / e, e C, D)
        return d.all_to_all(ts::gelu(ts::matmul(here, own)), "expert", 1, 0);  // combine
      };
      ts::ExpertCounts mine;
      d.keep("y", mixture(d.shard(x, "expert", 0), router, how, there, mine));
    });
    const Experts here = [&](const ts::Tensor& rows) { return ts::gelu(ts::matmul(rows, w)); };
    how.groups = e;  // one device, with a capacity for each T tokens
    ts::ExpertCounts counts;
    const ts::Tensor y = mixture(x, router, how, here, counts);
    float far = 0;
    for (int i = 0; i < e * T * D; ++i) {
      const ts::Tensor part = run.kept(i / (T * D), "y");
      far = std::max(far, std::abs(part.data()[i % (T * D)] - y.data()[i]));
    }
    const double C = static_cast<double>(ts::expert_capacity(T, k, E, factor));
    std::cout << "capacity factor " << factor << ": C = " << C << ", busiest expert "
              << *std::max_element(counts.routed.begin(), counts.routed.end()) << " of "
              << counts.all_routed() << " choices, " << counts.all_dropped() << " dropped, balance "
              << ts::format_fixed(counts.balance_loss, 2) << "\n  a device sends "
              << run.bytes_sent(0) << " bytes; 2 E C D (e - 1) / e numbers of 4 bytes: "
              << ts::expert_capacity_bytes(E, C, D, e) / 2  // the other half: the backward pass
              << (far < 1e-5f ? "; equal to one device\n" : "; not equal!\n");
  }
}
