// GGUF: what was written comes back, real files hold the same numbers as llama2.c's, and a file
// that lies is refused with a reason.
#include <doctest/doctest.h>

#include <cmath>

#include "error_of.hpp"
#include "model_files.hpp"
#include "tinyscale.hpp"

#include "gguf_write.hpp"

namespace ts = tinyscale;

namespace {

std::string text(const std::string& s) { return raw<std::uint64_t>(s.size()) + s; }

std::string header(std::uint64_t tensors, std::uint64_t keys) {
  return "GGUF" + raw<std::uint32_t>(3) + raw(tensors) + raw(keys);
}

// Key, type, value.
std::string key(const std::string& name, std::uint32_t type, const std::string& value) {
  return text(name) + raw(type) + value;
}

std::string info(const std::string& name, const std::vector<std::uint64_t>& dims,
                 std::uint32_t type, std::uint64_t offset) {
  std::string out = text(name) + raw(static_cast<std::uint32_t>(dims.size()));
  for (const std::uint64_t dim : dims) {
    out += raw(dim);
  }
  return out + raw(type) + raw(offset);
}

// Padded to 32, then so many bytes of data.
std::string with_data(std::string bytes, std::size_t data) {
  bytes.append((32 - bytes.size() % 32) % 32, '\0');
  return bytes + std::string(data, '\0');
}

std::string refusal(const std::string& bytes) {
  const std::string error =
      error_of([&] { ts::parse_gguf(bytes_of(bytes), bytes.size(), "x.gguf"); });
  const std::string start = "load: \"x.gguf\": ";
  return error.compare(0, start.size(), start) == 0 ? error.substr(start.size()) : error;
}

// The parameters of stories260K as llama2.c stores them, under our names.
struct Story {
  std::string name;
  ts::Shape shape;
  std::vector<float> numbers;
};

std::vector<Story> stories() {
  std::string bytes = file_bytes(model_path("stories260K/stories260K.bin"));
  std::vector<Story> all;
  if (bytes.empty()) {
    return all;
  }
  const std::vector<float> file = floats_of(bytes.substr(28));
  const std::int64_t d = 64, hidden = 172, kv = 32, layers = 5;
  std::size_t at = 0;
  const auto add = [&](const std::string& name, const ts::Shape& shape) {
    const std::size_t n = static_cast<std::size_t>(shape.count());
    all.push_back({name, shape,
                   std::vector<float>(file.begin() + static_cast<std::ptrdiff_t>(at),
                                      file.begin() + static_cast<std::ptrdiff_t>(at + n))});
    at += n;
  };
  const auto add_layers = [&](const std::string& name, const ts::Shape& shape) {
    for (std::int64_t i = 0; i < layers; ++i) {
      add("model.layers." + std::to_string(i) + "." + name + ".weight", shape);
    }
  };
  add("model.embed_tokens.weight", {512, d});
  add_layers("input_layernorm", {d});
  add_layers("self_attn.q_proj", {d, d});
  add_layers("self_attn.k_proj", {kv, d});
  add_layers("self_attn.v_proj", {kv, d});
  add_layers("self_attn.o_proj", {d, d});
  add_layers("post_attention_layernorm", {d});
  add_layers("mlp.gate_proj", {hidden, d});
  add_layers("mlp.down_proj", {d, hidden});
  add_layers("mlp.up_proj", {hidden, d});
  add("model.norm.weight", {d});
  return all;
}

std::vector<float> read_part(const ts::Gguf& file, const ts::GgufPart& part) {
  const ts::Tensor tensor = ts::read_gguf_part(file, part);
  return std::vector<float>(tensor.data(), tensor.data() + tensor.count());
}

// What storing those numbers in that format makes of them.
std::vector<float> rounded(ts::BlockFormat format, const std::vector<float>& x) {
  const std::int64_t n = static_cast<std::int64_t>(x.size());
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(ts::block_row_bytes(format, n)));
  std::vector<float> out(x.size());
  ts::kernels::quantize_blocks(format, n, x.data(), bytes.data());
  ts::kernels::dequantize_blocks(format, n, bytes.data(), out.data());
  return out;
}

