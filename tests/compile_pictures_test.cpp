// show/graph_pictures.hpp, compile_pictures.hpp, layered_layout.hpp: graphs, plans, their bytes and
// memory as pictures.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "error_of.hpp"
#include "fake_json.hpp"
#include "small_training.hpp"
#include "tinyscale.hpp"
#include "well_formed.hpp"

namespace ts = tinyscale;

namespace {

using Tensors = std::vector<ts::Tensor>;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

double attribute_of(const std::string& tag, const std::string& name) {
  const std::size_t at = tag.find(" " + name + "=\"");
  return at == std::string::npos ? 0 : std::atof(tag.c_str() + at + name.size() + 3);
}

struct Area {
  double x, y, width, height;
  bool touches(const Area& other) const {
    return x < other.x + other.width && other.x < x + width && y < other.y + other.height &&
           other.y < y + height;
  }
  bool holds(const Area& other) const {
    return other.x >= x && other.y >= y && other.x + other.width <= x + width &&
           other.y + other.height <= y + height;
  }
};

// Boxes whose tag has this in it, each once.
std::vector<Area> areas(const ts::Svg& picture, const std::string& part) {
  std::vector<Area> out;
  const std::string& body = picture.body;
  for (std::size_t at = body.find("<rect"); at != std::string::npos;
       at = body.find("<rect", at + 1)) {
    const std::string tag = body.substr(at, body.find('>', at) - at);
    if (tag.find(part) == std::string::npos) {
      continue;
    }
    const Area area = {attribute_of(tag, "x"), attribute_of(tag, "y"), attribute_of(tag, "width"),
                       attribute_of(tag, "height")};
    bool known = false;
    for (const Area& other : out) {
      known = known || (other.x == area.x && other.y == area.y && other.width == area.width);
    }
    if (!known) {
      out.push_back(area);
    }
  }
  return out;
}

// Well-formed, and no box or word leaves the picture.
void check_picture(const ts::Svg& picture) {
  CHECK(well_formed(picture.markup()));
  CHECK_FALSE(contains(picture.markup(), "nan"));
  CHECK_FALSE(contains(picture.markup(), "inf\""));
  CHECK_FALSE(picture.text.empty());
  const std::string& body = picture.body;
  for (std::size_t at = body.find('<'); at != std::string::npos; at = body.find('<', at + 1)) {
    const std::string tag = body.substr(at, body.find('>', at) - at);
    const double x = attribute_of(tag, "x"), y = attribute_of(tag, "y");
    if (tag.substr(0, 5) == "<rect" && tag.find("100%") == std::string::npos) {
      CHECK(x >= 0);
      CHECK(y >= 0);
      CHECK(x + attribute_of(tag, "width") <= picture.width + 0.01);
      CHECK(y + attribute_of(tag, "height") <= picture.height + 0.01);
    }
    if (tag.substr(0, 5) == "<text" && tag.find("rotate") == std::string::npos) {
      const std::size_t begin = body.find('>', at) + 1;
      const std::string words = body.substr(begin, body.find('<', begin) - begin);
      CAPTURE(words);
      const double wide = 0.9 * ts::detail::drawn_width(words, attribute_of(tag, "font-size"));
      const double left = contains(tag, "\"middle\"") ? x - wide / 2
                          : contains(tag, "\"end\"")  ? x - wide
                                                      : x;
      CHECK(left >= 0);
      CHECK(left + wide <= picture.width);
      CHECK(y <= picture.height);
    }
  }
}

// No two boxes of ops overlap, and each op of a kernel is inside its enclosure.
void check_boxes(const ts::Svg& picture) {
  const std::vector<Area> ops = areas(picture, "rx=\"4\""), kernels = areas(picture, "rx=\"8\"");
  for (const std::vector<Area>* all : {&ops, &kernels}) {
    for (std::size_t i = 0; i < all->size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        CHECK_FALSE((*all)[i].touches((*all)[j]));
      }
    }
  }
  for (const Area& kernel : kernels) {
    for (const Area& op : ops) {
      CHECK((kernel.holds(op) || !kernel.touches(op)));
    }
  }
}

