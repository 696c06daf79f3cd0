// FLOPs, parameters and memory of a transformer in closed form: published numbers of each
// convention, sums over loops beside formulas, and errors.
#include <doctest/doctest.h>

#include <limits>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

using ts::AttentionFlops;

const AttentionFlops full = AttentionFlops::full, causal = AttentionFlops::causal;

std::string teraflops(double tokens_per_second, double flops_per_token, int digits) {
  return ts::format_fixed(tokens_per_second * flops_per_token / 1e12, digits);
}

}  // namespace

TEST_CASE("FLOPs: logs that print tokens/s and TFLOP/s, each by its convention") {
  const auto m2024 = [](const char* name, double context) {
    return ts::maxtext2024_flops_per_token(ts::config(name), context);
  };
  const auto m2025 = [](const char* name, double context) {
    return ts::maxtext2025_flops_per_token(ts::config(name), context);
  };
  CHECK(m2024("llama3-70b", 8192) == doctest::Approx(4.814e11).epsilon(1e-4));
  CHECK(m2025("llama3-70b", 8192) == doctest::Approx(4.492e11).epsilon(1e-4));
  CHECK(m2024("llama3.1-405b", 8192) == doctest::Approx(2.625e12).epsilon(2e-4));
  CHECK(m2025("llama3.1-405b", 8192) == doctest::Approx(2.524e12).epsilon(1e-4));
  CHECK(teraflops(960.248, m2024("llama3-70b", 8192), 3) == "462.297");
  CHECK(teraflops(2686.98, m2025("llama3-70b", 8192), 2) == "1207.05");
  CHECK(teraflops(499.77, m2025("llama3.1-405b", 8192), 1) == "1261.4");
  CHECK(teraflops(1326.307, m2024("mixtral-8x22b", 4096), 3) == "332.463");
  // The published tokens/s has six digits.
  CHECK(4245.89e-12 * m2025("qwen3-235b-a22b", 4096) == doctest::Approx(629.79).epsilon(2e-5));
  CHECK(teraflops(2446.25, m2025("deepseek-v3", 4096), 2) == "612.66");

  // Megatron-Bridge's DeepSeek-V3 predicts one more token: 1297 tokens/s, 338 TFLOP/s.
  const ts::ModelConfig deepseek = ts::config("deepseek-v3");
  const double more = ts::more_tokens_flops_per_token(deepseek, 4096, causal);
  CHECK(teraflops(1297, m2025("deepseek-v3", 4096), 0) == "325");
  CHECK(teraflops(1297, m2025("deepseek-v3", 4096) + more, 0) == "338");
}

TEST_CASE("FLOPs: matrices of a token, part by part") {
  const ts::MatrixParameters llama = ts::matrix_parameters(ts::config("llama3-8b"));
  CHECK(llama.queries_keys_values == 32.0 * 4096 * (32 + 2 * 8) * 128);
  CHECK(llama.output == 32.0 * 4096 * 4096);
  CHECK(llama.feed_forward == 32.0 * 3 * 4096 * 14336);
  CHECK(llama.experts + llama.router == 0);
  CHECK(llama.head == 128256.0 * 4096);
  const ts::MatrixParameters deepseek = ts::matrix_parameters(ts::config("deepseek-v3"));
  CHECK(deepseek.queries_keys_values ==
        61.0 * (7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256));
  CHECK(deepseek.output == 61.0 * 128 * 128 * 7168);
  CHECK(deepseek.feed_forward == 3.0 * 3 * 7168 * 18432);
  CHECK(deepseek.experts == 58.0 * 9 * 3 * 7168 * 2048);
  CHECK(deepseek.router == 58.0 * 7168 * 256);
  // DeepSeek-V2-Lite has no rank for its queries.
  ts::ModelConfig lite = ts::config("deepseek-v3");
  lite.q_lora_rank = 0;
  CHECK(ts::matrix_parameters(lite).queries_keys_values ==
        61.0 * (7168 * 128 * 192 + 7168 * 576 + 512 * 128 * 256));

  // Up to norms, biases and other vectors they are the parameters that multiply a token.
  for (const char* name :
       {"gpt2-small", "llama3-70b", "mixtral-8x7b", "deepseek-v3", "gemma3-27b-text", "qwen2.5-7b",
        "qwen3-235b-a22b", "palm-540b", "gpt-j-6b"}) {
    CAPTURE(name);
    const ts::ModelConfig c = ts::config(name);
    const double matrices = ts::matrix_parameters(c).total();
    CHECK(matrices < ts::matmul_parameters(c));
    CHECK(matrices == doctest::Approx(ts::matmul_parameters(c)).epsilon(2e-3));
    CHECK(ts::maxtext_flops_per_token(c, 2048, AttentionFlops::none) == 6 * matrices);
  }
}

