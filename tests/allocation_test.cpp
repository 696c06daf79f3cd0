// A training step in steady state asks the system for no memory. Global new and delete count here,
// for the whole test program; under a sanitizer, which needs its own, the count is left out.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "tinyscale.hpp"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#if TINYSCALE_POOL && !defined(__SANITIZE_THREAD__) && defined(__GLIBC__)
#define COUNTS_ALLOCATIONS 1
#else
#define COUNTS_ALLOCATIONS 0
#endif
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#undef COUNTS_ALLOCATIONS
#define COUNTS_ALLOCATIONS 0
#endif
#endif

namespace ts = tinyscale;

namespace {

std::atomic<long> allocations{0};

}  // namespace

#if COUNTS_ALLOCATIONS
#define NOT_INLINE __attribute__((noinline))  // g++ would take free() for a mistake
NOT_INLINE void* operator new(std::size_t bytes) {
  ++allocations;
  void* const memory = std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}
NOT_INLINE void* operator new[](std::size_t bytes) { return operator new(bytes); }
NOT_INLINE void* operator new(std::size_t bytes, std::align_val_t align,
                              const std::nothrow_t&) noexcept {
  ++allocations;
  void* memory = nullptr;
  return posix_memalign(&memory, static_cast<std::size_t>(align), bytes) == 0 ? memory : nullptr;
}
NOT_INLINE void* operator new(std::size_t bytes, std::align_val_t align) {
  void* const memory = operator new(bytes, align, std::nothrow);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}
NOT_INLINE void operator delete(void* memory) noexcept { std::free(memory); }
NOT_INLINE void operator delete[](void* memory) noexcept { std::free(memory); }
NOT_INLINE void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
NOT_INLINE void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
NOT_INLINE void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
NOT_INLINE void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
#endif

namespace {

// Bytes that malloc has handed out, whoever asked: what goes past operator new shows here.
std::size_t malloc_bytes() {
#if COUNTS_ALLOCATIONS && __GLIBC_PREREQ(2, 33)
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
#else
  return 0;
#endif
}

ts::ModelConfig small_model(bool llama) {
  ts::ModelConfig config = ts::config(llama ? "nano-llama" : "nano");
  config.layers = 2;
  config.width = 32;
  config.heads = config.kv_heads = 2;
  config.head_size = 16;
  config.hidden = 64;
  config.context = 32;
  config.vocabulary = 65;
  return config;
}

// What the last of ten steps asked the system for. The first ones fill the pool; two threads that
// first meet in a kernel lend scratch memory twice, whenever that is.
struct Asked {
  long calls = 0;
  bool bytes = false;
};

template <class Step>
Asked of_ten_steps(const ts::ModelConfig& config, const ts::StepOptions& options, Step&& step) {
  std::vector<std::int32_t> tokens;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    tokens.push_back(static_cast<std::int32_t>(ts::random_below(1, i, 65)));
  }
  ts::Batch batch;
  long made = 0;
  std::size_t bytes = 0;
  for (std::int64_t i = 0; i < 10; ++i) {
    if (i == 4) {
      made = allocations.load();
      bytes = malloc_bytes();
    }
    ts::fill_batch(batch, tokens, options.batch, config.context, options.seed, i);
    step(batch, i);
  }
  return {allocations.load() - made, malloc_bytes() != bytes};
}

}  // namespace

TEST_CASE("a training step in steady state makes no system allocation") {
  const ts::ThreadScope threads(1);
  for (const bool llama : {false, true}) {
    for (const ts::DType format : {ts::DType::f32, ts::DType::bf16, ts::DType::f16}) {
      for (const double dropout : {0.0, 0.1}) {
        CAPTURE(llama);
        CAPTURE(ts::name_of(format));
        CAPTURE(dropout);
        const ts::ModelConfig config = small_model(llama);
        ts::Transformer model(config, 1);
        ts::StepOptions options;
        options.batch = 4;
        options.dropout = dropout;
        options.format = format;
        ts::AdamW optimizer(model.tensors(), ts::adamw_options(options));
        const Asked eager =
            of_ten_steps(config, options, [&](const ts::Batch& batch, std::int64_t i) {
              ts::train_step(model, optimizer, batch, options, i);
            });
        CHECK(eager.calls == 0);
        CHECK(!eager.bytes);
        CHECK(ts::context().memory->current(ts::MemoryKind::gradient) == 0);
        if (format != ts::DType::f16 && dropout <= 0) {  // which a graph refuses
          ts::CompiledStep graph = ts::compile_step(model, optimizer, options);
          const Asked compiled = of_ten_steps(
              config, options, [&](const ts::Batch& batch, std::int64_t i) { graph(batch, i); });
          CHECK(compiled.calls == 0);
          CHECK(!compiled.bytes);
        }
      }
    }
  }
}

