#pragma once
// A tokenizer as JSON: all its lists, in the metadata of a saved model; and as a tokenizer.json of
// Hugging Face's form, for other programs.

#include <cstddef>  // size_t
#include <cstdint>  // int64_t
#include <string>   // string
#include <utility>  // move
#include <vector>   // vector

#include "tinyscale/base/order.hpp"
#include "tinyscale/base/save_file.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/model/hugging_face_tokenizer.hpp"
#include "tinyscale/model/safetensors.hpp"

namespace tinyscale {
namespace detail {

// The words of TokenizerKind, in its order.
constexpr const char* tokenizer_words[] = {"characters",    "bytes",         "byte_pairs",
                                           "scored_pieces", "merged_pieces", nullptr};

inline std::string normalizer_name(Normalizer normalize) {
  if (normalize != nfc && normalize != nfd) {
    detail::fail(
        {"save: the tokenizer's normalizer is a function that no file names; nfc, nfd or "
         "none is right"});
  }
  return normalize == nfc ? "NFC" : "NFD";
}

inline std::string json_texts(const std::vector<std::string>& texts) {
  std::string json = "[";
  for (const std::string& text : texts) {
    if (!is_utf8(text)) {  // a replaced byte would make it another token
      fail({"save: the tokenizer has \"", json_escape(text.substr(0, 64)),
            "\", which is no UTF-8 and no JSON can hold"});
    }
    json += json.size() > 1 ? ",\"" : "\"";
    json += json_escape(text);
    json += '"';
  }
  return json + "]";
}

// What of spaces and normal forms is not as in most tokenizers.
inline std::string spaces_json(const TokenizerData& data) {
  std::string json;
  if (data.space_rule != SpaceRule::each) {
    json += cat({",\"space_rule\":", static_cast<int>(data.space_rule)});
  }
  for (std::size_t i = 0; i < data.spaces.size(); ++i) {
    json += cat(
        {i == 0 ? ",\"spaces\":[" : ",", data.spaces[i], i + 1 == data.spaces.size() ? "]" : ""});
  }
  if (data.normalize != nullptr) {
    json += cat({",\"normalizer\":\"", normalizer_name(data.normalize), "\""});
  }
  return json;
}

inline std::string tokenizer_json(const Tokenizer& tokenizer) {
  const TokenizerData& data = tokenizer.data();
  std::string json =
      cat({"{\"kind\":\"", tokenizer_words[static_cast<int>(tokenizer.kind())], "\""});
  if (data.kind == TokenizerKind::characters || data.kind == TokenizerKind::bytes) {
    return json + ",\"characters\":" + json_texts(tokenizer.characters()) + "}";
  }
  json += ",\"tokens\":" + json_texts(data.tokens) + ",\"scores\":[";
  for (std::size_t i = 0; i < data.scores.size(); ++i) {
    json += (i > 0 ? "," : "") + exact_number(static_cast<double>(data.scores[i]));
  }
  json += "],\"types\":[";
  for (std::size_t i = 0; i < data.types.size(); ++i) {
    json += cat({i > 0 ? "," : "", data.types[i]});
  }
  json += "],\"merges\":" + json_texts(data.merges);
  return json +
         cat({",\"bos\":", data.bos, ",\"eos\":", data.eos, ",\"unknown\":", data.unknown,
              ",\"add_bos\":", data.add_bos, ",\"add_eos\":", data.add_eos, ",\"pre\":\"",
              json_escape(data.pre),
              "\",\"add_space_prefix\":", data.add_space_prefix ? "true" : "false",
              ",\"ignore_merges\":", data.ignore_merges}) +
         spaces_json(data) + "}";
}

inline const Json& tokenizer_field(const Json& json, const char* key, Json::Kind kind,
                                   const std::string& who) {
  const Json* field = json.find(key);
  if (field == nullptr || field->kind != kind) {
    fail({who, "its tokenizer lacks ", key});
  }
  return *field;
}

inline std::vector<std::string> tokenizer_texts(const Json& json, const char* key,
                                                const std::string& who) {
  std::vector<std::string> texts;
  for (const Json& item : tokenizer_field(json, key, Json::Kind::list, who).list) {
    texts.push_back(item.text);
  }
  return texts;
}

// A whole number from -1 to 2^31 - 1.
inline std::int64_t tokenizer_number(const Json& value, const char* key, const std::string& who) {
  const double n = value.number;
  if (value.kind != Json::Kind::number || !(n >= -1 && n <= 2147483647.0) ||
      static_cast<double>(static_cast<std::int64_t>(n)) != n) {
    fail({who, "its tokenizer's ", key, " is no whole number from -1 to 2^31 - 1"});
  }
  return static_cast<std::int64_t>(n);
}

inline std::vector<std::string> characters_from_json(const Json& json, const std::string& who) {
  std::vector<std::string> characters = tokenizer_texts(json, "characters", who);
  for (std::size_t i = 0; i < characters.size(); ++i) {
    if (characters[i].empty() || character_size(characters[i], 0) != characters[i].size()) {
      fail({who, "its tokenizer has the character \"", characters[i],
            "\"; exactly one in UTF-8 is right"});
    }
    if (i > 0 && characters[i] <= characters[i - 1]) {
      detail::fail({who + "its tokenizer's characters are not in ascending order, each once"});
    }
  }
  return characters;
}

inline TokenizerKind tokenizer_kind(const Json& json, const std::string& who) {
  const std::string& word = tokenizer_field(json, "kind", Json::Kind::text, who).text;
  std::string right;
  for (int i = 0; tokenizer_words[i] != nullptr; ++i) {
    if (word == tokenizer_words[i]) {
      return static_cast<TokenizerKind>(i);
    }
    right += cat({i > 0 ? ", " : "", tokenizer_words[i]});
  }
  fail({who, "tokenizer kind is \"", word, "\"; right is one of ", right});
}

inline void read_spaces_json(TokenizerData& data, const Json& json, const std::string& who) {
  if (const Json* rule = json.find("space_rule")) {
    const std::int64_t number = tokenizer_number(*rule, "space_rule", who);
    if (number < 0 || number > 3) {
      fail({who, "its tokenizer's space_rule is ", number, "; 0 to 3 are right"});
    }
    data.space_rule = static_cast<SpaceRule>(number);
  }
  if (json.find("spaces") != nullptr) {
    for (const Json& each : tokenizer_field(json, "spaces", Json::Kind::list, who).list) {
      data.spaces.push_back(static_cast<std::int32_t>(tokenizer_number(each, "spaces", who)));
    }
  }
  if (json.find("normalizer") != nullptr) {
    const std::string name = tokenizer_field(json, "normalizer", Json::Kind::text, who).text;
    data.normalize = find_normalizer(name);
    if (data.normalize == nullptr) {
      fail({who, "its tokenizer's normalizer is \"", name, "\"; NFC or NFD is right"});
    }
  }
}

inline Tokenizer tokenizer_from_json(const std::string& text, const std::string& who) {
  const Json json = parse_named(text, who);
  TokenizerData data;
  data.kind = tokenizer_kind(json, who);
  if (data.kind == TokenizerKind::bytes) {
    return Tokenizer();
  }
  if (data.kind == TokenizerKind::characters) {
    return Tokenizer(characters_from_json(json, who));
  }
  data.tokens = tokenizer_texts(json, "tokens", who);
  data.merges = tokenizer_texts(json, "merges", who);
  for (const Json& score : tokenizer_field(json, "scores", Json::Kind::list, who).list) {
    data.scores.push_back(static_cast<float>(score.number));
  }
  for (const Json& type : tokenizer_field(json, "types", Json::Kind::list, who).list) {
    data.types.push_back(static_cast<std::int32_t>(tokenizer_number(type, "types", who)));
  }
  const auto number = [&json, &who](const char* key) {
    return tokenizer_number(tokenizer_field(json, key, Json::Kind::number, who), key, who);
  };
  data.bos = number("bos");
  data.eos = number("eos");
  data.unknown = number("unknown");
  data.add_bos = static_cast<int>(number("add_bos"));
  data.add_eos = static_cast<int>(number("add_eos"));
  data.ignore_merges = static_cast<int>(number("ignore_merges"));
  data.pre = tokenizer_field(json, "pre", Json::Kind::text, who).text;
  data.add_space_prefix =
      tokenizer_field(json, "add_space_prefix", Json::Kind::boolean, who).number != 0;
  read_spaces_json(data, json, who);
  return make_tokenizer(std::move(data), who + "its tokenizer: ");
}

// How a tokenizer.json says what happens to a text before it merges, and after decoding.
inline std::string export_steps(const TokenizerData& data, PreTokenizer pre) {
  const std::string mark = word_mark;
  const std::string form =
      data.normalize == nullptr ? "" : "{\"type\":\"" + normalizer_name(data.normalize) + "\"}";
  if (data.kind == TokenizerKind::characters) {
    return "\"normalizer\":null,\"pre_tokenizer\":null,\"decoder\":{\"type\":\"Fuse\"}";
  }
  if (data.kind == TokenizerKind::merged_pieces) {
    const std::string strip = ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}";
    const bool each = data.space_rule == SpaceRule::each, adds = data.add_space_prefix;
    const std::string step =
        each || !adds
            ? "null"
            : cat({"{\"type\":\"Metaspace\",\"replacement\":\"", mark, "\",\"prepend_scheme\":\"",
                   data.space_rule == SpaceRule::first_without ? "first" : "always",
                   "\",\"split\":false}"});
    return cat({"\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[", form,
                form.empty() ? "" : ",",
                each && adds ? "{\"type\":\"Prepend\",\"prepend\":\"" + mark + "\"}," : "",
                "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"", mark,
                "\"}]},\"pre_tokenizer\":", step,
                ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":["
                "{\"type\":\"Replace\",\"pattern\":{\"String\":\"",
                mark, "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}",
                adds ? strip : "", "]}"});
  }
  const auto byte_level = [](bool own_pattern) {
    return cat(
        {"{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
         "\"use_regex\":",
         own_pattern ? "true" : "false", "}"});
  };
  std::string steps = byte_level(pre == PreTokenizer::gpt2);
  if (pre == PreTokenizer::digits) {
    steps =
        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\","
        "\"individual_digits\":true}," +
        byte_level(true) + "]}";
  } else if (pre == PreTokenizer::llama3 || pre == PreTokenizer::qwen2) {
    steps =
        cat({"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":"
             "{\"Regex\":\"",
             json_escape(pattern_of_pre(pre)), "\"},\"behavior\":\"Isolated\",\"invert\":false},",
             byte_level(false), "]}"});
  }
  return cat({"\"normalizer\":", form.empty() ? "null" : form, ",\"pre_tokenizer\":", steps,
              ",\"decoder\":", byte_level(true)});
}

// The special tokens around a text.
inline std::string export_template(const TokenizerData& data) {
  if (data.add_bos <= 0 && data.add_eos <= 0) {
    return "null";
  }
  std::string single, tokens;
  const auto add = [&](std::int64_t id) {
    const std::string name = json_escape(data.tokens[static_cast<std::size_t>(id)]);
    single += cat(
        {single.empty() ? "" : ",", "{\"SpecialToken\":{\"id\":\"", name, "\",\"type_id\":0}}"});
    if (data.add_bos <= 0 || data.add_eos <= 0 || id != data.eos || data.bos != data.eos ||
        tokens.empty()) {
      tokens += cat({tokens.empty() ? "" : ",", "\"", name, "\":{\"id\":\"", name, "\",\"ids\":[",
                     id, "],\"tokens\":[\"", name, "\"]}"});
    }
  };
  if (data.add_bos > 0) {
    add(data.bos);
  }
  single += std::string(single.empty() ? "" : ",") + "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}";
  if (data.add_eos > 0) {
    add(data.eos);
  }
  return cat({"{\"type\":\"TemplateProcessing\",\"single\":[", single,
              "],\"pair\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"Sequence\":{\"id\":\"B\","
              "\"type_id\":1}}],\"special_tokens\":{",
              tokens, "}}"});
}

}  // namespace detail

