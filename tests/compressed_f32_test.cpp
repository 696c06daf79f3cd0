#include <doctest/doctest.h>

#include "tinyscale.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "error_of.hpp"
#include "kernel_tests.hpp"

namespace ts = tinyscale;
namespace kernel = tinyscale::kernels;
using kernel_tests::Floats;
using kernel_tests::noise;
using kernel_tests::paths;
using ts::Activations;

namespace {

// As trained weights are: most of them small.
Floats weights(std::int64_t n, std::uint64_t seed) {
  Floats w(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < w.size(); ++i) {
    w[i] = 0.02f * ts::normal01(seed, i);
  }
  return w;
}

bool same_bits(const float* a, const float* b, std::int64_t n) {
  return std::memcmp(a, b, static_cast<std::size_t>(n) * sizeof(float)) == 0;
}

// Every row comes back, bit for bit, alone and among others.
void check_rows(std::int64_t rows, std::int64_t cols, const Floats& numbers) {
  const kernel::CompressedF32 w = kernel::compress_f32(rows, cols, numbers.data());
  REQUIRE(w.rows == rows);
  const ts::StoredMatrix stored = kernel::stored_compressed(w);
  Floats row(static_cast<std::size_t>(cols)), all(static_cast<std::size_t>(rows * cols));
  std::int64_t same = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    stored.row(stored, i, row.data());
    same += same_bits(row.data(), numbers.data() + i * cols, cols) ? 1 : 0;
  }
  CHECK(same == rows);
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    all[static_cast<std::size_t>(i)] = kernel::compressed_number_reference(w, i / cols, i % cols);
  }
  CHECK(same_bits(all.data(), numbers.data(), rows * cols));
  ts::detail::read_compressed(w, 0, rows, all.data());
  CHECK(same_bits(all.data(), numbers.data(), rows * cols));
}

// y has the bits that rows of f32 give.
void check_product(const ts::StoredMatrix& w, const ts::StoredMatrix& f32, std::int64_t m,
                   const Floats& x) {
  Floats y(static_cast<std::size_t>(m * w.rows)), want = y;
  w.multiply(w, Activations::f32, m, x.data(), w.cols, y.data(), w.rows);
  f32.multiply(f32, Activations::f32, m, x.data(), w.cols, want.data(), w.rows);
  CHECK(same_bits(y.data(), want.data(), m * w.rows));
}

// And is as near to sums in double as f32 sums of so many products of numbers below 0.2 and 1 are.
void check_sums(const ts::StoredMatrix& w, std::int64_t m, const Floats& x) {
  Floats y(static_cast<std::size_t>(m * w.rows)), want = y;
  w.multiply(w, Activations::f32, m, x.data(), w.cols, y.data(), w.rows);
  kernel::multiply_stored_reference(w, Activations::f32, m, x.data(), w.cols, want.data(), w.rows);
  double worst = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    worst = std::fmax(worst, std::fabs(double{y[i]} - double{want[i]}));
  }
  const auto cols = static_cast<double>(w.cols);
  CHECK(worst <= 0.2 * cols * std::ldexp(cols + 5, -24));
}

}  // namespace

TEST_CASE("f32 in 28 bits: every row is the one it was, on every path") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    for (const std::int64_t cols : {128, 129, 255, 256, 300, 767, 768}) {
      CAPTURE(cols);
      check_rows(21, cols, weights(21 * cols, 3));
    }
  }
}

TEST_CASE("f32 in 28 bits: products have the bits of f32 rows, on every path") {
  const std::int64_t shapes[][2] = {{1, 128}, {3, 256},  {4, 129},  {7, 143},
                                    {8, 300}, {33, 640}, {50, 1000}};
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    for (const auto& shape : shapes) {
      const std::int64_t rows = shape[0], cols = shape[1];
      CAPTURE(rows);
      CAPTURE(cols);
      const Floats numbers = weights(rows * cols, 5);
      const ts::StoredMatrix f32 = kernel::store_matrix(rows, cols, numbers.data());
      const ts::StoredMatrix w =
          kernel::stored_compressed(kernel::compress_f32(rows, cols, numbers.data()));
      for (const std::int64_t m : {1, 2, 3, 4, 5, 7, 8, 9, 40}) {
        CAPTURE(m);
        check_product(w, f32, m, noise(m * cols, 6));
      }
      check_sums(w, 3, noise(3 * cols, 6));
      check_sums(w, 9, noise(9 * cols, 6));
    }
  }
}

