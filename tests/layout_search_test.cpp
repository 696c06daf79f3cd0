// The search over layouts against all of them one by one, the memory that rules some out against
// ZeRO's own numbers and the executor's, and every "why not" against the thing it says.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

ts::TrainingJob job_of(const char* model, double batch_tokens, std::int64_t context) {
  ts::TrainingJob job;
  job.model = ts::config(model);
  job.batch_tokens = batch_tokens;
  job.context = context;
  return job;
}

// The least typical time of all layouts that keep the search's rules, one after another, by the
// public prices of a step and of its memory.
class EveryLayout {
 public:
  EveryLayout(const ts::TrainingJob& job, const ts::Machine& machine) : job_(job), on_(machine) {
    in_.model = job.model;
    in_.context = static_cast<double>(job.context);
    in_.software = job.software;
    in_.gradient_bytes = on_.chip.kind == "gpu" ? 2 : 4;
    in_.model.context = job.context;
    sequences_ = static_cast<std::int64_t>(job.batch_tokens / in_.context + 0.5);
    orders_.push_back(machine);
    std::vector<int> order = {0, 1, 2};
    while (machine.dims.size() == 3 && std::next_permutation(order.begin(), order.end())) {
      orders_.push_back(ts::reordered(machine, order));
    }
    const std::int64_t n = machine.chips();
    for (std::int64_t t = 1; t <= n; ++t) {
      for (std::int64_t p = 1; p <= n; ++p) {
        for (std::int64_t c = 1; c <= n; ++c) {
          for (std::int64_t e = 1; e <= std::max(1, job.model.experts); ++e) {
            if (n % (t * p * c) == 0) {
              try_axes(t, p, c, e);
            }
          }
        }
      }
    }
  }

  double best = 0;
  int tried = 0;
  std::string text;

 private:
  void try_axes(std::int64_t t, std::int64_t p, std::int64_t c, std::int64_t e) {
    const ts::ModelConfig& m = job_.model;
    ts::Layout layout;
    layout.tensor = t;
    layout.pipeline = p;
    layout.context = c;
    layout.data = on_.chips() / (t * p * c);
    layout.expert = e;
    const bool divides = m.heads % t == 0 && (m.kv_heads % t == 0 || t % m.kv_heads == 0) &&
                         (m.experts > 0 ? m.expert_hidden : m.hidden) % t == 0;
    const bool enough =
        p <= m.layers && layout.data <= sequences_ && (c == 1 || job_.context % (2 * c) == 0);
    const bool experts =
        e == 1 || (m.experts % e == 0 && layout.batch_devices() % e == 0 && m.experts >= e);
    if (!divides || !enough || !experts) {
      return;
    }
    layout.sequence_parallel = t > 1 && job_.context / c % t == 0;
    const std::int64_t near = std::max<std::int64_t>(1, on_.dims[on_.dims.size() - 1] / t);
    for (const ts::ContextParallel kind :
         {ts::ContextParallel::ring, ts::ContextParallel::ulysses, ts::ContextParallel::gathered}) {
      const bool heads = m.heads / t % c == 0 && std::max<std::int64_t>(1, m.kv_heads / t) % c == 0;
      if (kind == ts::ContextParallel::ring ||
          (c > 1 && (heads || kind == ts::ContextParallel::gathered))) {
        layout.context_parallel = kind;
        try_zero(layout, near);
      }
    }
  }

  void try_zero(ts::Layout layout, std::int64_t near) {
    for (const ts::Zero zero :
         {ts::Zero::none, ts::Zero::optimizer, ts::Zero::gradients, ts::Zero::parameters}) {
      for (const std::int64_t shared : {std::int64_t{0}, near}) {
        const std::int64_t all = layout.batch_devices();
        const bool alone = (zero == ts::Zero::none) == (all == 1);
        const bool cut = shared == 0 || (zero != ts::Zero::none && shared > 1 && shared < all &&
                                         all % shared == 0 && on_.chip.kind == "gpu");
        if (alone && cut) {
          layout.zero = zero;
          layout.zero_devices = shared;
          try_microbatches(layout);
        }
      }
    }
  }

