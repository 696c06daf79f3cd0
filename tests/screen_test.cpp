#include <doctest/doctest.h>

#include "tinyscale.hpp"

#include <cmath>
#include <cstdint>
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

struct Kind : ts::StoreAs {
  bool compressed = false;  // f32 in 28 bits
  Kind(BlockFormat f, int bits, std::int64_t columns, bool less = false) : compressed(less) {
    format = f;
    packed_bits = bits;
    group = columns;
  }
};

// Every way to keep weights that has something to leave out.
std::vector<Kind> kinds() {
  std::vector<Kind> all = {{BlockFormat::f32, 8, 32},
                           {BlockFormat::f32, 8, 64},
                           {BlockFormat::f32, 8, 0},
                           {BlockFormat::f32, 0, 32, true}};
  for (const BlockFormat format :
       {BlockFormat::f32, BlockFormat::bf16, BlockFormat::f16, BlockFormat::q8_0}) {
    all.push_back({format, 0, 32});
  }
  return all;
}

ts::StoredMatrix stored(std::int64_t rows, std::int64_t cols, const Floats& numbers,
                        const Kind& how) {
  const kernel::CompressedF32 w =
      how.compressed ? kernel::compress_f32(rows, cols, numbers.data()) : kernel::CompressedF32();
  return w.rows > 0 ? kernel::stored_compressed(w)
                    : kernel::store_matrix(rows, cols, numbers.data(), how);
}

bool fits(const ts::StoreAs& how, std::int64_t cols) {
  return how.packed_bits != 0 || cols % ts::block_layout(how.format).elements == 0;
}

// The largest of each row by the reference body beside the screened one.
std::int64_t check_largest(const ts::StoredMatrix& w, Activations how, std::int64_t known,
                           std::int64_t m, const Floats& x) {
  std::vector<ts::LargestProduct> found(static_cast<std::size_t>(m));
  const double bytes = w.largest(w, how, known, m, x.data(), w.cols, found.data());
  std::int64_t same = 0, rows = 0, again = 0;
  for (std::int64_t i = 0; i < m; ++i) {
    const ts::LargestProduct right =
        kernel::largest_stored_reference(w, how, known, x.data() + i * w.cols);
    const ts::LargestProduct& largest = found[static_cast<std::size_t>(i)];
    const bool finite = right.place >= 0;
    same += largest.place == right.place && (!finite || largest.value == right.value) ? 1 : 0;
    rows += largest.rows;
    again += largest.again;
  }
  CHECK(same == m);
  CHECK(rows <= m * w.rows);
  CHECK(again <= m * w.rows);
  CHECK(bytes ==
        doctest::Approx(w.screen->bytes() + static_cast<double>(again) * w.screen->again_bytes() +
                        static_cast<double>(rows) * w.bytes() / static_cast<double>(w.rows)));
  return rows;
}

}  // namespace

TEST_CASE("screened products: the largest is the whole product's, place and bits, on every path") {
  const std::int64_t shapes[][2] = {{1, 1},     {3, 32},   {16, 33},   {17, 64},  {100, 96},
                                    {333, 288}, {50, 608}, {35, 1536}, {20, 1600}};
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    for (const auto& shape : shapes) {
      const std::int64_t rows = shape[0], cols = shape[1];
      CAPTURE(rows);
      CAPTURE(cols);
      for (const Kind& how : kinds()) {
        if (!fits(how, cols)) {
          continue;
        }
        CAPTURE(ts::name_of(how.format));
        CAPTURE(how.packed_bits);
        CAPTURE(how.group);
        const Floats numbers = noise(rows * cols, 3);
        const ts::StoredMatrix w = kernel::screen_matrix(stored(rows, cols, numbers, how));
        for (const Activations activations :
             {Activations::f32, Activations::int8_groups, Activations::int8_blocks}) {
          CAPTURE(static_cast<int>(activations));
          for (const std::int64_t m : {1, 3, 5}) {
            check_largest(w, activations, rows, m, noise(m * cols, 4));
            check_largest(w, activations, (rows + 1) / 2, m, noise(m * cols, 5));
          }
        }
      }
    }
  }
}

