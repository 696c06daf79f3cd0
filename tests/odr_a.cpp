// With odr_b.cpp: two translation units that include the header and link to one program.
#include <atomic>

#include "tinyscale.hpp"

namespace ts = tinyscale;

std::int64_t sum_elsewhere(std::int64_t n);
const void* pool_context_elsewhere();
float sum_of_elsewhere(const ts::Tensor& x);

std::int64_t sum_elsewhere(std::int64_t n) {
  std::atomic<std::int64_t> sum{0};
  ts::parallel_for(n, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      sum += i;
    }
  });
  return sum;
}

const void* pool_context_elsewhere() { return &ts::context(); }

float sum_of_elsewhere(const ts::Tensor& x) { return ts::sum(x).item(); }
