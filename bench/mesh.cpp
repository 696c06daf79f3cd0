// What do collectives between simulated devices cost the host, and how fast is a replay?
// Devices are threads that really exchange numbers, here more of them than cores. Bytes are what a
// device sends. Peer: the same all_reduce as one would write it with threads and a shared vector:
// a barrier, each device sums its part of all vectors, a barrier, each copies the whole sum.
//   g++ -std=c++17 -O2 -pthread -I. bench/mesh.cpp && ./a.out
#include <condition_variable>
#include <mutex>
#include <thread>

#include "bench.hpp"

namespace ts = tinyscale;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ts::Machine machine(int devices) { return ts::machine("tpu-v5e", {devices}); }

// Seconds of one call, counted between two barriers of a run that makes `times` of them.
double collective_seconds(const ts::Mesh& mesh, const std::string& name, std::int64_t floats,
                          int times) {
  double seconds = 0;
  mesh.run([&](ts::Device& device) {
    const bool gather = name == "all_gather";
    const ts::Tensor mine = ts::full({gather ? floats / device.size() : floats}, 1.0f);
    const auto call = [&] {
      if (name == "all_reduce") {
        device.all_reduce(mine, "x");
      } else if (gather) {
        device.all_gather(mine, "x");
      } else if (name == "reduce_scatter") {
        device.reduce_scatter(mine, "x");
      } else {
        device.barrier();
      }
    };
    call();
    device.barrier();
    const double start = now();
    for (int i = 0; i < times; ++i) {
      call();
    }
    device.barrier();
    if (device.rank() == 0) {
      seconds = (now() - start) / times;
    }
  });
  return seconds;
}

class Barrier {
 public:
  explicit Barrier(int count) : count_(count) {}
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const int turn = turn_;
    if (++came_ == count_) {
      came_ = 0;
      ++turn_;
      changed_.notify_all();
      return;
    }
    changed_.wait(lock, [&] { return turn_ != turn; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_, came_ = 0, turn_ = 0;
};

double plain_seconds(int devices, std::int64_t floats, int times) {
  const std::size_t n = static_cast<std::size_t>(floats), all = static_cast<std::size_t>(devices);
  std::vector<std::vector<float>> in(all, std::vector<float>(n, 1.0f)), out = in;
  std::vector<float> sum(n);
  Barrier barrier(devices);
  double seconds = 0;
  const auto program = [&](std::size_t rank) {
    const auto call = [&] {
      barrier.wait();
      for (std::size_t i = n * rank / all; i < n * (rank + 1) / all; ++i) {
        float total = 0;
        for (const std::vector<float>& part : in) {
          total += part[i];
        }
        sum[i] = total;
      }
      barrier.wait();
      std::copy(sum.begin(), sum.end(), out[rank].begin());
    };
    call();
    barrier.wait();
    const double start = now();
    for (int i = 0; i < times; ++i) {
      call();
    }
    barrier.wait();
    if (rank == 0) {
      seconds = (now() - start) / times;
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < all; ++rank) {
    threads.emplace_back(program, rank);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return seconds;
}

void add_row(ts::Table& table, const std::string& name, int devices, std::int64_t floats) {
  const ts::Mesh mesh(machine(devices), {{"x", devices}});
  const int times = floats > (1 << 18) ? 3 : floats > (1 << 12) ? 20 : 100;
  std::vector<double> own, plain;
  for (int round = 0; round < 5; ++round) {
    own.push_back(collective_seconds(mesh, name, floats, times));
    if (name == "all_reduce") {
      plain.push_back(plain_seconds(devices, floats, times));
    }
  }
  const double seconds = bench::median(own), peer = bench::median(plain);
  const double share = (devices - 1.0) / devices * (name == "all_reduce" ? 2 : 1);
  const double bytes = name == "barrier" ? 0 : 4.0 * static_cast<double>(floats) * share;
  table.add({name, std::to_string(devices), ts::format_bytes(4.0 * static_cast<double>(floats)),
             ts::format_seconds(seconds),
             bytes > 0 ? bench::rate(bytes * devices, seconds, 1e9) : "-",
             peer > 0 ? ts::format_seconds(peer) : "-", bench::ratio(peer, seconds)});
}

// The messages of many all_reduces, timed on the machine they ran on.
void print_replay(int devices) {
  const ts::Mesh mesh(machine(devices), {{"x", devices}});
  const ts::MeshRun run = mesh.run([](ts::Device& device) {
    for (int i = 0; i < 50; ++i) {
      device.all_reduce(ts::full({1024}, 1.0f), "x");
    }
  });
  double messages = 0;
  for (const ts::CollectiveRow& row : run.collectives()) {
    messages += static_cast<double>(row.steps * devices);
  }
  bench::Rounds few;
  few.rounds = 5;
  const double seconds = bench::compare({[&] { run.on(run.machine()); }}, few)[0];
  std::printf("replay of %.0f messages on %d devices: %s, %s messages / s\n", messages, devices,
              ts::format_seconds(seconds).c_str(), ts::format_si(messages / seconds, "").c_str());
}

int main() {
  bench::print_machine("mesh: collectives between device threads, host time");
  ts::Table table;
  table.columns = {"collective",    "devices", "bytes of the whole", "a call", "GB / s sent in all",
                   "plain threads", "/ plain"};
  for (const int devices : {4, 8}) {
    add_row(table, "barrier", devices, 0);
    for (const std::int64_t floats : {1 << 8, 1 << 16, 1 << 20, 1 << 22}) {
      for (const char* name : {"all_reduce", "all_gather", "reduce_scatter"}) {
        add_row(table, name, devices, floats);
      }
    }
  }
  std::printf("%s\n", table.text().c_str());
  print_replay(4);
  print_replay(8);
  return 0;
}
