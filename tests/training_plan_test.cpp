// The training plan: its numbers as quantities, days, dollars, energy and goodput by hand, the
// scaling book's chapter 6, machines and models at the edge, and every message for bad input.
#include <doctest/doctest.h>

#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

ts::TrainingJob llama70b() {
  ts::TrainingJob job;
  job.model = ts::config("llama3-70b");
  job.tokens = 15e12;
  job.batch_tokens = 4e6;
  job.context = 8192;
  return job;
}

ts::TrainingJob small_job() {
  ts::TrainingJob job;
  job.model = ts::config("nano");
  job.batch_tokens = 65536;
  return job;
}

ts::Machine pod() { return ts::machine("tpu-v5p", {16, 20, 28}); }

bool has_note(const ts::TrainingPlan& plan, const std::string& note) {
  for (const std::string& each : plan.notes) {
    if (each == note) {
      return true;
    }
  }
  return false;
}

}  // namespace

TEST_CASE("training plan: every quantity is the price it explains") {
  ts::TrainingJob moe = llama70b();
  moe.model = ts::config("mixtral-8x7b");
  ts::Layout layout;
  layout.data = 16;
  layout.tensor = 2;
  layout.pipeline = 2;
  layout.context = 2;
  layout.expert = 8;
  layout.microbatches = 8;
  layout.zero = ts::Zero::optimizer;
  for (const bool mixture : {false, true}) {
    const ts::Machine machine = mixture ? ts::machine("h100", {16, 8}) : pod();
    const ts::TrainingPlan plan =
        mixture ? ts::plan_training(moe, machine, layout) : ts::plan_training(llama70b(), machine);
    const ts::StepLimit& limit = plan.best.price.limit;
    const auto near = [](double value) { return doctest::Approx(value).epsilon(1e-12); };
    CHECK(plan.math_time.value() == near(limit.math));
    CHECK(plan.bubble_time.value() == near(limit.bubble));
    CHECK(plan.memory_time.value() == near(limit.memory));
    CHECK(plan.tensor_time.value() == near(limit.tensor));
    CHECK(plan.context_time.value() == near(limit.context));
    CHECK(plan.expert_time.value() == near(limit.expert));
    CHECK(plan.data_time.value() == near(limit.data));
    CHECK(plan.step_time.value() == near(plan.best.step_time));
    CHECK(plan.step_time.value() == near(limit.total()));
    CHECK(plan.typical_step_time.value() == near(plan.best.typical_time));
    CHECK(plan.memory.value() == near(plan.best.memory));
    CHECK((plan.expert_time.value() > 0) == mixture);
    CHECK(plan.memory.unit() == "B");
    CHECK(plan.step_time.unit() == "s");
    CHECK(plan.typical_mfu.unit().empty());
    CHECK(plan.days.unit() == "day");
    CHECK(plan.dollars.unit() == "USD");
    CHECK(plan.energy.unit() == "W*h");
    CHECK(plan.threshold.unit() == "token");
    CHECK(plan.best.bound == limit.bound());
    const double chips = static_cast<double>(machine.chips());
    const double peak = machine.chip.peak(ts::DType::bf16);
    const double six = ts::six_n(plan.job.model) * plan.batch.value();
    CHECK(plan.typical_mfu.value() == near(six / (chips * peak * plan.best.typical_time)));
    CHECK(plan.limit_mfu.value() == near(six / (chips * peak * plan.best.step_time)));
    const double steps = plan.tokens.value() / plan.batch.value();
    CHECK(plan.days.value() == near(steps * plan.best.typical_time / plan.goodput.value() / 86400));
    CHECK(plan.limit_days.value() == near(steps * plan.best.step_time / 86400));
    CHECK(plan.dollars.value() == near(chips * machine.dollars_per_hour * 24 * plan.days.value()));
    CHECK(plan.energy.value() == near(chips * machine.chip.watts * 24 * plan.days.value()));
    CHECK(plan.tokens_per_chip.value() == near(plan.batch.value() / chips));
    CHECK(plan.threshold.value() == near(plan.tokens_per_chip.value() * limit.data / limit.math));
    ts::FaultyJob faulty;
    faulty.devices = chips;
    faulty.step_seconds = plan.best.typical_time;
    faulty.save_seconds = 30;
    faulty.restart_seconds = 600;
    CHECK(plan.checkpoint_interval.value() == near(ts::daly_interval(faulty)));
    CHECK(plan.goodput.value() ==
          near(ts::expected_goodput(faulty, plan.checkpoint_interval.value())));
  }
}

