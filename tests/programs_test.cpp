// The programs that show the public interface, as a user writes them: every name in them stays.
// The lines of each program are between the marks; sizes are smaller where a run would be slow.
#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>

#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

// What std::cout is given until stop().
struct Capture {
  Capture() : before(std::cout.rdbuf(text.rdbuf())) {}
  ~Capture() { stop(); }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  void stop() { std::cout.rdbuf(before); }
  bool has(const std::string& words) const { return text.str().find(words) != std::string::npos; }

  std::ostringstream text;
  std::streambuf* before;
};

double difference(const ts::Tensor& a, const ts::Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  double worst = 0;
  for (std::int64_t i = 0; i < a.count(); ++i) {
    worst = std::fmax(worst, std::fabs(static_cast<double>(a.data()[i] - b.data()[i])));
  }
  return worst;
}

std::string temporary(const std::string& name) {
  static const auto start = std::chrono::steady_clock::now().time_since_epoch().count();
  const char* folder = std::getenv("TMPDIR");
  return std::string(folder != nullptr ? folder : ".") + "/tinyscale_" + std::to_string(start) +
         "_" + name;
}

// A text file with a little to learn, removed at the end.
struct TextFile {
  TextFile() : path(temporary("input.txt")) {
    std::FILE* file = std::fopen(path.c_str(), "wb");
    REQUIRE(file != nullptr);
    for (int i = 0; i < 200; ++i) {
      std::fputs("The quick brown fox jumps over the lazy dog.\n", file);
    }
    std::fclose(file);
  }
  ~TextFile() { std::remove(path.c_str()); }
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;

  std::string path;
};

}  // namespace

TEST_CASE("program 1: what bounds this op?") {
  Capture out;
  // ---- {8, 4096} and {4096, 4096} there
  ts::Tensor x = ts::randn({8, 512}, /*seed=*/1), w = ts::randn({512, 512}, 2);
  ts::Profile profile;
  ts::Tensor y = ts::gelu(ts::matmul(x, w));
  std::cout << profile.roofline(ts::chip("tpu-v5e"), ts::DType::bf16)
            << profile.roofline(ts::laptop());
  ts::Counters c = profile.totals();
  // ----
  out.stop();
  CHECK(y.shape() == ts::Shape{8, 512});
  CHECK(c.matmul_flops == 2.0 * 8 * 512 * 512);
  CHECK(c.vector_flops > 8 * 512);
  CHECK(c.bytes_read == 4.0 * (8 * 512 + 512 * 512 + 8 * 512));
  CHECK(c.bytes_written == 4.0 * (8 * 512 + 8 * 512));
  CHECK(c.seconds > 0);
  const ts::RooflineReport there = profile.roofline(ts::chip("tpu-v5e"), ts::DType::bf16);
  REQUIRE(there.rows.size() == 2);
  CHECK(there.rows[0].bytes == 2.0 * (8 * 512 + 512 * 512 + 8 * 512));
  CHECK(there.rows[0].bound == "memory");
  CHECK(there.rows[0].seconds == doctest::Approx(there.rows[0].bytes / 8.19e11));
  for (const char* column : {"FLOPs/byte", "T_math", "T_vector", "T_mem", "bound by", "T formula",
                             "T measured", "level"}) {
    CAPTURE(column);
    CHECK(out.has(column));
  }
}

