#pragma once
// The numbers of a tensor: a 64-byte aligned buffer of floats, counted by the memory meter that was
// current when it was made.

#include <atomic>
#include <cstddef>  // size_t
#include <cstdint>  // int64_t
#include <new>      // bad_alloc

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/shape.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/measure/context.hpp"
#include "tinyscale/measure/memory.hpp"

namespace tinyscale {
namespace detail {

// Stands in one block with its numbers, which begin 64 bytes after the block; or, a slice, alone:
// its numbers lie inside the block of its owner, which counts the bytes.
struct Storage {
  float* data = nullptr;
  std::int64_t count = 0;
  union {
    Shared<MemoryMeter> meter;
    Shared<Storage> owner;
  };
  MemoryKind kind = MemoryKind::activation;
  bool sliced = false;       // the union holds the owner
  bool recorded = false;     // by a capture (recorder.hpp): there may be no numbers yet
  std::atomic<int> kept{0};  // ops that need numbers of this block for their backward pass
  std::int32_t writer = 0;   // which capture
  std::int32_t node = -1;    // of its graph

  Storage() : meter() {}
  ~Storage() {
    if (sliced) {
      owner.~Shared();
      return;
    }
    if (meter) {
      meter->remove(kind, static_cast<double>(bytes()));
    }
    meter.~Shared();
  }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::size_t bytes() const { return static_cast<std::size_t>(count) * sizeof(float); }
  // What holds the block of these numbers: `kept` counts there, for all slices together.
  Storage& block() { return sliced ? *owner : *this; }
};

inline Shared<Storage> make_storage(const Shape& shape, std::int64_t count, MemoryKind kind) {
  static_assert(sizeof(Storage) <= 48, "the numbers begin 64 bytes after the block");
  const bool fits = count <= (std::int64_t{1} << 38);
  Shared<Storage> storage;
  try {
    const auto numbers = static_cast<std::size_t>(fits && count > 0 ? count : 1);
    storage = Shared<Storage>::make(48 - sizeof(Storage) + (fits ? numbers * sizeof(float) : 0));
  } catch (const std::bad_alloc&) {
    storage.reset();
  }
  if (!storage || !fits) {
    fail({"Tensor: shape ", shape, " takes ", format_bytes(4 * static_cast<double>(count)),
          fits ? "; this machine has no memory left for that"
               : "; a tensor holds at most 2^38 numbers, 1.1 TB"});
  }
  storage->data = reinterpret_cast<float*>(reinterpret_cast<char*>(storage.get()) + 48);
  storage->count = count;
  storage->kind = kind;
  storage->meter = context().memory;
  if (storage->meter) {
    storage->meter->add(kind, static_cast<double>(storage->bytes()));
  }
  return storage;
}

// Numbers [first, first + count) of the owner's block, held as long as the slice lives.
inline Shared<Storage> slice_storage(const Shared<Storage>& owner, std::int64_t first,
                                     std::int64_t count) {
  if (!owner || first < 0 || count < 0 || first > owner->count - count) {
    fail({"slice_storage: ", count, " numbers from ", first, " of a buffer of ",
          owner ? owner->count : 0});
  }
  Shared<Storage> slice = Shared<Storage>::make();
  slice->meter.~Shared();
  new (&slice->owner) Shared<Storage>(owner->sliced ? owner->owner : owner);
  slice->sliced = true;
  slice->data = owner->data + first;
  slice->count = count;
  slice->kind = owner->kind;
  return slice;
}

}  // namespace detail
}  // namespace tinyscale
