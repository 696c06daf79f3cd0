#pragma once
// Every layout of a job on a machine, priced: tensor x pipeline x context (of each kind) x data,
// how many sequences at a time (powers of two and divisors up to 256), ZeRO's stage (1 to 3) and
// reach, 1, 2, 4 or 8 chunks of a pipeline rank, experts, and the least recomputation with which it
// fits. The fastest are those of the least typical time.

#include <algorithm>  // max, min
#include <cmath>      // ceil
#include <cstdint>    // std::int64_t
#include <string>     // text
#include <vector>     // divisors

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/plan/layout_rules.hpp"
#include "tinyscale/plan/step_memory.hpp"
#include "tinyscale/plan/training_job.hpp"

namespace tinyscale {

// One way to divide the machine, what its step takes and what a chip must hold.
struct TrainingLayout {
  Layout layout;
  int chunks = 1;  // of the model on a pipeline rank: interleaved 1F1B above 1
  Shape dims;      // the machine's, in the order in which the layout's axes lie on them
  StepPrice price;
  StepMemory memory_parts;
  double step_time = 0;     // s, the limit
  double typical_time = 0;  // s
  double memory = 0;        // bytes of the fullest chip
  std::string bound;        // of the limit: math, bubble, memory, tensor, context, expert, data

  std::string text() const {
    return layout.text() + (chunks > 1 ? detail::cat({", ", chunks, " chunks"}) : "");
  }
};

namespace detail {

inline MemoryConvention training_convention(const TrainingInputs& in) {
  MemoryConvention by;
  by.states = in.job.state;
  by.activation_bytes = by.gathered_bytes = activation_bytes(in.job.format);
  by.logit_bytes = in.job.format == DType::f32 ? 8 : 10;  // bf16 and f32, and the f32 gradient
  return by;
}

// Sequences of the busiest replica.
inline std::int64_t replica_sequences(const TrainingInputs& in, const Layout& layout) {
  return static_cast<std::int64_t>(std::ceil(in.sequences / static_cast<double>(layout.data)));
}

// Sequences at a time: the replica's over its microbatches.
inline double microbatch_of(const TrainingInputs& in, const Layout& layout) {
  return std::ceil(static_cast<double>(replica_sequences(in, layout)) /
                   static_cast<double>(layout.microbatches));
}

inline StepMemory memory_of(const TrainingInputs& in, const Layout& layout, int chunks) {
  return priced_memory(in.job.model, layout, in.machine.chip, in.context, microbatch_of(in, layout),
                       chunks, in.job.software, training_convention(in));
}

// A layout on the machine's dimensions in one of their orders.
struct PlacedLinks {
  const Machine* machine = nullptr;
  LayoutLinks links;
};

// The orders of which none has links that are all as fast as another's.
inline List<PlacedLinks> placed_links(const List<Machine>& orders, const Layout& layout) {
  List<PlacedLinks> out;
  for (const Machine& machine : orders) {
    const LayoutLinks links(machine, layout);
    List<PlacedLinks> kept;
    bool worse = false;
    for (const PlacedLinks& other : out) {
      worse = worse || other.links.no_slower(links);
      if (worse || !links.no_slower(other.links)) {
        kept.push_back(other);
      }
    }
    if (!worse) {
      kept.push_back({&machine, links});
      out = std::move(kept);
    }
  }
  return out;
}

// A layout in the fastest of its places.
struct FastestPlace {
  StepPrice price;
  const Machine* machine = nullptr;
  double limit = 0, typical = 0;  // s
};

// Replicas with fewer sequences than the busiest wait for it. `job`: its batch is set.
inline FastestPlace fastest_place(const TrainingInputs& in, StepJob& job,
                                  const List<PlacedLinks>& places, const Layout& layout, int chunks,
                                  MatmulTimes* times = nullptr) {
  FastestPlace out;
  job.batch = microbatch_of(in, layout) * static_cast<double>(layout.microbatches * layout.data);
  for (const PlacedLinks& at : places) {
    const StepPrice price =
        StepPricer(job, *at.machine, layout, chunks, typical_efficiency(), at.links, times).price();
    const double limit = price.limit.total(), typical = std::max(limit, price.typical.total());
    if (out.machine == nullptr || typical < out.typical) {
      out = {price, at.machine, limit, typical};
    }
  }
  return out;
}

inline TrainingLayout placed_layout(const FastestPlace& at, const Layout& layout, int chunks) {
  TrainingLayout out;
  out.layout = layout;
  out.chunks = chunks;
  out.dims = at.machine->dims;
  out.price = at.price;
  out.step_time = at.limit;
  out.typical_time = at.typical;
  out.bound = out.price.limit.bound();
  return out;
}

inline TrainingLayout price_layout(const TrainingInputs& in, StepJob job,
                                   const List<PlacedLinks>& places, const Layout& layout,
                                   int chunks) {
  return placed_layout(fastest_place(in, job, places, layout, chunks), layout, chunks);
}

inline std::vector<std::int64_t> divisors_of(std::int64_t n, std::int64_t most) {
  std::vector<std::int64_t> out;
  for (std::int64_t d = 1; d <= std::min(n, most); ++d) {
    if (n % d == 0) {
      out.push_back(d);
    }
  }
  return out;
}

// The machine with its inner dimensions in each order: axes cover them from the last.
inline List<Machine> machine_orders(const Machine& machine) {
  List<Machine> out = {machine};
  const int dims = machine.dims.size(), inner = inner_dims(machine.chip, machine.dims);
  if (machine.chip.kind != "tpu" || inner < 2) {
    return out;
  }
  std::vector<int> order;
  for (int i = 0; i < dims; ++i) {
    order.push_back(i);
  }
  const auto first = order.begin() + (dims - inner);
  while (std::next_permutation(first, order.end())) {
    const Machine turned = reordered(machine, order);
    bool known = false;
    for (const Machine& other : out) {
      known = known || other.dims == turned.dims;
    }
    if (!known) {
      out.push_back(turned);
    }
  }
  return out;
}

class LayoutSearch {
 public:
  explicit LayoutSearch(const TrainingInputs& in)
      : in_(in), step_(in.step()), orders_(machine_orders(in.machine)) {}

