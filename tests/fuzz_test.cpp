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
