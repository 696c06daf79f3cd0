// "133 TFLOP/s a GPU", "64 % MFU": what did they count, and can it be? You see three published
// claims under every convention: a log of BLOOM, whose TFLOP/s turn out to count what is computed
// again; a log of MaxText, whose TFLOP/s do not; and a row whose two numbers cannot both be right.
//   g++ -std=c++17 -O2 -pthread -I. examples/32_mfu.cpp -o 32_mfu && ./32_mfu
#include "tinyscale.hpp"

namespace ts = tinyscale;

ts::ModelConfig shape(const char* like, const char* name, std::int64_t layers, std::int64_t width,
                      std::int64_t heads, std::int64_t head_size, std::int64_t hidden,
                      std::int64_t vocabulary) {
  ts::ModelConfig model = ts::config(like);
  model.name = name;
  model.layers = layers;
  model.width = width;
  model.heads = heads;
  model.kv_heads = heads;
  model.head_size = head_size;
  model.hidden = hidden;
  model.vocabulary = vocabulary;
  model.context = 2048;
  return model;
}

int main() {
  ts::MfuClaim bloom;
  bloom.source = "BLOOM, tuning of February 2022 (bigscience-workshop/bigscience, tr11-176B-ml)";
  bloom.model = shape("gpt3-175b", "GPT-181B", 72, 14336, 64, 224, 57344, 250880);
  bloom.chip = ts::chip("a100-80");
  bloom.chips = 384;
  bloom.format = ts::DType::f16;
  bloom.recompute = ts::Recompute::full;
  bloom.batch_tokens = 2048 * 2048;
  bloom.step_seconds = 121.48;
  bloom.tflops_per_chip = 132.71;
  const ts::MfuDecoding decoded = ts::decode_mfu(bloom);
  std::cout << decoded << "\n" << decoded.explain() << "\n";

  ts::MfuClaim ironwood;
  ironwood.source = "AI-Hypercomputer/tpu-recipes, training/ironwood: a log of MaxText, fp8";
  ironwood.model = ts::config("llama3-70b");
  ironwood.context = 8192;
  ironwood.chip = ts::chip("tpu-v7");
  ironwood.chips = 64;
  ironwood.format = ts::DType::fp8_e4m3;
  ironwood.tokens_per_second_per_chip = 4127.56;
  ironwood.batch_tokens = 256 * 8192;
  ironwood.step_seconds = 7.93;
  ironwood.tflops_per_chip = 1854.19;
  std::cout << ts::decode_mfu(ironwood) << "\n";

  ts::MfuClaim odd;
  odd.source = "google/maxtext, README.md, 1024B on v5p-2048";
  odd.model = shape("llama2-70b", "MaxText-1024B", 128, 16384, 256, 128, 114688, 32000);
  odd.chip = ts::chip("tpu-v5p");
  odd.slice = "v5p-2048";  // 1024 chips: the name counts cores
  odd.tflops_per_chip = "249";
  odd.mfu = "64.05 %";
  std::cout << ts::decode_mfu(odd);
}
