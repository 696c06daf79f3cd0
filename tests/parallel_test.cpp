#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

ts::Text small_text() {
  std::string data;
  for (int i = 0; i < 120; ++i) {
    data += "the quick brown fox jumps over the lazy dog, and the dog sleeps on. ";
  }
  return ts::make_text("fox", data);
}

ts::ModelConfig small_model() {
  ts::ModelConfig c = ts::config("nano");
  c.layers = 2;
  c.width = 32;
  c.heads = c.kv_heads = 2;
  c.head_size = 16;
  c.hidden = 64;
  c.context = 16;
  c.vocabulary = 40;
  return c;
}

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
    for (const ts::ReportRow& row : report.counted.rows) {
      CAPTURE(row.name);
      CHECK(row.equal(row.unit == "s" ? 1e-9 : 0.0));
      CHECK(row.counted > 0.0);
    }
  }
}

TEST_CASE("nano on real text: 200 steps on 1 and on 4 devices [slow]") {
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
  options.steps = 200;
  options.out = nullptr;
  ts::Transformer one(ts::config("nano"), 1);
  const ts::TrainReport single = ts::train(one, text, options);
  options.machine = ts::machine("tpu-v5e", {4});
  options.layout.data = 4;
  ts::Transformer four(ts::config("nano"), 1);
  const ts::TrainReport report = ts::train(four, text, options);
  REQUIRE(single.losses.size() == 200);
  REQUIRE(report.losses.size() == 200);
  double worst = 0;
  for (std::size_t i = 0; i < report.losses.size(); ++i) {
    worst = std::fmax(worst, std::fabs(report.losses[i] - single.losses[i]));
  }
  MESSAGE("worst difference of a loss " << worst);
  CHECK(worst < 1e-5);
  CHECK(std::fabs(report.final_validation() - single.final_validation()) < 0.005);
  CHECK(single.final_validation() < 2.8);
  for (const ts::ReportRow& row : report.counted.rows) {
    CAPTURE(row.name);
    CHECK(row.equal(row.unit == "s" ? 1e-9 : 0.0));
  }
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

TEST_CASE("layouts and requests that cannot run say why") {
  const ts::Text text = small_text();
  ts::Transformer model(small_model(), 1);
  const auto error = [&](const ts::TrainOptions& options) {
    return error_of([&] { ts::train(model, text, options); });
  };
  ts::TrainOptions options = silent(1);
  options.layout.data = 4;
  CHECK(error(options) ==
        "train: layout is data 4, tensor 1, pipeline 1, context 1 = 4 devices, "
        "the machine has 1 chips; they must be equal");
  options.machine = ts::machine("tpu-v5e", {4, 2});
  options.layout.data = 2;
  options.layout.tensor = 2;
  CHECK(error(options) ==
        "train: layout is data 2, tensor 2, pipeline 1, context 1; this version runs data "
        "parallelism alone: set tensor, pipeline, context, expert and microbatches to 1 and zero "
        "to Zero::none");
  options.layout = ts::Layout();
  options.layout.data = 8;
  options.batch = 12;
  CHECK(error(options) ==
        "train: a batch of 12 sequences does not divide over 8 data-parallel "
        "devices; right is a multiple of 8");
  options.layout.data = 0;
  CHECK(error(options) ==
        "train: layout is data 0, tensor 1, pipeline 1, context 1; each "
        "must be at least 1, and the devices at most 2147483647");
  CHECK(error(silent(0)) == "train: 0 steps of 12 sequences; both must be at least 1");
  ts::ModelConfig tiny = small_model();
  tiny.vocabulary = 8;
  ts::Transformer few(tiny, 1);
  CHECK(error_of([&] { ts::train(few, text, silent(1)); }).find("train: the text has ") == 0);
  CHECK(error_of([&] { ts::train(model, ts::make_text("short", "abc"), silent(1)); }) ==
        "train: the text has 2 tokens here, a sequence 16; more than 16 are right: take a longer "
        "text or a shorter context");
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
