#pragma once
// Any supported file to a Transformer: what a file is, its bytes say, not its name. With float32
// weights it learns; weights as stored, in bf16, 8 or 4 bits only run. What a config describes must
// be in the file, every tensor once and in its shape, and nothing else.

#include <cstdint>  // int64_t
#include <cstring>  // memcpy
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/order.hpp"
#include "tinyscale/compute/store_matrix.hpp"
#include "tinyscale/model/gguf_weights.hpp"
#include "tinyscale/model/llama2c.hpp"
#include "tinyscale/model/load_tokenizer.hpp"
#include "tinyscale/model/safetensors_model.hpp"
#include "tinyscale/model/transformer.hpp"
#include "tinyscale/model/weight_file.hpp"

namespace tinyscale {

// How the matrices of a loaded model are kept. Norms, biases, positions and routers are f32 always.
enum class Weights {
  f32,        // float32 in memory: it learns
  as_stored,  // in the file's mapping and format: the file must not shrink while the model lives
  bf16,
  int8,  // with one scale a group of columns
  int4
};

struct LoadOptions;

// One of them, float32 where none is given. Giving one is what makes a program compile the kernels
// of stored weights.
struct WeightsChoice {
  WeightsChoice() = default;
  WeightsChoice(Weights which);
  operator Weights() const { return weights; }

  Weights weights = Weights::f32;
  StoredMatrix (*store)(const WeightFile& file, const StoredTensor& t, const LoadOptions& options,
                        const std::string& who) = nullptr;
};

struct LoadOptions {
  WeightsChoice weights;
  std::int64_t group = 32;  // columns of int8 and int4 that share a scale; 0: a whole row
  Activations activations = Activations::f32;  // rounded to, before they meet stored weights
  std::string config;        // a config.json; else what the file or its folder has
  std::string tokenizer;     // a file, or "none"; else the one in or beside the weights
  std::int64_t context = 0;  // longest sequence, tokens; 0: the file's
};

namespace detail {

// Throws; of a quantised matrix the file may have "q_proj.qweight".
[[noreturn]] inline void no_tensor(const WeightFile& file, const std::string& name,
                                   const std::string& who) {
  const std::string other = name_ends(name, "weight") ? name.substr(0, name.rfind('.') + 1) : name;
  for (const StoredTensor& t : file.tensors) {
    if (name_begins(t.name, other.c_str()) && !name_ends(t.name, ".bias")) {
      fail({who, "no tensor for the parameter ", name, "; the file has \"", t.stored, "\""});
    }
  }
  fail({who, "no tensor for the parameter ", name});
}

// A config from a file may lie: what it would allocate must be near what the file holds.
inline void check_config_fits(const ModelConfig& c, const WeightFile& file,
                              const std::string& who) {
  const auto number = [](std::int64_t n) { return static_cast<double>(n); };
  const double experts = c.experts > 0 ? c.experts + c.shared_experts : 1;
  const double hidden = number(c.experts > 0 ? c.expert_hidden : c.hidden);
  const double layer = 2 * number(c.heads) * number(c.head_size) +
                       2 * number(c.kv_heads) * number(c.head_size) + 2 * experts * hidden;
  const double least = number(c.width) * (number(c.vocabulary) + number(c.layers) * layer);
  double held = file.data_bytes;  // a plain number takes at least a byte, one in a block may not
  double counted = 0;
  for (const StoredTensor& tensor : file.tensors) {
    counted += static_cast<double>(tensor.shape.count());
  }
  held = counted > held ? counted : held;
  if (least > held) {
    fail({who, "its config describes at least ", least, " parameters in ", file.data_bytes,
          " bytes of data"});
  }
  // Not more layers and experts than have a tensor, before lists are made of them.
  const auto need = [&](const std::string& name) {
    if (file.find(name) == nullptr) {
      no_tensor(file, name, who);
    }
  };
  for (std::int64_t at = 0; at < c.layers; ++at) {
    if (at > 0) {
      need(cat({"model.layers.", at, ".input_layernorm.weight"}));
    }
    for (int expert = 1; expert < c.experts; ++expert) {
      need(cat({"model.layers.", at, ".mlp.experts.", expert, ".up_proj.weight"}));
    }
  }
}

// What is not read where it lies must fit before the first tensor is taken.
inline void check_weights_fit(const ModelConfig& c, Weights weights, double memory,
                              const std::string& who, const List<StoredTensor>& tensors = {}) {
  const bool f32 = weights == Weights::f32, bf16 = weights == Weights::bf16;
  const double each = f32 ? 4 : weights == Weights::int8 ? 1 : weights == Weights::int4 ? 0.5 : 0;
  double bytes = each * static_cast<double>(c.parameters());
  for (const StoredTensor& t : tensors) {
    bytes += bf16 && t.format != BlockFormat::bf16 ? 2 * static_cast<double>(t.shape.count()) : 0;
  }
  if (memory > 0 && bytes > memory) {
    fail({who, c.name, " needs ", format_bytes(bytes), " for its weights in ",
          f32           ? "f32"
          : bf16        ? "bf16"
          : each > 0.75 ? "int8"
                        : "int4",
          ", this machine has ", format_bytes(memory),
          "; Weights::as_stored leaves them in the file"});
  }
}

// Rows of queries or keys (or their biases) in the other layout of rotary pairs: interleaved row
// 2 i + j of a head is row j K / 2 + i of the halves.
inline void swap_pairs(float* rows, std::int64_t count, std::int64_t cols, std::int64_t head,
                       RopePairs to) {
  std::vector<float> old(static_cast<std::size_t>(head * cols));
  const std::size_t row = static_cast<std::size_t>(cols);
  for (std::int64_t first = 0; first < count; first += head) {
    float* const here = rows + first * cols;
    std::memcpy(old.data(), here, old.size() * 4);
    for (std::int64_t i = 0; i < head; ++i) {
      const std::int64_t apart = i % 2 * (head / 2) + i / 2;  // of i among interleaved ones
      const bool halves = to == RopePairs::halves;
      std::memcpy(here + (halves ? apart : i) * cols,
                  old.data() + static_cast<std::size_t>(halves ? i : apart) * row, row * 4);
    }
  }
}

inline bool turns(const std::string& name) {  // with the position
  return name.find(".self_attn.q_") != std::string::npos ||
         name.find(".self_attn.k_") != std::string::npos;
}

inline const Shared<MappedFile>& owner_of(const WeightFile& file, const StoredTensor& t) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < file.files.size(); ++i) {
    const MappedFile& f = *file.files[i];
    at = t.data >= f.data() && t.data < f.data() + f.size() ? i : at;
  }
  return file.files[at];
}

