#pragma once
// One step of generation: new tokens of any number of sequences, each at its own place behind what
// the cache holds of it, through the model at once. Prompts, single tokens, guesses to verify and
// any mix of them are the same step. Weights are read once a step, whatever the number of tokens,
// so a step of few tokens is bound by memory, one of many by arithmetic (scaling book, chapter 7).
// Of the last layer tokens whose logits nobody asks for take keys and values alone.

#include <cstdint>  // int64_t
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/compute/cache_attention.hpp"
#include "tinyscale/compute/rope_table.hpp"
#include "tinyscale/model/forward.hpp"
#include "tinyscale/model/kv_pages.hpp"

namespace tinyscale {

// New tokens of one sequence of the cache.
struct TokenRun {
  int sequence = 0;
  std::vector<std::int32_t> ids;
  bool all = false;  // logits after every token, not after the last alone
};

// What steps took and read. Bytes are those of the formula: every matrix once a step (of experts
// those that a token visits), and of each sequence the keys and values that its new tokens see (of
// the last layer, those that go on), once.
struct StepCosts {
  double seconds = 0;       // on this machine
  double matmul_flops = 0;  // 2 a weight and token, 4 a cached number seen and query head of it
  double weight_bytes = 0, cache_bytes = 0;

  double bytes() const { return weight_bytes + cache_bytes; }
  void add(const StepCosts& other) {
    seconds += other.seconds;
    matmul_flops += other.matmul_flops;
    weight_bytes += other.weight_bytes;
    cache_bytes += other.cache_bytes;
  }
};

struct StepTotals {
  std::int64_t steps = 0, tokens = 0;  // that went in; of guesses those that were kept
  StepCosts all;
  List<StepCosts> parts;  // [layers + 1]; the last: embedding, last norm and head

  void add(const StepTotals& other) {
    steps += other.steps;
    tokens += other.tokens;
    all.add(other.all);
    parts.resize(other.parts.empty() ? parts.size() : other.parts.size());
    for (std::size_t i = 0; i < other.parts.size(); ++i) {
      parts[i].add(other.parts[i]);
    }
  }
};

namespace detail {

// Takes back what a step that failed added to the cache.
class CacheGuard {
 public:
  explicit CacheGuard(KvPages& cache) : cache_(cache) {}
  CacheGuard(const CacheGuard&) = delete;
  CacheGuard& operator=(const CacheGuard&) = delete;
  ~CacheGuard() {
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      cache_.truncate(sequences_[i], lengths_[i]);
    }
  }
  std::int64_t extend(int sequence, std::int64_t n) {
    const std::int64_t length = cache_.length(sequence);
    cache_.extend(sequence, n);
    sequences_.push_back(sequence);
    lengths_.push_back(length);
    return length;
  }
  void keep() { lengths_.clear(); }

