// What surrounds the kernels: ops on one number, the laptop's own measurement, the compiler's time.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "../worker.hpp"
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

// laptop() is measured once a process: a process of its own each time. How long it takes, and the
// least that several runs say beside the most.
void laptop(Bench& bench) {
  constexpr std::size_t runs = 5;
  std::vector<double> seconds;
  std::vector<double> rates[5];
  for (std::size_t i = 0; i < runs; ++i) {
    const Worker once({"/proc/self/exe", "--laptop"}, {});
    double s = 0, r[5] = {};
    if (std::sscanf(once.first_line().c_str(), "%lf %lf %lf %lf %lf %lf", &s, &r[0], &r[1], &r[2],
                    &r[3], &r[4]) != 6) {
      bench.skip("laptop()", "it did not answer");
      return;
    }
    seconds.push_back(s);
    for (std::size_t k = 0; k < 5; ++k) {
      rates[k].push_back(r[k]);
    }
  }
  Case c;
  c.group = "laptop";
  c.what = "laptop()";
  c.unit = "s";
  c.rounds = runs - 1;
  c.always = true;
  std::size_t next = 0;
  c.ways = {Way{"ours", [&] { return seconds[next++ % runs]; }, 1, true},
            Way{"budget", [] { return 2.0; }, 1, true}};
  c.targets = {{"budget", 1.0}};
  bench.run(c);

  const char* const names[] = {"f32 peak", "L1", "L2", "L3", "memory"};
  for (std::size_t k = 0; k < 5; ++k) {
    const auto ends = std::minmax_element(rates[k].begin(), rates[k].end());
    const double least = *ends.first, most = *ends.second;
    if (least <= 0) {
      continue;  // no such level
    }
    Case again;
    again.group = "laptop";
    again.what = ts::detail::cat({names[k], ", least of five"});
    again.unit = k == 0 ? "GFLOP/s" : "GB/s";
    again.work = 1e9;
    again.rounds = 1;
    again.always = true;
    again.ways = {Way{"ours", [least] { return 1e9 / least; }, 1, true},
                  Way{"most of five", [most] { return 1e9 / most; }, 1, true}};
    again.targets = {{"most of five", 0.95}};
    bench.run(again);
  }
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

// A folder for sources, removed with what is in it.
class Scratch {
 public:
  Scratch() {
    const char* const temporary = std::getenv("TMPDIR");
    std::string name = ts::detail::cat({temporary != nullptr ? temporary : "/tmp", "/benchXXXXXX"});
    path_ = mkdtemp(&name[0]) != nullptr ? name : "";
  }
  ~Scratch() {
    for (const std::string& file : files_) {
      std::remove(file.c_str());
    }
    if (!path_.empty()) {
      rmdir(path_.c_str());
    }
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  bool made() const { return !path_.empty(); }
  std::string file(const std::string& name, const std::string& text) {
    files_.push_back(path_ + "/" + name);
    std::FILE* const out = std::fopen(files_.back().c_str(), "w");
    if (out != nullptr) {
      std::fputs(text.c_str(), out);
      std::fclose(out);
    }
    return files_.back();
  }

 private:
  std::string path_;
  std::vector<std::string> files_;
};

// CPU seconds, user and system, of a command and of what it starts; negative where it fails.
double cpu_seconds(const std::vector<std::string>& command, const std::string& input,
                   const std::string& output) {
  std::fflush(stdout);
  const int pid = fork();
  if (pid == 0) {
    const int in = open(input.c_str(), O_RDONLY);
    const int out = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int quiet = open("/dev/null", O_WRONLY);
    if (in < 0 || out < 0 || quiet < 0) {
      _exit(127);
    }
    dup2(in, 0);
    dup2(out, 1);
    dup2(quiet, 2);
    become(command);
  }
  int status = -1;
  rusage used{};
  if (pid < 0 || wait4(pid, &status, 0, &used) != pid || status != 0) {
    return -1;
  }
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

bool runs(const std::string& program) {
  return cpu_seconds({program, "--version"}, "/dev/null", "/dev/null") >= 0;
}

// So many rounds whatever --rounds says: one of program 6 takes half a minute.
void seconds_beside(Bench& bench, const char* what, double most, int rounds,
                    const std::function<double()>& sample) {
  Case c;
  c.group = "header";
  c.what = what;
  c.unit = "s";
  c.rounds = rounds;
  c.always = true;
  c.ways = {Way{"ours", sample, 1, false}, Way{"budget", [most] { return most; }, 1, false}};
  c.targets = {{"budget", 1.0}};
  bench.run(c);
}

const char* const one_product = R"(#include "tinyscale.hpp"
namespace ts = tinyscale;
int main() {
  const ts::Tensor x = ts::ones({4, 8}), w = ts::ones({8, 2});
  std::cout << ts::matmul(x, w);
}
)";

// Program 6 of tests/programs_test.cpp as a program of its own.
const char* const many_devices = R"(#include "tinyscale.hpp"
namespace ts = tinyscale;
int main() {
  ts::Text text = ts::read_text("input.txt");
  ts::Transformer model(ts::config("nano"), /*seed=*/1);
  ts::TrainOptions options;
  options.steps = 500;
  options.machine = ts::machine("tpu-v5e", {4, 2});
  options.layout.data = 2;
  options.layout.tensor = 2;
  options.layout.pipeline = 2;
  options.layout.microbatches = 4;
  options.layout.zero = ts::Zero::optimizer;
  ts::TrainReport report = ts::train(model, text, options);
  std::cout << report;
}
)";

// Include and first call, as tools/torture.py --budget times them.
const char* const first_call = R"(#include <iostream>
#include "tinyscale.hpp"
namespace ts = tinyscale;
std::cout << "sum " << ts::sum(ts::ones({10})).item() << "\n";
%quit
)";