  void try_microbatches(ts::Layout layout) {
    const std::int64_t mine = (sequences_ + layout.data - 1) / layout.data;
    for (std::int64_t each = 1; each <= mine; ++each) {
      if (each < mine && (each & (each - 1)) != 0 && (mine % each != 0 || each > 256)) {
        continue;
      }
      layout.microbatches = (mine + each - 1) / each;
      if (layout.microbatches < layout.pipeline && each > 1) {
        continue;
      }
      for (const int chunks : {1, 2, 4, 8}) {
        if (chunks == 1 || (layout.pipeline > 1 && layout.microbatches % layout.pipeline == 0 &&
                            job_.model.layers >= layout.pipeline * chunks)) {
          try_recompute(layout, chunks, mine);
        }
      }
    }
  }

  void try_recompute(ts::Layout layout, int chunks, std::int64_t mine) {
    const double each = static_cast<double>((mine + layout.microbatches - 1) / layout.microbatches);
    ts::MemoryConvention by;
    by.states = job_.state;
    by.logit_bytes = 10;
    for (const ts::Recompute again :
         {ts::Recompute::none, ts::Recompute::selective, ts::Recompute::full}) {
      layout.recompute = again;
      ++tried;
      const ts::StepMemory memory = ts::step_memory(in_.model, layout, on_.chip, in_.context, each,
                                                    chunks, job_.software, by);
      if (memory.total() > on_.chip.memory_bytes) {
        continue;
      }
      ts::StepJob step = in_;
      step.batch = each * static_cast<double>(layout.microbatches * layout.data);
      for (const ts::Machine& machine : orders_) {
        const ts::StepPrice price = ts::price_step(step, machine, layout, chunks);
        const double time = std::max(price.typical.total(), price.limit.total());
        if (best == 0 || time < best) {
          best = time;
          text = layout.text();
        }
      }
    }
  }

  const ts::TrainingJob& job_;
  const ts::Machine& on_;
  ts::StepJob in_;
  std::int64_t sequences_ = 0;
  std::vector<ts::Machine> orders_;  // of a torus's dimensions
};

// Stages down the ranks and up again, microbatch by microbatch: rank 0 has both ends of the model.
ts::PipelineSchedule turned_back(int ranks, int microbatches) {
  ts::PipelineSchedule schedule = ts::empty_schedule("V", ranks, microbatches, 2);
  for (int rank = 0; rank < ranks; ++rank) {
    const int up = 2 * ranks - 1 - rank;
    schedule.rank_of[static_cast<std::size_t>(up)] = rank;
    for (int j = 0; j < microbatches; ++j) {
      schedule.add(rank, ts::PipelineWork::forward, rank, j);
    }
    for (int j = 0; j < microbatches; ++j) {
      schedule.add(rank, ts::PipelineWork::forward, up, j);
      schedule.add(rank, ts::PipelineWork::backward, up, j);
    }
    for (int j = 0; j < microbatches; ++j) {
      schedule.add(rank, ts::PipelineWork::backward, rank, j);
    }
  }
  return schedule;
}

// A step of it takes milliseconds; its tables are not tied.
ts::ModelConfig four_layers(std::int64_t vocabulary) {
  ts::ModelConfig c = ts::config("nano");
  c.layers = 4;
  c.width = 32;
  c.heads = c.kv_heads = 4;
  c.head_size = 8;
  c.hidden = 128;
  c.context = 16;
  c.vocabulary = vocabulary;
  c.bias = false;
  c.tied = false;
  return c;
}

}  // namespace