TEST_CASE("training plan: a ring goes the rounds that windows reach") {
  ts::TrainingJob job = llama70b();
  ts::Layout layout;
  layout.data = 2;
  layout.context = layout.tensor = 8;
  const ts::Machine machine = ts::machine("h100", {16, 8});
  const double all = ts::plan_training(job, machine, layout).context_time.value();
  job.model.window = 512;
  for (const int global : {0, 4}) {  // two rounds of seven, in all layers or in three of four
    job.model.global_every = global;
    const ts::TrainingPlan plan = ts::plan_training(job, machine, layout);
    CHECK(plan.context_time.value() == doctest::Approx(plan.best.price.limit.context));
    CHECK(plan.context_time.value() ==
          doctest::Approx(all * (global == 0 ? 2.0 / 7 : (1 + 3 * 2.0 / 7) / 4)));
    CHECK(plan.context_time.explain().find("around") != std::string::npos);
  }
}

TEST_CASE("training plan: keys that several tensor ranks hold travel for each of them") {
  const ts::TrainingJob job = llama70b();
  ts::Layout layout;
  layout.context = 2;
  layout.zero = ts::Zero::parameters;
  for (const int tensor : {8, 16, 32}) {  // of 8 heads of keys
    layout.tensor = tensor;
    layout.data = 64 / tensor;
    const std::string text =
        ts::plan_training(job, ts::machine("h100", {16, 8}), layout).context_time.explain();
    CAPTURE(text);
    CHECK((text.find("shared = ") != std::string::npos) == (tensor > 8));
    CHECK(text.find("W_context = 1e+11 B/s ") != std::string::npos);
  }
}

TEST_CASE("training plan: explanations hold the numbers") {
  const ts::TrainingPlan plan = ts::plan_training(llama70b(), pod());
  const std::string step = plan.step_time.explain();
  CHECK(step.find("T_step = max(max(max(T_math + T_bubble, T_memory), max(T_tensor, T_context)), "
                  "max(T_expert, T_data))   [limit: published rates, all at once that can be]\n") ==
        0);
  for (const char* const part :
       {"B = 3.9977e+06 token   [batch]", "N = 8960   [tpu-v5p 16x20x28]",
        "C = 4.59e+14 FLOP/s   [bf16 peak of tpu-v5p]", "L = 80   [layers]", "W_memory = 2.765e+12",
        "P_matmul = 6.9503e+10"}) {
    CAPTURE(part);
    CHECK(step.find(part) != std::string::npos);
  }
  CHECK(plan.dollars.explain(0) ==
        "dollars = N * price * days * 24 h/day\n        = 8960 * 4.2 "
        "USD/h * " +
            ts::detail::short_number(plan.days.value()) +
            " day * 24 h/day\n        = " + plan.dollars.text() + "\n");
  CHECK(plan.days.formula() == "tokens / B * T_typical / goodput / 86400 s/day");
  std::ostringstream text;
  text << plan;
  CHECK(text.str().find("Training llama3-70b on tpu-v5p 16x20x28, " + plan.best.text()) == 0);
  for (const char* const part : {"one step by cause", "memory of the fullest chip",
                                 "Fastest layouts", "Why not", "T_step, typical",
                                 "- batch: 4,000,000 tokens rounded "
                                 "to 488 sequences of 8,192 = 3,997,696"}) {
    CAPTURE(part);
    CHECK(text.str().find(part) != std::string::npos);
  }
  CHECK(plan.json().find("T_step at the limit") != std::string::npos);
  CHECK(plan.cause_table().rows.size() > 5);
  double parts = 0;
  for (const ts::detail::Cause& cause : ts::detail::causes_of(plan.best.price.typical)) {
    parts += cause.seconds;
  }
  CHECK(parts == doctest::Approx(plan.best.price.typical.total()).epsilon(1e-12));
  const double held = plan.weights_memory.value() + plan.gradients_memory.value() +
                      plan.optimizer_memory.value() + plan.activation_memory.value() +
                      plan.other_memory.value();
  CHECK(held == doctest::Approx(plan.memory.value()).epsilon(1e-12));
}

