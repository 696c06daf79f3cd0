// Pipeline schedules: the checker against a slow simulation and a search for circles, the timing
// against the longest path, idle time and activations against their closed forms.
#include <doctest/doctest.h>

#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "tinyscale.hpp"

// The example as it stands, in a namespace of its own.
namespace own {
#define main own_pipeline_schedule_main
#include "../examples/19_own_pipeline_schedule.cpp"
#undef main
}  // namespace own

namespace ts = tinyscale;

namespace {

using own::dual_pipe;
using own::zero_bubble_h2;
using own::zero_bubble_v;
using ts::PipelineKind;
using ts::PipelineOp;
using ts::PipelineSchedule;
using ts::PipelineTiming;
using ts::PipelineWork;

bool near(double a, double b) { return std::fabs(a - b) <= 1e-12 * std::fmax(1, std::fabs(b)); }

ts::PipelineTimes times_of(double forward, double input, double weight) {
  ts::PipelineTimes times;
  times.stage = {forward, input + weight, input, weight};
  return times;
}

const double some_times[][3] = {
    {1, 1, 1}, {1, 1.5, 0.5}, {0.75, 1, 1.25}, {2, 0.5, 1}, {0.1, 1, 3}};

// Numbers from a stream, one after the other.
struct Random {
  std::uint64_t seed, index = 0;
  int below(int n) { return int(ts::random_below(seed, index++, std::uint64_t(n))); }
};

// Any order that respects the needs, of stages that lie anywhere; some backwards split.
PipelineSchedule random_schedule(Random& random) {
  const int ranks = 1 + random.below(5), chunks = 1 + random.below(3);
  PipelineSchedule s = ts::empty_schedule("random", ranks, 1 + random.below(5), chunks);
  const bool twice = random.below(4) == 0;
  s.rank_of.resize(std::size_t(s.stages * (twice ? 2 : 1)));
  for (int& rank : s.rank_of) {
    rank = random.below(ranks);
  }
  const int m = s.microbatches;
  std::vector<int> state(std::size_t(s.stages * m), 0);  // 1 F done, 2 I done, 3 all done
  const auto at = [&](int stage, int j) -> int& { return state[std::size_t(stage * m + j)]; };
  for (int left = s.stages * m; left > 0;) {
    const int stage = random.below(s.stages), j = random.below(m);
    int& now = at(stage, j);
    const int rank = s.rank(stage, j);
    if (now == 0 && (stage == 0 || at(stage - 1, j) > 0)) {
      s.add(rank, PipelineWork::forward, stage, j);
      now = 1;
    } else if (now == 1 && (stage + 1 == s.stages || at(stage + 1, j) > 1)) {
      const bool split = random.below(2) == 0;
      s.add(rank, split ? PipelineWork::input_gradient : PipelineWork::backward, stage, j);
      now = split ? 2 : 3;
      left -= split ? 0 : 1;
    } else if (now == 2) {
      s.add(rank, PipelineWork::weight_gradient, stage, j);
      now = 3;
      --left;
    }
  }
  return s;
}

// All ops with an arrow from each to what comes after it: on its rank, or because it is needed.
struct Graph {
  std::vector<PipelineOp> ops;
  std::vector<int> rank;
  std::vector<std::vector<std::size_t>> before;