ts::Gguf written(const ts::List<ts::GgufValue>& keys, const ts::List<GgufSource>& tensors) {
  const std::string path = temporary_file("written.gguf");
  write_gguf(path, keys, tensors);
  const ts::Gguf file = ts::read_gguf(path);
  std::remove(path.c_str());  // the mapping stays
  return file;
}

}  // namespace

TEST_CASE(
    "the five GGUF files of stories260K hold llama2.c's numbers as their formats round them") {
  const std::vector<Story> all = stories();
  if (all.empty()) {
    MESSAGE("skipped: no data/models/stories260K");
    return;
  }
  for (const std::string name : {"f32", "f16", "bf16", "q8_0", "q4_0"}) {
    CAPTURE(name);
    const ts::Gguf file =
        ts::read_gguf(model_path("stories260K/derived/stories260K-" + name + ".gguf"));
    const ts::ModelConfig config = ts::gguf_config(file);
    CHECK(config.beyond == "");
    CHECK(config.parameters() == 260032);
    CHECK(config.rope_pairs == ts::RopePairs::interleaved);
    const ts::List<ts::GgufPart> parts = ts::gguf_parts(file, config);
    CHECK(parts.size() == all.size());
    std::size_t found = 0, in_blocks = 0;
    for (const ts::GgufPart& part : parts) {
      for (const Story& story : all) {
        if (part.name != story.name) {
          continue;
        }
        ++found;
        in_blocks += ts::block_layout(part.tensor->format).elements > 1 ? 1U : 0U;
        CAPTURE(part.name);
        CHECK(part.shape == story.shape);
        const bool same = read_part(file, part) == rounded(part.tensor->format, story.numbers);
        CHECK(same);
      }
    }
    CHECK(found == all.size());
    CHECK(in_blocks == (name[0] == 'q' ? 31U : 0U));  // all but norms and ffn_down
  }
}

TEST_CASE("a model's config, parameters' names and vocabulary come from its GGUF file") {
  const std::string path = model_path("stories260K/derived/stories260K-f32.gguf");
  if (file_bytes(path).empty()) {
    MESSAGE("skipped: no data/models/stories260K");
    return;
  }
  const ts::Gguf file = ts::read_gguf(path);
  const ts::ModelConfig c = ts::gguf_config(file);
  CHECK(c.name == "stories260K");
  CHECK(c.layers == 5);
  CHECK(c.width == 64);
  CHECK(c.heads == 8);
  CHECK(c.kv_heads == 4);
  CHECK(c.head_size == 8);
  CHECK(c.hidden == 172);
  CHECK(c.vocabulary == 512);
  CHECK(c.context == 512);
  CHECK(c.tied);
  CHECK(c.norm_epsilon == doctest::Approx(1e-5));
  const ts::Transformer model(c);
  for (const ts::Parameter& p : model.parameters) {  // each is in the file, in its shape
    bool found = false;
    for (const ts::GgufPart& part : ts::gguf_parts(file, c)) {
      found = found || (part.name == p.name && part.shape == p.value.shape());
    }
    CAPTURE(p.name);
    CHECK(found);
  }
  const ts::GgufVocabulary v = ts::gguf_vocabulary(file);
  CHECK(v.model == "llama");
  CHECK(v.tokens.size() == 512);
  CHECK(v.scores.size() == 512);
  CHECK(v.types.size() == 512);
  CHECK(v.tokens[3] == "<0x00>");
  CHECK(v.types[3] == 6);
  CHECK(v.bos == 1);
  CHECK(v.eos == 2);
  CHECK(v.unknown == 0);
  CHECK(v.add_bos == 1);
  CHECK(v.add_eos == 0);
  CHECK(v.add_space_prefix == -1);
}

