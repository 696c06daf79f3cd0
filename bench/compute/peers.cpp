// OpenBLAS, BLIS, and the peers that are programs.
#include "peers.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace bench {
namespace {

void* open_first(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) {
      return library;
    }
  }
  return nullptr;
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

Blas open_openblas(Bench& bench) {
  Blas blas;
  blas.name = "OpenBLAS";
  void* const library =
      open_first({"libopenblas.so.0", "libopenblas.so", "libopenblasp.so.0", "libopenblas.dylib",
                  "/opt/homebrew/opt/openblas/lib/libopenblas.dylib"});
  if (library == nullptr) {
    bench.skip("OpenBLAS", "libopenblas was not found");
    return blas;
  }
  find(library, "cblas_sgemm", blas.sgemm);
  find(library, "cblas_sgemv", blas.sgemv);
  find(library, "openblas_set_num_threads", blas.set_threads);
  char* (*text)() = nullptr;
  find(library, "openblas_get_config", text);
  const char* const told = std::getenv("OPENBLAS_CORETYPE");
  bench.peer(ts::detail::cat({text != nullptr ? text() : "OpenBLAS",
                              told != nullptr ? " (OPENBLAS_CORETYPE is set)" : ""}));
  return blas;
}

Blas open_blis(Bench& bench) {
  Blas blas;
  blas.name = "BLIS";
  void* const library = open_first({"libblis.so.4", "libblis.so.3", "libblis.so", "libblis.dylib"});
  if (library == nullptr) {
    bench.skip("BLIS", "libblis was not found");
    return blas;
  }
  find(library, "cblas_sgemm", blas.sgemm);
  find(library, "cblas_sgemv", blas.sgemv);
  // Takes a dim_t, 64 bits wide in every build for a 64-bit machine.
  static void (*set)(std::int64_t) = nullptr;
  find(library, "bli_thread_set_num_threads", set);
  if (set != nullptr) {
    blas.set_threads = [](int threads) { set(threads); };
  }
  const char* (*version)() = nullptr;
  find(library, "bli_info_get_version_str", version);
  const std::string number = version != nullptr ? version() : "";
  if (number.compare(0, 3, "0.9") == 0 && processor_flag("avx512f")) {
    setenv("BLIS_ARCH_TYPE", "0", 0);  // skx; on a processor younger than it, generic would be used
  }
  void (*init)() = nullptr;
  find(library, "bli_init", init);
  if (init != nullptr) {
    init();
  }
  int (*arch)() = nullptr;
  find(library, "bli_arch_query_id", arch);
  const char* (*arch_name)(int) = nullptr;
  find(library, "bli_arch_string", arch_name);
  const bool named = arch != nullptr && arch_name != nullptr;
  bench.peer(ts::detail::cat(
      {"BLIS ", number, named ? ", kernels " : "", named ? arch_name(arch()) : ""}));
  return blas;
}

}  // namespace

Way Blas::multiply(int threads, int m, int n, int k, const float* a, const float* b,
                   float* c) const {
  Way way;
  way.name = name;
  if (!found()) {
    return way;
  }
  const Sgemm call = sgemm;
  const auto set = set_threads;
  return writing(timed(
                     name, clock_for(threads),
                     [=] { call(101, 111, 111, m, n, k, 1.0f, a, k, b, n, 0.0f, c, n); },
                     [=] { set(threads); }),
                 c, std::int64_t{m} * n);
}

Way Blas::times_vector(int threads, int n, int k, const float* w, const float* x, float* y) const {
  Way way;
  way.name = name;
  if (!found() || sgemv == nullptr) {
    return way;
  }
  const Sgemv call = sgemv;
  const auto set = set_threads;
  return writing(
      timed(
          name, clock_for(threads), [=] { call(101, 111, n, k, 1.0f, w, k, x, 1, 0.0f, y, 1); },
          [=] { set(threads); }),
      y, n);
}

const Blas& openblas(Bench& bench) {
  static const Blas blas = open_openblas(bench);
  return blas;
}

const Blas& blis(Bench& bench) {
  static const Blas blas = open_blis(bench);
  return blas;
}

