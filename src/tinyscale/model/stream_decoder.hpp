#pragma once
// Text as a model writes it, token by token: a character whose bytes come in several tokens is held
// back until it is whole. All that next() and finish() return, joined, is decode() of the tokens.

#include <cstddef>  // size_t
#include <cstdint>  // int32_t
#include <string>   // string
#include <utility>  // move

#include "tinyscale/model/tokenizer.hpp"

namespace tinyscale {

namespace detail {

// How many bytes at the end of the text begin a UTF-8 character that is not whole yet, 0 to 3.
inline std::size_t unfinished_bytes(const std::string& text) {
  for (std::size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0U) != 0x80U) {
      const std::size_t size = byte < 0xC2 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
      return byte < 0xF5 && size > back ? back : 0;
    }
  }
  return 0;
}

}  // namespace detail

class StreamDecoder {
 public:
  // `previous`: the token before the first, such as the prompt's last; -1: a text begins.
  explicit StreamDecoder(Tokenizer tokenizer, std::int32_t previous = -1)
      : tokenizer_(std::move(tokenizer)), previous_(previous) {}

  // The whole characters that this token completes; bytes that can be no UTF-8 pass as they are.
  std::string next(std::int32_t id) {
    held_ += tokenizer_.decode_piece(previous_, id);
    previous_ = id;
    const std::size_t whole = held_.size() - detail::unfinished_bytes(held_);
    std::string out = held_.substr(0, whole);
    held_.erase(0, whole);
    return out;
  }
  // What is still held back: a character that never became whole.
  std::string finish() {
    std::string out;
    out.swap(held_);
    return out;
  }

 private:
  Tokenizer tokenizer_;
  std::int32_t previous_;
  std::string held_;
};

}  // namespace tinyscale
