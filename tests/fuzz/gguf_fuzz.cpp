// GGUF: keys, tensors, the config and the vocabulary they make, every tensor as float32, the model
// from the generic loader, a step.
#include "model_step.hpp"
#ifndef FUZZ_REPLAY
#include "tinyscale/base/save_file.hpp"
#include "tinyscale/compute/block_quantize.hpp"
#include "tinyscale/model/gguf_model.hpp"

#include "../gguf_write.hpp"
#endif

namespace fuzz_gguf {

using tinyscale::Gguf;

inline void find_all(const Gguf& file) {
  for (const tinyscale::GgufValue& value : file.metadata) {
    fuzz::promise(file.find(value.key) == &value, "each key is found by its name");
    try {
      file.whole(value.key, -100, 100);
    } catch (const tinyscale::Error&) {
    }
    try {
      file.texts(value.key);
    } catch (const tinyscale::Error&) {
    }
    try {
      file.number_or(value.key, -1e30, 1e30, 0);
    } catch (const tinyscale::Error&) {
    }
  }
  for (const tinyscale::GgufTensor& tensor : file.tensors) {
    fuzz::promise(file.tensor(tensor.name) == &tensor, "each tensor is found by its name");
    if (tensor.readable) {
      tinyscale::read_gguf_tensor(file, tensor);
    }
  }
}

inline void read_model(const Gguf& file) {
  const tinyscale::ModelConfig config = tinyscale::gguf_config(file);
  config.validate();
  for (const tinyscale::GgufPart& part : tinyscale::gguf_parts(file, config)) {
    if (part.tensor->readable) {
      try {
        tinyscale::read_gguf_part(file, part);
      } catch (const tinyscale::Error&) {  // a part that is no whole number of blocks
      }
    }
  }
}

}  // namespace fuzz_gguf

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const tinyscale::Shared<tinyscale::MappedFile> bytes = fuzz::file_of(data, size);
  fuzz::one_input(size, 256, [&] {
    const tinyscale::Gguf file = tinyscale::parse_gguf(bytes);
    fuzz_gguf::find_all(file);
    try {
      tinyscale::gguf_vocabulary(file);
    } catch (const tinyscale::Error&) {
    }
    fuzz_gguf::read_model(file);
  });
  return fuzz::one_input(size, 512, [&] {
    if (size > 4 && std::memcmp(data, "GGUF", 4) == 0) {
      fuzz::whole_file(tinyscale::detail::parse_weights(bytes, "f.gguf"), data, size);
    }
  });
}

#ifndef FUZZ_REPLAY
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace fuzz_gguf {

inline std::string written(const Gguf& file) {
  std::string out = "GGUF", data;
  append_word(out, file.version);
  append_long(out, file.tensors.size());
  append_long(out, file.metadata.size());
  for (const tinyscale::GgufValue& value : file.metadata) {
    append_gguf_value(out, value);
  }
  const std::size_t align = static_cast<std::size_t>(file.alignment);
  for (const tinyscale::GgufTensor& tensor : file.tensors) {
    append_gguf_text(out, tensor.name);
    append_word(out, static_cast<std::uint32_t>(tensor.shape.size()));
    for (int i = tensor.shape.size(); i > 0; --i) {
      append_long(out, static_cast<std::uint64_t>(tensor.shape[i - 1]));
    }
    append_word(out, tensor.type);
    data.append((align - data.size() % align) % align, '\0');
    append_long(out, data.size());
    const tinyscale::detail::GgufType* const type = tinyscale::detail::gguf_type(tensor.type);
    const std::size_t blocks = static_cast<std::size_t>(tensor.shape.count() / type->elements);
    const std::size_t bytes = blocks * static_cast<std::size_t>(type->bytes);
    const std::size_t given = bytes < tensor.bytes ? bytes : static_cast<std::size_t>(tensor.bytes);
    data.append(reinterpret_cast<const char*>(tensor.data), given);
    data.append(bytes - given, '\x35');
  }
  out.append((align - out.size() % align) % align, '\0');
  return out + data;
}

// One thing of the file becomes another.
inline void change(Gguf& file, unsigned seed) {
  const unsigned which = seed / 8;
  const std::int64_t n = seed / 64 % 20;
  if (seed % 8 < 4 && !file.metadata.empty()) {
    tinyscale::GgufValue& value = file.metadata[which % file.metadata.size()];
    if (seed % 8 == 0) {
      value = gguf_whole(value.key, n);
    } else if (seed % 8 == 1) {
      value = file.metadata.back();
      file.metadata.pop_back();
    } else if (seed % 8 == 2) {
      value = gguf_wholes(value.key, {static_cast<std::int32_t>(n), 1, 2});
    } else if (!value.bytes.empty()) {
      std::uint8_t* const at = reinterpret_cast<std::uint8_t*>(&value.bytes[0]);
      if (value.item != tinyscale::GgufKind::text && value.item != tinyscale::GgufKind::list) {
        LLVMFuzzerMutate(at, value.bytes.size(), value.bytes.size());
      } else if (value.kind == tinyscale::GgufKind::text) {
        value.bytes.resize(LLVMFuzzerMutate(at, value.bytes.size(), value.bytes.size()));
      }
    }
  } else if (!file.tensors.empty()) {
    tinyscale::GgufTensor& tensor = file.tensors[which % file.tensors.size()];
    if (seed % 8 == 4 && !tensor.shape.empty()) {
      tensor.shape.set(seed / 32 % 2 == 0 ? 0 : -1, 1 + n * (seed / 2048 % 3 == 0 ? 32 : 1));
    } else if (seed % 8 == 5) {
      tensor = file.tensors.back();
      file.tensors.pop_back();
    } else if (seed % 8 == 6) {
      tensor.type = tinyscale::detail::gguf_type(seed / 64 % 41) ? seed / 64 % 41 : 0;
      const int elements = tinyscale::detail::gguf_type(tensor.type)->elements;
      if (!tensor.shape.empty() && tensor.shape[-1] % elements != 0) {
        tensor.shape.set(-1, elements);
      }
    } else {
      tensor.name = file.tensors[seed / 64 % file.tensors.size()].name;
      LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(&tensor.name[0]), tensor.name.size(),
                       tensor.name.size());
    }
  }
}

}  // namespace fuzz_gguf

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  if (seed % 4 == 0) {
    return LLVMFuzzerMutate(data, size, most);
  }
  try {
    tinyscale::Gguf file = tinyscale::parse_gguf(data, size, "f");
    fuzz_gguf::change(file, seed / 4);
    const std::string out = fuzz_gguf::written(file);
    if (out.size() <= most) {
      std::memcpy(data, out.data(), out.size());
      return out.size();
    }
  } catch (const tinyscale::Error&) {
  }
  return LLVMFuzzerMutate(data, size, most);
}
#endif
