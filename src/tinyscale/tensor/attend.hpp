#pragma once
// Attention over keys and values (arXiv 1706.03762), grouped-query (arXiv 2305.13245), and rotary
// positions (arXiv 2104.09864). No [T, S] matrix outlives a row of it: the backward pass
// recomputes from the log-sum-exp of each row (arXiv 2205.14135).

#include <algorithm>  // clamp, min
#include <cstdint>    // int64_t

#include "tinyscale/compute/attention.hpp"
#include "tinyscale/compute/attention_backward.hpp"
#include "tinyscale/compute/rope.hpp"
#include "tinyscale/tensor/reduce.hpp"
#include "tinyscale/tensor/views.hpp"

namespace tinyscale {

// causal: query i of T sees key j of S if j <= i + (S - T), so queries end where keys end.
enum class Mask { none, causal };

namespace detail {

inline kernels::AttentionShape attention_shape(const Tensor& q, const Tensor& k, const Tensor& v,
                                               std::int64_t heads, std::int64_t kv_heads, Mask mask,
                                               std::int64_t window) {
  static const char* const masks[] = {"none", "causal"};
  name_in("attention: mask", masks, mask);
  if (q.dims() != 3 || k.dims() != 3 || k.shape() != v.shape() || q.dim(0) != k.dim(0) ||
      heads < 1 || kv_heads < 1 || heads % kv_heads != 0 || q.dim(2) % heads != 0 ||
      k.dim(2) != q.dim(2) / heads * kv_heads || (mask == Mask::causal && k.dim(1) < q.dim(1))) {
    fail({"attention: q is ", q.shape().text(), ", k is ", k.shape().text(), ", v is ",
          v.shape().text(), " with ", heads, " heads and ", kv_heads,
          " kv heads; right is q [B, T, heads K], k and v [B, S, kv_heads K], heads a ",
          "multiple of kv_heads, and S >= T when causal"});
  }
  if (window < 0 || (window > 0 && mask == Mask::none)) {
    fail({"attention: a window of ", window, " keys", mask == Mask::none ? " without a mask" : "",
          "; 0 (all) is right, or with Mask::causal 1 or more"});
  }
  const std::int64_t seen = window > 0 ? std::min(window, k.dim(1)) : k.dim(1);
  if (seen > most_places) {
    fail({"attention: a query sees ", seen,
          " keys; up to 16777216 are right, more weights of which f32 does not hold the sum"});
  }
  kernels::AttentionShape s;
  s.batch = q.dim(0);
  s.queries = q.dim(1);
  s.keys = k.dim(1);
  s.heads = heads;
  s.kv_heads = kv_heads;
  s.head_size = q.dim(2) / heads;
  s.q_stride = q.stride(1);
  s.k_stride = k.stride(1);
  s.v_stride = v.stride(1);
  s.o_stride = q.dim(2);
  s.q_batch = q.stride(0);
  s.k_batch = k.stride(0);
  s.v_batch = v.stride(0);
  s.o_batch = q.dim(1) * q.dim(2);
  s.causal = mask == Mask::causal ? 1 : 0;
  s.causal_offset = k.dim(1) - q.dim(1);
  s.window = std::min(window, attention_all);
  return s;
}

// Keys that n queries see in all, where the first sees `first`, each one more, at most `most`.
inline double pairs_of_stretch(std::int64_t n, std::int64_t first, std::int64_t most) {
  const std::int64_t rising = std::clamp<std::int64_t>(most - first + 1, 0, n);
  const auto a = static_cast<double>(rising);
  return a * static_cast<double>(first) + a * (a - 1) / 2 +
         static_cast<double>(n - rising) * static_cast<double>(most);
}

// Pairs (query, key) that are really multiplied, over all heads and sequences. Under a window every
// query sees its last key.
inline double attention_pairs(const kernels::AttentionShape& s) {
  const std::int64_t first = s.causal_offset + 1, all = first + s.queries;
  double pairs = static_cast<double>(s.queries) * static_cast<double>(s.keys);
  if (s.causal != 0) {
    pairs = pairs_of_stretch(s.queries, first, s.keys);
    if (s.window > 0) {  // less what is before it
      pairs -= pairs_of_stretch(s.queries, first, all);
      pairs += pairs_of_stretch(s.queries, first, s.window);
    }
  }
  return pairs * static_cast<double>(s.batch) * static_cast<double>(s.heads);
}

inline void record_attention(const OpScope& scope, const char* name,
                             const kernels::AttentionShape& s, const Tensor& q, const Tensor& k,
                             double VectorCost::*pass) {
  if (context().profile == nullptr) {
    return;
  }
  const double pairs = attention_pairs(s), width = static_cast<double>(s.head_size);
  const double exponentials = vector_cost("softmax", pairs, &VectorCost::forward);
  const double nq = static_cast<double>(q.count()), nk = static_cast<double>(k.count());
  const double lse = nq / width;
  if (pass == &VectorCost::forward) {
    scope.done(name, q.shape(), {nq, nk, nk}, {nq, lse}, 4 * pairs * width, exponentials);
  } else {  // reads the output and its gradient too
    scope.done(name, q.shape(), {nq, nq, nq, nk, nk, lse}, {nq, nk, nk}, 10 * pairs * width,
               exponentials);
  }
}

// Where the gradients of q, k, v go: `apart` holds those that nobody asked for or that share a
// slot with one before. 0: written, where each is the first; 1: added.
inline float gradient_places(const Slot (&slots)[3], const Tensor* const (&inputs)[3],
                             Tensor (&apart)[3], float* (&to)[3]) {
  bool first = true;
  for (const Slot& slot : slots) {
    first = first && (!slot || !slot->grad || slot->fresh);
  }
  for (int i = 0; i < 3; ++i) {
    bool shared = !slots[i];
    for (int j = 0; j < i; ++j) {
      shared = shared || slots[i].get() == slots[j].get();
    }
    float beta = 0;
    if (shared) {
      apart[i] = zeros(inputs[i]->shape());
      to[i] = apart[i].data();
    } else {
      to[i] = first ? grad_buffer(slots[i], beta) : grad_buffer(slots[i]);
    }
  }
  return first ? 0.0f : 1.0f;
}

}  // namespace detail

// q [B, T, heads K], k and v [B, S, kv_heads K] give [B, T, heads K]; scores divided by sqrt(K).
// A window: of the keys that a causal mask leaves a query sees the last so many (arXiv 2310.06825,
// section 2); 0: all.
inline Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t heads,
                        std::int64_t kv_heads, Mask mask, std::int64_t window = 0) {
  const kernels::AttentionShape s = detail::attention_shape(q, k, v, heads, kv_heads, mask, window);
  if (detail::recording()) {
    const Tensor all =
        detail::record(Op::attention, {&q, &k, &v}, q.shape(),
                       detail::as_numbers(List<std::int64_t>{heads, kv_heads, s.causal, s.window}));
    return detail::thread_recorder()->part(all, 0, q.shape());
  }
  const bool graph = detail::tracked({&q, &k, &v});  // whose gradients are written row after row
  for (const Tensor* x : {&q, &k, &v}) {
    if (!x->is_contiguous() && (graph || x->stride(2) != 1)) {
      return attention(contiguous(q), contiguous(k), contiguous(v), heads, kv_heads, mask, window);
    }
  }
  const detail::OpScope scope;
  Tensor y(q.shape());
  Tensor lse;  // of no numbers there is none
  if (y.count() > 0) {
    lse = Tensor(Shape{s.batch, heads, s.queries});
    kernels::attention_forward(s, q.origin(), k.origin(), v.origin(), y.data(), lse.data());
  }
  detail::record_attention(scope, "attention", s, q, k, &VectorCost::forward);
  if (graph) {
    detail::attach(
        y, "attention", {&q, &k, &v},
        [s, lse, kq = detail::Kept(q), kk = detail::Kept(k), kv = detail::Kept(v),
         ky = detail::Kept(y), sq = q.slot(), sk = k.slot(), sv = v.slot()](const Tensor& dy) {
          const detail::OpScope backward;
          const detail::Slot slots[3] = {sq, sk, sv};
          const Tensor* const inputs[3] = {&kq, &kk, &kv};
          Tensor apart[3];
          float* to[3];
          const float beta = detail::gradient_places(slots, inputs, apart, to);
          if (kq.count() + kk.count() > 0) {
            kernels::attention_backward(s, kq.data(), kk.data(), kv.data(), ky.data(),
                                        lse.defined() ? lse.data() : nullptr, dy.data(), to[0],
                                        to[1], to[2], beta);
          }
          for (int i = 0; i < 3; ++i) {
            if (slots[i] && apart[i].defined()) {
              detail::add_grad(slots[i], apart[i]);
            }
          }
          detail::record_attention(backward, "attention backward", s, kq, kk,
                                   &VectorCost::backward);
        });
  }
  return y;
}

