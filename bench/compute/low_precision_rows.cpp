// bf16, int8 and 4-bit products beside oneDNN's, and beside the same product in f32.
#include <initializer_list>

#include "peers.hpp"
#include "tinyscale.hpp"

#if __has_include("tinyscale/compute/gemm_bf16.hpp")
#define BENCH_OWN_BF16 1
#endif
#if __has_include("tinyscale/compute/gemm_int8.hpp")
#define BENCH_OWN_INT8 1
#endif

namespace ts = tinyscale;

namespace bench {
namespace {

struct Size {
  int m, n, k;
  std::string name() const { return ts::detail::cat({m, " x ", n, " x ", k}); }
  double flops() const { return 2.0 * m * n * k; }
};
constexpr Size sizes[] = {{256, 256, 256},    {512, 512, 512},  {1024, 1024, 1024},
                          {2048, 2048, 2048}, {512, 3072, 768}, {512, 768, 3072},
                          {8, 4096, 4096},    {64, 4096, 4096}};

void bf16(Bench& bench, const Size& s) {
  const Numbers a = numbers(std::int64_t{s.m} * s.k, 1);
  const Numbers b = numbers(std::int64_t{s.k} * s.n, 2);
  Numbers c_own(static_cast<std::size_t>(s.m) * static_cast<std::size_t>(s.n));
  Case c;
  c.group = "bf16-1t";
  c.what = s.name();
  c.unit = "GFLOP/s";
  c.work = s.flops();
  Way own{"ours", {}, 1, true};
#if defined(BENCH_OWN_BF16)
  const ts::kernels::PackedBf16 packed =
      ts::kernels::pack_bf16(ts::kernels::Trans::no, s.k, s.n, b.data(), s.n);
  own = timed("ours", Clock::thread, one_thread([&] {
                ts::kernels::gemm_bf16(ts::kernels::Trans::no, s.m, a.data(), s.k, packed, 0.0f,
                                       c_own.data(), s.n);
              }));
  own = writing(own, c_own.data(), std::int64_t{s.m} * s.n);
#endif
  c.ways = {own, onednn_packed(bench, 1, s.m, s.n, s.k, Format::bf16),
            openblas(bench).multiply(1, s.m, s.n, s.k, a.data(), b.data(), c_own.data()),
            limit(s.flops(), 2.0 * s.n * s.k, 1, Arithmetic::bf16)};
  c.targets = {{"oneDNN bf16", 0.9}};
  if (ts::cpu().amx_bf16) {
    c.targets.push_back({"OpenBLAS", 6.0});
  }
  c.same = 0.02;  // oneDNN's numbers are cut to bf16, OpenBLAS's not rounded
  bench.run(c);
}

void int8(Bench& bench, const Size& s) {
  const Numbers fa = numbers(std::int64_t{s.m} * s.k, 1);
  const Numbers fb = numbers(std::int64_t{s.k} * s.n, 2);
  Numbers fc(static_cast<std::size_t>(s.m) * static_cast<std::size_t>(s.n));
  std::vector<std::int8_t, LineAllocator<std::int8_t>> a, b;
  for (const float x : fa) {
    a.push_back(static_cast<std::int8_t>(x * 100.0f));
  }
  for (const float x : fb) {
    b.push_back(static_cast<std::int8_t>(x * 100.0f));
  }
  std::vector<std::int32_t, LineAllocator<std::int32_t>> c_own(fc.size());
  Case c;
  c.group = "int8-1t";
  c.what = s.name();
  c.unit = "GOP/s";
  c.work = s.flops();
  const bool units = *ts::detail::int8_unit(ts::cpu(), ts::cpu().path) != '\0';  // VNNI, AMX
  Way own{"ours", {}, 1, true};
#if defined(BENCH_OWN_INT8)
  const ts::kernels::PackedInt8 packed =
      ts::kernels::pack_int8(ts::kernels::Trans::no, s.k, s.n, b.data(), s.n);
  own = timed("ours", Clock::thread, one_thread([&] {
                ts::kernels::gemm_int8(ts::kernels::Trans::no, s.m, a.data(), s.k, packed,
                                       c_own.data(), s.n);
              }));
#endif
  c.ways = {own, onednn_packed(bench, 1, s.m, s.n, s.k, Format::int8),
            openblas(bench).multiply(1, s.m, s.n, s.k, fa.data(), fb.data(), fc.data()),
            limit(s.flops(), 1.0 * s.n * s.k, 1, Arithmetic::int8)};
  if (units) {
    c.targets = {{"oneDNN u8s8s32", 0.8}};
  }
  bench.run(c);
}

}  // namespace

void low_precision_rows(Bench& bench) {
  if (bench.wants("bf16-1t", "bf16 product, weights packed, f32 sums, 1 thread, GFLOP/s")) {
    if (!ts::cpu().amx_bf16) {
      bench.skip("AMX",
                 "this processor has none; the limit is vdpbf16ps or f32, whichever is faster; "
                 "6 x OpenBLAS is a target for AMX");
    }
    for (const Size& s : sizes) {
      bf16(bench, s);
    }
  }
  if (bench.wants("int8-1t", "int8 product, weights packed, int32 sums, 1 thread, GOP/s")) {
    if (*ts::detail::int8_unit(ts::cpu(), ts::cpu().path) == '\0') {
      bench.skip("VNNI",
                 "this processor has none; oneDNN's sums may saturate there, and there is "
                 "no target");
    }
    for (const Size& s : sizes) {
      int8(bench, s);
    }
  }
}

}  // namespace bench
