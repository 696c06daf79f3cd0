#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>

#include "kernel_tests.hpp"
#include "long_tests.hpp"
#include "systolic_reference.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;
using kernel_tests::paths;

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

// The fields that differ, by name.
std::string differences(const ts::SystolicTiming& a, const ts::SystolicTiming& b) {
  std::string names;
  const auto compare = [&names](const char* name, bool same) {
    names += same ? std::string() : std::string(name) + " ";
  };
  compare("cycles", a.cycles == b.cycles);
  compare("macs", a.macs == b.macs);
  compare("utilization", a.utilization == b.utilization);
  compare("mapping_efficiency", a.mapping_efficiency == b.mapping_efficiency);
  compare("time_efficiency", a.time_efficiency == b.time_efficiency);
  compare("sram_reads_input", a.sram_reads_input == b.sram_reads_input);
  compare("sram_reads_weight", a.sram_reads_weight == b.sram_reads_weight);
  compare("sram_writes_output", a.sram_writes_output == b.sram_writes_output);
  compare("accumulator_reads", a.accumulator_reads == b.accumulator_reads);
  compare("accumulator_writes", a.accumulator_writes == b.accumulator_writes);
  compare("useful", a.ledger.useful == b.ledger.useful);
  compare("padded", a.ledger.padded == b.ledger.padded);
  compare("fill", a.ledger.fill == b.ledger.fill);
  compare("drain", a.ledger.drain == b.ledger.drain);
  compare("weight_shift", a.ledger.weight_shift == b.ledger.weight_shift);
  compare("ledger", !(a.ledger != b.ledger));
  return names;
}

void check_same(const ts::SystolicTiming& a, const ts::SystolicTiming& b) {
  CHECK(differences(a, b) == "");
}

