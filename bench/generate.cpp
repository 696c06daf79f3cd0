// How many tokens a second does generation give, one sequence, with the cache?
// Each token must read every weight once: the roof is one reading of as many bytes, on one thread.
// Peer: a token's matrix-vector products alone, as plain loops compiled as this file is, and with
// -Ofast and AVX2 where the compiler allows it.
//   g++ -std=c++17 -O2 -pthread -I. bench/generate.cpp && ./a.out
#include "bench.hpp"

namespace ts = tinyscale;

#if defined(__GNUC__) && !defined(__clang__) && TINYSCALE_X86
#define FAST __attribute__((optimize("Ofast"), target("avx2,fma")))
#define HAVE_FAST 1
#else
#define FAST
#define HAVE_FAST 0
#endif

using Dots = void (*)(std::int64_t n, std::int64_t k, const float* w, const float* x, float* y);

void plain_dots(std::int64_t n, std::int64_t k, const float* w, const float* x, float* y) {
  for (std::int64_t i = 0; i < n; ++i) {
    float sum = 0;
    for (std::int64_t j = 0; j < k; ++j) {
      sum += w[i * k + j] * x[j];
    }
    y[i] = sum;
  }
}

FAST void fast_dots(std::int64_t n, std::int64_t k, const float* w, const float* x, float* y) {
  for (std::int64_t i = 0; i < n; ++i) {
    float sum = 0;
    for (std::int64_t j = 0; j < k; ++j) {
      sum += w[i * k + j] * x[j];
    }
    y[i] = sum;
  }
}

// Every matrix of the model times a vector, once a token; an untied lookup is left out.
void token(const ts::Transformer& model, Dots dots, std::vector<float>& x, std::vector<float>& y) {
  for (const ts::Tensor& weight : model.tensors()) {
    if (weight.dims() == 2) {
      dots(weight.dim(0), weight.dim(1), weight.data(), x.data(), y.data());
    }
  }
}

ts::ModelConfig stories() {  // the 15M shape of the Llama family's teaching models
  ts::ModelConfig c;
  c.name = "llama 15M";
  c.layers = 6;
  c.width = 288;
  c.heads = c.kv_heads = 6;
  c.head_size = 48;
  c.hidden = 768;
  c.vocabulary = 32000;
  c.context = 256;
  c.norm = ts::Norm::rms;
  c.position = ts::Position::rotary;
  c.activation = ts::Activation::swiglu;
  return c;
}

void add_row(ts::Table& table, const ts::ModelConfig& config, std::int64_t tokens) {
  const ts::Transformer model(config, /*seed=*/1);
  const std::vector<std::int32_t> prompt(8, 1);
  ts::GenerateOptions options;
  options.temperature = 0;
  const bench::Work own = [&] { ts::generate_tokens(model, prompt, tokens, options); };
  ts::GenerateOptions without = options;
  without.cache = false;
  const bench::Work uncached = [&] { ts::generate_tokens(model, prompt, tokens, without); };
  const std::size_t widest =
      static_cast<std::size_t>(std::max(config.vocabulary, std::max(config.hidden, config.width)));
  std::vector<float> x(widest, 0.5f), y(widest);
  const bench::Work plain = [&] { token(model, plain_dots, x, y); };
  const bench::Work fast = [&] { token(model, fast_dots, x, y); };
  bench::Rounds few;
  few.rounds = 3;
  const bool can_fast = HAVE_FAST != 0 && ts::cpu().has(ts::CpuPath::avx2);
  const double bytes = 4.0 * static_cast<double>(config.parameters());
  const bench::ReadLimit read(bytes);
  const std::vector<double> t =
      bench::compare({bench::serial(own), own, plain, can_fast ? fast : bench::Work(),
                      tokens < 200 ? bench::Work() : uncached, bench::serial(read.work())},
                     few);
  const double count = static_cast<double>(tokens);
  table.add({config.name, ts::format_bytes(bytes), bench::rate(count, t[0], 1),
             bench::rate(count, t[1], 1), bench::ratio(t[5], t[0] / count), bench::rate(1, t[2], 1),
             bench::ratio(t[2], t[0] / count), bench::rate(1, t[3], 1),
             bench::ratio(t[3], t[0] / count), bench::rate(count, t[4], 1)});
}

int main() {
  bench::print_machine("generate: tokens a second, one sequence, f32");
  const std::string all = std::to_string(ts::thread_count()) + "T";
  ts::Table table;
  table.columns = {"model",      "weights",    "1T",        all,         "1T / roof",
                   "plain dots", "1T / plain", "fast dots", "1T / fast", "no cache"};
  ts::ModelConfig nano = ts::config("nano");
  nano.vocabulary = 65;
  nano.context = 256;
  add_row(table, nano, 240);
  add_row(table, stories(), 100);
  std::printf("%s", table.text().c_str());
  std::printf(
      "\n1T: one thread; %s: all. plain dots: the products alone, no attention, norms or "
      "sampling.\n",
      all.c_str());
  return 0;
}