// The book rounds 70.55e9 parameters to 70e9: 44.3 days.
TEST_CASE("training plan: chapter 6, Llama 3 70B on a pod of v5p at 40 %") {
  ts::TrainingJob job = llama70b();
  job.typical_mfu = 0.4;
  const ts::TrainingPlan plan = ts::plan_training(job, pod());
  CHECK(plan.days.value() == doctest::Approx(44.675).epsilon(1e-4));
  CHECK(plan.typical_mfu.value() == 0.4);
  CHECK(plan.typical_step_time.value() * plan.tokens.value() / plan.batch.value() / 86400 ==
        doctest::Approx(plan.days.value()));
  CHECK(plan.tokens_per_chip.value() == doctest::Approx(446.17).epsilon(1e-4));
  CHECK(plan.best.bound == "math");
  CHECK(plan.dollars.value() == doctest::Approx(8960 * 4.2 * 24 * plan.days.value()));
  CHECK(plan.days.formula() == "6 FLOP/token * P_used * tokens / (N * C * MFU) / 86400 s/day");
  job.device_hours_per_failure = 0;
  const ts::TrainingPlan sure = ts::plan_training(job, pod());
  CHECK(sure.goodput.value() == 1);
  CHECK(sure.checkpoint_interval.value() == 0);
  CHECK(sure.days.value() == plan.days.value());
}

TEST_CASE("training plan: FSDP over a whole pod is bound by its links below the book's batch") {
  ts::TrainingJob job = llama70b();
  job.batch_tokens = 8960.0 * 512;
  job.context = 512;
  ts::Layout layout;
  layout.data = 8960;
  layout.zero = ts::Zero::parameters;
  const ts::TrainingPlan plan = ts::plan_training(job, pod(), layout);
  CHECK(plan.layouts.size() == 1);
  CHECK(plan.neighbours.empty());
  CHECK(plan.best.bound == "data");
  // T_data is 8 P bytes over six links; 850 tokens for 6 P is 8 / 6 of it less attention's share.
  const ts::Quantity& data = plan.data_time;
  const double p = static_cast<double>(job.model.parameters());
  CHECK(data.value() == doctest::Approx(8 * p * 8959 / 8960 / (6 * 9e10)).epsilon(1e-9));
  const double needed = ts::training_flops_per_token(job.model, 512, ts::AttentionFlops::causal);
  CHECK(plan.threshold.value() == doctest::Approx(850 * 8.0 / 6 * 6 * p / needed).epsilon(0.002));
}

TEST_CASE("training plan: what a job leaves open is chosen and said") {
  ts::TrainingJob job = small_job();
  const ts::TrainingPlan plan = ts::plan_training(job, ts::machine("tpu-v5e", {1}));
  CHECK(plan.tokens.value() == 20.0 * static_cast<double>(job.model.parameters()));
  CHECK(plan.notes[0] == "tokens: assumed 20 for each parameter (Chinchilla), " +
                             ts::format_count(plan.tokens.value()));
  CHECK(plan.best.layout.devices() == 1);
  CHECK(plan.data_time.value() == 0);
  CHECK(plan.bubble_time.explain(0) == "T_bubble = 0 s   [no pipeline]\n");
  job = llama70b();
  job.tokens = 0;
  const ts::TrainingPlan big = ts::plan_training(job, pod());
  CHECK(big.notes[0] == "tokens: 15,000,000,000,000, as published for llama3-70b");
  CHECK(has_note(big, "energy: the power of tpu-v5p is not published"));
  CHECK(has_note(big,
                 "MFU: 6 N FLOPs over the bf16 peak of 459 TFLOP/s, current software; days "
                 "count the typical time and failures"));
  ts::TrainingJob gpt2;  // a table of positions that is longer than the published one
  gpt2.model = ts::config("gpt2-small");
  gpt2.context = 2048;
  gpt2.batch_tokens = 65536;
  const ts::TrainingPlan longer = ts::plan_training(gpt2, ts::machine("h100", {8}));
  CHECK(has_note(longer, "positions: gpt2-small has learned 1,024; counted with 2,048"));
  CHECK(longer.job.model.parameters() - ts::config("gpt2-small").parameters() == 1024 * 768);
  ts::Machine free = ts::machine("h100", {8});
  free.dollars_per_hour = 0;
  const ts::TrainingPlan unpriced = ts::plan_training(gpt2, free);
  CHECK(unpriced.dollars.value() == 0);
  CHECK(has_note(unpriced, "price: not known for h100-sxm; set the machine's dollars_per_hour"));
  ts::Layout full;
  full.data = 8;
  ts::TrainingJob heavy = llama70b();
  const ts::TrainingPlan over = ts::plan_training(heavy, ts::machine("h100", {8}), full);
  CHECK(has_note(over,
                 "memory: " + ts::format_bytes(over.best.memory) + " do not fit a chip of 80 GB"));
}

