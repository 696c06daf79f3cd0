// Twins of plans: the same ratios by the same formulas, and a run whose counters equal them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <sstream>
#include <string>

#include "error_of.hpp"
#include "small_training.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

// A plan: what is trained, on what, by which layout.
struct Plan {
  ts::TrainingJob job;
  ts::Machine machine;
  ts::Layout layout;

  Plan(const char* model, const char* chip, ts::Shape dims, double tokens, std::int64_t context)
      : machine(ts::machine(chip, dims)) {
    job.model = ts::config(model);
    job.batch_tokens = tokens;
    job.context = context;
    job.state = ts::StateBytes::mixed;
  }
  Plan& sizes(std::int64_t data, std::int64_t tensor = 1, std::int64_t pipeline = 1,
              std::int64_t context = 1, std::int64_t expert = 1) {
    layout.data = data;
    layout.tensor = tensor;
    layout.pipeline = pipeline;
    layout.context = context;
    layout.expert = expert;
    return *this;
  }
  Plan& zero(ts::Zero stage, std::int64_t devices = 0) {
    layout.zero = stage;
    layout.zero_devices = devices;
    return *this;
  }
  Plan& micro(std::int64_t microbatches) {
    layout.microbatches = microbatches;
    return *this;
  }
  Plan& again(ts::Recompute recompute) {
    layout.recompute = recompute;
    return *this;
  }
  Plan& sequence_parallel() {
    layout.sequence_parallel = true;
    return *this;
  }
  Plan& whole_experts() {
    layout.whole_experts = true;
    return sequence_parallel();
  }
  Plan& by(ts::ContextParallel kind) {
    layout.context_parallel = kind;
    return *this;
  }
  Plan& in(const ts::PipelineSchedule& schedule) {
    layout.schedule = schedule;
    layout.microbatches = schedule.microbatches;
    return *this;
  }
  ts::Twin twin() const { return ts::twin_of(job, machine, layout); }
};

Plan llama_on_pod() {
  return Plan("llama3-70b", "tpu-v5p", {16, 16, 16}, 1 << 22, 8192)
      .sizes(256, 16)
      .zero(ts::Zero::parameters)
      .sequence_parallel();
}

void check_ratios(const ts::Twin& twin) {
  REQUIRE(twin.ratios.size() >= 3);
  for (const ts::TwinRatio& row : twin.ratios) {
    CAPTURE(row.name);
    const bool bubble = row.name == "bubble of the schedule";
    CHECK(std::fabs(row.plan - row.twin) <= (bubble ? 0.2 : 1e-9 * row.plan));
    CHECK((bubble || row.note.empty()));
    CHECK(row.note.empty() == (std::fabs(row.plan - row.twin) <= 1e-9 * row.plan));
  }
  CHECK(twin.bottleneck() == twin.plan_load.bottleneck());
  CHECK(twin.layout.devices() <= 16);
  CHECK(twin.machine.chips() == twin.layout.devices());
  CHECK(twin.machine.name.find("(fictional)") != std::string::npos);
}

#if !defined(TINYSCALE_NO_THREADS)

// The longest two of the step's parts: how much longer the first is.
double clear(const ts::StepLoad& load) {
  std::vector<double> all = {load.math, load.memory};
  for (const ts::AxisLoad& axis : load.axes) {
    all.push_back(axis.seconds());
  }
  std::sort(all.begin(), all.end());
  return all[all.size() - 1] / all[all.size() - 2];
}

