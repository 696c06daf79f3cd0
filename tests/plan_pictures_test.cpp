// Pictures of plans and the numbers that are drawn.
#include <doctest/doctest.h>

#include "error_of.hpp"
#include "well_formed.hpp"

namespace ts = tinyscale;
using doctest::Approx;

namespace {

ts::TrainingJob llama() {
  ts::TrainingJob job;
  job.model = ts::config("llama3-70b");
  job.context = 8192;
  return job;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("strategy regimes: FSDP's threshold is its closed form") {
  const ts::TrainingJob job = llama();
  const ts::Machine pod = ts::machine_of_chips("tpu-v5p", 8960);
  const ts::StrategyRegimes regimes = ts::strategy_regimes(job, pod);
  REQUIRE(regimes.curves.size() == 3);
  CHECK(regimes.planned == Approx(488.0 * 8192 / 8960));
  const ts::StrategyCurve &fsdp = regimes.curves[0], &tensor = regimes.curves[1],
                          &mixed = regimes.curves[2];
  // 8 bytes a parameter (weights twice, f32 gradients) over all six links, against 6 P + attention.
  const double P = static_cast<double>(job.model.parameters());
  const double seconds = 8 * P * (8959.0 / 8960) / 5.4e11;
  const double attention =
      ts::attention_flops_per_token(job.model, 8192, ts::AttentionFlops::causal);
  const double flops = (6 * ts::matrix_parameters(job.model).total() + 3 * attention) / 4.59e14;
  CHECK(fsdp.threshold == Approx(seconds / flops).epsilon(1e-6));
  // The book's, for 6 bytes and 6 P: alpha / axes = 850.
  CHECK(ts::fsdp_threshold(4.59e14 / 1.8e11, 3) == Approx(850));
  CHECK(fsdp.threshold * 6 / 8 == Approx(850).epsilon(0.07));
  // Where both are used, a smaller batch is enough; tensor parallelism alone never is.
  CHECK(mixed.threshold > 0);
  CHECK(mixed.threshold < fsdp.threshold / 8);
  CHECK(tensor.threshold == -1);
  for (std::size_t i = 0; i < regimes.tokens_per_chip.size(); ++i) {
    CHECK(fsdp.ratio[i] == Approx(fsdp.ratio[0] * regimes.tokens_per_chip[i]));
    CHECK(tensor.ratio[i] == Approx(tensor.ratio[0]));
    CHECK(mixed.ratio[i] >= mixed.ratio[i > 0 ? i - 1 : 0] * (1 - 1e-9));
  }
  const ts::Table table = regimes.table();
  CHECK(table.columns ==
        std::vector<std::string>{"tokens per chip", "FSDP", "tensor", "FSDP and tensor"});
  CHECK(table.rows.size() == 41);
  CHECK(table.rows[40][0] == "100000");
}

TEST_CASE("strategy regimes: the step's limit says the same at the threshold") {
  const ts::StrategyRegimes regimes = ts::strategy_regimes(llama(), ts::machine("h100", {128, 8}));
  const double tokens = regimes.curves[0].threshold * 1024;
  ts::StepJob job;
  job.model = llama().model;
  job.context = 8192;
  job.batch = tokens / 8192;
  job.gradient_bytes = 2;  // as current GPU software sends them
  ts::Layout layout;
  layout.data = 1024;
  layout.zero = ts::Zero::parameters;
  const ts::StepLimit limit = ts::price_step(job, ts::machine("h100", {128, 8}), layout).limit;
  CHECK(limit.data == Approx(limit.math).epsilon(1e-6));
  // Two chips beside each other: tensor parallelism alone is always enough, nothing lies between.
  const ts::StrategyRegimes two = ts::strategy_regimes(llama(), ts::machine("tpu-v5e", {1, 2}));
  REQUIRE(two.curves.size() == 2);
  CHECK(two.curves[1].threshold == 0);
  CHECK(error_of([] { ts::strategy_regimes(llama(), ts::machine("h100", {1})); }) ==
        "strategy_regimes: h100-sxm 1 is one chip, which sends nothing; 2 chips or more are right");
}

TEST_CASE("plan pictures: regimes, step, memory and roofline of a training plan") {
  const ts::Machine pod = ts::machine_of_chips("tpu-v5p", 8960);
  const ts::TrainingPlan plan = ts::plan_training(llama(), pod);

  const ts::Svg regimes = ts::svg(ts::strategy_regimes(llama(), pod));
  CHECK(well_formed(regimes.markup()));
  CHECK(contains(regimes.body, "FSDP: from 1,068"));
  CHECK(contains(regimes.body, "tensor: never"));
  CHECK(contains(regimes.body, "this job: 446"));

  double sum = 0;
  for (const ts::TimeShare& share : ts::detail::step_ledger(plan)) {
    CHECK(share.seconds >= 0);
    sum += share.seconds;
  }
  CHECK(sum == Approx(plan.typical_step_time.value()));
  const ts::Svg step = ts::step_waterfall(plan);
  CHECK(well_formed(step.markup()));
  CHECK(contains(step.text, ts::format_seconds(plan.typical_step_time.value()) + " in all"));
  CHECK(contains(step.body, "time by formula, ms"));
  CHECK_FALSE(contains(step.body, "simulated"));

  const ts::Svg memory = ts::memory_bars(plan);
  CHECK(well_formed(memory.markup()));
  CHECK(contains(memory.body, "a chip has 102 GB"));
  CHECK(contains(memory.text, plan.best.text() + ": " + ts::format_bytes(plan.best.memory)));
  double held = 0;
  for (const ts::detail::HeldPart& part : ts::detail::held_parts(plan.best.memory_parts)) {
    held += part.bytes;
  }
  CHECK(held == Approx(plan.best.memory));
  ts::TrainingPlan full = plan;  // a bar that ends just left of the line: its words begin behind
  full.layouts.resize(1);
  full.layouts[0].memory = 0.98 * full.on.chip.memory_bytes;
  full.layouts[0].memory_parts = {};
  full.layouts[0].memory_parts.parts.weights = full.layouts[0].memory;
  CHECK(contains(ts::memory_bars(full).body, "<text x=\"776\""));
  ts::TrainingPlan none = plan;
  none.layouts.clear();
  CHECK(error_of([&] { ts::memory_bars(none); }) ==
        "memory_bars: the plan has 0 layouts and its chip 1.02005473e+11 bytes; one layout or more "
        "and a memory is right");

  const ts::Svg roofline = ts::roofline_picture(plan);
  CHECK(well_formed(roofline.markup()));
  CHECK(contains(roofline.text, "4 ops under a peak of 459 TFLOP/s"));
}

TEST_CASE("plan pictures: a step that links bound ends when they are done") {
  ts::Layout fsdp;
  fsdp.data = 8960;
  fsdp.zero = ts::Zero::parameters;
  ts::TrainingJob job = llama();
  job.batch_tokens = 8960.0 * 8192;
  ts::Machine slow = ts::machine_of_chips("tpu-v5p", 8960);
  for (ts::Links& links : slow.links) {
    links.bandwidth = ts::Bandwidth::one_way(1e9);
  }
  const ts::TrainingPlan plan = ts::plan_training(job, slow, fsdp);
  double sum = 0;
  for (const ts::TimeShare& share : ts::detail::step_ledger(plan)) {
    sum += share.seconds;
  }
  CHECK(plan.best.bound == "data");
  CHECK(sum == Approx(plan.best.typical_time));
}

TEST_CASE("plan pictures: the roof of a chip, the frontier of serving") {
  const ts::Svg roof = ts::roofline_picture(ts::chip("h100"));
  CHECK(well_formed(roof.markup()));
  CHECK(contains(roof.body, "L2 5.5 TB/s"));
  CHECK(contains(roof.body, "memory 3.35 TB/s"));
  const ts::RooflinePlot fp8 = ts::roofline_plot(ts::chip("h100"), ts::DType::fp8_e4m3);
  CHECK(fp8.peak_flops_per_second == 1.979e15);
  CHECK(fp8.roofs.size() == 3);

  ts::ServingJob job;
  job.model = ts::config("llama2-13b");
  job.format = ts::DType::int8;
  const ts::ServingFrontier frontier =
      ts::serving_frontier(job, ts::machine_of_chips("tpu-v5e", 16));
  const ts::Svg picture = ts::svg(frontier);
  CHECK(well_formed(picture.markup()));
  CHECK(contains(picture.body, "USD for a million tokens"));
  // A dot for each on the frontier, a ring for each other and one in the legend.
  const int best = static_cast<int>(frontier.best().size());
  const int all = static_cast<int>(frontier.points.size());
  CHECK(occurrences(picture.body, "r=\"4.2\"") == best);
  CHECK(occurrences(picture.body, "r=\"4\"") == all - best + 1);
  const ts::Svg unpriced = ts::svg(ts::serving_frontier(job, ts::machine_of_chips("b200", 8)));
  CHECK(contains(unpriced.body, "tokens/s for each chip"));
  const ts::FrontierPoint first = frontier.best()[0];
  CHECK(first.chips == 16);
  CHECK(first.batch == 1);
  CHECK(contains(picture.body, ">16 x 1<"));
  CHECK(contains(picture.text, "16 x 1: " + ts::format_seconds(first.step_seconds)));
}
