#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

// (8, 4096) by (4096, 4096) in bf16.
ts::OpRecord matmul_record() {
  ts::OpRecord record;
  record.name = "matmul";
  record.reads = {{8 * 4096, ts::DType::bf16}, {4096 * 4096, ts::DType::bf16}};
  record.writes = {{8 * 4096, ts::DType::bf16}};
  record.matmul_flops = 2.0 * 8 * 4096 * 4096;
  record.seconds = 0.5;
  record.count_bytes();
  return record;
}

}  // namespace

TEST_CASE("counters: bytes follow from operands and their formats") {
  const ts::OpRecord record = matmul_record();
  CHECK(record.bytes_read == 2.0 * (8 * 4096 + 4096 * 4096));
  CHECK(record.bytes_written == 2.0 * 8 * 4096);
  CHECK(record.bytes() == record.bytes_read + record.bytes_written);
  CHECK(ts::Operand{10, ts::DType::int4}.bytes() == 5);
  ts::Counters counters;
  counters.add(record);
  counters.add(record);
  CHECK(counters.ops == 2);
  CHECK(counters.flops() == 4.0 * 8 * 4096 * 4096);
  CHECK(counters.bytes() == 2 * record.bytes());
  CHECK(counters.seconds == 1);
  CHECK(counters.intensity() == doctest::Approx(record.flops() / record.bytes()));
  CHECK(ts::Counters().intensity() == 0);
}

TEST_CASE("memory: levels and peaks by kind") {
  ts::MemoryMeter meter;
  meter.add(ts::MemoryKind::parameter, 1000);
  meter.add(ts::MemoryKind::activation, 500);
  meter.remove(ts::MemoryKind::activation, 500);
  meter.add(ts::MemoryKind::gradient, 200);
  CHECK(meter.current(ts::MemoryKind::activation) == 0);
  CHECK(meter.peak(ts::MemoryKind::activation) == 500);
  CHECK(meter.current_total() == 1200);
  CHECK(meter.peak_total() == 1500);  // not 1700: the peaks were at different times
  CHECK(meter.table().text() ==
        "memory\n"
        "kind           now    peak\n"
        "----------  ------  ------\n"
        "parameter     1 kB    1 kB\n"
        "gradient     200 B   200 B\n"
        "activation     0 B   500 B\n"
        "total       1.2 kB  1.5 kB\n");
  meter.reset_peak();
  CHECK(meter.peak_total() == 1200);
  CHECK(meter.peak(ts::MemoryKind::activation) == 0);
}

TEST_CASE("memory: several threads") {
  ts::MemoryMeter meter;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        meter.add(ts::MemoryKind::buffer, 8);
        meter.remove(ts::MemoryKind::buffer, 8);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(meter.current_total() == 0);
  CHECK(meter.peak_total() >= 8);
  CHECK(meter.peak_total() <= 32);
}

#if !defined(TINYSCALE_NO_THREADS)  // several threads
TEST_CASE("memory: a peak that begins anew while others allocate is never below the level") {
  ts::MemoryMeter meter;
  std::atomic<int> turn{0}, done{0};
  constexpr int turns = 5000;
  std::thread other([&] {
    for (int i = 1; i <= turns; ++i) {
      while (turn.load() < i) {
        std::this_thread::yield();
      }
      meter.reset_peak();
      meter.mark();
      done.store(i);
    }
  });
  int below = 0;
  for (int i = 1; i <= turns; ++i) {
    turn.store(i);
    meter.add(ts::MemoryKind::buffer, 8);
    while (done.load() < i) {
      std::this_thread::yield();
    }
    const double now = meter.current_total();
    below += meter.peak_total() < now || meter.peak(ts::MemoryKind::buffer) < now ? 1 : 0;
    below += meter.peak_total_since_mark() < now ? 1 : 0;
  }
  other.join();
  CHECK(below == 0);
}

TEST_CASE("context: one for each thread, which share a meter, others for a scope") {
  ts::Context* const program = &ts::context();
  CHECK(program->device == -1);
  CHECK(program->memory != nullptr);
  ts::Context device;
  device.device = 3;
  {
    const ts::ContextScope scope(device);
    CHECK(&ts::context() == &device);
    std::thread([&] {
      CHECK(&ts::context() != program);
      CHECK(ts::context().device == -1);
      CHECK(ts::context().memory.get() == program->memory.get());
      ts::context().no_grad = 1;
    }).join();
    CHECK(program->no_grad == 0);
    std::thread([] { CHECK(ts::context().no_grad == 0); }).join();
    {
      const ts::MemoryScope memory(ts::MemoryKind::optimizer);
      CHECK(device.kind == ts::MemoryKind::optimizer);
      CHECK(program->kind == ts::MemoryKind::activation);
    }
    CHECK(device.kind == ts::MemoryKind::activation);
  }
  CHECK(&ts::context() == program);
}

