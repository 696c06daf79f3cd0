#pragma once
// One token at a time in ggml's order of arithmetic, slow and plain, to give what llama.cpp gives,
// id for id: activations rounded to the weights' kind (q8_0 for blocks of 32), f16 keys and values,
// softmax without flash attention, all sums as ggml's x86 kernels for AVX-512 with AMX add them.
// Where activations are rounded to 8 bits, the last bit of a sum decides ids a hundred tokens on.
// Source: llama.cpp 2026 (MIT), its ggml-cpu; a prompt is fed one by one, not in a batch.

#include <algorithm>  // max_element
#include <cmath>      // fma
#include <cstdint>    // int32_t
#include <string>     // string
#include <vector>     // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/compute/ggml_sums.hpp"
#include "tinyscale/compute/stored_matrix.hpp"
#include "tinyscale/model/sampler.hpp"
#include "tinyscale/model/transformer.hpp"

namespace tinyscale {

class GgmlDecoder {
 public:
  // Of a model of Llama's architecture, its weights as stored in f32, f16, bf16
  // or blocks of 32.
  explicit GgmlDecoder(const Transformer& model);
  GgmlDecoder(Transformer&&) = delete;  // the model must stay

  // Logits of the token after this one, which stands behind those given before. Numbers that are
  // not finite end its use by an Error where they would be rounded to codes.
  std::vector<float> next(std::int32_t token);
  std::int64_t position() const { return position_; }

 private:
  using Vector = std::vector<float>;
  struct Layer {
    const float *attention_norm, *feed_forward_norm;
    const StoredMatrix *query, *key, *value, *output, *gate, *up, *down;
    Vector keys, values;  // [tokens][KV K], each number one that f16 holds
  };

  const Parameter& find(const std::string& name) const;
  const StoredMatrix* matrix(const std::string& name) const;
  static bool in_blocks(BlockFormat f) {  // of 32 numbers
    return f == BlockFormat::q8_0 || f == BlockFormat::q4_0 || f == BlockFormat::q4_1 ||
           f == BlockFormat::q5_0 || f == BlockFormat::q5_1;
  }
  static Vector multiply(const StoredMatrix& w, const Vector& x);
  Vector normalize(const float* weight, const Vector& x) const;
  void rotate(Vector& heads) const;
  Vector attend(const Layer& layer, const Vector& query) const;

