#pragma once
// Ring attention (Liu et al., arXiv 2310.01889): the tokens of every sequence are cut over devices;
// queries stay, keys and values go once around, and each device folds every block that comes:
//   l' = log(exp(l) + exp(l_block)),  O' = exp(l - l') O + exp(l_block - l') O_block.
// Zigzag: of 2N chunks device r has r and 2N - 1 - r, so that under the causal mask all multiply as
// many pairs; what a mask hides altogether is not computed. Backward goes around again, and with
// each block what its gradient came to so far. Under a window chunks meet one by one, queries that
// see none of one's keys are left out, and so are rounds in which nobody sees any (ring_rounds).

#include <algorithm>  // max
#include <cmath>      // exp, fabs, log
#include <cstdint>    // int64_t
#include <limits>     // numeric_limits
#include <vector>     // vector

#include "tinyscale/base/format.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/mesh/device.hpp"
#include "tinyscale/parallel/context_places.hpp"
#include "tinyscale/tensor/attend.hpp"

namespace tinyscale {

struct RingOptions {
  bool zigzag = true;          // false: one stretch a device, the last has most of the work
  DType merge = DType::f32;    // of what is kept between two blocks; bf16 shows what that costs
  CollectiveOptions transfer;  // of keys, values and their gradients
};

namespace detail {

// Queries of a device against keys of another, both counted within their device.
struct RingBlock {
  std::int64_t query = 0, queries = 0;  // the first, and how many
  std::int64_t key = 0, keys = 0;       // likewise
  int causal = 0;
  std::int64_t ahead = 0;  // causal: tokens from the first key to the first query
};

// What device `me` computes when the keys of `owner` are there, of `tokens` each, without a window.
inline RingBlock ring_block(bool zigzag, Mask mask, int me, int owner, std::int64_t tokens) {
  if (mask == Mask::none || me == owner) {
    return {0, tokens, 0, tokens, mask == Mask::causal ? 1 : 0};
  }
  const std::int64_t half = tokens / 2;
  if (owner < me) {  // zigzag: its second chunk stands behind all of mine
    return {0, tokens, 0, zigzag ? half : tokens};
  }
  return {half, zigzag ? tokens - half : 0, 0, tokens};
}

// What the forward and the backward pass have in common.
struct Ring {
  kernels::AttentionShape shape;  // of all queries and keys of a device
  Mask mask = Mask::none;
  RingOptions options;
  int me = 0, devices = 1;
  Axes axes;
  SourceLine where;
  std::vector<int> rounds;  // those with something to do; the first is 0

  std::size_t turns() const { return rounds.size(); }
  // From a turn to the next; after the last one home.
  int shift(std::size_t turn) const {
    return (turn + 1 < turns() ? rounds[turn + 1] : devices) - rounds[turn];
  }
  int owner(int round) const { return modulo(me - round, devices); }
  List<RingBlock> blocks(int round) const {
    if (shape.window == 0) {
      const RingBlock one = ring_block(options.zigzag, mask, me, owner(round), shape.queries);
      return one.queries > 0 ? List<RingBlock>{one} : List<RingBlock>();
    }
    const std::int64_t half = shape.queries / 2;
    List<RingBlock> found;
    add_windows(0, half, owner(round), found);
    add_windows(half, shape.queries - half, owner(round), found);
    return found;
  }
  // Of an own block the first part of the queries, or the rest: what travels meanwhile is hidden
  // behind one of them at either end.
  List<RingBlock> own_part(bool rest) const {
    const std::int64_t half = shape.queries / 2;
    const std::int64_t first = rest ? half : 0, count = rest ? shape.queries - half : half;
    List<RingBlock> found;
    if (shape.window > 0) {
      add_windows(first, count, me, found);
    } else if (count > 0) {
      const bool causal = mask == Mask::causal;
      found.push_back(
          {first, count, 0, causal && !rest ? half : shape.keys, causal ? 1 : 0, first});
    }
    return found;
  }
  kernels::AttentionShape of(const RingBlock& block) const {
    kernels::AttentionShape s = shape;
    s.queries = block.queries;
    s.keys = block.keys;
    s.causal = block.causal;
    s.causal_offset = block.ahead;
    return s;
  }
  Pending send(Endpoint& device, const Tensor& x, std::size_t turn) const {
    const MemoryScope scope(MemoryKind::buffer);
    return start_permute({device, options.transfer, where}, x, axes, shift(turn));
  }

