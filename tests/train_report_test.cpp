#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "small_training.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

#if !defined(TINYSCALE_NO_THREADS)

namespace {

// Sizes that every number of devices here divides, so that ring's bytes are the textbook's.
ts::ModelConfig model() {
  ts::ModelConfig c = ts::config("nano");
  c.layers = 4;
  c.width = 32;
  c.heads = c.kv_heads = 4;
  c.head_size = 8;
  c.hidden = 128;
  c.context = 16;
  c.vocabulary = 64;
  c.bias = false;
  return c;
}

// Links that cost nothing that a sum of times would show.
ts::Machine free_links(std::int64_t chips) {
  ts::Machine machine = ts::machine("h100", {1, chips});
  for (ts::Links& links : machine.links) {
    links.latency = 1e-18;
    links.bandwidth = ts::Bandwidth::one_way(1e24);
  }
  return machine;
}

struct OneStep {
  ts::StepReport report;
  ts::Shared<const ts::MeshRun> run;
};

ts::TrainOptions step_options(const ts::Layout& layout, const ts::Machine& machine) {
  ts::TrainOptions options;
  options.steps = 1;
  options.batch = 16;
  options.out = nullptr;
  options.eval_every = 0;
  options.check_steps = 0;
  options.machine = machine;
  options.layout = layout;
  options.layout.algorithm = ts::Algorithm::ring;
  return options;
}

OneStep one_step(const ts::Layout& layout, const ts::Machine& machine,
                 const ts::ModelConfig& config = model()) {
  ts::Transformer m(config, 1);
  ts::TrainReport report = ts::train(m, small_text(), step_options(layout, machine));
  return {report.step, report.last_step};
}
OneStep one_step(const ts::Layout& layout) {
  return one_step(layout, ts::machine("h100", {1, layout.devices()}));
}

void check_exact(const ts::StepReport& report) {
  for (const ts::Comparison* rows : {&report.sent, &report.work, &report.memory}) {
    for (const ts::ReportRow& row : rows->rows) {
      CAPTURE(row.name);
      CHECK(row.counted == row.predicted);
    }
  }
}

// Bytes by one kind of collective over those axes, of all devices.
double counted(const ts::StepReport& report, const std::string& what) {
  double bytes = 0;
  for (const ts::ReportRow& row : report.sent.rows) {
    bytes += row.unit == "B" && row.name == what ? row.counted : 0;
  }
  return bytes;
}
double held(const ts::StepReport& report, const std::string& what) {
  for (const ts::ReportRow& row : report.memory.rows) {
    if (row.name == what) {
      return row.counted;
    }
  }
  return -1;
}

}  // namespace

TEST_CASE("data parallelism and ZeRO send 2P, 2P, 2P and 3P, and hold 16P, 8P + 8P/d, .. bytes") {
  const double p = static_cast<double>(model().parameters());
  for (const int d : {2, 4, 8}) {
    CAPTURE(d);
    const double share = (d - 1.0) / d * 4 * d;  // of all devices, in bytes of a number
    ts::Layout layout;
    layout.data = d;
    const ts::StepReport none = one_step(layout).report;
    check_exact(none);
    CHECK(counted(none, "all_reduce over data") == 2 * (p + 2) * share);  // loss and norm too
    CHECK(held(none, "parameters") == 4 * p);
    CHECK(held(none, "gradients before the update") == 4 * p);
    CHECK(held(none, "optimizer") == 8 * p);
    layout.zero = ts::Zero::optimizer;
    const ts::StepReport one = one_step(layout).report;
    check_exact(one);
    CHECK(counted(one, "reduce_scatter over data") == p * share);
    CHECK(counted(one, "all_gather over data") == p * share);
    CHECK(held(one, "parameters") == 4 * p);
    CHECK(held(one, "gradients before the update") == 4 * p);
    CHECK(held(one, "optimizer") == 8 * p / d);
    layout.zero = ts::Zero::gradients;
    const ts::StepReport two = one_step(layout).report;
    check_exact(two);
    CHECK(counted(two, "reduce_scatter over data") == p * share);
    CHECK(counted(two, "all_gather over data") == p * share);
    CHECK(held(two, "gradients before the update") == 4 * p / d);
    CHECK(held(two, "optimizer") == 8 * p / d);
    layout.zero = ts::Zero::parameters;
    const ts::StepReport three = one_step(layout).report;
    check_exact(three);
    const double table = static_cast<double>(model().vocabulary * model().width);  // used twice
    CHECK(counted(three, "reduce_scatter over data") == p * share);
    CHECK(counted(three, "all_gather over data") == 2 * (p + table) * share);
    CHECK(held(three, "parameters") == 4 * p / d);
    CHECK(held(three, "gradients before the update") == 4 * p / d);
    CHECK(held(three, "optimizer") == 8 * p / d);
  }
}

