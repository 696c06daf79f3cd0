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
  c.bias = style == "gpt2" || style == "mixture";
  if (style == "llama") {
    c.norm = ts::Norm::rms;
    c.position = ts::Position::rotary;
    c.activation = ts::Activation::swiglu;
    c.heads = 48;  // grouped-query attention
    c.tied = false;
    c.qk_norm = true;
  } else if (style == "mixture") {
    c.experts = 4;
    c.top_k = 2;
    c.expert_hidden = 24;
    c.shared_experts = 1;
  }
  return c;
}

#if !defined(TINYSCALE_NO_THREADS)

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
  hooks.experts.balance_loss = 0.1;
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

ts::Mesh tensor_mesh(int devices) {
  return ts::Mesh(ts::machine("tpu-v5e", {devices}), {{"tensor", devices}});
}

// Losses of the devices must be one number; the gradients joined.
Learned on_many(const ts::Transformer& model, const Batch& b, int devices, bool sequence_parallel,
                double dropout = 0, bool gather_again = false) {
  const ts::Mesh mesh = tensor_mesh(devices);
  const ts::MeshRun run = mesh.run([&](ts::Device& d) {
    const ts::Transformer own = sharded(model, d.index("tensor"), devices);
    ts::Hooks hooks;
    hooks.dropout = dropout;
    hooks.dropout_seed = 5;
    hooks.experts.balance_loss = 0.1;
    ts::detail::add_tensor_hooks(hooks, d, "tensor", own.config, sequence_parallel, b.time,
                                 gather_again);
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
  for (const char* style : {"gpt2", "llama", "mixture"}) {
    const ts::Transformer model = lively(small(style));
    const Batch b = some_batch(model.config);
    const Learned one = on_one(model, b);
    for (const int devices : {1, 2, 3, 4, 8}) {
      for (const bool sequence_parallel : {false, true}) {
        CAPTURE(style);
        CAPTURE(devices);
        CAPTURE(sequence_parallel);
        check_equal(model, on_many(model, b, devices, sequence_parallel), one);
      }
    }
  }
}

TEST_CASE("tensor parallel: dropout masks are one device's") {
  const ts::Transformer model = lively(small("gpt2"));
  const Batch b = some_batch(model.config);
  const Learned one = on_one(model, b, 0.2);
  CHECK(one.loss != on_one(model, b).loss);
  for (const bool sequence_parallel : {false, true}) {
    check_equal(model, on_many(model, b, 4, sequence_parallel, 0.2), one);
  }
}

TEST_CASE("tensor parallel: bytes that were sent are the closed form's") {
  for (const char* style : {"gpt2", "llama", "mixture"}) {
    const ts::Transformer model = lively(small(style));
    for (const int devices : {1, 2, 3, 4, 8}) {
      for (const bool sequence_parallel : {false, true}) {
        for (const ts::Algorithm how : {ts::Algorithm::ring, ts::Algorithm::direct}) {
          CAPTURE(style);
          CAPTURE(devices);
          CAPTURE(sequence_parallel);
          const Batch b = some_batch(model.config);
          ts::Mesh mesh = tensor_mesh(devices);
          mesh.algorithm = how;
          const ts::MeshRun run = mesh.run([&](ts::Device& d) {
            const ts::Transformer own = sharded(model, d.index("tensor"), devices);
            ts::Hooks hooks;
            ts::detail::add_tensor_hooks(hooks, d, "tensor", own.config, sequence_parallel, b.time);
            own.loss(b.ids, b.targets, b.sequences, b.time, hooks).backward();
          });
          const ts::TensorParallelBytes bytes =
              ts::tensor_parallel_bytes(model.config, b.sequences, b.time, devices);
          for (int rank = 0; rank < devices; ++rank) {
            CHECK(run.bytes_sent(rank) == bytes.total());
            const ts::MemoryMeter& memory = run.memory(rank);
            const double tokens = static_cast<double>(b.sequences * b.time);
            const double columns = static_cast<double>(ts::shard_begin(61, rank + 1, devices) -
                                                       ts::shard_begin(61, rank, devices));
            CHECK(memory.peak(ts::MemoryKind::logits) == 4 * tokens * columns);
          }
          const double n = static_cast<double>(b.sequences * b.time), t = devices;
          const double h = static_cast<double>(model.config.width);
          CHECK(bytes.layers == 2 * 4 * 8 * n * h * (t - 1) / t);
          CHECK(bytes.embedding + bytes.output == 4 * 4 * n * h * (t - 1) / t);
          CHECK(bytes.loss == 6 * 4 * n * (t - 1) / t);
        }
      }
    }
  }
  const ts::ModelConfig c = small("gpt2");
  CHECK(ts::tensor_parallel_bytes(c, 2, 24, 4, 2).layers ==
        1.5 * ts::tensor_parallel_bytes(c, 2, 24, 4).layers);
}

// What a device keeps of one block's forward pass for its backward pass, bytes.
double kept_by_block(const ts::Transformer& model, const Batch& b, int devices,
                     bool sequence_parallel, bool gather_again) {
  const ts::Tensor x = ts::randn({b.sequences, b.time, model.config.width}, 9);
  const ts::MeshRun run = tensor_mesh(devices).run([&](ts::Device& d) {
    const ts::Transformer own = sharded(model, d.index("tensor"), devices);
    ts::Hooks hooks;
    ts::detail::add_tensor_hooks(hooks, d, "tensor", own.config, sequence_parallel, b.time,
                                 gather_again);
    const ts::Tensor in = ts::parameter(sequence_parallel ? d.shard(x, "tensor", 1) : x);
    const ts::Tensor out = own.block(0, in, hooks);
    const double kept = ts::context().memory->current(ts::MemoryKind::activation);
    d.keep("kept", ts::full({}, static_cast<float>(kept)));
    ts::sum(ts::square(out)).backward();
    d.keep("left", ts::full({}, static_cast<float>(
                                    ts::context().memory->current(ts::MemoryKind::activation))));
    d.keep("out", out);
  });
  CHECK(run.kept(0, "left").item() == 4 * static_cast<float>(run.kept(0, "out").count()) + 4);
  return static_cast<double>(run.kept(0, "kept").item());
}

TEST_CASE("sequence parallel: with gather_again every activation is cut over the devices") {
  for (const char* style : {"gpt2", "llama", "mixture"}) {
    const ts::Transformer model = lively(small(style));
    const ts::ModelConfig& c = model.config;
    const Batch b = some_batch(c);
    const Learned one = on_one(model, b);
    for (const int devices : {1, 2, 4, 8}) {
      CAPTURE(style);
      CAPTURE(devices);
      check_equal(model, on_many(model, b, devices, true, 0, true), one);
      ts::Mesh mesh = tensor_mesh(devices);
      mesh.algorithm = ts::Algorithm::ring;
      const ts::MeshRun run = mesh.run([&](ts::Device& d) {
        const ts::Transformer own = sharded(model, d.index("tensor"), devices);
        ts::Hooks hooks;
        ts::detail::add_tensor_hooks(hooks, d, "tensor", own.config, true, b.time, true);
        own.loss(b.ids, b.targets, b.sequences, b.time, hooks).backward();
      });
      CHECK(run.bytes_sent(0) ==
            ts::tensor_parallel_bytes(c, b.sequences, b.time, devices, 1, true).total());
      for (const bool sequence_parallel : {false, true}) {
        for (const bool again : {false, sequence_parallel}) {
          if (c.experts == 0) {
            const double n = static_cast<double>(b.sequences * b.time);
            CHECK(kept_by_block(model, b, devices, sequence_parallel, again) ==
                  4 * n * ts::detail::layer_activations(c, devices, sequence_parallel, again));
          }
        }
      }
      // In full, with heads 2 h wide: 4 h + 2 x 2 statistics, q, k, v, o and their sums, 2 f.
      if (std::string(style) == "gpt2") {
        const double h = static_cast<double>(c.width), a = static_cast<double>(c.heads);
        const double all = 4 * h + 4 + 4 * 2 * h + a + 2 * static_cast<double>(c.hidden);
        CHECK(ts::detail::layer_activations(c, devices, true, true) == all / devices);
      }
    }
  }
}

TEST_CASE("tensor parallel: blocks that are recomputed send 12 b s h (t-1)/t") {
  for (const char* style : {"gpt2", "mixture"}) {
    const ts::Transformer model = lively(small(style));
    const Batch b = some_batch(model.config);
    const Learned one = on_one(model, b, 0.2);
    for (const bool sequence_parallel : {false, true}) {
      for (const bool again : {false, sequence_parallel}) {
        ts::Mesh mesh = tensor_mesh(4);
        mesh.algorithm = ts::Algorithm::ring;
        const ts::MeshRun run = mesh.run([&](ts::Device& d) {
          const ts::Transformer own = sharded(model, d.index("tensor"), 4);
          ts::Hooks hooks;
          hooks.dropout = 0.2;
          hooks.dropout_seed = 5;
          hooks.experts.balance_loss = 0.1;
          ts::detail::add_tensor_hooks(hooks, d, "tensor", own.config, sequence_parallel, b.time,
                                       again);
          ts::Tensor x = own.embed(b.ids, b.sequences, b.time, hooks);
          for (int layer = 0; layer < 2; ++layer) {
            x = ts::recompute(
                [&own, &hooks, layer](const std::vector<ts::Tensor>& in) {
                  return own.block(layer, in[0], hooks);
                },
                {x});
          }
          own.head_loss(x, b.targets, hooks).backward();
          for (const ts::Parameter& p : own.parameters) {
            d.keep(p.name, p.value.grad());
          }
        });
        const ts::TensorParallelBytes bytes =
            ts::tensor_parallel_bytes(model.config, b.sequences, b.time, 4, 2, again);
        CHECK(run.bytes_sent(1) == bytes.total());
        for (std::size_t i = 0; i < model.parameters.size(); ++i) {
          const ts::Parameter& p = model.parameters[i];
          CAPTURE(p.name);
          std::vector<ts::Tensor> parts;
          ts::Tensor sum = ts::zeros(one.grads[i].shape());
          for (int rank = 0; rank < 4; ++rank) {
            parts.push_back(run.kept(rank, p.name));
            sum = p.split == ts::Split::whole ? sum + parts.back() : sum;
          }
          const bool partial = ts::partial_over_tensor(p, model.config, sequence_parallel);
          if (p.name.find("k_proj.bias") == std::string::npos) {
            CHECK(far_apart(partial ? sum : ts::tensor_unshard(parts, p.split), one.grads[i]) <
                  1e-5);
          }
        }
      }
    }
  }
}

TEST_CASE("tensor parallel: with context parallel, whose tokens jump, the jump within a part too") {
  const ts::Transformer model = lively(small("gpt2"));
  Batch b = some_batch(model.config);
  b.targets[3] = b.targets[17] = 5;  // each context device has as many
  const Learned one = on_one(model, b, 0.2);
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2, 3}), {{"context", 2}, {"tensor", 3}});
  for (const bool sequence_parallel : {false, true}) {
    CAPTURE(sequence_parallel);
    const ts::MeshRun run = mesh.run([&](ts::Device& d) {
      const ts::Transformer own = sharded(model, d.index("tensor"), 3);
      ts::Hooks hooks;
      hooks.dropout = 0.2;
      hooks.dropout_seed = 5;
      ts::detail::add_context_hooks(hooks, d, "context", ts::ContextParallel::ring, own.config,
                                    b.time);
      ts::detail::add_tensor_hooks(hooks, d, "tensor", own.config, sequence_parallel, b.time / 2);
      const ts::Tensor loss = own.loss(ts::tokens_at(b.ids, b.time, hooks.places, b.time / 2),
                                       ts::tokens_at(b.targets, b.time, hooks.places, b.time / 2),
                                       b.sequences, b.time / 2, hooks);
      loss.backward();
      d.keep("loss", d.all_reduce(loss, "context", ts::Reduce::mean));
      for (const ts::Parameter& p : own.parameters) {
        const bool partial = ts::partial_over_tensor(p, own.config, sequence_parallel);
        const ts::Tensor grad = d.all_reduce(p.value.grad(), "context", ts::Reduce::mean);
        d.keep(p.name, partial ? d.all_reduce(grad, "tensor") : grad);
      }
    });
    Learned many;
    many.loss = run.kept(0, "loss").item();
    for (const ts::Parameter& p : model.parameters) {
      many.grads.push_back(ts::tensor_unshard(
          {run.kept(3, p.name), run.kept(4, p.name), run.kept(5, p.name)}, p.split));
    }
    check_equal(model, many, one);
  }
}