ts::Compiled compiled(const ts::Compiled::Body& body, const Tensors& inputs,
                      const ts::CompileOptions& options = {}) {
  ts::Compiled f = ts::compile(body, options);
  f(inputs);
  return f;
}

ts::Tensor softmax_by_hand(const ts::Tensor& x) {
  const ts::Tensor e = ts::exp(x - ts::max(x, -1, ts::KeepDim::yes));
  return e / ts::sum(e, -1, ts::KeepDim::yes);
}

ts::Tensor layers(ts::Tensor x, const ts::Tensor& w, int count) {
  for (int i = 0; i < count; ++i) {
    x = x + ts::matmul(ts::gelu(ts::matmul(softmax_by_hand(x), w)), w);
  }
  return x;
}

}  // namespace

TEST_CASE("compile pictures: program 9's block as a graph and as one kernel") {
  const ts::Compiled block =
      compiled([](const Tensors& in) { return Tensors{ts::gelu(in[0] * 2.0f + 1.0f)}; },
               {ts::randn({4, 8}, 1)});
  const ts::Svg graph = ts::svg(block.graph());
  check_picture(graph);
  check_boxes(graph);
  CHECK(areas(graph, "rx=\"4\"").size() == 4);  // the input and three ops; no literal
  CHECK(contains(graph.body, ">mul (%0, 2)<"));
  CHECK(contains(graph.body, ">%2 [4, 8]<"));
  CHECK(contains(graph.body, ">returned<"));
  CHECK(graph.text == "A graph of 6 nodes; literals stand where they are read");
  CHECK(contains(graph.markup(), "prefers-color-scheme: dark"));
  const ts::Svg plan = ts::svg(block.plan());
  check_picture(plan);
  check_boxes(plan);
  CHECK(areas(plan, "rx=\"8\"").size() == 1);
  CHECK(contains(plan.body, ">kernel 0, 256 B<"));
  CHECK(contains(plan.body, ">ops in one pass over memory<"));
  CHECK(
      plan.text ==
      "A plan of 1 kernel: 256 B; an enclosure is a kernel; views move nothing and are not drawn");
}

TEST_CASE("compile pictures: boxes of graphs and plans do not overlap") {
  const ts::Tensor x = ts::randn({2, 4, 8}, 1), w = ts::randn({8, 8}, 2);
  const ts::CompileOptions none = ts::CompileOptions::none();
  for (const ts::CompileOptions& options : {ts::CompileOptions(), none}) {
    for (const ts::Compiled& f :
         {compiled([](const Tensors& in) { return Tensors{softmax_by_hand(in[0])}; }, {x}, options),
          compiled(
              [](const Tensors& in) {
                return Tensors{ts::attention(in[0], in[0], in[0], 2, 2, ts::Mask::causal)};
              },
              {x}, options),
          compiled(
              [&](const Tensors& in) {
                return Tensors{layers(in[0], w, 2), in[0] * 2.0f};
              },
              {x}, options),
          compiled([](const Tensors& in) { return Tensors{in[0]}; }, {x}, options)}) {
      for (const ts::Svg& picture :
           {ts::svg(f.captured()), ts::svg(ts::take_apart(f.captured())), ts::svg(f.plan())}) {
        check_picture(picture);
        check_boxes(picture);
      }
      check_picture(ts::memory_timeline(f.plan()));
      check_picture(ts::svg(ts::bytes_waterfall(f)));
      check_picture(ts::svg(ts::bytes_waterfall(ts::take_apart(f.captured()), f.plan())));
    }
  }
}

TEST_CASE("compile pictures: layers that repeat are drawn once") {
  const ts::Tensor x = ts::randn({4, 8}, 1), w = ts::randn({8, 8}, 2);
  const ts::Compiled f = compiled([&](const Tensors& in) { return Tensors{layers(in[0], w, 40)}; },
                                  {x}, ts::CompileOptions::none());
  const ts::Graph& graph = f.captured();
  REQUIRE(graph.size() > 300);
  const ts::Svg picture = ts::svg(graph);
  check_picture(picture);
  check_boxes(picture);
  CHECK(contains(picture.body, ", x 39<"));  // the first one's constant stands between its ops
  CHECK(contains(picture.text, "nodes that repeat others are drawn once, as x n"));
  CHECK_FALSE(contains(picture.text, "left out"));
  CHECK(areas(picture, "rx=\"4\"").size() < 30);
  check_picture(ts::svg(f.plan()));
  check_boxes(ts::svg(f.plan()));
  CHECK(contains(ts::svg(f.plan()).text, "kernels that repeat others are drawn once, as x n"));
}

