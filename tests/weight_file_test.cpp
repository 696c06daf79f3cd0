// Checkpoints of others: every format gives the same numbers, and a file that lies is refused.
#include <doctest/doctest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "error_of.hpp"
#include "tinyscale.hpp"

#include "gguf_write.hpp"

namespace ts = tinyscale;

namespace {

std::string temporary(const std::string& name) {
  const char* folder = std::getenv("TMPDIR");
  return std::string(folder != nullptr ? folder : ".") + "/tinyscale_" + std::to_string(getpid()) +
         "_" + name;
}

void write_file(const std::string& path, const std::string& bytes) {
  const ts::detail::File file = ts::detail::open_file(path, "wb", "test");
  REQUIRE(std::fwrite(bytes.data(), 1, bytes.size(), file.get()) == bytes.size());
}

std::string bytes_of(const std::string& path) { return ts::detail::read_file(path, "test"); }

// The folder of the real checkpoints; says so when it is not there.
std::string models() {
  const char* set = std::getenv("TINYSCALE_SHARED");
  const std::string folder = std::string(set != nullptr ? set : "../shared") + "/data/models/";
  if (!ts::detail::file_there(folder + "README.md")) {
    std::cout << "skipped: no " << folder << "README.md\n";
    return "";
  }
  return folder;
}

const ts::Tensor& value_of(const ts::Transformer& model, const std::string& name) {
  for (const ts::Parameter& p : model.parameters) {
    if (p.name == name) {
      return p.value;
    }
  }
  throw ts::Error("no parameter is called " + name);
}

// The largest difference of two models' numbers, each over the largest of its tensor.
double apart(const ts::Transformer& a, const ts::Transformer& b) {
  REQUIRE(a.parameters.size() == b.parameters.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.parameters.size(); ++i) {
    REQUIRE(a.parameters[i].name == b.parameters[i].name);
    const std::vector<float> x = a.parameters[i].value.values();
    const std::vector<float> y = b.parameters[i].value.values();
    REQUIRE(x.size() == y.size());
    float largest = 0, off = 0;
    for (std::size_t j = 0; j < x.size(); ++j) {
      largest = std::max(largest, std::abs(x[j]));
      off = std::max(off, std::abs(x[j] - y[j]));
    }
    worst = std::max(worst, static_cast<double>(off) / static_cast<double>(largest));
  }
  return worst;
}

double logits_apart(const ts::Transformer& a, const ts::Transformer& b) {
  const std::vector<std::int32_t> ids = {1, 5, 9, 2, 7};
  const ts::NoGrad no_grad;
  const std::vector<float> x = a.forward(ids, 1, 5).values(), y = b.forward(ids, 1, 5).values();
  REQUIRE(x.size() == y.size());
  float off = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    off = std::max(off, std::abs(x[i] - y[i]));
  }
  return static_cast<double>(off);
}

// How far from the reference program's logits, at each position. Lines "# pos P input_token T",
// then a number each.
std::vector<double> off_by_position(const ts::Transformer& model, const std::string& path) {
  std::vector<std::int32_t> ids;
  std::vector<double> expected;
  const std::string text = bytes_of(path);
  for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    if (text[at] == '#') {
      const std::size_t token = text.find("input_token ", at) + 12;
      ids.push_back(static_cast<std::int32_t>(std::strtol(text.c_str() + token, nullptr, 10)));
    } else {
      expected.push_back(std::strtod(text.c_str() + at, nullptr));
    }
  }
  const auto time = static_cast<std::int64_t>(ids.size());
  const ts::NoGrad no_grad;
  const std::vector<float> logits = model.forward(ids, 1, time).values();
  REQUIRE(logits.size() == expected.size());
  REQUIRE(time >= 4);
  std::vector<double> off(ids.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    double& worst = off[i * ids.size() / logits.size()];
    worst = std::max(worst, std::abs(static_cast<double>(logits[i]) - expected[i]));
  }
  return off;
}

double from_reference(const ts::Transformer& model, const std::string& path) {
  double worst = 0;
  for (const double off : off_by_position(model, path)) {
    worst = std::max(worst, off);
  }
  return worst;
}

// A small Llama whose sizes suit groups of 4 and 8.
ts::ModelConfig small_config() {
  ts::ModelConfig c = ts::config("stories260K");
  c.name = "small";
  c.layers = 2;
  c.width = 16;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_size = 4;
  c.hidden = 24;
  c.vocabulary = 20;
  c.context = 12;
  return c;
}

std::string config_text(const ts::ModelConfig& c, const std::string& type) {
  return ts::detail::cat({"{\"model_type\": \"",
                          type,
                          "\", \"hidden_size\": ",
                          c.width,
                          ", \"intermediate_size\": ",
                          c.experts > 0 ? c.expert_hidden : c.hidden,
                          ", \"num_hidden_layers\": ",
                          c.layers,
                          ", \"num_attention_heads\": ",
                          c.heads,
                          ", \"num_key_value_heads\": ",
                          c.kv_heads,
                          ", \"vocab_size\": ",
                          c.vocabulary,
                          ", \"max_position_embeddings\": ",
                          c.context,
                          ", \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0",
                          ", \"head_dim\": ",
                          c.head_size,
                          ", \"num_local_experts\": ",
                          c.experts,
                          ", \"num_experts_per_tok\": ",
                          c.top_k,
                          ", \"tie_word_embeddings\": ",
                          c.tied ? "true" : "false",
                          "}"});
}

ts::Parameter named(const std::string& name, const ts::Tensor& value) {
  ts::Parameter p;
  p.name = name;
  p.value = value;
  return p;
}

struct Folder {
  std::string path;
  std::vector<std::string> files;

  explicit Folder(const std::string& name) : path(temporary(name)) {
    REQUIRE(mkdir(path.c_str(), 0700) == 0);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    for (const std::string& file : files) {
      std::remove(file.c_str());
    }
    rmdir(path.c_str());
  }
  std::string at(const std::string& name) {
    files.push_back(path + "/" + name);
    return files.back();
  }
};

// What load says of these bytes, without "load: <path>: ".
std::string refusal(const std::string& bytes) {
  const std::string path = temporary("hostile.bin");
  write_file(path, bytes);
  std::string error = error_of([&] { ts::load(path); });
  std::remove(path.c_str());
  const std::string start = "load: \"" + path + "\": ", name = ts::detail::file_stem(path);
  error = error.rfind(start, 0) == 0 ? error.substr(start.size()) : error;
  const std::size_t at = error.find(name);  // the model's, by the file's
  return at == std::string::npos ? error : error.replace(at, name.size(), "hostile");
}

// A llama2.c file of the small model, its header to be spoilt.
std::string llama2c_bytes(int version, bool tied = true) {
  ts::ModelConfig c = small_config();
  c.tied = tied;
  const std::string path = temporary("small.bin");
  ts::save_llama2c(ts::Transformer(c, 3), path, version, 4);
  const std::string bytes = bytes_of(path);
  std::remove(path.c_str());
  return bytes;
}

std::string with_number(std::string bytes, std::size_t at, std::int32_t number) {
  std::memcpy(&bytes[at], &number, 4);
  return bytes;
}

}  // namespace

TEST_CASE("the story model is the same in every file") {
  const std::string folder = models();
  if (folder.empty()) {
    return;
  }
  const std::string at = folder + "stories260K/";
  const std::string logits = at + "golden/runc_logits_pos0-7.txt";
  const ts::Transformer first = ts::load(at + "stories260K.bin");
  CHECK(first.config.name == "stories260K");
  CHECK(first.config.rope_pairs == ts::RopePairs::interleaved);
  CHECK(first.config.context == 512);
  CHECK(first.config.tied);
  CHECK(first.count() == 260032);
  CHECK(from_reference(first, logits) < 2e-4);
  const ts::Transformer one = ts::load(at + "stories260K_v1.bin");
  CHECK(apart(first, one) == 0);

  const ts::ModelConfig halves = ts::config("stories260K");
  const ts::Transformer hf = ts::load(at + "derived/stories260K-hf-f32.safetensors", halves);
  CHECK(from_reference(hf, logits) < 2e-4);
  CHECK(apart(hf, ts::load(at + "stories260K.bin", halves)) == 0);  // rows put the other way
  ts::ModelConfig neighbours = halves;
  neighbours.rope_pairs = ts::RopePairs::interleaved;
  CHECK(apart(first, ts::load(at + "stories260K.bin", neighbours)) == 0);
  ts::LoadOptions options;
  options.config = at + "derived/stories260K-hf-config.json";
  CHECK(apart(hf, ts::load(at + "derived/stories260K-hf-f32.safetensors", options)) == 0);
  CHECK(apart(first, ts::load(at + "stories260K.bin", options)) == 0);
  const ts::Transformer bf16 = ts::load(at + "derived/stories260K-hf-bf16.safetensors", options);
  CHECK(apart(hf, bf16) <= 1.0 / 256);
  CHECK(apart(hf, bf16) > 0);

  const ts::Transformer groups = ts::load(at + "derived/stories260K_v2_gs4.bin");
  CHECK(apart(first, groups) <= 1.0001 / 254);
  CHECK(apart(first, groups) > 0);
  CHECK(value_of(groups, "model.norm.weight").values() ==
        value_of(first, "model.norm.weight").values());
}

