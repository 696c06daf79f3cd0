#pragma once
// The cache of keys and values in pages: each sequence has a table of pages of as many tokens, so
// no room is kept for tokens that never come, and sequences that begin alike share pages until one
// of them writes (Kwon et al., PagedAttention, arXiv 2309.06180).
// Bytes of a token: 2 layers KV K bytes of the format; int8 has an f32 scale a head beside.

#include <cstdint>  // int64_t
#include <cstring>  // memcpy
#include <utility>  // move
#include <vector>   // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/compute/cache_attention.hpp"
#include "tinyscale/measure/context.hpp"
#include "tinyscale/model/model_config.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

struct CacheOptions {
  DType format = DType::f32;      // also bf16, f16, int8
  std::int64_t page_tokens = 64;  // of a page
  std::int64_t pages = 0;         // at most; 0: as many as memory holds
};

// A copy of a cache has pages of its own; fork() shares those of a sequence.
class KvPages {
 public:
  explicit KvPages(const ModelConfig& config, const CacheOptions& options = {});

  int add();               // a new sequence without tokens
  int fork(int sequence);  // one with the same tokens, on the same pages
  void drop(int sequence);

  std::int64_t length(int sequence) const { return of(sequence).length; }
  // Room for n more tokens, which then count as there; the place of the first.
  std::int64_t extend(int sequence, std::int64_t n);
  // Forgets all tokens from `length` on.
  void truncate(int sequence, std::int64_t length);

  kernels::CacheShape shape() const { return shape_; }
  // A page of one layer, by the order of its tokens, as kernels::cache_attention reads it.
  const std::uint8_t* page(int layer, int sequence, std::int64_t number) const {
    return checked_page(layer, sequence, number);
  }
  std::uint8_t* page(int layer, int sequence, std::int64_t number) {
    return checked_page(layer, sequence, number);
  }

  std::int64_t page_tokens() const { return shape_.page_tokens; }
  std::int64_t pages_in_use() const { return held_pages(1); }
  std::int64_t shared_pages() const { return held_pages(2); }    // that more than one sequence has
  std::int64_t page_bytes() const { return layers_ * stride_; }  // of all layers
  // Keys and values of a token in one layer, with the scales of int8.
  std::int64_t layer_bytes() const {
    const std::int64_t scales = shape_.format == DType::int8 ? 4 * shape_.kv_heads : 0;
    return 2 * (shape_.row_bytes() + scales);
  }
  std::int64_t token_bytes() const { return layers_ * layer_bytes(); }  // of all layers
  double bytes() const;                                                 // of the pages in use
  // Tokens that the last of `tokens` sees in a layer, itself one: its window's, if it has one.
  std::int64_t seen(std::int64_t tokens, int layer) const {
    const bool local = window_ > 0 && (global_every_ == 0 || (layer + 1) % global_every_ != 0);
    return local && tokens > window_ ? window_ : tokens;
  }
  // Of the keys and values of a layer that the last n tokens of the sequence see together.
  double bytes_read(int sequence, int layer, std::int64_t n = 1) const {
    const std::int64_t length = of(sequence).length, first = length - n;
    return static_cast<double>((length - (first + 1 - seen(first + 1, layer))) * layer_bytes());
  }
  DType format() const { return shape_.format; }
  // Whether it holds what that model's layers keep.
  bool fits(const ModelConfig& c) const {
    return layers_ == c.layers && shape_.kv_heads == c.kv_heads &&
           shape_.head_size == c.head_size && window_ == c.window &&
           global_every_ == c.global_every;
  }
  std::string text() const {
    return detail::cat({layers_, " layers of ", shape_.kv_heads, " x ", shape_.head_size,
                        window_ > 0 ? detail::cat({", windows of ", window_}) : ""});
  }

 private:
  // Tensors share their numbers when they are copied; these do not.
  struct Slabs {
    List<Tensor> all;

