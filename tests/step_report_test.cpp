// Where a step's simulated time and memory went: tasks of mesh programs in spans, breakdowns and
// samples, held to the log itself and to what a program sees of its own memory.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

TEST_CASE("step report: a meter's peak since a mark is beside its peaks, whatever resets those") {
  ts::MemoryMeter meter;
  const ts::MemoryKind kind = ts::MemoryKind::gradient;
  meter.add(kind, 100);
  meter.remove(kind, 70);
  CHECK(meter.peak_since_mark(kind) == 100);
  meter.mark();
  CHECK(meter.peak_since_mark(kind) == 30);
  CHECK(meter.peak(kind) == 100);
  meter.add(kind, 20);
  meter.add(ts::MemoryKind::buffer, 7);
  meter.remove(kind, 50);
  CHECK(meter.peak_since_mark(kind) == 50);
  CHECK(meter.peak_total_since_mark() == 57);
  CHECK(meter.peak_total() == 100);
  meter.reset_peak();
  meter.add(kind, 13);
  CHECK(meter.peak(kind) == 13);
  CHECK(meter.peak_total() == 20);
  CHECK(meter.peak_since_mark(kind) == 50);
}

TEST_CASE("step report: names of tasks, classes and waits, and what has none") {
  ts::TaskNames names;
  names.names = {"F0"};
  names.classes = {"forward", "backward"};
  names.waits = {{"pipeline", "bubble"}};
  CHECK(names.name_of(0) == "F0");
  CHECK(names.name_of(1) == "backward");
  CHECK(names.name_of(2) == "compute");
  CHECK(names.name_of(-1) == "compute");
  CHECK(names.class_of(1) == "backward");
  CHECK(names.wait_for("pipeline") == "bubble");
  CHECK(names.wait_for("data,tensor") == "exposed data,tensor");
  CHECK(names.wait_for("") == "exposed communication");
}

TEST_CASE("step report: compute against its time at full speed") {
  using Kind = ts::TimeShare::Kind;
  const ts::List<ts::TimeShare> shares = {{"forward", 2, Kind::compute},
                                          {"recomputation", 1, Kind::compute},
                                          {"backward", 4, Kind::compute},
                                          {"bubble", 3, Kind::wait}};
  const ts::List<ts::TimeShare> split = ts::against_ideal(shares, {"forward", "backward"}, 4.5);
  REQUIRE(split.size() == 4);
  CHECK(split[0].name == "ideal compute");
  CHECK(split[0].seconds == 4.5);
  CHECK(split[1].name == "below peak speed");
  CHECK(split[1].seconds == 1.5);
  CHECK(split[2].name == "recomputation");
  CHECK(ts::seconds_of(split, "bubble") == 3);
  CHECK(ts::seconds_of(split, "nothing") == 0);
  CHECK(ts::against_ideal(shares, {"forward", "backward"}, 6).size() == 3);
  CHECK(error_of([&] { ts::against_ideal(shares, {"forward"}, 3); }) ==
        "against_ideal: 3 s at full speed of 2 s of compute; 0 or more and no more than all of it "
        "is right");
}

#if !defined(TINYSCALE_NO_THREADS)

namespace {

enum Task { forward, backward, optimizer, tasks };

ts::TaskNames task_names() {
  ts::TaskNames names;
  names.names = {"F0", "B0", "opt"};
  names.classes = {"forward", "backward", "optimizer"};
  names.waits = {{"pipeline", "bubble"}};
  return names;
}

// Two stages of two data devices. The first sends to the second and gets an answer back; a sum over
// data is under way while both compute; what comes last is part of no task.
ts::MeshRun two_stages() {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2, 2}), {{"pipeline", 2}, {"data", 2}});
  return mesh.run([](ts::Device& d) {
    const ts::Tensor x = ts::full({64, 64}, 0.01f);
    const bool first = d.index("pipeline") == 0;
    const int other = first ? d.rank() + 2 : d.rank() - 2;
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
    if (first) {
      dy = ts::matmul(dy, dy);
    }
  });
}

