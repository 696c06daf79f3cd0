// Eager or compiled? The same function runs op by op, or is captured once as a graph that runs in
// its place. You see bytes by pass, when it is captured again, a training step as one graph, memory
// by a budget, launches on a GPU, gradients by example, a graph cut over devices, its loops as C++.
//   g++ -std=c++17 -O2 -pthread -I. examples/09_eager_or_compiled.cpp -o 09_eager_or_compiled &&
//   ./09_eager_or_compiled

#include "tinyscale.hpp"

namespace ts = tinyscale;
using Tensors = std::vector<ts::Tensor>;

ts::Tensor gelu_by_hand(const ts::Tensor& x) {
  return 0.5f * x * (1.0f + ts::erf(x * 0.70710678f));
}
ts::Tensor softmax_by_hand(const ts::Tensor& x) {
  const ts::Tensor e = ts::exp(x - ts::max(x, -1, ts::KeepDim::yes));
  return e / ts::sum(e, -1, ts::KeepDim::yes);
}

const char* same(const ts::Tensor& a, const ts::Tensor& b) {
  return ts::sum(ts::square(a - b)).item() < 1e-8f * ts::sum(ts::square(a)).item() ? "yes" : "no";
}

// 1. Op by op six numbers go through memory for one; as one kernel two.
ts::Compiled one_block() {
  const ts::Tensor x = ts::randn({512, 1024}, /*seed=*/1);
  const auto eager = [](const Tensors& in) { return Tensors{ts::gelu(in[0] * 2.0f + 1.0f)}; };
  ts::Compiled block = ts::compile(eager);
  block({x});  // the first call captures
  ts::Table table;
  table.title = "1. gelu(x * 2 + 1) of 512 x 1024 numbers, counted";
  table.columns = {"", "kernels", "bytes"};
  const auto count = [&](const char* name, const ts::Compiled::Body& f) {
    const ts::Profile profile;
    f({x});
    table.add({name, ts::format_count(double(profile.totals().ops)),
               ts::format_bytes(profile.totals().bytes())});
  };
  count("eager", eager);
  count("compiled", block);
  std::cout << table << "same numbers: " << same(eager({x})[0], block({x})[0]) << "\n"
            << block.graph() << "\n";
  return block;
}

// 2. What a function written in primitives becomes, pass by pass.
void passes() {
  const ts::Tensor x = ts::randn({256, 128}, 2);
  const ts::Tensor up = ts::randn({128, 512}, 3, 0.1f), down = ts::randn({512, 128}, 4, 0.1f);
  const ts::Compiled::Body layer = [up, down](const Tensors& in) {
    const ts::Tensor h = gelu_by_hand(ts::matmul(in[0], up));
    return Tensors{softmax_by_hand(ts::matmul(h, down) + in[0])};
  };
  ts::CompileOptions as_written;
  as_written.recognize = false;
  ts::Compiled named = ts::compile(layer), plain = ts::compile(layer, as_written);
  named({x});
  plain({x});
  const ts::CompileReport by_hand = ts::compile_report(plain), report = ts::compile_report(named);
  ts::Table table;
  table.title = "2. gelu and softmax by hand between products; each row has the passes above it";
  table.columns = {"pass", "kernels", "bytes", "intermediate", "recognized: kernels", "bytes"};
  for (const ts::PassRow& row : by_hand.rows) {
    const ts::PassRow& known = report.row(row.name);
    table.add({row.name, std::to_string(row.kernels), ts::format_bytes(row.bytes),
               ts::format_bytes(row.block_bytes), std::to_string(known.kernels),
               ts::format_bytes(known.bytes)});
  }
  std::cout << table << "kernels:";
  for (const ts::Step& step : named.plan().steps()) {
    std::cout << " [" << step.name(named.plan().graph()) << "]";
  }
  std::cout << "\n\n";
}

// 3. A graph holds for what it was captured with; the second call runs the function once more to
// see the same graph. A number read on the host cuts it in two.
void guards() {
  ts::CompileOptions any_batch;
  any_batch.symbolic_batch = true;
  const ts::Compiled::Body body = [](const Tensors& in) { return Tensors{softmax_by_hand(in[0])}; };
  ts::Compiled f = ts::compile(body), g = ts::compile(body, any_batch);
  ts::Table table;
  table.title = "3. calls with other shapes";
  table.columns = {"input", "captures", "recompiled because", "captures, any batch", "sizes"};
  for (const ts::Shape& shape : {ts::Shape{8, 64}, {8, 64}, {16, 64}, {24, 64}, {8, 32}}) {
    const ts::Tensor x = ts::randn(shape, 5);
    f({x});
    g({x});
    table.add({shape.text(), std::to_string(f.counters().captures), f.reason(),
               std::to_string(g.counters().captures), std::to_string(g.counters().sizes)});
  }
  ts::Compiled branch = ts::compile([](const Tensors& in) {
    const ts::Tensor y = ts::exp(in[0]) + 1.0f;
    return Tensors{ts::mean(y).item() > 3.0f ? y / 2.0f : y};  // the host must know
  });
  branch({ts::randn({8, 64}, 5)});
  std::cout << table << "break: " << branch.breaks()[0].text() << "\n\n";
}

