#pragma once
// A Llama's weights as a GGUF file with a vocabulary that means nothing: what llama.cpp needs to
// run the shapes of the bench.

#include <cstdio>
#include <string>

#include "tinyscale.hpp"

#include "../tests/gguf_write.hpp"  // after the library

namespace bench {

inline void write_llama(const tinyscale::Transformer& model, tinyscale::BlockFormat format,
                        const std::string& path) {
  namespace ts = tinyscale;
  const ts::ModelConfig& c = model.config;
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<std::int32_t> types;
  for (std::int64_t i = 0; i < c.vocabulary; ++i) {
    char name[32];
    std::snprintf(name, sizeof name, i >= 3 && i < 259 ? "<0x%02X>" : "t%d",
                  static_cast<int>(i >= 3 && i < 259 ? i - 3 : i));
    tokens.push_back(i == 0 ? "<unk>" : i == 1 ? "<s>" : i == 2 ? "</s>" : name);
    scores.push_back(-static_cast<float>(i));
    types.push_back(i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1);
  }
  const ts::List<ts::GgufValue> keys = {
      gguf_text("general.architecture", "llama"),
      gguf_text("general.name", c.name),
      gguf_whole("general.quantization_version", 2),
      gguf_whole("llama.context_length", c.context),
      gguf_whole("llama.embedding_length", c.width),
      gguf_whole("llama.block_count", c.layers),
      gguf_whole("llama.feed_forward_length", c.hidden),
      gguf_whole("llama.attention.head_count", c.heads),
      gguf_whole("llama.attention.head_count_kv", c.kv_heads),
      gguf_whole("llama.rope.dimension_count", c.head_size),
      gguf_real("llama.attention.layer_norm_rms_epsilon", c.norm_epsilon),
      gguf_real("llama.rope.freq_base", c.rope_theta),
      gguf_whole("llama.vocab_size", c.vocabulary),
      gguf_text("tokenizer.ggml.model", "llama"),
      gguf_texts("tokenizer.ggml.tokens", tokens),
      gguf_reals("tokenizer.ggml.scores", scores),
      gguf_wholes("tokenizer.ggml.token_type", types),
      gguf_whole("tokenizer.ggml.bos_token_id", 1),
      gguf_whole("tokenizer.ggml.eos_token_id", 2),
      gguf_whole("tokenizer.ggml.unknown_token_id", 0)};
  const char* const names[][2] = {
      {"input_layernorm", "attn_norm"}, {"post_attention_layernorm", "ffn_norm"},
      {"self_attn.q_proj", "attn_q"},   {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},   {"self_attn.o_proj", "attn_output"},
      {"mlp.gate_proj", "ffn_gate"},    {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"}};
  ts::List<GgufSource> tensors;
  for (const ts::Parameter& p : model.parameters) {
    std::string name = p.name == "model.embed_tokens.weight" ? "token_embd.weight"
                       : p.name == "model.norm.weight"       ? "output_norm.weight"
                                                             : "";
    for (const auto& pair : names) {
      if (p.name.find(pair[0]) != std::string::npos) {
        name = "blk." + std::to_string(p.layer) + "." + pair[1] + ".weight";
      }
    }
    const bool matrix = p.shape.size() == 2;
    tensors.push_back({name, p.value.detach(), matrix ? format : ts::BlockFormat::f32});
  }
  write_gguf(path, keys, tensors);
}

}  // namespace bench
