#pragma once
// The files of llama2.c: a header of whole numbers, then the weights in a fixed order. Version 0
// has 28 bytes of header and float32; 1 begins with "24ka", has 256 and float32; 2 has int8 in
// groups that share a float32 scale, norms apart. Sizes follow from the header, so the file's must
// be the one it says. Source: the reference program's reader, and files that it runs.

#include <cstdint>  // int32_t
#include <cstring>  // memcpy
#include <string>   // string

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/mapped_file.hpp"
#include "tinyscale/model/model_config.hpp"
#include "tinyscale/model/weight_file.hpp"

namespace tinyscale {

struct Llama2cHeader {
  int version = 0;
  std::int32_t dim = 0, hidden_dim = 0, n_layers = 0, n_heads = 0, n_kv_heads = 0;
  std::int32_t vocab_size = 0, max_seq_len = 0;  // version 0: vocab_size below 0 when not shared
  bool shared = true;                            // the output matrix is the embedding
  std::int32_t group_size = 0;                   // of version 2
};

namespace detail {

constexpr std::uint32_t llama2c_magic = 0x616b3432;
constexpr std::int64_t llama2c_head_bytes = 256;  // of versions 1 and 2

// Tensors of one kind, one or one a layer. No name: the tables of version 0, which nobody reads.
struct Llama2cPart {
  const char* name = nullptr;
  bool each_layer = false;
  std::int64_t rows = 0, cols = 0;  // no rows: a vector

