// Your own pipeline schedule, as plain data: which rank does what in which order. Three that people
// use and the header has not, ZB-H2, ZB-V and DualPipe, and one more; each is checked (complete?
// does anybody wait for ever?), timed, and put beside the built-in ones. F is a forward, B a whole
// backward, I and W its halves: the gradient of the input and that of the weights.
//   g++ -std=c++17 -O2 -pthread -I. examples/19_own_pipeline_schedule.cpp -o own_pipeline &&
//   ./own_pipeline
#include "tinyscale.hpp"
namespace ts = tinyscale;
using ts::PipelineWork;

// 1F1B with twice the forwards ahead: while a message is on its way there is something to do.
ts::PipelineSchedule eager_1f1b(int p, int m) {
  ts::PipelineSchedule schedule = ts::empty_schedule("eager 1f1b", p, m);
  for (int rank = 0; rank < p; ++rank) {
    const int ahead = 2 * (p - 1 - rank);
    for (int k = -ahead; k < m; ++k) {
      if (k + ahead < m) schedule.add(rank, PipelineWork::forward, rank, k + ahead);
      if (k >= 0) schedule.add(rank, PipelineWork::backward, rank, k);
    }
  }
  return schedule;
}

// ZB-H2 (arXiv 2401.10241): rank i is 2 (p - 1 - i) forwards ahead and does W 2 i microbatches
// after I: twice ZB-H1's, so that every rank works without a gap from its first op to its last.
ts::PipelineSchedule zero_bubble_h2(int p, int m) {
  ts::PipelineSchedule schedule = ts::empty_schedule("zb-h2", p, m);
  for (int rank = 0; rank < p; ++rank) {
    const int ahead = 2 * (p - 1 - rank), late = 2 * rank;
    for (int k = -ahead; k < m + late; ++k) {
      if (k + ahead < m) schedule.add(rank, PipelineWork::forward, rank, k + ahead);
      if (k >= 0 && k < m) schedule.add(rank, PipelineWork::input_gradient, rank, k);
      if (k >= late) schedule.add(rank, PipelineWork::weight_gradient, rank, k - late);
    }
  }
  return schedule;
}

// Writes a rank's program: "F0 I1 W" is a forward at place 0, an input gradient at place 1, each of
// the next microbatch there, and the oldest weight gradient that is left. What is not, is left out.
struct Writer {
  ts::PipelineSchedule& schedule;
  int rank, each;          // each: microbatches of a place
  int stage[2], first[2];  // of a place: its stage and its first microbatch
  int forwards[2] = {0, 0}, backwards[2] = {0, 0};
  ts::List<ts::PipelineOp> late = {};  // W of all I so far
  std::size_t weights = 0;             // of them done

  void write(int times, const std::string& ops) {
    for (; times > 0; --times) {
      for (std::size_t i = 0; i < ops.size(); i += 2) {
        const char op = ops[i];
        write_one(op, op == 'W' ? 0 : ops[++i] - '0');
      }
    }
  }

 private:
  void write_one(char op, int place) {
    int& next = op == 'F' ? forwards[place] : backwards[place];
    if (op == 'W' && weights < late.size()) {
      schedule.program[std::size_t(rank)].push_back(late[weights++]);
    } else if (op != 'W' && next < each) {
      const int microbatch = first[place] + next++;
      schedule.add(rank,
                   op == 'F'   ? PipelineWork::forward
                   : op == 'B' ? PipelineWork::backward
                               : PipelineWork::input_gradient,
                   stage[place], microbatch);
      if (op == 'I') late.push_back({PipelineWork::weight_gradient, stage[place], microbatch});
    }
  }
};

// ZB-V (arXiv 2401.10241): the model goes down the ranks (place 0) and up again (place 1), so that
// the first rank has the last stage too and its backward begins at once.
ts::PipelineSchedule zero_bubble_v(int p, int m) {
  ts::PipelineSchedule schedule = ts::empty_schedule("zb-v", p, m, 2);
  for (int rank = 0; rank < p; ++rank) {
    schedule.rank_of[std::size_t(2 * p - 1 - rank)] = rank;
    Writer writer = {schedule, rank, m, {rank, 2 * p - 1 - rank}, {0, 0}};
    writer.write(2 * (p - rank) - 1, "F0");
    writer.write(rank, "F1 F0");             // the first ones come up
    writer.write(p - rank, "F1 I1 W");       // and turn
    writer.write(m - p, "F0 I0 W F1 I1 W");  // nobody ever waits
    writer.write(rank, "I0 I1");             // others wait for I, nobody for W
    writer.write(p - rank, "I0 W");
    writer.write(2 * p, "W");
  }
  return schedule;
}