TEST_CASE("training plan: odd machines, formats and layouts have finite plans") {
  const auto finite = [](const ts::TrainingPlan& plan) {
    for (const ts::Quantity* q : {&plan.step_time, &plan.typical_step_time, &plan.days,
                                  &plan.memory, &plan.goodput, &plan.typical_mfu}) {
      CHECK(std::isfinite(q->value()));
      CHECK(q->value() > 0);
    }
    CHECK(plan.typical_step_time.value() >= plan.step_time.value());
    std::ostringstream text;
    text << plan;
    CHECK(text.str().find(" inf ") == std::string::npos);
    CHECK(text.str().find(" nan ") == std::string::npos);
  };
  ts::TrainingJob job = small_job();
  for (const char* const name : {"wse-2", "laptop-x86", "tpu-v2", "v100-32", "h100", "mi300x"}) {
    for (const ts::DType format :
         {ts::DType::bf16, ts::DType::f32, ts::DType::int8, ts::DType::int4, ts::DType::fp8_e4m3}) {
      CAPTURE(name);
      job.format = format;
      finite(ts::plan_training(job, ts::machine(name, {1})));
    }
    finite(ts::plan_training(job, ts::machine(name, {4})));
  }
  job.format = ts::DType::int8;
  CHECK(error_of([&] { ts::plan_training(job, ts::machine("gemmini", {1})); }) ==
        "Chip::peak: gemmini has no rate for bf16; set flops_bf16 or flops_f32, or price it in "
        "another format");
  job.format = ts::DType::bf16;
  const double half = ts::plan_training(job, ts::machine("h100", {8})).data_time.value();
  job.format = ts::DType::f32;  // four bytes on the wire, of weights too
  CHECK(ts::plan_training(job, ts::machine("h100", {8})).data_time.value() > half);
  ts::Layout few;  // fewer microbatches than stages, keys of 2 heads on 4 chips
  few.tensor = 4;
  few.pipeline = 4;
  few.context = 2;
  ts::TrainingJob gqa = llama70b();
  gqa.model = ts::config("llama3-8b");
  gqa.model.kv_heads = 2;
  const ts::TrainingPlan plan = ts::plan_training(gqa, ts::machine("h100", {4, 8}), few);
  finite(plan);
  CHECK(plan.bubble_time.value() == doctest::Approx(3 * plan.math_time.value()));
  CHECK(plan.best.bound == "bubble");
  finite(ts::plan_training(llama70b(), ts::machine("h100", {7, 5})));
  job = small_job();
  job.context = 1;
  finite(ts::plan_training(job, ts::machine("h100", {8})));
}

