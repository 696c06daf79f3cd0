// Whole training steps: forward, backward and AdamW, without clipping, beside PyTorch and a plain C
// program.
#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <memory>

#include "peers.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace bench {
namespace {

struct Shape {
  const char* name;
  std::int64_t layers, heads, width, context, batch, vocabulary;
  double torch, plain, torch_bf16;  // targets
};
constexpr Shape shapes[] = {{"tiny", 4, 4, 128, 128, 4, 256, 2.2, 6, 2},
                            {"gpt2", 12, 12, 768, 64, 4, 50257, 1.6, 7, 2}};

ts::ModelConfig config_of(const Shape& s) {
  ts::ModelConfig c;
  c.name = s.name;
  c.layers = s.layers;
  c.heads = c.kv_heads = s.heads;
  c.width = s.width;
  c.head_size = s.width / s.heads;
  c.hidden = 4 * s.width;
  c.vocabulary = s.vocabulary;
  c.context = s.context;
  c.activation = ts::Activation::gelu_tanh;
  c.bias = true;
  return c;
}

// A model in training on one batch of random tokens.
struct Training {
  ts::ModelConfig config;
  ts::Transformer model;
  ts::StepOptions options;
  ts::AdamW optimizer;
  ts::Batch batch;
  std::int64_t steps = 0;

