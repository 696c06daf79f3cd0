#pragma once
// Tokenizers in their files: llama2.c's tokenizer.bin (uint32 longest token, then for each token a
// float score, an int32 length, the bytes), GPT-2's vocab.json with merges.txt, and read_tokenizer
// for any of them by the name of the file.

#include <cstddef>  // size_t
#include <cstdint>  // uint32_t
#include <cstring>  // memcpy
#include <string>   // string

#include "tinyscale/base/error.hpp"
#include "tinyscale/model/hugging_face_tokenizer.hpp"
#include "tinyscale/model/make_tokenizer.hpp"
#include "tinyscale/model/sentencepiece.hpp"

namespace tinyscale {

// The file does not say how many tokens it has: the model's vocabulary is needed. Token 0 is
// unknown, 1 BOS, 2 EOS, those spelled <0xHH> bytes.
inline Tokenizer parse_llama2c_tokenizer(const std::uint8_t* bytes, std::size_t size,
                                         std::int64_t vocabulary, const std::string& name) {
  const std::string who = detail::cat({"read_llama2c_tokenizer: \"", name, "\": "});
  if (vocabulary < 3 || vocabulary > static_cast<std::int64_t>(size / 8)) {
    detail::fail({who, "a vocabulary of ", vocabulary, " in a file of ", size,
                  " bytes; at least 3 (unknown, BOS, EOS) and 8 bytes a token are right"});
  }
  TokenizerData data;
  data.kind = TokenizerKind::scored_pieces;
  data.unknown = 0;
  data.bos = 1;
  data.eos = 2;
  std::size_t at = 4;
  for (std::int64_t id = 0; id < vocabulary; ++id) {
    float score = 0;
    std::int32_t length = -1;
    if (size - at >= 8) {
      std::memcpy(&score, bytes + at, 4);
      std::memcpy(&length, bytes + at + 4, 4);
      at += 8;
    }
    if (length < 0 || static_cast<std::size_t>(length) > size - at) {
      detail::fail({who, "token ", id, " of ", vocabulary, " does not fit into ", size,
                    " bytes (its length is ", length, "); is the vocabulary right?"});
    }
    const auto bytes_of_token = static_cast<std::size_t>(length);
    data.tokens.emplace_back(reinterpret_cast<const char*>(bytes + at), bytes_of_token);
    data.scores.push_back(score);
    at += bytes_of_token;
  }
  data.types = detail::piece_types(data);
  if (at != size) {
    detail::fail(
        {who, size - at, " bytes follow the ", vocabulary, " tokens; is the vocabulary right?"});
  }
  return make_tokenizer(std::move(data), who);
}

inline Tokenizer read_llama2c_tokenizer(const std::string& path, std::int64_t vocabulary) {
  const std::string file = detail::read_file(path, "read_llama2c_tokenizer");
  return parse_llama2c_tokenizer(reinterpret_cast<const std::uint8_t*>(file.data()), file.size(),
                                 vocabulary, path);
}

// vocab.json: {"token": id, ...}; merges.txt: a line a merge, "left right", after one that begins
// with "#version". "<|endoftext|>", where it is a token, is BOS and EOS.
inline Tokenizer parse_gpt2_tokenizer(const std::string& vocab, const std::string& merges,
                                      const std::string& name) {
  const std::string who = detail::cat({"read_gpt2_tokenizer: \"", name, "\": "});
  TokenizerData data;
  const Json json = detail::parse_named(vocab, who);
  if (json.kind != Json::Kind::object) {
    detail::fail({who, "the vocabulary is no object {\"token\": id, ...}"});
  }
  detail::fill_vocabulary(data, json, detail::id_limit(json.fields.size()), who);
  for (std::size_t at = 0; at < merges.size();) {
    std::size_t end = merges.find('\n', at);
    end = end == std::string::npos ? merges.size() : end;
    const std::size_t behind = end > at && merges[end - 1] == '\r' ? end - 1 : end;
    const bool version = at == 0 && merges.compare(0, 8, "#version") == 0;
    if (behind > at && !version) {
      data.merges.push_back(merges.substr(at, behind - at));
    }
    at = end + 1;
  }
  for (std::size_t id = 0; id < data.tokens.size(); ++id) {
    if (data.tokens[id] == "<|endoftext|>") {
      data.bos = data.eos = static_cast<std::int64_t>(id);
      data.types[id] = static_cast<std::int32_t>(TokenType::control);
    }
  }
  return make_tokenizer(std::move(data), who);
}

inline Tokenizer read_gpt2_tokenizer(const std::string& vocab_path,
                                     const std::string& merges_path) {
  return parse_gpt2_tokenizer(detail::read_file(vocab_path, "read_gpt2_tokenizer"),
                              detail::read_file(merges_path, "read_gpt2_tokenizer"), vocab_path);
}

// By the end of the name: .json a tokenizer.json, .model SentencePiece's, .bin llama2.c's, which
// needs the model's vocabulary.
inline Tokenizer read_tokenizer(const std::string& path, std::int64_t vocabulary = 0) {
  const std::size_t point = path.find_last_of('.');
  const std::string end = point == std::string::npos ? "" : path.substr(point);
  if (end == ".json") {
    return read_hugging_face_tokenizer(path);
  }
  if (end == ".model") {
    return read_sentencepiece(path);
  }
  if (end == ".bin") {
    return read_llama2c_tokenizer(path, vocabulary);
  }
  detail::fail({"read_tokenizer: \"", path,
                "\"; a path that ends in .json (tokenizer.json), .model (SentencePiece) or .bin "
                "(llama2.c) is right"});
}

}  // namespace tinyscale
