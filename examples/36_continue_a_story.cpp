// A trained model from a file of llama2.c, GGUF, safetensors or a folder of them goes on with a
// story, word by word as they come, or chats. Then what it cost stands beside this laptop's own
// roofline: prefill has many tokens a step and is bound by math, decode has one and is bound by the
// memory that the weights are read from.
//   g++ -std=c++17 -O2 -pthread -I. examples/36_continue_a_story.cpp -o story && ./story
//   ./story model.gguf "The dragon" --tokens 100 --weights int8
#include <iostream>
#include <string>

#include "plan_options.hpp"
#include "story_chat.hpp"
#include "story_parts.hpp"
#include "tinyscale.hpp"
namespace ts = tinyscale;

namespace {

const char* const usage =
    "usage: 36_continue_a_story [model file or folder] [prompt] [options]\n"
    "  --tokens N        at most so many new tokens (200)\n"
    "  --temperature T   0: always the most probable (0.8)\n"
    "  --top-p P         choose among the most probable that together reach P (0.9)\n"
    "  --seed S          another story (1)\n"
    "  --weights W       as_stored, f32, bf16, int8, int4 (as_stored: mapped, not copied)\n"
    "  --cache F         keys and values in f32, bf16, f16, int8 (f32)\n"
    "  --context N       the longest sequence, tokens (the file's)\n"
    "  --tokenizer FILE  tokenizer.bin, tokenizer.json, tokenizer.model, vocab.json, ... (beside "
    "it)\n"
    "  --config FILE     a Hugging Face config.json (beside it)\n"
    "  --draft FILE      a smaller model with the same tokens guesses, the model checks\n"
    "  --chat            answers the lines of the standard input until its end\n";

void run(const plan_program::Options& given) {
  const std::string path = given.words.empty() ? story::committed_model() : given.words[0];
  const std::string prompt = given.words.size() > 1 ? given.words[1] : "Once upon a time";
  const std::int64_t tokens = story::tokens_of(given);
  ts::LoadOptions load = story::load_options(given);
  const ts::GenerateOptions options = story::generate_options(given);
  ts::Transformer model = ts::load(path, load);
  story::check_tokenizer(model, path);
  load.config.clear();
  const bool drafted = given.has("--draft");
  const ts::Transformer draft = drafted ? ts::load(given.text("--draft"), load) : model;
  if (story::screens(model, options, tokens)) {
    ts::screen_head(model);
  }
  story::Storyteller teller(model, drafted ? &draft : nullptr, options);
  std::cout << path << ": " << model.config.layers << " layers, "
            << ts::format_count(static_cast<double>(model.count())) << " parameters\n\n";
  if (given.has("--chat")) {
    story::chat(model, teller, tokens);
  } else {
    const story::Ids ids = story::prompt_ids(model, prompt);
    std::cout << prompt << std::flush;
    teller.tell(ids, tokens);
    std::cout << "\n\n";
  }
  std::cout << ts::generation_report(teller.cost, ts::laptop());
}

}  // namespace

int main(int count, char** words) {
  try {
    const plan_program::Strings args(words + 1, words + count);
    for (const std::string& word : args) {
      if (word == "--help" || word == "-h") {
        std::cout << usage;
        return 0;
      }
    }
    const plan_program::Options given(
        args,
        "--tokens --temperature --top-p --seed --weights --cache --context "
        "--tokenizer --config --draft",
        "--chat");
    if (given.words.size() > 2) {
      ts::detail::fail(
          {"\"", given.words[2], "\" is a third word; a model and a prompt are right"});
    }
    story::load_options(given);  // what is wrong with the words, before the model is read
    story::generate_options(given);
    story::tokens_of(given);
    try {
      run(given);
    } catch (const ts::Error& error) {
      std::cerr << error.what() << "\n";
      return 1;
    }
  } catch (const ts::Error& error) {
    std::cerr << error.what() << "\n" << usage;
    return 2;
  }
}
