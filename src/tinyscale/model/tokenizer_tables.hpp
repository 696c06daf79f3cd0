#pragma once
// What a tokenizer's file says, and the tables made from it: each token's bytes, which pairs of
// tokens merge in which order, the tokens of single bytes, the special tokens.
// Byte-level files spell each byte as a printable character (GPT-2's alphabet: byte 0x20 is
// U+0120); SentencePiece's spell a space as U+2581. Inside, tokens are the bytes that they stand
// for.

#include <cstddef>  // size_t
#include <cstdint>  // int32_t
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/model/byte_pair_encoding.hpp"
#include "tinyscale/model/pre_tokenizer.hpp"
#include "tinyscale/model/token_table.hpp"

namespace tinyscale {

enum class TokenizerKind {
  characters,     // one token a code point
  bytes,          // one token a byte
  byte_pairs,     // byte-level BPE (GPT-2, Llama 3, Qwen): bytes merge by a list of merges
  scored_pieces,  // SentencePiece BPE (Llama 2, llama2.c): characters merge by the result's score
  merged_pieces   // the same vocabulary in a tokenizer.json: characters merge by a list of merges
};

// Which stretches of a text, between special tokens, pieces put a space before: each; of a
// tokenizer.json's Metaspace step those that begin with none, each or only that at the start; in
// SentencePiece's own program the text, also where it begins with a user's token (behind a control
// token, which that program finds in no text, another begins).
enum class SpaceRule { each, each_without, first_without, text };

// What a special token takes along of the text around it; with normal_form added it is looked for
// in what the text becomes by the normalizer, not in the text as it is given.
enum class TokenSpaces : std::int32_t { none, left, right, both, normal_form };

// What a text becomes before it is cut: nfc, nfd.
using Normalizer = std::string (*)(const std::string& text);

// Types of tokens, numbered as in SentencePiece and GGUF files.
enum class TokenType : std::int32_t { normal = 1, unknown, control, user_defined, unused, byte };

// A tokenizer as plain lists; make_tokenizer checks them and makes a Tokenizer.
struct TokenizerData {
  TokenizerKind kind = TokenizerKind::byte_pairs;
  std::vector<std::string> tokens;                // by id, spelled as in the file
  std::vector<float> scores;                      // scored_pieces: one a token
  std::vector<std::int32_t> types;                // TokenType of each; empty: all normal
  std::vector<std::string> merges;                // "left right", the first merges first
  std::int64_t bos = -1, eos = -1, unknown = -1;  // ids; -1: none
  int add_bos = -1;  // 1, 0, or -1: pieces and Llama 3 do, others do not
  int add_eos = 0;
  std::string pre;               // byte_pairs: the pre-tokenizer by name; "": GPT-2's
  bool add_space_prefix = true;  // pieces: a space before a text that is not empty
  SpaceRule space_rule = SpaceRule::each;
  int ignore_merges = -1;            // 1: a word that is a token is one, merges or not; -1: Llama 3
  std::vector<std::int32_t> spaces;  // TokenSpaces of each, where it is looked for; empty: none
  Normalizer normalize = nullptr;    // of pairs and pieces, between special tokens; null: none
};

namespace detail {

// GPT-2's alphabet: the code point that spells a byte, which is the byte itself where that prints.
inline std::uint32_t spelled_byte(std::uint32_t byte) {
  const auto prints = [](std::uint32_t b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b != 173);
  };
  if (prints(byte)) {
    return byte;
  }
  return 256 + (byte <= 32 ? byte : byte <= 160 ? byte - 127 + 33 : 67);
}

inline std::string spelled_bytes(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) {
    append_utf8(out, spelled_byte(static_cast<unsigned char>(c)));
  }
  return out;
}

// The byte that a code point spells, -1 when none.
inline int byte_of_spelling(std::uint32_t code) {
  if (code >= 256) {
    const std::uint32_t n = code - 256;
    return n <= 32 ? static_cast<int>(n) : n < 67 ? static_cast<int>(n + 94) : n == 67 ? 173 : -1;
  }
  return spelled_byte(code) == code ? static_cast<int>(code) : -1;
}

