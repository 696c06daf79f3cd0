// Closed forms beside the executor: model states, activations, FLOPs by convention, loss scaling,
// goodput. Published numbers are held to all their digits.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

TEST_CASE("model states: ZeRO's example of 7.5 billion parameters over 64 devices") {
  const ts::StateParts mixed = ts::state_parts(ts::StateBytes::mixed);
  const auto gigabytes = [&](ts::Zero zero) {
    return ts::model_states(7.5e9, mixed, zero, 64).total() / 1e9;
  };
  CHECK(gigabytes(ts::Zero::none) == 120);
  CHECK(ts::format_fixed(gigabytes(ts::Zero::optimizer), 1) == "31.4");
  CHECK(ts::format_fixed(gigabytes(ts::Zero::gradients), 1) == "16.6");
  CHECK(ts::format_fixed(gigabytes(ts::Zero::parameters), 1) == "1.9");
  for (const double p : {1.0, 7.5e9}) {
    for (const std::int64_t d : {1, 2, 64}) {
      const double share = p / static_cast<double>(d);
      const auto total = [&](ts::Zero zero) { return ts::model_states(p, mixed, zero, d).total(); };
      CHECK(total(ts::Zero::none) == 16 * p);
      CHECK(total(ts::Zero::optimizer) == 4 * p + 12 * share);
      CHECK(total(ts::Zero::gradients) == 2 * p + 14 * share);
      CHECK(total(ts::Zero::parameters) == 16 * share);
      const ts::StateParts megatron = ts::state_parts(ts::StateBytes::mixed_f32_gradients);
      CHECK(ts::model_states(p, megatron, ts::Zero::none, d).total() == 18 * p);
      CHECK(ts::model_states(p, megatron, ts::Zero::optimizer, d).total() == 6 * p + 12 * share);
    }
  }
  const ts::ModelStates ours =
      ts::model_states(100, ts::state_parts(ts::StateBytes::f32), ts::Zero::none, 1);
  CHECK(ours.weights == 400);
  CHECK(ours.gradients == 400);
  CHECK(ours.optimizer == 800);
  CHECK(ts::state_table(7.5e9, 64).csv() ==
        "convention,weights,gradients,master,moments,none (B),ZeRO-1 (B),ZeRO-2 (B),ZeRO-3 (B)\n"
        "f32,4,4,0,8,120000000000,60937500000,31406250000,1875000000\n"
        "book,2,0,0,8,75000000000,15937500000,15937500000,1171875000\n"
        "mixed,2,2,4,8,120000000000,31406250000,16640625000,1875000000\n"
        "\"mixed, f32 gradients\",2,4,4,8,135000000000,46406250000,16875000000,2109375000\n");
  CHECK(error_of([] { ts::model_states(8, ts::StateParts(), ts::Zero::none, 0); }) ==
        "model_states: 8 parameters over 0 devices; 0 or more over at least 1 are right");
}

