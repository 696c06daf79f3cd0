// Tree or ring? An all_reduce by every algorithm and of many sizes, on a ring of sixteen TPU v5e,
// on a node of eight H100 and on four nodes. You see simulated times (of every message, sharing
// links fairly), a star where no closed form says the same, what automatic takes, and the size from
// which the ring beats the tree: few steps win while latency counts, few bytes when bandwidth does.
// 15_*.svg has the curves.
//   g++ -std=c++17 -O2 -pthread -I. examples/15_tree_or_ring.cpp -o 15_tree && ./15_tree
#include <cmath>

#include "tinyscale.hpp"
namespace ts = tinyscale;

constexpr ts::Algorithm ways[] = {
    ts::Algorithm::ring, ts::Algorithm::ring_both_ways, ts::Algorithm::halving_doubling,
    ts::Algorithm::tree, ts::Algorithm::direct,         ts::Algorithm::hierarchical};

ts::MeshRun sum(const ts::Mesh& mesh, const ts::Axes& over, ts::Algorithm way, std::int64_t count) {
  ts::CollectiveOptions options;
  options.algorithm = way;
  const ts::Tensor gradient = ts::zeros({count});
  return mesh.run([&](ts::Device& d) { d.all_reduce(gradient, over, ts::Reduce::sum, options); });
}

// Halves the stretch of sizes in which the shorter of the two changes.
void find_crossover(const ts::Mesh& mesh, const ts::Axes& over) {
  std::int64_t low = 512, high = 1 << 20;  // f32 numbers
  bool tree_first = false;
  while (high - low > 512) {
    const std::int64_t middle = (low + high) / 1024 * 512;  // a multiple of 512: all chunks equal
    const bool tree = sum(mesh, over, ts::Algorithm::tree, middle).seconds <
                      sum(mesh, over, ts::Algorithm::ring, middle).seconds;
    tree_first = tree_first || tree;
    (tree ? low : high) = middle;
  }
  std::cout << "ring beats tree "
            << (tree_first ? "from " + ts::format_bytes(4.0 * double(high)) : "at every size")
            << "\n\n";
}

void compare(const std::string& file, const ts::Mesh& mesh, const ts::Axes& over) {
  ts::Table table;
  table.title = "all_reduce on " + mesh.machine().name;
  table.columns = {"f32 numbers"};
  ts::Plot plot;
  plot.title = table.title + ": lines simulated, dots by formula";
  plot.x = {"bytes of the vector", ts::Scale::logarithmic, 0, 0};
  plot.y = {"microseconds", ts::Scale::logarithmic, 0, 0};
  for (const ts::Algorithm way : ways) {
    table.columns.push_back(ts::name_of(way));
    plot.series.push_back({ts::name_of(way), {}, {}, ts::Mark::line});
  }
  table.columns.push_back("automatic");
  ts::Series formulas = {"formula", {}, {}, ts::Mark::hollow_points};
  for (std::int64_t count = 256; count <= (1 << 20); count *= 4) {
    std::vector<ts::Cell> row = {ts::format_count(double(count))};
    for (std::size_t i = 0; i < plot.series.size(); ++i) {
      const ts::MeshRun run = sum(mesh, over, ways[i], count);
      const double formula = run.collectives()[0].formula;  // below 0: none
      const bool equal = std::fabs(run.seconds - formula) < 1e-9 * formula;
      row.push_back(ts::format_seconds(run.seconds) + (equal ? "" : "*"));
      plot.series[i].x.push_back(4.0 * double(count));
      plot.series[i].y.push_back(run.seconds * 1e6);
      if (formula > 0) {
        formulas.x.push_back(4.0 * double(count));
        formulas.y.push_back(formula * 1e6);
      }
    }
    row.push_back(sum(mesh, over, ts::Algorithm::automatic, count).collectives()[0].algorithm);
    table.add(row);
  }
  plot.series.push_back(formulas);
  ts::svg(plot).save(file);
  std::cout << table;
  find_crossover(mesh, over);
}

int main() {
  compare("15_v5e.svg", {ts::machine("tpu-v5e", {1, 16}), {{"x", 16}}}, "x");
  compare("15_h100.svg", {ts::machine("h100", {1, 8}), {{"x", 8}}}, "x");
  compare("15_h100_nodes.svg", {ts::machine("h100", {4, 8}), {{"node", 4}, {"x", 8}}},
          {"node", "x"});
}
