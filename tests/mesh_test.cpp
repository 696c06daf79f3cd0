#include <doctest/doctest.h>

#include "error_of.hpp"
#include "tinyscale.hpp"

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace ts = tinyscale;

#if defined(TINYSCALE_NO_THREADS)

TEST_CASE("without threads a mesh has one device, and says so") {
  const ts::Mesh one(ts::machine("tpu-v5e", {1, 1}), {{"x", 1}});
  const ts::MeshRun run =
      one.run([](ts::Device& d) { d.keep("all", d.all_gather(ts::full({2}, 3.0f), "x")); });
  CHECK(run.kept(0, "all").values() == std::vector<float>{3, 3});
  const ts::Mesh three(ts::machine("tpu-v5e", {3}), {{"x", 3}});
  CHECK(error_of([&] { three.run([](ts::Device&) {}); }) ==
        "mesh.run: 3 devices need threads, and this program is compiled with "
        "TINYSCALE_NO_THREADS; use a mesh of 1 device, or Sharded tensors");
}

#else

namespace {

// n chips in a row, with round numbers for their links.
ts::Mesh row_mesh(int n) { return ts::Mesh(ts::machine("tpu-v5e", {n}), {{"x", n}}); }

// The error's text without the lines of this file: " at mesh_test.cpp:12" is left out.
std::string fault(const ts::Mesh& mesh, const ts::DeviceProgram& program) {
  std::string text = error_of([&] { mesh.run(program); });
  const std::string here = " at mesh_test.cpp:";
  for (std::size_t at = text.find(here); at != std::string::npos; at = text.find(here)) {
    const std::size_t end = text.find_first_not_of("0123456789", at + here.size());
    text.erase(at, end == std::string::npos ? end : end - at);
  }
  return text;
}

float number(int rank, std::int64_t i) {
  return ts::normal01(static_cast<std::uint64_t>(rank) + 1, static_cast<std::uint64_t>(i));
}

ts::Tensor numbers(int rank, const ts::Shape& shape) {
  ts::Tensor out(shape);
  for (std::int64_t i = 0; i < out.count(); ++i) {
    out.data()[i] = number(rank, i);
  }
  return out;
}

const std::vector<ts::Algorithm> flat = {
    ts::Algorithm::automatic, ts::Algorithm::ring,   ts::Algorithm::ring_both_ways,
    ts::Algorithm::line,      ts::Algorithm::direct, ts::Algorithm::halving_doubling,
    ts::Algorithm::tree};

// What every device should have, by concatenation and sums in float64, of numbers of all ranks.
struct Expected {
  int n;
  ts::Shape shape;

  std::vector<double> sum() const {
    std::vector<double> out(static_cast<std::size_t>(shape.count()), 0.0);
    for (int rank = 0; rank < n; ++rank) {
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] += number(rank, static_cast<std::int64_t>(i));
      }
    }
    return out;
  }
};

// Sums of n numbers of size about 1, each addition half an ulp of at most 4 sqrt(n): 2^-24 * 4 n.
bool near(const ts::Tensor& got, const std::vector<double>& want, int n) {
  bool same = got.count() == static_cast<std::int64_t>(want.size());
  for (std::size_t i = 0; same && i < want.size(); ++i) {
    same = std::abs(got.data()[i] - want[i]) <= 4.0 * n * std::sqrt(n + 1.0) * 0x1p-24;
  }
  return same;
}

}  // namespace

TEST_CASE("every collective of a device, by every algorithm, for 1 to 9 devices") {
  for (const ts::Algorithm algorithm : flat) {
    CAPTURE(ts::name_of(algorithm));
    for (int n = 1; n <= 9; ++n) {
      CAPTURE(n);
      ts::Mesh mesh = row_mesh(n);
      mesh.algorithm = algorithm;
      const int root = n / 2;
      const ts::MeshRun run = mesh.run([&](ts::Device& d) {
        const ts::Tensor t = numbers(d.rank(), {2, 3 * n, 5});
        d.keep("gathered", d.all_gather(t, "x", 1));
        d.keep("scattered", d.reduce_scatter(t, "x", 1));
        d.keep("reduced", d.all_reduce(t, "x"));
        d.keep("exchanged", d.all_to_all(t, "x", 1, 2));
        d.keep("told", d.broadcast(t, "x", root));
        d.keep("at root", d.reduce(t, "x", root));
        d.keep("collected", d.gather(t, "x", root, 2));
        d.keep("dealt", d.scatter(t, "x", root, 1));
        d.keep("moved", d.permute(t, "x", 2 - n));
        d.barrier();
      });
      const Expected expected = {n, {2, 3 * n, 5}};
      const std::vector<double> sum = expected.sum();
      std::vector<ts::Tensor> parts;
      for (int rank = 0; rank < n; ++rank) {
        parts.push_back(numbers(rank, {2, 3 * n, 5}));
      }
      CHECK(run.kept(root, "collected").values() == ts::concat(parts, 2).values());
      CHECK(near(run.kept(root, "at root"), sum, n));
      for (int rank = 0; rank < n; ++rank) {
        CAPTURE(rank);
        CHECK(run.kept(rank, "gathered").values() == ts::concat(parts, 1).values());
        CHECK(near(run.kept(rank, "reduced"), sum, n));
        CHECK(run.kept(rank, "reduced").values() == run.kept(0, "reduced").values());
        CHECK(run.kept(rank, "told").values() == parts[static_cast<std::size_t>(root)].values());
        CHECK(run.kept(rank, "moved").values() ==
              parts[static_cast<std::size_t>((rank + 2 * n - 2) % n)].values());
        const ts::Tensor part = run.kept(rank, "scattered");
        REQUIRE(part.shape() == ts::Shape{2, 3, 5});
        std::vector<double> mine;
        for (int i = 0; i < 2; ++i) {
          for (int j = 0; j < 15; ++j) {
            mine.push_back(sum[static_cast<std::size_t>(i * 15 * n + rank * 15 + j)]);
          }
        }
        CHECK(near(part, mine, n));
        const ts::Tensor whole = parts[static_cast<std::size_t>(root)];
        CHECK(run.kept(rank, "dealt").values() ==
              ts::contiguous(ts::slice(whole, 1, 3 * rank, 3 * rank + 3)).values());
        std::vector<ts::Tensor> cut;
        for (const ts::Tensor& one : parts) {
          cut.push_back(ts::contiguous(ts::slice(one, 1, 3 * rank, 3 * rank + 3)));
        }
        CHECK(run.kept(rank, "exchanged").values() == ts::concat(cut, 2).values());
        if (rank != root) {
          CHECK(run.kept(rank, "at root").shape() == ts::Shape{0});
          CHECK(run.kept(rank, "collected").shape() == ts::Shape{0});
        }
      }
    }
  }
}

TEST_CASE("any count of elements, and none") {
  for (const ts::Algorithm algorithm : flat) {
    CAPTURE(ts::name_of(algorithm));
    for (const int count : {0, 1, 2, 7, 40}) {
      ts::Mesh mesh = row_mesh(6);
      mesh.algorithm = algorithm;
      const ts::MeshRun run = mesh.run([&](ts::Device& d) {
        const ts::Tensor t = numbers(d.rank(), {count});
        d.keep("sum", d.all_reduce(t, "x"));
        d.keep("all", d.all_gather(t, "x"));
        d.keep("told", d.broadcast(t, "x", 5));
      });
      const Expected expected = {6, {count}};
      for (int rank = 0; rank < 6; ++rank) {
        CHECK(near(run.kept(rank, "sum"), expected.sum(), 6));
        CHECK(run.kept(rank, "told").values() == numbers(5, {count}).values());
        CHECK(run.kept(rank, "all").count() == 6 * count);
      }
    }
  }
}

TEST_CASE("a barrier of some axes waits for their devices only [many]") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2, 3}), {{"x", 2}, {"y", 3}});
  const ts::MeshRun run = mesh.run([](ts::Device& d) {
    if (d.index("x") == 0) {
      d.barrier("y");
    }
    d.barrier(ts::Axes{"x", "y"});
  });
  CHECK(run.collectives()[0].devices == 3);
  CHECK(run.collectives()[1].devices == 6);
  CHECK(error_of([&] {
          mesh.run([](ts::Device& d) { d.barrier("z"); });
        }).find("barrier: no axis z on this mesh; its axes are x, y") != std::string::npos);
}

TEST_CASE("a ragged all_to_all travels while a device computes") {
  double seconds[2] = {0, 0};
  for (const bool early : {false, true}) {
    const ts::MeshRun run = row_mesh(2).run([&](ts::Device& d) {
      const ts::Tensor t = numbers(d.rank(), {300, 64});
      const ts::Tensor x = numbers(d.rank(), {256, 256});
      const std::vector<std::int64_t> rows = {100, 200};
      std::vector<std::int64_t> got;
      if (early) {
        ts::Pending moving = d.start_all_to_all(t, "x", rows, &got);
        ts::matmul(x, x);
        d.keep("got", moving.wait());
      } else {
        d.keep("got", d.all_to_all(t, "x", rows, &got));
        ts::matmul(x, x);
      }
      CHECK(got == std::vector<std::int64_t>(2, d.rank() == 0 ? 100 : 200));
    });
    CHECK(run.kept(1, "got").at({200, 3}) == number(1, 100 * 64 + 3));
    seconds[early ? 1 : 0] = run.seconds;
  }
  CHECK(seconds[1] < seconds[0]);
}

TEST_CASE("sums of dozens of devices are the float64 sums, by every algorithm [many]") {
  for (const ts::Algorithm algorithm : flat) {
    CAPTURE(ts::name_of(algorithm));
    for (const int n : {12, 17, 33}) {
      CAPTURE(n);
      ts::Mesh mesh = row_mesh(n);
      mesh.algorithm = algorithm;
      const ts::MeshRun run = mesh.run([&](ts::Device& d) {
        d.keep("all", d.all_reduce(numbers(d.rank(), {101}), "x"));
        d.keep("part", d.reduce_scatter(numbers(d.rank(), {2 * n}), "x", 0));
        d.keep("mean", d.all_reduce(numbers(d.rank(), {7}), "x", ts::Reduce::mean));
      });
      const std::vector<double> parts = Expected{n, {2 * n}}.sum();
      const std::vector<double> seven = Expected{n, {7}}.sum();
      for (int rank = 0; rank < n; ++rank) {
        const std::size_t first = static_cast<std::size_t>(2 * rank);
        CHECK(near(run.kept(rank, "all"), Expected{n, {101}}.sum(), n));
        CHECK(near(run.kept(rank, "part"), {parts[first], parts[first + 1]}, n));
        CHECK(near(ts::scale(run.kept(rank, "mean"), static_cast<float>(n)), seven, 2 * n));
      }
    }
  }
}

