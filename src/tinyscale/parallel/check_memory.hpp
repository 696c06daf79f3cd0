#pragma once
// Out of memory on the declared chip: what a device needs by kind beside what its chip has, and
// which layouts would fit. Bytes are those counted here, four a number; those of another layout an
// estimate from them:
//   optimizer, gradients, weights   / devices that ZeRO shards over; whole while in use: 2 units
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

// About what a device would need under `then`, which needs `m` under `now`. The two differ in zero,
// recompute and microbatches alone; `batch` sequences a step of c.context tokens.
inline double estimated_bytes(const DeviceMemory& m, const Layout& now, const Layout& then,
                              const ModelConfig& c, std::int64_t batch) {
  const auto layers = static_cast<double>(std::max<std::int64_t>(1, c.layers / now.pipeline));
  const auto shared = [&](Zero from) {  // how much less of it a device has
    const auto shards = [&](const Layout& layout) {
      return layout.zero >= from ? static_cast<double>(layout.shards()) : 1.0;
    };
    const double less = shards(now) / shards(then);
    const double whole = from > Zero::optimizer && less < 1 ? 2 / (layers + 1) : 0;
    return std::min(1.0, less + whole);
  };
  const auto under_way = [](const Layout& layout) {  // shares of a batch
    return static_cast<double>(std::min(layout.pipeline, layout.microbatches)) /
           static_cast<double>(layout.microbatches);
  };
  double activations = m.activations * under_way(then) / under_way(now);
  if (then.recompute == Recompute::full && now.recompute != Recompute::full) {
    const auto tokens = static_cast<double>(batch / now.data * c.context / now.context /
                                            (now.sequence_parallel ? now.tensor : 1));
    const double inputs = 4 * tokens * static_cast<double>(c.width) * layers * under_way(then);
    activations = std::min(activations, inputs + activations / layers);
  }
  // Weights and moments are always there; of the rest the most at one moment, at most their sum.
  const double rest = m.gradients * shared(Zero::gradients) + activations +
                      m.logits * under_way(then) / under_way(now) + m.buffers;
  return m.parameters * shared(Zero::parameters) + m.optimizer * shared(Zero::optimizer) +
         std::min(m.total - m.parameters - m.optimizer, rest);
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