TEST_CASE("activations: the six rows of the table") {
  ts::ActivationShape x;
  x.sequence = 2048;
  x.batch = 4;
  x.width = 6144;
  x.heads = 64;
  const double s = x.sequence, b = x.batch, h = x.width, a = x.heads;
  CHECK(ts::layer_activation_bytes(x) == doctest::Approx(s * b * h * (34 + 5 * a * s / h)));
  for (const double t : {1.0, 2.0, 8.0}) {
    x.tensor = t;
    x.recompute = ts::Recompute::none;
    x.sequence_parallel = false;
    CHECK(ts::layer_activation_bytes(x) ==
          doctest::Approx(s * b * h * (10 + 24 / t + 5 * a * s / (h * t))));
    x.recompute = ts::Recompute::selective;
    CHECK(ts::layer_activation_bytes(x) == s * b * h * (10 + 24 / t));
    x.recompute = ts::Recompute::full;
    CHECK(ts::layer_activation_bytes(x) == 2 * s * b * h);
    x.sequence_parallel = true;
    CHECK(ts::layer_activation_bytes(x) == 2 * s * b * h / t);
    x.recompute = ts::Recompute::selective;
    CHECK(ts::layer_activation_bytes(x) == 34 * s * b * h / t);
    x.recompute = ts::Recompute::none;
    CHECK(ts::layer_activation_bytes(x) == doctest::Approx(s * b * h / t * (34 + 5 * a * s / h)));
    CHECK(ts::outer_activation_bytes(x, 51200, 4).embedding == s * b * h * 4 / t);
    CHECK(ts::outer_activation_bytes(x, 51200).head ==
          doctest::Approx(4 * s * b * h / t * (1 + 51200 / h)));
  }
  x.tensor = 0;
  CHECK(error_of([&] { ts::layer_activation_bytes(x); }) ==
        "layer_activation_bytes: sequence 2048, batch 4, width 6144, heads 64, tensor 0; each must "
        "be at least 1");
  CHECK(error_of([&] { ts::outer_activation_bytes(x, 1); }) ==
        "outer_activation_bytes: sequence 2048, batch 4, width 6144, heads 64, tensor 0; each must "
        "be at least 1");
  CHECK(error_of([&] { ts::first_stage_activation_bytes(x, 8, 0); }) ==
        "first_stage_activation_bytes: 8 layers, 0 stages, 1 chunks a device; each must be at "
        "least 1");
}

// Figure 1 of arXiv 2205.05198, as Calculon stores it: parameters and optimizer at 18 bytes,
// activations without recomputation under tensor parallelism, and selective with sequences cut.
TEST_CASE("activations: the twelve GiB values of 22B, 175B, 530B and 1T") {
  const struct {
    double layers, width, heads, batch;
    std::int64_t stages, chunks;
    double states, none, selective;
  } models[] = {{48, 6144, 64, 4, 1, 1, 45.5625, 59.25, 9.5625},
                {96, 12288, 96, 1, 8, 3, 45.5625, 66.84375, 12.3515625},
                {105, 20480, 128, 1, 35, 3, 31.640625, 114.0234375, 23.076171875},
                {128, 25600, 160, 1, 64, 1, 32.958984375, 131.25, 26.5625}};
  const double gib = 1024.0 * 1024.0 * 1024.0;
  for (const auto& m : models) {
    ts::ActivationShape x;
    x.sequence = 2048;
    x.batch = m.batch;
    x.width = m.width;
    x.heads = m.heads;
    x.tensor = 8;
    const double parameters =
        12 * m.layers * m.width * m.width / (8 * static_cast<double>(m.stages));
    const ts::StateParts parts = ts::state_parts(ts::StateBytes::mixed_f32_gradients);
    CHECK(ts::model_states(parameters, parts, ts::Zero::none, 1).total() / gib == m.states);
    CHECK(ts::first_stage_activation_bytes(x, m.layers, m.stages, m.chunks) / gib == m.none);
    x.sequence_parallel = true;
    x.recompute = ts::Recompute::selective;
    CHECK(ts::first_stage_activation_bytes(x, m.layers, m.stages, m.chunks) / gib == m.selective);
  }
}

