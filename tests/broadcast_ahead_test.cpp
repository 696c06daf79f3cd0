#include <doctest/doctest.h>

#include "error_of.hpp"
#include "tinyscale.hpp"

#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace ts = tinyscale;

#if !defined(TINYSCALE_NO_THREADS)

// The root of a small broadcast that it has made before leaves its numbers and goes on.

namespace {

ts::Mesh row_mesh(int n, int runnable = 0) {
  ts::Mesh mesh(ts::machine("tpu-v5e", {n}), {{"x", n}});
  mesh.runnable = runnable;
  return mesh;
}

// Errors name the calls' lines; these are all one.
const ts::SourceLine here = {"program", 1};

ts::Tensor from_root(ts::Device& d, const ts::Tensor& t, int root = 0) {
  return d.broadcast(t, "x", root, {}, here);
}

void be_late() { std::this_thread::sleep_for(std::chrono::microseconds(300)); }

}  // namespace

TEST_CASE("a root that goes on: others get the numbers as they were, and time is as if it waited") {
  constexpr int calls = 40;
  for (const ts::DType format : {ts::DType::f32, ts::DType::bf16}) {
    for (const int n : {2, 3, 5, 8}) {
      for (const int root : {0, n - 1}) {
        ts::CollectiveOptions options;
        options.format = format;
        // Calls from lines of their own are first calls, for which all wait.
        const auto program = [&](ts::Device& d, bool one_line) {
          ts::Tensor mine = ts::full({5}, 100.0f * static_cast<float>(d.rank()));
          for (int i = 0; i < calls; ++i) {
            if (d.rank() != root && i % 13 == d.rank()) {
              be_late();
            }
            mine.data()[i % 5] += 0.1f;
            const ts::SourceLine line = {"program", one_line ? 1 : i + 1};
            d.keep("got " + std::to_string(i), d.broadcast(mine, "x", root, options, line));
          }
        };
        const auto run_with = [&](int runnable, bool one_line) {
          return row_mesh(n, runnable).run([&](ts::Device& d) { program(d, one_line); });
        };
        const ts::MeshRun ahead = run_with(0, true), baton = run_with(1, true);
        const ts::MeshRun waited = run_with(0, false);
        CHECK(ahead.seconds == waited.seconds);
        CHECK(ahead.seconds == baton.seconds);
        CHECK(ahead.log().lines == waited.log().lines);
        CHECK(ahead.log().calls.size() == calls);
        std::vector<float> now(5, 100.0f * static_cast<float>(root));
        for (int i = 0; i < calls; ++i) {
          now[static_cast<std::size_t>(i % 5)] += 0.1f;
          std::vector<float> sent = now;
          for (float& value : sent) {
            value = ts::round_to(value, format);
          }
          for (int rank = 0; rank < n; ++rank) {
            const std::string name = "got " + std::to_string(i);
            CHECK(ahead.kept(rank, name).values() == sent);
            CHECK(baton.kept(rank, name).values() == sent);
            CHECK(waited.kept(rank, name).values() == sent);
          }
        }
        for (int rank = 0; rank < n; ++rank) {
          CHECK(ahead.bytes_sent(rank) == waited.bytes_sent(rank));
        }
      }
    }
  }
}

TEST_CASE("a root that goes on: among other calls, started ones, of several groups and sizes") {
  ts::Mesh mesh(ts::machine("tpu-v5e", {2, 4}), {{"x", 2}, {"y", 4}});
  const ts::MeshRun run = mesh.run([](ts::Device& d) {
    float sum = 0;
    for (int i = 0; i < 60; ++i) {
      const float mine = static_cast<float>(10 * d.rank() + i % 7);
      const std::int64_t count = i % 5 == 4 ? 5000 : 1 + i % 2;  // too many to go on, few
      ts::Pending x = d.start_broadcast(ts::full({count}, mine), "x", i % 2);
      ts::Pending y = d.start_broadcast(ts::full({count}, mine), "y", i % 4);
      if (i % 6 == 5) {
        sum += d.all_reduce(ts::full({1}, mine), {"x", "y"}).item();
      }
      const bool y_first = (i + d.rank()) % 2 == 0;
      const ts::Tensor one = y_first ? y.wait() : x.wait();
      const ts::Tensor other = y_first ? x.wait() : y.wait();
      const float from_x = (y_first ? other : one).data()[0];
      const float from_y = (y_first ? one : other).data()[0];
      const int x_root = i % 2 * 4 + d.rank() % 4, y_root = d.rank() / 4 * 4 + i % 4;
      d.keep("right " + std::to_string(i),
             ts::full({1}, from_x == static_cast<float>(10 * x_root + i % 7) &&
                                   from_y == static_cast<float>(10 * y_root + i % 7)
                               ? 1.0f
                               : 0.0f));
    }
    d.keep("sum", ts::full({1}, sum));
  });
  for (int rank = 0; rank < 8; ++rank) {
    for (int i = 0; i < 60; ++i) {
      CHECK(run.kept(rank, "right " + std::to_string(i)).item() == 1);
    }
    CHECK(run.kept(rank, "sum").item() == run.kept(0, "sum").item());
  }
}

