#pragma once
// What composite ops are made of: each as a function of tensors that calls primitives alone. They
// run like any function, and while a graph is written they write it.

#include <cmath>    // sqrt, pow
#include <cstdint>  // int64_t
#include <vector>   // vector

#include "tinyscale/compile/op_graph.hpp"
#include "tinyscale/tensor/activations.hpp"
#include "tinyscale/tensor/attend.hpp"
#include "tinyscale/tensor/choose.hpp"
#include "tinyscale/tensor/matmul.hpp"
#include "tinyscale/tensor/matmul_format.hpp"
#include "tinyscale/tensor/normalize.hpp"
#include "tinyscale/tensor/reduce.hpp"
#include "tinyscale/tensor/tokens.hpp"
#include "tinyscale/tensor/views.hpp"

namespace tinyscale {
namespace detail {

using Parts = List<Tensor>;  // results of an op, or its operands

inline Tensor one_over(const Tensor& x) { return div(full(Shape{}, 1.0f), x); }
inline Tensor normal_below(const Tensor& x) {  // the normal distribution function
  return 0.5f * (1.0f + erf(x * 0.70710678118654752f));
}
inline Tensor sigmoid_parts(const Tensor& x) { return one_over(1.0f + exp(-x)); }
inline Tensor gelu_tanh_inner(const Tensor& x) {
  return 0.79788456080286536f * (x + 0.044715f * (x * x * x));
}

inline Tensor decompose_element(Op op, const Tensor& x) {
  switch (op) {
    case Op::square: return x * x;
    case Op::relu: return maximum(x, full(Shape{}, 0.0f));
    case Op::gelu: return x * normal_below(x);
    case Op::gelu_slope: return normal_below(x) + 0.39894228040143268f * x * exp(-0.5f * (x * x));
    case Op::gelu_tanh: return 0.5f * x * (1.0f + tanh(gelu_tanh_inner(x)));
    case Op::gelu_tanh_slope: {
      const Tensor t = tanh(gelu_tanh_inner(x));
      const Tensor du = 0.79788456080286536f * (1.0f + 0.134145f * (x * x));
      return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * du;
    }
    case Op::sigmoid: return sigmoid_parts(x);
    case Op::silu: return x * sigmoid_parts(x);
    case Op::silu_slope: {
      const Tensor s = sigmoid_parts(x);
      return s * (1.0f + x * (1.0f - s));
    }
    default: fail({"decompose: ", name_of(op), " is no function of one element"});
  }
}

inline Tensor softmax_parts(const Tensor& x) {
  const Tensor e = exp(x - max(x, -1, KeepDim::yes));
  return e / sum(e, -1, KeepDim::yes);
}

// Along the last dimension, far from 0 too: what all of x have in common never meets the small log.
inline Tensor log_softmax_parts(const Tensor& x) {
  const Tensor c = x - max(x, -1, KeepDim::yes);
  return c - log(sum(exp(c), -1, KeepDim::yes));
}

// log(sum(exp(x))) along the last dimension, which stays.
inline Tensor log_sum_exp(const Tensor& x) {
  const Tensor top = max(x, -1, KeepDim::yes);
  return top + log(sum(exp(x - top), -1, KeepDim::yes));
}

inline List<int> leading_dims(const Tensor& x) {
  List<int> dims;
  for (int i = 0; i + 1 < x.dims(); ++i) {
    dims.push_back(i);
  }
  return dims;
}
inline Shape rows_of(const Tensor& x) {  // one number a row, that broadcasts to x
  Shape shape = x.shape();
  shape.set(-1, 1);
  return shape;
}

// y, mean, 1 / deviation; rms: y, 1 / root of the mean square.
inline Parts decompose_norm(const Parts& in, float epsilon, bool centred) {
  const Tensor& x = in[0];
  const float share = 1.0f / static_cast<float>(x.dim(-1));
  const Shape flat = {x.count() / x.dim(-1)};
  const Tensor mean = centred ? sum(x, -1, KeepDim::yes) * share : Tensor();
  const Tensor c = centred ? x - mean : x;
  const Tensor rstd = one_over(sqrt(sum(c * c, -1, KeepDim::yes) * share + epsilon));
  Tensor y = c * rstd * in[1];
  y = in.size() > 2 ? y + in[2] : y;
  return centred ? Parts{y, reshape(mean, flat), reshape(rstd, flat)}
                 : Parts{y, reshape(rstd, flat)};
}

// dx, dw, db of (x, w, mean, 1 / deviation, dy); rms: dx, dw of (x, w, 1 / root, dy).
inline Parts decompose_norm_backward(const Parts& in, bool centred) {
  const Tensor& x = in[0];
  const Tensor& dy = in.back();
  const float share = 1.0f / static_cast<float>(x.dim(-1));
  const Tensor rstd = reshape(in[in.size() - 2], rows_of(x));
  const Tensor c = (centred ? x - reshape(in[2], rows_of(x)) : x) * rstd;
  const Tensor g = dy * in[1];
  const Tensor slope = c * (sum(g * c, -1, KeepDim::yes) * share);
  const Tensor dx = rstd * (centred ? g - sum(g, -1, KeepDim::yes) * share - slope : g - slope);
  const Tensor dw = sum(dy * c, leading_dims(x));
  return centred ? Parts{dx, dw, sum(dy, leading_dims(x))} : Parts{dx, dw};
}

// 1 where a row counts, else 0, [rows, 1]; how many count, at least 1.
struct CountedRows {
  Tensor valid, count;
  explicit CountedRows(const Tensor& targets)
      : valid(1.0f - equal(reshape(targets, {targets.count(), 1}), full(Shape{}, -1.0f))),
        count(maximum(sum(valid), full(Shape{}, 1.0f))) {}
};
// 1 at each row's target, which is taken from the classes: that refuses what is none of them.
inline Tensor one_hot(const Tensor& targets, const CountedRows& rows, std::int64_t classes) {
  const Tensor all = arange(classes), column = reshape(targets, {targets.count(), 1});
  const Tensor ids = where(rows.valid, column, full(Shape{}, 0.0f));
  const Tensor taken = embedding(reshape(all, {classes, 1}), reshape(ids, {targets.count()}));
  return equal(all, taken);
}

inline Tensor decompose_cross_entropy(const Tensor& logits, const Tensor& targets) {
  const Tensor x = reshape(logits, {logits.count() / logits.dim(-1), logits.dim(-1)});
  const CountedRows rows(targets);
  const Tensor zero = full(Shape{}, 0.0f), c = x - max(x, -1, KeepDim::yes);
  const Tensor hit = sum(where(one_hot(targets, rows, x.dim(1)), c, zero), -1, KeepDim::yes);
  const Tensor losses = log(sum(exp(c), -1, KeepDim::yes)) - hit;  // as above
  return sum(where(rows.valid, losses, zero)) / rows.count;
}

// dlogits of (logits, targets, dy).
inline Tensor decompose_cross_entropy_backward(const Parts& in) {
  const Tensor x = reshape(in[0], {in[0].count() / in[0].dim(-1), in[0].dim(-1)});
  const CountedRows rows(in[1]);
  const Tensor slope = softmax_parts(x) - one_hot(in[1], rows, x.dim(1));
  const Tensor dx = where(rows.valid, slope * (in[2] / rows.count), full(Shape{}, 0.0f));
  return reshape(dx, in[0].shape());
}

inline Tensor decompose_dropout(const Tensor& x, const List<double>& numbers) {
  const float p = static_cast<float>(numbers[0]);
  Tensor chance;
  if (recording()) {
    chance = record(Op::uniform, {}, x.shape(), numbers);
  } else {
    chance = Tensor(x.shape());
    const DropPlaces at = drop_places(numbers);
    draw_places(chance.data(), seed_from(numbers[1], numbers[2]), at);
  }
  const Tensor kept = 1.0f - less(chance, full(Shape{}, p));
  return x * (kept * (1.0f / (1.0f - p)));
}

// Turns by tables of cosines and sines, which are constants.
inline Tensor decompose_rope(const Tensor& x, const List<double>& numbers) {
  const auto whole = [&numbers](std::size_t i) { return static_cast<std::int64_t>(numbers[i]); };
  const std::int64_t time = x.dim(1), size = whole(0), half = size / 2;
  const bool interleaved = whole(1) == 0;
  const TokenPlaces places(whole(3), whole(4), whole(5));
  const float sign = whole(2) == 0 ? 1.0f : -1.0f;
  Tensor cosines, sines;
  {
    const RecorderScope eager(nullptr);
    cosines = Tensor(interleaved ? Shape{time, 1, half, 1} : Shape{time, 1, 1, half});
    sines = Tensor(cosines.shape());
    for (std::int64_t t = 0; t < time; ++t) {
      for (std::int64_t i = 0; i < half; ++i) {
        const double by = numbers.size() > 7 ? numbers[7 + static_cast<std::size_t>(i)] : 1.0;
        const double power = -2.0 * static_cast<double>(i) / static_cast<double>(size);
        const double angle = static_cast<double>(places.at(t)) * std::pow(numbers[6], power) / by;
        cosines.data()[t * half + i] = static_cast<float>(std::cos(angle));
        sines.data()[t * half + i] = sign * static_cast<float>(std::sin(angle));
      }
    }
  }
  const Shape pairs = interleaved ? Shape{x.dim(0), time, x.dim(2) / size, half, 2}
                                  : Shape{x.dim(0), time, x.dim(2) / size, 2, half};
  const int along = interleaved ? 4 : 3;
  const Tensor both = reshape(x, pairs);
  const Tensor a = slice(both, along, 0, 1), b = slice(both, along, 1, 2);
  return reshape(concat({a * cosines - b * sines, a * sines + b * cosines}, along), x.shape());
}

// [B, T, heads K] as [B, KV, heads of each, T, K].
inline Tensor split_heads(const Tensor& x, std::int64_t kv, std::int64_t each) {
  const std::int64_t size = x.dim(2) / (kv * each);
  return permute(reshape(x, {x.dim(0), x.dim(1), kv, each, size}), {0, 2, 3, 1, 4});
}
inline Tensor join_heads(const Tensor& x) {
  const Tensor y = permute(x, {0, 3, 1, 2, 4});
  return reshape(y, {y.dim(0), y.dim(1), y.dim(2) * y.dim(3) * y.dim(4)});
}

struct AttentionParts {
  Tensor q, k, v;   // [B, KV, heads of each, T, K]
  Tensor scores;    // [B, KV, heads of each, T, S], divided by sqrt(K), -inf where masked
  float by = 1.0f;  // 1 / sqrt(K)