TEST_CASE("FLOPs by convention: published MFU, HFU and TFLOP/s") {
  using ts::MegatronFlops;
  // arXiv 2205.05198, table 5: model and hardware FLOPs utilisation of the same runs.
  const struct {
    double layers, width, mfu, hfu;
  } runs[] = {{48, 6144, 41.5, 43.7},
              {96, 12288, 51.4, 52.8},
              {105, 20480, 56.0, 57.0},
              {128, 25600, 56.3, 57.0}};
  for (const auto& run : runs) {
    const auto flops = [&](MegatronFlops form) {
      return ts::megatron_flops_per_token(form, run.layers, run.width, 2048, 51200);
    };
    const double published = flops(MegatronFlops::megatron72_core_published);
    const double once = flops(MegatronFlops::megatron72_core_once);
    CHECK(std::fabs(run.mfu * published / flops(MegatronFlops::megatron72) - run.hfu) <= 0.1);
    CHECK(run.mfu * once / flops(MegatronFlops::megatron72) < run.hfu);
  }
  // Counting the core once: 42.2, 51.9, 56.3, 56.5.
  const char* const once[] = {"42.2", "51.9", "56.3", "56.5"};
  for (int i = 0; i < 4; ++i) {
    const auto flops = [&](MegatronFlops form) {
      return ts::megatron_flops_per_token(form, runs[i].layers, runs[i].width, 2048, 51200);
    };
    CHECK(ts::format_fixed(runs[i].mfu * flops(MegatronFlops::megatron72_core_once) /
                               flops(MegatronFlops::megatron72),
                           1) == once[i]);
  }
  // BLOOM: 72 layer slots (70, and one for each embedding) of 14336, 2048 sequences on 384 devices
  // in 121.48 s: its log says 132.71 TFLOP/s.
  const double bloom =
      ts::megatron_flops_per_token(MegatronFlops::megatron96, 72, 14336, 2048, 250880);
  CHECK(ts::format_fixed(bloom * 2048 * 2048 / (384 * 121.48) / 1e12, 2) == "132.71");

  // Log lines of MaxText and Megatron-Bridge: tokens/s and TFLOP/s of a device, without the norms.
  const auto teraflops = [](const char* name, double tokens_per_second,
                            ts::AttentionFlops counted) {
    const ts::ModelConfig c = ts::config(name);
    const auto norms = static_cast<double>((2 * c.layers + 1) * c.width);
    return tokens_per_second * (ts::training_flops_per_token(c, 8192, counted) - 6 * norms) / 1e12;
  };
  CHECK(ts::format_fixed(teraflops("llama3-70b", 960.248, ts::AttentionFlops::full), 3) ==
        "462.297");
  CHECK(ts::format_fixed(teraflops("llama3-70b", 2686.98, ts::AttentionFlops::causal), 2) ==
        "1207.05");
  CHECK(ts::format_fixed(teraflops("llama3.1-405b", 1, ts::AttentionFlops::full), 3) == "2.625");
  CHECK(ts::format_fixed(teraflops("llama3.1-405b", 1, ts::AttentionFlops::causal), 3) == "2.524");

  // The forms of a config are Megatron's when it is such a GPT, up to its norms.
  ts::ModelConfig gpt;
  gpt.layers = 48;
  gpt.width = 6144;
  gpt.heads = gpt.kv_heads = 64;
  gpt.head_size = 96;
  gpt.hidden = 4 * 6144;
  gpt.vocabulary = 51200;
  gpt.context = 2048;
  gpt.block_norms = 0;
  const double last_norm = 6 * 6144.0;
  const auto megatron = [](MegatronFlops form) {
    return ts::megatron_flops_per_token(form, 48, 6144, 2048, 51200);
  };
  const auto full = ts::AttentionFlops::full;
  CHECK(ts::training_flops_per_token(gpt, 2048, full) - last_norm ==
        doctest::Approx(megatron(MegatronFlops::megatron72)).epsilon(1e-12));
  CHECK(ts::hardware_flops_per_token(gpt, 2048, full, ts::Recompute::full) - last_norm * 4 / 3 ==
        doctest::Approx(megatron(MegatronFlops::megatron96)).epsilon(1e-12));
  CHECK(ts::hardware_flops_per_token(gpt, 2048, full, ts::Recompute::selective) - last_norm ==
        doctest::Approx(megatron(MegatronFlops::megatron72_core_once)).epsilon(1e-12));
  CHECK(ts::hardware_flops_per_token(gpt, 2048, full, ts::Recompute::none) ==
        ts::training_flops_per_token(gpt, 2048, full));
  const ts::Table table = ts::flops_table(gpt, 2048);
  CHECK(table.rows.size() == 14);
  CHECK(table.rows[0][0] == "6N");
  CHECK(table.rows[0][2] == "1.000");
  CHECK(table.rows[13][0] == "megatron72, core as published");
}

