// A text and a model of which a training step takes milliseconds.
#pragma once

#include <string>

#include "tinyscale.hpp"

inline tinyscale::Text small_text() {
  std::string data;
  for (int i = 0; i < 120; ++i) {
    data += "the quick brown fox jumps over the lazy dog, and the dog sleeps on. ";
  }
  return tinyscale::make_text("fox", data);
}

inline tinyscale::ModelConfig small_model(std::int64_t vocabulary = 40) {
  tinyscale::ModelConfig c = tinyscale::config("nano");
  c.layers = 2;
  c.width = 32;
  c.heads = c.kv_heads = 2;
  c.head_size = 16;
  c.hidden = 64;
  c.context = 16;
  c.vocabulary = vocabulary;
  return c;
}

// A step of a model of a few thousand weights as one graph, run once.
struct TinyStep {
  tinyscale::Transformer model;
  tinyscale::AdamW optimizer;
  tinyscale::CompiledStep step;
  TinyStep() : model(config()), optimizer(model.tensors()), step(compile_step(model, optimizer)) {
    tinyscale::Batch batch;
    batch.sequences = 1;
    batch.time = 8;
    batch.ids.assign(8, 3);
    batch.targets.assign(8, 5);
    step(batch, 0);
  }
  static tinyscale::ModelConfig config() {
    tinyscale::ModelConfig c;
    c.width = 16;
    c.heads = c.kv_heads = 2;
    c.head_size = 8;
    c.hidden = 32;
    c.vocabulary = 32;
    c.context = 8;
    return c;
  }
};
