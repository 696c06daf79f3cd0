#pragma once
// What a training step takes by cause, for any layout on any machine. The limit: published rates,
// everything at once that can be.
//   T_limit = max(m (1 + bubble) T_math, m T_memory, m T_tensor, m T_context, m T_expert, T_data)
// The typical time: a sum of what is not hidden, at what runs reach (efficiency.hpp), matmuls in
// the shapes that are left on a chip. m microbatches; a bubble of (p - 1) / (v m) (parallel/).
// Bytes are those that the executor sends (parallel/step_forms.hpp) but for tensor parallelism's
// embedding and head, 4 of 8 L messages more, and its whole norms and routers; for a tied table,
// that ZeRO-3 gathers for either end; for weights that a pipeline keeps gathered.
// Sources: scaling book chapters 5 and 12; arXiv 2104.04473, 2205.05198; bench/README.md.

#include <algorithm>  // max, min
#include <cmath>      // ceil, log2, pow
#include <cstdint>    // std::int64_t
#include <cstring>    // memcpy

#include "tinyscale/base/list.hpp"
#include "tinyscale/hardware/network.hpp"
#include "tinyscale/parallel/layout.hpp"
#include "tinyscale/parallel/pipeline_timing.hpp"
#include "tinyscale/plan/efficiency.hpp"
#include "tinyscale/plan/group_links.hpp"
#include "tinyscale/plan/layer_work.hpp"
#include "tinyscale/plan/layout_rules.hpp"
#include "tinyscale/plan/transformer_math.hpp"

namespace tinyscale {

// One step to price: sequences of `context` tokens, `batch` of them in all.
struct StepJob {
  ModelConfig model;
  double context = 0, batch = 0;
  DType format = DType::bf16;  // of the matmuls
  double gather_bytes = 2;     // of a weight on the wire
  double gradient_bytes = 4;   // of a gradient on the wire
  double state_traffic = 30;   // bytes of a parameter that an update reads and writes
  Software software;
};

// Seconds of a step on the busiest chip.
struct StepCost {
  double matmul = 0, attention = 0, elementwise = 0, head = 0, recompute = 0;
  double tensor = 0, context = 0, expert = 0, transfer = 0;  // messages that compute does not hide
  double bubble = 0, gather = 0, gradients = 0, update = 0, waiting = 0, jitter = 0;

  double total() const {
    return matmul + attention + elementwise + head + recompute + tensor + context + expert +
           transfer + bubble + gather + gradients + update + waiting + jitter;
  }
  double compute() const { return matmul + attention + elementwise + head + recompute; }
};

// The parts of the limit: each alone, at published rates.
struct StepLimit {
  double math = 0, bubble = 0, memory = 0, tensor = 0, context = 0, expert = 0, data = 0;

  double total() const { return std::max({math + bubble, memory, tensor, context, expert, data}); }
  const char* bound() const {
    const double t = total();
    return math + bubble >= t ? (bubble > math ? "bubble" : "math")
           : memory >= t      ? "memory"
           : tensor >= t      ? "tensor"
           : data >= t        ? "data"
           : expert >= t      ? "expert"
                              : "context";
  }
};

struct StepPrice {
  StepLimit limit;
  StepCost typical;
  double microbatches = 1, microbatch = 1;  // of a replica; sequences of one
};

namespace detail {

// Activations keep 16 bits where matmuls have fewer.
inline double activation_bytes(DType format) { return std::max(2.0, bytes_of(format)); }

// Bytes of a gradient on the wire.
inline double wire_bytes(const StepJob& job, const Layout& layout) {
  return layout.gradient_format == DType::bf16 ? std::min(2.0, job.gradient_bytes)
                                               : job.gradient_bytes;
}

// Seconds of matmuls that were priced before, for one chip and format: many layouts leave a chip
// the same shapes.
class MatmulTimes {
 public:
  MatmulTimes() : known_(4096) {}

  struct Known {
    double m = -1, k = 0, n = 0, seconds = 0;
  };
  // Where the time of a shape stands, or is to be written.
  Known& at(double m, double k, double n) {
    std::uint64_t hash = 0;
    for (const double size : {m, k, n}) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, &size, sizeof bits);
      hash = (hash ^ bits) * 0x9E3779B97F4A7C15U;
      hash ^= hash >> 32;
    }
    return known_[static_cast<std::size_t>(hash * 0x9E3779B97F4A7C15U >> 52)];
  }

 private:
  List<Known> known_;
};