TEST_CASE("loss scaling: doubles after good steps, halves and skips on overflow") {
  ts::LossScaler scaler;
  scaler.growth_steps = 3;
  CHECK(scaler.update(true));
  CHECK(scaler.update(true));
  CHECK(scaler.scale == 65536);
  CHECK(scaler.update(true));
  CHECK(scaler.scale == 131072);
  CHECK(scaler.update(true));
  CHECK(scaler.update(true));
  CHECK(!scaler.update(false));  // and the count begins again
  CHECK(scaler.scale == 65536);
  CHECK(scaler.skipped == 1);
  CHECK(scaler.update(true));
  CHECK(scaler.update(true));
  CHECK(scaler.scale == 65536);
  CHECK(scaler.update(true));
  CHECK(scaler.scale == 131072);
  for (int i = 0; i < 100; ++i) {
    CHECK(scaler.update(true));
  }
  CHECK(scaler.scale == 16777216);
  while (scaler.scale > 1) {
    CHECK(!scaler.update(false));
  }
  CHECK(error_of([&] { scaler.update(false); }) ==
        "LossScaler: gradients are not finite at a loss scale of 1, the smallest is 1; the model "
        "diverges whatever the scale: try a smaller learning_rate");
}

// What scaling is for: a gradient below fp16's smallest number survives, one that is too large is
// found.
TEST_CASE("loss scaling: small fp16 gradients survive") {
  ts::LossScaler scaler;
  const float gradient = 1e-8f;  // fp16 has nothing between 0 and 6e-8
  CHECK(ts::round_to(gradient, ts::DType::f16) == 0.0f);
  const auto factor = static_cast<float>(scaler.scale);
  const float scaled = ts::round_to(gradient * factor, ts::DType::f16);
  CHECK(scaled / factor == doctest::Approx(1e-8).epsilon(1e-3));
  int tries = 0;
  for (bool finite = false; !finite; ++tries) {
    const float large = ts::round_to(20.0f * static_cast<float>(scaler.scale), ts::DType::f16);
    finite = ts::detail::is_finite(static_cast<double>(large));
    CHECK(scaler.update(finite) == finite);
  }
  CHECK(scaler.scale == 2048);  // 20 x 2048 is below fp16's 65504
  CHECK(tries == 6);
}

TEST_CASE("goodput: Llama 3's failures, and what they mean for larger machines") {
  ts::FaultyJob job;
  job.devices = 16384;
  job.device_hours_per_failure = 54 * 24.0 * 16384 / 419;  // 419 interruptions in 54 days
  CHECK(ts::format_fixed(ts::mean_time_between_failures(job) / 3600, 1) == "3.1");
  CHECK(job.device_hours_per_failure == doctest::Approx(50000).epsilon(0.02));
  job.devices = 100000;
  CHECK(ts::format_fixed(ts::mean_time_between_failures(job) / 60, 0) == "30");
  job.devices = 16384;
  job.save_seconds = 30;
  const double young = ts::young_interval(job);
  CHECK(young == std::sqrt(2 * 30 * ts::mean_time_between_failures(job)));
  CHECK(ts::format_seconds(young) == "13.6 min");
}

TEST_CASE("goodput: Daly's interval is the best, Young's nearly") {
  for (const double save : {1.0, 30.0, 300.0}) {
    for (const double devices : {1000.0, 16384.0, 100000.0}) {
      CAPTURE(save);
      CAPTURE(devices);
      ts::FaultyJob job;
      job.devices = devices;
      job.save_seconds = save;
      double best = 0, at = 0;
      for (double interval = 5; interval < 2e5; interval *= 1.001) {
        const double goodput = ts::expected_goodput(job, interval);
        at = goodput > best ? interval : at;
        best = goodput > best ? goodput : best;
      }
      CHECK(ts::daly_interval(job) == doctest::Approx(at).epsilon(0.01));
      CHECK(ts::expected_goodput(job, ts::daly_interval(job)) >= best * (1 - 1e-5));
      CHECK(ts::expected_goodput(job, ts::young_interval(job)) >= best * 0.99);
    }
  }
  ts::FaultyJob slow;  // saves longer than the time between failures
  slow.devices = 1e6;
  slow.save_seconds = 1000;
  CHECK(ts::daly_interval(slow) == ts::mean_time_between_failures(slow));
  slow.save_seconds = 0;
  CHECK(ts::young_interval(slow) == 0);
}

