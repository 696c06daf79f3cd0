// Which links does a collective keep busy? On an 8 x 8 torus: an all_reduce along one axis and
// along all, permutes near and far, two axes that share the links of a dimension, a slow link. You
// see how long each takes, how evenly the links are used, and a map: o is a chip, the digit behind
// or below it how many tenths of the time its link is busy.
//   g++ -std=c++17 -O2 -pthread -I. examples/16_torus_heat_map.cpp -o 16_torus && ./16_torus
#include "tinyscale.hpp"
namespace ts = tinyscale;

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
             std::to_string(links.size()), ts::format_percent(sum / 256), links[0].name,
             ts::format_percent(links[0].busy)});
}

int main() {
  ts::Machine torus = ts::machine("tpu-v5e", {8, 8});
  torus.name = "8 x 8 torus of tpu-v5e";
  for (ts::Links& links : torus.links) {
    links.kind =
        ts::AxisKind::ring;  // v5e closes a dimension only with all 16 chips; we close both
  }
  ts::Mesh mesh(torus, {{"x", 8}, {"y", 4}, {"z", 2}});
  std::cout << mesh.placement() << "\n";        // y and z share the links of dimension 1
  const ts::Tensor grad = ts::zeros({131072});  // 512 KiB
  ts::Table table;
  table.title = "the 256 links of the torus (each way is one), 512 KiB a device";
  table.columns = {"what", "simulated", "formula", "used", "mean busy", "busiest", "busy"};

  const ts::MeshRun one = mesh.run([&](ts::Device& d) { d.all_reduce(grad, "x"); });
  add(table, "all_reduce over x", one);
  const ts::MeshRun all = mesh.run([&](ts::Device& d) { d.all_reduce(grad, {"x", "y", "z"}); });
  add(table, "all_reduce over x, y, z", all);
  const ts::MeshRun slow = all.with(ts::Faults().slow_link(0, 1, 4));
  add(table, "the same, link 0 -> 1 at a quarter", slow);
  const ts::MeshRun near = mesh.run([&](ts::Device& d) { d.permute(grad, "x", 1); });
  add(table, "permute by 1 along x", near);
  const ts::MeshRun far = mesh.run([&](ts::Device& d) { d.permute(grad, "x", 3); });
  add(table, "permute by 3: three on each link", far);
  const ts::MeshRun apart = mesh.run([&](ts::Device& d) { d.all_gather(grad, "y"); });
  add(table, "all_gather over y, 2 links apart", apart);
  const ts::MeshRun meet = mesh.run([&](ts::Device& d) {
    ts::Pending over_y = d.start_all_gather(grad, "y");
    ts::Pending over_z = d.start_all_gather(grad, "z");  // meets y's messages on every other link
    over_y.wait();
    over_z.wait();
  });
  add(table, "all_gathers over y and z at once", meet);
  std::cout << table << "\nall_reduce with a slow link: " << ts::link_map(slow)
            << "all_gathers over y and z at once: " << ts::link_map(meet);
  ts::link_map(slow).save("16_slow_link.svg");
  ts::link_map(meet).save("16_two_axes.svg");
}