TEST_CASE("tensor parallelism sends 8 b s h (t-1)/t a layer and microbatch, cut over tokens too") {
  const ts::ModelConfig c = model();
  for (const int t : {2, 4}) {
    for (const int m : {1, 2}) {
      for (const bool sequence : {false, true}) {
        for (const auto again : {ts::Recompute::none, ts::Recompute::full}) {
          CAPTURE(t);
          CAPTURE(m);
          CAPTURE(sequence);
          ts::Layout layout;
          layout.tensor = t;
          layout.microbatches = m;
          layout.sequence_parallel = sequence;
          layout.recompute = again;
          const ts::StepReport report = one_step(layout).report;
          check_exact(report);
          const double tokens = 16.0 / m * static_cast<double>(c.context);
          const double wide = tokens * static_cast<double>(c.width);
          const bool full = again == ts::Recompute::full;
          const double layers = (full ? 12 : 8) * wide * static_cast<double>(c.layers * m);
          const double outside = (full ? 3 : 2) * 2 * wide * m;  // embedding and head
          const double share = (t - 1.0) / t * 4 * t;
          const double loss = 6 * tokens * m;
          double counts = 0;
          for (const char* const what : {"all_reduce", "all_gather", "reduce_scatter"}) {
            counts += counted(report, std::string(what) + " over tensor");
          }
          double small = 2 * 2 * share;  // loss and norm
          if (sequence) {                // gradients of what every device holds
            double whole = 0;
            for (const ts::Parameter& p : ts::Transformer(c, 1).parameters) {
              whole += p.split == ts::Split::whole ? static_cast<double>(p.value.count()) : 0;
            }
            small += 2 * whole * share;
          }
          // Recomputed, an embedding sends forward again, but its backward pass nothing.
          const double recomputed = full ? (sequence ? 2.5 : 3.0) / 3.0 : 1.0;
          CHECK(counts - small ==
                doctest::Approx((layers + loss) * share + outside * recomputed * share)
                    .epsilon(full ? 0.02 : 1e-12));
        }
      }
    }
  }
}

TEST_CASE("where messages take no time the bubble is the schedule's, and (p-1)(F+B) for 1F1B") {
  for (const int p : {2, 4}) {
    for (const int m : {4, 8}) {
      for (int kind = 0; kind < 4; ++kind) {
        ts::Layout layout;
        layout.pipeline = p;
        layout.microbatches = m;
        layout.schedule = kind == 0   ? ts::one_forward_one_backward(p, m)
                          : kind == 1 ? ts::gpipe(p, m)
                          : kind == 2 ? ts::interleaved(p, m, 4 / p)
                                      : ts::zero_bubble_h1(p, m);
        CAPTURE(layout.text());
        const OneStep step = one_step(layout, free_links(p));
        check_exact(step.report);
        REQUIRE(step.report.bubble.rows.size() == static_cast<std::size_t>(p));
        double update = 0;  // ranks with more parameters are longer at it
        for (const ts::TimeShare& share : step.report.time) {
          update = share.name == "update" ? share.seconds : update;
        }
        for (const ts::ReportRow& row : step.report.bubble.rows) {
          CAPTURE(row.name);
          CHECK(std::fabs(row.counted - row.predicted) < 2 * update);
        }
      }
    }
  }
}

