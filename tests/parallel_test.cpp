#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "small_training.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

ts::TrainOptions silent(std::int64_t steps) {
  ts::TrainOptions options;
  options.steps = steps;
  options.warmup = 5;
  options.learning_rate = 3e-3;
  options.out = nullptr;
  return options;
}

}  // namespace

#if defined(TINYSCALE_NO_THREADS)

TEST_CASE("without threads one device learns, and several say so") {
  const ts::Text text = small_text();
  ts::Transformer model(small_model(), 1);
  const ts::TrainReport report = ts::train(model, text, silent(10));
  CHECK(report.losses.back() < report.losses.front());
  for (const ts::Recompute again : {ts::Recompute::selective, ts::Recompute::full}) {
    ts::Transformer other(small_model(), 1);
    ts::TrainOptions parts = silent(10);
    parts.layout.microbatches = 4;
    parts.layout.recompute = again;
    const ts::TrainReport same = ts::train(other, text, parts);
    for (std::size_t i = 0; i < same.losses.size(); ++i) {
      CHECK(std::fabs(same.losses[i] - report.losses[i]) < 1e-5);
    }
  }
  ts::TrainOptions options = silent(1);
  options.machine = ts::machine("tpu-v5e", {2});
  options.layout.data = 2;
  CHECK(error_of([&] { ts::train(model, text, options); }) ==
        "mesh.run: 2 devices need threads, and this program is compiled with "
        "TINYSCALE_NO_THREADS; use a mesh of 1 device, or Sharded tensors");
}

#else

TEST_CASE("1, 2, 3 and 4 devices learn the same") {
  const ts::Text text = small_text();
  ts::Transformer one(small_model(), 1);
  const ts::TrainReport single = ts::train(one, text, silent(30));
  CHECK(single.losses.front() > 3.0);
  CHECK(single.losses.back() < single.losses.front() - 0.5);
  for (const int devices : {2, 3, 4}) {
    CAPTURE(devices);
    ts::TrainOptions options = silent(30);
    options.machine = ts::machine("tpu-v5e", {devices});
    options.layout.data = devices;
    ts::Transformer many(small_model(), 1);
    const ts::TrainReport report = ts::train(many, text, options);
    REQUIRE(report.losses.size() == single.losses.size());
    for (std::size_t i = 0; i < report.losses.size(); ++i) {
      CHECK(std::fabs(report.losses[i] - single.losses[i]) < 1e-5);
    }
    CHECK(std::fabs(report.final_validation() - single.final_validation()) < 0.005);
    CHECK(ts::evaluate(many, text.validation()) == report.final_validation());
    REQUIRE(!report.step.sent.rows.empty());
    for (const ts::ReportRow& row : report.step.sent.rows) {
      CAPTURE(row.name);
      CHECK(row.equal(0));
      CHECK(row.counted > 0.0);
    }
    CHECK(report.step.work.equal(1e-12));
    CHECK(report.step.memory.equal(0));
  }
}

TEST_CASE("nano on real text: 40 steps on 1 and on 4 devices [slow]") {
  const char* shared = std::getenv("TINYSCALE_SHARED");
  const std::string path =
      std::string(shared != nullptr ? shared : "../shared") + "/data/text/tinyshakespeare.txt";
  ts::Text text;
  try {
    text = ts::read_text(path);
  } catch (const ts::Error&) {
    MESSAGE("skipped: tiny Shakespeare is not here");
    return;
  }
  ts::TrainOptions options;
  options.steps = 40;
  options.warmup = 5;
  options.out = nullptr;
  ts::Transformer one(ts::config("nano"), 1);
  const ts::TrainReport single = ts::train(one, text, options);
  options.machine = ts::machine("tpu-v5e", {4});
  options.layout.data = 4;
  ts::Transformer four(ts::config("nano"), 1);
  const ts::TrainReport report = ts::train(four, text, options);
  REQUIRE(single.losses.size() == 40);
  REQUIRE(report.losses.size() == 40);
  double worst = 0;
  for (std::size_t i = 0; i < report.losses.size(); ++i) {
    worst = std::fmax(worst, std::fabs(report.losses[i] - single.losses[i]));
  }
  MESSAGE("worst difference of a loss " << worst);
  CHECK(worst < 1e-5);
  CHECK(std::fabs(report.final_validation() - single.final_validation()) < 0.005);
  CHECK(single.final_validation() < 3.4);
  CHECK(report.step.sent.equal(0));
  CHECK(report.step.work.equal(1e-12));
  CHECK(report.step.memory.equal(0));
}

