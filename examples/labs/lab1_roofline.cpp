// Lab 1: the roofline. Fill in the five functions; the program holds them against the library's
// counters and says how far off each is. It ends with 0 when all are right.
// Read first: "How To Scale Your Model", chapter 1. x is [M, K], w is [K, N], all bf16 (2 bytes).
#include <cmath>
#include <iostream>

#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

constexpr double unanswered = -1;

// 1. FLOPs of x w. A multiply and an add are two.
double my_flops(double /*M*/, double /*K*/, double /*N*/) { return unanswered; }

// 2. Bytes of x w: each operand read once, the result written once.
double my_bytes(double /*M*/, double /*K*/, double /*N*/) { return unanswered; }

// 3. Seconds of x w on a chip, at least.
double my_seconds(double /*M*/, double /*K*/, double /*N*/, const ts::Chip&) { return unanswered; }

// 4. FLOPs per byte at which a chip's memory and matrix units take the same time.
double my_knee(const ts::Chip&) { return unanswered; }

// 5. The smallest M (tokens) for which [M, 4096] x [4096, 4096] is bound by math on this chip.
double my_batch(const ts::Chip&) { return unanswered; }

struct Question {
  const char* name;
  double yours, counted, tolerance;
};

// A real matmul under a profile: what is counted, not what a formula says.
ts::RooflineRow counted_matmul(std::int64_t m, std::int64_t k, std::int64_t n,
                               const ts::Chip& chip) {
  const ts::Tensor x = ts::randn({m, k}, 1), w = ts::randn({k, n}, 2);
  ts::Profile profile;
  const ts::Tensor y = ts::matmul(x, w);
  return profile.roofline(chip, ts::DType::bf16).total;
}

double counted_batch(const ts::Chip& chip) {
  double m = 1;  // M D^2 / (2 M D + D^2) = knee: halve the distance until it is one token
  for (double step = 4096; step >= 1; step /= 2) {
    const double d = 4096, next = m + step;
    const double intensity = 2 * next * d * d / (2 * (2 * next * d + d * d));
    m = intensity < chip.intensity(ts::DType::bf16) ? next : m;
  }
  return m + 1;
}

int grade(const Question& q) {
  if (q.yours == unanswered) {
    std::cout << q.name << ": not answered yet\n";
    return 1;
  }
  const bool right = std::abs(q.yours - q.counted) <= q.tolerance * q.counted;
  std::cout << q.name << ": " << (right ? "right" : "not yet") << ", you " << q.yours
            << ", counted " << q.counted << "\n";
  return right ? 0 : 1;
}

}  // namespace

int main() {
  const ts::Chip v5e = ts::chip("tpu-v5e");
  const ts::RooflineRow small = counted_matmul(8, 512, 1024, v5e);
  int wrong = 0;
  wrong += grade({"1 flops", my_flops(8, 512, 1024), small.matmul_flops, 1e-9});
  wrong += grade({"2 bytes", my_bytes(8, 512, 1024), small.bytes, 1e-9});
  wrong += grade({"3 seconds", my_seconds(8, 512, 1024, v5e), small.seconds, 1e-6});
  wrong += grade({"4 knee", my_knee(v5e), v5e.intensity(ts::DType::bf16), 1e-6});
  wrong += grade({"5 batch", my_batch(v5e), counted_batch(v5e), 0.01});
  std::cout << (wrong == 0 ? "all right\n" : "read chapter 1, fill in, run again\n");
  return wrong == 0 ? 0 : 1;
}
