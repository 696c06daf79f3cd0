// hardware/: chips against the published table, machines, the roofline, this laptop.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <sstream>
#include <thread>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

std::string shared_file(const std::string& path) {
  const char* root = std::getenv("TINYSCALE_SHARED");
  return std::string(root != nullptr ? root : "../shared") + "/" + path;
}

// Rows of a tab-separated table, each a map from column name to cell; empty where there is no file.
std::vector<std::map<std::string, std::string>> tsv(const std::string& path) {
  std::vector<std::map<std::string, std::string>> rows;
  std::ifstream file(shared_file(path));
  std::string line, cell;
  std::vector<std::string> names;
  while (std::getline(file, line)) {
    std::vector<std::string> cells;
    std::istringstream text(line);
    while (std::getline(text, cell, '\t')) {
      cells.push_back(cell);
    }
    if (names.empty()) {
      names = cells;
      continue;
    }
    std::map<std::string, std::string> row;
    for (std::size_t i = 0; i < names.size(); ++i) {
      row[names[i]] = i < cells.size() ? cells[i] : "";
    }
    rows.push_back(row);
  }
  if (rows.empty()) {
    std::cout << "skipped: no " << path << "\n";
  }
  return rows;
}

double number(const std::string& cell) { return cell.empty() ? 0.0 : std::stod(cell); }

ts::OpRecord matmul_record(double m, double k, double n) {
  ts::OpRecord op;
  op.name = "matmul";
  op.shape = "[8, 4096] x [4096, 4096]";
  op.matmul_flops = 2 * m * k * n;
  op.reads = {{m * k, ts::DType::f32}, {k * n, ts::DType::f32}};
  op.writes = {{m * n, ts::DType::f32}};
  return op;
}

}  // namespace

TEST_CASE("hardware: presets have the table's numbers") {
  const auto rows = tsv("data/tables/chips.tsv");
  if (!rows.empty()) {
    // tpu-v1 and gemmini have a test of their own, v100-32, h800, h100-96 and gb300 theirs
    REQUIRE(rows.size() + 6 == ts::chips().size());
  }
  for (auto row : rows) {
    CAPTURE(row["id"]);
    const ts::Chip chip = ts::chip(row["id"]);
    CHECK(chip.flops_bf16 == number(row["peak_bf16"]));
    CHECK(chip.flops_int8 == number(row["peak_int8"]));
    CHECK(chip.flops_fp8 == number(row["peak_fp8"]));
    CHECK(chip.flops_fp4 == number(row["peak_fp4"]));
    CHECK(chip.flops_f32 == number(row["peak_fp32"]));
    CHECK(chip.memory_bytes == number(row["mem_bytes"]));
    CHECK(chip.memory_bandwidth == number(row["mem_bw"]));
    CHECK(chip.sram_bytes == number(row["sram_bytes"]));
    CHECK(chip.clock_hz == number(row["clock_hz"]));
    CHECK(chip.links == number(row["links"]));
    CHECK(chip.link_bandwidth == number(row["link_bw_oneway"]));
    CHECK(chip.domain_chips == number(row["domain_chips"]));
    CHECK(chip.dcn_bandwidth == number(row["dcn_bw_per_chip"]));
    CHECK(chip.watts == number(row["tdp_w"]));
    CHECK(chip.dollars_per_hour == number(row["usd_per_hour"]));
    CHECK(chip.topology == row["topology"]);
    CHECK(!chip.source.empty());
  }
}

TEST_CASE("hardware: peak is 2 rows cols units clock") {
  for (const std::string& name : ts::chips()) {
    CAPTURE(name);
    const ts::Chip chip = ts::chip(name);
    if (name == "wse-3") {  // the dense peak is inferred from the vendor's sparse figure
      continue;
    }
    const double tolerance = chip.kind == "cpu" ? 0.005 : 0.004;  // generic CPUs are round figures
    CHECK(std::abs(chip.unit_peak() / (chip.flops_bf16 > 0 ? chip.flops_bf16 : chip.flops_int8) -
                   1) < tolerance);
  }
}

