#pragma once
// Text to token numbers and back: one token a character (code point) or a byte, byte-level BPE
// (GPT-2's), SentencePiece BPE with scores or by merges. A value of one pointer: copies are cheap.
// Round trip: decode(encode(text)) is the text, whatever its bytes, for bytes, byte-level BPE and
// pieces with byte tokens (but U+2581, where they spell a space so, as their programs have it); its
// normal form, where a tokenizer.json asks for one.
// Pieces put one space before a text that is not empty, most of them also behind a user's token;
// decode leaves one out there and after BOS. Not so where a tokenizer.json says that a first space
// is that one (Metaspace), or that a special token takes along the spaces around it.

#include <cstddef>  // size_t
#include <cstdint>  // int32_t
#include <string>   // string
#include <utility>  // move
#include <vector>   // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/model/tokenizer_tables.hpp"

namespace tinyscale {

// bos, eos: 1 with, 0 without, -1 as the tokenizer's file says. A text that spells a special token
// ("</s>") is ordinary text, unless parse_special.
struct EncodeOptions {
  int bos = -1;
  int eos = -1;
  bool parse_special = false;
};

class Tokenizer {
 public:
  using Kind = TokenizerKind;

  Tokenizer() = default;  // bytes
  // Characters: the vocabulary in ascending byte order, each once.
  explicit Tokenizer(std::vector<std::string> characters);
  explicit Tokenizer(const Shared<const detail::TokenizerTables>& tables) : tables_(tables) {}

  Kind kind() const { return tables_ == nullptr ? Kind::bytes : tables_->data.kind; }
  const TokenizerData& data() const;  // all of it, as lists
  const std::vector<std::string>& characters() const {
    static const std::vector<std::string> none;
    return kind() == Kind::characters ? tables_->data.tokens : none;
  }
  std::int64_t vocabulary() const {
    return tables_ == nullptr ? 256 : static_cast<std::int64_t>(tables_->data.tokens.size());
  }
  std::string text() const;
  bool operator==(const Tokenizer& other) const;

  // Ids of special tokens, -1 when there is none; special: never part of a decoded text.
  std::int64_t bos() const { return data().bos; }
  std::int64_t eos() const { return data().eos; }
  bool special(std::int32_t id) const {
    return known(id) && tables_ != nullptr &&
           tables_->type(static_cast<std::size_t>(id)) == TokenType::control;
  }
  // The token as its file spells it; "?" when there is none.
  std::string token_text(std::int32_t id) const;

  // What cannot be encoded is an Error: a character of no token, where no bytes can stand for it.
  std::vector<std::int32_t> encode(const std::string& text, const EncodeOptions& options) const;
  std::vector<std::int32_t> encode(const std::string& text) const {
    return encode(text, EncodeOptions());
  }
  std::vector<std::int32_t> encode(const std::string& text, bool bos) const {
    EncodeOptions options;
    options.bos = bos ? 1 : 0;
    return encode(text, options);
  }
  // Special tokens give nothing; an id that stands for nothing (a model may have a larger
  // vocabulary than the text) gives "?".
  std::string decode(const std::vector<std::int32_t>& ids) const;
  // What `id` adds to a text after `previous`, -1 at the start; maybe a part of a character.
  std::string decode_piece(std::int32_t previous, std::int32_t id) const;

 private:
  bool known(std::int32_t id) const { return id >= 0 && id < vocabulary(); }
  void append_piece(std::string& out, std::int32_t previous, std::int32_t id) const;

  Shared<const detail::TokenizerTables> tables_;  // null: bytes
};

namespace detail {

// Bytes of the UTF-8 character that begins at `at`; 0 when the bytes there are not UTF-8.
inline std::size_t character_size(const std::string& text, std::size_t at) {
  const CodePoint c = code_point(text.data(), at, text.size());
  return c.code == no_code_point ? 0 : c.size;
}

// Encodes one stretch of ordinary text. `spaced`: its first byte is the space before the text;
// what it is made of begins at `begin` of `given`, and that `offset` bytes into the user's text.
class StretchEncoder {
 public:
  StretchEncoder(const TokenizerTables& tables, const std::string& text, bool spaced,
                 const std::string& given, std::size_t begin, std::size_t offset, MergeWork& work,
                 std::vector<std::int32_t>& ids)
      : tables_(tables),
        text_(text),
        spaced_(spaced),
        given_(given),
        begin_(begin),
        offset_(offset),
        work_(work),
        ids_(ids) {}