TEST_CASE("dropout masks do not depend on the layout") {
  const ts::Text text = small_text();
  ts::TrainOptions options = silent(5);
  options.dropout = 0.2;
  ts::Transformer one(small_model(), 1);
  const ts::TrainReport single = ts::train(one, text, options);
  options.machine = ts::machine("tpu-v5e", {4});
  options.layout.data = 4;
  ts::Transformer four(small_model(), 1);
  const ts::TrainReport report = ts::train(four, text, options);
  for (std::size_t i = 0; i < report.losses.size(); ++i) {
    CHECK(std::fabs(report.losses[i] - single.losses[i]) < 1e-5);
  }
}

TEST_CASE("training holds no more than its closed form") {
  for (const char* name : {"nano", "nano-llama"}) {
    CAPTURE(name);
    const ts::Text text = small_text();
    ts::ModelConfig config = small_model();
    if (std::string(name) == "nano-llama") {
      config = ts::config(name);
      config.context = 16;
    }
    ts::Transformer model(config, 1);
    const ts::TrainReport report = ts::train(model, text, silent(2));
    REQUIRE(report.memory.rows.size() == 1);
    CHECK(report.memory.rows[0].counted <= 1.1 * report.memory.rows[0].predicted);
    CHECK(report.memory.rows[0].counted >= 0.7 * report.memory.rows[0].predicted);
  }
}

TEST_CASE("the progress line goes where it is told") {
  std::ostringstream out;
  ts::TrainOptions options = silent(2);
  options.out = &out;
  ts::Transformer model(small_model(), 1);
  const ts::TrainReport report = ts::train(model, small_text(), options);
  CHECK(out.str().find("step 2/2  loss ") != std::string::npos);
  CHECK(out.str().find("tokens/s  MFU ") != std::string::npos);
  CHECK(report.csv().find("last loss") != std::string::npos);
  CHECK(report.json().find("last loss") != std::string::npos);
}

TEST_CASE("requests that cannot run say why") {
  const ts::Text text = small_text();
  ts::Transformer model(small_model(), 1);
  CHECK(error_of([&] { ts::train(model, text, silent(0)); }) ==
        "train: 0 steps of 12 sequences; both must be at least 1");
  ts::ModelConfig tiny = small_model();
  tiny.vocabulary = 8;
  ts::Transformer few(tiny, 1);
  CHECK(error_of([&] { ts::train(few, text, silent(1)); }) ==
        "train: the text has 29 distinct tokens, the model's vocabulary is 8; raise "
        "config.vocabulary");
  CHECK(error_of([&] { ts::train(model, ts::make_text("short", "abc"), silent(1)); }) ==
        "train: the text has 2 tokens here, a sequence 16; more than 16 are right: take a longer "
        "text or a shorter context");
}

