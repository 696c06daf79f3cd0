// hardware/launches.hpp and its closed forms: a host that launches kernels, a device that runs
// them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>

#include "error_of.hpp"
#include "tinyscale.hpp"
#include "well_formed.hpp"

namespace ts = tinyscale;

namespace {

const ts::Dispatch eager = ts::Dispatch::eager, graph = ts::Dispatch::graph;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A byte takes a nanosecond, a vector operation a tenth, a matmul operation a hundredth.
ts::Chip slow_chip() {
  ts::Chip chip;
  chip.name = "slow";
  chip.memory_bandwidth = 1e9;
  chip.vector_flops = 1e10;
  chip.flops_bf16 = chip.flops_f32 = 1e11;
  return chip;
}

ts::OpRecord kernel(const std::string& name, double bytes, double vector = 0, double matmul = 0) {
  ts::OpRecord op;
  op.name = name;
  op.shape = "[64]";
  op.bytes_read = bytes;
  op.vector_flops = vector;
  op.matmul_flops = matmul;
  return op;
}

// Of so many nanoseconds each.
ts::List<ts::OpRecord> kernels(const std::vector<std::int64_t>& nanoseconds) {
  ts::List<ts::OpRecord> out;
  for (const std::int64_t ns : nanoseconds) {
    out.push_back(kernel("add", static_cast<double>(ns)));
  }
  return out;
}

ts::List<ts::OpRecord> equal_kernels(std::int64_t count, std::int64_t nanoseconds) {
  return kernels(std::vector<std::int64_t>(static_cast<std::size_t>(count), nanoseconds));
}

// One nanosecond after the other: what is each of the two at?
struct Ticks {
  std::int64_t total = 0, idle = 0, launches = 0;
  std::vector<std::int64_t> start;
};
Ticks brute_force(const std::vector<std::int64_t>& ns, std::int64_t launch, std::int64_t gap,
                  std::int64_t ahead, const std::vector<bool>& reads, bool whole) {
  const std::int64_t n = static_cast<std::int64_t>(ns.size());
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  Ticks out;
  out.start.assign(ns.size(), -1);
  std::int64_t launched = 0, done = 0;               // kernels
  std::int64_t host = 0, device = 0, resting = gap;  // what is left of the present launch or kernel
  std::int64_t launching = 0;                        // kernels of the present launch
  for (std::int64_t now = 0; done < n; ++now) {
    // What ends or begins at this moment takes no time: until nothing changes.
    for (bool changed = true; changed && done < n;) {
      changed = false;
      if (launching > 0 && host == 0) {
        launched += launching;
        launching = 0;
        changed = true;
      }
      if (out.start[at(done)] >= 0 && device == 0) {
        ++done;
        resting = 0;
        changed = true;
        continue;
      }
      const bool first = done == 0 || reads[at(done - 1)] || !whole;  // of a launch
      if (done < launched && out.start[at(done)] < 0 && (first || resting >= gap)) {
        out.start[at(done)] = now;
        device = ns[at(done)];
        changed = true;
        continue;
      }
      const bool must_read = launched > 0 && reads[at(launched - 1)] && done < launched;
      if (launching == 0 && launched < n && !must_read && (whole || launched - done <= ahead) &&
          (!whole || done == launched)) {
        launching = 1;
        while (whole && launched + launching < n && !reads[at(launched + launching - 1)]) {
          ++launching;
        }
        host = launch;
        ++out.launches;
        changed = true;
      }
    }
    if (done < n) {
      ++out.total;
      host -= host > 0 ? 1 : 0;
      if (out.start[at(done)] >= 0) {
        --device;
      } else {
        ++resting;
        ++out.idle;
      }
    }
  }
  return out;
}

// Fields that are there, by name; fails the test where there is none.
const ts::Json& field(const ts::Json& json, const std::string& name) {
  static const ts::Json none;
  const ts::Json* const found = json.find(name);
  CAPTURE(name);
  CHECK(found != nullptr);
  return found == nullptr ? none : *found;
}

ts::Json parsed(const std::string& text) { return ts::detail::JsonReader(text).whole(); }

}  // namespace

