// How many PEs does the emulated array step in a second, and what does the closed form cost?
// A PE-tick is one PE in one tick, busy or not; numbers are computed, not only addresses.
// Peer: the array written as one would first write it, a loop over PEs in a loop over ticks.
//   g++ -std=c++17 -O2 -pthread -I. bench/systolic.cpp && ./a.out
#include "bench.hpp"
#include "options.hpp"

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

struct Case {
  int array, m, k, n;
  ts::Dataflow dataflow;
  ts::Schedule schedule;
  double target;  // PE-ticks a second, one core; 0: none stated
};

// The targets are those of an AVX-512 CPU, or of an AVX2 one.
double target_of(int array) {
  const ts::CpuPath path = ts::detail::active_path();
  return array == 8                    ? 1e9
         : path == ts::CpuPath::avx512 ? 5e9
         : path == ts::CpuPath::avx2   ? 2.5e9
                                       : 0;
}

void stepped(ts::Table& table, const Case& c) {
  const ts::Tensor x = ts::randn({c.m, c.k}, 1), w = ts::randn({c.k, c.n}, 2);
  ts::SystolicArray array(c.array, c.array, c.dataflow);
  array.schedule = c.schedule;
  const ts::SystolicTiming timing = array.timing(c.m, c.k, c.n);
  PlainArray plain(c.array, c.array, c.m);
  bench::Rounds few;
  few.rounds = 9;
  const std::vector<double> t =
      bench::compare({[&] { array.matmul(x, w); }, [&] { plain.run(); }}, few);
  const double rate = static_cast<double>(timing.ledger.total()) / t[0];
  table.add({ts::detail::cat({c.array, " x ", c.array}),
             ts::detail::cat({c.m, " x ", c.k, " x ", c.n}), ts::name_of(c.dataflow),
             ts::name_of(c.schedule), std::to_string(timing.cycles), ts::format_seconds(t[0]),
             ts::format_si(rate, ""), bench::ratio(rate, plain.pe_ticks() / t[1]),
             c.target > 0 ? ts::format_si(c.target, "") + (rate >= c.target ? ", met" : ", missed")
                          : "-"});
}

int main(int count, char** words) {
  bench::read_options(count, words, {});
  bench::print_machine("systolic: PE-ticks a second (TINYSCALE_THREADS=1 for one core)");
  ts::Table table;
  table.columns = {"array", "M x K x N",    "dataflow",     "schedule",        "ticks",
                   "time",  "PE-ticks / s", "/ plain loop", "target, one core"};
  for (const int size : {128, 256, 32, 8}) {
    const int n = size >= 128 ? 1024 : size == 32 ? 256 : 128;
    for (const ts::Dataflow dataflow :
         {ts::Dataflow::weight_stationary, ts::Dataflow::input_stationary,
          ts::Dataflow::output_stationary}) {
      stepped(table, {size, n, n, n, dataflow, ts::Schedule::doubled,
                      size == 128 || size == 8 ? target_of(size) : 0});
    }
  }
  stepped(table, {128, 1024, 1024, 1024, ts::Dataflow::weight_stationary, ts::Schedule::serial,
                  target_of(128)});
  std::printf("%s", table.text().c_str());
  const ts::SystolicArray array(128, 128, ts::Dataflow::weight_stationary);
  std::int64_t m = 0, cycles = 0;
  const double formula = bench::compare({[&] {
    m = m % 4096 + 1;
    cycles += array.timing(m, 4096, 4096).cycles;
  }})[0];
  std::printf("\nclosed form: %s a case, target 1 us, %s (%lld ticks in all)\n",
              ts::format_seconds(formula).c_str(), formula < 1e-6 ? "met" : "missed",
              static_cast<long long>(cycles));
  return 0;
}