TEST_CASE("large tensors go through the cache in stretches, on several threads") {
  for (const ts::Algorithm algorithm : {ts::Algorithm::ring, ts::Algorithm::direct}) {
    ts::Mesh mesh = row_mesh(3);
    mesh.algorithm = algorithm;
    const ts::MeshRun run = mesh.run([&](ts::Device& d) {
      const ts::Tensor t = numbers(d.rank(), {3, 30011});
      d.keep("sum", d.all_reduce(t, "x"));
      d.keep("all", d.all_gather(t, "x", 1));
      d.keep("turned", d.all_to_all(t, "x", 0, 1));
    });
    const Expected expected = {3, {3, 30011}};
    CHECK(near(run.kept(2, "sum"), expected.sum(), 3));
    const ts::Tensor all = run.kept(1, "all");
    CHECK(all.at({2, 30011 + 7}) == number(1, 2 * 30011 + 7));
    CHECK(run.kept(1, "turned").at({0, 2 * 30011 + 9}) == number(2, 30011 + 9));
  }
}

TEST_CASE("ragged all_to_all: rows of any number, and their gradient") {
  for (int n = 1; n <= 5; ++n) {
    CAPTURE(n);
    row_mesh(n).run([&](ts::Device& d) {
      const auto rows_of = [&](int from, int to) { return std::int64_t{(from * 3 + to * 5) % 4}; };
      std::vector<std::int64_t> rows;
      std::int64_t sum = 0;
      for (int to = 0; to < n; ++to) {
        rows.push_back(rows_of(d.rank(), to));
        sum += rows.back();
      }
      const ts::Tensor t = ts::parameter(numbers(d.rank(), {sum, 2}));
      std::vector<std::int64_t> got;
      const ts::Tensor out = d.all_to_all(t, "x", rows, &got);
      std::int64_t row = 0;
      bool right = got.size() == static_cast<std::size_t>(n);
      for (int from = 0; from < n && right; ++from) {
        right = got[static_cast<std::size_t>(from)] == rows_of(from, d.rank());
        std::int64_t first = 0;
        for (int to = 0; to < d.rank(); ++to) {
          first += rows_of(from, to);
        }
        for (std::int64_t i = 0; i < rows_of(from, d.rank()); ++i, ++row) {
          right = right && out.at({row, 1}) == number(from, (first + i) * 2 + 1);
        }
      }
      if (!right || out.dim(0) != row) {
        throw ts::Error("wrong rows");
      }
      ts::sum(ts::square(out)).backward();
      for (std::int64_t i = 0; i < t.count(); ++i) {
        if (t.grad().data()[i] != 2 * t.data()[i]) {
          throw ts::Error("wrong gradient");
        }
      }
    });
  }
}

TEST_CASE("ragged all_to_all of few rows, and of none") {
  const auto rows_of = [](int n, int from, int to, int most) {  // mostly 0, at times in all
    const double u = ts::uniform01(77, static_cast<std::uint64_t>((n * 16 + from) * 16 + to));
    return static_cast<std::int64_t>(u * 10 < most ? u * 10 : 0);
  };
  for (int n = 2; n <= 9; ++n) {
    for (const int most : {0, 1, 2, 4}) {
      for (const ts::Algorithm algorithm : {ts::Algorithm::automatic, ts::Algorithm::ring,
                                            ts::Algorithm::line, ts::Algorithm::direct}) {
        ts::Mesh mesh = row_mesh(n);
        mesh.algorithm = algorithm;
        const ts::MeshRun run = mesh.run([&](ts::Device& d) {
          std::vector<std::int64_t> rows;
          std::vector<float> values;
          for (int to = 0; to < n; ++to) {
            rows.push_back(rows_of(n, d.rank(), to, most));
            values.insert(values.end(), static_cast<std::size_t>(rows.back()),
                          static_cast<float>(d.rank() * n + to));
          }
          ts::Tensor t({static_cast<std::int64_t>(values.size())});
          for (std::int64_t i = 0; i < t.count(); ++i) {
            t.data()[i] = values[static_cast<std::size_t>(i)];
          }
          d.keep("got", d.all_to_all(t, "x", rows));
        });
        double moved = 0, sent = 0;
        for (int to = 0; to < n; ++to) {
          std::vector<float> want;
          for (int from = 0; from < n; ++from) {
            const std::int64_t rows = rows_of(n, from, to, most);
            want.insert(want.end(), static_cast<std::size_t>(rows),
                        static_cast<float>(from * n + to));
            moved += from == to ? 0 : static_cast<double>(4 * rows);
          }
          CHECK(run.kept(to, "got").values() == want);
          sent += run.bytes_sent(to) - 4 * (n - 1);  // the counts
        }
        if (algorithm == ts::Algorithm::direct) {
          CHECK(sent == moved);
        }
      }
    }
  }
  for (std::int64_t rows = 6; rows >= 0; --rows) {  // one device to one other
    const ts::MeshRun run = row_mesh(4).run([&](ts::Device& d) {
      const std::int64_t mine = d.rank() == 1 ? rows : 0;
      d.keep("got", d.all_to_all(ts::full({mine, 2}, 5.0f), "x", {0, 0, 0, mine}));
    });
    CHECK(run.kept(3, "got").values() == std::vector<float>(static_cast<std::size_t>(2 * rows), 5));
    CHECK((run.collectives()[1].steps > 0) == (rows > 0));
  }
}

TEST_CASE("ragged all_to_all: a prediction counts every row; a formula is only of even rows") {
  ts::Mesh line = row_mesh(4);
  line.algorithm = ts::Algorithm::line;
  for (const ts::Mesh& mesh : {line, ts::Mesh(ts::machine("h100", {1, 4}), {{"x", 4}})}) {
    const auto even = [](ts::Device& d) {
      d.all_to_all(ts::zeros({400, 16}), "x", {100, 100, 100, 100});
    };
    const ts::MeshRun run = mesh.run(even);
    const ts::MeshPrediction one = mesh.predict(even, 1);
    CHECK(one.seconds == doctest::Approx(run.seconds).epsilon(1e-9));
    for (const std::size_t i : {0U, 1U}) {
      CHECK(one.calls[i].bytes == run.collectives()[i].bytes_out);
      CHECK(one.calls[i].known);
      CHECK(run.collectives()[i].formula ==
            doctest::Approx(run.collectives()[i].seconds).epsilon(1e-9));
    }
    const auto skewed = [](ts::Device& d) {
      const std::int64_t n = d.rank() == 2 ? 1000 : 0;
      d.all_to_all(ts::zeros({n + 8, 4}), "x", {n, 2, 3, 3});
    };
    const ts::CollectiveRow row = mesh.run(skewed).collectives()[1];
    CHECK(row.formula < 0);
    if (mesh.algorithm == ts::Algorithm::automatic) {
      CHECK(row.reason.find("as if all rows were even: ") == 0);
    }
  }
  ts::Mesh mesh = row_mesh(4);
  mesh.algorithm = ts::Algorithm::direct;
  const auto skewed = [](ts::Device& d) {
    d.all_to_all(ts::zeros({100 + 8, 4}), "x", {100, 2, 3, 3});
  };
  const ts::MeshRun run = mesh.run(skewed);
  for (int rank = 0; rank < 4; ++rank) {
    const ts::MeshPrediction one = mesh.predict(skewed, rank);
    CHECK(one.calls[0].bytes + one.calls[1].bytes == run.bytes_sent(rank));
    CHECK(!one.calls[1].known);
    CHECK(one.table().text().find("  about ") != std::string::npos);
  }
  // An own schedule, every message of which has its size; and n^2 blocks, far beyond an int.
  ts::CollectiveSpec spec;
  spec.what = ts::Collective::all_to_all;
  spec.algorithm = ts::Algorithm::ring;
  spec.parts = mesh.placement().axes[0].parts;
  spec.elements = 1;
  const ts::CollectiveSchedule own = ts::make_schedule(spec);
  ts::CollectiveOptions options;
  options.schedule = &own;
  const auto by_own = [&](ts::Device& d) {
    d.all_to_all(ts::zeros({108, 4}), "x", {100, 2, 3, 3}, nullptr, options);
  };
  CHECK(mesh.predict(by_own, 1).calls[1].bytes ==
        mesh.run(by_own).bytes_sent(1) - mesh.run(by_own).collectives()[0].bytes_out);
  const ts::Mesh many(ts::machine("tpu-v5p", {12, 16, 20, 25}), {{"x", 96000}});
  const ts::MeshPrediction far =
      many.predict([](ts::Device& d) { d.all_to_all(ts::zeros({96000}), "x", 0, 0); });
  CHECK(far.calls[0].bytes >= 4 * 95999.0);
  CHECK(far.seconds < 1);
}

TEST_CASE("a prediction says where it is about so, or at least so [many]") {
  ts::Mesh line = row_mesh(8);
  line.algorithm = ts::Algorithm::ring;
  const auto gather = [](ts::Device& d) { d.all_gather(ts::zeros({100}), "x"); };
  const ts::MeshPrediction around = line.predict(gather);
  CHECK(around.seconds == doctest::Approx(line.run(gather).seconds).epsilon(1e-9));
  CHECK(!around.calls[0].known);
  CHECK(around.csv().find(",\"formula (s, about)\"\n") != std::string::npos);
  std::ostringstream text;
  text << around;
  CHECK(text.str().find("\npredicted about 49.1 us: ") != std::string::npos);
  const ts::Mesh two(ts::machine("tpu-v5e", {2, 16}), {{"x", 32}});
  const auto shift = [](ts::Device& d) { d.permute(ts::zeros({144000}), "x", 10); };
  const ts::MeshPrediction shifted = two.predict(shift);
  CHECK(shifted.seconds == doctest::Approx(two.run(shift).seconds).epsilon(0.01));
  CHECK(!shifted.calls[0].known);
  line.algorithm = ts::Algorithm::line;
  CHECK(line.predict(gather).calls[0].known);
  CHECK(line.predict(gather).csv().find("about") == std::string::npos);
  ts::CollectiveSpec spec;
  spec.parts = line.placement().axes[0].parts;
  spec.elements = 8;
  const ts::CollectiveSchedule own = ts::make_schedule(spec);
  ts::CollectiveOptions options;
  options.schedule = &own;
  const auto by_own = [&](ts::Device& d) { d.all_gather(ts::zeros({100}), "x", 0, options); };
  CHECK(line.predict(by_own).csv().find(",\"formula (s, at least)\"\n") != std::string::npos);
  // Of no elements nothing moves, by an own schedule either.
  const auto nothing = [&](ts::Device& d) { d.all_gather(ts::zeros({0}), "x", 0, options); };
  const ts::MeshRun run = line.run(nothing);
  CHECK(run.steps() == 0);
  CHECK(run.seconds == 0);
  CHECK(line.predict(nothing).seconds == 0);
  CHECK(line.predict(nothing).calls[0].known);
}

