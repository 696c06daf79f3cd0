#pragma once
// The tokenizer of a checkpoint: in a GGUF file, in a file beside the weights under one of the
// names that programs use, or in a file that the user names. And llama2.c's file of one, written.

#include <cstdint>  // int64_t
#include <string>   // string
#include <utility>  // move
#include <vector>   // vector

#include "tinyscale/base/save_file.hpp"
#include "tinyscale/model/gguf_model.hpp"
#include "tinyscale/model/make_tokenizer.hpp"
#include "tinyscale/model/safetensors_model.hpp"
#include "tinyscale/model/tokenizer_files.hpp"

namespace tinyscale {
namespace detail {

// Of the kinds known here; false, and no tokenizer, for a file without one or with another.
inline bool gguf_tokenizer(const Gguf& file, Tokenizer& tokenizer) {
  GgufVocabulary v = gguf_vocabulary(file);
  if (v.tokens.empty() || (v.model != "llama" && v.model != "gpt2")) {
    return false;
  }
  TokenizerData data;
  data.tokens.swap(v.tokens);
  data.types.swap(v.types);
  data.bos = v.bos;
  data.eos = v.eos;
  data.unknown = v.unknown;
  data.add_bos = v.add_bos;
  data.add_eos = v.add_eos > 0 ? 1 : 0;
  if (v.model == "llama") {
    data.kind = TokenizerKind::scored_pieces;
    data.scores.swap(v.scores);
    data.scores.resize(data.tokens.size(), 0.0f);  // none in the file: from left to right
    data.add_space_prefix = v.add_space_prefix != 0;
    if (data.types.empty()) {
      data.types = piece_types(data);
    }
  } else {
    data.kind = TokenizerKind::byte_pairs;
    data.merges.swap(v.merges);
    data.pre = v.pre.empty() ? "default" : v.pre;
  }
  tokenizer = make_tokenizer(std::move(data), cat({"load: \"", file.name, "\": its tokenizer: "}));
  return true;
}

// nanoGPT's {"chars": ["\n", " ", ...]}, or Hugging Face's: read once, as large ones take a second.
inline Tokenizer json_tokenizer(const std::string& path) {
  const std::string who = cat({"load: \"", path, "\": "});
  const Json json = parse_named(read_file(path, "load"), who);
  const Json* const list = json.find("chars");
  if (list == nullptr || list->kind != Json::Kind::list) {
    return hugging_face_tokenizer(json, hugging_face_who(path));
  }
  std::vector<std::string> characters;
  for (const Json& item : list->list) {
    const bool one = !item.text.empty() && character_size(item.text, 0) == item.text.size();
    if (!one || (!characters.empty() && item.text <= characters.back())) {
      fail({who, "the character ", characters.size(), " is \"", json_escape(item.text),
            "\"; characters in ascending order, each once, are right"});
    }
    characters.push_back(item.text);
  }
  return Tokenizer(std::move(characters));
}

// A file that the user names, another model's GGUF too. vocab.json has its merges.txt beside it.
inline Tokenizer named_tokenizer(const std::string& path, std::int64_t vocabulary) {
  Tokenizer tokenizer;
  if (name_ends(path, ".gguf")) {
    if (!gguf_tokenizer(read_gguf(path), tokenizer)) {
      fail({"load: \"", path,
            "\": no tokenizer in it, or one of another kind; \"llama\" and \"gpt2\" "
            "are right"});
    }
    return tokenizer;
  }
  if (name_ends(path, "vocab.json") && file_there(folder_of(path) + "merges.txt")) {
    return read_gpt2_tokenizer(path, folder_of(path) + "merges.txt");
  }
  if (name_ends(path, ".json")) {
    return json_tokenizer(path);
  }
  return read_tokenizer(path, vocabulary);
}

// The file beside `weights` that has its tokenizer: "tokenizer.json", "vocab.json" with
// "merges.txt", "tokenizer.model", "tokenizer.bin", or of llama2.c, with 512 tokens, "tok512.bin"
// or "tok512.model". Empty: none.
inline std::string tokenizer_file_beside(const std::string& weights, std::int64_t vocabulary) {
  const std::string folder = folder_of(weights), tok = cat({folder, "tok", vocabulary});
  const std::string names[] = {folder + "tokenizer.json",
                               folder + "vocab.json",
                               folder + "tokenizer.model",
                               tok + ".bin",
                               tok + ".model",
                               folder + "tokenizer.bin"};
  for (const std::string& name : names) {
    const bool merges = name_ends(name, "vocab.json") && !file_there(folder + "merges.txt");
    if (file_there(name) && !merges) {
      return name;
    }
  }
  return "";
}

}  // namespace detail

// llama2.c's tokenizer.bin: uint32 longest token, then of each token a float32 score, an int32
// length, the bytes; spaces as spaces, BOS and EOS with line ends around.
inline void save_llama2c_tokenizer(const Tokenizer& tokenizer, const std::string& path) {
  const TokenizerData& data = tokenizer.data();
  const std::string who = detail::cat({"save_llama2c_tokenizer: \"", path, "\": "});
  if (tokenizer.kind() != TokenizerKind::scored_pieces || data.bos != 1 || data.eos != 2) {
    detail::fail({who, "a tokenizer of ", tokenizer.text(), ", BOS ", data.bos, ", EOS ", data.eos,
                  "; SentencePiece's with scores, BOS 1 and EOS 2 is right"});
  }
  std::vector<std::string> tokens;
  std::uint32_t longest = 0;
  for (std::size_t id = 0; id < data.tokens.size(); ++id) {
    const bool mark = id == 1 || id == 2;
    tokens.push_back(mark ? (id == 1 ? "\n<s>\n" : "\n</s>\n")
                          : detail::with_spaces(data.tokens[id]));
    const auto size = static_cast<std::uint32_t>(tokens.back().size());
    longest = size > longest ? size : longest;
  }
  detail::SaveFile file("save_llama2c_tokenizer", path);
  file.write(&longest, 4);
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const auto size = static_cast<std::int32_t>(tokens[id].size());
    file.write(&data.scores[id], 4);
    file.write(&size, 4);
    file.write(tokens[id].data(), tokens[id].size());
  }
  file.finish();
}

}  // namespace tinyscale