TEST_CASE("hardware: the two arrays for int8 alone") {
  const ts::Chip v1 = ts::chip("v1");
  CHECK(v1.name == "tpu-v1");
  CHECK(v1.flops_bf16 == 0);
  CHECK(v1.flops_int8 == 92e12);
  CHECK(v1.mxu_rows * v1.mxu_cols * v1.mxus == 65536);
  CHECK(v1.clock_hz == 7e8);
  CHECK(v1.memory_bytes == 8.0 * (1 << 30));
  CHECK(v1.memory_bandwidth == 34e9);
  CHECK(v1.sram_bytes == 24.0 * (1 << 20));
  CHECK(v1.accumulator_bytes == 4.0 * (1 << 20));
  CHECK(v1.fifo_tiles == 4);
  CHECK(v1.watts == 75);
  CHECK(v1.vector_flops == 256 * 7e8);
  CHECK(v1.energy.memory_byte == 162.5);
  CHECK(v1.energy.mac_int8 == 0);  // 28 nm: not in either table
  const ts::Chip gemmini = ts::chip("gemmini");
  CHECK(gemmini.flops_int8 == 2 * 256 * 1e9);
  CHECK(gemmini.sram_bytes == 256 * 1024);
  CHECK(gemmini.accumulator_bytes == 64 * 1024);
  CHECK(gemmini.fifo_tiles == 0);
  CHECK(gemmini.vector_flops == 16e9);
  const ts::Chip v4 = ts::chip("v4");
  CHECK(v4.energy.mac_bf16 == 0.59);
  CHECK(v4.energy.memory_byte == 43.75);
  // All of v4's arithmetic and memory at full rate stay under its mean power.
  CHECK(v4.flops_bf16 / 2 * v4.energy.mac_bf16 * 1e-12 == doctest::Approx(81.1).epsilon(0.01));
  CHECK(v4.memory_bandwidth * v4.energy.memory_byte * 1e-12 < 54);
}

TEST_CASE("hardware: names, aliases, formats") {
  CHECK(ts::chip("h100").name == "h100-sxm");
  CHECK(ts::chip("v5p").name == "tpu-v5p");
  CHECK(ts::chip("TPU v5e").name == "tpu-v5e");
  CHECK(ts::chip("H100").name == "h100-sxm");
  CHECK(ts::chip("A100-80GB").name == "a100-80");
  CHECK(ts::chip("GB200 NVL72").name == "gb200");
  CHECK(ts::chip("TPU7x").name == "tpu-v7");
  CHECK(ts::chip("TPU v5 lite").name == "tpu-v5e");
  CHECK(ts::chip("NVIDIA H100 80GB HBM3").name == "h100-sxm");
  for (const std::string& name : ts::chips()) {
    CHECK(ts::chip(name).name == name);
  }
  CHECK(error_of([] { ts::chip("v9"); }) ==
        "chip: no chip named \"v9\"; near it are v1, v2, v3, v4, v7; chips() has all");
  CHECK(error_of([] { ts::chip("tirllium"); }) ==
        "chip: no chip named \"tirllium\"; near it is trillium; chips() has all");
  CHECK(error_of([] { ts::chip("H100_SXM5"); }) ==
        "chip: no chip named \"H100_SXM5\"; near it are h100-sxm, h100; chips() has all");
  CHECK(error_of([] { ts::chip("abacus"); }) ==
        "chip: no chip named \"abacus\"; the names are tpu-v1, tpu-v2, tpu-v3, tpu-v4, tpu-v5e, "
        "tpu-v5p, tpu-v6e, tpu-v7, v100-32, a100-40, a100-80, h100-sxm, h100-pcie, h100-96, h800, "
        "h200, b200, gb200, gb300, mi300x, gemmini, wse-2, wse-3, laptop-x86, laptop-arm");
  const ts::Chip v5e = ts::chip("tpu-v5e");
  CHECK(v5e.peak(ts::DType::bf16) == 1.97e14);
  CHECK(v5e.peak(ts::DType::int8) == 3.93e14);
  CHECK(v5e.peak(ts::DType::fp8_e4m3) == 1.97e14);  // no fp8 unit: widened to bf16
  CHECK(v5e.peak(ts::DType::f32) == doctest::Approx(1.97e14 / 6));
  CHECK(ts::chip("tpu-v7").peak(ts::DType::int8) == 2.307e15);
  CHECK(v5e.intensity(ts::DType::bf16) == doctest::Approx(240.5).epsilon(0.001));
  CHECK(ts::chip("tpu-v5p").vector_flops == doctest::Approx(2 * 7.168e12));  // 7e12 a core
  CHECK(ts::chip("h100").vector_flops == 6.7e13);
  CHECK(ts::chip("wse-2").vector_flops == 0);
  ts::Chip mine;
  CHECK(error_of([&] { mine.peak(ts::DType::bf16); }) ==
        "Chip::peak: this chip has no rate for bf16; set flops_bf16 or flops_f32, or price "
        "it in another format");
  mine.flops_bf16 = 1e12;
  CHECK(error_of([&] { mine.intensity(ts::DType::bf16); }) ==
        "Chip::intensity: this chip has no memory_bandwidth; set it in bytes per second");
}

