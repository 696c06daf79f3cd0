// The committed corpus through every fuzz target, by any compiler; and what fuzzing and reading for
// it found, with its messages.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "error_of.hpp"
#include "tinyscale.hpp"

#define FUZZ_REPLAY
#define LLVMFuzzerTestOneInput fuzz_json_input
#include "fuzz/json_fuzz.cpp"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_config_input
#include "fuzz/config_fuzz.cpp"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_npy_input
#include "fuzz/npy_fuzz.cpp"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_shards_input
#include "fuzz/shards_fuzz.cpp"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_safetensors_input
#include "fuzz/safetensors_fuzz.cpp"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_llama2c_input
#include "fuzz/llama2c_fuzz.cpp"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_gguf_input
#include "fuzz/gguf_fuzz.cpp"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_tokenizer_bin_input
#include "fuzz/tokenizer_bin_fuzz.cpp"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_sentencepiece_input
#include "fuzz/sentencepiece_fuzz.cpp"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_tokenizer_json_input
#include "fuzz/tokenizer_json_fuzz.cpp"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_gpt2_tokenizer_input
#include "fuzz/gpt2_tokenizer_fuzz.cpp"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_encode_input
#include "fuzz/encode_fuzz.cpp"
#undef LLVMFuzzerTestOneInput
#include "fuzz/model_step.cpp"

namespace ts = tinyscale;

namespace {

using Target = int (*)(const std::uint8_t*, std::size_t);

const struct {
  const char* name;
  Target run;
} targets[] = {{"json", fuzz_json_input},
               {"config", fuzz_config_input},
               {"npy", fuzz_npy_input},
               {"shards", fuzz_shards_input},
               {"safetensors", fuzz_safetensors_input},
               {"llama2c", fuzz_llama2c_input},
               {"gguf", fuzz_gguf_input},
               {"tokenizer_bin", fuzz_tokenizer_bin_input},
               {"sentencepiece", fuzz_sentencepiece_input},
               {"tokenizer_json", fuzz_tokenizer_json_input},
               {"gpt2_tokenizer", fuzz_gpt2_tokenizer_input},
               {"encode", fuzz_encode_input}};

std::string fuzz_folder() {
  const std::string here = __FILE__;
  return here.substr(0, here.rfind("fuzz_test.cpp")) + "fuzz/";
}

}  // namespace

TEST_CASE("every input of the fuzz corpus is read or refused") {
  if (!std::filesystem::exists(fuzz_folder() + "corpus")) {
    std::printf("skipped: no %scorpus\n", fuzz_folder().c_str());
    return;
  }
  for (const auto& target : targets) {
    int files = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(fuzz_folder() + "corpus/" + target.name)) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string bytes((std::istreambuf_iterator<char>(file)),
                              std::istreambuf_iterator<char>());
      INFO(std::string(target.name) << " " << entry.path().filename().string());
      const std::vector<std::uint8_t> exact(bytes.begin(), bytes.end());
      CHECK_NOTHROW(target.run(exact.data(), exact.size()));
      ++files;
    }
    INFO(std::string(target.name));
    CHECK(files >= 2);
  }
}

TEST_CASE("each fuzz target has its place in this test") {
  std::size_t there = 0;
  for (const auto& entry : std::filesystem::directory_iterator(fuzz_folder())) {
    const std::string name = entry.path().filename().string();
    there += name.size() > 9 && name.compare(name.size() - 9, 9, "_fuzz.cpp") == 0 ? 1U : 0U;
  }
  CHECK(there == sizeof targets / sizeof targets[0]);
}

// Each of these was found by fuzzing, or by reading the readers for what a fuzzer does not reach.

TEST_CASE("what begins as a llama2.c header and ends in it is refused without a look behind") {
  const std::vector<std::uint8_t> bytes(28,
                                        0x01);  // 28 bytes: version 0's, 8 less than the others'
  const ts::Shared<ts::MappedFile> file = fuzz::file_of(bytes.data(), bytes.size());
  CHECK(error_of([&] { ts::detail::parse_weights(file, "f"); }) ==
        "load: \"f\": 28 bytes that begin as no known format does; safetensors (or their "
        "index.json), GGUF, llama2.c, or a folder of safetensors is right");
}