TEST_CASE("tensor parallel: of tokens that do not divide the devices send the closed form's mean") {
  const ts::Transformer model = lively(small("llama"));
  Batch b = some_batch(model.config);
  b.time = 23;
  b.ids.resize(46);
  b.targets.resize(46);
  const ts::MeshRun run = tensor_mesh(3).run([&](ts::Device& d) {
    const ts::Transformer own = sharded(model, d.index("tensor"), 3);
    ts::Hooks hooks;
    ts::detail::add_tensor_hooks(hooks, d, "tensor", own.config, false);
    own.loss(b.ids, b.targets, b.sequences, b.time, hooks).backward();
  });
  const double all = run.bytes_sent(0) + run.bytes_sent(1) + run.bytes_sent(2);
  CHECK(all == doctest::Approx(3 * ts::tensor_parallel_bytes(model.config, 2, 23, 3).total())
                   .epsilon(1e-12));
}

TEST_CASE("tensor parallel: errors say what would be right") {
  const auto train = [](const ts::ModelConfig& c, int devices, bool sequence_parallel, Batch b,
                        int cut_over) {
    return error_of([&] {
      const ts::Transformer model(c);
      tensor_mesh(devices).run([&](ts::Device& d) {
        const ts::Transformer own = sharded(model, d.index("tensor") % cut_over, cut_over);
        ts::Hooks hooks;
        ts::detail::add_tensor_hooks(hooks, d, "tensor", c, sequence_parallel, b.time);
        own.loss(b.ids, b.targets, b.sequences, b.time, hooks).backward();
      });
    });
  };
  const ts::ModelConfig c = small("gpt2");
  const Batch b = some_batch(c);
  // What all four devices say.
  const auto all_say = [](const std::string& message) {
    return "mesh.run: devices 0-3 threw: " + message +
           "\n  devices 0-3: threw after 0 calls: " + message;
  };
  const std::string rule =
      "; each has whole heads, an equal part of the hidden layer and a token at least, so that "
      "tensor is right as one of ";
  ts::ModelConfig wrong = c;
  wrong.heads = wrong.kv_heads = 6;
  CHECK(train(wrong, 4, false, b, 1) ==
        all_say("tensor parallel: gpt2 has heads 6, over 4 devices" + rule + "1, 2, 3, 6"));
  wrong.heads = 8;
  wrong.kv_heads = 2;
  CHECK(train(wrong, 4, false, b, 1) ==
        all_say("tensor parallel: gpt2 has kv_heads 2, over 4 devices" + rule + "1, 2"));
  wrong = c;
  wrong.hidden = 50;
  CHECK(train(wrong, 4, false, b, 1) ==
        all_say("tensor parallel: gpt2 has hidden 50, over 4 devices" + rule + "1, 2"));
  wrong = c;
  wrong.experts = 2;
  wrong.top_k = 1;
  wrong.expert_hidden = 9;
  CHECK(train(wrong, 4, false, b, 1) ==
        all_say("tensor parallel: gpt2 has expert_hidden 9, over 4 devices" + rule + "1, 3"));
  wrong = c;
  wrong.vocabulary = 3;
  CHECK(train(wrong, 4, false, b, 1) ==
        all_say("tensor parallel: gpt2 has vocabulary 3, over 4 devices" + rule + "1, 2, 3"));
  Batch odd = b;
  odd.time = 22;
  CHECK(train(c, 4, true, odd, 4) ==
        all_say("sequence parallel: 22 tokens of a sequence over 4 devices; a multiple of 4 is "
                "right"));
  Batch bad = b;
  bad.ids[5] = 61;
  CHECK(train(c, 4, true, bad, 4) ==
        all_say("embedding: id 61 at position 5 is outside the vocabulary of 61"));
}