TEST_CASE("program 2: what does a systolic array do with it?") {
  const ts::Tensor x = ts::randn({8, 160}, 1), w = ts::randn({160, 130}, 2);
  Capture out;
  // ---- timing(8, 4096, 4096) there
  ts::SystolicArray array(128, 128, ts::Dataflow::weight_stationary);
  array.schedule = ts::Schedule::doubled;
  array.drain = ts::Drain::shifted;
  ts::SystolicRun run = array.matmul(x, w);
  std::cout << run;
  ts::SystolicTiming t = array.timing(8, 160, 130);
  std::cout << ts::wavefront(array, x, w, 17);
  // ----
  out.stop();
  CHECK(t.cycles == run.cycles);
  CHECK(t.cycles == 3 * 128 + 8 + 2 * 128 + 128 - 2);  // (F - 1) max(T, R) + T + 2R + C - 2
  CHECK(t.utilization == run.utilization);
  CHECK(t.mapping_efficiency == run.mapping_efficiency);
  CHECK(t.sram_reads_input == run.sram_reads_input);
  CHECK(t.sram_reads_weight == run.sram_reads_weight);
  CHECK(t.sram_writes_output == run.sram_writes_output);
  CHECK(t.ledger == run.ledger);
  CHECK(difference(run.output, ts::matmul(x, w)) < 1e-4);
  CHECK(out.has("simulated"));
  CHECK(out.has("tick 17"));
  const ts::Dataflow others[] = {ts::Dataflow::output_stationary, ts::Dataflow::input_stationary};
  const ts::Schedule schedules[] = {ts::Schedule::serial, ts::Schedule::doubled};
  for (const ts::Dataflow dataflow : others) {
    for (const ts::Schedule schedule : schedules) {
      ts::SystolicArray other(16, 16, dataflow);
      other.schedule = schedule;
      CHECK(other.matmul(x, w).cycles == other.timing(8, 160, 130).cycles);
    }
  }
  ts::SystolicArray instant(16, 16, ts::Dataflow::output_stationary);
  instant.schedule = ts::Schedule::serial;
  instant.drain = ts::Drain::instant;
  CHECK(instant.matmul(x, w).cycles == instant.timing(8, 160, 130).cycles);
}

#if !defined(TINYSCALE_NO_THREADS)
TEST_CASE("program 3: what is an AllGather?") {
  Capture out;
  // ----
  ts::Mesh mesh(ts::machine("tpu-v5e", {4, 2}), {{"x", 4}, {"y", 2}});
  ts::MeshRun run = mesh.run([](ts::Device& device) {
    ts::Tensor mine = ts::full({1024}, float(device.rank()));
    ts::Tensor all = device.all_gather(mine, "x");
    device.keep("all", all);
  });
  std::cout << run;
  std::cout << run.on(ts::machine("h100", {1, 8}));
  // ----
  out.stop();
  for (int rank = 0; rank < 8; ++rank) {
    const ts::Tensor all = run.kept(rank, "all");
    REQUIRE(all.shape() == ts::Shape{4096});
    for (int i = 0; i < 4; ++i) {
      CHECK(all.at({1024 * i}) == static_cast<float>(2 * i + rank % 2));  // same y, all x
    }
  }
  CHECK(run.steps() == 3);
  CHECK(run.seconds == doctest::Approx(3 * (1e-6 + 4096 / 45e9)));
  CHECK(run.on(ts::machine("h100", {1, 8})).steps() == 3);
  CHECK(out.has("all_gather"));
  CHECK(out.has("critical path of 3 messages"));
}
#endif

TEST_CASE("program 5: a mini transformer on real text [slow]") {
  const TextFile input;
  const std::string saved = temporary("nano.safetensors");
  Capture out;
  // ---- "input.txt", 500 steps, "nano.safetensors" there
  ts::Text text = ts::read_text(input.path);
  ts::Transformer model(ts::config("nano"), /*seed=*/1);
  ts::TrainOptions options;
  options.steps = 12;
  ts::TrainReport report = ts::train(model, text, options);
  std::cout << report << ts::generate(model, text, "The ", 200);
  model.save(saved);
  // ----
  out.stop();
  CHECK(model.config.layers == 4);
  CHECK(model.config.heads == 4);
  CHECK(model.config.width == 128);
  CHECK(model.config.context == 64);
  CHECK(model.config.vocabulary == 256);
  CHECK(report.losses.size() == 12);
  CHECK(std::fabs(report.losses.front() - std::log(256.0)) < 0.5);
  CHECK(report.losses.back() < report.losses.front());
  CHECK(out.has("tokens/s  MFU "));
  CHECK(text.text().find("characters (") != std::string::npos);
  const ts::Transformer again = ts::load(saved);
  std::remove(saved.c_str());
  CHECK(again.count() == model.count());
  ts::GenerateOptions greedy;
  greedy.temperature = 0;
  CHECK(ts::generate(again, "The ", 20, greedy) == ts::generate(model, text, "The ", 20, greedy));
}

