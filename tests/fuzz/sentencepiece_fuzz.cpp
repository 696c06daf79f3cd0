// SentencePiece's .model.
#include "tokenizer_use.hpp"
#ifndef FUZZ_REPLAY
#include "tinyscale/model/sentencepiece.hpp"
#endif

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::one_input(size, 512, [&] {
    const tinyscale::Shared<tinyscale::MappedFile> file = fuzz::file_of(data, size);
    fuzz::use_tokenizer(tinyscale::parse_sentencepiece(file->data(), size, "f.model"));
  });
}
