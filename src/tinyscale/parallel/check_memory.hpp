#pragma once
// Out of memory on the declared chip: what a device needs by kind beside what its chip has, and
// which layouts would fit. Bytes are those counted here, four a number; those of another layout an
// estimate from them:
//   optimizer, gradients, weights   / devices that ZeRO shards over; and whole while in use: of
//                                   weights 2 units, of gradients 3
//   activations                     min(p, m) / m of a batch; recomputed: inputs and one layer

#include <algorithm>  // min, max
#include <cstdint>    // int64_t
#include <string>     // string

#include "tinyscale/hardware/network.hpp"
#include "tinyscale/measure/memory.hpp"
#include "tinyscale/parallel/layout_axes.hpp"

namespace tinyscale {

// Peak bytes of a device; the peak of all together is at most the sum of the others.
struct DeviceMemory {
  double parameters = 0, gradients = 0, optimizer = 0, activations = 0, logits = 0, buffers = 0;
  double total = 0;

  static DeviceMemory peak_of(const MemoryMeter& meter) {
    return {meter.peak(MemoryKind::parameter),
            meter.peak(MemoryKind::gradient),
            meter.peak(MemoryKind::optimizer),
            meter.peak(MemoryKind::activation),
            meter.peak(MemoryKind::logits),
            meter.peak(MemoryKind::buffer),
            meter.peak_total()};
  }
  std::string text() const {
    return detail::cat({"parameters ", format_bytes(parameters), ", gradients ",
                        format_bytes(gradients), ", optimizer ", format_bytes(optimizer),
                        ", activations ", format_bytes(activations), ", logits ",
                        format_bytes(logits), ", buffers ", format_bytes(buffers)});
  }
};

namespace detail {

// What a device keeps of its weights, gradients or moments where ZeRO shards those from a stage on.
// Routed experts are shared by those alone that hold the same.
inline double kept_share(const Layout& layout, const ModelConfig& c, Zero from) {
  if (layout.zero < from) {
    return 1;
  }
  const double all = static_cast<double>(c.mixture_layers() * c.experts *
                                         c.feed_forward_parameters(c.expert_hidden));
  const double here = all / static_cast<double>(layout.expert);
  const double routed = here / (static_cast<double>(c.parameters()) - all + here);
  return (1 - routed) / static_cast<double>(layout.shards()) +
         routed / static_cast<double>(layout.expert_shards());
}

// About what comes and goes in a step, by which what was counted of one layout is scaled to
// another. Of `now` and `then` the devices are the same, the activations are those counted under
// `now`.
struct StepPeak {
  const DeviceMemory& counted;
  const Layout& now;
  const ModelConfig& model;
  std::int64_t batch;

