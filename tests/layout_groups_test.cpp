#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "error_of.hpp"
#include "small_training.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

#if !defined(TINYSCALE_NO_THREADS)

namespace {

ts::ModelConfig four_layers(bool experts = false) {
  ts::ModelConfig c = ts::config(experts ? "nano-llama" : "nano");
  c.layers = 4;
  c.width = 32;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_size = 8;
  c.hidden = 60;
  c.context = 16;
  c.vocabulary = 41;
  if (experts) {
    c.experts = 4;
    c.top_k = 2;
    c.expert_hidden = 30;
  }
  return c;
}

ts::TrainOptions silent(const ts::Layout& layout) {
  ts::TrainOptions options;
  options.steps = 2;
  options.warmup = 1;
  options.batch = 12;
  options.learning_rate = 3e-3;
  options.out = nullptr;
  options.eval_every = 0;
  options.layout = layout;
  if (layout.devices() > 0) {
    options.machine = ts::machine("tpu-v5e", {layout.devices()});
  }
  return options;
}

ts::Layout sizes(std::int64_t data, std::int64_t tensor = 1, std::int64_t pipeline = 1,
                 std::int64_t context = 1, std::int64_t microbatches = 1) {
  ts::Layout layout;
  layout.data = data;
  layout.tensor = tensor;
  layout.pipeline = pipeline;
  layout.context = context;
  layout.microbatches = microbatches;
  return layout;
}

std::string refusal(const ts::TrainOptions& options, const ts::ModelConfig& config) {
  static const ts::Text text = small_text();
  ts::Transformer model(config, 1);
  return error_of([&] { ts::train(model, text, options); });
}
std::string refusal(const ts::Layout& layout, bool experts = false) {
  return refusal(silent(layout), four_layers(experts));
}

}  // namespace

TEST_CASE("a schedule that the layout cannot run says why") {
  ts::Layout layout = sizes(1, 1, 2, 1, 2);
  layout.schedule = ts::gpipe(4, 2);
  CHECK(refusal(layout) ==
        "train: the schedule gpipe is of 4 ranks and 2 microbatches, the layout has pipeline 2 and "
        "microbatches 2; they must be equal");
  layout.schedule = ts::interleaved(2, 2, 4);
  CHECK(refusal(layout) == "train: 4 layers over stages 8; right is a multiple of 8");
  layout.schedule = ts::gpipe(2, 2);
  layout.schedule.stages = 0;
  CHECK(refusal(layout) ==
        "check_pipeline: gpipe: 2 ranks, 0 stages, 2 microbatches; 1 to 4096 ranks are right, and "
        "1 to 4194304 stages x microbatches");
  layout.schedule = ts::gpipe(2, 2);
  layout.schedule.program[1].pop_back();
  CHECK(refusal(layout) == "check_pipeline: gpipe: rank 1 lacks B of stage 1, microbatch 1");
  layout.schedule = ts::gpipe(2, 2);
  std::swap(layout.schedule.program[0][0], layout.schedule.program[0][2]);
  CHECK(refusal(layout) ==
        "check_pipeline: gpipe: deadlock (eager): rank 0 at B of stage 0, microbatch 0 waits for B "
        "of stage 1, microbatch 0 of rank 1; rank 1 at F of stage 1, microbatch 0 waits for F of "
        "stage 0, microbatch 0 of rank 0");
}

TEST_CASE("groups of tokens: as many as devices, or an error; under context as on one device") {
  ts::TrainOptions options = silent(sizes(2));
  options.experts.capacity_factor = 0.75;
  options.experts.groups = 3;
  CHECK(refusal(options, four_layers(true)) ==
        "train: 3 groups of tokens (experts.groups) over data x context = 2; right is a multiple "
        "of 2, or 1 for as many as there are devices");
  options.experts.groups = 0;
  CHECK(refusal(options, four_layers(true)) ==
        "train: 0 groups of tokens (experts.groups) over data x context = 2; right is a multiple "
        "of 2, or 1 for as many as there are devices");
  ts::TrainOptions whole = silent(sizes(2, 2));
  whole.layout.sequence_parallel = whole.layout.whole_experts = true;
  whole.experts.groups = 6;
  CHECK(refusal(whole, four_layers(true)) ==
        "train: 6 groups of tokens (experts.groups) over data x context x tensor = 4; right is a "
        "multiple of 4, or 1 for as many as there are devices");
  options.batch = 4;
  options.experts.groups = 6;
  CHECK(refusal(options, four_layers(true)) ==
        ts::detail::cat({"train: 6 groups of tokens (experts.groups) of 4 x ",
                         four_layers(true).context,
                         " in a microbatch; a number that divides those is right"}));
  options.experts.groups = 1;
  options.experts.group_of = {0};
  CHECK(refusal(options, four_layers(true)) ==
        "train: experts.group_of is given, and the layout is data 2, tensor 1, pipeline 1, context "
        "1; where tokens lie on several devices those are their groups: leave it empty");
  ts::TrainOptions cut = silent(sizes(1, 1, 1, 6));
  cut.layout.zero = ts::Zero::parameters;
  cut.layout.zero_devices = 2;
  cut.layout.expert = 3;
  ts::ModelConfig six = four_layers(true);
  six.context = 24;
  six.experts = 6;
  const ts::Text text = small_text();
  const ts::Transformer of_six(six, 1);
  CHECK(error_of([&] { ts::detail::check_training(of_six, text, cut); }) ==
        "train: context 6 would be cut in groups of 2 and of 3 (ZeRO and experts); one must divide "
        "the other");
  for (const auto kind : {ts::ContextParallel::ring, ts::ContextParallel::ulysses}) {
    for (const std::int64_t groups : {1, 8}) {
      ts::Layout layout = sizes(2, 1, 1, 2, 2);
      layout.context_parallel = kind;
      layout.expert = 2;
      options = silent(layout);
      options.experts.capacity_factor = 0.75;
      options.experts.balance_loss = 0.01;
      options.experts.groups = groups;
      options.check_steps = 2;
      ts::Transformer model(four_layers(true), 1);
      const ts::TrainReport report = ts::train(model, text, options);
      REQUIRE(report.one_device.size() == 2);
      for (std::size_t i = 0; i < 2; ++i) {
        CHECK(report.losses[i] == doctest::Approx(report.one_device[i]).epsilon(1e-6));
      }
    }
  }
}

#endif  // TINYSCALE_NO_THREADS
