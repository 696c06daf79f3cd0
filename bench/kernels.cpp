// Do the kernels beside the matrix product run at the speed of memory, or of arithmetic?
// Each is counted as if alone: operands read once, results written once. The roof is one reading of
// as many bytes, on one thread in the same rounds, or the multiply-add loop for attention.
// Peers: the same formula written as a plain loop over std:: functions, compiled as this file is,
// and PyTorch, run eagerly by a Python that can import it.
//   g++ -std=c++17 -O2 -pthread -I. bench/kernels.cpp && ./a.out
#include "bench.hpp"
#include "options.hpp"

namespace ts = tinyscale;

struct Case {
  std::string kernel, shape;
  double flops = 0, bytes = 0;  // flops of matrix products alone
  bench::Work own, plain;
  std::string torch;  // Python that sets it up, then defines run()
};

using Floats = std::vector<float>;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

Case softmax(std::int64_t rows, std::int64_t cols) {
  const auto x = std::make_shared<Floats>(bench::numbers(size(rows * cols), 1));
  const auto y = std::make_shared<Floats>(x->size());
  Case c;
  c.kernel = "softmax";
  c.shape = ts::detail::cat({rows, " x ", cols});
  c.bytes = 8.0 * static_cast<double>(rows * cols);
  c.own = [=] { ts::kernels::softmax_forward(rows, cols, x->data(), y->data()); };
  c.plain = [=] {
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* in = x->data() + r * cols;
      float* out = y->data() + r * cols;
      const float top = *std::max_element(in, in + cols);
      float sum = 0;
      for (std::int64_t j = 0; j < cols; ++j) {
        sum += out[j] = std::exp(in[j] - top);
      }
      for (std::int64_t j = 0; j < cols; ++j) {
        out[j] /= sum;
      }
    }
  };
  c.torch = ts::detail::cat(
      {"x = torch.rand(", rows, ", ", cols, ")\ndef run(): return torch.softmax(x, -1)\n"});
  return c;
}

Case layer_norm(std::int64_t rows, std::int64_t cols) {
  const auto x = std::make_shared<Floats>(bench::numbers(size(rows * cols), 1));
  const auto y = std::make_shared<Floats>(x->size());
  const auto w = std::make_shared<Floats>(size(cols), 1.0f);
  const auto mean = std::make_shared<Floats>(size(rows));
  const auto rstd = std::make_shared<Floats>(size(rows));
  Case c;
  c.kernel = "layer norm";
  c.shape = ts::detail::cat({rows, " x ", cols});
  c.bytes = 8.0 * static_cast<double>(rows * cols);
  c.own = [=] {
    ts::kernels::layer_norm_forward(rows, cols, 1e-5f, x->data(), w->data(), nullptr, y->data(),
                                    mean->data(), rstd->data());
  };
  c.plain = [=] {
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* in = x->data() + r * cols;
      float sum = 0, squares = 0;
      for (std::int64_t j = 0; j < cols; ++j) {
        sum += in[j];
      }
      const float m = sum / static_cast<float>(cols);
      for (std::int64_t j = 0; j < cols; ++j) {
        squares += (in[j] - m) * (in[j] - m);
      }
      const float s = 1.0f / std::sqrt(squares / static_cast<float>(cols) + 1e-5f);
      for (std::int64_t j = 0; j < cols; ++j) {
        (*y)[size(r * cols + j)] = (in[j] - m) * s * (*w)[size(j)];
      }
    }
  };
  c.torch = ts::detail::cat({"x, w = torch.rand(", rows, ", ", cols, "), torch.ones(", cols,
                             ")\ndef run(): return F.layer_norm(x, (", cols, ",), w)\n"});
  return c;
}

Case gelu(std::int64_t n) {
  const auto x = std::make_shared<Floats>(bench::numbers(size(n), 1));
  const auto y = std::make_shared<Floats>(x->size());
  Case c;
  c.kernel = "gelu";
  c.shape = std::to_string(n);
  c.bytes = 8.0 * static_cast<double>(n);
  c.own = [=] { ts::kernels::gelu_forward(n, x->data(), y->data()); };
  c.plain = [=] {
    for (std::size_t i = 0; i < x->size(); ++i) {
      (*y)[i] = 0.5f * (*x)[i] * (1.0f + std::erf((*x)[i] * 0.70710678f));
    }
  };
  c.torch = ts::detail::cat({"x = torch.rand(", n, ")\ndef run(): return F.gelu(x)\n"});
  return c;
}

