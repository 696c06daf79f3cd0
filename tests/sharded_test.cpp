// mesh/sharding, sharded, reshard, sharded_ops, sharded_matmul, collective_matmul.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

// Small deterministic numbers for choices.
struct Chooser {
  std::uint64_t state;
  std::size_t below(std::size_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>((state >> 33) % n);
  }
};

struct Axis {
  std::string name;
  std::int64_t size;
};

ts::Mesh mesh_of(const std::vector<Axis>& axes) {
  ts::Shape dims;
  ts::List<ts::MeshAxis> named;
  for (const Axis& axis : axes) {
    dims.push_back(axis.size);
    named.push_back({axis.name, axis.size});
  }
  return ts::Mesh(ts::machine("tpu-v5p", dims), named);
}

std::vector<Axis> random_axes(Chooser& choose) {
  const char* const names[] = {"x", "y", "z"};
  std::vector<Axis> axes;
  const std::size_t count = 1 + choose.below(3);
  for (std::size_t i = 0; i < count; ++i) {
    axes.push_back({names[i], static_cast<std::int64_t>(1 + choose.below(i == 0 ? 4 : 3))});
  }
  return axes;
}

// A legal sharding of an array on these axes; `first_dim` 1 leaves the first dim whole.
std::string random_sharding(Chooser& choose, std::vector<Axis> axes, const std::string& names,
                            const ts::Shape& shape) {
  std::vector<std::vector<std::string>> cut(names.size());
  std::vector<std::int64_t> left = shape.values();
  while (!axes.empty()) {
    const std::size_t a = choose.below(axes.size());
    const std::size_t d = choose.below(names.size() + 1);
    if (d < names.size() && left[d] % axes[a].size == 0) {
      left[d] /= axes[a].size;
      cut[d].push_back(axes[a].name);
    }
    axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(a));
  }
  ts::Sharding out;
  for (std::size_t d = 0; d < names.size(); ++d) {
    out.dims.push_back({names.substr(d, 1), cut[d]});
  }
  return out.text();
}

std::int64_t random_size(Chooser& choose) {
  const std::int64_t sizes[] = {12, 24, 36, 8, 48};
  return sizes[choose.below(5)];
}

ts::Tensor absolute(const ts::Tensor& x) { return ts::maximum(x, -x); }

// |ours - right| <= bound, element by element.
bool within(const ts::Tensor& ours, const ts::Tensor& right, const ts::Tensor& bound) {
  const std::vector<float> a = ours.values(), b = right.values(), c = bound.values();
  bool good = ours.shape() == right.shape();
  for (std::size_t i = 0; good && i < a.size(); ++i) {
    good = std::fabs(a[i] - b[i]) <= c[i];
  }
  return good;
}

// Two sums of K products in any order differ by at most 2 K u sum |x w|, u = 2^-24.
ts::Tensor matmul_bound(const ts::Tensor& x, const ts::Tensor& w) {
  const float u = 1.0f / 16777216.0f;
  return ts::matmul(absolute(x), absolute(w)) * (2.0f * static_cast<float>(w.dim(0)) * u);
}

bool same(const ts::Tensor& a, const ts::Tensor& b) {
  return a.shape() == b.shape() && a.values() == b.values();
}

std::map<std::string, std::vector<std::string>> book_rows() {
  const char* root = std::getenv("TINYSCALE_SHARED");
  std::ifstream file(std::string(root != nullptr ? root : "../shared") + "/cases/book-cases.tsv");
  std::map<std::string, std::vector<std::string>> rows;
  std::string line, cell;
  while (std::getline(file, line)) {
    std::istringstream text(line);
    std::vector<std::string> cells;
    while (std::getline(text, cell, '\t')) {
      cells.push_back(cell);
    }
    if (cells.size() > 8) {
      rows[cells[0]] = cells;
    }
  }
  return rows;
}

const ts::ShardedCandidate* way(const ts::Sharded& c, const std::string& calls) {
  for (const ts::ShardedCandidate& each : c.made->candidates) {
    if (each.calls == calls) {
      return &each;
    }
  }
  return nullptr;
}

}  // namespace

TEST_CASE("sharding: the text is printed as it was parsed") {
  for (const char* text : {"I_x, J", "I_{x,y}", "{U_x} I, K_y", "{U_{x,y}} I", "{U_x}", "",
                           "I, J, K_z", "B_data, T, D_model_axis"}) {
    CHECK(ts::parse_sharding(text).text() == text);
  }
  CHECK(ts::parse_sharding(" I_{ x , y },J ").text() == "I_{x,y}, J");
  CHECK(ts::parse_sharding("{U_{x}}I").text() == "{U_x} I");
  CHECK(ts::parse_sharding("A[I_x, J]").text() == "I_x, J");  // as the book has it
  CHECK(ts::parse_sharding(" [ {U_x} ] ").text() == "{U_x}");
  // The name and the sum, as the book and reports have them.
  for (const char* text :
       {"{U_x} I, K_y", "[{U_x} I, K_y]", "{U_x} [I, K_y]", "{U_x} C[I, K_y]", "C {U_x} [I, K_y]",
        "C[{U_x} I, K_y]", "C[I, K_y] {U_x}", "C_out[I,K_y]{U_x}", "I, K_y {U_x}"}) {
    CHECK(ts::parse_sharding(text).text() == "{U_x} I, K_y");
  }
  const auto error = [](const char* text) { return error_of([=] { ts::parse_sharding(text); }); };
  CHECK(error("I_x, J_y [K, L]") ==
        "sharding \"I_x, J_y [K, L]\": ',' at place 4; an array's name is right before [, as in "
        "A[I_x, J]");
  CHECK(error("an array [K]") ==
        "sharding \"an array [K]\": 'a' at place 4; an array's name is right before [, as in "
        "A[I_x, J]");
  CHECK(error("{U_x} C[I, K] {U_y}") ==
        "sharding \"{U_x} C[I, K] {U_y}\": 'U' at place 16; a partial sum is written once, in "
        "front, as in {U_x} I, J");
  CHECK(error("[I] J") == "sharding \"[I] J\": 'J' at place 5; the end is right after ]");
  CHECK(error("[I,]") == "sharding \"[I,]\": ']' at place 4; a dim is right, as in I or I_x");
  CHECK(error("I_, J") ==
        "sharding \"I_, J\": ',' at place 3; a mesh axis is right, as in I_x, or several as in "
        "I_{x,y}");
  CHECK(error("I_{x") ==
        "sharding \"I_{x\": the end; a comma or } is right after an axis, as in I_{x,y}");
  CHECK(error("[I_x") ==
        "sharding \"[I_x\": the end; a comma or ] is right after a dim, as in A[I_x, J]");
  CHECK(error("I,") == "sharding \"I,\": the end; a dim is right, as in I or I_x");
  CHECK(error("I J") ==
        "sharding \"I J\": 'J' at place 3; a comma is right between dims, as in I_x, J");
  CHECK(error("I, _x") == "sharding \"I, _x\": '_' at place 4; a dim is right, as in I or I_x");
  CHECK(error("{V_x} I") ==
        "sharding \"{V_x} I\": 'V' at place 2; a partial sum is written once, in front, as in "
        "{U_x} I, J");
}

TEST_CASE("sharding: every text of an array and its reports parses to the same sharding") {
  const ts::Mesh mesh = mesh_of({{"x", 2}, {"data_1", 3}});
  const auto same_text = [](const std::string& text) {
    const ts::Sharding read = ts::parse_sharding(text);
    CHECK(read.text() == (text[0] == '[' ? text.substr(1, text.size() - 2) : text));
    CHECK(ts::parse_sharding("A" + ("[" + read.text() + "]")).text() == read.text());
  };
  const char* const cuts[] = {"I, J, K",          "I_x, J_data_1, K",   "I_{x,data_1}, J, K",
                              "I, J, K_x",        "I, J_{data_1,x}, K", "I_data_1, J, K_x",
                              "I, J_x, K_data_1", "I, J, K_{x,data_1}"};
  for (const char* from : cuts) {
    const ts::Sharded a = ts::sum(mesh.shard({36, 36, 36}, from), "K");  // with each {U}
    same_text(a.text());
    for (const char* to : {"I, J", "I_{x,data_1}, J", "I_data_1, J_x"}) {
      const ts::Sharded b = ts::reshard(a, to);
      same_text(b.text());
      for (const ts::ShardedStep& step : b.explain().steps) {
        same_text(step.before);
        same_text(step.after);
      }
    }
  }
}

