// What a training step takes by cause: the bytes of each axis against what the executor sends for
// the same layout, the bubble against its closed form, and what faster links and more chips change.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

constexpr ts::DType f32 = ts::DType::f32;

// Sizes that all numbers of devices here divide.
ts::ModelConfig small_model(int experts = 0) {
  ts::ModelConfig c = ts::config("nano");
  c.layers = 4;
  c.width = 32;
  c.heads = c.kv_heads = 4;
  c.head_size = 8;
  c.hidden = 128;
  c.context = 16;
  c.vocabulary = 64;
  c.tied = false;
  c.experts = experts;
  c.top_k = experts > 0 ? 2 : 0;
  c.expert_hidden = experts > 0 ? 128 : 0;
  return c;
}

ts::StepJob small_job(const ts::ModelConfig& model) {
  ts::StepJob job;
  job.model = model;
  job.context = static_cast<double>(model.context);
  job.batch = 16;
  job.format = f32;
  job.gather_bytes = job.gradient_bytes = 4;
  return job;
}

// What the executor's busiest device sends for that reason in a step, around a ring.
double sent(const ts::ModelConfig& model, const ts::Layout& layout, const std::string& why) {
  ts::StepOptions options;
  options.batch = 16;
  const ts::Transformer whole(model, 1);
  double most = 0;
  for (const std::int64_t rank : {std::int64_t{0}, layout.devices() - 1}) {
    double bytes = 0;
    const ts::StepPlan plan = ts::plan_step(whole, layout, options, rank);
    for (const ts::PlannedCall& call : plan.calls) {
      if (call.why.rfind(why, 0) != 0) {
        continue;
      }
      double n = 1;
      for (const std::string& axis : call.axes) {
        n *= axis == "tensor"     ? static_cast<double>(layout.tensor)
             : axis == "context"  ? static_cast<double>(layout.context)
             : axis == "pipeline" ? static_cast<double>(layout.pipeline)
                                  : 1;
      }
      if (n == 1) {  // parts of data: data, or expert and the rest, zero and the rest
        const ts::detail::LayoutAxes axes = ts::detail::layout_axes(layout);
        for (const ts::MeshAxis& axis : axes.mesh) {
          for (const std::string& name : call.axes) {
            n *= axis.name == name ? static_cast<double>(axis.size.value) : 1;
          }
        }
      }
      const double share = call.what == ts::Collective::permute      ? 1
                           : call.what == ts::Collective::all_reduce ? 2 * (n - 1) / n
                                                                     : (n - 1) / n;
      bytes += 4 * share * static_cast<double>(call.elements * call.times);
    }
    most = std::max(most, bytes);
  }
  return most;
}

ts::StepLimit limit_of(const ts::StepJob& job, const ts::Machine& machine,
                       const ts::Layout& layout) {
  return ts::price_step(job, machine, layout).limit;
}

ts::Machine one_node(std::int64_t chips) { return ts::machine("h100", {chips}); }

double port(const ts::Machine& machine) { return machine.links.back().bandwidth.one_way(); }

}  // namespace

TEST_CASE("step cost: data parallelism and ZeRO send what the executor sends") {
  const ts::StepJob job = small_job(small_model());
  for (const ts::Zero zero :
       {ts::Zero::none, ts::Zero::optimizer, ts::Zero::gradients, ts::Zero::parameters}) {
    for (const std::int64_t m : {1, 2}) {
      for (const std::int64_t near : {0, 1, 2}) {  // 1: nothing is cut, sums are sent once a step
        ts::Layout layout;
        layout.data = 8;
        layout.microbatches = m;
        layout.zero = zero;
        layout.zero_devices = zero == ts::Zero::none ? 0 : near;
        const std::string text = layout.text();
        CAPTURE(text);
        const ts::Machine node = one_node(8);
        const double bytes =
            sent(job.model, layout, "weights") + sent(job.model, layout, "gradients");
        CHECK(limit_of(job, node, layout).data * port(node) == doctest::Approx(bytes));
      }
    }
  }
}

