#include <doctest/doctest.h>

#include "tinyscale.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#if defined(TINYSCALE_LOAD_KERNELS)
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#endif

#include "error_of.hpp"
#include "kernel_tests.hpp"
#include "random_vector_programs.hpp"

using namespace random_vector_programs;

namespace {

VectorProgram softmax_program(const ts::Shape& outer, std::int64_t cols) {
  VectorProgram p(outer, cols);
  const int x = p.dense_input(), max = p.apply(VectorOp::row_max, x);
  const int e = p.apply(VectorOp::exp_sub, x, max), sum = p.apply(VectorOp::row_sum, e);
  p.output(p.apply(VectorOp::div, e, sum), VectorOutput::full);
  return p;
}

const char* const head_without_maximum =
    R"(// With -fopenmp-simd -DKERNEL_SIMD sums are added in another order, many columns at a time.
#ifdef KERNEL_SIMD
#define SIMD(...) _Pragma(#__VA_ARGS__)
#else
#define SIMD(...)
#endif

)";

}  // namespace

TEST_CASE("print_cpp: the softmax") {
  CHECK_EQ(ts::print_cpp(softmax_program({8, 128}, 1024), "softmax"),
           R"(#include <cmath>
#include <cstdint>
#include <vector>

// NaN where one is; b where they are equal.
static inline float maximum(float a, float b) { return std::isnan(a) || a > b ? a : b; }

// With -fopenmp-simd -DKERNEL_SIMD sums are added in another order, many columns at a time.
#ifdef KERNEL_SIMD
#define SIMD(...) _Pragma(#__VA_ARGS__)
SIMD(omp declare reduction(row_maximum : float : omp_out = maximum(omp_in, omp_out)) initializer(omp_priv = -INFINITY))
#else
#define SIMD(...)
#endif

extern "C" void softmax(const float* const* in, float* const* out) {
  const float* const in0 = in[0];
  float* const out0 = out[0];
  std::vector<float> scratch(1024);
  float* const kept_2 = scratch.data();
  for (std::int64_t row = 0; row < 1024; ++row) {
    float row_max_1 = -INFINITY;
    SIMD(omp simd reduction(row_maximum : row_max_1))
    for (std::int64_t col = 0; col < 1024; ++col) {
      const float x0 = in0[row * 1024 + col];
      row_max_1 = maximum(x0, row_max_1);
    }
    double sum_3 = 0.0;
    SIMD(omp simd reduction(+ : sum_3))
    for (std::int64_t col = 0; col < 1024; ++col) {
      const float x0 = in0[row * 1024 + col];
      const float exp_sub_2 = std::exp(x0 - row_max_1);
      kept_2[col] = exp_sub_2;
      sum_3 += exp_sub_2;
    }
    const float row_sum_3 = static_cast<float>(sum_3);
    SIMD(omp simd)
    for (std::int64_t col = 0; col < 1024; ++col) {
      const float exp_sub_2 = kept_2[col];
      const float div_4 = exp_sub_2 / row_sum_3;
      out0[row * 1024 + col] = div_4;
    }
  }
}
)");
}

TEST_CASE("print_cpp: gelu(2 x + 1) as a compiled function has it") {
  const ts::Compiled block = ts::compile([](const std::vector<ts::Tensor>& in) {
    return std::vector<ts::Tensor>{ts::gelu(in[0] * 2.0f + 1.0f)};
  });
  block({ts::randn({4, 16}, 1)});
  const std::string group = R"(// Step 0: mul add gelu
extern "C" void step_0_gelu(const float* const* in, float* const* out) {
  const float* const in0 = in[0];  // %0 input [4, 16]
  float* const out0 = out[0];  // %5 gelu(%4) [4, 16]
  SIMD(omp simd)
  for (std::int64_t col = 0; col < 64; ++col) {
    const float x0 = in0[col];
    const float mul_2 = x0 * 2.0f;  // %2 mul(%0, %1) [4, 16]
    const float add_4 = mul_2 + 1.0f;  // %4 add(%2, %3) [4, 16]
    const float gelu_5 = gelu(add_4);  // %5 gelu(%4) [4, 16]
    out0[col] = gelu_5;
  }
}
)";
  const std::string head =
      std::string("#include <cmath>\n#include <cstdint>\n\nstatic inline float gelu(float x) { ") +
      "return 0.5f * x * (1.0f + std::erf(0.707106781f * x)); }\n\n" + head_without_maximum;
  CHECK_EQ(ts::print_cpp(block.plan(), 0), head + group);
  CHECK_EQ(ts::print_cpp(block.plan()),
           R"(// graph: 6 nodes, 1 inputs, 0 constants
// node  op       of      numbers  shape    returned
// ----  -------  ------  -------  -------  --------
// %0    input                  0  [4, 16]
// %1    literal                2  []
// %2    mul      %0, %1           [4, 16]
// %3    literal                1  []
// %4    add      %2, %3           [4, 16]
// %5    gelu     %4               [4, 16]         0

)" + head + group +
               R"(