 private:
  KvPages& cache_;
  std::vector<int> sequences_;
  std::vector<std::int64_t> lengths_;
};

// The tokens of a step, flat, and where each stands.
struct StepTokens {
  std::vector<std::int32_t> ids, places;
  std::vector<int> sequences;
  std::vector<std::int64_t> counts;  // of tokens of each sequence
  std::vector<std::int32_t> wanted;  // tokens whose logits are asked for
  std::vector<std::int64_t> asked;   // how many of each sequence, which are its last
  bool trimmed = false;              // from the last layer on they alone are there
};

inline StepTokens step_tokens(const Transformer& model, const List<TokenRun>& runs,
                              CacheGuard& guard) {
  StepTokens step;
  for (const TokenRun& run : runs) {
    const auto n = static_cast<std::int64_t>(run.ids.size());
    if (n == 0) {
      fail({"decode: sequence ", run.sequence, " has no new tokens; at least 1 is right"});
    }
    for (const int before : step.sequences) {
      if (before == run.sequence) {
        fail({"decode: sequence ", run.sequence, " comes twice in one step; once is right"});
      }
    }
    const std::int64_t first = guard.extend(run.sequence, n);
    if (first + n > model.config.context) {
      fail({"decode: sequence ", run.sequence, " would have ", first + n,
            " tokens; the context of ", model.config.name, " is ", model.config.context});
    }
    for (std::int64_t i = 0; i < n; ++i) {
      if (run.all || i + 1 == n) {
        step.wanted.push_back(static_cast<std::int32_t>(step.ids.size()));
      }
      step.ids.push_back(run.ids[static_cast<std::size_t>(i)]);
      step.places.push_back(static_cast<std::int32_t>(first + i));
    }
    step.sequences.push_back(run.sequence);
    step.counts.push_back(n);
    step.asked.push_back(run.all ? n : 1);
  }
  return step;
}

// The new keys and values [1, T, KV K] of a layer into their pages, then the queries [1, T, H K] of
// each new token, or of those that are wanted, over what its sequence has by then.
inline Tensor attend_step(const StepTokens& step, const List<TokenRun>& runs, int layer,
                          const Tensor& q, const Tensor& k, const Tensor& v, KvPages& cache) {
  const OpScope scope;
  kernels::CacheShape shape = cache.shape();
  shape.heads = q.dim(2) / shape.head_size;
  Tensor y(q.shape());
  const bool all = q.dim(1) == static_cast<std::int64_t>(step.ids.size());
  List<List<const std::uint8_t*>> pages(runs.size());
  List<kernels::CacheQuery> single;
  double pairs = 0, seen = 0;
  std::int64_t t = 0, row = 0;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const auto n = static_cast<std::int64_t>(runs[r].ids.size());
    const std::int64_t first = step.places[static_cast<std::size_t>(t)], end = first + n;
    for (std::int64_t at = first; at < end; ++at) {
      const std::int64_t from = (t + at - first) * shape.row();
      kernels::cache_store(shape, cache.page(layer, runs[r].sequence, at / shape.page_tokens),
                           at % shape.page_tokens, k.data() + from, v.data() + from);
    }
    for (std::int64_t at = 0; at * shape.page_tokens < end; ++at) {
      pages[r].push_back(cache.page(layer, runs[r].sequence, at));
    }
    const std::int64_t some = all ? n : step.asked[r], begin = end - some;  // the first query
    const float* const from = q.data() + row * q.dim(2);
    float* const to = y.data() + row * q.dim(2);
    const bool whole = cache.seen(end, layer) == end;
    if (some > cache_few && whole) {
      kernels::cache_attention_prefill(shape, pages[r].data(), begin, some, from, q.dim(2), to,
                                       q.dim(2));
    }
    for (std::int64_t i = 0; i < some; ++i) {
      const std::int64_t visible = cache.seen(begin + i + 1, layer);
      if (some <= cache_few || !whole) {
        single.push_back({from + i * q.dim(2), to + i * q.dim(2), pages[r].data(),
                          begin + i + 1 - visible, begin + i + 1});
      }
      pairs += static_cast<double>(visible);
    }
    seen += cache.bytes_read(runs[r].sequence, layer, some);
    t += n;
    row += some;
  }
  kernels::cache_attention(shape, static_cast<std::int64_t>(single.size()), single.data());
  if (context().profile != nullptr) {
    const auto heads = static_cast<double>(shape.heads);
    OpRecord record;
    record.name = "attention";
    record.shape = q.shape().text();
    record.matmul_flops = 4 * pairs * static_cast<double>(q.dim(2));
    record.vector_flops = vector_cost("softmax", pairs * heads, &VectorCost::forward);
    record.reads.push_back(Operand{static_cast<double>(q.count())});
    record.reads.push_back(Operand{seen, DType::int8, 1});  // bytes of the cache
    record.writes.push_back(Operand{static_cast<double>(y.count())});
    record.count_bytes();
    scope.done(record);
  }
  return y;
}

