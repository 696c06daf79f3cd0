// Tokens of llama.cpp, id for id, from its own order of arithmetic.
#include <doctest/doctest.h>

#include <cstdlib>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

using Ids = std::vector<std::int32_t>;

std::string folder() {
  const char* set = std::getenv("TINYSCALE_SHARED");
  return std::string(set != nullptr ? set : "../shared") + "/data/models/stories260K/";
}

bool present(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    std::cout << "skipped: no " << path << "\n";
    return false;
  }
  std::fclose(file);
  return true;
}

std::string checkpoint(const std::string& kind) {
  return folder() + "derived/stories260K-" + kind + ".gguf";
}

ts::Transformer stored_model(const std::string& kind,
                             ts::Activations activations = ts::Activations::f32) {
  ts::LoadOptions options;
  options.weights = ts::Weights::as_stored;
  options.activations = activations;
  return ts::load(checkpoint(kind), options);
}

// BOS and the 128 ids that llama.cpp gives after it.
Ids golden(const std::string& kind) {
  const std::string path = folder() + "golden/llamacpp_" + kind + "_greedy_128_tokens.json";
  Ids ids = {1};
  for (const ts::Json& id : ts::parse_json(ts::detail::read_file(path, "test")).list) {
    ids.push_back(static_cast<std::int32_t>(id.number));
  }
  return ids;
}

void check_golden(const std::string& kind) {
  if (!present(checkpoint(kind))) {
    return;
  }
  const Ids want = golden(kind);
  REQUIRE(want.size() == 129);
  CHECK(ts::ggml_generate_tokens(stored_model(kind), {1}, 128) == want);
}

// A model of Llama's shape small enough for a test, kept in a format.
ts::ModelConfig small_config() {
  ts::ModelConfig c;
  c.name = "small";
  c.layers = 2;
  c.width = 64;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_size = 16;
  c.hidden = 96;
  c.vocabulary = 64;
  c.context = 12;
  c.norm = ts::Norm::rms;
  c.position = ts::Position::rotary;
  c.activation = ts::Activation::swiglu;
  c.rope_pairs = ts::RopePairs::interleaved;
  return c;
}

ts::Transformer small_model(ts::BlockFormat format, ts::ModelConfig config = small_config()) {
  ts::Transformer model(config, 5);
  for (ts::Parameter& p : model.parameters) {
    if (p.shape.size() == 2) {
      ts::StoreAs how;
      how.format = format;
      p.stored = ts::Shared<ts::StoredMatrix>(new ts::StoredMatrix(
          ts::kernels::store_matrix(p.shape[0], p.shape[1], p.value.data(), how)));
      p.value = ts::Tensor();
    }
  }
  return model;
}

// Random weights in a format, but f16 where a row is no whole blocks.
ts::Transformer random_model(ts::BlockFormat format) {
  ts::ModelConfig c = small_config();
  c.width = 128;
  c.head_size = 32;
  c.hidden = 172;
  c.vocabulary = 512;
  c.tied = false;
  c.rope_theta = 50000;
  ts::Transformer model(c);
  std::uint64_t seed = 1;
  const auto set = [&](const std::string& name) {
    for (ts::Parameter& p : model.parameters) {
      if (p.name != name) {
        continue;
      }
      const bool table = name == "model.embed_tokens.weight", norm = p.shape.size() == 1;
      const float scale = norm    ? 0.2f
                          : table ? 1.0f
                                  : 1.5f / std::sqrt(static_cast<float>(p.shape[1]));
      const ts::Tensor x = ts::randn(p.shape, seed++, scale);
      if (norm) {
        for (std::int64_t i = 0; i < x.count(); ++i) {
          p.value.data()[i] = x.data()[i] + 1.0f;
        }
        return;
      }
      ts::StoreAs how;
      how.format = p.shape[1] % 32 == 0 ? format : ts::BlockFormat::f16;
      p.stored = ts::Shared<ts::StoredMatrix>(
          new ts::StoredMatrix(ts::kernels::store_matrix(p.shape[0], p.shape[1], x.data(), how)));
      p.value = ts::Tensor();
      return;
    }
    throw ts::Error("no parameter is called " + name);
  };
  for (const char* name : {"model.embed_tokens", "lm_head", "model.norm"}) {
    set(std::string(name) + ".weight");
  }
  for (const char* layer : {"0", "1"}) {
    for (const char* name : {"input_layernorm", "self_attn.q_proj", "self_attn.k_proj",
                             "self_attn.v_proj", "self_attn.o_proj", "post_attention_layernorm",
                             "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      set(std::string("model.layers.") + layer + "." + name + ".weight");
    }
  }
  return model;
}

std::vector<float> numbers(std::size_t n, std::uint64_t seed, float scale) {
  std::vector<float> x(n);
  ts::detail::fill_normal(x.data(), static_cast<std::int64_t>(n), seed, 0, scale);
  return x;
}

double exact_dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return sum;
}

}  // namespace