TEST_CASE("step cost: experts' gradients are summed among their own holders") {
  const ts::StepJob job = small_job(small_model(8));
  for (const std::int64_t expert : {1, 2, 4, 8}) {
    for (const ts::Zero zero :
         {ts::Zero::none, ts::Zero::optimizer, ts::Zero::gradients, ts::Zero::parameters}) {
      for (const std::int64_t near : {0, 4}) {  // 4: those that hold 4 experts have none to cut
        ts::Layout layout;
        layout.data = 8;
        layout.microbatches = 2;
        layout.expert = expert;
        layout.zero = zero;
        layout.zero_devices = zero == ts::Zero::none ? 0 : near;
        const std::string text = layout.text();
        CAPTURE(text);
        const ts::Machine node = one_node(8);
        const ts::StepLimit limit = limit_of(job, node, layout);
        const double bytes =
            sent(job.model, layout, "weights") + sent(job.model, layout, "gradients");
        CHECK(limit.data * port(node) == doctest::Approx(bytes));
        CHECK(limit.expert * port(node) == doctest::Approx(sent(job.model, layout, "experts")));
      }
    }
  }
}

TEST_CASE("step cost: layers that are computed again ask their experts again") {
  for (const ts::Recompute again :
       {ts::Recompute::none, ts::Recompute::selective, ts::Recompute::full}) {
    for (const std::int64_t expert : {2, 4, 8}) {
      ts::StepJob job = small_job(small_model(8));
      ts::Layout layout;
      layout.data = 8;
      layout.expert = expert;
      layout.microbatches = 2;
      layout.recompute = again;
      const std::string text = layout.text();
      CAPTURE(text);
      const ts::Machine node = one_node(8);
      const double bytes = limit_of(job, node, layout).expert * port(node);
      CHECK(bytes == doctest::Approx(sent(job.model, layout, "experts")));
      // 4 exchanges a layer and microbatch, with the pass that runs again 6: of 16 tokens k D
      // numbers each, (e - 1) / e of them.
      const double e = static_cast<double>(expert);
      const double layers = 4, one = 4 * 16 * 2 * 32 * (e - 1) / e;
      const double exchanges = again == ts::Recompute::full ? 6 : 4;
      CHECK(bytes == doctest::Approx(2 * layers * exchanges * one));
    }
  }
}

// 14.8e12 tokens in 2.664e6 H800 hours, 15,360 sequences a step on 2,048 (arXiv 2412.19437, table 1
// and section 4.2): 19.9 s a step.
TEST_CASE("step cost: hidden exchanges cost the units they take, or what outlasts compute") {
  ts::StepJob job;
  job.model = ts::config("deepseek-v3");
  job.context = 4096;
  job.batch = 15360;
  job.format = ts::DType::fp8_e4m3;
  job.gradient_bytes = 2;
  ts::Layout layout;
  layout.data = 128;
  layout.pipeline = 16;
  layout.expert = 64;
  layout.zero = ts::Zero::optimizer;
  layout.microbatches = 120;
  const ts::Efficiency at;
  const auto cost = [&](bool hides, double port) {
    job.software = hides ? ts::software_deepseek_2024() : ts::Software();
    ts::Chip h800 = ts::chip("h800");
    h800.dcn_bandwidth *= port;
    return ts::price_step(job, ts::machine_of_chips(h800, 2048), layout).typical;
  };
  const double published = 15360.0 * 4096 * 2.664e6 * 3600 / (14.8e12 * 2048);
  const double typical = cost(true, 1).total(), open = cost(false, 1).total();
  CAPTURE(typical);
  CAPTURE(published);
  CHECK(std::fabs(typical / published - 1) < 0.08);
  CHECK(open > 1.4 * published);  // what the run would have taken with exchanges as others have
  for (const double port : {0.25, 1.0, 4.0, 64.0}) {
    const ts::StepCost one = cost(false, port), other = cost(true, port);
    const double compute = one.compute() - one.head;
    const double some = one.expert / (1 - at.hidden_expert), all = one.expert + compute;
    const double whole = std::min(some, all);  // whatever bounds it
    CHECK(other.expert ==
          doctest::Approx(std::max(at.exchange_units * whole, whole - compute)).epsilon(1e-12));
    CHECK(other.expert <= one.expert);
    CHECK(other.bubble <= one.bubble);
    CHECK(other.compute() == doctest::Approx(one.compute()).epsilon(1e-12));
  }
  CHECK(cost(true, 4).expert < cost(true, 1).expert);
  // A TPU's links move data by themselves: nothing is added until the exchanges outlast compute.
  const ts::StepCost tpu =
      ts::price_step(job, ts::machine_of_chips("tpu-v5p", 2048), layout).typical;
  CHECK(tpu.expert == 0);
}

