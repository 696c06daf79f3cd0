#pragma once
// Whether a captured function may write to a tensor in place: nobody else shows its numbers.

#include "tinyscale/base/list.hpp"
#include "tinyscale/compile/graph_writer.hpp"

namespace tinyscale {
namespace detail {

// A capture's graph, the views in it that are meant as copies, its handles, and the nodes that
// captured tensors are now.
struct WriteCheck {
  const Graph& graph;
  const List<char>& copies;
  const List<Shared<Storage>>& handles;
  const List<int>& captured;

  // Writing to numbers that a view shows, or through a view, would show in both.
  void alone(const char* name, const Tensor& x, int node) const {
    const bool view = x.storage()->recorded && is_view(node) && shows_others(x, node);
    bool viewed = false;
    for (const Shared<Storage>& held : handles) {
      viewed = viewed || (is_other(held, x) && stands_on(held->node, node));
    }
    if (view || viewed) {
      fail(
          {"compile: ", name, " writes to a ", x.shape(), " tensor ",
           view ? "that is a view of another" : "that a view shows too",
           "; where ops are recorded only a tensor of its own can be written: write to a clone()"});
    }
  }

 private:
  bool is_view(int node) const { return shows_memory(graph, copies, node); }
  // A handle that somebody has.
  static bool is_other(const Shared<Storage>& held, const Tensor& x) {
    return held.use_count() > 1 && held.get() != x.storage().get();
  }
  // Whether somebody else can see the numbers that a view shows, or one of them stands twice in it:
  // not so where the function holds nothing of what it was made of, as in sum() or zeros().
  bool shows_others(const Tensor& x, int view) const {
    const int base = view_base(graph, copies, view);
    const Op made_by = graph[base].op;
    bool others = made_by == Op::input || made_by == Op::constant;
    for (int node = view; node != base && made_by != Op::literal; node = graph[node].inputs[0]) {
      others = others || graph[node].op == Op::broadcast_to;
    }
    for (const int now : captured) {  // as the function has written them
      others = others || view_base(graph, copies, now) == base;
    }
    for (const Shared<Storage>& held : handles) {
      others = others || (is_other(held, x) && view_base(graph, copies, held->node) == base);
    }
    return others;
  }
  bool stands_on(int view, int base) const {
    for (int node = view; is_view(node);) {
      node = graph[node].inputs[0];
      if (node == base) {
        return true;
      }
    }
    return false;
  }
};

}  // namespace detail
}  // namespace tinyscale
