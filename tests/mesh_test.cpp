#include <doctest/doctest.h>

#include "error_of.hpp"
#include "tinyscale.hpp"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace ts = tinyscale;

#if defined(TINYSCALE_NO_THREADS)

TEST_CASE("without threads a mesh has one device, and says so") {
  const ts::Mesh one(ts::machine("tpu-v5e", {1, 1}), {{"x", 1}});
  const ts::MeshRun run =
      one.run([](ts::Device& d) { d.keep("all", d.all_gather(ts::full({2}, 3.0f), "x")); });
  CHECK(run.kept(0, "all").values() == std::vector<float>{3, 3});
  const ts::Mesh three(ts::machine("tpu-v5e", {3}), {{"x", 3}});
  std::string said;
  try {
    three.run([](ts::Device&) {});
  } catch (const ts::Error& error) {
    said = error.what();
  }
  CHECK(said ==
        "mesh.run: 3 devices need threads, and this program is compiled with "
        "TINYSCALE_NO_THREADS; use a mesh of 1 device");
}

#else

namespace {

// A machine of n chips on one axis, of the wanted kind, with round numbers for its links.
ts::Machine axis_machine(int n, ts::AxisKind kind) {
  ts::Machine machine = ts::machine("tpu-v5e", {n});
  machine.wraps[0] = kind != ts::AxisKind::line && n > 2 ? 1 : 0;
  machine.link_latency = 1e-6;
  machine.link_bandwidth = 1e9;
  machine.axis_bandwidths[0] = 1e9;
  return machine;
}

ts::Mesh axis_mesh(int n, ts::AxisKind kind) {
  ts::Mesh mesh(axis_machine(n, kind), {{"x", n}});
  mesh.ring = kind == ts::AxisKind::ring_both_ways ? ts::Ring::both_ways : ts::Ring::one_way;
  return mesh;
}

std::string fault(const ts::Mesh& mesh, const ts::DeviceProgram& program) {
  return error_of([&] { mesh.run(program); });
}

const std::vector<ts::AxisKind> kinds = {ts::AxisKind::line, ts::AxisKind::ring,
                                         ts::AxisKind::ring_both_ways};

// Counted bytes of every device, steps and simulated time against the closed form.
void check_cost(const ts::Mesh& mesh, const ts::MeshRun& run, ts::CollectiveStage stage) {
  stage.kind = mesh.placement().axes[0].kind;
  stage.devices = mesh.size();
  CAPTURE(stage.devices);
  CAPTURE(stage.elements);
  CAPTURE(static_cast<int>(stage.what));
  CAPTURE(ts::name_of(stage.kind));
  CAPTURE(stage.offset);
  for (int rank = 0; rank < mesh.size(); ++rank) {
    CHECK(run.bytes_sent(rank) == ts::collective_bytes(stage, rank));
  }
  const std::vector<ts::CollectiveRow> rows = run.collectives();
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].steps == ts::collective_steps(stage));
  CHECK(rows[0].hops == ts::collective_hops(stage));
  const double predicted = ts::collective_seconds(stage, {1e-6, 1e9});
  CHECK(std::abs(run.seconds - predicted) <= 1e-9 * predicted);
  CHECK(rows[0].formula == predicted);
}

float number(int rank, std::int64_t i) {
  return ts::normal01(static_cast<std::uint64_t>(rank) + 1, static_cast<std::uint64_t>(i));
}

ts::Tensor numbers(int rank, std::int64_t count) {
  ts::Tensor out(ts::Shape{count});
  for (std::int64_t i = 0; i < count; ++i) {
    out.data()[i] = number(rank, i);
  }
  return out;
}

}  // namespace

TEST_CASE("all_gather: values, bytes, steps and time") {
  for (const ts::AxisKind kind : kinds) {
    for (int n = 1; n <= 9; ++n) {
      for (const int count : {1, 5}) {
        const ts::Mesh mesh = axis_mesh(n, kind);
        const ts::MeshRun run = mesh.run(
            [&](ts::Device& d) { d.keep("all", d.all_gather(numbers(d.rank(), count), "x")); });
        check_cost(mesh, run, {ts::Collective::all_gather, kind, n, std::int64_t{n} * count, 0});
        for (int rank = 0; rank < n; ++rank) {
          const ts::Tensor all = run.kept(rank, "all");
          REQUIRE(all.shape() == ts::Shape{n * count});
          bool same = true;
          for (int i = 0; i < n * count; ++i) {
            same = same && all.data()[i] == number(i / count, i % count);
          }
          CHECK(same);
        }
      }
    }
  }
}

