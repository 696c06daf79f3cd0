// What every fuzz target shares. A target takes bytes as a file would hold them; a tinyscale::Error
// is a right answer, anything else a finding: a crash, a sanitizer's report, an input that takes
// seconds, a broken promise, and more memory than so many bytes for each byte of the input.
// tests/fuzz_test.cpp includes the targets (FUZZ_REPLAY) and gives them the committed corpus.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#ifndef FUZZ_REPLAY
#ifdef __APPLE__
#include <malloc/malloc.h>
#define malloc_usable_size malloc_size
#else
#include <malloc.h>
#endif

#include <cstdio>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/mapped_file.hpp"
#endif
#ifdef __has_include
#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>  // ASAN_POISON_MEMORY_REGION, nothing without the sanitizer
#endif
#endif
#ifndef ASAN_POISON_MEMORY_REGION
#define ASAN_POISON_MEMORY_REGION(start, bytes) static_cast<void>(0)
#endif

namespace fuzz {

// Bytes that operator new has given and nobody has given back, since the input came.
struct Memory {
  std::size_t live = 0, peak = 0, limit = 0;  // limit 0: none
};

inline Memory& memory() {
  static Memory all;
  return all;
}

// What must hold for every input.
inline void promise(bool kept, const std::string& what) {
  if (kept) {
    return;
  }
#ifdef FUZZ_REPLAY
  throw std::logic_error("broken promise: " + what);
#else
  std::fprintf(stderr, "broken promise: %s\n", what.c_str());
  std::abort();
#endif
}

// A file in memory of its own, so that reading past its end is seen.
inline tinyscale::Shared<tinyscale::MappedFile> file_of(const std::uint8_t* data,
                                                        std::size_t size) {
  if (size == 0) {
    return tinyscale::Shared<tinyscale::MappedFile>(new tinyscale::MappedFile);  // no data
  }
  tinyscale::Shared<tinyscale::MappedFile> file(new tinyscale::MappedFile(size));
  std::memcpy(file->own_data(), data, size);
  ASAN_POISON_MEMORY_REGION(file->own_data() + size, 64);
  return file;
}

inline std::string text_of(const std::uint8_t* data, std::size_t size) {
  return std::string(reinterpret_cast<const char*>(data), size);
}

// Gives `body` the input; it may throw an Error, and hold `each` bytes for each byte of the input.
template <class Body>
int one_input(std::size_t size, std::size_t each, Body body) {
  memory() = {0, 0, each * size + (std::size_t{1} << 20)};
  try {
    body();
  } catch (const tinyscale::Error& error) {
    memory().limit = 0;
    promise(error.what()[0] != '\0', "an Error says what is wrong");
  }
  memory().limit = 0;
  return 0;
}

}  // namespace fuzz

#if !defined(FUZZ_REPLAY) && !defined(FUZZ_PART)  // FUZZ_PART: beside a target
namespace fuzz {

inline void* counted(void* memory_block) {
  Memory& m = memory();
  if (memory_block != nullptr) {
    m.live += malloc_usable_size(memory_block);
    m.peak = m.live > m.peak ? m.live : m.peak;
  }
  return memory_block;
}

inline void check_memory(std::size_t bytes) {
  Memory& m = memory();
  if (m.limit > 0 && (bytes > m.limit || m.live > m.limit - bytes)) {
    const std::size_t limit = m.limit;
    m.limit = 0;
    std::fprintf(stderr, "broken promise: %zu bytes more beside %zu, above the limit of %zu\n",
                 bytes, m.live, limit);
    std::abort();
  }
}

inline void give_back(void* block) {
  if (block != nullptr) {
    const std::size_t bytes = malloc_usable_size(block);
    memory().live -= bytes < memory().live ? bytes : memory().live;
    std::free(block);
  }
}

inline void* take(std::size_t bytes, std::size_t align) {
  check_memory(bytes);
  void* block = nullptr;
  if (align <= alignof(std::max_align_t)) {
    block = std::malloc(bytes > 0 ? bytes : 1);
  } else if (posix_memalign(&block, align, bytes > 0 ? bytes : 1) != 0) {
    block = nullptr;
  }
  return counted(block);
}

inline void* take_or_throw(std::size_t bytes, std::size_t align) {
  void* const block = take(bytes, align);
  if (block == nullptr) {
    throw std::bad_alloc();
  }
  return block;
}

}  // namespace fuzz

void* operator new(std::size_t bytes) { return fuzz::take_or_throw(bytes, 1); }
void* operator new[](std::size_t bytes) { return fuzz::take_or_throw(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t align) {
  return fuzz::take_or_throw(bytes, static_cast<std::size_t>(align));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return fuzz::take(bytes, 1);
}
void* operator new(std::size_t bytes, std::align_val_t align, const std::nothrow_t&) noexcept {
  return fuzz::take(bytes, static_cast<std::size_t>(align));
}
void operator delete(void* block) noexcept { fuzz::give_back(block); }
void operator delete[](void* block) noexcept { fuzz::give_back(block); }
void operator delete(void* block, std::size_t) noexcept { fuzz::give_back(block); }
void operator delete[](void* block, std::size_t) noexcept { fuzz::give_back(block); }
void operator delete(void* block, std::align_val_t) noexcept { fuzz::give_back(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept {
  fuzz::give_back(block);
}
#endif
