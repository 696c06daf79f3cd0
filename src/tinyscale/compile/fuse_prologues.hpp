#pragma once
// What comes before a matrix product: a group whose rows only the product reads. It joins the
// product, which makes a block of those rows at a time and multiplies it while it is in cache.

#include <algorithm>  // max, min
#include <cstddef>    // size_t
#include <cstdint>    // int64_t
#include <utility>    // move

#include "tinyscale/compile/fuse_products.hpp"
#include "tinyscale/compile/fuse_vectors.hpp"
#include "tinyscale/compile/lower_vectors.hpp"
#include "tinyscale/compile/step.hpp"

namespace tinyscale {
namespace detail {

constexpr std::int64_t few_rows = 384;
constexpr std::int64_t longest_prologue = 1 << 14;  // columns: 96 rows of them are 6 MB

// Rows that are made at a time, in multiples of a product's own 96: 1 MB of them, in the cache of
// level 2, and no more than a sixteenth of all, for the threads to share; few rows all at once.
inline std::int64_t block_rows(std::int64_t rows, std::int64_t cols) {
  const std::int64_t fit = std::min((std::int64_t{1} << 18) / cols, rows / 16);
  return rows < few_rows ? rows : std::max<std::int64_t>(fit / 96, 1) * 96;
}

class PrologueFusion {
 public:
  PrologueFusion(const Graph& graph, const ValueLayouts& layouts, Fusion& fusion,
                 const VectorFusion& vectors)
      : graph_(graph),
        layouts_(layouts),
        fusion_(fusion),
        vectors_(vectors),
        users_(users_of(graph)),
        members_(graph.nodes.size()) {}

  // Joins the group in front of a product to it, where it may.
  void run(const Step& step) {
    const GraphNode& product = graph_[step.product];
    if (!is_plain_product(graph_, product)) {
      return;
    }
    const int x = product.inputs[0], source = vectors_.source_of(x);
    if (source < 0 || layouts_.base_of(x) != source || !layouts_.of(x).is_contiguous() ||
        layouts_.is_copy(source)) {
      return;
    }
    const int group = fusion_.group_of(source);
    for (std::size_t i = 1; i < step.inputs.size(); ++i) {
      if (fusion_.group_of(layouts_.base_of(step.inputs[i])) == group) {
        return;  // weights, bias or residual are made with it: of all rows, before the product
      }
    }
    const VectorSpace& space = vectors_.spaces[at(group)];
    const bool table = space.is_full(graph_[source].shape) && space.is_full(graph_[x].shape) &&
                       space.rows() > 1 && space.cols() > 0 && space.cols() <= longest_prologue &&
                       (space.rows() < few_rows || product.shape[-1] >= 16);
    if (!table || graph_[source].backward != product.backward || !is_only_for(step, source) ||
        !others_fit(space, group)) {
      return;
    }
    const List<int> members = fusion_.members(group);
    if (!VectorLowering(graph_, layouts_, vectors_, members).is_even() ||
        !fusion_.may_merge(group, fusion_.group_of(step.product))) {
      return;
    }
    fusion_.merge(group, fusion_.group_of(step.product));
    members_[at(step.product)] = members;
  }

  // Whether a node reads this operand as rows that are made for it.
  bool is_made_for(int node, std::size_t operand) const {
    return operand == 0 && !members_[at(node)].empty();
  }

  // Adds to a product's step the group that joined it.
  void lower(Step& step, const List<char>& needed) const {
    const List<int>& members = members_[at(step.product)];
    if (members.empty()) {
      return;
    }
    const int source = vectors_.source_of(graph_[step.product].inputs[0]);
    Step group = VectorLowering(graph_, layouts_, vectors_, members).lower(needed, source);
    const std::int64_t rows = group.program.rows(), cols = group.program.cols();
    step.block_rows = block_rows(rows, cols);
    group.vectors = kernels::plan_vectors(group.program.with_rows(step.block_rows));
    if (rows % step.block_rows > 0) {
      step.tail = kernels::plan_vectors(group.program.with_rows(rows % step.block_rows));
    }
    List<int> nodes = members, inputs = group.inputs, outputs;
    for (const int node : step.nodes) {
      nodes.push_back(node);
    }
    for (std::size_t i = 1; i < step.inputs.size(); ++i) {
      inputs.push_back(step.inputs[i]);
    }
    for (std::size_t i = 0; i + 1 < group.outputs.size(); ++i) {
      outputs.push_back(group.outputs[i]);
    }
    for (const int output : step.outputs) {
      outputs.push_back(output);
    }
    step.nodes = nodes;
    step.inputs = inputs;
    step.outputs = outputs;
    step.prologue.push_back(std::move(group));
  }

 private:
  static std::size_t at(int node) { return static_cast<std::size_t>(node); }

  // Seen through views, nobody but the node's own group and the product reads it.
  bool is_only_for(const Step& step, int node) const {
    for (const int user : users_[at(node)]) {
      const bool view = user >= 0 && facts_of(graph_[user].op).kind == OpKind::view &&
                        !layouts_.is_copy(user) && vectors_.roles[at(user)] == VectorRole::none;
      if (user < 0 || (view && !is_only_for(step, user)) ||
          (!view && user != step.product && !is_member(user, node))) {
        return false;
      }
    }
    return true;
  }
  bool is_member(int user, int operand) const {
    const int member = vectors_.source_of(operand);
    return vectors_.roles[at(user)] != VectorRole::none && member >= 0 &&
           fusion_.same(member, user);
  }

  // Sums over rows are there when all rows are done: too late. Each of the others is one number or
  // all of each row, so that what somebody else needs of it is written block by block.
  bool others_fit(const VectorSpace& space, int group) const {
    for (const int node : fusion_.members(group)) {
      const VectorRole role = vectors_.roles[at(node)];
      const Shape& shape = graph_[node].shape;
      if (role == VectorRole::none || role > VectorRole::row_reduction ||
          (!space.is_full(shape) && !space.is_rows(shape))) {
        return false;
      }
    }
    return true;
  }

  const Graph& graph_;
  const ValueLayouts& layouts_;
  Fusion& fusion_;
  const VectorFusion& vectors_;
  List<List<int>> users_;
  List<List<int>> members_;  // of the group in front of each product
};

}  // namespace detail
}  // namespace tinyscale