TEST_CASE("layout search: as good as trying every layout") {
  struct Case {
    const char *model, *chip;
    ts::Shape dims;
    double batch_tokens;
    std::int64_t context;
  };
  const Case cases[] = {{"llama3-8b", "h100", {2, 8}, 131072, 4096},
                        {"llama3-8b", "h100", {8}, 65536, 8192},
                        {"mixtral-8x7b", "h100", {4, 8}, 262144, 4096},
                        {"llama3-8b", "tpu-v5p", {4, 4, 4}, 524288, 4096},
                        {"llama3-8b", "tpu-v5p", {2, 4, 8}, 262144, 8192},
                        {"llama3-70b", "tpu-v5p", {4, 4, 8}, 1048576, 8192},
                        {"gpt2-small", "a100", {2, 2}, 16384, 1024},
                        {"gpt2-small", "h100", {3, 4}, 36864, 3072},
                        {"llama2-7b", "h100", {3, 8}, 98304, 98304}};
  for (const Case& c : cases) {
    const ts::TrainingJob job = job_of(c.model, c.batch_tokens, c.context);
    const ts::Machine machine = ts::machine(c.chip, c.dims);
    const EveryLayout every(job, machine);
    const ts::TrainingPlan plan = ts::plan_training(job, machine);
    const std::string model = c.model, chip = c.chip;
    CAPTURE(model);
    CAPTURE(chip);
    CAPTURE(every.text);
    CHECK(every.tried > 20);
    CHECK(plan.best.typical_time == doctest::Approx(every.best).epsilon(1e-12));
    CHECK(plan.best.memory <= machine.chip.memory_bytes);
  }
}

TEST_CASE("layout search: the same layouts each time, fastest first, each as priced alone") {
  const ts::TrainingJob job = job_of("llama3-70b", 4e6, 8192);
  const ts::Machine gpus = ts::machine("h100", {32, 8});
  const ts::TrainingPlan plan = ts::plan_training(job, gpus);
  const ts::TrainingPlan again = ts::plan_training(job, gpus);
  REQUIRE(plan.layouts.size() == 10);
  REQUIRE(plan.layouts.size() == again.layouts.size());
  for (std::size_t i = 0; i < plan.layouts.size(); ++i) {
    const ts::TrainingLayout& one = plan.layouts[i];
    CHECK(one.text() == again.layouts[i].text());
    CHECK(one.typical_time == again.layouts[i].typical_time);
    CHECK((i == 0 || one.typical_time >= plan.layouts[i - 1].typical_time));
    if (one.chunks == 1) {
      const ts::TrainingPlan alone = ts::plan_training(job, gpus, one.layout);
      CHECK(alone.best.typical_time == one.typical_time);
      CHECK(alone.best.memory == one.memory);
      CHECK(alone.neighbours.empty());
    }
  }
}

TEST_CASE("layout search: plans of models on machines, and why not their neighbours") {
  struct Case {
    const char *model, *chip;
    ts::Shape dims;
    double batch_tokens;
    std::int64_t context;
  };
  const Case cases[] = {{"llama3-70b", "tpu-v5p", {16, 20, 28}, 4e6, 8192},
                        {"llama3.1-405b", "h100", {2048, 8}, 16e6, 8192},
                        {"gpt3-175b", "a100", {128, 8}, 3.2e6, 2048},
                        {"mixtral-8x7b", "h100", {16, 8}, 4e6, 4096},
                        {"deepseek-v3", "h100", {64, 8}, 16e6, 4096},
                        {"llama3-70b", "tpu-v5p", {2, 16, 16, 16}, 16e6, 8192},
                        {"nano", "tpu-v5e", {1}, 4096, 0}};
  std::set<std::string> all;
  for (const Case& c : cases) {
    const ts::TrainingJob job = job_of(c.model, c.batch_tokens, c.context);
    const ts::Machine machine = ts::machine(c.chip, c.dims);
    const auto start = std::chrono::steady_clock::now();
    const ts::TrainingPlan plan = ts::plan_training(job, machine);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::cout << c.model << " on " << machine.name << ": planned in " << took.count() << " s\n";
    const std::string name = plan.model + " on " + plan.machine;
    CAPTURE(name);
    CHECK(plan.best.layout.devices() == machine.chips());
    CHECK(plan.best.memory <= machine.chip.memory_bytes);
    CHECK(plan.best.typical_time >= plan.best.step_time);
    CHECK(plan.typical_mfu.value() > 0.1);
    CHECK(plan.limit_mfu.value() < 1);
    for (const ts::WhyNot& other : plan.neighbours) {
      CAPTURE(other.change);
      CAPTURE(other.reason);
      all.insert(other.constraint);
      if (other.constraint == "divisibility") {
        CHECK(other.typical_time == 0);
        if (plan.best.chunks == 1) {
          CHECK(error_of([&] { ts::plan_training(job, machine, other.layout); }) ==
                "plan_training: layout " + other.layout.text() + ": " + other.reason);
        }
        continue;
      }
      CHECK((other.typical_time == 0 || other.typical_time >= plan.best.typical_time * (1 - 1e-9)));
      if (plan.best.chunks > 1) {
        continue;  // a layout alone says nothing of chunks
      }
      const ts::TrainingPlan priced = ts::plan_training(job, machine, other.layout);
      if (other.constraint == "memory") {
        CHECK(priced.best.memory > machine.chip.memory_bytes);
        continue;
      }
      CHECK(priced.best.typical_time == other.typical_time);
      if (other.constraint == "none") {
        CHECK(priced.best.typical_time <= plan.best.typical_time * 1.001);
      } else {
        CHECK(priced.best.typical_time > plan.best.typical_time * 1.001);
      }
      CHECK(priced.best.typical_time >= plan.best.typical_time * (1 - 1e-9));
    }
  }
  for (const char* const kind : {"memory", "bandwidth", "divisibility", "bubble"}) {
    CAPTURE(kind);
    CHECK(all.count(kind) == 1);
  }
}

