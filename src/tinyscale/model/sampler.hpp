#pragma once
// The next token from logits. In this order: a penalty for tokens that were there (CTRL, arXiv
// 1909.05858), temperature, the top_k largest, the smallest set whose probabilities reach top_p
// (arXiv 1904.09751), those of at least min_p times the largest (arXiv 2407.01082); what is left is
// drawn in proportion. Speculative decoding draws from the same weights.

#include <algorithm>  // max_element, nth_element
#include <cmath>      // exp, log
#include <cstdint>    // int32_t
#include <numeric>    // accumulate
#include <vector>     // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/compute/argmax.hpp"

namespace tinyscale {

struct SampleOptions {
  double temperature = 0.8;         // 0: always the most probable
  int top_k = 0;                    // choose among so many (equals of the last too); 0: all
  double top_p = 1;                 // choose among the most probable that together reach this
  double min_p = 0;                 // and among those at least this times the most probable
  double repetition_penalty = 1;    // logits of tokens seen: above 0 over this, below 0 times this
  std::int64_t penalty_window = 0;  // last tokens that count as seen; 0: all, the prompt's too

  bool greedy() const { return temperature == 0 && repetition_penalty == 1.0; }
};

namespace detail {

inline void check_sampling(const SampleOptions& o) {
  if (!is_finite(o.temperature) || o.temperature < 0 || o.top_k < 0) {
    fail({"generate: temperature is ", o.temperature, ", top_k ", o.top_k,
          "; finite numbers from 0 up are right"});
  }
  if (!(o.top_p > 0 && o.top_p <= 1) || !(o.min_p >= 0 && o.min_p <= 1)) {
    fail({"generate: top_p is ", o.top_p, ", min_p ", o.min_p,
          "; above 0 to 1 and from 0 to 1 are right"});
  }
  const auto penalty = static_cast<double>(static_cast<float>(o.repetition_penalty));
  if (!is_finite(o.repetition_penalty) || !is_finite(penalty) || !(penalty > 0) ||
      o.penalty_window < 0) {
    fail({"generate: repetition_penalty is ", o.repetition_penalty, ", penalty_window ",
          o.penalty_window, "; a finite number above 0 and a whole one from 0 are right"});
  }
}

inline void check_known(std::int64_t known) {
  if (known < 1) {
    fail({"generate: a choice among ", known, " tokens; at least 1 is right"});
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

inline double log_sum_exp(const float* x, std::int64_t n) {
  const double most = static_cast<double>(*std::max_element(x, x + n));
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    sum += std::exp(static_cast<double>(x[i]) - most);
  }
  return most + std::log(sum);
}

// Divides or multiplies the logits of the tokens that `seen` ends with, each once.
inline void penalise(std::vector<float>& logits, const std::vector<std::int32_t>& seen,
                     const SampleOptions& o) {
  const auto penalty = static_cast<float>(o.repetition_penalty);
  const auto all = static_cast<std::int64_t>(seen.size());
  const std::int64_t first =
      o.penalty_window > 0 && o.penalty_window < all ? all - o.penalty_window : 0;
  List<bool> done(logits.size());
  for (std::int64_t i = first; i < all; ++i) {
    const auto id = static_cast<std::size_t>(seen[static_cast<std::size_t>(i)]);
    if (id < logits.size() && !done[id]) {
      done[id] = true;
      const float given = logits[id];
      logits[id] = given > 0 ? given / penalty : given * penalty;
      if (!is_finite(static_cast<double>(logits[id]))) {
        fail({"generate: repetition_penalty ", o.repetition_penalty, " makes the logit ",
              static_cast<double>(given), " of token ", id, " infinite; one nearer to 1 is right"});
      }
    }
  }
}

// Sets all but the most probable, whose sum first reaches top_p of the total, to 0.
inline void keep_top_p(std::vector<double>& weights, double total, double top_p) {
  // Less than this and all smaller ones together cannot be missed from 1 - top_p.
  const double floor = (1 - top_p) * total / static_cast<double>(weights.size());
  std::vector<double> falling;
  std::vector<std::size_t> ids;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] >= floor && weights[i] > 0) {
      falling.push_back(-weights[i]);
      ids.push_back(i);
    } else {
      weights[i] = 0;
    }
  }
  double sum = 0;
  for (const std::size_t at : stable_order(falling)) {
    if (sum >= top_p * total) {
      weights[ids[at]] = 0;
    }
    sum -= falling[at];
  }
}

}  // namespace detail

// How probable each of `known` tokens is to come next, up to a common factor (greedy: 1 and 0).
inline std::vector<double> token_weights(const float* logits, std::int64_t known,
                                         const std::vector<std::int32_t>& seen,
                                         const SampleOptions& options) {
  detail::check_sampling(options);
  detail::check_known(known);
  detail::check_logits(logits, known);
  std::vector<float> x(logits, logits + known);
  if (options.repetition_penalty < 1 || options.repetition_penalty > 1) {
    detail::penalise(x, seen, options);
  }
  std::vector<double> weights(x.size(), 0.0);
  const auto top = std::max_element(x.begin(), x.end());
  if (options.temperature == 0) {
    weights[static_cast<std::size_t>(top - x.begin())] = 1;
    return weights;
  }
  const float largest = *top;
  float floor = -INFINITY;
  if (options.top_k > 0 && options.top_k < known) {
    std::vector<float> sorted = x;
    std::nth_element(sorted.begin(), sorted.begin() + (known - options.top_k), sorted.end());
    floor = sorted[static_cast<std::size_t>(known - options.top_k)];
  }
  double total = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] >= floor) {
      weights[i] = std::exp(static_cast<double>(x[i] - largest) / options.temperature);
      total += weights[i];
    }
  }
  if (options.top_p < 1) {
    detail::keep_top_p(weights, total, options.top_p);
  }
  for (double& weight : weights) {  // the largest weight is 1
    weight = weight < options.min_p ? 0 : weight;
  }
  return weights;
}

namespace detail {

// `draw` in [0, 1) walks the weights in order of id.
inline std::int32_t draw_token(const std::vector<double>& weights, double draw) {
  double left = draw * std::accumulate(weights.begin(), weights.end(), 0.0);
  std::size_t last = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (weights[i] > 0) {
      last = i;
      if (left < 0) {
        break;
      }
    }
  }
  return static_cast<std::int32_t>(last);
}

}  // namespace detail

// The next token after `seen`.
inline std::int32_t sample_token(const float* logits, std::int64_t known,
                                 const std::vector<std::int32_t>& seen,
                                 const SampleOptions& options, float draw) {
  detail::check_known(known);
  if (options.greedy()) {
    const std::int64_t best = kernels::argmax(known, logits);
    if (best < 0) {
      detail::check_logits(logits, known);
    }
    return static_cast<std::int32_t>(best);
  }
  return detail::draw_token(token_weights(logits, known, seen, options), static_cast<double>(draw));
}

}  // namespace tinyscale
