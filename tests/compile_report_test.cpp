// compile/compile_report.hpp, bytes_waterfall.hpp, op_table.hpp: what passes are worth, predicted
// and counted; what the op set is made of.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>

#include "error_of.hpp"
#include "small_training.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

using Tensors = std::vector<ts::Tensor>;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

ts::Tensor chain(ts::Tensor x, int ops) {
  for (int i = 0; i < ops; ++i) {
    x = i % 2 == 0 ? ts::tanh(x) : ts::exp(x);
  }
  return x;
}

ts::Tensor softmax_by_hand(const ts::Tensor& x) {
  const ts::Tensor e = ts::exp(x - ts::max(x, -1, ts::KeepDim::yes));
  return e / ts::sum(e, -1, ts::KeepDim::yes);
}

ts::CompileOptions as_written() {
  ts::CompileOptions options;
  options.recognize = false;
  return options;
}

ts::Json parsed(const std::string& text) { return ts::detail::JsonReader(text).whole(); }

// Every step counts what was predicted, and the results are those of the first row.
void check_rows(const ts::CompileReport& report, double tolerance) {
  for (const ts::PassRow& row : report.rows) {
    CAPTURE(row.name);
    CHECK(row.measured);
    CHECK(row.counted_kernels == row.kernels);
    CHECK(row.counted_bytes == doctest::Approx(row.bytes).epsilon(1e-12));
    CHECK(row.counted_peak_bytes == doctest::Approx(row.peak_bytes).epsilon(1e-12));
    CHECK(row.difference <= tolerance);
    CHECK(row.seconds > 0);
    CHECK(row.block_bytes <= row.unshared_bytes);
  }
}

}  // namespace

TEST_CASE("compile report: a chain of n ops on N floats, claim C1") {
  for (const int n : {1, 2, 5, 9}) {
    CAPTURE(n);
    const double floats = 64 * 32;
    const ts::Tensor x = ts::randn({64, 32}, 1);
    const ts::Compiled f = ts::compile([n](const Tensors& in) { return Tensors{chain(in[0], n)}; });
    f({x});
    ts::CompileReport report = ts::compile_report(f);
    report.measure({x}, 1);
    check_rows(report, 1e-6);
    for (const char* const name : {"as written", "primitives", "as a graph", "+ simplify"}) {
      const ts::PassRow& row = report.row(name);
      CAPTURE(name);
      CHECK(row.kernels == n);
      CHECK(row.bytes == 8.0 * n * floats);
      CHECK(row.counted_bytes == row.bytes);
      CHECK(row.unshared_bytes == 4.0 * (n - 1) * floats);
      CHECK(row.counted_peak_bytes == row.peak_bytes);
    }
    CHECK(report.row("as written").block_bytes == 4.0 * std::min(n - 1, 2) * floats);
    CHECK(report.row("as written").peak_bytes == 4.0 * std::min(n, 2) * floats);
    CHECK(report.row("as a graph").peak_bytes == 4.0 * n * floats);
    for (const char* const name :
         {"+ elementwise", "+ rows", "+ matmul", "+ attention", "+ memory"}) {
      const ts::PassRow& row = report.row(name);
      CAPTURE(name);
      CHECK(row.kernels == 1);
      CHECK(row.bytes == 8.0 * floats);
      CHECK(row.counted_bytes == row.bytes);
      CHECK(row.block_bytes == 0);
      CHECK(row.peak_bytes == 4.0 * floats);
      CHECK(row.counted_peak_bytes == row.peak_bytes);
      CHECK(row.vector_flops == report.rows[0].vector_flops);
    }
  }
}

TEST_CASE("compile report: numbers written in the function, a maximum, a choice, x x") {
  const ts::Tensor x = ts::uniform({8, 5}, 1, -1, 1);
  const auto f = ts::compile([](const Tensors& in) {
    const ts::Tensor zero = ts::full({}, 0.0f);
    return Tensors{ts::tanh(in[0] * 2.0f + 1.0f) / ts::full({1}, 3.0f),
                   ts::where(ts::less(in[0], zero), in[0], ts::slice(in[0], 0, 2, 3)),
                   ts::maximum(zero, in[0]), in[0] * in[0] - ts::abs(in[0])};
  });
  f({x});
  ts::CompileReport report = ts::compile_report(f);
  report.measure({x}, 1);
  check_rows(report, 1e-6);
}

