// Simulated seconds of an all_reduce on the machine of eight_hosts.xml, by its replay and by its
// closed form.
//   ours ALGORITHM BYTES...     prints a line "bytes replay formula" for each size
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tinyscale.hpp"

namespace ts = tinyscale;

// Partners 1, 2 and 4 apart exchange their whole sums.
ts::CollectiveSchedule doubling(int n) {
  ts::CollectiveSchedule schedule;
  schedule.name = "recursive doubling";
  schedule.what = ts::Collective::all_reduce;
  schedule.devices = n;
  for (int step = 0; 1 << step < n; ++step) {
    for (int device = 0; device < n; ++device) {
      schedule.transfers.push_back({step, device, device ^ 1 << step, 0, 1, ts::Action::reduce});
    }
  }
  return schedule;
}

int main(int count, char** words) {
  const std::string algorithm = count > 1 ? words[1] : "";
  ts::Machine machine;
  machine.name = "eight hosts";
  machine.dims = {8};
  ts::Links port;
  port.kind = ts::AxisKind::switched;
  port.bandwidth = ts::Bandwidth::one_way(10e9);
  port.latency = 2e-6;
  machine.links = {port};
  const ts::Mesh mesh(machine, {{"x", 8}});
  const ts::CollectiveSchedule own = doubling(8);

  ts::CollectiveOptions options;
  options.algorithm = algorithm == "ring" ? ts::Algorithm::ring : ts::Algorithm::halving_doubling;
  options.schedule = algorithm == "doubling" ? &own : nullptr;
  for (int i = 2; i < count; ++i) {
    const ts::MeshRun run = mesh.run([&](ts::Device& device) {
      device.all_reduce(ts::zeros({std::atol(words[i]) / 4}), "x", ts::Reduce::sum, options);
    });
    const ts::CollectiveSpec& spec = run.log().calls[0].shape->spec;
    const double formula = options.schedule != nullptr ? ts::schedule_seconds(own, spec)
                                                       : ts::collective_seconds(spec);
    std::printf("%s %.9g %.9g\n", words[i], run.seconds, formula);
  }
  return 0;
}
