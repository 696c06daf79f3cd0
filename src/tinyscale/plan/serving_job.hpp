#pragma once
// What is to be served, and the law of one step of the server: seconds of its causes, as doubles.
//   bound = max(links, attention + max(math, weights))     sum = links + attention + math + weights
// A step takes `decode` tokens of as many sequences and `chunk` tokens of prompts. Plan and
// simulation share this one law. Source: "How To Scale Your Model", chapter 7.

#include <algorithm>  // max, min
#include <cmath>      // pow
#include <cstdint>    // std::int64_t
#include <string>     // text

#include "tinyscale/base/error.hpp"
#include "tinyscale/hardware/network.hpp"
#include "tinyscale/plan/transformer_math.hpp"

namespace tinyscale {

// A number format that is "the same as the weights'" until it is set.
struct CacheFormat {
  bool set = false;
  DType format = DType::bf16;

  CacheFormat& operator=(DType wanted) {
    set = true;
    format = wanted;
    return *this;
  }
  DType or_else(DType weights) const { return set ? format : weights; }
};

// A small model proposes `length` tokens, the model checks them in one step (Leviathan 2023).
struct Speculation {
  int length = 0;         // g, proposed tokens; 0: no speculation
  double acceptance = 0;  // r, of one proposed token
  double cost = 0;        // c, a step of the small model in steps of the model
};

struct ServingJob {
  ModelConfig model;
  std::int64_t prompt = 2048, output = 256;  // tokens
  std::int64_t batch = 8;                    // sequences decoded together
  DType format = DType::bf16;                // weights
  CacheFormat cache;                         // KV cache
  DType compute = DType::bf16;               // matmuls: weights are widened to it on the chip
  double prefill_mfu = 0.4;                  // what prefill reaches (scaling book, chapter 8)
  double target = 0;                         // seconds a token may take; 0: any
  Speculation speculation;
};

// What one step works on, in tokens and query-key pairs.
struct StepWork {
  double decode = 0;         // sequences that get one token each
  double context = 0;        // cached tokens that they read
  double chunk = 0;          // prompt tokens
  double chunk_context = 0;  // cached tokens that the chunks read
  double chunk_pairs = 0;    // queries times keys of the chunks
};

// Seconds for each kind of work, on all chips of one replica together.
struct ServingLaw {
  double weights = 0, experts = 0;  // reading those that every token uses; all routed experts
  double missed = 0;                // of an expert by one token: 1 - k / E
  double token = 0;                 // matmuls of a token, 2 P / (N C)
  double cached = 0;                // reading a cached token
  double pair = 0, chunk_pair = 0;  // a query with a key, in decode and in prefill
  double link = 0, latency = 0;     // collectives: a token's bytes; a step's hops
  double prefill_mfu = 1;           // of matmuls in prefill