// The matrix of a tensor in the way that the options say, which is not f32.
inline StoredMatrix stored_matrix_of(const WeightFile& file, const StoredTensor& t,
                                     const LoadOptions& options, const std::string& who) {
  const std::int64_t rows = t.shape[0], cols = t.shape[1];
  const Weights w = options.weights;
  const bool plain = t.readable && !t.transposed && !t.doubles && t.scales == nullptr;
  if (plain && (w == Weights::as_stored || (w == Weights::bf16 && t.format == BlockFormat::bf16))) {
    return kernels::stored_view(rows, cols, t.format, t.data, owner_of(file, t));
  }
  if (w == Weights::as_stored && t.scales != nullptr) {
    std::vector<float> scales;
    for (std::int64_t i = 0; i < rows * cols / t.group; ++i) {
      scales.push_back(t.scale(i));
    }
    return kernels::stored_packed(
        kernels::pack_quantized(rows, cols, t.group, 8, t.codes(), scales.data()));
  }
  std::vector<float> numbers(t.readable ? static_cast<std::size_t>(rows * cols) : 0);
  read_floats(t, numbers.data(), who);
  StoreAs how;
  how.group = options.group;
  how.packed_bits = w == Weights::int8 ? 8 : w == Weights::int4 ? 4 : 0;
  how.format = w == Weights::bf16                 ? BlockFormat::bf16
               : t.doubles || t.scales != nullptr ? BlockFormat::f32
                                                  : t.format;
  return store_named(who, cat({"tensor \"", t.stored, "\""}), rows, cols, numbers.data(), how);
}

