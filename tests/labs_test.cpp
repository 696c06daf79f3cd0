// The labs with their solutions. Each lab is included as it stands, main() renamed: what is graded
// here is graded by the code that a student runs.
#include <doctest/doctest.h>

#include <cmath>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "tinyscale.hpp"

#define main lab1_main
#include "../examples/labs/lab1_roofline.cpp"
#undef main
#define main lab2_main
#include "../examples/labs/lab2_ring_all_gather.cpp"
#undef main
#define main lab3_main
#include "../examples/labs/lab3_tensor_parallel_mlp.cpp"
#undef main
#define main lab4_main
#include "../examples/labs/lab4_pipeline_schedule.cpp"
#undef main

namespace {

std::string said;  // by the last grading

template <class Answers>
int graded(int (*grade)(const Answers&, std::ostream&), const Answers& answers) {
  std::ostringstream out;
  const int code = grade(answers, out);
  said = out.str();
  return code;
}

bool says(const std::string& words) { return said.find(words) != std::string::npos; }

int times(const std::string& words) {
  int count = 0;
  for (std::size_t at = said.find(words); at != std::string::npos; at = said.find(words, at + 1)) {
    ++count;
  }
  return count;
}

// ---- Lab 1 ----

lab1::Answers solved1() {
  using P = lab1::Matmul;
  lab1::Answers a;
  a.flops = [](const P& p) { return 2 * p.M * p.K * p.N; };
  a.bytes = [](const P& p) { return p.element * (p.M * p.K + p.K * p.N + p.M * p.N); };
  a.seconds = [](const P& p) {
    return std::fmax(2 * p.M * p.K * p.N / p.peak,
                     p.element * (p.M * p.K + p.K * p.N + p.M * p.N) / p.bandwidth);
  };
  a.knee = [](const P& p) { return p.peak / p.bandwidth; };
  a.batch = [](const P& p) {
    const double knee = p.element * p.peak / p.bandwidth;  // 2 M K N = knee (M K + K N + M N)
    return std::ceil(knee * p.K * p.N / (2 * p.K * p.N - knee * (p.K + p.N)));
  };
  return a;
}

int grade1(const lab1::Answers& answers) { return graded(&lab1::grade, answers); }

#if !defined(TINYSCALE_NO_THREADS)
// ---- Lab 2 ----

ts::Guess ring_guess(const lab2::RingProblem& p) {
  ts::Guess guess;
  guess.steps = p.devices - 1;
  guess.bytes_per_device = (p.devices - 1) * p.chunk_bytes;
  guess.seconds = (p.devices - 1) * (p.latency + p.chunk_bytes / p.bandwidth);
  return guess;
}

ts::Guess both_ways_guess(const lab2::RingProblem& p) {
  ts::Guess guess;
  guess.steps = p.devices / 2;
  guess.bytes_per_device = (p.devices - 1) * p.chunk_bytes;
  return guess;
}

// Passes its chunk on `sends` times; N - 1 is enough.
ts::Tensor ring_all_gather(ts::Device& device, const ts::Tensor& mine, const std::string& axis,
                           int sends) {
  const int n = device.size(axis);
  std::vector<ts::Tensor> chunks(static_cast<std::size_t>(n));
  ts::Tensor passing = mine;
  for (int step = 0; step <= sends; ++step) {
    chunks[static_cast<std::size_t>((device.index(axis) - step + n) % n)] = passing;
    if (step < sends) {
      passing = device.permute(passing, axis, 1);
    }
  }
  return ts::concat(chunks, 0);
}

lab2::Answers solved2() {
  lab2::Answers a;
  a.guess = ring_guess;
  a.both_ways = both_ways_guess;
  a.all_gather = [](ts::Device& d, const ts::Tensor& mine, const std::string& axis) {
    return ring_all_gather(d, mine, axis, d.size(axis) - 1);
  };
  return a;
}

int grade2(const lab2::Answers& answers) { return graded(&lab2::grade, answers); }

// ---- Lab 3 ----

lab3::Answers solved3() {
  lab3::Answers a;
  a.guess = [](int n, double bytes) {
    ts::Guess guess;
    guess.bytes_per_device = 2.0 * (n - 1) / n * bytes;  // (n - 1) / n each, there and back
    guess.steps = 2 * (n - 1);
    return guess;
  };
  a.mlp = [](ts::Device& d, const ts::Tensor& x, const ts::Tensor& w1, const ts::Tensor& w2) {
    const ts::Tensor all = d.all_gather(x, "t", 0);                       // x[B, D]
    const ts::Tensor h = ts::gelu(ts::matmul(all, d.shard(w1, "t", 1)));  // h[B, F_t]
    const ts::Tensor part = ts::matmul(h, d.shard(w2, "t", 0));           // y[B, D] {U_t}
    return d.reduce_scatter(part, "t", 0);                                // y[B_t, D]
  };
  return a;
}

int grade3(const lab3::Answers& answers) { return graded(&lab3::grade, answers); }

// ---- Lab 4 ----

lab4::Answers solved4() {
  lab4::Answers a;
  a.guess = [](int p, int) {
    lab4::Guess guess;
    guess.idle = 3 * (p - 1);
    guess.held = p;
    return guess;
  };
  a.schedule = [](int p, int m) {  // ZB-H1: rank r does W r microbatches after I
    ts::PipelineSchedule s = ts::empty_schedule("mine", p, m);
    for (int r = 0; r < p; ++r) {
      for (int k = r + 1 - p; k < m + r; ++k) {
        if (k + p - 1 - r < m) {
          s.add(r, ts::PipelineWork::forward, r, k + p - 1 - r);
        }
        if (k >= 0 && k < m) {
          s.add(r, ts::PipelineWork::input_gradient, r, k);
        }
        if (k >= r) {
          s.add(r, ts::PipelineWork::weight_gradient, r, k - r);
        }
      }
    }
    return s;
  };
  return a;
}

int grade4(const lab4::Answers& answers) { return graded(&lab4::grade, answers); }
#endif

}  // namespace