TEST_CASE("sharded: which device holds what") {
  const ts::Mesh mesh = mesh_of({{"x", 2}, {"y", 2}});
  const ts::Tensor x = ts::arange(32);
  const ts::Sharded a = mesh.shard(ts::reshape(x, {4, 8}), "I_y, J_x");
  CHECK(a.local_shape() == ts::Shape{2, 4});
  CHECK(a.replicas() == 1);
  CHECK(a.bytes() == 32);
  CHECK(a.begin(1, 0) == 2);  // device 1 is x 0, y 1
  CHECK(a.begin(1, 1) == 0);
  CHECK(a.shards[1].values() == std::vector<float>{16, 17, 18, 19, 24, 25, 26, 27});
  CHECK(same(a.gather(), ts::reshape(x, {4, 8})));
  CHECK(a.picture().text() ==
        "[I_y, J_x] of shape [4, 8] on 4 devices\n"
        "  I  J 0:4  J 4:8\n"
        "---  -----  -----\n"
        "0:2      0      2\n"
        "2:4      1      3\n");
  CHECK(mesh.shard(x, "I_{y,x}").picture().text() ==
        "[I_{y,x}] of shape [32] on 4 devices\n"
        "        I 0:8  I 8:16  I 16:24  I 24:32\n"
        "------  -----  ------  -------  -------\n"
        "device      0       2        1        3\n");
  CHECK(mesh.shard(ts::reshape(x, {2, 4, 4}), "I_x, J, K").picture().text() ==
        "[I_x, J, K] of shape [2, 4, 4] on 4 devices\n"
        "I 0:1\n"
        "  J  K 0:4\n"
        "---  -----\n"
        "0:4   0, 1\n"
        "I 1:2\n"
        "  J  K 0:4\n"
        "---  -----\n"
        "0:4   2, 3\n");
  CHECK(mesh.shard(x, "I").picture().cell(0) == "0-3");
  const ts::Sharded sums = ts::sum(mesh.shard(ts::reshape(x, {4, 8}), "I, J_x"), "J");
  CHECK(sums.text() == "[{U_x} I]");
  CHECK(sums.picture().text() ==
        "[{U_x} I] of shape [4] on 4 devices, + joins summands\n"
        "           I 0:4\n"
        "------  --------\n"
        "device  0+2, 1+3\n");
  std::ostringstream out;
  out << a.explain();
  CHECK(out.str() ==
        "[I_y, J_x] of shape [4, 8]: each of 4 devices holds [2, 4], 32 B; all together 128 B, "
        "each number once\n");
  const ts::Sharded shape_only = mesh.shard({1 << 20, 1 << 20}, "I_x, J", ts::DType::bf16);
  CHECK(shape_only.bytes() == 2.0 * (1 << 20) * (1 << 19));
  CHECK(shape_only.shards.empty());
}

TEST_CASE("sharded: pictures") {
  const ts::Mesh mesh = mesh_of({{"x", 4}, {"y", 2}});
  for (const char* text : {"I_x, J_y, K", "I, J_{x,y}, K", "I, J, K"}) {
    const ts::ShardPicture picture = mesh.shard({8, 16, 4}, text).picture();
    const ts::Svg drawn = ts::svg(picture);
    CHECK(drawn.text == picture.text());
    // A stripe for each device that holds a block, and the paper.
    std::size_t stripes = 0;
    for (const std::vector<int>& ranks : picture.holders) {
      stripes += ranks.size();
    }
    std::size_t rects = 0;
    for (std::size_t at = drawn.body.find("<rect"); at != std::string::npos;
         at = drawn.body.find("<rect", at + 1)) {
      ++rects;
    }
    CHECK(rects == stripes + 1);
  }
  CHECK(ts::svg(mesh.shard({8}, "I_x").picture()).height < 200);
  CHECK(ts::svg(ts::sum(mesh.shard({8}, "I_x"), "I").picture()).text ==
        "[{U_x}] of shape [] on 8 devices, + joins summands\n\n------  ----------------\n"
        "device  0+2+4+6, 1+3+5+7\n");
}

TEST_CASE("sharded: what is wrong is said") {
  const ts::Mesh mesh = mesh_of({{"x", 4}, {"y", 2}});
  const ts::Tensor x = ts::randn({8, 12}, 1);
  const auto shard_error = [&](const char* text) { return error_of([&] { mesh.shard(x, text); }); };
  CHECK(shard_error("I_q, J") ==
        "sharding \"I_q, J\": no axis q on this mesh; its axes are x,y, and several on one dim "
        "are written I_{x,y}");
  CHECK(shard_error("I_x, J_x") ==
        "sharding \"I_x, J_x\": axis x stands twice; an axis cuts one dim, or is summed over, "
        "once");
  CHECK(shard_error("I_x") ==
        "sharding \"I_x\": 1 dims for an array of shape [8, 12]; a name for each dim is right");
  CHECK(shard_error("I, I") ==
        "sharding \"I, I\": dim I stands twice; every dim has a name of its own");
  CHECK(shard_error("I, J_{x,y}") ==
        "sharding \"I, J_{x,y}\": dim J of 12 does not divide over 8 devices; pad it to 16 or use "
        "fewer axes");
  CHECK(shard_error("{U_x} I, J") ==
        "shard: \"{U_x} I, J\" asks for summands, the tensor is their sum; a partial sum comes "
        "from a matmul or a sum over a dim that is cut");

  const ts::Sharded a = mesh.shard(x, "I_x, J");
  const ts::Sharded u = ts::sum(mesh.shard(ts::randn({8, 12, 4}, 2), "I, J, K_x"), "K");
  const ts::Sharded whole = mesh.shard(x, "I, J");
  CHECK(error_of([&] { ts::reshard(a, "{U_y} I_x, J"); }) ==
        "reshard: from [I_x, J] to [{U_y} I_x, J]; a sum that is made is not undone, leave out "
        "what stands in braces");
  CHECK(error_of([&] { ts::reshard(a, "J, I"); }) ==
        "reshard: the array is [I_x, J], wanted is [J, I]; the same dims in the same order are "
        "right");
  CHECK(error_of([&] { mesh.shard(x.shape(), "I, J").gather(); }) ==
        "gather: [I, J] of shape [8, 12] was made of a shape and has no numbers; give mesh.shard "
        "a tensor");
  CHECK(error_of([&] { a + mesh.shard(x.shape(), "I, J"); }) ==
        "add: only one of [I_x, J] and [I, J] has numbers; give mesh.shard a tensor for both, or "
        "shapes");
  CHECK(error_of([&] {
          a + mesh_of({{"x", 2}}).shard(x, "I, J");
        }) ==
        "add: the arrays lie on two meshes, tpu-v5p 4x2, x 4, y 2 and tpu-v5p 2, x 2; "
        "both on one are right");
  CHECK(error_of([&] { a + mesh.shard(x, "I, M"); }) ==
        "add: [I_x, J] of shape [8, 12] and [I, M] of shape [8, 12]; equal dims, or those of the "
        "second at the end of the first, are right");
  CHECK(error_of([&] { a + mesh.shard(x, "I_y, J"); }) ==
        "add: dim I is cut over x in [I_x, J] and over y in [I_y, J]; reshard one of them as the "
        "other first");
  CHECK(error_of([&] { a* mesh.shard(x, "I, J_x"); }) ==
        "mul: [I_x, J] and [I, J_x] use axis x for different things; reshard one of them so that "
        "it is as the other");
  CHECK(error_of([&] { u + whole; }) ==
        "add: [{U_x} I, J] and [I, J]; what is no partial sum would be added once by every "
        "device, so reshard the partial one to \"I, J\" first");
  const ts::Sharded uy = ts::sum(mesh.shard(ts::randn({8, 12, 4}, 2), "I, J, K_y"), "K");
  CHECK(error_of([&] { u + uy; }) ==
        "add: [{U_x} I, J] and [{U_y} I, J]; sums over other axes have other summands, so reshard "
        "both to \"I, J\" first");
  CHECK(error_of([&] { u* u; }) ==
        "mul: [{U_x} I, J] and [{U_x} I, J]; a product of sums is not the sum of products, so "
        "reshard one of them to \"I, J\" first");
  CHECK(error_of([&] { ts::gelu(u); }) ==
        "gelu: [{U_x} I, J] is still to be summed, and gelu of a sum is not the sum of it; "
        "reshard to \"I, J\" first");
  CHECK(error_of([&] { ts::max(u, "J"); }) ==
        "max: [{U_x} I, J] is still to be summed, and max of a sum is not the sum of it; reshard "
        "to \"I, J\" first");
  CHECK(error_of([&] { ts::sum(a, "K"); }) == "sum: no dim K in [I_x, J]");

  const ts::Tensor w = ts::randn({12, 8}, 3);
  CHECK(error_of([&] { ts::matmul(a, mesh.shard(w, "J, K_x")); }) ==
        "matmul: [I_x, J] times [J, K_x] would have axis x twice in the product; say where it "
        "shall be, as a third argument \"I_x, K\" or \"I, K_x\"");
  CHECK(error_of([] {
          mesh_of({{"data-parallel", 4}});
        }) ==
        "Mesh: axis data-parallel has '-' in its name; letters, digits and _ are right, as "
        "shardings are written I_x");
  CHECK(error_of([&] { ts::matmul(a, mesh.shard(w, "M, K")); }) ==
        "matmul: [I_x, J] of shape [8, 12] times [M, K] of shape [12, 8]; [.., J] times [J, K] is "
        "right, J of one name and size");
  CHECK(error_of([&] { ts::matmul(a, mesh.shard(w, "J, I")); }) ==
        "sharding \"I_x, I\": dim I stands twice; every dim has a name of its own");
  const ts::Sharded v = ts::sum(mesh.shard(ts::randn({12, 8, 4}, 2), "J, K, M_x"), "M");
  CHECK(error_of([&] { ts::matmul(u, v); }) ==
        "matmul: [{U_x} I, J] times [{U_x} J, K]; a product of sums is not the sum of products, "
        "so reshard one of them to \"I, J\" first");
  CHECK(
      error_of([&] { ts::matmul(a, mesh.shard(w, "J, K"), "{U_x} I, M"); }) ==
      "matmul: the array is [I_x, K], wanted is [{U_x} I, M]; the same dims in the same order are "
      "right");
  CHECK(error_of([&] {
          ts::matmul(mesh.shard(ts::randn({8, 3}, 1), "I, J"),
                     mesh.shard(ts::randn({3, 8}, 1), "J, K"), "{U_x} I, K");
        }) ==
        "matmul: no way from [I, J] and [J, K] to [{U_x} I, K]; a partial sum must be one "
        "already, or J be cut over its axes");
  CHECK(error_of([&] { ts::collective_matmul(a, mesh.shard(w, "J, K_x"), "I_x, K_y"); }) ==
        "collective_matmul: [I_x, J] [J, K_x] -> [I_x, K_y]; what takes one all_gather or "
        "reduce_scatter over one axis is right, as [I_x, J] [J, K] -> [I, K]; else use matmul");
}