TEST_CASE("training plan: errors of jobs and machines") {
  ts::TrainingJob job = llama70b();
  const auto refused = [&] { return error_of([&] { ts::plan_training(job, pod()); }); };
  CHECK(error_of([&] { ts::plan_training(job, ts::Machine()); }) ==
        "plan_training: the machine has no chips; make one with machine(\"tpu-v5p\", {4, 4, 4})");
  for (const double batch : {0.0, -4e6, double{NAN}, 1e19}) {
    job.batch_tokens = batch;
    CHECK(refused() == ts::detail::cat({"plan_training: batch_tokens is ", batch,
                                        "; a number from 1 to 1e+18 is right"}));
  }
  job = llama70b();
  for (const double tokens : {-1.0, double{INFINITY}}) {
    job.tokens = tokens;
    CHECK(refused() == ts::detail::cat({"plan_training: tokens is ", tokens,
                                        "; a number from 0 to 1e+30 is right"}));
  }
  job = llama70b();
  job.context = -1;
  CHECK(refused() == "plan_training: context is -1; a number from 0 to 1e+09 is right");
  job = llama70b();
  job.typical_mfu = 1.5;
  CHECK(refused() == "plan_training: typical_mfu is 1.5; a number from 0 to 1 is right");
  job = llama70b();
  job.device_hours_per_failure = -1;
  CHECK(refused() ==
        "plan_training: device_hours_per_failure is -1; a number from 0 to 1e+12 is right");
  job.device_hours_per_failure = 1e-3;
  CHECK(refused().find("plan_training: device_hours_per_failure is 0.001: the job fails every 402 "
                       "us and never gets through ") == 0);
  job = llama70b();
  job.save_seconds = -1;
  CHECK(refused() == "plan_training: save_seconds is -1; a number from 0 to 1e+09 is right");
  job = llama70b();
  job.restart_seconds = double{NAN};
  CHECK(refused() == "plan_training: restart_seconds is nan; a number from 0 to 1e+09 is right");
  job = llama70b();
  CHECK(error_of([&] {
          ts::plan_training(job, ts::machine("h100", {1048576, 8}));
        }) == "plan_training: h100-sxm 1048576x8 has 8388608 chips; at most 4194304 are planned");
  CHECK(
      error_of([&] {
        ts::plan_training(job, ts::machine("tpu-v5e", {4, 2}));
      })
          .find(
              "plan_training: llama3-70b does not fit on tpu-v5e 4x2: 16 bytes a parameter = 1.13 "
              "TB, and of all layouts the least is ") == 0);
  job.batch_tokens = 8192;
  CHECK(
      error_of([&] {
        ts::plan_training(job, ts::machine("h100", {521, 8}));
      }) ==
      "plan_training: llama3-70b has no layout on h100-sxm 521x8: a batch of 1 sequences of 8,192 "
      "tokens cannot be cut over 4168 chips; more tokens in a batch or fewer chips would fit");
  CHECK(error_of([] { ts::config("llama9"); }).find("config: no model is named \"llama9\"") == 0);
}

