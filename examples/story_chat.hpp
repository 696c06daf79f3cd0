#pragma once
// A conversation in the marks that a model was trained with: ChatML's, Llama 3's or [INST], as its
// tokenizer has them; else "User:" and "Assistant:", and the answer ends where the next would
// speak.
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "story_parts.hpp"
#include "tinyscale.hpp"

namespace story {

// What stands around the turns of a conversation. Marks are read as tokens, what people type never.
struct ChatMarks {
  std::string name, user, assistant, end;  // before what each says, and behind the answer
  Strings stop;                            // texts that end an answer
};

inline Ids mark_ids(const ts::Tokenizer& tokenizer, const std::string& text) {
  ts::EncodeOptions options;
  options.bos = options.eos = 0;
  options.parse_special = true;
  return text.empty() ? Ids() : tokenizer.encode(text, options);
}

// Whether each is one token, that no ordinary text gives.
inline bool has_marks(const ts::Tokenizer& tokenizer, const Strings& marks) {
  for (const std::string& mark : marks) {
    bool one = false;
    try {
      const Ids ids = mark_ids(tokenizer, mark);
      one = ids.size() == 1 && tokenizer.token_text(ids[0]) == mark;
    } catch (const ts::Error&) {  // characters that it does not know
    }
    if (!one) {
      return false;
    }
  }
  return true;
}

inline ChatMarks chat_marks(const ts::Tokenizer& tokenizer) {
  if (has_marks(tokenizer, {"<|im_start|>", "<|im_end|>"})) {
    return {
        "ChatML", "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>", {}};
  }
  if (has_marks(tokenizer, {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"})) {
    const std::string head = "<|start_header_id|>", behind = "<|end_header_id|>\n\n";
    return {"Llama 3",
            head + "user" + behind,
            "<|eot_id|>" + head + "assistant" + behind,
            "<|eot_id|>",
            {}};
  }
  const auto eos = static_cast<std::int32_t>(tokenizer.eos());
  if (has_marks(tokenizer, {"[INST]", "[/INST]"}) && eos >= 0) {
    return {"[INST]", "[INST]", "[/INST]", tokenizer.token_text(eos), {}};
  }
  return {"", "User: ", "\nAssistant:", "\n", {"\nUser:", "User:", "\nAssistant:"}};
}

// A conversation as ids; the oldest turns go when the context has no room for an answer.
class Chat {
 public:
  Chat(const ts::Transformer& model, Storyteller& teller, std::int64_t tokens)
      : model_(model), teller_(teller), marks_(chat_marks(model.tokenizer)), tokens_(tokens) {
    begin_ = model.tokenizer.encode("");  // BOS, of a tokenizer that puts one
    const Ids end = mark_ids(model.tokenizer, marks_.name.empty() ? "" : marks_.end);
    if (end.size() == 1) {
      teller.stop_at(end[0]);
    }
  }

  const std::string& marks() const { return marks_.name; }

  void answer(const std::string& said) {
    ts::EncodeOptions plain;
    plain.bos = plain.eos = 0;
    Ids turn = mark_ids(model_.tokenizer, marks_.user);  // no turn yet: what follows may throw
    add(turn, model_.tokenizer.encode(said, plain));
    add(turn, mark_ids(model_.tokenizer, marks_.assistant));
    make_room(turn);
    turns_.push_back(turn);
    Ids ids = begin_;
    for (const Ids& each : turns_) {
      add(ids, each);
    }
    const std::string text = teller_.tell(ids, tokens_, marks_.stop);
    add(turns_.back(), model_.tokenizer.encode(text, plain));
    add(turns_.back(), mark_ids(model_.tokenizer, marks_.end));
    std::cout << "\n";
  }

 private:
  static void add(Ids& to, const Ids& ids) { to.insert(to.end(), ids.begin(), ids.end()); }
  std::int64_t length() const {
    std::size_t all = begin_.size();
    for (const Ids& turn : turns_) {
      all += turn.size();
    }
    return static_cast<std::int64_t>(all);
  }
  // For one more turn and its answer; a turn that never fits costs none of the others.
  void make_room(const Ids& turn) {
    const std::int64_t context = model_.config.context;
    const auto more = static_cast<std::int64_t>(turn.size());
    const std::int64_t alone = static_cast<std::int64_t>(begin_.size()) + more;
    if (alone + tokens_ > context) {
      ts::detail::fail({"chat: ", alone, " tokens and an answer of up to ", tokens_,
                        " in a context of ", context, "; a shorter line or --tokens is right"});
    }
    std::size_t dropped = 0;
    while (length() + more + tokens_ > context) {
      turns_.erase(turns_.begin());
      ++dropped;
    }
    if (dropped > 0) {
      std::cout << "(the context of " << context << " tokens is full: the oldest "
                << (dropped == 1 ? "turn is" : std::to_string(dropped) + " turns are")
                << " forgotten)\n";
    }
  }

  const ts::Transformer& model_;
  Storyteller& teller_;
  ChatMarks marks_;
  std::int64_t tokens_;
  Ids begin_;
  std::vector<Ids> turns_;  // what was said and what was answered, marks and all
};

inline void chat(const ts::Transformer& model, Storyteller& teller, std::int64_t tokens) {
  Chat talk(model, teller, tokens);
  std::cout << (talk.marks().empty() ? "no chat marks in its tokenizer: User: and Assistant:"
                                     : talk.marks() + " marks")
            << "; a line to say, end of file to leave\n";
  std::string line;
  while (std::cout << "> " << std::flush && std::getline(std::cin, line)) {
    try {
      talk.answer(line);
    } catch (const ts::Error& error) {  // a line that is too long, or cannot be encoded
      std::cout << error.what() << "\n";
    }
  }
  std::cout << "\n";
}

}  // namespace story
