#pragma once
// Claims of number formats, B1 to B3, on a small transformer trained here and on values swept
// through a format: weights rounded after training, weights rounded in every step of it.

#include <array>    // random numbers
#include <cmath>    // fabs, fmax
#include <cstdint>  // int64_t
#include <cstdlib>  // getenv
#include <string>   // text
#include <vector>   // values

#include "report.hpp"
#include "serving.hpp"
#include "tinyscale.hpp"

namespace tinyscale {
namespace detail {

// A text and a model of which a step takes a millisecond.
inline Text claim_text() {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += "the quick brown fox jumps over the lazy dog, and the dog sleeps on. ";
  }
  return make_text("fox", text);
}

inline ModelConfig claim_model(const Text& text) {
  ModelConfig c = config("nano");
  c.name = "a layer of 32";
  c.layers = 1;
  c.width = c.hidden = 32;
  c.heads = c.kv_heads = 2;
  c.head_size = c.context = 16;
  c.vocabulary = text.tokenizer.vocabulary();
  return c;
}

// To one of the two neighbours in bf16, the nearer the likelier: right on average.
inline float stochastic_bf16(float x, float random) {
  const auto below = static_cast<std::uint32_t>(random * 65536.0F);
  return float_of((bits_of(x) + below) & 0xffff0000U);
}

enum class KeptWeights { f32, bf16, bf16_stochastic };

// Trains 200 steps with weights that are kept so between steps; moments and gradients are f32.
inline Transformer claim_training(const Text& text, KeptWeights kept) {
  const Transformer model(claim_model(text), 1337);
  AdamW optimizer(model.tensors());
  StepOptions options;
  options.steps = 200;
  options.batch = 2;
  options.warmup = 10;
  std::uint64_t draws = 0;
  std::array<float, 4> random = {};
  for (std::int64_t step = 0; step < options.steps; ++step) {
    const Batch batch =
        make_batch(text.train(), options.batch, model.config.context, options.seed, step);
    train_step(model, optimizer, batch, options, step);
    for (Tensor t : optimizer.tensors()) {
      float* const w = t.data();
      for (std::int64_t i = 0; kept != KeptWeights::f32 && i < t.count(); ++i) {
        if (kept == KeptWeights::bf16) {
          w[i] = round_to(w[i], DType::bf16);
        } else {
          random = i % 4 == 0 ? uniform_block(options.seed, draws++) : random;
          w[i] = stochastic_bf16(w[i], random[static_cast<std::size_t>(i % 4)]);
        }
      }
    }
  }
  return model;
}

// The validation loss with every matrix stored in a format; int8 and int4 with a scale for a row.
inline double stored_loss(const Transformer& trained, const Text& text, DType format) {
  Transformer model = trained;
  for (Parameter& p : model.parameters) {
    p.value = parameter(p.value.detach().clone());
    const std::int64_t width = p.value.dims() == 2 ? p.value.dim(1) : p.value.count();
    for (std::int64_t row = 0; p.value.dims() == 2 && row < p.value.dim(0); ++row) {
      float* const w = p.value.data() + row * width;
      float most = 0;
      for (std::int64_t i = 0; i < width; ++i) {
        most = std::fmax(most, std::fabs(w[i]));
      }
      const float scale = format == DType::int8 ? most / 127 : format == DType::int4 ? most / 7 : 1;
      for (std::int64_t i = 0; i < width && scale > 0; ++i) {
        w[i] = round_to(w[i] / scale, format) * scale;
      }
    }
  }
  return evaluate(model, text.validation());
}

// The largest |rounded - x| / |x| over 4096 values of every power of two of a format's normals.
inline double worst_rounding(DType format, int lowest, float largest) {
  double worst = 0;
  for (float octave = std::ldexp(1.0F, lowest); octave <= largest; octave *= 2) {
    for (int i = 0; i < 4096; ++i) {
      const float x = octave * (1 + static_cast<float>(i) / 4096);
      if (x <= largest) {
        worst = std::fmax(worst, std::fabs(double(round_to(x, format)) - double(x)) / double(x));
      }
    }
  }
  return worst;
}

// Of 1024 gradients of deviation 1e-4, the share that becomes 0.
inline double share_lost(DType format, bool scaled, float largest) {
  const std::vector<float> x = randn({1024}, 1, 1e-4F).values();
  float most = 0;
  int lost = 0;
  for (const float value : x) {
    most = std::fmax(most, std::fabs(value));
  }
  for (const float value : x) {
    lost += std::fabs(round_to(scaled ? value * (largest / most) : value, format)) > 0 ? 0 : 1;
  }
  return lost / 1024.0;
}

// A file of the checkpoint stories260K: beside the examples, or in the folder of real checkpoints.
inline std::string stories_file(const std::string& format) {
  const std::string name = cat({"stories260K-", format, ".gguf"}), source = __FILE__;
  const char* const root = std::getenv("TINYSCALE_SHARED");
  const std::string here = source.substr(0, source.find_last_of("/\\") + 1);
  const std::string folders[] = {
      here + "../data/", "examples/data/", "../../../examples/data/",
      std::string(root != nullptr ? root : "../shared") + "/data/models/stories260K/derived/"};
  for (const std::string& folder : folders) {
    if (file_there(folder + name)) {
      return folder + name;
    }
  }
  return "";
}

// Mean loss on the story that the f32 weights tell at temperature 0: 128 tokens after BOS.
inline void add_stories(ClaimReport& r) {
  const char* const story =
      "Once upon a time, there was a little girl named Lily. She loved to play outside in the "
      "park. One day, she saw a big, red ball. She wanted to play with it, but it was too high.\n"
      "Lily's mom said, \"Lily, let's go to the park.\" Lily was sad and didn't know what to do. "
      "She said, \"I want to play with your ball, but I can't find";
  const struct {
    const char *name, *file;
    double claimed;
  } stories[] = {{"float32", "f32", 0.48457},
                 {"f16", "f16", 0.48455},
                 {"bf16", "bf16", 0.48455},
                 {"Q8_0", "q8_0", 0.48527},
                 {"Q4_0", "q4_0", 0.56605}};
  for (const auto& s : stories) {
    const std::string name = cat({"stories260K, ", s.name}), path = stories_file(s.file);
    if (path.empty()) {
      r.counted(name, "its file is not here", no_figure, "nats", s.claimed);
      continue;
    }
    const Transformer model = tinyscale::load(path);
    r.counted(name, "trained weights, 128 tokens of a story",
              mean_loss(model, model.tokenizer.encode(story)), "nats", s.claimed);
  }
}

inline ClaimReport claim_int8() {
  ClaimReport r =
      claim_of("int8 doubles the rate of bf16 and halves its bytes at a small loss of quality.",
               Verdict::holds_when, "each row of weights has its scale; four bits lose more");
  const Chip e = chip("tpu-v5e");
  r.add("rate", peak_of(e, DType::int8) / peak_of(e, DType::bf16), 2);
  r.add("bytes",
        Quantity(bytes_of(DType::int8), "B", "b int8") /
            Quantity(bytes_of(DType::bf16), "B", "b bf16"),
        0.5);
  const Text text = claim_text();
  const Transformer trained = claim_training(text, KeptWeights::f32);
  for (const DType f : {DType::f32, DType::f16, DType::bf16, DType::int8, DType::int4}) {
    r.counted(cat({"loss, ", name_of(f)}), "200 steps here, then weights rounded",
              stored_loss(trained, text, f), "nats");
  }
  r.needs(r.row("loss, int8").ours < 1.01 * r.row("loss, f32").ours, "int8 lost more than 1 %");
  add_stories(r);
  r.assumptions = {"v5e; a transformer of one layer trained here, validation loss"};
  r.caveats = {
      "stories260K: only its Q8_0 file comes with this library; the others are made of its f32"};
  return r;
}

inline ClaimReport claim_fp8() {
  ClaimReport r = claim_of(
      "fp8 has two kinds: e4m3 up to 448 for weights and activations, e5m2 up to 57344 for "
      "gradients; rounding errs by 2^-4 and 2^-3 at most.",
      Verdict::holds, "of normal values; small gradients vanish without a scale for the tensor");
  const float most4 = from_fp8_e4m3(to_fp8_e4m3_saturated(1e9F));
  const float most5 = from_fp8_e5m2(to_fp8_e5m2_saturated(1e9F));
  const DType e4m3 = DType::fp8_e4m3, e5m2 = DType::fp8_e5m2;
  r.counted("largest e4m3", "1e9 saturated", double(most4), "", 448);
  r.counted("largest e5m2", "1e9 saturated", double(most5), "", 57344);
  r.counted("worst error e4m3", "sweep, below 2^-4", worst_rounding(e4m3, -6, most4), "", 0.0625);
  r.counted("worst error e5m2", "sweep, below 2^-3", worst_rounding(e5m2, -14, most5), "", 0.125);
  r.counted("gradients lost, e4m3", "of deviation 1e-4", share_lost(e4m3, false, 1));
  r.counted("and with a scale, e4m3", "448 / max|x|", share_lost(e4m3, true, most4));
  r.counted("gradients lost, e5m2", "of deviation 1e-4", share_lost(e5m2, false, 1));
  r.counted("and with a scale, e5m2", "57344 / max|x|", share_lost(e5m2, true, most5));
  r.caveats = {"to nearest, ties to even: the worst is u / (1 + u), just below the bound"};
  return r;
}

inline ClaimReport claim_master_weights() {
  ClaimReport r = claim_of(
      "Training in bf16 needs a master copy of the weights in f32: small updates are lost.",
      Verdict::holds_when, "weights are rounded to nearest; stochastic rounding does without");
  const float step = 1.0F / 512;
  r.counted("1 + 2^-9 in bf16", "round_to", double(round_to(1 + step, DType::bf16)), "", 1);
  double sum = 0;
  for (std::uint64_t i = 0; i < 65536; ++i) {
    sum += double(stochastic_bf16(1 + step, static_cast<float>(i) / 65536));
  }
  r.counted("1 + 2^-9, stochastic, mean", "over all draws", sum / 65536, "", 1 + 1.0 / 512);
  const Text text = claim_text();
  const struct {
    const char* name;
    KeptWeights kept;
  } runs[] = {{"loss, f32 master weights", KeptWeights::f32},
              {"loss, bf16 weights", KeptWeights::bf16},
              {"loss, bf16 weights, stochastic", KeptWeights::bf16_stochastic}};
  for (const auto& run : runs) {
    r.counted(run.name, "validation after 200 steps",
              evaluate(claim_training(text, run.kept), text.validation()), "nats");
  }
  r.needs(r.row(runs[1].name).ours > r.row(runs[0].name).ours, "bf16 weights did as well");
  r.assumptions = {"a transformer of one layer, AdamW with f32 moments; only the weights differ"};
  return r;
}

}  // namespace detail
}  // namespace tinyscale