TEST_CASE("layout search: matmuls on empty places of the batch are not called small shapes") {
  // 488 sequences are 7 on each of 70 replicas, 4 on each of 140, and 8 where they come by twos.
  const ts::TrainingPlan plan =
      ts::plan_training(job_of("llama3-70b", 4e6, 8192), ts::machine("tpu-v5p", {16, 20, 28}));
  REQUIRE(plan.best.layout.data == 70);
  int found = 0;
  for (const ts::WhyNot& other : plan.neighbours) {
    CAPTURE(other.change);
    CHECK(other.reason.find("smaller shapes") == std::string::npos);
    if (other.change == "context 16 instead of 32, data 140" ||
        other.change == "microbatches 2 instead of 1") {
      CHECK(other.reason.find("more of matmuls, on places of the batch that are empty") !=
            std::string::npos);
      ++found;
    }
  }
  CHECK(found == 2);
}

TEST_CASE("step memory: ZeRO's example, 120, 31.4, 16.6 and 1.9 GB of 7.5 billion parameters") {
  ts::ModelConfig c = ts::config("llama2-7b");
  const double p = static_cast<double>(c.parameters());
  const double published[] = {120e9, 31.4e9, 16.6e9, 1.9e9};
  ts::MemoryConvention by;
  by.states = ts::StateBytes::mixed;
  for (int stage = 0; stage < 4; ++stage) {
    ts::Layout layout;
    layout.data = 64;
    layout.zero = static_cast<ts::Zero>(stage);
    const ts::StepMemory m =
        ts::step_memory(c, layout, ts::chip("v100-32"), 1024, 1, 1, ts::Software(), by);
    CHECK(m.parts.states() * 7.5e9 / p == doctest::Approx(published[stage]).epsilon(0.02));
    CHECK(m.total() == doctest::Approx(m.parts.total() + m.wasted + m.system));
    CHECK(m.wasted ==
          doctest::Approx(0.05 * (m.parts.activations + m.parts.recomputed + m.parts.logits)));
    CHECK(m.system == 3e9);
  }
}

TEST_CASE("step memory: states of f32 training are the executor's") {
  const ts::ModelConfig c = four_layers(64);
  const ts::Transformer whole(c, 1);
  ts::MemoryConvention by;
  by.states = ts::StateBytes::f32;
  ts::StepOptions options;
  options.batch = 16;
  for (int stage = 0; stage < 4; ++stage) {
    for (const std::int64_t pipeline : {1, 2}) {
      ts::Layout layout;
      layout.data = 4;
      layout.pipeline = pipeline;
      layout.microbatches = pipeline;
      layout.zero = static_cast<ts::Zero>(stage);
      CAPTURE(stage);
      CAPTURE(pipeline);
      const ts::StepMemory m =
          ts::step_memory(c, layout, ts::chip("tpu-v5e"), 16, 4, 1, ts::Software(), by);
      const std::int64_t rank = m.rank == 0 ? 0 : layout.devices() - 1;
      const ts::StepPlan plan = ts::plan_step(whole, layout, options, rank);
      CHECK(m.parts.weights == doctest::Approx(plan.parameters));
      CHECK(m.parts.gradients == doctest::Approx(plan.gradients));
      CHECK(m.parts.optimizer == doctest::Approx(plan.optimizer));
    }
  }
}

