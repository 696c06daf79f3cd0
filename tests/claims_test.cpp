// examples/claims: every figure of the well-known claims to its printed digits, what was run beside
// its formula, verdicts that a wrong figure turns, and what stays unknown.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <sstream>

#include "../examples/claims/claims.hpp"
#include "error_of.hpp"

namespace ts = tinyscale;

namespace {

// Each claim is worked out once for all cases.
const ts::ClaimReport& report(const std::string& id) {
  static std::map<std::string, ts::ClaimReport> known;
  auto at = known.find(id);
  if (at == known.end()) {
    at = known.emplace(id, ts::claim(id)).first;
  }
  return at->second;
}

double ours(const std::string& id, const std::string& row) { return report(id).row(row).ours; }

// Ours over `unit`, to as many digits as the claim prints.
struct Figure {
  const char* row;
  double unit;
  const char* printed;
};

void check(const std::string& id, const std::vector<Figure>& figures) {
  for (const Figure& f : figures) {
    const std::string printed = f.printed;
    const std::size_t point = printed.find('.');
    const int digits =
        point == std::string::npos ? 0 : static_cast<int>(printed.size() - point - 1);
    INFO(id, ", ", std::string(f.row));
    CHECK(ts::format_fixed(ours(id, f.row) / f.unit, digits) == printed);
  }
}

}  // namespace

TEST_CASE("claims: the list, a report in every form, near ids") {
  const std::vector<std::string> names = ts::claims();
  CHECK(names.size() == 24);
  CHECK(names.front() == "A1  v5e against v4: serving for a dollar");
  CHECK(names.back() == "E  what cannot be shown");
  const ts::ClaimReport c2 = ts::claim("c2");
  CHECK(c2.id == "C2");
  CHECK(c2.title == "eager against graph");
  std::ostringstream out;
  out << c2;
  CHECK(out.str().find("C2  eager against graph\nfigure  ") == 0);
  CHECK(out.str().find("\nholds when: kernels are shorter than a launch; longer ones hide it\n") !=
        std::string::npos);
  CHECK(c2.csv().find("eager,0.005002,0.005,s,formula,\"n * max(l, k) + min(l, k)\"\n") !=
        std::string::npos);  // has commas: quoted
  CHECK(c2.csv().find("graph,0.002005,0.002,s,formula,l + n * k\n") != std::string::npos);
  CHECK(c2.json().find("\"verdict\": \"holds when\"") != std::string::npos);
  CHECK(c2.json().find("\"derivations\": [\"eager = n * max(l, k) + min(l, k)") !=
        std::string::npos);
  CHECK(c2.charts[0].table().rows.size() == c2.charts[0].x.size());
  CHECK(c2.quantity("graph").explain().find("graph = l + n * k   [one launch of a graph]\n"
                                            "      = 5 us + 1000 * 2 us\n      = 2 ms\n") == 0);
  CHECK(error_of([] { ts::claim("B4"); }) == "claim: no claim \"B4\"; near: A4, B1, B2, B3, C4");
  CHECK(error_of([] { ts::claim("x"); }) ==
        "claim: no claim \"x\"; there are A1, A2, A3, A4, A5, A6, A7, A8, A9, A10, B1, B2, B3, C1, "
        "C2, C3, C4, C5, C6, C7, C8, C9, D, E");
  CHECK(error_of([] { ts::claim(""); }).find("claim: no claim \"\"; there are A1") == 0);
  ts::ClaimReport small;
  small.id = "Z1";
  small.counted("a", "a run", 1);
  small.counted("b", "a run", 2);
  CHECK(error_of([&] { small.row("no"); }) ==
        "ClaimReport: Z1 has no row \"no\"; its rows are a, b");
  CHECK(error_of([&] { small.quantity("no"); }) ==
        "ClaimReport: Z1 has no quantity \"no\"; row() has all figures");
}

