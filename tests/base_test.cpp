#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

// A file of the shared test data; says so when it is absent.
bool open_shared(const std::string& path, std::ifstream& file) {
  const char* folder = std::getenv("TINYSCALE_SHARED");
  const std::string full = std::string(folder != nullptr ? folder : "../shared") + "/" + path;
  file.open(full);
  if (!file) {
    std::cout << "skipped: no " << full << "\n";
  }
  return static_cast<bool>(file);
}

bool same_value(float a, float b) {
  const bool same = a == b && std::signbit(a) == std::signbit(b);
  return same || (std::isnan(a) && std::isnan(b));
}

// Holds from_fp8 against a table of all 256 codes.
int check_code_table(const std::string& name, float (*decode)(std::uint8_t)) {
  std::ifstream file;
  if (!open_shared("data/models/quant-blocks/" + name, file)) {
    return 256;
  }
  std::string code, value;
  std::getline(file, code);  // column names
  int right = 0;
  while (file >> code >> value) {
    const auto byte = static_cast<std::uint8_t>(std::stoul(code, nullptr, 16));
    right += same_value(decode(byte), std::stof(value)) ? 1 : 0;
  }
  return right;
}

// Rounding of every midpoint between neighbouring finite codes, and of the floats beside it.
template <class Code>
int wrong_midpoints(Code largest, Code (*encode)(float), float (*decode)(Code)) {
  int wrong = 0;
  for (unsigned code = 0; code < largest; ++code) {
    const float low = decode(static_cast<Code>(code));
    const float high = decode(static_cast<Code>(code + 1));
    const float middle = low + (high - low) / 2;
    wrong += encode(low) != code ? 1 : 0;
    wrong += encode(middle) != code + (code & 1U) ? 1 : 0;
    wrong += encode(std::nextafterf(middle, 0)) != code ? 1 : 0;
    wrong += encode(std::nextafterf(middle, high)) != code + 1 ? 1 : 0;
  }
  return wrong;
}

}  // namespace

TEST_CASE("config: the version macros agree") {
  const std::string joined = ts::detail::cat(
      {TINYSCALE_VERSION_MAJOR, ".", TINYSCALE_VERSION_MINOR, ".", TINYSCALE_VERSION_PATCH});
  CHECK(joined == TINYSCALE_VERSION);
  CHECK(ts::detail::environment("TINYSCALE_SURELY_NOT_SET") == "");
}

TEST_CASE("error: cat joins every kind of part") {
  const std::string text = "b";
  CHECK(ts::detail::cat({"a", text, 'c', 1, -2L, 3U, 4UL, -5LL, 6ULL}) == "abc1-234-56");
  CHECK(ts::detail::cat({0.1, " ", 0.1F, " ", 197e6}) == "0.1 0.100000001 197000000");
  CHECK(ts::detail::cat({1e30, " ", -0.5}) == "1e+30 -0.5");
  CHECK(ts::detail::cat({ts::Shape{8, 4096}, " ", ts::DType::bf16}) == "[8, 4096] bf16");
  CHECK_THROWS_WITH_AS(throw ts::Error("what was given"), "what was given", std::runtime_error);
}

TEST_CASE("shape: sizes of every integer type") {
  const std::size_t batch = 8;
  const short width = 5;
  const ts::Shape shape = {batch, 4096, 2U, 3L, 4LL, 6ULL, width};
  CHECK(shape.text() == "[8, 4096, 2, 3, 4, 6, 5]");
  CHECK(shape.size() == 7);
  CHECK(shape[0] == 8);
  CHECK(shape[-1] == 5);
  CHECK(shape.count() == 8LL * 4096 * 2 * 3 * 4 * 6 * 5);
  std::ostringstream out;
  out << ts::Shape({1024}) << ts::Shape();
  CHECK(out.str() == "[1024][]");
}

TEST_CASE("shape: count, comparison and change") {
  CHECK(ts::Shape().count() == 1);
  CHECK(ts::Shape({3, 0, 5}).count() == 0);
  CHECK(ts::Shape({1LL << 40, 1LL << 40, 0}).count() == 0);
  CHECK(ts::Shape({1LL << 31, 1LL << 31}).count() == 1LL << 62);
  ts::Shape shape = {2, 3};
  CHECK(shape == ts::Shape(std::vector<std::int64_t>{2, 3}));
  CHECK(shape != ts::Shape({3, 2}));
  CHECK(shape != ts::Shape({2, 3, 1}));
  shape.push_back(4);
  shape.set(-1, 7);
  CHECK(shape == ts::Shape({2, 3, 7}));
  CHECK(shape.values() == std::vector<std::int64_t>{2, 3, 7});
}

