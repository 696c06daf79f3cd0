#pragma once
// What the calls of a step's plan send and how long they take, by the algorithm that each will run;
// and the letters of their formulas.

#include <algorithm>  // find
#include <cstdint>    // int64_t
#include <string>     // string
#include <vector>     // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/mesh/choose_algorithm.hpp"
#include "tinyscale/mesh/collective_bytes.hpp"
#include "tinyscale/parallel/step_forms.hpp"

namespace tinyscale {
namespace detail {

// What a call sends from this device, and its steps, by the algorithm that it will take.
struct PlannedCost {
  double bytes = 0;
  std::int64_t steps = 0;
  double seconds = 0;
};
inline PlannedCost planned_cost(const PlannedCall& call, const MeshPoint& at,
                                const Machine& machine, const List<AxisPlacement>& placed,
                                Algorithm preferred) {
  const double times = static_cast<double>(call.times);
  PlannedCost cost;
  if (call.send) {
    return {times * 4 * static_cast<double>(call.elements), call.times, 0};
  }
  CollectiveSpec spec;
  std::vector<int> numbers;
  for (const std::string& name : call.axes) {
    for (std::size_t i = 0; i < placed.size(); ++i) {
      if (placed[i].name == name) {
        numbers.push_back(static_cast<int>(i));
      }
    }
  }
  spec.what = call.what;
  spec.parts = parts_of_group(machine, placed, numbers);
  spec.elements = call.elements;
  spec.element_bytes = bytes_of(call.format);
  spec.root = call.what == Collective::permute ? call.shift : 0;
  const bool named = preferred != Algorithm::automatic && has_algorithm(spec.what, preferred);
  spec.algorithm = named ? preferred : choose_algorithm(spec).algorithm;
  const AxisGroup group = call.axes;
  cost.bytes = times * collective_bytes(spec, static_cast<int>(at.index(group)));
  cost.steps = call.times * collective_steps(spec);
  cost.seconds = times * cost_of(spec).seconds;
  return cost;
}

// What each device sends by one kind of call along the same axes.
struct Traffic {
  std::string name, axes;
  std::string why;                      // of one formula
  List<std::vector<std::string>> whys;  // what for, then the formulas of its parts
  bool mean = false;
  std::vector<double> planned, counted;              // bytes by rank
  std::vector<double> planned_steps, counted_steps;  // by rank

  void add_formula(const std::string& purpose, const std::string& formula) {
    std::size_t at = 0;
    while (at < whys.size() && whys[at][0] != purpose) {
      ++at;
    }
    if (at == whys.size()) {
      whys.push_back({purpose});
    }
    std::vector<std::string>& known = whys[at];
    if (std::find(known.begin() + 1, known.end(), formula) == known.end()) {
      known.push_back(formula);
    }
  }
  // "weights: 2 m P (d-1)/d + 2 m V h (d-1)/d, the tied table again; loss: ..": their sum is the
  // row's.
  std::string formulas() const {
    std::string out;
    for (const std::vector<std::string>& texts : whys) {
      out += (out.empty() ? "" : "; ") + texts[0] + ": ";
      for (std::size_t i = 1; i < texts.size(); ++i) {
        out += (i > 1 ? " + " : "") + texts[i];
      }
    }
    return out;
  }
};

inline Traffic& traffic_of(List<Traffic>& all, const std::string& name, const std::string& axes,
                           std::size_t devices) {
  for (Traffic& known : all) {
    if (known.name == name && known.axes == axes) {
      return known;
    }
  }
  Traffic traffic;
  traffic.name = name;
  traffic.axes = axes;
  for (std::vector<double>* const of_rank :
       {&traffic.planned, &traffic.counted, &traffic.planned_steps, &traffic.counted_steps}) {
    of_rank->resize(devices);
  }
  all.push_back(traffic);
  return all.back();
}

inline std::string names_text(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ",") + name;
  }
  return text;
}

// What the letters of the formulas stand for, those that such a layout can have, with their values.
inline std::string letters_of_plan(const ModelConfig& c, const Layout& layout,
                                   const StepOptions& options) {
  const std::int64_t batch = options.batch;
  const bool copies = static_cast<int>(layout.schedule.rank_of.size()) > layout.schedule.stages;
  std::string out =
      cat({"m ", static_cast<double>(layout.microbatches) / (copies ? 2 : 1),
           copies ? " microbatches of a copy, b " : " microbatches, b ",
           batch / (layout.microbatches * layout.data), " sequences of s ",
           c.context / layout.context, " tokens of one on a device, h ", c.width,
           " width, P parameters and L layers of a device, V ", c.vocabulary, " vocabulary"});
  const auto add = [&](std::int64_t value, const char* letter, const char* meaning) {
    out += value > 1 ? cat({", ", letter, " ", value, " ", meaning}) : "";
  };
  add(layout.batch_devices(), "d", "devices that see other tokens");
  add(layout.tensor, "t", "tensor");
  add(layout.context, "c", "context");
  add(layout.context > 1 ? c.key_width() : 0, "h_kv", "width of the keys");
  add(layout.context > 1 && layout.context_parallel == ContextParallel::ulysses ? c.query_width()
                                                                                : 0,
      "h_q", "width of the queries");
  if (layout.context > 1 && layout.context_parallel == ContextParallel::ring && c.window > 0) {
    const std::vector<int> rounds =
        ring_rounds(true, static_cast<int>(layout.context), c.context, c.window);
    out += cat({", L_w layers with a window", c.local_layers() < c.layers ? ", L_g without" : "",
                ", R ", rounds.size() - 1, " rounds of keys that a window reaches"});
  }
  add(layout.expert, "e", "expert devices");
  add(c.experts, "E", "experts");
  const bool places = layout.expert_devices() > 1 && options.experts.capacity_factor > 0;
  add(layout.expert_devices() > 1 ? c.top_k : 0, "k", "of them a token");
  out += places ? ", C rows that an expert has room for from a device" : "";
  if (layout.expert > 1) {
    out += ", P_e parameters of its experts, not in P, over z_e and r_e devices as others over d";
  }
  if (layout.tensor > 1 && (layout.sequence_parallel || c.qk_norm || c.experts > 0)) {
    out += layout.expert > 1 && !layout.whole_experts
               ? ", P_t and P_et those whose gradients tensor ranks sum, in neither"
               : ", P_t those whose gradients tensor ranks sum, not in P";
  }
  add(layout.zero_devices, "z", "devices of a shard, r = d/z replicas");
  return out;
}

}  // namespace detail
}  // namespace tinyscale
