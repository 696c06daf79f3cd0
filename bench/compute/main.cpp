// How near to the limit of this machine are the kernels, and how do they stand beside the libraries
// that people use? Ours and every peer that is installed take turns in one run.
//   make bench                 the whole table, some minutes; writes bench/results.json and .svg
//   make bench ONLY=f32-1t     groups whose key contains that
//   make bench ARGS=--long     more rounds, the slow peers in every one
//   make bench ARGS=--ops      what each op of a training step costs
//   make bench ARGS=--markdown puts the table of bench/results.json into bench/README.md
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "peers.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

// The text after "--name=", or null.
const char* value_of(const char* argument, const char* name) {
  const std::size_t size = std::strlen(name);
  return std::strncmp(argument, name, size) == 0 ? argument + size : nullptr;
}

int usage(const char* argument) {
  std::fprintf(
      stderr,
      "compute: %s: --only=GROUP,.. --rounds=N --long --ops --results=FILE --markdown are known\n",
      argument);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  bench::Options options;
  options.programs = argv[0];
  const std::size_t slash = options.programs.rfind('/');
  options.programs = slash == std::string::npos ? "." : options.programs.substr(0, slash);
  bool markdown = false;
  for (int i = 1; i < argc; ++i) {
    if (const char* threads = value_of(argv[i], "--serve-openblas=")) {
      return bench::serve_openblas(std::atoi(threads));
    } else if (const char* only = value_of(argv[i], "--only=")) {
      options.only = only;
    } else if (const char* rounds = value_of(argv[i], "--rounds=")) {
      options.rounds = std::atoi(rounds);
    } else if (const char* results = value_of(argv[i], "--results=")) {
      options.results = results;
    } else if (std::strcmp(argv[i], "--laptop") == 0) {
      const double start = bench::now(bench::Clock::wall);
      ts::laptop();
      std::printf("%.6f\n", bench::now(bench::Clock::wall) - start);
      return 0;
    } else if (std::strcmp(argv[i], "--long") == 0) {
      options.slow = true;
    } else if (std::strcmp(argv[i], "--ops") == 0) {
      options.ops = true;
    } else if (std::strcmp(argv[i], "--markdown") == 0) {
      markdown = true;
    } else {
      return usage(argv[i]);
    }
  }
  if (markdown) {
    bench::save_markdown(options.directory + "/results.json", options.directory + "/README.md");
    return 0;
  }
  // Peers at their best: no kernels for another processor, as many threads as ours.
  unsetenv("OPENBLAS_CORETYPE");
  unsetenv("OPENBLAS_L2_SIZE");
  setenv("TINYSCALE_THREADS", "2", 0);
  setenv("OPENBLAS_NUM_THREADS", std::getenv("TINYSCALE_THREADS"), 1);
  bench::tell_openblas();
  bench::Bench bench(options);
  if (bench.load() > 0.5 * bench::all_threads()) {
    setenv("OMP_WAIT_POLICY", "PASSIVE",
           0);  // threads that wait spinning lose most on a busy machine
  }
  std::printf("%s, %d threads, load %.1f\n", ts::cpu().text.c_str(), bench::all_threads(),
              bench.load());
  bench::gemm_rows(bench);
  bench::skinny_rows(bench);
  bench::low_precision_rows(bench);
  bench::kernel_rows(bench);
  bench::training_rows(bench);
  bench::compiled_rows(bench);
  bench::host_rows(bench);
  bench::print_summary(bench);
  if (options.results.empty() && options.only.empty()) {
    options.results = options.directory + "/results.json";
  }
  if (!options.results.empty()) {
    bench::save_results(bench, options.results);
    const std::size_t dot = options.results.rfind(".json");
    bench::save_picture(bench, options.results.substr(0, dot) + ".svg");
  }
  return 0;
}