TEST_CASE("keys of every kind and tensors of every format come back from a written file") {
  ts::List<ts::GgufValue> keys = {gguf_text("a.text", "caf\xc3\xa9"),
                                  gguf_whole("a.count", 7),
                                  gguf_whole("a.minus", -7),
                                  gguf_real("a.real", 0.5),
                                  gguf_flag("a.flag", true),
                                  gguf_texts("a.texts", {"x", "", "yz"}),
                                  gguf_reals("a.reals", {1.5f, -2.0f}),
                                  gguf_wholes("a.wholes", {3, -4}),
                                  gguf_wholes("a.same", {6, 6, 6})};
  ts::List<GgufSource> tensors;
  for (int i = 0; i <= static_cast<int>(ts::BlockFormat::nvfp4); ++i) {
    const ts::BlockFormat format = static_cast<ts::BlockFormat>(i);
    tensors.push_back({ts::detail::cat({"t.", i}), ts::randn({2, 3, 256}, 9, 1.0f), format});
  }
  tensors.push_back({"scalar", ts::full({}, 4.0f), ts::BlockFormat::f32});
  const ts::Gguf file = written(keys, tensors);
  CHECK(file.text_or("a.text", "") == "caf\xc3\xa9");
  CHECK(file.whole("a.count", 0, 10) == 7);
  CHECK(file.whole("a.minus", -10, 10) == -7);
  CHECK(file.whole("a.same", 0, 10) == 6);
  CHECK(file.number_or("a.real", 0, 1, 0) == 0.5);
  CHECK(file.number_or("a.count", 0, 100, 0) == 7);
  CHECK(file.flag_or("a.flag", false));
  CHECK(file.texts("a.texts") == std::vector<std::string>{"x", "", "yz"});
  CHECK(file.numbers("a.reals") == std::vector<double>{1.5, -2});
  CHECK(file.wholes("a.wholes") == std::vector<std::int64_t>{3, -4});
  CHECK(file.whole_or("b", 0, 1, 5) == 5);
  CHECK(file.texts("b").empty());
  CHECK(file.find("a.texts")->text() == "a list of 3 text");
  CHECK(file.find("a.flag")->text() == "a bool");
  for (const GgufSource& source : tensors) {
    const ts::GgufTensor* const tensor = file.tensor(source.name);
    REQUIRE(tensor != nullptr);
    CHECK(tensor->shape == source.value.shape());
    CHECK(tensor->format == source.format);
    const ts::Tensor back = ts::read_gguf_tensor(file, *tensor);
    const std::vector<float> x(source.value.data(), source.value.data() + source.value.count());
    const bool same =
        std::vector<float>(back.data(), back.data() + back.count()) == rounded(source.format, x);
    CHECK(same);
  }
  CHECK(file.tensor("none") == nullptr);
}

TEST_CASE("integers of every width answer where a whole number is asked for") {
  struct {
    std::uint32_t type;
    std::string value;
    std::int64_t wanted;
  } rows[] = {{0, raw<std::uint8_t>(200), 200},
              {1, raw<std::int8_t>(-3), -3},
              {2, raw<std::uint16_t>(60000), 60000},
              {3, raw<std::int16_t>(-300), -300},
              {4, raw<std::uint32_t>(4000000000U), 4000000000},
              {5, raw<std::int32_t>(-70000), -70000},
              {7, raw<std::uint8_t>(1), 1},
              {10, raw<std::uint64_t>(5), 5},
              {11, raw<std::int64_t>(-(std::int64_t{1} << 40)), -(std::int64_t{1} << 40)}};
  const std::int64_t most = std::int64_t{1} << 62;
  for (const auto& row : rows) {
    const std::string bytes = header(0, 1) + key("n", row.type, row.value);
    const ts::Gguf file = ts::parse_gguf(bytes_of(bytes), bytes.size(), "x");
    CHECK(file.whole("n", -most, most) == row.wanted);
    CHECK(file.number_or("n", -1e15, 1e15, 0) == static_cast<double>(row.wanted));
  }
  const std::string doubles = header(0, 1) + key("n", 12, raw(0.25));
  CHECK(ts::parse_gguf(bytes_of(doubles), doubles.size(), "x").number_or("n", 0, 1, 0) == 0.25);
}

