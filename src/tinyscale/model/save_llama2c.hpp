#pragma once
// A model written as a llama2.c file, which the reference program then runs: version 0 or 1 in
// float32, 2 in int8 with a float32 scale a group, scale = max |w| / 127, code = w / scale rounded
// to nearest. Its rotary pairs are neighbours: rows of queries and keys are put so.

#include <cmath>    // cos, nearbyint, pow
#include <cstdint>  // int64_t
#include <cstring>  // memcpy
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/save_file.hpp"
#include "tinyscale/model/llama2c.hpp"
#include "tinyscale/model/load.hpp"
#include "tinyscale/model/transformer.hpp"

namespace tinyscale {
namespace detail {

// What of a model the format cannot hold; empty: nothing.
inline std::string beyond_llama2c(const ModelConfig& c) {
  std::string all;
  const auto add = [&all](bool lacks, const char* what) {
    all += lacks ? (all.empty() ? "" : ", ") + std::string(what) : "";
  };
  add(c.norm != Norm::rms, "layer norms");
  add(c.position != Position::rotary, "learned positions");
  add(c.activation != Activation::swiglu, "a feed-forward other than SwiGLU");
  add(c.bias || c.qkv_bias, "biases");
  add(c.qk_norm, "norms of queries and keys");
  add(c.experts > 0, "experts");
  add(c.query_width() != c.width, "heads that are not the width together");
  add(c.window > 0, "layers with a window");
  add(!c.rope_factors.empty(), "scaled rotary frequencies");
  const auto other = [](double value, float right) {  // as float32, which GGUF files have
    const float small = static_cast<float>(value);
    return small < right || small > right;
  };
  add(other(c.rope_theta, 10000.0f), "a rope_theta other than 10000");
  add(other(c.norm_epsilon, 1e-5f), "a norm_epsilon other than 1e-05");
  return all;
}

inline void check_llama2c_save(const Transformer& model, int version, std::int64_t group,
                               const std::string& who) {
  const ModelConfig& c = model.config;
  if (version < 0 || version > 2) {
    fail({who, "version ", version, "; 0, 1 or 2 is right"});
  }
  const std::string beyond = beyond_llama2c(c);
  if (!beyond.empty()) {
    fail({who, c.name, " has ", beyond,
          ", which llama2.c's files do not hold; save(path) writes it"});
  }
  if (version == 2 && (group < 1 || c.width % group != 0 || c.hidden % group != 0)) {
    fail({who, "groups of ", group, " in rows of ", c.width, " and ", c.hidden,
          "; a group that divides both is right"});
  }
  for (const Parameter& p : model.parameters) {
    if (!p.value.defined()) {
      fail({who, p.name, " of ", c.name, " is ", p.stored ? p.stored->kind() : "not there",
            " and only runs; load(path) gives weights that can be saved"});
    }
  }
}

inline void write_llama2c_header(SaveFile& file, const ModelConfig& c, int version,
                                 std::int64_t group) {
  const auto n = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
  const std::int32_t vocabulary = version == 0 && !c.tied ? -n(c.vocabulary) : n(c.vocabulary);
  const std::int32_t numbers[] = {n(c.layers), n(c.heads), n(c.kv_heads), vocabulary, n(c.context)};
  const std::int32_t first[] = {n(c.width), n(c.hidden)};
  std::uint8_t head[llama2c_head_bytes] = {};
  const std::size_t at = version == 0 ? 0 : 8;
  std::memcpy(head + at, first, 8);
  std::memcpy(head + at + 8, numbers, 20);
  if (version > 0) {
    std::memcpy(head, &llama2c_magic, 4);
    std::memcpy(head + 4, &version, 4);
    head[36] = c.tied ? 1 : 0;
  }
  if (version == 2) {
    const std::int32_t size = n(group);
    std::memcpy(head + 37, &size, 4);
  }
  file.write(head, version == 0 ? 28 : sizeof head);
}

// Codes of all groups, then their scales.
inline void write_llama2c_groups(SaveFile& file, std::int64_t count, const float* from,
                                 std::int64_t group) {
  std::vector<std::int8_t> codes(static_cast<std::size_t>(count));
  std::vector<float> scales;
  for (std::int64_t first = 0; first < count; first += group) {
    float most = 0.0f;
    for (std::int64_t i = first; i < first + group; ++i) {
      if (!is_finite(static_cast<double>(from[i]))) {
        fail({"save_llama2c: a weight is ", static_cast<double>(from[i]),
              ", which 8 bits cannot hold; finite weights are right"});
      }
      most = std::abs(from[i]) > most ? std::abs(from[i]) : most;
    }
    const float scale = most / 127.0f;
    for (std::int64_t i = first; i < first + group; ++i) {
      float code = scale > 0.0f ? std::nearbyint(from[i] / scale) : 0.0f;
      code = code > 127.0f ? 127.0f : code < -127.0f ? -127.0f : code;  // of a subnormal scale
      codes[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(code);
    }
    scales.push_back(scale);
  }
  file.write(codes.data(), codes.size());
  file.write(scales.data(), 4 * scales.size());
}

// cos(t theta^(-2 i / K)) of every place t and pair i, then the sines: of version 0, for readers
// that still use them.
inline void write_llama2c_tables(SaveFile& file, const ModelConfig& c) {
  const std::int64_t half = c.head_size / 2;
  std::vector<float> frequencies, row(static_cast<std::size_t>(half));
  for (std::int64_t i = 0; i < half; ++i) {
    const float power = static_cast<float>(2 * i) / static_cast<float>(c.head_size);
    frequencies.push_back(1.0f / std::pow(10000.0f, power));
  }
  for (const bool sines : {false, true}) {
    for (std::int64_t t = 0; t < c.context; ++t) {
      for (std::size_t i = 0; i < row.size(); ++i) {
        const auto angle = static_cast<double>(static_cast<float>(t) * frequencies[i]);
        row[i] = static_cast<float>(sines ? std::sin(angle) : std::cos(angle));
      }
      file.write(row.data(), 4 * row.size());
    }
  }
}

}  // namespace detail

// `group`: of version 2, numbers that share a scale.
inline void save_llama2c(const Transformer& model, const std::string& path, int version = 1,
                         std::int64_t group = 64) {
  const ModelConfig& c = model.config;
  const std::string who = detail::cat({"save_llama2c: \"", path, "\": "});
  detail::check_llama2c_save(model, version, group, who);
  std::vector<std::string> names;
  for (const Parameter& p : model.parameters) {
    names.push_back(p.name);
  }
  const detail::SortedNames places(static_cast<std::vector<std::string>&&>(names));
  detail::SaveFile file("save_llama2c", path);
  detail::write_llama2c_header(file, c, version, group);
  for (const detail::Llama2cPart& part : detail::llama2c_parts(c, version)) {
    if (part.name == nullptr) {
      detail::write_llama2c_tables(file, c);
      continue;
    }
    for (std::int64_t layer = 0; layer < (part.each_layer ? c.layers : 1); ++layer) {
      const std::string name = detail::llama2c_name(part, layer);
      Tensor value = contiguous(model.parameters[places.find(name)].value.detach());
      if (c.rope_pairs == RopePairs::halves && detail::turns(name)) {
        value = value.copied();
        detail::swap_pairs(value.data(), value.dim(0), value.dim(1), c.head_size,
                           RopePairs::interleaved);
      }
      if (version == 2 && part.rows > 0) {
        detail::write_llama2c_groups(file, value.count(), value.data(), group);
      } else {
        file.write(value.data(), 4 * static_cast<std::size_t>(value.count()));
      }
    }
  }
  file.finish();
}

}  // namespace tinyscale