TEST_CASE("shape: errors") {
  CHECK_THROWS_WITH_AS(ts::Dim(1ULL << 63),
                       "Dim: size 9223372036854775808 does not fit; at most 2^63 - 1", ts::Error);
  CHECK_THROWS_WITH_AS(ts::Shape({1LL << 32, 1LL << 31}).count(),
                       "Shape: [4294967296, 2147483648] has too many elements; at most 2^63 - 1",
                       ts::Error);
  CHECK_THROWS_WITH_AS(ts::Shape({1, 2, 3, 4, 5, 6, 7, 8, 9}),
                       "Shape: a dim more than [1, 2, 3, 4, 5, 6, 7, 8]; at most 8 dims",
                       ts::Error);
  CHECK_THROWS_WITH_AS(ts::Shape({4, -1}), "Shape: size -1; sizes are 0 or more", ts::Error);
  const ts::Shape shape = {2, 3};
  CHECK_THROWS_WITH_AS(shape[2], "Shape: dim 2 of [2, 3]; dims are -2 to 1", ts::Error);
  CHECK_THROWS_WITH_AS(shape[-3], "Shape: dim -3 of [2, 3]; dims are -2 to 1", ts::Error);
  CHECK_THROWS_WITH_AS(ts::Shape()[0], "Shape: dim 0 of []; it has no dims", ts::Error);
}

TEST_CASE("format: names and bytes") {
  CHECK(ts::bytes_of(ts::DType::int4) == 0.5);
  CHECK(ts::bytes_of(ts::DType::fp8_e4m3) == 1);
  CHECK(ts::bytes_of(ts::DType::bf16) == 2);
  CHECK(ts::bytes_of(ts::DType::int32) == 4);
  CHECK(ts::bytes_of(ts::DType::f64) == 8);
  for (int i = 0; i <= static_cast<int>(ts::DType::int4); ++i) {
    const auto format = static_cast<ts::DType>(i);
    CHECK(ts::dtype(ts::name_of(format)) == format);
  }
  CHECK_THROWS_WITH_AS(ts::dtype("half"),
                       "dtype: no format \"half\"; there are f64, f32, bf16, f16, fp8_e4m3, "
                       "fp8_e5m2, int32, int8, int4",
                       ts::Error);
}

TEST_CASE("numbers that a cast made a value of an enum are refused") {
  const auto refused = [](const std::string& of, int value, int most,
                          const std::function<void()>& call) {
    CHECK(error_of(call) == of + ": " + std::to_string(value) + " is no value of it; 0 to " +
                                std::to_string(most) + " are right");
  };
  refused("DType", 77, 8, [] { ts::bytes_of(static_cast<ts::DType>(77)); });
  refused("DType", -1, 8, [] { ts::chip("h100").peak(static_cast<ts::DType>(-1)); });
  refused("MemoryKind", 77, 6, [] { const ts::MemoryScope s(static_cast<ts::MemoryKind>(77)); });
  refused("MemoryKind", 7, 6, [] { ts::MemoryMeter().add(static_cast<ts::MemoryKind>(7), 8); });
  refused("MemoryKind", 7, 6, [] { ts::MemoryMeter().peak(static_cast<ts::MemoryKind>(7)); });
  refused("Channel", 9, 6, [] { ts::bandwidth_of(ts::chip("h100"), static_cast<ts::Channel>(9)); });
  refused("Algorithm", 33, 9, [] { ts::name_of(static_cast<ts::Algorithm>(33)); });
  refused("MegatronFlops", 9, 3,
          [] { ts::megatron_flops_per_token(static_cast<ts::MegatronFlops>(9), 2, 8, 8, 16); });
  refused("StateBytes", 9, 3, [] { ts::state_parts(static_cast<ts::StateBytes>(9)); });
  refused("Weights", 9, 4, [] { ts::WeightsChoice(static_cast<ts::Weights>(9)); });
  const ts::Tensor x = ts::uniform({1, 4, 8}, 1);
  refused("attention: mask", 5, 1,
          [&x] { ts::attention(x, x, x, 1, 1, static_cast<ts::Mask>(5)); });
  refused("rope: pairs", 7, 1,
          [&x] { ts::rope(x, 8, ts::TokenPlaces(0), 10000.0f, static_cast<ts::RopePairs>(7)); });
  ts::Machine machine = ts::machine("tpu-v5e", {2});
#if !defined(TINYSCALE_NO_THREADS)
  const std::string sum = error_of([&machine] {
    ts::Mesh(machine, {{"x", 2}}).run([](ts::Device& device) {
      device.all_reduce(ts::ones({4}), "x", static_cast<ts::Reduce>(9));
    });
  });
  CHECK(sum.find("threw: Reduce: 9 is no value of it; 0 to 3 are right") != std::string::npos);
  for (int times = 0; times < 20; ++times) {
    const std::string caught = error_of([&machine] {
      ts::Mesh(machine, {{"x", 2}}).run([](ts::Device& device) {
        ts::CollectiveOptions options;
        options.format = static_cast<ts::DType>(77);
        error_of([&] { device.all_gather(ts::ones({4}), "x", 0, options); });
        device.barrier();
      });
    });
    CHECK(caught == "no error");  // of the run: each device caught its own
  }
#endif
  machine.links[0].kind = static_cast<ts::AxisKind>(9);
  refused("AxisKind", 9, 3, [&machine] { const ts::Mesh mesh(machine, {{"x", 2}}); });
}

