// Expert parallelism: a mixture of experts with an all_to_all before its experts and one after. A
// full expert drops later tokens; a larger capacity drops fewer and sends more: buffers go whole.
//   g++ -std=c++17 -O2 -pthread -I. examples/23_expert_parallel.cpp -o 23_expert && ./23_expert
#include <algorithm>
#include <cmath>

#include "tinyscale.hpp"
namespace ts = tinyscale;

constexpr int D = 16, E = 8, k = 2;
using Experts = std::function<ts::Tensor(const ts::Tensor& rows)>;  // (E, C, D) -> (E, C, D)

// Gives experts the rows of their tokens and adds up what comes back by the router's weights.
ts::Tensor mixture(const ts::Tensor& x, const ts::Tensor& p, const ts::Routing& to,
                   const Experts& experts) {
  const auto n = static_cast<std::int32_t>(x.dim(0));
  std::vector<std::int32_t> token_of, slot_of;
  for (std::size_t e = 0; e < E; ++e) {
    for (const std::int32_t token : to.rows[e]) {
      slot_of.push_back(static_cast<std::int32_t>(token_of.size()));
      token_of.push_back(token);
    }
    token_of.resize((e + 1) * static_cast<std::size_t>(to.capacity), n);  // empty slots
  }
  const ts::Tensor none = ts::zeros({1, D});  // what an empty slot holds and a dropped choice gets
  const ts::Tensor in = ts::embedding(ts::concat({x, none}, 0), token_of, {E, to.capacity});
  const ts::Tensor out = ts::reshape(experts(in), {E * to.capacity, D});
  const ts::Tensor kept = ts::concat({ts::embedding(out, slot_of, {to.kept}), none}, 0);
  const ts::Tensor w = ts::embedding(ts::reshape(p, {n * E, 1}), to.chosen, {n, k});  // (n, k, 1)
  const ts::Tensor back = ts::embedding(kept, to.places, {n, k});                     // (n, k, D)
  return ts::sum(w / ts::sum(w, 1, ts::KeepDim::yes) * back, 1);
}

int main() {
  const ts::Tensor x = ts::randn({256, D}, 1) + 0.4f, w = ts::randn({E, D, D}, 3, 0.25f);
  const ts::Tensor p = ts::softmax(ts::matmul(x, ts::randn({D, E}, 2, 0.3f)));
  const ts::Routing all = ts::route(p, k);  // dropless
  std::cout << "tokens of the busiest expert: "
            << *std::max_element(all.routed.begin(), all.routed.end())
            << ", on average 64; balance " << std::round(100 * ts::balance_loss(p, all).item())
            << " %, 100 when even\n";
  ts::Mesh mesh(ts::machine("h100", {1, 4}), {{"expert", 4}});
  mesh.algorithm = ts::Algorithm::direct;  // to every other device at once
  for (const double factor : {0.5, 1.0, 1.5}) {
    const ts::Routing to = ts::route(p, k, {factor, 0, 4});  // 4 groups: what 4 devices see
    const ts::Tensor y =
        mixture(x, p, to, [&](const ts::Tensor& in) { return ts::gelu(ts::matmul(in, w)); });
    const ts::MeshRun run = mesh.run([&](ts::Device& d) {
      const ts::Tensor mine = d.shard(p, "expert", 0), own = d.shard(w, "expert", 0);
      const Experts there = [&](const ts::Tensor& in) {
        const ts::Tensor got = d.all_to_all(in, "expert", 0, 1);  // dispatch: (E / 4, 4 C, D)
        return d.all_to_all(ts::gelu(ts::matmul(got, own)), "expert", 1, 0);  // combine
      };
      const ts::Routing routing = ts::route(mine, k, {factor, 0, 1});
      d.keep("y", mixture(d.shard(x, "expert", 0), mine, routing, there));
    });
    bool same = true;
    for (int i = 0; i < 256 * D; ++i) {
      same = same && std::abs(run.kept(i / 64 / D, "y").data()[i % (64 * D)] - y.data()[i]) < 1e-5f;
    }
    std::cout << "capacity factor " << factor << ": dropped " << 512 - to.kept
              << " of 512; a device sends " << run.bytes_sent(0)
              << " bytes, 4 * 2 E C D (e-1)/e is " << 4 * 2 * E * to.capacity / 4 * D * 3 / 4
              << "; " << (same ? "equal to one device\n" : "not equal!\n");
  }
}
