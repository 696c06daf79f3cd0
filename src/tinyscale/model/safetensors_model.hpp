#pragma once
// A model in safetensors: in one file, or in shards that model.safetensors.index.json lists with
// the tensors of each. Config and tokenizer from the metadata when this library wrote them, else
// the config from a config.json.

#include <cstdint>  // int64_t
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/sorted_names.hpp"
#include "tinyscale/model/checkpoint.hpp"
#include "tinyscale/model/read_config.hpp"
#include "tinyscale/model/safetensors.hpp"
#include "tinyscale/model/tensor_names.hpp"
#include "tinyscale/model/weight_file.hpp"

namespace tinyscale {
namespace detail {

// "models/llama/" of "models/llama/config.json"; empty for a file in this folder.
inline std::string folder_of(const std::string& path) {
  const std::size_t slash = path.find_last_of("/\\");
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

inline bool file_there(const std::string& path) {
  const File file(std::fopen(path.c_str(), "rb"));
  return file.get() != nullptr;
}

inline void add_stored(const Safetensors& from, WeightFile& file, List<StoredTensor>& raw) {
  file.files.push_back(from.file);
  file.data_bytes += static_cast<double>(from.bytes.size() - from.data_start);
  for (const SafetensorsEntry& entry : from.entries) {
    raw.push_back(from.stored(entry));
  }
}

inline void name_tensors(WeightFile& file, const List<StoredTensor>& raw, const std::string& who) {
  const bool transposed = has_transposed(raw, who);
  for (const StoredTensor& tensor : raw) {
    add_named(file, tensor, transposed, who);
  }
  file.index(who);
}

// Without a config: what is missing, by whose names the file has.
inline std::string why_no_config(const WeightFile& file) {
  if (file.find("model.embed_tokens.weight") == nullptr) {
    return "it carries no config of this library; call load(path, config)";
  }
  const bool gpt2 = file.find("model.embed_positions.weight") != nullptr;
  return cat({"it has the tensors of a ", gpt2 ? "GPT-2" : "Llama",
              " and shapes do not tell the heads; put its config.json beside it, name it in "
              "LoadOptions::config or call load(path, config)"});
}

// A config.json for these weights: where it does not say whether the output matrix is the
// embedding, the tensors do.
inline ModelConfig read_config_for(const WeightFile& file, const std::string& path,
                                   std::int64_t context) {
  return read_config(path, context, file.find("lm_head.weight") == nullptr);
}

// The config.json of a folder, if there is one.
inline void read_config_beside(WeightFile& file, const std::string& folder, std::int64_t context) {
  if (!file.has_config && file_there(folder + "config.json")) {
    file.config = read_config_for(file, folder + "config.json", context);
    file.has_config = true;
  }
}

// The parts of an index: which tensor is in which shard.
struct ShardIndex {
  std::vector<std::string> tensors, shards;  // a shard for each tensor
};

inline ShardIndex read_shard_index(const std::string& text, const std::string& who) {
  ShardIndex index;
  JsonReader json(text, who);
  const auto add = [&](const std::string& tensor) {
    const Json value = json.few_values(64);
    const std::string& shard = value.text;
    const bool outside = shard.find_first_of("/\\:") != std::string::npos || shard == "." ||
                         shard == ".." || shard.find('\0') != std::string::npos;
    if (shard.empty() || outside) {
      fail({who, "the tensor \"", json_escape(tensor), "\" is in \"", json_escape(shard),
            "\"; the name of a file in the same folder is right"});
    }
    index.tensors.push_back(tensor);
    index.shards.push_back(shard);
  };
  json.each_field([&](const std::string& name) {
    if (name == "weight_map" && json.at_object()) {
      json.each_field(add);
    } else {
      json.few_values(100000);
    }
  });
  json.end();
  if (index.tensors.empty()) {
    fail({who,
          "no weight_map; an index has one, of tensors and their files; a config.json goes beside "
          "the weights"});
  }
  return index;
}

// One shard: what it has must be what the index says.
inline void check_shard(const Safetensors& shard, const std::string& name, const ShardIndex& index,
                        const SortedNames& tensors, const std::string& who) {
  for (const SafetensorsEntry& entry : shard.entries) {
    const std::size_t at = tensors.find(entry.name);
    if (at == SortedNames::none) {
      fail({who, "the tensor \"", entry.name, "\" of \"", name, "\" is not in the index"});
    }
    if (index.shards[at] != name) {
      fail({who, "the tensor \"", entry.name, "\" is in \"", name, "\" and the index has it in \"",
            index.shards[at], "\""});
    }
  }
}

}  // namespace detail

// A safetensors file as weights; without config.json, which is beside the file.
inline WeightFile safetensors_weights(const Safetensors& from) {
  const std::string who = detail::cat({"load: \"", from.path, "\": "});
  WeightFile file;
  file.path = from.path;
  file.kind = "safetensors";
  const std::string* config = from.find_metadata("tinyscale.config");
  const std::string* tokenizer = from.find_metadata("tinyscale.tokenizer");
  if (config != nullptr) {
    file.config = detail::config_from_json(*config, who);
    file.has_config = true;
  }
  if (tokenizer != nullptr) {
    file.tokenizer = detail::tokenizer_from_json(*tokenizer, who);
    file.has_tokenizer = true;
  }
  List<StoredTensor> raw;
  detail::add_stored(from, file, raw);
  detail::name_tensors(file, raw, who);
  file.no_config = detail::why_no_config(file);
  return file;
}

// A model in shards, by its model.safetensors.index.json.
inline WeightFile read_sharded_safetensors(const std::string& path) {
  const std::string who = detail::cat({"load: \"", path, "\": "});
  const detail::ShardIndex index = detail::read_shard_index(detail::read_file(path, "load"), who);
  const detail::SortedNames tensors(index.tensors), shards(index.shards);
  WeightFile file;
  file.path = path;
  file.kind = "safetensors in shards";
  List<StoredTensor> raw;
  std::size_t found = 0;
  for (std::size_t i = 0; i < index.shards.size(); ++i) {
    if (shards.find(index.shards[i]) == i) {  // where it stands first
      const Safetensors shard = read_safetensors(detail::folder_of(path) + index.shards[i]);
      detail::check_shard(shard, index.shards[i], index, tensors, who);
      found += shard.entries.size();
      detail::add_stored(shard, file, raw);
    }
  }
  if (found < index.tensors.size()) {
    std::vector<std::string> there;
    for (const StoredTensor& tensor : raw) {
      there.push_back(tensor.stored);
    }
    const detail::SortedNames all(there);
    for (std::size_t i = 0; i < index.tensors.size(); ++i) {
      if (all.find(index.tensors[i]) == detail::SortedNames::none) {
        detail::fail({who, "the tensor \"", index.tensors[i], "\" is not in \"", index.shards[i],
                      "\", where the index has it"});
      }
    }
  }
  detail::name_tensors(file, raw, who);
  file.no_config = detail::why_no_config(file);
  return file;
}

}  // namespace tinyscale