// Compute of a task as the log has it.
double compute_of(const ts::MeshRun& run, int rank, int task) {
  const std::size_t d = static_cast<std::size_t>(rank);
  double seconds = 0;
  for (const ts::DeviceEvent& event : run.log().programs[d]) {
    for (std::size_t i = event.first;
         event.kind == ts::DeviceEvent::Kind::compute && event.task == task && i < event.last;
         ++i) {
      seconds += ts::op_seconds(run.log().ops[d][i], run.machine().chip);
    }
  }
  return seconds;
}

double sum_of(const ts::List<ts::TimeShare>& shares) {
  double seconds = 0;
  for (const ts::TimeShare& share : shares) {
    seconds += share.seconds;
  }
  return seconds;
}

}  // namespace

TEST_CASE("step report: a breakdown adds up, on any machine, by task and by axis") {
  const ts::MeshRun v5e = two_stages();
  const ts::TaskNames names = task_names();
  for (const ts::MeshRun& run :
       {v5e, v5e.on(ts::machine("tpu-v4", {2, 2, 1})), v5e.with(ts::Faults().slow_device(1, 3))}) {
    double mean = 0;
    for (int rank = 0; rank < 4; ++rank) {
      const double slower = ts::seconds_of(ts::time_breakdown(run, 1, names), "forward") >
                                        2 * compute_of(run, 1, forward) &&
                                    rank == 1
                                ? 3
                                : 1;
      const ts::List<ts::TimeShare> shares = ts::time_breakdown(run, rank, names);
      const ts::TimedDevice& timed = run.timeline.devices[static_cast<std::size_t>(rank)];
      CHECK(std::fabs(sum_of(shares) - run.seconds) <= 1e-12 * run.seconds);
      for (int task = 0; task < tasks; ++task) {
        CHECK(ts::seconds_of(shares, names.classes[static_cast<std::size_t>(task)]) ==
              doctest::Approx(slower * compute_of(run, rank, task)).epsilon(1e-12));
      }
      CHECK(ts::seconds_of(shares, "compute") ==
            doctest::Approx(slower * compute_of(run, rank, -1)).epsilon(1e-12));
      double waits = 0, pipeline = 0;
      for (const ts::TimedSpan& span : run.timeline.spans) {
        const bool own = span.device == rank && span.call >= 0;
        waits += own ? span.finish - span.start : 0;
        pipeline += own && run.log().calls[static_cast<std::size_t>(span.call)].shape->eager
                        ? span.finish - span.start
                        : 0;
      }
      CHECK(waits == doctest::Approx(timed.waiting).epsilon(1e-12));
      CHECK(ts::seconds_of(shares, "bubble") == doctest::Approx(pipeline).epsilon(1e-12));
      CHECK(ts::seconds_of(shares, "bubble") + ts::seconds_of(shares, "exposed data") +
                ts::seconds_of(shares, "exposed pipeline,data") ==
            doctest::Approx(waits).epsilon(1e-12));
      CHECK(ts::seconds_of(shares, "idle at the end") ==
            doctest::Approx(run.seconds - timed.end).epsilon(1e-12));
      mean += ts::seconds_of(shares, "bubble") / 4;
    }
    const ts::List<ts::TimeShare> all = ts::time_breakdown(run, names);
    CHECK(std::fabs(sum_of(all) - run.seconds) <= 1e-12 * run.seconds);
    CHECK(ts::seconds_of(all, "bubble") == doctest::Approx(mean).epsilon(1e-12));
    CHECK(ts::time_table(run, names).rows.size() == 4);
    CHECK(ts::time_table(run, names).columns.front() == "device");
    CHECK(ts::time_table(run, names).columns.back() == "idle at the end");
  }
}