TEST_CASE("sharded: where a product is ambiguous, each advice works") {
  const ts::Mesh mesh = mesh_of({{"x", 2}, {"y", 2}, {"z", 2}});
  const char* const cases[][3] = {
      {"A, I_{x,y}, J, S", "J, K_{x,y}, S", "\"A, I_{x,y}, K\" or \"A, I, K_{x,y}\""},
      {"A_y, I_x, J, S", "J, K_{x,y}, S", "\"A_y, I_x, K\" or \"A, I, K_{x,y}\""},
      {"A_z, I_{x,y}, J, S", "J, K_{y,x}, S", "\"A_z, I_{x,y}, K\" or \"A_z, I, K_{y,x}\""},
      {"A, I_{x,y}, J, S", "J, K_y, S_x", "\"A, I_{x,y}, K\""},
      {"A, I_{x,y}, J, S_z", "J, K_{z,y}, S_x", "\"{U_z} A, I_{x,y}, K\""}};
  for (const auto& each : cases) {
    CAPTURE(each[0]);
    CAPTURE(each[1]);
    const ts::Tensor x = ts::randn({4, 8, 8, 2}, 1), w = ts::randn({8, 8, 2}, 2);
    const ts::Sharded a = ts::sum(mesh.shard(x, each[0]), "S");
    const ts::Sharded b = ts::sum(mesh.shard(w, each[1]), "S");
    const std::string error = error_of([&] { ts::matmul(a, b); });
    const std::string before = "twice in the product; say where it shall be, as a third argument ";
    const std::size_t at = error.find(before);
    REQUIRE(at != std::string::npos);
    CHECK(error.substr(at + before.size()) == each[2]);
    const ts::Tensor right = ts::matmul(a.gather(), b.gather());
    std::size_t open = error.find('"', at);
    while (open != std::string::npos) {
      const std::size_t close = error.find('"', open + 1);
      const std::string advice = error.substr(open + 1, close - open - 1);
      CAPTURE(advice);
      const ts::Sharded c = ts::matmul(a, b, advice);
      CHECK(c.text() == "[" + advice + "]");
      CHECK(within(c.gather(), right, matmul_bound(a.gather(), b.gather()) * 2.0f));
      open = error.find('"', close + 1);
    }
  }
}

TEST_CASE("sharded: of too many ways those that keep the order of axes") {
  const ts::Mesh mesh(ts::machine("tpu-v5p", {4, 4, 4}),
                      {{"a", 2}, {"b", 2}, {"c", 2}, {"d", 2}, {"e", 2}, {"f", 2}});
  const std::string few =
      "; 6 axes leave too many ways, so only those were searched that cut each dim over the first "
      "of the axes that it has or shall have";
  const ts::Tensor x = ts::randn({64, 64}, 1), w = ts::randn({64, 64}, 2);
  const ts::Tensor right = ts::matmul(x, w), bound = matmul_bound(x, w);
  const ts::Tensor cube = ts::randn({16, 16, 16}, 3);
  const ts::Sharded a = mesh.shard(cube, "I_{a,b}, J_{c,d}, K_{e,f}");
  const double whole = ts::reshard(a, "I, J, K").made->comms_seconds;
  for (const char* to : {"I_{c,d}, J_{a,b}, K_{f,e}", "I_{f,e,d}, J, K_{b,a}", "I_a, J_c, K_e"}) {
    const ts::Sharded b = ts::reshard(a, to);
    CHECK(same(b.gather(), cube));
    CHECK(b.made->reason.substr(b.made->reason.find("; ")) == few);
    CHECK(b.made->comms_seconds <= whole * (1 + 1e-9));
  }
  const char* const products[][3] = {
      {"I_{a,b}, J_{c,d}", "J_{c,d}, K_{e,f}", "I_{a,b}, K_{e,f}"},
      {"I_{a,b,c}, J_{d,e,f}", "J_{a,b,c}, K_{d,e,f}", "I_{f,d}, K_{e,a}"},
      {"I_{a,b,c}, J_{d,e}", "J_e, K", "{U_{d,f}} I_{a,b}, K_c"}};
  for (const auto& each : products) {
    CAPTURE(each[0]);
    const ts::Sharded c = ts::matmul(mesh.shard(x, each[0]), mesh.shard(w, each[1]), each[2]);
    CHECK(within(c.gather(), right, bound));
    CHECK(c.text() == std::string("[") + each[2] + "]");
    CHECK(c.made->reason.find(few) != std::string::npos);
  }
  // Five are few enough.
  CHECK(ts::reshard(mesh.shard(x, "I_{a,b,c}, J_{d,e}"), "I_{d,e}, J_{a,b,c}")
            .made->reason.find("axes leave") == std::string::npos);
}