  const Transformer& model_;
  const StoredMatrix *embedding_ = nullptr, *head_ = nullptr;
  const float* last_norm_ = nullptr;
  List<Layer> layers_;
  std::int64_t position_ = 0;
};

inline const Parameter& GgmlDecoder::find(const std::string& name) const {
  for (const Parameter& p : model_.parameters) {
    if (p.name == name) {
      return p;
    }
  }
  detail::fail({"GgmlDecoder: the model has no parameter ", name});
}

inline const StoredMatrix* GgmlDecoder::matrix(const std::string& name) const {
  const Parameter& p = find(name);
  if (p.stored.get() == nullptr) {
    detail::fail({"GgmlDecoder: ", name,
                  " is float32 that learns; a model loaded with Weights::as_stored is right"});
  }
  const StoredMatrix& w = *p.stored;
  const BlockFormat f = w.format;
  if (w.is_packed || (block_layout(f).elements > 1 && !in_blocks(f))) {
    detail::fail({"GgmlDecoder: ", name, " is ", w.kind(),
                  "; f32, f16, bf16, q8_0, q4_0, q4_1, q5_0 and q5_1 are covered"});
  }
  if (f == BlockFormat::q4_0 && w.rows % 8 == 0 && w.rows % 32 != 0) {
    detail::fail({"GgmlDecoder: ", name, " has ", w.rows,
                  " rows of q4_0; a multiple of 32, or none of 8, is covered"});
  }
  return &w;
}

inline GgmlDecoder::GgmlDecoder(const Transformer& model) : model_(model) {
  const ModelConfig& c = model.config;
  const bool llama = c.norm == Norm::rms && c.position == Position::rotary &&
                     c.activation == Activation::swiglu && !c.bias && !c.qkv_bias && !c.qk_norm &&
                     c.experts == 0 && !c.latent() && c.window == 0 && c.block_norms == 2 &&
                     c.rope_pairs == RopePairs::interleaved && c.rope_factors.empty();
  if (!llama) {
    detail::fail({"GgmlDecoder: ", c.name,
                  " is not of Llama's architecture: RMS norms, rotary positions on interleaved "
                  "pairs at their own frequencies, SwiGLU, no biases, no experts, no window"});
  }
  embedding_ = matrix("model.embed_tokens.weight");
  head_ = c.tied ? embedding_ : matrix("lm_head.weight");
  last_norm_ = find("model.norm.weight").value.data();
  for (std::int64_t i = 0; i < c.layers; ++i) {
    const std::string at = detail::cat({"model.layers.", i, "."});
    Layer l;
    l.attention_norm = find(at + "input_layernorm.weight").value.data();
    l.feed_forward_norm = find(at + "post_attention_layernorm.weight").value.data();
    l.query = matrix(at + "self_attn.q_proj.weight");
    l.key = matrix(at + "self_attn.k_proj.weight");
    l.value = matrix(at + "self_attn.v_proj.weight");
    l.output = matrix(at + "self_attn.o_proj.weight");
    l.gate = matrix(at + "mlp.gate_proj.weight");
    l.up = matrix(at + "mlp.up_proj.weight");
    l.down = matrix(at + "mlp.down_proj.weight");
    layers_.push_back(l);
  }
}

inline std::vector<float> GgmlDecoder::multiply(const StoredMatrix& w, const Vector& x) {
  Vector y(static_cast<std::size_t>(w.rows));
  const BlockFormat f = w.format;
  if (in_blocks(f)) {
    const bool amx = f == BlockFormat::q8_0 || f == BlockFormat::q4_0 || f == BlockFormat::q4_1;
    const detail::GgmlBlocks blocks(x);
    for (std::int64_t i = 0; i < w.rows; ++i) {
      y[static_cast<std::size_t>(i)] =
          detail::ggml_block_dot(f, w.data + i * w.row_bytes, blocks, amx && w.rows % 32 == 0);
    }
    return y;
  }
  const bool by_16 = f == BlockFormat::f16 && w.rows % 32 == 0 && w.cols % 16 == 0;
  Vector rounded = x, row(x.size());
  for (float& number : rounded) {
    number = f == BlockFormat::bf16            ? from_bf16(to_bf16(number))
             : f == BlockFormat::f16 && !by_16 ? detail::ggml_half(number)
                                               : number;
  }
  const auto dot = by_16                    ? &detail::ggml_register_dot
                   : f == BlockFormat::f16  ? &detail::ggml_f16_dot
                   : f == BlockFormat::bf16 ? &detail::ggml_bf16_dot
                                            : &detail::ggml_f32_dot;
  for (std::int64_t i = 0; i < w.rows; ++i) {
    kernels::stored_row(w, i, row.data());
    y[static_cast<std::size_t>(i)] = dot(w.cols, row.data(), rounded.data());
  }
  return y;
}

// x / sqrt(mean x^2 + epsilon) w: squares in float, their sum in double.
inline std::vector<float> GgmlDecoder::normalize(const float* weight, const Vector& x) const {
  double sum = 0.0;
  for (const float number : x) {
    const float square = number * number;
    sum += static_cast<double>(square);
  }
  const float mean = static_cast<float>(sum / static_cast<double>(x.size()));
  const float scale = 1.0f / std::sqrt(mean + static_cast<float>(model_.config.norm_epsilon));
  Vector y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float scaled = x[i] * scale;
    y[i] = scaled * weight[i];
  }
  return y;
}

// Angles in float, each the last one times theta^(-2 / K).
inline void GgmlDecoder::rotate(Vector& heads) const {
  const auto size = static_cast<std::size_t>(model_.config.head_size);
  const float base = static_cast<float>(model_.config.rope_theta);
  const float step = std::pow(base, -2.0f / static_cast<float>(size));
  float angle = static_cast<float>(position_);
  for (std::size_t i = 0; i < size; i += 2) {
    const float c = std::cos(angle), s = std::sin(angle);
    for (std::size_t at = i; at < heads.size(); at += size) {
      const float a = heads[at], b = heads[at + 1];
      const float bs = b * s, bc = b * c;
      heads[at] = std::fma(a, c, -bs);
      heads[at + 1] = std::fma(a, s, bc);
    }
    angle *= step;
  }
}

