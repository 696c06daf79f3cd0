#pragma once
// Which boxes a picture of a graph has, and what is written in them: literals stand in the boxes
// that read them, what repeats, as layers do, is drawn once, and the end of what is too large is
// counted.

#include <algorithm>  // min
#include <cstddef>    // size_t
#include <string>     // words
#include <vector>     // strings

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/compile/graph_plan.hpp"
#include "tinyscale/show/layered_layout.hpp"

namespace tinyscale {
namespace detail {

// One op in a box, two lines of words.
struct OpBox {
  int node = -1;
  std::string title, below;
  bool returned = false;
  int times = 1;  // it stands for so many
};

// What is drawn as one: an op, or a kernel with its ops.
struct DrawnKernel {
  List<OpBox> ops;
  std::string title;  // of an enclosure; empty: none is drawn
  std::size_t color = 0;
  int times = 1;  // it stands for so many
};

struct GraphDrawing {
  List<DrawnKernel> kernels;
  List<LayeredLayout::Arrow> arrows;  // between kernels
  List<int> shown;                    // of each node: the one that is drawn for it
  int left_out = 0;                   // kernels behind those that are drawn
  std::string left_out_ops;           // what most of them are
  int repeated = 0;                   // kernels that are drawn as others
};

// Makes boxes of nodes: which node a hidden one stands for, what an op is called.
class GraphBoxes {
 public:
  GraphBoxes(const Graph& graph, bool views) : graph_(graph), views_(views) {}

  // The node that is drawn for a node: results of several and, where views are not drawn, views are
  // their operand.
  int drawn(int node) const {
    for (;;) {
      const Op op = graph_[node].op;
      const bool through = op == Op::part || (!views_ && facts_of(op).kind == OpKind::view);
      if (!through) {
        return node;
      }
      node = graph_[node].inputs[0];
    }
  }
  // A number that is the same everywhere, or none.
  const GraphNode* literal(int node) const {
    while (facts_of(graph_[node].op).kind == OpKind::view || graph_[node].op == Op::literal) {
      if (graph_[node].op == Op::literal) {
        return &graph_[node];
      }
      node = graph_[node].inputs[0];
    }
    return nullptr;
  }
  bool is_drawn(int node) const { return literal(node) == nullptr && drawn(node) == node; }

  OpBox box(int number) const {
    OpBox out;
    out.node = number;
    for (const int output : graph_.outputs) {
      out.returned = out.returned || (output >= 0 && drawn(output) == number);
    }
    return out;
  }
  // The words in a box; operands by the numbers of the boxes that are there.
  void write(OpBox& out, const List<int>& shown) const {
    const int number = out.node;
    const GraphNode& node = graph_[number];
    out.title = name_of(node.op);
    if (node.op == Op::input || node.op == Op::constant) {
      out.title += cat({" ", node.whole(0)});
    } else if (!node.inputs.empty()) {
      out.title += " (";
      for (std::size_t i = 0; i < node.inputs.size() && i < 6; ++i) {
        const GraphNode* const value = literal(node.inputs[i]);
        out.title += i > 0 ? ", " : "";
        out.title += value != nullptr ? printed('g', 4, value->numbers[0])
                                      : cat({"%", shown[at(drawn(node.inputs[i]))]});
      }
      out.title += node.inputs.size() > 6 ? ", ..)" : ")";
    }
    out.below = cat({"%", number, " ", node.shape});
    if (node.op == Op::sum || node.op == Op::max || node.op == Op::permute) {
      out.below += cat({node.op == Op::permute ? " as " : " over ", numbers_text(node)});
    }
  }

 private:
  static std::size_t at(int node) { return static_cast<std::size_t>(node); }