TEST_CASE("layouts that cannot run say why") {
  const ts::Text text = small_text();
  ts::ModelConfig config = small_model();
  // What a change of the layout makes of a batch of 36, with as many chips as devices.
  const auto error = [&](const std::function<void(ts::Layout&)>& change, int chips = 0) {
    return error_of([&] {
      ts::Transformer model(config, 1);
      ts::TrainOptions options = silent(1);
      options.batch = 36;
      change(options.layout);
      const std::int64_t devices = options.layout.devices();
      if (chips != 1) {
        options.machine = ts::machine("tpu-v5e", {chips > 0 ? chips : devices > 0 ? devices : 2});
      }
      ts::train(model, text, options);
    });
  };
  using L = ts::Layout;
  CHECK(error([](L& l) { l.data = 4; }, 1) ==
        "train: layout is data 4, tensor 1, pipeline 1, context 1 = 4 devices, the machine has 1 "
        "chips; they must be equal: one chip is the machine where none was given");
  CHECK(error([](L& l) { l.data = l.pipeline = 2; }, 8) ==
        "train: layout is data 2, tensor 1, pipeline 2, context 1 = 4 devices, the machine has 8 "
        "chips; they must be equal");
  CHECK(error([](L& l) { l.data = 0; }) ==
        "train: layout is data 0, tensor 1, pipeline 1, context 1; each must be at least 1, and "
        "the devices at most 2147483647");
  CHECK(error([](L& l) { l.microbatches = 0; }) ==
        "train: layout is data 1, tensor 1, pipeline 1, context 1, microbatches 0; each must be at "
        "least 1, and the devices at most 2147483647");
  CHECK(error([](L& l) { l.data = l.tensor = 65536; }, 2) ==
        "train: layout is data 65536, tensor 65536, pipeline 1, context 1; each must be at least "
        "1, and the devices at most 2147483647");
  CHECK(error([](L& l) { l.expert = 0; }) ==
        "train: layout is data 1, tensor 1, pipeline 1, context 1, expert 0; each must be at least "
        "1, and the devices at most 2147483647");
  CHECK(error([](L& l) { l.order.pop_back(); }) ==
        "train: layout.order is {pipeline, data, context}; pipeline, data, context and tensor are "
        "right, each once, the slowest links first");
  CHECK(error([](L& l) { l.order[0] = "tensor"; }) ==
        "train: layout.order is {tensor, data, context, tensor}; pipeline, data, context and "
        "tensor are right, each once, the slowest links first");
  CHECK(error([](L& l) { l.data = 8; }) ==
        "train: a batch of 36 sequences does not divide over data 8; right is a multiple of 8");
  CHECK(error([](L& l) { l.data = 4, l.microbatches = 2; }) ==
        "train: a batch of 36 sequences does not divide over data 4 x microbatches 2; right is a "
        "multiple of 8");
  const std::string rule =
      "; each has whole heads, an equal part of the hidden layer and a token at least, so that "
      "tensor is right as one of ";
  CHECK(error([](L& l) { l.tensor = 4; }) ==
        "tensor parallel: " + config.name + " has heads 2, over 4 devices" + rule + "1, 2");
  CHECK(error([](L& l) { l.expert = 2, l.data = 2; }) ==
        "train: expert 2 for " + config.name + ", which has no experts; 1 is right");
  const std::string whole =
      "; right is a mixture, under sequence_parallel where tensor is more than 1: each tensor rank "
      "routes its own tokens";
  CHECK(error([](L& l) { l.tensor = 2, l.whole_experts = l.sequence_parallel = true; }) ==
        "train: whole_experts for " + config.name +
            ", which has no experts by data 1, tensor 2, "
            "pipeline 1, context 1, sequence parallel, whole experts" +
            whole);
  CHECK(error([](L& l) { l.zero_devices = 2, l.data = 2; }) ==
        "train: zero_devices is 2 and zero is Zero::none; set layout.zero to what is sharded");
  CHECK(error([](L& l) { l.zero_devices = -1, l.zero = ts::Zero::optimizer; }) ==
        "train: zero_devices is -1; 0 is right for all, or how many share");
  CHECK(error([](L& l) { l.zero_devices = 3, l.data = 4, l.zero = ts::Zero::optimizer; }) ==
        "train: zero_devices 3 does not divide data 4 x context 1 = 4");
  CHECK(error([](L& l) { l.context = 3; }) ==
        "train: 16 tokens of a sequence over twice context 6; right is a multiple of 6");
  const auto ulysses = ts::ContextParallel::ulysses;
  CHECK(error([&](L& l) { l.context = 3, l.context_parallel = ulysses; }) ==
        "train: 16 tokens of a sequence over context 3; right is a multiple of 3");
  CHECK(error([&](L& l) { l.context = 4, l.context_parallel = ulysses; }) ==
        "train: 2 heads of a device over context 4; right is a multiple of 4");
  config.kv_heads = 1;
  CHECK(error([&](L& l) { l.context = 2, l.context_parallel = ulysses; }) ==
        "train: 1 kv_heads of a device over context 2; right is a multiple of 2");
  config.kv_heads = 2;
  config.context = 18;
  CHECK(error([](L& l) { l.tensor = 2, l.context = 3, l.sequence_parallel = true; }) == "no error");
  config.context = 10;
  CHECK(error([](L& l) { l.tensor = 2, l.context = 5, l.sequence_parallel = true; }) == "no error");
  config.context = 15;
  CHECK(error([](L& l) { l.tensor = 2, l.sequence_parallel = true; }) ==
        "train: 15 tokens of a device over tensor 2; right is a multiple of 2");
  config.context = 16;
  CHECK(error([](L& l) { l.pipeline = 4; }) ==
        "train: 2 layers over stages 4; right is a multiple of 4");
  CHECK(error([](L& l) { l.pipeline = 2, l.schedule = ts::gpipe(2, 4); }) ==
        "train: the schedule gpipe is of 2 ranks and 4 microbatches, the layout has pipeline 2 and "
        "microbatches 1; they must be equal");
  CHECK(error([](L& l) {
          l.pipeline = l.microbatches = 2;
          l.schedule = ts::interleaved(2, 3, 1);
        }) == "interleaved: 3 microbatches on 2 ranks; they must be a multiple of the ranks");
  CHECK(error([](L& l) {  // a rank that begins with the backward pass
          l.pipeline = 2;
          l.schedule = ts::gpipe(2, 1);
          std::swap(l.schedule.program[1][0], l.schedule.program[1][1]);
        })
            .find("gpipe") != std::string::npos);
  config.experts = 4;
  config.top_k = 2;
  config.expert_hidden = 9;
  CHECK(error([](L& l) { l.tensor = 2; }) ==
        "tensor parallel: " + config.name + " has expert_hidden 9, over 2 devices" + rule + "1");
  CHECK(error([](L& l) { l.data = l.expert = 3; }) ==
        "train: 4 experts over expert 3; right is a multiple of 3");
  config.expert_hidden = 8;
  CHECK(error([](L& l) { l.tensor = 2, l.whole_experts = true; }) ==
        "train: whole_experts for " + config.name +
            " by data 1, tensor 2, pipeline 1, context 1, "
            "whole experts" +
            whole);
  config.experts = 6;
  CHECK(error([](L& l) {
          l.tensor = l.data = l.expert = 2;
          l.whole_experts = l.sequence_parallel = true;
        }) == "train: 6 experts over expert x tensor 4; right is a multiple of 4");
  config.experts = 4;
  CHECK(error([](L& l) { l.data = 3, l.expert = 2; }) ==
        "train: expert 2 does not divide data 3 x context 1 = 3; the devices of an expert group "
        "are among those that see other tokens");
  config.experts = 6;
  CHECK(error([](L& l) {
          l.data = 12;
          l.expert = 6;
          l.zero = ts::Zero::optimizer;
          l.zero_devices = 4;
        }) ==
        "train: data 12 would be cut in groups of 4 and of 6 (ZeRO and experts); one must divide "
        "the other");
}

