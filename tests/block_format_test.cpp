// Stored blocks: their values and the way back, against ggml's own blocks of the same 1,024
// numbers.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "error_of.hpp"
#include "kernel_tests.hpp"
#include "model_files.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;
using kernel_tests::paths;
using ts::BlockFormat;

namespace {

const BlockFormat all_blocks[] = {
    BlockFormat::q8_0, BlockFormat::q4_0, BlockFormat::q4_1,  BlockFormat::q5_0, BlockFormat::q5_1,
    BlockFormat::q8_1, BlockFormat::q2_k, BlockFormat::q3_k,  BlockFormat::q4_k, BlockFormat::q5_k,
    BlockFormat::q6_k, BlockFormat::q8_k, BlockFormat::mxfp4, BlockFormat::nvfp4};

std::string golden(const std::string& file) {
  return file_bytes(model_path("quant-blocks/" + file));
}

std::vector<float> values(BlockFormat format, const std::string& blocks, std::size_t count) {
  std::vector<float> out(count);
  ts::kernels::dequantize_blocks(format, static_cast<std::int64_t>(count), bytes_of(blocks),
                                 out.data());
  return out;
}

std::string stored(BlockFormat format, const std::vector<float>& x) {
  const std::int64_t count = static_cast<std::int64_t>(x.size());
  std::string out(static_cast<std::size_t>(ts::block_row_bytes(format, count)), '\0');
  ts::kernels::quantize_blocks(format, count, x.data(), reinterpret_cast<std::uint8_t*>(&out[0]));
  return out;
}

double rmse(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  }
  return std::sqrt(sum / static_cast<double>(a.size()));
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0);
}

std::vector<float> normals(std::size_t n) {
  std::vector<float> out;
  for (std::size_t i = 0; i < n; ++i) {
    out.push_back(static_cast<float>(ts::normal01(5, i)));
  }
  return out;
}

}  // namespace

TEST_CASE("every code of f16 becomes the float32 of the same value, on every path") {
  std::vector<std::uint16_t> codes;
  for (int i = 0; i < 65536; ++i) {
    codes.push_back(static_cast<std::uint16_t>(i));
  }
  std::vector<float> wanted, from_path(65536);
  bool right = true;
  for (const std::uint16_t code : codes) {
    const float x = ts::from_f16(code), y = ts::detail::half_to_float(code);
    wanted.push_back(y);
    right =
        right && (std::isnan(x) ? std::isnan(y) : ts::detail::bits_of(x) == ts::detail::bits_of(y));
  }
  CHECK(right);
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    for (const std::int64_t count : {65536, 65529, 1}) {  // with and without a rest
      std::fill(from_path.begin(), from_path.end(), 0.0f);
      ts::kernels::dequantize_blocks(BlockFormat::f16, count,
                                     reinterpret_cast<const std::uint8_t*>(codes.data()),
                                     from_path.data());
      CHECK(std::memcmp(from_path.data(), wanted.data(), static_cast<std::size_t>(4 * count)) == 0);
    }
  }
}

TEST_CASE("blocks of any bytes have the values of the reference body, bit for bit, on every path") {
  const std::int64_t count = 16384;
  for (int i = 0; i <= static_cast<int>(BlockFormat::nvfp4); ++i) {
    const BlockFormat format = static_cast<BlockFormat>(i);
    CAPTURE(ts::name_of(format));
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(ts::block_row_bytes(format, count)));
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      bytes[at] = static_cast<std::uint8_t>(256.0f * ts::uniform01(17, at));
    }
    std::vector<float> wanted(static_cast<std::size_t>(count)), found = wanted;
    ts::detail::dequantize_blocks_reference(format, count, bytes.data(), wanted.data());
    for (const ts::CpuPath path : paths()) {
      const ts::detail::PathScope scope(path);
      ts::kernels::dequantize_blocks(format, count, bytes.data(), found.data());
      std::size_t same = 0;
      for (std::size_t at = 0; at < found.size(); ++at) {
        same += std::isnan(wanted[at])
                    ? std::isnan(found[at])
                    : ts::detail::bits_of(wanted[at]) == ts::detail::bits_of(found[at]);
      }
      CHECK(same == found.size());
    }
  }
}