TEST_CASE("training plan: errors of layouts") {
  const ts::Machine node = ts::machine("h100", {8});
  ts::TrainingJob job = llama70b();
  ts::Layout layout;
  const auto refused = [&](const std::string& message) {
    CHECK(error_of([&] { ts::plan_training(job, node, layout); }) == "plan_training: " + message);
    layout = ts::Layout();
  };
  layout.data = 4;
  refused(
      "layout data 4, tensor 1, pipeline 1, context 1 = 4 devices, h100-sxm 8 has 8 chips; they "
      "must be equal");
  layout.data = layout.tensor = -64;
  refused(
      "layout is data -64, tensor -64, pipeline 1, context 1; each must be at least 1, and the "
      "devices at most 2147483647");
  layout.data = layout.tensor = layout.pipeline = 1000000000;
  refused(
      "layout is data 1000000000, tensor 1000000000, pipeline 1000000000, context 1; each must be "
      "at least 1, and the devices at most 2147483647");
  layout.microbatches = 0;
  refused(
      "layout is data 1, tensor 1, pipeline 1, context 1, microbatches 0; each must be at least 1, "
      "and the devices at most 2147483647");
  layout.data = 8;
  layout.order = {"tensor", "pipeline", "data", "context"};
  refused("layout.order is not pipeline, data, context, tensor; another is not planned");
  layout.data = 8;
  layout.zero_devices = 2;
  refused("zero_devices is 2 with ZeRO stage 0; 0 is for all, above 0 needs a stage above 0");
  layout.data = 8;
  layout.zero = ts::Zero::optimizer;
  layout.zero_devices = 3;
  refused(
      "layout data 8, tensor 1, pipeline 1, context 1, ZeRO: optimizer over 3: 3 shards do not "
      "divide the 8 devices with other tokens");
  layout.pipeline = 8;
  layout.microbatches = 4;
  layout.schedule = ts::one_forward_one_backward(8, 8);
  refused(
      "the schedule 1f1b is of 8 ranks and 8 microbatches, the layout has pipeline 8 and "
      "microbatches 4; they must be equal");
  layout.data = 8;
  layout.microbatches = 100;
  refused(
      "layout data 8, tensor 1, pipeline 1, context 1, microbatches 100: 100 microbatches are more "
      "than the 61 sequences of a replica");
  layout.data = 4;
  layout.expert = 2;
  layout.tensor = 2;
  refused(
      "layout data 4, tensor 2, pipeline 1, context 1, expert 2: expert 2 for llama3-70b, which "
      "has no experts");
  layout.context = 8;
  job.context = 8200;
  refused(
      "layout data 1, tensor 1, pipeline 1, context 8: 8200 tokens do not divide over twice "
      "context 8");
  layout.tensor = 8;
  layout.sequence_parallel = true;
  job.context = 8196;
  refused(
      "layout data 1, tensor 8, pipeline 1, context 1, sequence parallel: 8196 tokens do not "
      "divide over context 1 x tensor 8, as sequence parallelism needs");
  job = llama70b();
  layout.tensor = 2;
  layout.context = 4;
  layout.context_parallel = ts::ContextParallel::ulysses;
  job.model.kv_heads = 4;
  refused(
      "layout data 1, tensor 2, pipeline 1, context 4 (ulysses): 64 heads, 4 of keys, do not "
      "divide over tensor 2 x context 4, as Ulysses needs");
  job.model.layers = 4;
  layout.pipeline = 8;
  refused("layout data 1, tensor 1, pipeline 8, context 1: 4 layers are fewer than 8 stages");
  job.batch_tokens = 8192;
  layout.data = 8;
  refused(
      "layout data 8, tensor 1, pipeline 1, context 1: data 8 is more than the 1 sequences of a "
      "batch");
  job = llama70b();
  job.model.heads = job.model.kv_heads = 6;
  layout.tensor = 8;
  refused(
      "layout data 1, tensor 8, pipeline 1, context 1: 6 heads, 6 of keys, and a hidden width of "
      "28672 do not divide over tensor 8");
  job.model = ts::config("deepseek-v3");
  job.model.hidden = 18436;
  layout.tensor = 8;
  refused(
      "layout data 1, tensor 8, pipeline 1, context 1: 128 heads, 128 of keys, and a hidden width "
      "of 2048 or 18436 do not divide over tensor 8");
  job.model = ts::config("mixtral-8x7b");
  layout.data = 8;
  layout.expert = 3;
  refused(
      "layout data 8, tensor 1, pipeline 1, context 1, expert 3: 8 experts over expert 3 among 8 "
      "devices with other tokens do not divide");
  layout.data = 2;
  layout.tensor = 4;
  layout.expert = 1;
  layout.whole_experts = true;
  refused(
      "layout data 2, tensor 4, pipeline 1, context 1, whole experts: 8 experts over expert 1 x "
      "tensor 4 are not whole ones of ranks with tokens of their own: there is no sequence "
      "parallelism");
  layout.sequence_parallel = true;
  layout.data = layout.expert = 4;
  layout.tensor = 2;
  layout.whole_experts = true;
  job.model.experts = 12;
  refused(
      "layout data 4, tensor 2, pipeline 1, context 1, expert 4, sequence parallel, whole experts: "
      "12 experts over expert 4 x tensor 2 are not whole ones of ranks with tokens of their own");
}

