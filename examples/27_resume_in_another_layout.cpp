// Save a training under data 4, resume it under tensor 2 x pipeline 2. The file has the whole
// model, both moments of AdamW and the losses, not who held which part; batches, dropout and
// learning rate depend on the step alone. So every layout takes up the work of every other.
//   g++ -std=c++17 -O2 -pthread -I. examples/27_resume_in_another_layout.cpp -o resume && ./resume
#include "tinyscale.hpp"
namespace ts = tinyscale;

int main() {
  std::string fox;
  for (int i = 0; i < 100; ++i) fox += "the quick brown fox jumps over the lazy dog. ";
  const ts::Text text = ts::make_text("fox", fox);
  ts::ModelConfig config = ts::config("nano-llama");
  config.layers = 2, config.width = 32, config.heads = 4, config.kv_heads = 2;
  config.head_size = 8, config.hidden = 64, config.context = 16, config.vocabulary = 32;

  ts::TrainOptions options;
  options.batch = 8, options.warmup = 4, options.dropout = 0.1, options.out = nullptr;
  options.learning_rate = options.min_learning_rate = 3e-3;  // 10 steps are the first of any 20
  const auto train = [&](std::int64_t steps, const ts::Layout& layout, const char* file) {
    options.steps = steps, options.layout = layout;
    options.machine = ts::machine("tpu-v5e", {static_cast<int>(layout.devices())});
    options.checkpoint = file, options.resume = options.checkpoint != "";
    ts::Transformer model(config, 1);
    return ts::train(model, text, options);
  };

  ts::Layout data, mixed, one;
  data.data = 4;
  mixed.tensor = mixed.pipeline = mixed.microbatches = 2;
  const ts::TrainReport whole = train(20, data, "");  // what never stopped
  const char* const file = "resume.safetensors";
  for (ts::Layout layout : {data, mixed, one, data}) {
    static int times = 0;
    layout.zero = ++times == 4 ? ts::Zero::parameters : ts::Zero::none;
    std::remove(file);
    train(10, data, file);
    const ts::TrainReport rest = train(20, layout, file);
    double worst = 0;
    for (std::size_t i = 0; i < 20; ++i) {
      worst = std::max(worst, std::abs(rest.losses[i] / whole.losses[i] - 1));
    }
    std::cout << layout.text() << ":\n  " << rest.resumed << " steps from the file, "
              << rest.losses.size() - static_cast<std::size_t>(rest.resumed)
              << " here; the losses of one that never stopped: "
              << (times == 1 ? (worst > 0 ? "no" : "yes, to the last bit")
                             : (worst > 1e-6 ? "no" : "yes, within 1e-6"))
              << "\n";
  }
  std::cout << "load() reads the file as a model of " << ts::load(file).count() << " parameters\n";
  std::remove(file);
}
