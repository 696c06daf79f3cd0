// How near to the limit of this machine are the kernels, and how do they stand beside the libraries
// that people use? Ours and every peer that is installed take turns in one run.
//   make bench                 the whole table, some minutes; writes bench/results.json and .svg
//   make bench ONLY=f32-1t     groups whose key contains that
//   make bench ARGS=--rounds=5 that many rounds
//   make bench ARGS=--long     more rounds, the slow peers in every one
//   make bench ARGS=--ops      what each op of a training step costs
//   make bench ARGS=--markdown puts the table of bench/results.json into bench/README.md
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "../options.hpp"
#include "peers.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

void every_group(bench::Bench& bench) {
  bench::gemm_rows(bench);
  bench::skinny_rows(bench);
  bench::low_precision_rows(bench);
  bench::kernel_rows(bench);
  bench::eager_rows(bench);
  bench::training_rows(bench);
  bench::compiled_rows(bench);
  bench::host_rows(bench);
}

}  // namespace

int main(int argc, char** argv) try {
  bench::Options options;
  options.programs = bench::folder_of(argv[0]);
  bool markdown = false, laptop = false;
  int openblas = 0;
  bench::read_options(
      argc, argv,
      {bench::text("--only=", &options.only), bench::whole("--rounds=", 1, &options.rounds),
       bench::flag("--long", &options.slow), bench::flag("--ops", &options.ops),
       bench::text("--results=", &options.results), bench::flag("--markdown", &markdown),
       // Of the programs that this one starts.
       bench::whole("--serve-openblas=", 1, &openblas), bench::flag("--laptop", &laptop)});
  if (openblas > 0) {
    return bench::serve_openblas(openblas);
  }
  if (laptop) {
    const double start = bench::now(bench::Clock::wall);
    ts::laptop();
    const double seconds = bench::now(bench::Clock::wall) - start;
    const ts::LaptopRates& all = ts::laptop_measurement().all;
    std::printf("%.6f %.6g %.6g %.6g %.6g %.6g\n", seconds, all.f32, all.bandwidth[0],
                all.bandwidth[1], all.bandwidth[2], all.bandwidth[3]);
    return 0;
  }
  {  // Nothing is called so: every group is asked about, none runs.
    bench::Options none;
    none.only = "?";
    bench::Bench names(none);
    every_group(names);
    names.must_have(options.only);
  }
  options.directory = bench::bench_folder(options.programs);
  if (markdown) {
    bench::save_markdown(options.directory + "/results.json", options.directory + "/README.md");
    return 0;
  }
  if (options.results.empty() && options.only.empty()) {
    options.results = options.directory + "/results.json";
  }
  bench::check_results(options.results);
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
  every_group(bench);
  bench::print_summary(bench);
  if (!options.results.empty()) {
    bench::save_results(bench, options.results);
    bench::save_picture(bench, bench::picture_of(options.results));
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
