#include <doctest/doctest.h>

#include "tinyscale.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "kernel_tests.hpp"

namespace ts = tinyscale;
namespace kernel = tinyscale::kernels;
using kernel_tests::Floats;
using kernel_tests::noise;
using kernel_tests::paths;
using ts::Activations;
using ts::BlockFormat;

namespace {

std::vector<BlockFormat> formats() {
  std::vector<BlockFormat> all;
  for (int i = 0; i <= static_cast<int>(BlockFormat::nvfp4); ++i) {
    all.push_back(static_cast<BlockFormat>(i));
  }
  return all;
}

std::string name_of(const ts::StoredMatrix& w) {
  return w.is_packed ? "packed " + std::to_string(w.packed.bits) : ts::name_of(w.format);
}

// The rows as f32, one by one; as the reference body says.
Floats rows_of(const ts::StoredMatrix& w) {
  Floats all(static_cast<std::size_t>(w.rows * w.cols)), right = all;
  for (std::int64_t row = 0; row < w.rows; ++row) {
    kernel::stored_row(w, row, all.data() + row * w.cols);
    kernel::stored_row_reference(w, row, right.data() + row * w.cols);
  }
  CHECK(all == right);
  return all;
}

// multiply_stored(x) against the reference body, whose x is rounded alike: f32 sums of `cols`
// products in any order, each product's error and each addition's at most 2^-24 of the sum of
// magnitudes, as the reference's own rounding is. Nothing is written behind a row of y.
void check_product(const ts::StoredMatrix& w, Activations how, std::int64_t m, const Floats& x,
                   std::int64_t ldx) {
  const std::string name = name_of(w);
  CAPTURE(name);
  CAPTURE(w.rows);
  CAPTURE(w.cols);
  CAPTURE(m);
  const std::int64_t ldy = w.rows + 3;
  Floats y(static_cast<std::size_t>(m * ldy + 16), 7.0f), right = y;
  kernel::multiply_stored(w, how, m, x.data(), ldx, y.data(), ldy);
  kernel::multiply_stored_reference(w, how, m, x.data(), ldx, right.data(), ldy);
  const Floats weights = rows_of(w);
  Floats seen(static_cast<std::size_t>(w.cols));
  double worst = 0.0;
  bool kept = true;
  for (std::int64_t i = 0; i < m; ++i) {
    kernel::round_row_reference(w, how, x.data() + i * ldx, seen.data());
    for (std::int64_t n = 0; n < w.rows; ++n) {
      double magnitudes = 1e-30;
      for (std::int64_t p = 0; p < w.cols; ++p) {
        magnitudes += std::fabs(double{weights[static_cast<std::size_t>(n * w.cols + p)]} *
                                double{seen[static_cast<std::size_t>(p)]});
      }
      const auto at = static_cast<std::size_t>(i * ldy + n);
      const double bound = magnitudes * std::ldexp(static_cast<double>(w.cols + 5), -24);
      worst = std::max(worst, std::fabs(double{y[at]} - double{right[at]}) / bound);
    }
    for (std::int64_t n = w.rows; n < ldy; ++n) {
      kept = kept && y[static_cast<std::size_t>(i * ldy + n)] == 7.0f;
    }
  }
  CHECK(worst <= 1.0);
  CHECK(kept);
}

void check_f32(const ts::StoredMatrix& w, std::int64_t m) {
  const std::int64_t ldx = w.cols + 5;
  check_product(w, Activations::f32, m, noise(m * ldx, 4), ldx);
}

}  // namespace

