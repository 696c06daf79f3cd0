#pragma once
// One device of sharded generation: its piece of the model and of the cache, and the loop over the
// steps of every microbatch. Each block has two all_reduces over the pieces, of B D numbers; stages
// send those on; the last one chooses tokens and tells the others.

#include <cstdint>  // int64_t
#include <cstring>  // memcpy
#include <vector>   // vector

#include "tinyscale/model/decode.hpp"
#include "tinyscale/parallel/cached_attention.hpp"
#include "tinyscale/parallel/serve_batch.hpp"
#include "tinyscale/parallel/serve_layout.hpp"

namespace tinyscale {
namespace detail {

// What calls are for: the names by which the log and the report know them.
struct ServeCalls {
  static constexpr const char* sums = "sums of attention and feed-forward";
  static constexpr const char* embedding = "sum of embeddings";
  static constexpr const char* logits = "logits";
  static constexpr const char* queries = "queries";
  static constexpr const char* parts = "parts of attention";
  static constexpr const char* stream = "tokens to the next stage";
  static constexpr const char* ids = "chosen ids";
};

// Its experts on all rows; those of others give zeros, and the sum over devices all of them.
inline Tensor run_own_experts(const ExpertRows& in, const ExpertBody& run, const ExpertPart& own) {
  std::vector<Tensor> parts;
  std::int64_t first = 0, zero_rows = 0;
  const auto add_zeros = [&] {
    if (zero_rows > 0) {
      parts.push_back(zeros({zero_rows, in.rows.dim(1)}));
    }
    zero_rows = 0;
  };
  for (std::size_t e = 0; e < in.counts.size(); ++e) {
    const auto expert = static_cast<std::int64_t>(e);
    const std::int64_t end = first + in.counts[e];
    if (expert < own.first || expert >= own.first + own.count) {
      zero_rows += in.counts[e];
    } else if (end > first) {
      add_zeros();
      parts.push_back(run(static_cast<int>(e), slice(in.rows, 0, first, end)));
    }
    first = end;
  }
  add_zeros();
  return concat(parts, 0);
}

class DeviceDecode {
 public:
  DeviceDecode(const Transformer& whole, const ServeLayout& layout, const ServeOptions& options,
               Device& device)
      : at_(whole.config, layout, device.rank()),
        layout_(layout),
        axes_(serve_axes(layout)),
        options_(options),
        device_(device),
        model_(serve_model(whole, layout, at_)),
        lengths_(without_layers(whole.config)),
        cache_(at_.cache_config(whole.config), options.pages,
               {options.pages.page_tokens, layout.sequence, at_.sequence}) {
    fill_hooks();
  }

  // All of n tokens; the ids in order of the prompts.
  void run(const List<std::vector<std::int32_t>>& prompts, std::int64_t n) {
    const std::int64_t groups = layout_.groups(static_cast<std::int64_t>(prompts.size()));
    List<ServeBatch> batches =
        serve_batches(prompts, groups, n, model_.config.context, options_.prefill_tokens);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      lengths_.add();
      cache_.pages.add();
    }
    List<ServeTurn> turns;
    turns.resize(batches.size());
    bool running = true;
    for (int round = 0; running; ++round) {
      running = false;
      device_.task(round);
      for (std::size_t g = 0; g < batches.size(); ++g) {
        if (!at_.last && !turns[g].runs.empty()) {  // what came of the step before
          end_turn(batches[g], turns[g], told_ids());
        }
        turns[g] = batches[g].next();
        if (!turns[g].runs.empty()) {
          running = true;
          step(batches[g], turns[g]);
        }
      }
    }
    device_.task(-1);
    keep(batches);
  }

 private:
  static ModelConfig without_layers(ModelConfig c) {
    c.layers = 0;  // a cache that only knows how long sequences are
    return c;
  }
  Calling calling(const char* what) const {
    return {device_.endpoint(), CollectiveOptions(), SourceLine{what, 0}};
  }
  bool alone() const { return axes_.pieces.empty(); }
  int rank_of(std::int64_t stage) const {
    return device_.rank() + static_cast<int>((stage - at_.stage) * layout_.pieces());
  }

  Tensor sum(const char* what, const Tensor& y) const {
    const bool free = y.is_contiguous() && y.storage()->block().kept.load() == 0;
    return start_all_reduce(calling(what), y, Axes(axes_.pieces), Reduce::sum,
                            free ? y.detach() : Tensor())
        .wait();
  }