bool is_legal(ts::Dataflow dataflow, ts::Schedule schedule, ts::Drain drain) {
  const bool shifted = drain == ts::Drain::shifted;
  return dataflow == ts::Dataflow::output_stationary
             ? schedule == ts::Schedule::serial || (shifted && schedule == ts::Schedule::doubled)
             : shifted;
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
        if (!is_legal(dataflow, schedule, drain)) {
          continue;
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

namespace {

// The plain array for a case; inputs stationary is the transposed product.
reference::PlainArray plain_array(const ts::SystolicArray& array, const ts::Tensor& x,
                                  const ts::Tensor& w) {
  const bool inputs = array.dataflow() == ts::Dataflow::input_stationary;
  const ts::Tensor stream = inputs ? ts::transpose(w, 0, 1).clone() : x;
  const ts::Tensor tile = inputs ? ts::transpose(x, 0, 1).clone() : w;
  reference::PlainArray plain;
  plain.rows = array.rows();
  plain.cols = array.cols();
  plain.m = stream.dim(0);
  plain.k = stream.dim(1);
  plain.n = tile.dim(1);
  plain.schedule = array.schedule;
  plain.outputs = array.dataflow() == ts::Dataflow::output_stationary;
  plain.instant = array.drain == ts::Drain::instant;
  plain.tight = array.tight;
  plain.own = {stream, tile};
  plain.x = plain.own[0].data();
  plain.w = plain.own[1].data();
  return plain;
}

// The fields in which stepped, closed form and plain array differ, for one mode and shape.
std::string disagreement(const ts::SystolicArray& array, const ts::Tensor& x, const ts::Tensor& w) {
  const std::int64_t m = x.dim(0), n = w.dim(1);
  const ts::SystolicRun run = array.matmul(x, w);
  std::string names = differences(run, array.timing(m, x.dim(1), n));
  reference::PlainArray plain = plain_array(array, x, w);
  plain.run();
  const bool inputs = array.dataflow() == ts::Dataflow::input_stationary;
  names += plain.ticks == run.cycles ? "" : "ticks ";
  names += plain.ledger == run.ledger ? "" : "plain ledger ";
  names += run.ledger.total() == array.rows() * array.cols() * run.cycles ? "" : "ledger's sum ";
  for (std::int64_t i = 0; i < m * n; ++i) {
    const std::int64_t at = inputs ? i % n * m + i / n : i;
    if (!same_bits(run.output.data()[i], plain.out[static_cast<std::size_t>(at)])) {
      return names + "product";
    }
  }
  return names;
}

// Every legal mode, padded and tight; returns how many agreed.
int modes_that_agree(int rows, int cols, const ts::Tensor& x, const ts::Tensor& w) {
  int agreed = 0;
  for (const ts::Dataflow dataflow : kDataflows) {
    for (const ts::Schedule schedule : kSchedules) {
      for (const ts::Drain drain : {ts::Drain::shifted, ts::Drain::instant}) {
        for (int tight = 0; tight < 2 && is_legal(dataflow, schedule, drain); ++tight) {
          ts::SystolicArray array(rows, cols, dataflow);
          array.schedule = schedule;
          array.drain = drain;
          array.tight = tight == 1;
          const std::string names = disagreement(array, x, w);
          agreed += names.empty() ? 1 : 0;
          if (!names.empty()) {
            FAIL_CHECK(rows, " x ", cols, " PEs, M K N ", x.dim(0), " ", x.dim(1), " ", w.dim(1),
                       " ", std::string(ts::name_of(dataflow)), " ",
                       std::string(ts::name_of(schedule)), " ", std::string(ts::name_of(drain)),
                       " tight ", tight, ": ", names);
          }
        }
      }
    }
  }
  return agreed;
}

int random_cases(std::uint64_t seed, int count, int most_pes, int most_size) {
  int agreed = 0;
  for (int i = 0; i < count; ++i) {
    const auto pick = [seed, i](std::uint64_t j, int most) {
      return 1 + static_cast<int>(ts::random_below(seed, 8 * static_cast<std::uint64_t>(i) + j,
                                                   static_cast<std::uint64_t>(most)));
    };
    const int m = pick(2, most_size), k = pick(3, most_size), n = pick(4, most_size);
    agreed += modes_that_agree(pick(0, most_pes), pick(1, most_pes), ts::randn({m, k}, 1),
                               ts::randn({k, n}, 2));
  }
  return agreed;
}

}  // namespace

TEST_CASE("systolic: stepped, closed form and the plain array agree in 18 modes") {
  CHECK(random_cases(1, 60, 6, 17) == 60 * 18);
  CHECK(random_cases(2, 2, 20, 90) == 2 * 18);
}

TEST_CASE("systolic: and so they do for 1,000 shapes, in the long tests 10,000 [slow]") {
  const int shapes = long_tests() ? 10000 : 1000;
  CHECK(random_cases(3, shapes, 6, 11) == shapes * 18);
}

namespace {

// The two-line references: k in order within a tile, tiles (and passes) added in order.
float product_in(const ts::SystolicArray& array, const ts::Tensor& x, const ts::Tensor& w,
                 std::int64_t m, std::int64_t n) {
  const bool outputs = array.dataflow() == ts::Dataflow::output_stationary;
  const bool inputs = array.dataflow() == ts::Dataflow::input_stationary;
  const std::int64_t k_all = x.dim(1), tile = outputs ? k_all : array.rows();
  const auto piece = [&array](float v, int index) {  // the index-th bf16 of what is left
    float part = ts::round_to(v, array.format);
    for (int i = 0; i < index; ++i) {
      v -= part;
      part = ts::round_to(v, array.format);
    }
    return part;
  };
  static const int streams[] = {2, 1, 0, 1, 0, 0}, tiles[] = {0, 1, 2, 0, 1, 0};
  float y = 0, s = 0;
  for (std::int64_t k0 = 0; k0 < k_all; k0 += tile) {
    for (int pass = 6 - array.passes; pass < 6; ++pass) {
      s = outputs ? s : 0;
      for (std::int64_t k = k0; k < std::min(k0 + tile, k_all); ++k) {
        const int of_x = inputs ? tiles[pass] : streams[pass];
        const int of_w = inputs ? streams[pass] : tiles[pass];
        s = std::fma(piece(x.at({m, k}), of_x), piece(w.at({k, n}), of_w), s);
      }
      const bool first = k0 == 0 && pass == 6 - array.passes;
      y = first || outputs ? s : y + s;
    }
  }
  return y;
}

std::int64_t wrong_in(const ts::SystolicArray& array, const ts::Tensor& x, const ts::Tensor& w) {
  const ts::SystolicRun run = array.matmul(x, w);
  std::int64_t wrong = differences(run, array.timing(x.dim(0), x.dim(1), w.dim(1))).empty() ? 0 : 1;
  for (std::int64_t m = 0; m < x.dim(0); ++m) {
    for (std::int64_t n = 0; n < w.dim(1); ++n) {
      wrong += same_bits(run.output.at({m, n}), product_in(array, x, w, m, n)) ? 0 : 1;
    }
  }
  return wrong;
}

ts::Tensor whole_numbers(const ts::Shape& shape, std::uint64_t seed) {
  ts::Tensor t = ts::zeros(shape);
  for (std::int64_t i = 0; i < t.count(); ++i) {
    t.data()[i] =
        static_cast<float>(ts::random_below(seed, static_cast<std::uint64_t>(i), 256)) - 128.0f;
  }
  return t;
}

}  // namespace

TEST_CASE("systolic: every format, the bits of its scalar reference on every path") {
  const ts::Tensor x = ts::randn({19, 41}, 1), w = ts::randn({41, 37}, 2);
  struct Numerics {
    ts::DType format;
    int passes;
  };
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    for (const Numerics& n : {Numerics{ts::DType::f32, 1}, Numerics{ts::DType::bf16, 1},
                              Numerics{ts::DType::bf16, 3}, Numerics{ts::DType::bf16, 6},
                              Numerics{ts::DType::fp8_e4m3, 1}, Numerics{ts::DType::fp8_e5m2, 1}}) {
      for (const ts::Dataflow dataflow : kDataflows) {
        for (const ts::Schedule schedule : {ts::Schedule::serial, ts::Schedule::doubled}) {
          ts::SystolicArray array(12, 9, dataflow);
          array.schedule = schedule;
          array.format = n.format;
          array.passes = n.passes;
          INFO(std::string(ts::name_of(n.format)), " ", n.passes, " ",
               std::string(ts::name_of(dataflow)), " ", std::string(ts::name_of(schedule)));
          CHECK(wrong_in(array, x, w) == 0);
        }
      }
    }
  }
}

TEST_CASE("systolic: int8 sums are exact in int32, beyond what a float holds") {
  const std::int64_t m = 7, k = 2100, n = 11;
  const ts::Tensor x = whole_numbers({m, k}, 1), w = whole_numbers({k, n}, 2);
  const ts::Tensor most = ts::full({1, 131071}, -128.0f), column = ts::full({131071, 1}, -128.0f);
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    for (const ts::Dataflow dataflow : kDataflows) {
      ts::SystolicArray array(16, 5, dataflow);
      array.format = ts::DType::int8;
      const ts::SystolicRun run = array.matmul(x, w);
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < m * n; ++i) {
        std::int64_t sum = 0;
        for (std::int64_t j = 0; j < k; ++j) {
          sum += static_cast<std::int64_t>(x.data()[i / n * k + j]) *
                 static_cast<std::int64_t>(w.data()[j * n + i % n]);
        }
        wrong += run.sums[static_cast<std::size_t>(i)] == sum ? 0 : 1;
        wrong += run.output.data()[i] == static_cast<float>(sum) ? 0 : 1;
      }
      CHECK(wrong == 0);
      check_same(run, array.timing(m, k, n));
      CHECK(ts::SystolicArray(16, 5, dataflow).matmul(x, w).sums.empty());
    }
    ts::SystolicArray column_of_pes(64, 1);
    column_of_pes.format = ts::DType::int8;
    CHECK(column_of_pes.matmul(most, column).sums[0] == 2147467264);  // 2^14 x 131071
  }
}

