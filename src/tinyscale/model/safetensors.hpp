#pragma once
// The safetensors format: 8 bytes of length N, N bytes of JSON, then the tensors' bytes.
// The reader trusts nothing: lengths, ranges, shapes and names are checked before any is used. The
// tensors stay in the file's mapping until they are read. A header takes at most 40 times its bytes
// of memory while it is read.

#include <cstdint>  // uint64_t
#include <cstring>  // memcpy
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/format.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/mapped_file.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/base/save_file.hpp"
#include "tinyscale/base/sorted_names.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/model/hooks.hpp"
#include "tinyscale/model/json.hpp"
#include "tinyscale/model/weight_file.hpp"
#include "tinyscale/tensor/tensor.hpp"
#include "tinyscale/tensor/views.hpp"

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

// Bytes that somebody else keeps.
struct ByteView {
  const std::uint8_t* from = nullptr;
  std::size_t count = 0;

  const std::uint8_t* data() const { return from; }
  std::size_t size() const { return count; }
  // A copy of at most `most` bytes from `first` on.
  std::string substr(std::size_t first, std::size_t most = static_cast<std::size_t>(-1)) const {
    const std::size_t begin = first < count ? first : count;
    const std::size_t left = count - begin;
    return std::string(reinterpret_cast<const char*>(from) + begin, left < most ? left : most);
  }
};

struct Safetensors {
  std::string path;
  List<SafetensorsNote> metadata;
  List<SafetensorsEntry> entries;  // by place in the file
  ByteView bytes;                  // the whole file
  std::size_t data_start = 0;
  Shared<MappedFile> file;    // keeps the bytes
  detail::SortedNames names;  // of the entries

  const SafetensorsEntry* find(const std::string& name) const;
  const std::string* find_metadata(const std::string& key) const;
  Tensor read(const SafetensorsEntry& entry) const;          // F32; F16, BF16 and F64 are converted
  StoredTensor stored(const SafetensorsEntry& entry) const;  // where it lies, under its own name
};

