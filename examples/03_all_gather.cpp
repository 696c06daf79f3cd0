// What is an AllGather? Four chips of a column each hold a chunk and end with all of them. You see
// which chunk each receives in each step; what the busiest chip and every link sent, why this
// algorithm, the simulated time beside the formula, the line that asked, and the chain of messages
// that sets the time; and the same messages timed on other links.
//   g++ -std=c++17 -O2 -pthread -I. examples/03_all_gather.cpp -o 03_all_gather && ./03_all_gather
#include "tinyscale.hpp"
namespace ts = tinyscale;

int main() {
  ts::Mesh mesh(ts::machine("tpu-v5e", {4, 2}), {{"x", 4}, {"y", 2}});
  std::cout << mesh.placement() << "\n";  // v5e closes a dimension only when it has all 16 chips
  ts::MeshRun run = mesh.run([](ts::Device& device) {
    ts::Tensor mine = ts::full({1024}, float(device.rank()));
    ts::Tensor all = device.all_gather(mine, "x");  // A[I_x] -> A[I]: 3 steps of 4096 bytes a link
    device.keep("all", all);
  });

  const ts::CallShape& call = *run.log().calls[0].shape;
  std::cout << ts::schedule_table(call.schedule->data) << "\n" << run << "\n";
  std::cout << run.on(ts::machine("h100", {1, 8})) << "\n";  // the same messages, other links

  const ts::Tensor all = run.kept(3, "all");
  std::cout << "device 3 has " << all.shape() << ":";
  for (int i = 0; i < 4; ++i) {
    std::cout << " " << all.at({i * 1024});
  }
  std::cout << "\n";
  ts::device_timeline(run).save("03_timeline.svg");
  ts::link_map(run).save("03_links.svg");
}
