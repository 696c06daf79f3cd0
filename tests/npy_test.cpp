// .npy arrays of every type, order and version; shards of tokens; files that lie.
#include <doctest/doctest.h>

#include "error_of.hpp"
#include "model_files.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

// A file of that version with that dict and data.
std::string npy(const std::string& dict, const std::string& data, int version = 1) {
  std::string out = "\x93NUMPY" + std::string(1, static_cast<char>(version)) + std::string(1, '\0');
  out += version == 1 ? raw(static_cast<std::uint16_t>(dict.size()))
                      : raw(static_cast<std::uint32_t>(dict.size()));
  return out + dict + data;
}

std::string dict(const std::string& type, const std::string& shape, bool fortran = false) {
  return "{'descr': '" + type + "', 'fortran_order': " + (fortran ? "True" : "False") +
         ", 'shape': " + shape + ", }   \n";
}

std::vector<float> values(const std::string& bytes) {
  const ts::Tensor x = ts::parse_npy(bytes_of(bytes), bytes.size(), "x.npy");
  return std::vector<float>(x.data(), x.data() + x.count());
}

std::string refusal(const std::string& bytes) {
  const std::string error = error_of([&] { values(bytes); });
  const std::string start = "read_npy: \"x.npy\": ";
  return error.compare(0, start.size(), start) == 0 ? error.substr(start.size()) : error;
}

template <class T>
std::string both(T a, T b) {
  return raw(a) + raw(b);
}

std::string reversed(const std::string& s) { return std::string(s.rbegin(), s.rend()); }

using Floats = std::vector<float>;

}  // namespace

TEST_CASE("every type of number in a .npy file becomes float32") {
  CHECK(values(npy(dict("<f4", "(2,)"), both(1.5f, -2.0f))) == Floats{1.5f, -2.0f});
  CHECK(values(npy(dict("<f8", "(2,)"), both(1.5, -2.0))) == Floats{1.5f, -2.0f});
  CHECK(values(npy(dict("<f2", "(2,)"), both<std::uint16_t>(0x3e00, 0xc000))) ==
        Floats{1.5f, -2.0f});
  CHECK(values(npy(dict("|i1", "(2,)"), both<std::int8_t>(-128, 127))) == Floats{-128, 127});
  CHECK(values(npy(dict("<i2", "(2,)"), both<std::int16_t>(-300, 7))) == Floats{-300, 7});
  CHECK(values(npy(dict("=i4", "(2,)"), both<std::int32_t>(-70000, 7))) == Floats{-70000, 7});
  CHECK(values(npy(dict("i8", "(2,)"),
                   both<std::int64_t>(std::numeric_limits<std::int64_t>::min(), -1))) ==
        Floats{-9223372036854775808.0f, -1});
  CHECK(values(npy(dict("|u1", "(2,)"), both<std::uint8_t>(255, 0))) == Floats{255, 0});
  CHECK(values(npy(dict("<u2", "(2,)"), both<std::uint16_t>(65535, 0))) == Floats{65535, 0});
  CHECK(values(npy(dict("<u4", "(2,)"), both<std::uint32_t>(4294967295U, 1))) ==
        Floats{4294967296.0f, 1});
  CHECK(values(npy(dict("<u8", "(2,)"), both<std::uint64_t>(~std::uint64_t{0}, 1))) ==
        Floats{18446744073709551616.0f, 1});
  CHECK(values(npy(dict("|b1", "(2,)"), both<std::uint8_t>(1, 0))) == Floats{1, 0});
  CHECK(values(npy(dict(">f4", "(1,)"), reversed(raw(1.5f)))) == Floats{1.5f});
  CHECK(values(npy(dict(">i2", "(1,)"), reversed(raw<std::int16_t>(-300)))) == Floats{-300});
  CHECK(values(npy(dict(">f8", "(1,)"), reversed(raw(-2.5)))) == Floats{-2.5f});
}