TEST_CASE("hardware: a dimension wraps by the rule of its chip") {
  const auto wraps = [](const char* chip, ts::Shape dims) {
    std::string text;
    for (const ts::Links& links : ts::machine(chip, dims).links) {
      text += links.kind == ts::AxisKind::ring ? '1' : '0';
    }
    return text;
  };
  CHECK(wraps("tpu-v5e", {4, 4}) == "00");
  CHECK(wraps("tpu-v5e", {8, 16}) == "01");
  CHECK(wraps("tpu-v5e", {16, 16}) == "11");
  CHECK(wraps("tpu-v6e", {16, 1}) == "10");
  CHECK(wraps("tpu-v4", {2, 2, 4}) == "000");
  CHECK(wraps("tpu-v4", {4, 4, 8}) == "111");
  CHECK(wraps("tpu-v4", {4, 4}) == "00");
  CHECK(wraps("tpu-v5p", {16, 20, 28}) == "111");
  CHECK(wraps("tpu-v3", {32, 16}) == "10");
  CHECK(wraps("h100", {4, 8}) == "00");
}

TEST_CASE("hardware: machines") {
  const ts::Machine pod = ts::machine("tpu-v5p", {16, 20, 28});
  CHECK(pod.name == "tpu-v5p 16x20x28");
  CHECK(pod.chips() == 8960);
  CHECK(pod.links[0].bandwidth.one_way() == 9e10);
  CHECK(pod.egress(2) == 1.8e11);
  CHECK(pod.links[0].latency == 1e-6);
  CHECK(pod.dollars_per_hour == 4.2);
  const ts::Machine line = ts::machine("tpu-v5e", {4, 2});
  CHECK(line.egress(0) == 4.5e10);  // a line: one way
  ts::Machine two = ts::machine("tpu-v5e", {2});
  two.links[0].kind = ts::AxisKind::ring;  // of two there is one link, as of a line
  CHECK(two.egress(0) == 4.5e10);
  const std::int64_t nodes = 4;
  const ts::Machine gpus = ts::machine("h100", {nodes, 8});
  CHECK(gpus.egress(1) == doctest::Approx(450e9));
  CHECK(gpus.egress(0) == doctest::Approx(50e9));
  CHECK(ts::machine("b200", {8}).egress(0) == doctest::Approx(900e9));
  CHECK(error_of([] {
          ts::machine("tpu-v5e", {4, 0});
        }) == "machine: tpu-v5e [4, 0]: every dimension needs at least one chip");
  CHECK(error_of([] { ts::machine("tpu-v5e", ts::Shape()); }) ==
        "machine: tpu-v5e with no dimensions; give the chips along each, as {4, 2}");
  CHECK(error_of([] {
          ts::machine("tpu-v5e", {16, 17});
        }) == "machine: tpu-v5e [16, 17] is 272 chips; a pod has 256");
  CHECK(error_of([] {
          ts::machine("tpu-v5e", {32, 8});
        }) ==
        "machine: tpu-v5e [32, 8] has no place in a pod of 16x16; at most 16 chips along "
        "each of two dimensions are right");
  CHECK(ts::machine("tpu-v3", {32, 8}).links[0].kind == ts::AxisKind::ring);
  CHECK(ts::machine("tpu-v5e", {256}).chips() == 256);  // a row through all of it
  CHECK(error_of([] {
          ts::machine("h100", {2, 16});
        }) ==
        "machine: h100-sxm [2, 16]: the last dimension is a switch domain of at most 8 GPUs; write "
        "{nodes, 8}");
  CHECK(error_of([&] { pod.egress(3); }) ==
        "Machine: dimension 3 of tpu-v5p 16x20x28; its dimensions are 0 to 2");
}

