#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "small_training.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

ts::ModelConfig small_mixture() {
  ts::ModelConfig c = small_model(41);
  c.experts = 4;
  c.top_k = 2;
  c.expert_hidden = 32;
  c.bias = false;
  return c;
}

ts::TrainOptions silent(std::int64_t steps, ts::DType format = ts::DType::f32) {
  ts::TrainOptions options;
  options.steps = steps;
  options.batch = 16;
  options.warmup = 5;
  options.learning_rate = 3e-3;
  options.eval_every = 0;
  options.format = format;
  options.out = nullptr;
  return options;
}

ts::TrainReport trained(const ts::TrainOptions& options,
                        const ts::ModelConfig& config = small_model(41)) {
  ts::Transformer model(config, 1);
  return ts::train(model, small_text(), options);
}

// Gradients overflow f16 at this loss scale.
ts::TrainOptions overflowing(std::int64_t steps) {
  ts::TrainOptions options = silent(steps, ts::DType::f16);
  options.loss_scaler.scale = 16777216;
  return options;
}

bool same_weights(const ts::Transformer& a, const ts::Transformer& b) {
  for (std::size_t i = 0; i < a.parameters.size(); ++i) {
    if (a.parameters[i].value.values() != b.parameters[i].value.values()) {
      return false;
    }
  }
  return true;
}

// The share of all weights that a format holds exactly.
double held_by(const ts::Transformer& model, ts::DType format) {
  double held = 0;
  for (const ts::Parameter& p : model.parameters) {
    for (const float x : p.value.values()) {
      held += ts::round_to(x, format) == x ? 1 : 0;
    }
  }
  return held / static_cast<double>(model.count());
}

}  // namespace

TEST_CASE("a format of training is given and read as a DType") {
  ts::TrainOptions options;
  CHECK((options.format == ts::DType::f32 ? options.format : ts::DType::bf16) == ts::DType::f32);
  options.format = ts::DType::bf16;
  const ts::DType same = options.format;
  const ts::MatmulFormat format(same);
  CHECK(ts::context().matmul_format == ts::DType::bf16);
}

TEST_CASE("formats and loss scales that cannot be are named") {
  const auto error = [](const ts::TrainOptions& options) {
    return error_of([&] { trained(options); });
  };
  CHECK(error(silent(1, ts::DType::fp8_e5m2)) ==
        "train: format is fp8_e5m2; f32, bf16, f16 or fp8_e4m3 is right");
  ts::TrainOptions options = silent(1);
  options.loss_scale = -1;
  CHECK(error(options) == "train: loss_scale is -1; a number from 0 to below 1e+30 is right");
  options = silent(1);
  options.layout.gradient_format = ts::DType::f16;
  CHECK(error(options) == "train: layout.gradient_format is f16; f32 or bf16 is right");
  options.layout.gradient_format = ts::DType::bf16;
  CHECK(options.layout.text() == "data 1, tensor 1, pipeline 1, context 1, gradients in bf16");
}

TEST_CASE("a loss scale that is a power of two changes no bit in f32") {
  for (const bool mixture : {false, true}) {
    CAPTURE(mixture);
    const ts::ModelConfig config = mixture ? small_mixture() : small_model(41);
    ts::TrainOptions options = silent(2);
    options.experts.balance_loss = mixture ? 0.01 : 0.0;
    const ts::TrainReport plain = trained(options, config);
    options.loss_scale = 1024;
    const ts::TrainReport scaled = trained(options, config);
    CHECK(scaled.loss_scale == 1024);
    CHECK(scaled.losses == plain.losses);
    CHECK(scaled.grad_norms == plain.grad_norms);
#if !defined(TINYSCALE_NO_THREADS)
    options.layout.microbatches = 2;
    options.layout.pipeline = 2;
    options.machine = ts::machine("tpu-v5e", {2});
    const ts::TrainReport on_mesh = trained(options, config);
    options.loss_scale = 0;
    CHECK(on_mesh.losses == trained(options, config).losses);
#endif
  }
}

