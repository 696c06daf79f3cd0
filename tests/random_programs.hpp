#pragma once
// Random programs over every op that a capture records, as lists of lines that can be run, eager or
// captured, and printed as C++.
#include "tinyscale.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace random_programs {

namespace ts = tinyscale;

// Small numbers from a seed.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed * 0xD1342543DE82EF95U + 77) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15U);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  int below(int n) { return static_cast<int>(next() % static_cast<std::uint64_t>(n)); }
  bool percent(int p) { return below(100) < p; }
  float signed_unit() { return static_cast<float>(below(2001) - 1000) / 1000.0f; }

 private:
  std::uint64_t state_;
};

enum class Do {
  leaf,
  unary,   // n: which
  scalar,  // n: which, f
  binary,  // n: which
  where,
  masked_fill,
  sum,   // n: keep, dims..
  mean,  // the same
  total,
  max,     // n: keep, dim
  argmax,  // the same
  softmax,
  log_softmax,
  layer_norm,
  rms_norm,
  cross_entropy,
  linear_loss,
  matmul,
  matmul_transposed,
  linear,
  attention,     // n: heads, kv heads, causal
  rope,          // n: head size, halves
  dropout,       // f, n: seed
  embedding,     // ids in a tensor
  embedding_of,  // ids in a list: n
  index_select,  // n: dim, ids..
  gather,        // n: dim, ids.. of the shape of x
  scatter_add,   // the same
  reshape,       // n: shape
  permute,       // n: order
  slice,         // n: dim, begin, end, step
  broadcast_to,  // n: shape
  squeeze,       // n: dim
  unsqueeze,
  split,   // n: dim, size, which
  concat,  // n: dim
  stack,
  pad,  // n: dim, begin, size, step
  detach,
  copy,
  clone,
  contiguous,
  full,  // n: shape, f
  arange,
  einsum,     // n: which
  parameter,  // of a recorded tensor
  // of no value
  write,     // n: which, f; of: target and perhaps a source
  backward,  // n: which
  zero_grad,
  // what a parameter has gathered
  grad,
};

// How the numbers of a leaf lie.
enum class Lies { dense, turned, sliced, repeated };
enum class Numbers { normal, positive, whole, ids, targets, with_nan };

struct Line {
  Do what = Do::leaf;
  std::vector<int> of;
  std::vector<std::int64_t> n;
  float f = 0;
  bool no_grad = false;
  bool exact = false;  // the same bits however it is computed
  ts::Shape shape;
  // of a leaf
  bool given = false, grad = false;
  Lies lies = Lies::dense;
  Numbers numbers = Numbers::normal;
  int below = 0;  // of ids
};

struct Program {
  std::uint64_t seed = 0;
  std::vector<Line> lines;
  std::vector<int> outputs;
  bool outside = true;  // backward through the results

  bool has(Do what) const {
    for (const Line& line : lines) {
      if (line.what == what) {
        return true;
      }
    }
    return false;
  }
  // Differences far below the size of numbers become visible.
  bool amplifies() const { return has(Do::layer_norm) || has(Do::rms_norm); }
  bool has_effects() const {
    return has(Do::write) || has(Do::backward) || has(Do::zero_grad) || has(Do::grad);
  }
};

inline std::size_t at(int i) { return static_cast<std::size_t>(i); }

const char* const unary_names[] = {"neg",  "exp",     "log",     "sqrt",      "tanh",
                                   "erf",  "sigmoid", "gelu",    "gelu_tanh", "silu",
                                   "relu", "square",  "inverse", "abs"};
const char* const binary_names[] = {"add",     "sub",     "mul",  "div",  "maximum",
                                    "minimum", "greater", "less", "equal"};
const char* const scalar_names[] = {"x + f", "x * f", "f - x", "x / f", "pow"};
const char* const write_names[] = {"add_", "sub_", "mul_", "copy_", "scale_", "fill_"};
const char* const einsums[] = {"ij,jk->ik", "ij,kj->ik", "bij,bjk->bik"};

