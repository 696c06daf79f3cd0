#pragma once
// Speculative decoding: a small draft model guesses k tokens one by one, the large one checks them
// in a single step, which reads its weights once. Guess x, drawn from q, is kept with probability
// min(1, p(x) / q(x)); the first that is not is drawn again from max(0, p - q), and after k kept
// ones the large model gives one more: what comes is distributed as if it had drawn every token
// itself. Of guesses kept with probability a each, a step gives (1 - a^(k+1)) / (1 - a) tokens.
// Leviathan et al., arXiv 2211.17192.

#include <cmath>    // pow
#include <cstdint>  // int32_t
#include <vector>   // vector

#include "tinyscale/model/generate.hpp"

namespace tinyscale {

// Tokens that a step of the large model gives on average.
inline double speculative_tokens(double acceptance, std::int64_t guesses) {
  if (!(acceptance >= 0 && acceptance <= 1) || guesses < 0) {
    detail::fail({"speculative_tokens: acceptance ", acceptance, " of ", guesses,
                  " guesses; 0 to 1 and at least 0 are right"});
  }
  const auto k = static_cast<double>(guesses);
  return acceptance < 1 ? (1 - std::pow(acceptance, k + 1)) / (1 - acceptance) : k + 1;
}

namespace detail {

inline void normalise_weights(std::vector<double>& weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) {
    weight /= total;
  }
}

class Speculator {
 public:
  Speculator(const Transformer& model, const Transformer& draft,
             const std::vector<std::int32_t>& ids, const GenerateOptions& options,
             std::int64_t known)
      : model_(model),
        draft_(draft),
        options_(options),
        known_(known > 0 && known < model.config.vocabulary ? known : model.config.vocabulary),
        cache_(model.config, options.pages),
        draft_cache_(draft.config, options.pages),
        at_(cache_.add()),
        draft_at_(draft_cache_.add()),
        ids_(ids) {}

  // One token more and up to so many guesses, each given to `take` until that says no.
  template <class Take>
  void step(std::int64_t guesses, Generation& made, const Take& take) {
    List<std::vector<double>> q;
    std::vector<std::int32_t> seen = ids_;
    for (std::int64_t i = 0; i < guesses; ++i) {
      const Tensor logits =
          feed(draft_, draft_cache_, draft_at_, seen, 1, options_.prefill_tokens, &made.draft);
      q.push_back(token_weights(logits.data(), known_, seen, options_));
      normalise_weights(q.back());
      seen.push_back(draw_token(q.back(), draw()));
    }
    StepTotals& totals = cache_.length(at_) == 0 ? made.prefill : made.decode;
    const Tensor logits =
        feed(model_, cache_, at_, seen, guesses + 1, options_.prefill_tokens, &totals);
    made.guessed += guesses;
    totals.tokens -= guesses + 1;  // those that come count
    bool goes_on = true;
    for (std::int64_t i = 0; i <= guesses && goes_on; ++i) {
      std::vector<double> p =
          token_weights(logits.data() + i * logits.dim(1), known_, ids_, options_);
      normalise_weights(p);
      const bool kept = i < guesses && keeps(p, q[static_cast<std::size_t>(i)], seen[ids_.size()]);
      ids_.push_back(kept ? seen[ids_.size()] : draw_token(p, draw()));
      made.accepted += kept ? 1 : 0;
      ++totals.tokens;
      goes_on = take(ids_.back()) && kept;
    }
    // Both caches keep what was fed and is still true: all but the last token.
    const auto held = static_cast<std::int64_t>(ids_.size()) - 1;
    cache_.truncate(at_, held);
    if (draft_cache_.length(draft_at_) > held) {
      draft_cache_.truncate(draft_at_, held);
    }
  }

 private:
  double draw() { return static_cast<double>(uniform01(options_.seed, draws_++)); }

