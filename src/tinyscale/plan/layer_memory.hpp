#pragma once
// What a layer of today keeps in bf16 for its backward pass, tensor by tensor: RMS norms, grouped
// or latent attention that stores no [T, T] matrix, gated feed-forwards, mixtures, no dropout. A
// GPT layer keeps 32 D bytes a token so: Megatron's 34 D of 2022 without its two dropout masks.
// What this library's own f32 layer keeps, as its memory meter counts, is in
// model/training_memory.hpp. Source of the accounting: arXiv 2205.05198, section 4.

#include <cstdint>  // int64_t
#include <vector>   // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/model/model_config.hpp"
#include "tinyscale/parallel/layout.hpp"
#include "tinyscale/parallel/memory_forms.hpp"

namespace tinyscale {

// One tensor that is kept, in bytes a token on one device. `until` is the last policy that keeps
// it: none, everything is kept; selective, the attention core is computed again; full, only the
// block's input is kept.
struct KeptBytes {
  const char* name;
  double bytes;
  Recompute until;
};

namespace detail {

// Collects what one layer keeps, or only adds it up for a search over many layouts; `stream`
// devices share what tensor parallelism leaves whole, `routed` of them what experts read and write.
class LayerKeeper {
 public:
  LayerKeeper(const ModelConfig& c, double tensor, double stream, double routed, bool lists)
      : c_(c), tensor_(tensor), stream_(stream), routed_(routed), lists_(lists) {}

  // Bytes a token that this policy keeps; after layer().
  double sum(Recompute recompute) const { return sums_[static_cast<int>(recompute)]; }

  List<KeptBytes> layer(bool mixture) {
    add("block input", 2 * width() / stream_, Recompute::full);
    add("statistics of norm 1", statistic() / stream_);
    add("norm 1's output", 2 * width() / stream_);
    attention();
    if (c_.block_norms >= 4) {
      add("attention's result before its norm", (2 * width() + statistic()) / stream_);
      add("feed-forward's result before its norm", (2 * width() + statistic()) / stream_);
    }
    if (c_.block_norms >= 2) {  // else one norm serves both
      add("norm 2's input", 2 * width() / stream_);
      add("statistics of norm 2", statistic() / stream_);
      add("norm 2's output", 2 * width() / stream_);
    }
    if (mixture) {
      experts();
    } else {
      hidden(static_cast<double>(c_.hidden),
             {"gate", "up", "their product", "hidden layer", "hidden layer activated"});
    }
    return kept_;
  }

 private:
  double width() const { return static_cast<double>(c_.width); }
  double statistic() const { return c_.norm == Norm::layer ? 8 : 4; }  // f32
  void add(const char* name, double bytes, Recompute until = Recompute::selective) {
    for (int policy = 0; policy <= static_cast<int>(until); ++policy) {
      sums_[policy] += bytes;
    }
    if (lists_) {
      kept_.push_back({name, bytes, until});
    }
  }

  // The ranks of latent attention are whole on each tensor-parallel device, as the stream is.
  void attention() {
    const auto heads = static_cast<double>(c_.heads);
    const double kv_heads = static_cast<double>(c_.kv_heads) * kv_copies(c_, tensor_);
    const auto scores = static_cast<double>(c_.score_head());
    const auto values = static_cast<double>(c_.output_head());
    if (c_.latent()) {
      const auto queries = static_cast<double>(c_.q_lora_rank);
      const auto keys = static_cast<double>(c_.kv_lora_rank);
      const double rotary = static_cast<double>(c_.rope_head);
      add("rank of queries, before and after its norm",
          (queries > 0 ? 4 * queries + 4 : 0) / stream_);
      add("rank of keys and rotary key", (2 * (keys + rotary) + 2 * keys + 4) / stream_);
    }
    if (c_.qk_norm) {
      add("queries and keys before their norms", (heads + kv_heads) * (2 * scores + 4) / tensor_);
    }
    add("queries", 2 * heads * scores / tensor_);
    add("keys", 2 * kv_heads * scores / tensor_);
    add("values", 2 * kv_heads * values / tensor_);
    add("attention's output", 2 * heads * values / tensor_);
    add("log-sum-exps", 4 * heads / tensor_, Recompute::none);
  }

  struct HiddenNames {
    const char *gate, *up, *product, *before, *after;
  };

  // Gated: gate, up, and their product that the last matrix reads (the gate's activation is
  // computed again, as a fused kernel does); else the hidden layer before and after its activation.
  void hidden(double wide, const HiddenNames& names) {
    if (c_.gated()) {
      add(names.gate, 2 * wide / tensor_);
      add(names.up, 2 * wide / tensor_);
      add(names.product, 2 * wide / tensor_);
    } else {
      add(names.before, 2 * wide / tensor_);
      add(names.after, 2 * wide / tensor_);
    }
  }

  // Of each choice the row that goes in and the one that comes out; on balanced experts a device
  // has as many rows as its own tokens choose, wherever they come from.
  void experts() {
    const auto choices = static_cast<double>(c_.top_k);
    const auto wide = static_cast<double>(c_.expert_hidden);
    add("router's probabilities", 4 * static_cast<double>(c_.experts) / routed_);
    add("weights of the choices", 4 * choices / routed_);
    add("rows into experts", 2 * choices * width() / routed_);
    hidden(choices * wide, {"gate of experts", "up of experts", "their product in experts",
                            "hidden layer of experts", "hidden layer of experts activated"});
    add("rows out of experts", 2 * choices * width() / routed_);
    if (c_.shared_experts > 0) {
      hidden(c_.shared_experts * wide,
             {"gate of shared experts", "up of shared experts", "their product in shared experts",
              "hidden layer of shared experts", "hidden layer of shared experts activated"});
    }
  }

