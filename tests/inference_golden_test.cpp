// Trained models against the tokens and logits that other programs gave: llama2.c's float32 and
// int8 ones, llama.cpp, PyTorch, float64.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>

#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

using Ids = std::vector<std::int32_t>;

// The folder of models; empty, with a line, where it is absent.
std::string models() {
  const char* const set = std::getenv("TINYSCALE_SHARED");
  const std::string at = std::string(set != nullptr ? set : "../shared") + "/data/models/";
  if (std::FILE* file = std::fopen((at + "README.md").c_str(), "rb")) {
    std::fclose(file);
    return at;
  }
  std::cout << "skipped: no " << at << "\n";
  return "";
}

std::string text_of(const std::string& path) { return ts::detail::read_file(path, "test"); }

// Rows of numbers of a file, those of its first columns that are numbers; a row begins with one.
std::vector<std::vector<double>> table(const std::string& path) {
  std::vector<std::vector<double>> rows;
  const std::string text = text_of(path);
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = text.find('\n', at);
    end = end == std::string::npos ? text.size() : end;
    const char* cell = text.c_str() + at;
    char* after = nullptr;
    std::vector<double> row;
    for (double x = std::strtod(cell, &after); after != cell && after <= text.c_str() + end;
         x = std::strtod(cell, &after)) {
      row.push_back(x);
      cell = after;
    }
    if (!row.empty() && text[at] != '#') {
      rows.push_back(row);
    }
    at = end + 1;
  }
  return rows;
}

Ids column(const std::vector<std::vector<double>>& rows, std::size_t at) {
  Ids ids;
  for (const std::vector<double>& row : rows) {
    ids.push_back(static_cast<std::int32_t>(row[at]));
  }
  return ids;
}

Ids with_bos(const Ids& next) {
  Ids ids = {1};
  ids.insert(ids.end(), next.begin(), next.end());
  return ids;
}

Ids json_ids(const std::string& path) {
  Ids ids;
  for (const ts::Json& id : ts::parse_json(text_of(path)).list) {
    ids.push_back(static_cast<std::int32_t>(id.number));
  }
  return ids;
}

ts::GenerateOptions greedy() {
  ts::GenerateOptions options;
  options.temperature = 0;
  return options;
}

ts::Transformer stories(const std::string& at, const std::string& file,
                        ts::Weights weights = ts::Weights::f32) {
  ts::LoadOptions options;
  options.weights = weights;
  options.activations = ts::Activations::f32;
  if (file.find(".bin") != std::string::npos) {
    options.tokenizer = at + "tok512.bin";
  }
  if (file.find("-hf-") != std::string::npos) {
    options.config = at + "derived/stories260K-hf-config.json";
  }
  return ts::load(at + file, options);
}

// Logits after every token of `ids`, [tokens, vocabulary].
ts::Tensor all_logits(const ts::Transformer& model, const Ids& ids) {
  ts::KvPages cache(model.config);
  const int sequence = cache.add();
  return ts::decode(model, cache, {{sequence, ids, true}});
}

}  // namespace

TEST_CASE("llama2.c's program: its texts, its ids, its logits") {
  const std::string folder = models();
  if (folder.empty()) {
    return;
  }
  const std::string at = folder + "stories260K/", golden = at + "golden/";
  const ts::Transformer model = stories(at, "stories260K.bin");
  ts::Llama2cOptions options;
  options.temperature = 0;
  const ts::Llama2cText made = ts::llama2c_generate(model, "", options);
  CHECK(made.text + "\n" == text_of(golden + "runc_greedy_256.txt"));
  const auto steps = table(golden + "runc_greedy_256_steps.tsv");
  CHECK(made.ids == with_bos(column(steps, 3)));
  ts::Llama2cDecoder decoder(model);
  for (const std::vector<double>& step : steps) {
    const std::vector<float> logits = decoder.next(static_cast<std::int32_t>(step[1]));
    // nine digits are printed; the program was another compiler's
    CHECK(double{logits[static_cast<std::size_t>(step[4])]} ==
          doctest::Approx(step[5]).epsilon(2e-6));
  }
  options.steps = 128;
  const ts::Llama2cText tim =
      ts::llama2c_generate(model, "Tim and his dog went to the big red barn.", options);
  CHECK(tim.text + "\n" == text_of(golden + "runc_prompt_tim_128.txt"));
  CHECK(tim.ids == with_bos(column(table(golden + "runc_prompt_tim_128_steps.tsv"), 3)));
  options = ts::Llama2cOptions();
  options.seed = 133742;
  CHECK(ts::llama2c_generate(model, "", options).text + "\n" ==
        text_of(golden + "runc_t1.0_p0.9_seed133742_256.txt"));
}