  // The fastest `kept` that fit, fastest first; empty when none does.
  List<TrainingLayout> run(std::size_t kept) {
    kept_ = kept;
    const std::int64_t chips = in_.machine.chips();
    const ModelConfig& model = in_.job.model;
    for (const std::int64_t tensor : divisors_of(chips, model.heads)) {
      if (!tensor_divides(model, tensor)) {
        continue;
      }
      for (const std::int64_t pipeline : divisors_of(chips / tensor, model.layers)) {
        add_contexts(tensor, pipeline);
      }
    }
    return best_;
  }

  double least_memory() const { return least_memory_; }  // of all that were tried, bytes a chip

 private:
  void add_contexts(std::int64_t tensor, std::int64_t pipeline) {
    const std::int64_t rest = in_.machine.chips() / tensor / pipeline;
    const auto context = static_cast<std::int64_t>(in_.context);
    for (const std::int64_t parts : divisors_of(rest, context)) {
      const std::int64_t data = rest / parts;
      if (context % (parts > 1 ? 2 * parts : 1) != 0 || static_cast<double>(data) > in_.sequences) {
        continue;
      }
      Layout layout;
      layout.tensor = tensor;
      layout.pipeline = pipeline;
      layout.context = parts;
      layout.data = data;
      layout.sequence_parallel = tensor > 1 && context % (parts * tensor) == 0;
      add_experts(layout);
      if (parts > 1) {
        layout.context_parallel = ContextParallel::gathered;
        add_experts(layout);
        layout.context_parallel = ContextParallel::ulysses;
        if (ulysses_divides(in_.job.model, layout)) {
          add_experts(layout);
        }
      }
    }
  }

