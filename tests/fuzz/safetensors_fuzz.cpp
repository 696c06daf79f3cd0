// safetensors: header, ranges, names of four kinds of files, config and tokenizer in the metadata,
// tensors, the model, a step.
#include "model_step.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::one_input(size, 512, [&] {
    const tinyscale::Safetensors file =
        tinyscale::parse_safetensors(fuzz::file_of(data, size), "f.safetensors");
    for (const tinyscale::SafetensorsEntry& entry : file.entries) {
      const tinyscale::SafetensorsEntry* const found = file.find(entry.name);
      fuzz::promise(found == &entry, "each tensor is found by its name");
      try {
        file.read(entry);
      } catch (const tinyscale::Error&) {  // integers
      }
    }
    fuzz::whole_file(tinyscale::safetensors_weights(file), data, size);
  });
}

#ifndef FUZZ_REPLAY
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace fuzz_safetensors {

// The largest end of a range in the text of a header.
inline std::size_t described(const std::string& json) {
  std::size_t end = 0;
  for (std::size_t at = json.find("data_offsets"); at != std::string::npos;
       at = json.find("data_offsets", at + 1)) {
    const std::size_t comma = json.find(',', at);
    const std::size_t n =
        comma == std::string::npos ? 0 : std::strtoul(json.c_str() + comma + 1, nullptr, 10);
    end = n > end ? n : end;
  }
  return end;
}

}  // namespace fuzz_safetensors

// The header or the data alone changes; then its length, and mostly the file's, are made right.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  std::uint64_t n = 0;
  std::memcpy(&n, data, size < 8 ? size : 8);
  if (size < 8 || n > size - 8 || seed % 16 == 0) {
    return LLVMFuzzerMutate(data, size, most);
  }
  std::string json = fuzz::text_of(data + 8, static_cast<std::size_t>(n));
  std::string rest = fuzz::text_of(data + 8 + n, size - 8 - static_cast<std::size_t>(n));
  std::string& part = seed % 4 == 1 && !rest.empty() ? rest : json;
  const std::size_t old = part.size();
  part.resize(old + 64 < most ? old + 64 : old);
  part.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(&part[0]), old, part.size()));
  const std::size_t end = fuzz_safetensors::described(json);
  if (seed % 8 > 1 && end < most) {
    rest.resize(end, '\x3c');
  }
  if (8 + json.size() + rest.size() > most) {
    return size;
  }
  n = json.size();
  std::memcpy(data, &n, 8);
  std::memcpy(data + 8, json.data(), json.size());
  std::memcpy(data + 8 + json.size(), rest.data(), rest.size());
  return 8 + json.size() + rest.size();
}
#endif