TEST_CASE("llama2.c's int8 program: weights and activations in groups of 4") {
  const std::string folder = models();
  if (folder.empty()) {
    return;
  }
  const std::string at = folder + "stories260K/", golden = at + "golden/";
  const ts::Transformer model =
      stories(at, "derived/stories260K_v2_gs4.bin", ts::Weights::as_stored);
  ts::Llama2cOptions options;
  options.temperature = 0;
  const ts::Llama2cText made = ts::llama2c_generate(model, "", options);
  CHECK(made.text + "\n" == text_of(golden + "runqc_v2gs4_greedy_256.txt"));
  CHECK(made.ids == with_bos(column(table(golden + "runqc_v2gs4_greedy_256_steps.tsv"), 3)));
  const auto numbers = table(golden + "runqc_v2gs4_logits_pos0-3.txt");
  REQUIRE(numbers.size() == 4 * 512);
  ts::Llama2cDecoder decoder(model);
  double worst = 0;
  for (std::size_t pos = 0; pos < 4; ++pos) {
    const std::vector<float> logits = decoder.next(made.ids[pos]);
    for (std::size_t i = 0; i < 512; ++i) {
      worst = std::max(worst, std::abs(double{logits[i]} - numbers[512 * pos + i][0]));
    }
  }
  CHECK(worst < 2e-5);
}

TEST_CASE(
    "the same 256 tokens from every file, from batches, drafts, 16-bit caches, beams of one") {
  const std::string folder = models();
  if (folder.empty()) {
    return;
  }
  const std::string at = folder + "stories260K/";
  const Ids right = with_bos(column(table(at + "golden/runc_greedy_256_steps.tsv"), 3));
  const auto exact = table(at + "golden/ref64_steps.tsv");
  for (const char* file : {"stories260K.bin", "stories260K_v1.bin", "derived/stories260K-f32.gguf",
                           "derived/stories260K-hf-f32.safetensors"}) {
    for (const ts::Weights weights : {ts::Weights::f32, ts::Weights::as_stored}) {
      INFO(std::string(file));
      const ts::Transformer model = stories(at, file, weights);
      CHECK(ts::generate_tokens(model, {1}, 256, greedy()) == right);
      const ts::Tensor logits = all_logits(model, Ids(right.begin(), right.end() - 1));
      double worst = 0, worst_log = 0;
      for (std::size_t t = 0; t < exact.size() && t < 256; ++t) {
        const float* const row = logits.data() + 512 * t;
        const auto top = static_cast<std::size_t>(exact[t][2]);
        worst = std::max(worst, std::abs(double{row[top]} - exact[t][3]));
        worst_log = std::max(worst_log,
                             std::abs(ts::detail::log_probabilities(row, 512)[top] - exact[t][4]));
      }
      CHECK(worst < 2e-4);
      CHECK(worst_log < 2e-4);
    }
  }
  const ts::Transformer model = stories(at, "stories260K.bin");
  const ts::Transformer draft = stories(at, "derived/stories260K-q4_0.gguf");
  const ts::Generation guessed = ts::generate_speculative(model, draft, {1}, 256, 4, greedy());
  CHECK(guessed.sequences[0].ids == right);
  CHECK(guessed.accepted > guessed.guessed / 2);
  ts::GenerateOptions options = greedy();
  options.pages.page_tokens = 16;
  const ts::Generation batch = ts::generate_batch(
      model, {Ids(right.begin(), right.begin() + 50), {1}, {1, 403}}, 150, options);
  for (const ts::GeneratedSequence& s : batch.sequences) {
    CHECK(s.ids == Ids(right.begin(), right.begin() + static_cast<std::ptrdiff_t>(s.ids.size())));
  }
  for (const ts::DType format : {ts::DType::f16, ts::DType::bf16}) {
    options.pages.format = format;
    const Ids made = ts::generate_tokens(model, {1}, 150, options);
    CHECK(made == Ids(right.begin(), right.begin() + 151));
  }
}

TEST_CASE("GGUF: the ids of llama.cpp and of float64 on the same weights") {
  const std::string folder = models();
  if (folder.empty()) {
    return;
  }
  const std::string at = folder + "stories260K/";
  for (const std::string kind : {"f32", "f16", "bf16", "q8_0", "q4_0"}) {
    for (const ts::Weights weights : {ts::Weights::f32, ts::Weights::as_stored}) {
      INFO(kind);
      const ts::Transformer model = stories(at, "derived/stories260K-" + kind + ".gguf", weights);
      CHECK(model.tokenizer.encode("Once upon a time") == Ids{1, 403, 407, 261, 378});
      if (kind[0] != 'q') {  // those round activations to 8 bits too
        CHECK(ts::generate_tokens(model, {1}, 128, greedy()) ==
              with_bos(json_ids(at + "golden/llamacpp_" + kind + "_greedy_128_tokens.json")));
      }
      if (kind == "f32") {
        continue;
      }
      const auto steps = table(at + "golden/ref64_gguf_" + kind + "_steps.tsv");
      REQUIRE(steps.size() == 64);
      CHECK(ts::generate_tokens(model, {1}, 64, greedy()) == with_bos(column(steps, 2)));
      const ts::Tensor logits = all_logits(model, column(steps, 1));
      for (std::size_t t = 0; t < 64; ++t) {
        const float* const row = logits.data() + 512 * t;
        CHECK(std::abs(double{row[static_cast<std::size_t>(steps[t][2])]} - steps[t][3]) < 2e-4);
        CHECK(std::abs(double{row[static_cast<std::size_t>(steps[t][4])]} - steps[t][5]) < 2e-4);
      }
    }
  }
}

