#pragma once
// The GGUF format, versions 2 and 3: a table of typed keys, a table of tensors, then their bytes,
// each tensor at a multiple of the alignment. Tensors stay where the file is mapped.
// The reader trusts nothing: every count, length, offset and product is checked in 64 bits against
// the bytes that are there before anything is made of it. Source: the format's own description in
// the ggml project.

#include <cstddef>  // size_t
#include <cstdint>  // uint64_t
#include <cstring>  // memcpy
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/mapped_file.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/base/shape.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/compute/block_dequantize.hpp"
#include "tinyscale/compute/block_format.hpp"
#include "tinyscale/model/gguf_values.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

namespace detail {

// A name from the file as a message shows it.
inline std::string shown_name(const std::string& name) {
  return cat({"\"", json_escape(name.substr(0, 64)), name.size() > 64 ? "...\"" : "\""});
}

struct GgufType {
  std::uint32_t id;
  int elements, bytes;
  int format;  // as BlockFormat; -1: known by its size, not read
  const char* name;
};

// Null: no such type.
inline const GgufType* gguf_type(std::uint32_t id) {
  static const GgufType types[] = {
      {0, 1, 4, 0, "F32"},          {1, 1, 2, 1, "F16"},          {2, 32, 18, 4, "Q4_0"},
      {3, 32, 20, 5, "Q4_1"},       {6, 32, 22, 6, "Q5_0"},       {7, 32, 24, 7, "Q5_1"},
      {8, 32, 34, 3, "Q8_0"},       {9, 32, 36, 8, "Q8_1"},       {10, 256, 84, 9, "Q2_K"},
      {11, 256, 110, 10, "Q3_K"},   {12, 256, 144, 11, "Q4_K"},   {13, 256, 176, 12, "Q5_K"},
      {14, 256, 210, 13, "Q6_K"},   {15, 256, 292, 14, "Q8_K"},   {16, 256, 66, -1, "IQ2_XXS"},
      {17, 256, 74, -1, "IQ2_XS"},  {18, 256, 98, -1, "IQ3_XXS"}, {19, 256, 50, -1, "IQ1_S"},
      {20, 32, 18, -1, "IQ4_NL"},   {21, 256, 110, -1, "IQ3_S"},  {22, 256, 82, -1, "IQ2_S"},
      {23, 256, 136, -1, "IQ4_XS"}, {24, 1, 1, -1, "I8"},         {25, 1, 2, -1, "I16"},
      {26, 1, 4, -1, "I32"},        {27, 1, 8, -1, "I64"},        {28, 1, 8, -1, "F64"},
      {29, 256, 56, -1, "IQ1_M"},   {30, 1, 2, 2, "BF16"},        {34, 256, 54, -1, "TQ1_0"},
      {35, 256, 66, -1, "TQ2_0"},   {39, 32, 17, 15, "MXFP4"},    {40, 64, 36, 16, "NVFP4"}};
  for (const GgufType& type : types) {
    if (type.id == id) {
      return &type;
    }
  }
  return nullptr;
}

// Walks the bytes of a file; `who` stands before each error.
class GgufBytes {
 public:
  GgufBytes(const std::uint8_t* data, std::size_t size, const std::string& who)
      : data_(data), size_(size), who_(who) {}

  std::uint64_t left() const { return size_ - at_; }
  std::uint64_t position() const { return at_; }

