#pragma once
// Context parallelism: the tokens of every sequence cut over N devices, of which only attention
// sees more than one. Per layer and device, of b sequences of s tokens, queries q wide, keys kv
// wide:
//   ring      K and V go around          forward 2 b s kv (N-1)/N         backward 4 b s kv (N-1)/N
//             under a window in R rounds (ring_rounds), not N-1
//   Ulysses   tokens against heads       2 b s (q + kv) (N-1)/N^2         the same
//   gathered  K and V of all on each     2 b s kv (N-1)/N                 the same
// Ulysses: Jacobs et al., arXiv 2309.14509; gathered: Llama 3, arXiv 2407.21783, section 3.3.2.

#include <cstdint>  // int64_t
#include <vector>   // vector

#include "tinyscale/mesh/device.hpp"
#include "tinyscale/model/hooks.hpp"
#include "tinyscale/model/model_config.hpp"
#include "tinyscale/parallel/context_places.hpp"
#include "tinyscale/parallel/ring_attention.hpp"
#include "tinyscale/tensor/attend.hpp"
#include "tinyscale/tensor/views.hpp"

namespace tinyscale {

// What stands at `places` of sequences that lie one behind the other: `count` of each.
inline std::vector<std::int32_t> tokens_at(const std::vector<std::int32_t>& ids,
                                           std::int64_t sequence_length, const TokenPlaces& places,
                                           std::int64_t count) {
  const std::int64_t n = static_cast<std::int64_t>(ids.size());
  if (sequence_length < 1 || n % sequence_length != 0 || count < 0 || places.first < 0 ||
      (count > 0 && places.at(count - 1) >= sequence_length)) {
    detail::fail({"tokens_at: ", n, " ids in sequences of ", sequence_length, ", ", count,
                  " tokens of each from place ", places.first,
                  "; whole sequences and places within them are right"});
  }
  std::vector<std::int32_t> out;
  for (std::int64_t begin = 0; begin < n; begin += sequence_length) {
    for (std::int64_t t = 0; t < count; ++t) {
      out.push_back(ids[static_cast<std::size_t>(begin + places.at(t))]);
    }
  }
  return out;
}

// Of each token of `batch` sequences its group, where each of data x context x tensor devices has
// so many equal ones of those it routes: what one device needs to know to route alike
// (ExpertOptions). tensor: ranks with a part of the tokens each, under sequence parallelism.
inline std::vector<std::int32_t> token_groups(ContextParallel kind, std::int64_t data,
                                              std::int64_t context, std::int64_t batch,
                                              std::int64_t sequence_length,
                                              std::int64_t groups_each = 1,
                                              std::int64_t tensor = 1) {
  const std::int64_t share = batch / data, count = sequence_length / context;
  if (tensor < 1 || count < tensor || count % tensor != 0) {
    detail::fail({"token_groups: ", count, " tokens of a device over tensor ", tensor,
                  "; a number of ranks that divides them is right"});
  }
  const std::int64_t part = count / tensor;
  std::vector<std::int32_t> groups(static_cast<std::size_t>(batch * sequence_length));
  for (std::int64_t c = 0; c < context; ++c) {
    const TokenPlaces places =
        context_places(kind, static_cast<int>(c), static_cast<int>(context), sequence_length);
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t t = 0; t < count; ++t) {
        const std::int64_t device = (b / share * context + c) * tensor + t / part;
        const std::int64_t within = (b % share * part + t % part) * groups_each / (share * part);
        groups[static_cast<std::size_t>(b * sequence_length + places.at(t))] =
            static_cast<std::int32_t>(device * groups_each + within);
      }
    }
  }
  return groups;
}

