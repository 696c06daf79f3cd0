// The main job, on a real text: measure the laptop, train a transformer, price it on a TPU, step a
// systolic array through its matmul, train it again on simulated devices, draw what happened.
// You see a table for each, a number that a formula gives beside what was counted or measured; the
// pictures go to a page, demo.html.
//   make demo TEXT=input.txt
//   g++ -std=c++17 -O2 -pthread -I. examples/00_demo.cpp -o 00_demo && ./00_demo [text file] [page]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <string>

#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

constexpr std::int64_t steps = 400;

std::string small_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2g", value);
  return text;
}

ts::TrainOptions training() {
  ts::TrainOptions options;
  options.steps = steps;
  options.warmup = 40;
  options.eval_every = 100;
  return options;
}

// One training step under a profile: the roofline's material.
void profile_one_step(ts::Transformer& model, const ts::Text& text, ts::HtmlPage& page) {
  const ts::TrainOptions options = training();
  ts::AdamW optimizer(model.tensors(), ts::adamw_options(options));
  const ts::Batch batch =
      ts::make_batch(text.train(), options.batch, model.config.context, options.seed, steps);
  ts::Profile profile;
  ts::train_step(model, optimizer, batch, options, steps);
  const ts::RooflineReport here = profile.roofline(ts::laptop());
  const ts::RooflineReport there = profile.roofline(ts::chip("tpu-v5e"), ts::DType::bf16);
  std::cout << "\nOne training step against this laptop (formula beside measured)\n"
            << here << "\nThe same step against a TPU v5e, priced as bf16\n"
            << there;
  page.heading("What bounds a training step?");
  page.text(
      "Every op of one training step: its flops, the bytes it must move, and the time that "
      "the laptop's roofs allow, beside the time it took.");
  page.picture(ts::svg(here, ts::laptop()));
  page.table(here.table());
  page.text(
      "The same ops on a TPU v5e, priced as bf16. Its ridge lies far to the right: at this "
      "size nearly everything waits for memory.");
  page.picture(ts::svg(there, ts::chip("tpu-v5e")));
  page.table(there.table());
}

// The first MLP matmul of the trained model on a 128 x 128 array, every PE stepped.
void step_an_array(const ts::Transformer& model, ts::HtmlPage& page) {
  const std::int64_t width = model.config.width;
  const std::int64_t hidden = model.config.hidden;
  ts::Tensor w = ts::randn({width, hidden}, 2);
  for (const ts::Parameter& p : model.parameters) {
    if (p.value.shape() == ts::Shape{hidden, width}) {
      w = ts::transpose(p.value.detach(), 0, 1);
      break;
    }
  }
  const ts::Tensor x = ts::randn({model.config.context * 4, width}, 3);
  const ts::SystolicArray array(128, 128, ts::Dataflow::weight_stationary);
  const ts::SystolicRun run = array.matmul(x, w);
  const ts::SystolicTiming formula = array.timing(x.dim(0), width, hidden);
  const ts::Tensor host = ts::matmul(x, w);
  double largest = 0;
  double difference = 0;
  for (std::int64_t i = 0; i < host.count(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(host.data()[i])));
    difference = std::max(difference, std::fabs(static_cast<double>(host.data()[i]) -
                                                static_cast<double>(run.output.data()[i])));
  }
  std::cout << "\nThe model's MLP matmul, " << x.shape() << " by " << w.shape()
            << ", on a 128 x 128 systolic array\n"
            << run << "closed form: " << formula.cycles << " cycles; stepped: " << run.cycles
            << "\nlargest difference from the host's product: " << difference << " of " << largest
            << "\n";
  page.heading("What does a systolic array do with it?");
  page.text("The MLP matmul of the trained model, stepped PE by PE. Predicted " +
            std::to_string(formula.cycles) + " cycles, stepped " + std::to_string(run.cycles) +
            "; the largest difference from the host's product is " + small_number(difference) +
            " of " + small_number(largest) + ".");
  page.table(run.table());
  const ts::SystolicArray small(32, 32);
  page.text(
      "The same on an array of 32 x 32, a frame every 20 ticks: weights shift in column by "
      "column, the wave of activations crosses on the diagonal.");
  page.picture(ts::svg(ts::wavefronts(small, x, w, 20, 6, 20)));
  ts::SystolicArray serial = array;
  serial.schedule = ts::Schedule::serial;
  page.picture(ts::ledger_bars({run, serial.timing(x.dim(0), width, hidden)},
                               {"doubled (this run)", "serial"}));
  const ts::ChipTiming chip = ts::chip_timing(ts::chip("tpu-v5e"), x.dim(0), width, hidden);
  page.text("On a whole TPU v5e, with four such arrays behind one memory: bound by " + chip.bound +
            ", " + ts::format_fixed(100 * chip.share(chip.ledger.useful), 1) +
            " % of the PE-ticks are useful.");
}