TEST_CASE("launches: claim C2, 1,000 kernels eager and as a graph") {
  const ts::Chip chip = slow_chip();
  const ts::LaunchReport short_eager = ts::launches(equal_kernels(1000, 2000), chip, eager);
  CHECK(short_eager.seconds == doctest::Approx(5.002e-3));
  CHECK(short_eager.device_idle() == doctest::Approx(3.002e-3));
  CHECK(short_eager.memory_bound == doctest::Approx(2e-3));
  CHECK(short_eager.host_busy == doctest::Approx(5e-3));
  CHECK(short_eager.launches == 1000);
  const ts::LaunchReport short_graph = ts::launches(equal_kernels(1000, 2000), chip, graph);
  CHECK(short_graph.seconds == doctest::Approx(2.005e-3));
  CHECK(short_graph.launches == 1);
  CHECK(short_graph.host_busy == doctest::Approx(5e-6));
  for (const ts::Dispatch how : {eager, graph}) {
    CHECK(ts::launches(equal_kernels(1000, 20000), chip, how).seconds ==
          doctest::Approx(20.005e-3));
  }
  CHECK(ts::eager_time(1000, 2e-6).text() == "5 ms");
  CHECK(ts::graph_time(1000, 2e-6).text() == "2 ms");
  CHECK(ts::eager_time(1000, 20e-6).text() == "20 ms");
  CHECK(ts::graph_time(1000, 20e-6).text() == "20 ms");
  CHECK(ts::eager_time(1000, 2e-6).explain() ==
        "T_eager = n * max(l, k) + min(l, k)   [the host ahead of the device]\n"
        "        = 1000 * max(5 us, 2 us) + min(5 us, 2 us)\n"
        "        = 5 ms\n"
        "  n = 1000   [kernels]\n"
        "  l = 5 us   [a launch]\n"
        "  k = 2 us   [a kernel]\n");
  CHECK(ts::graph_time(1000, 2e-6).formula() == "l + n * k");
}

