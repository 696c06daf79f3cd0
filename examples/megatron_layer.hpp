// Megatron's transformer layer of 2022 (arXiv 2205.05198, section 4) from this library's
// primitives: LayerNorm, unfused attention and GELU, dropout with stored masks of a byte an
// element. What its backward pass keeps is what the paper counts; a ledger names it.
// One float kept here stands for an activation of 2 bytes.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "tinyscale.hpp"

namespace megatron {

namespace ts = tinyscale;
using ts::Tensor;

// The tensors of a forward pass by name; `held` leaves those that the graph still needs.
struct Ledger {
  struct Entry {
    std::string name;
    ts::Shared<ts::detail::Storage> numbers;
    double bytes = 0;  // as Megatron stores them
  };
  ts::List<Entry> entries;
  bool open = true;  // the backward pass writes nothing

  // `bytes` of each float of the buffer: 2 of an activation, 4 of four masks.
  Tensor operator()(const std::string& name, const Tensor& x, double bytes = 2) {
    if (open) {
      entries.push_back({name, x.storage(), bytes * static_cast<double>(x.storage()->count)});
    }
    return x;
  }
  double held() {
    ts::List<Entry> left;
    double bytes = 0;
    for (Entry& entry : entries) {
      if (entry.numbers.use_count() > 1) {
        bytes += entry.bytes;
        left.push_back(std::move(entry));
      }
    }
    entries = std::move(left);
    open = false;
    return bytes;
  }
};

struct Options {
  std::int64_t width = 64, heads = 4;
  ts::Device* device = nullptr;  // of a mesh with an axis "tensor"; null: one device
  bool sequence_parallel = false;
  ts::Recompute recompute = ts::Recompute::none;
  float dropout = 0.1f;
};

// y = x mask / (1 - p), the mask stored as bytes, four in a float's place.
inline Tensor dropout_with_mask(Ledger& ledger, const std::string& name, const Tensor& x, float p,
                                std::uint64_t seed, std::int64_t first) {
  const std::int64_t n = x.count();
  const Tensor mask({(n + 3) / 4}, ts::MemoryKind::buffer);
  const auto apply = [n, p, mask](const float* from, float* to) {
    const auto* const keep = reinterpret_cast<const unsigned char*>(mask.data());
    for (std::int64_t i = 0; i < n; ++i) {
      to[i] = keep[i] != 0 ? from[i] / (1 - p) : 0.0f;
    }
  };
  auto* const bytes = reinterpret_cast<unsigned char*>(mask.origin());
  for (std::int64_t i = 0; i < n; ++i) {
    bytes[i] = ts::uniform01(seed, static_cast<std::uint64_t>(first + i)) >= p ? 1 : 0;
  }
  ledger(name, mask, 4);
  Tensor y(x.shape());
  apply(x.data(), y.data());
  if (ts::detail::tracked({&x})) {
    ts::detail::attach(y, "dropout with a mask", {&x}, [apply, slot = x.slot()](const Tensor& dy) {
      Tensor dx(dy.shape());
      apply(dy.data(), dx.data());
      ts::detail::add_grad(slot, dx);
    });
  }
  return y;
}

class Layer {
 public:
  Layer(const Options& options, Ledger& ledger) : o_(options), ledger_(ledger) {
    const std::int64_t h = o_.width, k = h / o_.heads;
    const float scale = 1 / std::sqrt(static_cast<float>(h));
    qkv_ = cut(ts::reshape(ts::randn({3 * h, h}, 1, scale), {3, o_.heads, k * h}), 1);
    qkv_ = ts::parameter(ts::reshape(qkv_, {3 * h / devices(), h}));
    out_ = ts::parameter(cut(ts::randn({h, h}, 2, scale), 1));
    up_ = ts::parameter(cut(ts::randn({4 * h, h}, 3, scale), 0));
    down_ = ts::parameter(cut(ts::randn({h, 4 * h}, 4, scale), 1));
    qkv_bias_ = ts::parameter(ts::zeros({3 * h / devices()}));
    up_bias_ = ts::parameter(ts::zeros({4 * h / devices()}));
    for (Tensor* one : {&norm1_, &norm2_}) {
      *one = ts::parameter(ts::ones({h}));
    }
    for (Tensor* zero : {&norm1_bias_, &norm2_bias_, &out_bias_, &down_bias_}) {
      *zero = ts::parameter(ts::zeros({h}));
    }
  }

  // x [b, s, h]; under sequence parallelism [b, s / t, h].
  Tensor operator()(const Tensor& x) const {
    ledger_("input of layer norm 1", x);
    return o_.recompute == ts::Recompute::full ? again(x, &Layer::block) : block(x);
  }

 private:
  int devices() const { return o_.device == nullptr ? 1 : o_.device->size("tensor"); }
  int index() const { return o_.device == nullptr ? 0 : o_.device->index("tensor"); }
  Tensor cut(const Tensor& whole, int dim) const {
    return o_.device == nullptr ? whole : o_.device->shard(whole, "tensor", dim);
  }
  Tensor again(const Tensor& x, Tensor (Layer::*part)(const Tensor&) const) const {
    return ts::recompute(
        [this, part](const std::vector<Tensor>& in) { return (this->*part)(in[0]); }, {x});
  }