TEST_CASE("a formula of groups that share links is of all of them, or there is none [many]") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {16}), {{"x", 4}, {"y", 4}});
  for (const bool all : {false, true}) {
    for (const char* const axis : {"x", "y"}) {
      const bool near = axis[0] == 'y';  // neighbours, on links of their own
      const ts::CollectiveRow row = mesh.run([&](ts::Device& d) {
                                          if (all || d.index(near ? "x" : "y") == 0) {
                                            d.all_gather(ts::zeros({1000}), axis);
                                          }
                                        })
                                        .collectives()[0];
      CHECK((row.formula >= 0) == (all || near));
      CHECK((row.formula < 0 || std::fabs(row.formula - row.seconds) < 1e-9 * row.seconds));
    }
  }
}

TEST_CASE("mean, max, min; a NaN is not hidden") {
  for (const ts::Algorithm algorithm : flat) {
    ts::Mesh mesh = row_mesh(5);
    mesh.algorithm = algorithm;
    const ts::MeshRun run = mesh.run([](ts::Device& d) {
      const ts::Tensor t = ts::full({3}, static_cast<float>(d.rank() + 1));
      d.keep("mean", d.all_reduce(t, "x", ts::Reduce::mean));
      d.keep("max", d.all_reduce(t, "x", ts::Reduce::max));
      d.keep("min", d.all_reduce(t, "x", ts::Reduce::min));
      d.keep("part", d.reduce_scatter(ts::full({5}, static_cast<float>(d.rank())), "x", 0,
                                      ts::Reduce::mean));
      d.keep("root", d.reduce(t, "x", 1, ts::Reduce::max));
      const ts::Tensor nan = ts::full({2}, d.rank() == 3 ? std::nanf("") : 1.0f);
      d.keep("nan max", d.all_reduce(nan, "x", ts::Reduce::max));
      d.keep("nan min", d.all_reduce(nan, "x", ts::Reduce::min));
    });
    for (int rank = 0; rank < 5; ++rank) {
      CHECK(run.kept(rank, "mean").values() == std::vector<float>(3, 3.0f));
      CHECK(run.kept(rank, "max").values() == std::vector<float>(3, 5.0f));
      CHECK(run.kept(rank, "min").values() == std::vector<float>(3, 1.0f));
      CHECK(run.kept(rank, "part").item() == 2.0f);
      CHECK(std::isnan(run.kept(rank, "nan max").at({1})));
      CHECK(std::isnan(run.kept(rank, "nan min").at({0})));
    }
    CHECK(run.kept(1, "root").values() == std::vector<float>(3, 5.0f));
  }
}

TEST_CASE("a wire format rounds what is sent, and fewer bytes travel") {
  ts::Mesh mesh = row_mesh(2);
  mesh.algorithm = ts::Algorithm::direct;
  const ts::MeshRun run = mesh.run([](ts::Device& d) {
    ts::CollectiveOptions bf16;
    bf16.format = ts::DType::bf16;
    const ts::Tensor t = ts::full({4}, d.rank() == 0 ? 1.0f : 0x1.01p-8f);
    d.keep("sum", d.all_reduce(t, "x", ts::Reduce::sum, bf16));
    d.keep("all", d.all_gather(t, "x", 0, bf16));
  });
  CHECK(run.collectives()[0].bytes_out == 8);  // two chunks of two elements of two bytes
  CHECK(run.collectives()[0].arguments == "[4], sum, bf16");
  CHECK(run.kept(0, "all").at({4}) == 0x1p-8f);  // 0x1.01p-8 in bf16
  CHECK(run.kept(1, "all").at({4}) == 0x1p-8f);  // all devices have the same, its sender too
}

TEST_CASE("a wire format: all have the same all_reduce, and a maximum is one of what was sent") {
  for (const ts::Algorithm algorithm : flat) {
    CAPTURE(ts::name_of(algorithm));
    ts::Mesh mesh = row_mesh(5);
    mesh.algorithm = algorithm;
    const ts::MeshRun run = mesh.run([](ts::Device& d) {
      ts::CollectiveOptions bf16;
      bf16.format = ts::DType::bf16;
      const ts::Tensor t = ts::parameter(numbers(d.rank(), {40}));
      d.keep("sum", d.all_reduce(t, "x", ts::Reduce::sum, bf16));
      d.keep("mean", d.all_reduce(t, "x", ts::Reduce::mean, bf16));
      const ts::Tensor most = d.all_reduce(t, "x", ts::Reduce::max, bf16);
      d.keep("max", most);
      ts::sum(most).backward();
      d.keep("winners", d.all_reduce(t.grad(), "x"));
      t.zero_grad();
      ts::sum(d.reduce_scatter(t, "x", 0, ts::Reduce::min, bf16)).backward();
      d.keep("losers", d.all_reduce(t.grad(), "x"));
    });
    for (const char* const name : {"sum", "mean", "max"}) {
      CAPTURE(name);
      for (int rank = 1; rank < 5; ++rank) {
        CHECK(run.kept(rank, name).values() == run.kept(0, name).values());
      }
    }
    for (const char* const name : {"winners", "losers"}) {
      CAPTURE(name);
      for (const float winners : run.kept(0, name).values()) {
        CHECK(winners == 1);
      }
    }
  }
}

TEST_CASE("ragged all_to_all in a wire format: the counts stay exact") {
  const ts::MeshRun run = row_mesh(2).run([](ts::Device& d) {
    ts::CollectiveOptions bf16;
    bf16.format = ts::DType::bf16;
    std::vector<std::int64_t> got;
    d.all_to_all(ts::ones({260, 1}), "x", {257, 3}, &got, bf16);
    d.keep("got", ts::full({2}, static_cast<float>(got[0])));
  });
  CHECK(run.kept(0, "got").at({0}) == 257);
  CHECK(run.kept(1, "got").at({0}) == 3);
}

TEST_CASE("each line of the program that makes the same call is named") {
  const int line = __LINE__ + 2;
  const ts::MeshRun run = row_mesh(2).run([](ts::Device& d) {
    const ts::Tensor t = ts::ones({4});
    d.all_reduce(t, "x");
    d.all_reduce(t, "x");
    if (d.rank() == 0) {
      d.send(t, 1);
      d.send(t, 1);
    } else {
      d.recv(0);
      d.recv(0);
    }
  });
  const int lines[] = {1, 2, 4, 5};
  REQUIRE(run.collectives().size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(run.collectives()[i].where.line == line + lines[i]);
  }
}

TEST_CASE("a schedule of each device's own: compared by what it says, and at every call") {
  const auto half = [](ts::Device& d, bool whole) {
    ts::CollectiveSchedule own;
    own.name = "mine";
    own.what = ts::Collective::all_reduce;
    own.devices = 2;
    own.transfers = {{0, 0, 1, 0, 1, ts::Action::reduce, 0}, {1, 1, 0, 0, 1, ts::Action::copy, 0}};
    if (!whole) {
      own.transfers.pop_back();
    }
    ts::CollectiveOptions options;
    options.schedule = &own;
    return d.all_reduce(ts::ones({3}), "x", ts::Reduce::sum, options);
  };
  const ts::MeshRun run = row_mesh(2).run([&](ts::Device& d) {
    half(d, true);
    d.keep("sum", half(d, true));
  });
  CHECK(run.kept(0, "sum").values() == std::vector<float>(3, 2.0f));
  CHECK(fault(row_mesh(2),
              [&](ts::Device& d) {
                half(d, true);
                half(d, false);
              }) ==
        "mesh.run: devices 0, 1 threw: check_schedule: mine: at the end device 0 lacks the share "
        "of device 1 in chunk 0\n  devices 0, 1: threw in call 2, all_reduce([3], sum, by mine, "
        "x): check_schedule: mine: at the end device 0 lacks the share of device 1 in chunk 0");
  CHECK(fault(row_mesh(2), [&](ts::Device& d) {
          half(d, d.rank() == 0);
        }).find("must make the same call and do not") != std::string::npos);
  const auto whole = [&](ts::Device& d) { half(d, true); };
  CHECK(row_mesh(2).predict(whole).calls[0].bytes == row_mesh(2).run(whole).bytes_sent(0));
  CHECK(error_of([&] {
          row_mesh(2).predict([&](ts::Device& d) { half(d, false); });
        }).find("check_schedule: mine: at the end device 0 lacks") == 0);
}

TEST_CASE("a schedule of the program's own is copied: what needs it later finds it") {
  const auto gather = [](ts::Device& d, const ts::Tensor& w, bool own) {
    ts::CollectiveSchedule swap;
    swap.name = "mine";
    swap.devices = swap.chunks = 2;
    swap.transfers = {{0, 0, 1, 0, 1, ts::Action::copy, 0}, {0, 1, 0, 1, 1, ts::Action::copy, 0}};
    ts::CollectiveOptions options;
    options.schedule = own ? &swap : nullptr;
    options.gather_again = true;
    const ts::Tensor all = d.all_gather(w, "x", 0, options);
    swap.name = "another";
    swap.devices = 3;
    return all;
  };
  std::vector<float> gradients[2];
  for (const bool own : {false, true}) {
    const ts::MeshRun run = row_mesh(2).run([&](ts::Device& d) {
      const ts::Tensor w = ts::parameter(ts::full({2, 3}, static_cast<float>(d.rank() + 1)));
      const ts::Tensor x = ts::parameter(ts::ones({5, 4}));
      ts::sum(ts::square(ts::matmul(x, gather(d, w, own)))).backward();
      d.keep("gradient", x.grad());
    });
    gradients[own ? 1 : 0] = run.kept(1, "gradient").values();
    const ts::List<ts::CollectiveRow> rows = run.collectives();
    REQUIRE(rows.size() == 3);  // gathered twice, and the gradient
    CHECK((rows[1].algorithm == "custom") == own);
  }
  CHECK(gradients[0] == gradients[1]);
  const ts::MeshRun whole = row_mesh(2).run([](ts::Device& d) {
    ts::CollectiveSchedule own;
    own.what = ts::Collective::all_reduce;
    own.devices = 2;
    own.transfers = {{0, 0, 1, 0, 1, ts::Action::reduce, 0}, {1, 1, 0, 0, 1, ts::Action::copy, 0}};
    ts::CollectiveOptions options;
    options.schedule = &own;
    const ts::Tensor w = ts::parameter(ts::ones({3}));
    const ts::Tensor loss = ts::sum(d.replicate(w, "x", options));
    own.devices = 3;
    loss.backward();
    d.keep("gradient", w.grad());
  });
  CHECK(whole.kept(0, "gradient").values() == std::vector<float>(3, 2.0f));
  CHECK(whole.collectives()[0].algorithm == "custom");
  CHECK(fault(row_mesh(2),
              [](ts::Device& d) {
                if (d.rank() == 1) {
                  d.recv(0);
                }
                ts::CollectiveSchedule own;
                own.name = "mine";
                own.devices = own.chunks = 2;
                ts::CollectiveOptions options;
                options.schedule = &own;
                const ts::Pending pending = d.start_all_gather(ts::ones({3}), "x", 0, options);
                throw ts::Error("enough");
              }) ==
        "mesh.run: device 0 threw: enough\n  device 0: threw after 1 call: enough; started call 1, "
        "all_gather([3], dim 0, by mine, x): waits for device 1 to call it\n  device 1: call 1, "
        "recv(from 0): waits for a message from device 0");
}