TEST_CASE("stored weights, f32 activations: every format and path against sums in double") {
  const Floats numbers = noise(40 * 1000, 1);
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    for (const BlockFormat format : formats()) {
      const std::int64_t cols = ts::block_layout(format).elements == 1 ? 37 : 256;
      for (const std::int64_t m : {1, 3, 11}) {
        check_f32(kernel::store_matrix(21, cols, numbers.data(), {format}), m);
      }
    }
    for (const BlockFormat format : {BlockFormat::f32, BlockFormat::f16, BlockFormat::bf16}) {
      for (const std::int64_t m : {1, 2, 4, 5, 7, 8}) {
        check_f32(kernel::store_matrix(33, 131, numbers.data(), {format}), m);
      }
      check_f32(kernel::store_matrix(3, 1, numbers.data(), {format}), 2);
    }
    for (const int bits : {8, 4}) {
      for (const std::int64_t m : {1, 3, 12}) {
        check_f32(kernel::store_matrix(70, 75, numbers.data(), {BlockFormat::f32, bits, 32}), m);
        check_f32(kernel::store_matrix(17, 100, numbers.data(), {BlockFormat::f32, bits, 0}), m);
        check_f32(kernel::store_matrix(16, 20, numbers.data(), {BlockFormat::f32, bits, 6}), m);
      }
    }
  }
}

TEST_CASE("stored weights: threads, a mapping's odd places, nothing to do") {
  const Floats numbers = noise(300 * 512, 2), x = noise(9 * 512, 3);
  for (const BlockFormat format : {BlockFormat::f32, BlockFormat::bf16, BlockFormat::f16}) {
    const ts::StoredMatrix w = kernel::store_matrix(300, 512, numbers.data(), {format});
    CHECK(w.bytes() == 300.0 * 512 * (format == BlockFormat::f32 ? 4 : 2));
    for (const std::int64_t m : {1, 9}) {
      Floats many(static_cast<std::size_t>(m * 300)), one = many, moved = many;
      kernel::multiply_stored(w, Activations::f32, m, x.data(), 512, many.data(), 300);
      {
        const ts::detail::SerialScope alone;
        kernel::multiply_stored(w, Activations::f32, m, x.data(), 512, one.data(), 300);
      }
      CHECK(one == many);
      for (const std::size_t shift : {1U, 28U}) {
        std::vector<std::uint8_t> bytes(300 * static_cast<std::size_t>(w.row_bytes) + shift);
        std::memcpy(bytes.data() + shift, w.data, bytes.size() - shift);
        const ts::StoredMatrix odd = kernel::stored_view(300, 512, format, bytes.data() + shift);
        kernel::multiply_stored(odd, Activations::f32, m, x.data(), 512, moved.data(), 300);
        CHECK(ts::detail::is_finite(double{moved[0]}));
        double worst = 0.0;
        for (std::size_t i = 0; i < moved.size(); ++i) {
          worst = std::max(worst, std::fabs(double{moved[i]} - double{many[i]}));
        }
        CHECK(worst <= (m == 1 ? 0.0 : 512 * std::ldexp(512.0, -24)));
      }
    }
  }
  kernel::multiply_stored(kernel::store_matrix(0, 5, nullptr), Activations::f32, 1, x.data(), 5,
                          nullptr, 0);
  Floats y(3, 1.0f);
  kernel::multiply_stored(kernel::store_matrix(3, 0, nullptr), Activations::f32, 1, x.data(), 0,
                          y.data(), 3);
  CHECK(y == Floats{0, 0, 0});
}

// m rows of x times w have the bits that they have on one thread.
void check_threads(const ts::StoredMatrix& w, std::int64_t m, const Floats& x) {
  Floats alone, y(static_cast<std::size_t>(m * w.rows));
  for (const int threads : {1, 2, 3, 8}) {
    CAPTURE(w.rows);
    CAPTURE(m);
    CAPTURE(threads);
    const ts::ThreadScope scope(threads);
    kernel::multiply_stored(w, Activations::f32, m, x.data(), w.cols, y.data(), w.rows);
    alone = alone.empty() ? y : alone;
    CHECK(y == alone);
  }
}

