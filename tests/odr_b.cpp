// With odr_a.cpp: both units see the same state and the same functions. Compiled with different
// feature macros they do not link: sum_of_elsewhere takes another ts::Tensor there.
#include <atomic>
#include <iostream>

#include "tinyscale.hpp"

namespace ts = tinyscale;

std::int64_t sum_elsewhere(std::int64_t n);
const void* pool_context_elsewhere();
float sum_of_elsewhere(const ts::Tensor& x);

int main() {
  std::atomic<std::int64_t> sum{0};
  ts::parallel_for(1000, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      sum += i;
    }
  });
  const bool same_sum = sum == sum_elsewhere(1000);
  const bool same_context = pool_context_elsewhere() == &ts::context();
  std::cout << "sums " << (same_sum ? "agree" : "differ") << ", contexts "
            << (same_context ? "agree" : "differ") << "\n";
  const bool same_tensor = sum_of_elsewhere(ts::ones({2, 3})) == 6.0f;
  return same_sum && same_context && same_tensor ? 0 : 1;
}
