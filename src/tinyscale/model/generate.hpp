#pragma once
// Text from a model, token by token. With the cache a token costs one column of keys and values
// and 2 flops a parameter; a full context starts over from its last tokens at position 0.

#include <algorithm>  // max_element, min
#include <cmath>      // exp
#include <cstdint>    // int32_t
#include <string>     // string
#include <vector>     // vector

#include "tinyscale/base/order.hpp"
#include "tinyscale/base/random.hpp"
#include "tinyscale/model/forward.hpp"
#include "tinyscale/model/read_text.hpp"

namespace tinyscale {

struct GenerateOptions {
  double temperature = 0.8;  // 0: always the most probable
  int top_k = 0;             // choose among so many; 0: all
  std::uint64_t seed = 1;
  bool cache = true;  // keep keys and values; false recomputes all tokens each time
};

namespace detail {

inline void check_generate(const GenerateOptions& options) {
  if (!is_finite(options.temperature) || options.temperature < 0 || options.top_k < 0) {
    fail({"generate: temperature is ", options.temperature, ", top_k ", options.top_k,
          "; finite numbers from 0 up are right"});
  }
}

inline void check_logits(const float* logits, std::int64_t known) {
  for (std::int64_t i = 0; i < known; ++i) {
    if (!is_finite(static_cast<double>(logits[i]))) {
      fail({"generate: the model's logit of token ", i, " is ", static_cast<double>(logits[i]),
            "; weights that give finite numbers are right"});
    }
  }
}

// The next token from `known` logits; `draw` in [0, 1) walks the probabilities in order of id.
inline std::int32_t sample(const float* logits, std::int64_t known, const GenerateOptions& options,
                           float draw) {
  check_logits(logits, known);
  const float* top = std::max_element(logits, logits + known);
  if (options.temperature == 0) {
    return static_cast<std::int32_t>(top - logits);
  }
  float floor = -INFINITY;
  if (options.top_k > 0 && options.top_k < known) {
    std::vector<double> falling;
    for (std::int64_t i = 0; i < known; ++i) {
      falling.push_back(-static_cast<double>(logits[i]));
    }
    floor = logits[stable_order(falling)[static_cast<std::size_t>(options.top_k - 1)]];
  }
  std::vector<double> weights(static_cast<std::size_t>(known), 0.0);
  double total = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (logits[i] >= floor) {
      weights[i] = std::exp(static_cast<double>(logits[i] - *top) / options.temperature);
      total += weights[i];
    }
  }
  double left = static_cast<double>(draw) * total;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0 && weights[i] > 0) {
      return static_cast<std::int32_t>(i);
    }
  }
  return static_cast<std::int32_t>(top - logits);
}

}  // namespace detail

// The prompt's ids and n more; only ids below `known` are chosen (0: the whole vocabulary).
inline std::vector<std::int32_t> generate_tokens(const Transformer& model,
                                                 std::vector<std::int32_t> ids, std::int64_t n,
                                                 const GenerateOptions& options = {},
                                                 std::int64_t known = 0) {
  if (ids.empty() || n < 0) {
    detail::fail({"generate: a prompt of ", ids.size(), " tokens and ", n,
                  " more; at least 1 and 0 are right"});
  }
  detail::check_generate(options);
  const NoGrad no_grad;
  const std::int64_t context = model.config.context;
  const std::int64_t vocabulary = model.config.vocabulary;
  KvCache cache;
  std::int64_t cached = 0;  // tokens whose keys and values are in the cache
  for (std::int64_t i = 0; i < n; ++i) {
    const auto length = static_cast<std::int64_t>(ids.size());
    if (!options.cache || cached >= context || cached == 0) {
      cache = KvCache();
      cached = 0;
    }
    const std::int64_t time = cached == 0 ? std::min(length, context) : 1;
    Hooks hooks;
    hooks.places = hooks.stream = cached;
    hooks.cache = options.cache ? &cache : nullptr;
    const Tensor logits = model.forward({ids.end() - time, ids.end()}, 1, time, hooks);
    cached += time;
    const float* last = logits.data() + (time - 1) * vocabulary;
    const float draw = uniform01(options.seed, static_cast<std::uint64_t>(i));
    ids.push_back(
        detail::sample(last, known > 0 ? std::min(known, vocabulary) : vocabulary, options, draw));
  }
  return ids;
}

// The prompt and n more characters (or bytes), read with the tokenizer of the model.
inline std::string generate(const Transformer& model, const std::string& prompt, std::int64_t n,
                            const GenerateOptions& options = {}) {
  const Tokenizer& tokenizer = model.tokenizer;
  return tokenizer.decode(
      generate_tokens(model, tokenizer.encode(prompt), n, options, tokenizer.vocabulary()));
}

// The same with the tokenizer of the text.
inline std::string generate(const Transformer& model, const Text& text, const std::string& prompt,
                            std::int64_t n, const GenerateOptions& options = {}) {
  return text.tokenizer.decode(generate_tokens(model, text.tokenizer.encode(prompt), n, options,
                                               text.tokenizer.vocabulary()));
}

}  // namespace tinyscale