TEST_CASE("hardware: published pod figures come out of the table") {
  const auto pod = [](const char* name, const char* which) {
    const ts::Chip chip = ts::chip(name);
    return chip.domain_chips * chip.peak(ts::dtype(which));
  };
  CHECK(pod("tpu-v5e", "int8") == doctest::Approx(100e15).epsilon(0.01));
  CHECK(pod("tpu-v5e", "bf16") == doctest::Approx(50.63e15).epsilon(0.005));
  CHECK(pod("tpu-v6e", "bf16") == doctest::Approx(234.9e15).epsilon(0.001));
  CHECK(pod("tpu-v4", "bf16") == doctest::Approx(1.126e18).epsilon(0.001));
  CHECK(pod("tpu-v5p", "bf16") == doctest::Approx(4.11e18).epsilon(0.001));
  CHECK(pod("tpu-v7", "fp8_e4m3") == doctest::Approx(42.5e18).epsilon(0.001));
  CHECK(9216 * ts::chip("v7").memory_bytes == doctest::Approx(1.90e15).epsilon(0.001));
}

TEST_CASE("hardware: the roofline of one matmul") {
  ts::Profile profile;
  profile.record(matmul_record(8, 4096, 4096));
  profile.record(matmul_record(8, 4096, 4096));
  const ts::Chip v5e = ts::chip("tpu-v5e");
  const ts::RooflineReport report = profile.roofline(v5e, ts::DType::bf16);
  REQUIRE(report.rows.size() == 1);
  const ts::RooflineRow& row = report.rows[0];
  CHECK(row.count == 2);
  CHECK(row.matmul_flops == 2 * 268435456.0);
  CHECK(row.bytes == 2 * 2.0 * (8 * 4096 + 4096 * 4096 + 8 * 4096));
  CHECK(row.t_math == doctest::Approx(row.matmul_flops / 1.97e14));
  CHECK(row.t_memory == doctest::Approx(row.bytes / 8.19e11));
  CHECK(row.seconds == row.t_memory);
  CHECK(row.bound == "memory");
  CHECK(row.level == "HBM");
  CHECK(report.total.seconds == doctest::Approx(row.seconds));
  const ts::RooflineReport wide = profile.roofline(v5e);  // f32: twice the bytes
  CHECK(wide.rows[0].bytes == 2 * row.bytes);
  CHECK(report.json().find("\"T_mem (s)\"") != std::string::npos);
  CHECK(report.csv().find("T measured") == std::string::npos);
  std::ostringstream text;
  text << report;
  CHECK(text.str().find("Roofline of tpu-v5e, priced as bf16") == 0);
}