TEST_CASE("what is waited for and computed adds up to the step") {
  ts::Layout layout;
  layout.data = layout.tensor = layout.pipeline = 2;
  layout.microbatches = 4;
  layout.zero = ts::Zero::optimizer;
  const OneStep step = one_step(layout, ts::machine("tpu-v5e", {4, 2}));
  check_exact(step.report);
  double sum = 0;
  for (const ts::TimeShare& share : step.report.time) {
    CHECK(share.seconds > 0);
    sum += share.seconds;
  }
  CHECK(sum == doctest::Approx(step.report.seconds).epsilon(1e-9));
  CHECK(step.report.seconds == step.run->seconds);
  CHECK(step.report.mfu > 0);
  CHECK(step.report.mfu < step.report.hfu);  // scores are computed again for the backward pass
  double bounds = 0;
  sum = 0;
  for (const ts::ReportRow& row : step.report.times.rows) {  // the same as rows beside bounds
    sum += row.counted;
    bounds += row.predicted;
  }
  CHECK(sum == doctest::Approx(step.report.seconds).epsilon(1e-9));
  CHECK(bounds > 0);
  CHECK(step.report.devices.rows.size() == 8);
}

TEST_CASE("where all is waited for and nothing hidden, exposed times are those of the messages") {
  ts::Layout layout;
  layout.tensor = 4;
  const ts::StepReport report = one_step(layout).report;
  for (const ts::ReportRow& row : report.times.rows) {
    if (row.name == "exposed tensor") {
      CHECK(row.counted == doctest::Approx(row.predicted).epsilon(0.02));
    }
  }
}

TEST_CASE(
    "the report of 16 devices: short rows, a line of letters, all numbers as they are in csv") {
  ts::Layout layout;
  layout.data = layout.tensor = layout.pipeline = layout.context = 2;
  layout.microbatches = 4;
  layout.zero = ts::Zero::optimizer;
  ts::Transformer m(model(), 1);
  ts::TrainOptions options = step_options(layout, ts::machine("tpu-v5e", {16}));
  options.steps = 2;
  const ts::TrainReport many = ts::train(m, small_text(), options);
  check_exact(many.step);
  std::ostringstream out;
  out << many;
  const std::string all = out.str();
  std::size_t lines = 0, longest = 0, from = 0;
  for (std::size_t at = all.find('\n'); at != std::string::npos; at = all.find('\n', from)) {
    if (all.compare(from, 8, "letters:") != 0) {
      longest = std::max(longest, at - from);
    }
    from = at + 1;
    ++lines;
  }
  CHECK(lines < 120);
  CHECK(longest < 180);
  for (const char* const part :
       {"all_reduce over tensor ", "L m 8 b s h (t-1)/t\n", "letters: m 4 microbatches, b 2 seq",
        "rank 1: logits that do", "MFU, PaLM: 6 N + 12 L H K T", "HFU, counted on the devices",
        "all of its messages, none hidden and nobody late", "exposed data,context"}) {
    CAPTURE(part);
    CHECK(all.find(part) != std::string::npos);
  }
  const ts::Table rows = many.step.table();
  CHECK(rows.columns.size() == 4);
  CHECK(rows.rows.size() > 30);
  CHECK(many.step.csv().find("what,unit,predicted,counted or simulated\n") == 0);
  CHECK(many.step.csv().find("\"sent: reduce_scatter over data,context, B\",B,") !=
        std::string::npos);
  CHECK(many.step.json().find("\"what\": \"memory: rank 0: parameters\"") != std::string::npos);
  // Two layouts side by side: what and value of each, without the words that both titles share.
  ts::TrainOptions fewer = step_options(ts::Layout(), ts::machine("tpu-v5e", {2}));
  fewer.layout.data = 2;
  ts::Transformer other(model(), 1);
  const ts::Table both = ts::compare({many, ts::train(other, small_text(), fewer)});
  REQUIRE(both.columns.size() == 3);
  CHECK(both.columns[1].find("16 devices of tpu-v5e 16: data 2, tensor 2") == 0);
  CHECK(both.columns[2].find("2 devices of tpu-v5e 2: data 2, tensor 1") == 0);
  bool found = false;
  for (const std::vector<ts::Cell>& row : both.rows) {
    found = found || (row[0] == "  exposed tensor" && row[1] != "-" && row[2] == "-");
  }
  CHECK(found);
  CHECK(ts::compare({many.step, many.step}).columns.size() == 7);
}

