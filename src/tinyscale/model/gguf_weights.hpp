#pragma once
// A GGUF file as a WeightFile: config and tensors under our parameters' names, the numbers where
// they lie in the mapping.

#include <cstdint>  // int64_t
#include <string>   // string

#include "tinyscale/model/gguf.hpp"
#include "tinyscale/model/gguf_model.hpp"
#include "tinyscale/model/weight_file.hpp"

namespace tinyscale {
namespace detail {

inline StoredTensor stored_part(const GgufPart& part) {
  StoredTensor t;
  t.name = part.name;
  t.stored = part.tensor->name;
  t.shape = part.shape;
  t.type = gguf_type(part.tensor->type)->name;
  t.format = part.tensor->format;
  t.data = part.data;
  t.doubles = t.type == "F64";
  t.readable = part.tensor->readable || t.doubles;
  return t;
}

inline WeightFile gguf_weights(const Gguf& from) {
  WeightFile file;
  file.path = from.name;
  file.kind = cat({"GGUF version ", from.version});
  file.config = gguf_config(from);
  file.has_config = true;
  for (const GgufPart& part : gguf_parts(from, file.config)) {
    file.tensors.push_back(stored_part(part));
  }
  for (const GgufTensor& tensor : from.tensors) {
    file.data_bytes += static_cast<double>(tensor.bytes);
  }
  file.files.push_back(from.file);
  file.index(cat({"load: \"", from.name, "\": "}));
  return file;
}

}  // namespace detail
}  // namespace tinyscale