TEST_CASE("program 15: a model that somebody trained") {
  Capture out;
  // ---- 40 tokens there
  ts::LoadOptions options;
  options.weights = ts::Weights::as_stored;  // mapped in the file's own format; also f32, bf16, ...
  ts::Transformer model = ts::load("examples/data/stories260K-q8_0.gguf", options);
  ts::GenerateOptions greedy;
  greedy.temperature = 0;
  ts::Generation made;
  std::cout << ts::generate(model, "Once upon a time", 40, greedy, &made) << "\n"
            << ts::generation_report(made, ts::laptop());
  // ----
  out.stop();
  CHECK(
      out.has("Once upon a time, there was a little girl named Lily. She loved to play outside in "
              "the park. "
              "One day, she saw a big, red ball.\ngeneration on laptop\npart "));
  CHECK(made.prefill.tokens == 5);  // <s> and the prompt
  CHECK(made.decode.steps == 39);
  CHECK(out.has("\nprefill      1       5 "));
  CHECK(out.has("\ndecode      39      39 "));
}

#if !defined(TINYSCALE_NO_THREADS)
TEST_CASE("program 6: the same training on many devices [slow]") {
  const TextFile input;
  const ts::Text text = ts::read_text(input.path);
  ts::TrainOptions options;
  options.steps = 3;
  options.out = nullptr;
  ts::Transformer one(ts::config("nano"), 1), model(ts::config("nano"), 1);
  ts::TrainOptions alone = options;
  alone.batch = 16;  // what the default of 12 becomes over data 2 and 4 microbatches
  const ts::TrainReport single = ts::train(one, text, alone);
  Capture out;
  // ----
  options.machine = ts::machine("tpu-v5e", {4, 2});
  options.layout.data = 2;
  options.layout.tensor = 2;
  options.layout.pipeline = 2;
  options.layout.microbatches = 4;
  options.layout.zero = ts::Zero::optimizer;
  ts::TrainReport report = ts::train(model, text, options);
  std::cout << report;
  // ----
  out.stop();
  REQUIRE(report.losses.size() == single.losses.size());
  for (std::size_t i = 0; i < report.losses.size(); ++i) {
    CHECK(std::fabs(report.losses[i] - single.losses[i]) < 1e-5 * single.losses[i]);
  }
  CHECK(report.step.sent.equal(1e-9));
  CHECK(report.step.work.equal(1e-9));
  CHECK(report.step.memory.equal(1e-9));
  CHECK(report.devices == 8);
  CHECK(out.has("what a step sends, sum of 8 devices"));
}
#endif

TEST_CASE("program 7: what would it cost to train this?") {
  Capture out;
  // ----
  ts::TrainingJob job;
  job.model = ts::config("llama3-70b");
  job.tokens = 15e12;
  job.batch_tokens = 4e6;
  job.context = 8192;
  job.format = ts::DType::bf16;
  ts::TrainingPlan plan = ts::plan_training(job, ts::machine("tpu-v5p", {16, 20, 28}));
  std::cout << plan;
  std::cout << plan.step_time.explain();
  // ----
  out.stop();
  const double flops = 6 * 6.9503e10 + 6.0 * 80 * 8192 * 8192;  // a token
  const double math = flops * 488 * 8192 / (8960 * 4.59e14);
  CHECK(plan.step_time.value() >= math);  // uneven replicas, key heads on more than 8 chips
  CHECK(plan.step_time.value() < 1.05 * math);
  const double steps = 15e12 / (488 * 8192);
  const double days = steps * plan.typical_step_time.value() / plan.goodput.value() / 86400;
  CHECK(plan.days.value() == doctest::Approx(days));
  CHECK(plan.dollars.value() == doctest::Approx(days * 24 * 8960 * 4.2));
  CHECK(plan.best.layout.devices() == 8960);
  CHECK(out.has("rounded to 488 sequences of 8,192 = 3,997,696"));
  CHECK(out.has("T_step = max("));
}