TEST_CASE("sharded: axes of a sum to come may cut J before those that it has") {
  const ts::Mesh mesh(ts::machine("tpu-v5p", {4, 4, 4}),
                      {{"a", 2}, {"b", 2}, {"c", 2}, {"d", 2}, {"e", 2}, {"f", 2}});
  const ts::Sharded y =
      ts::matmul(mesh.shard(ts::Shape({8, 4}), "I_d, J_{a,b}"),
                 mesh.shard(ts::Shape({4, 8}), "J_{a,b}, K_{e,f}"), "{U_c} I_d, K_{e,f}");
  CHECK(y.text() == "[{U_c} I_d, K_{e,f}]");
  CHECK(error_of([&] {
          ts::matmul(mesh.shard(ts::Shape({8, 3}), "I_{d,a}, J"),
                     mesh.shard(ts::Shape({3, 8}), "J, K_{e,f}"), "{U_{c,b}} I_{d,a}, K_{e,f}");
        }).find("axes leave too many ways") != std::string::npos);
}

TEST_CASE("sharded: operands of two formats are priced each in its own") {
  const ts::Mesh mesh(ts::machine("tpu-v5p", {4}), {{"x", 4}});
  const ts::Sharded y = ts::matmul(mesh.shard(ts::Shape({4096, 4096}), "I_x, J", ts::DType::bf16),
                                   mesh.shard(ts::Shape({4096, 4096}), "J, K_x"), "I, K");
  double steps = 0;
  for (const ts::ShardedStep& step : y.made->steps) {
    steps += step.seconds;
  }
  CHECK(steps == doctest::Approx(y.made->candidates[0].comms_seconds).epsilon(1e-9));
  CHECK(y.made->candidates[0].calls == "all_gather a over x, matmul, all_gather product over x");
}

TEST_CASE("sharded: an array that no mesh made says so") {
  const ts::Sharded s;
  const ts::Sharded a = mesh_of({{"x", 4}}).shard(ts::ones({4, 4}), "I_x, J");
  const std::string empty = "Sharded: empty (default-constructed); make one with mesh.shard";
  CHECK(error_of([&] { s.text(); }) == empty);
  CHECK(error_of([&] { s.local_shape(); }) == empty);
  CHECK(error_of([&] { s.devices(); }) == empty);
  CHECK(error_of([&] { s.replicas(); }) == empty);
  CHECK(error_of([&] { s.bytes(); }) == empty);
  CHECK(error_of([&] { s.bytes_in_all(); }) == empty);
  CHECK(error_of([&] { s.begin(0, 0); }) == empty);
  CHECK(error_of([&] { s.places(); }) == empty);
  CHECK(error_of([&] { s.gather(); }) == empty);
  CHECK(error_of([&] { s.explain(); }) == empty);
  CHECK(error_of([&] { s.picture(); }) == empty);
  CHECK(error_of([&] { ts::reshard(s, "I"); }) == empty);
  CHECK(error_of([&] { ts::matmul(s, s); }) == empty);
  CHECK(error_of([&] { ts::matmul(a, s, "I, K"); }) == empty);
  CHECK(error_of([&] { ts::collective_matmul(s, s, "I, K"); }) == empty);
  CHECK(error_of([&] { a + s; }) == empty);
  CHECK(error_of([&] { s / s; }) == empty);
  CHECK(error_of([&] { s * 2.0f; }) == empty);
  CHECK(error_of([&] { ts::relu(s); }) == empty);
  CHECK(error_of([&] { ts::sum(s, "I"); }) == empty);
  CHECK(error_of([&] { ts::softmax(s, "I"); }) == empty);
  CHECK(error_of([&] { ts::transpose(s, "I", "J"); }) == empty);
  std::ostringstream out;
  out << ts::ShardedReport() << ts::ShardPicture();
  CHECK(out.str() == "\n\n");
  CHECK(ts::ShardedReport().json() == "{\"title\": \"\", \"rows\": []}\n");
  CHECK(error_of([&] { a.picture().cell(4); }) ==
        "ShardPicture: block 4 of 4; make a picture with Sharded::picture");
  CHECK(error_of([] { ts::ShardPicture().range(0, 0); }) == "Shape: dim 0 of []; it has no dims");
  CHECK(error_of([&] { a.begin(0, 2); }) == "Shape: dim 2 of [1, 4]; dims are -2 to 1");
  CHECK(a.begin(3, -2) == 3);
}

TEST_CASE("sharded: matmuls on 2 x 3 devices, from each place of an axis to each") {
  // An axis is idle, cuts the first dim or the second, or is summed over: 4 places for x and y.
  const ts::Mesh mesh = mesh_of({{"x", 2}, {"y", 3}});
  const auto text = [](std::size_t places, const std::string& dims) {
    std::vector<std::vector<std::string>> at(4);
    at[places % 4].push_back("x");
    at[places / 4].push_back("y");
    return ts::Sharding{at[3], {{dims.substr(0, 1), at[1]}, {dims.substr(1, 1), at[2]}}};
  };
  const auto array = [&](const ts::Tensor& x, ts::Sharding sharding) {
    sharding.dims.push_back({"Z", sharding.partial});
    sharding.partial.clear();
    return ts::sum(mesh.shard(x, sharding.text()), "Z");
  };
  const ts::Tensor x = ts::randn({6, 6, 6}, 1), w = ts::randn({6, 6, 6}, 2);
  const ts::Tensor right = ts::matmul(ts::sum(x, 2), ts::sum(w, 2));
  const ts::Tensor bound = ts::matmul(ts::sum(absolute(x), 2), ts::sum(absolute(w), 2)) * 1e-5f;
  int done = 0;
  for (std::size_t i = 0; i < 16 * 16 * 16; i += 7) {  // 7 and 16 have no common factor
    const ts::Sharded a = array(x, text(i % 16, "IJ")), b = array(w, text(i / 16 % 16, "JK"));
    const std::string goal = text(i / 256, "IK").text();
    CAPTURE(a.text());
    CAPTURE(b.text());
    CAPTURE(goal);
    const ts::Sharded c = ts::matmul(a, b, goal);
    CHECK(within(c.gather(), right, bound));
    const ts::ShardPicture picture = c.picture();
    for (const std::vector<int>& ranks : picture.holders) {
      for (std::size_t r = 1; r < ranks.size() && picture.summands == 1; ++r) {
        CHECK(same(c.shards[static_cast<std::size_t>(ranks[r])],
                   c.shards[static_cast<std::size_t>(ranks[0])]));
      }
    }
    for (const ts::ShardedStep& step : c.made->steps) {
      CHECK(step.bytes == doctest::Approx(step.counted));
    }
    ++done;
  }
  CHECK(done == 586);
}

TEST_CASE("sharded: any sharding to any other, the same numbers") {
  Chooser choose = {1};
  for (int round = 0; round < 150; ++round) {
    const std::vector<Axis> axes = random_axes(choose);
    const ts::Mesh mesh = mesh_of(axes);
    const ts::Shape shape = {random_size(choose), random_size(choose), random_size(choose) / 4};
    const ts::Tensor x = ts::randn(shape, static_cast<std::uint64_t>(round));
    const std::string from = random_sharding(choose, axes, "IJK", shape);
    const std::string to = random_sharding(choose, axes, "IJK", shape);
    CAPTURE(from);
    CAPTURE(to);
    const ts::Sharded a = mesh.shard(x, from);
    CHECK(a.text() == "[" + from + "]");
    const ts::Sharded b = ts::reshard(a, to);
    CHECK(b.text() == "[" + to + "]");
    CHECK(same(a.gather(), x));
    CHECK(same(b.gather(), x));
    const ts::Sharded expected = mesh.shard(x, to);
    for (std::size_t rank = 0; rank < b.shards.size(); ++rank) {
      CHECK(same(b.shards[rank], expected.shards[rank]));
    }
    // No dearer than gathering everything, after which any sharding is a slice.
    const ts::Sharded whole = ts::reshard(a, "I, J, K");
    CHECK(b.made->comms_seconds <= whole.made->comms_seconds * (1 + 1e-9));
    for (const ts::ShardedStep& step : b.made->steps) {
      CHECK((mesh.size() > 16 || step.bytes == doctest::Approx(step.counted)));
    }
  }
}

