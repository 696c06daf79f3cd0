// One device that learns from a batch in parts or computes activations again: the same as one chip
// of a mesh, and as the whole batch at once.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "error_of.hpp"
#include "small_training.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

ts::TrainOptions in_parts(std::int64_t microbatches, ts::Recompute recompute) {
  ts::TrainOptions options;
  options.steps = 6;
  options.warmup = 2;
  options.learning_rate = 3e-3;
  options.out = nullptr;
  options.layout.microbatches = microbatches;
  options.layout.recompute = recompute;
  return options;
}

ts::ModelConfig mixture() {
  ts::ModelConfig c = small_model();
  c.experts = 4;
  c.top_k = 2;
  c.expert_hidden = 8;
  return c;
}

// Losses and weights, to rounding: Adam divides by small numbers, so weights move more.
void check_same(const ts::TrainReport& a, const ts::Transformer& of_a, const ts::TrainReport& b,
                const ts::Transformer& of_b) {
  REQUIRE(a.losses.size() == b.losses.size());
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    CHECK(std::fabs(a.losses[i] - b.losses[i]) < 2e-5);
    CHECK(std::fabs(a.grad_norms[i] - b.grad_norms[i]) < 1e-3 * b.grad_norms[i]);
  }
  for (std::size_t p = 0; p < of_a.parameters.size(); ++p) {
    const ts::Tensor x = of_a.parameters[p].value, y = of_b.parameters[p].value;
    double apart = 0, size = 0;
    for (std::int64_t i = 0; i < x.count(); ++i) {
      apart += std::pow(double(x.data()[i]) - double(y.data()[i]), 2);
      size += std::pow(double(y.data()[i]), 2);
    }
    CAPTURE(of_a.parameters[p].name);
    CHECK(apart < 1e-6 * size);
  }
}

}  // namespace

TEST_CASE("in parts one device learns what one chip of a mesh learns") {
  const ts::Text text = small_text();
  for (int way = 0; way < 18; ++way) {
    CAPTURE(way);
    const auto recompute = static_cast<ts::Recompute>(way % 3);
    ts::TrainOptions options = in_parts(1 + way / 3 % 3 * 2, recompute);  // 1, 3, 5
    options.batch = 15;
    options.dropout = 0.1;
    const bool mixed = way >= 9;
    const ts::ModelConfig config = mixed ? mixture() : small_model();
    options.experts.balance_loss = mixed ? 0.05 : 0;
    ts::Transformer alone(config, 1), chip(config, 1);
    const ts::TrainReport here = ts::train(alone, text, options);
    CHECK(!here.last_step);
    options.machine = ts::machine("tpu-v5e", {1});
    const ts::TrainReport there = ts::train(chip, text, options);
    CHECK(bool(there.last_step) == options.in_parts());
    check_same(here, alone, there, chip);
  }
}

TEST_CASE("parts of a batch add up to it, and hold less") {
  const ts::Text text = small_text();
  ts::Transformer whole(small_model(), 1);
  ts::TrainOptions options = in_parts(1, ts::Recompute::none);
  const ts::TrainReport all = ts::train(whole, text, options);
  double before = all.memory.rows[0].counted;
  for (const std::int64_t microbatches : {2, 3, 12}) {
    ts::Transformer model(small_model(), 1);
    const ts::TrainReport report =
        ts::train(model, text, in_parts(microbatches, ts::Recompute::none));
    check_same(report, model, all, whole);
    const ts::ReportRow& row = report.memory.rows[0];
    CHECK(row.counted > 0.95 * row.predicted);  // the formula has all gradients at the peak
    CHECK(row.counted < 1.02 * row.predicted);
    CHECK(row.counted < before);
    before = row.counted;
  }
  ts::MemoryMeter& meter = *ts::context().memory;
  double peaks[3];
  for (const int way : {0, 1, 2}) {
    ts::Transformer model(small_model(), 1);
    const ts::TrainReport report =
        ts::train(model, text, in_parts(2, static_cast<ts::Recompute>(way)));
    CHECK(report.memory.rows.empty() == (way > 0));  // the closed form keeps activations
    peaks[way] = meter.peak(ts::MemoryKind::activation);
  }
  CHECK(peaks[1] < peaks[0]);
  CHECK(peaks[2] < peaks[1]);
}

TEST_CASE("gradients that overflow in parts are left out, and the scale comes down") {
  const ts::Text text = small_text();
  ts::TrainOptions options = in_parts(3, ts::Recompute::full);
  options.format = ts::DType::f16;
  options.loss_scaler.scale = 0x1p30;
  ts::Transformer model(small_model(), 1), chip(small_model(), 1);
  const ts::TrainReport here = ts::train(model, text, options);
  CHECK(here.skipped_steps > 0);
  CHECK(here.loss_scale < 0x1p30);
  options.machine = ts::machine("tpu-v5e", {1});
  const ts::TrainReport there = ts::train(chip, text, options);
  CHECK(here.skipped_steps == there.skipped_steps);
  CHECK(here.loss_scale == there.loss_scale);
}