TEST_CASE("step report: two devices against a clock kept by hand") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2, 1}), {{"stage", 2}});
  const ts::MeshRun run = mesh.run([](ts::Device& d) {
    const ts::Tensor x = ts::ones({128, 128});
    d.task(0);
    if (d.rank() == 0) {
      d.send(ts::matmul(x, x), 1);
      d.task(1);
      ts::matmul(x, x);
    } else {
      d.recv(0);
    }
  });
  const ts::List<ts::DeviceEvent>& program = run.log().programs[0];
  double product = 0;  // what the first does in task 1
  for (const ts::DeviceEvent& event : program) {
    for (std::size_t i = event.first;
         event.kind == ts::DeviceEvent::Kind::compute && event.task == 1 && i < event.last; ++i) {
      product += ts::op_seconds(run.log().ops[0][i], run.machine().chip);
    }
  }
  const ts::TimedMessage& message = run.timeline.messages[0];
  const double before = compute_of(run, 0, -1), ready = before + product;
  CHECK(message.start == doctest::Approx(ready).epsilon(1e-12));
  REQUIRE(run.timeline.spans.size() == 3);  // two products; a wait
  int waits = 0;
  for (const ts::TimedSpan& span : run.timeline.spans) {
    if (span.call >= 0) {
      ++waits;
      CHECK(span.device == 1);
      CHECK(span.task == 0);
      CHECK(span.start == doctest::Approx(before).epsilon(1e-12));
      CHECK(span.finish == message.finish);
    }
  }
  CHECK(waits == 1);
  ts::TaskNames names;
  names.classes = {"forward", "more"};
  names.waits = {{"stage", "bubble"}};
  const double end = std::max(message.finish, ready + product);
  CHECK(run.seconds == doctest::Approx(end).epsilon(1e-12));
  const ts::List<ts::TimeShare> first = ts::time_breakdown(run, 0, names);
  CHECK(ts::seconds_of(first, "forward") == doctest::Approx(product).epsilon(1e-12));
  CHECK(ts::seconds_of(first, "more") == doctest::Approx(product).epsilon(1e-12));
  const ts::List<ts::TimeShare> second = ts::time_breakdown(run, 1, names);
  REQUIRE(!second.empty());
  CHECK(second[0].name == "bubble");
  CHECK(second[0].seconds == doctest::Approx(message.finish - before).epsilon(1e-12));
}

TEST_CASE("step report: a wait that compute hides is in no breakdown") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2, 1}), {{"data", 2}});
  const ts::MeshRun run = mesh.run([](ts::Device& d) {
    const ts::Tensor x = ts::ones({256, 256});
    ts::Pending sum = d.start_all_reduce(ts::ones({16}), "data");
    for (int i = 0; i < 20; ++i) {
      ts::matmul(x, x);
    }
    sum.wait();
  });
  const ts::List<ts::TimeShare> shares = ts::time_breakdown(run);
  REQUIRE(shares.size() == 1);
  CHECK(shares[0].name == "compute");
  CHECK(shares[0].seconds == run.seconds);
}

TEST_CASE("step report: a send is along the axis on which its devices differ") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {4, 2}), {{"a", 2}, {"b", 2}, {"c", 2}});
  const ts::MeshRun run = mesh.run([](ts::Device& d) {
    const ts::Tensor x = ts::ones({4});
    for (const int way : {1, 2, 4, 6}) {
      if (d.rank() == 0) {
        d.send(x, way);
      } else if (d.rank() == way) {
        d.recv(0);
      }
    }
    d.all_reduce(x, {"a", "c"});
  });
  REQUIRE(run.log().calls.size() == 4 + 2);
  CHECK(run.axes_of_call(0) == "c");
  CHECK(run.axes_of_call(1) == "b");
  CHECK(run.axes_of_call(2) == "a");
  CHECK(run.axes_of_call(3) == "");
  CHECK(run.axes_of_call(4) == "a,c");
  CHECK(error_of([&] { run.axes_of_call(6); }) == "axes_of_call: call 6 of 6 in the log");
}

