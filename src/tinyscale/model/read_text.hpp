#pragma once
// A text to learn: its tokens, of which the first 90 % train and the rest validate.

#include <cerrno>    // errno
#include <cstdint>   // int32_t
#include <cstdio>    // FILE
#include <cstring>   // strerror
#include <iostream>  // ostream
#include <string>    // string
#include <vector>    // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/model/tokenizer.hpp"
#include "tinyscale/model/train_tokenizer.hpp"

namespace tinyscale {

struct Text {
  std::string name;
  Tokenizer tokenizer;
  std::vector<std::int32_t> tokens;
  std::int64_t split = 0;  // tokens [0, split) train, the rest validate

  std::vector<std::int32_t> train() const { return {tokens.begin(), tokens.begin() + split}; }
  std::vector<std::int32_t> validation() const { return {tokens.begin() + split, tokens.end()}; }
  // "input.txt: 1,115,394 tokens, characters (65 distinct)"
  std::string text() const {
    return detail::cat({name, ": ", format_count(static_cast<double>(tokens.size())), " tokens, ",
                        tokenizer.text()});
  }
};

inline std::ostream& operator<<(std::ostream& out, const Text& text) { return out << text.text(); }

namespace detail {

// Where `character` stands, or would, among sorted ones.
inline std::size_t place_of(const std::string& character, const std::vector<std::string>& sorted) {
  std::size_t low = 0;
  for (std::size_t high = sorted.size(); low < high;) {
    const std::size_t middle = low + (high - low) / 2;
    if (sorted[middle] < character) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Characters when the text is UTF-8 with at most 256 distinct, else bytes.
inline Tokenizer tokenizer_for(const std::string& text) {
  std::vector<std::string> found;
  std::vector<int> seen(128);
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const std::size_t size = character_size(text, at);
    if (size == 0) {
      return Tokenizer();
    }
    if (byte >= 128 || !seen[byte]) {
      const std::string character = text.substr(at, size);
      const std::size_t place = place_of(character, found);
      if (place == found.size() || found[place] != character) {
        found.insert(found.begin() + static_cast<std::ptrdiff_t>(place), character);
        if (found.size() > 256) {
          return Tokenizer();
        }
      }
      if (byte < 128) {
        seen[byte] = 1;
      }
    }
    at += size;
  }
  return Tokenizer(std::move(found));
}

// A file, closed at the end of its scope.
class File {
 public:
  explicit File(std::FILE* file) : file_(file) {}
  File(File&& other) noexcept : file_(other.release()) {}
  File& operator=(File&&) = delete;
  ~File() {
    if (file_ != nullptr) {
      std::fclose(file_);
    }
  }
  std::FILE* get() const { return file_; }
  std::FILE* release() {
    std::FILE* file = file_;
    file_ = nullptr;
    return file;
  }

 private:
  std::FILE* file_;
};

inline File open_file(const std::string& path, const char* mode, const char* who) {
  File file(std::fopen(path.c_str(), mode));
  if (file.get() == nullptr) {
    fail({who, ": cannot open \"", path, "\": ", std::strerror(errno)});
  }
  return file;
}

inline std::string read_file(const std::string& path, const char* who) {
  const File file = open_file(path, "rb", who);
  std::string data;
  std::string piece(1 << 16, '\0');
  for (;;) {
    const std::size_t got = std::fread(&piece[0], 1, piece.size(), file.get());
    data.append(piece, 0, got);
    if (got < piece.size()) {
      break;
    }
  }
  if (std::ferror(file.get())) {
    fail({who, ": cannot read \"", path, "\": ", std::strerror(errno)});
  }
  return data;
}

}  // namespace detail

// How a text becomes tokens. characters: one a character when at most 256 are distinct, else bytes;
// bytes; byte_pairs: byte-level BPE of `vocabulary` tokens, trained on the first 90 % of the bytes.
struct TextOptions {
  TokenizerKind tokenizer = TokenizerKind::characters;
  std::int64_t vocabulary = 0;
};

// A text that is already in memory, by a tokenizer that is there, without BOS and EOS.
inline Text make_text(const std::string& name, const std::string& data,
                      const Tokenizer& tokenizer) {
  if (data.empty()) {
    detail::fail({"read_text: \"", name, "\" is empty; a text to learn is right"});
  }
  EncodeOptions plain;
  plain.bos = plain.eos = 0;
  Text text;
  text.name = name;
  text.tokenizer = tokenizer;
  text.tokens = tokenizer.encode(data, plain);
  text.split = static_cast<std::int64_t>(text.tokens.size()) * 9 / 10;
  return text;
}
inline Text make_text(const std::string& name, const std::string& data,
                      const TextOptions& options) {
  const bool trained = options.tokenizer == TokenizerKind::byte_pairs;
  if (trained ? options.vocabulary < 256 : options.vocabulary != 0) {
    detail::fail({"read_text: a vocabulary of ", options.vocabulary,
                  trained ? "; for byte-level BPE at least 256 is right"
                          : "; only byte-level BPE has one to choose, 0 is right"});
  }
  switch (options.tokenizer) {
    case TokenizerKind::characters: return make_text(name, data, detail::tokenizer_for(data));
    case TokenizerKind::bytes: return make_text(name, data, Tokenizer());
    case TokenizerKind::byte_pairs:
      return make_text(name, data,
                       train_tokenizer(data.substr(0, data.size() / 10 * 9), options.vocabulary));
    default: break;
  }
  detail::fail(
      {"read_text: SentencePiece tokenizers are read, not trained; characters, bytes or "
       "byte_pairs, or a tokenizer itself, is right"});
}
inline Text make_text(const std::string& name, const std::string& data) {
  return make_text(name, data, detail::tokenizer_for(data));
}

namespace detail {

// A byte order mark (EF BB BF, which some editors put before UTF-8) is left out.
inline std::string read_text_file(const std::string& path) {
  std::string data = read_file(path, "read_text");
  if (data.compare(0, 3, "\xEF\xBB\xBF") == 0) {
    data.erase(0, 3);
  }
  return data;
}

inline std::string file_name(const std::string& path) {
  return path.substr(path.find_last_of("/\\") + 1);
}

}  // namespace detail

// Characters when at most 256 are distinct, else bytes; the text prints which.
inline Text read_text(const std::string& path) {
  return make_text(detail::file_name(path), detail::read_text_file(path));
}
// As the options say, or with a tokenizer that is there.
inline Text read_text(const std::string& path, const TextOptions& options) {
  return make_text(detail::file_name(path), detail::read_text_file(path), options);
}
inline Text read_text(const std::string& path, const Tokenizer& tokenizer) {
  return make_text(detail::file_name(path), detail::read_text_file(path), tokenizer);
}

}  // namespace tinyscale
