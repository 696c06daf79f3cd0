// Ranks that do not do the same. `meshes`: they come to a run with different ones; all of them say
// so, and go on; what each measured for itself is rank 0's. `early`: one ends its program while the
// others come to another run; they say so, not wait. `progress`, `elsewhere`: they train together,
// or begin with different weights.
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

ts::Mesh mesh(const char* machine, const char* axis, int devices) {
  return ts::Mesh(ts::machine(machine, {devices}), {{axis, devices}});
}

// Rank 1 comes with `other`, the rest with "x" of 2; gives how many were told something else.
int told_wrong(const ts::Mesh& other, const std::string& told) {
  const ts::Mesh first = mesh("tpu-v5e", "x", 2);
  std::string text;
  try {
    (ts::process_rank() == 1 ? other : first).run([](ts::Device& d) { d.barrier(); });
  } catch (const ts::Error& error) {
    text = error.what();
  }
  if (text == "mesh.run: MPI rank 0 comes with the mesh tpu-v5e 2, x of 2; rank 1 with " + told +
                  "; all ranks must run the same mesh") {
    return 0;
  }
  std::printf("rank %d: %s\n", ts::process_rank(), text.c_str());
  return 1;
}

int meshes() {
  int wrong =
      told_wrong(mesh("tpu-v5e", "x", 1), "tpu-v5e 1, x of 1") +
      told_wrong(mesh("tpu-v5e", "x", 3), "tpu-v5e 3, x of 3") +
      told_wrong(mesh("tpu-v5e", "x", 8), "tpu-v5e 8, x of 8");  // more than there are ranks
  wrong += told_wrong(mesh("tpu-v5p", "x", 2), "tpu-v5p 2, x of 2") +
           told_wrong(mesh("tpu-v5e", "y", 2), "tpu-v5e 2, y of 2");
  mesh("tpu-v5e", "x", 2).run([](ts::Device& d) { d.barrier(); });
  return wrong;
}

ts::Machine slower_on(int rank, const std::string& what) {
  ts::Machine machine = ts::machine("tpu-v5e", {2});
  if (ts::process_rank() == rank && what == "latency") {
    machine.links[0].latency *= 2;
  } else if (ts::process_rank() == rank && what == "kind") {
    machine.links[0].kind = ts::AxisKind::switched;
  } else if (ts::process_rank() == rank && what == "chip") {
    machine.chip.flops_bf16 /= 3;
  }
  return machine;
}

// Rank 1 has other figures, or another algorithm.
int figures() {
  int wrong = 0;
  const auto told = [&](const ts::Mesh& mesh, const std::string& mine, const std::string& theirs) {
    std::string text;
    try {
      mesh.run([](ts::Device& d) { d.barrier(); });
    } catch (const ts::Error& error) {
      text = error.what();
    }
    if (text != "mesh.run: MPI rank 0 comes with the mesh tpu-v5e 2, x of 2, " + mine +
                    "; rank 1 with tpu-v5e 2, x of 2, " + theirs +
                    "; all ranks must run the same mesh") {
      std::printf("rank %d: %s\n", ts::process_rank(), text.c_str());
      ++wrong;
    }
  };
  const ts::List<ts::MeshAxis> axes = {{"x", 2}};
  told(ts::Mesh(slower_on(1, "latency"), axes), "links.latency 1e-06", "links.latency 2e-06");
  told(ts::Mesh(slower_on(1, "kind"), axes), "links of dimension 0 line",
       "links of dimension 0 switched");
  told(ts::Mesh(slower_on(1, "chip"), axes), "flops_bf16 1.97e+14",
       "flops_bf16 65666666666666.664");
  ts::Mesh mesh(slower_on(-1, ""), axes);
  mesh.algorithm = ts::process_rank() == 1 ? ts::Algorithm::tree : ts::Algorithm::ring;
  told(mesh, "algorithm ring", "algorithm tree");
  return wrong;
}