// value[n]: where the numbers of node %n begin; library(s, value): step s.
extern "C" void run_plan(float* const* value, void (*)(int step, float* const* value)) {
  {
    const float* const in[] = {value[0]};
    float* const out[] = {value[5]};
    step_0_gelu(in, out);
  }
}
)");
}

TEST_CASE("print_cpp: products and kernels of a plan are calls") {
  const ts::Tensor w = ts::randn({16, 8}, 2);
  const ts::Compiled f = ts::compile([&](const std::vector<ts::Tensor>& in) {
    return std::vector<ts::Tensor>{ts::log_softmax(ts::matmul(in[0], w))};
  });
  f({ts::randn({4, 16}, 1)});
  const std::string text = ts::print_cpp(f.plan());
  const std::string calls = text.substr(text.find("// value[n]"));
  CHECK_EQ(calls,
           R"(// value[n]: where the numbers of node %n begin; library(s, value): step s.
extern "C" void run_plan(float* const* value, void (*library)(int step, float* const* value)) {
  // %2 matmul(%0, %1) [4, 8]
  library(0, value);
  {
    const float* const in[] = {value[2]};
    float* const out[] = {value[8]};
    step_1_sub(in, out);
  }
}
)");
  CHECK_EQ(error_of([&] { ts::print_cpp(f.plan(), 0); }),
           "print_cpp: step 0, matmul, is a product of the library; groups of vectors are printed, "
           "or the whole plan");
  CHECK_EQ(error_of([&] { ts::print_cpp(f.plan(), 2); }), "print_cpp: step 2 of a plan of 2 steps");
}

TEST_CASE("print_cpp: strides, special numbers, every kind of output") {
  VectorProgram p({2, 3, 1}, 5);
  const int x = p.input({1, 7, 0}, 2), weight = p.per_column_input(), row = p.per_row_input();
  const int one = p.single_input();
  const int scaled = p.apply(VectorOp::mul_add, x, p.apply(VectorOp::exp, weight), row);
  const int s = p.apply(VectorOp::maximum, one, p.literal(-std::numeric_limits<float>::infinity()));
  const int power = p.apply(VectorOp::pow, scaled, p.literal(2.5f));
  p.output(power, VectorOutput::column_sums);
  p.output(p.apply(VectorOp::row_pick, x, row), VectorOutput::per_row);
  p.output(p.apply(VectorOp::equal, p.apply(VectorOp::column_number), s), VectorOutput::per_column);
  p.output(s, VectorOutput::single);
  p.output(scaled, VectorOutput::total);
  const std::string text = ts::print_cpp(p, "kinds");
  CHECK_EQ(text.substr(text.find("extern")),
           R"(extern "C" void kinds(const float* const* in, float* const* out) {
  const float* const in0 = in[0];
  const float* const in1 = in[1];
  const float* const in2 = in[2];
  const float* const in3 = in[3];
  float* const out0 = out[0];
  float* const out1 = out[1];
  float* const out2 = out[2];
  float* const out3 = out[3];
  float* const out4 = out[4];
  std::vector<double> sums_0(5);
  double total_4 = 0.0;
  std::vector<float> scratch(10);
  float* const kept_4 = scratch.data();
  float* const part_0 = scratch.data() + 5;
  const float x3 = in3[0];
  const float maximum_7 = maximum(x3, -INFINITY);
  out3[0] = maximum_7;
  SIMD(omp simd)
  for (std::int64_t col = 0; col < 5; ++col) {
    const float x1 = in1[col];
    const float exp_4 = std::exp(x1);
    kept_4[col] = exp_4;
    const float column_number_11 = static_cast<float>(col);
    const float equal_12 = column_number_11 == maximum_7 ? 1.0f : 0.0f;
    out2[col] = equal_12;
  }
  for (std::int64_t i0 = 0; i0 < 2; ++i0) {
    for (std::int64_t i1 = 0; i1 < 3; ++i1) {
      const std::int64_t row = i0 * 3 + i1;
      const float x2 = in2[i0 * 3 + i1];
      const bool there_10 = x2 >= 0.0f && double{x2} < 5.0 && std::floor(x2) == x2;
      const float row_pick_10 = there_10 ? in0[i0 + i1 * 7 + static_cast<std::int64_t>(x2) * 2] : 0.0f;
      SIMD(omp simd reduction(+ : total_4))
      for (std::int64_t col = 0; col < 5; ++col) {
        const float x0 = in0[i0 + i1 * 7 + col * 2];
        const float exp_4 = kept_4[col];
        const float mul_add_5 = x0 * exp_4 + x2;
        const float pow_9 = static_cast<float>(std::pow(double{mul_add_5}, 2.5));
        part_0[col] += pow_9;
        total_4 += mul_add_5;
      }
      out1[row] = row_pick_10;
      if (row % 32 == 31 || row == 5) {
        for (std::int64_t col = 0; col < 5; ++col) {
          sums_0[static_cast<std::size_t>(col)] += part_0[col];
          part_0[col] = 0.0f;
        }
      }
    }
  }
  for (std::int64_t col = 0; col < 5; ++col) {
    out0[col] = static_cast<float>(sums_0[static_cast<std::size_t>(col)]);
  }
  out4[0] = static_cast<float>(total_4);
}
)");
}