  explicit Graph(const PipelineSchedule& s) {
    for (int r = 0; r < s.ranks; ++r) {
      for (const PipelineOp& op : s.program[std::size_t(r)]) {
        const bool first = rank.empty() || rank.back() != r;
        before.push_back(first ? std::vector<std::size_t>()
                               : std::vector<std::size_t>{ops.size() - 1});
        ops.push_back(op);
        rank.push_back(r);
      }
    }
    for (std::size_t a = 0; a < ops.size(); ++a) {
      for (std::size_t b = 0; b < ops.size(); ++b) {
        if (ops[a].microbatch == ops[b].microbatch && needed(ops[a], ops[b], s.stages)) {
          before[b].push_back(a);
        }
      }
    }
  }
  static bool back(const PipelineOp& op) {
    return op.work == PipelineWork::backward || op.work == PipelineWork::input_gradient;
  }
  static bool needed(const PipelineOp& a, const PipelineOp& b, int) {
    const bool forward = a.work == PipelineWork::forward;
    return (forward && b.work == PipelineWork::forward && a.stage + 1 == b.stage) ||
           (forward && back(b) && a.stage == b.stage) ||
           (back(a) && back(b) && a.stage == b.stage + 1) ||
           (a.work == PipelineWork::input_gradient && b.work == PipelineWork::weight_gradient &&
            a.stage == b.stage);
  }
  // When each op ends if none starts before its arrows allow; empty: there is a circle.
  std::vector<double> finishes(const ts::PipelineTimes& times, double chunk) const {
    std::vector<double> finish(ops.size(), 0);
    for (std::size_t round = 0; round <= ops.size(); ++round) {
      bool changed = false;
      for (std::size_t b = 0; b < ops.size(); ++b) {
        double start = 0;
        for (const std::size_t a : before[b]) {
          start = std::fmax(start, finish[a] + (rank[a] == rank[b] ? 0 : times.message));
        }
        const double end =
            start + (times.of_stage.empty()
                         ? chunk * times.stage.of(ops[b].work)
                         : times.of_stage[std::size_t(ops[b].stage)].of(ops[b].work));
        changed = changed || end > finish[b];
        finish[b] = end;
      }
      if (!changed) {
        return finish;
      }
    }
    return {};
  }
};

// What a rank does, one after the other: receive, run, send. Whoever can, chosen at random, goes
// on.
bool runs_slowly(const PipelineSchedule& s, const ts::Buffering& buffering, Random random) {
  struct Action {
    int kind, message, other;  // 0 run, 1 receive, 2 send; which message; the other rank
  };
  const auto message_of = [&](const PipelineOp& op) {  // that an op sends
    return 2 * (op.stage * s.microbatches + op.microbatch) +
           (op.work == PipelineWork::forward ? 0 : 1);
  };
  const int messages = 2 * s.stages * s.microbatches;
  const auto n = std::size_t(s.ranks);
  std::vector<std::vector<Action>> todo(n);
  for (int r = 0; r < s.ranks; ++r) {
    for (const PipelineOp& op : s.program[std::size_t(r)]) {
      const bool weight = op.work == PipelineWork::weight_gradient;
      const int step = op.work == PipelineWork::forward ? 1 : -1;
      for (const int side : {-step, step}) {
        const int there = op.stage + side;
        const bool message =
            !weight && there >= 0 && there < s.stages && s.rank(there, op.microbatch) != r;
        if (message) {
          PipelineOp from = op;
          from.stage = side == step ? op.stage : there;
          todo[std::size_t(r)].push_back(
              {side == step ? 2 : 1, message_of(from), s.rank(there, op.microbatch)});
        }
        if (side == -step) {
          todo[std::size_t(r)].push_back({0, 0, 0});
        }
      }
    }
  }
  std::vector<std::size_t> done(n, 0);
  std::vector<int> waiting(std::size_t(messages), 0);  // in a buffer
  std::vector<int> early(n, 0);                        // paired: the receive after the send was met
  std::vector<std::vector<int>> filled(n, std::vector<int>(n, 0));
  const auto end = [&](std::size_t r) { return done[r] == todo[r].size(); };
  const auto step = [&](std::size_t r) {
    if (end(r)) {
      return false;
    }
    const Action a = todo[r][done[r]];
    const auto other = std::size_t(a.other);
    if (a.kind == 0) {
      ++done[r];
      return true;
    }
    if (a.kind == 1) {
      const bool met = early[r] != 0;
      if (!met && waiting[std::size_t(a.message)] == 0) {
        return false;
      }
      if (!met) {
        --filled[other][r];
      }
      early[r] = 0;
      ++done[r];
      return true;
    }
    if (buffering.kind == ts::Buffering::eager ||
        (buffering.kind == ts::Buffering::deep && filled[r][other] < buffering.depth)) {
      ++filled[r][other];
      waiting[std::size_t(a.message)] = 1;
      ++done[r];
      return true;
    }
    if (buffering.kind == ts::Buffering::deep || end(other)) {
      return false;
    }
    const Action* b = &todo[other][done[other]];
    if (b->kind == 2 && buffering.kind == ts::Buffering::paired &&
        done[other] + 1 < todo[other].size()) {
      b = &todo[other][done[other] + 1];
    }
    if (b->kind != 1 || b->message != a.message) {
      return false;
    }
    early[other] = 1;
    ++done[r];
    return true;
  };
  for (;;) {
    const auto first = std::size_t(random.below(s.ranks));
    bool moved = false;
    for (std::size_t i = 0; i < n && !moved; ++i) {
      moved = step((first + i) % n);
    }
    if (!moved) {
      break;
    }
  }
  for (std::size_t r = 0; r < n; ++r) {
    if (!end(r)) {
      return false;
    }
  }
  return true;
}

// Local order is outside what a message decides.
bool in_order_locally(const PipelineSchedule& s) {
  const Graph graph(s);
  for (std::size_t b = 0; b < graph.ops.size(); ++b) {
    for (const std::size_t a : graph.before[b]) {
      if (graph.rank[a] == graph.rank[b] && a > b) {
        return false;
      }
    }
  }
  return true;
}

bool passes(const PipelineSchedule& s, const ts::Buffering& buffering) {
  return error_of([&] { ts::check_pipeline(s, buffering); }) == "no error";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("idle time and activations of every built-in schedule equal section 3.2") {
  for (const double(&t)[3] : some_times) {
    const ts::PipelineTimes times = times_of(t[0], t[1], t[2]);
    const double F = t[0], B = t[1] + t[2], W = t[2];
    for (int p = 1; p <= 8; ++p) {
      for (int m = 1; m <= 16; ++m) {
        CAPTURE(p);
        CAPTURE(m);
        const PipelineTiming all[] = {ts::time_pipeline(ts::gpipe(p, m), times),
                                      ts::time_pipeline(ts::one_forward_one_backward(p, m), times),
                                      ts::time_pipeline(ts::zero_bubble_h1(p, m), times)};
        // (p - 1)(F + B - 2W) needs m >= p and a W that fits beside F and I.
        const double filled = std::fmin(W, std::fmin(F, B - W));
        const double h1 = (p - 1) * (F + B - W) - (std::min(m, p) - 1) * filled;
        if (m >= p && W <= F && W <= B - W) {
          CHECK(near(h1, (p - 1) * (F + B - 2 * W)));
        }
        for (int i = 0; i < p; ++i) {
          const auto r = std::size_t(i);
          CHECK(near(all[0].rank[r].idle, (p - 1) * (F + B)));
          CHECK(near(all[1].rank[r].idle, (p - 1) * (F + B)));
          CHECK(near(all[2].rank[r].idle, h1));
          CHECK(near(all[0].rank[r].peak_activations, m));
          CHECK(near(all[1].rank[r].peak_activations, std::min(m, p - i)));
          CHECK(near(all[2].rank[r].peak_activations, std::min(m, p)));
          CHECK(all[1].rank[r].activations == 0);
        }
        CHECK(near(all[1].bubble(), (p - 1.0) / (m + p - 1)));
        CHECK(near(all[1].idle_to_work(), (p - 1.0) / m));
        for (int v = 1; v <= 4 && m % p == 0; ++v) {
          CAPTURE(v);
          const PipelineTiming timing = ts::time_pipeline(ts::interleaved(p, m, v), times);
          for (int i = 0; i < p; ++i) {
            const auto r = std::size_t(i);
            CHECK(near(timing.rank[r].idle, (p - 1) * (F + B) / v));
            CHECK(near(timing.rank[r].peak_activations,
                       ts::pipeline_peak_activations({PipelineKind::interleaved, p, m, v}, i)));
          }
          CHECK(near(timing.idle_to_work(), (p - 1.0) / (v * m)));
          const double full = p * (1 + (p - 1.0) / (p * v));
          CHECK(near(timing.peak_activations(), std::fmin(m, full)));
          CHECK(timing.messages() == (p == 1 ? 0 : 2 * m * (p * v - 1)));
        }
      }
    }
  }
}

TEST_CASE("the closed forms of a pipeline equal its schedule") {
  for (const PipelineKind kind : {PipelineKind::gpipe, PipelineKind::one_forward_one_backward,
                                  PipelineKind::interleaved, PipelineKind::zero_bubble_h1}) {
    for (const double(&t)[3] : some_times) {
      const ts::PipelineTimes times = times_of(t[0], t[1], t[2]);
      for (int p = 1; p <= 6; ++p) {
        for (int m = 1; m <= 12; ++m) {
          const bool interleaves = kind == PipelineKind::interleaved;
          for (int v = 1; v <= (interleaves ? 3 : 1) && (!interleaves || m % p == 0); ++v) {
            const ts::PipelineShape shape = {kind, p, m, v};
            const PipelineTiming timing = ts::time_pipeline(ts::make_pipeline(shape), times);
            CHECK(
                near(ts::pipeline_idle(shape, times.stage), timing.rank[std::size_t(p) - 1].idle));
            CHECK(near(ts::pipeline_bubble(shape, times.stage), timing.bubble()));
            CHECK(near(ts::pipeline_messages(shape), timing.messages()));
            for (int i = 0; i < p; ++i) {
              CHECK(near(ts::pipeline_peak_activations(shape, i),
                         timing.rank[std::size_t(i)].peak_activations));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("published points of the bubble") {
  const auto rate = [](int p, int m) {
    return ts::time_pipeline(ts::one_forward_one_backward(p, m)).bubble();
  };
  CHECK(ts::format_fixed(rate(4, 8), 3) == "0.273");
  CHECK(ts::format_fixed(rate(8, 8), 3) == "0.467");
  CHECK(ts::format_fixed(rate(8, 32), 3) == "0.179");
  CHECK(ts::format_fixed(rate(16, 64), 3) == "0.190");
  const PipelineTiming plain = ts::time_pipeline(ts::one_forward_one_backward(8, 32));
  const PipelineTiming four = ts::time_pipeline(ts::interleaved(8, 32, 4));
  CHECK(ts::format_fixed(plain.idle_to_work(), 3) == "0.219");
  CHECK(ts::format_fixed(four.idle_to_work(), 3) == "0.055");
  const PipelineTiming h1 = ts::time_pipeline(ts::zero_bubble_h1(8, 32));  // F = I = W
  CHECK(near(3 * h1.rank[0].idle, plain.rank[0].idle));
}

TEST_CASE("ZB-H2, ZB-V and DualPipe of the example") {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 24; ++m) {
      CAPTURE(p);
      CAPTURE(m);
      const PipelineTiming h2 = ts::time_pipeline(zero_bubble_h2(p, m));
      const PipelineTiming v = ts::time_pipeline(zero_bubble_v(p, m));
      CHECK(near(h2.peak_activations(), std::min(m, 2 * p - 1)));
      CHECK(v.peak_activations() <= p);
      if (m >= 2 * p - 1) {
        CHECK(near(h2.bubble_without_barrier(), 0));
        CHECK(near(h2.rank[0].idle, p - 1));  // the last rank starts so late
        CHECK(near(v.bubble_without_barrier(), 0));
        CHECK(near(v.rank[0].idle, (p - 1) / 2.0));
        CHECK(near(v.peak_activations(), p));
        CHECK(v.messages() == 4 * m * (p - 1));  // twice 1F1B's
      }
      if (p % 2 == 0 && m % 2 == 0 && m >= 2 * p) {
        const PipelineTiming dual = ts::time_pipeline(dual_pipe(p, m));
        CHECK(near(dual.rank[0].idle, p / 2 - 1));
        CHECK(near(dual.peak_activations(), p + 1));
      }
    }
  }
  // Unbalanced, ZB-H2 is (p - 1)(F + B - 3W) as long as that is not below 0.
  const PipelineTiming h2 = ts::time_pipeline(zero_bubble_h2(4, 16), times_of(1, 1.25, 1));
  CHECK(near(h2.total_without_barrier() - 16 * 3.25, 3 * 0.25));
}

TEST_CASE("DualPipe with each F beside its B as one op has the published bubble") {
  const int p = 8, m = 32;
  const double F = 1, I = 1.5, W = 0.5, B = I + W;
  const PipelineSchedule s = dual_pipe(p, m);
  const Graph graph(s);
  // The steady part of rank r: F B F B .., then B (F B) ..; both ops of a pair start when both can.
  std::vector<std::size_t> partner(graph.ops.size());
  std::size_t begin = 0;
  for (int r = 0; r < p; ++r) {
    const int edge = std::min(r, p - 1 - r), inner = p / 2 - 1 - edge;
    std::size_t at = begin + std::size_t(2 * inner + 2 * (edge + 1) + 3 * inner);
    begin += s.program[std::size_t(r)].size();
    for (std::size_t i = begin - s.program[std::size_t(r)].size(); i < begin; ++i) {
      partner[i] = i;
    }
    for (int k = 0; k < 2 * (m / 2 - p + edge + 1) + inner; ++k, at += 2) {
      at += k >= 2 * (m / 2 - p + edge + 1) ? 1 : 0;
      REQUIRE(graph.ops[at].work == PipelineWork::forward);
      partner[at] = at + 1;
      partner[at + 1] = at;
    }
  }
  std::vector<double> finish(graph.ops.size(), 0);
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t b = 0; b < graph.ops.size(); ++b) {
      double start = 0;
      for (const std::size_t one : {b, partner[b]}) {
        for (const std::size_t a : graph.before[one]) {
          start = a == partner[one] ? start : std::fmax(start, finish[a]);
        }
      }
      const PipelineWork work = graph.ops[b].work;
      const double end = start + (partner[b] != b                        ? F + B
                                  : work == PipelineWork::forward        ? F
                                  : work == PipelineWork::backward       ? B
                                  : work == PipelineWork::input_gradient ? I
                                                                         : W);
      changed = changed || end > finish[b];
      finish[b] = end;
    }
  }
  double total = 0;
  for (const double one : finish) {
    total = std::fmax(total, one);
  }
  CHECK(near(total - m * (F + B), (p / 2 - 1) * ((F + B) + B - 3 * W)));
}

TEST_CASE("timing of random schedules is the longest path") {
  Random random = {1};
  for (int round = 0; round < 150; ++round) {
    const PipelineSchedule s = random_schedule(random);
    ts::PipelineTimes times =
        times_of(1 + random.below(5), 1 + random.below(5), 1 + random.below(5));
    times.message = random.below(3);
    for (int i = 0; i < s.stages && round % 2 == 1; ++i) {
      times.of_stage.push_back(
          {1.0 + random.below(4), 1.0 + random.below(4), 1.0 + random.below(4), 0.5});
    }
    times.freed_by_input_gradient = 0.25 * random.below(5);
    const PipelineTiming timing = ts::time_pipeline(s, times);
    const Graph graph(s);
    const std::vector<double> finish = graph.finishes(times, double(s.ranks) / s.stages);
    REQUIRE(finish.size() == graph.ops.size());
    std::size_t i = 0;
    double total = 0, busy = 0;
    for (std::size_t r = 0; r < timing.program.size(); ++r) {
      double held = 0, most = 0, own = 0;
      for (const ts::TimedPipelineOp& timed : timing.program[r]) {
        CHECK(near(timed.finish, finish[i]));
        total = std::fmax(total, finish[i++]);
        own += timed.finish - timed.start;
        const double freed = times.freed_by_input_gradient;
        const double change[] = {1, -1, -freed, freed - 1};
        held += change[int(timed.op.work)];
        most = std::fmax(most, held);
      }
      CHECK(near(timing.rank[r].busy, own));
      CHECK(near(timing.rank[r].peak_activations, most * s.ranks / s.stages));
      CHECK(std::fabs(timing.rank[r].activations) < 1e-12);
      busy += own;
    }
    CHECK(near(timing.total, total));
    CHECK(near(timing.rank[0].idle + timing.rank[0].busy, total));
    CHECK(near(timing.bubble(), 1 - busy / (total * s.ranks)));
  }
}

TEST_CASE("the checker decides as a slow simulation does") {
  Random random = {2};
  const ts::Buffering all[] = {ts::eager_sends(), ts::buffered_sends(1), ts::buffered_sends(2),
                               ts::rendezvous_sends(), ts::paired_sends()};
  int good = 0, bad = 0;
  const auto compare = [&](const PipelineSchedule& s) {
    for (const ts::Buffering& buffering : all) {
      const bool slow = runs_slowly(s, buffering, {std::uint64_t(random.below(1000))});
      CHECK(passes(s, buffering) == slow);
      ++(slow ? good : bad);
    }
  };
  for (int round = 0; round < 300; ++round) {
    PipelineSchedule s = random_schedule(random);
    CHECK(passes(s, ts::eager_sends()));
    compare(s);
    CHECK(passes(s, ts::buffered_sends(ts::buffers_needed(s))));
    // Two ops of a rank exchanged, anywhere.
    ts::List<PipelineOp>& ops = s.program[std::size_t(random.below(s.ranks))];
    if (ops.size() > 1) {
      std::swap(ops[std::size_t(random.below(int(ops.size())))],
                ops[std::size_t(random.below(int(ops.size())))]);
      const bool circle = Graph(s).finishes(ts::PipelineTimes(), 1).empty();
      CHECK(passes(s, ts::eager_sends()) == !circle);
      if (in_order_locally(s)) {
        compare(s);
      }
    }
  }
  for (int p = 1; p <= 5; ++p) {
    for (int m = 1; m <= 10; ++m) {
      for (const PipelineSchedule& s : {ts::gpipe(p, m), ts::one_forward_one_backward(p, m),
                                        ts::zero_bubble_h1(p, m), zero_bubble_v(p, m)}) {
        compare(s);
      }
    }
    compare(ts::interleaved(p, 2 * p, 2));
  }
  CHECK(good > 300);
  CHECK(bad > 300);
}

TEST_CASE("the messages of built-in schedules arrive in the order in which they are needed") {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 16; ++m) {
      CHECK(ts::arrives_in_order(ts::gpipe(p, m)));
      CHECK(ts::arrives_in_order(ts::one_forward_one_backward(p, m)));
      CHECK(ts::arrives_in_order(ts::zero_bubble_h1(p, m)));
      for (int v = 1; v <= 3 && m % p == 0; ++v) {
        CHECK(ts::arrives_in_order(ts::interleaved(p, m, v)));
      }
    }
  }
  PipelineSchedule turned = ts::gpipe(2, 2);
  std::swap(turned.program[1][0], turned.program[1][1]);
  CHECK(passes(turned, ts::buffered_sends(2)));
  CHECK(!ts::arrives_in_order(turned));
}

TEST_CASE("what is wrong with a schedule is named") {
  Random random = {3};
  for (int round = 0; round < 200; ++round) {
    const PipelineSchedule right = random_schedule(random);
    const int rank = random.below(right.ranks);
    const auto r = std::size_t(rank);
    const auto n = right.program[r].size();
    if (n == 0) {
      continue;
    }
    const auto i = std::size_t(random.below(int(n)));
    const PipelineOp op = right.program[r][i];
    PipelineSchedule lacking = right;
    lacking.program[r].clear();
    for (std::size_t k = 0; k < n; ++k) {
      if (k != i) {
        lacking.program[r].push_back(right.program[r][k]);
      }
    }
    std::string name;
    ts::append_text(name, op);
    std::string error = error_of([&] { ts::check_pipeline(lacking); });
    PipelineOp as = op;  // a missing backward: there was to be either kind
    as.work = op.work == PipelineWork::input_gradient ? PipelineWork::backward : op.work;
    std::string as_name;
    ts::append_text(as_name, as);
    CHECK(contains(error, ts::detail::cat({"rank ", rank, " lacks ", as_name})));
    PipelineSchedule twice = right;
    twice.program[r].push_back(op);
    error = error_of([&] { ts::check_pipeline(twice); });
    CHECK(error == ts::detail::cat({"check_pipeline: random: rank ", rank, ", op ", n, ": ", op,
                                    " is op ", i, " already; once is right"}));
    if (right.ranks > 1) {
      const int other = (rank + 1) % right.ranks;
      lacking.program[std::size_t(other)].push_back(op);
      error = error_of([&] { ts::check_pipeline(lacking); });
      CHECK(contains(error, ts::detail::cat({": ", op, " belongs to rank ", rank})));
    }
  }
}

TEST_CASE("a deadlock is named with everybody in it") {
  const auto error = [](const PipelineSchedule& s, const ts::Buffering& buffering) {
    return error_of([&] { ts::check_pipeline(s, buffering); });
  };
  const PipelineSchedule plain = ts::one_forward_one_backward(2, 4);
  CHECK(
      error(plain, ts::rendezvous_sends()) ==
      "check_pipeline: 1f1b: deadlock (rendezvous): rank 0 after F of stage 0, microbatch 1 waits "
      "for rank 1 to receive it; rank 1 after B of stage 1, microbatch 0 waits for rank 0 to "
      "receive it");
  CHECK(error(plain, ts::paired_sends()) == "no error");
  CHECK(error(plain, ts::buffered_sends(1)) == "no error");
  CHECK(
      error(ts::interleaved(2, 4, 2), ts::paired_sends()) ==
      "check_pipeline: interleaved: deadlock (paired rendezvous): rank 0 after B of stage 2, "
      "microbatch 0 waits for rank 1 to receive it; rank 1 after B of stage 3, microbatch 1 waits "
      "for rank 0 to receive it");
  CHECK(error(ts::interleaved(2, 4, 2), ts::buffered_sends(1)) ==
        "check_pipeline: interleaved: deadlock (buffers of 1): rank 0 after F of stage 0, "
        "microbatch 3 waits for rank 1 to empty a buffer; rank 1 after F of stage 1, microbatch 2 "
        "waits for rank 0 to empty a buffer");
  CHECK(ts::buffers_needed(ts::interleaved(2, 4, 2)) == 2);
  CHECK(ts::buffers_needed(plain) == 1);

  PipelineSchedule seeded = ts::one_forward_one_backward(4, 8);
  std::swap(seeded.program[3][1], seeded.program[3][4]);
  const std::string circle =
      "1f1b: deadlock (eager): rank 2 at B of stage 2, microbatch 0 waits for B of stage 3, "
      "microbatch 0 of rank 3; rank 3 at F of stage 3, microbatch 2 waits for F of stage 2, "
      "microbatch 2 of rank 2";
  CHECK(error(seeded, ts::eager_sends()) == "check_pipeline: " + circle);
  CHECK(error_of([&] { ts::time_pipeline(seeded); }) == "time_pipeline: " + circle);
  CHECK(error_of([&] { ts::buffers_needed(seeded); }) == "buffers_needed: " + circle);

  PipelineSchedule late = ts::zero_bubble_h1(2, 2);
  std::swap(late.program[1][0], late.program[1][1]);
  CHECK(
      error(late, ts::eager_sends()) ==
      "check_pipeline: zb-h1: deadlock (eager): rank 1 at I of stage 1, microbatch 0 waits for its "
      "own later F of stage 1, microbatch 0");

  // Everybody sends first, around a ring of stages: no more than 8 are listed.
  const std::string ring = error(ts::interleaved(12, 24, 2), ts::rendezvous_sends());
  CHECK(contains(ring, "rank 7 after "));
  CHECK(!contains(ring, "rank 8 after "));
  CHECK(contains(ring, "to receive it; and so on in a circle"));
}

TEST_CASE("errors of pipeline schedules") {
  CHECK(error_of([] { ts::gpipe(0, 4); }) ==
        "gpipe: 0 ranks, 0 stages, 4 microbatches; 1 to 4096 ranks are right, and 1 to 4194304 "
        "stages x microbatches");
  CHECK(error_of([] { ts::one_forward_one_backward(4, 0); }) ==
        "1f1b: 4 ranks, 4 stages, 0 microbatches; 1 to 4096 ranks are right, and 1 to 4194304 "
        "stages x microbatches");
  CHECK(error_of([] { ts::zero_bubble_h1(2000000000, 2000000000); }) ==
        "zb-h1: 2000000000 ranks, 2000000000 stages, 2000000000 microbatches; 1 to 4096 ranks are "
        "right, and 1 to 4194304 stages x microbatches");
  CHECK(error_of([] { ts::interleaved(-2147483647, 4, 1000); }) ==
        "interleaved: -2147483647 ranks, -2147483647 stages, 4 microbatches; 1 to 4096 ranks are "
        "right, and 1 to 4194304 stages x microbatches");
  CHECK(error_of([] { ts::interleaved(4, 8, 0); }) ==
        "interleaved: 0 chunks of the model on a rank; 1 to 1024 are right");
  CHECK(error_of([] { ts::interleaved(4, 6, 2); }) ==
        "interleaved: 6 microbatches on 4 ranks; they must be a multiple of the ranks");

  const auto error = [](const PipelineSchedule& s) {
    return error_of([&] { ts::check_pipeline(s); });
  };
  CHECK(PipelineSchedule().empty());
  CHECK(error(PipelineSchedule()) ==
        "check_pipeline: : 0 ranks, 0 stages, 0 microbatches; 1 to 4096 ranks are right, and 1 to "
        "4194304 stages x microbatches");
  const PipelineSchedule right = ts::gpipe(2, 1);
  PipelineSchedule wrong = right;
  wrong.program.pop_back();
  CHECK(error(wrong) ==
        "check_pipeline: gpipe: 1 programs and 2 entries of rank_of for 2 ranks and 2 stages; a "
        "program for each rank and an entry for each stage (or two) are right");
  wrong = right;
  wrong.rank_of[1] = 2;
  CHECK(error(wrong) == "check_pipeline: gpipe: stage 1 is on rank 2; ranks are 0 to 1");
  wrong = right;
  wrong.program[0][0].stage = 2;
  CHECK(error(wrong) ==
        "check_pipeline: gpipe: rank 0, op 0: F of stage 2, microbatch 0; stages are 0 to 1, "
        "microbatches 0 to 0");
  wrong = right;
  wrong.program[0][0].stage = 1;
  CHECK(error(wrong) ==
        "check_pipeline: gpipe: rank 0, op 0: F of stage 1, microbatch 0 belongs to rank 1");
  wrong = right;
  wrong.program[1].pop_back();
  CHECK(error(wrong) == "check_pipeline: gpipe: rank 1 lacks B of stage 1, microbatch 0");
  wrong.add(1, PipelineWork::input_gradient, 1, 0);
  CHECK(error(wrong) ==
        "check_pipeline: gpipe: rank 1 lacks W of stage 1, microbatch 0, whose I it does");
  wrong.add(1, PipelineWork::backward, 1, 0);
  CHECK(
      error(wrong) ==
      "check_pipeline: gpipe: rank 1, op 2: B of stage 1, microbatch 0 is op 1 already, as I; once "
      "is right");
  wrong = right;
  wrong.add(1, PipelineWork::weight_gradient, 1, 0);
  CHECK(
      error(wrong) ==
      "check_pipeline: gpipe: rank 1 has both B and W of stage 1, microbatch 0; either B, or I and "
      "W are right");
  wrong = right;
  wrong.add(1, PipelineWork::forward, 1, 0);
  CHECK(error(wrong) ==
        "check_pipeline: gpipe: rank 1, op 2: F of stage 1, microbatch 0 is op 0 already; once is "
        "right");
  CHECK(error_of([&] { ts::check_pipeline(right, ts::buffered_sends(0)); }) ==
        "check_pipeline: gpipe: buffers of 0 messages; 1 or more are right, rendezvous is without");

  ts::PipelineTimes times;
  times.of_stage.push_back({1, 2, 1, 1});
  CHECK(error_of([&] { ts::time_pipeline(right, times); }) ==
        "time_pipeline: gpipe: times of 1 stages for 2; one for each stage (or none) is right");
  times.of_stage.push_back({1, 2, 0, 1});
  CHECK(error_of([&] { ts::time_pipeline(right, times); }) ==
        "time_pipeline: gpipe: an op takes 0; times are above 0 and finite");
  times.of_stage.clear();
  times.stage.forward = NAN;
  CHECK(error_of([&] { ts::time_pipeline(right, times); }) ==
        "time_pipeline: gpipe: an op takes nan; times are above 0 and finite");
  CHECK(error_of([&] { ts::pipeline_bubble({}, times.stage); }) ==
        "pipeline_idle: an op takes nan; times are above 0 and finite");
  times.stage.forward = 1e308;
  CHECK(error_of([&] { ts::time_pipeline(right, times); }) ==
        "time_pipeline: gpipe: its ops take more together than a double holds; smaller times are "
        "right");
  times.stage.forward = 1;
  times.message = -1;
  CHECK(
      error_of([&] { ts::time_pipeline(right, times); }) ==
      "time_pipeline: gpipe: a message takes -1, the gradient of the input frees 0; 0 or more, and "
      "0 to 1 are right");

  CHECK(error_of([] {
          ts::pipeline_idle({PipelineKind::gpipe, 4, 8, 2});
        }) ==
        "pipeline_idle: 4 ranks, 8 microbatches, 2 chunks; each is 1 or more; only interleaved has "
        "more chunks than 1, and its microbatches are a multiple of the ranks");
  CHECK(error_of([] {
          ts::make_pipeline({PipelineKind::interleaved, 4, 6, 2});
        }) ==
        "make_pipeline: 4 ranks, 6 microbatches, 2 chunks; each is 1 or more; only interleaved has "
        "more chunks than 1, and its microbatches are a multiple of the ranks");
  CHECK(error_of([] {
          ts::pipeline_peak_activations({PipelineKind::gpipe, 4, 8, 1}, 4);
        }) == "pipeline_peak_activations: rank 4 of 4; ranks are 0 to 3");
  CHECK(error_of([] { own::dual_pipe(3, 8); }) ==
        "dualpipe: ranks and microbatches are even, and twice as many microbatches");
}

TEST_CASE("a timed pipeline as text, table and picture") {
  std::ostringstream out;
  out << ts::time_pipeline(ts::zero_bubble_h1(2, 2));
  CHECK(out.str() ==
        "rank 0  F0 F1 .. I0 W0 I1 W1\n"
        "rank 1  .. F0 I0 F1 I1 W0 W1\n"
        "zb-h1: 2 ranks, 2 stages, 2 microbatches; a step takes 7, bubble 14.3 %, without barrier "
        "14.3 %\n"
        "rank  first op  end  busy  idle  peak activations  messages out\n"
        "----  --------  ---  ----  ----  ----------------  ------------\n"
        "   0         0    7     6     1                 2             2\n"
        "   1         1    7     6     1                 2             2\n");
  const PipelineTiming timing = ts::time_pipeline(ts::interleaved(2, 2, 2));
  CHECK(timing.gantt() ==
        "rank 0  F0a F1a F0b F1b ... ... B0b---- ... B1b---- B0a---- B1a----\n"
        "rank 1  ... F0a F1a F0b B0b---- F1b B1b---- B0a---- B1a---- ... ...\n");
  CHECK(contains(timing.csv(), "rank,first op,end,busy,idle,peak activations,messages out\n0,0,"));
  CHECK(contains(timing.json(), "\"peak activations\": 2"));
  // A long one is drawn in 240 columns.
  ts::PipelineTimes uneven = times_of(0.001, 1, 1);
  const std::string wide = ts::time_pipeline(ts::gpipe(1, 99), uneven).gantt();
  CHECK(wide.size() <= 8 + 240 * 4 + 1);

  const ts::Svg picture = ts::svg(timing);
  CHECK(picture.text == "interleaved: 2 ranks, 2 microbatches, bubble 20.0 %, 2 held");
  CHECK(contains(picture.markup(), "F forward; paler: a later stage of the rank"));
  CHECK(contains(picture.markup(), "fill-opacity=\"0.7\""));
  CHECK(!contains(picture.markup(), "gradient of the input"));
  CHECK(ts::svg(ts::time_pipeline(zero_bubble_v(4, 8))).text ==
        "zb-v: 4 ranks, 8 microbatches, bubble 5.9 % (0.0 % without barrier), 4 held");
  // 64 rows at most, none with more boxes than pixels can show.
  const std::string large = ts::svg(ts::time_pipeline(ts::gpipe(70, 600))).markup();
  CHECK(large.size() < 64 * 1700 * 130);
  CHECK(contains(large, ">rank 63<"));
  CHECK(!contains(large, ">rank 64<"));
}

TEST_CASE("pipeline: an op of no kind, and two copies for one microbatch") {
  ts::PipelineSchedule s = ts::one_forward_one_backward(2, 2);
  s.program[0][0].work = static_cast<ts::PipelineWork>(7);
  CHECK(error_of([&] { ts::check_pipeline(s); }) ==
        "check_pipeline: 1f1b: rank 0, op 0 is of kind 7; 0 to 3 are forward, backward and its two "
        "halves");
  ts::Layout layout;
  layout.pipeline = 2;
  layout.microbatches = 1;
  layout.schedule = ts::one_forward_one_backward(2, 1);
  layout.schedule.rank_of = {0, 1, 1, 0};
  ts::TrainOptions options;
  options.layout = layout;
  options.machine = ts::machine("tpu-v5e", {2});
  options.steps = 1;
  options.out = nullptr;
  ts::Transformer model(ts::config("nano"), 1);
  const ts::Text text = ts::make_text("text", std::string(2000, 'a') + "b");
  CHECK(error_of([&] {
          ts::train(model, text, options);
        }).find("has two copies of each stage and 1 microbatch; each copy needs one") !=
        std::string::npos);
}

TEST_CASE("pipeline: an op is added to a rank that there is") {
  ts::PipelineSchedule schedule = ts::empty_schedule("mine", 2, 1);
  schedule.add(1, PipelineWork::forward, 1, 0);
  for (const int rank : {2, -1}) {
    CHECK(error_of([&] { schedule.add(rank, PipelineWork::forward, 0, 0); }) ==
          ts::detail::cat({"add: rank ", rank, " of mine; 0 to 1 are right"}));
  }
  CHECK(error_of([] { ts::PipelineSchedule().add(0, PipelineWork::forward, 0, 0); }) ==
        "add: rank 0 of , which has none; begin with empty_schedule");
}

TEST_CASE("pipeline: a kind of schedule that is none") {
  ts::PipelineShape shape;
  shape.kind = static_cast<ts::PipelineKind>(9);
  CHECK(error_of([&] { ts::pipeline_bubble(shape); }) ==
        "PipelineKind: 9 is no value of it; 0 to 3 are right");
  CHECK(std::string(ts::name_of(ts::PipelineKind::zero_bubble_h1)) == "ZB-H1");
}
