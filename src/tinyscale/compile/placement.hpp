#pragma once
// Where the numbers of each node of a graph stand while its steps run: in the block that they
// share by lifetime, in memory of their own where they are returned, or where they are written to.

#include <cstddef>  // size_t
#include <cstdint>  // int64_t
#include <utility>  // move

#include "tinyscale/compile/buffer_plan.hpp"
#include "tinyscale/compile/op_graph.hpp"
#include "tinyscale/compile/step.hpp"
#include "tinyscale/compile/value_layout.hpp"

namespace tinyscale {

// Output `output` of a graph is the new value of an input or a constant, by its number.
struct GraphWrite {
  std::size_t output;
  int input = -1, constant = -1;
};

namespace detail {

struct Placement {
  enum class Place : unsigned char { none, block, own, target };
  List<Place> places;         // of each node
  List<int> target;           // which write
  List<std::int64_t> offset;  // in the block, in floats
  List<BufferLife> buffers;
  std::int64_t block = 0, unshared = 0;  // floats: of the block; of all side by side
};

class Placer {
 public:
  Placer(const Graph& graph, const ValueLayouts& layouts, const List<Step>& steps,
         const List<GraphWrite>& writes, bool share)
      : graph_(graph), layouts_(layouts), steps_(steps), writes_(writes), share_(share) {}

  Placement place() {
    const std::size_t n = graph_.nodes.size();
    out_.places = List<Place>(n);
    out_.target = List<int>(n);
    const int end = static_cast<int>(steps_.size());
    List<int> written(n), last(n);
    for (std::size_t i = 0; i < n; ++i) {
      written[i] = last[i] = -1;
    }
    for (int s = 0; s < end; ++s) {
      for (const int output : steps_[at(s)].outputs) {
        if (output >= 0) {
          out_.places[at(output)] = Place::block;
          written[at(output)] = s;
          last[at(output)] = s;
        }
      }
      for (const int input : steps_[at(s)].inputs) {
        last[at(layouts_.base_of(input))] = s;
      }
    }
    List<char> taken(graph_.outputs.size());
    for (const GraphWrite& write : writes_) {
      place_write(write, written, last, taken);
    }
    for (std::size_t o = 0; o < graph_.outputs.size(); ++o) {
      const int output = graph_.outputs[o];
      if (output < 0 || taken[o] != 0) {
        continue;
      }
      Place& where = out_.places[at(layouts_.base_of(output))];
      where = where == Place::block ? Place::own : where;
    }
    List<int> holder(n);  // the node whose buffer each one takes over, at last
    for (int s = 0; s < end; ++s) {
      for (const int output : steps_[at(s)].outputs) {
        if (output < 0 || out_.places[at(output)] != Place::block) {
          continue;
        }
        holder[at(output)] = output;
        const int given = share_ ? taken_over(steps_[at(s)], output, s, last) : -1;
        if (given >= 0) {
          holder[at(output)] = holder[at(given)];
          for (BufferLife& buffer : out_.buffers) {
            buffer.last = buffer.node == holder[at(given)] ? last[at(output)] : buffer.last;
          }
          last[at(given)] = -1;  // it is given away once
          continue;
        }
        out_.buffers.push_back(
            BufferLife{output, s, last[at(output)], graph_[output].shape.count(), 0});
      }
    }
    for (const BufferLife& buffer : out_.buffers) {
      out_.unshared +=
          (buffer.count + detail::buffer_align - 1) / detail::buffer_align * detail::buffer_align;
    }
    out_.block = detail::place_buffers(out_.buffers, share_);
    out_.offset = List<std::int64_t>(n);
    for (const BufferLife& buffer : out_.buffers) {
      out_.offset[at(buffer.node)] = buffer.offset;
    }
    for (std::size_t i = 0; i < n; ++i) {
      if (out_.places[i] == Place::block) {
        out_.offset[i] = out_.offset[at(holder[i])];
      }
    }
    return std::move(out_);
  }

 private:
  typedef Placement::Place Place;

  static std::size_t at(int node) { return static_cast<std::size_t>(node); }

