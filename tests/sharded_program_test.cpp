// mesh/dim_labels, propagate_sharding, propagation_rules, sharded_program.
#include <doctest/doctest.h>

#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

using Tensors = std::vector<ts::Tensor>;

struct Choices {
  std::uint64_t state;
  std::size_t below(std::size_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>((state >> 33) % n);
  }
};

ts::Mesh program_mesh(const std::vector<std::int64_t>& sizes) {
  ts::Shape dims;
  ts::List<ts::MeshAxis> axes;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    dims.push_back(sizes[i]);
    axes.push_back({i == 0 ? "x" : "y", sizes[i]});
  }
  return ts::Mesh(ts::machine("tpu-v5p", dims), axes);
}

// "all_gather a [I_x] -> [I], ..": what was inserted, slices left out.
[[maybe_unused]] std::string inserted(const ts::ShardedPlan& plan) {
  std::string out;
  for (const ts::InsertedStep& step : plan.collectives()) {
    out += (out.empty() ? "" : "; ") + step.name + " " + step.axes + " [" + step.before + "] -> [" +
           step.after + "]";
  }
  return out;
}

[[maybe_unused]] int count_of(const ts::ShardedPlan& plan, const std::string& name) {
  int count = 0;
  for (const ts::InsertedStep& step : plan.collectives()) {
    count += step.name == name ? 1 : 0;
  }
  return count;
}

void check_counted(const ts::ShardedPlan& plan) {
  for (const ts::InsertedStep& step : plan.collectives()) {
    CHECK(step.counted == doctest::Approx(step.bytes));
    CHECK(step.simulated > 0);
  }
}

double gap(const ts::Tensor& a, const ts::Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  const std::vector<float> x = ts::contiguous(a).values(), y = ts::contiguous(b).values();
  double most = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double one = std::fabs(static_cast<double>(x[i]) - static_cast<double>(y[i]));
    most = one <= most ? most : one;
  }
  return most;
}

Tensors product(const Tensors& in) { return {ts::matmul(in[0], in[1])}; }
Tensors mlp(const Tensors& in) { return {ts::matmul(ts::gelu(ts::matmul(in[0], in[1])), in[2])}; }
// x, two layers of weights, targets.
Tensors loss_of_mlp(const Tensors& in) {
  const ts::Tensor h = in[0] + mlp({in[0], in[1], in[2]})[0];
  const ts::Tensor y = h + mlp({h, in[3], in[4]})[0];
  return {ts::mean(ts::square(y - in[5]))};
}

Tensors mlp_inputs() {
  return {ts::randn({16, 8}, 1),        ts::randn({8, 32}, 2) * 0.3f, ts::randn({32, 8}, 3) * 0.2f,
          ts::randn({8, 32}, 4) * 0.3f, ts::randn({32, 8}, 5) * 0.2f, ts::randn({16, 8}, 6)};
}

// Loss and gradients of the four weights, eager.
Tensors right_gradients() {
  Tensors in = mlp_inputs();
  for (std::size_t i = 1; i < 5; ++i) {
    in[i] = ts::parameter(in[i]);
  }
  const ts::Tensor loss = loss_of_mlp(in)[0];
  loss.backward();
  return {loss.detach(), in[1].grad(), in[2].grad(), in[3].grad(), in[4].grad()};
}

[[maybe_unused]] ts::ShardedPlan run_gradients(const ts::Mesh& mesh,
                                               const std::vector<std::string>& shardings,
                                               const ts::ShardedOptions& options) {
  const ts::ShardedProgram program = ts::compile(mesh, &loss_of_mlp, shardings, options);
  const std::vector<ts::Sharded> out = program(mlp_inputs());
  const Tensors right = right_gradients();
  REQUIRE(out.size() == right.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    CHECK(gap(out[i].gather(), right[i]) < 1e-5);
  }
  check_counted(program.plan());
  return program.plan();
}

}  // namespace