  Tensor block(const Tensor& x) const {
    const Tensor in = ledger_("output of layer norm 1", norm(x, norm1_, norm1_bias_));
    const Tensor qkv = ledger_("query, key, value", column(in, qkv_, qkv_bias_));
    const bool selective = o_.recompute == ts::Recompute::selective;
    const Tensor attended = selective ? again(qkv, &Layer::attend) : attend(qkv);
    ledger_("output of attention", attended);
    const Tensor y = x + drop("mask after attention", row(attended, out_) + out_bias_, 7);
    ledger_("input of layer norm 2", y);
    const Tensor mlp_in = ledger_("output of layer norm 2", norm(y, norm2_, norm2_bias_));
    const Tensor up = ledger_("input of GELU", column(mlp_in, up_, up_bias_));
    const Tensor hidden = ledger_("output of GELU", ts::gelu(up));
    return y + drop("mask after the MLP", row(hidden, down_) + down_bias_, 8);
  }

  // softmax(q k^T / sqrt(K)) v with every [s, s] matrix stored; qkv [b, s, 3 h / t].
  Tensor attend(const Tensor& qkv) const {
    const std::int64_t b = qkv.dim(0), s = qkv.dim(1), k = o_.width / o_.heads;
    const std::int64_t heads = o_.heads / devices();
    const Tensor parts = ts::reshape(qkv, {b, s, 3, heads, k});
    const auto part = [&](int i) {
      return ts::transpose(ts::slice(parts, 2, i, i + 1), 1, 3);  // (b, a, 1, s, k)
    };
    const Tensor scores = ts::matmul(part(0), ts::transpose(part(1), -1, -2)) *
                          (1 / std::sqrt(static_cast<float>(k)));
    const Tensor weights = ledger_("output of softmax", ts::softmax(scores));
    const Tensor dropped =
        ledger_("attention weights after dropout", drop("mask of attention weights", weights, 6));
    return ts::reshape(ts::transpose(ts::matmul(dropped, part(2)), 1, 3), {b, s, heads * k});
  }

  // Keeps its input alone, no mean and deviation.
  Tensor norm(const Tensor& x, const Tensor& weight, const Tensor& bias) const {
    return ts::recompute(
        [](const std::vector<Tensor>& in) { return ts::layer_norm(in[0], in[1], in[2]); },
        {x, weight, bias});
  }
  // Outputs cut. Under sequence parallelism x is gathered here and, as only the part is kept, again
  // in the backward pass (where Megatron spares itself the product).
  Tensor column(const Tensor& x, const Tensor& w, const Tensor& bias) const {
    if (!o_.sequence_parallel) {
      return ts::linear(devices() > 1 ? o_.device->replicate(x, "tensor") : x, w, bias);
    }
    ts::Device* const device = o_.device;
    return ts::recompute(
        [device](const std::vector<Tensor>& in) {
          return ts::linear(device->all_gather(in[0], "tensor", 1), in[1], in[2]);
        },
        {x, w, bias});
  }
  // Inputs cut, results summed.
  Tensor row(const Tensor& x, const Tensor& w) const {
    const Tensor part = ts::matmul_transposed(x, w);
    return devices() == 1         ? part
           : o_.sequence_parallel ? o_.device->reduce_scatter(part, "tensor", 1)
                                  : o_.device->all_reduce(part, "tensor");
  }
  // Masks of one sequence do not depend on the layout: what is cut draws its part of them.
  Tensor drop(const char* name, const Tensor& x, std::uint64_t seed) const {
    const bool is_part = x.dims() == 5 || o_.sequence_parallel;
    return dropout_with_mask(ledger_, name, x, o_.dropout, seed, is_part ? index() * x.count() : 0);
  }

  Options o_;
  Ledger& ledger_;
  Tensor qkv_, qkv_bias_, out_, out_bias_, up_, up_bias_, down_, down_bias_;
  Tensor norm1_, norm1_bias_, norm2_, norm2_bias_;
};

// What one layer keeps on this device between forward and backward, in Megatron's bytes.
struct KeptBytes {
  ts::List<Ledger::Entry> entries;
  double listed = 0;   // sum of the entries
  double metered = 0;  // by the memory meter
};

inline KeptBytes kept_bytes(const Options& options, std::int64_t batch, std::int64_t sequence) {
  Ledger ledger;
  const Layer layer(options, ledger);
  const ts::MemoryMeter& meter = *ts::context().memory;
  const auto level = [&meter] {
    return meter.current(ts::MemoryKind::activation) / 2 + meter.current(ts::MemoryKind::buffer);
  };
  const double before = level();
  const std::int64_t parts = options.sequence_parallel ? options.device->size("tensor") : 1;
  ts::detail::Slot graph;  // without the output's numbers: they are the next layer's input
  {
    const Tensor x = ts::randn({batch, sequence / parts, options.width}, 5);
    graph = layer(ts::detail::leaf(x, ts::MemoryKind::activation)).slot();
  }
  KeptBytes kept;
  kept.listed = ledger.held();
  kept.metered = level() - before;
  kept.entries = ledger.entries;
  return kept;
}

}  // namespace megatron