TEST_CASE("stored weights made f32: the same bits on any number of threads") {
  const std::int64_t cols = 736;  // of which AVX2 makes passes
  const Floats numbers = noise(500 * cols, 4), x = noise(66 * cols, 5);
  const std::vector<ts::StoreAs> ways = {
      {BlockFormat::bf16}, {BlockFormat::q4_0}, {BlockFormat::f32, 8}, {BlockFormat::f32, 4}};
  for (const ts::StoreAs& way : ways) {
    for (const std::int64_t rows : {1, 17, 65, 129, 288, 500}) {
      const ts::StoredMatrix w = kernel::store_matrix(rows, cols, numbers.data(), way);
      for (const std::int64_t m : {9, 66}) {
        check_threads(w, m, x);
      }
    }
  }
}

TEST_CASE("packed weights of long rows: the same bits on any number of threads") {
  // By its size alone a block would be read in streams or in tiles; of 195 rows three are left.
  for (const std::int64_t cols : {4200, 16400}) {
    const std::int64_t rows = cols == 4200 ? 195 : 200;
    const Floats numbers = noise(rows * cols, 24), x = noise(16 * cols, 25);
    for (const int bits : {8, 4}) {
      const ts::StoredMatrix w =
          kernel::store_matrix(rows, cols, numbers.data(), {BlockFormat::f32, bits});
      for (const std::int64_t m : {9, 16}) {
        CAPTURE(cols);
        CAPTURE(bits);
        check_threads(w, m, x);
      }
    }
  }
}

TEST_CASE("stored weights: a batch gives the bits that its rows give alone") {
  const Floats numbers = noise(70 * 256, 14), x = noise(8 * 256, 15);
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    std::vector<ts::StoredMatrix> all;
    for (const BlockFormat format :
         {BlockFormat::f32, BlockFormat::bf16, BlockFormat::f16, BlockFormat::q4_k}) {
      all.push_back(kernel::store_matrix(69, 256, numbers.data(), {format}));
      all.push_back(kernel::store_matrix(6, 256, numbers.data(), {format}));
    }
    all.push_back(kernel::store_matrix(69, 253, numbers.data(), {BlockFormat::f32}));
    all.push_back(kernel::store_matrix(69, 253, numbers.data(), {BlockFormat::bf16}));
    for (const int bits : {8, 4}) {
      all.push_back(kernel::store_matrix(69, 253, numbers.data(), {BlockFormat::f32, bits, 64}));
    }
    for (const ts::StoredMatrix& w : all) {
      const std::string name = name_of(w);
      CAPTURE(name);
      for (const Activations how : {Activations::f32, Activations::int8_groups}) {
        for (const std::int64_t m : {2, 3, 5, 8}) {
          Floats together(static_cast<std::size_t>(m * w.rows)), alone = together;
          kernel::multiply_stored(w, how, m, x.data(), 256, together.data(), w.rows);
          for (std::int64_t i = 0; i < m; ++i) {
            kernel::multiply_stored(w, how, 1, x.data() + i * 256, 256, alone.data() + i * w.rows,
                                    w.rows);
          }
          CHECK(together == alone);
        }
      }
    }
  }
}

TEST_CASE("integer activations, groups: the numbers of llama2.c's rounding") {
  const Floats numbers = noise(40 * 344, 5);
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    for (const int bits : {8, 4}) {
      for (const std::int64_t group : {1, 2, 4, 6, 32, 64, 172}) {
        const std::int64_t cols = 344, m = 3;
        const ts::StoredMatrix w =
            kernel::store_matrix(40, cols, numbers.data(), {BlockFormat::f32, bits, group});
        CHECK(w.packed.group == group);
        Floats x = noise(m * cols, 6);
        for (std::size_t i = 0; i < 172; ++i) {  // a scale of 1 and halves
          x[i] = i % 4 == 0 ? 127.0f : static_cast<float>(i % 11) - 5.5f;
        }
        check_product(w, Activations::int8_groups, m, x, cols);
      }
    }
  }
}