void check_counters(const ts::Twin& twin, const ts::TrainReport& report) {
  for (const ts::Comparison* rows : {&report.step.sent, &report.step.work, &report.step.memory}) {
    CHECK(!rows->rows.empty());
    for (const ts::ReportRow& row : rows->rows) {
      CAPTURE(row.name);
      const bool routed = row.name.compare(0, 6, "about:") == 0 && row.name.find("all_to") < 10;
      CHECK(row.equal(routed ? 0.25 : 1e-12));  // of experts it is what the router chose
    }
  }
  double flops = 0, bytes = 0, peak = 0;
  for (int rank = 0; rank < report.last_step->devices(); ++rank) {
    flops = std::max(flops, report.last_step->counters(rank).matmul_flops);
    bytes = std::max(bytes, report.last_step->counters(rank).bytes());
    peak = std::max(peak, report.last_step->memory(rank).peak_total());
  }
  const bool routed = twin.layout.expert_devices() > 1;
  CHECK(flops == doctest::Approx(twin.load.flops).epsilon(routed ? 0.3 : 1e-12));
  // The form is of matmuls, of what waits and of the states: other ops move some more. Clones, row
  // sums of biases and the backward pass of embeddings are 3 % of GPT-2's.
  CHECK(bytes > twin.load.memory_bytes);
  CHECK(bytes < (twin.model.experts > 0 ? 1.65 : 1.55) * twin.load.memory_bytes);
  CHECK(peak < (routed ? 1.1 : 1) * twin.load.held_bytes);
  CHECK(peak > 0.6 * twin.load.held_bytes);
}

// Runs the twin: all counters equal the formulas, losses are those of one device, and
// what is twice as fast saves most where the plan says that it takes longest.
void check_twin(const Plan& plan, std::int64_t steps = 1) {
  const ts::Twin twin = plan.twin();
  CAPTURE(twin.of);
  CAPTURE(plan.layout.text());
  check_ratios(twin);
  CHECK(twin.plan_load.held > 0);
  CHECK(twin.plan_load.held <= 1);
  ts::Transformer model(twin.model, 1);
  const ts::TrainReport report = ts::train(model, small_text(), twin.options(steps));
  check_counters(twin, report);
  REQUIRE(report.one_device.size() == report.losses.size());
  for (std::size_t i = 0; i < report.losses.size(); ++i) {
    CHECK(report.losses[i] == doctest::Approx(report.one_device[i]).epsilon(1e-5));
  }
  std::string most;
  double saved = -1;
  for (const ts::TwinGain& gain : twin.gains(*report.last_step)) {
    most = gain.saved > saved ? gain.name : most;
    saved = std::max(saved, gain.saved);
  }
  if (clear(twin.plan_load) > 1.25) {
    CHECK(most == twin.plan_load.bottleneck());
  }
}

#endif

}  // namespace

#if !defined(TINYSCALE_NO_THREADS)

TEST_CASE("twins of data parallelism and ZeRO run, and count what the formulas say") {
  check_twin(Plan("gpt2-xl", "a100", {2, 8}, 512e3, 1024).sizes(16).micro(4), 2);
  check_twin(Plan("llama2-7b", "h100", {4, 8}, 4e6, 4096)
                 .sizes(32)
                 .zero(ts::Zero::gradients)
                 .micro(16)
                 .again(ts::Recompute::full));
  check_twin(Plan("llama3-70b", "tpu-v5p", {16, 16, 16}, 1 << 22, 8192)
                 .sizes(4096)
                 .zero(ts::Zero::parameters)
                 .again(ts::Recompute::full));
  check_twin(Plan("llama3-70b", "h100", {64, 8}, 1 << 22, 8192)
                 .sizes(512)
                 .zero(ts::Zero::parameters, 64)
                 .again(ts::Recompute::full));
  check_twin(Plan("palm-62b", "tpu-v4", {8, 16, 16}, 4e6, 2048)
                 .sizes(2048)
                 .zero(ts::Zero::parameters)
                 .again(ts::Recompute::full));
}

TEST_CASE("twins of tensor and context parallelism run, and count what the formulas say") {
  check_twin(llama_on_pod(), 2);
  check_twin(Plan("llama2-13b", "tpu-v4", {4, 4, 8}, 1e6, 4096)
                 .sizes(16, 8)
                 .micro(8)
                 .again(ts::Recompute::full));
  check_twin(Plan("llama3-70b", "h100", {128, 8}, 1 << 22, 8192)
                 .sizes(128, 8)
                 .zero(ts::Zero::optimizer)
                 .micro(4)
                 .again(ts::Recompute::full)
                 .sequence_parallel());
  check_twin(Plan("llama3-8b", "h100", {8, 8}, 4e6, 65536)
                 .sizes(8, 1, 1, 8)
                 .by(ts::ContextParallel::ulysses)
                 .zero(ts::Zero::parameters)
                 .micro(4)
                 .again(ts::Recompute::full));
  check_twin(Plan("llama3-8b", "tpu-v5p", {4, 4, 8}, 8e6, 131072)
                 .sizes(16, 1, 1, 8)
                 .zero(ts::Zero::parameters)
                 .micro(4)
                 .again(ts::Recompute::full));
}