TEST_CASE("compile pictures: a kernel of many ops shows those that repeat once") {
  const ts::Compiled f = compiled(
      [](const Tensors& in) {
        ts::Tensor y = in[0];
        for (int i = 0; i < 30; ++i) {
          y = ts::tanh(y);
        }
        return Tensors{ts::exp(y)};
      },
      {ts::randn({4, 8}, 1)});
  const ts::Svg picture = ts::svg(f.plan());
  check_picture(picture);
  check_boxes(picture);
  CHECK(areas(picture, "rx=\"4\"").size() == 3);
  CHECK(contains(picture.body, ">%1 [4, 8], x 30<"));
  CHECK(contains(picture.body, ">exp (%1)<"));  // the number of the box that is there
}

TEST_CASE("compile pictures: what is too large and does not repeat is counted") {
  ts::Graph graph;
  const auto add = [&](ts::Op op, const ts::List<int>& inputs, std::int64_t size) {
    ts::GraphNode node;
    node.op = op;
    node.shape = ts::Shape{size};
    node.inputs = inputs;
    node.numbers = {0};
    graph.nodes.push_back(node);
  };
  add(ts::Op::input, {}, 1);
  graph.inputs = {0};
  for (int i = 1; i < 400; ++i) {
    add(i % 3 == 0 ? ts::Op::exp : ts::Op::tanh, {i - 1}, i);
  }
  graph.outputs = {399};
  const ts::Svg picture = ts::svg(graph);
  check_picture(picture);
  check_boxes(picture);
  CHECK(areas(picture, "rx=\"4\"").size() == 80);
  CHECK(picture.text ==
        "A graph of 400 nodes; literals stand where they are read; the last 320 nodes are left out "
        "(tanh x213, exp x107)");
}

TEST_CASE("compile pictures: a training step") {
  const TinyStep tiny;
  const ts::Compiled& f = tiny.step.compiled();
  for (const ts::Svg& picture : {ts::svg(f.captured()), ts::svg(f.plan())}) {
    check_picture(picture);
    check_boxes(picture);
    CHECK(contains(picture.text, "arrows over more than 6 layers are not drawn"));
  }
  const ts::Svg memory = ts::memory_timeline(f.plan());
  check_picture(memory);
  CHECK(contains(memory.text, ts::format_bytes(f.plan().block_bytes()) + " in one block, " +
                                  ts::format_bytes(f.plan().unshared_bytes()) + " side by side"));
  check_picture(ts::svg(ts::bytes_waterfall(f)));
}

TEST_CASE("compile pictures: memory has a box a buffer, none of which touch") {
  const ts::Tensor x = ts::randn({8, 8}, 1), w = ts::randn({8, 8}, 2);
  const ts::Compiled f = compiled(
      [&](const Tensors& in) {
        ts::Tensor y = in[0];
        for (int i = 0; i < 6; ++i) {
          y = ts::matmul(y, w);
        }
        return Tensors{y};
      },
      {x});
  const ts::Svg picture = ts::memory_timeline(f.plan());
  check_picture(picture);
  std::vector<Area> boxes;
  for (const Area& area : areas(picture, "fill-opacity=\"0.55\"")) {
    if (area.y > 80) {  // not of the legend
      boxes.push_back(area);
    }
  }
  REQUIRE(boxes.size() == f.plan().buffers().size());
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      CHECK_FALSE(boxes[i].touches(boxes[j]));
    }
  }
  CHECK(picture.text == "Memory of intermediate results: 512 B in one block, 1.28 kB side by side");
  const ts::Compiled none =
      compiled([](const Tensors& in) { return Tensors{ts::exp(in[0])}; }, {x});
  CHECK(contains(ts::memory_timeline(none.plan()).body, ">no intermediate results<"));
  CHECK(contains(ts::memory_timeline(f.plan()).body, ">side by side, 1.28 kB<"));
}