 private:
  std::int64_t place(int device, std::int64_t token) const {  // in the sequence
    const ContextParallel cut = options.zigzag ? ContextParallel::ring : ContextParallel::ulysses;
    return context_places(cut, device, devices, devices * shape.queries).at(token);
  }
  // Queries of one chunk against each chunk of a device's keys.
  void add_windows(std::int64_t query, std::int64_t queries, int from,
                   List<RingBlock>& found) const {
    const std::int64_t chunk = options.zigzag ? shape.keys / 2 : shape.keys;
    for (std::int64_t key = 0; key < shape.keys; key += chunk) {
      const std::int64_t ahead = place(me, query) - place(from, key);
      const std::int64_t see = std::min(queries, chunk + shape.window - 1 - ahead);
      if (ahead >= 0 && see > 0) {
        found.push_back({query, see, key, chunk, 1, ahead});
      }
    }
  }
};

inline void round_all(Tensor& x, DType format) {
  for (std::int64_t i = 0; format != DType::f32 && i < x.count(); ++i) {
    x.data()[i] = round_to(x.data()[i], format);
  }
}

// O and lse of all queries with those of a block of them folded in, a row at a time.
struct RingFold {
  const kernels::AttentionShape& s;
  const RingBlock& block;
  const float *part, *part_lse;
  float *y, *lse;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t row = 0; row < s.batch * s.heads * block.queries; ++row) {
      const std::int64_t i = row % block.queries, head = row / block.queries % s.heads;
      const std::int64_t b = row / block.queries / s.heads;
      float& sum = lse[(b * s.heads + head) * s.queries + block.query + i];
      const float more = part_lse[row], less = std::exp(-std::fabs(more - sum));
      const float keep = (more < sum ? 1.0f : less) / (1.0f + less);
      sum = std::max(sum, more) + std::log(1.0f + less);
      fold<L>(keep, part + (b * block.queries + i) * s.o_stride + head * s.head_size,
              y + b * s.o_batch + (block.query + i) * s.o_stride + head * s.head_size);
    }
  }

  // out = keep out + (1 - keep) in
  template <class L>
  TINYSCALE_INLINE void fold(float keep, const float* in, float* out) const {
    typename L::V old, found, share;
    broadcast<L>(keep, share);
    std::int64_t d = 0;
    for (; d + L::width <= s.head_size; d += L::width) {
      load<L>(out + d, old);
      load<L>(in + d, found);
      store<L>(out + d, found + share * (old - found));
    }
    for (; d < s.head_size; ++d) {
      out[d] = in[d] + keep * (out[d] - in[d]);
    }
  }
};

inline void ring_merge(const Ring& ring, const RingBlock& block, const Tensor& part,
                       const Tensor& part_lse, Tensor& y, Tensor& lse) {
  const OpScope scope;
  run_on_lanes(RingFold{ring.shape, block, part.data(), part_lse.data(), y.data(), lse.data()});
  round_all(y, ring.options.merge);
  round_all(lse, ring.options.merge);
  const double n = static_cast<double>(part.count()), rows = static_cast<double>(part_lse.count());
  scope.done("ring merge", part.shape(), {2 * n, 2 * rows}, {n, rows}, 0, 3 * n + 30 * rows);
}

// The first keys of packed keys and values, for the profile.
inline Tensor keys_of(const Tensor& kv, std::int64_t keys) {
  return slice(slice(kv, 0, 0, 1), 2, 0, keys);
}

// Output and log-sum-exp; kv: keys and values [2, B, T, KV K] of this device. Without a window the
// first block, which has all queries, is written; others are folded in.
inline void ring_forward(Endpoint& device, const Ring& ring, const Tensor& q, Tensor kv, Tensor& y,
                         Tensor& lse) {
  for (std::size_t turn = 0; turn < ring.turns(); ++turn) {
    const bool last = turn + 1 == ring.turns();
    Pending next = last ? Pending() : ring.send(device, kv, turn);
    for (const RingBlock& block : ring.blocks(ring.rounds[turn])) {
      const OpScope scope;
      const kernels::AttentionShape s = ring.of(block);
      const bool whole = turn == 0 && s.window == 0;
      Tensor part = whole ? y : Tensor({s.batch, s.queries, s.o_stride});
      Tensor part_lse = whole ? lse : Tensor({s.batch, s.heads, s.queries});
      kernels::AttentionShape to = s;
      to.o_batch = s.queries * s.o_stride;
      const float* k = kv.data() + block.key * s.k_stride;
      kernels::attention_forward(to, q.data() + block.query * s.q_stride, k, k + kv.count() / 2,
                                 part.data(), part_lse.data());
      record_attention(scope, "ring attention", s, part, keys_of(kv, s.keys), &VectorCost::forward);
      if (!whole) {
        ring_merge(ring, block, part, part_lse, y, lse);
      }
    }
    if (!last) {
      kv = next.wait();
    }
  }
}

// What a block adds to dq [B, T, heads K] and to dkv [2, B, T, KV K], by the output and the
// log-sum-exp of whole rows.
struct RingBackward {
  const Ring& ring;
  const Tensor &q, &y, &lse, &dy;
  Tensor& dq;

  void add(const List<RingBlock>& blocks, const Tensor& kv, Tensor& dkv) const {
    for (const RingBlock& block : blocks) {
      const OpScope scope;
      const kernels::AttentionShape s = ring.of(block);
      const Tensor sums = contiguous(slice(lse, 2, block.query, block.query + s.queries));
      const std::int64_t at_q = block.query * s.q_stride, at_o = block.query * s.o_stride;
      const std::int64_t key = block.key * s.k_stride, value = key + kv.count() / 2;
      kernels::attention_backward(s, q.data() + at_q, kv.data() + key, kv.data() + value,
                                  y.data() + at_o, sums.data(), dy.data() + at_o, dq.data() + at_q,
                                  dkv.data() + key, dkv.data() + value);
      round_all(dq, ring.options.merge);
      record_attention(scope, "ring attention backward", s,
                       slice(q, 1, block.query, block.query + s.queries), keys_of(kv, s.keys),
                       &VectorCost::backward);
    }
  }
};