inline ts::List<int> ints(const std::vector<std::int64_t>& n, std::size_t from) {
  ts::List<int> out;
  for (std::size_t i = from; i < n.size(); ++i) {
    out.push_back(static_cast<int>(n[i]));
  }
  return out;
}
inline std::vector<std::int32_t> ids_from(const std::vector<std::int64_t>& n, std::size_t from) {
  std::vector<std::int32_t> out;
  for (std::size_t i = from; i < n.size(); ++i) {
    out.push_back(static_cast<std::int32_t>(n[i]));
  }
  return out;
}
inline ts::Shape shape_from(const std::vector<std::int64_t>& n) {
  ts::Shape shape;
  for (const std::int64_t size : n) {
    shape.push_back(size);
  }
  return shape;
}
inline std::vector<std::int64_t> sizes_of(const ts::Shape& shape) {
  std::vector<std::int64_t> out;
  for (const std::int64_t size : shape) {
    out.push_back(size);
  }
  return out;
}

inline ts::Tensor apply_unary(int which, const ts::Tensor& x) {
  switch (which) {
    case 0: return ts::neg(x);
    case 1: return ts::exp(x);
    case 2: return ts::log(x);
    case 3: return ts::sqrt(x);
    case 4: return ts::tanh(x);
    case 5: return ts::erf(x);
    case 6: return ts::sigmoid(x);
    case 7: return ts::gelu(x);
    case 8: return ts::gelu_tanh(x);
    case 9: return ts::silu(x);
    case 10: return ts::relu(x);
    case 11: return ts::square(x);
    case 13: return ts::abs(x);
    default: return ts::full({}, 1.0f) / x;
  }
}
inline ts::Tensor apply_binary(int which, const ts::Tensor& a, const ts::Tensor& b) {
  switch (which) {
    case 0: return a + b;
    case 1: return a - b;
    case 2: return a * b;
    case 3: return a / b;
    case 4: return ts::maximum(a, b);
    case 5: return ts::minimum(a, b);
    case 6: return ts::greater(a, b);
    case 7: return ts::less(a, b);
    default: return ts::equal(a, b);
  }
}
inline ts::Tensor apply_scalar(int which, const ts::Tensor& x, float f) {
  switch (which) {
    case 0: return x + f;
    case 1: return x * f;
    case 2: return f - x;
    case 3: return x / f;
    default: return ts::pow(x, f);
  }
}
inline void apply_write(int which, const ts::Tensor& x, const ts::Tensor& y, float f) {
  const ts::NoGrad no_gradient;
  switch (which) {
    case 0: ts::add_(x, y); return;
    case 1: ts::sub_(x, y); return;
    case 2: ts::mul_(x, y); return;
    case 3: ts::copy_(x, y); return;
    case 4: ts::scale_(x, f); return;
    default: ts::fill_(x, f); return;
  }
}

