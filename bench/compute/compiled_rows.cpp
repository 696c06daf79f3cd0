// Compiled functions beside the eager ops: chains that pass over memory once, ops written in
// primitives beside those that are fused by hand, what capturing and running a graph costs.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "peers.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace bench {
namespace {

using Tensors = std::vector<ts::Tensor>;
using Body = ts::Function<Tensors(const Tensors&)>;

Work compiled(const Body& body, const Tensors& inputs) {
  const auto graph = std::make_shared<ts::Compiled>(ts::compile(body));
  return [graph, inputs] { (*graph)(inputs); };
}
Work eager(const Body& body, const Tensors& inputs) {
  return [body, inputs] {
    const ts::NoGrad no_graph;
    body(inputs);
  };
}

void beside(Bench& bench, const std::string& group, const std::string& what, const Body& written,
            const Body& fused, const Tensors& inputs, double target) {
  for (const int threads : thread_counts()) {
    const auto on = [threads](const Work& work) { return threads == 1 ? one_thread(work) : work; };
    Case c;
    c.group = group;
    c.what = ts::detail::cat({what, ", ", threads, threads == 1 ? " thread" : " threads"});
    c.threads = threads;
    c.rounds = 15;
    c.ways = {timed("ours", clock_for(threads), on(compiled(written, inputs))),
              timed("fused by hand", clock_for(threads), on(eager(fused, inputs)))};
    c.targets = {{"fused by hand", target}};
    bench.run(c);
  }
}

Tensors chain(const Tensors& in) {  // eight ops
  const ts::Tensor a = (in[0] * 1.1f + 0.3f) * 0.9f - 0.2f;
  return {ts::relu(a * 1.3f + 0.7f) - 0.6f};
}

void chains(Bench& bench) {
  const std::int64_t n = 16 << 20;
  const Tensors x = {ts::randn({n}, 1)};
  const auto from = std::make_shared<ts::Tensor>(x[0]);
  for (const int threads : thread_counts()) {
    const auto on = [threads](const Work& work) { return threads == 1 ? one_thread(work) : work; };
    Streams streams;
    streams.bytes = 4.0 * static_cast<double>(n);
    streams.read = streams.write = 1;
    Case c;
    c.group = "compiled-chain";
    c.what = ts::detail::cat({"8 ops, 16 M, ", threads, threads == 1 ? " thread" : " threads"});
    c.threads = threads;
    c.ways = {timed("ours", clock_for(threads), on(compiled(&chain, x))),
              timed("eager", clock_for(threads), on(eager(&chain, x))),
              stream_limit(streams, threads)};
    c.targets = {{"eager", 5.0}, {"limit", 0.85}};
    bench.run(c);
  }
}

Tensors gelu_written(const Tensors& in) {
  return {0.5f * in[0] * (1.0f + ts::erf(in[0] * 0.70710678f))};
}
Tensors gelu_fused(const Tensors& in) { return {ts::gelu(in[0])}; }

Tensors softmax_written(const Tensors& in) {
  const ts::Tensor e = ts::exp(in[0] - ts::max(in[0], -1, ts::KeepDim::yes));
  return {e / ts::sum(e, -1, ts::KeepDim::yes)};
}
Tensors softmax_fused(const Tensors& in) { return {ts::softmax(in[0])}; }

Tensors norm_written(const Tensors& in) {
  const ts::Tensor c = in[0] - ts::mean(in[0], {1}, ts::KeepDim::yes);
  const ts::Tensor variance = ts::mean(ts::square(c), {1}, ts::KeepDim::yes);
  return {c / ts::sqrt(variance + 1e-5f) * in[1] + in[2]};
}
Tensors norm_fused(const Tensors& in) { return {ts::layer_norm(in[0], in[1], in[2])}; }

Tensors gated_written(const Tensors& in) {
  return {ts::matmul(in[0] * ts::sigmoid(in[0]) * in[1], in[2])};
}
Tensors gated_fused(const Tensors& in) { return {ts::matmul(ts::silu(in[0]) * in[1], in[2])}; }

Tensors loss_written(const Tensors& in) {
  const std::int64_t rows = in[0].dim(0), classes = in[0].dim(1);
  const ts::Tensor c = in[0] - ts::max(in[0], -1, ts::KeepDim::yes);
  const ts::Tensor lse = ts::log(ts::sum(ts::exp(c), -1, ts::KeepDim::yes));
  const ts::Tensor hit = ts::equal(ts::arange(classes), ts::reshape(in[1], {rows, 1}));
  const ts::Tensor zero = ts::full(ts::Shape{}, 0.0f);
  return {ts::mean(lse - ts::sum(ts::where(hit, c, zero), -1, ts::KeepDim::yes))};
}
Tensors loss_fused(const Tensors& in) { return {ts::cross_entropy(in[0], in[1])}; }

void written_out(Bench& bench) {
  const std::string group = "compiled-ops";
  beside(bench, group, "gelu, 4 M", &gelu_written, &gelu_fused, {ts::randn({1 << 22}, 1)}, 0.9);
  beside(bench, group, "softmax 4096 x 1024", &softmax_written, &softmax_fused,
         {ts::randn({4096, 1024}, 1)}, 0.9);
  beside(bench, group, "layer norm 4096 x 768", &norm_written, &norm_fused,
         {ts::randn({4096, 768}, 1), ts::randn({768}, 2), ts::randn({768}, 3)}, 0.9);
  beside(bench, group, "gated product, 2048 x 768 x 768", &gated_written, &gated_fused,
         {ts::randn({2048, 768}, 1), ts::randn({2048, 768}, 2), ts::randn({768, 768}, 3, 0.1f)},
         1.0);
  ts::Tensor targets(ts::Shape{1024});
  for (std::int64_t i = 0; i < 1024; ++i) {
    targets.data()[i] = static_cast<float>(i * 49 % 50257);
  }
  beside(bench, group, "cross-entropy 1024 x 50257", &loss_written, &loss_fused,
         {ts::randn({1024, 50257}, 1), targets}, 0.9);
}

// A step of 12 layers, captured and made ready: the first call of a new function, less its run.
void capture_cost(Bench& bench) {
  ts::ModelConfig config;
  config.name = "12 layers";
  config.layers = config.heads = config.kv_heads = 12;
  config.width = 24;
  config.head_size = 2;
  config.hidden = 96;
  config.vocabulary = 64;
  config.context = 8;
  const auto model = std::make_shared<ts::Transformer>(config, 1);
  const auto options = std::make_shared<ts::StepOptions>();
  const auto optimizer = std::make_shared<ts::AdamW>(model->tensors(), ts::adamw_options(*options));
  ts::Batch batch;
  batch.sequences = 1;
  batch.time = 8;
  batch.ids = batch.targets = {0, 1, 2, 3, 4, 5, 6, 7};
  Case c;
  c.group = "compiled-cost";
  c.what = "capture and passes, 12 layers";
  c.ways = {Way{"ours",
                [=] {
                  ts::CompiledStep step = ts::compile_step(*model, *optimizer, *options);
                  step(batch, 0);
                  const ts::CompileCounters cost = step.compiled().counters();
                  return cost.capture_seconds + cost.pass_seconds;
                },
                1, true},
            Way{"budget", [] { return 50e-3; }, 1, true}};
  c.targets = {{"budget", 1.0}};
  bench.run(c);
}

// A hundred ops that nothing fuses, on one number each: what running a graph adds to an op.
void replay_cost(Bench& bench) {
  const Body body = [](const Tensors& in) {
    ts::Tensor x = in[0];
    for (int i = 0; i < 100; ++i) {
      x = x + static_cast<float>(i % 3);
    }
    return Tensors{x};
  };
  ts::CompileOptions apart;
  apart.fuse_elementwise = false;
  const auto graph = std::make_shared<ts::Compiled>(ts::compile(body, apart));
  const Tensors x = {ts::ones({16})};
  Case c;
  c.group = "compiled-cost";
  c.what = "an op of a graph, run";
  c.unit = "ns";
  Way ours = timed("ours", Clock::thread, one_thread([graph, x] { (*graph)(x); }));
  const auto whole = ours.sample;
  ours.sample = [whole] { return whole() / 100; };
  c.ways = {ours, Way{"budget", [] { return 1e-6; }, 1, true}};
  c.targets = {{"budget", 1.0}};
  bench.run(c);
}

}  // namespace

void compiled_rows(Bench& bench) {
  if (bench.wants("compiled-chain", "elementwise ops as one pass over memory, ms")) {
    chains(bench);
  }
  if (bench.wants("compiled-ops", "ops written in primitives beside those fused by hand, ms")) {
    written_out(bench);
  }
  if (bench.wants("compiled-cost", "what a graph costs beside its kernels")) {
    capture_cost(bench);
    replay_cost(bench);
  }
}

}  // namespace bench