TEST_CASE("what outlives the run, or is on the wrong thread, says so") {
  const ts::Mesh mesh = row_mesh(2);
  ts::Pending pending;
  ts::Tensor gathered, replicated;
  mesh.run([&](ts::Device& d) {
    const ts::Tensor t = ts::parameter(ts::ones({4}));
    const ts::Tensor one = ts::sum(d.all_gather(t, "x"));
    const ts::Tensor two = ts::sum(d.replicate(t, "x"));
    const ts::Pending sum = d.start_all_reduce(t, "x");
    if (d.rank() == 0) {
      gathered = one;
      replicated = two;
      pending = sum;
    }
  });
  CHECK(error_of([&] { pending.wait(); }) ==
        "Pending::wait: the run of its device is over; call it inside the program");
  CHECK(error_of([&] { gathered.backward(); }) ==
        "backward: the run of its device is over; call it inside the program");
  CHECK(error_of([&] { replicated.backward(); }) ==
        "backward: the run of its device is over; call it inside the program");
  CHECK(fault(mesh, [](ts::Device& d) {
          ts::Pending sum = d.start_all_reduce(ts::ones({4}), "x");
          ts::Pending same = sum;
          same.wait();
          sum.wait();
        }).find("threw after 1 call: Pending::wait: nothing is pending") != std::string::npos);
  CHECK(fault(mesh,
              [](ts::Device& d) {  // one that failed gives no numbers the second time
                ts::CollectiveOptions by;
                by.algorithm = ts::Algorithm::tree;
                ts::Pending all = d.start_all_gather(ts::ones({4}), "x", 0, by);
                CHECK(error_of([&] { all.wait(); }).find("all_gather has no algorithm tree") > 0);
                all.wait();
              }) ==
        "mesh.run: devices 0, 1 threw: Pending::wait: nothing is pending; it was never started, or "
        "waited for already\n  devices 0, 1: threw in call 1, all_gather([4], dim 0, by tree, x): "
        "Pending::wait: nothing is pending; it was never started, or waited for already");
  ts::Device* first = nullptr;
  CHECK(fault(mesh,
              [&](ts::Device& d) {
                if (d.rank() == 0) {
                  first = &d;
                }
                d.barrier();
                if (d.rank() == 1) {
                  first->barrier();
                }
              })
            .find("device 0 was called by the program of another device, or on another thread; the "
                  "program of each device calls the Device that it was given, on the thread that "
                  "runs it") != std::string::npos);
}

TEST_CASE("a profile or an error of the program's own does not disturb the log") {
  const ts::MeshRun run = row_mesh(2).run([](ts::Device& d) {
    const ts::Tensor a = ts::ones({8, 8});
    ts::matmul(a, a);
    d.barrier();
    ts::Profile own;
    ts::matmul(a, a);
    d.barrier();
    ts::matmul(a, a);
  });
  CHECK(run.log().ops[0].size() == 3);
  CHECK(fault(row_mesh(2), [](ts::Device& d) {
          const ts::CollectiveSchedule empty;
          ts::CollectiveOptions options;
          options.schedule = &empty;
          CHECK(error_of([&] { d.barrier(options); }) != "");
          if (d.rank() == 1) {
            d.recv(0);
          }
        }).find("device 0: returned after 1 call\n") != std::string::npos);
}

TEST_CASE("one device far ahead of the others") {
  row_mesh(3).run([](ts::Device& d) {
    if (d.rank() > 0) {
      d.recv(d.rank() - 1);
    }
    ts::List<ts::Pending> all;
    for (int i = 0; i < 40; ++i) {
      all.push_back(d.start_all_reduce(ts::full({2}, 1.0f), "x"));
    }
    if (d.rank() < 2) {
      d.send(ts::ones({1}), d.rank() + 1);
    }
    for (ts::Pending& one : all) {
      CHECK(one.wait().at({1}) == 3);
    }
  });
}

TEST_CASE("several axes, in the order they are named") {
  for (const ts::Algorithm algorithm :
       {ts::Algorithm::automatic, ts::Algorithm::torus, ts::Algorithm::hierarchical,
        ts::Algorithm::ring, ts::Algorithm::direct}) {
    CAPTURE(ts::name_of(algorithm));
    ts::Mesh mesh(ts::machine("tpu-v5e", {3, 2}), {{"x", 3}, {"y", 2}});
    mesh.algorithm = algorithm;
    const ts::MeshRun run = mesh.run([](ts::Device& d) {
      const ts::Tensor mine = ts::full({2, 1, 2}, static_cast<float>(d.rank()));
      d.keep("xy", d.all_gather(mine, {"x", "y"}, 1));
      d.keep("yx", d.all_gather(mine, {"y", "x"}, 1));
      d.keep("part", d.reduce_scatter(ts::reshape(ts::arange(6), {1, 6}), {"x", "y"}, 1));
      d.keep("sum", d.all_reduce(numbers(d.rank(), {7}), {"x", "y"}));
      d.keep("back", d.all_gather(d.shard(ts::arange(12), {"y", "x"}, 0), {"y", "x"}));
      d.keep("told", d.broadcast(mine, {"y", "x"}, 4));  // y = 1, x = 1: rank 3
    });
    const ts::Tensor xy = run.kept(5, "xy");
    CHECK(xy.shape() == ts::Shape{2, 6, 2});
    const Expected expected = {6, {7}};
    for (int i = 0; i < 6; ++i) {
      CHECK(xy.at({1, i, 1}) == static_cast<float>(i));
      CHECK(run.kept(0, "yx").at({0, i, 0}) == static_cast<float>(i % 3 * 2 + i / 3));
      CHECK(run.kept(i, "part").values() == std::vector<float>(1, 6.0f * static_cast<float>(i)));
      CHECK(run.kept(i, "sum").values() == run.kept(0, "sum").values());
      CHECK(near(run.kept(i, "sum"), expected.sum(), 6));
      CHECK(run.kept(i, "back").values() == ts::arange(12).values());
      CHECK(run.kept(i, "told").at({0, 0, 0}) == 3.0f);
    }
  }
}

TEST_CASE("what is started may overlap, and ends in any order") {
  const ts::MeshRun run = row_mesh(4).run([](ts::Device& d) {
    const ts::Tensor t = ts::full({8}, static_cast<float>(d.rank()));
    ts::Pending sum = d.start_all_reduce(t, "x");
    ts::Pending all = d.start_all_gather(t, "x");
    d.keep("work", ts::matmul(ts::ones({8, 8}), ts::ones({8, 8})));
    d.keep("all", all.wait());
    d.keep("sum", sum.wait());
    d.start_permute(t, "x", 1);  // nobody waits for it
  });
  CHECK(run.kept(3, "sum").values() == std::vector<float>(8, 6.0f));
  CHECK(run.kept(0, "all").at({31}) == 3.0f);
  CHECK(run.collectives().size() == 3);
  CHECK(error_of([] { ts::Pending().wait(); }) ==
        "Pending::wait: nothing is pending; it was never started, or waited for already");
}

TEST_CASE("a line of the program is a row of the report") {
  const ts::MeshRun run = row_mesh(2).run([](ts::Device& d) { d.barrier(); });
  const ts::SourceLine where = run.collectives()[0].where;
  CHECK(std::string(where.file).find("mesh_test.cpp") != std::string::npos);
  CHECK(where.line == __LINE__ - 3);
  const ts::MeshRun twice = row_mesh(2).run([](ts::Device& d) {  // equal calls, two lines
    d.all_gather(ts::ones({4}), "x");
    d.all_gather(ts::ones({4}), "x");
  });
  REQUIRE(twice.collectives().size() == 2);
  CHECK(twice.collectives()[0].where.line == __LINE__ - 4);
  CHECK(twice.collectives()[1].where.line == __LINE__ - 4);
}

TEST_CASE("calls made again and again: other sizes, other lines, another call in between") {
  for (const int n : {2, 3, 8}) {
    const int line = __LINE__;
    const ts::MeshRun run = row_mesh(n).run([n](ts::Device& d) {
      float wrong = 0;
      for (int i = 0; i < 60; ++i) {
        const std::int64_t size = i % 3 == 0 ? 4 : i % 3 == 1 ? 36 : 40000;  // of one slot; many
        const ts::Tensor mine = ts::full({size}, static_cast<float>(d.rank() + i));
        ts::Tensor sum;
        if (d.rank() == 0 && i % 4 == 0) {
          sum = d.all_reduce(mine, "x");
        } else {
          sum = d.all_reduce(mine, "x");
        }
        const float right = static_cast<float>(n * i + n * (n - 1) / 2);
        wrong += std::fabs(sum.at({0}) - right) + std::fabs(sum.at({size - 1}) - right);
        if (i % 7 == 0) {
          const ts::Tensor largest = d.all_reduce(mine, "x", ts::Reduce::max);
          wrong += std::fabs(largest.at({size - 1}) - static_cast<float>(n - 1 + i));
        }
      }
      d.keep("wrong", ts::full({1}, wrong));
    });
    std::size_t row = 0;
    for (int i = 0; i < 60; ++i) {
      CHECK(run.collectives()[row++].where.line == line + (i % 4 == 0 ? 8 : 10));
      row += i % 7 == 0 ? 1 : 0;
    }
    CHECK(row == run.collectives().size());
    for (int rank = 0; rank < n; ++rank) {
      CHECK(run.kept(rank, "wrong").item() == 0.0f);
    }
  }
  CHECK(fault(row_mesh(2),
              [](ts::Device& d) {
                for (int i = 0; i < 20; ++i) {  // known by then
                  d.all_gather(ts::ones({i == 19 ? 4 + d.rank() : 4}), "x");
                }
              }) ==
        "mesh.run: devices 0, 1 must make the same call and do not\n"
        "  device 0: call 20, all_gather([4], dim 0, x): its peers call something else\n"
        "  device 1: call 20, all_gather([5], dim 0, x): its peers call something else");
}