  void fill_hooks() {
    hooks_.attention = [this](int layer, const Tensor& q, const Tensor& k, const Tensor& v) {
      return attend(layer, q, k, v);
    };
    if (alone()) {
      return;
    }
    hooks_.linear_out = [this](const Tensor& y) { return sum(ServeCalls::sums, y); };
    hooks_.embedding = [this](const Tensor& table, const std::vector<std::int32_t>& ids,
                              const Shape& shape) {
      const TensorGroup group = tensor_group(device_, Axes(axes_.pieces), vocabulary());
      return sum(ServeCalls::embedding, local_embedding(table, ids, shape, group));
    };
    hooks_.partial_share = 1.0 / static_cast<double>(layout_.pieces());
    if (layout_.whole_experts) {
      const ExpertPart own = expert_part(model_.config.experts, layout_.pieces(), at_.piece);
      hooks_.dispatch = [own](const ExpertRows& in, const ExpertBody& run) {
        return run_own_experts(in, run, own);
      };
    }
  }

  Tensor attend(int layer, const Tensor& q, const Tensor& k, const Tensor& v) {
    const auto own = static_cast<int>(layer - at_.first_layer);
    const std::int64_t window = model_.config.window_of(layer);
    Tensor lse;
    if (layout_.sequence == 1) {
      return cut_attention(*tokens_, *runs_, own, window, q, k, v, cache_, lse);
    }
    const Axes sequence(axes_.sequence);
    const Tensor all = start_all_gather(calling(ServeCalls::queries), q, sequence, 2).wait();
    const Tensor o = cut_attention(*tokens_, *runs_, own, window, all, k, v, cache_, lse);
    const Tensor packed = pack_parts(o, lse, layout_.sequence);
    return merge_parts(start_all_to_all(calling(ServeCalls::parts), packed, sequence, 0, 0).wait());
  }

  // ---- One step of a microbatch ----

  void step(ServeBatch& batch, ServeTurn& turn) {
    for (std::size_t row = 0; row < turn.runs.size(); ++row) {  // before any takes their pages
      if (turn.restarts[row]) {
        lengths_.truncate(turn.runs[row].sequence, 0);
        cache_.pages.truncate(turn.runs[row].sequence, 0);
      }
    }
    for (std::size_t row = 0; row < turn.runs.size(); ++row) {
      const int sequence = turn.runs[row].sequence;
      cache_.extend(sequence, turn.before[row],
                    static_cast<std::int64_t>(turn.runs[row].ids.size()));
    }
    DecodeStep step(model_, lengths_, turn.runs, hooks_);
    tokens_ = &step.tokens();
    runs_ = &turn.runs;
    const SourceLine stream{ServeCalls::stream, 0};
    Tensor x = at_.first ? step.embed() : device_.recv(rank_of(at_.stage - 1), stream);
    for (std::int64_t layer = at_.first_layer; layer < at_.end_layer; ++layer) {
      x = step.block(static_cast<int>(layer), x);
    }
    if (at_.last) {
      const std::vector<std::int32_t> ids = choose(batch, turn, step.head(x));
      tell_ids(ids);
      step.keep();
      end_turn(batch, turn, ids);
    } else {
      device_.send(x, rank_of(at_.stage + 1), stream);
      step.keep();
    }
  }

  void end_turn(ServeBatch& batch, const ServeTurn& turn, const std::vector<std::int32_t>& ids) {
    for (const int sequence : batch.take(turn, ids, options_.stop_tokens)) {
      lengths_.drop(sequence);
      cache_.pages.drop(sequence);
    }
  }

  void tell_ids(const std::vector<std::int32_t>& ids) {
    Tensor told({static_cast<std::int64_t>(ids.size())});
    for (std::size_t i = 0; i < ids.size(); ++i) {
      told.data()[i] = static_cast<float>(ids[i]);
    }
    for (std::int64_t stage = 0; stage < at_.stage; ++stage) {
      device_.send(told, rank_of(stage), SourceLine{ServeCalls::ids, 0});
    }
  }
  std::vector<std::int32_t> told_ids() {
    const Tensor told = device_.recv(rank_of(layout_.pipeline - 1), SourceLine{ServeCalls::ids, 0});
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < told.count(); ++i) {
      ids.push_back(static_cast<std::int32_t>(told.data()[i]));
    }
    return ids;
  }

  // ---- The next ids ----

  std::int64_t vocabulary() const { return model_.config.vocabulary; }
  std::int64_t known() const { return options_.known > 0 ? options_.known : vocabulary(); }

