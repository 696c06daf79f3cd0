#pragma once
// From a tokenizer's lists, which nobody has checked, to its tables. Both kinds of merging become
// one table from a pair of tokens to its rank: a list of merges gives the ranks in its order; with
// scores, a pair merges when a token spells both, and its rank is how many scores are higher.

#include <cstddef>  // size_t
#include <cstdint>  // int32_t
#include <string>   // string
#include <utility>  // move
#include <vector>   // vector

#include "tinyscale/base/order.hpp"
#include "tinyscale/model/tokenizer.hpp"

namespace tinyscale {
namespace detail {

inline void check_token_id(std::int64_t id, const char* what, std::size_t tokens,
                           const std::string& who) {
  if (id < -1 || id >= static_cast<std::int64_t>(tokens)) {
    fail({who, "the ", what, " token is ", id, " of ", tokens,
          " tokens; a token's number, or -1 for none, is right"});
  }
}

inline void check_tokenizer(const TokenizerData& data, const std::string& who) {
  const std::size_t n = data.tokens.size();
  if (n < 1 || n > 0x7FFFFFF0U) {
    fail({who, n, " tokens; 1 to 2^31 - 16 are right"});
  }
  const bool scored = data.kind == TokenizerKind::scored_pieces;
  if (scored ? data.scores.size() != n : !data.scores.empty()) {
    fail({who, n, " tokens and ", data.scores.size(), " scores; ",
          scored ? "one for each is right" : "only SentencePiece tokenizers have scores"});
  }
  for (std::size_t i = 0; i < data.scores.size(); ++i) {
    if (!is_finite(static_cast<double>(data.scores[i]))) {
      fail({who, "the score of token ", i, " is ", data.scores[i], "; a finite one is right"});
    }
  }
  if (!data.types.empty() && data.types.size() != n) {
    fail({who, n, " tokens and ", data.types.size(), " types; one for each, or none, is right"});
  }
  for (std::size_t i = 0; i < data.types.size(); ++i) {
    if (data.types[i] < 1 || data.types[i] > 6) {
      fail({who, "the type of token ", i, " is ", data.types[i], "; 1 to 6 are right"});
    }
  }
  if (!data.spaces.empty() && data.spaces.size() != n) {
    fail({who, n, " tokens and ", data.spaces.size(), " spaces; one for each, or none, is right"});
  }
  for (std::size_t i = 0; i < data.spaces.size(); ++i) {
    if (data.spaces[i] < 0 || data.spaces[i] > 7) {
      fail({who, "the spaces of token ", i, " are ", data.spaces[i], "; 0 to 7 are right"});
    }
  }
  check_token_id(data.bos, "BOS", n, who);
  check_token_id(data.eos, "EOS", n, who);
  check_token_id(data.unknown, "unknown", n, who);
}

// One side of a merge, or both, as the bytes that it stands for.
inline std::int32_t find_side(const TokenizerTables& tables, const std::string& spelling) {
  std::string bytes;
  if (tables.pieces()) {
    bytes = with_spaces(spelling);
  } else if (!bytes_of_spelling(spelling, bytes)) {
    return -1;
  }
  return tables.texts.find(bytes);
}

inline void add_merges(TokenizerTables& tables, const std::string& who) {
  const std::vector<std::string>& merges = tables.data.merges;
  TokenTable spelled;  // all tokens: texts do not find special ones, merges do
  bool there = false;
  const auto side = [&](const std::string& spelling) {
    const std::int32_t id = find_side(tables, spelling);
    if (id >= 0 || tables.data.types.empty()) {
      return id;
    }
    for (std::size_t i = 0; !there && i < tables.data.tokens.size(); ++i) {
      spelled.find_by_text(spelled.add(tables.data.tokens[i]));
    }
    there = true;
    return spelled.find(spelling);
  };
  if (merges.size() >= no_rank) {
    fail({who, merges.size(), " merges; fewer than 2^32 - 1 are right"});
  }
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const std::size_t space = merges[i].find(' ', 1);
    if (space == std::string::npos || space + 1 == merges[i].size() ||
        merges[i].find(' ', space + 1) != std::string::npos || merges[i][0] == ' ') {
      fail({who, "merge ", i, " is \"", merges[i], "\"; two tokens and a space between are right"});
    }
    const std::string left = merges[i].substr(0, space), right = merges[i].substr(space + 1);
    const std::int32_t a = side(left), b = side(right), merged = side(left + right);
    if (a < 0 || b < 0 || merged < 0) {
      fail({who, "merge ", i, " is \"", merges[i], "\", but \"",
            a < 0   ? left
            : b < 0 ? right
                    : left + right,
            "\" is no token"});
    }
    tables.pairs.add(a, b, static_cast<std::uint32_t>(i), merged);
  }
}

// How many different scores are higher than each token's.
inline std::vector<std::uint32_t> score_ranks(const std::vector<float>& scores) {
  std::vector<double> keys;
  for (const float score : scores) {
    keys.push_back(-static_cast<double>(score));
  }
  std::vector<std::uint32_t> ranks(scores.size());
  std::uint32_t rank = 0;
  float last = 0;
  bool first = true;
  for (const std::size_t i : stable_order(keys)) {
    rank += !first && scores[i] < last ? 1U : 0U;
    last = scores[i];
    first = false;
    ranks[i] = rank;
  }
  return ranks;
}

// Every way to cut a token into two others is a pair that merges into it.
inline void add_scored_pairs(TokenizerTables& tables) {
  const std::vector<std::uint32_t> ranks = score_ranks(tables.data.scores);
  std::vector<std::uint64_t> hashes, powers = {1};
  for (std::size_t id = 0; id < tables.texts.size(); ++id) {
    const char* const text = tables.texts.data(id);
    const std::size_t size = tables.texts.length(id);
    if (!tables.plain(id) || tables.texts.find(text, size) != static_cast<std::int32_t>(id)) {
      continue;  // no token of a text, or the second of the same
    }
    hashes.assign(1, 0);  // of the first i bytes
    for (std::size_t i = 0; i < size; ++i) {
      hashes.push_back(hashes[i] * hash_base + static_cast<unsigned char>(text[i]) + 1);
    }
    while (powers.size() <= size) {
      powers.push_back(powers.back() * hash_base);
    }
    for (std::size_t cut = 1; cut < size; ++cut) {
      const std::int32_t left = tables.texts.find(text, cut, hashes[cut]);
      if (left >= 0) {
        const std::uint64_t behind = hashes[size] - hashes[cut] * powers[size - cut];
        const std::int32_t right = tables.texts.find(text + cut, size - cut, behind);
        if (right >= 0) {
          tables.pairs.add(left, right, ranks[id], static_cast<std::int32_t>(id));
          tables.splits = tables.splits || (tables.data.space_rule == SpaceRule::text &&
                                            tables.type(id) == TokenType::unused);
        }
      }
    }
  }
}

// Which bytes stand side by side in a token: between others a text may be cut, nothing merges
// there.
inline void add_neighbours(TokenizerTables& tables) {
  tables.neighbours.assign(65536, '\0');
  for (std::size_t id = 0; id < tables.texts.size(); ++id) {
    const char* const text = tables.texts.data(id);
    for (std::size_t i = 1; tables.plain(id) && i < tables.texts.length(id); ++i) {
      tables.neighbours[256U * static_cast<unsigned char>(text[i - 1]) +
                        static_cast<unsigned char>(text[i])] = 1;
    }
  }
}

inline void add_special(TokenizerTables& tables, const std::string& who) {
  for (std::size_t id = 0; id < tables.texts.size(); ++id) {
    const TokenType type = tables.type(id);
    if (type != TokenType::control && type != TokenType::user_defined) {
      continue;
    }
    const bool late = tables.data.normalize != nullptr &&
                      tables.has(static_cast<std::int32_t>(id), TokenSpaces::normal_form);
    const std::string own = tables.texts.text(id), text = late ? tables.data.normalize(own) : own;
    if (text.empty()) {
      continue;
    }
    if (text.size() > SpecialTokens::longest) {
      fail({who, "the special token ", id, " has ", text.size(), " bytes; at most ",
            SpecialTokens::longest, " are right"});
    }
    tables.special[late].add(text, static_cast<std::int32_t>(id));
    if (type == TokenType::user_defined) {
      tables.always[late].add(text, static_cast<std::int32_t>(id));
    }
  }
  for (const int late : {0, 1}) {
    tables.special[late].finish();
    tables.always[late].finish();
  }
}

}  // namespace detail