    Slabs() = default;
    Slabs(Slabs&&) = default;
    Slabs(const Slabs& other) {
      const MemoryScope scope(MemoryKind::kv_cache);
      for (const Tensor& slab : other.all) {
        Tensor own(slab.shape());
        std::memcpy(own.origin(), slab.origin(), 4 * static_cast<std::size_t>(slab.count()));
        all.push_back(own);
      }
    }
    Slabs& operator=(Slabs other) {
      all.swap(other.all);
      return *this;
    }
  };
  struct Sequence {
    std::vector<int> pages;
    std::int64_t length = 0;
    bool alive = true;
  };

  const Sequence& of(int sequence) const {
    if (sequence < 0 || static_cast<std::size_t>(sequence) >= sequences_.size() ||
        !sequences_[static_cast<std::size_t>(sequence)].alive) {
      detail::fail({"KvPages: no sequence ", sequence, "; add() gives one"});
    }
    return sequences_[static_cast<std::size_t>(sequence)];
  }
  Sequence& of(int sequence) {
    return const_cast<Sequence&>(static_cast<const KvPages*>(this)->of(sequence));
  }
  std::uint8_t* checked_page(int layer, int sequence, std::int64_t number) const {
    const std::vector<int>& pages = of(sequence).pages;
    if (layer < 0 || layer >= layers_ || number < 0 ||
        number >= static_cast<std::int64_t>(pages.size())) {
      detail::fail({"KvPages: page ", number, " of layer ", layer, "; the sequence has ",
                    pages.size(), " pages, the model ", layers_, " layers"});
    }
    return place(layer, pages[static_cast<std::size_t>(number)]);
  }
  std::uint8_t* place(int layer, int page) const {
    const std::int64_t slab = page / slab_pages_;
    const std::int64_t at = (page % slab_pages_ * layers_ + layer) * stride_;
    return reinterpret_cast<std::uint8_t*>(slabs_.all[static_cast<std::size_t>(slab)].origin()) +
           at;
  }
  std::int64_t held_pages(int least) const;  // by so many sequences
  int take_page();
  void release(int page);
  int insert(Sequence sequence);

  kernels::CacheShape shape_;
  std::int64_t layers_ = 0, stride_ = 0;  // stride_: bytes of a layer's part of a page
  std::int64_t slab_pages_ = 0, limit_ = 0;
  std::int64_t window_ = 0, global_every_ = 0;  // as in ModelConfig
  Slabs slabs_;
  std::vector<int> holders_;  // of each page
  std::vector<int> free_;
  List<Sequence> sequences_;
};

inline KvPages::KvPages(const ModelConfig& config, const CacheOptions& options)
    : layers_(config.layers),
      limit_(options.pages),
      window_(config.window),
      global_every_(config.global_every) {
  if (options.format != DType::f32 && options.format != DType::bf16 &&
      options.format != DType::f16 && options.format != DType::int8) {
    detail::fail({"KvPages: a cache of ", options.format, "; f32, bf16, f16 or int8 is right"});
  }
  if (options.page_tokens < 1 || options.page_tokens > (1 << 20) || options.pages < 0) {
    detail::fail({"KvPages: pages of ", options.page_tokens, " tokens, ", options.pages,
                  " of them; 1 to 1048576 tokens and 0 or more pages are right"});
  }
  const std::int64_t most = 2147483647;
  if (config.layers < 0 || config.layers > 1000000 || config.context < 1 || config.context > most ||
      config.kv_heads < 1 || config.kv_heads > 1000000 || config.head_size < 1 ||
      config.head_size > 1000000) {
    detail::fail({"KvPages: ", config.layers, " layers, ", config.kv_heads, " heads of ",
                  config.head_size, " for a context of ", config.context,
                  "; a configuration that validate() lets pass is right"});
  }
  shape_.format = options.format;
  shape_.page_tokens = options.page_tokens;
  shape_.kv_heads = config.kv_heads;
  shape_.head_size = config.head_size;
  shape_.heads = config.heads;
  stride_ = (shape_.page_bytes() + 63) / 64 * 64;
  const std::int64_t whole = (config.context + options.page_tokens - 1) / options.page_tokens;
  slab_pages_ = whole < 16 ? whole : 16;
}