  Shape shape() const { return rows > 0 ? Shape{rows, cols} : Shape{cols}; }
  std::int64_t count(std::int64_t layers) const {
    return (each_layer ? layers : 1) * (rows > 0 ? rows : 1) * cols;
  }
};

// What the file has after its header, in order.
inline List<Llama2cPart> llama2c_parts(const ModelConfig& c, int version) {
  const std::int64_t d = c.width, kv = c.key_width(), f = c.hidden;
  const Llama2cPart table = {"model.embed_tokens", false, c.vocabulary, d};
  const Llama2cPart norm1 = {"input_layernorm", true, 0, d};
  const Llama2cPart norm2 = {"post_attention_layernorm", true, 0, d};
  const Llama2cPart last = {"model.norm", false, 0, d};
  const Llama2cPart attention[] = {{"self_attn.q_proj", true, d, d},
                                   {"self_attn.k_proj", true, kv, d},
                                   {"self_attn.v_proj", true, kv, d},
                                   {"self_attn.o_proj", true, d, d}};
  const Llama2cPart feed_forward[] = {
      {"mlp.gate_proj", true, f, d}, {"mlp.down_proj", true, d, f}, {"mlp.up_proj", true, f, d}};
  List<Llama2cPart> parts;
  if (version == 0) {
    parts = {table, norm1};
  } else {
    parts = {norm1, norm2, last, table};
  }
  for (const Llama2cPart& part : attention) {
    parts.push_back(part);
  }
  if (version == 0) {
    parts.push_back(norm2);
  }
  for (const Llama2cPart& part : feed_forward) {
    parts.push_back(part);
  }
  if (version == 0) {
    parts.push_back(last);
    parts.push_back({nullptr, false, c.context, c.head_size});  // cosines, then sines
  }
  if (!c.tied) {
    parts.push_back({"lm_head", false, c.vocabulary, d});
  }
  return parts;
}

inline std::string llama2c_name(const Llama2cPart& part, std::int64_t layer) {
  return part.each_layer ? cat({"model.layers.", layer, ".", part.name, ".weight"})
                         : cat({part.name, ".weight"});
}

// Of one tensor. Version 2: a byte each and four for each group, norms four each.
inline std::int64_t llama2c_bytes(const Llama2cPart& part, int version, std::int64_t group) {
  const std::int64_t n = part.count(1);
  return version == 2 && part.rows > 0 ? n + n / group * 4 : 4 * n;
}

// Of the whole file. The config is valid: no product runs over.
inline std::int64_t llama2c_bytes(const ModelConfig& c, int version, std::int64_t group) {
  std::int64_t bytes = version == 0 ? 28 : llama2c_head_bytes;
  for (const Llama2cPart& part : llama2c_parts(c, version)) {
    bytes += (part.each_layer ? c.layers : 1) * llama2c_bytes(part, version, group);
  }
  return bytes;
}

inline bool has_llama2c_magic(const std::uint8_t* data, std::size_t size) {
  std::uint32_t first = 0;
  if (size >= 4) {  // an empty file has no data
    std::memcpy(&first, data, 4);
  }
  return first == llama2c_magic;
}

// The numbers of the header, none of them checked but the version.
inline Llama2cHeader llama2c_header(const std::uint8_t* data, std::size_t size,
                                    const std::string& who) {
  Llama2cHeader h;
  const bool magic = has_llama2c_magic(data, size);
  const std::size_t least = magic ? static_cast<std::size_t>(llama2c_head_bytes) : 28;
  if (size < least) {
    fail({who, size, " bytes are no llama2.c file; its header has ", least});
  }
  std::int32_t numbers[9] = {};
  std::memcpy(numbers, data, magic ? sizeof numbers : 28);
  if (magic) {
    h.version = numbers[1];
    if (h.version == 0) {
      fail({who,
            "llama2.c version 0 after the letters 24ka; 1 or 2 is right there, a file of "
            "version 0 begins with its sizes"});
    }
    if (h.version != 1 && h.version != 2) {
      fail({who, "llama2.c version ", h.version, "; 0, 1 and 2 are known"});
    }
  }
  const std::int32_t* const n = numbers + (magic ? 2 : 0);
  h.dim = n[0], h.hidden_dim = n[1], h.n_layers = n[2], h.n_heads = n[3], h.n_kv_heads = n[4];
  h.vocab_size = n[5], h.max_seq_len = n[6];
  h.shared = magic ? data[36] == 1 : h.vocab_size > 0;
  if (magic && data[36] > 1) {
    fail({who, "shared_classifier is ", static_cast<int>(data[36]), "; 0 or 1 is right"});
  }
  if (h.version == 2) {
    std::memcpy(&h.group_size, data + 37, 4);
  }
  return h;
}

inline void check_llama2c(const Llama2cHeader& h, const std::string& who) {
  const bool untied = h.version == 0 && h.vocab_size < 0 && h.vocab_size > INT32_MIN;
  const struct {
    const char* name;
    std::int64_t value;
  } fields[] = {{"dim", h.dim},
                {"hidden_dim", h.hidden_dim},
                {"n_layers", h.n_layers},
                {"n_heads", h.n_heads},
                {"n_kv_heads", h.n_kv_heads},
                {"vocab_size", untied ? 1 : h.vocab_size},
                {"max_seq_len", h.max_seq_len},
                {"group_size", h.version == 2 ? h.group_size : 1}};
  for (const auto& field : fields) {
    if (field.value < 1) {
      fail({who, field.name, " is ", field.value, "; at least 1 is right"});
    }
  }
  if (h.dim % h.n_heads != 0 || h.n_heads % h.n_kv_heads != 0) {
    fail({who, "dim ", h.dim, ", n_heads ", h.n_heads, ", n_kv_heads ", h.n_kv_heads,
          "; each must be a multiple of the next"});
  }
  if (h.version == 2 && (h.dim % h.group_size != 0 || h.hidden_dim % h.group_size != 0)) {
    fail({who, "groups of ", h.group_size, " in rows of ", h.dim, " and ", h.hidden_dim,
          "; a group size that divides both is right"});
  }
}

// "models/stories260K.bin" is stories260K.
inline std::string file_stem(const std::string& path) {
  std::string name = path.substr(path.find_last_of("/\\") + 1);
  const std::size_t point = name.rfind('.');
  return point == std::string::npos || point == 0 ? name : name.substr(0, point);
}

inline ModelConfig llama2c_config(const Llama2cHeader& h, const std::string& path,
                                  const std::string& who) {
  ModelConfig c;
  c.name = file_stem(path);
  c.layers = h.n_layers;
  c.width = h.dim;
  c.heads = h.n_heads;
  c.kv_heads = h.n_kv_heads;
  c.head_size = h.dim / h.n_heads;
  c.hidden = h.hidden_dim;
  c.vocabulary = h.vocab_size < 0 ? -std::int64_t{h.vocab_size} : h.vocab_size;
  c.context = h.max_seq_len;
  c.norm = Norm::rms;
  c.position = Position::rotary;
  c.activation = Activation::swiglu;
  c.tied = h.shared;
  c.rope_pairs = RopePairs::interleaved;
  try {
    c.validate();
  } catch (const Error& error) {
    fail({who, error.what()});
  }
  return c;
}

// The tensors of one part, from byte `at` on, which moves behind them.
inline void add_llama2c_part(WeightFile& file, const Llama2cPart& part, const Llama2cHeader& h,
                             std::int64_t& at) {
  const std::uint8_t* const data = file.files[0]->data();
  for (std::int64_t layer = 0; layer < (part.each_layer ? h.n_layers : 1); ++layer) {
    StoredTensor t;
    t.data = data + at;
    t.type = "F32";
    t.shape = part.shape();
    if (h.version == 2 && part.rows > 0) {
      t.group = h.group_size;
      t.scales = t.data + part.count(1);
      t.type = cat({"int8 in groups of ", t.group});
    }
    at += llama2c_bytes(part, h.version, h.group_size);
    if (part.name != nullptr) {
      t.name = t.stored = llama2c_name(part, layer);
      file.tensors.push_back(t);
    }
  }
}

// The bytes that a header of version 0 describes; 0 when no header could be so.
inline std::int64_t llama2c_0_bytes(const std::uint8_t* data, std::size_t size) {
  if (size < 28 || has_llama2c_magic(data, size)) {
    return 0;
  }
  try {
    const Llama2cHeader h = llama2c_header(data, size, "");
    check_llama2c(h, "");
    return llama2c_bytes(llama2c_config(h, "", ""), 0, 0);
  } catch (const Error&) {
    return 0;
  }
}

}  // namespace detail

// A llama2.c file of any version; `path` names it in an Error, and names the model.
inline WeightFile parse_llama2c(const Shared<MappedFile>& mapped, const std::string& path) {
  const std::string who = detail::cat({"load: \"", path, "\": "});
  const Llama2cHeader h = detail::llama2c_header(mapped->data(), mapped->size(), who);
  detail::check_llama2c(h, who);
  WeightFile file;
  file.path = path;
  file.kind = detail::cat({"llama2.c version ", h.version});
  file.config = detail::llama2c_config(h, path, who);
  file.has_config = true;
  file.files.push_back(mapped);
  const std::int64_t bytes = detail::llama2c_bytes(file.config, h.version, h.group_size);
  if (bytes != static_cast<std::int64_t>(mapped->size())) {
    detail::fail({who, "its header describes ", bytes, " bytes, the file has ", mapped->size()});
  }
  std::int64_t at = h.version == 0 ? 28 : detail::llama2c_head_bytes;
  file.data_bytes = static_cast<double>(bytes - at);
  for (const detail::Llama2cPart& part : detail::llama2c_parts(file.config, h.version)) {
    detail::add_llama2c_part(file, part, h, at);
  }
  file.index(who);
  return file;
}

inline WeightFile read_llama2c(const std::string& path) {
  return parse_llama2c(map_file(path, "load"), path);
}

}  // namespace tinyscale