TEST_CASE("ggml decoder: llama.cpp's 128 tokens from f32 weights") { check_golden("f32"); }
TEST_CASE("ggml decoder: llama.cpp's 128 tokens from f16 weights") { check_golden("f16"); }
TEST_CASE("ggml decoder: llama.cpp's 128 tokens from bf16 weights") { check_golden("bf16"); }
TEST_CASE("ggml decoder: llama.cpp's 128 tokens from q4_0 weights") { check_golden("q4_0"); }

TEST_CASE("ggml decoder: llama.cpp's 128 tokens from q8_0 weights, two logits to the last bit") {
  if (!present(checkpoint("q8_0"))) {
    return;
  }
  const ts::Transformer model = stored_model("q8_0");
  const Ids ids = golden("q8_0");
  REQUIRE(ids.size() == 129);
  ts::GgmlDecoder decoder(model);
  for (std::size_t i = 0; i < 128; ++i) {
    const std::vector<float> logits = decoder.next(ids[i]);
    CHECK(std::max_element(logits.begin(), logits.end()) - logits.begin() == ids[i + 1]);
#ifdef __GLIBC__     // its expf, sinf, cosf and powf are what llama.cpp called
    if (i == 111) {  // the two best are 0.005 apart; as llama.cpp 0.5.0 gave them
      CHECK(logits[364] == 0x1.c0b7c4p+3f);
      CHECK(logits[284] == 0x1.c08fd4p+3f);
    }
#endif
  }
  CHECK(decoder.position() == 128);
}

TEST_CASE("ggml decoder: llama.cpp's tokens from random weights in other blocks") {
  // Given by llama.cpp 0.5.0 for a file with these very weights.
  const auto tokens = [](ts::BlockFormat format) {
    return ts::ggml_generate_tokens(random_model(format), {1}, 11);
  };
  CHECK(tokens(ts::BlockFormat::q4_1) ==
        Ids{1, 284, 225, 292, 356, 224, 192, 264, 192, 510, 486, 306});
  CHECK(tokens(ts::BlockFormat::q5_0) ==
        Ids{1, 284, 225, 292, 254, 379, 224, 251, 192, 406, 488, 153});
  CHECK(tokens(ts::BlockFormat::q5_1) ==
        Ids{1, 204, 501, 190, 181, 464, 209, 493, 173, 325, 328, 363});
}

TEST_CASE("ggml decoder: the ordinary decoder's logits up to rounding") {
  // Queries and probabilities in f16 move what attention hands on by 2^-11; where that is rounded
  // once more, to bf16 or 8 bits, some numbers land a whole step (2^-8, 1 / 127) away.
  struct Case {
    ts::BlockFormat format;
    double bound;  // of a logit's difference, in the largest logit: up to 5 steps
  };
  for (const Case& each : {Case{ts::BlockFormat::f32, 2e-3}, Case{ts::BlockFormat::f16, 2e-3},
                           Case{ts::BlockFormat::bf16, 1e-2}, Case{ts::BlockFormat::q8_0, 4e-2},
                           Case{ts::BlockFormat::q4_0, 4e-2}, Case{ts::BlockFormat::q4_1, 4e-2},
                           Case{ts::BlockFormat::q5_0, 4e-2}, Case{ts::BlockFormat::q5_1, 4e-2}}) {
    CAPTURE(std::string(ts::name_of(each.format)));
    ts::Transformer model = small_model(each.format);
    model.activations = ts::Activations::int8_blocks;
    ts::CacheOptions halves;
    halves.format = ts::DType::f16;
    ts::KvPages cache(model.config, halves);
    const int sequence = cache.add();
    ts::GgmlDecoder decoder(model);
    double apart = 0, largest = 0;
    for (const std::int32_t id : {1, 7, 7, 30, 47, 0, 12, 9}) {
      const std::vector<float> ours = decoder.next(id);
      const ts::Tensor theirs = ts::decode(model, cache, {{sequence, {id}, false}});
      REQUIRE(theirs.count() == static_cast<std::int64_t>(ours.size()));
      for (std::size_t i = 0; i < ours.size(); ++i) {
        const double want = static_cast<double>(theirs.data()[i]);
        apart = std::max(apart, std::fabs(static_cast<double>(ours[i]) - want));
        largest = std::max(largest, std::fabs(want));
      }
    }
    CHECK(largest > 0.0);
    CHECK(apart < each.bound * largest);
  }
}