TEST_CASE("the story model in GGUF is the same up to its blocks") {
  const std::string folder = models();
  if (folder.empty()) {
    return;
  }
  const std::string at = folder + "stories260K/";
  const ts::Transformer first = ts::load(at + "stories260K.bin");
  const struct {
    const char* name;
    double bound;        // of a number, over the largest of its tensor
    const char* stored;  // of an attention matrix
  } files[] = {{"f32", 0, "f32"},
               {"f16", 1.0 / 2048, "f16"},
               {"bf16", 1.0 / 256, "bf16"},
               {"q8_0", 1.001 / 254 + 1.0 / 2048, "q8_0"},
               {"q4_0", 1.001 / 8, "q4_0"}};
  for (const auto& file : files) {
    const std::string path = at + "derived/stories260K-" + file.name + ".gguf";
    const ts::Transformer read = ts::load(path);
    INFO(path);
    CHECK(read.config.rope_pairs == ts::RopePairs::interleaved);
    CHECK(read.config.tied);
    CHECK(apart(first, read) <= file.bound);
    CHECK((apart(first, read) > 0 || file.bound == 0));
    CHECK(ts::open_weights(path).kind == "GGUF version 3");
    ts::LoadOptions options;
    options.weights = ts::Weights::as_stored;
    const ts::Transformer stored = ts::load(path, options);
    CHECK(logits_apart(read, stored) < 1e-4);
    const ts::Parameter& query = stored.parameters[2];
    CHECK(query.name == "model.layers.0.self_attn.q_proj.weight");
    CHECK(query.stored->kind() == std::string(file.stored));
    CHECK(query.stored->owner->path() == path);  // in the mapping, not copied
    CHECK(query.stored->data >= query.stored->owner->data());
  }
  const std::string q8 = at + "derived/stories260K-q8_0.gguf";
  CHECK(from_reference(ts::load(at + "derived/stories260K-f32.gguf"),
                       at + "golden/runc_logits_pos0-7.txt") < 2e-4);
  CHECK(apart(ts::load(q8, ts::config("stories260K")), ts::load(q8)) > 0.1);  // rows are elsewhere
  CHECK(logits_apart(ts::load(q8, ts::config("stories260K")), ts::load(q8)) < 1e-4);
}

TEST_CASE("int8 groups with int8 activations are the reference program's") {
  const std::string folder = models();
  if (folder.empty()) {
    return;
  }
  ts::LoadOptions options;
  options.weights = ts::Weights::as_stored;
  options.activations = ts::Activations::int8_groups;
  const std::string at = folder + "stories260K/";
  const ts::Transformer model = ts::load(at + "derived/stories260K_v2_gs4.bin", options);
  CHECK(model.is_stored());
  const std::vector<double> off =
      off_by_position(model, at + "golden/runqc_v2gs4_logits_pos0-3.txt");
  int close = 0;
  for (const double one : off) {
    close += one < 2e-4 ? 1 : 0;
    CHECK(one < 0.05);  // an activation within 1e-7 of the edge of two codes may take the other
  }
  CHECK(close >= 3);
}

TEST_CASE("llama2.c files are written as they were read") {
  const std::string folder = models();
  if (folder.empty()) {
    return;
  }
  const std::string at = folder + "stories260K/", path = temporary("again.bin");
  const ts::Transformer model = ts::load(at + "stories260K.bin");
  ts::save_llama2c(model, path);
  CHECK(bytes_of(path) == bytes_of(at + "stories260K_v1.bin"));
  ts::save_llama2c(
      ts::load(at + "derived/stories260K-hf-f32.safetensors", ts::config("stories260K")), path);
  CHECK(bytes_of(path) == bytes_of(at + "stories260K_v1.bin"));
  ts::save_llama2c(model, path, 2, 4);
  CHECK(bytes_of(path) == bytes_of(at + "derived/stories260K_v2_gs4.bin"));
  ts::save_llama2c(ts::load(path), path, 2, 4);
  CHECK(bytes_of(path) == bytes_of(at + "derived/stories260K_v2_gs4.bin"));

  // Version 0 ends with tables of cosines and sines that nobody reads: the last bit of some
  // differs.
  ts::save_llama2c(model, path, 0);
  const std::string ours = bytes_of(path), theirs = bytes_of(at + "stories260K.bin");
  const std::size_t tables = 2 * 512 * 4 * 4;
  REQUIRE(ours.size() == theirs.size());
  CHECK(ours.compare(0, ours.size() - tables, theirs, 0, theirs.size() - tables) == 0);
  float off = 0;
  for (std::size_t i = ours.size() - tables; i < ours.size(); i += 4) {
    float a = 0, b = 0;
    std::memcpy(&a, &ours[i], 4);
    std::memcpy(&b, &theirs[i], 4);
    off = std::max(off, std::abs(a - b));
  }
  CHECK(off < 1.3e-7f);
  std::remove(path.c_str());
}

TEST_CASE("a small model goes through every llama2.c version, tied or not") {
  const std::string path = temporary("round.bin"), again = temporary("again.bin");
  for (const bool tied : {true, false}) {
    for (const auto pairs : {ts::RopePairs::halves, ts::RopePairs::interleaved}) {
      ts::ModelConfig c = small_config();
      c.tied = tied;
      c.rope_pairs = pairs;
      const ts::Transformer model(c, 5);
      for (int version = 0; version < 3; ++version) {
        ts::save_llama2c(model, path, version, 4);
        const ts::Transformer read = ts::load(path);
        CHECK(read.config.tied == tied);
        CHECK(logits_apart(model, read) < (version == 2 ? 2e-2 : 1e-5));
        ts::save_llama2c(read, again, version, 4);
        CHECK(bytes_of(again) == bytes_of(path));
        CHECK(ts::open_weights(path).kind == "llama2.c version " + std::to_string(version));
        if (version < 2) {
          CHECK(apart(model, ts::load(path, c)) == 0);
        }
      }
    }
  }
  std::remove(path.c_str());
  std::remove(again.c_str());
}

TEST_CASE("what llama2.c's files cannot hold is refused") {
  const auto refuse = [](const ts::ModelConfig& c, int version = 1, std::int64_t group = 64) {
    return error_of([&] { ts::save_llama2c(ts::Transformer(c), "x.bin", version, group); });
  };
  ts::ModelConfig c = small_config();
  CHECK(refuse(c, 3) == "save_llama2c: \"x.bin\": version 3; 0, 1 or 2 is right");
  CHECK(refuse(c, 2) ==
        "save_llama2c: \"x.bin\": groups of 64 in rows of 16 and 24; a group that divides both is "
        "right");
  c.qk_norm = c.qkv_bias = true;
  c.rope_theta = 5e5;
  c.norm_epsilon = 1e-6;
  CHECK(refuse(c) ==
        "save_llama2c: \"x.bin\": small has biases, norms of queries and keys, a rope_theta other "
        "than 10000, a norm_epsilon other than 1e-05, which llama2.c's files do not hold; "
        "save(path) writes it");
  c = ts::config("nano");
  CHECK(refuse(c) ==
        "save_llama2c: \"x.bin\": nano has layer norms, learned positions, a feed-forward other "
        "than SwiGLU, which llama2.c's files do not hold; save(path) writes it");
  c = small_config();
  c.window = 3;
  c.rope_factors.assign(static_cast<std::size_t>(c.head_size / 2), 2.0f);
  CHECK(refuse(c) ==
        "save_llama2c: \"x.bin\": small has layers with a window, scaled rotary frequencies, which "
        "llama2.c's files do not hold; save(path) writes it");
  c = small_config();
  c.experts = 2;
  c.top_k = 1;
  c.expert_hidden = 8;
  c.head_size = 8;
  CHECK(refuse(c) ==
        "save_llama2c: \"x.bin\": small has experts, heads that are not the width together, which "
        "llama2.c's files do not hold; save(path) writes it");
}

