// Your own collective, as plain data: who sends which chunk to whom in which step. Four algorithms
// that people use and the header has not, each checked (does it end with what the collective
// promises? does it wait for ever? does it count anything twice?) and put beside the built-in ones:
// Bruck's all_gather and all_to_all, recursive doubling, a double binary tree.
//   g++ -std=c++17 -O2 -pthread -I. examples/17_own_collective.cpp -o own_collective &&
//   ./own_collective
#include "tinyscale.hpp"
namespace ts = tinyscale;

// A number from 0 to n - 1.
int around(int number, int n) { return ((number % n) + n) % n; }

ts::CollectiveSchedule empty(const char* name, ts::Collective what, int devices, int chunks) {
  ts::CollectiveSchedule schedule;
  schedule.name = name;
  schedule.what = what;
  schedule.devices = devices;
  schedule.chunks = chunks;
  return schedule;
}

// Device i has the blocks from its own on; in step k it sends as many as it has, at most what is
// missing, to the device 2^k before it. ceil(log2 n) steps for any n.
ts::CollectiveSchedule bruck_all_gather(int n) {
  ts::CollectiveSchedule schedule = empty("Bruck", ts::Collective::all_gather, n, n);
  for (int held = 1, step = 0; held < n; held *= 2, ++step) {
    for (int device = 0; device < n; ++device) {
      for (int block = 0; block < std::min(held, n - held); ++block) {
        schedule.transfers.push_back(
            {step, device, around(device - held, n), around(device + block, n)});
      }
    }
  }
  return schedule;
}

// What has to go d devices on goes 2^k on in each step k whose bit is set in d.
ts::CollectiveSchedule bruck_all_to_all(int n) {
  ts::CollectiveSchedule schedule = empty("Bruck", ts::Collective::all_to_all, n, n * n);
  for (int bit = 1, step = 0; bit < n; bit *= 2, ++step) {
    for (int source = 0; source < n; ++source) {
      for (int distance = 1; distance < n; ++distance) {
        if ((distance & bit) != 0) {
          const int at = source + (distance & (bit - 1));
          schedule.transfers.push_back({step, around(at, n), around(at + bit, n),
                                        source * n + around(source + distance, n)});
        }
      }
    }
  }
  return schedule;
}

// Partners 1, 2, 4, ... apart exchange their whole sums: half the steps of the built-in halving and
// doubling (Rabenseifner's), for vectors so small that only steps count. When n is no power of two
// the first devices go in pairs, whose even one speaks for both.
ts::CollectiveSchedule recursive_doubling(int n) {
  int members = 1;
  while (2 * members <= n) {
    members *= 2;
  }
  const int pairs = n - members;
  ts::CollectiveSchedule schedule = empty("recursive doubling", ts::Collective::all_reduce, n, 1);
  int step = 0;
  for (int pair = 0; pair < pairs; ++pair, step = 1) {
    schedule.transfers.push_back({0, 2 * pair + 1, 2 * pair, 0, 1, ts::Action::reduce});
  }
  for (int distance = 1; distance < members; distance *= 2, ++step) {
    for (int member = 0; member < members; ++member) {
      const int partner = member ^ distance;
      schedule.transfers.push_back({step, member < pairs ? 2 * member : member + pairs,
                                    partner < pairs ? 2 * partner : partner + pairs, 0, 1,
                                    ts::Action::reduce});
    }
  }
  for (int pair = 0; pair < pairs; ++pair) {
    schedule.transfers.push_back({step, 2 * pair, 2 * pair + 1, 0});
  }
  return schedule;
}

// The parent of device v > 0 in a binary tree numbered in order: device 0 is on top, below it the
// odd ones are leaves. With v one further round the odd ones are in the middle.
int parent(int v, int n) {
  int bit = 1;
  while ((v & bit) == 0) {
    bit *= 2;
  }
  const int above = (v ^ bit) | (2 * bit);
  return above < n ? above : v ^ bit;
}

// Two trees, each sums and spreads half the vector, in pieces that follow each other: every device
// is in the middle of one tree and a leaf of the other, so that all links are busy both ways.
ts::CollectiveSchedule double_tree(int n, int pieces) {
  ts::CollectiveSchedule schedule =
      empty("double binary tree", ts::Collective::all_reduce, n, 2 * pieces);
  for (int tree = 0; tree < 2; ++tree) {
    std::vector<int> depth(static_cast<std::size_t>(n), 0);
    int deepest = 0;
    for (int v = 1; v < n; ++v) {
      for (int up = v; up != 0; up = parent(up, n)) {
        ++depth[static_cast<std::size_t>(v)];
      }
      deepest = std::max(deepest, depth[static_cast<std::size_t>(v)]);
    }
    for (int v = 1; v < n; ++v) {
      const int child = around(v + tree, n), above = around(parent(v, n) + tree, n);
      const int level = depth[static_cast<std::size_t>(v)];
      for (int piece = 0; piece < pieces; ++piece) {
        const int chunk = tree * pieces + piece;
        schedule.transfers.push_back(
            {piece + deepest - level, child, above, chunk, 1, ts::Action::reduce, tree});
        schedule.transfers.push_back(
            {piece + deepest + level - 1, above, child, chunk, 1, ts::Action::copy, tree});
      }
    }
  }
  return schedule;
}

ts::Tensor call(ts::Device& device, ts::Collective what, const ts::Tensor& x,
                const ts::CollectiveOptions& options) {
  return what == ts::Collective::all_gather   ? device.all_gather(x, "x", 0, options)
         : what == ts::Collective::all_to_all ? device.all_to_all(x, "x", 0, 0, options)
                                              : device.all_reduce(x, "x", ts::Reduce::sum, options);
}