TEST_CASE("sizes beside a zero may be anything: nothing is computed of them") {
  const std::string header =
      "{'descr': '<f4', 'fortran_order': True, 'shape': (1152921504606846976, 1152921504606846976, "
      "0)}";
  std::string npy = std::string("\x93NUMPY\1\0", 8) + static_cast<char>(header.size()) + '\0';
  npy += header;
  const auto* const data = reinterpret_cast<const std::uint8_t*>(npy.data());
  CHECK(ts::parse_npy(data, npy.size(), "f").count() == 0);
  ts::StoredTensor t;
  t.shape = {9007199254740992, 0};
  t.transposed = true;
  ts::read_floats(t, nullptr, "");  // took a row of 2^53 numbers
}

TEST_CASE("keys of JSON that share a hash take no more time") {
  // 33 'A' + 'b' = 33 'B' + 'A': 2^14 keys of 28 letters, all of one value of h = 33 h + c.
  std::string json = "{";
  for (int i = 0; i < 1 << 14; ++i) {
    json += i > 0 ? ",\"" : "\"";
    for (int bit = 0; bit < 14; ++bit) {
      json += i >> bit & 1 ? "BA" : "Ab";
    }
    json += "\":0";
  }
  const double begin = ts::detail::seconds_now();
  CHECK(ts::parse_json(json + "}").fields.size() == 1 << 14);
  CHECK(ts::detail::seconds_now() - begin < 2);  // not n^2 of them
  CHECK(error_of([&] { ts::parse_json("{\"a\":1,\"b\":2,\"a\":3,\"b\":4}"); }) ==
        "json: the key \"a\" stands twice, before at byte 25");
}

TEST_CASE(
    "tokens and merges that share a place in a hash table are refused, not searched through") {
  ts::TokenizerData data;
  data.kind = ts::TokenizerKind::scored_pieces;
  for (int i = 0; data.tokens.size() < 300; ++i) {
    const std::string text = std::to_string(i);
    if (ts::detail::mixed(ts::detail::text_hash(text.data(), text.size())) % 2048 == 0) {
      data.tokens.push_back(text);
      data.scores.push_back(0);
    }
  }
  CHECK(error_of([&] { ts::make_tokenizer(data); }) ==
        "tokenizer: 256 texts share a place in the hash table; a vocabulary that was not made to "
        "is right");
  ts::detail::PairTable pairs;
  CHECK(error_of([&] {
          for (std::int32_t left = 0, added = 0; added < 300; ++left) {
            if (ts::detail::mixed(ts::detail::pair_of(left, 7)) % 2048 == 0) {
              pairs.add(left, 7, 0, 1);
              ++added;
            }
          }
        }) ==
        "tokenizer: 256 merges share a place in the hash table; a vocabulary that was not made to "
        "is right");
}

TEST_CASE("special tokens: of two with one text the first stands") {
  ts::TokenizerData data;
  data.kind = ts::TokenizerKind::scored_pieces;
  data.tokens = {"<s>", "a", "<x>", "<x>", "<s>b"};
  data.types = {3, 1, 3, 3, 3};
  data.scores = {0, 0, 0, 0, 0};
  data.add_space_prefix = false;
  ts::EncodeOptions how;
  how.parse_special = true;
  how.bos = 0;
  const ts::Tokenizer tokenizer = ts::make_tokenizer(data);
  CHECK(tokenizer.encode("<x>a<s><s>b", how) == std::vector<std::int32_t>{2, 1, 0, 4});
}

TEST_CASE("many Metaspace steps read each token once") {
  std::string steps, vocabulary;
  for (int i = 0; i < 3000; ++i) {
    steps += i > 0 ? "," : "";
    steps += "{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\"}";
    vocabulary += ts::detail::cat({i > 0 ? "," : "", "\"", i, "\":", i});
  }
  const double begin = ts::detail::seconds_now();
  const std::string json = "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" + steps +
                           "]},\"model\":{\"vocab\":{" + vocabulary + "},\"merges\":[]}}";
  CHECK(ts::parse_hugging_face_tokenizer(json, "f").vocabulary() == 3000);
  CHECK(ts::detail::seconds_now() - begin < 2);  // not one look a step and token
}
