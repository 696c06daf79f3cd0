// llama2.c's weights, all versions: header, layout, tensors, the model, a step.
#include "model_step.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::one_input(size, 128, [&] {
    fuzz::whole_file(tinyscale::parse_llama2c(fuzz::file_of(data, size), "f.bin"), data, size);
  });
}

#ifndef FUZZ_REPLAY
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

// Sizes follow from the header: mostly the file is made as long as its header says.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  const std::size_t head = size < 41 ? size : 41;
  if (seed % 4 == 0 || head < 28) {
    size = LLVMFuzzerMutate(data, size, most);
  } else if (seed % 4 == 1) {
    LLVMFuzzerMutate(data, head, head);
  } else {
    const std::size_t at = seed / 4 % 9 * 4;  // a number of the header becomes small
    if (at + 4 <= head) {
      const std::int32_t n = static_cast<std::int32_t>(seed / 36 % 20);
      std::memcpy(data + at, &n, 4);
    }
  }
  if (seed % 8 < 2) {
    return size;
  }
  namespace detail = tinyscale::detail;
  try {
    if (size < 256 && detail::has_llama2c_magic(data, size) && most >= 256) {
      std::memset(data + size, 0, 256 - size);
      size = 256;
    }
    const tinyscale::Llama2cHeader h = detail::llama2c_header(data, size, "");
    detail::check_llama2c(h, "");
    const std::int64_t bytes =
        detail::llama2c_bytes(detail::llama2c_config(h, "", ""), h.version, h.group_size);
    if (bytes <= static_cast<std::int64_t>(most)) {
      for (std::size_t i = size; i < static_cast<std::size_t>(bytes); ++i) {
        data[i] = data[i % 28 + 28 < size ? i % 28 + 28 : i % size];
      }
      size = static_cast<std::size_t>(bytes);
    }
  } catch (const tinyscale::Error&) {
  }
  return size;
}
#endif
