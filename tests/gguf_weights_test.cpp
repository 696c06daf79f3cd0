// stories260K from its GGUF files: the tokens of the float64 reference on the same rounded weights,
// and those of llama.cpp, which rounds activations to blocks of 8 bits where weights are in blocks.
#include <doctest/doctest.h>

#include <cmath>
#include <sstream>

#include "error_of.hpp"
#include "model_files.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

const std::string at = "stories260K/";

ts::Transformer story(const std::string& format, const ts::LoadOptions& options) {
  return ts::load(model_path(at + "derived/stories260K-" + format + ".gguf"), options);
}

struct Steps {
  std::vector<std::int32_t> input, next;
  std::vector<double> logit;  // of the next token
};

Steps reference_steps(const std::string& format) {
  Steps steps;
  std::istringstream text(
      file_bytes(model_path(at + "golden/ref64_gguf_" + format + "_steps.tsv")));
  std::string line;
  while (std::getline(text, line)) {
    std::istringstream row(line);
    std::int32_t position = 0, input = 0, next = 0;
    double logit = 0;
    if (row >> position >> input >> next >> logit) {
      steps.input.push_back(input);
      steps.next.push_back(next);
      steps.logit.push_back(logit);
    }
  }
  return steps;
}

// The most likely token after each of the given ones.
std::vector<std::int32_t> best(const ts::Tensor& logits, std::int64_t vocabulary) {
  std::vector<std::int32_t> out;
  for (std::int64_t row = 0; row < logits.count() / vocabulary; ++row) {
    const float* const x = logits.data() + row * vocabulary;
    std::int32_t top = 0;
    for (std::int32_t i = 1; i < vocabulary; ++i) {
      top = x[i] > x[top] ? i : top;
    }
    out.push_back(top);
  }
  return out;
}

}  // namespace

TEST_CASE("GGUF weights, in float32 or as stored, give the float64 reference's tokens and logits") {
  if (file_bytes(model_path(at + "golden/ref64_gguf_q4_0_steps.tsv")).empty()) {
    MESSAGE("skipped: no data/models/stories260K");
    return;
  }
  for (const std::string format : {"f16", "bf16", "q8_0", "q4_0"}) {
    CAPTURE(format);
    const Steps steps = reference_steps(format);
    REQUIRE(steps.input.size() == 64);
    for (const ts::Weights kept : {ts::Weights::f32, ts::Weights::as_stored}) {
      ts::LoadOptions options;
      options.weights = kept;
      const ts::Transformer model = story(format, options);
      CHECK(model.is_stored() == (kept == ts::Weights::as_stored));
      const ts::Tensor logits = model.forward(steps.input, 1, 64);
      CHECK(best(logits, 512) == steps.next);
      double off = 0;
      for (std::size_t i = 0; i < 64; ++i) {
        const double logit =
            static_cast<double>(logits.data()[512 * i + static_cast<std::size_t>(steps.next[i])]);
        off = std::max(off, std::abs(logit - steps.logit[i]));
      }
      CHECK(off < 2e-4);
    }
  }
}

TEST_CASE("GGUF weights as stored give llama.cpp's 128 tokens, in blocks to 0.1 of a logit") {
  // Where weights are in blocks it rounds activations to 8 bits and its cache to f16, so that a
  // logit is off by up to 0.1: at a few of the 128 places another token is as likely within that.
  if (file_bytes(model_path(at + "golden/llamacpp_q4_0_greedy_128_tokens.json")).empty()) {
    MESSAGE("skipped: no data/models/stories260K");
    return;
  }
  for (const std::string format : {"f32", "f16", "bf16", "q8_0", "q4_0"}) {
    CAPTURE(format);
    const ts::Json list = ts::parse_json(
        file_bytes(model_path(at + "golden/llamacpp_" + format + "_greedy_128_tokens.json")));
    std::vector<std::int32_t> wanted, input = {1};
    for (const ts::Json& id : list.list) {
      wanted.push_back(static_cast<std::int32_t>(id.number));
    }
    REQUIRE(wanted.size() == 128);
    input.insert(input.end(), wanted.begin(), wanted.end() - 1);
    const bool blocks = format[0] == 'q';
    ts::LoadOptions options;
    options.weights = ts::Weights::as_stored;
    options.activations = blocks ? ts::Activations::int8_blocks : ts::Activations::f32;
    const ts::Tensor logits = story(format, options).forward(input, 1, 128);
    const std::vector<std::int32_t> found = best(logits, 512);
    int others = 0;
    for (std::size_t i = 0; i < 128; ++i) {
      const float* const row = logits.data() + 512 * i;
      others += found[i] != wanted[i] ? 1 : 0;
      CHECK(row[found[i]] - row[wanted[i]] <= (blocks ? 0.1f : 0.0f));
    }
    CHECK(others <= (blocks ? 4 : 0));
  }
}

TEST_CASE("a stored tensor of GGUF says where it lies and what it is") {
  const std::string path = temporary_file("weights.gguf");
  ts::write_gguf(
      path,
      {ts::gguf_text("general.architecture", "gpt2"), ts::gguf_whole("gpt2.block_count", 1),
       ts::gguf_whole("gpt2.embedding_length", 8), ts::gguf_whole("gpt2.context_length", 4),
       ts::gguf_whole("gpt2.attention.head_count", 2),
       ts::gguf_whole("gpt2.feed_forward_length", 32), ts::gguf_whole("gpt2.vocab_size", 10)},
      {{"blk.0.attn_qkv.weight", ts::zeros({24, 8})},
       {"blk.0.ffn_down.weight", ts::zeros({8, 32}), ts::BlockFormat::q4_0},
       {"more.weight", ts::zeros({100, 100}), ts::BlockFormat::f16}});
  const ts::WeightFile file = ts::open_weights(path);
  std::remove(path.c_str());
  CHECK(file.kind == "GGUF version 3");
  CHECK(file.has_config);
  CHECK(file.data_bytes == 768 + 144 + 20000);
  const ts::StoredTensor* const key = file.find("model.layers.0.self_attn.k_proj.weight");
  REQUIRE(key != nullptr);
  CHECK(key->stored == "blk.0.attn_qkv.weight");
  CHECK(key->shape == ts::Shape{8, 8});
  CHECK(key->type == "F32");
  CHECK(key->data == file.find("model.layers.0.self_attn.q_proj.weight")->data + 256);
  CHECK(file.find("model.layers.0.mlp.down_proj.weight")->format == ts::BlockFormat::q4_0);
  CHECK(file.find("more.weight")->type == "F16");
}