#if !defined(TINYSCALE_NO_THREADS)  // several devices
TEST_CASE("program: claim C7, the four cases of a product and their bytes") {
  const ts::Mesh mesh = program_mesh({4, 2});
  const ts::Tensor a = ts::randn({16, 32}, 1), b = ts::randn({32, 64}, 2);
  struct Case {
    std::string a, b, result, collectives;
    double bytes;  // of a device
  };
  const double va = 4 * 16 * 32, vb = 4 * 32 * 64, vc = 4 * 16 * 64;
  const Case cases[] = {
      {"I_x, J", "J, K_y", "", "", 0},
      {"I, J_x", "J, K", "", "all_gather x [I, J_x] -> [I, J]", 3.0 / 4 * va},
      {"I, J", "J_x, K", "", "all_gather x [J_x, K] -> [J, K]", 3.0 / 4 * vb},
      {"I, J_x", "J_x, K", "", "all_reduce x [{U_x} I, K] -> [I, K]", 2 * 3.0 / 4 * vc},
      {"I, J_x", "J_x, K", "I_x, K", "reduce_scatter x [{U_x} I, K] -> [I_x, K]", 3.0 / 4 * vc},
      {"I_x, J", "J, K_x", "", "all_gather x [I_x, J] -> [I, J]", 3.0 / 4 * va},
      {"I_x, J_y", "J_y, K", "", "all_reduce y [{U_y} I_x, K] -> [I_x, K]", 2 * 1.0 / 2 * vc / 4},
      {"I_x, J_y", "J_y, K", "I_{x,y}, K", "reduce_scatter y [{U_y} I_x, K] -> [I_{x,y}, K]",
       1.0 / 2 * vc / 4},
  };
  for (const Case& one : cases) {
    CAPTURE(one.a + " times " + one.b);
    ts::ShardedOptions options;
    options.results = {one.result};
    const ts::ShardedProgram program = ts::compile(mesh, &product, {one.a, one.b}, options);
    const std::vector<ts::Sharded> out = program({mesh.shard(a, one.a), mesh.shard(b, one.b)});
    CHECK(inserted(program.plan()) == one.collectives);
    CHECK(program.plan().bytes == doctest::Approx(one.bytes));
    check_counted(program.plan());
    CHECK(gap(out[0].gather(), ts::matmul(a, b)) < 1e-4);
  }
}

TEST_CASE("program: one all_reduce in a Megatron MLP, and one backward for each") {
  const ts::Mesh mesh = program_mesh({4});
  const ts::ShardedProgram program = ts::compile(mesh, &mlp, {"B, D", "D, F_x", "F_x, D"});
  const Tensors in = mlp_inputs();
  const std::vector<ts::Sharded> out = program(Tensors{in[0], in[1], in[2]});
  CHECK(inserted(program.plan()) == "all_reduce x [{U_x} B, D] -> [B, D]");
  CHECK(program.plan().bytes == doctest::Approx(2 * 3.0 / 4 * 4 * 16 * 8));
  CHECK(gap(out[0].gather(), mlp({in[0], in[1], in[2]})[0]) < 1e-5);
  ts::ShardedOptions options;
  options.gradients = {1, 2, 3, 4};
  options.results = {"", "D, F_x", "F_x, D", "D, F_x", "F_x, D"};
  // Two forward, one backward: nobody asks for the gradient of x.
  const ts::ShardedPlan plan =
      run_gradients(mesh, {"B, D", "D, F_x", "F_x, D", "D, F_x", "F_x, D", "B, D"}, options);
  CHECK(inserted(plan) ==
        "all_reduce x [{U_x} B, D] -> [B, D]; all_reduce x [{U_x} B, D] -> [B, D]; "
        "all_reduce x [{U_x} B, D] -> [B, D]");
}

TEST_CASE("program: data parallel gradients are summed once each") {
  const ts::Mesh mesh = program_mesh({4});
  ts::ShardedOptions options;
  options.gradients = {1, 2, 3, 4};
  const ts::ShardedPlan plan =
      run_gradients(mesh, {"B_x, D", "D, F", "F, D", "D, F", "F, D", "B_x, D"}, options);
  CHECK(count_of(plan, "all_reduce") == 5);  // and one number, the loss
  CHECK(plan.collectives().size() == 5);
  double weights = 0;
  for (const ts::InsertedStep& step : plan.collectives()) {
    weights += step.after.empty() ? 0 : step.counted;
  }
  CHECK(weights == doctest::Approx(2 * 3.0 / 4 * 4 * (4 * 8 * 32)));
}

TEST_CASE("program: sharded weights are gathered, their gradients scattered") {
  const ts::Mesh mesh = program_mesh({4});
  ts::ShardedOptions options;
  options.gradients = {1, 2, 3, 4};
  options.results = {"", "D_x, F", "F_x, D", "D_x, F", "F_x, D"};
  const ts::ShardedPlan plan =
      run_gradients(mesh, {"B_x, D", "D_x, F", "F_x, D", "D_x, F", "F_x, D", "B_x, D"}, options);
  CHECK(count_of(plan, "all_gather") == 4);
  CHECK(count_of(plan, "reduce_scatter") == 4);
  CHECK(count_of(plan, "all_reduce") == 1);  // the loss
  CHECK(plan.collectives().size() == 9);
}

TEST_CASE("program: data and tensor parallel together") {
  const ts::Mesh mesh = program_mesh({2, 2});
  ts::ShardedOptions options;
  options.gradients = {1, 2, 3, 4};
  const ts::ShardedPlan plan =
      run_gradients(mesh, {"B_x, D", "D, F_y", "F_y, D", "D, F_y", "F_y, D", "B_x, D"}, options);
  CHECK(count_of(plan, "all_reduce") == 8);  // 3 of activations, 4 of weights, the loss
  CHECK(plan.collectives().size() == 8);
}