TEST_CASE("format: what has a name is printed by it") {
  std::ostringstream out;
  out << ts::DType::bf16 << ", " << ts::Algorithm::halving_doubling << ", " << ts::AxisKind::ring;
  CHECK(out.str() == "bf16, halving/doubling, ring");
}

TEST_CASE("format: fp8 codes against the tables") {
  CHECK(check_code_table("table_e4m3fn.tsv", ts::from_fp8_e4m3) == 256);
  CHECK(check_code_table("table_e5m2.tsv", ts::from_fp8_e5m2) == 256);
}

TEST_CASE("format: rounding to fp8 against the table") {
  std::ifstream file;
  if (!open_shared("data/models/quant-blocks/round_fp8.tsv", file)) {
    return;
  }
  std::string line;
  std::getline(file, line);  // column names
  std::string bits, value, e4m3, e4m3_saturated, e5m2, e5m2_saturated;
  int rows = 0;
  while (file >> bits >> value >> e4m3 >> e4m3_saturated >> e5m2 >> e5m2_saturated) {
    const float x = ts::detail::float_of(static_cast<std::uint32_t>(std::stoul(bits, nullptr, 16)));
    CAPTURE(value);
    CHECK(ts::to_fp8_e4m3(x) == std::stoul(e4m3, nullptr, 16));
    CHECK(ts::to_fp8_e4m3_saturated(x) == std::stoul(e4m3_saturated, nullptr, 16));
    CHECK(ts::to_fp8_e5m2(x) == std::stoul(e5m2, nullptr, 16));
    CHECK(ts::to_fp8_e5m2_saturated(x) == std::stoul(e5m2_saturated, nullptr, 16));
    ++rows;
  }
  CHECK(rows > 200);
}

TEST_CASE("format: every code comes back and every midpoint goes to the even code") {
  CHECK(wrong_midpoints<std::uint16_t>(0x7bff, ts::to_f16, ts::from_f16) == 0);
  CHECK(wrong_midpoints<std::uint16_t>(0x7f7f, ts::to_bf16, ts::from_bf16) == 0);
  CHECK(wrong_midpoints<std::uint8_t>(0x7e, ts::to_fp8_e4m3, ts::from_fp8_e4m3) == 0);
  CHECK(wrong_midpoints<std::uint8_t>(0x7b, ts::to_fp8_e5m2, ts::from_fp8_e5m2) == 0);
}