TEST_CASE("lab 1: the unsolved lab says that nothing is answered [slow]") {
  CHECK(grade1(lab1::Answers()) == 1);
  CHECK(times("not answered yet") == 16);
  CHECK(says("16 of 16 not right yet: edit YOUR PART of lab1_roofline.cpp, run again\n"));
}

TEST_CASE("lab 1: the solution gets full marks [slow]") {
  const int code = grade1(solved1());
  INFO(said);
  CHECK(code == 0);
  CHECK(times(": right.") == 16);
  CHECK(says("T measured"));
}

TEST_CASE("lab 1: typical slips are refused, with a hint [slow]") {
  using P = lab1::Matmul;
  lab1::Answers a = solved1();
  a.flops = [](const P& p) { return p.M * p.K * p.N; };
  CHECK(grade1(a) == 1);
  CHECK(says("counted 8388608: a multiply and an add are two\n"));
  a = solved1();
  a.bytes = [](const P& p) { return p.M * p.K + p.K * p.N + p.M * p.N; };
  CHECK(grade1(a) == 1);
  CHECK(times("those are elements\n") == 4);
  a.bytes = [](const P& p) { return p.element * p.K * p.N; };
  CHECK(grade1(a) == 1);
  CHECK(times("x is read and the result written too\n") == 4);
  a.bytes = [](const P& p) { return p.element * (p.M * p.K + p.K * p.N); };
  CHECK(grade1(a) == 1);
  CHECK(times(": the result is written too\n") == 4);
  a = solved1();
  a.seconds = [](const P& p) {
    return solved1().flops(p) / p.peak + solved1().bytes(p) / p.bandwidth;
  };
  CHECK(grade1(a) == 1);
  CHECK(times("they work at once: not the sum\n") == 4);
  a.seconds = [](const P& p) { return solved1().flops(p) / p.peak; };  // math alone
  CHECK(grade1(a) == 1);
  CHECK(says("the slower of the two is what you wait for\n"));
  a.seconds = [](const P& p) { return solved1().bytes(p) / p.bandwidth; };
  CHECK(grade1(a) == 1);
  a = solved1();
  a.knee = [](const P& p) { return p.bandwidth / p.peak; };
  CHECK(grade1(a) == 1);
  CHECK(times("that is bytes per FLOP\n") == 2);
  a.knee = [](const P& p) { return solved1().flops(p) / solved1().bytes(p); };
  CHECK(grade1(a) == 1);
  CHECK(times("that is this matmul's; the knee is the chip's, whatever it multiplies\n") == 2);
  a.knee = [](const P&) { return 240.53724; };  // v5e's number is not the laptop's
  CHECK(grade1(a) == 1);
  a = solved1();
  a.batch = [](const P& p) { return p.element * p.peak / p.bandwidth / 2; };
  CHECK(grade1(a) == 1);
  CHECK(says(", counted 273: the bytes of x and of the result count too\n"));
  a.batch = [](const P& p) { return p.peak / p.bandwidth; };
  CHECK(grade1(a) == 1);
  CHECK(times(": that holds for elements of 2 bytes\n") == 1);  // of f32
  a.batch = [](const P& p) { return solved1().batch(p) - 0.25; };
  CHECK(grade1(a) == 1);
  CHECK(times("a whole M: round up\n") == 2);
  a.batch = [](const P&) { return std::nan(""); };
  CHECK(grade1(a) == 1);
}

