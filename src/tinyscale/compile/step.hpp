#pragma once
// A compiled graph as a list of steps: each computes one node or several together and writes the
// results that others need.

#include <cstddef>  // size_t
#include <cstdint>  // int64_t
#include <string>   // names

#include "tinyscale/base/list.hpp"
#include "tinyscale/compile/load_kernel.hpp"
#include "tinyscale/compile/op_graph.hpp"
#include "tinyscale/compute/gemm_fused.hpp"
#include "tinyscale/compute/vector_program.hpp"
#include "tinyscale/compute/vector_run.hpp"
#include "tinyscale/measure/counters.hpp"

namespace tinyscale {

enum class StepKind : unsigned char { vectors, product, kernel };

inline const char* name_of(StepKind kind) {
  switch (kind) {
    case StepKind::vectors: return "vectors";
    case StepKind::product: return "product";
    default: return "kernel";
  }
}

// Nodes are those of the graph after all passes.
struct Step {
  StepKind kind = StepKind::kernel;
  List<int> nodes;    // computed here, in order
  List<int> inputs;   // nodes whose numbers it reads
  List<int> outputs;  // nodes whose numbers it writes, in the order of the kernel's results; -1:
                      // one that nobody needs

  kernels::VectorPlan vectors;     // of a group
  kernels::VectorProgram program;  // it was planned from
  List<int> values;                // of each node of a group: its value in the program
  LoadedKernel built;              // runs in place of the plan where there is one

  // Of a product with what follows it: nodes, or -1.
  int product = -1, bias = -1, residual = -1, before = -1;
  float scale = 1.0f;
  kernels::Activation activation = kernels::Activation::none;

  // Of a product whose left operand is computed a block of rows at a time and never written whole:
  // one group, its `program` that of all rows, its `vectors` of `block_rows`, `tail` of what is
  // left behind whole blocks.
  List<Step> prologue;
  std::int64_t block_rows = 0;
  kernels::VectorPlan tail;

  std::string name(const Graph& graph) const;
  // Whether a group writes this node row by row, all of it.
  bool writes_full(int node) const {
    bool full = false;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      full =
          full || (outputs[i] == node && program.outputs()[i].kind == kernels::VectorOutput::full);
    }
    return full;
  }
};

inline std::string Step::name(const Graph& graph) const {
  std::string out;
  int last = 0;
  Op op = Op::literal;
  const auto flush = [&] {
    if (last > 0) {
      out += (out.empty() ? "" : " ") + std::string(name_of(op)) +
             (last > 1 ? " x" + std::to_string(last) : "");
    }
  };
  for (const int node : nodes) {
    if (last > 0 && graph[node].op == op) {
      ++last;
      continue;
    }
    flush();
    op = graph[node].op;
    last = 1;
  }
  flush();
  return out;
}

}  // namespace tinyscale