TEST_CASE("all_reduce: any count, the same bits everywhere, the defined order") {
  for (const ts::AxisKind kind : kinds) {
    for (int n = 1; n <= 9; ++n) {
      for (const int count : {0, 1, 7, 40}) {
        const ts::Mesh mesh = axis_mesh(n, kind);
        const ts::MeshRun run = mesh.run(
            [&](ts::Device& d) { d.keep("sum", d.all_reduce(numbers(d.rank(), count), "x")); });
        check_cost(mesh, run, {ts::Collective::all_reduce, kind, n, count, 0});
        const ts::Tensor first = run.kept(0, "sum");
        for (int i = 0; i < count; ++i) {
          double exact = 0;
          for (int rank = 0; rank < n; ++rank) {
            exact += number(rank, i);
          }
          CHECK(std::abs(first.data()[i] - exact) < 1e-5);
        }
        for (int rank = 1; rank < n; ++rank) {
          CHECK(run.kept(rank, "sum").values() == first.values());
        }
      }
    }
  }
  // Line of 4, one element: device 0 adds what was summed from device 3 inwards.
  const ts::MeshRun run = axis_mesh(4, ts::AxisKind::line).run([&](ts::Device& d) {
    d.keep("sum", d.all_reduce(numbers(d.rank(), 1), "x"));
  });
  CHECK(run.kept(2, "sum").item() == number(0, 0) + (number(1, 0) + (number(2, 0) + number(3, 0))));
}

TEST_CASE("all_reduce: mean, max, min") {
  const ts::MeshRun run = axis_mesh(5, ts::AxisKind::ring).run([&](ts::Device& d) {
    const ts::Tensor t = ts::full({3}, static_cast<float>(d.rank() + 1));
    d.keep("mean", d.all_reduce(t, "x", ts::Reduce::mean));
    d.keep("max", d.all_reduce(t, "x", ts::Reduce::max));
    d.keep("min", d.all_reduce(t, "x", ts::Reduce::min));
    d.keep("scattered",
           d.reduce_scatter(ts::full({5}, static_cast<float>(d.rank())), "x", 0, ts::Reduce::mean));
  });
  CHECK(run.kept(4, "mean").values() == std::vector<float>(3, 3.0f));
  CHECK(run.kept(3, "max").values() == std::vector<float>(3, 5.0f));
  CHECK(run.kept(0, "min").values() == std::vector<float>(3, 1.0f));
  CHECK(run.kept(0, "scattered").item() == 2.0f);
}

TEST_CASE("reduce_scatter, broadcast and permute: values, bytes, steps and time") {
  for (const ts::AxisKind kind : kinds) {
    for (int n = 1; n <= 9; ++n) {
      const ts::Mesh mesh = axis_mesh(n, kind);
      const ts::MeshRun scattered = mesh.run(
          [&](ts::Device& d) { d.keep("part", d.reduce_scatter(numbers(d.rank(), n * 3), "x")); });
      check_cost(mesh, scattered, {ts::Collective::reduce_scatter, kind, n, n * 3, 0});
      for (int i = 0; i < n * 3; ++i) {
        double exact = 0;
        for (int rank = 0; rank < n; ++rank) {
          exact += number(rank, i);
        }
        CHECK(std::abs(scattered.kept(i / 3, "part").data()[i % 3] - exact) < 1e-5);
      }
      for (int offset = 0; offset < n; ++offset) {
        const ts::MeshRun told = mesh.run([&](ts::Device& d) {
          d.keep("root", d.broadcast(numbers(d.rank(), 10), "x", offset));
        });
        check_cost(mesh, told, {ts::Collective::broadcast, kind, n, 10, offset});
        const ts::MeshRun moved = mesh.run([&](ts::Device& d) {
          d.keep("moved", d.permute(numbers(d.rank(), 10), "x", offset - n));
        });
        check_cost(mesh, moved, {ts::Collective::permute, kind, n, 10, offset});
        for (int rank = 0; rank < n; ++rank) {
          CHECK(told.kept(rank, "root").values() == numbers(offset, 10).values());
          CHECK(moved.kept(rank, "moved").values() ==
                numbers((rank - offset + n) % n, 10).values());
        }
      }
    }
  }
}