TEST_CASE("many starts before a wait: meetings come and go in any order") {
  for (const int n : {2, 5}) {
    const ts::MeshRun run = row_mesh(n).run([n](ts::Device& d) {
      float wrong = 0;
      for (int round = 0; round < 30; ++round) {
        std::vector<ts::Pending> sums;
        for (int i = 0; i < 1 + round % 9; ++i) {
          sums.push_back(d.start_all_reduce(ts::full({3}, static_cast<float>(i)), "x"));
        }
        for (std::size_t i = 0; i < sums.size(); ++i) {  // from either end
          const std::size_t at = round % 2 == 0 ? i : sums.size() - 1 - i;
          wrong +=
              std::fabs(sums[at].wait().at({2}) - static_cast<float>(n) * static_cast<float>(at));
        }
      }
      d.keep("wrong", ts::full({1}, wrong));
    });
    CHECK(run.kept(n - 1, "wrong").item() == 0.0f);
  }
}

// Call i of a device, and how far what came is from right. Numbers of a vector rise by 1.
ts::Pending start_one(ts::Device& d, int i) {
  const float first = static_cast<float>(100 * d.rank() + i);
  const ts::Tensor mine = ts::reshape(ts::arange(8), {2, 4}) + first;
  switch (i % 7) {
    case 0: return d.start_all_reduce(mine, "x");
    case 1: return d.start_all_gather(mine, "x", 0);
    case 2: return d.start_all_gather(mine, "x", 1);  // no block is contiguous there
    case 3: return d.start_all_to_all(ts::full({8, 8}, first), "x", 1, 0);
    case 4: return d.start_reduce_scatter(ts::full({8, 3}, first), "x", 0);
    case 5: return d.start_all_reduce(mine, "x", ts::Reduce::mean);
    default: return d.start_broadcast(mine, "x", i % 2);
  }
}
float wrong_by(const ts::Tensor& got, int n, int i) {
  const float sum = static_cast<float>(100 * n * (n - 1) / 2 + n * i);
  const float last = static_cast<float>(100 * (n - 1) + i);
  switch (i % 7) {
    case 0: return std::fabs(got.at({1, 3}) - sum - 7.0f * static_cast<float>(n));
    case 1: return std::fabs(got.at({2 * n - 1, 3}) - last - 7.0f);
    case 2: return std::fabs(got.at({1, 4 * n - 1}) - last - 7.0f);
    case 3: return std::fabs(got.at({8 * n - 1, 8 / n - 1}) - last);
    case 4: return std::fabs(got.at({8 / n - 1, 2}) - sum);
    case 5:
      return std::fabs(got.at({0, 2}) * static_cast<float>(n) - sum - 2.0f * static_cast<float>(n));
    default: return std::fabs(got.at({1, 0}) - static_cast<float>(100 * (i % 2) + i) - 4.0f);
  }
}

TEST_CASE("seven calls by turns, up to ten under way, each device waits in an order of its own") {
  for (const int n : {2, 4, 8}) {
    const ts::MeshRun run = row_mesh(n).run([n](ts::Device& d) {
      float wrong = 0;
      unsigned state = static_cast<unsigned>(d.rank()) + 1;
      const auto draw = [&](std::size_t below) {
        state = state * 1664525U + 1013904223U;
        return static_cast<std::size_t>(state >> 16) % below;
      };
      int i = 0;
      for (int round = 0; round < 60; ++round) {
        std::vector<std::pair<int, ts::Pending>> under_way;
        for (int calls = 1 + round % 10; calls > 0; --calls, ++i) {
          under_way.emplace_back(i, start_one(d, i));
        }
        while (!under_way.empty()) {
          const std::size_t at = draw(under_way.size());
          if (round % 5 != 4 || at > 0) {  // else it is dropped
            wrong += wrong_by(under_way[at].second.wait(), n, under_way[at].first);
          }
          under_way.erase(under_way.begin() + static_cast<std::ptrdiff_t>(at));
        }
      }
      d.keep("wrong", ts::full({1}, wrong));
    });
    for (int rank = 0; rank < n; ++rank) {
      CHECK(run.kept(rank, "wrong").item() == 0.0f);
    }
    CHECK(run.collectives().size() == 330);
  }
}

TEST_CASE("send, recv, barrier and counters") {
  const ts::Mesh mesh = row_mesh(4);
  ts::Profile profile;
  const ts::MeshRun run = mesh.run([](ts::Device& d) {
    const ts::Tensor x = ts::full({2, 2}, static_cast<float>(d.rank()));
    d.send(ts::matmul(x, x), (d.rank() + 1) % 4);
    d.keep("got", d.recv((d.rank() + 3) % 4));
    d.barrier();
  });
  CHECK(run.kept(0, "got").at({1, 1}) == 18.0f);
  CHECK(run.counters(2).matmul_flops == 16);
  CHECK(run.memory(1).peak_total() >= 32);
  CHECK(profile.totals().matmul_flops == 64);
  int last = 0;
  for (const ts::OpRecord& record : profile.records()) {
    CHECK(record.device >= last);
    last = record.device;
  }
  CHECK(run.collectives().size() == 2);
  CHECK(run.steps() == 3);  // one of the sends, two of the barrier
}

TEST_CASE("in a compiled function sends and what is kept have the numbers of each call") {
  const ts::MeshRun run = row_mesh(2).run([](ts::Device& d) {
    const auto f = ts::compile([&](const std::vector<ts::Tensor>& in) {
      const ts::Tensor twice = in[0] * 2.0f;
      d.send(twice, 1 - d.rank());
      d.send(in[0], 1 - d.rank());
      const ts::Tensor other = d.recv(1 - d.rank()) + d.recv(1 - d.rank());
      d.keep("sum", ts::sum(twice));
      d.keep("input", in[0]);
      return std::vector<ts::Tensor>{ts::square(twice) + other};
    });
    for (int i = 0; i < 3; ++i) {
      const float own = static_cast<float>(d.rank() + i),
                  others = static_cast<float>(1 - d.rank() + i);
      const std::vector<ts::Tensor> out = f(std::vector<ts::Tensor>{ts::full({3}, own)});
      CHECK(out[0].values() == std::vector<float>(3, 4 * own * own + 3 * others));
    }
  });
  CHECK(run.kept(1, "sum").item() == 18.0f);
  CHECK(run.kept(0, "input").values() == std::vector<float>(3, 2.0f));
}

TEST_CASE(
    "the same program carried, on threads, with the baton: numbers, counters, simulated time") {
  const auto report = [](int runnable) {
    ts::Mesh mesh(ts::machine("tpu-v5e", {4, 2}), {{"x", 4}, {"y", 2}});
    mesh.runnable = runnable;
    const ts::MeshRun run = mesh.run([](ts::Device& d) {
      ts::Tensor t = d.all_reduce(numbers(d.rank(), {37}), {"x", "y"});
      ts::Pending sum = d.start_all_reduce(t, "x");
      d.send(t, d.rank() ^ 1);
      t = t + d.recv(d.rank() ^ 1) + d.broadcast(t, "x", 1) + sum.wait();
      d.keep("t", d.all_gather(t, "y"));
    });
    std::string text = run.csv() + run.json() + ts::detail::cat({run.seconds * 1e9});
    for (const float value : run.kept(7, "t").values()) {
      text += ts::detail::cat({" ", value});
    }
    return text;
  };
  const std::string first = report(0);
  for (const int runnable : {0, 1, 2, 3, 8}) {
    CAPTURE(runnable);
    CHECK(report(runnable) == first);
  }
}

TEST_CASE("hundreds of devices, one after another and together [many]") {
  for (const int runnable : {0, 2, 256}) {
    ts::Mesh mesh(ts::machine("tpu-v5e", {16, 16}), {{"x", 16}, {"y", 16}});
    mesh.runnable = runnable;
    const ts::MeshRun run = mesh.run([](ts::Device& d) {
      const ts::Tensor one = ts::ones({3});
      d.keep("n", d.all_reduce(d.all_reduce(one, "x"), {"x", "y"}));
    });
    CHECK(run.kept(255, "n").values() == std::vector<float>(3, 4096.0f));
  }
}