TEST_CASE("FLOPs: keys that a query sees, counted one by one") {
  for (const std::int64_t context : {1, 2, 7, 16}) {
    for (const std::int64_t window : {0, 1, 3, 7, 16, 40}) {
      CAPTURE(context);
      CAPTURE(window);
      double pairs = 0, ignoring_mask = 0;
      for (std::int64_t query = 0; query < context; ++query) {
        for (std::int64_t key = 0; key <= query; ++key) {
          pairs += window == 0 || query - key < window ? 1 : 0;
        }
        ignoring_mask += static_cast<double>(window == 0 ? context : std::min(context, window));
      }
      const auto t = static_cast<double>(context);
      const auto w = static_cast<double>(window);
      CHECK(ts::keys_seen(t, w, AttentionFlops::causal_exact) == doctest::Approx(pairs / t));
      CHECK(ts::keys_seen(t, w, full) == doctest::Approx(ignoring_mask / t));
      // Without the diagonal's half: T/2 for all, and for a window the area under the mask.
      const double seen = ts::keys_seen(t, w, AttentionFlops::full);
      CHECK(ts::keys_seen(t, w, causal) ==
            doctest::Approx(ts::keys_seen(t, w, AttentionFlops::causal_exact) - seen / (2 * t)));
      CHECK(ts::keys_seen(t, w, AttentionFlops::none) == 0);
    }
  }
}

TEST_CASE("FLOPs: the attention core by kind of attention") {
  const auto core = [](const char* name, double context, AttentionFlops counted) {
    return ts::attention_flops_per_token(ts::config(name), context, counted);
  };
  // Scores 192 wide, values 128.
  CHECK(core("deepseek-v3", 4096, full) == 61.0 * 2 * 4096 * 128 * (192 + 128));
  CHECK(core("deepseek-v3", 4096, causal) == 61.0 * 4096 * 128 * (192 + 128));
  // 26 layers, every second one global; 62 layers, every sixth.
  CHECK(core("gemma2-2b", 8192, full) == 4.0 * 8 * 256 * (13 * 8192 + 13 * 4096));
  CHECK(core("gemma2-2b", 4096, full) == 4.0 * 8 * 256 * 26 * 4096);
  CHECK(core("gemma3-27b-text", 131072, full) == 4.0 * 32 * 128 * (10 * 131072.0 + 52 * 1024));
  CHECK(core("gemma3-27b-text", 131072, causal) ==
        doctest::Approx(4.0 * 32 * 128 *
                        (10 * 65536.0 + 52 * (1024 - 1024.0 * 1024 / (2 * 131072)))));
  CHECK(ts::maxtext2025_flops_per_token(ts::config("gemma2-2b"), 8192) ==
        6 * ts::matrix_parameters(ts::config("gemma2-2b")).total() +
            1.5 * core("gemma2-2b", 8192, full));
  // What the executor counts of a causal model is the exact form.
  const ts::ModelConfig nano = ts::config("nano");
  CHECK(ts::model_flops_per_token(nano, 64) ==
        ts::training_flops_per_token(nano, 64, AttentionFlops::causal_exact));
  CHECK(error_of([&] { ts::attention_flops_per_token(nano, 0, full); }) ==
        "attention_flops_per_token: context is 0; 1 or more is right");
}

