// A training that stops and goes on: in its own layout bit for bit, in every other within rounding,
// whatever killed it and at whatever byte of a save; and files that are not of this training.
#include <doctest/doctest.h>

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "tinyscale.hpp"

#if defined(__linux__)
#include <spawn.h>
#include <sys/wait.h>
#endif

namespace ts = tinyscale;

namespace {

// A folder of its own, removed with what is in it.
struct Folder {
  Folder() {
    const char* const above = std::getenv("TMPDIR");
    path = std::string(above != nullptr ? above : ".") + "/tinyscale_XXXXXX";
    REQUIRE(mkdtemp(&path[0]) != nullptr);
  }
  ~Folder() {
    for (const std::string& name : names()) {
      std::remove((path + "/" + name).c_str());
    }
    rmdir(path.c_str());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  static std::vector<std::string> names_in(const std::string& folder) {
    std::vector<std::string> names;
    DIR* const open = opendir(folder.c_str());
    REQUIRE(open != nullptr);
    while (const dirent* entry = readdir(open)) {
      if (entry->d_name[0] != '.') {
        names.push_back(entry->d_name);
      }
    }
    closedir(open);
    return names;
  }
  std::vector<std::string> names() const { return names_in(path); }
  std::string file() const { return path + "/train.safetensors"; }

  std::string path;
};

ts::Text small_text(const std::string& more = "") {
  std::string data;
  for (int i = 0; i < 60; ++i) {
    data += "the quick brown fox jumps over the lazy dog, and the dog sleeps on. " + more;
  }
  return ts::make_text("fox", data);
}

enum class Kind { gpt, llama, mixture };

ts::ModelConfig small_model(Kind kind = Kind::gpt) {
  ts::ModelConfig c = ts::config(kind == Kind::gpt ? "nano" : "nano-llama");
  c.layers = 2;
  c.width = 16;
  c.heads = 2;
  c.kv_heads = 2;
  c.head_size = 8;
  c.hidden = 32;
  c.context = 8;
  c.vocabulary = 40;
  if (kind == Kind::mixture) {
    c.experts = 4;
    c.top_k = 2;
    c.expert_hidden = 16;
    c.bias = false;
  }
  return c;
}

// The learning rate does not depend on the number of steps, so that fewer are the first of more.
ts::TrainOptions steps_of(std::int64_t steps, double clip = 1) {
  ts::TrainOptions options;
  options.clip = clip;
  options.check_steps = 0;
  options.steps = steps;
  options.batch = 4;
  options.warmup = 3;
  options.learning_rate = options.min_learning_rate = 3e-3;
  options.dropout = 0.1;
  options.eval_every = 4;
  options.out = nullptr;
  return options;
}

ts::TrainOptions in_layout(ts::TrainOptions options, const ts::Layout& layout) {
  options.layout = layout;
  if (layout.devices() > 1) {
    options.machine = ts::machine("tpu-v5e", {static_cast<int>(layout.devices())});
  }
  return options;
}

ts::TrainOptions with_file(ts::TrainOptions options, const std::string& path, bool resume) {
  options.checkpoint = path;
  options.resume = resume;
  return options;
}

std::string bytes_of(const std::string& path) { return ts::detail::read_file(path, "test"); }

void write_bytes(const std::string& path, const std::string& bytes) {
  const ts::detail::File file = ts::detail::open_file(path, "wb", "test");
  REQUIRE(std::fwrite(bytes.data(), 1, bytes.size(), file.get()) == bytes.size());
}

void check_equal(const ts::Transformer& a, const ts::Transformer& b) {
  REQUIRE(a.parameters.size() == b.parameters.size());
  std::string other;
  for (std::size_t i = 0; i < a.parameters.size(); ++i) {
    const bool same = a.parameters[i].value.values() == b.parameters[i].value.values();
    other += same ? "" : a.parameters[i].name + " ";
  }
  CHECK(other == "");
}

// Ends a training from inside: what it writes is an exception when it has these words.
struct Interrupter : std::streambuf {
  explicit Interrupter(const std::string& at) : words(at), out(this) {
    out.exceptions(std::ios::badbit);
  }
  std::streamsize xsputn(const char* text, std::streamsize n) override {
    said.append(text, static_cast<std::size_t>(n));
    if (said.find(words) != std::string::npos) {
      throw std::runtime_error("interrupted");
    }
    return n;
  }
  int overflow(int c) override {
    said += static_cast<char>(c);
    return c;
  }
  std::string words, said;
  std::ostream out;
};

// A checkpoint after 4 of 8 steps.
void save_half(const std::string& path, Kind kind = Kind::gpt,
               const ts::Layout& layout = ts::Layout(), double clip = 1) {
  ts::Transformer model(small_model(kind), 1);
  ts::train(model, small_text(), in_layout(with_file(steps_of(4, clip), path, false), layout));
}

// The file with a change: of its tensors or its notes.
void change(
    const std::string& path,
    const std::function<void(ts::List<ts::Parameter>&, ts::List<ts::SafetensorsNote>&)>& by) {
  const ts::Safetensors file = ts::read_safetensors(path);
  ts::List<ts::Parameter> tensors;
  for (const ts::SafetensorsEntry& entry : file.entries) {
    tensors.push_back({entry.name, file.read(entry)});
  }
  ts::List<ts::SafetensorsNote> notes = file.metadata;
  by(tensors, notes);
  ts::write_safetensors(path, tensors, notes);
}

void change_note(const std::string& path, const std::string& what, const std::string& from,
                 const std::string& to) {
  change(path, [&](ts::List<ts::Parameter>&, ts::List<ts::SafetensorsNote>& notes) {
    for (ts::SafetensorsNote& note : notes) {
      if (note.name == what) {
        const std::size_t at = note.text.find(from);
        REQUIRE(at != std::string::npos);
        note.text.replace(at, from.size(), to);
      }
    }
  });
}

}  // namespace

TEST_CASE("a training that stopped goes on bit for bit, down to the bytes of its file") {
  const Folder folder;
  const ts::Text text = small_text();
  ts::Transformer whole(small_model(), 1);
  const ts::TrainReport all = ts::train(whole, text, with_file(steps_of(8), folder.file(), true));
  const std::string bytes = bytes_of(folder.file());
  CHECK(folder.names().size() == 1);
  CHECK(all.resumed == 0);
  CHECK(all.validation.size() == 2);

  std::remove(folder.file().c_str());
  save_half(folder.file());
  ts::Transformer rest(small_model(), 77);  // its weights come from the file
  const ts::TrainReport report = ts::train(rest, text, with_file(steps_of(8), folder.file(), true));
  CHECK(report.resumed == 4);
  CHECK(report.losses == all.losses);
  CHECK(report.grad_norms == all.grad_norms);
  CHECK(report.final_validation() == all.final_validation());
  CHECK(report.validation.front().loss == all.validation.front().loss);
  check_equal(rest, whole);
  CHECK(bytes_of(folder.file()) == bytes);
  CHECK(folder.names().size() == 1);
  REQUIRE(!report.memory.rows.empty());
  CHECK(report.memory.rows[0].counted == all.memory.rows[0].counted);
  std::ostringstream said;
  said << report;
  CHECK(said.str().find("steps of the checkpoint, and since") != std::string::npos);
  CHECK(said.str().find("4 + 4") != std::string::npos);
}

TEST_CASE("a checkpoint is a model that load() reads") {
  const Folder folder;
  ts::Transformer model(small_model(Kind::llama), 1);
  ts::train(model, small_text(), with_file(steps_of(2), folder.file(), false));
  const ts::Transformer read = ts::load(folder.file());
  check_equal(read, model);
  CHECK(read.tokenizer == model.tokenizer);
  CHECK(ts::load(folder.file(), small_model(Kind::llama)).count() == model.count());
}

TEST_CASE("the learning rate, the batches and the dropout go on by the step") {
  const Folder folder;
  const ts::Text text = small_text();
  ts::TrainOptions options = steps_of(12);
  options.min_learning_rate = 1e-4;  // a cosine of the step
  ts::Transformer whole(small_model(), 1);
  const ts::TrainReport all = ts::train(whole, text, options);

  options.checkpoint_every = 5;
  ts::TrainOptions first = with_file(options, folder.file(), true);
  Interrupter at_8("step 8");
  first.out = &at_8.out;
  ts::Transformer model(small_model(), 1);
  CHECK_THROWS_AS(ts::train(model, text, first), std::runtime_error);
  CHECK(at_8.said.find("resumed") == std::string::npos);

  Interrupter never("never");
  first.out = &never.out;
  ts::Transformer again(small_model(), 2);
  const ts::TrainReport report = ts::train(again, text, first);
  CHECK(never.said.find("resumed \"" + folder.file() + "\" after step 5\nstep 6/12") == 0);
  CHECK(report.resumed == 5);
  CHECK(report.losses == all.losses);
  check_equal(again, whole);
}

TEST_CASE("a training that is over takes no step") {
  const Folder folder;
  save_half(folder.file());
  const std::string bytes = bytes_of(folder.file());
  for (const std::int64_t steps : {4, 3}) {
    CAPTURE(steps);
    ts::TrainOptions options = with_file(steps_of(steps), folder.file(), true);
    std::ostringstream said, table;
    options.out = &said;
    ts::Transformer model(small_model(), 2);
    const ts::TrainReport report = ts::train(model, small_text(), options);
    CHECK(said.str() == "resumed \"" + folder.file() + "\" after step 4: no step is left\n");
    CHECK(report.resumed == 4);
    CHECK(report.losses.size() == 4);
    CHECK(report.seconds == 0);
    CHECK(report.tokens_per_second == 0);
    CHECK(report.mfu == 0);
    table << report;
    CHECK(table.str().find("4 + 0") != std::string::npos);
    check_equal(model, ts::load(folder.file()));
    CHECK(bytes_of(folder.file()) == bytes);
    CHECK(folder.names().size() == 1);
  }
}

namespace {

// 4 steps and, resumed, 4 more are the 8 of one that never stopped.
void check_resumes(const ts::TrainOptions& options) {
  const Folder folder;
  CAPTURE(options.layout.text());
  CAPTURE(ts::name_of(options.format));
  ts::Transformer whole(small_model(), 1), half(small_model(), 1), rest(small_model(), 2);
  ts::TrainOptions eight = options, four = with_file(options, folder.file(), true);
  eight.steps = 8;
  four.steps = 4;
  const ts::TrainReport all = ts::train(whole, small_text(), eight);
  ts::train(half, small_text(), four);
  four.steps = 8;
  const ts::TrainReport report = ts::train(rest, small_text(), four);
  CHECK(report.resumed == 4);
  CHECK(report.losses == all.losses);
  for (std::size_t i = 0; i < 8; ++i) {  // a norm that overflowed may have been no number
    CHECK((report.grad_norms[i] == all.grad_norms[i] || !std::isfinite(all.grad_norms[i])));
  }
  CHECK(report.skipped_steps == all.skipped_steps);
  CHECK(report.loss_scale == all.loss_scale);
  check_equal(rest, whole);
}

}  // namespace

TEST_CASE("weights rounded on their way and loss scales go on as they were [slow]") {
  ts::TrainOptions options = steps_of(8);
  options.loss_scaler.scale = 16777216;
  options.loss_scaler.growth_steps = 3;
  for (const ts::DType format : {ts::DType::bf16, ts::DType::f16, ts::DType::fp8_e4m3}) {
    options.format = format;
    options.layout = ts::Layout();
    options.machine = ts::Machine();
    check_resumes(options);
#if !defined(TINYSCALE_NO_THREADS)
    options.layout.data = 2;
    options.machine = ts::machine("tpu-v5e", {2});
    for (const ts::Zero zero :
         {ts::Zero::none, ts::Zero::optimizer, ts::Zero::gradients, ts::Zero::parameters}) {
      options.layout.zero = zero;
      check_resumes(options);
    }
#endif
  }
}

TEST_CASE("a step that was left out, and a resume in another format") {
  const Folder folder;
  ts::TrainOptions options = with_file(steps_of(3), folder.file(), true);
  options.format = ts::DType::f16;
  options.loss_scaler.scale = std::ldexp(1.0, 40);  // gradients of the first step overflow
  options.loss_scaler.largest = std::ldexp(1.0, 40);
  ts::Transformer model(small_model(), 1);
  const ts::TrainReport half = ts::train(model, small_text(), options);
  CHECK(half.skipped_steps == 3);
  options.steps = 4;
  ts::TrainReport more = ts::train(model, small_text(), options);
  CHECK(more.skipped_steps == 4);
  CHECK(more.grad_norms[0] == HUGE_VAL);
  CHECK(more.loss_scale == std::ldexp(1.0, 36));
  options.steps = 5;
  options.format = ts::DType::f32;
  more = ts::train(model, small_text(), options);
  CHECK(more.loss_scale == 1);
  options.steps = 6;
  options.format = ts::DType::f16;
  options.loss_scaler = ts::LossScaler();
  more = ts::train(model, small_text(), options);
  CHECK(more.skipped_steps == 4);
  CHECK(more.loss_scale == 65536);
}

TEST_CASE("options that contradict each other are named") {
  ts::Transformer model(small_model(), 1);
  const auto error = [&](const std::string& path, std::int64_t every, bool resume) {
    ts::TrainOptions options = with_file(steps_of(1), path, resume);
    options.checkpoint_every = every;
    return error_of([&] { ts::train(model, small_text(), options); });
  };
  const std::string right = "; a path, and steps of at least 0, are right";
  CHECK(error("", 0, true) == "train: checkpoint is \"\", checkpoint_every 0, resume true" + right);
  CHECK(error("", 5, false) ==
        "train: checkpoint is \"\", checkpoint_every 5, resume false" + right);
  CHECK(error("a", -1, false) ==
        "train: checkpoint is \"a\", checkpoint_every -1, resume false" + right);
}

TEST_CASE("a place that cannot be written is named before the first step") {
  ts::Transformer model(small_model(), 1);
  const auto error = [&](const std::string& path) {
    Interrupter step("step");  // no step is taken
    ts::TrainOptions options = with_file(steps_of(1), path, true);
    options.out = &step.out;
    return error_of([&] { ts::train(model, small_text(), options); });
  };
  CHECK(error("no/such/folder/t.safetensors") ==
        "train: cannot write \"no/such/folder/t.safetensors\": No such file or directory; give a "
        "path in a folder that exists and can be written");
  CHECK(error("t.pt") ==
        "train: \"t.pt\" would hold safetensors, which its name denies; .safetensors is right, and "
        "save_llama2c writes a .bin");
  const Folder folder;
  CHECK(error(folder.path) ==
        "train: \"" + folder.path +
            "\" is there and is no regular file (a folder, a device, a link to nothing); a new "
            "name or an old file is right");
  if (geteuid() != 0) {  // who may write everywhere
    REQUIRE(chmod(folder.path.c_str(), 0555) == 0);
    CHECK(error(folder.file()) ==
          "train: cannot write \"" + folder.file() +
              "\": Permission denied; give a path in a folder that exists and can be written");
    REQUIRE(chmod(folder.path.c_str(), 0755) == 0);
    save_half(folder.file());
    REQUIRE(chmod(folder.file().c_str(), 0) == 0);
    CHECK(error(folder.file()) == "load: cannot open \"" + folder.file() + "\": Permission denied");
  }
}

TEST_CASE("a full disk leaves the old checkpoint") {
  const Folder folder;
  save_half(folder.file());
  const std::string bytes = bytes_of(folder.file());
  ts::Transformer model(small_model(), 1);
  rlimit limit;
  REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const rlimit small_files = {5000, limit.rlim_max};
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small_files);  // a file may grow to 5000 bytes
  const std::string error = error_of(
      [&] { ts::train(model, small_text(), with_file(steps_of(5), folder.file(), true)); });
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, before);
  CHECK(error ==
        "save: cannot write \"" + folder.file() + "\": File too large; the old file is as it was");
  CHECK(bytes_of(folder.file()) == bytes);
  CHECK(folder.names().size() == 1);
  const ts::TrainReport report =
      ts::train(model, small_text(), with_file(steps_of(5), folder.file(), true));
  CHECK(report.resumed == 4);
}