// A machine of this computer, which every rank measures for itself, is rank 0's; a sharded program
// prices by it as soon as it has run.
int laptops() {
  ts::Machine machine;
  machine.name = "laptops";
  machine.chip = ts::laptop();
  machine.dims = {2};
  ts::Links links;
  links.kind = ts::AxisKind::line;
  const double rank = ts::process_rank();
  links.bandwidth = ts::Bandwidth::one_way(machine.chip.memory_bandwidth / (rank + 1));
  links.latency = 1e-6 + 1e-3 * rank;
  machine.links.push_back(links);
  machine.chip.flops_f32 *= 1 + rank;
  const ts::MeshRun run = ts::Mesh(machine, {{"x", 2}}).run([](ts::Device& d) {
    const ts::Tensor a = ts::ones({64, 64});
    d.all_reduce(ts::matmul(a, a), "x");
  });
  const ts::ShardedProgram product =
      ts::compile(ts::Mesh(machine, {{"x", 2}}),
                  [](const std::vector<ts::Tensor>& in) {
                    return std::vector<ts::Tensor>{ts::matmul(in[0], in[1])};
                  },
                  {"I, J_x", "J_x, K"});
  const ts::ShardedPlan& alone = product.plan({{4, 8}, {8, 4}});
  product(std::vector<ts::Tensor>{ts::ones({4, 8}), ts::ones({8, 4})});
  const auto price = [](const ts::ShardedPlan& plan) {
    return ts::tensor({1}, {static_cast<float>(plan.comms_seconds)});
  };
  const ts::Tensor before = price(alone), after = price(product.plan());
  const ts::Machine& on = run.machine();
  const ts::Tensor seconds = ts::tensor({1}, {static_cast<float>(run.seconds)});
  const ts::Tensor flops = ts::tensor({1}, {static_cast<float>(on.chip.flops_f32)});
  const ts::MeshRun both =
      ts::Mesh(ts::machine("tpu-v5e", {2}), {{"x", 2}}).run([&](ts::Device& d) {
        d.keep("seconds", d.all_gather(seconds, "x"));
        d.keep("flops", d.all_gather(flops, "x"));
        d.keep("before", d.all_gather(before, "x"));
        d.keep("after", d.all_gather(after, "x"));
      });
  int wrong = on.links[0].latency > 1e-6 ? 1 : 0;
  const std::vector<float> prices = both.kept(0, "before").values();  // latencies of both
  wrong += prices[1] > 100 * prices[0] ? 0 : 1;
  for (const char* const name : {"seconds", "flops", "after"}) {
    const std::vector<float> values = both.kept(0, name).values();
    wrong += values[0] < values[1] || values[0] > values[1] ? 1 : 0;
  }
  return wrong;
}

// A schedule of many streams runs as on threads.
int streams() {
  constexpr int chunks = 600;
  ts::CollectiveSchedule own;
  own.name = "many";
  own.what = ts::Collective::broadcast;
  own.devices = 2;
  own.chunks = chunks;
  for (int c = 0; c < chunks; ++c) {
    ts::Transfer t;
    t.to = 1;
    t.chunk = c;
    t.stream = c;
    own.transfers.push_back(t);
  }
  const ts::MeshRun run = mesh("tpu-v5e", "x", 2).run([&](ts::Device& d) {
    ts::CollectiveOptions options;
    options.schedule = &own;
    d.keep("got", d.broadcast(ts::full({chunks}, d.rank() == 0 ? 3.0f : 0.0f), "x", 0, options));
  });
  return run.kept(1, "got").values() == std::vector<float>(chunks, 3.0f) ? 0 : 1;
}

int early() {
  const ts::Mesh both = mesh("tpu-v5e", "x", 2);
  const auto program = [](ts::Device& d) { d.all_reduce(ts::full({4}, 1.0f), "x"); };
  both.run(program);
  if (ts::process_rank() == 1) {
    return 0;
  }
  try {
    both.run(program);
  } catch (const ts::Error& error) {
    std::printf("%s\n", error.what());
    return 0;
  }
  return 1;
}

// One rank tells how far it is; of a training that rank 1 begins elsewhere no rank takes a step.
int progress(bool together) {
  const ts::Text text = ts::make_text("letters", std::string(100, 'a') + "b");
  ts::ModelConfig c;
  c.layers = c.heads = c.kv_heads = 1;
  c.width = c.head_size = c.hidden = c.context = 4;
  c.vocabulary = text.tokenizer.vocabulary();
  ts::TrainOptions options;
  options.steps = 1;
  options.batch = options.layout.data = 2;
  options.machine = ts::machine("tpu-v5e", {2});
  ts::Transformer model(c, !together && ts::process_rank() == 1 ? 2 : 1);
  try {
    return together == (ts::train(model, text, options).losses.size() == 1) ? 0 : 1;
  } catch (const ts::Error& error) {
    std::printf("%s\n", error.what());
    return together ? 1 : 0;
  }
}

}  // namespace

int main(int count, char** words) {
  if (count == 2 && std::string(words[1]) == "progress") {
    return progress(true);
  }
  if (count == 2 && std::string(words[1]) == "elsewhere") {
    return progress(false);
  }
  if (count == 2 && std::string(words[1]) == "early") {
    return early();
  }
  return meshes() + figures() + laptops() + streams();
}
