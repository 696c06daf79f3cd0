#pragma once
// One token at a time in ggml's order of arithmetic, slow and plain, to give what llama.cpp gives,
// id for id: activations rounded to the weights' kind (q8_0 for blocks of 32), f16 keys and values,
// softmax without flash attention, every sum in the order of ggml's x86 kernels for AVX-512 with
// AMX. Rounding to 8 bits makes an id hang on a sum's last bit, so the order matters.
// Source: ggml-cpu (MIT) of llama.cpp, 2026: amx/mmq, vec, ops, arch/x86/quants.

#include <algorithm>  // max_element
#include <cmath>      // fma
#include <cstdint>    // int32_t
#include <string>     // string
#include <vector>     // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/format.hpp"
#include "tinyscale/compute/stored_matrix.hpp"
#include "tinyscale/model/transformer.hpp"

namespace tinyscale {
namespace detail {

inline float ggml_half(float x) { return from_f16(to_f16(x)); }

// The upper half of the lanes added to the lower until one is left: a register's sum, and that of
// several registers (AVX-512 sums 64 numbers at a time in 4 registers).
inline float sum_lanes(float* lanes, int n) {
  for (int half = n / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      lanes[i] += lanes[i + half];
    }
  }
  return lanes[0];
}

// Row of f16 or f32 by vector: 64 lanes; what is left over one by one, of f16 in double.
inline float ggml_float_dot(std::int64_t n, const float* w, const float* x, bool halves) {
  float lanes[64] = {};
  const std::int64_t whole = n / 64 * 64;
  for (std::int64_t i = 0; i < whole; ++i) {
    lanes[i % 64] = std::fma(w[i], x[i], lanes[i % 64]);
  }
  const float sum = sum_lanes(lanes, 64);
  if (!halves) {
    float all = sum;
    for (std::int64_t i = whole; i < n; ++i) {
      all = std::fma(w[i], x[i], all);
    }
    return all;
  }
  double all = static_cast<double>(sum);
  for (std::int64_t i = whole; i < n; ++i) {
    all += static_cast<double>(w[i]) * static_cast<double>(x[i]);  // exact
  }
  return static_cast<float>(all);
}

// A vector in q8_0: codes to nearest even by 127 / largest, the scale largest / 127 kept in f16.
struct GgmlBlocks {
  std::vector<int> codes;
  std::vector<float> scales;

  explicit GgmlBlocks(const std::vector<float>& x) {
    for (std::size_t block = 0; block < x.size(); block += 32) {
      float largest = 0.0f;
      for (std::size_t i = block; i < block + 32; ++i) {
        largest = std::max(largest, std::fabs(x[i]));
      }
      const float by = largest > 0.0f ? 127.0f / largest : 0.0f;
      for (std::size_t i = block; i < block + 32; ++i) {
        codes.push_back(static_cast<int>(std::nearbyint(x[i] * by)));
      }
      scales.push_back(ggml_half(largest / 127.0f));
    }
  }
};

// Row of q8_0 or q4_0 blocks by q8_0 vector. Sums of codes are exact. 32 rows at a time (AMX's
// layout, one token) a block adds one number; other matrices have 8 lanes of 4 codes each.
inline float ggml_block_dot(BlockFormat format, const std::uint8_t* row, const GgmlBlocks& x,
                            bool by_32_rows) {
  const bool bytes = format == BlockFormat::q8_0;
  float lanes[8] = {}, one = 0.0f;
  for (std::size_t block = 0; block < x.scales.size(); ++block) {
    const std::uint8_t* const at = row + block * (bytes ? 34 : 18);
    const int half = at[0] + 256 * at[1];
    const float scale = from_f16(static_cast<std::uint16_t>(half)) * x.scales[block];
    int sums[8] = {}, all = 0;
    for (int i = 0; i < 32; ++i) {
      const int byte = at[2 + (bytes ? i : i % 16)];
      const int code = bytes ? (byte ^ 128) - 128 : (i < 16 ? byte % 16 : byte / 16) - 8;
      const int product = code * x.codes[32 * block + static_cast<std::size_t>(i)];
      sums[i / 4] += product;
      all += product;
    }
    one = std::fma(static_cast<float>(all), scale, one);
    for (int i = 0; i < 8; ++i) {
      lanes[i] = std::fma(static_cast<float>(sums[i]), scale, lanes[i]);
    }
  }
  return by_32_rows ? one : sum_lanes(lanes, 8);
}

// exp as ggml's vector code computes it: x = n ln 2 + b, 2^n by a polynomial of degree 5 in b.
inline float ggml_vector_exp(float x) {
  const float shift = 12582912.0f;  // 1.5 2^23: adding it rounds to whole numbers
  const float n = std::fma(x, 0x1.715476p+0f, shift) - shift;
  if (std::fabs(n) > 192.0f) {
    return n > 0.0f ? HUGE_VALF : 0.0f;
  }
  const float b = std::fma(-n, 0x1.7f7d1cp-20f, std::fma(-n, 0x1.62e4p-1f, x));
  const float square = b * b;
  const float high = std::fma(0x1.0e4020p-7f, b, 0x1.573e2ep-5f);
  const float middle = std::fma(0x1.555e66p-3f, b, 0x1.fffdb6p-2f);
  const float low = std::fma(0x1.ffffecp-1f, b, 1.0f);
  return std::ldexp(std::fma(std::fma(high, square, middle), square, low), static_cast<int>(n));
}

// Softmax of scores: exp 16 at a time, their sums added up in double.
inline void ggml_softmax(std::vector<float>& s) {
  const float largest = *std::max_element(s.begin(), s.end());
  s.resize((s.size() + 15) / 16 * 16, -HUGE_VALF);  // the cells behind are masked
  double sum = 0.0;
  for (std::size_t i = 0; i < s.size(); i += 16) {
    float lanes[16];
    for (std::size_t j = 0; j < 16; ++j) {
      s[i + j] = s[i + j] == -HUGE_VALF ? 0.0f : ggml_vector_exp(s[i + j] - largest);
      lanes[j] = s[i + j];
    }
    sum += static_cast<double>(sum_lanes(lanes, 16));
  }
  const float scale = static_cast<float>(1.0 / sum);
  for (float& p : s) {
    p *= scale;
  }
}

// silu(gate) up: 16 at a time by the vector exp, the rest by the C library's.
inline void ggml_swiglu(std::vector<float>& gate, const std::vector<float>& up) {
  const std::size_t whole = gate.size() / 16 * 16;
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const float x = gate[i];
    const float e = i < whole ? ggml_vector_exp(0.0f - x) : std::exp(-x);
    gate[i] = x / (1.0f + e) * up[i];
  }
}

}  // namespace detail