TEST_CASE("format: the ends of each range") {
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(ts::to_f16(65519.0F) == 0x7bff);
  CHECK(ts::to_f16(65520.0F) == 0x7c00);
  CHECK(ts::from_f16(0xfc00) == -infinity);
  CHECK(ts::to_f16(-0.0F) == 0x8000);
  CHECK(ts::to_bf16(-infinity) == 0xff80);
  CHECK(ts::to_bf16(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK(ts::to_fp8_e4m3_saturated(-infinity) == 0xfe);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(ts::from_bf16(ts::to_bf16(ts::detail::float_of(0x7f800001U)))));
  for (const ts::DType format : {ts::DType::f32, ts::DType::bf16, ts::DType::f16,
                                 ts::DType::fp8_e4m3, ts::DType::fp8_e5m2}) {
    CHECK(std::isnan(ts::round_to(nan, format)));
    CHECK(ts::round_to(1.5F, format) == 1.5F);
  }
  CHECK(ts::round_to(3.14159F, ts::DType::bf16) == 3.140625F);
  for (const ts::DType format : {ts::DType::int32, ts::DType::int8, ts::DType::int4}) {
    CHECK(std::isnan(ts::round_to(nan, format)));
  }
  CHECK(ts::round_to(2.5F, ts::DType::int8) == 2.0F);
  CHECK(ts::round_to(-200.0F, ts::DType::int8) == -128.0F);
  CHECK(ts::round_to(9.0F, ts::DType::int4) == 7.0F);
  CHECK(ts::round_to(1e20F, ts::DType::int32) == 2147483520.0F);
}

TEST_CASE("format: a product that is rounded before it is added, on processors that fuse the two") {
  for (int i = 1; i < 100; ++i) {
    const float a = 1.0F + static_cast<float>(i) / 4096.0F,
                b = 1.0F + static_cast<float>(i) / 8192.0F;
    const double exact = static_cast<double>(a) * static_cast<double>(b);  // 26 bits and fewer
    const auto rounded = static_cast<float>(exact);
    const float left = ts::detail::rounded_product(a, b) - rounded;
    CHECK(left == 0.0F);  // fused, what the rounding took: up to 2^-24
    const float sum = rounded + ts::detail::rounded_product(a, -b);
    CHECK(sum == 0.0F);
  }
}

TEST_CASE("format: int8 with one scale") {
  const ts::Int8Values q = ts::to_int8({-2.0F, 0.5F, 1.0F, 0.0F});
  CHECK(std::vector<std::int8_t>(q.values) == std::vector<std::int8_t>{-127, 32, 64, 0});
  CHECK(q.scale == doctest::Approx(2.0 / 127));
  const std::vector<float> back = ts::from_int8(q);
  CHECK(back[0] == doctest::Approx(-2.0));
  CHECK(std::fabs(back[1] - 0.5F) <= q.scale / 2 + 1e-6F);
  CHECK(ts::to_int8({0.0F}).values[0] == 0);
  CHECK_THROWS_WITH_AS(ts::to_int8({std::numeric_limits<float>::infinity()}),
                       "to_int8: a value is inf; values must be finite", ts::Error);
}

TEST_CASE("random: Philox 4x32-10 gives the published numbers") {
  using Words = std::array<std::uint32_t, 4>;  // known-answer vectors of Random123 1.09
  CHECK(ts::philox4x32({0, 0, 0, 0}, {0, 0}) ==
        Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const std::uint32_t ones = 0xffffffff;
  CHECK(ts::philox4x32({ones, ones, ones, ones}, {ones, ones}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(ts::philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},  // digits of pi
                       {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("random: a fill is its elements, wherever it starts") {
  const std::int64_t n = 50000;
  std::vector<float> uniform(static_cast<std::size_t>(n));
  std::vector<float> normal(uniform.size());
  std::vector<float> shard(1001);
  ts::detail::fill_uniform(uniform.data(), n, 7, 0, 1);
  ts::detail::fill_normal(normal.data(), n, 7, 0, 1);
  ts::detail::fill_normal(shard.data(), 1001, 7, 30003, 2);
  int wrong = 0;
  for (std::size_t i = 0; i < uniform.size(); ++i) {
    wrong += uniform[i] != ts::uniform01(7, i) || normal[i] != ts::normal01(7, i) ? 1 : 0;
    wrong += uniform[i] < 0 || uniform[i] >= 1 ? 1 : 0;
  }
  for (std::size_t i = 0; i < shard.size(); ++i) {
    wrong += shard[i] != 2 * normal[30003 + i] ? 1 : 0;
  }
  CHECK(wrong == 0);
  CHECK(ts::uniform01(1, 5) != ts::uniform01(2, 5));
  CHECK(ts::uniform01(1ULL << 32, 5) != ts::uniform01(0, 5));
  CHECK(ts::uniform01(1, 5) != ts::uniform01(1, 5 + (1ULL << 34)));
}

TEST_CASE("random: moments") {
  const std::uint64_t n = 200000;
  double mean_u = 0, square_u = 0, mean = 0, square = 0, fourth = 0, lag = 0, before = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    const double u = ts::uniform01(11, i) - 0.5;
    const double z = ts::normal01(11, i);
    mean_u += u / n;
    square_u += u * u / n;
    mean += z / n;
    square += z * z / n;
    fourth += z * z * z * z / n;
    lag += z * before / n;
    before = z;
  }
  CHECK(std::fabs(mean_u) < 0.003);  // 4.6 standard errors
  CHECK(std::fabs(square_u - 1.0 / 12) < 0.001);
  CHECK(std::fabs(mean) < 0.01);
  CHECK(std::fabs(square - 1) < 0.015);
  CHECK(std::fabs(fourth - 3) < 0.1);
  CHECK(std::fabs(lag) < 0.01);
}

TEST_CASE("random: integers below n") {
  std::vector<int> counts(10);
  for (std::uint64_t i = 0; i < 100000; ++i) {
    ++counts[ts::random_below(3, i, 10)];
  }
  for (const int count : counts) {
    CHECK(std::abs(count - 10000) < 500);  // 5 standard deviations
  }
  CHECK(ts::random_below(3, 4, 1) == 0);
  const std::uint64_t big = 0xfedcba9876543210ULL;
  const long double unit = static_cast<long double>(ts::random_below(5, 9, ~0ULL)) / 0x1p64L;
  CHECK(std::fabs(static_cast<double>(static_cast<long double>(ts::random_below(5, 9, big)) / big -
                                      unit)) < 1e-15);
  CHECK_THROWS_WITH_AS(ts::random_below(3, 4, 0), "random_below: n is 0; n must be 1 or more",
                       ts::Error);
}

TEST_CASE("text: numbers as people read them") {
  CHECK(ts::format_si(1.234e9, "B") == "1.23 GB");
  CHECK(ts::format_si(197e12, "FLOP/s") == "197 TFLOP/s");
  CHECK(ts::format_si(999.6, "B") == "1 kB");
  CHECK(ts::format_si(0.9999, "s") == "1 s");
  CHECK(ts::format_si(9.996e3, "") == "10 k");
  CHECK(ts::format_si(-0.05, "V") == "-50 mV");
  CHECK(ts::format_si(0, "s") == "0 s");
  CHECK(ts::format_si(9.994, "s") == "9.99 s");
  CHECK(ts::format_si(9.996, "s") == "10 s");
  CHECK(ts::format_si(99.96, "s") == "100 s");
  CHECK(ts::format_si(0.999e-18, "s") == "0.999 as");  // below the smallest prefix
  CHECK(ts::format_si(-0.01234e-18, "s") == "-0.0123 as");
  CHECK(ts::format_si(0.003e-18, "s") == "0.003 as");
  CHECK(ts::format_si(0.0001e-18, "s") == "0.0001 as");
  CHECK(ts::format_si(std::numeric_limits<double>::infinity(), "s") == "inf s");
  CHECK(ts::format_bytes(512) == "512 B");
  CHECK(ts::format_bytes(0.5) == "0.5 B");
  CHECK(ts::format_bytes(16e9) == "16 GB");
  CHECK(ts::format_seconds(1.23e-5) == "12.3 us");
  CHECK(ts::format_seconds(90) == "90 s");
  CHECK(ts::format_seconds(600) == "10 min");
  CHECK(ts::format_seconds(3 * 3600) == "3 h");
  CHECK(ts::format_seconds(86400 * 12.5) == "12.5 days");
  CHECK(ts::format_seconds(119.6) == "1.99 min");
  CHECK(ts::format_count(803840) == "803,840");
  CHECK(ts::format_count(-1234567.4) == "-1,234,567");
  CHECK(ts::format_count(999) == "999");
  CHECK(ts::format_count(-0.2) == "0");
  CHECK(ts::format_count(15e12) == "15,000,000,000,000");
  CHECK(ts::format_count(-0.5) == "0");
  CHECK(ts::format_count(-999) == "-999");
  CHECK(ts::format_count(-1000) == "-1,000");
  CHECK(ts::format_percent(0.123) == "12.3 %");
  CHECK(ts::format_percent(-0.0001) == "0.0 %");  // no zero has a sign
  CHECK(ts::format_percent(1e300) == "1e+302 %");
  CHECK(ts::format_percent(std::numeric_limits<double>::infinity()) == "inf %");
  CHECK(ts::format_fixed(-0.004, 2) == "0.00");
  CHECK(ts::format_fixed(-0.006, 2) == "-0.01");
  CHECK(ts::format_fixed(-std::numeric_limits<double>::infinity(), 2) == "-inf");
  CHECK(ts::format_percent(-0.0001).value == -0.01);
  const std::string none = "\xEF\xBF\xBD";  // for each byte that is no UTF-8
  CHECK(ts::json_escape("\xC3\xA9 \xF0\x9F\x98\x80") == "\xC3\xA9 \xF0\x9F\x98\x80");
  CHECK(ts::json_escape("a\xff\"") == "a" + none + "\\\"");
  CHECK(ts::json_escape("\xC3") == none);
  CHECK(ts::json_escape("\xC0\x80\xED\xA0\x80") == none + none + none + none + none);
  CHECK(ts::json_escape("a\"b\\c\nd\te\x01") == "a\\\"b\\\\c\\nd\\te\\u0001");
}

TEST_CASE("text: a table lines up") {
  ts::Table table;
  table.title = "ops";
  table.columns = {"name", "FLOPs", "time"};
  table.add({"matmul", "1200", "12.3 us"});
  table.add({"\xC3\xA9", "7", "-"});
  CHECK(table.text() ==
        "ops\n"
        "name    FLOPs     time\n"
        "------  -----  -------\n"
        "matmul   1200  12.3 us\n"
        "\xC3\xA9           7        -\n");
  CHECK(table.csv() == "name,FLOPs,time\nmatmul,1200,12.3 us\n\xC3\xA9,7,-\n");
  CHECK(table.json() ==
        "{\"title\": \"ops\", \"rows\": [\n"
        "  {\"name\": \"matmul\", \"FLOPs\": 1200, \"time\": \"12.3 us\"},\n"
        "  {\"name\": \"\xC3\xA9\", \"FLOPs\": 7, \"time\": \"-\"}]}\n");
  std::ostringstream out;
  out << table;
  CHECK(out.str() == table.text());
  CHECK_THROWS_WITH_AS(table.add({"gelu"}),
                       "Table: a row of 1 cells for 3 columns; "
                       "a row must have a cell for each column",
                       ts::Error);
}

TEST_CASE("text: CSV and JSON have whole numbers in one unit, tables what people read") {
  ts::Table table;
  table.columns = {"op", "time", "value", "count", "note"};
  table.add({"a", ts::format_seconds(1.2345678e-5), ts::format_bytes(1234567890123.0), "3", "-"});
  table.add({"b", ts::format_seconds(7200), ts::format_percent(0.1234567), "-", ""});
  table.add({"c", "-", "12", "4", "x"});
  table.add({"d", "0", ts::format_si(std::nan(""), "FLOP/s"), "5", "y"});
  table.add({"e", ts::Cell("never", std::numeric_limits<double>::infinity(), "s"), "", "6", "z"});
  CHECK(table.text() ==
        "op  time     value       count  note\n"
        "--  -------  ----------  -----  ----\n"
        "a   12.3 us  1.23 TB         3  -\n"
        "b   2 h      12.3 %          -\n"
        "c   -        12              4  x\n"
        "d   0        nan FLOP/s      5  y\n"
        "e   never                    6  z\n");
  CHECK(table.csv() ==
        "op,time (s),value,value unit,count,note\n"
        "a,1.2345678e-05,1234567890123,B,3,-\n"
        "b,7200,12.34567,%,,\n"
        "c,,12,,4,x\n"
        "d,0,nan,FLOP/s,5,y\n"
        "e,inf,,,6,z\n");
  CHECK(table.json() ==
        "{\"title\": \"\", \"rows\": [\n"
        "  {\"op\": \"a\", \"time (s)\": 1.2345678e-05, \"value\": 1234567890123, "
        "\"value unit\": \"B\", \"count\": 3, \"note\": \"-\"},\n"
        "  {\"op\": \"b\", \"time (s)\": 7200, \"value\": 12.34567, "
        "\"value unit\": \"%\", \"count\": null, \"note\": \"\"},\n"
        "  {\"op\": \"c\", \"time (s)\": null, \"value\": 12, "
        "\"value unit\": \"\", \"count\": 4, \"note\": \"x\"},\n"
        "  {\"op\": \"d\", \"time (s)\": 0, \"value\": null, "
        "\"value unit\": \"FLOP/s\", \"count\": 5, \"note\": \"y\"},\n"
        "  {\"op\": \"e\", \"time (s)\": null, \"value\": null, "
        "\"value unit\": \"\", \"count\": 6, \"note\": \"z\"}]}\n");
  for (const ts::Cell& cell :
       {ts::format_seconds(1.0 / 3), ts::format_si(1.0 / 3, ""), ts::format_count(1.0 / 3),
        ts::format_fixed(1.0 / 3, 2), ts::format_bytes(1.0 / 3)}) {
    CHECK(cell.value == 1.0 / 3);
    CHECK(std::stod(ts::detail::json_number(cell.value)) == 1.0 / 3);
  }
  const std::string sentence = ts::detail::cat({ts::format_bytes(2e9), " of 4"});
  CHECK(sentence == "2 GB of 4");
}

TEST_CASE("text: cells with commas and quotes, and what JSON calls a number") {
  ts::Table table;
  table.columns = {"a,b", "c"};
  table.add({"say \"hi\"", "x\ny"});
  CHECK(table.csv() == "\"a,b\",c\n\"say \"\"hi\"\"\",\"x\ny\"\n");
  table.columns = {"count"};  // readers take a line without anything for no row
  table.rows = {{"1"}, {""}, {"3"}};
  CHECK(table.csv() == "count\n1\n\"\"\n3\n");
  for (const std::string number : {"0", "-1", "10.5", "1e+30", "-0.25E-3"}) {
    CHECK(ts::detail::is_json_number(number));
  }
  for (const std::string other : {"", "-", "01", "1.", ".5", "+1", "1e", "0x10", "nan", "1 s"}) {
    CHECK_FALSE(ts::detail::is_json_number(other));
  }
}

TEST_CASE("text: columns of one name have names of their own in JSON and CSV") {
  ts::Table table;
  table.columns = {"time", "time", "time unit", "time"};
  table.add({ts::format_seconds(2e-3), "a", "b", "c"});
  table.add({ts::format_bytes(4096), "d", "e", "f"});
  CHECK(table.text().find("time  time  time unit  time\n") != std::string::npos);
  CHECK(table.csv() == "time,time unit,time 2,time unit 2,time 3\n0.002,s,a,b,c\n4096,B,d,e,f\n");
  CHECK(table.json() ==
        "{\"title\": \"\", \"rows\": [\n  {\"time\": 0.002, \"time unit\": \"s\", \"time 2\": "
        "\"a\", \"time unit 2\": \"b\", \"time 3\": \"c\"},\n  {\"time\": 4096, \"time unit\": "
        "\"B\", \"time 2\": \"d\", \"time unit 2\": \"e\", \"time 3\": \"f\"}]}\n");
}

TEST_CASE("cpu: the path is one that the processor has") {
  const ts::CpuInfo& info = ts::cpu();
  CHECK(info.has(info.path));
  CHECK(info.has(ts::CpuPath::portable));
  CHECK(info.text.find(ts::name_of(info.path)) != std::string::npos);
}

TEST_CASE("cpu: choosing a path") {
  ts::CpuInfo info;
  info.avx2 = info.fma = info.f16c = true;
  CHECK(ts::detail::choose_path(info, "").path == ts::CpuPath::avx2);
  CHECK(ts::detail::choose_path(info, "portable").path == ts::CpuPath::portable);
  CHECK(ts::detail::choose_path(info, "avx2").text == "processor (avx2)");
  CHECK_THROWS_WITH_AS(ts::detail::choose_path(info, "avx512"),
                       "TINYSCALE_CPU is \"avx512\"; this processor has portable, avx2", ts::Error);
  info.avx512f = info.avx512bw = info.avx512dq = info.avx512vl = true;
  CHECK(ts::detail::choose_path(info, "").path == ts::CpuPath::avx512);
}

TEST_CASE("List: grows, copies and moves like an array of the standard library") {
  struct Row {
    std::string name;
    int number = 7;
  };
  ts::List<Row> rows = {{"a", 1}, {"b", 2}};
  for (int i = 0; i < 20; ++i) {
    rows.push_back(rows[0]);  // one of its own, also when it grows
  }
  CHECK(rows.size() == 22);
  CHECK(rows.back().name == "a");
  ts::List<Row> copy = rows;
  copy[0].name = "changed";
  CHECK(rows.front().name == "a");
  const ts::List<Row>& same = copy;
  copy = same;
  CHECK(copy.size() == 22);
  CHECK(copy[0].name == "changed");
  ts::List<Row> moved = std::move(copy);
  CHECK(moved.size() == 22);
  CHECK(copy.empty());
  copy.push_back({"again", 3});
  CHECK(copy.begin() + 1 == copy.end());
  copy = {};
  CHECK(copy.empty());
  CHECK(ts::List<Row>(3)[2].number == 7);
}

TEST_CASE("List: what leaves is let go, and its place holds the default again") {
  const auto shared = std::make_shared<int>(5);
  ts::List<std::shared_ptr<int>> list;
  list.assign(6, shared);
  CHECK(shared.use_count() == 7);
  list.pop_back();
  list.resize(4);
  CHECK(shared.use_count() == 5);
  list.resize(6);
  CHECK(list[4] == nullptr);
  list.clear();
  CHECK(shared.use_count() == 1);
  CHECK(list.empty());
}

TEST_CASE("List: what cannot be copied, and a copy that fails") {
  ts::List<std::unique_ptr<int>> owners;
  owners.push_back(std::make_unique<int>(1));
  owners.reserve(100);
  CHECK(*owners[0] == 1);
  struct Fussy {
    Fussy() = default;
    Fussy(const Fussy& other) { *this = other; }
    Fussy& operator=(const Fussy& other) {
      if (other.held) {
        throw ts::Error("no copy");
      }
      return *this;
    }
    std::shared_ptr<int> held;
  };
  ts::List<Fussy> list(3);
  list[1].held = std::make_shared<int>(2);
  CHECK_THROWS_AS(ts::List<Fussy>{list}, ts::Error);
  CHECK(list.size() == 3);
  CHECK(list[1].held.use_count() == 1);
}

TEST_CASE("BlockList: what is in it stays where it is while it grows") {
  struct Row {
    std::string name = "none";
    int number = 7;
  };
  ts::detail::BlockList<Row> rows;
  CHECK(rows.size() == 0);
  CHECK(!(rows.begin() != rows.end()));
  std::vector<Row*> where;
  for (int i = 0; i < 1000; ++i) {
    Row& row = rows.add();
    CHECK(row.name == "none");
    CHECK(row.number == 7);
    row.number = i;
    where.push_back(&row);
    CHECK(rows.size() == static_cast<std::size_t>(i) + 1);
  }
  rows.push_back({"last", 1000});
  const ts::detail::BlockList<Row>& same = rows;
  for (std::size_t i = 0; i < 1000; ++i) {
    CHECK(&rows[i] == where[i]);
    CHECK(same[i].number == static_cast<int>(i));
  }
  int next = 0;
  for (const Row& row : same) {
    CHECK(row.number == next++);
  }
  CHECK(next == 1001);
  ts::detail::BlockList<Row> moved = std::move(rows);
  CHECK(moved.size() == 1001);
  CHECK(moved[1000].name == "last");
  CHECK(&moved[31] == where[31]);
  CHECK(rows.size() == 0);
  CHECK(rows.add().name == "none");
  CHECK(rows.size() == 1);
}

TEST_CASE("List: to and from std::vector") {
  const std::vector<std::string> words = {"x", "y"};
  const ts::List<std::string> list = words;
  const std::vector<std::string> back = list;
  CHECK(back == words);
}

TEST_CASE("order: events leave by their key, equal ones by their item") {
  ts::detail::EventQueue queue;
  for (std::size_t i = 0; i < 500; ++i) {
    queue.push({static_cast<double>(i * 7919 % 100), i, static_cast<int>(i)});
  }
  ts::detail::EventQueue::Entry last{-1, 0, 0};
  for (int left = 500; left > 0; --left) {
    const ts::detail::EventQueue::Entry next = queue.pop();
    CHECK(last.before(next));
    CHECK(next.tag == static_cast<int>(next.item));
    last = next;
  }
  CHECK(queue.empty());
}

TEST_CASE("order: a table of names counts") {
  ts::detail::NameTable times;
  CHECK(!times.has("0"));
  for (int i = 0; i < 1000; ++i) {
    ++times[std::to_string(i % 300)];
  }
  CHECK(times.size() == 300);
  CHECK(times["7"] == 4);
  CHECK(times["299"] == 3);
  CHECK(times.has("299"));
  CHECK(!times.has("300"));
  CHECK(times.begin()->name == "0");
}

namespace {

int twice(int x) { return 2 * x; }

}  // namespace

TEST_CASE("Function: lambdas, functions, std::function; empty ones say so; copies share") {
  using Op = ts::Function<int(int)>;
  const int three = 3;
  CHECK(Op([three](int x) { return three * x; })(5) == 15);
  CHECK(Op(twice)(5) == 10);
  CHECK(Op(&twice)(5) == 10);
  CHECK(Op(std::function<int(int)>(twice))(5) == 10);
  CHECK(std::function<int(int)>(Op(twice))(5) == 10);
  const auto widened = [](double x) { return x / 2; };  // converts what goes in and comes out
  CHECK(Op([&](int x) { return static_cast<int>(widened(x)); })(5) == 2);

  int (*const nowhere)(int) = nullptr;
  for (const Op& empty : {Op(), Op(nullptr), Op(nowhere), Op(std::function<int(int)>()),
                          Op(ts::Function<long(long)>())}) {
    CHECK_FALSE(static_cast<bool>(empty));
    CHECK(empty == nullptr);
    CHECK(error_of([&] { empty(1); }) ==
          "Function: there is nothing to call; give it a lambda or the name of a function");
  }

  // One callable, destroyed once, with the last copy.
  const auto counted = std::make_shared<int>(0);
  {
    Op count([counted](int x) { return *counted += x; });
    CHECK(counted.use_count() == 2);
    Op other(count), third;
    third = other;
    other = Op(twice);
    count = std::move(third);
    CHECK(count(2) == 2);
    CHECK(counted.use_count() == 2);
    count = count;
    CHECK(count(3) == 5);
    count = nullptr;
    third = {};
    CHECK(counted.use_count() == 1);
    CHECK(other(1) == 2);
  }
  int calls = 0;
  Op state([calls](int x) mutable { return calls += x; });
  const Op same = state;
  CHECK(state(1) == 1);
  CHECK(same(1) == 2);

  // What goes in by value is moved through, what goes in by reference is that object.
  const ts::Function<std::size_t(std::unique_ptr<int>)> take = [](std::unique_ptr<int> p) {
    return static_cast<std::size_t>(*p);
  };
  CHECK(take(std::make_unique<int>(7)) == 7);
  int place = 0;
  const ts::Function<int&(int&)> pass = [](int& x) -> int& { return x; };
  pass(place) = 4;
  CHECK(place == 4);
  const ts::Function<void(int&)> change = [](int& x) { return ++x; };  // its result is dropped
  change(place);
  CHECK(place == 5);
  static_assert(!std::is_convertible_v<int, Op> && !std::is_convertible_v<std::string, Op>, "");
  static_assert(!std::is_convertible_v<int (*)(const char*), Op>, "");

  // A callable whose move throws: nothing is left to destroy.
  struct Throws {
    std::shared_ptr<int> held;
    bool now;
    Throws(std::shared_ptr<int> h, bool n) : held(std::move(h)), now(n) {}
    Throws(const Throws& t) : held(t.held), now(t.now) {
      if (now) {
        throw std::runtime_error("moved");
      }
    }
    int operator()(int x) const { return x; }
  };
  CHECK_THROWS_AS(Op(Throws(counted, true)), std::runtime_error);
  CHECK(counted.use_count() == 1);
  CHECK(Op(Throws(counted, false))(6) == 6);
  CHECK(counted.use_count() == 1);
}