// The bytes that a spelling stands for; false when a character is not of the alphabet.
inline bool bytes_of_spelling(const std::string& spelling, std::string& out) {
  out.clear();
  for (std::size_t at = 0; at < spelling.size();) {
    const CodePoint c = code_point(spelling.data(), at, spelling.size());
    const int byte = byte_of_spelling(c.code);
    if (byte < 0) {
      return false;
    }
    out += static_cast<char>(static_cast<unsigned char>(byte));
    at += c.size;
  }
  return true;
}

constexpr const char* word_mark = "\xE2\x96\x81";  // U+2581

// U+2581 as a space, everywhere.
inline std::string with_spaces(const std::string& piece) {
  std::string out;
  for (std::size_t at = 0; at < piece.size(); ++at) {
    if (piece[at] == word_mark[0] && piece.compare(at, 3, word_mark) == 0) {
      out += ' ';
      at += 2;
    } else {
      out += piece[at];
    }
  }
  return out;
}

// The byte of a token spelled <0xHH>, -1 when it is spelled otherwise.
inline int byte_of_piece(const std::string& piece) {
  if (piece.size() != 6 || piece.compare(0, 3, "<0x") != 0 || piece[5] != '>') {
    return -1;
  }
  int value = 0;
  for (const char c : {piece[3], piece[4]}) {
    const bool digit = c >= '0' && c <= '9';
    const auto lower = static_cast<char>(c | 0x20);
    if (!digit && (lower < 'a' || lower > 'f')) {
      return -1;
    }
    value = value * 16 + (digit ? c - '0' : lower - 'a' + 10);
  }
  return value;
}

// Of pieces that have none: by their spelling, and by who is BOS, EOS and the unknown one.
inline std::vector<std::int32_t> piece_types(const TokenizerData& data) {
  std::vector<std::int32_t> types;
  for (const std::string& token : data.tokens) {
    const auto id = static_cast<std::int64_t>(types.size());
    const TokenType type = id == data.bos || id == data.eos ? TokenType::control
                           : id == data.unknown             ? TokenType::unknown
                           : byte_of_piece(token) >= 0      ? TokenType::byte
                                                            : TokenType::normal;
    types.push_back(static_cast<std::int32_t>(type));
  }
  return types;
}

// Tokens that are looked for in a text before it is cut, the longest at each place.
class SpecialTokens {
 public:
  static constexpr std::size_t longest = 256;  // bytes, so that looking takes linear time

  bool empty() const { return texts_.empty(); }
  void add(const std::string& text, std::int32_t id) {
    texts_.push_back(text);
    ids_.push_back(id);
    first_[static_cast<unsigned char>(text[0])] = true;
  }
  // Sorts what was added. Of two with the same text the first stands.
  void finish() {
    std::vector<std::string> unsorted;
    unsorted.swap(texts_);
    sort(unsorted);
  }

  // The token that stands at `at`, -1 when none does; its bytes in `size`.
  std::int32_t find(const std::string& text, std::size_t at, std::size_t& size) const {
    std::int32_t found = -1;
    if (!first_[static_cast<unsigned char>(text[at])]) {
      return found;
    }
    std::size_t low = 0, high = texts_.size();  // those that begin as the text does here
    for (std::size_t depth = 0; low < high; ++depth) {
      if (texts_[low].size() == depth) {
        found = ids_[low++];
        size = depth;
      }
      if (at + depth >= text.size()) {
        break;
      }
      const auto c = static_cast<unsigned char>(text[at + depth]);
      const std::size_t begin = bound(low, high, depth, c);
      high = bound(begin, high, depth, c + 1U);
      low = begin;
    }
    return found;
  }