TEST_CASE("sharded: matmuls over random shardings equal one device's") {
  Chooser choose = {2};
  int collectives = 0, by_hand = 0;
  for (int round = 0; round < 150; ++round) {
    const std::vector<Axis> axes = random_axes(choose);
    const ts::Mesh mesh = mesh_of(axes);
    const bool batch = choose.below(3) == 0;
    const std::int64_t m = random_size(choose), k = random_size(choose), n = random_size(choose);
    const ts::Shape shape = batch ? ts::Shape{4, m, k} : ts::Shape{m, k};
    const ts::Tensor x = ts::randn(shape, 1), w = ts::randn({k, n}, 2);
    const std::string sa = random_sharding(choose, axes, batch ? "BIJ" : "IJ", shape);
    const std::string sb = random_sharding(choose, axes, "JK", w.shape());
    const ts::Shape product = batch ? ts::Shape{4, m, n} : ts::Shape{m, n};
    const std::string sc = random_sharding(choose, axes, batch ? "BIK" : "IK", product);
    CAPTURE(sa);
    CAPTURE(sb);
    CAPTURE(sc);
    const ts::Sharded a = mesh.shard(x, sa), b = mesh.shard(w, sb);
    const ts::Sharded c = ts::matmul(a, b, sc);
    CHECK(c.text() == "[" + sc + "]");
    const ts::Tensor right = ts::matmul(x, w), bound = matmul_bound(x, w);
    CHECK(within(c.gather(), right, bound));
    CHECK(same(
        ts::reshard(c, ts::Sharding{{}, ts::parse_sharding(batch ? "B, I, K" : "I, K").dims}.text())
            .gather(),
        c.gather()));
    collectives += static_cast<int>(c.made->steps.size());
    // The choice is the least of all ways.
    double bytes = 0;
    for (const ts::ShardedCandidate& each : c.made->candidates) {
      CHECK(each.seconds >= c.made->candidates[0].seconds * (1 - 1e-9));
    }
    for (const ts::ShardedStep& step : c.made->steps) {
      bytes += step.bytes;
      CHECK((mesh.size() > 16 || step.bytes == doctest::Approx(step.counted)));
    }
    CHECK(bytes == doctest::Approx(c.made->candidates[0].bytes));
    // No other way by hand is sooner done: move the operands anywhere, multiply, move the product.
    const ts::Shape kn = {k, n};
    const ts::Sharded ha = ts::reshard(mesh.shard(shape, sa),
                                       random_sharding(choose, axes, batch ? "BIJ" : "IJ", shape));
    const ts::Sharded hb = ts::reshard(mesh.shard(kn, sb), random_sharding(choose, axes, "JK", kn));
    try {
      const ts::Sharded hc = ts::matmul(ha, hb);
      const double comms = ha.made->comms_seconds + hb.made->comms_seconds +
                           hc.made->comms_seconds + ts::reshard(hc, sc).made->comms_seconds;
      CHECK(c.made->candidates[0].seconds <=
            std::max(hc.made->math_seconds, comms) * (1 + 1e-9) + 1e-15);
      ++by_hand;
    } catch (const ts::Error&) {  // ambiguous
    }
    // Only shapes: the same plan.
    const ts::Sharded planned =
        ts::matmul(mesh.shard(x.shape(), sa), mesh.shard(w.shape(), sb), sc);
    CHECK(planned.made->candidates[0].calls == c.made->candidates[0].calls);
    CHECK(planned.made->comms_seconds == c.made->comms_seconds);
    CHECK(planned.shards.empty());
    try {  // and without a wish, where that is not ambiguous
      const ts::Sharded natural = ts::matmul(a, b);
      CHECK(within(natural.gather(), right, bound));
    } catch (const ts::Error& error) {
      const std::string text = error.what();
      CHECK(text.find("twice in the product") != std::string::npos);
    }
  }
  CHECK(collectives > 100);
  CHECK(by_hand > 50);
}

TEST_CASE("sharded: the four cases of the book") {
  const ts::Mesh mesh = mesh_of({{"x", 4}});
  const auto array = [&](const ts::Shape& shape, const char* text) {
    return mesh.shard(shape, text, ts::DType::bf16);
  };
  const ts::Shape big = {8192, 8192};
  // 1: what is not contracted is inherited.
  const ts::Sharded one = ts::matmul(array(big, "I_x, J"), array(big, "J, K"));
  CHECK(one.text() == "[I_x, K]");
  CHECK(one.made->steps.empty());
  CHECK(one.made->math_seconds == doctest::Approx(2.0 * 8192 * 8192 * 8192 / 4 / 4.59e14));
  // 2: gather what is cut.
  const ts::Sharded two = ts::matmul(array(big, "I, J_x"), array(big, "J, K"));
  CHECK(two.text() == "[I, K]");
  CHECK(way(two, "all_gather a over x, matmul") != nullptr);
  CHECK(way(two, "slice b over x, matmul, all_reduce product over x") != nullptr);
  // Each operand is priced in its own format.
  const ts::Sharded small =
      ts::matmul(array(big, "I, J"), mesh.shard(big, "J_x, K", ts::DType::int8));
  const ts::Sharded large = ts::matmul(array(big, "I, J"), array(big, "J_x, K"));
  CHECK(way(large, "all_gather b over x, matmul")->bytes ==
        2 * way(small, "all_gather b over x, matmul")->bytes);
  // 3: a partial sum, finished as the third argument says.
  const ts::Sharded three = ts::matmul(array(big, "I, J_x"), array(big, "J_x, K"));
  CHECK(three.text() == "[{U_x} I, K]");
  CHECK(three.made->steps.empty());
  const auto calls = [&](const char* text) { return ts::reshard(three, text).made->steps[0].name; };
  CHECK(calls("I_x, K") == "reduce_scatter");
  CHECK(calls("I, K_x") == "reduce_scatter");
  // 4: an axis cannot be twice in the product.
  const ts::Sharded four = ts::matmul(array(big, "I_x, J"), array(big, "J, K_x"), "I_x, K");
  CHECK(way(four, "all_gather b over x, matmul") != nullptr);
  CHECK(four.made->reason.substr(0, 6) == "case 4");
}

TEST_CASE("sharded: element by element and reductions") {
  Chooser choose = {3};
  const float u = 1.0f / 16777216.0f;
  for (int round = 0; round < 80; ++round) {
    const std::vector<Axis> axes = random_axes(choose);
    const ts::Mesh mesh = mesh_of(axes);
    const ts::Shape shape = {random_size(choose), random_size(choose)};
    const ts::Tensor x = ts::randn(shape, 1), y = ts::randn(shape, 2);
    const ts::Tensor bias = ts::randn({shape[1]}, 3);
    const std::string text = random_sharding(choose, axes, "IJ", shape);
    CAPTURE(text);
    const ts::Sharded a = mesh.shard(x, text), b = mesh.shard(y, text);
    const ts::Sharded c = mesh.shard(y, "I, J"), d = mesh.shard(bias, "J");
    CHECK(same((a + b).gather(), x + y));
    CHECK(same((a - c).gather(), x - y));
    CHECK(same((c * a).gather(), y * x));
    CHECK(same((a + d).gather(), x + bias));
    CHECK(same((d * a).gather(), bias * x));
    CHECK(same((-a * 2.0f).gather(), -x * 2.0f));
    CHECK(same(ts::relu(a).gather(), ts::relu(x)));
    CHECK((a * c).text() == a.text());
    const ts::Tensor bound = ts::sum(absolute(x), 0) * (2.0f * static_cast<float>(shape[0]) * u);
    const ts::Sharded sums = ts::sum(a, "I");
    CHECK(within(sums.gather(), ts::sum(x, 0), bound));
    CHECK(within(ts::sum(a, "I", "J").gather(), ts::sum(x, 0), bound));
    CHECK(within(ts::mean(a, "I").gather(), ts::mean(x, {0}), bound));
    CHECK(same(ts::max(a, "J").gather(), ts::max(x, 1)));
    CHECK(within((sums + sums).gather(), ts::sum(x, 0) * 2.0f, bound * 4.0f));
    CHECK(within((sums * d).gather(), ts::sum(x, 0) * bias, bound * absolute(bias) * 2.0f));
  }
}