TEST_CASE("twins of models with windows run, and count what the formulas say") {
  const auto plan = [](std::int64_t sequences) {
    return Plan("mistral-7b", "h100", {2, 8}, static_cast<double>(sequences) * 32768, 32768)
        .zero(ts::Zero::parameters)
        .again(ts::Recompute::full);
  };
  check_twin(plan(2).sizes(2, 2, 1, 4));
  check_twin(plan(4).sizes(1, 2, 2, 4).micro(4).by(ts::ContextParallel::gathered));
}

TEST_CASE("twins of pipelines run, and count what the formulas say") {
  check_twin(Plan("gpt3-175b", "a100", {128, 8}, 1536 * 2048, 2048)
                 .sizes(16, 8, 8)
                 .micro(96)
                 .zero(ts::Zero::optimizer)
                 .again(ts::Recompute::selective)
                 .sequence_parallel());
  check_twin(Plan("gpt3-175b", "a100", {128, 8}, 1536 * 2048, 2048)
                 .sizes(16, 8, 8)
                 .in(ts::interleaved(8, 96, 3))
                 .zero(ts::Zero::optimizer));
  check_twin(Plan("gpt3-6.7b", "h100", {4, 8}, 2e6, 2048)
                 .sizes(4, 1, 8)
                 .in(ts::zero_bubble_h1(8, 128))
                 .zero(ts::Zero::optimizer));
  check_twin(Plan("gpt2-xl", "a100", {2, 8}, 512e3, 1024)
                 .sizes(8, 1, 2)
                 .in(ts::gpipe(2, 8))
                 .again(ts::Recompute::full));
}

TEST_CASE("twins of mixes of all axes run, and count what the formulas say") {
  CHECK(!ts::config("llama3.1-405b").rope_factors.empty());  // of heads of another size
  check_twin(Plan("llama3.1-405b", "h100", {2048, 8}, 16e6, 8192)
                 .sizes(128, 8, 16)
                 .micro(16)
                 .zero(ts::Zero::optimizer)
                 .again(ts::Recompute::full)
                 .sequence_parallel());
  check_twin(Plan("llama3.1-405b", "h200", {2048, 8}, 16e6, 131072)
                 .sizes(8, 8, 16, 16)
                 .micro(15)
                 .zero(ts::Zero::optimizer)
                 .again(ts::Recompute::full));
  check_twin(Plan("qwen2.5-32b", "h100", {16, 8}, 4e6, 32768)
                 .sizes(2, 4, 4, 4)
                 .micro(60)
                 .by(ts::ContextParallel::gathered)
                 .zero(ts::Zero::optimizer)
                 .again(ts::Recompute::full)
                 .sequence_parallel());
}

TEST_CASE("twins of expert parallelism run, and count what the formulas say") {
  check_twin(Plan("mixtral-8x7b", "h100", {16, 8}, 4e6, 4096)
                 .sizes(128, 1, 1, 1, 8)
                 .zero(ts::Zero::parameters)
                 .again(ts::Recompute::full));
  check_twin(Plan("qwen3-30b-a3b", "h100", {8, 8}, 4e6, 4096)
                 .sizes(64, 1, 1, 1, 64)
                 .zero(ts::Zero::optimizer)
                 .micro(5)
                 .again(ts::Recompute::full));
}

TEST_CASE("twins of experts over tensor ranks, cut or whole, run and count what the formulas say") {
  for (const bool whole : {true, false}) {
    Plan some = Plan("qwen3-30b-a3b", "h100", {8, 8}, 4e6, 4096)
                    .sizes(16, 4, 1, 1, 8)
                    .micro(32)
                    .zero(ts::Zero::optimizer)
                    .again(ts::Recompute::full)
                    .sequence_parallel();
    Plan shared = Plan("deepseek-v3", "h100", {256, 8}, 60e6, 4096)
                      .sizes(64, 2, 16, 1, 32)
                      .micro(32)
                      .zero(ts::Zero::optimizer)
                      .again(ts::Recompute::full)
                      .sequence_parallel();
    check_twin(whole ? some.whole_experts() : some);
    check_twin(whole ? shared.whole_experts() : shared);
  }
}