TEST_CASE("step memory: a schedule that turns back has both ends of the model on its first rank") {
  ts::ModelConfig c = four_layers(512);
  ts::MemoryConvention by;
  by.states = ts::StateBytes::f32;
  ts::StepOptions options;
  options.batch = 16;
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    c.tied = tied;
    ts::Layout layout;
    layout.data = 2;
    layout.pipeline = 2;
    layout.microbatches = 4;
    layout.zero = ts::Zero::optimizer;
    layout.schedule = turned_back(2, 4);
    const ts::StepMemory m =
        ts::step_memory(c, layout, ts::chip("tpu-v5e"), 16, 2, 2, ts::Software(), by);
    CHECK(m.rank == 0);
    const ts::StepPlan plan = ts::plan_step(ts::Transformer(c, 1), layout, options, 0);
    CHECK(m.parts.weights == doctest::Approx(plan.parameters));
    CHECK(m.parts.optimizer == doctest::Approx(plan.optimizer));
    CHECK(m.parts.logits == 4 * 2 * 16 * 512);
    const ts::Table table = ts::memory_table(c, layout, 32, by);
    CHECK(table.rows[0][9] != "0 B");  // logits
    CHECK(table.rows[1][9] == "0 B");
  }
}

TEST_CASE("step memory: the fullest stage, chunks, and a layout's own schedule") {
  ts::ModelConfig c = ts::config("llama3-70b");
  c.layers = 9;  // over 8 stages: the fourth has two
  ts::Layout layout;
  layout.pipeline = 8;
  layout.microbatches = 16;
  ts::MemoryConvention by;
  by.states = ts::StateBytes::mixed;
  const ts::Chip v5p = ts::chip("tpu-v5p");
  const auto memory = [&](int chunks) {
    return ts::step_memory(c, layout, v5p, 8192, 1, chunks, ts::Software(), by);
  };
  CHECK(memory(1).rank == 3);
  double fullest = 0;
  ts::StageShare stage;
  const std::vector<std::int64_t> layers = ts::stage_layers(9, 8);
  for (std::int64_t rank = 0; rank < 8; ++rank) {
    stage.layers = layers[static_cast<std::size_t>(rank)];
    stage.embedding = rank == 0;
    stage.head = rank == 7;
    fullest = std::max(fullest, ts::device_memory(c, layout, 8192, stage, rank, by).total() + 3e8);
    stage.first += stage.layers;
  }
  CHECK(memory(1).total() == doctest::Approx(fullest));
  c.layers = 16;
  layout.pipeline = 4;
  layout.microbatches = 8;
  const double plain = memory(1).parts.activations, chunked = memory(2).parts.activations;
  CHECK(chunked / plain == doctest::Approx(1 + 3.0 / 8));  // 1 + (p - 1) / (p v)
  layout.schedule = ts::interleaved(4, 8, 2);
  CHECK(memory(2).parts.activations == doctest::Approx(chunked));
  c = ts::config("deepseek-v3");  // the first stages have dense layers, the second is fuller
  layout = ts::Layout();
  layout.pipeline = 16;
  layout.expert = layout.data = 8;
  layout.microbatches = 1;
  layout.zero = ts::Zero::optimizer;
  CHECK(memory(1).rank > 0);
}