// DualPipe (arXiv 2412.19437): half of the microbatches enter at the first rank, half at the last,
// so that every rank has two stages of the model, the parameters twice. Place 0 is of those that
// enter nearer.
ts::PipelineSchedule dual_pipe(int p, int m) {
  ts::PipelineSchedule schedule = ts::empty_schedule("dualpipe", p, m);
  if (p % 2 != 0 || m % 2 != 0 || m < 2 * p) {
    throw ts::Error("dualpipe: ranks and microbatches are even, and twice as many microbatches");
  }
  for (int stage = 0; stage < p; ++stage) {
    schedule.rank_of.push_back(p - 1 - stage);  // of the second copy
  }
  for (int rank = 0; rank < p; ++rank) {
    const int near = std::min(rank, p - 1 - rank), inner = p / 2 - 1 - near;
    const int first = 2 * rank < p ? 0 : m / 2;
    Writer writer = {schedule, rank, m / 2, {near, p - 1 - near}, {first, m / 2 - first}};
    writer.write(2 * inner, "F0");
    writer.write(near + 1, "F0 F1");
    writer.write(inner, "I1 W F1");
    writer.write(m / 2 - p + near + 1, "F0 B1 F1 B0");  // each F runs beside a B
    writer.write(inner, "B1 F1 B0");
    for (int i = 0; i < 2 * (near + 1); ++i) {
      writer.write(1, std::string(i <= near ? "B" : "I") + "10"[i % 2]);
    }
    writer.write(inner, "W I0");
    writer.write(near + 1, "W");
  }
  return schedule;
}

// Equal stages with F = I = W = 1, so that a step's work is 3 m.
void compare(int p, int m) {
  ts::Table table;
  table.title = ts::detail::cat({p, " ranks, ", m, " microbatches: work ", 3 * m});
  table.columns = {"schedule", "idle",    "without barrier",          "peak activations",
                   "messages", "buffers", "step if a message takes 1"};
  for (const ts::PipelineSchedule& schedule :
       {ts::gpipe(p, m), ts::one_forward_one_backward(p, m), eager_1f1b(p, m),
        ts::interleaved(p, m, 2), ts::zero_bubble_h1(p, m), zero_bubble_h2(p, m),
        zero_bubble_v(p, m), dual_pipe(p, m)}) {
    ts::PipelineTimes slow;
    slow.message = 1;
    const ts::PipelineTiming timing = ts::time_pipeline(schedule);
    table.add({schedule.name, ts::detail::cat({timing.rank[0].idle}),
               ts::detail::cat({timing.total_without_barrier() - 3 * m}),
               ts::detail::cat({timing.peak_activations()}), std::to_string(timing.messages()),
               std::to_string(ts::buffers_needed(schedule)),
               ts::detail::cat({ts::time_pipeline(schedule, slow).total})});
  }
  std::cout << table << "\n";
}

// The table of the papers, for every size.
void check_formulas() {
  bool same = true;
  for (int p = 1; p <= 8; ++p) {
    for (int m = 2 * p; m <= 32; m += 2) {
      const ts::PipelineTiming h2 = ts::time_pipeline(zero_bubble_h2(p, m));
      const ts::PipelineTiming v = ts::time_pipeline(zero_bubble_v(p, m));
      same = same && !(h2.bubble_without_barrier() > 0) && h2.peak_activations() == 2 * p - 1;
      same = same && !(v.bubble_without_barrier() > 0) && v.peak_activations() == p;
      if (p % 2 == 0) {
        const ts::PipelineTiming dual = ts::time_pipeline(dual_pipe(p, m));
        same = same && dual.rank[0].idle == p / 2 - 1 && dual.peak_activations() == p + 1;
      }
    }
  }
  std::cout
      << "For up to 8 ranks and 2 p to 32 microbatches, F = I = W:\n"
         "  ZB-H2 works without a gap and holds 2 p - 1 microbatches; ZB-V too, and holds p;\n"
         "  DualPipe idles (p/2 - 1)(F + I - W) and holds p + 1. (The paper runs an F and a B\n"
         "  beside each other as one op, whose results leave together: (F&B) + B - 3W.)\n"
      << (same ? "  all the same\n" : "  DIFFERENT\n");
}

void check(const ts::PipelineSchedule& schedule, const ts::Buffering& buffering) {
  try {
    ts::check_pipeline(schedule, buffering);
    std::cout << schedule.name << ", " << buffering.text() << ": runs\n";
  } catch (const ts::Error& error) {
    std::cout << error.what() << "\n";
  }
}

int main() {
  compare(4, 8);
  check_formulas();
  for (const ts::PipelineSchedule& schedule :
       {zero_bubble_h2(4, 8), zero_bubble_v(4, 8), dual_pipe(4, 8)}) {
    std::cout << "\n" << schedule.name << "\n" << ts::time_pipeline(schedule).gantt();
  }

  std::cout << "\nWho waits for whom, when a send blocks?\n";
  for (const ts::PipelineSchedule& schedule :
       {ts::gpipe(4, 8), ts::one_forward_one_backward(4, 8), ts::interleaved(2, 4, 2)}) {
    for (const ts::Buffering& buffering :
         {ts::rendezvous_sends(), ts::paired_sends(), ts::buffered_sends(1)}) {
      check(schedule, buffering);
    }
  }
  std::cout << "\nTwo ops of rank 3 exchanged:\n";
  ts::PipelineSchedule wrong = ts::one_forward_one_backward(4, 8);
  std::swap(wrong.program[3][1], wrong.program[3][4]);
  check(wrong, ts::eager_sends());
  return 0;
}