TEST_CASE("context: scopes and the profile of a loop's caller hold on each of its threads") {
  const ts::ThreadScope threads(4);
  const ts::Tensor a = ts::randn({16, 16}, 1), b = ts::randn({16, 16}, 2);
  const ts::Tensor w = ts::parameter(ts::randn({16, 16}, 3));
  const auto product = [&] { return ts::matmul(a, b).data()[7]; };
  const float plain = product();
  const ts::MatmulFormat bf16(ts::DType::bf16);
  const ts::NoGrad no_grad;
  const ts::MemoryScope memory(ts::MemoryKind::logits);
  ts::Profile profile;
  const float rounded = product();
  CHECK(rounded != plain);
  CHECK_FALSE(ts::matmul(a, w).requires_grad());
  const std::size_t each = profile.totals().ops;
  ts::Context* const own = &ts::context();
  std::atomic<int> same{0}, gradients{0}, kinds{0}, others{0};
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    for (; begin < end; ++begin) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));  // so that all take part
      same += product() == rounded ? 1 : 0;
      gradients += ts::matmul(a, w).requires_grad() ? 1 : 0;
      kinds += ts::context().kind == ts::MemoryKind::logits ? 1 : 0;
      others += &ts::context() != own ? 1 : 0;
      ++ts::context().no_grad;  // the thread's own, which ends with the loop
    }
  };
  ts::parallel_for(64, 1, body);
  CHECK(same == 64);
  CHECK(gradients == 0);
  CHECK(kinds == 64);
  CHECK(others == 64);
  CHECK(profile.totals().ops == 65 * each);
  CHECK(&ts::context() == own);
  CHECK(own->no_grad == 1);
  CHECK(own->memory->current(ts::MemoryKind::logits) == 0);
  std::size_t ops = 0;
  std::thread([&] {  // a caller that asked for no context before its loop
    ts::parallel_for(8, 1, [&](std::int64_t, std::int64_t) { product(); });
    ts::Profile later;
    product();
    ops = later.totals().ops;
  })
      .join();
  CHECK(ops == 1);
}
#endif

TEST_CASE("profile: records what runs while it is alive") {
  CHECK_FALSE(ts::profiling());
  {
    ts::Profile outer;
    CHECK(ts::profiling());
    ts::context().profile->record(matmul_record());
    {
      ts::Profile inner;
      ts::context().profile->record(matmul_record());
      CHECK(inner.totals().ops == 1);
      CHECK(inner.records()[0].name == "matmul");
      CHECK(inner.records()[0].device == -1);
    }
    CHECK(ts::context().profile == &outer);
    CHECK(outer.totals().ops == 2);  // the inner one's too
    CHECK(outer.totals().matmul_flops == 2 * matmul_record().matmul_flops);
    outer.clear();
    CHECK(outer.totals().ops == 0);
    CHECK(outer.records().empty());
  }
  CHECK_FALSE(ts::profiling());
}

TEST_CASE("profile: one may end before one that was made after it") {
  const auto run = [] {
    ts::OpRecord record;
    record.name = "op";
    ts::context().profile->record(record);
  };
  auto profile = std::make_unique<ts::Profile>();
  run();
  profile = std::make_unique<ts::Profile>();  // the new one is made first
  REQUIRE(ts::profiling());
  run();
  CHECK(profile->totals().ops == 1);
  auto first = std::make_unique<ts::Profile>(), second = std::make_unique<ts::Profile>();
  first.reset();
  run();
  CHECK(profile->totals().ops == 2);
  CHECK(second->totals().ops == 1);
  profile.reset();
  run();
  CHECK(second->totals().ops == 2);
  second.reset();
  CHECK_FALSE(ts::profiling());
}