TEST_CASE("f32 in 28 bits: zeros, denormals and numbers far below their row's are listed") {
  const std::int64_t rows = 40, cols = 700;
  const float least = std::numeric_limits<float>::denorm_min();
  Floats numbers = weights(rows * cols, 7);
  const float odd[] = {0.0f, -0.0f, least, -least, 1e-39f, 1e-30f, -1e-20f};
  for (std::int64_t i = 0; i < 7; ++i) {  // the first, the last, all in one block, the last of rows
    numbers[static_cast<std::size_t>(i * cols)] = odd[i];
    numbers[static_cast<std::size_t>(5 * cols + 130 + 3 * i)] = odd[i];
    numbers[static_cast<std::size_t>((30 + i) * cols + 639)] = odd[i];
    numbers[static_cast<std::size_t>((30 + i) * cols + 699)] = odd[i];
  }
  check_rows(rows, cols, numbers);
  const kernel::CompressedF32 w = kernel::compress_f32(rows, cols, numbers.data());
  const ts::StoredMatrix f32 = kernel::store_matrix(rows, cols, numbers.data());
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    for (const std::int64_t m : {1, 3, 4, 8}) {
      check_product(kernel::stored_compressed(w), f32, m, noise(m * cols, 8));
    }
  }
  // A row with half of its numbers listed, one with all of a block, those beside it with a few.
  Floats pruned = weights(700 * 640, 9);
  for (std::size_t i = 0; i < 640; i += 2) {
    pruned[125 * 640 + i] = odd[i / 2 % 7];
    pruned[250 * 640 + 256 + i / 5] = odd[i / 2 % 7];
    pruned[i * 640 + i] = 0;
  }
  check_rows(700, 640, pruned);
  const ts::StoredMatrix half =
      kernel::stored_compressed(kernel::compress_f32(700, 640, pruned.data()));
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    for (const std::int64_t m : {1, 3, 8}) {
      check_product(half, kernel::store_matrix(700, 640, pruned.data()), m, noise(m * 640, 10));
    }
  }
  // Rows of nothing but zeros and denormals, of the largest numbers, of what is not finite.
  Floats extreme(static_cast<std::size_t>(4 * 128), 0.0f);
  for (std::size_t i = 0; i < 128; ++i) {
    extreme[128 + i] = static_cast<float>(i) * 1e-40f;
    extreme[256 + i] = std::ldexp(1.9999999f, 127 - static_cast<int>(i % 15));
    extreme[384 + i] = i % 3 == 0   ? std::numeric_limits<float>::infinity()
                       : i % 3 == 1 ? -std::numeric_limits<float>::infinity()
                                    : std::nanf("7");
  }
  check_rows(4, 128, extreme);
}

TEST_CASE("f32 in 28 bits: how many bytes, and where it does not pay") {
  const std::int64_t rows = 64, cols = 768;
  Floats numbers = weights(rows * cols, 9);
  kernel::CompressedF32 w = kernel::compress_f32(rows, cols, numbers.data());
  const auto listed = static_cast<double>(w.numbers->exceptions.size());
  CHECK(w.bytes() == rows * (cols / 128 * 448 + 8) + 8 * listed);
  CHECK(listed < 10);
  CHECK(kernel::stored_compressed(w).bytes() == w.bytes());
  CHECK(kernel::stored_compressed(w).kind() == std::string("f32 in 28 bits"));
  CHECK(kernel::compress_f32(rows, 127, numbers.data()).rows == 0);  // no block
  CHECK(kernel::compress_f32(0, cols, numbers.data()).rows == 0);
  // One in 512 may be far below the others, one more is too many.
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    numbers[static_cast<std::size_t>(i)] = i % 512 == 1 ? 1e-9f : 1.0f;
  }
  CHECK(kernel::compress_f32(rows, cols, numbers.data()).rows == rows);
  numbers[77] = 0;
  CHECK(kernel::compress_f32(rows, cols, numbers.data()).rows == 0);
  CHECK(error_of([&] { kernel::stored_compressed(kernel::CompressedF32()); }) ==
        "stored_compressed: no rows; what compress_f32 found worth it is right");
  const ts::StoredMatrix stored = kernel::stored_compressed(w);
  Floats y(static_cast<std::size_t>(2 * rows));
  CHECK(error_of([&] {
          stored.multiply(stored, Activations::f32, 2, numbers.data(), cols - 1, y.data(), rows);
        }) ==
        "multiply_compressed: 2 rows, 767 and 64 apart, by 64 x 768 weights; rows of x must be 768 "
        "apart or more, of y 64");
  CHECK(error_of([&] { stored.row(stored, rows, y.data()); }) ==
        "stored_row: row 64 of a matrix of 64 rows");
}

TEST_CASE("f32 in 28 bits: a model that only runs gives the tokens and logits of one that learns") {
  ts::ModelConfig c;
  c.name = "wide";
  c.layers = 2;
  c.width = 256;
  c.heads = c.kv_heads = 4;
  c.head_size = 64;
  c.hidden = 320;
  c.vocabulary = 300;
  c.context = 64;
  c.norm = ts::Norm::rms;
  c.position = ts::Position::rotary;
  c.activation = ts::Activation::swiglu;
  c.tied = true;
  const ts::Transformer model(c, 5);
  ts::LoadOptions f32;
  f32.weights = ts::Weights::f32;
  const ts::Transformer runs = ts::with_weights(model, f32);
  double all = 0, stored = 0;
  for (std::size_t i = 0; i < runs.parameters.size(); ++i) {
    if (runs.parameters[i].stored) {
      CHECK(runs.parameters[i].stored->kind() == std::string("f32 in 28 bits"));
      stored += runs.parameters[i].stored->bytes();
      all += 4 * static_cast<double>(runs.parameters[i].shape.count());
    }
  }
  CHECK(stored < 0.91 * all);
  ts::GenerateOptions greedy;
  greedy.temperature = 0;
  const ts::List<std::vector<std::int32_t>> prompts = {{1, 2, 3}, {4}};
  const ts::Generation a = ts::generate_batch(model, prompts, 50, greedy);
  const ts::Generation b = ts::generate_batch(runs, prompts, 50, greedy);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    CHECK(a.sequences[i].ids == b.sequences[i].ids);
  }
  CHECK(b.decode.all.weight_bytes < 0.92 * a.decode.all.weight_bytes);
  std::vector<std::int32_t> text(40);
  for (std::size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<std::int32_t>(i * 37 % 300);
  }
  CHECK(ts::mean_loss(runs, text) == doctest::Approx(ts::mean_loss(model, text)).epsilon(1e-6));
}