#if !defined(TINYSCALE_NO_THREADS)
TEST_CASE("lab 2: the unsolved lab says what is missing") {
  CHECK(grade2(lab2::Answers()) == 1);
  CHECK(times("  1 one way:      not answered yet: steps, bytes_per_device and seconds\n") == 2);
  CHECK(times("  2 both ways:    not answered yet: steps and bytes_per_device\n") == 2);
  CHECK(times("  3 your program: not written yet\n") == 2);
  CHECK(says("Not yet: edit YOUR PART of lab2_ring_all_gather.cpp, run again\n"));
}

TEST_CASE("lab 2: the solution gets full marks") {
  const int code = grade2(solved2());
  INFO(said);
  CHECK(code == 0);
  CHECK(times("  1 one way:      bytes: right. steps: right. seconds: right.\n") == 2);
  CHECK(times("  2 both ways:    bytes: right. steps: right.\n") == 2);
  CHECK(times("  3 your program: the numbers are right\n") == 2);
  CHECK(times("  3 its cost:     bytes: right. steps: right. seconds: right.\n") == 2);
}

TEST_CASE("lab 2: wrong guesses are refused") {
  using P = lab2::RingProblem;
  lab2::Answers a = solved2();
  a.guess = [](const P& p) {
    ts::Guess guess = ring_guess(p);
    guess.steps = p.devices;
    guess.bytes_per_device = p.devices * p.chunk_bytes;
    return guess;
  };
  CHECK(grade2(a) == 1);
  CHECK(says("steps: you 16, counted 15: a device has its own chunk already: N - 1 with N = 16"));
  CHECK(says("a device has its own chunk already: (N - 1) / N of it with N = 16"));
  a.guess = [](const P& p) {
    ts::Guess guess = ring_guess(p);
    guess.seconds = (p.devices - 1) * p.chunk_bytes / p.bandwidth;  // no latency
    return guess;
  };
  CHECK(grade2(a) == 1);
  CHECK(says("seconds: you 60 us, counted 75 us: simulated, on this machine"));
  CHECK(times("                  each message takes the latency as well\n") == 2);
  a.guess = [](const P&) {  // one machine's numbers do not fit the other
    return ring_guess({16, 180000, 1e-6, 45e9});
  };
  CHECK(grade2(a) == 1);
  a.guess = [](const P& p) {
    ts::Guess guess = ring_guess(p);
    guess.seconds = -1;
    return guess;
  };
  CHECK(grade2(a) == 1);
  a = solved2();
  a.both_ways = ring_guess;  // as many steps as one way
  CHECK(grade2(a) == 1);
  a.both_ways = [](const P& p) {
    ts::Guess guess = both_ways_guess(p);
    guess.bytes_per_device /= 2;
    return guess;
  };
  CHECK(grade2(a) == 1);
}

TEST_CASE("lab 2: wrong programs are refused") {
  lab2::Answers a = solved2();
  a.all_gather = [](ts::Device& d, const ts::Tensor& mine, const std::string& axis) {
    return d.all_gather(mine, axis);
  };
  CHECK(grade2(a) == 1);
  CHECK(says("it calls all_gather; build it of permute (or send and recv) alone"));
  a.all_gather = [](ts::Device& d, const ts::Tensor& mine, const std::string& axis) {
    return ring_all_gather(d, mine, axis, d.size(axis));  // a step too many, numbers right
  };
  CHECK(grade2(a) == 1);
  CHECK(says("the numbers are right"));
  a.guess = [](const lab2::RingProblem& p) {  // and a guess that fits it
    ts::Guess guess = ring_guess(p);
    guess.steps = p.devices;
    guess.bytes_per_device = p.devices * p.chunk_bytes;
    guess.seconds = p.devices * (p.latency + p.chunk_bytes / p.bandwidth);
    return guess;
  };
  CHECK(grade2(a) == 1);
  CHECK(says("  3 its cost:     bytes: right. steps: right. seconds: right.\n"));
  a = solved2();
  a.all_gather = [](ts::Device& d, const ts::Tensor& mine, const std::string& axis) {
    std::vector<ts::Tensor> chunks;  // in the order of arrival
    for (ts::Tensor passing = mine; static_cast<int>(chunks.size()) < d.size(axis);) {
      chunks.push_back(passing);
      if (static_cast<int>(chunks.size()) < d.size(axis)) {
        passing = d.permute(passing, axis, 1);
      }
    }
    return ts::concat(chunks, 0);
  };
  CHECK(grade2(a) == 1);
  CHECK(says("on device 0 the chunk at place 1 is that of device 15\n"));
  a.all_gather = [](ts::Device& d, const ts::Tensor& mine, const std::string& axis) {
    std::vector<ts::Tensor> chunks(static_cast<std::size_t>(d.size(axis)));
    for (int shift = 0; shift < d.size(axis); ++shift) {
      const int owner = (d.index(axis) - shift + d.size(axis)) % d.size(axis);
      chunks[static_cast<std::size_t>(owner)] = shift == 0 ? mine : d.permute(mine, axis, shift);
    }
    return ts::concat(chunks, 0);
  };
  CHECK(grade2(a) == 1);
  CHECK(times("the numbers are right\n") == 2);
  CHECK(times(" goes through 2 links, one by one\n") == 2);
  a.all_gather = [](ts::Device& d, const ts::Tensor&, const std::string&) { return d.recv(0); };
  CHECK(grade2(a) == 1);
  CHECK(says("  3 your program stopped: "));
}