TEST_CASE("program 8: what memory and how many chips to serve it?") {
  Capture out;
  // ----
  ts::ServingJob serve;
  serve.model = ts::config("llama2-13b");
  serve.prompt = 2048;
  serve.output = 256;
  serve.batch = 8;
  serve.format = ts::DType::int8;
  ts::ServingPlan plan = ts::plan_serving(serve, ts::machine("tpu-v5e", {1}));
  std::cout << plan;
  // ----
  out.stop();
  CHECK(plan.chips == 4);
  CHECK(plan.kv_cache_per_sequence.value() == 2.0 * 40 * 5120 * (2048 + 256));
  const double step = (8 * 2.0 * 40 * 5120 * (2048 + 128) + 13.0159e9) / (4 * 8.19e11);
  CHECK(plan.decode_step_time.value() == doctest::Approx(step).epsilon(1e-4));
  CHECK(plan.tokens_per_second_per_chip.value() == doctest::Approx(8 / step / 4).epsilon(1e-4));
  CHECK(plan.dollars_per_million_tokens.value() ==
        doctest::Approx(1e6 * step / 8 * 4 * 1.2 / 3600).epsilon(1e-4));
  CHECK(out.has("Serving llama2-13b on 4 x tpu-v5e"));
  serve.cache = ts::DType::bf16;
  CHECK(ts::plan_serving(serve, ts::machine("tpu-v5e", {1})).kv_cache_per_sequence.value() ==
        2 * plan.kv_cache_per_sequence.value());
}

TEST_CASE("program 9: eager or compiled?") {
  const ts::Tensor x = ts::randn({64, 128}, 1);
  Capture out;
  // ----
  ts::Compiled block = ts::compile([](const std::vector<ts::Tensor>& in) {
    return std::vector<ts::Tensor>{ts::gelu(in[0] * 2.0f + 1.0f)};
  });
  block({x});
  std::cout << block.graph();
  // ----
  out.stop();
  CHECK(out.has("graph: 6 nodes, 1 inputs, 0 constants"));
  CHECK(out.has("gelu"));
  ts::Tensor eager, compiled;
  double eager_bytes = 0, compiled_bytes = 0;
  {
    const ts::Profile profile;
    eager = ts::gelu(x * 2.0f + 1.0f);
    eager_bytes = profile.totals().bytes();
  }
  {
    const ts::Profile profile;
    compiled = block({x})[0];
    compiled_bytes = profile.totals().bytes();
  }
  CHECK(difference(eager, compiled) < 1e-5);
  CHECK(eager_bytes == 3 * 2 * 4.0 * 64 * 128);  // each op reads and writes every number
  CHECK(compiled_bytes == 2 * 4.0 * 64 * 128);
  CHECK(block.counters().calls == 2);
  CHECK(block.counters().graphs == 1);
}