namespace detail {

// Bits of an element; 0 for a dtype that the format does not know.
inline std::uint64_t safetensors_bits(const std::string& dtype) {
  static const struct {
    const char* name;
    std::uint64_t bits;
  } known[] = {{"F64", 64},    {"I64", 64},    {"U64", 64},    {"C64", 64},    {"F32", 32},
               {"I32", 32},    {"U32", 32},    {"F16", 16},    {"BF16", 16},   {"I16", 16},
               {"U16", 16},    {"I8", 8},      {"U8", 8},      {"BOOL", 8},    {"F8_E4M3", 8},
               {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}};
  for (const auto& row : known) {
    if (dtype == row.name) {
      return row.bits;
    }
  }
  return 0;
}

// A whole number from 0 to 2^53 - 1 (above, two of them may be the same double), or an Error.
inline std::uint64_t json_whole(const Json& value, const std::string& who,
                                const char* what = "a size") {
  const double n = value.number;
  if (value.kind != Json::Kind::number || !(n >= 0 && n <= 9007199254740991.0) ||
      static_cast<double>(static_cast<std::uint64_t>(n)) != n) {
    detail::fail({who, ": ", what, " is not a whole number from 0 to 2^53 - 1"});
  }
  return static_cast<std::uint64_t>(n);
}

// parse_json whose errors name the file. The largest tokenizers have two million values.
inline Json parse_named(const std::string& text, const std::string& who) {
  return JsonReader(text, who).whole(4000000);
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
  const std::uint64_t bits = safetensors_bits(entry.dtype);
  if (bits == 0) {
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
  const std::uint64_t held = 8 * (entry.end - entry.begin);
  if (entry.end < entry.begin || held % bits != 0 || held / bits != count) {
    fail({who, ": bytes ", entry.begin, " to ", entry.end, " for shape ", entry.shape.text(),
          " of ", entry.dtype, "; their number must be ", static_cast<double>(bits) / 8,
          " an element"});
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

inline std::string safetensors_header(const Safetensors& file, const std::string& who) {
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
  if (n == 0 || file.bytes.data()[8] != '{') {
    detail::fail({who + "the header does not begin with {"});
  }
  return file.bytes.substr(8, static_cast<std::size_t>(n));
}

inline void read_safetensors_notes(Safetensors& file, JsonReader& header, const std::string& who) {
  if (!header.at_object()) {
    detail::fail({who + "__metadata__ is not an object of strings"});
  }
  header.each_field([&](const std::string& name) {
    const Json note = header.few_values(64);
    if (note.kind != Json::Kind::text) {
      detail::fail({who, "metadata \"", name, "\" is not a string"});
    }
    file.metadata.push_back({name, note.text});
  });
}

}  // namespace detail

// Checks a whole file; `path` names it in an Error.
inline Safetensors parse_safetensors(const Shared<MappedFile>& mapped, const std::string& path) {
  Safetensors file;
  file.path = path;
  file.file = mapped;
  file.bytes = {mapped->data(), mapped->size()};
  const std::string who = detail::cat({"load: \"", path, "\": "});
  const std::string text = detail::safetensors_header(file, who);
  file.data_start = 8 + text.size();
  detail::JsonReader header(text, who);
  header.each_field([&](const std::string& name) {
    if (name == "__metadata__") {
      detail::read_safetensors_notes(file, header, who);
    } else {
      file.entries.push_back(detail::safetensors_entry(name, header.few_values(64), who));
    }
  });
  header.end();
  detail::check_cover(file, who);
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : file.entries) {
    names.push_back(entry.name);
  }
  file.names = detail::SortedNames(static_cast<std::vector<std::string>&&>(names));
  return file;
}

inline Safetensors read_safetensors(const std::string& path) {
  return parse_safetensors(map_file(path, "load"), path);
}

inline const SafetensorsEntry* Safetensors::find(const std::string& name) const {
  const std::size_t at = names.find(name);
  return at == names.none ? nullptr : &entries[at];
}

inline const std::string* Safetensors::find_metadata(const std::string& key) const {
  for (const SafetensorsNote& note : metadata) {
    if (note.name == key) {
      return &note.text;
    }
  }
  return nullptr;
}

inline StoredTensor Safetensors::stored(const SafetensorsEntry& entry) const {
  StoredTensor t;
  t.name = t.stored = entry.name;
  t.shape = entry.shape;
  t.type = entry.dtype;
  t.data = bytes.data() + data_start + entry.begin;
  t.doubles = entry.dtype == "F64";
  t.format = entry.dtype == "F16"    ? BlockFormat::f16
             : entry.dtype == "BF16" ? BlockFormat::bf16
                                     : BlockFormat::f32;
  t.readable = t.doubles || t.format != BlockFormat::f32 || entry.dtype == "F32";
  return t;
}

inline Tensor Safetensors::read(const SafetensorsEntry& entry) const {
  const StoredTensor t = stored(entry);
  Tensor out(t.readable ? entry.shape : Shape{0});
  read_floats(t, out.data(), detail::cat({"load: \"", path, "\": "}));
  return out;
}

namespace detail {

inline const char* safetensors_word(DType format) {
  switch (format) {
    case DType::f32: return "F32";
    case DType::bf16: return "BF16";
    case DType::f16: return "F16";
    default: fail({"save: the format ", format, "; f32, bf16 or f16 is right"});
  }
}

// Replaced bytes could make two names one.
inline void check_text(const char* what, const std::string& text) {
  if (!is_utf8(text)) {
    fail({"save: the ", what, " \"", json_escape(text.substr(0, 64)),
          "\" is no UTF-8, which the format asks for"});
  }
}

inline std::string safetensors_text(const List<Parameter>& tensors,
                                    const List<SafetensorsNote>& metadata, DType format) {
  const char* const word = safetensors_word(format);
  std::string json = "{\"__metadata__\":{";
  for (const SafetensorsNote& note : metadata) {
    json += cat({json.back() == '{' ? "" : ",", "\"", json_escape(note.name), "\":\"",
                 json_escape(note.text), "\""});
  }
  json += "}";
  std::int64_t at = 0;
  for (const Parameter& tensor : tensors) {
    const std::int64_t end = at + (format == DType::f32 ? 4 : 2) * tensor.value.count();
    json += cat({",\"", json_escape(tensor.name), "\":{\"dtype\":\"", word, "\",\"shape\":",
                 tensor.value.shape().text(), ",\"data_offsets\":[", at, ",", end, "]}"});
    at = end;
  }
  json += "}";
  json.append((8 - json.size() % 8) % 8, ' ');  // so that the data begins at a multiple of 8
  return json;
}

// The numbers, each rounded to the nearest of the format. A finite one that has none is an Error.
inline void write_numbers(SaveFile& file, const std::string& name, std::int64_t count,
                          const float* from, DType format) {
  if (format == DType::f32) {
    file.write(from, 4 * static_cast<std::size_t>(count));
    return;
  }
  std::uint16_t codes[1024];
  for (std::int64_t i = 0; i < count; i += 1024) {
    const std::int64_t n = count - i < 1024 ? count - i : 1024;
    for (std::int64_t j = 0; j < n; ++j) {
      const float x = from[i + j];
      codes[j] = format == DType::bf16 ? to_bf16(x) : to_f16(x);
      const std::uint32_t most = format == DType::bf16 ? 0x7f7fU : 0x7bffU;
      if ((codes[j] & 0x7fffU) > most && is_finite(double{x})) {
        fail({"save: \"", name, "\" holds ", x, ", which ", format, " cannot: its largest is ",
              format == DType::bf16 ? from_bf16(0x7f7f) : from_f16(0x7bff), "; f32 holds it"});
      }
    }
    file.write(codes, 2 * static_cast<std::size_t>(n));
  }
}

}  // namespace detail

// Writes tensors (f32, bf16 or f16) beside `path`, then renames: a save that fails leaves the old
// file whole.
inline void write_safetensors(const std::string& path, const List<Parameter>& tensors,
                              const List<SafetensorsNote>& metadata, DType format = DType::f32) {
  detail::NameTable names, notes;
  for (const Parameter& tensor : tensors) {
    detail::check_text("tensor", tensor.name);
    if (!tensor.value.defined()) {
      detail::fail({"save: the tensor \"", tensor.name,
                    "\" is empty (default-constructed); give one with a shape"});
    }
    if (tensor.name == "__metadata__" || ++names[tensor.name] > 1) {
      detail::fail({"save: a tensor is called \"", tensor.name,
                    "\"; names that differ, and not __metadata__, are right"});
    }
  }
  for (const SafetensorsNote& note : metadata) {
    detail::check_text("note", note.name);
    detail::check_text("text of a note", note.text);
    if (++notes[note.name] > 1) {
      detail::fail({"save: two notes are called \"", note.name, "\"; one is right"});
    }
  }
  const std::string json = detail::safetensors_text(tensors, metadata, format);
  const std::uint64_t n = json.size();
  detail::SaveFile file("save", path);
  file.write(&n, 8);
  file.write(json.data(), json.size());
  for (const Parameter& tensor : tensors) {
    const Tensor value = contiguous(tensor.value);
    detail::write_numbers(file, tensor.name, value.count(), value.data(), format);
  }
  file.finish();
}

}  // namespace tinyscale