TEST_CASE("compile report: a loss, parts of a tensor, an input that is returned") {
  const ts::Tensor x = ts::randn({6, 8}, 1), w = ts::randn({9, 4}, 2),
                   square = ts::randn({8, 8}, 3);
  const ts::Tensor targets = ts::tensor({6}, {0, 1, 2, 3, 2, 1});
  const std::vector<ts::TensorFunction> functions = {
      [](const Tensors& in) {  // a gated unit, which copies its parts
        const ts::Tensor gate = ts::silu(ts::slice(in[0], 1, 0, 4));
        return Tensors{gate * ts::sigmoid(ts::slice(in[0], 1, 4, 8)),
                       in[3] + ts::transpose(in[3], 0, 1)};
      },
      [](const Tensors& in) { return Tensors{ts::cross_entropy(ts::sigmoid(in[0]), in[1])}; },
      [](const Tensors& in) {
        return Tensors{ts::linear_cross_entropy(ts::slice(in[0], 1, 2, 6), in[2], in[1])};
      },
      [](const Tensors& in) {
        return Tensors{in[0], ts::max(ts::softmax(in[0]), 0), in[3]};
      },
      [](const Tensors& in) {
        return Tensors{ts::index_select(in[0], 0, {}), ts::index_select(in[0], 1, {7, 0, 7}),
                       ts::dropout(ts::transpose(in[3], 0, 1), 0.5f, 1)};
      },
  };
  for (std::size_t i = 0; i < functions.size(); ++i) {
    CAPTURE(i);
    const ts::Compiled f = ts::compile(functions[i]);
    f({x, targets, w, square});
    check_rows(ts::compile_report(f).measure({x, targets, w, square}, 1), 1e-5);
  }
}

TEST_CASE("compile report: a NaN or infinity that one result alone has is a difference") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const auto apart = [](const std::vector<float>& a, const std::vector<float>& b) {
    return ts::detail::largest_difference({ts::tensor({2}, a)}, {ts::tensor({2}, b)});
  };
  CHECK(apart({nan, 2}, {nan, 1}) == 0.5);
  CHECK(apart({inf, 2}, {inf, 1}) == 0.5);
  for (const float number : {1.0f, inf, -inf, nan}) {
    for (const float other : {nan, -inf, inf, 1.0f}) {
      const bool same = std::memcmp(&number, &other, sizeof number) == 0;
      CHECK(apart({number, 3}, {other, 3}) == (same ? 0.0 : double(inf)));
    }
  }
}

TEST_CASE("compile report: GELU by tanh, written out in primitives") {
  const double floats = 32 * 16;
  const ts::Tensor x = ts::randn({32, 16}, 2);
  const ts::Compiled f =
      ts::compile([](const Tensors& in) { return Tensors{ts::gelu_tanh(in[0])}; });
  f({x});
  ts::CompileReport report = ts::compile_report(f);
  report.measure({x}, 1);
  check_rows(report, 1e-5);
  CHECK(report.row("as written").kernels == 1);
  CHECK(report.row("primitives").kernels == 9);  // two of them read two tensors
  CHECK(report.row("primitives").bytes == 4 * (9 * 2 + 3) * floats + 4 * 4);
  CHECK(report.row("+ elementwise").kernels == 1);
  CHECK(report.row("+ elementwise").bytes == 8 * floats);
}

TEST_CASE("compile report: rope's tables and joined parts, each kernel counted once") {
  const ts::Tensor x = ts::randn({1, 8, 16}, 5);
  const ts::Compiled f =
      ts::compile([](const Tensors& in) { return Tensors{ts::rope(in[0], 4, ts::TokenPlaces())}; });
  f({x});
  ts::CompileReport report = ts::compile_report(f);
  report.measure({x}, 1);
  check_rows(report, 1e-6);
  CHECK(report.row("primitives").kernels > 4);
  CHECK(report.row("+ elementwise").kernels == 1);
}