TEST_CASE("screened products: rows that differ by a last bit, equal rows, and none but zeros") {
  for (const std::int64_t cols : {96, 704}) {
    const std::int64_t rows = 64;
    Floats numbers = noise(cols, 1);
    for (std::int64_t row = 1; row < rows; ++row) {  // all alike but one number, a last bit larger
      for (std::int64_t col = 0; col < cols; ++col) {
        numbers.push_back(numbers[static_cast<std::size_t>(col)]);
      }
      float& one = numbers[static_cast<std::size_t>(row * cols + row % cols)];
      one = row % 3 == 0 ? std::nextafter(one, 2.0f) : one;
    }
    for (const Kind& how : kinds()) {
      const ts::StoredMatrix w = kernel::screen_matrix(stored(rows, cols, numbers, how));
      for (const Activations activations : {Activations::f32, Activations::int8_groups}) {
        for (std::uint64_t seed = 0; seed < 20; ++seed) {
          check_largest(w, activations, rows, 1, noise(cols, 100 + seed));
        }
        check_largest(w, activations, rows, 1, Floats(static_cast<std::size_t>(cols), 0.0f));
      }
    }
  }
}

TEST_CASE("screened products: numbers of any size, and what is not finite is not told of") {
  for (const std::int64_t cols : {64, 640}) {
    const std::int64_t rows = 80;
    for (const Kind& how : kinds()) {
      Floats numbers = noise(rows * cols, 6);
      for (std::int64_t i = 0; i < rows * cols; ++i) {
        numbers[static_cast<std::size_t>(i)] *=
            std::ldexp(1.0f, static_cast<int>(i * 7919 % 24) - 12);
      }
      const ts::StoredMatrix w = kernel::screen_matrix(stored(rows, cols, numbers, how));
      for (const int power : {-140, -120, -60, -20, 0, 20, 40}) {
        Floats x = noise(cols, 7);
        for (float& number : x) {
          number = std::ldexp(number, power);
        }
        check_largest(w, Activations::f32, rows, 1, x);
        check_largest(w, Activations::int8_groups, rows, 1, x);
      }
      for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
        Floats x = noise(cols, 8);
        x[5] = bad;
        ts::LargestProduct found;
        w.largest(w, Activations::f32, rows, 1, x.data(), cols, &found);
        CHECK(found.place == -1);
      }
    }
  }
}

TEST_CASE("screened products: of lengths so small that a float has a digit, none is rounded down") {
  const std::int64_t rows = 32, cols = 3;
  const float least = std::numeric_limits<float>::denorm_min();
  Floats numbers(static_cast<std::size_t>(rows * cols), 0.0f);
  numbers[2] = 100 * least;            // row 0, the first that is looked at: 9.95
  numbers[16 * cols] = 5 * least;      // row 16 is 7.07 long, as a float 7: 10, and no more than
  numbers[16 * cols + 1] = 5 * least;  // 7 times the length of x, 9.92, had it been
  const ts::StoredMatrix w =
      kernel::screen_matrix(kernel::store_matrix(rows, cols, numbers.data()));
  check_largest(w, Activations::f32, rows, 1, {1e17f, 1e17f, 0.0995e17f});
}