TEST_CASE("print_cpp, load_kernel: every error") {
  CHECK_EQ(
      error_of([] { ts::print_cpp(softmax_program({}, 4), "2x"); }),
      "print_cpp: a function named \"2x\"; a name is letters, digits and _, a digit not first");
  CHECK_EQ(error_of([] { ts::print_cpp(softmax_program({}, 4), ""); }),
           "print_cpp: a function named \"\"; a name is letters, digits and _, a digit not first");
  CHECK_EQ(error_of([] { ts::LoadedKernel()(nullptr, nullptr); }),
           "LoadedKernel: there is none; load_kernel makes one");
}

#if !defined(TINYSCALE_LOAD_KERNELS)

TEST_CASE("load_kernel: only with its macro") {
  CHECK_EQ(error_of([] { ts::load_kernel(softmax_program({}, 4)); }),
           "load_kernel: this program was compiled without TINYSCALE_LOAD_KERNELS; define it "
           "before tinyscale.hpp is included");
}

#elif TINYSCALE_CAN_LOAD

namespace {

bool has_compiler() {
  static const bool found = !ts::detail::find_compiler(ts::KernelBuild()).empty();
  if (!found) {
    MESSAGE("left out: no C++ compiler runs here");
  }
  return found;
}

// Equal but for `relative` and `least`, NaN beside NaN; the guard behind each as it was.
void check_near(const Outputs& out, const Outputs& truth, float relative, float least) {
  REQUIRE_EQ(out.memory.size(), truth.memory.size());
  for (std::size_t o = 0; o < truth.memory.size(); ++o) {
    CAPTURE(o);
    for (std::size_t i = 0; i < truth.memory[o].size(); ++i) {
      const float a = out.memory[o][i], b = truth.memory[o][i];
      const bool same = a == b || (std::isnan(a) && std::isnan(b));
      if (!same && !(std::fabs(a - b) <= least + relative * std::fabs(b))) {
        CAPTURE(i);
        CAPTURE(a);
        CAPTURE(b);
        CHECK(same);
        return;
      }
    }
  }
}

}  // namespace

TEST_CASE("load_kernel: random programs, built at once, are exact where floats are") {
  if (!has_compiler()) {
    return;
  }
  const ts::Shape shapes[] = {{}, {5}, {3, 4}, {2, 1, 3, 2}, {70}, {0}};
  const std::int64_t widths[] = {1, 2, 7, 16, 33, 100, 0};
  std::vector<RandomProgram> random;
  ts::List<VectorProgram> programs;
  for (std::uint64_t i = 0; i < 42; ++i) {
    random.emplace_back(900 + i, shapes[i % 6], widths[i % 7]);
    programs.push_back(random.back().p);
  }
  ts::KernelBuild build;
  build.flags = "-O1 -march=native -Wall -Wextra -Wconversion -Werror";
  const ts::List<ts::LoadedKernel> built = ts::load_kernels(programs, build);
  for (std::size_t i = 0; i < random.size(); ++i) {
    CAPTURE(i);
    CAPTURE(ts::print_cpp(random[i].p, "k"));
    const std::vector<const float*> in = pointers_of(random[i].inputs);
    const Outputs truth = truth_of(random[i].p, in);
    Outputs out(random[i].p), engine(random[i].p);
    built[i](in.data(), out.pointers.data());
    check_near(out, truth, 0.0f, 0.0f);
    kernel::run(kernel::plan_vectors(random[i].p), in.data(), engine.pointers.data());
    check_near(out, engine, 0.0f, 0.0f);
  }
}

