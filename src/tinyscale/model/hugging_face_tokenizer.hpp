#pragma once
// Hugging Face's tokenizer.json, of BPE: byte-level ones (GPT-2, Llama 3, Qwen 2, SmolLM) by the
// pattern that cuts their texts, SentencePiece's (Llama 2, Mistral) by what they do with spaces.
// What would rewrite or cut a text otherwise than to NFC (Qwen, GPT-NeoX) or NFD is refused.

#include <cstddef>  // size_t
#include <cstdint>  // int64_t
#include <string>   // string
#include <utility>  // move

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/model/json.hpp"
#include "tinyscale/model/make_tokenizer.hpp"
#include "tinyscale/model/read_text.hpp"
#include "tinyscale/model/safetensors.hpp"
#include "tinyscale/model/unicode_normal.hpp"

namespace tinyscale {
namespace detail {

// A field's text, "" when it is none; is a field true? (`otherwise` when it is not there)
inline std::string json_text(const Json* json, const char* key) {
  const Json* field = json == nullptr ? nullptr : json->find(key);
  return field == nullptr || field->kind != Json::Kind::text ? "" : field->text;
}
inline bool json_true(const Json& json, const char* key, bool otherwise) {
  const Json* field = json.find(key);
  return field == nullptr || field->kind != Json::Kind::boolean ? otherwise : field->number != 0;
}

// What a step of tokenizer.json is: itself, or the steps of a "Sequence" under `key`.
inline List<const Json*> steps_of(const Json& json, const char* name, const char* key) {
  List<const Json*> steps;
  const Json* step = json.find(name);
  if (step == nullptr || step->kind != Json::Kind::object) {
    return steps;
  }
  const Json* several = json_text(step, "type") == "Sequence" ? step->find(key) : nullptr;
  if (several == nullptr) {
    steps.push_back(step);
    return steps;
  }
  for (const Json& each : several->list) {
    steps.push_back(&each);
  }
  return steps;
}

// Ids may have gaps, but a file of few tokens takes little memory whatever ids it gives them.
inline std::size_t id_limit(std::size_t tokens) { return 2 * tokens + 1024; }

// Places `token` at `id`, which must be below `limit`.
inline void place_token(TokenizerData& data, const Json& id, const std::string& token,
                        std::int32_t type, std::size_t limit, const std::string& who) {
  const std::uint64_t place = json_whole(id, cat({who, "token \"", token, "\""}), "its id");
  if (place >= limit) {
    fail({who, "token \"", token, "\" has the id ", place, "; ids from 0 without large gaps, here ",
          "below ", limit, ", are right"});
  }
  const auto at = static_cast<std::size_t>(place);
  if (at >= data.tokens.size()) {
    data.tokens.resize(at + 1);
    data.types.resize(at + 1, static_cast<std::int32_t>(TokenType::unused));
  }
  const bool taken = data.types[at] != static_cast<std::int32_t>(TokenType::unused);
  if (taken && data.tokens[at] != token) {
    fail({who, "the tokens \"", data.tokens[at], "\" and \"", token, "\" have the same id ", at});
  }
  data.tokens[at] = token;
  data.types[at] = type;
}

// {"token": id, ...}
inline void fill_vocabulary(TokenizerData& data, const Json& vocabulary, std::size_t limit,
                            const std::string& who) {
  for (const JsonField& field : vocabulary.fields) {
    place_token(data, field.value, field.name, static_cast<std::int32_t>(TokenType::normal), limit,
                who);
  }
}

// "left right", or the newer ["left", "right"].
inline void fill_merges(TokenizerData& data, const Json& merges, const std::string& who) {
  for (const Json& merge : merges.list) {
    if (merge.kind == Json::Kind::text) {
      data.merges.push_back(merge.text);
    } else if (merge.list.size() == 2 && merge.list[0].kind == Json::Kind::text &&
               merge.list[1].kind == Json::Kind::text) {
      data.merges.push_back(merge.list[0].text + " " + merge.list[1].text);
    } else {
      fail({who, "merge ", data.merges.size(),
            " is neither \"left right\" nor [\"left\", \"right\"]"});
    }
  }
}

inline void fill_added(TokenizerData& data, const Json* added, std::size_t limit,
                       const std::string& who) {
  for (std::size_t i = 0; added != nullptr && i < added->list.size(); ++i) {
    const Json& token = added->list[i];
    const Json* id = token.find("id");
    const std::string content = json_text(&token, "content");
    if (id == nullptr || content.empty()) {
      fail({who, "added token ", i, " lacks id or content"});
    }
    const TokenType type =
        json_true(token, "special", false) ? TokenType::control : TokenType::user_defined;
    if (json_true(token, "single_word", false)) {
      fail({who, "the added token \"", content,
            "\" stands for whole words alone; single_word false is right"});
    }
    place_token(data, *id, content, static_cast<std::int32_t>(type), limit, who);
    const bool late = data.normalize != nullptr &&
                      json_true(token, "normalized", type == TokenType::user_defined);
    const int spaces = (json_true(token, "lstrip", false) ? 1 : 0) +
                       (json_true(token, "rstrip", false) ? 2 : 0) + (late ? 4 : 0);
    if (spaces > 0) {
      data.spaces.resize(data.tokens.size());
      data.spaces[static_cast<std::size_t>(json_whole(*id, who))] = spaces;
    }
  }
  data.spaces.resize(data.spaces.empty() ? 0 : data.tokens.size());
}

inline std::int64_t find_token(const TokenizerData& data, const std::string& text) {
  for (std::size_t id = 0; id < data.tokens.size() && !text.empty(); ++id) {
    if (data.tokens[id] == text) {
      return static_cast<std::int64_t>(id);
    }
  }
  return -1;
}

// Null when no normal form has the name.
inline Normalizer find_normalizer(const std::string& name) {
  return name == "NFC" ? nfc : name == "NFD" ? nfd : nullptr;
}

// Takes those of the normalizer's steps that are normal forms, of several the last; the others.
inline List<const Json*> read_normal_forms(TokenizerData& data, const Json& json) {
  List<const Json*> others;
  for (const Json* step : steps_of(json, "normalizer", "normalizers")) {
    const Normalizer normalize = find_normalizer(json_text(step, "type"));
    data.normalize = normalize != nullptr ? normalize : data.normalize;
    if (normalize == nullptr) {
      others.push_back(step);
    }
  }
  return others;
}

// The pattern of a pre-tokenizer, as files write it.
inline std::string pattern_of_pre(PreTokenizer pre) {
  if (pre == PreTokenizer::gpt2) {
    return "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
  }
  return cat({"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}",
              pre == PreTokenizer::llama3 ? "{1,3}" : "",
              "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"});
}

// The name of the pre-tokenizer that cuts by this pattern, "" when it is none of ours.
inline std::string pre_of_pattern(const std::string& pattern) {
  return pattern == pattern_of_pre(PreTokenizer::gpt2)     ? "gpt-2"
         : pattern == pattern_of_pre(PreTokenizer::llama3) ? "llama-bpe"
         : pattern == pattern_of_pre(PreTokenizer::qwen2)  ? "qwen2"
                                                           : "";
}

// How a byte-level tokenizer cuts: [Digits | Split by a pattern,] ByteLevel.
inline void read_byte_level(TokenizerData& data, const List<const Json*>& steps,
                            const std::string& who) {
  const Json& last = *steps.back();
  const Json* first = steps.size() == 2 ? steps[0] : nullptr;
  const bool own_pattern = json_true(last, "use_regex", true);
  const std::string type = json_text(first, "type");
  if (json_true(last, "add_prefix_space", true)) {
    detail::fail({who + "its ByteLevel step adds a space before a text; add_prefix_space false "
                        "is right"});
  }
  if (steps.size() == 1) {
    data.pre = own_pattern ? "gpt-2" : "none";
  } else if (type == "Digits" && json_true(*first, "individual_digits", false) && own_pattern) {
    data.pre = "smollm";
  } else if (type == "Split" && !own_pattern && json_text(first, "behavior") == "Isolated" &&
             !json_true(*first, "invert", false)) {
    const std::string pattern = json_text(first->find("pattern"), "Regex");
    data.pre = pre_of_pattern(pattern);
    if (data.pre.empty()) {
      fail({who, "it cuts texts by the pattern ", pattern,
            "; those of GPT-2, Llama 3 and Qwen 2 are right"});
    }
  } else {
    detail::fail({who + "its pre_tokenizer is none of ByteLevel, Digits and ByteLevel, Split by a "
                        "pattern and ByteLevel"});
  }
}

// What pieces do with spaces: the normalizer's Prepend and Replace, or a Metaspace step.
inline void read_spaces(TokenizerData& data, const List<const Json*>& normalizers,
                        const List<const Json*>& steps, const std::string& who) {
  data.add_space_prefix = false;
  for (const Json* step : normalizers) {
    const std::string type = json_text(step, "type");
    if (type == "Prepend" && json_text(step, "prepend") == word_mark) {
      data.add_space_prefix = true;
    } else if (type != "Replace" || json_text(step->find("pattern"), "String") != " " ||
               json_text(step, "content") != word_mark) {
      fail({who, "its normalizer has the step ", type,
            "; to prepend U+2581 and to replace spaces by it is right"});
    }
  }
  bool cuts = false;
  for (const Json* step : steps) {
    const std::string type = json_text(step, "type");
    if (type != "Metaspace" || json_text(step, "replacement") != word_mark) {
      fail({who, "its pre_tokenizer has the step ", type, "; ByteLevel or Metaspace is right"});
    }
    const std::string scheme = json_text(step, "prepend_scheme");
    const bool adds =
        scheme.empty() ? json_true(*step, "add_prefix_space", true) : scheme != "never";
    if (adds && !data.add_space_prefix) {  // else a text begins with U+2581 by then
      data.space_rule = scheme == "first" ? SpaceRule::first_without : SpaceRule::each_without;
    }
    data.add_space_prefix = data.add_space_prefix || adds;
    cuts = cuts || json_true(*step, "split", true);
  }
  for (std::size_t i = 0; cuts && i < data.tokens.size(); ++i) {
    if (data.tokens[i].find(word_mark, 1) != std::string::npos) {
      fail({who, "its Metaspace step cuts before every space, and the token \"", data.tokens[i],
            "\" has one inside; split false is right"});
    }
  }
}

// TemplateProcessing: the special tokens before and after a text.
inline void read_template(TokenizerData& data, const Json& step, const std::string& who) {
  const Json* single = step.find("single");
  bool behind = false;
  for (std::size_t i = 0; single != nullptr && i < single->list.size(); ++i) {
    const Json* special = single->list[i].find("SpecialToken");
    if (special == nullptr) {
      behind = true;
      continue;
    }
    const std::string name = json_text(special, "id");
    const std::int64_t id = find_token(data, name);
    int& add = behind ? data.add_eos : data.add_bos;
    if (id < 0 || add > 0) {
      fail({who, "its template has \"", name, "\" ", behind ? "after" : "before", " a text, ",
            id < 0 ? "which is no token" : "the second there; one is right"});
    }
    add = 1;
    (behind ? data.eos : data.bos) = id;
  }
}

inline void read_processors(TokenizerData& data, const Json& json, const std::string& who) {
  data.add_bos = data.add_eos = 0;
  for (const Json* step : steps_of(json, "post_processor", "processors")) {
    const std::string type = json_text(step, "type");
    if (type == "TemplateProcessing") {
      read_template(data, *step, who);
    } else if (type != "ByteLevel") {
      fail({who, "its post_processor has the step ", type, "; TemplateProcessing is right"});
    }
  }
  // Which special tokens begin and end a text stands in another file: known names, the first found.
  const auto special = [&data](std::initializer_list<const char*> names) -> std::int64_t {
    for (const char* name : names) {
      const std::int64_t id = find_token(data, name);
      if (id >= 0 && data.types[static_cast<std::size_t>(id)] ==
                         static_cast<std::int32_t>(TokenType::control)) {
        return id;
      }
    }
    return -1;
  };
  data.bos =
      data.bos >= 0 ? data.bos : special({"<s>", "<|begin_of_text|>", "<bos>", "<|endoftext|>"});
  data.eos = data.eos >= 0
                 ? data.eos
                 : special({"</s>", "<|end_of_text|>", "<eos>", "<|im_end|>", "<|endoftext|>"});
}

// The model's own part: vocabulary, merges, byte tokens, the unknown token.
inline const Json& read_model(TokenizerData& data, const Json& json, const std::string& who) {
  const Json* model = json.find("model");
  const Json* vocabulary = model == nullptr ? nullptr : model->find("vocab");
  const Json* merges = model == nullptr ? nullptr : model->find("merges");
  const std::string type = json_text(model, "type");
  if (!type.empty() && type != "BPE") {
    fail({who, "its model is ", type, "; BPE is right"});
  }
  if (vocabulary == nullptr || vocabulary->kind != Json::Kind::object || merges == nullptr ||
      merges->kind != Json::Kind::list) {
    detail::fail({who + "its model lacks vocab or merges"});
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!json_text(model, key).empty()) {
      fail({who, "its model has the ", key, " \"", json_text(model, key), "\"; none is right"});
    }
  }
  const Json* added = json.find("added_tokens");
  const std::size_t limit =
      id_limit(vocabulary->fields.size() + (added == nullptr ? 0 : added->list.size()));
  fill_vocabulary(data, *vocabulary, limit, who);
  fill_merges(data, *merges, who);
  fill_added(data, added, limit, who);
  data.ignore_merges = json_true(*model, "ignore_merges", false) ? 1 : 0;
  return *model;
}

inline Tokenizer hugging_face_tokenizer(const Json& json, const std::string& who) {
  TokenizerData data;
  const List<const Json*> normalizers = read_normal_forms(data, json);
  const Json& model = read_model(data, json, who);
  const List<const Json*> steps = steps_of(json, "pre_tokenizer", "pretokenizers");
  if (!steps.empty() && json_text(steps.back(), "type") == "ByteLevel") {
    data.kind = TokenizerKind::byte_pairs;
    read_byte_level(data, steps, who);
    if (!normalizers.empty()) {
      fail({who, "its normalizer has the step ", json_text(normalizers[0], "type"),
            "; NFC, NFD or none is right"});
    }
  } else {
    data.kind = TokenizerKind::merged_pieces;
    for (std::size_t i = 0; json_true(model, "byte_fallback", false) && i < data.tokens.size();
         ++i) {
      if (byte_of_piece(data.tokens[i]) >= 0) {
        data.types[i] = static_cast<std::int32_t>(TokenType::byte);
      }
    }
    read_spaces(data, normalizers, steps, who);
  }
  read_processors(data, json, who);
  data.unknown = find_token(data, json_text(&model, "unk_token"));
  if (data.unknown >= 0) {
    std::int32_t& type = data.types[static_cast<std::size_t>(data.unknown)];
    const bool normal = type == static_cast<std::int32_t>(TokenType::normal);
    type = normal ? static_cast<std::int32_t>(TokenType::unknown) : type;
  }
  return make_tokenizer(std::move(data), who);
}

inline std::string hugging_face_who(const std::string& name) {
  return cat({"read_hugging_face_tokenizer: \"", name, "\": "});
}

}  // namespace detail

inline Tokenizer parse_hugging_face_tokenizer(const std::string& text, const std::string& name) {
  const std::string who = detail::hugging_face_who(name);
  return detail::hugging_face_tokenizer(detail::parse_named(text, who), who);
}

inline Tokenizer read_hugging_face_tokenizer(const std::string& path) {
  return parse_hugging_face_tokenizer(detail::read_file(path, "read_hugging_face_tokenizer"), path);
}

}  // namespace tinyscale