TEST_CASE("screened products: few rows are read whole, whatever the matrix is cut into") {
  const std::int64_t rows = 4096, cols = 256;
  const Floats numbers = noise(rows * cols, 9);
  for (const Kind& how : kinds()) {
    const ts::StoredMatrix w = kernel::screen_matrix(stored(rows, cols, numbers, how));
    std::int64_t read = 0;
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      read += check_largest(w, Activations::int8_groups, rows, 1, noise(cols, 20 + seed));
    }
    CHECK(read < 10 * rows / (how.packed_bits != 0 ? 4 : 16));  // packed ones come by sixteens
    CHECK(w.screen->bytes() < 0.6 * static_cast<double>(rows * cols));
  }
  // Rows above 512 numbers of 16 bits or more are looked at again in 8 bits, those above 1536 are
  // in 8 bits alone; made in parts, a screen has as many.
  const struct {
    std::int64_t cols;
    int bits;
    bool again;
  } wide[] = {{512, 4, false}, {544, 4, true}, {1536, 4, true}, {1568, 8, false}};
  for (const auto& c : wide) {
    CAPTURE(c.cols);
    for (const Kind& how : {Kind(BlockFormat::bf16, 0, 32), Kind(BlockFormat::f32, 0, 32, true)}) {
      const ts::StoredMatrix w =
          kernel::screen_matrix(stored(83, c.cols, noise(83 * c.cols, 10), how), 40 * c.cols);
      CHECK(w.screen->parts.size() == 3);
      CHECK(w.screen->parts[0].bits == c.bits);
      CHECK(w.screen->again.rows == (c.again ? 83 : 0));
      check_largest(w, Activations::f32, 83, 4, noise(4 * c.cols, 11));
    }
  }
  // What is looked at again spares whole rows.
  const std::int64_t long_rows = 4096, length = 768;
  const ts::StoredMatrix w = kernel::screen_matrix(
      kernel::store_matrix(long_rows, length, noise(long_rows * length, 14).data()));
  std::int64_t whole = 0;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    whole += check_largest(w, Activations::f32, long_rows, 1, noise(length, 40 + seed));
  }
  CHECK(whole < 5 * 8);
}

TEST_CASE("screened products: a panel of packed rows is read whole, whatever of it is known") {
  const Floats numbers = noise(40 * 64, 12);
  for (const Kind& how : kinds()) {
    const ts::StoredMatrix w = kernel::screen_matrix(stored(40, 64, numbers, how));
    const std::int64_t read = check_largest(w, Activations::f32, 1, 1, noise(64, 13));
    CHECK(read == (how.packed_bits != 0 ? 16 : 1));
  }
}

TEST_CASE(
    "screened products: packed rows that take 2 bytes a number are not looked at one by one") {
  const struct {
    std::int64_t rows, group;  // a second panel of 2 rows alone; groups that take whole words
  } shapes[] = {{18, 32}, {160, 2}};
  for (const auto& shape : shapes) {
    CAPTURE(shape.rows);
    const std::int64_t cols = 640;
    const Floats numbers = noise(shape.rows * cols, 15);
    const ts::StoredMatrix w = kernel::screen_matrix(
        kernel::store_matrix(shape.rows, cols, numbers.data(), {BlockFormat::f32, 8, shape.group}));
    CHECK(w.bytes() > 1.5 * static_cast<double>(shape.rows * cols));
    CHECK(w.screen->again.rows == 0);
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      check_largest(w, Activations::f32, shape.rows, 1, noise(cols, 60 + seed));
      check_largest(w, Activations::int8_groups, shape.rows, 1, noise(cols, 60 + seed));
    }
  }
}