// The embedding and the head send 4 units (5 or 6 where layers are computed again) beside the 8 or
// 12 of each layer: left out of the price.
TEST_CASE("step cost: tensor parallelism sends what the executor's layers send") {
  const ts::StepJob job = small_job(small_model());
  const double layers = 4;
  for (const bool sequence : {false, true}) {
    for (const ts::Recompute again :
         {ts::Recompute::none, ts::Recompute::selective, ts::Recompute::full}) {
      ts::Layout layout;
      layout.tensor = 4;
      layout.data = 2;
      layout.microbatches = 2;
      layout.sequence_parallel = sequence;
      layout.recompute = again;
      const std::string text = layout.text();
      CAPTURE(text);
      const ts::Machine node = one_node(8);
      const bool full = again == ts::Recompute::full;
      const double units = (full ? 12 : 8) * layers, ends = !full ? 4 : sequence ? 5 : 6;
      CHECK(limit_of(job, node, layout).tensor * port(node) * (units + ends) / units ==
            doctest::Approx(sent(job.model, layout, "tensor parallel")));
    }
  }
}

TEST_CASE("step cost: experts over tensor ranks, cut or whole, are sent what the executor sends") {
  for (const int shared : {0, 1}) {
    ts::StepJob job = small_job(small_model(8));
    job.model.shared_experts = shared;
    ts::Efficiency e;
    e.hop = 0;
    for (const bool whole : {true, false}) {
      for (const ts::Recompute again : {ts::Recompute::none, ts::Recompute::full}) {
        ts::Layout layout;
        layout.data = 4;
        layout.tensor = 2;
        layout.expert = 4;
        layout.sequence_parallel = true;
        layout.whole_experts = whole;
        layout.recompute = again;
        const std::string text = layout.text();
        CAPTURE(text);
        const ts::Machine node = one_node(8);
        const ts::StepLimit limit = limit_of(job, node, layout);
        // Of t ranks that each send all tokens' rows to e, or their own to e t.
        const double rows = 2 * (again == ts::Recompute::full ? 3 : 2) * 4.0 * 4 * 64 * 2 * 32;
        CHECK(limit.expert * port(node) ==
              doctest::Approx(whole ? rows / 2 * 7 / 8 : rows * 3 / 4));
        double planned = 0;
        ts::StepOptions options;
        options.batch = 16;
        const ts::Transformer model(job.model, 1);
        const ts::StepPlan plan = ts::plan_step(model, layout, options, 0);
        for (const ts::PlannedCall& call : plan.calls) {
          planned +=
              call.why == "experts" ? 4.0 * static_cast<double>(call.times * call.elements) : 0;
        }
        CHECK(limit.expert * port(node) == doctest::Approx(planned * (whole ? 7.0 / 8 : 3.0 / 4)));
        const double sums = whole && shared == 0 ? 1 : 2;
        const double full = again == ts::Recompute::full ? 3 : 2;
        CHECK(limit.tensor * port(node) ==
              doctest::Approx(4 * full * sums * 2 * 4 * 64 * 32 * 1 / 2.0));
      }
    }
  }
}

TEST_CASE("step cost: each kind of context parallelism sends what the executor sends") {
  for (const std::int64_t window : {0, 1, 2, 9}) {
    ts::StepJob job = small_job(small_model());
    job.model.window = window;
    job.model.global_every = window > 0 ? 2 : 0;
    const struct {
      ts::ContextParallel kind;
      const char* why;
    } kinds[] = {{ts::ContextParallel::ring, "ring attention"},
                 {ts::ContextParallel::gathered, "gathered keys"},
                 {ts::ContextParallel::ulysses, "Ulysses"}};
    for (const auto& kind : kinds) {
      for (const ts::Recompute again :
           {ts::Recompute::none, ts::Recompute::selective, ts::Recompute::full}) {
        ts::Layout layout;
        layout.context = 4;
        layout.data = 2;
        layout.context_parallel = kind.kind;
        layout.recompute = again;
        const std::string text = layout.text();
        CAPTURE(text);
        const ts::Machine node = one_node(8);
        CHECK(limit_of(job, node, layout).context * port(node) ==
              doctest::Approx(sent(job.model, layout, kind.why)));
      }
    }
  }
}