// BLOOM's tuning log: TP2 PP6 DP32 with ZeRO-1 ran out of 80 GB, TP4 PP12 DP8 did not.
TEST_CASE("step memory: a layout that ran out of memory") {
  ts::ModelConfig c = ts::config("gpt3-175b");
  c.layers = 72;
  c.width = 14336;
  c.heads = c.kv_heads = 64;
  c.head_size = 224;
  c.hidden = 57344;
  c.vocabulary = 250880;
  ts::Layout layout;
  layout.tensor = 2;
  layout.pipeline = 6;
  layout.data = 32;
  layout.microbatches = 32;
  layout.zero = ts::Zero::optimizer;
  layout.recompute = ts::Recompute::full;
  ts::MemoryConvention by;
  by.states = ts::StateBytes::mixed;
  by.logit_bytes = 14;
  const ts::Chip a100 = ts::chip("a100-80");
  const auto total = [&] {
    return ts::step_memory(c, layout, a100, 2048, 2, 1, ts::software_deepspeed_2022(), by).total();
  };
  CHECK(total() == doctest::Approx(94.4e9).epsilon(0.01));
  CHECK(total() > a100.memory_bytes);
  layout.tensor = 4;
  layout.pipeline = 12;
  layout.data = 8;
  layout.microbatches = 128;
  CHECK(total() < a100.memory_bytes);
}

TEST_CASE("layout search: selective recomputation where scores are in memory") {
  ts::TrainingJob job = job_of("gpt3-175b", 64 * 2048, 2048);
  job.software = ts::software_deepspeed_2022();
  const ts::TrainingPlan plan = ts::plan_training(job, ts::machine("a100-80", {16, 8}));
  CHECK(plan.best.layout.recompute == ts::Recompute::selective);
  CHECK(plan.best.typical_time < 9.3);  // 10.5 with all or nothing computed again
}

TEST_CASE("step memory: scores of all keys, what kinds of context parallelism keep, f32") {
  ts::Layout layout;
  layout.context = 8;
  const ts::Chip a100 = ts::chip("a100-80");
  const ts::StepMemory scores = ts::step_memory(ts::config("gpt3-13b"), layout, a100, 8192, 1, 1,
                                                ts::software_megatron_2021());
  CHECK(scores.parts.activations ==
        doctest::Approx(40.0 * (1024.0 * 5140 * 34 + 5.0 * 40 * 1024 * 8192)));
  const ts::ModelConfig c = ts::config("llama2-7b");
  const auto kept = [&](ts::ContextParallel kind) {
    layout.context_parallel = kind;
    return ts::step_memory(c, layout, a100, 65536, 2, 1, ts::Software()).parts.activations;
  };
  const double ring = kept(ts::ContextParallel::ring), tokens = 2 * 65536 / 8.0;
  CHECK(kept(ts::ContextParallel::ulysses) - ring == doctest::Approx(2 * tokens * 4096 * 32));
  CHECK(kept(ts::ContextParallel::gathered) - ring ==
        doctest::Approx(2 * tokens * 32 * (4096 + 15 * 4096)));
  ts::TrainingJob job = job_of("llama2-7b", 65536, 4096);
  ts::Layout sharded;
  sharded.data = 16;
  sharded.zero = ts::Zero::parameters;
  ts::TrainingLayout of[2];
  for (const bool wide : {false, true}) {
    job.format = wide ? ts::DType::f32 : ts::DType::bf16;
    of[wide ? 1 : 0] = ts::plan_training(job, ts::machine("h100", {2, 8}), sharded).best;
  }
  const ts::StepMemory &half = of[0].memory_parts, &whole = of[1].memory_parts;
  CHECK(whole.parts.activations == doctest::Approx(2 * half.parts.activations));
  CHECK(whole.parts.gathered > 1.5 * half.parts.gathered);  // gradients are in f32 either way
  CHECK(whole.wasted == doctest::Approx(0.05 * (whole.parts.activations + whole.parts.recomputed +
                                                whole.parts.logits)));
}