  const std::uint8_t* take(std::uint64_t bytes, const std::string& what) {
    if (bytes > left()) {
      fail({who_, what, " takes ", bytes, " bytes at byte ", at_, "; the file ends at ", size_});
    }
    const std::uint8_t* const here = data_ + at_;
    at_ += static_cast<std::size_t>(bytes);
    return here;
  }
  std::uint32_t word(const std::string& what) {
    std::uint32_t n = 0;
    std::memcpy(&n, take(4, what), 4);  // little-endian, as are the machines that this runs on
    return n;
  }
  std::uint64_t long_word(const std::string& what) {
    std::uint64_t n = 0;
    std::memcpy(&n, take(8, what), 8);
    return n;
  }
  std::string text(const std::string& what) {
    const std::uint64_t length = long_word(what);
    return std::string(reinterpret_cast<const char*>(take(length, what)),
                       static_cast<std::size_t>(length));
  }
  // So many things of at least that many bytes each must fit into what is left.
  void check_count(std::uint64_t count, std::uint64_t least_bytes, const std::string& what) const {
    if (count > left() / least_bytes) {
      fail({who_, count, " ", what, " of at least ", least_bytes, " bytes each; only ", left(),
            " bytes follow"});
    }
  }
  [[noreturn]] void wrong(const std::string& sentence) const { fail({who_, sentence}); }

