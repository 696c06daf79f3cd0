#pragma once
// Expert parallelism: the experts of a layer lie on the devices of some axes, equal contiguous
// parts, and every device sends its tokens' rows there and gets the results back (GShard, arXiv
// 2006.16668). 4 all_to_alls a layer and microbatch: dispatch, combine, and back through both.
// Dropless they are ragged (as many rows as the router says, MegaBlocks, arXiv 2211.15841); with a
// capacity they are even, of (E, C, D) numbers whether used or not.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tinyscale/mesh/device.hpp"
#include "tinyscale/model/experts.hpp"
#include "tinyscale/model/hooks.hpp"
#include "tinyscale/tensor/tokens.hpp"
#include "tinyscale/tensor/views.hpp"

namespace tinyscale {

// Experts first, .., first + count - 1 are on the device.
struct ExpertPart {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

inline ExpertPart expert_part(std::int64_t experts, std::int64_t devices, std::int64_t index) {
  if (devices < 1 || experts < 1 || experts % devices != 0) {
    detail::fail({"expert_part: ", experts, " experts over ", devices,
                  " devices; a number of devices that divides the experts is right"});
  }
  if (index < 0 || index >= devices) {
    detail::fail({"expert_part: index ", index, " of ", devices, " devices; 0 to ", devices - 1,
                  " is right"});
  }
  return {index * (experts / devices), experts / devices};
}

// ---- Bytes that a device sends in a layer and microbatch, forward and backward ----
// Of 4 all_to_alls by the direct algorithm; `number` is the bytes of a number on the wire.

namespace detail {

inline void check_expert_devices(const char* who, double devices) {
  if (!(devices >= 1) || !is_finite(devices)) {
    fail({who, ": ", devices, " devices; a finite number from 1 is right"});
  }
}

}  // namespace detail

// (tokens) k D (e - 1) / e numbers each: when every expert gets as many.
inline double expert_bytes(double tokens, double top_k, double width, double devices,
                           double number = 4) {
  detail::check_expert_devices("expert_bytes", devices);
  return 4 * number * tokens * top_k * width * (devices - 1) / devices;
}

// Dropless, by the routing: device d sends counts[d * E + e] rows to expert e, and as many come
// back; in the combine it is the others' rows.
inline double expert_bytes(const std::vector<std::int64_t>& counts, std::int64_t devices,
                           std::int64_t index, double width, double number = 4) {
  const auto all = static_cast<std::int64_t>(counts.size());
  if (devices < 1 || all % devices != 0) {
    detail::fail({"expert_bytes: ", all, " counts for ", devices,
                  " devices; one for each device and expert is right"});
  }
  const std::int64_t experts = all / devices;
  const ExpertPart own = expert_part(experts, devices, index);
  double rows = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::int64_t from = static_cast<std::int64_t>(i) / experts;
    const std::int64_t expert = static_cast<std::int64_t>(i) % experts;
    const bool here = expert >= own.first && expert < own.first + own.count;
    rows += here != (from == index) ? static_cast<double>(counts[i]) : 0;
  }
  return 2 * number * rows * width;
}

// With a capacity: E C D (e - 1) / e numbers each.
inline double expert_capacity_bytes(double experts, double capacity, double width, double devices,
                                    double number = 4) {
  detail::check_expert_devices("expert_capacity_bytes", devices);
  return 4 * number * experts * capacity * width * (devices - 1) / devices;
}

// Dropless also needs to be told how many rows come: of each expert once, and a total before each
// of the 4; floats.
inline double expert_count_bytes(double experts, double devices) {
  detail::check_expert_devices("expert_count_bytes", devices);
  return 4 * (devices - 1) * (experts / devices + 4);
}

namespace detail {

// The devices that hold the experts, as one of them.
struct ExpertGroup {
  Device& device;
  Axes axes;
  CollectiveOptions options;
  std::int64_t devices, index;
};

inline ExpertBody own_experts(const ExpertBody& run, const ExpertPart& part) {
  return [&run, first = static_cast<int>(part.first)](int e, const Tensor& rows) {
    return run(first + e, rows);
  };
}

inline Tensor dispatch_all(const ExpertGroup& to, const ExpertRows& in, const ExpertBody& run) {
  const auto experts = static_cast<std::int64_t>(in.counts.size());
  const ExpertPart part = expert_part(experts, to.devices, to.index);
  Tensor counts({experts});
  std::vector<std::int64_t> sent(static_cast<std::size_t>(to.devices), 0);
  for (std::size_t e = 0; e < in.counts.size(); ++e) {
    counts.data()[e] = static_cast<float>(in.counts[e]);  // below 2^24: exact
    sent[e / static_cast<std::size_t>(part.count)] += in.counts[e];
  }
  CollectiveOptions exactly = to.options;
  exactly.format = DType::f32;
  const Tensor came = to.device.all_to_all(counts, to.axes, 0, 0, exactly);  // (e, E / e)
  std::vector<std::int64_t> got;
  const Tensor rows = to.device.all_to_all(in.rows, to.axes, sent, &got, to.options);

  // They lie by device, then expert; an expert wants its own together.
  ExpertRows mine;
  std::vector<std::int64_t> next;  // row of each (device, expert)
  std::int64_t row = 0;
  for (std::int64_t i = 0; i < came.count(); ++i) {
    next.push_back(row);
    row += static_cast<std::int64_t>(came.data()[i]);
  }
  std::vector<std::int32_t> order;                                   // by expert: where it came
  std::vector<std::int32_t> back(static_cast<std::size_t>(row), 0);  // and the other way
  for (std::int64_t e = 0; e < part.count; ++e) {
    const std::size_t before = order.size();
    for (std::int64_t i = e; i < came.count(); i += part.count) {
      const std::int64_t first = next[static_cast<std::size_t>(i)];
      for (std::int64_t r = first; r < first + static_cast<std::int64_t>(came.data()[i]); ++r) {
        back[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(order.size());
        order.push_back(static_cast<std::int32_t>(r));
      }
    }
    mine.counts.push_back(static_cast<std::int64_t>(order.size() - before));
  }
  mine.rows = embedding(rows, order, {row});
  const Tensor out = embedding(run_experts(mine, own_experts(run, part)), back, {row});
  return to.device.all_to_all(out, to.axes, got, nullptr, to.options);
}

inline Tensor dispatch_even(const ExpertGroup& to, const ExpertRows& in, const ExpertBody& run) {
  const auto experts = static_cast<std::int64_t>(in.counts.size());
  const ExpertPart part = expert_part(experts, to.devices, to.index);
  const ExpertBuffer padded = pad_to_capacity(in);  // (E, C, D)
  const Tensor here =
      to.device.all_to_all(padded.buffer, to.axes, 0, 1, to.options);  // (E/e, e C, D)
  ExpertRows mine;
  mine.counts.assign(static_cast<std::size_t>(part.count), here.dim(1));
  mine.rows = reshape(here, {part.count * here.dim(1), here.dim(2)});
  const Tensor out = reshape(run_experts(mine, own_experts(run, part)), here.shape());
  return padded.rows_of(to.device.all_to_all(out, to.axes, 1, 0, to.options));  // of (E, C, D)
}

// Cuts the experts over the devices of `experts`; `batch` are the axes along which devices hold
// other tokens of the batch. The model needs only its own experts' parameters (expert_part).
// The gradients of the devices are to be added up: over `batch` of what all have, over those of
// its axes that are not in `experts` for an expert's. Devices of a tensor axis that is in neither
// send all of their rows each. A balance loss adds an all_reduce of 2 E numbers over `batch` to the
// forward pass.
inline void add_expert_hooks(Hooks& hooks, Device& device, const Axes& experts, const Axes& batch,
                             const CollectiveOptions& options = CollectiveOptions()) {
  if (!batch.names.empty()) {
    hooks.batch_mean = [&device, batch](const Tensor& x) {
      return device.all_reduce(x, batch, Reduce::mean);
    };
  }
  if (experts.names.empty()) {
    return;
  }
  const std::vector<int> found = device.endpoint().find_axes("add_expert_hooks", experts);
  const ExpertGroup group = {device, experts, options, device.endpoint().size_of(found),
                             device.endpoint().index_on(found)};
  hooks.dispatch = [group](const ExpertRows& in, const ExpertBody& run) {
    return in.capacity > 0 ? dispatch_even(group, in, run) : dispatch_all(group, in, run);
  };
}

}  // namespace detail
}  // namespace tinyscale
