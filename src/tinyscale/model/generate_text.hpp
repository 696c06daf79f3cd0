#pragma once
// Generation as text: encode, generate, decode, with pieces as they come and texts that end it.
// What may be the beginning of a stop text, or of a character, is held back until it is clear.

#include <cstdint>  // int32_t
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/function.hpp"
#include "tinyscale/model/generate.hpp"
#include "tinyscale/model/read_text.hpp"
#include "tinyscale/model/stream_decoder.hpp"

namespace tinyscale {

namespace detail {

// Text that comes piece by piece, up to the first stop text.
class TextStream {
 public:
  TextStream(const std::vector<std::string>& stops, const Function<void(const std::string&)>& told)
      : stops_(stops), told_(told) {
    for (const std::string& stop : stops) {
      if (stop.empty()) {
        fail({"generate: an empty stop text; at least one byte is right"});
      }
    }
  }

  // False when a stop text came: the text ends before it.
  bool add(const std::string& piece) {
    text_ += piece;
    std::size_t hold = unfinished_bytes(text_), end = std::string::npos;
    for (const std::string& stop : stops_) {
      const std::size_t found = text_.find(stop, sent_);
      end = found < end ? found : end;
      std::size_t size =
          stop.size() - 1 < text_.size() - sent_ ? stop.size() - 1 : text_.size() - sent_;
      while (size > hold && text_.compare(text_.size() - size, size, stop, 0, size) != 0) {
        --size;
      }
      hold = size > hold ? size : hold;
    }
    if (end != std::string::npos) {
      text_.resize(end);
      finish();
      return false;
    }
    send(text_.size() - hold);
    return true;
  }

  void finish() { send(text_.size()); }
  const std::string& text() const { return text_; }

 private:
  void send(std::size_t to) {
    if (told_ && to > sent_) {
      told_(text_.substr(sent_, to - sent_));
    }
    sent_ = to > sent_ ? to : sent_;
  }

  const std::vector<std::string> stops_;
  Function<void(const std::string&)> told_;
  std::string text_;
  std::size_t sent_ = 0;  // bytes that on_text has had
};

inline std::string generate_with(const Transformer& model, const Tokenizer& tokenizer,
                                 const std::string& prompt, std::int64_t n,
                                 const GenerateOptions& given, Generation* made) {
  const std::vector<std::int32_t> ids = tokenizer.encode(prompt);
  TextStream stream(given.stop, given.on_text);
  GenerateOptions options = given;
  if (tokenizer.eos() >= 0) {
    options.stop_tokens.push_back(static_cast<std::int32_t>(tokenizer.eos()));
  }
  std::int32_t previous = ids.empty() ? -1 : ids.back();
  bool stopped = false;
  options.on_token = [&](std::int64_t sequence, std::int32_t id) {
    stopped = !stream.add(tokenizer.decode_piece(previous, id));
    previous = id;
    const bool goes_on = !given.on_token || given.on_token(sequence, id);
    return !stopped && goes_on;
  };
  Generation all = generate_batch(model, {ids}, n, options, tokenizer.vocabulary());
  stream.finish();
  if (stopped) {
    all.sequences[0].ended = Ended::text;
  }
  if (made != nullptr) {
    *made = std::move(all);
  }
  return tokenizer.decode(ids) + stream.text();
}

}  // namespace detail

// The prompt and n more tokens as text, with the tokenizer of the model; `made`, when given, gets
// what it cost. A model whose tokenizer has an end-of-text token stops there.
inline std::string generate(const Transformer& model, const std::string& prompt, std::int64_t n,
                            const GenerateOptions& options = {}, Generation* made = nullptr) {
  return detail::generate_with(model, model.tokenizer, prompt, n, options, made);
}

// The same with the tokenizer of the text.
inline std::string generate(const Transformer& model, const Text& text, const std::string& prompt,
                            std::int64_t n, const GenerateOptions& options = {}) {
  return detail::generate_with(model, text.tokenizer, prompt, n, options, nullptr);
}

}  // namespace tinyscale