TEST_CASE("a GGUF file's float32 epsilon is llama2.c's, and tiny groups keep their signs") {
  const std::string path = temporary("from_gguf.bin");
  const ts::Transformer model = ts::load("examples/data/stories260K-q8_0.gguf");
  CHECK(model.config.norm_epsilon < 1e-5);  // 9.99999975e-06
  ts::save_llama2c(model, path);
  CHECK(apart(ts::load(path), model) == 0);
  ts::LoadOptions options;  // rotary positions have no end
  options.context = 4096;
  CHECK(ts::load(path, options).config.context == 4096);
  options.context = -1;
  CHECK(error_of([&] { ts::load(path, options); }) ==
        "load: \"" + path +
            "\": a context of -1 tokens; 1 or more is right, or 0 for the file's 512");
  ts::ModelConfig c = small_config();
  c.norm_epsilon = 1.00001e-5;
  CHECK(error_of([&] {
          ts::save_llama2c(ts::Transformer(c), path);
        }).find("has a norm_epsilon other than 1e-05, which") != std::string::npos);

  ts::Transformer tiny(small_config(), 1);
  ts::Tensor up;
  for (ts::Parameter& p : tiny.parameters) {
    up = p.name == "model.layers.0.mlp.up_proj.weight" ? p.value : up;
  }
  const float least = std::numeric_limits<float>::denorm_min();
  std::fill(up.data(), up.data() + up.count(), 0.0f);
  up.data()[0] = 190 * least;  // the scale is 1 of them: a code of 190
  up.data()[1] = -190 * least;
  up.data()[2] = 95 * least;
  ts::save_llama2c(tiny, path, 2, 4);
  for (const ts::Parameter& p : ts::load(path).parameters) {
    if (p.name == "model.layers.0.mlp.up_proj.weight") {
      CHECK(p.value.data()[0] == 127 * least);
      CHECK(p.value.data()[1] == -127 * least);
      CHECK(p.value.data()[2] == 95 * least);
    }
  }
  std::remove(path.c_str());
}

TEST_CASE("llama2.c headers that lie are refused") {
  const std::string zero = llama2c_bytes(0), one = llama2c_bytes(1), two = llama2c_bytes(2);
  const std::size_t fields = 8;  // of versions 1 and 2
  CHECK(refusal(one.substr(0, 255)) == "255 bytes are no llama2.c file; its header has 256");
  CHECK(refusal(with_number(one, 4, 3)) == "llama2.c version 3; 0, 1 and 2 are known");
  CHECK(refusal(with_number(one, 4, 0)) ==
        "llama2.c version 0 after the letters 24ka; 1 or 2 is right there, a file of version 0 "
        "begins with its sizes");
  CHECK(refusal(with_number(one, 4, -1)) == "llama2.c version -1; 0, 1 and 2 are known");
  const char* names[] = {"dim",        "hidden_dim", "n_layers",   "n_heads",
                         "n_kv_heads", "vocab_size", "max_seq_len"};
  for (std::size_t i = 0; i < 7; ++i) {
    const std::string says = std::string(names[i]) + " is ";
    CHECK(refusal(with_number(one, fields + 4 * i, 0)) == says + "0; at least 1 is right");
    CHECK(refusal(with_number(two, fields + 4 * i, -7)) == says + "-7; at least 1 is right");
    // The context of versions 1 and 2 is the header's word alone.
    CHECK((refusal(with_number(one, fields + 4 * i, 2147483647)) == "no error") == (i == 6));
  }
  CHECK(refusal(with_number(one, fields, 18)) ==
        "dim 18, n_heads 4, n_kv_heads 2; each must be a multiple of the next");
  CHECK(refusal(with_number(one, fields + 16, 3)) ==
        "dim 16, n_heads 4, n_kv_heads 3; each must be a multiple of the next");
  CHECK(refusal(with_number(one, fields + 12, 16)) ==
        "ModelConfig: hostile: head_size is 1; rotary positions turn pairs, so it must be even");
  CHECK(refusal(with_number(one, fields + 8, 2000000)) ==
        "ModelConfig: hostile: layers is 2000000; at most 1000000 is right");
  const std::string large = with_number(with_number(one, fields, 1 << 30), fields + 4, 1 << 30);
  CHECK(refusal(with_number(large, fields + 8, 1000000)) ==
        "ModelConfig: hostile: its sizes make about 6.91752903e+24 parameters; at most 1e+18 can "
        "be counted");
  CHECK(refusal(with_number(one, fields + 8, 3)) ==
        ts::detail::cat({"its header describes ", one.size() + (one.size() - 256 - 4 * 336) / 2,
                         " bytes, the file has ", one.size()}));
  CHECK(refusal(one + "1234") == ts::detail::cat({"its header describes ", one.size(),
                                                  " bytes, the file has ", one.size() + 4}));
  CHECK(refusal(zero.substr(0, zero.size() - 1)) ==
        ts::detail::cat(
            {"its header describes ", zero.size(), " bytes, the file has ", zero.size() - 1}));
  std::string shared = one;
  shared[36] = 2;
  CHECK(refusal(shared) == "shared_classifier is 2; 0 or 1 is right");
  CHECK(refusal(with_number(two, 37, 0)) == "group_size is 0; at least 1 is right");
  CHECK(refusal(with_number(two, 37, -4)) == "group_size is -4; at least 1 is right");
  CHECK(refusal(with_number(two, 37, 5)) ==
        "groups of 5 in rows of 16 and 24; a group size that divides both is right");
  CHECK(refusal(with_number(two, 37, 16)) ==
        "groups of 16 in rows of 16 and 24; a group size that divides both is right");
  CHECK(refusal(with_number(zero, 20, -2147483647 - 1)) ==
        ts::detail::cat({zero.size(),
                         " bytes that begin as no known format does; safetensors (or their "
                         "index.json), GGUF, llama2.c, or a folder of safetensors is right"}));
  for (const std::string& whole : {zero, one, two}) {  // cut short anywhere
    for (std::size_t n = 0; n < whole.size(); n += whole.size() / 50) {
      CHECK(refusal(whole.substr(0, n)) != "no error");
    }
  }
}

TEST_CASE("a file is known by its bytes") {
  const auto unknown = [](std::size_t size) {
    return ts::detail::cat({size,
                            " bytes that begin as no known format does; safetensors (or their "
                            "index.json), GGUF, llama2.c, or a folder of safetensors is right"});
  };
  CHECK(refusal("") == unknown(0));
  CHECK(refusal("abc") == unknown(3));
  CHECK(refusal(std::string(100, 'x')) == unknown(100));
  CHECK(refusal("{\"a\": 1}") ==
        "no weight_map; an index has one, of tensors and their files; a config.json goes beside "
        "the weights");
  CHECK(refusal("{") == "json: the text ends early at byte 1");
  CHECK(refusal(std::string(8, '\xFF') + "{}") ==
        "a header of 18446744073709551615 bytes; at most 100000000 are right");
  // 123 layers: the byte that begins safetensors' header, and yet a llama2.c file.
  ts::ModelConfig c = small_config();
  c.layers = 123;
  const std::string path = temporary("deep.name.bin");
  ts::save_llama2c(ts::Transformer(c), path, 0);
  CHECK(ts::load(path).config.layers == 123);
  std::remove(path.c_str());
  const Folder folder("empty");
  CHECK(error_of([&] { ts::load(folder.path); }) ==
        "load: the folder \"" + folder.path +
            "\" has neither model.safetensors nor model.safetensors.index.json; a path to a file "
            "is right too");
}

