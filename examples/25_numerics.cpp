// Does it matter in which order devices add, and in which format? The same numbers are summed by
// all_reduce over 2 to 16 devices, and attention is merged from 1 to 32 blocks of keys, each beside
// float64. You see the typical error in units of half a last place: a ring that sends bf16 adds in
// bf16 in effect and gets worse with every device; to send each number once (direct) or to halve
// does not.
//   g++ -std=c++17 -O2 -pthread -I. examples/25_numerics.cpp -o 25_numerics && ./25_numerics
#include "tinyscale.hpp"
namespace ts = tinyscale;

// A row for each way and format, a column for each number of parts: 2^-24 in f32, 2^-8 in bf16.
ts::Table in_units(const ts::NumericsReport& report, const std::vector<int>& parts) {
  ts::Table table;
  table.columns = {"way", "format"};
  for (const int n : parts) {
    table.columns.push_back(std::to_string(n));
  }
  for (const ts::NumericsRow& row : report.rows) {
    if (row.parts == parts[0]) {
      std::vector<std::string> cells = {row.way, ts::name_of(row.format)};
      for (const int n : parts) {
        const double unit = row.format == ts::SumFormat::f32 ? 0x1p-24 : 0x1p-8;
        cells.push_back(ts::format_fixed(report.row(row.way, row.format, n).typical / unit, 1));
      }
      table.add(cells);
    }
  }
  return table;
}

int main() {
  for (const ts::Algorithm how : {ts::Algorithm::ring, ts::Algorithm::halving_doubling}) {
    ts::CollectiveSpec spec;
    spec.what = ts::Collective::all_reduce;
    spec.algorithm = how;
    spec.elements = 1024;
    spec.parts.push_back({4, ts::AxisKind::ring});
    const auto schedule = ts::detail::prepare(ts::make_schedule(spec));
    std::cout << ts::name_of(how) << " adds " << ts::reduction_order(*schedule, 0, 0) << "\n";
  }
  const ts::ReductionErrorOptions sums;
  const ts::NumericsReport reduced = ts::reduction_error(sums);
  std::cout << "\nall_reduce over n devices: error in half a last place\n"
            << in_units(reduced, sums.devices);

  const ts::MergeErrorOptions blocks;
  const ts::NumericsReport merged = ts::merge_error(blocks);
  std::cout << "\nattention merged from n blocks of keys: error in half a last place\n"
            << in_units(merged, blocks.blocks);

  bool below = true;
  for (const ts::NumericsReport* report : {&reduced, &merged}) {
    for (const ts::NumericsRow& row : report->rows) {
      below = below && row.error <= row.bound;
    }
  }
  std::cout << (below ? "\nevery error is below its bound\n" : "\nabove the bound!\n");
}
