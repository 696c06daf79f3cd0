// A step of decode for the targets that load models.
#define FUZZ_PART
#include "fuzz.hpp"
#ifndef FUZZ_REPLAY
#include "tinyscale/model/decode.hpp"
#endif
#include "model_step.hpp"

namespace fuzz {

// Two tokens, then one: the cache grows over a page.
void decode_step(const tinyscale::Transformer& model) {
  const tinyscale::ModelConfig& c = model.config;
  if (c.parameters() > 20000 || c.width > 512 || c.query_width() > 512 || c.layers > 8 ||
      c.hidden > 512 || c.expert_hidden > 512 || c.vocabulary > 512 || !c.beyond.empty()) {
    return;
  }
  tinyscale::CacheOptions options;
  options.page_tokens = 2;
  tinyscale::KvPages cache(c, options);
  tinyscale::List<tinyscale::TokenRun> runs(1);
  runs[0].sequence = cache.add();
  runs[0].ids = {0, static_cast<std::int32_t>(c.vocabulary - 1)};
  tinyscale::decode(model, cache, runs);
  runs[0].ids = {0};
  const tinyscale::Tensor logits = tinyscale::decode(model, cache, runs);
  promise(logits.count() == c.vocabulary, "logits for each token");
}

}  // namespace fuzz
