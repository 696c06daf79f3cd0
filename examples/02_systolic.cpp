// What does a systolic array do with a matmul? You see where every tick of every PE goes, counted
// by stepping it (simulated) beside the closed form (formula); how longer streams hide the shifting
// of weights; and a small array tick by tick: x2,0 w0,1 is a PE that multiplies x[2,0] by w[0,1].
//   g++ -std=c++17 -O2 -pthread -I. examples/02_systolic.cpp -o 02_systolic && ./02_systolic

#include "tinyscale.hpp"

namespace ts = tinyscale;

int main() {
  const ts::Tensor x = ts::randn({64, 256}, /*seed=*/1);  // [M, K]
  const ts::Tensor w = ts::randn({256, 256}, 2);          // [K, N]

  // 1. Step every PE through every tick. The counters and the product come from the same run.
  ts::SystolicArray array(128, 128, ts::Dataflow::weight_stationary);
  const ts::SystolicRun run = array.matmul(x, w);
  std::cout << run << "\n";

  // 2. The closed form gives the same, at once and for any size.
  const ts::SystolicTiming formula = array.timing(64, 256, 256);
  std::cout << "cycles: simulated " << run.cycles << ", formula " << formula.cycles << "\n\n";

  // 3. Longer streams hide the weight shift: more rows of x per tile of weights.
  ts::Table table;
  table.title = "M x 4096 times 4096 x 4096 on 128 x 128, utilization in % (formula)";
  table.columns = {"M", "serial", "skewed", "doubled"};
  for (const int m : {1, 8, 32, 128, 512, 4096}) {
    std::vector<std::string> row = {std::to_string(m)};
    for (const ts::Schedule schedule :
         {ts::Schedule::serial, ts::Schedule::skewed, ts::Schedule::doubled}) {
      array.schedule = schedule;
      row.push_back(ts::detail::percent(array.timing(m, 4096, 4096).utilization));
    }
    table.add(row);
  }
  std::cout << table << "\n";

  // 4. A small array, tick by tick: the wave of activations crosses it on the diagonal.
  const ts::SystolicArray small(4, 4, ts::Dataflow::weight_stationary);
  const ts::Tensor a = ts::randn({8, 8}, 3);
  const ts::Tensor b = ts::randn({8, 6}, 4);
  for (const int tick : {2, 6, 17}) {
    std::cout << ts::wavefront(small, a, b, tick) << "\n";
  }
  return 0;
}
