// config.json of Hugging Face, and the config in the metadata of this library's files: what is
// accepted is valid, and can be counted.
#include "fuzz.hpp"
#ifndef FUZZ_REPLAY
#include "tinyscale/model/checkpoint.hpp"
#include "tinyscale/model/read_config.hpp"
#endif

namespace fuzz_config {

inline void count(const tinyscale::ModelConfig& config) {
  config.validate();
  fuzz::promise(config.parameters() > 0 && config.active_parameters() > 0, "parameters count");
  fuzz::promise(config.cached_numbers(config.context) >= 0, "cached numbers count");
}

// Whatever a config says must come back from the metadata that save() writes.
inline void back_again(const tinyscale::ModelConfig& config) {
  const std::string json = tinyscale::detail::config_json(config);
  const tinyscale::ModelConfig same = tinyscale::detail::config_from_json(json, "");
  fuzz::promise(tinyscale::detail::config_json(same) == json, "a config in metadata comes back");
}

}  // namespace fuzz_config

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text = fuzz::text_of(data, size);
  fuzz::one_input(size, 512, [&] { fuzz_config::count(tinyscale::parse_config(text, "f")); });
  fuzz::one_input(size, 512, [&] {
    const tinyscale::ModelConfig config = tinyscale::detail::config_from_json(text, "f: ");
    fuzz_config::count(config);
    fuzz_config::back_again(config);
  });
  return 0;
}