TEST_CASE("claims A1 to A4: serving on v5e") {
  check("A1", {{"bandwidth a dollar", 1, "1.79"},
               {"bf16 a dollar", 1, "1.92"},
               {"int8 a dollar", 1, "3.83"},
               {"memory a dollar", 1, "1.25"},
               {"share of math for 2.5", 0.01, "53"},
               {"int8, batch 8, prompt 128", 1, "1.85"},
               {"int8, batch 16, prompt 1024", 1, "2.29"},
               {"int8, batch 32, prompt 1024", 1, "2.43"},
               {"bf16, batch 8, prompt 128", 1, "1.79"},
               {"bf16, batch 32, prompt 1024", 1, "1.83"},
               {"int8 against bf16, batch 8, prompt 128", 1, "3.6"}});
  const ts::ClaimChart& grid = report("A1").charts[0];
  CHECK(grid.series[2].y[5] == ours("A1", "int8, batch 32, prompt 1024"));
  CHECK(std::isnan(grid.series[3].y[5]));  // 32 x 2176 tokens do not fit 16 GB
  check("A2", {{"slower, bf16 on both", 1, "1.5"},
               {"faster, int8 against bf16", 1, "1.33"},
               {"faster, with prefill", 1, "1.36"},
               {"v5e chips for one v4", 1, "2.68"},
               {"faster at equal spend", 1, "1.79"},
               {"with collectives", 1, "1.70"}});
  const ts::ClaimChart& latency = report("A2").charts[0];
  CHECK(latency.series[0].y[0] > 1.49 * latency.series[2].y[0]);    // chip for chip slower
  CHECK(ts::format_fixed(100 * latency.series[1].y[1], 0) == "2");  // % of a step, collectives
  CHECK(ts::format_fixed(100 * latency.series[1].y[2], 0) == "9");
  CHECK(ts::format_fixed(100 * latency.series[1].y[4], 0) == "49");
  check("A3", {{"parameters", 1, "13015864320"},
               {"weights, bf16", 1e9, "26.0"},
               {"weights, int8", 1e9, "13.0"},
               {"chips, bf16", 1, "2"},
               {"chips, int8", 1, "1"},
               {"cache of a token", 1, "409600"},
               {"left of 16 GB", 1e9, "2.98"},
               {"left of 16 GiB", 1e9, "4.16"},
               {"tokens of 16 GB", 1, "7285"},
               {"tokens of 16 GiB", 1, "10166"},
               {"2T a chip, int8", 1e9, "7.8"},
               {"2T a chip, bf16", 1e9, "15.6"}});
  CHECK(report("A3").row("tokens of 16 GiB").claimed == 10165);  // 4,164,004,864 / 409,600
  CHECK(ours("A3", "14B int8 and 8192 tokens") > 17179869184.0);
  CHECK(ours("A3", "largest int8 model with them") < 13e9);
  check("A4", {{"prefill", 1e-3, "136"},
               {"weights a step", 1e-3, "15.9"},
               {"slots, shared", 1, "10240"},
               {"slots, copied", 1, "73728"},
               {"cache, shared", 1e9, "4.19"},
               {"cache, copied", 1e9, "30.2"},
               {"memory, shared", 1e9, "17.2"},
               {"above 16 GiB", 1e6, "30"},
               {"decode, shared", 1, "4.85"},
               {"decode, copied", 1, "13.0"},
               {"beams of 16 GB", 1, "20"},
               {"smaller by grouped queries", 1, "8"},
               {"slots, shared, in pages", 1, "10240"},
               {"slots, copied, in pages", 1, "73728"}});
  CHECK(ours("A4", "logits, shared - copied") == 0);
  CHECK(ours("A4", "a search's slots") > 64 + 32);
  CHECK(ours("A4", "a search's slots") <= 64 + 32 * 16);
  const double alone = ours("A4", "each beam for itself");
  CHECK(alone > 4 * ours("A4", "a search's slots"));
  CHECK(alone <= 32 * (64 + 16));
  CHECK(std::fmod(alone, 32.0) == 0);
}