// The mean over a step's tokens divides every gradient by their number. These runs have 256 tokens;
// a loss scale of 2^-14 makes their gradients as small as those of a step of 4 million, and
// 2^-14 x 65536 is what LossScaler starts with there.
TEST_CASE(
    "[slow] f16 and fp8 lose small gradients and learn nothing; scaled they learn as f32 does") {
  const double step_of_4m = 1.0 / 16384;
  const ts::TrainReport f32 = trained(silent(30));
  CHECK(f32.losses.front() - f32.losses.back() > 0.7);
  CHECK(f32.rounding.numbers == 0);
  for (const ts::DType format : {ts::DType::f16, ts::DType::fp8_e4m3}) {
    CAPTURE(ts::name_of(format));
    const bool fp8 = format == ts::DType::fp8_e4m3;
    const double close = fp8 ? 0.03 : 2e-3;
    ts::TrainOptions options = silent(30, format);
    options.loss_scale = step_of_4m;
    const ts::TrainReport small = trained(options);
    CHECK(small.rounding.lost_share() > (fp8 ? 0.99 : 0.9));
    CHECK(small.losses.front() - small.losses.back() < (fp8 ? 0.02 : 0.35));
    options.loss_scale = step_of_4m * 65536;
    const ts::TrainReport scaled = trained(options);
    CHECK(scaled.rounding.lost_share() < (fp8 ? 0.25 : 0.015));
    CHECK(std::fabs(scaled.losses.back() - f32.losses.back()) < close);
    options.loss_scale = 0;
    const ts::TrainReport automatic = trained(options);
    CHECK(automatic.loss_scale == 65536);
    CHECK(automatic.skipped_steps == 0);
    CHECK(automatic.rounding.overflowed == 0);
    CHECK(automatic.rounding.lost_share() < 0.01);
    CHECK(std::fabs(automatic.losses.back() - f32.losses.back()) < close);
  }
}

TEST_CASE("one gradient below f16's smallest number: zero, unless the loss is scaled") {
  const ts::Tensor x = ts::parameter(ts::full({1, 1}, 1.0f));
  const ts::Tensor w = ts::parameter(ts::full({1, 1}, 1.0f));
  for (const float scale : {1.0f, 1024.0f, 1e13f}) {
    ts::RoundingCount counts;
    {
      const ts::MatmulFormat format(ts::DType::f16, &counts);
      ts::matmul(x, w).backward(ts::full({1, 1}, 1e-8f * scale));
    }
    CHECK(counts.numbers == 2);  // each product of the backward pass reads it
    CHECK(counts.lost == (scale > 1 ? 0 : 2));
    CHECK(counts.overflowed == (scale > 1e12f ? 2 : 0));
    CHECK((w.grad().item() == 0.0f) == (scale <= 1));
    w.zero_grad();
    x.zero_grad();
  }
}

TEST_CASE("an overflow at a dynamic scale: the step is left out, the scale halves") {
  const ts::Text text = small_text();
  const ts::Transformer start(small_model(41), 1);
  ts::Transformer model(small_model(41), 1);
  const ts::TrainReport one = ts::train(model, text, overflowing(1));
  CHECK(one.skipped_steps == 1);
  CHECK(one.loss_scale == 8388608);
  CHECK(one.rounding.overflowed > 0);
  CHECK(same_weights(model, start));
  const ts::TrainReport more = ts::train(model, text, overflowing(20));
  CHECK(more.skipped_steps > 0);
  CHECK(more.skipped_steps < 8);
  CHECK(more.loss_scale == std::ldexp(1.0, 24 - static_cast<int>(more.skipped_steps)));
  CHECK(more.losses.back() < more.losses.front() - 0.2);
  // A fixed scale cannot become smaller.
  ts::TrainOptions options = silent(20, ts::DType::f16);
  options.loss_scale = 16777216;
  const std::string error = error_of([&] { trained(options); });
  CHECK(error.find("train_step: the gradient norm is ") == 0);
  CHECK(error.find(" in step 0; try a smaller learning_rate than 0.003") != std::string::npos);
  // Nor one that is at its smallest.
  options = overflowing(3);
  options.loss_scaler.smallest = 16777216;
  CHECK(error_of([&] { trained(options); }) ==
        "LossScaler: gradients are not finite at a loss scale of 16777216, the smallest is "
        "16777216; the model diverges whatever the scale: try a smaller learning_rate");
}

