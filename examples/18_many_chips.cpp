// What does a step cost on 71,680 chips? Three layers whose weights are cut over axis x: each is
// gathered before it is used, and the gradients are summed over all that hold other tokens.
// predict() runs the program of one device and takes each collective from its closed form, so eight
// TPU v5p pods cost no more than one chip. You see it agree with a run of every message on eight
// chips, what gathering the next layer's weights early hides, and the step on the pods.
//   g++ -std=c++17 -O2 -pthread -I. examples/18_many_chips.cpp -o 18_many && ./18_many
#include "tinyscale.hpp"
namespace ts = tinyscale;

constexpr int layers = 3;

// The step of a device; `early`: a layer's weights travel while the layer before computes.
void step(ts::Device& d, bool early) {
  ts::CollectiveOptions bf16;
  bf16.format = ts::DType::bf16;  // on the wire
  const ts::Tensor shard = ts::full({1024 / d.size("x"), 1024}, 0.01f);
  ts::Tensor h = ts::ones({256, 1024});  // this device's tokens
  ts::Pending weights = d.start_all_gather(shard, "x", 0, bf16);
  for (int layer = 0; layer < layers; ++layer) {
    const ts::Tensor whole = weights.wait();
    if (early && layer + 1 < layers) {
      weights = d.start_all_gather(shard, "x", 0, bf16);
    }
    h = ts::matmul(h, whole);
    if (!early && layer + 1 < layers) {
      weights = d.start_all_gather(shard, "x", 0, bf16);
    }
  }
  const ts::Tensor grad = ts::ones({1024, 1024});  // its backward pass is left out
  const ts::Tensor part = d.reduce_scatter(grad, "x", 0, ts::Reduce::mean, bf16);
  const ts::Tensor pod = d.all_reduce(part, {"y", "z"}, ts::Reduce::mean, bf16);
  d.all_reduce(pod, "pods", ts::Reduce::mean, bf16);  // over the data-centre network
}
void gather_late(ts::Device& d) { step(d, false); }
void gather_early(ts::Device& d) { step(d, true); }

int main() {
  const ts::Mesh few(ts::machine("tpu-v5p", {2, 2, 2, 1}),
                     {{"pods", 2}, {"x", 2}, {"y", 2}, {"z", 1}});
  const ts::MeshRun late = few.run(gather_late), early = few.run(gather_early);
  ts::Table table;
  table.title = "8 chips: simulated from all messages, and predicted from one device";
  table.columns = {"weights", "simulated", "predicted", "compute", "exposed communication"};
  for (const ts::MeshRun* run : {&late, &early}) {
    const ts::MeshPrediction one = few.predict(run == &late ? gather_late : gather_early);
    const ts::TimedDevice& device = run->timeline.devices[0];
    table.add({run == &late ? "when needed" : "one layer early", ts::format_seconds(run->seconds),
               ts::format_seconds(one.seconds), ts::format_seconds(device.compute),
               ts::format_seconds(device.waiting)});
  }
  std::cout << table << "\n" << early.device_table() << "\n";
  ts::save_trace(early, "18_early.json");  // for ui.perfetto.dev
  ts::device_timeline(late).save("18_late.svg");
  ts::device_timeline(early).save("18_early.svg");

  const ts::Mesh pods(ts::machine("tpu-v5p", {8, 16, 20, 28}),
                      {{"pods", 8}, {"x", 16}, {"y", 20}, {"z", 28}});
  std::cout << pods.predict(gather_early);
}