TEST_CASE("lab 3: the unsolved lab says what is missing") {
  CHECK(grade3(lab3::Answers()) == 1);
  CHECK(times("  1 your guess:   not answered yet: bytes_per_device and steps\n") == 2);
  CHECK(times("  2 your program: not written yet\n") == 2);
  CHECK(says("Not yet: edit YOUR PART of lab3_tensor_parallel_mlp.cpp, run again\n"));
}

TEST_CASE("lab 3: the solution gets full marks") {
  const int code = grade3(solved3());
  INFO(said);
  CHECK(code == 0);
  CHECK(times("  1 your guess:   bytes: right. steps: right.\n") == 2);
  CHECK(times("  2 your program: the numbers are right\n") == 2);
  CHECK(times("  2 its cost:     bytes: right. steps: right.\n") == 2);
}

TEST_CASE("lab 3: wrong guesses are refused") {
  lab3::Answers a = solved3();
  a.guess = [](int n, double bytes) {
    ts::Guess guess;
    guess.bytes_per_device = 1.0 * (n - 1) / n * bytes;  // there, and not back
    guess.steps = n - 1;
    return guess;
  };
  CHECK(grade3(a) == 1);
  CHECK(says("steps: you 3, counted 6: all_reduce is reduce_scatter and then all_gather"));
  a.guess = [](int, double) {
    ts::Guess guess;
    guess.steps = 6;
    return guess;
  };
  CHECK(grade3(a) == 1);
  CHECK(says("not answered yet"));
}