TEST_CASE("numbers stored in the simple formats become those of the reference bodies, exactly") {
  const std::vector<float> x = normals(2048);
  const auto check = [&](BlockFormat format, std::size_t block,
                         float (*right)(BlockFormat, const float*, int)) {
    CAPTURE(ts::name_of(format));
    const std::vector<float> found = values(format, stored(format, x), x.size());
    std::size_t same = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      same += found[i] == right(format, x.data() + i / block * block, static_cast<int>(i % block));
    }
    CHECK(same == x.size());
  };
  const auto eight = [](BlockFormat, const float* b, int i) {
    return ts::detail::round_q8_reference(b, i);
  };
  check(BlockFormat::q8_0, 32, eight);
  check(BlockFormat::q8_1, 32, eight);
  check(BlockFormat::q8_k, 256,
        [](BlockFormat, const float* b, int i) { return ts::detail::round_q8_k_reference(b, i); });
  for (const BlockFormat format :
       {BlockFormat::q4_0, BlockFormat::q4_1, BlockFormat::q5_0, BlockFormat::q5_1}) {
    check(format, 32, [](BlockFormat f, const float* b, int i) {
      const bool affine = f == BlockFormat::q4_1 || f == BlockFormat::q5_1;
      const int bits = f == BlockFormat::q4_0 || f == BlockFormat::q4_1 ? 4 : 5;
      return ts::detail::round_nibble_reference(b, bits, affine, i);
    });
  }
}

TEST_CASE("mxfp4 and nvfp4 lose no more than the best of the scales and codes that are tried") {
  const std::vector<float> x = normals(2048);
  for (const BlockFormat format : {BlockFormat::mxfp4, BlockFormat::nvfp4}) {
    CAPTURE(ts::name_of(format));
    const std::vector<float> found = values(format, stored(format, x), x.size());
    const std::size_t block = format == BlockFormat::mxfp4 ? 32 : 16;
    for (std::size_t first = 0; first < x.size(); first += block) {
      double error = 0;
      for (std::size_t i = first; i < first + block; ++i) {
        error += std::pow(double{found[i]} - double{x[i]}, 2);
      }
      const double right = format == BlockFormat::mxfp4
                               ? ts::detail::mxfp4_error_reference(x.data() + first)
                               : ts::detail::nvfp4_error_reference(x.data() + first);
      CHECK(error == doctest::Approx(right).epsilon(1e-6));  // x / scale rounds, by 2^-24
    }
  }
}

TEST_CASE("super-blocks: every code is the nearest of all under the scales that are stored") {
  const std::vector<float> x = normals(2048);
  const struct {
    BlockFormat format;
    int least, most;
  } all[] = {{BlockFormat::q2_k, 0, 3},
             {BlockFormat::q3_k, -4, 3},
             {BlockFormat::q4_k, 0, 15},
             {BlockFormat::q5_k, 0, 31},
             {BlockFormat::q6_k, -32, 31}};
  for (const auto& f : all) {
    CAPTURE(ts::name_of(f.format));
    const std::string blocks = stored(f.format, x);
    const std::vector<float> found = values(f.format, blocks, x.size());
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto bytes = static_cast<std::size_t>(ts::block_layout(f.format).bytes);
      const ts::detail::BlockStep step = ts::detail::block_step_reference(
          f.format, bytes_of(blocks) + i / 256 * bytes, static_cast<int>(i % 256));
      const ts::detail::BlockFit fit{double{step.scale}, double{step.minimum}};
      const int q = ts::detail::nearest_code_reference(double{x[i]}, fit, f.least, f.most);
      const double right = std::fabs(fit.scale * q - fit.minimum - double{x[i]});
      // x + minimum and its quotient round: by 2^-23 of up to 4 + 4.
      worst = std::max(worst, std::fabs(double{found[i]} - double{x[i]}) - right);
    }
    CHECK(worst <= std::ldexp(8.0, -23));
  }
}

TEST_CASE("super-blocks: the scales that are searched lose at most a tenth more than a fine grid") {
  const std::vector<float> x = normals(1024);
  const auto error = [](int n, const float* from, const ts::detail::BlockFit& fit, int least,
                        int most) {
    return ts::detail::fit_error_reference(n, from, fit, least, most);
  };
  for (const int most : {3, 15, 31}) {  // q2_k, q4_k, q5_k
    const int n = most == 3 ? 16 : 32;
    double ours = 0, grid = 0;
    for (std::size_t first = 0; first < x.size(); first += static_cast<std::size_t>(n)) {
      const float* const from = x.data() + first;
      ours += error(n, from, ts::detail::fit_affine(n, from, most), 0, most);
      grid += ts::detail::fit_grid_reference(n, from, true, 0, most);
    }
    CAPTURE(most);
    CAPTURE(ours / grid);
    CHECK(ours < 1.1 * grid);
  }
  for (const int half : {4, 32}) {  // q3_k, q6_k
    double ours = 0, grid = 0;
    for (std::size_t first = 0; first < x.size(); first += 16) {
      const float* const from = x.data() + first;
      const ts::detail::BlockFit fit{ts::detail::fit_symmetric(16, from, half), 0};
      ours += error(16, from, fit, -half, half - 1);
      grid += ts::detail::fit_grid_reference(16, from, false, -half, half - 1);
    }
    CAPTURE(half);
    CAPTURE(ours / grid);
    CHECK(ours < 1.1 * grid);
  }
}