// What the formulas say that the step cost, and what a screened head really read; `whole`: the head
// was then multiplied all the same. `routed`: [L, E] tokens that visited an expert.
inline void count_step(const Transformer& model, const KvPages& cache, const StepTokens& step,
                       const std::vector<std::int64_t>& routed, const LargestOfRows* largest,
                       bool whole, StepTotals& totals) {
  const ModelConfig& c = model.config;
  const auto all = static_cast<double>(step.ids.size());
  const auto rows = static_cast<double>(step.wanted.size());
  totals.steps = 1;
  totals.tokens = static_cast<std::int64_t>(step.ids.size());
  for (const Parameter& p : model.parameters) {
    const bool table = p.name == "model.embed_tokens.weight";
    if (p.shape.size() != 2 || p.name == "model.embed_positions.weight" || (table && !c.tied)) {
      continue;  // rows of tables are read, no matrix
    }
    const auto numbers = static_cast<double>(p.shape.count());
    StepCosts& part = totals.parts[static_cast<std::size_t>(p.layer < 0 ? c.layers : p.layer)];
    const auto is = [&p](const char* name) { return p.name.find(name) != std::string::npos; };
    const bool some = p.layer < 0 || (step.trimmed && p.layer + 1 == c.layers &&
                                      !is("self_attn.k_proj.") && !is("self_attn.v_proj."));
    const auto expert = static_cast<std::size_t>(p.layer * c.experts + p.expert);
    const double visits = p.expert < 0 ? (some ? rows : all) : static_cast<double>(routed[expert]);
    part.matmul_flops += 2 * numbers * visits;
    part.weight_bytes += visits > 0 ? (p.stored ? p.stored->bytes() : 4 * numbers) : 0;
  }
  if (largest != nullptr) {
    const StoredMatrix& head = *model.head_matrix().stored;
    totals.parts.back().weight_bytes += largest->bytes - (whole ? 0 : head.bytes());
    for (const LargestProduct& row : largest->rows) {
      const std::int64_t multiplied = row.rows + row.again + (whole ? head.rows : 0);
      totals.parts.back().matmul_flops += 2 * static_cast<double>(multiplied * head.cols);
    }
  }
  const auto query = static_cast<double>(c.query_width());
  for (int layer = 0; layer < c.layers; ++layer) {
    StepCosts& part = totals.parts[static_cast<std::size_t>(layer)];
    const bool some = step.trimmed && layer + 1 == c.layers;
    std::size_t t = 0;
    for (std::size_t r = 0; r < step.sequences.size(); ++r) {
      const std::int64_t queries = some ? step.asked[r] : step.counts[r];
      part.cache_bytes += cache.bytes_read(step.sequences[r], layer, queries);
      t += static_cast<std::size_t>(step.counts[r]);
      for (std::size_t i = t - static_cast<std::size_t>(queries); i < t; ++i) {
        part.matmul_flops += 4 * query * static_cast<double>(cache.seen(step.places[i] + 1, layer));
      }
    }
  }
  for (const StepCosts& part : totals.parts) {
    totals.all.add(part);
  }
}

}  // namespace detail

// One step in its pieces, for who runs layers on several devices. Until keep() is called the step
// can fail, and the cache is then as it was.
class DecodeStep {
 public:
  // All must outlive it. `base` holds the hooks of a strategy; its attention, if any, is asked
  // after the new keys and values are in the cache, or in place of both when there is none.
  DecodeStep(const Transformer& model, KvPages& cache, const List<TokenRun>& runs,
             const Hooks& base = Hooks())
      : model_(model),
        cache_(cache),
        runs_(runs),
        guard_(cache),
        tokens_(detail::step_tokens(model, runs, guard_)),
        hooks_(base) {
    if (tokens_.ids.empty()) {
      detail::fail({"decode: no runs; at least one is right"});
    }
    hooks_.each_place = &tokens_.places;
    if (model.config.position == Position::rotary) {
      table_ = rope_table({tokens_.places.begin(), tokens_.places.end()});
    }
    hooks_.rotate = [this](const Tensor& x) { return rotated(x); };
    if (!hooks_.attention) {
      hooks_.attention = [this](int layer, const Tensor& q, const Tensor& k, const Tensor& v) {
        return detail::attend_step(tokens_, runs_, layer, q, k, v, cache_);
      };
    }
  }
  DecodeStep(const DecodeStep&) = delete;
  DecodeStep& operator=(const DecodeStep&) = delete;

  const detail::StepTokens& tokens() const { return tokens_; }
  std::int64_t count() const { return static_cast<std::int64_t>(tokens_.ids.size()); }
  Tensor embed() const { return model_.embed(tokens_.ids, 1, count(), hooks_); }  // (1, T, D)
  Tensor block(int layer, const Tensor& x) const { return model_.block(layer, x, hooks_); }
  // The last one, (1, rows, D) of the wanted tokens, for an attention that takes their queries
  // alone: the step's own does.
  Tensor last_block(const Tensor& x) {
    Hooks some = hooks_;
    tokens_.trimmed = tokens_.wanted.size() < tokens_.ids.size();
    some.wanted = tokens_.trimmed ? &tokens_.wanted : nullptr;
    return model_.block(static_cast<int>(model_.config.layers) - 1, x, some);
  }
  // Logits [rows, V] of the wanted tokens.
  Tensor head(const Tensor& x) const { return model_.head(wanted(x), hooks_); }
  // The largest of them that are below `known`, of a screened head.
  LargestOfRows largest(const Tensor& x, std::int64_t known) const {
    return largest_stored(model_.head_input(wanted(x), hooks_), *model_.head_matrix().stored,
                          model_.activations, known);
  }
  void keep() { guard_.keep(); }