  AttentionParts(const Parts& in, const List<double>& numbers) {
    const auto heads = static_cast<std::int64_t>(numbers[0]);
    const auto kv = static_cast<std::int64_t>(numbers[1]);
    q = split_heads(in[0], kv, heads / kv);
    k = split_heads(in[1], kv, 1);
    v = split_heads(in[2], kv, 1);
    by = static_cast<float>(1.0 / std::sqrt(static_cast<double>(q.dim(-1))));
    scores = matmul(q, transpose(k, -1, -2)) * by;
    if (numbers[2] > 0) {
      const std::int64_t t = q.dim(3), s = k.dim(3);
      const Tensor rows = reshape(arange(t), {t, 1}) + static_cast<float>(s - t);
      const float infinity = std::numeric_limits<float>::infinity();
      const Tensor keys = arange(s), hidden = full(Shape{}, -infinity);
      scores = where(less(rows, keys), hidden, scores);
      if (numbers[3] > 0) {  // a window
        scores = where(less(keys, rows + static_cast<float>(1 - numbers[3])), hidden, scores);
      }
    }
  }
};

inline Parts decompose_attention(const Parts& in, const List<double>& numbers) {
  const AttentionParts a(in, numbers);
  if (a.k.dim(3) == 0) {  // no keys: zeros, and no largest score
    return {join_heads(matmul(a.scores, a.v)),
            full({in[0].dim(0), static_cast<std::int64_t>(numbers[0]), in[0].dim(1)}, 0.0f)};
  }
  const Tensor lse = log_sum_exp(a.scores);
  const Tensor y = join_heads(matmul(softmax_parts(a.scores), a.v));
  return {y, reshape(lse, {in[0].dim(0), static_cast<std::int64_t>(numbers[0]), in[0].dim(1)})};
}

// dq, dk, dv of (q, k, v, y, lse, dy).
inline Parts decompose_attention_backward(const Parts& in, const List<double>& numbers) {
  const AttentionParts a(in, numbers);
  const auto heads = static_cast<std::int64_t>(numbers[0]);
  const auto kv = static_cast<std::int64_t>(numbers[1]);
  const Tensor dy = split_heads(in[5], kv, heads / kv);
  const Tensor y = split_heads(in[3], kv, heads / kv);
  Shape rows = a.scores.shape();
  rows.set(-1, 1);
  const Tensor p = exp(a.scores - reshape(in[4], rows));
  const Tensor dp = matmul(dy, transpose(a.v, -1, -2));
  const Tensor ds = p * (dp - sum(dy * y, -1, KeepDim::yes)) * a.by;
  const Tensor dq = matmul(ds, a.k);
  const Tensor dk = sum(matmul(transpose(ds, -1, -2), a.q), 2, KeepDim::yes);
  const Tensor dv = sum(matmul(transpose(p, -1, -2), dy), 2, KeepDim::yes);
  return {join_heads(dq), join_heads(dk), join_heads(dv)};
}

// Parameter, first and second moment, of (parameter, gradient, both moments, factors [6] as in
// kernels::AdamWFactors: beta1, beta2, epsilon, decay, rate, root; factor of the gradient [], where
// NaN leaves all as it is).
inline Parts decompose_adamw(const Parts& in) {
  const auto factor = [&in](int i) { return reshape(slice(in[4], 0, i, i + 1), Shape{}); };
  const Tensor b1 = factor(0), b2 = factor(1);
  const Tensor g = in[1] * in[5];
  const Tensor m = b1 * in[2] + (1.0f - b1) * g;
  const Tensor v = b2 * in[3] + (1.0f - b2) * (g * g);
  const Tensor root = sqrt(v) * factor(5) + factor(2);
  const Tensor p = in[0] * factor(3) - factor(4) * (m / root), go = equal(in[5], in[5]);
  return {where(go, p, in[0]), where(go, m, in[2]), where(go, v, in[3])};
}

// The results of a composite op, from primitives. Its products read f32, as its kernel does.
inline Parts decompose(Op op, const Parts& in, const List<double>& numbers) {
  const MatmulFormat whole{ProductFormat()};
  switch (op) {
    case Op::softmax: return {softmax_parts(in[0])};
    case Op::log_softmax: return {log_softmax_parts(in[0])};
    case Op::layer_norm: return decompose_norm(in, static_cast<float>(numbers[0]), true);
    case Op::rms_norm: return decompose_norm(in, static_cast<float>(numbers[0]), false);
    case Op::layer_norm_backward: return decompose_norm_backward(in, true);
    case Op::rms_norm_backward: return decompose_norm_backward(in, false);
    case Op::cross_entropy: return {decompose_cross_entropy(in[0], in[1])};
    case Op::cross_entropy_backward: return {decompose_cross_entropy_backward(in)};
    case Op::dropout: return {decompose_dropout(in[0], numbers)};
    case Op::rope: return {decompose_rope(in[0], numbers)};
    case Op::attention: return decompose_attention(in, numbers);
    case Op::attention_backward: return decompose_attention_backward(in, numbers);
    case Op::linear_cross_entropy:
      return {decompose_cross_entropy(matmul_transposed(in[0], in[1]), in[2])};
    case Op::linear_cross_entropy_all: {
      const Tensor logits = matmul_transposed(in[0], in[1]);
      const Tensor one = full(Shape{}, 1.0f);
      const Tensor d = decompose_cross_entropy_backward({logits, in[2], one});
      const Tensor rows = reshape(d, {d.count() / d.dim(-1), d.dim(-1)});
      const Tensor x = reshape(in[0], {rows.dim(0), in[0].dim(-1)});
      return {decompose_cross_entropy(logits, in[2]), matmul(d, in[1]),
              matmul(transpose(rows, 0, 1), x)};
    }
    case Op::adamw: return decompose_adamw(in);
    default: return {decompose_element(op, in[0])};
  }
}

}  // namespace detail
}  // namespace tinyscale