TEST_CASE("twins of expert and pipeline parallelism run, and count what the formulas say") {
  check_twin(Plan("mixtral-8x22b", "h100", {32, 8}, 4e6, 4096)
                 .sizes(64, 1, 4, 1, 8)
                 .micro(16)
                 .zero(ts::Zero::optimizer)
                 .again(ts::Recompute::full));
  check_twin(Plan("deepseek-v3", "h100", {256, 8}, 60e6, 4096)
                 .sizes(128, 1, 16, 1, 64)
                 .micro(32)
                 .zero(ts::Zero::optimizer)
                 .again(ts::Recompute::full));
}

TEST_CASE("the twin of a plan that memory bounds is bound by memory when it runs") {
  Plan plan = Plan("llama2-7b", "h100", {1, 8}, 64, 64).sizes(1, 8);
  for (ts::Links& links : plan.machine.links) {
    links.latency = 0;
  }
  CHECK(plan.twin().bottleneck() == "memory");
  check_twin(plan);
}

TEST_CASE("a twin of a model and batch of one's own; one whose plan does not fit is refused") {
  Plan plan = Plan("llama3-8b", "tpu-v5e", {16, 16}, 1e6, 8192)
                  .sizes(256)
                  .zero(ts::Zero::parameters)
                  .again(ts::Recompute::full);
  const ts::Twin first = plan.twin();
  const ts::Twin twin = first.with(small_model(), 12);
  check_ratios(twin);
  CHECK(twin.model.name == "nano");
  CHECK(twin.sequences == 12);
  ts::Transformer model(twin.model, 1);
  check_counters(twin, ts::train(model, small_text(), twin.options()));
  CHECK(error_of([&] { first.with(small_model(), 10); }) ==
        "train: a batch of 10 sequences does not divide over data 3; right is a multiple of 3");
  plan.again(ts::Recompute::none);
  plan.job.batch_tokens = 8e6;
  const ts::Twin full = plan.twin();
  CHECK(full.plan_load.held > 1.5);
  CHECK(full.notes[1].find("the plan does not fit: it needs ") == 0);
  ts::Transformer other(full.model, 1);
  CHECK(error_of([&] {
          ts::train(other, small_text(), full.options());
        }).find("the chip twin of tpu-v5e (fictional) has ") != std::string::npos);
}

TEST_CASE("gains are of a run of the twin") {
  ts::TrainingJob job;
  job.model = ts::config("llama3-8b");
  ts::Layout layout;
  layout.data = layout.tensor = layout.context = 2;
  const ts::Twin twin = ts::twin_of(job, ts::machine("h200", {8}), layout);
  const ts::Mesh mesh(ts::machine("h200", {2}), {{"x", 2}});
  const ts::MeshRun other = mesh.run([](ts::Device& d) { d.all_reduce(ts::zeros({4}), "x"); });
  CHECK(error_of([&] { twin.gains(other); }) ==
        "Twin::gains: a run on h200 2 of 1 dimensions; the twin's machine has 3: a run of the twin "
        "is right");
}

#endif