TEST_CASE("shards are one model") {
  Folder folder("shards");
  ts::ModelConfig c = small_config();
  c.tied = false;
  const ts::Transformer model(c, 8);
  const std::string index = folder.at("model.safetensors.index.json");
  const std::string shards[] = {folder.at("model-1-of-2.safetensors"),
                                folder.at("model-2-of-2.safetensors")};
  const std::string config = folder.at("config.json");
  std::vector<std::string> lines;
  const auto write = [&](std::size_t first, const std::string& map) {
    ts::List<ts::Parameter> parts[2];
    for (std::size_t i = 0; i < model.parameters.size(); ++i) {
      parts[i < first ? 0 : 1].push_back(model.parameters[i]);
    }
    ts::write_safetensors(shards[0], parts[0], {});
    ts::write_safetensors(shards[1], parts[1], {});
    write_file(index, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {" + map + "}}");
  };
  std::string map;
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    map += ts::detail::cat({i > 0 ? ", " : "", "\"", model.parameters[i].name, "\": \"model-",
                            i < 5 ? 1 : 2, "-of-2.safetensors\""});
  }
  write(5, map);
  CHECK(error_of([&] { ts::load(folder.path); }) ==
        "load: \"" + folder.path +
            "\": it has the tensors of a Llama and shapes do not tell the heads; put its "
            "config.json beside it, name it in LoadOptions::config or call load(path, config)");
  CHECK(apart(ts::load(index, c), model) == 0);
  write_file(config, config_text(c, "llama"));
  const ts::Transformer read = ts::load(folder.path);
  CHECK(apart(read, model) == 0);
  CHECK(read.config.heads == 4);
  CHECK(read.config.rope_pairs == ts::RopePairs::halves);
  CHECK(apart(ts::load(index), model) == 0);
  CHECK(ts::open_weights(folder.path).files.size() == 2);

  const auto refuse = [&](std::size_t first, const std::string& text) {
    write(first, text);
    const std::string error = error_of([&] { ts::load(folder.path); });
    const std::string start = "load: \"" + index + "\": ";  // of the file that says it
    return error.rfind(start, 0) == 0 ? error.substr(start.size()) : error;
  };
  const std::string fifth = model.parameters[4].name;
  CHECK(refuse(4, map) == "the tensor \"" + fifth +
                              "\" is in \"model-2-of-2.safetensors\" and the index has it in "
                              "\"model-1-of-2.safetensors\"");
  CHECK(refuse(5, map + ", \"extra\": \"model-1-of-2.safetensors\"") ==
        "the tensor \"extra\" is not in \"model-1-of-2.safetensors\", where the index has it");
  const std::string last = model.parameters[model.parameters.size() - 1].name;
  CHECK(last == "lm_head.weight");
  CHECK(refuse(5, map.substr(0, map.rfind(','))) ==
        "the tensor \"lm_head.weight\" of \"model-2-of-2.safetensors\" is not in the index");
  for (const char* name : {"../x", "/etc/x", "a/b", "a\\\\b", "..", ".", "", "c:x", "a\\u0000b"}) {
    const std::string error = refuse(5, std::string("\"t\": \"") + name + "\"");
    const std::string end = "\"; the name of a file in the same folder is right";
    CHECK(error.rfind("the tensor \"t\" is in \"", 0) == 0);
    CHECK(error.substr(error.size() - end.size()) == end);
  }
  CHECK(refuse(5, "\"t\": 7") ==
        "the tensor \"t\" is in \"\"; the name of a file in the same folder is right");
  std::string many = "\"t\": [0";
  for (int i = 0; i < 64; ++i) {
    many += ",0";
  }
  CHECK(refuse(5, many + "]").rfind("json: more than 64 values at byte ", 0) == 0);
  CHECK(refuse(5, "") ==
        "no weight_map; an index has one, of tensors and their files; a config.json goes beside "
        "the weights");
  CHECK(refuse(5, map + ", \"extra\": \"nowhere.safetensors\"") ==
        "load: cannot open \"" + folder.path + "/nowhere.safetensors\": No such file or directory");
  write(5, map);
  const std::string whole = bytes_of(shards[1]);
  write_file(shards[1], whole.substr(0, whole.size() - 4));
  CHECK(error_of([&] {
          ts::load(folder.path);
        }).rfind("load: \"" + shards[1] + "\": the tensors end at byte ", 0) == 0);
}

TEST_CASE("a folder with one file, its config beside it") {
  Folder folder("one");
  const ts::Transformer model(small_config(), 9);
  const std::string path = folder.at("model.safetensors"), config = folder.at("config.json");
  ts::write_safetensors(path, model.parameters, {});
  write_file(config, config_text(model.config, "llama"));
  CHECK(apart(ts::load(folder.path), model) == 0);
  CHECK(apart(ts::load(path), model) == 0);
  ts::ModelConfig c = model.config;
  c.hidden = 28;
  write_file(config, config_text(c, "llama"));
  CHECK(error_of([&] { ts::load(path); }) ==
        "load: \"" + path +
            "\": the tensor for model.layers.0.mlp.gate_proj.weight is [24, 16]; the model " +
            ts::detail::config_name(config) + " has [28, 16]");
  // Tied or not where the key is left out: as the tensors are; where it is said, as it says.
  std::string text = config_text(model.config, "llama");
  const std::size_t key = text.find(", \"tie_word_embeddings\": ");
  const std::string silent = text.substr(0, key) + text.substr(text.find_first_of(",}", key + 2));
  CHECK(silent.find("tie_word") == std::string::npos);
  write_file(config, silent);
  CHECK(apart(ts::load(path), model) == 0);
  ts::LoadOptions named;
  named.config = config;
  CHECK(apart(ts::load(path, named), model) == 0);
  if (model.config.tied) {  // null is as nothing
    write_file(config, silent.substr(0, silent.size() - 1) + ", \"tie_word_embeddings\": null}");
    CHECK(apart(ts::load(path), model) == 0);
  }
  c = model.config;
  c.tied = !c.tied;
  const ts::Transformer other(c, 9);
  ts::write_safetensors(path, other.parameters, {});
  CHECK(apart(ts::load(path), other) == 0);
  const ts::Transformer& shared = c.tied ? other : model;
  ts::write_safetensors(path, shared.parameters, {});
  c.tied = false;
  write_file(config, config_text(c, "llama"));
  CHECK(error_of([&] { ts::load(path); }) ==
        "load: \"" + path + "\": no tensor for the parameter lm_head.weight");
  ts::write_safetensors(path, model.parameters, {});
  c = model.config;
  c.layers = 1;
  write_file(config, config_text(c, "llama"));
  CHECK(error_of([&] { ts::load(path); }) ==
        "load: \"" + path +
            "\": the tensor \"model.layers.1.input_layernorm.weight\" has no place in the model " +
            ts::detail::config_name(config));
  c.layers = 3;
  write_file(config, config_text(c, "llama"));
  CHECK(error_of([&] { ts::load(path); }) ==
        "load: \"" + path +
            "\": no tensor for the parameter model.layers.2.input_layernorm.weight");
  c.layers = 1000000;
  write_file(config, config_text(c, "llama"));
  CHECK(error_of([&] { ts::load(path); }) ==
        ts::detail::cat({"load: \"", path,
                         "\": its config describes at least 1.53600032e+09 parameters "
                         "in ",
                         model.count() * 4, " bytes of data"}));
}

TEST_CASE("Qwen's norms and biases turn with their rows") {
  for (const char* type : {"qwen2", "qwen3"}) {
    Folder folder("qwen");
    ts::ModelConfig c = small_config();
    c.norm_epsilon = 1e-5;
    c.qkv_bias = type[4] == '2';
    c.qk_norm = type[4] == '3';
    ts::Transformer model(c, 18);
    for (std::size_t i = 0; i < model.parameters.size(); ++i) {
      const ts::NoGrad no_grad;
      if (model.parameters[i].shape.size() == 1) {  // not zeros and ones
        ts::copy_(model.parameters[i].value, ts::randn(model.parameters[i].shape, 100 + i));
      }
    }
    const std::string path = folder.at("model.safetensors");
    ts::write_safetensors(path, model.parameters, {});
    write_file(folder.at("config.json"), config_text(c, type));
    const ts::Transformer read = ts::load(folder.path);
    CHECK(apart(read, model) == 0);
    CHECK(logits_apart(read, model) == 0);
    ts::Transformer(c).save(path);  // a file that says which pairs it has
    model.save(path);
    ts::ModelConfig neighbours = c;
    neighbours.rope_pairs = ts::RopePairs::interleaved;
    const ts::Transformer turned = ts::load(path, neighbours);
    CHECK(apart(turned, model) > 0.1);
    CHECK(logits_apart(turned, model) < 1e-5);
    turned.save(path);
    CHECK(apart(ts::load(path, c), model) == 0);
  }
}

TEST_CASE("types of numbers that nobody here has are refused where a model needs them") {
  const std::string folder = models();
  if (folder.empty()) {
    return;
  }
  std::string bytes = bytes_of(folder + "stories260K/derived/stories260K-f16.gguf");
  const std::size_t at = bytes.find("blk.0.attn_q.weight") + 19 + 4 + 16;  // name, dims
  std::uint32_t type = 0;
  std::memcpy(&type, &bytes[at], 4);
  REQUIRE(type == 1);
  bytes = with_number(bytes, at, 25);  // as many bytes
  const std::string says =
      "tensor \"blk.0.attn_q.weight\" is I16; F32, F16, BF16, F64, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, "
      "Q8_1, Q2_K to Q6_K, Q8_K, MXFP4 or NVFP4 is right";
  CHECK(refusal(bytes) == says);
  const std::string path = temporary("integers.gguf");
  write_file(path, bytes);
  ts::LoadOptions options;
  for (const ts::Weights weights : {ts::Weights::as_stored, ts::Weights::int8}) {
    options.weights = weights;
    CHECK(error_of([&] { ts::load(path, options); }) == "load: \"" + path + "\": " + says);
  }
  write_file(path, "short");
  CHECK(error_of([&] { ts::read_llama2c(path); }) ==
        "load: \"" + path + "\": 5 bytes are no llama2.c file; its header has 28");
  std::remove(path.c_str());
}

