// What training holds against its closed form: by the memory meter, and by what the system says.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "long_tests.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TINYSCALE_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TINYSCALE_TEST_SANITIZED 1
#endif
#endif

namespace {

// Bytes of a line of /proc/self/status, or -1 where there is none.
double status_bytes(const char* field) {
  std::FILE* file = std::fopen("/proc/self/status", "r");
  if (file == nullptr) {
    return -1;
  }
  double kib = -1;
  char line[256];
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::strncmp(line, field, std::strlen(field)) == 0) {
      kib = std::stod(line + std::strlen(field) + 1);
    }
  }
  std::fclose(file);
  return kib < 0 ? -1 : kib * 1024;
}

// Makes the present resident size the peak; false where the system cannot.
bool reset_peak() {
  std::FILE* file = std::fopen("/proc/self/clear_refs", "w");
  if (file == nullptr) {
    return false;
  }
  const bool written = std::fputs("5", file) >= 0;
  return std::fclose(file) == 0 && written;
}

ts::ModelConfig wide(const std::string& name) {
  ts::ModelConfig config = ts::config(name);
  config.width = 512;
  config.head_size = config.width / config.heads;
  config.hidden = name == "nano" ? 2048 : 1408;
  config.vocabulary = 256;
  config.context = 64;
  config.layers = 5;
  return config;
}

}  // namespace

TEST_CASE("a model with 200 MB of state grows the process by no more than the closed form") {
  [[maybe_unused]] bool first = true;  // later ones live in memory that the first gave back
  for (const std::string name : {"nano", "nano-llama"}) {
    CAPTURE(name);
    const ts::ModelConfig config = wide(name);
    const std::string line(4000, 'a');
    const ts::Text text = ts::make_text("memory", line + "bcdefghijklmnopqrstuvwxyz\n" + line);
    const double state = 16.0 * static_cast<double>(config.parameters());
    CHECK(state >= 200e6);
    const int batch = long_tests() ? 8 : 2;
    const ts::TrainingMemory formula = ts::training_memory(config, batch, config.context);
    ts::laptop();  // measured once in a program, in large arrays of its own: before training
    const bool resident = reset_peak();
    const double before = status_bytes("VmRSS:");
    ts::Transformer model(config, 1);
    ts::TrainOptions options;
    options.steps = 2;
    options.batch = batch;
    options.out = nullptr;
    const ts::TrainReport report = ts::train(model, text, options);
    const double peak = status_bytes("VmHWM:");
    REQUIRE(report.memory.rows.size() == 1);
    CHECK(report.memory.rows[0].predicted == doctest::Approx(formula.total()));
    CHECK(report.memory.rows[0].counted <= 1.1 * formula.total());
    CHECK(report.memory.rows[0].counted >= 0.8 * formula.total());
#if !defined(TINYSCALE_TEST_SANITIZED)
    if (resident && before > 0 && first) {
      MESSAGE("state " << state / 1e6 << " MB, formula " << formula.total() / 1e6 << " MB, meter "
                       << report.memory.rows[0].counted / 1e6 << " MB, resident size grew by "
                       << (peak - before) / 1e6 << " MB");
      CHECK(peak - before <= 1.1 * formula.total() + 16 * 1024 * 1024);
      CHECK(peak >= state);  // it was really measured
    } else if (first) {
      MESSAGE("skipped: this system does not tell the peak resident size");
    }
#else
    static_cast<void>(before + peak + static_cast<double>(resident));
#endif
    first = false;
  }
}
