#pragma once
// A compiled function at other batch sizes: made from three captures, not from one more each.

#include <cstddef>  // size_t
#include <cstdint>  // int64_t
#include <vector>   // vector

#include "tinyscale/compile/compiled.hpp"
#include "tinyscale/compile/symbolic_batch.hpp"

namespace tinyscale {

// The function at three batch sizes, its own and two more, so that others need no capture.
inline void Compiled::make_symbolic(Compilation& made, const std::vector<Tensor>& inputs) const {
  if (inputs.empty() || inputs[0].dims() == 0 || inputs[0].dim(0) < 2) {
    made.not_symbolic = "the first input has no batch of two or more";
    return;
  }
  for (std::size_t r = 0; r < made.backward.size(); ++r) {
    if (made.part_of(r) != nullptr && state().options.activation_bytes > 0) {
      made.not_symbolic = "what a budget of bytes keeps depends on the batch";
      return;
    }
  }
  for (const detail::Guards::Input& input : made.guards.inputs) {
    if (made.guards.layouts && !input.strides.empty()) {
      made.not_symbolic = "what it does depends on the strides of its inputs";
      return;
    }
  }
  const std::int64_t batch = inputs[0].dim(0);
  const std::int64_t batches[] = {batch, batch + 1, batch + 3};
  Shared<detail::SymbolicBatch> symbolic(new detail::SymbolicBatch);
  for (const Tensor& x : inputs) {
    symbolic->batched.push_back(x.dims() > 0 && x.dim(0) == batch);
  }
  Shared<Compilation> samples[2];
  try {
    for (int s = 0; s < 2; ++s) {
      std::vector<Tensor> sized;
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        Shape shape = inputs[i].shape();
        if (symbolic->batched[i]) {
          shape.set(0, batches[s + 1]);
        }
        sized.push_back(detail::phantom(shape));
        sized.back().set_slot(inputs[i].slot());
      }
      samples[s] = capture(sized, true);
    }
  } catch (const Error& error) {
    made.not_symbolic = error.what();
    return;
  }
  const auto form = [&](const Graph& a, const Graph& b, const Graph& c) {
    const Graph* const graphs[] = {&a, &b, &c};
    return detail::SymbolicGraph(graphs, batches, made.graph.constants.size(), made.not_symbolic);
  };
  const Compilation &a = *samples[0], &b = *samples[1];
  symbolic->graph = form(made.graph, a.graph, b.graph);
  symbolic->cut = form(made.cut.graph, a.cut.graph, b.cut.graph);
  for (std::size_t r = 0; r < made.backward.size() && made.not_symbolic.empty(); ++r) {
    symbolic->backward.push_back(
        form(made.backward[r].cut.graph, a.backward[r].cut.graph, b.backward[r].cut.graph));
  }
  if (made.not_symbolic.empty()) {
    made.symbolic = symbolic;
  }
}

// Whether the function, run at this size without numbers, does what the graph of all sizes says; if
// not, that graph is given up.
inline bool Compiled::does_alike(Compilation& made, const detail::SymbolicBatch& symbolic,
                                 const std::vector<Tensor>& inputs) const {
  if (state().options.confirmations == 0) {
    return true;
  }
  std::string why = "it does something else at this batch size";
  try {
    std::vector<Tensor> sized;
    for (const Tensor& x : inputs) {
      sized.push_back(detail::phantom(x.shape()));
      sized.back().set_slot(x.slot());
    }
    const Shared<Compilation> seen = capture(sized, true);
    if (!seen->rerun && detail::same_capture(seen->graph, symbolic.graph.at(inputs[0].dim(0)))) {
      return true;
    }
  } catch (const Error& error) {
    why = error.what();
  }
  const std::lock_guard<std::mutex> lock(state().mutex);
  made.symbolic.reset();
  made.not_symbolic = state().reason = why;
  --state().counters.hits;
  ++state().counters.recompiles;
  return false;
}

// Makes a copy of a compilation that of another batch size.
inline void Compiled::at_batch(const Shared<Compilation>& sized,
                               const std::vector<Tensor>& inputs) const {
  const std::int64_t batch = inputs[0].dim(0);
  const detail::SymbolicBatch& symbolic = *sized->symbolic;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    sized->guards.inputs[i].shape = inputs[i].shape();
  }
  const auto resize_known = [](Graph& graph, std::size_t own) {
    for (const GraphNode& node : graph.nodes) {
      const bool known = node.op == Op::constant && static_cast<std::size_t>(node.number(0)) >= own;
      if (known) {
        graph.constants[static_cast<std::size_t>(node.number(0))] = detail::phantom(node.shape);
      }
    }
  };
  const std::size_t own = sized->graph.constants.size();
  sized->graph = symbolic.graph.at(batch);
  sized->cut.graph = symbolic.cut.at(batch);
  resize_known(sized->cut.graph, own);
  sized->plan = plan_of(sized->cut.graph, sized->plan_writes, false);
  for (std::size_t r = 0; r < sized->backward.size(); ++r) {
    detail::BackwardPart& part = sized->backward[r];
    part.cut.graph = symbolic.backward[r].at(batch);
    resize_known(part.cut.graph, own);
    part.plan = part.leaves.empty() ? part.plan : plan_of(part.cut.graph, {}, false);
  }
  sized->symbolic.reset();
  sized->confirmations = 0;
  guard_owners(*sized);
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().known.push_back(sized);
  ++state().counters.sizes;
}

}  // namespace tinyscale
