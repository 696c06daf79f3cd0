#pragma once
// One token at a time in the order of arithmetic of llama2.c's run.c and runq.c: plain sums from
// left to right, float32 throughout, each product rounded before it is added (machine code without
// fused multiply-adds). Slow and readable: the second implementation that the fast one
// is tested against, and the one whose tokens are llama2.c's even where rounding decides. With
// weights in int8 groups activations are rounded to int8 in the same groups before each product.

#include <cmath>    // exp, pow
#include <cstdint>  // int64_t
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/format.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/model/transformer.hpp"

namespace tinyscale {

class Llama2cDecoder {
 public:
  // f32 weights, or int8 in groups (a version 2 file loaded as stored).
  explicit Llama2cDecoder(const Transformer& model);

  // Logits after the next token, [vocabulary].
  std::vector<float> next(std::int32_t token);
  std::int64_t length() const { return length_; }

 private:
  struct Matrix {
    std::int64_t rows = 0, cols = 0, group = 0;  // group 0: f32
    std::vector<float> numbers, scales;
    std::vector<std::int8_t> codes;
  };
  struct Layer {
    std::vector<float> norm1, norm2, keys, values;  // keys: [tokens, KV K]
    Matrix q, k, v, o, gate, down, up;
  };

  static Matrix matrix(const Parameter& p);
  static std::vector<float> normed(const std::vector<float>& x, const std::vector<float>& weight);
  static std::vector<float> product(const Matrix& w, const std::vector<float>& x);
  void turn(std::vector<float>& x) const;
  std::vector<float> attend(const Layer& layer, const std::vector<float>& q) const;

  ModelConfig config_;
  Matrix embedding_, head_;
  std::vector<float> last_norm_;
  List<Layer> layers_;
  std::int64_t length_ = 0;
};

inline Llama2cDecoder::Matrix Llama2cDecoder::matrix(const Parameter& p) {
  Matrix m;
  m.rows = p.shape[0];
  m.cols = p.shape[1];
  if (p.value.defined()) {
    m.numbers = p.value.values();
    return m;
  }
  const StoredMatrix& w = *p.stored;
  m.numbers.resize(static_cast<std::size_t>(m.rows * m.cols));
  for (std::int64_t row = 0; row < m.rows; ++row) {
    kernels::stored_row(w, row, m.numbers.data() + row * m.cols);
  }
  if (w.is_packed && w.packed.bits == 8 && m.cols % w.packed.group == 0) {
    m.group = w.packed.group;
    for (std::int64_t i = 0; i < m.rows * m.cols; ++i) {
      m.codes.push_back(static_cast<std::int8_t>(w.packed.code(i / m.cols, i % m.cols)));
      if (i % m.group == 0) {
        m.scales.push_back(w.packed.scale(i / m.cols, i % m.cols));
      }
    }
  }
  return m;
}

inline Llama2cDecoder::Llama2cDecoder(const Transformer& model) : config_(model.config) {
  const ModelConfig& c = config_;
  if (c.norm != Norm::rms || c.position != Position::rotary || c.activation != Activation::swiglu ||
      c.rope_pairs != RopePairs::interleaved || c.bias || c.qkv_bias || c.qk_norm ||
      c.experts > 0 || c.window > 0 || !c.rope_factors.empty()) {
    detail::fail({"Llama2cDecoder: ", c.name,
                  " is no model of llama2.c; RMS norms, interleaved rotary pairs at their own "
                  "frequencies, SwiGLU and no biases, experts or window are right"});
  }
  const auto epsilon = static_cast<float>(c.norm_epsilon);  // a GGUF file has no more digits
  if (epsilon < 1e-5f || epsilon > 1e-5f) {
    detail::fail({"Llama2cDecoder: ", c.name, " has a norm_epsilon of ", c.norm_epsilon,
                  "; 1e-05, llama2.c's, is right"});
  }
  layers_.resize(static_cast<std::size_t>(c.layers));
  for (const Parameter& p : model.parameters) {
    if (!p.value.defined() && !p.stored) {
      detail::fail({"Llama2cDecoder: ", p.name, " of ", c.name,
                    " is not there; a model with its weights is right"});
    }
    const auto ends = [&p](const std::string& tail) {
      return p.name.size() >= tail.size() &&
             p.name.compare(p.name.size() - tail.size(), tail.size(), tail) == 0;
    };
    if (p.layer < 0) {
      if (ends("norm.weight")) {
        last_norm_ = p.value.values();
      } else {
        (ends("lm_head.weight") ? head_ : embedding_) = matrix(p);
      }
      continue;
    }
    Layer& layer = layers_[static_cast<std::size_t>(p.layer)];
    if (ends("layernorm.weight")) {
      (ends("input_layernorm.weight") ? layer.norm1 : layer.norm2) = p.value.values();
      continue;
    }
    const struct {
      const char* name;
      Matrix* to;
    } places[] = {{"q_proj.weight", &layer.q},       {"k_proj.weight", &layer.k},
                  {"v_proj.weight", &layer.v},       {"o_proj.weight", &layer.o},
                  {"gate_proj.weight", &layer.gate}, {"down_proj.weight", &layer.down},
                  {"up_proj.weight", &layer.up}};
    for (const auto& place : places) {
      if (ends(place.name)) {
        *place.to = matrix(p);
      }
    }
  }
}

inline std::vector<float> Llama2cDecoder::normed(const std::vector<float>& x,
                                                 const std::vector<float>& weight) {
  float sum = 0.0f;
  for (const float value : x) {
    sum += detail::rounded_product(value, value);
  }
  sum /= static_cast<float>(x.size());
  sum += 1e-5f;
  const float scale = 1.0f / std::sqrt(sum);
  std::vector<float> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = weight[i] * (scale * x[i]);
  }
  return y;
}