TEST_CASE("doubles in a GGUF file are read as float32") {
  const std::string folder = models();
  if (folder.empty()) {
    return;
  }
  const std::string path = temporary("doubles.gguf");
  std::string bytes = bytes_of(folder + "stories260K/derived/stories260K-f32.gguf");
  const ts::Gguf file =
      ts::parse_gguf(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size(), path);
  const std::string name = "blk.0.attn_q.weight";
  const ts::GgufTensor& tensor = *file.tensor(name);
  REQUIRE(tensor.format == ts::BlockFormat::f32);
  // The numbers once more behind the others, 8 bytes each.
  const ts::Tensor numbers = ts::read_gguf_tensor(file, tensor);
  const std::uint64_t start =
      static_cast<std::uint64_t>(tensor.data - reinterpret_cast<const std::uint8_t*>(&bytes[0])) -
      tensor.offset;
  std::string doubled = bytes;
  doubled.append((32 - (doubled.size() - start) % 32) % 32, '\0');
  const std::uint64_t offset = doubled.size() - start;
  for (std::int64_t i = 0; i < numbers.count(); ++i) {
    const double x = double{numbers.data()[i]};
    doubled.append(reinterpret_cast<const char*>(&x), 8);
  }
  const std::size_t at = doubled.find(name) + name.size() + 4 + 16;  // name, dims
  const std::uint32_t type = 28;
  std::memcpy(&doubled[at], &type, 4);
  std::memcpy(&doubled[at + 4], &offset, 8);
  write_file(path, doubled);
  const ts::Transformer model = ts::load(folder + "stories260K/derived/stories260K-f32.gguf");
  CHECK(apart(ts::load(path), model) == 0);
  ts::LoadOptions options;
  options.weights = ts::Weights::as_stored;
  CHECK(logits_apart(ts::load(path, options), model) < 1e-4);
  std::remove(path.c_str());
}

TEST_CASE("sorted names are found, and one that stands twice") {
  std::vector<std::string> names;
  for (int i = 0; i < 100; ++i) {
    names.push_back(std::to_string(i * 37 % 100));
  }
  const ts::detail::SortedNames sorted(names);
  for (std::size_t i = 0; i < names.size(); ++i) {
    CHECK(sorted.find(names[i]) == i);
  }
  CHECK(sorted.find("100") == ts::detail::SortedNames::none);
  CHECK(sorted.find("") == ts::detail::SortedNames::none);
  CHECK(sorted.twice() == ts::detail::SortedNames::none);
  names.push_back("7");
  const ts::detail::SortedNames again(names);
  CHECK(again.twice() == 100);
  CHECK(names[again.find("7")] == "7");
  CHECK(again.find("7") < 100);
  names.push_back("5");
  CHECK(ts::detail::SortedNames(names).twice() == 100);  // of several the first
  std::string json = "{\"x\": 1";
  for (int i = 0; i < 30; ++i) {
    json += ts::detail::cat({", \"", i, "\": 0"});
  }
  CHECK(ts::parse_json(json + "}").fields.size() == 31);
  CHECK(error_of([&] { ts::parse_json(json + ", \"7\": 1, \"x\": 2}"); }) ==
        ts::detail::cat({"json: the key \"7\" stands twice, before at byte ", json.size() + 17}));
  CHECK(ts::detail::SortedNames().find("a") == ts::detail::SortedNames::none);
}

TEST_CASE("names of others become ours") {
  const ts::Transformer model(small_config(), 10);
  const std::string path = temporary("names.safetensors");
  ts::List<ts::Parameter> bare;
  for (const ts::Parameter& p : model.parameters) {
    bare.push_back(named(p.name.substr(6), p.value));  // without "model."
  }
  bare.push_back(named("layers.0.self_attn.rotary_emb.inv_freq", ts::zeros({2})));
  bare.push_back(named("lm_head.weight", model.parameters[0].value));
  ts::write_safetensors(path, bare, {});
  CHECK(apart(ts::load(path, model.config), model) == 0);
  bare[bare.size() - 1].value = ts::zeros({20, 16});
  ts::write_safetensors(path, bare, {});
  CHECK(error_of([&] { ts::load(path, model.config); }) ==
        "load: \"" + path +
            "\": \"lm_head.weight\" is not the embedding once more, and the config says tied; "
            "tied false is right");
  bare[bare.size() - 1] = named("lm_head.weight", model.parameters[0].value);
  ts::write_safetensors(path, bare, {});
  std::string halves = bytes_of(path);  // the same numbers in another type
  const std::size_t type = halves.find("\"F32\"", halves.find("\"lm_head.weight\""));
  REQUIRE(type != std::string::npos);
  halves.replace(type, 5, "\"I32\"");
  write_file(path, halves);
  CHECK(error_of([&] { ts::load(path, model.config); }) ==
        "load: \"" + path +
            "\": \"lm_head.weight\" is I32, the embedding F32, and the config says tied; both of "
            "one type or tied false is right");
  bare[bare.size() - 1] = named("model.norm.weight", ts::ones({16}));
  ts::write_safetensors(path, bare, {});
  CHECK(error_of([&] { ts::load(path, model.config); }) ==
        "load: \"" + path +
            "\": two tensors are for model.norm.weight, \"norm.weight\" and "
            "\"model.norm.weight\"; one is right");
  std::remove(path.c_str());
}

// A GPT-2 with biases; whether its matrices are [in, out], and what precedes its names.
TEST_CASE("GPT-2 with biases, either way round, in f32 and f16, learning or as stored") {
  ts::ModelConfig c = ts::config("gpt2");
  c.name = "tiny";
  c.layers = 2;
  c.width = 8;
  c.heads = c.kv_heads = 2;
  c.head_size = 4;
  c.hidden = 12;
  c.vocabulary = 10;
  c.context = 6;
  ts::Transformer model(c, 11);
  for (ts::Parameter& p : model.parameters) {
    const ts::NoGrad no_grad;
    if (p.shape.size() == 1) {  // not zeros and ones
      ts::copy_(p.value,
                ts::randn(p.shape, 77 + static_cast<std::uint64_t>(&p - &model.parameters[0])));
    }
  }
  const auto file = [&](bool conv, const std::string& prefix) {
    ts::List<ts::Parameter> all;
    const auto put = [&](const std::string& theirs, const ts::Tensor& value) {
      const bool turned = conv && value.dims() == 2 && theirs.rfind("h.", 0) == 0;
      all.push_back(named(prefix + theirs, turned ? ts::transpose(value, 0, 1) : value));
    };
    put("wte.weight", value_of(model, "model.embed_tokens.weight"));
    put("wpe.weight", value_of(model, "model.embed_positions.weight"));
    put("ln_f.weight", value_of(model, "model.norm.weight"));
    put("ln_f.bias", value_of(model, "model.norm.bias"));
    for (int layer = 0; layer < 2; ++layer) {
      const std::string at = ts::detail::cat({"model.layers.", layer, "."});
      const std::string h = ts::detail::cat({"h.", layer, "."});
      for (const char* tail : {".weight", ".bias"}) {
        const auto ours = [&](const char* name) { return value_of(model, at + name + tail); };
        put(h + "ln_1" + tail, ours("input_layernorm"));
        put(h + "ln_2" + tail, ours("post_attention_layernorm"));
        put(h + "attn.c_attn" + tail,
            ts::concat(
                {ours("self_attn.q_proj"), ours("self_attn.k_proj"), ours("self_attn.v_proj")}, 0));
        put(h + "attn.c_proj" + tail, ours("self_attn.o_proj"));
        put(h + "mlp.c_fc" + tail, ours("mlp.up_proj"));
        put(h + "mlp.c_proj" + tail, ours("mlp.down_proj"));
      }
      put(h + "attn.bias", ts::ones({1, 1, 6, 6}));  // the mask
    }
    return all;
  };
  const std::string path = temporary("gpt2.safetensors");
  for (const bool conv : {false, true}) {
    for (const char* prefix : {"", "transformer.", "_orig_mod.transformer."}) {
      ts::write_safetensors(path, file(conv, prefix), {});
      CHECK(apart(ts::load(path, c), model) == 0);
    }
    ts::write_safetensors(path, file(conv, ""), {}, ts::DType::f16);
    CHECK(apart(ts::load(path, c), model) <= 1.0 / 2048);
    CHECK(error_of([&] { ts::load(path); }) ==
          "load: \"" + path +
              "\": it has the tensors of a GPT-2 and shapes do not tell the heads; put its "
              "config.json beside it, name it in LoadOptions::config or call load(path, config)");
    ts::LoadOptions options;
    options.weights = ts::Weights::as_stored;
    options.config = temporary("config.json");
    write_file(options.config,
               "{\"model_type\": \"gpt2\", \"n_embd\": 8, \"n_head\": 2, \"n_layer\": 2, "
               "\"n_inner\": 12, \"vocab_size\": 10, \"n_positions\": 6}");
    const ts::Transformer stored = ts::load(path, options);
    CHECK(stored.is_stored());
    CHECK(logits_apart(stored, ts::load(path, c)) < 1e-4);
    options.context = 5;
    const ts::Transformer shorter = ts::load(path, options);
    CHECK(shorter.config.context == 5);
    CHECK(logits_apart(shorter, stored) == 0);
    options.context = 7;
    CHECK(error_of([&] { ts::load(path, options); }) ==
          "load: \"" + path + "\": a context of 7 tokens; up to 6 is right, or 0 for all");
    std::remove(options.config.c_str());
  }
  ts::List<ts::Parameter> odd = file(false, "");
  for (ts::Parameter& p : odd) {
    if (p.name == "h.0.attn.c_attn.weight") {
      p.value = ts::zeros({20, 8});
    }
  }
  ts::write_safetensors(path, odd, {});
  CHECK(error_of([&] { ts::load(path, c); }) ==
        "load: \"" + path +
            "\": tensor \"h.0.attn.c_attn.weight\" is [20, 8]; width x 3 width, or the other way "
            "round, is right");
  odd = file(false, "");
  for (ts::Parameter& p : odd) {
    if (p.name == "h.1.attn.c_attn.bias") {
      p.value = ts::zeros({25});
    }
  }
  ts::write_safetensors(path, odd, {});
  CHECK(error_of([&] { ts::load(path, c); }) ==
        "load: \"" + path +
            "\": tensor \"h.1.attn.c_attn.bias\" is [25]; queries, keys and values, as many of "
            "each, are right");
  std::remove(path.c_str());
}

