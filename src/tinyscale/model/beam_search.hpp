#pragma once
// Beam search: the most probable continuations, a few at a time. Each step extends every beam by
// every token and keeps the best. Beams share the pages of what they have in common, and a page is
// copied when one of them writes.
//   score = sum of log probabilities / tokens^length_penalty      (Wu et al., arXiv 1609.08144)

#include <cmath>    // pow
#include <cstdint>  // int32_t
#include <utility>  // move
#include <vector>   // vector

#include "tinyscale/base/order.hpp"
#include "tinyscale/model/generate.hpp"

namespace tinyscale {

struct BeamOptions {
  std::int64_t beams = 4;
  double length_penalty = 1;              // 0: the sum itself
  std::vector<std::int32_t> stop_tokens;  // finish a beam, and are its last
  CacheOptions pages;
};

struct Beam {
  std::vector<std::int32_t> ids;  // the prompt and what came
  double log_probability = 0;     // natural, of what came
  double score = 0;
  bool finished = false;  // by a stop token
};

struct BeamResult {
  List<Beam> beams;  // the best first
  StepTotals prefill, decode;
  std::int64_t most_pages = 0;      // of the cache at any time
  std::int64_t unshared_pages = 0;  // that as many beams would have had each for itself
};

namespace detail {

// Natural logarithms of the probabilities of `n` logits.
inline std::vector<double> log_probabilities(const float* logits, std::int64_t n) {
  check_logits(logits, n);
  const double all = log_sum_exp(logits, n);
  std::vector<double> logs;
  for (std::int64_t i = 0; i < n; ++i) {
    logs.push_back(static_cast<double>(logits[i]) - all);
  }
  return logs;
}

inline double beam_score(const Beam& beam, std::int64_t prompt, double penalty) {
  const auto made = static_cast<double>(static_cast<std::int64_t>(beam.ids.size()) - prompt);
  return made > 0 ? beam.log_probability / std::pow(made, penalty) : 0;
}

// The best `count` of beams, best first, equal ones in their order.
inline List<Beam> best_beams(const List<Beam>& beams, std::size_t count) {
  std::vector<double> falling;
  for (const Beam& beam : beams) {
    falling.push_back(-beam.score);
  }
  List<Beam> best;
  for (const std::size_t i : stable_order(falling)) {
    if (best.size() < count) {
      best.push_back(beams[i]);
    }
  }
  return best;
}

class BeamSearch {
 public:
  BeamSearch(const Transformer& model, const std::vector<std::int32_t>& ids,
             const BeamOptions& options, std::int64_t known)
      : model_(model),
        options_(options),
        prompt_(static_cast<std::int64_t>(ids.size())),
        known_(known),
        width_(static_cast<std::size_t>(options.beams)),
        cache_(model.config, options.pages) {
    open_.push_back({ids, 0, 0, false});
    cached_.push_back(cache_.add());
  }

  BeamResult run(std::int64_t n) {
    BeamResult result;
    for (std::int64_t made = 0; made < n && !open_.empty(); ++made) {
      const Candidates all = extended(made == 0 ? result.prefill : result.decode);
      if (cache_.pages_in_use() > result.most_pages) {  // before beams leave
        const std::int64_t length = prompt_ + made, tokens = cache_.page_tokens();
        result.most_pages = cache_.pages_in_use();
        result.unshared_pages =
            static_cast<std::int64_t>(open_.size()) * ((length + tokens - 1) / tokens);
      }
      choose(all);
    }
    for (const Beam& beam : open_) {
      finished_.push_back(beam);
    }
    result.beams = best_beams(finished_, width_);
    return result;
  }

 private:
  // One more token on a beam.
  struct Candidates {
    std::vector<double> falling;  // minus the log probability of the whole
    std::vector<std::size_t> beam;
    std::vector<std::int32_t> token;
  };

  // How many of the best tokens of a beam, and of all beams, are looked at: enough when each beam
  // finishes by every stop token.
  std::size_t looked_at() const {
    return (1 + std::max<std::size_t>(1, options_.stop_tokens.size())) * width_;
  }

  Candidates extended(StepTotals& totals) {
    List<TokenRun> runs;
    for (std::size_t b = 0; b < open_.size(); ++b) {
      const std::vector<std::int32_t>& ids = open_[b].ids;
      runs.push_back({cached_[b], {ids.begin() + cache_.length(cached_[b]), ids.end()}, false});
    }
    const Tensor logits = decode(model_, cache_, runs, &totals);
    Candidates all;
    for (std::size_t b = 0; b < open_.size(); ++b) {
      const std::vector<double> logs =
          log_probabilities(logits.data() + static_cast<std::int64_t>(b) * logits.dim(1), known_);
      std::vector<double> sorted = logs;
      const std::size_t last = logs.size() - std::min(looked_at(), logs.size());
      std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(last),
                       sorted.end());
      for (std::size_t i = 0; i < logs.size(); ++i) {
        if (logs[i] >= sorted[last]) {
          all.falling.push_back(-(open_[b].log_probability + logs[i]));
          all.beam.push_back(b);
          all.token.push_back(static_cast<std::int32_t>(i));
        }
      }
    }
    return all;
  }

  // The best of all candidates: those that finish leave, the others are the next beams.
  void choose(const Candidates& all) {
    List<Beam> next;
    std::vector<int> next_cached;
    std::size_t rank = 0;
    for (const std::size_t i : stable_order(all.falling)) {
      if (next.size() == width_ || rank++ == looked_at()) {
        break;
      }
      Beam beam = open_[all.beam[i]];
      beam.ids.push_back(all.token[i]);
      beam.log_probability = -all.falling[i];
      beam.score = beam_score(beam, prompt_, options_.length_penalty);
      beam.finished = is_one_of(options_.stop_tokens, all.token[i]);
      if (beam.finished) {
        finished_.push_back(beam);
      } else {
        next.push_back(beam);
        next_cached.push_back(cache_.fork(cached_[all.beam[i]]));
      }
    }
    for (const int sequence : cached_) {
      cache_.drop(sequence);
    }
    open_ = next;
    cached_ = next_cached;
    finished_ = best_beams(finished_, width_);
  }

  const Transformer& model_;
  const BeamOptions& options_;
  std::int64_t prompt_, known_;
  std::size_t width_;
  KvPages cache_;
  List<Beam> open_, finished_;
  std::vector<int> cached_;  // of each open beam
};

}  // namespace detail

// The `beams` best continuations of the prompt by up to n tokens.
inline BeamResult beam_search(const Transformer& model, const std::vector<std::int32_t>& ids,
                              std::int64_t n, const BeamOptions& options = {},
                              std::int64_t known = 0) {
  detail::check_generate(model, ids, n, GenerateOptions());
  const auto prompt = static_cast<std::int64_t>(ids.size());
  if (options.beams < 1 || options.beams > 1000000 || !detail::is_finite(options.length_penalty) ||
      n > model.config.context + 1 - prompt) {
    detail::fail({"beam_search: ", options.beams, " beams, length_penalty ", options.length_penalty,
                  ", ", prompt, " + ", n, " tokens in a context of ", model.config.context,
                  "; at least 1, a finite number and tokens that fit are right"});
  }
  const std::int64_t all = model.config.vocabulary;
  return detail::BeamSearch(model, ids, options, known > 0 && known < all ? known : all).run(n);
}

}  // namespace tinyscale
