// What a forward pass keeps for the backward pass, by the memory meter, against closed forms: the
// Megatron reference layer (examples/megatron_layer.hpp) in Megatron's bytes, and this library's
// own transformer in its. All equal to the byte.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "../examples/megatron_layer.hpp"
#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;
using ts::Tensor;

namespace {

ts::ActivationShape shape_of(const megatron::Options& options, std::int64_t batch,
                             std::int64_t sequence, int devices) {
  ts::ActivationShape x;
  x.sequence = static_cast<double>(sequence);
  x.batch = static_cast<double>(batch);
  x.width = static_cast<double>(options.width);
  x.heads = static_cast<double>(options.heads);
  x.tensor = devices;
  x.sequence_parallel = options.sequence_parallel;
  x.recompute = options.recompute;
  return x;
}

double activation_level() { return ts::context().memory->current(ts::MemoryKind::activation); }

}  // namespace

TEST_CASE("activations: the reference layer keeps s b h (34 + 5 a s / h)") {
  for (const std::int64_t width : {32, 96}) {
    for (const std::int64_t heads : {2, 4}) {
      for (const std::int64_t batch : {1, 3}) {
        for (const std::int64_t sequence : {16, 40}) {
          for (const ts::Recompute recompute :
               {ts::Recompute::none, ts::Recompute::selective, ts::Recompute::full}) {
            megatron::Options options;
            options.width = width;
            options.heads = heads;
            options.recompute = recompute;
            const megatron::KeptBytes kept = megatron::kept_bytes(options, batch, sequence);
            CHECK(kept.metered ==
                  ts::layer_activation_bytes(shape_of(options, batch, sequence, 1)));
            CHECK(kept.listed == kept.metered);
          }
          megatron::Options options;
          options.width = width;
          options.heads = heads;
          const auto s = static_cast<double>(sequence), b = static_cast<double>(batch);
          const auto h = static_cast<double>(width), a = static_cast<double>(heads);
          CHECK(megatron::kept_bytes(options, batch, sequence).metered ==
                doctest::Approx(s * b * h * (34 + 5 * a * s / h)).epsilon(1e-15));
        }
      }
    }
  }
}

TEST_CASE("activations: what the reference layer keeps, by name") {
  const megatron::KeptBytes kept = megatron::kept_bytes(megatron::Options(), 2, 32);
  const double sbh = 32 * 2 * 64;
  const struct {
    const char* name;
    double of_sbh;
  } expected[] = {{"input of layer norm 1", 2},
                  {"output of layer norm 1", 2},
                  {"query, key, value", 6},
                  {"output of softmax", 4},                // 2 a s / h
                  {"mask of attention weights", 2},        // a s / h
                  {"attention weights after dropout", 4},  // 2 a s / h
                  {"output of attention", 2},
                  {"mask after attention", 1},
                  {"input of layer norm 2", 2},
                  {"output of layer norm 2", 2},
                  {"input of GELU", 8},
                  {"output of GELU", 8},
                  {"mask after the MLP", 1}};
  REQUIRE(kept.entries.size() == 13);
  for (std::size_t i = 0; i < 13; ++i) {
    CHECK(kept.entries[i].name == expected[i].name);
    CHECK(kept.entries[i].bytes == expected[i].of_sbh * sbh);
  }
  megatron::Options full;
  full.recompute = ts::Recompute::full;
  const megatron::KeptBytes input = megatron::kept_bytes(full, 2, 32);
  REQUIRE(input.entries.size() == 1);
  CHECK(input.entries[0].name == "input of layer norm 1");
}

#if !defined(TINYSCALE_NO_THREADS)