TEST_CASE("a scale that grows is found too large now and then") {
  ts::TrainOptions options = silent(30, ts::DType::f16);
  options.loss_scaler.growth_steps = 1;
  const ts::TrainReport report = trained(options);
  CHECK(report.skipped_steps > 2);  // up, and back again
  CHECK(report.skipped_steps < 20);
  CHECK(report.loss_scale > 65536);
  CHECK(report.losses.back() < report.losses.front() - 0.3);
}

TEST_CASE("a training loop of one's own: the optimizer holds the scaler") {
  const ts::Text text = small_text();
  const ts::Transformer model(small_model(41), 1);
  const ts::TrainOptions options = silent(12, ts::DType::f16);
  ts::AdamW optimizer(model.tensors(), ts::adamw_options(options));
  optimizer.scaler.scale = 16777216;
  ts::Batch batch;
  std::int64_t skipped = 0;
  for (std::int64_t step = 0; step < 12; ++step) {
    ts::fill_batch(batch, text.train(), 4, model.config.context, 1, step);
    const double scale = optimizer.scaler.scale;
    const ts::StepResult result = ts::train_step(model, optimizer, batch, options, step);
    CHECK(result.loss_scale == scale);
    CHECK(result.skipped == !(result.grad_norm < 1e30));
    CHECK(optimizer.scaler.scale == (result.skipped ? scale / 2 : scale));
    skipped += result.skipped ? 1 : 0;
  }
  CHECK(skipped > 0);
  CHECK(optimizer.scaler.skipped == skipped);
  CHECK(optimizer.steps() == 12 - skipped);
}

#if !defined(TINYSCALE_NO_THREADS)

TEST_CASE("on a mesh all devices leave the same steps out [slow]") {
  const ts::Text text = small_text();
  const ts::Transformer start(small_model(41), 1);
  for (const ts::Zero zero : {ts::Zero::none, ts::Zero::optimizer, ts::Zero::parameters}) {
    CAPTURE(int(zero));
    ts::TrainOptions options = overflowing(1);
    options.loss_scaler.scale *= 16;
    options.machine = ts::machine("tpu-v5e", {4});
    options.layout.data = options.layout.pipeline = options.layout.microbatches = 2;
    options.layout.zero = zero;
    ts::Transformer model(small_model(41), 1);
    const ts::TrainReport one = ts::train(model, text, options);
    CHECK(one.skipped_steps == 1);
    CHECK(std::isinf(one.grad_norms[0]) + std::isnan(one.grad_norms[0]) == 1);
    CHECK(one.rounding.overflowed > 0);
    CHECK(same_weights(model, start));
    options.steps = 20;
    const ts::TrainReport report = ts::train(model, text, options);
    CHECK(report.skipped_steps > 1);
    CHECK(report.skipped_steps < 12);
    CHECK(report.loss_scale == std::ldexp(1.0, 28 - static_cast<int>(report.skipped_steps)));
    // Skipped steps are none: the same as a run whose scale was right from the start, but for the
    // data and the learning rate, which go by the step.
    CHECK(report.losses.back() < report.losses.front() - 0.1);
  }
}

// Weights go as bf16 or f16 to those that use them; the one that updates them keeps them in f32.
// Products round their operands to the same format again, which changes nothing: what differs from
// one device are the lookups, gains and biases, each by at most 2^-9 (2^-12 in f16) of itself, and
// so the loss. Under Zero::none nothing is rounded but operands, as on one device.
TEST_CASE("on a mesh a step that is left out sends no weights, and its report expects none") {
  ts::TrainOptions options = silent(1);
  options.format = ts::DType::f16;
  options.loss_scaler.scale = std::ldexp(1.0, 40);
  options.machine = ts::machine("tpu-v5e", {2});
  options.layout.data = 2;
  for (const ts::Zero zero : {ts::Zero::optimizer, ts::Zero::gradients, ts::Zero::parameters}) {
    options.layout.zero = zero;
    const ts::TrainReport report = trained(options);
    CHECK(report.skipped_steps == 1);
    CAPTURE(report.step.sent.table().text());
    CHECK(report.step.sent.equal(0));
  }
}