TEST_CASE("sharded: quotients, transposes and softmax") {
  const ts::Mesh mesh = mesh_of({{"x", 4}, {"y", 2}});
  const ts::Tensor x = ts::randn({8, 12}, 1), y = ts::exp(ts::randn({8, 12}, 2));
  const ts::Sharded a = mesh.shard(x, "I_x, J_y"), b = mesh.shard(y, "I, J");
  CHECK(same((a / b).gather(), x / y));
  CHECK(same((a / 4.0f).gather(), x / 4.0f));
  CHECK(ts::transpose(a, "I", "J").text() == "[J_y, I_x]");
  CHECK(same(ts::transpose(a, "I", "J").gather(), ts::contiguous(ts::transpose(x, 0, 1))));
  CHECK(same(ts::softmax(mesh.shard(x, "I_x, J"), "J").gather(), ts::softmax(x)));
  const ts::Tensor down = ts::transpose(ts::softmax(ts::transpose(x, 0, 1)), 0, 1);
  CHECK(same(ts::softmax(mesh.shard(x, "I, J_x"), "I").gather(), ts::contiguous(down)));
  CHECK(error_of([&] { ts::softmax(a, "J"); }) ==
        "softmax: dim J is cut in [I_x, J_y], and a device needs all of it; reshard to "
        "\"I_x, J\" first");
  const ts::Sharded u = ts::sum(mesh.shard(ts::randn({8, 12, 4}, 2), "I, J, K_x"), "K");
  CHECK((u / b).text() == "[{U_x} I, J]");
  CHECK(error_of([&] { b / u; }) ==
        "div: [{U_x} I, J] is still to be summed, and div of a sum is not the sum of it; reshard "
        "to \"I, J\" first");
}

TEST_CASE("sharded: collective matmuls") {
  const ts::Mesh mesh = mesh_of({{"x", 4}, {"y", 2}});
  const ts::Tensor x = ts::randn({16, 24}, 1), w = ts::randn({24, 8}, 2);
  const ts::Tensor right = ts::matmul(x, w), bound = matmul_bound(x, w);
  const char* const cases[][3] = {
      {"I_x, J", "J, K", "I, K"},           {"I, J_x", "J, K", "I, K"},
      {"I, J", "J_x, K", "I, K"},           {"I, J", "J, K_x", "I, K"},
      {"I_y, J", "J_x, K", "I_y, K"},       {"I_x, J", "J, K_y", "I, K_y"},
      {"I, J_x", "J_x, K", "I_x, K"},       {"I, J_x", "J_x, K", "I, K_x"},
      {"I_y, J_x", "J_x, K", "I_{y,x}, K"}, {"I_x, J_y", "J_y, K", "{U_y} I, K"}};
  for (const auto& each : cases) {
    CAPTURE(each[0]);
    CAPTURE(each[1]);
    CAPTURE(each[2]);
    const ts::Sharded a = mesh.shard(x, each[0]), b = mesh.shard(w, each[1]);
    const ts::Sharded c = ts::collective_matmul(a, b, each[2]);
    CHECK(within(c.gather(), right, bound));
    CHECK(c.text() == std::string("[") + each[2] + "]");
    // From x = 4: three hops; a chunk is a quarter of the work.
    const ts::ShardedCandidate& chunks = c.made->candidates[0];
    const double hop = chunks.comms_seconds / 3, math = chunks.math_seconds / 4;
    CHECK(chunks.seconds == doctest::Approx(math + 3 * std::max(hop, math)));
  }
  // Long enough chunks hide the way: only the first product is in front of nothing.
  const ts::Sharded big = ts::collective_matmul(mesh.shard({1 << 16, 1 << 14}, "I_x, J"),
                                                mesh.shard({1 << 14, 1 << 14}, "J, K"), "I, K");
  CHECK(big.made->candidates[0].seconds == doctest::Approx(big.made->math_seconds));
  CHECK(big.made->candidates[0].seconds < big.made->candidates[1].seconds);
}

#if !defined(TINYSCALE_NO_THREADS)
TEST_CASE("sharded: a collective matmul in the program of a device") {
  const ts::Mesh mesh = mesh_of({{"x", 4}, {"y", 2}});
  const ts::Tensor x = ts::randn({16, 24}, 1), w = ts::randn({24, 8}, 2);
  const ts::MeshRun run = mesh.run([&](ts::Device& d) {
    const ts::Tensor own = d.shard(x, "x", 0);
    d.keep("chunks", ts::collective_matmul(d, own, w, "x"));
    const ts::Tensor p = ts::parameter(w);
    ts::sum(ts::collective_matmul(d, own, p, "x")).backward();
    d.keep("grad", p.grad());
  });
  const ts::Tensor p = ts::parameter(w);
  ts::sum(ts::matmul(x, p)).backward();
  for (int rank = 0; rank < mesh.size(); ++rank) {
    CHECK(within(run.kept(rank, "chunks"), ts::matmul(x, w), matmul_bound(x, w)));
    CHECK(within(run.kept(rank, "grad"), p.grad(), absolute(p.grad()) * 1e-5f + 1e-5f));
  }
  for (const ts::CollectiveRow& row : run.collectives()) {  // of the program's line
    CHECK(std::string(row.where.file).find("sharded_test.cpp") != std::string::npos);
  }
  const auto wrong = [&](const ts::Tensor& left, const ts::Tensor& right, const char* axis) {
    return error_of(
        [&] { mesh.run([&](ts::Device& d) { ts::collective_matmul(d, left, right, axis); }); });
  };
  CHECK(wrong(x, w, "z") ==
        "mesh.run: devices 0-7 threw: collective_matmul: no axis z on this mesh; its axes are x, y"
        "\n  devices 0-7: threw after 0 calls: collective_matmul: no axis z on this mesh; its axes "
        "are x, y");
  const std::string empty =
      "mesh.run: devices 0-7 threw: collective_matmul: the tensor is empty (default-constructed); "
      "give one with a shape\n  devices 0-7: threw after 0 calls: collective_matmul: the tensor is "
      "empty (default-constructed); give one with a shape";
  CHECK(wrong(ts::Tensor(), w, "x") == empty);
  CHECK(wrong(x, ts::Tensor(), "x") == empty);
}
#endif