TEST_CASE("a loss that is no number stops the training with a sentence, on one device and on two") {
  const ts::Text text = small_text();
  for (const int devices : {1, 2}) {
    ts::TrainOptions options = silent(3);
    if (devices > 1) {
      options.machine = ts::machine("tpu-v5e", {devices});
      options.layout.data = devices;
    }
    ts::Transformer model(small_model(), 1);
    model.parameters[0].value.data()[0] = std::nanf("");
    const std::string said = error_of([&] { ts::train(model, text, options); });
    CAPTURE(said);
    CHECK(said.find("train_step: the loss is not a number in step 0; try a smaller learning_rate "
                    "than 0.003") != std::string::npos);
  }
}

TEST_CASE("a last step that ruins the weights is no success, on one device and on two") {
  ts::Text text = small_text();
  for (const int devices : {1, 2}) {
    for (const bool validated : {true, false}) {
      ts::TrainOptions options = silent(1);
      options.warmup = 0;
      options.learning_rate = 1e29;
      options.weight_decay = 1e29;
      if (devices > 1) {
        options.machine = ts::machine("tpu-v5e", {devices});
        options.layout.data = devices;
      }
      if (!validated) {
        text.split = static_cast<std::int64_t>(text.tokens.size());
      }
      ts::Transformer model(small_model(), 1);
      const std::string said = error_of([&] { ts::train(model, text, options); });
      const std::string ending =
          " in step 0; try a smaller learning_rate than 1e+29, a longer "
          "warmup than 0 steps or a smaller clip than 1";
      CHECK(said.find(validated ? "train: the validation loss is not a number" + ending
                                : "train: the norm of the weights is infinite" + ending) == 0);
    }
    text = small_text();
  }
}