TEST_CASE("compile report: softmax as max, sub, exp, sum, div: 8 passes against 2") {
  const double rows = 16, floats = 16 * 128;
  const ts::Tensor x = ts::randn({16, 128}, 3);
  const ts::Compiled f =
      ts::compile([](const Tensors& in) { return Tensors{softmax_by_hand(in[0])}; }, as_written());
  f({x});
  ts::CompileReport report = ts::compile_report(f);
  report.measure({x}, 1);
  check_rows(report, 1e-5);
  const ts::PassRow& before = report.row("primitives");
  CHECK(before.kernels == 5);
  CHECK(before.bytes == 4 * (8 * floats + 4 * rows));  // max and sum: written, and read again
  CHECK(before.counted_bytes == before.bytes);
  const ts::PassRow& after = report.row("+ rows");
  CHECK(after.kernels == 1);
  CHECK(after.bytes == 4 * 2 * floats);
  CHECK(after.counted_bytes == after.bytes);

  // Recognized, it is one op as written, too; what it is made of is the same.
  const ts::Compiled known =
      ts::compile([](const Tensors& in) { return Tensors{softmax_by_hand(in[0])}; });
  known({x});
  ts::CompileReport same = ts::compile_report(known);
  same.measure({x}, 1);
  check_rows(same, 1e-5);
  CHECK(same.row("as written").kernels == 1);
  CHECK(same.row("primitives").kernels == 5);
  CHECK(same.row("primitives").bytes == before.bytes);
}

TEST_CASE("compile report: a softmax joins its neighbours, unless they belong to a product") {
  const ts::Tensor w = ts::randn({32, 32}, 3);
  const ts::Compiled beside = ts::compile(
      [](const Tensors& in) { return Tensors{ts::softmax(in[0] * 0.3f + in[1]) * in[2]}; });
  const ts::Compiled behind = ts::compile(
      [w](const Tensors& in) { return Tensors{ts::softmax(ts::matmul(in[0], w) * 0.3f)}; });
  const Tensors in = {ts::randn({64, 32}, 1), ts::randn({64, 32}, 2), ts::randn({64, 32}, 4)};
  ts::CompileReport report = (beside(in), ts::compile_report(beside));
  report.measure(in, 1);
  check_rows(report, 1e-6);
  CHECK(report.rows.back().kernels == 1);
  CHECK(report.rows.back().bytes == 4 * 4.0 * 64 * 32);
  behind({in[0]});
  REQUIRE(behind.plan().steps().size() == 2);
  CHECK(behind.plan().steps()[0].name(behind.graph()) == "matmul mul");
  CHECK(behind.plan().steps()[1].name(behind.graph()) == "softmax");
}

TEST_CASE("compile report: attention's scores are T x T until they are tiled") {
  // bytes = a T^2 + b T: the difference below is 2 a T^2.
  const auto quadratic = [](const char* pass) {
    double bytes[2];
    for (const int i : {0, 1}) {
      const ts::Tensor x = ts::randn({1, i == 0 ? 16 : 32, 8}, 4);
      const ts::Compiled f = ts::compile([](const Tensors& in) {
        return Tensors{ts::attention(in[0], in[1], in[2], 2, 2, ts::Mask::none)};
      });
      f({x, x, x});
      bytes[i] = ts::compile_report(f).row(pass).bytes;
    }
    return bytes[1] - 2 * bytes[0];
  };
  const double scores = 2 * 16 * 16;                 // heads, T, T; twice that as in the difference
  CHECK(quadratic("+ rows") == 4 * 4 * 2 * scores);  // written, read and written, read
  CHECK(quadratic("+ elementwise") > quadratic("+ rows"));
  CHECK(quadratic("primitives") > quadratic("+ elementwise"));
  CHECK(quadratic("+ attention") == 0);
  CHECK(quadratic("as written") == 0);
}

TEST_CASE("compile report: attention, measured with every pass") {
  const ts::Tensor x = ts::randn({2, 16, 8}, 4);
  const ts::Compiled f = ts::compile([](const Tensors& in) {
    return Tensors{ts::attention(in[0], in[1], in[2], 2, 2, ts::Mask::causal)};
  });
  f({x, x, x});
  ts::CompileReport report = ts::compile_report(f);
  report.measure({x, x, x}, 1);
  check_rows(report, 1e-5);
}