namespace {

// A random function as a list of calls on the values so far.
struct Call {
  std::string op;
  std::size_t a = 0, b = 0;
  int dim = 0;
  ts::Shape shape;
};

ts::Tensor called(const Call& call, const Tensors& v) {
  const ts::Tensor &a = v[call.a], &b = v[call.b];
  if (call.op == "add") return a + b;
  if (call.op == "sub") return a - b;
  if (call.op == "mul") return a * b;
  if (call.op == "matmul") return ts::matmul(a, b);
  if (call.op == "tanh") return ts::tanh(a);
  if (call.op == "gelu") return ts::gelu(a);
  if (call.op == "scale") return a * 0.5f;
  if (call.op == "transpose") return ts::transpose(a, 0, -1);
  if (call.op == "sum") return ts::sum(a, call.dim, ts::KeepDim::yes);
  if (call.op == "max") return ts::max(a, call.dim, ts::KeepDim::yes);
  if (call.op == "softmax") return ts::softmax(a);
  if (call.op == "reshape") return ts::reshape(a, call.shape);
  if (call.op == "slice") return ts::slice(a, call.dim, 2, 4);
  return ts::concat({a, b}, call.dim);
}

ts::Tensor absolute(const ts::Tensor& x) { return ts::maximum(x, -x); }

// How far from the exact value a float computation in any order of sums is, at most: u = 2^-24 for
// each operation, and what came in times the slope.
ts::Tensor bound(const Call& call, const Tensors& v, const Tensors& e, const ts::Tensor& out) {
  const float u = 1.0f / 16777216.0f;
  const ts::Tensor &a = v[call.a], &b = v[call.b], &ea = e[call.a], &eb = e[call.b];
  const ts::Tensor rounding = absolute(out) * u;
  const auto n = static_cast<float>(a.dim(call.op == "sum" ? call.dim : -1));
  if (call.op == "add" || call.op == "sub") return ea + eb + rounding;
  if (call.op == "mul") return absolute(a) * eb + ea * absolute(b) + ea * eb + rounding;
  if (call.op == "matmul") {
    return ts::matmul(absolute(a) + ea, eb) + ts::matmul(ea, absolute(b)) +
           ts::matmul(absolute(a), absolute(b)) * ((n + 1) * u);
  }
  if (call.op == "tanh") return ea + 8 * u;
  if (call.op == "gelu") return ea * 1.2f + absolute(a) * (8 * u) + 8 * u;
  if (call.op == "scale") return ea * 0.5f;
  if (call.op == "sum")
    return called(call, e) + ts::sum(absolute(a), call.dim, ts::KeepDim::yes) * (n * u);
  if (call.op == "max") return called(call, e);
  if (call.op == "softmax") {  // y is off by 2 of the largest error at most, relative
    const ts::Tensor worst = ts::max(ea, -1, ts::KeepDim::yes) * 4.0f + 64 * u;
    return out * worst + u;
  }
  return called(call, e);  // views and copies
}

struct RandomProgram {
  std::vector<Call> calls;
  std::vector<ts::Shape> inputs;
  Tensors run(const Tensors& in) const {
    Tensors v = in;
    for (const Call& call : calls) {
      v.push_back(called(call, v));
    }
    return {v.back(), v[v.size() - 2]};
  }
};

bool fits(const Call& call, const Tensors& v) {
  const ts::Tensor &a = v[call.a], &b = v[call.b];
  const int d = call.dim;
  if (call.op == "add" || call.op == "sub" || call.op == "mul") {
    bool good = a.dims() >= b.dims();
    for (int i = 1; good && i <= b.dims(); ++i) {
      good = b.dim(-i) == a.dim(-i) || b.dim(-i) == 1;
    }
    return good;
  }
  if (call.op == "matmul") return b.dims() == 2 && a.dim(-1) == b.dim(0);
  if (call.op == "slice") return d < a.dims() && a.dim(d) >= 4;
  if (call.op == "sum" || call.op == "max") return d < a.dims();
  if (call.op == "concat") return d < a.dims() && a.shape() == b.shape() && a.dim(d) <= 16;
  return true;
}

RandomProgram random_program(Choices& choose) {
  const char* const ops[] = {"add",     "sub",   "mul",   "mul",       "matmul", "matmul",
                             "matmul",  "tanh",  "gelu",  "transpose", "sum",    "reshape",
                             "softmax", "scale", "slice", "concat",    "max"};
  const std::int64_t sizes[] = {8, 16};
  RandomProgram program;
  Tensors v;
  for (std::size_t i = 0; i < 4; ++i) {
    ts::Shape shape;
    for (std::size_t d = 0; d < (i == 3 ? 3u : 2u); ++d) {
      shape.push_back(sizes[choose.below(2)]);
    }
    program.inputs.push_back(shape);
    v.push_back(ts::zeros(shape));
  }
  while (program.calls.size() < 8) {
    Call call;
    call.op = ops[choose.below(17)];
    call.a = choose.below(2) == 0 ? v.size() - 1 : choose.below(v.size());
    call.b = choose.below(v.size());
    call.dim = static_cast<int>(choose.below(3));
    const ts::Shape& shape = v[call.a].shape();
    if (call.op == "reshape" && shape.size() == 3) {
      call.shape = choose.below(2) == 0 ? ts::Shape{shape[0] * shape[1], shape[2]}
                                        : ts::Shape{shape[0], shape[1] * shape[2]};
    } else if (call.op == "reshape") {
      call.shape = shape[1] % 4 == 0 ? ts::Shape{shape[0], 4, shape[1] / 4} : shape;
    }
    if (fits(call, v)) {
      v.push_back(called(call, v));
      program.calls.push_back(call);
    }
  }
  return program;
}

// Every axis cuts some dim that it divides, or none.
std::string random_cut(Choices& choose, const ts::Mesh& mesh, const ts::Shape& shape,
                       const std::string& names) {
  ts::Sharding out;
  for (int d = 0; d < shape.size(); ++d) {
    out.dims.push_back({names.substr(static_cast<std::size_t>(d), 1), {}});
  }
  std::vector<std::int64_t> left = shape.values();
  for (const ts::MeshAxis& axis : mesh.axes()) {
    const std::size_t d = choose.below(left.size() + 1);
    if (d < left.size() && left[d] % axis.size.value == 0) {
      left[d] /= axis.size.value;
      out.dims[d].axes.push_back(axis.name);
    }
  }
  return out.text();
}

}  // namespace