TEST_CASE("step report: samples have the memory that the program saw at the end of each task") {
  const ts::MemoryKind kinds[] = {ts::MemoryKind::activation, ts::MemoryKind::gradient};
  std::vector<double> seen[2][2];
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2, 1}), {{"x", 2}});
  const ts::MeshRun run = mesh.run([&](ts::Device& d) {
    const auto end_with = [&](int next) {
      for (const int k : {0, 1}) {
        seen[d.rank()][k].push_back(ts::context().memory->current(kinds[k]));
      }
      d.task(next);
    };
    CHECK(d.task() == -1);
    ts::Tensor kept = ts::ones({100 + d.rank()});
    end_with(7);
    CHECK(d.task() == 7);
    for (int i = 0; i < 3; ++i) {
      ts::matmul(ts::ones({32, 32}), ts::ones({32, 32}));  // gone at once
    }
    end_with(3);
    {
      const ts::MemoryScope scope(ts::MemoryKind::gradient);
      kept = ts::matmul(ts::ones({64, 64}), ts::ones({64, 64}));
    }
    d.all_reduce(kept, "x");
    end_with(3);
    ts::matmul(kept, kept);
    end_with(-1);
    ts::matmul(kept, kept);  // part of no task: no sample
  });
  for (const int rank : {0, 1}) {
    const ts::List<ts::MemorySample> samples = run.memory_samples(rank);
    REQUIRE(samples.size() == 4);
    const int expected[] = {-1, 7, 3, 3};
    double before = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(samples[i].task == expected[i]);
      CHECK(samples[i].seconds >= before);
      before = samples[i].seconds;
      double total = 0;
      for (const int k : {0, 1}) {
        const std::size_t kind = static_cast<std::size_t>(kinds[k]);
        CHECK(samples[i].levels[kind] == seen[rank][k][i]);
        CHECK(samples[i].peaks[kind] >= samples[i].levels[kind]);
        total += samples[i].levels[kind];
      }
      CHECK(samples[i].peak_total >= total);
    }
    const std::size_t activation = static_cast<std::size_t>(kinds[0]);
    CHECK(samples[1].levels[activation] == samples[0].levels[activation]);
    CHECK(samples[1].peaks[activation] >= samples[1].levels[activation] + 3 * 32 * 32 * 4);
    CHECK(samples[0].peaks[activation] < 3 * 32 * 32 * 4);
    CHECK(samples[3].seconds < run.timeline.devices[static_cast<std::size_t>(rank)].end);
    // Simulated ends of tasks are those of their spans.
    double last = 0;
    for (const ts::TimedSpan& span : run.timeline.spans) {
      last = span.device == rank && span.task == 7 ? span.finish : last;
    }
    CHECK(samples[1].seconds == last);
  }
  const ts::MeshRun slow = run.with(ts::Faults().slow_device(0, 2));
  CHECK(slow.memory_samples(0)[1].levels == run.memory_samples(0)[1].levels);
  CHECK(slow.memory_samples(0)[1].seconds ==
        doctest::Approx(2 * run.memory_samples(0)[1].seconds).epsilon(1e-12));
}

TEST_CASE("step report: the last task ends with the program; without tasks nothing is noted") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2, 1}), {{"x", 2}});
  const ts::DeviceProgram plain = [](ts::Device& d) {
    d.all_reduce(ts::matmul(ts::ones({8, 8}), ts::ones({8, 8})), "x");
  };
  const ts::MeshRun without = mesh.run(plain);
  CHECK(without.memory_samples(0).empty());
  CHECK(without.timeline.devices[0].marks.empty());
  for (const ts::TimedSpan& span : without.timeline.spans) {
    CHECK(span.task == -1);
  }
  const ts::DeviceProgram marked = [&](ts::Device& d) {
    d.task(0);
    plain(d);
  };
  const ts::MeshRun with = mesh.run(marked);
  CHECK(with.seconds == without.seconds);
  REQUIRE(with.memory_samples(1).size() == 2);
  CHECK(with.memory_samples(1)[1].task == 0);
  CHECK(with.memory_samples(1)[1].seconds == with.timeline.devices[1].end);
  CHECK(mesh.predict(marked).seconds == mesh.predict(plain).seconds);
}

TEST_CASE("step report: errors") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2, 1}), {{"x", 2}});
  CHECK(error_of([&] {
          mesh.run([](ts::Device& d) { d.task(-2); });
        }).find("task: tag -2; 0 or more is right, or -1 for no task") != std::string::npos);
  ts::MeshRun run = two_stages();
  CHECK(error_of([&] { ts::time_breakdown(run, 4, ts::TaskNames()); }) ==
        "time_breakdown: rank 4 of 4 devices; ranks are 0 to 3");
  CHECK(error_of([&] { run.memory_samples(-1); }) ==
        "memory_samples: rank -1 of 4 devices; ranks are 0 to 3");
  run.timeline.spans.clear();  // as of a run with too many messages
  CHECK(error_of([&] { ts::time_breakdown(run); }) ==
        "time_breakdown: the run has no record of what its devices did when, as it has more than "
        "4194304 messages; a shorter one, of one step, is right");
}

#endif  // TINYSCALE_NO_THREADS