TEST_CASE("claims A5 to A7: pods and domains") {
  check("A5", {{"tpu-v5e pod, int8", 1e15, "100.6"},
               {"tpu-v5e pod, bf16", 1e15, "50.4"},
               {"tpu-v6e pod, bf16", 1e15, "235.0"},
               {"tpu-v4 pod, bf16", 1e18, "1.126"},
               {"tpu-v5p pod, bf16", 1e18, "4.11"},
               {"tpu-v7 pod, fp8_e4m3", 1e18, "42.5"},
               {"tpu-v5e all-reduce", 1e12, "51.2"},
               {"tpu-v5e bisection", 1e12, "1.6"},
               {"tpu-v5e DCN", 1e12 / 8, "6.4"},
               {"tpu-v6e all-reduce", 1e12, "102.4"},
               {"tpu-v6e bisection", 1e12, "3.2"},
               {"tpu-v6e DCN", 1e12 / 8, "25.6"},
               {"links cut, 16x16 torus", 1, "32"},
               {"links cut, 16x16 mesh", 1, "16"},
               {"tpu-v7 pod, memory", 1e15, "1.90"}});
  CHECK(ts::links_cut(ts::machine("tpu-v4", {4, 4, 8}), 2) == 32);  // 4 x 4 rows, two cuts each
  CHECK(ts::links_cut(ts::machine("tpu-v5e", {4, 2}), 0) == 2);     // lines
  check("A6", {{"FLOP/s, fp8 / bf16", 1, "6.34"},
               {"FLOP/s, bf16 / bf16", 1, "3.17"},
               {"bandwidth", 1, "1.643"},
               {"ridge A100", 1, "153"},
               {"ridge H100 bf16", 1, "295"},
               {"ridge H100 fp8", 1, "591"},
               {"A100, batch 16", 0.01, "10.5"},
               {"A100, batch 64", 0.01, "41.8"},
               {"A100, batch 153", 0.01, "100"},
               {"H100 bf16, batch 16", 0.01, "5.4"},
               {"H100 bf16, batch 64", 0.01, "21.7"},
               {"H100 bf16, batch 153", 0.01, "51.8"},
               {"H100 bf16, batch 256", 0.01, "86.7"},
               {"H100 fp8, batch 16", 0.01, "5.4"},
               {"H100 fp8, batch 256", 0.01, "86.7"},
               {"A100, batch 512", 0.01, "100"},
               {"H100 fp8, batch 512", 0.01, "100"},
               {"speed-up, bf16, batch 1", 1, "1.64"},
               {"speed-up, fp8, batch 1", 1, "3.29"},
               {"speed-up, bf16, batch 4096", 1, "3.17"},
               {"speed-up, fp8, batch 4096", 1, "6.34"}});
  check("A7", {{"W H100", 1e9, "450"},
               {"W GB200", 1e9, "900"},
               {"domain H100", 1, "8"},
               {"domain GB200", 1, "72"},
               {"inside / across", 1, "18"}});
  CHECK(ours("A7", "H100, all_reduces of 16 / of 8") > 1.5);   // the cliff
  CHECK(ours("A7", "GB200, all_reduces of 16 / of 8") < 1.1);  // none inside the domain
}