TEST_CASE("FLOPs: with and without embeddings") {
  const ts::ModelConfig gpt2 = ts::config("gpt2-small");
  CHECK(ts::six_n(gpt2) == 6.0 * 124439808);
  CHECK(ts::six_n_without_embedding(gpt2) == 6.0 * (124439808 - 50257 * 768 - 1024 * 768));
  const ts::ModelConfig llama = ts::config("llama3-8b");
  CHECK(ts::six_n_without_embedding(llama) == 6.0 * (8030261248 - 2.0 * 128256 * 4096));
  CHECK(ts::palm_flops_per_token(llama, 8192) - ts::palm_flops_without_embedding(llama, 8192) ==
        12.0 * 128256 * 4096);
  const ts::Table table = ts::flops_table(llama, 8192);
  CHECK(table.rows[1][0] == "6N without embedding");
  CHECK(table.rows[4][0] == "maxtext-2024: matrices + full attention");
  CHECK(table.rows[4][1] == ts::format_si(ts::maxtext2024_flops_per_token(llama, 8192), "FLOP"));
}

TEST_CASE("parameters by part add up, for every preset") {
  for (const std::string& name : ts::configs()) {
    CAPTURE(name);
    const ts::ModelConfig c = ts::config(name);
    double all = 0, active = 0;
    for (const ts::ParameterPart& part : ts::parameter_parts(c)) {
      all += part.all;
      active += part.active;
    }
    CHECK(all == static_cast<double>(c.parameters()));
    CHECK(active == static_cast<double>(c.active_parameters()));
  }
  const ts::Table table = ts::params_table(ts::config("deepseek-v3"));
  CHECK(table.title == "parameters of deepseek-v3");
  CHECK(table.rows.size() == 9);
  CHECK(table.rows[3] ==
        std::vector<ts::Cell>{"experts", "653,908,770,816", "97.4 %", "20,434,649,088"});
  CHECK(table.rows[8][1] == "671,026,419,200");
}

TEST_CASE("activations: a GPT layer is Megatron's without its dropout masks") {
  const ts::ModelConfig gpt = ts::config("gpt3-175b");
  ts::ActivationShape x;
  x.sequence = 2048;
  x.width = static_cast<double>(gpt.width);
  x.heads = static_cast<double>(gpt.heads);
  x.recompute = ts::Recompute::selective;
  const double tokens = 2048, d = x.width;
  for (const std::int64_t tensor : {1, 8}) {
    for (const bool shared : {false, true}) {
      CAPTURE(tensor);
      CAPTURE(shared);
      x.tensor = static_cast<double>(tensor);
      x.sequence_parallel = shared;
      x.recompute = ts::Recompute::selective;
      const double stream = shared ? x.tensor : 1;
      CHECK(ts::modern_layer_activation_bytes(gpt, tokens, tensor, shared,
                                              ts::Recompute::selective) ==
            doctest::Approx(ts::layer_activation_bytes(x) + tokens * (16 - 2 * d) / stream));
      x.recompute = ts::Recompute::full;
      CHECK(ts::modern_layer_activation_bytes(gpt, tokens, tensor, shared, ts::Recompute::full) ==
            ts::layer_activation_bytes(x));
    }
  }
}

