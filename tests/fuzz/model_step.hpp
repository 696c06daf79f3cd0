// What a file that was accepted is good for: its tensors as float32, the model from the generic
// loader in several formats, and if it is tiny a step of decode.
#pragma once
#include "tokenizer_use.hpp"
#ifndef FUZZ_REPLAY
#include "tinyscale/model/load.hpp"
#endif

namespace fuzz {

inline void read_tensors(const tinyscale::WeightFile& file) {
  for (const tinyscale::StoredTensor& t : file.tensors) {
    std::vector<float> numbers(t.readable ? static_cast<std::size_t>(t.shape.count()) : 0);
    try {
      tinyscale::read_floats(t, numbers.data(), "read: ");
    } catch (const tinyscale::Error&) {  // integers, transposed blocks
    }
  }
}

// Two tokens, then one, if the model is tiny (model_step.cpp: compiled once for all targets).
void decode_step(const tinyscale::Transformer& model);

// The first byte of the file's end, and no more of it, chooses how weights are kept.
inline void load_model(tinyscale::WeightFile& file, unsigned choice) {
  if (!file.has_config) {
    return;
  }
  static const tinyscale::Weights ways[] = {tinyscale::Weights::f32, tinyscale::Weights::as_stored,
                                            tinyscale::Weights::bf16, tinyscale::Weights::int8,
                                            tinyscale::Weights::int4};
  static const tinyscale::Activations activations[] = {tinyscale::Activations::f32,
                                                       tinyscale::Activations::int8_groups,
                                                       tinyscale::Activations::int8_blocks};
  tinyscale::LoadOptions options;
  options.weights = ways[choice % 5];
  options.activations = activations[choice / 5 % 3];
  options.group = choice / 15 % 2 == 0 ? 32 : 0;
  tinyscale::ModelConfig config = file.config;
  tinyscale::Transformer model =
      tinyscale::detail::ModelLoader(file, options, "load: ").read(config);
  options.tokenizer = file.has_tokenizer ? "" : "none";
  tinyscale::detail::take_tokenizer(model, file, options, "load: ");
  decode_step(model);
}

inline void whole_file(tinyscale::WeightFile file, const std::uint8_t* data, std::size_t size) {
  read_tensors(file);
  if (file.has_tokenizer) {
    use_tokenizer(file.tokenizer);
  }
  unsigned choice = 0;  // by the content, so that the same file goes the same way
  for (std::size_t i = 0; i < size && i < 64; ++i) {
    choice = 31 * choice + data[size - 1 - i];
  }
  load_model(file, choice);
}

}  // namespace fuzz
