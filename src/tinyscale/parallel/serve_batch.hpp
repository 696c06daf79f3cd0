#pragma once
// The prompts of one microbatch on their way: what goes into its next step, and what came of it.
// Every device keeps one, alike, and so does the report: who runs when follows from the prompts and
// from how many tokens each got, nothing else.

#include <cstdint>  // int64_t
#include <vector>   // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/random.hpp"
#include "tinyscale/model/decode.hpp"
#include "tinyscale/model/sampler.hpp"

namespace tinyscale {

struct ServeOptions : SampleOptions {
  std::uint64_t seed = 1;             // of the first prompt; others draw from seeds of their own
  CacheOptions pages;                 // format and size of each device's cache
  std::int64_t prefill_tokens = 512;  // of one prompt in one step
  std::vector<std::int32_t> stop_tokens;  // end a sequence, and are its last
  std::int64_t known = 0;                 // only ids below are chosen; 0: the whole vocabulary
};

namespace detail {

struct ServeSequence {
  std::vector<std::int32_t> ids;  // the prompt and what came
  std::int64_t number = 0;        // of the prompt, and in the cache
  std::int64_t prompt = 0;        // tokens of it
  std::int64_t left = 0;          // tokens to come
  std::int64_t first = 0;         // the token at position 0
  std::int64_t cached = 0;        // tokens from there whose keys and values are kept
};

// One step of a microbatch.
struct ServeTurn {
  List<TokenRun> runs;
  std::vector<std::size_t> who;      // of the batch's sequences
  List<bool> restarts, ends;         // its cache begins anew; all its tokens are in: one comes
  std::vector<std::int64_t> before;  // tokens of it that were cached
  std::int64_t tokens = 0;
  bool decodes = true;  // one token of each, of which at least one is not the prompt's

  std::int64_t rows() const { return static_cast<std::int64_t>(runs.size()); }
};

struct ServeBatch {
  List<ServeSequence> sequences;
  std::int64_t context = 0, prefill_tokens = 0;

  ServeBatch() = default;
  ServeBatch(const List<std::vector<std::int32_t>>& prompts, std::int64_t begin, std::int64_t end,
             std::int64_t n, std::int64_t longest, std::int64_t prefill)
      : context(longest), prefill_tokens(prefill) {
    for (std::int64_t i = begin; i < end; ++i) {
      ServeSequence s;
      s.ids = prompts[static_cast<std::size_t>(i)];
      s.number = i;
      s.prompt = static_cast<std::int64_t>(s.ids.size());
      s.left = n;
      sequences.push_back(s);
    }
  }

  bool done() const {
    for (const ServeSequence& s : sequences) {
      if (s.left > 0) {
        return false;
      }
    }
    return true;
  }

  // The tokens that caches lack. A sequence beyond the context goes on from its last tokens.
  ServeTurn next() {
    ServeTurn turn;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      ServeSequence& s = sequences[i];
      if (s.left == 0) {
        continue;
      }
      const auto length = static_cast<std::int64_t>(s.ids.size());
      const bool restart = length - s.first > context;
      s.first = restart ? length - context : s.first;
      s.cached = restart ? 0 : s.cached;
      const std::int64_t from = s.first + s.cached;
      const std::int64_t to = length - from > prefill_tokens ? from + prefill_tokens : length;
      TokenRun run;
      run.sequence = static_cast<int>(s.number);
      run.ids.assign(s.ids.begin() + from, s.ids.begin() + to);
      turn.decodes = turn.decodes && run.ids.size() == 1 && s.prompt < length;
      turn.who.push_back(i);
      turn.restarts.push_back(restart);
      turn.ends.push_back(to == length);
      turn.before.push_back(s.cached);
      turn.tokens += to - from;
      s.cached += to - from;
      turn.runs.push_back(run);
    }
    return turn;
  }

  // What came of a step, an id for each run; the numbers of sequences that ended.
  std::vector<int> take(const ServeTurn& turn, const std::vector<std::int32_t>& came,
                        const std::vector<std::int32_t>& stops) {
    std::vector<int> ended;
    for (std::size_t row = 0; row < turn.who.size(); ++row) {
      ServeSequence& s = sequences[turn.who[row]];
      if (!turn.ends[row]) {
        continue;
      }
      s.ids.push_back(came[row]);
      --s.left;
      for (const std::int32_t stop : stops) {
        s.left = came[row] == stop ? 0 : s.left;
      }
      if (s.left == 0) {
        ended.push_back(static_cast<int>(s.number));
      }
    }
    return ended;
  }
};

// The groups of all prompts, contiguous.
inline List<ServeBatch> serve_batches(const List<std::vector<std::int32_t>>& prompts,
                                      std::int64_t groups, std::int64_t n, std::int64_t context,
                                      std::int64_t prefill_tokens) {
  List<ServeBatch> batches;
  const auto all = static_cast<std::int64_t>(prompts.size());
  for (std::int64_t g = 0; g < groups; ++g) {
    batches.push_back(
        ServeBatch(prompts, all * g / groups, all * (g + 1) / groups, n, context, prefill_tokens));
  }
  return batches;
}

// A number in [0, 1) for the next token of a sequence, the same on every device.
inline float serve_draw(const ServeOptions& options, const ServeSequence& s) {
  const auto number = static_cast<std::uint64_t>(s.number);
  const std::uint64_t seed = number == 0 ? options.seed : parameter_seed(options.seed, number);
  return uniform01(seed, s.ids.size() - static_cast<std::size_t>(s.prompt));
}

inline void check_serve(const ModelConfig& c, const List<std::vector<std::int32_t>>& prompts,
                        std::int64_t n, const ServeOptions& options) {
  if (prompts.empty() || n < 1 || options.prefill_tokens < 1) {
    fail({"generate_sharded: ", prompts.size(), " prompts, ", n, " more tokens, prefill_tokens ",
          options.prefill_tokens, "; at least 1 of each is right"});
  }
  if (options.known < 0 || options.known > c.vocabulary) {
    fail({"generate_sharded: known is ", options.known, "; 0 to the vocabulary of ", c.vocabulary,
          " is right"});
  }
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto tokens = static_cast<std::int64_t>(prompts[i].size());
    if (tokens < 1 || tokens > c.context) {
      fail({"generate_sharded: prompt ", i, " has ", tokens, " tokens; 1 to ", c.context,
            ", the context of ", c.name, ", is right"});
    }
    for (const std::int32_t id : prompts[i]) {
      if (id < 0 || id >= c.vocabulary) {
        fail({"generate_sharded: prompt ", i, " has the id ", id, "; 0 to ", c.vocabulary - 1,
              " is right for ", c.name});
      }
    }
  }
  check_sampling(options);
}

}  // namespace detail
}  // namespace tinyscale
