#pragma once
// Byte-pair encoding: of all neighbouring pairs of tokens that may merge, the one of lowest rank
// merges, the leftmost of equals, until none may. Ranks are a tokenizer's merges in their order or,
// as in SentencePiece, its scores from the highest down. A short word scans its pairs again after
// each merge (n^2, n small); a long one keeps them in a heap: n log n whatever the text.
// Sennrich et al., https://arxiv.org/abs/1508.07909

#include <cstddef>  // size_t
#include <cstdint>  // uint64_t
#include <cstring>  // memmove
#include <vector>   // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/model/token_table.hpp"

namespace tinyscale {
namespace detail {

constexpr std::uint32_t no_rank = 0xFFFFFFFFU;

// What two neighbouring tokens become, and which pairs go first.
struct PairMerge {
  std::uint64_t pair = ~std::uint64_t{0};
  std::uint32_t rank = no_rank;
  std::int32_t merged = -1;
};

inline std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

// From a pair of tokens to its merge (open addressing, at most half full).
class PairTable {
 public:
  std::size_t size() const { return used_; }
  bool empty() const { return used_ == 0; }

  // Of a pair that does not merge: no_rank, and -1.
  PairMerge find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t pair = pair_of(left, right);
    const PairMerge& place = slots_[slot(pair)];
    return place.pair == pair ? place : PairMerge();
  }
  // False when the pair is there already, which keeps its rank.
  bool add(std::int32_t left, std::int32_t right, std::uint32_t rank, std::int32_t merged) {
    if (2 * (used_ + 1) > slots_.size()) {
      List<PairMerge> old(2 * slots_.size());
      old.swap(slots_);
      for (const PairMerge& merge : old) {
        if (merge.merged >= 0) {
          put(merge);
        }
      }
    }
    const std::uint64_t pair = pair_of(left, right);
    if (slots_[slot(pair)].pair == pair) {
      return false;
    }
    put({pair, rank, merged});
    ++used_;
    return true;
  }

 private:
  std::size_t slot(std::uint64_t pair) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = mixed(pair) & mask;
    for (std::size_t tries = 0;
         slots_[at].merged >= 0 && slots_[at].pair != pair && tries < farthest_slot; ++tries) {
      at = (at + 1) & mask;
    }
    return at;
  }
  void put(const PairMerge& merge) {
    PairMerge& place = slots_[slot(merge.pair)];
    if (place.merged >= 0) {
      fail_crowded("merges");
    }
    place = merge;
  }

  List<PairMerge> slots_ = List<PairMerge>(64);
  std::size_t used_ = 0;
};

// A pair that may merge: the place of its left token in the word.
struct PairPlace {
  std::uint64_t order = 0;  // rank, then place
  std::uint64_t pair = 0;

  bool before(const PairPlace& other) const { return order < other.order; }
};

// What merging a word needs, kept from word to word.
struct MergeWork {
  std::vector<std::int32_t> ids;
  std::vector<std::uint32_t> next, previous;
  Heap<PairPlace> heap;
  std::vector<std::uint64_t> seen;  // of each token the last pair that might become it; or empty
};

constexpr std::size_t scanned_word = 40;  // tokens; longer words take the heap

// Merges work.ids by scanning. ranks[i] is that of tokens i and i + 1.
inline void merge_by_scan(const PairTable& pairs, MergeWork& work) {
  std::int32_t* const ids = work.ids.data();
  std::size_t n = work.ids.size();
  std::uint32_t ranks[scanned_word] = {};
  const auto rank_at = [&](std::size_t i) {
    return i + 1 < n ? pairs.find(ids[i], ids[i + 1]).rank : no_rank;
  };
  for (std::size_t i = 0; i + 1 < n; ++i) {
    ranks[i] = rank_at(i);
  }
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i) {
      best = ranks[i] < ranks[best] ? i : best;
    }
    if (ranks[best] == no_rank) {
      break;
    }
    ids[best] = pairs.find(ids[best], ids[best + 1]).merged;
    const std::size_t behind = n - best - 2;
    std::memmove(ids + best + 1, ids + best + 2, behind * sizeof(std::int32_t));
    std::memmove(ranks + best, ranks + best + 1, (behind + 1) * sizeof(std::uint32_t));
    --n;
    ranks[best] = rank_at(best);
    if (best > 0) {
      ranks[best - 1] = rank_at(best - 1);
    }
  }
  work.ids.resize(n);
}

// Merges work.ids by a heap of pairs over a linked list; a merge leaves its token at the left
// place. An entry whose tokens are no longer there is passed over.
inline void merge_by_heap(const PairTable& pairs, MergeWork& work) {
  std::vector<std::int32_t>& ids = work.ids;
  const auto n = static_cast<std::uint32_t>(ids.size());
  work.next.resize(n);
  work.previous.resize(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    work.next[i] = i + 1;
    work.previous[i] = i - 1;  // of the first: 2^32 - 1, which is no place
  }
  const auto offer = [&](std::uint32_t at) {
    if (at < n && work.next[at] < n) {
      const PairMerge& merge = pairs.find(ids[at], ids[work.next[at]]);
      if (merge.merged >= 0) {
        work.heap.push({static_cast<std::uint64_t>(merge.rank) << 32 | at, merge.pair});
        if (!work.seen.empty()) {
          work.seen[static_cast<std::size_t>(merge.merged)] = merge.pair;
        }
      }
    }
  };
  for (std::uint32_t i = 0; i + 1 < n; ++i) {
    offer(i);
  }
  while (!work.heap.empty()) {
    const PairPlace first = work.heap.pop();
    const auto at = static_cast<std::uint32_t>(first.order);
    const std::uint32_t right = work.next[at];
    if (ids[at] < 0 || right >= n || pair_of(ids[at], ids[right]) != first.pair) {
      continue;
    }
    ids[at] = pairs.find(ids[at], ids[right]).merged;
    ids[right] = -1;
    work.next[at] = work.next[right];
    if (work.next[at] < n) {
      work.previous[work.next[at]] = at;
    }
    offer(work.previous[at]);
    offer(at);
  }
  std::size_t kept = 0;
  for (std::uint32_t i = 0; i < n; i = work.next[i]) {
    ids[kept++] = ids[i];
  }
  ids.resize(kept);
}

// Merges the tokens of one word in work.ids, at most 2^32 - 2 of them.
inline void merge_pairs(const PairTable& pairs, MergeWork& work) {
  if (work.ids.size() <= scanned_word && work.seen.empty()) {
    merge_by_scan(pairs, work);
  } else {
    merge_by_heap(pairs, work);
  }
}

}  // namespace detail
}  // namespace tinyscale
