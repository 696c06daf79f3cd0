// What do collectives between simulated devices cost the host, beside those of MPI and Gloo?
// Ours and the peers take turns on the same buffers' sizes; a time is that of one call at device 0,
// counted between two barriers, after a fourth as many that are not counted. Bytes are of the whole
// vector: what all_gather makes, what the others take from a device. The limit reads what must be
// read once and writes what must be written once, on all threads; where every device needs all
// others, it is at least a bare meeting of the threads that run at once. A target that it would not
// meet itself is past it.
//   make bench ONLY=mesh ARGS="--rounds=5 --only=all_reduce --devices=8"
#if defined(__linux__)
#include <pthread.h>
#endif

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "bench.hpp"
#include "options.hpp"
#include "worker.hpp"

namespace {

namespace ts = tinyscale;
using Kind = std::string;  // "all_reduce"

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Row {
  Kind what;
  ts::Algorithm algorithm = ts::Algorithm::automatic;
  int devices = 2;
  std::int64_t bytes = 0;
  double target = 1;  // the peer's time over ours
};

// Of ../shared/design/anchors.md; what is not named there must not be slower.
double target_of(const Kind& what, ts::Algorithm algorithm, int devices, std::int64_t bytes) {
  if (what == "barrier") {
    return devices == 8 ? 1.7 : 1;
  }
  const bool all = devices == 8, direct = algorithm == ts::Algorithm::direct;
  if (what != "all_reduce" || devices == 4 || (!direct && (!all || bytes < 1 << 22))) {
    return 1;
  }
  if (!direct) {
    return bytes <= 1 << 22 ? 4 : 5;
  }
  return bytes <= 1 << 10   ? (all ? 5 : 1.5)
         : bytes <= 1 << 18 ? (all ? 6 : 3)
         : bytes <= 1 << 22 ? (all ? 8 : 2)
                            : (all ? 10 : 5);
}

// ---- ours

void call(ts::Device& device, const Row& row, const ts::Tensor& mine) {
  ts::CollectiveOptions options;
  options.algorithm = row.algorithm;
  if (row.what == "all_reduce") {
    device.all_reduce(mine, "x", ts::Reduce::sum, options);
  } else if (row.what == "all_gather") {
    device.all_gather(mine, "x", 0, options);
  } else if (row.what == "reduce_scatter") {
    device.reduce_scatter(mine, "x", 0, ts::Reduce::sum, options);
  } else if (row.what == "all_to_all") {
    device.all_to_all(mine, "x", 0, 0, options);
  } else if (row.what == "broadcast") {
    device.broadcast(mine, "x", 0, options);
  } else {
    device.barrier();
  }
}

// The peers' programs do the same.
int uncounted(int times) { return 1 + times / 4; }

double our_seconds(const Row& row, int times) {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {row.devices}), {{"x", row.devices}});
  const std::int64_t floats = std::max<std::int64_t>(1, row.bytes / 4);
  double seconds = 0;
  mesh.run([&](ts::Device& device) {
    const ts::Tensor mine =
        ts::full({row.what == "all_gather" ? floats / device.size() : floats}, 1.0f);
    for (int i = 0; i < uncounted(times); ++i) {
      call(device, row, mine);
    }
    device.barrier();
    const double start = now();
    for (int i = 0; i < times; ++i) {
      call(device, row, mine);
    }
    device.barrier();
    if (device.rank() == 0) {
      seconds = (now() - start) / times;
    }
  });
  return seconds;
}

// ---- Threads that meet and do nothing else, and the memory's limit