inline std::vector<float> Llama2cDecoder::product(const Matrix& w, const std::vector<float>& x) {
  const auto cols = static_cast<std::size_t>(w.cols), group = static_cast<std::size_t>(w.group);
  std::vector<float> y(static_cast<std::size_t>(w.rows));
  if (group == 0) {
    for (std::size_t row = 0; row < y.size(); ++row) {
      float sum = 0.0f;
      for (std::size_t i = 0; i < cols; ++i) {
        sum += detail::rounded_product(w.numbers[row * cols + i], x[i]);
      }
      y[row] = sum;
    }
    return y;
  }
  std::vector<float> scales;
  std::vector<std::int8_t> codes;
  for (std::size_t first = 0; first < cols; first += group) {
    float largest = 0.0f;
    bool finite = true;  // else all that comes of it is NaN
    for (std::size_t i = first; i < first + group; ++i) {
      finite = finite && detail::is_finite(static_cast<double>(x[i]));
      largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
    }
    const float scale = finite ? largest / 127.0f : NAN;
    scales.push_back(scale);
    for (std::size_t i = first; i < first + group; ++i) {
      const float code = scale > 0.0f ? std::round(x[i] / scale) : 0.0f;
      codes.push_back(static_cast<std::int8_t>(
          std::fmax(-127.0f, std::fmin(127.0f, code))));  // of a subnormal scale
    }
  }
  for (std::size_t row = 0; row < y.size(); ++row) {
    float sum = 0.0f;
    for (std::size_t first = 0; first < cols; first += group) {
      std::int32_t dot = 0;
      for (std::size_t i = first; i < first + group; ++i) {
        dot += codes[i] * w.codes[row * cols + i];
      }
      const float scaled = static_cast<float>(dot) * w.scales[(row * cols + first) / group];
      sum += detail::rounded_product(scaled, scales[first / group]);
    }
    y[row] = sum;
  }
  return y;
}

inline void Llama2cDecoder::turn(std::vector<float>& x) const {
  const auto head = static_cast<std::size_t>(config_.head_size);
  for (std::size_t i = 0; i < x.size(); i += 2) {
    const float power = static_cast<float>(i % head) / static_cast<float>(head);
    const float frequency = 1.0f / std::pow(static_cast<float>(config_.rope_theta), power);
    const float angle = static_cast<float>(length_) * frequency;
    const float c = std::cos(angle), s = std::sin(angle), a = x[i], b = x[i + 1];
    x[i] = detail::rounded_product(a, c) - detail::rounded_product(b, s);
    x[i + 1] = detail::rounded_product(a, s) + detail::rounded_product(b, c);
  }
}

inline std::vector<float> Llama2cDecoder::attend(const Layer& layer,
                                                 const std::vector<float>& q) const {
  const auto head = static_cast<std::size_t>(config_.head_size);
  const auto row = static_cast<std::size_t>(config_.key_width());
  const auto group = static_cast<std::size_t>(config_.heads / config_.kv_heads);
  const std::size_t tokens = layer.keys.size() / row;
  std::vector<float> y(q.size(), 0.0f), p(tokens);
  for (std::size_t h = 0; h < q.size() / head; ++h) {
    const std::size_t at = h / group * head;
    float largest = -INFINITY, sum = 0.0f;
    for (std::size_t t = 0; t < tokens; ++t) {
      float score = 0.0f;
      for (std::size_t i = 0; i < head; ++i) {
        score += detail::rounded_product(q[h * head + i], layer.keys[t * row + at + i]);
      }
      p[t] = score / std::sqrt(static_cast<float>(head));
      largest = p[t] > largest ? p[t] : largest;
    }
    for (float& x : p) {
      x = std::exp(x - largest);
      sum += x;
    }
    for (std::size_t t = 0; t < tokens; ++t) {
      const float share = p[t] / sum;
      for (std::size_t i = 0; i < head; ++i) {
        y[h * head + i] += detail::rounded_product(share, layer.values[t * row + at + i]);
      }
    }
  }
  return y;
}

inline std::vector<float> Llama2cDecoder::next(std::int32_t token) {
  if (token < 0 || token >= config_.vocabulary || length_ >= config_.context) {
    detail::fail({"Llama2cDecoder: token ", token, " of ", config_.vocabulary, " at place ",
                  length_, " of ", config_.context, "; both must be inside"});
  }
  const auto add = [](std::vector<float>& x, const std::vector<float>& y) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] += y[i];
    }
  };
  const float* const row = embedding_.numbers.data() + token * config_.width;
  std::vector<float> x(row, row + config_.width);
  for (Layer& layer : layers_) {
    const std::vector<float> in = normed(x, layer.norm1);
    std::vector<float> q = product(layer.q, in), k = product(layer.k, in);
    const std::vector<float> v = product(layer.v, in);
    turn(q);
    turn(k);
    layer.keys.insert(layer.keys.end(), k.begin(), k.end());
    layer.values.insert(layer.values.end(), v.begin(), v.end());
    add(x, product(layer.o, attend(layer, q)));
    const std::vector<float> wide = normed(x, layer.norm2);
    std::vector<float> gate = product(layer.gate, wide);
    const std::vector<float> up = product(layer.up, wide);
    for (std::size_t i = 0; i < gate.size(); ++i) {
      const float silu = gate[i] * (1.0f / (1.0f + std::exp(-gate[i])));
      gate[i] = silu * up[i];
    }
    add(x, product(layer.down, gate));
  }
  ++length_;
  return product(config_.tied ? embedding_ : head_, normed(x, last_norm_));
}

}  // namespace tinyscale