TEST_CASE("[slow] master weights: half the bytes, f32 at the owner, one device's losses") {
  const ts::Text text = small_text();
  const auto weight_bytes = [](const ts::TrainReport& report) {
    double bytes = 0;
    for (const ts::CollectiveRow& row : report.last_step->collectives()) {
      bytes += row.name == "all_gather" ? row.bytes_out : 0.0;
    }
    return bytes;
  };
  for (const ts::DType format :
       {ts::DType::f32, ts::DType::bf16, ts::DType::f16, ts::DType::fp8_e4m3}) {
    const ts::TrainReport single = trained(silent(10, format));
    std::vector<double> of_zero;
    for (const ts::Zero zero :
         {ts::Zero::none, ts::Zero::optimizer, ts::Zero::gradients, ts::Zero::parameters}) {
      CAPTURE(ts::name_of(format));
      CAPTURE(int(zero));
      ts::TrainOptions options = silent(10, format);
      options.machine = ts::machine("tpu-v5e", {4});
      options.layout.data = 4;
      options.layout.zero = zero;
      ts::Transformer model(small_model(41), 1);
      const ts::TrainReport report = ts::train(model, text, options);
      CHECK(held_by(model, ts::DType::bf16) < 0.05);
      CHECK(held_by(model, ts::DType::f16) < 0.3);
      double first = 0, worst = 0;
      for (std::size_t i = 0; i < 10; ++i) {
        const double error = std::fabs(report.losses[i] / single.losses[i] - 1);
        first = i == 0 ? error : first;
        worst = std::fmax(worst, error);
      }
      const double unit = std::ldexp(1.0, format == ts::DType::f16 ? -12 : -9);
      const bool rounds = format != ts::DType::f32 && zero != ts::Zero::none;
      CHECK(first < (rounds ? unit : 1e-6));
      CHECK(worst < (format == ts::DType::f32 ? 1e-6 : rounds ? unit : unit / 10));
      of_zero.push_back(weight_bytes(report));
      if (zero != ts::Zero::none) {
        options.format = ts::DType::f32;
        options.steps = 1;
        const double f32 = weight_bytes(trained(options));
        CHECK(of_zero.back() == f32 / (format == ts::DType::f32 ? 1 : 2));
      }
    }
    CHECK(of_zero[0] == 0);
  }
}

// After one step m = (1 - beta1) g: the gradient as it came, clipping off.
std::vector<float> first_gradients(const ts::TrainOptions& options) {
  ts::Transformer model(small_model(41), 1);
  const ts::Text text = small_text();
  ts::detail::Trainer trainer(model, text.train(), options);
  trainer.step(0);
  trainer.model();
  std::vector<float> all;
  for (const ts::Tensor& m : trainer.state().moments) {
    for (const float x : m.values()) {
      all.push_back(x / 0.1f);
    }
  }
  return all;
}

TEST_CASE("gradients on the wire in bf16: half the bytes, an error by hops") {
  ts::TrainOptions options = silent(1);
  options.clip = 0;
  options.machine = ts::machine("tpu-v5e", {4});
  for (const int way : {0, 1, 2, 3}) {
    CAPTURE(way);
    options.layout = ts::Layout();
    options.layout.data = 4;
    options.layout.zero = way == 0   ? ts::Zero::none
                          : way == 1 ? ts::Zero::optimizer
                                     : ts::Zero::parameters;
    options.layout.zero_devices = way == 3 ? 2 : 0;  // hybrid: and an all_reduce of the parts
    const std::vector<float> exact = first_gradients(options);
    const auto sent = [&] {
      double bytes = 0;
      for (const ts::CollectiveRow& row : trained(options).last_step->collectives()) {
        bytes += std::string(row.where.file) == "gradients of layer" ? row.bytes_out : 0.0;
      }
      return bytes;
    };
    const double f32 = sent();
    options.layout.gradient_format = ts::DType::bf16;
    CHECK(f32 > 0);
    CHECK(sent() == f32 / 2);
    const std::vector<float> rounded = first_gradients(options);
    REQUIRE(rounded.size() == exact.size());
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      error += std::pow(double(rounded[i]) - double(exact[i]), 2);
      norm += std::pow(double(exact[i]), 2);
    }
    CHECK(error > 0);
    CHECK(std::sqrt(error / norm) < 4 * std::ldexp(1.0, -9));
  }
}