TEST_CASE("a root that goes on: gradients come back to it at every call") {
  const ts::MeshRun run = row_mesh(3).run([](ts::Device& d) {
    const ts::Tensor w = ts::parameter(ts::full({2}, 1.0f + static_cast<float>(d.rank())));
    for (int i = 0; i < 5; ++i) {
      ts::sum(ts::scale(from_root(d, w, 1), static_cast<float>(d.rank() + i))).backward();
    }
    d.keep("grad", w.grad());
  });
  // Of device 1: the sum over devices and calls of rank + i. The others gave nothing.
  CHECK(run.kept(1, "grad").values() == std::vector<float>{45, 45});
  CHECK(run.kept(0, "grad").values() == std::vector<float>{0, 0});
  CHECK(run.kept(2, "grad").values() == std::vector<float>{0, 0});
}

TEST_CASE("a root that went on: errors say which of its calls are open") {
  const ts::Mesh mesh = row_mesh(3);
  const ts::Tensor t = ts::zeros({4});
  const auto error = [&](const ts::DeviceProgram& program) {
    const std::string text = error_of([&] { mesh.run(program); });
    CHECK(error_of([&] { mesh.run(program); }) == text);
    return text;
  };
  const std::string call = "broadcast([4], root 0, x) at program:1: ";
  CHECK(error([&](ts::Device& d) {
          for (int i = 0; i < (d.rank() == 2 ? 1 : 3); ++i) {
            from_root(d, t);
          }
        }) ==
        "mesh.run: a collective was started that device 2 never called\n"
        "  device 0: returned after 3 calls; started call 2, " +
            call + "waits for device 2 to call it; started call 3, " + call +
            "waits for device 2 to call it\n"
            "  device 1: returned after 3 calls\n"
            "  device 2: returned after 1 call");
  CHECK(error([&](ts::Device& d) {
          for (int i = 0; i < 3; ++i) {
            if (i == 1 && d.rank() == 2) {
              be_late();
              d.all_reduce(t, "x", ts::Reduce::sum, {}, here);
            }
            from_root(d, t);
          }
        }) ==
        "mesh.run: devices 0-2 must make the same call and do not\n"
        "  device 0: returned after 3 calls; started call 2, " +
            call + "its peers call something else; started call 3, " + call +
            "waits for device 2 to call it\n"
            "  device 1: returned after 3 calls\n"
            "  device 2: call 2, all_reduce([4], sum, x) at program:1: its peers call something "
            "else");
  CHECK(error([&](ts::Device& d) {  // who came before the root does not agree
          for (int i = 0; i < 2; ++i) {
            if (i == 1 && d.rank() == 0) {
              be_late();
            }
            from_root(d, i == 1 && d.rank() == 1 ? ts::zeros({5000}) : t);
          }
        }) ==
        "mesh.run: devices 0-2 must make the same call and do not\n"
        "  device 0: returned after 2 calls; started call 2, " +
            call +
            "its peers call something else\n"
            "  device 1: call 2, broadcast([5000], root 0, x) at program:1: its peers call "
            "something else\n"
            "  device 2: returned after 2 calls");
  CHECK(error([&](ts::Device& d) {  // nobody waits for what differs
          from_root(d, t);
          if (d.rank() == 1) {
            d.start_broadcast(ts::zeros({3}), "x", 0, {}, here);
          } else {
            from_root(d, t);
          }
        }) ==
        "mesh.run: devices 0-2 must make the same call and do not\n"
        "  device 0: returned after 2 calls; started call 2, " +
            call +
            "its peers call something else\n"
            "  device 1: returned after 2 calls; started call 2, broadcast([3], root 0, x) at "
            "program:1: its peers call something else\n"
            "  device 2: returned after 2 calls");
  CHECK(error([&](ts::Device& d) {
          for (int i = 0; i < 3; ++i) {
            if (i == 2 && d.rank() == 1) {
              throw ts::Error("boom");
            }
            from_root(d, t);
          }
          d.barrier({}, here);
        }) ==
        "mesh.run: device 1 threw: boom\n"
        "  device 0: call 4, barrier(x) at program:1: waits for device 1 to call it; started call "
        "3, " +
            call +
            "waits for device 1 to call it\n"
            "  device 1: threw after 2 calls: boom\n"
            "  device 2: call 4, barrier(x) at program:1: waits for device 1 to call it");
}

TEST_CASE("a root goes on no more than 16 times in a row") {
  const ts::Tensor t = ts::zeros({4});
  const std::string text = error_of([&] {
    row_mesh(2).run([&](ts::Device& d) {
      for (int i = 0; i < (d.rank() == 1 ? 1 : 40); ++i) {
        from_root(d, t);
      }
    });
  });
  // The first call met the other, sixteen did not, at the next the root waits.
  CHECK(text.find("mesh.run: device 1 returned while others wait\n"
                  "  device 0: call 18, broadcast([4], root 0, x) at program:1: waits for device 1 "
                  "to call it; started call 2, ") == 0);
  CHECK(text.find("; 13 more started\n  device 1: returned after 1 call") != std::string::npos);
}

TEST_CASE("a program that needs a root not to wait is told so by its time") {
  CHECK(error_of([&] {
          row_mesh(2).run([](ts::Device& d) {
            const ts::Tensor t = ts::zeros({4});
            from_root(d, t);
            if (d.rank() == 0) {
              from_root(d, t);
              d.send(t, 1);
            } else {
              d.recv(0);
              from_root(d, t);
            }
          });
        }) ==
        "time: device 0 waits in broadcast([4], root 0, x) #2, device 1 waits in send #1 (0 -> 1); "
        "each waits for another, none can go on");
}

#endif