// One line; `v` are the values before it.
inline ts::Tensor run_line(const Line& line, const std::vector<ts::Tensor>& v) {
  const auto x = [&](std::size_t i) -> const ts::Tensor& { return v[at(line.of[i])]; };
  const auto dim = [&](std::size_t i) { return static_cast<int>(line.n[i]); };
  const auto keep = [&] { return line.n[0] != 0 ? ts::KeepDim::yes : ts::KeepDim::no; };
  switch (line.what) {
    case Do::leaf: return ts::Tensor();
    case Do::unary: return apply_unary(dim(0), x(0));
    case Do::scalar: return apply_scalar(dim(0), x(0), line.f);
    case Do::binary: return apply_binary(dim(0), x(0), x(1));
    case Do::where: return ts::where(x(0), x(1), x(2));
    case Do::masked_fill: return ts::masked_fill(x(0), x(1), line.f);
    case Do::sum: return ts::sum(x(0), ints(line.n, 1), keep());
    case Do::mean: return ts::mean(x(0), ints(line.n, 1), keep());
    case Do::total: return ts::sum(x(0));
    case Do::max: return ts::max(x(0), dim(1), keep());
    case Do::argmax: return ts::argmax(x(0), dim(1), keep());
    case Do::softmax: return ts::softmax(x(0));
    case Do::log_softmax: return ts::log_softmax(x(0));
    case Do::layer_norm:
      return ts::layer_norm(x(0), x(1), line.of.size() > 2 ? x(2) : ts::Tensor(), 1e-2f);
    case Do::rms_norm: return ts::rms_norm(x(0), x(1), 1e-2f);
    case Do::cross_entropy: return ts::cross_entropy(x(0), x(1));
    case Do::linear_loss: return ts::linear_cross_entropy(x(0), x(1), x(2));
    case Do::matmul: return ts::matmul(x(0), x(1));
    case Do::matmul_transposed: return ts::matmul_transposed(x(0), x(1));
    case Do::linear: return ts::linear(x(0), x(1), line.of.size() > 2 ? x(2) : ts::Tensor());
    case Do::attention:
      return ts::attention(x(0), x(1), x(2), line.n[0], line.n[1],
                           line.n[2] != 0 ? ts::Mask::causal : ts::Mask::none);
    case Do::rope:
      return ts::rope(x(0), line.n[0], 0, 100.0f,
                      line.n[1] != 0 ? ts::RopePairs::halves : ts::RopePairs::interleaved);
    case Do::dropout: return ts::dropout(x(0), line.f, static_cast<std::uint64_t>(line.n[0]));
    case Do::embedding: return ts::embedding(x(0), x(1));
    case Do::embedding_of:
      return ts::embedding(x(0), ids_from(line.n, 0), {static_cast<std::int64_t>(line.n.size())});
    case Do::index_select: return ts::index_select(x(0), dim(0), ids_from(line.n, 1));
    case Do::gather: return ts::gather(x(0), dim(0), ids_from(line.n, 1), x(0).shape());
    case Do::scatter_add: return ts::scatter_add(x(0), dim(0), ids_from(line.n, 1), x(1));
    case Do::reshape: return ts::reshape(x(0), shape_from(line.n));
    case Do::permute: return ts::permute(x(0), ints(line.n, 0));
    case Do::slice: return ts::slice(x(0), dim(0), line.n[1], line.n[2], line.n[3]);
    case Do::broadcast_to: return ts::broadcast_to(x(0), shape_from(line.n));
    case Do::squeeze: return ts::squeeze(x(0), dim(0));
    case Do::unsqueeze: return ts::unsqueeze(x(0), dim(0));
    case Do::split: {
      const std::vector<ts::Tensor> parts = ts::split(x(0), line.n[1], dim(0));
      return parts.empty() ? x(0) : parts[at(dim(2)) % parts.size()];
    }
    case Do::concat:
    case Do::stack: {
      std::vector<ts::Tensor> parts;
      for (std::size_t i = 0; i < line.of.size(); ++i) {
        parts.push_back(x(i));
      }
      return line.what == Do::concat ? ts::concat(parts, dim(0)) : ts::stack(parts, dim(0));
    }
    case Do::pad: return ts::pad(x(0), dim(0), line.n[1], line.n[2], line.n[3]);
    case Do::detach: return x(0).detach();
    case Do::copy: return ts::copy(x(0));
    case Do::clone: return x(0).clone();
    case Do::contiguous: return ts::contiguous(x(0));
    case Do::full: return ts::full(shape_from(line.n), line.f);
    case Do::arange: return ts::arange(line.n[0]);
    case Do::einsum: return ts::einsum(einsums[line.n[0]], x(0), x(1));
    case Do::parameter: return ts::parameter(x(0));
    case Do::write:
      apply_write(dim(0), x(0), line.of.size() > 1 ? x(1) : ts::Tensor(), line.f);
      return ts::Tensor();
    case Do::backward:
      if (line.n[0] == 0) {
        ts::sum(x(0)).backward();
      } else if (line.n[0] == 1) {
        ts::sum(ts::square(x(0))).backward();
      } else {
        x(0).backward(x(0).detach());
      }
      return ts::Tensor();
    case Do::zero_grad: x(0).zero_grad(); return ts::Tensor();
    case Do::grad: {
      const ts::Tensor grad = x(0).grad();
      return grad.defined() ? grad * 1.0f : ts::zeros(x(0).shape());
    }
  }
  return ts::Tensor();
}

// ---- as text

inline std::string list_text(const std::vector<std::int64_t>& n, std::size_t from = 0) {
  std::string out = "{";
  for (std::size_t i = from; i < n.size(); ++i) {
    out += (i > from ? ", " : "") + std::to_string(n[i]);
  }
  return out + "}";
}

