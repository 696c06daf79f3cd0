// Where a step's time and memory went: tasks of a mesh program, in spans, breakdowns and pictures.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

#if !defined(TINYSCALE_NO_THREADS)

namespace {

enum Task { forward = 0, backward = 1, optimizer = 2 };

ts::Tensor numbers(int seed, const ts::Shape& shape) {
  return ts::randn(shape, static_cast<std::uint64_t>(seed));
}

// Two stages of two data devices, two steps of which the second is outside of tasks in part: the
// first stage sends to the second and gets an answer back, with a sum over data under way meanwhile.
ts::MeshRun two_stages() {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2, 2}), {{"pipeline", 2}, {"data", 2}});
  return mesh.run([](ts::Device& d) {
    const ts::Tensor x = numbers(d.rank(), {64, 64});
    const int other = d.index("pipeline") == 0 ? d.rank() + 2 : d.rank() - 2;
    const bool first = d.index("pipeline") == 0;
    d.task(forward);
    ts::Tensor y = first ? ts::matmul(x, x) : d.recv(other);
    if (first) {
      d.send(y, other);
    } else {
      y = ts::matmul(y, x);
    }
    d.task(backward);
    ts::Tensor dy;
    if (first) {
      dy = d.recv(other);
    } else {
      dy = ts::matmul(y, x);
      d.send(dy, other);
    }
    ts::Pending sum = d.start_all_reduce(dy, "data");
    dy = ts::matmul(dy, x);
    const ts::Tensor all = sum.wait();
    d.task(optimizer);
    const ts::Tensor next = x + all;
    d.task(-1);
    d.barrier();
    dy = ts::matmul(next, next);
  });
}

}  // namespace

TEST_CASE("step report: spans carry the task of the program that they are part of") {
  const ts::MeshRun run = two_stages();
  for (const ts::TimedSpan& span : run.timeline.spans) {
    CHECK(span.task >= -1);
  }
  CHECK(run.timeline.devices[0].marks.size() == 4);
  for (int d = 0; d < 4; ++d) {
    const ts::List<ts::MemorySample> s = run.memory_samples(d);
    REQUIRE(s.size() == 4);
    CHECK(s[1].task == forward);
    CHECK(s[3].task == optimizer);
  }
}

#endif
