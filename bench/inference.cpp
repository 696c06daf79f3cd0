// How many tokens a second does generation give, how near to the memory's limit, and beside what a
// user would pick? First whole generation, then a decoded token's matrix products alone, in every
// format of weights. The targets are those of the project.
// Peer: bench/decode_plain.c, plain loops as llama2.c has them, f32 and int8 in groups of 64,
// compiled -O3 and -Ofast -march=native with OpenMP; it answers through a pipe, in turn with ours.
//   make bench ONLY=inference   (ARGS="--rounds=5 --shape=15M"; --generation=int8: those rows
//   alone)
#include "bench.hpp"
#include "llama_model.hpp"
#include "options.hpp"
#include "worker.hpp"

#include <memory>

namespace ts = tinyscale;

namespace {

struct Shape {
  std::string name;
  std::int64_t width, hidden, layers, vocabulary;
};

// The matrices of one token's forward pass, the classifier last.
struct Weights {
  std::vector<ts::StoredMatrix> all;
  double bytes = 0;
  std::int64_t widest = 0;

  Weights(const Shape& s, const ts::StoreAs& how) {
    const std::int64_t d = s.width, f = s.hidden;
    const std::vector<float> from = bench::numbers(static_cast<std::size_t>(s.vocabulary * d), 1);
    const auto add = [&](std::int64_t rows, std::int64_t cols) {
      all.push_back(ts::kernels::store_matrix(rows, cols, from.data(), how));
      bytes += all.back().bytes();
      widest = std::max(widest, std::max(rows, cols));
    };
    for (std::int64_t layer = 0; layer < s.layers; ++layer) {
      for (int i = 0; i < 4; ++i) {
        add(d, d);
      }
      add(f, d);
      add(f, d);
      add(d, f);
    }
    add(s.vocabulary, d);
  }
  // m tokens at once; the classifier is asked for the last alone.
  void multiply(ts::Activations how, std::int64_t m, const float* x, float* y) const {
    for (const ts::StoredMatrix& w : all) {
      const bool last = &w == &all.back();
      ts::kernels::multiply_stored(w, how, last ? 1 : m, x, w.cols, y, w.rows);
    }
  }
};

struct Way {
  std::string name;
  std::function<double()> seconds;  // of one token; negative: it cannot
};

// Medians of samples taken in turn, after one turn of warm-up.
std::vector<double> medians(const std::vector<Way>& ways, int rounds) {
  std::vector<std::vector<double>> samples(ways.size());
  for (int round = 0; round <= rounds; ++round) {
    for (std::size_t w = 0; w < ways.size(); ++w) {
      usleep(5000);  // a peer's idle threads spin for a while
      const double seconds = ways[w].seconds ? ways[w].seconds() : -1;
      if (round > 0 && seconds > 0) {
        samples[w].push_back(seconds);
      }
    }
  }
  std::vector<double> out;
  for (const std::vector<double>& sample : samples) {
    out.push_back(bench::median(sample));
  }
  return out;
}

struct Run {
  Shape shape;
  int threads, rounds;
  std::string programs, kinds;  // rows of generation whose name has this; empty: all

