#pragma once
// What a step of sharded generation sends, in closed form, by device: B tokens, R rows of logits.
//   sums          2 L/p all_reduces of B D numbers: 2 (n-1)/n of them each from a device
//   embedding     one of B D;  logits: all_gather of R V, or of the R best of each device
//   queries       L/p all_gathers of B H/t K over s;  parts: all_to_all of B H/t (K + 1)
//   next stage    B D numbers;  ids: R to each other stage
// n = t s pieces of a matrix, p stages. Source: the scaling book, chapter 7; arXiv 1909.08053.

#include <cstdint>  // int64_t
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/mesh/run_rows.hpp"
#include "tinyscale/parallel/device_decode.hpp"
#include "tinyscale/parallel/step_traffic.hpp"

namespace tinyscale {

namespace detail {

// The calls of one device in a step of a microbatch.
inline List<PlannedCall> serve_calls(const ModelConfig& c, const ServeLayout& layout,
                                     const ServePlace& at, std::int64_t tokens, std::int64_t rows,
                                     bool greedy) {
  const ServeAxes axes = serve_axes(layout);
  const std::int64_t n = layout.pieces(), columns = (c.vocabulary + n - 1) / n;
  const std::int64_t heads = c.heads / layout.tensor;
  List<PlannedCall> calls;
  const auto add = [&](const char* why, Collective what, const AxisGroup& over,
                       std::int64_t elements, std::int64_t times, const char* formula) {
    if (!over.empty() && times > 0) {
      PlannedCall call;
      call.why = why;
      call.what = what;
      call.axes = over;
      call.elements = elements;
      call.times = times;
      call.formula = formula;
      call.send = over == axes.pipeline;
      calls.push_back(call);
    }
  };
  const Collective sum = Collective::all_reduce, gather = Collective::all_gather;
  add(ServeCalls::sums, sum, axes.pieces, tokens * c.width, 2 * at.layers(), "2 L/p x 2 (n-1)/n D");
  add(ServeCalls::embedding, sum, axes.pieces, tokens * c.width, at.first ? 1 : 0,
      "2 (n-1)/n D / p");
  add(ServeCalls::queries, gather, axes.sequence, tokens * heads * c.head_size, at.layers(),
      "L/p x (s-1)/s H/t K");
  add(ServeCalls::parts, Collective::all_to_all, axes.sequence, tokens * heads * (c.head_size + 1),
      at.layers(), "L/p x (s-1)/s H/t (K + 1)");
  add(ServeCalls::logits, gather, axes.pieces, rows * n * (greedy ? 2 : columns), at.last ? 1 : 0,
      greedy ? "(n-1) 2 / p" : "(n-1) ceil(V/n) / p");
  add(ServeCalls::stream, Collective::permute, axes.pipeline, tokens * c.width, at.last ? 0 : 1,
      "D (p-1)/p");
  add(ServeCalls::ids, Collective::permute, axes.pipeline, rows, at.last ? at.stage : 0, "(p-1)/p");
  return calls;
}

// One turn of a device, as the run's ids say that it was.
struct ReplayedTurn {
  int round = 0;
  std::int64_t tokens = 0, rows = 0, pages = 0;  // pages: in use on the device then
  double cached = 0;  // rows of keys that attention reads on it, in all its layers
  bool decodes = false;
};

// What follows for one device from the prompts and what came of them: as DeviceDecode::run.
struct ServeReplay {
  List<ReplayedTurn> turns;
  std::int64_t most_pages = 0;

  ServeReplay() = default;
  ServeReplay(const ModelConfig& c, const ServeLayout& layout, const ServeOptions& options,
              const ServePlace& at, const List<std::vector<std::int32_t>>& prompts,
              const List<std::vector<std::int32_t>>& ids, std::int64_t n)
      : turns_of_({options.pages.page_tokens, layout.sequence, at.sequence}),
        window_(c.window),
        pages_(ids.size()) {
    for (std::int64_t layer = at.first_layer; layer < at.end_layer; ++layer) {
      ++(c.is_local(layer) ? local_ : global_);
    }
    const auto all = static_cast<std::int64_t>(prompts.size());
    List<ServeBatch> batches =
        serve_batches(prompts, layout.groups(all), n, c.context, options.prefill_tokens);
    List<ServeTurn> last;
    last.resize(batches.size());
    const auto take = [&](std::size_t g) {
      std::vector<std::int32_t> came;
      for (const std::size_t who : last[g].who) {
        const ServeSequence& s = batches[g].sequences[who];
        const std::vector<std::int32_t>& made = ids[static_cast<std::size_t>(s.number)];
        came.push_back(s.ids.size() < made.size() ? made[s.ids.size()] : 0);
      }
      for (const int ended : batches[g].take(last[g], came, options.stop_tokens)) {
        pages_[static_cast<std::size_t>(ended)] = 0;
      }
    };
    bool running = true;
    for (int round = 0; running; ++round) {
      running = false;
      for (std::size_t g = 0; g < batches.size(); ++g) {
        if (!at.last && !last[g].runs.empty()) {
          take(g);
        }
        last[g] = batches[g].next();
        if (!last[g].runs.empty()) {
          running = true;
          add(last[g], round);
          if (at.last) {
            take(g);
          }
        }
      }
    }
  }

