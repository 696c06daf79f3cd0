#pragma once
// What a GGUF file holds, as data: keys with values of thirteen kinds, tensors with their formats.
// A value is kept as its bytes, so that reading costs no more memory than the file; a key is found
// by halving. Integers of every width answer where a whole number is asked for.

#include <cstddef>  // size_t
#include <cstdint>  // uint64_t
#include <cstring>  // memcpy
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/mapped_file.hpp"
#include "tinyscale/base/shape.hpp"
#include "tinyscale/base/sorted_names.hpp"
#include "tinyscale/compute/block_format.hpp"

namespace tinyscale {

// As numbered in the file.
enum class GgufKind {
  uint8,
  int8,
  uint16,
  int16,
  uint32,
  int32,
  float32,
  boolean,
  text,
  list,
  uint64,
  int64,
  float64
};

inline const char* name_of(GgufKind kind) {
  static const char* const names[] = {"uint8",  "int8",    "uint16", "int16", "uint32",
                                      "int32",  "float32", "bool",   "text",  "list",
                                      "uint64", "int64",   "float64"};
  return detail::name_in("GgufKind", names, kind);
}

struct GgufValue {
  std::string key;
  GgufKind kind = GgufKind::uint32;
  GgufKind item = GgufKind::uint32;  // of a list: what it holds
  std::uint64_t count = 1;           // of a list: how many
  std::string bytes;                 // as in the file; a text without its length

  std::string text() const;  // "a uint32", "a list of 512 text"
};

struct GgufTensor {
  std::string name;
  Shape shape;             // outermost first
  std::uint32_t type = 0;  // the file's number of the format
  bool readable = false;   // whether `format` is one of ours
  BlockFormat format = BlockFormat::f32;
  std::uint64_t offset = 0, bytes = 0;  // of the data
  const std::uint8_t* data = nullptr;
};

struct Gguf {
  std::string name;  // of the file
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;
  List<GgufValue> metadata;
  List<GgufTensor> tensors;
  detail::SortedNames key_names, tensor_names;
  Shared<MappedFile> file;  // empty: the caller keeps the bytes

  const GgufValue* find(const std::string& key) const;
  const GgufTensor* tensor(const std::string& name) const;  // null: there is none

  // Values of keys; whatever integer type the file has. A key that is not there: an Error, or
  // `otherwise`. A list whose items are all alike stands for one of them.
  std::int64_t whole(const std::string& key, std::int64_t least, std::int64_t most) const;
  std::int64_t whole_or(const std::string& key, std::int64_t least, std::int64_t most,
                        std::int64_t otherwise) const;
  double number_or(const std::string& key, double least, double below, double otherwise) const;
  bool flag_or(const std::string& key, bool otherwise) const;
  std::string text_or(const std::string& key, const std::string& otherwise) const;
  std::vector<std::int64_t> wholes(const std::string& key) const;  // empty: not there
  std::vector<double> numbers(const std::string& key) const;
  std::vector<std::string> texts(const std::string& key) const;