  Way ours(const std::string& name, const bench::Work& work, double tokens) const {
    const bench::Work once = threads == 1 ? bench::serial(work) : work;
    return {name, [once, tokens] {
              const double first = bench::seconds_of(once, 1);
              const auto times = static_cast<std::int64_t>(0.04 / (first + 1e-9)) + 1;
              return bench::seconds_of(once, times) / static_cast<double>(times) / tokens;
            }};
  }
  Way plain(const std::string& program) const {
    return plain(program, shape.name == "15M" ? "products 24" : "products 4");
  }
  Way plain(const std::string& program, const std::string& line) const {
    const auto worker = std::make_shared<bench::Worker>(
        std::vector<std::string>{programs + "/" + program, shape.name},
        std::vector<std::string>{"OMP_NUM_THREADS=" + std::to_string(threads)});
    if (worker->first_line().empty()) {
      bench::skip(program, "it was not built");
      return {program, nullptr};
    }
    return {program, [worker, line] { return worker->ask(line); }};
  }
};

struct Kind {
  const char* name;
  ts::StoreAs store;
  ts::Activations activations;
  const char* peer;  // of bench/
  bool prefill;      // a row there too
};

std::vector<Kind> kinds() {
  using ts::Activations;
  using ts::BlockFormat;
  return {{"f32", {BlockFormat::f32, 0, 32}, Activations::f32, "decode_plain", true},
          {"bf16", {BlockFormat::bf16, 0, 32}, Activations::f32, "decode_plain", true},
          {"f16", {BlockFormat::f16, 0, 32}, Activations::f32, "decode_plain", false},
          {"int8, groups of 64",
           {BlockFormat::f32, 8, 64},
           Activations::int8_groups,
           "decode_plain_int8",
           true},
          {"int8, groups of 32",
           {BlockFormat::f32, 8, 32},
           Activations::int8_groups,
           "decode_plain_int8",
           false},
          {"int8, per channel",
           {BlockFormat::f32, 8, 0},
           Activations::int8_groups,
           "decode_plain_int8",
           false},
          {"4-bit, groups of 32",
           {BlockFormat::f32, 4, 32},
           Activations::int8_groups,
           "decode_plain_int8",
           true},
          {"int8 g64, f32 activations",
           {BlockFormat::f32, 8, 64},
           Activations::f32,
           "decode_plain_int8",
           false}};
}

void decode(const Run& run) {
  ts::Table table;
  table.columns = {"weights",      "MB a token", "tokens/s",  "GB/s",     "of the limit",
                   "plain -Ofast", "ours / it",  "plain -O3", "ours / it"};
  const std::vector<float> x = bench::numbers(4096, 3);
  Way fast[2] = {run.plain("decode_plain"), run.plain("decode_plain_int8")};
  Way slow[2] = {run.plain("decode_plain_o3"), run.plain("decode_plain_int8_o3")};
  for (const Kind& kind : kinds()) {
    const Weights w(run.shape, kind.store);
    std::vector<float> y(static_cast<std::size_t>(w.widest));
    const bench::ReadLimit limit(w.bytes);
    const int peer = std::string(kind.peer) == "decode_plain" ? 0 : 1;
    const std::vector<double> s =
        medians({run.ours(
                     "ours", [&] { w.multiply(kind.activations, 1, x.data(), y.data()); }, 1),
                 run.ours("limit", limit.work(), 1), fast[peer], slow[peer]},
                run.rounds);
    table.add({kind.name, ts::format_fixed(w.bytes / 1e6, 1), ts::format_fixed(1 / s[0], 0),
               bench::rate(w.bytes, s[0], 1e9), bench::ratio(s[1], s[0]), bench::rate(1, s[2], 1),
               bench::ratio(s[2], s[0]), bench::rate(1, s[3], 1), bench::ratio(s[3], s[0])});
  }
  std::printf("decode, %s shape, %d thread%s, products only\n%s\n", run.shape.name.c_str(),
              run.threads, run.threads == 1 ? "" : "s", table.text().c_str());
}

void prefill(const Run& run) {
  const std::int64_t tokens = 256;
  ts::Table table;
  table.columns = {"weights", "tokens/s", "plain -Ofast, token by token", "ours / it"};
  const std::vector<float> x =
      bench::numbers(static_cast<std::size_t>(tokens * run.shape.hidden), 3);
  std::vector<float> y(
      static_cast<std::size_t>(std::max(tokens * run.shape.hidden, run.shape.vocabulary)));
  Way fast[2] = {run.plain("decode_plain"), run.plain("decode_plain_int8")};
  for (const Kind& kind : kinds()) {
    if (!kind.prefill) {
      continue;
    }
    const Weights w(run.shape, kind.store);
    const int peer = std::string(kind.peer) == "decode_plain" ? 0 : 1;
    const std::vector<double> s =
        medians({run.ours(
                     "ours", [&] { w.multiply(kind.activations, tokens, x.data(), y.data()); },
                     static_cast<double>(tokens)),
                 fast[peer]},
                run.rounds);
    table.add({kind.name, ts::format_fixed(1 / s[0], 0), bench::rate(1, s[1], 1),
               bench::ratio(s[1], s[0])});
  }
  std::printf("prefill of %lld tokens, %s shape, %d thread%s, products only\n%s\n",
              static_cast<long long>(tokens), run.shape.name.c_str(), run.threads,
              run.threads == 1 ? "" : "s", table.text().c_str());
}

// A Llama of that shape with random weights, as the peers have it.
ts::Transformer model_of(const Shape& s) {
  ts::ModelConfig c;
  c.name = "llama " + s.name;
  c.layers = s.layers;
  c.width = s.width;
  c.heads = c.kv_heads = s.width / (s.name == "15M" ? 48 : 64);
  c.head_size = c.width / c.heads;
  c.hidden = s.hidden;
  c.vocabulary = s.vocabulary;
  c.context = s.name == "15M" ? 256 : 1024;
  c.norm = ts::Norm::rms;
  c.position = ts::Position::rotary;
  c.activation = ts::Activation::swiglu;
  return ts::Transformer(c, /*seed=*/1);
}

// "1.62 met" of a target; where even the limit's time would miss it, "1.31 past the limit (1.44)".
std::string verdict(double theirs, double ours, double target, double limit = 0) {
  if (!(theirs > 0 && ours > 0)) {
    return "-";
  }
  const std::string ratio = ts::format_fixed(theirs / ours, 2);
  if (theirs / ours >= target) {
    return ratio + " met";
  }
  return limit > 0 && theirs / limit < target
             ? ratio + " past the limit (" + ts::format_fixed(theirs / limit, 2) + ")"
             : ratio + " missed";
}

const std::vector<std::string> generated_kinds = {"f32", "bf16", "int8, groups of 64",
                                                  "4-bit, groups of 32"};

// Whole generation, everything in it: ours and the C programs make the same number of tokens from
// an empty cache; the roof is one reading of the weights' bytes a token, of prefill the
// multiply-adds that this laptop does in f32.
void generation(const Run& run) {
  ts::Table table;
  table.columns = {"weights",
                   "MB a token",
                   "tokens/s",
                   "of the limit",
                   "plain -Ofast",
                   "ours / it",
                   "target",
                   "ours / plain -O3",
                   "target ",
                   "prefill 256",
                   "ours / -Ofast token by token",
                   "target  "};
  const ts::Transformer f32 = model_of(run.shape);
  const std::int64_t tokens = run.shape.name == "15M" ? 64 : 16;
  const std::string line = "decode " + std::to_string(tokens);
  const bool one = run.threads == 1;
  std::vector<std::pair<Kind, bool>> rows;  // and whether the head is screened
  for (const Kind& kind : kinds()) {
    const std::string name = kind.name;
    if (std::count(generated_kinds.begin(), generated_kinds.end(), name) > 0 &&
        name.find(run.kinds) != std::string::npos) {
      rows.push_back({kind, false});
      if (name != "4-bit, groups of 32") {
        rows.push_back({kind, true});
      }
    }
  }
  for (const auto& row : rows) {
    const Kind& kind = row.first;
    const std::string name = kind.name;
    ts::LoadOptions how;
    how.weights = name == "bf16"                ? ts::Weights::bf16
                  : name == "f32"               ? ts::Weights::f32
                  : kind.store.packed_bits == 8 ? ts::Weights::int8
                                                : ts::Weights::int4;
    how.group = kind.store.group;
    how.activations = kind.activations;
    ts::Transformer model =
        how.weights == ts::Weights::f32 && !row.second ? f32 : ts::with_weights(f32, how);
    if (row.second) {
      ts::screen_head(model);
    }
    ts::GenerateOptions greedy;
    greedy.temperature = 0;
    double bytes = 0;
    const bench::Work decode = [&] {
      const ts::Generation made = ts::generate_batch(model, {{1}}, tokens, greedy);
      bytes = made.decode.all.weight_bytes / static_cast<double>(made.decode.steps);
    };
    const std::vector<std::int32_t> prompt(256, 1);
    double flops = 0;
    const bench::Work prefill = [&] {
      flops = ts::generate_batch(model, {prompt}, 1, greedy).prefill.all.matmul_flops;
    };
    decode();
    prefill();
    const bench::ReadLimit limit(bytes);
    const std::string peer = kind.peer;
    const std::vector<double> s = medians(
        {run.ours("ours", decode, static_cast<double>(tokens)), run.ours("limit", limit.work(), 1),
         run.plain(peer, line), run.plain(peer + "_o3", line), run.ours("prefill", prefill, 256),
         run.ours("a FLOP", bench::limit_loop, bench::limit_flops)},
        run.rounds);
    const bool f = name == "f32" || name == "bf16";
    const bool eight = one && name == "int8, groups of 64";  // the target is for one thread
    table.add({name + (row.second ? ", head screened" : ""), ts::format_fixed(bytes / 1e6, 1),
               ts::format_fixed(1 / s[0], 1), bench::ratio(s[1], s[0]), bench::rate(1, s[2], 1),
               f || eight ? verdict(s[2], s[0], f ? (one ? 1.5 : 1.4) : 3, s[1])
                          : bench::ratio(s[2], s[0]),
               f       ? (one ? "1.5" : "1.4")
               : eight ? "3"
                       : "-",
               f ? verdict(s[3], s[0], 3, s[1]) : bench::ratio(s[3], s[0]), f ? "3" : "-",
               ts::format_fixed(1 / s[4], 0),
               f ? verdict(s[2], s[4], 20, s[5] * flops / 256) : bench::ratio(s[2], s[4]),
               f ? "20" : "-"});
  }
  std::printf("generation, %s shape, %d thread%s, everything in it\n%s\n", run.shape.name.c_str(),
              run.threads, one ? "" : "s", table.text().c_str());
}

// The folder whose node_modules has node-llama-cpp; empty: nowhere.
std::string llama_folder(const std::string& programs) {
  const char* const set = std::getenv("TINYSCALE_LLAMA");
  for (const std::string& folder :
       {std::string(set != nullptr ? set : ""), programs + "/../peers"}) {
    const std::string entry = folder + "/node_modules/node-llama-cpp/dist/index.js";
    if (std::FILE* file = std::fopen(entry.c_str(), "rb")) {
      std::fclose(file);
      return folder;
    }
  }
  return "";
}

// The same weights in llama.cpp and here, decode and prefill.
void beside_llama(const Run& run) {
  const std::string folder = llama_folder(run.programs);
  if (folder.empty()) {
    return bench::skip("llama.cpp", "no node-llama-cpp; tools/install_peers.sh brings it");
  }
  const ts::Transformer f32 = model_of(run.shape);
  const struct {
    ts::BlockFormat format;
    ts::Weights weights;
    double target;
  } rows[] = {{ts::BlockFormat::f32, ts::Weights::f32, 1},
              {ts::BlockFormat::q8_0, ts::Weights::int8, 2.5},
              {ts::BlockFormat::q4_0, ts::Weights::int4, 2}};
  ts::Table table;
  table.columns = {"weights", "tokens/s",       "llama.cpp",  "ours / it",
                   "target",  "prefill of 256", "llama.cpp ", "ours / it "};
  for (const auto& row : rows) {
    const std::string path = run.programs + "/llama.gguf";
    bench::write_llama(f32, row.format, path);
    const auto worker = std::make_shared<bench::Worker>(
        std::vector<std::string>{"node", bench::bench_folder(run.programs) + "/llama_worker.mjs",
                                 folder, path, std::to_string(run.threads)});
    if (worker->first_line().empty()) {
      bench::skip("llama.cpp", "node cannot load it");
      return;
    }
    ts::LoadOptions how;
    how.weights = row.weights;
    how.activations = ts::Activations::int8_blocks;
    const ts::Transformer model =
        row.weights == ts::Weights::f32 ? f32 : ts::with_weights(f32, how);
    ts::GenerateOptions greedy;
    greedy.temperature = 0;
    const std::int64_t tokens = run.shape.name == "15M" ? 64 : 16;
    const std::vector<std::int32_t> prompt(256, 1);
    double bytes = 0;
    const bench::Work decode = [&] {
      const ts::Generation made = ts::generate_batch(model, {{1}}, tokens, greedy);
      bytes = made.decode.all.weight_bytes / static_cast<double>(made.decode.steps);
    };
    decode();
    const bench::ReadLimit limit(bytes);
    const std::vector<double> s =
        medians({run.ours("decode", decode, static_cast<double>(tokens)),
                 {"llama.cpp", [&] { return worker->ask("decode " + std::to_string(tokens)); }},
                 run.ours(
                     "prefill", [&] { ts::generate_batch(model, {prompt}, 1, greedy); }, 256),
                 {"llama.cpp", [&] { return worker->ask("prefill 256"); }},
                 run.ours("limit", limit.work(), 1)},
                run.rounds);
    table.add({ts::name_of(row.format), ts::format_fixed(1 / s[0], 1), bench::rate(1, s[1], 1),
               verdict(s[1], s[0], row.target, s[4]), ts::format_fixed(row.target, 1),
               ts::format_fixed(1 / s[2], 0), bench::rate(1, s[3], 1), verdict(s[3], s[2], 1)});
    std::remove(path.c_str());
  }
  std::printf(
      "beside llama.cpp (through node, whose share of a token is in its figures), %s shape, "
      "%d thread%s\n%s\n",
      run.shape.name.c_str(), run.threads, run.threads == 1 ? "" : "s", table.text().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 5;
  std::string only, kinds;
  bench::read_options(argc, argv,
                      {bench::whole("--rounds=", 1, &rounds), bench::text("--shape=", &only),
                       bench::text("--generation=", &kinds)});
  const std::string programs = bench::folder_of(argv[0]);
  bench::print_machine("Decoding: stored weights against the memory's limit and plain loops");
  const std::vector<Shape> shapes = {{"15M", 288, 768, 6, 32000}, {"110M", 768, 2048, 12, 32000}};
  bench::must_choose("--shape=", only, {shapes[0].name, shapes[1].name});
  bench::must_choose("--generation=", kinds, generated_kinds);
  std::vector<int> threads{1};
  if (ts::thread_count() > 1) {
    threads.push_back(ts::thread_count());
  }
  for (const Shape& shape : shapes) {
    if (shape.name.find(only) == std::string::npos) {
      continue;
    }
    for (const int count : threads) {
      const Run run{shape, count, rounds, programs, kinds};
      generation(run);
      if (!kinds.empty()) {
        continue;
      }
      beside_llama(run);
      decode(run);
      prefill(run);
    }
  }
  return 0;
}