TEST_CASE("compile report: a training step writes to copies") {
  const TinyStep tiny;
  const ts::Transformer& model = tiny.model;
  const std::vector<float> before(model.tensors()[0].data(),
                                  model.tensors()[0].data() + model.tensors()[0].count());
  ts::CompileReport report = ts::compile_report(tiny.step.compiled());
  CHECK_FALSE(report.writes.empty());
  Tensors inputs;
  for (const int node : report.graph.inputs) {  // tokens, targets, the optimizer's numbers
    const ts::Shape& shape = report.graph[node].shape;
    inputs.push_back(ts::full(shape, shape.size() == 2 ? 3.0f : 0.01f));
  }
  report.measure(inputs, 1);
  for (const ts::PassRow& row : report.rows) {
    CAPTURE(row.name);
    CHECK(row.difference < 1e-3);
    CHECK(row.counted_bytes == doctest::Approx(row.bytes).epsilon(0.15));
  }
  CHECK(report.rows.back().bytes < 0.5 * report.row("primitives").bytes);
  for (std::size_t i = 0; i < before.size(); ++i) {
    REQUIRE(model.tensors()[0].data()[i] == before[i]);
  }
}

TEST_CASE("compile report: a block of a transformer, and options that are off") {
  const ts::Tensor gain = ts::ones({16}), shift = ts::zeros({16}), up = ts::randn({16, 64}, 5);
  const ts::Tensor bias = ts::randn({64}, 6), down = ts::randn({64, 16}, 7);
  const ts::Tensor x = ts::randn({8, 16}, 8);
  const auto block = [&](const Tensors& in) {
    const ts::Tensor h = ts::layer_norm(in[0], gain, shift);
    return Tensors{in[0] + ts::matmul(ts::gelu(ts::matmul(h, up) + bias), down)};
  };
  const ts::Compiled f = ts::compile(block);
  f({x});
  ts::CompileReport report = ts::compile_report(f);
  report.measure({x}, 2);
  check_rows(report, 1e-4);
  REQUIRE(report.rows.size() == 9);
  for (std::size_t i = 3; i < report.rows.size(); ++i) {
    CHECK(report.rows[i].bytes <= report.rows[i - 1].bytes);
    CHECK(report.rows[i].kernels <= report.rows[i - 1].kernels);
    CHECK(report.rows[i].counted_peak_bytes == report.rows[i].peak_bytes);
  }
  CHECK(report.row("+ matmul").kernels == 3);  // norm, product with bias and gelu, product and sum
  const double matmul = 2.0 * 2 * 8 * 16 * 64;
  CHECK(report.row("as written").matmul_flops == matmul);
  CHECK(report.row("+ memory").matmul_flops == matmul);
  CHECK(report.row("+ memory").bytes == [&] {
    double bytes = 0;
    for (const ts::OpRecord& record : f.plan().records()) {
      bytes += record.bytes();
    }
    return bytes;
  }());

  ts::CompileOptions some;
  some.fuse_rows = some.plan_memory = false;
  const ts::CompileReport less = ts::compile_report(f.captured(), some);
  REQUIRE(less.rows.size() == 7);
  CHECK(less.rows[4].name == "+ elementwise");
  CHECK(less.rows[5].name == "+ matmul");
  CHECK(ts::compile_report(f.captured(), ts::CompileOptions::none()).rows.size() == 3);
  some.activation_bytes = 1;
  CHECK(ts::compile_report(f.captured(), some).rows.back().name == "+ recompute");
}

TEST_CASE("compile report: memory in turns") {
  // Products cannot be joined: each result lives for two steps, so two places are enough.
  const ts::Tensor x = ts::randn({32, 32}, 9), w = ts::randn({32, 32}, 10);
  const ts::Compiled f = ts::compile([&](const Tensors& in) {
    ts::Tensor y = in[0];
    for (int i = 0; i < 6; ++i) {
      y = ts::matmul(y, w);
    }
    return Tensors{y};
  });
  f({x});
  ts::CompileReport report = ts::compile_report(f);
  report.measure({x}, 1);
  const double one = 4.0 * 32 * 32;
  CHECK(report.row("+ attention").block_bytes == 5 * one);
  CHECK(report.row("+ memory").block_bytes == 2 * one);
  CHECK(report.row("+ memory").unshared_bytes == 5 * one);
  CHECK(report.row("+ memory").counted_peak_bytes == 3 * one);
  CHECK(report.row("as written").counted_peak_bytes == 2 * one);
}

