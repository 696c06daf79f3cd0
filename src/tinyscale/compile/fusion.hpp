#pragma once
// Which nodes are computed together. A group is legal when no path leaves it and comes back: else
// it would wait for itself.

#include <algorithm>  // min, max
#include <cstddef>    // size_t
#include <cstdint>    // int64_t

#include "tinyscale/compile/op_graph.hpp"
#include "tinyscale/compile/value_layout.hpp"

namespace tinyscale {
namespace detail {

// Nodes by group; a node alone is a group of one. Groups are merged, never split.
class Fusion {
 public:
  Fusion(const Graph& graph, const ValueLayouts& layouts)
      : graph_(graph),
        layouts_(layouts),
        group_(graph.nodes.size()),
        members_(graph.nodes.size()),
        first_(graph.nodes.size()),
        last_(graph.nodes.size()),
        spans_(graph.nodes.size()),
        seen_(graph.nodes.size()) {
    for (int i = 0; i < graph.size(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      group_[at] = first_[at] = last_[at] = spans_[at] = i;
      members_[at].push_back(i);
    }
  }

  int group_of(int node) const { return group_[static_cast<std::size_t>(node)]; }
  const List<int>& members(int group) const { return members_[static_cast<std::size_t>(group)]; }
  bool same(int a, int b) const { return group_of(a) == group_of(b); }

  // Whether one group may join the other: nothing else stands between them.
  bool may_merge(int a, int b) { return !reaches(a, b) && !reaches(b, a); }

  // Joins b to a.
  void merge(int a, int b) {
    List<int> all;
    const List<int>&x = members(a), &y = members(b);
    all.reserve(x.size() + y.size());
    for (std::size_t i = 0, j = 0; i < x.size() || j < y.size();) {
      all.push_back(j == y.size() || (i < x.size() && x[i] < y[j]) ? x[i++] : y[j++]);
    }
    for (const int node : y) {
      group_[static_cast<std::size_t>(node)] = a;
    }
    first_[static_cast<std::size_t>(a)] = all[0];
    last_[static_cast<std::size_t>(a)] = all.back();
    for (int i = all[0]; i < all.back() && spans_[static_cast<std::size_t>(i)] < all.back(); ++i) {
      spans_[static_cast<std::size_t>(i)] = all.back();
    }
    members_[static_cast<std::size_t>(b)].clear();
    members_[static_cast<std::size_t>(a)].swap(all);
  }

 private:
  // Whether `from` depends on `to` through a third group.
  bool reaches(int from, int to) {
    ++mark_;
    List<int> open;
    const auto visit = [&](int group, bool direct) {
      for (const int node : members(group)) {
        for (const int input : graph_[node].inputs) {
          const int next = group_of(layouts_.base_of(input));  // a view takes no time
          const auto at = static_cast<std::size_t>(next);
          if (next == group || seen_[at] == mark_ || (direct && next == to)) {
            continue;
          }
          if (next == to) {
            return true;
          }
          if (highest(last_[at]) >= first_[static_cast<std::size_t>(to)]) {
            seen_[at] = mark_;
            open.push_back(next);
          }
        }
      }
      return false;
    };
    if (visit(from, true)) {
      return true;
    }
    while (!open.empty()) {
      const int group = open.back();
      open.pop_back();
      if (visit(group, false)) {
        return true;
      }
    }
    return false;
  }

  // The highest node that a path from this one meets: down from operand to operand, up from member
  // to member of groups that begin below.
  int highest(int node) const {
    while (spans_[static_cast<std::size_t>(node)] > node) {
      node = spans_[static_cast<std::size_t>(node)];
    }
    return node;
  }

  const Graph& graph_;
  const ValueLayouts& layouts_;
  List<int> group_;
  List<List<int>> members_;
  List<int> first_, last_;  // of each group: its lowest and highest node
  List<int> spans_;         // of each node: the highest node of the groups that begin up to it
  List<int> seen_;
  int mark_ = 0;
};

// The nodes that read each node; -1 among them: the graph returns it.
inline List<List<int>> users_of(const Graph& graph) {
  List<List<int>> users(graph.nodes.size());
  for (int i = 0; i < graph.size(); ++i) {
    const List<int>& inputs = graph[i].inputs;
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      bool again = false;
      for (std::size_t j = 0; j < k; ++j) {
        again = again || inputs[j] == inputs[k];
      }
      if (!again) {
        users[static_cast<std::size_t>(inputs[k])].push_back(i);
      }
    }
  }
  for (const int output : graph.outputs) {
    if (output >= 0) {
      users[static_cast<std::size_t>(output)].push_back(-1);
    }
  }
  return users;
}

}  // namespace detail
}  // namespace tinyscale