#if !defined(TINYSCALE_NO_THREADS)  // several devices
TEST_CASE("claims A8 to A10: wafer, array, dollars") {
  check("A8", {{"bandwidth / A100's", 10, "1286"},
               {"parameters held", 1e9, "20"},
               {"ridge", 1, "0.4"},
               {"13B, weights a token", 1e-6, "1.3"},
               {"13B, FLOPs a token", 1e-6, "3.5"}});
  CHECK(report("A8").row("a number over 6 hops").kind == "simulated");
  CHECK(ours("A8", "a number over 6 hops") == doctest::Approx(7 / 1.1e9));
  check("A9", {{"passes, K = 128", 1, "1"}, {"passes, K = 129", 1, "2"}});
  CHECK(ours("A9", "mapping, K = 129") < 0.51);
  const ts::ClaimRow& stepped = report("A9").row("cycles, 8 x 8, K = 9");
  CHECK(stepped.kind == "simulated");
  CHECK(stepped.ours == stepped.claimed);
  CHECK(report("A9").picture.find("of 64 PEs multiply") != std::string::npos);
  check("A10", {{"tpu-v4", 1e17, "3.07"},
                {"tpu-v5e", 1e17, "5.91"},
                {"tpu-v5p", 1e17, "3.93"},
                {"tpu-v6e", 1e18, "1.22"},
                {"a100-40", 1e17, "3.06"},
                {"h100-sxm", 1e17, "3.30"},
                {"h200", 1e17, "3.56"},
                {"v5e / v5p", 1, "1.5"},
                {"v5e / H100", 1, "1.8"}});
  CHECK(ours("A10", "break-even MFU of v5e") == doctest::Approx(0.4 / 1.792).epsilon(1e-3));
}
#endif

TEST_CASE("claims B1 and B2: weights rounded after training, values through fp8") {
  check("B1", {{"rate", 1, "2"}, {"bytes", 1, "0.5"}});
  const double f32 = ours("B1", "loss, f32"), int8 = ours("B1", "loss, int8");
  CHECK(f32 < 2.5);  // of 3.4 before training
  CHECK(std::fabs(ours("B1", "loss, bf16") - f32) < 0.002);
  CHECK(std::fabs(int8 - f32) < 0.005);
  CHECK(ours("B1", "loss, int4") - f32 > 2 * std::fabs(int8 - f32));
  // The file that comes with the examples; the others where the folder of real checkpoints is.
  CHECK(ours("B1", "stories260K, Q8_0") == doctest::Approx(0.485272).epsilon(4e-6));
  const struct {
    const char* row;
    double loss;
  } others[] = {{"float32", 0.484566}, {"f16", 0.484548}, {"bf16", 0.484545}, {"Q4_0", 0.566054}};
  for (const auto& other : others) {
    const std::string row = std::string("stories260K, ") + other.row;
    if (report("B1").row(row).known()) {
      CHECK(ours("B1", row) == doctest::Approx(other.loss).epsilon(4e-6));
    } else {
      CHECK(report("B1").row(row).formula == "its file is not here");
    }
  }
  check("B2", {{"largest e4m3", 1, "448"}, {"largest e5m2", 1, "57344"}});
  CHECK(ours("B2", "worst error e4m3") == doctest::Approx(1.0 / 17));  // below 2^-4
  CHECK(ours("B2", "worst error e5m2") == doctest::Approx(1.0 / 9));   // below 2^-3
  CHECK(ours("B2", "gradients lost, e4m3") == 1);
  CHECK(ours("B2", "gradients lost, e5m2") > 0.01);
  CHECK(ours("B2", "and with a scale, e4m3") < 0.002);
  CHECK(ours("B2", "and with a scale, e5m2") == 0);
}

TEST_CASE("claim B3: weights rounded in every step of a training") {
  CHECK(ours("B3", "1 + 2^-9 in bf16") == 1);
  CHECK(ours("B3", "1 + 2^-9, stochastic, mean") == 1 + 1.0 / 512);
  const double master = ours("B3", "loss, f32 master weights");
  CHECK(ours("B3", "loss, bf16 weights") > master + 0.05);
  CHECK(std::fabs(ours("B3", "loss, bf16 weights, stochastic") - master) < 0.03);
}

