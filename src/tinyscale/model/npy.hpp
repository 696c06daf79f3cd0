#pragma once
// NumPy's .npy: a magic, a version, a Python dict in text with the numbers' type, order and shape,
// then the numbers. And shards of training data: bare uint16 ids (nanoGPT), or after 256 int32 of
// header (llm.c). Source: numpy.lib.format. Nothing of a file is trusted.

#include <cstddef>  // size_t
#include <cstdint>  // uint64_t
#include <cstring>  // memcpy
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/mapped_file.hpp"
#include "tinyscale/base/save_file.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/compute/block_dequantize.hpp"
#include "tinyscale/tensor/arithmetic.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {
namespace detail {

struct NpyHeader {
  char order = '<', kind = 'f';  // of bytes: < little, > big; f, i, u or b
  std::uint64_t size = 4;        // bytes of a number
  bool fortran = false;          // the first dim is contiguous
  Shape shape;
};

// The dict literal: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class NpyDict {
 public:
  NpyDict(const std::string& text, const std::string& who) : text_(text), who_(who) {}

  NpyHeader read() {
    NpyHeader header;
    bool seen[3] = {};
    want('{');
    while (!next('}')) {
      const std::string key = quoted();
      const int which = key == "descr" ? 0 : key == "fortran_order" ? 1 : key == "shape" ? 2 : 3;
      if (which == 3 || seen[which]) {
        wrong(cat({"key \"", json_escape(key.substr(0, 40)), "\" is unknown or twice"}));
      }
      seen[which] = true;
      want(':');
      if (which == 0) {
        read_type(quoted(), header);
      } else if (which == 1) {
        header.fortran = read_flag();
      } else {
        read_shape(header.shape);
      }
      if (!next(',')) {
        want('}');
        break;
      }
    }
    blanks();
    if (at_ != text_.size() || !seen[0] || !seen[1] || !seen[2]) {
      wrong("descr, fortran_order and shape, and no more, are right");
    }
    return header;
  }

 private:
  [[noreturn]] void wrong(const std::string& sentence) const {
    fail({who_, "header at byte ", at_, ": ", sentence});
  }
  void blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) {
      ++at_;
    }
  }
  bool next(char c) {
    blanks();
    const bool found = at_ < text_.size() && text_[at_] == c;
    at_ += found ? 1U : 0U;
    return found;
  }
  void want(char c) {
    if (!next(c)) {
      wrong(cat({"'", c, "' is right here"}));
    }
  }
  std::string quoted() {
    const char quote = next('"') ? '"' : '\'';
    if (quote == '\'') {
      want('\'');
    }
    const std::size_t end = text_.find(quote, at_);
    if (end == std::string::npos) {
      wrong("a text that ends is right here");
    }
    const std::string out = text_.substr(at_, end - at_);
    at_ = end + 1;
    return out;
  }
  bool read_flag() {
    blanks();
    const bool yes = text_.compare(at_, 4, "True") == 0;
    if (!yes && text_.compare(at_, 5, "False") != 0) {
      wrong("True or False is right here");
    }
    at_ += yes ? 4 : 5;
    return yes;
  }
  void read_type(const std::string& type, NpyHeader& header) const {
    static const char* const known[] = {"f2", "f4", "f8", "i1", "i2", "i4",
                                        "i8", "u1", "u2", "u4", "u8", "b1"};
    const bool order = !type.empty() && std::strchr("<>|=", type[0]) != nullptr;
    const std::string rest = order ? type.substr(1) : type;
    for (const char* name : known) {
      if (rest == name) {
        header.order = order && type[0] == '>' ? '>' : '<';
        header.kind = rest[0];
        header.size = static_cast<std::uint64_t>(rest[1] - '0');
        return;
      }
    }
    wrong(cat({"descr is \"", json_escape(type.substr(0, 40)),
               "\"; f2, f4, f8, i1 to i8, u1 to u8 or b1 after <, >, | or = is right"}));
  }
  void read_shape(Shape& shape) {
    want('(');
    while (!next(')')) {
      blanks();
      std::uint64_t n = 0;
      const std::size_t begin = at_;
      for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
        n = n * 10 + static_cast<std::uint64_t>(text_[at_] - '0');
        if (n > std::uint64_t{1} << 60) {
          wrong("a size is above 2^60");
        }
      }
      const bool zeros = at_ > begin + 1 && text_[begin] == '0';  // 03 is no number in Python
      if (at_ == begin || zeros || shape.size() == Shape::max_dims) {
        wrong(cat({"a size is right here, at most ", Shape::max_dims, " of them"}));
      }
      at_ += at_ < text_.size() && text_[at_] == 'L' ? 1U : 0U;  // as Python 2 wrote it
      shape.push_back(n);
      if (!next(',')) {
        want(')');
        if (shape.size() == 1) {  // (3) is a number, (3,) a tuple
          wrong("a comma is right after the only size");
        }
        break;
      }
    }
  }

  const std::string& text_;
  const std::string& who_;
  std::size_t at_ = 0;
};