TEST_CASE("ggml sums: each order gives the sum, exactly of whole numbers") {
  for (const std::size_t n : {8U, 64U, 172U, 203U, 256U}) {
    CAPTURE(n);
    std::vector<float> w = numbers(n, 1, 1.0f), x = numbers(n, 2, 1.0f);
    const auto count = static_cast<std::int64_t>(n);
    for (const auto dot : {&ts::detail::ggml_f32_dot, &ts::detail::ggml_register_dot,
                           &ts::detail::ggml_f16_dot, &ts::detail::ggml_bf16_dot}) {
      if (dot == &ts::detail::ggml_register_dot || n % 2 == 0) {
        CHECK(std::fabs(static_cast<double>(dot(count, w.data(), x.data())) - exact_dot(w, x)) <
              1e-6 * static_cast<double>(n));
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      w[i] = std::nearbyint(8.0f * w[i]);
      x[i] = std::nearbyint(8.0f * x[i]);
    }
    const auto whole = static_cast<float>(exact_dot(w, x));
    CHECK(ts::detail::ggml_f32_dot(count, w.data(), x.data()) == whole);
    CHECK(ts::detail::ggml_f16_dot(count, w.data(), x.data()) == whole);
    CHECK(ts::detail::ggml_bf16_dot(count, w.data(), x.data()) == whole);
    CHECK(ts::detail::ggml_register_dot(count, w.data(), x.data()) == whole);
  }
}

TEST_CASE("ggml sums: blocks by blocks are the product of the numbers they stand for") {
  const std::vector<float> x = numbers(192, 3, 2.0f), w = numbers(192, 4, 0.5f);
  const ts::detail::GgmlBlocks blocks(x);
  std::vector<float> rounded(192);
  for (std::size_t i = 0; i < 192; ++i) {
    rounded[i] = static_cast<float>(blocks.codes[i]) * blocks.scales[i / 32];
    CHECK(std::abs(blocks.codes[i]) <= 127);
    CHECK(std::fabs(rounded[i] - x[i]) < 0.51f * blocks.scales[i / 32] + 1e-3f);
  }
  double sums = 0;  // in f16, they are off by 2^-11 where a format has minima
  for (const float sum : blocks.sums) {
    sums += std::fabs(static_cast<double>(sum));
  }
  for (const ts::BlockFormat format :
       {ts::BlockFormat::q8_0, ts::BlockFormat::q4_0, ts::BlockFormat::q4_1, ts::BlockFormat::q5_0,
        ts::BlockFormat::q5_1}) {
    const bool minima = format == ts::BlockFormat::q4_1 || format == ts::BlockFormat::q5_1;
    const double bound = 1e-4 + (minima ? sums * 2.0 / 2048 : 0.0);  // no minimum is beyond 2
    ts::StoreAs how;
    how.format = format;
    const ts::StoredMatrix stored = ts::kernels::store_matrix(1, 192, w.data(), how);
    std::vector<float> row(192);
    ts::kernels::stored_row(stored, 0, row.data());
    for (const bool by_32_rows : {false, true}) {
      const float got = ts::detail::ggml_block_dot(format, stored.data, blocks, by_32_rows);
      CHECK(std::fabs(static_cast<double>(got) - exact_dot(row, rounded)) < bound);
    }
  }
  std::vector<float> bad(32, 1.0f);
  bad[3] = HUGE_VALF;
  CHECK(error_of([&] { const ts::detail::GgmlBlocks b(bad); }) ==
        "GgmlBlocks: number 3 is inf; finite numbers have codes");
  const ts::detail::GgmlBlocks tiny(std::vector<float>(32, 1e-40f));
  CHECK(tiny.codes == std::vector<int>(32, 0));
  const ts::detail::GgmlBlocks none(std::vector<float>(32, 0.0f));
  CHECK(none.codes == std::vector<int>(32, 0));
  CHECK(none.scales == std::vector<float>{0.0f});
}

TEST_CASE("ggml sums: exp, softmax and SwiGLU") {
  double worst = 0;
  for (float x = -100.0f; x < 88.0f; x += 0.37f) {
    const double want = std::exp(static_cast<double>(x));
    const double step = x < -87.0f ? 1.4013e-45 : want * 1.2e-7;
    worst = std::max(worst,
                     std::fabs(static_cast<double>(ts::detail::ggml_vector_exp(x)) - want) / step);
  }
  CHECK(worst < 2.0);  // units in the last place
  CHECK(ts::detail::ggml_vector_exp(-200.0f) == 0.0f);
  CHECK(ts::detail::ggml_vector_exp(200.0f) == HUGE_VALF);
  CHECK(std::isnan(ts::detail::ggml_vector_exp(std::nanf(""))));
  std::vector<float> scores = numbers(21, 6, 3.0f);
  const std::vector<float> before = scores;
  ts::detail::ggml_softmax(scores);
  REQUIRE(scores.size() == 32);
  double sum = 0, all = 0;
  for (std::size_t i = 0; i < 32; ++i) {
    sum += static_cast<double>(scores[i]);
    CHECK((scores[i] == 0.0f) == (i >= 21));
    all += i < 21 ? std::exp(static_cast<double>(before[i])) : 0.0;
  }
  CHECK(sum == doctest::Approx(1.0).epsilon(1e-6));
  CHECK(static_cast<double>(scores[20]) ==
        doctest::Approx(std::exp(static_cast<double>(before[20])) / all).epsilon(1e-6));
  std::vector<float> gate = numbers(21, 7, 2.0f);
  const std::vector<float> x = gate, up = numbers(21, 8, 1.0f);
  ts::detail::ggml_swiglu(gate, up);
  for (std::size_t i = 0; i < 21; ++i) {
    const double g = static_cast<double>(x[i]), u = static_cast<double>(up[i]);
    CHECK(static_cast<double>(gate[i]) ==
          doctest::Approx(g / (1 + std::exp(-g)) * u).epsilon(1e-6));
  }
}

TEST_CASE("ggml decoder: what it does not cover") {
  const ts::Transformer learns(small_config(), 5);
  CHECK(error_of([&] { const ts::GgmlDecoder d(learns); }) ==
        "GgmlDecoder: model.embed_tokens.weight is float32 that learns; a model loaded with "
        "Weights::as_stored is right");
  const ts::Transformer other = small_model(ts::BlockFormat::mxfp4);
  CHECK(error_of([&] { const ts::GgmlDecoder d(other); }) ==
        "GgmlDecoder: model.embed_tokens.weight is mxfp4; f32, f16, bf16, q8_0, q4_0, q4_1, "
        "q5_0 and q5_1 are covered");
  ts::ModelConfig c = small_config();
  c.rope_pairs = ts::RopePairs::halves;
  const ts::Transformer halves = small_model(ts::BlockFormat::f16, c);
  CHECK(error_of([&] { const ts::GgmlDecoder d(halves); }) ==
        "GgmlDecoder: small is not of Llama's architecture: RMS norms, rotary positions on "
        "interleaved pairs at their own frequencies, SwiGLU, no biases, no experts, no window");
  for (const bool window : {true, false}) {
    c = small_config();
    c.window = window ? 3 : 0;
    c.rope_factors.assign(window ? 0U : static_cast<std::size_t>(c.head_size / 2), 2.0f);
    const ts::Transformer local = small_model(ts::BlockFormat::f16, c);
    CHECK(error_of([&] { const ts::GgmlDecoder d(local); }).find("at their own frequencies") !=
          std::string::npos);
  }
  c = small_config();
  c.vocabulary = 40;
  const ts::Transformer forty = small_model(ts::BlockFormat::q4_0, c);
  CHECK(error_of([&] { const ts::GgmlDecoder d(forty); }) ==
        "GgmlDecoder: model.embed_tokens.weight has 40 rows of q4_0; a multiple of 32, or none of "
        "8, is covered");
  ts::Transformer less = small_model(ts::BlockFormat::f16);
  less.parameters.back().name = "renamed";
  CHECK(error_of([&] { const ts::GgmlDecoder d(less); }) ==
        "GgmlDecoder: the model has no parameter model.norm.weight");
  const ts::Transformer model = small_model(ts::BlockFormat::q8_0);
  CHECK(error_of([&] { ts::ggml_generate_tokens(model, {}, 3); }) ==
        "ggml_generate_tokens: 3 tokens after 0; at least 0 after at least 1 are right");
  CHECK(error_of([&] { ts::ggml_generate_tokens(model, {64}, 3); }) ==
        "GgmlDecoder::next: token 64 at position 0; tokens 0 to 63 at positions 0 to 11 are "
        "right");
  CHECK(ts::ggml_generate_tokens(model, {1, 2}, 0) == Ids{1, 2});
  CHECK(ts::ggml_generate_tokens(model, {1}, 12).size() == 13);
  CHECK(error_of([&] { ts::ggml_generate_tokens(model, {1}, 13); }).find("at position 12;") !=
        std::string::npos);
}
