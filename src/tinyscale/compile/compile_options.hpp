#pragma once
// Which passes a compilation runs. With all of them off a graph runs primitive by primitive.

namespace tinyscale {

struct CompileOptions {
  bool simplify = true;          // dead code, common subexpressions
  bool fuse_elementwise = true;  // chains of elementwise ops in one pass over memory
  bool fuse_rows = true;         // reductions with their neighbours: softmax, norms, cross-entropy
  bool fuse_matmul = true;       // what comes before and after a product into it; the loss too
  bool fuse_attention = true;    // attention tile by tile, without the [T, T] scores
  bool plan_memory = true;       // buffers reused by lifetime
  // Bytes of activations that the forward pass may keep for the backward pass, in the same graph or
  // outside of it (of each result); 0: all. The cheapest above it are computed again.
  double activation_bytes = 0;
  bool symbolic_batch = false;  // one graph for all sizes of the first dimension
  bool recognize = true;        // primitives written out that are a composite op
  // Groups printed as C++, built by this machine's compiler and loaded: load_kernel.hpp.
  bool build = false;
  int confirmations = 1;  // calls that run the function once more to see the same graph

  static CompileOptions none() {
    CompileOptions off;
    off.simplify = off.fuse_elementwise = off.fuse_rows = off.fuse_matmul = off.fuse_attention =
        off.plan_memory = off.recognize = false;
    return off;
  }
};

}  // namespace tinyscale