TEST_CASE("compile report: what a graph writes is written to copies") {
  ts::Tensor total = ts::full({4}, 1.0f);
  const ts::Compiled f = ts::compile([&](const Tensors& in) {
    ts::add_(total, in[0]);
    return Tensors{total * 2.0f};
  });
  const ts::Tensor x = ts::full({4}, 3.0f);
  f({x});
  CHECK(total.data()[0] == 4);
  REQUIRE(f.plan().writes().size() == 1);
  ts::CompileReport report = ts::compile_report(f);
  report.measure({x}, 3);
  CHECK(total.data()[0] == 4);
  for (const ts::PassRow& row : report.rows) {
    CAPTURE(row.name);
    CHECK(row.difference == 0);
  }
}

TEST_CASE("compile report: prints, and is CSV and JSON in plain numbers") {
  const ts::Tensor x = ts::randn({4, 8}, 1);
  const ts::Compiled f = ts::compile([](const Tensors& in) { return Tensors{chain(in[0], 3)}; });
  f({x});
  ts::CompileReport report = ts::compile_report(f);
  std::ostringstream out;
  out << report;
  CHECK(out.str() == report.table().text());
  CHECK(contains(out.str(), "What each pass does to a graph of 4 nodes\npass"));
  CHECK_FALSE(contains(out.str(), "counted"));
  const ts::Json plain = parsed(report.json());
  CHECK(plain.find("rows")->list[0].find("seconds")->text.empty());
  CHECK(report.csv().substr(0, 17) == "pass,nodes,kernel");
  CHECK(contains(report.csv(), "as written,4,3,768,0,"));
  report.measure({x}, 1);
  CHECK(contains(report.table().title, "predicted, and counted while it ran"));
  const ts::Json json = parsed(report.json());
  const ts::Json& rows = *json.find("rows");
  REQUIRE(rows.list.size() == report.rows.size());
  CHECK(rows.list[0].find("pass")->text == "as written");
  CHECK(rows.list[0].find("bytes")->number == 768);
  CHECK(rows.list[0].find("counted bytes")->number == 768);
  CHECK(rows.list[0].find("seconds")->number == report.rows[0].seconds);
}

TEST_CASE("compile report: errors") {
  const ts::Tensor x = ts::randn({4, 8}, 1);
  const ts::Compiled f = ts::compile([](const Tensors& in) { return Tensors{ts::exp(in[0])}; });
  f({x});
  ts::CompileReport report = ts::compile_report(f);
  CHECK(error_of([&] { report.measure({}); }) ==
        "CompileReport::measure: 0 tensors for a graph of 1 inputs; one each is right");
  CHECK(error_of([&] {
          report.measure({ts::zeros({8, 4})});
        }) == "CompileReport::measure: input 0 is [8, 4]; [4, 8] is right");
  CHECK(error_of([&] { report.measure({ts::Tensor()}); }) ==
        "CompileReport::measure: input 0 is empty; [4, 8] is right");
  CHECK(error_of([&] { report.measure({x}, 0); }) ==
        "CompileReport::measure: times is 0; at least 1 is right");
  CHECK(error_of([&] { report.row("+ magic"); }) ==
        "CompileReport::row: no row is called '+ magic'; there are 'as written', 'primitives', "
        "'as a graph', '+ simplify', '+ elementwise', '+ rows', '+ matmul', '+ attention', "
        "'+ memory'");
  CHECK(error_of([] { ts::made_of(ts::Op::add); }) ==
        "made_of: add is a primitive; a composite op is right");
  CHECK(error_of([] { ts::compile_report(ts::Compiled()); }) ==
        "Compiled: there is no function; make one with compile(f)");
}