Case gelu_backward(std::int64_t n) {
  const auto x = std::make_shared<Floats>(bench::numbers(size(n), 1));
  const auto dy = std::make_shared<Floats>(bench::numbers(size(n), 2));
  const auto dx = std::make_shared<Floats>(x->size());
  Case c;
  c.kernel = "gelu backward";
  c.shape = std::to_string(n);
  c.bytes = 16.0 * static_cast<double>(n);  // dx is read and written: it gathers
  c.own = [=] { ts::kernels::gelu_backward(n, x->data(), dy->data(), dx->data()); };
  c.plain = [=] {
    for (std::size_t i = 0; i < x->size(); ++i) {
      const float v = (*x)[i];
      const float phi = 0.5f * (1.0f + std::erf(v * 0.70710678f));
      (*dx)[i] += (*dy)[i] * (phi + v * 0.39894228f * std::exp(-0.5f * v * v));
    }
  };
  c.torch = ts::detail::cat({"x, d = torch.rand(", n, "), torch.rand(", n,
                             ")\ndef run(): return torch.ops.aten.gelu_backward(d, x)\n"});
  return c;
}

Case cross_entropy(std::int64_t rows, std::int64_t vocab) {
  const auto x = std::make_shared<Floats>(bench::numbers(size(rows * vocab), 1));
  const auto dx = std::make_shared<Floats>(x->size());
  const auto losses = std::make_shared<Floats>(size(rows));
  const auto lse = std::make_shared<Floats>(size(rows));
  const auto targets = std::make_shared<std::vector<std::int32_t>>(size(rows), 3);
  Case c;
  c.kernel = "cross entropy, both ways";
  c.shape = ts::detail::cat({rows, " x ", vocab});
  c.bytes = 12.0 * static_cast<double>(rows * vocab);
  c.own = [=] {
    ts::kernels::cross_entropy_forward(rows, vocab, x->data(), targets->data(), losses->data(),
                                       lse->data());
    ts::kernels::cross_entropy_backward(rows, vocab, x->data(), lse->data(), targets->data(), 1e-3f,
                                        dx->data());
  };
  c.plain = [=] {
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* in = x->data() + r * vocab;
      float* out = dx->data() + r * vocab;
      const float top = *std::max_element(in, in + vocab);
      float sum = 0;
      for (std::int64_t j = 0; j < vocab; ++j) {
        sum += std::exp(in[j] - top);
      }
      const float all = top + std::log(sum);
      const std::int64_t target = (*targets)[size(r)];
      (*losses)[size(r)] = all - in[target];
      for (std::int64_t j = 0; j < vocab; ++j) {
        out[j] = 1e-3f * (std::exp(in[j] - all) - (j == target ? 1.0f : 0.0f));
      }
    }
  };
  c.torch = ts::detail::cat({"x = torch.rand(", rows, ", ", vocab,
                             ", requires_grad=True)\nt = torch.full((", rows, ",), 3)\n",
                             "def run(): x.grad = None; F.cross_entropy(x, t).backward()\n"});
  return c;
}

Case adamw(std::int64_t n) {
  const auto p = std::make_shared<Floats>(bench::numbers(size(n), 1));
  const auto g = std::make_shared<Floats>(bench::numbers(size(n), 2));
  const auto m = std::make_shared<Floats>(p->size()), v = std::make_shared<Floats>(p->size());
  Case c;
  c.kernel = "adamw";
  c.shape = std::to_string(n);
  c.bytes = 28.0 * static_cast<double>(n);
  ts::kernels::AdamWStep step;
  step.weight_decay = 0.1f;
  c.own = [=] { ts::kernels::adamw(n, step, g->data(), p->data(), m->data(), v->data()); };
  c.plain = [=] {
    for (std::size_t i = 0; i < p->size(); ++i) {
      float &first = (*m)[i], &second = (*v)[i];
      first = 0.9f * first + 0.1f * (*g)[i];
      second = 0.999f * second + 0.001f * (*g)[i] * (*g)[i];
      const float root = std::sqrt(second / 0.001f) + 1e-8f;
      (*p)[i] = (*p)[i] * (1.0f - 1e-4f) - 1e-3f * (first / 0.1f) / root;
    }
  };
  c.torch = ts::detail::cat({"p = torch.rand(", n, ", requires_grad=True); p.grad = torch.rand(", n,
                             ")\nadamw = torch.optim.AdamW([p])\ndef run(): adamw.step()\n"});
  return c;
}