  void encode(std::size_t begin, std::size_t end) {
    earlier_.resize(end - begin > 4096 ? 4096 : 0);
    for (std::size_t at = begin; at < end;) {
      const std::size_t next = piece_end(at, end);
      if (next - at >= no_rank) {
        fail({"encode: a word of ", next - at, " bytes; fewer than 2^32 - 1 are right"});
      }
      word(at, next);
      at = next;
    }
  }

 private:
  // Where this text had a word before, and its tokens among the ids.
  struct Earlier {
    std::uint64_t hash = 0;
    std::size_t at = 0, size = 0, first = 0, count = 0;
  };

  // The end of what merges by itself: a piece of the pre-tokenizer, or up to a place where no
  // token has the bytes on both sides next to each other.
  std::size_t piece_end(std::size_t at, std::size_t end) const {
    if (tables_.data.kind == TokenizerKind::byte_pairs) {
      return next_piece(tables_.pre, text_.data(), at, end);
    }
    if (tables_.data.kind == TokenizerKind::characters) {
      return at + code_point(text_.data(), at, end).size;
    }
    std::size_t next = tables_.splits ? end : at + 1;
    for (; next < end; ++next) {
      const auto before = static_cast<unsigned char>(text_[next - 1]);
      const auto behind = static_cast<unsigned char>(text_[next]);
      if ((behind & 0xC0U) != 0x80U && tables_.neighbours[256U * before + behind] == 0) {
        break;
      }
    }
    return next;
  }

  void word(std::size_t at, std::size_t end) {
    const std::size_t size = end - at;
    if (size == 1) {
      ids_.push_back(byte_token(at));
      return;
    }
    const std::uint64_t hash = size <= 64 ? text_hash(text_.data() + at, size) : 0;
    if (earlier_.empty() || size > 64) {
      merge(at, end, hash);
      return;
    }
    Earlier& seen = earlier_[mixed(hash) % earlier_.size()];
    if (seen.hash == hash && seen.size == size &&
        text_.compare(seen.at, size, text_, at, size) == 0) {
      for (std::size_t i = 0; i < seen.count; ++i) {
        const std::int32_t id = ids_[seen.first + i];
        ids_.push_back(id);
      }
      return;
    }
    const std::size_t first = ids_.size();
    merge(at, end, hash);
    seen = {hash, at, size, first, ids_.size() - first};
  }

  void merge(std::size_t at, std::size_t end, std::uint64_t hash) {
    const TokenizerKind kind = tables_.data.kind;
    if (kind == TokenizerKind::characters ||
        (kind == TokenizerKind::byte_pairs && tables_.data.ignore_merges > 0)) {
      const std::size_t size = end - at;
      const std::int32_t id = tables_.texts.find(
          text_.data() + at, size, size <= 64 ? hash : text_hash(text_.data() + at, size));
      if (id >= 0) {
        ids_.push_back(id);
        return;
      }
      if (kind == TokenizerKind::characters) {
        missing(at, size);
      }
    }
    work_.ids.clear();
    while (at < end) {
      at = kind == TokenizerKind::byte_pairs ? first_byte(at) : first_character(at, end);
    }
    merge_pairs(tables_.pairs, work_);
    for (const std::int32_t id : work_.ids) {
      take(id);
    }
  }
  // SentencePiece's unused token is the two that were last about to become it.
  void take(std::int32_t id) {
    const auto at = static_cast<std::size_t>(id);
    const bool splits = !work_.seen.empty() && tables_.type(at) == TokenType::unused;
    const std::uint64_t pair = splits ? work_.seen[at] : ~std::uint64_t{0};
    if (pair == ~std::uint64_t{0}) {
      ids_.push_back(id);
    } else {
      take(static_cast<std::int32_t>(pair >> 32));
      take(static_cast<std::int32_t>(pair & ~0U));
    }
  }