  [[noreturn]] void refuse(const GgufValue& value, const std::string& right) const;
};

namespace detail {

// Bytes of a value of fixed size; 0: texts and lists.
inline std::uint64_t gguf_kind_bytes(GgufKind kind) {
  static const std::uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return sizes[static_cast<int>(kind)];
}

}  // namespace detail

inline std::string GgufValue::text() const {
  return kind == GgufKind::list ? detail::cat({"a list of ", count, " ", name_of(item)})
                                : detail::cat({"a ", name_of(kind)});
}

inline const GgufValue* Gguf::find(const std::string& key) const {
  const std::size_t at = key_names.find(key);
  return at == key_names.none ? nullptr : &metadata[at];
}

inline const GgufTensor* Gguf::tensor(const std::string& wanted) const {
  const std::size_t at = tensor_names.find(wanted);
  return at == tensor_names.none ? nullptr : &tensors[at];
}

inline void Gguf::refuse(const GgufValue& value, const std::string& right) const {
  detail::fail(
      {"load: \"", name, "\": ", value.key, " is ", value.text(), "; ", right, " is right"});
}

namespace detail {

// What a number of the file is, of whatever type.
struct GgufNumber {
  bool whole = false;  // an integer or a bool
  bool fits = true;    // in an int64
  std::int64_t n = 0;
  double x = 0;
};

template <class T>
GgufNumber gguf_integer(const char* at) {
  T n = 0;
  std::memcpy(&n, at, sizeof n);
  const std::int64_t whole = static_cast<std::int64_t>(n);
  return {true, (n < 0) == (whole < 0), whole, static_cast<double>(n)};
}

// Item i of a value that is numbers.
inline GgufNumber gguf_number(const GgufValue& value, std::uint64_t i) {
  const char* const at = value.bytes.data() + i * gguf_kind_bytes(value.item);
  switch (value.item) {
    case GgufKind::boolean:
    case GgufKind::uint8: return gguf_integer<std::uint8_t>(at);
    case GgufKind::int8: return gguf_integer<std::int8_t>(at);
    case GgufKind::uint16: return gguf_integer<std::uint16_t>(at);
    case GgufKind::int16: return gguf_integer<std::int16_t>(at);
    case GgufKind::uint32: return gguf_integer<std::uint32_t>(at);
    case GgufKind::int32: return gguf_integer<std::int32_t>(at);
    case GgufKind::int64: return gguf_integer<std::int64_t>(at);
    case GgufKind::uint64: return gguf_integer<std::uint64_t>(at);
    case GgufKind::float32: {
      float x = 0;
      std::memcpy(&x, at, 4);
      return {false, false, 0, static_cast<double>(x)};
    }
    default: {
      double x = 0;
      std::memcpy(&x, at, 8);
      return {false, false, 0, x};
    }
  }
}

// One number: the value, or the items of a list where they are all the same.
inline bool gguf_single(const GgufValue& value, GgufNumber& out) {
  const std::size_t size = static_cast<std::size_t>(gguf_kind_bytes(value.item));
  if (value.kind == GgufKind::text || size == 0 || value.count == 0) {
    return false;
  }
  for (std::size_t i = size; i < value.bytes.size(); ++i) {
    if (value.bytes[i] != value.bytes[i - size]) {
      return false;
    }
  }
  out = gguf_number(value, 0);
  return true;
}

}  // namespace detail

inline std::int64_t Gguf::whole(const std::string& key, std::int64_t least,
                                std::int64_t most) const {
  const GgufValue* const value = find(key);
  const std::string right = detail::cat({"a whole number from ", least, " to ", most});
  if (value == nullptr) {
    detail::fail({"load: \"", name, "\": ", key, " is missing; ", right, " is right"});
  }
  detail::GgufNumber number;
  if (!detail::gguf_single(*value, number) || !number.whole) {
    refuse(*value, right);
  }
  if (!number.fits || number.n < least || number.n > most) {
    const std::string shown = number.fits ? std::to_string(number.n) : "above 2^63";
    detail::fail({"load: \"", name, "\": ", key, " is ", shown, "; ", right, " is right"});
  }
  return number.n;
}

inline std::int64_t Gguf::whole_or(const std::string& key, std::int64_t least, std::int64_t most,
                                   std::int64_t otherwise) const {
  return find(key) == nullptr ? otherwise : whole(key, least, most);
}

inline double Gguf::number_or(const std::string& key, double least, double below,
                              double otherwise) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) {
    return otherwise;
  }
  const std::string right = detail::cat({"a number from ", least, " and below ", below});
  detail::GgufNumber number;
  if (!detail::gguf_single(*value, number)) {
    refuse(*value, right);
  }
  if (!(number.x >= least && number.x < below) || !detail::is_finite(number.x)) {
    detail::fail({"load: \"", name, "\": ", key, " is ", number.x, "; ", right, " is right"});
  }
  return number.x;
}

inline bool Gguf::flag_or(const std::string& key, bool otherwise) const {
  const GgufValue* const value = find(key);
  if (value != nullptr && value->kind != GgufKind::boolean) {
    refuse(*value, "a bool");
  }
  return value == nullptr ? otherwise : value->bytes[0] != 0;
}

inline std::string Gguf::text_or(const std::string& key, const std::string& otherwise) const {
  const GgufValue* const value = find(key);
  if (value != nullptr && value->kind != GgufKind::text) {
    refuse(*value, "a text");
  }
  return value == nullptr ? otherwise : value->bytes;
}

inline std::vector<std::int64_t> Gguf::wholes(const std::string& key) const {
  const GgufValue* const value = find(key);
  std::vector<std::int64_t> out;
  if (value == nullptr) {
    return out;
  }
  if (value->kind != GgufKind::list || detail::gguf_kind_bytes(value->item) == 0) {
    refuse(*value, "a list of whole numbers");
  }
  for (std::uint64_t i = 0; i < value->count; ++i) {
    const detail::GgufNumber number = detail::gguf_number(*value, i);
    if (!number.whole || !number.fits) {
      refuse(*value, "a list of whole numbers below 2^63");
    }
    out.push_back(number.n);
  }
  return out;
}

inline std::vector<double> Gguf::numbers(const std::string& key) const {
  const GgufValue* const value = find(key);
  std::vector<double> out;
  if (value == nullptr) {
    return out;
  }
  if (value->kind != GgufKind::list || detail::gguf_kind_bytes(value->item) == 0) {
    refuse(*value, "a list of numbers");
  }
  for (std::uint64_t i = 0; i < value->count; ++i) {
    out.push_back(detail::gguf_number(*value, i).x);
  }
  return out;
}

inline std::vector<std::string> Gguf::texts(const std::string& key) const {
  const GgufValue* const value = find(key);
  std::vector<std::string> out;
  if (value == nullptr) {
    return out;
  }
  if (value->kind != GgufKind::list || value->item != GgufKind::text) {
    refuse(*value, "a list of texts");
  }
  std::size_t at = 0;  // the reader has checked every length
  for (std::uint64_t i = 0; i < value->count; ++i) {
    std::uint64_t length = 0;
    std::memcpy(&length, value->bytes.data() + at, 8);
    out.push_back(value->bytes.substr(at + 8, static_cast<std::size_t>(length)));
    at += 8 + static_cast<std::size_t>(length);
  }
  return out;
}

}  // namespace tinyscale
