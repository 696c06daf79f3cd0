#pragma once
// What sharded generation cost: bytes sent and held beside their closed forms, and the simulated
// time of a decode step beside
//   T = weights and cache of a device / W + its collectives   W bytes/s of memory
// of the slowest stage for every microbatch, or of all stages for one, whichever is longer; of E
// experts, B tokens read E (1 - (1 - k / E)^B). What norms and residuals read is not in it.
// "How To Scale Your Model", chapter 7.

#include <cmath>     // pow
#include <cstdint>   // int64_t
#include <iostream>  // ostream
#include <string>    // string
#include <vector>    // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/measure/compare.hpp"
#include "tinyscale/mesh/mesh.hpp"
#include "tinyscale/parallel/decode_forms.hpp"
#include "tinyscale/parallel/step_tables.hpp"

namespace tinyscale {

namespace detail {

// What the formulas need of a device.
struct ServedDevice {
  double weights = 0, read = 0, experts = 0;  // bytes: held, read in a step, of all its experts
  double page_bytes = 0;                      // of all its layers, keys and values
  double row_bytes = 0;                       // of a token in one layer
  ServePlace place;
  ServeReplay replay;
};

}  // namespace detail

struct ShardedGeneration {
  List<std::vector<std::int32_t>> ids;  // of each prompt: it and what came
  MeshRun run;
  ServeLayout layout;
  ModelConfig config;
  Machine ran_on;
  bool greedy = false;
  Comparison sent = {};    // bytes of all devices, by what they are for
  Comparison memory = {};  // of weights and cache: of all devices, and of the one with the most
  Comparison times = {};   // simulated seconds of a decode step: the mean of a round of all prompts
  std::int64_t tokens = 0, rows = 0;  // that went in; after which logits were asked for

  // Bytes that a device sends for a token beside the formula, memory and time; its letters.
  Table table() const;
  std::string letters() const;
  operator Table() const { return table(); }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }

  // The same run on another machine of as many chips.
  ShardedGeneration on(const Machine& other) const;

  List<detail::ServedDevice> devices = {};  // by rank
};

namespace detail {

class ServeReporter {
 public:
  explicit ServeReporter(ShardedGeneration& of) : of_(of), axes_(serve_axes(of.layout)) {
    add_sent();
    add_memory();
    add_times();
  }

 private:
  static double sum_of(const std::vector<double>& all) {
    double sum = 0;
    for (const double one : all) {
      sum += one;
    }
    return sum;
  }
  static double most_of(const std::vector<double>& all) {
    double most = 0;
    for (const double one : all) {
      most = one > most ? one : most;
    }
    return most;
  }
  List<PlannedCall> calls(std::size_t d, const ReplayedTurn& turn) const {
    return serve_calls(of_.config, of_.layout, of_.devices[d].place, turn.tokens, turn.rows,
                       of_.greedy);
  }

  void add_sent() {
    List<Traffic> all;
    const List<AxisPlacement> placed = place_axes(of_.ran_on, axes_.mesh);
    const std::size_t devices = of_.devices.size();
    for (std::size_t d = 0; d < devices; ++d) {
      const MeshPoint at(axes_.mesh, static_cast<std::int64_t>(d));
      const List<ReplayedTurn>& turns = of_.devices[d].replay.turns;
      for (std::size_t i = 0; i < turns.size(); ++i) {
        std::size_t same = i + 1;  // turns alike one after another
        while (same < turns.size() && turns[same].tokens == turns[i].tokens &&
               turns[same].rows == turns[i].rows) {
          ++same;
        }
        for (const PlannedCall& call : calls(d, turns[i])) {
          const PlannedCost cost = planned_cost(call, at, of_.ran_on, placed, of_.layout.algorithm);
          Traffic& row = traffic_of(all, call.why, names_text(call.axes), devices);
          row.planned[d] += static_cast<double>(same - i) * cost.bytes;
          row.why = call.formula;
        }
        i = same - 1;
      }
    }
    const RunLog& log = of_.run.log();
    for (std::size_t c = 0; c < log.calls.size(); ++c) {
      std::vector<double> in(devices);
      add_bytes(log.calls[c],
                traffic_of(all, log.calls[c].where.file, of_.run.axes_of_call(c), devices).counted,
                in);
    }
    of_.sent.title = cat({"bytes sent by ", devices, " devices"});
    for (const Traffic& row : all) {
      const std::string name = cat({row.name, " over ", row.axes});
      of_.sent.add(name, "B", sum_of(row.planned), sum_of(row.counted), row.why);
      for (std::size_t d = 0; d < devices; ++d) {  // each that differs, which none should
        if (row.planned[d] < row.counted[d] || row.counted[d] < row.planned[d]) {
          of_.sent.add(cat({name, ", device ", d}), "B", row.planned[d], row.counted[d]);
        }
      }
    }
  }

