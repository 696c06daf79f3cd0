#pragma once
// What a kernel is asked to read and to write: sizes that count something in memory, and results
// that do not lie in what is still to be read. In place means: the same numbers at the same places.

#include <cstdint>
#include <initializer_list>
#include <string>

#include "tinyscale/base/error.hpp"

namespace tinyscale {
namespace detail {

[[noreturn, gnu::noinline]] inline void refuse_sizes(const char* who,
                                                     std::initializer_list<std::int64_t> sizes) {
  std::string text;
  for (const std::int64_t size : sizes) {
    text += (text.empty() ? "" : ", ") + std::to_string(size);
  }
  fail({who, ": sizes ", text, "; each must be 0 or more, their product at most 2^60"});
}

// Whether one size is 0 or more, and at most 2^60.
inline bool is_count(std::int64_t n) {
  return static_cast<std::uint64_t>(n) <= std::uint64_t{1} << 60;
}

// The product of sizes, or an Error.
inline std::int64_t count_of(const char* who, std::initializer_list<std::int64_t> sizes) {
  double product = 1;
  std::uint64_t count = 1;  // wraps round where a size of 0 follows
  bool good = true;
  for (const std::int64_t size : sizes) {
    good = good && size >= 0;
    product *= static_cast<double>(size);
    count *= static_cast<std::uint64_t>(size);
  }
  if (!good || product > 0x1p60) {
    refuse_sizes(who, sizes);
  }
  return static_cast<std::int64_t>(count);
}

// Numbers in rows, rows in batches; strides in numbers.
struct Memory {
  const char* name;
  const void* at;  // null: none
  std::int64_t columns, rows = 1, stride = 0, batches = 1, batch = 0;
  std::int64_t bytes = 4;  // of a number

  bool empty() const { return at == nullptr || columns < 1 || rows < 1 || batches < 1; }
  std::uintptr_t begin() const { return reinterpret_cast<std::uintptr_t>(at); }
  std::uintptr_t in_bytes(std::int64_t numbers) const {
    return static_cast<std::uintptr_t>(numbers) * static_cast<std::uintptr_t>(bytes);
  }
  std::uintptr_t row() const { return in_bytes(columns); }
  std::uintptr_t step() const { return rows > 1 ? in_bytes(stride) : 0; }
  std::uintptr_t leap() const { return batches > 1 ? in_bytes(batch) : 0; }
  std::uintptr_t over_rows() const { return static_cast<std::uintptr_t>(rows - 1) * step(); }
  std::uintptr_t over_batches() const { return static_cast<std::uintptr_t>(batches - 1) * leap(); }
  std::uintptr_t end() const { return begin() + row() + over_rows() + over_batches(); }

  bool same(const Memory& x) const {
    return at == x.at && row() == x.row() && rows == x.rows && step() == x.step() &&
           batches == x.batches && leap() == x.leap() && bytes == x.bytes;
  }
};

inline std::uintptr_t common_step(std::uintptr_t a, std::uintptr_t b) {
  while (b != 0) {
    const std::uintptr_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

// Whatever lies side by side in steps of one length is apart although the whole crosses: columns of
// one matrix, keys and values of a sequence in turns.
[[gnu::noinline]] inline bool memory_crosses(const Memory& a, const Memory& b) {
  const auto beside = [&](std::uintptr_t step, std::uintptr_t in_a, std::uintptr_t in_b) {
    if (step == 0) {
      return false;
    }
    const bool after = b.begin() >= a.begin();
    const std::uintptr_t rest = (after ? b.begin() - a.begin() : a.begin() - b.begin()) % step;
    const std::uintptr_t shift = after || rest == 0 ? rest : step - rest;
    return shift >= in_a && shift + in_b <= step;
  };
  const std::uintptr_t step = common_step(a.step(), b.step()),
                       leap = common_step(a.leap(), b.leap());
  return !beside(leap, a.over_rows() + a.row(), b.over_rows() + b.row()) &&
         !beside(step, a.over_batches() + a.row(), b.over_batches() + b.row()) &&
         !beside(common_step(step, leap), a.row(), b.row());
}

// Whether both share memory.
inline bool memory_overlaps(const Memory& a, const Memory& b) {
  const bool apart = a.begin() >= b.end() || b.begin() >= a.end();
  return !apart && !a.empty() && !b.empty() && memory_crosses(a, b);
}

// Whether y and x, n and m numbers of four bytes, are apart, as in nearly every call.
inline bool is_apart(const void* y, std::int64_t n, const void* x, std::int64_t m) {
  const std::uintptr_t at_y = reinterpret_cast<std::uintptr_t>(y);
  const std::uintptr_t at_x = reinterpret_cast<std::uintptr_t>(x);
  return x == nullptr || at_y + 4 * static_cast<std::uintptr_t>(n) <= at_x ||
         at_x + 4 * static_cast<std::uintptr_t>(m) <= at_y;
}
// The same, or y is x.
inline bool is_plain(const void* y, const void* x, std::int64_t n) {
  return y == x || is_apart(y, n, x, n);
}

// A result that needs memory of its own.
[[gnu::noinline]] inline void check_own(const char* who, const Memory& y,
                                        std::initializer_list<Memory> others) {
  for (const Memory& x : others) {
    if (memory_overlaps(y, x)) {
      fail({who, ": ", y.name, " overlaps ", x.name, "; it must have memory of its own"});
    }
  }
}

// A result that may also be any of the others.
[[gnu::noinline]] inline void check_in_place(const char* who, const Memory& y,
                                             std::initializer_list<Memory> others) {
  for (const Memory& x : others) {
    if (!y.same(x) && memory_overlaps(y, x)) {
      fail({who, ": ", y.name, " overlaps ", x.name, " in part; it must be ", x.name,
            " itself, number for number, or have memory of its own"});
    }
  }
}

}  // namespace detail
}  // namespace tinyscale
