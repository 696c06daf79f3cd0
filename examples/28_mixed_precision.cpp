// Mixed precision: products read f32, bf16, f16 or fp8; sums, master weights and moments are f32.
// bf16 has the range of f32. f16 and fp8 have not: small gradients become 0, unless the loss, and
// so every gradient, is multiplied by a scale before the backward pass and divided after it. A loss
// scale of 2^-16 makes gradients as small as those of a step of 16 million tokens; here it has 256.
//   g++ -std=c++17 -O2 -pthread -I. examples/28_mixed_precision.cpp -o 28_mixed && ./28_mixed
#include "tinyscale.hpp"
namespace ts = tinyscale;

int main() {
  std::string fable;
  for (int i = 0; i < 120; ++i) {
    fable += "the quick brown fox jumps over the lazy dog, and the dog sleeps on. ";
  }
  const ts::Text text = ts::make_text("fox", fable);
  ts::ModelConfig c = ts::config("nano");
  c.layers = 2, c.width = 32, c.heads = c.kv_heads = 2, c.head_size = 16, c.hidden = 64;
  c.context = 16, c.vocabulary = 41;
  const double as_16m_tokens = 1.0 / 65536;

  ts::Table table;
  table.title = "30 steps on 4 devices, ZeRO-3";
  table.columns = {"products", "loss scale", "share lost", "steps skipped",
                   "loss",     "weights",    "gradients"};
  const struct {
    ts::DType format;
    double scale;  // 0: LossScaler's where the format needs it
    const char* text;
    ts::DType wire;
  } rows[] = {{ts::DType::f32, 0, "1", ts::DType::f32},
              {ts::DType::bf16, 0, "1", ts::DType::f32},
              {ts::DType::bf16, as_16m_tokens, "2^-16", ts::DType::bf16},
              {ts::DType::f16, as_16m_tokens, "2^-16", ts::DType::f32},
              {ts::DType::f16, as_16m_tokens * 65536, "2^-16 x 65536", ts::DType::f32},
              {ts::DType::fp8_e4m3, as_16m_tokens, "2^-16", ts::DType::f32},
              {ts::DType::fp8_e4m3, 0, "65536", ts::DType::f32},
              {ts::DType::f16, 0, "from 2^26", ts::DType::f32}};
  for (const auto& row : rows) {
    ts::Transformer model(c);
    ts::TrainOptions options;
    options.steps = 30, options.batch = 16, options.warmup = 5, options.learning_rate = 3e-3;
    options.out = nullptr;
    options.format = row.format;
    options.loss_scale = row.scale;
    options.loss_scaler.scale = row.text[0] == 'f' ? 67108864 : 65536;
    options.machine = ts::machine("tpu-v5e", {4});
    options.layout.data = 4, options.layout.zero = ts::Zero::parameters;
    options.layout.gradient_format = row.wire;
    const ts::TrainReport report = ts::train(model, text, options);
    double sent[2] = {0, 0};  // by a device in a step: gathered weights, scattered gradients
    for (const ts::CollectiveRow& call : report.last_step->collectives()) {
      sent[call.name == "reduce_scatter"] += call.name == "all_reduce" ? 0 : call.bytes_out;
    }
    table.add({ts::name_of(row.format), row.text, ts::format_fixed(report.rounding.lost_share(), 1),
               std::to_string(report.skipped_steps), ts::format_fixed(report.final_loss(), 1),
               ts::format_bytes(sent[0]), ts::format_bytes(sent[1])});
  }
  std::cout << table.text();
}
