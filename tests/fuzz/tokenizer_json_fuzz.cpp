// tokenizer.json of Hugging Face, and the tokenizer in the metadata of this library's files: what
// is accepted comes back from that metadata.
#include "tokenizer_use.hpp"
#ifndef FUZZ_REPLAY
#include "tinyscale/model/hugging_face_tokenizer.hpp"
#include "tinyscale/model/tokenizer_json.hpp"
#endif

namespace fuzz_tokenizer_json {

inline void check(const tinyscale::Tokenizer& tokenizer) {
  fuzz::use_tokenizer(tokenizer);
  const std::string json = tinyscale::detail::tokenizer_json(tokenizer);
  try {
    fuzz::promise(tinyscale::detail::tokenizer_from_json(json, "") == tokenizer,
                  "a tokenizer in metadata comes back");
  } catch (const tinyscale::Error& error) {
    fuzz::promise(false, std::string("a tokenizer in metadata is read: ") + error.what());
  }
  std::string file;
  try {
    file = tinyscale::hugging_face_json(tokenizer);
  } catch (const tinyscale::Error&) {  // scores, tokens twice
    return;
  }
  fuzz::use_tokenizer(tinyscale::parse_hugging_face_tokenizer(file, "again"));
}

}  // namespace fuzz_tokenizer_json

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text = fuzz::text_of(data, size);
  fuzz::one_input(size, 1024, [&] {
    fuzz_tokenizer_json::check(tinyscale::parse_hugging_face_tokenizer(text, "f"));
  });
  return fuzz::one_input(size, 1024, [&] {
    fuzz_tokenizer_json::check(tinyscale::detail::tokenizer_from_json(text, "f: "));
  });
}