  std::size_t first_byte(std::size_t at) {
    work_.ids.push_back(byte_token(at));
    return at + 1;
  }
  // A byte and up to three that continue it: one token, or one for each byte.
  std::size_t first_character(std::size_t at, std::size_t end) {
    std::size_t next = at + 1;
    while (next < end && next - at < 4 && !(spaced_ && at == 0) &&
           (static_cast<unsigned char>(text_[next]) & 0xC0U) == 0x80U) {
      ++next;
    }
    const std::int32_t id = tables_.texts.find(text_.data() + at, next - at);
    if (id >= 0) {
      work_.ids.push_back(id);
      return next;
    }
    for (std::size_t i = at; i < next; ++i) {
      if (byte_id(i) < 0) {
        missing(at, next - at);
      }
      work_.ids.push_back(byte_id(i));
    }
    return next;
  }

  std::int32_t byte_id(std::size_t at) const {
    return tables_.byte_ids[static_cast<unsigned char>(text_[at])];
  }
  // The token of a word of one byte.
  std::int32_t byte_token(std::size_t at) const {
    const std::int32_t id = tables_.pieces() ? tables_.texts.find(text_.data() + at, 1) : -1;
    if (id < 0 && byte_id(at) < 0) {
      missing(at, 1);
    }
    return id < 0 ? byte_id(at) : id;
  }

  // U+2581 in what the user gave is one byte here.
  [[noreturn]] void missing(std::size_t at, std::size_t size) const {
    std::size_t where = begin_;
    for (std::size_t i = spaced_ ? 1 : 0; i < at; ++i) {
      where += tables_.marks && given_.compare(where, 3, word_mark) == 0 ? 3U : 1U;
    }
    where += offset_;
    const std::int64_t tokens = static_cast<std::int64_t>(tables_.data.tokens.size());
    if (tables_.data.kind == TokenizerKind::characters) {
      fail({"encode: the character \"", text_.substr(at, size), "\" at byte ", where,
            " is not among the ", tokens, " of the training text; leave it out"});
    }
    if (spaced_ && at == 0) {
      fail({"encode: the space before the text is not among the ", tokens,
            " tokens; a tokenizer with add_space_prefix false is right"});
    }
    fail({"encode: \"", text_.substr(at, size), "\" at byte ", where, " is not among the ", tokens,
          " tokens, nor are all its bytes; leave it out"});
  }