TEST_CASE("a Mixtral of equal experts is the dense model") {
  const ts::Transformer dense(small_config(), 12);
  ts::ModelConfig c = dense.config;
  c.experts = 3;
  c.top_k = 2;
  c.expert_hidden = c.hidden;
  c.hidden = 0;
  ts::List<ts::Parameter> all;
  for (const ts::Parameter& p : dense.parameters) {
    const std::size_t mlp = p.name.find(".mlp.");
    if (mlp == std::string::npos) {
      all.push_back(p);
      continue;
    }
    const char* const word = p.name.find("gate_") != std::string::npos   ? "w1"
                             : p.name.find("down_") != std::string::npos ? "w2"
                                                                         : "w3";
    for (int e = 0; e < 3; ++e) {
      all.push_back(named(ts::detail::cat({p.name.substr(0, mlp), ".block_sparse_moe.experts.", e,
                                           ".", word, ".weight"}),
                          p.value));
    }
    if (word[1] == '1') {
      all.push_back(
          named(p.name.substr(0, mlp) + ".block_sparse_moe.gate.weight", ts::randn({3, 16}, 99)));
    }
  }
  Folder folder("mixtral");
  ts::write_safetensors(folder.at("model.safetensors"), all, {});
  write_file(folder.at("config.json"), config_text(c, "mixtral"));
  const ts::Transformer mixture = ts::load(folder.path);
  CHECK(mixture.config.experts == 3);
  CHECK(logits_apart(dense, mixture) < 1e-5);
  ts::LoadOptions options;
  options.weights = ts::Weights::as_stored;
  CHECK(logits_apart(dense, ts::load(folder.path, options)) < 1e-5);
  options.weights = ts::Weights::int8;
  options.group = 8;
  CHECK(logits_apart(dense, ts::load(folder.path, options)) < 2e-2);
  c.experts = 4;
  write_file(folder.path + "/config.json", config_text(c, "mixtral"));
  CHECK(error_of([&] { ts::load(folder.path); }) ==
        "load: \"" + folder.path +
            "\": no tensor for the parameter model.layers.0.mlp.experts.3.up_proj.weight");
}

TEST_CASE("a weight that 8 bits cannot hold is told of with its file and tensor") {
  ts::Transformer model(small_config(), 13);
  for (const ts::Parameter& p : model.parameters) {
    if (p.name == "model.layers.0.self_attn.k_proj.weight") {
      p.value.detach().data()[1] = 1e6f;
    }
  }
  const std::string path = temporary("large.safetensors");
  model.save(path);
  ts::LoadOptions options;
  options.weights = ts::Weights::int8;
  CHECK(error_of([&] { ts::load(path, options); }) ==
        "load: \"" + path +
            "\": tensor \"model.layers.0.self_attn.k_proj.weight\": quantize: weight 0, 1 is "
            "1000000; weights must be within +-65504");
  std::remove(path.c_str());
}

TEST_CASE("weights as stored, in bf16, 8 and 4 bits run and do not learn") {
  ts::ModelConfig c = small_config();
  c.width = 64;
  c.head_size = 16;
  c.hidden = 96;
  const ts::Transformer model(c, 13);
  const std::string path = temporary("stored.safetensors"), bin = temporary("stored.bin");
  model.save(path);
  ts::LoadOptions options;
  const struct {
    ts::Weights weights;
    std::int64_t group;
    double bound;
    const char* kind;
  } ways[] = {{ts::Weights::as_stored, 32, 1e-5, "f32"},
              {ts::Weights::bf16, 32, 0.02, "bf16"},
              {ts::Weights::int8, 32, 0.02, "int8"},
              {ts::Weights::int8, 0, 0.02, "int8"},
              {ts::Weights::int4, 32, 0.3, "int4"}};
  for (const auto& way : ways) {
    options.weights = way.weights;
    options.group = way.group;
    const ts::Transformer stored = ts::load(path, options);
    CHECK(stored.is_stored());
    CHECK(stored.count() == model.count());
    CHECK(stored.parameters[0].stored->kind() == std::string(way.kind));
    CHECK(!stored.parameters[0].value.defined());
    CHECK(value_of(stored, "model.norm.weight").defined());
    const double off = logits_apart(model, stored);
    CHECK(off < way.bound);
    CHECK((off > 0 || way.weights == ts::Weights::as_stored));
    CHECK(error_of([&] { stored.save("never.safetensors"); }) ==
          std::string("save: model.embed_tokens.weight of small is ") + way.kind +
              " and only runs; load(path) gives weights that can be saved");
    CHECK(error_of([&] { ts::save_llama2c(stored, "never.bin"); }) ==
          std::string("save_llama2c: \"never.bin\": model.embed_tokens.weight of small is ") +
              way.kind + " and only runs; load(path) gives weights that can be saved");
  }
  options.group = -8;
  CHECK(error_of([&] { ts::load(path, options); }) ==
        "load: \"" + path + "\": groups of -8 columns; 1 or more is right, or 0 for a whole row");
  options.group = 0;
  options.weights = ts::Weights::as_stored;
  ts::save_llama2c(model, bin, 2, 8);
  const ts::Transformer eight = ts::load(bin, options);
  CHECK(eight.parameters[0].stored->kind() == std::string("int8"));
  CHECK(logits_apart(eight, ts::load(bin)) < 1e-5);
  CHECK(eight.config.rope_pairs == ts::RopePairs::interleaved);
  model.save(path, ts::DType::bf16);
  const ts::Transformer bf16 = ts::load(path, options);
  CHECK(bf16.parameters[0].stored->kind() == std::string("bf16"));
  CHECK(bf16.parameters[0].stored->data != nullptr);
  CHECK(logits_apart(bf16, ts::load(path)) < 1e-5);
  std::remove(path.c_str());
  std::remove(bin.c_str());
}