TEST_CASE("sharded: the book's chapter 3") {
  using ts::Collective;
  using ts::DType;
  const auto rows = book_rows();
  if (rows.empty()) {
    std::cout << "skipped: no cases/book-cases.tsv\n";
    return;
  }
  const auto check = [&](const char* id, double ours, double tolerance) {
    const std::vector<std::string>& row = rows.at(id);
    CAPTURE(std::string(id));
    const double right = std::strtod(row[8].c_str(), nullptr);
    std::cout << "book " << id << ": ours " << ours << ", book " << row[6] << " " << row[7] << "\n";
    CHECK(std::fabs(ours - right) <= tolerance * std::fabs(right));
  };
  // Bandwidth alone, as the book counts it.
  const auto on = [](const char* chip, const std::vector<std::int64_t>& sizes) {
    const char* const names[] = {"x", "y", "z"};
    ts::List<ts::MeshAxis> axes;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      axes.push_back({names[i], sizes[i]});
    }
    ts::Machine machine = ts::machine(chip, ts::Shape(sizes));
    for (ts::Links& links : machine.links) {
      links.latency = 0;
    }
    return ts::Mesh(machine, axes);
  };
  const auto seconds = [](const ts::Sharded& a, const ts::detail::AxisMove& move) {
    return ts::detail::price(*a.mesh, move, a.local_shape().count(), a.format).seconds;
  };
  const ts::Sharded s01 = on("tpu-v5e", {8, 2}).shard({1024, 4096}, "I_{x,y}, J");
  check("S01", s01.bytes() / 1048576, 1e-9);
  check("S02", s01.bytes() / 3.4e12 * 1e9, 1e-5);
  check("S03", on("tpu-v5p", {2, 8, 2}).shard({128, 2048}, "I_{x,y}, J", DType::int8).bytes(), 0);
  const ts::Sharded s13 = on("tpu-v5p", {4, 8, 2}).shard({64, 64}, "I_x, J");
  check("S13", s13.bytes_in_all() / (64 * 64 * 4), 0);

  const ts::Mesh cube = on("tpu-v4p", {4, 4, 4});
  const ts::Sharded bd = cube.shard({1024, 4096}, "B_x, D_y", DType::bf16);
  check("S14", 1e6 * seconds(bd, {1, -1, "a", 0, 0}), 1e-3);
  check("S16", 1e6 * seconds(bd, {0, -1, "c", 0, 0}), 1e-3);
  // S17: the book has V / (Y 2 W), both rings busy all the time. Each half of the data walks one
  // ring after the other, a quarter of it and then all: 5 / 4 of that. By the book's own form:
  const ts::Sharded gathered = ts::reshard(bd, "B, D_y");
  ts::CollectiveSpec s17;
  s17.elements = 1024 * 4096 / 4;
  s17.element_bytes = 2;
  s17.parts = {bd.mesh->axes[0].parts[0], bd.mesh->axes[2].parts[0]};
  check("S17", 1e6 * ts::rule_of_thumb_seconds(s17), 1e-3);
  CHECK(gathered.made->comms_seconds ==
        doctest::Approx(1.25 * ts::rule_of_thumb_seconds(s17)).epsilon(1e-9));
  CHECK(gathered.made->candidates[0].calls == "slice over z, all_gather over x,z");
  CHECK(gathered.made->candidates[1].calls == "all_gather over x");

  // Q2.2: both dims at once over the links of both axes, V / (2 W), and over those of z too.
  const ts::Sharded both = ts::reshard(bd, "B, D");
  const double two_axes = 1024 * 4096 * 2 / (2 * 9e10);
  CHECK(both.made->candidates[1].calls == "all_gather over x,y");
  CHECK(both.made->candidates[1].seconds == doctest::Approx(1.25 * two_axes));
  CHECK(both.made->comms_seconds < two_axes);
  std::cout << "book S15: ours " << 1e6 * both.made->candidates[1].seconds << ", book 46 us\n";

  // Q4: X[B, D] Y[D_x, F], gather Y or sum partial products.
  const ts::Mesh ring = on("tpu-v5e", {16});
  for (const std::int64_t d : {1024, 2048, 4096, 8192}) {
    for (const std::int64_t b : {256, 1024, 1536, 2048}) {
      const ts::Sharded c = ts::matmul(ring.shard({b, d}, "B, D", DType::bf16),
                                       ring.shard({d, 2048}, "D_x, F", DType::bf16), "B, F");
      const ts::ShardedCandidate* const gathers = way(c, "all_gather b over x, matmul");
      const ts::ShardedCandidate* const sums =
          way(c, "slice a over x, matmul, all_reduce product over x");
      REQUIRE(gathers != nullptr);
      REQUIRE(sums != nullptr);
      if (d != 2 * b) {
        CHECK((sums->comms_seconds < gathers->comms_seconds) == (d > 2 * b));
      }
    }
  }
  std::cout << "book S22: sums are faster iff D > 2B, book " << rows.at("S22")[6] << "\n";
  ts::Machine row = ts::machine("tpu-v5p", {16});
  row.links[0].kind = ts::AxisKind::ring;
  row.links[0].latency = 0;
  const ts::Mesh v5p(row, {{"x", 16}});
  const ts::Sharded q4 = ts::matmul(v5p.shard({4096, 8192}, "B, D", DType::bf16),
                                    v5p.shard({8192, 8192}, "D_x, F", DType::bf16), "B, F");
  const ts::ShardedCandidate* const gathers = way(q4, "all_gather b over x, matmul");
  const ts::ShardedCandidate* const sums =
      way(q4, "slice a over x, matmul, all_reduce product over x");
  REQUIRE(gathers != nullptr);
  REQUIRE(sums != nullptr);
  check("S23", 8192 * sums->comms_seconds / gathers->math_seconds, 1e-9);
  // Q5: all replicated: cut I or K over all axes and gather; summing costs twice as much.
  const ts::Sharded q5 = ts::matmul(cube.shard({4096, 4096}, "I, J", DType::bf16),
                                    cube.shard({4096, 4096}, "J, K", DType::bf16), "I, K");
  double best[3] = {1, 1, 1};  // I, K, J
  for (const ts::ShardedCandidate& each : q5.made->candidates) {
    const bool all = each.calls.find("product over x,y,z") != std::string::npos;
    const bool a = each.calls.find("slice a") != std::string::npos;
    const bool b = each.calls.find("slice b") != std::string::npos;
    const int kind = a && b ? 2 : a ? 0 : 1;
    const bool one = each.calls.find("all_reduce") != std::string::npos || !(a && b);
    if (all && one) {
      best[kind] = std::min(best[kind], each.comms_seconds);
    }
  }
  std::cout << "book S24: gather I " << 1e6 * best[0] << " us, K " << 1e6 * best[1] << ", sum "
            << 1e6 * best[2] << "; book: " << rows.at("S24")[6] << "\n";
  CHECK(best[0] == doctest::Approx(best[1]));
  CHECK(best[2] == doctest::Approx(2 * best[0]));

  const ts::Mesh v5e = on("tpu-v5e", {4, 2});
  check("S27",
        ts::matmul(v5e.shard({64, 64}, "I_x, J"), v5e.shard({64, 64}, "J, K_y"), "I_x, K_y")
            .made->comms_seconds,
        0);
  const ts::Mesh line = on("tpu-v5e", {4});  // Q7: B 128, D 8192, F 32768
  const ts::Sharded h = ts::matmul(line.shard({128, 8192}, "B, D", DType::bf16),
                                   line.shard({8192, 32768}, "D, F_x", DType::bf16));
  const ts::Sharded o = ts::matmul(h, line.shard({32768, 8192}, "F_x, E", DType::bf16));
  check("S31", 1e6 * (h.made->math_seconds + o.made->math_seconds), 1e-3);
  // Q9: gather A[N, M_x], or scatter the sums of C[N, K]: M to K.
  const double m_to_k = seconds(ring.shard({512, 4096}, "N, M_x"), {2, -1, "a", 0, 0}) /
                        seconds(ring.shard({512, 1024}, "N, K"), {0, 2, "a", 0, 0});
  CHECK(m_to_k == doctest::Approx(4096.0 / 1024));  // S32
  // Q10: all_to_all beside all_gather of N^2 numbers over D devices of a ring.
  const auto spec = [&](Collective what, ts::Algorithm algorithm, std::int64_t n, int devices) {
    ts::CollectiveSpec out;
    out.what = what;
    out.algorithm = algorithm;
    out.parts = {{devices, ts::AxisKind::ring, 0, 1, 0, 1e9}};
    out.elements = what == Collective::all_to_all ? n * n / devices : n * n;
    return out;
  };
  using ts::Algorithm;
  const double uni =
      ts::collective_bytes(spec(Collective::all_to_all, Algorithm::ring, 1024, 8), 0);
  check("S34", uni / 4, 0);
  check("S35",
        uni / ts::collective_bytes(spec(Collective::all_gather, Algorithm::ring, 1024, 8), 0), 0);
  check("S36",
        ts::collective_seconds(spec(Collective::all_to_all, Algorithm::ring_both_ways, 4096, 256)) /
            ts::collective_seconds(
                spec(Collective::all_gather, Algorithm::ring_both_ways, 4096, 256)),
        0.01);
  CHECK(v5e.shard({8, 2048}, "I_x, J_y").local_shape() == ts::Shape{2, 1024});  // S39
  CHECK(v5e.shard({2048, 8192}, "J, K_y").local_shape() == ts::Shape{2048, 4096});
}

TEST_CASE("sharded: transposed arrays are moved and multiplied as others are") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {4}), {{"x", 4}});
  const ts::Tensor x = ts::randn({8, 4}, 1), w = ts::randn({8, 4}, 2);
  const ts::Tensor turned = ts::contiguous(ts::transpose(x, 0, 1));
  CHECK(ts::reshard(ts::transpose(mesh.shard(x, "I_x, J"), "I", "J"), "J, I").gather().values() ==
        turned.values());
  const ts::Tensor product = ts::matmul(turned, w);
  CHECK(within(
      ts::matmul(ts::transpose(mesh.shard(x, "I, J_x"), "I", "J"), mesh.shard(w, "I_x, K"), "J, K")
          .gather(),
      product, matmul_bound(turned, w)));
  CHECK(ts::reshard(ts::softmax(mesh.shard(x, "I, J_x"), "I"), "I, J").gather().shape() ==
        ts::Shape{8, 4});
  CHECK(error_of([&] { mesh.shard(ts::Tensor(), "I"); }) ==
        "data: the tensor is empty (default-constructed); make one with zeros, full, ...");
}