TEST_CASE("the loss of one text by each format of weights") {
  const std::string folder = models();
  if (folder.empty()) {
    return;
  }
  const std::string at = folder + "stories260K/";
  const Ids right = with_bos(column(table(at + "golden/runc_greedy_256_steps.tsv"), 3));
  const Ids text(right.begin(), right.begin() + 129);  // 128 targets
  const struct {
    const char* kind;
    double loss;  // of the data's own page
  } rows[] = {{"f32", 0.484566},
              {"f16", 0.484548},
              {"bf16", 0.484545},
              {"q8_0", 0.485272},
              {"q4_0", 0.566054}};
  for (const auto& row : rows) {
    INFO(std::string(row.kind));
    const std::string file = "derived/stories260K-" + std::string(row.kind) + ".gguf";
    const ts::Transformer stored = stories(at, file, ts::Weights::as_stored);
    CHECK(std::abs(ts::mean_loss(stored, text) - row.loss) < 1.5e-6);
  }
}

TEST_CASE("a GPT-2 style model sorts all 729 inputs, with PyTorch's numbers") {
  const std::string folder = models();
  if (folder.empty()) {
    return;
  }
  const std::string at = folder + "gpt-nano-sort/";
  ts::ModelConfig c;
  c.name = "gpt-nano-sort";
  c.layers = c.heads = c.kv_heads = 3;
  c.width = 48;
  c.head_size = 16;
  c.hidden = 192;
  c.vocabulary = 3;
  c.context = 11;
  c.bias = true;
  c.tied = false;
  c.activation = ts::Activation::gelu_tanh;
  const ts::Transformer model = ts::load(at + "gpt-nano-sort.safetensors", c);
  const std::string text = text_of(at + "golden/all729.tsv");
  ts::List<Ids> prompts;
  std::vector<Ids> right;
  for (std::size_t line = text.find("\nA") + 1; line + 13 < text.size();
       line = text.find('\n', line) + 1) {
    Ids in, out;
    for (std::size_t i = 0; i < 6; ++i) {
      in.push_back(text[line + i] - 'A');
      out.push_back(text[line + 7 + i] - 'A');
    }
    prompts.push_back(in);
    right.push_back(in);
    right.back().insert(right.back().end(), out.begin(), out.end());
  }
  REQUIRE(prompts.size() == 729);
  const ts::Generation made = ts::generate_batch(model, prompts, 6, greedy());
  std::size_t same = 0;
  for (std::size_t i = 0; i < 729; ++i) {
    same += made.sequences[i].ids == right[i] ? 1U : 0U;
  }
  CHECK(same == 729);
  const auto steps = table(at + "golden/greedy_steps.tsv");
  Ids ids = {2, 1, 0, 1, 0, 2};
  for (const std::vector<double>& step : steps) {
    const ts::Tensor logits = all_logits(model, ids);
    const float* const last = logits.data() + 3 * (static_cast<std::int64_t>(ids.size()) - 1);
    CHECK(double{last[static_cast<std::size_t>(step[2])]} ==
          doctest::Approx(step[3]).epsilon(2e-5));
    CHECK(double{last[static_cast<std::size_t>(step[4])]} ==
          doctest::Approx(step[5]).epsilon(2e-5));
    ids.push_back(static_cast<std::int32_t>(step[2]));
  }
  const auto prompt = table(at + "golden/logits_prompt.txt");
  const ts::Tensor logits = all_logits(model, {2, 1, 0, 1, 0, 2});
  REQUIRE(prompt.size() == static_cast<std::size_t>(logits.count()));
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    CHECK(std::abs(double{logits.data()[i]} - prompt[i][0]) < 2e-5 * 10);
  }
}

TEST_CASE("a character model: greedy steps beyond its context, logits of its prompt") {
  const std::string folder = models();
  if (folder.empty()) {
    return;
  }
  const std::string at = folder + "nanogpt-shakespeare-char/";
  ts::ModelConfig c = ts::config("nano");
  c.vocabulary = 65;
  const ts::Transformer model = ts::load(at + "nanogpt-shakespeare-char.safetensors", c);
  const auto steps = table(at + "golden/greedy_steps.tsv");
  Ids ids = {30, 27, 25, 17, 27, 10, 0, 27};
  const Ids made =
      ts::generate_tokens(model, ids, static_cast<std::int64_t>(steps.size()), greedy());
  const Ids next = column(steps, 2);
  ids.insert(ids.end(), next.begin(), next.end());
  CHECK(steps.size() > 64);
  CHECK(made == ids);
  const auto prompt = table(at + "golden/logits_prompt.txt");
  const ts::Tensor logits = all_logits(model, {30, 27, 25, 17, 27, 10, 0, 27});
  REQUIRE(prompt.size() % 65 == 0);
  REQUIRE(prompt.size() >= 4 * 65);  // of the first tokens
  double worst = 0;
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    worst = std::max(worst, std::abs(double{logits.data()[i]} - prompt[i][0]));
  }
  CHECK(worst < 2e-4);
}