TEST_CASE("weights and moments that are no numbers are not saved") {
  const Folder folder;
  save_half(folder.file());
  const std::string bytes = bytes_of(folder.file());
  ts::TrainOptions options = with_file(steps_of(5), folder.file(), true);
  options.steps = 8;
  options.checkpoint_every = 5;
  options.eval_every = 0;
  options.learning_rate = options.min_learning_rate = 9e29;
  options.weight_decay = 9e29;
  ts::Transformer model(small_model(), 1);
  CHECK(error_of([&] { ts::train(model, small_text(), options); }) ==
        "train: the norm of the weights and moments is infinite in step 4; try a smaller "
        "learning_rate than 9e+29, a longer warmup than 3 steps or a smaller clip than 1");
  CHECK(bytes_of(folder.file()) == bytes);
}

TEST_CASE("checkpoints of other trainings are refused, and the model stays as it was") {
  const Folder folder;
  const std::string path = folder.file(), who = "train: \"" + path + "\": ";
  save_half(path);
  const std::string bytes = bytes_of(path);
  const ts::Transformer first(small_model(), 9);
  const auto error = [&](const ts::ModelConfig& config, const ts::TrainOptions& options,
                         const ts::Text& text) {
    ts::Transformer model(config, 9);
    const std::string said = error_of([&] { ts::train(model, text, options); });
    if (config.width == first.config.width && config.layers == first.config.layers) {
      check_equal(model, first);
    }
    CHECK(bytes_of(path) == bytes);
    return said;
  };
  const ts::TrainOptions right = with_file(steps_of(8), path, true);
  ts::ModelConfig config = small_model();
  config.layers = 3;
  CHECK(error(config, right, small_text()) ==
        who + "its model has layers 2, this one 3; resume the model that was saved");
  config = small_model();
  config.norm_epsilon = 1e-4;
  CHECK(error(config, right, small_text()) ==
        who + "its model has norm_epsilon 1e-05, this one 0.0001; resume the model that was saved");
  config = small_model();
  config.activation =
      config.activation == ts::Activation::gelu ? ts::Activation::gelu_tanh : ts::Activation::gelu;
  const std::string other = error(config, right, small_text());
  CHECK(other.find(who + "its model has activation gelu") == 0);
  {  // what a config leaves out when it is as in most models, in the file alone or here alone
    const std::string own = folder.path + "/rotary", whose = "train: \"" + own + "\": ";
    const auto rotary = [](const std::vector<float>& factors, ts::RopePairs pairs) {
      ts::ModelConfig c = small_model(Kind::llama);
      c.rope_factors = factors;
      c.rope_pairs = pairs;
      return c;
    };
    const auto resumed = [&](const ts::ModelConfig& there, const ts::ModelConfig& here) {
      ts::Transformer saved(there, 9), other(here, 9);
      ts::train(saved, small_text(), with_file(steps_of(4), own, false));
      return error_of([&] { ts::train(other, small_text(), with_file(steps_of(8), own, true)); });
    };
    const ts::RopePairs halves = ts::RopePairs::halves, next = ts::RopePairs::interleaved;
    const ts::ModelConfig plain = rotary({}, halves), scaled = rotary({1, 2, 4, 8}, halves);
    CHECK(resumed(scaled, scaled) == "no error");
    CHECK(resumed(scaled, plain) ==
          whose +
              "its model has rope_factors 4 numbers, this one nothing; resume the model that was "
              "saved");
    CHECK(resumed(plain, scaled) ==
          whose +
              "its model has rope_factors nothing, this one 4 numbers; resume the model that was "
              "saved");
    CHECK(resumed(scaled, rotary({1, 2, 4, 9}, halves)) ==
          whose + "its model has rope_factors[3] 8, this one 9; resume the model that was saved");
    CHECK(resumed(rotary({}, next), plain) ==
          whose +
              "its model has rope_pairs interleaved, this one nothing; resume the model that was "
              "saved");
    CHECK(resumed(plain, rotary({}, next)) ==
          whose +
              "its model has rope_pairs nothing, this one interleaved; resume the model that was "
              "saved");
    ts::Transformer saved(plain, 9), again(plain, 9);  // spelled out, it is the same model
    ts::train(saved, small_text(), with_file(steps_of(4), own, false));
    change_note(own, "tinyscale.config", "\"norm\"", "\"rope_pairs\":\"halves\",\"norm\"");
    CHECK(error_of([&] { ts::train(again, small_text(), with_file(steps_of(8), own, true)); }) ==
          "no error");
  }
  ts::TrainOptions options = right;
  options.seed = 18446744073709551615U;
  CHECK(error(small_model(), options, small_text()) ==
        who +
            "seed is 1337 there and 18446744073709551615 here; the same is right, for the same "
            "batches");
  options = right;
  options.batch = 8;
  CHECK(error(small_model(), options, small_text()) ==
        who + "batch is 4 there and 8 here; the same is right, for the same batches");
  const ts::Text more = small_text("It snores. ");
  const std::string mark = ts::detail::text_mark(small_text());
  CHECK(mark.find("3672 tokens of hash ") == 0);
  CHECK(error(small_model(), right, more) == who + "text is " + mark + " there and " +
                                                 ts::detail::text_mark(more) +
                                                 " here; the same is right, for the same batches");
  config = small_model();
  config.name = "another name";  // of the same model
  ts::Transformer model(config, 9);
  CHECK(error_of([&] { ts::train(model, small_text(), right); }) == "no error");

  model.save(path);
  CHECK(error_of([&] { ts::train(model, small_text(), right); }) ==
        who + "it holds no training to resume; give the checkpoint of one, or resume false");
}