TEST_CASE("gather_again is all_gather's alone, and works under deferred weight gradients") {
  CHECK(error_of([] {
          tensor_mesh(1).run([](ts::Device& d) {
            ts::CollectiveOptions options;
            options.gather_again = true;
            d.all_reduce(ts::zeros({2}), "tensor", ts::Reduce::sum, options);
          });
        }) ==
        "mesh.run: device 0 threw: all_reduce: gather_again is set, which only all_gather has; "
        "leave it false\n  device 0: threw after 0 calls: all_reduce: gather_again is set, which "
        "only all_gather has; leave it false");
  const ts::Tensor x = ts::randn({8, 3}, 1), w = ts::randn({5, 3}, 2), v = ts::randn({4, 3}, 3);
  for (const bool deferred : {false, true}) {
    const ts::MeshRun run = tensor_mesh(2).run([&](ts::Device& d) {
      const ts::Tensor in = ts::parameter(d.shard(x, "tensor", 0));
      const ts::Tensor own = ts::parameter(w), other = ts::parameter(v);
      ts::CollectiveOptions options;
      options.gather_again = true;
      ts::Tensor loss;
      {
        const ts::Tensor all = d.all_gather(in, "tensor", 0, options);
        loss = ts::sum(ts::square(ts::matmul_transposed(all, own))) +
               ts::sum(ts::square(ts::matmul_transposed(all, other)));
      }
      ts::DeferWeightGradients later;
      if (!deferred) {
        later.stop();
      }
      loss.backward();
      later.stop();
      later.run();
      d.keep("in", in.grad());
      d.keep("own", own.grad());
      d.keep("other", other.grad());
    });
    const ts::Tensor in = ts::parameter(x), own = ts::parameter(w), other = ts::parameter(v);
    (ts::sum(ts::square(ts::matmul_transposed(in, own))) +
     ts::sum(ts::square(ts::matmul_transposed(in, other))))
        .backward();
    CHECK(far_apart(run.kept(0, "own"), own.grad()) < 1e-6);
    CHECK(far_apart(run.kept(1, "other"), other.grad()) < 1e-6);
    // Both devices computed the loss of all rows, so each row's gradient comes twice.
    CHECK(far_apart(run.kept(1, "in"), ts::slice(in.grad() * 2.0f, 0, 4, 8).clone()) < 1e-6);
  }
}

