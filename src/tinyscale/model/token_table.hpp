#pragma once
// The texts of all tokens in one block of memory, and a hash table from a text to its token. The
// hash of a text is a polynomial in its bytes, so that those of all its beginnings and ends come
// from one pass: h(ab) = h(a) B^|b| + h(b) modulo 2^64.

#include <cstddef>  // size_t
#include <cstdint>  // uint64_t
#include <cstring>  // memcmp
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"

namespace tinyscale {
namespace detail {

constexpr std::uint64_t hash_base = 0x9E3779B97F4A7C55U;

// Spreads every bit over all (MurmurHash3's finalizer).
inline std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDU;
  x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53U;
  return x ^ (x >> 33);
}

inline std::uint64_t text_hash(const char* text, std::size_t size) {
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < size; ++i) {
    hash = hash * hash_base + static_cast<unsigned char>(text[i]) + 1;
  }
  return hash;
}

// How far from its place in a hash table a key may lie. At most half full, tables of a million keys
// that nobody chose stay below 80; keys chosen to share a place are refused, not searched through.
constexpr std::size_t farthest_slot = 256;

[[noreturn]] inline void fail_crowded(const char* what) {
  fail({"tokenizer: ", farthest_slot, " ", what,
        " share a place in the hash table; a vocabulary that was not made to is right"});
}

class TokenTable {
 public:
  std::size_t size() const { return starts_.size() - 1; }
  const char* data(std::size_t id) const { return bytes_.data() + starts_[id]; }
  std::size_t length(std::size_t id) const { return starts_[id + 1] - starts_[id]; }
  std::string text(std::size_t id) const { return std::string(data(id), length(id)); }

  void reserve(std::size_t tokens) { starts_.reserve(tokens + 1); }
  // One more token; it is found by its text only after find_by_text.
  std::int32_t add(const std::string& text) {
    bytes_ += text;
    starts_.push_back(bytes_.size());
    return static_cast<std::int32_t>(size()) - 1;
  }
  // From now on this token's text finds it, unless an earlier one has the same.
  void find_by_text(std::int32_t id) {
    if (2 * (used_ + 1) > slots_.size()) {
      grow();
    }
    const auto place = static_cast<std::size_t>(id);
    const std::uint64_t hash = text_hash(data(place), length(place));
    bool there = false;
    const std::size_t at = slot(data(place), length(place), hash, there);
    if (!there) {
      put({hash, id}, at);
      ++used_;
    }
  }

  // The token of that text, -1 when there is none.
  std::int32_t find(const char* text, std::size_t size, std::uint64_t hash) const {
    bool there = false;
    const std::size_t at = slots_.empty() ? 0 : slot(text, size, hash, there);
    return there ? static_cast<std::int32_t>(slots_[at].id) : -1;
  }
  std::int32_t find(const char* text, std::size_t size) const {
    return find(text, size, text_hash(text, size));
  }
  std::int32_t find(const std::string& text) const { return find(text.data(), text.size()); }

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::int64_t id = -1;
  };

  // Where the text stands, or the first free slot behind its place.
  std::size_t slot(const char* text, std::size_t size, std::uint64_t hash, bool& there) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = mixed(hash) & mask;
    for (std::size_t tries = 0; slots_[at].id >= 0 && tries < farthest_slot; ++tries) {
      const auto id = static_cast<std::size_t>(slots_[at].id);
      if (slots_[at].hash == hash && length(id) == size && std::memcmp(data(id), text, size) == 0) {
        there = true;
        break;
      }
      at = (at + 1) & mask;
    }
    return at;
  }
  void put(const Slot& s, std::size_t at) {
    if (slots_[at].id >= 0) {
      fail_crowded("texts");
    }
    slots_[at] = s;
  }
  void grow() {
    List<Slot> old(slots_.empty() ? 64 : 2 * slots_.size());
    old.swap(slots_);
    const std::size_t mask = slots_.size() - 1;
    for (const Slot& s : old) {
      if (s.id >= 0) {
        std::size_t at = mixed(s.hash) & mask;
        for (std::size_t tries = 0; slots_[at].id >= 0 && tries < farthest_slot; ++tries) {
          at = (at + 1) & mask;
        }
        put(s, at);
      }
    }
  }

  std::string bytes_;
  std::vector<std::size_t> starts_ = {0};
  List<Slot> slots_;
  std::size_t used_ = 0;
};

}  // namespace detail
}  // namespace tinyscale
