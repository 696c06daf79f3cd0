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
std::string inserted(const ts::ShardedPlan& plan) {
  std::string out;
  for (const ts::InsertedStep& step : plan.collectives()) {
    out += (out.empty() ? "" : "; ") + step.name + " " + step.axes + " [" + step.before + "] -> [" +
           step.after + "]";
  }
  return out;
}

int count_of(const ts::ShardedPlan& plan, const std::string& name) {
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

ts::ShardedPlan run_gradients(const ts::Mesh& mesh, const std::vector<std::string>& shardings,
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
