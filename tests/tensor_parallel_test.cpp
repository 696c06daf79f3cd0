// Tensor and sequence parallelism against one device: losses, every gradient, bytes, errors.
#include <doctest/doctest.h>

#include <cmath>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

// 8 heads, so that 8 devices have one each.
ts::ModelConfig small(const std::string& style) {
  ts::ModelConfig c;
  c.name = style;
  c.layers = 2;
  c.width = 24;
  c.heads = 24;
  c.kv_heads = 24;
  c.head_size = 2;
  c.hidden = 48;
  c.vocabulary = 61;  // no number of devices divides it
  c.context = 24;
  c.bias = style == "gpt2";
  if (style != "gpt2") {
    c.norm = ts::Norm::rms;
    c.position = ts::Position::rotary;
    c.activation = ts::Activation::swiglu;
    c.heads = 48;  // grouped-query attention
    c.tied = false;
    c.qk_norm = true;
  }
  return c;
}

// A model whose weights are large enough for every path to matter.
ts::Transformer lively(const ts::ModelConfig& config) {
  ts::Transformer model(config, 3);
  std::uint64_t seed = 100;
  for (ts::Parameter& p : model.parameters) {
    const ts::Tensor noise = ts::randn(p.value.shape(), ++seed, 0.2f);
    for (std::int64_t i = 0; i < noise.count(); ++i) {
      p.value.data()[i] += noise.data()[i];
    }
  }
  return model;
}

struct Batch {
  std::int64_t sequences = 2, time = 24;
  std::vector<std::int32_t> ids, targets;
};

Batch some_batch(const ts::ModelConfig& c) {
  Batch b;
  for (std::int64_t i = 0; i < b.sequences * b.time; ++i) {
    b.ids.push_back(static_cast<std::int32_t>((i * i * 7 + i * 3 + 1) % c.vocabulary));
    b.targets.push_back(static_cast<std::int32_t>((i * 11 + i / 5) % c.vocabulary));
  }
  b.targets[3] = b.targets[17] = -1;
  return b;
}

// The model as one device of the axis has it.
ts::Transformer sharded(const ts::Transformer& model, int index, int devices) {
  ts::Transformer local = model;
  for (ts::Parameter& p : local.parameters) {
    p.value = ts::parameter(ts::tensor_shard(p.value, p.split, index, devices));
  }
  return local;
}

struct Learned {
  float loss = 0;
  std::vector<ts::Tensor> grads;  // whole
};

Learned on_one(const ts::Transformer& model, const Batch& b, double dropout = 0) {
  const ts::Transformer own = sharded(model, 0, 1);
  ts::Hooks hooks;
  hooks.dropout = dropout;
  hooks.dropout_seed = 5;
  const ts::Tensor loss = own.loss(b.ids, b.targets, b.sequences, b.time, hooks);
  loss.backward();
  Learned all;
  all.loss = loss.item();
  for (const ts::Parameter& p : own.parameters) {
    all.grads.push_back(p.value.grad());
  }
  return all;
}

double far_apart(const ts::Tensor& a, const ts::Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  double difference = 0, size = 0;
  for (std::int64_t i = 0; i < a.count(); ++i) {
    difference += std::pow(double{a.data()[i]} - double{b.data()[i]}, 2);
    size += std::pow(double{b.data()[i]}, 2);
  }
  return std::sqrt(difference / size);
}

#if !defined(TINYSCALE_NO_THREADS)

ts::Mesh tensor_mesh(int devices) {
  return ts::Mesh(ts::machine("tpu-v5e", {devices}), {{"tensor", devices}});
}

// Losses of the devices must be one number; the gradients joined.
Learned on_many(const ts::Transformer& model, const Batch& b, int devices, bool sequence_parallel,
                double dropout = 0) {
  const ts::Mesh mesh = tensor_mesh(devices);
  const ts::MeshRun run = mesh.run([&](ts::Device& d) {
    const ts::Transformer own = sharded(model, d.index("tensor"), devices);
    ts::Hooks hooks;
    hooks.dropout = dropout;
    hooks.dropout_seed = 5;
    ts::detail::add_tensor_hooks(hooks, d, "tensor", own.config, sequence_parallel);
    const ts::Tensor loss = own.loss(b.ids, b.targets, b.sequences, b.time, hooks);
    loss.backward();
    d.keep("loss", loss);
    for (const ts::Parameter& p : own.parameters) {
      const bool partial = ts::partial_over_tensor(p, own.config, sequence_parallel);
      d.keep(p.name, partial ? d.all_reduce(p.value.grad(), "tensor") : p.value.grad());
    }
  });
  Learned all;
  all.loss = run.kept(0, "loss").item();
  for (const ts::Parameter& p : model.parameters) {
    std::vector<ts::Tensor> parts;
    for (int rank = 0; rank < devices; ++rank) {
      CHECK(run.kept(rank, "loss").item() == all.loss);
      parts.push_back(run.kept(rank, p.name));
      if (p.split == ts::Split::whole) {
        CHECK(parts.back().values() == parts[0].values());
      }
    }
    all.grads.push_back(ts::tensor_unshard(parts, p.split));
  }
  return all;
}

void check_equal(const ts::Transformer& model, const Learned& many, const Learned& one) {
  CHECK(std::abs(many.loss - one.loss) <= 2e-6 * one.loss);
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    CAPTURE(model.parameters[i].name);
    // The bias of the keys shifts all scores of a query alike: its true gradient is zero.
    if (model.parameters[i].name.find("k_proj.bias") == std::string::npos) {
      CHECK(far_apart(many.grads[i], one.grads[i]) < 1e-5);
    }
  }
}

#endif

}  // namespace

#if !defined(TINYSCALE_NO_THREADS)

TEST_CASE("tensor parallel: loss and every gradient are one device's") {
  for (const char* style : {"gpt2", "llama"}) {
    const ts::Transformer model = lively(small(style));
    const Batch b = some_batch(model.config);
    const Learned one = on_one(model, b);
    for (const int devices : {1, 2, 3, 4, 8}) {
      for (const bool sequence_parallel : {false, true}) {
        if (sequence_parallel && std::string(style) == "gpt2") {
          continue;
        }
        CAPTURE(style);
        CAPTURE(devices);
        CAPTURE(sequence_parallel);
        check_equal(model, on_many(model, b, devices, sequence_parallel), one);
      }
    }
  }
}

#endif
