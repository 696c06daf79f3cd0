#pragma once
// Claims of sharding and of parallel training, C7 to C9: collectives that shardings insert, a step
// of a small model under ZeRO and tensor parallelism held to one device's, pipeline schedules.

#include <cstdint>  // int64_t
#include <string>   // names

#include "numerics.hpp"
#include "report.hpp"
#include "software.hpp"
#include "tinyscale.hpp"

namespace tinyscale {
namespace detail {

// A step of the small model on two devices under a layout; what it sent, and its weights.
struct LayoutStep {
  Shared<const MeshRun> run;
  double gap = 0;  // of a weight, from one device's after the same step
  std::int64_t parameters = 0, tokens = 0, width = 0, layers = 0;
};

inline LayoutStep layout_step(const Layout& layout) {
  const Text text = claim_text();
  ModelConfig c = claim_model(text);
  c.layers = 2;
  c.tied = false;
  TrainOptions options;
  options.steps = 1;
  options.batch = 4;
  const Transformer start(c, 1337);
  Transformer one = copy_of(start), many = copy_of(start);
  Trainer alone(one, text.train(), options);
  alone.step(0);
  options.machine = machine("h100", {layout.devices()});
  options.layout = layout;
  Trainer trainer(many, text.train(), options);
  trainer.step(0);
  LayoutStep out{trainer.last_run(),        0,       c.parameters(),
                 options.batch * c.context, c.width, c.layers};
  trainer.model();
  for (std::size_t i = 0; i < one.parameters.size(); ++i) {
    const double gap = largest_gap(one.parameters[i].value, many.parameters[i].value);
    out.gap = gap <= out.gap ? out.gap : gap;
  }
  return out;
}

inline ClaimReport claim_sharding() {
  ClaimReport r = claim_of(
      "From shardings alone a compiler inserts the collectives: none, an all_gather, or an "
      "all_reduce or reduce_scatter where the contracted dimension is cut on both sides.",
      Verdict::holds,
      "for the four cases of a matmul; grad, vmap and jit as transformations: not "
      "yet");
  const Mesh mesh(machine("h100", {2, 2}), {{"x", 2}, {"y", 2}});
  const Tensor a = randn({16, 32}, 1), b = randn({32, 16}, 2);
  const Tensor right = matmul(a, b);
  const auto add = [&](const std::string& name, const Sharded& c, std::size_t calls) {
    const ShardedReport made = c.explain();
    std::string inserted;
    double counted = 0, formula = 0;
    std::size_t collectives = 0;
    for (const ShardedStep& step : made.steps) {
      const bool slice = step.bytes <= 0;
      inserted += (inserted.empty() ? "" : ", ") + step.name;
      collectives += slice ? 0 : 1;
      formula += step.bytes;
      counted += step.counted;
    }
    r.counted(name, "collectives: " + (inserted.empty() ? "none" : inserted),
              static_cast<double>(collectives), "", static_cast<double>(calls));
    r.counted(name + ", bytes", "a device sends", counted, "B", formula);
    const double gap = largest_gap(contiguous(c.gather()), right);
    r.counted(name + ", difference", "from one device", gap);
    r.needs(gap < 1e-4, name + ": not one device's product");
  };
  const Sharded rows = mesh.shard(a, "I_x, J"), deep = mesh.shard(a, "I, J_x");
  add("J whole in both", matmul(rows, mesh.shard(b, "J, K_y")), 0);
  add("J cut in one", matmul(deep, mesh.shard(b, "J, K"), "I, K"), 1);
  const Sharded sums = matmul(deep, mesh.shard(b, "J_x, K"));
  add("J cut in both, then whole", reshard(sums, "I, K"), 1);
  add("J cut in both, then cut", reshard(sums, "I_x, K"), 1);
  add("one axis for I and K", matmul(rows, mesh.shard(b, "J, K_x"), "I_x, K"), 1);
  return r;
}

inline ClaimReport claim_zero() {
  ClaimReport r = claim_of(
      "ZeRO cuts the 16 bytes a parameter over the devices: 7.5e9 parameters on 64 take 120, 31.4, "
      "16.6 or 1.9 GB; sending 2 P numbers a step, 3 P in stage 3.",
      Verdict::holds);
  const double claimed[] = {120e9, 31.4e9, 16.6e9, 1.9e9};
  const StateParts parts = state_parts(StateBytes::mixed);
  for (int stage = 0; stage < 4; ++stage) {
    const auto zero = static_cast<Zero>(stage);
    const std::string name = cat({"stage ", stage});
    r.formula(name, "model_states, mixed precision with Adam",
              model_states(7.5e9, parts, zero, 64).total(), "B", claimed[stage]);
    Layout layout;
    layout.data = 2;
    layout.zero = zero;
    const LayoutStep step = layout_step(layout);
    const double sent = step.run->bytes_sent(0) / 4 / static_cast<double>(step.parameters);
    r.counted(name + ", sent", "numbers of a step / (P (d - 1) / d)", 2 * sent, "",
              stage == 3 ? 3 : 2);
    r.counted(name + ", weights", "largest gap to one device's after the step", step.gap);
    r.needs(step.gap < 1e-5, name + ": other weights than one device's");
  }
  r.assumptions = {"a two-layer transformer on two devices here, in f32"};
  return r;
}

inline ClaimReport claim_megatron() {
  ClaimReport r = claim_of(
      "Tensor parallelism takes one all_reduce of B T d for each half of a layer, forward and "
      "backward; a pipeline idles (p-1)/m of its work, interleaved (p-1)/(v m).",
      Verdict::holds);
  Layout layout;
  layout.tensor = 2;
  const LayoutStep step = layout_step(layout);
  double whole = 0;
  for (const LoggedCall& call : step.run->log().calls) {
    const CollectiveSpec& spec = call.shape->spec;
    whole += spec.what == Collective::all_reduce && spec.elements == step.tokens * step.width;
  }
  r.counted("all_reduces of B T d", "4 a layer, 1 each of the embedding and the head", whole, "",
            static_cast<double>(4 * step.layers + 2));
  r.counted("weights", "largest gap to one device's after the step", step.gap);
  r.needs(step.gap < 1e-5, "other weights than one device's");
  const struct {
    const char* name;
    PipelineShape shape;
    double idle, held;
  } pipes[] = {{"GPipe", {PipelineKind::gpipe, 4, 8, 1}, 3.0 / 8, 8},
               {"1F1B", {PipelineKind::one_forward_one_backward, 4, 8, 1}, 3.0 / 8, 4},
               {"interleaved", {PipelineKind::interleaved, 4, 8, 2}, 3.0 / 16, no_figure}};
  for (const auto& pipe : pipes) {
    const std::string name = pipe.name;
    const PipelineTiming timing = time_pipeline(make_pipeline(pipe.shape));
    r.simulated(name + ", bubble", "idle / work, p 4, m 8", timing.idle_to_work(), "", pipe.idle);
    r.simulated(name + ", microbatches held", "activations of 1/p of the model",
                timing.peak_activations(), "", pipe.held);
    r.picture += name + "\n" + timing.gantt() + "\n";
  }
  r.assumptions = {"two-layer transformer on two devices; stages alike, messages in no time"};
  return r;
}

}  // namespace detail
}  // namespace tinyscale