// One number of the file as float32 (what float32 cannot hold is rounded).
inline float npy_number(const NpyHeader& header, const std::uint8_t* at) {
  std::uint8_t bytes[8] = {};
  const std::size_t n = static_cast<std::size_t>(header.size);
  for (std::size_t i = 0; i < n; ++i) {
    bytes[i] = at[header.order == '>' ? n - 1 - i : i];
  }
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes, 8);
  if (header.kind == 'f') {
    double real = 0;
    std::memcpy(&real, &bits, 8);
    return n == 2   ? half_to_float(static_cast<std::uint16_t>(bits))
           : n == 4 ? float_of(static_cast<std::uint32_t>(bits))
                    : static_cast<float>(real);
  }
  if (header.kind == 'b') {
    return bits != 0 ? 1.0f : 0.0f;
  }
  const std::uint64_t sign = std::uint64_t{1} << (8 * n - 1);
  if (header.kind == 'i' && (bits & sign) != 0) {  // extended: -(2^k - bits)
    return -static_cast<float>(sign - (bits - sign));
  }
  return static_cast<float>(bits);
}

inline void read_npy_numbers(const NpyHeader& header, const std::uint8_t* data, Tensor& out) {
  const std::int64_t count = out.count();
  const std::int64_t size = static_cast<std::int64_t>(header.size);
  if (count == 0) {
    return;  // strides beside a size 0 run over
  }
  if (!header.fortran || out.shape().size() < 2) {
    if (header.kind == 'f' && header.size == 4 && header.order == '<') {
      std::memcpy(out.data(), data, static_cast<std::size_t>(4 * count));
      return;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      out.data()[i] = npy_number(header, data + i * size);
    }
    return;
  }
  const Shape& shape = header.shape;  // file order: the first index runs fastest
  std::int64_t index[Shape::max_dims] = {}, strides[Shape::max_dims] = {};
  std::int64_t stride = 1;
  for (int d = 0; d < shape.size(); ++d) {
    strides[d] = stride;
    stride *= shape[d];
  }
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t from = 0;
    for (int d = 0; d < shape.size(); ++d) {
      from += index[d] * strides[d];
    }
    out.data()[i] = npy_number(header, data + from * size);
    for (int d = shape.size() - 1; d >= 0 && ++index[d] == shape[d]; --d) {
      index[d] = 0;
    }
  }
}

}  // namespace detail