class StepPricer {
 public:
  StepPricer(const StepJob& job, const Machine& machine, const Layout& layout, int chunks,
             const Efficiency& e, const LayoutLinks& links, MatmulTimes* times = nullptr)
      : job_(job),
        machine_(machine),
        chip_(machine.chip),
        layout_(layout),
        e_(e),
        links_(links),
        times_(times) {
    tpu_ = chip_.kind == "tpu";
    chunks_ = chunks;
    m_ = static_cast<double>(layout.microbatches);
    b_ = job.batch / (static_cast<double>(layout.data) * m_);
    tokens_ = b_ * job.context / static_cast<double>(layout.context);
    width_ = static_cast<double>(job.model.width);
    peak_ = chip_.peak(job.format);
    attention_format_ = job.format == DType::f32 ? DType::f32 : DType::bf16;
    peak16_ = chip_.peak(attention_format_);
    rate_ = sustained_matmul(e, chip_, job.format);
    memory_ = chip_.memory_bandwidth > 0 ? chip_.memory_bandwidth : 1e30;
    wide_ = activation_bytes(job.format);
    inner_ = e.inner_links;
    outer_ = tpu_ ? e.slice_links : e.outer_links;
  }

  StepPrice price() {
    out_.microbatches = m_;
    out_.microbatch = b_;
    const ModelConfig& c = job_.model;
    const double layers = static_cast<double>(c.layers);
    const double mixtures = static_cast<double>(c.mixture_layers()) / layers;
    parameters_ = chip_parameters(c, layout_);
    if (mixtures < 1) {
      add_layer(layer_work(c, layout_, b_, job_.context, false), 1 - mixtures);
    }
    if (mixtures > 0) {
      add_layer(layer_work(c, layout_, b_, job_.context, true), mixtures);
    }
    hide_experts();
    add_head();
    add_stages();
    add_data();
    add_update();
    StepCost& t = out_.typical;
    const double chips = static_cast<double>(machine_.chips());
    t.jitter = e_.jitter * std::log2(std::max(1.0, chips / 8)) * t.total();
    return out_;
  }

 private:
  // Forward and backward seconds of one matmul: the input's and the weight's gradient are two more.
  void add_matmul(const MatmulShape& s, double& forward, double& backward) const {
    forward += matmul_seconds(s.m, s.k, s.n) * s.count;
    backward += (matmul_seconds(s.m, s.n, s.k) + matmul_seconds(s.k, s.m, s.n)) * s.count;
  }
  double matmul_seconds(double m, double k, double n) const {
    if (times_ == nullptr) {
      return new_matmul_seconds(m, k, n);
    }
    MatmulTimes::Known& known = times_->at(m, k, n);
    if (known.m != m || known.k != k || known.n != n) {
      known = {m, k, n, new_matmul_seconds(m, k, n)};
    }
    return known.seconds;
  }
  double new_matmul_seconds(double m, double k, double n) const {
    double share = mapping_efficiency(chip_, m, k, n);
    share = tpu_ || chip_.kind != "gpu" ? share : std::pow(share, e_.waves);
    const double bytes = wide_ * (m * k + k * n + m * n);
    return std::max(2 * m * k * n / (rate_ * share), bytes / (memory_ * e_.memory));
  }

  // `many` layers' worth (of a mean layer) of one microbatch.
  void add_layer(const LayerWork& w, double many) {
    const Software& on = job_.software;
    double forward = 0, backward = 0;
    for (int i = 0; i < w.count; ++i) {
      add_matmul(w.matmuls[i], forward, backward);
    }
    double core = 0, core_backward = 0;
    if (on.tiled_attention) {  // backward: five products where forward has two
      core = w.causal_flops / (peak16_ * (tpu_ ? e_.attention_tpu : e_.attention));
      core_backward = 2.5 * core;
    } else {
      const double odd = job_.model.head_size % 8 == 0 ? 1 : e_.odd_heads;
      const double rate =
          peak16_ * large_matmul_share(chip_, attention_format_) * e_.score_matmul * odd;
      const double pass = wide_ * w.scores / (memory_ * e_.memory);
      core = w.score_flops / rate + e_.score_passes * pass;
      core_backward = 2 * w.score_flops / rate + 1.4 * e_.score_passes * pass;
    }
    double bytes = wide_ * w.elements * (tpu_ ? e_.tpu_elementwise : on.fused ? 1 : e_.unfused);
    bytes += is_fp8(job_.format) ? 2 * e_.fp8_casts * w.recast : 0;
    const double vector = bytes / (memory_ * e_.memory);
    layer_.matmul += many * (forward + backward);
    layer_.attention += many * (core + core_backward);
    layer_.elementwise += many * 3 * vector;
    if (layout_.recompute == Recompute::full) {
      layer_.recompute +=
          many * (forward + core + vector) * (tpu_ ? e_.recompute_tpu : e_.recompute);
    } else if (layout_.recompute == Recompute::selective) {
      layer_.recompute += many * (core + (tpu_ ? vector : 0));
    }
    limit_layer(w, many);
    add_messages(w, many);
  }