// 4. Gradients flow through a compiled function, and a whole step can be inside one.
void training() {
  const ts::Tensor x = ts::randn({64, 32}, 7), y = ts::randn({64, 1}, 8);
  const ts::Tensor w = ts::parameter(ts::randn({32, 1}, 9));
  const ts::Compiled::Body loss = [w](const Tensors& in) {
    return Tensors{ts::mean(ts::square(ts::matmul(in[0], w) - in[1]))};
  };
  ts::compile(loss)({x, y})[0].backward();
  const ts::Tensor through = w.grad().clone();
  w.zero_grad();
  loss({x, y})[0].backward();
  std::cout << "4. gradient through a compiled function, as eager: " << same(through, w.grad());
  w.zero_grad();
  ts::AdamW optimizer({w});
  ts::Compiled step = ts::compile([&](const Tensors& in) {
    const ts::Tensor now = loss(in)[0];
    now.backward();
    optimizer.step();
    optimizer.zero_grad();
    return Tensors{now.detach()};
  });
  std::cout << "\nloss, a step as one graph:";
  for (int i = 0; i <= 200; ++i) {
    const float now = step({x, y})[0].item();
    std::cout << (i % 50 == 0 ? " " + ts::format_fixed(double(now), 1) : "");
  }
  std::cout << "; kernels: " << step.plan().steps().size() << "\n";
}

// A transformer's whole step, clipping and update included, is one graph. What its backward pass
// needs fits a budget of bytes: above it the results that are cheapest to compute again go.
void transformer() {
  const ts::Transformer model(ts::config("nano"), /*seed=*/1);
  const std::vector<std::int32_t> text(200, 3);
  const ts::Batch batch = ts::make_batch(text, /*sequences=*/4, /*time=*/64, 1, 0);
  ts::Table table;
  table.title = "nano, 4 x 64 tokens: results kept for the backward pass, by budget";
  table.columns = {"budget", "kept", "FLOPs again", "kernels", "memory in turns", "side by side"};
  ts::LaunchComparison launches;
  for (const double budget : {1e9, 6e6, 3e6, 1e6}) {
    ts::AdamW optimizer(model.tensors());
    ts::CompileOptions passes;
    passes.activation_bytes = budget;
    ts::CompiledStep step = ts::compile_step(model, optimizer, ts::StepOptions(), passes);
    step(batch, 0);
    const ts::GraphPlan& plan = step.compiled().plan();
    table.add({ts::format_bytes(budget), ts::format_bytes(plan.rematerialization().kept),
               ts::format_si(plan.rematerialization().flops, ""),
               std::to_string(plan.steps().size()), ts::format_bytes(plan.block_bytes()),
               ts::format_bytes(plan.unshared_bytes())});
    if (budget == 1e9) {  // 5. on a GPU whose host takes 5 us for a launch, simulated
      const ts::Graph written = ts::compile_report(step.compiled()).graph;
      launches = ts::launch_comparison(ts::op_by_op(written), plan.records(), ts::chip("h100"),
                                       ts::DType::bf16);
    }
  }
  std::cout << table << "\n5. " << launches << "\n";
}

// 6. Functions of functions: the gradient of each example, all at once, as one graph.
void composed() {
  const ts::TensorFunction loss = [](const Tensors& in) {  // one example
    return Tensors{ts::square(ts::sum(ts::tanh(in[0]) * in[1]))};
  };
  const ts::Compiled compiled = ts::compile(ts::vmap(ts::grad(loss), {-1, 0}));
  const ts::Tensor w = ts::randn({16}, 10), x = ts::randn({32, 16}, 11), all = compiled({w, x})[0];
  const ts::Tensor one = ts::grad(loss)({w, ts::reshape(ts::slice(x, 0, 2, 3), {16})})[0];
  std::cout << "6. compile(vmap(grad(f))): " << all.shape() << ", kernels "
            << compiled.plan().steps().size() << ", row 2 as of that example alone: "
            << same(one, ts::reshape(ts::slice(all, 0, 2, 3), {16})) << "\n\n";
}

// 7. Shardings go through a graph and its gradients; collectives come where they must.
void sharded() {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2, 2}), {{"x", 2}, {"y", 2}});
  ts::ShardedOptions options;
  options.gradients = {1, 2};
  options.results = {"", "D, F_y", "F_y, D"};
  const ts::Compiled::Body loss = [](const Tensors& in) {
    return Tensors{ts::mean(ts::square(ts::matmul(ts::relu(ts::matmul(in[0], in[1])), in[2])))};
  };
  const ts::ShardedProgram program =
      ts::compile(mesh, loss, {"B_x, D", "D, F_y", "F_y, D"}, options);
  program({ts::randn({64, 32}, 12), ts::randn({32, 64}, 13), ts::randn({64, 32}, 14)});
  std::cout << "7. loss and gradients of two layers, batch over x, hidden over y\n"
            << program.plan().collective_table() << "\n";
}

int main() {
  const ts::Compiled block = one_block();
  passes();
  guards();
  training();
  transformer();
  composed();
  sharded();
  std::cout << "8. the kernel of 1. as C++\n" << ts::print_cpp(block.plan(), 0);
  return 0;
}