inline Tensor parse_npy(const std::uint8_t* data, std::size_t size, const std::string& name) {
  const std::string who = detail::cat({"read_npy: \"", name, "\": "});
  if (size < 12 || std::memcmp(data, "\x93NUMPY", 6) != 0) {
    detail::fail({who, "no .npy file; it begins with the byte 0x93, NUMPY and a version"});
  }
  const int version = data[6];
  if (version < 1 || version > 3) {
    detail::fail({who, "version ", version, "; 1, 2 or 3 is right"});
  }
  std::uint32_t length = 0;
  std::memcpy(&length, data + 8, version == 1 ? 2 : 4);
  const std::size_t start = version == 1 ? 10 : 12;
  if (length > size - start) {
    detail::fail({who, "a header of ", length, " bytes; only ", size - start, " follow"});
  }
  const std::string text(reinterpret_cast<const char*>(data) + start, length);
  const detail::NpyHeader header = detail::NpyDict(text, who).read();
  std::uint64_t count = 0;
  try {
    count = static_cast<std::uint64_t>(header.shape.count());
  } catch (const Error& error) {  // the product overflows
    detail::fail({who, error.what()});
  }
  const std::uint64_t left = size - start - length;
  if (left % header.size != 0 || left / header.size != count) {
    detail::fail({who, header.shape, " of ", header.kind, header.size, " has ", count, " numbers; ",
                  left, " bytes follow the header"});
  }
  Tensor out(header.shape);
  detail::read_npy_numbers(header, data + start + length, out);
  return out;
}

// float32 of what is there: f2, f4, f8, whole numbers of 1 to 8 bytes, bools (0 or 1).
inline Tensor read_npy(const std::string& path) {
  const MappedFile file(path, "read_npy");
  return parse_npy(file.data(), file.size(), path);
}

// Version 1, '<f4', C order, data at a multiple of 64.
inline void write_npy(const std::string& path, const Tensor& value) {
  if (!value.defined()) {
    detail::fail({"write_npy: the tensor is empty (default-constructed); give one with a shape"});
  }
  std::string shape;
  for (const std::int64_t dim : value.shape()) {
    shape += detail::cat({shape.empty() ? "" : " ", dim, ","});
  }
  if (value.shape().size() > 1) {
    shape.pop_back();
  }
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + shape + "), }";
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  const std::string magic = {'\x93',
                             'N',
                             'U',
                             'M',
                             'P',
                             'Y',
                             1,
                             0,
                             static_cast<char>(header.size() & 255),
                             static_cast<char>(header.size() >> 8)};
  const Tensor numbers = contiguous(value);
  detail::SaveFile file("write_npy", path);
  file.write(magic.data(), magic.size());
  file.write(header.data(), header.size());
  file.write(numbers.data(), 4 * static_cast<std::size_t>(numbers.count()));
  file.finish();
}

inline std::vector<std::int32_t> parse_token_shard(const std::uint8_t* data, std::size_t size,
                                                   const std::string& name) {
  std::int32_t head[3] = {};
  std::size_t start = 0;
  if (size >= 1024) {
    std::memcpy(head, data, 12);
  }
  if (head[0] == 20240520) {
    start = 1024;
    if (head[1] != 1 || head[2] < 0 || static_cast<std::size_t>(head[2]) != (size - start) / 2) {
      detail::fail({"read_token_shard: \"", name, "\": version ", head[1], " and ", head[2],
                    " tokens in the header; 1 and ", (size - start) / 2, " are right"});
    }
  }
  if ((size - start) % 2 != 0 || size == start) {
    detail::fail({"read_token_shard: \"", name, "\": ", size - start,
                  " bytes of ids; 2 a token and at least one token are right"});
  }
  std::vector<std::int32_t> ids((size - start) / 2);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::uint16_t id = 0;
    std::memcpy(&id, data + start + 2 * i, 2);
    ids[i] = id;
  }
  return ids;
}

// train.bin and val.bin of nanoGPT, or a shard of llm.c.
inline std::vector<std::int32_t> read_token_shard(const std::string& path) {
  const MappedFile file(path, "read_token_shard");
  return parse_token_shard(file.data(), file.size(), path);
}

}  // namespace tinyscale
