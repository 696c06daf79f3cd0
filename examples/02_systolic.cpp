// What does a systolic array do with a matmul? You see where every tick of every PE goes, counted
// by stepping it (simulated) beside the closed form (formula); how longer streams hide the shifting
// of weights; what else may stay in the PEs; bf16; and a small array tick by tick: x2,0 w0,1 is a
// PE that multiplies x[2,0] by w[0,1].
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

  // 4. Weights, inputs or sums stay in the PEs: where the PE-ticks go in each case.
  ts::Table modes;
  modes.title = "x [64, 256] times w [256, 200] on 128 x 128, % of PE-ticks (formula)";
  modes.columns = {"stationary", "schedule", "cycles", "useful",
                   "padded",     "fill",     "drain",  "shift"};
  for (const ts::Dataflow dataflow :
       {ts::Dataflow::weight_stationary, ts::Dataflow::input_stationary,
        ts::Dataflow::output_stationary}) {
    for (const ts::Schedule schedule : {ts::Schedule::serial, ts::Schedule::doubled}) {
      ts::SystolicArray other(128, 128, dataflow);
      other.schedule = schedule;
      const ts::SystolicTiming t = other.timing(64, 256, 200);
      const ts::LossLedger& l = t.ledger;
      std::vector<std::string> row = {ts::name_of(dataflow), ts::name_of(schedule),
                                      std::to_string(t.cycles)};
      for (const std::int64_t part : {l.useful, l.padded, l.fill, l.drain, l.weight_shift}) {
        row.push_back(
            ts::format_fixed(100 * static_cast<double>(part) / static_cast<double>(l.total()), 1));
      }
      modes.add(row);
    }
  }
  std::cout << modes << "\n";

  // 5. Small formats: operands are rounded as they enter. Three passes of bf16 are near to f32.
  array = ts::SystolicArray(128, 128);
  array.format = ts::DType::bf16;
  for (const int passes : {1, 3, 6}) {
    array.passes = passes;
    const ts::SystolicRun rounded = array.matmul(x, w);
    float worst = 0;
    for (std::int64_t i = 0; i < rounded.output.count(); ++i) {
      worst = std::max(worst, std::fabs(rounded.output.data()[i] - run.output.data()[i]));
    }
    std::cout << "bf16 x " << passes << ": " << rounded.cycles
              << " cycles, largest difference from f32 " << worst << "\n";
  }
  std::cout << "\n";

  // 6. A small array, tick by tick: the wave of activations crosses it on the diagonal.
  const ts::SystolicArray small(4, 4, ts::Dataflow::weight_stationary);
  const ts::Tensor a = ts::randn({8, 8}, 3);
  const ts::Tensor b = ts::randn({8, 6}, 4);
  for (const int tick : {2, 6, 17}) {
    std::cout << ts::wavefront(small, a, b, tick) << "\n";
  }

  // 7. The same as a strip of frames, and what goes through the edges in each tick.
  ts::svg(ts::wavefronts(small, a, b, 0, 12, 2)).save("02_wavefront.svg");
  std::cout << "02_wavefront.svg: twelve frames\n\nwords of x into the rows, by tick\n"
            << ts::sram_trace(small, ts::ones({4, 4}), ts::ones({4, 4})).csv_input();
  return 0;
}