TEST_CASE("a model is saved in 16 bits too") {
  const ts::Transformer model(small_config(), 14);
  const std::string path = temporary("half.safetensors");
  model.save(path, ts::DType::f16);
  const ts::Safetensors file = ts::read_safetensors(path);
  CHECK(file.entries[0].dtype == "F16");
  CHECK(file.bytes.size() - file.data_start == static_cast<std::size_t>(2 * model.count()));
  const ts::Transformer f16 = ts::load(path);
  CHECK(apart(f16, model) <= 1.0 / 2048);
  f16.save(path, ts::DType::f16);
  CHECK(apart(f16, ts::load(path)) == 0);
  model.save(path, ts::DType::bf16);
  CHECK(apart(ts::load(path), model) <= 1.0 / 256);
  CHECK(error_of([&] { model.save(path, ts::DType::int8); }) ==
        "save: the format int8; f32, bf16 or f16 is right");
  ts::ModelConfig c = small_config();
  c.rope_pairs = ts::RopePairs::interleaved;
  ts::Transformer(c).save(path);
  CHECK(ts::load(path).config.rope_pairs == ts::RopePairs::interleaved);
  std::remove(path.c_str());
}

TEST_CASE("a tokenizer larger than the embedding is refused") {
  ts::Transformer model(small_config(), 15);
  model.tokenizer = ts::make_text("t", "abcdefghijklmnopqrstuvwxyz").tokenizer;
  const std::string path = temporary("words.safetensors");
  model.save(path);
  CHECK(error_of([&] { ts::load(path); }) ==
        "load: \"" + path +
            "\": its tokenizer has 26 tokens, its embedding 20 rows; at least as many rows are "
            "right");
  std::remove(path.c_str());
}

TEST_CASE("weights larger than memory are refused before they are read, unless they stay") {
  const ts::ModelConfig c = ts::config("llama3-8b");
  const auto refused = [&](ts::Weights weights, double memory) {
    return error_of([&] { ts::detail::check_weights_fit(c, weights, memory, "load: "); });
  };
  CHECK(refused(ts::Weights::f32, 16e9) ==
        "load: llama3-8b needs 32.1 GB for its weights in f32, this machine has 16 GB; "
        "Weights::as_stored leaves them in the file");
  CHECK(refused(ts::Weights::int8, 8e9).find(" needs 8.03 GB for its weights in int8, ") !=
        std::string::npos);
  CHECK(refused(ts::Weights::int4, 4e9).find(" needs 4.02 GB for its weights in int4, ") !=
        std::string::npos);
  CHECK(refused(ts::Weights::f32, 33e9) == "no error");
  CHECK(refused(ts::Weights::f32, 0) == "no error");  // unknown
  CHECK(refused(ts::Weights::as_stored, 1e9) == "no error");
  ts::List<ts::StoredTensor> tensors(1);
  tensors[0].shape = {1000, 1000};
  const auto in_bf16 = [&] {
    return error_of(
        [&] { ts::detail::check_weights_fit(c, ts::Weights::bf16, 1e6, "load: ", tensors); });
  };
  CHECK(in_bf16() ==
        "load: llama3-8b needs 2 MB for its weights in bf16, this machine has 1 MB; "
        "Weights::as_stored leaves them in the file");
  tensors[0].format = ts::BlockFormat::bf16;
  CHECK(in_bf16() == "no error");
}

TEST_CASE("a tokenizer of another kind beside the weights may be left out") {
  Folder folder("wordpiece");
  const ts::Transformer model(small_config(), 22);
  ts::write_safetensors(folder.at("model.safetensors"), model.parameters, {});
  write_file(folder.at("config.json"), config_text(model.config, "llama"));
  const std::string path = folder.at("tokenizer.json");
  write_file(path, "{\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"a\": 0}}}");
  CHECK(error_of([&] { ts::load(folder.path); }) ==
        "read_hugging_face_tokenizer: \"" + path +
            "\": its model is WordPiece; BPE is right; LoadOptions::tokenizer = \"none\" loads the "
            "weights alone");
  ts::LoadOptions options;
  options.tokenizer = "none";
  CHECK(apart(ts::load(folder.path, options), model) == 0);
}

TEST_CASE("tokenizers in the file, beside it, or named") {
  const std::string folder = models();
  if (folder.empty()) {
    return;
  }
  const std::string at = folder + "stories260K/", text = "Once upon a time, \xC3\xA4\n";
  const ts::Tokenizer own = ts::load(at + "stories260K.bin").tokenizer;  // beside: tok512.bin
  CHECK(own.vocabulary() == 512);
  CHECK(own.decode(own.encode(text)) == text);
  const ts::Tokenizer gguf = ts::load(at + "derived/stories260K-f32.gguf").tokenizer;
  CHECK(gguf.vocabulary() == 512);
  CHECK(gguf.encode(text) == own.encode(text));
  CHECK(gguf.decode(own.encode(text)) == text);
  ts::LoadOptions options;
  const std::string v2 = at + "derived/stories260K_v2_gs4.bin";
  CHECK(ts::load(v2).tokenizer.vocabulary() == 256);  // bytes: none is there
  options.tokenizer = at + "tok512.model";
  CHECK(ts::load(v2, options).tokenizer.encode(text) == own.encode(text));
  options.tokenizer = at + "tok512.bin";
  CHECK(ts::load(v2, options).tokenizer == own);
  options.tokenizer = at + "derived/stories260K-f16.gguf";
  CHECK(ts::load(v2, options).tokenizer == gguf);
  options.tokenizer = "none";
  CHECK(ts::load(at + "stories260K.bin", options).tokenizer == ts::Tokenizer());
  const std::string nano = folder + "nanogpt-shakespeare-char/nanogpt-shakespeare-char-vocab.json";
  options.tokenizer = nano;
  CHECK(ts::load(v2, options).tokenizer.vocabulary() == 65);
  CHECK(ts::load(v2, options).tokenizer.encode("\n z") == std::vector<std::int32_t>{0, 1, 64});
  options.tokenizer = temporary("none.gguf");
  write_gguf(options.tokenizer, {}, {});
  CHECK(error_of([&] { ts::load(v2, options); }) ==
        "load: \"" + options.tokenizer +
            "\": no tokenizer in it, or one of another kind; \"llama\" and \"gpt2\" are right");
  std::remove(options.tokenizer.c_str());
  CHECK(error_of([] { ts::load(""); }) == "load: cannot open \"\": No such file or directory");
  options.tokenizer = temporary("chars.json");
  write_file(options.tokenizer, "{\"chars\": [\"b\", \"a\"]}");
  CHECK(error_of([&] { ts::load(v2, options); }) ==
        "load: \"" + options.tokenizer +
            "\": the character 1 is \"a\"; characters in ascending order, each once, are right");
  std::remove(options.tokenizer.c_str());

  const std::string path = temporary("tok.bin");
  ts::save_llama2c_tokenizer(own, path);
  CHECK(bytes_of(path) == bytes_of(at + "tok512.bin"));
  options.tokenizer = at + "tok512.model";
  ts::save_llama2c_tokenizer(ts::load(v2, options).tokenizer, path);
  CHECK(bytes_of(path) == bytes_of(at + "tok512.bin"));
  ts::save_llama2c_tokenizer(gguf, path);
  CHECK(bytes_of(path) == bytes_of(at + "tok512.bin"));
  std::remove(path.c_str());
  CHECK(error_of([&] { ts::save_llama2c_tokenizer(ts::Tokenizer(), "x.bin"); }) ==
        "save_llama2c_tokenizer: \"x.bin\": a tokenizer of bytes (256), BOS -1, EOS -1; "
        "SentencePiece's with scores, BOS 1 and EOS 2 is right");

  // A model saved here keeps the tokenizer that it was loaded with; one beside it that is larger
  // than the embedding is refused.
  ts::Transformer model = ts::load(at + "stories260K.bin");
  const std::string kept = temporary("kept.safetensors");
  model.save(kept);
  CHECK(ts::load(kept).tokenizer == own);
  std::remove(kept.c_str());
  Folder beside("beside");
  const ts::Transformer small(small_config(), 17);
  ts::write_safetensors(beside.at("model.safetensors"), small.parameters, {});
  write_file(beside.at("config.json"), config_text(small.config, "llama"));
  write_file(beside.at("tokenizer.model"), bytes_of(at + "tok512.model"));
  CHECK(error_of([&] { ts::load(beside.path); }) ==
        "load: \"" + beside.path + "\": the tokenizer beside it, \"" + beside.path +
            "/tokenizer.model\", has 512 tokens, its embedding 20 rows; at least as many rows are "
            "right");
  options.tokenizer = "none";
  CHECK(apart(ts::load(beside.path, options), small) == 0);
}