TEST_CASE("step cost: a pipeline's bubble and messages") {
  const ts::StepJob job = small_job(small_model());
  ts::Efficiency e;
  e.hop = 0;
  e.transfer = e.inner_links = 1;
  for (const int m : {4, 8}) {
    for (const int chunks : {1, 2}) {
      ts::Layout layout;
      layout.pipeline = 2;
      layout.microbatches = m;
      const ts::Machine node = one_node(2);
      const ts::StepPrice price = ts::price_step(job, node, layout, chunks, e);
      ts::PipelineShape shape;
      shape.kind =
          chunks > 1 ? ts::PipelineKind::interleaved : ts::PipelineKind::one_forward_one_backward;
      shape.ranks = 2;
      shape.microbatches = m;
      shape.chunks = chunks;
      CHECK(price.limit.bubble / price.limit.math ==
            doctest::Approx(ts::pipeline_idle(shape) / (3.0 * m)));
      // A rank sends m activations or gradients a neighbour, and waits for one more way and back.
      layout.schedule = ts::make_pipeline(shape);
      const double bytes = sent(job.model, layout, "activations");
      CHECK(price.typical.transfer * port(node) / bytes ==
            doctest::Approx(2 * (m * chunks + 1.0) / (chunks > 1 ? m * chunks : m)).epsilon(1e-9));
      const ts::StepPrice own = ts::price_step(job, node, layout, chunks, e);
      CHECK(own.limit.bubble == doctest::Approx(price.limit.bubble));
    }
  }
  ts::Layout h1;
  h1.pipeline = 4;
  h1.microbatches = 8;
  const double whole = limit_of(job, one_node(4), h1).bubble;
  h1.schedule = ts::zero_bubble_h1(4, 8);
  CHECK(limit_of(job, one_node(4), h1).bubble == doctest::Approx(whole / 3));  // 3 of 9 units
  // What is computed again stands before the gradient of the input, for which others wait:
  // (p - 1)(F + B - 2 W) with B = 3 F, of 4 F of work.
  h1.recompute = ts::Recompute::full;
  const ts::StepLimit again = limit_of(job, one_node(4), h1);
  ts::PipelineShape shape;
  shape.kind = ts::PipelineKind::zero_bubble_h1;
  shape.ranks = 4;
  shape.microbatches = 8;
  CHECK(ts::pipeline_idle(shape, {1, 3, 2, 1}) == 6);
  CHECK(again.bubble / again.math == doctest::Approx(6.0 / (4 * 8)));
}

TEST_CASE("step cost: a schedule that holds parameters twice is refused, not priced as half") {
  ts::PipelineSchedule both = ts::one_forward_one_backward(2, 4);
  both.name = "both ways";
  both.rank_of = {0, 1, 1, 0};
  ts::Layout layout;
  layout.pipeline = 2;
  layout.microbatches = 4;
  layout.schedule = both;
  const ts::StepJob job = small_job(small_model());
  const std::string text =
      ": the schedule both ways has 2 stages on 2 ranks, 4 entries of rank_of; equally many stages "
      "on each rank, each of them once, are planned (train() and time_pipeline() take others too)";
  CHECK(error_of([&] { ts::price_step(job, one_node(2), layout); }) == "price_step" + text);
  CHECK(error_of([&] {
          ts::step_memory(job.model, layout, ts::chip("h100"), 16, 4, 1, ts::Software());
        }) == "step_memory" + text);
  CHECK(error_of([&] {
          ts::device_memory(job.model, layout, 64, {0, 2, true, false}, 0);
        }) == "device_memory" + text);
  CHECK(error_of([&] { ts::memory_table(job.model, layout, 64); }) == "device_memory" + text);
}

