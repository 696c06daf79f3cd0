// Writing GGUF version 3 for tests and the fuzz corpus: keys by their kinds, tensors rounded into a
// format each, aligned to 32 bytes. What it is given must be what GGUF can hold. The library is
// included before.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

// A tensor to write, under the file's name for it ("blk.0.attn_q.weight").
struct GgufSource {
  std::string name;
  tinyscale::Tensor value;
  tinyscale::BlockFormat format = tinyscale::BlockFormat::f32;
};

inline void append_bytes(std::string& out, const void* data, std::size_t bytes) {
  out.append(static_cast<const char*>(data), bytes);
}

inline void append_long(std::string& out, std::uint64_t n) { append_bytes(out, &n, 8); }

inline void append_word(std::string& out, std::uint32_t n) { append_bytes(out, &n, 4); }

inline void append_gguf_text(std::string& out, const std::string& text) {
  append_long(out, text.size());
  out += text;
}

inline tinyscale::GgufValue gguf_scalar(const std::string& key, tinyscale::GgufKind kind,
                                        const void* data) {
  tinyscale::GgufValue value{key, kind, kind, 1, {}};
  append_bytes(value.bytes, data,
               static_cast<std::size_t>(tinyscale::detail::gguf_kind_bytes(kind)));
  return value;
}

inline tinyscale::GgufValue gguf_list(const std::string& key, tinyscale::GgufKind item,
                                      std::size_t count) {
  return tinyscale::GgufValue{key, tinyscale::GgufKind::list, item, count, {}};
}

inline tinyscale::GgufValue gguf_text(const std::string& key, const std::string& text) {
  return tinyscale::GgufValue{key, tinyscale::GgufKind::text, tinyscale::GgufKind::text, 1, text};
}

// A uint32 where it fits, else an int64.
inline tinyscale::GgufValue gguf_whole(const std::string& key, std::int64_t n) {
  const std::uint32_t word = static_cast<std::uint32_t>(n);
  return n >= 0 && n <= 0xffffffffLL ? gguf_scalar(key, tinyscale::GgufKind::uint32, &word)
                                     : gguf_scalar(key, tinyscale::GgufKind::int64, &n);
}

inline tinyscale::GgufValue gguf_real(const std::string& key, double x) {
  const float small = static_cast<float>(x);
  return gguf_scalar(key, tinyscale::GgufKind::float32, &small);
}

inline tinyscale::GgufValue gguf_flag(const std::string& key, bool yes) {
  const std::uint8_t byte = yes ? 1 : 0;
  return gguf_scalar(key, tinyscale::GgufKind::boolean, &byte);
}

inline tinyscale::GgufValue gguf_texts(const std::string& key,
                                       const std::vector<std::string>& texts) {
  tinyscale::GgufValue value = gguf_list(key, tinyscale::GgufKind::text, texts.size());
  for (const std::string& text : texts) {
    append_gguf_text(value.bytes, text);
  }
  return value;
}

inline tinyscale::GgufValue gguf_reals(const std::string& key, const std::vector<float>& numbers) {
  tinyscale::GgufValue value = gguf_list(key, tinyscale::GgufKind::float32, numbers.size());
  append_bytes(value.bytes, numbers.data(), 4 * numbers.size());
  return value;
}

inline tinyscale::GgufValue gguf_wholes(const std::string& key,
                                        const std::vector<std::int32_t>& numbers) {
  tinyscale::GgufValue value = gguf_list(key, tinyscale::GgufKind::int32, numbers.size());
  append_bytes(value.bytes, numbers.data(), 4 * numbers.size());
  return value;
}

inline std::uint32_t gguf_type_id(tinyscale::BlockFormat format) {
  std::uint32_t id = 0;
  while (tinyscale::detail::gguf_type(id) == nullptr ||
         tinyscale::detail::gguf_type(id)->format != static_cast<int>(format)) {
    ++id;
  }
  return id;
}

inline std::uint64_t gguf_source_bytes(const GgufSource& source) {
  return static_cast<std::uint64_t>(
      tinyscale::block_row_bytes(source.format, source.value.count()));
}

// A key with its value, as the header has it.
inline void append_gguf_value(std::string& out, const tinyscale::GgufValue& value) {
  append_gguf_text(out, value.key);
  append_word(out, static_cast<std::uint32_t>(value.kind));
  if (value.kind == tinyscale::GgufKind::list) {
    append_word(out, static_cast<std::uint32_t>(value.item));
    append_long(out, value.count);
  } else if (value.kind == tinyscale::GgufKind::text) {
    append_long(out, value.bytes.size());
  }
  out += value.bytes;
}

inline std::string gguf_header(const tinyscale::List<tinyscale::GgufValue>& metadata,
                               const tinyscale::List<GgufSource>& tensors) {
  std::string out = "GGUF";
  append_word(out, 3);
  append_long(out, tensors.size());
  append_long(out, metadata.size());
  for (const tinyscale::GgufValue& value : metadata) {
    append_gguf_value(out, value);
  }
  std::uint64_t at = 0;
  for (const GgufSource& source : tensors) {
    const std::uint64_t bytes = gguf_source_bytes(source);
    const tinyscale::Shape& shape = source.value.shape();
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

inline void write_gguf(const std::string& path,
                       const tinyscale::List<tinyscale::GgufValue>& metadata,
                       const tinyscale::List<GgufSource>& tensors) {
  const std::string header = gguf_header(metadata, tensors);
  tinyscale::detail::SaveFile file("write_gguf", path);
  file.write(header.data(), header.size());
  for (const GgufSource& source : tensors) {
    const tinyscale::Tensor value = contiguous(source.value);
    std::vector<std::uint8_t> bytes((gguf_source_bytes(source) + 31) / 32 * 32);
    tinyscale::kernels::quantize_blocks(source.format, value.count(), value.data(), bytes.data());
    file.write(bytes.data(), bytes.size());
  }
  file.finish();
}