class ModelLoader {
 public:
  ModelLoader(const WeightFile& file, const LoadOptions& options, std::string who)
      : file_(file), options_(options), who_(std::move(who)) {}

  Transformer read(const ModelConfig& config) const {
    config.validate();
    const std::string beyond = config.beyond.empty() ? lacking(config) : config.beyond;
    if (!beyond.empty()) {
      const bool gguf = name_begins(file_.kind, "GGUF");
      fail({who_, config.name, " has ", beyond, ", which a Transformer here cannot run; ",
            gguf ? "gguf_config of it" : "read_config of its config.json",
            " gives what can be planned"});
    }
    check_config_fits(config, file_, who_);
    check_weights_fit(config, options_.weights, physical_memory(), who_, file_.tensors);
    Transformer model = Transformer::without_numbers(config);
    model.activations = options_.activations;
    NameTable used;
    for (Parameter& p : model.parameters) {
      const StoredTensor t = tensor_of(p, config, used);
      if (options_.weights == Weights::f32 || p.shape.size() != 2 || stays_f32(p.name)) {
        read_value(p, t, config);
      } else {
        p.stored = Shared<StoredMatrix>(
            new StoredMatrix(options_.weights.store(file_, t, options_, who_)));
      }
    }
    check_rest(config, used);
    return model;
  }

  // Among the matrices.
  static bool stays_f32(const std::string& name) {
    return name == "model.embed_positions.weight" || name_ends(name, ".mlp.gate.weight");
  }

 private:
  // The tensor for a parameter; of learned positions a part may be wanted.
  StoredTensor tensor_of(const Parameter& p, const ModelConfig& config, NameTable& used) const {
    const StoredTensor* const t = file_.find(p.name);
    if (t == nullptr) {
      return joined_part(p, config, used);
    }
    used[p.name] = 1;
    StoredTensor found = *t;
    const bool cut = options_.context > 0 && p.name == "model.embed_positions.weight" &&
                     t->shape.size() == 2 && t->shape[0] > p.shape[0];
    if (cut) {
      found.shape.set(0, p.shape[0]);
    }
    if (found.shape != p.shape) {
      fail({who_, "the tensor for ", p.name, " is ", t->shape, "; the model ", config.name, " has ",
            p.shape});
    }
    return found;
  }

  // Its rows in a matrix that has others', too: Phi-3's queries, keys and values, its gate and up.
  StoredTensor joined_part(const Parameter& p, const ModelConfig& c, NameTable& used) const {
    const std::int64_t q = c.query_width(), kv = c.key_width(), f = c.hidden;
    const struct {
      const char *ours, *theirs;
      std::int64_t first, rows;
    } parts[] = {{".q_proj.", ".qkv_proj.", 0, q + 2 * kv},
                 {".k_proj.", ".qkv_proj.", q, q + 2 * kv},
                 {".v_proj.", ".qkv_proj.", q + kv, q + 2 * kv},
                 {".gate_proj.", ".gate_up_proj.", 0, 2 * f},
                 {".up_proj.", ".gate_up_proj.", f, 2 * f}};
    for (const auto& part : parts) {
      std::string name = p.name;
      const NamePair pair = {part.ours, part.theirs};
      rename(name, &pair, 1);
      const StoredTensor* const t = name == p.name ? nullptr : file_.find(name);
      if (t == nullptr) {
        continue;
      }
      Shape whole = p.shape;
      whole.set(0, part.rows);
      if (t->shape != whole) {
        fail({who_, "the tensor \"", t->stored, "\" is ", t->shape, "; the model ", c.name, " has ",
              whole});
      }
      used[name] = 1;
      StoredTensor found = *t;
      found.shape = p.shape;
      found.data += t->readable ? part.first * row_bytes(*t) : 0;
      return found;
    }
    no_tensor(file_, p.name, who_);
  }

