// Hostile texts for honest tokenizers. The first byte chooses one of nine, the second how; the rest
// is the text. Whatever its bytes, the text comes back; pieces are those that scanning all pairs
// after each merge gives.
#include "tokenizer_use.hpp"
#ifndef FUZZ_REPLAY
#include "tinyscale/model/make_tokenizer.hpp"
#include "tinyscale/model/tokenizer_tables.hpp"
#endif

namespace fuzz_encode {

using tinyscale::Tokenizer;
using tinyscale::TokenizerData;
using tinyscale::TokenizerKind;
using tinyscale::TokenType;

inline void add(TokenizerData& data, const std::string& token, TokenType type) {
  data.tokens.push_back(token);
  data.types.push_back(static_cast<std::int32_t>(type));
}

// Byte-level BPE: all bytes, then words grown from the left.
inline Tokenizer byte_pairs(const char* pre) {
  TokenizerData data;
  data.pre = pre;
  for (int byte = 0; byte < 256; ++byte) {
    add(data, tinyscale::detail::spelled_bytes(std::string(1, static_cast<char>(byte))),
        TokenType::normal);
  }
  for (const char* word : {" the", "ing", "'s", "123", "\n\n", "    ", "\xC3\xA9", "\xE6\x97\xA5",
                           "ab", "abab", "ababab", "<|"}) {
    const std::string bytes = word;
    for (std::size_t n = 2; n <= bytes.size(); ++n) {
      const std::string left = tinyscale::detail::spelled_bytes(bytes.substr(0, n - 1));
      const std::string right = tinyscale::detail::spelled_bytes(bytes.substr(n - 1, 1));
      bool there = false;
      for (const std::string& token : data.tokens) {
        there = there || token == left + right;
      }
      if (!there) {
        add(data, left + right, TokenType::normal);
        data.merges.push_back(left + " " + right);
      }
    }
  }
  add(data, "<|endoftext|>", TokenType::control);
  data.bos = data.eos = static_cast<std::int64_t>(data.tokens.size()) - 1;
  add(data, "<|user|>", TokenType::user_defined);
  return tinyscale::make_tokenizer(data);
}

inline TokenizerData pieces(TokenizerKind kind) {
  TokenizerData data;
  data.kind = kind;
  add(data, "<unk>", TokenType::unknown);
  add(data, "<s>", TokenType::control);
  add(data, "</s>", TokenType::control);
  data.unknown = 0, data.bos = 1, data.eos = 2;
  for (int byte = 0; byte < 256; ++byte) {
    const char digits[] = "0123456789ABCDEF";
    add(data, std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">", TokenType::byte);
  }
  const std::string mark = "\xE2\x96\x81";
  for (const std::string& piece : {mark,
                                   std::string("t"),
                                   std::string("h"),
                                   std::string("e"),
                                   std::string("a"),
                                   std::string("b"),
                                   std::string("\xC3\xA9"),
                                   std::string("\xE6\x97\xA5"),
                                   mark + "t",
                                   std::string("he"),
                                   mark + "the",
                                   mark + mark,
                                   mark + mark + mark + mark,
                                   std::string("ab"),
                                   std::string("ba"),
                                   std::string("abab"),
                                   std::string("th"),
                                   std::string("the"),
                                   std::string("\xE6\x97\xA5\xC3\xA9"),
                                   std::string("bab")}) {
    add(data, piece, TokenType::normal);
  }
  add(data, "[user]", TokenType::user_defined);
  if (kind == TokenizerKind::scored_pieces) {
    for (std::size_t i = 0; i < data.tokens.size(); ++i) {
      data.scores.push_back(i < 267 ? 0.0f : -static_cast<float>(i * 7 % 11));
    }
  } else {
    data.merges = {mark + " t",   "h e",
                   mark + "t he", mark + " " + mark,
                   "a b",         "b a",
                   "ab ab",       "t h",
                   "th e",        mark + mark + " " + mark + mark};
  }
  return data;
}

// Scored pieces without any cleverness, of a text with the space before it, which is a character by
// itself: the pair of the highest score merges, the leftmost first.
inline std::vector<std::int32_t> by_scanning(const TokenizerData& data, const std::string& text) {
  std::vector<std::int32_t> ids;
  const auto token_of = [&data](const std::string& wanted) {
    for (std::size_t i = 259; i + 1 < data.tokens.size(); ++i) {
      if (tinyscale::detail::with_spaces(data.tokens[i]) == wanted) {
        return static_cast<std::int32_t>(i);
      }
    }
    return -1;
  };
  for (std::size_t at = 0; at < text.size();) {
    std::size_t size = 1;
    while (at > 0 && size < 4 && at + size < text.size() && (text[at + size] & 0xC0) == 0x80) {
      ++size;
    }
    const std::int32_t id = token_of(text.substr(at, size));
    for (std::size_t i = 0; i < (id < 0 ? size : 1); ++i) {
      ids.push_back(id < 0 ? 3 + static_cast<unsigned char>(text[at + i]) : id);
    }
    at += size;
  }
  const auto text_of = [&data](std::int32_t id) {  // bytes as spelled: they merge with nothing
    const std::string& token = data.tokens[static_cast<std::size_t>(id)];
    return id < 259 ? token : tinyscale::detail::with_spaces(token);
  };
  for (;;) {
    std::size_t best = 0;
    std::int32_t merged = -1;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const std::int32_t id = token_of(text_of(ids[i]) + text_of(ids[i + 1]));
      if (id >= 0 && (merged < 0 || data.scores[static_cast<std::size_t>(id)] >
                                        data.scores[static_cast<std::size_t>(merged)])) {
        best = i;
        merged = id;
      }
    }
    if (merged < 0) {
      return ids;
    }
    ids[best] = merged;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

inline const Tokenizer& tokenizer(unsigned which) {
  static const Tokenizer all[] = {
      Tokenizer(),
      byte_pairs("gpt-2"),
      byte_pairs("llama-bpe"),
      byte_pairs("qwen2"),
      byte_pairs("smollm"),
      byte_pairs("none"),
      tinyscale::make_tokenizer(pieces(TokenizerKind::scored_pieces)),
      tinyscale::make_tokenizer(pieces(TokenizerKind::merged_pieces)),
      Tokenizer(std::vector<std::string>{"\n", " ", "a", "b", "\xC3\xA9", "\xE6\x97\xA5"})};
  return all[which];
}

}  // namespace fuzz_encode

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) {
    return 0;
  }
  const unsigned which = data[0] % 9U, how = data[1];
  const tinyscale::Tokenizer& tokenizer = fuzz_encode::tokenizer(which);
  return fuzz::one_input(size, 512, [&] {
    const std::string text = fuzz::text_of(data + 2, size - 2);
    tinyscale::EncodeOptions options;
    options.bos = tokenizer.bos() >= 0 && how % 2 == 1 ? 1 : -1;
    options.eos = tokenizer.eos() >= 0 && how / 2 % 2 == 1 ? 1 : -1;
    options.parse_special = how / 4 % 2 == 1;
    const std::vector<std::int32_t> ids = tokenizer.encode(text, options);
    const bool pieces = which == 6 || which == 7;  // U+2581 is a space to them
    const std::string same = pieces ? tinyscale::detail::with_spaces(text) : text;
    const std::string back = fuzz::decode_all(tokenizer, ids);
    fuzz::promise(options.parse_special || back == same, "a text comes back");
    if (which == 6 && text.size() <= 256 && text.find("[user]") == std::string::npos) {
      options = tinyscale::EncodeOptions();
      options.bos = 0;
      const std::string spaced = text.empty() ? "" : " " + same;
      fuzz::promise(
          tokenizer.encode(text, options) == fuzz_encode::by_scanning(tokenizer.data(), spaced),
          "pieces are those of the plain rule");
    }
  });
}