TEST_CASE("the closed forms for 1 to 33 devices against the book's") {
  for (int n = 1; n <= 33; ++n) {
    for (const ts::AxisKind kind : kinds) {
      for (const std::int64_t elements : {0, 1, 32, 1000}) {
        ts::CollectiveStage stage = {ts::Collective::all_gather, kind, n, elements, 0};
        double gathered = 0, scattered = 0, reduced = 0;
        for (int i = 0; i < n; ++i) {
          stage.what = ts::Collective::all_gather;
          gathered += ts::collective_bytes(stage, i);
          stage.what = ts::Collective::reduce_scatter;
          scattered += ts::collective_bytes(stage, i);
          stage.what = ts::Collective::all_reduce;
          reduced += ts::collective_bytes(stage, i);
        }
        // All devices together: every chunk goes to the n - 1 others.
        CHECK(gathered == 4.0 * static_cast<double>(elements) * (n - 1));
        CHECK(scattered == gathered);
        CHECK(reduced == 2 * gathered);
      }
    }
    const double v = 4.0 * 33 * n;
    const ts::CollectiveStage ring = {ts::Collective::all_reduce, ts::AxisKind::ring, n, 33 * n, 0};
    CHECK(ts::collective_steps(ring) == 2 * (n - 1));
    CHECK(ts::collective_seconds(ring, {1e-6, 1e9}) ==
          doctest::Approx(2 * (n - 1) * 1e-6 + 2.0 * (n - 1) / n * v / 1e9));
  }
}

TEST_CASE("several axes: order of the parts, bytes and time of the stages") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {3, 2}), {{"x", 3}, {"y", 2}});
  const ts::MeshRun run = mesh.run([](ts::Device& d) {
    const ts::Tensor mine = ts::full({2, 1, 2}, static_cast<float>(d.rank()));
    d.keep("xy", d.all_gather(mine, {"x", "y"}, 1));
    d.keep("yx", d.all_gather(mine, {"y", "x"}, 1));
    d.keep("part", d.reduce_scatter(ts::reshape(ts::arange(6), {1, 6}), {"x", "y"}, 1));
    d.keep("sum", d.all_reduce(numbers(d.rank(), 7), {"x", "y"}));
    d.keep("back", d.all_gather(d.shard(ts::arange(12), {"y", "x"}, 0), {"y", "x"}));
  });
  const ts::Tensor xy = run.kept(5, "xy");
  CHECK(xy.shape() == ts::Shape{2, 6, 2});
  for (int i = 0; i < 6; ++i) {
    CHECK(xy.at({1, i, 1}) == static_cast<float>(i));
    CHECK(run.kept(0, "yx").at({0, i, 0}) == static_cast<float>(i % 3 * 2 + i / 3));
    CHECK(run.kept(i, "part").values() == std::vector<float>(1, 6.0f * static_cast<float>(i)));
    CHECK(run.kept(i, "sum").values() == run.kept(0, "sum").values());
    CHECK(run.kept(i, "back").values() == ts::arange(12).values());
  }
  for (const ts::CollectiveRow& row : run.collectives()) {
    CAPTURE(row.name);
    CHECK(row.groups == 1);
    CHECK(row.devices == 6);
    CHECK(row.seconds == doctest::Approx(row.formula).epsilon(1e-9));
  }
}

