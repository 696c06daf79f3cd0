#include <doctest/doctest.h>

#include "error_of.hpp"
#include "tinyscale.hpp"

#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdlib>  // malloc
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/resource.h>
#endif

namespace ts = tinyscale;

#if !defined(TINYSCALE_NO_THREADS)

namespace {

ts::Mesh row_of(int n) { return ts::Mesh(ts::machine("tpu-v5e", {n}), {{"x", n}}); }

// Devices on 1, 2, 3 and 7 threads that carry them, where there are such, and on their own.
const std::vector<int> threads = {1, 2, 3, 7, 0};

template <class Use>
void on_all(int devices, const Use& use) {
  for (const int carriers : threads) {
    CAPTURE(carriers);
    const ts::ThreadScope scope(carriers > 0 ? carriers : 8);
    ts::Mesh mesh = row_of(devices);
    mesh.runnable = carriers > 0 ? 0 : devices;
    use(mesh);
  }
}

double recursive(int depth, double x) {  // more than 100 bytes of stack each
  volatile double some[16] = {x};
  return depth == 0 ? some[0] : recursive(depth - 1, some[0] + 1) + 0 * some[1];
}

}  // namespace

TEST_CASE("carried devices: the same numbers, log and times on any number of threads") {
  std::string first;
  on_all(8, [&](const ts::Mesh& mesh) {
    const ts::MeshRun run = mesh.run([](ts::Device& d) {
      ts::Tensor t = ts::randn({37}, static_cast<std::uint64_t>(d.rank()));
      for (int i = 0; i < 20; ++i) {
        ts::Pending sum = d.start_all_reduce(t, "x");
        d.send(t, (d.rank() + 3) % 8);
        t = t + d.recv((d.rank() + 5) % 8);
        t = ts::tanh(t + d.permute(t, "x", 1) + sum.wait());
      }
      d.keep("t", t);
    });
    std::string text = run.csv() + run.json() + ts::detail::cat({run.seconds * 1e9});
    for (int rank = 0; rank < 8; ++rank) {
      for (const float value : run.kept(rank, "t").values()) {
        text += ts::detail::cat({" ", value});
      }
    }
    first = first.empty() ? text : first;
    CHECK(text == first);
  });
}

TEST_CASE("carried devices: each has its own scopes") {
  on_all(6, [](const ts::Mesh& mesh) {
    mesh.run([](ts::Device& d) {
      const ts::Tensor w = ts::parameter(ts::ones({2}));
      const ts::ThreadScope limit(d.rank() + 1);
      const int before = ts::thread_count();  // no more than the device may use
      {
        const ts::Profile profile;
        d.barrier();
        for (int i = 0; i <= d.rank(); ++i) {
          static_cast<void>(ts::square(w));
          d.barrier();
        }
        for (int i = d.rank(); i < 6; ++i) {
          d.barrier();
        }
        int squares = 0;
        for (const ts::OpRecord& record : profile.records()) {
          squares += std::string(record.name) == "square" ? 1 : 0;
        }
        CHECK(squares == d.rank() + 1);
      }
      if (d.rank() % 2 == 0) {
        const ts::NoGrad none;
        d.barrier();
        CHECK_FALSE(ts::square(w).requires_grad());
        d.barrier();
      } else {
        d.barrier();
        CHECK(ts::square(w).requires_grad());
        d.barrier();
        CHECK(ts::square(w).requires_grad());
      }
      CHECK(ts::thread_count() == before);
    });
  });
}

TEST_CASE("carried devices: functions that are compiled meet between their ops") {
  on_all(4, [](const ts::Mesh& mesh) {
    mesh.run([](ts::Device& d) {
      ts::Compiled twice = ts::compile([&](const std::vector<ts::Tensor>& in) {
        return std::vector<ts::Tensor>{d.all_reduce(in[0] * 2.0f, "x") + 1.0f};
      });
      for (int i = 0; i < 3; ++i) {
        const ts::Tensor mine = ts::full({3}, static_cast<float>(d.rank() + i));
        CHECK(twice({mine})[0].values() ==
              std::vector<float>(3, 2.0f * static_cast<float>(6 + 4 * i) + 1.0f));
      }
    });
  });
}

