// FLOPs, parameters and memory of a transformer in closed form: published numbers of each
// convention, sums over loops beside formulas, and errors.
#include <doctest/doctest.h>

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