TEST_CASE("goodput: a simulated job spends its time as the formula says") {
  ts::FaultyJob job;
  job.devices = 100000;
  job.save_seconds = 30;
  job.restart_seconds = 600;
  job.step_seconds = 5;
  for (const double interval : {100.0, 330.0, 1800.0}) {
    CAPTURE(interval);
    const ts::GoodputRun run = ts::simulate_goodput(job, interval, 20000);
    CHECK(run.checkpoints == 20000);
    CHECK(run.useful == 20000 * interval);
    CHECK(run.saving == 20000 * 30);
    const double mean = ts::mean_time_between_failures(job);
    const auto failures = static_cast<double>(run.failures);
    CHECK(std::fabs(failures - run.total() / mean) <= 4 * std::sqrt(failures));
    // The relative deviation of the total is about that of the number of failures.
    const double expected = ts::expected_goodput(job, interval);
    CHECK(std::fabs(run.goodput() / expected - 1) <= 4 / std::sqrt(failures));
    const ts::GoodputRun same = ts::simulate_goodput(job, interval, 20000);
    CHECK(same.total() == run.total());
    CHECK(ts::simulate_goodput(job, interval, 20000, 2).total() != run.total());
  }
  const ts::GoodputRun one = ts::simulate_goodput(job, 1, 3);  // one step at least
  CHECK(one.useful == 15);
  ts::FaultyJob safe;
  safe.device_hours_per_failure = 1e15;
  const ts::GoodputRun run = ts::simulate_goodput(safe, 90, 10);
  CHECK(run.csv() ==
        "time,seconds,share (%)\nuseful,900,90\nlost,0,0\nsaving,100,10\n"
        "restarting,0,0\ntotal,1000,100\n");
  CHECK(ts::expected_goodput(safe, 90) == doctest::Approx(0.9));
}

TEST_CASE("goodput: of the longest and shortest times that are accepted too it is a share") {
  const std::vector<double> times = {1e-100, 1e-40, 1e-3, 1, 1e7, 1e60, 1e100};
  int cases = 0, refused = 0;
  for (const double devices : {1.0, 1e6, 1e100}) {
    for (const double hours : times) {
      for (double save : times) {
        save = save < 1e-50 ? 0 : save;
        for (const double restart : times) {
          ts::FaultyJob job;
          job.devices = devices;
          job.device_hours_per_failure = hours;
          job.save_seconds = save;
          job.restart_seconds = restart;
          const double mean = ts::mean_time_between_failures(job);
          bool good = mean > 0 && std::isfinite(mean);
          good = good && std::isfinite(ts::young_interval(job)) && ts::daly_interval(job) >= 0 &&
                 ts::daly_interval(job) <= 2 * mean;
          for (const double interval : {1e-300, 1e-100, 1.0, 1e100, 1e308}) {
            const double goodput = ts::expected_goodput(job, interval);
            good = good && goodput >= 0 && goodput <= 1;
          }
          CHECK_MESSAGE(good, devices << " " << hours << " " << save << " " << restart);
          ++cases;
        }
      }
    }
  }
  CHECK(cases == 3 * 7 * 7 * 7);
  for (const double wrong : {1e308, 1e-300, std::nan("")}) {
    for (double ts::FaultyJob::*const field :
         {&ts::FaultyJob::device_hours_per_failure, &ts::FaultyJob::save_seconds,
          &ts::FaultyJob::restart_seconds}) {
      ts::FaultyJob job;
      job.*field = wrong;
      refused +=
          error_of([&] { ts::young_interval(job); }).find("1e-100 to 1e+100") != std::string::npos;
    }
  }
  CHECK(refused == 9);
  ts::FaultyJob safe;  // the mean is so long that a stretch's share of it is no number
  safe.device_hours_per_failure = 1e100;
  safe.save_seconds = 0;
  safe.restart_seconds = 0;
  CHECK(ts::expected_goodput(safe, 1e-300) == 1);
}