TEST_CASE("step cost: uneven stages, kept weights, stages on other slices") {
  ts::StepJob job = small_job(small_model());
  job.model.layers = 9;
  ts::Layout layout;
  layout.pipeline = 2;
  layout.microbatches = 8;
  const double head = 6.0 * 16 * 2 * 32 * 64 / one_node(2).chip.peak(f32);  // of 2 sequences
  const double layers = limit_of(job, one_node(2), layout).math / 8 / 5;    // a layer's
  for (const int chunks : {1, 2, 4}) {  // the fuller rank has 5 layers, the head is on the other
    CHECK(ts::price_step(job, one_node(2), layout, chunks).limit.math ==
          doctest::Approx(8 * 5 * layers));
  }
  CHECK(head < layers);
  layout.pipeline = 1;
  CHECK(limit_of(job, one_node(1), layout).math == doctest::Approx(8 * (9 * layers + head)));
  layout.pipeline = 2;
  layout.data = 4;
  layout.zero = ts::Zero::optimizer;
  const double once = limit_of(job, one_node(8), layout).data;
  layout.zero = ts::Zero::parameters;  // gathered until the last microbatch
  CHECK(limit_of(job, one_node(8), layout).data == doctest::Approx(once));
  layout.pipeline = 1;
  layout.data = 8;
  CHECK(limit_of(job, one_node(8), layout).data > 8 * once);

  ts::StepJob big;
  big.model = ts::config("llama3-70b");
  big.context = 8192;
  big.batch = 64;
  ts::Layout slices;
  slices.data = 32;
  slices.pipeline = 2;
  slices.microbatches = 2;
  ts::Efficiency e;
  e.hop = 0;
  e.transfer = e.slice_links = e.inner_links = 1;
  const ts::Machine two = ts::machine("tpu-v5p", {2, 4, 4, 2});
  const ts::Machine one = ts::machine("tpu-v5p", {4, 4, 4});
  const double bytes = 2 * (2 + 1) * 2.0 * 8192 * 8192;  // two ways, m + p - 1 messages in bf16
  CHECK(ts::price_step(big, two, slices, 1, e).typical.transfer ==
        doctest::Approx(bytes / two.chip.dcn_bandwidth));
  CHECK(ts::price_step(big, one, slices, 1, e).typical.transfer ==
        doctest::Approx(bytes / (6 * 9e10)));
}

TEST_CASE("step cost: better links are never slower, more replicas never faster") {
  std::uint64_t state = 7;
  const auto pick = [&](std::int64_t n) {  // a small generator, the same on every machine
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(n));
  };
  const char* const models[] = {"llama3-70b", "gpt3-175b", "mixtral-8x7b"};
  int below = 0;
  for (int i = 0; i < 300; ++i) {
    ts::StepJob job;
    job.model = ts::config(models[pick(3)]);
    job.context = 4096;
    ts::Layout layout;
    layout.tensor = std::int64_t{1} << pick(4);
    layout.pipeline = std::int64_t{1} << pick(3);
    layout.context = std::int64_t{1} << pick(2);
    layout.data = std::int64_t{1} << pick(5);
    layout.expert = job.model.experts > 0 && layout.data >= 2 ? 2 : 1;
    layout.microbatches = std::int64_t{1} << pick(5);
    layout.zero = static_cast<ts::Zero>(pick(4));
    layout.recompute = static_cast<ts::Recompute>(pick(3));
    layout.sequence_parallel = pick(2) > 0;
    job.batch = static_cast<double>(layout.data * layout.microbatches);
    const std::int64_t chips = layout.devices();
    const auto on = [&](double faster, std::int64_t count) {
      ts::Chip chip = ts::chip("h100");
      chip.link_bandwidth *= faster;
      chip.dcn_bandwidth *= faster;
      return count <= 8 ? ts::machine(chip, {count}) : ts::machine(chip, {count / 8, 8});
    };
    const std::string text = layout.text();
    CAPTURE(text);
    const ts::StepPrice price = ts::price_step(job, on(1, chips), layout);
    const ts::StepPrice fast = ts::price_step(job, on(2, chips), layout);
    CHECK(fast.limit.total() <= price.limit.total());
    CHECK(fast.typical.total() <= price.typical.total());
    CHECK(price.typical.total() > price.limit.math + price.limit.bubble);
    below += price.typical.total() < price.limit.total() ? 1 : 0;
    layout.data *= 2;
    job.batch *= 2;
    const ts::StepPrice more = ts::price_step(job, on(1, 2 * chips), layout);
    CHECK(more.limit.total() >= price.limit.total() * (1 - 1e-12));
  }
  CHECK(below == 0);  // hidden messages still take their time at published rates
}

TEST_CASE("step cost: what cannot be priced is refused") {
  const ts::StepJob job = small_job(small_model());
  ts::Layout layout;
  layout.data = 4;
  CHECK(error_of([&] { ts::price_step(job, one_node(8), layout); }) ==
        "price_step: layout data 4, tensor 1, pipeline 1, context 1 = 4 devices, h100-sxm 8 has 8 "
        "chips; they must be equal");
  ts::StepJob none = job;
  none.batch = 0;
  layout.data = 8;
  CHECK(error_of([&] { ts::price_step(none, one_node(8), layout); }) ==
        "price_step: 0 sequences of 16 tokens, 1 chunks; finite numbers above 0 are right");
  layout.tensor = 0;
  CHECK(error_of([&] { ts::price_step(job, one_node(8), layout); }) ==
        "price_step: layout is data 8, tensor 0, pipeline 1, context 1; each must be at least 1, "
        "and the devices at most 2147483647");
}