// GPT-2 medium on 256 chips in small: on real chips so small a model would do little but send.
ts::Twin twin_of_a_pod(std::int64_t batch) {
  ts::TrainingJob job;
  job.model = ts::config("gpt2-medium");
  job.batch_tokens = 1024 * 1024;
  job.state = ts::StateBytes::mixed;
  ts::Layout layout;
  layout.data = 256;
  return ts::twin_of(job, ts::machine("tpu-v5e", {16, 16}), layout).with(ts::config("nano"), batch);
}

void train_on_a_mesh(const ts::Text& text, const ts::TrainReport& one, ts::HtmlPage& page) {
  ts::TrainOptions options = training();
  const ts::Twin twin = twin_of_a_pod(options.batch);
  options.machine = twin.machine;
  options.layout = twin.layout;
  std::cout << "\nThe same training on simulated devices\n" << twin << "\n";
  ts::Transformer model(twin.model, /*seed=*/1);
  const ts::TrainReport many = ts::train(model, text, options);
  double difference = 0;
  for (std::size_t i = 0; i < many.losses.size(); ++i) {
    difference = std::max(difference, std::fabs(many.losses[i] - one.losses[i]));
  }
  std::cout << many << "largest difference in loss from one device over " << many.losses.size()
            << " steps: " << difference << "\n"
            << *many.last_step;
  page.heading("The same training on several devices");
  page.text("Data parallelism on a ring of " + std::to_string(many.devices) +
            " devices of a fictional machine, on which each part of a step takes the share that it "
            "would take of GPT-2 medium on 256 TPU v5e: each device learns from its part of the "
            "batch, and gradients are summed by an all_reduce that really moves them. The losses "
            "differ from one device's by at most " +
            small_number(difference) + ", final validation " +
            ts::format_fixed(many.final_validation(), 4) + " beside " +
            ts::format_fixed(one.final_validation(), 4) + ".");
  page.table(twin.table());
  page.table(many.step.sent.table());
  page.picture(ts::waterfall(many));
  page.picture(ts::svg(*many.last_step));
  page.picture(ts::device_timeline(many));
  page.table(many.last_step->table());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const ts::Text text = ts::read_text(argc > 1 ? argv[1] : "tinyscale.hpp");
    ts::HtmlPage page("tinyscale: one text, one laptop, every number from this run");
    std::cout << "tinyscale " << TINYSCALE_VERSION << "\n" << text << "\n\n" << ts::laptop();

    ts::Transformer model(ts::config("nano"), /*seed=*/1);
    const ts::TrainReport one = ts::train(model, text, training());
    // The text's own beginning: no other words need be spelt with its characters.
    const std::string prompt =
        text.tokenizer.decode({text.tokens.begin(), text.tokens.begin() + 12});
    const std::string said = ts::generate(model, text, prompt, 200);
    std::cout << one << "\nThe model, asked to go on from the text's beginning:\n" << said << "\n";
    page.text(text.text());
    page.heading("A transformer learns the text");
    page.picture(ts::svg(one));
    page.table(one.table());
    page.text("The trained model, asked to go on from the text's beginning:");
    page.code(said);

    profile_one_step(model, text, page);
    step_an_array(model, page);
    train_on_a_mesh(text, one, page);
    const std::string path = argc > 2 ? argv[2] : "demo.html";
    page.save(path);
    std::cout << "\nThe pictures are in " << path << "\n";
  } catch (const ts::Error& error) {
    std::cerr << "demo: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