TEST_CASE("placement: which axis is a ring") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2, 16}), {{"x", 2}, {"y", 16}});
  CHECK(mesh.placement().axes[0].kind == ts::AxisKind::line);
  CHECK(mesh.placement().axes[1].kind == ts::AxisKind::ring);
  const ts::Mesh parts(ts::machine("tpu-v5e", {2, 16}), {{"a", 8}, {"b", 4}});
  CHECK(parts.placement().axes[0].kind == ts::AxisKind::line);
  CHECK(parts.placement().axes[0].dim == -1);
  const ts::Mesh cube(ts::machine("tpu-v4", {4, 4, 4}), {{"x", 16}, {"y", 4}});
  CHECK(cube.placement().axes[0].kind == ts::AxisKind::line);
  CHECK(cube.placement().axes[1].kind == ts::AxisKind::ring);
  const ts::Mesh ones(ts::machine("h100", {1, 8}), {{"x", 8}});
  CHECK(ones.placement().axes[0].dim == 1);
}

TEST_CASE("through a switch any two chips are one hop apart, over their own ports") {
  const ts::Machine machine = ts::machine("h100", {1, 8});
  const double port = machine.axis_bandwidth(1);  // half of what a GPU sends
  for (const int distance : {1, 2, 3}) {
    CAPTURE(distance);
    const ts::Mesh mesh(machine, {{"x", 8}});
    const ts::MeshRun run =
        mesh.run([&](ts::Device& d) { d.permute(ts::zeros({250000}), "x", distance); });
    CHECK(run.seconds == doctest::Approx(machine.link_latency + 1e6 / port).epsilon(1e-9));
    CHECK(run.collectives()[0].hops == 1);
    CHECK(run.collectives()[0].formula == doctest::Approx(run.seconds).epsilon(1e-9));
    CHECK(run.links().size() == 16);  // every GPU to the switch and back
    for (const ts::LinkRow& link : run.links()) {
      CHECK((link.from == -1) != (link.to == -1));
      CHECK(link.bytes == 1e6);
    }
    CHECK(ts::svg(run).body.find("switch") != std::string::npos);
  }
  // An axis of every second GPU: its formula holds, since no message crosses another GPU.
  const ts::Mesh pairs(machine, {{"x", 4}, {"y", 2}});
  const ts::MeshRun gather = pairs.run([](ts::Device& d) { d.all_gather(ts::zeros({1024}), "x"); });
  CHECK(gather.seconds == doctest::Approx(gather.collectives()[0].formula).epsilon(1e-9));
}

TEST_CASE("axes that share links contend, and another machine re-times the log") {
  const ts::Machine machine = axis_machine(8, ts::AxisKind::line);
  const ts::Mesh mesh(machine, {{"a", 2}, {"b", 4}});
  const ts::MeshRun run =
      mesh.run([](ts::Device& d) { d.permute(ts::zeros({250}), "a", 1); });  // 1000 bytes
  // Four messages each way over the link in the middle, four hops each.
  CHECK(run.seconds == doctest::Approx(4e-6 + 4 * 1e-6).epsilon(1e-9));
  CHECK(run.links()[0].busy == doctest::Approx(0.5));
  const ts::MeshRun ring = run.on(axis_machine(8, ts::AxisKind::ring));
  CHECK(ring.seconds > 4e-6);
  CHECK(run.on(machine).seconds == run.seconds);
  CHECK(error_of([&] { run.on(axis_machine(4, ts::AxisKind::line)); }) ==
        "time: the log is of 8 devices, machine tpu-v5e 4 has 4 chips; they must be equal");
}

TEST_CASE("send, recv, barrier and counters") {
  const ts::Mesh mesh = axis_mesh(4, ts::AxisKind::line);
  ts::Profile profile;
  const ts::MeshRun run = mesh.run([](ts::Device& d) {
    const ts::Tensor x = ts::full({2, 2}, static_cast<float>(d.rank()));
    d.send(ts::matmul(x, x), (d.rank() + 1) % 4);
    d.keep("got", d.recv((d.rank() + 3) % 4));
    d.barrier();
  });
  CHECK(run.kept(0, "got").at({1, 1}) == 18.0f);
  CHECK(run.counters(2).matmul_flops == 16);
  CHECK(run.memory(1).peak_total() >= 32);
  CHECK(profile.totals().matmul_flops == 64);
  int last = 0;
  for (const ts::OpRecord& record : profile.records()) {
    CHECK(record.device >= last);
    last = record.device;
  }
  CHECK(run.collectives().size() == 2);
  CHECK(run.steps() == 3);  // one of the sends, two of the barrier
}