TEST_CASE("a checkpoint that lies is refused") {
  const Folder folder;
  const std::string path = folder.file(), who = "train: \"" + path + "\": ";
  save_half(path);
  const std::string bytes = bytes_of(path);
  const auto error = [&] {
    ts::Transformer model(small_model(), 9);
    const std::string said =
        error_of([&] { ts::train(model, small_text(), with_file(steps_of(8), path, true)); });
    if (said != "no error") {
      check_equal(model, ts::Transformer(small_model(), 9));
    }
    write_bytes(path, bytes);
    return said;
  };
  const auto note_error = [&](const std::string& from, const std::string& to) {
    change_note(path, "tinyscale.training", from, to);
    return error();
  };

  SUBCASE("its length") {
    write_bytes(path, bytes.substr(0, bytes.size() - 4));
    CHECK(error().find("load: \"" + path + "\": the tensors end at byte ") == 0);
    write_bytes(path, bytes.substr(0, 100));
    CHECK(error().find("load: \"" + path + "\": a header of ") == 0);
    write_bytes(path, "");
    CHECK(error() == "load: \"" + path + "\": 0 bytes are no safetensors file; it begins with 8");
  }
  SUBCASE("its tensors") {
    const auto tensor_error = [&](const std::string& name,
                                  const std::function<void(ts::Parameter&)>& by) {
      change(path, [&](ts::List<ts::Parameter>& tensors, ts::List<ts::SafetensorsNote>&) {
        for (ts::Parameter& tensor : tensors) {
          if (tensor.name == name) {
            by(tensor);
          }
        }
      });
      return error();
    };
    const std::string norm = "model.norm.weight";
    const auto lost = [](ts::Parameter& p) { p.name = "optimizer.lost"; };
    CHECK(tensor_error("optimizer.moments." + norm, lost) ==
          who + "no tensor \"optimizer.moments.model.norm.weight\"");
    CHECK(tensor_error("optimizer.squares." + norm, lost) ==
          who + "no tensor \"optimizer.squares.model.norm.weight\"");
    CHECK(tensor_error(norm, lost) == who + "no tensor \"model.norm.weight\"");
    CHECK(tensor_error("optimizer.moments." + norm,
                       [](ts::Parameter& p) {
                         p.value = ts::zeros({8, 2});
                       }) ==
          who +
              "the tensor \"optimizer.moments.model.norm.weight\" is [8, 2] of F32; [16] of F32 "
              "is right");
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      for (const char* const of : {"", "optimizer.moments.", "optimizer.squares."}) {
        CHECK(tensor_error(of + norm, [&](ts::Parameter& p) { p.value.data()[3] = bad; }) ==
              who + "the tensor \"" + of + norm + "\" holds what is no finite number");
      }
    }
    CHECK(tensor_error("optimizer.squares." + norm,
                       [](ts::Parameter& p) { p.value.data()[3] = -0.25f; }) ==
          who +
              "the tensor \"optimizer.squares.model.norm.weight\" holds -0.25; means of squares "
              "are not negative");
    change(path, [](ts::List<ts::Parameter>& tensors, ts::List<ts::SafetensorsNote>&) {
      tensors.push_back({"optimizer.more", ts::zeros({2})});
    });
    CHECK(error() ==
          who + "the tensor \"optimizer.more\" has no place in a training of this model");
    std::string halves = bytes;  // of the same length, and of another type
    const std::size_t at = halves.find("\"F32\"", halves.find("optimizer.moments.model.norm."));
    REQUIRE(at != std::string::npos);
    halves.replace(at, 5, "\"I32\"");
    write_bytes(path, halves);
    CHECK(error().find(" of I32; ") != std::string::npos);
  }
  SUBCASE("its notes") {
    CHECK(note_error("\"steps\"", "\"strides\"") == who + "its training lacks steps");
    CHECK(note_error("\"seed\":\"1337\"", "\"seed\":1337") == who + "its training lacks seed");
    CHECK(note_error("\"losses\":[", "\"losses\":[\"one\",") ==
          who + "its losses hold what is no finite number");
    CHECK(note_error("\"losses\":[", "\"losses\":[1e999,") ==
          who + "its losses hold what is no finite number");
    CHECK(note_error("\"losses\":[", "\"losses\":[null,") ==
          who + "its losses hold what is no finite number");
    CHECK(note_error("\"losses\":[", "\"losses\":[2,") ==
          who +
              "4 steps with 5 losses, 4 gradient norms and 1 validation losses at 1 steps; one "
              "of each a step is right");
    CHECK(note_error("\"validation\":[", "\"validation\":[2,") ==
          who +
              "4 steps with 4 losses, 4 gradient norms and 2 validation losses at 1 steps; one "
              "of each a step is right");
    CHECK(note_error("\"steps\":4", "\"steps\":-4") ==
          who + "its steps: a size is not a whole number from 0 to 2^53 - 1");
    CHECK(note_error("\"validated\":[4", "\"validated\":[4.5") ==
          who + "validation after step 4.5 of 4; a whole number up to those is right");
    CHECK(note_error("\"validated\":[4", "\"validated\":[9e300") ==
          who + "validation after step 9e+300 of 4; a whole number up to those is right");
    CHECK(note_error("\"updates\":4", "\"updates\":5") ==
          who +
              "5 updates in 4 steps at a loss scale of 1; at most one a step and a scale above 0 "
              "are right");
    CHECK(note_error("\"loss_scale\":1", "\"loss_scale\":0") ==
          who +
              "4 updates in 4 steps at a loss scale of 0; at most one a step and a scale above 0 "
              "are right");
    CHECK(note_error("\"loss_scale\":1", "\"loss_scale\":1e999") ==
          who +
              "4 updates in 4 steps at a loss scale of inf; at most one a step and a scale above "
              "0 are right");
    CHECK(note_error("\"format\":\"f32\"", "\"format\":null") == who + "its training lacks format");
    CHECK(note_error("{", "[{").find(who + "json: the text ends early at byte ") == 0);
    change_note(path, "tinyscale.config", "\"layers\":2,", "");
    CHECK(error() == who + "its config lacks layers");
  }
  CHECK(error() == "no error");
}