// The gradient of a block is begun by the device after its owner and comes home from the one
// before; each adds its own while the sum so far is still on its way.
inline Tensor ring_backward(Endpoint& device, const RingBackward& work, Tensor kv) {
  const Ring& ring = work.ring;
  const Tensor home = kv;
  const bool travels = ring.turns() > 1;
  Tensor d_home = zeros(kv.shape());
  Pending next = travels ? ring.send(device, kv, 0) : Pending(), coming;
  work.add(ring.own_part(false), home, d_home);
  for (std::size_t turn = 1; turn < ring.turns(); ++turn) {
    kv = next.wait();
    if (turn + 1 < ring.turns()) {
      next = ring.send(device, kv, turn);
    }
    Tensor dkv = zeros(kv.shape());
    work.add(ring.blocks(ring.rounds[turn]), kv, dkv);
    if (turn > 1) {
      add_(dkv, coming.wait());
    }
    round_all(dkv, ring.options.merge);
    coming = ring.send(device, dkv, turn);
  }
  work.add(ring.own_part(true), home, d_home);
  return travels ? add_(d_home, coming.wait()) : d_home;
}

}  // namespace detail

// q [B, T/N, heads K], k and v [B, T/N, kv_heads K] of this device's tokens, N devices of the axes;
// all of them call it. The output is [B, T/N, heads K]. Each sends 2 R B T/N kv_heads K numbers
// forward, twice that backward, in R = N - 1 rounds, under a window those of ring_rounds().
inline Tensor ring_attention(Device& device, const Tensor& q, const Tensor& k, const Tensor& v,
                             std::int64_t heads, std::int64_t kv_heads, const Axes& axes, Mask mask,
                             const RingOptions& options = RingOptions(), std::int64_t window = 0,
                             SourceLine where = {__builtin_FILE(), __builtin_LINE()}) {
  detail::Endpoint& endpoint = device.endpoint();
  const std::vector<int> found = endpoint.find_axes("ring_attention", axes);
  const int devices = endpoint.size_of(found);
  if (options.merge != DType::f32 && options.merge != DType::bf16) {
    detail::fail({"ring_attention: RingOptions::merge is ", name_of(options.merge),
                  "; f32 or bf16 is right"});
  }
  if (devices == 1) {
    return attention(q, k, v, heads, kv_heads, mask, window);
  }
  if (!q.is_contiguous() || !k.is_contiguous() || !v.is_contiguous()) {
    return ring_attention(device, contiguous(q), contiguous(k), contiguous(v), heads, kv_heads,
                          axes, mask, options, window, where);
  }
  const detail::Ring ring = {detail::attention_shape(q, k, v, heads, kv_heads, mask, window),
                             mask,
                             options,
                             endpoint.index_on(found),
                             devices,
                             axes,
                             where,
                             ring_rounds(options.zigzag, devices, devices * q.dim(1), window)};
  const bool halves = mask == Mask::causal && options.zigzag;
  if (q.dim(1) != k.dim(1) || q.dim(1) % (halves ? 2 : 1) != 0) {
    detail::fail({"ring_attention: ", q.dim(1), " queries and ", k.dim(1), " keys on each of ",
                  devices, " devices of ", endpoint.names_of(found), "; right is as many keys",
                  halves ? ", an even number: two chunks of the sequence" : ""});
  }
  Tensor y = window > 0 ? zeros(q.shape()) : Tensor(q.shape());
  Tensor lse = full({q.dim(0), heads, q.dim(1)}, -std::numeric_limits<float>::infinity());
  Tensor kv;
  {
    const NoGrad copies;
    kv = stack({k, v}, 0);
    detail::ring_forward(endpoint, ring, q, kv, y, lse);
  }
  if (detail::tracked({&q, &k, &v})) {
    detail::attach(y, "ring_attention", {&q, &k, &v},
                   [ring, own = detail::copied_schedule(options.transfer), self = endpoint.self(),
                    kq = detail::Kept(q), kkv = detail::Kept(kv), ky = detail::Kept(y), lse,
                    sq = q.slot(), sk = k.slot(), sv = v.slot()](const Tensor& dy) {
                     Tensor dq = zeros(kq.shape());
                     detail::Ring back = ring;
                     back.options.transfer.schedule = own.get();
                     const Tensor dkv = detail::ring_backward(
                         detail::still_running("backward", self), {back, kq, ky, lse, dy, dq}, kkv);
                     const auto give = [&](const detail::Slot& slot, const Tensor& grad) {
                       if (slot) {
                         detail::add_grad(slot, grad);
                       }
                     };
                     give(sq, dq);
                     give(sk, squeeze(slice(dkv, 0, 0, 1), 0));
                     give(sv, squeeze(slice(dkv, 0, 1, 2), 0));
                   });
  }
  return y;
}

}  // namespace tinyscale
