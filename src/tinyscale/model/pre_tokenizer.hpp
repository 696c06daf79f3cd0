#pragma once
// Where byte-level tokenizers cut a text before they merge: into words, numbers, signs and white
// space. Each cutter takes the longest match of a published pattern, written out as an automaton:
//   GPT-2     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   Llama 3   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
//             ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+      (Qwen 2: \p{N} alone)
//   digits    every \p{N} a piece of its own, then GPT-2's between them (StarCoder, SmolLM)
//   signs     llama.cpp's where a GGUF file names none: [\p{P}$+<=>^~|]+, then GPT-2's between
//             them, then \p{N}+, and of these [0-9][0-9][0-9]  (Falcon: ` too, not \p{N}+)
//   coder     DeepSeek-Coder: [\r\n], \s?\p{L}+, \s?\p{P}+, of all these far characters, \p{N}

#include <cstddef>  // size_t
#include <cstdint>  // uint32_t
#include <cstring>  // strchr
#include <string>   // string

#include "tinyscale/base/text.hpp"
#include "tinyscale/model/unicode_classes.hpp"

namespace tinyscale {

enum class PreTokenizer { none, gpt2, llama3, qwen2, digits, signs, falcon, coder };

namespace detail {

struct PreTokenizerName {
  const char* name;
  PreTokenizer pre;
};

// The names that GGUF files give in tokenizer.ggml.pre, up to a null.
inline const PreTokenizerName* pre_tokenizers() {
  static const PreTokenizerName table[] = {
      {"gpt-2", PreTokenizer::gpt2},       {"default", PreTokenizer::signs},
      {"phi-2", PreTokenizer::gpt2},       {"olmo", PreTokenizer::gpt2},
      {"mpt", PreTokenizer::gpt2},         {"roberta-bpe", PreTokenizer::gpt2},
      {"jina-es", PreTokenizer::gpt2},     {"jina-de", PreTokenizer::gpt2},
      {"llama-bpe", PreTokenizer::llama3}, {"llama3", PreTokenizer::llama3},
      {"llama-v3", PreTokenizer::llama3},  {"falcon3", PreTokenizer::llama3},
      {"dbrx", PreTokenizer::llama3},      {"qwen2", PreTokenizer::qwen2},
      {"stablelm2", PreTokenizer::qwen2},  {"smollm", PreTokenizer::digits},
      {"starcoder", PreTokenizer::digits}, {"refact", PreTokenizer::digits},
      {"command-r", PreTokenizer::digits}, {"deepseek-coder", PreTokenizer::coder},
      {"falcon", PreTokenizer::falcon},    {"deepseek-r1-qwen", PreTokenizer::qwen2},
      {"pixtral", PreTokenizer::llama3},   {"megrez", PreTokenizer::qwen2},
      {"none", PreTokenizer::none},        {nullptr, PreTokenizer::none}};
  return table;
}

// The pre-tokenizer of that name ("": GPT-2's), -1 when it is not known.
inline int find_pre_tokenizer(const std::string& name) {
  for (const PreTokenizerName* row = pre_tokenizers(); row->name != nullptr; ++row) {
    if (name.empty() || name == row->name) {
      return static_cast<int>(row->pre);
    }
  }
  return -1;
}

inline std::string pre_tokenizer_names() {
  std::string out;
  for (const PreTokenizerName* row = pre_tokenizers(); row->name != nullptr; ++row) {
    out += (out.empty() ? "" : ", ") + std::string(row->name);
  }
  return out;
}

// Reads characters of one text; `end` is where the text, or the piece of it, ends.
struct WordCutter {
  const char* text;
  std::size_t end;

  std::size_t size_at(std::size_t at) const { return code_point(text, at, end).size; }
  CharacterClass class_at(std::size_t at) const {
    return character_class(code_point(text, at, end).code);
  }
  bool is(std::size_t at, CharacterClass which) const { return at < end && class_at(at) == which; }
  // The first place from `at` on whose character is not of the class.
  std::size_t skip(std::size_t at, CharacterClass which) const {
    while (at < end) {
      const CodePoint c = code_point(text, at, end);
      if (character_class(c.code) != which) {
        break;
      }
      at += c.size;
    }
    return at;
  }
  bool line_end(std::size_t at) const { return at < end && (text[at] == '\r' || text[at] == '\n'); }
  std::size_t skip_line_ends(std::size_t at) const {
    while (line_end(at)) {
      ++at;
    }
    return at;
  }