// Queries and probabilities are rounded to f16, as what they are multiplied with.
inline std::vector<float> GgmlDecoder::attend(const Layer& layer, const Vector& query) const {
  const ModelConfig& c = model_.config;
  const float scale = 1.0f / std::sqrt(static_cast<float>(c.head_size));
  const std::int64_t tokens = position_ + 1, row = c.key_width();
  Vector out(static_cast<std::size_t>(c.query_width()));
  for (std::int64_t h = 0; h < c.heads; ++h) {
    const std::int64_t first = h / (c.heads / c.kv_heads) * c.head_size;
    Vector q(query.begin() + h * c.head_size, query.begin() + (h + 1) * c.head_size), p;
    for (float& number : q) {
      number = detail::ggml_half(number);
    }
    for (std::int64_t t = 0; t < tokens; ++t) {
      const float* const key = layer.keys.data() + t * row + first;
      p.push_back(detail::ggml_f16_dot(c.head_size, key, q.data()) * scale);
    }
    detail::ggml_softmax(p);
    p.resize((p.size() + 63) / 64 * 64, 0.0f);  // the cells behind are zero: whole steps of lanes
    for (float& number : p) {
      number = detail::ggml_half(number);
    }
    Vector column(p.size(), 0.0f);
    for (std::int64_t i = 0; i < c.head_size; ++i) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        column[static_cast<std::size_t>(t)] =
            layer.values[static_cast<std::size_t>(t * row + first + i)];
      }
      out[static_cast<std::size_t>(h * c.head_size + i)] =
          detail::ggml_f16_dot(static_cast<std::int64_t>(p.size()), column.data(), p.data());
    }
  }
  return out;
}

inline std::vector<float> GgmlDecoder::next(std::int32_t token) {
  const ModelConfig& c = model_.config;
  if (token < 0 || token >= c.vocabulary || position_ >= c.context) {
    detail::fail({"GgmlDecoder::next: token ", token, " at position ", position_, "; tokens 0 to ",
                  c.vocabulary - 1, " at positions 0 to ", c.context - 1, " are right"});
  }
  Vector x(static_cast<std::size_t>(c.width));
  kernels::stored_row(*embedding_, token, x.data());
  const auto add = [&x](const Vector& y) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] += y[i];
    }
  };
  for (Layer& l : layers_) {
    const Vector n = normalize(l.attention_norm, x);
    Vector query = multiply(*l.query, n), key = multiply(*l.key, n);
    rotate(query);
    rotate(key);
    for (const float number : key) {
      l.keys.push_back(detail::ggml_half(number));
    }
    for (const float number : multiply(*l.value, n)) {
      l.values.push_back(detail::ggml_half(number));
    }
    add(multiply(*l.output, attend(l, query)));
    const Vector m = normalize(l.feed_forward_norm, x);
    Vector gate = multiply(*l.gate, m);
    detail::ggml_swiglu(gate, multiply(*l.up, m));
    add(multiply(*l.down, gate));
  }
  ++position_;
  return multiply(*head_, normalize(last_norm_, x));
}

// The ids and the n most probable that follow, one by one.
inline std::vector<std::int32_t> ggml_generate_tokens(const Transformer& model,
                                                      const std::vector<std::int32_t>& ids,
                                                      std::int64_t n) {
  if (ids.empty() || n < 0) {
    detail::fail({"ggml_generate_tokens: ", n, " tokens after ", ids.size(),
                  "; at least 0 after at least 1 are right"});
  }
  GgmlDecoder decoder(model);
  std::vector<float> logits;
  for (const std::int32_t id : ids) {
    logits = decoder.next(id);
  }
  std::vector<std::int32_t> all = ids;
  for (std::int64_t i = 0; i < n; ++i) {
    detail::check_logits(logits.data(), static_cast<std::int64_t>(logits.size()));
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    all.push_back(static_cast<std::int32_t>(best));
    if (i + 1 < n) {
      logits = decoder.next(all.back());
    }
  }
  return all;
}

}  // namespace tinyscale
