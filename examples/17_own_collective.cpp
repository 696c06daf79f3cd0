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

// The same numbers by `own`, then by what the library would take, on GPUs of one NVLink node.
void compare(const ts::CollectiveSchedule& own, std::int64_t elements) {
  const int n = own.devices;
  const ts::Mesh mesh(ts::machine("h100", {1, n}), {{"x", n}});
  const std::int64_t each = own.what == ts::Collective::all_gather ? elements / n : elements;
  const ts::MeshRun run = mesh.run([&](ts::Device& device) {
    ts::CollectiveOptions options;
    const ts::Tensor x = ts::full({each}, float(device.rank()));
    const ts::Tensor built_in = call(device, own.what, x, options);
    options.schedule = &own;
    device.keep("difference", ts::sub(call(device, own.what, x, options), built_in));
  });
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