  const TokenizerTables& tables_;
  const std::string& text_;
  bool spaced_;
  const std::string& given_;
  std::size_t begin_, offset_;
  MergeWork& work_;
  std::vector<std::int32_t>& ids_;
  List<Earlier> earlier_;  // one place for all words of a hash: a later word takes it
};

// Does a stretch of text get a space before it?
inline bool gets_space(const TokenizerTables& tables, char first, std::size_t begin,
                       const std::vector<std::int32_t>& ids) {
  switch (tables.data.space_rule) {
    case SpaceRule::each: return true;
    case SpaceRule::each_without: return first != ' ';
    case SpaceRule::first_without: return begin == 0 && first != ' ';
    default:
      return begin == 0 || (!ids.empty() && tables.type(static_cast<std::size_t>(ids.back())) ==
                                                TokenType::control);
  }
}

// Ordinary text between special tokens.
inline void encode_stretch(const TokenizerTables& tables, const std::string& text,
                           std::size_t begin, std::size_t end, std::size_t offset, MergeWork& work,
                           std::vector<std::int32_t>& ids) {
  if (begin == end || !tables.pieces()) {
    StretchEncoder(tables, text, false, text, 0, offset, work, ids).encode(begin, end);
    return;
  }
  std::string own = text.substr(begin, end - begin);
  own = tables.marks ? with_spaces(own) : own;
  const bool spaced =
      tables.data.add_space_prefix && gets_space(tables, own[0], offset + begin, ids);
  own.insert(0, spaced ? 1 : 0, ' ');
  StretchEncoder(tables, own, spaced, text, begin, offset, work, ids).encode(0, own.size());
}

// Does a user's token at the start of the text stand behind the space of the text?
inline bool behind_space(const TokenizerTables& tables, std::int32_t id) {
  return tables.pieces() && tables.data.add_space_prefix &&
         tables.data.space_rule == SpaceRule::text &&
         tables.type(static_cast<std::size_t>(id)) == TokenType::user_defined;
}

// Where the spaces of all kinds begin that end at `at`, not before `begin`; where those end that
// begin at `at`.
inline std::size_t spaces_before(const std::string& text, std::size_t begin, std::size_t at) {
  for (std::size_t size = 1; size <= 4 && size <= at - begin; ++size) {
    const CodePoint c = code_point(text.data(), at - size, at);
    if (c.size == size && character_class(c.code) == CharacterClass::space) {
      at -= size;
      size = 0;
    }
  }
  return at;
}
inline std::size_t spaces_behind(const std::string& text, std::size_t at) {
  while (at < text.size()) {
    const CodePoint c = code_point(text.data(), at, text.size());
    if (character_class(c.code) != CharacterClass::space) {
      break;
    }
    at += c.size;
  }
  return at;
}

// A text with its special tokens. Round 0: the user's text; what is between special tokens goes
// through the normalizer, if there is one, and from where it stood, `offset`, into round 1.
inline void encode_text(const TokenizerTables& tables, const std::string& text, std::size_t offset,
                        int round, bool parse_special, MergeWork& work,
                        std::vector<std::int32_t>& ids) {
  const SpecialTokens& special = parse_special ? tables.special[round] : tables.always[round];
  const Normalizer normalize = round == 0 ? tables.data.normalize : nullptr;
  const auto between = [&](std::size_t begin, std::size_t end) {
    if (normalize != nullptr) {
      const std::string normal = normalize(text.substr(begin, end - begin));
      encode_text(tables, normal, begin, 1, parse_special, work, ids);
    } else {
      encode_stretch(tables, text, begin, end, offset, work, ids);
    }
  };
  std::size_t begin = 0;  // of the text that is not yet encoded
  for (std::size_t at = 0; !special.empty() && at < text.size();) {
    std::size_t size = 1;
    const std::int32_t id = special.find(text, at, size);
    if (id >= 0) {
      const bool left = tables.has(id, TokenSpaces::left);
      between(begin, left ? spaces_before(text, begin, at) : at);
      if (offset + at == 0 && behind_space(tables, id)) {
        StretchEncoder(tables, " ", true, text, 0, 0, work, ids).encode(0, 1);
      }
      ids.push_back(id);
      const bool right = tables.has(id, TokenSpaces::right);
      begin = right ? spaces_behind(text, at + size) : at + size;
    }
    at = id >= 0 ? begin : at + size;
  }
  between(begin, text.size());
}

}  // namespace detail

inline Tokenizer::Tokenizer(std::vector<std::string> characters) {
  auto* const tables = new detail::TokenizerTables;
  tables_.reset(tables);
  tables->data.kind = Kind::characters;
  tables->data.tokens = std::move(characters);
  detail::add_texts(*tables);
}

inline const TokenizerData& Tokenizer::data() const {
  static const TokenizerData bytes = [] {
    TokenizerData made;
    made.kind = Kind::bytes;
    return made;
  }();
  return tables_ == nullptr ? bytes : tables_->data;
}

inline std::string Tokenizer::text() const {
  switch (kind()) {
    case Kind::bytes: return "bytes (256)";
    case Kind::characters: return detail::cat({"characters (", vocabulary(), " distinct)"});
    case Kind::byte_pairs: return detail::cat({"byte-level BPE (", vocabulary(), " tokens)"});
    default: return detail::cat({"SentencePiece BPE (", vocabulary(), " tokens)"});
  }
}

inline bool Tokenizer::operator==(const Tokenizer& other) const {
  const TokenizerData &a = data(), &b = other.data();
  return &a == &b ||
         (a.kind == b.kind && a.tokens == b.tokens && a.scores == b.scores && a.types == b.types &&
          a.merges == b.merges && a.bos == b.bos && a.eos == b.eos && a.unknown == b.unknown &&
          a.add_bos == b.add_bos && a.add_eos == b.add_eos && a.pre == b.pre &&
          a.add_space_prefix == b.add_space_prefix && a.space_rule == b.space_rule &&
          a.ignore_merges == b.ignore_merges && a.spaces == b.spaces && a.normalize == b.normalize);
}

inline std::string Tokenizer::token_text(std::int32_t id) const {
  if (!known(id)) {
    return "?";
  }
  return tables_ == nullptr ? std::string(1, static_cast<char>(static_cast<unsigned char>(id)))
                            : tables_->data.tokens[static_cast<std::size_t>(id)];
}

inline std::vector<std::int32_t> Tokenizer::encode(const std::string& text,
                                                   const EncodeOptions& options) const {
  std::vector<std::int32_t> ids;
  if ((options.bos > 0 && bos() < 0) || (options.eos > 0 && eos() < 0)) {
    detail::fail({"encode: ", options.bos > 0 && bos() < 0 ? "bos" : "eos",
                  " is asked for, and the tokenizer, ", this->text(), ", has no such token"});
  }
  if (tables_ == nullptr) {
    for (const char c : text) {
      ids.push_back(static_cast<unsigned char>(c));
    }
    return ids;
  }
  if (bos() >= 0 && (options.bos < 0 ? data().add_bos : options.bos) > 0) {
    ids.push_back(static_cast<std::int32_t>(bos()));
  }
  detail::MergeWork work;
  work.seen.resize(tables_->splits ? data().tokens.size() : 0, ~std::uint64_t{0});
  detail::encode_text(*tables_, text, 0, 0, options.parse_special, work, ids);
  if (eos() >= 0 && (options.eos < 0 ? data().add_eos : options.eos) > 0) {
    ids.push_back(static_cast<std::int32_t>(eos()));
  }
  return ids;
}

inline void Tokenizer::append_piece(std::string& out, std::int32_t previous,
                                    std::int32_t id) const {
  if (!known(id)) {
    out += '?';
    return;
  }
  if (tables_ == nullptr) {
    out += static_cast<char>(static_cast<unsigned char>(id));
    return;
  }
  const auto place = static_cast<std::size_t>(id);
  const TokenType type = tables_->type(place);
  if (type == TokenType::control) {
    return;
  }
  const char* const text = tables_->texts.data(place);
  const std::size_t size = tables_->texts.length(place);
  // The space that encode put there: of a byte only where no token is a space.
  const bool behind_user =
      known(previous) && tables_->data.space_rule == SpaceRule::each &&
      tables_->type(static_cast<std::size_t>(previous)) == TokenType::user_defined;
  const bool at_start = previous < 0 || previous == bos() || behind_user;
  const bool drop = at_start && tables_->pieces() && tables_->data.add_space_prefix && size > 0 &&
                    text[0] == ' ' && (type != TokenType::byte || tables_->texts.find(" ") < 0);
  out.append(text + (drop ? 1 : 0), size - (drop ? 1U : 0U));
}

inline std::string Tokenizer::decode(const std::vector<std::int32_t>& ids) const {
  std::string text;
  std::int32_t previous = -1;
  for (const std::int32_t id : ids) {
    append_piece(text, previous, id);
    previous = id;
  }
  return text;
}

inline std::string Tokenizer::decode_piece(std::int32_t previous, std::int32_t id) const {
  std::string text;
  append_piece(text, previous, id);
  return text;
}

}  // namespace tinyscale