TEST_CASE("an optimizer goes on only from moments of its tensors") {
  ts::AdamW adamw({ts::parameter(ts::zeros({2})), ts::parameter(ts::zeros({3}))});
  const ts::Tensor two = ts::zeros({2}), three = ts::zeros({3});
  CHECK(error_of([&] {
          adamw.resume({two}, {two, three}, 1);
        }) ==
        "AdamW: 1 moments and 2 squares for 2 tensors; one each, of the tensor's shape, is right");
  CHECK(error_of([&] {
          adamw.resume({two, two}, {two, three}, 1);
        }) ==
        "AdamW: 2 moments and 2 squares for 2 tensors; one each, of the tensor's shape, is right");
  adamw.resume({two, three}, {two, three}, 7);
  CHECK(adamw.steps() == 7);
  CHECK(adamw.moments().size() == 2);
}

#if !defined(TINYSCALE_NO_THREADS)

namespace {

ts::Layout layout_of(int data, int tensor, int pipeline, int context, int microbatches = 1,
                     ts::Zero zero = ts::Zero::none) {
  ts::Layout layout;
  layout.data = data;
  layout.tensor = tensor;
  layout.pipeline = pipeline;
  layout.context = context;
  layout.microbatches = microbatches;
  layout.zero = zero;
  return layout;
}

ts::TrainReport unbroken(Kind kind, const ts::Layout& layout, ts::Transformer& model,
                         double clip = 1) {
  model = ts::Transformer(small_model(kind), 1);
  return ts::train(model, small_text(), in_layout(steps_of(8, clip), layout));
}

ts::TrainReport resumed(Kind kind, const ts::Layout& layout, const std::string& path,
                        ts::Transformer& model, double clip = 1) {
  model = ts::Transformer(small_model(kind), 5);
  return ts::train(model, small_text(),
                   in_layout(with_file(steps_of(8, clip), path, true), layout));
}

double worst_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::fmax(worst, std::fabs(a[i] / b[i] - 1));
  }
  return worst;
}

}  // namespace

