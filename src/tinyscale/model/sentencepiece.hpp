#pragma once
// SentencePiece's .model file, a protobuf message: pieces with scores and types, how it was
// trained, how it rewrites text. A message is a run of fields: key = 8 * number + wire type (0
// varint, 1 eight bytes, 2 a length and that many bytes, 5 four bytes), then the value.
// https://github.com/google/sentencepiece (sentencepiece_model.proto)

#include <cstddef>  // size_t
#include <cstdint>  // uint64_t
#include <cstring>  // memcpy
#include <string>   // string

#include "tinyscale/base/error.hpp"
#include "tinyscale/model/make_tokenizer.hpp"
#include "tinyscale/model/read_text.hpp"

namespace tinyscale {
namespace detail {

// Reads the fields of one message; every read is checked against its end.
class ProtoReader {
 public:
  // `who` begins each Error and outlives the reader; `base` is where the whole file begins.
  ProtoReader(const std::uint8_t* bytes, std::size_t length, const std::uint8_t* base,
              const std::string& who)
      : at_(bytes), end_(bytes + length), base_(base), who_(who) {}

  // Goes to the next field; false at the end of the message.
  bool next() {
    if (at_ == end_) {
      return false;
    }
    const std::uint64_t key = varint();
    field = key >> 3;
    const std::uint64_t wire = key & 7U;
    size = 0;
    data = nullptr;
    if (field == 0 || (wire != 0 && wire != 1 && wire != 2 && wire != 5)) {
      fail_here(cat({"field ", field, " of wire type ", wire}));
    }
    if (wire == 0) {
      number = varint();
      return true;
    }
    const std::uint64_t bytes = wire == 1 ? 8 : wire == 5 ? 4 : varint();
    if (bytes > static_cast<std::uint64_t>(end_ - at_)) {
      fail_here(cat({"a field of ", bytes, " bytes where ", end_ - at_, " are left"}));
    }
    data = at_;
    size = static_cast<std::size_t>(bytes);
    number = 0;
    at_ += size;
    return true;
  }

  std::uint64_t field = 0;
  std::uint64_t number = 0;            // of a varint
  const std::uint8_t* data = nullptr;  // of the others: their bytes
  std::size_t size = 0;

  std::string text() const { return std::string(reinterpret_cast<const char*>(data), size); }
  ProtoReader message() const { return ProtoReader(data, size, base_, who_); }
  float real() const {
    if (size != 4) {
      fail_here("a score that is not four bytes");
    }
    float value = 0;
    std::memcpy(&value, data, 4);
    return value;
  }

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && at_ != end_; shift += 7) {
      const std::uint8_t byte = *at_++;
      value |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
      if (byte < 0x80) {
        return value;
      }
    }
    fail_here("a number that does not end");
  }
  [[noreturn]] void fail_here(const std::string& what) const {
    fail({who_, "no SentencePiece model: ", what, " before byte ",
          static_cast<std::int64_t>(at_ - base_)});
  }

  const std::uint8_t* at_;
  const std::uint8_t* end_;
  const std::uint8_t* base_;
  const std::string& who_;
};

inline void read_piece(ProtoReader reader, TokenizerData& data) {
  std::string piece;
  float score = 0;
  std::uint64_t type = 1;
  while (reader.next()) {
    if (reader.field == 1 && reader.data != nullptr) {
      piece = reader.text();
    } else if (reader.field == 2) {
      score = reader.real();
    } else if (reader.field == 3) {
      type = reader.number < 7 ? reader.number : 0;  // make_tokenizer says that 0 is wrong
    }
  }
  data.tokens.push_back(piece);
  data.scores.push_back(score);
  data.types.push_back(static_cast<std::int32_t>(type));
}

// model_type (3), unk_id (40), bos_id (41), eos_id (42), treat_whitespace_as_suffix (24).
inline void read_trainer(ProtoReader reader, TokenizerData& data, const std::string& who) {
  std::uint64_t kind = 1;
  std::uint64_t suffix = 0;
  while (reader.next()) {
    const auto id = static_cast<std::int32_t>(static_cast<std::uint32_t>(reader.number));
    kind = reader.field == 3 ? reader.number : kind;
    suffix = reader.field == 24 ? reader.number : suffix;
    data.unknown = reader.field == 40 ? id : data.unknown;
    data.bos = reader.field == 41 ? id : data.bos;
    data.eos = reader.field == 42 ? id : data.eos;
  }
  if (kind != 2) {
    const char* const names[] = {"unknown", "unigram", "BPE", "word", "character"};
    fail({who, "its model type is ", kind < 5 ? names[kind] : "unknown", "; BPE is right"});
  }
  if (suffix != 0) {
    detail::fail({who, "it puts spaces behind words; spaces before words are right"});
  }
}

// precompiled_charsmap (2), add_dummy_prefix (3), escape_whitespaces (5). That it would drop spaces
// where several stand together (4) is passed over: every byte of a text is kept.
inline void read_normalizer(ProtoReader reader, TokenizerData& data, const std::string& who) {
  while (reader.next()) {
    if (reader.field == 2 && reader.size > 0) {
      fail({who, "its normalizer rewrites characters (a map of ", reader.size,
            " bytes); the identity is right"});
    }
    if (reader.field == 3) {
      data.add_space_prefix = reader.number != 0;
    }
  }
}

}  // namespace detail

inline Tokenizer parse_sentencepiece(const std::uint8_t* bytes, std::size_t size,
                                     const std::string& name) {
  const std::string who = detail::cat({"read_sentencepiece: \"", name, "\": "});
  TokenizerData data;
  data.kind = TokenizerKind::scored_pieces;
  data.space_rule = SpaceRule::text;
  data.unknown = 0;
  data.bos = 1;
  data.eos = 2;
  detail::ProtoReader reader(bytes, size, bytes, who);
  bool trainer = false;
  while (reader.next()) {
    if (reader.field > 3 || reader.data == nullptr) {
      continue;
    }
    if (reader.field == 1) {
      detail::read_piece(reader.message(), data);
    } else if (reader.field == 2) {
      detail::read_trainer(reader.message(), data, who);
      trainer = true;
    } else {
      detail::read_normalizer(reader.message(), data, who);
    }
  }
  if (!trainer) {
    detail::fail({who, "it does not say its model type; BPE is right"});
  }
  return make_tokenizer(std::move(data), who);
}

// SentencePiece's tokenizer.model, of BPE.
inline Tokenizer read_sentencepiece(const std::string& path) {
  const std::string file = detail::read_file(path, "read_sentencepiece");
  return parse_sentencepiece(reinterpret_cast<const std::uint8_t*>(file.data()), file.size(), path);
}

}  // namespace tinyscale