Case attention(std::int64_t batch, std::int64_t heads, std::int64_t time, std::int64_t head_size) {
  ts::kernels::AttentionShape s;
  s.batch = batch;
  s.queries = s.keys = time;
  s.heads = s.kv_heads = heads;
  s.head_size = head_size;
  s.q_stride = s.k_stride = s.v_stride = s.o_stride = heads * head_size;
  s.q_batch = s.k_batch = s.v_batch = s.o_batch = time * heads * head_size;
  s.causal = 1;
  const std::size_t count = size(batch * s.q_batch);
  const auto q = std::make_shared<Floats>(bench::numbers(count, 1));
  const auto k = std::make_shared<Floats>(bench::numbers(count, 2));
  const auto v = std::make_shared<Floats>(bench::numbers(count, 3));
  const auto o = std::make_shared<Floats>(count);
  const auto lse = std::make_shared<Floats>(size(batch * heads * time));
  Case c;
  c.kernel = "attention";
  c.shape = ts::detail::cat({batch, " x ", heads, " x ", time, " x ", head_size});
  const double pairs = static_cast<double>(batch * heads * time * (time + 1) / 2);
  c.flops = 4.0 * pairs * static_cast<double>(head_size);
  c.bytes = 16.0 * static_cast<double>(count);
  c.own = [=] {
    ts::kernels::attention_forward(s, q->data(), k->data(), v->data(), o->data(), lse->data());
  };
  c.plain = [=] {
    Floats p(size(time));
    for (std::int64_t task = 0; task < batch * heads; ++task) {
      const std::int64_t at = task / heads * s.q_batch + task % heads * head_size;
      for (std::int64_t i = 0; i < time; ++i) {
        float top = -INFINITY, sum = 0;
        for (std::int64_t j = 0; j <= i; ++j) {
          float dot = 0;
          for (std::int64_t x = 0; x < head_size; ++x) {
            dot += (*q)[size(at + i * s.q_stride + x)] * (*k)[size(at + j * s.q_stride + x)];
          }
          p[size(j)] = dot / std::sqrt(static_cast<float>(head_size));
          top = std::max(top, p[size(j)]);
        }
        float* out = o->data() + at + i * s.q_stride;
        std::fill(out, out + head_size, 0.0f);
        for (std::int64_t j = 0; j <= i; ++j) {
          p[size(j)] = std::exp(p[size(j)] - top);
          sum += p[size(j)];
        }
        for (std::int64_t j = 0; j <= i; ++j) {
          for (std::int64_t x = 0; x < head_size; ++x) {
            out[x] += p[size(j)] / sum * (*v)[size(at + j * s.q_stride + x)];
          }
        }
      }
    }
  };
  c.torch = ts::detail::cat(
      {"q, k, v = (torch.rand(", batch, ", ", heads, ", ", time, ", ", head_size,
       ") for _ in range(3))\nmask = torch.triu(torch.ones(", time, ", ", time,
       "), 1) > 0\ndef run():\n    if hasattr(F, 'scaled_dot_product_attention'):\n",
       "        return F.scaled_dot_product_attention(q, k, v, is_causal=True)\n",
       "    s = (q @ k.transpose(2, 3)) * ", head_size, " ** -0.5\n",
       "    return torch.softmax(s.masked_fill(mask, float('-inf')), -1) @ v\n"});
  return c;
}

