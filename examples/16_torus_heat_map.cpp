// Which links does a collective keep busy? On a 16 x 16 torus (a TPU v5e pod): an all_reduce along
// one axis and along both, a permute whose messages meet, two axes that share one dimension's
// links, and one slow link. You see how long each takes, how evenly the links are used, and a map:
// o is a chip, the digit behind or below it how many tenths of the time its link is busy.
//   g++ -std=c++17 -O2 -pthread -I. examples/16_torus_heat_map.cpp -o 16_torus && ./16_torus
#include "tinyscale.hpp"
namespace ts = tinyscale;

// How evenly: the mean over the links that could be used.
void add(ts::Table& table, const std::string& name, const ts::MeshRun& run) {
  const ts::List<ts::LinkRow> links = run.links();
  double sum = 0;
  for (const ts::LinkRow& link : links) {
    sum += link.busy;
  }
  double formula = 0;  // of the slowest collective, its links free
  for (const ts::CollectiveRow& row : run.collectives()) {
    formula = row.formula > formula ? row.formula : formula;
  }
  table.add({name, ts::format_seconds(run.seconds), ts::format_seconds(formula),
             std::to_string(links.size()), ts::format_percent(sum / 1024), links[0].name,
             ts::format_percent(links[0].busy)});
}

int main() {
  ts::Mesh mesh(ts::machine("tpu-v5e", {16, 16}), {{"x", 16}, {"y", 4}, {"z", 4}});
  std::cout << mesh.placement() << "\n";  // y and z lie on one dimension
  const ts::Tensor grad = ts::zeros({65536});  // 256 KiB a device
  ts::Table table;
  table.title = "the 1,024 links of a 16 x 16 torus, 256 KiB a device";
  table.columns = {"what", "simulated", "formula", "used", "mean busy", "busiest", "busy"};

  const ts::MeshRun column = mesh.run([&](ts::Device& d) { d.all_reduce(grad, "x"); });
  add(table, "all_reduce over x", column);
  const ts::MeshRun both = mesh.run([&](ts::Device& d) { d.all_reduce(grad, {"x", "y", "z"}); });
  add(table, "all_reduce over x, y, z", both);
  const ts::MeshRun slow = both.with(ts::Faults().slow_link(0, 1, 4));
  add(table, "the same, link 0 -> 1 at a quarter", slow);
  const ts::MeshRun near = mesh.run([&](ts::Device& d) { d.permute(grad, "x", 1); });
  add(table, "permute by 1 along x", near);
  const ts::MeshRun far = mesh.run([&](ts::Device& d) { d.permute(grad, "x", 6); });
  add(table, "permute by 6: six messages a link", far);
  const ts::MeshRun apart = mesh.run([&](ts::Device& d) { d.all_gather(grad, "y"); });
  add(table, "all_gather over y, four links apart", apart);
  const ts::MeshRun meet = mesh.run([&](ts::Device& d) {
    ts::Pending over_y = d.start_all_gather(grad, "y");  // y's messages and z's on one link
    ts::Pending over_z = d.start_all_gather(grad, "z");
    over_y.wait();
    over_z.wait();
  });
  add(table, "all_gather over y and over z at once", meet);
  std::cout << table << "\n";

  std::cout << "all_reduce over x, y, z with a slow link: " << ts::link_map(slow)
            << "\nall_gather over y and over z at once: " << ts::link_map(meet);
  ts::link_map(slow).save("16_slow_link.svg");
  ts::link_map(meet).save("16_two_axes.svg");
  ts::device_timeline(meet).save("16_two_axes_timeline.svg");
}