  // An operand of the same size that nobody reads after this step, and in whose place the result
  // may be written; or -1.
  int taken_over(const Step& step, int output, int s, const List<int>& last) const {
    const bool rows = step.kind == StepKind::kernel && graph_[output].op == Op::scatter_add;
    if (step.kind != StepKind::vectors && !rows) {
      return -1;
    }
    for (const int input : step.inputs) {
      const int base = layouts_.base_of(input);
      if (base == input && out_.places[at(base)] == Place::block && last[at(base)] == s &&
          graph_[base].shape == graph_[output].shape && writes_in_place(step, output, base)) {
        return base;
      }
    }
    return -1;
  }

  // The value goes to its target at once where nobody reads the old numbers later.
  void place_write(const GraphWrite& write, const List<int>& written, const List<int>& last,
                   List<char>& taken) {
    const int value = graph_.outputs[write.output];
    const int base = layouts_.base_of(value);
    const int target = node_of(write);
    const bool dense = write.input >= 0 || graph_.constants[at(write.constant)].is_contiguous();
    const int last_read = target < 0 ? -1 : last[at(target)];
    int returned = 0;
    for (const int output : graph_.outputs) {
      returned += output >= 0 && layouts_.base_of(output) == base ? 1 : 0;
    }
    for (const int output : graph_.outputs) {  // the old numbers are returned, or written elsewhere
      returned += output >= 0 && target >= 0 && layouts_.base_of(output) == target ? 1 : 0;
    }
    const bool made = base == value && out_.places[at(value)] == Place::block && returned == 1;
    if (made && dense && last_read <= written[at(value)] &&
        (target < 0 || writes_in_place(steps_[at(written[at(value)])], value, target))) {
      out_.places[at(value)] = Place::target;
      out_.target[at(value)] = static_cast<int>(&write - writes_.begin());
      taken[write.output] = 1;
    }
  }
  // The input or constant that is written, where the graph reads it; else -1.
  int node_of(const GraphWrite& write) const {
    const Op op = write.input >= 0 ? Op::input : Op::constant;
    const int number = write.input >= 0 ? write.input : write.constant;
    for (int i = 0; i < graph_.size(); ++i) {
      if (graph_[i].op == op && static_cast<int>(graph_[i].number(0)) == number) {
        return i;
      }
    }
    return -1;
  }
  // Whether a step may write where one of its operands stands.
  bool writes_in_place(const Step& step, int output, int target) const {
    bool reads = false, only_dense = true;
    for (const int input : step.inputs) {
      if (layouts_.base_of(input) == target) {
        reads = true;
        only_dense = only_dense && input == target;
      }
    }
    if (!reads) {
      return true;
    }
    if (step.kind == StepKind::vectors) {
      return only_dense && step.writes_full(output) && reads_densely(step, target);
    }
    const Op op = graph_[step.nodes[0]].op;
    if (step.kind != StepKind::kernel || (op != Op::adamw && op != Op::scatter_add)) {
      return false;
    }
    // The operand that becomes this result, and no other.
    const bool adds = op == Op::scatter_add;
    const std::size_t own = adds                        ? 2
                            : output == step.outputs[0] ? 0
                            : output == step.outputs[1] ? 2
                                                        : 3;
    if (own >= step.inputs.size()) {
      return false;
    }
    for (std::size_t i = 0; i < step.inputs.size(); ++i) {
      if ((layouts_.base_of(step.inputs[i]) == target) != (i == own)) {
        return false;
      }
    }
    return step.inputs[own] == target;
  }
  // The group reads the target once, row by row as it writes.
  bool reads_densely(const Step& step, int target) const {
    int times = 0;
    for (const int input : step.inputs) {
      times += input == target ? 1 : 0;
    }
    for (const int node : step.nodes) {
      for (const int input : graph_[node].inputs) {
        if (layouts_.base_of(input) == target && graph_[input].shape != graph_[node].shape) {
          return false;
        }
      }
    }
    return times == 1;
  }

  const Graph& graph_;
  const ValueLayouts& layouts_;
  const List<Step>& steps_;
  const List<GraphWrite>& writes_;
  bool share_;
  Placement out_;
};

}  // namespace detail
}  // namespace tinyscale
