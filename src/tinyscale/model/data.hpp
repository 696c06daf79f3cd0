#pragma once
// What a step learns from: windows of the text at random places. A sequence's place depends on the
// seed, the step and its number in the whole batch, so every layout of devices sees the same data.

#include <algorithm>  // min
#include <cstdint>    // int32_t
#include <vector>     // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/physical_memory.hpp"
#include "tinyscale/base/random.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/model/forward.hpp"

namespace tinyscale {

// ids [sequences, time]; the target of each token is the one after it.
struct Batch {
  std::int64_t sequences = 0;
  std::int64_t time = 0;
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> targets;

  // `time` tokens from `offset` on, and the one behind them.
  void add(const std::vector<std::int32_t>& tokens, std::int64_t offset) {
    const auto all = static_cast<std::int64_t>(tokens.size());
    if (offset < 0 || time < 0 || time >= all - offset) {
      detail::fail({"Batch::add: ", time, " tokens from ", offset, " on, and one behind them, of ",
                    all, "; tokens that are there are right"});
    }
    for (std::int64_t t = offset; t < offset + time; ++t) {
      ids.push_back(tokens[static_cast<std::size_t>(t)]);
      targets.push_back(tokens[static_cast<std::size_t>(t) + 1]);
    }
    ++sequences;
  }
};

namespace detail {

inline void check_length(const char* who, const std::vector<std::int32_t>& tokens,
                         std::int64_t time) {
  if (time < 1) {
    fail({who, ": a sequence of ", time, " tokens; at least 1 is right"});
  }
  if (static_cast<std::int64_t>(tokens.size()) <= time) {
    fail({who, ": the text has ", tokens.size(), " tokens here, a sequence ", time, "; more than ",
          time, " are right: take a longer text or a shorter context"});
  }
}

}  // namespace detail

// Where sequence `number` of the whole batch begins in step `step`.
inline std::int64_t batch_offset(const std::vector<std::int32_t>& tokens, std::int64_t time,
                                 std::uint64_t seed, std::int64_t step, std::int64_t number) {
  detail::check_length("batch_offset", tokens, time);
  const auto index = (static_cast<std::uint64_t>(step) << 32) + static_cast<std::uint64_t>(number);
  const auto places = tokens.size() - static_cast<std::size_t>(time);
  return static_cast<std::int64_t>(random_below(seed, index, places));
}

// Sequences first .. first + sequences - 1 of the whole batch of that step, in a batch whose memory
// is used again.
inline void fill_batch(Batch& batch, const std::vector<std::int32_t>& tokens,
                       std::int64_t sequences, std::int64_t time, std::uint64_t seed,
                       std::int64_t step, std::int64_t first = 0) {
  if (sequences < 0 || first < 0) {
    detail::fail({"fill_batch: ", sequences, " sequences from number ", first,
                  " on; 0 or more of both are right"});
  }
  if (sequences > 0) {
    detail::check_length("make_batch", tokens, time);
  }
  const double tokens_here = static_cast<double>(sequences) * static_cast<double>(time);
  const bool grows = tokens_here > static_cast<double>(batch.ids.capacity());
  const double bytes = 8.0 * tokens_here, memory = grows ? detail::physical_memory() : 0;
  if (memory > 0 && bytes > memory) {
    detail::fail({"make_batch: ", sequences, " sequences of ", time, " tokens are ",
                  format_si(bytes, "B"), " of ids and targets, this machine has ",
                  format_si(memory, "B")});
  }
  batch.ids.clear();
  batch.targets.clear();
  batch.sequences = 0;
  batch.time = time;
  for (std::int64_t i = 0; i < sequences; ++i) {
    batch.add(tokens, batch_offset(tokens, time, seed, step, first + i));
  }
}

inline Batch make_batch(const std::vector<std::int32_t>& tokens, std::int64_t sequences,
                        std::int64_t time, std::uint64_t seed, std::int64_t step,
                        std::int64_t first = 0) {
  Batch batch;
  fill_batch(batch, tokens, sequences, time, seed, step, first);
  return batch;
}

// Mean loss over consecutive windows of the context that do not overlap: all of them, or the first
// `windows` when that is above 0.
inline double evaluate(const Transformer& model, const std::vector<std::int32_t>& tokens,
                       std::int64_t windows = 0) {
  const std::int64_t time = model.config.context;
  detail::check_length("evaluate", tokens, time);
  const std::int64_t all = (static_cast<std::int64_t>(tokens.size()) - 1) / time;
  const std::int64_t count = windows > 0 ? std::min(windows, all) : all;
  const NoGrad no_grad;
  double total = 0;
  for (std::int64_t first = 0; first < count;) {
    Batch batch;
    batch.time = time;
    for (; first < count && batch.sequences < 16; ++first) {
      batch.add(tokens, first * time);
    }
    const Tensor loss = model.loss(batch.ids, batch.targets, batch.sequences, time);
    total += static_cast<double>(loss.item()) * static_cast<double>(batch.sequences);
  }
  return total / static_cast<double>(count);
}

}  // namespace tinyscale
