// llama2.c's tokenizer.bin, for a vocabulary that fits its records or nearly.
#include "tokenizer_use.hpp"
#ifndef FUZZ_REPLAY
#include "tinyscale/model/tokenizer_files.hpp"
#endif

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const tinyscale::Shared<tinyscale::MappedFile> file = fuzz::file_of(data, size);
  std::int64_t records = 0;
  for (std::size_t at = 4; size >= 8 && at <= size - 8; ++records) {
    std::int32_t length = 0;
    std::memcpy(&length, data + at + 4, 4);
    at += 8 + (length > 0 && length < 4096 ? static_cast<std::size_t>(length) : 0);
  }
  for (const std::int64_t vocabulary : {records, records + 1}) {
    fuzz::one_input(size, 512, [&] {
      fuzz::use_tokenizer(
          tinyscale::parse_llama2c_tokenizer(file->data(), size, vocabulary, "f.bin"));
    });
  }
  return 0;
}