inline std::string leaf_text(const Line& line) {
  const char* const lies[] = {"", ", turned", ", sliced", ", repeated"};
  const char* const numbers[] = {"", ", positive", ", whole", ", ids", ", targets", ", with NaN"};
  return std::string(line.given ? "input" : "captured") +
         (line.grad ? ", gathers a gradient" : "") + lies[static_cast<int>(line.lies)] +
         numbers[static_cast<int>(line.numbers)] + ", " + line.shape.text();
}

inline std::string line_text(const Line& line) {
  const auto x = [&](std::size_t i) { return "v" + std::to_string(line.of[i]); };
  const std::string f = ts::detail::printed('g', 9, static_cast<double>(line.f)) + "f";
  std::string all;
  for (std::size_t i = 0; i < line.of.size(); ++i) {
    all += (i > 0 ? ", " : "") + x(i);
  }
  const std::string n0 = line.n.empty() ? "" : std::to_string(line.n[0]);
  const std::string rest = list_text(line.n, 1);
  const bool kept = !line.n.empty() && line.n[0] != 0;
  const std::string keep = kept ? ", KeepDim::yes" : "";
  switch (line.what) {
    case Do::leaf: return "";
    case Do::unary:
      return line.n[0] == 12 ? "full({}, 1.0f) / " + x(0)
                             : std::string(unary_names[line.n[0]]) + "(" + all + ")";
    case Do::scalar:
      switch (line.n[0]) {
        case 0: return x(0) + " + " + f;
        case 1: return x(0) + " * " + f;
        case 2: return f + " - " + x(0);
        case 3: return x(0) + " / " + f;
        default: return "pow(" + x(0) + ", " + f + ")";
      }
    case Do::binary: return std::string(binary_names[line.n[0]]) + "(" + all + ")";
    case Do::where: return "where(" + all + ")";
    case Do::masked_fill: return "masked_fill(" + all + ", " + f + ")";
    case Do::sum: return "sum(" + all + ", List<int>" + rest + keep + ")";
    case Do::mean: return "mean(" + all + ", List<int>" + rest + keep + ")";
    case Do::total: return "sum(" + all + ")";
    case Do::max: return "max(" + all + ", " + std::to_string(line.n[1]) + keep + ")";
    case Do::argmax: return "argmax(" + all + ", " + std::to_string(line.n[1]) + keep + ")";
    case Do::softmax: return "softmax(" + all + ")";
    case Do::log_softmax: return "log_softmax(" + all + ")";
    case Do::layer_norm:
      return "layer_norm(" + all + (line.of.size() > 2 ? "" : ", Tensor()") + ", 1e-2f)";
    case Do::rms_norm: return "rms_norm(" + all + ", 1e-2f)";
    case Do::cross_entropy: return "cross_entropy(" + all + ")";
    case Do::linear_loss: return "linear_cross_entropy(" + all + ")";
    case Do::matmul: return "matmul(" + all + ")";
    case Do::matmul_transposed: return "matmul_transposed(" + all + ")";
    case Do::linear: return "linear(" + all + (line.of.size() > 2 ? "" : ", Tensor()") + ")";
    case Do::attention:
      return "attention(" + all + ", " + n0 + ", " + std::to_string(line.n[1]) +
             (line.n[2] != 0 ? ", Mask::causal)" : ", Mask::none)");
    case Do::rope:
      return "rope(" + all + ", " + n0 +
             ", 0, 100.0f, RopePairs::" + (line.n[1] != 0 ? "halves)" : "interleaved)");
    case Do::dropout: return "dropout(" + all + ", " + f + ", " + n0 + ")";
    case Do::embedding: return "embedding(" + all + ")";
    case Do::embedding_of:
      return "embedding(" + all + ", " + list_text(line.n) + ", {" + std::to_string(line.n.size()) +
             "})";
    case Do::index_select: return "index_select(" + all + ", " + n0 + ", " + rest + ")";
    case Do::gather: return "gather(" + all + ", " + n0 + ", " + rest + ", " + x(0) + ".shape())";
    case Do::scatter_add:
      return "scatter_add(" + x(0) + ", " + n0 + ", " + rest + ", " + x(1) + ")";
    case Do::reshape: return "reshape(" + all + ", " + list_text(line.n) + ")";
    case Do::permute: return "permute(" + all + ", " + list_text(line.n) + ")";
    case Do::slice:
      return "slice(" + all + ", " + n0 + ", " + std::to_string(line.n[1]) + ", " +
             std::to_string(line.n[2]) + ", " + std::to_string(line.n[3]) + ")";
    case Do::broadcast_to: return "broadcast_to(" + all + ", " + list_text(line.n) + ")";
    case Do::squeeze: return "squeeze(" + all + ", " + n0 + ")";
    case Do::unsqueeze: return "unsqueeze(" + all + ", " + n0 + ")";
    case Do::split:
      return "split(" + all + ", " + std::to_string(line.n[1]) + ", " + n0 + ")[" +
             std::to_string(line.n[2]) + "]";
    case Do::concat: return "concat({" + all + "}, " + n0 + ")";
    case Do::stack: return "stack({" + all + "}, " + n0 + ")";
    case Do::pad:
      return "pad(" + all + ", " + n0 + ", " + std::to_string(line.n[1]) + ", " +
             std::to_string(line.n[2]) + ", " + std::to_string(line.n[3]) + ")";
    case Do::detach: return x(0) + ".detach()";
    case Do::copy: return "copy(" + all + ")";
    case Do::clone: return x(0) + ".clone()";
    case Do::contiguous: return "contiguous(" + all + ")";
    case Do::full: return "full(" + list_text(line.n) + ", " + f + ")";
    case Do::arange: return "arange(" + n0 + ")";
    case Do::einsum: return std::string("einsum(\"") + einsums[line.n[0]] + "\", " + all + ")";
    case Do::parameter: return "parameter(" + all + ")";
    case Do::write:
      return std::string(write_names[line.n[0]]) + "(" + all + (line.n[0] > 3 ? ", " + f : "") +
             ")";
    case Do::backward:
      return line.n[0] == 0   ? "sum(" + all + ").backward()"
             : line.n[0] == 1 ? "sum(square(" + all + ")).backward()"
                              : all + ".backward(" + all + ".detach())";
    case Do::zero_grad: return x(0) + ".zero_grad()";
    case Do::grad:
      return x(0) + ".grad().defined() ? " + x(0) + ".grad() * 1.0f : zeros(" + x(0) + ".shape())";
  }
  return "";
}