  const ModelConfig& c_;
  double tensor_, stream_, routed_;
  bool lists_;
  double sums_[3] = {0, 0, 0};  // by policy
  List<KeptBytes> kept_;
};

inline void check_tensor_devices(const char* who, double tokens, std::int64_t tensor) {
  if (!is_finite(tokens) || tokens < 0 || tensor < 1) {
    fail({who, ": ", tokens, " tokens on ", tensor,
          " tensor-parallel devices; 0 or more on at least 1 are right"});
  }
}

inline bool is_mixture(const ModelConfig& model) { return model.mixture_layers() > 0; }

}  // namespace detail

// What one layer keeps, a mixture when the model is one, on one of `tensor` devices, which also
// share the tokens of the stream between their parts under sequence parallelism, and those of
// experts where they are whole (Layout::whole_experts).
inline List<KeptBytes> kept_by_layer(const ModelConfig& model, std::int64_t tensor,
                                     bool sequence_parallel, bool mixture,
                                     bool whole_experts = false) {
  detail::check_tensor_devices("kept_by_layer", 0, tensor);
  const auto parts = static_cast<double>(tensor);
  return detail::LayerKeeper(model, parts, sequence_parallel ? parts : 1, whole_experts ? parts : 1,
                             true)
      .layer(mixture);
}

// Bytes that one layer keeps of `tokens` tokens of a microbatch:
//   llama, everything  8 D + 8 + 2 (2 H + 2 KV) K + 4 H + 6 F   (stream part / t when it is shared,
//   selective          4 H less: the log-sum-exps                the rest / t, KV at least one)
//   full               2 D
// A mixture: 6 k F and 4 k D of rows instead of 6 F, and the router's 4 E + 4 k.
inline double modern_layer_activation_bytes(const ModelConfig& model, double tokens,
                                            std::int64_t tensor, bool sequence_parallel,
                                            Recompute recompute, bool mixture,
                                            bool whole_experts = false) {
  detail::check_tensor_devices("modern_layer_activation_bytes", tokens, tensor);
  const int policy = static_cast<int>(recompute);
  if (policy < 0 || policy > static_cast<int>(Recompute::full)) {
    detail::fail(
        {"modern_layer_activation_bytes: recompute is ", policy, "; a name of its enum is right"});
  }
  const auto parts = static_cast<double>(tensor);
  detail::LayerKeeper keeper(model, parts, sequence_parallel ? parts : 1, whole_experts ? parts : 1,
                             false);
  keeper.layer(mixture);
  return tokens * keeper.sum(recompute);
}

inline double modern_layer_activation_bytes(const ModelConfig& model, double tokens,
                                            std::int64_t tensor = 1, bool sequence_parallel = false,
                                            Recompute recompute = Recompute::none) {
  return modern_layer_activation_bytes(model, tokens, tensor, sequence_parallel, recompute,
                                       detail::is_mixture(model));
}

// Another selective policy, torchtitan's by op: the block's input and the outputs of attention and
// of every second matmul in the order q, k, v, output, gate, up, down; the rest computed again.
// 2 (2 D + 2 H K + KV K + F) + 4 H bytes a token of a dense gated layer.
inline double op_selective_activation_bytes(const ModelConfig& model, double tokens,
                                            std::int64_t tensor = 1,
                                            bool sequence_parallel = false) {
  detail::check_tensor_devices("op_selective_activation_bytes", tokens, tensor);
  if (model.experts > 0 || model.latent() || !model.gated()) {
    detail::fail({"op_selective_activation_bytes: ", model.name,
                  " is not a dense gated model without latent attention, for which it is known"});
  }
  const auto parts = static_cast<double>(tensor);
  const auto width = static_cast<double>(model.width), heads = static_cast<double>(model.heads);
  const double attended = static_cast<double>(2 * model.query_width()) +
                          static_cast<double>(model.key_width()) * detail::kv_copies(model, parts);
  const double whole = 4 * width / (sequence_parallel ? parts : 1);
  return tokens *
         (whole + (2 * (attended + static_cast<double>(model.hidden)) + 4 * heads) / parts);
}

// Every tensor that a layer keeps, in bytes a token, and under which policy.
inline Table kept_table(const ModelConfig& model, std::int64_t tensor = 1,
                        bool sequence_parallel = false) {
  Table out;
  out.title = detail::cat({"a layer of ", model.name, " keeps, bytes a token in bf16, of ", tensor,
                           tensor == 1 ? " device" : " devices"});
  out.columns = {"tensor", "none", "selective", "full"};
  double sums[3] = {0, 0, 0};
  for (const KeptBytes& kept :
       kept_by_layer(model, tensor, sequence_parallel, detail::is_mixture(model))) {
    std::vector<Cell> row = {kept.name};
    for (int policy = 0; policy < 3; ++policy) {
      const double bytes = kept.until >= static_cast<Recompute>(policy) ? kept.bytes : 0;
      sums[policy] += bytes;
      row.push_back(detail::number_cell(bytes));
    }
    out.add(row);
  }
  out.add({"all", detail::number_cell(sums[0]), detail::number_cell(sums[1]),
           detail::number_cell(sums[2])});
  return out;
}

}  // namespace tinyscale
