#pragma once
// A GGUF file as weights: config from its keys, tensors under our names, each where it lies, and
// its tokenizer.

#include <cstdint>  // int64_t
#include <string>   // string

#include "tinyscale/model/gguf_model.hpp"
#include "tinyscale/model/load_tokenizer.hpp"
#include "tinyscale/model/weight_file.hpp"

namespace tinyscale {

// `with_tokenizer` false: who names another need not care whether the file's is one known here.
inline WeightFile gguf_weights(const Shared<MappedFile>& mapped, const std::string& path,
                               bool with_tokenizer = true) {
  const std::string who = detail::cat({"load: \"", path, "\": "});
  const Gguf from = parse_gguf(mapped->data(), mapped->size(), path);
  WeightFile file;
  file.path = path;
  file.kind = detail::cat({"GGUF version ", from.version});
  file.config = gguf_config(from);
  file.has_config = true;
  file.files.push_back(mapped);
  for (const GgufTensor& tensor : from.tensors) {
    file.data_bytes += static_cast<double>(tensor.bytes);
  }
  for (const GgufPart& part : gguf_parts(from, file.config)) {
    StoredTensor t;
    t.name = part.name;
    t.stored = part.tensor->name;
    t.shape = part.shape;
    t.type = detail::gguf_type(part.tensor->type)->name;
    t.format = part.tensor->format;
    t.doubles = t.type == "F64";
    t.readable = t.doubles || part.tensor->readable;
    t.right =
        "F32, F16, BF16, F64, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q8_1, Q2_K to Q6_K, Q8_K, MXFP4 or "
        "NVFP4";
    t.data = part.data;
    file.tensors.push_back(t);
  }
  file.index(who);
  file.has_tokenizer = with_tokenizer && detail::gguf_tokenizer(from, file.tokenizer);
  return file;
}

}  // namespace tinyscale
