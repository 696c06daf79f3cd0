#pragma once
// What continuing a story and chatting share: the model's file, the options, text as it comes.
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "plan_options.hpp"
#include "tinyscale.hpp"

namespace story {

namespace ts = tinyscale;
using Ids = std::vector<std::int32_t>;
using Strings = std::vector<std::string>;

// The committed model, wherever in the repository this is built and runs.
inline std::string committed_model() {
  const std::string name = "data/stories260K-q8_0.gguf", source = __FILE__;
  Strings places = {source.substr(0, source.find_last_of("/\\") + 1) + name};
  std::string up;
  for (int level = 0; level < 7; ++level, up += "../") {
    places.push_back(up + "examples/" + name);
  }
  for (const std::string& path : places) {
    if (std::FILE* const file = std::fopen(path.c_str(), "rb")) {
      std::fclose(file);
      return path;
    }
  }
  ts::detail::fail({"examples/", name,
                    " is not here; the repository as working directory, or a model ",
                    "file of your own as the first word, is right"});
}

// Tells with one model, with the guesses of a draft if there is one, and adds up what it cost.
class Storyteller {
 public:
  Storyteller(const ts::Transformer& model, const ts::Transformer* draft,
              const ts::GenerateOptions& options)
      : model_(model), draft_(draft), options_(options) {
    for (const std::int64_t end : {model.tokenizer.eos(), model.tokenizer.bos()}) {
      if (end >= 0) {  // behind BOS another text begins
        stop_at(static_cast<std::int32_t>(end));
      }
    }
  }

  // Up to n tokens behind `ids`, printed as they come, to a stop text or token; the text.
  std::string tell(const Ids& ids, std::int64_t n, const Strings& stop = {}) {
    const ts::Tokenizer& tokenizer = model_.tokenizer;
    const std::function<void(const std::string&)> print = [](const std::string& piece) {
      std::cout << piece << std::flush;
    };
    ts::detail::TextStream text(stop, print);  // holds back what may be part of a stop text
    std::int32_t previous = ids.empty() ? -1 : ids.back();
    ts::GenerateOptions options = options_;
    options.seed += 1000003 * static_cast<std::uint64_t>(told_++);  // others for each turn
    options.on_token = [&](std::int64_t, std::int32_t id) {
      const bool more = text.add(tokenizer.decode_piece(previous, id));
      previous = id;
      return more;
    };
    const std::int64_t known = tokenizer.vocabulary();
    const ts::Generation made =
        draft_ != nullptr ? ts::generate_speculative(model_, *draft_, ids, n, 4, options, known)
                          : ts::generate_batch(model_, {ids}, n, options, known);
    text.finish();
    cost.prefill.add(made.prefill);
    cost.decode.add(made.decode);
    cost.draft.add(made.draft);
    cost.guessed += made.guessed;
    cost.accepted += made.accepted;
    return text.text();
  }

  void stop_at(std::int32_t id) { options_.stop_tokens.push_back(id); }

  ts::Generation cost;

 private:
  const ts::Transformer& model_;
  const ts::Transformer* draft_;
  ts::GenerateOptions options_;
  int told_ = 0;
};

using plan_program::choice_of;
using plan_program::Options;

inline ts::LoadOptions load_options(const Options& given) {
  const ts::Weights kinds[] = {ts::Weights::as_stored, ts::Weights::f32, ts::Weights::bf16,
                               ts::Weights::int8, ts::Weights::int4};
  ts::LoadOptions load;
  load.weights = kinds[choice_of("--weights", given.text("--weights", "as_stored"),
                                 {"as_stored", "f32", "bf16", "int8", "int4"})];
  load.tokenizer = given.text("--tokenizer");
  load.config = given.text("--config");
  load.context = given.whole("--context", 0);
  return load;
}

inline ts::GenerateOptions generate_options(const Options& given) {
  ts::GenerateOptions options;
  options.temperature = given.number("--temperature", 0.8, 0, 1000);
  options.top_p = given.number("--top-p", 0.9, 1e-9, 1);
  options.seed = static_cast<std::uint64_t>(given.whole("--seed", 1, 0));
  const ts::DType formats[] = {ts::DType::f32, ts::DType::bf16, ts::DType::f16, ts::DType::int8};
  options.pages.format =
      formats[choice_of("--cache", given.text("--cache", "f32"), {"f32", "bf16", "f16", "int8"})];
  return options;
}

// Whether a copy of the head in fewer bits, which takes some tokens' time to make, pays.
inline bool screens(const ts::Transformer& model, const ts::GenerateOptions& options,
                    std::int64_t tokens) {
  const ts::Parameter& head = model.head_matrix();
  const double numbers = static_cast<double>(head.shape.count());
  return options.greedy() && tokens >= 100 && head.stored && head.stored->bytes() > 0.9 * numbers &&
         numbers > 0.25 * static_cast<double>(model.count());
}

inline std::int64_t tokens_of(const plan_program::Options& given) {
  return given.whole("--tokens", 200, 1, 1e9);
}

// Without a tokenizer a model reads bytes; one with other than 256 tokens was not trained on them.
inline void check_tokenizer(const ts::Transformer& model, const std::string& path) {
  const bool bytes = model.tokenizer.kind() == ts::Tokenizer::Kind::bytes;
  if (bytes && model.config.vocabulary != 256) {
    ts::detail::fail({path, ": no tokenizer in it or beside it for its ", model.config.vocabulary,
                      " tokens; --tokenizer and its file are right"});
  }
}

inline Ids prompt_ids(const ts::Transformer& model, const std::string& prompt) {
  const Ids ids = model.tokenizer.encode(prompt);
  const auto length = static_cast<std::int64_t>(ids.size());
  if (length < 1 || length > model.config.context) {
    ts::detail::fail({"the prompt is ", length, " tokens; 1 to ", model.config.context,
                      ", the context, are right"});
  }
  return ids;
}

}  // namespace story