TEST_CASE("the report is the same at every run") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {4, 2}), {{"x", 4}, {"y", 2}});
  const auto report = [&mesh] {
    const ts::MeshRun run = mesh.run([](ts::Device& d) {
      const ts::Tensor t = d.all_reduce(numbers(d.rank(), 37), {"x", "y"});
      d.broadcast(t, "x", 1);
      d.all_gather(t, "y");
    });
    CHECK(run.critical_path().latency + run.critical_path().transfer ==
          doctest::Approx(run.seconds));
    return run.csv() + std::to_string(run.links()[0].to) + run.json();
  };
  const std::string first = report();
  for (int i = 0; i < 5; ++i) {
    CHECK(report() == first);
  }
}

TEST_CASE("check a guess") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {4, 2}), {{"x", 4}, {"y", 2}});
  const ts::MeshRun run = mesh.run([](ts::Device& d) { d.all_reduce(ts::zeros({24, 1024}), "y"); });
  ts::Guess guess;
  CHECK(run.check(guess).text() == "nothing guessed");
  CHECK_FALSE(run.check(guess).right);
  guess.bytes_per_device = 98304;
  guess.steps = 6;
  CHECK_FALSE(run.check(guess).right);
  CHECK(run.check(guess).text() ==
        "bytes: right. steps: you 6, counted 2: all_reduce takes 2 (N - 1) steps, here N = 2");
  guess.steps = 2;
  guess.seconds = run.seconds * 1.001;
  CHECK(run.check(guess).right);
  CHECK(run.check(guess).text() == "bytes: right. steps: right. seconds: right.");
  guess = ts::Guess();
  guess.steps = 1;
  CHECK(run.check(guess).text() ==
        "steps: you 1, counted 2: all_reduce is reduce_scatter and then all_gather, each of its "
        "own steps");
  guess = ts::Guess();
  guess.bytes_per_device = 24576;
  CHECK(run.check(guess).text() ==
        "bytes: you 24576, counted 98304: that is the number of elements; a float32 is 4 bytes");
  guess.seconds = std::nan("");
  CHECK(error_of([&] { run.check(guess); }) ==
        "check: the guess is 24576 bytes and nan seconds; numbers are right, negative for what is "
        "not guessed");
}

#if defined(TINYSCALE_NO_THREADS)
TEST_CASE("without threads") {
  CHECK(fault(axis_mesh(2, ts::AxisKind::line), [](ts::Device&) {}) ==
        "mesh.run: 2 devices need threads, and this program is compiled with "
        "TINYSCALE_NO_THREADS; use a mesh of 1 device");
  axis_mesh(1, ts::AxisKind::line).run([](ts::Device& d) { d.all_reduce(ts::zeros({2}), "x"); });
}
#endif