TEST_CASE("compile pictures: bytes step down from before to after") {
  ts::CompileOptions options;
  options.recognize = false;
  const ts::Compiled f = compiled([](const Tensors& in) { return Tensors{softmax_by_hand(in[0])}; },
                                  {ts::randn({16, 128}, 1)}, options);
  const ts::BytesWaterfall bytes = ts::bytes_waterfall(f);
  const ts::Svg picture = ts::svg(bytes);
  CHECK(picture.text == "Bytes by op: 65.8 kB in 5 kernels, 16.4 kB in 1");
  const std::vector<Area> gone = areas(picture, "fill-opacity=\"0.42\"");
  REQUIRE(gone.size() == 6);  // and the legend's
  double right = gone[1].x + gone[1].width;
  for (std::size_t i = 1; i < gone.size(); ++i) {
    CHECK(gone[i].x + gone[i].width == doctest::Approx(right).epsilon(0.001));
    right = gone[i].x;
  }
  ts::BytesWaterfall many;
  for (int i = 0; i < 40; ++i) {
    many.rows.push_back({"op " + std::to_string(i), 100.0 - i, 10.0});
  }
  check_picture(ts::svg(many));
  CHECK(contains(ts::svg(many).body, ">17 other ops<"));
  check_picture(ts::svg(ts::BytesWaterfall()));
}

TEST_CASE("compile pictures: layers of boxes") {
  using Layout = ts::detail::LayeredLayout;
  ts::detail::LayeredBox box;
  box.width = 40;
  box.height = 20;
  // 0 and 1 to 2, 2 to 3, 0 to 3 past a layer, 4 alone just above 3.
  const Layout layout({box, box, box, box, box}, {{0, 2}, {1, 2}, {2, 3}, {0, 3}, {4, 3}}, 10, 30);
  CHECK(layout.boxes[0].layer == 0);
  CHECK(layout.boxes[2].layer == 1);
  CHECK(layout.boxes[3].layer == 2);
  CHECK(layout.boxes[4].layer == 1);
  CHECK(layout.boxes.size() == 6);  // a bend
  CHECK(layout.height == 3 * 20 + 2 * 30);
  for (const Layout::Arrow& arrow : layout.arrows) {
    CHECK(layout.boxes[static_cast<std::size_t>(arrow.to)].layer ==
          layout.boxes[static_cast<std::size_t>(arrow.from)].layer + 1);
  }
  CHECK(Layout({box, box, box}, {{0, 1}, {1, 2}, {0, 2}}, 10, 30, 1).left_out == 1);
  CHECK(Layout({}, {}, 10, 30).width == 0);
}

TEST_CASE("compile pictures: a notebook shows graphs, plans and reports") {
  const ts::Tensor x = ts::randn({4, 8}, 1);
  const ts::Compiled f = compiled([](const Tensors& in) { return Tensors{ts::exp(in[0])}; }, {x});
  FakeJson graph = mime_bundle_repr(f.graph());
  CHECK(graph["text/plain"] == f.graph().text());
  CHECK(graph["image/svg+xml"] == ts::svg(f.graph()).markup());
  FakeJson plan = mime_bundle_repr(f.plan());
  CHECK(contains(plan["image/svg+xml"], "kernel 0"));
  FakeJson report = mime_bundle_repr(ts::compile_report(f));
  CHECK(contains(report["text/html"], "<table>"));
  FakeJson bytes = mime_bundle_repr(ts::bytes_waterfall(f));
  CHECK(contains(bytes["image/svg+xml"], "Bytes by op"));
  std::ostringstream out;
  ts::ShowOptions options;
  options.out = &out;
  ts::show(f.plan(), options);
  ts::show(ts::compile_report(f), options);
  CHECK(out.str() == ts::svg(f.plan()).text + "\n" + ts::compile_report(f).table().text());
}
