#pragma once
// Claims of sharding and of parallel training, C7 to C9: collectives that shardings insert, a step
// of a small model under ZeRO and tensor parallelism held to one device's, pipeline schedules.

#include <cstdint>  // int64_t
#include <string>   // names
#include <vector>   // tensors

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
  LayoutStep out{trainer.on().last_run(),        0,       c.parameters(),
                 options.batch * c.context, c.width, c.layers};
  trainer.model();
  for (std::size_t i = 0; i < one.parameters.size(); ++i) {
    const double gap = largest_gap(one.parameters[i].value, many.parameters[i].value);
    out.gap = gap <= out.gap ? out.gap : gap;
  }
  return out;
}

// One program of a mesh: what was inserted, and its bytes counted beside the closed form.
inline void add_program(ClaimReport& r, const std::string& name, const ShardedProgram& program,
                        const std::vector<Tensor>& in, const std::vector<Tensor>& right,
                        double calls, const char* how, double bytes) {
  const std::vector<Sharded> out = program(in);
  const ShardedPlan& plan = program.plan();
  std::string inserted;
  double counted = 0;
  for (const InsertedStep& step : plan.collectives()) {
    inserted += cat(
        {inserted.empty() ? "" : ", ", step.name, " [", step.before, "] -> [", step.after, "]"});
    counted += step.counted;
  }
  r.counted(name, inserted.empty() ? "none" : inserted,
            static_cast<double>(plan.collectives().size()), "", calls);
  r.counted(name + ", bytes", cat({"a device sends ", how}), counted, "B", bytes);
  double gap = 0;
  for (std::size_t i = 0; i < right.size(); ++i) {
    const double off = largest_gap(contiguous(out[i].gather()), contiguous(right[i]));
    gap = off <= gap ? gap : off;
  }
  r.counted(name + ", difference", "from one device", gap);
  r.needs(gap < 1e-4, name + ": not one device's result");
}

inline std::vector<Tensor> squared_error(const std::vector<Tensor>& in) {  // weights, x, y
  return {mean(square(matmul(tanh(in[1]), in[0]) - in[2]))};
}

// grad, vmap and compile of a function, in any order, against loops over backward().
inline void add_transforms(ClaimReport& r) {
  const Tensor w = randn({6, 3}, 1), x = randn({5, 4, 6}, 2), y = randn({5, 4, 3}, 3);
  const TensorFunction gradient = grad(&squared_error);
  const TensorFunction each = vmap(gradient, {-1, 0, 0});
  const auto one_of = [](const Tensor& all, std::int64_t i) {
    return squeeze(slice(all, 0, i, i + 1), 0);
  };
  const Tensor x0 = one_of(x, 0), y0 = one_of(y, 0);
  List<Tensor> loop;
  for (std::int64_t i = 0; i < 5; ++i) {
    const Tensor own = parameter(w.clone());
    squared_error({own, one_of(x, i), one_of(y, i)})[0].backward();
    loop.push_back(own.grad().clone());
  }
  const auto gap = [](const Tensor& a, const Tensor& b) {
    return largest_gap(contiguous(a), contiguous(b));
  };
  const auto add = [&](const char* name, const char* how, double off) {
    r.counted(name, how, off);
    r.needs(off < 1e-5, cat({name, ": not what the loop gives"}));
  };
  const auto of_each = [&](const std::vector<Tensor>& all) {
    double worst = 0;
    for (std::int64_t i = 0; i < 5; ++i) {
      const double off = gap(one_of(all[0], i), loop[static_cast<std::size_t>(i)]);
      worst = off <= worst ? worst : off;
    }
    return worst;
  };
  add("grad", "- backward()", gap(gradient({w, x0, y0})[0], loop[0]));
  add("vmap(grad)", "- a loop of backward(), 5 examples", of_each(each({w, x, y})));
  const Compiled compiled = compile(each);
  compiled({w, x, y});
  add("compile(vmap(grad))", "- the loop", of_each(compiled({w, x, y})));
  const Compiled one = compile(gradient);
  add("vmap(compile(grad))", "- the loop",
      of_each(
          vmap([&one](const std::vector<Tensor>& in) { return one(in); }, {-1, 0, 0})({w, x, y})));
  const TensorFunction all = [](const std::vector<Tensor>& in) -> std::vector<Tensor> {
    return {mean(vmap(&squared_error, {-1, 0, 0})(in)[0])};
  };
  Tensor mean_gradient = zeros(w.shape());
  for (const Tensor& g : loop) {
    mean_gradient = mean_gradient + g * 0.2F;
  }
  add("grad(vmap)", "- the mean of the loop", gap(grad(all)({w, x, y})[0], mean_gradient));
  std::string refused;
  try {
    Tensor seen = zeros(w.shape());
    grad([&seen](const std::vector<Tensor>& in) -> std::vector<Tensor> {
      copy_(seen, in[0].detach());
      return {sum(in[0])};
    })({w});
  } catch (const Error& error) {
    refused = error.what();
  }
  r.counted("a function that writes", refused.substr(0, refused.find(';')), refused.empty() ? 0 : 1,
            "", 1);
  r.needs(!refused.empty(), "grad takes a function that is not pure");
}

inline ClaimReport claim_sharding() {
  ClaimReport r = claim_of(
      "Pure functions are transformed by grad, vmap and jit; from shardings alone the compiler "
      "inserts collectives: none, an all_gather, or an all_reduce or reduce_scatter where the "
      "contracted dimension is cut on both sides.",
      Verdict::holds, "for the four cases of a matmul and for its gradients");
  add_transforms(r);
  const Mesh mesh(machine("h100", {2, 2}), {{"x", 2}, {"y", 2}});
  const Tensor a = randn({16, 32}, 1), b = randn({32, 8}, 2);
  const double va = 4 * 16 * 32, vb = 4 * 32 * 8, vc = 4 * 16 * 8;  // B
  const auto add = [&](const char* name, const char* of_a, const char* of_b, const char* result,
                       double calls, const char* how, double bytes) {
    ShardedOptions options;
    options.results = {result};
    const auto product = [](const std::vector<Tensor>& in) -> std::vector<Tensor> {
      return {matmul(in[0], in[1])};
    };
    add_program(r, name, compile(mesh, product, {of_a, of_b}, options), {a, b}, {matmul(a, b)},
                calls, how, bytes);
  };
  add("J whole in both", "I_x, J", "J, K_y", "", 0, "nothing", 0);
  add("J cut in one", "I, J_x", "J, K_y", "", 1, "(d-1)/d s I J", va / 2);
  add("J cut in both, then whole", "I, J_x", "J_x, K", "", 1, "2 (d-1)/d s I K", vc);
  add("J cut in both, then cut", "I, J_x", "J_x, K", "I_x, K", 1, "(d-1)/d s I K", vc / 2);
  add("one axis for I and K", "I_x, J", "J, K_x", "I_x, K", 1, "(d-1)/d s J K", vb / 2);
  const std::vector<Tensor> in = {randn({8, 4}, 3), randn({16, 8}, 4), randn({16, 4}, 5)};
  add_program(r, "grad, its batch cut",
              compile(mesh, grad(&squared_error), {"D, F", "B_x, D", "B_x, F"}), in,
              grad(&squared_error)(in), 1, "2 (d-1)/d s D F", 4 * 8 * 4);
  r.assumptions = {"d devices of an axis, 2 here; f32"};
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