TEST_CASE("program: random functions and shardings give the function's numbers") {
  Choices choose = {20};
  const std::vector<std::vector<std::int64_t>> meshes = {{2}, {4}, {2, 2}, {4, 2}};
  int collectives = 0;
  for (int trial = 0; trial < 120; ++trial) {
    const ts::Mesh mesh = program_mesh(meshes[static_cast<std::size_t>(trial) % 4]);
    const RandomProgram program = random_program(choose);
    Tensors in, error;
    std::vector<std::string> shardings;
    std::string text;
    for (std::size_t i = 0; i < program.inputs.size(); ++i) {
      const ts::Shape& shape = program.inputs[i];
      in.push_back(ts::randn(shape, static_cast<std::uint64_t>(10 * trial) + i));
      error.push_back(ts::zeros(shape));
      shardings.push_back(random_cut(choose, mesh, shape, "ABC"));
      text += shape.text() + " " + shardings.back() + "; ";
    }
    Tensors v = in;
    for (const Call& call : program.calls) {
      text += call.op + " " + std::to_string(call.a) + " " + std::to_string(call.b) + " " +
              std::to_string(call.dim) + "; ";
      v.push_back(called(call, v));
      error.push_back(bound(call, v, error, v.back()));
    }
    ts::ShardedOptions options;
    for (std::size_t r = 0; r < 2; ++r) {
      const ts::Shape& shape = v[v.size() - 1 - r].shape();
      options.results.push_back(choose.below(2) == 0 ? "" : random_cut(choose, mesh, shape, "PQR"));
      text += options.results.back() + "; ";
    }
    CAPTURE(trial);
    CAPTURE(text);
    const ts::ShardedProgram compiled = ts::compile(
        mesh, [&program](const Tensors& x) { return program.run(x); }, shardings, options);
    const std::vector<ts::Sharded> out = compiled(in);
    for (std::size_t r = 0; r < 2; ++r) {
      const std::vector<float> ours = ts::contiguous(out[r].gather()).values();
      const std::vector<float> right = ts::contiguous(v[v.size() - 1 - r]).values();
      const std::vector<float> most = ts::contiguous(error[v.size() - 1 - r]).values();
      REQUIRE(ours.size() == right.size());
      bool good = true;
      for (std::size_t i = 0; i < ours.size(); ++i) {
        good = good && std::fabs(ours[i] - right[i]) <= 2 * most[i];
      }
      CHECK(good);
    }
    check_counted(compiled.plan());
    collectives += static_cast<int>(compiled.plan().collectives().size());
  }
  CHECK(collectives > 150);
}
#endif