TEST_CASE("every version, the order of Fortran, scalars and empty arrays are read") {
  for (const int version : {1, 2, 3}) {
    CHECK(values(npy(dict("<f4", "(1, 2)"), both(1.0f, 2.0f), version)) == Floats{1, 2});
  }
  std::string data;
  for (int i = 0; i < 24; ++i) {
    data += raw(static_cast<float>(i));
  }
  const ts::Tensor c = ts::parse_npy(bytes_of(npy(dict("<f4", "(2, 3, 4)"), data)),
                                     npy(dict("<f4", "(2, 3, 4)"), data).size(), "x");
  const std::string columns = npy(dict("<f4", "(4, 3, 2)", true), data);
  const ts::Tensor f = ts::parse_npy(bytes_of(columns), columns.size(), "x");
  CHECK(c.shape() == ts::Shape{2, 3, 4});
  CHECK(f.shape() == ts::Shape{4, 3, 2});
  for (std::int64_t i = 0; i < 4; ++i) {
    for (std::int64_t j = 0; j < 3; ++j) {
      for (std::int64_t k = 0; k < 2; ++k) {  // the same memory, read with the indices turned
        CHECK(f.data()[(i * 3 + j) * 2 + k] == c.data()[(k * 3 + j) * 4 + i]);
      }
    }
  }
  CHECK(values(npy(dict("<f4", "()"), raw(3.0f))) == Floats{3});
  CHECK(values(npy(dict("<f4", "(0, 5)"), "")).empty());
  CHECK(values(npy("{\"shape\":(1,),\"descr\":\"<f4\",\"fortran_order\":True}", raw(3.0f))) ==
        Floats{3});
}

TEST_CASE("what write_npy writes read_npy gives back, data at a multiple of 64") {
  for (const ts::Shape& shape : {ts::Shape{}, ts::Shape{3}, ts::Shape{2, 5}, ts::Shape{2, 0, 3}}) {
    const std::string path = temporary_file("array.npy");
    const ts::Tensor x = ts::randn(shape, 3, 1.0f);
    ts::write_npy(path, x);
    const ts::Tensor y = ts::read_npy(path);
    CHECK(y.shape() == shape);
    CHECK(x.values() == y.values());
    CHECK((file_bytes(path).size() - static_cast<std::size_t>(4 * x.count())) % 64 == 0);
    std::remove(path.c_str());
  }
  const std::string path = temporary_file("turned.npy");
  const ts::Tensor x = ts::transpose(ts::randn({2, 3}, 4, 1.0f), 0, 1);  // a view
  ts::write_npy(path, x);
  CHECK(ts::read_npy(path).data()[1] == ts::contiguous(x).data()[1]);
  CHECK(file_bytes(path).substr(10, 60) ==
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), } ");
  std::remove(path.c_str());
}