 private:
  const std::uint8_t* data_;
  std::size_t size_, at_ = 0;
  const std::string& who_;
};

inline GgufKind gguf_kind(std::uint32_t id, const GgufBytes& in, const std::string& what) {
  if (id > 12) {
    in.wrong(cat({what, " has the value type ", id, "; 0 to 12 are right"}));
  }
  return static_cast<GgufKind>(id);
}

// Past `count` items; lists within lists at most four deep.
inline void skip_gguf_items(GgufBytes& in, GgufKind kind, std::uint64_t count, int depth,
                            const std::string& what) {
  const std::uint64_t fixed = gguf_kind_bytes(kind);
  const std::uint64_t least = fixed > 0 ? fixed : kind == GgufKind::text ? 8 : 12;
  in.check_count(count, least, cat({name_of(kind), " items of ", what}));
  if (fixed > 0) {
    const std::uint8_t* const items = in.take(fixed * count, what);
    for (std::uint64_t i = 0; kind == GgufKind::boolean && i < count; ++i) {
      if (items[i] > 1) {
        in.wrong(cat({what, " has a bool of ", static_cast<int>(items[i]), "; 0 or 1 is right"}));
      }
    }
    return;
  }
  if (kind == GgufKind::list && depth == 4) {
    in.wrong(cat({what, " has lists within lists more than 4 deep"}));
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    if (kind == GgufKind::text) {
      in.take(in.long_word(what), what);
    } else {
      const GgufKind inner = gguf_kind(in.word(what), in, what);
      skip_gguf_items(in, inner, in.long_word(what), depth + 1, what);
    }
  }
}

inline GgufValue read_gguf_value(GgufBytes& in, std::uint64_t number) {
  GgufValue value;
  const std::string place = cat({"key ", number});
  value.key = in.text(place);
  if (value.key.empty() || value.key.size() > 65535) {
    in.wrong(cat({place, " has a name of ", value.key.size(), " bytes; 1 to 65535 are right"}));
  }
  const std::string what = cat({"key ", shown_name(value.key)});
  value.kind = gguf_kind(in.word(what), in, what);
  if (value.kind == GgufKind::text) {
    value.bytes = in.text(what);
    return value;
  }
  value.item = value.kind;
  if (value.kind == GgufKind::list) {
    value.item = gguf_kind(in.word(what), in, what);
    value.count = in.long_word(what);
  }
  GgufBytes ahead = in;
  skip_gguf_items(ahead, value.item, value.count, 0, what);
  const std::uint64_t bytes = ahead.position() - in.position();
  value.bytes.assign(reinterpret_cast<const char*>(in.take(bytes, what)),
                     static_cast<std::size_t>(bytes));
  return value;
}

// Sizes and type; its place follows when the data's start is known.
inline GgufTensor read_gguf_info(GgufBytes& in, std::uint64_t number) {
  GgufTensor tensor;
  const std::string place = cat({"tensor ", number});
  tensor.name = in.text(place);
  if (tensor.name.empty() || tensor.name.size() > 64) {
    in.wrong(cat({place, " has a name of ", tensor.name.size(), " bytes; 1 to 64 are right"}));
  }
  const std::string what = cat({"tensor ", shown_name(tensor.name)});
  const std::uint32_t dims = in.word(what);
  if (dims > 4) {
    in.wrong(cat({what, " has ", dims, " dimensions; at most 4 are right"}));
  }
  std::uint64_t sizes[4] = {1, 1, 1, 1}, count = 1;
  for (std::uint32_t i = 0; i < dims; ++i) {
    sizes[i] = in.long_word(what);
    if (sizes[i] == 0 || sizes[i] > (std::uint64_t{1} << 62) / count) {
      in.wrong(cat({what, ": dimension ", i, " is ", sizes[i],
                    "; 1 or more, and at most 2^62 elements in all, are right"}));
    }
    count *= sizes[i];
  }
  for (std::uint32_t i = dims; i > 0; --i) {
    tensor.shape.push_back(sizes[i - 1]);
  }
  tensor.type = in.word(what);
  const GgufType* const type = gguf_type(tensor.type);
  if (type == nullptr) {
    in.wrong(cat(
        {what, " has the type ", tensor.type, "; 0 to 3, 6 to 30, 34, 35, 39 and 40 are known"}));
  }
  const std::uint64_t elements = static_cast<std::uint64_t>(type->elements);
  const std::uint64_t block = static_cast<std::uint64_t>(type->bytes);
  if (sizes[0] % elements != 0) {
    in.wrong(cat({what, " has rows of ", sizes[0], " elements in ", type->name, "; a multiple of ",
                  type->elements, " is right"}));
  }
  if (count / elements > (std::uint64_t{1} << 62) / block) {
    in.wrong(cat({what, " takes more than 2^62 bytes"}));
  }
  tensor.bytes = count / elements * block;
  tensor.readable = type->format >= 0;
  tensor.format = static_cast<BlockFormat>(tensor.readable ? type->format : 0);
  tensor.offset = in.long_word(what);
  return tensor;
}

// A name twice is an Error.
inline SortedNames sorted_gguf_names(std::vector<std::string> names, const char* what,
                                     const GgufBytes& in) {
  SortedNames sorted(static_cast<std::vector<std::string>&&>(names));
  if (sorted.twice() != sorted.none) {
    in.wrong(cat({what, " ", shown_name(sorted.name(sorted.twice())), " is there twice"}));
  }
  return sorted;
}

// Where each tensor lies: aligned, inside the file, none on another.
inline void place_gguf_tensors(Gguf& file, const std::uint8_t* data, std::uint64_t size,
                               std::uint64_t header, const GgufBytes& in) {
  const std::uint64_t start = (header + file.alignment - 1) / file.alignment * file.alignment;
  Heap<Event> by_offset;
  for (std::size_t i = 0; i < file.tensors.size(); ++i) {
    GgufTensor& t = file.tensors[i];
    if (t.offset % file.alignment != 0) {
      in.wrong(cat({"tensor ", shown_name(t.name), " is at ", t.offset,
                    " of the data; a multiple of ", file.alignment, " is right"}));
    }
    if (start > size || t.offset > size - start || t.bytes > size - start - t.offset) {
      in.wrong(cat({"tensor ", shown_name(t.name), " takes ", t.bytes, " bytes at ", t.offset,
                    " of the data, which has ", start > size ? 0 : size - start}));
    }
    t.data = data + start + t.offset;
    by_offset.push({static_cast<double>(t.offset), i, 0});  // below 2^53: inside a file
  }
  std::uint64_t end = 0;
  const GgufTensor* last = nullptr;
  while (!by_offset.empty()) {
    const GgufTensor& t = file.tensors[by_offset.pop().item];
    if (t.offset < end) {
      in.wrong(cat({"tensor ", shown_name(t.name), " begins at ", t.offset, " of the data, inside ",
                    shown_name(last->name), ", which ends at ", end}));
    }
    end = t.offset + t.bytes;
    last = &t;
  }
}

inline void read_gguf_tables(Gguf& file, GgufBytes& in, std::uint64_t tensors, std::uint64_t keys) {
  std::vector<std::string> names, tensor_names;
  in.check_count(keys, 13, "keys");  // a length, a type, a byte
  for (std::uint64_t i = 0; i < keys; ++i) {
    file.metadata.push_back(read_gguf_value(in, i));
    names.push_back(file.metadata.back().key);
  }
  file.key_names = sorted_gguf_names(static_cast<std::vector<std::string>&&>(names), "key", in);
  in.check_count(tensors, 24, "tensors");  // a length, the number of dims, type, offset
  for (std::uint64_t i = 0; i < tensors; ++i) {
    file.tensors.push_back(read_gguf_info(in, i));
    tensor_names.push_back(file.tensors.back().name);
  }
  file.tensor_names =
      sorted_gguf_names(static_cast<std::vector<std::string>&&>(tensor_names), "tensor", in);
}

}  // namespace detail