TEST_CASE("screened products: what is refused") {
  const Floats numbers = noise(64 * 64, 1);
  CHECK(error_of([&] {
          kernel::screen_matrix(
              kernel::store_matrix(64, 64, numbers.data(), {BlockFormat::q4_0, 0, 32}));
        }) ==
        "screen_matrix: q4_0 [64, 64], 0.5625 bytes a number; numbers of 8 bits and more have "
        "something to leave out");
  CHECK(error_of([&] { kernel::screen_matrix(kernel::store_matrix(0, 64, numbers.data())); }) ==
        "screen_matrix: f32 [0, 64], 0 bytes a number; numbers of 8 bits and more have something "
        "to leave out");
  Floats large = numbers;
  large[40 * 64 + 3] = 65505;  // the copy is made in parts of 16 rows
  CHECK(error_of([&] {
          kernel::screen_matrix(kernel::store_matrix(64, 64, large.data()), 16 * 64);
        }) == "screen_matrix: weight 40, 3 is 65505; weights must be within +-65504");
  const ts::StoredMatrix w = kernel::store_matrix(64, 64, numbers.data());
  const ts::Tensor x = ts::ones({2, 64});
  CHECK(error_of([&] { ts::largest_stored(x, w, Activations::f32, 64); }) ==
        "largest_stored: the first 64 numbers of x [2, 64] times [64, 64], not screened; 1 to 64 "
        "of [M, 64] times what screen_matrix makes are right");
  const ts::StoredMatrix screened = kernel::screen_matrix(w);
  for (const std::int64_t known : {0, 65}) {
    CHECK(error_of([&] { ts::largest_stored(x, screened, Activations::f32, known); }) ==
          "largest_stored: the first " + std::to_string(known) +
              " numbers of x [2, 64] times [64, 64], screened; 1 to 64 of [M, 64] times what "
              "screen_matrix makes are right");
  }
}

namespace {

ts::Transformer model_with(std::int64_t vocabulary, const ts::Weights* weights, bool tied) {
  ts::ModelConfig c;
  c.name = "many tokens";
  c.layers = 2;
  c.width = 64;
  c.heads = c.kv_heads = 4;
  c.head_size = 16;
  c.hidden = 128;
  c.vocabulary = vocabulary;
  c.context = 64;
  c.norm = ts::Norm::rms;
  c.position = ts::Position::rotary;
  c.activation = ts::Activation::swiglu;
  c.tied = tied;
  const ts::Transformer model(c, 5);
  if (weights == nullptr) {
    return model;
  }
  ts::LoadOptions how;
  how.weights = *weights;
  how.activations = *weights == ts::Weights::int8 ? Activations::int8_groups : Activations::f32;
  return ts::with_weights(model, how);
}

}  // namespace

TEST_CASE("a screened head: the same tokens from fewer bytes, which the counters tell") {
  ts::GenerateOptions greedy;
  greedy.temperature = 0;
  const ts::List<std::vector<std::int32_t>> prompts = {{1, 2, 3}, {4}, {5, 6, 7, 8, 9}};
  for (const ts::Weights weights : {ts::Weights::f32, ts::Weights::bf16, ts::Weights::int8}) {
    for (const bool tied : {false, true}) {
      CAPTURE(static_cast<int>(weights));
      CAPTURE(tied);
      const ts::Transformer model = model_with(3000, &weights, tied);
      ts::Transformer screened = model;
      ts::screen_head(screened);
      CHECK(!model.head_matrix().stored->screen);
      // Beyond the context, with and without the cache, one prompt and three.
      for (const std::int64_t known : {0, 1000}) {
        const ts::Generation a = ts::generate_batch(model, prompts, 80, greedy, known);
        const ts::Generation b = ts::generate_batch(screened, prompts, 80, greedy, known);
        for (std::size_t i = 0; i < prompts.size(); ++i) {
          CHECK(a.sequences[i].ids == b.sequences[i].ids);
          CHECK(ts::generate_tokens(screened, prompts[i], 80, greedy, known) == a.sequences[i].ids);
        }
      }
      const ts::Generation a = ts::generate_batch(model, {{1}}, 20, greedy);
      ts::Generation b;
      ts::Profile profile;
      b = ts::generate_batch(screened, {{1}}, 20, greedy);
      double read = 0, head = 0, flops = 0;
      for (const ts::OpRecord& op : profile.records()) {
        if (op.name == "matmul" || op.name == "linear" || op.name == "largest of matmul") {
          read += op.reads[1].bytes();
          flops += op.matmul_flops;
        }
        head += op.name == "largest of matmul" ? 1 : 0;
      }
      CHECK(head == 20);
      CHECK(b.decode.all.weight_bytes < a.decode.all.weight_bytes);
      CHECK(b.prefill.all.weight_bytes + b.decode.all.weight_bytes == doctest::Approx(read));
      double attention = 0;
      for (const ts::OpRecord& op : profile.records()) {
        attention += op.name == "attention" ? op.matmul_flops : 0;
      }
      CHECK(b.prefill.all.matmul_flops + b.decode.all.matmul_flops ==
            doctest::Approx(flops + attention));
    }
  }
}

