// What one op costs beside its arithmetic: an add of one number, a profile off, the autograd node
// included or not, and an add that a profile records. PyTorch eager takes 1 to 2 us
// (tools that measure it: python3 -m timeit -s 'import torch; a = torch.ones(1)' 'a + a').

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "options.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

template <class F>
double nanoseconds(const F& body) {  // best of nine
  double best = 1e30;
  for (int repeat = 0; repeat < 9; ++repeat) {
    const int n = 20000;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < n; ++i) {
      body();
    }
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - begin;
    best = std::min(best, spent.count() / n);
  }
  return best;
}

}  // namespace

int main(int count, char** words) {
  bench::read_options(count, words, {});
  const ts::Tensor a = ts::ones({1});
  const ts::Tensor b = ts::ones({1});
  const ts::Tensor p = ts::parameter(a);
  const ts::Tensor matrix = ts::ones({64, 64});
  const ts::Tensor row = ts::ones({64});
  std::printf("handle copied       %6.0f ns\n", nanoseconds([&] { const ts::Tensor c = a; }));
  std::printf("tensor made         %6.0f ns\n",
              nanoseconds([&] { const ts::Tensor c(a.shape()); }));
  std::printf("add                 %6.0f ns\n", nanoseconds([&] { ts::add(a, b); }));
  std::printf("add, autograd node  %6.0f ns\n", nanoseconds([&] { ts::add(p, b); }));
  std::printf("and backward        %6.0f ns\n", nanoseconds([&] { ts::add(p, b).backward(); }));
  std::printf("[64, 64] + [64]     %6.0f ns\n", nanoseconds([&] { ts::add(matrix, row); }));
  {
    const ts::Profile profile;
    std::printf("add, in a profile   %6.0f ns\n", nanoseconds([&] { ts::add(a, b); }));
  }
  return 0;
}