TEST_CASE("every layout goes on from its own checkpoint bit for bit [slow]") {
  const Folder folder;
  ts::Layout hybrid = layout_of(4, 1, 1, 1, 1, ts::Zero::parameters), again = layout_of(1, 1, 1, 1);
  hybrid.zero_devices = 2;
  again.recompute = ts::Recompute::full;
  ts::Layout experts = layout_of(2, 1, 1, 1, 1, ts::Zero::optimizer);
  experts.expert = 2;
  const struct {
    Kind kind;
    ts::Layout layout;
  } cases[] = {{Kind::gpt, layout_of(1, 1, 1, 1, 2)},
               {Kind::gpt, layout_of(4, 1, 1, 1)},
               {Kind::llama, layout_of(2, 1, 1, 1, 2, ts::Zero::optimizer)},
               {Kind::gpt, layout_of(4, 1, 1, 1, 1, ts::Zero::gradients)},
               {Kind::llama, layout_of(2, 1, 1, 1, 1, ts::Zero::parameters)},
               {Kind::gpt, hybrid},
               {Kind::gpt, again},
               {Kind::llama, layout_of(1, 2, 2, 1, 2)},
               {Kind::gpt, layout_of(1, 1, 2, 1, 2)},
               {Kind::gpt, layout_of(1, 1, 1, 2)},
               {Kind::mixture, experts}};
  for (const auto& c : cases) {
    CAPTURE(c.layout.text());
    ts::Transformer whole(small_model(), 1), rest(small_model(), 1);
    const ts::TrainReport all = unbroken(c.kind, c.layout, whole);
    save_half(folder.file(), c.kind, c.layout);
    const ts::TrainReport report = resumed(c.kind, c.layout, folder.file(), rest);
    CHECK(report.resumed == 4);
    CHECK(report.losses == all.losses);
    CHECK(report.grad_norms == all.grad_norms);
    CHECK(report.final_validation() == all.final_validation());
    check_equal(rest, whole);
    CHECK(folder.names().size() == 1);
  }
}

