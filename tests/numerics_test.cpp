// Rounding by device count: measured on meshes, bound by the formula, walked on the host.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;
using ts::SumFormat;

#if !defined(TINYSCALE_NO_THREADS)

TEST_CASE("numerics: an all_reduce on a mesh rounds as its schedule walked on the host") {
  const std::int64_t elements = 101;  // chunks of two sizes
  for (const ts::Algorithm algorithm :
       {ts::Algorithm::ring, ts::Algorithm::ring_both_ways, ts::Algorithm::line,
        ts::Algorithm::halving_doubling, ts::Algorithm::tree, ts::Algorithm::direct}) {
    for (const int n : {2, 3, 8}) {
      for (const SumFormat format : {SumFormat::f32, SumFormat::bf16_sent}) {
        CAPTURE(ts::name_of(algorithm));
        CAPTURE(n);
        CAPTURE(ts::name_of(format));
        ts::List<std::vector<float>> inputs;
        for (int d = 0; d < n; ++d) {
          const auto seed = static_cast<std::uint64_t>(d + 1);
          inputs.push_back(ts::randn({elements}, seed).values());
        }
        const ts::Mesh mesh(ts::machine("tpu-v5e", {n}), {{"x", n}});
        const ts::MeshRun run = mesh.run([&](ts::Device& device) {
          ts::CollectiveOptions how;
          how.algorithm = algorithm;
          how.format = format == SumFormat::f32 ? ts::DType::f32 : ts::DType::bf16;
          const ts::Tensor x =
              ts::tensor({elements}, inputs[static_cast<std::size_t>(device.rank())]);
          device.keep("sum", device.all_reduce(x, "x", ts::Reduce::sum, how));
        });
        const ts::detail::WalkedSum walked =
            ts::detail::walk_all_reduce(run.log().calls[0].shape->spec, inputs, format);
        for (int d = 0; d < n; ++d) {
          CHECK(run.kept(d, "sum").values() == walked.held[static_cast<std::size_t>(d)]);
        }
      }
    }
  }
}

TEST_CASE("numerics: errors of all_reduce stay below their bounds and grow as their order says") {
  const ts::NumericsReport report = ts::reduction_error();
  CHECK(report.rows.size() == 5 * 3 * 4);
  for (const ts::NumericsRow& row : report.rows) {
    CAPTURE(row.way);
    CAPTURE(ts::name_of(row.format));
    CAPTURE(row.parts);
    CHECK(row.typical > 0);
    CHECK(row.typical < row.error);
    CHECK(row.error <= row.bound);
  }
  const auto error = [&](const char* way, SumFormat format, int n) {
    return report.row(way, format, n).error;
  };
  const auto bound = [&](const char* way, int n) {
    return report.row(way, SumFormat::f32, n).bound / ts::detail::unit_f32;
  };
  CHECK(bound("ring", 16) == doctest::Approx(15).epsilon(1e-5));             // n - 1 sums
  CHECK(bound("ring both ways", 16) == doctest::Approx(9).epsilon(1e-5));    // 8, then the rest
  CHECK(bound("halving/doubling", 16) == doctest::Approx(4).epsilon(1e-5));  // log2 n
  CHECK(bound("tree", 16) == doctest::Approx(4).epsilon(1e-5));
  CHECK(bound("direct", 16) == doctest::Approx(15).epsilon(1e-5));
  // A ring that sends bf16 adds in bf16 in effect; direct sends each number once.
  CHECK(error("ring", SumFormat::bf16_sent, 16) > 2 * error("direct", SumFormat::bf16_sent, 16));
  CHECK(error("ring", SumFormat::bf16_sent, 16) > 2 * error("ring", SumFormat::bf16_sent, 2));
  CHECK(error("direct", SumFormat::bf16_sent, 16) < 1.5 * ts::detail::unit_bf16);
  CHECK(error("direct", SumFormat::bf16, 16) > 2 * error("direct", SumFormat::bf16_sent, 16));
  CHECK(error("halving/doubling", SumFormat::bf16_sent, 16) <
        error("ring", SumFormat::bf16_sent, 16));
  const auto typical = [&](const char* way, SumFormat format, int n) {
    return report.row(way, format, n).typical;
  };
  for (const char* const way : {"ring", "direct"}) {  // as a random walk: with the root of n
    CHECK(typical(way, SumFormat::f32, 16) > 1.5 * typical(way, SumFormat::f32, 4));
    CHECK(typical(way, SumFormat::f32, 16) < 4 * typical(way, SumFormat::f32, 4));
  }
  CHECK(error("ring", SumFormat::f32, 16) < 1e-6);
  CHECK(report.table().rows.size() == report.rows.size());
  CHECK(report.csv().rfind("way,format,parts,typical,worst,bound\nring,f32,2,", 0) == 0);
  CHECK(error_of([&] { report.row("ring", SumFormat::f32, 5); }) ==
        "NumericsReport: no row ring, f32, 5; ask for one that was measured");
  ts::ReductionErrorOptions none;
  none.elements = 0;
  CHECK(error_of([&] { ts::reduction_error(none); }) ==
        "reduction_error: 0 elements; at least 1 is right");
}

#endif  // TINYSCALE_NO_THREADS

TEST_CASE("numerics: merged attention") {
  const ts::NumericsReport report = ts::merge_error();
  CHECK(report.rows.size() == 3 * 6);
  for (const ts::NumericsRow& row : report.rows) {
    CAPTURE(ts::name_of(row.format));
    CAPTURE(row.parts);
    CHECK(row.error <= row.bound);
  }
  const auto error = [&](SumFormat format, int n) {
    return report.row("log-sum-exp", format, n).error;
  };
  CHECK(error(SumFormat::f32, 32) < 2e-6);
  CHECK(error(SumFormat::bf16_sent, 32) < ts::detail::unit_bf16);  // does not grow with n
  CHECK(error(SumFormat::bf16, 32) > 4 * error(SumFormat::bf16_sent, 32));
  CHECK(error(SumFormat::bf16, 32) > 100 * error(SumFormat::f32, 32));
  ts::MergeErrorOptions odd;
  odd.blocks = {3};
  CHECK(error_of([&] { ts::merge_error(odd); }) ==
        "merge_error: 256 keys in 3 blocks; a number that divides them is right");
}

TEST_CASE("numerics: attention of no queries or keys is refused") {
  for (std::int64_t ts::MergeErrorOptions::*const member :
       {&ts::MergeErrorOptions::queries, &ts::MergeErrorOptions::keys,
        &ts::MergeErrorOptions::head_size}) {
    ts::MergeErrorOptions none;
    none.*member = 0;
    CHECK(error_of([&] { ts::merge_error(none); }).find("; at least 1 of each is right") !=
          std::string::npos);
  }
  ts::MergeErrorOptions none;
  none.keys = 0;
  CHECK(error_of([&] { ts::merge_error(none); }) ==
        "merge_error: 8 queries, 0 keys, head_size 32; at least 1 of each is right");
}
