// A training step written by hand: find the matrix that made y from x. You see the loss and the
// length of its gradient fall as AdamW finds it.
//   g++ -std=c++17 -O2 -pthread -I. examples/11_own_training_step.cpp -o 11_step && ./11_step
#include <iostream>

#include "tinyscale.hpp"

namespace ts = tinyscale;

int main() {
  const ts::Tensor x = ts::randn({256, 64}, /*seed=*/1);
  const ts::Tensor y = ts::matmul(x, ts::randn({64, 64}, 2));  // the matrix to be found

  ts::Tensor w = ts::parameter(ts::randn({64, 64}, 3));
  ts::AdamWOptions options;
  options.learning_rate = 0.05;
  options.weight_decay = 0;
  ts::AdamW optimizer({w}, options);
  for (int step = 0; step <= 100; ++step) {
    const ts::Tensor loss = ts::mean(ts::square(ts::matmul(x, w) - y));
    loss.backward();
    const double norm = ts::clip_grad_norm({w}, 10.0);
    if (step % 20 == 0) {
      std::cout << "step " << step << "  loss " << ts::format_fixed(loss.item(), 4) << "  gradient "
                << ts::format_fixed(norm, 4) << " in " << w.grad().shape() << "\n";
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  return 0;
}
