// NumPy's .npy, and shards of token ids.
#include "fuzz.hpp"
#ifndef FUZZ_REPLAY
#include "tinyscale/model/npy.hpp"
#endif

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const tinyscale::Shared<tinyscale::MappedFile> file = fuzz::file_of(data, size);
  fuzz::one_input(size, 64, [&] {
    const tinyscale::Tensor read = tinyscale::parse_npy(file->data(), size, "f.npy");
    fuzz::promise(static_cast<std::size_t>(read.count()) <= size, "a number takes a byte");
  });
  return fuzz::one_input(size, 64, [&] {
    const std::vector<std::int32_t> ids = tinyscale::parse_token_shard(file->data(), size, "f.bin");
    for (const std::int32_t id : ids) {
      fuzz::promise(id >= 0 && id < 65536, "an id is a uint16");
    }
  });
}