TEST_CASE("hardware: what bounds an op") {
  ts::Chip chip;
  chip.name = "toy";
  chip.flops_bf16 = 1000;
  chip.memory_bandwidth = 100;
  chip.vector_flops = 10;
  ts::OpRecord op = matmul_record(1, 1, 1);
  op.matmul_flops = 2000;
  CHECK(ts::roofline(op, chip, ts::DType::bf16).bound == "math");
  op.vector_flops = 50;
  CHECK(ts::roofline(op, chip, ts::DType::bf16).bound == "vector");
  CHECK(ts::roofline(op, chip, ts::DType::bf16).seconds == 5);
  chip.vector_flops = 0;  // not known: does not limit, and the report says so
  CHECK(ts::roofline(op, chip, ts::DType::bf16).bound == "math");
  CHECK(ts::roofline(std::vector<ts::OpRecord>{op}, chip, ts::DType::bf16).table().title ==
        "Roofline of toy, priced as bf16 (vector rate not known: it does not limit)");
  op.reads.push_back({1000, ts::DType::int32});  // token numbers keep their size
  CHECK(ts::roofline(op, chip, ts::DType::bf16).bytes == 3 * 2 + 4000);
  CHECK(ts::roofline(std::vector<ts::OpRecord>(), chip).total.bound == "nothing");
}

TEST_CASE("hardware: a matmul of stored low precision has the rate of what it reads") {
  ts::Chip chip;
  chip.name = "toy";
  chip.flops_f32 = 1000;
  chip.flops_bf16 = 4000;
  chip.flops_int8 = 8000;
  chip.memory_bandwidth = 1e9;
  ts::OpRecord op = matmul_record(1, 1, 1);
  op.matmul_flops = 8000;
  const auto t_math = [&](ts::DType x, ts::DType w, ts::DType format) {
    op.reads = {{1, x}, {1, w}, {1, ts::DType::f32}};  // a bias last
    return ts::roofline(op, chip, format).t_math;
  };
  CHECK(t_math(ts::DType::f32, ts::DType::f32, ts::DType::f32) == 8);
  CHECK(t_math(ts::DType::f32, ts::DType::f32, ts::DType::bf16) == 2);
  CHECK(t_math(ts::DType::bf16, ts::DType::bf16, ts::DType::f32) == 2);
  CHECK(t_math(ts::DType::int8, ts::DType::int8, ts::DType::f32) == 1);
  CHECK(t_math(ts::DType::bf16, ts::DType::int8, ts::DType::f32) == 2);
  CHECK(t_math(ts::DType::f32, ts::DType::int8, ts::DType::f32) == 8);  // widened to f32
}

TEST_CASE("hardware: operands go to the smallest level that holds them") {
  const ts::Chip cpu = ts::chip("laptop-x86");
  ts::OpRecord op;
  op.name = "add";
  op.reads = {{1e6, ts::DType::f32}};
  CHECK(ts::roofline(op, cpu).level == "L2");
  op.reads = {{4e6, ts::DType::f32}};
  CHECK(ts::roofline(op, cpu).level == "L3");
  op.reads = {{4e7, ts::DType::f32}};
  CHECK(ts::roofline(op, cpu).level == "DRAM");
  CHECK(ts::roofline(op, cpu).t_memory == doctest::Approx(1.6e8 / 9e10));
}