TEST_CASE("errors of the mesh and of arguments") {
  const ts::Machine machine = ts::machine("tpu-v5e", {4, 2});
  CHECK(error_of([&] { ts::Mesh(machine, {}); }) ==
        "Mesh: no axes; give a name and a size for each, as {{\"x\", 4}, {\"y\", 2}}");
  CHECK(error_of([&] {
          ts::Mesh(machine, {{"x", 4}, {"y", 4}});
        }) ==
        "Mesh: axes x, y of sizes [4, 4] are 16 devices, machine tpu-v5e 4x2 has 8 chips; they "
        "must be equal");
  CHECK(error_of([&] {
          ts::Mesh(machine, {{"x", 0}, {"y", 2}});
        }) == "Mesh: axis x has 0 devices; every axis needs at least 1");
  CHECK(error_of([&] {
          ts::Mesh(machine, {{"x", 4}, {"x", 2}});
        }) == "Mesh: two axes are named x; names must differ");
  CHECK(error_of([&] {
          ts::Mesh(machine, {{"", 4}, {"x", 2}});
        }) == "Mesh: axis 0 has no name; give every axis one, as \"x\"");
  CHECK(error_of([] { row_mesh(1).run(ts::DeviceProgram()); }) ==
        "Mesh::run: the program is empty; give a function of Device&");
  const ts::Mesh mesh(machine, {{"x", 4}, {"y", 2}});
  CHECK(error_of([&] { mesh.size("z"); }) == "size: no axis z on this mesh; its axes are x, y");
  const auto all_throw = [&](const std::string& message, const ts::DeviceProgram& program) {
    CHECK(fault(mesh, program) == "mesh.run: devices 0-7 threw: " + message +
                                      "\n  devices 0-7: threw after 0 calls: " + message);
  };
  const ts::Tensor t = ts::zeros({3});
  all_throw("all_gather: no axis z on this mesh; its axes are x, y",
            [&](ts::Device& d) { d.all_gather(t, "z"); });
  all_throw("all_gather: axis x is given twice; each axis at most once", [&](ts::Device& d) {
    d.all_gather(t, {"x", "x"});
  });
  all_throw("all_reduce: no axis given; name at least one",
            [&](ts::Device& d) { d.all_reduce(t, std::vector<std::string>()); });
  all_throw("all_gather: dimension 1 is outside shape [3]",
            [&](ts::Device& d) { d.all_gather(t, "x", 1); });
  all_throw("all_gather: the tensor is empty (default-constructed); give one with a shape",
            [&](ts::Device& d) { d.all_gather(ts::Tensor(), "x"); });
  all_throw(
      "reduce_scatter: dimension 0 of [3] over 4 devices of x; its size must be a multiple "
      "of 4",
      [&](ts::Device& d) { d.reduce_scatter(t, "x"); });
  all_throw("all_to_all: dimension 0 of [3] over 4 devices of x; its size must be a multiple of 4",
            [&](ts::Device& d) { d.all_to_all(t, "x", 0, 0); });
  all_throw("scatter: dimension 0 of [3] over 4 devices of x; its size must be a multiple of 4",
            [&](ts::Device& d) { d.scatter(t, "x", 0); });
  all_throw("shard: dimension 0 of [3] over 8 devices of x,y; its size must be a multiple of 8",
            [&](ts::Device& d) {
              d.shard(t, {"x", "y"}, 0);
            });
  all_throw("broadcast: root 2 of 2 devices; the root is 0 to 1",
            [&](ts::Device& d) { d.broadcast(t, "y", 2); });
  all_throw("gather: root -1 of 2 devices; the root is 0 to 1",
            [&](ts::Device& d) { d.gather(t, "y", -1); });
  all_throw(
      "all_to_all: 2 counts that add up to 4 for a tensor [3] over 2 devices; one count of 0 to "
      "2^24 for each, together dimension 0, is right",
      [&](ts::Device& d) {
        d.all_to_all(t, "y", std::vector<std::int64_t>{1, 3});
      });
  all_throw(
      "all_to_all: 2 counts that add up to 9.22337204e+18 for a tensor [3] over 2 devices; one "
      "count of 0 to 2^24 for each, together dimension 0, is right",
      [&](ts::Device& d) {
        d.all_to_all(t, "y", std::vector<std::int64_t>(2, std::int64_t{1} << 62));
      });
  CHECK(fault(row_mesh(1), [&](ts::Device& d) { d.send(t, 0); }) ==
        "mesh.run: device 0 threw: send: device 0 names device 0; it is alone on its mesh\n"
        "  device 0: threw after 0 calls: send: device 0 names device 0; it is alone on its mesh");
  ts::CollectiveSchedule wrong;
  wrong.name = "mine";
  CHECK(
      fault(mesh,
            [&](ts::Device& d) {
              ts::CollectiveOptions own;
              own.schedule = &wrong;
              d.all_reduce(t, "x", ts::Reduce::sum, own);
            })
          .find("all_reduce: schedule mine is all_gather over 1 devices in 1 chunks, root 0; right "
                "is all_reduce over 4 devices in a multiple of 1 chunks, root 0") !=
      std::string::npos);
  const ts::MeshRun run = mesh.run([&](ts::Device& d) { d.keep("t", t); });
  CHECK(error_of([&] { run.kept(0, "u"); }) == "kept: device 0 kept nothing named u; it kept t");
  CHECK(error_of([&] { run.kept(8, "t"); }) == "kept: rank 8 of 8 devices; ranks are 0 to 7");
}

TEST_CASE("nothing hangs: the error says where each device stands") {
  const ts::Mesh mesh = row_mesh(3);
  const ts::Tensor t = ts::zeros({4});
  CHECK(error_of([&] {
          mesh.run([&](ts::Device& d) { d.recv((d.rank() + 1) % 3); });
        }).find("  device 0: call 1, recv(from 1) at mesh_test.cpp:") != std::string::npos);
  CHECK(fault(mesh, [&](ts::Device& d) { d.recv((d.rank() + 1) % 3); }) ==
        "mesh.run: deadlock: every device waits and nothing can arrive\n"
        "  device 0: call 1, recv(from 1): waits for a message from device 1\n"
        "  device 1: call 1, recv(from 2): waits for a message from device 2\n"
        "  device 2: call 1, recv(from 0): waits for a message from device 0");
  CHECK(fault(mesh,
              [&](ts::Device& d) {
                if (d.rank() == 1) {
                  throw ts::Error("boom");
                }
                d.all_gather(t, "x");
              }) ==
        "mesh.run: device 1 threw: boom\n"
        "  devices 0, 2: call 1, all_gather([4], dim 0, x): waits for device 1 to call it\n"
        "  device 1: threw after 0 calls: boom");
  CHECK(fault(mesh,
              [&](ts::Device& d) {
                d.barrier();
                if (d.rank() == 2) {
                  return;
                }
                d.all_reduce(t, "x");
              }) ==
        "mesh.run: device 2 returned while others wait\n"
        "  devices 0, 1: call 2, all_reduce([4], sum, x): waits for device 2 to call it\n"
        "  device 2: returned after 1 call");
  CHECK(fault(mesh,
              [&](ts::Device& d) {
                if (d.rank() == 0) {
                  d.all_gather(t, "x");
                } else {
                  d.all_reduce(t, "x", ts::Reduce::max);
                }
              }) ==
        "mesh.run: devices 0-2 must make the same call and do not\n"
        "  device 0: call 1, all_gather([4], dim 0, x): its peers call something else\n"
        "  devices 1, 2: call 1, all_reduce([4], max, x): its peers call something else");
  CHECK(fault(mesh, [&](ts::Device& d) { d.all_gather(ts::zeros({d.rank() / 2 + 1}), "x"); }) ==
        "mesh.run: devices 0-2 must make the same call and do not\n"
        "  devices 0, 1: call 1, all_gather([1], dim 0, x): its peers call something else\n"
        "  device 2: call 1, all_gather([2], dim 0, x): its peers call something else");
  CHECK(fault(mesh,
              [&](ts::Device& d) {
                ts::CollectiveOptions options;
                options.format = d.rank() == 1 ? ts::DType::bf16 : ts::DType::f32;
                d.all_reduce(t, "x", ts::Reduce::sum, options);
              }) ==
        "mesh.run: devices 0-2 must make the same call and do not\n"
        "  devices 0, 2: call 1, all_reduce([4], sum, x): its peers call something else\n"
        "  device 1: call 1, all_reduce([4], sum, bf16, x): its peers call something else");
  CHECK(
      fault(mesh,
            [&](ts::Device& d) {
              ts::Pending sum = d.start_all_reduce(t, "x");
              d.barrier();
              if (d.rank() != 1) {
                d.start_permute(t, "x", 1);
              }
              sum.wait();
            }) ==
      "mesh.run: a collective was started that device 1 never called\n"
      "  devices 0, 2: returned after 3 calls; started call 3, permute([4], shift 1, x): waits for "
      "device 1 to call it\n"
      "  device 1: returned after 2 calls");
  CHECK(fault(mesh,
              [&](ts::Device& d) {
                d.rank() == 0 ? d.start_all_gather(t, "x") : d.start_all_reduce(t, "x");
              }) ==
        "mesh.run: devices 0-2 must make the same call and do not\n"
        "  device 0: returned after 1 call; started call 1, all_gather([4], dim 0, x): its peers "
        "call something else\n"
        "  devices 1, 2: returned after 1 call; started call 1, all_reduce([4], sum, x): its peers "
        "call something else");
  CHECK(fault(mesh,
              [&](ts::Device& d) {
                for (int i = 0; i < 5 && d.rank() != 1; ++i) {
                  d.start_all_reduce(t, "x");
                }
                if (d.rank() == 0) {
                  d.recv(1);
                }
              }) ==
        "mesh.run: devices 1, 2 returned while others wait\n"
        "  device 0: call 6, recv(from 1): waits for a message from device 1"
        "; started call 1, all_reduce([4], sum, x): waits for device 1 to call it"
        "; started call 2, all_reduce([4], sum, x): waits for device 1 to call it"
        "; started call 3, all_reduce([4], sum, x): waits for device 1 to call it"
        "; 2 more started\n"
        "  device 1: returned after 0 calls\n"
        "  device 2: returned after 5 calls"
        "; started call 1, all_reduce([4], sum, x): waits for device 1 to call it"
        "; started call 2, all_reduce([4], sum, x): waits for device 1 to call it"
        "; started call 3, all_reduce([4], sum, x): waits for device 1 to call it"
        "; 2 more started");
  CHECK(fault(mesh,
              [&](ts::Device& d) {
                if (d.rank() == 0) {
                  d.send(t, 1);
                }
              }) ==
        "mesh.run: messages were sent that nobody received\n"
        "  device 0: returned after 1 call\n"
        "  device 1: returned after 0 calls; 1 message from device 0 not received, sent\n"
        "  device 2: returned after 0 calls");
  const int line = __LINE__ + 2;  // of the first send
  const auto sends = [&](ts::Device& d) {
    d.send(t, (d.rank() + 2) % 3);
    d.send(t, (d.rank() + 2) % 3);
    d.rank() == 2 ? d.recv(0) : t;
  };
  const auto told = [&](int device, int calls, const char* messages, int from, const char* sent,
                        int at) {
    return ts::detail::cat({"\n  device ", device, ": returned after ", calls, " calls; ", messages,
                            " from device ", from, " not received, ", sent,
                            " at mesh_test.cpp:", at});
  };
  CHECK(error_of([&] { mesh.run(sends); }) ==
        "mesh.run: messages were sent that nobody received" +
            told(0, 2, "2 messages", 1, "the first sent", line) +
            told(1, 2, "2 messages", 2, "the first sent", line) +
            told(2, 3, "1 message", 0, "sent", line + 1));
  CHECK(fault(mesh,
              [&](ts::Device& d) {
                if (d.rank() == 0) {
                  throw 7;
                }
              }) ==
        "mesh.run: device 0 threw: something that is not a std::exception\n"
        "  device 0: threw after 0 calls: something that is not a std::exception\n"
        "  devices 1, 2: returned after 0 calls");
  mesh.run([&](ts::Device& d) { d.all_gather(t, "x"); });  // a mesh is good after a failure
}