  const Graph& graph_;
  bool views_;
};

// Equal stretches of a list that follow one another: stretch i + period stands for stretch i.
struct Repeat {
  std::size_t begin = 0, period = 0, times = 1;
  std::size_t saved() const { return period * (times - 1); }
};
inline Repeat longest_repeat(const std::vector<std::string>& words) {
  Repeat best;
  for (std::size_t period = 1; 2 * period <= words.size(); ++period) {
    std::size_t same = 0;
    for (std::size_t i = 0; i + period < words.size(); ++i) {
      same = words[i] == words[i + period] ? same + 1 : 0;
      Repeat now;
      now.period = period;
      now.times = same / period + 1;
      now.begin = i + 1 - same;
      if (now.saved() > best.saved()) {
        best = now;
      }
    }
  }
  return best;
}

// The ops that are most of the kernels from `first` on: "adamw x12, sum x8, ...".
inline std::string most_of(const Graph& graph, const GraphDrawing& drawing, std::size_t first) {
  std::vector<int> fewer(op_set().size());  // less than none, to sort by
  for (std::size_t i = first; i < drawing.kernels.size(); ++i) {
    for (const OpBox& op : drawing.kernels[i].ops) {
      fewer[static_cast<std::size_t>(graph[op.node].op)] -= drawing.kernels[i].times;
    }
  }
  std::string out;
  int shown = 0;
  for (const std::size_t op : stable_order(fewer)) {
    if (fewer[op] < 0 && ++shown <= 4) {
      out += (shown > 1 ? ", " : "") +
             (shown < 4 ? cat({op_set()[op].name, " x", -fewer[op]}) : std::string("..."));
    }
  }
  return out;
}

inline std::string word_of(const Graph& graph, const OpBox& op) {
  return cat({";", op.times, name_of(graph[op.node].op), graph[op.node].shape});
}
inline void show_as(GraphDrawing& drawing, const OpBox& op, OpBox& shown) {
  shown.returned = shown.returned || op.returned;
  for (int& node : drawing.shown) {
    node = node == op.node ? shown.node : node;
  }
}

// Ops of one kernel that repeat, where it has more than `most`.
inline void condense_ops(const Graph& graph, GraphDrawing& drawing, DrawnKernel& kernel,
                         std::size_t most) {
  while (kernel.ops.size() > most) {
    std::vector<std::string> words;
    for (const OpBox& op : kernel.ops) {
      words.push_back(word_of(graph, op));
    }
    const Repeat repeat = longest_repeat(words);
    if (repeat.saved() < 2) {
      return;
    }
    List<OpBox> kept;
    for (std::size_t i = 0; i < kernel.ops.size(); ++i) {
      const std::size_t first = repeat.begin + (i - repeat.begin) % repeat.period;
      const bool inside = i >= repeat.begin && i < repeat.begin + repeat.period * repeat.times;
      if (inside && i != first) {
        show_as(drawing, kernel.ops[i], kept[first]);
        continue;
      }
      kept.push_back(kernel.ops[i]);
      kept.back().times *= inside ? static_cast<int>(repeat.times) : 1;
    }
    kernel.ops.swap(kept);
  }
}

// At most `most` kernels: first what repeats goes, then what is behind.
inline void condense(const Graph& graph, GraphDrawing& drawing, std::size_t most) {
  List<int> to(drawing.kernels.size());  // where each kernel went
  for (int i = 0; i < graph.size(); ++i) {
    drawing.shown.push_back(i);
  }
  for (DrawnKernel& kernel : drawing.kernels) {
    condense_ops(graph, drawing, kernel, 16);
  }
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i] = static_cast<int>(i);
  }
  const auto keep = [&](const std::vector<int>& next, const List<DrawnKernel>& kept) {
    for (int& place : to) {
      place = place < 0 ? -1 : next[static_cast<std::size_t>(place)];
    }
    drawing.kernels = kept;
  };
  while (drawing.kernels.size() > most) {
    std::vector<std::string> words;
    for (const DrawnKernel& kernel : drawing.kernels) {
      std::string word = cat({kernel.times});
      for (const OpBox& op : kernel.ops) {
        word += word_of(graph, op);
      }
      words.push_back(word);
    }
    const Repeat repeat = longest_repeat(words);
    if (repeat.saved() < 2) {
      break;
    }
    std::vector<int> next;
    List<DrawnKernel> kept;
    const std::size_t end = repeat.begin + repeat.period * repeat.times;
    for (std::size_t i = 0; i < drawing.kernels.size(); ++i) {
      if (i >= repeat.begin + repeat.period && i < end) {
        const std::size_t first = repeat.begin + (i - repeat.begin) % repeat.period;
        next.push_back(next[first]);
        List<OpBox>& ops = kept[static_cast<std::size_t>(next[first])].ops;
        for (std::size_t k = 0; k < ops.size(); ++k) {
          show_as(drawing, drawing.kernels[i].ops[k], ops[k]);
        }
        continue;
      }
      next.push_back(static_cast<int>(kept.size()));
      kept.push_back(drawing.kernels[i]);
      kept.back().times *= i >= repeat.begin && i < end ? static_cast<int>(repeat.times) : 1;
    }
    drawing.repeated += static_cast<int>(repeat.saved());
    keep(next, kept);
  }
  if (drawing.kernels.size() > most) {
    std::vector<int> next;
    List<DrawnKernel> kept;
    for (std::size_t i = 0; i < drawing.kernels.size(); ++i) {
      next.push_back(i < most ? static_cast<int>(i) : -1);
      if (i < most) {
        kept.push_back(drawing.kernels[i]);
      }
    }
    drawing.left_out = static_cast<int>(drawing.kernels.size() - most);
    drawing.left_out_ops = most_of(graph, drawing, most);
    keep(next, kept);
  }
  List<LayeredLayout::Arrow> arrows;
  for (const LayeredLayout::Arrow& arrow : drawing.arrows) {
    const int from = to[static_cast<std::size_t>(arrow.from)];
    const int target = to[static_cast<std::size_t>(arrow.to)];
    bool wanted = from >= 0 && target >= 0 && from < target;
    for (const LayeredLayout::Arrow& known : arrows) {
      wanted = wanted && (known.from != from || known.to != target);
    }
    if (wanted) {
      arrows.push_back({from, target});
    }
  }
  drawing.arrows.swap(arrows);
}

// What is not drawn, in words.
inline std::string not_drawn(const GraphDrawing& drawing, const char* what) {
  std::string out;
  if (drawing.repeated > 0) {
    out += cat({"; ", drawing.repeated, " ", what, " that repeat others are drawn once, as x n"});
  }
  if (drawing.left_out > 0) {
    out += cat(
        {"; the last ", drawing.left_out, " ", what, " are left out (", drawing.left_out_ops, ")"});
  }
  return out;
}

// The words of all boxes; "x 3" where one stands for three.
inline void write_boxes(const GraphBoxes& boxes, GraphDrawing& drawing) {
  for (DrawnKernel& kernel : drawing.kernels) {
    for (OpBox& op : kernel.ops) {
      boxes.write(op, drawing.shown);
      op.below += op.times > 1 ? cat({", x ", op.times}) : "";
    }
    if (kernel.times > 1 && kernel.title.empty()) {
      kernel.ops[0].below += cat({", x ", kernel.times});
    } else if (kernel.times > 1) {
      kernel.title += cat({", x ", kernel.times});
    }
  }
}

}  // namespace detail
}  // namespace tinyscale