TEST_CASE("the load of a step at full size is what the textbook forms say") {
  ts::LoadJob job;
  job.model = ts::config("llama3-70b");
  job.machine = ts::machine("tpu-v5p", {16, 16, 16});
  job.layout.data = 4096;
  job.layout.zero = ts::Zero::parameters;
  job.sequences = 4096;
  job.state = ts::state_parts(ts::StateBytes::mixed);
  const double p = static_cast<double>(job.model.parameters());
  const double tokens = 4096.0 * 8192, link = 9e10;
  const ts::StepLoad fsdp = ts::step_load(job);
  CHECK(fsdp.flops * 4096 ==
        doctest::Approx(tokens * ts::training_flops_per_token(job.model, 8192,
                                                              ts::AttentionFlops::causal))
            .epsilon(0.03));  // and the scores once more in the backward pass
  REQUIRE(fsdp.axes.size() == 1);
  CHECK(fsdp.axes[0].kind == ts::AxisKind::ring);
  // 3 b P over three rings both ways; a ring of 16 takes 8 steps where 7.5 would do.
  CHECK(fsdp.axes[0].traffic == doctest::Approx(6 * p / (6 * link) * 16 / 15).epsilon(1e-3));
  job.layout.data = 256;
  job.layout.tensor = 16;
  job.layout.sequence_parallel = true;
  job.sequences = 512;
  const ts::StepLoad both = ts::step_load(job);
  REQUIRE(both.axes.size() == 2);
  CHECK(both.axes[1].name == "tensor");
  // 8 b B D L over X and a ring both ways, the embedding and the output matrix 5 times b B D.
  CHECK(both.axes[1].traffic ==
        doctest::Approx(2 * (8 * 80 + 5) * 512.0 * 8192 * 8192 / 256 / (2 * link)).epsilon(0.005));
  CHECK(both.axes[0].traffic == doctest::Approx(6 * p / 16 / (4 * link) * 16 / 15).epsilon(1e-3));
  CHECK(both.bottleneck() == "math");
  job.layout.data = 128;
  CHECK(error_of([&] { ts::step_load(job); }) ==
        "step_load: layout is data 128, tensor 16, pipeline 1, context 1, ZeRO: parameters, "
        "sequence parallel = 2048 devices, the machine has 4096 chips; they must be equal");
  job.layout.data = 256;
  for (const std::int64_t sequences : {0, -256, 255, 300}) {
    job.sequences = sequences;
    CHECK(error_of([&] { ts::step_load(job); }) ==
          "step_load: " + std::to_string(sequences) +
              " sequences over data x microbatches = 256; a multiple of that, at least once, is "
              "right");
  }
}

TEST_CASE("the load of a step is of the device that multiplies most, whatever layers see") {
  ts::LoadJob job;
  job.model = ts::config("llama3-8b");
  job.model.layers = 16;
  job.model.vocabulary = 1000;  // the last stage has little else
  for (int way = 0; way < 12; ++way) {
    CAPTURE(way);
    job.model.window = way % 4 == 0 ? 0 : 2000;  // each layer, or a stage's layers, see otherwise
    job.model.global_every = way % 4 == 2 ? 5 : way % 4 == 3 ? 10 : 0;
    job.layout.context = way < 8 ? 4 : 1;
    job.layout.pipeline = way < 4 ? 1 : 4;
    job.layout.microbatches = job.sequences = job.layout.pipeline;
    job.machine = ts::machine("h100", {job.layout.devices(), 1});
    const ts::Transformer sizes = ts::detail::sizes_of(job.model, 1);
    ts::StepOptions options;
    options.batch = job.sequences;
    double most = 0;
    for (std::int64_t rank = 0; rank < job.layout.devices(); ++rank) {
      most = std::max(most, ts::plan_step(sizes, job.layout, options, rank).matmul_flops());
    }
    CHECK(ts::step_load(job).flops == most);
  }
  job.model = ts::config("mixtral-8x7b");  // nothing else is of another device
  job.layout.pipeline = job.layout.microbatches = job.sequences = 1;
  job.layout.context = job.layout.expert = 4;
  job.machine = ts::machine("h100", {4, 1});
  const ts::StepLoad all = ts::step_load(job);
  job.model.window = 2000;
  const ts::StepLoad local = ts::step_load(job);
  CHECK(local.flops < all.flops);
  CHECK(local.held_bytes == all.held_bytes);
  CHECK(local.memory_bytes == all.memory_bytes);
}