// How the error of a thousand random programs must begin, which call 0 to 6 (`seed`) and in the end
// all_reduce over all: of 2 by 3 devices the culprit does something else before call `when`.
static std::string expected_cause(std::uint64_t seed, int culprit, std::uint64_t when,
                                  std::uint64_t how) {
  const auto call = [&](std::uint64_t i) { return i < 5 ? ts::random_below(seed, 10 + i, 7) : 0; };
  const auto over = [&](std::uint64_t i) { return "ayxyxyx"[call(i)]; };  // all, y or x
  const auto unlike = [&](char axes) {
    const std::string devices = axes == 'a' ? "0-5"
                                : axes == 'y'
                                    ? (culprit < 3 ? "0-2" : "3-5")
                                    : ts::detail::cat({culprit % 3, ", ", culprit % 3 + 3});
    return "devices " + devices + " must make the same call and do not\n";
  };
  const std::string deadlock = "deadlock: every device waits and nothing can arrive\n";
  switch (how) {
    case 0: return ts::detail::cat({"device ", culprit, " threw: fault\n"});
    case 1: return ts::detail::cat({"device ", culprit, " returned while others wait\n"});
    case 2:
    case 5:  // over y: its two peers come there by calls over x, which do not need the culprit
      while (over(when) == 'x') {
        ++when;
      }
      return over(when) == 'y' ? unlike('y') : deadlock;
    case 3: return deadlock;
    case 4:
    case 7: return over(when) == 'a' ? unlike('a') : deadlock;
    case 6:
      while (call(when) == 6) {  // does not use what became of another shape
        ++when;
      }
      return unlike(over(when));
    default: return "messages were sent that nobody received";
  }
}

TEST_CASE("a thousand random programs with a fault each end in its error, the same twice [slow]") {
  const ts::Tensor start = ts::full({6}, 1.0f);
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    ts::Mesh mesh(ts::machine("tpu-v5e", {2, 3}), {{"x", 2}, {"y", 3}});
    mesh.runnable = static_cast<int>(ts::random_below(seed, 3, 5));
    mesh.runnable = mesh.runnable == 4 ? 6 : mesh.runnable;  // each on a thread of its own
    const int culprit = static_cast<int>(ts::random_below(seed, 0, 6));
    const std::uint64_t when = ts::random_below(seed, 1, 5);
    const std::uint64_t how = ts::random_below(seed, 2, 9);
    const auto program = [&](ts::Device& d) {
      ts::Tensor t = start;
      for (std::uint64_t i = 0; i < 5; ++i) {
        if (i == when && d.rank() == culprit) {
          switch (how) {
            case 0: throw ts::Error("fault");
            case 1: return;
            case 2: d.all_reduce(t, "y", ts::Reduce::max); break;
            case 3: d.recv((culprit + 1) % 6); break;
            case 4: d.barrier(); break;
            case 5: d.broadcast(t, "y", 2); break;
            case 6: t = ts::full({3}, 1.0f); break;
            case 7: d.all_gather(t, {"y", "x"}); break;
            default: d.send(t, (culprit + 1) % 6); break;
          }
        }
        switch (ts::random_below(seed, 10 + i, 7)) {
          case 0: t = d.all_reduce(t, {"x", "y"}); break;
          case 1: d.all_gather(t, "y"); break;
          case 2: d.broadcast(t, "x", 1); break;
          case 3: d.permute(t, "y", 1); break;
          case 4: d.start_all_gather(t, "x").wait(); break;
          case 5: d.reduce(t, "y", 1); break;
          default: d.reduce_scatter(ts::zeros({6}), "x"); break;
        }
      }
      d.all_reduce(t, {"x", "y"});
    };
    const std::string text = fault(mesh, program);
    CAPTURE(seed);
    CAPTURE(how);
    CHECK(text.find("mesh.run: " + expected_cause(seed, culprit, when, how)) == 0);
    CHECK(text.find(ts::detail::cat({"device ", culprit})) != std::string::npos);
    if (seed % 4 == 0) {
      CHECK(fault(mesh, program) == text);
    }
  }
}

TEST_CASE("gradients through every collective against central differences") {
  // The loss: what is used apart counts on every device, what all_reduce gave once. Each device has
  // parameters of its own; the sum of all losses is differentiated.
  struct Case {
    const char* name;
    bool alike;  // the result is used alike on all devices: the loss counts once
    std::function<ts::Tensor(ts::Device&, const ts::Tensor&)> call;
  };
  const std::vector<Case> cases = {
      {"all_gather", false,
       [](ts::Device& d, const ts::Tensor& t) { return d.all_gather(t, "x", 1); }},
      {"all_gather used alike", true,
       [](ts::Device& d, const ts::Tensor& t) {
         ts::CollectiveOptions options;
         options.used_alike = true;
         return d.all_gather(t, "x", 1, options);
       }},
      {"reduce_scatter", false,
       [](ts::Device& d, const ts::Tensor& t) { return d.reduce_scatter(t, "x", 1); }},
      {"reduce_scatter mean", false,
       [](ts::Device& d, const ts::Tensor& t) {
         return d.reduce_scatter(t, "x", 1, ts::Reduce::mean);
       }},
      {"reduce_scatter max", false,
       [](ts::Device& d, const ts::Tensor& t) {
         return d.reduce_scatter(t, "x", 1, ts::Reduce::max);
       }},
      {"all_reduce", true, [](ts::Device& d, const ts::Tensor& t) { return d.all_reduce(t, "x"); }},
      {"all_reduce mean", true,
       [](ts::Device& d, const ts::Tensor& t) { return d.all_reduce(t, "x", ts::Reduce::mean); }},
      {"all_reduce min", true,
       [](ts::Device& d, const ts::Tensor& t) { return d.all_reduce(t, "x", ts::Reduce::min); }},
      {"all_to_all", false,
       [](ts::Device& d, const ts::Tensor& t) { return d.all_to_all(t, "x", 1, 0); }},
      {"broadcast", false,
       [](ts::Device& d, const ts::Tensor& t) { return d.broadcast(t, "x", 1); }},
      {"reduce", false, [](ts::Device& d, const ts::Tensor& t) { return d.reduce(t, "x", 2); }},
      {"reduce mean", false,
       [](ts::Device& d, const ts::Tensor& t) { return d.reduce(t, "x", 2, ts::Reduce::mean); }},
      {"reduce max", false,
       [](ts::Device& d, const ts::Tensor& t) { return d.reduce(t, "x", 0, ts::Reduce::max); }},
      {"gather", false, [](ts::Device& d, const ts::Tensor& t) { return d.gather(t, "x", 1, 1); }},
      {"scatter", false,
       [](ts::Device& d, const ts::Tensor& t) { return d.scatter(t, "x", 1, 1); }},
      {"permute", false, [](ts::Device& d, const ts::Tensor& t) { return d.permute(t, "x", 2); }},
      {"replicate", false, [](ts::Device& d, const ts::Tensor& t) { return d.replicate(t, "x"); }},
  };
  const ts::Shape shape = {2, 3};
  for (const Case& one : cases) {
    CAPTURE(one.name);
    const bool replicated = std::string(one.name) == "replicate";  // all devices hold one tensor
    // Sum of the losses when element `at` of device `which` is moved by `by`.
    const auto loss = [&](int which, std::int64_t at, float by, std::vector<ts::Tensor>* grads) {
      const ts::MeshRun run = row_mesh(3).run([&](ts::Device& d) {
        ts::Tensor value = numbers(replicated ? 0 : d.rank(), shape);
        if (d.rank() == which || (replicated && which >= 0)) {
          value.data()[at] += by;
        }
        const ts::Tensor t = ts::parameter(value);
        const ts::Tensor y = one.call(d, t);
        const float weight = one.alike ? 1.0f : static_cast<float>(d.rank() + 1);
        const ts::Tensor l = ts::sum(ts::square(y) * weight);
        d.keep("loss", l);
        if (grads != nullptr) {
          l.backward();
          d.keep("grad", t.grad());
        }
      });
      double sum = 0;
      for (int rank = 0; rank < 3; ++rank) {
        sum += one.alike && rank > 0 ? 0.0 : static_cast<double>(run.kept(rank, "loss").item());
        if (grads != nullptr) {
          grads->push_back(run.kept(rank, "grad"));
        }
      }
      return sum;
    };
    std::vector<ts::Tensor> grads;
    loss(-1, 0, 0, &grads);
    constexpr float h = 1.0f / 64;
    for (int rank = 0; rank < (replicated ? 1 : 3); ++rank) {
      for (std::int64_t i = 0; i < 6; ++i) {
        const double slope = (loss(rank, i, h, nullptr) - loss(rank, i, -h, nullptr)) / (2.0 * h);
        const double got = grads[static_cast<std::size_t>(rank)].data()[i];
        // Squares: central differences are exact but for rounding of sums below 64, over 2 h.
        CHECK(std::abs(slope - got) <= 64 * 0x1p-20 / h);
      }
    }
  }
}

TEST_CASE("gradients of max and min where devices tie are those of one device") {
  for (int n = 2; n <= 5; ++n) {
    CAPTURE(n);
    ts::Tensor x({3 * n, 2 * n}), weights({2 * n});
    for (std::int64_t i = 0; i < x.count(); ++i) {
      x.data()[i] = static_cast<float>(ts::random_below(7, static_cast<std::uint64_t>(i), 3));
    }
    for (int i = 0; i < 2 * n; ++i) {
      weights.data()[i] = static_cast<float>(i + 1);
    }
    for (const bool largest : {true, false}) {
      CAPTURE(largest);
      const float sign = largest ? 1.0f : -1.0f;
      const ts::Reduce how = largest ? ts::Reduce::max : ts::Reduce::min;
      const ts::Tensor whole = ts::parameter(x);
      ts::sum(ts::max(whole * sign, 0) * sign * weights).backward();
      for (const char* const name : {"all_reduce", "reduce", "reduce_scatter"}) {
        CAPTURE(name);
        const std::string what = name;
        const ts::MeshRun run = row_mesh(n).run([&](ts::Device& d) {
          ts::CollectiveOptions bf16;
          bf16.format = ts::DType::bf16;
          const ts::Tensor part = ts::parameter(d.shard(x, "x", 0));
          const ts::Tensor own = ts::max(part * sign, 0) * sign;
          if (what == "all_reduce") {
            ts::sum(d.all_reduce(own, "x", how, bf16) * weights).backward();
          } else if (what == "reduce") {
            const ts::Tensor y = d.reduce(own, "x", n - 1, how);
            (d.rank() == n - 1 ? ts::sum(y * weights) : ts::sum(y)).backward();
          } else {
            const ts::Tensor y = d.reduce_scatter(own, "x", 0, how);
            ts::sum(y * d.shard(weights, "x", 0)).backward();
          }
          d.keep("grad", part.grad());
        });
        for (int rank = 0; rank < n; ++rank) {
          CHECK(run.kept(rank, "grad").values() ==
                ts::slice(whole.grad(), 0, 3 * rank, 3 * rank + 3).values());
        }
        CHECK(run.collectives()[run.collectives().size() - 1].arguments ==
              ts::detail::cat({ts::Shape({2 * n}), ", min"}));  // whose turn it is goes as f32
      }
    }
  }
}