TEST_CASE("every field of a .npy file is checked") {
  CHECK(refusal("\x93NUMPZ\1xxxxxxxxx") ==
        "no .npy file; it begins with the byte 0x93, NUMPY and a version");
  CHECK(refusal("\x93NUMPY") == "no .npy file; it begins with the byte 0x93, NUMPY and a version");
  CHECK(refusal(npy("{}  ", "", 4)) == "version 4; 1, 2 or 3 is right");
  std::string bytes = npy(dict("<f4", "(1,)"), raw(1.0f));
  bytes[8] = '\xff';
  CHECK(refusal(bytes) == "a header of 255 bytes; only 65 follow");
  CHECK(refusal(npy("{}  ", "")) ==
        "header at byte 4: descr, fortran_order and shape, and no more, are right");
  CHECK(refusal(npy(dict("<f4", "(1,)") + "x", "")) ==
        "header at byte 61: descr, fortran_order and shape, and no more, are right");
  CHECK(refusal(npy("[]  ", "")) == "header at byte 0: '{' is right here");
  CHECK(refusal(npy("{'descr", "")) == "header at byte 2: a text that ends is right here");
  CHECK(refusal(npy("{'a': 1}", "")) == "header at byte 4: key \"a\" is unknown or twice");
  CHECK(refusal(npy("{'descr': '<f4', 'descr': '<f4'}", "")) ==
        "header at byte 24: key \"descr\" is unknown or twice");
  const std::string types = "; f2, f4, f8, i1 to i8, u1 to u8 or b1 after <, >, | or = is right";
  CHECK(refusal(npy(dict("<c8", "(1,)"), "")) == "header at byte 15: descr is \"<c8\"" + types);
  CHECK(refusal(npy(dict("|O", "(1,)"), "")) == "header at byte 14: descr is \"|O\"" + types);
  CHECK(refusal(npy(dict("", "(1,)"), "")) == "header at byte 12: descr is \"\"" + types);
  CHECK(refusal(npy("{'fortran_order': Maybe}", "")) ==
        "header at byte 18: True or False is right here");
  CHECK(refusal(npy(dict("<f4", "(a,)"), "")) ==
        "header at byte 51: a size is right here, at most 8 of them");
  CHECK(refusal(npy(dict("<f4", "(1,1,1,1,1,1,1,1,1)"), "")) ==
        "header at byte 68: a size is right here, at most 8 of them");
  CHECK(refusal(npy(dict("<f4", "(-1,)"), "")) ==
        "header at byte 51: a size is right here, at most 8 of them");
  CHECK(refusal(npy(dict("<f4", "(99999999999999999999,)"), "")) ==
        "header at byte 69: a size is above 2^60");
  CHECK(refusal(npy(dict("<f4", "(1)"), raw(1.0f))) ==
        "header at byte 53: a comma is right after the only size");
  CHECK(refusal(npy(dict("<f4", "(01,)"), raw(1.0f))) ==
        "header at byte 53: a size is right here, at most 8 of them");
  CHECK(values(npy(dict("<f4", "(1L,)"), raw(1.0f))) == Floats{1.0f});  // of Python 2
  CHECK(values(npy(dict("<f4", "(1L, 2L)"), both(1.0f, 2.0f))) == Floats{1.0f, 2.0f});
  CHECK(refusal(npy(dict("<f4", "(L,)"), raw(1.0f))) ==
        "header at byte 51: a size is right here, at most 8 of them");
  CHECK(error_of([] { ts::write_npy("never.npy", ts::Tensor()); }) ==
        "write_npy: the tensor is empty (default-constructed); give one with a shape");
  CHECK(refusal(npy(dict("<f4", "(1 2)"), "")) == "header at byte 53: ')' is right here");
  CHECK(refusal(npy(dict("<f4", "(1000000000000, 1000000000000)"), "")) ==
        "Shape: [1000000000000, 1000000000000] has too many elements; at most 2^63 - 1");
  CHECK(refusal(npy(dict("<f4", "(1000000000000,)"), raw(1.0f))) ==
        "[1000000000000] of f4 has 1000000000000 numbers; 4 bytes follow the header");
  CHECK(refusal(npy(dict("<f4", "(1,)"), "abc")) ==
        "[1] of f4 has 1 numbers; 3 bytes follow the header");
  const std::string whole = npy(dict("<f4", "(2, 3)", true), std::string(24, 'x'));
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const std::vector<std::uint8_t> part(whole.begin(),
                                         whole.begin() + static_cast<std::ptrdiff_t>(n));
    CHECK_THROWS_AS(ts::parse_npy(part.data(), part.size(), "x"), ts::Error);
  }
}

TEST_CASE("shards of tokens: bare ids as nanoGPT writes them, with a header as llm.c does") {
  const auto ids = [](const std::string& bytes) {
    return ts::parse_token_shard(bytes_of(bytes), bytes.size(), "x.bin");
  };
  const std::string two = both<std::uint16_t>(50256, 7);
  CHECK(ids(two) == std::vector<std::int32_t>{50256, 7});
  const auto head = [](std::int32_t version, std::int32_t count) {
    std::string out = raw<std::int32_t>(20240520) + raw(version) + raw(count);
    return out + std::string(1024 - out.size(), '\0');
  };
  CHECK(ids(head(1, 2) + two) == std::vector<std::int32_t>{50256, 7});
  const std::string path = temporary_file("shard.bin");
  std::ofstream(path, std::ios::binary) << two;
  CHECK(ts::read_token_shard(path) == std::vector<std::int32_t>{50256, 7});
  std::remove(path.c_str());
  CHECK(error_of([&] { ids(head(2, 2) + two); }) ==
        "read_token_shard: \"x.bin\": version 2 and 2 tokens in the header; 1 and 2 are right");
  CHECK(error_of([&] { ids(head(1, 3) + two); }) ==
        "read_token_shard: \"x.bin\": version 1 and 3 tokens in the header; 1 and 2 are right");
  CHECK(error_of([&] { ids("abc"); }) ==
        "read_token_shard: \"x.bin\": 3 bytes of ids; 2 a token and at least one token are right");
  CHECK(error_of([&] { ids(""); }) ==
        "read_token_shard: \"x.bin\": 0 bytes of ids; 2 a token and at least one token are right");
}