// Each device changes its tokens of all heads for all tokens of its heads, and back.
inline Tensor ulysses_attention(Device& device, const Tensor& q, const Tensor& k, const Tensor& v,
                                std::int64_t heads, std::int64_t kv_heads, const Axes& axes,
                                Mask mask, const CollectiveOptions& options = CollectiveOptions(),
                                std::int64_t window = 0,
                                SourceLine where = {__builtin_FILE(), __builtin_LINE()}) {
  detail::Endpoint& endpoint = device.endpoint();
  const std::vector<int> found = endpoint.find_axes("ulysses_attention", axes);
  const std::int64_t n = endpoint.size_of(found);
  detail::attention_shape(q, k, v, heads, kv_heads, mask, window);
  if (heads % n != 0 || kv_heads % n != 0) {
    detail::fail({"ulysses_attention: ", heads, " heads and ", kv_heads, " kv heads over ", n,
                  " devices of ", endpoint.names_of(found), "; each device has whole heads, so ",
                  "multiples of ", n, " are right (ring and gathered have no such limit)"});
  }
  Pending some_q = device.start_all_to_all(q, axes, 2, 1, options, where);
  Pending some_k = device.start_all_to_all(k, axes, 2, 1, options, where);
  Pending some_v = device.start_all_to_all(v, axes, 2, 1, options, where);
  const Tensor whole_q = some_q.wait();  // (B, T, heads/N K)
  const Tensor whole_k = some_k.wait();
  const Tensor y =
      attention(whole_q, whole_k, some_v.wait(), heads / n, kv_heads / n, mask, window);
  return device.all_to_all(y, axes, 1, 2, options, where);
}

namespace detail {

// Chunks of dimension 1, gathered in the order of zigzag devices (0, 2N-1, 1, 2N-2, ..), in theirs.
inline Tensor undo_zigzag(const Tensor& x, int devices) {
  const std::int64_t chunk = x.dim(1) / (2 * devices);
  std::vector<Tensor> chunks;
  for (int i = 0; i < 2 * devices; ++i) {
    const std::int64_t at = i < devices ? 2 * i : 2 * (2 * devices - 1 - i) + 1;
    chunks.push_back(slice(x, 1, at * chunk, (at + 1) * chunk));
  }
  return concat(chunks, 1);
}

}  // namespace detail

// Keys and values of all tokens on every device; its queries, a chunk from either end of the
// sequence under a causal mask, see those before them.
inline Tensor gathered_attention(Device& device, const Tensor& q, const Tensor& k, const Tensor& v,
                                 std::int64_t heads, std::int64_t kv_heads, const Axes& axes,
                                 Mask mask, const CollectiveOptions& options = CollectiveOptions(),
                                 std::int64_t window = 0,
                                 SourceLine where = {__builtin_FILE(), __builtin_LINE()}) {
  detail::Endpoint& endpoint = device.endpoint();
  const std::vector<int> found = endpoint.find_axes("gathered_attention", axes);
  const int n = endpoint.size_of(found);
  detail::attention_shape(q, k, v, heads, kv_heads, mask, window);
  const std::int64_t tokens = q.dim(1), chunk = tokens / 2;
  const bool halves = mask == Mask::causal && n > 1;
  if (k.dim(1) != tokens || (halves && tokens % 2 != 0)) {
    detail::fail({"gathered_attention: ", tokens, " queries and ", k.dim(1), " keys on each of ", n,
                  " devices of ", endpoint.names_of(found), "; right is as many keys",
                  halves ? ", an even number: two chunks of the sequence" : ""});
  }
  Pending all_k = device.start_all_gather(k, axes, 1, options, where);
  Pending all_v = device.start_all_gather(v, axes, 1, options, where);
  Tensor keys = all_k.wait(), values = all_v.wait();  // (B, T, KV K)
  if (!halves) {
    return attention(q, keys, values, heads, kv_heads, mask, window);
  }
  keys = detail::undo_zigzag(keys, n);
  values = detail::undo_zigzag(values, n);
  const auto part = [&](std::int64_t begin, std::int64_t seen) {
    return attention(slice(q, 1, begin, begin + chunk), slice(keys, 1, 0, seen),
                     slice(values, 1, 0, seen), heads, kv_heads, mask, window);
  };
  const int me = endpoint.index_on(found);
  return concat({part(0, (me + 1) * chunk), part(chunk, (2 * n - me) * chunk)}, 1);
}

// q [B, T/N, heads K], k and v [B, T/N, kv_heads K] of tokens that stand at context_places(kind,
// ..): what attention() of whole sequences gives for them. Every device of the axes calls it.
inline Tensor context_attention(Device& device, ContextParallel kind, const Tensor& q,
                                const Tensor& k, const Tensor& v, std::int64_t heads,
                                std::int64_t kv_heads, const Axes& axes, Mask mask,
                                const RingOptions& options = RingOptions(), std::int64_t window = 0,
                                SourceLine where = {__builtin_FILE(), __builtin_LINE()}) {
  switch (kind) {
    case ContextParallel::ring:
      return ring_attention(device, q, k, v, heads, kv_heads, axes, mask, options, window, where);
    case ContextParallel::ulysses:
      return ulysses_attention(device, q, k, v, heads, kv_heads, axes, mask, options.transfer,
                               window, where);
    default:
      return gathered_attention(device, q, k, v, heads, kv_heads, axes, mask, options.transfer,
                                window, where);
  }
}