TEST_CASE("activations: the reference layer on a tensor axis, with sequences cut, recomputed") {
  for (const int devices : {2, 4}) {
    const ts::Mesh mesh(ts::machine("tpu-v5e", {devices}), {{"tensor", devices}});
    for (int way = 0; way < 6; ++way) {
      megatron::Options options;
      options.sequence_parallel = way >= 3;
      options.recompute = static_cast<ts::Recompute>(way % 3);
      CAPTURE(devices);
      CAPTURE(way);
      std::vector<double> metered(static_cast<std::size_t>(devices)), listed = metered;
      mesh.run([&](ts::Device& device) {
        megatron::Options own = options;
        own.device = &device;
        const megatron::KeptBytes kept = megatron::kept_bytes(own, 2, 32);
        metered[static_cast<std::size_t>(device.rank())] = kept.metered;
        listed[static_cast<std::size_t>(device.rank())] = kept.listed;
      });
      const double formula = ts::layer_activation_bytes(shape_of(options, 2, 32, devices));
      for (std::size_t d = 0; d < metered.size(); ++d) {
        CHECK(metered[d] == formula);
        CHECK(listed[d] == formula);
      }
    }
  }
}

// The bytes are those of a layer that works: outputs and gradients are one device's in every way.
TEST_CASE("activations: the reference layer computes the same in every layout") {
  const std::int64_t sequence = 16, width = 64;
  const Tensor x = ts::randn({1, sequence, width}, 5);
  const Tensor r = ts::randn({1, sequence, width}, 6);
  Tensor y_one, dx_one;
  for (int way = 0; way < 3; ++way) {
    megatron::Options options;
    options.recompute = static_cast<ts::Recompute>(way);
    megatron::Ledger ledger;
    const megatron::Layer layer(options, ledger);
    const Tensor leaf = ts::detail::leaf(x, ts::MemoryKind::activation);
    const Tensor y = layer(leaf);
    ledger.held();
    ts::sum(y * r).backward();
    if (way == 0) {
      y_one = y.detach();
      dx_one = leaf.grad();
    }
    CHECK(y.values() == y_one.values());
    CHECK(leaf.grad().values() == dx_one.values());
  }
  const int devices = 4;
  const ts::Mesh mesh(ts::machine("tpu-v5e", {devices}), {{"tensor", devices}});
  for (int way = 0; way < 6; ++way) {
    CAPTURE(way);
    const bool cut = way >= 3;
    const ts::MeshRun run = mesh.run([&](ts::Device& device) {
      megatron::Options options;
      options.device = &device;
      options.sequence_parallel = cut;
      options.recompute = static_cast<ts::Recompute>(way % 3);
      megatron::Ledger ledger;
      const megatron::Layer layer(options, ledger);
      const Tensor own = cut ? device.shard(x, "tensor", 1) : x;
      const Tensor leaf = ts::detail::leaf(own, ts::MemoryKind::activation);
      const Tensor y = layer(leaf);
      ledger.held();
      ts::sum(y * (cut ? device.shard(r, "tensor", 1) : r)).backward();
      device.keep("y", cut ? device.all_gather(y.detach(), "tensor", 1) : y);
      device.keep("dx", cut ? device.all_gather(leaf.grad(), "tensor", 1) : leaf.grad());
    });
    const std::vector<float> y = run.kept(1, "y").values(), dx = run.kept(1, "dx").values();
    const std::vector<float> y1 = y_one.values(), dx1 = dx_one.values();
    double worst = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      worst = std::max(worst, std::fabs(static_cast<double>(y[i] - y1[i])));
      worst = std::max(worst, std::fabs(static_cast<double>(dx[i] - dx1[i])));
    }
    CHECK(worst < 1e-4);
  }
}

#endif  // TINYSCALE_NO_THREADS

namespace {

ts::ModelConfig gpt2_style() {
  ts::ModelConfig c;
  c.name = "gpt2 style";
  c.layers = 3;
  c.width = 48;
  c.heads = c.kv_heads = 4;
  c.head_size = 12;
  c.hidden = 160;
  c.vocabulary = 64;
  c.context = 16;
  c.bias = true;
  return c;
}

ts::ModelConfig llama_style() {
  ts::ModelConfig c = gpt2_style();
  c.name = "llama style";
  c.kv_heads = 2;
  c.norm = ts::Norm::rms;
  c.position = ts::Position::rotary;
  c.activation = ts::Activation::swiglu;
  c.bias = c.tied = false;
  return c;
}

ts::ModelConfig mixture(ts::ModelConfig c) {
  c.name += ", mixture";
  c.experts = 4;
  c.top_k = 2;
  c.expert_hidden = 56;
  return c;
}

ts::List<ts::ModelConfig> styles() {
  ts::List<ts::ModelConfig> all = {gpt2_style(), llama_style()};
  for (const int base : {0, 1}) {
    ts::ModelConfig c = base == 0 ? gpt2_style() : llama_style();
    c.qk_norm = true;
    all.push_back(c);
    c.bias = !c.bias;
    all.push_back(c);
    c.qkv_bias = true;
    c.activation = base == 0 ? ts::Activation::geglu : ts::Activation::gelu_tanh;
    all.push_back(c);
    c.kv_heads = 1;
    c.head_size = 20;  // heads x head size is not the width
    all.push_back(c);
    all.push_back(mixture(base == 0 ? gpt2_style() : llama_style()));
    all.push_back(mixture(base == 0 ? gpt2_style() : llama_style()));
    all.back().shared_experts = 2;
  }
  return all;
}

}  // namespace

