// A pipeline as its definition: a schedule is a list of ops for each rank, which a rank does one by
// one: receive, compute, send. You see a step of four stages drawn from its run, and bubble and
// microbatches held at once, counted beside their formulas, for GPipe, 1F1B and ZB-H1.
//   g++ -std=c++17 -O2 -pthread -I. examples/29_pipeline.cpp -o 29_pipeline && ./29_pipeline
#include "tinyscale.hpp"
namespace ts = tinyscale;
using ts::Tensor;
constexpr int p = 4, m = 8, D = 32, B = 16;  // stages tanh(x w), microbatches of B rows
Tensor weights(int stage) { return ts::parameter(ts::randn({D, D}, std::uint64_t(stage), 0.2f)); }
Tensor batch() { return ts::randn({m * B, D}, 100); }

void step(ts::Device& d, const ts::PipelineSchedule& schedule) {
  const int r = d.rank();
  Tensor x[m], y[m], w = weights(r);
  ts::Shared<ts::DeferWeightGradients> later[m];
  float held = 0, most = 0;
  for (const auto& [work, stage, j] : schedule.program[std::size_t(r)]) {
    const char op = ts::letter_of(work);  // F, B, or I then W
    d.task(op);
    if (op == 'F') {
      x[j] = ts::parameter(r == 0 ? ts::slice(batch(), 0, j * B, (j + 1) * B) : d.recv(r - 1));
      y[j] = ts::tanh(ts::matmul(x[j], w));
      if (r + 1 < p) d.send(y[j].detach(), r + 1);
      most = std::max(most, ++held);
    } else if (op == 'W') {
      later[j]->run(), --held;
    } else {  // the whole backward, or the half that the rank before waits for
      if (op == 'I') later[j].reset(new ts::DeferWeightGradients);
      y[j].backward(r + 1 < p ? d.recv(r + 1) : y[j].detach());  // the loss: half of y squared
      later[j] ? later[j]->stop() : void(--held);
      if (r > 0) d.send(x[j].grad(), r - 1);
    }
  }
  d.keep("dw", w.grad()), d.keep("most", ts::full({}, most));
}

int main() {
  Tensor w[p] = {weights(0), weights(1), weights(2), weights(3)}, y = batch();  // on one device
  for (const Tensor& of_stage : w) y = ts::tanh(ts::matmul(y, of_stage));
  y.backward(y.detach());
  ts::Machine slow = ts::machine("tpu-v5e", {p});
  slow.chip.flops_f32 = 2.0 * B * D * D;  // a matmul takes a second, all else next to nothing
  for (const int kind : {0, 1, 3}) {
    const ts::PipelineShape shape = {ts::PipelineKind(kind), p, m, 1};
    const ts::PipelineSchedule s = ts::make_pipeline(shape);
    const auto run = ts::Mesh(slow, {{"p", p}}).run([&](ts::Device& d) { step(d, s); });
    std::vector<std::string> lines(p, std::string(std::size_t(run.seconds), '.'));
    for (const ts::TimedSpan& span : run.timeline.spans)
      for (double t = span.start + 0.5; span.call < 0 && t < span.finish; ++t)
        lines[span.device][std::size_t(t)] = char(span.task);
    float off = 0;  // from one device's gradients
    for (int r = 0; r < p; ++r) off += ts::sum(ts::square(w[r].grad() - run.kept(r, "dw"))).item();
    for (const std::string& line : lines) std::cout << line << "\n";
    std::cout << s.name << ": bubble " << ts::format_percent(1 - 3 * m / run.seconds)
              << " (formula " << ts::format_percent(ts::pipeline_bubble(shape)) << "), held "
              << run.kept(0, "most").item() << " (" << ts::pipeline_peak_activations(shape)
              << (off < 1e-6f ? "), equal\n\n" : "), wrong\n\n");
  }
}
