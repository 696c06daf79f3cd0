// Eager ops on tensors, each a whole call with its result: logarithms and roots, comparisons and
// choices, maxima, numbers that only move. In the caches, so that only a peer says what is slow.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "peers.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace bench {
namespace {

constexpr std::int64_t rows = 1024, cols = 1024;

// `name` as torch_worker.py knows it; a matrix read and a matrix written are the least there is.
void run(Bench& bench, const std::string& name, const std::function<ts::Tensor()>& op) {
  Case c;
  c.group = "eager-1t";
  c.what = ts::detail::cat({name, " ", rows, " ", cols});
  c.unit = "us";
  const Work own = [op] {
    const ts::NoGrad no_grad;
    op();
  };
  c.ways = {timed("ours", Clock::thread, one_thread(own)),
            asked("PyTorch", torch(bench, 1), c.what)};
  c.targets = {{"PyTorch", 0.9}};  // no slower, but for noise
  bench.run(c);
}

}  // namespace

void eager_rows(Bench& bench) {
  if (!bench.wants("eager-1t", "eager ops on [1024, 1024] tensors, 1 thread, us")) {
    return;
  }
  const ts::Tensor x = ts::uniform({rows, cols}, 1), y = ts::uniform({rows, cols}, 2);
  const ts::Tensor half = ts::full(ts::Shape{}, 0.5f);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(rows * cols));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int32_t>(7 * i % static_cast<std::size_t>(cols));
  }
  run(bench, "log", [=] { return ts::log(x); });
  run(bench, "sqrt", [=] { return ts::sqrt(x); });
  run(bench, "abs", [=] { return ts::abs(x); });
  run(bench, "cube", [=] { return ts::pow(x, 3); });
  run(bench, "maximum", [=] { return ts::maximum(x, y); });
  run(bench, "where", [=] { return ts::where(ts::less(x, half), x, y); });
  run(bench, "largest", [=] { return ts::max(x, 1); });
  run(bench, "largest_down", [=] { return ts::max(x, 0); });
  run(bench, "log_softmax", [=] { return ts::log_softmax(x); });
  run(bench, "softmax_down", [=] { return ts::softmax(x, 0); });
  run(bench, "turned", [=] { return ts::contiguous(ts::transpose(x, 0, 1)); });
  run(bench, "add_turned", [=] { return x + ts::transpose(y, 0, 1); });
  run(bench, "concat", [=] { return ts::concat({x, y}, 1); });
  run(bench, "gather", [=] { return ts::gather(x, 1, ids, {rows, cols}); });
  run(bench, "dots", [=] { return ts::einsum("ij,ij->i", x, y); });
}

}  // namespace bench