TEST_CASE("systolic: more bf16 passes come nearer to the f32 product") {
  const ts::Tensor x = ts::randn({16, 64}, 1), w = ts::randn({64, 16}, 2);
  double error[3] = {};
  const int passes[] = {1, 3, 6};
  for (int i = 0; i < 3; ++i) {
    ts::SystolicArray array(16, 16);
    array.format = ts::DType::bf16;
    array.passes = passes[i];
    const ts::SystolicRun run = array.matmul(x, w);
    CHECK(run.stream == 16 * passes[i]);
    for (std::int64_t at = 0; at < 256; ++at) {
      double sum = 0;
      for (std::int64_t k = 0; k < 64; ++k) {
        sum += double{x.data()[at / 16 * 64 + k]} * double{w.data()[k * 16 + at % 16]};
      }
      error[i] = std::max(error[i], std::abs(sum - double{run.output.data()[at]}));
    }
  }
  CHECK(error[0] < 64 * 0x1p-8);   // a product of two bf16 is off by at most 2^-8
  CHECK(error[1] < 64 * 0x1p-15);  // what b2 b2 and smaller leave out
  CHECK(error[2] < 64 * 0x1p-21);
  CHECK(error[1] < error[0] / 64);
  CHECK(error[2] < error[1] / 8);
}

