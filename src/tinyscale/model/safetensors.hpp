#pragma once
// The safetensors format: 8 bytes of length N, N bytes of JSON, then the tensors' bytes.
// The reader trusts nothing: lengths, ranges, shapes and names are checked before any is used.

#include <cstdint>  // uint64_t
#include <cstring>  // memcpy
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/format.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/base/save_file.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/model/hooks.hpp"
#include "tinyscale/model/json.hpp"
#include "tinyscale/model/read_text.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  Shape shape;
  std::uint64_t begin = 0;  // bytes [begin, end) of the data area
  std::uint64_t end = 0;
};

struct SafetensorsNote {
  std::string name, text;
};

struct Safetensors {
  std::string path;
  List<SafetensorsNote> metadata;
  List<SafetensorsEntry> entries;  // by place in the file
  std::string bytes;               // the whole file
  std::size_t data_start = 0;

  const SafetensorsEntry* find(const std::string& name) const;
  const std::string* find_metadata(const std::string& key) const;
  Tensor read(const SafetensorsEntry& entry) const;  // F32; F16, BF16 and F64 are converted
};

namespace detail {

// Bytes of an element; 0 for a dtype that the format does not know.
inline std::uint64_t safetensors_size(const std::string& dtype) {
  static const char* const names[] = {"F64", "I64", "U64",  "F32",     "I32",
                                      "U32", "F16", "BF16", "I16",     "U16",
                                      "I8",  "U8",  "BOOL", "F8_E4M3", "F8_E5M2"};
  static const std::uint64_t sizes[] = {8, 8, 8, 4, 4, 4, 2, 2, 2, 2, 1, 1, 1, 1, 1};
  for (std::size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) {
    if (dtype == names[i]) {
      return sizes[i];
    }
  }
  return 0;
}

// A whole number from 0 to 2^53 (where doubles stop being exact), or an Error.
inline std::uint64_t json_whole(const Json& value, const std::string& who) {
  const double n = value.number;
  if (value.kind != Json::Kind::number || !(n >= 0 && n <= 9007199254740992.0) ||
      static_cast<double>(static_cast<std::uint64_t>(n)) != n) {
    detail::fail({who + ": a size is not a whole number from 0 to 2^53"});
  }
  return static_cast<std::uint64_t>(n);
}

// parse_json whose errors name the file.
inline Json parse_named(const std::string& text, const std::string& who) {
  try {
    return parse_json(text);
  } catch (const Error& error) {
    detail::fail({who + error.what()});
  }
}

inline SafetensorsEntry safetensors_entry(const std::string& name, const Json& value,
                                          const std::string& file) {
  const std::string who = cat({file, "tensor \"", name, "\""});
  const Json* dtype = value.find("dtype");
  const Json* shape = value.find("shape");
  const Json* range = value.find("data_offsets");
  if (dtype == nullptr || dtype->kind != Json::Kind::text || shape == nullptr ||
      shape->kind != Json::Kind::list || range == nullptr || range->list.size() != 2) {
    detail::fail({who + " lacks dtype, shape or data_offsets"});
  }
  SafetensorsEntry entry;
  entry.name = name;
  entry.dtype = dtype->text;
  entry.begin = json_whole(range->list[0], who);
  entry.end = json_whole(range->list[1], who);
  const std::uint64_t size = safetensors_size(entry.dtype);
  if (size == 0) {
    fail({who, " has the unknown dtype \"", entry.dtype, "\""});
  }
  if (shape->list.size() > static_cast<std::size_t>(Shape::max_dims)) {
    fail({who, " has ", shape->list.size(), " dimensions; at most ", Shape::max_dims});
  }
  for (const Json& dim : shape->list) {
    entry.shape.push_back(static_cast<std::int64_t>(json_whole(dim, who)));
  }
  std::uint64_t count = 0;
  try {
    count = static_cast<std::uint64_t>(entry.shape.count());
  } catch (const Error& error) {  // the product overflows
    fail({who, ": ", error.what()});
  }
  if (entry.end < entry.begin || (entry.end - entry.begin) % size != 0 ||
      (entry.end - entry.begin) / size != count) {
    fail({who, ": bytes ", entry.begin, " to ", entry.end, " for shape ", entry.shape.text(),
          " of ", entry.dtype, "; their number must be ", size, " an element"});
  }
  return entry;
}

// The ranges, in order, must cover the data area without gap or overlap.
inline void check_cover(Safetensors& file, const std::string& who) {
  for (const bool by_begin : {false, true}) {  // by begin, those of equal begin by end
    std::vector<double> keys;
    for (const SafetensorsEntry& entry : file.entries) {
      keys.push_back(static_cast<double>(by_begin ? entry.begin : entry.end));
    }
    List<SafetensorsEntry> sorted;
    for (const std::size_t i : stable_order(keys)) {
      sorted.push_back(file.entries[i]);
    }
    file.entries.swap(sorted);
  }
  std::uint64_t at = 0;
  for (const SafetensorsEntry& entry : file.entries) {
    if (entry.begin != at) {
      fail({who, "tensor \"", entry.name, "\" begins at byte ", entry.begin,
            "; the one before ends at ", at, ", and nothing may lie between or twice"});
    }
    at = entry.end;
  }
  const std::uint64_t data = file.bytes.size() - file.data_start;
  if (at != data) {
    fail({who, "the tensors end at byte ", at, " of the data, the file at ", data});
  }
}

inline Json safetensors_header(const Safetensors& file, const std::string& who) {
  std::uint64_t n = 0;
  if (file.bytes.size() < 8) {
    fail({who, file.bytes.size(), " bytes are no safetensors file; it begins with 8"});
  }
  std::memcpy(&n, file.bytes.data(), 8);  // little-endian, as are the machines that this runs on
  if (n > 100000000) {
    fail({who, "a header of ", n, " bytes; at most 100000000 are right"});
  }
  if (n > file.bytes.size() - 8) {
    fail({who, "a header of ", n, " bytes; only ", file.bytes.size() - 8, " follow"});
  }
  if (n == 0 || file.bytes[8] != '{') {
    detail::fail({who + "the header does not begin with {"});
  }
  return parse_named(file.bytes.substr(8, static_cast<std::size_t>(n)), who);
}

}  // namespace detail