  void limit_layer(const LayerWork& w, double many) {
    const bool again = layout_.recompute == Recompute::full;
    const double core = job_.software.tiled_attention ? w.causal_flops : w.score_flops;
    const bool core_again = layout_.recompute != Recompute::none;
    math_ += many * ((again ? 4 : 3) * w.flops() / peak_ + (core_again ? 4 : 3) * core / peak16_);
    double matrices = 0;  // each is read by two of the three matmuls and written by one
    for (int i = 0; i < w.count; ++i) {
      const MatmulShape& s = w.matmuls[i];
      matrices += s.count * (s.m * s.k + s.k * s.n + s.m * s.n);
    }
    memory_bytes_ += many * (2 * bytes_of(job_.format) + wide_) * matrices;
  }

  void add_messages(const LayerWork& w, double many) {
    const double passes = layout_.recompute == Recompute::full ? 3 : 2;  // forward, again, backward
    if (layout_.tensor > 1) {  // all_reduces in each pass, or as many gathers and scatters
      const double bytes = wide_ * tokens_ * width_;
      const bool hides = job_.software.hides_tensor;
      const bool inside = !links_.tensor.leaves_domain();  // beyond, no run has hidden them
      const double hidden = !inside ? 0
                            : tpu_  ? e_.hidden_tensor_tpu
                            : hides ? e_.hidden_tensor
                                    : 0;
      const double one = 2 * links_.tensor.gather(bytes, inner_, outer_) + 2 * e_.hop;
      const double sums = tensor_sums(job_.model, layout_, w.routed > 0);
      layer_.tensor += many * passes * sums * one * (1 - hidden);
      limit_.tensor += many * passes * 2 * sums * links_.tensor.gather(bytes);
    }
    if (layout_.context > 1) {
      const double n = static_cast<double>(layout_.context);
      const double rounds = context_rounds();
      const bool deals = layout_.context_parallel == ContextParallel::ulysses;
      const auto seconds = [&](double keys, double inner, double outer) {
        return deals ? links_.context.exchange(wide_ * (2 * w.queries + keys), inner, outer)
                     : links_.context.gather(wide_ * keys * n, inner, outer);
      };
      layer_.context += many * rounds * seconds(w.keys, inner_, outer_) * (1 - e_.hidden_context);
      limit_.context += many * rounds * seconds(w.least_keys, 1, 1);
    }
    add_experts(w, many, passes);
  }

  // How often keys and values of all go around: forward, again with what is computed again, and
  // backward with their gradients, for which a ring sends the keys once more; under a window not
  // all the way around.
  double context_rounds() const {
    const bool ring = layout_.context_parallel == ContextParallel::ring;
    const double all = (ring ? 3 : 2) + (layout_.recompute == Recompute::none ? 0 : 1);
    return all * context_rounds_share(job_.model, layout_.context_parallel,
                                      static_cast<int>(layout_.context),
                                      static_cast<std::int64_t>(job_.context));
  }

  // To the experts and back in each pass. A token goes once to each other domain where it has an
  // expert: of k choices among n domains, n (1 - (1 - 1/n)^k) are met (scaling book, chapter 12).
  void add_experts(const LayerWork& w, double many, double passes) {
    const auto group = static_cast<double>(layout_.expert_devices());
    if (group <= 1 || w.routed <= 0) {
      return;
    }
    const double top = job_.model.top_k, copies = w.routed;
    const double domains = group / links_.expert_domain;
    const double met = domains * (1 - std::pow(1 - 1 / domains, top)) * (1 - 1 / domains);
    const double outside = wide_ * copies / top * width_ * met;
    const double inside = wide_ * copies * width_;
    const GroupLinks& links = links_.experts;
    const double out_rate = chip_.dcn_bandwidth > 0 ? chip_.dcn_bandwidth : 1e30;
    const double limit = std::max(links.exchange(inside), outside / out_rate);
    const double reached =
        std::max(links.exchange(inside, inner_), outside / (out_rate * e_.exchange_outer));
    const double exchanges = 2 * passes * many;
    layer_.expert += exchanges * (reached + 4 * e_.hop);
    limit_.expert += exchanges * limit;
  }