TEST_CASE("program: what it says that is wrong") {
  const ts::Mesh mesh = program_mesh({4, 2});
  const auto compiled = [&](const std::vector<std::string>& in, const std::vector<std::string>& out,
                            const std::vector<int>& gradients, const Tensors& given) {
    return error_of([&] {
      ts::ShardedOptions options;
      options.results = out;
      options.gradients = gradients;
      ts::compile(mesh, &product, in, options)(given);
    });
  };
  const Tensors in = {ts::ones({8, 16}), ts::ones({16, 8})};
  CHECK(compiled({"I_z, J", "J, K"}, {}, {}, in) ==
        "sharding \"I_z, J\": no axis z on this mesh; its axes are x,y, and several on one dim are "
        "written I_{x,y}");
  CHECK(compiled({"I, J", "J, K"}, {"I_z, K"}, {}, in) ==
        "sharding \"I_z, K\": no axis z on this mesh; its axes are x,y, and several on one dim are "
        "written I_{x,y}");
  CHECK(
      compiled({"I_x, J_x", "J, K"}, {}, {}, in) ==
      "sharding \"I_x, J_x\": axis x stands twice; an axis cuts one dim, or is summed over, once");
  CHECK(compiled({"I, J, L", "J, K"}, {}, {}, in) ==
        "sharding \"I, J, L\": 3 dims for an array of shape [8, 16]; a name for each dim is right");
  CHECK(compiled({"I, J", "J, K"}, {"I"}, {}, in) ==
        "sharding \"I\": 1 dims for an array of shape [8, 8]; a name for each dim is right");
  CHECK(compiled({"I_x, J", "J, K"}, {}, {}, {ts::ones({6, 16}), in[1]}) ==
        "sharding \"I_x, J\": dim I of 6 does not divide over 4 devices; pad it to 8 or use fewer "
        "axes");
  CHECK(compiled({"I, J", "J, K"}, {"{U_x} I, K"}, {}, in) ==
        "compile: the result is [I, K], wanted is [{U_x} I, K]; a sum that is made is not undone, "
        "leave out what stands in braces");
  CHECK(compiled({"I, J"}, {}, {}, in) ==
        "ShardedProgram: 2 inputs, and shardings of 1; one each is right");
  CHECK(compiled({"I, J", "J, K"}, {"", "", ""}, {}, in) ==
        "compile: shardings of 3 results, and the function has 1 with its gradients; one each, or "
        "fewer, is right");
  CHECK(compiled({"I, J", "J, K"}, {}, {2}, in) ==
        "compile: a gradient with respect to input 2 of 2; inputs are numbered from 0");
  CHECK(compiled({"I, J", "J, K"}, {}, {0}, in) ==
        "compile: gradients of result 0, which is [8, 8]; one number is right, as a loss");
  CHECK(error_of([] { ts::ShardedProgram()(Tensors{}); }) ==
        "ShardedProgram: there is no function; make one with compile(mesh, f, shardings)");
  const ts::ShardedProgram program = ts::compile(mesh, &product, {"I_x, J", "J, K"});
  CHECK(error_of([&] { program.plan(); }) ==
        "ShardedProgram: plan of a program that was not called yet; call it first, or give plan() "
        "the shapes of its inputs");
  CHECK(error_of([&] {
          program({mesh.shard(in[0], "I, J_x"), mesh.shard(in[1], "J, K")});
        }) == "ShardedProgram: input 0 is [I, J_x], compiled for [I_x, J]; reshard it first");
  CHECK(error_of([&] {
          program({program_mesh({2}).shard(in[0], "I_x, J"), mesh.shard(in[1], "J, K")});
        }) ==
        "ShardedProgram: input 0 lies on another mesh, tpu-v5p 2, x 2; the program is compiled for "
        "tpu-v5p 4x2, x 4, y 2");
  const auto body = [&](const ts::Compiled::Body& f) {
    return error_of([&] { ts::compile(mesh, f, {"I_x, J"})(Tensors{in[0]}); });
  };
  CHECK(body([](const Tensors&) { return Tensors{ts::Tensor()}; }) ==
        "compile: result 0 of the sharded function is empty; return tensors");
  const std::string read =
      body([](const Tensors& x) { return Tensors{x[0] * ts::sum(x[0]).item()}; });
  CHECK(read.substr(read.find(" reads")) ==
        " reads a number of [] of a sharded function, whose numbers lie on many devices; return it "
        "instead");
  CHECK(body([](const Tensors& x) {
          ts::add_(x[0], x[0]);
          return x;
        }) ==
        "compile: the sharded function writes to a tensor that it did not make, gives gradients to "
        "one or asks the host; results alone come back from the devices");
  // A graph that somebody made by hand.
  ts::Graph graph;
  graph.nodes.resize(2);
  graph[0].op = ts::Op::input;
  graph[0].numbers = {0.0};
  graph[0].shape = graph[1].shape = {8};
  graph[1].op = ts::Op::all_reduce;
  graph[1].inputs = {0};
  graph.inputs = {0};
  graph.outputs = {1};
  const ts::Sharded x = mesh.shard(ts::Shape{8}, "I_x");
  CHECK(error_of([&] {
          ts::detail::Propagation(graph, *x.mesh, ts::DType::f32).run({x.sharding}, {});
        }) ==
        "compile: node %1, all_reduce [8], has no rule by which a sharding goes through it; "
        "primitives but for collectives have one (take_apart)");
}

