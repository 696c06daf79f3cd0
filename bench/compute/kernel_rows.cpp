// What stands around the products: norms, softmax, losses, activations, AdamW, attention. Each
// should cost one reading of what it reads and one writing of what it writes, or its multiply-adds.
#include <memory>
#include <vector>

#include "peers.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace bench {
namespace {

using Floats = std::shared_ptr<Numbers>;

Floats floats(std::int64_t count, std::uint64_t seed, float scale = 1.0f) {
  const Floats out = std::make_shared<Numbers>(numbers(count, seed));
  for (float& value : *out) {
    value *= scale;
  }
  return out;
}

struct Kernel {
  std::string name, sizes;  // as torch_worker.py knows them
  Work own;
  Streams streams;   // of so many bytes each
  double flops = 0;  // of the products in it
  double exps = 0;
};

void run(Bench& bench, const Kernel& k) {
  Case c;
  c.group = "rows-1t";
  c.what = k.name + " " + k.sizes;
  c.unit = "us";
  c.ways = {
      timed("ours", Clock::thread, one_thread(k.own)), asked("PyTorch", torch(bench, 1), c.what),
      k.flops > 0 ? limit(k.flops, 0, 1, Arithmetic::f32, k.exps) : stream_limit(k.streams, 1)};
  // In the caches it is arithmetic that limits, exp above all: no target against bytes there.
  const int count = k.streams.read + k.streams.change + k.streams.write;
  const bool in_memory = k.streams.bytes * count > 3e7;
  c.targets = {{"PyTorch", 2.0}, {"limit", k.flops > 0 || in_memory ? 0.8 : 0.0}};
  bench.run(c);
}

std::string two(std::int64_t rows, std::int64_t cols) { return ts::detail::cat({rows, " ", cols}); }

void softmax(Bench& bench, std::int64_t rows, std::int64_t cols) {
  const double bytes = 4.0 * static_cast<double>(rows * cols);
  const Floats x = floats(rows * cols, 1), y = floats(rows * cols, 2), d = floats(rows * cols, 3);
  run(bench, {"softmax",
              two(rows, cols),
              [=] { ts::kernels::softmax_forward(rows, cols, x->data(), y->data()); },
              {bytes, 1, 0, 1}});
  run(bench, {"softmax_backward",
              two(rows, cols),
              [=] { ts::kernels::softmax_backward(rows, cols, y->data(), d->data(), x->data()); },
              {bytes, 2, 1, 0}});
}

void layer_norm(Bench& bench, std::int64_t rows, std::int64_t cols) {
  const double bytes = 4.0 * static_cast<double>(rows * cols);
  const Floats x = floats(rows * cols, 1), y = floats(rows * cols, 2), dy = floats(rows * cols, 3);
  const Floats w = floats(cols, 4), b = floats(cols, 5), mean = floats(rows, 6);
  const Floats rstd = floats(rows, 7), dw = floats(cols, 8), db = floats(cols, 9);
  const auto forward = [=] {
    ts::kernels::layer_norm_forward(rows, cols, 1e-5f, x->data(), w->data(), b->data(), y->data(),
                                    mean->data(), rstd->data());
  };
  run(bench, {"layer_norm", two(rows, cols), forward, {bytes, 1, 0, 1}});
  forward();
  run(bench, {"layer_norm_backward",
              two(rows, cols),
              [=] {
                ts::kernels::layer_norm_backward(rows, cols, x->data(), w->data(), mean->data(),
                                                 rstd->data(), dy->data(), y->data(), dw->data(),
                                                 db->data());
              },
              {bytes, 2, 1, 0}});
}

void rms_norm(Bench& bench, std::int64_t rows, std::int64_t cols) {
  const double bytes = 4.0 * static_cast<double>(rows * cols);
  const Floats x = floats(rows * cols, 1), y = floats(rows * cols, 2), dy = floats(rows * cols, 3);
  const Floats w = floats(cols, 4), rstd = floats(rows, 7), dw = floats(cols, 8);
  const auto forward = [=] {
    ts::kernels::rms_norm_forward(rows, cols, 1e-5f, x->data(), w->data(), y->data(), rstd->data());
  };
  run(bench, {"rms_norm", two(rows, cols), forward, {bytes, 1, 0, 1}});
  forward();
  run(bench, {"rms_norm_backward",
              two(rows, cols),
              [=] {
                ts::kernels::rms_norm_backward(rows, cols, x->data(), w->data(), rstd->data(),
                                               dy->data(), y->data(), dw->data());
              },
              {bytes, 2, 1, 0}});
}

void activations(Bench& bench, std::int64_t n) {
  const double bytes = 4.0 * static_cast<double>(n);
  const Floats x = floats(n, 1), y = floats(n, 2), dy = floats(n, 3);
  run(bench, {"gelu",
              std::to_string(n),
              [=] { ts::kernels::gelu_tanh_forward(n, x->data(), y->data()); },
              {bytes, 1, 0, 1}});
  run(bench, {"gelu_backward",
              std::to_string(n),
              [=] { ts::kernels::gelu_tanh_backward(n, x->data(), dy->data(), y->data()); },
              {bytes, 2, 1, 0}});
  run(bench, {"silu",
              std::to_string(n),
              [=] { ts::kernels::silu_forward(n, x->data(), y->data()); },
              {bytes, 1, 0, 1}});
  run(bench, {"silu_backward",
              std::to_string(n),
              [=] { ts::kernels::silu_backward(n, x->data(), dy->data(), y->data()); },
              {bytes, 2, 1, 0}});
}

void cross_entropy(Bench& bench, std::int64_t rows, std::int64_t vocab) {
  const double bytes = 4.0 * static_cast<double>(rows * vocab);
  const Floats x = floats(rows * vocab, 1), dx = floats(rows * vocab, 2);
  const Floats losses = floats(rows, 3), lse = floats(rows, 4);
  const auto targets =
      std::make_shared<std::vector<std::int32_t>>(static_cast<std::size_t>(rows), 3);
  const auto forward = [=] {
    ts::kernels::cross_entropy_forward(rows, vocab, x->data(), targets->data(), losses->data(),
                                       lse->data());
  };
  run(bench, {"cross_entropy", two(rows, vocab), forward, {bytes, 1, 0, 0}});
  forward();
  run(bench, {"cross_entropy_backward",
              two(rows, vocab),
              [=] {
                ts::kernels::cross_entropy_backward(rows, vocab, x->data(), lse->data(),
                                                    targets->data(), 1e-3f, dx->data(), 0.0f);
              },
              {bytes, 1, 0, 1}});
}

// The last product and its loss, both ways: logits of a block of rows at a time.
void linear_cross_entropy(Bench& bench, std::int64_t rows, std::int64_t width, std::int64_t vocab) {
  const Floats x = floats(rows * width, 1), w = floats(vocab * width, 2, 0.02f);
  const Floats dx = floats(rows * width, 3), dw = floats(vocab * width, 4);
  const Floats losses = floats(rows, 5), lse = floats(rows, 6);
  const auto targets =
      std::make_shared<std::vector<std::int32_t>>(static_cast<std::size_t>(rows), 3);
  ts::kernels::LinearCrossEntropy c{};
  c.rows = rows;
  c.width = width;
  c.vocab = vocab;
  c.x = x->data();
  c.w = w->data();
  c.targets = targets->data();
  c.scale = 1.0f / static_cast<float>(rows);
  c.dx = dx->data();
  c.dw = dw->data();
  run(bench, {"linear_cross_entropy",
              ts::detail::cat({rows, " ", width, " ", vocab}),
              [=] {
                static_cast<void>(x != w && dx != dw && targets != nullptr);  // kept alive
                ts::kernels::linear_cross_entropy(c, losses->data(), lse->data());
              },
              {},
              6.0 * static_cast<double>(rows) * static_cast<double>(width * vocab)});
}

void adamw(Bench& bench, std::int64_t n) {
  const Floats p = floats(n, 1), g = floats(n, 2);
  const Floats m = floats(n, 3, 0.0f), v = floats(n, 4, 0.0f);
  ts::kernels::AdamWStep step;
  step.weight_decay = 0.1f;
  run(bench, {"adamw",
              std::to_string(n),
              [=] { ts::kernels::adamw(n, step, g->data(), p->data(), m->data(), v->data()); },
              {4.0 * static_cast<double>(n), 1, 3, 0}});
}

void attention(Bench& bench, std::int64_t batch, std::int64_t heads, std::int64_t time,
               std::int64_t head_size) {
  ts::kernels::AttentionShape s;
  s.batch = batch;
  s.queries = s.keys = time;
  s.heads = s.kv_heads = heads;
  s.head_size = head_size;
  s.q_stride = s.k_stride = s.v_stride = s.o_stride = heads * head_size;
  s.q_batch = s.k_batch = s.v_batch = s.o_batch = time * heads * head_size;
  s.causal = 1;
  const std::int64_t count = batch * s.q_batch;
  const Floats q = floats(count, 1), k = floats(count, 2), v = floats(count, 3);
  const Floats o = floats(count, 4), dout = floats(count, 5), lse = floats(batch * heads * time, 6);
  const Floats dq = floats(count, 7), dk = floats(count, 8), dv = floats(count, 9);
  const std::string sizes = ts::detail::cat({batch, " ", heads, " ", time, " ", head_size});
  const double pairs = static_cast<double>(batch * heads * time * (time + 1) / 2);
  const double product = 2.0 * pairs * static_cast<double>(head_size);
  const auto forward = [=] {
    ts::kernels::attention_forward(s, q->data(), k->data(), v->data(), o->data(), lse->data());
  };
  run(bench, {"attention", sizes, forward, {}, 2 * product, pairs});
  forward();
  run(bench, {"attention_backward",
              sizes,
              [=] {
                ts::kernels::attention_backward(s, q->data(), k->data(), v->data(), o->data(),
                                                lse->data(), dout->data(), dq->data(), dk->data(),
                                                dv->data());
              },
              {},
              5 * product,
              pairs});  // the scores are computed again
}

}  // namespace

void kernel_rows(Bench& bench) {
  if (!bench.wants("rows-1t", "kernels beside the products, 1 thread, us; roof: the same bytes")) {
    return;
  }
  softmax(bench, 512, 256);
  softmax(bench, 4096, 2048);
  layer_norm(bench, 512, 128);
  layer_norm(bench, 8192, 1024);
  rms_norm(bench, 8192, 1024);
  activations(bench, 512 * 512);
  activations(bench, 8 << 20);
  cross_entropy(bench, 512, 256);
  cross_entropy(bench, 256, 50257);
  linear_cross_entropy(bench, 512, 128, 256);
  linear_cross_entropy(bench, 256, 768, 50257);
  adamw(bench, 842 * 1000);
  adamw(bench, 16 << 20);
  attention(bench, 4, 4, 128, 32);
  attention(bench, 4, 12, 64, 64);
  attention(bench, 1, 12, 1024, 64);
}

}  // namespace bench