  // The end of 's 't 're 've 'm 'll 'd at `at`, where an apostrophe stands; else `at`.
  std::size_t contraction(std::size_t at, bool any_case) const {
    const auto letter = [&](std::size_t i) -> char {
      const char c = at + i < end ? text[at + i] : '\0';
      return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    };
    const char a = letter(1), b = letter(2);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') {
      return at + 2;
    }
    if (((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l')) {
      return at + 3;
    }
    if (any_case && a == '\xC5' && b == '\xBF') {  // the long s folds to s
      return at + 3;
    }
    return at;
  }

  // White space: all of it at the end of the text, else all but the last, which goes with the word
  // behind it; a single one stands alone.
  std::size_t white_space(std::size_t at) const {
    std::size_t last = at, next = at + size_at(at);
    while (is(next, CharacterClass::space)) {
      last = next;
      next += size_at(next);
    }
    return next == end || last == at ? next : last;
  }

  std::size_t gpt2(std::size_t at) const {
    if (text[at] == '\'') {
      const std::size_t found = contraction(at, false);
      if (found > at) {
        return found;
      }
    }
    const std::size_t word = text[at] == ' ' && at + 1 < end ? at + 1 : at;
    const CharacterClass which = class_at(word);
    return which == CharacterClass::space ? white_space(at) : skip(word, which);
  }

  // `most`: how many digits make one piece.
  std::size_t llama3(std::size_t at, int most) const {
    if (text[at] == '\'') {
      const std::size_t found = contraction(at, true);
      if (found > at) {
        return found;
      }
    }
    const CharacterClass which = class_at(at);
    const std::size_t second = at + size_at(at);
    if (which == CharacterClass::letter) {
      return skip(second, which);
    }
    if (which == CharacterClass::number) {
      std::size_t next = second;
      for (int i = 1; i < most && is(next, which); ++i) {
        next += size_at(next);
      }
      return next;
    }
    if (!line_end(at) && is(second, CharacterClass::letter)) {
      return skip(second, CharacterClass::letter);
    }
    const std::size_t sign = text[at] == ' ' ? second : at;
    if (is(sign, CharacterClass::other)) {
      return skip_line_ends(skip(sign, CharacterClass::other));
    }
    std::size_t lines = at;  // behind the last line end of this white space
    for (std::size_t i = at; is(i, CharacterClass::space); i += size_at(i)) {
      lines = line_end(i) ? i + 1 : lines;
    }
    return lines > at ? lines : white_space(at);
  }

  bool three_digits(std::size_t at) const {
    const auto digit = [&](std::size_t i) { return i < end && text[i] >= '0' && text[i] <= '9'; };
    return digit(at) && digit(at + 1) && digit(at + 2);
  }
  // Falcon: the backquote is a sign, and a space goes with the number behind it.
  std::size_t signs(std::size_t at, bool falcon) const {
    const auto sign = [&](std::size_t i) {
      return is_sign(code_point(text, i, end).code) || (falcon && text[i] == '`');
    };
    std::size_t next = at;
    while (next < end && sign(next)) {
      next += size_at(next);
    }
    const bool number = is(at, CharacterClass::number);
    const bool behind_space = text[at] == ' ' && is(at + 1, CharacterClass::number);
    if (next > at || (behind_space && !falcon)) {
      return next > at ? next : at + 1;
    }
    if (number || behind_space) {
      next += number ? 0 : 1;
      while (is(next, CharacterClass::number) && !three_digits(next)) {
        next += size_at(next);
      }
      return next == at ? at + 3 : next;
    }
    // White space and what follows it, no further than one piece may need.
    std::size_t last = skip(at, CharacterClass::space);
    const std::size_t first = last;
    const CharacterClass which = last < end ? class_at(last) : CharacterClass::other;
    while (last < end && !sign(last) && class_at(last) == which &&
           (last == first || which != CharacterClass::number)) {
      last += size_at(last);
    }
    return WordCutter{text, last}.gpt2(at);
  }

  // Runs of far characters, U+0800 to U+9FA5 and Hangul, and each number are apart; what is between
  // are line ends, then letters, then punctuation, each with a space before.
  std::size_t coder(std::size_t at) const {
    enum Kind { other, letter, punctuation, line };
    const auto kind = [&](std::size_t i) {
      const std::uint32_t c = i < end ? code_point(text, i, end).code : '\n';
      const bool marks = is_sign(c) && (c > 127 || std::strchr("$+<=>^~|", text[i]) == nullptr);
      return c == '\n' || c == '\r'                         ? line
             : marks                                        ? punctuation
             : character_class(c) == CharacterClass::letter ? letter
                                                            : other;
    };
    const auto begins = [&](std::size_t i) {  // a piece of that kind
      const Kind own = kind(i), next = is(i, CharacterClass::space) ? kind(i + size_at(i)) : other;
      return own == other && next != line ? next : own;
    };
    const auto part = [&](std::size_t i) {
      const std::uint32_t c = code_point(text, i, end).code;
      const CharacterClass is_of = character_class(c);
      const bool cjk = (c >= 0x800 && c <= 0x9FA5) || (c >= 0xAC00 && c <= 0xD7FF);
      return is_of == CharacterClass::number ? 2 : cjk && is_of != CharacterClass::space ? 1 : 0;
    };
    const Kind piece = begins(at);
    std::size_t next = at + size_at(at);
    while (piece != line && part(at) < 2 && next < end && part(next) == part(at) &&
           (piece == other ? begins(next) : kind(next)) == piece) {
      next += size_at(next);
    }
    return next;
  }
};

// The end of the piece that begins at `at`, which is before `end`. A run of white space may be
// looked through twice, nothing more often.
inline std::size_t next_piece(PreTokenizer pre, const char* text, std::size_t at, std::size_t end) {
  const WordCutter cutter{text, end};
  switch (pre) {
    case PreTokenizer::none: return end;
    case PreTokenizer::gpt2: return cutter.gpt2(at);
    case PreTokenizer::llama3: return cutter.llama3(at, 3);
    case PreTokenizer::qwen2: return cutter.llama3(at, 1);
    case PreTokenizer::signs: return cutter.signs(at, false);
    case PreTokenizer::falcon: return cutter.signs(at, true);
    case PreTokenizer::coder: return cutter.coder(at);
    case PreTokenizer::digits: break;
  }
  if (cutter.is(at, CharacterClass::number)) {
    return at + cutter.size_at(at);
  }
  const std::size_t behind = cutter.skip(at, CharacterClass::space);
  return behind > at && cutter.is(behind, CharacterClass::number) ? behind : cutter.gpt2(at);
}

}  // namespace detail
}  // namespace tinyscale