inline std::string text(const Program& p) {
  std::string out = "// seed " + std::to_string(p.seed) + "\n";
  int inputs = 0;
  for (std::size_t i = 0; i < p.lines.size(); ++i) {
    const Line& line = p.lines[i];
    const std::string v = "v" + std::to_string(i);
    if (line.what == Do::leaf) {
      const std::string from =
          line.given ? "in[" + std::to_string(inputs++) + "]" : "w" + std::to_string(i);
      out += "const Tensor " + v + " = " + from + ";  // " + leaf_text(line) + "\n";
      continue;
    }
    const bool value =
        line.what != Do::write && line.what != Do::backward && line.what != Do::zero_grad;
    const bool off = line.no_grad || line.what == Do::write;
    if (value) {
      out += off ? "Tensor " + v + "; { NoGrad off; " + v + " = " : "const Tensor " + v + " = ";
    } else {
      out += off ? "{ NoGrad off; " : "";
    }
    out += line_text(line) + (off ? "; }" : ";");
    out += value ? "  // " + line.shape.text() + "\n" : "\n";
  }
  out += "return {";
  for (std::size_t i = 0; i < p.outputs.size(); ++i) {
    out += (i > 0 ? ", v" : "v") + std::to_string(p.outputs[i]);
  }
  return out + "};\n";
}

// ---- the numbers of leaves

struct Leaves {
  std::vector<ts::Tensor> view;  // of each line: what the program sees; empty: no leaf
  std::vector<ts::Tensor> base;  // what holds the numbers, and gathers the gradient
};

inline ts::Tensor leaf_numbers(const Line& line, const ts::Shape& shape, std::uint64_t seed,
                               float jitter) {
  Dice dice(seed);
  Dice shake(seed + 13);
  ts::Tensor x(shape);
  for (std::int64_t i = 0; i < x.count(); ++i) {
    float& to = x.data()[i];
    const float unit = dice.signed_unit();
    const int whole = dice.below(1000);
    switch (line.numbers) {
      case Numbers::normal: to = 1.7f * unit; break;
      case Numbers::positive: to = 1.25f + 0.9f * unit; break;
      case Numbers::whole: to = static_cast<float>(whole % 5 - 2); break;
      case Numbers::ids: to = static_cast<float>(whole % std::max(line.below, 1)); break;
      case Numbers::targets: to = static_cast<float>(whole % (line.below + 1) - 1); break;
      case Numbers::with_nan:
        to = whole % 4 == 0 ? std::numeric_limits<float>::quiet_NaN() : 1.7f * unit;
        break;
    }
    const float by = jitter * shake.signed_unit();
    to *= line.numbers < Numbers::whole || line.numbers == Numbers::with_nan ? 1.0f + by : 1.0f;
  }
  return x;
}