TEST_CASE("errors of the mesh and of arguments") {
  const ts::Machine machine = ts::machine("tpu-v5e", {4, 2});
  CHECK(error_of([&] { ts::Mesh(machine, {}); }) ==
        "Mesh: no axes; give a name and a size for each, as {{\"x\", 4}, {\"y\", 2}}");
  CHECK(error_of([&] {
          ts::Mesh(machine, {{"x", 4}, {"y", 4}});
        }) ==
        "Mesh: axes x, y of sizes [4, 4] are 16 devices, machine tpu-v5e 4x2 has 8 chips; they "
        "must be equal");
  CHECK(error_of([&] {
          ts::Mesh(machine, {{"x", 0}, {"y", 2}});
        }) == "Mesh: axis x has 0 devices; every axis needs at least 1");
  CHECK(error_of([&] {
          ts::Mesh(machine, {{"x", 4}, {"x", 2}});
        }) == "Mesh: two axes are named x; names must differ");
  CHECK(error_of([&] {
          ts::Mesh(machine, {{"", 4}, {"x", 2}});
        }) == "Mesh: axis 0 has no name; give every axis one, as \"x\"");
  const ts::Mesh mesh(machine, {{"x", 4}, {"y", 2}});
  CHECK(error_of([&] { mesh.size("z"); }) == "size: no axis z on this mesh; its axes are x, y");
  const auto all_throw = [&](const std::string& message, const ts::DeviceProgram& program) {
    CHECK(fault(mesh, program) == "mesh.run: devices 0-7 threw: " + message +
                                      "\n  devices 0-7: threw after 0 calls: " + message);
  };
  const ts::Tensor t = ts::zeros({3});
  all_throw("all_gather: no axis z on this mesh; its axes are x, y",
            [&](ts::Device& d) { d.all_gather(t, "z"); });
  all_throw("all_gather: axis x is given twice; each axis at most once", [&](ts::Device& d) {
    d.all_gather(t, {"x", "x"});
  });
  all_throw("all_reduce: no axis given; name at least one",
            [&](ts::Device& d) { d.all_reduce(t, std::vector<std::string>()); });
  all_throw("all_gather: dimension 1 is outside shape [3]",
            [&](ts::Device& d) { d.all_gather(t, "x", 1); });
  all_throw("all_gather: the tensor is empty (default-constructed); give one with a shape",
            [&](ts::Device& d) { d.all_gather(ts::Tensor(), "x"); });
  all_throw(
      "reduce_scatter: dimension 0 of [3] over 4 devices of x; its size must be a multiple "
      "of 4",
      [&](ts::Device& d) { d.reduce_scatter(t, "x"); });
  all_throw("shard: dimension 0 of [3] over 8 devices of x,y; its size must be a multiple of 8",
            [&](ts::Device& d) {
              d.shard(t, {"x", "y"}, 0);
            });
  all_throw("broadcast: root 2 on axis y of 2 devices; the root is 0 to 1",
            [&](ts::Device& d) { d.broadcast(t, "y", 2); });
  CHECK(fault(axis_mesh(1, ts::AxisKind::line), [&](ts::Device& d) { d.send(t, 0); }) ==
        "mesh.run: device 0 threw: send: device 0 names device 0; the others are among 0 to 0\n"
        "  device 0: threw after 0 calls: send: device 0 names device 0; the others are among 0 to "
        "0");
  ts::MessageLog twisted;  // each of two messages waits for the other
  twisted.devices = 8;
  twisted.messages.resize(2);
  twisted.messages[0].to = twisted.messages[1].from = 1;
  twisted.messages[0].to_step = twisted.messages[1].to_step = 1;
  CHECK(error_of([&] { ts::time(twisted, machine); }) ==
        "time: message 0 from device 0 to device 1 waits for itself; steps of the log must have an "
        "order");
  const ts::MeshRun run = mesh.run([&](ts::Device& d) { d.keep("t", t); });
  CHECK(error_of([&] { run.kept(0, "u"); }) == "kept: device 0 kept nothing named u; it kept t");
  CHECK(error_of([&] { run.kept(8, "t"); }) == "kept: rank 8 of 8 devices; ranks are 0 to 7");
  CHECK(error_of([&] {
          ts::collective_steps({ts::Collective::all_gather, ts::AxisKind::ring, 0, 1, 0});
        }) ==
        "collective_steps: 1 elements over 0 devices; needs 0 or more elements and at least 1 "
        "device");
  CHECK(error_of([&] {
          ts::collective_bytes({ts::Collective::broadcast, ts::AxisKind::ring, 2, 1, 5}, 0);
        }) == "collective_bytes: root 5 of 2 devices; the root is 0 to 1");
  CHECK(error_of([&] {
          ts::collective_bytes({ts::Collective::all_gather, ts::AxisKind::ring, 2, 1, 0}, 2);
        }) == "collective_bytes: index 2 of 2 devices; indices are 0 to 1");
}