#if !defined(TINYSCALE_NO_THREADS)  // several devices
namespace {

// A block of a transformer: ids [B, T], targets [B, T], table [V, D], wq, wk, wv, wo, w1, w2, norm.
Tensors block_loss(const Tensors& in) {
  const ts::Tensor x = ts::embedding(in[2], in[0]);
  const ts::Tensor n = ts::rms_norm(x, in[9]);
  const ts::Tensor h = ts::attention(ts::matmul(n, in[3]), ts::matmul(n, in[4]),
                                     ts::matmul(n, in[5]), 4, 4, ts::Mask::causal);
  const ts::Tensor y = x + ts::matmul(h, in[6]);
  const ts::Tensor z = y + ts::matmul(ts::gelu(ts::matmul(ts::rms_norm(y, in[9]), in[7])), in[8]);
  return {ts::cross_entropy(ts::matmul(z, ts::transpose(in[2], 0, 1)), in[1])};
}

Tensors block_inputs() {
  ts::Tensor ids({4, 8}), targets({4, 8});
  for (int i = 0; i < 32; ++i) {
    ids.data()[i] = static_cast<float>((7 * i) % 16);
    targets.data()[i] = static_cast<float>((5 * i + 3) % 16);
  }
  Tensors in = {ids, targets, ts::randn({16, 16}, 1)};
  const ts::Shape shapes[] = {{16, 16}, {16, 16}, {16, 16}, {16, 16}, {16, 32}, {32, 16}};
  for (std::size_t i = 0; i < 6; ++i) {
    in.push_back(ts::randn(shapes[i], 10 + i) * 0.25f);
  }
  in.push_back(ts::ones({16}));
  return in;
}

}  // namespace

TEST_CASE("program: a transformer block and its gradients under several layouts") {
  Tensors in = block_inputs(), eager = in;
  for (std::size_t i = 2; i < in.size(); ++i) {
    eager[i] = ts::parameter(in[i]);
  }
  const ts::Tensor loss = block_loss(eager)[0];
  loss.backward();
  struct Layout {
    std::vector<std::string> in;
    std::vector<std::string> out;
    int all_gather, reduce_scatter, all_reduce;
  };
  const std::string w = "D, F", v = "F, D";
  const Layout layouts[] = {
      // Data parallel: 8 gradients, the loss, and how many targets count: in both directions one.
      {{"B_x, T", "B_x, T", "V, D", w, w, w, v, w, v, "D"}, {}, 0, 0, 10},
      // Tensor parallel: two sums forward, two backward.
      {{"B, T", "B, T", "V, D", "D, F_x", "D, F_x", "D, F_x", "F_x, D", "D, F_x", "F_x, D", "D"},
       {"", "", "D, F_x", "D, F_x", "D, F_x", "F_x, D", "D, F_x", "F_x, D", ""},
       0,
       0,
       4},
      // Both.
      {{"B_x, T", "B_x, T", "V, D", "D, F_y", "D, F_y", "D, F_y", "F_y, D", "D, F_y", "F_y, D",
        "D"},
       {},
       0,
       0,
       14},
      // Weights cut over the data axis.
      {{"B_x, T", "B_x, T", "V_x, D", "D_x, F", "D_x, F", "D_x, F", "F_x, D", "D_x, F", "F_x, D",
        "D"},
       {"", "V_x, D", "D_x, F", "D_x, F", "D_x, F", "F_x, D", "D_x, F", "F_x, D", "D"},
       7,
       7,
       3},
  };
  for (const Layout& layout : layouts) {
    const ts::Mesh mesh = program_mesh({2, 2});
    ts::ShardedOptions options;
    options.gradients = {2, 3, 4, 5, 6, 7, 8, 9};
    options.results = layout.out;
    const ts::ShardedProgram program = ts::compile(mesh, &block_loss, layout.in, options);
    const std::vector<ts::Sharded> out = program(in);
    std::ostringstream text;
    text << program;
    CAPTURE(text.str());
    CHECK(gap(out[0].gather(), loss.detach()) < 1e-5);
    for (std::size_t i = 1; i < out.size(); ++i) {
      CHECK(gap(out[i].gather(), eager[i + 1].grad()) < 1e-5);
    }
    check_counted(program.plan());
    CHECK(count_of(program.plan(), "all_gather") == layout.all_gather);
    CHECK(count_of(program.plan(), "reduce_scatter") == layout.reduce_scatter);
    CHECK(count_of(program.plan(), "all_reduce") == layout.all_reduce);
    CHECK(count_of(program.plan(), "all_to_all") == 0);
    // Gathered once more for the backward pass: as many again.
    options.gather_again = true;
    const ts::ShardedProgram again = ts::compile(mesh, &block_loss, layout.in, options);
    CHECK(gap(again(in)[1].gather(), eager[2].grad()) < 1e-5);
    CHECK(count_of(again.plan(), "all_gather") == 2 * layout.all_gather);
    CHECK(count_of(again.plan(), "reduce_scatter") == layout.reduce_scatter);
    CHECK(count_of(again.plan(), "all_reduce") == layout.all_reduce);
  }
}

TEST_CASE("program: a sum is scattered where what it meets is cut") {
  const ts::Mesh mesh = program_mesh({4});
  const auto residual = [](const Tensors& in) { return Tensors{in[0] + mlp(in)[0]}; };
  const ts::ShardedProgram program = ts::compile(mesh, residual, {"T_x, D", "D, F_x", "F_x, D"});
  const Tensors in = mlp_inputs();
  const std::vector<ts::Sharded> out = program(Tensors{in[0], in[1], in[2]});
  CHECK(inserted(program.plan()) ==
        "all_gather x [T_x, D] -> [T, D]; reduce_scatter x [{U_x} T, D] -> [T_x, D]");
  CHECK(gap(out[0].gather(), residual(in)[0]) < 1e-5);
}

