// stories260K from its GGUF files: the tokens of the float64 reference on the same rounded weights,
// and those of llama.cpp, which rounds activations to blocks of 8 bits where weights are in blocks.
#include <doctest/doctest.h>

#include <cmath>
#include <sstream>

#include "error_of.hpp"
#include "model_files.hpp"
#include "tinyscale.hpp"

#include "gguf_write.hpp"

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

namespace {

// What llama.cpp gave for a file, 128 tokens after a BOS; empty where it is absent.
std::vector<std::int32_t> llama_cpp_tokens(const std::string& format) {
  const std::string text =
      file_bytes(model_path(at + "golden/llamacpp_" + format + "_greedy_128_tokens.json"));
  std::vector<std::int32_t> ids;
  if (text.empty()) {
    MESSAGE("skipped: no data/models/stories260K");
    return ids;
  }
  for (const ts::Json& id : ts::parse_json(text).list) {
    ids.push_back(static_cast<std::int32_t>(id.number));
  }
  return ids;
}

ts::Tensor logits_after(const std::string& format, const std::vector<std::int32_t>& ids,
                        ts::Activations activations) {
  ts::LoadOptions options;
  options.weights = ts::Weights::as_stored;
  options.activations = activations;
  return story(format, options).forward(ids, 1, static_cast<std::int64_t>(ids.size()));
}

double distance(const ts::Tensor& logits, const std::vector<float>& right) {
  double sum = 0;
  for (std::size_t i = 0; i < right.size(); ++i) {
    const double d = double{logits.data()[i]} - double{right[i]};
    sum += d * d;
  }
  return std::sqrt(sum / static_cast<double>(right.size()));
}

}  // namespace

TEST_CASE("GGUF weights as stored give llama.cpp's 128 tokens") {
  for (const std::string format : {"f32", "f16", "bf16"}) {
    CAPTURE(format);
    const std::vector<std::int32_t> wanted = llama_cpp_tokens(format);
    if (wanted.empty()) {
      return;
    }
    REQUIRE(wanted.size() == 128);
    std::vector<std::int32_t> input = {1};
    input.insert(input.end(), wanted.begin(), wanted.end() - 1);
    CHECK(best(logits_after(format, input, ts::Activations::f32), 512) == wanted);
  }
}

TEST_CASE("activations in blocks are off as far as another rounding of the same size") {
  // Which of two codes an activation gets, the last bits of sums decide: the fast products round
  // as often to the other one as ggml's order does. Two roundings that have nothing to do with each
  // other are sqrt(2) times as far apart as either is from none; a tenth is left for chance.
  for (const std::string format : {"q8_0", "q4_0"}) {
    CAPTURE(format);
    const std::vector<std::int32_t> wanted = llama_cpp_tokens(format);
    if (wanted.empty()) {
      return;
    }
    std::vector<std::int32_t> input = {1};
    input.insert(input.end(), wanted.begin(), wanted.begin() + 63);
    ts::LoadOptions options;
    options.weights = ts::Weights::as_stored;
    const ts::Transformer model = story(format, options);
    ts::GgmlDecoder decoder(model);
    std::vector<float> right;
    for (const std::int32_t id : input) {
      const std::vector<float> row = decoder.next(id);
      right.insert(right.end(), row.begin(), row.end());
    }
    const double none = distance(logits_after(format, input, ts::Activations::f32), right);
    const double blocks =
        distance(logits_after(format, input, ts::Activations::int8_blocks), right);
    CHECK(none > 0.01);  // 8 bits are not float32
    CHECK(blocks < 1.1 * std::sqrt(2.0) * none);
  }
}

TEST_CASE("a stored tensor of GGUF says where it lies and what it is") {
  const std::string path = temporary_file("weights.gguf");
  write_gguf(path,
             {gguf_text("general.architecture", "gpt2"), gguf_whole("gpt2.block_count", 1),
              gguf_whole("gpt2.embedding_length", 8), gguf_whole("gpt2.context_length", 4),
              gguf_whole("gpt2.attention.head_count", 2),
              gguf_whole("gpt2.feed_forward_length", 32), gguf_whole("gpt2.vocab_size", 10)},
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