// What stands at the places of n tokens along one dimension of x: all, a view, or two joined.
inline Tensor tokens_at(const Tensor& x, int dim, const TokenPlaces& places, std::int64_t n) {
  const std::int64_t before = places.before_jump(n), first = places.at(0);
  if (before == 0 || before == n) {
    return first == 0 && n == x.dim(dim) ? x : slice(x, dim, first, first + n);
  }
  const std::int64_t second = places.at(before);
  return concat({slice(x, dim, first, first + before), slice(x, dim, second, second + n - before)},
                dim);
}

// Rotates pairs of x [B, T, heads K] by places.at(t) theta^(-2i/K) / factors[i] (none: 1).
inline Tensor rope(const Tensor& x, std::int64_t head_size, const TokenPlaces& places,
                   float theta = 10000.0f, RopePairs pairs = RopePairs::interleaved,
                   const std::vector<float>& factors = std::vector<float>()) {
  if (x.dims() != 3 || head_size < 2 || head_size % 2 != 0 || x.dim(2) % head_size != 0) {
    detail::fail({"rope: x is ", x.shape().text(), " with head size ", head_size,
                  "; right is [B, T, heads K] with an even K"});
  }
  if (!(theta > 0.0f) || !detail::is_finite(static_cast<double>(theta))) {
    detail::fail(
        {"rope: theta is ", static_cast<double>(theta), "; a finite number above 0 is right"});
  }
  if (!factors.empty() && static_cast<std::int64_t>(factors.size()) != head_size / 2) {
    detail::fail({"rope: ", factors.size(), " factors with head size ", head_size,
                  "; one a pair is right, or none"});
  }
  for (const float factor : factors) {
    if (!detail::is_finite(static_cast<double>(factor)) || !(factor > 0 || factor < 0)) {
      detail::fail({"rope: a factor is ", static_cast<double>(factor),
                    "; finite numbers other than 0 are right"});
    }
  }
  detail::check_places("rope", places, x.dim(1));
  static const char* const ways[] = {"interleaved", "halves"};
  detail::name_in("rope: pairs", ways, pairs);
  if (detail::recording()) {
    List<double> numbers =
        detail::as_numbers(List<std::int64_t>{head_size, pairs == RopePairs::interleaved ? 0 : 1, 0,
                                              places.first, places.jump_at, places.jump});
    numbers.push_back(static_cast<double>(theta));
    for (const float factor : factors) {
      numbers.push_back(static_cast<double>(factor));
    }
    return detail::record(Op::rope, {&x}, x.shape(), numbers);
  }
  if (!x.is_contiguous()) {
    return rope(contiguous(x), head_size, places, theta, pairs, factors);
  }
  const detail::OpScope scope;
  kernels::RopeShape shape;
  shape.batch = x.dim(0);
  shape.tokens = x.dim(1);
  shape.heads = x.dim(2) / head_size;
  shape.head_size = head_size;
  shape.places = places;
  shape.theta = theta;
  shape.pairs = pairs;
  shape.factors = factors.empty() ? nullptr : factors.data();
  Tensor y(x.shape());
  kernels::rope(shape, kernels::RopeTurn::forward, x.data(), y.data());
  scope.done_unary("rope", "rope", x.shape());
  if (detail::tracked({&x})) {
    detail::attach(y, "rope", {&x}, [shape, factors, sx = x.slot()](const Tensor& dy) {
      const detail::OpScope backward;
      kernels::RopeShape back = shape;
      back.factors = factors.empty() ? nullptr : factors.data();
      float beta = 0;
      float* const dx = detail::grad_buffer(sx, beta);
      kernels::rope_backward(back, dy.data(), dx, beta);
      backward.done_priced("rope backward", "rope", dy.shape(), &VectorCost::backward, {dy.count()},
                           {dy.count()});
    });
  }
  return y;
}

}  // namespace tinyscale