inline int KvPages::take_page() {
  if (free_.empty()) {
    const auto first = static_cast<int>(holders_.size());
    const std::int64_t pages =
        limit_ > 0 && limit_ - first < slab_pages_ ? limit_ - first : slab_pages_;
    const MemoryScope scope(MemoryKind::kv_cache);
    slabs_.all.push_back(Tensor(Shape{pages * page_bytes() / 4}));
    for (std::int64_t i = 0; i < pages; ++i) {
      holders_.push_back(0);
      free_.push_back(first + static_cast<int>(pages - 1 - i));
    }
  }
  const int page = free_.back();
  free_.pop_back();
  holders_[static_cast<std::size_t>(page)] = 1;
  return page;
}

inline void KvPages::release(int page) {
  if (--holders_[static_cast<std::size_t>(page)] == 0) {
    free_.push_back(page);
  }
}

inline int KvPages::insert(Sequence sequence) {
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    if (!sequences_[i].alive) {
      sequences_[i] = std::move(sequence);
      return static_cast<int>(i);
    }
  }
  sequences_.push_back(std::move(sequence));
  return static_cast<int>(sequences_.size()) - 1;
}

inline int KvPages::add() { return insert(Sequence()); }

inline int KvPages::fork(int sequence) {
  Sequence same = of(sequence);
  for (const int page : same.pages) {
    ++holders_[static_cast<std::size_t>(page)];
  }
  return insert(std::move(same));
}

inline void KvPages::drop(int sequence) {
  truncate(sequence, 0);
  of(sequence).alive = false;
}

inline std::int64_t KvPages::extend(int sequence, std::int64_t n) {
  Sequence& s = of(sequence);
  if (n < 0 || n > 2147483647 - s.length) {
    detail::fail({"KvPages: ", n, " more tokens behind ", s.length,
                  "; at least 0, and together less than 2^31, are right"});
  }
  const std::int64_t first = s.length, tokens = shape_.page_tokens;
  const std::int64_t more =
      (first + n + tokens - 1) / tokens - static_cast<std::int64_t>(s.pages.size());
  // A shared last page that is written to is copied first.
  const bool copy =
      n > 0 && first % tokens != 0 && holders_[static_cast<std::size_t>(s.pages.back())] > 1;
  if (limit_ > 0 && pages_in_use() + more + (copy ? 1 : 0) > limit_) {
    detail::fail({"KvPages: ", limit_, " pages of ", tokens,
                  " tokens are too few; drop a sequence or give more pages"});
  }
  if (copy) {
    int& last = s.pages.back();
    const int own = take_page();
    for (int layer = 0; layer < layers_; ++layer) {
      std::memcpy(place(layer, own), place(layer, last), static_cast<std::size_t>(stride_));
    }
    release(last);
    last = own;
  }
  while (static_cast<std::int64_t>(s.pages.size()) * tokens < first + n) {
    s.pages.push_back(take_page());
  }
  s.length = first + n;
  return first;
}

inline void KvPages::truncate(int sequence, std::int64_t length) {
  Sequence& s = of(sequence);
  if (length < 0 || length > s.length) {
    detail::fail(
        {"KvPages: truncate to ", length, " tokens of ", s.length, "; 0 up to as many are right"});
  }
  const std::int64_t pages = (length + shape_.page_tokens - 1) / shape_.page_tokens;
  while (static_cast<std::int64_t>(s.pages.size()) > pages) {
    release(s.pages.back());
    s.pages.pop_back();
  }
  s.length = length;
}

inline std::int64_t KvPages::held_pages(int least) const {
  std::int64_t held = 0;
  for (const int holders : holders_) {
    held += holders >= least ? 1 : 0;
  }
  return held;
}

inline double KvPages::bytes() const {
  return static_cast<double>(pages_in_use()) * static_cast<double>(page_bytes());
}

}  // namespace tinyscale
