// What surrounds the kernels: ops on one number, the laptop's own measurement, the compiler's time.
#include <cstdio>
#include <cstdlib>

#include "peers.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace bench {
namespace {

enum class Graph { without, with };

void overhead(Bench& bench, const char* name, Graph graph, double most_nanoseconds) {
  const ts::Tensor one = ts::ones({1}), y = ts::ones({1});
  const ts::Tensor x = graph == Graph::with ? ts::parameter(one) : one;
  Case c;
  c.group = "op-cost";
  c.what = name;
  c.unit = "ns";
  const Way budget{"budget", [most_nanoseconds] { return most_nanoseconds * 1e-9; }, 1, true};
  c.ways = {
      timed("ours", Clock::thread, [&] { const ts::Tensor z = ts::add(x, y); }),
      asked("PyTorch", torch(bench, 1), graph == Graph::with ? "overhead graph" : "overhead plain"),
      budget};
  c.targets = {{"budget", 1.0}};
  bench.run(c);
}

// laptop() is measured once a process: a process of its own each time.
void laptop(Bench& bench) {
  Case c;
  c.group = "laptop";
  c.what = "laptop()";
  c.unit = "s";
  c.rounds = 3;
  const Way two{"budget", [] { return 2.0; }, 1, true};
  c.ways = {Way{"ours",
                [] {
                  const Worker once({"/proc/self/exe", "--laptop"}, {});
                  return std::atof(once.first_line().c_str());
                },
                1, true},
            two};
  c.targets = {{"budget", 1.0}};
  bench.run(c);
}

// tools/compile_cost.sh prints "compile cost, g++: header 0.9 s, its standard headers 0.5 s, ...".
void compile_cost(Bench& bench) {
  const std::string command =
      "bash '" + bench.options().directory + "/../tools/compile_cost.sh' 5 2> /dev/null";
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) {
    return;
  }
  char line[512], compiler[32];
  double header = 0, standard = 0;
  while (std::fgets(line, sizeof line, pipe) != nullptr) {
    if (std::sscanf(line, "compile cost, %31[^:]: header %lf s, its standard headers %lf", compiler,
                    &header, &standard) == 3) {
      Case c;
      c.group = "header";
      c.what = ts::detail::cat({"include + main, ", compiler});
      c.unit = "s";
      c.rounds = 1;
      c.ways = {Way{"ours", [=] { return header; }, 1, true},
                Way{"std headers x 1.6", [=] { return 1.6 * standard; }, 1, true}};
      c.targets = {{"std headers x 1.6", 1.0}};
      bench.run(c);
    }
  }
  pclose(pipe);
}

}  // namespace

void host_rows(Bench& bench) {
  if (bench.wants("op-cost", "an add of two tensors of one number, ns")) {
    overhead(bench, "add", Graph::without, 100);
    overhead(bench, "add with its graph node", Graph::with, 200);
  }
  if (bench.wants("laptop", "measuring this machine, s")) {
    laptop(bench);
  }
  if (bench.wants("header", "the header's cost to a program that includes it, s")) {
    compile_cost(bench);
  }
}

}  // namespace bench