 private:
  void add(const ServeTurn& turn, int round) {
    ReplayedTurn one;
    one.round = round;
    one.tokens = turn.tokens;
    one.rows = turn.rows();
    one.decodes = turn.decodes;
    for (std::size_t i = 0; i < turn.runs.size(); ++i) {
      const auto more = static_cast<std::int64_t>(turn.runs[i].ids.size());
      const std::int64_t rows = turns_of_.count(turn.before[i] + more);
      const auto sequence = static_cast<std::size_t>(turn.runs[i].sequence);
      pages_[sequence] = (rows + turns_of_.page - 1) / turns_of_.page;
      const std::int64_t unseen =
          turns_of_.count(hidden_before(turn.before[i] + 1, window_));  // by the first token
      one.cached += static_cast<double>(global_ * rows + local_ * (rows - unseen));
    }
    for (const std::int64_t pages : pages_) {
      one.pages += pages;
    }
    most_pages = one.pages > most_pages ? one.pages : most_pages;
    turns.push_back(one);
  }

  CacheTurns turns_of_;
  std::int64_t window_ = 0, local_ = 0, global_ = 0;  // layers
  std::vector<std::int64_t> pages_;                   // of each sequence
};

// Weights that a step reads: all on the device but tables of which it reads single rows.
inline double serve_read_bytes(const Transformer& whole, const ServeLayout& layout,
                               const ServePlace& at) {
  double bytes = serve_weight_bytes(whole, layout, at);
  for (const Parameter& p : whole.parameters) {
    const bool table = p.name == "model.embed_tokens.weight";
    const bool head = table && whole.config.tied && at.last;
    const ServeCut cut = serve_cut(p, whole.config, layout, at);
    if (cut.here && !head && (table || name_has(p, "embed_positions"))) {
      const std::int64_t rows = cut.dim == 0 ? cut.end - cut.begin : p.shape[0];
      bytes -= 4 * static_cast<double>(rows * p.shape[1]);
    }
  }
  return bytes;
}

// Seconds of a call on `timed`, by the algorithm that it took on the machine on which it ran; of a
// send one message, to the next stage, or of ids to the first.
inline double serve_seconds(const PlannedCall& call, const List<MeshAxis>& mesh, const Machine& ran,
                            const Machine& timed, Algorithm preferred, std::int64_t stage) {
  CollectiveSpec spec;
  spec.what = call.what;
  spec.elements = call.elements;
  std::vector<int> numbers;
  for (const std::string& name : call.axes) {
    for (std::size_t i = 0; i < mesh.size(); ++i) {
      if (mesh[i].name == name) {
        numbers.push_back(static_cast<int>(i));
      }
    }
  }
  if (call.send) {
    CollectiveCost cost;
    spec.parts = parts_of_group(timed, place_axes(timed, mesh), numbers);
    add_message(spec, static_cast<int>(stage),
                call.why == ServeCalls::ids ? 0 : static_cast<int>(stage) + 1, call.elements, cost);
    return cost.seconds;
  }
  spec.parts = parts_of_group(ran, place_axes(ran, mesh), numbers);
  const bool named = preferred != Algorithm::automatic && has_algorithm(spec.what, preferred);
  spec.algorithm = named ? preferred : choose_algorithm(spec).algorithm;
  const CollectiveSpec before = spec;
  spec.parts = parts_of_group(timed, place_axes(timed, mesh), numbers);
  return static_cast<double>(call.times) * (same_rows(spec, before)
                                                ? cost_of(spec).seconds
                                                : schedule_seconds(make_schedule(before), spec));
}

}  // namespace detail
}  // namespace tinyscale
