#pragma once
// The formulas of what a training step sends, as texts: in elements that one device sends, by the
// letters of letters_of_plan(). step_forms.hpp has the numbers; each text is that of its number.

#include <cstdint>  // int64_t
#include <string>   // string

#include "tinyscale/base/text.hpp"
#include "tinyscale/parallel/flat_parameters.hpp"
#include "tinyscale/parallel/layout.hpp"
#include "tinyscale/parallel/layout_axes.hpp"

namespace tinyscale {
namespace detail {

// "m " and a number: "m 4 ", "m ".
inline std::string times_text(const char* letters, std::int64_t times) {
  return times == 1 ? cat({letters, " "}) : cat({letters, " ", times, " "});
}

class FormulaTexts {
 public:
  FormulaTexts(const Layout& layout, const LayoutAxes& axes) : layout_(layout), axes_(axes) {}

  // ---- Weights and gradients of a unit; a tied table is used twice where both its ends are ----

  std::string gathered(const FlatUnit& unit, bool again) const {
    const bool each = layout_.zero == Zero::parameters;
    return (each ? "2 m " : "") + numbers(unit, again) + " " + rest(unit.shards, shards(unit)) +
           (again ? ", the tied table again" : "");
  }
  std::string reduced(const FlatUnit& unit, bool again) const {
    const bool sharded = !unit.zero.empty();
    return std::string(sharded ? "" : "2 ") + (unit.leaves_each_op(layout_.zero) ? "m " : "") +
           numbers(unit, again) + " " +
           (sharded ? rest(unit.shards, shards(unit)) : of_replicas(unit)) +
           (again ? ", the tied table again" : "");
  }
  std::string replicas(const FlatUnit& unit) const {
    return "2 " + letter(unit) + "/" + shards(unit) + " " + of_replicas(unit);
  }
  std::string held_twice(const FlatUnit& unit) const {
    const bool table = unit.layer == table_unit && !copies();
    const std::string cut = unit.shards > 1 ? shards(unit) : "";
    if (!table) {
      return letter(unit) + (cut.empty() ? "" : "/" + cut);
    }
    const bool both = layout_.tensor > 1 && !cut.empty();
    return layout_.tensor == 1 && cut.empty() ? "V h"
           : both                             ? "V h / (t " + cut + ")"
                                              : "V h / " + (cut.empty() ? "t" : cut);
  }

  // ---- What segments send: a block's forward pass runs again where it is recomputed ----

  std::string between_stages() const {
    return std::string(layout_.sequence_parallel ? "m b s h / t" : "m b s h") +
           (layout_.stages() > layout_.pipeline || copies() ? ", of each stage that sends" : "");
  }
  // Cut over tokens, an all_reduce is a reduce_scatter and an all_gather: rows of their own.
  std::string embedding(bool gathers) const {
    const std::int64_t passes = gathers || layout_.recompute != Recompute::full ? 1 : 2;
    return wide("m", (layout_.sequence_parallel ? 1 : 2) * passes) + ", embedding";
  }
  std::string head() const { return wide("m", layout_.sequence_parallel ? 1 : 2) + ", head"; }
  std::string block(int parts) const {  // attention, feed-forward
    return wide("L m", (layout_.sequence_parallel ? 1 : 2) * parts * (1 + forwards(false)));
  }
  // Of a model with windows: of its layers that have one, or of the others.
  std::string ring(bool windows, bool local) const {
    const char* const layers = !windows ? "L m" : local ? "L_w m" : "L_g m";
    return times_text(layers, 2 * forwards(true) + 4) + (local ? "R" : "(c-1)") + " b s h_kv" +
           over_tensor();
  }
  std::string gathered_keys(bool forward) const {
    return times_text("L m", 2 * (forward ? forwards(true) : 1)) + "(c-1) b s h_kv" + over_tensor();
  }
  std::string ulysses() const {
    return times_text("L m", 2 * (1 + forwards(true))) + "b s (h_q+h_kv)(c-1) / " +
           (layout_.tensor > 1 ? "(c t)" : "c");
  }
  std::string balance() const {
    return times_text("L m", 4 * forwards(false)) + "E " +
           (!tensor_routes()              ? "(d-1)/d"
            : layout_.batch_devices() > 1 ? "(d t-1)/(d t)"
                                          : "(t-1)/t");
  }
  std::string with_capacity() const {
    return times_text("L m", 2 * (1 + forwards(false))) + "E C h " + dealt();
  }
  std::string rows_of_experts() const {
    return times_text("L m", forwards(false)) + "E " + dealt();
  }
  std::string rows_of_devices() const {
    return times_text("L m", 2 * (1 + forwards(false))) + (!tensor_routes()     ? "(e-1)"
                                                           : layout_.expert > 1 ? "(e t-1)"
                                                                                : "(t-1)");
  }
  std::string balanced() const {
    return times_text("L m", 2 * (1 + forwards(false))) + "b s k h " +
           (tensor_routes() ? "/ t " : "") + dealt() + ", if balanced";
  }

 private:
  bool tensor_routes() const { return layout_.whole_experts && layout_.tensor > 1; }
  std::string dealt() const {  // of the devices that deal out tokens
    return !tensor_routes() ? "(e-1)/e" : layout_.expert > 1 ? "(e t-1)/(e t)" : "(t-1)/t";
  }
  bool copies() const {
    return static_cast<int>(layout_.schedule.rank_of.size()) > layout_.schedule.stages;
  }
  std::int64_t forwards(bool attention) const {
    return layout_.recompute == Recompute::full ||
                   (attention && layout_.recompute == Recompute::selective)
               ? 2
               : 1;
  }
  std::string wide(const char* letters, std::int64_t times) const {
    return times_text(letters, times) + "b s h (t-1)/t";
  }
  std::string over_tensor() const { return layout_.tensor > 1 ? " / t" : ""; }

  // Groups of experts see fewer devices with the same; of some parameters all tensor ranks have a
  // part of the sum.
  bool of_experts(const FlatUnit& unit) const {
    return layout_.expert > 1 && unit.zero == axes_.expert_zero &&
           without(unit.replica, axes_.tensor) == axes_.expert_replica;
  }
  bool over_tensor(const FlatUnit& unit) const {
    return layout_.tensor > 1 && in_group(unit.replica, axes_.tensor[0]);
  }
  std::string letter(const FlatUnit& unit) const {
    const bool experts = of_experts(unit), tensor = over_tensor(unit);
    return experts ? (tensor ? "P_et" : "P_e") : tensor ? "P_t" : "P";
  }
  std::string numbers(const FlatUnit& unit, bool again) const {
    return !again ? letter(unit) : layout_.tensor > 1 ? "V h/t" : "V h";
  }
  std::string shards(const FlatUnit& unit) const {
    return of_experts(unit) ? "z_e" : layout_.zero_devices > 0 ? "z" : "d";
  }
  std::string of_replicas(const FlatUnit& unit) const {
    const bool experts = of_experts(unit);
    const std::int64_t same =
        layout_.batch_devices() / unit.shards / (experts ? layout_.expert : 1);
    const std::string r = experts ? "r_e" : unit.zero.empty() ? "d" : "r";
    if (!over_tensor(unit)) {
      return rest(same, r);
    }
    return same > 1 ? cat({"(", r, " t-1)/(", r, " t)"}) : "(t-1)/t";
  }
  static std::string rest(std::int64_t devices, const std::string& name) {
    return devices > 1 ? "(" + name + "-1)/" + name : "0";
  }

  const Layout& layout_;
  const LayoutAxes& axes_;
};

}  // namespace detail
}  // namespace tinyscale