TEST_CASE("systolic: large runs on several threads count and compute as on one") {
  const ts::Tensor x = ts::randn({200, 96}, 1), w = ts::randn({96, 300}, 2);
  for (const ts::Dataflow dataflow : kDataflows) {
    for (const ts::Schedule schedule : {ts::Schedule::serial, ts::Schedule::doubled}) {
      ts::SystolicArray array(16, 16, dataflow);
      array.schedule = schedule;
      const ts::SystolicRun run = array.matmul(x, w);
      check_same(run, array.timing(200, 96, 300));
      const bool outputs = dataflow == ts::Dataflow::output_stationary;
      CHECK(wrong_numbers(x, w, run.output, outputs ? 96 : 16) == 0);
    }
  }
}

TEST_CASE("systolic: tight, the last tile may be done before the one on another thread") {
  const ts::Tensor x = ts::randn({64, 64}, 1), w = ts::randn({64, 701}, 2);
  for (const bool outputs : {false, true}) {
    for (const ts::Drain drain : {ts::Drain::shifted, ts::Drain::instant}) {
      ts::SystolicArray array(
          64, 700, outputs ? ts::Dataflow::output_stationary : ts::Dataflow::weight_stationary);
      array.schedule = drain == ts::Drain::instant ? ts::Schedule::serial : ts::Schedule::doubled;
      array.drain = drain;
      array.tight = true;
      if (is_legal(array.dataflow(), array.schedule, drain)) {
        check_same(array.matmul(x, w), array.timing(64, 64, 701));
      }
    }
  }
}

TEST_CASE("systolic: a sum that underflows to -0 passes padding unchanged") {
  const ts::Tensor x = ts::full({2, 3}, -1e-30f), w = ts::full({3, 2}, 1e-30f);
  for (const ts::Dataflow dataflow : kDataflows) {
    for (const ts::DType format : {ts::DType::f32, ts::DType::bf16}) {
      ts::SystolicArray array(5, 5, dataflow);
      array.format = format;
      for (const float y : array.matmul(x, w).output.values()) {
        CHECK(same_bits(y, -0.0f));
      }
    }
  }
}

TEST_CASE("systolic: placed folds, what the first operands cost is no fill") {
  for (const ts::Schedule schedule : {ts::Schedule::serial, ts::Schedule::doubled}) {
    ts::SystolicArray array(3, 4, ts::Dataflow::output_stationary);
    array.schedule = schedule;
    const ts::SystolicTiming t = array.problem("test", 3, 5, 4);
    ts::List<ts::detail::Fold> folds(1);
    folds[0].length = 5;
    ts::detail::place_fold(t, nullptr, {0, 10}, folds[0]);
    const ts::Tensor x = ts::ones({3, 5}), w = ts::ones({5, 4});
    ts::Tensor y = ts::zeros({3, 4});
    const ts::SystolicTiming run =
        ts::detail::step_folds(t, &folds, 1, ts::detail::matrix_view(x.data(), 3, 5),
                               ts::detail::matrix_view(w.data(), 5, 4), y.data(), "test");
    check_same(run, ts::detail::time_folds(t, folds, 1));
    CHECK(run.ledger.dma_stall == 12 * 10);
    CHECK(run.ledger.fill == array.timing(3, 5, 4).ledger.fill);
  }
}

