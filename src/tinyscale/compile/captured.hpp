#pragma once
// What a captured function did beside computing its results: numbers it read, tensors it wrote,
// gradients it gave.

#include <cstddef>  // size_t
#include <string>   // file names
#include <vector>   // vector

#include "tinyscale/base/shape.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/compile/evaluate.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

// Where a captured function asked for a number, so that its graph ends there.
struct GraphBreak {
  std::string file;
  int line = 0;
  Shape shape;  // of the tensor that was read

  std::string text() const {
    const std::size_t slash = file.find_last_of('/');
    return detail::cat({slash == std::string::npos ? file : file.substr(slash + 1), ":", line,
                        " reads a number of ", shape});
  }
};

namespace detail {

// What a captured function left behind in a tensor that it did not make.
struct CapturedWrite {
  int target;  // node of the input or constant that was written
  int value;   // node
};
struct CapturedGradient {
  Slot slot;             // of a parameter from outside; or, null,
  int input = 0;         // of the function's input of this number
  int node = -1;         // -1: the gradient was cleared
  bool replaces = true;  // what was there; else it is added
};
// A gradient that parameters had when the function began is read, not kept: a new one at each call.
struct OldGradient {
  int constant;
  Slot slot;      // of a parameter from outside; or, null,
  int input = 0;  // of the input of this number
};
// What a result is beside its numbers: a constant itself, if it was returned as such, or an input
// or a view of one.
struct ReturnedAs {
  int input = -1, constant = -1;
  int base = -1;       // the node whose memory it is, maybe through views
  int view = -1;       // the node of that view of an input; the base: the input itself
  bool dense = false;  // an eager one lies in row-major order
  bool detached = false;
};

// A view of an input as the ops of a graph make it of this call's.
inline Tensor view_again(const Graph& graph, int node, int base, const Tensor& x) {
  return node == base
             ? x
             : evaluate_primitive(graph[node], {view_again(graph, graph[node].inputs[0], base, x)});
}

// The next result: a copy where a pass gave it the memory of an earlier one, or an order that is
// not row-major, and the function did not.
inline Tensor apart(const List<ReturnedAs>& as, const std::vector<Tensor>& earlier,
                    const Tensor& next) {
  const int base = as[earlier.size()].base;
  if (as[earlier.size()].dense && next.defined() && !next.is_contiguous()) {
    return next.copied();
  }
  for (std::size_t r = 0; r < earlier.size() && next.defined(); ++r) {
    if (earlier[r].defined() && earlier[r].origin() == next.origin() && as[r].base != base) {
      return next.copied();
    }
  }
  return next;
}

}  // namespace detail
}  // namespace tinyscale
