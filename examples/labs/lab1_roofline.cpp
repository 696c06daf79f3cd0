// Lab 1: the roofline of a chip and of your laptop. Fill in the five functions of YOUR PART. The
// program holds them against what the library counts, on a TPU v5e in bf16 and on this laptop in
// f32, and prints for each "right", or both numbers and a hint. It ends with 0 when all are right.
// Read first: "How To Scale Your Model", chapter 1.
//   g++ -std=c++17 -O2 -pthread -I. examples/labs/lab1_roofline.cpp -o lab1 && ./lab1
#include <cmath>
#include <iostream>

#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace lab1 {

// x w on a chip: x is [M, K], w is [K, N], and an element takes `element` bytes.
struct Matmul {
  double M = 0, K = 0, N = 0, element = 0;
  double peak = 0;       // FLOP/s of the matrix units
  double bandwidth = 0;  // bytes/s of the main memory
};

constexpr double unanswered = -1;

// ---- YOUR PART: replace each `unanswered` by a formula of the problem's fields ----

// 1. FLOPs of x w.
double my_flops(const Matmul& /*p*/) { return unanswered; }

// 2. Bytes that x w must move: every operand is read once, the result is written once.
double my_bytes(const Matmul& /*p*/) { return unanswered; }

// 3. Seconds that x w takes at least; arithmetic and memory work at the same time.
double my_seconds(const Matmul& /*p*/) { return unanswered; }

// 4. The knee: FLOPs per byte at which memory and matrix units take equally long.
double my_knee(const Matmul& /*p*/) { return unanswered; }

// 5. The smallest whole M for which the matrix units bound x w. K and N are given, p.M is not used.
double my_batch(const Matmul& /*p*/) { return unanswered; }

// ---- The grading; read it afterwards ----

using Answer = double (*)(const Matmul&);

struct Answers {
  Answer flops = my_flops, bytes = my_bytes, seconds = my_seconds, knee = my_knee, batch = my_batch;
};

// Prints one question's line; 1 when it is not right yet.
int grade_row(std::ostream& out, ts::CheckRow row, double tolerance, const std::string& hint) {
  if (!(row.guessed >= 0)) {
    out << "  " << row.name << ": not answered yet\n";
    return 1;
  }
  row.right = std::abs(row.guessed - row.counted) <= tolerance;
  row.hint = hint;
  ts::CheckReport report;
  report.rows.push_back(row);
  out << "  " << report;
  return row.right ? 0 : 1;
}

bool near(double a, double b) { return std::abs(a - b) <= 1e-6 * std::abs(b); }

// Questions 1 to 3 on one matmul that really runs: what is counted, not what a formula says.
int grade_matmul(std::ostream& out, const Answers& mine, const ts::Chip& chip, ts::DType format,
                 Matmul p) {
  const ts::Tensor x = ts::randn({static_cast<int>(p.M), static_cast<int>(p.K)}, 1);
  const ts::Tensor w = ts::randn({static_cast<int>(p.K), static_cast<int>(p.N)}, 2);
  ts::Profile profile;
  const ts::Tensor y = ts::matmul(x, w);
  const ts::RooflineRow row = profile.roofline(chip, format).total;
  out << " " << x.shape() << " times " << w.shape() << "\n";

  const double flops = mine.flops(p), bytes = mine.bytes(p), seconds = mine.seconds(p);
  const char* hint = near(2 * flops, row.matmul_flops) ? "a multiply and an add are two" : "";
  int wrong = grade_row(out, {"1 flops", "", flops, row.matmul_flops, false, ""},
                        1e-9 * row.matmul_flops, hint);
  hint = near(bytes * p.element, row.bytes)                 ? "those are elements"
         : near(bytes, p.element * p.K * p.N)               ? "x is read and the result written too"
         : near(bytes, p.element * (p.M * p.K + p.K * p.N)) ? "the result is written too"
                                                            : "";
  wrong += grade_row(out, {"2 bytes", "B", bytes, row.bytes, false, ""}, 1e-9 * row.bytes, hint);
  const double math = flops / p.peak, memory = bytes / p.bandwidth;  // by answers 1 and 2
  hint = near(seconds, row.t_math + row.t_memory) || near(seconds, math + memory)
             ? "they work at once: not the sum"
         : near(seconds, std::fmin(row.t_math, row.t_memory)) ||
                 (near(seconds, std::fmin(math, memory)) && !near(math, memory))
             ? "the slower of the two is what you wait for"
         : near(seconds, std::fmax(math, memory)) ? "it follows from 1 and 2: mend those first"
                                                  : "";
  return wrong + grade_row(out, {"3 seconds", "s", seconds, row.seconds, false, ""},
                           1e-6 * row.seconds, hint);
}