  // An id for each row of logits [R, V_t]; where a prompt is not all in yet, one that nobody uses.
  std::vector<std::int32_t> choose(const ServeBatch& batch, const ServeTurn& turn,
                                   const Tensor& logits) const {
    if (options_.greedy()) {
      return largest(logits);
    }
    const Tensor all = gathered(logits);
    std::vector<std::int32_t> ids;
    for (std::size_t row = 0; row < turn.who.size(); ++row) {
      const ServeSequence& s = batch.sequences[turn.who[row]];
      const float* const from = all.data() + static_cast<std::int64_t>(row) * vocabulary();
      ids.push_back(turn.ends[row]
                        ? sample_token(from, known(), s.ids, options_, serve_draw(options_, s))
                        : 0);
    }
    return ids;
  }

  // Of each row the largest logit here and its id, then the largest of all devices': two numbers.
  std::vector<std::int32_t> largest(const Tensor& logits) const {
    const std::int64_t rows = logits.dim(0), columns = logits.dim(1);
    const std::int64_t first = shard_begin(vocabulary(), at_.piece, layout_.pieces());
    const std::int64_t here = known() - first < columns ? known() - first : columns;
    Tensor best({rows, 2});
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* const x = logits.data() + row * columns;
      float most = -INFINITY;
      std::int64_t id = first;
      for (std::int64_t i = 0; i < here; ++i) {
        if (!is_finite(static_cast<double>(x[i]))) {
          fail({"generate_sharded: the model's logit of token ", first + i, " is ",
                static_cast<double>(x[i]), "; weights that give finite numbers are right"});
        }
        id = x[i] > most ? first + i : id;
        most = x[i] > most ? x[i] : most;
      }
      best.data()[2 * row] = most;
      best.data()[2 * row + 1] = static_cast<float>(id);
    }
    if (!alone()) {
      best = start_all_gather(calling(ServeCalls::logits), best, Axes(axes_.pieces), 1).wait();
    }
    std::vector<std::int32_t> ids;
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* const x = best.data() + row * best.dim(1);
      std::int64_t found = 0;
      for (std::int64_t i = 2; i < best.dim(1); i += 2) {
        found = x[i] > x[found] ? i : found;  // equal ones: the lower id
      }
      ids.push_back(static_cast<std::int32_t>(x[found + 1]));
    }
    return ids;
  }

  // [R, V] from the columns of all devices, made equally many on the way.
  Tensor gathered(const Tensor& logits) const {
    if (alone()) {
      return logits;
    }
    const std::int64_t rows = logits.dim(0), n = layout_.pieces();
    const std::int64_t wide = (vocabulary() + n - 1) / n;
    Tensor padded = zeros({rows, wide});
    for (std::int64_t row = 0; row < rows; ++row) {
      std::memcpy(padded.data() + row * wide, logits.data() + row * logits.dim(1),
                  static_cast<std::size_t>(logits.dim(1)) * sizeof(float));
    }
    const Tensor came =
        start_all_gather(calling(ServeCalls::logits), padded, Axes(axes_.pieces), 1).wait();
    Tensor all({rows, vocabulary()});
    for (std::int64_t i = 0; i < rows * n; ++i) {
      const std::int64_t row = i / n, piece = i % n;
      const std::int64_t begin = shard_begin(vocabulary(), piece, n);
      const std::int64_t count = shard_begin(vocabulary(), piece + 1, n) - begin;
      std::memcpy(all.data() + row * vocabulary() + begin, came.data() + i * wide,
                  static_cast<std::size_t>(count) * sizeof(float));
    }
    return all;
  }

  // For the host: what came of each prompt, one after another, and the most pages of the cache.
  void keep(const List<ServeBatch>& batches) {
    std::vector<float> made, lengths;
    for (const ServeBatch& batch : batches) {
      for (const ServeSequence& s : batch.sequences) {
        lengths.push_back(static_cast<float>(s.ids.size() - static_cast<std::size_t>(s.prompt)));
        for (std::size_t i = static_cast<std::size_t>(s.prompt); i < s.ids.size(); ++i) {
          made.push_back(static_cast<float>(s.ids[i]));
        }
      }
    }
    device_.keep("made", tensor_of(made));
    device_.keep("lengths", tensor_of(lengths));
    device_.keep("pages", full({}, static_cast<float>(cache_.most_pages)));
  }
  static Tensor tensor_of(const std::vector<float>& x) {
    Tensor t({static_cast<std::int64_t>(x.size())});
    std::memcpy(t.data(), x.data(), x.size() * sizeof(float));
    return t;
  }

  ServePlace at_;
  ServeLayout layout_;
  ServeAxes axes_;
  const ServeOptions& options_;
  Device& device_;
  Transformer model_;
  KvPages lengths_;
  CutCache cache_;
  Hooks hooks_;
  const StepTokens* tokens_ = nullptr;  // of the step under way
  const List<TokenRun>* runs_ = nullptr;
};

}  // namespace detail
}  // namespace tinyscale