TEST_CASE("activations: llama, mixtures, latent attention, Gemma, by hand") {
  const auto kept = [](const char* name, ts::Recompute recompute = ts::Recompute::none) {
    return ts::modern_layer_activation_bytes(ts::config(name), 1, 1, false, recompute);
  };
  const double d = 4096, h = 32, kv = 8, k = 128, f = 14336;
  const double stream = 8 * d + 8, attention = 2 * (2 * h + 2 * kv) * k + 4 * h;
  CHECK(kept("llama3-8b") == stream + attention + 6 * f);
  CHECK(kept("llama3-8b", ts::Recompute::selective) == kept("llama3-8b") - 4 * h);
  CHECK(kept("llama3-8b", ts::Recompute::full) == 2 * d);
  CHECK(kept("mixtral-8x7b") == stream + attention + 2 * (6 * f + 4 * d) + 4 * 8 + 4 * 2);
  CHECK(kept("qwen3-8b") - kept("llama3-8b") == (h + kv) * (2 * k + 4) - 6.0 * (14336 - 12288));
  // Norms after the sublayers read their results.
  CHECK(kept("gemma2-2b") == 12 * 2304.0 + 16 + 2 * (2 * 8 + 2 * 4) * 256 + 4 * 8 + 6 * 9216);
  // One norm for both.
  CHECK(kept("palm-8b") == 4 * 4096.0 + 8 + 2 * (2 * 16 + 2) * 256 + 4 * 16 + 6.0 * 16384);
  const double ranks = 4 * 1536 + 4 + 2 * (512 + 64) + 2 * 512 + 4;
  const double heads = 128 * (2 * 192 + 2 * 192 + 2 * 128 + 2 * 128 + 4);
  const double routed = 8 * (6 * 2048 + 4 * 7168.0) + 6 * 2048 + 4 * 256 + 4 * 8;
  CHECK(kept("deepseek-v3") == 8 * 7168 + 8 + ranks + heads + routed);
  CHECK(ts::modern_layer_activation_bytes(ts::config("deepseek-v3"), 3, 1, false,
                                          ts::Recompute::none, false) ==
        3 * (8 * 7168 + 8 + ranks + heads + 6 * 18432.0));
  // With sequence parallelism everything is cut; without, the stream and the router are whole.
  const ts::ModelConfig llama = ts::config("llama3-8b");
  CHECK(8 * ts::modern_layer_activation_bytes(llama, 5, 8, true) == 5 * kept("llama3-8b"));
  CHECK(ts::modern_layer_activation_bytes(llama, 1, 8) == stream + (attention + 6 * f) / 8);
  CHECK(ts::op_selective_activation_bytes(llama, 1) ==
        2 * (2 * d + 2 * h * k + kv * k + f) + 4 * h);
  const ts::Table table = ts::kept_table(llama);
  CHECK(table.title == "a layer of llama3-8b keeps, bytes a token in bf16, of 1 device");
  CHECK(table.rows[0] == std::vector<ts::Cell>{"block input", "8192", "8192", "8192"});
  CHECK(table.rows.back() == std::vector<ts::Cell>{"all", "139400", "139272", "8192"});
  CHECK(error_of([&] { ts::modern_layer_activation_bytes(llama, -1, 1); }) ==
        "modern_layer_activation_bytes: -1 tokens on 1 tensor-parallel devices; 0 or more on at "
        "least 1 are right");
  CHECK(error_of([] { ts::op_selective_activation_bytes(ts::config("gpt2"), 1); }) ==
        "op_selective_activation_bytes: gpt2-small is not a dense gated model without latent "
        "attention, for which it is known");
}

TEST_CASE("memory: stages of numbers that no model has") {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const std::int64_t least = std::numeric_limits<std::int64_t>::min();
  CHECK(error_of([&] { ts::stage_layers(least, 2, 5, 6); }) ==
        "stage_layers: -9223372036854775808 layers over 2 stages, 5 on the first, 6 on the last; "
        "at least one layer a stage is right");
  CHECK(error_of([&] { ts::stage_layers(most, most); }) ==
        "stage_layers: 9223372036854775807 layers over 9223372036854775807 stages, 0 on the first, "
        "0 on the last; at least one layer a stage, at most 10000000 in all, is right");
  CHECK(error_of([&] { ts::stage_layers(8, 2, most, most); }).find("stage_layers: 8 layers") == 0);
}

TEST_CASE("memory: stages of layers that do not divide") {
  using Layers = std::vector<std::int64_t>;
  CHECK(ts::stage_layers(8, 4) == Layers{2, 2, 2, 2});
  CHECK(ts::stage_layers(10, 4) == Layers{2, 3, 3, 2});
  CHECK(ts::stage_layers(61, 8) == Layers{7, 8, 8, 8, 8, 8, 7, 7});
  CHECK(ts::stage_layers(126, 16, 7, 7) == Layers{7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7});
  CHECK(ts::stage_layers(5, 2, 4) == Layers{4, 1});
  CHECK(ts::stage_layers(5, 1) == Layers{5});
  CHECK(error_of([] { ts::stage_layers(3, 4); }) ==
        "stage_layers: 3 layers over 4 stages, 0 on the first, 0 on the last; at least one layer a "
        "stage is right");
  CHECK(error_of([] { ts::stage_layers(4, 2, 1, 1); }).find("stage_layers: 4 layers") == 0);
  for (const char* name : {"llama3-8b", "deepseek-v3", "gpt2-small", "gpt-j-6b", "qwen3-30b-a3b"}) {
    const ts::ModelConfig c = ts::config(name);
    for (const std::int64_t stages : {1, 3, 8}) {
      CAPTURE(name);
      CAPTURE(stages);
      double all = 0;
      ts::StageShare stage;
      for (const std::int64_t layers : ts::stage_layers(c.layers, stages)) {
        stage.layers = layers;
        stage.embedding = stage.first == 0;
        stage.head = stage.first + layers == c.layers;
        all += ts::device_parameters(c, stage).total();
        stage.first += layers;
      }
      const bool twice = c.tied && stages > 1;  // the table at both ends
      CHECK(all == doctest::Approx(
                       static_cast<double>(c.parameters() + (twice ? c.vocabulary * c.width : 0)))
                       .epsilon(1e-14));  // what no field describes is spread over the layers
    }
  }
  CHECK(error_of([] {
          ts::device_parameters(ts::config("nano"), {2, 3, false, false});
        }) ==
        "device_parameters: layers 2 to 5 of 4, tensor 1, expert 1; layers of the model over 1 "
        "device or more are right");
}

