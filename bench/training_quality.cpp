// Does it learn as well as nanoGPT? Its published CPU configuration on tiny Shakespeare: 4 layers,
// 4 heads, width 128, context 64, batch 12, 2000 steps, no dropout. nanoGPT reaches 1.898 over the
// whole validation split; 1.91 or lower passes.
//   ./training_quality path/to/tinyshakespeare.txt
#include <cstdlib>
#include <iostream>
#include <string>

#include "tinyscale.hpp"

namespace ts = tinyscale;

int main(int argc, char** argv) {
  const char* shared = std::getenv("TINYSCALE_SHARED");
  const std::string fallback =
      std::string(shared != nullptr ? shared : "../shared") + "/data/text/tinyshakespeare.txt";
  const std::string path = argc > 1 ? argv[1] : fallback;
  try {
    const ts::Text text = ts::read_text(path);
    ts::ModelConfig config = ts::config("nano");
    config.vocabulary = text.tokenizer.vocabulary();  // 65 characters, as nanoGPT has it
    ts::Transformer model(config, /*seed=*/1);
    ts::TrainOptions options;
    options.steps = 2000;
    const ts::TrainReport report = ts::train(model, text, options);
    std::cout << report << "nanoGPT 1.898, here " << report.final_validation() << ", limit 1.91\n";
    return report.final_validation() <= 1.91 ? 0 : 1;
  } catch (const ts::Error& error) {
    std::cout << "training_quality: skipped: " << error.what() << "\n";
    return 0;
  }
}
