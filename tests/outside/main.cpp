// Built by a project that only knows the installed package.
#include <iostream>

#include "tinyscale.hpp"

namespace ts = tinyscale;

int main() {
  const ts::Tensor x = ts::tensor({1, 2}, {1.0f, 2.0f});
  const ts::Tensor w = ts::tensor({2, 1}, {3.0f, 4.0f});
  const float product = ts::matmul(x, w).item();
  std::cout << "tinyscale " << TINYSCALE_VERSION << ": " << product << "\n";
  return product == 11.0f ? 0 : 1;
}