TEST_CASE("ggml's blocks have ggml's values, bit for bit, in every format and on every path") {
  const std::string input = golden("input.f32");
  if (input.empty()) {
    MESSAGE("skipped: no data/models/quant-blocks");
    return;
  }
  for (int i = 1; i <= static_cast<int>(BlockFormat::nvfp4); ++i) {
    const BlockFormat format = static_cast<BlockFormat>(i);
    if (format == BlockFormat::q8_1 || format == BlockFormat::q8_k) {
      continue;  // of activations: no files have them
    }
    const std::string name = ts::name_of(format);
    CAPTURE(name);
    const std::string blocks = golden("blocks_" + name + ".bin");
    const std::vector<float> wanted = floats_of(golden("dequant_" + name + ".f32"));
    REQUIRE(blocks.size() == static_cast<std::size_t>(ts::block_row_bytes(format, 1024)));
    REQUIRE(wanted.size() == 1024);
    for (const ts::CpuPath path : paths()) {
      const ts::detail::PathScope scope(path);
      CHECK(same_bits(values(format, blocks, 1024), wanted));
      CHECK(same_bits(values(format, "\x7f" + blocks, 0), {}));
    }
  }
}

TEST_CASE("the simple formats are rounded byte for byte as ggml does") {
  const std::vector<float> input = floats_of(golden("input.f32"));
  if (input.empty()) {
    MESSAGE("skipped: no data/models/quant-blocks");
    return;
  }
  for (const BlockFormat format :
       {BlockFormat::f16, BlockFormat::bf16, BlockFormat::q8_0, BlockFormat::q4_0,
        BlockFormat::q4_1, BlockFormat::q5_0, BlockFormat::q5_1}) {
    const std::string name = ts::name_of(format);
    CAPTURE(name);
    CHECK(stored(format, input) == golden("blocks_" + name + ".bin"));
  }
}

TEST_CASE("the searched formats lose as little as ggml's: at most 1 % more") {
  const std::vector<float> input = floats_of(golden("input.f32"));
  if (input.empty()) {
    MESSAGE("skipped: no data/models/quant-blocks");
    return;
  }
  for (const BlockFormat format :
       {BlockFormat::q2_k, BlockFormat::q3_k, BlockFormat::q4_k, BlockFormat::q5_k,
        BlockFormat::q6_k, BlockFormat::mxfp4, BlockFormat::nvfp4}) {
    const std::string name = ts::name_of(format);
    CAPTURE(name);
    const double ours = rmse(values(format, stored(format, input), 1024), input);
    const double theirs = rmse(floats_of(golden("dequant_" + name + ".f32")), input);
    CHECK(ours < 1.01 * theirs);
  }
}

TEST_CASE(
    "what a block held comes back nearly unchanged when it is stored again; zeros and tiny ones "
    "too") {
  const std::vector<float> x = normals(512);
  for (const BlockFormat format : all_blocks) {
    const std::string name = ts::name_of(format);
    CAPTURE(name);
    const std::vector<float> once = values(format, stored(format, x), x.size());
    CHECK(rmse(once, x) < (format == BlockFormat::q2_k ? 0.35 : 0.2));
    const std::vector<float> twice = values(format, stored(format, once), x.size());
    CHECK(rmse(twice, once) < 0.1 * rmse(once, x) + 1e-3);
    // All zeros, one number, tiny ones: finite, and zero stays zero.
    std::vector<float> edge(512, 0.0f);
    CHECK(values(format, stored(format, edge), 512) == edge);
    edge[7] = -3.0f;
    CHECK(values(format, stored(format, edge), 512)[7] == doctest::Approx(-3.0).epsilon(0.01));
    edge.assign(512, 1e-42f);
    for (const float y : values(format, stored(format, edge), 512)) {
      CHECK_UNARY(std::fabs(y) < 1e-30f);
    }
  }
}