TEST_CASE("every pipeline rank holds what its formula says, recomputed or not, in every schedule") {
  for (const auto again : {ts::Recompute::none, ts::Recompute::selective, ts::Recompute::full}) {
    for (int kind = 0; kind < 3; ++kind) {
      ts::Layout layout;
      layout.pipeline = 2;
      layout.microbatches = 4;
      layout.recompute = again;
      layout.schedule = kind == 0   ? ts::one_forward_one_backward(2, 4)
                        : kind == 1 ? ts::gpipe(2, 4)
                                    : ts::interleaved(2, 4, 2);
      CAPTURE(layout.text());
      const ts::StepReport report = one_step(layout).report;
      check_exact(report);
      CHECK(held(report, "rank 0: activations that wait for their backward pass") > 0);
      CHECK(held(report, "rank 0: logits that do") == -1);
      CHECK(held(report, "rank 1: logits that do") > 0);
    }
  }
}

TEST_CASE("MFU and HFU of a step are those of the named conventions") {
  for (const auto again : {ts::Recompute::none, ts::Recompute::selective, ts::Recompute::full}) {
    ts::Layout layout;
    layout.data = 2;
    layout.recompute = again;
    const ts::Machine machine = ts::machine("tpu-v5e", {2});
    const ts::StepReport report = one_step(layout, machine).report;
    check_exact(report);
    const ts::ModelConfig c = model();
    const double t = 16, tokens = 16 * t, width = 32;
    const double weights = 4.0 * (4 * width * width + 2 * width * 128) + 64 * width;
    const double model_flops = tokens * (6 * weights + 3 * 4 * 4 * (t / 2) * width);
    const double could = 2 * machine.chip.peak(ts::DType::f32) * report.seconds;
    // Norms have parameters that multiply nothing in a matmul: (2 L + 1) h.
    CHECK(report.mfu * could == doctest::Approx(model_flops).epsilon(0.02));
    // Counted: (T+1)/2 keys a token, and the scores once more in the backward pass.
    const double pairs = (t + 1) / 2 * width * 4;
    const double full = tokens * (2 * (weights - 64 * width) + 4 * pairs);
    const double extra = again == ts::Recompute::full        ? full
                         : again == ts::Recompute::selective ? tokens * 4 * pairs
                                                             : 0;
    CHECK(report.hfu * could ==
          doctest::Approx(tokens * (6 * weights + 14 * pairs) + extra).epsilon(1e-12));
    REQUIRE(report.use.rows.size() == 5);
    CHECK(report.use.title.find("use of the chips: FLOPs of a step over what 2 x tpu-v5e at ") ==
          0);
    CHECK(ts::six_n(c) > 0);
  }
}

TEST_CASE("windows: what is multiplied, sent and held is the plan's in every layout") {
  ts::ModelConfig c = model();
  c.global_every = 2;
  for (const std::int64_t window : {1, 3, 8, 11}) {
    c.window = window;
    for (int way = 0; way < 18; ++way) {
      ts::Layout layout;
      layout.recompute = static_cast<ts::Recompute>(way % 3);
      if (way < 9) {
        layout.context_parallel = static_cast<ts::ContextParallel>(way / 3);
        layout.context = 4;
      } else {
        (way / 3 == 3 ? layout.pipeline : way / 3 == 4 ? layout.tensor : layout.data) = 2;
      }
      layout.microbatches = layout.pipeline;
      CAPTURE(window);
      CAPTURE(way);
      check_exact(one_step(layout, ts::machine("h100", {1, layout.devices()}), c).report);
    }
  }
}

TEST_CASE("the plan of a step is had without running it") {
  ts::Layout layout;
  layout.data = 4;
  layout.zero = ts::Zero::parameters;
  layout.algorithm = ts::Algorithm::ring;
  const ts::Transformer m(model(), 1);
  const double p = static_cast<double>(model().parameters());
  const OneStep step = one_step(layout);
  double flops = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const ts::StepPlan plan =
        ts::plan_step(m, layout, step_options(layout, ts::machine("h100", {1, 4})), rank);
    CHECK(plan.parameters == p);  // 4 P / d bytes
    CHECK(plan.gradients == p);
    CHECK(plan.optimizer == 2 * p);
    CHECK(plan.matmul_flops() == step.run->counters(rank).matmul_flops);
    flops += plan.matmul_flops();
  }
  CHECK(flops == step.report.work.rows[0].counted);
}