TEST_CASE("activations: our transformer keeps what its closed form says") {
  for (const ts::ModelConfig& config : styles()) {
    for (const double dropout : {0.0, 0.2}) {
      CAPTURE(config.name);
      CAPTURE(config.qk_norm);
      CAPTURE(dropout);
      const ts::Transformer model(config, 1);
      const std::int64_t batch = 3, time = 10;
      const std::vector<std::int32_t> ids(static_cast<std::size_t>(batch * time), 5);
      ts::Hooks hooks;
      hooks.dropout = dropout;
      const double before = activation_level();
      const Tensor loss = model.loss(ids, ids, batch, time, hooks);
      CHECK(activation_level() - before == ts::forward_activation_bytes(config, batch, time));
      loss.backward();
      CHECK(activation_level() - before == 4);  // the loss
    }
  }
}

TEST_CASE("activations: one block of ours, with and without recomputation") {
  for (const ts::ModelConfig& config : styles()) {
    CAPTURE(config.name);
    const ts::Transformer model(config, 1);
    const auto tokens = static_cast<double>(2 * 8);
    for (const ts::Recompute recompute :
         {ts::Recompute::none, ts::Recompute::selective, ts::Recompute::full}) {
      ts::Hooks hooks;
      if (recompute == ts::Recompute::selective) {
        hooks.attention = [&config](int, const Tensor& q, const Tensor& k, const Tensor& v) {
          return ts::recompute(
              [&config](const std::vector<Tensor>& in) {
                return ts::attention(in[0], in[1], in[2], config.heads, config.kv_heads,
                                     ts::Mask::causal);
              },
              {q, k, v});
        };
      }
      const double before = activation_level();
      ts::detail::Slot graph;
      {
        const Tensor x =
            ts::detail::leaf(ts::randn({2, 8, config.width}, 2), ts::MemoryKind::activation);
        const auto block = [&](const std::vector<Tensor>& in) {
          return model.block(0, in[0], hooks);
        };
        const bool full = recompute == ts::Recompute::full;
        graph = (full ? ts::recompute(block, {x}) : block({x})).slot();
      }
      CHECK(activation_level() - before ==
            ts::block_activation_bytes(config, tokens, 1, false, recompute));
    }
  }
}

#if !defined(TINYSCALE_NO_THREADS)

// A block whose heads and hidden layer are cut over a tensor axis, as parallel/ runs it.
TEST_CASE("activations: one block of ours on a tensor axis, with sequences cut or not") {
  for (const ts::ModelConfig& config : {gpt2_style(), llama_style(), mixture(llama_style())}) {
    const int devices = 2;
    const ts::Mesh mesh(ts::machine("tpu-v5e", {devices}), {{"tensor", devices}});
    for (const bool cut : {false, true}) {
      CAPTURE(config.name);
      CAPTURE(cut);
      std::vector<double> kept(devices);
      mesh.run([&](ts::Device& device) {
        ts::Transformer model(config, 1);
        for (ts::Parameter& p : model.parameters) {
          if (p.split == ts::Split::rows || p.split == ts::Split::columns) {
            p.value = ts::parameter(
                device.shard(p.value.detach(), "tensor", p.split == ts::Split::rows ? 0 : 1));
          }
        }
        ts::Hooks hooks;
        hooks.linear_in = [&](const Tensor& x) {
          return cut ? device.all_gather(x, "tensor", 1) : device.replicate(x, "tensor");
        };
        hooks.linear_out = [&](const Tensor& y) {
          return cut ? device.reduce_scatter(y, "tensor", 1) : device.all_reduce(y, "tensor");
        };
        const double before = activation_level();
        ts::detail::Slot graph;
        {
          const Tensor x = ts::randn({2, cut ? 8 / devices : 8, config.width}, 2);
          graph = model.block(0, ts::detail::leaf(x, ts::MemoryKind::activation), hooks).slot();
        }
        kept[static_cast<std::size_t>(device.rank())] = activation_level() - before;
      });
      for (const double bytes : kept) {
        CHECK(bytes == ts::block_activation_bytes(config, 16, devices, cut));
      }
    }
  }
}