TEST_CASE("a plan of one's own schedule: its bubble, and schedules that are not planned") {
  ts::TrainingJob job;
  job.model = ts::config("llama3-8b");
  ts::Layout layout;
  layout.data = 32;
  layout.pipeline = 2;
  layout.microbatches = 8;
  layout.zero = ts::Zero::optimizer;
  const ts::Machine machine = ts::machine("tpu-v5p", {4, 4, 4});
  for (const ts::PipelineSchedule& schedule :
       {ts::one_forward_one_backward(2, 8), ts::zero_bubble_h1(2, 8)}) {
    layout.schedule = schedule;
    const ts::TrainingPlan plan = ts::plan_training(job, machine, layout);
    CHECK(plan.bubble_time.value() == doctest::Approx(plan.best.price.limit.bubble));
  }
  ts::PipelineSchedule idle = ts::one_forward_one_backward(2, 8);
  idle.rank_of = {0, 1, 1, 0};
  layout.schedule = idle;
  CHECK(error_of([&] {
          ts::plan_training(job, machine, layout);
        }).find("plan_training: the schedule ") == 0);
}

TEST_CASE("planning: f32 attention at the peak of f32, updates of experts, figures that are none") {
  ts::TrainingJob job;
  job.model = ts::config("llama3-8b");
  job.format = ts::DType::f32;
  job.context = 32768;
  const ts::TrainingPlan plan = ts::plan_training(job, ts::machine("a100", {1, 8}));
  CHECK(plan.limit_mfu.value() <= 1.0 + 1e-9);
  ts::TrainingJob mixture;
  mixture.model = ts::config("deepseek-v3");
  mixture.batch_tokens = 64e6;
  mixture.context = 4096;
  ts::Layout layout;
  layout.data = 512;
  layout.tensor = 2;
  layout.zero = ts::Zero::optimizer;
  std::vector<double> updates;
  for (const int expert : {1, 8, 64}) {
    layout.expert = expert;
    updates.push_back(ts::plan_training(mixture, ts::machine("tpu-v5p", {8, 8, 16}), layout)
                          .best.price.typical.update);
  }
  CHECK(updates[1] == doctest::Approx(updates[0]));
  CHECK(updates[2] == doctest::Approx(updates[0]));
  ts::Machine odd = ts::machine("h100", {1, 8});
  odd.chip.watts = std::numeric_limits<double>::quiet_NaN();
  CHECK(error_of([&] {
          ts::plan_training(job, odd);
        }).find("plan_training: the chip's watts is ") == 0);
  const auto refused = [&](double bad, double& field, const std::string& why) {
    const double was = field;
    field = bad;
    CHECK(error_of([&] { ts::plan_training(job, odd); }) == "plan_training: " + why);
    field = was;
  };
  odd = ts::machine("h100", {1, 8});
  refused(-1, odd.chip.vector_flops,
          "a FLOP/s rate of the chip is -1; a number from 0 to 1e+19 is right");
  refused(-2, odd.chip.dollars_per_hour,
          "the chip's dollars_per_hour is -2; a number from 0 to 1e+09 is right");
  refused(-3, job.model.training_tokens,
          "model.training_tokens is -3; a number from 0 to 1e+30 is right");
}

TEST_CASE("planning: a chip whose memory is not known, which the plan says") {
  ts::TrainingJob job;
  job.model = ts::config("llama3-8b");
  ts::Machine machine = ts::machine("h100", {1, 8});
  const auto printed = [&] {
    std::ostringstream out;
    out << ts::plan_training(job, machine);
    return out.str();
  };
  const std::string known = printed();
  CHECK(known.find("a chip holds") != std::string::npos);
  CHECK(known.find("- memory: ") == std::string::npos);
  machine.chip.memory_bytes = machine.chip.memory_bandwidth = 0;
  const std::string open = printed();
  CHECK(open.find("a chip holds") == std::string::npos);
  CHECK(open.find("states no memory_bytes, so no layout is too large") != std::string::npos);
  CHECK(open.find("states no memory_bandwidth, so what memory bounds takes no time") !=
        std::string::npos);
}