TEST_CASE("integer activations, blocks: ggml's for each format of weights") {
  const std::int64_t cols = 512, m = 10;
  const Floats numbers = noise(24 * cols, 7), x = noise(m * cols, 8);
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    for (const BlockFormat format : formats()) {
      const ts::StoredMatrix w = kernel::store_matrix(24, cols, numbers.data(), {format});
      for (const std::int64_t rows : {std::int64_t{1}, m}) {
        check_product(w, Activations::int8_blocks, rows, x, cols);
      }
    }
    for (const int bits : {8, 4}) {
      const ts::StoredMatrix w =
          kernel::store_matrix(24, cols, numbers.data(), {BlockFormat::f32, bits, 32});
      check_product(w, Activations::int8_blocks, m, x, cols);
    }
  }
}

TEST_CASE("activations as products see them are the reference body's, exactly, on every path") {
  const std::int64_t cols = 512;
  const Floats numbers = noise(cols, 26);
  Floats x = noise(cols, 27), y(x.size()), right = y;
  for (std::size_t i = 0; i < 256; ++i) {  // a scale of 1 and halves
    x[i] = i % 4 == 0 ? 127.0f : static_cast<float>(i % 11) - 5.5f;
  }
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    for (const Activations how : {Activations::int8_groups, Activations::int8_blocks}) {
      for (const BlockFormat format : formats()) {
        CAPTURE(ts::name_of(format));
        if (ts::detail::rounds_activations(format, how)) {
          const ts::StoredMatrix w = kernel::store_matrix(1, cols, numbers.data(), {format});
          ts::detail::round_row(format, how, cols, x.data(), y.data());
          kernel::round_row_reference(w, how, x.data(), right.data());
          CHECK(y == right);
        }
      }
      for (const std::int64_t group : {1, 6, 32, 512}) {
        const ts::StoredMatrix w =
            kernel::store_matrix(1, cols, numbers.data(), {BlockFormat::f32, 8, group});
        ts::detail::RoundedRows(w.packed, 1, x.data(), cols, how).numbers(0, y.data());
        kernel::round_row_reference(w, how, x.data(), right.data());
        CHECK(y == right);
      }
    }
  }
}

// Rows of 16 and 32 bits at any place against the reference body; bound as above.
template <class F>
void check_dots(std::int64_t rows, std::int64_t cols, std::int64_t m, const ts::StoredMatrix& w) {
  const Floats x = noise(m * cols, 28);
  Floats y(static_cast<std::size_t>(m * rows)), right = y;
  ts::detail::stored_dots<F>(rows, cols, w.data, w.row_bytes, m, x.data(), cols, y.data(), rows);
  ts::detail::stored_dots_reference<F>(rows, cols, w.data, w.row_bytes, m, x.data(), cols,
                                       right.data(), rows);
  const auto products = static_cast<double>(cols);  // of numbers below 1
  double worst = 0.0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    worst = std::max(worst, std::fabs(double{y[i]} - double{right[i]}));
  }
  CHECK(worst <= products * std::ldexp(products + 5, -24));
}

TEST_CASE("dot products with stored rows of each width, on every path") {
  const Floats numbers = noise(40 * 131, 29);
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    for (const std::int64_t rows : {1, 4, 33}) {
      for (const std::int64_t cols : {1, 16, 131}) {
        for (const std::int64_t m : {1, 2, 5, 8}) {
          const auto as = [&](BlockFormat format) {
            return kernel::store_matrix(rows, cols, numbers.data(), {format});
          };
          check_dots<ts::detail::WideF32>(rows, cols, m, as(BlockFormat::f32));
          check_dots<ts::detail::WideBf16>(rows, cols, m, as(BlockFormat::bf16));
          check_dots<ts::detail::WideF16>(rows, cols, m, as(BlockFormat::f16));
        }
      }
    }
  }
}