TEST_CASE("a value of another kind or out of bounds is refused, with the key") {
  const ts::Gguf file =
      written({gguf_text("t", "x"), gguf_whole("n", 7), gguf_real("r", 1.5),
               gguf_wholes("w", {1, 2}), gguf_real("nan", std::nan("")), gguf_texts("l", {"a"})},
              {});
  const auto error = [](const std::function<void()>& call) {
    const std::string all = error_of(call);
    return all.substr(all.find("written.gguf\": ") + 15);
  };
  CHECK(error([&] { file.whole("t", 0, 9); }) ==
        "t is a text; a whole number from 0 to 9 is right");
  CHECK(error([&] { file.whole("r", 0, 9); }) ==
        "r is a float32; a whole number from 0 to 9 is right");
  CHECK(error([&] { file.whole("w", 0, 9); }) ==
        "w is a list of 2 int32; a whole number from 0 to 9 is right");
  CHECK(error([&] { file.whole("n", 0, 6); }) == "n is 7; a whole number from 0 to 6 is right");
  CHECK(error([&] { file.whole("m", 0, 6); }) ==
        "m is missing; a whole number from 0 to 6 is right");
  CHECK(error([&] { file.number_or("nan", 0, 1, 0); }) ==
        "nan is nan; a number from 0 and below 1 is right");
  CHECK(error([&] { file.number_or("t", 0, 1, 0); }) ==
        "t is a text; a number from 0 and below 1 is right");
  CHECK(error([&] { file.flag_or("n", false); }) == "n is a uint32; a bool is right");
  CHECK(error([&] { file.text_or("n", ""); }) == "n is a uint32; a text is right");
  CHECK(error([&] { file.texts("w"); }) == "w is a list of 2 int32; a list of texts is right");
  CHECK(error([&] { file.wholes("l"); }) ==
        "l is a list of 1 text; a list of whole numbers is right");
  CHECK(error([&] { file.numbers("n"); }) == "n is a uint32; a list of numbers is right");
  const std::string large = header(0, 1) + key("n", 10, raw(~std::uint64_t{0}));
  const ts::Gguf wide = ts::parse_gguf(bytes_of(large), large.size(), "x");
  CHECK(error_of([&] { wide.whole("n", 0, 9); }) ==
        "load: \"x\": n is above 2^63; a whole number from 0 to 9 is right");
  const std::string list =
      header(0, 1) + key("n", 9, raw<std::uint32_t>(6) + raw<std::uint64_t>(1) + raw(1.5f));
  const ts::Gguf reals = ts::parse_gguf(bytes_of(list), list.size(), "x");
  CHECK(error_of([&] { reals.wholes("n"); }) ==
        "load: \"x\": n is a list of 1 float32; a list of whole numbers below 2^63 is right");
}