TEST_CASE("claim C1: bytes of captured graphs, eager and compiled") {
  check("C1", {{"chain of 8, passes", 1, "16"},
               {"chain of 8 compiled, passes", 1, "2"},
               {"chain of 8, bytes eager / compiled", 1, "8"},
               {"chain of 8, launches eager / compiled", 1, "8"},
               {"GELU in 8 ops, passes", 1, "18"},
               {"GELU in 8 ops compiled, passes", 1, "2"},
               {"GELU in 8 ops, bytes eager / compiled", 1, "9"},
               {"GELU in 8 ops, launches eager / compiled", 1, "8"},
               {"softmax in 5 ops, passes", 1, "8"},
               {"softmax in 5 ops compiled, passes", 1, "2"},
               {"softmax in 5 ops, launches eager / compiled", 1, "5"},
               {"softmax in tiles, passes", 1, "2"},
               {"scores of a layer", 1e9, "1.07"},
               {"tiled, a layer", 1e9, "0.07"},
               {"its graph, scores", 1e9, "1.07"},
               {"its graph, tiled", 1e9, "0.07"}});
  CHECK(ours("C1", "its graph, scores") == 4.0 * 32 * 2048 * 2048 * 2);
  CHECK(ours("C1", "its graph, primitives") > 3 * ours("C1", "its graph, scores"));
  // The chain rounds 8 times, numbers up to 32; a * b + c compiled rounds once.
  CHECK(ours("C1", "largest difference of the three") < 8 * 32 * std::ldexp(1.0, -24));
  for (const char* row : {"attention in 4 ops, h 2, T 64, d 16", "the same in tiles"}) {
    CHECK(report("C1").row(row).ours == report("C1").row(row).claimed);
  }
  CHECK(ours("C1", "largest difference") < 1e-5);
  CHECK(ours("C1", "largest difference") > 0);
  // The checkpoint where its files are; the one in 8 bits comes with the examples.
  const std::string from = report("C1").assumptions.back();
  MESSAGE(from);
  CHECK(from.find("stories260K: ") == 0);
  for (const std::string name : {"stories260K", "stories260K with loss"}) {
    double before = ours("C1", name + ", primitives");
    for (const char* pass : {" + elementwise", " + rows", " + matmul", " + attention"}) {
      CHECK(ours("C1", name + pass) < before);
      before = ours("C1", name + pass);
    }
    CHECK(before < ours("C1", name + ", ops as written"));
    CHECK(ours("C1", name + ", primitives / fused") > 4);
    CHECK(ours("C1", name + ", largest difference") < 1e-3);
  }
  CHECK(report("C1").row("stories260K, primitives").formula == "305 kernels, 64 tokens");
  CHECK(report("C1").row("stories260K + attention").formula == "63 kernels");
  check("C1", {{"stories260K, primitives", 1e6, "18.5"},
               {"stories260K + attention", 1e6, "3.94"},
               {"stories260K with loss, primitives", 1e6, "20.0"},
               {"stories260K with loss + attention", 1e6, "3.81"}});
}

TEST_CASE("claim C2: kernels launched each and as a graph") {
  check("C2", {{"eager, kernels of 2 us", 1e-3, "5"},
               {"graph, kernels of 2 us", 1e-3, "2"},
               {"eager, kernels of 20 us", 1e-3, "20"},
               {"graph, kernels of 20 us", 1e-3, "20"},
               {"eager / graph, kernel = launch", 1, "1.00"},
               {"eager / graph, kernel = launch / 2", 1, "2.00"},
               {"an H100's bytes in a launch", 1e6, "16.8"}});
  CHECK(ours("C2", "eager, kernels of 2 us") == doctest::Approx(ours("C2", "eager")));
  CHECK(ours("C2", "graph, kernels of 2 us") == doctest::Approx(ours("C2", "graph")));
  CHECK(ours("C2", "eager, the device idle") == doctest::Approx(3.002e-3));
  const ts::ClaimReport& c2 = report("C2");
  CHECK(c2.row("stories260K, primitives eager").formula ==
        "305 kernels, 305 launches, 64 tokens, h100");
  CHECK(c2.row("stories260K, fused as a graph").formula == "63 kernels, 1 launch, 64 tokens, h100");
  CHECK(ours("C2", "stories260K, primitives eager") == doctest::Approx(305 * 5e-6).epsilon(0.01));
  CHECK(ours("C2", "stories260K, fused eager") == doctest::Approx(63 * 5e-6).epsilon(0.01));
  CHECK(ours("C2", "stories260K, fused as a graph") < 10e-6);
  CHECK(ours("C2", "stories260K, device idle eager") > 0.99);
  const ts::ClaimChart& batches = c2.charts[1];  // launches hide under larger kernels
  for (const ts::ClaimSeries& series : batches.series) {
    CHECK(series.y.front() > 50);
    CHECK(series.y.back() == doctest::Approx(1).epsilon(0.01));
  }
}