TEST_CASE("activations: one block of ours with whole experts on a tensor axis") {
  const int devices = 2;
  const ts::Mesh mesh(ts::machine("tpu-v5e", {devices}), {{"tensor", devices}});
  for (const int shared : {0, 1}) {
    ts::ModelConfig config = mixture(llama_style());
    config.shared_experts = shared;
    CAPTURE(shared);
    std::vector<double> kept(devices);
    mesh.run([&](ts::Device& device) {
      ts::Transformer model(config, 1);
      for (ts::Parameter& p : model.parameters) {
        if (p.expert < 0 && (p.split == ts::Split::rows || p.split == ts::Split::columns)) {
          p.value = ts::parameter(
              device.shard(p.value.detach(), "tensor", p.split == ts::Split::rows ? 0 : 1));
        }
      }
      ts::Hooks hooks;
      hooks.whole_experts = true;
      hooks.linear_in = [&](const Tensor& x) { return device.all_gather(x, "tensor", 1); };
      hooks.linear_out = [&](const Tensor& y) { return device.reduce_scatter(y, "tensor", 1); };
      const double before = activation_level();
      ts::detail::Slot graph;
      {
        const Tensor x = ts::randn({2, 8 / devices, config.width}, 2);
        graph = model.block(0, ts::detail::leaf(x, ts::MemoryKind::activation), hooks).slot();
      }
      kept[static_cast<std::size_t>(device.rank())] = activation_level() - before;
    });
    for (const double bytes : kept) {
      CHECK(bytes ==
            ts::block_activation_bytes(config, 16, devices, true, ts::Recompute::none, true));
    }
  }
}

TEST_CASE("activations: one block of ours on a context axis") {
  for (const ts::ModelConfig& config : {gpt2_style(), llama_style()}) {
    for (const int devices : {2, 4}) {
      const ts::Mesh mesh(ts::machine("tpu-v5e", {devices}), {{"context", devices}});
      for (const ts::ContextParallel kind :
           {ts::ContextParallel::ring, ts::ContextParallel::ulysses,
            ts::ContextParallel::gathered}) {
        if (kind == ts::ContextParallel::ulysses && config.kv_heads % devices != 0) {
          continue;
        }
        for (const std::int64_t batch : {1, 3}) {
          CAPTURE(config.name);
          CAPTURE(devices);
          CAPTURE(ts::name_of(kind));
          CAPTURE(batch);
          std::vector<double> kept(static_cast<std::size_t>(devices));
          mesh.run([&](ts::Device& device) {
            const ts::Transformer model(config, 1);
            ts::Hooks hooks;
            ts::detail::add_context_hooks(hooks, device, "context", kind, config, 16);
            const double before = activation_level();
            ts::detail::Slot graph;
            {
              const Tensor x = ts::randn({batch, 16 / devices, config.width}, 2);
              graph = model.block(0, ts::detail::leaf(x, ts::MemoryKind::activation), hooks).slot();
            }
            kept[static_cast<std::size_t>(device.rank())] = activation_level() - before;
          });
          const auto tokens = static_cast<double>(batch * 16 / devices);
          for (const double bytes : kept) {
            CHECK(bytes == ts::block_activation_bytes(config, tokens) +
                               4 * tokens * ts::context_activations(config, kind, devices, batch));
          }
        }
      }
    }
  }
}

#endif  // TINYSCALE_NO_THREADS