TEST_CASE("program 10: write a kernel tile by tile") {
  const int M = 256, K = 384, N = 128;
  const ts::Tensor A = ts::randn({M, K}, 1), B = ts::randn({K, N}, 2), C = ts::zeros({M, N});
  // ----
  // clang-format off
  ts::Kernel tiled = ts::kernel("matmul", {M / 128, N / 128}, [&](ts::Tile& t) {
    auto acc = t.zeros({128, 128});
    for (int k = 0; k < K; k += 128)
      acc += t.dot(t.load(A, {t.id(0) * 128, k}, {128, 128}), t.load(B, {k, t.id(1) * 128}, {128, 128}));
    t.store(C, {t.id(0) * 128, t.id(1) * 128}, acc);
  });
  tiled.stages = 2;
  ts::KernelRun run = tiled.run(ts::chip("tpu-v5e"));
  // clang-format on
  // ----
  CHECK(difference(C, ts::matmul(A, B)) < 1e-4);
  CHECK(run.programs == 2);
  CHECK(run.hbm_bytes_read == 2 * (M * K + K * N * 2));
  CHECK(run.hbm_bytes_written == 2 * M * N);
  CHECK(run.mxu_cycles == 6 * 128);  // one tile of weights fills one of four arrays
  CHECK(run.on_chip_peak == 4 * 128 * 128 + 2 * 2 * 2 * 128 * 128 + 2 * 128 * 128);
  CHECK(run.overlap > 0.2);
  CHECK(run.bound == "memory");
}

TEST_CASE("program 11: my own training step") {
  const std::uint64_t seed = 3;
  const ts::Tensor x = ts::randn({32, 64}, 1), y = ts::matmul(x, ts::randn({64, 64}, 2));
  // ----
  ts::Tensor w = ts::parameter(ts::randn({64, 64}, seed));
  ts::Tensor loss = ts::mean(ts::square(ts::matmul(x, w) - y));
  ts::AdamW optimizer({w});
  loss.backward();
  w.grad();
  optimizer.step();
  optimizer.zero_grad();
  // ----
  CHECK(w.shape() == ts::Shape{64, 64});
  CHECK(ts::mean(ts::square(ts::matmul(x, w) - y)).item() < loss.item());
}

#if !defined(TINYSCALE_NO_THREADS)
TEST_CASE("program 12: tensor parallelism in ten lines, and am I right?") {
  const ts::Tensor x = ts::randn({24, 1024}, 1);
  const ts::Tensor w1 = ts::randn({1024, 256}, 2, 0.03f), w2 = ts::randn({256, 1024}, 3, 0.06f);
  ts::Mesh mesh(ts::machine("tpu-v5e", {4, 2}), {{"x", 4}, {"y", 2}});
  Capture out;
  // ----
  ts::MeshRun run = mesh.run([&](ts::Device& d) {
    ts::Tensor h = ts::gelu(ts::matmul(d.replicate(x, "y"), d.shard(w1, "y", 1)));
    d.keep("out", d.all_reduce(ts::matmul(h, d.shard(w2, "y", 0)), "y"));
  });
  ts::Guess guess;
  guess.bytes_per_device = 98304;
  guess.steps = 6;
  std::cout << run.check(guess);
  // ----
  out.stop();
  const ts::Tensor whole = ts::matmul(ts::gelu(ts::matmul(x, w1)), w2);
  for (int rank = 0; rank < 8; ++rank) {
    CHECK(difference(run.kept(rank, "out"), whole) < 1e-4);
  }
  CHECK(out.text.str() ==  // 2 (N - 1) / N of 24 * 1024 * 4 bytes, N = 2
        "bytes: right. steps: you 6, counted 2: all_reduce takes 2 (N - 1) steps, here N = 2\n");
}

TEST_CASE("program 12: the check on a ring both ways") {
  ts::Mesh mesh(ts::machine("tpu-v4", {4, 4, 4}), {{"data", 16}, {"y", 4}});
  mesh.algorithm = ts::Algorithm::ring_both_ways;
  const ts::MeshRun run = mesh.run([](ts::Device& d) { d.all_reduce(ts::zeros({16, 1024}), "y"); });
  ts::Guess guess;
  guess.bytes_per_device = 98304;
  guess.steps = 6;
  CHECK(run.check(guess).text() ==
        "bytes: right. steps: you 6, counted 4: a bidirectional ring halves them");
}
#endif