TEST_CASE("tensor parallel: the loss of logits far from 0 keeps its digits") {
  const ts::Tensor x = ts::full({1, 8, 1}, 1.0f), noise = ts::uniform({61, 1}, 3, -2, 2);
  const std::vector<std::int32_t> targets = {1, 60, -1, 30, 31, 2, 0, 59};
  for (const float far : {0.0f, 1e4f, -1e5f}) {
    CAPTURE(far);
    const ts::Tensor table = noise + far, whole = ts::parameter((table - far).detach());
    ts::Tensor loss = ts::cross_entropy(ts::matmul_transposed(x, whole), targets);
    loss.backward();
    for (const int devices : {1, 2, 3}) {
      const ts::MeshRun run = tensor_mesh(devices).run([&](ts::Device& d) {
        ts::Hooks hooks;
        ts::detail::add_tensor_hooks(hooks, d, "tensor", small("gpt2"), false, 8);
        const ts::Tensor own =
            ts::parameter(ts::tensor_shard(table, ts::Split::rows, d.index("tensor"), devices));
        const ts::Tensor part = hooks.loss(x, own, targets);
        part.backward();
        d.keep("loss", part);
        d.keep("grad", own.grad());
      });
      std::vector<ts::Tensor> parts;
      for (int rank = 0; rank < devices; ++rank) {
        CHECK(double{run.kept(rank, "loss").item()} == doctest::Approx(double{loss.item()}));
        parts.push_back(run.kept(rank, "grad"));
      }
      CHECK(far_apart(ts::concat(parts, 0), whole.grad()) < 1e-6);
    }
  }
}