TEST_CASE("hardware: this laptop is a chip") {
  const ts::Chip laptop = ts::laptop();
  const ts::LaptopMeasurement& found = ts::laptop_measurement();
  CHECK(found.seconds < 10);  // below 2 s, but tests share their machine
  REQUIRE(laptop.levels.size() == 4);
  CHECK(laptop.flops_f32 > 1e8);
  CHECK(laptop.flops_bf16 >= laptop.flops_f32);
  CHECK(laptop.flops_int8 >= laptop.flops_f32);
  CHECK(laptop.vector_flops == laptop.flops_f32 / 2);
  CHECK(laptop.memory_bandwidth > 1e8);
  CHECK(laptop.core_flops_f32 == found.one.f32);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(laptop.levels[i].core_bandwidth == found.one.bandwidth[i]);
    CHECK(laptop.levels[i].bytes > (i == 0 ? 0 : laptop.levels[i - 1].bytes));
  }
  for (const ts::LaptopRates* rates : {&found.one, &found.all}) {  // a nearer level is no slower
    CHECK(rates->bandwidth[0] >= rates->bandwidth[1]);
    CHECK(rates->bandwidth[1] >= rates->bandwidth[2]);
    CHECK(rates->bandwidth[2] >= rates->bandwidth[3]);
  }
  CHECK(ts::laptop().flops_f32 == laptop.flops_f32);  // measured once
  ts::Profile profile;
  ts::OpRecord op = matmul_record(64, 64, 64);
  op.seconds = 1e-3;
  profile.record(op);
  const ts::RooflineReport report = profile.roofline(laptop);
  CHECK(report.rows[0].measured == 1e-3);
  CHECK(report.rows[0].of_roof() == doctest::Approx(report.rows[0].seconds / 1e-3));
  CHECK(report.rows[0].level == laptop.levels[report.rows[0].bytes > laptop.levels[0].bytes].name);
  CHECK(report.csv().find("T measured (s),of its roof (%)\n") != std::string::npos);
}

TEST_CASE("hardware: the laptop's loops run on the units that products run on") {
  const ts::detail::LaptopLoops loops = ts::detail::laptop_loops();
  const std::string bf16 = ts::detail::bf16_unit(ts::cpu(), ts::cpu().path);
  const std::string int8 = ts::detail::int8_unit(ts::cpu(), ts::cpu().path);
  CHECK((loops.bf16_flops == 4 * 2 * 16 * 16 * 32) == (bf16 == "amx"));
  CHECK((loops.int8_flops == 4 * 2 * 16 * 16 * 64) == (int8 == "amx"));
  CHECK((loops.bf16 == nullptr) == (loops.bf16_flops == 0));
  CHECK((loops.int8 == nullptr) == int8.empty());
}

TEST_CASE("hardware: the laptop has the rates of the threads in use") {
  const ts::LaptopMeasurement& found = ts::laptop_measurement();
  const ts::ThreadScope one(1);
  const ts::Chip core = ts::laptop();
  CHECK(core.cores == 1);
  CHECK(core.flops_f32 == found.one.f32);
  CHECK(core.memory_bandwidth == found.one.bandwidth[3]);
  CHECK(core.levels[0].bytes == found.core_bytes[0]);
  ts::Chip doubtful = core;
  std::ostringstream text;
  for (const char* const doubt : {"", "; by kernels that are too slow"}) {
    doubtful.doubt = doubt;
    text << doubtful << "\n";
  }
  CHECK(text.str().find("laptop, 1 thread\nwhat ") == 0);
  CHECK(text.str().find("\nlaptop, 1 thread; by kernels that are too slow\nwhat ") !=
        std::string::npos);
  CHECK(text.str().find("one thread") != std::string::npos);
}

TEST_CASE("hardware: the fraction of the roof stands beside what was measured") {
  ts::Chip chip;
  chip.name = "toy";
  chip.flops_f32 = 1000;
  chip.memory_bandwidth = 1e9;
  chip.measured = true;
  ts::OpRecord op = matmul_record(5, 10, 10);  // 1000 FLOPs: 1 s
  op.seconds = 4;
  std::vector<ts::OpRecord> ops{op, op, op};
  ops[2].seconds = 0;
  ops[2].name = "untimed";
  const ts::RooflineReport report = ts::roofline(ops, chip);
  REQUIRE(report.rows.size() == 2);
  CHECK(report.rows[0].of_roof() == 0.25);  // 2 s of 8 s
  CHECK(report.rows[1].of_roof() == 0);
  const std::string csv = report.table().csv();
  CHECK(csv.find(",8,25\n") != std::string::npos);
  CHECK(csv.find(",,\n") != std::string::npos);
}