TEST_CASE("launches: closed forms and replay of equal kernels") {
  const ts::Chip chip = slow_chip();
  for (const std::int64_t n : {0, 1, 2, 3, 7, 50}) {
    for (const std::int64_t ns : {0, 1000, 4999, 5000, 5001, 30000}) {
      for (const double launch : {0.0, 1e-6, 5e-6}) {
        for (const std::int64_t ahead :
             {std::int64_t(0), std::int64_t(1), std::int64_t(2), std::int64_t(5),
              std::numeric_limits<std::int64_t>::max()}) {
          for (int reads = 0; reads < 4; ++reads) {
            CAPTURE(n);
            CAPTURE(ns);
            CAPTURE(launch);
            CAPTURE(ahead);
            ts::LaunchOptions options;
            options.seconds = launch;
            options.graph_seconds = reads == 3 ? 8e-6 : -1;
            options.between_kernels = reads == 2 ? 3e-7 : 0;
            options.ahead = ahead;
            for (std::int64_t i = n - 1; reads > 0 && i >= 0; i -= 2) {  // twice, in any order
              options.synchronise.push_back(i);
              options.synchronise.push_back(i);
            }
            const double k = 1e-9 * static_cast<double>(ns);
            const ts::LaunchReport one =
                ts::launches(equal_kernels(n, ns), chip, eager, ts::DType::f32, options);
            const ts::LaunchReport whole =
                ts::launches(equal_kernels(n, ns), chip, graph, ts::DType::f32, options);
            CHECK(one.seconds == doctest::Approx(ts::eager_time(n, k, options).value()));
            CHECK(whole.seconds == doctest::Approx(ts::graph_time(n, k, options).value()));
            CHECK(one.launches == n);
            for (const ts::LaunchReport& r : {one, whole}) {
              CHECK(r.device_busy() + r.device_idle() == doctest::Approx(r.seconds));
              CHECK(r.device_busy() == doctest::Approx(static_cast<double>(n) * k));
            }
            if (ahead == 0) {
              CHECK(one.seconds == doctest::Approx(static_cast<double>(n) * (launch + k)));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("launches: mixed kernels, nanosecond by nanosecond") {
  const ts::Chip chip = slow_chip();
  std::uint64_t state = 1;
  const auto below = [&](std::int64_t most) {  // Knuth's MMIX generator
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(most));
  };
  for (int trial = 0; trial < 400; ++trial) {
    CAPTURE(trial);
    std::vector<std::int64_t> ns(static_cast<std::size_t>(below(13)));
    std::vector<bool> reads(ns.size());
    ts::LaunchOptions options;
    const std::int64_t launch = below(9), gap = below(4);
    options.seconds = 1e-9 * static_cast<double>(launch);
    options.between_kernels = 1e-9 * static_cast<double>(gap);
    options.ahead = below(2) == 0 ? below(4) : 1024;
    for (std::size_t i = 0; i < ns.size(); ++i) {
      ns[i] = below(3) == 0 ? below(40) : below(6);
      if (below(6) == 0) {
        reads[i] = true;
        options.synchronise.push_back(static_cast<std::int64_t>(i));
      }
    }
    for (const ts::Dispatch how : {eager, graph}) {
      const ts::LaunchReport report = ts::launches(kernels(ns), chip, how, ts::DType::f32, options);
      const Ticks ticks = brute_force(ns, launch, gap, options.ahead, reads, how == graph);
      CHECK(std::llround(1e9 * report.seconds) == ticks.total);
      CHECK(std::llround(1e9 * report.device_idle()) == ticks.idle);
      CHECK(report.launches == ticks.launches);
      REQUIRE(report.rows.size() == ns.size());
      for (std::size_t i = 0; i < ns.size(); ++i) {
        CHECK(std::llround(1e9 * report.rows[i].start) == ticks.start[i]);
      }
    }
  }
}

TEST_CASE("launches: rows, by hand") {
  ts::LaunchOptions options;
  options.seconds = 10e-9;
  options.synchronise = {1};
  const ts::LaunchReport r =
      ts::launches({kernel("add", 30), kernel("gelu", 1, 200), kernel("matmul", 4, 0, 500)},
                   slow_chip(), eager, ts::DType::f32, options);
  const double expected[][4] = {{0, 10, 10, 40}, {10, 20, 40, 60}, {60, 70, 70, 75}};  // ns
  const char* const bounds[] = {"memory", "vector", "math"};
  REQUIRE(r.rows.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(r.rows[i].launch_start == doctest::Approx(1e-9 * expected[i][0]));
    CHECK(r.rows[i].launch_finish == doctest::Approx(1e-9 * expected[i][1]));
    CHECK(r.rows[i].start == doctest::Approx(1e-9 * expected[i][2]));
    CHECK(r.rows[i].finish == doctest::Approx(1e-9 * expected[i][3]));
    CHECK(r.rows[i].bound == bounds[i]);
    CHECK(r.rows[i].synchronise == (i == 1));
  }
  CHECK(r.seconds == doctest::Approx(75e-9));
  CHECK(r.memory_bound == doctest::Approx(30e-9));
  CHECK(r.vector_bound == doctest::Approx(20e-9));
  CHECK(r.math_bound == doctest::Approx(5e-9));
  CHECK(r.idle_launch == doctest::Approx(20e-9));
  CHECK(r.idle_read == doctest::Approx(10e-9));
  CHECK(r.idle_between == 0);
  CHECK(r.bytes == 35);
  CHECK(r.flops() == 700);
  CHECK(r.intensity() == 20);
}

TEST_CASE("launches: a profile's records cost what its roofline says") {
  const ts::Profile profile;
  const ts::Tensor y = ts::gelu(ts::matmul(ts::randn({8, 64}, 1), ts::randn({64, 32}, 2)));
  const ts::Chip v5e = ts::chip("tpu-v5e");
  const ts::LaunchReport r = ts::launches(profile.records(), v5e, graph, ts::DType::bf16);
  const ts::RooflineReport roof = profile.roofline(v5e, ts::DType::bf16);
  CHECK(r.rows.size() == 2);
  CHECK(r.device_busy() == doctest::Approx(roof.total.seconds));
  CHECK(r.bytes == roof.total.bytes);
  CHECK(r.rows[0].name == "matmul");
  CHECK(r.rows[1].bound == roof.rows[1].bound);
  CHECK(r.seconds == doctest::Approx(5e-6 + roof.total.seconds));
}

TEST_CASE("launches: one kernel and none, in every form") {
  for (const ts::Dispatch how : {eager, graph}) {
    const ts::LaunchReport none = ts::launches({}, slow_chip(), how);
    CHECK(none.seconds == 0);
    CHECK(none.launches == 0);
    CHECK(contains(none.totals().text(), "0 kernels, 0 launches"));
    CHECK(field(parsed(none.json()), "kernels").find("rows")->list.empty());
    CHECK(well_formed(ts::svg(none).markup()));
    CHECK(contains(ts::svg(none).markup(), ">no kernels<"));
    CHECK(parsed(ts::trace_json(none)).list.size() == 3);
    const ts::LaunchReport one = ts::launches(equal_kernels(1, 2000), slow_chip(), how);
    CHECK(one.seconds == doctest::Approx(7e-6));
    CHECK(one.launches == 1);
    CHECK(contains(one.totals().title, "1 kernel, 1 launch of 5 us"));
    CHECK(well_formed(ts::svg(one).markup()));
  }
}

TEST_CASE("launches: a report prints, and is CSV and JSON in plain numbers") {
  const ts::LaunchReport r =
      ts::launches({kernel("add", 3000), kernel("a,\"b\"", 1000, 20)}, slow_chip(), eager);
  std::ostringstream printed;
  printed << r;
  CHECK(printed.str() == r.totals().text() + "\n" + r.table().text());
  CHECK(contains(printed.str(), "Time on slow, priced as f32, eager: 2 kernels, 2 launches of"));
  CHECK(contains(printed.str(), "  device idle: waits for a launch"));
  CHECK(r.csv() ==
        "kernel,name,shape,\"launch start, s\",\"launch finish, s\",\"start, s\",\"finish, s\","
        "bound by,level,matmul FLOPs,vector FLOPs,bytes\n"
        "0,add,[64],0,5e-06,5e-06," +
            ts::detail::json_number(r.rows[0].finish) +
            ",memory,HBM,0,0,3000\n1,\"a,\"\"b\"\"\",[64],5e-06,1e-05,1e-05," +
            ts::detail::json_number(r.rows[1].finish) + ",memory,HBM,0,20,1000\n");
  const ts::Json json = parsed(r.json());
  CHECK(field(field(json, "totals"), "dispatch").text == "eager");
  CHECK(field(field(json, "totals"), "seconds").number == r.seconds);
  CHECK(field(field(json, "totals"), "idle_launch").number == r.idle_launch);
  const ts::Json& rows = field(field(json, "kernels"), "rows");
  REQUIRE(rows.list.size() == 2);
  CHECK(field(rows.list[1], "name").text == "a,\"b\"");
  CHECK(field(rows.list[1], "finish, s").number == r.rows[1].finish);
  ts::Chip chip = slow_chip();
  chip.vector_flops = 0;
  CHECK(contains(ts::launches({}, chip, eager).totals().title, "(vector rate not known"));
}

TEST_CASE("launches: the crossover") {
  const ts::Chip v5e = ts::chip("tpu-v5e");
  CHECK(ts::launch_crossover_bytes(v5e).value() == doctest::Approx(5e-6 * v5e.memory_bandwidth));
  CHECK(ts::launch_crossover_bytes(v5e).formula() == "l * W");
  const ts::Quantity moved = ts::launch_crossover(v5e, 5e-6, 2, 0, ts::DType::bf16);
  CHECK(moved.value() == doctest::Approx(5e-6 * v5e.memory_bandwidth / 4));
  CHECK(moved.unit() == "element");
  // On this side of it the device waits for every launch, on the other it never does again.
  ts::Chip cached = slow_chip();
  cached.levels = {{"L1", 1000, 1e12}, {"none", 2000, 0}, {"L2", 60000, 1e10}};
  for (const ts::Chip& chip : {slow_chip(), cached}) {
    for (const double flops : {0.0, 1.0, 400.0}) {
      for (const double launch : {1e-9, 3e-9, 2e-6, 5e-6, 50e-6}) {
        CAPTURE(flops);
        CAPTURE(launch);
        const double n = ts::launch_crossover(chip, launch, 3, flops, ts::DType::bf16).value();
        const auto seconds = [&](double elements) {
          return ts::roofline(kernel("add", 6 * elements, flops * elements), chip).seconds;
        };
        CHECK(seconds(n * (1 - 1e-9)) < launch);
        CHECK(seconds(n * (1 + 1e-9)) >= launch * (1 - 1e-12));
      }
    }
  }
  CHECK(ts::launch_crossover_bytes(cached, 3e-9).value() == doctest::Approx(1000));  // one step
  CHECK(ts::launch_crossover_bytes(cached, 50e-6).value() == doctest::Approx(60000));
  CHECK(ts::launch_crossover_bytes(cached, 50e-6).formula() == "max(held, l * W)");
}

TEST_CASE("launches: a sweep of durations, and its picture") {
  const ts::LaunchSweep sweep = ts::launch_sweep(100);
  REQUIRE(sweep.kernel_seconds.size() == 41);
  for (std::size_t i = 0; i < 41; ++i) {
    const double k = sweep.kernel_seconds[i];
    CHECK(sweep.eager[i] == doctest::Approx(ts::eager_time(100, k).value()));
    CHECK(sweep.graph[i] == doctest::Approx(ts::graph_time(100, k).value()));
  }
  CHECK(sweep.kernel_seconds[20] == doctest::Approx(5e-6));
  CHECK(sweep.eager[20] == doctest::Approx(sweep.graph[20]));
  const ts::Json two = field(parsed(ts::launch_sweep(10, {}, {2e-6, 20e-6}).json()), "rows");
  CHECK(field(two.list[0], "kernel (s)").number == 2e-6);
  CHECK(field(two.list[0], "eager (s)").number == doctest::Approx(52e-6));
  CHECK(field(two.list[0], "graph (s)").number == doctest::Approx(25e-6));
  CHECK(field(two.list[1], "eager / graph").number == doctest::Approx(1));
  CHECK(field(parsed(sweep.json()), "rows").list.size() == 41);
  std::ostringstream printed;
  printed << sweep;
  CHECK(contains(printed.str(), "100 kernels, launches of 5 us, of a graph 5 us"));
  const ts::Svg picture = ts::svg(sweep);
  CHECK(well_formed(picture.markup()));
  for (const char* const words : {">eager<", ">graph<", ">kernel = launch<", ">a kernel, us<"}) {
    CHECK(contains(picture.markup(), words));
  }
  ts::LaunchOptions free;
  free.seconds = 0;
  CHECK_FALSE(contains(ts::svg(ts::launch_sweep(3, free)).markup(), "kernel = launch"));
  CHECK(contains(ts::svg(ts::launch_sweep(0)).markup(), "no data"));
}

TEST_CASE("launches: two lists of kernels, before and after fusion") {
  // Eight elementwise operations on 1,000 numbers of 4 bytes, then one kernel of the same work.
  ts::List<ts::OpRecord> before, after;
  for (int i = 0; i < 8; ++i) {
    before.push_back(kernel("op", 8000, 50000));
  }
  after.push_back(kernel("fused", 8000, 400000));
  const ts::LaunchComparison c = ts::launch_comparison(before, after, slow_chip());
  CHECK(c.eager_before.seconds == doctest::Approx(8 * 8e-6 + 5e-6));
  CHECK(c.graph_before.seconds == doctest::Approx(8 * 8e-6 + 5e-6));
  CHECK(c.eager_after.seconds == doctest::Approx(40e-6 + 5e-6));  // bound by vector work now
  CHECK(c.speedup() == doctest::Approx(69.0 / 45));
  CHECK(ts::kernels_bound_by(c.eager_before, "memory") == 8);
  CHECK(ts::kernels_bound_by(c.eager_after, "memory") == 0);
  CHECK(ts::kernels_bound_by(c.eager_after, "vector") == 1);
  CHECK(contains(c.csv(),
                 "quantity,before,before unit,after,after unit,before / after\nkernels,8,,1,,8\n"
                 "  bound by memory,8,,0,,\n  bound by vector,0,,1,,\n"));
  CHECK(contains(c.csv(),
                 "bytes,64000,B,8000,B,8\nFLOPs,400000,FLOP,400000,FLOP,1\n"
                 "FLOPs/byte,6.25,FLOP/B,50,FLOP/B,0.125\n"));
  const ts::Json rows = field(parsed(c.json()), "rows");
  REQUIRE(rows.list.size() == 16);
  CHECK(field(rows.list[15], "quantity").text == "T eager before, graph after");
  CHECK(field(rows.list[15], "before").number == doctest::Approx(69e-6));
  CHECK(field(rows.list[15], "before unit").text == "s");
  CHECK(field(rows.list[15], "before / after").number == doctest::Approx(69.0 / 45));
  std::ostringstream printed;
  printed << c;
  CHECK(printed.str() == c.table().text());
  CHECK(ts::launch_comparison(before, {}, slow_chip()).speedup() == 0);
  ts::LaunchOptions reads;
  reads.synchronise = {7};
  CHECK(ts::launch_comparison(before, after, slow_chip(), ts::DType::f32, reads, {0})
            .eager_after.rows[0]
            .synchronise);
}

TEST_CASE("launches: errors") {
  const double nan = std::nan(""), infinite = std::numeric_limits<double>::infinity();
  const auto error = [](const ts::LaunchOptions& options) {
    return error_of(
        [&] { ts::launches(equal_kernels(3, 1), slow_chip(), eager, ts::DType::f32, options); });
  };
  ts::LaunchOptions options;
  options.seconds = -1;
  CHECK(error(options) == "launches: seconds is -1; a finite number of seconds from 0 is right");
  options.seconds = nan;
  CHECK(error(options) == "launches: seconds is nan; a finite number of seconds from 0 is right");
  options = {};
  options.graph_seconds = -2;
  CHECK(
      error(options) ==
      "launches: graph_seconds is -2; a finite number of seconds from 0, or -1 for as long as one "
      "kernel's, is right");
  options.graph_seconds = nan;
  CHECK(error(options) ==
        "launches: graph_seconds is nan; a finite number of seconds from 0, or -1 for as long as "
        "one kernel's, is right");
  options = {};
  options.between_kernels = infinite;
  CHECK(error(options) ==
        "launches: between_kernels is inf; a finite number of seconds from 0 is right");
  options = {};
  options.ahead = -1;
  CHECK(error(options) == "launches: ahead is -1; a number of kernels from 0 is right");
  options = {};
  options.synchronise = {0, 3};
  CHECK(error(options) == "launches: synchronise names kernel 3 of 3; 0 to 2 are right");
  CHECK(error_of([&] { ts::launches({}, slow_chip(), eager, ts::DType::f32, options); }) ==
        "launches: synchronise names kernel 0 of 0; none is right");
  ts::Chip chip = slow_chip();
  chip.memory_bandwidth = 0;
  CHECK(error_of([&] { ts::launches(equal_kernels(1, 1), chip, eager); }) ==
        "roofline: slow: memory_bandwidth is 0; a finite number above 0 is right");
  CHECK(error_of([&] { ts::launch_crossover(chip); }) ==
        "bandwidth_of: slow: memory is 0 bytes/s; set it to a finite number above 0");
  CHECK(error_of([&] { ts::launches({kernel("add", nan)}, slow_chip(), eager); }) ==
        "launches: kernel 0 (add) has 0 matmul FLOPs, 0 vector FLOPs and nan bytes; finite numbers "
        "from 0 are right");
  CHECK(error_of([] { ts::eager_time(-1, 1e-6); }) ==
        "eager_time: -1 kernels; a number from 0 is right");
  CHECK(error_of([&] { ts::graph_time(1, nan); }) ==
        "graph_time: a kernel takes nan s; a finite number from 0 is right");
  CHECK(error_of([] { ts::launch_sweep(3, {}, {-1.0}); }) ==
        "launch_sweep: a kernel takes -1 s; a finite number from 0 is right");
  CHECK(
      error_of([] { ts::launch_sweep(100000000000000); }) ==
      "launch_sweep: 100000000000000 kernels; up to 10000000 are replayed, of more eager_time and "
      "graph_time are the formulas");
  CHECK(error_of([] { ts::launch_crossover_bytes(slow_chip(), 0); }) ==
        "launch_crossover_bytes: l (a launch) is 0; a finite number above 0 is right");
  CHECK(error_of([] { ts::launch_crossover(slow_chip(), 5e-6, 0); }) ==
        "launch_crossover: arrays (read or written) is 0; a finite number above 0 is right");
  CHECK(error_of([] { ts::launch_crossover(slow_chip(), 5e-6, 2, -1); }) ==
        "launch_crossover: flops is -1; a finite number from 0 is right");
  CHECK(error_of([] {
          ts::save_trace(ts::launches({}, slow_chip(), eager), "no/such/folder/a.json");
        }) ==
        "save_trace: cannot write \"no/such/folder/a.json\": No such file or directory; give a "
        "path in a folder that exists and can be written");
}

TEST_CASE("launches: the timeline has every kernel while there is room, then columns") {
  const ts::LaunchReport few = ts::launches(equal_kernels(3, 2000), slow_chip(), eager);
  const std::string small = ts::svg(few).markup();
  CHECK(well_formed(small));
  CHECK(occurrences(small, "class=\"tf3\"") == 1 + 3);  // launches, and the legend
  CHECK(occurrences(small, "class=\"tf1\"") == 1 + 3);  // kernels bound by memory
  CHECK(occurrences(small, "class=\"ts-empty\"") == 1 + 3);
  CHECK(occurrences(small, ">add<") == 3);
  CHECK(contains(small, ">host: launches 15 us, 88.2 %<"));
  CHECK(contains(small, ">device: bound by memory 6 us, 35.3 %<"));
  CHECK_FALSE(contains(small, "the first"));

  const ts::Svg many = ts::svg(ts::launches(equal_kernels(2000, 2000), slow_chip(), eager));
  CHECK(well_formed(many.markup()));
  CHECK(many.markup().size() < 60000);
  CHECK(contains(many.markup(), ">the first 12 kernels<"));
  CHECK(occurrences(many.markup(), ">add<") == 12);
  CHECK(many.text ==
        "slow, priced as f32, eager: 2,000 kernels, 2,000 launches of 5 us: 10 ms; host: launches "
        "10 ms, 100.0 %; device: bound by memory 4 ms, 40.0 %; device: idle 6 ms, 60.0 %");

  ts::LaunchOptions options;
  options.synchronise = {0, 1, 2};
  const ts::LaunchReport waits =
      ts::launches({kernel("a<b", 30000), kernel("gelu", 1, 1e5), kernel("matmul", 1, 0, 1e6)},
                   slow_chip(), graph, ts::DType::f32, options);
  const std::string markup = ts::svg(waits).markup();
  CHECK(well_formed(markup));
  CHECK(contains(markup, ">a&lt;b<"));
  CHECK(contains(markup, ">host: waits for the device 50 us, 76.9 %<"));
  CHECK(contains(markup, ">device: bound by vector 10 us, 15.4 %<"));
  CHECK(contains(markup, ">device: bound by math 10 us, 15.4 %<"));
}

TEST_CASE("launches: columns keep the time of every piece") {
  // 500 kernels of 1 us, each after 4 us: a fifth of the track's height in all.
  const ts::LaunchReport r = ts::launches(equal_kernels(500, 1000), slow_chip(), eager);
  ts::detail::Canvas canvas(1200, 300);
  const ts::detail::TimeScale scale(0, 1000, r.seconds);
  CHECK(ts::detail::LaunchTrack(canvas, scale, 0, 100).draw(ts::detail::device_pieces(r), 1));
  const std::string body = canvas.finish("").body;
  CHECK(contains(body, "height=\"20\"  class=\"tf1\""));
  CHECK(contains(body, "height=\"80\" class=\"ts-empty\""));
  CHECK(occurrences(body, "<rect") < 12);
}

TEST_CASE("launches: a trace with both tracks and an arrow for each launch") {
  ts::LaunchOptions options;
  options.synchronise = {1};
  ts::List<ts::OpRecord> list = equal_kernels(4, 9000);
  list[2].name = "a \"quoted\" name";
  const ts::LaunchReport r = ts::launches(list, slow_chip(), eager, ts::DType::f32, options);
  const ts::Json trace = parsed(ts::trace_json(r));
  int launches = 0, waits = 0, ran = 0, arrows = 0, names = 0;
  for (const ts::Json& event : trace.list) {
    const std::string phase = field(event, "ph").text;
    names += phase == "M" ? 1 : 0;
    arrows += phase == "s" || phase == "f" ? 1 : 0;
    if (phase == "X") {
      const bool host = field(event, "tid").number == 0;
      const std::string category = field(event, "cat").text;
      launches += host && category == "launch" ? 1 : 0;
      waits += host && category == "wait" ? 1 : 0;
      if (!host) {
        const ts::LaunchRow& row = r.rows[static_cast<std::size_t>(ran++)];
        CHECK(field(event, "name").text == row.name);
        CHECK(field(event, "ts").number == doctest::Approx(1e6 * row.start));
        CHECK(field(event, "dur").number == doctest::Approx(1e6 * row.seconds));
        CHECK(field(field(event, "args"), "bytes").number == 9000);
      }
    }
  }
  CHECK(names == 3);
  CHECK(launches == 4);
  CHECK(waits == 1);
  CHECK(ran == 4);
  CHECK(arrows == 8);
  const std::string path = "launches_test_trace.json";
  ts::save_trace(r, path);
  std::ifstream file(path);
  std::ostringstream saved;
  saved << file.rdbuf();
  CHECK(saved.str() == ts::trace_json(r));
  file.close();
  std::remove(path.c_str());
}

TEST_CASE("launches: a way to launch that is none") {
  CHECK(error_of([] {
          ts::launches(ts::List<ts::OpRecord>(), ts::chip("h100"), static_cast<ts::Dispatch>(5));
        }) == "Dispatch: 5 is no value of it; 0 to 1 are right");
}