TEST_CASE("what would lose a gradient or means nothing is refused") {
  const ts::Tensor t = ts::full({4}, 1.0f);
  const auto sends = [&](ts::Device& d) {
    const ts::Tensor square = ts::square(ts::parameter(t));
    const ts::NoGrad scope;
    d.rank() == 0 ? d.send(square, 1) : d.keep("got", d.recv(0));
  };
  CHECK(row_mesh(2).run(sends).kept(1, "got").values() == t.values());
  CHECK(fault(row_mesh(2), [&](ts::Device& d) { d.send(ts::parameter(t), 1 - d.rank()); })
            .find("threw: send: the tensor [4] carries a gradient, which does "
                  "not come back from the receiver; send detach() of it, or use permute") !=
        std::string::npos);
  CHECK(fault(row_mesh(2),
              [&](ts::Device& d) {
                ts::CollectiveOptions alike;
                alike.used_alike = true;
                d.all_gather(t, "x", 0, alike);
                d.broadcast(t, "x", 0, alike);
              })
            .find("threw: broadcast: used_alike is set, which only all_gather has; "
                  "leave it false") != std::string::npos);
  ts::Mesh mesh = row_mesh(2);
  mesh.runnable = -1;
  CHECK(error_of([&] { mesh.run([](ts::Device&) {}); }) ==
        "Mesh::run: -1 runnable devices; 1 or more are right, or 0, which leaves it to the mesh");
}

#endif  // TINYSCALE_NO_THREADS

#if !defined(TINYSCALE_NO_THREADS)  // several devices
TEST_CASE("what a device keeps stays as it was") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2}), {{"x", 2}});
  const ts::MeshRun run = mesh.run([](ts::Device& d) {
    const ts::Tensor w = ts::ones({2});
    d.keep("before", w);
    ts::add_(w, ts::ones({2}));
    d.keep("after", w);
  });
  CHECK(run.kept(1, "before").values() == std::vector<float>{1, 1});
  CHECK(run.kept(1, "after").values() == std::vector<float>{2, 2});
  CHECK(fault(mesh, [](ts::Device& d) { d.keep("nothing", ts::Tensor()); }) ==
        "mesh.run: devices 0, 1 threw: keep: the tensor is empty (default-constructed); give one "
        "with a shape\n  devices 0, 1: threw after 0 calls: keep: the tensor is empty "
        "(default-constructed); give one with a shape");
}

TEST_CASE("devices that give a ragged all_to_all other shapes are told so") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2}), {{"x", 2}});
  const std::string error = error_of([&] {
    mesh.run([](ts::Device& d) {
      const std::vector<std::int64_t> rows = {1, 1};
      d.all_to_all(ts::ones({2, 2 + d.rank()}), "x", rows);
    });
  });
  CHECK(error.find("all_to_all([1, 2], ragged, x)") != std::string::npos);
  CHECK(error.find("dim 0 to -1") == std::string::npos);
}
#endif

#if !defined(TINYSCALE_NO_THREADS)
TEST_CASE("a collective that is started and dropped keeps no memory, and its error is thrown") {
  const ts::Mesh mesh(ts::machine("h100", {1, 2}), {{"x", 2}});
  const double bytes = 4.0 * (1 << 12);
  mesh.run([&](ts::Device& d) {
    for (int i = 0; i < 50; ++i) {
      d.start_all_reduce(ts::ones({1 << 12}), "x");
      d.barrier();  // when it is done, the one before it is
    }
    CHECK(ts::context().memory->current_total() < 5 * bytes);
    CHECK(ts::context().memory->peak_total() < 10 * bytes);
  });
  // When it lets go depends on the program, not on how threads were scheduled.
  const ts::Mesh two_axes(ts::machine("h100", {2, 2}), {{"x", 2}, {"y", 2}});
  for (int times = 0; times < 50; ++times) {
    const ts::MeshRun run = two_axes.run([](ts::Device& d) {
      d.task(0);
      d.start_all_reduce(ts::ones({1 << 12}), "x");
      d.all_reduce(ts::ones({4}), "x");
      d.all_reduce(ts::ones({4}), "y");
      d.task(1);
    });
    for (int rank = 0; rank < 4; ++rank) {
      const ts::MemorySample then = run.memory_samples(rank)[1];
      CHECK(std::accumulate(then.levels.begin(), then.levels.end(), 0.0) == 0);
      CHECK(then.peak_total == run.memory_samples(0)[1].peak_total);
    }
  }
  ts::CollectiveSchedule wrong;
  wrong.name = "mine";
  wrong.what = ts::Collective::all_gather;
  wrong.devices = wrong.chunks = 3;
  const std::string error = error_of([&] {
    mesh.run([&](ts::Device& d) {
      ts::CollectiveOptions own;
      own.schedule = &wrong;
      d.start_all_gather(ts::ones({4}), "x", 0, own);
      d.barrier();
    });
  });
  CHECK(error.find("all_gather: schedule mine is all_gather over 3 devices") != std::string::npos);
  CHECK(error.find("threw in the wait for call 1, all_gather([4], dim 0, by mine, x)") <
        error.size());
  CHECK(
      fault(mesh,
            [&](ts::Device& d) {
              ts::CollectiveOptions own;
              own.schedule = &wrong;
              d.start_all_gather(ts::ones({4}), "x", 0, own);  // and no later call of its group
            })
          .find("mesh.run: a collective that was started and dropped failed: all_gather: schedule "
                "mine is all_gather over 3 devices") == 0);
  CHECK(fault(mesh,
              [](ts::Device& d) {
                d.start_all_reduce(ts::ones({4 + d.rank()}), "x");
                d.barrier();
              }) ==
        "mesh.run: devices 0, 1 must make the same call and do not\n  device 0: the wait for call "
        "1, all_reduce([4], sum, x): its peers call something else\n  device 1: the wait for call "
        "1, all_reduce([5], sum, x): its peers call something else");
}
TEST_CASE("mesh: more axes than a shape has dims, custom without a schedule") {
  ts::List<ts::MeshAxis> axes;
  for (const char* const name : {"a", "b", "c", "d", "e", "f", "g", "h", "i"}) {
    axes.push_back({name, 1});
  }
  CHECK(error_of([&] { ts::Mesh(ts::machine("tpu-v5e", {1}), axes); }) ==
        "Mesh: 9 axes, a, b, c, d, e, f, g, h, i; at most 8");
  ts::Mesh mesh = row_mesh(2);
  const auto sum = [](ts::Device& d) { d.all_reduce(ts::ones({4}), "x"); };
  mesh.algorithm = ts::Algorithm::custom;
  const std::string told =
      ": mesh.algorithm is custom, which is a schedule for one collective; give it to the call, in "
      "CollectiveOptions::schedule";
  CHECK(error_of([&] { mesh.run(sum); }) == "Mesh::run" + told);
  CHECK(error_of([&] { mesh.predict(sum); }) == "Mesh::predict" + told);
  CHECK(error_of([] {
          row_mesh(2).predict([](ts::Device& d) {
            ts::CollectiveOptions options;
            options.algorithm = ts::Algorithm::custom;
            d.all_reduce(ts::ones({4}), "x", ts::Reduce::sum, options);
          });
        }) == "all_reduce: algorithm is custom; options.schedule is to name the schedule");
}

TEST_CASE("mesh: a barrier has no arguments in its line") {
  const ts::MeshRun run = row_mesh(2).run([](ts::Device& d) { d.barrier(); });
  REQUIRE(run.log().lines.size() == 1);
  CHECK(run.log().lines[0] == "barrier(x) #1");
}

TEST_CASE(
    "mesh: what waits for no message is compute, whether messages are kept or there are none") {
  ts::MeshRun alone = row_mesh(1).run([](ts::Device& d) {
    const ts::Tensor a = ts::ones({64, 64});
    d.all_reduce(ts::matmul(a, a), "x");
  });
  CHECK(alone.seconds > 0);
  CHECK(alone.critical_path().compute == alone.seconds);
  ts::Guess guess;
  guess.seconds = 0;
  CHECK(alone.check(guess).text() == "seconds: right.");
  guess.seconds = -1;
  guess.bytes_per_device = 4096;
  CHECK(alone.check(guess).text() == "bytes: you 4096, counted 0: no message was sent");
  guess.bytes_per_device = -1;
  ts::MeshRun two = row_mesh(2).run([](ts::Device& d) { d.all_reduce(ts::ones({64}), "x"); });
  guess.seconds = two.seconds;
  CHECK(two.check(guess).right);
  two.timeline.complete = false;  // as of more than 4 million messages
  two.timeline.messages = ts::List<ts::TimedMessage>();
  for (ts::TimedDevice& device : two.timeline.devices) {
    device.after = -1;
  }
  CHECK(two.critical_path().compute == 0);
  CHECK(two.check(guess).right);  // nothing was computed
  two.timeline.devices[0].compute = 1e-6;
  guess.seconds = 2;
  CHECK(error_of([&] { two.check(guess); }) ==
        "check: the guess is 2 seconds of messages, and the run has too many to be kept one by one "
        "beside its compute; guess bytes and steps alone");
}

TEST_CASE("across dimensions automatic takes about the shortest and says it estimates [many]") {
  const struct {
    const char* machine;
    ts::Shape dims;
    int x, y;
    const char* axis;
  } meshes[] = {{"tpu-v5e", {2, 9}, 3, 6, "y"},
                {"tpu-v5e", {2, 9}, 3, 6, "x"},
                {"tpu-v5p", {3, 5}, 5, 3, "x"},
                {"mi300x", {2, 6}, 3, 4, "y"}};
  for (const auto& m : meshes) {
    ts::Mesh mesh(ts::machine(m.machine, m.dims), {{"x", m.x}, {"y", m.y}});
    for (const std::int64_t elements : {120, 24000, 240000}) {
      for (const bool sums : {true, false}) {
        double shortest = 1e9, taken = 0;
        for (const ts::Algorithm how :
             {ts::Algorithm::automatic, ts::Algorithm::ring, ts::Algorithm::ring_both_ways,
              ts::Algorithm::line, ts::Algorithm::halving_doubling, ts::Algorithm::direct}) {
          const ts::MeshRun run = mesh.run([&](ts::Device& d) {
            ts::CollectiveOptions options;
            options.algorithm = how;
            const ts::Tensor x = ts::ones({elements});
            sums ? d.all_reduce(x, m.axis, ts::Reduce::sum, options)
                 : d.all_gather(x, m.axis, 0, options);
          });
          shortest = std::fmin(shortest, run.seconds);
          if (how == ts::Algorithm::automatic) {
            taken = run.seconds;
            const std::string reason = run.collectives()[0].reason;
            CAPTURE(reason);
            CHECK(reason.find(" about ") < reason.find(';'));
          }
        }
        CAPTURE(m.machine);
        CAPTURE(m.axis);
        CAPTURE(elements);
        CHECK(taken <= 1.3 * shortest);
      }
    }
  }
}

#endif