TEST_CASE("every field of a GGUF file is checked before it is used") {
  const std::uint64_t huge = std::uint64_t{1} << 60;
  CHECK(refusal("GGU") ==
        "3 bytes are no GGUF file; it begins with the letters GGUF and 20 bytes more");
  CHECK(refusal(std::string(40, 'x')) ==
        "this is no GGUF file; it begins with the letters GGUF and 20 bytes more");
  std::string bytes = header(0, 0);
  bytes[4] = 1;
  CHECK(refusal(bytes) == "GGUF version 1; 2 or 3 is right");
  bytes[4] = 0;
  CHECK(refusal(bytes) == "GGUF version 0; 2 or 3 is right");
  bytes.replace(4, 4, std::string("\0\0\0\3", 4));
  CHECK(refusal(bytes) == "GGUF version 50331648 (of the other byte order); 2 or 3 is right");
  CHECK(refusal(header(0, huge)) ==
        "1152921504606846976 keys of at least 13 bytes each; only 0 bytes follow");
  CHECK(refusal(header(huge, 0)) ==
        "1152921504606846976 tensors of at least 24 bytes each; only 0 bytes follow");
  CHECK(refusal(header(0, 1) + raw(huge) + "abcdefgh") ==
        "key 0 takes 1152921504606846976 bytes at byte 32; the file ends at 40");
  CHECK(refusal(header(0, 1) + key("", 4, "abcdefgh")) ==
        "key 0 has a name of 0 bytes; 1 to 65535 are right");
  CHECK(refusal(header(0, 1) + key("a", 13, "abcd")) ==
        "key \"a\" has the value type 13; 0 to 12 are right");
  CHECK(refusal(header(0, 1) + key("a\n", 7, "\2")) ==
        "key \"a\\n\" has a bool of 2; 0 or 1 is right");
  CHECK(refusal(header(0, 1) +
                key("a", 9, raw<std::uint32_t>(7) + raw<std::uint64_t>(3) + "\1\1\5")) ==
        "key \"a\" has a bool of 5; 0 or 1 is right");
  CHECK(refusal(header(0, 1) + key("a", 4, "abc")) ==
        "1 uint32 items of key \"a\" of at least 4 bytes each; only 3 bytes follow");
  CHECK(refusal(header(0, 1) + key("a", 8, raw(huge) + "x")) ==
        "key \"a\" takes 1152921504606846976 bytes at byte 45; the file ends at 46");
  CHECK(refusal(header(0, 1) + key("a", 9, raw<std::uint32_t>(6) + raw(huge))) ==
        "1152921504606846976 float32 items of key \"a\" of at least 4 bytes each; only 0 bytes "
        "follow");
  CHECK(refusal(header(0, 1) +
                key("a", 9, raw<std::uint32_t>(8) + raw<std::uint64_t>(1) + raw(huge))) ==
        "key \"a\" takes 1152921504606846976 bytes at byte 57; the file ends at 57");
  CHECK(refusal(header(0, 1) + key("a", 9, raw<std::uint32_t>(77) + raw<std::uint64_t>(0))) ==
        "key \"a\" has the value type 77; 0 to 12 are right");
  std::string deep;
  for (int i = 0; i < 1000; ++i) {
    deep += raw<std::uint32_t>(9) + raw<std::uint64_t>(1);
  }
  CHECK(refusal(header(0, 1) + key("a", 9, deep)) ==
        "key \"a\" has lists within lists more than 4 deep");
  const std::string twice = key("ab", 0, "1");
  CHECK(refusal(header(0, 2) + twice + twice) == "key \"ab\" is there twice");
  CHECK(refusal(header(0, 1) + key("general.alignment", 4, raw<std::uint32_t>(48))) ==
        "general.alignment is 48; a power of two is right");
  CHECK(refusal(header(0, 1) + key("general.alignment", 4, raw<std::uint32_t>(0))) ==
        "general.alignment is 0; a whole number from 1 to 1073741824 is right");
}