TEST_CASE("carried devices: exceptions in the midst of others' exceptions") {
  on_all(5, [](const ts::Mesh& mesh) {
    mesh.run([](ts::Device& d) {
      for (int round = 0; round < 3; ++round) {
        const std::string own = ts::detail::cat({"of ", d.rank(), " in ", round});
        try {
          try {
            throw std::runtime_error(own);
          } catch (const std::runtime_error&) {
            d.barrier();
            try {
              throw ts::Error("inner");
            } catch (const ts::Error& inner) {
              d.barrier();  // each leaves its handlers at another time
              for (int i = 0; i < d.rank(); ++i) {
                d.recv((d.rank() + 4) % 5);
              }
              for (int i = 0; i <= d.rank() && d.rank() < 4; ++i) {
                d.send(ts::ones({1}), d.rank() + 1);
              }
              CHECK(std::string(inner.what()) == "inner");
            }
            CHECK(std::uncaught_exceptions() == 0);
            throw;
          }
        } catch (const std::exception& error) {
          CHECK(error.what() == own);
        }
        CHECK(std::current_exception() == nullptr);
        d.barrier();
      }
    });
  });
}

TEST_CASE("carried devices: stacks as deep as a thread's") {
  on_all(4, [](const ts::Mesh& mesh) {
    mesh.run([](ts::Device& d) {
      d.barrier();
      CHECK(recursive(10000, d.rank()) == 10000 + d.rank());
      d.barrier();
    });
  });
}

TEST_CASE("carried devices: long waits, for messages and at meetings") {
  on_all(5, [](const ts::Mesh& mesh) {
    const ts::MeshRun run = mesh.run([](ts::Device& d) {
      ts::Tensor t = ts::ones({3});
      for (int round = 0; round < 3; ++round) {
        if (d.rank() == round) {
          std::this_thread::sleep_for(std::chrono::milliseconds(3));
        }
        t = d.all_reduce(t, "x");
        if (d.rank() > 0) {
          t = d.recv(d.rank() - 1);
        } else {
          std::this_thread::sleep_for(std::chrono::milliseconds(3));
        }
        if (d.rank() < 4) {
          d.send(t, d.rank() + 1);
        }
      }
      d.keep("t", t);
    });
    CHECK(run.kept(4, "t").values() == std::vector<float>(3, 125.0f));
  });
}

TEST_CASE("carried devices: what fails, and what nobody can meet any more") {
  std::string threw, stuck;
  on_all(8, [&](const ts::Mesh& mesh) {
    const std::string one = error_of([&] {
      mesh.run([](ts::Device& d) {
        if (d.rank() == 5) {
          throw ts::Error("a fault");
        }
        for (int i = 0; i < 50; ++i) {
          d.barrier();
        }
      });
    });
    CHECK(one.find("mesh.run: device 5 threw: a fault") == 0);
    const std::string two = error_of([&] {
      mesh.run([](ts::Device& d) {
        d.barrier();
        d.recv((d.rank() + 1) % 8);
      });
    });
    CHECK(two.find("mesh.run: deadlock: every device waits and nothing can arrive") == 0);
    threw = threw.empty() ? one : threw;
    stuck = stuck.empty() ? two : stuck;
    CHECK(one == threw);
    CHECK(two == stuck);
  });
}

TEST_CASE("carried devices: one that rounds otherwise does so alone") {
  volatile float one = 1, tiny = 1e-10f;
  const auto sum = [&] { return one + tiny; };
  on_all(5, [&](const ts::Mesh& mesh) {
    mesh.run([&](ts::Device& d) {
      if (d.rank() == 1) {
        std::fesetround(FE_UPWARD);
      }
      d.barrier();
      CHECK((sum() > 1.0f) == (d.rank() == 1));
      d.barrier();
      CHECK(std::fegetround() == (d.rank() == 1 ? FE_UPWARD : FE_TONEAREST));
    });
    CHECK(std::fegetround() == FE_TONEAREST);
  });
}

TEST_CASE("carried devices: one calls only its own Device") {
  on_all(3, [](const ts::Mesh& mesh) {
    ts::Device* first = nullptr;
    const std::string text = error_of([&] {
      mesh.run([&](ts::Device& d) {
        if (d.rank() == 0) {
          first = &d;
        }
        d.barrier();
        if (d.rank() == 2) {
          first->barrier();
        }
      });
    });
    CHECK(text.find("device 0 was called by the program of another device, or on another thread") !=
          std::string::npos);
  });
}

TEST_CASE("devices with threads of their own may wait for each other as they like") {
  ts::Mesh mesh = row_of(8);
  mesh.runnable = 8;
  std::atomic<int> turn{0};
  mesh.run([&](ts::Device& d) {
    while (turn.load() != d.rank()) {
      std::this_thread::yield();
    }
    turn.store(d.rank() + 1);
  });
  CHECK(turn.load() == 8);
}