class GgmlDecoder {
 public:
  // Of a model of Llama's architecture, its weights as stored in f32, f16, q8_0 or q4_0.
  explicit GgmlDecoder(const Transformer& model);
  GgmlDecoder(Transformer&&) = delete;  // the model must stay

  // Logits of the token after this one, which stands behind those given before.
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
  static Vector multiply(const StoredMatrix& w, const Vector& x);
  Vector normalize(const float* weight, const Vector& x) const;
  void rotate(Vector& heads) const;
  Vector attend(const Layer& layer, const Vector& query) const;

  const Transformer& model_;
  const StoredMatrix *embedding_ = nullptr, *head_ = nullptr;
  const float* last_norm_ = nullptr;
  std::vector<Layer> layers_;
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
  const bool blocks = f == BlockFormat::q8_0 || f == BlockFormat::q4_0;
  if (w.is_packed || (!blocks && f != BlockFormat::f32 && f != BlockFormat::f16)) {
    detail::fail({"GgmlDecoder: ", name, " is ", w.kind(), "; f32, f16, q8_0 and q4_0 are covered"});
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
                     c.rope_pairs == RopePairs::interleaved;
  if (!llama) {
    detail::fail({"GgmlDecoder: ", c.name,
                  " is not of Llama's architecture: RMS norms, rotary positions on interleaved "
                  "pairs, SwiGLU, no biases, no experts"});
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
  if (w.format == BlockFormat::q8_0 || w.format == BlockFormat::q4_0) {
    const detail::GgmlBlocks blocks(x);
    for (std::int64_t i = 0; i < w.rows; ++i) {
      y[static_cast<std::size_t>(i)] = detail::ggml_block_dot(
          w.format, w.data + i * w.row_bytes, blocks, w.rows % 32 == 0);
    }
    return y;
  }
  const bool halves = w.format == BlockFormat::f16;
  Vector rounded = x, row(x.size());
  for (float& number : rounded) {
    number = halves ? detail::ggml_half(number) : number;
  }
  for (std::int64_t i = 0; i < w.rows; ++i) {
    kernels::stored_row(w, i, row.data());
    y[static_cast<std::size_t>(i)] =
        detail::ggml_float_dot(w.cols, row.data(), rounded.data(), halves);
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
      p.push_back(detail::ggml_float_dot(c.head_size, key, q.data(), true) * scale);
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
      out[static_cast<std::size_t>(h * c.head_size + i)] = detail::ggml_float_dot(
          static_cast<std::int64_t>(p.size()), column.data(), p.data(), true);
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

// The most probable n tokens after `ids`, which are not among them.
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
  std::vector<std::int32_t> made;
  while (static_cast<std::int64_t>(made.size()) < n) {
    made.push_back(static_cast<std::int32_t>(
        std::max_element(logits.begin(), logits.end()) - logits.begin()));
    if (static_cast<std::int64_t>(made.size()) < n) {
      logits = decoder.next(made.back());
    }
  }
  return made;
}

}  // namespace tinyscale