// The tokenizer of these lists. An Error begins with `who`.
inline Tokenizer make_tokenizer(TokenizerData data, const std::string& who = "make_tokenizer: ") {
  if (data.kind == TokenizerKind::bytes) {
    return Tokenizer();
  }
  if (data.kind == TokenizerKind::characters) {
    return Tokenizer(std::move(data.tokens));
  }
  detail::check_tokenizer(data, who);
  auto* const made = new detail::TokenizerTables;
  const Shared<const detail::TokenizerTables> tables(made);
  made->data = std::move(data);
  if (!made->pieces()) {
    const int pre = detail::find_pre_tokenizer(made->data.pre);
    if (pre < 0) {
      detail::fail({who, "the pre-tokenizer is \"", made->data.pre, "\"; right is one of ",
                    detail::pre_tokenizer_names()});
    }
    made->pre = static_cast<PreTokenizer>(pre);
  }
  const bool llama3 = made->pre == PreTokenizer::llama3 && made->data.pre != "dbrx";
  if (made->data.add_bos < 0) {
    made->data.add_bos = made->pieces() || llama3 ? 1 : 0;
  }
  if (made->data.ignore_merges < 0) {
    made->data.ignore_merges = llama3 ? 1 : 0;
  }
  made->data.add_bos = made->data.bos < 0 ? 0 : made->data.add_bos;
  made->data.add_eos = made->data.eos < 0 ? 0 : made->data.add_eos;
  detail::add_texts(*made);
  if (made->data.kind == TokenizerKind::scored_pieces) {
    detail::add_scored_pairs(*made);
  } else {
    detail::add_merges(*made, who);
  }
  if (made->pieces()) {
    detail::add_neighbours(*made);
  }
  detail::add_special(*made, who);
  return Tokenizer(tables);
}

}  // namespace tinyscale