// A leaf of that shape, as it lies.
inline void make_leaf(const Line& line, const ts::Shape& shape, std::uint64_t seed, float jitter,
                      ts::Tensor& view, ts::Tensor& base) {
  ts::Shape stored = shape;
  const int d = shape.size();
  const Lies lies = d == 0 || (d < 2 && line.lies == Lies::turned) ? Lies::dense : line.lies;
  if (lies == Lies::turned) {
    stored.set(d - 1, shape[d - 2]);
    stored.set(d - 2, shape[d - 1]);
  } else if (lies == Lies::sliced) {
    stored.set(d - 1, 2 * shape[d - 1] + 1);
  } else if (lies == Lies::repeated) {
    stored.set(0, 1);
  }
  base = leaf_numbers(line, stored, seed, jitter);
  base = line.grad ? ts::parameter(base) : base;
  view = lies == Lies::turned     ? ts::transpose(base, d - 1, d - 2)
         : lies == Lies::sliced   ? ts::slice(base, d - 1, 1, 2 * shape[d - 1] + 1, 2)
         : lies == Lies::repeated ? ts::broadcast_to(base, shape)
                                  : base;
}

// The shapes of inputs are those of the program, or (`other`) longer in front.
inline ts::Shape leaf_shape(const Line& line, bool other) {
  ts::Shape shape = line.shape;
  if (other && line.given && shape.size() > 0) {
    shape.set(0, shape[0] + 1);
  }
  return shape;
}

inline Leaves make_leaves(const Program& p, float jitter) {
  Leaves out;
  out.view.resize(p.lines.size());
  out.base.resize(p.lines.size());
  for (std::size_t i = 0; i < p.lines.size(); ++i) {
    const Line& line = p.lines[i];
    if (line.what == Do::leaf) {
      make_leaf(line, line.shape, p.seed * 1000 + i, jitter, out.view[i], out.base[i]);
    }
  }
  return out;
}
// New inputs for another call.
inline void renew_inputs(const Program& p, Leaves& leaves, int call, bool other, float jitter) {
  for (std::size_t i = 0; i < p.lines.size(); ++i) {
    const Line& line = p.lines[i];
    if (line.what == Do::leaf && line.given) {
      const std::uint64_t seed = (p.seed + static_cast<std::uint64_t>(call) * 7919) * 1000 + i;
      make_leaf(line, leaf_shape(line, other), seed, jitter, leaves.view[i], leaves.base[i]);
    }
  }
}
inline std::vector<ts::Tensor> inputs_of(const Program& p, const Leaves& leaves) {
  std::vector<ts::Tensor> out;
  for (std::size_t i = 0; i < p.lines.size(); ++i) {
    if (p.lines[i].what == Do::leaf && p.lines[i].given) {
      out.push_back(leaves.view[i]);
    }
  }
  return out;
}

// ---- running

// What an eager run saw: how large numbers were, and whether rounding might choose another way.
struct Watch {
  double most = 1;
  bool near_tie = false;