TEST_CASE("activations rounded to f16 and bf16 are what the formats' own rounding gives") {
  Floats x{0.0f,
           -0.0f,
           1.0f,
           65504.0f,
           65519.9f,
           65520.0f,
           1e9f,
           -1e9f,
           6.1e-5f,
           6.0e-8f,
           2.98e-8f,
           2.99e-8f,
           1e-30f,
           std::numeric_limits<float>::infinity(),
           -std::numeric_limits<float>::infinity(),
           3.4e38f,
           1e-42f};
  for (const float scale : {1.0f, 1e-3f, 1e-5f, 1e-7f, 6e4f}) {
    for (const float value : noise(200, 9)) {
      x.push_back(value * scale);
    }
  }
  for (int code = 0; code < 0x7c00; code += 7) {  // halves between neighbours
    const auto low = static_cast<std::uint16_t>(code);
    const float a = ts::from_f16(low), b = ts::from_f16(static_cast<std::uint16_t>(low + 1));
    x.push_back(b < 1e30f ? 0.5f * (a + b) : a);
  }
  x.push_back(std::nanf(""));
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    for (const bool bf16 : {false, true}) {
      Floats y(x.size()), expected(x.size());
      const auto n = static_cast<std::int64_t>(x.size());
      ts::detail::run_on_lanes(ts::detail::RoundHalves{bf16, n, x.data(), y.data()});
      kernel::round_halves_reference(bf16, n, x.data(), expected.data());
      CHECK(std::memcmp(expected.data(), y.data(), 4 * (y.size() - 1)) == 0);
      CHECK(std::isnan(y.back()));
    }
    std::vector<std::uint16_t> codes(0x7f81);  // of bf16, up to infinity
    for (std::size_t i = 0; i < codes.size(); ++i) {
      codes[i] = static_cast<std::uint16_t>(i);
    }
    Floats y(codes.size()), expected = y;
    const auto n = static_cast<std::int64_t>(codes.size());
    ts::detail::run_on_lanes(ts::detail::WidenBf16Codes{n, codes.data(), y.data()});
    kernel::widen_bf16_reference(n, codes.data(), expected.data());
    CHECK(y == expected);
  }
}

TEST_CASE("a NaN among activations reaches every result; a stored infinity its row") {
  const Floats numbers = noise(20 * 512, 10);
  Floats x = noise(512, 11);
  x[300] = std::nanf("");
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    for (const BlockFormat format : formats()) {
      CAPTURE(ts::name_of(format));
      const ts::StoredMatrix w = kernel::store_matrix(20, 512, numbers.data(), {format});
      for (const Activations how :
           {Activations::f32, Activations::int8_groups, Activations::int8_blocks}) {
        Floats y(20);
        kernel::multiply_stored(w, how, 1, x.data(), 512, y.data(), 20);
        CHECK(std::all_of(y.begin(), y.end(), [](float v) { return std::isnan(v); }));
      }
    }
    std::vector<std::uint16_t> halves(4 * 32, 0x3c00);  // 1
    halves[40] = 0x7c00;                                // infinity
    halves[70] = 0x0001;                                // 2^-24
    const ts::StoredMatrix w = kernel::stored_view(
        4, 32, BlockFormat::f16, reinterpret_cast<const std::uint8_t*>(halves.data()));
    Floats ones(32, 1.0f), y(4);
    kernel::multiply_stored(w, Activations::f32, 1, ones.data(), 32, y.data(), 4);
    CHECK(y[0] == 32.0f);
    CHECK(std::isinf(y[1]));
    CHECK(y[2] == doctest::Approx(31.0));
  }
}

TEST_CASE("stored weights: an error names the element, on any number of threads") {
  Floats w(3000 * 64, 1.0f);
  w[2000 * 64 + 7] = std::numeric_limits<float>::infinity();
  ts::StoreAs how;
  how.format = BlockFormat::q8_0;
  for (const int threads : {1, 2, 7}) {
    const ts::ThreadScope scope(threads);
    CHECK(error_of([&] { kernel::store_matrix(3000, 64, w.data(), how); }) ==
          "quantize_blocks: element 128007 is inf; blocks of q8_0 hold numbers of magnitude up to "
          "8319008");
  }
}