 private:
  Tensor wanted(const Tensor& x) const {
    const auto rows = static_cast<std::int64_t>(tokens_.wanted.size());
    const Tensor flat = reshape(x, {x.dim(1), x.dim(2)});
    return rows < x.dim(1) ? embedding(flat, tokens_.wanted, {rows}) : flat;
  }
  kernels::RopeTable rope_table(const std::vector<std::int64_t>& places) const {
    const std::vector<float>& factors = model_.config.rope_factors;
    return kernels::RopeTable(places.data(), static_cast<std::int64_t>(places.size()),
                              model_.config.head_size, model_.config.rope_theta,
                              factors.empty() ? nullptr : factors.data());
  }
  // Queries or keys of this step alone, which nobody else sees: turned where they stand.
  Tensor rotated(const Tensor& x) const {
    const detail::OpScope scope;
    Tensor y = x;
    kernels::RopeTable of_wanted;
    if (x.dim(1) < count()) {
      std::vector<std::int64_t> places;
      for (const std::int32_t t : tokens_.wanted) {
        places.push_back(tokens_.places[static_cast<std::size_t>(t)]);
      }
      of_wanted = rope_table(places);
    }
    const kernels::RopeTable& table = x.dim(1) < count() ? of_wanted : table_;
    table.turn(model_.config.rope_pairs, x.dim(2) / model_.config.head_size, y.data(), x.dim(2));
    scope.done_unary("rope", "rope", x.shape());
    return y;
  }

  const Transformer& model_;
  KvPages& cache_;
  const List<TokenRun>& runs_;
  detail::CacheGuard guard_;
  detail::StepTokens tokens_;
  kernels::RopeTable table_;
  Hooks hooks_;
};

namespace detail {

// decode(), or where `largest` is asked for, and the head screened, the largest logit of each row
// below `known` instead: no logits, unless some may not be finite.
inline Tensor decode_step(const Transformer& model, KvPages& cache, const List<TokenRun>& runs,
                          StepTotals* totals, const Hooks& base, std::int64_t known,
                          LargestOfRows* largest) {
  if (!cache.fits(model.config)) {
    fail({"decode: the cache is of ", cache.text(), ", ", model.config.name, " has ",
          KvPages(model.config).text(), "; KvPages(model.config) is right"});
  }
  const NoGrad no_grad;
  ExpertCounts visited;
  Hooks hooks = base;
  hooks.expert_counts = base.expert_counts != nullptr ? base.expert_counts : &visited;
  const auto pairs = static_cast<std::size_t>(model.config.layers * model.config.experts);
  std::vector<std::int64_t> routed_before = hooks.expert_counts->routed;
  routed_before.resize(pairs);
  DecodeStep step(model, cache, runs, hooks);
  StepTotals own;
  own.parts.resize(static_cast<std::size_t>(model.config.layers) + 1);
  double before = seconds_now();
  const auto lap = [&before](StepCosts& part) {
    const double now = seconds_now();
    part.seconds += now - before;
    before = now;
  };
  StepCosts& outside = own.parts.back();
  Tensor x = step.embed();
  lap(outside);
  for (int layer = 0; layer < model.config.layers; ++layer) {
    const bool last = layer + 1 == model.config.layers && !base.attention && !base.feed_forward;
    x = last ? step.last_block(x) : step.block(layer, x);
    lap(own.parts[static_cast<std::size_t>(layer)]);
  }
  Tensor logits;
  bool all = largest == nullptr;
  if (!all) {
    *largest = step.largest(x, known);
    for (const LargestProduct& row : largest->rows) {
      all = all || row.place < 0;
    }
  }
  if (all) {
    logits = step.head(x);
  }
  lap(outside);
  step.keep();
  if (totals != nullptr) {
    std::vector<std::int64_t> routed = hooks.expert_counts->routed;
    routed.resize(pairs);
    for (std::size_t i = 0; i < pairs; ++i) {
      routed[i] -= routed_before[i];
    }
    count_step(model, cache, step.tokens(), routed, largest, all, own);
    totals->add(own);
  }
  return logits;
}

}  // namespace detail

// Logits [rows, V]: after the last new token of each run in order, or after all of them. The cache
// then holds the new tokens too; when the step throws it is as it was.
inline Tensor decode(const Transformer& model, KvPages& cache, const List<TokenRun>& runs,
                     StepTotals* totals = nullptr, const Hooks& base = Hooks()) {
  return detail::decode_step(model, cache, runs, totals, base, 0, nullptr);
}

}  // namespace tinyscale