TEST_CASE("tensor parallel: the hooks refuse what they were not made for") {
  // What one device alone says.
  const auto of_one = [](const std::function<void(ts::Device&, ts::Hooks&)>& body) {
    const std::string error = error_of([&] {
      tensor_mesh(1).run([&](ts::Device& d) {
        ts::Hooks hooks;
        ts::detail::add_tensor_hooks(hooks, d, "tensor", small("gpt2"), true, 8);
        body(d, hooks);
      });
    });
    return error.substr(error.rfind("calls: ") + 7);
  };
  const std::vector<std::int32_t> eight(8);
  const ts::Tensor x = ts::zeros({1, 8, 4}), table = ts::zeros({61, 4}), part = ts::zeros({60, 4});
  CHECK(of_one([&](ts::Device&, ts::Hooks& hooks) {
          hooks.embedding(table, {1, 2}, {1, 2});
        }) ==
        "sequence parallel: 2 tokens of a sequence; the hooks were made for 8, which is right");
  CHECK(of_one([&](ts::Device&, ts::Hooks& hooks) {
          hooks.embedding(part, eight, {1, 8});
        }) ==
        "embedding: device 0 of 1 has the table [60, 4]; rows 0 to 60 of 61 are right: "
        "tensor_shard cuts them");
  CHECK(of_one([&](ts::Device&, ts::Hooks& hooks) {
          hooks.embedding(table, {1}, {1, 8});
        }) == "embedding: 1 ids for shape [1, 8]; one per element is right");
  CHECK(of_one([&](ts::Device&, ts::Hooks& hooks) { hooks.loss(x, part, eight); }) ==
        "loss: device 0 of 1 has the table [60, 4]; rows 0 to 60 of 61 are right: tensor_shard "
        "cuts them");
  CHECK(of_one([&](ts::Device&, ts::Hooks& hooks) {
          hooks.loss(x, table, {1, 2});
        }) == "cross_entropy: logits are [8, 61], so 8 targets are right; given 2");
  CHECK(of_one([&](ts::Device&, ts::Hooks& hooks) {
          hooks.loss(x, table, {1, 2, 3, 4, 5, 6, 7, 61});
        }) == "cross_entropy: target 61 is outside the 61 classes (-1 leaves a row out)");
  CHECK(of_one([](ts::Device& d, ts::Hooks& hooks) {
          ts::detail::add_tensor_hooks(hooks, d, "model", small("gpt2"), true, 8);
        }) == "tensor parallel: no axis model on this mesh; its axes are tensor");
}