TEST_CASE("stored weights: what is refused") {
  const Floats numbers = noise(64, 12);
  Floats y(64);
  const ts::StoredMatrix w = kernel::store_matrix(2, 32, numbers.data(), {BlockFormat::q8_0});
  CHECK(error_of([&] { kernel::stored_row(w, 2, y.data()); }) ==
        "stored_row: row 2 of a matrix of 2 rows");
  ts::StoredMatrix unmade;
  unmade.cols = 32;
  const ts::Tensor x = ts::zeros({1, 32});
  const std::string way =
      " stored matrix [0, 32] cannot be read; store_matrix, stored_view and "
      "stored_packed make those that can";
  CHECK(error_of([&] { ts::matmul_stored(x, unmade, Activations::f32); }) ==
        "matmul_stored: the" + way);
  CHECK(error_of([&] { ts::embedding_stored(unmade, {0}, {1}); }) == "embedding_stored: the" + way);
  CHECK(error_of([&] { kernel::stored_view(-1, 32, BlockFormat::f32, nullptr); }) ==
        "stored_view: -1 x 32 weights; sizes of at least 0, and at most 2^40 weights together, are "
        "right");
  CHECK(error_of([&] { kernel::store_matrix(2, 31, numbers.data(), {BlockFormat::q8_0}); }) ==
        "block_row_bytes: a row of 31 elements in q8_0; a multiple of 32 is right");
  CHECK(error_of(
            [&] { kernel::multiply_stored(w, Activations::f32, 2, y.data(), 31, y.data(), 2); }) ==
        "multiply_stored: 2 rows, 31 and 2 apart, by 2 x 32 weights; rows of x must be 32 "
        "apart or more, of y 2");
}

TEST_CASE("so many weights that their bytes wrap round are refused by name") {
  const std::int64_t n = std::int64_t{1} << 31;
  const float one = 1;
  const std::string why =
      ": 2147483648 x 2147483648 weights; sizes of at least 0, and at most 2^40 weights together, "
      "are right";
  const ts::StoreAs packed = {BlockFormat::f32, 8, 32};
  CHECK(error_of([&] { kernel::store_matrix(n, n, &one); }) == "store_matrix" + why);
  CHECK(error_of([&] { kernel::store_matrix(n, n, &one, packed); }) == "store_matrix" + why);
  CHECK(error_of([&] { kernel::stored_view(n, n, BlockFormat::f32, nullptr); }) ==
        "stored_view" + why);
  CHECK(error_of([&] { kernel::quantize(n, n, 32, 8, &one); }) == "quantize" + why);
  CHECK(error_of([&] { kernel::compress_f32(n, n, &one); }) == "compress_f32" + why);
  CHECK(error_of([&] { kernel::pack_bf16(kernel::Trans::no, n, n, &one, 0); }) ==
        "pack_bf16" + why);
  CHECK(error_of([&] { kernel::pack_int8(kernel::Trans::no, n, n, nullptr, 0); }) ==
        "pack_int8" + why);
  CHECK_THROWS_AS(kernel::store_matrix(1, std::int64_t{1} << 62, &one), ts::Error);
  CHECK_THROWS_AS(kernel::store_matrix(-1, 4, &one), ts::Error);
  CHECK(error_of([] { ts::detail::WeightMemory(std::size_t{1} << 50); }) ==
        "weights: 1125899906842624 bytes; this machine has no memory left for that");
}

TEST_CASE("groups longer than a row are the row") {
  const Floats numbers = noise(64, 13);
  const ts::Tensor x = ts::ones({1, 32});
  const auto made = [&](std::int64_t group) {
    const ts::StoredMatrix w =
        kernel::store_matrix(2, 32, numbers.data(), {BlockFormat::f32, 8, group});
    CHECK(w.packed.group == 32);
    return ts::matmul_stored(x, w, Activations::int8_groups).values();
  };
  CHECK(made(0) == made(32));
  CHECK(made(std::int64_t{1} << 40) == made(32));  // no scratch of as many floats
}