TEST_CASE("a checkpoint goes on in every other layout") {
  const Folder folder;
  ts::Layout hybrid = layout_of(4, 1, 1, 1, 1, ts::Zero::parameters), again = layout_of(1, 1, 1, 1);
  hybrid.zero_devices = 2;
  again.recompute = ts::Recompute::full;
  ts::Layout sequence = layout_of(1, 2, 1, 1);
  sequence.sequence_parallel = true;
  const ts::Layout one = layout_of(1, 1, 1, 1), four = layout_of(4, 1, 1, 1),
                   zero_1 = layout_of(4, 1, 1, 1, 1, ts::Zero::optimizer),
                   zero_2 = layout_of(4, 1, 1, 1, 1, ts::Zero::gradients),
                   zero_3 = layout_of(4, 1, 1, 1, 1, ts::Zero::parameters);
  ts::Layout experts = layout_of(4, 1, 1, 1, 1, ts::Zero::optimizer);
  experts.expert = 2;
  const struct {
    Kind kind;
    ts::Layout from, to;
    bool exact;  // the same sums in the same order, but for the gradient norm: it is not clipped
  } cases[] = {{Kind::gpt, four, layout_of(1, 2, 2, 1, 2), false},
               {Kind::llama, four, layout_of(1, 2, 2, 1, 2), false},
               {Kind::gpt, layout_of(1, 2, 2, 1, 2), four, false},
               {Kind::gpt, four, zero_1, true},
               {Kind::gpt, zero_1, zero_2, true},
               {Kind::llama, zero_2, zero_3, true},
               {Kind::gpt, zero_3, four, true},
               {Kind::gpt, zero_3, hybrid, false},
               {Kind::gpt, one, again, false},
               {Kind::gpt, again, one, false},
               {Kind::gpt, one, zero_3, false},
               {Kind::llama, zero_3, one, false},
               {Kind::gpt, one, sequence, false},
               {Kind::gpt, layout_of(1, 1, 2, 1, 2), one, false},
               {Kind::llama, one, layout_of(1, 1, 1, 2), false},
               {Kind::mixture, one, experts, false},
               {Kind::mixture, experts, layout_of(1, 2, 1, 1), false},
               {Kind::mixture, experts, layout_of(2, 1, 1, 2, 1, ts::Zero::parameters), false}};
  for (const auto& c : cases) {
    CAPTURE(c.from.text());
    CAPTURE(c.to.text());
    const double clip = c.exact ? 0 : 1;
    ts::Transformer whole(small_model(), 1), rest(small_model(), 1);
    const ts::TrainReport all = unbroken(c.kind, c.from, whole, clip);
    save_half(folder.file(), c.kind, c.from, clip);
    const ts::TrainReport report = resumed(c.kind, c.to, folder.file(), rest, clip);
    CHECK(report.resumed == 4);
    CHECK(worst_ratio(report.losses, all.losses) < 1e-6);
    CHECK(report.one_device.empty());
    if (c.exact) {
      CHECK(report.losses == all.losses);
      check_equal(rest, whole);
    }
  }
}

