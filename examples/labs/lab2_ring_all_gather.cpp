// Lab 2: write a ring all_gather out of messages and hit its exact cost. Predict first: fill in the
// two guesses of YOUR PART; then the program. It runs on two simulated machines, beside the
// library's all_gather, and says "right" or what was counted and a hint. It ends with 0 when all
// is right. Read first: "How To Scale Your Model", chapter 3.
//   g++ -std=c++17 -O2 -pthread -I. examples/labs/lab2_ring_all_gather.cpp -o lab2 && ./lab2
#include <cmath>
#include <functional>
#include <iostream>

#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace lab2 {

// N devices on a ring, each with one chunk. A message to a neighbour takes latency + bytes / W.
struct RingProblem {
  int devices = 0;
  double chunk_bytes = 0;
  double latency = 0;    // seconds
  double bandwidth = 0;  // W: one link, one way, bytes/s
};

// ---- YOUR PART ----

// 1. Every device passes chunks to its right neighbour alone, until all have all of them.
ts::Guess my_guess(const RingProblem& /*p*/) {
  ts::Guess guess;
  // guess.steps = ...;             messages that one device sends, one after the other
  // guess.bytes_per_device = ...;  what it sends in all of them
  // guess.seconds = ...;           what that takes
  return guess;
}

// 2. The library's all_gather when it uses both directions of the ring at once: steps and bytes.
ts::Guess my_guess_both_ways(const RingProblem& /*p*/) {
  ts::Guess guess;
  // guess.steps = ...;
  // guess.bytes_per_device = ...;
  return guess;
}

// 3. The chunks of all devices of the axis, one below the other, in order of device.index(axis).
// device.permute(t, axis, 1) gives t to the right neighbour and returns what the left one gave;
// device.size(axis) is N; ts::concat(chunks, 0) joins a std::vector<ts::Tensor>. Mind that -1 % N
// is -1 in C++, not N - 1.
ts::Tensor my_all_gather(ts::Device& /*device*/, const ts::Tensor& /*mine*/,
                         const std::string& /*axis*/) {
  return ts::Tensor();  // not written yet
}

// ---- The grading; read it afterwards ----

struct Answers {
  std::function<ts::Guess(const RingProblem&)> guess = my_guess;
  std::function<ts::Guess(const RingProblem&)> both_ways = my_guess_both_ways;
  std::function<ts::Tensor(ts::Device&, const ts::Tensor&, const std::string&)> all_gather =
      my_all_gather;
};

// Device i has the numbers i * count, i * count + 1, ...: the whole counts up from 0.
ts::Tensor counting(std::int64_t first, std::int64_t count) {
  ts::Tensor t = ts::zeros({count});
  for (std::int64_t i = 0; i < count; ++i) {
    t.data()[i] = static_cast<float>(first + i);
  }
  return t;
}

// What is wrong with the numbers or with how they were moved; empty when nothing is.
std::string fault(const ts::MeshRun& run, std::int64_t count) {
  for (const ts::CollectiveRow& row : run.collectives()) {
    if (row.name != "permute" && row.name != "send" && row.name != "recv") {
      return "it calls " + row.name + "; build it of permute (or send and recv) alone";
    }
  }
  const ts::Tensor want = counting(0, count * run.devices());
  for (int rank = 0; rank < run.devices(); ++rank) {
    const ts::Tensor got = run.kept(rank, "all");
    if (got.count() == 0) {
      return "not written yet";
    }
    if (got.shape() != want.shape()) {
      return ts::detail::cat({"device ", rank, " has ", got.shape(), ", wanted ", want.shape()});
    }
    for (std::int64_t i = 0; i < want.count(); ++i) {
      if (got.data()[i] != want.data()[i]) {
        return ts::detail::cat({"on device ", rank, " the chunk at place ", i / count,
                                " is that of device ", static_cast<int>(got.data()[i]) / count});
      }
    }
  }
  return "";
}