// Sent by each device in one attention, in bytes of `element_bytes` a number; over links that take
// an all_to_all straight to its target. Under a window a ring of `zigzag` devices has fewer rounds.
struct ContextBytes {
  double forward = 0, backward = 0;
};

inline ContextBytes context_attention_bytes(ContextParallel kind, int devices, std::int64_t batch,
                                            std::int64_t sequence_length, std::int64_t q_width,
                                            std::int64_t kv_width, double element_bytes = 4,
                                            std::int64_t window = 0, bool zigzag = true) {
  const double n = devices, local = static_cast<double>(batch * sequence_length) / n;  // tokens
  const double keys = 2 * local * static_cast<double>(kv_width) * element_bytes;
  const double queries = 2 * local * static_cast<double>(q_width) * element_bytes;
  switch (kind) {
    case ContextParallel::ring: {
      const auto rounds =
          static_cast<double>(ring_rounds(zigzag, devices, sequence_length, window).size() - 1);
      return {rounds * keys, 2 * rounds * keys};
    }
    case ContextParallel::gathered: return {(n - 1) * keys, (n - 1) * keys};
    default: return {(n - 1) * (queries + keys) / n, (n - 1) * (queries + keys) / n};
  }
}

// Of N - 1 rounds of keys in every layer of a model those that there are: under a window a ring has
// fewer.
inline double context_rounds_share(const ModelConfig& model, ContextParallel kind, int devices,
                                   std::int64_t sequence_length) {
  if (kind != ContextParallel::ring || model.window == 0 || devices < 2) {
    return 1;
  }
  const std::size_t rounds = ring_rounds(true, devices, sequence_length, model.window).size() - 1;
  const auto local = static_cast<double>(model.local_layers());
  return 1 - local / static_cast<double>(model.layers) *
                 (1 - static_cast<double>(rounds) / (devices - 1));
}

// Pairs of query and key that a device multiplies under a causal mask, of one sequence and one
// head, when its queries stand there: of zigzag all have s (s + 1) / 2N, of single stretches the
// r-th of N about (2 r + 1) / N^2 of the whole, the last nearly twice the mean. Under a window
// (0: none) no query has more than so many.
inline double causal_pairs(const TokenPlaces& places, std::int64_t tokens,
                           std::int64_t window = 0) {
  const std::int64_t before = places.before_jump(tokens);
  const auto stretch = [window](std::int64_t first, std::int64_t n) {
    return detail::pairs_of_stretch(n, first + 1, window > 0 ? window : first + n);
  };
  return stretch(places.at(0), before) + stretch(places.at(before), tokens - before);
}

namespace detail {

// Attention of a model whose tokens are cut over the axes, and where a device's tokens stand. Under
// sequence parallelism `stream` is to be narrowed further (TokenPlaces::from).
inline void add_context_hooks(Hooks& hooks, Device& device, const Axes& axes, ContextParallel kind,
                              const ModelConfig& config, std::int64_t sequence_length,
                              const RingOptions& options = RingOptions()) {
  const std::vector<int> found = device.endpoint().find_axes("context parallelism", axes);
  const int n = device.endpoint().size_of(found), me = device.endpoint().index_on(found);
  const bool stretch = kind == ContextParallel::ring && !options.zigzag;  // as Ulysses has them
  const ContextParallel cut = stretch ? ContextParallel::ulysses : kind;
  hooks.places = hooks.stream = context_places(cut, me, n, sequence_length);
  hooks.sequence_length = sequence_length;
  hooks.attention = [&device, axes, kind, config, options](int layer, const Tensor& q,
                                                           const Tensor& k, const Tensor& v) {
    const std::int64_t heads = q.dim(2) / config.head_size, kv = k.dim(2) / config.head_size;
    return context_attention(device, kind, q, k, v, heads, kv, axes, Mask::causal, options,
                             config.window_of(layer));
  };
}

}  // namespace detail
}  // namespace tinyscale