TEST_CASE("out of memory on the declared chip, after a step") {
  ts::TrainOptions options = silent(5);
  options.machine = ts::machine("tpu-v5e", {4});
  options.layout.data = 2;
  options.layout.pipeline = 2;
  options.layout.microbatches = 2;
  ts::Transformer model(small_model(41), 1);
  ts::detail::Trainer trainer(model, small_text().train(), options);
  trainer.step(0);
  const ts::List<ts::DeviceMemory> peaks = trainer.peaks();
  REQUIRE(peaks.size() == 4);
  double most = 0;
  for (const ts::DeviceMemory& peak : peaks) {
    CHECK(peak.parameters > 0);
    CHECK(peak.activations > 0);
    CHECK(peak.total <= peak.parameters + peak.gradients + peak.optimizer + peak.activations +
                            peak.logits + peak.buffers);
    most = std::fmax(most, peak.total);
  }
  options.machine.chip.memory_bytes = most;
  CHECK(trained(options).losses.size() == 5);
  options.machine.chip.memory_bytes = most - 1;
  const std::string error = error_of([&] { trained(options); });
  CHECK(error.find("train: device ") == 0);
  CHECK(error.find(" (pipeline rank ") != std::string::npos);
  CHECK(error.find(", the chip tpu-v5e has ") != std::string::npos);
  CHECK(error.find("; would fit: zero = Zero::optimizer (about ") != std::string::npos);
  // What it suggests does fit.
  options.layout.zero = ts::Zero::optimizer;
  CHECK(trained(options).losses.size() == 5);
}

TEST_CASE("what another layout needs: the estimate beside what is counted") {
  ts::ModelConfig config = small_model(41);
  config.layers = 8;
  ts::TrainOptions options = silent(1);
  options.machine = ts::machine("tpu-v5e", {4});
  options.layout.data = 4;
  const auto peak = [&](const ts::Layout& layout) {
    options.layout = layout;
    ts::Transformer model(config, 1);
    ts::detail::Trainer trainer(model, small_text().train(), options);
    trainer.step(0);
    return trainer.peaks()[0];
  };
  const ts::Layout plain = options.layout;
  const ts::DeviceMemory before = peak(plain);
  for (const int change : {1, 2, 3, 4, 5, 6}) {
    CAPTURE(change);
    ts::Layout then = plain;
    then.zero = change < 4 ? static_cast<ts::Zero>(change) : ts::Zero::none;
    then.recompute = change == 4 || change == 6 ? ts::Recompute::full : ts::Recompute::none;
    then.microbatches = change >= 5 ? 4 : 1;
    const double about = ts::estimated_bytes(before, plain, then, config, 16);
    const double counted = peak(then).total;
    CHECK(about < before.total);
    CHECK(counted < 1.1 * about);
    CHECK(counted > 0.83 * about);
  }
}

TEST_CASE("what another layout needs, in mixes of parallelism") {
  struct Mix {
    std::int64_t data, tensor, pipeline, expert, layers, microbatches;
    ts::Zero zero;
  };
  const Mix mixes[] = {
      {2, 1, 1, 2, 4, 2, ts::Zero::none},      {4, 2, 1, 2, 4, 2, ts::Zero::optimizer},
      {2, 1, 2, 1, 4, 2, ts::Zero::gradients}, {4, 1, 1, 1, 2, 2, ts::Zero::none},
      {4, 1, 2, 2, 8, 1, ts::Zero::optimizer}, {1, 1, 2, 1, 8, 2, ts::Zero::none}};
  for (const Mix& mix : mixes) {
    ts::ModelConfig config = small_model(41);
    config.layers = mix.layers;
    config.heads = config.kv_heads = 4;
    config.head_size = 8;
    config.context = 32;
    if (mix.expert > 1) {
      config.experts = 4;
      config.top_k = 2;
      config.expert_hidden = config.width;
    }
    ts::TrainOptions options = silent(1);
    options.batch = 4 * mix.data;
    ts::Layout now;
    now.data = mix.data;
    now.tensor = mix.tensor;
    now.pipeline = mix.pipeline;
    now.expert = mix.expert;
    now.microbatches = mix.microbatches;
    now.zero = mix.zero;
    options.machine = ts::machine("tpu-v5e", {now.devices()});
    const auto peak = [&](const ts::Layout& layout) {
      options.layout = layout;
      ts::Transformer model(config, 1);
      ts::detail::Trainer trainer(model, small_text().train(), options);
      trainer.step(0);
      ts::DeviceMemory most = trainer.peaks()[0];
      for (const ts::DeviceMemory& one : trainer.peaks()) {
        most = one.total > most.total ? one : most;
      }
      return most;
    };
    const ts::DeviceMemory before = peak(now);
    CHECK(ts::estimated_bytes(before, now, now, config, options.batch) ==
          doctest::Approx(before.total));
    for (const int change : {1, 2, 3}) {  // microbatches, recomputation, both and ZeRO 3
      ts::Layout then = now;
      then.zero = change == 3 && mix.data > 1 ? ts::Zero::parameters : now.zero;
      then.recompute = change != 1 ? ts::Recompute::full : ts::Recompute::none;
      then.microbatches = change == 1 || change == 3 ? 2 * now.microbatches : now.microbatches;
      const double about = ts::estimated_bytes(before, now, then, config, options.batch);
      const std::string text = now.text() + " -> " + then.text();
      CAPTURE(text);
      CHECK(peak(then).total / about > 0.83);
      CHECK(peak(then).total / about < 1.2);
    }
  }
}