TEST_CASE("FLOPs by convention: sizes that are none are refused") {
  using ts::AttentionFlops;
  const auto megatron = [](double layers, double context) {
    return error_of([&] {
      ts::megatron_flops_per_token(ts::MegatronFlops::megatron72, layers, 4096, context, 51200);
    });
  };
  CHECK(megatron(std::nan(""), 2048) ==
        "megatron_flops_per_token: layers nan, width 4096, context 2048, vocabulary 51200; finite "
        "numbers of 1 or more are right");
  CHECK(megatron(32, -1) ==
        "megatron_flops_per_token: layers 32, width 4096, context -1, vocabulary 51200; finite "
        "numbers of 1 or more are right");
  CHECK(megatron(32, 2048) == "no error");
  CHECK(error_of([] { ts::keys_seen(std::nan(""), 0, AttentionFlops::full); }) ==
        "keys_seen: context is nan, window 0; a finite context of 1 or more, a window of 0 (none) "
        "or more are right");
  CHECK(error_of([] { ts::keys_seen(0, 0, AttentionFlops::causal); }) ==
        "keys_seen: context is 0, window 0; a finite context of 1 or more, a window of 0 (none) "
        "or more are right");
  CHECK(error_of([] { ts::keys_seen(8, -1, AttentionFlops::causal); }) ==
        "keys_seen: context is 8, window -1; a finite context of 1 or more, a window of 0 (none) "
        "or more are right");
  const ts::ModelConfig model = ts::config("llama3-8b");
  CHECK(error_of([&] {
          ts::more_tokens_flops_per_token(model, 8192, AttentionFlops::causal, -1);
        }) == "more_tokens_flops_per_token: more_tokens is -1; 0 or more is right");
  CHECK(ts::more_tokens_flops_per_token(model, 8192, AttentionFlops::causal, 0) == 0);
}

TEST_CASE("goodput: what cannot be says so") {
  ts::FaultyJob job;
  job.devices = 0;
  CHECK(error_of([&] { ts::young_interval(job); }) ==
        "mean_time_between_failures: 0 devices, 50000 device-hours a failure, steps of 1 s, saves "
        "of 10 s, restarts of 300 s; 1 to 1e+100 devices and times from 1e-100 to 1e+100 (save and "
        "restart may be 0) are right");
  job.devices = 1;
  CHECK(error_of([&] { ts::expected_goodput(job, 0); }) ==
        "expected_goodput: a checkpoint every 0 s; a time above 0 is right");
  CHECK(error_of([&] { ts::simulate_goodput(job, -1, 1); }) ==
        "simulate_goodput: a checkpoint every -1 s; a time above 0 is right");
  CHECK(error_of([&] { ts::simulate_goodput(job, 10, 0); }) ==
        "simulate_goodput: 0 checkpoints; at least 1 is right");
  job.devices = 5e6;
  job.restart_seconds = 3600;
  CHECK(error_of([&] { ts::simulate_goodput(job, 10, 1); }) ==
        "simulate_goodput: 10 s of steps, saves of 10 s, restarts of 3600 s, a failure every 36 s; "
        "hardly any would be done: at most 12 times the latter in all is right");
  // A failure comes within 17 times the mean at the latest: what takes longer never ended.
  job.devices = 1;
  job.device_hours_per_failure = 1;
  job.restart_seconds = 0;
  CHECK(error_of([&] { ts::simulate_goodput(job, 20 * 3600, 1); }) ==
        "simulate_goodput: 72000 s of steps, saves of 10 s, restarts of 0 s, a failure every 3600 "
        "s; hardly any would be done: at most 12 times the latter in all is right");
  job.restart_seconds = 6 * 3600;
  const ts::GoodputRun slow = ts::simulate_goodput(job, 5 * 3600, 3);
  CHECK(slow.checkpoints == 3);
  CHECK(slow.failures > 1000);
}
