// What a tokenizer that was accepted is good for: texts become ids of its vocabulary and text
// again, as a whole and token by token.
#pragma once
#include "fuzz.hpp"
#ifndef FUZZ_REPLAY
#include "tinyscale/model/stream_decoder.hpp"
#include "tinyscale/model/tokenizer.hpp"
#endif

namespace fuzz {

inline std::string decode_all(const tinyscale::Tokenizer& tokenizer,
                              const std::vector<std::int32_t>& ids) {
  const std::string whole = tokenizer.decode(ids);
  std::string streamed;
  tinyscale::StreamDecoder stream(tokenizer);
  for (const std::int32_t id : ids) {
    promise(id >= 0 && id < tokenizer.vocabulary(), "an id is of the vocabulary");
    streamed += stream.next(id);
  }
  promise(streamed + stream.finish() == whole, "a stream of tokens is the text");
  return whole;
}

inline void use_tokenizer(const tinyscale::Tokenizer& tokenizer) {
  static const char* const texts[] = {
      "", "a", "ab ab</s><s>", " \n 12345 it's \xC3\xA9\xE6\x97\xA5", "\xFF\xC3 a\x80\xF0\x9F\x98"};
  for (const char* const text : texts) {
    for (int options = 0; options < 4; ++options) {
      tinyscale::EncodeOptions how;
      how.parse_special = options % 2 == 1;
      how.bos = options < 2 ? -1 : 0;
      try {
        decode_all(tokenizer, tokenizer.encode(text, how));
      } catch (const tinyscale::Error&) {  // no token spells it
      }
    }
  }
  std::vector<std::int32_t> all;
  for (std::int32_t id = 0; id < tokenizer.vocabulary() && id < 2000; ++id) {
    tokenizer.token_text(id);
    all.push_back(id);
  }
  const std::string text = decode_all(tokenizer, all);
  try {
    decode_all(tokenizer, tokenizer.encode(text.substr(0, 2000)));
  } catch (const tinyscale::Error&) {
  }
}

}  // namespace fuzz
