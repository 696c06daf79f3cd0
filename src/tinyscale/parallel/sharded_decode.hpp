#pragma once
// Generation on the devices of a machine, from one Transformer: the same tokens as on one device,
// for prefill and decode alike, by any mix of tensor, pipeline and sequence devices.

#include <cstdint>  // int64_t
#include <vector>   // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/mesh/mesh.hpp"
#include "tinyscale/parallel/sharded_report.hpp"

namespace tinyscale {
namespace detail {

// Each prompt and what came of it.
inline List<std::vector<std::int32_t>> made_ids(const MeshRun& run,
                                                const List<std::vector<std::int32_t>>& prompts) {
  const int last = run.devices() - 1;
  const Tensor made = run.kept(last, "made"), lengths = run.kept(last, "lengths");
  List<std::vector<std::int32_t>> ids;
  std::int64_t at = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    ids.push_back(prompts[i]);
    const auto length = static_cast<std::int64_t>(lengths.data()[i]);
    for (std::int64_t end = at + length; at < end; ++at) {
      ids.back().push_back(static_cast<std::int32_t>(made.data()[at]));
    }
  }
  return ids;
}

inline ServedDevice served_device(const Transformer& model,
                                  const List<std::vector<std::int32_t>>& prompts,
                                  const List<std::vector<std::int32_t>>& ids, std::int64_t n,
                                  const ServeLayout& layout, const ServeOptions& options,
                                  std::int64_t rank) {
  ServedDevice device;
  device.place = ServePlace(model.config, layout, rank);
  device.weights = serve_weight_bytes(model, layout, device.place);
  device.read = serve_read_bytes(model, layout, device.place);
  device.experts = serve_weight_bytes(model, layout, device.place, true);
  const KvPages pages(device.place.cache_config(model.config), options.pages);
  device.page_bytes = static_cast<double>(pages.page_bytes());
  device.row_bytes = static_cast<double>(pages.layer_bytes());
  device.replay = ServeReplay(model.config, layout, options, device.place, prompts, ids, n);
  return device;
}

}  // namespace detail

// n more tokens of each prompt, on all chips of the machine: the ids of one device.
inline ShardedGeneration generate_sharded(const Transformer& model,
                                          const List<std::vector<std::int32_t>>& prompts,
                                          std::int64_t n, const ServeLayout& layout,
                                          const Machine& machine,
                                          const ServeOptions& options = {}) {
  detail::check_serve_layout(model, layout);
  detail::check_serve(model.config, prompts, n, options);
  if (machine.chips() != layout.devices()) {
    detail::fail({"generate_sharded: ", layout.text(), " is ", layout.devices(), " devices, ",
                  machine.name, " has ", machine.chips(), " chips; as many are right"});
  }
  const NoGrad no_grad;
  Mesh mesh(machine, detail::serve_axes(layout).mesh);
  mesh.algorithm = layout.algorithm;
  const MeshRun run = mesh.run([&](Device& device) {
    detail::DeviceDecode(model, layout, options, device).run(prompts, n);
  });
  ShardedGeneration made{
      detail::made_ids(run, prompts), run, layout, model.config, machine, options.greedy()};
  for (std::int64_t rank = 0; rank < layout.devices(); ++rank) {
    made.devices.push_back(
        detail::served_device(model, prompts, made.ids, n, layout, options, rank));
  }
  for (const detail::ReplayedTurn& turn : made.devices.back().replay.turns) {
    made.tokens += turn.tokens;
    made.rows += turn.rows;
  }
  detail::ServeReporter report(made);
  return made;
}

}  // namespace tinyscale