TEST_CASE("sharded: a collective matmul prices what travels in its own format") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {16}), {{"x", 16}});
  const ts::Sharded a = mesh.shard(ts::Shape{256, 256}, "I, J", ts::DType::bf16);
  const ts::Sharded b = mesh.shard(ts::Shape{256, 256}, "J_x, K", ts::DType::int8);
  const ts::Sharded c = ts::collective_matmul(a, b, "I, K");
  CHECK(c.made->bytes == doctest::Approx(256.0 * 256 * 15 / 16));  // a byte each
  CHECK(c.made->candidates[1].bytes == doctest::Approx(c.made->candidates[0].bytes));
}

TEST_CASE("sharded: shards that do not fit are refused, and places that are none") {
  const ts::Mesh mesh = mesh_of({{"x", 2}, {"y", 2}});
  const ts::Sharded good = mesh.shard(ts::ones({4, 6}), "I_x, J");
  ts::Sharded few = good;
  few.shards.resize(3);
  const std::string three =
      "Sharded: [I_x, J] has 3 shards on 4 devices; one each is right, or none";
  CHECK(error_of([&] { few.check(); }) == three);
  CHECK(error_of([&] { few.gather(); }) == three);
  CHECK(error_of([&] { ts::gelu(few); }) == three);
  CHECK(error_of([&] { few + good; }) == three);
  CHECK(error_of([&] { ts::reshard(few, "I, J"); }) == three);
  CHECK(error_of([&] { ts::sum(few, "J"); }) == three);
  ts::Sharded other = good;
  other.shards[2] = ts::ones({2, 5});
  CHECK(error_of([&] { other.gather(); }) ==
        "Sharded: [I_x, J] of shape [4, 6] has on device 2 a shard of [2, 5]; [2, 6] is right");
  other.shards[2] = ts::Tensor();
  CHECK(error_of([&] {
          ts::matmul(other, mesh.shard(ts::ones({6, 2}), "J, K"));
        }) == "Sharded: [I_x, J] of shape [4, 6] has on device 2 an empty tensor; [2, 6] is right");
  CHECK(good.begin(3, 0) == 2);
  CHECK(error_of([&] { good.begin(4, 0); }) ==
        "Sharded::begin: device 4 of [I_x, J]; 0 to 3 are right");
  CHECK(error_of([&] { good.begin(-1, 0); }) ==
        "Sharded::begin: device -1 of [I_x, J]; 0 to 3 are right");
  CHECK(error_of([&] { good.begin(0, 2); }).find("dim 2") != std::string::npos);
  CHECK(error_of([] { ts::parse_sharding(std::string("I\0J", 3)); }) ==
        "sharding \"I\": a zero byte at place 2; letters and digits are right, and _ , { } [ ]");
}

TEST_CASE("sharded: a picture of many blocks says of how many it shows the first") {
  const ts::Mesh mesh = mesh_of({{"x", 28}});
  const std::string rows = mesh.shard({28, 4}, "I_x, J").picture().text();
  CHECK(rows.find("\nfirst 16 of 28 rows\n") == rows.size() - 21);
  const std::string columns = mesh.shard({4, 28}, "I, J_x").picture().text();
  CHECK(columns.find("\nfirst 16 of 28 columns\n") == columns.size() - 24);
  const std::string tables = mesh.shard({28, 2, 2}, "I_x, J, K").picture().text();
  CHECK(tables.find("\nfirst 16 of 28 tables\n") == tables.size() - 23);
  CHECK(mesh_of({{"x", 16}}).shard({16, 4}, "I_x, J").picture().text().find("first") ==
        std::string::npos);
}

TEST_CASE("collective_matmul: the cheaper way first, and what went is counted") {
  const ts::Mesh mesh = mesh_of({{"x", 4}});
  int chunks_first = 0;
  for (const std::int64_t n : {8, 64, 2048}) {
    for (const char* const to : {"I, K", "I_x, K"}) {
      const bool sums = std::string(to) != "I, K";
      const ts::Sharded a = mesh.shard(ts::Shape{n, n}, sums ? "I, J_x" : "I_x, J");
      const ts::Sharded b = mesh.shard(ts::Shape{n, n}, sums ? "J_x, K" : "J, K");
      const ts::ShardedReport report = ts::collective_matmul(a, b, to).explain();
      REQUIRE(report.candidates.size() == 2);
      CHECK(report.candidates[0].seconds <= report.candidates[1].seconds);
      const bool chunks = report.candidates[0].calls.find("chunk by chunk") == 0;
      chunks_first += chunks ? 1 : 0;
      const ts::ShardedCandidate& own = report.candidates[chunks ? 0 : 1];
      const ts::ShardedCandidate& one = report.candidates[chunks ? 1 : 0];
      const std::string end = " each: " + ts::format_seconds(own.seconds) + " in all, " +
                              ts::format_seconds(one.seconds) + " with one collective";
      CHECK(report.reason.find(end) == report.reason.size() - end.size());
      CHECK(report.steps[0].counted == 0);
    }
  }
  CHECK(chunks_first > 0);
  CHECK(chunks_first < 6);
  for (const bool sums : {false, true}) {
    const ts::Sharded a = mesh.shard(ts::ones({8, 12}), sums ? "I, J_x" : "I_x, J");
    const ts::Sharded b = mesh.shard(ts::ones({12, 16}), sums ? "J_x, K" : "J, K");
    const ts::ShardedReport report =
        ts::collective_matmul(a, b, sums ? "I_x, K" : "I, K").explain();
    CHECK(report.steps[0].counted == report.steps[0].bytes);
    CHECK(report.steps[0].counted == 3 * 2 * (sums ? 16 : 12) * 4);
  }
}

TEST_CASE("sharded: a number divides as on one device, and nothing has no mean and no largest") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2}), {{"x", 2}});
  const ts::Tensor x = ts::arange(64) * 1e-39f;
  for (const float divisor : {3.0f, 7.0f, 1e-39f}) {  // 1 / 1e-39 is no float
    const ts::Sharded quotient = mesh.shard(x, "I_x") / divisor;
    CHECK(quotient.gather().values() == (x / divisor).values());
  }
  const ts::Sharded shape = mesh.shard(ts::Shape{0, 6}, "I_x, J");
  const ts::Sharded numbers = mesh.shard(ts::zeros({0, 6}), "I_x, J");
  for (const ts::Sharded& empty : {shape, numbers}) {
    CHECK(error_of([&] { ts::mean(empty, "I"); }) ==
          "mean: dim I of [I_x, J] of shape [0, 6] is empty; 1 number or more along it is right");
    CHECK(error_of([&] { ts::max(empty, "I"); }) ==
          "max: dim I of [I_x, J] of shape [0, 6] is empty; 1 number or more along it is right");
    CHECK(ts::mean(empty, "J").shape == ts::Shape{0});
  }
  CHECK(ts::sum(numbers, "I").gather().values() == std::vector<float>(6, 0.0f));
}

TEST_CASE("sharded: bytes over more than 16 devices are the mean of what goes") {
  const std::vector<ts::Shape> machines = {{17},   {20},   {32},      {4, 5},
                                           {2, 9}, {8, 8}, {4, 4, 4}, {16, 4}};
  int steps = 0;
  for (const ts::Shape& dims : machines) {
    const std::int64_t n = dims.count();
    const ts::Mesh mesh(ts::machine("tpu-v5e", dims), {{"x", n}});
    const ts::Sharded a = mesh.shard(ts::ones({n, 2 * n}), "I_x, J");
    const ts::Sharded sums = ts::sum(a, "I");
    for (const ts::Sharded& moved :
         {ts::reshard(a, "I, J"), ts::reshard(a, "I, J_x"), ts::reshard(sums, "J"),
          ts::reshard(sums, "J_x"), ts::reshard(ts::sum(ts::sum(a, "J"), "I"), "")}) {
      for (const ts::ShardedStep& step : moved.explain().steps) {
        CAPTURE(step.name + " " + step.algorithm + " " + dims.text());
        CHECK(step.bytes == doctest::Approx(step.counted).epsilon(1e-12));
        steps += step.counted > 0 ? 1 : 0;
      }
    }
  }
  CHECK(steps >= 40);
}