TEST_CASE("hardware: a laptop that was measured without optimisation says so above its roofline") {
  ts::Chip chip;
  chip.name = "toy";
  chip.flops_f32 = chip.vector_flops = chip.memory_bandwidth = 1e9;
  chip.measured = true;
  const std::vector<ts::OpRecord> ops{matmul_record(1, 2, 3)};
  CHECK(ts::roofline(ops, chip).table().title == "Roofline of toy, priced as f32");
  chip.doubt = "; compiled without optimisation, so the rates are too low";
  CHECK(ts::roofline(ops, chip).table().title ==
        "Roofline of toy, priced as f32; compiled without optimisation, so the rates are too low");
}

TEST_CASE("hardware: counters of the processor stand beside the model's, or say why not") {
  ts::Chip chip;
  chip.name = "toy";
  chip.flops_f32 = 1000;
  chip.memory_bandwidth = 1e9;
  chip.measured = true;
  const auto printed = [&](ts::detail::PerfOpener open) {
    ts::Profile profile;
    profile.count_hardware(open);
    profile.record(matmul_record(1, 2, 3));
    std::ostringstream text;
    text << profile.roofline(chip);
    return text.str();
  };
  const auto refused = [&](ts::detail::PerfOpener open, const std::string& why) {
    const std::string text = printed(open);
    const std::string said = "hardware counters: not here: " + why + "\n";
    CHECK(text.find("Hardware counters, all threads") == std::string::npos);
    CHECK(text.find(said) == text.size() - said.size());
    CHECK(text.find("hardware counters") == text.rfind("hardware counters"));
  };
#if defined(TINYSCALE_PERF_EVENTS)
  refused([](int, int) { return -EACCES; }, "the system does not allow them (perf_event_paranoid)");
  refused([](int event, int) { return event < 2 ? dup(0) : -EPERM; },
          "the system does not allow them (perf_event_paranoid)");
  refused([](int, int) { return -ENOENT; }, "this processor, perhaps a virtual one, offers none");
  refused([](int, int) { return -ENOSYS; }, "Function not implemented");
  // Each event is a pipe that holds a count, the time that it was enabled and that it counted.
  static const auto event_pipe = [](int event, std::uint64_t enabled, std::uint64_t ran) {
    int ends[2];
    if (pipe(ends) != 0) {
      return -EMFILE;
    }
    const std::uint64_t count[] = {event == 0 ? 100U : event == 1 ? 250U : 3U, enabled, ran};
    const bool written = write(ends[1], count, sizeof(count)) == sizeof(count);
    close(ends[1]);
    return written ? ends[0] : -EIO;
  };
  const ts::detail::PerfOpener pipes = [](int event, int) { return event_pipe(event, 0, 0); };
  const ts::HardwareCounters counters(pipes);
  CHECK(counters.why() == "");
  const ts::HardwareCounts found = counters.read();
  const double threads = found.cycles / 100;
  CHECK(found.counted);
  CHECK(threads >= 1);
  CHECK(found.instructions == 250 * threads);
  CHECK(found.instructions_per_cycle() == 2.5);
  CHECK(found.memory_bytes() == 64 * 3 * threads);
  CHECK_FALSE(counters.read().counted);  // the pipes are empty now
  CHECK(printed(pipes).find("Hardware counters, all threads\nwhat ") != std::string::npos);
  ts::Profile counting;
  counting.count_hardware(pipes);
  CHECK(counting.roofline(chip).hardware_table().csv().find("a cycle,2.5,") != std::string::npos);
  // Events that took turns with others: misses were counted a quarter of the time, or never.
  static std::uint64_t turn;
  const ts::detail::PerfOpener turns = [](int event, int) {
    return event_pipe(event, 80, event == 2 ? turn : 80);
  };
  turn = 20;
  const ts::HardwareCounts shared = ts::HardwareCounters(turns).read();
  CHECK(shared.counted);
  CHECK(shared.share == 0.25);
  CHECK(shared.instructions_per_cycle() == 2.5);
  CHECK(shared.cache_misses == 4 * 3 * shared.cycles / 100);
  CHECK(printed(turns).find("Hardware counters, all threads, scaled from 25.0 % of the time\n") !=
        std::string::npos);
  turn = 0;
  CHECK_FALSE(ts::HardwareCounters(turns).read().counted);
  CHECK(printed(turns).find("Hardware counters") == std::string::npos);
  // A thread that goes between two of its events is left out.
  static std::atomic<int> opened;
  opened = 0;
  std::atomic<bool> over{false};
  std::thread second([&over] {
    while (!over) {
      std::this_thread::yield();
    }
  });
  const ts::HardwareCounters some(
      [](int event, int) { return opened++ == 1 ? -ESRCH : event_pipe(event, 5, 5); });
  over = true;
  second.join();
  const ts::HardwareCounts rest = some.read();
  CHECK(rest.counted);
  CHECK(rest.instructions_per_cycle() == 2.5);
  CHECK(rest.cache_misses == 3 * rest.cycles / 100);
  // All threads have gone: nothing is counted, and nothing is wrong.
  CHECK_FALSE(ts::HardwareCounters([](int, int) { return -ESRCH; }).read().counted);
#else
  refused([](int, int) { return -1; }, "they need Linux and a compiled program");
#endif
  const ts::HardwareCounters here;  // whatever this system says
  CHECK(here.read().counted == here.why().empty());
  ts::Profile profile;
  CHECK(profile.hardware() == nullptr);
  std::ostringstream text;
  text << profile.roofline(chip);
  CHECK(text.str().find("ardware counters") == std::string::npos);
}