// libm and the engine's polynomials are both within 4 units of 2^-24 of the truth; gelu and its
// like lose the digits of 1 + erf, as much as 2e-6 altogether.
TEST_CASE("load_kernel: every function, softmax and norms beside the reference") {
  if (!has_compiler()) {
    return;
  }
  const float inf = std::numeric_limits<float>::infinity();
  const float none = std::numeric_limits<float>::quiet_NaN();
  const std::int64_t rows = 9, cols = 77;
  Floats x = kernel_tests::noise(rows * cols, 5), w = kernel_tests::noise(cols, 3);
  Floats special{0.0f, -0.0f, inf, -inf, none, 1.0f, -1.0f, 2.5f, 1e-39f, 3e38f, -3e38f};
  for (float& each : x) {
    each *= 6.0f;
  }
  ts::List<VectorProgram> programs;
  std::vector<std::vector<Floats>> inputs;
  for (int i = static_cast<int>(VectorOp::exp); i <= static_cast<int>(VectorOp::exp_sub); ++i) {
    const auto op = static_cast<VectorOp>(i);
    for (const bool ends : {false, true}) {
      const bool slopes = op >= VectorOp::silu && op != VectorOp::exp_sub;
      if (ends && slopes) {
        continue;
      }
      const Floats& from = ends ? special : x;
      VectorProgram p({}, static_cast<std::int64_t>(from.size()));
      const int a = p.dense_input();
      const int b = op == VectorOp::pow ? p.literal(2.5f) : op == VectorOp::exp_sub ? a : -1;
      p.output(p.apply(op, a, b), VectorOutput::full);
      programs.push_back(p);
      inputs.push_back({from});
    }
  }
  {
    VectorProgram p({10}, 11);
    const int a = p.per_row_input(), b = p.per_column_input(), c = p.dense_input();
    for (const VectorOp op : {VectorOp::maximum, VectorOp::less, VectorOp::equal, VectorOp::div}) {
      p.output(p.apply(op, a, b), VectorOutput::full);
      p.output(p.apply(op, c, a), VectorOutput::full);
    }
    p.output(p.apply(VectorOp::where, a, b, c), VectorOutput::full);
    p.output(p.apply(VectorOp::row_max, c), VectorOutput::per_row);
    p.output(p.apply(VectorOp::row_pick, c, a), VectorOutput::per_row);
    programs.push_back(p);
    Floats all;
    for (std::size_t i = 0; i < 110; ++i) {
      all.push_back(special[(i * 7 + i / 11) % 11]);
    }
    inputs.push_back({special, special, all});
  }
  programs.push_back(softmax_program({rows}, cols));
  inputs.push_back({x});
  {
    VectorProgram p({rows}, cols);
    const int a = p.dense_input(), weight = p.per_column_input();
    const int share = p.literal(1.0f / static_cast<float>(cols));
    const int mean = p.apply(VectorOp::mul, p.apply(VectorOp::row_sum, a), share);
    const int d = p.apply(VectorOp::sub, a, mean);
    const int square = p.apply(VectorOp::row_sum, p.apply(VectorOp::square, d));
    const int var = p.apply(VectorOp::mul_add, square, share, p.literal(1e-5f));
    const int n = p.apply(VectorOp::div, d, p.apply(VectorOp::sqrt, var));
    p.output(p.apply(VectorOp::mul, n, weight), VectorOutput::full);
    p.output(n, VectorOutput::column_sums);
    p.output(p.apply(VectorOp::gelu, n), VectorOutput::total);
    programs.push_back(p);
    inputs.push_back({x, w});
  }
  const ts::List<ts::LoadedKernel> built = ts::load_kernels(programs);
  for (std::size_t i = 0; i < programs.size(); ++i) {
    CAPTURE(ts::print_cpp(programs[i], "k"));
    const std::vector<const float*> in = pointers_of(inputs[i]);
    const Outputs truth = truth_of(programs[i], in);
    Outputs out(programs[i]), engine(programs[i]);
    built[i](in.data(), out.pointers.data());
    check_near(out, truth, 1e-6f, 4e-6f);
    kernel::run(kernel::plan_vectors(programs[i]), in.data(), engine.pointers.data());
    check_near(out, engine, 1e-6f, 4e-6f);
  }
  // Slopes at the ends, which in the reference are no numbers.
  for (const VectorOp op : {VectorOp::gelu_slope, VectorOp::gelu_tanh_slope}) {
    VectorProgram p({}, static_cast<std::int64_t>(special.size()));
    p.output(p.apply(op, p.dense_input()), VectorOutput::full);
    const float* const in[] = {special.data()};
    Outputs out(p), engine(p);
    ts::load_kernel(p)(in, out.pointers.data());
    kernel::run(kernel::plan_vectors(p), in, engine.pointers.data());
    check_near(out, engine, 1e-6f, 4e-6f);
    CHECK_EQ(out.memory[0][2], 1.0f);
    CHECK_EQ(double(out.memory[0][3]), doctest::Approx(0));
  }
  // An output in the memory of its input.
  for (std::size_t i = programs.size() - 2; i < programs.size(); ++i) {
    std::vector<Floats> given = inputs[i];
    const std::vector<const float*> in = pointers_of(given);
    const Outputs truth = truth_of(programs[i], in);
    Outputs out(programs[i]);
    out.pointers[0] = given[0].data();
    built[i](in.data(), out.pointers.data());
    std::copy(given[0].begin(), given[0].end(), out.memory[0].begin());
    check_near(out, truth, 1e-6f, 4e-6f);
  }
}