TEST_CASE("the steps after a resume stand beside one device's, which leaves the moments alone") {
  const Folder folder;
  save_half(folder.file());
  ts::TrainOptions options =
      in_layout(with_file(steps_of(6), folder.file(), true), layout_of(2, 1, 1, 1));
  ts::Transformer plain(small_model(), 1), checked(small_model(), 1);
  ts::train(plain, small_text(), options);
  save_half(folder.file());
  options.check_steps = 5;  // more than are left
  const ts::TrainReport report = ts::train(checked, small_text(), options);
  REQUIRE(report.one_device.size() == 2);
  CHECK(std::fabs(report.one_device[1] - report.losses[5]) < 1e-6);
  CHECK(report.loss_table().rows[1][0] == "5");
  check_equal(checked, plain);
}

TEST_CASE("what a file holds does not depend on the layout that wrote it") {
  const Folder folder;
  const auto tensors = [&](const ts::Layout& layout) {
    save_half(folder.file(), Kind::gpt, layout, 0);
    const ts::Safetensors file = ts::read_safetensors(folder.file());
    return file.bytes.substr(file.data_start);
  };
  const std::string bytes = tensors(layout_of(4, 1, 1, 1));
  for (const ts::Zero zero : {ts::Zero::optimizer, ts::Zero::gradients, ts::Zero::parameters}) {
    CHECK((tensors(layout_of(4, 1, 1, 1, 1, zero)) == bytes));
  }
  CHECK(tensors(layout_of(1, 2, 2, 1, 2)).size() == bytes.size());
}

#endif

#if defined(__linux__)

namespace {

// When a life ends before its time: at once after a while, or then in the first save that begins,
// after another while; below 0: never. Or when a file of it has grown to so many bytes.
struct Death {
  std::int64_t microseconds = -1, in_save = -1, bytes = -1;
};

bool file_has_bytes(const std::string& path) {
  struct stat seen;
  return stat(path.c_str(), &seen) == 0 && seen.st_size > 0;
}

void kill_in_time(pid_t child, const std::string& beside, const Death& death) {
  usleep(static_cast<useconds_t>(death.microseconds));
  if (death.in_save >= 0) {
    siginfo_t ended;
    ended.si_pid = 0;
    while (!file_has_bytes(beside) && ended.si_pid == 0) {
      usleep(20);
      REQUIRE(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT) == 0);
    }
    usleep(static_cast<useconds_t>(death.in_save));
  }
  kill(child, SIGKILL);
}

// A life of a training in a process of its own, the child of one with a single thread. Whether it
// came to its end.
bool live(const ts::TrainOptions& options, const ts::ModelConfig& config, std::uint64_t seed,
          const Death& death) {
  int started[2];
  REQUIRE(pipe(started) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const rlimit none = {0, 0};
    const auto bytes = static_cast<rlim_t>(death.bytes);
    const rlimit most = {bytes, bytes};
    std::signal(SIGXFSZ, SIG_DFL);
    bool ready = setrlimit(RLIMIT_CORE, &none) == 0;
    ready = ready && (death.bytes < 0 || setrlimit(RLIMIT_FSIZE, &most) == 0);
    try {
      ts::Transformer model(config, seed);
      if (ready && write(started[1], "s", 1) == 1) {
        ts::train(model, small_text(), options);
        _exit(0);
      }
    } catch (const std::exception&) {
    }
    _exit(3);
  }
  close(started[1]);
  char byte = 0;
  REQUIRE(read(started[0], &byte, 1) == 1);
  close(started[0]);
  if (death.microseconds >= 0) {
    kill_in_time(child, options.checkpoint + ".saving-" + std::to_string(child) + "-0", death);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (WIFEXITED(status)) {
    REQUIRE(WEXITSTATUS(status) == 0);
    return true;
  }
  CHECK(WTERMSIG(status) == (death.bytes < 0 ? SIGKILL : SIGXFSZ));
  return false;
}

// What a whole checkpoint holds.
struct Held {
  std::vector<double> losses;
  std::string tensors;
};
Held held_in(const std::string& path) {
  Held held;
  CHECK(error_of([&] { ts::load(path); }) == "no error");
  const ts::Safetensors file = ts::read_safetensors(path);
  const ts::Json notes = ts::parse_json(*file.find_metadata("tinyscale.training"));
  for (const ts::Json& loss : notes.find("losses")->list) {
    held.losses.push_back(loss.number);
  }
  CHECK(notes.find("steps")->number == static_cast<double>(held.losses.size()));
  held.tensors = file.bytes.substr(file.data_start);
  return held;
}

// Runs a case of this program in a process of its own, with one thread until it wants more.
void run_alone(const std::string& name) {
  const Folder folder;
  std::vector<std::string> variables = {"TINYSCALE_KILLED_IN=" + folder.path,
                                        "TINYSCALE_THREADS=1"};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "TINYSCALE_THREADS=", 18) != 0) {
      variables.push_back(*entry);
    }
  }
  std::vector<std::string> words = {"killed", "--no-skip", "--test-case=" + name, "--minimal"};
  std::vector<char*> arguments, environment;
  for (std::string& word : words) {
    arguments.push_back(&word[0]);
  }
  for (std::string& variable : variables) {
    environment.push_back(&variable[0]);
  }
  arguments.push_back(nullptr);
  environment.push_back(nullptr);
  pid_t child = 0;
  REQUIRE(posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments.data(),
                      environment.data()) == 0);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(access((folder.path + "/done").c_str(), F_OK) == 0);  // it was found and ran
}

