#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>

#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

const ts::Dataflow kDataflows[] = {ts::Dataflow::weight_stationary, ts::Dataflow::input_stationary,
                                   ts::Dataflow::output_stationary};
const ts::Schedule kSchedules[] = {ts::Schedule::serial, ts::Schedule::skewed,
                                   ts::Schedule::doubled};

// The reference: a dot product per tile of `rows`, the tiles added in order.
float dot(const ts::Tensor& x, const ts::Tensor& w, std::int64_t m, std::int64_t n,
          std::int64_t tile) {
  float y = 0;
  for (std::int64_t k0 = 0; k0 < x.dim(1); k0 += tile) {
    float sum = 0;
    for (std::int64_t k = k0; k < std::min(k0 + tile, x.dim(1)); ++k) {
      sum = std::fma(x.data()[m * x.dim(1) + k], w.data()[k * w.dim(1) + n], sum);
    }
    y = k0 == 0 ? sum : y + sum;
  }
  return y;
}

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

std::int64_t wrong_numbers(const ts::Tensor& x, const ts::Tensor& w, const ts::Tensor& y,
                           std::int64_t tile) {
  std::int64_t wrong = 0;
  for (std::int64_t m = 0; m < x.dim(0); ++m) {
    for (std::int64_t n = 0; n < w.dim(1); ++n) {
      wrong += same_bits(y.data()[m * w.dim(1) + n], dot(x, w, m, n, tile)) ? 0 : 1;
    }
  }
  return wrong;
}

void check_same(const ts::SystolicTiming& a, const ts::SystolicTiming& b) {
  CHECK(a.cycles == b.cycles);
  CHECK(a.macs == b.macs);
  CHECK(a.utilization == b.utilization);
  CHECK(a.mapping_efficiency == b.mapping_efficiency);
  CHECK(a.time_efficiency == b.time_efficiency);
  CHECK(a.sram_reads_input == b.sram_reads_input);
  CHECK(a.sram_reads_weight == b.sram_reads_weight);
  CHECK(a.sram_writes_output == b.sram_writes_output);
  CHECK(a.accumulator_reads == b.accumulator_reads);
  CHECK(a.accumulator_writes == b.accumulator_writes);
  CHECK(a.ledger == b.ledger);
  CHECK_FALSE(a.ledger != b.ledger);
}

void check_identities(const ts::SystolicTiming& t) {
  const std::int64_t pes = t.rows * t.cols;
  CHECK(t.ledger.total() == pes * t.cycles);
  CHECK(t.ledger.useful == t.m * t.k * t.n);
  CHECK(t.ledger.useful + t.ledger.padded == t.folds() * pes * t.stream);
  CHECK(t.ledger.weight_stall == 0);
  CHECK(std::min({t.ledger.padded, t.ledger.fill, t.ledger.drain, t.ledger.weight_shift}) >= 0);
  CHECK(t.utilization == doctest::Approx(t.mapping_efficiency * t.time_efficiency).epsilon(1e-12));
}

// All modes of one shape, stepped against the closed form and the scalar reference.
void check_shape(int rows, int cols, int m, int k, int n) {
  const ts::Tensor x = ts::randn({m, k}, 1);
  const ts::Tensor w = ts::randn({k, n}, 2);
  for (const ts::Dataflow dataflow : kDataflows) {
    const bool outputs = dataflow == ts::Dataflow::output_stationary;
    for (const ts::Schedule schedule : kSchedules) {
      for (const ts::Drain drain : {ts::Drain::shifted, ts::Drain::instant}) {
        const bool shifted = drain == ts::Drain::shifted;
        if (outputs ? schedule == ts::Schedule::skewed ||
                          (!shifted && schedule == ts::Schedule::doubled)
                    : !shifted) {
          continue;  // no such array
        }
        INFO(rows, " x ", cols, " PEs, M K N ", m, " ", k, " ", n, " ",
             std::string(ts::name_of(dataflow)), " ", std::string(ts::name_of(schedule)), " ",
             std::string(ts::name_of(drain)));
        ts::SystolicArray array(rows, cols, dataflow);
        array.schedule = schedule;
        array.drain = drain;
        const ts::SystolicRun run = array.matmul(x, w);
        check_same(run, array.timing(m, k, n));
        check_identities(run);
        CHECK(wrong_numbers(x, w, run.output, outputs ? k : rows) == 0);
      }
    }
  }
}

