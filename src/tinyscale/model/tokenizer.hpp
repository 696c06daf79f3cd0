#pragma once
// Text to token numbers and back, one token a character (code point) or one a byte.
// A character's id is its rank in the sorted vocabulary, a byte's id its value.

#include <algorithm>  // max
#include <cstddef>    // size_t
#include <cstdint>    // int32_t
#include <string>     // string
#include <utility>    // move
#include <vector>     // vector

#include "tinyscale/base/error.hpp"

namespace tinyscale {

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

// Bytes of the UTF-8 character that begins at `at`; 0 when the bytes there are not UTF-8.
inline std::size_t character_size(const std::string& text, std::size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  const std::size_t size = first < 0x80                     ? 1
                           : first >= 0xC2 && first < 0xE0  ? 2
                           : first >= 0xE0 && first < 0xF0  ? 3
                           : first >= 0xF0 && first <= 0xF4 ? 4
                                                            : 0;
  if (size == 0 || at + size > text.size()) {
    return 0;
  }
  for (std::size_t i = 1; i < size; ++i) {
    if ((static_cast<unsigned char>(text[at + i]) & 0xC0) != 0x80) {
      return 0;
    }
  }
  return size;
}

}  // namespace detail

class Tokenizer {
 public:
  enum class Kind { characters, bytes };

  Tokenizer() = default;  // bytes
  // Characters: the vocabulary in ascending byte order, each once.
  explicit Tokenizer(std::vector<std::string> characters)
      : kind_(Kind::characters), characters_(std::move(characters)) {}

  Kind kind() const { return kind_; }
  const std::vector<std::string>& characters() const { return characters_; }
  std::int64_t vocabulary() const {
    return kind_ == Kind::bytes ? 256 : static_cast<std::int64_t>(characters_.size());
  }
  std::string text() const {
    return kind_ == Kind::bytes ? "bytes (256)"
                                : detail::cat({"characters (", vocabulary(), " distinct)"});
  }
  bool operator==(const Tokenizer& other) const {
    return kind_ == other.kind_ && characters_ == other.characters_;
  }

  std::vector<std::int32_t> encode(const std::string& text) const;
  std::string decode(const std::vector<std::int32_t>& ids) const;

 private:
  Kind kind_ = Kind::bytes;
  std::vector<std::string> characters_;
};

// A character that the vocabulary lacks is an Error.
inline std::vector<std::int32_t> Tokenizer::encode(const std::string& text) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size());
  std::vector<std::int32_t> ascii(128, -1);  // the common case without a search
  for (std::size_t i = 0; i < characters_.size(); ++i) {
    const auto first = static_cast<unsigned char>(characters_[i][0]);
    if (first < 128) {
      ascii[first] = static_cast<std::int32_t>(i);
    }
  }
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (kind_ == Kind::bytes) {
      ids.push_back(byte);
      ++at;
      continue;
    }
    const std::size_t size = std::max<std::size_t>(1, detail::character_size(text, at));
    std::int32_t id = size == 1 && byte < 128 ? ascii[byte] : -1;
    if (size > 1) {
      const std::size_t found = detail::place_of(text.substr(at, size), characters_);
      if (found < characters_.size() && characters_[found] == text.substr(at, size)) {
        id = static_cast<std::int32_t>(found);
      }
    }
    if (id < 0) {
      detail::fail({"encode: the character \"", text.substr(at, size), "\" at byte ",
                    static_cast<std::int64_t>(at), " is not among the ", vocabulary(),
                    " of the training text; leave it out"});
    }
    ids.push_back(id);
    at += size;
  }
  return ids;
}

// An id that stands for nothing (a model may have a larger vocabulary than the text) gives "?".
inline std::string Tokenizer::decode(const std::vector<std::int32_t>& ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= vocabulary()) {
      text += '?';
    } else if (kind_ == Kind::bytes) {
      text += static_cast<char>(static_cast<unsigned char>(id));
    } else {
      text += characters_[static_cast<std::size_t>(id)];
    }
  }
  return text;
}

namespace detail {

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

}  // namespace detail
}  // namespace tinyscale