// What killed lives were writing.
std::size_t halves_in(const std::string& folder) {
  std::size_t found = 0;
  for (const std::string& name : Folder::names_in(folder)) {
    found += name.find(".saving-") != std::string::npos ? 1U : 0U;
  }
  return found;
}

// Trains again and again until 200 lives were killed.
void kill_many(const std::string& folder) {
  const std::string path = folder + "/train.safetensors";
  ts::ModelConfig config = small_model();
  config.width = config.hidden = 64;  // so that a save takes about as long as a step
  config.head_size = 32;
  ts::TrainOptions options = with_file(steps_of(40, 0), path, true);
  options.batch = 2;
  options.min_learning_rate = 1e-4;  // a cosine of the step
  options.checkpoint_every = 1;
  options.eval_every = 0;
  // One device in every other training; two in the others, each life with other shards.
  const std::vector<ts::TrainOptions> one = {options};
  std::vector<ts::TrainOptions> two;
#if !defined(TINYSCALE_NO_THREADS)
  for (const ts::Zero zero : {ts::Zero::none, ts::Zero::gradients, ts::Zero::parameters}) {
    two.push_back(in_layout(options, layout_of(2, 1, 1, 1, 1, zero)));
  }
#endif
  std::int64_t kills = 0, saving = 0, trainings = 0;
  std::uint64_t lives = 0;
  while (kills < 200) {
    const std::vector<ts::TrainOptions>& layouts = trainings % 2 == 1 && !two.empty() ? two : one;
    ts::TrainOptions whole = with_file(layouts[0], folder + "/right", false);
    whole.checkpoint_every = 0;
    REQUIRE(live(whole, config, 1, Death()));
    const Held right = held_in(whole.checkpoint);
    std::remove(whole.checkpoint.c_str());

    std::size_t steps = 0;
    for (bool ended = false; !ended;) {
      Death death;
      if (kills < 200) {
        death.microseconds = static_cast<std::int64_t>(ts::random_below(20, lives, 5000));
        death.in_save =
            lives % 3 != 0 ? static_cast<std::int64_t>(ts::random_below(21, lives, 400)) : -1;
      }
      // The first weights are those of seed 1; later ones come from the file.
      ended = live(layouts[lives % layouts.size()], config, steps == 0 ? 1 : 2, death);
      ++lives;
      kills += ended ? 0 : 1;
      const bool there = access(path.c_str(), F_OK) == 0;
      const std::size_t left = halves_in(folder);  // the next life removes it
      saving += left > 0 ? 1 : 0;
      REQUIRE(left <= 1);
      REQUIRE(Folder::names_in(folder).size() == left + (there ? 1U : 0U));
      if (there) {
        const Held held = held_in(path);
        REQUIRE(held.losses.size() >= steps);  // nothing that was saved is lost
        steps = held.losses.size();
        REQUIRE(steps <= right.losses.size());
        CHECK(held.losses ==
              std::vector<double>(right.losses.begin(),
                                  right.losses.begin() + static_cast<std::ptrdiff_t>(steps)));
      }
    }
    const Held held = held_in(path);
    CHECK(held.losses == right.losses);
    CHECK((held.tensors == right.tensors));
    CHECK(Folder::names_in(folder).size() == 1);
    std::remove(path.c_str());
    ++trainings;
  }
  MESSAGE(kills << " kills, " << saving << " of them in a save, in " << trainings << " trainings");
}

// A life that ends at a byte of a save, whichever, leaves the old checkpoint.
void die_at_bytes(const std::string& folder) {
  const std::string path = folder + "/train.safetensors";
  const ts::ModelConfig config = small_model();
  REQUIRE(live(with_file(steps_of(4), path, false), config, 1, Death()));
  const std::string bytes = bytes_of(path);
  ts::TrainOptions rest = with_file(steps_of(8), path, true);
  rest.checkpoint_every = 1;
  for (std::uint64_t draw = 0; draw < 200; ++draw) {
    Death death;
    death.bytes =
        draw == 0 ? 0 : static_cast<std::int64_t>(ts::random_below(22, draw, bytes.size()));
    CHECK(!live(rest, config, 2, death));
    REQUIRE((bytes_of(path) == bytes));
    CHECK(halves_in(folder) == 1);  // the one that was being written
  }
  CHECK(live(rest, config, 2, Death()));
  CHECK(Folder::names_in(folder).size() == 1);
  const Held held = held_in(path);
  std::remove(path.c_str());
  REQUIRE(live(with_file(steps_of(8), path, false), config, 1, Death()));
  const Held right = held_in(path);
  CHECK(held.losses == right.losses);
  CHECK((held.tensors == right.tensors));
}

}  // namespace

TEST_CASE("200 kills during saves lose nothing but the steps since the last one [slow]") {
  run_alone("trainings that are killed");
}
TEST_CASE("trainings that are killed" * doctest::skip()) {
  const char* const folder = std::getenv("TINYSCALE_KILLED_IN");
  if (folder != nullptr) {  // else not alone in its process
    ts::laptop();           // measured once, not in every life
    die_at_bytes(folder);
    std::remove((std::string(folder) + "/train.safetensors").c_str());
    kill_many(folder);
    write_bytes(std::string(folder) + "/done", "");
  }
}

#endif