TEST_CASE("stored weights without columns give zeros; sums that would not fit are refused") {
  const float none = 0;
  for (const ts::StoreAs how : {ts::StoreAs{BlockFormat::f32, 0, 32}, {BlockFormat::f32, 8, 32}}) {
    const ts::StoredMatrix w = kernel::store_matrix(2, 0, &none, how);
    const std::vector<float> before(6, 7.0f);  // what the pool gives again
    { const ts::Tensor used = ts::tensor({3, 2}, before); }
    CHECK(ts::matmul_stored(ts::zeros({3, 0}), w, Activations::f32).values() ==
          std::vector<float>(6, 0.0f));
  }
  const std::vector<std::int8_t> codes(140000, 1);
  const float scale = 1;
  CHECK(error_of([&] { kernel::pack_quantized(1, 140000, 1 << 30, 8, codes.data(), &scale); }) ==
        "pack_quantized: groups of 140000 columns; the sum of at most 131071 products of 8 bits "
        "fits 32 bits");
  const std::vector<std::int8_t> wide = {-8, 7, 8};
  CHECK(error_of([&] { kernel::pack_quantized(1, 3, 3, 4, wide.data(), &scale); }) ==
        "pack_quantized: code 0, 2 is 8; -8 to 7 are right of 4 bits");
  // The longest groups with the largest numbers, by the integer path of each processor.
  const std::int64_t n = 131071;
  const std::vector<std::int8_t> least(static_cast<std::size_t>(n), -128);
  const kernel::QuantizedMatrix most = kernel::pack_quantized(1, n, n, 8, least.data(), &scale);
  const std::vector<float> x(static_cast<std::size_t>(n), 127.0f);
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    float y = 0;
    kernel::gemv_quantized(most, x.data(), &y);
    CHECK(y == doctest::Approx(-128.0 * 127.0 * static_cast<double>(n)).epsilon(1e-6));
  }
}

TEST_CASE("stored weights: a product over what it reads, and matrices without numbers") {
  Floats weights = noise(32 * 32, 1), x = noise(40 * 32 + 32, 2);
  const std::string over = ": y overlaps x; it must have memory of its own";
  for (const BlockFormat format : {BlockFormat::f32, BlockFormat::bf16, BlockFormat::q8_0}) {
    const ts::StoredMatrix w = kernel::store_matrix(32, 32, weights.data(), {format});
    for (const Activations how : {Activations::f32, Activations::int8_blocks}) {
      for (const std::int64_t m : {1, 4, 40}) {
        CHECK(error_of([&] {
                kernel::multiply_stored(w, how, m, x.data(), 32, x.data() + 31, 32);
              }) == "multiply_stored" + over);
      }
    }
    kernel::multiply_stored(w, Activations::f32, 20, x.data(), 64, x.data() + 32, 64);  // beside
  }
  const ts::StoredMatrix view = kernel::stored_view(
      32, 32, BlockFormat::f32, reinterpret_cast<const std::uint8_t*>(weights.data()));
  CHECK(error_of([&] {
          kernel::multiply_stored(view, Activations::f32, 1, x.data(), 32, weights.data() + 990,
                                  32);
        }) == "multiply_stored: y overlaps w; it must have memory of its own");
  ts::StoredMatrix unmade;
  unmade.rows = unmade.cols = 2;
  const std::string way =
      ": the stored matrix [2, 2] cannot be read; store_matrix, stored_view and stored_packed make "
      "those that can";
  CHECK(error_of([&] {
          kernel::multiply_stored(unmade, Activations::f32, 1, x.data(), 2, x.data() + 8, 2);
        }) == "multiply_stored" + way);
  CHECK(error_of([&] { kernel::stored_row(unmade, 1, x.data()); }) == "stored_row" + way);
  unmade.is_packed = true;
  CHECK(error_of([&] { kernel::stored_row(unmade, 1, x.data()); }) == "stored_row" + way);
}
