#include <doctest/doctest.h>

#include "error_of.hpp"
#include "tinyscale.hpp"

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/resource.h>
#endif

namespace ts = tinyscale;

#if !defined(TINYSCALE_NO_THREADS) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)

namespace {

double resident_peak() {  // bytes
#if defined(__linux__)
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return 1024.0 * static_cast<double>(usage.ru_maxrss);
#else
  return 0;
#endif
}

}  // namespace

TEST_CASE("4096 devices in a run: real numbers, real messages, under 4 GiB [slow]") {
  ts::Mesh mesh(ts::machine("tpu-v5p", {16, 16, 16}), {{"x", 16}, {"y", 16}, {"z", 16}});
  const ts::MeshRun run = mesh.run([](ts::Device& d) {
    ts::Tensor t = ts::full({64}, static_cast<float>(d.rank() % 16));
    t = d.all_reduce(t, "x");                         // 16 z
    t = d.reduce_scatter(d.all_gather(t, "z"), "z");  // 256 z
    d.send(t, (d.rank() + 1) % 4096);
    t = d.recv((d.rank() + 4095) % 4096);  // of z - 1
    ts::Pending sum = d.start_all_reduce(t, {"x", "y", "z"});
    d.barrier();
    d.keep("sum", sum.wait());
  });
  CHECK(resident_peak() < 4.0 * (1 << 30));
  CHECK(run.devices() == 4096);
  const float want = 256.0f * (15 * 16 / 2) * 256.0f;
  for (const int rank : {0, 1, 2048, 4095}) {
    CHECK(run.kept(rank, "sum").at({63}) == want);
  }
  CHECK(run.collectives().size() == 6);
  CHECK(run.seconds > 0);
}

TEST_CASE("4096 devices exchange over one axis after another [slow]") {
  const ts::Mesh mesh(ts::machine("tpu-v5p", {16, 16, 16}), {{"x", 16}, {"y", 16}, {"z", 16}});
  const ts::MeshRun run = mesh.run([](ts::Device& d) {
    ts::Tensor t = ts::full({16, 16, 16}, static_cast<float>(d.rank()));
    t = d.all_to_all(d.all_to_all(d.all_to_all(t, "x", 0, 0), "y", 1, 1), "z", 2, 2);
    d.keep("got", t);
  });
  const std::vector<float> got = run.kept(77, "got").values();
  bool right = true;
  for (std::size_t i = 0; i < got.size(); ++i) {
    right = right && got[i] == static_cast<float>(i);
  }
  CHECK(right);
  CHECK(resident_peak() < 4.0 * (1 << 30));
}

#if defined(__linux__)
TEST_CASE("more devices than the system has threads or stacks: an error before any is started") {
  const std::string most = error_of([] { ts::detail::check_thread_limit(2147483000); });
  CHECK(most.find("mesh.run: 2147483000 devices need a thread each; ") == 0);
  CHECK(most.find("of which 0 are") == std::string::npos);  // it was not looked up
  CHECK(most.find(": take fewer devices, or raise that limit") != std::string::npos);
  const std::string here = error_of([] { ts::detail::check_thread_limit(107520); });
  ts::Mesh pods(ts::machine("tpu-v5p", {12, 16, 20, 28}),
                {{"data", 12}, {"x", 16}, {"y", 20}, {"z", 28}});
  const auto of_run = [&] { return error_of([&] { pods.run([](ts::Device&) {}); }); };
  if (here.find("107520 devices need a thread each") != std::string::npos) {
    pods.runnable = 2;
    CHECK(of_run().find(here.substr(0, here.find("of"))) == 0);
    pods.runnable = 0;
  }
  const std::string stacks = error_of([] { ts::detail::check_stack_limit(107520); });
  if (TINYSCALE_FIBERS && !stacks.empty()) {
    CHECK(stacks.find("mesh.run: 107520 devices need a stack each; memory maps, two a stack "
                      "allows ") == 0);
    CHECK(of_run() == stacks);
  }
}