TEST_CASE("memory that is free is used again, and goes back when it is asked for") {
  const void* first = nullptr;
  {
    const ts::Tensor a({1000, 7});
    first = a.data();
  }
  const ts::Tensor b({1000, 7});
#if TINYSCALE_POOL
  CHECK(static_cast<const void*>(b.data()) == first);
#else
  CHECK(first != nullptr);
#endif
  CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % 64 == 0);
  ts::release_memory();
  CHECK(ts::ones({3, 5}).values() == std::vector<float>(15, 1.0f));
}

TEST_CASE("blocks of every size hold what was asked for and come back to their list") {
  std::vector<std::size_t> sizes;
  for (std::size_t bytes = 0; bytes < 9000; bytes += 17) {
    sizes.push_back(bytes);
  }
  for (std::size_t k = 12; k < 24; ++k) {
    for (const int off : {-65, -64, -1, 0, 1, 63, 64, 65}) {
      sizes.push_back((std::size_t{1} << k) + static_cast<std::size_t>(off + 100) - 100);
    }
  }
  for (const std::size_t bytes : sizes) {
    CAPTURE(bytes);
    char* const memory = static_cast<char*>(ts::detail::pool_take(1, bytes + 1));
    CHECK(reinterpret_cast<std::uintptr_t>(memory) % 64 == 0);
    memory[0] = memory[bytes] = 1;
    ts::detail::pool_give(memory, 1, bytes + 1);
#if TINYSCALE_POOL
    void* const again = ts::detail::pool_take(1, bytes + 1);
    CHECK(again == static_cast<void*>(memory));
    ts::detail::pool_give(again, 1, bytes + 1);
#endif
  }
  CHECK_THROWS_AS(ts::detail::pool_take(std::size_t{1} << 62, 64), std::bad_alloc);
}

#if TINYSCALE_POOL
TEST_CASE("a thread keeps small blocks to itself for as long as it says") {
  const auto take = [](std::size_t bytes) { return ts::detail::pool_take(1, bytes); };
  const auto take_elsewhere = [&](std::size_t bytes) {
    void* block = nullptr;
    std::thread([&] { block = take(bytes); }).join();
    return block;
  };
  std::vector<void*> blocks;
  for (int i = 0; i < 20; ++i) {  // more than it keeps
    blocks.push_back(take(300));
  }
  void* const large = take(100000);
  {
    const ts::detail::ThreadBlocks own;
    ts::detail::pool_give(blocks[0], 1, 300);
    ts::detail::pool_give(large, 1, 100000);
    void* const other = take_elsewhere(300);
    CHECK(other != blocks[0]);
    CHECK(take_elsewhere(100000) == large);
    {
      const ts::detail::ThreadBlocks inner;
      void* const another = take(300);
      CHECK(another != blocks[0]);
      ts::detail::pool_give(another, 1, 300);
    }
    CHECK(take(300) == blocks[0]);
    ts::detail::pool_give(other, 1, 300);
    for (void* const block : blocks) {
      ts::detail::pool_give(block, 1, 300);
    }
  }
  std::vector<void*> again;
  for (int i = 0; i < 22; ++i) {
    again.push_back(take_elsewhere(300));
  }
  for (void* const block : blocks) {
    CHECK(std::find(again.begin(), again.end(), block) != again.end());
  }
  for (void* const block : again) {
    ts::detail::pool_give(block, 1, 300);
  }
  ts::detail::pool_give(large, 1, 100000);
}
#endif

TEST_CASE("threads share the free lists") {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&wrong, t] {
      for (int i = 0; i < 2000; ++i) {
        const ts::Tensor a = ts::full({1 + i % 37, 3}, static_cast<float>(t));
        const ts::Tensor b = a + a;
        wrong += b.at({i % 37, 2}) == static_cast<float>(2 * t) ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(wrong.load() == 0);
}