TEST_CASE("every field of a tensor of a GGUF file is checked before it is used") {
  const auto tensor = [](const std::string& name, const std::vector<std::uint64_t>& dims,
                         std::uint32_t type, std::uint64_t offset) {
    return refusal(with_data(header(1, 0) + info(name, dims, type, offset), 128));
  };
  const std::uint64_t huge = std::uint64_t{1} << 40;
  CHECK(tensor("t", {4, 8}, 0, 0) == "no error");
  CHECK(tensor("", {4}, 0, 0) == "tensor 0 has a name of 0 bytes; 1 to 64 are right");
  CHECK(tensor(std::string(65, 'n'), {4}, 0, 0) ==
        "tensor 0 has a name of 65 bytes; 1 to 64 are right");
  CHECK(tensor("t", {1, 1, 1, 1, 1}, 0, 0) == "tensor \"t\" has 5 dimensions; at most 4 are right");
  CHECK(tensor("t", {4, 0}, 0, 0) ==
        "tensor \"t\": dimension 1 is 0; 1 or more, and at most 2^62 elements in all, are right");
  CHECK(tensor("t", {huge, huge}, 0, 0) ==
        "tensor \"t\": dimension 1 is 1099511627776; 1 or more, and at most 2^62 elements in all, "
        "are right");
  CHECK(tensor("t", {huge, 1 << 22}, 0, 0) == "tensor \"t\" takes more than 2^62 bytes");
  CHECK(tensor("t", {4}, 5, 0) ==
        "tensor \"t\" has the type 5; 0 to 3, 6 to 30, 34, 35, 39 and 40 are known");
  CHECK(tensor("t", {172, 64}, 2, 0) ==
        "tensor \"t\" has rows of 172 elements in Q4_0; a multiple of 32 is right");
  CHECK(tensor("t", {4}, 0, 8) == "tensor \"t\" is at 8 of the data; a multiple of 32 is right");
  CHECK(tensor("t", {4}, 0, 128) ==
        "tensor \"t\" takes 16 bytes at 128 of the data, which has 128");
  CHECK(tensor("t", {4}, 0, ~std::uint64_t{31}) ==
        "tensor \"t\" takes 16 bytes at 18446744073709551584 of the data, which has 128");
  CHECK(tensor("t", {huge}, 0, 0) ==
        "tensor \"t\" takes 4398046511104 bytes at 0 of the data, which has 128");
  const std::string a = info("a", {16}, 0, 0);
  CHECK(refusal(with_data(header(2, 0) + a + info("b", {8}, 0, 32), 128)) ==
        "tensor \"b\" begins at 32 of the data, inside \"a\", which ends at 64");
  CHECK(refusal(with_data(header(2, 0) + a + a, 128)) == "tensor \"a\" is there twice");
  CHECK(refusal(with_data(header(2, 0) + info("b", {8}, 0, 64) + a, 128)) == "no error");
  CHECK(refusal(header(1, 0) + info("t", {4}, 0, 0)) ==
        "tensor \"t\" takes 16 bytes at 0 of the data, which has 0");
  // A type that is known by its size alone is refused when it is read.
  const std::string bytes = with_data(header(1, 0) + info("t", {256}, 19, 0), 64);
  const ts::Gguf file = ts::parse_gguf(bytes_of(bytes), bytes.size(), "x");
  CHECK(error_of([&] { ts::read_gguf_tensor(file, file.tensors[0]); }) ==
        "load: \"x\": tensor \"t\" is IQ1_S; F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q8_1, "
        "Q2_K to Q6_K, Q8_K, MXFP4 or NVFP4 is right");
}

TEST_CASE("a GGUF file cut short anywhere is refused, never read beyond its end") {
  const std::string whole = with_data(
      header(1, 2) +
          key("a", 9, raw<std::uint32_t>(8) + raw<std::uint64_t>(2) + text("one") + text("two")) +
          key("general.name", 8, text("n")) + info("t", {4, 8}, 0, 0),
      128);
  CHECK(refusal(whole) == "no error");
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const std::vector<std::uint8_t> part(whole.begin(),
                                         whole.begin() + static_cast<std::ptrdiff_t>(n));
    CHECK_THROWS_AS(ts::parse_gguf(part.data(), part.size(), "x"), ts::Error);
  }
}

TEST_CASE("GGUF version 2, lists within lists, and another alignment are read") {
  std::string bytes = header(0, 1) + key("a", 9,
                                         raw<std::uint32_t>(9) + raw<std::uint64_t>(2) +
                                             raw<std::uint32_t>(0) + raw<std::uint64_t>(1) + "x" +
                                             raw<std::uint32_t>(8) + raw<std::uint64_t>(0));
  bytes[4] = 2;
  const ts::Gguf nested = ts::parse_gguf(bytes_of(bytes), bytes.size(), "x");
  CHECK(nested.version == 2);
  CHECK(nested.find("a")->text() == "a list of 2 list");
  bytes =
      header(1, 1) + key("general.alignment", 4, raw<std::uint32_t>(64)) + info("t", {1}, 0, 64);
  bytes.append((64 - bytes.size() % 64) % 64, '\0');
  bytes += std::string(64, '\0') + raw(2.5f);
  const ts::Gguf aligned = ts::parse_gguf(bytes_of(bytes), bytes.size(), "x");
  CHECK(ts::read_gguf_tensor(aligned, aligned.tensors[0]).data()[0] == 2.5f);
}