  void add_experts(Layout layout) {
    if (in_.job.model.experts == 0) {
      add_zero(layout);
      return;
    }
    for (const std::int64_t expert : divisors_of(layout.batch_devices(), in_.job.model.experts)) {
      if (in_.job.model.experts % expert == 0) {
        layout.expert = expert;
        layout.whole_experts = false;
        add_zero(layout);
        if (layout.tensor > 1 && whole_experts_divide(in_.job.model, layout)) {
          layout.whole_experts = true;
          add_zero(layout);
        }
      }
    }
  }

  // Over all replicas, or over those of a slice or node with copies outside.
  void add_zero(Layout layout) {
    const std::int64_t replicas = layout.batch_devices();
    for (const Zero zero : {Zero::optimizer, Zero::gradients, Zero::parameters}) {
      layout.zero = replicas > 1 ? zero : Zero::none;
      layout.zero_devices = 0;
      add_microbatches(layout);
      const std::int64_t close_by = near_replicas(in_.machine, layout);
      if (replicas == 1) {
        return;
      }
      if (close_by > 1 && close_by < replicas) {
        layout.zero_devices = close_by;
        add_microbatches(layout);
      }
    }
  }

  static std::int64_t near_replicas(const Machine& machine, const Layout& layout) {
    const std::int64_t close_by = std::max<std::int64_t>(1, domain_of(machine) / layout.tensor);
    return layout.batch_devices() % close_by == 0 ? close_by : 1;
  }

  void add_microbatches(Layout layout) {
    const std::int64_t sequences = replica_sequences(in_, layout);
    const List<PlacedLinks> places = placed_links(orders_, layout);
    std::vector<std::int64_t> sizes = divisors_of(sequences, 256);
    for (std::int64_t each = 1; each < sequences; each *= 2) {
      sizes.push_back(each);
    }
    sizes.push_back(sequences);
    insertion_sort(sizes.data(), sizes.data() + sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      layout.microbatches = (sequences + sizes[i] - 1) / sizes[i];
      const bool known = (i > 0 && sizes[i] == sizes[i - 1]) ||
                         layout.microbatches > 2147483647 / layout.devices();  // more are no layout
      if (!known && (layout.microbatches >= layout.pipeline || sizes[i] == 1)) {
        add_chunks(places, layout);
      }
    }
  }

  void add_chunks(const List<PlacedLinks>& places, Layout& layout) {
    for (const int chunks : {1, 2, 4, 8}) {
      const bool can =
          chunks == 1 || (layout.pipeline > 1 && in_.job.model.layers >= layout.pipeline * chunks &&
                          layout.microbatches % layout.pipeline == 0);
      if (can) {
        add(places, layout, chunks);
      }
    }
  }

  // With the least recomputation that fits; the memory of what would be too slow anyway is not
  // asked for.
  void add(const List<PlacedLinks>& places, Layout& layout, int chunks) {
    const double holds = in_.machine.chip.memory_bytes;
    for (const Recompute again : {Recompute::none, Recompute::selective, Recompute::full}) {
      layout.recompute = again;
      const FastestPlace at = fastest_place(in_, step_, places, layout, chunks, &times_);
      if (best_.size() == kept_ && at.typical >= best_.back().typical_time) {
        return;
      }
      const StepMemory memory = memory_of(in_, layout, chunks);
      const double bytes = memory.total();
      least_memory_ = least_memory_ > 0 ? std::min(least_memory_, bytes) : bytes;
      if (holds > 0 && bytes > holds) {
        continue;
      }
      TrainingLayout priced = placed_layout(at, layout, chunks);
      priced.memory = bytes;
      priced.memory_parts = memory;
      keep(priced);
      return;
    }
  }

  void keep(const TrainingLayout& priced) {
    std::size_t at = best_.size();
    best_.push_back(priced);
    while (at > 0 && best_[at - 1].typical_time > priced.typical_time) {
      best_[at] = best_[at - 1];
      --at;
    }
    best_[at] = priced;
    if (best_.size() > kept_) {
      best_.pop_back();
    }
  }

  const TrainingInputs& in_;
  StepJob step_;
  MatmulTimes times_;
  const List<Machine> orders_;
  List<TrainingLayout> best_;
  std::size_t kept_ = 10;
  double least_memory_ = 0;
};

}  // namespace detail
}  // namespace tinyscale
