// How many PEs does the emulated array step in a second, and what does the closed form cost?
// A PE-tick is one PE in one tick, busy or not; numbers are computed, not only addresses.
// Peer: the array written as one would first write it, a loop over PEs in a loop over ticks.
//   g++ -std=c++17 -O2 -pthread -I. bench/systolic.cpp && ./a.out
#include "bench.hpp"

namespace ts = tinyscale;

// One tile of weights [R, C] held, x [T, R] streamed: activations move east, sums south.
struct PlainArray {
  std::int64_t rows, cols, stream;
  std::vector<float> weights, x, act, sum, next_act, next_sum, out;

  PlainArray(std::int64_t r, std::int64_t c, std::int64_t t)
      : rows(r),
        cols(c),
        stream(t),
        weights(bench::numbers(static_cast<std::size_t>(r * c), 1)),
        x(bench::numbers(static_cast<std::size_t>(t * r), 2)),
        act(weights.size()),
        sum(weights.size()),
        next_act(weights.size()),
        next_sum(weights.size()),
        out(static_cast<std::size_t>(t * c)) {}

  std::int64_t ticks() const { return stream + rows + cols - 2; }

  void run() {
    for (std::int64_t tick = 0; tick < ticks(); ++tick) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t t = tick - r;  // which row of x reaches row r of the array now
        const float in = t >= 0 && t < stream ? x[at(t * rows + r)] : 0.0f;
        for (std::int64_t c = 0; c < cols; ++c) {
          const std::size_t pe = at(r * cols + c);
          const float a = c == 0 ? in : act[pe - 1];
          const float s = r == 0 ? 0.0f : sum[pe - at(cols)];
          next_act[pe] = a;
          next_sum[pe] = s + weights[pe] * a;
        }
      }
      for (std::int64_t c = 0; c < cols; ++c) {
        const std::int64_t t = tick - (rows - 1) - c;
        if (t >= 0 && t < stream) {
          out[at(t * cols + c)] = next_sum[at((rows - 1) * cols + c)];
        }
      }
      act.swap(next_act);
      sum.swap(next_sum);
    }
  }
  double pe_ticks() const { return static_cast<double>(rows * cols * ticks()); }

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
};

int main() {
  bench::print_machine("systolic: PE-ticks a second");
  ts::Table table;
  table.columns = {"array", "M x K x N",    "dataflow",   "ticks",
                   "time",  "PE-ticks / s", "plain loop", "/ plain loop"};
  struct Case {
    int array, m, k, n;
  };
  for (const Case& size : {Case{128, 1024, 1024, 1024}, Case{256, 1024, 1024, 1024},
                           Case{32, 256, 256, 256}, Case{8, 128, 128, 128}}) {
    const ts::Tensor x = ts::randn({size.m, size.k}, 1), w = ts::randn({size.k, size.n}, 2);
    for (const ts::Dataflow dataflow :
         {ts::Dataflow::weight_stationary, ts::Dataflow::input_stationary,
          ts::Dataflow::output_stationary}) {
      const ts::SystolicArray array(size.array, size.array, dataflow);
      const ts::SystolicTiming timing = array.timing(size.m, size.k, size.n);
      PlainArray plain(size.array, size.array, size.m);
      bench::Rounds few;
      few.rounds = 3;
      const std::vector<double> t =
          bench::compare({[&] { array.matmul(x, w); }, [&] { plain.run(); }}, few);
      const double steps = static_cast<double>(timing.ledger.total());
      table.add({ts::detail::cat(size.array, " x ", size.array),
                 ts::detail::cat(size.m, " x ", size.k, " x ", size.n), ts::name_of(dataflow),
                 std::to_string(timing.cycles), ts::format_seconds(t[0]),
                 ts::format_si(steps / t[0], ""), ts::format_si(plain.pe_ticks() / t[1], ""),
                 bench::ratio(steps / t[0], plain.pe_ticks() / t[1])});
    }
  }
  std::printf("%s", table.text().c_str());
  const ts::SystolicArray array(128, 128, ts::Dataflow::weight_stationary);
  std::int64_t m = 0, cycles = 0;
  const double formula = bench::compare({[&] {
    m = m % 4096 + 1;
    cycles += array.timing(m, 4096, 4096).cycles;
  }})[0];
  std::printf("\nclosed form: %s a case (%lld ticks in all)\n", ts::format_seconds(formula).c_str(),
              static_cast<long long>(cycles));
  return 0;
}