// Reads and checks a whole file.
inline Safetensors read_safetensors(const std::string& path) {
  Safetensors file;
  file.path = path;
  file.bytes = detail::read_file(path, "load");
  const std::string who = detail::cat({"load: \"", path, "\": "});
  const Json header = detail::safetensors_header(file, who);
  std::uint64_t n = 0;
  std::memcpy(&n, file.bytes.data(), 8);
  file.data_start = 8 + static_cast<std::size_t>(n);
  for (const JsonField& field : header.fields) {
    if (field.name != "__metadata__") {
      file.entries.push_back(detail::safetensors_entry(field.name, field.value, who));
      continue;
    }
    if (field.value.kind != Json::Kind::object) {
      detail::fail({who + "__metadata__ is not an object of strings"});
    }
    for (const JsonField& note : field.value.fields) {
      if (note.value.kind != Json::Kind::text) {
        detail::fail({who, "metadata \"", note.name, "\" is not a string"});
      }
      file.metadata.push_back({note.name, note.value.text});
    }
  }
  detail::check_cover(file, who);
  return file;
}

inline const SafetensorsEntry* Safetensors::find(const std::string& name) const {
  for (const SafetensorsEntry& entry : entries) {
    if (entry.name == name) {
      return &entry;
    }
  }
  return nullptr;
}

inline const std::string* Safetensors::find_metadata(const std::string& key) const {
  for (const SafetensorsNote& note : metadata) {
    if (note.name == key) {
      return &note.text;
    }
  }
  return nullptr;
}

inline Tensor Safetensors::read(const SafetensorsEntry& entry) const {
  Tensor out(entry.shape);
  const char* from = bytes.data() + data_start + entry.begin;
  if (entry.dtype == "F32") {
    std::memcpy(out.data(), from, static_cast<std::size_t>(entry.end - entry.begin));
    return out;
  }
  if (entry.dtype != "BF16" && entry.dtype != "F16" && entry.dtype != "F64") {
    detail::fail({"load: \"", path, "\": tensor \"", entry.name, "\" is ", entry.dtype,
                  "; F32, F16, BF16 or F64 is right"});
  }
  for (std::int64_t i = 0; i < out.count(); ++i) {
    if (entry.dtype == "F64") {
      double value = 0;
      std::memcpy(&value, from + 8 * i, 8);
      out.data()[i] = static_cast<float>(value);
      continue;
    }
    std::uint16_t code = 0;
    std::memcpy(&code, from + 2 * i, 2);
    out.data()[i] = entry.dtype == "F16" ? from_f16(code) : from_bf16(code);
  }
  return out;
}

namespace detail {

inline std::string safetensors_text(const List<Parameter>& tensors,
                                    const List<SafetensorsNote>& metadata) {
  std::string json = "{\"__metadata__\":{";
  for (const SafetensorsNote& note : metadata) {
    json += cat({json.back() == '{' ? "" : ",", "\"", json_escape(note.name), "\":\"",
                 json_escape(note.text), "\""});
  }
  json += "}";
  std::int64_t at = 0;
  for (const Parameter& tensor : tensors) {
    const std::int64_t end = at + 4 * tensor.value.count();
    json += cat({",\"", json_escape(tensor.name), "\":{\"dtype\":\"F32\",\"shape\":",
                 tensor.value.shape().text(), ",\"data_offsets\":[", at, ",", end, "]}"});
    at = end;
  }
  json += "}";
  json.append((8 - json.size() % 8) % 8, ' ');  // so that the data begins at a multiple of 8
  return json;
}

}  // namespace detail

// Writes F32 tensors beside `path`, then renames: a save that fails leaves the old file whole.
inline void write_safetensors(const std::string& path, const List<Parameter>& tensors,
                              const List<SafetensorsNote>& metadata) {
  const std::string json = detail::safetensors_text(tensors, metadata);
  const std::uint64_t n = json.size();
  detail::SaveFile file("save", path);
  file.write(&n, 8);
  file.write(json.data(), json.size());
  for (const Parameter& tensor : tensors) {
    const Tensor value = contiguous(tensor.value);
    file.write(value.data(), 4 * static_cast<std::size_t>(value.count()));
  }
  file.finish();
}

}  // namespace tinyscale