TEST_CASE("claims C3 and C4: primitives, guards") {
  const ts::ClaimReport& c3 = report("C3");
  CHECK(!c3.row("operators of PyTorch").known());
  int composites = 0;
  for (const ts::OpFacts& op : ts::op_set()) {
    composites += op.primitive ? 0 : 1;
    if (!op.primitive) {
      CAPTURE(op.name);
      CHECK(ours("C3", std::string(op.name) + ", primitives") >= 1);
      CHECK(ours("C3", std::string(op.name) + ", largest difference") < 1e-5);
    }
  }
  CHECK(ours("C3", "composite ops here") == composites);
  CHECK(ours("C3", "primitives here") == static_cast<double>(ts::op_set().size()) - composites);
  check("C3", {{"gelu_tanh, primitives", 1, "9"}, {"softmax, primitives", 1, "5"}});
  const ts::ClaimReport& c4 = report("C4");
  for (const ts::ClaimRow& row : c4.rows) {
    CAPTURE(row.name);
    CHECK((std::isnan(row.claimed) || row.ours == row.claimed));
  }
  check("C4", {{"a guard on the shape, graphs", 1, "3"},
               {"a guard on the shape, hits", 1, "3"},
               {"a guard on the shape, recompiles", 1, "2"},
               {"batch symbolic, graphs", 1, "1"},
               {"batch symbolic, hits", 1, "5"},
               {"batch symbolic, sizes", 1, "2"},
               {"each graph confirmed once, captures", 1, "5"},
               {"a branch on data, breaks", 1, "3"},
               {"a branch on data, graphs", 1, "3"}});
  const std::pair<const char*, const char*> reasons[] = {
      {"a guard on the shape, recompiles", "last: input 0 is [32, 4], not [16, 4]"},
      {"batch symbolic, recompiles", "no guard broken"},
      {"recompiles, number format", "matmuls are in bf16, not f32"},
      {"recompiles, gradients off", "gradients are off"},
      {"recompiles, an input that learns", "input 0 has a gradient"},
      {"recompiles, another captured tensor", "a captured [4, 4] tensor was replaced"}};
  for (const auto& reason : reasons) {
    CHECK(c4.row(reason.first).formula == reason.second);
  }
  const std::string line = c4.row("a branch on data, breaks").formula;
  CHECK(line.find("software.hpp:") == 0);
  CHECK(line.find(" reads a number of []") != std::string::npos);
  CHECK(ours("C4", "largest difference") < 1e-6);
  CHECK(ours("C4", "a branch on data, difference") < 1e-6);
}