#endif

TEST_CASE("out of memory: the ledger and what would fit") {
  const double gb = 1e9;
  ts::ModelConfig c = small_model(41);
  c.layers = 32;
  c.context = 4096;
  c.width = 4096;
  ts::Machine machine = ts::machine("tpu-v5e", {8});
  machine.chip.memory_bytes = 16 * gb;
  ts::Layout layout;
  layout.data = 4;
  layout.pipeline = 2;
  layout.microbatches = 2;
  ts::DeviceMemory small;
  small.total = 10 * gb;
  const auto error = [&](const ts::DeviceMemory& needs) {
    ts::List<ts::DeviceMemory> all(std::vector<ts::DeviceMemory>(8, small));
    all[6] = needs;
    return error_of([&] { ts::check_memory(layout, c, 16, machine, all); });
  };
  const auto fit_of = [](const std::string& text) {
    return text.substr(text.find("would fit: ") + 11);
  };
  CHECK(error(small) == "no error");
  ts::DeviceMemory m;
  m.parameters = 2 * gb;
  m.gradients = 2 * gb;
  m.optimizer = 4 * gb;
  m.activations = 9 * gb;
  m.buffers = 0.2 * gb;
  m.total = 17.2 * gb;
  CHECK(error(m) ==
        "train: device 6 (pipeline rank 1) needs 17.2 GB, the chip tpu-v5e has 16 GB: parameters "
        "2 GB, gradients 2 GB, optimizer 4 GB, activations 9 GB, logits 0 B, buffers 200 MB; would "
        "fit: zero = Zero::optimizer (about 14.2 GB), or recompute = Recompute::full (about 12 "
        "GB), or microbatches = 4 (about 13.9 GB)");
  m.activations = 30 * gb;
  m.optimizer = 8 * gb;
  m.total = 42.2 * gb;
  CHECK(fit_of(error(m)) ==
        "zero = Zero::parameters and recompute = Recompute::full and microbatches = 4 (about 6.59 "
        "GB)");
  m.buffers = 40 * gb;
  m.total = 82 * gb;
  CHECK(fit_of(error(m)) ==
        "nothing on as many devices; more of tensor or pipeline takes less each");
  layout = ts::Layout();
  layout.tensor = 8;
  layout.recompute = ts::Recompute::full;
  CHECK(fit_of(error(m)) ==
        "nothing on as many devices; more of tensor or pipeline takes less each");
  machine.chip.memory_bytes = 0;  // not known
  CHECK(error(m) == "no error");
}

TEST_CASE("a loss scale that is no number above 0 is refused before a step") {
  ts::TrainOptions options;
  options.steps = 1;
  options.out = nullptr;
  options.format = ts::DType::f16;
  options.loss_scaler.scale = std::numeric_limits<double>::quiet_NaN();
  ts::Transformer model(ts::config("nano"), 1);
  const ts::Text text = ts::make_text("text", std::string(2000, 'a') + "b");
  CHECK(error_of([&] { ts::train(model, text, options); }) ==
        "train: loss_scaler has scale nan, smallest 1, largest 16777216, growth_steps 2000; finite "
        "numbers above 0 and at least 1 step are right");
}