TEST_CASE("price_step, step_memory: gradients on the wire, and layouts that cannot be") {
  ts::StepJob job;
  job.model = ts::config("llama2-7b");
  job.context = 4096;
  job.batch = 64;
  const ts::Machine on = ts::machine("a100-80", {8, 8});
  ts::Layout layout;
  layout.data = 8;
  layout.tensor = 8;
  layout.zero = ts::Zero::optimizer;
  const double wide = ts::price_step(job, on, layout).limit.data;
  layout.gradient_format = ts::DType::bf16;
  CHECK(ts::price_step(job, on, layout).limit.data < 0.8 * wide);
  const auto refused = [&](ts::Layout bad) {
    const std::string price = error_of([&] { ts::price_step(job, on, bad); });
    const std::string memory =
        error_of([&] { ts::step_memory(job.model, bad, on.chip, 4096, 1, 1, ts::Software()); });
    CHECK(price.substr(0, 12) == "price_step: ");
    CHECK(price.substr(12) == memory.substr(13));
    return price.substr(12);
  };
  ts::Layout bad = layout;
  bad.gradient_format = ts::DType::int8;
  CHECK(refused(bad) == "layout.gradient_format is int8; f32 or bf16 is right");
  bad = layout;
  bad.zero = static_cast<ts::Zero>(9);
  CHECK(refused(bad) == "layout.zero is 9; a name of its enum is right");
  bad = layout;
  bad.recompute = static_cast<ts::Recompute>(-1);
  CHECK(refused(bad) == "layout.recompute is -1; a name of its enum is right");
  bad = layout;
  bad.zero_devices = 3;
  CHECK(refused(bad) ==
        "layout " + bad.text() + ": 3 shards do not divide the 8 devices with other tokens");
  bad = layout;
  bad.expert = 2;
  CHECK(refused(bad) == "layout " + bad.text() + ": expert 2 for llama2-7b, which has no experts");
  bad = layout;
  bad.order = {"tensor", "data", "context", "pipeline"};
  CHECK(refused(bad) ==
        "layout.order is not pipeline, data, context, tensor; another is not planned");
  for (const int ranks : {2, 8}) {  // the schedule of another pipeline
    bad = layout;
    bad.data = 2;
    bad.pipeline = 4;
    bad.microbatches = 8;
    bad.schedule = ts::one_forward_one_backward(ranks, 8);
    CHECK(refused(bad) == "the schedule 1f1b is of " + std::to_string(ranks) +
                              " ranks and 8 microbatches, the layout has pipeline 4 and "
                              "microbatches 8; they must be equal");
  }
  CHECK(error_of([&] {
          ts::step_memory(job.model, layout, on.chip, 4096, 1, 0, ts::Software());
        }) == "step_memory: 0 chunks of the model on a pipeline rank; at least 1 is right");
  job.state_traffic = std::nan("");
  CHECK(error_of([&] { ts::price_step(job, on, layout); }) ==
        "price_step: bytes of a weight, a gradient or an update is nan; a number from 0 to 1000000 "
        "is right");
}

TEST_CASE("plan_training: figures that are no numbers, models of no language, less than a step") {
  const ts::Machine on = ts::machine("h100", {2, 8});
  ts::TrainingJob job = job_of("llama2-7b", 65536, 4096);
  job.software.wasted = std::nan("");
  CHECK(error_of([&] { ts::plan_training(job, on); }) ==
        "plan_training: software.wasted is nan; a number from 0 to 10 is right");
  job.software.wasted = 0.05;
  ts::Machine odd = on;
  odd.chip.flops_bf16 = -1;
  CHECK(error_of([&] { ts::plan_training(job, odd); }) ==
        "plan_training: a FLOP/s rate of the chip is -1; a number from 0 to 1e+19 is right");
  odd = on;
  odd.chip.memory_bytes = 0;  // not known: all fits
  job.batch_tokens = 1e15;    // one sequence at a time would be more microbatches than a layout has
  job.device_hours_per_failure = 0;
  const ts::Layout huge = ts::plan_training(job, odd).best.layout;
  CHECK(huge.microbatches <= 2147483647 / huge.devices());
  job = job_of("llama2-7b", 65536, 4096);
  job.tokens = 1e4;
  const ts::TrainingPlan one = ts::plan_training(job, on);
  CHECK(one.tokens.value() == 65536);
  CHECK(one.notes[0] == "tokens: 10,000 are fewer than a batch; one step");
  CHECK(error_of([&] { ts::plan_training(job_of("vit-b16", 65536, 0), on); }) ==
        "plan_training: vit-b16 has no vocabulary: it is no language model, which alone is "
        "planned");
}