std::int64_t cycles(int size, ts::Dataflow dataflow, ts::Schedule schedule, ts::Drain drain,
                    const int (&mkn)[3]) {
  ts::SystolicArray array(size, size, dataflow);
  array.schedule = schedule;
  array.drain = drain;
  const ts::SystolicTiming t = array.timing(mkn[0], mkn[1], mkn[2]);
  check_identities(t);
  return t.cycles;
}

template <class Body>
std::string message(const Body& body) {
  try {
    body();
  } catch (const ts::Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("systolic: every tick and every counter of 400 shapes is the closed form's") {
  for (std::uint64_t i = 0; i < 400; ++i) {
    const auto pick = [i](std::uint64_t j, std::uint64_t n) {
      return 1 + static_cast<int>(ts::random_below(7, 8 * i + j, n));
    };
    check_shape(pick(0, 7), pick(1, 7), pick(2, 17), pick(3, 17), pick(4, 17));
  }
}

TEST_CASE("systolic: arrays wider than a vector and than a word of control bits") {
  check_shape(5, 70, 9, 11, 150);
  check_shape(3, 64, 4, 7, 128);
  check_shape(2, 129, 3, 5, 260);
  check_shape(1, 33, 1, 3, 100);
  check_shape(70, 2, 3, 75, 5);
  check_shape(1, 1, 3, 2, 4);
}

TEST_CASE("systolic: the table of ticks") {
  struct Row {
    int size;
    int mkn[3];
    std::int64_t serial, skewed, doubled, os_instant, os_serial, os_doubled;
  };
  const Row table[] = {
      {4, {4, 4, 4}, 14, 14, 14, 10, 14, 14},
      {4, {8, 8, 8}, 72, 63, 42, 56, 72, 42},
      {4, {5, 6, 7}, 60, 51, 30, 48, 64, 34},
      {4, {1, 16, 16}, 176, 131, 71, 88, 104, 74},
      {4, {16, 1, 16}, 104, 95, 74, 112, 176, 71},
      {8, {13, 17, 19}, 315, 259, 139, 186, 234, 124},
      {128, {512, 512, 512}, 14304, 12399, 8574, 12256, 14304, 8574},
      {128, {1024, 1024, 1024}, 89984, 81983, 65918, 81792, 89984, 65918},
      {128, {1, 1024, 1024}, 24512, 16511, 8447, 10224, 11248, 8574},
  };
  const ts::Dataflow ws = ts::Dataflow::weight_stationary;
  const ts::Dataflow os = ts::Dataflow::output_stationary;
  for (const Row& row : table) {
    const ts::Drain shifted = ts::Drain::shifted;
    CHECK(cycles(row.size, ws, ts::Schedule::serial, shifted, row.mkn) == row.serial);
    CHECK(cycles(row.size, ws, ts::Schedule::skewed, shifted, row.mkn) == row.skewed);
    CHECK(cycles(row.size, ws, ts::Schedule::doubled, shifted, row.mkn) == row.doubled);
    CHECK(cycles(row.size, os, ts::Schedule::serial, ts::Drain::instant, row.mkn) ==
          row.os_instant);
    CHECK(cycles(row.size, os, ts::Schedule::serial, shifted, row.mkn) == row.os_serial);
    CHECK(cycles(row.size, os, ts::Schedule::doubled, shifted, row.mkn) == row.os_doubled);
  }
}

TEST_CASE("systolic: a single fold's ceiling and the GEMV, as published") {
  const ts::SystolicArray array(128, 128, ts::Dataflow::weight_stationary);
  CHECK(array.timing(128, 128, 128).utilization == doctest::Approx(0.251).epsilon(0.002));
  CHECK(array.timing(512, 128, 128).utilization == doctest::Approx(0.573).epsilon(0.002));
  CHECK(array.timing(1, 1024, 1024).utilization == doctest::Approx(0.0076).epsilon(0.01));
}

TEST_CASE("systolic: 128 x 128 PEs, the same bits on every path of the CPU") {
  const ts::Tensor x = ts::randn({96, 160}, 3);
  const ts::Tensor w = ts::randn({160, 200}, 4);
  for (const ts::Dataflow dataflow : kDataflows) {
    const ts::SystolicArray array(128, 128, dataflow);
    const ts::SystolicRun run = array.matmul(x, w);
    check_same(run, array.timing(96, 160, 200));
    const bool outputs = dataflow == ts::Dataflow::output_stationary;
    CHECK(wrong_numbers(x, w, run.output, outputs ? 160 : 128) == 0);
  }
  const ts::Tensor a = ts::randn({9, 21}, 5);
  const ts::Tensor b = ts::randn({21, 40}, 6);
  for (const ts::Dataflow dataflow : kDataflows) {
    const ts::SystolicArray array(8, 20, dataflow);
    const std::vector<float> widest = array.matmul(a, b).output.values();
    const ts::detail::PathScope portable(ts::CpuPath::portable);
    const std::vector<float> plain = array.matmul(a, b).output.values();
    CHECK(std::memcmp(widest.data(), plain.data(), widest.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("systolic: leading dimensions of x are rows, an infinity stays in its row") {
  const ts::SystolicArray array(4, 4, ts::Dataflow::weight_stationary);
  ts::Tensor x = ts::randn({2, 3, 5}, 1);
  const ts::Tensor w = ts::randn({5, 6}, 2);
  const ts::SystolicRun run = array.matmul(x, w);
  CHECK(run.output.shape() == ts::Shape{2, 3, 6});
  CHECK(run.m == 6);
  x.data()[7] = INFINITY;  // row 1
  const ts::Tensor y = array.matmul(x, w).output;
  for (int i = 0; i < 36; ++i) {
    CHECK(std::isfinite(y.data()[i]) == (i / 6 != 1));
    CHECK((i / 6 == 1 || same_bits(y.data()[i], run.output.data()[i])));
  }
}

namespace {

// A row of the reference table, by column name.
struct Case {
  std::vector<std::string> names, cells;

  std::string text(const std::string& name) const {
    for (std::size_t i = 0; i < names.size() && i < cells.size(); ++i) {
      if (names[i] == name) {
        return cells[i];
      }
    }
    return "";
  }
  std::int64_t number(const std::string& name) const { return std::stoll(text(name)); }
  double real(const std::string& name) const { return std::stod(text(name)); }
};

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> cells(1);
  for (const char c : line) {
    if (c == '\t') {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  return cells;
}

// SCALE-Sim prints the index of the last cycle, and divides by it.
void check_scalesim(const Case& row) {
  const std::string flow = row.text("dataflow");
  const bool outputs = flow == "os";
  ts::SystolicArray array(row.number("R"), row.number("C"),
                          outputs        ? ts::Dataflow::output_stationary
                          : flow == "is" ? ts::Dataflow::input_stationary
                                         : ts::Dataflow::weight_stationary);
  array.schedule = ts::Schedule::serial;
  array.drain = outputs ? ts::Drain::instant : ts::Drain::shifted;
  const std::int64_t m = row.number("M"), k = row.number("K"), n = row.number("N");
  const ts::SystolicTiming t = array.timing(m, k, n);
  INFO("case ", row.text("id"));
  CHECK(t.cycles == row.number("total_ticks_true"));
  CHECK(t.cycles == row.number("cycles_reported") + 1);
  CHECK(std::abs(100 * t.mapping_efficiency - row.real("mapping_eff_pct")) < 1e-6);
  CHECK(100 * t.utilization * static_cast<double>(t.cycles) / row.real("cycles_reported") ==
        doctest::Approx(row.real("overall_util_pct")).epsilon(1e-5));
  CHECK(t.sram_reads_input == row.number("sram_if_reads"));
  CHECK(t.sram_reads_weight == row.number("sram_fl_reads"));
  CHECK(t.sram_writes_output == row.number("sram_of_writes_true"));
  array.drain = ts::Drain::shifted;
  CHECK(array.timing(m, k, n).cycles == row.number("ours_serial"));
  array.schedule = ts::Schedule::doubled;
  CHECK(array.timing(m, k, n).cycles == row.number("ours_dblbuf"));
}

}  // namespace

TEST_CASE("systolic: SCALE-Sim's runs with ideal memory") {
  const char* shared = std::getenv("TINYSCALE_SHARED");
  std::ifstream file(std::string(shared ? shared : "../shared") + "/cases/systolic-cases.tsv");
  if (!file) {
    std::cout << "systolic: skipped, no cases/systolic-cases.tsv\n";
    return;
  }
  Case row;
  int checked = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') {
      continue;
    }
    if (row.names.empty()) {
      row.names = split(line);
      continue;
    }
    row.cells = split(line);
    if (row.text("tool") == "scalesim-v3" && row.text("mode") == "CALC") {
      check_scalesim(row);
      ++checked;
    }
  }
  CHECK(checked > 150);
}

TEST_CASE("wavefront: the registers of every PE in every tick") {
  const ts::Tensor x = ts::randn({5, 7}, 1);
  const ts::Tensor w = ts::randn({7, 6}, 2);
  for (const ts::Dataflow dataflow : kDataflows) {
    for (const ts::Schedule schedule : kSchedules) {
      ts::SystolicArray array(4, 3, dataflow);
      array.schedule = schedule;
      if (dataflow == ts::Dataflow::output_stationary && schedule == ts::Schedule::skewed) {
        continue;
      }
      const ts::SystolicTiming t = array.timing(5, 7, 6);
      std::int64_t useful = 0, busy = 0, wrong = 0;
      for (std::int64_t tick = 0; tick < t.cycles; ++tick) {
        const ts::Wavefront picture = ts::wavefront(array, x, w, tick);
        busy += picture.busy();
        for (const ts::WavefrontCell& cell : picture.cells) {
          if (cell.state == '#') {
            const bool inputs = dataflow == ts::Dataflow::input_stationary;
            const float moving = inputs ? w.at({cell.k, cell.n}) : x.at({cell.m, cell.k});
            const float held = inputs ? x.at({cell.m, cell.k}) : w.at({cell.k, cell.n});
            wrong += cell.moving == moving && cell.held == held ? 0 : 1;
            ++useful;
          }
        }
      }
      CHECK(wrong == 0);
      CHECK(useful == 5 * 7 * 6);
      CHECK(busy == t.ledger.useful + t.ledger.padded);
    }
  }
}

// a(tau) = D(tau) - D(tau - T): the anti-diagonals that the wave has reached and not left.
TEST_CASE("wavefront: busy PEs of one fold follow the diagonals") {
  const int rows = 4, cols = 6, stream = 5;
  const ts::SystolicArray array(rows, cols, ts::Dataflow::weight_stationary);
  const ts::Tensor x = ts::randn({stream, rows}, 1);
  const ts::Tensor w = ts::randn({rows, cols}, 2);
  const auto reached = [](int tau) {
    int pes = 0;
    for (int d = 0; d <= std::min(tau, rows + cols - 2); ++d) {
      pes += std::min({d, rows - 1, cols - 1, rows + cols - 2 - d}) + 1;
    }
    return pes;
  };
  for (int tau = 0; tau < stream + rows + cols - 2; ++tau) {
    CHECK(ts::wavefront(array, x, w, rows + tau).busy() == reached(tau) - reached(tau - stream));
  }
}

TEST_CASE("wavefront: the picture") {
  const ts::Tensor x = ts::ones({3, 2});
  const ts::Tensor w = ts::ones({2, 1});
  const ts::SystolicArray array(2, 2, ts::Dataflow::weight_stationary);
  std::ostringstream out;
  out << ts::wavefront(array, x, w, 3);
  CHECK(out.str() ==
        "tick 3, weight_stationary: 3 of 4 PEs multiply\n"
        "x1,0 w0,0     padded\n"
        "x0,1 w1,0     fill\n");
  CHECK(ts::wavefront(array, x, w, 0).text() ==
        "tick 0, weight_stationary: 0 of 4 PEs multiply\n"
        "shift         fill\n"
        "shift         fill\n");
  const ts::SystolicArray wide(1, 8, ts::Dataflow::weight_stationary);
  CHECK(ts::wavefront(wide, x, w, 2).text() ==
        "tick 2, weight_stationary: 2 of 8 PEs multiply\n"
        "#ov>>>>>\n"
        "# useful  o padded  > fill  < drain  v weights shift in\n");
  CHECK(ts::wavefront(array, x, w, 3).table().rows.size() == 4);
}

TEST_CASE("systolic: the report") {
  const ts::SystolicArray array(4, 4, ts::Dataflow::weight_stationary);
  const ts::SystolicRun run = array.matmul(ts::randn({8, 8}, 1), ts::randn({8, 6}, 2));
  std::ostringstream out;
  out << run;
  CHECK(out.str().find("4 x 4 array, weight_stationary, doubled: x [8, 8] times w [8, 6], "
                       "2 x 2 folds\n") == 0);
  CHECK(run.csv().find("quantity,simulated,unit,% of PE-ticks\ncycles,42,ticks,\n") == 0);
  CHECK(run.csv().find("weight shift,64,PE-ticks,9.5238\n") != std::string::npos);
  CHECK(array.timing(8, 8, 6).csv().find("quantity,formula,unit,% of PE-ticks\n") == 0);
  CHECK(run.json().find("42") != std::string::npos);
}

TEST_CASE("systolic: errors say what was given and what would be right") {
  const ts::Dataflow ws = ts::Dataflow::weight_stationary;
  CHECK(message([] { ts::SystolicArray(0, 8, ts::Dataflow::weight_stationary); }) ==
        "SystolicArray: 0 rows and 8 columns were given; an array has at least 1 of each");
  ts::SystolicArray array(4, 4, ws);
  CHECK(message([&array] {
          array.matmul(ts::ones({4, 8}), ts::ones({6, 5}));
        }) ==
        "SystolicArray::matmul: inner sizes differ: x is [4, 8], w is [6, 5]; x columns must "
        "equal w rows");
  CHECK(message([&array] {
          array.matmul(ts::ones({4, 8}), ts::ones({8}));
        }) ==
        "SystolicArray::matmul: x is [4, 8], w is [8]; x needs at least one dimension and w "
        "exactly two");
  CHECK(message([&array] { array.timing(4, 0, 5); }) ==
        "SystolicArray::timing: M, K, N are 4, 0, 5; each must be at least 1");
  CHECK(message([&array] {
          ts::wavefront(array, ts::ones({4, 4}), ts::ones({4, 4}), 14);
        }) == "wavefront: tick 14 of a run that ends after 14 ticks; give one from 0 to 13");
  CHECK(message([&array] {
          ts::wavefront(array, ts::ones({4, 4}), ts::ones({4, 4}), -1);
        }) == "wavefront: tick -1; ticks count from 0");
  array.drain = ts::Drain::instant;
  CHECK(message([&array] { array.timing(4, 4, 4); }) ==
        "SystolicArray::timing: drain is instant, the array weight_stationary; instant is for "
        "output_stationary, here drain must be shifted");
}

TEST_CASE("systolic: counts that do not fit 64 bits and arrays that no memory holds are refused") {
  const std::int64_t n = std::int64_t{1} << 40;
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const auto thrown = [](const std::function<void()>& body) {
    try {
      body();
    } catch (const ts::Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const ts::SystolicArray array(128, 128);
  CHECK(thrown([&] { array.timing(n, n, n); }) ==
        "SystolicArray::timing: M, K, N are 1099511627776, 1099511627776, 1099511627776 on "
        "128 x 128 PEs; the PE-ticks must stay below 2^62");
  CHECK(thrown([&] { array.timing(most, most, most); }) != "no error");
  CHECK(thrown([&] { ts::SystolicArray(most, most).timing(1, 1, 1); }) != "no error");
  CHECK(array.timing(1 << 17, 1 << 17, 1 << 17).macs == std::int64_t{1} << 51);
  const ts::Tensor x = ts::ones({1, 1});
  CHECK(thrown([&] { ts::SystolicArray(n, 1).matmul(x, x); }).find("SystolicArray::matmul: M, K") ==
        0);
  CHECK(thrown([&] { ts::SystolicArray(1 << 14, 1 << 14).matmul(x, x); }) ==
        "SystolicArray::matmul: the array is 16384 x 16384; at most 2^26 PEs can be stepped, "
        "timing() takes larger ones");
}