  Training(const Shape& s, ts::DType format)
      : config(config_of(s)),
        model(config, /*seed=*/1),
        options(),
        optimizer(model.tensors(), ts::adamw_options(options)) {
    options.learning_rate = options.min_learning_rate = 3e-4;
    options.clip = 0;
    options.format = format;
    options.steps = 1 << 30;
    batch.time = s.context;
    batch.sequences = s.batch;
    for (std::int64_t i = 0; i < s.context * s.batch; ++i) {
      const auto below = static_cast<std::uint64_t>(s.vocabulary);
      const auto at = static_cast<std::uint64_t>(i);
      batch.ids.push_back(static_cast<std::int32_t>(ts::random_below(2, at, below)));
      batch.targets.push_back(static_cast<std::int32_t>(ts::random_below(3, at, below)));
    }
  }
  void step() { ts::train_step(model, optimizer, batch, options, steps++); }
  // The same step as one graph.
  ts::CompiledStep compiled() { return ts::compile_step(model, optimizer, options); }
  double flops() const {
    return ts::model_flops_per_token(config, batch.time) * static_cast<double>(batch.ids.size());
  }
};

// The step's ops, each kind summed over its shapes, the slowest first.
void print_ops(Training& training) {
  std::vector<ts::RooflineRow> kinds;
  const ts::Chip laptop = ts::laptop();
  const double start = now(Clock::wall);
  double step = 0;
  {
    const ts::Profile profile;
    training.step();
    step = now(Clock::wall) - start;
    for (const ts::OpRecord& record : profile.records()) {
      const ts::RooflineRow row = ts::roofline(record, laptop);
      std::size_t at = 0;
      while (at < kinds.size() && kinds[at].name != row.name) {
        ++at;
      }
      if (at == kinds.size()) {
        kinds.push_back(ts::RooflineRow());
        kinds[at].name = row.name;
      }
      ++kinds[at].count;
      kinds[at].seconds += row.seconds;
      kinds[at].measured += row.measured;
    }
  }
  std::sort(kinds.begin(), kinds.end(), [](const ts::RooflineRow& a, const ts::RooflineRow& b) {
    return a.measured > b.measured;
  });
  ts::Table table;
  table.columns = {"op", "a step", "measured", "roofline", "of the roof", "% of the step"};
  double measured = 0;
  for (const ts::RooflineRow& kind : kinds) {
    measured += kind.measured;
    table.add({kind.name, std::to_string(kind.count), ts::format_seconds(kind.measured),
               ts::format_seconds(kind.seconds),
               kind.measured > 0 ? ts::format_fixed(kind.seconds / kind.measured, 2) : "-",
               ts::format_fixed(100 * kind.measured / step, 1)});
  }
  std::printf("%snot in an op: %s (the optimizer, memory, the graph)\n", table.text().c_str(),
              ts::format_seconds(std::max(0.0, step - measured)).c_str());
}

// Op by op, or the whole step as one graph.
void train(Bench& bench, const Shape& s, ts::DType format, int threads, bool as_graph) {
  const bool large = s.vocabulary > 1000;
  const bool f32 = format == ts::DType::f32;
  const auto training = std::make_shared<Training>(s, format);
  Work step = [training] { training->step(); };
  if (as_graph) {
    const auto graph = std::make_shared<ts::CompiledStep>(training->compiled());
    step = [training, graph] { (*graph)(training->batch, training->steps++); };
  }
  const std::string name = f32 ? "f32" : "bf16";
  Case c;
  c.group = ts::detail::cat({"train-", s.name});
  c.what = ts::detail::cat(
      {name, ", ", threads, threads == 1 ? " thread" : " threads", as_graph ? ", one graph" : ""});
  c.threads = threads;
  c.rounds = large ? 3 : 9;
  c.ways = {timed("ours", clock_for(threads), threads == 1 ? one_thread(step) : step),
            asked("PyTorch", torch(bench, threads), ts::detail::cat({"train ", s.name, " ", name})),
            limit(training->flops(), 0, threads, f32 ? Arithmetic::f32 : Arithmetic::bf16)};
  if (f32) {
    Way plain = asked("C program", plain_c(bench, s.name, threads), "step");
    plain.every = large && !bench.options().slow ? 3 : 1;
    c.ways.push_back(plain);
  }
  if (threads == 1) {
    c.targets = {{"PyTorch", f32 ? s.torch : s.torch_bf16}, {"C program", s.plain}};
  }
  bench.run(c);
  if (bench.options().ops && threads == all_threads() && !as_graph) {
    print_ops(*training);
  }
}

// "of limit" of these rows is an MFU: model FLOPs of a step over what the loop of multiply-adds
// does in the same time, on as many threads and, in bf16, on the faster units for it.
void print_mfu(const Bench& bench, const std::string& group) {
  std::string line, before;
  for (const Row& row : bench.rows()) {
    if (row.group == group && row.what != before && row.of_limit > 0) {
      line += ts::detail::cat(
          {line.empty() ? "" : "; ", row.what, " ", ts::format_fixed(100 * row.of_limit, 0), " %"});
      before = row.what;
    }
  }
  if (!line.empty()) {
    std::printf("  MFU of this laptop (of limit): %s\n", line.c_str());
  }
}

// A step as one graph beside the same step op by op, with ops that are fused by hand.
void train_compiled(Bench& bench, const Shape& s, ts::DType format, int threads) {
  const auto eager = std::make_shared<Training>(s, format);
  const auto whole = std::make_shared<Training>(s, format);
  const auto graph = std::make_shared<ts::CompiledStep>(whole->compiled());
  const Work op_by_op = [eager] { eager->step(); };
  const Work step = [whole, graph] { (*graph)(whole->batch, whole->steps++); };
  const std::string name = format == ts::DType::f32 ? "f32" : "bf16";
  Case c;
  c.group = ts::detail::cat({"compiled-", s.name});
  c.what = ts::detail::cat({name, ", ", threads, threads == 1 ? " thread" : " threads"});
  c.threads = threads;
  c.rounds = s.vocabulary > 1000 ? 5 : 15;
  c.ways = {
      timed("ours", clock_for(threads), threads == 1 ? one_thread(step) : step),
      timed("eager", clock_for(threads), threads == 1 ? one_thread(op_by_op) : op_by_op),
      asked("PyTorch", torch(bench, threads), ts::detail::cat({"train ", s.name, " ", name}))};
  c.targets = {{"eager", 1.0}, {"PyTorch", 1.2}};
  bench.run(c);
}

}  // namespace

void training_rows(Bench& bench) {
  for (const Shape& s : shapes) {
    if (!bench.wants(ts::detail::cat({"train-", s.name}),
                     ts::detail::cat({"a training step in ms: ", s.layers, " layers, width ",
                                      s.width, ", ", s.batch, " sequences of ", s.context,
                                      ", vocabulary ", s.vocabulary}))) {
      continue;
    }
    for (const int threads : thread_counts()) {
      for (const ts::DType format : {ts::DType::f32, ts::DType::bf16}) {
        train(bench, s, format, threads, false);
        train(bench, s, format, threads, true);
      }
    }
    print_mfu(bench, ts::detail::cat({"train-", s.name}));
  }
  for (const Shape& s : shapes) {
    if (bench.wants(ts::detail::cat({"compiled-", s.name}),
                    "a training step as one graph, in ms, beside the same op by op")) {
      for (const int threads : thread_counts()) {
        train_compiled(bench, s, ts::DType::f32, threads);
        train_compiled(bench, s, ts::DType::bf16, threads);
      }
    }
  }
}

}  // namespace bench