int grade_numbers(const Answers& mine, const ts::Mesh& mesh, int count, const ts::Guess& guess,
                  std::ostream& out) {
  try {
    const ts::MeshRun run = mesh.run([&](ts::Device& d) {
      const ts::Tensor chunk = counting(std::int64_t{count} * d.index("x"), count);
      const ts::Tensor all = mine.all_gather(d, chunk, "x");
      d.keep("all", all.defined() ? all : ts::zeros({0}));
    });
    const std::string wrong = fault(run, count);
    out << "  3 your program: " << (wrong.empty() ? "the numbers are right" : wrong) << "\n";
    if (!wrong.empty()) {
      return 1;
    }
    const ts::CheckReport report = run.check(guess);
    out << "  3 its cost:     " << report;
    for (const ts::CollectiveRow& row : run.collectives()) {
      if (!report.right && row.steps > 1) {
        out << "                  a shift of 1 is one step; that of line " << row.where.line
            << " goes through " << row.steps << " links, one by one\n";
        break;
      }
    }
    return report.right ? 0 : 1;
  } catch (const ts::Error& error) {
    out << "  3 your program stopped: " << error.what() << "\n";
    return 1;
  }
}

int grade_guess(const char* name, const ts::Guess& guess, const ts::MeshRun& run,
                std::ostream& out) {
  const ts::CheckReport report = run.check(guess);
  out << name << report;
  return report.right ? 0 : 1;
}

int grade_machine(const Answers& mine, const ts::Machine& machine, std::ostream& out) {
  const int n = static_cast<int>(machine.chips());
  const int count = 45000;
  ts::Mesh mesh(machine, {{"x", n}});
  mesh.algorithm = ts::Algorithm::ring;
  const RingProblem p = {n, 4.0 * count, machine.links.back().latency,
                         machine.links.back().bandwidth.one_way()};
  out << machine.name << ": N = " << n << ", chunks of " << ts::format_bytes(p.chunk_bytes)
      << ", latency " << ts::format_seconds(p.latency)
      << ", W = " << ts::format_si(p.bandwidth, "B/s") << "\n";
  const ts::Guess guess = mine.guess(p), both = mine.both_ways(p);
  const ts::DeviceProgram library = [&](ts::Device& d) {
    d.all_gather(counting(std::int64_t{count} * d.index("x"), count), "x");
  };
  int wrong = 0;
  if (guess.steps < 0 || !(guess.bytes_per_device >= 0) || !(guess.seconds >= 0)) {
    out << "  1 one way:      not answered yet: steps, bytes_per_device and seconds\n";
    ++wrong;
  } else {
    wrong += grade_guess("  1 one way:      ", guess, mesh.run(library), out);
    if (std::abs(guess.seconds * p.bandwidth / guess.bytes_per_device - 1) < 1e-6) {
      out << "                  each message takes the latency as well\n";
    }
  }
  if (both.steps < 0 || !(both.bytes_per_device >= 0)) {
    out << "  2 both ways:    not answered yet: steps and bytes_per_device\n";
    ++wrong;
  } else {
    mesh.algorithm = ts::Algorithm::ring_both_ways;
    wrong += grade_guess("  2 both ways:    ", both, mesh.run(library), out);
    mesh.algorithm = ts::Algorithm::ring;
  }
  return wrong + grade_numbers(mine, mesh, count, guess, out);
}

// 0 when all is right on both machines.
int grade(const Answers& mine, std::ostream& out) {
  const int wrong = grade_machine(mine, ts::machine("tpu-v5e", {16}), out) +
                    grade_machine(mine, ts::machine("h100", {1, 8}), out);
  out << (wrong == 0 ? "All right.\n"
                     : "Not yet: edit YOUR PART of lab2_ring_all_gather.cpp, run again\n");
  return wrong == 0 ? 0 : 1;
}

}  // namespace lab2

int main() { return lab2::grade(lab2::Answers(), std::cout); }