 private:
  // The first of [low, high) whose byte at `depth` is at least c; they are sorted by it.
  std::size_t bound(std::size_t low, std::size_t high, std::size_t depth, unsigned c) const {
    while (low < high) {
      const std::size_t middle = low + (high - low) / 2;
      if (static_cast<unsigned char>(texts_[middle][depth]) < c) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
  // The texts in their order, each once, with their ids.
  void sort(std::vector<std::string>& from) {
    std::vector<std::int32_t> ids;
    for (const std::size_t i : stable_order(from)) {
      if (texts_.empty() || texts_.back() != from[i]) {
        texts_.push_back(from[i]);
        ids.push_back(ids_[i]);
      }
    }
    ids_.swap(ids);
  }

  std::vector<std::string> texts_;
  std::vector<std::int32_t> ids_;
  bool first_[256] = {};
};

// Everything that a Tokenizer shares with its copies.
struct TokenizerTables {
  TokenizerData data;
  PreTokenizer pre = PreTokenizer::none;
  TokenTable texts;  // the bytes that each token stands for
  PairTable pairs;
  std::int32_t byte_ids[256];  // the token of each byte, or -1
  // Looked for when asked; those of users in every text. [1]: after the normalizer.
  SpecialTokens special[2], always[2];
  std::string neighbours;  // [256 first + second]: not 0 when a token holds them so
  bool marks = false;      // tokens spell spaces as U+2581: a text's are spaces, too
  bool splits = false;     // merges make unused tokens, which SentencePiece takes apart

  TokenizerTables() {
    for (std::int32_t& id : byte_ids) {
      id = -1;
    }
  }

  TokenType type(std::size_t id) const {
    return data.types.empty() ? TokenType::normal : static_cast<TokenType>(data.types[id]);
  }
  bool pieces() const {
    return data.kind == TokenizerKind::scored_pieces || data.kind == TokenizerKind::merged_pieces;
  }
  // Does it take along the spaces on this side; is it looked for in the normal form?
  bool has(std::int32_t id, TokenSpaces which) const {
    return !data.spaces.empty() &&
           (data.spaces[static_cast<std::size_t>(id)] & static_cast<std::int32_t>(which)) != 0;
  }
  // May a text become this token by merging? (An unused one that is empty is a gap in the ids.)
  bool plain(std::size_t id) const {
    return type(id) == TokenType::normal || type(id) == TokenType::user_defined ||
           (type(id) == TokenType::unused && !data.tokens[id].empty());
  }
};

// The bytes of every token, and those that texts become by merging by their text.
inline void add_texts(TokenizerTables& tables) {
  const TokenizerData& data = tables.data;
  std::string bytes;
  tables.texts.reserve(data.tokens.size());
  for (std::size_t i = 0; i < data.tokens.size(); ++i) {
    const std::string& token = data.tokens[i];
    if (!tables.pieces()) {
      const bool spelled =
          data.kind == TokenizerKind::byte_pairs && bytes_of_spelling(token, bytes);
      const bool as_is = !spelled || (tables.type(i) != TokenType::normal);
      const std::int32_t id = tables.texts.add(as_is ? token : bytes);
      if (!as_is || data.kind == TokenizerKind::characters) {
        tables.texts.find_by_text(id);
      }
      continue;
    }
    const int byte = tables.type(i) == TokenType::byte ? byte_of_piece(token) : -1;
    tables.marks = tables.marks || token.find(word_mark) != std::string::npos;
    const std::int32_t id = tables.texts.add(
        byte >= 0 ? std::string(1, static_cast<char>(static_cast<unsigned char>(byte)))
                  : with_spaces(token));
    if (byte >= 0 && tables.byte_ids[byte] < 0) {
      tables.byte_ids[byte] = id;
    }
    if (tables.plain(i)) {
      tables.texts.find_by_text(id);
    }
  }
  for (int b = 0; b < 256 && !tables.pieces(); ++b) {
    const auto byte = static_cast<char>(static_cast<unsigned char>(b));
    tables.byte_ids[b] = tables.texts.find(&byte, 1);
  }
}

}  // namespace detail
}  // namespace tinyscale