  // Of E experts, a batch touches E (1 - (1 - k / E)^tokens) when routing is even.
  double touched(double tokens) const { return 1 - std::pow(missed, tokens); }
  double read(double tokens) const {
    return weights + (experts > 0 ? experts * touched(tokens) : 0);
  }
  double math(const StepWork& w) const { return token * (w.decode + w.chunk / prefill_mfu); }
  double links(const StepWork& w) const {
    const double tokens = w.decode + w.chunk;
    return tokens > 0 ? link * tokens + latency : 0;
  }
  // Reading the cache and multiplying with it overlap in a bound.
  double attention(const StepWork& w, bool overlap) const {
    const double pairs = chunk_pair * w.chunk_pairs / prefill_mfu;
    return overlap ? w.context * std::max(cached, pair) + std::max(w.chunk_context * cached, pairs)
                   : w.context * (cached + pair) + w.chunk_context * cached + pairs;
  }
  double growth(bool overlap) const { return overlap ? std::max(cached, pair) : cached + pair; }
  double without_links(const StepWork& w, bool overlap) const {
    const double reading = read(w.decode + w.chunk);
    return attention(w, overlap) + (overlap ? std::max(math(w), reading) : math(w) + reading);
  }
  double seconds(const StepWork& w, bool overlap) const {
    return overlap ? std::max(links(w), without_links(w, true))
                   : links(w) + without_links(w, false);
  }
  double bound(const StepWork& w) const { return seconds(w, true); }
  double sum(const StepWork& w) const { return seconds(w, false); }
};

namespace detail {

// Of a sequence so long, the tokens whose cache is kept and read, over the mean of the layers: a
// local layer stops at its window.
inline double kept_tokens(const ServingJob& job, double tokens) {
  const std::int64_t whole = static_cast<std::int64_t>(tokens);
  const double low = kv_cache_bytes(job.model, DType::int8, whole);
  const double high = kv_cache_bytes(job.model, DType::int8, whole + 1);
  const double part = tokens - static_cast<double>(whole);
  return (low + part * (high - low)) / kv_cache_bytes_per_token(job.model, DType::int8);
}

// A prompt in one chunk: every token sees itself and those before it, in a window if there is one.
inline StepWork prompt_work(const ServingJob& job, double tokens) {
  const ModelConfig& m = job.model;
  const double local = static_cast<double>(m.local_layers()) / static_cast<double>(m.layers);
  const double window = std::min(static_cast<double>(m.window), tokens);
  StepWork work;
  work.chunk = tokens;
  work.chunk_pairs = (1 - local) * tokens * (tokens + 1) / 2 +
                     local * (window * (window + 1) / 2 + (tokens - window) * window);
  return work;
}

// FLOPs of a query with a key and its value, all layers. A decode step leaves latents as they are
// cached (C, and R of the rotary key) and multiplies the queries into them.
inline double decode_pair_flops(const ModelConfig& m) {
  const std::int64_t numbers =
      m.latent() ? 2 * m.kv_lora_rank + m.rope_head : m.score_head() + m.output_head();
  return 2.0 * static_cast<double>(m.layers * m.heads * numbers);
}
inline double prefill_pair_flops(const ModelConfig& m) {
  return 2.0 * static_cast<double>(m.layers * m.heads * (m.score_head() + m.output_head()));
}

// In the middle of the output, and at its end.
inline double mean_context(const ServingJob& job) {
  return kept_tokens(job, static_cast<double>(job.prompt) + static_cast<double>(job.output) / 2);
}
inline double last_context(const ServingJob& job) {
  return kept_tokens(job, static_cast<double>(job.prompt + job.output));
}

inline StepWork decode_work(const ServingJob& job) {
  StepWork work;
  work.decode = static_cast<double>(job.batch);
  work.context = work.decode * mean_context(job);
  return work;
}

inline double serving_kv(const ServingJob& job) {
  return kv_cache_bytes_per_token(job.model, job.cache.or_else(job.format));
}

inline double weight_bytes(const ServingJob& job) {
  return static_cast<double>(job.model.parameters()) * bytes_of(job.format);
}

// Of the experts that a token visits by its router.
inline double routed_bytes(const ServingJob& job) {
  const ModelConfig& m = job.model;
  if (m.experts <= m.top_k) {
    return 0;  // every token uses all
  }
  const double unused = static_cast<double>(m.parameters() - m.active_parameters());
  return unused * m.experts / (m.experts - m.top_k) * bytes_of(job.format);
}

// The law without links, everything spread evenly over the chips.
inline ServingLaw even_law(const ServingJob& job, const Chip& chip, double chips) {
  const ModelConfig& m = job.model;
  const double bandwidth = chips * chip.memory_bandwidth;
  const double rate = chips * chip.peak(job.compute);
  ServingLaw law;
  law.experts = routed_bytes(job) / bandwidth;
  law.weights = (weight_bytes(job) - routed_bytes(job)) / bandwidth;
  law.missed = m.experts > 0 ? 1 - static_cast<double>(m.top_k) / m.experts : 0;
  law.token = 2.0 * static_cast<double>(m.active_parameters()) / rate;
  law.cached = serving_kv(job) / bandwidth;
  law.pair = decode_pair_flops(m) / rate;
  law.chunk_pair = prefill_pair_flops(m) / rate;
  law.prefill_mfu = job.prefill_mfu;
  return law;
}

inline void check_serving(const ServingJob& job, const Machine& machine, const char* who) {
  job.model.validate();
  if (machine.dims.size() == 0 || machine.chips() < 1) {
    fail({who, ": the machine has no chips; make one with machine(\"tpu-v5e\", {1})"});
  }
  check_network(who, machine);
  const double most = 1e9;
  const Speculation& draft = job.speculation;
  check_job(who, "batch", static_cast<double>(job.batch), 1, most);
  check_job(who, "prompt", static_cast<double>(job.prompt), job.output == 0 ? 1 : 0, most);
  check_job(who, "output", static_cast<double>(job.output), 0, most);
  check_job(who, "prefill_mfu", job.prefill_mfu, 1e-6, 1);
  check_job(who, "target", job.target, 0, most);
  check_job(who, "speculation.length", draft.length, 0, 1000);
  check_job(who, "speculation.acceptance", draft.acceptance, 0, 1);
  check_job(who, "speculation.cost", draft.cost, 0, most);
  if (!(machine.chip.memory_bytes > 0) || !(machine.chip.memory_bandwidth > 0)) {
    fail({who, ": ", machine.name, " needs memory_bytes and memory_bandwidth of its chip"});
  }
  check_chip_figures(who, machine);
}

}  // namespace detail
}  // namespace tinyscale
