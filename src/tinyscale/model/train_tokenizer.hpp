#pragma once
// Training byte-level BPE on a text: the pair of neighbouring tokens that is most frequent within
// words becomes a token, again and again. Each distinct word is counted once, and a merge looks
// only at the words that hold its pair: their old pairs are taken from the counts, the new ones
// added. Of equally frequent pairs the one of the smaller left id goes first, then of the smaller
// right.

#include <cstddef>  // size_t
#include <cstdint>  // int64_t
#include <string>   // string
#include <utility>  // move
#include <vector>   // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/model/make_tokenizer.hpp"

namespace tinyscale {

struct TrainTokenizerOptions {
  std::string pre = "gpt-2";  // how the text is cut into words
  std::vector<std::string>
      special;  // the last tokens, such as "<|endoftext|>"; the first: BOS, EOS
};

namespace detail {

// A pair of tokens as it was counted, the most frequent first.
struct CountedPair {
  std::int64_t count = 0;
  std::uint64_t pair = 0;

  bool before(const CountedPair& other) const {
    return count > other.count || (count == other.count && pair < other.pair);
  }
};

// The words of a text with their pairs counted.
class PairCounts {
 public:
  static constexpr std::size_t longest = 256;  // bytes of a word; longer ones are counted in parts

  PairCounts(const std::string& text, PreTokenizer pre) {
    TokenTable distinct;
    for (std::size_t at = 0; at < text.size();) {
      std::size_t end = next_piece(pre, text.data(), at, text.size());
      for (; at < end; at += longest) {
        const std::size_t size = end - at < longest ? end - at : longest;
        std::int32_t word = distinct.find(text.data() + at, size);
        if (word < 0) {
          word = distinct.add(text.substr(at, size));
          distinct.find_by_text(word);
          times_.push_back(0);
        }
        ++times_[static_cast<std::size_t>(word)];
      }
      at = end;
    }
    for (std::size_t word = 0; word < distinct.size(); ++word) {
      starts_.push_back(tokens_.size());
      lengths_.push_back(distinct.length(word));
      for (std::size_t i = 0; i < distinct.length(word); ++i) {
        tokens_.push_back(static_cast<unsigned char>(distinct.data(word)[i]));
      }
      count_word(word, 1, -1);
    }
    offer_touched();
  }

  // The most frequent pair; a count below 2 when no pair stands twice.
  CountedPair most_frequent() {
    while (!heap_.empty()) {
      const CountedPair first = heap_.pop();
      const std::int64_t count = counts_[place(first.pair)];
      if (count == first.count) {
        return first;
      }
      if (count > 1) {
        heap_.push({count, first.pair});
      }
    }
    return CountedPair();
  }

  // Every such pair becomes the token `merged`.
  void merge(std::uint64_t pair, std::int32_t merged) {
    for (std::uint32_t at = heads_[place(pair)]; at != no_rank; at = next_[at]) {
      merge_in_word(words_[at], pair, merged);
    }
    offer_touched();
  }

 private:
  std::size_t place(std::uint64_t pair) const {
    return places_
        .find(static_cast<std::int32_t>(pair >> 32), static_cast<std::int32_t>(pair & ~0U))
        .rank;
  }

  // Adds the word's pairs to the counts, or with sign -1 takes them away. Those of the token
  // `fresh`
  // (-1: all) have not been in this word before.
  void count_word(std::size_t word, int sign, std::int32_t fresh) {
    const std::int32_t* const tokens = tokens_.data() + starts_[word];
    for (std::size_t i = 0; i + 1 < lengths_[word]; ++i) {
      const std::int32_t left = tokens[i], right = tokens[i + 1];
      std::uint32_t found = places_.find(left, right).rank;
      if (found == no_rank) {
        found = static_cast<std::uint32_t>(counts_.size());
        places_.add(left, right, found, 0);
        counts_.push_back(0);
        heads_.push_back(no_rank);
        touched_.push_back(0);
      }
      counts_[found] += sign * times_[word];
      if (sign < 0 || (fresh >= 0 && left != fresh && right != fresh)) {
        continue;
      }
      if (heads_[found] == no_rank || words_[heads_[found]] != word) {
        next_.push_back(heads_[found]);
        heads_[found] = static_cast<std::uint32_t>(words_.size());
        words_.push_back(static_cast<std::uint32_t>(word));
      }
      if (touched_[found] == 0) {
        touched_[found] = 1;
        touched_pairs_.push_back(pair_of(left, right));
      }
    }
  }