// A tokenizer.json that Hugging Face's programs and read_hugging_face_tokenizer read.
inline std::string hugging_face_json(const Tokenizer& tokenizer) {
  TokenizerData data = tokenizer.data();
  if (data.kind == TokenizerKind::scored_pieces) {
    detail::fail(
        {"save_tokenizer: a SentencePiece tokenizer merges by scores, which a "
         "tokenizer.json cannot hold; save() of a model keeps them"});
  }
  const int pre = detail::find_pre_tokenizer(data.kind == TokenizerKind::bytes ? "none" : data.pre);
  if (data.kind == TokenizerKind::byte_pairs && pre >= static_cast<int>(PreTokenizer::signs)) {
    detail::fail({"save_tokenizer: llama.cpp's cut \"", data.pre,
                  "\" is of several patterns one after the other, which a tokenizer.json does not "
                  "name; save() of a model keeps it"});
  }
  for (int byte = 0; data.kind == TokenizerKind::bytes && byte < 256; ++byte) {
    data.tokens.push_back(
        detail::spelled_bytes(std::string(1, static_cast<char>(static_cast<unsigned char>(byte)))));
  }
  std::string added, vocabulary;
  detail::NameTable names;
  for (std::size_t id = 0; id < data.tokens.size(); ++id) {
    const std::string& token = data.tokens[id];
    const TokenType type =
        data.types.empty() ? TokenType::normal : static_cast<TokenType>(data.types[id]);
    if (token.empty() && type == TokenType::unused) {
      continue;  // an id without a token
    }
    if (!detail::is_utf8(token)) {
      detail::fail({"save_tokenizer: token ", id, " is \"", json_escape(token),
                    "\", which is no UTF-8 and no JSON can hold"});
    }
    if (++names[token] > 1 ||
        (data.kind == TokenizerKind::characters && token == detail::word_mark)) {
      detail::fail({"save_tokenizer: token ", id, " is \"", token,
                    "\"; texts that differ, and no "
                    "character U+2581, are right"});
    }
    const std::int32_t spaces = data.spaces.empty() ? 0 : data.spaces[id];
    if (type == TokenType::control || type == TokenType::user_defined) {
      added += detail::cat(
          {added.empty() ? "" : ",", "{\"id\":", id, ",\"content\":\"", json_escape(token),
           "\",\"single_word\":false,\"lstrip\":", (spaces & 1) != 0 ? "true" : "false",
           ",\"rstrip\":", (spaces & 2) != 0 ? "true" : "false",
           ",\"normalized\":", (spaces & 4) != 0 ? "true" : "false",
           ",\"special\":", type == TokenType::control ? "true" : "false", "}"});
    } else {
      vocabulary += vocabulary.empty() ? "\"" : ",\"";
      vocabulary += json_escape(token);
      vocabulary += detail::cat({"\":", id});
    }
  }
  const std::string unknown =
      data.unknown < 0
          ? "null"
          : "\"" + json_escape(data.tokens[static_cast<std::size_t>(data.unknown)]) + "\"";
  const bool pieces = data.kind == TokenizerKind::merged_pieces;
  return detail::cat(
      {"{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[", added, "],",
       detail::export_steps(data, static_cast<PreTokenizer>(pre)),
       ",\"post_processor\":", detail::export_template(data),
       ",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":", unknown,
       ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":",
       pieces ? "true" : "false", ",\"byte_fallback\":", pieces ? "true" : "false",
       ",\"ignore_merges\":", data.ignore_merges > 0 ? "true" : "false", ",\"vocab\":{", vocabulary,
       "},\"merges\":", detail::json_texts(data.merges), "}}\n"});
}

// The same in a file, which appears whole or not at all.
inline void save_tokenizer(const Tokenizer& tokenizer, const std::string& path) {
  const std::string json = hugging_face_json(tokenizer);
  detail::SaveFile file("save_tokenizer", path);
  file.write(json.data(), json.size());
  file.finish();
}

}  // namespace tinyscale