// The same numbers by what the library would take, then by `own`, on GPUs of one NVLink node.
ts::MeshRun run_both(const ts::CollectiveSchedule& own, std::int64_t elements) {
  const int n = own.devices;
  ts::Machine node = ts::machine("h100", {1, 8});
  node.dims = {1, n};  // more GPUs on a switch than there are
  const ts::Mesh mesh(node, {{"x", n}});
  const std::int64_t each = own.what == ts::Collective::all_gather ? elements / n : elements;
  return mesh.run([&](ts::Device& device) {
    ts::CollectiveOptions options;
    const ts::Tensor x = ts::full({each}, float(device.rank()));
    const ts::Tensor built_in = call(device, own.what, x, options);
    options.schedule = &own;
    device.keep("difference", ts::sub(call(device, own.what, x, options), built_in));
  });
}

void compare(const ts::CollectiveSchedule& own, std::int64_t elements) {
  const int n = own.devices;
  const ts::MeshRun run = run_both(own, elements);
  const ts::CollectiveRow theirs = run.collectives()[0], ours = run.collectives()[1];
  float difference = 0;
  for (const float one : run.kept(n - 1, "difference").values()) {
    difference = std::max(difference, std::abs(one));
  }
  std::cout << ours.name << " of " << ts::format_bytes(4.0 * double(elements)) << " on " << n
            << " GPUs\n  " << own.name << ": " << ours.steps << " steps, "
            << ts::format_seconds(ours.seconds) << ", at most " << ts::format_bytes(ours.bytes_out)
            << " out of a device; " << (difference > 0 ? "differs" : "the same numbers")
            << "\n  built in: " << theirs.reason << "\n";
}

// What the textbooks say of a vector of V elements on N devices: steps, and the elements that leave
// the busiest device. Through a switch the time is steps alpha + elements / bandwidth.
struct Formula {
  int steps = 0;
  std::int64_t elements = 0;
};

Formula formula(const ts::CollectiveSchedule& own, std::int64_t v) {
  const int n = own.devices;
  Formula f;
  for (int bit = 1; bit < n; bit *= 2) {  // ceil(log2 N) rounds
    ++f.steps;
    for (int distance = 0; distance < n; ++distance) {
      f.elements += (distance & bit) != 0 ? v / n : 0;  // all_to_all: V / 2 log2 N
    }
  }
  if (own.what == ts::Collective::all_gather) {
    f.elements = (n - 1) * v / n;
  } else if (own.what == ts::Collective::all_reduce) {
    const bool pairs = (n & (n - 1)) != 0;  // in and out once more
    f.steps += pairs ? 1 : 0;               // floor(log2 N) + 2
    f.elements = (f.steps - (pairs ? 1 : 0)) * v;
  }
  return f;
}

// Counters and clock of a run beside the formula.
void check(const char* text, ts::CollectiveSchedule (*algorithm)(int)) {
  double worst = 0;
  bool same = true;
  for (int n = 2; n <= 33; ++n) {
    const std::int64_t elements = 12 * n;
    const ts::MeshRun run = run_both(algorithm(n), elements);
    const ts::CollectiveRow counted = run.collectives()[1];
    const ts::Links& links = run.machine().links[1];
    const Formula said = formula(algorithm(n), elements);
    // All devices send in every step, but of pairs one only: their elements are on the path.
    const std::int64_t path = counted.name == "all_reduce" ? said.steps * elements : said.elements;
    const double seconds =
        said.steps * links.latency + 4 * double(path) / links.bandwidth.one_way();
    same = same && counted.steps == said.steps && counted.bytes_out == 4 * double(said.elements);
    worst = std::max(worst, std::abs(counted.seconds / seconds - 1));
  }
  std::cout << text << (same ? ": counted the same" : ": DIFFERENT")
            << " for 2 to 33 devices, time " << (worst < 1e-9 ? "too\n" : "DIFFERENT\n");
}

int main() {
  for (const std::int64_t elements : {1680, 1680000}) {
    compare(bruck_all_gather(8), elements);
    compare(bruck_all_to_all(8), elements);
    compare(recursive_doubling(8), elements);
    compare(recursive_doubling(7), elements);
    compare(double_tree(8, elements > 2000 ? 16 : 1), elements);
  }
  for (int n = 1; n <= 33; ++n) {  // right for every number of devices
    ts::check_schedule(bruck_all_gather(n));
    ts::check_schedule(bruck_all_to_all(n));
    ts::check_schedule(recursive_doubling(n));
    ts::check_schedule(double_tree(n, 4));
  }
  std::cout << "\nall four are right for 1 to 33 devices\n";
  check("Bruck all_gather, ceil(log2 N) steps, (N - 1) / N V out", &bruck_all_gather);
  check("Bruck all_to_all, ceil(log2 N) steps, V / 2 log2 N out", &bruck_all_to_all);
  check("recursive doubling, log2 N steps, 2 more with pairs, V a step out", &recursive_doubling);
  const auto prepared = ts::detail::prepare(double_tree(8, 1));
  std::cout << "first half: " << ts::reduction_order(*prepared, 0, 0) << "\n"
            << "second half: " << ts::reduction_order(*prepared, 0, 1) << "\n";

  ts::CollectiveSchedule wrong = bruck_all_gather(8);
  wrong.transfers[9].chunk = 5;
  try {
    ts::check_schedule(wrong);
  } catch (const ts::Error& error) {
    std::cout << "one number changed: " << error.what() << "\n";
  }
}