TEST_CASE("memory: what tensor and expert parallelism cut") {
  const ts::ModelConfig c = ts::config("deepseek-v3");
  const ts::StageShare layer = {10, 1, false, false};
  const ts::DeviceParameters whole = ts::device_parameters(c, layer);
  CHECK(whole.experts == 256.0 * 3 * 7168 * 2048);
  CHECK(whole.total() == static_cast<double>(c.layer_parameters(256)));
  const ts::DeviceParameters part = ts::device_parameters(c, layer, 4, 8);
  CHECK(part.experts == whole.experts / 32);
  const double uncut = 2 * 7168 + 1536 + 512 + 7168 * (1536 + 512 + 64) + 256 * 7168 + 256;
  CHECK(part.rest == uncut + (whole.rest - uncut) / 4);
  const ts::StageShare first = {0, 4, true, false};  // three dense layers and a mixture
  CHECK(ts::device_parameters(c, first).total() ==
        static_cast<double>(3 * c.dense_layer_parameters() + c.layer_parameters(256) +
                            129280 * 7168));
}

TEST_CASE("memory: a head of keys that several tensor ranks have between them is on each") {
  const ts::ModelConfig c = ts::config("llama3-8b");  // 8 heads of keys on 16 devices
  const double d = 4096, f = 14336, head = 128;
  const double own = (2 * d * d + 3 * d * f) / 16 + 2 * d * head;
  CHECK(ts::device_parameters(c, {10, 1, false, false}, 16).total() == 2 * d + own);
  CHECK(ts::device_parameters(c, {10, 1, false, false}, 8).total() ==
        2 * d + (2 * d * d + 3 * d * f) / 8 + 2 * d * head);
  ts::Layout layout;
  layout.tensor = 16;
  CHECK(ts::chip_parameters(c, layout).dense == doctest::Approx(32 * (own + 2 * d / 16) + d / 16));
  CHECK(ts::modern_layer_activation_bytes(c, 1, 16) ==
        8 * d + 8 + 2 * (2 * 2 * head + 2 * head) + 4 * 2 + 6 * f / 16);
  CHECK(ts::op_selective_activation_bytes(c, 1, 16) ==
        4 * d + 2 * (2 * 2 * head + head + f / 16) + 4 * 2);
  CHECK(ts::context_activations(c, ts::ContextParallel::gathered, 2, 1, 16) == 2 * head + 2 * head);
  // What a chip computes and sends of them is so too.
  CHECK(ts::layer_work(c, layout, 1, 1, false).keys == 2 * head);
}