  void add_memory() {
    std::vector<double> weights, held, cache, kept;
    for (std::size_t d = 0; d < of_.devices.size(); ++d) {
      const ServedDevice& device = of_.devices[d];
      const auto rank = static_cast<int>(d);
      weights.push_back(device.weights);
      held.push_back(of_.run.memory(rank).peak(MemoryKind::parameter));
      cache.push_back(static_cast<double>(device.replay.most_pages) * device.page_bytes);
      kept.push_back(static_cast<double>(of_.run.kept(rank, "pages").item()) * device.page_bytes);
    }
    of_.memory.title = "memory";
    const char* const pages = "2 L/p max(KV/t, 1) K b x tokens/s, whole pages";
    of_.memory.add("weights, all devices", "B", sum_of(weights), sum_of(held), "");
    of_.memory.add("weights, one device", "B", most_of(weights), most_of(held),
                   "parameters / (n p) + what pieces share, 4 B each");
    of_.memory.add("cache, all devices", "B", sum_of(cache), sum_of(kept), "");
    of_.memory.add("cache, one device", "B", most_of(cache), most_of(kept), pages);
  }

  // ---- Time of the rounds in which each sequence gets one token ----

  double links(std::size_t d, const ReplayedTurn& turn, bool sends) const {
    double seconds = 0;
    for (const PlannedCall& call : calls(d, turn)) {
      if (call.send == sends) {
        seconds += serve_seconds(call, axes_.mesh, of_.ran_on, of_.run.machine(),
                                 of_.layout.algorithm, of_.devices[d].place.stage);
      }
    }
    return seconds;
  }

  // Of one round: memory and collectives of the slowest stage, or all stages one after another.
  struct Round {
    double memory = 0, links = 0;
    double total() const { return memory + links; }
  };
  // The share of a mixture's experts that so many tokens miss when routing is even.
  double unvisited(std::int64_t tokens) const {
    const double top_k = of_.config.top_k, experts = of_.config.experts;
    return experts > 0 ? std::pow(1 - top_k / experts, tokens) : 0;
  }
  static void take_longer(Round& most, const Round& other) {
    most = other.total() > most.total() ? other : most;
  }
  Round formula(int round) const {
    const double rate = of_.run.machine().chip.memory_bandwidth;
    const auto pieces = static_cast<std::size_t>(of_.layout.pieces());
    Round slowest;
    List<Round> paths;
    for (std::size_t first = 0; first < of_.devices.size(); first += pieces) {
      Round stage;
      std::size_t group = 0;
      for (std::size_t i = 0; i < of_.devices[first].replay.turns.size(); ++i) {
        if (of_.devices[first].replay.turns[i].round != round) {
          continue;
        }
        Round one;
        for (std::size_t d = first; d < first + pieces; ++d) {
          const ServedDevice& device = of_.devices[d];
          const ReplayedTurn& turn = device.replay.turns[i];
          Round here;
          const double read = device.read - device.experts * unvisited(turn.tokens);
          here.memory = (read + turn.cached * device.row_bytes) / rate;
          take_longer(one, here);
        }
        const ReplayedTurn& turn = of_.devices[first].replay.turns[i];
        one.links = links(first, turn, false);
        stage.memory += one.memory;
        stage.links += one.links;
        if (group == paths.size()) {
          paths.push_back(Round());
        }
        paths[group].memory += one.memory;
        paths[group].links += one.links + links(first, turn, true);
        ++group;
      }
      take_longer(slowest, stage);
    }
    for (const Round& path : paths) {
      take_longer(slowest, path);
    }
    return slowest;
  }