  void read_value(Parameter& p, const StoredTensor& t, const ModelConfig& config) const {
    if (!t.readable) {
      read_floats(t, nullptr, who_);  // says so
    }
    const MemoryScope scope(MemoryKind::parameter);
    Tensor numbers(p.shape);
    read_floats(t, numbers.data(), who_);
    const bool other = file_.has_config && file_.config.rope_pairs != config.rope_pairs;
    if (other && turns(p.name)) {
      const std::int64_t cols = p.shape.size() == 2 ? p.shape[1] : 1;
      swap_pairs(numbers.data(), p.shape[0], cols, config.head_size, config.rope_pairs);
    }
    p.value = parameter(numbers);
  }

  // Nothing may be left, but an output matrix that is the embedding once more.
  void check_rest(const ModelConfig& config, const NameTable& used) const {
    for (const StoredTensor& t : file_.tensors) {
      if (used.has(t.name)) {
        continue;
      }
      if (t.name != "lm_head.weight" || !config.tied) {
        fail({who_, "the tensor \"", t.stored, "\" has no place in the model ", config.name});
      }
      check_tied(t, *file_.find("model.embed_tokens.weight"));
    }
  }
  void check_tied(const StoredTensor& head, const StoredTensor& table) const {
    if (head.shape == table.shape && head.type != table.type) {
      fail({who_, "\"", head.stored, "\" is ", head.type, ", the embedding ", table.type,
            ", and the config says tied; both of one type or tied false is right"});
    }
    bool same = head.shape == table.shape && head.type == table.type &&
                head.transposed == table.transposed && head.group == table.group;
    const std::int64_t row = same ? row_bytes(head) : 0;
    same = same &&
           std::memcmp(head.data, table.data, static_cast<std::size_t>(row * head.shape[0])) == 0;
    if (!same) {
      fail({who_, "\"", head.stored,
            "\" is not the embedding once more, and the config says tied; "
            "tied false is right"});
    }
  }
  static std::int64_t row_bytes(const StoredTensor& t) {
    const std::int64_t cols = t.shape.size() > 1 ? t.shape[1] : 1;
    return t.scales != nullptr ? cols : t.doubles ? 8 * cols : block_row_bytes(t.format, cols);
  }

  const WeightFile& file_;
  const LoadOptions& options_;
  std::string who_;
};

inline bool is_folder(const std::string& path) { return !path.empty() && file_there(path + "/."); }

inline WeightFile open_folder(const std::string& path) {
  for (const char* name : {"model.safetensors.index.json", "model.safetensors"}) {
    const std::string file = path + "/" + name;
    if (file_there(file)) {
      return name_ends(name, ".json") ? read_sharded_safetensors(file)
                                      : safetensors_weights(read_safetensors(file));
    }
  }
  fail({"load: the folder \"", path,
        "\" has neither model.safetensors nor "
        "model.safetensors.index.json; a path to a file is right too"});
}

// A file by what it begins with; of llama2.c's version 0 its size alone tells.
inline WeightFile parse_weights(const Shared<MappedFile>& mapped, const std::string& path,
                                bool with_tokenizer = true) {
  const std::uint8_t* const data = mapped->data();
  const std::size_t size = mapped->size();
  if (size >= 4 && std::memcmp(data, "GGUF", 4) == 0) {
    return gguf_weights(mapped, path, with_tokenizer);
  }
  const std::int64_t version_0 = llama2c_0_bytes(data, size);
  if (has_llama2c_magic(data, size) ||
      (version_0 > 0 && version_0 == static_cast<std::int64_t>(size))) {
    return parse_llama2c(mapped, path);
  }
  std::uint64_t n = 0;
  if (size >= 8) {
    std::memcpy(&n, data, 8);
  }
  const bool object = size > 8 && data[8] == '{';
  if (object && n <= 100000000) {
    return safetensors_weights(parse_safetensors(mapped, path));
  }
  if (size > 0 && data[0] == '{') {
    return read_sharded_safetensors(path);
  }
  if (object) {
    return safetensors_weights(parse_safetensors(mapped, path));
  }
  if (version_0 > 0) {
    return parse_llama2c(mapped, path);
  }
  fail({"load: \"", path, "\": ", size,
        " bytes that begin as no known format does; safetensors "
        "(or their index.json), GGUF, llama2.c, or a folder of safetensors is right"});
}

}  // namespace detail