TEST_CASE("hardware: a chip whose rates cannot be right prices nothing") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ts::OpRecord op = matmul_record(2, 2, 2);
  const auto priced = [&](const std::function<void(ts::Chip&)>& change) {
    ts::Chip chip = ts::chip("tpu-v5e");
    change(chip);
    return error_of([&] { ts::roofline(op, chip, ts::DType::bf16); });
  };
  CHECK(priced([&](ts::Chip& c) {
          c.memory_bandwidth = nan;
          c.levels = {};
        }) == "roofline: tpu-v5e: memory_bandwidth is nan; a finite number above 0 is right");
  CHECK(priced([](ts::Chip& c) {
          c.memory_bandwidth = -1;
          c.levels = {};
        }) == "roofline: tpu-v5e: memory_bandwidth is -1; a finite number above 0 is right");
  CHECK(priced([](ts::Chip& c) {
          c.memory_bandwidth = 0;
          c.levels = {};
        }) == "roofline: tpu-v5e: memory_bandwidth is 0; a finite number above 0 is right");
  CHECK(priced([&](ts::Chip& c) { c.vector_flops = nan; }) ==
        "roofline: tpu-v5e: vector_flops is nan; a finite number from 0 is right");
  CHECK(priced([&](ts::Chip& c) {
          c.levels = {{"L1", 1e9, nan}};
        }) ==
        "roofline: tpu-v5e: the bandwidth of level L1 is nan; a finite number from 0 is right");
  for (const double rate : {nan, -1.0, std::numeric_limits<double>::infinity()}) {
    CHECK(priced([&](ts::Chip& c) {
            c.flops_bf16 = rate;
            c.flops_f32 = rate;
          }).find("Chip::peak: tpu-v5e has no rate for bf16") == 0);
  }
}

TEST_CASE("a row of ops that are bound by different things takes what they take together") {
  const ts::Chip chip = ts::chip("tpu-v5e");
  ts::OpRecord memory, vector;
  memory.name = vector.name = "op";
  memory.shape = vector.shape = "[1]";
  memory.reads.push_back(ts::Operand{1e9});
  vector.vector_flops = 1e12;
  memory.count_bytes();
  vector.count_bytes();
  ts::List<ts::OpRecord> both;
  both.push_back(memory);
  both.push_back(vector);
  const ts::RooflineReport report = ts::roofline(both, chip);
  REQUIRE(report.rows.size() == 1);
  CHECK(report.rows[0].seconds == doctest::Approx(report.total.seconds));
}
