// model.safetensors.index.json, up to the first zero byte, and one shard behind it: what the index
// says of the shard is checked.
#include "fuzz.hpp"
#ifndef FUZZ_REPLAY
#include "tinyscale/model/safetensors_model.hpp"
#endif

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace detail = tinyscale::detail;
  return fuzz::one_input(size, 512, [&] {
    std::size_t end = 0;
    while (end < size && data[end] != 0) {
      ++end;
    }
    const detail::ShardIndex index = detail::read_shard_index(fuzz::text_of(data, end), "f: ");
    const detail::SortedNames tensors(index.tensors), shards(index.shards);
    for (const std::string& shard : index.shards) {
      fuzz::promise(shard.find('/') == std::string::npos && shard != ".." && !shard.empty(),
                    "a shard is in the folder of its index");
      fuzz::promise(index.shards[shards.find(shard)] == shard, "a shard is found by its name");
    }
    if (end + 1 < size) {
      const tinyscale::Safetensors file = tinyscale::parse_safetensors(
          fuzz::file_of(data + end + 1, size - end - 1), "f.safetensors");
      detail::check_shard(file, index.shards[0], index, tensors, "f: ");
    }
  });
}