  // The tokens of `seen` that the cache lacks, at most so many at once; logits after each of the
  // last `rows`.
  static Tensor feed(const Transformer& model, KvPages& cache, int at,
                     const std::vector<std::int32_t>& seen, std::int64_t rows, std::int64_t most,
                     StepTotals* totals) {
    TokenRun run;
    run.sequence = at;
    std::int64_t first = cache.length(at);
    const auto all = static_cast<std::int64_t>(seen.size());
    while (all - first > rows && all - first > most) {  // a long prompt, without its logits
      const std::int64_t next = std::min(first + most, all - rows);
      run.ids.assign(seen.begin() + first, seen.begin() + next);
      decode(model, cache, {run}, totals);
      first = next;
    }
    run.ids.assign(seen.begin() + first, seen.end());
    run.all = rows > 1;
    const Tensor logits = decode(model, cache, {run}, totals);
    return slice(logits, 0, logits.dim(0) - rows, logits.dim(0));
  }

  // Whether guess x stands; if not, p becomes what to draw from in its place.
  bool keeps(std::vector<double>& p, const std::vector<double>& q, std::int32_t x) {
    const auto at = static_cast<std::size_t>(x);
    if (draw() * q[at] < p[at]) {
      return true;
    }
    double rest = 0;
    for (std::size_t i = 0; i < p.size(); ++i) {
      p[i] = p[i] > q[i] ? p[i] - q[i] : 0;
      rest += p[i];
    }
    return rest <= 0;  // p is q but for rounding
  }

  const Transformer& model_;
  const Transformer& draft_;
  const GenerateOptions& options_;
  std::int64_t known_;
  KvPages cache_, draft_cache_;
  int at_, draft_at_;
  std::vector<std::int32_t> ids_;
  std::uint64_t draws_ = 0;
};

}  // namespace detail

// n more tokens of the prompt by `model`, with `guesses` of `draft` in each step. Greedy ones are
// those of generate_tokens. Beyond the context it goes on without the draft.
inline Generation generate_speculative(const Transformer& model, const Transformer& draft,
                                       const std::vector<std::int32_t>& ids, std::int64_t n,
                                       std::int64_t guesses = 4,
                                       const GenerateOptions& options = {},
                                       std::int64_t known = 0) {
  detail::check_generate(model, ids, n, options);
  if (draft.config.vocabulary != model.config.vocabulary || guesses < 1) {
    detail::fail({"generate_speculative: ", guesses, " guesses by ", draft.config.name, " with ",
                  draft.config.vocabulary, " tokens for ", model.config.name, " with ",
                  model.config.vocabulary, "; at least 1 guess and the same tokens are right"});
  }
  Generation made;
  made.sequences.push_back({ids, static_cast<std::int64_t>(ids.size()), Ended::length});
  GeneratedSequence& s = made.sequences[0];
  detail::Speculator speculator(model, draft, ids, options, known);
  const std::int64_t least =
      draft.config.context < model.config.context ? draft.config.context : model.config.context;
  std::int64_t left = n;
  while (left > 0 && s.ended == Ended::length) {
    const std::int64_t room = least - static_cast<std::int64_t>(s.ids.size());
    if (room < 1) {  // the context is full
      GenerateOptions rest = options;
      rest.seed = detail::parameter_seed(options.seed, s.ids.size());
      const Generation more = generate_batch(model, {s.ids}, left, rest, known);
      made.prefill.add(more.prefill);
      made.decode.add(more.decode);
      s.ids = more.sequences[0].ids;
      s.ended = more.sequences[0].ended;
      break;
    }
    std::int64_t k = guesses < left - 1 ? guesses : left - 1;
    k = k < room - 1 ? k : room - 1;
    speculator.step(k, made, [&](std::int32_t id) {
      s.ids.push_back(id);
      --left;
      const bool stop = detail::is_one_of(options.stop_tokens, id);
      const bool asked = options.on_token && !options.on_token(0, id);
      if (stop || (asked && left > 0)) {
        s.ended = stop ? Ended::token : Ended::asked;
      }
      return s.ended == Ended::length;
    });
  }
  return made;
}

}  // namespace tinyscale