inline WeightsChoice::WeightsChoice(Weights which)
    : weights(which), store(detail::stored_matrix_of) {
  detail::name_in("Weights", {"f32", "as_stored", "bf16", "int8", "int4"}, which);
}

// What a file or folder holds, none of its numbers read.
inline WeightFile open_weights(const std::string& path, bool with_tokenizer = true) {
  return detail::is_folder(path)
             ? detail::open_folder(path)
             : detail::parse_weights(map_file(path, "load"), path, with_tokenizer);
}

namespace detail {

inline ModelConfig config_of(WeightFile& file, const LoadOptions& options, const std::string& who) {
  if (!options.config.empty()) {
    ModelConfig config = read_config_for(file, options.config, options.context);
    config.rope_pairs = file.has_config ? file.config.rope_pairs : config.rope_pairs;
    return config;
  }
  read_config_beside(file, folder_of(file.path), options.context);
  if (!file.has_config) {
    fail({who, file.no_config});
  }
  return file.config;
}

// A shorter context needs fewer learned positions, and no window that is as long.
inline void set_context(ModelConfig& config, std::int64_t context, const std::string& who) {
  if (config.position == Position::learned && (context < 0 || context > config.context)) {
    fail({who, "a context of ", context, " tokens; up to ", config.context,
          " is right, or 0 for all"});
  }
  if (context < 0) {  // rotary positions go on beyond the file's
    fail({who, "a context of ", context, " tokens; 1 or more is right, or 0 for the file's ",
          config.context});
  }
  config.context = context > 0 ? context : config.context;
  if (config.window >= config.context) {
    config.window = config.global_every = 0;
  }
}

// The one that the user names, else the file's, else one beside it.
inline void take_tokenizer(Transformer& model, const WeightFile& file, const LoadOptions& options,
                           const std::string& who) {
  const std::int64_t rows = model.config.vocabulary;
  Tokenizer tokenizer = file.tokenizer;
  std::string from = "its tokenizer";
  if (options.tokenizer == "none") {
    return;
  }
  if (!options.tokenizer.empty()) {
    from = cat({"the tokenizer \"", options.tokenizer, "\""});
    tokenizer = named_tokenizer(options.tokenizer, rows);
  } else if (!file.has_tokenizer) {
    const std::string path = tokenizer_file_beside(file.path, rows);
    if (path.empty()) {
      return;
    }
    from = cat({"the tokenizer beside it, \"", path, "\","});
    try {
      tokenizer = named_tokenizer(path, rows);
    } catch (const Error& error) {
      fail({error.what(), "; LoadOptions::tokenizer = \"none\" loads the weights alone"});
    }
  }
  // Bytes are what a model has whose tokenizer nobody set.
  if (tokenizer.vocabulary() > rows && tokenizer.kind() != Tokenizer::Kind::bytes) {
    fail({who, from, " has ", tokenizer.vocabulary(), " tokens, its embedding ", rows,
          " rows; at least as many rows are right"});
  }
  model.tokenizer = tokenizer;
}

}  // namespace detail

// A model from any supported file, its config and tokenizer from there too.
inline Transformer load(const std::string& path, const LoadOptions& options) {
  const std::string who = detail::cat({"load: \"", path, "\": "});
  if (options.group < 0) {
    detail::fail(
        {who, "groups of ", options.group, " columns; 1 or more is right, or 0 for a whole row"});
  }
  WeightFile file = open_weights(path, options.tokenizer.empty());
  ModelConfig config = detail::config_of(file, options, who);
  detail::set_context(config, options.context, who);
  Transformer model = detail::ModelLoader(file, options, who).read(config);
  detail::take_tokenizer(model, file, options, who);
  return model;
}

inline Transformer load(const std::string& path) { return load(path, LoadOptions()); }

// Another program's weights into a model of the given shape.
inline Transformer load(const std::string& path, const ModelConfig& config) {
  const std::string who = detail::cat({"load: \"", path, "\": "});
  const WeightFile file = open_weights(path);
  LoadOptions options;
  Transformer model = detail::ModelLoader(file, options, who).read(config);
  options.tokenizer = file.has_tokenizer ? "" : "none";
  detail::take_tokenizer(model, file, options, who);
  return model;
}

}  // namespace tinyscale
