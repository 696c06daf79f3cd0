#pragma once
// How the dims of an op's operands lie in its result: what a sharding follows through a graph.
//   matmul  [B, D] [D, F] -> [B, F]    B and F go through, D is summed over
//   reshape [B, T, D] -> [B T, D]      a cut of B goes through, one of T does not

#include <algorithm>  // max
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/compile/op_graph.hpp"
#include "tinyscale/mesh/sharding.hpp"

namespace tinyscale {
namespace detail {

// A label of each dim of each operand: a dim of the result; the number of those or above: one that
// is summed over, equal in all operands that have it; -1: needed whole on every device.
struct DimLabels {
  List<std::vector<int>> of;
  int summed = 0;         // labels behind those of the result
  bool cuts_sum = false;  // an operand may be sliced along what is summed over
};

// Equal dims from the right; one that is repeated is whole.
inline std::vector<int> aligned_labels(const Shape& in, const Shape& out, int tail = 0) {
  std::vector<int> labels;
  const int ahead = out.size() - in.size();
  for (int d = 0; d < in.size() - tail; ++d) {
    labels.push_back(in[d] == out[d + ahead] ? d + ahead : -1);
  }
  return labels;
}

inline DimLabels product_labels(const Shape& a, const Shape& b, const Shape& out) {
  DimLabels labels;
  labels.summed = 1;
  const int inner = out.size();
  if (b.size() == 2) {
    labels.of = {aligned_labels(a, a, 1), {inner, out.size() - 1}};
  } else {
    labels.of = {aligned_labels(a, out, 2), aligned_labels(b, out, 2)};
    labels.of[0].push_back(out.size() - 2);
    labels.of[1].push_back(inner);
    labels.of[1].push_back(out.size() - 1);
  }
  labels.of[0].push_back(inner);
  return labels;
}

// Of ops that loop over their dims; views have rules of their own.
inline DimLabels labels_of(const Graph& graph, const GraphNode& node) {
  DimLabels labels;
  const OpKind kind = facts_of(node.op).kind;
  for (const int input : node.inputs) {
    labels.of.push_back(kind == OpKind::product || kind == OpKind::index
                            ? std::vector<int>()
                            : aligned_labels(graph[input].shape, node.shape));
  }
  switch (node.op) {
    case Op::sum:
    case Op::max:
      for (std::size_t k = 0; k < node.numbers.size(); ++k) {
        labels.of[0][static_cast<std::size_t>(node.numbers[k])] = node.shape.size() + labels.summed;
        ++labels.summed;
      }
      return labels;
    case Op::argmax:
    case Op::slice:
    case Op::pad:
    case Op::concat:
      for (std::vector<int>& own : labels.of) {
        own[static_cast<std::size_t>(node.numbers[0])] = -1;
      }
      return labels;
    case Op::matmul:
      return product_labels(graph.input_of(node, 0).shape, graph.input_of(node, 1).shape,
                            node.shape);
    case Op::take:  // table [V, D], ids
      labels.of[0] = {-1, node.shape.size() - 1};
      for (int d = 0; d + 1 < node.shape.size(); ++d) {
        labels.of[1].push_back(d);
      }
      return labels;
    case Op::scatter_add: {  // ids [N], rows [N, D]
      const bool flat = graph.input_of(node, 0).shape.size() == 1;
      const int rows = graph.input_of(node, 1).shape.size();
      labels.summed = 1;
      labels.cuts_sum = true;
      labels.of[0] = std::vector<int>(
          static_cast<std::size_t>(graph.input_of(node, 0).shape.size()), flat ? 2 : -1);
      labels.of[1] = std::vector<int>(static_cast<std::size_t>(rows), -1);
      labels.of[1].front() = flat && rows == 2 ? 2 : -1;
      labels.of[1].back() = 1;
      return labels;
    }
    default: return labels;
  }
}

// Runs of dims of two shapes with as many elements: [B, T, D] and [B T, D] have B T | B T, D | D.
struct DimRuns {
  struct Run {
    int from, to, from_end, to_end;  // the first dims, and behind the last
  };
  List<Run> runs;

  DimRuns(const Shape& from, const Shape& to) {
    int i = 0, j = 0;
    while (i < from.size() || j < to.size()) {
      Run run = {i, j, i, j};
      std::int64_t a = i < from.size() ? from[i++] : 1, b = j < to.size() ? to[j++] : 1;
      while (a != b) {
        if (i < from.size() && (a < b || j == to.size())) {
          a *= from[i++];
        } else if (j < to.size()) {
          b *= to[j++];
        } else {
          break;
        }
      }
      while (i < from.size() && from[i] == 1) {
        ++i;
      }
      while (j < to.size() && to[j] == 1) {
        ++j;
      }
      run.from_end = i;
      run.to_end = j;
      runs.push_back(run);
    }
  }
};

// What of a sharding goes through a reshape: the cut of the slowest dim of a run, as far as the
// slowest dim that it becomes divides.
struct ReshapedPlaces {
  AxisPlaces from, to;
  std::string lost;  // letters that must be gathered first

  ReshapedPlaces(const PlacedMesh& mesh, const AxisPlaces& places, const Shape& shape,
                 const Shape& result)
      : from(places), to(static_cast<std::size_t>(result.size()) + 1) {
    to[0] = places[0];
    for (const DimRuns::Run& run : DimRuns(shape, result).runs) {
      const int d = slowest(shape, run.from, run.from_end);
      const int e = slowest(result, run.to, run.to_end);
      for (int at = run.from; at < run.from_end; ++at) {
        std::string& cut = from[static_cast<std::size_t>(at) + 1];
        std::string kept = at == d && e < run.to_end ? cut : "";
        while (!kept.empty() && result[e] % shard_count(mesh, kept) != 0) {
          kept.pop_back();
        }
        lost += cut.substr(kept.size());
        cut = kept;
        if (at == d && e < run.to_end) {
          to[static_cast<std::size_t>(e) + 1] = kept;
        }
      }
    }
  }

 private:
  static int slowest(const Shape& shape, int first, int end) {
    while (first < end && shape[first] == 1) {
      ++first;
    }
    return first;
  }
};

}  // namespace detail
}  // namespace tinyscale