TEST_CASE("what a beginner prints says what it is") {
  const auto printed = [](const auto& what) {
    std::ostringstream out;
    out << what;
    return out.str();
  };
  const ts::Profile profile;
  const ts::Tensor y = ts::matmul(ts::ones({8, 64}), ts::ones({64, 32}));
  CHECK(printed(profile) ==
        "1 op: 32.8 k matmul and 0 vector FLOPs, 10.2 kB read, 1.02 kB written, 2.91 FLOPs/byte");
  CHECK(printed(profile) == printed(profile.totals()));
  const ts::Machine machine = ts::machine("tpu-v5e", {2, 4});
  CHECK(printed(machine) ==
        "tpu-v5e 2x4: 8 x tpu-v5e\n"
        "dimension  chips  kind  latency  one way\n"
        "---------  -----  ----  -------  -------\n"
        "        0      2  line     1 us  45 GB/s\n"
        "        1      4  line     1 us  45 GB/s\n");
  CHECK(printed(ts::Machine()).find(": 1 x \n") == 0);
  const ts::Mesh mesh(machine, {{"x", 2}, {"y", 4}});
  CHECK(printed(mesh) == printed(mesh.placement()));
  CHECK(printed(mesh.shard(ts::Shape{8, 16}, "I_y, J")) ==
        "[I_y, J] of [8, 16] in f32, [2, 16] on each of 8 devices");
  CHECK(printed(ts::Layout()) == ts::Layout().text());
  CHECK(printed(ts::config("mixtral-8x7b")) ==
        "mixtral-8x7b: 46702792704 parameters, 32 layers of 4096, 32 heads, context 32768");
  const ts::Compiled twice = ts::compile([](const std::vector<ts::Tensor>& x) {
    return std::vector<ts::Tensor>{ts::gelu(x[0]) + x[0]};
  });
  twice({ts::ones({256})});
  CHECK(printed(twice.plan()) ==
        "3 nodes in 1 kernel, 0 B of intermediate results\n"
        "kernel    matmul FLOPs  vector FLOPs    bytes\n"
        "--------  ------------  ------------  -------\n"
        "gelu add             0        5.89 k  2.05 kB\n");
}

TEST_CASE("training options that cannot be right are refused before the first step") {
  using Options = ts::TrainOptions;
  const ts::Text text = small_text();
  const auto refusal = [&](const std::function<void(Options&)>& change) {
    ts::Transformer model(small_model(), 1);
    Options options = silent(1);
    change(options);
    return error_of([&] { ts::train(model, text, options); });
  };
  CHECK(refusal([](Options& o) { o.learning_rate = o.min_learning_rate = o.eval_every = 0; }) ==
        "no error");
  const std::string wide = "; a number from 0 to below 1e+30 is right";
  const std::string share = "; a number from 0 to below 1 is right";
  CHECK(refusal([](Options& o) { o.learning_rate = NAN; }) == "train: learning_rate is nan" + wide);
  CHECK(refusal([](Options& o) { o.learning_rate = -1; }) == "train: learning_rate is -1" + wide);
  CHECK(refusal([](Options& o) { o.min_learning_rate = -1; }) ==
        "train: min_learning_rate is -1" + wide);
  CHECK(refusal([](Options& o) { o.warmup = -5; }) == "train: warmup is -5" + wide);
  CHECK(refusal([](Options& o) { o.beta1 = 2; }) == "train: beta1 is 2" + share);
  CHECK(refusal([](Options& o) { o.beta2 = 1; }) == "train: beta2 is 1" + share);
  CHECK(refusal([](Options& o) { o.weight_decay = NAN; }) == "train: weight_decay is nan" + wide);
  CHECK(refusal([](Options& o) { o.clip = -1; }) == "train: clip is -1" + wide);
  CHECK(refusal([](Options& o) { o.clip = INFINITY; }) == "train: clip is inf" + wide);
  CHECK(refusal([](Options& o) { o.dropout = 1; }) == "train: dropout is 1" + share);
  CHECK(refusal([](Options& o) { o.eval_every = -1; }) == "train: eval_every is -1" + wide);
  CHECK(refusal([](Options& o) { o.batch = 0; }) ==
        "train: 1 steps of 0 sequences; both must be at least 1");
}

#endif  // TINYSCALE_NO_THREADS