TEST_CASE("program: sums stay sums through linear ops, and are made before others") {
  const ts::Mesh mesh = program_mesh({2, 2});
  const ts::Tensor a = ts::randn({8, 16}, 1), b = ts::randn({16, 4}, 2);
  const auto list = [&](const ts::Compiled::Body& f, const std::vector<std::string>& shardings) {
    const ts::ShardedProgram program = ts::compile(mesh, f, shardings);
    CHECK(gap(program(Tensors{a, b})[0].gather(), f({a, b})[0]) < 1e-4);
    check_counted(program.plan());
    return inserted(program.plan());
  };
  const std::vector<std::string> cut = {"I, J_x", "J_x, K"};
  CHECK(list(
            [](const Tensors& x) {
              return Tensors{ts::transpose(ts::matmul(x[0], x[1]) * 2.0f, 0, 1)};
            },
            cut) == "all_reduce x [{U_x} I, K] -> [I, K]");
  CHECK(list(
            [](const Tensors& x) {
              return Tensors{ts::matmul(x[0], x[1]) - ts::matmul(x[0] * 2.0f, ts::tanh(x[1]))};
            },
            cut) == "all_reduce x [{U_x} I, K] -> [I, K]");
  CHECK(list([](const Tensors& x) { return Tensors{ts::sum(ts::matmul(x[0], x[1]))}; }, cut) ==
        "all_reduce x [{U_x}] -> []");
  CHECK(list([](const Tensors& x) { return Tensors{ts::sum(ts::tanh(ts::matmul(x[0], x[1])))}; },
             cut) == "all_reduce x [{U_x} I, K] -> [I, K]");
  CHECK(list([](const Tensors& x) { return Tensors{ts::matmul(x[0], x[1]) + 1.0f}; }, cut) ==
        "all_reduce x [{U_x} I, K] -> [I, K]");
  // Used twice: summed once.
  CHECK(list(
            [](const Tensors& x) {
              const ts::Tensor y = ts::matmul(x[0], x[1]);
              return Tensors{y * 2.0f + ts::tanh(y)};
            },
            cut) == "all_reduce x [{U_x} I, K] -> [I, K]");
  CHECK(list([](const Tensors& x) { return Tensors{ts::softmax(x[0])}; }, cut) ==
        "all_reduce x [{U_x} I, J] -> [I, J]; all_reduce x [{U_x} I, J] -> [I, J]");
  CHECK(list([](const Tensors& x) { return Tensors{ts::reshape(x[0], {128})}; },
             {"I_x, J", "J, K"}) == "");
  CHECK(list([](const Tensors& x) { return Tensors{ts::reshape(x[0], {128})}; }, cut) ==
        "all_gather x [I, J_x] -> [I, J]");
  // Where cuts clash the cheaper moves; of equals the second.
  const ts::Tensor c = ts::randn({8, 16}, 3);
  const ts::ShardedProgram clash = ts::compile(
      mesh, [](const Tensors& x) { return Tensors{x[0] * x[1]}; }, {"I_x, J", "I, J_x"});
  CHECK(gap(clash(Tensors{a, c})[0].gather(), a * c) < 1e-6);
  CHECK(inserted(clash.plan()) == "all_to_all x [I, J_x] -> [I_x, J]");
  check_counted(clash.plan());
}
#endif

TEST_CASE("program: shapes alone say what it costs, and how it is printed") {
  const ts::Mesh mesh = program_mesh({4});
  const ts::ShardedProgram program = ts::compile(
      mesh, [](const Tensors& in) { return Tensors{ts::tanh(ts::matmul(in[0], in[1]))}; },
      {"I, J_x", "J_x, K"});
  const std::vector<ts::Sharded> out = program(
      {mesh.shard(ts::Shape{1024, 4096}, "I, J_x"), mesh.shard(ts::Shape{4096, 512}, "J_x, K")});
  CHECK(out[0].text() == "[I, K]");
  CHECK(out[0].shards.empty());
  CHECK(out[0].shape == ts::Shape{1024, 512});
  CHECK(program.plan().bytes == doctest::Approx(2 * 3.0 / 4 * 4 * 1024 * 512));
  CHECK(program.plan().device[3].shape == ts::Shape{1024, 512});
  std::ostringstream text;
  text << program;
  CHECK(
      text.str() ==
      "sharded program: inputs 2, results 1, collectives 1\n"
      "node  op      operands           result        before it             why\n"
      "----  ------  -----------------  ------------  --------------------  -----------------------"
      "--------------------------------------------\n"
      "%0    input                      [I, J_x]                            given\n"
      "%1    input                      [J_x, K]                            given\n"
      "%2    matmul  [I, J_x] [J_x, K]  [{U_x} I, K]                        case 3: J is cut over "
      "x in both, so a device's product is a summand\n"
      "%3    tanh    [I, K]             [I, K]        all_reduce %2 over x\n"
      "collective  axes  of  from          to      for      algorithm  bytes, formula  counted  "
      "time, formula  simulated\n"
      "----------  ----  --  ------------  ------  -------  ---------  --------------  -------  "
      "-------------  ---------\n"
      "all_reduce  x     %2  [{U_x} I, K]  [I, K]  %3 tanh  line              3.15 MB  -        "
      "        41 us  -\n"
      "a device sends 3.15 MB, in 41 us by formula\n");
}