  // What exchanges add to the compute beside them: a share of their time, or all that outlasts it.
  void hide_experts() {
    const double share = !job_.software.hides_experts ? 1 - e_.hidden_expert
                         : tpu_                       ? 0
                                                      : e_.exchange_units;
    layer_.expert = std::max(share * layer_.expert, layer_.expert - layer_.compute());
  }

  void add_head() {
    const double words =
        static_cast<double>(job_.model.vocabulary) / static_cast<double>(layout_.tensor);
    double forward = 0, backward = 0;
    add_matmul({tokens_, width_, words, 1}, forward, backward);
    head_ = forward + backward + 4 * e_.logit_passes * tokens_ * words / (memory_ * e_.memory);
    head_math_ = 6 * tokens_ * width_ * words / peak_;
  }

  // All microbatches through the busiest stage, and the wait until the pipeline is full.
  void add_stages() {
    StepCost& t = out_.typical;
    const double ranks = static_cast<double>(layout_.pipeline);  // whole layers on the busiest
    const double layers = std::ceil(static_cast<double>(job_.model.layers) / ranks);
    const double all = layers * m_;
    t.matmul = layer_.matmul * all;
    t.attention = layer_.attention * all;
    t.elementwise = layer_.elementwise * all;
    t.recompute = layer_.recompute * all;
    t.tensor = layer_.tensor * all;
    t.context = layer_.context * all;
    t.expert = layer_.expert * all;
    t.waiting = job_.software.waits_for_layers ? e_.layer_wait * all : 0;
    t.head = head_ * m_;
    const double stages = static_cast<double>(layout_.pipeline);
    out_.limit = limit_;
    const double mean = (math_ * static_cast<double>(job_.model.layers) + head_math_) / stages;
    out_.limit.math = m_ * std::max(math_ * layers, mean);  // the head beside fewer layers
    out_.limit.memory = m_ * memory_bytes_ * layers / memory_;
    out_.limit.tensor *= all;
    out_.limit.context *= all;
    out_.limit.expert *= all;
    if (layout_.pipeline > 1) {
      const double one = layer_.total() * layers + (t.waiting / m_) + head_ / stages;
      const double idle = idle_microbatches();
      t.bubble = idle * one;
      out_.limit.bubble = out_.limit.math / m_ * idle;
      const double cut = job_.software.cuts_transfers || layout_.sequence_parallel
                             ? static_cast<double>(layout_.tensor)
                             : 1;
      const double out = chip_.dcn_bandwidth, in = chip_.links * chip_.link_bandwidth;
      const double any = machine_.links.back().bandwidth.one_way();  // of a box without either
      const double rate =
          links_.stages_leave ? (out > 0 ? out : any) * outer_ : (in > 0 ? in : any) * inner_;
      const double bytes = wide_ * tokens_ * width_ / cut;
      t.transfer = 2 * (m_ * chunks_ + stages - 1) * (e_.transfer * bytes / rate + e_.hop);
    }
  }

  // What a stage waits in a step, in microbatches: of 1F1B (p - 1) / v, or by its own schedule, in
  // which a forward pass, either gradient and what is computed again before them take as long.
  double idle_microbatches() const {
    const double stages = static_cast<double>(layout_.pipeline);
    if (layout_.schedule.empty()) {
      return (stages - 1) / chunks_;
    }
    PipelineTimes times;
    const double again = layout_.recompute == Recompute::full ? times.stage.forward : 0;
    times.stage.backward += again;
    times.stage.input_gradient += again;
    return time_pipeline(layout_.schedule, times).idle_to_work() * m_;
  }

  // Weights so often to their users and gradients so often to their owners in a step, as the
  // executor does: each microbatch, where a chip keeps only its part of them. Pipelined chips keep
  // gathered weights until the last microbatch, as step_memory() counts.
  double weight_rounds() const {
    const bool each = layout_.zero == Zero::parameters;
    return layout_.zero == Zero::none ? 0 : !each || layout_.pipeline > 1 ? 1 : 2 * m_;
  }
  double gradient_rounds() const {
    const bool held = layout_.zero == Zero::parameters && layout_.pipeline > 1;
    return layout_.zero >= Zero::gradients && !held ? m_ : 1;
  }