TEST_CASE("a mesh inside a carried device") {
  const ts::ThreadScope two(2);
  const ts::MeshRun run = row_of(4).run([](ts::Device& d) {
    const ts::MeshRun inner = row_of(3).run([&](ts::Device& e) {
      e.keep("n", e.all_reduce(ts::full({1}, static_cast<float>(d.rank() + e.rank())), "x"));
    });
    d.keep("n", d.all_reduce(inner.kept(2, "n"), "x"));
  });
  CHECK(run.kept(3, "n").item() == 30.0f);
}

#if TINYSCALE_FIBERS
TEST_CASE("devices of a stage are on all carriers, and each carrier has its share") {
  const ts::Machine machine = ts::machine("tpu-v5e", {4, 4});
  for (const ts::List<ts::MeshAxis>& axes :
       {ts::List<ts::MeshAxis>{{"x", 4}, {"y", 4}}, ts::List<ts::MeshAxis>{{"x", 2}, {"y", 8}},
        ts::List<ts::MeshAxis>{{"a", 2}, {"b", 2}, {"c", 2}, {"d", 2}}}) {
    const ts::List<ts::AxisPlacement> placed = ts::detail::place_axes(machine, axes);
    const std::vector<std::size_t> on_two = ts::detail::carriers_of(placed, 16, 2);
    for (const ts::AxisPlacement& axis : placed) {
      for (int stage = 0; stage < axis.size; ++stage) {
        int on[2] = {0, 0};
        for (int rank = 0; rank < 16; ++rank) {
          on[on_two[static_cast<std::size_t>(rank)]] +=
              rank / axis.stride % axis.size == stage ? 1 : 0;
        }
        CHECK(on[0] == on[1]);
      }
    }
    for (const std::size_t carriers : {2, 3, 4, 5, 8, 16}) {
      std::vector<std::size_t> counts(carriers, 0);
      for (const std::size_t carrier : ts::detail::carriers_of(placed, 16, carriers)) {
        ++counts[carrier];
      }
      for (const std::size_t count : counts) {
        CHECK(count <= 16 / carriers + 2);
        CHECK(count >= 16 / carriers - 1);
      }
    }
  }
}

namespace {

double virtual_bytes() { return 4096 * ts::detail::system_number("/proc/self/statm"); }

// No more than so many bytes come from the system while it lives.
class MemoryLimit {
 public:
  explicit MemoryLimit(double bytes) {
    getrlimit(RLIMIT_AS, &before_);
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>(virtual_bytes() + bytes);
    setrlimit(RLIMIT_AS, &now);
  }
  ~MemoryLimit() { setrlimit(RLIMIT_AS, &before_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_;
};

std::string error_within(double bytes, const ts::Mesh& mesh) {
  const MemoryLimit limit(bytes);
  return error_of([&] { mesh.run([](ts::Device& d) { d.barrier(); }); });
}

bool limits_hold() {  // an emulator of another processor does not keep them
  const MemoryLimit limit(1e9);
  void* volatile too_much = std::malloc(std::size_t{4} << 30);
  std::free(too_much);
  return too_much == nullptr;
}

}  // namespace

TEST_CASE("stacks or threads that the system does not give are an error, and nothing hangs") {
  if (!limits_hold()) {
    MESSAGE("skipped: memory is not limited here");
    return;
  }
  const double stack = static_cast<double>(ts::detail::FiberStack::bytes);
  const std::string stacks = error_within(100.5 * stack, row_of(200));
  CHECK(stacks.find("mesh.run: the system gives memory for the stacks of ") == 0);
  CHECK(stacks.find(" devices; a mesh can have so many, two memory maps each "
                    "(vm.max_map_count)") != std::string::npos);
  const ts::ThreadScope many(200);
  const std::string no_threads = error_within(300 * stack, row_of(256));
  CHECK(no_threads.find("threw: the system gives no more threads") != std::string::npos);
}

TEST_CASE("stacks go back to the system when the run ends, or fails") {
  const ts::Mesh mesh = row_of(64);
  const auto once = [&] {
    mesh.run([](ts::Device& d) { d.barrier(); });
    error_of([&] { mesh.run([](ts::Device& d) { d.recv(d.rank()); }); });
  };
  once();
  const double before = virtual_bytes();
  for (int i = 0; i < 20; ++i) {
    once();
  }
  CHECK(virtual_bytes() - before < 32.0 * static_cast<double>(ts::detail::FiberStack::bytes));
}
#endif

#endif