TEST_CASE("claim C5: a group as C++, printed and, where it can be, built") {
  const ts::ClaimReport& c5 = report("C5");
  check("C5", {{"ops, kernels", 1, "5"}, {"one group, kernels", 1, "1"}});
  CHECK(ours("C5", "one group, bytes") == ours("C5", "the least"));
  CHECK(ours("C5", "ops, bytes") > 5 * ours("C5", "the least"));
  CHECK(ours("C5", "largest difference") < 1e-5);
  CHECK(c5.picture.find("extern \"C\" void step_0_add(const float* const* in, float* const* out) "
                        "{\n") != std::string::npos);
  CHECK(c5.picture.find("const float tanh_5 = std::tanh(add_4);  // %5 tanh(%4) [64, 32]\n") !=
        std::string::npos);
  CHECK(ours("C5", "stories260K, primitives") == 325);
  CHECK(ours("C5", "stories260K, kernels") < 325.0 / 2);
  CHECK(ours("C5", "stories260K, groups") < ours("C5", "stories260K, kernels"));
  CHECK(ours("C5", "stories260K, ops in them") > 4 * ours("C5", "stories260K, groups"));
  CHECK(ours("C5", "stories260K, lines of C++") > 1000);
  if (c5.caveats.empty()) {
    CHECK(ours("C5", "built, bytes") == ours("C5", "the least"));
    CHECK(ours("C5", "built, largest difference") < 1e-5);
  } else {
    CHECK(c5.caveats[0] ==
          "not built and run here: that takes TINYSCALE_LOAD_KERNELS and a C++ compiler");
  }
}

#if !defined(TINYSCALE_NO_THREADS)  // several devices
TEST_CASE("claims C6 to C9: tiles, shardings, ZeRO, Megatron") {
  check("C6", {{"tiles of 16", 1e9, "17.2"},
               {"tiles of 128", 1e9, "2.18"},
               {"tiles of 256", 1e9, "1.11"},
               {"largest legal tile, operands", 1, "512"},
               {"and f32 sums beside them", 1, "128"}});
  for (const char* row : {"64^3 in tiles of 8", "64^3 in tiles of 24", "64^3 in tiles of 32"}) {
    CHECK(report("C6").row(row).ours == report("C6").row(row).claimed);
  }
  for (const char* row :
       {"grad", "vmap(grad)", "compile(vmap(grad))", "vmap(compile(grad))", "grad(vmap)"}) {
    CHECK(ours("C7", row) < 1e-6);
  }
  CHECK(report("C7").row("a function that writes").formula ==
        "grad: copy_ writes to a [6, 3] tensor inside the function");
  const std::pair<const char*, const char*> cases[] = {
      {"J whole in both", "none"},
      {"J cut in one", "all_gather [I, J_x] -> [I, J]"},
      {"J cut in both, then whole", "all_reduce [{U_x} I, K] -> [I, K]"},
      {"J cut in both, then cut", "reduce_scatter [{U_x} I, K] -> [I_x, K]"},
      {"one axis for I and K", "all_gather [J, K_x] -> [J, K]"},
      {"grad, its batch cut", "all_reduce [{U_x} D, F] -> [D, F]"}};
  for (const auto& c : cases) {
    const std::string name = c.first;
    CHECK(report("C7").row(name).formula == c.second);
    CHECK(report("C7").row(name).ours == report("C7").row(name).claimed);
    CHECK(report("C7").row(name + ", bytes").ours == report("C7").row(name + ", bytes").claimed);
    CHECK(ours("C7", name + ", difference") < 1e-5);
  }
  check("C8", {{"stage 0", 1e9, "120"},
               {"stage 1", 1e9, "31.4"},
               {"stage 2", 1e9, "16.6"},
               {"stage 3", 1e9, "1.9"},
               {"stage 0, sent", 1, "2.0"},
               {"stage 1, sent", 1, "2.0"},
               {"stage 2, sent", 1, "2.0"},
               {"stage 3, sent", 1, "3.0"}});
  for (const char* row :
       {"stage 0, weights", "stage 1, weights", "stage 2, weights", "stage 3, weights"}) {
    CHECK(ours("C8", row) < 1e-6);
  }
  check("C9", {{"all_reduces of B T d", 1, "10"},
               {"GPipe, bubble", 1, "0.375"},
               {"1F1B, bubble", 1, "0.375"},
               {"interleaved, bubble", 1, "0.1875"},
               {"GPipe, microbatches held", 1, "8"},
               {"1F1B, microbatches held", 1, "4"}});
  CHECK(ours("C9", "weights") < 1e-6);
}
#endif