TEST_CASE("decoders of llama2.c's programs refuse what those do otherwise") {
  const auto refuse = [](const ts::ModelConfig& c) {
    return error_of([&] { ts::Llama2cDecoder(ts::Transformer{c}); });
  };
  ts::ModelConfig c = small_config();
  c.rope_pairs = ts::RopePairs::interleaved;
  c.norm_epsilon = 1e-6;
  CHECK(refuse(c) ==
        "Llama2cDecoder: small has a norm_epsilon of 1e-06; 1e-05, llama2.c's, is right");
  c.norm_epsilon = double{1e-5f};  // as GGUF files have it
  CHECK(refuse(c) == "no error");
  c.norm_epsilon = 1e-5;
  const ts::ModelConfig right = c;
  const std::string other =
      "Llama2cDecoder: small is no model of llama2.c; RMS norms, interleaved rotary pairs at their "
      "own frequencies, SwiGLU and no biases, experts or window are right";
  CHECK(refuse(right) == "no error");
  CHECK(error_of([&] { ts::Llama2cDecoder(ts::Transformer::without_numbers(right)); }) ==
        "Llama2cDecoder: model.embed_tokens.weight of small is not there; a model with its weights "
        "is right");
  // Activations that are no numbers are none behind weights in int8, either.
  ts::LoadOptions int8;
  int8.weights = ts::Weights::int8;
  int8.group = right.width;
  ts::Transformer stored = ts::with_weights(ts::Transformer(right), int8);
  CHECK(std::isfinite(ts::Llama2cDecoder(stored).next(1)[0]));
  for (ts::Parameter& p : stored.parameters) {
    if (p.name == "model.norm.weight") {
      p.value.detach().data()[0] = NAN;
    }
  }
  CHECK(std::isnan(ts::Llama2cDecoder(stored).next(1)[0]));
  c.window = 3;
  CHECK(refuse(c) == other);
  c = right;
  c.rope_factors.assign(static_cast<std::size_t>(c.head_size / 2), 2.0f);
  CHECK(refuse(c) == other);
}

TEST_CASE("a config that a Transformer cannot run says so with the file's name") {
  Folder folder("beyond");
  const ts::Transformer model(small_config(), 16);
  ts::write_safetensors(folder.at("model.safetensors"), model.parameters, {});
  std::string text = config_text(model.config, "llama");
  text.insert(text.size() - 1, ", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4}");
  write_file(folder.at("config.json"), text);
  CHECK(error_of([&] { ts::load(folder.path); })
            .find(" has rotary positions scaled by \"yarn\" (linear and llama3 run), which a "
                  "Transformer here cannot run; read_config of its config.json gives what can be "
                  "planned") != std::string::npos);
  CHECK(error_of([&] { ts::load(folder.path); }).find("load: \"" + folder.path) == 0);
  const std::string path = folder.at("model.gguf"), a = "llama.";
  write_gguf(path,
             {gguf_text("general.architecture", "llama"), gguf_whole(a + "block_count", 1),
              gguf_whole(a + "embedding_length", 8), gguf_whole(a + "context_length", 16),
              gguf_whole(a + "attention.head_count", 2), gguf_whole(a + "feed_forward_length", 12),
              gguf_whole(a + "vocab_size", 10), gguf_text(a + "rope.scaling.type", "yarn")},
             {});
  CHECK(error_of([&] { ts::load(path); }) ==
        "load: \"" + path +
            "\": llama has rotary positions scaled by \"yarn\" (none and linear run), which a "
            "Transformer here cannot run; gguf_config of it gives what can be planned");
}

TEST_CASE("Phi-3's joined matrices are cut into ours, and quantised ones are named") {
  Folder folder("joined");
  const ts::Transformer model(small_config(), 21);
  const std::string path = folder.at("model.safetensors");
  const auto write = [&](std::int64_t lacking) {
    ts::List<ts::Parameter> parts;
    for (std::size_t i = 0; i < model.parameters.size(); ++i) {
      const auto value = [&](std::size_t at) { return model.parameters[at].value.detach(); };
      ts::Parameter p = model.parameters[i];
      const std::size_t query = p.name.find(".q_proj."), gate = p.name.find(".gate_proj.");
      if (query != std::string::npos) {
        p.name.replace(query, 8, ".qkv_proj.");
        p.value = ts::concat({value(i), value(i + 1), value(i + 2)}, 0);
        i += 2;
      } else if (gate != std::string::npos) {
        p.name.replace(gate, 11, ".gate_up_proj.");
        p.value = ts::concat({value(i), value(i + 1)}, 0);
        p.value = ts::slice(p.value, 0, lacking, p.value.dim(0));
        i += 1;
      }
      parts.push_back(p);
    }
    ts::write_safetensors(path, parts, {});
  };
  write(0);
  write_file(folder.at("config.json"), config_text(model.config, "phi3"));
  const ts::Transformer read = ts::load(folder.path);
  CHECK(apart(read, model) == 0);
  CHECK(logits_apart(read, model) == 0);
  ts::LoadOptions options;
  options.weights = ts::Weights::as_stored;
  CHECK(logits_apart(ts::load(folder.path, options), model) < 1e-5);
  write(4);
  CHECK(error_of([&] {
          ts::load(path);
        }).find("the tensor \"model.layers.0.mlp.gate_up_proj.weight\" is [44, 16]; the model ") !=
        std::string::npos);
  ts::List<ts::Parameter> quantised = model.parameters;
  quantised[2].name = "model.layers.0.self_attn.q_proj.qweight";
  ts::write_safetensors(path, quantised, {});
  CHECK(error_of([&] { ts::load(path); }) ==
        "load: \"" + path +
            "\": no tensor for the parameter model.layers.0.self_attn.q_proj.weight; the file has "
            "\"model.layers.0.self_attn.q_proj.qweight\"");
}

TEST_CASE("a window as long as the context is none") {
  Folder folder("window");
  const ts::Transformer model(small_config(), 16);
  ts::write_safetensors(folder.at("model.safetensors"), model.parameters, {});
  std::string text = config_text(model.config, "mistral");
  text.insert(text.size() - 1, ", \"sliding_window\": 8");
  write_file(folder.at("config.json"), text);
  CHECK(ts::load(folder.path).config.window == 8);
  ts::LoadOptions options;
  options.context = 8;
  const ts::Transformer shorter = ts::load(folder.path, options);
  CHECK(shorter.config.context == 8);
  CHECK(logits_apart(model, shorter) == 0);
}

TEST_CASE("a window as long as the file's context stays one in a longer context") {
  Folder folder("longer");
  ts::ModelConfig c = small_config();  // of 12 tokens
  ts::write_safetensors(folder.at("model.safetensors"), ts::Transformer(c, 16).parameters, {});
  std::string text = config_text(c, "mistral");
  text.insert(text.size() - 1, ", \"sliding_window\": 12");
  write_file(folder.at("config.json"), text);
  CHECK(ts::load(folder.path).config.window == 0);
  ts::LoadOptions options;
  options.context = 24;
  CHECK(ts::load(folder.path, options).config.window == 12);
  options.config = folder.at("config.json");
  CHECK(ts::load(folder.at("model.safetensors"), options).config.window == 12);
  const std::string path = folder.at("model.gguf");
  const std::string a = "llama.";
  ts::List<GgufSource> tensors;
  ts::ModelConfig neighbours = c;
  neighbours.rope_pairs = ts::RopePairs::interleaved;
  const char* const names[] = {"attn_norm", "attn_q",   "attn_k", "attn_v",  "attn_output",
                               "ffn_norm",  "ffn_gate", "ffn_up", "ffn_down"};
  const ts::Transformer model(neighbours, 16);
  tensors.push_back({"token_embd.weight", model.parameters[0].value});
  for (std::size_t i = 0; i < 18; ++i) {
    tensors.push_back({ts::detail::cat({"blk.", i / 9, ".", names[i % 9], ".weight"}),
                       model.parameters[1 + i].value});
  }
  tensors.push_back({"output_norm.weight", model.parameters[19].value});
  write_gguf(
      path,
      {gguf_text("general.architecture", "llama"), gguf_whole(a + "block_count", 2),
       gguf_whole(a + "embedding_length", 16), gguf_whole(a + "context_length", 12),
       gguf_whole(a + "attention.head_count", 4), gguf_whole(a + "attention.head_count_kv", 2),
       gguf_whole(a + "feed_forward_length", 24), gguf_whole(a + "vocab_size", 20),
       gguf_whole(a + "attention.sliding_window", 12)},
      tensors);
  options.config.clear();
  CHECK(ts::load(path).config.window == 0);
  CHECK(logits_apart(ts::load(path), model) < 1e-6);
  CHECK(ts::load(path, options).config.window == 12);
}