TEST_CASE("planning: chunks of a given layout, embedding and head in chunks of their own") {
  ts::TrainingJob job;
  job.model = ts::config("llama3.1-405b");
  job.context = 8192;
  job.batch_tokens = 2048 * 8192;
  const ts::Machine machine = ts::machine("h100", {1024, 8});
  ts::Layout layout;
  layout.data = 64;
  layout.tensor = 8;
  layout.pipeline = 16;
  layout.microbatches = 32;
  layout.zero = ts::Zero::optimizer;
  layout.sequence_parallel = true;
  // 126 layers in 128 chunks: the first and the last hold a table alone.
  const ts::TrainingPlan one = ts::plan_training(job, machine, layout);
  const ts::TrainingPlan eight = ts::plan_training(job, machine, layout, 8);
  CHECK(eight.best.chunks == 8);
  CHECK(eight.bubble_time.value() == doctest::Approx(one.bubble_time.value() / 8));
  CHECK(eight.bubble_time.formula() == "T_math * (Z - 1) / (v * m)");
  ts::Layout scheduled = layout;
  scheduled.schedule = ts::interleaved(16, 32, 8);
  const ts::TrainingPlan same = ts::plan_training(job, machine, scheduled, 8);
  CHECK(same.best.step_time == doctest::Approx(eight.best.step_time));
  CHECK(same.memory.value() == doctest::Approx(eight.memory.value()));
  const auto refused = [&](const ts::Layout& given, int chunks, const std::string& why) {
    CHECK(error_of([&] { ts::plan_training(job, machine, given, chunks); }) ==
          "plan_training: " + why);
  };
  refused(layout, 9, "layout " + layout.text() + ": 126 layers are fewer than 144 stages");
  refused(layout, 0, "0 chunks of the model on a pipeline rank; at least 1 is right");
  refused(scheduled, 4,
          "4 chunks, the schedule " + scheduled.schedule.name + " has 8; they must be equal");
  layout.microbatches = 31;
  refused(layout, 2,
          "layout " + layout.text() +
              ": 31 microbatches are no multiple of pipeline 16, which chunks need");
}

TEST_CASE("planning: fp16 runs of 2021 send gradients in 16 bits, those of DeepSpeed more") {
  ts::TrainingJob job;
  job.model = ts::config("gpt3-6.7b");
  job.batch_tokens = 512 * 2048;
  ts::Layout layout;
  layout.data = 32;
  layout.tensor = 4;
  layout.microbatches = 1;
  const auto sent = [&](const ts::Software& software) {
    job.software = software;
    return ts::plan_training(job, ts::machine("a100-80", {16, 8}), layout).data_time.value();
  };
  CHECK(sent(ts::software_megatron_2021()) == doctest::Approx(sent(ts::Software())));
  CHECK(sent(ts::software_deepspeed_2022()) == doctest::Approx(2 * sent(ts::Software())));
  ts::Software whole = ts::software_megatron_2021();
  whole.gradient_bytes = 4;
  CHECK(sent(whole) == doctest::Approx(2 * sent(ts::Software())));
  whole.gradient_bytes = -1;
  CHECK(error_of([&] { sent(whole); }) ==
        "plan_training: software.gradient_bytes is -1; a number from 0 to 8 is right");
}

TEST_CASE("what would fit is the next machine of a power of two chips or of twice as many") {
  ts::TrainingJob job;
  job.model = ts::config("llama3-8b");
  job.batch_tokens = 6e7;
  job.context = 131072;
  CHECK(error_of([&] {
          ts::plan_training(job, ts::machine("tpu-v4", {3, 5, 7}));
        }).find("would fit: tpu-v4 4x4x8 (128 chips)") != std::string::npos);
}

TEST_CASE("serving: links of one chip, or of no second, are not given as so many ways") {
  ts::ServingJob job;
  job.model = ts::config("smollm2-135m");
  job.prompt = 0;
  job.output = 1;
  job.batch = 100000;
  for (const int chips : {1, 8}) {
    std::string notes;
    const ts::ServingPlan plan = ts::plan_serving(job, ts::machine("h100", {chips}));
    REQUIRE(plan.chips == chips);
    for (const std::string& note : plan.notes) {
      notes += note + "\n";
    }
    const bool says = notes.find(
                          "links: one ring feeds no tensor parallelism at 100000 "
                          "sequences") != std::string::npos;
    CHECK(says == (chips > 1));
    CHECK(notes.find(" are more than the 0.") == std::string::npos);
  }
}
