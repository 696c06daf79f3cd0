// GPT-2's vocab.json, up to the first zero byte, and merges.txt behind it.
#include "tokenizer_use.hpp"
#ifndef FUZZ_REPLAY
#include "tinyscale/model/tokenizer_files.hpp"
#endif

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::one_input(size, 512, [&] {
    const std::string all = fuzz::text_of(data, size);
    const std::size_t end = all.find('\0');
    fuzz::use_tokenizer(tinyscale::parse_gpt2_tokenizer(
        all.substr(0, end), end == std::string::npos ? "" : all.substr(end + 1), "f"));
  });
}
