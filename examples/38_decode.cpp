// How many tokens a second does decode give, by how many sequences share a step and by the bits of
// a weight? A step reads every weight once, so it takes the time of its bytes until it has enough
// sequences that arithmetic takes longer: lines are max(FLOPs / peak, bytes / bandwidth) of this
// laptop, points are measured here, on one thread; with weights of 8 and 4 bits activations are
// rounded to 8, and products are of integers. With a path as argument the best of 12
// steps counts, and the plot is saved there.
//   g++ -std=c++17 -O2 -pthread -I. examples/38_decode.cpp -o decode && ./decode decode.svg
#include "tinyscale.hpp"
namespace ts = tinyscale;

namespace {

// The fastest of some steps: other programs only add time.
ts::GenerationRow decode_row(const ts::Transformer& model, std::int64_t batch, const ts::Chip& here,
                             ts::DType math, int runs) {
  ts::List<std::vector<std::int32_t>> prompts;
  for (std::int64_t b = 0; b < batch; ++b) {
    prompts.push_back({static_cast<std::int32_t>(b + 1)});
  }
  ts::GenerateOptions options;
  options.temperature = 0;
  ts::GenerationRow best;
  for (int run = 0; run < runs; ++run) {
    const ts::Generation made = ts::generate_batch(model, prompts, 2, options);
    const ts::GenerationRow row = ts::generation_report(made, here, math).phases[1];
    best = run == 0 || row.measured < best.measured ? row : best;
  }
  return best;
}

}  // namespace

int main(int count, char** words) {
  const ts::ThreadScope one_thread(1);  // laptop() is then that of one thread too
  const ts::Chip here = ts::laptop();
  ts::ModelConfig c = ts::config("nano");
  c.name = "decode";
  c.layers = 6, c.width = 1024, c.heads = c.kv_heads = 16, c.head_size = 64, c.hidden = 4096;
  const ts::Transformer f32(c);

  ts::Plot plot;
  plot.title = "Decode on one thread: tokens/s by sequences in a step and bits of a weight";
  plot.x = {"sequences in a step", ts::Scale::logarithmic};
  plot.y = {"tokens/s", ts::Scale::logarithmic};
  ts::Table table;
  table.title = ts::detail::cat({"decode, ", ts::format_count(double(f32.count())), " parameters"});
  table.columns = {"weights",          "sequences",         "bytes a step", "bound",
                   "tokens/s formula", "tokens/s measured", "of roof"};
  const struct {
    const char* name;
    ts::Weights weights;
  } kinds[] = {{"f32", ts::Weights::f32},
               {"bf16", ts::Weights::bf16},
               {"int8", ts::Weights::int8},
               {"int4", ts::Weights::int4}};
  for (const auto& kind : kinds) {
    ts::LoadOptions how;
    how.weights = kind.weights;
    const bool whole = kind.weights == ts::Weights::int8 || kind.weights == ts::Weights::int4;
    how.activations = whole ? ts::Activations::int8_groups : ts::Activations::f32;
    const ts::DType math = whole ? ts::DType::int8 : ts::DType::f32;
    const ts::Transformer model =
        kind.weights == ts::Weights::f32 ? f32 : ts::with_weights(f32, how);
    ts::Series formula, measured;
    formula.name = kind.name;
    measured.name = kind.weights == ts::Weights::int4 ? "points: measured" : "";
    measured.mark = ts::Mark::points;
    formula.color = measured.color = static_cast<int>(plot.series.size() / 2);
    for (std::int64_t batch = 1; batch <= 64; batch *= 2) {
      const ts::GenerationRow row = decode_row(model, batch, here, math, count > 1 ? 12 : 2);
      formula.x.push_back(double(batch));
      formula.y.push_back(row.predicted_tokens_per_second());
      measured.x.push_back(double(batch));
      measured.y.push_back(row.tokens_per_second());
      table.add({kind.name, std::to_string(batch), ts::format_bytes(row.bytes), row.bound,
                 ts::format_fixed(row.predicted_tokens_per_second(), 1),
                 ts::format_fixed(row.tokens_per_second(), 1), ts::format_percent(row.of_roof())});
    }
    plot.series.push_back(formula);
    plot.series.push_back(measured);
  }
  ts::show(table);
  if (count > 1) {
    ts::svg(plot).save(words[1]);
  }
}
