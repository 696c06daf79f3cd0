#pragma once
// Generation as the program llama2.c does it, number for number: its random numbers (xorshift*),
// its float32 softmax and nucleus, its loop, which ends at a BOS and prints what can be printed.
// With the same checkpoint, prompt and seed the text is the same.

#include <cmath>    // exp
#include <cstdint>  // int32_t
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/function.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/model/llama2c_decoder.hpp"
#include "tinyscale/model/sampler.hpp"

namespace tinyscale {

struct Llama2cOptions {
  double temperature = 1.0;  // 0: the most probable
  double top_p = 0.9;        // at or below 0, or at or above 1: off
  std::uint64_t seed = 1;    // not 0
  std::int64_t steps = 256;  // tokens in and out; 0, or more than the context: as many as it
  Function<void(const std::string& piece)> on_text;
};

struct Llama2cText {
  std::string text;
  std::vector<std::int32_t> ids;  // BOS, the prompt, what came; not the BOS that ended it
};

namespace detail {

class Llama2cSampler {
 public:
  explicit Llama2cSampler(const Llama2cOptions& options)
      : state_(options.seed),
        temperature_(static_cast<float>(options.temperature)),
        top_p_(static_cast<float>(options.top_p)) {}

  std::int32_t next(const float* logits, std::int64_t n) {
    check_logits(logits, n);
    if (!(temperature_ > 0.0f)) {
      return static_cast<std::int32_t>(std::max_element(logits, logits + n) - logits);
    }
    std::vector<float> p(logits, logits + n);
    for (float& x : p) {
      x /= temperature_;
    }
    const float largest = *std::max_element(p.begin(), p.end());
    if (!is_finite(largest)) {
      fail({"llama2c_generate: temperature ", double{temperature_},
            " makes a logit infinite; a higher one, or 0 for the most probable token, is right"});
    }
    float sum = 0.0f;
    for (float& x : p) {
      x = std::exp(x - largest);
      sum += x;
    }
    for (float& x : p) {
      x /= sum;
    }
    const float draw = coin();
    return top_p_ <= 0.0f || top_p_ >= 1.0f ? walk(p, draw) : nucleus(p, draw);
  }

 private:
  // xorshift* (Vigna, arXiv 1402.6246): 24 bits as a float in [0, 1).
  float coin() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    const std::uint64_t word = (state_ * 0x2545F4914F6CDD1DULL) >> 32;
    return static_cast<float>(static_cast<std::uint32_t>(word) >> 8) / 16777216.0f;
  }

  static std::int32_t walk(const std::vector<float>& p, float draw) {
    float reached = 0.0f;
    for (std::size_t i = 0; i < p.size(); ++i) {
      reached += p[i];
      if (draw < reached) {
        return static_cast<std::int32_t>(i);
      }
    }
    return static_cast<std::int32_t>(p.size()) - 1;
  }

  std::int32_t nucleus(const std::vector<float>& p, float draw) const {
    const float least = (1.0f - top_p_) / static_cast<float>(p.size() - 1);
    std::vector<double> falling;
    std::vector<std::size_t> ids;
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (p[i] >= least) {
        falling.push_back(-static_cast<double>(p[i]));
        ids.push_back(i);
      }
    }
    if (ids.empty()) {  // flatter than any that top_p cuts: the most probable
      return static_cast<std::int32_t>(std::max_element(p.begin(), p.end()) - p.begin());
    }
    const std::vector<std::size_t> order = stable_order(falling);
    float sum = 0.0f;
    std::size_t kept = 0;
    while (kept < order.size() && !(sum > top_p_)) {
      sum += p[ids[order[kept++]]];
    }
    const float goal = draw * sum;
    float reached = 0.0f;
    for (std::size_t i = 0; i < kept; ++i) {
      reached += p[ids[order[i]]];
      if (goal < reached) {
        return static_cast<std::int32_t>(ids[order[i]]);
      }
    }
    return static_cast<std::int32_t>(ids[order[kept - 1]]);
  }

  std::uint64_t state_;
  float temperature_, top_p_;
};

// Of one byte only what prints or is a space.
inline bool llama2c_prints(const std::string& piece) {
  const auto byte = static_cast<unsigned char>(piece.empty() ? '\0' : piece[0]);
  return piece.size() > 1 || (byte >= 32 && byte < 127) || (byte >= 9 && byte <= 13);
}

}  // namespace detail

inline Llama2cText llama2c_generate(const Transformer& model, const std::string& prompt,
                                    const Llama2cOptions& options = {}) {
  const ModelConfig& c = model.config;
  if (!detail::is_finite(options.temperature) || options.temperature < 0 ||
      !detail::is_finite(options.top_p) || options.seed == 0 || options.steps < 0) {
    detail::fail({"llama2c_generate: temperature ", options.temperature, ", top_p ", options.top_p,
                  ", seed ", options.seed, ", ", options.steps,
                  " steps; finite numbers, a seed above 0 and at least 0 steps are right"});
  }
  if (c.vocabulary < 2 || model.tokenizer.bos() < 0) {
    detail::fail({"llama2c_generate: the tokenizer of ", c.name, " is ", model.tokenizer.text(),
                  "; one with a BOS token is right"});
  }
  const auto bos = static_cast<std::int32_t>(model.tokenizer.bos());
  const std::vector<std::int32_t> forced = model.tokenizer.encode(prompt, true);
  detail::Llama2cSampler sampler(options);
  Llama2cDecoder decoder(model);
  Llama2cText made;
  made.ids.push_back(forced[0]);
  const bool all = options.steps == 0 || options.steps > c.context;  // as that program takes them
  for (std::int64_t at = 0; at < (all ? c.context : options.steps); ++at) {
    const std::int32_t token = made.ids.back();
    const std::vector<float> logits = decoder.next(token);
    const std::int32_t next = at + 1 < static_cast<std::int64_t>(forced.size())
                                  ? forced[static_cast<std::size_t>(at + 1)]
                                  : sampler.next(logits.data(), c.vocabulary);
    if (next == bos) {
      break;
    }
    made.ids.push_back(next);
    const std::string piece = model.tokenizer.decode_piece(token, next);
    if (detail::llama2c_prints(piece)) {
      made.text += piece;
      if (options.on_text) {
        options.on_text(piece);
      }
    }
  }
  return made;
}

}  // namespace tinyscale