TEST_CASE("mesh: a collective refuses a tensor that requires a gradient") {
  const ts::Tensor w = ts::parameter(ts::ones({2, 4}));
  const auto failure = [&](const std::function<void(ts::Device&)>& body) {
    try {
      axis_mesh(2, ts::AxisKind::line).run(body);
    } catch (const ts::Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  CHECK(failure([&](ts::Device& d) { d.all_reduce(w * 2.0f, "x"); })
            .find("all_reduce: the tensor [2, 4] requires a gradient, and a collective carries "
                  "none back; right is t.detach(), or a NoGrad scope") != std::string::npos);
  CHECK(failure([&](ts::Device& d) { d.all_gather(w, "x"); }).find("all_gather: the tensor") !=
        std::string::npos);
  CHECK(failure([&](ts::Device& d) { d.all_reduce(w.detach(), "x"); }) == "no error");
  CHECK(failure([&](ts::Device& d) {
          const ts::NoGrad scope;
          d.all_reduce(w, "x");
        }) == "no error");
}

TEST_CASE("nothing hangs: the error says where each device stands") {
  const ts::Mesh mesh = axis_mesh(3, ts::AxisKind::line);
  const ts::Tensor t = ts::zeros({4});
  CHECK(fault(mesh, [&](ts::Device& d) { d.recv((d.rank() + 1) % 3); }) ==
        "mesh.run: deadlock: every device waits and nothing can arrive\n"
        "  device 0: call 1, recv(from 1): waits for a message from device 1\n"
        "  device 1: call 1, recv(from 2): waits for a message from device 2\n"
        "  device 2: call 1, recv(from 0): waits for a message from device 0");
  CHECK(fault(mesh,
              [&](ts::Device& d) {
                if (d.rank() == 1) {
                  throw ts::Error("boom");
                }
                d.all_gather(t, "x");
              }) ==
        "mesh.run: device 1 threw: boom\n"
        "  devices 0, 2: call 1, all_gather([4], dim 0, x): waits for device 1 to call it\n"
        "  device 1: threw after 0 calls: boom");
  CHECK(fault(mesh,
              [&](ts::Device& d) {
                d.barrier();
                if (d.rank() == 2) {
                  return;
                }
                d.all_reduce(t, "x");
              }) ==
        "mesh.run: device 2 returned while others wait\n"
        "  devices 0, 1: call 2, all_reduce([4], sum, x): waits for device 2 to call it\n"
        "  device 2: returned after 1 call");
  CHECK(fault(mesh,
              [&](ts::Device& d) {
                if (d.rank() == 0) {
                  d.all_gather(t, "x");
                } else {
                  d.all_reduce(t, "x", ts::Reduce::max);
                }
              }) ==
        "mesh.run: devices 0-2 must make the same call and do not\n"
        "  device 0: call 1, all_gather([4], dim 0, x): its peers call something else\n"
        "  devices 1, 2: call 1, all_reduce([4], max, x): its peers call something else");
  CHECK(fault(mesh, [&](ts::Device& d) { d.all_gather(ts::zeros({d.rank() / 2 + 1}), "x"); }) ==
        "mesh.run: devices 0-2 must make the same call and do not\n"
        "  devices 0, 1: call 1, all_gather([1], dim 0, x): its peers call something else\n"
        "  device 2: call 1, all_gather([2], dim 0, x): its peers call something else");
  CHECK(fault(mesh,
              [&](ts::Device& d) {
                if (d.rank() == 0) {
                  d.send(t, 1);
                }
              }) ==
        "mesh.run: messages were sent that nobody received\n"
        "  device 0: returned after 1 call\n"
        "  device 1: returned after 0 calls; 1 message from device 0 not received\n"
        "  device 2: returned after 0 calls");
  CHECK(fault(mesh,
              [&](ts::Device& d) {
                if (d.rank() == 0) {
                  throw 7;
                }
              }) ==
        "mesh.run: device 0 threw: something that is not a std::exception\n"
        "  device 0: threw after 0 calls: something that is not a std::exception\n"
        "  devices 1, 2: returned after 0 calls");
  mesh.run([&](ts::Device& d) { d.all_gather(t, "x"); });  // a mesh is good after a failure
}

TEST_CASE("a hundred faulty programs end, each with the same text twice") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2, 3}), {{"x", 2}, {"y", 3}});
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const int culprit = static_cast<int>(ts::random_below(seed, 0, 6));
    const std::uint64_t when = ts::random_below(seed, 1, 5);
    const std::uint64_t how = ts::random_below(seed, 2, 6);
    const auto program = [&](ts::Device& d) {
      ts::Tensor t = ts::full({6}, 1.0f);
      for (std::uint64_t i = 0; i < 5; ++i) {
        if (i == when && d.rank() == culprit) {
          switch (how) {
            case 0: throw ts::Error("fault");
            case 1: return;
            case 2: d.all_reduce(t, "y", ts::Reduce::max); break;
            case 3: d.recv((culprit + 1) % 6); break;
            case 4: d.barrier(); break;
            default: d.send(t, (culprit + 1) % 6); break;
          }
        }
        switch (ts::random_below(seed, 10 + i, 5)) {
          case 0: t = d.all_reduce(t, {"x", "y"}); break;
          case 1: d.all_gather(t, "y"); break;
          case 2: d.broadcast(t, "x", 1); break;
          case 3: d.permute(t, "y", 1); break;
          default: d.reduce_scatter(t, "x"); break;
        }
      }
    };
    const std::string text = fault(mesh, program);
    CAPTURE(seed);
    CHECK(text.find("mesh.run: ") == 0);
    CHECK(fault(mesh, program) == text);
  }
}