TEST_CASE("a slow device, a slow link: what a step then takes") {
  ts::Layout layout;
  layout.data = 4;
  const ts::Machine machine = ts::machine("tpu-v5e", {4});
  const OneStep step = one_step(layout, machine);
  const double well = step.run->seconds;
  CHECK(step.run->with(ts::Faults().slow_device(1, 4)).seconds > well);
  CHECK(step.run->with(ts::Faults().slow_link(0, 1, 8)).seconds > well);
  ts::TrainOptions options = step_options(layout, machine);
  options.faults = ts::Faults().slow_device(1, 4);
  ts::Transformer m(model(), 1);
  CHECK(ts::train(m, small_text(), options).step.seconds ==
        step.run->with(ts::Faults().slow_device(1, 4)).seconds);
}

TEST_CASE("a dead device: who waits for it, and where") {
  const auto dead = [](const ts::Layout& layout) {
    ts::TrainOptions options = step_options(layout, ts::machine("tpu-v5e", {4}));
    options.faults = ts::Faults().dead_device(2);
    ts::Transformer m(model(), 1);
    try {
      ts::train(m, small_text(), options);
    } catch (const ts::Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  ts::Layout layout;
  layout.data = 4;
  CHECK(
      dead(layout) ==
      "time: device 2 is dead; device 0 waits in all_reduce([2048], sum, data) #1, device 1 waits "
      "in all_reduce([2048], sum, data) #1, device 3 waits in all_reduce([2048], sum, data) #1");
  layout = ts::Layout();
  layout.pipeline = 4;
  layout.microbatches = 4;
  CHECK(dead(layout) ==
        "time: device 2 is dead; device 0 waits in send #4 (1 -> 0), device 1 waits in send #3 (2 "
        "-> 1), device 3 waits in send #1 (2 -> 3)");
}

namespace {

// What the row of a collective says its number is made of.
std::string said(const ts::StepReport& report, const std::string& name) {
  for (const ts::ReportRow& row : report.sent.rows) {
    if (row.name == name && row.unit == "B") {
      return row.how;
    }
  }
  return "no row " + name;
}

}  // namespace

TEST_CASE("the formulas of a row add up to its number") {
  const ts::ModelConfig c = model();
  const double wide = 16.0 * static_cast<double>(c.context * c.width);  // b s h
  const double tokens = 16.0 * static_cast<double>(c.context), layers = double(c.layers);
  ts::Layout tensor;
  tensor.tensor = 2;
  ts::StepReport report = one_step(tensor).report;
  check_exact(report);
  CHECK(said(report, "all_reduce over tensor") ==
        "tensor parallel: m 2 b s h (t-1)/t, embedding + L m 8 b s h (t-1)/t + m 2 b s h (t-1)/t, "
        "head; loss: m 2 b s (t-1)/t + m 4 b s (t-1)/t; loss and norm: 4 (n-1)/n over all n "
        "devices");
  CHECK(counted(report, "all_reduce over tensor") ==
        2 * 4 * ((2 + 8 * layers + 2) * wide + 6 * tokens + 4) / 2);
  tensor.recompute = ts::Recompute::full;
  report = one_step(tensor).report;
  CHECK(
      said(report, "all_reduce over tensor").find("m 4 b s h (t-1)/t, embedding + L m 12 b s h") !=
      std::string::npos);
  CHECK(counted(report, "all_reduce over tensor") ==
        2 * 4 * ((4 + 12 * layers + 2) * wide + 6 * tokens + 4) / 2);
  tensor.sequence_parallel = true;
  report = one_step(tensor).report;
  CHECK(
      said(report, "all_gather over tensor") ==
      "tensor parallel: L m 6 b s h (t-1)/t + m b s h (t-1)/t, head + m b s h (t-1)/t, embedding");
  CHECK(counted(report, "all_gather over tensor") == 2 * 4 * (6 * layers + 2) * wide / 2);
  CHECK(said(report, "reduce_scatter over tensor") ==
        "tensor parallel: m 2 b s h (t-1)/t, embedding + L m 6 b s h (t-1)/t + m b s h (t-1)/t, "
        "head");
  CHECK(counted(report, "reduce_scatter over tensor") == 2 * 4 * (6 * layers + 3) * wide / 2);
  CHECK(said(report, "all_reduce over tensor") ==
        "loss: m 2 b s (t-1)/t + m 4 b s (t-1)/t; gradients: 2 P_t (t-1)/t; loss and norm: 4 "
        "(n-1)/n over all n devices");
  ts::Layout ring;
  ring.context = 2;
  ring.recompute = ts::Recompute::full;
  report = one_step(ring).report;
  CHECK(said(report, "permute over context") == "ring attention: L m 8 (c-1) b s h_kv");
  CHECK(counted(report, "permute over context") ==
        2 * 4 * layers * 8 * tokens / 2 * static_cast<double>(c.key_width()));
  ring.context_parallel = ts::ContextParallel::gathered;
  report = one_step(ring).report;
  CHECK(said(report, "all_gather over context").find("values: L m 4 (c-1) b s h_kv") !=
        std::string::npos);
  CHECK(said(report, "reduce_scatter over context").find("values: L m 2 (c-1) b s h_kv") !=
        std::string::npos);
  double p = 0;
  for (const ts::Parameter& parameter : ts::Transformer(c, 1).parameters) {
    p += static_cast<double>(parameter.value.count());
  }
  ts::Layout hybrid;
  hybrid.data = 4;
  hybrid.zero = ts::Zero::optimizer;
  hybrid.zero_devices = 2;
  report = one_step(hybrid).report;
  CHECK(said(report, "reduce_scatter over data_2") == "gradients: P (z-1)/z");
  CHECK(said(report, "all_gather over data_2") == "weights: P (z-1)/z");
  CHECK(said(report, "all_reduce over data_1") == "gradients of replicas: 2 P/z (r-1)/r");
  CHECK(counted(report, "all_gather over data_2") == 4 * 4 * p / 2);
  ts::Layout three;
  three.data = 4;
  three.zero = ts::Zero::parameters;
  report = one_step(three).report;
  REQUIRE(c.tied);
  CHECK(said(report, "all_gather over data") ==
        "weights: 2 m P (d-1)/d + 2 m V h (d-1)/d, the tied table again");
  CHECK(counted(report, "all_gather over data") ==
        4 * 4 * 2 * (p + static_cast<double>(c.vocabulary * c.width)) * 3 / 4);
  CHECK(said(report, "reduce_scatter over data") == "gradients: m P (d-1)/d");
}

TEST_CASE("windows: a ring's formula has the rounds that one reaches, in layers that have it") {
  ts::ModelConfig c = model();
  c.context = 32;
  c.window = 3;
  ts::Layout layout;
  layout.context = 8;
  for (const int global : {0, 2}) {
    c.global_every = global;
    const ts::StepReport report = one_step(layout, ts::machine("tpu-v5e", {8}), c).report;
    check_exact(report);
    CHECK(said(report, "permute over context") ==
          (global > 0 ? "ring attention: L_w m 6 R b s h_kv + L_g m 6 (c-1) b s h_kv"
                      : "ring attention: L_w m 6 R b s h_kv"));
  }
}

TEST_CASE("FLOPs of experts with few places are right on average, on one expert device too") {
  ts::ModelConfig c = model();
  c.experts = 4;
  c.top_k = 1;
  c.expert_hidden = 32;
  ts::Layout layout;
  layout.data = 2;
  ts::TrainOptions options = step_options(layout, ts::machine("h100", {1, 2}));
  for (const double capacity : {0.0, 0.5}) {
    options.experts.capacity_factor = capacity;
    ts::Transformer mixture(c, 1);
    const ts::StepReport report = ts::train(mixture, small_text(), options).step;
    const bool about = report.work.rows[0].name.find("about: ") == 0;
    CHECK(about == (capacity > 0));
  }
}

TEST_CASE("the report names the batch that was trained, also one that was left open") {
  ts::Layout layout;
  layout.data = 4;
  layout.microbatches = 2;
  ts::TrainOptions options = step_options(layout, ts::machine("h100", {1, 4}));
  options.batch = ts::TrainOptions().batch;  // 12, which 8 parts do not divide
  ts::Transformer m(model(), 1);
  CHECK(ts::train(m, small_text(), options).batch == 16);
  options.batch = 24;
  CHECK(ts::train(m, small_text(), options).batch == 24);
}

#endif
