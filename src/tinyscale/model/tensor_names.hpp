#pragma once
// What files of others call our parameters: GPT-2 and nanoGPT (h.0.attn.c_attn, three matrices in
// one), Mixtral (block_sparse_moe), Llama, Mistral and Qwen (as we do), each with or without
// "transformer." or "model." before it. GPT-2's own files hold matrices as [in, out], nanoGPT's as
// [out, in]: the shape of c_attn, [d, 3 d] or [3 d, d], tells which.

#include <cstdint>  // int64_t
#include <string>   // string

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/model/weight_file.hpp"

namespace tinyscale {
namespace detail {

struct OurName {
  std::string name;
  bool gpt2 = false;
  bool fused = false;  // name is q_proj's; the tensor has k_proj's and v_proj's numbers too
};

struct NamePair {
  const char* theirs;
  const char* ours;
};

// Each of theirs that is in the name, once, becomes ours.
inline void rename(std::string& name, const NamePair* pairs, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::string theirs = pairs[i].theirs;
    const std::size_t at = name.find(theirs);
    if (at != std::string::npos) {
      name.replace(at, theirs.size(), pairs[i].ours);
    }
  }
}

inline bool name_begins(const std::string& name, const char* start) {
  return name.rfind(start, 0) == 0;
}

inline bool name_ends(const std::string& name, const std::string& tail) {
  return name.size() >= tail.size() &&
         name.compare(name.size() - tail.size(), tail.size(), tail) == 0;
}

inline OurName our_name(std::string name) {
  static const NamePair gpt2[] = {
      {".ln_1.", ".input_layernorm."},         {".ln_2.", ".post_attention_layernorm."},
      {".attn.c_attn.", ".self_attn.q_proj."}, {".attn.c_proj.", ".self_attn.o_proj."},
      {".mlp.c_fc.", ".mlp.up_proj."},         {".mlp.c_proj.", ".mlp.down_proj."}};
  static const NamePair mixtral[] = {{".block_sparse_moe.", ".mlp."},
                                     {".w1.", ".gate_proj."},
                                     {".w2.", ".down_proj."},
                                     {".w3.", ".up_proj."}};
  static const NamePair tops[] = {
      {"wte.", "embed_tokens."}, {"wpe.", "embed_positions."}, {"ln_f.", "norm."}};
  const std::string whole = name;
  for (const char* prefix : {"_orig_mod.", "transformer.", "model."}) {  // the first: torch.compile
    if (name_begins(name, prefix)) {
      name.erase(0, std::string(prefix).size());
    }
  }
  OurName out;
  out.gpt2 = true;
  for (const NamePair& top : tops) {
    if (name_begins(name, top.theirs)) {
      out.name = std::string("model.") + top.ours + name.substr(std::string(top.theirs).size());
      return out;
    }
  }
  if (name_begins(name, "h.")) {
    out.fused = name.find(".attn.c_attn.") != std::string::npos;
    rename(name, gpt2, sizeof gpt2 / sizeof gpt2[0]);
    out.name = "model.layers." + name.substr(2);
    return out;
  }
  out.gpt2 = false;
  if (name_begins(name, "layers.")) {
    if (name.find(".block_sparse_moe.") != std::string::npos) {
      rename(name, mixtral, sizeof mixtral / sizeof mixtral[0]);
    }
    out.name = "model." + name;
  } else if (name_begins(name, "embed_tokens.") || name_begins(name, "embed_positions.") ||
             name_begins(name, "norm.")) {
    out.name = "model." + name;
  } else {
    out.name = name_begins(name, "lm_head.") ? name : whole;
  }
  return out;
}

// Tensors of other programs' files that hold nothing to learn (masks, tables), and of a training's
// the moments.
inline bool is_harmless(const std::string& name) {
  return name_begins(name, "optimizer.") || name_ends(name, ".attn.bias") ||
         name_ends(name, ".attn.masked_bias") || name_ends(name, ".rotary_emb.inv_freq");
}

// Whether the file's matrices are [in, out], by its first c_attn.
inline bool has_transposed(const List<StoredTensor>& tensors, const std::string& who) {
  for (const StoredTensor& t : tensors) {
    if (our_name(t.name).fused && t.shape.size() == 2) {
      const std::int64_t rows = t.shape[0], cols = t.shape[1];
      if (rows != 3 * cols && cols != 3 * rows) {
        fail({who, "tensor \"", t.stored, "\" is ", t.shape,
              "; width x 3 width, or the other way round, is right"});
      }
      return cols == 3 * rows;
    }
  }
  return false;
}

// One tensor of a file under our names, as one or as the three of c_attn.
inline void add_named(WeightFile& file, StoredTensor t, bool transposed, const std::string& who) {
  const OurName ours = our_name(t.stored);
  t.name = ours.name;
  if (is_harmless(t.stored) || is_harmless(t.name)) {
    return;
  }
  const bool matrix = t.shape.size() == 2;
  if (ours.gpt2 && transposed && matrix && name_begins(t.name, "model.layers.")) {
    t.transposed = true;
    t.stride = t.shape[1];
    t.shape = {t.shape[1], t.shape[0]};
  }
  if (!ours.fused) {
    file.tensors.push_back(static_cast<StoredTensor&&>(t));
    return;
  }
  if (t.shape.empty() || t.shape.size() > 2 || t.shape[0] % 3 != 0) {
    fail({who, "tensor \"", t.stored, "\" is ", t.shape,
          "; queries, keys and values, as many of each, are right"});
  }
  const std::int64_t rows = t.shape[0] / 3, bytes = plain_bytes(t);
  const std::string query = t.name;
  for (int part = 0; part < 3; ++part) {
    StoredTensor one = t;
    static const char* const names[] = {".q_proj.", ".k_proj.", ".v_proj."};
    one.name.replace(query.find(".q_proj."), 8, names[part]);
    one.shape.set(0, rows);
    one.data += t.readable ? part * rows * bytes * (matrix && !t.transposed ? t.shape[1] : 1) : 0;
    file.tensors.push_back(static_cast<StoredTensor&&>(one));
  }
}

}  // namespace detail
}  // namespace tinyscale