TEST_CASE("load_kernel: results do not depend on the number of threads") {
  if (!has_compiler()) {
    return;
  }
  VectorProgram gelu({300}, 211);
  gelu.output(gelu.apply(VectorOp::gelu, gelu.dense_input()), VectorOutput::full);
  const VectorProgram softmax = softmax_program({2, 150}, 211);
  const ts::List<ts::LoadedKernel> built = ts::load_kernels({gelu, softmax});
  const Floats x = kernel_tests::noise(300 * 211, 5);
  const float* const in[] = {x.data()};
  for (std::size_t i = 0; i < 2; ++i) {
    const VectorProgram& p = i == 0 ? gelu : softmax;
    const Outputs truth = truth_of(p, {in[0]});
    Outputs one(p), three(p);
    {
      const ts::ThreadScope scope(1);
      built[i](in, one.pointers.data());
    }
    const ts::ThreadScope scope(3);
    built[i](in, three.pointers.data());
    check_near(one, truth, 1e-6f, 4e-6f);
    check_near(three, one, 0.0f, 0.0f);
  }
  CHECK_NE(built[0].source().find("for (std::int64_t col = first; col < last; ++col) {"),
           std::string::npos);
}

TEST_CASE("load_kernel: a compiled function runs what was built") {
  if (!has_compiler()) {
    return;
  }
  ts::CompileOptions options;
  options.build = true;
  const ts::Tensor w = ts::randn({16, 8}, 2);
  const auto body = [&](const std::vector<ts::Tensor>& in) {
    return std::vector<ts::Tensor>{ts::log_softmax(ts::matmul(ts::gelu(in[0] * 2.0f + 1.0f), w))};
  };
  const ts::Compiled built = ts::compile(body, options), engine = ts::compile(body);
  const ts::Tensor x = ts::randn({4, 16}, 1);
  const ts::Tensor a = built({x})[0], b = engine({x})[0];
  for (const ts::Step& step : built.plan().steps()) {
    CHECK_EQ(static_cast<bool>(step.built), step.kind == ts::StepKind::vectors);
  }
  for (std::int64_t i = 0; i < 4; ++i) {
    for (std::int64_t j = 0; j < 8; ++j) {
      CHECK(a.at({i, j}) == doctest::Approx(b.at({i, j})).epsilon(1e-5));
    }
  }
}

namespace {

// A folder with a name that a shell would take apart, in TMPDIR while this stands.
struct OddFolder {
  std::string path, before;