// Tries every M on the library's roofline until the matrix units bound it.
double counted_batch(const Matmul& p, const ts::Chip& chip, ts::DType format) {
  for (double m = 1; m < p.K; ++m) {
    ts::OpRecord op;
    op.matmul_flops = 2 * m * p.K * p.N;
    op.reads = {{m * p.K, ts::DType::f32}, {p.K * p.N, ts::DType::f32}};  // priced in `format`
    op.writes = {{m * p.N, ts::DType::f32}};
    if (ts::roofline(op, chip, format).bound == "math") {
      return m;
    }
  }
  return p.K;
}

int grade_chip(std::ostream& out, const Answers& mine, ts::Chip chip, ts::DType format) {
  chip.levels = {};  // everything lies in main memory
  Matmul p;
  p.element = ts::bytes_of(format);
  p.peak = chip.peak(format);
  p.bandwidth = chip.memory_bandwidth;
  out << chip.name << ", " << ts::name_of(format) << ": " << ts::format_si(p.peak, "FLOP/s") << ", "
      << ts::format_si(p.bandwidth, "B/s") << "\n";
  p.M = 8, p.K = 512, p.N = 1024;
  int wrong = grade_matmul(out, mine, chip, format, p);
  p.M = p.K = p.N = 768;
  wrong += grade_matmul(out, mine, chip, format, p);

  out << " the chip\n";
  const double knee = mine.knee(p), counted = chip.intensity(format);
  wrong += grade_row(out, {"4 knee", "", knee, counted, false, ""}, 1e-6 * counted,
                     near(knee * counted, 1) ? "that is bytes per FLOP"
                     : near(knee, mine.flops(p) / mine.bytes(p))
                         ? "that is this matmul's; the knee is the chip's, whatever it multiplies"
                         : "");
  p.M = 0, p.K = 4096, p.N = 4096;
  const double batch = mine.batch(p), smallest = counted_batch(p, chip, format);
  const char* hint = std::ceil(batch) == smallest ? "a whole M: round up"
                     : std::abs(batch - counted * p.element / 2) <= 1
                         ? "the bytes of x and of the result count too"
                     : std::abs(batch - counted) <= 1 ? "that holds for elements of 2 bytes"
                                                      : "";
  return wrong + grade_row(out, {"5 batch", "", batch, smallest, false, ""}, 0, hint);
}

// 0 when every answer is right on both.
int grade(const Answers& mine, std::ostream& out) {
  const int wrong = grade_chip(out, mine, ts::chip("tpu-v5e"), ts::DType::bf16) +
                    grade_chip(out, mine, ts::laptop(), ts::DType::f32);
  if (wrong > 0) {
    out << wrong << " of 16 not right yet: edit YOUR PART of lab1_roofline.cpp, run again\n";
    return 1;
  }
  out << "All right. What this laptop really takes, beside the formula:\n";
  const ts::Tensor x = ts::randn({8, 4096}, 1), w = ts::randn({4096, 4096}, 2);
  ts::Profile profile;
  const ts::Tensor y = ts::matmul(x, w);
  out << profile.roofline(ts::laptop());
  return 0;
}

}  // namespace lab1

int main() { return lab1::grade(lab1::Answers(), std::cout); }