TEST_CASE("profile: devices on threads report to it") {
  ts::Profile profile;
  std::vector<std::thread> threads;
  for (int device = 0; device < 4; ++device) {
    threads.emplace_back([&profile, device] {
      ts::Context own;
      own.profile = &profile;
      own.device = device;
      const ts::ContextScope scope(own);
      for (int i = 0; i < 100; ++i) {
        ts::context().profile->record(matmul_record());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::vector<int> ops(4);
  for (const ts::OpRecord& record : profile.records()) {
    ++ops.at(static_cast<std::size_t>(record.device));
  }
  CHECK(ops == std::vector<int>{100, 100, 100, 100});
}

TEST_CASE("compare: predicted beside counted") {
  ts::Comparison comparison;
  comparison.title = "all_gather";
  comparison.add("bytes", "B", 98304, 98304);
  comparison.add("time", "us", 10, 10.5);
  CHECK_FALSE(comparison.equal(0));
  CHECK_FALSE(comparison.equal(0.04));
  CHECK(comparison.equal(0.05));
  CHECK(comparison.rows[0].equal(0));
  CHECK(ts::ReportRow{"x", "", 0, 0}.ratio() == 1);
  CHECK_FALSE(ts::ReportRow{"x", "", 0, 1}.equal(0.5));
  std::ostringstream out;
  out << comparison;
  CHECK(out.str() ==
        "all_gather\n"
        "name   unit  formula  counted  counted/formula\n"
        "-----  ----  -------  -------  ---------------\n"
        "bytes  B       98304    98304            1.000\n"
        "time   us         10     10.5            1.050\n");
  CHECK(comparison.csv() ==
        "name,unit,formula,counted,counted/formula\n"
        "bytes,B,98304,98304,1\ntime,us,10,10.5,1.05\n");
  CHECK(comparison.json().find("\"formula\": 98304") != std::string::npos);
}

TEST_CASE("compare: no number is near infinity or NaN") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const auto equal = [](double predicted, double counted) {
    return ts::ReportRow{"", "", predicted, counted}.equal(0.5);
  };
  CHECK(equal(2, 3));
  CHECK(equal(inf, inf));
  for (const double number : {0.0, 5.0, -inf, nan}) {
    CHECK_FALSE(equal(inf, number));
    CHECK_FALSE(equal(number, inf));
    CHECK_FALSE(equal(number, nan));
  }
}

TEST_CASE("compare: reports side by side") {
  ts::Table a;
  a.title = "eager";
  a.columns = {"op", "bytes"};
  a.add({"mul", "8"});
  a.add({"mul", "9"});
  a.add({"gelu", "4"});
  ts::Table b = a;
  b.title = "";
  b.rows = {{"gelu", "5"}, {"fused", "6"}};
  CHECK(ts::compare({a, b}).text() ==
        "op     eager: bytes  report 2: bytes\n"
        "-----  ------------  ---------------\n"
        "mul               8                -\n"
        "mul               9                -\n"
        "gelu              4                5\n"
        "fused             -                6\n");
  ts::Comparison c;
  c.title = "c";
  c.add("bytes", "B", 1, 1);
  CHECK(ts::compare({c, c}).columns.size() == 9);  // reports convert to tables
  CHECK_THROWS_WITH_AS(ts::compare({}),
                       "compare: there is no report; give one or more, each with columns",
                       ts::Error);
  CHECK_THROWS_WITH_AS(
      ts::compare({a, ts::Table()}),
      "compare: report 2 of 2 has no columns; rows are matched by the cell in the first",
      ts::Error);
  b.rows.push_back({"late"});  // rows that a program writes by hand
  CHECK_THROWS_WITH_AS(
      ts::compare({a, b}),
      "Table: a row of 1 cells for 2 columns; a row must have a cell for each column", ts::Error);
  b.rows.back().clear();
  CHECK_THROWS_WITH_AS(
      ts::compare({b}),
      "Table: a row of 0 cells for 2 columns; a row must have a cell for each column", ts::Error);
}

TEST_CASE("comparison: rows that say how, heads of their own, titles without what they share") {
  ts::Comparison a;
  a.title = "training, on one device";
  a.formula_head = "schedule";
  a.counted_head = "simulated";
  a.add("bubble", "s", 2, 3, "(p-1) (F + B)");
  a.add("other", "s", 1, 1);
  CHECK(a.csv() ==
        "name,unit,schedule,simulated,simulated/schedule,how\n"
        "bubble,s,2,3,1.5,(p-1) (F + B)\n"
        "other,s,1,1,1,\n");
  ts::Comparison b = a;
  b.title = "training, on two devices";
  CHECK(ts::compare({a, b}).columns[1] == "on one device: unit");
  CHECK(ts::compare({a, b}).columns[6] == "on two devices: unit");
  CHECK(ts::compare({a, a}).columns[1] == "training, on one device: unit");
  CHECK(ts::compare({a}).columns[1] == "training, on one device: unit");
  b.title = "training";
  CHECK(ts::compare({a, b}).columns[6] == "training: unit");
}