  OddFolder() {
    const char* const given = std::getenv("TMPDIR");
    before = given == nullptr ? "" : given;
    path = (before.empty() ? std::string("/tmp") : before) + "/ts it's \"$HOME\" `x`;XXXXXX";
    REQUIRE(mkdtemp(&path[0]) != nullptr);
    setenv("TMPDIR", path.c_str(), 1);
  }
  ~OddFolder() {
    before.empty() ? unsetenv("TMPDIR") : setenv("TMPDIR", before.c_str(), 1);
    CHECK_EQ(rmdir(path.c_str()), 0);  // nothing was left in it
  }
};

// A variable of the environment with another value while this stands.
struct Setting {
  std::string name, before;
  Setting(const char* variable, const char* value) : name(variable) {
    const char* const given = std::getenv(variable);
    before = given == nullptr ? "" : given;
    setenv(variable, value, 1);
  }
  ~Setting() { before.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), before.c_str(), 1); }
};

}  // namespace

TEST_CASE("load_kernel: every error of a build") {
  if (!has_compiler()) {
    return;
  }
  const OddFolder folder;
  const VectorProgram p = softmax_program({}, 4);
  ts::KernelBuild build;
  build.compiler = "/no/such/compiler; echo 'injected'";
  CHECK_EQ(error_of([&] { ts::load_kernel(p, build); }),
           "load_kernel: the compiler of KernelBuild is \"/no/such/compiler; echo 'injected'\", "
           "which does not run; c++ and /folder/g++ are compilers");
  {
    const Setting cxx("CXX", "no-such-compiler -x");
    CHECK_EQ(error_of([&] { ts::load_kernel(p); }),
             "load_kernel: CXX is \"no-such-compiler -x\", which does not run; c++ and /folder/g++ "
             "are compilers");
  }
  {
    const Setting cxx("CXX", "");
    const Setting path("PATH", "/no/such/folder");
    CHECK_EQ(error_of([&] { ts::load_kernel(p); }),
             "load_kernel: none of the compilers c++, g++ and clang++ runs here; set CXX");
  }
  {
    const Setting nowhere("TMPDIR", "/no/such/folder");
    CHECK_EQ(error_of([&] { ts::load_kernel(p); }),
             "load_kernel: no folder can be made in /no/such/folder: No such file or directory; "
             "TMPDIR names one that can be written");
  }
  // A compiler that complains, one that makes no shared object, one that makes nothing.
  const std::string script = folder.path + "/compiler's name";
  const auto write_script = [&](const char* text) {
    std::FILE* const file = std::fopen(script.c_str(), "w");
    REQUIRE(file != nullptr);
    std::fputs(text, file);
    std::fclose(file);
    chmod(script.c_str(), 0700);
  };
  build.compiler = script;
  write_script(
      "#!/bin/sh\n[ $# = 1 ] && exit 0\nfor i in 1 2 3 4 5 6 7 8 9; do echo line $i; done\nexit "
      "3\n");
  CHECK_EQ(error_of([&] { ts::load_kernel(p, build); }),
           "load_kernel: " + ts::detail::shell_word(script) +
               " ended with status 3:\nline 1\nline 2\nline 3\nline 4\nline 5\nline 6\nline "
               "7\nline 8");
  write_script("#!/bin/sh\nexit 0\n");
  const std::string loads = error_of([&] { ts::load_kernel(p, build); });
  CHECK_EQ(loads.substr(0, loads.find(": ", 14)), "load_kernel: what was built cannot be loaded");
  std::remove(script.c_str());
  const ts::Shared<ts::detail::KernelLibrary> library =
      ts::detail::build_library("", ts::KernelBuild());
  CHECK_EQ(error_of([&] { ts::detail::find_kernel(*library, "nothing"); }),
           "load_kernel: there is no nothing in what was built");
  // Children whose ends the system does not tell.
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  const ts::LoadedKernel kernel = ts::load_kernel(p);
  CHECK_EQ(ts::detail::run_command("(echo a b; exit 7)").status, 7);
  CHECK_EQ(ts::detail::run_command("echo a b").output, "a b\n");
  std::signal(SIGCHLD, before);
  const float* const in[] = {nullptr};
  float* const out[] = {nullptr};
  CHECK_EQ(error_of([&] { kernel(in, out); }),
           "run: input 0 of 1 is null; a plan needs all of them");
}

#endif