TEST_CASE("200 failed and 200 good runs leave no thread and no memory behind [slow]") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {4}), {{"x", 4}});
  const auto own_memory = [] { return ts::context().memory->current_total(); };
  const auto run_each = [&](int times) {
    for (int i = 0; i < times; ++i) {
      const ts::MeshRun run = mesh.run([](ts::Device& d) {
        const ts::Tensor t = ts::parameter(ts::ones({1 << 14}));
        d.send(t.detach(), d.rank() ^ 1);
        const ts::Tensor y = d.all_reduce(t * d.recv(d.rank() ^ 1), "x");
        ts::sum(d.start_all_gather(y, "x").wait()).backward();
        d.keep("grad", t.grad());
      });
      CHECK(run.memory(i % 4).current_total() == 4.0 * (1 << 14));
      const std::string error = error_of([&] {
        mesh.run([&](ts::Device& d) {
          const ts::Tensor t = ts::parameter(ts::ones({1 << 14}));
          const ts::Pending started = d.start_all_reduce(t * 2.0f, "x");
          if (d.rank() == i % 4) {
            switch (i % 5) {
              case 0: throw ts::Error("a fault");
              case 1: return;
              case 2: d.recv((i + 1) % 4); break;
              case 3: d.all_gather(t, "x"); break;
              default: d.send(t.detach(), (i + 1) % 4); break;
            }
          }
          d.barrier();
        });
      });
      CHECK(error.find("mesh.run: ") == 0);
    }
  };
  const auto threads = [](double wanted) {  // a thread that was joined is counted a moment longer
    double now = 0;
    for (int looks = 0; looks < 40 && !(now > 0 && now <= wanted); ++looks) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      now = ts::detail::system_number("/proc/self/status", "Threads:");
    }
    return now;
  };
  const auto resident = [] {  // bytes
    return 1024 * ts::detail::system_number("/proc/self/status", "VmRSS:");
  };
  run_each(20);
  const double before[] = {threads(ts::thread_count()), resident(), own_memory()};
  CHECK(before[0] >= 1);
  run_each(200);
  CHECK(threads(before[0]) == before[0]);
  CHECK(own_memory() == before[2]);
  CHECK(resident() - before[1] < 4.0 * (1 << 20));
}
#endif

TEST_CASE("100,000 chips cost no more than one of each kind") {
  const ts::Mesh pods(ts::machine("tpu-v5p", {12, 16, 20, 28}),
                      {{"data", 12}, {"x", 16}, {"y", 20}, {"z", 28}});
  CHECK(pods.size() == 107520);
  const double start = ts::detail::seconds_now();
  const ts::MeshPrediction plan = pods.predict([](ts::Device& d) {
    const ts::Tensor h = ts::matmul(ts::ones({16, 64}), ts::ones({64, 64}));
    ts::Pending gradient = d.start_all_reduce(ts::ones({1 << 16}), {"data", "x"});
    const ts::Tensor all = d.all_gather(h, {"y", "z"});
    if (all.dim(0) != 16 * 560) {
      throw ts::Error("wrong shape");
    }
    gradient.wait();
    d.barrier();
  });
  MESSAGE("predicted in ", ts::detail::seconds_now() - start, " s");
  CHECK(plan.devices == 107520);
  CHECK(plan.calls.size() == 3);
  CHECK(plan.compute > 0);
  CHECK(plan.seconds == doctest::Approx(plan.compute + plan.exposed).epsilon(1e-12));
}

TEST_CASE("a prediction is what a run takes") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {4, 4}), {{"x", 4}, {"y", 4}});
  const auto program = [](ts::Device& d) {
    const ts::Tensor t = ts::matmul(ts::ones({64, 64}), ts::ones({64, 64}));
    ts::Pending sum = d.start_all_reduce(t, "x");
    const ts::Tensor u = ts::matmul(t, t);
    sum.wait();
    d.all_gather(u, "y");
  };
  const ts::MeshPrediction predicted = mesh.predict(program, 5);
  const ts::MeshRun run = mesh.run(program);
  CHECK(predicted.seconds == doctest::Approx(run.seconds).epsilon(1e-9));
  ts::CollectiveSpec ring;
  ring.parts = mesh.placement().axes[0].parts;
  ring.elements = 4000;
  ring.algorithm = ts::Algorithm::line;
  const ts::CollectiveSchedule own = ts::make_schedule(ring);
  ts::CollectiveOptions options;
  options.schedule = &own;
  const auto by_own = [&](ts::Device& d) { d.all_gather(ts::ones({1000}), "x", 0, options); };
  const ts::MeshRun counted = mesh.run(by_own);
  CHECK(mesh.predict(by_own, 4).seconds == doctest::Approx(counted.seconds).epsilon(1e-9));
  CHECK(mesh.predict(by_own, 4).calls[0].bytes == counted.bytes_sent(4));
  CHECK(error_of([&] { mesh.predict(program, 16); }) ==
        "Mesh::predict: a program on rank 16; give a function of Device&, and a rank of 0 to 15");
  CHECK(error_of([&] { mesh.predict([](ts::Device& d) { d.recv(1); }); }) ==
        "recv: predict runs one device by itself, which has no partner; permute is right, or run");
}

#endif