Numbers numbers(std::int64_t count, std::uint64_t seed) {
  Numbers out(static_cast<std::size_t>(count));
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (float& x : out) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    x = static_cast<float>(static_cast<std::int64_t>(state >> 40)) * (2.0f / 16777216.0f) - 1.0f;
  }
  return out;
}

Way asked(const std::string& name, const std::shared_ptr<Worker>& worker, const std::string& line) {
  Way way;
  way.name = name;
  if (worker) {
    way.sample = [worker, line, name] {
      const double seconds = worker->ask(line);
      if (seconds < 0) {
        std::printf("  skipped: %s: %s: %s\n", name.c_str(), line.c_str(),
                    worker->reason().c_str());
      }
      return seconds;
    };
  }
  return way;
}

std::shared_ptr<Worker> torch(Bench& bench, int threads) {
  static std::shared_ptr<Worker> none, kept;
  static int kept_threads = 0;
  static bool missing = false;
  if (missing || (kept && kept_threads == threads)) {
    return missing ? none : kept;
  }
  kept.reset();
  const std::string count = std::to_string(threads);
  for (const char* python : {"python3", "/usr/bin/python3"}) {
    kept = std::make_shared<Worker>(
        std::vector<std::string>{python, bench.options().directory + "/torch_worker.py", count},
        std::vector<std::string>{"OMP_NUM_THREADS=" + count, "OPENBLAS_NUM_THREADS=" + count});
    kept_threads = threads;
    if (!kept->first_line().empty()) {
      bench.peer(kept->first_line());
      return kept;
    }
  }
  missing = true;
  bench.skip("PyTorch", "no python3 here can import torch");
  return none;
}

std::shared_ptr<Worker> openblas_as(Bench& bench, const std::string& core, int threads) {
  const auto worker = std::make_shared<Worker>(
      std::vector<std::string>{"/proc/self/exe", "--serve-openblas=" + std::to_string(threads)},
      std::vector<std::string>{"OPENBLAS_CORETYPE=" + core});
  if (worker->first_line().empty()) {
    bench.skip("OpenBLAS as " + core, "it could not be started again");
    return nullptr;
  }
  bench.peer(worker->first_line());
  return worker;
}

void tell_openblas() {
  Worker alone({"/proc/self/exe", "--serve-openblas=1"});
  const ts::CpuInfo& cpu = ts::cpu();
  if (alone.first_line().find("Prescott") != std::string::npos && cpu.avx2) {
    setenv("OPENBLAS_CORETYPE", cpu.avx512f ? "SkylakeX" : "Haswell", 1);
  }
}

int serve_openblas(int threads) {
  Bench silent((Options()));
  void* const library = open_first({"libopenblas.so.0", "libopenblas.so", "libopenblasp.so.0"});
  if (library == nullptr) {
    return 1;
  }
  Blas blas;
  find(library, "cblas_sgemm", blas.sgemm);
  find(library, "openblas_set_num_threads", blas.set_threads);
  char* (*text)() = nullptr;
  find(library, "openblas_get_config", text);
  std::printf("%s\n", text != nullptr ? text() : "OpenBLAS");
  std::fflush(stdout);
  int m = 0, n = 0, k = 0, shape[3] = {0, 0, 0};
  Numbers a, b, c;
  Way way;
  while (std::scanf("%d %d %d", &m, &n, &k) == 3) {
    if (m != shape[0] || n != shape[1] || k != shape[2]) {
      shape[0] = m;
      shape[1] = n;
      shape[2] = k;
      a = numbers(std::int64_t{m} * k, 1);
      b = numbers(std::int64_t{k} * n, 2);
      c = numbers(std::int64_t{m} * n, 3);
      way = blas.multiply(threads, m, n, k, a.data(), b.data(), c.data());
    }
    std::printf("%.9g\n", way.sample());
    std::fflush(stdout);
  }
  return 0;
}

std::shared_ptr<Worker> plain_c(Bench& bench, const std::string& shape, int threads) {
  const auto worker = std::make_shared<Worker>(
      std::vector<std::string>{bench.options().programs + "/train_plain", shape},
      std::vector<std::string>{"OMP_NUM_THREADS=" + std::to_string(threads)});
  if (worker->first_line().empty()) {
    bench.skip("C program", "train_plain was not built");
    return nullptr;
  }
  bench.peer(worker->first_line());
  return worker;
}

}  // namespace bench