  // Seconds until all that share a parameter have got so many bytes of each; routed experts are
  // shared by fewer.
  double gather_shards(double bytes, double inner = 1, double outer = 1) const {
    const double shared = parameters_.all() - parameters_.experts;
    return links_.shard.gather(shared * bytes, inner, outer) +
           links_.expert_shard.gather(parameters_.experts * bytes, inner, outer);
  }
  // And until the holders of the same shard have summed it.
  double sum_replicas(double bytes, double inner = 1, double outer = 1) const {
    const double shared = (parameters_.all() - parameters_.experts) / links_.shard.size;
    const double experts = parameters_.experts / links_.expert_shard.size;
    return 2 * (links_.replica.gather(shared * bytes, inner, outer) +
                links_.expert_replica.gather(experts * bytes, inner, outer));
  }

  void add_data() {
    StepCost& t = out_.typical;
    const double compute = t.compute();
    if (layout_.batch_devices() <= 1) {
      return;
    }
    const double outer = !job_.software.hides_gradients && !tpu_ ? e_.waiting_outer_links : outer_;
    const double window = e_.hidden_gradients * compute / m_ * 2 / 3 * gradient_rounds();
    const double exposed = tpu_ ? e_.exposed_gather_tpu : e_.exposed_gather;
    const double beside = tpu_ ? e_.gather_beside_tpu : e_.gather_beside;
    const double g = wire_bytes(job_, layout_), w = job_.gather_bytes;
    const double moved = weight_rounds() * w + gradient_rounds() * g;
    out_.limit.data = gather_shards(moved) + sum_replicas(g);
    if (layout_.zero == Zero::parameters && layout_.pipeline == 1) {
      const double gathered = gather_shards(moved, inner_, outer_);
      t.gather = gathered - std::min((1 - exposed) * gathered, beside * compute);
      t.gradients = sum_replicas(g, inner_, outer_);
      return;
    }
    const double time = gather_shards(moved, inner_, outer) + sum_replicas(g, inner_, outer);
    const double hidden =
        job_.software.hides_gradients ? std::min((1 - exposed) * time, window) : 0;
    t.gradients = time - hidden;
  }

  void add_update() {
    const double own =
        (parameters_.all() - parameters_.experts) / static_cast<double>(layout_.shards()) +
        parameters_.experts / static_cast<double>(layout_.expert_shards());  // shared by fewer
    out_.typical.update = own * job_.state_traffic / (memory_ * e_.memory);
  }

  const StepJob& job_;
  const Machine& machine_;
  const Chip& chip_;
  const Layout& layout_;
  const Efficiency& e_;
  const LayoutLinks& links_;
  MatmulTimes* times_;
  bool tpu_ = false;
  double chunks_ = 1, m_ = 1, b_ = 1, tokens_ = 0, width_ = 0;
  double wide_ = 2;  // bytes of an activation
  DType attention_format_ = DType::bf16;
  double peak_ = 0, peak16_ = 0, rate_ = 0, memory_ = 0, inner_ = 1, outer_ = 1;
  ChipParameters parameters_;
  StepCost layer_;   // of one mean layer and microbatch
  StepLimit limit_;  // the same, at published rates
  double math_ = 0, memory_bytes_ = 0, head_ = 0, head_math_ = 0;
  StepPrice out_;
};

}  // namespace detail

// The price of a step under `layout`, whose pipeline has `chunks` of the model on each rank.
inline StepPrice price_step(const StepJob& job, const Machine& machine, const Layout& layout,
                            int chunks = 1, const Efficiency& e = typical_efficiency()) {
  detail::check_step_layout("price_step", job.model, layout, chunks);
  if (layout.devices() != machine.chips()) {
    detail::fail({"price_step: layout ", layout.text(), " = ", layout.devices(), " devices, ",
                  machine.name, " has ", machine.chips(), " chips; they must be equal"});
  }
  if (!(job.batch > 0 && job.context > 0 && chunks > 0) || !detail::is_finite(job.batch) ||
      !detail::is_finite(job.context)) {
    detail::fail({"price_step: ", job.batch, " sequences of ", job.context, " tokens, ", chunks,
                  " chunks; finite numbers above 0 are right"});
  }
  for (const double bytes : {job.gather_bytes, job.gradient_bytes, job.state_traffic}) {
    detail::check_job("price_step", "bytes of a weight, a gradient or an update", bytes, 0, 1e6);
  }
  const detail::LayoutLinks links(machine, layout);
  return detail::StepPricer(job, machine, layout, chunks, e, links).price();
}

}  // namespace tinyscale
