// A mini transformer learns a real text. You see the loss fall from about ln 256 = 5.5, tokens/s
// and MFU of this laptop (measured), the peak memory beside its formula, then text that the model
// writes; it is saved and loaded again.
//   g++ -std=c++17 -O2 -pthread -I. examples/05_train.cpp -o 05_train
//   ./05_train [text file, by default input.txt] [steps]
#include <cstdlib>
#include <iostream>

#include "tinyscale.hpp"

namespace ts = tinyscale;

int main(int argc, char** argv) {
  try {
    const ts::Text text = ts::read_text(argc > 1 ? argv[1] : "input.txt");
    std::cout << text << "\n";
    ts::Transformer model(ts::config("nano"), /*seed=*/1);
    ts::TrainOptions options;
    options.steps = argc > 2 ? std::atoi(argv[2]) : 500;
    const ts::TrainReport report = ts::train(model, text, options);
    // The text's own beginning: no other words need be spelt with its characters.
    const std::string prompt =
        text.tokenizer.decode({text.tokens.begin(), text.tokens.begin() + 12});
    std::cout << report << "\n" << ts::generate(model, text, prompt, 200) << "\n";

    model.save("nano.safetensors");
    const ts::Transformer again = ts::load("nano.safetensors");
    ts::GenerateOptions greedy;
    greedy.temperature = 0;
    const bool same =
        ts::generate(again, prompt, 50, greedy) == ts::generate(model, text, prompt, 50, greedy);
    std::cout << "\nnano.safetensors: " << again.count() << " parameters, writes "
              << (same ? "the same" : "something else") << " when loaded again\n";
  } catch (const ts::Error& error) {
    std::cerr << "05_train: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