  double layers() const {  // of a stage
    return static_cast<double>(std::max<std::int64_t>(1, model.layers / now.pipeline));
  }
  // Of the weights, in ZeRO's units: a layer, or the tables at the ends.
  double units(double count) const { return std::min(1.0, count / (layers() + 1)); }
  double whole() const { return counted.parameters / kept_share(now, model, Zero::parameters); }
  // A layer's backward pass has as much again of gradients, with rows dealt out to experts more.
  double at_work() const { return model.experts > 0 ? 1.8 : 1.4; }
  static double held(const Layout& l) {  // microbatches under way
    return static_cast<double>(std::min(l.pipeline, l.microbatches));
  }
  double input() const {  // of a layer and the whole batch
    return 4 * static_cast<double>(batch / now.data * model.context / now.context * model.width /
                                   (now.sequence_parallel ? now.tensor : 1));
  }
  // Kept of a layer and the whole batch when nothing is computed again.
  double layer() const {
    const double all = counted.activations * static_cast<double>(now.microbatches);
    return now.recompute == Recompute::full
               ? std::max(0.0, all - input() * layers() * held(now)) / at_work()
               : all / (held(now) * layers() + at_work() - 1);
  }
  // Weights gathered from ZeRO's shards: of the unit at work and the next.
  double gathered(const Layout& l) const {
    return kept_share(l, model, Zero::parameters) < 1 ? whole() * units(2) : 0;
  }
  // The larger of the two ends of a backward pass. It begins with all activations, and with the
  // gradients of earlier microbatches if those are done; it ends with a layer's activations and all
  // gradients. Of those that ZeRO shards three units are whole, two sums on their way.
  double bytes(const Layout& l) const {
    const double m = static_cast<double>(l.microbatches), one = layer() * at_work();
    const double kept = l.recompute == Recompute::full ? input() * layers() * held(l) + one
                                                       : layer() * (held(l) * layers() - 1) + one;
    const double share = kept_share(l, model, Zero::gradients);
    const bool cut = share < 1;
    const bool steady = m > held(l);
    const double end = !cut ? 1 : share + units(3) + (m > 1 ? share * units(2) : 0);
    const double begin = !steady ? units(1) : !cut ? 1 : share + units(2);
    const double logits = counted.logits * static_cast<double>(now.microbatches);
    return std::max((kept + logits) / m + whole() * begin, one / m + whole() * end);
  }
};

}  // namespace detail

// About what a device would need under `then`, which needs `m` under `now`. The two differ in zero,
// recompute and microbatches alone; `batch` sequences a step of c.context tokens. What runs counted
// of small models was within a fifth of it.
inline double estimated_bytes(const DeviceMemory& m, const Layout& now, const Layout& then,
                              const ModelConfig& c, std::int64_t batch) {
  const detail::StepPeak peak{m, now, c, batch};
  const auto scaled = [&](double bytes, Zero from) {
    return bytes * detail::kept_share(then, c, from) / detail::kept_share(now, c, from);
  };
  const double gathered = std::min(m.buffers, peak.gathered(now));
  const double buffers = m.buffers - gathered;
  const double before = peak.bytes(now);
  const double moving = std::max(0.0, m.total - m.parameters - m.optimizer - m.buffers);
  return scaled(m.parameters, Zero::parameters) + scaled(m.optimizer, Zero::optimizer) +
         (before > 0 ? moving * peak.bytes(then) / before : moving) + peak.gathered(then) +
         buffers * static_cast<double>(now.microbatches) / static_cast<double>(then.microbatches);
}

namespace detail {

// The changes of a layout with which `needs` would fit in `bytes`: each alone, else all together.
inline std::string what_would_fit(const Layout& layout, const ModelConfig& c, std::int64_t batch,
                                  const DeviceMemory& needs, double bytes) {
  static const char* const zero_text[] = {"", "Zero::optimizer", "Zero::gradients",
                                          "Zero::parameters"};
  std::string found;
  Layout all = layout;
  std::string all_text;
  const auto try_one = [&](const Layout& then, const std::string& change) {
    const double about = estimated_bytes(needs, layout, then, c, batch);
    if (about <= bytes) {
      found += cat({found.empty() ? "" : ", or ", change, " (about ", format_bytes(about), ")"});
    }
    return about <= bytes;
  };
  const auto take = [&](const std::string& change) {
    all_text += (all_text.empty() ? "" : " and ") + change;
  };
  Layout then = layout;
  for (int zero = static_cast<int>(layout.zero) + 1; zero <= 3 && layout.batch_devices() > 1;
       ++zero) {
    then.zero = all.zero = static_cast<Zero>(zero);
    const bool good = try_one(then, cat({"zero = ", zero_text[zero]}));
    if (good || zero == 3) {
      take(cat({"zero = ", zero_text[zero]}));
      break;
    }
  }
  then = layout;
  if (layout.recompute != Recompute::full) {
    then.recompute = all.recompute = Recompute::full;
    try_one(then, "recompute = Recompute::full");
    take("recompute = Recompute::full");
  }
  then = layout;
  std::int64_t microbatches = 2 * layout.microbatches;
  for (; layout.schedule.empty() && batch % (layout.data * microbatches) == 0; microbatches *= 2) {
    then.microbatches = all.microbatches = microbatches;
    if (try_one(then, cat({"microbatches = ", microbatches}))) {
      break;
    }
  }
  if (all.microbatches > layout.microbatches) {
    take(cat({"microbatches = ", all.microbatches}));
  }
  if (found.empty() && !all_text.empty()) {
    try_one(all, all_text);
  }
  return found.empty() ? "nothing on as many devices; more of tensor or pipeline takes less each"
                       : found;
}

}  // namespace detail

// Throws when a device needs more than the machine's chip has, with the ledger of the one that
// needs most. needs[rank]: counted after a step, or predicted. A chip of 0 bytes is not known.
inline void check_memory(const Layout& layout, const ModelConfig& c, std::int64_t batch,
                         const Machine& machine, const List<DeviceMemory>& needs) {
  std::size_t worst = 0;
  for (std::size_t rank = 0; rank < needs.size(); ++rank) {
    worst = needs[rank].total > needs[worst].total ? rank : worst;
  }
  const double bytes = machine.chip.memory_bytes;
  if (needs.empty() || bytes <= 0 || needs[worst].total <= bytes) {
    return;
  }
  const detail::LayoutAxes axes = detail::layout_axes(layout);
  const detail::MeshPoint at(axes.mesh, static_cast<std::int64_t>(worst));
  const std::string stage =
      layout.pipeline > 1 ? detail::cat({" (pipeline rank ", at.index(axes.pipeline), ")"}) : "";
  detail::fail({"train: device ", worst, stage, " needs ", format_bytes(needs[worst].total),
                ", the chip ", machine.chip.name, " has ", format_bytes(bytes), ": ",
                needs[worst].text(),
                "; would fit: ", detail::what_would_fit(layout, c, batch, needs[worst], bytes)});
}

}  // namespace tinyscale