TEST_CASE("the load of a step is about what the planner's limit says, priced another way") {
  const auto compare = [](const Plan& plan) {
    CAPTURE(plan.layout.text());
    ts::LoadJob whole;
    whole.model = plan.job.model;
    whole.model.context = plan.job.context;
    whole.layout = plan.layout;
    whole.machine = plan.machine;
    whole.sequences = static_cast<std::int64_t>(plan.job.batch_tokens) / plan.job.context;
    whole.state = ts::state_parts(ts::StateBytes::mixed);
    const ts::StepLoad load = ts::step_load(whole);
    ts::StepJob job;
    job.model = plan.job.model;
    job.context = static_cast<double>(plan.job.context);
    job.batch = plan.job.batch_tokens / job.context;
    job.gradient_bytes = 2;
    const ts::StepLimit limit = ts::price_step(job, plan.machine, plan.layout).limit;
    // The busiest rank has the output matrix too; rings of even size take half a step more.
    CHECK(load.math == doctest::Approx(limit.math).epsilon(0.08));
    for (const ts::AxisLoad& axis : load.axes) {
      if (axis.name == "tensor") {
        CHECK(axis.traffic == doctest::Approx(limit.tensor).epsilon(0.08));
      } else if (axis.name == "data") {
        CHECK(axis.traffic == doctest::Approx(limit.data).epsilon(0.08));
      }
    }
  };
  compare(llama_on_pod());
  compare(Plan("llama3-70b", "h100", {128, 8}, 1 << 22, 8192)
              .sizes(128, 8)
              .zero(ts::Zero::optimizer)
              .sequence_parallel());
  compare(Plan("gpt3-175b", "a100", {128, 8}, 1536 * 2048, 2048)
              .sizes(16, 8, 8)
              .micro(96)
              .zero(ts::Zero::optimizer)
              .again(ts::Recompute::selective)
              .sequence_parallel());
  compare(Plan("gpt2-xl", "tpu-v5e", {4, 4}, 512 * 1024, 1024).sizes(16));
}

TEST_CASE("the twin of a plan has its limit's shares and is bound by what bounds it") {
  const struct {
    const char *model, *chip;
    ts::Shape dims;
    const char* longest;
  } cases[] = {{"llama3-70b", "tpu-v5p", {16, 20, 28}, "math"},
               {"gpt3-175b", "a100", {64, 8}, "math"},
               {"qwen3-30b-a3b", "tpu-v5e", {16, 16}, "data"},
               {"gemma2-27b", "h100", {256, 8}, "math"},
               {"gemma2-27b", "h100", {2048, 8}, "data"}};  // math and its bubble are longer
  for (const auto& one : cases) {
    CAPTURE(one.model);
    ts::TrainingJob job;
    job.model = ts::config(one.model);
    job.context = 4096;
    const ts::TrainingPlan plan = ts::plan_training(job, ts::machine(one.chip, one.dims));
    ts::Layout layout = plan.best.layout;
    if (plan.best.chunks > 1) {
      layout.schedule = ts::interleaved(static_cast<int>(layout.pipeline),
                                        static_cast<int>(layout.microbatches), plan.best.chunks);
    }
    const ts::Twin twin = ts::twin_of(job, plan.on, layout);
    check_ratios(twin);
    CHECK(plan.twin().bottleneck() == twin.bottleneck());
    const ts::StepLimit& limit = plan.best.price.limit;
    CHECK(twin.plan_load.math == doctest::Approx(limit.math).epsilon(1e-12));
    CHECK(twin.plan_load.memory == doctest::Approx(limit.memory).epsilon(1e-12));
    CHECK(twin.plan_load.held * plan.on.chip.memory_bytes ==
          doctest::Approx(plan.best.memory).epsilon(1e-12));
    for (const ts::AxisLoad& axis : twin.plan_load.axes) {
      if (axis.name == "tensor") {
        CHECK(axis.traffic == doctest::Approx(limit.tensor).epsilon(1e-12));
      }
    }
    CHECK(twin.bottleneck() == one.longest);
    ts::StepLoad as_limit = twin.plan_load;  // with the bubble, without latencies
    as_limit.math += limit.bubble;
    for (ts::AxisLoad& axis : as_limit.axes) {
      axis.latency = 0;
    }
    CHECK(as_limit.bottleneck() == plan.best.bound);
  }
}

TEST_CASE("the sizes of a model are all its parameters, without one of them") {
  for (const std::string& name : ts::configs()) {
    const ts::ModelConfig c = ts::config(name);
    CAPTURE(name);
    if (c.vocabulary > 0) {
      CHECK(ts::detail::sizes_of(c, 1).count() == c.parameters());
    }
  }
}