double seconds_of_meetings(int devices, int times, const std::function<void()>& meet) {
  double seconds = 0;
  const auto program = [&](int rank) {
    ts::detail::go_to_processor(rank);
    for (int i = 0; i < uncounted(times); ++i) {
      meet();
    }
    const double start = now();
    for (int i = 0; i < times; ++i) {
      meet();
    }
    if (rank == 0) {
      seconds = (now() - start) / times;
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < devices; ++rank) {
    threads.emplace_back(program, rank);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return seconds;
}

// The least that threads do to meet, one a processor: who comes counts, and looks whether all have.
double least_meeting_seconds(int devices, int times) {
  std::atomic<int> came{0}, meetings{0};
  const int threads = std::min(devices, ts::thread_count());
  return seconds_of_meetings(threads, times, [&] {
    const int before = meetings.load();
    if (came.fetch_add(1) + 1 == threads) {
      came.store(0);
      meetings.store(before + 1);
      return;
    }
    for (int looks = 0; meetings.load(std::memory_order_acquire) == before; ++looks) {
      if (looks > 1000) {
        std::this_thread::yield();
      }
    }
  });
}

#if defined(__linux__)
double pthread_barrier_seconds(int devices, int times) {
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, nullptr, static_cast<unsigned>(devices));
  const double seconds =
      seconds_of_meetings(devices, times, [&] { pthread_barrier_wait(&barrier); });
  pthread_barrier_destroy(&barrier);
  return seconds;
}
#endif

// Reads what must be read, block by block, and writes the sum, or the one vector, to all that must
// be written.
class Limit {
 public:
  explicit Limit(const Row& row) {
    const std::size_t n = static_cast<std::size_t>(row.devices);
    const bool gathers = row.what == "all_gather" || row.what == "broadcast";
    const bool moves = row.what == "all_to_all";
    const std::size_t floats = static_cast<std::size_t>(row.bytes) / 4 * (moves ? n : 1);
    make(in_, gathers || moves ? 1 : n, floats);
    make(out_, row.what == "reduce_scatter" || moves ? 1 : n, floats);
    floats_ = static_cast<std::int64_t>(floats);
  }
  double seconds(int times) {
    const auto once = [&] {
      ts::parallel_for(floats_, most, [&](std::int64_t begin, std::int64_t end) {
        for (; begin < end; begin += most) {
          const std::int64_t rest = std::min<std::int64_t>(most, end - begin);
          block(static_cast<std::size_t>(begin), static_cast<std::size_t>(rest));
        }
      });
    };
    for (int i = 0; i < uncounted(times); ++i) {
      once();
    }
    const double start = now();
    for (int i = 0; i < times; ++i) {
      once();
    }
    return (now() - start) / times;
  }

 private:
  // Places of a page are not the same in all of them: stores would wait for loads of the others.
  void make(std::vector<float*>& vectors, std::size_t count, std::size_t floats) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t shift = 272 * memory_.size();
      memory_.emplace_back(floats + shift, 1.0f);
      vectors.push_back(memory_.back().data() + shift);
    }
  }
  void block(std::size_t begin, std::size_t count) {
    std::vector<const float*> parts;
    for (const float* const in : in_) {
      parts.push_back(in + begin);
    }
    std::vector<float*> copies;
    for (float* const out : out_) {
      copies.push_back(out + begin);
    }
    const bool past_caches =
        ts::detail::past_caches(static_cast<std::int64_t>(out_.size()) * floats_);
    ts::kernels::add_to_all(static_cast<std::int64_t>(count), parts.data(), parts.size(),
                            copies.data(), copies.size(), 1.0f, past_caches);
  }

  static constexpr std::int64_t most = 4096;  // floats of a block
  std::int64_t floats_ = 0;
  std::vector<std::vector<float>> memory_;
  std::vector<float*> in_, out_;
};

// ---- the table

using Peer = std::shared_ptr<bench::Worker>;

Peer peer(const std::vector<std::string>& command, const std::string& name, const char* why) {
  Peer found(new bench::Worker(command));
  if (found->first_line().empty()) {
    bench::skip(name, why);
    found.reset();
  }
  return found;
}

struct Options {
  int rounds = 7, devices = 0;
  std::string only, directory;  // where the program stands
};

Peer open_mpi(const Options& options, int devices) {
  const char* const why = "no mpicc or mpirun here (tools/install_peers.sh)";
  const std::string program = options.directory + "/mpi_collectives";
  if (access(program.c_str(), X_OK) != 0) {  // mpirun itself would answer in its place
    bench::skip("Open MPI", why);
    return nullptr;
  }
  std::vector<std::string> command{"mpirun",
                                   "-n",
                                   std::to_string(devices),
                                   "--oversubscribe",
                                   "--bind-to",
                                   "none",
                                   "--mca",
                                   "mpi_yield_when_idle",
                                   "1"};
  if (geteuid() == 0) {
    command.push_back("--allow-run-as-root");
  }
  command.push_back(program);
  return peer(command, "Open MPI", why);
}

Peer gloo(const Options& options, int devices) {
  const std::string program = bench::bench_folder(options.directory) + "/gloo_worker.py";
  for (const char* python : {"python3", "/usr/bin/python3"}) {
    Peer found(new bench::Worker({python, program, std::to_string(devices)}));
    if (!found->first_line().empty()) {
      return found;
    }
  }
  bench::skip("Gloo", "no python3 here can import torch");
  return nullptr;
}

double asked(const Peer& from, const Row& row, int times) {
  return from ? from->ask(row.what + " " + std::to_string(row.bytes) + " " + std::to_string(times))
              : -1;
}

std::string time_text(double seconds) { return seconds > 0 ? ts::format_seconds(seconds) : "-"; }