TEST_CASE("systolic: not a number stays in its row, padding never meets it") {
  ts::Tensor x = ts::randn({6, 5}, 1);
  const ts::Tensor w = ts::randn({5, 6}, 2);
  for (const float poison : {INFINITY, -INFINITY, std::nanf("")}) {
    x.data()[2 * 5 + 4] = poison;
    for (const ts::Dataflow dataflow : kDataflows) {
      for (const ts::DType format : {ts::DType::f32, ts::DType::bf16, ts::DType::fp8_e5m2}) {
        ts::SystolicArray array(4, 4, dataflow);
        array.format = format;
        array.passes = format == ts::DType::bf16 ? 3 : 1;
        const ts::Tensor y = array.matmul(x, w).output;
        for (int i = 0; i < 36; ++i) {
          CHECK(std::isfinite(y.data()[i]) == (i / 6 != 2));
        }
      }
    }
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

// Where SCALE-Sim's traces begin and end: its reads count from 1, its writes from 0. With instant
// drain it writes the rows of a tile in reversed order, so there only the last write is compared.
void check_trace(const Case& row, const ts::SystolicArray& array) {
  const std::int64_t m = row.number("M"), k = row.number("K"), n = row.number("N");
  const ts::SramTrace trace = ts::sram_trace(array, ts::ones({m, k}), ts::ones({k, n}));
  CHECK(static_cast<std::int64_t>(trace.input.size()) == row.number("sram_if_reads"));
  CHECK(static_cast<std::int64_t>(trace.weight.size()) == row.number("sram_fl_reads"));
  CHECK(static_cast<std::int64_t>(trace.output.size()) == row.number("sram_of_writes_true"));
  CHECK(trace.input[0].tick == row.number("sram_if_start") - 1);
  CHECK(trace.input.back().tick == row.number("sram_if_stop") - 1);
  CHECK(trace.weight[0].tick == row.number("sram_fl_start") - 1);
  CHECK(trace.weight.back().tick == row.number("sram_fl_stop") - 1);
  if (array.dataflow() != ts::Dataflow::output_stationary) {
    CHECK(trace.output[0].tick == row.number("sram_of_start"));
    CHECK(trace.output.back().tick == row.number("sram_of_stop"));
  }
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
  if (t.ledger.total() < 5000000) {
    const ts::SystolicRun run = array.matmul(ts::ones({m, k}), ts::ones({k, n}));
    CHECK(differences(run, t) == "");
    check_trace(row, array);
  }
  array.drain = ts::Drain::shifted;
  CHECK(array.timing(m, k, n).cycles == row.number("ours_serial"));
  array.schedule = ts::Schedule::doubled;
  CHECK(array.timing(m, k, n).cycles == row.number("ours_dblbuf"));
}

// STONNE adds 5 ticks to an output-stationary tile, 4 when it is one row or one column.
void check_stonne(const Case& row) {
  const std::int64_t m = row.number("M"), k = row.number("K"), n = row.number("N");
  const std::int64_t rows = row.number("R"), cols = row.number("C");
  ts::SystolicArray array(rows, cols, ts::Dataflow::output_stationary);
  array.schedule = ts::Schedule::serial;
  array.drain = ts::Drain::instant;
  array.tight = true;
  std::int64_t ticks = 0;
  for (std::int64_t i = 0; i < m; i += rows) {
    for (std::int64_t j = 0; j < n; j += cols) {
      const std::int64_t ru = std::min(rows, m - i), cu = std::min(cols, n - j);
      ticks += array.timing(ru, k, cu).cycles + (ru == 1 || cu == 1 ? 4 : 5);
      CHECK(array.matmul(ts::ones({ru, k}), ts::ones({k, cu})).cycles ==
            array.timing(ru, k, cu).cycles);
    }
  }
  INFO("case ", row.text("id"));
  CHECK(ticks == row.number("cycles_reported"));
}

}  // namespace

TEST_CASE("systolic: SCALE-Sim's runs with ideal memory, and STONNE's") {
  const char* shared = std::getenv("TINYSCALE_SHARED");
  std::ifstream file(std::string(shared ? shared : "../shared") + "/cases/systolic-cases.tsv");
  if (!file) {
    std::cout << "systolic: skipped, no cases/systolic-cases.tsv\n";
    return;
  }
  Case row;
  int checked = 0, stonne = 0;
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
    if (row.text("tool") == "stonne") {
      check_stonne(row);
      ++stonne;
    }
  }
  CHECK(checked == 167);
  CHECK(stonne == 11);
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

// Every register of every PE after every tick, against those that the plain array moves by hand.
TEST_CASE("wavefront: the plain array holds the same words") {
  const ts::Tensor x = ts::randn({5, 9}, 1), w = ts::randn({9, 7}, 2);
  for (const bool outputs : {false, true}) {
    for (const ts::Schedule schedule : kSchedules) {
      ts::SystolicArray array(
          4, 3, outputs ? ts::Dataflow::output_stationary : ts::Dataflow::weight_stationary);
      array.schedule = schedule;
      if (!is_legal(array.dataflow(), schedule, array.drain)) {
        continue;
      }
      reference::PlainArray plain = plain_array(array, x, w);
      plain.start_run();
      std::int64_t wrong = 0;
      while (plain.due > 0) {
        const ts::Wavefront picture = ts::wavefront(array, x, w, plain.ticks);
        plain.tick();
        ++plain.ticks;
        for (std::size_t i = 0; i < picture.cells.size(); ++i) {
          const ts::WavefrontCell& cell = picture.cells[i];
          const reference::Pe& pe = plain.pes[i];
          const bool busy = cell.state == '#' || cell.state == 'o';
          wrong += busy == (pe.slot >= 0) ? 0 : 1;
          wrong += !busy || (cell.moving == pe.moving && cell.held == pe.held) ? 0 : 1;
          wrong += !busy || same_bits(cell.sum, pe.sum) ? 0 : 1;
          wrong += outputs || same_bits(cell.next, pe.next) ? 0 : 1;
        }
      }
      INFO("outputs ", outputs, " ", std::string(ts::name_of(schedule)));
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("active_pes: counted and by the diagonals, in every mode") {
  const ts::Tensor x = ts::randn({11, 9}, 1), w = ts::randn({9, 14}, 2);
  for (const ts::Dataflow dataflow : kDataflows) {
    for (const ts::Schedule schedule : kSchedules) {
      ts::SystolicArray array(4, 6, dataflow);
      array.schedule = schedule;
      for (int tight = 0; tight < 2 && is_legal(dataflow, schedule, array.drain); ++tight) {
        array.tight = tight == 1;
        const ts::ActivePes active = ts::active_pes(array, x, w);
        const ts::SystolicTiming t = array.timing(11, 9, 14);
        CHECK(active.simulated == active.formula);
        std::int64_t sum = 0;
        for (const std::int64_t pes : active.simulated) {
          sum += pes;
        }
        CHECK(sum == t.ledger.useful + t.ledger.padded);
        CHECK(static_cast<std::int64_t>(active.simulated.size()) == t.cycles);
      }
    }
  }
}

TEST_CASE("sram_trace: three files, ticks from 0, the words in their places") {
  const ts::SystolicArray array(2, 2);
  const ts::SramTrace trace = ts::sram_trace(array, ts::ones({2, 3}), ts::ones({3, 2}));
  CHECK(trace.csv_input() == "tick,port 0,port 1\n2,0,\n3,3,1\n4,2,4\n5,5,\n");
  CHECK(trace.csv_weight() ==
        "tick,port 0,port 1\n0,10000002,\n1,10000000,10000003\n2,,10000001\n3,10000004,\n"
        "4,,10000005\n");
  CHECK(trace.csv_output() ==
        "tick,port 0,port 1\n3,20000000,\n4,20000002,20000001\n5,20000000,20000003\n"
        "6,20000002,20000001\n7,,20000003\n");
  const ts::SystolicArray inputs(2, 2, ts::Dataflow::input_stationary);
  const ts::SramTrace turned = ts::sram_trace(inputs, ts::ones({2, 3}), ts::ones({3, 2}));
  CHECK(turned.csv_input() == "tick,port 0,port 1\n0,1,\n1,0,4\n2,,3\n3,2,\n4,,5\n");
  CHECK(turned.csv_weight() ==
        "tick,port 0,port 1\n2,10000000,\n3,10000001,10000002\n4,10000004,10000003\n"
        "5,10000005,\n");
}

namespace {

using Access = std::array<std::int64_t, 3>;  // tick, port, word

std::vector<Access> accesses_of(const ts::List<ts::SramAccess>& trace) {
  std::vector<Access> all;
  for (const ts::SramAccess& access : trace) {
    all.push_back({access.tick, access.port, access.word});
  }
  return all;
}

// Where every word must be seen, fold by fold: stream, tile and output of x [M, K] times w [K, N].
std::array<std::vector<Access>, 3> expected_trace(const ts::SystolicTiming& t) {
  std::array<std::vector<Access>, 3> all;
  const bool outputs = t.dataflow == ts::Dataflow::output_stationary;
  const bool instant = t.drain == ts::Drain::instant;
  const std::int64_t late = t.schedule == ts::Schedule::serial ? 0 : 1;
  for (std::int64_t i = 0; i < t.folds(); ++i) {
    const ts::detail::Fold f = ts::detail::nth_fold(t, i);
    const std::int64_t rows = ts::detail::fold_rows(t, f), cols = ts::detail::fold_cols(t, f, 1);
    for (std::int64_t slot = 0; slot < t.stream; ++slot) {
      for (std::int64_t r = 0; r < rows; ++r) {
        all[0].push_back(
            {f.stream + slot + r, r, outputs ? (f.m0 + r) * t.k + slot : slot * t.k + f.k0 + r});
      }
      for (std::int64_t c = 0; c < cols; ++c) {
        outputs ? all[1].push_back({f.stream + slot + c, c, slot * t.n + f.n0 + c})
                : all[2].push_back({f.stream + slot + t.rows - 1 + c, c, slot * t.n + f.n0 + c});
      }
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        if (outputs) {
          all[2].push_back({f.drain + c + (instant ? r - 1 : 2 * t.rows - 2 - r),
                            instant ? r * t.cols + c : c, (f.m0 + r) * t.n + f.n0 + c});
        } else {
          all[1].push_back({f.load + t.rows - 1 - r + late * c, c, (f.k0 + r) * t.n + f.n0 + c});
        }
      }
    }
  }
  for (std::vector<Access>& accesses : all) {
    std::sort(accesses.begin(), accesses.end());
  }
  return all;
}

}  // namespace

TEST_CASE("sram_trace: every word in its tick and port, weights and outputs stationary") {
  for (const ts::Dataflow dataflow :
       {ts::Dataflow::weight_stationary, ts::Dataflow::output_stationary}) {
    for (const ts::Schedule schedule : kSchedules) {
      for (const ts::Drain drain : {ts::Drain::shifted, ts::Drain::instant}) {
        if (!is_legal(dataflow, schedule, drain)) {
          continue;
        }
        ts::SystolicArray array(4, 3, dataflow);
        array.schedule = schedule;
        array.drain = drain;
        const ts::SramTrace trace = ts::sram_trace(array, ts::ones({9, 7}), ts::ones({7, 8}));
        const auto expected = expected_trace(array.timing(9, 7, 8));
        CHECK(accesses_of(trace.input) == expected[0]);
        CHECK(accesses_of(trace.weight) == expected[1]);
        CHECK(accesses_of(trace.output) == expected[2]);
      }
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
  CHECK(out.str().find("4 x 4 array, weight_stationary, doubled, f32: x [8, 8] times w [8, 6], "
                       "2 x 2 folds\n") == 0);
  CHECK(run.csv().find("quantity,simulated,unit,% of PE-ticks\ncycles,42,ticks,\n") == 0);
  CHECK(run.csv().find("weight shift,64,PE-ticks,9.52380952") != std::string::npos);
  CHECK(array.timing(8, 8, 6).csv().find("quantity,formula,unit,% of PE-ticks\n") == 0);
  CHECK(run.json().find("42") != std::string::npos);
}

TEST_CASE("systolic: errors say what was given and what would be right") {
  const ts::Dataflow ws = ts::Dataflow::weight_stationary;
  CHECK(message([] { ts::SystolicArray(0, 8, ts::Dataflow::weight_stationary); }) ==
        "SystolicArray: 0 rows and 8 columns were given; an array has at least 1 of each");
  ts::SystolicArray odd(8, 8, static_cast<ts::Dataflow>(9));
  CHECK(message([&] { odd.timing(8, 8, 8); }) == "Dataflow: 9 is no value of it; 0 to 2 are right");
  odd = ts::SystolicArray(8, 8, ws);
  odd.schedule = static_cast<ts::Schedule>(7);
  CHECK(message([&] {
          odd.matmul(ts::zeros({8, 8}), ts::zeros({8, 8}));
        }) == "Schedule: 7 is no value of it; 0 to 2 are right");
  odd.schedule = ts::Schedule::serial;
  odd.drain = static_cast<ts::Drain>(-1);
  CHECK(message([&] { odd.timing(8, 8, 8); }) == "Drain: -1 is no value of it; 0 to 1 are right");
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
  ts::SystolicArray outputs(4, 4, ts::Dataflow::output_stationary);
  outputs.schedule = ts::Schedule::skewed;
  const std::string legal =
      "; an output_stationary array has serial with shifted or instant, and doubled with shifted";
  CHECK(message([&outputs] { outputs.timing(4, 4, 4); }) ==
        "SystolicArray::timing: schedule is skewed, drain shifted" + legal);
  outputs.schedule = ts::Schedule::doubled;
  outputs.drain = ts::Drain::instant;
  CHECK(message([&outputs] {
          outputs.matmul(ts::ones({2, 2}), ts::ones({2, 2}));
        }) == "SystolicArray::matmul: schedule is doubled, drain instant" + legal);
  array.drain = ts::Drain::shifted;
  array.format = ts::DType::f16;
  CHECK(message([&array] { array.timing(4, 4, 4); }) ==
        "SystolicArray::timing: format is f16; there are f32, bf16, fp8_e4m3, fp8_e5m2 and int8");
  array.format = ts::DType::f32;
  array.passes = 3;
  CHECK(message([&array] { array.timing(4, 4, 4); }) ==
        "SystolicArray::timing: passes is 3, format f32; bf16 has 1, 3 or 6 passes, other formats "
        "1");
  array.passes = 1;
  array.format = ts::DType::int8;
  CHECK(message([&array] { array.timing(4, 131072, 4); }) ==
        "SystolicArray::timing: K is 131072; int32 sums of int8 products hold at most 131071");
  CHECK(message([&array] {
          array.matmul(ts::full({1, 2}, 0.5f), ts::ones({2, 1}));
        }) ==
        "SystolicArray::matmul: x holds 0.5; an int8 array takes whole numbers from -128 to 127");
  CHECK(message([&array] {
          array.matmul(ts::ones({1, 2}), ts::full({2, 1}, 128.0f));
        }) ==
        "SystolicArray::matmul: w holds 128; an int8 array takes whole numbers from -128 to 127");
  CHECK(message([&array] {
          array.matmul(ts::full({1, 2}, std::nanf("")), ts::ones({2, 1}));
        }) ==
        "SystolicArray::matmul: x holds nan; an int8 array takes whole numbers from -128 to 127");
  const ts::SystolicArray large(1, 1);
  CHECK(message([&large] {
          ts::sram_trace(large, ts::ones({300, 300}), ts::ones({300, 300}));
        }) ==
        "sram_trace: 54090000 words are read and written; at most 16777216 are traced, timing() "
        "counts more");
  CHECK(message([&large] {
          ts::active_pes(large, ts::ones({300, 300}), ts::ones({300, 300}));
        }) == "active_pes: the run takes 27000001 ticks; at most 2^24 are counted");
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
  ts::SystolicArray six(1, 1);
  six.format = ts::DType::bf16;
  six.passes = 6;
  CHECK(thrown([&] { six.timing(most / 2, 1, 1); }) != "no error");
  CHECK(thrown([&] { ts::SystolicArray(most, most).timing(1, 1, 1); }) != "no error");
  CHECK(array.timing(1 << 17, 1 << 17, 1 << 17).macs == std::int64_t{1} << 51);
  const ts::Tensor x = ts::ones({1, 1});
  CHECK(thrown([&] { ts::SystolicArray(n, 1).matmul(x, x); }).find("SystolicArray::matmul: M, K") ==
        0);
  CHECK(thrown([&] { ts::SystolicArray(1 << 14, 1 << 14).matmul(x, x); }) ==
        "SystolicArray::matmul: the array is 16384 x 16384; at most 2^26 PEs can be stepped, "
        "timing() takes larger ones");
  CHECK(thrown([&] {
          ts::SystolicArray(1 << 20, 1).matmul(ts::ones({3, 3}), ts::ones({3, 3}));
        }) ==
        "SystolicArray::matmul: 1 x 1048576 x 1 PEs for 3145731 ticks; at most 2^40 PE-ticks are "
        "stepped, timing takes larger ones");
}

TEST_CASE("a ledger is printed by itself") {
  ts::LossLedger ledger;
  ledger.useful = 30;
  ledger.fill = 10;
  std::ostringstream out;
  out << ledger;
  CHECK(out.str().find("where every PE-tick went\n") == 0);
  CHECK(out.str().find("useful              30   75.0 %\n") != std::string::npos);
  CHECK(out.str().find("total               40  100.0 %\n") != std::string::npos);
}