  void add_times() {
    of_.times.title = "a decode step";
    of_.times.counted_head = "simulated";
    const std::size_t rank = of_.devices.size() - 1;  // of the last stage
    std::vector<double> ends;                         // of each round there
    const List<MemorySample> samples = of_.run.memory_samples(static_cast<int>(rank));
    for (const MemorySample& sample : samples) {
      if (sample.task >= 0) {
        ends.push_back(sample.seconds);
      }
    }
    int rounds = 0, last = -1;
    Round sum;
    double simulated = 0;
    for (const ReplayedTurn& turn : of_.devices[rank].replay.turns) {
      const bool begins = turn.round != last;
      last = turn.round;
      if (!begins || turn.round == 0 || !decodes(turn.round)) {
        continue;
      }
      const Round one = formula(turn.round);
      const auto at = static_cast<std::size_t>(turn.round);
      sum.memory += one.memory;
      sum.links += one.links;
      simulated += ends[at] - ends[at - 1];
      ++rounds;
    }
    if (rounds > 0) {
      const double n = static_cast<double>(rounds);
      of_.times.add("decode step", "s", sum.total() / n, simulated / n,
                    cat({format_seconds(sum.memory / n), " memory + ",
                         format_seconds(sum.links / n), " links"}));
    }
  }
  bool decodes(int round) const {
    bool all = true;
    for (const ReplayedTurn& turn : of_.devices.back().replay.turns) {
      all = all && (turn.round != round || turn.decodes);
    }
    return all;
  }

  ShardedGeneration& of_;
  ServeAxes axes_;
};

}  // namespace detail

inline ShardedGeneration ShardedGeneration::on(const Machine& other) const {
  ShardedGeneration same = *this;
  same.run = run.on(other);
  same.sent = same.memory = same.times = Comparison();
  detail::ServeReporter reporter(same);
  return same;
}

inline Table ShardedGeneration::table() const {
  Table out;
  out.title = detail::cat({config.name, " on ", run.machine().name, ", ", layout.text(), ": ",
                           tokens, " tokens in, ", rows, " chosen"});
  out.columns = {"what", "formula", "by formula", "counted", "ratio"};
  const auto devices_here = static_cast<double>(devices.size());
  for (const ReportRow& row : sent.rows) {
    const bool of_rows = row.name.find(detail::ServeCalls::logits) == 0 ||
                         row.name.find(detail::ServeCalls::ids) == 0;
    const double each = devices_here * static_cast<double>(of_rows ? rows : tokens);
    out.add({row.name + (of_rows ? ", a chosen token" : ", a token"),
             row.how.empty() ? "" : "4 x " + row.how,
             detail::number_cell('g', 6, row.predicted / each, "B"),
             detail::number_cell('g', 6, row.counted / each, "B"), detail::ratio_text(row)});
  }
  for (const ReportRow& row : memory.rows) {
    out.add({row.name, row.how, detail::with_its_unit(row.predicted, "B"),
             detail::with_its_unit(row.counted, "B"), detail::ratio_text(row)});
  }
  for (const ReportRow& row : times.rows) {
    out.add({row.name + ", simulated", row.how, format_seconds(row.predicted),
             format_seconds(row.counted), detail::ratio_text(row)});
  }
  return out;
}

inline std::string ShardedGeneration::letters() const {
  return detail::cat({"n ",
                      layout.pieces(),
                      " pieces of a matrix, t ",
                      layout.tensor,
                      " of the KV heads, s ",
                      layout.sequence,
                      " of a sequence, p ",
                      layout.pipeline,
                      " stages; L ",
                      config.layers,
                      " layers, D ",
                      config.width,
                      ", H ",
                      config.heads,
                      " heads, KV ",
                      config.kv_heads,
                      ", K ",
                      config.head_size,
                      ", V ",
                      config.vocabulary,
                      "; b bytes of a cached number"});
}

inline std::ostream& operator<<(std::ostream& out, const ShardedGeneration& made) {
  return out << made.table() << made.letters() << "\n";
}

}  // namespace tinyscale
