#pragma once
// Text from a model: prompts of any lengths go in (prefill), then a token of each at a time
// (decode), all in the same steps over one paged cache. A sequence that fills the context goes on
// from its last tokens, at position 0 again.

#include <algorithm>  // find
#include <cstdint>    // int32_t
#include <string>     // string
#include <vector>     // vector

#include "tinyscale/base/function.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/random.hpp"
#include "tinyscale/model/decode.hpp"
#include "tinyscale/model/read_text.hpp"
#include "tinyscale/model/sampler.hpp"

namespace tinyscale {

struct GenerateOptions : SampleOptions {
  std::uint64_t seed = 1;  // of the first prompt; others draw from seeds of their own
  bool cache = true;       // keep keys and values; false recomputes all tokens, and counts no steps
  CacheOptions pages;      // format and size of the cache
  std::int64_t prefill_tokens = 512;      // of one prompt in one step
  std::vector<std::int32_t> stop_tokens;  // end a sequence, and are its last
  std::vector<std::string> stop;          // texts that end generate()'s; they are left out
  // Told of every new token of a prompt; false ends that sequence.
  Function<bool(std::int64_t prompt, std::int32_t id)> on_token;
  // Told of generate()'s text as it comes, whole characters at a time.
  Function<void(const std::string& piece)> on_text;
};

// Why a sequence ended: as long as asked, a stop token, a stop text, or on_token said so.
enum class Ended { length, token, text, asked };

struct GeneratedSequence {
  std::vector<std::int32_t> ids;  // the prompt and what came
  std::int64_t prompt = 0;        // tokens of it
  Ended ended = Ended::length;
};

// What came of some prompts, and what it cost; generation_report.hpp shows it.
struct Generation {
  List<GeneratedSequence> sequences;       // in the order of the prompts
  StepTotals prefill, decode;              // decode: steps that gave each sequence one token
  std::int64_t guessed = 0, accepted = 0;  // tokens of a draft model (speculative.hpp)
  StepTotals draft;                        // all steps of that
};

namespace detail {

inline void check_generate(const Transformer& model, const std::vector<std::int32_t>& ids,
                           std::int64_t n, const GenerateOptions& options) {
  if (ids.empty() || n < 0) {
    fail({"generate: a prompt of ", ids.size(), " tokens and ", n,
          " more; at least 1 and 0 are right"});
  }
  if (static_cast<std::int64_t>(ids.size()) > model.config.context) {
    fail({"generate: a prompt of ", ids.size(), " tokens; the context of ", model.config.name,
          " is ", model.config.context, ", and a prompt that fits is right"});
  }
  if (options.prefill_tokens < 1) {
    fail({"generate: prefill_tokens is ", options.prefill_tokens, "; at least 1 is right"});
  }
  check_sampling(options);
}

inline bool is_one_of(const std::vector<std::int32_t>& ids, std::int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// Prompts on their way; one step at a time.
class Generator {
 public:
  Generator(const Transformer& model, const List<std::vector<std::int32_t>>& prompts,
            std::int64_t n, const GenerateOptions& options, std::int64_t known)
      : model_(model),
        options_(options),
        cache_(model.config, options.pages),
        n_(n),
        known_(known > 0 && known < model.config.vocabulary ? known : model.config.vocabulary),
        screened_(options.greedy() && model.head_matrix().stored &&
                  model.head_matrix().stored->screen) {
    if (known < 0) {
      fail({"generate: known is ", known, "; 0 is right for the whole vocabulary, or how many ",
            "tokens there are"});
    }
    for (const std::vector<std::int32_t>& prompt : prompts) {
      check_generate(model, prompt, n, options);
      Sequence s;
      s.made.ids = prompt;
      s.made.prompt = static_cast<std::int64_t>(prompt.size());
      s.left = n;
      s.cached = cache_.add();
      sequences_.push_back(std::move(s));
    }
  }

  Generation run() {
    if (options_.cache) {
      while (step()) {
      }
    } else {
      for (std::size_t i = 0; i < sequences_.size(); ++i) {
        while (sequences_[i].left > 0) {
          recompute(i);
        }
      }
    }
    Generation all;
    for (Sequence& s : sequences_) {
      all.sequences.push_back(std::move(s.made));
    }
    all.prefill = prefill_;
    all.decode = decode_;
    return all;
  }

 private:
  struct Sequence {
    GeneratedSequence made;
    std::int64_t left = 0;   // tokens to come
    std::int64_t first = 0;  // the token at position 0
    int cached = 0;          // its number in the cache
  };

  // The tokens that the cache lacks, at most so many.
  TokenRun next_run(Sequence& s) {
    const auto length = static_cast<std::int64_t>(s.made.ids.size());
    if (length - s.first > model_.config.context) {
      cache_.truncate(s.cached, 0);
      s.first = length - model_.config.context;
    }
    const std::int64_t from = s.first + cache_.length(s.cached);
    const std::int64_t to =
        length - from > options_.prefill_tokens ? from + options_.prefill_tokens : length;
    TokenRun run;
    run.sequence = s.cached;
    run.ids.assign(s.made.ids.begin() + from, s.made.ids.begin() + to);
    return run;
  }

  bool step() {
    List<TokenRun> runs;
    std::vector<std::size_t> who;
    bool single = true;
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      if (sequences_[i].left > 0) {
        runs.push_back(next_run(sequences_[i]));
        who.push_back(i);
        single =
            single && runs.back().ids.size() == 1 &&
            sequences_[i].made.prompt < static_cast<std::int64_t>(sequences_[i].made.ids.size());
      }
    }
    if (runs.empty()) {
      return false;
    }
    LargestOfRows largest;
    const bool screened = screened_ && static_cast<std::int64_t>(who.size()) <= stored_few;
    const Tensor logits = decode_step(model_, cache_, runs, single ? &decode_ : &prefill_, Hooks(),
                                      known_, screened ? &largest : nullptr);
    if (screened) {
      screened_ = !logits.defined() && largest.bytes <= model_.head_matrix().stored->bytes();
    }
    for (std::size_t row = 0; row < who.size(); ++row) {
      Sequence& s = sequences_[who[row]];
      if (s.first + cache_.length(s.cached) == static_cast<std::int64_t>(s.made.ids.size())) {
        if (logits.defined()) {
          take(who[row], logits.data() + static_cast<std::int64_t>(row) * logits.dim(-1));
        } else {
          add(who[row], static_cast<std::int32_t>(largest.rows[row].place));
        }
      }
    }
    return true;
  }

  void recompute(std::size_t i) {
    const NoGrad no_grad;
    const std::vector<std::int32_t>& ids = sequences_[i].made.ids;
    const auto length = static_cast<std::int64_t>(ids.size());
    const std::int64_t time = length < model_.config.context ? length : model_.config.context;
    const Tensor logits = model_.forward({ids.end() - time, ids.end()}, 1, time);
    take(i, logits.data() + (time - 1) * logits.dim(-1));
  }

  void take(std::size_t i, const float* logits) {
    const auto drawn = static_cast<std::uint64_t>(n_ - sequences_[i].left);
    const std::uint64_t seed = i == 0 ? options_.seed : parameter_seed(options_.seed, i);
    add(i, sample_token(logits, known_, sequences_[i].made.ids, options_, uniform01(seed, drawn)));
  }

  void add(std::size_t i, std::int32_t id) {
    Sequence& s = sequences_[i];
    s.made.ids.push_back(id);
    --s.left;
    if (is_one_of(options_.stop_tokens, id)) {
      end(s, Ended::token);
    }
    if (options_.on_token && !options_.on_token(static_cast<std::int64_t>(i), id)) {
      end(s, Ended::asked);
    }
    if (s.left == 0 && options_.cache) {
      cache_.drop(s.cached);
    }
  }

  static void end(Sequence& s, Ended why) {
    s.made.ended = s.left > 0 || why == Ended::token ? why : s.made.ended;
    s.left = 0;
  }

  const Transformer& model_;
  const GenerateOptions& options_;
  KvPages cache_;
  std::int64_t n_, known_;
  bool screened_;  // greedy, and the head's copy in fewer bits has ruled enough out
  List<Sequence> sequences_;
  StepTotals prefill_, decode_;
};

}  // namespace detail

// n more tokens of each prompt, in one batch: the same tokens as one prompt at a time. Only ids
// below `known` are chosen (0: the whole vocabulary).
inline Generation generate_batch(const Transformer& model,
                                 const List<std::vector<std::int32_t>>& prompts, std::int64_t n,
                                 const GenerateOptions& options = {}, std::int64_t known = 0) {
  return detail::Generator(model, prompts, n, options, known).run();
}

// The prompt's ids and n more.
inline std::vector<std::int32_t> generate_tokens(const Transformer& model,
                                                 const std::vector<std::int32_t>& ids,
                                                 std::int64_t n,
                                                 const GenerateOptions& options = {},
                                                 std::int64_t known = 0) {
  return generate_batch(model, {ids}, n, options, known).sequences[0].ids;
}

}  // namespace tinyscale