#endif

TEST_CASE("tensor parallel: shards put together are the whole") {
  const ts::Tensor w = ts::randn({13, 9}, 4);
  for (const ts::Split split :
       {ts::Split::whole, ts::Split::rows, ts::Split::columns, ts::Split::expert}) {
    for (const int devices : {1, 2, 3, 4, 8}) {
      std::vector<ts::Tensor> parts;
      for (int i = 0; i < devices; ++i) {
        parts.push_back(ts::tensor_shard(w, split, i, devices));
        CHECK(parts.back().data() != w.data());
      }
      CHECK(ts::tensor_unshard(parts, split).values() == w.values());
    }
  }
  CHECK(ts::tensor_shard(w, ts::Split::rows, 1, 4).shape().text() == "[3, 9]");
  CHECK(ts::tensor_shard(w, ts::Split::rows, 3, 4).values() ==
        ts::slice(w, 0, 9, 13).clone().values());
  CHECK(ts::tensor_shard(w, ts::Split::columns, 1, 3).values() ==
        ts::slice(w, 1, 3, 6).clone().values());
  CHECK(error_of([&] { ts::tensor_shard(w, ts::Split::rows, 4, 4); }) ==
        "tensor_shard: shard 4 of 4; shards of n devices are 0 to n - 1");
  CHECK(error_of([&] { ts::tensor_shard(w, ts::Split::columns, 0, 10); }) ==
        "tensor_shard: [13, 9] cut in dimension 1 over 10 devices; a size of at least 10 is right");
  CHECK(error_of([] { ts::tensor_shard(ts::zeros({4}), ts::Split::columns, 0, 2); }) ==
        "tensor_shard: [4] cut in dimension 1 over 2 devices; a size of at least 2 is right");
  CHECK(error_of([] { ts::tensor_shard(ts::Tensor(), ts::Split::rows, 0, 2); }) ==
        "tensor_shard: the tensor is empty (default-constructed); give one with a shape");
  CHECK(error_of([] { ts::tensor_unshard({}, ts::Split::rows); }) ==
        "tensor_unshard: no shards; one of each device is right");
  CHECK(error_of([] { ts::tensor_parallel_bytes(small("gpt2"), 1, 0, 2); }) ==
        "tensor_parallel_bytes: 1 sequences of 0 tokens over 2 devices; each must be at least 1");
}