TEST_CASE("memory: microbatches under way are those of the schedule") {
  for (const int ranks : {1, 2, 4}) {
    for (const int microbatches : {4, 8}) {
      for (int kind = 0; kind < 4; ++kind) {
        const auto pipeline = static_cast<ts::PipelineKind>(kind);
        const int chunks = pipeline == ts::PipelineKind::interleaved ? 2 : 1;
        const ts::PipelineShape shape = {pipeline, ranks, microbatches, chunks};
        ts::Layout layout;
        layout.pipeline = ranks;
        layout.microbatches = microbatches;
        layout.schedule = ts::make_pipeline(shape);
        for (int rank = 0; rank < ranks; ++rank) {
          CAPTURE(kind);
          CAPTURE(ranks);
          CAPTURE(microbatches);
          CHECK(ts::microbatches_under_way(layout, rank) ==
                doctest::Approx(ts::pipeline_peak_activations(shape, rank)));
        }
        layout.schedule = {};
        CHECK(ts::microbatches_under_way(layout, ranks - 1) == 1);
        CHECK(ts::microbatches_under_way(layout, 0) == std::min(ranks, microbatches));
      }
    }
  }
  CHECK(error_of([] { ts::microbatches_under_way(ts::Layout(), 1); }) ==
        "microbatches_under_way: rank 1 of 1; 0 to 0 is right");
  ts::Layout other;  // whose schedule is for fewer ranks
  other.pipeline = 4;
  other.microbatches = 8;
  other.schedule = ts::one_forward_one_backward(2, 8);
  const std::string why =
      ": the schedule 1f1b is of 2 ranks and 8 microbatches, the layout has pipeline 4 and "
      "microbatches 8; they must be equal";
  CHECK(error_of([&] { ts::microbatches_under_way(other, 3); }) == "microbatches_under_way" + why);
  CHECK(error_of([&] { ts::memory_table(ts::config("llama3-8b"), other, 8192); }) ==
        "device_memory" + why);
  CHECK(error_of([] {
          ts::modern_layer_activation_bytes(ts::config("llama3-8b"), 1, 1, false,
                                            static_cast<ts::Recompute>(9));
        }) == "modern_layer_activation_bytes: recompute is 9; a name of its enum is right");
}

TEST_CASE("memory: of a device, by hand") {
  const ts::ModelConfig c = ts::config("llama3-8b");
  const ts::StageShare all = {0, 32, true, true};
  ts::Layout layout;
  layout.data = 8;
  layout.zero = ts::Zero::parameters;
  const double tokens = 8192, d = 4096;
  const auto n = static_cast<double>(c.parameters());
  const auto layer = static_cast<double>(c.dense_layer_parameters());
  const double tables = 2.0 * 128256 * d + d;
  ts::PlannedMemory m = ts::device_memory(c, layout, tokens, all, 0);
  CHECK(m.states() == doctest::Approx(18 * n / 8));
  CHECK(m.gathered == 2 * (layer + tables) + 4 * tables);  // the tables are the larger unit
  CHECK(m.activations == tokens * (32 * 139400.0 + 4 * d));
  CHECK(m.recomputed == 0);
  CHECK(m.logits == tokens * 128256 * 4);
  CHECK(m.total() == m.states() + m.gathered + m.activations + m.logits);
  layout.recompute = ts::Recompute::full;
  m = ts::device_memory(c, layout, tokens, all, 0);
  CHECK(m.activations == tokens * (32 * 2 * d + 4 * d));
  CHECK(m.recomputed == tokens * (139400 - 2 * d));
  layout.zero = ts::Zero::none;
  ts::MemoryConvention book;
  book.states = ts::StateBytes::book;
  m = ts::device_memory(c, layout, tokens, all, 0, book);
  CHECK(m.states() == 10 * n);
  CHECK(m.gathered == 0);

  // Experts are shared by data / expert devices, the rest by all of data.
  const ts::ModelConfig mixture = ts::config("qwen3-30b-a3b");
  const ts::StageShare whole = {0, mixture.layers, true, true};
  ts::Layout experts;
  experts.data = 16;
  experts.expert = 4;
  experts.zero = ts::Zero::optimizer;
  const ts::DeviceParameters held = ts::device_parameters(mixture, whole, 1, 4);
  m = ts::device_memory(mixture, experts, tokens, whole, 0);
  CHECK(m.weights == 2 * held.total());
  CHECK(m.gradients == 4 * held.total());
  CHECK(m.optimizer == doctest::Approx(12 * (held.rest / 16 + held.experts / 4)));

  layout = ts::Layout();
  layout.pipeline = 4;
  layout.tensor = 2;
  layout.microbatches = 8;
  ts::ModelConfig uneven = c;
  uneven.layers = 30;
  const ts::Table table = ts::memory_table(uneven, layout, tokens);
  CHECK(table.title ==
        "bytes of a device: llama3-8b, data 1, tensor 2, pipeline 4, context 1, microbatches 8, "
        "8192 tokens a microbatch, mixed, f32 gradients states");
  REQUIRE(table.rows.size() == 4);
  CHECK(table.rows[0][1] == "7");
  CHECK(table.rows[1][1] == "8");
  CHECK(table.rows[3][1] == "7");
  const ts::StageShare second = {7, 8, false, false};
  CHECK(table.rows[1][11] ==
        ts::format_bytes(ts::device_memory(uneven, layout, tokens, second, 1).total()));
  ts::MemoryConvention old;  // unfused attention keeps its matrices: 5 H T bytes a token
  old.context_of_2022 = 2048;
  old.overhead = 1e9;
  const ts::ModelConfig gpt3 = ts::config("gpt3-175b");
  m = ts::device_memory(gpt3, layout, 4096, {24, 24, false, false}, 1, old);
  CHECK(m.activations == 3 * 24 * 4096 * (10 * 12288 + 12 * 12288 + 5 * 96 * 2048 / 2.0));
  CHECK(m.overhead == 1e9);
  CHECK(m.total() == m.states() + m.activations + 1e9);
  CHECK(ts::logits_bytes(c, tokens, 4, 14) == tokens * 128256 * 14 / 4);
  layout.data = 0;
  CHECK(error_of([&] {
          ts::device_memory(c, layout, tokens, second, 0);
        }).find("device_memory: layout is data 0, ") == 0);
}