  void merge_in_word(std::size_t word, std::uint64_t pair, std::int32_t merged) {
    std::int32_t* const tokens = tokens_.data() + starts_[word];
    const std::size_t n = lengths_[word];
    bool held = false;
    for (std::size_t i = 0; i + 1 < n; ++i) {
      held = held || pair_of(tokens[i], tokens[i + 1]) == pair;
    }
    if (!held) {  // merged away, or listed twice
      return;
    }
    count_word(word, -1, -1);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < n; ++kept) {
      const bool here = i + 1 < n && pair_of(tokens[i], tokens[i + 1]) == pair;
      tokens[kept] = here ? merged : tokens[i];
      i += here ? 2 : 1;
    }
    lengths_[word] = kept;
    count_word(word, 1, merged);
  }

  void offer_touched() {
    for (const std::uint64_t pair : touched_pairs_) {
      const std::size_t at = place(pair);
      touched_[at] = 0;
      if (counts_[at] > 1) {
        heap_.push({counts_[at], pair});
      }
    }
    touched_pairs_.clear();
  }

  // Of each distinct word: how often it stands in the text, and its tokens.
  std::vector<std::int64_t> times_;
  std::vector<std::size_t> starts_, lengths_;
  std::vector<std::int32_t> tokens_;
  // Of each pair: how often it stands in the text, and the words that hold or held it.
  PairTable places_;
  std::vector<std::int64_t> counts_;
  std::vector<std::uint32_t> heads_;
  std::vector<std::uint32_t> words_, next_;
  std::vector<std::uint32_t> touched_;
  std::vector<std::uint64_t> touched_pairs_;
  Heap<CountedPair> heap_;
};

inline void check_trained_vocabulary(std::int64_t vocabulary,
                                     const TrainTokenizerOptions& options) {
  const auto least = static_cast<std::int64_t>(256 + options.special.size());
  if (vocabulary < least || vocabulary > 0x7FFFFFF0) {
    fail({"train_tokenizer: a vocabulary of ", vocabulary, "; at least ", least, " (256 bytes and ",
          options.special.size(), " special tokens) is right"});
  }
  NameTable names;
  for (const std::string& special : options.special) {
    if (special.empty() || ++names[special] > 1) {
      fail({"train_tokenizer: the special token \"", special,
            "\"; none that is empty, and each once, is right"});
    }
  }
  if (find_pre_tokenizer(options.pre) < 0) {
    fail({"train_tokenizer: the pre-tokenizer is \"", options.pre, "\"; right is one of ",
          pre_tokenizer_names()});
  }
}

}  // namespace detail

// Byte-level BPE of exactly `vocabulary` tokens: 256 bytes by value, merges, special tokens.
inline Tokenizer train_tokenizer(const std::string& text, std::int64_t vocabulary,
                                 const TrainTokenizerOptions& options = {}) {
  detail::check_trained_vocabulary(vocabulary, options);
  TokenizerData data;
  data.pre = options.pre;
  data.ignore_merges = 0;
  data.add_bos = 0;
  detail::TokenTable texts;
  for (int byte = 0; byte < 256; ++byte) {
    texts.find_by_text(
        texts.add(std::string(1, static_cast<char>(static_cast<unsigned char>(byte)))));
  }
  const auto pre = static_cast<PreTokenizer>(detail::find_pre_tokenizer(options.pre));
  detail::PairCounts counts(text, pre);
  const auto ordinary = static_cast<std::size_t>(vocabulary) - options.special.size();
  while (texts.size() < ordinary) {
    const detail::CountedPair best = counts.most_frequent();
    if (best.count < 2) {
      const std::size_t most = texts.size() + options.special.size();
      detail::fail({"train_tokenizer: no pair stands twice any more after ", most, " tokens of ",
                    vocabulary, "; a longer text or a vocabulary of at most ", most, " is right"});
    }
    const std::string left = texts.text(best.pair >> 32), right = texts.text(best.pair & ~0U);
    data.merges.push_back(detail::spelled_bytes(left) + " " + detail::spelled_bytes(right));
    std::int32_t merged = texts.find(left + right);  // there when cut in another place before
    if (merged < 0) {
      merged = texts.add(left + right);
      texts.find_by_text(merged);
    }
    counts.merge(best.pair, merged);
  }
  for (std::size_t id = 0; id < texts.size(); ++id) {
    data.tokens.push_back(detail::spelled_bytes(texts.text(id)));
  }
  if (!options.special.empty()) {
    data.types.assign(data.tokens.size(), static_cast<std::int32_t>(TokenType::normal));
    data.bos = data.eos = static_cast<std::int64_t>(data.tokens.size());
    for (const std::string& special : options.special) {
      data.tokens.push_back(special);
      data.types.push_back(static_cast<std::int32_t>(TokenType::control));
    }
  }
  return make_tokenizer(std::move(data), "train_tokenizer: ");
}

}  // namespace tinyscale