void add_row(ts::Table& table, const Options& options, const Row& row, const Peer& mpi,
             const Peer& others) {
  const int times = row.bytes > 1 << 22   ? 1
                    : row.bytes > 1 << 18 ? 8
                    : row.bytes > 1 << 10 ? 200
                                          : 3000;
  const bool barrier = row.what == "barrier", meets = row.what != "broadcast";
  Limit limit(row);
  std::vector<double> own, open, other, least, to_open, to_other;
  for (int round = 0; round <= options.rounds; ++round) {
    const double seconds = our_seconds(row, times);
    const double moved = barrier ? 0 : limit.seconds(times);
    const double bound = meets ? std::max(moved, least_meeting_seconds(row.devices, times)) : moved;
    const double theirs = asked(mpi, row, times);
    double also = -1;
    if (!barrier) {
      also = asked(others, row, std::max(1, times / 300));
#if defined(__linux__)
    } else {
      also = pthread_barrier_seconds(row.devices, times);
#endif
    }
    if (round > 0) {  // the first is not counted
      own.push_back(seconds);
      least.push_back(bound);
      open.push_back(theirs);
      other.push_back(also);
      to_open.push_back(theirs / seconds);
      to_other.push_back(also / seconds);
    }
  }
  const bool by_other = barrier && row.devices == 8;
  const std::vector<double>& judged = by_other ? to_other : to_open;
  const double found = bench::median(judged);
  // Of the limit at its fastest, so that a target is called past it only when it surely is.
  const double fastest = *std::min_element(least.begin(), least.end());
  const double at_limit = bench::median(by_other ? other : open) / fastest;
  const bool named = row.algorithm != ts::Algorithm::automatic;
  table.add({row.what + (named ? std::string(", ") + ts::name_of(row.algorithm) : ""),
             std::to_string(row.devices),
             barrier ? "-" : ts::format_bytes(static_cast<double>(row.bytes)),
             time_text(bench::median(own)), time_text(bench::median(open)),
             bench::ratio(bench::median(to_open), 1), time_text(bench::median(other)),
             bench::ratio(bench::median(to_other), 1), time_text(bench::median(least)),
             ts::format_fixed(row.target, 1),
             found <= 0              ? "-"
             : found >= row.target   ? "met"
             : at_limit < row.target ? "past the limit (" + ts::format_fixed(at_limit, 1) + ")"
                                     : "missed"});
}

Options read_options(int count, char** words) {
  Options options;
  options.directory = bench::folder_of(words[0]);
  bench::read_options(
      count, words,
      {bench::whole("--rounds=", 1, &options.rounds),
       bench::whole("--devices=", 2, &options.devices), bench::text("--only=", &options.only)});
  if (options.devices > 8 || (options.devices & (options.devices - 1)) != 0) {
    bench::refuse("--devices=" + std::to_string(options.devices) + ": 2, 4 or 8 is right");
  }
  bench::must_choose(
      "--only=", options.only,
      {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier"});
  return options;
}

// The messages of many all_reduces, timed on the machine they ran on.
void print_replay(int devices) {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {devices}), {{"x", devices}});
  const ts::MeshRun run = mesh.run([](ts::Device& device) {
    for (int i = 0; i < 50; ++i) {
      device.all_reduce(ts::full({1024}, 1.0f), "x");
    }
  });
  double messages = 0;
  for (const ts::CollectiveRow& row : run.collectives()) {
    messages += static_cast<double>(row.steps * devices);  // of neighbours
  }
  bench::Rounds few;
  few.rounds = 5;
  const double seconds = bench::compare({[&] { run.on(run.machine()); }}, few)[0];
  std::printf("replay of %.0f messages on %d devices: %s, %s messages / s\n", messages, devices,
              ts::format_seconds(seconds).c_str(), ts::format_si(messages / seconds, "").c_str());
}

}  // namespace

int main(int count, char** words) {
  const Options options = read_options(count, words);
  bench::print_machine("mesh: collectives between devices, host time of a call");
  for (const int devices : {2, 4, 8}) {
    if (options.devices > 0 && devices != options.devices) {
      continue;
    }
    const Peer mpi = open_mpi(options, devices), others = gloo(options, devices);
    ts::Table table;
    table.columns = {"collective", "devices", "bytes", "ours",   "Open MPI", "/ ours",
                     "Gloo",       "/ ours",  "limit", "target", ""};
    for (const Row& kind : std::vector<Row>{{"all_reduce", ts::Algorithm::direct},
                                            {"all_reduce", ts::Algorithm::ring},
                                            {"all_gather"},
                                            {"reduce_scatter"},
                                            {"all_to_all"},
                                            {"broadcast"},
                                            {"barrier"}}) {
      for (const std::int64_t bytes : {1 << 10, 1 << 18, 1 << 22, 1 << 26}) {
        Row row = kind;
        row.devices = devices;
        row.bytes = row.what == "barrier" ? 0 : bytes;
        row.target = target_of(row.what, row.algorithm, devices, row.bytes);
        if (row.what.find(options.only) != std::string::npos &&
            (row.bytes > 0 || bytes == 1 << 10)) {
          add_row(table, options, row, mpi, others);
        }
      }
    }
    std::printf("%s\n", table.text().c_str());
  }
  std::printf("barrier: the third time is pthread_barrier's, and for 8 devices judged by it\n");
  print_replay(8);
  return 0;
}