TEST_CASE("memory: torchtitan's published peaks of Llama 3 8B within 10 %") {
  const ts::ModelConfig c = ts::config("llama3-8b");
  const ts::StageShare all = {0, 32, true, true};
  ts::MemoryConvention eager;
  eager.states = ts::StateBytes::f32;
  eager.logit_bytes = 14;
  eager.selective_by_op = true;
  ts::Layout fsdp;
  fsdp.zero = ts::Zero::parameters;
  fsdp.recompute = ts::Recompute::selective;
  const auto gib = [&](double tokens) {
    return ts::device_memory(c, fsdp, tokens, all, 0, eager).total() / (1 << 30);
  };
  fsdp.data = 8;  // two sequences of 8192 on each of 8
  CHECK(gib(2 * 8192) == doctest::Approx(82.4).epsilon(0.1));
  fsdp.data = 128;  // compiled
  CHECK(gib(2 * 8192) == doctest::Approx(62.0).epsilon(0.1));
  fsdp.data = 4;  // a sequence of 65536 over two
  fsdp.context = 2;
  fsdp.recompute = ts::Recompute::full;
  CHECK(gib(32768) == doctest::Approx(84.2).epsilon(0.1));
}

TEST_CASE("memory: experts are cut in as many parts as the training cuts them in") {
  int layouts = 0;
  for (const std::int64_t data : {1, 2, 4, 6, 12}) {
    for (const std::int64_t context : {1, 2, 3, 4, 6}) {
      for (std::int64_t shards = 1; shards <= data * context; ++shards) {
        for (std::int64_t expert = 1; expert <= data * context; ++expert) {
          ts::Layout layout;
          layout.data = data;
          layout.context = context;
          layout.zero = ts::Zero::parameters;
          layout.zero_devices = shards;
          layout.expert = expert;
          if (data * context % shards != 0 || data * context % expert != 0 ||
              error_of([&] { ts::detail::layout_axes(layout); }) != "no error") {
            continue;
          }
          const ts::detail::LayoutAxes axes = ts::detail::layout_axes(layout);
          ++layouts;
          if (ts::detail::MeshPoint(axes.mesh, 0).size(axes.expert_zero) !=
              layout.expert_shards()) {
            FAIL_CHECK(layout.text());
          }
        }
      }
    }
  }
  CHECK(layouts > 300);
  // Memory and the update count them alike, where they do not divide each other too.
  ts::Layout layout;
  layout.data = 24;
  layout.zero = ts::Zero::parameters;
  layout.zero_devices = 6;
  layout.expert = 4;
  CHECK(layout.expert_shards() == 3);
  const ts::ModelConfig c = ts::config("mixtral-8x7b");
  const ts::StageShare all = {0, c.layers, true, true};
  const ts::DeviceParameters held = ts::device_parameters(c, all, 1, 4);
  CHECK(ts::device_memory(c, layout, 4096, all, 0).optimizer ==
        doctest::Approx(12 * (held.rest / 6 + held.experts / 3)));
}