bool holds(const std::string& path, const std::string& text) {
  std::FILE* const file = std::fopen(path.c_str(), "r");
  char part[4096] = "";
  const std::size_t count = file != nullptr ? std::fread(part, 1, sizeof part - 1, file) : 0;
  if (file != nullptr) {
    std::fclose(file);
  }
  return std::string(part, count).find(text) != std::string::npos;
}

// CPU seconds of the compiler for programs that use the header, and of an interpreter.
void program_cost(Bench& bench) {
  Scratch scratch;
  if (!scratch.made()) {
    bench.skip("programs", "no folder can be made in TMPDIR or /tmp");
    return;
  }
  const std::string folder = bench.options().directory + "/..";
  const auto compiled = [folder](const std::string& source) {
    return cpu_seconds(
        {"g++", "-std=c++17", "-O2", "-pthread", "-I" + folder, "-c", source, "-o", "/dev/null"},
        "/dev/null", "/dev/null");
  };
  if (runs("g++")) {
    const std::string hello = scratch.file("hello.cpp", one_product);
    const std::string many = scratch.file("many.cpp", many_devices);
    seconds_beside(bench, "one matmul, g++ -O2", 2.5, 2, [&] { return compiled(hello); });
    seconds_beside(bench, "program 6, g++ -O2", 8.0, 1, [&] { return compiled(many); });
  } else {
    bench.skip("g++", "it does not run");
  }
  if (runs("clang-repl-19")) {
    const std::string session = scratch.file("session.txt", first_call);
    const std::string said = scratch.file("said.txt", "");
    seconds_beside(bench, "include + call, clang-repl", 2.0, 2, [&] {
      const double seconds = cpu_seconds(
          {"clang-repl-19", "-Xcc=-w", "-Xcc=-std=c++17", "-Xcc=-O0", "-Xcc=-I" + folder}, session,
          said);
      return holds(said, "sum 10") ? seconds : -1.0;
    });
  } else {
    bench.skip("clang-repl-19", "it does not run (clang-tools-19)");
  }
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
    program_cost(bench);
  }
}

}  // namespace bench