TEST_CASE("bytes by op: what goes, what is left, and their sums") {
  const ts::Tensor x = ts::randn({16, 128}, 3);
  const ts::Compiled f =
      ts::compile([](const Tensors& in) { return Tensors{softmax_by_hand(in[0])}; }, as_written());
  f({x});
  const ts::BytesWaterfall all = ts::bytes_waterfall(f);
  const double floats = 16 * 128;
  CHECK(all.kernels_before == 5);
  CHECK(all.kernels_after == 1);
  CHECK(all.before() == 4 * (8 * floats + 4 * 16));
  CHECK(all.after() == doctest::Approx(4 * 2 * floats));
  REQUIRE(all.rows.size() == 5);
  for (std::size_t i = 1; i < all.rows.size(); ++i) {
    CHECK(all.rows[i].gone() <= all.rows[i - 1].gone());
  }
  CHECK(contains(all.table().text(), "total"));
  CHECK(parsed(all.json()).find("rows")->list.size() == 5);
  CHECK(all.csv().substr(0, 29) == "op,bytes before,bytes after\ns");
  std::ostringstream out;
  out << all;
  CHECK(out.str() == all.table().text());

  // By hand: a kernel's bytes in proportion to 30 for one mul and 10 for one add.
  const auto record = [](const char* name, double bytes) {
    ts::OpRecord op;
    op.name = name;
    op.bytes_read = bytes;
    return op;
  };
  const ts::BytesWaterfall hand =
      ts::bytes_waterfall({record("mul", 40), record("mul", 20), record("add", 10)},
                          {record("mul x2 add", 35), record("attention", 7)});
  CHECK(hand.rows[0].op == "mul");
  CHECK(hand.rows[0].before == 60);
  CHECK(hand.rows[0].after == 30);
  CHECK(hand.rows[1].op == "add");
  CHECK(hand.rows[1].after == 5);
  CHECK(hand.rows[2].op == "attention");
  CHECK(hand.rows[2].gone() == -7);
  CHECK(ts::bytes_waterfall(ts::List<ts::OpRecord>(), ts::List<ts::OpRecord>()).rows.empty());
}

TEST_CASE("op table: fewer than fifty primitives, and composites that are made of them") {
  const ts::Table table = ts::op_table();
  REQUIRE(table.rows.size() == ts::op_set().size());
  int primitives = 0;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const ts::Op op = static_cast<ts::Op>(i);
    CAPTURE(ts::name_of(op));
    CHECK(table.rows[i][0] == ts::name_of(op));
    primitives += ts::is_primitive(op) ? 1 : 0;
    if (ts::is_primitive(op)) {
      CHECK(table.rows[i][3] == "1");
      continue;
    }
    const ts::Graph graph = ts::made_of(op);
    for (const ts::GraphNode& node : graph.nodes) {
      CHECK(ts::is_primitive(node.op));
    }
    CHECK(graph.outputs.size() == static_cast<std::size_t>(ts::facts_of(op).parts));
    CHECK(std::stoi(table.rows[i][3]) >= 1);
  }
  CHECK(primitives < 50);
  CHECK(contains(table.title, std::to_string(primitives) + " primitives"));
  const auto row = [&](ts::Op op) { return table.rows[static_cast<std::size_t>(op)]; };
  CHECK(row(ts::Op::softmax)[4] == "sub, div, exp, sum, max");
  CHECK(row(ts::Op::gelu_tanh)[3] == "9");
}

TEST_CASE("op table: docs/ops.md has it") {
  const std::string here = __FILE__;  // in tests/
  std::ifstream file(here.substr(0, here.rfind("tests/")) + "docs/ops.md");
  REQUIRE(file.good());
  std::stringstream read;
  read << file.rdbuf();
  const std::string docs = read.str();
  CHECK(contains(docs, "## What a captured graph is made of\n"));
  const ts::Table table = ts::op_table();
  std::vector<std::string> kinds, names;  // of primitives
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const std::vector<ts::Cell>& row = table.rows[i];
    if (!ts::is_primitive(static_cast<ts::Op>(i))) {
      const std::string line = "| " + row[0] + " | " + row[3] + " | " + row[4] + " |";
      CAPTURE(line);
      CHECK(contains(docs, "\n" + line + "\n"));
      continue;
    }
    if (kinds.empty() || kinds.back() != row[1]) {
      kinds.push_back(row[1]);
      names.push_back("");
    }
    names.back() += (names.back().empty() ? "" : ", ") + row[0];
  }
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    const std::string line = "| " + kinds[k] + " | " + names[k] + " |";
    CAPTURE(line);
    CHECK(contains(docs, "\n" + line + "\n"));
  }
  CHECK(contains(docs, table.title.substr(8)));
}