TEST_CASE("a screened head is not asked where it cannot answer") {
  const ts::Weights bf16 = ts::Weights::bf16;
  ts::Transformer model = model_with(600, &bf16, true), screened = model;
  ts::screen_head(screened);
  const auto asked = [&](const ts::GenerateOptions& options, std::size_t prompts) {
    const std::vector<std::vector<std::int32_t>> some(prompts, {1, 2});
    ts::Profile profile;
    const ts::Generation b = ts::generate_batch(screened, some, 6, options);
    int count = 0;
    for (const ts::OpRecord& op : profile.records()) {
      count += op.name == "largest of matmul" ? 1 : 0;
    }
    const ts::Generation a = ts::generate_batch(model, some, 6, options);
    for (std::size_t i = 0; i < prompts; ++i) {
      CHECK(a.sequences[i].ids == b.sequences[i].ids);
    }
    return count;
  };
  ts::GenerateOptions options;
  CHECK(asked(options, 1) == 0);  // draws from all
  options.temperature = 0;
  CHECK(asked(options, 1) == 6);
  CHECK(asked(options, 8) == 6);
  CHECK(asked(options, 9) == 0);
  options.repetition_penalty = 1.1;
  CHECK(asked(options, 1) == 0);
  options.repetition_penalty = 1;
  options.cache = false;
  CHECK(asked(options, 1) == 0);

  // A head whose rows are all alike: every row may be the largest, so the copy is not asked again.
  ts::Transformer alike = model_with(600, nullptr, true);
  const ts::Tensor table = alike.head_matrix().value;
  for (std::int64_t i = 0; i < table.count(); ++i) {
    alike.parameters[0].value.data()[i] = alike.parameters[0].value.data()[i % 64];
  }
  ts::LoadOptions how;
  how.weights = ts::Weights::bf16;
  model = ts::with_weights(alike, how);
  screened = model;
  ts::screen_head(screened);
  options.cache = true;
  CHECK(asked(options, 1) == 1);

  // Nor where it cannot tell, as of activations of 1e19: counters then have both readings.
  ts::Transformer huge = model_with(600, &bf16, true);
  for (std::int64_t i = 0; i < 64; ++i) {
    huge.parameters.back().value.data()[i] *= 1e19f;
  }
  model = huge;
  screened = huge;
  ts::screen_head(screened);
  CHECK(asked(options, 1) == 1);
  ts::Generation made;
  double bytes = 0, flops = 0;
  {
    ts::Profile profile;
    made = ts::generate_batch(screened, {{1}}, 3, options);
    for (const ts::OpRecord& op : profile.records()) {
      const bool weights = op.name == "matmul" || op.name == "largest of matmul";
      bytes += weights ? op.reads[1].bytes() : 0;
      flops += op.matmul_flops;
    }
  }
  CHECK(made.prefill.all.weight_bytes + made.decode.all.weight_bytes == doctest::Approx(bytes));
  CHECK(made.prefill.all.matmul_flops + made.decode.all.matmul_flops == doctest::Approx(flops));

  // Logits that are not finite are told of as without it.
  ts::Transformer broken = model_with(600, &bf16, true);
  ts::screen_head(broken);
  broken.parameters.back().value.data()[0] = NAN;
  CHECK(error_of([&] { ts::generate_tokens(broken, {1}, 1, options); }) ==
        "generate: the model's logit of token 0 is nan; weights that give finite numbers are "
        "right");
  ts::Transformer learns = model_with(600, nullptr, false);
  CHECK(error_of([&] { ts::screen_head(learns); }) ==
        "screen_head: lm_head.weight of many tokens learns, and a copy would not; load(path, "
        "{Weights::as_stored}) or with_weights give weights that stay");
}