TEST_CASE("shrunk axes: 3 in a ring that closes and in a pipeline, 2 else; groups stay") {
  CHECK(llama_on_pod().twin().layout.text() ==
        "data 3, tensor 3, pipeline 1, context 1, ZeRO: parameters, sequence parallel");
  const Plan gpus =
      Plan("gpt3-175b", "a100", {128, 8}, 1536 * 2048, 2048).sizes(16, 8, 8).micro(96);
  CHECK(gpus.twin().layout.text() == "data 2, tensor 2, pipeline 3, context 1, microbatches 8");
  Plan hybrid = Plan("mixtral-8x7b", "h100", {16, 8}, 4e6, 4096);
  hybrid.sizes(128, 1, 1, 1, 4).zero(ts::Zero::parameters, 32);
  const ts::Twin twin = hybrid.twin();
  CHECK(twin.layout.text() ==
        "data 8, tensor 1, pipeline 1, context 1, expert 2, ZeRO: parameters over 4");
  CHECK(twin.model.heads == 4);
  CHECK(twin.model.kv_heads == 2);
  CHECK(twin.model.experts == 8);
  CHECK(twin.model.top_k == 2);
  CHECK(twin.load.axes.size() == 3);
  const Plan one = Plan("gpt2-small", "tpu-v5e", {1}, 8192, 1024).sizes(1);
  check_ratios(one.twin());
}

TEST_CASE("a twin prints its ratios, what bounds it, and what is not equal") {
  const ts::Twin twin = Plan("deepseek-v3", "h100", {256, 8}, 60e6, 4096)
                            .sizes(128, 1, 16, 1, 64)
                            .micro(64)
                            .zero(ts::Zero::optimizer)
                            .twin();
  std::ostringstream out;
  out << twin;
  for (const char* const part :
       {"twin of deepseek-v3 on h100-sxm 256x8: 12 devices for 2048, data 4, tensor 1, pipeline 3",
        "plan, of math", "data_2, 64 to 2: bytes", "no: 16 ranks, 64 microbatches to 3, 8",
        "bound by data_2, the twin by data_2",
        "- model: this library runs none with latent attention, dense first layers, biases of the "
        "router; the twin has a plain block of the same kind",
        "- the plan is priced in bf16, the twin runs in f32"}) {
    CAPTURE(part);
    CHECK(out.str().find(part) != std::string::npos);
  }
  CHECK(twin.csv().find("formula,plan (s),twin (s),") == 0);
  CHECK(twin.json().find("\"formula\": \"math\"") != std::string::npos);
}

TEST_CASE("what has no twin says why") {
  Plan plan = llama_on_pod();
  plan.layout.data = 128;
  CHECK(error_of([&] { plan.twin(); }) ==
        "twin_of: layout is data 128, tensor 16, pipeline 1, context 1, ZeRO: parameters, sequence "
        "parallel = 2048 devices, the machine has 4096 chips; they must be equal");
  plan = llama_on_pod();
  plan.job.batch_tokens = 0;
  CHECK(error_of([&] { plan.twin(); }) ==
        "twin_of: batch_tokens is 0; a number from 1 to 1e+18 is right");
  plan = Plan("mixtral-8x7b", "h100", {128, 8}, 64e6, 4096);
  plan.sizes(32, 4, 4, 2, 4).zero(ts::Zero::parameters, 32);
  plan.layout.microbatches = 4;
  CHECK(error_of([&] { plan.twin(); }) ==
        "twin_of: the smallest twin of data 32, tensor 4, pipeline 4, context 2, expert 4, "
        "microbatches 4, ZeRO: parameters over 32 has 64 devices, TwinSize::devices is 48; right "
        "is 64 or more");
  plan = Plan("gpt2-xl", "a100", {2, 8}, 512e3, 1024);
  plan.sizes(8, 1, 2).in(ts::gpipe(2, 8)).micro(4);
  CHECK(error_of([&] { plan.twin(); }) ==
        "twin_of: the schedule gpipe is of 2 ranks and 8 microbatches, the layout has pipeline 2 "
        "and microbatches 4; they must be equal");
  ts::TwinSize size;
  size.devices = 0;
  CHECK(error_of([&] { ts::twin_of(plan.job, plan.machine, Plan(plan).micro(8).layout, size); }) ==
        "twin_of: TwinSize::devices is 0; a number from 1 to 1024 is right");
}