TEST_CASE("mesh: a machine filled by hand must be whole") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ts::Machine mine;
  mine.name = "mine";
  mine.chip = ts::chip("tpu-v5e");
  mine.dims = {4};
  CHECK(error_of([&] {
          ts::Mesh(mine, {{"x", 4}});
        }) ==
        "Mesh: mine [4] has 0 wraps and 0 axis_bandwidths; one of each for every dimension is "
        "right");
  mine.wraps = {1};
  mine.axis_bandwidths = {0};
  CHECK(error_of([&] {
          ts::Mesh(mine, {{"x", 4}});
        }) ==
        "Mesh: mine: axis_bandwidths[0] is 0 bytes/s; a finite number above 0 is right, as a "
        "chip's link_bandwidth, between nodes its dcn_bandwidth");
  mine.axis_bandwidths = {1e9};
  CHECK(error_of([&] { ts::Mesh(mine, {{"x", 4}}); }).find("Mesh: mine: link_bandwidth is 0") == 0);
  mine.link_bandwidth = 1e9;
  CHECK(ts::Mesh(mine, {{"x", 4}}).size() == 4);
  mine.link_latency = nan;
  CHECK(error_of([&] {
          ts::Mesh(mine, {{"x", 4}});
        }) == "Mesh: mine: link_latency is nan s; a finite number from 0 is right");
  ts::MessageLog log;
  log.devices = 4;
  CHECK(error_of([&] { ts::time(log, mine); }) ==
        "time: mine: link_latency is nan s; a finite number from 0 is right");
  CHECK(error_of([] { ts::machine(ts::Chip(), {2}); }) ==
        "machine: unnamed chip 2: axis_bandwidths[0] is 0 bytes/s; a finite number above 0 is "
        "right, as a chip's link_bandwidth, between nodes its dcn_bandwidth");
  CHECK(ts::machine(ts::Chip(), {1}).chips() == 1);
}

TEST_CASE("mesh: an empty program is refused") {
  CHECK(error_of([] { axis_mesh(1, ts::AxisKind::line).run(ts::DeviceProgram()); }) ==
        "Mesh::run: the program is empty; give a function of Device&");
}

TEST_CASE("all_reduce: max and min of a NaN are a NaN") {
  for (const ts::Reduce how : {ts::Reduce::max, ts::Reduce::min}) {
    for (const int place : {0, 1, 2}) {
      axis_mesh(3, ts::AxisKind::ring).run([&](ts::Device& d) {
        const float mine = d.rank() == place ? std::nanf("") : static_cast<float>(d.rank());
        const ts::Tensor all = d.all_reduce(ts::full({4}, mine), "x", how);
        for (const float value : all.values()) {
          if (!(value != value)) {
            throw ts::Error("a NaN was dropped");
          }
        }
      });
    }
  }
}

#endif  // TINYSCALE_NO_THREADS