// Of bytes that the caller keeps while it is used.
inline Gguf parse_gguf(const std::uint8_t* data, std::size_t size, const std::string& name) {
  Gguf file;
  file.name = name;
  const std::string who = detail::cat({"load: \"", name, "\": "});
  detail::GgufBytes in(data, size, who);
  if (size < 24 || std::memcmp(data, "GGUF", 4) != 0) {
    in.wrong(detail::cat({size < 24 ? detail::cat({size, " bytes are"}) : std::string("this is"),
                          " no GGUF file; it begins with the letters GGUF and 20 bytes more"}));
  }
  in.take(4, "magic");
  file.version = in.word("version");
  if (file.version != 2 && file.version != 3) {
    in.wrong(detail::cat(
        {"GGUF version ", file.version,
         file.version != 0 && (file.version & 0xffff) == 0 ? " (of the other byte order)" : "",
         "; 2 or 3 is right"}));
  }
  const std::uint64_t tensors = in.long_word("count of tensors");
  const std::uint64_t keys = in.long_word("count of keys");
  detail::read_gguf_tables(file, in, tensors, keys);
  file.alignment = static_cast<std::uint64_t>(file.whole_or("general.alignment", 1, 1 << 30, 32));
  if ((file.alignment & (file.alignment - 1)) != 0) {
    in.wrong(detail::cat({"general.alignment is ", file.alignment, "; a power of two is right"}));
  }
  detail::place_gguf_tensors(file, data, size, in.position(), in);
  return file;
}

inline Gguf parse_gguf(const Shared<MappedFile>& bytes) {
  Gguf file = parse_gguf(bytes->data(), bytes->size(), bytes->path());
  file.file = bytes;
  return file;
}

inline Gguf read_gguf(const std::string& path) { return parse_gguf(map_file(path, "load")); }

// As float32: `shape` of `format` at `data`, which may be a part of a tensor.
inline Tensor read_stored(BlockFormat format, const Shape& shape, const std::uint8_t* data) {
  Tensor out(shape);
  kernels::dequantize_blocks(format, out.count(), data, out.data());
  return out;
}

namespace detail {

inline void check_readable(const Gguf& file, const GgufTensor& tensor) {
  if (!tensor.readable) {
    fail({"load: \"", file.name, "\": tensor ", shown_name(tensor.name), " is ",
          gguf_type(tensor.type)->name,
          "; F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q8_1, Q2_K to Q6_K, Q8_K, MXFP4 or "
          "NVFP4 is right"});
  }
}

}  // namespace detail

inline Tensor read_gguf_tensor(const Gguf& file, const GgufTensor& tensor) {
  detail::check_readable(file, tensor);
  return read_stored(tensor.format, tensor.shape, tensor.data);
}

}  // namespace tinyscale