#if !defined(TINYSCALE_NO_THREADS)  // several devices
TEST_CASE("program: gradients of a loss at any place of its graph") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2}), {{"x", 2}});
  ts::ShardedOptions options;
  options.gradients = {0};
  for (int n = 1; n <= 40; ++n) {  // at some the graph's list moves when it grows
    const auto program = ts::compile(
        mesh,
        [n](const Tensors& in) {
          ts::Tensor y = in[0];
          for (int i = 0; i < n; ++i) {
            y = y * 2.0f;
          }
          return Tensors{ts::sum(y)};
        },
        {"I_x"}, options);
    const std::vector<ts::Sharded> out = program(Tensors{ts::ones({4})});
    CHECK(out[1].gather().values()[3] == std::ldexp(1.0f, n));
  }
}
#endif

#if !defined(TINYSCALE_NO_THREADS)
TEST_CASE("program: the run of the last call is kept, not one of each shape") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2}), {{"x", 2}});
  const auto twice =
      ts::compile(mesh, [](const Tensors& in) { return Tensors{in[0] + in[0]}; }, {"I_x"});
  twice(Tensors{ts::ones({4})});
  const ts::ShardedPlan& first = twice.plan();
  CHECK(first.run);
  twice(Tensors{ts::ones({8})});
  CHECK(twice.plan().run);
  CHECK(!first.run);
  CHECK(twice(Tensors{ts::ones({4})})[0].gather().values() == std::vector<float>(4, 2.0f));
  CHECK(first.run);
}

TEST_CASE("program: a result that is one number may stay a sum") {
  const ts::Mesh mesh = program_mesh({2, 3});
  const auto total = [](const Tensors& in) { return Tensors{ts::sum(in[0])}; };
  for (const char* wanted : {"{U_{x,y}}", "{U_x}", "{U_y}", ""}) {
    ts::ShardedOptions options;
    options.results = {wanted};
    const auto program = ts::compile(mesh, total, {"I_{x,y}"}, options);
    const ts::Sharded out = program(Tensors{ts::arange(6)})[0];
    CHECK(out.sharding.text() == wanted);
    CHECK(out.gather().item() == 15);
    CHECK(program.plan().collectives().empty() == (std::string(wanted) == "{U_{x,y}}"));
  }
  CHECK(error_of([&] {
          ts::ShardedOptions options;
          options.results = {"{U_x}"};
          ts::compile(
              mesh, [](const Tensors& in) { return in; }, {"I_x"}, options)(Tensors{ts::arange(6)});
        }) == "sharding \"{U_x}\": 0 dims for an array of shape [6]; a name for each dim is right");
}

TEST_CASE("program: ids are sent whole, in whatever format other numbers are") {
  const ts::Mesh mesh = program_mesh({2});
  const ts::Tensor table = ts::reshape(ts::arange(4000), {1000, 4});
  const ts::Tensor ids = ts::tensor({4}, {257, 999, 3, 511}), logits = ts::randn({4, 1000}, 3);
  const Tensors rows = {table, ids}, largest = {table, logits};
  const auto taken = [](const Tensors& in) { return Tensors{ts::embedding(in[0], in[1] + 0.0f)}; };
  const auto best = [](const Tensors& in) {
    const ts::Tensor place = ts::argmax(in[1], -1);
    return Tensors{ts::embedding(in[0], place), place};
  };
  for (const ts::DType format : {ts::DType::bf16, ts::DType::int8}) {
    ts::ShardedOptions options;
    options.format = format;
    const auto take = ts::compile(mesh, taken, {"V, D_x", "B_x"}, options);
    CHECK(gap(take(rows)[0].gather(), taken(rows)[0]) == 0);
    REQUIRE(take.plan().collectives().size() == 1);
    CHECK(take.plan().collectives()[0].bytes == 8);  // 2 ids of 4 bytes
    CHECK(take.plan().collectives()[0].counted == 8);
    options.results = {"", "B"};
    const std::vector<ts::Sharded> found =
        ts::compile(mesh, best, {"V, D_x", "B_x, C"}, options)(largest);
    CHECK(gap(found[0].gather(), best(largest)[0]) == 0);
    CHECK(gap(found[1].gather(), best(largest)[1]) == 0);
  }
}
#endif