// The last matmul, the loss and both gradients; the plain loop is left out, it would take minutes.
Case linear_cross_entropy(std::int64_t rows, std::int64_t width, std::int64_t vocab) {
  const auto x = std::make_shared<Floats>(bench::numbers(size(rows * width), 1));
  const auto w = std::make_shared<Floats>(bench::numbers(size(vocab * width), 2));
  const auto dx = std::make_shared<Floats>(x->size());
  const auto dw = std::make_shared<Floats>(w->size());
  const auto losses = std::make_shared<Floats>(size(rows));
  const auto lse = std::make_shared<Floats>(size(rows));
  const auto targets = std::make_shared<std::vector<std::int32_t>>(size(rows), 3);
  Case c;
  c.kernel = "linear + cross entropy";
  c.shape = ts::detail::cat({rows, " x ", width, " x ", vocab});
  c.flops = 6.0 * static_cast<double>(rows * width * vocab);
  c.bytes = 8.0 * static_cast<double>(vocab * width);
  c.own = [=] {
    ts::kernels::linear_cross_entropy({rows, width, vocab, x->data(), w->data(), targets->data(),
                                       1e-3f, dx->data(), dw->data(), 0.0f, 0.0f},
                                      losses->data(), lse->data());
  };
  c.torch = ts::detail::cat(
      {"x = torch.rand(", rows, ", ", width, ", requires_grad=True)\nw = torch.rand(", vocab, ", ",
       width, ", requires_grad=True)\nt = torch.full((", rows, ",), 3)\n",
       "def run(): x.grad = w.grad = None; F.cross_entropy(x @ w.T, t).backward()\n"});
  return c;
}

// Median seconds of each case in PyTorch on one thread; empty when it is not there.
std::vector<double> torch_seconds(const std::vector<Case>& cases) {
  std::string program =
      "import statistics, time, torch\nfrom torch.nn import functional as F\n"
      "torch.set_num_threads(1)\n"
      "def timed(run):\n"
      "    run(); start = time.perf_counter(); run()\n"
      "    many = max(1, int(4e-3 / (time.perf_counter() - start))); times = []\n"
      "    for _ in range(7):\n"
      "        start = time.perf_counter()\n"
      "        for _ in range(many): run()\n"
      "        times.append((time.perf_counter() - start) / many)\n"
      "    return statistics.median(times)\n";
  for (const Case& c : cases) {
    program += c.torch + "print(timed(run))\n";
  }
  std::vector<double> found = bench::python_numbers(program);
  found.resize(found.empty() ? 0 : cases.size());
  return found;
}

int main(int count, char** words) {
  bench::read_options(count, words, {});
  bench::print_machine("kernels: how near to the limit of memory or arithmetic");
  const int threads = ts::thread_count();
  const std::vector<Case> cases = {softmax(768, 256),
                                   softmax(2048, 4096),
                                   layer_norm(768, 128),
                                   layer_norm(8192, 1024),
                                   gelu(768 * 512),
                                   gelu(8 << 20),
                                   gelu_backward(768 * 512),
                                   gelu_backward(4 << 20),
                                   cross_entropy(768, 256),
                                   cross_entropy(192, 32768),
                                   adamw(800 * 1000),
                                   adamw(4 << 20),
                                   attention(12, 4, 64, 32),
                                   attention(4, 4, 128, 32),
                                   attention(1, 12, 1024, 64),
                                   linear_cross_entropy(512, 128, 256),
                                   linear_cross_entropy(256, 768, 8192)};
  const std::vector<double> torch = torch_seconds(cases);
  if (torch.empty()) {
    bench::skip("PyTorch", "python3 cannot import torch");
  }
  const std::string all = std::to_string(threads) + "T";
  ts::Table table;
  table.columns = {"kernel",    "shape",       "bytes",           "1T",          "roof", "unit",
                   "1T / roof", all + " / 1T", "1T / plain loop", "1T / PyTorch"};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    bench::Rounds few;
    few.rounds = 5;
    const bench::ReadLimit read(c.bytes);
    const bool math = c.flops > 0;
    const std::vector<double> t =
        bench::compare({bench::serial(c.own), c.own, c.plain,
                        bench::serial(math ? bench::Work(bench::limit_loop) : read.work())},
                       few);
    const double roof = math ? c.flops * t[3] / bench::limit_flops : t[3];
    const double work = math ? c.flops : c.bytes;
    table.add({c.kernel, c.shape, ts::format_bytes(c.bytes), bench::rate(work, t[0], 1e9),
               bench::rate(work, roof, 1e9), math ? "GFLOP/s" : "GB/s", bench::ratio(roof, t[0]),
               bench::ratio(t[0], t[1]), bench::ratio(t[2], t[0]),
               torch.empty() ? "-" : bench::ratio(torch[i], t[0])});
  }
  std::printf("%s", table.text().c_str());
  std::printf(
      "\n1T: one thread, path %s; %s: %d threads. Against a peer, above 1: tinyscale is "
      "faster.\n",
      ts::name_of(ts::cpu().path), all.c_str(), threads);
  return 0;
}