TEST_CASE("q8_1 has the sum of its block, q8_k the sums of 16") {
  const std::vector<float> x = normals(256);
  const std::string q8_1 = stored(BlockFormat::q8_1, x), q8_0 = stored(BlockFormat::q8_0, x);
  CHECK(same_bits(values(BlockFormat::q8_1, q8_1, 256), values(BlockFormat::q8_0, q8_0, 256)));
  int sum = 0;
  for (int i = 4; i < 36; ++i) {
    sum += static_cast<std::int8_t>(q8_1[static_cast<std::size_t>(i)]);
  }
  const float d = ts::detail::half_at(bytes_of(q8_1));
  CHECK(ts::detail::half_at(bytes_of(q8_1) + 2) ==
        doctest::Approx(static_cast<double>(d) * sum).epsilon(0.002));
  const std::string q8_k = stored(BlockFormat::q8_k, x);
  for (std::size_t part = 0; part < 16; ++part) {
    int codes = 0;
    for (std::size_t i = 0; i < 16; ++i) {
      codes += static_cast<std::int8_t>(q8_k[4 + 16 * part + i]);
    }
    std::int16_t found = 0;
    std::memcpy(&found, q8_k.data() + 260 + 2 * part, 2);
    CHECK(found == codes);
  }
}

TEST_CASE("the codes that mean no number are NaN: e8m0 255, e4m3 127") {
  std::string block(17, '\x22');
  block[0] = '\xff';
  CHECK(std::isnan(values(BlockFormat::mxfp4, block, 32)[0]));
  block[0] = '\0';  // 2^-127, times 1
  CHECK(values(BlockFormat::mxfp4, block, 32)[0] == std::ldexp(1.0f, -127));
  std::string nv(36, '\x22');
  nv[0] = '\x7f';
  nv[1] = '\x38';
  const std::vector<float> x = values(BlockFormat::nvfp4, nv, 64);
  CHECK(std::isnan(x[0]));
  CHECK(x[16] == 1.0f);
}

TEST_CASE("what no block can hold is an error that names the element") {
  std::vector<float> x(64, 1.0f);
  const float inf = std::numeric_limits<float>::infinity();
  x[5] = std::nanf("");
  CHECK(
      error_of([&] { stored(BlockFormat::q8_0, x); }) ==
      "quantize_blocks: element 5 is nan; blocks of q8_0 hold numbers of magnitude up to 8319008");
  x[5] = -inf;
  CHECK(
      error_of([&] { stored(BlockFormat::q4_0, x); }) ==
      "quantize_blocks: element 5 is -inf; blocks of q4_0 hold numbers of magnitude up to 524032");
  x[5] = 3000.0f;
  CHECK(error_of([&] { stored(BlockFormat::nvfp4, x); }) ==
        "quantize_blocks: element 5 is 3000; blocks of nvfp4 hold numbers of magnitude up to 2688");
  x[5] = -65520.0f;
  CHECK(error_of([&] { stored(BlockFormat::f16, x); }) ==
        "quantize_blocks: element 5 is -65520; f16 holds numbers of magnitude up to 65504");
  x[5] = std::numeric_limits<float>::max();
  CHECK(error_of([&] { stored(BlockFormat::bf16, x); }) ==
        "quantize_blocks: element 5 is 3.40282347e+38; bf16 holds numbers of magnitude up to "
        "3.38953139e+38");
  CHECK(error_of([&] { stored(BlockFormat::q4_k, x); }) ==
        "block_row_bytes: a row of 64 elements in q4_K; a multiple of 256 is right");
  x[5] = inf;
  x[6] = std::nanf("");
  for (const BlockFormat format : {BlockFormat::f32, BlockFormat::f16, BlockFormat::bf16}) {
    const std::vector<float> back = values(format, stored(format, x), 64);
    CHECK(back[5] == inf);
    CHECK(std::isnan(back[6]));
  }
  for (const BlockFormat format : all_blocks) {  // the largest that each can hold
    const std::string name = ts::name_of(format);
    CAPTURE(name);
    const float most = ts::detail::largest_stored(format);
    std::vector<float> large(256, most);
    large[1] = -most;
    const std::vector<float> back = values(format, stored(format, large), 256);
    CHECK(back[0] == doctest::Approx(static_cast<double>(most)).epsilon(0.3));
    CHECK(back[1] == doctest::Approx(-static_cast<double>(most)).epsilon(0.3));
  }
}
