#pragma once
// What every checkpoint gives, whatever its format: a config, perhaps a tokenizer, and tensors
// under our parameters' names (Hugging Face's Llama names). The numbers stay where they are, in the
// mapping of the file, until read_floats turns them into float32.

#include <cstdint>  // uint8_t
#include <cstring>  // memcpy
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/mapped_file.hpp"
#include "tinyscale/base/shape.hpp"
#include "tinyscale/base/sorted_names.hpp"
#include "tinyscale/compute/block_dequantize.hpp"
#include "tinyscale/compute/block_format.hpp"
#include "tinyscale/model/model_config.hpp"
#include "tinyscale/model/tokenizer.hpp"

namespace tinyscale {

// Numbers in a file. Plain ones and blocks lie row after row in `format`. Of a transposed matrix
// the file has [in, out]: our element (o, i) is its element i * stride + o. Groups of llama2.c:
// element i is codes[i] scales[i / group].
struct StoredTensor {
  std::string name;    // of our parameter
  std::string stored;  // what the file calls it
  Shape shape;         // as our parameter has it, matrices [out, in]
  std::string type;    // the file's word: "F32", "q4_0", "int8 in groups of 64"
  BlockFormat format = BlockFormat::f32;
  const std::uint8_t* data = nullptr;  // anywhere: no alignment
  bool transposed = false;
  std::int64_t stride = 0;
  bool doubles = false;                         // float64, `format` says nothing
  bool readable = true;                         // false: integers and others that no model here has
  const char* right = "F32, F16, BF16 or F64";  // what would be readable in such a file
  const std::uint8_t* scales = nullptr;         // float32; data is then int8
  std::int64_t group = 0;

  const std::int8_t* codes() const { return reinterpret_cast<const std::int8_t*>(data); }
  float scale(std::int64_t i) const {  // of group i
    float value = 0;
    std::memcpy(&value, scales + 4 * i, 4);
    return value;
  }
};

struct WeightFile {
  std::string path;
  std::string kind;  // "llama2.c version 2", "safetensors", "GGUF version 3"
  bool has_config = false;
  ModelConfig config;     // if has_config
  std::string no_config;  // else why not, the end of a sentence
  bool has_tokenizer = false;
  Tokenizer tokenizer;
  List<StoredTensor> tensors;
  List<Shared<MappedFile>> files;
  double data_bytes = 0;  // that hold numbers

  // The tensor for the parameter of that name, or null; index() comes first.
  const StoredTensor* find(const std::string& name) const {
    const std::size_t at = names.find(name);
    return at == names.none ? nullptr : &tensors[at];
  }
  // Sorts the names; an Error, when two tensors are for the same parameter.
  void index(const std::string& who);

  detail::SortedNames names;
};

inline void WeightFile::index(const std::string& who) {
  std::vector<std::string> all;
  for (const StoredTensor& tensor : tensors) {
    all.push_back(tensor.name);
  }
  names = detail::SortedNames(static_cast<std::vector<std::string>&&>(all));
  const std::size_t again = names.twice();
  if (again != names.none) {
    const std::string& name = tensors[again].name;
    detail::fail({who, "two tensors are for ", name, ", \"", find(name)->stored, "\" and \"",
                  tensors[again].stored, "\"; one is right"});
  }
}

namespace detail {

// `count` numbers of a tensor from the first on, as they lie in the file.
inline void read_flat(const StoredTensor& t, std::int64_t count, float* to) {
  if (t.scales != nullptr) {
    for (std::int64_t i = 0; i < count; ++i) {
      to[i] = static_cast<float>(t.codes()[i]) * t.scale(i / t.group);
    }
  } else if (t.doubles) {
    for (std::int64_t i = 0; i < count; ++i) {
      double value = 0;
      std::memcpy(&value, t.data + 8 * i, 8);
      to[i] = static_cast<float>(value);
    }
  } else {
    kernels::dequantize_blocks(t.format, count, t.data, to);
  }
}

// Bytes of a number that is no block; 0 for blocks.
inline std::int64_t plain_bytes(const StoredTensor& t) {
  const BlockLayout layout = block_layout(t.format);
  return t.doubles ? 8 : t.scales != nullptr || layout.elements > 1 ? 0 : layout.bytes;
}

}  // namespace detail

// The numbers as float32, in our layout. `who` begins an Error.
inline void read_floats(const StoredTensor& t, float* to, const std::string& who) {
  const std::int64_t bytes = detail::plain_bytes(t);
  if (!t.readable || (t.transposed && bytes == 0)) {
    detail::fail({who, "tensor \"", t.stored, "\" is ", t.type, "; ", t.right, " is right"});
  }
  const std::int64_t count = t.shape.count();
  if (count == 0) {
    return;  // a size beside the zero may be anything
  }
  if (!t.transposed) {
    detail::read_flat(t, count, to);
    return;
  }
  const std::int64_t out = t.shape[0], in = t.shape.size() > 1 ? t.shape[1] : 1;
  std::vector<float> row(static_cast<std::size_t>(out));
  StoredTensor one = t;
  for (std::int64_t i = 0; i < in; ++i) {
    one.data = t.data + i * t.stride * bytes;
    detail::read_flat(one, out, row.data());
    for (std::int64_t o = 0; o < out; ++o) {
      to[o * in + i] = row[static_cast<std::size_t>(o)];
    }
  }
}

}  // namespace tinyscale
