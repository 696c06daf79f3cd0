#pragma once
// Writing GGUF version 3: keys by their kinds, tensors rounded into a format each as they are
// written, aligned to 32 bytes. The file appears whole or not at all.

#include <cstdint>  // uint64_t
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/save_file.hpp"
#include "tinyscale/compute/block_quantize.hpp"
#include "tinyscale/model/gguf.hpp"
#include "tinyscale/tensor/arithmetic.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

// A tensor to write, under the file's name for it ("blk.0.attn_q.weight").
struct GgufSource {
  std::string name;
  Tensor value;
  BlockFormat format = BlockFormat::f32;
};

namespace detail {

inline void append_bytes(std::string& out, const void* data, std::size_t bytes) {
  out.append(static_cast<const char*>(data), bytes);
}

inline void append_long(std::string& out, std::uint64_t n) { append_bytes(out, &n, 8); }

inline void append_word(std::string& out, std::uint32_t n) { append_bytes(out, &n, 4); }

inline void append_gguf_text(std::string& out, const std::string& text) {
  append_long(out, text.size());
  out += text;
}

inline GgufValue gguf_scalar(const std::string& key, GgufKind kind, const void* data) {
  GgufValue value{key, kind, kind, 1, {}};
  append_bytes(value.bytes, data, static_cast<std::size_t>(gguf_kind_bytes(kind)));
  return value;
}

inline GgufValue gguf_list(const std::string& key, GgufKind item, std::size_t count) {
  return GgufValue{key, GgufKind::list, item, count, {}};
}

}  // namespace detail

inline GgufValue gguf_text(const std::string& key, const std::string& text) {
  return GgufValue{key, GgufKind::text, GgufKind::text, 1, text};
}

// A uint32 where it fits, else an int64.
inline GgufValue gguf_whole(const std::string& key, std::int64_t n) {
  const std::uint32_t word = static_cast<std::uint32_t>(n);
  return n >= 0 && n <= 0xffffffffLL ? detail::gguf_scalar(key, GgufKind::uint32, &word)
                                     : detail::gguf_scalar(key, GgufKind::int64, &n);
}

inline GgufValue gguf_real(const std::string& key, double x) {
  const float small = static_cast<float>(x);
  return detail::gguf_scalar(key, GgufKind::float32, &small);
}

inline GgufValue gguf_flag(const std::string& key, bool yes) {
  const std::uint8_t byte = yes ? 1 : 0;
  return detail::gguf_scalar(key, GgufKind::boolean, &byte);
}

inline GgufValue gguf_texts(const std::string& key, const std::vector<std::string>& texts) {
  GgufValue value = detail::gguf_list(key, GgufKind::text, texts.size());
  for (const std::string& text : texts) {
    detail::append_gguf_text(value.bytes, text);
  }
  return value;
}

inline GgufValue gguf_reals(const std::string& key, const std::vector<float>& numbers) {
  GgufValue value = detail::gguf_list(key, GgufKind::float32, numbers.size());
  detail::append_bytes(value.bytes, numbers.data(), 4 * numbers.size());
  return value;
}

inline GgufValue gguf_wholes(const std::string& key, const std::vector<std::int32_t>& numbers) {
  GgufValue value = detail::gguf_list(key, GgufKind::int32, numbers.size());
  detail::append_bytes(value.bytes, numbers.data(), 4 * numbers.size());
  return value;
}

namespace detail {

inline std::uint32_t gguf_type_id(BlockFormat format) {
  std::uint32_t id = 0;
  while (gguf_type(id) == nullptr || gguf_type(id)->format != static_cast<int>(format)) {
    ++id;
  }
  return id;
}

// Bytes of a tensor in its format; its rows must be whole blocks.
inline std::uint64_t gguf_source_bytes(const GgufSource& source) {
  if (!source.value.defined()) {
    fail({"write_gguf: tensor ", shown_name(source.name),
          " is empty (default-constructed); give one with a shape"});
  }
  const Shape& shape = source.value.shape();
  const std::int64_t row = shape.empty() ? 1 : shape[-1];
  if (shape.size() > 4 || shape.count() == 0 || source.name.empty() || source.name.size() > 64) {
    fail({"write_gguf: tensor ", shown_name(source.name), " is ", shape,
          "; 1 to 4 dims from 1 and a name of 1 to 64 bytes are right"});
  }
  if (row % block_layout(source.format).elements != 0) {
    fail({"write_gguf: tensor ", shown_name(source.name), " is ", shape, " in ", source.format,
          "; rows of a multiple of ", block_layout(source.format).elements, " are right"});
  }
  return static_cast<std::uint64_t>(block_row_bytes(source.format, shape.count()));
}

inline std::string gguf_header(const List<GgufValue>& metadata, const List<GgufSource>& tensors) {
  std::string out = "GGUF";
  append_word(out, 3);
  append_long(out, tensors.size());
  append_long(out, metadata.size());
  for (const GgufValue& value : metadata) {
    append_gguf_text(out, value.key);
    append_word(out, static_cast<std::uint32_t>(value.kind));
    if (value.kind == GgufKind::list) {
      append_word(out, static_cast<std::uint32_t>(value.item));
      append_long(out, value.count);
    } else if (value.kind == GgufKind::text) {
      append_long(out, value.bytes.size());
    }
    out += value.bytes;
  }
  std::uint64_t at = 0;
  for (const GgufSource& source : tensors) {
    const std::uint64_t bytes = gguf_source_bytes(source);  // checks it
    const Shape& shape = source.value.shape();
    append_gguf_text(out, source.name);
    append_word(out, static_cast<std::uint32_t>(shape.size()));
    for (int i = shape.size(); i > 0; --i) {
      append_long(out, static_cast<std::uint64_t>(shape[i - 1]));
    }
    append_word(out, gguf_type_id(source.format));
    append_long(out, at);
    at += (bytes + 31) / 32 * 32;
  }
  out.append((32 - out.size() % 32) % 32, '\0');
  return out;
}

}  // namespace detail

inline void write_gguf(const std::string& path, const List<GgufValue>& metadata,
                       const List<GgufSource>& tensors) {
  for (const GgufValue& value : metadata) {
    if (value.key == "general.alignment") {
      detail::fail(
          {"write_gguf: general.alignment is given; it is left out, data lies at "
           "multiples of 32"});
    }
  }
  detail::NameTable keys, names;
  for (const GgufValue& value : metadata) {
    if (value.key.empty() || value.key.size() > 65535 || ++keys[value.key] > 1) {
      detail::fail({"write_gguf: the key \"", value.key.substr(0, 64),
                    "\"; keys of 1 to 65535 bytes, each once, are right"});
    }
  }
  for (const GgufSource& source : tensors) {
    if (++names[source.name] > 1) {
      detail::fail({"write_gguf: two tensors are called \"", source.name, "\"; one is right"});
    }
  }
  const std::string header = detail::gguf_header(metadata, tensors);
  detail::SaveFile file("write_gguf", path);
  file.write(header.data(), header.size());
  for (const GgufSource& source : tensors) {
    const Tensor value = contiguous(source.value);
    List<std::uint8_t> bytes((detail::gguf_source_bytes(source) + 31) / 32 * 32);
    try {
      kernels::quantize_blocks(source.format, value.count(), value.data(), bytes.data());
    } catch (const Error& error) {
      detail::fail({"write_gguf: tensor ", detail::shown_name(source.name), ": ", error.what()});
    }
    file.write(bytes.data(), bytes.size());
  }
  file.finish();
}

}  // namespace tinyscale