TEST_CASE("lab 3: wrong programs are refused") {
  lab3::Answers a = solved3();
  a.mlp = [](ts::Device& d, const ts::Tensor& x, const ts::Tensor& w1, const ts::Tensor& w2) {
    const ts::Tensor all = d.all_gather(x, "t", 0);  // no reduction: partial sums
    const ts::Tensor h = ts::gelu(ts::matmul(all, d.shard(w1, "t", 1)));
    return d.shard(ts::matmul(h, d.shard(w2, "t", 0)), "t", 0);
  };
  CHECK(grade3(a) == 1);
  CHECK(says("; is a sum missing, or taken after gelu?"));
  a.mlp = [](ts::Device& d, const ts::Tensor& x, const ts::Tensor& w1, const ts::Tensor& w2) {
    const ts::Tensor all = d.shard(d.all_gather(x, "t", 0), "t", 1);  // W1 by rows, gelu of parts
    const ts::Tensor h = ts::gelu(ts::matmul(all, d.shard(w1, "t", 0)));
    return d.reduce_scatter(ts::matmul(h, w2), "t", 0);
  };
  CHECK(grade3(a) == 1);
  CHECK(says("; is a sum missing, or taken after gelu?"));
  a.mlp = [](ts::Device&, const ts::Tensor& x, const ts::Tensor& w1, const ts::Tensor& w2) {
    return ts::matmul(ts::gelu(ts::matmul(x, w1)), w2);  // data parallel: nothing is sent
  };
  CHECK(grade3(a) == 1);
  CHECK(times("  2 your program: nothing was sent: W1 and W2 were used whole") == 2);
  a.mlp = [](ts::Device& d, const ts::Tensor& x, const ts::Tensor& w1, const ts::Tensor& w2) {
    const ts::Tensor all = d.all_gather(x, "t", 0);  // every device does everything
    return d.shard(ts::matmul(ts::gelu(ts::matmul(all, w1)), w2), "t", 0);
  };
  CHECK(grade3(a) == 1);
  CHECK(says("device 0 does 2,097,152 matmul FLOPs, wanted a share of 524,288\n"));
  a.mlp = [](ts::Device& d, const ts::Tensor& x, const ts::Tensor& w1, const ts::Tensor& w2) {
    const ts::Tensor all = d.all_gather(x, "t", 0);  // the whole result on every device
    const ts::Tensor h = ts::gelu(ts::matmul(all, d.shard(w1, "t", 1)));
    return d.all_reduce(ts::matmul(h, d.shard(w2, "t", 0)), "t");
  };
  CHECK(grade3(a) == 1);
  CHECK(says("device 0 returns [32, 64], wanted y[B_t, D] = [8, 64]"));
  a.mlp = [](ts::Device& d, const ts::Tensor& x, const ts::Tensor& w1, const ts::Tensor& w2) {
    const ts::Tensor all = d.all_gather(x, "t", 0);  // sends more than it must
    const ts::Tensor h = ts::gelu(ts::matmul(all, d.shard(w1, "t", 1)));
    return d.shard(d.all_reduce(ts::matmul(h, d.shard(w2, "t", 0)), "t"), "t", 0);
  };
  CHECK(grade3(a) == 1);
  CHECK(says("  2 its cost:     bytes: you 12288, counted 18432"));
  CHECK(times("all_reduce gives a device all rows of the sum; which does it return?\n") == 2);
  a.mlp = [](ts::Device& d, const ts::Tensor& x, const ts::Tensor& w1, const ts::Tensor&) {
    return ts::matmul(d.all_gather(x, "t", 0), d.shard(w1, "t", 0));
  };
  CHECK(grade3(a) == 1);
  CHECK(says("  2 your program stopped: "));
}
TEST_CASE("lab 4: the unsolved lab says what is missing") {
  CHECK(grade4(lab4::Answers()) == 1);
  CHECK(times("  1 your guess:    not answered yet: idle and held\n") == 2);
  CHECK(times("  2 your schedule: not written yet\n") == 2);
  CHECK(says("Not yet: edit YOUR PART of lab4_pipeline_schedule.cpp, run again\n"));
}

TEST_CASE("lab 4: the solution gets full marks") {
  const int code = grade4(solved4());
  INFO(said);
  CHECK(code == 0);
  CHECK(says("  1 your guess:    idle: you 6, timed 6: right; held: you 3, counted 3: right\n"));
  CHECK(says("  2 your schedule: idle 3 (1F1B 9, at best 3), held 4 (4)\n"));
  CHECK(times("  2 training:      the losses of one device\n") == 2);
}

TEST_CASE("lab 4: wrong guesses and schedules are refused, with a hint") {
  lab4::Answers a = solved4();
  a.guess = [](int p, int m) {
    lab4::Guess guess;
    guess.idle = p - 1;
    guess.held = m;  // GPipe's
    return guess;
  };
  CHECK(grade4(a) == 1);
  CHECK(
      says("  1 your guess:    idle: you 2, timed 6: until the first backward comes, and after "
           "the last forward left; held: you 5, counted 3: not before the first one came back "
           "is any freed\n"));
  a.guess = [](int p, int m) {
    lab4::Guess guess;
    guess.idle = (p - 1.0) / (m + p - 1);
    guess.held = p;
    return guess;
  };
  CHECK(grade4(a) == 1);
  CHECK(times(": a time, not a share of the step; held: ") == 2);
  a = solved4();
  a.schedule = [](int p, int m) { return ts::one_forward_one_backward(p, m); };
  CHECK(grade4(a) == 1);
  CHECK(says("idle 9 (1F1B 9, at best 3), held 4 (4); not less: who waits for W?\n"));
  a.schedule = [](int p, int m) { return ts::gpipe(p, m); };
  CHECK(grade4(a) == 1);
  CHECK(says("; too much: W comes too late, or F too early\n"));
  a.schedule = [](int p, int m) {
    ts::PipelineSchedule s = solved4().schedule(p, m);
    std::swap(s.program[0][0], s.program[0][1]);
    s.program[1].pop_back();
    return s;
  };
  CHECK(grade4(a) == 1);
  CHECK(says("  2 your schedule: it stopped: check_pipeline: "));
}

#endif