  void see(const ts::Tensor& x) {
    for (const float v : x.values()) {
      const double a = std::fabs(static_cast<double>(v));
      most = a < 1e30 && a > most ? a : most;
    }
  }
  void pair(const ts::Tensor& a, const ts::Tensor& b) {
    const ts::NoGrad off;
    const ts::Tensor x = a.detach() - b.detach();
    const ts::Tensor size = ts::maximum(ts::square(a.detach()), ts::square(b.detach()));
    const std::vector<float> gap = x.values(), by = size.values();
    for (std::size_t i = 0; i < gap.size(); ++i) {
      const float scale = std::sqrt(by[i]);
      near_tie = near_tie || std::fabs(gap[i]) <= 2e-4f * (scale > 1.0f ? scale : 1.0f);
    }
  }
  // The two largest along a dimension.
  void top(const ts::Tensor& given, int dim) {
    const ts::NoGrad off;
    const ts::Tensor x = given.detach();
    const ts::Tensor most_of = ts::max(x, dim, ts::KeepDim::yes);
    const ts::Tensor close = ts::less(most_of - x, ts::full({}, 2e-4f) * (1.0f + ts::square(x)));
    const ts::Tensor many = ts::sum(close, dim);
    for (const float n : many.values()) {
      near_tie = near_tie || n > 1.5f;
    }
  }
  void before(const Program& p, const Line& line, const std::vector<ts::Tensor>& v) {
    if (line.what == Do::sum || line.what == Do::total) {  // what is added is rounded
      const ts::NoGrad off;
      see(ts::sum(ts::sqrt(ts::square(v[at(line.of[0])].detach()))));
    }
    const auto x = [&](std::size_t i) { return v[at(line.of[i])]; };
    const auto exact = [&](std::size_t i) { return p.lines[at(line.of[i])].exact; };
    if (line.what == Do::binary && line.n[0] >= 4 && !(exact(0) && exact(1))) {
      pair(x(0), x(1));
    }
    const std::int64_t which = line.n.empty() ? -1 : line.n[0];
    const bool at_zero = line.what == Do::unary
                             ? which == 2 || which == 3 || which == 10 || which == 12
                             : line.what == Do::scalar && which == 4;
    if (at_zero && !exact(0)) {
      pair(x(0), ts::zeros({}));
    }
    if (line.what == Do::binary && which == 3 && !exact(1)) {
      pair(x(1), ts::zeros({}));
    }
    if ((line.what == Do::where && !exact(0)) || (line.what == Do::masked_fill && !exact(1))) {
      pair(x(line.what == Do::where ? 0 : 1), ts::zeros({}));
    }
    if ((line.what == Do::max || line.what == Do::argmax) && !exact(0)) {
      top(x(0), static_cast<int>(line.n[1]));
    }
  }
};

// Whether a line's numbers are rounded; constants matter where small differences grow.
inline bool rounds(const Program& p, const Line& line) {
  switch (line.what) {
    case Do::unary: return line.n[0] != 0 && line.n[0] != 10;
    case Do::binary: return line.n[0] < 4;
    case Do::full: return p.amplifies();
    case Do::scalar:
    case Do::sum:
    case Do::mean:
    case Do::total:
    case Do::softmax:
    case Do::log_softmax:
    case Do::layer_norm:
    case Do::rms_norm:
    case Do::cross_entropy:
    case Do::linear_loss:
    case Do::matmul:
    case Do::matmul_transposed:
    case Do::linear:
    case Do::attention:
    case Do::rope:
    case Do::einsum: return true;
    default: return false;
  }
}

// `jitter` is what the numbers of each line are changed by, to show how much a program makes of it.
inline std::vector<ts::Tensor> run(const Program& p, const Leaves& leaves,
                                   const std::vector<ts::Tensor>& inputs, Watch* watch = nullptr,
                                   float jitter = 0) {
  std::vector<ts::Tensor> v;
  std::size_t input = 0;
  for (std::size_t i = 0; i < p.lines.size(); ++i) {
    const Line& line = p.lines[i];
    if (line.what == Do::leaf) {
      v.push_back(line.given ? inputs[input++] : leaves.view[i]);
    } else {
      if (watch != nullptr) {
        watch->before(p, line, v);
      }
      if (line.no_grad) {
        const ts::NoGrad off;
        v.push_back(run_line(line, v));
      } else {
        v.push_back(run_line(line, v));
      }
      if (jitter > 0 && rounds(p, line)) {
        const ts::Tensor noise = ts::randn(v.back().shape(), i, jitter);
        v.back() = v.back() * (1.0f + noise);
        if (line.what == Do::unary) {  // differences of numbers near 1: gelu far below 0
          v.back() = v.back() + noise;
        }
      }
    }
    if (watch != nullptr && v.back().defined()) {
      watch->see(v.back());
    }
  }
  std::vector<ts::Tensor> out;
  for (const int output : p.outputs) {
    out.push_back(v[at(output)]);
  }
  return out;
}

}  // namespace random_programs