TEST_CASE("a model whose layers see windows learns the same however it is divided") {
  const ts::Text text = small_text();
  ts::ModelConfig config = small_model(text.tokenizer.vocabulary());
  config.window = 5;
  for (const std::int64_t every : {0, 2}) {  // all layers, or the first of two
    config.global_every = every;
    ts::Transformer whole(config, 1);
    const ts::TrainReport all = ts::train(whole, text, in_parts(1, ts::Recompute::none));
    ts::ModelConfig wide = config;
    wide.window = wide.global_every = 0;
    ts::Transformer other(wide, 1);
    const ts::TrainReport far = ts::train(other, text, in_parts(1, ts::Recompute::none));
    CHECK(std::fabs(far.losses.back() - all.losses.back()) > 1e-4);
    for (const ts::Recompute again :
         {ts::Recompute::none, ts::Recompute::selective, ts::Recompute::full}) {
      ts::Transformer model(config, 1);
      ts::TrainOptions options = in_parts(2, again);
      check_same(ts::train(model, text, options), model, all, whole);
#if !defined(TINYSCALE_NO_THREADS)
      options.machine = ts::machine("tpu-v5e", {2});
      for (const int way : {0, 1, 2, 3, 4, 5}) {
        CAPTURE(every);
        CAPTURE(static_cast<int>(again));
        CAPTURE(way);
        options.layout = ts::Layout();
        options.layout.recompute = again;
        (way == 0   ? options.layout.data
         : way == 1 ? options.layout.tensor
         : way == 2 ? options.layout.pipeline
                    : options.layout.context) = 2;
        if (way > 2) {
          options.layout.context_parallel = static_cast<ts::ContextParallel>(way - 3);
        }
        ts::Transformer parted(config, 1);
        check_same(ts::train(parted, text, options), parted, all, whole);
      }
#endif
    }
  }
}

TEST_CASE("machines and paths that are no whole ones, and what one device cannot do") {
  const ts::Text text = small_text();
  const auto error = [&](void (*change)(ts::TrainOptions&)) {
    return error_of([&] {
      ts::Transformer model(small_model(), 1);
      ts::TrainOptions options = in_parts(1, ts::Recompute::none);
      change(options);
      ts::train(model, text, options);
    });
  };
  CHECK(error([](ts::TrainOptions& o) { o.batch = 13, o.layout.microbatches = 5; }) ==
        "train: a batch of 13 sequences does not divide over data 1 x microbatches 5; right is a "
        "multiple of 5");
  CHECK(error([](ts::TrainOptions& o) {
          o.machine.name = "own";
          o.machine.dims = {2};
        }) ==
        "train: options.machine \"own\" is put together in its place; assign the whole machine");
  CHECK(error([](ts::TrainOptions& o) {
          o.layout.microbatches = 2;
          o.layout.schedule = ts::gpipe(1, 2);
        }) ==
        "train: the schedule gpipe is of a machine, and none is given; options.machine = "
        "ts::machine(\"tpu-v5e\", {1}) is right for one device");
  CHECK(error([](ts::TrainOptions& o) {
          o.layout.whole_experts = true;
        }).find(", which has no experts by data 1, tensor 1") != std::string::npos);
  CHECK(error([](ts::TrainOptions& o) { o.checkpoint.append("file"); }) ==
        "train: checkpoint is \"file\", put together in its place; assign the whole path");
  const std::string alone =
      " of a machine, and one device trains alone, without simulated time; give options.machine "
      "and a layout of several devices, or no faults";
  CHECK(error([](ts::TrainOptions& o) { o.faults.slow_device(0, 4); }) == "train: 1 fault" + alone);
  CHECK(error([](ts::TrainOptions& o) {
          o.machine = ts::machine("tpu-v5e", {1});
          o.faults.slow_device(0, 4).dead_link(0, 1);
        }) == "train: 2 faults" + alone);
}

#if !defined(TINYSCALE_NO_THREADS)  // several devices
TEST_CASE("slow and dead devices of a training are those of its simulated time") {
  const ts::Text text = small_text();
  const auto seconds = [&](const ts::Faults& faults) {
    ts::TrainOptions options = in_parts(1, ts::Recompute::none);
    options.steps = 1;
    options.layout.data = 2;
    options.machine = ts::machine("tpu-v5e", {2});
    options.faults = faults;
    ts::Transformer model(small_model(), 1);
    return ts::train(model, text, options).last_step->seconds;
  };
  CHECK(seconds(ts::Faults().slow_device(1, 1000)) > 10 * seconds(ts::Faults()));
  CHECK(error_of([&] { seconds(ts::Faults().dead_device(1)); }).find("time: device 1 is dead; ") ==
        0);
}
#endif