TEST_CASE("claims D and E: models, and what stays unknown") {
  check("D", {{"gpt-j-6b", 1, "6050882784"},
              {"gpt3-175b", 1e9, "174.6"},
              {"llama2-7b", 1, "6738415616"},
              {"llama2-13b", 1, "13015864320"},
              {"llama2-70b", 1, "68976648192"},
              {"llama3-8b", 1, "8030261248"},
              {"llama3-70b", 1, "70553706496"},
              {"llama3.1-405b", 1e9, "405.85"},
              {"sd2.1-unet", 1e6, "865.9"},
              {"deepseek-v3", 1, "671026419200"},
              {"deepseek-v3, active", 1e9, "37.55"},
              {"gpt3-175b, training", 1e23, "3.14"},
              {"gpt3-175b, bf16", 1e9, "349"},
              {"gpt3-175b, tpu-v5e for the weights", 1, "22"},
              {"gpt3-175b, a100-80 for the weights", 1, "5"},
              {"palm-540b, MFU", 0.01, "46.2"},
              {"llama2-7b, MFU", 0.01, "39"},
              {"llama2-13b, MFU", 0.01, "38"},
              {"llama2-70b, MFU", 0.01, "43"},
              {"llama3.1-405b, training", 1e25, "3.8"},
              {"palm-540b, cache smaller than multi-head", 1, "48"},
              {"llama2-70b, cache smaller than multi-head", 1, "8"},
              {"deepseek-v3, cache smaller than multi-head", 1, "56.9"}});
  CHECK(ours("D", "goodput, exact") ==
        doctest::Approx(ours("D", "goodput, first order")).epsilon(0.002));
  CHECK(ours("D", "goodput, run") == doctest::Approx(ours("D", "goodput, exact")).epsilon(0.005));
  int unknown = 0;
  for (const ts::ClaimRow& row : report("E").rows) {
    unknown += row.known() ? 0 : 1;
    CHECK(row.known() == (row.name == "tpu-v4, watts"));
  }
  CHECK(unknown == 10);
  CHECK(report("E").csv().find("\"tpu-v5e, watts\",unknown,-,W,-,empty in the chip table\n") !=
        std::string::npos);
  CHECK(report("E").table().text().find("gemini, parameters                  unknown") !=
        std::string::npos);
}

#if !defined(TINYSCALE_NO_THREADS)  // several devices
TEST_CASE("claims: verdicts, and a figure that is off by more than an eighth refutes") {
  for (const std::string& name : ts::claims()) {
    const std::string id = name.substr(0, name.find(' '));
    const ts::ClaimReport& r = report(id);
    INFO(id, ": ", r.verdict_text());
    CHECK(!r.claim.empty());
    CHECK((r.verdict == ts::Verdict::unknown) == (id == "E"));
    CHECK(r.verdict != ts::Verdict::refuted);
    for (const ts::ClaimRow& row : r.rows) {
      CHECK(!row.formula.empty());
      CHECK((row.kind == "formula" || row.kind == "counted" || row.kind == "simulated"));
    }
    for (const ts::ClaimChart& chart : r.charts) {
      for (const ts::ClaimSeries& series : chart.series) {
        CHECK(series.y.size() == chart.x.size());
      }
    }
  }
  ts::ClaimReport wrong;
  wrong.verdict = ts::Verdict::holds;
  wrong.add("speed", ts::Quantity(2, "B/s"), 1.8);
  ts::detail::check_figures(wrong);
  CHECK(wrong.verdict_text() == "holds");
  wrong.add("rate", ts::Quantity(2, "B/s"), 4);
  ts::detail::check_figures(wrong);
  CHECK(wrong.verdict_text() == "refuted: rate is 2, the claim has 4");
}
#endif
