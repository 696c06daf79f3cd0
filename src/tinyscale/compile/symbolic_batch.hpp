#pragma once
// One graph for every batch size: what a function does at three sizes shows which sizes and numbers
// of its graph follow the batch, and how: as a B + b, or (a mean's factor) as c / B.

#include <cmath>    // fabs
#include <cstddef>  // size_t
#include <cstdint>  // int64_t
#include <string>   // reasons
#include <utility>  // move

#include "tinyscale/compile/graph_cut.hpp"
#include "tinyscale/compile/op_graph.hpp"

namespace tinyscale {
namespace detail {

constexpr int batch_samples = 3;

class SymbolicGraph {
 public:
  SymbolicGraph() = default;
  // The same function's graphs at three batch sizes; `why` says what does not follow the batch.
  // Constants from number `own` on are results of another graph.
  SymbolicGraph(const Graph* const (&graphs)[batch_samples],
                const std::int64_t (&batches)[batch_samples], std::size_t own, std::string& why)
      : graph_(*graphs[0]) {
    for (int s = 1; s < batch_samples && why.empty(); ++s) {
      check_alike(*graphs[0], *graphs[s], own, why);
    }
    for (int i = 0; i < graph_.size() && why.empty(); ++i) {
      const GraphNode* nodes[batch_samples];
      for (int s = 0; s < batch_samples; ++s) {
        nodes[s] = &(*graphs[s])[i];
      }
      for (int d = 0; d < graph_[i].shape.size(); ++d) {
        const double sizes[] = {double(nodes[0]->shape[d]), double(nodes[1]->shape[d]),
                                double(nodes[2]->shape[d])};
        add_form(i, -1 - d, sizes, batches, why);
      }
      for (std::size_t k = 0; k < graph_[i].numbers.size(); ++k) {
        const double numbers[] = {nodes[0]->numbers[k], nodes[1]->numbers[k], nodes[2]->numbers[k]};
        add_form(i, static_cast<int>(k), numbers, batches, why);
      }
    }
  }

  const Graph& graph() const { return graph_; }
  Graph at(std::int64_t batch) const {
    Graph out = graph_;
    for (const Form& form : forms_) {
      const double b = static_cast<double>(batch);
      const double value = form.inverse ? 1.0 / (form.offset * b) : form.slope * b + form.offset;
      GraphNode& node = out[form.node];
      if (form.place < 0) {
        node.shape.set(-1 - form.place, static_cast<std::int64_t>(value));
      } else if (form.inverse) {  // as the function rounds it
        node.numbers[static_cast<std::size_t>(form.place)] =
            static_cast<double>(static_cast<float>(value));
      } else {
        node.numbers[static_cast<std::size_t>(form.place)] = value;
      }
    }
    return out;
  }

 private:
  struct Form {
    int node, place;  // place: a number, or -1 - a dimension of the shape
    double slope, offset;
    bool inverse;  // 1 / (offset B)
  };

  static void check_alike(const Graph& a, const Graph& b, std::size_t own, std::string& why) {
    bool same = a.nodes.size() == b.nodes.size() && a.constants.size() == b.constants.size() &&
                a.outputs.size() == b.outputs.size();
    for (std::size_t i = 0; same && i < a.outputs.size(); ++i) {
      same = a.outputs[i] == b.outputs[i];
    }
    for (int i = 0; same && i < a.size(); ++i) {
      same = a[i].op == b[i].op && a[i].shape.size() == b[i].shape.size() &&
             a[i].numbers.size() == b[i].numbers.size() && a[i].inputs.size() == b[i].inputs.size();
      for (std::size_t k = 0; same && k < a[i].inputs.size(); ++k) {
        same = a[i].inputs[k] == b[i].inputs[k];
      }
    }
    if (!same) {
      why = "it does other ops at other batch sizes";
    }
    for (std::size_t i = 0; same && i < a.constants.size() && i < own; ++i) {
      if (a.constants[i].storage().get() != b.constants[i].storage().get()) {
        same = a.constants[i].shape() == b.constants[i].shape() &&
               same_numbers(a.constants[i], b.constants[i]);
        why = same ? why
                   : cat({"it makes a ", a.constants[i].shape(),
                          " tensor of its own that depends on the batch size"});
      }
    }
  }

  void add_form(int node, int place, const double (&values)[batch_samples],
                const std::int64_t (&batches)[batch_samples], std::string& why) {
    const auto same = [](double a, double b) {
      return std::fabs(a - b) <= 1e-6 * (std::fabs(a) + std::fabs(b));
    };
    const auto whole = [&same](double x) {  // of a float, 1 / B times B is not 1
      return same(x, std::nearbyint(x)) ? std::nearbyint(x) : x;
    };
    const double b0 = double(batches[0]), b1 = double(batches[1]), b2 = double(batches[2]);
    if (std::memcmp(&values[0], &values[1], sizeof(double)) == 0 &&
        std::memcmp(&values[0], &values[2], sizeof(double)) == 0) {
      return;
    }
    const double slope = (values[1] - values[0]) / (b1 - b0);
    const double offset = values[0] - slope * b0;
    if (same(values[2], slope * b2 + offset)) {
      forms_.push_back({node, place, std::nearbyint(slope), std::nearbyint(offset), false});
      if (!same(slope, forms_.back().slope) || !(std::fabs(offset - forms_.back().offset) < 1e-6)) {
        why = cat({"a number of op ", node, ", ", name_of(graph_[node].op),
                   ", follows the batch size by a fraction"});
      }
      return;
    }
    if (place >= 0 && same(values[0] * b0, values[1] * b1) &&
        same(values[0] * b0, values[2] * b2)) {
      forms_.push_back({node, place, 1, whole(1.0 / whole(values[0] * b0)), true});
      return;
    }
    why = cat({"op ", node, ", ", name_of(graph_[node].op), " of ", graph_[node].shape,
               ", does not follow the batch size as a B + b or c / B"});
  }

  Graph graph_;
  List<Form> forms_;
};

}  // namespace detail
}  // namespace tinyscale
